"""Heads: a lower bound on when each op of any order may begin, found op by op from what it waits for.

A forward waits for the one before it, for its transfer, and for memory. What a micro-batch keeps is nested: one that is at a
stage keeps what its chain's earlier stages on the device keep, too. Let p be a position, and q the same or a later one of its
chain on the device. Where memory holds k micro-batches that keep what they do up to p, of which one also keeps what it does after
p up to q, the forward of the (n + k)-th at p waits for the n-th's input gradient at q. Then it waits until those before it have
freed enough, each at its own least time. Where k is 1, the device also runs what must come between the two at q.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from planners.scheduler.instance import ScheduleInstance
from simulator import kernel

RECENT = 12
"""Micro-batches before a forward whose memory is looked at; what earlier ones keep counts as freed."""


class Ways(NamedTuple):
    """Least seconds along the chain of each position, float64 [P].

    head: from 0 to the start of a forward; round: from there to the end of its input gradient; tail: from there to the end of
    everything
    """

    head: Floats
    round: Floats
    tail: Floats


@kernel()
def nested_keep(instance: ScheduleInstance) -> Integers:
    """Units of memory that a micro-batch at each position keeps there and at earlier positions of its chain on the same device,
    int64 [P].
    """
    nested = np.zeros(len(instance.device), dtype=np.int64)
    for p in range(len(nested)):
        r = p
        while True:
            if instance.device[r] == instance.device[p]:
                nested[p] += instance.keep[r]
            if instance.first[r]:
                break
            r -= 1
    return nested


@kernel(inner=True)
def seconds_between(instance: ScheduleInstance, p: int, q: int, kept: int | np.int64) -> float:
    """Seconds of what a device must run between an input gradient at q and the next forward there, where p holds one micro-batch
    beside one at q.

    It runs the next micro-batch's forwards from p on before q, and all gradients at these positions that keep more than the next
    one, which keeps `kept` units then, leaves room for.
    """
    device, seconds = instance.device[p], 0.0
    room = instance.limit[device] - kept
    for h in range(instance.held_offsets[device], instance.held_offsets[device + 1]):
        r = instance.held[h]
        if p <= r <= q:
            if r < q:
                seconds += instance.seconds[0, r]
                seconds += instance.seconds[1, r] if instance.keep[r] > room else 0.0
            seconds += instance.seconds[2, r] if instance.keep[r] - instance.freed[r] > room else 0.0
    return float(seconds)


@kernel(inner=True)
def end_by_heads(instance: ScheduleInstance, ways: Ways) -> float:
    """Lower bound on the makespan: each device runs its ops from when they may begin, and the least seconds after each follow."""
    begins, positions = heads_of(instance, ways), len(instance.device)
    bound = 0.0
    for device in range(len(instance.limit)):
        codes = np.empty(instance.offsets[device + 1] - instance.offsets[device], dtype=np.int64)
        times = np.empty(len(codes))
        after, filled = np.inf, 0
        for h in range(instance.held_offsets[device], instance.held_offsets[device + 1]):
            p = instance.held[h]
            count = instance.passes[p]
            if count == 0:
                continue
            bound = max(bound, begins[positions + p, count - 1] + instance.takes[positions + p] + ways.tail[p])
            after = min(after, 0.0 if instance.split[p] else ways.tail[p])
            for kind in range(3 if instance.split[p] else 2):
                code = kind * positions + p
                codes[filled : filled + count] = code
                times[filled : filled + count] = begins[code, :count]
                filled += count
        now = 0.0
        for row in np.argsort(times):
            now = max(now, times[row]) + instance.takes[codes[row]]
        if filled > 0:
            bound = max(bound, now + after)
    return bound


@kernel(inner=True)
def heads_of(instance: ScheduleInstance, ways: Ways) -> Floats:
    """Lower bounds on the seconds at which each op begins, float64 [3 P, micro-batches], infinite where a chain has fewer
    micro-batches.
    """
    positions, takes = len(instance.device), instance.takes
    begins = np.full((3 * positions, instance.passes.max()), np.inf)
    nested = nested_keep(instance)
    first = 0
    for last in range(positions):
        if not instance.last[last]:
            continue
        for number in range(instance.passes[first]):
            for p in range(first, last + 1):
                begins[p, number] = _forward(instance, ways, nested, begins, first, p, number)
            for p in range(last, first - 1, -1):
                code = positions + p
                time = begins[p, number] + takes[p]
                if p < last:
                    time = max(time, begins[code + 1, number] + takes[code + 1] + instance.lag[p + 1])
                if number > 0:
                    time = max(time, begins[code, number - 1] + takes[code])
                begins[code, number] = time
                if instance.split[p]:
                    time += takes[code]
                    if number > 0:
                        time = max(time, begins[code + positions, number - 1] + takes[code + positions])
                    begins[code + positions, number] = time
        first = last + 1
    return begins


@kernel(inner=True)
def _forward(
    instance: ScheduleInstance, ways: Ways, nested: Integers, begins: Floats, first: int, p: int, number: int
) -> float:
    """Lower bound on when a forward of the chain that begins at position `first` begins, from those of all ops that it waits
    for.
    """
    device, positions = instance.device[p], len(instance.device)
    time = ways.head[p] if p == first else begins[p - 1, number] + instance.takes[p - 1] + instance.lag[p]
    if number > 0:
        time = max(time, begins[p, number - 1] + instance.takes[p])
    between = 0
    for h in range(instance.held_offsets[device], instance.held_offsets[device + 1]):
        q = instance.held[h]
        single = number > 0 and first <= q <= p and instance.limit[device] - nested[p] < nested[q]
        if single and nested[q] > 0:
            turned = begins[positions + p, number - 1] + instance.takes[positions + p]
            time = max(time, turned + seconds_between(instance, q, p, nested[p]))
        if nested[p] == 0 or q < p or instance.first[p + 1 : q + 1].any():
            continue
        between += instance.keep[q] if q > p else 0
        freed = number - (instance.limit[device] - between) // nested[p]
        if freed >= 0:
            time = max(time, begins[positions + q, freed] + instance.takes[positions + q])
        time = _with_room(instance, nested, begins, (first, p, q), (number, freed), time)
    return float(time)


@kernel(inner=True)
def _with_room(
    instance: ScheduleInstance,
    nested: Integers,
    begins: Floats,
    places: tuple[int, int, int],
    numbers: tuple[int, int],
    time: float,
) -> float:
    """The first time, from `time` on, with room for a forward beside what earlier micro-batches may not have freed yet.

    places: first position of the chain, position of the forward, and the last position that micro-batches up to `numbers[1]` have
    passed
    numbers: the micro-batch of the forward, and that one
    """
    (first, p, q), (number, gone) = places, numbers
    device, positions = instance.device[p], len(instance.device)
    while True:
        held, later = nested[p], np.inf
        for before in range(max(0, number - RECENT), number):
            for h in range(instance.held_offsets[device], instance.held_offsets[device + 1]):
                r = instance.held[h]
                if r < first or r > q or (r > p and before > gone):
                    continue
                for code in range(positions + r, 3 * positions if instance.split[r] else 2 * positions, positions):
                    ends = begins[code, before] + instance.takes[code]
                    if ends > time:
                        held -= instance.change[code]
                        later = min(later, ends)
        if held <= instance.limit[device]:
            return float(time)
        time = later
