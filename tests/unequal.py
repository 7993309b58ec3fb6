"""Unequal problems from functions of the block size, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from experiments.unequal_sizes.plain_recurrence import Recurrence
from planners.unequal import UnequalProblem


def problem_from_callables(
    samples: int,
    forward: Sequence[Callable[[int], float]],
    backward: Sequence[Callable[[int], float]],
    forward_link: Sequence[Callable[[int], float]] = (),
    backward_link: Sequence[Callable[[int], float]] = (),
    candidates: Sequence[int] | None = None,
    backward_caps: tuple[int, ...] | None = None,
    recomputation: str = "none",
) -> UnequalProblem:
    """A problem from functions of the block size to seconds, one a stage (or link); no links given: they cost nothing.

    `candidates` defaults to every size 1..B. Raises as `UnequalProblem`.
    """
    stages = len(forward)
    free = (lambda size: 0.0,) * (stages - 1)
    tables = [
        [[0.0] + [float(seconds(size)) for size in range(1, samples + 1)] for seconds in functions]
        for functions in (forward, backward, forward_link or free, backward_link or free)
    ]
    arrays = [np.asarray(table, dtype=np.float64).reshape(-1, samples + 1) for table in tables]
    return UnequalProblem(
        samples=samples,
        forward=arrays[0],
        backward=arrays[1],
        forward_link=arrays[2],
        backward_link=arrays[3],
        candidates=tuple(candidates if candidates is not None else range(1, samples + 1)),
        backward_caps=backward_caps,
        recomputation=recomputation,
    )


def makespan(problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int]) -> float:
    """Seconds of one mini-batch with a flush, by the plain recurrence."""
    return float(Recurrence(problem)([forward_sizes], [backward_sizes])[0])
