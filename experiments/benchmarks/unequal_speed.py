"""Unequal speed: evaluations per second of each evaluator of unequal micro-batches, beside the limit.

Times every entry of `EVALUATORS` on a random population per instance shape, in one run. An evaluation is the forward and the
backward pass of one individual. Evaluations per CPU second charge every core that works; evaluations per second (wall) show the
scaling of the parallel evaluator, on the same population and, to leave out the start of the threads, on many of them at once.

The limit. An evaluation needs one max-plus operation (a maximum and an addition) per block of every process, counted
exactly on the population. What a core can do is measured in the same run, in the first-level cache: `chain` a dependent
max-plus chain, which is the recurrence (R) as written, and `stream` independent ones, as wide as the vector unit, which
no evaluator can pass without leaving blocks out.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments.benchmarks.timing import TICK, least_seconds
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.argument_types import check_choice
from experiments.terminal.output import tracked
from experiments.unequal_sizes.evaluators import EVALUATORS, Evaluate
from experiments.unequal_sizes.random_tables import FAMILIES, random_problem
from hardware_profiles import Floats, Integers
from planners.unequal import UnequalProblem, exact_sizes, powers_of_two
from simulator import kernel


@dataclass(frozen=True, slots=True)
class PipelineSize:
    """An instance shape: stages, samples, and whether all sizes or powers of two are candidates."""

    stages: int
    samples: int
    every_size: bool = False

    @property
    def name(self) -> str:
        """For reports."""
        return f"K={self.stages} B={self.samples} {'all sizes' if self.every_size else 'powers of two'}"


SHAPES = (
    PipelineSize(8, 64),
    PipelineSize(8, 64, True),
    PipelineSize(8, 256),
    PipelineSize(8, 1024),
    PipelineSize(16, 256),
    PipelineSize(32, 512),
)
POPULATION = 200
TILES = 32

ONE_CALL = 0.1
"""Seconds of a sweep in one call, about: an interrupt waits for its end."""


def run(options: argparse.Namespace) -> Findings:
    """Measure every shape."""
    check_choice("--family", options.family, FAMILIES)
    core = core_rates(options.seconds)
    rows = [
        measure(shape, options.family, options.seed, options.seconds, core)
        for shape in tracked("measuring", SHAPES, lambda shape: shape.name)
    ]
    head = {"population": POPULATION, "seed": options.seed, "family": options.family}
    return Findings({**head, "core": core, "shapes": rows}, lambda report: print(table(report)))


def measure(shape: PipelineSize, family: str, seed: int, seconds: float, core: dict[str, float]) -> dict[str, Any]:
    """One shape: rates of all evaluators, their ratios to the plain recurrence, and the counted limit."""
    rng = np.random.default_rng(seed)
    candidates = tuple(range(1, shape.samples + 1)) if shape.every_size else powers_of_two(shape.samples)
    problem = random_problem(rng, family, shape.stages, shape.samples, candidates)
    forward, backward = rng.choice(np.array(candidates), (2, POPULATION, problem.stages))
    rates = {name: rate(build(problem), forward, backward, seconds) for name, build in EVALUATORS.items()}
    operations = operations_per_evaluation(problem, forward, backward)
    single = rates["compiled"]["evaluations_per_cpu_second"]
    many = np.tile(forward, (TILES, 1)), np.tile(backward, (TILES, 1))
    one_core, all_cores = (
        rate(EVALUATORS[name](problem), *many, seconds)["evaluations_per_second"]
        for name in ("compiled", "compiled-parallel")
    )
    exact_sizes(problem)
    plan, exact_seconds = least_seconds(lambda: exact_sizes(problem))
    return {
        "shape": shape.name,
        "evaluators": rates,
        "ratio_to_recurrence": {
            name: found["evaluations_per_cpu_second"] / rates["recurrence"]["evaluations_per_cpu_second"]
            for name, found in rates.items()
        },
        "parallel_scaling": rates["compiled-parallel"]["evaluations_per_second"]
        / rates["compiled"]["evaluations_per_second"],
        "parallel_scaling_large_population": all_cores / one_core,
        "max_plus_per_evaluation": operations,
        "chain_limit_evaluations_per_second": core["chain_max_plus_per_second"] / operations,
        "stream_limit_evaluations_per_second": core["stream_max_plus_per_second"] / operations,
        "compiled_over_chain_limit": single * operations / core["chain_max_plus_per_second"],
        "compiled_over_stream_limit": single * operations / core["stream_max_plus_per_second"],
        "exact_cpu_seconds": exact_seconds,
        "exact_proven": plan.proven_optimal,
    }


def rate(evaluate: Evaluate, forward: Integers, backward: Integers, seconds: float) -> dict[str, float]:
    """Evaluations per second of the best call, and per CPU second of the best group of calls, in about `seconds`.

    The best, since other work on the machine only ever slows one down; groups of an eighth of the time, since the clock of
    a process counts what its other threads did with some delay. Slow evaluators get the first individuals of the population
    only, so many as fit.
    """
    evaluate(forward[:1], backward[:1])  # compiles, fills caches
    count = 1

    def evaluated() -> None:
        evaluate(forward[:count], backward[:count])

    # The best of three: threads that have to wait for other processes make one of them slow.
    while count < len(forward) and least_seconds(evaluated, calls=3, wall=True)[1] < seconds / 8:
        count = min(2 * count, len(forward))
    calls: list[float] = []
    groups: list[float] = []
    started = time.perf_counter()
    while len(groups) < 3 or time.perf_counter() - started < seconds:
        begun, cpu, first = time.perf_counter(), time.process_time(), len(calls)
        while len(calls) == first or time.perf_counter() - begun < seconds / 8:
            calls.append(least_seconds(evaluated, wall=True)[1])
        groups.append(max(time.process_time() - cpu, TICK) / (len(calls) - first))
    return {
        "evaluations_per_cpu_second": count / min(groups),
        "evaluations_per_second": count / min(calls),
        "median_evaluations_per_second": count / float(np.median(calls)),
        "individuals": count,
        "calls": len(calls),
    }


def operations_per_evaluation(problem: UnequalProblem, forward: Integers, backward: Integers) -> float:
    """Blocks of all processes of both passes: the max-plus operations of (R), mean over the population."""
    total = 0
    for chain, sizes in ((problem.forward_chain, forward), (problem.backward_chain, backward)):
        for row in sizes.tolist():
            counts = [-(-problem.samples // block) for block in chain.ordered(row)]
            total += 2 * sum(counts) - counts[-1]  # no link follows the last stage
    return total / len(forward)


def core_rates(seconds: float) -> dict[str, float]:
    """Max-plus operations per CPU second of one core on 512 numbers: dependent, and independent.

    How many repeats fill a call is seen by the wall clock: under a limit of CPU seconds that of the process goes on by ticks, and
    a short call takes none.
    """
    values, result = np.linspace(0.0, 1.0, 512), np.zeros(512)
    rates = {}
    for name, sweep in (("chain", _chain), ("stream", _stream)):
        run = partial(sweep, values, result)
        run(1)  # compiles
        repeats = 1000
        while least_seconds(partial(run, repeats), wall=True)[1] < min(seconds, ONE_CALL) / 2:
            repeats *= 2
        best = least_seconds(partial(run, repeats), calls=3, seconds=seconds)[1]
        rates[f"{name}_max_plus_per_second"] = repeats * len(values) / best
    return rates


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    core = report["core"]
    lines = [
        f"one core: {core['chain_max_plus_per_second'] / 1e6:.0f} M max-plus/s in a chain, "
        f"{core['stream_max_plus_per_second'] / 1e6:.0f} M independent"
    ]
    for row in report["shapes"]:
        lines.append(f"{row['shape']}: {row['max_plus_per_evaluation']:.0f} max-plus per evaluation")
        for name, found in row["evaluators"].items():
            lines.append(
                f"  {name:<18}{found['evaluations_per_cpu_second']:>14,.0f} /CPU s"
                f"{found['evaluations_per_second']:>14,.0f} /s{row['ratio_to_recurrence'][name]:>9.1f} x recurrence"
            )
        lines.append(
            f"  compiled is {row['compiled_over_chain_limit']:.2f} of the chain limit, "
            f"{row['compiled_over_stream_limit']:.3f} of the stream limit; two cores {row['parallel_scaling']:.2f} x, "
            f"{row['parallel_scaling_large_population']:.2f} x on {TILES} populations at once; "
            f"exact {row['exact_cpu_seconds']:.4f} s"
        )
    return "\n".join(lines)


@kernel()
def _chain(values: Floats, result: Floats, repeats: int) -> None:
    end = 0.0
    for _ in range(repeats):
        for i in range(values.shape[0]):
            value = values[i]
            end = (value if value > end else end) + 0.5
            result[i] = end


@kernel()
def _stream(values: Floats, result: Floats, repeats: int) -> None:
    for _ in range(repeats):
        for i in range(values.shape[0]):
            value = result[i]
            result[i] = (values[i] if values[i] > value else value) + 0.5


if __name__ == "__main__":
    sys.exit(run_study("unequal-speed"))
