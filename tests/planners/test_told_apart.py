"""Told apart: which plans an error leaves in one order, which it does not, and what would tell."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hardware_profiles import ErrorClass, PredictionError, Stack, accelerator_kind
from planners import Proof, Result, RunnerUp, difference, is_told_apart, nearest_rival, told_apart
from planners.testing import small_problems
from simulator import Plan, Problem, Score, equal_microbatches, simulate, stages_from_cuts


def error(low: float, high: float, median: float = 1.0) -> PredictionError:
    """An interval."""
    return PredictionError(median, low, high, 30, "by hand")


@pytest.mark.parametrize(
    ("one", "error_", "other", "of_other", "apart"),
    [
        (1.0, error(0.9, 1.1), 1.05, error(0.9, 1.1), False),
        (1.0, error(0.9, 1.1), 1.12, error(0.9, 1.1), True),
        (1.0, error(0.9, 1.1), 1.12, error(0.85, 1.1), False),  # within the error of the other
        (1.0, error(1.2, 1.4, 1.3), 1.05, error(1.2, 1.4, 1.3), False),  # an error that all have tells nothing of two
        (1.0, error(1.2, 1.4, 1.3), 1.09, error(1.2, 1.4, 1.3), True),
    ],
)
def test_plans_within_the_error_are_not_told_apart(
    one: float, error_: PredictionError, other: float, of_other: PredictionError, apart: bool
) -> None:
    """By the middle of either and the ends of the other; in whatever order they are asked."""
    assert told_apart(one, error_, other, of_other) == apart
    assert told_apart(other, of_other, one, error_) == apart


def stack(high: float, plans: tuple[str, ...] = ("data", "pipeline")) -> Stack:
    """One whose seconds are off by so much on the devices of small problems."""
    device = small_problems()["transformer"].cluster.devices[0]
    one = ErrorClass(
        figure="seconds",
        accelerators=(accelerator_kind(device, "seconds"),),
        plans=plans,  # type: ignore[arg-type]
        median=1.0,
        low=1 / high,
        high=high,
        rows=40,
    )
    return Stack(name="mine", errors=(one,))


def answer(high: float, **others: float) -> Result:
    """A pipeline of two micro-batches, and plans beside it by decision, so many times as long."""
    problem = replace(small_problems()["transformer"], stack=stack(high))
    cut = stages_from_cuts([len(problem.workload) // 2], len(problem.workload), [(0,), (1,)])
    plan = Plan("", "1f1b", cut, equal_microbatches(problem.batch, 2))
    outcome = simulate(problem, plan)
    made = {
        "schedule": replace(plan, schedule="gpipe"),
        "microbatches": replace(plan, microbatches=equal_microbatches(problem.batch, 1)),
        "stages": replace(plan, stages=stages_from_cuts([], len(problem.workload), [(0, 1)])),
    }
    scores = {made[name]: Score(times * outcome.iteration_seconds, 1.0, 2.0, 0) for name, times in others.items()}
    return Result(outcome, Proof(reason="by hand"), len(scores), 0.0, replayed=scores)


def test_the_nearest_runner_up_within_the_error_is_told() -> None:
    """Of 4 % and 30 % more, under an error of 10 %, the first; both replays say what they differ most in."""
    result = answer(1.1, microbatches=1.04, stages=1.3)
    found = nearest_rival(result)
    assert found is not None
    assert (found.runner_up.decision, found.runner_up.other, found.others) == ("micro-batches", "1", 0)
    assert found.error_high == pytest.approx(1.1 * found.runner_up.seconds)
    other = simulate(result.problem, replace(result.plan, microbatches=equal_microbatches(result.problem.batch, 1)))
    assert found.difference == difference(result.outcome, other)
    assert "not told apart by the model from micro-batches 1 in place of 2" in str(found)
    assert "calibrate" in str(found)
    record, parts = found.record(), ("differs_most_in", "seconds_in_it", "seconds_in_it_instead")
    assert tuple(record[name] for name in parts) == (
        found.difference.part,
        found.difference.one,
        found.difference.other,
    )


def test_runner_ups_outside_of_the_error_are_told_apart() -> None:
    """Nothing is said of them."""
    assert nearest_rival(answer(1.02, microbatches=1.04, stages=1.3)) is None
    assert nearest_rival(answer(1.02)) is None


def test_a_runner_up_without_a_plan_has_the_answers_error() -> None:
    """And no replay that says what differs."""
    result = answer(1.1)
    one = RunnerUp("stack", "mine", "other", 1.05 * result.iteration_seconds)
    assert not is_told_apart(result.outcome, one)
    found = nearest_rival(replace(result, told=(one,)))
    assert found is not None
    assert found.difference is None
    record = found.record()
    parts = "differs_most_in", "seconds_in_it", "seconds_in_it_instead"
    assert [record[name] for name in parts] == [None] * 3
    assert "differ" not in str(found)


def test_results_state_their_error() -> None:
    """Seconds at both ends, in Python, in the record and in words."""
    result = answer(1.25)
    seconds = result.iteration_seconds
    assert (result.error_low, result.error_high) == pytest.approx((seconds / 1.25, seconds * 1.25))
    record = result.record()
    assert (record["error_low"], record["error_high"]) == (result.error_low, result.error_high)
    assert record["memory_error_low"] < record["peak_memory_bytes"] < record["memory_error_high"]
    assert "90 % of 40 runs like it" in result.remarks()[1]


def test_the_difference_is_that_of_the_replays() -> None:
    """The part whose mean seconds lie furthest apart."""
    problem: Problem = small_problems()["transformer"]
    halves = stages_from_cuts([len(problem.workload) // 2], len(problem.workload), [(0,), (1,)])
    whole = stages_from_cuts([], len(problem.workload), [(0, 1)])
    one, other = (
        simulate(problem, Plan("", "1f1b", stages, equal_microbatches(problem.batch, 1))) for stages in (halves, whole)
    )
    found = difference(one, other)
    mine, others = one.time_split().mean.tolist(), other.time_split().mean.tolist()
    assert abs(found.one - found.other) == max(abs(a - b) for a, b in zip(mine, others, strict=True))


def test_a_result_without_a_bound_has_none() -> None:
    """As where durations are noisy."""
    result = answer(1.1)
    assert result.bound == result.outcome.lower_bound.seconds  # type: ignore[union-attr]
    assert math.isnan(replace(result, outcome=replace(result.outcome, lower_bound=None)).bound)
