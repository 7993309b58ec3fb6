"""The commands that compare and time the evaluators of unequal micro-batches."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments import unequal_cases, unequal_speed
from planners.unequal import problem_from_callables, random_problem


def test_cases_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """No evaluator disagrees, no exact answer differs from exhaustive search; exit code 0 and one JSON object."""
    assert unequal_cases.main(["--json", "--count", "48", "--small", "16", "--seed", "7"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["instances"], report["disagreements"], report["exact_mismatches"]) == (48, 0, 0)


def test_a_disagreement_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluator that is off by one bit is counted on every instance, by name, with exit code 1."""

    def off(problem: object) -> unequal_cases.Evaluate:
        right = unequal_cases.POPULATION_EVALUATORS["compiled"](problem)  # type: ignore[arg-type]
        return lambda forward, backward: np.nextafter(right(forward, backward), np.inf)

    monkeypatch.setitem(unequal_cases.EVALUATORS, "off", off)
    assert unequal_cases.main(["--json", "--count", "5", "--small", "0"]) == 1
    assert json.loads(capsys.readouterr().out)["disagreements_by_evaluator"]["off"] == 5


def test_bad_arguments_exit_2() -> None:
    """A negative count is a usage error."""
    with pytest.raises(SystemExit) as error:
        unequal_cases.main(["--count", "-1"])
    assert error.value.code == 2


def test_operations_are_counted() -> None:
    """B = 4, sizes (1, 2): stage 0 has 4 blocks, its link 4 forward and 2 backward, stage 1 has 2: 10 + 8 in all."""
    problem = problem_from_callables(4, [float] * 2, [float] * 2)
    sizes = np.array([[1, 2]])
    assert unequal_speed.operations_per_evaluation(problem, sizes, sizes) == (4 + 4 + 2) + (2 + 2 + 4)


def test_speed_reports_every_evaluator() -> None:
    """One small shape: a positive rate for each evaluator, ratios to the plain recurrence, and the counted limit."""
    row = unequal_speed.measure(unequal_speed.Shape(2, 8), "affine", 0, 0.002, unequal_speed.core_rates(0.001))
    assert set(row["evaluators"]) == set(unequal_cases.EVALUATORS)
    assert all(found["evaluations_per_cpu_second"] > 0 for found in row["evaluators"].values())
    assert row["ratio_to_recurrence"]["recurrence"] == 1.0
    assert row["exact_proven"]


def test_generated_instances_repeat() -> None:
    """The same seed gives the same instances."""
    first, second = (unequal_cases.generated_problem(np.random.default_rng(1), 3) for _ in range(2))
    assert first.forward.tobytes() == second.forward.tobytes()
    assert random_problem(np.random.default_rng(1), "affine", 2, 4, (1,)).samples == 4
