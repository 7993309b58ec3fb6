"""Unequal cases: do all evaluators of unequal micro-batches agree to the last bit, and is the exact method exact?

Generates N instances (`--count N`) over all families of tables and kinds of recomputation, evaluates random size vectors with
every entry of `EVALUATORS`, and compares bits; of one vector of each also the 1F1B order with credits on both engines. On small
instances it compares the exact method with an exhaustive search. Exit code 1 on any difference.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import tracked
from experiments.unequal_sizes.evaluators import ENGINES, EVALUATORS, makespans, programs_of
from experiments.unequal_sizes.random_tables import FAMILIES, random_problem
from experiments.unequal_sizes.table_costs import program_of
from planners.unequal import RECOMPUTATION, Compiled, UnequalProblem, exact_sizes, powers_of_two

INDIVIDUALS = 4
SMALL_VECTORS = 4096


def run(options: argparse.Namespace) -> Findings:
    """Compare; exit code 1 on any difference."""
    rng = np.random.default_rng(options.seed)
    disagreeing = compare_evaluators(rng, options.count)
    mismatches = sum(exact_mismatch(rng, number) for number in range(options.small))
    report = {
        "instances": options.count,
        "individuals": options.count * INDIVIDUALS,
        "evaluators": sorted(EVALUATORS),
        "disagreements": sum(disagreeing.values()),
        "disagreements_by_evaluator": disagreeing,
        "exact_instances": options.small,
        "exact_mismatches": mismatches,
        "seed": options.seed,
    }
    return Findings(report, print_document, failed=bool(report["disagreements"] or mismatches))


def print_document(report: Mapping[str, Any]) -> None:
    """A line a figure."""
    for key, value in report.items():
        print(f"{key}: {value}")


def compare_evaluators(rng: np.random.Generator, count: int) -> dict[str, int]:
    """Instances on which an evaluator differs from the plain recurrence in any bit of any individual, by name."""
    disagreeing = dict.fromkeys([*sorted(EVALUATORS), "1f1b simpy"], 0)
    for number in tracked("comparing", range(count)):
        _compare(rng, number, disagreeing)
    return disagreeing


def _compare(rng: np.random.Generator, number: int, disagreeing: dict[str, int]) -> None:
    """One instance: counts every evaluator and engine that differs."""
    problem = generated_problem(rng, number)
    forward, backward = rng.choice(np.array(problem.candidates), (2, INDIVIDUALS, problem.stages))
    forward[0], backward[0] = forward[0, 0], forward[0, 0]  # an equal size among them
    expected = EVALUATORS["recurrence"](problem)(forward, backward)
    programs = programs_of(problem, forward, backward)
    for name, build in EVALUATORS.items():
        found = makespans(name, programs) if name in ENGINES else np.asarray(build(problem)(forward, backward), float)
        disagreeing[name] += int(found.tobytes() != expected.tobytes())
    alternating = program_of(problem, forward[-1].tolist(), backward[-1].tolist(), "1f1b")
    disagreeing["1f1b simpy"] += int(len({*(float(makespans(name, [alternating])[0]) for name in ENGINES)}) > 1)


def generated_problem(rng: np.random.Generator, number: int) -> UnequalProblem:
    """Instance `number`: families, recomputation and candidates in turn; 1-8 stages, 1-64 samples."""
    families = list(FAMILIES)
    stages, samples = int(rng.integers(1, 9)), int(rng.integers(1, 65))
    every = tuple(range(1, samples + 1))
    return random_problem(
        rng,
        families[number % len(families)],
        stages,
        samples,
        candidates=powers_of_two(samples) if number % 3 == 0 else every,
        recomputation=RECOMPUTATION[number // len(families) % len(RECOMPUTATION)],
        link_share=float(rng.choice([0.0, 0.2, 1.0])),
    )


def exact_mismatch(rng: np.random.Generator, number: int) -> int:
    """1 if the exact method differs from exhaustive search on small instance `number`, else 0."""
    families = list(FAMILIES)
    stages, samples = int(rng.integers(1, 6)), int(rng.integers(1, 17))
    most = int(min(7, SMALL_VECTORS ** (1 / stages)))
    candidates = tuple(sorted(set(rng.integers(1, samples + 1, most).tolist())))
    problem = random_problem(
        rng,
        families[number % len(families)],
        stages,
        samples,
        candidates,
        recomputation=("none", "always")[number // len(families) % 2],
    )
    vectors = np.array(list(itertools.product(candidates, repeat=stages)))
    evaluate = Compiled(problem)
    best = evaluate.forward_population(vectors).min() + evaluate.backward_population(vectors).min()
    plan = exact_sizes(problem)
    return int(plan.makespan_seconds != best or not plan.proven_optimal or plan.lower_bound_seconds != best)


if __name__ == "__main__":
    sys.exit(run_study("unequal-cases"))
