"""Engine: the SimPy event engine, the reference for every plan; contention and resource sharing live here only.

Each task is one SimPy `Timeout` on its lane, each transfer with a delay one more. Links are first-in-first-out and kept as
arithmetic (the moment at which each channel is free again): the same times as a resource and a process a transfer, at a
quarter of the cost.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import simpy

from simulator.program import DeadlockError, LaneKind, Program, describe_deadlock
from simulator.timeline import Timeline, timeline_of


def replay(program: Program, *, contention: bool = False) -> Timeline:
    """Replay a program on SimPy.

    contention: transfers queue first-in-first-out on every channel of their route, all-reduces occupy theirs; otherwise links
        are unlimited and a transfer takes its idle seconds
    Raises DeadlockError naming devices, positions and ops.
    """
    run = _Run(program, contention)
    return run.timeline()


class _Run:
    """One replay: the only mutable object of this module."""

    def __init__(self, program: Program, contention: bool) -> None:
        self.program = program
        self.contention = contention
        self.environment = simpy.Environment()
        tasks = len(program)
        self.start = [0.0] * tasks
        self.end = [-1.0] * tasks
        self.arrival = np.zeros(len(program.dependency)) if contention else None
        self.position = program.lane_offsets[:-1].tolist()
        self.channel_free = [0.0] * len(program.channels)

    def timeline(self) -> Timeline:
        program = self.program
        with _no_garbage_collection():
            if self.contention or (program.lane_sharing >= 0).any():
                self._replay_general()
            else:
                self._replay_free()
        end = np.array(self.end)
        position = np.array(self.position, dtype=np.int64)
        if (position < program.lane_offsets[1:]).any():
            raise DeadlockError(describe_deadlock(program, position, end >= 0.0))
        return timeline_of(program, np.array(self.start), end, self.arrival)

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
        start, end, position = self.start, self.end, self.position
        lane_end = program.lane_offsets[1:].tolist()
        lane_of = program.lane_of_task().tolist()
        seconds = program.seconds.tolist()
        missing = np.diff(program.dependency_offsets).tolist()
        sharing = program.lane_sharing.tolist()
        least = (program.seconds if program.least_seconds is None else program.least_seconds).tolist()
        groups = {number: _Sharing(environment) for number in set(sharing) if number >= 0}
        outgoing = _outgoing(program, lane_of)
        sends = [0] * len(program) if program.sends is None else program.sends.tolist()
        idle = [True] * program.lanes

        def try_lane(lane: int) -> None:
            task = position[lane]
            if not idle[lane] or task >= lane_end[lane] or missing[task]:
                return
            idle[lane] = False
            if sharing[lane] >= 0:
                start[task] = environment.now
                groups[sharing[lane]].add(seconds[task], least[task], lane, finish)
                return
            begins = self._seize(lane, seconds[task])
            start[task] = begins
            if self.contention and sends[task]:
                wait = self._send(sends[task]) - environment.now
            else:  # a wait of 0 adds nothing to the duration: no bit differs from the free replay
                wait = (begins - environment.now) + seconds[task]
            done = environment.timeout(wait, lane)
            done.callbacks.append(lambda event: finish(event.value))

        def finish(lane: int) -> None:
            task = position[lane]
            end[task] = environment.now
            position[lane] = task + 1
            idle[lane] = True
            for transfer, waiting in outgoing[task]:
                reached = self._send(transfer)
                if reached <= environment.now:
                    deliver(waiting)
                else:
                    arrives = environment.timeout(reached - environment.now, waiting)
                    arrives.callbacks.append(lambda event: deliver(event.value))
            try_lane(lane)

        def deliver(waiting: list[tuple[int, int]]) -> None:
            for dependency, follower in waiting:
                if self.arrival is not None:
                    self.arrival[dependency] = environment.now
                missing[follower] -= 1
                if not missing[follower]:
                    try_lane(lane_of[follower])

        for lane in range(program.lanes):
            try_lane(lane)
        environment.run()

    def _seize(self, lane: int, seconds: float) -> float:
        """When a task of this lane may begin; an all-reduce takes every channel of its route at once, from then on.

        Each channel is busy for the time that the all-reduce's own bytes need on it, and free for others after that.
        """
        now: float = self.environment.now
        route = self.program.lane_route[lane]
        if not (self.contention and route) or self.program.lane_kind[lane] != LaneKind.COLLECTIVE:
            return now
        begins = max(now, max(self.channel_free[channel] for channel in route))
        occupancy = self.program.lane_occupancy[lane] if self.program.lane_occupancy else ()
        for channel, share in zip(route, occupancy or (1.0,) * len(route), strict=True):
            self.channel_free[channel] = begins + seconds * share
        return begins

    def _send(self, transfer: int) -> float:
        """When a transfer that is requested now arrives: cut-through over its route, first come first served on each channel.

        The head enters a channel when the channel is free and the head has crossed the one before; the channel is busy until the
        tail has passed. On idle links this is the sum of latencies + bytes / slowest bandwidth.
        """
        now: float = self.environment.now
        program = self.program
        route = program.transfer_route[transfer]
        if not (self.contention and route):
            return now + float(program.transfer_seconds[transfer])
        size = float(program.transfer_bytes[transfer])
        head, tail = now, now
        for number in route:
            channel = program.channels[number]
            head = max(head, self.channel_free[number])
            tail = max(head + size / channel.bandwidth, tail)
            self.channel_free[number] = tail
            head += channel.latency
            tail += channel.latency
        return tail


class _Sharing:
    """Lanes that share one device: each of the n that are active proceeds at 1/n of its speed alone.

    A task that must not end before `least` seconds needs only seconds / least of the device; what it leaves goes to the others,
    in equal parts (max-min fair).
    """

    def __init__(self, environment: simpy.Environment) -> None:
        self.environment = environment
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

    def _advance(self) -> None:
        now = self.environment.now
        for lane, left in self.left.items():
            self.left[lane] = max(0.0, left - (now - self.since) / self.slowdown[lane])
        self.since = now

    def _divide(self) -> None:
        """Divide the device: who needs less than an equal part of what is left has it, the others get equal parts."""
        capacity, count = 1.0, len(self.left)
        for lane in sorted(self.left, key=lambda one: (self.need[one], one)):
            if self.need[lane] * count <= capacity:
                self.slowdown[lane] = 1.0
                capacity -= self.need[lane]
                count -= 1
            else:
                self.slowdown[lane] = self.need[lane] * count / capacity

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

        event.callbacks.append(done)


def _outgoing(program: Program, lane_of: list[int]) -> list[list[tuple[int, list[tuple[int, int]]]]]:
    """Per task: (transfer class, [(dependency row, who waits)]) for each receiving lane."""
    consumer = np.repeat(np.arange(len(program)), np.diff(program.dependency_offsets)).tolist()
    grouped: list[dict[tuple[int, int], list[tuple[int, int]]]] = [{} for _ in range(len(program))]
    for row, (producer, transfer) in enumerate(
        zip(program.dependency.tolist(), program.transfer.tolist(), strict=True)
    ):
        key = (transfer, lane_of[consumer[row]] if transfer else -1)
        grouped[producer].setdefault(key, []).append((row, consumer[row]))
    return [[(transfer, waiting) for (transfer, _), waiting in one.items()] for one in grouped]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A replay makes no reference cycles: the collector would only walk live objects, for a third of a large replay's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
