"""Proofs of the unequal planners: nothing that is called proven is beaten by a replay; a bound is one everywhere."""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from hardware_profiles import Cluster, Link, load_cluster
from planners import Evaluator, Request, Result, make_plan
from planners.partitioning.equal_partition import equal_partition
from planners.testing import line
from planners.unequal import Compiled, tables_of, unequal_problem
from planners.unequal.planners import _attains
from planners.unequal.tables import unequal_plan
from simulator import LayerCosts, Plan, Problem, Score, load_workload, simulate
from tests.chains import random_chain
from tests.planners.conftest import with_memory

CLOSE = 1.0 - 1e-9
"""Relative; the grid of durations and the order of sums."""


def generated(seed: int) -> Problem:
    """Three layers or four on two or three devices: slow cables, latencies up to 0.1 s, a bus, boards, stored or recomputed."""
    rng = np.random.default_rng(seed)
    workload = random_chain(int(rng.integers(3, 5)), rng, flop=2e9, parameters=int(rng.choice([0, 1_000_000])))
    kind = seed % 4
    if kind == 3:
        boards = load_cluster("fpga-mixed-4")
        latency = float(rng.choice([0.0, 0.1]))
        links = tuple(replace(link, latency=latency, bandwidth=link.bandwidth / 100) for link in boards.links)
        return Problem(workload, replace(boards, links=links).take(2), 3, recompute=True)
    gpus = line(speeds=tuple(rng.choice([0.5, 1.0, 2.0], 2 if kind == 0 else 3)))
    links = tuple(
        Link(one.first, one.second, float(10 ** rng.uniform(7, 9)), float(rng.choice([0.0, 1e-3, 0.1])))
        for one in gpus.links
    )
    if kind == 2:
        links = tuple(replace(links[0], first=one.first, duplex="half", shared="bus") for one in links)
    cluster = Cluster("generated", gpus.devices, gpus.nodes, gpus.switches, gpus.servers, links)
    contention = bool(rng.integers(4))
    return Problem(workload, cluster, 4 if kind == 0 else 3, recompute=bool(rng.integers(2)), contention=contention)


def every_plan(problem: Problem, plan: Plan) -> list[float]:
    """Seconds of all sizes of a plan's partition that fit, with everything that the problem has."""
    costs = LayerCosts(problem)
    devices = [stage.devices[0] for stage in plan.stages]
    tables = tables_of(problem, devices, costs)
    cuts = [stage.layers[0] for stage in plan.stages[1:]]
    vectors = list(itertools.product(range(1, problem.batch + 1), repeat=len(devices)))
    evaluate = Evaluator(problem)
    scores = [evaluate(unequal_plan("all", tables, cuts, *pair)) for pair in itertools.product(vectors, vectors)]
    return [one.iteration_seconds for one in scores if one.fits]


@pytest.mark.parametrize("seed", [4, 3])
def test_no_sizes_beat_a_proven_plan_or_a_bound(seed: int) -> None:
    """All pairs of size vectors of the partition, replayed with everything that the problem has."""
    problem = replace(generated(seed), batch=3)
    found = make_plan("exact-unequal", problem, Request(stages=2))
    _check(problem, found)
    assert found.details["proven_optimal"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 18))
def test_no_sizes_beat_a_proven_plan_or_a_bound_of_many(seed: int) -> None:
    """Two stages or three, on switches, buses and boards."""
    problem = generated(seed)
    _check(
        problem, make_plan("exact-unequal", problem, Request(stages=min(len(problem.cluster.devices), 2 + seed % 2)))
    )


def _check(problem: Problem, found: Result) -> None:
    replayed = found.outcome.iteration_seconds
    best = min(every_plan(problem, found.plan))
    bound = float(found.details["sizes_lower_bound_seconds"])  # type: ignore[arg-type]
    assert bound * CLOSE <= best
    assert bool(found.proof.space) == found.details["proven_optimal"] == (replayed * CLOSE <= bound)
    assert not found.proof.space or replayed * CLOSE <= best
    assert found.details["sizes_gap"] == pytest.approx(max(0.0, replayed / bound - 1.0))


def test_a_latency_delays_and_does_not_occupy() -> None:
    """A link of 0.1 s that is never busy: every size passes it once each way, so that smaller ones than one block pay."""
    problem = generated(0)
    links = tuple(replace(link, bandwidth=1e15, latency=0.05) for link in problem.cluster.links)
    slow = replace(problem, cluster=replace(problem.cluster, links=links), contention=True)
    tables = tables_of(slow, (0, 1))
    unequal = unequal_problem(tables, [2], range(1, 5))
    assert unequal.fixed_seconds >= 0.2
    assert unequal.forward_link.max() < 1e-6
    for sizes in ((1, 1), (4, 4), (1, 2)):
        plan = unequal_plan("test", tables, [2], sizes, sizes)
        seconds = float(Compiled(unequal)([sizes], [sizes])[0]) + unequal.fixed_seconds
        assert simulate(slow, plan).iteration_seconds == pytest.approx(seconds, rel=1e-9)


def test_boards_stream_in_the_model_too() -> None:
    """A stage on an FPGA takes what the board says of its layers together; what is proven replays to that."""
    workload = random_chain(6, np.random.default_rng(2), flop=2e9, parameters=0)
    problem = Problem(workload, load_cluster("fpga-mixed-4"), 4)
    found = make_plan("exact-unequal", problem)
    replayed = found.outcome.iteration_seconds
    assert found.details["makespan_seconds"] == pytest.approx(replayed, rel=1e-9)
    assert found.details["proven_optimal"]


def test_the_words_of_the_proof() -> None:
    """Partition, order, sizes and engine; the whole space of partitions where that was searched."""
    problem = Problem(random_chain(4, np.random.default_rng(0), flop=2e9), line(), 4)
    assert make_plan("exact-unequal", problem).proof.space == (
        "unequal micro-batch sizes of this partition on these devices: gpipe, a size for each stage and pass out of all from 1 "
        "to 4 samples (the last micro-batch takes what is left), replayed with contention"
    )
    again = replace(problem, recompute=True)
    nested = make_plan("unequal-nested", again, Request(options={"candidates": "powers-of-two"}))
    assert "sizes of all partitions into 2 stages on these devices" in nested.proof.space
    assert "out of 1, 2, 4 samples" in nested.proof.space


@pytest.mark.parametrize("sharing", [False, True])
def test_a_tuned_gpipe_is_the_fastest_of_all(sharing: bool) -> None:
    """Every partition with every equal size, also those that do not divide the batch."""
    problem = generated(9 if sharing else 5)
    problem = replace(problem, batch=7, contention=True)
    costs = LayerCosts(problem)
    tables = tables_of(problem, (0, 1, 2), costs)
    layers = len(problem.workload)
    every: dict[tuple[tuple[int, ...], int], float] = {}
    for cuts in itertools.combinations(range(1, layers), 2):
        for size in range(1, 8):
            plan = unequal_plan("all", tables, cuts, (size,) * 3, (size,) * 3)
            timeline = simulate(problem, plan, layer_costs=costs).timeline
            every[cuts, size] = timeline.end[timeline.compute()].max()
    found = equal_partition(costs, (0, 1, 2), range(1, 8))
    assert found is not None
    assert found[0] == pytest.approx(every[found[1], found[2]], rel=1e-9)
    assert found[0] * CLOSE <= min(every.values())


def test_no_tuned_gpipe_is_slower_than_a_known_one() -> None:
    """VGG-16 over 10 Gb/s: stages that end where little is sent, 10-17-31, in 8 micro-batches of 4 samples."""
    problem = Problem(load_workload("vgg16"), load_cluster("dapple-c").take(4), 32, recompute=True)
    tables = tables_of(problem, (0, 1, 2, 3))
    known = simulate(problem, unequal_plan("known", tables, (10, 17, 31), (4,) * 4, (4,) * 4)).iteration_seconds
    assert make_plan("best-equal", problem, Request(stages=4)).outcome.iteration_seconds <= known * (1 + 1e-12)


@pytest.mark.parametrize("name", ["exact-unequal", pytest.param("unequal-nested", marks=pytest.mark.slow)])
def test_where_memory_caps_the_sizes_nothing_is_proven_that_is_not(name: str) -> None:
    """Activations stored, in memory for which the caps leave out sizes that fit: bounds hold for all of them."""
    free = replace(generated(0), batch=3, recompute=False, contention=True)
    peaks = {one.peak_bytes for one in make_plan("best-equal", free, Request(stages=2)).outcome.memory}
    problem = with_memory(free, max(peaks))
    found = make_plan(name, problem, Request(stages=2, options={"candidates": "all"}))
    best = min(every_plan(problem, found.plan))
    assert float(found.details["sizes_lower_bound_seconds"]) * CLOSE <= best  # type: ignore[arg-type]
    assert "all partitions" not in found.proof.space


def test_a_search_leaves_enough_of_its_budget_to_replay_its_plan() -> None:
    """With one or two evaluations less than it needs a search ends with an answer."""
    problem = replace(generated(4), batch=3)
    free = make_plan("exact-unequal", problem, Request(stages=2))
    for less in (1, 2):
        found = make_plan("exact-unequal", problem, Request(stages=2), budget=free.evaluations - less)
        assert found.interrupted
        assert found.outcome.fits


@pytest.mark.parametrize(
    ("seconds", "bound", "peak_bytes", "attained"),
    [(1.0, 1.0, 1.0, True), (1.0, 0.99, 1.0, False), (0.0, 0.0, 1.0, False), (1.0, 1.0, 3.0, False)],
)
def test_a_bound_is_attained_by_what_fits_and_takes_as_long(
    seconds: float, bound: float, peak_bytes: float, attained: bool
) -> None:
    """Of a plan that takes no time nothing is said."""
    assert _attains(Score(seconds, peak_bytes, 2.0, 0), Mock(bound_seconds=bound)) == attained
