"""UMPIPE fronts: makespan against memory of the fullest stage, exactly, for unequal sizes and for equal ones."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.umpipe.system_baselines import gpipe_seconds
from planners.unequal import UnequalProblem, memory_use, pareto_front


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """A point of the front, or an equal size: seconds, static and peak bytes of the fullest stage, and sizes."""

    seconds: float
    static_bytes: float
    peak_bytes: float
    forward_sizes: tuple[int, ...]
    backward_sizes: tuple[int, ...]


def memory_fronts(problem: UnequalProblem) -> tuple[list[MemoryPoint], list[MemoryPoint]]:
    """The exact front of unequal sizes, and the points of all equal sizes, slow ones too."""
    front = [
        MemoryPoint(p.makespan_seconds, p.static_bytes, p.peak_bytes, p.plan.forward_sizes, p.plan.backward_sizes)
        for p in pareto_front(problem)
    ]
    equal = []
    for size in problem.candidates:
        sizes = (size,) * problem.stages
        use = memory_use(problem, sizes, sizes)
        seconds = gpipe_seconds(problem, size)
        equal.append(MemoryPoint(seconds, float(use.static_bytes.max()), float(use.peak_bytes.max()), sizes, sizes))
    return front, equal
