"""`pipeplan goodput`: what days of training on servers that fail are spent on, and how often it had best save."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import simulator
from experiments.terminal.argument_types import (
    CountUpTo,
    NumberUpTo,
    Option,
    add_options,
    check_choice,
    count,
    natural,
    refuse,
)
from experiments.terminal.exits import OK
from experiments.terminal.output import UsageError, print_explained, print_json, progress, say

if TYPE_CHECKING:
    from planners import Result

SECONDS = NumberUpTo(simulator.MOST_SECONDS)

HOUR = 3600.0

PER = ("server", "device", "job")
"""What a mean time between failures may be of."""

OPTIONS: dict[str, Option] = {
    "--plan FILE": "plan file of pipeplan plan --out: its servers, its iteration, and bytes of its states",
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
    "--repair-hours H": ("hours until a server that failed is there again (default 24)", NumberUpTo(1e6)),
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan goodput`."""
    add_options(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Run the job, print what its time is spent on."""
    check_choice("--per", arguments.per, PER)
    _check_pairs(arguments)
    outcome = None if arguments.plan is None else _outcome(arguments.plan)
    servers, devices = (arguments.servers, arguments.devices) if outcome is None else _sizes(outcome)
    mean = arguments.mtbf * HOUR * {"server": 1.0, "job": servers, "device": servers / (devices or 1)}[arguments.per]
    fewer = None if arguments.replan is None or outcome is None else _fewer(arguments, outcome)
    slower = arguments.slower
    if fewer is not None and outcome is not None:
        slower = max(1.0, fewer.iteration_seconds / outcome.iteration_seconds)
    failing = simulator.Failing(
        servers,
        mean,
        arguments.checkpoint_seconds or _state_bytes(outcome) / (1e9 * arguments.checkpoint_gb_per_s),
        arguments.restart_seconds,
        arguments.spares,
        (24.0 if arguments.repair_hours is None else arguments.repair_hours) * HOUR,
        slower,
    )
    with progress("running") as report:
        found = simulator.goodput(
            failing,
            arguments.days,
            runs=arguments.runs,
            every=arguments.checkpoint_every,
            seed=arguments.seed,
            iteration_seconds=0.0 if outcome is None else outcome.iteration_seconds,
            progress=report,
        )
    told = (
        {}
        if fewer is None
        else {"fewer": {"layout": fewer.outcome.words, "iteration_seconds": fewer.iteration_seconds}}
    )
    if arguments.json:
        print_json(found.record() | told)
    else:
        print_explained(found)
        if fewer is not None:
            say(f"with a server fewer: {fewer.outcome.words}; {fewer.iteration_seconds:.4g} s per iteration")
    return OK


def _check_pairs(arguments: argparse.Namespace) -> None:
    """UsageError for options that do not go together, or lack each other."""
    if (arguments.plan is None) == (arguments.servers is None):
        raise UsageError("goodput needs --plan FILE, or --servers N in its place")
    if (arguments.checkpoint_seconds is None) == (arguments.checkpoint_gb_per_s is None):
        raise UsageError("goodput needs --checkpoint-seconds C, or --checkpoint-gb-per-s B in its place")
    if arguments.plan is None:
        refuse(arguments, ("replan", "checkpoint_gb_per_s"), "goes with --plan")
        if (arguments.per == "device") != (arguments.devices is not None):
            raise UsageError("--devices N goes with --per device, and with --servers")
    else:
        refuse(arguments, ("devices",), "goes with --servers; a plan says its own")
    if arguments.replan is not None:
        refuse(arguments, ("slower",), "stands in place of --replan")
    if arguments.spares is None:
        refuse(arguments, ("replan", "slower", "repair_hours"), "goes with --spares: else there is always one")


def _outcome(file: str) -> simulator.Outcome:
    problem, plan = simulator.PlanFile.read_plan(file)
    return simulator.simulate(problem, plan, engine="compiled", bounded=False)


def _sizes(outcome: simulator.Outcome) -> tuple[int, int]:
    """Servers that the plan is on, and devices of it."""
    cluster, devices = outcome.problem.cluster, outcome.plan.devices
    return len({cluster.server_of(one) for one in devices}), len(devices)


def _state_bytes(outcome: simulator.Outcome | None) -> float:
    """Bytes of the weights and the states of the optimizer, each once."""
    assert outcome is not None
    problem = outcome.problem
    elements = simulator.LayerCosts(problem).weight_elements(range(len(problem.workload)))
    return float(elements * (problem.element_bytes + problem.optimizer_bytes))


def _fewer(arguments: argparse.Namespace, outcome: simulator.Outcome) -> Result:
    """The plan on the first servers of the cluster, one fewer than the plan uses, with the same batch."""
    from dataclasses import replace

    import planners

    check_choice("--replan", arguments.replan, planners.planner_entries())
    problem, left = outcome.problem, _sizes(outcome)[0] - 1
    if not left:
        raise UsageError("--replan: the plan is on one server, and on none fewer is one")
    smaller = replace(problem, cluster=problem.cluster.take(sum(map(len, problem.cluster.servers[:left]))))
    with progress("planning for a server fewer"):
        return planners.plan_over_stacks(arguments.replan, smaller, (), planners.Request(), seed=arguments.seed)
