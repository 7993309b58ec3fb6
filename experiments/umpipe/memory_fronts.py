"""UMPIPE fronts: makespan against memory of the fullest stage, exactly, for unequal sizes and for equal ones.

A limit on what the sizes decide of a stage's memory is a cap on them (`limited_problem`), and under caps the exact method proves
its optimum. So every point is optimal for its memory, and none is missing: the next limit lies just below that of the last.
Tensors on their way depend on the timing; the peaks of the replay, which hold them, stand beside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.umpipe.system_baselines import gpipe_seconds
from planners.unequal import (
    InfeasibleSizes,
    UnequalTables,
    candidate_sizes,
    exact_sizes,
    limited_problem,
    memory_limits,
    unequal_plan,
    unequal_problem,
)
from simulator import Evaluations


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """A point of the front, or an equal size: seconds, static and peak bytes of the fullest stage, and sizes."""

    seconds: float
    static_bytes: float
    peak_bytes: float
    forward_sizes: tuple[int, ...]
    backward_sizes: tuple[int, ...]


def memory_fronts(tables: UnequalTables, cuts: Sequence[int]) -> tuple[list[MemoryPoint], list[MemoryPoint]]:
    """The exact front of unequal sizes of a partition, from the fastest to the smallest, and all equal sizes, slow ones too.

    Raises ValueError where the problem does not recompute: its sizes then hardly change what a stage holds.
    """
    candidates, points = candidate_sizes(tables.problem.batch), _Points(tables, tuple(cuts))
    front: list[MemoryPoint] = []
    limit = math.inf
    while True:
        try:
            limits = [min(limit, memory) for memory in memory_limits(tables)]
            plan = exact_sizes(limited_problem(tables, cuts, candidates, limits))
        except InfeasibleSizes:
            break
        if plan.interrupted:
            raise KeyboardInterrupt
        if front and front[-1].seconds == plan.makespan_seconds:
            front.pop()  # the same makespan with less memory
        front.append(points(plan.makespan_seconds, plan.forward_sizes, plan.backward_sizes))
        limit = math.nextafter(front[-1].static_bytes, 0.0)
    problem = unequal_problem(tables, cuts, candidates)
    equal = [(size, (size,) * problem.stages) for size in candidates]
    return front, [points(gpipe_seconds(problem, size), sizes, sizes) for size, sizes in equal]


class _Points:
    """Points of one partition."""

    def __init__(self, tables: UnequalTables, cuts: tuple[int, ...]) -> None:
        self.tables, self.cuts = tables, cuts
        self.evaluate = Evaluations(tables.problem, tables.costs)

    def __call__(self, seconds: float, forward: tuple[int, ...], backward: tuple[int, ...]) -> MemoryPoint:
        """The point of sizes that take so many seconds."""
        tables, ranges = self.tables, self.tables.ranges(self.cuts)
        held = [
            tables.stage_bytes(*ends).recomputed(tables.problem.batch, size)
            for ends, size in zip(ranges, backward, strict=True)
        ]
        peaks = self.evaluate.peak_bytes(unequal_plan("front", tables, self.cuts, forward, backward))
        assert peaks is not None
        return MemoryPoint(seconds, max(held), max(peaks.values()), forward, backward)
