"""Device placement: is the largest load on published graphs the least there is, and what do its rules and a host core change?

Reads every graph of a checkout of msr-fiddle/dnn-partitioning (MIT; Tarnawski et al., NeurIPS 2020), or of any folder of such
files, and places each on the devices that it names: with its cores of the host as devices and without, the load of an accelerator
the sum of computation and transfers and the largest of them. Beside it stands what the repository's own program `throughput-dp`
(commit b207b6a) prints for the file, and for the file with `maxCPUs` 0; that program adds transfers. Seconds are in the files'
unit; CPU seconds are of one core, compilation left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.benchmarks.timing import least_seconds
from experiments.dnn_partitioning.graph_files import OperatorGraph
from experiments.studies.public_inputs import compared, judged, judged_cells, read_inputs
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import blamed_on, tracked
from experiments.terminal.report_tables import ReportTable, figure
from planners import LOAD_RULES, DeviceClass, Output, PlacementProblem, least_largest_load

PUBLISHED: Mapping[tuple[str, int, int, int], tuple[float, float]] = {
    ("bert24_inference", 32, 6, 1): (17.7899, 17.7899),
    ("bert24_training", 64, 6, 1): (41.7458, 41.7458),
    ("gnmt_inference", 96, 6, 1): (32.9107, 32.9107),
    ("gnmt_training", 192, 6, 1): (107.004, 107.004),
    ("resnet50_inference", 177, 6, 1): (33.7747, 34.2229),
    ("resnet50_training", 354, 6, 1): (78.6318, 80.4549),
    ("bert_l-3_inference", 235, 3, 1): (27.9186, 27.9186),
    ("bert_l-3_training", 600, 3, 1): (65.3031, 65.3031),
    ("bert_l-6_inference", 418, 3, 1): (29.5795, 33.9891),
    ("bert_l-6_training", 1071, 3, 1): (72.865, 79.5009),
    ("bert_l-12_inference", 783, 6, 1): (147.478, 147.478),
    ("bert_L-12_training", 2012, 6, 1): (437.998, 437.998),
    ("resnet50_inference", 604, 6, 1): (124.349, 128.074),
    ("resnet50_training", 1243, 6, 1): (255.194, 263.035),
}
"""By file, nodes, accelerators and cores of the host: the load that the published program prints with these cores and without."""


FOLDER = "throughput-inputs"
"""Where the repository keeps the graphs that this is asked of; others are for the seconds of one sample alone."""


def run(options: argparse.Namespace) -> Findings:
    """Place every graph of the folder; exit code 1 if a published load is missed, 4 for a file that cannot be read."""
    graphs, skipped = read_inputs(options.inputs, OperatorGraph, FOLDER)
    _compile()
    asked = [
        (name, rule, cores)
        for name, graph in graphs.items()
        for cores in sorted({graph.host_cores, 0}, reverse=True)
        for rule in LOAD_RULES
        if cores + graph.accelerators
    ]
    placed = tracked("placing", asked, lambda one: one[0])
    return compared((_row(name, graphs[name], rule, cores) for name, rule, cores in placed), skipped, TABLE)


def _compile() -> None:
    """One tiny placement, so that no row's seconds contain the compiler's."""
    one = np.ones(2)
    problem = PlacementProblem(((0, 1),), (Output(0, (1,), 1.0),), (DeviceClass(2, one),), one, one)
    least_largest_load(problem)


def _row(name: str, graph: OperatorGraph, rule: str, cores: int) -> dict[str, Any]:
    """One graph by one rule on its accelerators and so many cores of the host."""
    with blamed_on(name):
        problem = graph.problem(rule, cores)
    found, spent = least_seconds(lambda: least_largest_load(problem))
    key = name.rpartition("/")[2], len(graph.nodes), graph.accelerators, graph.host_cores
    printed = PUBLISHED.get(key) if rule == "sum" else None
    published = None if printed is None else printed[0] if cores else printed[1]
    load = None if found is None else found.largest_load
    return {
        "instance": name,
        "units": problem.units,
        "accelerators": graph.accelerators,
        "host_cores": cores,
        "rule": rule,
        "largest_load": load,
        **judged(found, load, published, spent),
        "down_sets": None if found is None else found.down_sets,
        "not_searched": "" if found is None else found.lost,
    }


TABLE = ReportTable(
    "Largest load of a device, in the files' unit",
    "rows",
    {
        "graph": "{instance}",
        "devices": lambda row: f"{row['accelerators']}" + (f" + {row['host_cores']} host" if row["host_cores"] else ""),
        "load": "{rule}",
        **judged_cells("largest_load"),
        "units": "{units}",
        "down-sets": figure("down_sets", ",d"),
    },
)


if __name__ == "__main__":
    sys.exit(run_study("dnn-partitioning"))
