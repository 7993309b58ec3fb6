"""Event loop: the compiled twin of the engine, for channels that are contended and lanes that share a device, too.

It does what `simulator.engines.reference` does, event by event: the same additions in the same order, events of one moment in the
order in which they were caused. Both agree to the last bit. Where nothing is contended and no device shared, the recurrence is
quicker and the same.

    lane            the task of a lane ends: what waits for it is told, its transfers set out, the lane goes on
    arrival         the last byte of a delivery is there
    head            the head of a transfer reaches the next channel of its route
    share           the first of the lanes of a shared device would be done, unless another has begun or ended meanwhile
    arrived         the last byte of a flow over fair links is there, unless it was slowed meanwhile
    leaves          the first of the flows that are watched ends, unless another has begun or ended meanwhile
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers
from simulator.compiled.numba_kernels import kernel
from simulator.engines.compiled_flows import UNSETTLED, Flows, Passing, ask, leave, no_flows, rest
from simulator.engines.event_heap import (
    ARRIVAL,
    ARRIVED,
    EARLIER,
    HEAD,
    KINDS,
    LANE,
    LEAVES,
    SHARE,
    Heap,
    empty_heap,
    pop,
    push,
)
from simulator.engines.timeline import Timeline, timeline_of
from simulator.lowering.flows import NO_FLOWS, FlowColumns, flow_columns, shares_fairly
from simulator.lowering.program import Program, describe_deadlock
from simulator.schedules.schedule import DeadlockError


class Prepared(NamedTuple):
    """A program as flat columns (a named tuple, because that is what a compiled function takes).

    lane_offsets, seconds, least, missing: the lanes' tasks, their durations and least durations, dependencies of each
    lane_of: lane of each task; lane_group: number of the shared or slowed device of each lane, -1 for none
    pace: of each such device, times the seconds of its lanes while it communicates
    part_offsets, parts: slowed devices that take part in each delivery, and then in the collectives of each lane
    delivery_offsets, delivery_class, row_offsets, rows: `Program.deliveries`; consumer: task that waits, aligned with `rows`
    class_seconds: of each transfer class on idle channels
    hop_offsets, hop_channel, hop_passing, hop_latency: channels that a class queues on, the seconds for which its bytes occupy
        each, and its latency
    sends: class that the task of a lane carries while the lane is busy, 0 for none
    turn_offsets, turn_channel, turn_share: channels on which the all-reduces of a lane take turns, and the share of their seconds
    member_offsets, members: lanes of each shared device, rising
    channels: int64 [1]; number of channels
    hop_class, hop_bandwidth: class of each hop, and bytes per second of its channel
    flows: what flows over fair links load; without slots where no link is fair
    """

    lane_offsets: Integers
    seconds: Floats
    least: Floats
    missing: Integers
    lane_of: NDArray[np.int32]
    lane_group: Integers
    delivery_offsets: Integers
    delivery_class: NDArray[np.int32]
    row_offsets: Integers
    rows: Integers
    consumer: NDArray[np.int32]
    class_seconds: Floats
    hop_offsets: Integers
    hop_channel: Integers
    hop_passing: Floats
    hop_latency: Floats
    sends: NDArray[np.int32]
    turn_offsets: Integers
    turn_channel: Integers
    turn_share: Floats
    member_offsets: Integers
    members: Integers
    channels: Integers
    hop_class: Integers
    hop_bandwidth: Floats
    flows: FlowColumns
    pace: Floats
    part_offsets: Integers
    parts: Integers

    def with_seconds(
        self, seconds: Floats, least: Floats | None, class_seconds: Floats, class_bytes: Floats
    ) -> Prepared:
        """The same program with other seconds of tasks, float64 [tasks], and of transfers, float64 [classes]."""
        return self._replace(
            seconds=seconds,
            least=seconds if least is None else least,
            class_seconds=class_seconds,
            hop_passing=class_bytes[self.hop_class] / self.hop_bandwidth,
        )

    def slowed(self, of_task: Floats, of_class: Floats) -> Prepared:
        """The same program, of transfers at their own pace, with factors on the seconds of tasks and of transfer classes."""
        carried = np.ones(len(self.flows.slot))
        carried[: len(of_class)] = of_class[: len(carried)]
        return self._replace(
            seconds=self.seconds * of_task,
            least=self.least * of_task,
            class_seconds=self.class_seconds * of_class,
            hop_passing=self.hop_passing * of_class[self.hop_class],
            hop_latency=self.hop_latency * of_class[self.hop_class],
            flows=self.flows._replace(slowness=self.flows.slowness * carried, latency=self.flows.latency * carried),
        )


class _Groups(NamedTuple):
    """Shared and slowed devices: `pace`, `member_offsets` and `members` of a program."""

    pace: Floats
    offsets: Integers
    members: Integers


class _Shares(NamedTuple):
    """Lanes of shared devices, as in the engine's `_Sharing`; announced: number of the event that is valid for each device."""

    active: Flags
    left: Floats
    need: Floats
    slowdown: Floats
    since: Floats
    announced: Integers
    under_way: Integers


class _State(NamedTuple):
    """One replay. move_hop, move_tail: of deliveries, then of what lanes send: the next channel, and when the tail has left the
    one before."""

    start: Floats
    end: Floats
    arrival: Floats
    position: Integers
    idle: Flags
    missing: Integers
    channel_free: Floats
    heap: Heap
    move_hop: Integers
    move_tail: Floats
    shares: _Shares
    flows: Flows


def prepare(program: Program, *, contention: bool = False) -> Prepared:
    """The program's columns; contention as in `simulator.engines.reference.replay`."""
    deliveries = program.deliveries()
    routes = program.transfer_route if contention else ((),) * len(program.transfer_route)
    hops = [(number, channel) for number, route in enumerate(routes) for channel in route]
    turns = [
        (lane, channel, share)
        for lane, route in enumerate(program.lane_route if contention else ())
        for channel, share in zip(route, program.lane_occupancy[lane] or (1.0,) * len(route), strict=True)
    ]
    bandwidth = np.array(
        [bandwidth for number, route in enumerate(routes) if route for bandwidth in program.hop_bandwidths(number)]
    )
    latency = np.array([program.channels[channel].latency for _, channel in hops])
    of_class = np.array([number for number, _ in hops], dtype=np.int64)
    slowdown = 1.0 if program.transfer_slowdown is None else program.transfer_slowdown[of_class]
    shared, lane_group = np.unique(program.lane_groups(), return_inverse=True)
    lane_group -= int(np.searchsorted(shared, 0))  # lanes of a device alone have -1
    members = np.argsort(lane_group, kind="stable")
    slower = np.zeros(program.lanes) if program.overlap_slowdown is None else program.overlap_slowdown
    pace = np.ones(int(lane_group.max(initial=-1)) + 1)
    pace[lane_group[lane_group >= 0]] = 1.0 + slower[lane_group >= 0]
    consumer, lane_of = program.consumers()[deliveries.rows], program.lane_of_task()
    parts = list[tuple[int, int]]()
    if slower.any():
        slowed = np.where(slower > 0.0, lane_group, -1).tolist()
        producers = lane_of[np.repeat(np.arange(len(program)), np.diff(deliveries.offsets))].tolist()
        ends = zip(producers, lane_of[consumer[deliveries.row_offsets[:-1]]].tolist(), strict=True)
        taking = enumerate((*ends, *program.taking_part))
        parts = [(move, slowed[one]) for move, those in taking for one in those if slowed[one] >= 0]
    return Prepared(
        lane_offsets=program.lane_offsets,
        seconds=program.seconds,
        least=program.seconds if program.least_seconds is None else program.least_seconds,
        missing=np.diff(program.dependency_offsets),
        lane_of=lane_of,
        lane_group=lane_group,
        delivery_offsets=deliveries.offsets,
        delivery_class=deliveries.transfer,
        row_offsets=deliveries.row_offsets,
        rows=deliveries.rows,
        consumer=consumer,
        class_seconds=program.transfer_seconds,
        hop_offsets=_offsets([number for number, _ in hops], len(routes)),
        hop_channel=np.array([channel for _, channel in hops], dtype=np.int64),
        hop_passing=program.transfer_bytes[of_class] / bandwidth * slowdown,
        hop_latency=latency * slowdown,
        sends=np.zeros(len(program), dtype=np.int32) if program.sends is None else program.sends,
        turn_offsets=_offsets([lane for lane, _, _ in turns], program.lanes),
        turn_channel=np.array([channel for _, channel, _ in turns], dtype=np.int64),
        turn_share=np.array([share for _, _, share in turns], dtype=np.float64),
        member_offsets=np.searchsorted(lane_group[members], np.arange(lane_group.max(initial=-1) + 2)),
        members=members,
        channels=np.array([len(program.channels)]),
        hop_class=of_class,
        hop_bandwidth=bandwidth,
        flows=flow_columns(program) if contention and shares_fairly(program) else NO_FLOWS,
        pace=pace,
        part_offsets=_offsets([move for move, _ in parts], len(deliveries.transfer) + program.lanes),
        parts=np.array([one for _, one in parts], dtype=np.int64),
    )


def run(prepared: Prepared) -> tuple[Floats, Floats, Floats]:
    """Replay a program that cannot deadlock: start and end of every task, and arrival of every dependency."""
    state = _run(prepared)
    return state.start, state.end, state.arrival


def _offsets(owner: list[int], owners: int) -> Integers:
    """Where the entries of each owner begin, int64 [owners + 1]; entries stand by rising owner."""
    return np.searchsorted(np.array(owner, dtype=np.int64), np.arange(owners + 1))


def replay(program: Program, *, contention: bool = False) -> Timeline:
    """Replay a program: the engine's timeline, to the last bit; DeadlockError as the engine's."""
    state = _run(prepare(program, contention=contention))
    if (state.position < program.lane_offsets[1:]).any():
        raise DeadlockError(describe_deadlock(program, program.lane_device, state.position, state.end >= 0.0))
    return timeline_of(program, state.start, state.end, state.arrival if contention else None)


def makespan(prepared: Prepared) -> float:
    """End of the last task, in seconds; infinite for a program that deadlocks."""
    state = _run(prepared)
    done = (state.position == prepared.lane_offsets[1:]).all()
    return float(state.end.max(initial=0.0)) if done else float("inf")


def _run(prepared: Prepared) -> _State:
    tasks, lanes, deliveries = len(prepared.seconds), len(prepared.lane_group), len(prepared.delivery_class)
    groups = len(prepared.member_offsets)  # and one to spare
    # A lane and a delivery wait for one event each, and a task that shares outdates two. Room that is not used takes no memory.
    most = lanes + deliveries + 2 * tasks
    if len(prepared.parts):  # whatever begins or ends outdates one
        most += 2 * (2 * deliveries + tasks * (1 + int(np.diff(prepared.part_offsets).max(initial=0))))
    if len(prepared.flows.slot):  # and each flow an arrival when it begins, one when it ends, and three announcements
        most += 5 * (deliveries + tasks)
    state = _State(
        start=np.zeros(tasks),
        end=np.full(tasks, -1.0),
        arrival=np.zeros(len(prepared.rows)),
        position=prepared.lane_offsets[:-1].copy(),
        idle=np.ones(lanes, dtype=np.bool_),
        missing=prepared.missing.copy(),
        channel_free=np.zeros(int(prepared.channels[0])),
        heap=empty_heap(most),
        move_hop=np.zeros(deliveries + lanes, dtype=np.int64),
        move_tail=np.zeros(deliveries + lanes),
        shares=_Shares(
            active=np.zeros(lanes, dtype=np.bool_),
            left=np.zeros(lanes),
            need=np.ones(lanes),
            slowdown=np.ones(lanes),
            since=np.zeros(groups),
            announced=np.full(groups, -1, dtype=np.int64),
            under_way=np.zeros(groups, dtype=np.int64),
        ),
        flows=no_flows(prepared.flows, deliveries + lanes),
    )
    _loop(prepared, state)
    return state


@kernel(borrows=True)
def _loop(program: Prepared, state: _State) -> None:
    """Run until no event is left.

    An event leaves a list of things to do at its moment, which are done in this order: a head that reaches a channel, a lane that
    may begin its task, dependencies of a delivery that has arrived, deliveries of a task that has ended, the lane of that task.
    """
    lanes, deliveries, heap = len(program.lane_group), len(program.delivery_class), state.heap
    passing, fair = Passing(program.hop_offsets, program.hop_passing, program.hop_latency), len(program.flows.slot) > 0
    groups = _Groups(program.pace, program.member_offsets, program.members)
    slows = False  # by communication
    for one in program.pace:
        slows |= one > 1.0
    tried, now = 0, 0.0
    while True:
        move, lane, ended, over = -1, -1, -1, -1
        row = row_end = delivery = delivery_end = 0
        if tried < lanes:  # at the beginning every lane is tried
            lane = tried
            tried += 1
        elif fair and state.flows.counters[UNSETTLED] and (heap.counters[0] == 0 or heap.time[0] > now):
            rest(state.flows, program.flows, passing, heap, now)
            continue
        elif heap.counters[0] > 0:
            now, number, event = heap.time[0], heap.number[0] // EARLIER, heap.number[0] % EARLIER
            pop(heap)
            kind, index = event % KINDS, event // KINDS
            if kind == HEAD:
                move = index
            elif kind == ARRIVAL or (kind == ARRIVED and index < deliveries):
                if kind == ARRIVED and state.flows.valid[index] != number:
                    continue
                row, row_end, over = program.row_offsets[index], program.row_offsets[index + 1], index
            elif kind == LEAVES:
                leave(state.flows, program.flows, passing, heap, number, now)
                continue
            else:
                ended = index
                if kind == ARRIVED:
                    if state.flows.valid[index] != number:
                        continue
                    ended = index - deliveries
                elif kind == SHARE:
                    if state.shares.announced[index] != number:
                        continue
                    ended = _first_done(state.shares, groups, index)
                    _advance(state.shares, groups, index, now)
                    state.shares.active[ended] = False
                    _announce(state.shares, groups, index, now, heap)
                task = state.position[ended]
                state.end[task] = now
                state.position[ended] = task + 1
                state.idle[ended], over = True, deliveries + ended
                delivery, delivery_end = program.delivery_offsets[task], program.delivery_offsets[task + 1]
            if slows and over >= 0:
                _communicate(state.shares, groups, program.part_offsets, program.parts, over, -1, now, heap)
        else:
            return

        while True:
            if move >= 0:
                if fair:
                    _flow(program, state, passing, move, now)
                else:
                    _pass_channels(program, state, move, now)
                move = -1
            elif lane >= 0:
                task = state.position[lane]
                if state.idle[lane] and task < program.lane_offsets[lane + 1] and state.missing[task] == 0:
                    if slows:
                        begun = deliveries + lane
                        _communicate(state.shares, groups, program.part_offsets, program.parts, begun, 1, now, heap)
                    move = _begin(program, state, groups, lane, fair, now)
                lane = -1
            elif row < row_end:
                state.arrival[program.rows[row]] = now
                follower = program.consumer[row]
                state.missing[follower] -= 1
                if state.missing[follower] == 0:
                    lane = program.lane_of[follower]
                row += 1
            elif delivery < delivery_end:
                carrier = program.delivery_class[delivery]
                hops, idle_seconds = program.hop_offsets[carrier : carrier + 2], program.class_seconds[carrier]
                if slows and (hops[0] < hops[1] or idle_seconds > 0.0):
                    _communicate(state.shares, groups, program.part_offsets, program.parts, delivery, 1, now, heap)
                if hops[0] < hops[1]:
                    move = delivery
                    state.move_hop[move], state.move_tail[move] = hops[0], now
                elif idle_seconds > 0.0:
                    push(heap, now + idle_seconds, ARRIVAL + KINDS * delivery)
                else:
                    row, row_end = program.row_offsets[delivery], program.row_offsets[delivery + 1]
                delivery += 1
            elif ended >= 0:
                lane = ended
                ended = -1
            else:
                break


@kernel(inner=True, borrows=True, inline="always")
def _begin(program: Prepared, state: _State, groups: _Groups, lane: int, fair: bool, now: float) -> int:
    """Begin the next task of a lane; the move that sets out with it, -1 for none."""
    deliveries, task = len(program.delivery_class), state.position[lane]
    state.idle[lane] = False
    state.start[task] = now
    group, carrier, seconds, least = (
        program.lane_group[lane],
        program.sends[task],
        program.seconds[task],
        program.least[task],
    )
    move = -1
    if group >= 0:
        _advance(state.shares, groups, group, now)
        state.shares.active[lane] = True
        state.shares.left[lane] = max(seconds, least)
        state.shares.need[lane] = seconds / least if least > seconds else 1.0
        _announce(state.shares, groups, group, now, state.heap)
    elif program.hop_offsets[carrier] < program.hop_offsets[carrier + 1]:
        move = deliveries + lane
        state.move_hop[move], state.move_tail[move] = program.hop_offsets[carrier], now
    elif fair and program.turn_offsets[lane] < program.turn_offsets[lane + 1]:
        move = deliveries + lane
    else:
        begins = now
        for turn in range(program.turn_offsets[lane], program.turn_offsets[lane + 1]):
            channel = program.turn_channel[turn]
            own = max(now, state.channel_free[channel])
            state.channel_free[channel] = own + seconds * program.turn_share[turn]
            begins = max(begins, own)
        wait = begins - now
        state.start[task] = now + wait
        push(state.heap, now + (wait + seconds), LANE + KINDS * lane)
    return move


@kernel(inner=True, borrows=True, inline="always")
def _flow(program: Prepared, state: _State, passing: Passing, move: int, now: float) -> None:
    """Let a move flow over fair links."""
    deliveries, flows = len(program.delivery_class), state.flows
    carrier = program.delivery_class[move] if move < deliveries else program.sends[state.position[move - deliveries]]
    seconds = 0.0
    for hop in range(program.hop_offsets[carrier], program.hop_offsets[carrier + 1]):
        seconds = max(seconds, program.hop_passing[hop])
    if move >= deliveries and carrier == 0:
        seconds = program.seconds[state.position[move - deliveries]]
        carrier = len(program.hop_offsets) - 1 + move - deliveries
    flows.carrier[move], flows.seconds[move] = carrier, seconds
    ask(flows, program.flows, passing, state.heap, move, now)


@kernel(inner=True, borrows=True, inline="always")
def _pass_channels(program: Prepared, state: _State, move: int, now: float) -> None:
    """Let the head of a move, first come, first served, pass the channels that it reaches at once."""
    deliveries = len(program.delivery_class)
    carrier = program.delivery_class[move] if move < deliveries else program.sends[state.position[move - deliveries]]
    hop, tail, end = state.move_hop[move], state.move_tail[move], program.hop_offsets[carrier + 1]
    head = now
    while hop < end and head <= now:
        channel, latency = program.hop_channel[hop], program.hop_latency[hop]
        begins = max(now, state.channel_free[channel])
        passed = begins + program.hop_passing[hop]
        state.channel_free[channel] = passed
        tail = max(passed, tail) + latency
        head = begins + latency
        hop += 1
    if hop == end:
        event = ARRIVAL + KINDS * move if move < deliveries else LANE + KINDS * (move - deliveries)
        push(state.heap, now + (tail - now), event)
    else:
        state.move_hop[move], state.move_tail[move] = hop, tail
        push(state.heap, now + (head - now), HEAD + KINDS * move)


# ---- lanes that share a device ---------------------------------------------------------------------------------------


@kernel(borrows=True)
def _advance(shares: _Shares, groups: _Groups, group: int, now: float) -> None:
    """Advance the lanes of a device to now, from when they were last updated."""
    for position in range(groups.offsets[group], groups.offsets[group + 1]):
        lane = groups.members[position]
        if shares.active[lane]:
            shares.left[lane] = max(0.0, shares.left[lane] - (now - shares.since[group]) / shares.slowdown[lane])
    shares.since[group] = now


@kernel(inner=True, borrows=True)
def _communicate(
    shares: _Shares, groups: _Groups, offsets: Integers, parts: Integers, move: int, change: int, now: float, heap: Heap
) -> None:
    """So many transfers or collectives more, or less, are under way on the slowed devices that take part in a move."""
    for place in range(offsets[move], offsets[move + 1]):
        group = parts[place]
        before = shares.under_way[group]
        shares.under_way[group] = before + change
        if (before > 0) != (before + change > 0):
            _advance(shares, groups, group, now)
            _announce(shares, groups, group, now, heap)


@kernel(inner=True, borrows=True)
def _announce(shares: _Shares, groups: _Groups, group: int, now: float, heap: Heap) -> None:
    """Divide the device as the engine's `_Sharing` does, and announce the lane that is done first."""
    first, end = groups.offsets[group], groups.offsets[group + 1]
    members, count = groups.members, 0
    for position in range(first, end):
        count += shares.active[members[position]]
    shares.announced[group] = -1
    if count == 0:
        return
    capacity, last_need, last_lane = 1.0, -1.0, -1
    slower = groups.pace[group] if shares.under_way[group] > 0 else 1.0
    for _ in range(count):
        chosen = -1
        for position in range(first, end):
            lane = members[position]
            need = shares.need[lane]
            after = need > last_need or (need == last_need and lane > last_lane)
            if shares.active[lane] and after and (chosen < 0 or need < shares.need[chosen]):
                chosen = lane
        last_need, last_lane = shares.need[chosen], chosen
        if last_need * count <= capacity:
            shares.slowdown[chosen] = slower
            capacity -= last_need
            count -= 1
        else:
            shares.slowdown[chosen] = last_need * count / capacity * slower
    lane = _first_done(shares, groups, group)
    shares.announced[group] = heap.counters[1]
    push(heap, now + shares.left[lane] * shares.slowdown[lane], SHARE + KINDS * group)


@kernel(inner=True, borrows=True)
def _first_done(shares: _Shares, groups: _Groups, group: int) -> int:
    """The active lane that is done first, the lowest of equals."""
    chosen = -1
    for position in range(groups.offsets[group], groups.offsets[group + 1]):
        lane = groups.members[position]
        if shares.active[lane] and (
            chosen < 0 or shares.left[lane] * shares.slowdown[lane] < shares.left[chosen] * shares.slowdown[chosen]
        ):
            chosen = lane
    return chosen
