"""Time split: hand-made cases of every part, and the sum over generated plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import TIME_PARTS, Layer, Outcome, Plan, Problem, Stage, TimeSplit, Workload, simulate
from tests.simulator.strategies import ASYNCHRONOUS, UnitDevice, plans, star_cluster
from tests.simulator.test_context_and_experts import ATTENTION, EXPERTS
from tests.simulator.test_context_and_experts import plan as one_stage
from tests.simulator.test_groups import CHAIN, CLUSTER, PAIRS, grouped_plans


def of_device(split: TimeSplit, row: int) -> dict[str, float]:
    """The parts of a device that take time."""
    return {name: seconds for name, seconds in zip(TIME_PARTS, split.seconds[row].tolist(), strict=True) if seconds}


def network(layers: int, parameters: int = 0) -> Workload:
    """A chain of layers of 1 FLOP per sample, with 4 elements (16 bytes) between them."""
    made = (Layer(f"layer{number}", "linear", 1.0, parameters, 4.0, 4.0) for number in range(layers))
    return Workload("chain", tuple(made), tuple((number, number + 1) for number in range(layers - 1)))


def two_stages(**options: Any) -> Outcome:
    """GPipe, two micro-batches of a sample: forwards of 1 s, backwards of 2 s, transfers of 1 s."""
    problem = Problem(network(2), star_cluster(2, bandwidth=16.0), 2, **options)
    return simulate(problem, Plan("hand", "gpipe", (Stage((0,), (0,)), Stage((1,), (1,))), (1, 1)))


def test_waits_are_bubble_until_a_transfer_sets_out() -> None:
    """Stage 0: F 0-2, then the first gradient sets out at 6 and arrives at 7. Stage 1: the first activation sets out at 1 and
    arrives at 2; its last backward ends at 8 of 11. Each waits for one of two transfers; the other one is hidden.
    """
    outcome = two_stages()
    split = outcome.time_split()
    assert outcome.iteration_seconds == 11.0
    assert of_device(split, 0) == {"computation": 6.0, "transfers": 1.0, "bubble": 4.0}
    assert of_device(split, 1) == {"computation": 6.0, "transfers": 1.0, "bubble": 1.0 + 3.0}
    assert split.hidden.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_sends_that_occupy_a_device_are_transfers() -> None:
    """Stage 0 sends for 2 s itself, and waits 2 s for sends of stage 1, of the second of which nothing is hidden."""
    outcome = two_stages(communication="send-blocking")
    assert outcome.iteration_seconds == 13.0
    assert of_device(outcome.time_split(), 0) == {"computation": 6.0, "transfers": 4.0, "bubble": 3.0}


def test_collectives_of_a_group_are_told_from_its_products() -> None:
    """The stages of `test_two_stages_of_two_devices_by_hand`: forwards of 16 s, with 8 or 12 s of collectives, backwards of 32 s,
    with 4 or 8 s; each device is one of two alike.
    """
    split = simulate(Problem(CHAIN, CLUSTER, 2), PAIRS).time_split()
    name = "tensor-parallel communication"
    assert of_device(split, 0) == {"computation": 48.0, name: 12.0, "transfers": 4.0, "bubble": 72.0}
    assert of_device(split, 1) == {"computation": 48.0, name: 20.0, "transfers": 4.0, "bubble": 24.0 + 40.0}
    assert split.members.tolist() == [2, 2]


def test_collectives_of_context_and_experts_have_parts_of_their_own() -> None:
    """Two samples on devices that divide their tokens, and on two that divide experts: forwards of 32 s, with 16 s more each, and
    backwards of 64 s, with 32 and 16 s more, as in `tests.simulator.test_context_and_experts`.
    """
    context, experts = (
        simulate(Problem(workload, CLUSTER, 2), plan).time_split()
        for workload, plan in (
            (ATTENTION, one_stage(ATTENTION, 2, 2, context=2)),
            (EXPERTS, one_stage(EXPERTS, 2, expert=2)),
        )
    )
    work = {"computation": 96.0}
    assert of_device(context, 0) == {**work, "context-parallel communication": 48.0, "gradient sync": 2000.0}
    assert of_device(experts, 0) == {**work, "expert-parallel communication": 32.0, "gradient sync": 100.0}


def test_what_runs_again_is_no_useful_computation() -> None:
    """A stage that runs its forward again computes 16 s more, and reduces 8 s more."""
    kept, again = (
        simulate(Problem(CHAIN, CLUSTER, 2, recompute=word), PAIRS).time_split() for word in ("none", "whole")
    )
    more = dict(zip(TIME_PARTS, (again.seconds - kept.seconds)[0].tolist(), strict=True))
    assert (more["computation"], more["recomputation"], more["tensor-parallel communication"]) == (0.0, 16.0, 8.0)


@pytest.mark.parametrize(("zero", "sync"), [(0, 40.0), (1, 20.0 + 20.0)])
def test_reductions_behind_the_backward_are_exposed(zero: Any, sync: float) -> None:
    """Forward 10 s, backward 20 s, all-reduce 40 s; with ZeRO 1 a scatter of 20 s, and a gather of 20 s behind the update."""
    workload = Workload("one", (Layer("a", "linear", 5.0, 1000, 1.0, 0.0),), ())
    problem = Problem(workload, star_cluster(2, bandwidth=100.0), 4, optimizer="adam")
    outcome = simulate(problem, Plan("hand", "gpipe", (Stage((0,), (0, 1)),), (4,), zero=zero))
    assert of_device(outcome.time_split(), 1) == {"computation": 30.0, "gradient sync": sync}


def test_who_waits_for_a_slower_replica_waits_for_its_work() -> None:
    """A replica of half the speed takes 12 s, the other 6 s; then both wait 40 s for the gradients of both."""
    cluster = replace(star_cluster(2, bandwidth=100.0), devices=(UnitDevice(), UnitDevice(rate=0.5)))
    plan = Plan("hand", "gpipe", (Stage((0,), (0, 1)),), (4,))
    split = simulate(Problem(network(1, 1000), cluster, 4), plan).time_split()
    assert of_device(split, 0) == {"computation": 6.0, "bubble": 6.0, "gradient sync": 40.0}
    assert of_device(split, 1) == {"computation": 12.0, "gradient sync": 40.0}


def test_of_several_things_an_op_waits_for_the_last() -> None:
    """Stage 1 has a sample from a replica after 1 + 1 s, and two from one of an eighth of the speed after 16 + 2 s."""
    cluster = replace(star_cluster(3, bandwidth=16.0), devices=(UnitDevice(), UnitDevice(rate=0.125), UnitDevice()))
    plan = Plan("hand", "gpipe", (Stage((0,), (0, 1)), Stage((1,), (2,))), (3,))
    split = simulate(Problem(network(2), cluster, 3), plan).time_split()
    assert of_device(split, 2)["transfers"] == 2.0


def test_an_overlapped_pair_has_the_parts_of_both() -> None:
    """Two micro-batches on one device, the second's forward beside the first's backward, which runs its forward again."""
    order = ("0F0 (0F1;0B0)OVERLAP_F_B 0B1",)
    plan = Plan("hand", "own", (Stage((0,), (0,)),), (1, 1), order=order, recompute=("whole",))
    split = simulate(Problem(network(1), star_cluster(1), 2), plan).time_split()
    assert of_device(split, 0) == pytest.approx({"computation": 6.0, "recomputation": 2.0})


@pytest.mark.parametrize("order", ["0F0 0A0 0B0", "0F0 0A0 0I0 0W0", "0F0 0B0", "0F0 0I0 0W0"])
def test_what_runs_again_counts_once_wherever_it_runs(order: str) -> None:
    """In an op of its own or inside the backward, in one piece or two: 1 + 2 s of work for each sample, 1 s again."""
    plan = Plan("hand", "own", (Stage((0,), (0,)),), (2,), order=(order,), recompute=("whole",))
    split = simulate(Problem(network(1), star_cluster(1), 2), plan).time_split()
    assert of_device(split, 0) == pytest.approx({"computation": 6.0, "recomputation": 2.0})


@pytest.mark.parametrize("lanes", ["shared", "split"])
def test_lanes_of_a_device_together_are_what_it_works(lanes: str) -> None:
    """FBP-AS: forwards of 1 s and backwards of 2 s share a device, or each takes as long as both on a fixed share of it."""
    plan = Plan("hand", "fbp-as", (Stage((0,), (0,)), Stage((1,), (1,))), (1, 1), options=(("lanes", lanes),))
    outcome = simulate(Problem(network(2), star_cluster(2, bandwidth=16.0), 2, contention=False), plan)
    split = outcome.time_split()
    assert split.seconds.sum(axis=1) == pytest.approx(outcome.iteration_seconds)
    assert of_device(split, 0)["computation"] == pytest.approx(2 * 3.0)


def test_buckets_beside_the_backward_are_hidden() -> None:
    """Two layers of 28 MB, a bucket of 1 s each: that of layer 1 is reduced while layer 0 computes its gradients, that of layer 0
    behind them.
    """
    problem = Problem(network(2, 7_000_000), star_cluster(2, bandwidth=28e6), 4)
    split = simulate(problem, Plan("hand", "gpipe", (Stage((0, 1), (0, 1)),), (4,))).time_split()
    assert of_device(split, 0) == {"computation": 4.0 + 8.0, "gradient sync": 1.0}
    assert split.hidden.tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_means_weigh_every_device_alike() -> None:
    """A group of two counts twice as much as a device alone."""
    stages = Stage((0, 1), (0,)), Stage((2, 3), (2, 3), (2,))
    split = simulate(Problem(CHAIN, CLUSTER, 2), replace(PAIRS, stages=stages)).time_split()
    assert split.members.tolist() == [1, 2]
    assert split.mean.tolist() == ((split.seconds[0] + 2 * split.seconds[1]) / 3).tolist()
    assert [name for name in TIME_PARTS if name in repr(split)] == [
        name for name, mean in zip(TIME_PARTS, split.mean.tolist(), strict=True) if mean
    ]


def test_a_stream_that_takes_no_time_has_no_parts() -> None:
    """Layers of no FLOP on one device, asynchronously."""
    workload = Workload("idle", (Layer("a", "linear", 0.0, 0, 1.0, 0.0),), ())
    problem = Problem(workload, star_cluster(1), 4)
    outcome = simulate(problem, Plan("hand", "pipedream", (Stage((0,), (0,)),), (4,)))
    assert of_device(outcome.time_split(), 0) == {}


@settings(max_examples=6)
@given(st.one_of(plans(1), grouped_plans(), plans(1, names=ASYNCHRONOUS)))
def test_the_parts_of_every_device_sum_to_the_iteration(case: tuple[Problem, list[Plan]]) -> None:
    """Flushed or not, groups or not, lanes that share a device or not; and no part is negative."""
    problem, (plan, *_) = case
    outcome = simulate(problem, plan, engine="compiled")
    split = outcome.time_split()
    np.testing.assert_allclose(split.seconds.sum(axis=1), outcome.iteration_seconds, rtol=1e-9)
    assert split.mean.sum() == pytest.approx(outcome.iteration_seconds)
    assert min(split.seconds.min(), split.hidden.min()) >= -1e-9 * outcome.iteration_seconds
