"""Evaluator speed: plans that a search evaluates per second, with seconds and peak memory, beside the limit.

On one core, in CPU seconds, in one run: straight 1F1B pipelines on idle links, new cuts each time, of 8 stages and 64
micro-batches and of 64 and 512; the first with contended links; new durations on one structure of 8 and 64, in batches; unequal
sizes of 8 stages and 64 samples (the kernels of `planners.unequal`: their sizes, and so their structures, are new each time); and
a plan that is lowered, replayed and measured from nothing, as `simulate` does it.

The limit of a replay is a maximum and an addition per op, one after the other. `nanoseconds_per_op` says what an op costs with
all else that an evaluation takes (cuts, durations, memory), and `batched_nanoseconds_per_op` without.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from experiments.benchmarks.timing import rate
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import print_table, tracked
from experiments.unequal_sizes.random_tables import random_problem
from hardware_profiles import load_cluster
from planners.unequal import Compiled, powers_of_two
from simulator import Evaluations, Plan, Problem, equal_microbatches, load_workload, simulate, stages_from_cuts

SMALL, LARGE = (8, 64), (64, 512)
"""Stages and micro-batches."""

POPULATION, SEED = 512, 0


def run(arguments: argparse.Namespace) -> Findings:
    """Measure every rate."""
    asked = tracked("measuring", [*MEASURED.items()], lambda one: one[1][0])
    found = {name: measured(arguments.seconds) for name, (_, measured) in asked}
    head = {"unit": "evaluations per CPU second, one core", "schedule": "1f1b", "seed": SEED}
    return Findings({**head, **found, **comparisons(found)}, print_document)


def print_document(found: dict[str, Any]) -> None:
    """The rates, and what they say beside each other."""
    print_table(
        "Evaluations per CPU second, one core",
        ("what is evaluated", "per second"),
        [(words, f"{found[name]:,.0f}") for name, (words, _) in MEASURED.items()],
    )
    print_table(
        "Beside the limit and the way before",
        ("figure", "value"),
        [(name.replace("_", " "), f"{value:,.2f}") for name, value in comparisons(found).items()],
    )


def comparisons(found: dict[str, Any]) -> dict[str, float]:
    """What the rates say beside each other."""
    ops = 2 * SMALL[0] * SMALL[1]
    return {
        "nanoseconds_per_op": 1e9 / found["straight_8x64_plans_per_second"] / ops,
        "nanoseconds_per_op_64x512": 1e9 / found["straight_64x512_plans_per_second"] / (2 * LARGE[0] * LARGE[1]),
        "batched_nanoseconds_per_op": 1e9 / found["batched_8x64_per_second"] / ops,
        "ratio_over_before": found["straight_8x64_plans_per_second"] / found["before_8x64_plans_per_second"],
        "contended_ratio_over_before": found["contended_8x64_plans_per_second"] / found["before_8x64_plans_per_second"],
    }


def evaluated(stages: int, microbatches: int, seconds: float, *, contention: bool = False) -> float:
    """Plans with new cuts per second; the tables of stages are as full as a search's that has been at it for a while."""
    problem = problem_of(stages, microbatches, contention=contention)
    evaluate = Evaluations(problem)
    plans = plans_of(problem, stages, microbatches)

    def some() -> int:
        for plan in plans:
            evaluate(plan)
        return len(plans)

    return rate(some, seconds)


def simulated(seconds: float) -> float:
    """Plans per second of 8 stages and 64 micro-batches, each from nothing."""
    problem = problem_of(*SMALL)
    plans = cycle(plans_of(problem, *SMALL))

    def one() -> int:
        simulate(problem, next(plans), engine="compiled")
        return 1

    return rate(one, seconds)


def batched(seconds: float) -> float:
    """Rows of new durations per second."""
    problem = problem_of(*SMALL)
    evaluate, plan = Evaluations(problem), plans_of(problem, *SMALL)[0]
    own = evaluate.durations(plan)
    assert own is not None
    rows = own.seconds * np.random.default_rng(SEED).uniform(0.5, 2.0, (POPULATION, len(own.seconds)))
    return rate(lambda: len(evaluate.makespans(plan, rows)), seconds)


def unequal(seconds: float) -> float:
    """Individuals per second of the kernels for unequal sizes, powers of two."""
    rng, candidates = np.random.default_rng(SEED), powers_of_two(64)
    problem = random_problem(rng, "roofline", 8, 64, candidates)
    forward, backward = rng.choice(np.array(candidates), (2, POPULATION, problem.stages))
    evaluate = Compiled(problem)

    def some() -> int:
        evaluate(forward, backward)
        return len(forward)

    return rate(some, seconds)


def problem_of(stages: int, microbatches: int, *, contention: bool = False) -> Problem:
    """Llama-2-7B with unfused attention on A100s, one sample per micro-batch."""
    cluster = load_cluster(f"dgx-a100:{max(1, stages // 8)}").take(stages)
    workload = load_workload("llama2-7b", attention="unfused")
    return Problem(workload, cluster, microbatches, precision="bf16", optimizer="adam", contention=contention)


def plans_of(problem: Problem, stages: int, microbatches: int) -> list[Plan]:
    """1F1B plans with different random cuts."""
    rng, layers = np.random.default_rng(SEED), len(problem.workload)
    sizes = equal_microbatches(problem.batch, microbatches)
    found = []
    for _ in range(POPULATION if stages == SMALL[0] else POPULATION // 8):
        cuts = sorted(rng.choice(np.arange(1, layers), stages - 1, replace=False).tolist())
        held = stages_from_cuts(cuts, layers, [(number,) for number in range(stages)])
        found.append(Plan("random", "1f1b", held, sizes))
    return found


MEASURED: dict[str, tuple[str, Callable[[float], float]]] = {
    "straight_8x64_plans_per_second": ("8 stages, 64 micro-batches, new cuts", partial(evaluated, *SMALL)),
    "straight_64x512_plans_per_second": ("64 stages, 512 micro-batches, new cuts", partial(evaluated, *LARGE)),
    "contended_8x64_plans_per_second": (
        "8 stages, 64 micro-batches, new cuts, contended links",
        partial(evaluated, *SMALL, contention=True),
    ),
    "batched_8x64_per_second": ("8 stages, 64 micro-batches, new durations, seconds alone", batched),
    "unequal_8x64_per_second": ("8 stages, 64 samples, unequal sizes, seconds alone", unequal),
    "before_8x64_plans_per_second": ("8 stages, 64 micro-batches, each plan from nothing", simulated),
}
"""What is evaluated, and what measures it in about so many CPU seconds, by the figure's name."""


if __name__ == "__main__":
    sys.exit(run_study("evaluator-speed"))
