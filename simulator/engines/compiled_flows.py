"""Compiled flows: the compiled twin of `simulator.engines.fair_links`, for the event loop.

The same flows, the same additions in the same order, and events of one moment in the order in which they were caused. A flow
stands in the row of its slot; it is of a move: a delivery, or (behind these) what a lane does. What every flow passes is compiled
into the loop itself (`inline`): handing over all these arrays takes longer than what is done with them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware_profiles import Flags, Floats, Integers
from simulator.compiled.numba_kernels import kernel
from simulator.engines.event_heap import ARRIVED, KINDS, LEAVES, Heap, push
from simulator.engines.fair_links import TIE
from simulator.lowering.flows import FlowColumns

_BEGUN, _CHANGED, UNSETTLED, _ANNOUNCED, _RESTS = range(5)
"""Counters: flows that have begun; channels on the list of those that have changed; whether any rate or first end may have;
number of the event of the first end; how often rates were set."""

_NOBODY = -1


class Flows(NamedTuple):
    """The flows of one replay. Of each slot, beside what a `SharedFlow` of the reference has:

    move: of its flow, -1 for none; watched: its end is an event; first, last: moves that wait behind it
    arrival: number of the event of its arrival where that is certain, else -1
    tree: of the watched slots the first to end, a tournament: children of node n are 2 n and 2 n + 1, leaves the slots
    Of each move: carrier, seconds (at full speed), behind: the next that waits; valid: number of the event of its arrival
    Of each channel: busy_until, changed (the list of them), on_list (whether it is); room, load, passed, first_of
    found: slots that meet; speeds: of them; rising, served: places of those whose rate still rises; seen: of each slot
    """

    move: Integers
    left: Floats
    since: Floats
    speed: Floats
    ends: Floats
    number: Integers
    arrival: Integers
    watched: Flags
    first: Integers
    last: Integers
    tree: Integers
    carrier: Integers
    seconds: Floats
    behind: Integers
    valid: Integers
    busy_until: Floats
    changed: Integers
    on_list: Flags
    room: Floats
    load: Floats
    passed: Integers
    first_of: Integers
    found: Integers
    speeds: Floats
    rising: Integers
    seen: Integers
    counters: Integers
    announced_end: Floats


class Passing(NamedTuple):
    """Transfers on idle links: the hops of each class, and seconds and latency of each hop."""

    offsets: Integers
    seconds: Floats
    latency: Floats


def no_flows(columns: FlowColumns, moves: int) -> Flows:
    """The initial state without flows; moves: number of deliveries and lanes."""
    slots, channels = columns.slots, len(columns.first_come)
    leaves = 1 << max(0, slots - 1).bit_length()

    def numbers(count: int, value: int = 0) -> Integers:
        return np.full(count, value, dtype=np.int64)

    return Flows(
        move=numbers(slots, _NOBODY),
        left=np.zeros(slots),
        since=np.zeros(slots),
        speed=np.zeros(slots),
        ends=np.zeros(slots),
        number=numbers(slots),
        arrival=numbers(slots, _NOBODY),
        watched=np.zeros(slots, dtype=np.bool_),
        first=numbers(slots, _NOBODY),
        last=numbers(slots, _NOBODY),
        tree=numbers(2 * leaves, _NOBODY),
        carrier=numbers(moves),
        seconds=np.zeros(moves),
        behind=numbers(moves, _NOBODY),
        valid=numbers(moves, _NOBODY),
        busy_until=np.zeros(channels),
        changed=numbers(channels),
        on_list=np.zeros(channels, dtype=np.bool_),
        room=np.zeros(channels),
        load=np.zeros(channels),
        passed=numbers(channels),
        first_of=numbers(channels),
        found=numbers(slots),
        speeds=np.zeros(slots),
        rising=numbers(slots),
        seen=numbers(slots),
        counters=np.array([0, 0, 0, _NOBODY, 0]),
        announced_end=np.zeros(1),
    )


@kernel(inner=True, borrows=True, inline="always")
def ask(flows: Flows, columns: FlowColumns, passing: Passing, heap: Heap, move: int, now: float) -> None:
    """Let the flow of a move, whose carrier and seconds are set, begin or wait for earlier flows of its slot."""
    slot = columns.slot[flows.carrier[move]]
    if not flows.watched[slot] and not (flows.move[slot] >= 0 and flows.ends[slot] > now):
        _begin(flows, columns, passing, heap, move, now)
        return
    flows.behind[move] = _NOBODY
    if flows.first[slot] == _NOBODY:
        flows.first[slot] = move
    else:
        flows.behind[flows.last[slot]] = move
    flows.last[slot] = move
    _watch(flows, slot)
    flows.counters[UNSETTLED] = 1


@kernel(inner=True, borrows=True, inline="always")
def _begin(flows: Flows, columns: FlowColumns, passing: Passing, heap: Heap, move: int, now: float) -> None:
    carrier = flows.carrier[move]
    slot = columns.slot[carrier]
    flows.move[slot], flows.since[slot], flows.left[slot] = move, now, flows.seconds[move]
    flows.speed[slot], flows.ends[slot], flows.arrival[slot] = 0.0, np.inf, _NOBODY
    flows.number[slot] = flows.counters[_BEGUN]
    flows.counters[_BEGUN] += 1
    alone = True
    if flows.left[slot] != 0.0:
        alone = not columns.several[carrier]  # else it meets those for which it stands
        for use in range(columns.offsets[carrier], columns.offsets[carrier + 1]):
            if flows.busy_until[columns.channel[use]] > now:
                alone = False
                break
    if alone:
        _run_alone(flows, columns, passing, heap, slot, now)
    else:
        _change(flows, columns, carrier)


@kernel(inner=True, borrows=True, inline="always")
def _run_alone(flows: Flows, columns: FlowColumns, passing: Passing, heap: Heap, slot: int, now: float) -> None:
    move = flows.move[slot]
    carrier = flows.carrier[move]
    flows.speed[slot], flows.ends[slot] = 1.0, now + flows.left[slot]
    moment, tail = now, now
    if carrier < len(passing.offsets) - 1:
        last = passing.offsets[carrier + 1] - 1
        for hop in range(passing.offsets[carrier], last + 1):
            tail = max(tail, moment + passing.seconds[hop]) + passing.latency[hop]
            if hop < last:
                moment += max(moment + passing.latency[hop] - moment, 0.0)
        moment = moment + (tail - moment)
    else:
        moment = now + flows.left[slot]
    flows.arrival[slot] = flows.valid[move] = heap.counters[1]
    push(heap, moment, ARRIVED + KINDS * move)
    _keep_busy(flows, columns, carrier, flows.ends[slot])


@kernel(inner=True, borrows=True, inline="always")
def _keep_busy(flows: Flows, columns: FlowColumns, carrier: int, ends: float) -> None:
    for use in range(columns.offsets[carrier], columns.offsets[carrier + 1]):
        channel = columns.channel[use]
        flows.busy_until[channel] = max(flows.busy_until[channel], ends)


@kernel(inner=True, borrows=True, inline="always")
def _change(flows: Flows, columns: FlowColumns, carrier: int) -> None:
    """Mark the channels of a carrier: their rates are recomputed at the end of the moment."""
    for use in range(columns.offsets[carrier], columns.offsets[carrier + 1]):
        channel = columns.channel[use]
        if not flows.on_list[channel]:
            flows.on_list[channel] = True
            flows.changed[flows.counters[_CHANGED]] = channel
            flows.counters[_CHANGED] += 1
    flows.counters[UNSETTLED] = 1


@kernel(inner=True, borrows=True)
def _watch(flows: Flows, slot: int) -> None:
    """Make the end of a slot's flow an event, or move that event to another moment."""
    flows.watched[slot] = True
    _replay_matches(flows, slot)


@kernel(inner=True, borrows=True)
def _replay_matches(flows: Flows, slot: int) -> None:
    tree = flows.tree
    node = len(tree) // 2 + slot
    tree[node] = slot if flows.watched[slot] else _NOBODY
    node //= 2
    while node > 0:
        one, other = tree[2 * node], tree[2 * node + 1]
        if one == _NOBODY or (other != _NOBODY and _ends_before(flows, other, one)):
            one = other
        tree[node] = one
        node //= 2


@kernel(inner=True, borrows=True)
def _ends_before(flows: Flows, one: int, other: int) -> bool:
    sooner: bool = flows.ends[one] < flows.ends[other]
    return sooner or (flows.ends[one] == flows.ends[other] and flows.number[one] < flows.number[other])


# ---- the end of a flow -----------------------------------------------------------------------------------------------


@kernel(inner=True, borrows=True)
def leave(flows: Flows, columns: FlowColumns, passing: Passing, heap: Heap, number: int, now: float) -> None:
    """End flows at the end that an event announced, unless it has changed since."""
    if number != flows.counters[_ANNOUNCED]:
        return
    flows.counters[_ANNOUNCED] = _NOBODY
    while flows.tree[1] != _NOBODY and flows.ends[flows.tree[1]] <= now:
        slot = flows.tree[1]
        move = flows.move[slot]
        flows.move[slot], flows.watched[slot] = _NOBODY, False
        _replay_matches(flows, slot)
        if flows.arrival[slot] == _NOBODY:
            flows.valid[move] = heap.counters[1]
            push(heap, now + columns.latency[flows.carrier[move]], ARRIVED + KINDS * move)
        _change(flows, columns, flows.carrier[move])
        following = flows.first[slot]
        if following != _NOBODY:
            flows.first[slot] = flows.behind[following]
            _begin(flows, columns, passing, heap, following, now)
            if flows.first[slot] != _NOBODY:
                _watch(flows, slot)


# ---- the end of a moment ---------------------------------------------------------------------------------------------


@kernel(inner=True, borrows=True)
def rest(flows: Flows, columns: FlowColumns, passing: Passing, heap: Heap, now: float) -> None:
    """At the end of a moment, recompute rates and announce the first end of a flow."""
    flows.counters[_RESTS] += 1
    stamp = flows.counters[_RESTS]
    for place in range(flows.counters[_CHANGED]):
        channel = flows.changed[place]
        flows.on_list[channel] = False
    changed, flows.counters[_CHANGED], flows.counters[UNSETTLED] = flows.counters[_CHANGED], 0, 0
    for place in range(changed):
        channel = flows.changed[place]
        for member in range(columns.member_offsets[channel], columns.member_offsets[channel + 1]):
            slot = columns.members[member]
            if flows.seen[slot] != stamp and flows.move[slot] >= 0 and flows.ends[slot] > now:
                count = _meeting(flows, columns, slot, stamp, now)
                _fair_speeds(flows, columns, count)
                _set_rates(flows, columns, passing, heap, count, now)
    first = flows.tree[1]
    if first == _NOBODY or flows.ends[first] == np.inf:
        return
    if flows.counters[_ANNOUNCED] == _NOBODY or flows.announced_end[0] != flows.ends[first]:
        flows.counters[_ANNOUNCED], flows.announced_end[0] = heap.counters[1], flows.ends[first]
        push(heap, flows.ends[first], LEAVES)


@kernel(inner=True, borrows=True)
def _meeting(flows: Flows, columns: FlowColumns, slot: int, stamp: int, now: float) -> int:
    """How many slots share channels with one, directly or over others, itself among them; `found` has them, rising."""
    flows.seen[slot], flows.found[0], count, place = stamp, slot, 1, 0
    while place < count:
        carrier = flows.carrier[flows.move[flows.found[place]]]
        place += 1
        for use in range(columns.offsets[carrier], columns.offsets[carrier + 1]):
            channel = columns.channel[use]
            if flows.passed[channel] == stamp:
                continue
            flows.passed[channel] = stamp
            for member in range(columns.member_offsets[channel], columns.member_offsets[channel + 1]):
                other = columns.members[member]
                if flows.seen[other] != stamp and flows.move[other] >= 0 and flows.ends[other] > now:
                    flows.seen[other], flows.found[count] = stamp, other
                    count += 1
    for end in range(1, count):  # members of a channel rise: there is little to sort
        one, place = flows.found[end], end
        while place > 0 and flows.found[place - 1] > one:
            flows.found[place] = flows.found[place - 1]
            place -= 1
        flows.found[place] = one
    return count


@kernel(inner=True, borrows=True)
def _fair_speeds(flows: Flows, columns: FlowColumns, count: int) -> None:
    """Max-min fair speeds of the slots found, as `simulator.engines.fair_links.fair_speeds`."""
    offsets, channels, shares = columns.offsets, columns.channel, columns.share
    room, load, rising, speeds = flows.room, flows.load, flows.rising, flows.speeds
    first_come = False  # `any` of an array would load numba's array library at every start
    for one in columns.first_come:
        first_come |= one
    waiting, before = count, 0.0
    for place in range(count):
        rising[place] = place
        carrier = flows.carrier[flows.move[flows.found[place]]]
        for use in range(offsets[carrier], offsets[carrier + 1]):
            room[channels[use]] = 1.0
    while waiting > 0:
        for at in range(waiting):
            carrier = flows.carrier[flows.move[flows.found[rising[at]]]]
            for use in range(offsets[carrier], offsets[carrier + 1]):
                load[channels[use]] = 0.0
                flows.first_of[channels[use]] = flows.counters[_BEGUN]
        if first_come:
            for at in range(waiting):
                slot = flows.found[rising[at]]
                carrier = flows.carrier[flows.move[slot]]
                for use in range(offsets[carrier], offsets[carrier + 1]):
                    flows.first_of[channels[use]] = min(flows.first_of[channels[use]], flows.number[slot])
        for at in range(waiting):
            slot = flows.found[rising[at]]
            carrier = flows.carrier[flows.move[slot]]
            if not first_come or _served(flows, columns, slot):
                for use in range(offsets[carrier], offsets[carrier + 1]):
                    load[channels[use]] += shares[use] * columns.slowness[carrier]
        level = np.inf
        for at in range(waiting):
            carrier = flows.carrier[flows.move[flows.found[rising[at]]]]
            for use in range(offsets[carrier], offsets[carrier + 1]):
                channel = channels[use]
                if load[channel] > 0.0:
                    level = min(level, room[channel] / load[channel])
        if not first_come:
            level = before = max(level, before)
        kept = 0
        quick = False
        for at in range(waiting):  # as quick as alone
            place = rising[at]
            slot = flows.found[place]
            slowness = columns.slowness[flows.carrier[flows.move[slot]]]
            speeds[place] = (
                1.0 if level * slowness >= 1.0 - TIE and (not first_come or _served(flows, columns, slot)) else -1.0
            )
            quick = quick or speeds[place] == 1.0
        if not quick:
            for at in range(waiting):  # on a full channel
                place = rising[at]
                slot = flows.found[place]
                carrier = flows.carrier[flows.move[slot]]
                if first_come and not _served(flows, columns, slot):
                    continue
                for use in range(offsets[carrier], offsets[carrier + 1]):
                    channel = channels[use]
                    if load[channel] > 0.0 and room[channel] <= level * load[channel] * (1.0 + TIE):
                        speeds[place] = level * columns.slowness[carrier]
                        break
        for at in range(waiting):
            place = rising[at]
            if speeds[place] < 0.0:
                rising[kept] = place
                kept += 1
                continue
            carrier = flows.carrier[flows.move[flows.found[place]]]
            for use in range(offsets[carrier], offsets[carrier + 1]):
                room[channels[use]] = max(0.0, room[channels[use]] - shares[use] * speeds[place])
        waiting = kept


@kernel(inner=True, borrows=True)
def _served(flows: Flows, columns: FlowColumns, slot: int) -> bool:
    """Whether a slot's flow waits for none that began before it on a channel that is first come, first served."""
    carrier = flows.carrier[flows.move[slot]]
    for use in range(columns.offsets[carrier], columns.offsets[carrier + 1]):
        channel = columns.channel[use]
        if columns.first_come[channel] and flows.first_of[channel] != flows.number[slot]:
            return False
    return True


@kernel(inner=True, borrows=True)
def _set_rates(flows: Flows, columns: FlowColumns, passing: Passing, heap: Heap, count: int, now: float) -> None:
    slowed = False
    for place in range(count):
        slowed = slowed or flows.speeds[place] < 1.0
    for place in range(count):
        slot, speed = flows.found[place], flows.speeds[place]
        if speed != flows.speed[slot]:
            _set_rate(flows, columns, passing, heap, slot, speed, now)
        if slowed:  # the end of each changes the rates of others
            _watch(flows, slot)


@kernel(inner=True, borrows=True)
def _set_rate(
    flows: Flows, columns: FlowColumns, passing: Passing, heap: Heap, slot: int, speed: float, now: float
) -> None:
    if speed == 1.0 and not flows.watched[slot] and flows.arrival[slot] == _NOBODY:  # it begins
        _run_alone(flows, columns, passing, heap, slot, now)
        return
    flows.left[slot] = max(0.0, flows.left[slot] - (now - flows.since[slot]) * flows.speed[slot])
    flows.since[slot], flows.speed[slot] = now, speed
    flows.ends[slot] = now + flows.left[slot] / speed if speed > 0.0 else np.inf
    _watch(flows, slot)
    if flows.arrival[slot] != _NOBODY:
        flows.valid[flows.move[slot]] = flows.arrival[slot] = _NOBODY
    if speed > 0.0:
        _keep_busy(flows, columns, flows.carrier[flows.move[slot]], flows.ends[slot])
