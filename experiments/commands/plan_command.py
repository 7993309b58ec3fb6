"""`pipeplan plan`: search one plan, replay it, print it and write it; or, with `--workers`, PipeDream's partition alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import planners
import simulator
from experiments.compare.problem_options import (
    DEFAULT_PLANNER,
    ENERGY,
    LAUNCHABLE,
    PROBLEM,
    PROFILED_MINIBATCH,
    SEARCH,
    add_question,
    defaults_told,
    read_problem,
    read_request,
    read_stacks,
)
from experiments.report.report_options import REPORT, explained, read_price
from experiments.terminal.argument_types import (
    CountUpTo,
    Option,
    add_options,
    check_choice,
    counts,
    names_of,
    number,
    refuse,
    written_figure,
    written_file,
)
from experiments.terminal.exits import INFEASIBLE, OK
from experiments.terminal.output import UsageError, print_explained, print_json, progress, say, tell
from experiments.terminal.report_tables import ReportTable, words
from experiments.terminal.stops import INTERRUPTED, finishing, stoppable
from hardware_profiles import MOST_DEVICES

VARIANTS = ("paper", "script")

WORTH = (
    "mfu",
    "tokens_per_second_per_device",
    "samples_per_second_per_device",
    "joules_per_sample",
    "watts",
    "joules_by_part",
)
"""Figures of an answer's efficiency that its JSON tells without a report."""

OF_WORKERS = "pipedream"
"""The planner whose partition `--workers` makes alone."""

if TYPE_CHECKING:
    from experiments.compare.efficiency import Efficiency, Price
    from experiments.report.plan_report import PlanReport

PARETO: dict[str, Option] = {
    "--pareto N,…": (
        "plan on the first N of the devices, for each N, in ever less of their memory, and for the fewest joules where power is "
        "known; print the plans that no other beats",
        counts,
    ),
    "--figure FILE": (
        "draw these, seconds against memory (and joules), to FILE.pdf, .svg or .png (without an ending: png and svg)",
        written_figure,
    ),
}
"""Arguments of a search for several plans."""

INFERENCE: dict[str, Option] = {
    "--inference": "forward passes alone: the stages, on the devices in order, that groups of --batch samples leave soonest",
}
"""Arguments of plans for inference."""

RUNNER_UPS: dict[str, Option] = {
    "--runner-ups": "search again with the next values of every decision, for --report (default: of what the search replayed)",
}
"""Arguments of searches beside the search."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan plan`."""
    add_question(parser)
    add_options(
        parser,
        {
            "--planner NAME": f"planner (default {DEFAULT_PLANNER}; with --workers {OF_WORKERS})",
            "--out FILE": ("write the plan as JSON, for pipeplan export --plan", written_file),
            **LAUNCHABLE,
            **REPORT,
            **RUNNER_UPS,
            **ENERGY,
            **INFERENCE,
            "--json": "print one JSON document",
        },
    )
    add_options(
        parser.add_argument_group("time × memory × energy × devices", "plans that no other beats in all of them"),
        PARETO,
    )
    alone = "PipeDream's dynamic program over the profile, on levels given by numbers instead of a cluster"
    add_options(
        parser.add_argument_group("partition alone", alone),
        {
            "--workers N …": ("components that each level joins, lowest level first (4 4)", CountUpTo(MOST_DEVICES)),
            "--bandwidths B …": ("bytes per second of each level's links (12e9 1.25e9)", number),
            "--variant VARIANT": "cost functions: paper (default) or script, PipeDream's published program",
            "--straight": "no stage has a second replica",
            "--memory BYTES": ("capacity of a device", number),
        },
    )


def run(arguments: argparse.Namespace) -> int:
    """Search, replay, print; exit code 3 if the plan does not fit."""
    if arguments.workers is not None:
        return _run_partition(arguments)
    refuse(arguments, ("bandwidths", "variant", "straight", "memory"), "goes with --workers")
    if arguments.inference:
        return _run_inference(arguments)
    arguments.planner = arguments.planner or DEFAULT_PLANNER
    problem, request = read_problem(arguments, launcher=arguments.launchable), read_request(arguments)
    price = read_price(arguments, problem)
    if arguments.pareto is not None:
        refuse(arguments, names_of(ENERGY), "is of one plan, --pareto searches several")
        return _run_pareto(arguments, problem, request, price)
    refuse(arguments, ("figure",), "goes with --pareto")
    if not arguments.report:
        refuse(arguments, names_of(RUNNER_UPS), "goes with --report")
    with finishing() as stopped:
        return _plan_and_tell(arguments, problem, request, price, stopped)


def _run_inference(arguments: argparse.Namespace) -> int:
    """Search and print the stages of a network for inference."""
    others = {
        **SEARCH,
        **LAUNCHABLE,
        **REPORT,
        **RUNNER_UPS,
        **ENERGY,
        **PARETO,
        "--out FILE": "",
        "--planner NAME": "",
    }
    refuse(arguments, names_of(others), "is of training, --inference is of forward passes alone")
    found = planners.forward_pipeline(read_problem(arguments))
    tell(found, as_json=arguments.json)
    return OK


def _plan_and_tell(
    arguments: argparse.Namespace,
    problem: simulator.Problem,
    request: planners.Request,
    price: Price | None,
    stopped: Callable[[], bool],
) -> int:
    """Search, write and print one plan; `stopped` says whether a signal has come."""
    result = _searched(arguments, problem, request)
    outcome = result.outcome
    if outcome.warning and arguments.json:
        print(f"warning: {outcome.warning}", file=sys.stderr)
    try:
        with stoppable():
            flushed = [] if result.interrupted else _flushed(outcome)
    except KeyboardInterrupt:
        flushed, result = [], replace(result, interrupted=True)
    told = _told(arguments, result, price)
    if isinstance(told, planners.Result):
        result = told
    if stopped() and not result.interrupted:
        result = replace(result, interrupted=True)
        told = result if isinstance(told, planners.Result) else told
    from experiments.compare.efficiency import efficiency

    worth, rival = efficiency(outcome), None if result.interrupted else planners.nearest_rival(result)
    if arguments.json:
        report = {} if told is result else {"report": told.record()}
        print_json({**_document(result, worth, rival.record() if rival else None, flushed), **report})
    else:
        print_explained(told)
        others = "; ".join(f"{one['schedule']} {one['iteration_seconds']:.4g} s" for one in flushed)
        lines = [worth.words(result.problem.device_word)] * (told is result)
        lines += [defaults_told(arguments, problem, result.plan), str(rival or "")]
        lines += [f"the same stages with a flush: {others}"] * bool(flushed)
        for line in filter(None, lines):
            say(line)
    if result.interrupted:
        return INTERRUPTED
    return OK if outcome.fits else INFEASIBLE


def _searched(arguments: argparse.Namespace, problem: simulator.Problem, request: planners.Request) -> planners.Result:
    """The answer, which is written as soon as it is found: before what takes long again."""
    with stoppable(), progress(f"planning with {arguments.planner}") as report:
        result = planners.plan_by(
            arguments.planner,
            problem,
            read_stacks(arguments, problem, arguments.launchable),
            request,
            seed=arguments.seed,
            progress=lambda step: report(step.evaluations, f"best {step.iteration_seconds:.4g} s"),
        )
    if arguments.out is not None:
        simulator.PlanFile(result.problem, result.plan).write(arguments.out)
    if arguments.runner_ups:
        result = _best_nearby(result, request, arguments.seed)
        if arguments.out is not None:
            simulator.PlanFile(result.problem, result.plan).write(arguments.out)
    return result


def _document(
    result: planners.Result, worth: Efficiency, rival: Mapping[str, Any] | None, flushed: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The answer as a JSON document, with what it is not told apart from, and the same stages with a flush."""
    outcome = result.outcome
    return {
        "forward_sizes": [],
        "backward_sizes": [],
        **simulator.decisions(result.plan),
        "notation": result.plan.notation,
        **result.record(),
        **{name: worth.record()[name] for name in WORTH},
        "not_told_apart": rival,
        "memory": simulator.peak_rows(outcome.memory),
        "fill_seconds": outcome.fill_seconds,
        "drain_seconds": outcome.drain_seconds,
        # PipeDream's optimal number of minibatches in flight of each replica of the input stage
        "noam": None if outcome.schedule.flush else -(-len(outcome.plan.devices) // outcome.plan.replicas[0]),
        "same_plan_flushed": flushed,
        "details": result.details,
    }


def _best_nearby(result: planners.Result, request: planners.Request, seed: int) -> planners.Result:
    """The answer with the runner-ups that searches beside it find, or the plan of one of these that is faster."""
    if result.interrupted:
        return result
    try:
        with stoppable(), progress("searching runner-ups") as searched:
            return planners.search_nearby(result, request, seed=seed, progress=searched)
    except KeyboardInterrupt:
        return replace(result, interrupted=True)


def _told(arguments: argparse.Namespace, result: planners.Result, price: Price | None) -> planners.Result | PlanReport:
    """What is printed: the result, or its report; the result alone where an interrupt ends what that takes."""
    if not arguments.report:
        return result
    if result.interrupted:  # which ends what takes long, too
        print("pipeplan plan: no report is made after an interrupt", file=sys.stderr)
        return result
    try:
        with stoppable():
            return explained(result, price)
    except KeyboardInterrupt:
        return replace(result, interrupted=True)


def _flushed(outcome: simulator.Outcome) -> list[dict[str, Any]]:
    """GPipe and 1F1B with flush on the stages of an asynchronous plan: replicas split each micro-batch, one update per batch."""
    told = ("iteration_seconds", "samples_per_second", "peak_memory_bytes", "feasible")
    records = []
    for schedule in () if outcome.schedule.flush else ("gpipe", "1f1b"):
        found = simulator.simulate(
            outcome.problem, replace(outcome.plan, schedule=schedule, replication="split")
        ).record()
        records.append({"schedule": schedule, **{name: found[name] for name in told}})
    return records


# ---------------------------------------------------------------------------- time × memory × energy × devices


def _run_pareto(
    arguments: argparse.Namespace, problem: simulator.Problem, request: planners.Request, price: Price | None
) -> int:
    from experiments.report.pareto import pareto

    refuse(arguments, ("out", "report", *names_of(RUNNER_UPS)), "is of one plan, --pareto searches several")
    with progress(f"planning with {arguments.planner}") as report:
        found = pareto(
            problem,
            arguments.planner,
            arguments.pareto,
            request,
            seed=arguments.seed,
            price=price,
            stacks=read_stacks(arguments, problem, arguments.launchable),
            progress=report,
        )
    if arguments.figure is not None and found.interrupted:
        print("pipeplan plan: no figure is drawn after an interrupt", file=sys.stderr)
    elif arguments.figure is not None and found.points:
        simulator.save(found.plot(), arguments.figure)
    tell(found, *filter(None, [defaults_told(arguments, problem)]), as_json=arguments.json)
    if found.interrupted:
        return INTERRUPTED
    return OK if found.points else INFEASIBLE


# --------------------------------------------------------------------------------------------------- partition alone


def _check_partition(arguments: argparse.Namespace) -> None:
    """UsageError for what `--workers` needs and does not have, or has and does not go with."""
    if arguments.profile is None:
        raise UsageError("--workers needs --profile FILE: the partition is made from measured seconds")
    if arguments.planner not in (None, OF_WORKERS):
        raise UsageError(f"--workers is for --planner {OF_WORKERS}, got {arguments.planner!r}")
    if arguments.cluster is not None:
        raise UsageError("--cluster does not go with --workers, which describes the machine itself")
    others = {
        **PROBLEM,
        **SEARCH,
        **LAUNCHABLE,
        **PARETO,
        **RUNNER_UPS,
        **REPORT,
        **ENERGY,
        **INFERENCE,
        "--out FILE": "",
    }
    refuse(
        arguments,
        [name for name in names_of(others) if name not in names_of(PROFILED_MINIBATCH)],
        "does not go with --workers: the profile is partitioned as it was measured",
    )
    check_choice("--variant", arguments.variant or VARIANTS[0], VARIANTS)
    given = len(arguments.bandwidths or ())
    if given != len(arguments.workers):
        raise UsageError(
            f"--bandwidths must be one for each of {len(arguments.workers)} levels of --workers, got {given}"
        )


STAGES = ReportTable(
    "{workload} on {joined} workers: {notation} ({variant})",
    lambda document: [{"stage": number, **stage} for number, stage in enumerate(document["stages"])],
    {
        "stage": "{stage}",
        "states": lambda stage: f"{stage['states'][0]}-{stage['states'][1] - 1}",
        "layers": lambda stage: str(len(stage["layers"])),
        "replicas by level": words("replicas_by_level", " × "),
        "replicas": "{replicas}",
    },
)


def _run_partition(arguments: argparse.Namespace) -> int:
    _check_partition(arguments)
    workload = simulator.read_any_profile(arguments.profile, arguments.profiled_minibatch)
    found = planners.partition(
        planners.measured_table(workload),
        planners.network_levels(arguments.workers, arguments.bandwidths),
        variant=arguments.variant or VARIANTS[0],
        straight=arguments.straight,
        memory=planners.MemoryLimit(inf if arguments.memory is None else arguments.memory),
    )
    document = {
        "workload": workload.name,
        "minibatch": workload.minibatch,
        "variant": found.variant,
        "workers": found.workers_per_level,
        "bandwidths": arguments.bandwidths,
        "notation": planners.notation(found),
        **{name: getattr(found, name) for name in FOUND},
        "stages": [
            {
                "states": [stage.start, stage.stop],
                "replicas_by_level": stage.workers,
                "replicas": stage.replicas,
                "layers": [workload.layers[layer].name for layer in stage.layers],
            }
            for stage in found.stages
        ],
    }
    if arguments.json:
        print_json(document)
        return 0
    STAGES.print({**document, "joined": " × ".join(map(str, found.workers_per_level))})
    print(
        f"slowest stage {found.slowest_stage_seconds:.6g} s per mini-batch of {workload.minibatch}; speedup over one device "
        f"{found.speedup_over_one:.3f}, over data parallelism {found.speedup_over_dp:.3f}; "
        f"planned in {found.planning_seconds:.3f} s"
    )
    return 0


FOUND = (
    "slowest_stage_seconds",
    "one_device_seconds",
    "data_parallel_seconds",
    "speedup_over_one",
    "speedup_over_dp",
    "planning_seconds",
)
"""Figures of a partition that its document tells."""
