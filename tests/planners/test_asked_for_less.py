"""Asked for less: no planner answers better when it is asked for a part of what it searches."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from hardware_profiles import load_cluster
from planners import Request, make_plan, planner_entry
from planners.search.evaluator import InapplicablePlannerError
from simulator import InfeasiblePlanError, Problem, workload_from_spec

SCHEDULES = {
    "uniform": ("gpipe", "1f1b"),
    "greedy": ("gpipe", "1f1b"),
    "pipeline-data": ("1f1b", "eager-1f1b", "interleaved-1f1b"),
    "bapipe": ("1f1b-so", "1f1b"),
}
"""What each planner chooses from, where no schedule is asked for."""

CHUNKS = {"pipeline-data": (1, 2, 3, 4)}
"""Stages a device that are searched; others have one where none is asked for."""


def _problem(choose: random.Random, workloads: tuple[str, ...], clusters: tuple[str, ...]) -> Problem:
    return Problem(
        workload_from_spec(choose.choice(workloads), None),
        load_cluster(choose.choice(clusters)),
        choose.choice([8, 12, 16]),
        precision=choose.choice(["fp32", "fp16"]),  # type: ignore[arg-type]
        optimizer=choose.choice(["sgd", "momentum", "adam"]),  # type: ignore[arg-type]
        gradient_reduction=choose.choice(["buckets", "whole"]),  # type: ignore[arg-type]
    )


def _requests(name: str, problem: Problem) -> Iterator[Request]:
    """One thing asked for, of those that the planner searches."""
    entry, devices = planner_entry(name), len(problem.cluster.devices)
    yield from (Request(schedule=one) for one in SCHEDULES[name])
    yield from (Request(microbatches=count) for count in range(1, problem.batch + 1))
    yield from (Request(stages=count) for count in range(1, 2 * devices + 1) if "stages" in entry.takes)
    yield from (Request(chunks=count) for count in CHUNKS.get(name, ()))


def _seconds(name: str, problem: Problem, request: Request) -> float:
    try:
        return make_plan(name, problem, request).outcome.iteration_seconds
    except (InapplicablePlannerError, InfeasiblePlanError):
        return float("inf")


def _check(name: str, seed: int, workloads: tuple[str, ...], clusters: tuple[str, ...], most: int) -> None:
    choose = random.Random(seed)
    problem = _problem(choose, workloads, clusters)
    every, asked = _seconds(name, problem, Request()), list(_requests(name, problem))
    for request in choose.sample(asked, min(most, len(asked))):
        assert every <= _seconds(name, problem, request) * (1.0 + 1e-9), (name, seed, problem, request)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_part_of_a_search_answers_better(name: str) -> None:
    """Stages, stages a device, micro-batches and schedules of each planner's own, on small random problems."""
    for seed in range(2):
        _check(name, seed, ("chain:4", "chain:7"), ("pipedream-b:1", "dapple-b:4", "dapple-c:4"), 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_part_of_a_search_answers_better_on_networks(name: str) -> None:
    """The same, of networks and more of what may be asked for."""
    for seed in range(10, 16):
        _check(name, seed, ("chain:12", "vgg16", "gpt2"), ("pipedream-a:1", "dapple-c:4", "dgx-a100:1"), 16)
