"""`pipeplan export`: a plan for what launches it, or its schedule or timeline in a format of other tools."""

from __future__ import annotations

import argparse
import json
import sys

import planners
import simulator
from experiments.compare.problem_options import (
    DEFAULT_PLANNER,
    FORMS,
    SEARCH,
    add_question,
    imported_from,
    read_plans,
    read_problem,
    read_request,
    read_stacks,
    refuse_contradictions,
)
from experiments.targets.names import TARGETS, told
from experiments.targets.target import NotLaunchableError, Written
from experiments.terminal.argument_types import Option, add_options, check_choice, names_of, refuse, written_file
from experiments.terminal.exits import OK
from experiments.terminal.output import UsageError, output_file, say
from experiments.terminal.stops import INTERRUPTED
from hardware_profiles import blaming

FORMATS = {
    "chrome-trace": "timeline for Perfetto (ui.perfetto.dev) and chrome://tracing, with transfers and memory",
    "text": "schedule, one line of ops per device",
    "chakra": "execution traces for simulators of networks, FILE.RANK.et (extra chakra)",
    "plan": "the plan with its problem, JSON for --plan",
    "problem": "the problem alone, JSON for --problem; nothing is searched",
}

MOST_NAMED = 4
"""Files that the line about what was written names."""

OF_TARGETS: dict[str, Option] = {
    "--with-sends": "torch-csv: sends, receives and gathers of weights, too (torch's format compute_comms)",
}
"""Options of single targets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan export`."""
    add_question(parser)
    add_options(
        parser.add_mutually_exclusive_group(required=True),
        {
            "--to TARGET": f"what is to launch the plan: {told(TARGETS)}",
            "--format FORMAT": "; ".join(f"{name}: {text}" for name, text in FORMATS.items()),
        },
    )
    add_options(
        parser,
        {
            **OF_TARGETS,
            "--planner NAME": f"planner (default {DEFAULT_PLANNER})",
            "--plan FILE": FORMS,
            "--out FILE": ("file to write (default: stdout)", written_file),
        },
    )


def run(arguments: argparse.Namespace) -> int:
    """Make or read the plan, and write it."""
    given = [name for name in names_of(OF_TARGETS) if getattr(arguments, name)]
    if arguments.to is not None:
        check_choice("--to", arguments.to, TARGETS)
        refuse(arguments, set(given).difference(TARGETS[arguments.to].options), f"is not of --to {arguments.to}")
    elif arguments.format in TARGETS:
        raise UsageError(f"--format {arguments.format}: it launches plans: --to {arguments.format}")
    else:
        check_choice("--format", arguments.format, FORMATS)
        refuse(arguments, given, "goes with --to")
        _check_chakra(arguments)
    written, interrupted = (
        (Written({"": simulator.PlanFile(_problem(arguments)).to_json()}), False)
        if arguments.format == "problem"
        else _content(arguments, dict.fromkeys(given, True))
    )
    _deliver(arguments, written)
    for note in written.notes:
        print(f"pipeplan export: {note}", file=sys.stderr)
    if interrupted:
        print("pipeplan export: interrupted: this is of the best plan so far", file=sys.stderr)
    return INTERRUPTED if interrupted else OK


def _check_chakra(arguments: argparse.Namespace) -> None:
    """UsageError, before anything is searched, for traces that could not be written."""
    if arguments.format == "chakra":
        if arguments.out is None:
            raise UsageError("--format chakra writes FILE.RANK.et of every rank: it needs --out FILE")
        with blaming(UsageError, "--format chakra"):
            simulator.check_chakra()


def _deliver(arguments: argparse.Namespace, written: Written) -> None:
    """Print what is written, or write it, and what stands beside it, to files."""
    if arguments.out is None:
        if len(written.files) > 1:
            ends = ", ".join(f"FILE{end}" for end in written.files)
            raise UsageError(f"--to {arguments.to} writes {ends} for this plan: it needs --out FILE")
        print(written.files[""], end="")
        return
    paths = {arguments.out.with_name(arguments.out.name + end): content for end, content in written.files.items()}
    for path in paths:
        output_file(str(path))
    for path, content in paths.items():
        simulator.write_atomically(path, content)
    names = [str(path) for path in paths]
    if len(names) > MOST_NAMED:
        names = [names[0], "…", f"{names[-1]} ({len(names)} files)"]
    say(f"{arguments.to or arguments.format} written to {', '.join(names)}")


def _problem(arguments: argparse.Namespace) -> simulator.Problem:
    """The problem of the options or the files; UsageError for options of a search."""
    refuse(arguments, ["planner", *names_of(SEARCH)], "is for a search; --format problem makes none")
    if arguments.plan is not None and imported_from(arguments.plan):
        raise UsageError(
            f"--format problem: --plan {imported_from(arguments.plan)}:… has no problem: options describe it"
        )
    given = {} if arguments.plan is None else {arguments.plan: simulator.PlanFile.read(arguments.plan).problem}
    return read_problem(arguments, given)


def _content(arguments: argparse.Namespace, options: dict[str, bool]) -> tuple[Written, bool]:
    """The plan in the form asked for, and whether an interrupt ended its search; UsageError where the target cannot run it."""
    problem, plan, interrupted = _plan(arguments)
    if arguments.format == "chakra":
        with blaming(UsageError, "--format chakra"):
            return _traces(simulator.execution_traces(problem, plan)), interrupted
    if arguments.to is None:
        return Written({"": _formatted(arguments.format, problem, plan)}), interrupted
    try:
        file = "" if arguments.out is None else str(arguments.out)
        return TARGETS[arguments.to].written(arguments.to, problem, plan, file, **options), interrupted
    except NotLaunchableError as error:
        raise UsageError(f"--to {error}") from None


def _traces(found: simulator.ExecutionTraces) -> Written:
    notes = [f"a plan that never flushes: traces of a stream of {found.stream} micro-batches"] * bool(found.stream)
    if found.devices != tuple(range(len(found.devices))):
        notes.append(f"ranks in their order on devices {simulator.in_order(found.devices)}")
    return Written(found.files(), tuple(notes))


def _formatted(form: str, problem: simulator.Problem, plan: simulator.Plan) -> str:
    if form == "plan":
        return simulator.PlanFile(problem, plan).to_json()
    if form == "chrome-trace":
        outcome = simulator.simulate(problem, plan)
        name = f"{problem.workload.name} on {problem.cluster.name}: {plan.planner}, {plan.schedule}, {plan.notation}"
        return json.dumps(simulator.chrome_trace(outcome.timeline, outcome.memory, name=name)) + "\n"
    _, schedule, _ = simulator.build_program(problem, plan)
    return simulator.to_text(schedule)


def _plan(arguments: argparse.Namespace) -> tuple[simulator.Problem, simulator.Plan, bool]:
    """The problem, the plan of the file, or else of the planner, and whether an interrupt ended its search."""
    if arguments.plan is None:
        problem = read_problem(arguments, launcher=arguments.to)
        name = arguments.planner or DEFAULT_PLANNER
        stacks = read_stacks(arguments, problem, arguments.to)
        with blaming(UsageError, of=simulator.PlanNotRunError):
            found = planners.plan_over_stacks(name, problem, stacks, read_request(arguments), seed=arguments.seed)
        return found.problem, found.plan, found.interrupted
    problem, plans = read_plans(arguments, [arguments.plan])
    plan = plans[arguments.plan]
    if (target := imported_from(arguments.plan)) is not None:
        searched = [name for name in names_of(SEARCH) if name not in TARGETS[target].takes]
        refuse(arguments, ["planner", *searched], f"is for a search; --plan {target}:… has made its plan already")
        return problem, plan, False
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
