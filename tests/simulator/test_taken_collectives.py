"""Taken collectives: what a plan's groups and replicas run, in the seconds that its costs charge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_profiles import Constant, Operation, Stack, load_cluster, reduce_seconds
from simulator import Plan, PlanCosts, Problem, Stage, TakenCollective, Zero, load_workload, taken_collectives
from simulator.costs.plan_costs import COMPARED_BYTES


def costs_of(zero: Zero, shard: int = 0, *, degree: int = 1) -> PlanCosts:
    """GPT-2 on two servers as two stages, each replicated over one of them."""
    problem = Problem(load_workload("gpt2"), load_cluster("dgx-a100:2"), 64, precision="bf16", optimizer="adam")
    layers = range(len(problem.workload))
    cut, degrees = len(layers) // 2, (degree,) * (8 // degree)
    stages = tuple(
        Stage(tuple(held), tuple(range(at, at + 8)), degrees if degree > 1 else ())
        for held, at in ((layers[:cut], 0), (layers[cut:], 8))
    )
    return PlanCosts(problem, Plan("hand", "1f1b", stages, (32, 32), zero=zero, shard=shard))


def of_stage(costs: PlanCosts, stage: int, what: str) -> list[TakenCollective]:
    return [one for one in taken_collectives(costs) if stage in one.stages and one.what == what]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("stage", [0, 1])
def test_seconds_are_those_that_are_charged(zero: Zero, stage: int) -> None:
    """Of the largest bucket, or unit, and of the gather of all weights behind an update."""
    costs = costs_of(zero)
    charged = costs.collectives(stage)
    (gradients,), weights = of_stage(costs, stage, "gradients"), of_stage(costs, stage, "weights")
    reduced = [one.seconds for one in charged.buckets] or [one.scatter for one in charged.units]
    assert gradients.seconds == pytest.approx(max(reduced), rel=1e-9)
    assert gradients.operation == ("reduce-scatter" if zero else "all-reduce")
    assert (gradients.devices, gradients.servers) == (8, 1)
    gathered = (
        [charged.update_gather.seconds] if charged.update_gather else [one.gather or 0.0 for one in charged.units]
    )
    assert [one.seconds for one in weights] == pytest.approx([max(gathered)] if zero else [], rel=1e-9)


def test_ways_are_named_with_their_protocol() -> None:
    """Small tensors take another protocol than large ones; eight cards under one switch sum in it or go round in rings."""
    found = taken_collectives(costs_of(0, degree=4))
    assert {one.what for one in found} == {"tensor groups", "gradients"}
    assert all(one.way and one.seconds > 0.0 for one in found)
    assert {one.devices for one in found if one.what == "tensor groups"} == {4}


def test_a_lone_group_sums_what_its_layers_hand_on() -> None:
    """One group of eight, without replicas: its tensors, of 32 sequences of 1,024 tokens and 768 features in two bytes."""
    found = taken_collectives(costs_of(0, degree=8))
    assert {(one.what, one.devices, one.size_bytes) for one in found} == {("tensor groups", 8, 32 * 1024 * 768 * 2.0)}


def test_hybrid_sharding_sums_among_copies() -> None:
    """What four of eight devices scatter among themselves, two copies all-reduce, a quarter each."""
    scatter, copies = of_stage(costs_of(1, 4), 0, "gradients")
    assert (scatter.operation, scatter.devices) == ("reduce-scatter", 4)
    assert (copies.operation, copies.devices, copies.size_bytes) == ("all-reduce", 2, scatter.size_bytes / 4)


def test_channels_are_busy_while_their_own_part_runs() -> None:
    """Eight of sixteen replicas scatter inside a server, then pairs sum an eighth between servers: cards wait for NVLinks."""
    costs = costs_of(1, 4)
    (first, second), problem = costs.plan.stages, costs.problem
    whole = Stage((*first.layers, *second.layers), tuple(range(16)))
    places = PlanCosts(problem, replace(costs.plan, stages=(whole,), shard=8)).places(0)
    run, scatter = problem.cluster.collectives, Operation.REDUCE_SCATTER
    parts = (scatter, places.shard_rings, 1.0), (Operation.ALL_REDUCE, places.copy_rings, 1 / 8)
    seconds = [reduce_seconds(run.rates(one, *rings), share * COMPARED_BYTES) for one, rings, share in parts]
    expected: dict[int, float] = {}
    for (one, rings, _), took in zip(parts, seconds, strict=True):
        for channel, share in zip(*run.busy(one, *rings), strict=True):
            expected[channel] = expected.get(channel, 0.0) + share * took / sum(seconds)
    found = dict(zip(*places.busy(scatter), strict=True))
    assert list(found) == sorted(expected)
    assert found == pytest.approx(expected, rel=0.01)


def test_seconds_are_those_of_the_stack() -> None:
    """Of tensor-parallel groups three times, of replicas twice what the links take."""
    stack = Stack(name="mine", tensor_collectives=Constant(3.0), replica_collectives=Constant(2.0))
    costs = costs_of(0, degree=4)
    own = PlanCosts(replace(costs.problem, stack=stack), costs.plan)
    for slow, one in zip(taken_collectives(own), taken_collectives(costs), strict=True):
        times = 3.0 if one.what == "tensor groups" else 2.0
        assert slow == replace(one, seconds=slow.seconds)
        assert slow.seconds == pytest.approx(times * one.seconds)


def test_devices_alone_run_none() -> None:
    """Stages of one device have nothing to sum."""
    problem = Problem(load_workload("gpt2"), load_cluster("dgx-a100:1"), 8)
    plan = Plan("hand", "1f1b", (Stage(tuple(range(len(problem.workload))), (0,)),), (8,))
    assert taken_collectives(PlanCosts(problem, plan)) == ()
