"""What-ifs: hand-made cases of things that take no time, and what generated plans keep to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import load_cluster
from simulator import TIME_PARTS, Plan, Problem, Stage, load_workload, seconds_without, simulate
from simulator.what_if import WHAT_IFS
from tests.simulator.strategies import ASYNCHRONOUS, plans, star_cluster
from tests.simulator.test_context_and_experts import ATTENTION, EXPERTS
from tests.simulator.test_context_and_experts import plan as one_stage
from tests.simulator.test_groups import CHAIN, CLUSTER, PAIRS, grouped_plans
from tests.simulator.test_time_split import network, two_stages
from tests.simulator.test_waves_and_slices import sliced_plan


def test_transfers_that_take_no_time() -> None:
    """GPipe on two stages with transfers of 1 s takes 11 s: the first way down and the last way up fall away."""
    found = seconds_without(two_stages())
    assert found == {**dict.fromkeys(WHAT_IFS, 11.0), "transfers": 9.0, "all communication": 9.0}


def test_sends_that_occupy_no_device() -> None:
    """Where sends occupy the device, too."""
    assert seconds_without(two_stages(communication="send-blocking"), ["transfers"]) == {"transfers": 9.0}


def test_groups_that_reduce_and_gather_in_no_time() -> None:
    """Of 136 s, 24 + 4 + 28 + 40 + 4 + 36, the groups of two take 8 + 12 + 8 + 4; what runs again reduces again."""
    name = "tensor-parallel communication"
    assert seconds_without(simulate(Problem(CHAIN, CLUSTER, 2), PAIRS), [name]) == {name: 136.0 - 32.0}
    again = simulate(Problem(CHAIN, CLUSTER, 2, recompute="whole"), PAIRS)
    found = seconds_without(again, [name, "recomputation"])
    assert found == {name: 136.0 - 32.0 + 2 * 16.0, "recomputation": 136.0}


def test_tokens_and_experts_that_cross_in_no_time() -> None:
    """Of two samples' forward and backward, 96 s: 48 s of keys and values, 32 s of exchanges with experts; behind 2000 and 100 s
    of gradients.
    """
    plans_of = one_stage(ATTENTION, 2, 2, context=2), one_stage(EXPERTS, 2, expert=2)
    names = "context-parallel communication", "expert-parallel communication"
    found = [
        seconds_without(simulate(Problem(workload, CLUSTER, 2), plan), names)
        for workload, plan in zip((ATTENTION, EXPERTS), plans_of, strict=True)
    ]
    assert [tuple(one.values()) for one in found] == [(2096.0, 2144.0), (228.0, 196.0)]


def test_gradients_that_are_reduced_in_no_time() -> None:
    """Two buckets of 1 s, one of them behind a backward of 8 s and a forward of 4 s."""
    problem = Problem(network(2, 7_000_000), star_cluster(2, bandwidth=28e6), 4)
    outcome = simulate(problem, Plan("hand", "gpipe", (Stage((0, 1), (0, 1)),), (4,)))
    assert seconds_without(outcome)["gradient sync"] == outcome.iteration_seconds - 1.0 == 12.0


def test_an_optimizer_that_takes_no_time_still_gathers_weights() -> None:
    """ZeRO 1 gathers 20 s behind an update: that is gradient sync."""
    plan = Plan("hand", "gpipe", (Stage((0, 1), (0, 1)),), (4,), zero=1)
    outcome = simulate(Problem(network(2, 1000), star_cluster(2, bandwidth=100.0), 4, optimizer="adam"), plan)
    found = seconds_without(outcome, ["optimizer", "gradient sync"])
    assert found == {"optimizer": outcome.iteration_seconds, "gradient sync": 12.0}


def test_updates_that_take_no_time() -> None:
    """One GPU alone: what is saved is what the time split counts as the optimizer's."""
    problem = Problem(load_workload("alexnet"), load_cluster("pipedream-b").take(1), 32, optimizer="adam")
    layers = tuple(range(len(problem.workload)))
    outcome = simulate(problem, Plan("hand", "gpipe", (Stage(layers, (0,)),), (32,)))
    split = dict(zip(TIME_PARTS, outcome.time_split().mean.tolist(), strict=True))
    saved = outcome.iteration_seconds - seconds_without(outcome, ["optimizer"])["optimizer"]
    assert saved == pytest.approx(split["optimizer"])
    assert saved > 0


@pytest.mark.parametrize("slices", [1, 2])
def test_slices_that_run_again_in_no_time(slices: int) -> None:
    """A language model that recomputes its attention takes without it what one takes that keeps it."""
    again, kept = (simulate(*sliced_plan(slices, recompute=policy)) for policy in ("attention", "none"))
    assert again.iteration_seconds > kept.iteration_seconds
    assert seconds_without(again, ["recomputation"])["recomputation"] == pytest.approx(kept.iteration_seconds)


@settings(max_examples=5)
@given(st.one_of(plans(1), grouped_plans(), plans(1, names=ASYNCHRONOUS)))
def test_what_takes_time_is_all_that_can_be_saved(case: tuple[Problem, list[Plan]]) -> None:
    """Without recomputation, groups and updates that take time, nothing changes if they take none; without contention nothing
    that takes no time makes a flushed plan slower."""
    problem, (plan, *_) = case
    problem = replace(problem, contention=False)
    outcome = simulate(problem, plan, engine="compiled")
    found = seconds_without(outcome)
    assert found["optimizer"] == pytest.approx(outcome.iteration_seconds)
    if not any(stage.degrees for stage in plan.stages):
        assert found["tensor-parallel communication"] == pytest.approx(outcome.iteration_seconds)
    if outcome.schedule.flush and outcome.schedule.lanes is None:
        assert max(found.values()) <= outcome.iteration_seconds * (1 + 1e-9)
