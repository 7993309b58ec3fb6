"""The evaluators by name: all give the makespan of a population, and all the same one, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from planners.unequal import compiled, recurrence
from planners.unequal.chain import Floats
from planners.unequal.matrix import matrix
from planners.unequal.problem import UnequalProblem


class PopulationEvaluator(Protocol):
    """Seconds of many individuals of one problem; sizes (individuals, genes) in stage order, results (individuals,)."""

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
        return np.array([recurrence.forward_seconds(self.problem, row) for row in rows])

    def backward_population(self, backward_sizes: ArrayLike, forward_sizes: ArrayLike | None = None) -> Floats:
        """As `PopulationEvaluator`."""
        rows = compiled.population(self.problem, backward_sizes).tolist()
        if forward_sizes is None:
            return np.array([recurrence.backward_seconds(self.problem, row) for row in rows])
        others = compiled.population(self.problem, forward_sizes).tolist()
        pairs = zip(rows, others, strict=True)
        return np.array([recurrence.backward_seconds(self.problem, row, other) for row, other in pairs])

    def __call__(self, forward_sizes: ArrayLike, backward_sizes: ArrayLike) -> Floats:
        """As `PopulationEvaluator`."""
        return self.forward_population(forward_sizes) + self.backward_population(backward_sizes, forward_sizes)


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compiled recurrence; `parallel` evaluates makespans on all cores."""

    problem: UnequalProblem
    parallel: bool = False

    def forward_population(self, forward_sizes: ArrayLike) -> Floats:
        """As `PopulationEvaluator`."""
        return compiled.forward_population(self.problem, forward_sizes)

    def backward_population(self, backward_sizes: ArrayLike, forward_sizes: ArrayLike | None = None) -> Floats:
        """As `PopulationEvaluator`."""
        return compiled.backward_population(self.problem, backward_sizes, forward_sizes)

    def __call__(self, forward_sizes: ArrayLike, backward_sizes: ArrayLike) -> Floats:
        """As `PopulationEvaluator`."""
        return compiled.makespan_population(self.problem, forward_sizes, backward_sizes, self.parallel)


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
