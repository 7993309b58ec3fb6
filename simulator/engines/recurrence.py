"""Recurrence: the compiled twin of the engine for programs without contention, sharing or noise at run time.

    end[t] = max( end[previous task of the lane], max over dependencies of end[d] + lag ) + seconds[t]

`order_of` puts the tasks into an order in which everything that a task needs stands before it; every program of the structure is
then one pass over a few flat columns. The additions and maxima are those of the engine, so both agree to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Floats, Integers
from simulator.compiled.numba_kernels import kernel
from simulator.compiled.turns import turns
from simulator.engines.timeline import Timeline, timeline_of
from simulator.lowering.program import Program, describe_deadlock
from simulator.schedules.schedule import DeadlockError

Numbers = NDArray[np.uint16] | NDArray[np.int32]
"""Column of small whole numbers in a narrow type: replays of many tasks are bound by memory bandwidth."""


class Order(NamedTuple):
    """The n tasks of a structure in an order that can be replayed in one pass; positions are places in this order.

    task: int32 [n]; the program's task at each position; place: int32 [n]; the position of each task
    previous: int32 [n]; position of the lane's task before it, n where it is the lane's first
    offsets: int64 [n + 1]; the range of each position in the columns below; empty where these hold one dependency per position
    dependency, transfer: int32; position of the dependency, n for none; class of the transfer in between, 0 for none
    last: int32 [lanes]; position of the last task of each lane that has one
    """

    task: NDArray[np.int32]
    place: NDArray[np.int32]
    previous: NDArray[np.int32]
    offsets: Integers
    dependency: NDArray[np.int32]
    transfer: Numbers
    last: NDArray[np.int32]


def narrow(numbers: NDArray[np.integer]) -> Numbers:
    """Numbers of at least 0 in 16 bits where they fit, else in 32."""
    return numbers.astype(np.uint16) if numbers.max(initial=0) < 2**16 else numbers.astype(np.int32)


def order_of(program: Program) -> Order:
    """The order of a program, which all programs of its structure share.

    Raises DeadlockError if there is none, ValueError for lanes that share a device.
    """
    if (program.lane_sharing >= 0).any():
        raise ValueError("the recurrence cannot replay lanes that share a device; use the engine simpy or compiled")
    tasks = len(program)
    order, position = turns(program.lane_offsets, program.dependency_offsets, program.dependency)
    if len(order) != tasks:
        done = np.zeros(tasks, dtype=np.bool_)
        done[order] = True
        raise DeadlockError(describe_deadlock(program, program.lane_device, position, done))
    place = np.empty(tasks, dtype=np.int32)
    place[order] = np.arange(tasks, dtype=np.int32)
    ends = program.lane_offsets[1:][np.diff(program.lane_offsets) > 0]
    previous = np.concatenate([place[:1], place[:-1]])
    previous[program.lane_offsets[:-1][np.diff(program.lane_offsets) > 0]] = tasks
    counts = np.diff(program.dependency_offsets)
    if counts.max(initial=0) <= 1:
        has = place[np.flatnonzero(counts)]
        offsets = np.zeros(0, dtype=np.int64)
        dependency, transfer = np.full(tasks, tasks, dtype=np.int32), np.zeros(tasks, dtype=np.int32)
        dependency[has], transfer[has] = place[program.dependency], program.transfer
    else:
        counts = counts[order]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        rows = np.repeat(program.dependency_offsets[:-1][order] - offsets[:-1], counts) + np.arange(offsets[-1])
        dependency, transfer = place[program.dependency[rows]], program.transfer[rows]
    return Order(order, place, previous[order], offsets, dependency, narrow(transfer), place[ends - 1])


def replay(program: Program) -> Timeline:
    """Replay a program by the recurrence: the timeline of the SimPy engine, to the last bit."""
    order, tasks = order_of(program), len(program)
    times = np.empty(2 * tasks + 1)
    replay_values(order, narrow(order.task), program.seconds, program.transfer_seconds, times)
    return timeline_of(program, times[:tasks][order.place], times[tasks : 2 * tasks][order.place])


@kernel(borrows=True)
def replay_values(
    order: Order,
    value: Numbers,
    values: Floats,
    lags: Floats,
    times: Floats,
) -> float:
    """Replay a structure: write starts and ends, by position, into `times`; return the end of the last task.

    value: [n]; number of what the task at each position takes; values: float64, seconds; lags: float64, of classes
    times: float64 [at least 2 · n + 1]; entry 2 · n is the 0 before everything
    """
    _, _, previous, offsets, dependency, transfer, last = order
    tasks = len(previous)
    start, end = times[:tasks], times[tasks : 2 * tasks + 1]
    end[tasks] = 0.0
    if len(offsets) == 0:
        for position in range(tasks):
            begins = end[previous[position]]
            ready = end[dependency[position]] + lags[transfer[position]]
            begins = ready if ready > begins else begins
            start[position] = begins
            end[position] = begins + values[value[position]]
    else:
        for position in range(tasks):
            begins = end[previous[position]]
            for row in range(offsets[position], offsets[position + 1]):
                ready = end[dependency[row]] + lags[transfer[row]]
                begins = ready if ready > begins else begins
            start[position] = begins
            end[position] = begins + values[value[position]]
    makespan = 0.0
    for position in last:  # a running maximum over all tasks would take longer than the rest
        makespan = max(makespan, end[position])
    return makespan


@kernel()
def makespans_of_values(order: Order, value: Numbers, values: Floats, lags: Floats) -> Floats:
    """End of the last task of a structure for each row of values, float64 [rows]; on one core.

    Eight rows at a time, beside each other in vector registers: eight additions and maxima are one instruction or two.
    value, lags: as in `replay_values`; values: float64 [rows, values]
    """
    tasks, rows = len(order.previous), len(values)
    end, taken = np.zeros((tasks + 1, 8)), np.empty((values.shape[1], 8))
    result = np.empty(rows)
    for first in range(0, rows, 8):
        for beside in range(8):
            for column in range(values.shape[1]):
                taken[column, beside] = values[min(first + beside, rows - 1), column]
        _replay_eight(order, value, taken, lags, end)
        for beside in range(min(8, rows - first)):
            makespan = 0.0
            for position in order.last:
                makespan = max(makespan, end[position, beside])
            result[first + beside] = makespan
    return result


@kernel(inner=True, borrows=True)
def _replay_eight(
    order: Order,
    value: Numbers,
    taken: Floats,
    lags: Floats,
    end: Floats,
) -> None:
    """Eight replays of a structure beside each other; taken: float64 [values, 8]; end: float64 [n + 1, 8]."""
    _, _, previous, offsets, dependency, transfer, _ = order
    if len(offsets) == 0:
        for position in range(len(previous)):
            now, free, seconds = end[position], end[previous[position]], taken[value[position]]
            ready, lag = end[dependency[position]], lags[transfer[position]]
            for beside in range(8):
                begins = ready[beside] + lag
                begins = begins if begins > free[beside] else free[beside]
                now[beside] = begins + seconds[beside]
        return
    for position in range(len(previous)):
        now, free, seconds = end[position], end[previous[position]], taken[value[position]]
        for beside in range(8):
            now[beside] = free[beside]
        for row in range(offsets[position], offsets[position + 1]):
            ready, lag = end[dependency[row]], lags[transfer[row]]
            for beside in range(8):
                now[beside] = max(now[beside], ready[beside] + lag)
        for beside in range(8):
            now[beside] += seconds[beside]
