"""UMPIPE baselines: the readings of GPipe and PipeDream that the paper's percentages may refer to, on one model.

All are straight pipelines whose links are processes at their idle rate; the optimizer's update is left out. Readings:

    gpipe tuned            the best equal size, with the balanced partition on which it is fastest
    gpipe M=…              M equal micro-batches, on UMPIPE's partition (the last one takes what is left)
    pipedream flush tuned  1F1B with a flush a mini-batch, the best equal size, on the better of both partitions
    pipedream flush M=…    the same at M micro-batches, on UMPIPE's partition
    pipedream tuned        1F1B without flush at its steady state (the busiest stage or link), size and partition likewise
    pipedream M=…          the same at M micro-batches, on UMPIPE's partition
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planners.unequal import EVALUATORS, UnequalProblem, best_equal, one_forward_one_backward_order, replay


@dataclass(frozen=True, slots=True)
class Reading:
    """One baseline: seconds of a mini-batch, its micro-batch size, and what UMPIPE gains over it (0.1 is 10 % more speed)."""

    name: str
    seconds: float
    size: int
    gain: float

    @property
    def system(self) -> str:
        """`gpipe` or `pipedream`."""
        return self.name.split(" ")[0]


def readings(
    problem: UnequalProblem, tuned: UnequalProblem, counts: Sequence[int], umpipe_seconds: float
) -> tuple[Reading, ...]:
    """Every reading of one problem.

    problem: on UMPIPE's partition; tuned: on GPipe's own (the same object where there is but one); counts: fixed numbers
    """
    sizes = sorted({-(-problem.samples // count) for count in range(1, problem.samples + 1)})
    fixed = {count: -(-problem.samples // count) for count in counts if count <= problem.samples}
    gpipe = best_equal(tuned)
    found = [("gpipe tuned", gpipe.makespan_seconds, gpipe.forward_sizes[0])]
    found += [(f"gpipe M={count}", gpipe_seconds(problem, size), size) for count, size in fixed.items()]
    for name, seconds_of in (("pipedream flush", flush_seconds), ("pipedream", steady_seconds)):
        partitions = [problem] if tuned is problem else [problem, tuned]
        best, size = min((seconds_of(one, size), size) for one in partitions for size in sizes)
        found.append((f"{name} tuned", best, size))
        found += [(f"{name} M={count}", seconds_of(problem, size), size) for count, size in fixed.items()]
    return tuple(Reading(name, seconds, size, seconds / umpipe_seconds - 1.0) for name, seconds, size in found)


def gpipe_seconds(problem: UnequalProblem, size: int) -> float:
    """All forwards, then all backwards, one size everywhere."""
    sizes = [[size] * problem.genes]
    return float(EVALUATORS["compiled"](problem)(sizes, sizes)[0])


def flush_seconds(problem: UnequalProblem, size: int) -> float:
    """1F1B with a flush, one size everywhere; the order of classic 1F1B, links beside the stages."""
    sizes = [size] * problem.genes
    return replay(problem, sizes, sizes, one_forward_one_backward_order(problem, sizes, sizes)).makespan_seconds


def steady_seconds(problem: UnequalProblem, size: int) -> float:
    """1F1B without flush, one size everywhere: seconds for which the busiest stage, or link direction, works on a mini-batch.

    With enough micro-batches in flight a pipeline without flush runs at the rate of its slowest process.
    """
    whole, rest = divmod(problem.samples, size)

    def busy(table: np.ndarray) -> np.ndarray:
        return np.asarray(whole * table[:, size] + (table[:, rest] if rest else 0.0))

    again = problem.forward if problem.recomputation == "always" else 0.0 * problem.forward
    stages = busy(problem.forward + problem.backward + again)
    links = [float(busy(table).max(initial=0.0)) for table in (problem.forward_link, problem.backward_link)]
    return max(float(stages.max()), *links)
