"""BaPipe explore: its schedules, its explorer and its claims, on GPU clusters and FPGA boards.

- schedules: formula, simulation and memory of 1F1B-AS, FBP-AS (shared and split lanes), 1F1B-SNO and 1F1B-SO over transfers
- plans: VGG-16, ResNet-50 and GNMT-8 on 2, 4, 8 V100 (pipedream-b) and on chains of 1 to 4 FPGA boards, by data parallelism,
  uniform GPipe, PipeDream (asynchronous and flushed) and BaPipe (its answer, and its best straight pipeline); where the rule of
  thumb and the simulation disagree; what layers split between boards save, in plans of which these are one decision
- claims: sweeps over link bandwidth and device memory on 8 V100, and over link bandwidth and DSP rate on 4 VCU118, for "up to
  3.2x" speedup over data parallelism and "4x" less memory, the only figures of the paper (arXiv 2012.12544) that are known
- depth: the largest L of GNMT-L that fits per method
Links and clocks of the paper's boards are unknown; those of the bundled files are assumed there, beside each number.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from experiments.bapipe_explore.exploration import measure, never_slower
from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.output import to_json
from experiments.terminal.report_tables import STALE_WORDS, ReportTable, figure, marked, words


def run(options: argparse.Namespace) -> Findings:
    """Run the studies."""
    return Findings(measure(options.quick), print_document, drawn)


def drawn(document: dict[str, Any]) -> Made:
    """The document and its figures."""
    from experiments.bapipe_explore.exploration_plots import figures

    yield "explore.json", to_json(document) + "\n"
    yield from figures(document)


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
            "method": lambda row: marked(row, "method"),
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
        "Layers split between boards: the best such pipeline against the best of whole layers",
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
    ReportTable(
        "Largest GNMT-L that fits",
        "depth",
        {"method": lambda row: marked(row, "method"), "V100": "{devices}", "L": "{layers}"},
    ),
)


def print_document(document: Mapping[str, Any]) -> None:
    """Tables, how often BaPipe is slower, and where its rule of thumb and the simulation disagree."""
    for table in TABLES:
        table.print(document)
    print(STALE_WORDS)
    for claim in never_slower(document["plans"]):
        print(claim)
    for row in document["disagreements"]:
        print(f"{row['workload']} on {row['cluster']}: {row['disagreement']}")


if __name__ == "__main__":
    sys.exit(run_study("bapipe-explore"))
