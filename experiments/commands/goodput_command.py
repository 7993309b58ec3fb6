"""`pipeplan goodput`: what days of training on servers that fail are spent on, and how often it had best save."""

from __future__ import annotations

import argparse

import simulator
from experiments.compare.problem_options import FORMS, add_imported, read_own_plans
from experiments.report.goodputs import PER, REPAIR_HOURS, FailingJob, goodput_of, refusal
from experiments.terminal.argument_types import (
    CountUpTo,
    NumberUpTo,
    Option,
    add_options,
    check_choice,
    count,
    natural,
)
from experiments.terminal.exits import OK
from experiments.terminal.output import UsageError, print_explained, print_json, progress, say

SECONDS = NumberUpTo(simulator.MOST_SECONDS)

OPTIONS: dict[str, Option] = {
    "--plan FILE": f"servers, iteration and bytes of states of a {FORMS}",
    "--servers N": ("servers of the job, in place of --plan", count),
    "--devices N": ("devices of these servers together, with --per device", count),
    "--mtbf HOURS": ("mean hours between failures of one server, or of what --per says", NumberUpTo(1e9, 1e-3), ...),
    "--per WHAT": (f"what --mtbf is of: {', '.join(PER)} (default server)", str, "server"),
    "--checkpoint-seconds C": (
        "seconds for which a checkpoint stops training",
        NumberUpTo(simulator.MOST_SECONDS, simulator.LEAST_SECONDS),
    ),
    "--checkpoint-gb-per-s B": (
        "in its place, 10^9 bytes per second at which weights and states of the optimizer are written, all together",
        NumberUpTo(1e9, 1e-6),
    ),
    "--checkpoint-every S": (
        "seconds of training between checkpoints (default: the best of some around Young's)",
        NumberUpTo(simulator.MOST_SECONDS, simulator.LEAST_SECONDS),
    ),
    "--restart-seconds R": ("seconds from a failure until training goes on", SECONDS, ...),
    "--spares K": ("servers that stand by (default: there is always one)", natural),
    "--repair-hours H": (
        f"hours until a server that failed is there again (default {REPAIR_HOURS:g})",
        NumberUpTo(1e6),
    ),
    "--replan NAME": "while no spare is there, go on with a server fewer, as this planner plans; else the job waits",
    "--slower X": (
        "in its place, seconds of an iteration with a server fewer over those with all",
        NumberUpTo(1e6, 1.0),
    ),
    "--days D": ("days of each run (default 30)", NumberUpTo(simulator.MOST_DAYS, 1e-3), 30.0),
    "--runs N": ("runs (default 100)", CountUpTo(simulator.MOST_RUNS), 100),
    "--seed SEED": ("seed of the failures, and of a search (default 0)", natural, 0),
    "--json": "print one JSON document",
}


ASKED = (
    *(
        "servers",
        "devices",
        "per",
        "checkpoint_seconds",
        "checkpoint_gb_per_s",
        "spares",
        "repair_hours",
        "replan",
        "slower",
    ),
)
"""Options that are fields of a job under the same name."""

OWN = ("devices",)
"""Options of an imported plan that say something of a job without one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan goodput`."""
    add_options(parser, OPTIONS)
    add_imported(parser, OWN)


def run(arguments: argparse.Namespace) -> int:
    """Run the job, print what its time is spent on."""
    asked = {name: getattr(arguments, name) for name in ASKED}
    if said := refusal({**asked, "plan": arguments.plan}, lambda name: f"--{name.replace('_', '-')}"):
        raise UsageError(said)
    if arguments.replan is not None:
        import planners

        check_choice("--replan", arguments.replan, planners.planner_entries())
    plans = read_own_plans(arguments, [] if arguments.plan is None else [arguments.plan], OWN)
    outcome = simulator.simulate(*plans[0], engine="compiled", bounded=False) if plans else None
    job = FailingJob(mtbf_hours=arguments.mtbf, restart_seconds=arguments.restart_seconds, outcome=outcome, **asked)
    with progress("running") as report:
        found, fewer = goodput_of(
            job,
            arguments.days,
            runs=arguments.runs,
            every=arguments.checkpoint_every,
            seed=arguments.seed,
            progress=report,
        )
    if arguments.json:
        told = fewer and {"layout": fewer.outcome.words, "iteration_seconds": fewer.iteration_seconds}
        print_json(found.record() | ({} if told is None else {"fewer": told}))
        return OK
    print_explained(found)
    if outcome is not None and not outcome.fits:
        say(outcome.excess)
    if fewer is not None:
        say(f"with a server fewer: {fewer.outcome.words}; {fewer.iteration_seconds:.4g} s per iteration")
    return OK
