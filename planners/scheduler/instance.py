"""Instance: a schedule problem as flat columns, the form that compiled searches take.

A position is a stage of a chain; positions are numbered chain after chain. Micro-batches of one size are alike, so an order is a
sequence of codes a device, `kind * positions + position`, and the micro-batch of an op is the number of ops of its code before.
That each kind of each position takes its micro-batches in their order loses nothing: in any order the k-th op of a code begins
after k ops of every code that it waits for have ended, so the micro-batches can be named anew by their turn at every code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planners.scheduler.problem import ScheduleProblem
from simulator import OpKind, Schedule

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Codes = NDArray[np.int16]

FORWARD, INPUT, WEIGHT = 0, 1, 2
"""Kinds of codes: forward, input gradient (or full backward), weight gradient."""

MOST_MEMORY = 2**45
"""Units of memory that a limit has at most: whole numbers, of which no sum is inexact."""


class Instance(NamedTuple):
    """The problem by positions (P) and devices (D).

    device, passes: int64 [P]; of the position; micro-batches of its chain
    seconds: float64 [3, P]; of each kind
    split: bool [P]; the position has weight gradients of its own
    lag: float64 [P]; transfer from the position before it in its chain
    first, last: bool [P]; whether it begins, ends its chain
    keep, freed: int64 [P]; units of memory that a forward keeps, and that its input gradient frees
    reserve: int64 [P]; what later stages on its device need after its forward
    limit: int64 [D]
    offsets: int64 [D + 1]; ops of each device; held: int64 [P], positions by device, at held_offsets: int64 [D + 1]
    """

    device: Integers
    passes: Integers
    seconds: Floats
    split: NDArray[np.bool_]
    lag: Floats
    first: NDArray[np.bool_]
    last: NDArray[np.bool_]
    keep: Integers
    freed: Integers
    reserve: Integers
    limit: Integers
    offsets: Integers
    held: Integers
    held_offsets: Integers


def instance_of(problem: ScheduleProblem) -> Instance:
    """The flat form of a problem."""
    chains, stages, devices = len(problem.chains), problem.stages, problem.devices
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
    ops = np.bincount(device, weights=count * (2 + split), minlength=devices).astype(np.int64)
    return Instance(
        device,
        count,
        seconds,
        split,
        lag,
        first,
        last,
        keep,
        np.where(split, at_input, keep),
        reserve,
        limit,
        np.concatenate([[0], np.cumsum(ops)]),
        np.argsort(device, kind="stable"),
        np.concatenate([[0], np.cumsum(np.bincount(device, minlength=devices))]),
    )


def memory_units(problem: ScheduleProblem) -> tuple[Integers, Integers, Integers]:
    """Memory freed at the input and at the weight gradient (int64 [stages]) and limits (int64 [devices]) as whole numbers.

    The unit is the largest power of ten of which all are multiples; where none is small enough, what is kept is rounded up and
    limits down, but not below the least that would do, so that an order within the limits in units is within them in bytes.
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
    """Values that are whole but for the rounding of decimal fractions, and others rounded, int64."""
    units: Integers = np.where(_near(values), np.round(values), rounded(values)).astype(np.int64)
    return units


def _near(values: Floats) -> NDArray[np.bool_]:
    """Which values are whole but for the rounding of decimal fractions."""
    near: NDArray[np.bool_] = np.abs(values - np.round(values)) <= 1e-12 * np.abs(values)
    return near


def _whole(values: Floats) -> bool:
    return bool(_near(values).all())


def peaks_of(instance: Instance, codes: Codes, problem: ScheduleProblem) -> tuple[float, ...]:
    """Most bytes that each device holds at once in an order: int16 [ops], device by device."""
    kind, position = np.divmod(codes.astype(np.int64), len(instance.device))
    at_input, at_weight = (
        np.tile(np.array(problem.each(name)), len(problem.chains))
        for name in ("freed_at_input_gradient", "freed_at_weight_gradient")
    )
    freed = np.where(instance.split, at_input, at_input + at_weight)
    change = np.array([at_input + at_weight, -freed, freed - at_input - at_weight])[kind, position]
    rows = pairwise(instance.offsets.tolist())
    return tuple(float(np.cumsum(change[begin:end]).max(initial=0.0)) for begin, end in rows)


def schedule_of(instance: Instance, codes: Codes, problem: ScheduleProblem, name: str) -> Schedule:
    """An order as a schedule; micro-batches of a chain are numbered in a row, chain after chain."""
    positions = len(instance.device)
    kind, position = np.divmod(codes.astype(np.int64), positions)
    chain, stage = np.divmod(position, problem.stages)
    begins = np.concatenate([[0], np.cumsum(problem.counts())])[chain]
    turn = np.empty(len(codes), dtype=np.int64)
    for code in range(3 * positions):
        rows = np.flatnonzero(codes == code)
        turn[rows] = np.arange(len(rows))
    letters = np.array([OpKind.FORWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT])[kind]
    letters = np.where((kind == INPUT) & ~instance.split[position], OpKind.BACKWARD, letters)
    return Schedule(
        name,
        problem.stages,
        problem.microbatches,
        instance.offsets.copy(),
        stage.astype(np.int32),
        letters.astype(np.int8),
        (turn + begins).astype(np.int32),
    )


def codes_of(instance: Instance, schedule: Schedule, problem: ScheduleProblem) -> Codes | None:
    """The codes of a schedule's order, or None where its ops are not those of the problem on its devices."""
    if (schedule.stages, schedule.microbatches) != (problem.stages, problem.microbatches):
        return None
    kind = np.select(
        [schedule.kind == OpKind.FORWARD, schedule.kind == OpKind.WEIGHT_GRADIENT],
        [FORWARD, WEIGHT],
        np.where(np.isin(schedule.kind, [OpKind.BACKWARD, OpKind.INPUT_GRADIENT]), INPUT, -1),
    )
    device = schedule.device_of_rank()[schedule.rank_of_row()]
    first = np.zeros(schedule.microbatches, dtype=np.int64)  # device of each micro-batch's first stage says its chain
    begins = (schedule.stage == 0) & (kind == FORWARD)
    first[schedule.microbatch[begins]] = device[begins]
    chain_of = {chain[0]: number for number, chain in enumerate(problem.chains)}
    if (kind < 0).any() or not set(first.tolist()) <= set(chain_of):
        return None
    chain = np.array([chain_of[one] for one in first.tolist()], dtype=np.int64)
    if tuple(np.bincount(chain, minlength=len(problem.chains)).tolist()) != problem.counts():
        return None
    position = chain[schedule.microbatch] * problem.stages + schedule.stage
    if schedule.ranks != problem.devices or (instance.device[position] != device).any():
        return None
    # a full backward runs as both gradients, a weight gradient that takes nothing with its input gradient
    split = instance.split[position]
    times = np.where((kind == WEIGHT) & ~split, 0, np.where((schedule.kind == OpKind.BACKWARD) & split, 2, 1))
    row = np.repeat(np.arange(len(kind)), times)
    second = np.concatenate([[False], row[1:] == row[:-1]])
    codes: Codes = (np.where(second, WEIGHT, kind[row]) * len(instance.device) + position[row]).astype(np.int16)
    return codes
