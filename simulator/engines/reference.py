"""Engine: the SimPy event engine, the reference for every plan, with contention and lanes that share a device.

Each task is one SimPy `Timeout` on its lane, each transfer with a delay one more, and one for each further channel that its
head reaches later. Links are first-in-first-out and kept as arithmetic (the moment at which each channel is free again): the
same times as a resource and a process per transfer, at a quarter of the cost.

Contention on channels that are shared fairly is that of `simulator.engines.fair_links`. On those of a program that has no such
channel:

1. A transfer cuts through its route: its head enters a channel when the channel is free, and reaches the next one a latency
   later. It asks for a channel at the moment at which its head reaches it, never before.
2. A channel serves whoever has reached it first come, first served, and is busy with each for the seconds that its own bytes
   need at the channel's own bandwidth, whatever the rest of the route does: what trickles in from a slower channel leaves
   gaps, which are counted as used at the beginning.
3. The tail leaves a channel once all bytes have passed it and not before the tail has left the channel before, and arrives a
   latency later. On idle channels a transfer takes the sum of the latencies + bytes / slowest bandwidth.
4. An all-reduce has its heads at every channel of its route when it is asked for: each channel serves it in its turn, and is
   busy for the time that the all-reduce's own bytes need on it. A ring goes at the pace of its last channel: the all-reduce
   begins when all have begun, and takes its idle seconds from then on.
5. What happens at one moment happens in the order in which it was caused (SimPy's insertion order).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import simpy

from simulator.compiled.garbage import no_garbage_collection
from simulator.engines.fair_links import Clock, FairLinks, Hops, SharedFlow
from simulator.engines.timeline import Timeline, timeline_of
from simulator.lowering.flows import flow_columns, shares_fairly
from simulator.lowering.program import Program, describe_deadlock
from simulator.schedules.schedule import DeadlockError

MOST_TASKS = 2**23
"""Tasks of a program at most: about a kilobyte and ten microseconds each."""


def replay(program: Program, *, contention: bool = False) -> Timeline:
    """Replay a program on SimPy.

    contention: transfers and all-reduces queue on the channels of their routes, as above; otherwise links are unlimited and
        each takes its idle seconds
    Raises DeadlockError naming devices, positions and ops; ValueError for more than MOST_TASKS.
    """
    if len(program) > MOST_TASKS:
        raise ValueError(
            f"the SimPy engine replays at most {MOST_TASKS:,} tasks, got {len(program):,}; the engine 'compiled' gives the same "
            "times and replays more"
        )
    run = _Run(program, contention)
    return run.timeline()


class _Run:
    """One replay: the only mutable object of this module."""

    def __init__(self, program: Program, contention: bool) -> None:
        self.program = program
        self.contention = contention
        self.environment = Clock() if contention and shares_fairly(program) else simpy.Environment()
        tasks = len(program)
        self.start = [0.0] * tasks
        self.end = [-1.0] * tasks
        self.arrival = [0.0] * len(program.dependency) if contention else None
        self.position = program.lane_offsets[:-1].tolist()
        self.channel_free = [0.0] * len(program.channels)

    def timeline(self) -> Timeline:
        program = self.program
        with no_garbage_collection():
            if self.contention or (program.lane_groups() >= 0).any():
                self._replay_general()
            else:
                self._replay_free()
        end = np.array(self.end)
        position = np.array(self.position, dtype=np.int64)
        if (position < program.lane_offsets[1:]).any():
            raise DeadlockError(describe_deadlock(program, program.lane_device, position, end >= 0.0))
        arrival = None if self.arrival is None else np.array(self.arrival)
        return timeline_of(program, np.array(self.start), end, arrival)

    def _replay_free(self) -> None:
        """Unlimited links: the lean loop. A task's callback ends it, tells those who wait, and starts what can start."""
        program = self.program
        environment = self.environment
        timeout = simpy.events.Timeout
        start, end, position = self.start, self.end, self.position
        lane_end = program.lane_offsets[1:].tolist()
        lane_of = program.lane_of_task().tolist()
        seconds = program.seconds.tolist()
        missing = np.diff(program.dependency_offsets).tolist()
        followers, delayed = _followers(program)
        idle = [True] * program.lanes
        on_end: list[Any] = []
        on_arrival: list[Any] = []

        def begin(lane: int, task: int) -> None:
            idle[lane] = False
            start[task] = environment.now
            timeout(environment, seconds[task], lane).callbacks = on_end

        def finish(event: Any) -> None:
            lane = event.value
            task = position[lane]
            end[task] = now = environment.now
            following = followers[task]
            position[lane] = task = task + 1
            if task < lane_end[lane] and not missing[task]:
                start[task] = now
                timeout(environment, seconds[task], lane).callbacks = on_end
            else:
                idle[lane] = True
            if following is not None:
                for follower in following:
                    missing[follower] -= 1
                    if not missing[follower]:
                        other = lane_of[follower]
                        if idle[other] and position[other] == follower:
                            begin(other, follower)
            if delayed is not None:
                for delay, waiting in delayed[task - 1]:
                    timeout(environment, delay, waiting).callbacks = on_arrival

        def arrive(event: Any) -> None:
            for follower in event.value:
                missing[follower] -= 1
                if not missing[follower]:
                    other = lane_of[follower]
                    if idle[other] and position[other] == follower:
                        begin(other, follower)

        on_end.append(finish)
        on_arrival.append(arrive)
        for lane in range(program.lanes):
            task = position[lane]
            if task < lane_end[lane] and not missing[task]:
                begin(lane, task)
        environment.run()

    def _replay_general(self) -> None:
        """Contended links and lanes that share their device: the same events, with more to decide at each."""
        program = self.program
        environment = self.environment
        timeout = simpy.events.Timeout
        start, end, position, arrival = self.start, self.end, self.position, self.arrival
        lane_end = program.lane_offsets[1:].tolist()
        lane_of = program.lane_of_task().tolist()
        seconds = program.seconds.tolist()
        missing = np.diff(program.dependency_offsets).tolist()
        sharing = program.lane_groups().tolist()
        least = (program.seconds if program.least_seconds is None else program.least_seconds).tolist()
        links = FairLinks(environment, flow_columns(program)) if isinstance(environment, Clock) else None
        rest = [links.rest] if links else []
        slower = [0.0] * program.lanes if program.overlap_slowdown is None else program.overlap_slowdown.tolist()
        pace = {number: 1.0 + slower[lane] for lane, number in enumerate(sharing)}
        groups = {number: _Sharing(environment, rest, pace[number]) for number in set(sharing) if number >= 0}
        taking_part, slows = program.taking_part or ((),) * program.lanes, program.overlap_slowdown is not None
        outgoing = _outgoing(program)
        sends = [0] * len(program) if program.sends is None else program.sends.tolist()
        idle = [True] * program.lanes
        hops_of, delay = self._hops(), program.transfer_seconds.tolist()
        routes = self._routes()
        channel_free = self.channel_free
        on_end: list[Any] = []
        on_arrival: list[Any] = []
        on_head: list[Any] = []

        def try_lane(lane: int, now: float) -> None:
            task = position[lane]
            if not idle[lane] or task >= lane_end[lane] or missing[task]:
                return
            idle[lane] = False
            start[task] = now
            if slows:
                communicate(taking_part[lane], 1)
            if sharing[lane] >= 0:
                groups[sharing[lane]].add(seconds[task], least[task], lane, finish)
            elif hops_of[sends[task]]:
                move(now, sends[task], on_end, lane)
            elif links and routes[lane]:
                links.ask(SharedFlow(len(hops_of) + lane, (), seconds[task], on_end, lane), now)
            else:
                wait = self._seize(routes[lane], seconds[task], now) if routes[lane] else 0.0
                start[task] = now + wait
                timeout(environment, wait + seconds[task], lane).callbacks = on_end

        def finish(lane: int) -> None:
            now = environment.now
            task = position[lane]
            end[task] = now
            position[lane] = task + 1
            idle[lane] = True
            if slows:
                communicate(taking_part[lane], -1)
            for transfer, waiting in outgoing[task]:
                if not hops_of[transfer] and delay[transfer] <= 0.0:
                    deliver(waiting, now)
                    continue
                ends = lane, lane_of[waiting[0][1]]
                if slows:
                    communicate(ends, 1)
                if hops_of[transfer]:
                    move(now, transfer, on_arrival, (ends, waiting))
                else:
                    timeout(environment, delay[transfer], (ends, waiting)).callbacks = on_arrival
            try_lane(lane, now)

        def communicate(lanes: Sequence[int], change: int) -> None:
            """So many transfers or collectives more, or less, of the devices of some lanes are under way."""
            for lane in lanes:
                if slower[lane] > 0.0:
                    groups[sharing[lane]].communicate(change, finish)

        def arrive(event: Any) -> None:
            ends, waiting = event.value
            if slows:
                communicate(ends, -1)
            deliver(waiting, environment.now)

        def deliver(waiting: list[tuple[int, int]], now: float) -> None:
            for dependency, follower in waiting:
                if arrival is not None:
                    arrival[dependency] = now
                missing[follower] -= 1
                if not missing[follower] and position[lane_of[follower]] == follower:
                    try_lane(lane_of[follower], now)

        def move(now: float, transfer: int, then: list[Any], what: Any) -> None:
            """A transfer sets out; what its last byte makes when it arrives is as in `reach`."""
            hops = hops_of[transfer]
            if links:
                links.ask(SharedFlow(transfer, hops, max(busy for _, busy, _ in hops), then, what), now)
            else:
                reach(now, hops, 0, now, then, what)

        def reach(now: float, hops: Hops, hop: int, tail: float, then: list[Any], what: Any) -> None:
            """The head of a transfer reaches the channel `hop` of its route, whose last byte has left the one before at `tail`.

            Of the event that its last byte makes when it arrives, `then` are the callbacks and `what` is the value.
            """
            while True:
                channel, busy, latency = hops[hop]
                free = channel_free[channel]
                begins = free if free > now else now
                channel_free[channel] = passed = begins + busy
                tail = (tail if tail > passed else passed) + latency
                hop += 1
                if hop == len(hops):
                    timeout(environment, tail - now, what).callbacks = then
                    return
                head = begins + latency
                if head > now:
                    timeout(environment, head - now, (hops, hop, tail, then, what)).callbacks = on_head
                    return

        on_end.extend((lambda event: finish(event.value), *rest))
        on_arrival.extend((arrive, *rest))
        on_head.append(lambda event: reach(environment.now, *event.value))
        for lane in range(program.lanes):
            try_lane(lane, 0.0)
        if links:
            links.rest()
        environment.run()

    def _hops(self) -> list[Hops]:
        """The channels of each transfer class's route; empty where transfers do not queue."""
        program = self.program
        if not self.contention:
            return [()] * len(program.transfer_route)
        slowdown = (
            np.ones(len(program.transfer_route)) if program.transfer_slowdown is None else program.transfer_slowdown
        )

        def hops(transfer: int, size: float, slower: float) -> Hops:
            pairs = zip(program.transfer_route[transfer], program.hop_bandwidths(transfer), strict=True)
            return tuple(
                (number, size / bandwidth * slower, program.channels[number].latency * slower)
                for number, bandwidth in pairs
            )

        classes = zip(program.transfer_bytes.tolist(), slowdown.tolist(), strict=True)
        return [hops(transfer, size, slower) for transfer, (size, slower) in enumerate(classes)]

    def _routes(self) -> list[tuple[tuple[int, float], ...]]:
        """For each lane the channels on which its all-reduces take turns, and the share of their seconds that each is busy."""
        program = self.program
        routes: list[tuple[tuple[int, float], ...]] = [()] * program.lanes
        for lane, route in enumerate(program.lane_route if self.contention else ()):
            routes[lane] = tuple(zip(route, program.lane_occupancy[lane] or (1.0,) * len(route), strict=True))
        return routes

    def _seize(self, route: tuple[tuple[int, float], ...], seconds: float, now: float) -> float:
        """Seconds until an all-reduce begins: it takes its turn on every channel of its route."""
        begins, channel_free = now, self.channel_free
        for number, share in route:
            free = channel_free[number]
            turn = free if free > now else now
            channel_free[number] = turn + seconds * share
            if turn > begins:
                begins = turn
        return begins - now


class _Sharing:
    """Lanes that share one device: each of the n that are active proceeds at 1/n of its speed alone.

    A task that must not end before `least` seconds needs only seconds / least of the device; what it leaves goes to the others,
    in equal parts (max-min fair). While transfers or collectives of the device are under way all take `pace` times as long.

    rest: callbacks that end every event
    """

    def __init__(self, environment: simpy.Environment, rest: list[Any], pace: float) -> None:
        self.environment, self.rest, self.pace = environment, rest, pace
        self.under_way = 0
        self.left: dict[int, float] = {}  # seconds at full speed that each active lane still needs
        self.need: dict[int, float] = {}  # part of the device that it then takes
        self.slowdown: dict[int, float] = {}
        self.since = 0.0
        self.token = 0

    def add(self, seconds: float, least: float, lane: int, finish: Any) -> None:
        """A task begins on a lane; `finish(lane)` is called when it is done."""
        self._advance()
        self.left[lane] = max(seconds, least)
        self.need[lane] = seconds / least if least > seconds else 1.0
        self._next(finish)

    def communicate(self, change: int, finish: Any) -> None:
        """So many transfers or collectives more, or less, are under way."""
        before, self.under_way = self.under_way, self.under_way + change
        if (before > 0) != (self.under_way > 0):
            self._advance()
            self._next(finish)

    def _advance(self) -> None:
        now = self.environment.now
        for lane, left in self.left.items():
            self.left[lane] = max(0.0, left - (now - self.since) / self.slowdown[lane])
        self.since = now

    def _divide(self) -> None:
        """Divide the device: who needs less than an equal part of what is left has it, the others get equal parts."""
        capacity, count, pace = 1.0, len(self.left), self.pace if self.under_way > 0 else 1.0
        for lane in sorted(self.left, key=lambda one: (self.need[one], one)):
            if self.need[lane] * count <= capacity:
                self.slowdown[lane] = pace
                capacity -= self.need[lane]
                count -= 1
            else:
                self.slowdown[lane] = self.need[lane] * count / capacity * pace

    def _next(self, finish: Any) -> None:
        """Announce the lane that is done first, unless something changes before."""
        self.token += 1
        if not self.left:
            return
        self._divide()
        wait = {lane: left * self.slowdown[lane] for lane, left in self.left.items()}
        lane = min(wait, key=lambda one: (wait[one], one))
        event = self.environment.timeout(wait[lane], (self.token, lane))

        def done(event: Any) -> None:
            token, lane = event.value
            if token != self.token:
                return
            self._advance()
            del self.left[lane]
            self._next(finish)
            finish(lane)

        event.callbacks.extend((done, *self.rest))


def _outgoing(program: Program) -> list[list[tuple[int, list[tuple[int, int]]]]]:
    """Per task: (transfer class, [(dependency, who waits)]) of each of its deliveries."""
    deliveries = program.deliveries()
    pairs = list(zip(deliveries.rows.tolist(), program.consumers()[deliveries.rows].tolist(), strict=True))
    waiting = [pairs[begin:end] for begin, end in pairwise(deliveries.row_offsets.tolist())]
    every = list(zip(deliveries.transfer.tolist(), waiting, strict=True))
    offsets = deliveries.offsets.tolist()
    return [every[begin:end] for begin, end in pairwise(offsets)]


def _followers(program: Program) -> tuple[list[Any], list[Any] | None]:
    """Per task: who waits for it at once, and (delay, who waits) for each transfer that it starts."""
    tasks = len(program)
    consumer = np.repeat(np.arange(tasks), np.diff(program.dependency_offsets))
    delay = program.transfer_seconds[program.transfer]
    followers: list[Any] = [None] * tasks
    immediate = np.flatnonzero(delay == 0.0)
    for producer, task in zip(program.dependency[immediate].tolist(), consumer[immediate].tolist(), strict=True):
        if followers[producer] is None:
            followers[producer] = (task,)
        else:
            followers[producer] += (task,)
    later = np.flatnonzero(delay > 0.0)
    if len(later) == 0:
        return followers, None
    delayed: list[Any] = [()] * tasks
    for producer, task, wait in zip(
        program.dependency[later].tolist(), consumer[later].tolist(), delay[later].tolist(), strict=True
    ):
        delayed[producer] += ((wait, (task,)),)
    return followers, delayed
