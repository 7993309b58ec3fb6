"""Speedup tables: PipeDream's result tables, published and simulated, for a person to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.terminal.report_tables import ReportTable, Row, either, figure


def _published_saving(record: Row) -> str:
    saved = record["published_communication_saved"]
    return "" if saved is None else "-".join(dict.fromkeys(f"{100 * one:.0f}" for one in saved)) + " %"


SPEEDUPS = ReportTable(
    "Speedup over data parallelism, simulated and published († recalled, not checked)",
    "rows",
    {
        "table": "{table}",
        "model": "{model}",
        "cluster": "{cluster}",
        "published plan": "{published_plan}",
        "published": lambda record: (
            f"{record['published_speedup']:.2f}" + (" †" if record["published_recalled"] else "")
        ),
        "simulated": "{speedup:.2f}",
        "band": "{speedup_low:.2f} to {speedup_high:.2f}",
        "error": figure("relative_error", "+.0f", 100, unit=" %"),
        "saved, published": _published_saving,
        "saved": figure("communication_saved", ".0f", 100, unit=" %"),
        "search here": "{planned}",
        "its speedup": "{planned_speedup:.2f}",
        "collective efficiency": "{collective_efficiency:g}",
    },
)

GPIPE = ReportTable(
    "GNMT-16, one straight partition of 16: throughput below asynchronous PipeDream's",
    "gpipe",
    {
        "cluster": "{cluster}",
        "schedule": "{schedule}",
        "recompute": either("recompute"),
        "micro-batches": "{microbatches}",
        "lower by": figure("lower_by", ".0f", 100, unit=" %"),
        "published": lambda record: "" if record["published_lower_by"] is None else "35-71 %",
    },
)


def print_document(document: Mapping[str, Any]) -> None:
    """Both tables, and what could not be run."""
    SPEEDUPS.print(document)
    for record in document["missing"]:
        print(
            f"not run: {record['table']} {record['model']} on {record['devices']} devices of {record['cluster']} "
            f"({record['published_plan']}, {record['published_speedup']}): {record['lacking']}"
        )
    GPIPE.print(document)
