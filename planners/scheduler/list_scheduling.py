"""List scheduling: the device that wakes first takes its most urgent op, under caps on what is in flight.

An op that is ready gives way to a more urgent one that is known to come, if that would else wait longer than a tolerance; a
weight gradient goes where it fits in between or where memory is short. A forward is admitted where its device has room for it and
for what later stages on the device still need, so that no device fills up with micro-batches that wait for each other. Where
several chains share devices that have no room for one micro-batch of each, that would admit none: there a forward is admitted if
all that is then in flight can still be finished, chain after chain (Dijkstra's banker).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from planners.scheduler.bound import ways_of
from planners.scheduler.instance import ScheduleInstance
from planners.scheduler.order_replay import Trace
from simulator import kernel

NO_CAP = 2**31
"""More micro-batches than any schedule has."""


class ListSetting(NamedTuple):
    """Settings of list scheduling.

    caps: int64 [P]; most forwards of a position whose input gradients have not begun
    urgency: float64 [2 P]; of forwards and input gradients, less is sooner; every micro-batch adds `period`
    tolerance: seconds that a more urgent arrival may wait for an op that is ready
    weight_tolerance: share of a weight gradient's seconds that an arrival may wait for it
    """

    caps: Integers
    urgency: Floats
    period: float
    tolerance: float
    weight_tolerance: float


TIGHT = (
    (0.5, 0.1, 0, 0),
    (1.0, 0.1, 1, 4),
    (0.75, 0.25, 0, 0),
    (0.75, 0.0, 0, 2),
    (1.0, 0.0, 1, 4),
    (0.75, 0.25, 0, 2),
)
ROOMY = ((1.0, 1.0, 0, 1), (1.0, 0.0, 0, 0), (1.0, 0.25, 1, 2), (1.0, 0.5, 0, 1), (1.0, 0.9, 1, 5), (1.0, 1.0, 0, 2))
"""Tolerance in longest forwards, weight tolerance, urgency and cap (numbers of `settings_of`) that are best most often: where
memory holds fewer micro-batches than there are stages to go, and where it holds as many."""

LONG_TIGHT = ((0.75, 0.0, 2, 9), (0.75, 0.25, 0, 0), (0.75, 0.1, 2, 0))
LONG_ROOMY = ((1.0, 1.0, 0, 1), (1.0, 0.5, 0, 1), (1.0, 0.5, 0, 0), (1.0, 1.0, 1, 1))
"""The same for long streams, of which few can be tried: those that leave least to each other."""

TOLERANCES = ((1.0, 1.0), (1.0, 0.0), (1.0, 0.5), (0.0, 0.5), (0.0, 0.0), (0.0, 1.0), (0.5, 0.25), (1.0, 0.25))
"""Tolerances of ready ops and of weight gradients, each tried with every urgency and cap."""


def settings_of(instance: ScheduleInstance, stages: int, long: bool = False) -> Iterator[ListSetting]:
    """Settings to try, those that are best most often first; long: only the few that are so in long streams

    Caps are stages to go in the chain (what 1F1B has in flight), about twice as many (enough to hide transfers), none, or parts
    of the micro-batches that pass while one goes there and back; urgency is how far an op is along its chain, or its time in a
    stream without conflicts, at the pace of the busiest device or at the least that memory allows.
    """
    ways = ways_of(instance)
    stage = np.arange(len(instance.device)) % stages
    load = instance.seconds.sum(axis=0)
    period = float(np.bincount(instance.device, weights=load).max())
    fit = np.maximum(1, instance.limit[instance.device] // np.maximum(1, instance.keep))
    pace = max(period, float(((ways.round + instance.seconds[2]) / fit).max()))
    caps = (
        stages - stage,
        2 * (stages - stage) - 1,
        np.full(len(stage), NO_CAP),
        stages - stage + 1,
        *(np.clip(np.ceil(part * ways.round / (period or 1.0)), 1, NO_CAP) for part in (1.0, 1.5, 2.0, 1.25, 2.5)),
        np.clip(np.ceil(1.5 * ways.round / (pace or 1.0)), 1, NO_CAP),
    )
    farthest = np.concatenate([-1.0 * stage, stage - 2.0 * stages])
    in_turn = np.concatenate([ways.head, ways.head + ways.round - instance.seconds[1]])
    urgencies = ((farthest, 0.0), (in_turn, period), (in_turn, pace))
    longest = float(instance.seconds[0].max())
    tight = bool((instance.keep * (stages - stage) > instance.limit[instance.device]).any())
    if long:
        chosen: tuple[tuple[float, float, int, int], ...] = LONG_TIGHT if tight else LONG_ROOMY
    else:
        every = ((*pair, urgency, cap) for pair in TOLERANCES for urgency in range(2) for cap in range(9))
        chosen = tuple(dict.fromkeys((*(TIGHT if tight else ROOMY), *every)))
    for tolerance, weights, urgency, cap in chosen:
        order, each = urgencies[urgency]
        yield ListSetting(caps[cap].astype(np.int64), order, each, tolerance * longest, weights)


@kernel(error_model="numpy")
def list_schedule(instance: ScheduleInstance, setting: ListSetting, trace: Trace) -> float:
    """Make an order by list scheduling, in `trace`, and return its makespan; infinite if it gets stuck."""
    caps, urgency, period, tolerance, weight_tolerance = setting
    device_of, count, split, keep, reserve = (
        instance.device,
        instance.passes,
        instance.split,
        instance.keep,
        instance.reserve,
    )
    limit, rows_at, held, held_at = instance.limit, instance.offsets, instance.held, instance.held_offsets
    takes, source, delay, target = instance.takes, instance.source, instance.delay, instance.target
    order, ends, finish, start, work = trace.order, trace.ends, trace.finish, trace.start, trace.work
    positions, devices = len(device_of), len(limit)
    most = len(ends) // (2 * positions)
    done = work[: 3 * positions]
    done[:] = 0
    row_of = work[3 * positions : 3 * positions + devices]
    memory = work[3 * positions + devices : 3 * positions + 2 * devices]
    for device in range(devices):
        row_of[device] = rows_at[device]
    memory[:] = 0
    finish[:] = 0.0
    leaves = 1
    while leaves < devices:
        leaves *= 2
    # tournament: tree[1] is the device that wakes first
    wake = np.full(leaves, np.inf)
    tree = np.zeros(2 * leaves, dtype=np.int64)
    for leaf in range(leaves):
        tree[leaves + leaf] = leaf
    wake[:devices] = 0.0
    for node in range(leaves - 1, 0, -1):
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = left if wake[left] <= wake[right] else right
    left_over = rows_at[devices]
    crowded = bool((keep + reserve > limit[device_of]).any())
    while left_over > 0:
        device = tree[1]
        now = wake[device]
        if now == np.inf:
            return np.inf
        kept, room = memory[device], limit[device]
        best, best_key = -1, np.inf  # ready
        coming_key, coming_at = np.inf, np.inf  # the most urgent that is known to come
        soonest = np.inf
        short = False
        weight, oldest = -1, np.inf
        for h in range(held_at[device], held_at[device + 1]):
            p = held[h]
            for code in (p, positions + p):
                number, before = done[code], source[code]
                if number == (count[p] if code == p else done[p]) or (before >= 0 and done[before] <= number):
                    continue
                if code == p:
                    if kept + keep[p] + (0 if crowded else reserve[p]) > room:
                        short = True
                        continue
                    if crowded and not can_finish(instance, done, p):
                        continue  # looked at again when something is freed
                    if number - done[positions + p] >= caps[p]:
                        continue
                ready = ends[before * most + number] + delay[code] if before >= 0 else 0.0
                key = urgency[code] + period * number
                if ready <= now:
                    if key < best_key:
                        best, best_key = code, key
                else:
                    soonest = min(soonest, ready)
                    if key < coming_key:
                        coming_key, coming_at = key, ready
            if split[p] and done[2 * positions + p] < done[positions + p]:
                ended = ends[(positions + p) * most + done[2 * positions + p]]
                if ended < oldest:
                    weight, oldest = p, ended
        code = best
        if best >= 0 and coming_key < best_key and now + takes[best] > coming_at + tolerance:
            code = -1
            soonest = coming_at
        if code < 0 and weight >= 0:
            one = takes[2 * positions + weight]
            if now + one <= soonest + weight_tolerance * one or (short and best < 0):
                code = 2 * positions + weight
        if code < 0:
            wake[device] = soonest
        else:
            if row_of[device] == rows_at[device]:
                start[device] = now
            end = now + takes[code]
            order[row_of[device]] = code
            row_of[device] += 1
            left_over -= 1
            number = done[code]
            done[code] = number + 1
            memory[device] = kept + instance.change[code]
            if code < 2 * positions:
                ends[code * most + number] = end
            finish[device] = end
            wake[device] = end
            if crowded and code >= positions:
                for woken in range(devices):
                    if wake[woken] == np.inf:
                        wake[woken] = max(end, finish[woken])
                        _lift(wake, tree, leaves, woken)
            other = target[code]
            if other >= 0:
                woken = device_of[other % positions]
                arrives = max(end + delay[other], finish[woken])
                if woken != device and arrives < wake[woken]:
                    wake[woken] = arrives
                    _lift(wake, tree, leaves, woken)
        _lift(wake, tree, leaves, device)
    makespan = 0.0
    for device in range(devices):
        makespan = max(makespan, finish[device])
    return makespan


@kernel(inner=True, borrows=True)
def _lift(wake: Floats, tree: Integers, leaves: int, device: int | np.int64) -> None:
    """Play the games of a device in the tournament anew: of two that meet, the one that wakes first goes on."""
    node = (leaves + device) // 2
    while node > 0:
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = left if wake[left] <= wake[right] else right
        node //= 2


@kernel(inner=True)
def can_finish(instance: ScheduleInstance, done: Integers, begun: int | np.int64) -> bool:
    """Whether all that is in flight once a forward of position `begun` runs can be finished, chain after chain.

    done: int64 [3 P]; ops of each code so far. Of a chain, what is farthest goes on first; a micro-batch needs room at every
    position that it has not passed. Weight gradients can be run at any time, so that what they free counts as free.
    """
    positions = len(instance.device)
    free = instance.limit.copy()
    flying = done[:positions] - done[positions : 2 * positions]
    flying[begun] += 1
    for p in range(positions):
        free[instance.device[p]] -= flying[p] * instance.keep[p]
    finished = np.zeros(positions, dtype=np.bool_)  # by the first position of each chain
    progress = True
    while progress:
        progress, all_finished, first = False, True, 0
        while first < positions:
            last = first
            while not instance.last[last]:
                last += 1
            if not finished[first]:
                if _chain_can_finish(instance, done, begun, flying, free, first, last):
                    finished[first] = progress = True
                    for p in range(first, last + 1):
                        free[instance.device[p]] += flying[p] * instance.keep[p]
                else:
                    all_finished = False
            first = last + 1
        if all_finished:
            return True
    return False


@kernel(inner=True)
def _chain_can_finish(
    instance: ScheduleInstance,
    done: Integers,
    begun: int | np.int64,
    flying: Integers,
    free: Integers,
    first: int,
    last: int,
) -> bool:
    """Whether what is in flight in a chain, with positions `first` to `last`, fits as it goes on; arguments as of `can_finish`.

    What waits behind a position needs room at all later ones, where that ahead of it has gone, and has freed the earlier ones.
    """
    positions = len(instance.device)
    missing = -free
    for q in range(last - 1, first - 1, -1):
        missing[instance.device[q + 1]] += (1 - flying[q + 1]) * instance.keep[q + 1]
        ahead = done[q + 1] + (q + 1 == begun)
        if done[q] + (q == begun) == ahead:  # nothing waits behind this one
            continue
        for device in range(len(free)):
            if missing[device] > 0:
                left = missing[device]
                for p in range(first, q + 1):
                    if instance.device[p] == device:
                        left -= max(0, ahead - done[positions + p]) * instance.keep[p]
                if left > 0:
                    return False
    return True
