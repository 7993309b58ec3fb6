"""Peak memory: the peaks of `simulator.memory.over_time`, to the last byte, in a compiled pass over the times of a replay.

What changes a device's memory at which start, end or arrival is the structure of a program; a plan fills in the bytes. The
changes stand in streams that are in the order of time already (of a lane, of what a lane sends another), which the pass merges.
What the order of the ops alone permits bounds each device's peak, so that a search for the fullest device merges few of them.
For synchronous plans: those keep one copy of their weights and gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers
from simulator.compiled.numba_kernels import kernel
from simulator.engines.timeline import Moves, moves_of
from simulator.lowering.program import Program
from simulator.memory.changes import (
    ARRIVAL,
    DEPARTURE,
    END,
    LAST,
    SENT,
    START,
    MemoryChanges,
    memory_changes,
)


class MemoryEvents(NamedTuple):
    """The memory changes of a program in the compiled form: device by device, stream by stream, moment by moment; n tasks.

    device_streams: int64 [devices + 1]; stream_moments: int64 [streams + 1]
    position: int64 [tasks]; where each task's times stand
    time: int64 [moments]; place in the times of a replay: n starts, n ends, the 0 before everything, arrival of every transfer
    sort: int8 [moments]; task: int64 [moments]; the task that begins, ends, or has sent
    sender, transfer: int64 [transfers]; position of the task that has sent, and class of each transfer; empty where a replay
        writes the arrivals
    change: int64 [moments]; number of the sum of changes that happens
    rows: int64 [sums + 1]; rows of the next columns, each a change
    size: int64; number of the bytes: each of `simulator.memory.changes` of each stage, then of each transfer class
    factor: float64; times the bytes: samples, or 1; less than 0 where memory is freed
    begin, end, whole: float64; which part of that is freed, from `begin` to `end` of `whole`
    limit_offsets: int64 [devices + 1]; rows of the next columns; what a device may hold at once, of several lanes: nothing known
    limit_size: int64; number of the bytes; limit_factor: float64; the most times that they can be held at once
    limit_sure: bool; whether they are at some time held as often
    """

    device_streams: Integers
    stream_moments: Integers
    position: Integers
    time: Integers
    sort: NDArray[np.int8]
    task: Integers
    sender: Integers
    transfer: Integers
    change: Integers
    rows: Integers
    size: Integers
    factor: Floats
    begin: Floats
    end: Floats
    whole: Floats
    limit_offsets: Integers
    limit_size: Integers
    limit_factor: Floats
    limit_sure: Flags


def memory_events(program: Program, recomputes: Flags, position: NDArray[np.integer] | None = None) -> MemoryEvents:
    """The memory changes of a program in compiled form, by rising device.

    recomputes: bool [stages]
    position: of each task in the order of the recurrence, which writes no arrivals; default: times stand as the tasks do
    """
    stages, lane, moves = len(recomputes), program.lane_of_task().astype(np.int64), moves_of(program)
    place = np.arange(len(program)) if position is None else position.astype(np.int64)
    changes = memory_changes(program, recomputes, moves)
    size, sent = changes.size * stages + program.stage[changes.holder], changes.size == SENT
    size[sent] = SENT * stages + moves.transfer[changes.transfer[sent]]
    stream, moving = lane[changes.holder], changes.moment > END
    link = (
        program.lanes + (lane[moves.producer] * program.lanes + lane[moves.consumer]) * 2
    )  # behind those of the lanes
    stream[moving] = link[changes.transfer[moving]] + (changes.moment[moving] == DEPARTURE)
    times = _times(program, changes, moves, place)
    limits = _limits(program, changes, moves, lane, size)
    found = _streams(changes, program.lane_device[lane[changes.holder]], stream, times, size, limits)
    found = found._replace(position=place)
    if position is None or program.sends is not None:
        return found
    first = moves.producer if program.together is None else program.together[moves.producer]
    return found._replace(sender=place[first], transfer=moves.transfer.astype(np.int64))


def _times(program: Program, changes: MemoryChanges, moves: Moves, position: Integers) -> Integers:
    """Index of the time of each change among the times of a replay, see `MemoryEvents.time`."""
    tasks, arrives, leaves = len(program), changes.moment == ARRIVAL, changes.moment == DEPARTURE
    time = position[changes.task] + np.where(changes.moment == START, 0, tasks)
    if program.sends is None:
        time[arrives] = 2 * tasks + 1 + changes.transfer[arrives]
    else:
        time[leaves] = position[moves.row[changes.transfer[leaves]]]
        time[arrives] = tasks + position[moves.row[changes.transfer[arrives]]]
    return time


_Limits = tuple[Integers, Integers, Floats, Flags]
"""Columns: device, size, the most times that it can be held at once, whether it is."""


def _streams(
    changes: MemoryChanges, device: NDArray[np.int32], stream: Integers, time: Integers, size: Integers, limits: _Limits
) -> MemoryEvents:
    """Sort changes into streams, and the streams by device."""
    key = np.zeros(len(changes), dtype=np.int64)
    for column in (device, stream, changes.task, changes.moment, size):
        key = _joined(key, column.astype(np.int64))
    order = np.argsort(key, kind="stable")
    device, stream, time, size = device[order], stream[order], time[order], size[order]
    sort, task, factor = changes.moment[order], changes.task[order], changes.factor[order]
    begin, end, whole = (one[order].astype(np.float64) for one in (changes.begin, changes.end, changes.whole))
    moment = np.flatnonzero(_differs(device, stream, time, sort))
    begins = np.flatnonzero(_differs(device[moment], stream[moment]))
    used = np.flatnonzero(_differs(device[moment][begins]))
    change, first = _sums(moment, size, factor, begin, end, whole)
    counts = np.diff(np.append(moment, len(time)))[first]
    rows = np.repeat(moment[first] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    limit_device, limit_size, limit_factor, limit_sure = limits
    return MemoryEvents(
        device_streams=np.append(used, len(begins)),
        stream_moments=np.append(begins, len(moment)),
        position=np.zeros(0, dtype=np.int64),
        time=time[moment],
        sort=sort[moment],
        task=task[moment],
        sender=np.zeros(0, dtype=np.int64),
        transfer=np.zeros(0, dtype=np.int64),
        change=change,
        rows=np.append(0, np.cumsum(counts)),
        size=size[rows],
        factor=factor[rows],
        begin=begin[rows],
        end=end[rows],
        whole=whole[rows],
        limit_offsets=np.searchsorted(limit_device, np.append(device[moment][begins][used], np.iinfo(np.int64).max)),
        limit_size=limit_size,
        limit_factor=limit_factor,
        limit_sure=limit_sure,
    )


def _sums(moment: Integers, *columns: NDArray[np.number]) -> tuple[Integers, Integers]:
    """Number the distinct sums of changes: int64 [moments], and the first moment of each. columns: whole numbers."""
    counts = np.diff(np.append(moment, len(columns[0])))
    kinds = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        kinds = _joined(kinds, column.astype(np.int64) - int(column.min(initial=0)))
    kinds = np.unique(kinds, return_inverse=True)[1]
    number = np.zeros(len(moment), dtype=np.int64)
    for position in range(int(counts.max(initial=0))):
        here = np.zeros(len(moment), dtype=np.int64)
        here[counts > position] = kinds[moment[counts > position] + position] + 1
        number = _joined(number, here)
    _, first, number = np.unique(number, return_index=True, return_inverse=True)
    return number, first


def _joined(one: Integers, other: Integers) -> Integers:
    """One id for each pair of ids in two columns, equal for equal pairs."""
    width = int(other.max(initial=0)) + 1
    if int(one.max(initial=0)) >= 2**62 // width:
        one = np.unique(one, return_inverse=True)[1]
    return one * width + other


def _differs(*columns: NDArray[np.integer]) -> Flags:
    """Whether each row differs from the one before it; True for the first."""
    result = np.zeros(len(columns[0]), dtype=np.bool_)
    result[:1] = True
    for column in columns:
        result[1:] |= column[1:] != column[:-1]
    return result


# ---- what the order of the ops permits -------------------------------------------------------------------------------


def _limits(program: Program, changes: MemoryChanges, moves: Moves, lane: Integers, size: Integers) -> _Limits:
    """Upper bounds per device of one lane: how often it holds each size at once, if every task takes time; columns by device."""
    sent = changes.size == SENT
    found = (
        _of_ops(program, changes, np.flatnonzero(~sent), lane, size),
        *_of_moves(program, changes, moves, lane, size),
    )
    device, size, factor, sure = (np.concatenate(column) for column in zip(*found, strict=True))
    lanes_of = np.unique(lane[changes.holder[~sent]])
    devices, lanes = np.unique(program.lane_device[lanes_of], return_counts=True)
    order = np.lexsort((sure, factor, size, device))
    order = order[np.isin(device[order], devices[lanes == 1])]
    return device[order], size[order], factor[order], sure[order]


def _of_ops(program: Program, changes: MemoryChanges, rows: Integers, lane: Integers, size: Integers) -> _Limits:
    """Upper bounds of the memory that ops hold, from the order of their lane alone; rows: the changes of ops."""
    on, size, task = lane[changes.holder[rows]], size[rows], changes.task[rows]
    # no other op begins before the last part ends
    factor = np.where(changes.end[rows] < changes.whole[rows], 0.0, changes.factor[rows])
    order = np.lexsort((factor < 0, task, size, on))
    first = np.flatnonzero(_differs(on[order], size[order]))
    held, chosen = np.cumsum(factor[order]), order[first]  # whole numbers: their sums are exact
    most = np.maximum.reduceat(held, first) - held[first] + factor[chosen]
    device = program.lane_device.astype(np.int64)
    return device[on[chosen]], size[chosen], most, np.ones(len(first), dtype=np.bool_)


def _of_moves(
    program: Program, changes: MemoryChanges, moves: Moves, lane: Integers, size: Integers
) -> tuple[_Limits, _Limits]:
    """Upper bounds of the memory of transfers: a tensor from lane a reaches lane b at the earliest when the tasks of b that its
    producer needs have begun, and stays until its last consumer begins; it leaves lane a when a task of a begins that needs its
    consumer, or what follows it on b.

    Every pair of lanes a, b has a row for each task of a: the last task of b that it or one before it needs, as a place of b
    after all those of the pairs before (`apart` from each other), so that one rising column holds them all.
    """
    place = np.arange(len(program)) - program.lane_offsets[lane]
    source, target = lane[moves.producer], lane[moves.consumer]
    pairs, pair = np.unique(source * program.lanes + target, return_inverse=True)
    lengths, apart = np.diff(program.lane_offsets)[pairs // program.lanes], len(program) + 2
    rows = np.cumsum(lengths) - lengths
    consumers = program.consumers()
    needs = lane[consumers] * program.lanes + lane[program.dependency]
    among = np.flatnonzero(np.isin(needs, pairs))
    known = np.searchsorted(pairs, needs[among])
    reached = np.repeat(np.arange(len(pairs)) * apart - 1, lengths)
    needed = known * apart + place[program.dependency[among]]
    np.maximum.at(reached, rows[known] + place[consumers[among]], needed)
    reached = np.maximum.accumulate(reached)
    gone = np.zeros(len(moves.row), dtype=np.int64)
    used = np.flatnonzero((changes.size == SENT) & (changes.moment == START))
    np.maximum.at(gone, changes.transfer[used], place[changes.holder[used]])
    made, taken = place[moves.producer], place[moves.consumer]
    comes = reached[rows[pair] + made] - pair * apart + 1
    leaves = np.maximum(made + 1, np.searchsorted(reached, pair * apart + taken) - rows[pair])
    order = np.lexsort((moves.transfer, pair))
    first = np.flatnonzero(_differs(pair[order], moves.transfer[order]))
    chosen, unsure = order[first], np.zeros(len(first), dtype=np.bool_)
    size = size[changes.moment == ARRIVAL][chosen]
    there = _most_at_once(comes[order], gone[order] + 1, first)
    left = _most_at_once(made[order], leaves[order], first)
    device = program.lane_device.astype(np.int64)
    return (device[target[chosen]], size, there, unsure), (device[source[chosen]], size, left, unsure)


def _most_at_once(begin: Integers, end: Integers, first: Integers) -> Floats:
    """The most ranges begin..end - 1 of a group that overlap; a group's rows begin at `first`."""
    if not len(first):
        return np.zeros(0)
    places = np.maximum.reduceat(end, first) + 1
    behind = np.cumsum(places) - places
    shift = np.repeat(behind, np.diff(np.append(first, len(end))))
    total = int(places.sum())
    change = np.bincount(begin + shift, minlength=total) - np.bincount(end + shift, minlength=total)
    return np.maximum.reduceat(np.cumsum(change), behind).astype(np.float64)  # each group's changes sum to none


# ---- peaks ------------------------------------------------------------------------------------------------------------


@kernel()
def peaks(events: MemoryEvents, times: Floats, lags: Floats, sizes: Floats, static: Floats) -> Floats:
    """Peak memory of each device in bytes, float64 [devices].

    times: seconds, as `MemoryEvents.time` numbers them; lags: seconds of each transfer class, for arrivals not yet written
    sizes: bytes, as `MemoryEvents.size` numbers them; static: bytes that are always there
    """
    amounts = _amounts(events, sizes)
    result = static.copy()
    for device in range(len(static)):
        result[device] = _peak(events, times, lags, amounts, static[device], device)
    return result


@kernel(borrows=True)
def fullest(
    events: MemoryEvents, times: Floats, lags: Floats, sizes: Floats, static: Floats, capacity: Floats
) -> tuple[int, float]:
    """The (first) device whose peak is the largest part of its capacity, with its peak; every op must take time."""
    amounts = _amounts(events, sizes)
    least, most = _bounds(events, sizes, static)
    first = 0
    for device in range(1, len(static)):
        if least[device] / capacity[device] > least[first] / capacity[first]:
            first = device
    chosen = first
    peak = _peak(events, times, lags, amounts, static[chosen], chosen)
    part = peak / capacity[chosen]
    for device in range(len(static)):
        limit = most[device] / capacity[device]
        if device == first or limit < part or (limit == part and device > chosen):
            continue
        found = _peak(events, times, lags, amounts, static[device], device)
        if found / capacity[device] > part or (found / capacity[device] == part and device < chosen):
            chosen, peak, part = device, found, found / capacity[device]
    return chosen, peak


@kernel()
def _bounds(events: MemoryEvents, sizes: Floats, static: Floats) -> tuple[Floats, Floats]:
    """Lower and upper bound of the peak of each device, bytes; infinite where unknown."""
    least, most = static.copy(), static.copy()
    for device in range(len(static)):
        begin, end = events.limit_offsets[device], events.limit_offsets[device + 1]
        if begin == end:
            most[device] = np.inf
        for row in range(begin, end):
            amount = sizes[events.limit_size[row]] * events.limit_factor[row]
            most[device] += amount
            if events.limit_sure[row]:
                least[device] = max(least[device], static[device] + amount)
    return least, most


@kernel(inner=True)
def _amounts(events: MemoryEvents, sizes: Floats) -> Floats:
    """Bytes of each sum of changes."""
    rows, size, factor, begin, end, whole = (
        events.rows,
        events.size,
        events.factor,
        events.begin,
        events.end,
        events.whole,
    )
    amounts = np.zeros(len(rows) - 1)
    for number in range(len(amounts)):
        for row in range(rows[number], rows[number + 1]):
            amount = factor[row] * sizes[size[row]]
            if whole[row] > 1.0:
                upto = -amount if end[row] == whole[row] else np.floor(-amount * end[row] / whole[row])
                amount = np.floor(-amount * begin[row] / whole[row]) - upto
            amounts[number] += amount
    return amounts


@kernel()
def _peak(events: MemoryEvents, times: Floats, lags: Floats, amounts: Floats, static: float, device: int) -> float:
    """Peak of one device: merge its streams by time, with the first stream, a lane, as the leading one.

    One moment and place frees memory before it takes any: only the level behind all of it counts.
    """
    device_streams, stream_moments, time = events.device_streams, events.stream_moments, events.time
    change = events.change
    first, end = device_streams[device], device_streams[device + 1]
    left = end - first - 1
    head, stop, when = np.empty(left, dtype=np.int64), np.empty(left, dtype=np.int64), np.empty(left)
    base = stream_moments[first]
    turn = np.empty(
        0, dtype=np.int64
    )  # moments from base on, in order, where transfers of a stream overtake each other
    for stream in range(left):
        head[stream], stop[stream] = stream_moments[first + 1 + stream], stream_moments[first + 2 + stream]
        if events.sort[head[stream]] == ARRIVAL:
            if len(events.sender):
                _arrive(events, times, lags, head[stream], stop[stream])
            turn = _in_order(events, times, head[stream], stop[stream], base, stream_moments[end], turn)
    turned = len(turn) > 0
    for stream in range(left):
        when[stream] = times[time[turn[head[stream] - base] if turned else head[stream]]]
    own, own_stop = base, stream_moments[first + 1]
    level = peak = static
    last = -1
    now = 0.0
    while own < own_stop or left > 0:
        other = np.inf
        chosen = coming = -1
        for stream in range(left):
            if when[stream] <= other:
                moment = turn[head[stream] - base] if turned else head[stream]
                if when[stream] < other or _place(events, times, moment, other) < _place(events, times, coming, other):
                    other, chosen, coming = when[stream], stream, moment
        while own < own_stop:
            begins = times[time[own]]
            if begins > other or (
                begins == other and _place(events, times, own, other) > _place(events, times, coming, other)
            ):
                break
            if level > peak and (begins > now or _place(events, times, own, now) != _place(events, times, last, now)):
                peak = level
            level += amounts[change[own]]
            now, last = begins, own
            own += 1
        if chosen >= 0:
            if level > peak and (other > now or _place(events, times, coming, now) != _place(events, times, last, now)):
                peak = level
            level += amounts[change[coming]]
            now, last = other, coming
            head[chosen] += 1
            if head[chosen] < stop[chosen]:
                when[chosen] = times[time[turn[head[chosen] - base] if turned else head[chosen]]]
            else:
                left -= 1
                head[chosen], stop[chosen], when[chosen] = head[left], stop[left], when[left]
    return max(peak, level)


@kernel(inner=True, borrows=True)
def _arrive(events: MemoryEvents, times: Floats, lags: Floats, begin: int, end: int) -> None:
    """Write the arrival times of a stream: the end of the sending task plus the seconds of the transfer."""
    time, sender, transfer, tasks = events.time, events.sender, events.transfer, len(events.position)
    for moment in range(begin, end):
        move = time[moment] - 2 * tasks - 1
        times[time[moment]] = times[tasks + sender[move]] + lags[transfer[move]]


@kernel(borrows=True)
def _place(events: MemoryEvents, times: Floats, moment: int, now: float) -> int:
    """Sort key of a moment among those at the same time, as `simulator.memory.over_time` orders them."""
    sort, task, position = events.sort[moment], events.task[moment], events.position
    if sort == START:
        return LAST if times[len(position) + position[task]] > now else 1 + 3 * task
    if sort == END:
        return 0 if now > times[position[task]] else 2 + 3 * task
    if sort == ARRIVAL:
        return 0 if now > times[len(position) + position[task]] else 3 + 3 * task
    return 0


@kernel(inner=True)
def _in_order(
    events: MemoryEvents, times: Floats, begin: int, end: int, base: int, last: int, turn: Integers
) -> Integers:
    """Sort the moments begin..end - 1 of a stream of arrivals by time; `turn` is returned as it is if they are sorted already."""
    time = events.time
    before_now = -1.0
    for moment in range(begin, end):
        now = times[time[moment]]
        if now > before_now:
            before_now = now
            continue
        place = _place(events, times, moment, now)
        position = moment
        while position > begin:
            before = turn[position - 1 - base] if len(turn) else position - 1
            other = times[time[before]]
            if other < now or (other == now and _place(events, times, before, other) <= place):
                break
            if not len(turn):
                turn = np.arange(base, last)
            turn[position - base] = before
            position -= 1
        if position < moment:
            turn[position - base] = moment
    return turn
