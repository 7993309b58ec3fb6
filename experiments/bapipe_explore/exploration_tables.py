"""Exploration tables: the rows of BaPipe's study for a person to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.bapipe_explore.exploration import never_slower
from experiments.terminal.report_tables import ReportTable, figure, words

TABLES = (
    ReportTable(
        "Schedules: formula and simulation (F = 1, B = 2)",
        "schedules",
        {
            "schedule": "{schedule}",
            "N": "{stages}",
            "M": "{microbatches}",
            "SR": "{transfer_seconds:g}",
            "formula": "{formula_seconds:g}",
            "simulated": "{simulated_seconds:g}",
            "kept": words("kept_simulated"),
        },
    ),
    ReportTable(
        "Plans",
        "plans",
        {
            "workload": "{workload}",
            "cluster": "{cluster}",
            "method": "{method}",
            "schedule": lambda row: row.get("schedule", "no plan"),
            "plan": lambda row: row.get("notation", ""),
            "M": figure("microbatches", "d"),
            "seconds": figure("seconds", ".4g"),
            "over DP": figure("speedup", ".4g"),
            "peak GiB": figure("peak_bytes", ".4g", 2.0**-30),
            "less memory": figure("memory_reduction", ".4g"),
        },
    ),
    ReportTable(
        "Layers split between boards",
        "splits",
        {
            "workload": "{workload}",
            "cluster": "{cluster}",
            "schedule": "{schedule}",
            "split": "{split_layers}",
            "whole s": "{whole_seconds:.4g}",
            "split s": "{split_seconds:.4g}",
            "bytes whole": "{whole_bytes_per_sample:.4g}",
            "bytes split": "{split_bytes_per_sample:.4g}",
        },
    ),
    ReportTable(
        "Claims: speedup and memory against data parallelism",
        lambda document: [*document["claims"], *document["boards"]],
        {
            "workload": "{workload}",
            "devices": lambda row: row["precision"] if "precision" in row else f"{row['memory_gib']:g} GiB",
            "GB/s": figure("bandwidth", "g", 1e-9),
            "plan": lambda row: row.get("notation", "no plan"),
            "over DP": lambda row: figure("speedup", ".4g")(row) or ("DP does not fit" if row["bapipe_fits"] else ""),
            "less memory": figure("memory_reduction", ".4g"),
            "leanest": figure("most_memory_reduction", ".4g"),
            "at speedup": figure("leanest_speedup", ".4g"),
        },
    ),
    ReportTable("Largest GNMT-L that fits", "depth", {"method": "{method}", "V100": "{devices}", "L": "{layers}"}),
)


def print_document(document: Mapping[str, Any]) -> None:
    """Tables, how often BaPipe is slower, and where its rule of thumb and the simulation disagree."""
    for table in TABLES:
        table.print(document)
    for claim in never_slower(document["plans"]):
        print(claim)
    for row in document["disagreements"]:
        print(f"{row['workload']} on {row['cluster']}: {row['disagreement']}")
