"""`pipeplan plan`: search one plan, replay it, print it and write it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.problem_options import (
    add_problem_arguments,
    add_search_arguments,
    problem_options,
    read_problem,
    read_request,
)

if TYPE_CHECKING:
    from planners import PlannedOutcome
    from simulator import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan plan`."""
    add_problem_arguments(parser)
    add_search_arguments(parser)
    parser.add_argument("--planner", default="pipedream", metavar="NAME", help="planner (default %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="write the plan as JSON, for pipeplan export --plan")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Search, replay, print; exit code 3 if the plan does not fit."""
    from experiments.output import print_json, progress
    from experiments.plan_files import plan_document, write_plan
    from planners import iteration_lower_bound, make_plan
    from simulator import schedule_families, simulate

    problem, request = read_problem(arguments), read_request(arguments)
    with progress(f"planning with {arguments.planner}") as report:
        planned = make_plan(
            arguments.planner,
            problem,
            request,
            seed=arguments.seed,
            progress=lambda step: report(step.evaluations, f"best {step.iteration_seconds:.4g} s"),
        )
    outcome = simulate(problem, planned.plan)
    flushed = schedule_families()[planned.plan.schedule].flush
    bound = iteration_lower_bound(problem, asynchronous=not flushed)
    if arguments.out:
        write_plan(Path(arguments.out), planned.plan, problem_options(arguments, problem))
    if arguments.json:
        print_json(
            {
                **plan_document(planned.plan),
                "iteration_seconds": outcome.iteration_seconds,
                "samples_per_second": outcome.samples_per_second,
                "lower_bound_seconds": bound,
                "gap": outcome.iteration_seconds / bound - 1.0,
                "feasible": outcome.fits,
                "peak_memory_bytes": outcome.fullest.peak_bytes,
                "capacity_bytes": outcome.fullest.capacity_bytes,
                "planning_seconds": planned.planning_seconds,
                "evaluations": planned.evaluations,
                "interrupted": planned.interrupted,
                "optimal_among": planned.optimal_among,
            }
        )
    else:
        _print(outcome, planned, bound)
    return 0 if outcome.fits else 3


def _print(outcome: Outcome, planned: PlannedOutcome, bound: float) -> None:
    from experiments.output import print_table

    problem, plan = outcome.problem, outcome.plan
    rows = []
    peaks = {memory.device: memory for memory in outcome.memory}
    for number, stage in enumerate(plan.stages):
        names = [problem.workload.layers[layer].name for layer in (stage.layers[0], stage.layers[-1])]
        fullest = max((peaks[device] for device in stage.devices), key=lambda memory: memory.peak_bytes)
        rows.append(
            (
                str(number),
                f"{len(stage.layers)}: {names[0]} … {names[1]}",
                _ranges(stage.devices),
                f"{sum(problem.workload.layers[layer].parameters for layer in stage.layers) / 1e6:,.2f}",
                f"{fullest.peak_bytes / 2**30:.2f} of {fullest.capacity_bytes / 2**30:.4g}",
            )
        )
    print_table(
        f"{problem.workload.name} on {problem.cluster.name}: {plan.planner}, {plan.schedule}, {plan.notation}",
        ("stage", "layers", "devices", "M parameters", "peak memory, GiB"),
        rows,
    )
    sizes = sorted(set(plan.microbatches))
    print(
        f"{len(plan.microbatches)} micro-batches of {' or '.join(map(str, sizes))} samples; "
        f"{outcome.iteration_seconds:.4g} s an iteration, {outcome.samples_per_second:,.4g} samples/s; "
        f"lower bound {bound:.4g} s, gap {100 * (outcome.iteration_seconds / bound - 1):.1f} %"
    )
    proof = f"; the fastest of {planned.optimal_among}" if planned.optimal_among else ""
    early = "; interrupted, this is the best so far" if planned.interrupted else ""
    print(f"planned in {planned.planning_seconds:.2f} CPU s with {planned.evaluations} replays{proof}{early}")
    if not outcome.fits:
        print("the plan does not fit")


def _ranges(devices: tuple[int, ...]) -> str:
    """`0-14` for fifteen devices in a row."""
    parts: list[list[int]] = []
    for device in sorted(devices):
        if parts and device == parts[-1][-1] + 1:
            parts[-1].append(device)
        else:
            parts.append([device])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
