"""`pipeplan whatif`: a plan under other values of its problem, machine or stack, replayed and planned anew."""

from __future__ import annotations

import argparse
from typing import Any

from experiments.compare.problem_options import PLAN, add_imported, read_plan
from experiments.report.report_questions import what_if
from experiments.terminal.argument_types import DeclaredText, add_options, check_choice, natural, refuse
from experiments.terminal.exits import INFEASIBLE, OK
from experiments.terminal.output import UsageError, print_json, progress, say, tell
from hardware_profiles import Setting, SettingError, blaming, read_setting, value_words
from planners import PLANNER_OPTIONS


def setting(text: str) -> Setting:
    """`PATH=VALUE`."""
    with blaming(argparse.ArgumentTypeError, of=SettingError):
        return read_setting(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan whatif`."""
    add_options(
        parser,
        {
            **PLAN,
            "--set PATH=VALUE": (
                "a value by its keys in the files, of which those in between may be left out; VALUE is a value, or a change of "
                "the one that is there: +10%%, -10%%, *2, /2, +8, -8; may be repeated",
                setting,
                [],
            ),
            "--paths": "print every path, with the value that is there, in place of an answer",
            "--planner NAME": "that plans anew (default: the plan's own, else joint)",
            "--keep": "replay the same plan alone, and plan nothing anew",
            "--seconds S": (
                "effort of planning anew, in nominal seconds (default: the planner's own)",
                DeclaredText(PLANNER_OPTIONS["seconds"]),
            ),
            "--seed SEED": ("seed of random searches (default 0)", natural, 0),
            "--json": "print one JSON document",
        },
    )
    add_imported(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask and print; exit code 3 where no plan with the changes fits."""
    import planners
    import simulator

    problem, plan = read_plan(arguments)
    if arguments.paths:
        refuse(arguments, ("planner", "keep", "seconds"), "is for an answer, not for --paths")
        found = simulator.change_settings(problem, arguments.set, plan)
        values = simulator.values_of(found.problem, found.plan)
        if arguments.json:
            print_json({"paths": values})
        else:
            for path, value in values.items():
                say(path if value is None else f"{path}={value_words(value)}")
        return OK
    if not arguments.set:
        raise UsageError("whatif needs --set PATH=VALUE, the value that changes; --paths lists them")
    if arguments.keep:
        refuse(arguments, ("planner", "seconds"), "plans anew, --keep does not")
    if arguments.planner is not None:
        check_choice("--planner", arguments.planner, planners.planner_entries())
    options: dict[str, Any] = {} if arguments.seconds is None else {"options": {"seconds": arguments.seconds}}
    with progress("replaying and planning"):
        answer = what_if(
            problem,
            plan,
            arguments.set,
            planner=arguments.planner,
            anew=not arguments.keep,
            seed=arguments.seed,
            **options,
        )
    tell(answer, as_json=arguments.json)
    return OK if answer.feasible else INFEASIBLE
