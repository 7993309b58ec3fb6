"""Told apart: whether the model's seconds of two plans differ by more than its error, and which measurement would decide.

Two plans are not told apart if the median of real runs of either, as the error predicts it, lies within the error interval of the
other. Errors are mostly common to plans of one class, so that the order of two plans is surer than that; by how much no published
row tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hardware_profiles import PredictionError, counted
from planners.search.result import Result, RunnerUp
from planners.search.runner_ups import runner_ups
from simulator import TIME_PARTS, Outcome, error_of, simulate

FINE = frozenset({"layers of stages"})
"""Decisions in which plans differ too little to be named as runner-ups."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The part of an iteration in which two plans differ most.

    part: of `TIME_PARTS`; one, other: mean seconds of a device in it, of the first and the second plan
    """

    part: str
    one: float
    other: float

    def __str__(self) -> str:
        return f"{self.part} ({self.one:.3g} s against {self.other:.3g} s)"


@dataclass(frozen=True, slots=True)
class Rival:
    """The nearest runner-up that the model does not tell apart from an answer.

    error_low, error_high: ends of the error interval of its seconds; others: number of further runner-ups that are not told apart
    difference: the part in which both plans' replays differ most; None where the runner-up has no plan
    """

    runner_up: RunnerUp
    error_low: float
    error_high: float
    others: int
    difference: Difference | None

    def record(self) -> dict[str, Any]:
        """The figures by name, in base units (seconds)."""
        one, apart = self.runner_up, self.difference
        return {
            "decision": one.decision,
            "chosen": one.chosen,
            "instead": one.other,
            "notation": one.notation,
            "iteration_seconds": one.seconds,
            "error_low": self.error_low,
            "error_high": self.error_high,
            "others": self.others,
            "differs_most_in": apart and apart.part,
            "seconds_in_it": apart and apart.one,
            "seconds_in_it_instead": apart and apart.other,
        }

    def __str__(self) -> str:
        """A sentence: which plan is not told apart, and what measurement would tell."""
        one = self.runner_up
        more = f", nor from {counted(self.others, 'more runner-up')}" if self.others else ""
        said = (
            f"not told apart by the model from {one.decision} {one.other} in place of {one.chosen}, {one.seconds:.4g} s"
        )
        return f"{said}{more}: {measurement(self.difference)}"


def measurement(difference: Difference | None) -> str:
    """A sentence: which measurement tells two plans apart."""
    told = f", which differ most in {difference}" if difference else ""
    return f"a measured iteration of both would tell{told}; of either, pipeplan calibrate --plan FILE brings the model nearer"


def told_apart(one: float, error: PredictionError, other: float, of_other: PredictionError) -> bool:
    """Whether two plans' seconds are told apart: the median of neither lies within the error interval of the other.

    one, other: predicted seconds; error, of_other: the errors of these predictions
    """
    (low, high), (least, most) = error.of(one), of_other.of(other)
    return not (low <= of_other.median * other <= high or least <= error.median * one <= most)


def error_of_runner_up(outcome: Outcome, one: RunnerUp) -> PredictionError:
    """The error of a runner-up's predicted seconds; of one without a plan, the error of the answer's."""
    return outcome.error if one.problem is None or one.plan is None else error_of(one.problem, one.plan, "seconds")


def is_told_apart(outcome: Outcome, one: RunnerUp) -> bool:
    """Whether a runner-up is told apart from an answer."""
    return told_apart(outcome.iteration_seconds, outcome.error, one.seconds, error_of_runner_up(outcome, one))


def nearest_rival(result: Result) -> Rival | None:
    """The fastest runner-up that is not told apart from an answer; None where all are. Decisions of FINE are left out."""
    outcome = result.outcome
    near = [one for one in runner_ups(result) if one.decision not in FINE and not is_told_apart(outcome, one)]
    if not near:
        return None
    nearest, apart = min(near, key=lambda one: one.seconds), None
    if nearest.problem is not None and nearest.plan is not None:
        apart = difference(outcome, simulate(nearest.problem, nearest.plan))
    error = error_of_runner_up(outcome, nearest).of(nearest.seconds)
    return Rival(nearest, *error, len(near) - 1, apart)


def difference(one: Outcome, other: Outcome) -> Difference:
    """The part of an iteration in which two plans' mean seconds per device differ most."""
    mine, others = one.time_split().mean, other.time_split().mean
    place = int(np.argmax(np.abs(mine - others)))
    return Difference(TIME_PARTS[place], float(mine[place]), float(others[place]))
