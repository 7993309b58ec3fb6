"""Problems of the tests of the joint search, walks through pipelines, and searches that have begun."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hardware_profiles import load_cluster, load_stack
from planners import Evaluator, Request
from planners.joint.joint_search import JointSearch
from planners.joint.neighbourhood import Neighbourhood
from planners.joint.pipeline import Pipeline
from planners.joint.rounds import JointRounds
from simulator import (
    Experts,
    Gpt,
    LayerCosts,
    Problem,
    workload_from_spec,
)

NONE = ("none", 0)


def problem(workload: str = "gpt2-medium", cluster: str = "pipedream-a", batch: int = 32, **options: Any) -> Problem:
    """A network on GPUs."""
    return Problem(workload_from_spec(workload, None), load_cluster(cluster), batch, **options)


def some(asked: Problem, request: Request, seed: int, steps: int) -> Iterator[Pipeline]:
    """Pipelines on a random walk from a seed."""
    choose, moves = random.Random(seed), Neighbourhood(asked, request, LayerCosts(asked))
    one = choose.choice([*moves.seeds()])
    for _ in range(steps):
        near = [each for each in choose.choice([*moves.decisions.values()])(one) if moves.allows(each)]
        one = choose.choice(near) if near else one
        yield one


def blocks(stack: str, precision: str, experts: Experts | None = None) -> Problem:
    """Four small blocks on two servers."""
    return Problem(
        Gpt(4, 64, 4, vocabulary=512, sequence=32, experts=experts).workload(),
        load_cluster("dgx-a100:2"),
        32,
        precision=precision,
        optimizer="adam",
        stack=load_stack(stack),
    )


SMALL_BLOCKS = Problem(
    Gpt(4, 64, 4, vocabulary=512, sequence=32).workload(),
    load_cluster("dgx-a100").take(4),
    16,
    optimizer="adam",
    precision="bf16",
)


def begin(asked: Problem, seconds: float | None = 1.0, planner: Callable[[Request], Any] = JointSearch) -> JointRounds:
    """A search that has begun, from seeds alone."""
    request = Request(options={} if seconds is None else {"seconds": seconds})
    search = planner(request).rounds(asked, Evaluator(asked))
    search.sowing.begin(np.random.default_rng(0))
    return search
