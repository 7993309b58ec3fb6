"""Sweep growth: how many more points per second `pipeplan sweep` answers with more workers.

Every sweep is a process of its own, as a user starts it, whose interpreter and workers are part of it; each number of workers
answers the same points in turn, and the fastest round counts. On a machine that others use the seconds by the clock are those
of the share that is left: the load before each round is told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.benchmarks.timing import children_seconds
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import tracked
from experiments.terminal.report_tables import ReportTable

QUESTION = (
    *("--workload", "gpt2-medium", "--cluster", "dgx-a100:1", "--planner", "large", "--stages", "2"),
    *("--json", "--quiet"),
)
"""A point takes about a second and a half of a core."""

STEP = 32
"""Samples between the batches of two points."""


def measured(workers: int, points: int) -> dict[str, Any]:
    """One sweep: seconds by the clock, CPU seconds of all its processes, and the load of the machine before it."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        batches = f"batch={STEP}:{STEP * points}:+{STEP}"
        store = str(Path(folder) / "answers.db")
        words = [sys.executable, "-m", "experiments.cli", "sweep", *QUESTION]
        began, used = time.perf_counter(), children_seconds()
        ended = subprocess.run(
            [*words, "--over", batches, "--jobs", str(workers), "--out", store], capture_output=True, check=True
        )
        seconds, cpu = time.perf_counter() - began, children_seconds() - used
    found = len(json.loads(ended.stdout)["rows"])
    if found != points:
        raise RuntimeError(f"{workers} workers answered {found} of {points} points")
    return {"workers": workers, "points": points, "seconds": seconds, "cpu_seconds": cpu, "load": load}


def growth(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest round of each number of workers, with points per second over those of the first number."""
    fastest: dict[int, dict[str, Any]] = {}
    for one in rounds:
        known = fastest.setdefault(one["workers"], one)
        if one["seconds"] < known["seconds"]:
            fastest[one["workers"]] = one
    first = next(iter(fastest.values()))
    return [
        {
            **one,
            "ratio": first["seconds"] / one["seconds"],
            "cpu_ratio": one["cpu_seconds"] / first["cpu_seconds"],
        }
        for one in fastest.values()
    ]


def run(options: argparse.Namespace) -> Findings:
    """Measure every number of workers, in rounds."""
    asked = [workers for _ in range(options.rounds) for workers in (1, options.workers)]
    rounds = [measured(workers, options.points) for workers in tracked("sweeping", asked, lambda one: f"{one} workers")]
    return Findings({"growth": growth(rounds), "rounds": rounds}, TABLE.print)


TABLE = ReportTable(
    "pipeplan sweep: points per second by workers",
    "growth",
    {
        "workers": "{workers}",
        "points": "{points}",
        "seconds": "{seconds:.1f}",
        "CPU s": "{cpu_seconds:.1f}",
        "points/s over 1": "{ratio:.2f}",
        "CPU over 1": "{cpu_ratio:.2f}",
        "load before": "{load:.1f}",
    },
)


if __name__ == "__main__":
    sys.exit(run_study("sweep-growth"))
