"""Tests of `simulator.simulate`: a problem and a plan to a timeline, its memory, and the seconds of an iteration."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners import make_plan
from simulator import LayerCosts, OpKind, Plan, Problem, Stage, equal_microbatches, simulate
from simulator.costs.plan_costs import PlanCosts
from simulator.lowering.structure import Structure
from simulator.plan_replay import plan_structure
from tests.chains import chain
from tests.simulator.strategies import bits, chain_cluster, star_cluster


def straight(n: int) -> tuple[Stage, ...]:
    """Layer s on device s."""
    return tuple(Stage((s,), (s,)) for s in range(n))


def problem(flop: list[float], batch: int, **changes: Any) -> Problem:
    """Layers of `flop` seconds a sample forward, twice that backward; no weights, nothing to send."""
    return replace(Problem(chain(flop), chain_cluster(len(flop)), batch), **changes)


# ---- flushed ---------------------------------------------------------------------------------------------------------


def test_a_flushed_iteration_is_its_makespan() -> None:
    """1F1B, 4 stages, 8 micro-batches of 1 sample, F = 1, B = 2: 33 s, 8/33 samples a second."""
    outcome = simulate(problem([1.0] * 4, 8), Plan("hand", "1f1b", straight(4), (1,) * 8))
    assert outcome.iteration_seconds == outcome.timeline.makespan_seconds == 33.0
    assert outcome.samples_per_second == 8 / 33
    assert outcome.stream == 8


def test_sizes_of_a_stages_own() -> None:
    """Stages may cut the mini-batch at their own places; the plan carries both lists."""
    plan = Plan("hand", "gpipe", straight(2), (2, 2), forward_sizes=((1, 3), (2, 2)), backward_sizes=((2, 2), (3, 1)))
    timeline = simulate(problem([1.0, 1.0], 4), plan).timeline
    forward, backward = timeline.kind == OpKind.FORWARD, timeline.kind == OpKind.BACKWARD
    assert timeline.samples[forward].tolist() == [1, 3, 2, 2]
    assert timeline.samples[backward].tolist() == [2, 2, 3, 1]


def test_interleaved_plan() -> None:
    """2 devices, 2 stages each, 4 micro-batches: m·v·(F + B) + (p - 1)(F + B) = 8 · 3 + 3."""
    stages = tuple(Stage((s,), (s % 2,)) for s in range(4))
    outcome = simulate(problem([1.0] * 4, 4), Plan("hand", "interleaved-1f1b", stages, (1,) * 4))
    assert outcome.iteration_seconds == 27.0
    assert outcome.timeline.devices().tolist() == [0, 1]


def test_data_parallelism() -> None:
    """One stage on 4 devices, 8 samples: 2 samples each, 6 s, and the ring all-reduce of 400 bytes."""
    workload = chain([1.0], parameters=[100], output_elements=[1.0])
    one = Problem(workload, star_cluster(4), 8, optimizer="sgd")
    outcome = simulate(one, Plan("hand", "gpipe", (Stage((0,), (0, 1, 2, 3)),), (8,)))
    assert outcome.iteration_seconds == pytest.approx(
        6.0 + one.cluster.collectives.allreduce_seconds((0, 1, 2, 3), 400.0), abs=1e-3
    )
    assert outcome.bytes_per_sample == pytest.approx(2 * 3 * 400 / 8)


def test_a_flushed_iteration_ends_in_the_update_of_every_stage() -> None:
    """Two stages, last backwards that end at 9 and 7: one update each behind them (free on these devices)."""
    timeline = simulate(problem([1.0, 1.0], 2), Plan("hand", "gpipe", straight(2), (1, 1))).timeline
    updates = timeline.kind == OpKind.UPDATE
    assert timeline.stage[updates].tolist() == [0, 1]
    assert timeline.start[updates].tolist() == [9.0, 7.0]


def test_bytes_per_sample() -> None:
    """Boundaries once down and once up; gradients 2(R - 1) times their bytes a mini-batch; nothing within a device."""
    workload = chain([1.0] * 3, parameters=[0, 0, 50], output_elements=[4.0, 2.0, 1.0])
    one = Problem(workload, star_cluster(3), 10)
    plan = Plan("hand", "gpipe", (Stage((0,), (0,)), Stage((1, 2), (1, 2))), (10,))
    assert simulate(one, plan).bytes_per_sample == pytest.approx(2 * 16 + 2 * 200 / 10)
    looped = tuple(Stage((s,), (0,)) for s in range(3))
    assert simulate(one, replace(plan, schedule="looped-bfs", stages=looped)).bytes_per_sample == 0.0


# ---- asynchronous ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "count"), [(1, 4), (2, 1), (6, 4)])
def test_steady_state_of_a_balanced_chain_is_a_stages_round_trip(n: int, count: int) -> None:
    """Asynchronous 1F1B has no bubble: F + B = 3 s a mini-batch, fill and drain not counted."""
    outcome = simulate(problem([1.0] * n, count), Plan("hand", "pipedream", straight(n), (1,) * count))
    assert outcome.iteration_seconds == pytest.approx(3.0 * count, rel=1e-12)


def round_robin(replicas: tuple[int, ...], parameters: int = 0) -> float:
    """Steady seconds a mini-batch where stage s takes r_s + 2·r_s seconds on r_s replicas."""
    first = np.concatenate([[0], np.cumsum(replicas)]).tolist()
    stages = tuple(Stage((s,), tuple(range(first[s], first[s + 1]))) for s in range(len(replicas)))
    workload = chain([float(r) for r in replicas], parameters=[parameters] * len(replicas))
    one = Problem(workload, chain_cluster(sum(replicas), bandwidth=1e12), 1)
    plan = Plan("hand", "1f1b-rr", stages, (1,), replication="round-robin")
    return simulate(one, plan).iteration_seconds


REPLICAS = [(2, 1), (5, 1), (15, 1), (1, 2), (3, 2), (2, 1, 1)]


@pytest.mark.parametrize("replicas", REPLICAS)
def test_round_robin_keeps_the_pace_of_the_slowest_stage(replicas: tuple[int, ...]) -> None:
    """Every stage takes 3 s a mini-batch, and so does the pipeline: without weights replicas never wait for each other.

    The seconds are measured over whole rounds: 15 replicas that end together are 15 mini-batches, not a part of them.
    """
    assert round_robin(replicas) == pytest.approx(3.0, rel=1e-9)


@pytest.mark.parametrize("replicas", REPLICAS)
def test_round_robin_is_never_faster_than_its_slowest_stage(replicas: tuple[int, ...]) -> None:
    """With weights every update waits for its round's all-reduce: 3 s a mini-batch at least, all in turn at most."""
    assert 3.0 * (1 - 1e-9) <= round_robin(replicas, parameters=10) <= 3.0 * sum(replicas)


# ---- engines and noise -----------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    schedule=st.sampled_from(["gpipe", "1f1b", "eager-1f1b", "pipedream"]),
    flop=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=4),
    count=st.integers(1, 4),
    communication=st.sampled_from(["overlapped", "send-blocking", "both-blocking"]),
    recompute=st.booleans(),
    size=st.floats(0.0, 2.0),
)
def test_engines_agree_on_plans(
    schedule: str, flop: list[float], count: int, communication: Any, recompute: bool, size: float
) -> None:
    """Without contention both engines give the same timeline and the same memory, to the bit."""
    n = len(flop)
    workload = chain(flop, parameters=[10] * n, output_elements=[size] * n)
    one = Problem(
        workload, chain_cluster(n), 3 * count, communication=communication, recompute=recompute, contention=False
    )
    plan = Plan("hand", schedule, straight(n), equal_microbatches(3 * count, count))
    reference, compiled = (simulate(one, plan, engine=engine) for engine in ("simpy", "recurrence"))
    assert bits(reference.timeline.end, compiled.timeline.end)
    assert reference.iteration_seconds == compiled.iteration_seconds
    for ours, theirs in zip(reference.memory, compiled.memory, strict=True):
        assert bits(ours.bytes, theirs.bytes)


def test_noise_is_seeded_and_wants_its_generator() -> None:
    """The same seed gives the same iteration; without a generator noise is refused."""
    one, plan = problem([1.0] * 2, 4), Plan("hand", "1f1b", straight(2), (1,) * 4)
    first, again, other = (
        simulate(one, plan, noise=0.1, rng=np.random.default_rng(seed)).iteration_seconds for seed in (3, 3, 4)
    )
    assert first == again != other
    with pytest.raises(ValueError, match="noise needs a random generator"):
        simulate(one, plan, noise=0.1)


def test_unknown_engine() -> None:
    """The choices are told."""
    with pytest.raises(ValueError, match="engine 'steam' is unknown; choices: simpy, compiled, recurrence"):
        simulate(problem([1.0], 1), Plan("hand", "gpipe", straight(1), (1,)), engine="steam")  # type: ignore[arg-type]


def test_a_plan_of_no_seconds_has_a_summary() -> None:
    """Nothing to compute, nothing to send: 0 s an iteration, infinitely many samples a second, no gap to the bound."""
    result = make_plan("uniform", problem([0.0, 0.0], 2))
    assert (result.outcome.iteration_seconds, result.outcome.samples_per_second, result.gap) == (0.0, math.inf, 0.0)
    assert "0 s" in result.summary()


def test_plans_share_a_structure_where_layers_and_devices_alone_differ() -> None:
    """Other cuts or devices, the same structure; another schedule, size, replica or gradient, or costs of one's own: another."""
    asked = problem([1.0] * 6, 8)
    costs = LayerCosts(asked)
    plan = Plan("hand", "1f1b", (Stage((0, 1), (0,)), Stage((2, 3, 4, 5), (1,))), (2,) * 4)

    def structure(costs: LayerCosts, **changes: Any) -> Structure:
        return plan_structure(PlanCosts(asked, replace(plan, **changes), costs))[1]

    same = structure(costs)
    assert structure(costs, planner="other", stages=(Stage((0, 1, 2), (3,)), Stage((3, 4, 5), (2,)))) is same
    for changes in (
        {"schedule": "gpipe"},
        {"microbatches": (1,) * 8},
        {"microbatches": (3, 1, 2, 2)},
        {"stages": (Stage((0, 1), (0,)), Stage((2, 3, 4, 5), (1, 2)))},
    ):
        assert structure(costs, **changes) is not same
    assert structure(LayerCosts(asked)) is not same
