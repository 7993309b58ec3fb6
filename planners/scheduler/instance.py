"""Schedule instance: a schedule problem as flat columns, the form that compiled searches take.

A position is a stage of a chain; positions are numbered chain after chain. Micro-batches of one size are alike, so an order is a
sequence of codes per device, `kind * positions + position`, and the micro-batch of an op is the number of ops of its code before
it. That each kind of each position takes its micro-batches in their order loses nothing: in any order the k-th op of a code
begins after k ops of every code that it waits for have ended, so the micro-batches can be named anew by their turn at every code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers
from planners.scheduler.schedule_problem import ScheduleProblem
from simulator import OpKind, Schedule, kernel

Codes = NDArray[np.int16]


Columns = tuple[Integers, Integers, Floats, Flags, Floats, Flags, Flags, Integers, Integers, Integers]
"""Columns of a `ScheduleInstance` by position, from `device` to `reserve`."""

FORWARD, INPUT, WEIGHT = 0, 1, 2
"""Kinds of codes: forward, input gradient (or full backward), weight gradient."""

MOST_MEMORY = 2**45
"""Units of memory of a limit, at most: whole numbers, of which no sum is inexact."""


class ScheduleInstance(NamedTuple):
    """A schedule problem by positions (P), devices (D) and codes (3 P).

    device, passes: int64 [P]; of each position its device, and the micro-batches of its chain
    seconds: float64 [3, P]; by kind of op
    split: bool [P]; whether the position has weight gradients of its own
    lag: float64 [P]; seconds of the transfer from the position before it in its chain
    first, last: bool [P]; whether it begins, or ends, its chain
    keep, freed: int64 [P]; units of memory that a forward keeps, and that its input gradient frees
    reserve: int64 [P]; units that later stages on its device need after its forward
    limit: int64 [D]; units of memory
    offsets: int64 [D + 1]; ops of each device; held: int64 [P], positions by device, at held_offsets: int64 [D + 1]
    takes: float64 [3 P]; seconds of each code; change: int64 [3 P]; units of memory that it takes, negative where it frees
    source, delay: int64, float64 [3 P]; code of the neighbouring stage whose transfer each code awaits (-1: none), and its
    seconds
    target: int64 [3 P]; code of the neighbouring stage that awaits each code, -1 for none
    """

    device: Integers
    passes: Integers
    seconds: Floats
    split: Flags
    lag: Floats
    first: Flags
    last: Flags
    keep: Integers
    freed: Integers
    reserve: Integers
    limit: Integers
    offsets: Integers
    held: Integers
    held_offsets: Integers
    takes: Floats
    change: Integers
    source: Integers
    delay: Floats
    target: Integers


def instance_of(problem: ScheduleProblem) -> ScheduleInstance:
    """The instance of a schedule problem."""
    chains, stages = len(problem.chains), problem.stages
    device = np.array(problem.chains, dtype=np.int64).ravel()
    stage = np.tile(np.arange(stages), chains)
    count = np.repeat(np.array(problem.counts(), dtype=np.int64), stages)
    seconds = np.tile(
        np.array([problem.each("forward"), problem.each("input_gradient"), problem.each("weight_gradient")]), chains
    )
    split = seconds[WEIGHT] > 0
    first, last = stage == 0, stage == stages - 1
    lag = np.tile(np.array([0.0, *problem.each("transfer")]), chains)
    lag[~first & (device == np.roll(device, 1))] = 0.0
    at_input, at_weight, limit = memory_units(problem)
    at_input, at_weight = np.tile(at_input, chains), np.tile(at_weight, chains)
    keep = at_input + at_weight
    reserve = np.array(
        [keep[(device == device[p]) & (stage > stage[p])].sum() for p in range(len(device))], dtype=np.int64
    )
    freed = np.where(split, at_input, keep)
    return from_positions((device, count, seconds, split, lag, first, last, keep, freed, reserve), limit)


def from_positions(columns: Columns, limit: Integers) -> ScheduleInstance:
    """The instance of these columns by position and these limits; its other columns follow from them."""
    device, count, seconds, split, lag, first, last, keep, freed, _ = columns
    devices, place, none = len(limit), np.arange(len(device)), np.full(len(device), -1)
    ops = np.bincount(device, weights=count * (2 + split), minlength=devices).astype(np.int64)
    ahead, back = np.where(first, -1, place - 1), np.where(last, -1, len(place) + place + 1)
    onward, down = np.where(last, -1, place + 1), np.where(first, -1, len(place) + place - 1)
    return ScheduleInstance(
        *columns,
        limit,
        offsets=np.concatenate([[0], np.cumsum(ops)]),
        held=np.argsort(device, kind="stable"),
        held_offsets=np.concatenate([[0], np.cumsum(np.bincount(device, minlength=devices))]),
        takes=seconds.ravel(),
        change=np.concatenate([keep, -freed, freed - keep]),
        source=np.concatenate([ahead, back, none]),
        delay=np.concatenate([lag, np.where(last, 0.0, np.roll(lag, -1)), np.zeros(len(lag))]),
        target=np.concatenate([onward, down, none]),
    )


def memory_units(problem: ScheduleProblem) -> tuple[Integers, Integers, Integers]:
    """Memory freed at the input and at the weight gradient (int64 [stages]), and limits (int64 [devices]), in whole units.

    The unit is the largest power of ten of which all are multiples; where none is small enough, what is kept is rounded up and
    limits down, but not below the least limit that suffices, so that an order within the limits in units is within them in bytes.
    """
    kept = np.array([problem.each("freed_at_input_gradient"), problem.each("freed_at_weight_gradient")])
    most = kept.sum() * problem.microbatches * len(problem.chains)  # a limit above all that is ever kept is none
    limit = np.minimum(np.array(problem.each("limit")), most)
    finest = math.floor(math.log10(MOST_MEMORY) - math.log10(most)) if most else 0
    powers = range(min(0, finest), finest)
    power = next((one for one in powers if _whole(_times(kept, one)) and _whole(_times(limit, one))), finest)
    first, second = (_units(row, np.ceil) for row in _times(kept, power))
    least = np.array(problem.held_by_one((first + second).tolist()), dtype=np.int64)
    return first, second, np.maximum(least, _units(_times(limit, power), np.floor))


def _times(values: Floats, power: int) -> Floats:
    """Values times a power of ten, which may itself be too large for a number."""
    return values * 10.0 ** (power // 2) * 10.0 ** (power - power // 2)


def _units(values: Floats, rounded: Callable[[Floats], Floats]) -> Integers:
    """Values as whole numbers, int64: those that are whole but for decimal rounding as such, others by `rounded`."""
    units: Integers = np.where(_near(values), np.round(values), rounded(values)).astype(np.int64)
    return units


def _near(values: Floats) -> Flags:
    """Whether each value is whole but for the rounding of decimal fractions."""
    near: Flags = np.abs(values - np.round(values)) <= 1e-12 * np.abs(values)
    return near


def _whole(values: Floats) -> bool:
    """Whether all values are whole but for the rounding of decimal fractions."""
    return bool(_near(values).all())


def peaks_of(instance: ScheduleInstance, codes: Codes, problem: ScheduleProblem) -> tuple[float, ...]:
    """Most bytes that each device holds at once in an order; codes: int16 [ops], device by device"""
    at_input, at_weight = (
        np.tile(np.array(problem.each(name)), len(problem.chains))
        for name in ("freed_at_input_gradient", "freed_at_weight_gradient")
    )
    freed = np.where(instance.split, at_input, at_input + at_weight)
    changes = np.concatenate([at_input + at_weight, -freed, freed - at_input - at_weight])
    return tuple(_peaks(codes, instance.offsets, changes).tolist())


@kernel()
def _peaks(codes: Codes, offsets: Integers, changes: Floats) -> Floats:
    """Highest running sum of the changes of each device's codes, from 0, float64 [devices]."""
    peaks = np.zeros(len(offsets) - 1)
    for device in range(len(peaks)):
        held = 0.0
        for row in range(offsets[device], offsets[device + 1]):
            held += changes[codes[row]]
            peaks[device] = max(peaks[device], held)
    return peaks


def schedule_of(instance: ScheduleInstance, codes: Codes, problem: ScheduleProblem, name: str) -> Schedule:
    """The schedule of an order; the micro-batches of each chain are numbered in a row, chain after chain."""
    positions = len(instance.device)
    chain, stage = np.divmod(np.arange(positions, dtype=np.int32), problem.stages)
    begins = np.concatenate([[0], np.cumsum(problem.counts())])[chain]
    kinds = np.repeat(
        np.array([OpKind.FORWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT], dtype=np.int8), positions
    )
    kinds[positions : 2 * positions][~instance.split] = OpKind.BACKWARD
    return Schedule(
        name,
        problem.stages,
        problem.microbatches,
        instance.offsets.copy(),
        np.tile(stage, 3)[codes],
        kinds[codes],
        _numbers(codes, np.tile(begins, 3).astype(np.int32)),
    )


@kernel()
def _numbers(codes: Codes, begins: NDArray[np.int32]) -> NDArray[np.int32]:
    """The micro-batch of each op: the ops of a code count up from the code's entry in `begins`."""
    number, following = np.empty(len(codes), dtype=np.int32), begins.copy()
    for row in range(len(codes)):
        number[row] = following[codes[row]]
        following[codes[row]] += 1
    return number


def codes_of(instance: ScheduleInstance, schedule: Schedule, problem: ScheduleProblem) -> Codes | None:
    """The codes of a schedule's order; None where its ops are not those of the problem on the same devices.

    A full backward becomes both gradients; a weight gradient that takes no seconds runs with its input gradient.
    """
    sizes = (schedule.stages, schedule.microbatches, schedule.ranks)
    if sizes != (problem.stages, problem.microbatches, problem.devices):
        return None
    begins = _first_positions(schedule, problem)
    if begins is None:
        return None
    codes = np.empty(int(instance.offsets[-1]), dtype=np.int16)
    columns = schedule.offsets, schedule.stage, schedule.kind, schedule.microbatch
    whole = _encode(instance, columns, schedule.device_of_rank(), begins, codes)
    return codes if whole else None


def _first_positions(schedule: Schedule, problem: ScheduleProblem) -> Integers | None:
    """The first position of the chain of each micro-batch, int64 [micro-batches]; None where they are not the problem's.

    The device of a micro-batch's first stage says its chain.
    """
    chain = np.zeros(problem.microbatches, dtype=np.int64)
    if len(problem.chains) > 1:
        chain[:] = -1
        begins = np.flatnonzero((schedule.stage == 0) & (schedule.kind == OpKind.FORWARD))
        rank = np.searchsorted(schedule.offsets, begins, side="right") - 1
        first = schedule.device_of_rank()[rank]
        for number, devices in enumerate(problem.chains):
            chain[schedule.microbatch[begins[first == devices[0]]]] = number
        if (chain < 0).any() or tuple(np.bincount(chain, minlength=len(problem.chains)).tolist()) != problem.counts():
            return None
    return chain * problem.stages


@kernel()
def _encode(
    instance: ScheduleInstance,
    columns: tuple[Integers, NDArray[np.int32], NDArray[np.int8], NDArray[np.int32]],
    device: NDArray[np.int32],
    begins: Integers,
    codes: Codes,
) -> bool:
    """Fill `codes` with those of a schedule's rows; True if they are all that each device runs, each as often as it should be.

    device: int32 [ranks]; of each list; begins: int64 [micro-batches]; first position of the chain of each
    """
    offsets, stages, kinds, microbatches = columns
    positions = len(instance.device)
    done = np.zeros(3 * positions, dtype=np.int64)
    for rank in range(len(device)):
        placed, end = instance.offsets[device[rank]], instance.offsets[device[rank] + 1]
        for row in range(offsets[rank], offsets[rank + 1]):
            position, kind = begins[microbatches[row]] + stages[row], kinds[row]
            split = instance.split[position]
            if kind > OpKind.WEIGHT_GRADIENT or instance.device[position] != device[rank]:
                return False
            if kind == OpKind.WEIGHT_GRADIENT and not split:
                continue
            first = FORWARD if kind == OpKind.FORWARD else (WEIGHT if kind == OpKind.WEIGHT_GRADIENT else INPUT)
            last = WEIGHT if kind == OpKind.BACKWARD and split else first
            for code in range(first * positions + position, last * positions + position + 1, positions):
                if placed == end or done[code] == instance.passes[position]:
                    return False
                codes[placed] = code
                done[code] += 1
                placed += 1
        if placed < end:
            return False
    return True
