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
from planners.unequal.result import SearchStopped, UnequalPlan

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
) -> NestedPlan:
    """Search cuts of `layers` layers into `stages` stages with the best block sizes of each.

    `build(cuts)` gives the problem of a partition; where it raises `InfeasibleSizes` the partition is left out. From
    the even partition and `starts` (such as a balanced one), cuts move by one layer while that helps; then, if there
    are at most `most_partitions`, all others are bounded and, where that is not enough, solved. Partitions are compared by
    makespan and fixed seconds together. An interrupt, or a SearchStopped of `solve`, ends with the best so far, and leaves
    the search where there is none. Raises ValueError for more stages than layers or
    starts that are no cuts, `InfeasibleSizes` where nothing fits.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"stages must be in 1..{layers}, the number of layers, not {stages}")
    search = _Search(build, solve)
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
    except (KeyboardInterrupt, SearchStopped):
        if search.best is None:
            raise
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
    ) -> None:
        self.build, self.solve = build, solve
        self.seen: set[Cuts] = set()
        self.cuts: Cuts = ()
        self.best: UnequalPlan | None = None
        self.seconds = math.inf
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
        if lower_bound(problem) + problem.fixed_seconds >= self.seconds:
            return False
        plan = self.solve(problem)
        self.solved += 1
        seconds = plan.makespan_seconds + problem.fixed_seconds
        better = seconds < self.seconds
        if better:
            self.cuts, self.best, self.seconds = cuts, plan, seconds
        # what a plan leaves open matters where its own bound would still beat the best
        open_seconds = plan.lower_bound_seconds + problem.fixed_seconds
        self.proven = self.proven and (plan.proven_optimal or open_seconds >= self.seconds)
        return better


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
