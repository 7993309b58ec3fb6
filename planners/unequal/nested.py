"""Nested search: partitions outside, exact sizes of each inside.

The paper fixes the partition. Here every partition of a chain of layers into stages is a problem of its own, and its lower bound
says in a fraction of a millisecond whether it is worth solving.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from planners.search.evaluator import BudgetSpent
from planners.unequal.exact import exact_sizes
from planners.unequal.found_sizes import Cuts, FoundSizes, Sized
from planners.unequal.problem import InfeasibleSizes, UnequalProblem
from planners.unequal.profiles import lower_bound

MOST_PARTITIONS = 20_000
"""Partitions, at most, where all are looked at."""


def search_partition(
    build: Callable[[Cuts], UnequalProblem],
    layers: int,
    stages: int,
    starts: Iterable[Cuts] = (),
    solve: Callable[[UnequalProblem], FoundSizes] = exact_sizes,
    bound: Callable[[Cuts], float] = lambda cuts: 0.0,
) -> Sized:
    """The fastest partition of `layers` layers into `stages` stages, each with its best block sizes.

    build: cuts -> the problem of a partition; where it raises `InfeasibleSizes` the partition is left out
    starts: partitions to begin with, beside the even one; from each, one cut after the other moves while that helps; then, if
    there are at most MOST_PARTITIONS, all others are bounded and, where that is not enough, solved
    solve: problem -> sizes; bound: cuts -> seconds that no sizes of the partition undercut, which spares building it: who
    searches one network under several rules knows one for all
    Partitions are compared by makespan and fixed seconds together. The answer is `whole` where no partition can be faster (up to
    the rounding of durations to the grid of each problem, parts in 10^13). An interrupt, or a BudgetSpent of `solve`, ends with
    the best so far, and leaves the search where there is none. Raises ValueError for more stages than layers or starts that are
    no cuts, `InfeasibleSizes` where nothing fits.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"stages must be in 1..{layers}, the number of layers, not {stages}")
    search = _Seen(build, solve, bound)
    stopped, complete = False, False
    try:
        for cuts in (*starts, tuple(layers * stage // stages for stage in range(1, stages))):
            if len(cuts) != stages - 1 or not _ascending(cuts, layers):
                raise ValueError(f"cuts must be {stages - 1} ascending layers in 1..{layers - 1}, not {cuts}")
            _descend(search, tuple(cuts), layers)
        if math.comb(layers - 1, stages - 1) <= MOST_PARTITIONS:
            for cuts in itertools.combinations(range(1, layers), stages - 1):
                search.improves(cuts)
            complete = True
    except (KeyboardInterrupt, BudgetSpent):
        if search.best is None:
            raise
        stopped = True
    if search.best is None:
        raise InfeasibleSizes(f"no partition of {layers} layers into {stages} stages seen so far fits")
    return replace(search.best, whole=complete and search.proven, stopped=stopped or search.best.sizes.interrupted)


class _Seen:
    """The partitions that were looked at, each once, and the best of them; proven: whether bounds rule out all but the best"""

    def __init__(
        self,
        build: Callable[[Cuts], UnequalProblem],
        solve: Callable[[UnequalProblem], FoundSizes],
        bound: Callable[[Cuts], float],
    ) -> None:
        self.build, self.solve, self.bound = build, solve, bound
        self.cuts: set[Cuts] = set()
        self.best: Sized | None = None
        self.proven = True

    @property
    def seconds(self) -> float:
        """Seconds of the best partition, infinite without any."""
        return math.inf if self.best is None else self.best.seconds

    def improves(self, cuts: Cuts) -> bool:
        """Look at a partition, if it is new; True if it is the new best."""
        if cuts in self.cuts:
            return False
        self.cuts.add(cuts)
        if self.bound(cuts) >= self.seconds:
            return False
        try:
            problem = self.build(cuts)
        except InfeasibleSizes:
            return False
        if lower_bound(problem) + problem.fixed_seconds >= self.seconds or self._slower_if_nothing_ran_again(problem):
            return False
        one = Sized(cuts, problem, self.solve(problem))
        better = one.seconds < self.seconds
        if better:
            self.best = one
        # what sizes leave open matters where their own bound would still beat the best
        open_seconds = one.sizes.lower_bound_seconds + problem.fixed_seconds
        self.proven = self.proven and (one.sizes.proven_optimal or open_seconds >= self.seconds)
        return better

    def _slower_if_nothing_ran_again(self, problem: UnequalProblem) -> bool:
        """Whether a quick lower bound rules a partition out: its passes decided apart, without recomputation, are no faster than
        the best.
        """
        if not problem.coupled or self.best is None:
            return False
        apart = self.solve(replace(problem, recomputation="none"))
        return apart.lower_bound_seconds + problem.fixed_seconds >= self.seconds


def _descend(search: _Seen, cuts: Cuts, layers: int) -> None:
    """Move one cut anywhere between its neighbours, near places first, taking the first move that helps, until none does."""
    search.improves(cuts)
    moved = True
    while moved:
        moved = False
        for near in _moved(cuts, layers):
            if search.improves(near):
                cuts, moved = near, True
                break


def _moved(cuts: Cuts, layers: int) -> list[Cuts]:
    """The partition, and those that differ from it in one cut, the smallest moves first."""
    ends = (0, *cuts, layers)
    places = [
        (abs(place - cut), index, place)
        for index, cut in enumerate(cuts)
        for place in range(ends[index] + 1, ends[index + 2])
    ]
    return [(*cuts[:index], place, *cuts[index + 1 :]) for _, index, place in sorted(places)]


def _ascending(cuts: Cuts, layers: int) -> bool:
    """Whether cuts rise from above 0 to below the number of layers."""
    return all(first < second for first, second in itertools.pairwise((0, *cuts, layers)))
