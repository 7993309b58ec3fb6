"""The answer of a search over unequal block sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Report = Callable[[int, float], None]
"""(evaluations, best seconds so far): called before evaluations are made, with how many there will then be. It may raise
SearchStopped, which ends a search as an interrupt does; before there is a plan, it leaves the search."""


class SearchStopped(Exception):
    """Raised by a `Report` to end a search: its evaluations are used up."""


@dataclass(frozen=True, slots=True)
class UnequalPlan:
    """Sizes found, and how good they are known to be.

    `makespan_seconds` of one mini-batch with a flush; `lower_bound_seconds` holds for every size vector of the
    problem; `proven_optimal` says that no size vector is better; `evaluations` counts individuals (or, for searches
    that build a plan stage by stage, extensions of a profile by one stage); `seconds` is wall time; `history` holds
    pairs (evaluations, best makespan in seconds so far), `history_seconds` the wall time at each; `interrupted` that
    the search was stopped and this is its best.
    """

    forward_sizes: tuple[int, ...]
    backward_sizes: tuple[int, ...]
    makespan_seconds: float
    lower_bound_seconds: float
    proven_optimal: bool
    evaluations: int
    seconds: float
    history: tuple[tuple[int, float], ...] = ()
    history_seconds: tuple[float, ...] = ()
    interrupted: bool = False
