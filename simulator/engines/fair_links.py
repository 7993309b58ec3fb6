"""Fair links: transfers and all-reduces as flows that share the channels of their routes, for the SimPy engine.

1. A flow loads all channels of its route at once, from when it begins until its last byte has left them; that byte arrives the
   latencies of the route later. Alone on its route it takes what it takes on idle links.
2. Between a pair of devices flows go one after the other, in the order in which they are asked for; so do those of a lane.
3. Flows that meet have max-min fair rates (Bertsekas and Gallager, Data Networks, 6.5.2): the bytes per second of all pairs rise
   together, until a channel is full, which holds its flows at that rate, or a flow is as quick as alone; the others rise on.
4. On a channel that is first come, first served rates rise one after the other, in the order in which flows began: a later one
   takes what all others leave.
5. Rates change at the end of a moment, once all that happens at it has happened. Where flows end at one moment, the one that
   began first ends first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappush
from itertools import pairwise
from math import inf
from typing import Any

import simpy

from simulator.lowering.flows import FlowColumns, uses_of

TIE = 1e-12
"""Relative tolerance: channels that saturate at rates so close to each other saturate together."""

Uses = tuple[tuple[int, float], ...]
"""Channels that a flow loads, and the share of each that it takes alone on its route."""

Hops = tuple[tuple[int, float, float], ...]
"""Channels that a transfer passes in turn: number, seconds for which its bytes keep it busy, latency."""


class Clock(simpy.Environment):
    """A SimPy environment in which events can also be given their moment: now + (moment - now) may be another one."""

    def at(self, moment: float, callbacks: list[Any], value: Any) -> simpy.Event:
        """An event at a moment, not before now."""
        event = simpy.Event(self)
        event._ok, event._value, event.callbacks = True, value, callbacks
        heappush(self._queue, (moment, simpy.events.NORMAL, next(self._eid), event))
        return event


@dataclass(slots=True, eq=False)
class SharedFlow:
    """A transfer or an all-reduce, from the moment of its request on.

    carrier: as in `FlowColumns`; hops: of a transfer
    left: seconds that it still needs at full speed, as in `since`; speed: share of its full speed since then; ends: when its last
        byte leaves, should nothing change
    then, what: callbacks and value of the event that it makes when it arrives
    number: how many began before it; arrival: that event, where it is certain as long as the flow keeps its full speed
    """

    carrier: int
    hops: Hops
    left: float
    then: list[Any]
    what: Any
    since: float = 0.0
    speed: float = 0.0
    ends: float = inf
    number: int = -1
    arrival: simpy.Event | None = None

    def alone(self, now: float) -> float:
        """Arrival if it begins now and stays alone: its head and its tail pass channel after channel."""
        if not self.hops:
            return now + self.left
        tail = moment = now
        for place, (_, busy, latency) in enumerate(self.hops):
            tail = max(tail, moment + busy) + latency
            if place < len(self.hops) - 1:
                moment += max(moment + latency - moment, 0.0)
        return moment + (tail - moment)


@dataclass(slots=True)
class FairLinks:
    """The flows of one replay.

    Lifetime: flows are asked for (`ask`), begin when their slot is free, and end at an event of the clock; at the end of each
    moment (`rest`) the rates of all that meet those that have begun or ended are set anew.
    active: the last flow of each slot, which may have ended by itself; watched: those whose end is an event, because others wait
        for it or it has been slowed; waiting: those behind them
    busy_until: until when flows use each channel, as far as that is known; changed: channels whose flows have new rates
    in_order: whether a channel serves those first who began first; else speeds: of flows that meet, by their carriers
    """

    clock: Clock
    columns: FlowColumns
    uses: list[Uses] = field(init=False)
    loaded: list[tuple[int, ...]] = field(init=False)
    members: list[list[int]] = field(init=False)
    latency: list[float] = field(init=False)
    slot: list[int] = field(init=False)
    slowness: list[float] = field(init=False)
    first_come: list[bool] = field(init=False)
    several: list[bool] = field(init=False)
    busy_until: list[float] = field(init=False)
    present: list[list[int]] = field(init=False)
    active: dict[int, SharedFlow] = field(init=False, default_factory=dict)
    watched: dict[int, SharedFlow] = field(init=False, default_factory=dict)
    waiting: dict[int, deque[SharedFlow]] = field(init=False, default_factory=dict)
    changed: list[int] = field(init=False, default_factory=list)
    unsettled: bool = field(init=False, default=False)
    begun: int = field(init=False, default=0)
    announced: float | None = field(init=False, default=None)
    in_order: bool = field(init=False)
    speeds: dict[tuple[int, ...], list[float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        columns = self.columns
        self.uses = uses_of(columns)
        self.loaded = [tuple(dict.fromkeys(channel for channel, _ in one)) for one in self.uses]
        offsets, members = columns.member_offsets.tolist(), columns.members.tolist()
        self.members = [members[begin:end] for begin, end in pairwise(offsets)]
        self.latency, self.slot = columns.latency.tolist(), columns.slot.tolist()
        self.slowness, self.first_come = columns.slowness.tolist(), columns.first_come.tolist()
        self.several = columns.several.tolist()
        self.in_order = any(self.first_come)
        self.busy_until = [0.0] * len(self.members)
        self.present = [[] for _ in self.members]

    def ask(self, flow: SharedFlow, now: float) -> None:
        """Let a flow begin, or wait for earlier flows of its slot."""
        slot = self.slot[flow.carrier]
        if slot not in self.watched and not self._moves(slot, now):
            self._begin(flow, now)
            return
        self.waiting.setdefault(slot, deque()).append(flow)
        self.watched[slot] = self.active[slot]
        self.unsettled = True

    def _begin(self, flow: SharedFlow, now: float) -> None:
        flow.since, flow.number = now, self.begun
        self.begun += 1
        slot = self.slot[flow.carrier]
        self.active[slot] = flow
        for channel in self.loaded[flow.carrier]:
            there = self.present[channel]
            if (place := bisect_left(there, slot)) == len(there) or there[place] != slot:
                there.insert(place, slot)
        alone = not self.several[flow.carrier]  # else it meets those for which it stands
        alone = alone and all(self.busy_until[channel] <= now for channel in self.loaded[flow.carrier])
        if alone or flow.left == 0.0:
            self._run_alone(flow, now)
        else:
            self._change(flow)

    def _run_alone(self, flow: SharedFlow, now: float) -> None:
        flow.speed, flow.ends = 1.0, now + flow.left
        flow.arrival = self.clock.at(flow.alone(now), flow.then, flow.what)
        self._keep_busy(flow)

    def _keep_busy(self, flow: SharedFlow) -> None:
        for channel in self.loaded[flow.carrier]:
            self.busy_until[channel] = max(self.busy_until[channel], flow.ends)

    def _change(self, flow: SharedFlow) -> None:
        self.changed.extend(self.loaded[flow.carrier])
        self.unsettled = True

    # ---- the end of a flow -------------------------------------------------------------------------------------------

    def _first(self) -> SharedFlow | None:
        """The watched flow that ends first, or None."""
        return min(self.watched.values(), key=lambda one: (one.ends, one.number), default=None)

    def _leave(self, event: Any) -> None:
        """At the end that was announced, flows end, unless it has changed since."""
        if event.value is not self.announced:
            return
        self.announced = None
        now = self.clock.now
        while (flow := self._first()) is not None and flow.ends <= now:
            self._end(flow, now)

    def _end(self, flow: SharedFlow, now: float) -> None:
        slot = self.slot[flow.carrier]
        del self.active[slot], self.watched[slot]
        if flow.arrival is None:
            self.clock.at(now + self.latency[flow.carrier], flow.then, flow.what)
        self._change(flow)
        if waiting := self.waiting.get(slot):
            self._begin(waiting.popleft(), now)
            if waiting:
                self.watched[slot] = self.active[slot]

    # ---- the end of a moment -----------------------------------------------------------------------------------------

    def rest(self, _: Any = None) -> None:
        """At the end of a moment at which anything changed, recompute rates and announce the first end of a flow."""
        now = self.clock.now
        if not self.unsettled or self.clock.peek() <= now:
            return
        seen: set[int] = set()
        for channel in dict.fromkeys(self.changed):
            for slot in self._moving(channel, now):
                if slot not in seen:
                    self._set_rates(self._meeting(slot, seen, now), now)
        self.changed.clear()
        self.unsettled = False
        first = self._first()
        if first is not None and first.ends < inf and first.ends != self.announced:
            self.announced = first.ends
            self.clock.at(first.ends, [self._leave, self.rest], self.announced)

    def _moves(self, slot: int, now: float) -> bool:
        flow = self.active.get(slot)
        return flow is not None and flow.ends > now

    def _moving(self, channel: int, now: float) -> list[int]:
        """The slots whose flows move on a channel, ascending; those whose flows have ended are not looked at again."""
        active = self.active
        there = [slot for slot in self.present[channel] if (flow := active.get(slot)) is not None and flow.ends > now]
        self.present[channel] = there
        return there

    def _meeting(self, slot: int, seen: set[int], now: float) -> list[SharedFlow]:
        """The flow of a slot, and all that share channels with it, directly or over others, by rising slot: then the sums over
        flows of channels that are alike are the same.
        """
        seen.add(slot)
        found, passed = [slot], set[int]()
        for one in found:  # which grows
            for channel in self.loaded[self.active[one].carrier]:
                if channel not in passed:
                    passed.add(channel)
                    more = [two for two in self._moving(channel, now) if two not in seen]
                    seen.update(more)
                    found += more
        return [self.active[one] for one in sorted(found)]

    def _set_rates(self, flows: Sequence[SharedFlow], now: float) -> None:
        carriers = tuple(flow.carrier for flow in flows)
        speeds = None if self.in_order else self.speeds.get(carriers)
        if speeds is None:
            uses, slowness = [self.uses[one] for one in carriers], [self.slowness[one] for one in carriers]
            orders = [flow.number for flow in flows] if self.in_order else ()
            self.speeds[carriers] = speeds = fair_speeds(uses, slowness, orders, self.first_come)
        slowed = min(speeds) < 1.0
        for flow, speed in zip(flows, speeds, strict=True):
            if speed != flow.speed:
                self._set_rate(flow, speed, now)
            if slowed:  # the end of each changes the rates of others
                self.watched[self.slot[flow.carrier]] = flow

    def _set_rate(self, flow: SharedFlow, speed: float, now: float) -> None:
        if speed == 1.0 and flow.arrival is None and self.slot[flow.carrier] not in self.watched:  # it begins
            self._run_alone(flow, now)
            return
        flow.left = max(0.0, flow.left - (now - flow.since) * flow.speed)
        flow.since, flow.speed = now, speed
        flow.ends = now + flow.left / speed if speed > 0.0 else inf
        self.watched[self.slot[flow.carrier]] = flow
        if flow.arrival is not None:
            flow.arrival.callbacks = [self.rest]
            flow.arrival = None
        if speed > 0.0:
            self._keep_busy(flow)


def fair_speeds(
    uses: Sequence[Uses], slowness: Sequence[float], orders: Sequence[int] = (), first_come: Sequence[bool] = ()
) -> list[float]:
    """Max-min fair speeds of flows that meet, each as a share of its speed alone, by water filling.

    uses: channels that each flow loads, and which share of each it takes at full speed
    slowness: seconds per byte of each flow's pair at full speed: the bytes per second of a pair are speed / slowness
    orders: number of each flow in the order in which they began; only needed where channels are first come, first served
    first_come: of each channel whether it serves those first who began first
    """
    speeds, rising, before = [0.0] * len(uses), list(range(len(uses))), 0.0
    room = {channel: 1.0 for one in uses for channel, _ in one}
    while rising:
        served = _served(rising, uses, orders, first_come) if len(orders) else rising
        load = dict.fromkeys(room, 0.0)
        for flow in served:
            for channel, share in uses[flow]:
                load[channel] += share * slowness[flow]
        level = min((room[channel] / one for channel, one in load.items() if one > 0.0), default=inf)
        if not len(orders):  # rounding apart it never falls
            level = before = max(level, before)
        done = {flow: 1.0 for flow in served if level * slowness[flow] >= 1.0 - TIE}
        if not done:
            full = {
                channel for channel, one in load.items() if one > 0.0 and room[channel] <= level * one * (1.0 + TIE)
            }
            held = [flow for flow in served if any(channel in full for channel, _ in uses[flow])]
            done = {flow: level * slowness[flow] for flow in held}
        for flow, speed in done.items():
            speeds[flow] = speed
            for channel, share in uses[flow]:
                room[channel] = max(0.0, room[channel] - share * speed)
        rising = [flow for flow in rising if flow not in done]
    return speeds


def _served(
    rising: Sequence[int], uses: Sequence[Uses], orders: Sequence[int], first_come: Sequence[bool]
) -> list[int]:
    """Flows that wait for no flow that began before them on a channel that is first come, first served."""
    first: dict[int, int] = {}
    for flow in rising:
        for channel, _ in uses[flow]:
            first[channel] = min(first.get(channel, orders[flow]), orders[flow])
    return [
        flow
        for flow in rising
        if all(not first_come[channel] or first[channel] == orders[flow] for channel, _ in uses[flow])
    ]
