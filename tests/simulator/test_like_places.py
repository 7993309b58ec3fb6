"""Replicas and transfers at like places: what was found for one is what a cluster that knows no other finds for each."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hardware_profiles import Operation, load_cluster
from simulator import Problem, Stage, workload_from_spec
from simulator.costs.plan_costs import StagePlaces
from tests.hardware_profiles.clusters import tree
from tests.simulator.strategies import UnitDevice

CLUSTERS = ("dgx-a100:4", "llama3-h100:6", "pipedream-b:4", "dapple-b")


def test_what_like_replicas_share_is_what_each_finds_alone() -> None:
    """Random tensor and context degrees, replicas at random devices or side by side, on clusters of several kinds of links."""
    random = Random(5)
    shared = 0
    for case in range(24):
        cluster = load_cluster(CLUSTERS[case % len(CLUSTERS)])
        tensor, context = random.choice((1, 2, 4)), random.choice((1, 2))
        devices = list(range(len(cluster.devices)))
        if random.random() < 0.4:
            random.shuffle(devices)
        size = tensor * context
        used = devices[: min(len(devices) // size, 8) * size]
        stage = Stage((0, 1), tuple(used), (size,) * (len(used) // size))
        together = StagePlaces(stage, Problem(workload_from_spec("chain:2"), cluster, 8), context, 1)
        pairs = [
            (one, other) for one in range(len(stage.replicas)) for other in range(len(stage.replicas)) if one != other
        ][:12]
        for replica in range(len(stage.replicas)):
            alone = StagePlaces(stage, Problem(workload_from_spec("chain:2"), replace(cluster), 8), context, 1)
            assert together.rates(replica) == alone.rates(replica)
            shared += replica > 0 and together.rates(replica) is together.rates(0)
        for one, other in pairs:
            alone = StagePlaces(stage, Problem(workload_from_spec("chain:2"), replace(cluster), 8), context, 1)
            assert together.flow(one, together, other) == alone.flow(one, alone, other)
    assert shared, "no two replicas were alike"


@pytest.mark.parametrize(("degrees", "beside"), [((4, 2), False), ((2, 2, 2), True)])
def test_groups_of_another_size_reduce_at_other_times(degrees: tuple[int, ...], beside: bool) -> None:
    """Two servers with an uplink of 1 byte/s each, over which all groups reduce: those of one size at once, others not."""
    cluster = replace(tree((3, 4.0), (2, 1.0)), tensor_groups="cluster")
    stage = Stage((0, 1), (0, 3, 1, 4, 2, 5), degrees)
    groups = stage.replicas
    places = StagePlaces(
        stage, Problem(workload_from_spec("chain:2"), replace(cluster, devices=(UnitDevice(),) * 6), 8), 1, 1
    )
    alone = cluster.collectives.rates(Operation.ALL_REDUCE, groups[0])
    together = cluster.collectives.rates(Operation.ALL_REDUCE, *groups) if beside else alone
    assert places.rates(0).tensor == together
    assert (together != alone) is beside
