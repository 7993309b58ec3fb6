"""PipeDream growth: how the partitioner's CPU seconds grow with states, workers and levels.

Networks are synthetic, seeded chains, and a graph of Inception-v3's shape; every search is run once to warm up the caches and
then timed, the least of a few repeats.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from experiments.benchmarks.partitioner_growth import growth_exponents, measure
from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.report_tables import ReportTable, figure


def run(options: argparse.Namespace) -> Findings:
    """Measure every search."""
    rows = measure(options.quick)
    return Findings({"growth_exponents": growth_exponents(rows), "rows": rows}, print_document, drawn)


def drawn(document: dict[str, Any]) -> Made:
    """The figure."""
    from experiments.benchmarks.growth_plots import partitioner_figure

    yield "pipedream_growth", partitioner_figure(document["rows"])


TABLE = ReportTable(
    "PipeDream's partitioner: CPU seconds to form the states and of one search",
    "rows",
    {
        "study": "{study}",
        "states": "{states}",
        "workers": "{shape}",
        "form": "{variant}",
        "states s": "{table_cpu_seconds:.4f}",
        "search s": "{search_cpu_seconds:.4f}",
        "MiB": figure("peak_memory_bytes", ".0f", 2.0**-20),
    },
)


def print_document(document: Mapping[str, Any]) -> None:
    """A row per search, and how they grow."""
    TABLE.print(document)
    for name, exponent in document["growth_exponents"].items():
        print(f"{name}: CPU seconds grow as the power {exponent:.1f} at the largest sizes")


if __name__ == "__main__":
    sys.exit(run_study("pipedream-growth"))
