"""Lower bound on the makespan of every order that keeps to the limits of memory.

Ops run one at a time on a device and are not interrupted; a micro-batch keeps its memory from the start of a forward on. Nothing
is assumed of the order of micro-batches: naming them anew by their turn changes no time (see `instance`), so that "the k-th" is
the k-th of any order. Each term holds for a device, from the least times that a chain allows:

    head   from 0 to the start of a forward;   round  from there to the end of its input gradient;   tail  from there to the end

work: first head + seconds of all ops + least time after the last of them
warm-up and drain: before its first input gradient a device runs forwards only, as many as its memory holds, and waits for the
    rest of the shortest round; from its last forward on it runs what its memory still holds, and waits for the rest of round and
    tail. The two do not overlap where not all forwards fit at once: then both are added to the work, else the longer of them
first input gradient: where each device has one stage, it comes to a stage once it is over at the next one, and runs as soon as
    it comes, or after one forward more: a stage whose idle time up to then would make its work too long runs that forward, and
    all earlier stages get theirs later. The least end for which no stage lacks time or memory is found from the last stage up
rounds: a forward waits for the input gradient k micro-batches before it where memory holds k, each with what it keeps at earlier
    positions of the device (see `heads`); and where it holds no weight gradient's share beside them, for that one's weight
    gradient, or, of two or more, for the next input gradient. The micro-batches of no whole round come last, or first: in the
    one case their ops at any later stage of the chain all follow the last of the waits, in the other all lead up to the first
turns: where a chain passes a device again, and memory holds k micro-batches at the earlier position beside one that has come to
    the later: the forward of the (n + k)-th at the earlier waits for the input gradient of the n-th at the later. Begun before
    that, k + 1 would be kept at the earlier while the n-th is at the later, none of which can end before it does. Where k is 1,
    what the n-th still keeps that the next has no room beside goes between the two, too, before the next comes to the later
area: what micro-batches keep, times how long they do, fits into limit times time, less what cannot be kept yet while the first
    forwards run, and not any more while the last backwards do. Micro-batches are whole: of x that keep a forward's share and y
    that keep a weight gradient's, every edge of the hull of what a device can hold at once bounds the area, too
heads, turning: where a device has several positions, op by op, and the turns of two chains (see the modules of these names)
windows: ends from which all of this leaves some op no time to run (see the module of that name)
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Literal, get_args

import numpy as np

from hardware_profiles import Floats, Integers
from planners.scheduler.heads import Ways, end_by_heads, nested_keep, seconds_between
from planners.scheduler.instance import WEIGHT, ScheduleInstance
from planners.scheduler.turning import end_by_turns
from planners.scheduler.windows import are_refuted, end_by_windows, is_refuted, small
from simulator import kernel

Objective = Literal["makespan", "longest-stage", "steady"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)

MOST_HEADS = 100_000
"""Ops, at most, for which each has a head of its own: a tenth of a second."""

CLOSE = 1e-12
"""Relative tolerance of rounding between equal times."""

BARELY = 5e-10
"""Share by which an end must be sooner than a known one to be asked for."""

PARTS = tuple(2.0**-step for step in range(7))
"""Shares of the way from the bound to an order's longest stage at which each device is asked, in turn."""


OFFSETS, MOST_OFFSETS, OF_PAIRS = 256, 1024, 32
"""OFFSETS: parts of a longest stage by which the begins of two devices are told apart; MOST_OFFSETS: parts that are looked at, at
most; OF_PAIRS: work of two devices per work of one.
"""


def ways_of(instance: ScheduleInstance) -> Ways:
    """Least seconds along each position's chain, before, around and behind a forward's round."""
    forward, backward, weight = instance.seconds
    positions = len(forward)
    head, around, tail = np.zeros(positions), np.zeros(positions), np.zeros(positions)
    for p in range(positions):
        if not instance.first[p]:
            head[p] = head[p - 1] + forward[p - 1] + instance.lag[p]
        before = 0.0 if instance.first[p] else instance.lag[p] + backward[p - 1] + tail[p - 1]
        tail[p] = max(before, weight[p])
    for p in reversed(range(positions)):
        beyond = 0.0 if instance.last[p] else around[p + 1] + 2 * instance.lag[p + 1]
        around[p] = forward[p] + beyond + backward[p]
    return Ways(head, around, tail)


def lower_bound(instance: ScheduleInstance, objective: Objective = "makespan", *, windows: bool = True) -> float:
    """Lower bound on the seconds of any order within the limits.

    objective: `makespan` bounds the whole, `longest-stage` the longest time from a device's first start to its last end, `steady`
    the seconds per micro-batch of an endless stream
    windows: whether the windows of the ops of a small problem are narrowed, which takes most of the time
    """
    ways = ways_of(instance)
    if objective == "steady":
        return _steady_bound(instance, ways) / int(instance.first.sum())
    alone = objective == "longest-stage"
    bound = float(_bound(instance, _alone(instance, ways) if alone else ways, ways.head, alone))
    whole = _are_whole(instance, bound)
    if whole:
        bound = float(math.ceil(bound * (1.0 - CLOSE)))
    if windows and bound > 0.0 and not alone and small(instance):
        bound = end_by_windows(instance, ways, bound, whole)
    return bound if whole else bound * (1.0 - int(instance.offsets[-1]) * 2.0**-52)  # a replay adds in another order


def _are_whole(instance: ScheduleInstance, bound: float) -> bool:
    """Whether all seconds are whole numbers, of which no sum is inexact."""
    whole = (instance.seconds % 1 == 0).all() and (instance.lag % 1 == 0).all()
    return bool(whole and bound * int(instance.offsets[-1]) < 2**53)


def bound_below(instance: ScheduleInstance, known: float, end: float) -> float:
    """The known lower bound, or one barely below `end` where no order ends before that.

    Bounds of seconds that are no whole numbers come near an end, but not to it.
    """
    sooner = end * (1.0 - BARELY)
    refuted = known < sooner and small(instance) and is_refuted(instance, ways_of(instance), sooner)
    return sooner if refuted else known


def longest_below(instance: ScheduleInstance, known: float, found: float) -> float:
    """The largest lower bound on the longest stage, between the known one and that of an order (`found`), that windows show.

    They are those of any single device, and in a small problem of any two.
    """
    devices, ways, refuted = len(instance.limit), ways_of(instance), known
    whole = _are_whole(instance, found)
    alone = [(device, device) for device in range(devices if small(instance, devices) else 0)]
    pairs = [*combinations(range(devices), 2)] if small(instance, devices * (devices - 1) // 2 * OF_PAIRS) else []
    for device, other in (*alone, *pairs):
        for part in PARTS:
            sooner = (refuted + part * (found - refuted)) * (1.0 - BARELY)
            least = 0.0 if whole else sooner / OFFSETS
            if refuted < sooner and are_refuted(instance, ways, sooner, device, other, least, MOST_OFFSETS):
                refuted = sooner
    return float(math.ceil(refuted)) if whole else refuted


def _alone(instance: ScheduleInstance, ways: Ways) -> Ways:
    """Ways of each device by itself: heads count from the device's first forward, tails end with its own ops."""
    start = np.full(len(instance.limit), np.inf)
    np.minimum.at(start, instance.device, ways.head)
    head = ways.head - start[instance.device] if instance.first.sum() == 1 else np.zeros(len(start))[instance.device]
    return Ways(head, ways.round, instance.seconds[WEIGHT].copy())


def spare_seconds(instance: ScheduleInstance, longest_stage: bool, end: float) -> Floats:
    """Most seconds that the device of each position may idle if everything ends by `end`, float64 [P]; one position per
    device.
    """
    ways = ways_of(instance)
    chosen = _alone(instance, ways) if longest_stage else ways
    busy = [seconds_beside(instance, chosen, p) for p in range(len(ways.head))]
    return np.asarray(np.maximum(0.0, end - chosen.head - busy))


def _steady_bound(instance: ScheduleInstance, ways: Ways) -> float:
    """Lower bound on the seconds of a micro-batch of each chain, on the average of ever more of them.

    A device runs all their ops; what it keeps of them, times how long it must, fits into limit times seconds; and a position
    begins no more of them in the round of one, or in its turn, than memory holds.
    """
    busy = np.bincount(instance.device, weights=instance.seconds.sum(axis=0))
    area = max(_areas(instance, ways, device, -1.0) for device in range(len(instance.limit)))
    nested = nested_keep(instance)
    held = np.where(nested > 0, instance.limit[instance.device] // np.maximum(1, nested), np.inf)
    turns = max(_turns(instance, ways, ways.head)[1], end_by_turns(instance, ways)[1])
    return float(max(busy.max(), area, (ways.round / np.maximum(1, held)).max(), turns))


@kernel(error_model="numpy", borrows=True)
def _bound(instance: ScheduleInstance, ways: Ways, from_first: Floats, alone: bool) -> float:
    """The largest term of any device.

    from_first: float64 [P]; least seconds from the start of its chain to a forward; alone: devices are bounded one by one
    """
    bound, nested = 0.0, nested_keep(instance)
    for device in range(len(instance.limit)):
        work = _work(instance, ways, device)
        bound = max(bound, work, _areas(instance, ways, device, work))
    for p in range(len(instance.device)):
        if instance.passes[p] > 0:
            one = ways.head[p] + ways.round[p] + ways.tail[p]
            bound = max(bound, one, _rounds(instance, ways, nested[p], p, from_first, alone))
    bound = max(bound, _turns(instance, ways, from_first)[0])
    if len(instance.device) == len(instance.limit):
        return _first_input_gradient(instance, ways, bound)
    if not alone:
        bound = max(bound, end_by_turns(instance, ways)[0])
        if instance.offsets[-1] <= MOST_HEADS:
            bound = max(bound, end_by_heads(instance, ways))
    return bound


@kernel(inner=True, error_model="numpy", borrows=True)
def _turn(
    instance: ScheduleInstance,
    ways: Ways,
    nested: Integers,
    from_first: Floats,
    p: int,
    q: int,
    before: int,
    beside: int | np.int64,
) -> tuple[int, float]:
    """Number k of micro-batches that position p holds beside one at q, and least seconds from a forward at p to the k-th after
    it.

    q: a later position of the chain on the device; before: the one before it there; beside: units that a micro-batch keeps at all
    of them after p up to q. 0 where memory says no more than of p alone.
    """
    limit = instance.limit[instance.device[p]]
    if nested[p] == 0 or (limit - beside) // nested[p] == limit // nested[p]:
        return 0, 0.0
    fit = (limit - beside) // nested[p]
    back = ways.round[before] - (from_first[q] - from_first[before]) - ways.round[q]  # to the next that is freed
    left = (fit + 1) * nested[p] + beside - instance.freed[q]
    more = min(instance.seconds[2, q], back) if left > limit else 0.0
    return int(fit), float(from_first[q] - from_first[p] + ways.round[q] + more)


@kernel(error_model="numpy")
def _turns(instance: ScheduleInstance, ways: Ways, from_first: Floats) -> tuple[float, float]:
    """Lower bounds on the makespan, and on the seconds per micro-batch, by the slowest turns; from_first: as of `_bound`"""
    whole, pace, chain, nested = 0.0, 0.0, np.cumsum(instance.first), nested_keep(instance)
    for device in range(len(instance.limit)):
        for h in range(instance.held_offsets[device], instance.held_offsets[device + 1]):
            p = instance.held[h]
            count, before, beside = instance.passes[p], p, 0
            for other in range(h + 1, instance.held_offsets[device + 1]):
                q = instance.held[other]
                if chain[q] != chain[p] or count == 0:
                    break
                beside += instance.keep[q]
                fit, turn = _turn(instance, ways, nested, from_first, p, q, before, beside)
                if fit == 1:
                    turn = max(turn, ways.round[q] + seconds_between(instance, p, q, nested[q]))
                before = q
                if fit > 0:
                    pace = max(pace, turn / fit)
                    full = (count - 1) // fit if fit < count else 0
                    rest = (count - full * fit - 1) * instance.seconds[0, p] + ways.round[p] + ways.tail[p]
                    whole = max(whole, ways.head[p] + full * turn + rest)
    return whole, pace


@kernel(inner=True, error_model="numpy", borrows=True)
def _work(instance: ScheduleInstance, ways: Ways, device: int) -> float:
    """Lower bound on a makespan by the work of a device, with warm-up and drain."""
    count, seconds, split, keep = instance.passes, instance.seconds, instance.split, instance.keep
    freed, limits, held, held_at = instance.freed, instance.limit, instance.held, instance.held_offsets
    head, around, tail = ways
    limit = limits[device]
    load, opens, after, back = 0.0, np.inf, np.inf, np.inf
    least_kept, least_left, kept, longest_backward, longest_weight = np.inf, np.inf, 0.0, 0.0, 0.0
    ops = 0
    for h in range(held_at[device], held_at[device + 1]):
        p = held[h]
        if count[p] == 0:
            continue
        ops += count[p]
        load += count[p] * (seconds[0, p] + seconds[1, p] + seconds[2, p])
        kept += float(count[p]) * keep[p]
        opens = min(opens, head[p])
        after = min(after, 0.0 if split[p] else tail[p])
        back = min(back, head[p] + around[p] - seconds[1, p])
        least_kept = min(least_kept, keep[p])
        if split[p]:
            least_left = min(least_left, keep[p] - freed[p])
        longest_backward = max(longest_backward, seconds[1, p] + seconds[2, p])
        longest_weight = max(longest_weight, seconds[2, p])
    if ops == 0:
        return 0.0
    # forwards before the first input gradient: the longest ones that memory holds
    fit = ops if least_kept * ops <= limit else int(limit // least_kept)
    room, forwards, above = fit, 0.0, np.inf
    while room > 0:
        longest, number = -1.0, 0
        for h in range(held_at[device], held_at[device + 1]):
            p = held[h]
            if seconds[0, p] < above and count[p] > 0:
                if seconds[0, p] > longest:
                    longest, number = seconds[0, p], 0
                if seconds[0, p] == longest:
                    number += count[p]
        if number == 0:
            break
        forwards += min(number, room) * longest
        room -= min(number, room)
        above = longest
    warm_up = max(0.0, back - opens - forwards)
    # what is left to do when the last forward starts: x input gradients with their weight gradients, y of these alone
    work = 0.0
    for x in range(fit + 1):
        rest = limit - x * least_kept
        y = ops - x if least_left * (ops - x) <= rest else int(rest // least_left)
        work = max(work, x * longest_backward + y * longest_weight)
    drain = np.inf
    for h in range(held_at[device], held_at[device + 1]):
        p = held[h]
        later = h + 1 < held_at[device + 1] and not instance.first[p + 1 : held[h + 1] + 1].any()
        if count[p] > 0 and not later:
            drain = min(drain, max(0.0, around[p] + tail[p] - seconds[0, p] - work))
    idle = warm_up + drain if kept > limit else max(warm_up, drain)
    return opens + load + max(after, idle)


@kernel(borrows=True)
def seconds_beside(instance: ScheduleInstance, ways: Ways, p: int) -> float:
    """Seconds of all ops of a position, and least seconds after the last of them."""
    after = 0.0 if instance.split[p] else ways.tail[p]
    return float(instance.passes[p] * instance.seconds[:, p].sum() + after)


@kernel(inner=True, error_model="numpy")
def _first_input_gradient(instance: ScheduleInstance, ways: Ways, known: float) -> float:
    """Lower bound on the makespan of a straight pipeline: the least at which every stage can begin its first input gradient;
    known: another one

    Every end that is too early fails, or is early enough for other counts of forwards, at an idle time that says the next end.
    """
    waits = np.empty((2, len(instance.device)))
    while True:
        later = ahead_of_first(instance, ways, known, waits)
        if later <= known:
            return known
        known = later


@kernel(inner=True, error_model="numpy", borrows=True)
def ahead_of_first(instance: ScheduleInstance, ways: Ways, end: float, waits: Floats) -> float:
    """The end itself, if stages can begin their first input gradients so that everything is over by `end`; else the least end at
    which a stage does with a forward less.

    waits: float64 [2, P]; filled with the least seconds from each stage's first forward to its first input gradient, and the
    forwards run in them
    """
    count, seconds, lag, last, keep = instance.passes, instance.seconds, instance.lag, instance.last, instance.keep
    limits = instance.limit
    later, ahead = np.inf, 0.0
    for p in range(len(count) - 1, -1, -1):
        ahead += seconds[0, p] + (0.0 if last[p] else 2 * lag[p + 1] + seconds[1, p + 1])
        fit = count[p] if keep[p] * count[p] <= limits[instance.device[p]] else limits[instance.device[p]] // keep[p]
        forwards = fit
        if ahead * (1.0 + CLOSE) < fit * seconds[0, p]:
            forwards = int(ahead * (1.0 + CLOSE) / seconds[0, p])
        needed = ways.head[p] + seconds_beside(instance, ways, p) + ahead - forwards * seconds[0, p]
        if needed > end * (1.0 + CLOSE):
            later = min(later, needed)
            if forwards == fit:
                return float(later)
            forwards += 1
            ahead = forwards * seconds[0, p]
        waits[0, p], waits[1, p] = ahead, forwards
    return end


@kernel(error_model="numpy", borrows=True)
def _areas(instance: ScheduleInstance, ways: Ways, device: int, known: float) -> float:
    """Lower bound on the seconds of a device by area: in units of memory, and in whole micro-batches by each edge of the hull of
    what it can hold at once.

    known: lower bound on all orders; negative for an endless stream, of which the area of one micro-batch of each chain is asked,
    without its begin and end
    Where x micro-batches keep a forward's share, as many as y can keep a weight gradient's beside them: where x is 0, one more
    than beside 1, as one that keeps a forward's share has left it. Stages that keep more count as the one that keeps least.
    """
    count, keep, freed, limits, held = instance.passes, instance.keep, instance.freed, instance.limit, instance.held
    held_at = instance.held_offsets
    limit = limits[device]
    kept, least_kept, least_left = 0.0, limit + 1, limit + 1
    for h in range(held_at[device], held_at[device + 1]):
        p = held[h]
        if count[p] > 0:
            kept += float(count[p]) * keep[p]
            least_kept, least_left = min(least_kept, keep[p]), min(least_left, keep[p] - freed[p])
    if kept <= (limit if known >= 0.0 else 0):
        return 0.0
    area = _area(instance, ways, device, known, 0, 0, limit)
    fit, x = 0 if least_kept == 0 else limit // least_kept, 0
    if fit == 0 or fit > count.sum():
        return area
    if least_left == 0:
        return max(area, _area(instance, ways, device, known, 1, 0, fit))
    y = min(limit // least_left, 1 + (limit - least_kept) // least_left)
    while x < fit:
        further, beside = x, y
        for other in range(x + 1, fit + 1):
            fits = (limit - other * least_kept) // least_left
            if further == x or (y - fits) * (further - x) <= (y - beside) * (other - x):
                further, beside = other, fits
        if y > beside:
            both = (y - beside) * x + (further - x) * y
            area = max(area, _area(instance, ways, device, known, y - beside, further - x, both))
        x, y = further, beside
    return max(area, _area(instance, ways, device, known, 1, 0, fit))


@kernel(inner=True, error_model="numpy", borrows=True)
def _area(
    instance: ScheduleInstance,
    ways: Ways,
    device: int,
    known: float,
    of_forward: int | np.int64,
    of_weight: int | np.int64,
    limit: int | np.int64,
) -> float:
    """Lower bound on the seconds of a device by one area; known: as of `_areas`

    of_forward, of_weight: what a micro-batch keeps up to its input, and up to its weight gradient; 0, 0: its units of memory
    `up` seconds after the first forward as many may have begun as fill the limit, `down` before the end as many backwards are
    still to end; where the two may overlap, what they leave empty is not counted.
    """
    count, seconds, keep, freed, held = instance.passes, instance.seconds, instance.keep, instance.freed, instance.held
    held_at = instance.held_offsets
    head, around, tail = ways
    opens, closes, forward = np.inf, np.inf, np.inf
    room, area, most, most_freed, most_left, pace, weight_pace = float(limit), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for h in range(held_at[device], held_at[device + 1]):
        p = held[h]
        if count[p] == 0:
            continue
        whole, left = float(of_forward), float(of_weight)
        if of_forward == 0:
            whole, left = float(keep[p]), float(keep[p] - freed[p])
        area += (count[p] if known >= 0.0 else 1) * (whole * around[p] + left * seconds[2, p])
        opens, closes, forward = min(opens, head[p]), min(closes, tail[p]), min(forward, seconds[0, p])
        most, most_freed, most_left = max(most, whole), max(most_freed, whole - left), max(most_left, left)
        if left > 0:
            weight_pace = max(weight_pace, left / seconds[2, p])
        if whole > left:
            pace = max(pace, (whole - left) / seconds[1, p])
    if known < 0.0:
        return float(area / room)
    begun = int((room - 1) // most)  # forwards that leave memory empty
    up, lost = begun * forward, forward * (begun * room - most * (begun * (begun + 1) / 2))
    pace = max(pace, weight_pace)
    down = max(closes, (room - max(most_freed, most_left)) / pace)
    lost += _missing(room - most_left, weight_pace, 0.0, closes)
    lost += _missing(room - max(most_freed, most_left), pace, closes, down)
    if not up + down <= known - opens:
        lost = 0.0
    return opens + (area + lost) / room


@kernel(inner=True, error_model="numpy", borrows=True)
def _missing(room: float, pace: float, begin: float, end: float) -> float:
    """The integral of max(0, room - pace * t) over t from `begin` to `end`."""
    if pace > 0.0:
        end = min(end, room / pace)
    return float((end - begin) * (room - pace * (begin + end) / 2)) if end > begin else 0.0


@kernel(error_model="numpy", borrows=True)
def _rounds(
    instance: ScheduleInstance, ways: Ways, kept: int | np.int64, p: int, from_first: Floats, alone: bool
) -> float:
    """Lower bound on the makespan by the rounds of a position; kept: as of `nested_keep`; from_first, alone: as of `_bound`"""
    count, seconds, keep, freed = instance.passes, instance.seconds, instance.keep, instance.freed
    limits = instance.limit
    limit = limits[instance.device[p]]
    fit = count[p] if kept * count[p] <= limit else limit // kept
    more = 0.0
    if kept == keep[p] and limit - fit * kept < keep[p] - freed[p]:
        more = min(seconds[2, p], seconds[1, p]) if fit > 1 else seconds[2, p]
    full = (count[p] - 1) // fit
    round_of_fit = full * (ways.round[p] + more)
    whole = round_of_fit + _passage(instance, ways, p, count[p] - full * fit, from_first, alone)
    return float(ways.head[p] + max(whole, _passage(instance, ways, p, count[p], from_first, alone)))


@kernel(inner=True, error_model="numpy")
def _passage(
    instance: ScheduleInstance, ways: Ways, p: int, several: int | np.int64, from_first: Floats, alone: bool
) -> float:
    """Least seconds from the first of `several` forwards in a row at a position to the end of everything."""
    device_of, seconds, last, limits = instance.device, instance.seconds, instance.last, instance.limit
    _, around, tail = ways
    # on each device from here on: from the forward of the first to the end of everything, and to the input gradient here of
    # the last
    finish = (several - 1) * seconds[0, p] + around[p] + tail[p]
    begin = around[p] + (several - 1) * seconds[1, p]
    down, load, weights = np.zeros(len(limits)), np.zeros(len(limits)), np.zeros(len(limits))
    back, close = np.full(len(limits), np.inf), np.full(len(limits), np.inf)
    r = p
    while True:
        device = device_of[r]
        here = from_first[r] - from_first[p]
        if load[device] == 0.0:
            down[device] = here
        load[device] += several * (seconds[0, r] + seconds[1, r])
        weights[device] += several * seconds[2, r]
        back[device] = min(back[device], around[p] - around[r] - here)
        close[device] = min(close[device], tail[r])
        begin = max(begin, down[device] + load[device] + back[device])
        if device == device_of[p] or not alone:
            finish = max(finish, down[device] + load[device] + max(close[device], weights[device]))
        if last[r]:
            break
        r += 1
    return float(max(finish, begin + tail[p]))
