"""Tests of noise and stragglers: many draws are what every engine finds one by one; slow devices are what hands compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeplan as pp
from simulator import (
    DeadlockError,
    OpSeconds,
    Plan,
    Problem,
    Program,
    Stage,
    equal_microbatches,
    lower,
    named_schedule,
    replay_schedule,
    simulate,
)
from simulator.disturbances import Draws, drawn
from simulator.engines import reference
from simulator.lowering.program import noisy_program
from simulator.results.noisy_seconds import NoisySeconds
from simulator.schedules.schedule import ScheduleError
from tests.chains import chain, measured_chain
from tests.simulator.noise import with_noise
from tests.simulator.strategies import HandCosts, chain_cluster, channel, programs

NOISE = 0.3


@st.composite
def lowered(draw: st.DrawFn) -> Program | None:
    """A generated plan, with routes or without; None where its sizes contradict the order on one device."""
    try:
        return draw(programs(contended=draw(st.booleans())))
    except ScheduleError:
        return None


@settings(max_examples=40, deadline=None)
@given(program=lowered(), contention=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_many_draws_are_those_of_simpy_to_the_last_bit(program: Program | None, contention: bool, seed: int) -> None:
    """The makespans of ten replays at once are those that SimPy finds for the same program with the noise drawn ten times."""
    if program is None:
        return
    try:
        _, timeline, noisy = drawn(program, Draws(NOISE, np.random.default_rng(seed), 10, "compiled", contention))
    except DeadlockError:
        return
    rng = np.random.default_rng(seed)
    alone = [reference.replay(with_noise(program, NOISE, rng), contention=contention) for _ in range(10)]
    assert noisy.seconds.tolist() == [one.makespan_seconds for one in alone]
    assert timeline.end.tolist() == alone[0].end.tolist()
    assert noisy.quiet == reference.replay(program, contention=contention).makespan_seconds


def test_seconds_under_noise_are_a_table() -> None:
    """Of 1, 2 and 3 s the quantiles by line, and what each is more than without noise, where that takes any time."""
    lines = (
        "3 replays with noise 0.1; without, 2 s",
        "iteration        mean     p50       p95       p99",
        "seconds             2       2       2.9      2.98",
        "without noise  0.00 %  0.00 %  +45.00 %  +49.00 %",
    )
    assert NoisySeconds(0.1, 2.0, np.array([1.0, 2.0, 3.0])).summary() == "\n".join(lines)
    (table,) = NoisySeconds(0.1, 0.0, np.array([1.0, 2.0, 3.0])).tables()
    assert table.rows == (("seconds", "2", "2", "2.9", "2.98"),)


@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
@pytest.mark.parametrize("contention", [False, True])
def test_draws_of_a_plan_are_its_simulations(schedule: str, contention: bool) -> None:
    """A flushed plan, or the steady state of a stream: the replays are `simulate` again and again with one generator."""
    workload = chain([1.0, 2.0, 1.0], output_elements=[4.0] * 3)
    problem = Problem(workload, chain_cluster(3, bandwidth=20.0), 8, contention=contention)
    plan = Plan("hand", schedule, tuple(Stage((s,), (s,)) for s in range(3)), (2,) * 4)
    rng = np.random.default_rng(7)
    several = simulate(problem, plan, noise=NOISE, rng=np.random.default_rng(7), replays=4).noisy
    alone = [simulate(problem, plan, noise=NOISE, rng=rng).iteration_seconds for _ in range(4)]
    assert several is not None
    assert several.seconds.tolist() == alone
    assert several.record()["p95_seconds"] == np.quantile(alone, 0.95)
    assert schedule == "pipedream" or several.quiet == simulate(problem, plan).iteration_seconds


def test_noise_lengthens_a_balanced_pipeline() -> None:
    """8 stages, 64 micro-batches, 5 %: the mean is 2 to 4 % above an iteration without noise, the 99th of 100 above the mean."""
    noisy = replay_schedule(
        named_schedule("1f1b", 8, 64), OpSeconds(1.0, 2.0), noise=0.05, seed=1, replays=1000, engine="compiled"
    ).noisy
    assert noisy is not None
    found = noisy.record()
    assert found["quiet_seconds"] == 3.0 * (64 + 7)
    assert 1.02 < found["mean_seconds"] / found["quiet_seconds"] < 1.04
    assert found["p50_seconds"] < found["p95_seconds"] < found["p99_seconds"] < noisy.seconds.max()
    assert found["replays"] == len(np.unique(noisy.seconds)) == 1000


@pytest.mark.parametrize("device", [0, 2, 3])
def test_a_straggler_is_a_stage_of_more_seconds(device: int) -> None:
    """On numbers, device 2 at 1.5 times is stage 2 with 1.5 times its seconds, forward, backward and update; transfers stay."""
    schedule = named_schedule("1f1b", 4, 6)
    factor = [1.5 if one == device else 1.0 for one in range(4)]

    def seconds(factors: list[float], *values: float) -> list[list[float]]:
        return [[value * one for one in factors] for value in values]

    slow = replay_schedule(schedule, OpSeconds(*seconds([1.0] * 4, 1.0, 2.0), transfer=0.25), stragglers={device: 1.5})
    by_hand = replay_schedule(schedule, OpSeconds(*seconds(factor, 1.0, 2.0), transfer=0.25))
    assert slow.makespan_seconds == by_hand.makespan_seconds
    assert slow.stragglers is not None
    assert slow.stragglers.without == replay_schedule(schedule, OpSeconds(1.0, 2.0, transfer=0.25)).makespan_seconds
    assert f"device {device} takes 1.5 times as long" in slow.remarks()[0]


def test_stragglers_of_lanes_that_share_a_device() -> None:
    """Forwards and backwards that divide a device: alone on one stage, everything takes the factor as long."""
    schedule = named_schedule("fbp-as", 1, 3)
    found = replay_schedule(schedule, OpSeconds(1.0, 1.0), stragglers={0: 3.0})
    assert found.makespan_seconds == pytest.approx(
        3.0 * replay_schedule(schedule, OpSeconds(1.0, 1.0)).makespan_seconds
    )


@pytest.mark.parametrize("transfer", [0.5, 2.5])
def test_stragglers_that_send_while_they_compute_on_a_device_of_two_lanes(transfer: float) -> None:
    """As stages of more seconds: where sending takes longer, an op still lasts as long as that."""
    schedule, factor = named_schedule("fbp-as", 3, 6), [2.0, 1.0, 1.5]

    def seconds(factors: list[float], stragglers: dict[int, float]) -> float:
        costs = OpSeconds(factors, [2.0 * one for one in factors], transfer=transfer)
        return replay_schedule(schedule, costs, communication="streaming", stragglers=stragglers).makespan_seconds

    found, by_hand = seconds([1.0] * 3, {0: 2.0, 2: 1.5}), seconds(factor, {})
    assert found == pytest.approx(by_hand, rel=1e-12)
    assert by_hand > seconds([1.0] * 3, {})


@pytest.mark.parametrize("schedule", ["1f1b-as", "1f1b-sno", "fbp-as"])
@pytest.mark.parametrize("elements", [0.2, 1.3, 4.0])
def test_stragglers_of_plans_whose_ops_send_while_they_compute(schedule: str, elements: float) -> None:
    """As layers of more seconds, on lanes of a device and on one: an op that its sending makes long has time left."""

    def seconds(factors: tuple[float, ...], stragglers: dict[int, float] | None = None) -> float:
        layers = [(1.0 * one, 2.0 * one) for one in factors]
        network = measured_chain(*zip(*layers, strict=True), parameters=[0] * 3, output_elements=[elements] * 3)
        plan = Plan("hand", schedule, tuple(Stage((one,), (one,)) for one in range(3)), (1,) * 6)
        problem = Problem(network, chain_cluster(3, bandwidth=4.0), 6)
        return simulate(problem, plan, stragglers=stragglers).iteration_seconds

    alone, slow, by_hand = (
        seconds((1.0, 1.0, 1.0)),
        seconds((1.0, 1.0, 1.0), {0: 2.0, 2: 1.5}),
        seconds((2.0, 1.0, 1.5)),
    )
    assert slow == pytest.approx(by_hand, rel=1e-12)
    assert slow > alone


def test_noise_is_a_factor_on_what_noise_has_made_of_a_transfer() -> None:
    """A program with one draw takes another: as with the product of both."""
    costs = HandCosts(
        (1.0, 1.0), (2.0, 2.0), transfer_bytes=3.0, routes={(0, 1): (0,), (1, 0): (1,)}, channels=(channel(1.0),) * 2
    )
    once = noisy_program(lower(named_schedule("1f1b", 2, 4), costs))
    first, second = (once.factors(NOISE, np.random.default_rng(seed), 1)[0] for seed in (1, 2))
    twice = noisy_program(once.program(first)).program(second)
    found, expected = (reference.replay(one, contention=True) for one in (twice, once.program(first * second)))
    assert found.end == pytest.approx(expected.end)


@pytest.mark.parametrize("device", [0, 1])
def test_a_straggler_of_a_group_slows_what_is_computed(device: int) -> None:
    """Two devices that divide every layer: whichever is slow, an op's computing takes twice as long, its collectives not."""
    problem = pp.Problem("gpt2", "dgx-a100:1", batch=4)
    layers = tuple(range(len(problem.workload)))
    plan = Plan("hand", "gpipe", (Stage(layers, (0, 1), (2,)),), equal_microbatches(4, 2))
    alone, slow = simulate(problem, plan), simulate(problem, plan, stragglers={device: 2.0})
    split = alone.time_split()
    computed = float(split.mean[[0, 1, 7]].sum())
    assert 0.0 < computed < 0.95 * alone.iteration_seconds
    assert slow.iteration_seconds == pytest.approx(alone.iteration_seconds + computed, rel=1e-9)
    assert [one.peak_bytes for one in slow.memory] == [one.peak_bytes for one in alone.memory]


def test_a_straggler_among_replicas_has_the_others_wait() -> None:
    """Two replicas of one stage: the gradient of the slow one comes last, wherever it is; replicas are no longer alike."""
    problem = Problem(chain([1.0], parameters=[0]), chain_cluster(2), 4)
    plan = Plan("hand", "gpipe", (Stage((0,), (0, 1)),), (4,))
    found = [simulate(problem, plan, stragglers={one: 2.0}).iteration_seconds for one in (0, 1)]
    assert found[0] == found[1] > simulate(problem, plan).iteration_seconds


@pytest.mark.parametrize(
    ("disturbed", "message"),
    [
        ({"stragglers": {4: 2.0}}, "straggler 4 is unknown: there are devices 0 to 3"),
        ({"stragglers": {-1: 2.0}}, "straggler -1 is unknown"),
        ({"stragglers": {0: 0.5}}, "straggler 0: factor must be finite and at least 1, got 0.5"),
        ({"stragglers": {0: 1e7}}, "factor must be at most 1e"),
        ({"noise": 2.0}, "noise must be at least 0 and below 2"),
        ({"noise": "loud"}, "^noise must be a finite number, got 'loud'$"),
        ({"noise": 0.1, "replays": 0}, "replays must be a whole number of at least 1, got 0"),
        ({"noise": 0.1, "replays": 100_001}, "replays must be a whole number of at most 100,000"),
    ],
)
def test_what_no_replay_is_disturbed_by(disturbed: dict[str, Any], message: str) -> None:
    """One line for a schedule on numbers, and the same for a plan."""
    with pytest.raises(ValueError, match=message):
        replay_schedule(named_schedule("gpipe", 4, 4), OpSeconds(1.0, 2.0), **disturbed)
    problem = Problem(chain([1.0] * 4), chain_cluster(4), 4)
    plan = Plan("hand", "gpipe", tuple(Stage((s,), (s,)) for s in range(4)), (1,) * 4)
    with pytest.raises(ValueError, match=message):
        simulate(problem, plan, rng=np.random.default_rng(1), **disturbed)


def test_streams_that_send_while_they_compute_have_no_stragglers_on_numbers() -> None:
    """Where an op lasts as long as it sends, its own seconds are not known."""
    with pytest.raises(ValueError, match="stragglers do not go with communication 'streaming'"):
        replay_schedule(
            named_schedule("gpipe", 2, 2),
            OpSeconds(1.0, 1.0, transfer=2.0),
            communication="streaming",
            stragglers={0: 2.0},
        )
