"""Sweep: decides the sizes of one stage after the other, keeping every end-time profile that may still win.

(R) is monotone in arrival times, so of two profiles the one that is nowhere earlier can be dropped; one whose bound does not beat
the best sizes known can be dropped too. What is left at the end is optimal, and the proof is that everything else was dropped for
one of the two reasons. Durations lie on a grid (see `problem`), so every comparison is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats
from planners.search.evaluator import BudgetSpent
from planners.unequal.found_sizes import Report
from planners.unequal.greedy import trace
from planners.unequal.profiles import Front, non_dominated

ROWS = 1 << 14
"""Rows for profiles, at least, before dominated ones are dropped."""


class Decision(NamedTuple):
    """The decision of a sweep at one stage.

    choices: number of sizes, or pairs of them, that the stage may take
    extend: (upper, profiles, start, found, filled) -> (next profile to extend, rows filled): every extension that may beat
    `upper` seconds, from profile `start` on, appended to `found` while a whole profile's worth has room
    bounds: lower bound on the end of the chain, in seconds, of each profile after the stage; after the last stage the end itself
    """

    choices: int
    extend: Callable[[float, Floats, int, Front, int], tuple[int, int]]
    bounds: Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Known:
    """The best sizes known of the passes that a sweep decides together.

    sizes: a vector per pass, in the order of the sweep; seconds: of these passes; bound: lower bound on them, equal if the sizes
    are proven optimal; tried: profiles extended by one size; interrupted: whether the sweep was stopped
    """

    sizes: tuple[tuple[int, ...], ...]
    seconds: float
    bound: float
    tried: int
    interrupted: bool = False


def sweep(
    decisions: Sequence[Decision], start: Front, known: Known, width: int, progress: Report | None = None
) -> Known:
    """The best sizes after one pass over the stages that keeps at most `width` profiles after each, those of the least bounds.

    start: one profile, before the first stage; known: the best sizes before. An interrupt, or a BudgetSpent of `progress`, ends
    with what was known, marked.
    """
    front, layers, bounds = start, list[Front](), np.zeros(1)
    least, tried = known.seconds, known.tried
    try:
        for decision in decisions:
            more = len(front.parents) * decision.choices
            if progress is not None:
                progress(tried + more, known.seconds)
            front = _extended(decision, known.seconds, front)
            tried += more
            bounds = decision.bounds(front.profiles)
            if len(bounds) > width:
                order = np.argsort(bounds, kind="stable")
                least = min(least, float(bounds[order[width]]))
                kept = np.sort(order[:width])
                front, bounds = front.chosen(kept), bounds[kept]
            layers.append(front)
            if not len(bounds):
                break
    except (KeyboardInterrupt, BudgetSpent):
        return replace(known, tried=tried, interrupted=True)
    sizes, seconds = known.sizes, known.seconds
    if len(bounds):
        last = int(np.argmin(bounds))
        sizes, seconds = tuple(zip(*trace(layers, last), strict=True)), float(bounds[last])
    return Known(sizes, seconds, max(known.bound, min(least, seconds)), tried)


def _extended(decision: Decision, upper: float, front: Front) -> Front:
    """All extensions of a front by one stage that may beat `upper` seconds and that no other dominates."""
    rows, found, filled, following = max(ROWS, 2 * decision.choices), front.chosen(slice(0)), 0, 0
    while following < len(front.parents):
        room = front.room(rows)
        for target, source in zip(room, found, strict=True):
            target[:filled] = source
        following, filled = decision.extend(upper, front.profiles, following, room, filled)
        found = room.chosen(slice(filled))
        found = found.chosen(non_dominated(found.profiles))
        # the room is full: keep its front at the start, and double it if that frees too little
        filled = len(found.parents)
        rows = rows if filled * 2 + decision.choices <= rows else rows * 2
    return found
