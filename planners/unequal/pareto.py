"""Makespan against peak memory: the exact Pareto front, by limits on memory that tighten step by step.

The memory of a point is the largest static memory of a stage, what its sizes decide: state, stash, and the larger of
its two block workspaces. A limit on it is, exactly, a cap on every stage's sizes (`UnequalProblem.with_memory_limit`),
and under caps the exact method proves its optimum. So every point is optimal for its memory, and no point is missing:
the next limit lies just below the memory of the last point. Receive queues depend on the timing, not on the sizes
alone; every point reports its peak with queues beside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planners.unequal.chain_recurrence import memory_use
from planners.unequal.exact import exact_sizes
from planners.unequal.problem import InfeasibleSizes, UnequalProblem
from planners.unequal.result import UnequalPlan


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A plan that no other beats in both; bytes are the largest of any stage, `peak_bytes` with receive queues."""

    plan: UnequalPlan
    static_bytes: float
    peak_bytes: float

    @property
    def makespan_seconds(self) -> float:
        """Seconds of one mini-batch."""
        return self.plan.makespan_seconds


def pareto_front(
    problem: UnequalProblem, most_points: int = 1000, progress: Callable[[ParetoPoint], None] | None = None
) -> tuple[ParetoPoint, ...]:
    """All non-dominated (makespan, static memory), from the fastest to the smallest.

    At every makespan the least memory: sizes that are larger than the makespan needs are cut by the next limit, and a
    point that the next one dominates is dropped. Ends after `most_points` solves, or on an interrupt with the points
    so far. Raises ValueError without a memory model or with recomputation that depends on the sizes.
    """
    points: list[ParetoPoint] = []
    limit = math.inf
    for _ in range(most_points):
        try:
            plan = exact_sizes(problem.with_memory_limit(limit))
        except (InfeasibleSizes, KeyboardInterrupt):
            break
        if plan.interrupted:
            break
        use = memory_use(problem, plan.forward_sizes, plan.backward_sizes)
        point = ParetoPoint(plan, float(use.static_bytes.max()), float(use.peak_bytes.max()))
        if points and points[-1].makespan_seconds == point.makespan_seconds:
            points.pop()  # the same makespan with less memory
        points.append(point)
        if progress is not None:
            progress(point)
        limit = math.nextafter(point.static_bytes, 0.0)
    return tuple(points)
