"""Order replay: the makespan of an order by counting, with weight gradients placed on the way where the order leaves them out.

A replay leaves marks, from which an order that differs only from some op on is replayed again; it is given up where what is left
of a device, or of the chain of an op, must end too late.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Floats, Integers
from planners.scheduler.instance import Codes, ScheduleInstance
from simulator import kernel

MARKS = 16
"""Checkpoints of a replay, about evenly spaced."""


class Trace(NamedTuple):
    """Results and work space of a replay; N ops, P positions, D devices, at most M micro-batches per chain.

    order: int16 [N]; the whole order, at the instance's offsets
    cause: int32 [N]; row of the op of another stage that each op waited for, -1 where it began when its device was free
    ends: float64 [2 P M]; ends of the forwards and input gradients of each position
    rows: int32 [2 P M]; their rows in `order`
    places: int32 [N]; index of each row's op among the codes that were replayed, -1 where these leave it out
    finish: float64 [D]; end of the last op of each device; start: float64 [D], begin of the first
    left: float64 [D]; seconds of the ops that each device has not yet run
    work: int64 [3 P + 5 D + 1]; counters
    marked: int64 [MARKS + 1, 3 P + 5 D + 1] and float64 [MARKS + 1, 3 D]; `work`, then `finish`, `start` and `left`, at each mark
    counts: int64 [2]; number of marks, and from which of them the last replay began
    """

    order: Codes
    cause: NDArray[np.int32]
    ends: Floats
    rows: NDArray[np.int32]
    places: NDArray[np.int32]
    finish: Floats
    start: Floats
    left: Floats
    work: Integers
    marked: Integers
    marked_times: Floats
    counts: Integers


class Form(NamedTuple):
    """Options of a replay of an order.

    fill, tolerance, path: as of `replay`
    longest_stage: whether `latest` limits a device's last op from its own first one on, not from 0
    after: float64 [2 P]; least seconds from the end of a forward, and of an input gradient, to the end of everything
    """

    fill: bool
    tolerance: float
    path: bool
    longest_stage: bool
    after: Floats


def trace_of(instance: ScheduleInstance) -> Trace:
    """Unfilled work space for replays of an instance."""
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
        np.zeros(devices),
        np.zeros(3 * positions + 5 * devices + 1, dtype=np.int64),
        np.zeros((MARKS + 1, 3 * positions + 5 * devices + 1), dtype=np.int64),
        np.zeros((MARKS + 1, 3 * devices)),
        np.zeros(2, dtype=np.int64),
    )


@kernel(error_model="numpy", borrows=True)
def replay(
    instance: ScheduleInstance, codes: Codes, offsets: Integers, fill: bool, tolerance: float, trace: Trace, path: bool
) -> float:
    """Makespan of an order in seconds; infinite for one that deadlocks or breaks a limit.

    codes: int16, those of device d at offsets[d]:offsets[d + 1], int64 [D + 1]
    fill: weight gradients are left out of `codes`; each device runs the one that waits longest where it fits before the next op
    is ready (but for `tolerance` of its seconds), where a forward lacks the memory, and at the end
    path: whether to fill `cause`, `rows` and `places` of the trace
    """
    positions, devices = len(instance.device), len(instance.limit)
    work = trace.work
    work[: 3 * positions] = 0
    at = work[3 * positions : 3 * positions + devices]
    row_of = work[3 * positions + devices : 3 * positions + 2 * devices]
    memory = work[3 * positions + 2 * devices : 3 * positions + 3 * devices]
    blocked = work[3 * positions + 3 * devices : 3 * positions + 4 * devices]
    stack = work[3 * positions + 4 * devices : 3 * positions + 5 * devices]
    trace.left[:] = 0.0
    for p in range(positions):
        for kind in range(3):
            trace.left[instance.device[p]] += instance.passes[p] * instance.seconds[kind, p]
    for device in range(devices):
        at[device], row_of[device], memory[device] = offsets[device], instance.offsets[device], 0
        trace.finish[device], trace.start[device], blocked[device], stack[device] = 0.0, 0.0, -1, devices - 1 - device
    work[-1] = devices
    trace.counts[:] = 0
    return _run(instance, codes, offsets, Form(fill, tolerance, path, False, instance.takes), trace, np.inf)


@kernel(error_model="numpy", forceinline=True, borrows=True)
def replay_again(
    instance: ScheduleInstance,
    codes: Codes,
    offsets: Integers,
    form: Form,
    trace: Trace,
    place: int | np.int64,
    latest: float,
) -> float:
    """Makespan as of `replay`, of codes that equal those of the trace before `place`; infinite as soon as it must end after
    `latest`.
    """
    positions, devices = len(instance.device), len(instance.limit)
    device = 0
    while offsets[device + 1] <= place:
        device += 1
    mark = trace.counts[0] - 1
    while trace.marked[mark, 3 * positions + device] > place:
        mark -= 1
    trace.counts[0], trace.counts[1] = mark + 1, mark
    for i in range(len(trace.work)):
        trace.work[i] = trace.marked[mark, i]
    for i in range(devices):
        trace.finish[i] = trace.marked_times[mark, i]
        trace.start[i] = trace.marked_times[mark, devices + i]
        trace.left[i] = trace.marked_times[mark, 2 * devices + i]
    at = trace.work[3 * positions : 3 * positions + devices]
    blocked = trace.work[3 * positions + 3 * devices : 3 * positions + 4 * devices]
    stack = trace.work[3 * positions + 4 * devices : 3 * positions + 5 * devices]
    if blocked[device] >= 0 and at[device] == place:  # it may no longer wait
        blocked[device] = -1
        stack[trace.work[-1]] = device
        trace.work[-1] += 1
        trace.counts[0] = mark  # marked anew
    return _run(instance, codes, offsets, form, trace, latest)


@kernel(error_model="numpy", forceinline=True, borrows=True)
def _run(
    instance: ScheduleInstance,
    codes: Codes,
    offsets: Integers,
    form: Form,
    trace: Trace,
    latest: float,
) -> float:
    """Makespan of an order, replayed from the state that the trace is in; arguments as of `replay_again`."""
    device_of, split, limit = instance.device, instance.split, instance.limit
    rows_at, held, held_at = instance.offsets, instance.held, instance.held_offsets
    takes, change, source, delay = instance.takes, instance.change, instance.source, instance.delay
    order, cause, ends, rows, places, finish, start, left, work, marked, marked_times, counts = trace
    fill, tolerance, path, longest_stage, after = form
    positions, devices = len(device_of), len(limit)
    most = len(ends) // (2 * positions)
    done = work[: 3 * positions]
    at = work[3 * positions : 3 * positions + devices]
    row_of = work[3 * positions + devices : 3 * positions + 2 * devices]
    memory = work[3 * positions + 2 * devices : 3 * positions + 3 * devices]
    blocked = work[3 * positions + 3 * devices : 3 * positions + 4 * devices]
    stack = work[3 * positions + 4 * devices : 3 * positions + 5 * devices]
    height = work[-1]
    spacing = rows_at[devices] // MARKS + 1
    from_mark = spacing if counts[0] == counts[1] else 0  # a replay begins with a mark
    failed = False
    while height > 0 and not failed:
        if path and from_mark >= spacing and counts[0] <= MARKS:
            from_mark = 0
            work[-1] = height
            for i in range(len(work)):
                marked[counts[0], i] = work[i]
            for i in range(devices):
                marked_times[counts[0], i] = finish[i]
                marked_times[counts[0], devices + i] = start[i]
                marked_times[counts[0], 2 * devices + i] = left[i]
            counts[0] += 1
        height -= 1
        device = stack[height]
        now, kept, i, row = finish[device], memory[device], at[device], row_of[device]
        rest, since = left[device], start[device] if longest_stage else 0.0
        last_i = offsets[device + 1]
        blocked[device] = -1
        while True:
            ready, needed, short, code = np.inf, 0, 0, -1
            if i < last_i:
                code = int(codes[i])
                number, before = done[code], source[code]
                if code >= positions and done[code - positions] <= number:
                    failed = True
                    break
                ready = 0.0
                if before >= 0:
                    if done[before] <= number:
                        blocked[device] = code
                        break
                    needed = before * most + number
                    ready = ends[needed] + delay[code]
                short = kept + change[code] - limit[device]
            elif not fill:
                break
            if fill:
                # the weight gradient that waits longest, if there is need of it or time for it
                chosen, oldest = -1, np.inf
                for h in range(held_at[device], held_at[device + 1]):
                    p = held[h]
                    if split[p] and done[2 * positions + p] < done[positions + p]:
                        ended = ends[(positions + p) * most + done[2 * positions + p]]
                        one = takes[2 * positions + p]
                        fits = short > 0 or now + one <= ready + tolerance * one
                        if fits and ended < oldest:
                            chosen, oldest = p, ended
                if chosen >= 0:
                    code, ready = 2 * positions + chosen, 0.0
                    if path:
                        places[row] = -1
                elif i >= last_i:
                    break
            if not fill or code < 2 * positions:
                if path:
                    places[row] = i
                i += 1
            kept += change[code]
            if kept > limit[device]:
                failed = True
                break
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
                since = begins if longest_stage else 0.0
            now = begins + takes[code]
            rest -= takes[code]
            if now + rest - since > latest or (code < 2 * positions and now + after[code] - since > latest):
                failed = True
                break
            order[row] = code
            number = done[code]
            done[code] = number + 1
            if code < 2 * positions:
                ends[code * most + number] = now
                if path:
                    rows[code * most + number] = row
                # the device that waits for it
                other = instance.target[code]
                if other >= 0:
                    waiting = device_of[other if code < positions else other - positions]
                    if waiting != device and blocked[waiting] == other:
                        blocked[waiting] = -1
                        stack[height] = waiting
                        height += 1
            row += 1
        from_mark += row - row_of[device]
        finish[device], left[device], memory[device], at[device], row_of[device] = now, rest, kept, i, row
    if failed:
        return np.inf
    makespan = 0.0
    for device in range(devices):
        if row_of[device] < rows_at[device + 1]:
            return np.inf
        makespan = max(makespan, finish[device])
    return makespan
