"""Tests of `simulator.engines.event_loop`: the compiled twin of the engine for contended channels and shared devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import (
    DeadlockError,
    Layer,
    OpSeconds,
    Plan,
    Problem,
    Program,
    Stage,
    Workload,
    build_schedule,
    from_text,
    given_costs,
    lower,
    simulate,
)
from simulator.engines import event_loop
from simulator.engines import reference as engine
from simulator.engines.timeline import Timeline
from simulator.plan_replay import replay_compiled, replay_on
from simulator.schedules.schedule import ScheduleError
from tests.simulator.noise import with_noise
from tests.simulator.strategies import HandCosts, bits, chain_cluster, channel, lower_unchecked, programs


@st.composite
def lowered(draw: st.DrawFn) -> Program | None:
    """A generated plan with routes or shared lanes, noisy or not; None where its sizes contradict the order on one device."""
    try:
        program = draw(programs(contended=True))
    except ScheduleError:
        return None
    seed = draw(st.sampled_from((None, None, 1, 2)))
    return program if seed is None else with_noise(program, 0.3, np.random.default_rng(seed))


def replayed(replay: object, program: Program, contention: bool) -> Timeline | str:
    """The timeline, or the message of the deadlock."""
    try:
        return replay(program, contention=contention)  # type: ignore[operator, no-any-return]
    except DeadlockError as deadlock:
        return str(deadlock)


def assert_same(program: Program, contention: bool) -> None:
    """SimPy, the event loop, and the quickest engine that is exact: the same bits of every start, end and arrival, or the same
    deadlock."""
    reference = replayed(engine.replay, program, contention)
    for replay in (event_loop.replay, replay_compiled):
        compiled = replayed(replay, program, contention)
        if isinstance(reference, str) or isinstance(compiled, str):
            assert compiled == reference
            continue
        assert bits(compiled.start, reference.start)
        assert bits(compiled.end, reference.end)
        assert bits(compiled.transfers.end, reference.transfers.end)
        assert bits(compiled.transfers.start, reference.transfers.start)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(program=lowered(), contention=st.sampled_from((True, True, True, False)))
def test_engine_and_event_loop_agree_to_the_last_bit(program: Program | None, contention: bool) -> None:
    """Any plan, with contention and without, events of one moment included: the times are small whole numbers often enough."""
    if program is not None:
        assert_same(program, contention)


@pytest.mark.slow
@settings(max_examples=1_000, deadline=None)
@given(program=lowered(), contention=st.sampled_from((True, True, True, False)))
def test_engine_and_event_loop_agree_on_many_more(program: Program | None, contention: bool) -> None:
    """As above, 1,000 of them."""
    if program is not None:
        assert_same(program, contention)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b"])
def test_many_events_of_one_moment_keep_their_order(name: str) -> None:
    """24 replicas end and send at the same seconds, over three channels to 16 others: who is served first shows in starts."""
    devices = [100 * r + s for s in range(2) for r in range(24)]
    costs = HandCosts(
        (24.0, 16.0),
        (24.0, 32.0),
        transfer_bytes=1.0,
        routes={(a, b): ((a + b) % 3,) for a in devices for b in devices if a != b},
        channels=(channel(1.0), channel(2.0), channel(1.0, 1.0)),
    )
    program = lower(build_schedule(name, 2, 3), costs, forward_sizes=[48] * 3, split_replicas=[24, 16])
    times = engine.replay(program, contention=True).end
    assert len(times) > 1.5 * len(set(times.tolist()))
    assert_same(program, contention=True)


def test_makespan_of_a_prepared_program() -> None:
    """Two tensors of 2 s leave for one channel at 1 and 2: the last forward ends at 6, the last backward at 12; at 5 and 10 where
    links are unlimited, as every engine has them unless it is told."""
    costs = HandCosts((1.0, 1.0), (1.0, 1.0), transfer_bytes=2.0, routes={(0, 1): (0,), (1, 0): (1,)})
    costs = HandCosts(**{**costs.__dict__, "channels": (channel(1.0),) * 2})
    program = lower(build_schedule("gpipe", 2, 2), costs)
    assert event_loop.makespan(event_loop.prepare(program, contention=True)) == 12.0
    assert event_loop.makespan(event_loop.prepare(program)) == 10.0
    for replay in (engine.replay, event_loop.replay, replay_compiled):
        assert replay(program, contention=True).makespan_seconds == 12.0
        assert replay(program).makespan_seconds == 10.0
    assert [replay_on(program, name).makespan_seconds for name in ("simpy", "compiled", "recurrence")] == [10.0] * 3


def test_a_deadlock_has_no_makespan() -> None:
    """Two devices that wait for each other: infinite seconds, and the engine's message from `replay`."""
    text = "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"
    program = lower_unchecked(from_text(text), given_costs(2, OpSeconds(1.0, 1.0)))
    assert event_loop.makespan(event_loop.prepare(program)) == float("inf")
    with pytest.raises(DeadlockError, match="deadlock: device 0, position 1: op 0B0 waits for 1B0"):
        event_loop.replay(program)


@pytest.mark.parametrize("contention", [False, True])
@pytest.mark.parametrize("schedule", ["gpipe", "fbp-as"])
def test_a_problem_is_replayed_alike_on_simpy_and_compiled(schedule: str, contention: bool) -> None:
    """Timeline, memory and seconds of an iteration are the same bits; the recurrence is that without contention."""
    layers = tuple(Layer(f"l{i}", "linear", 3.0, 0, 1.0, 1.0) for i in range(3))
    workload = Workload("three", layers, ((0, 1), (1, 2)))
    cluster = chain_cluster(3, bandwidth=0.5, duplex="half")
    problem = Problem(workload, cluster, 8, communication="streaming", contention=contention)
    problem = replace(problem, communication="overlapped") if schedule == "gpipe" else problem
    plan = Plan("hand", schedule, tuple(Stage((i,), (i,)) for i in range(3)), (2,) * 4)
    reference, compiled = (simulate(problem, plan, engine=name) for name in ("simpy", "compiled"))
    assert bits(compiled.timeline.end, reference.timeline.end)
    assert compiled.iteration_seconds == reference.iteration_seconds
    assert [one.peak_bytes for one in compiled.memory] == [one.peak_bytes for one in reference.memory]
    free = simulate(problem, plan, engine="recurrence").iteration_seconds
    assert free == simulate(replace(problem, contention=False), plan).iteration_seconds
    assert (free < reference.iteration_seconds) == (contention and schedule == "gpipe")
