"""Turns: a feasible order of the tasks of all lanes, ignoring time, one task per turn; compiled if numba is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableSequence, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Integers

Column = Sequence[int] | NDArray[np.integer]
MOST_AS_IT_STANDS = 2**20
"""Tasks that take as long as they stand, 0.7 s, as numba takes to load."""

State = MutableSequence[int] | NDArray[np.integer]


class LaneTasks(NamedTuple):
    """Tasks of all lanes, lane by lane, and what each task depends on."""

    lane_offsets: Column
    dependency_offsets: Column
    dependency: Column


class TurnState(NamedTuple):
    """Progress of the lanes.

    order: the tasks that have run; position: of each lane its next task; done: of each task, 0 at first
    sleeper: of each task the lane that waits for it, -1 at first; next_sleeper: of each lane the next that waits for the same
    task, -1 at first; queue: room of as many
    """

    order: State
    position: State
    done: State
    sleeper: State
    next_sleeper: State
    queue: State


def take_turns(waits: LaneTasks, state: TurnState) -> int:
    """Write the tasks in a feasible order, and the progress of each lane, into the state; return the number of tasks that can
    run.

    Lanes take turns, one task per turn, so that neighbours in the order seldom wait for each other; a lane that waits is woken by
    the task that it waits for.
    """
    lane_offsets, dependency_offsets, dependency = waits
    order, position, done, sleeper, next_sleeper, queue = state
    lanes = len(position)
    head, length, count = 0, 0, 0
    for lane in range(lanes):
        if lane_offsets[lane] < lane_offsets[lane + 1]:
            queue[length] = lane
            length += 1
    while length > 0:
        lane = queue[head]
        head = head + 1 if head + 1 < lanes else 0
        length -= 1
        task = position[lane]
        blocked = -1
        for row in range(dependency_offsets[task], dependency_offsets[task + 1]):
            if done[dependency[row]] == 0:
                blocked = dependency[row]
                break
        if blocked >= 0:
            next_sleeper[lane] = sleeper[blocked]
            sleeper[blocked] = lane
            continue
        done[task] = 1
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
    return count


def turns(
    lane_offsets: Integers, dependency_offsets: Integers, dependency: NDArray[np.int32]
) -> tuple[NDArray[np.int32], Integers]:
    """Tasks in a feasible order, int32, as far as they can run, and the progress of each lane, int64 [lanes].

    Where nothing has loaded numba yet, that takes longer than MOST_AS_IT_STANDS tasks.
    """
    lanes, tasks = len(lane_offsets) - 1, int(lane_offsets[-1])
    order, position = np.empty(tasks, dtype=np.int32), lane_offsets[:-1].copy()
    done, sleeper = np.zeros(tasks, dtype=np.uint8), np.full(tasks, -1, dtype=np.int32)
    next_sleeper, queue = np.full(lanes, -1, dtype=np.int32), np.empty(lanes, dtype=np.int32)
    waits, state = (
        LaneTasks(lane_offsets, dependency_offsets, dependency),
        TurnState(order, position, done, sleeper, next_sleeper, queue),
    )
    if "numba" in sys.modules or tasks > MOST_AS_IT_STANDS:
        count = _compiled()(waits, state)
        return order[:count], position
    plain = TurnState(*(np.asarray(column).tolist() for column in state))
    count = take_turns(LaneTasks(*(np.asarray(column).tolist() for column in waits)), plain)
    return np.array(plain.order[:count], dtype=np.int32), np.array(plain.position, dtype=np.int64)


@cache
def _compiled() -> Callable[..., Any]:
    from simulator.compiled.numba_kernels import kernel

    return kernel()(take_turns)
