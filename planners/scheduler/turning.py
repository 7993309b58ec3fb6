"""Turning: a lower bound on micro-batches of two chains on the same devices, from what cannot be kept there at once.

A micro-batch turns when its input gradient at the last stage ends. Let X turn before Y. Where a device cannot hold X at stage x
beside Y at stage y, Y comes to y only after X has left x: Y first, X could not even have come to x before it turned. And of two
that have not turned, the first to turn needs room at every stage of its chain beside what the other keeps: where neither has
that, Y comes to its stage only after X has turned. So the turns of X and Y lie apart by the longest of these ways. Whatever the
order of all turns, it is one of runs of either chain; the seconds are linear in the number of runs, and so least at an end of it.
"""

from __future__ import annotations

import numpy as np

from hardware_profiles import Floats, Integers
from planners.scheduler.heads import Ways
from planners.scheduler.instance import ScheduleInstance
from simulator import kernel

LARGEST = 2**20
"""Positions times devices, at most, for which chains are compared."""


@kernel(error_model="numpy")
def end_by_turns(instance: ScheduleInstance, ways: Ways) -> tuple[float, float]:
    """Lower bounds, by the slowest two chains, on the makespan and on the seconds of a micro-batch of each chain in an endless
    stream.
    """
    firsts, lasts = np.flatnonzero(instance.first), np.flatnonzero(instance.last)
    whole, pace, positions = 0.0, 0.0, len(instance.device)
    if len(firsts) < 2 or positions * len(instance.limit) > LARGEST:
        return whole, pace
    down = np.empty(positions)
    for one in range(len(firsts)):
        first, last = firsts[one], lasts[one]
        turned = ways.head[last] + instance.seconds[0, last] + instance.seconds[1, last]
        down[first : last + 1] = turned - ways.head[first : last + 1]
    kept = _kept(instance)
    for a in range(len(firsts)):
        for b in range(a + 1, len(firsts)):
            apart = np.empty((2, 2))
            chains = ((firsts[a], lasts[a]), (firsts[b], lasts[b]))
            for x in range(2):
                for y in range(2):
                    apart[x, y] = _apart(instance, ways, down, kept, chains[x], chains[y])
            pace = max(pace, min(apart[0, 0] + apart[1, 1], apart[0, 1] + apart[1, 0]))
            counts = (instance.passes[firsts[a]], instance.passes[firsts[b]])
            begin = (ways.head[firsts[a]] + down[firsts[a]], ways.head[firsts[b]] + down[firsts[b]])
            whole = max(whole, _fewest(apart, counts, begin, (ways.tail[lasts[a]], ways.tail[lasts[b]])))
    return whole, pace


@kernel(inner=True)
def _kept(instance: ScheduleInstance) -> Integers:
    """Units that a micro-batch at each position keeps on every device, int64 [P, D]."""
    kept = np.zeros((len(instance.device), len(instance.limit)), dtype=np.int64)
    for p in range(len(kept)):
        if not instance.first[p]:
            kept[p] = kept[p - 1]
        kept[p, instance.device[p]] += instance.keep[p]
    return kept


@kernel(inner=True)
def _apart(
    instance: ScheduleInstance,
    ways: Ways,
    down: Floats,
    kept: Integers,
    one: tuple[int | np.int64, int | np.int64],
    other: tuple[int | np.int64, int | np.int64],
) -> float:
    """Lower bound on the seconds from the turn of a micro-batch of a chain to that of one that turns after it.

    one, other: first and last position of their chains; down: float64 [P], seconds from a forward to the turn; kept: as of
    `_kept`
    """
    limit, device, seconds = instance.limit, instance.device, 0.0
    for x in range(one[0], one[1] + 1):
        for y in range(other[0], other[1] + 1):
            d, e = device[x], device[y]
            if d == e and kept[x, d] + kept[y, d] > limit[d]:
                left = kept[x, d] - instance.freed[x] + kept[y, d] > limit[d] and kept[x, d] == instance.keep[x]
                after = instance.seconds[2, x] if left else 0.0
                seconds = max(seconds, ways.round[x] - down[x] + after + down[y])
            fits = True
            for place in (d, e):
                fits &= kept[one[1], place] + kept[y, place] <= limit[place]
            if not fits and one[0] != other[0]:
                fits = True
                for place in (d, e):
                    fits &= kept[other[1], place] + kept[x, place] <= limit[place]
            if not fits:
                seconds = max(seconds, down[y])
    return float(seconds)


@kernel(inner=True, error_model="numpy")
def _fewest(
    apart: Floats, counts: tuple[np.int64, np.int64], begin: tuple[float, float], after: tuple[float, float]
) -> float:
    """Lower bound on the seconds of all micro-batches of two chains in any order.

    begin: of each chain's first turn; after: seconds after its last turn
    """
    if counts[0] == 0 or counts[1] == 0:
        return 0.0
    least = np.inf
    for first in range(2):
        for last in range(2):
            alike = 1 if first == last else 0
            runs_of_other = min(counts[1 - first], counts[first] - alike)
            for runs in (1, runs_of_other):  # of the chain that does not begin
                if runs < 1 or runs > runs_of_other:
                    continue
                changes = runs * apart[first, 1 - first] + (runs - 1 + alike) * apart[1 - first, first]
                same = (counts[first] - runs - alike) * apart[first, first]
                same += (counts[1 - first] - runs) * apart[1 - first, 1 - first]
                least = min(least, begin[first] + changes + same + after[last])
    return float(least)
