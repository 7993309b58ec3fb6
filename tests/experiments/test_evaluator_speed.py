"""Evaluator speed: every figure is a rate of what it says, and the document holds them all."""

from __future__ import annotations

import json

import pytest

from experiments.benchmarks import evaluator_speed
from experiments.benchmarks.evaluator_speed import MEASURED, SMALL, comparisons, plans_of, problem_of
from experiments.studies.study_harness import run_study
from simulator import Evaluations, simulate


def test_the_plans_differ_and_are_evaluated_as_simulated() -> None:
    """New cuts each time, on every device; seconds and peak as replayed."""
    problem = problem_of(*SMALL)
    plans = plans_of(problem, *SMALL)
    assert len(set(plans)) > 0.99 * len(plans)
    outcome, found = simulate(problem, plans[0], engine="compiled"), Evaluations(problem)(plans[0])
    assert found is not None
    assert (found.iteration_seconds, found.peak_bytes) == (outcome.iteration_seconds, outcome.fullest.peak_bytes)
    assert outcome.plan.devices == tuple(range(SMALL[0]))


def test_comparisons_are_ratios_of_the_rates() -> None:
    """8 stages and 64 micro-batches are 1,024 ops: 1,000 plans a second are 977 ns an op."""
    found = dict.fromkeys(MEASURED, 1000.0) | {"before_8x64_plans_per_second": 10.0}
    shown = comparisons(found)
    assert shown["nanoseconds_per_op"] == shown["batched_nanoseconds_per_op"] == pytest.approx(1e6 / 1024)
    assert shown["nanoseconds_per_op_64x512"] == pytest.approx(1e6 / 65536)
    assert shown["ratio_over_before"] == shown["contended_ratio_over_before"] == pytest.approx(100.0)


def test_every_figure_counts_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans one after the other, one plan, and rows or individuals of a population, each time that it is run."""
    monkeypatch.setattr(evaluator_speed, "rate", lambda body, seconds: (body(), seconds))
    monkeypatch.setattr(evaluator_speed, "POPULATION", 3)
    plans = len(plans_of(problem_of(2, 4), 2, 4))
    for contention in (False, True):
        assert evaluator_speed.evaluated(2, 4, 7.0, contention=contention) == (plans, 7.0)
    assert evaluator_speed.simulated(7.0) == (1, 7.0)
    assert evaluator_speed.batched(7.0) == evaluator_speed.unequal(7.0) == (3, 7.0)


def test_the_document_holds_every_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON document, or two tables."""
    monkeypatch.setattr(evaluator_speed, "MEASURED", {name: (name, lambda _: 1000.0) for name in MEASURED})
    for words in (["--json"], []):
        monkeypatch.setattr("sys.argv", ["evaluator_speed", *words])
        assert run_study("evaluator-speed") == 0
        text = capsys.readouterr().out
        if words:
            assert set(MEASURED) < set(json.loads(text))
        else:
            assert text.count("1,000") == len(MEASURED)


def test_seconds_below_nothing_are_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit 2."""
    monkeypatch.setattr("sys.argv", ["evaluator_speed", "--seconds", "0"])
    with pytest.raises(SystemExit, match="2"):
        run_study("evaluator-speed")
    assert "--seconds: '0' must be a finite number of at least 1e-06" in capsys.readouterr().err
