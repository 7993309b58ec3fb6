"""`pipeplan export`: a plan's schedule or timeline in a format of other tools."""

from __future__ import annotations

import argparse
import json
import sys

import planners
import simulator
from experiments.compare.problem_options import (
    DEFAULT_PLANNER,
    SEARCH,
    add_question,
    read_problem,
    read_request,
    read_stacks,
    refuse_contradictions,
)
from experiments.terminal.argument_types import add_options, check_choice, names_of, refuse, written_file
from experiments.terminal.exits import OK
from experiments.terminal.output import UsageError, say
from experiments.terminal.stops import INTERRUPTED

FORMATS = {
    "chrome-trace": "timeline for Perfetto (ui.perfetto.dev) and chrome://tracing, with transfers and memory",
    "torch-csv": "compute-only schedule of torch.distributed.pipelining",
    "text": "schedule, one line of ops per device",
    "plan": "the plan with its problem, JSON for --plan",
    "problem": "the problem alone, JSON for --problem; nothing is searched",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan export`."""
    add_question(parser)
    add_options(
        parser,
        {
            "--format FORMAT": ("; ".join(f"{name}: {text}" for name, text in FORMATS.items()), str, ...),
            "--planner NAME": f"planner (default {DEFAULT_PLANNER})",
            "--plan FILE": "export this plan (from pipeplan plan --out) with its own problem",
            "--out FILE": ("file to write (default: stdout)", written_file),
        },
    )


def run(arguments: argparse.Namespace) -> int:
    """Make or read the plan, and write it."""
    check_choice("--format", arguments.format, FORMATS)
    content, interrupted = (
        (simulator.PlanFile(_problem(arguments)).to_json(), False)
        if arguments.format == "problem"
        else _content(arguments)
    )
    if arguments.out is None:
        print(content, end="")
    else:
        simulator.write_atomically(arguments.out, content)
        say(f"{arguments.format} written to {arguments.out}")
    if interrupted:
        print("pipeplan export: interrupted: this is of the best plan so far", file=sys.stderr)
    return INTERRUPTED if interrupted else OK


def _problem(arguments: argparse.Namespace) -> simulator.Problem:
    """The problem of the options or the files; UsageError for options of a search."""
    refuse(arguments, ["planner", *names_of(SEARCH)], "is for a search; --format problem makes none")
    given = {} if arguments.plan is None else {arguments.plan: simulator.PlanFile.read(arguments.plan).problem}
    return read_problem(arguments, given)


def _content(arguments: argparse.Namespace) -> tuple[str, bool]:
    """The plan in the format asked for, and whether an interrupt ended its search; UsageError for one that torch cannot run."""
    problem, plan, interrupted = _plan(arguments)
    return _written(arguments, problem, plan), interrupted


def _written(arguments: argparse.Namespace, problem: simulator.Problem, plan: simulator.Plan) -> str:
    if arguments.format == "plan":
        return simulator.PlanFile(problem, plan).to_json()
    if arguments.format == "chrome-trace":
        outcome = simulator.simulate(problem, plan)
        name = f"{problem.workload.name} on {problem.cluster.name}: {plan.planner}, {plan.schedule}, {plan.notation}"
        return json.dumps(simulator.chrome_trace(outcome.timeline, outcome.memory, name=name)) + "\n"
    _, schedule, _ = simulator.build_program(problem, plan)
    try:
        return torch_csv(plan, schedule) if arguments.format == "torch-csv" else simulator.to_text(schedule)
    except simulator.ScheduleError as error:
        raise UsageError(f"--format torch-csv: {error}; --format text takes it") from None


def torch_csv(plan: simulator.Plan, schedule: simulator.Schedule) -> str:
    """The plan's schedule for torch, with a line on stderr where replicas decide how torch is launched.

    ScheduleError, saying why, for a plan that torch cannot run.
    """
    sizes, replicas = sorted(set(plan.microbatches)), plan.replicas
    if plan.forward_sizes:
        raise simulator.ScheduleError(
            "the plan has micro-batches of other sizes on each stage; torch's have one size everywhere"
        )
    content = simulator.to_torch_csv(schedule)
    if len(set(replicas)) > 1:
        raise simulator.ScheduleError(
            f"stages have {plan.notation} replicas; torch runs copies of a whole pipeline, as many of each stage"
        )
    if len(sizes) > 1 or sizes[0] % replicas[0]:
        raise simulator.ScheduleError(
            f"micro-batches of {' or '.join(map(str, sizes))} samples, replicas of a stage: {replicas[0]}; "
            "torch sends tensors of one shape: as many whole samples in every micro-batch of every device"
        )
    if replicas[0] > 1:
        print(
            f"pipeplan: the CSV is of one of {replicas[0]} equal pipelines: launch {replicas[0]} × {schedule.ranks} "
            f"processes, a pipeline group of {schedule.ranks} ranks per replica, {sizes[0] // replicas[0]} samples per "
            "micro-batch in each, and DistributedDataParallel over the replicas of a stage",
            file=sys.stderr,
        )
    return content


def _plan(arguments: argparse.Namespace) -> tuple[simulator.Problem, simulator.Plan, bool]:
    """The problem, the plan of the file, or else of the planner, and whether an interrupt ended its search."""
    if arguments.plan is None:
        problem = read_problem(arguments)
        name = arguments.planner or DEFAULT_PLANNER
        stacks = read_stacks(arguments, problem)
        found = planners.plan_over_stacks(name, problem, stacks, read_request(arguments), seed=arguments.seed)
        return found.problem, found.plan, found.interrupted
    problem, plan = simulator.PlanFile.read_plan(arguments.plan)
    read_problem(arguments, {arguments.plan: problem})
    own = {
        "planner": plan.planner,
        "schedule": plan.schedule,
        "microbatches": len(plan.microbatches),
        "stages": len(plan.stages),
    }
    file = f"--plan {arguments.plan}"
    refuse_contradictions(arguments, file, own)
    others = [name for name in names_of(SEARCH) if name not in own]
    refuse(arguments, others, f"is for a search; {file} has made its plan already")
    return problem, plan, False
