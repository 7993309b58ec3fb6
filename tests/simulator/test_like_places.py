"""Replicas and transfers at like places: what was found for one is what a cluster that knows no other finds for each."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hardware_profiles import Operation, load_cluster
from simulator import Problem, Stage, workload_from_spec
from simulator.costs.plan_costs import StagePlaces
from tests.simulator.strategies import star_cluster

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


def test_groups_of_another_size_reduce_at_other_times() -> None:
    """Four and two devices around a switch: each group has its links to itself."""
    cluster = replace(star_cluster(6), tensor_groups="cluster")
    places = StagePlaces(
        Stage((0, 1), tuple(range(6)), (4, 2)), Problem(workload_from_spec("chain:2"), cluster, 8), 1, 1
    )
    found = [places.rates(replica).tensor for replica in (0, 1)]
    assert found == [cluster.collectives.rates(Operation.ALL_REDUCE, range(*ends)) for ends in ((0, 4), (4, 6))]
