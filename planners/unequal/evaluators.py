"""The evaluators by name: all give the makespan of a population, and all the same one, to the last bit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from planners.unequal import chain_recurrence, compiled
from planners.unequal.chain import Floats
from planners.unequal.matrix import matrix
from planners.unequal.problem import UnequalProblem


class PopulationEvaluator(Protocol):
    """Seconds of many individuals of one problem; sizes (individuals, K) in stage order, results (individuals,)."""

    def forward_population(self, forward_sizes: ArrayLike) -> Floats:
        """Seconds of the forward pass."""

    def backward_population(self, backward_sizes: ArrayLike, forward_sizes: ArrayLike | None = None) -> Floats:
        """Seconds of the backward pass; `forward_sizes` are needed where recomputation depends on them."""

    def __call__(self, forward_sizes: ArrayLike, backward_sizes: ArrayLike) -> Floats:
        """Seconds of a mini-batch with a flush."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The plain recurrence, one individual after the other: what DGAP evaluates."""

    problem: UnequalProblem

    def forward_population(self, forward_sizes: ArrayLike) -> Floats:
        """As `PopulationEvaluator`."""
        rows = compiled.population(self.problem, forward_sizes).tolist()
        return np.array([chain_recurrence.forward_seconds(self.problem, row) for row in rows])

    def backward_population(self, backward_sizes: ArrayLike, forward_sizes: ArrayLike | None = None) -> Floats:
        """As `PopulationEvaluator`."""
        rows = compiled.population(self.problem, backward_sizes).tolist()
        if forward_sizes is None:
            return np.array([chain_recurrence.backward_seconds(self.problem, row) for row in rows])
        others = compiled.population(self.problem, forward_sizes).tolist()
        pairs = zip(rows, others, strict=True)
        return np.array([chain_recurrence.backward_seconds(self.problem, row, other) for row, other in pairs])

    def __call__(self, forward_sizes: ArrayLike, backward_sizes: ArrayLike) -> Floats:
        """As `PopulationEvaluator`."""
        return self.forward_population(forward_sizes) + self.backward_population(backward_sizes, forward_sizes)


TRIAL, PATIENCE, MOST_PATIENCE = 9, 32, 8192
"""Calls of a trial, and calls between trials at first and at most; they grow while the other way is still slower."""


@dataclass(slots=True)
class Pace:
    """Which of one core and all cores was quicker lately; the results are the same bits either way.

    The threads of a compiled parallel loop meet at a barrier that spins: on free cores they nearly double the speed, beside
    other busy processes a call can take a hundred times as long. So calls are timed: a few on one core, a few on all, then
    many the quicker way, and now and then a few the other way, ever more seldom while that loses. (A few, since threads that
    slept take their time to wake.) A population of another size starts afresh.
    """

    now: Callable[[], float] = time.perf_counter
    individuals: int = 0
    parallel: bool = False
    left: int = 0
    rest: int = PATIENCE
    clock: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=lambda: [math.inf, math.inf])

    def run(self, evaluate: Callable[[bool], Floats], individuals: int) -> Floats:
        """Evaluate on one core (False) or all (True), whichever was quicker."""
        if not self.individuals <= 2 * individuals <= 4 * self.individuals:
            self.individuals, self.parallel, self.left, self.rest = individuals, False, TRIAL, PATIENCE
            self.clock, self.seconds = [], [math.inf, math.inf]
        began = self.now()
        result = evaluate(self.parallel)
        self.clock.append((self.now() - began) / max(individuals, 1))
        self.left -= 1
        # a way that has collapsed is not tried to the end; its first call may compile, or wake threads
        collapsed = len(self.clock) > 1 and self.clock[-1] > 4.0 * self.seconds[not self.parallel]
        if self.left <= 0 or collapsed:
            self._turn(collapsed)
        return result

    def _turn(self, collapsed: bool) -> None:
        """The calls of one way are over: note the median of the last, and choose the way of the next ones."""
        before = self.seconds[self.parallel]
        last = sorted(self.clock[-(TRIAL // 2) :])
        self.seconds[self.parallel] = last[len(last) // 2]
        tried, self.clock = len(self.clock), []
        other = self.seconds[not self.parallel]
        if math.isinf(other) or (tried > TRIAL and not math.isinf(before)):
            self.parallel, self.left = not self.parallel, TRIAL
            return
        won = self.seconds[self.parallel] < other
        self.rest = PATIENCE if won else min(self.rest * (16 if collapsed else 2), MOST_PATIENCE)
        self.parallel, self.left = self.parallel if won else not self.parallel, self.rest


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compiled recurrence; `parallel` evaluates makespans on all cores, as long as that is quicker."""

    problem: UnequalProblem
    parallel: bool = False
    pace: Pace = field(default_factory=Pace, repr=False, compare=False)

    def forward_population(self, forward_sizes: ArrayLike) -> Floats:
        """As `PopulationEvaluator`."""
        return compiled.forward_population(self.problem, forward_sizes)

    def backward_population(self, backward_sizes: ArrayLike, forward_sizes: ArrayLike | None = None) -> Floats:
        """As `PopulationEvaluator`."""
        return compiled.backward_population(self.problem, backward_sizes, forward_sizes)

    def __call__(self, forward_sizes: ArrayLike, backward_sizes: ArrayLike) -> Floats:
        """As `PopulationEvaluator`."""
        if not self.parallel:
            return compiled.makespan_population(self.problem, forward_sizes, backward_sizes)
        ahead = compiled.population(self.problem, forward_sizes)
        back = compiled.population(self.problem, backward_sizes)
        return self.pace.run(
            lambda parallel: compiled.makespan_population(self.problem, ahead, back, parallel), len(ahead)
        )


def compiled_parallel(problem: UnequalProblem) -> Compiled:
    """The compiled recurrence on all cores."""
    return Compiled(problem, parallel=True)


EVALUATORS: dict[str, Callable[[UnequalProblem], PopulationEvaluator]] = {
    "recurrence": Recurrence,
    "matrix": matrix,
    "compiled": Compiled,
    "compiled-parallel": compiled_parallel,
}
"""Name -> (problem) -> evaluator of populations; tables are built once, by this call."""
