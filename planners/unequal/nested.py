"""Partition and unequal sizes searched together: partitions outside, exact sizes inside.

The paper fixes the partition. Here every partition of a chain of layers into stages is a problem of its own, and its
lower bound says in a fraction of a millisecond whether it is worth to be solved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planners.unequal.bound import lower_bound
from planners.unequal.exact import exact_sizes
from planners.unequal.problem import InfeasibleSizes, UnequalProblem
from planners.unequal.result import UnequalPlan

Cuts = tuple[int, ...]
"""The first layer of stages 1 .. K-1, ascending."""


@dataclass(frozen=True, slots=True)
class NestedPlan:
    """The best partition found with its best sizes.

    `cuts` the first layer of every stage but the first; `bounded` partitions whose bound was computed, `solved` those
    whose sizes were searched. `proven_optimal`: every partition was bounded or solved, and every solution proven (up
    to the rounding of durations to the grid of each problem, parts in 10^13).
    """

    cuts: Cuts
    plan: UnequalPlan
    bounded: int
    solved: int
    proven_optimal: bool
    interrupted: bool = False


def search_partition(
    build: Callable[[Cuts], UnequalProblem],
    layers: int,
    stages: int,
    starts: Iterable[Cuts] = (),
    most_partitions: int = 20_000,
    solve: Callable[[UnequalProblem], UnequalPlan] = exact_sizes,
    progress: Callable[[int, float], None] | None = None,
) -> NestedPlan:
    """Search cuts of `layers` layers into `stages` stages with the best block sizes of each.

    `build(cuts)` gives the problem of a partition; where it raises `InfeasibleSizes` the partition is left out. From
    the even partition and `starts` (such as a balanced one), cuts move by one layer while that helps; then, if there
    are at most `most_partitions`, all others are bounded and, where that is not enough, solved. `progress(partitions
    seen, best seconds)`. An interrupt ends with the best so far. Raises ValueError for more stages than layers or
    starts that are no cuts, `InfeasibleSizes` where nothing fits.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"stages must be in 1..{layers}, the number of layers, not {stages}")
    search = _Search(build, solve, progress)
    interrupted, complete = False, False
    try:
        for cuts in (tuple(layers * stage // stages for stage in range(1, stages)), *starts):
            if len(cuts) != stages - 1 or not _ascending(cuts, layers):
                raise ValueError(f"cuts must be {stages - 1} ascending layers in 1..{layers - 1}, not {cuts}")
            _descend(search, tuple(cuts), layers)
        if math.comb(layers - 1, stages - 1) <= most_partitions:
            for cuts in itertools.combinations(range(1, layers), stages - 1):
                search.improves(cuts)
            complete = True
    except KeyboardInterrupt:
        interrupted = True
    if search.best is None:
        raise InfeasibleSizes(f"no partition of {layers} layers into {stages} stages seen so far fits")
    return NestedPlan(
        cuts=search.cuts,
        plan=search.best,
        bounded=len(search.seen),
        solved=search.solved,
        proven_optimal=complete and search.proven,
        interrupted=interrupted,
    )


class _Search:
    """The best so far; every partition is looked at once."""

    def __init__(
        self,
        build: Callable[[Cuts], UnequalProblem],
        solve: Callable[[UnequalProblem], UnequalPlan],
        progress: Callable[[int, float], None] | None,
    ) -> None:
        self.build, self.solve, self.progress = build, solve, progress
        self.seen: set[Cuts] = set()
        self.cuts: Cuts = ()
        self.best: UnequalPlan | None = None
        self.solved, self.proven = 0, True

    def improves(self, cuts: Cuts) -> bool:
        """Look at a partition, if not seen before; True where it is the new best."""
        if cuts in self.seen:
            return False
        self.seen.add(cuts)
        try:
            problem = self.build(cuts)
        except InfeasibleSizes:
            return False
        if self.best is not None and lower_bound(problem) >= self.best.makespan_seconds:
            return False
        plan = self.solve(problem)
        self.solved += 1
        better = self.best is None or plan.makespan_seconds < self.best.makespan_seconds
        if better:
            self.cuts, self.best = cuts, plan
        # what a plan leaves open matters where its own bound would still beat the best
        self.proven = self.proven and (plan.proven_optimal or plan.lower_bound_seconds >= self._seconds())
        if self.progress is not None:
            self.progress(len(self.seen), self._seconds())
        return better

    def _seconds(self) -> float:
        return math.inf if self.best is None else self.best.makespan_seconds


def _descend(search: _Search, cuts: Cuts, layers: int) -> None:
    """Move one cut by one layer, first improvement first, until nothing helps."""
    search.improves(cuts)
    moved = True
    while moved:
        moved = False
        for index, step in itertools.product(range(len(cuts)), (-1, 1)):
            near = (*cuts[:index], cuts[index] + step, *cuts[index + 1 :])
            if _ascending(near, layers) and search.improves(near):
                cuts, moved = near, True


def _ascending(cuts: Cuts, layers: int) -> bool:
    return all(first < second for first, second in itertools.pairwise((0, *cuts, layers)))
