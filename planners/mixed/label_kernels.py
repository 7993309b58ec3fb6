"""Label kernels: pipelines grown from their last stage, and lower bounds on what stands in front of one.

A label is the end of a pipeline: stages from some layer on, with the seconds that these take so far and, under several prices of
devices, the least cost of the devices that they need. A label is dropped where another one with the same first layer and the same
variants in its first stage is no slower whatever comes in front, and needs no more; where a lower bound on the whole pipeline is
no faster than the best pipeline known; or where more labels are kept than the width permits: the least bound of these is
remembered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from simulator import kernel

MOST_LABELS = 400_000
"""Labels of one search, at most; what comes after is left out, as where the width is reached."""

ROUNDING = 1e-12
"""Share by which needs may exceed what there is."""


class SetTables(NamedTuple):
    """Figures of stages whose replicas are of a set of variants, as of `StageVariants`; need: cost per replica, [sets, prices].

    shared: as of `Space.shared`
    shallowest: fewest micro-batches in flight with which the set is of use, as `deepest`: with fewer another recompute policy
    fits that takes no longer
    """

    seconds: Floats
    deepest: Integers
    shallowest: Integers
    update: Floats
    synchronization: Floats
    forward: Floats
    backward: Floats
    need: Floats
    shared: Floats


class LeastAhead(NamedTuple):
    """Lower bounds on the stages in front of a cut, by the number of stages behind it and of layers in front.

    levels: seconds of the slowest stage, rising; needs: least cost with no stage slower, [levels, prices, behind, layers + 1]
    sums: least sums of seconds plus cost times its worth, [worths, behind, layers + 1]; price, worth: index of the price, and
    seconds that a unit of cost is worth, [worths]
    """

    levels: Floats
    needs: Floats
    sums: Floats
    price: Integers
    worth: Floats


class Asked(NamedTuple):
    """The figures of one size of micro-batches and one number of replicas.

    capacity: cost of all devices, per replica, under each price; rounds: micro-batches after the first
    in_flight: micro-batches in flight on a stage, by the number of stages from it to the last
    slowest: lower bound on the seconds of the slowest stage; waiting, queued: as of a `Space`
    first_weight: by the number of stages, and last_weight: as of `Space.transfer_weights`
    """

    capacity: Floats
    rounds: float
    in_flight: Integers
    slowest: float
    first_weight: Floats
    last_weight: float
    waiting: float
    queued: float


class Ends(NamedTuple):
    """The result of a search.

    seconds: lower bound of each pipeline found, [kept], infinite where there are fewer
    last: the label behind its first stage, and that stage's set of variants, [kept, 2]; labels: label behind, first layer, set of
    variants, [labels, 3]
    left_out: least bound of what was left out for width; work: stages that were put in front of a label
    """

    seconds: Floats
    last: Integers
    labels: Integers
    left_out: float
    work: int


# Columns of a label: seconds of the slowest stage but for the first, of all, of the first stage, of gradients, of the update, of
# the whole pipeline at least; variants of the last stage; then what is needed under each price.
SLOWEST, TOTAL, OWN, SYNCHRONIZATION, UPDATE, BOUND, LAST, NEED = range(8)


@kernel()
def least_needs(seconds: Floats, deepest: Integers, need: Floats, levels: Floats, in_flight: Integers) -> Floats:
    """Least costs of the stages in front of a cut with none slower than each level (`LeastAhead.needs`).

    seconds, deepest, need: of variants; a cut with more stages behind it than `in_flight` covers counts as the last one covered
    """
    variants, width, _ = seconds.shape
    depth, prices = len(in_flight) - 2, need.shape[1]
    own, deep = seconds.transpose(2, 1, 0).copy(), deepest.transpose(2, 1, 0).copy()
    rising = np.empty((width, width, variants), np.int64)
    for end in range(1, width):
        for begin in range(end):
            rising[end, begin] = np.argsort(own[end, begin], kind="mergesort")
    found = np.full((depth + 1, width, len(levels), prices), np.inf)
    found[:, 0], least = 0.0, np.empty(prices)
    for behind in range(depth, -1, -1):
        before = min(behind + 1, depth)
        for end in range(1, width):
            for begin in range(end):
                at, least[:] = 0, np.inf
                for level in range(len(levels)):
                    while at < variants and own[end, begin, rising[end, begin, at]] <= levels[level]:
                        one = rising[end, begin, at]
                        if deep[end, begin, one] >= in_flight[behind + 1]:
                            for price in range(prices):
                                least[price] = min(least[price], need[one, price])
                        at += 1
                    for price in range(prices):
                        total = least[price] + found[before, begin, level, price]
                        found[behind, end, level, price] = min(found[behind, end, level, price], total)
    return found.transpose(2, 3, 0, 1).copy()


@kernel()
def least_sums(
    seconds: Floats, deepest: Integers, need: Floats, price: Integers, worth: Floats, in_flight: Integers
) -> Floats:
    """Least sums of seconds and cost in front of a cut (`LeastAhead.sums`); arguments as of `least_needs`."""
    variants, width, _ = seconds.shape
    depth, paid = len(in_flight) - 2, np.empty((variants, len(worth)))
    for number in range(len(worth)):
        paid[:, number] = worth[number] * need[:, price[number]]
    own, deep = seconds.transpose(2, 1, 0).copy(), deepest.transpose(2, 1, 0).copy()
    found = np.full((depth + 1, width, len(worth)), np.inf)
    found[:, 0], least = 0.0, np.empty(len(worth))
    for behind in range(depth, -1, -1):
        before = min(behind + 1, depth)
        for end in range(1, width):
            for begin in range(end):
                least[:] = np.inf
                for one in range(variants):
                    if deep[end, begin, one] >= in_flight[behind + 1]:
                        for number in range(len(worth)):
                            least[number] = min(least[number], own[end, begin, one] + paid[one, number])
                for number in range(len(worth)):
                    total = least[number] + found[before, begin, number]
                    found[behind, end, number] = min(found[behind, end, number], total)
    return found.transpose(2, 0, 1).copy()


@kernel(inline="always")
def least_seconds(label: Floats, behind: int, layers: int, ahead: LeastAhead, asked: Asked, limit: float) -> float:
    """Lower bound on the seconds of an iteration of all pipelines that end with a label; infinite where it is not below the
    limit.

    behind: stages of the label; layers: in front of it
    """
    slowest = max(label[SLOWEST], label[OWN])
    beside = label[TOTAL] + label[SYNCHRONIZATION] + label[UPDATE]
    if layers == 0:
        for price in range(len(asked.capacity)):
            if label[NEED + price] > asked.capacity[price] * (1.0 + ROUNDING):
                return np.inf
        return float(asked.rounds * slowest + beside)
    depth = min(behind, ahead.sums.shape[1] - 1)
    rest = 0.0
    for number in range(len(ahead.worth)):
        price = ahead.price[number]
        paid = ahead.worth[number] * (asked.capacity[price] - label[NEED + price])
        rest = max(rest, ahead.sums[number, depth, layers] - paid)
    level = max(0, np.searchsorted(ahead.levels, slowest, side="right") - 1)
    while asked.rounds * slowest + beside + rest < limit:
        enough = True
        for price in range(len(asked.capacity)):
            needed = label[NEED + price] + ahead.needs[level, price, depth, layers]
            if needed > asked.capacity[price] * (1.0 + ROUNDING):
                enough = False
                break
        if enough:
            return float(asked.rounds * slowest + beside + rest)
        slowest = max(slowest, ahead.levels[level])
        level += 1
        if level == len(ahead.levels):
            break
    return np.inf


@kernel(inline="always")
def both_reduced(one: float, other: float, queued: float) -> float:
    """Seconds of two reductions of a stage; queued: share of the shorter one that runs behind the longer one"""
    return max(one, other) + queued * min(one, other)


@kernel(inline="always", borrows=True)
def _no_slower(one: Floats, two: Floats, rounds: float, apart: Floats) -> bool:
    """Whether label `one` is no slower than label `two` whatever comes in front of both, and needs no more.

    apart: seconds by which `shared` is longer, at most, with the first one's last stage than with the second's, [sets, sets]
    """
    slower = max(0.0, one[SLOWEST] - two[SLOWEST], one[OWN] - two[OWN]) * rounds
    later = max(0.0, one[SYNCHRONIZATION] - two[SYNCHRONIZATION]) + max(0.0, one[UPDATE] - two[UPDATE])
    later += apart[int(one[LAST]), int(two[LAST])]
    if one[TOTAL] + slower + later > two[TOTAL]:
        return False
    for price in range(NEED, len(one)):  # noqa: SIM110 - no generators in a kernel
        if one[price] > two[price]:
            return False
    return True


@kernel(inline="always", borrows=True)
def _keep(
    labels: Floats, place: Integers, count: int, new: Floats, rounds: float, apart: Floats
) -> tuple[int, int, float]:
    """Where to keep a label in its place: the number of labels kept then, the slot (-1 where it is dropped), and the least bound
    of what is left out for it.

    Labels of the place that the new one beats are dropped.
    """
    at, worst, highest = 0, -1, -1.0
    while at < count:
        other = labels[place[at]]
        if _no_slower(other, new, rounds, apart):
            return count, -1, np.inf
        if _no_slower(new, other, rounds, apart):
            count -= 1
            place[at] = place[count]
            continue
        if other[BOUND] > highest:
            worst, highest = at, other[BOUND]
        at += 1
    if count < len(place):
        return count + 1, count, np.inf
    if new[BOUND] >= highest:
        return count, -1, new[BOUND]
    return count, worst, highest


@kernel(inline="always", borrows=True)
def _in_front(
    old: Floats, behind: tuple[int, int, int], stage: tuple[int, int], tables: SetTables, asked: Asked, new: Floats
) -> None:
    """Fill `new` with the label that has one stage more in front.

    behind: number of stages of the old label, its first layer, its first stage's set of variants; stage: first layer, set of
    variants
    """
    (stages, end, variants), (begin, own) = behind, stage
    back = tables.backward[end, own, variants]
    forth = tables.forward[end, own, variants]
    if stages == 1:
        back *= asked.last_weight
    if begin == 0:
        forth *= asked.first_weight[stages + 1]
    seconds = tables.seconds[own, begin, end]
    new[SLOWEST] = max(old[SLOWEST], old[OWN] + asked.waiting * back)
    new[TOTAL] = old[TOTAL] + back + seconds + forth
    new[OWN] = seconds + asked.waiting * forth
    new[LAST] = old[LAST] if stages else own
    reduced = tables.synchronization[own, begin, end]
    if stages and begin == 0:
        reduced = both_reduced(reduced, tables.shared[own, int(new[LAST])], asked.queued)
    new[SYNCHRONIZATION] = max(old[SYNCHRONIZATION], reduced)
    new[UPDATE] = max(old[UPDATE], tables.update[own, begin, end])
    for price in range(tables.need.shape[1]):
        new[NEED + price] = old[NEED + price] + tables.need[own, price]


@kernel()
def grown(
    tables: SetTables, apart: Floats, ahead: LeastAhead, asked: Asked, limit: float, width: int, kept: int
) -> tuple[Floats, Integers, Integers, float, int]:
    """The best pipelines whose lower bound is below `limit`, as the fields of `Ends`.

    apart: as of `_no_slower`
    width: labels kept per first layer and set of variants; kept: pipelines that are returned, at most
    """
    sets, cuts, _ = tables.seconds.shape
    layers, prices = cuts - 1, tables.need.shape[1]
    labels, links = np.empty((MOST_LABELS, NEED + prices)), np.empty((MOST_LABELS, 3), np.int64)
    labels[0], links[0] = 0.0, -1
    labels[0, SLOWEST] = asked.slowest
    made, work, left_out = 1, 0, np.inf
    found, last = np.full(kept, np.inf), np.full((kept, 2), -1)
    counts, places = np.zeros((cuts, sets), np.int64), np.zeros((cuts, sets, width), np.int64)
    counts[layers, 0] = 1
    new = np.zeros(NEED + prices)
    for behind in range(len(asked.in_flight) - 1):
        next_counts, next_places = np.zeros((cuts, sets), np.int64), np.zeros((cuts, sets, width), np.int64)
        flight = asked.in_flight[behind + 1]
        for end in range(layers, 0, -1):
            for variants in range(sets):
                for number in places[end, variants, : counts[end, variants]]:
                    if labels[number, BOUND] >= limit:
                        continue
                    for own in range(sets):
                        for begin in range(end - 1, -1, -1):
                            if tables.deepest[own, begin, end] < flight:
                                break
                            if tables.shallowest[own, begin, end] > flight:
                                continue
                            seconds = tables.seconds[own, begin, end]
                            if asked.rounds * seconds + labels[number, TOTAL] + seconds >= limit:
                                break
                            work += 1
                            _in_front(labels[number], (behind, end, variants), (begin, own), tables, asked, new)
                            bound = least_seconds(new, behind + 1, begin, ahead, asked, limit)
                            if bound >= limit:
                                continue
                            if begin == 0:
                                most = np.argmax(found)
                                left_out = min(left_out, found[most])
                                found[most], last[most, 0], last[most, 1] = bound, number, own
                                limit = min(limit, found.max())
                                continue
                            new[BOUND] = bound
                            count, slot, dropped = _keep(
                                labels, next_places[begin, own], next_counts[begin, own], new, asked.rounds, apart
                            )
                            next_counts[begin, own] = count
                            left_out = min(left_out, dropped)
                            if slot < 0:
                                continue
                            if made == MOST_LABELS:
                                left_out = min(left_out, bound)
                                next_counts[begin, own] -= slot == count - 1
                                continue
                            labels[made] = new
                            links[made, 0], links[made, 1], links[made, 2] = number, begin, own
                            next_places[begin, own, slot] = made
                            made += 1
        counts, places = next_counts, next_places
    return found, last, links[:made].copy(), left_out, work
