"""Replay speed: ops per CPU second of the three engines and of a plain-Python replay, measured in one run.

1F1B, forward 1 s, backward 2 s, with and without a transfer of 0.1 s, and with the transfers of each boundary and direction in
turn on a channel of their own (contended). `--growth` replays ever larger pipelines, each in a
process of its own, and draws seconds and memory against ops. Absolute figures are this machine's; the ratios are what to compare.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from experiments.benchmarks.engine_rates import SHAPES, growth, measure, one_size
from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.exits import OK
from experiments.terminal.output import UsageError, output_folder, print_table, to_json, tracked
from experiments.terminal.report_tables import ReportTable, figure

FOLDER = "out/replay_speed"


def run(arguments: argparse.Namespace) -> Findings | int:
    """Measure rates, or growth; with --one a size for the growth, whose row is printed."""
    if arguments.one:
        print(json.dumps(one_size(*arguments.one)))
        return OK
    if arguments.growth:
        folder = arguments.out or output_folder(FOLDER)
        rows = growth(arguments.largest)
        return Findings({"rows": rows, "folder": str(folder)}, print_growth, drawn, folder=folder)
    if arguments.out is not None:
        raise UsageError("--out: rates have no figure; it goes with --growth")
    rows = [measure(*shape) for shape in tracked("measuring", SHAPES)]
    return Findings({"unit": "ops per CPU second", "schedule": "1f1b", "rows": rows}, print_rates)


def drawn(document: dict[str, Any]) -> Made:
    """The growth's rows and figure."""
    from experiments.benchmarks.growth_plots import engine_figure

    yield "growth.json", to_json({"rows": document["rows"]})
    yield "growth", engine_figure(document["rows"])


def print_rates(document: Mapping[str, Any]) -> None:
    """A row per engine and a column per shape: rates, and their ratios over the replay in plain Python."""
    rows = document["rows"]
    columns = ("engine", *(f"p={row['devices']} m={row['microbatches']}" for row in rows))
    prefix = "ops_per_second_"
    names = [key.removeprefix(prefix) for key in rows[0] if key.startswith(prefix)]
    print_table(
        "Ops per CPU second, 1F1B",
        columns,
        [(name.replace("_", " "), *(f"{row[prefix + name]:,.0f}" for row in rows)) for name in names],
    )
    print_table(
        "Ratio over the plain-Python replay",
        columns,
        [
            (name.replace("_", " "), *(f"{row['ratios_over_plain_python'][name]:,.2f}" for row in rows))
            for name in rows[0]["ratios_over_plain_python"]
        ],
    )


GROWTH_TABLE = ReportTable(
    "Growth of 1F1B with transfers (CPU seconds)",
    "rows",
    {
        "devices": "{devices}",
        "micro-batches": "{microbatches}",
        "ops": "{ops:,}",
        "build": "{build_seconds:.3f}",
        "prepare": "{prepare_seconds:.4f}",
        "replay": "{replay_seconds:.6f}",
        "SimPy": figure("simpy_seconds", ".2f"),
        "M ops/s prepared": lambda row: f"{row['ops'] / row['replay_seconds'] / 1e6:,.0f}",
        "peak GiB": figure("peak_bytes", ".2f", 2.0**-30),
        "bytes/op": "{bytes_per_op:,.0f}",
    },
)


def print_growth(document: Mapping[str, Any]) -> None:
    """A row per size."""
    GROWTH_TABLE.print(document)
    print(f"figure and rows in {document['folder']}")


if __name__ == "__main__":
    sys.exit(run_study("replay-speed"))
