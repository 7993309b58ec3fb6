"""Alternation: a straight pipeline runs a forward and an input gradient in turn, and weight gradients where there is a gap.

The heuristic that Qi et al. describe ("Zero Bubble Pipeline Parallelism", 2023, section 3.1), from its description: before its
first input gradient a stage runs the forwards for which there is time and memory, and stays at least one ahead of the next
stage; then every turn is a wave of forwards down and a wave of input gradients up. A gap takes weight gradients that fit into
it, and one that does not where else the stage would have idled longest of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from planners.scheduler.bound import CLOSE
from planners.scheduler.instance import ScheduleInstance
from planners.scheduler.order_replay import Trace
from simulator import kernel


class Alternation(NamedTuple):
    """Settings of the heuristic.

    waits: float64 [P]; most seconds that a stage waits for its first input gradient where there is a forward to run instead,
    after which that input gradient would have to wait
    lagging: a stage two micro-batches or more ahead of the next one leaves out a forward that would not be waited for
    filled: a gap takes a weight gradient that is longer also where the stage has idled less than another
    """

    waits: Floats
    lagging: bool
    filled: bool


def alternations(spare: Floats) -> Iterator[Alternation]:
    """All settings to try: stages wait never, always, or as long as they have seconds to spare, float64 [P]."""
    never, always = np.zeros(len(spare)), np.full(len(spare), np.inf)
    waits = (never, always, spare) if spare.any() else (never, always)
    yield from (Alternation(*chosen) for chosen in itertools.product(waits, (False, True), (True, False)))


@kernel(error_model="numpy")
def alternate(instance: ScheduleInstance, way: Alternation, trace: Trace) -> float:
    """Make the order of a straight pipeline by alternation, in `trace`, and return its makespan; infinite where memory stops
    it.
    """
    device_of, seconds, lag, keep, limit = (
        instance.device,
        instance.seconds,
        instance.lag,
        instance.keep,
        instance.limit,
    )
    positions, count = len(device_of), instance.passes[0]
    work, finish = trace.work, trace.finish
    work[: 3 * positions + 2 * len(limit)] = 0
    finish[:] = 0.0
    trace.left[:] = 0.0  # seconds idle since the first forward
    for p in range(positions):
        _append(instance, trace, p)
    more, arrives = np.zeros(positions, dtype=np.int64), 0.0
    for p in range(positions - 1, -1, -1):
        device, clock, takes = device_of[p], finish[device_of[p]], seconds[0, p]
        while p < positions - 1 and more[p] + 1 < count and (more[p] + 2) * keep[p] <= limit[device]:
            if clock >= arrives or (clock + takes > arrives and arrives - clock <= way.waits[p] * (1.0 + CLOSE)):
                break
            clock += takes
            more[p] += 1
        arrives = max(clock, arrives) + seconds[1, p] + lag[p]
    for p in range(1, positions):
        if 1 + more[p] < count:
            more[p] = max(0, min(more[p], more[p - 1] - 1))
        else:
            more[p] = min(more[p], more[p - 1])
    for p in range(positions):
        for _ in range(more[p]):
            _append(instance, trace, p)
    for turn in range(count):
        if turn > 0:
            _choose(instance, way, trace, more)
            for p in range(positions):
                if more[p] > 0:
                    device = device_of[p]
                    while work[3 * positions + device] + keep[p] > limit[device]:
                        if work[2 * positions + p] == work[positions + p] or not instance.split[p]:
                            return np.inf
                        _append(instance, trace, 2 * positions + p)
                    _fill(instance, way, trace, p, _arrival(instance, trace, p))
                    _append(instance, trace, p)
        for p in range(positions - 1, -1, -1):
            _fill(instance, way, trace, p, _arrival(instance, trace, positions + p))
            if p == 0 and work[0] == count:
                _fill(instance, way, trace, p, np.inf)
            _append(instance, trace, positions + p)
    for p in range(positions):
        _fill(instance, way, trace, p, np.inf)
    return float(finish.max())


@kernel(inner=True, borrows=True)
def _arrival(instance: ScheduleInstance, trace: Trace, code: int | np.int64) -> float:
    """Seconds at which what the next op of a code awaits from the neighbouring stage has come; 0 where it awaits nothing."""
    before = instance.source[code]
    if before < 0:
        return 0.0
    return float(trace.ends[before * instance.passes[0] + trace.work[code]] + instance.delay[code])


@kernel(inner=True, borrows=True)
def _append(instance: ScheduleInstance, trace: Trace, code: int | np.int64) -> None:
    """Run one more op of a code as soon as it may run."""
    positions, count = len(instance.device), instance.passes[0]
    p, number = code % positions, trace.work[code]
    device, ready = instance.device[p], _arrival(instance, trace, code)
    now = trace.finish[device]
    if trace.work[p] > 0:
        trace.left[device] += max(0.0, ready - now)
    end = max(now, ready) + instance.takes[code]
    trace.finish[device] = end
    if code < 2 * positions:
        trace.ends[code * count + number] = end
    trace.work[3 * positions + device] += instance.change[code]
    rows = 3 * positions + len(instance.limit) + device
    trace.order[instance.offsets[device] + trace.work[rows]] = code
    trace.work[rows] += 1
    trace.work[code] = number + 1


@kernel(inner=True, borrows=True)
def _fill(instance: ScheduleInstance, way: Alternation, trace: Trace, p: int, ready: float) -> None:
    """Run the weight gradients that fit into a gap, which ends when what the device runs next is ready."""
    positions, device = len(instance.device), instance.device[p]
    while instance.split[p] and trace.work[2 * positions + p] < trace.work[positions + p]:
        gap = ready - trace.finish[device]
        fits = instance.seconds[2, p] <= gap
        idles_longest = gap > trace.left.max() - trace.left[device]
        if not fits and not (gap > 0.0 and (way.filled or idles_longest)):
            return
        _append(instance, trace, 2 * positions + p)
        if not fits:
            return


@kernel(inner=True)
def _choose(instance: ScheduleInstance, way: Alternation, trace: Trace, more: Integers) -> None:
    """Fill `more` with 1 for positions that run a forward in this turn, else 0."""
    positions, work, finish = len(instance.device), trace.work, trace.finish
    for p in range(positions - 1, -1, -1):
        more[p] = 1 if work[p] < instance.passes[0] else 0
        if p + 1 == positions or more[p] == 0:
            continue
        device, other = instance.device[p], instance.device[p + 1]
        more[p] = more[p + 1] if work[p + 1] < instance.passes[0] else 1
        if way.lagging and work[p] >= work[p + 1] + 2:
            # when the next stage's input gradient of this turn arrives
            arrives = finish[other] + instance.seconds[0, p + 1] + instance.seconds[1, p + 1] + instance.lag[p + 1]
            left = instance.keep[p] - instance.freed[p]
            short = work[3 * positions + device] + instance.keep[p] - instance.limit[device]
            weights = -(-short // left) if short > 0 and left > 0 else 0
            weights = min(weights, work[positions + p] - work[2 * positions + p])
            late = finish[device] + instance.seconds[0, p] + weights * instance.seconds[2, p] > arrives
            idle = arrives - finish[device] <= trace.left.max() - trace.left[device]
            if finish[device] >= arrives or (late and idle):
                more[p] = 0
