"""Building blocks: when one micro-batch passes each stage, repeated every period, gives the order of a whole stream.

Only the order of a block counts: devices run it as soon as they can, and weight gradients where `replay` places them. (Qi et al.
2024, "Pipeline Parallelism with Controllable Memory", build their schedules so.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from planners.scheduler.instance import MOST_MEMORY, Codes, ScheduleInstance
from planners.scheduler.order_replay import Trace, replay
from simulator import kernel

LEAST, MOST, STEP = 100, 200, 2
"""Periods to try, in per cent of the least possible one, which keeps the busiest device busy: from LEAST to MOST by STEP."""

TOLERANCES = (0.0, 0.5, 1.0)
"""Tolerances of `replay` to try."""

HOPS, ENTRIES = (0.0, 0.0, 0.1, 0.2, 0.3), (0.0, 0.0, 0.1, 0.5, 1.0)
"""Random pauses, at most, in periods: from device to device (HOPS), and before a run of devices (ENTRIES)."""


class BuildingBlock(NamedTuple):
    """When the first micro-batch passes each position; the next ones follow it a period apart.

    starts: float64 [2, P]; of forwards and input gradients
    period: seconds
    tolerance: of `replay`
    """

    starts: Floats
    period: float
    tolerance: float


def blocks_of(instance: ScheduleInstance) -> Iterator[BuildingBlock]:
    """Blocks without pauses, at the two shortest periods at which what they hold fits into memory."""
    pauses = np.zeros((2, len(instance.device)))
    for weights in (True, False):
        starts, longer = np.zeros_like(pauses), np.zeros_like(pauses)
        percent = first_fit(instance, LEAST, pauses, weights, starts)
        another = first_fit(instance, percent + STEP, pauses, weights, longer)
        for found, times in ((percent, starts), (another, longer)):
            if found <= MOST:
                yield from (
                    BuildingBlock(times, least_period(instance) * found / 100, tolerance) for tolerance in TOLERANCES
                )


def warm_ups(instance: ScheduleInstance, stages: int) -> Iterator[BuildingBlock]:
    """Blocks with as many forwards before the first input gradient as there are stages to go, or more, as far as memory holds
    them.
    """
    to_go = stages - np.arange(len(instance.device)) % stages
    period = least_period(instance)
    held = np.minimum(instance.limit[instance.device], MOST_MEMORY) // np.maximum(1, instance.keep)
    for ahead in (to_go, (3 * to_go + 1) // 2, 2 * to_go - 1):
        starts = np.stack([np.zeros(len(to_go)), (np.clip(ahead, 1, np.maximum(1, held)) - 0.5) * period])
        yield from (BuildingBlock(starts, period, tolerance) for tolerance in TOLERANCES)


def paused_blocks(instance: ScheduleInstance, number: int, seed: int) -> Iterator[BuildingBlock]:
    """Blocks with random pauses: one at each hop of a run of neighbouring devices, another before the run."""
    random = np.random.default_rng(seed)
    hops = np.abs(np.diff(instance.device)) != 1
    begins = instance.first | np.concatenate([[True], hops])
    enters = np.stack([begins, np.append(begins[1:], True)])  # input gradients come from the other side
    run = np.cumsum(begins) - 1
    shape = (number, 2, int(run[-1]) + 1)
    hop, entry = random.choice(HOPS, shape) * random.random(shape), random.choice(ENTRIES, shape) * random.random(shape)
    pauses = least_period(instance) * np.where(enters, entry[:, :, run], hop[:, :, run])
    for turn in range(number):
        starts = np.zeros((2, len(run)))
        percent = first_fit(instance, LEAST, pauses[turn], bool(turn % 2), starts)
        if percent <= MOST:
            yield BuildingBlock(starts, least_period(instance) * percent / 100, TOLERANCES[turn % len(TOLERANCES)])


@kernel()
def least_period(instance: ScheduleInstance) -> float:
    """Seconds that the busiest device takes for a micro-batch of each of its chains."""
    busy = np.zeros(len(instance.limit))
    for p in range(len(instance.device)):
        busy[instance.device[p]] += instance.seconds[0, p] + instance.seconds[1, p] + instance.seconds[2, p]
    return float(busy.max())


@kernel(borrows=True)
def first_fit(instance: ScheduleInstance, percent: int, pauses: Floats, weights: bool, starts: Floats) -> int:
    """The first period, from `percent` of the least one on, at which the block fits into memory, in per cent; above MOST if there
    is none.

    pauses, weights, starts: as of `fit_block`
    """
    least = least_period(instance)
    if least == 0.0:  # what takes no time has no pace
        return MOST + 1
    while percent <= MOST:
        fit_block(instance, least * percent / 100, pauses, weights, starts)
        if fits(instance, starts, least * percent / 100):
            break
        percent += STEP
    return percent


def replay_block(instance: ScheduleInstance, block: BuildingBlock, trace: Trace) -> float:
    """Replay the stream of a block, whose order comes into `trace`, and return its makespan; infinite where it breaks a limit."""
    passes = np.bincount(instance.device, weights=2 * instance.passes, minlength=len(instance.limit)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(passes)])
    codes = np.empty(offsets[-1], dtype=np.int16)
    unroll(instance, block.starts, block.period, codes, offsets)
    return float(replay(instance, codes, offsets, True, block.tolerance, trace, False))


@kernel(error_model="numpy")
def unroll(instance: ScheduleInstance, starts: Floats, period: float, codes: Codes, offsets: Integers) -> None:
    """Fill `codes`, at `offsets`: int64 [D + 1], with the order of a block: forwards and input gradients by their time."""
    positions = len(instance.device)
    done = np.zeros(2 * positions, dtype=np.int64)
    for device in range(len(instance.limit)):
        begins, ends = instance.held_offsets[device], instance.held_offsets[device + 1]
        kept = 0
        for i in range(offsets[device], offsets[device + 1]):
            soonest, chosen = np.inf, -1
            for h in range(begins, ends):
                p = instance.held[h]
                if done[p] < instance.passes[p] and kept + instance.keep[p] <= instance.limit[device]:
                    time = starts[0, p] + period * done[p]
                    if time < soonest:
                        soonest, chosen = time, p
                if done[positions + p] < done[p]:
                    time = starts[1, p] + period * done[positions + p]
                    if time < soonest:
                        soonest, chosen = time, positions + p
            codes[i] = chosen
            done[chosen] += 1
            kept += instance.keep[chosen] if chosen < positions else -instance.keep[chosen - positions]


@kernel(inner=True, error_model="numpy")
def fit_block(instance: ScheduleInstance, period: float, pauses: Floats, weights: bool, starts: Floats) -> None:
    """Fill `starts` with the block that passes each chain as early as its devices are free of its other passes.

    pauses: float64 [2, P]; seconds that each pass waits after it could start
    weights: whether a device must be free for the weight gradient behind an input gradient, too
    """
    positions = len(instance.device)
    busy_from, busy_to = np.empty((len(instance.limit), 2 * positions)), np.empty((len(instance.limit), 2 * positions))
    busy = np.zeros(len(instance.limit), dtype=np.int64)
    first = 0
    while first < positions:
        last = first
        while not instance.last[last]:
            last += 1
        ready = 0.0
        for turn in range(2 * (last - first + 1)):
            kind = 0 if first + turn <= last else 1
            p = first + turn if kind == 0 else 2 * last + 1 - first - turn
            if turn > 0:
                ready += instance.lag[p] if kind == 0 else (instance.lag[p + 1] if p < last else 0.0)
            device = instance.device[p]
            takes = instance.seconds[kind, p] + (instance.seconds[2, p] if weights and kind == 1 else 0.0)
            begins = ready + pauses[kind, p]
            tries = 0
            while tries <= busy[device]:
                clash = False
                for b in range(busy[device]):
                    # overlap of [begins, begins + takes) with a busy interval, both modulo the period
                    after = (busy_from[device, b] - begins) % period
                    length = busy_to[device, b] - busy_from[device, b]
                    if after < takes - 1e-9 * period or after + length > period * (1 + 1e-9):
                        begins += (after + length) % period
                        clash = True
                        break
                if not clash:
                    break
                tries += 1
            busy_from[device, busy[device]], busy_to[device, busy[device]] = begins, begins + takes
            busy[device] += 1
            starts[kind, p] = begins
            ready = begins + instance.seconds[kind, p]
        first = last + 1


@kernel(inner=True, error_model="numpy")
def fits(instance: ScheduleInstance, starts: Floats, period: float) -> bool:
    """Whether the stream of a block stays within the limits where weight gradients follow their input gradients at once."""
    for device in range(len(instance.limit)):
        begins, ends = instance.held_offsets[device], instance.held_offsets[device + 1]
        for h in range(begins, ends):
            now = starts[0, instance.held[h]]
            kept = 0
            for other in range(begins, ends):
                p = instance.held[other]
                lives = starts[1, p] + instance.seconds[1, p]
                begun = np.floor((now - starts[0, p]) / period + 1e-9)
                ended = np.floor((now - lives) / period + 1e-9)
                kept += int(begun - ended) * instance.keep[p]
                ended_too = np.floor((now - lives - instance.seconds[2, p]) / period + 1e-9)
                kept += int(ended - ended_too) * (instance.keep[p] - instance.freed[p])
            if kept > instance.limit[device]:
                return False
    return True
