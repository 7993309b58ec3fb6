"""Windows: ends that no order meets, found by narrowing down when each op may run if everything is over by then.

The window of an op goes from the least time at which it may begin to the latest at which it may end. For the longest stage of one
device or two, windows count from the device's first start, and only its own ops must end in time. Windows are narrowed by three
rules, each of which every order obeys. Where one leaves no room for an op, no order is over by that end:

    links    an op begins after those that it waits for have ended: in its chain, before it in its code, or for memory
    device   ops run one at a time: an op follows those that it cannot come before, and any others that must all be over too soon
             for it to run before or among them (edge finding: Carlier and Pinson 1989); none are longer than their time
    memory   what is kept from before a time to after it wherever in its window everything runs takes up its room: a forward
             whose micro-batch would be kept at that time, too, and has no room, begins later, and a gradient ends before. With
             it are kept those whose forwards come before that forward, and those whose gradients come after that gradient
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware_profiles import Flags, Floats, Integers
from planners.scheduler.heads import Ways, heads_of, nested_keep
from planners.scheduler.instance import ScheduleInstance
from simulator import kernel

LARGEST = 200_000
"""Squares of the numbers of ops of each device, summed, at most, for which windows are narrowed: about 50 milliseconds."""

ROUNDS = 6
"""Rounds of all rules, at most."""

STEP, FIRST = 2.0**-10, 2.0**-5
"""Shares of the known bound. STEP: to which ends are told apart, where seconds are not whole; FIRST: by which the first end tried
is later.
"""

NEAR = 1e-11
"""Share of the end by which times may differ from rounding alone."""


class _Facts(NamedTuple):
    """Facts by which windows are narrowed; the number of an op is its code times the micro-batches of the longest chain plus its
    micro-batch.

    takes: float64 [ops]; seconds
    before, after: int64 [links]; ops of which the second begins at least `lag` seconds after the first has ended; the links of
    what an op waits for come before those of the op
    begun, freed: int64 [kept]; forward and gradient from whose begin to whose end a device keeps `units` of memory; together:
    these with what else of that micro-batch it keeps at least as long; those of a device are from kept_offsets: int64 [D + 1] on
    held: int64 [ops of all devices], at the instance's offsets
    """

    takes: Floats
    before: Integers
    after: Integers
    lag: Floats
    begun: Integers
    freed: Integers
    units: Integers
    together: Integers
    kept_offsets: Integers
    held: Integers


def small(instance: ScheduleInstance, times: int = 1) -> bool:
    """Whether an instance is small enough for its windows to be narrowed `times` times."""
    return bool(times * sum(int(ops) ** 2 for ops in np.diff(instance.offsets)) <= LARGEST)


@kernel(error_model="numpy")
def end_by_windows(instance: ScheduleInstance, ways: Ways, known: float, whole: bool) -> float:
    """Lower bound on the makespan by windows, no less than the known one, which is more than 0.

    whole: whether all seconds are whole numbers, the known bound as well
    """
    facts, step = _facts(instance), 1.0 if whole else known * STEP
    begins = heads_of(instance, ways).ravel()
    ends = np.full(len(begins), np.inf)
    refuted, possible, further = 0, -1, max(1, int(known * FIRST / step))
    while possible < 0 or possible - refuted > 1:
        tried = refuted + further if possible < 0 else (refuted + possible) // 2
        end = known + tried * step - (1.0 if whole else 0.0)
        earliest, latest = begins.copy(), np.minimum(ends, end)
        if _narrow(instance, facts, earliest, latest, end * NEAR):
            possible, begins, ends = tried, earliest, latest
        else:
            refuted, further = tried, 2 * further
    return float(known + refuted * step)


@kernel(error_model="numpy")
def is_refuted(instance: ScheduleInstance, ways: Ways, end: float) -> bool:
    """Whether it is proven that no order is over by `end`, which is more than 0."""
    begins = heads_of(instance, ways).ravel()
    return not _narrow(instance, _facts(instance), begins, np.full(len(begins), end), end * NEAR)


@kernel(error_model="numpy")
def are_refuted(
    instance: ScheduleInstance, ways: Ways, seconds: float, device: int, other: int, least: float, most: int
) -> bool:
    """Whether it is proven that no order has two devices, or one, over within `seconds` (more than 0) after each began.

    All other ops then may run long before the device begins, and after it: where each runs as soon as it can, all are over in the
    seconds of all together, and where that device waits before it begins, in as many more. When the other device begins is
    divided into parts down to `least` seconds, each of which is refuted or divided, `most` parts in all; least: 0 where all
    seconds are whole numbers, as there are whole times then wherever there are any (differences of times have whole bounds alone)
    """
    facts, heads = _facts(instance), heads_of(instance, ways).ravel()
    beyond = (facts.takes[facts.held] + instance.lag.max()).sum()
    near, whole = max(seconds, beyond) * NEAR, least == 0.0
    own = facts.held[instance.offsets[device] : instance.offsets[device + 1]]
    others = facts.held[instance.offsets[other] : instance.offsets[other + 1]]
    lows, highs, left = np.full(most + 2, -beyond), np.full(most + 2, 2.0 * beyond), 1
    for _ in range(most):
        if left == 0:
            return True
        left -= 1
        low, high = lows[left], highs[left]
        begins, ends = heads.copy(), np.full(len(heads), seconds)
        begins[facts.held], ends[facts.held] = -beyond, 2.0 * beyond
        if other != device:
            begins[others], ends[others] = low, min(high + seconds, 2.0 * beyond)
        begins[own], ends[own] = 0.0, seconds
        if not _narrow(instance, facts, begins, ends, near):
            continue
        if other == device or high - low <= least:
            return False
        middle = np.floor((low + high) / 2.0) if whole else (low + high) / 2.0
        highs[left + 1], lows[left + 1] = high, middle + (1.0 if whole else 0.0)
        lows[left], highs[left] = low, middle
        left += 2
    return left == 0


@kernel(inner=True)
def _facts(instance: ScheduleInstance) -> _Facts:
    """The facts of an instance."""
    positions, most, nested = len(instance.device), instance.passes.max(), nested_keep(instance)
    size = (8 * positions + (instance.held_offsets[1:] - instance.held_offsets[:-1]).max() * positions) * most
    before, after, lag = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64), np.zeros(size)
    linked, first = 0, 0
    for last in range(positions):
        if not instance.last[last]:
            continue
        for number in range(instance.passes[first]):
            for p in range(first, last + 1):
                linked = _link_forward(instance, nested, (first, last, p), number, (before, after, lag), linked)
            for p in range(last, first - 1, -1):
                linked = _link_gradients(instance, p, number, (before, after, lag), linked)
        first = last + 1
    rows = 2 * instance.passes.sum()
    begun, freed = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
    units, together = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
    kept_offsets, held = (
        np.zeros(len(instance.limit) + 1, dtype=np.int64),
        np.empty(instance.offsets[-1], dtype=np.int64),
    )
    row, op = 0, 0
    for device in range(len(instance.limit)):
        for h in range(instance.held_offsets[device], instance.held_offsets[device + 1]):
            p = instance.held[h]
            left = instance.keep[p] - instance.freed[p]
            for number in range(instance.passes[p]):
                for kind in range(3 if instance.split[p] else 2):
                    held[op] = (kind * positions + p) * most + number
                    share = instance.freed[p] if kind == 1 else left
                    if kind > 0 and share > 0:
                        begun[row], freed[row], units[row] = p * most + number, held[op], share
                        together[row] = instance.keep[p] if kind == 1 else left
                        row += 1
                    op += 1
        kept_offsets[device + 1] = row
    takes = np.repeat(instance.takes, most)
    links = before[:linked], after[:linked], lag[:linked]
    return _Facts(takes, *links, begun, freed, units, together, kept_offsets, held)


@kernel(inner=True)
def _link_forward(
    instance: ScheduleInstance,
    nested: Integers,
    places: tuple[int, int, int],
    number: int,
    links: tuple[Integers, Integers, Floats],
    linked: int,
) -> int:
    """Add what a forward waits for: of (first, last, position) of its chain; how many links there are then.

    It waits for an input gradient as a turn does (see `bound`), and for the weight gradient whose share, with those of all later
    ones, fills up what is left beside it.
    """
    (before, after, lag), (first, last, p) = links, places
    positions, most, device = len(instance.device), instance.passes.max(), instance.device[p]
    op, already = p * most + number, linked
    if p > first:
        before[linked], lag[linked] = op - most, instance.lag[p]
        linked += 1
    if number > 0:
        before[linked] = op - 1
        linked += 1
    beside = 0
    for h in range(instance.held_offsets[device], instance.held_offsets[device + 1]):
        q = instance.held[h]
        if p <= q <= last and nested[p] > 0:
            beside += instance.keep[q] if q > p else 0
            ended = number - (instance.limit[device] - beside) // nested[p]
            if ended >= 0:
                before[linked] = (positions + q) * most + ended
                linked += 1
    left = instance.keep[p] - instance.freed[p]
    if instance.split[p] and left > 0:
        ended = number - (instance.limit[device] - nested[p]) // left - 1
        if ended >= 0:
            before[linked] = (2 * positions + p) * most + ended
            linked += 1
    after[already:linked] = op
    return linked


@kernel(inner=True)
def _link_gradients(
    instance: ScheduleInstance, p: int, number: int, links: tuple[Integers, Integers, Floats], linked: int
) -> int:
    """Add the links of what a position's gradients wait for, and return the number of links then."""
    before, after, lag = links
    positions, most = len(instance.device), instance.passes.max()
    for kind in range(1, 3 if instance.split[p] else 2):
        op = (kind * positions + p) * most + number
        already = linked
        before[linked] = op - positions * most
        linked += 1
        if number > 0:
            before[linked] = op - 1
            linked += 1
        if kind == 1 and not instance.last[p]:
            before[linked], lag[linked] = op + most, instance.lag[p + 1]
            linked += 1
        after[already:linked] = op
    return linked


@kernel(inner=True, error_model="numpy")
def _narrow(instance: ScheduleInstance, facts: _Facts, begins: Floats, ends: Floats, near: float) -> bool:
    """Narrow windows down in place; False where that leaves no room for an op."""
    for _ in range(ROUNDS):
        changed = _by_links(facts, begins, ends, near)
        for device in range(len(instance.limit)):
            ops = facts.held[instance.offsets[device] : instance.offsets[device + 1]]
            for mirrored in range(2):
                release = -ends[ops] if mirrored else begins[ops]
                in_turn = np.argsort(release)
                release, row = release[in_turn], ops[in_turn]
                raised = release.copy()
                if not _by_device(release, facts.takes[row], -begins[row] if mirrored else ends[row], near, raised):
                    return False
                for i in range(len(row)):
                    if raised[i] > release[i] + near:
                        changed = True
                        if mirrored:
                            ends[row[i]] = -raised[i]
                        else:
                            begins[row[i]] = raised[i]
        room, narrowed = _by_memory(instance, facts, begins, ends, near)
        if not room:
            return False
        changed |= narrowed
        for op in facts.held:
            if begins[op] + facts.takes[op] > ends[op] + near:
                return False
        if not changed:
            return True
    return True


@kernel(inner=True)
def _by_links(facts: _Facts, begins: Floats, ends: Floats, near: float) -> bool:
    """Narrow windows by links; True if any changed."""
    changed = False
    for link in range(len(facts.before)):
        before, after = facts.before[link], facts.after[link]
        begin = begins[before] + facts.takes[before] + facts.lag[link]
        if begin > begins[after] + near:
            begins[after], changed = begin, True
    for link in range(len(facts.before) - 1, -1, -1):
        before, after = facts.before[link], facts.after[link]
        end = ends[after] - facts.takes[after] - facts.lag[link]
        if end < ends[before] - near:
            ends[before], changed = end, True
    return changed


@kernel(inner=True)
def _by_device(release: Floats, takes: Floats, due: Floats, near: float, raised: Floats) -> bool:
    """Raise the earliest begins of a device's ops, in order of release; False if they cannot all be over when they are due."""
    ops = len(release)
    over, latest = (
        np.empty(ops),
        np.empty(ops),
    )  # of those due that are released no earlier: end in a row; the latest of these
    for last in range(ops):
        limit, together, end = due[last] + near, 0.0, -np.inf
        for i in range(ops - 1, -1, -1):
            if due[i] <= limit:
                together += takes[i]
                end = max(end, release[i] + together)
            elif together > 0.0 and release[i] + takes[i] + together > limit:
                raised[i] = max(raised[i], end)
            over[i], latest[i] = release[i] + together, end
        if end > limit:
            return False
        longest = -1
        for i in range(ops):
            if due[i] > limit:
                if longest >= 0 and over[longest] + takes[i] > limit:
                    raised[i] = max(raised[i], latest[longest])
            elif longest < 0 or over[i] > over[longest]:
                longest = i
    for one in range(ops):
        begin, earliest = -np.inf, release[one] + takes[one] - near
        for i in range(ops):
            if earliest + takes[i] > due[i] and i != one:
                begin = max(begin, release[i]) + takes[i]
        raised[one] = max(raised[one], begin)
    return True


@kernel(inner=True)
def _by_memory(
    instance: ScheduleInstance, facts: _Facts, begins: Floats, ends: Floats, near: float
) -> tuple[bool, bool]:
    """Narrow windows by what is kept in any case; whether there is room for that, and whether any window changed."""
    changed, most = False, instance.passes.max()
    weight_gradients = 2 * len(instance.device) * most
    for device in range(len(instance.limit)):
        limit = instance.limit[device]
        rows = slice(facts.kept_offsets[device], facts.kept_offsets[device + 1])
        begun, freed, units, together = facts.begun[rows], facts.freed[rows], facts.units[rows], facts.together[rows]
        since, until = ends[begun] - facts.takes[begun], begins[freed] + facts.takes[freed]
        places, numbers, weights = begun // most, begun % most, freed >= weight_gradients
        counted, extra, before = (
            np.empty(len(begun), np.int64),
            np.empty(len(begun), np.int64),
            np.empty(most, np.int64),
        )
        sure = since < until - near
        times = np.concatenate((since[sure], until))
        change = np.concatenate((units[sure], np.where(sure, -units, 0)))
        in_turn, kept = np.argsort(times), 0
        for place in range(len(times) - 1):
            kept += change[in_turn[place]]
            begin, end = times[in_turn[place]] + near, times[in_turn[place + 1]] - near
            if end <= begin:
                continue
            if kept > limit:
                return False, changed
            for row in range(len(begun)):
                counted[row] = units[row] if until[row] >= end and since[row] > begin else 0
            _beside(instance, places, numbers, counted, weights, 1, before, extra)
            for row in range(len(begun)):
                later = until[row] >= end and since[row] > begin and begins[begun[row]] < end
                if later and kept + extra[row] + together[row] > limit:
                    begins[begun[row]], changed = end + near, True
            for row in range(len(begun)):
                counted[row] = units[row] if until[row] < end and since[row] <= begin else 0
            _beside(instance, places, numbers, counted, weights, -1, before, extra)
            for row in range(len(begun)):
                sooner = until[row] < end and since[row] <= begin and ends[freed[row]] > begin
                if sooner and kept + extra[row] + units[row] > limit:
                    ends[freed[row]], changed = begin - near, True
    return True, changed


@kernel(inner=True)
def _beside(
    instance: ScheduleInstance,
    places: Integers,
    numbers: Integers,
    counted: Integers,
    weights: Flags,
    step: int,
    before: Integers,
    extra: Integers,
) -> None:
    """Fill `extra` with the counted units of the same chain that are kept together with each row's.

    step: 1: those whose forwards come before the row's; -1: those whose gradients come after it
    """
    first, rows = 0, len(places)
    while first < rows:
        last = first
        while last < rows and places[last] == places[first]:
            last += 1
        if first == 0 or instance.first[places[first - 1] + 1 : places[first] + 1].any():
            before[:] = 0
        here, of_weights, row = 0, 0, first if step > 0 else last - 1
        while first <= row < last:
            beyond, number = row, numbers[row]
            while first <= beyond < last and numbers[beyond] == number:
                extra[beyond] = of_weights if step < 0 and weights[beyond] else before[number] + here
                beyond += step
            while row != beyond:
                here += counted[row]
                of_weights += counted[row] if weights[row] else 0
                row += step
            before[number] += here
        first = last
