"""Letter kernels: micro-batches and pauses of V-shaped orders, compiled; loaded when the first such order is built."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers
from simulator.compiled.numba_kernels import kernel
from simulator.schedules.ops import OpKind

_GRADIENTS, _WEIGHTS = 2, 4
"""Numbers of the letters F, f, i, I, w, W of which input gradients, and weight gradients, begin."""

_FORWARD, _INPUT, _WEIGHT = int(OpKind.FORWARD), int(OpKind.INPUT_GRADIENT), int(OpKind.WEIGHT_GRADIENT)


@kernel()
def microbatches_of(device: Integers, up: Flags, kind: NDArray[np.int8]) -> Integers:
    """The micro-batch of each op, int64 [ops]."""
    found, split, begin = np.zeros(len(device), dtype=np.int64), np.zeros((2, len(device)), dtype=np.int64), 0
    while begin < len(device):
        forwards, backwards, inputs, weights = np.zeros((4, 2), dtype=np.int64)
        end = begin
        while end < len(device) and device[end] == device[begin]:
            side = int(up[end])
            if kind[end] == _FORWARD:
                found[end] = forwards[side]
                forwards[side] += 1
            elif kind[end] != _WEIGHT:
                found[end] = backwards[side]
                backwards[side] += 1
            if kind[end] == _INPUT:
                split[side, inputs[side]] = found[end]
                inputs[side] += 1
            end += 1
        for op in range(begin, end):
            side = int(up[op])
            if kind[op] == _WEIGHT:
                found[op] = split[side, weights[side]]
                weights[side] += 1
        begin = end
    return found


@kernel()
def run_passes(
    letters: Integers, offsets: Integers, seconds: Floats, limit: int, share: float
) -> tuple[float, Integers, Integers]:
    """The makespan of devices that run their passes in order, the letters that they run, and how many of each device.

    letters: by their numbers, int64 [letters], device by device; offsets: where each begins, int64 [devices + 1]
    share: as in `simulator.schedules.timed_v`, negative for None; the letters that are run are int64 [devices, most of a device]
    """
    forward, gradient, weight, transfer = seconds
    takes, kept = np.array([forward, forward, gradient, gradient, weight, weight]), np.array([1, 1, 0, 0, -1, -1])
    count = len(offsets) - 1
    last, most = count - 1, 2 * np.diff(offsets).max()
    ends, done = np.zeros((count, 6, most)), np.zeros((count, 6), dtype=np.int64)
    ran, due = np.zeros((2, count, most), dtype=np.int64)
    lengths, first_due, behind, held = np.zeros((4, count), dtype=np.int64)
    place, free = offsets[:-1].copy(), np.zeros(count)
    events = [(0.0, device) for device in range(count)]
    while len(events):
        now, device = heapq.heappop(events)
        if now < free[device]:
            continue
        head = letters[place[device]] if place[device] < offsets[device + 1] else -1
        known, there = False, 0.0  # when what the next pass waits for arrives, where that has begun
        if head >= 0:
            source, letter = _source(device, head, last)
            if source < 0:
                known = True
            elif done[device, head] < done[source, letter]:
                known, there = True, ends[source, letter, done[device, head]] + transfer * (source != device)
        full = share >= 0.0 and head >= 0 and kept[max(head, 0)] > 0 and held[device] == limit
        runs = head if known and there <= now and not full else -1
        if runs < 0 and share >= 0.0 and first_due[device] < behind[device]:
            soonest = now + takes[head] + transfer if head >= 0 and not known else there
            if head < 0 or full or (soonest > now and soonest - now >= share * weight):
                runs = due[device, first_due[device]]
                first_due[device] += 1
        if runs < 0:
            if known and there > now:
                heapq.heappush(events, (there, device))
            continue
        if share < 0.0 or runs < _WEIGHTS:
            place[device] += 1
        free[device] = end = now + takes[runs]
        ends[device, runs, done[device, runs]] = end
        done[device, runs] += 1
        held[device] += kept[runs]
        if _GRADIENTS <= runs < _WEIGHTS:
            due[device, behind[device]] = runs + 2
            behind[device] += 1
        ran[device, lengths[device]] = runs
        lengths[device] += 1
        heapq.heappush(events, (end, device))
        for other in (device - 1, device + 1):
            if 0 <= other <= last and free[other] <= now:  # it waits, and now knows for how long
                heapq.heappush(events, (now, other))
    whole = lengths.sum() == 3 * (letters < _WEIGHTS).sum() // 2
    return (free.max() if whole else np.inf), ran, lengths


@kernel(inner=True, borrows=True)
def _source(device: int, letter: int, last: int) -> tuple[int, int]:
    """The device and the letter of the pass that a pass of a device waits for; -1 for none."""
    if letter == 0:  # F
        return device - 1, 0
    if letter == 1:  # f
        return (last, 0) if device == last else (device + 1, 1)
    if letter == 2:  # i
        return (0, 1) if device == 0 else (device - 1, 2)
    if letter == 3:  # I
        return (last, 2) if device == last else (device + 1, 3)
    return -1, 0
