"""`pipeplan export`: a plan's schedule or timeline in a format of other tools."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.problem_options import add_problem_arguments, add_search_arguments, read_problem, read_request

if TYPE_CHECKING:
    from experiments.plan_files import ReadPlan
    from simulator import Plan, Problem

DEFAULT_PLANNER = "pipedream"

FORMATS = {
    "chrome-trace": "timeline for Perfetto (ui.perfetto.dev) and chrome://tracing, with transfers and memory",
    "torch-csv": "compute-only schedule of torch.distributed.pipelining",
    "text": "schedule, one line of ops a device",
    "plan": "the plan itself, JSON",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan export`."""
    add_problem_arguments(parser)
    add_search_arguments(parser)
    parser.add_argument(
        "--format", required=True, metavar="FORMAT", help="; ".join(f"{k}: {v}" for k, v in FORMATS.items())
    )
    parser.add_argument("--planner", metavar="NAME", help=f"planner (default {DEFAULT_PLANNER})")
    parser.add_argument(
        "--plan", metavar="FILE", help="export this plan (from pipeplan plan --out) with its own problem"
    )
    parser.add_argument("--out", metavar="FILE", help="file to write (default: stdout)")


def run(arguments: argparse.Namespace) -> int:
    """Make or read the plan, and write it."""
    from experiments.output import UsageError, to_json
    from simulator import write_atomically

    if arguments.format not in FORMATS:
        raise UsageError(f"--format {arguments.format!r} is unknown; choices: {', '.join(FORMATS)}")
    problem, plan = _plan(arguments)
    if arguments.format == "plan":
        from experiments.plan_files import FORMAT, plan_document
        from experiments.problem_options import problem_options

        document = {"format": FORMAT, "problem": problem_options(arguments, problem), "plan": plan_document(plan)}
        content = to_json(document) + "\n"
    elif arguments.format == "chrome-trace":
        import json

        from simulator import chrome_trace, simulate

        outcome = simulate(problem, plan)
        name = f"{problem.workload.name} on {problem.cluster.name}: {plan.planner}, {plan.schedule}, {plan.notation}"
        content = json.dumps(chrome_trace(outcome.timeline, outcome.memory, name=name)) + "\n"
    else:
        if plan.forward_sizes and arguments.format == "torch-csv":
            raise UsageError(
                "--format torch-csv: the plan has micro-batches of other sizes on each stage, which torch cannot run; use text"
            )
        from simulator import build_program, to_text, to_torch_csv

        _, schedule, _ = build_program(problem, plan)
        content = to_torch_csv(schedule) if arguments.format == "torch-csv" else to_text(schedule)
    if arguments.out is None:
        print(content, end="")
        return 0
    path = Path(arguments.out)
    if path.is_dir():
        raise UsageError(f"--out {path} is a folder; name a file")
    write_atomically(path, content)
    print(f"{arguments.format} written to {path}")
    return 0


def _plan(arguments: argparse.Namespace) -> tuple[Problem, Plan]:
    if arguments.plan is not None:
        from experiments.plan_files import read_plan

        found = read_plan(arguments.plan)
        _refuse_contradictions(arguments, found)
        vars(arguments).update(found.options)
        return found.problem, found.plan
    from planners import make_plan

    problem = read_problem(arguments)
    name = arguments.planner or DEFAULT_PLANNER
    return problem, make_plan(name, problem, read_request(arguments), seed=arguments.seed).plan


def _refuse_contradictions(arguments: argparse.Namespace, found: ReadPlan) -> None:
    """UsageError for an option that says something else than the plan, or that only a search could heed."""
    from experiments.output import UsageError

    plan = found.plan
    own = {
        **found.options,
        "planner": plan.planner,
        "schedule": plan.schedule,
        "microbatches": len(plan.microbatches),
        "stages": len(plan.stages),
    }
    for name, value in vars(arguments).items():
        if value in (None, False) or name in ("command", "version", "format", "plan", "out"):
            continue
        option = "--" + name.replace("_", "-")
        if name not in own and value != 0:
            raise UsageError(f"{option} is for a search; --plan {arguments.plan} has made its plan already")
        if name in own and value != own[name]:
            said = option if value is True else f"{option} {value}"
            raise UsageError(f"{said} contradicts --plan {arguments.plan}, which says {own[name]}")
