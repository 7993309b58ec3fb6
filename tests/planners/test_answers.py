"""Answers of every planner to questions drawn by chance: unlike devices, servers, little memory, and what a plan must have."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners import PLANNERS, InapplicablePlannerError, Request, make_plan
from planners.testing import line
from simulator import Experts, Gpt, InfeasiblePlanError, Problem
from tests.chains import random_chain
from tests.planners.conftest import REQUESTS, shape, sums, with_memory
from tests.records import Recorded, weight

QUESTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "joint": ((21,), (18,)),
    "rule-of-thumb": ((0, 23), (1, 6, 7, 12, 13, 20)),
    "data-parallel": ((10, 16), (2, 4, 6, 17, 23)),
    "uniform": ((13, 15), (0, 1, 22)),
    "greedy": ((2, 4), (0, 10, 11, 12, 18)),
    "pipeline-data": ((8, 12, 14), (1, 5, 6, 13, 22)),
    "pipedream": ((0, 4), (1, 2, 6, 9, 12, 18)),
    "pipedream-flush": ((5, 14), (10, 19, 20, 22)),
    "bapipe": ((2, 5), (4, 8, 14, 17)),
    "brute-force": ((4, 14), (17,)),
    "largest-load": ((1, 15), (0, 16, 23)),
    "large": ((2, 5), (0, 7, 23)),
    "mixed": ((7, 19), (5, 8, 11, 22, 23)),
    "modern": ((1, 22), (20,)),
    "scheduler": ((5, 11), (6, 13, 14)),
    "exact-unequal": ((7, 12, 19), (2, 4)),
    "tidgap": ((4, 23), (7, 12)),
    "dgap": ((0, 6), (14, 15)),
    "greedy-dp": ((2, 6), (0, 3, 20, 21)),
    "local-greedy": ((8, 11), (10, 12, 21, 23)),
    "best-equal": ((0, 19), (1, 13, 17, 20)),
    "unequal-nested": ((2, 5, 15), (11,)),
    "xpipe": ((0, 1), (2, 3, 5, 8)),
    "umpipe": ((0, 1, 3), (2, 5, 8)),
}
"""Seeds of the questions of each planner: of unlike answers, each found in a moment; and those that take its other ways."""


def question(name: str, seed: int) -> tuple[Problem, Request]:
    """A small problem, and what a planner is asked of it."""
    choose, options = random.Random(f"{name} {seed}"), PLANNERS[name].options
    experts = choose.choice((None, None, Experts(4, 2, 128))) if "expert" in options else None
    blocks = Gpt(choose.choice((3, 4, 6)), 64, 4, vocabulary=512, sequence=32, experts=experts).workload()
    chain = random_chain(choose.randint(3, 7), np.random.default_rng(seed), flop=2e9, parameters=3_000_000)
    speeds = (1.0, choose.choice((1.0, 0.5)), choose.choice((1.0, 2.0)), 1.0)[: choose.randint(2, 4)]
    alike = "tensor" in options and choose.random() < 0.7
    servers = load_cluster(choose.choice(("dgx-a100", "pipedream-a"))).take(choose.choice((2, 4, 8)))
    problem = Problem(
        blocks if alike else choose.choice((blocks, chain)),
        servers if alike else choose.choice((line(speeds=speeds), line(speeds=speeds), servers)),
        choose.choice((4, 6, 8)),
        optimizer=choose.choice(("sgd", "adam")),
        recompute=choose.choice(("none", "none", "whole")),
        gradient_reduction=choose.choice(("buckets", "whole")),
        contention=choose.random() < 0.7,
    )
    if choose.random() < 0.5:
        weights = sum(layer.parameters for layer in problem.workload.layers)
        problem = with_memory(problem, choose.choice((6.0, 12.0, 24.0)) * weights)
    values = {
        "stages": (2,),
        "zero": ("1", "2", "3"),
        "tensor": ("2",),
        "recompute": ("blocks", "whole", "none"),
        "load": ("max", "sum"),
    }
    asked: dict[str, Any] = {} if "candidates" in options else {"microbatches": choose.choice((None, None, 2, 4))}
    asked |= {
        option: choose.choice(of) for option, of in values.items() if option in options and choose.random() < 0.25
    }
    request = REQUESTS[name]
    for option, value in asked.items():
        request = request.fixing(option, value)
    return problem, request


def answer(name: str, problem: Problem, request: Request) -> Any:
    """The plan, its seconds, how many plans it took, whether it is proven, the weight of all that is said of it, the
    course of the search, and figures that it tells; or why there is none."""
    try:
        found = make_plan(name, problem, request)
    except (InapplicablePlannerError, InfeasiblePlanError, ValueError) as refused:
        return str(refused)
    plan = found.plan
    more = [plan.zero, [max(stage.degrees, default=1) for stage in plan.stages], list(plan.recompute)]
    scores = [(one.iteration_seconds, one.peak_bytes) for one in found.replayed.values()]
    course = *np.array(scores).T, np.array([one.iteration_seconds for one in found.history])
    told = [float(one) for one in found.details.values() if isinstance(one, int | float)]
    return [
        *shape(plan),
        *more,
        found.iteration_seconds,
        found.evaluations,
        bool(found.proof),
        weight([str(found.proof), found.bound, [note.text for note in found.notes], found.told]),
        [x for one in course for x in sums(one)],
        told,
    ]


@pytest.mark.parametrize("name", PLANNERS)
def test_answers_to_questions_drawn_by_chance(name: str, recorded: Recorded) -> None:
    """Of each question: plan, ZeRO stage, groups and recomputation, seconds, evaluations, whether it is proven, what is said, and
    seconds and bytes of the plans that were replayed, in their order; or why not."""
    recorded(**{str(seed): answer(name, *question(name, seed)) for seed in QUESTIONS[name][0]})


@pytest.mark.slow
def test_answers_to_further_questions(recorded: Recorded) -> None:
    """The same of more questions, by planner, each by its weight."""
    recorded(
        **{
            name: [weight(answer(name, *question(name, seed))) for seed in seeds]
            for name, (_, seeds) in QUESTIONS.items()
        }
    )


CHAIN = Problem(
    random_chain(24, np.random.default_rng(9), flop=2e9, parameters=3_000_000), line(speeds=(1.0, 0.5, 1.0)), 48
)
BLOCKS = Problem(
    Gpt(12, 128, 4, vocabulary=512, sequence=64).workload(), load_cluster("pipedream-a").take(8), 64, optimizer="adam"
)
LARGER = {
    "24 layers on 3 unlike devices": (
        CHAIN,
        ("data-parallel", "greedy", "pipeline-data", "pipedream", "pipedream-flush", "bapipe", "largest-load"),
    ),
    "24 layers on 3 unlike devices, unequal": (
        CHAIN,
        ("scheduler", "exact-unequal", "dgap", "greedy-dp", "local-greedy", "best-equal"),
    ),
    "12 blocks on 8 devices": (BLOCKS, ("pipeline-data", "bapipe", "mixed")),
}
"""Problems and planners that stop at limits of their own: of what is kept, tried or replayed."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_answers_to_larger_questions(name: str, recorded: Recorded) -> None:
    """Plan, seconds, evaluations and course of each planner."""
    problem, planners = LARGER[name]
    recorded(**{planner: answer(planner, problem, REQUESTS[planner]) for planner in planners})
