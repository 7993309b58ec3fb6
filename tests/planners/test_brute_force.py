"""Brute force: what it proves holds on the reference engine, over exactly the plans that it names."""

import re
from dataclasses import replace
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pytest

from hardware_profiles import Cluster, Link, load_cluster
from planners import BruteForce, Request, make_plan
from planners.search.evaluator import Evaluator
from planners.testing import line
from simulator import Engine, InfeasiblePlanError, Outcome, Problem, simulate
from simulator.workloads.synthetic import uniform_chain
from tests.chains import random_chain
from tests.planners.conftest import with_memory


def reference(problem: Problem, planner: BruteForce) -> list[Outcome]:
    """Every plan of the space on the event loop, which takes what the reference takes to the bit."""
    return [simulate(problem, plan, engine="compiled") for plan in planner.plans(problem)]


def slow_line(seed: int) -> Problem:
    """A random chain on three GPUs behind one switch whose cables are as slow as the layers, and have latency."""
    rng = np.random.default_rng(seed)
    cluster = line(speeds=tuple(rng.choice([0.5, 1.0, 2.0], 3)))
    links = tuple(
        Link(one.first, one.second, float(10 ** rng.uniform(7, 9)), float(rng.choice([0.0, 1e-3, 0.1])))
        for one in cluster.links
    )
    workload = random_chain(int(rng.integers(2, 5)), rng, flop=2e9, parameters=1_000_000)
    shared = Cluster("slow", cluster.devices, cluster.nodes, cluster.switches, cluster.servers, links)
    return Problem(workload, shared, int(rng.integers(2, 9)), recompute=bool(rng.integers(2)))


@pytest.mark.parametrize(
    ("seed", "engine"),
    [
        (1, "compiled"),
        (1, "recurrence"),
        pytest.param(2, "recurrence", marks=pytest.mark.slow),
        pytest.param(0, "compiled", marks=pytest.mark.slow),
        pytest.param(0, "recurrence", marks=pytest.mark.slow),
    ],
)
def test_nothing_in_the_space_beats_the_proven_plan_on_the_reference(seed: int, engine: Engine) -> None:
    """Slow cables, latency, contention and the update included, also where the search's engine knows no contention."""
    problem = replace(slow_line(seed), batch=4)
    request = Request(engine=engine)
    planner = BruteForce(request)
    found = make_plan("brute-force", problem, request)
    best = min(outcome.iteration_seconds for outcome in reference(problem, planner) if outcome.fits)
    assert found.outcome.iteration_seconds == best
    assert found.proof.space.startswith("straight pipelines")
    assert found.proof.space.endswith("replayed with contention")


def test_contention_decides_between_plans_that_idle_links_rank_otherwise() -> None:
    """On idle links a looped schedule wins; where links contend fewer transfers do."""
    problem = Problem(uniform_chain(6), load_cluster("dapple-c").take(3), 32)
    request = Request(microbatches=8, engine="recurrence")
    contended = make_plan("brute-force", problem, request)
    idle = make_plan("brute-force", replace(problem, contention=False), request)
    assert (contended.plan.schedule, idle.plan.schedule) == ("eager-1f1b", "looped-bfs")
    seconds = [simulate(problem, one.plan).iteration_seconds for one in (contended, idle)]
    assert seconds[0] < seconds[1]
    assert idle.proof.space.endswith("replayed with unlimited links")


def test_memory_is_that_of_the_reference() -> None:
    """The fastest plan does not fit: the proven one is the fastest of those that do."""
    problem = replace(slow_line(1), batch=4)
    planner = BruteForce(Request())
    outcomes = reference(problem, planner)
    fastest = min(outcomes, key=lambda one: one.iteration_seconds)
    limit = fastest.fullest.peak_bytes * 0.999
    small = with_memory(problem, limit)
    found = make_plan("brute-force", small).outcome
    fitting = [one.iteration_seconds for one in outcomes if one.fullest.peak_bytes <= limit]
    assert found.iteration_seconds == min(fitting) > fastest.iteration_seconds


def test_the_space_is_named() -> None:
    """Schedules with their stages per device, devices, counts, and the engine's options."""
    problem = Problem(uniform_chain(4), load_cluster("dapple-c").take(2), 6, contention=False)
    assert BruteForce(Request()).space(problem) == (
        "straight pipelines on whole, contiguous layers with gpipe, 1f1b, eager-1f1b, interleaved-1f1b (2 stages per device), "
        "looped-bfs (2 stages per device), on the first 1 to 2 devices of the cluster in its order, in 1, 2, 3, 4, 5, 6 "
        "micro-batches as equal as whole samples permit, replayed with unlimited links"
    )
    assert "in 3 micro-batches" in BruteForce(Request(microbatches=3, schedule="gpipe")).space(problem)


def test_the_count_of_plans_is_their_number() -> None:
    """Every cut, schedule and count once, looped schedules included."""
    for problem in (slow_line(0), Problem(uniform_chain(6), load_cluster("dapple-c").take(3), 8)):
        planner = BruteForce(Request())
        plans = list(planner.plans(problem))
        assert planner.configurations(problem) == len(plans) == len(set(plans))


def test_a_schedule_that_covers_its_stages_runs_with_as_few_microbatches_as_stages() -> None:
    """2BW needs one micro-batch a stage: plans of two stages begin at two, a single stage at one."""
    problem = Problem(uniform_chain(4), load_cluster("dapple-c").take(2), 8)
    counts: dict[int, set[int]] = {}
    for plan in BruteForce(Request(schedule="2bw")).plans(problem):
        counts.setdefault(len(plan.stages), set()).add(len(plan.microbatches))
    assert {stages: min(found) for stages, found in counts.items()} == {1: 1, 2: 2}


def test_of_equally_fast_plans_the_first_is_handed_back() -> None:
    """On one device every order of the passes takes as long: the plan that comes first, with fewest micro-batches."""
    problem = Problem(uniform_chain(4), load_cluster("dapple-c").take(1), 6)
    planner = BruteForce(Request())
    seconds = [outcome.iteration_seconds for outcome in reference(problem, planner)]
    assert seconds.count(min(seconds)) > 1
    found = make_plan("brute-force", problem).plan
    assert found == list(planner.plans(problem))[seconds.index(min(seconds))]


FLAT = ("gpipe", "1f1b", "eager-1f1b")
LOOPED = ("interleaved-1f1b", "looped-bfs")


@pytest.mark.parametrize(
    ("asked", "shapes"),
    [
        ({}, {*product(FLAT, (1, 2, 3), (1,)), *product(LOOPED, (1, 2), (2,))}),
        ({"stages": 2}, {*product(FLAT, (2,), (1,)), *product(LOOPED, (1,), (2,))}),
        ({"stages": 3}, set(product(FLAT, (3,), (1,)))),
        ({"chunks": 1}, set(product(FLAT + LOOPED, (1, 2, 3), (1,)))),
        ({"chunks": 2}, set(product(LOOPED, (1, 2), (2,)))),
        ({"chunks": 4}, set(product(LOOPED, (1,), (4,)))),
        ({"schedule": "gpipe"}, set(product(("gpipe",), (1, 2, 3), (1,)))),
        ({"schedule": "gpipe", "chunks": 2}, set()),
        ({"schedule": "looped-bfs"}, {("looped-bfs", *one) for one in ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2))}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_shapes_are_those_that_are_asked_for(asked: dict[str, Any], shapes: set[tuple[str, int, int]]) -> None:
    """Schedule, devices, stages per device: of four layers on three devices no stage is without a layer."""
    problem = Problem(uniform_chain(4), line(speeds=(1.0,) * 3), 4)
    found = list(BruteForce(Request(**asked))._shapes(problem))
    assert {(schedule, len(devices), held) for schedule, devices, held in found} == shapes
    assert len(found) == len(shapes)
    plans = list(BruteForce(Request(microbatches=1, **asked)).plans(problem))
    assert len(plans) == sum(comb(3, devices * held - 1) for _, devices, held in shapes)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (5_000, None),
        (5_001, "5,001 plans to replay, the limit is 5,000"),
        (10**12 - 1, "999,999,999,999 plans to replay, the limit is 5,000"),
        (10**12, "about 10^12 plans to replay, the limit is 5,000"),
        (3 * 10**400, "about 10^400 plans to replay, the limit is 5,000"),
    ],
)
def test_too_many_plans_are_refused_with_their_number(
    count: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the limit are tried; numbers too long to read are given by their power of ten."""
    monkeypatch.setattr(BruteForce, "configurations", lambda self, problem: count)
    planner, problem = BruteForce(Request()), slow_line(0)
    assert planner.inapplicable(problem) == said
    if said is not None:
        with pytest.raises(ValueError, match=re.escape(f"planner 'brute-force' does not apply: {said}")):
            planner(problem, Evaluator(problem), np.random.default_rng(0))


def test_fewer_samples_than_stages_that_each_need_a_micro_batch_are_refused() -> None:
    """Two stages of 2BW: in the words of the planners that enumerate nothing; left open, the stages are one."""
    two = Problem(uniform_chain(5), line(), 3)
    for batch, asked in (
        (1, Request(schedule="2bw", stages=2)),
        (3, Request(schedule="2bw", stages=2, microbatches=1)),
    ):
        for name in ("greedy", "brute-force"):
            with pytest.raises(
                InfeasiblePlanError, match=r"^schedule '2bw' needs at least 2 micro-batches, one per stage, got 1$"
            ):
                make_plan(name, replace(two, batch=batch), asked)
    assert len(make_plan("brute-force", replace(two, batch=1), Request(schedule="2bw")).plan.stages) == 1
