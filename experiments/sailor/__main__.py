"""Sailor: mixed pipelines of its published inputs, found by planner `mixed`'s search and judged by Sailor's own rules.

DIR is a checkout of eth-easl/sailor: profiles of OPT-350M's layers by GPU, tensor-parallel degree and micro-batch, and rates
between groups of GPUs. A row is a cluster: the best plan, and a bound that no plan of `planners.mixed.space` undercuts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from experiments.sailor.judge import Judge, read_inputs
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import say
from experiments.terminal.report_tables import ReportTable, either, figure
from planners.mixed import FoundPipelines, MixedPipeline, search

MODEL, BATCH = "OPT-350", 1024

SAILOR: Mapping[tuple[tuple[str, int], ...], tuple[float, float]] = {
    (("A100-40", 32),): (7.993, 0.03),
    (("A100-40", 80),): (3.6732, 0.06),
    (("A100-40", 128),): (2.395, 0.09),
    (("A100-40", 8), ("V100-16", 16)): (19.502, 0.02),
    (("A100-40", 32), ("V100-16", 96)): (5.884, 0.76),
    (("A100-40", 80), ("V100-16", 240)): (2.771, 2.7),
    (("A100-40", 128), ("V100-16", 384)): (1.912, 5.0),
    (("A100-40", 16), ("V100-16", 32), ("GH-96", 16)): (7.638, 3.1),
}
"""Clusters; seconds of the plan that Sailor's planner finds (commit cf2c8e3, built and run by itself) under the same judge, and
the seconds that it takes.
"""

MOST_WORK = 5e7
"""Work of a search at most: enough for the proof of every row."""


def run(options: argparse.Namespace) -> Findings:
    """Search every cluster; exit code 4 for inputs that cannot be read, 130 with the rows so far after an interrupt."""
    inputs = read_inputs(options.inputs, MODEL)
    search(
        Judge(inputs, {"A100-40": 1, "V100-16": 1}, 1), 1
    )  # compiles, so that no row's seconds contain the compiler's
    rows: list[dict[str, Any]] = []
    document: dict[str, Any] = {"model": MODEL, "batch": BATCH, "interrupted": False, "clusters": rows}
    try:
        for gpus, (seconds, planning) in SAILOR.items():
            judge = Judge(inputs, dict(gpus), BATCH)
            rows.append({"gpus": dict(gpus), "sailor_seconds": seconds, "sailor_planning_seconds": planning})
            _search(judge, rows[-1])
    except KeyboardInterrupt:
        document["interrupted"] = True
    return Findings(document, print_document)


def _search(judge: Judge, row: dict[str, Any]) -> None:
    """Search one cluster; the row is filled as better plans are found, and says how long that took."""
    began = time.process_time()

    def note(found: FoundPipelines) -> None:
        elapsed = time.process_time() - began
        if found.pipelines:
            seconds, pipeline = found.pipelines[0]
            if row.get("seconds") != seconds:
                row["found_after_cpu_seconds"] = elapsed
            if seconds < row["sailor_seconds"]:
                row.setdefault("ahead_after_cpu_seconds", elapsed)
            gap = seconds / found.bound - 1.0
            row.update(seconds=seconds, bound_seconds=found.bound, gap=gap, plan=_described(judge, pipeline))
        row.update(proven=found.proven, work=found.work, planning_cpu_seconds=elapsed)

    note(search(judge, MOST_WORK, watch=note))


def _described(judge: Judge, pipeline: MixedPipeline) -> dict[str, Any]:
    """A pipeline as plain values."""
    stages = [
        {
            "layers": [layers.start, layers.stop],
            "replicas": [
                {"count": count, "gpu": judge.kinds[variant.kind], "degree": variant.degree}
                for variant, count in zip(judge.variants, counts, strict=True)
                if count
            ],
        }
        for layers, counts in zip(pipeline.ranges, pipeline.counts, strict=True)
    ]
    return {"microbatch": pipeline.samples, "stages": stages}


def _rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = ({"proven": False, **row} for row in document["clusters"])
    return [{**row, "cluster": " + ".join(f"{count} {gpu}" for gpu, count in row["gpus"].items())} for row in rows]


TABLE = ReportTable(
    "Seconds of an iteration under Sailor's judge",
    _rows,
    {
        "cluster": "{cluster}",
        "seconds": figure("seconds", ".4f"),
        "bound": figure("bound_seconds", ".4f"),
        "gap %": figure("gap", ".1f", 100),
        "proven": either("proven"),
        "CPU s": figure("planning_cpu_seconds", ".2f"),
        "found after": figure("found_after_cpu_seconds", ".2f"),
        "ahead after": figure("ahead_after_cpu_seconds", ".2f"),
        "Sailor": figure("sailor_seconds", ".4f"),
        "its planning s": figure("sailor_planning_seconds", ".2f"),
    },
)


def print_document(document: Mapping[str, Any]) -> None:
    """The table, and each plan in a line."""
    TABLE.print(document)
    for row in _rows(document):
        if "plan" in row:
            stages = " | ".join(
                f"{stage['layers'][1] - stage['layers'][0]} layers on "
                + " and ".join(f"{one['count']} x {one['degree']} {one['gpu']}" for one in stage["replicas"])
                for stage in row["plan"]["stages"]
            )
            say(f"{row['cluster']}: micro-batches of {row['plan']['microbatch']}; {stages}")


if __name__ == "__main__":
    sys.exit(run_study("sailor"))
