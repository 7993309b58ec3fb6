"""Asked for less: no unequal planner answers better for some stages, or some sizes, than where it chooses them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_profiles import load_cluster
from planners import PLANNERS, Request, make_plan
from planners.unequal import candidate_sizes, tables_of
from planners.unequal.tables import least_seconds
from simulator import Problem, load_workload
from simulator.workloads.synthetic import uniform_chain
from tests.planners.conftest import seconds_of
from tests.planners.unequal.test_replayed_sizes import shared

NAMES = [name for name, entry in PLANNERS.items() if "candidates" in entry.options]


def check(name: str, problem: Problem) -> None:
    """All that may be asked for."""
    every = seconds_of(name, problem)
    requests = [Request(stages=stages) for stages in range(1, len(problem.cluster.devices) + 1)]
    requests += [Request(options={"candidates": word}) for word in ("all", "powers-of-two")]
    requests += [replace(one, options={"candidates": "powers-of-two"}) for one in requests]
    for request in requests:
        assert every <= seconds_of(name, problem, request) * (1.0 + 1e-9), (name, request)


@pytest.mark.parametrize("name", ["best-equal", pytest.param("exact-unequal", marks=pytest.mark.slow)])
def test_no_part_of_the_stages_or_sizes_is_faster(name: str) -> None:
    """A slow cable, over which a pipeline is slower than one device; and one of few layers."""
    check(name, shared(5, 3, 3))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 4, 7])
@pytest.mark.parametrize("name", NAMES)
def test_no_part_of_the_stages_or_sizes_is_faster_of_many(name: str, seed: int) -> None:
    """Buses, half-duplex cables, servers with a cable between them."""
    check(name, shared(seed, 3 + seed % 2, 4 + seed % 3))


def test_a_slow_link_is_not_used() -> None:
    """Two devices whose link takes longer than computing: one stage is found without being asked for."""
    problem = Problem(uniform_chain(4), load_cluster("dapple-c").take(2), 4)
    slow = tuple(replace(link, bandwidth=1e3) for link in problem.cluster.links)
    apart = replace(problem, cluster=replace(problem.cluster, links=slow))
    assert len(make_plan("exact-unequal", apart).plan.stages) == 1
    assert len(make_plan("exact-unequal", apart, Request(stages=2)).plan.stages) == 2


@pytest.mark.parametrize("recompute", ["none", "whole"])
@pytest.mark.parametrize("stages", [1, 3])
def test_what_stages_take_at_least_is_no_more_than_a_plan(stages: int, recompute: str) -> None:
    """The busiest stage of the most even partition, each pass at its best size."""
    problem = Problem(load_workload("alexnet"), load_cluster("dgx-a100").take(3), 6, recompute=recompute)  # type: ignore[arg-type]
    tables, sizes = tables_of(problem, range(stages)), candidate_sizes(6)
    found = make_plan("exact-unequal", problem, Request(stages=stages)).outcome.iteration_seconds
    assert 0.2 * found < least_seconds(tables, sizes) <= found
