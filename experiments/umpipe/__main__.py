"""UMPIPE: what unequal micro-batches gain, over which baselines, and how the searches for them compare.

GPT with 14 blocks and VGG-16 on every cluster of GPUs that comes with the package and has eight devices, with 4 and 8 stages,
mini-batches of 48 and 96, activations stored or recomputed; "simulation networks" are random tables of four stated families
(`unequal_sizes.random_tables`). A gain hangs on choices that the paper's abstract does not say: the partition, the sizes, what it
costs to cut stored activations again, and the baseline. Every combination is a reading (`umpipe.readings`,
`umpipe.system_baselines`), measured over all settings; sizes are proven optima of their partition, and partitions searched
jointly are proven where all can be bounded. With --out: tables as CSV, figures as PNG and SVG. An interrupt ends with what is
complete, marked so, and exit code 130.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.output import to_csv
from experiments.umpipe.gain_tables import print_document
from experiments.umpipe.gains import Report, document, mean_gains, measure

SAID = ("network", "setting", "partition", "sizes", "recut", "proven")
"""Columns of the table of gains before the gains."""


def run(options: argparse.Namespace) -> Findings:
    """Measure all of it."""
    report = measure(options.quick)
    return Findings(document(report), print_document, lambda found: (*tables(found), *drawings(report)))


def tables(found: dict[str, Any]) -> Made:
    """Name and content of the document's tables as CSV; rows of what was interrupted say so."""
    rows = [{**{key: one[key] for key in SAID}, **one["gains"]} for one in found["gains"]]
    spreads = [
        {**{key: one[key] for key in (*SAID[2:], "network")}, "over": over, **spread}
        for one in found["readings"]
        for over, spread in one["over"].items()
    ]
    searches = [{"instance": one["instance"], **row} for one in found["searches"] for row in one["searches"]]
    mark = {"interrupted": True} if found["interrupted"] else {}
    for name, table in (("gains", rows), ("readings", spreads), ("searches", searches), ("pareto", found["pareto"])):
        marked = [{**row, **mark} for row in table]
        yield f"umpipe_{name}.csv", to_csv(marked, list(dict.fromkeys(column for row in marked for column in row)))


def drawings(report: Report) -> Made:
    """The figures of what was measured."""
    from experiments.umpipe import gain_plots as plots

    if report.cases:
        yield "umpipe_gains", plots.gains_figure(mean_gains(report.cases))
    if report.instances:
        yield "umpipe_convergence", plots.convergence_figure(report.instances)
    if report.fronts:
        yield "umpipe_pareto", plots.pareto_figure(report.fronts)
    if report.shown is not None:
        yield "umpipe_gantt", plots.gantt_figure(report.shown)


if __name__ == "__main__":
    sys.exit(run_study("umpipe"))
