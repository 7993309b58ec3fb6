"""UMPIPE fronts: makespan against memory of the fullest stage, exactly, for unequal sizes and for equal ones.

A limit on what the sizes decide of a stage's memory is a cap on them (`limited_problem`), and under caps the exact method proves
its optimum. So every point is optimal for its memory, and none is missing: the next limit lies just below that of the last.
Tensors on their way depend on the timing; the peaks of the replay, which hold them, stand beside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from experiments.umpipe.search_comparison import exact
from experiments.umpipe.system_baselines import gpipe_seconds
from planners.unequal import (
    InfeasibleSizes,
    UnequalTables,
    candidate_sizes,
    limited_problem,
    memory_limits,
    unequal_plan,
    unequal_problem,
)
from simulator import Evaluations


def memory_fronts(tables: UnequalTables, cuts: Sequence[int]) -> list[dict[str, Any]]:
    """The exact front of unequal sizes of a partition, from the fastest to the smallest, then all equal sizes, slow ones too.

    A row per point: `sizes` (unequal or equal), seconds, static and peak bytes of the fullest stage, bytes that it may hold, and
    the sizes of both passes.
    Raises ValueError where the problem does not recompute: its sizes then hardly change what a stage holds.
    """
    candidates, evaluate = candidate_sizes(tables.problem.batch), Evaluations(tables.problem, tables.costs)
    ranges, capacities = [tables.stage_bytes(*ends) for ends in tables.ranges(cuts)], memory_limits(tables)

    def point(sizes: str, seconds: float, forward: tuple[int, ...], backward: tuple[int, ...]) -> dict[str, Any]:
        held = [stage.recomputed(tables.problem.batch, size) for stage, size in zip(ranges, backward, strict=True)]
        peaks = evaluate.peak_bytes(unequal_plan("front", tables, cuts, forward, backward))
        assert peaks is not None
        found = {"sizes": sizes, "seconds": seconds, "static_bytes": max(held), "peak_bytes": max(peaks.values())}
        capacity = capacities[held.index(max(held))]
        return {**found, "capacity_bytes": capacity, "forward_sizes": forward, "backward_sizes": backward}

    front: list[dict[str, Any]] = []
    limit = math.inf
    while True:
        try:
            limits = [min(limit, memory) for memory in capacities]
            plan = exact(limited_problem(tables, cuts, candidates, limits))
        except InfeasibleSizes:
            break
        if front and front[-1]["seconds"] == plan.makespan_seconds:
            front.pop()  # the same makespan with less memory
        front.append(point("unequal", plan.makespan_seconds, plan.forward_sizes, plan.backward_sizes))
        limit = math.nextafter(front[-1]["static_bytes"], 0.0)
    problem = unequal_problem(tables, cuts, candidates)
    equal = [(size, (size,) * problem.stages) for size in candidates]
    return front + [point("equal", gpipe_seconds(problem, size), sizes, sizes) for size, sizes in equal]
