"""Squeezed blocks: the passes of a building block that every micro-batch repeats, with each device's idle slots taken out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Integers
from simulator.compiled.numba_kernels import kernel

Letters = NDArray[np.uint8]

DOWN, UP, UP_INPUT, DOWN_INPUT, UP_WEIGHT, DOWN_WEIGHT = range(6)
"""The letters F f i I w W of `simulator.schedules.v_shaped`."""


class _Devices(NamedTuple):
    """State of P devices while `squeezed` runs, with N passes of M micro-batches each.

    order: uint8 [P, N]; passes as planned; waiting: bool [P, N]; those that have not run
    places: int64 [P, 6, M]; where in the order each letter's passes stand; ends: int64 [P, 6, M]; the slots behind those done
    done: int64 [P, 6]; passes of each letter that have run
    head: int64 [P]; the first place that waits; held: int64 [P]; stages' micro-batches that a device holds
    """

    order: Letters
    waiting: Flags
    places: Integers
    ends: Integers
    done: Integers
    head: Integers
    held: Integers


@kernel()
def squeezed(begins: Integers, period: int, microbatches: int, limit: int) -> Letters:
    """The passes of each device, slot after slot, in the order of `_plan` where that has no device wait needlessly.

    begins: int64 [P, 4]; slots of the passes F f i I of the first micro-batch; limit: stages' micro-batches held at most
    Returns uint8 [P, 6 x micro-batches].
    """
    devices, passes = len(begins), 6 * microbatches
    run = _Devices(
        np.empty((devices, passes), dtype=np.uint8),
        np.ones((devices, passes), dtype=np.bool_),
        np.empty((devices, 6, microbatches), dtype=np.int64),
        np.empty((devices, 6, microbatches), dtype=np.int64),
        np.zeros((devices, 6), dtype=np.int64),
        np.zeros(devices, dtype=np.int64),
        np.zeros(devices, dtype=np.int64),
    )
    for device in range(devices):
        _plan(begins[device], period, run.order[device], run.places[device])
    ran, left, slot = np.empty((devices, passes), dtype=np.uint8), devices * passes, 0
    while left > 0:
        for device in range(devices):
            place = _next_place(run, device, slot, limit)
            if place >= 0:
                letter = run.order[device, place]
                ran[device, run.done[device].sum()] = letter
                run.waiting[device, place] = False
                while run.head[device] < passes and not run.waiting[device, run.head[device]]:
                    run.head[device] += 1
                run.held[device] += _change(letter)
                run.ends[device, letter, run.done[device, letter]] = slot + 1
                run.done[device, letter] += 1
                left -= 1
        slot += 1
    return ran


@kernel()
def _plan(begins: Integers, period: int, order: Letters, places: Integers) -> None:
    """The passes of a device where every micro-batch begins a period later, weight gradients in the first free slots.

    order: uint8 [6 M] and places: int64 [6, M], written
    """
    microbatches = len(order) // 6
    count = np.zeros(6, dtype=np.int64)
    owed, settled, due = np.empty(2 * microbatches, dtype=np.uint8), 0, 0
    placed = slot = 0
    while placed < len(order):
        letter = -1
        for one in range(4):
            after = slot - begins[one]
            if after >= 0 and after % period == 0 and after // period < microbatches:
                letter = one
        if letter in (UP_INPUT, DOWN_INPUT):
            owed[due] = letter + 2
            due += 1
        elif letter < 0 and settled < due:
            letter = owed[settled]
            settled += 1
        if letter >= 0:
            order[placed] = letter
            places[letter, count[letter]] = placed
            count[letter] += 1
            placed += 1
        slot += 1


@kernel(inner=True)
def _next_place(run: _Devices, device: int, slot: int, limit: int) -> int:
    """Index in the planned order of the pass to run now, -1 for none: the first that is left, with two exceptions.

    Where that waits and no I is done yet, a forward that fits in memory beside all that is planned before it; after the last F,
    whichever pass is ready, and weight gradients last.
    """
    order, microbatches = run.order[device], run.ends.shape[2]
    if run.done[device, DOWN] == microbatches:
        for kinds in range(2):  # passes of the pipeline before weight gradients
            first = len(order)
            for letter in range(UP, UP_WEIGHT) if kinds == 0 else range(UP_WEIGHT, DOWN_WEIGHT + 1):
                if run.done[device, letter] < microbatches and _ready(run, device, letter, slot, limit):
                    first = min(first, run.places[device, letter, run.done[device, letter]])
            if first < len(order):
                return first
        return -1
    if _ready(run, device, order[run.head[device]], slot, limit):
        return int(run.head[device])
    forward = _ready(run, device, DOWN, slot, limit) or _ready(run, device, UP, slot, limit)
    if run.done[device, DOWN_INPUT] > 0 or not forward:
        return -1
    most = held = run.held[device]
    for place in range(run.head[device], len(order)):
        letter = order[place]
        if not run.waiting[device, place]:
            continue
        if letter <= UP and (most == limit or _ready(run, device, letter, slot, limit)):
            return place if most < limit else -1
        held += _change(letter)
        most = max(most, held)
    return -1


@kernel(inner=True)
def _change(letter: int) -> int:
    """By how much a pass changes the number of micro-batches that a device holds."""
    return 1 if letter <= UP else (-1 if letter >= UP_WEIGHT else 0)


@kernel(inner=True)
def _ready(run: _Devices, device: int, letter: int, slot: int, limit: int) -> bool:
    """Whether the next pass of a letter can run: it has what it waits for, and a forward has memory."""
    number = run.done[device, letter]
    if letter <= UP and run.held[device] == limit:
        return False
    last = len(run.held) - 1
    if letter == DOWN:
        source, before = device - 1, DOWN
    elif letter == UP:
        source, before = (device, DOWN) if device == last else (device + 1, UP)
    elif letter == UP_INPUT:
        source, before = (device, UP) if device == 0 else (device - 1, UP_INPUT)
    elif letter == DOWN_INPUT:
        source, before = (device, UP_INPUT) if device == last else (device + 1, DOWN_INPUT)
    else:
        source, before = device, letter - 2
    return source < 0 or (number < run.done[source, before] and run.ends[source, before, number] <= slot)
