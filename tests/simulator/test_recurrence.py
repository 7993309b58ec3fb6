"""Tests of `simulator.engines.recurrence`: the compiled twin of the engine, single and batched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import (
    DeadlockError,
    OpSeconds,
    Program,
    build_schedule,
    given_costs,
    lower,
)
from simulator.engines import recurrence
from simulator.engines import reference as simpy_engine
from simulator.schedules.schedule import ScheduleError
from tests.simulator.noise import with_noise
from tests.simulator.strategies import bits, programs


def one_forward_one_backward(forward: float = 1.0, transfer: float = 0.0) -> Program:
    """1F1B on 4 stages, 8 micro-batches, B = 2F."""
    return lower(build_schedule("1f1b", 4, 8), given_costs(4, OpSeconds(forward, 2 * forward, transfer=transfer)))


def deadlock_of(replay: Callable[[Program], object], program: Program) -> str:
    """The message of the deadlock; empty if the program runs."""
    try:
        replay(program)
    except DeadlockError as deadlock:
        return str(deadlock)
    return ""


def assert_engines_agree(program: Program) -> bool:
    """Same start and end bits on both engines, or a deadlock on both; True if the program runs."""
    deadlock = deadlock_of(simpy_engine.replay, program)
    assert deadlock_of(recurrence.replay, program) == deadlock
    if deadlock:
        return False
    reference = simpy_engine.replay(program)
    compiled = recurrence.replay(program)
    assert bits(compiled.start, reference.start)
    assert bits(compiled.end, reference.end)
    assert bits(compiled.transfers.end, reference.transfers.end)
    return True


@st.composite
def lowered(draw: st.DrawFn) -> Program | None:
    """A generated plan; None where its sizes contradict the order on one device already."""
    try:
        return draw(programs())
    except ScheduleError:
        return None


@settings(max_examples=80, deadline=None)
@given(program=lowered(), seed=st.one_of(st.none(), st.integers(0, 2**32 - 1)))
def test_engine_and_recurrence_agree_to_the_last_bit(program: Program | None, seed: int | None) -> None:
    """Start and end of every task are the same bits on both engines, on any plan, noisy or not, or it is the same deadlock."""
    if program is not None:
        noisy = program if seed is None else with_noise(program, 0.3, np.random.default_rng(seed))
        assert_engines_agree(noisy)


@settings(max_examples=20, deadline=None)
@given(program=lowered())
def test_no_task_starts_before_its_lane_and_its_data(program: Program | None) -> None:
    """start = max(end of the lane's task before, end of each dependency + lag), and end = start + seconds, for every task but the
    second of an overlapped pair, which has those of the first."""
    if program is None:
        return
    try:
        timeline = recurrence.replay(program)
    except DeadlockError:
        return
    together = np.arange(len(program)) if program.together is None else program.together
    assert bits(timeline.start, timeline.start[together])
    assert bits(timeline.end, timeline.end[together])
    for lane in range(program.lanes):
        free = 0.0
        for task in range(int(program.lane_offsets[lane]), int(program.lane_offsets[lane + 1])):
            if together[task] < task:
                continue
            rows = slice(int(program.dependency_offsets[task]), int(program.dependency_offsets[task + 1]))
            lag = program.transfer_seconds[program.transfer[rows]]
            ready = timeline.end[program.dependency[rows]] + lag
            assert timeline.start[task] == max(free, ready.max(initial=0.0))
            assert timeline.end[task] == timeline.start[task] + program.seconds[task]
            free = timeline.end[task]


@pytest.mark.parametrize("rows", [0, 1, 8, 11])
@pytest.mark.parametrize("several", [False, True])
def test_makespans_of_many_durations_equal_single_ones(several: bool, rows: int) -> None:
    """Each row of durations gives the makespan of the program with those durations, with one dependency a task and several."""
    program = one_forward_one_backward(transfer=0.25)
    if several:
        sizes = [[1, 2, 3, 2], [2, 2, 2, 2]]
        costs = given_costs(2, OpSeconds(1.0, 1.0, transfer=0.1), per_sample=True)
        program = lower(build_schedule("gpipe", 2, 4), costs, forward_sizes=sizes)
    order = recurrence.order_of(program)
    assert (len(order.offsets) > 0) == several
    seconds = program.seconds * np.random.default_rng(5).uniform(0.5, 2.0, (rows, len(program)))
    what = order.task.astype(np.uint16)  # of the type that evaluations give
    found = recurrence.makespans_of_values(order, what, seconds, program.transfer_seconds)
    alone = [recurrence.replay(replace(program, seconds=row)).makespan_seconds for row in seconds]
    assert found.tolist() == alone


def test_shared_lanes_are_refused() -> None:
    """Lanes that share a device need the event engine, and the message says so."""
    program = one_forward_one_backward()
    shared = replace(program, lane_sharing=np.zeros(program.lanes, dtype=np.int32))
    with pytest.raises(ValueError, match="use the engine simpy or compiled"):
        recurrence.order_of(shared)
