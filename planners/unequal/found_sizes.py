"""Found sizes: answers of searches over unequal block sizes, and over partitions and sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planners.unequal.problem import UnequalProblem

Report = Callable[[int, float], None]
"""(evaluations, best seconds so far): called before evaluations are made, with how many there will then be. It may raise
BudgetSpent, which ends a search as an interrupt does; before there are sizes, it leaves the search."""

Cuts = tuple[int, ...]
"""The first layer of stages 1 .. K-1, ascending."""


@dataclass(frozen=True, slots=True)
class FoundSizes:
    """Sizes found, and how good they are known to be.

    `makespan_seconds` of one mini-batch with a flush; `lower_bound_seconds` holds for every size vector of the
    problem; `evaluations` counts individuals (or, for searches that build a vector stage by stage, extensions of a profile
    by one stage); `seconds` is wall time; `history` holds pairs (evaluations, best makespan in seconds so far),
    `history_seconds` the wall time at each; `interrupted` that the search was stopped and this is its best.
    """

    forward_sizes: tuple[int, ...]
    backward_sizes: tuple[int, ...]
    makespan_seconds: float
    lower_bound_seconds: float
    evaluations: int
    seconds: float
    history: tuple[tuple[int, float], ...] = ()
    history_seconds: tuple[float, ...] = ()
    interrupted: bool = False

    @property
    def proven_optimal(self) -> bool:
        """Whether it is proven that no size vector takes fewer seconds."""
        return self.lower_bound_seconds >= self.makespan_seconds


@dataclass(frozen=True, slots=True)
class Sized:
    """A partition with sizes, as a search hands it to the replay.

    cuts: first layers of the stages but the first; unequal: the problem of the partition; sizes: what was found for it
    bound_seconds: lower bound on the seconds of any sizes of this partition (or plan of the planner's `space`) in any replay; 0
    if none is known
    whole: whether all partitions were bounded or solved, so that what is proven holds for each of them
    stopped: whether the search ended early
    """

    cuts: Cuts
    unequal: UnequalProblem
    sizes: FoundSizes
    bound_seconds: float = 0.0
    whole: bool = False
    stopped: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of a mini-batch in the model."""
        return self.sizes.makespan_seconds + self.unequal.fixed_seconds
