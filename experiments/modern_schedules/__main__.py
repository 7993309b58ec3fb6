"""Modern schedules: which is fastest at which memory, how far from the bound, and how far ahead a searched order is.

All families that end with a flush, each in the placement and with the number of stages per device that are its default, and
orders that the scheduler searches for at limits from what one micro-batch needs to twice the memory of 1F1B, on the stage
times that the zero-bubble paper (arXiv 2401.10241) publishes of 8 devices and 24 micro-batches: on even stages, and on stages
that take 0.7 to 1.3 times as long. The figure is the one that the paper of the V-shaped schedules (arXiv 2405.15362) draws:
time above the work of the busiest device against the peak memory of activations.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from experiments.modern_schedules.memory_points import FULL, PLACES, QUICK, measure, over_seeds
from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.report_tables import ReportTable, Row, figure


def run(options: argparse.Namespace) -> Findings:
    """Replay every family and search at every limit."""
    return Findings(measure(QUICK if options.quick else FULL), print_document, drawn)


def drawn(document: dict[str, Any]) -> Made:
    """The figure."""
    from experiments.modern_schedules.memory_point_plots import draw

    yield "modern_schedules", draw(document)


def _families(document: Row) -> Iterator[Row]:
    """Families by stages and memory."""
    rows = over_seeds(document["families"], "stages", "family", "placement")
    return iter(sorted(rows, key=lambda row: (row["stages"], row["peak_microbatches"], row["above_busiest"])))


def _limits(document: Row) -> Iterator[Row]:
    """A row for each limit, but for those of single families."""
    rows = over_seeds(document["searched"], "stages", "limit_microbatches", "placement")
    for (stages, limit), here in groupby(rows, lambda row: (row["stages"], row["limit_microbatches"])):
        if limit in document["limits_microbatches"]:
            cells = {row["placement"]: f"{100 * row['above_busiest']:.1f} ({100 * row['gap']:.1f})" for row in here}
            yield {"stages": stages, "limit_microbatches": limit, **cells}


FAMILIES = ReportTable(
    "Families: {devices} devices, {microbatches} micro-batches; memory in micro-batches of a device's part of the model",
    _families,
    {
        "stages": "{stages}",
        "family": "{family}",
        "placement": "{placement}",
        "memory": figure("peak_microbatches", ".2f"),
        "makespan, ms": figure("makespan_seconds", ".1f", 1e3),
        "above work, %": figure("above_busiest", ".1f", 100),
        "above bound, %": figure("gap", ".1f", 100),
        "searched, ms": figure("searched_seconds", ".1f", 1e3),
        "faster, %": figure("faster", ".1f", 100),
    },
)

LIMITS = ReportTable(
    "Searched orders: per cent above the work of the busiest device (above the bound at that limit)",
    _limits,
    {
        "stages": "{stages}",
        "limit": figure("limit_microbatches", "g"),
        **{place: f"{{{place}}}" for place in PLACES},
    },
)


def print_document(document: Mapping[str, Any]) -> None:
    """A row per family, and a row per limit; uneven stages as the mean of their seeds."""
    FAMILIES.print(document)
    LIMITS.print(document)


if __name__ == "__main__":
    sys.exit(run_study("modern-schedules"))
