"""PipeDream's dynamic program over unlike devices in an order, beside plain enumeration and the program of alike ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pytest

from planners.pipedream.ordered_devices import OrderedDevices, ordered_partition
from planners.pipedream.partitioner import LevelStage, MemoryLimit, network_levels, partition
from planners.pipedream.state_table import StateTable
from tests.planners.test_pipedream import network, tabled

KINDS = 0, 0, 1, 1


def slowest(
    tables: Sequence[StateTable],
    kinds: Sequence[int],
    memories: Sequence[float],
    stages: Sequence[LevelStage],
    *,
    barrier: bool,
) -> float:
    """Seconds of the slowest stage or transfer at 2 bytes per second; infinite where a stage does not fit."""
    worst, taken = 0.0, 0
    for stage in stages:
        own, taken = kinds[taken : taken + stage.workers], taken + stage.workers

        def total(figures: np.ndarray, stage: LevelStage = stage) -> float:
            return float(figures[stage.stop - 1] - (figures[stage.start - 1] if stage.start else 0.0))

        compute = max(total(tables[kind].seconds) for kind in own)
        weights, outputs = total(tables[0].parameter_bytes), total(tables[0].stash_bytes)
        ring = 2 * (stage.workers - 1) / stage.workers * weights / 2.0
        both = compute + ring if barrier else max(compute, ring)
        worst = max(worst, both / stage.workers)
        if stage.start:
            worst = max(worst, 2 * float(tables[0].output_bytes[stage.start - 1]) / 2.0)
        versions = 1 + -(-(len(kinds) - taken) // stage.workers)
        if versions * outputs + (versions + 1.0) * weights > min(memories[kind] for kind in own):
            return float("inf")
    return worst


@pytest.mark.parametrize("seed", range(6))
def test_no_partition_in_the_order_is_faster(seed: int) -> None:
    """Over every cut and every number of replicas that use all devices, within memory or not at all."""
    rng = np.random.default_rng(seed)
    count, barrier = 4, bool(seed % 2)
    one, two, parameters, outputs = rng.integers(1, 10, (4, count)).tolist()
    tables = [tabled(network(seconds, parameters, outputs)) for seconds in (one, two)]
    memories = [(60.0, 60.0), (25.0, 60.0)][seed % 2]
    devices = OrderedDevices(KINDS, 2.0, 2.0)
    best = float("inf")
    for stages in range(1, len(KINDS) + 1):
        for cuts, replicas in product(combinations(range(1, count), stages - 1), product(range(1, 5), repeat=stages)):
            if sum(replicas) == len(KINDS):
                plan = tuple(map(LevelStage, (0, *cuts), (*cuts, count), replicas))
                best = min(best, slowest(tables, KINDS, memories, plan, barrier=barrier))
    found = ordered_partition(tables, devices, [MemoryLimit(one) for one in memories], barrier=barrier)
    if best == float("inf"):
        assert found is None
    else:
        assert found is not None
        assert slowest(tables, KINDS, memories, found, barrier=barrier) == pytest.approx(best, rel=1e-12)


def test_alike_devices_have_the_partition_of_a_flat_cluster() -> None:
    """On four devices of one kind the slowest stage is that of the program for alike workers."""
    table = tabled(network([4.0, 1.0, 7.0, 2.0, 5.0], [1, 2, 1, 3, 1], [2.0, 1.0, 3.0, 1.0, 1.0]))
    found = ordered_partition([table], OrderedDevices((0,) * 4, 2.0, 2.0), [MemoryLimit()])
    assert found is not None
    expected = partition(table, network_levels((4,), (2.0,))).slowest_stage_seconds
    assert slowest([table], (0,) * 4, [1e9], found, barrier=False) == pytest.approx(expected, rel=1e-12)


def test_straight_stages_have_one_device_each() -> None:
    """Asked for straight stages there are as many as devices; five of four layers there are not."""
    table = tabled(network([4.0, 1.0, 7.0, 2.0], [1] * 4, [1.0] * 4))
    found = ordered_partition([table], OrderedDevices((0,) * 4, 2.0, 2.0), [MemoryLimit()], straight=True)
    assert found == tuple(LevelStage(at, at + 1, 1) for at in range(4))
    assert ordered_partition([table], OrderedDevices((0,) * 5, 2.0, 2.0), [MemoryLimit()], straight=True) is None
