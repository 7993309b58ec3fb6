"""`pipeplan explain`: why the devices of a plan are idle, its critical path, and what would make it faster."""

from __future__ import annotations

import argparse

from experiments.terminal.argument_types import add_options
from experiments.terminal.exits import OK
from experiments.terminal.output import print_explained, print_json, progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan explain`."""
    add_options(
        parser,
        {
            "--plan FILE": ("plan file of pipeplan plan --out, with its problem", str, ...),
            "--cluster NAME": "replay it on this cluster in place of its own: name, name:SERVERS, or TOML file",
            "--json": "print one JSON document, with every idle interval",
        },
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay, explain and print."""
    import simulator
    from experiments.commands.simulate_command import on_another

    problem, plan = simulator.PlanFile.read_plan(arguments.plan)
    if arguments.cluster is not None:
        problem = on_another(problem, plan, arguments.cluster, f"--plan {arguments.plan}")
    with progress("replaying what would be faster"):
        found = simulator.explain(simulator.simulate(problem, plan, engine="compiled"))
    if arguments.json:
        print_json(found.record())
    else:
        print_explained(found)
    return OK
