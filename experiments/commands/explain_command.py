"""`pipeplan explain`: why the devices of a plan are idle, its critical path, and what would make it faster."""

from __future__ import annotations

import argparse

from experiments.compare.problem_options import PLAN, add_imported, read_plan
from experiments.terminal.argument_types import add_options
from experiments.terminal.exits import OK
from experiments.terminal.output import progress, tell

OWN = ("cluster",)
"""Options of an imported plan that say something of a file, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan explain`."""
    add_options(
        parser,
        {
            **PLAN,
            "--cluster NAME": "replay the plan of a file on this cluster in place of its own: name, name:SERVERS, or TOML file",
            "--json": "print one JSON document, with every idle interval",
        },
    )
    add_imported(parser, OWN)


def run(arguments: argparse.Namespace) -> int:
    """Replay, explain and print."""
    import simulator

    problem, plan = read_plan(arguments, OWN)
    with progress("replaying what would be faster"):
        outcome = simulator.simulate(problem, plan, engine="compiled")
        found = simulator.explain(outcome)
    tell(found, *filter(None, [outcome.excess]), as_json=arguments.json)
    return OK
