"""Recurrence: the compiled twin of the engine for programs without contention, sharing or noise at run time.

    end[t] = max( end[previous task of the lane], max over dependencies of end[d] + lag ) + seconds[t]

`prepare` puts the tasks into an order in which everything that a task needs stands before it; a prepared program is then one
pass over a few flat columns. The additions and maxima are those of the engine, so both agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from simulator.engines.kernels import kernel
from simulator.engines.timeline import Timeline, timeline_of
from simulator.lowering.program import DeadlockError, Program, describe_deadlock


class Order(NamedTuple):
    """The order of a program's n tasks, without seconds; positions and columns as in `Prepared`.

    place: int32 [n]; position of each task
    offsets: int64 [n + 1]; empty where the columns below hold one dependency a task
    dependency, transfer: int32; position of the dependency, class of the transfer in between, 0 for none
    last: int32 [lanes]; position of the last task of each lane that has one
    """

    task: NDArray[np.int32]
    place: NDArray[np.int32]
    previous: NDArray[np.int32]
    offsets: NDArray[np.int64]
    dependency: NDArray[np.int32]
    transfer: NDArray[np.int32]
    last: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A program in an order that can be replayed in one pass; n tasks, columns in that order.

    task: int32 [n]; the program's task at each position
    previous: int32 [n]; position of the lane's task before it, n where it is the lane's first
    seconds: float64 [n]
    single: the columns below hold at most one dependency a task, at position i of the task; else `offsets` gives its range
    dependency: int32; position of the dependency, n for none
    lag: float64, or uint8 numbers into `lags`; seconds that the data need after the dependency's end
    """

    task: NDArray[np.int32]
    previous: NDArray[np.int32]
    seconds: NDArray[np.float64]
    single: bool
    offsets: NDArray[np.int64]
    dependency: NDArray[np.int32]
    lag: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.task)


def prepare(program: Program) -> Prepared:
    """Order a program for replay; DeadlockError if no order exists, ValueError for lanes that share a device."""
    tasks = len(program)
    counts = np.diff(program.dependency_offsets)
    order, place, previous = _places(program)
    if tasks == 0 or counts.max() <= 1:
        offsets = np.zeros(0, dtype=np.int64)
        dependency = np.full(tasks, tasks, dtype=np.int32)
        lag = np.zeros(tasks, dtype=np.float64)
        has = np.flatnonzero(counts)
        dependency[place[has]] = place[program.dependency]
        lag[place[has]] = program.transfer_seconds[program.transfer]
        single = True
    else:
        single = False
        offsets, rows = _rows(program, order)
        dependency = place[program.dependency[rows]]
        lag = program.transfer_seconds[program.transfer[rows]]
    return Prepared(order, previous, program.seconds[order], single, offsets, dependency, lag)


def _places(program: Program) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Task at each position, position of each task, and position of the lane's task before that at each position."""
    if (program.lane_sharing >= 0).any():
        raise ValueError("the recurrence cannot replay lanes that share a device; use the engine simpy or compiled")
    tasks = len(program)
    order, position = _order(program.lane_offsets, program.dependency_offsets, program.dependency)
    if len(order) != tasks:
        done = np.zeros(tasks, dtype=np.bool_)
        done[order] = True
        raise DeadlockError(describe_deadlock(program, position, done))
    place = np.empty(tasks, dtype=np.int32)
    place[order] = np.arange(tasks, dtype=np.int32)
    previous = np.empty(tasks, dtype=np.int32)
    previous[1:] = place[:-1]
    previous[program.lane_offsets[:-1][np.diff(program.lane_offsets) > 0]] = tasks
    return order, place, previous[order]


def _rows(program: Program, order: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the dependencies of each position begin, and the program's rows of them."""
    counts = np.diff(program.dependency_offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return offsets, np.repeat(program.dependency_offsets[:-1][order] - offsets[:-1], counts) + np.arange(offsets[-1])


def order_of(program: Program) -> Order:
    """The order in which a program, and every other of its structure, can be replayed; errors as of `prepare`."""
    order, place, previous = _places(program)
    offsets, rows = _rows(program, order)
    dependency, transfer = place[program.dependency[rows]], program.transfer[rows]
    has = np.diff(offsets)
    last = place[program.lane_offsets[1:][np.diff(program.lane_offsets) > 0] - 1]
    if len(order) and has.max() <= 1:
        single, classes = np.full(len(order), len(order), dtype=np.int32), np.zeros(len(order), dtype=np.int32)
        single[has > 0], classes[has > 0] = dependency, transfer
        return Order(order, place, previous, offsets[:0], single, classes, last)
    return Order(order, place, previous, offsets, dependency, transfer, last)


def ends(prepared: Prepared, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """End of every task, float64 [n + 1] in prepared order; the last entry is the 0 before everything.

    out: memory for the result, to save its allocation
    """
    end = np.empty(len(prepared) + 1) if out is None else out
    if prepared.single:
        _replay_single(prepared.previous, prepared.dependency, prepared.lag, prepared.seconds, end)
    else:
        _replay_many(prepared.previous, prepared.offsets, prepared.dependency, prepared.lag, prepared.seconds, end)
    return end


def makespan(prepared: Prepared) -> float:
    """End of the last task, in seconds."""
    return float(ends(prepared).max())


def makespans(plans: Sequence[Prepared]) -> NDArray[np.float64]:
    """Makespan of each of many prepared programs, on all cores; float64 [plans]."""
    if not plans:
        return np.zeros(0)
    return np.array(_replay_batch(*_join(plans)))


def makespans_of_durations(prepared: Prepared, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Makespan of one prepared program under each row of durations, float64 [rows, tasks of the program, in its order]."""
    if seconds.ndim != 2 or seconds.shape[1] != len(prepared):
        raise ValueError(f"durations must have shape (rows, {len(prepared)}), got {seconds.shape}")
    previous, offsets, dependency, lag, _, _ = _join([prepared])
    return np.array(_replay_rows(previous, offsets, dependency, lag, prepared.task, np.ascontiguousarray(seconds)))


def replay(program: Program) -> Timeline:
    """Replay a program by the recurrence: the engine's timeline, to the last bit."""
    prepared = prepare(program)
    end = ends(prepared)
    start = _starts(prepared, end)
    in_order = np.empty(len(program))
    in_order[prepared.task] = end[:-1]
    started = np.empty(len(program))
    started[prepared.task] = start
    return timeline_of(program, started, in_order)


def _starts(prepared: Prepared, end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Start of every task from the ends: the same maxima again."""
    start = end[prepared.previous].copy()
    if len(prepared) == 0:
        return start
    ready = end[prepared.dependency] + prepared.lag
    if prepared.single:
        return np.maximum(start, ready)
    consumer = np.repeat(np.arange(len(prepared)), np.diff(prepared.offsets))
    np.maximum.at(start, consumer, ready)
    return start


def _join(
    plans: Sequence[Prepared],
) -> tuple[
    NDArray[np.int32],
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.int64],
]:
    """Columns of many plans one after the other, positions local to each plan; the last is the first row of each plan."""
    offsets_list = []
    base = 0
    for plan in plans:
        offsets = np.arange(len(plan) + 1, dtype=np.int64) if plan.single else plan.offsets
        offsets_list.append(offsets[:-1] + base)
        base += int(offsets[-1])
    offsets_list.append(np.array([base], dtype=np.int64))
    begins = np.concatenate([[0], np.cumsum([len(plan) for plan in plans])]).astype(np.int64)
    return (
        np.concatenate([plan.previous for plan in plans]),
        np.concatenate(offsets_list),
        np.concatenate([plan.dependency for plan in plans]),
        np.concatenate([plan.lag for plan in plans]),
        np.concatenate([plan.seconds for plan in plans]),
        begins,
    )


@kernel()
def _order(
    lane_offsets: NDArray[np.int64], dependency_offsets: NDArray[np.int64], dependency: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Tasks in a replayable order, and how far each lane came.

    Lanes take turns, one task a turn, so that neighbours in the order seldom wait for each other; a lane that waits is woken by
    the task that it waits for.
    """
    lanes = len(lane_offsets) - 1
    tasks = lane_offsets[lanes]
    order = np.empty(tasks, dtype=np.int32)
    position = lane_offsets[:-1].copy()
    done = np.zeros(tasks, dtype=np.bool_)
    sleeper = np.full(tasks, -1, dtype=np.int32)  # lane that waits for this task, then the chain of others
    next_sleeper = np.full(lanes, -1, dtype=np.int32)
    queue = np.empty(lanes, dtype=np.int32)
    head, length = 0, 0
    for lane in range(lanes):
        if lane_offsets[lane] < lane_offsets[lane + 1]:
            queue[length] = lane
            length += 1
    count = 0
    while length > 0:
        lane = queue[head]
        head = head + 1 if head + 1 < lanes else 0
        length -= 1
        task = position[lane]
        blocked = -1
        for row in range(dependency_offsets[task], dependency_offsets[task + 1]):
            if not done[dependency[row]]:
                blocked = dependency[row]
                break
        if blocked >= 0:
            next_sleeper[lane] = sleeper[blocked]
            sleeper[blocked] = lane
            continue
        done[task] = True
        order[count] = task
        count += 1
        position[lane] = task + 1
        if task + 1 < lane_offsets[lane + 1]:
            tail = head + length
            queue[tail if tail < lanes else tail - lanes] = lane
            length += 1
        waiting = sleeper[task]
        while waiting >= 0:
            tail = head + length
            queue[tail if tail < lanes else tail - lanes] = waiting
            length += 1
            waiting = next_sleeper[waiting]
    return order[:count], position


@kernel()
def _replay_single(
    previous: NDArray[np.int32],
    dependency: NDArray[np.int32],
    lag: NDArray[np.float64],
    seconds: NDArray[np.float64],
    end: NDArray[np.float64],
) -> None:
    tasks = len(previous)
    end[tasks] = 0.0
    for task in range(tasks):
        free = end[previous[task]]
        ready = end[dependency[task]] + lag[task]
        end[task] = (ready if ready > free else free) + seconds[task]


@kernel()
def _replay_many(
    previous: NDArray[np.int32],
    offsets: NDArray[np.int64],
    dependency: NDArray[np.int32],
    lag: NDArray[np.float64],
    seconds: NDArray[np.float64],
    end: NDArray[np.float64],
) -> None:
    tasks = len(previous)
    end[tasks] = 0.0
    for task in range(tasks):
        start = end[previous[task]]
        for row in range(offsets[task], offsets[task + 1]):
            ready = end[dependency[row]] + lag[row]
            start = ready if ready > start else start
        end[task] = start + seconds[task]


@kernel()
def replay_values(
    order: Order,
    value: NDArray[np.int32],
    values: NDArray[np.float64],
    lags: NDArray[np.float64],
    times: NDArray[np.float64],
) -> float:
    """Replay a structure: starts and ends, by position, into `times`; the end of the last task.

    value: int32 [n]; number of what the task at each position takes; values: float64, seconds; lags: float64, of classes
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
def makespans_of_values(
    order: Order, value: NDArray[np.int32], values: NDArray[np.float64], lags: NDArray[np.float64]
) -> NDArray[np.float64]:
    """End of the last task of a structure for each row of values, float64 [rows]; on one core.

    Eight rows at a time, beside each other in vector registers: eight additions and maxima are one instruction or two.
    value, lags: as of `replay_values`; values: float64 [rows, values]
    """
    _, _, previous, offsets, dependency, transfer, last = order
    tasks, rows = len(previous), len(values)
    end, taken = np.zeros((tasks + 1, 8)), np.empty((values.shape[1], 8))
    result = np.empty(rows)
    for first in range(0, rows, 8):
        for beside in range(8):
            taken[:, beside] = values[min(first + beside, rows - 1)]
        if len(offsets) == 0:
            _single_beside(previous, dependency, transfer, value, taken, lags, end)
        else:
            _many_beside(previous, offsets, dependency, transfer, value, taken, lags, end)
        for beside in range(min(8, rows - first)):
            makespan = 0.0
            for position in last:
                makespan = max(makespan, end[position, beside])
            result[first + beside] = makespan
    return result


@kernel()
def _single_beside(
    previous: NDArray[np.int32],
    dependency: NDArray[np.int32],
    transfer: NDArray[np.int32],
    value: NDArray[np.int32],
    taken: NDArray[np.float64],
    lags: NDArray[np.float64],
    end: NDArray[np.float64],
) -> None:
    """Eight replays of a structure of one dependency a task; taken: float64 [values, 8]; end: float64 [n + 1, 8]."""
    for position in range(len(previous)):
        now, free, seconds = end[position], end[previous[position]], taken[value[position]]
        ready, lag = end[dependency[position]], lags[transfer[position]]
        for beside in range(8):
            begins = ready[beside] + lag
            begins = begins if begins > free[beside] else free[beside]
            now[beside] = begins + seconds[beside]


@kernel()
def _many_beside(
    previous: NDArray[np.int32],
    offsets: NDArray[np.int64],
    dependency: NDArray[np.int32],
    transfer: NDArray[np.int32],
    value: NDArray[np.int32],
    taken: NDArray[np.float64],
    lags: NDArray[np.float64],
    end: NDArray[np.float64],
) -> None:
    """As `_single_beside`, for any number of dependencies."""
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


@kernel(parallel=True)
def _replay_batch(
    previous: NDArray[np.int32],
    offsets: NDArray[np.int64],
    dependency: NDArray[np.int32],
    lag: NDArray[np.float64],
    seconds: NDArray[np.float64],
    begins: NDArray[np.int64],
) -> NDArray[np.float64]:
    plans = len(begins) - 1
    result = np.empty(plans)
    for plan in prange(plans):
        first, last = begins[plan], begins[plan + 1]
        bounds = offsets[first : last + 1]
        end = np.empty(len(bounds))
        _replay_many(previous[first:last], bounds, dependency, lag, seconds[first:last], end)
        result[plan] = end.max()
    return result


@kernel(parallel=True)
def _replay_rows(
    previous: NDArray[np.int32],
    offsets: NDArray[np.int64],
    dependency: NDArray[np.int32],
    lag: NDArray[np.float64],
    order: NDArray[np.int32],
    seconds: NDArray[np.float64],
) -> NDArray[np.float64]:
    rows = len(seconds)
    result = np.empty(rows)
    for row in prange(rows):
        end = np.empty(len(offsets))
        _replay_many(previous, offsets, dependency, lag, seconds[row][order], end)
        result[row] = end.max()
    return result
