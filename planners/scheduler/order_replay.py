"""Replay of an order by counting, with weight gradients placed on the way where the order leaves them out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planners.scheduler.instance import Codes, Floats, Integers, ScheduleInstance
from simulator import kernel


class Trace(NamedTuple):
    """What a replay leaves, and room for it to work in; N ops, P positions, D devices, M micro-batches of a chain at most.

    order: int16 [N]; the whole order, at the instance's offsets
    cause: int32 [N]; row of the op of another stage that each op waited for, -1 where it began when its device was free
    ends: float64 [2 P M]; ends of the forwards and input gradients of each position
    rows: int32 [2 P M]; their rows in `order`
    places: int32 [N]; where each row's op stands among the codes that were replayed, -1 where it was left out of them
    finish: float64 [D]; end of the last op of each device; start: float64 [D], of the first
    work: int64 [3 P + 5 D]
    """

    order: Codes
    cause: NDArray[np.int32]
    ends: Floats
    rows: NDArray[np.int32]
    places: NDArray[np.int32]
    finish: Floats
    start: Floats
    work: Integers


def trace_of(instance: ScheduleInstance) -> Trace:
    """Room for replays of an instance."""
    ops, positions, devices = int(instance.offsets[-1]), len(instance.device), len(instance.limit)
    entries = 2 * positions * int(instance.passes.max())
    return Trace(
        np.zeros(ops, dtype=np.int16),
        np.zeros(ops, dtype=np.int32),
        np.zeros(entries),
        np.zeros(entries, dtype=np.int32),
        np.zeros(ops, dtype=np.int32),
        np.zeros(devices),
        np.zeros(devices),
        np.zeros(3 * positions + 5 * devices, dtype=np.int64),
    )


@kernel(error_model="numpy")
def replay(
    instance: ScheduleInstance, codes: Codes, offsets: Integers, fill: bool, tolerance: float, trace: Trace, path: bool
) -> float:
    """Makespan of an order, infinite for one that deadlocks or breaks a limit.

    codes: int16, those of device d at offsets[d]:offsets[d + 1], int64 [D + 1]
    fill: weight gradients are left out of `codes`; each device runs the one that waits longest where it fits before the next op
        is ready (but for `tolerance` of its seconds), where a forward lacks the memory, and at the end
    path: whether `cause`, `rows` and `places` of the trace are wanted
    """
    device_of, _, seconds, split, lag, first, last, keep, freed, _, limit, rows_at, held, held_at = instance
    order, cause, ends, rows, places, finish, start, work = trace
    positions, devices = len(device_of), len(limit)
    most = len(ends) // (2 * positions)
    done = work[: 3 * positions]
    done[:] = 0
    at = work[3 * positions : 3 * positions + devices]
    row_of = work[3 * positions + devices : 3 * positions + 2 * devices]
    memory = work[3 * positions + 2 * devices : 3 * positions + 3 * devices]
    blocked = work[3 * positions + 3 * devices : 3 * positions + 4 * devices]
    stack = work[3 * positions + 4 * devices : 3 * positions + 5 * devices]
    for device in range(devices):
        at[device], row_of[device], memory[device] = offsets[device], rows_at[device], 0
        finish[device], blocked[device], stack[device] = 0.0, -1, devices - 1 - device
    height = devices
    while height > 0:
        height -= 1
        device = stack[height]
        now, kept, i, row = finish[device], memory[device], at[device], row_of[device]
        last_i = offsets[device + 1]
        blocked[device] = -1
        while True:
            ready, needed, short, kind, position, code = np.inf, 0, 0, 2, -1, -1
            if i < last_i:
                code = int(codes[i])
                kind = 0 if code < positions else (1 if code < 2 * positions else 2)
                position = code - kind * positions
                number = done[code]
                if kind == 0:
                    ready = 0.0
                    if not first[position]:
                        if done[position - 1] <= number:
                            blocked[device] = code
                            break
                        needed = (position - 1) * most + number
                        ready = ends[needed] + lag[position]
                    short = kept + keep[position] - limit[device]
                elif kind == 1:
                    if done[position] <= number:
                        return np.inf
                    ready = 0.0
                    if not last[position]:
                        if done[code + 1] <= number:
                            blocked[device] = code
                            break
                        needed = (code + 1) * most + number
                        ready = ends[needed] + lag[position + 1]
                else:
                    if done[code - positions] <= number:
                        return np.inf
                    ready = 0.0
            elif not fill:
                break
            if fill:
                # the weight gradient that waits longest, if there is need of it or time for it
                chosen, oldest = -1, np.inf
                for h in range(held_at[device], held_at[device + 1]):
                    p = held[h]
                    if split[p] and done[2 * positions + p] < done[positions + p]:
                        ended = ends[(positions + p) * most + done[2 * positions + p]]
                        fits = short > 0 or now + seconds[2, p] <= ready + tolerance * seconds[2, p]
                        if fits and ended < oldest:
                            chosen, oldest = p, ended
                if chosen >= 0:
                    kind, position, code, ready = 2, chosen, 2 * positions + chosen, 0.0
                    if path:
                        places[row] = -1
                elif i >= last_i:
                    break
            if not fill or kind < 2:
                if path:
                    places[row] = i
                i += 1
            if kind == 0:
                if kept + keep[position] > limit[device]:
                    return np.inf
                kept += keep[position]
            elif kind == 1:
                kept -= freed[position]
            else:
                kept -= keep[position] - freed[position]
            if ready > now:
                begins = ready
                if path:
                    cause[row] = rows[needed]
            else:
                begins = now
                if path:
                    cause[row] = -1
            if row == rows_at[device]:
                start[device] = begins
            now = begins + seconds[kind, position]
            order[row] = code
            number = done[code]
            done[code] = number + 1
            if kind < 2:
                ends[code * most + number] = now
                if path:
                    rows[code * most + number] = row
                # the device that waits for it
                waiting = -1
                if kind == 0:
                    if not last[position] and blocked[device_of[position + 1]] == code + 1:
                        waiting = device_of[position + 1]
                elif not first[position] and blocked[device_of[position - 1]] == code - 1:
                    waiting = device_of[position - 1]
                if waiting >= 0 and waiting != device:
                    blocked[waiting] = -1
                    stack[height] = waiting
                    height += 1
            row += 1
        finish[device], memory[device], at[device], row_of[device] = now, kept, i, row
    makespan = 0.0
    for device in range(devices):
        if row_of[device] < rows_at[device + 1]:
            return np.inf
        makespan = max(makespan, finish[device])
    return makespan
