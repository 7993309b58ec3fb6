"""Tuned GPipe's partition: all partitions one by one where they are few, else those that the front search hands back."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners import equal_partition
from planners.partitioning import equal_partition as module
from planners.partitioning.partition_costs import PartitionCosts
from simulator import LayerCosts, Plan, Problem, simulate, stages_from_cuts
from tests.chains import chain
from tests.simulator.strategies import chain_cluster


def costs_of(seed: int, batch: int, devices: int = 3) -> LayerCosts:
    """Six random layers on a few devices with links of their own."""
    rng = np.random.default_rng(seed)
    network = chain(
        rng.uniform(1e9, 9e9, 6).tolist(),
        parameters=[10**6] * 6,
        output_elements=rng.uniform(1e4, 4e5, 6).tolist(),
    )
    return LayerCosts(Problem(network, load_cluster("dapple-c").take(devices), batch))


def replayed(costs: LayerCosts, cuts: tuple[int, ...], size: int) -> float:
    """Seconds of GPipe's last backward ; the last micro-batch takes what is left."""
    whole, rest = divmod(costs.problem.batch, size)
    stages = stages_from_cuts(cuts, len(costs.problem.workload), [(device,) for device in range(len(cuts) + 1)])
    plan = Plan("test", "gpipe", stages, (size,) * whole + ((rest,) if rest else ()))
    timeline = simulate(costs.problem, plan, engine="recurrence", layer_costs=costs).timeline
    return float(timeline.end[timeline.compute()].max())


@pytest.mark.parametrize("sizes", [(2, 3, 7), (7,)])
@pytest.mark.parametrize("most", [10, 9])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_no_partition_with_an_equal_size_is_faster(
    seed: int, most: int, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10 partitions x sizes, some of which leave a smaller last micro-batch, the fastest; tried one by one or not."""
    monkeypatch.setattr(module, "MOST_PARTITIONS", most)
    costs = costs_of(seed, 7)
    found = equal_partition(costs, range(3), sizes)
    assert found is not None
    seconds, cuts, size = found
    assert seconds == pytest.approx(replayed(costs, cuts, size), rel=1e-9)
    every = [replayed(costs, cuts, size) for cuts in combinations(range(1, 6), 2) for size in sizes]
    assert seconds == pytest.approx(min(every), rel=1e-9)


def test_where_no_size_fits_there_is_no_partition() -> None:
    """A device of 1 MB holds no stage; one byte of spare more than all memory, neither."""
    costs = costs_of(0, 8)
    capacity = costs.problem.cluster.devices[0].memory_bytes
    assert equal_partition(costs, range(3), (1, 8), [capacity + 1.0] * 3) is None
    devices = tuple(replace(one, memory_bytes=1e6) for one in costs.problem.cluster.devices)  # type: ignore[type-var]
    tiny = replace(costs.problem, cluster=replace(costs.problem.cluster, devices=devices))
    assert equal_partition(LayerCosts(tiny), range(3), (1, 8)) is None


def test_of_equally_fast_sizes_that_with_the_least_bound_is_kept() -> None:
    """One device, 9 s per sample: eight take as long in any parts. Whole micro-batches alone hold least samples for 5."""
    network = chain([1.0, 2.0], output_elements=[0.0, 0.0])
    costs = LayerCosts(Problem(network, chain_cluster(1), 8))
    assert equal_partition(costs, (0,), range(1, 9)) == (72.0, (), 5)


def test_a_front_is_searched_for_where_partitions_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six layers have 5 x 4 / 2 = 10 partitions into three stages: with a limit of 10 no front is needed, with 9 one a size."""
    searched: list[float] = []
    search = module.fastest_cuts

    def front(costs: PartitionCosts, count: int, *, slack: float = 0.0) -> object:
        searched.append(slack)
        return search(costs, count, slack=slack)

    monkeypatch.setattr(module, "fastest_cuts", front)
    costs = costs_of(0, 8)
    for most, slacks in ((10, []), (9, [0.0, 0.02])):
        monkeypatch.setattr(module, "MOST_PARTITIONS", most)
        searched.clear()
        assert equal_partition(costs, range(3), (4,)) is not None
        assert equal_partition(costs, range(3), (5,)) is not None
        assert searched == slacks
