"""`pipeplan check`: is this profile file right, and if not, where."""

from __future__ import annotations

import argparse
import os
from typing import Any

import hardware_profiles
import simulator
from experiments.compare.problem_options import (
    FORMS,
    IMPORTED,
    PROFILED_MINIBATCH,
    WITH_A_FORM,
    add_imported,
    imported_from,
    on_another,
    read_plan,
)
from experiments.targets.names import TARGETS
from experiments.terminal.argument_types import (
    add_options,
    check_choice,
    names_of,
    refuse,
    written_figure,
)
from experiments.terminal.output import (
    UsageError,
    blamed_on,
    print_json,
    print_table,
    progress,
    say,
    tell,
)
from hardware_profiles import counted

OWN = ("profiled_minibatch",)
"""Options of an imported plan that go with a file, too."""

SCHEMAS = ("accelerator", "cluster", "stack", "plan")

BOARD = ("workload", "precision", "batch", "json")
"""Options of what binds layers on a board, by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan check`."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="profile TOML, graph.txt, profile JSON, config.json, schedule CSV or lines of ops, JSON of a plan or a problem, or "
        "the name of an accelerator, a cluster or a stack; a trace of torch.profiler, or a folder of them; of an FPGA board with "
        "--workload: what binds each layer of a forward pass, and what twice each figure of the board gains",
    )
    add_options(
        parser,
        {
            "--plan FILE": f"its rules, and those of its plan, of a {FORMS}; with --draw: what loads links",
            "--schema KIND": f"print the JSON Schema of a kind of file: {', '.join(SCHEMAS)}",
            "--draw FILE": (
                "draw the cluster (name, name:SERVERS or TOML file; that of --plan if none is named): FILE.png, FILE.svg or "
                "FILE.pdf; FILE alone: FILE.png and FILE.svg",
                written_figure,
            ),
            "--json": "print what binds the layers of --workload as one JSON document",
            **PROFILED_MINIBATCH,
        },
    )

    add_imported(parser, OWN)


def run(arguments: argparse.Namespace) -> int:
    """Check a file and say what it holds, draw a cluster, or print a schema."""
    if arguments.plan is None and (arguments.file or "").startswith(tuple(f"{name}:" for name in TARGETS)):
        arguments.plan, arguments.file = arguments.file, None
    of_board = arguments.plan is None and arguments.file is not None and arguments.workload is not None
    if arguments.plan is None:
        described = [name for name in names_of(IMPORTED) if name not in (*OWN, *(BOARD if of_board else ()))]
        refuse(arguments, described, WITH_A_FORM)
    if of_board:
        return _roofs(arguments)
    refuse(arguments, ("json",), "goes with a board and --workload")
    if arguments.draw is not None and arguments.schema is None and (arguments.file or arguments.plan):
        return _draw(arguments)
    given = [one for one in ("file", "plan", "schema") if getattr(arguments, one) is not None]
    if len(given) != 1 or arguments.draw is not None:
        raise UsageError(
            "check takes one of FILE, --plan FILE and --schema KIND; or --draw FILE with a cluster, a plan or both"
        )
    if arguments.schema is not None:
        check_choice("--schema", arguments.schema, SCHEMAS)
        kind = arguments.schema
        print_json(simulator.plan_schema() if kind == "plan" else hardware_profiles.schema(kind))
        return 0
    path = arguments.plan or arguments.file
    if arguments.plan is None and is_name(path):
        for said in hardware_profiles.check_profile(path):
            say(f"{path}: {said}")
        return 0
    graph = path.endswith(".txt") if arguments.plan is None else imported_from(path) is not None
    if arguments.profiled_minibatch is not None and not graph:
        raise UsageError(f"--profiled-minibatch goes with PipeDream's graph.txt, got {path}")
    said = (
        _plan_summary(path, *read_plan(arguments, OWN))
        if arguments.plan
        else _summary(path, arguments.profiled_minibatch)
    )
    say(f"{path}: {said}")
    return 0


def _roofs(arguments: argparse.Namespace) -> int:
    """Tell what binds the layers of a network on a board."""
    from experiments.report.board_roofs import board_problem, board_roofs

    refuse(arguments, ("schema", "draw", "profiled_minibatch"), "does not go with --workload")
    board = hardware_profiles.load_accelerator(arguments.file)
    if not isinstance(board, hardware_profiles.FieldProgrammableGateArray):
        raise UsageError(f"--workload goes with an FPGA board, which {arguments.file} is not; see pipeplan sensitivity")
    precision: Any = arguments.precision or ("int8" if "int8" in board.precisions else board.precisions[0])
    check_choice("--precision", precision, board.precisions)
    samples = arguments.batch or board.batch
    workload = simulator.workload_from_spec(arguments.workload)
    found = board_roofs(board_problem(board, workload, samples, precision))
    tell(found, as_json=arguments.json)
    return 0


def _draw(arguments: argparse.Namespace) -> int:
    """Draw a cluster, by its bandwidths, or by what a plan loads its links with, which is told as a table, too."""
    from experiments.report.cluster_plots import draw

    loads = None
    if arguments.plan is not None:
        problem, plan = read_plan(arguments, OWN)
        if arguments.file is not None:
            problem = on_another(problem, plan, arguments.file, f"--plan {arguments.plan}")
        cluster = problem.cluster
        with progress("replaying"):
            loads = simulator.simulate(problem, plan, engine="compiled").link_loads()
        table = loads.table()
        print_table(table.title, table.headings, table.rows)
    else:
        cluster = hardware_profiles.load_cluster(arguments.file)
    with progress("drawing"):
        written = simulator.save(draw(cluster, loads), arguments.draw)
    for file in written:
        say(str(file))
    return 0


def is_name(text: str) -> bool:
    """Whether a text is a profile's name, or is meant as one: it has no ending, leads into no folder, and is no file."""
    alone = os.path.basename(text) == text and not os.path.lexists(text)
    return alone and (not os.path.splitext(text)[1] or text in _every_name())


def _every_name() -> set[str]:
    """The names of all profiles."""
    listed = hardware_profiles.accelerator_names, hardware_profiles.cluster_names, hardware_profiles.stack_names
    return {name for names in listed for name in names()}


def _plan_summary(path: str, problem: simulator.Problem, plan: simulator.Plan | None) -> str:
    """What a plan file holds, whose plan, if it has one, has been replayed."""
    where = f"{problem.workload.name} on {problem.cluster.name}"
    if plan is None:
        samples = counted(problem.batch, problem.workload.sample)
        return f"ok: problem of {where}: {samples} per iteration, {problem.cluster.counted_devices}"
    with blamed_on(f"{path}: $.plan"):
        simulator.simulate(problem, plan, engine="compiled")
    return (
        f"ok: plan of {hardware_profiles.legible(plan.planner)} for {where}: {plan.schedule}, "
        f"{plan.notation}, {counted(len(plan.stages), 'stage')}, {counted(len(plan.microbatches), 'micro-batch')}"
    )


def _told(found: simulator.StageTimes) -> str:
    """Seconds as options of `pipeplan simulate`."""
    numbers = {name: value for name, value in found.numbers.items() if isinstance(value, tuple)}
    return " ".join(f"--{name} {','.join(f'{one:.4g}' for one in value)}" for name, value in numbers.items())


def _summary(path: str, profiled_minibatch: int | None) -> str:
    if path.endswith(".csv") or (path.endswith(".txt") and simulator.is_schedule_text(path)):
        with blamed_on(path):
            schedule = simulator.read_schedule(path)
        return (
            f"ok: schedule of {counted(schedule.stages, 'stage')} on {counted(schedule.ranks, 'device')}, "
            f"{counted(schedule.microbatches, 'micro-batch')}, {counted(len(schedule), 'op')}"
        )
    if simulator.is_stage_trace(path):
        traced = simulator.read_stage_times(path)
        return (
            f"ok: trace of {counted(len(traced.forward), 'stage')}, {counted(traced.microbatches, 'micro-batch')}, "
            f"{counted(traced.ops, 'op')}, spread {traced.spread:.2f}; seconds: {_told(traced)}"
        )
    if path.endswith(".txt"):
        profile = simulator.read_any_profile(path, profiled_minibatch)
        return (
            f"ok: PipeDream profile of {counted(len(profile), 'layer')}, {profile.parameters():,} parameters, "
            f"mini-batch {profile.minibatch}"
        )
    if path.endswith(".json"):
        if simulator.is_measured_profile(path):
            measured = simulator.load_measured_profile(path)
            workload = simulator.read_any_profile(path)
            return (
                f"ok: measured profile of {counted(len(workload), 'layer')}, {workload.parameters():,} parameters, "
                f"on {measured.measurement.device_name}, spread {measured.measurement.spread:.2f}"
                + ("" if measured.measurement.steady else " (too large)")
            )
        if simulator.is_plan_file(path):
            found = simulator.PlanFile.read(path)
            return _plan_summary(path, found.problem, found.plan)
        workload = simulator.read_config(path)
        return f"ok: {workload.name}, {counted(len(workload), 'layer')}, {workload.parameters():,} parameters"
    return hardware_profiles.check_file(path).removeprefix(f"{path}: ")
