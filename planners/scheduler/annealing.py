"""Annealing: an order is changed one op at a time, most changes on its critical path, and replayed in full after each.

Two forms of an order are annealed in the same way: forwards and input gradients alone, with weight gradients placed by the
replay (few ops, and no neighbour wastes memory or a gap), and the whole order, which reaches what that rule cannot. A worse order
is accepted up to a threshold drawn anew each time, exponential around a temperature that falls. Nothing here depends on the
machine: random numbers are xorshift64*, the exponential is a table of decimals.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Integers
from planners.scheduler.instance import Codes, ScheduleInstance
from planners.scheduler.order_replay import Form, Trace, replay, replay_again
from simulator import kernel

EXPONENTIAL = np.round(-np.log((np.arange(1024) + 0.5) / 1024), 6)
"""Quantiles of the exponential distribution; rounded, as logarithms differ in their last bit between machines."""

REACH = 12
"""Places that an op moves, at most; near ones are likelier."""

STEP_WORK = 70
"""Work of a step beside its replay, in ops replayed."""


class Walk(NamedTuple):
    """Settings of an annealing.

    form: of its replays; with `longest_stage`, orders are compared by the longest time of a device from start to end
    edges: of 8 moves of the critical path, how many go to an edge of the stretch of ops that a device runs without waiting
    steps: replays; hot, cold: seconds, the first and the last temperature
    target: seconds at which to stop
    """

    form: Form
    edges: int
    steps: int
    hot: float
    cold: float
    target: float


@kernel(borrows=True)
def draw(state: NDArray[np.uint64], below: int | np.int64) -> np.int64:
    """A random whole number in [0, below), below 2**31; state: uint64 [1], not 0 (xorshift64*, Vigna 2016)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    high = (x * np.uint64(2685821657736338717)) >> np.uint64(33)
    return np.int64((high * np.uint64(below)) >> np.uint64(31))


@kernel(inner=True, borrows=True)
def keep(values: NDArray[np.integer[Any]], kept: NDArray[np.integer[Any]]) -> None:
    """Copy the values into `kept`, of the same length; `kept[:] = values` takes seconds more to compile."""
    for i in range(len(values)):
        kept[i] = values[i]


@kernel()
def cost_of(makespan: float, longest_stage: bool, trace: Trace) -> float:
    """The cost of a replay in seconds: the makespan, or the longest stage."""
    if not longest_stage or makespan == np.inf:
        return makespan
    return float((trace.finish - trace.start).max())


@kernel(inner=True)
def _critical(instance: ScheduleInstance, trace: Trace, longest_stage: bool, critical: Integers) -> int:
    """Fill `critical` with the rows of the ops on the critical path, last first, and return their number."""
    device = int(np.argmax(trace.finish - trace.start) if longest_stage else np.argmax(trace.finish))
    row, count = int(instance.offsets[device + 1]) - 1, 0
    while True:
        critical[count] = row
        count += 1
        if trace.cause[row] >= 0:
            row = int(trace.cause[row])
            continue
        while instance.offsets[device] > row or instance.offsets[device + 1] <= row:
            device = device + 1 if device + 1 < len(trace.finish) else 0
        if row == instance.offsets[device]:
            return count
        row -= 1


@kernel(error_model="numpy")
def anneal(
    instance: ScheduleInstance,
    codes: Codes,
    offsets: Integers,
    walk: Walk,
    random: NDArray[np.uint64],
    traces: tuple[Trace, Trace],
    best: Codes,
) -> tuple[float, int, int]:
    """Anneal an order; returns the cost of the best order met, the replays taken, and their work in ops. The best order comes
    into `best`, int16 [N].

    codes: int16, at offsets: int64 [D + 1]; at the end they are the last order accepted
    traces: of the order accepted, and one to try others in
    """
    trace, trial = traces
    form, work = walk.form, len(trace.order)
    devices = len(instance.limit)
    critical = np.empty(len(trace.order), dtype=np.int64)
    rows = np.empty(len(trace.order), dtype=np.int64)  # places of the critical ops among the codes
    owner = np.empty(len(codes), dtype=np.int64)
    for device in range(devices):
        owner[offsets[device] : offsets[device + 1]] = device
    cost = cost_of(replay(instance, codes, offsets, form.fill, form.tolerance, trace, True), form.longest_stage, trace)
    _copy(instance, trace, trial, trace, True)
    found = cost
    keep(trace.order, best)
    on_path = 0
    if cost < np.inf:
        for one in critical[: _critical(instance, trace, form.longest_stage, critical)]:
            if trace.places[one] >= 0:
                rows[on_path] = trace.places[one]
                on_path += 1
    temperature = walk.hot
    cools = (walk.cold / walk.hot - 1.0) / walk.steps * walk.hot
    for step in range(walk.steps):
        if found <= walk.target:
            return found, step, work
        temperature += cools
        turn = draw(random, on_path) if on_path > 0 and draw(random, 5) > 0 else -1
        origin = rows[turn] if turn >= 0 else draw(random, len(codes))
        low, high = offsets[owner[origin]], offsets[owner[origin] + 1] - 1
        target = origin
        if turn < 0 or draw(random, 8) >= walk.edges:
            distance = 1 + draw(random, 1 + draw(random, REACH))
            target = min(max(origin + distance if draw(random, 2) else origin - distance, low), high)
        elif draw(
            random, 2
        ):  # to the begin or the end of its stretch of the path, the only moves inside that can shorten it
            while turn + 1 < on_path and rows[turn + 1] == target - 1 and target > low:
                turn += 1
                target -= 1
        else:
            while turn > 0 and rows[turn - 1] == target + 1 and target < high:
                turn -= 1
                target += 1
        swap = draw(random, 4) == 0
        moved, other = codes[origin], codes[target]
        if moved == other:
            continue
        _move(codes, origin, target, swap)
        worst = cost + temperature * EXPONENTIAL[draw(random, 1024)]
        makespan = replay_again(instance, codes, offsets, form, trial, min(origin, target), worst)
        changed = cost_of(makespan, form.longest_stage, trial)
        if changed <= worst:
            cost = changed
            work += STEP_WORK + _copy(instance, trial, trace, trial, True)
            if cost < found:
                found = cost
                keep(trace.order, best)
            on_path = 0
            for one in critical[: _critical(instance, trace, form.longest_stage, critical)]:
                if trace.places[one] >= 0:
                    rows[on_path] = trace.places[one]
                    on_path += 1
        else:
            _move(codes, target, origin, swap)
            work += STEP_WORK + _copy(instance, trace, trial, trial, False)
    return found, walk.steps, work


@kernel(inner=True, forceinline=True, borrows=True)
def _copy(instance: ScheduleInstance, source: Trace, target: Trace, ran: Trace, finished: bool) -> int:
    """Make two traces equal again after a replay in one of them, `ran`; returns the ops that it ran.

    finished: whether it ran to its end; else only what other replays read is copied
    """
    positions, devices = len(instance.device), len(instance.limit)
    most = len(source.ends) // (2 * positions)
    mark, ops = ran.counts[1], 0
    for device in range(devices):
        begins = ran.marked[mark, 3 * positions + devices + device]
        ends = ran.work[3 * positions + devices + device]
        ops += ends - begins
        if finished:
            for row in range(begins, ends):
                target.order[row], target.cause[row] = source.order[row], source.cause[row]
                target.places[row] = source.places[row]
            target.finish[device], target.start[device] = source.finish[device], source.start[device]
    for code in range(2 * positions):
        for entry in range(code * most + ran.marked[mark, code], code * most + ran.work[code]):
            target.ends[entry], target.rows[entry] = source.ends[entry], source.rows[entry]
    for later in range(mark, ran.counts[0]):
        for i in range(source.marked.shape[1]):
            target.marked[later, i] = source.marked[later, i]
        for i in range(source.marked_times.shape[1]):
            target.marked_times[later, i] = source.marked_times[later, i]
    target.counts[:] = source.counts[0]
    return int(ops)


@kernel(inner=True, borrows=True)
def _move(codes: Codes, origin: int | np.int64, target: int | np.int64, swap: bool) -> None:
    """Exchange two ops of a device, or shift one of them to the other's place."""
    moved = codes[origin]
    if swap:
        codes[origin] = codes[target]
    elif origin < target:
        for i in range(origin, target):
            codes[i] = codes[i + 1]
    else:
        for i in range(origin, target, -1):
            codes[i] = codes[i - 1]
    codes[target] = moved
