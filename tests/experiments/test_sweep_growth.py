"""Sweep growth: what is measured are the points that were asked for, and ratios are those of the fastest rounds."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from experiments.benchmarks import sweep_growth
from experiments.benchmarks.sweep_growth import growth, measured
from experiments.studies.study_harness import run_study


def test_ratios_are_of_the_fastest_rounds() -> None:
    """By hand: 8 s with one worker, 5 s with two, which use 10 CPU seconds in place of 8."""
    seconds = [(1, 9.0, 8.5), (2, 5.0, 10.0), (1, 8.0, 8.0), (2, 6.0, 11.0)]
    found = growth([{"workers": n, "seconds": wall, "cpu_seconds": cpu} for n, wall, cpu in seconds])
    assert [(one["workers"], one["ratio"], one["cpu_ratio"]) for one in found] == [(1, 1.0, 1.0), (2, 1.6, 1.25)]


def test_rounds_take_turns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One worker, then several, as often as is asked for."""
    asked: list[tuple[int, int]] = []

    def one(workers: int, points: int) -> dict[str, Any]:
        asked.append((workers, points))
        return {"workers": workers, "points": points, "seconds": 8.0 / workers, "cpu_seconds": 8.0, "load": 0.0}

    monkeypatch.setattr(sweep_growth, "measured", one)
    words = ["--workers", "2", "--points", "7", "--rounds", "2", "--json"]
    assert run_study("sweep-growth", words) == 0
    found = json.loads(capsys.readouterr().out)
    assert asked == [(1, 7), (2, 7), (1, 7), (2, 7)]
    assert [(row["workers"], row["ratio"]) for row in found["growth"]] == [(1, 1.0), (2, 2.0)]
    assert len(found["rounds"]) == 4


def test_a_sweep_that_answers_less_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has as many batches as points, and so many workers; too few answers are an error."""
    asked: list[list[str]] = []

    def ran(words: list[str], **named: Any) -> Any:
        asked.append(words)
        return subprocess.CompletedProcess(words, 0, json.dumps({"rows": [{}] * 3}).encode())

    monkeypatch.setattr(subprocess, "run", ran)
    assert measured(2, 3)["points"] == 3
    assert asked[0][asked[0].index("--over") + 1 :][:3] == ["batch=32:96:+32", "--jobs", "2"]
    with pytest.raises(RuntimeError, match="answered 3 of 4 points"):
        measured(2, 4)
