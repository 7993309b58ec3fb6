"""`pipeplan sensitivity`: seconds of a plan against each of its machine's numbers, and a roofline of its layers."""

from __future__ import annotations

import argparse

from experiments.compare.problem_options import PLAN, add_imported, read_plan
from experiments.terminal.argument_types import Listed, add_options, written_figure
from experiments.terminal.exits import OK
from experiments.terminal.output import progress, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan sensitivity`."""
    add_options(
        parser,
        {
            **PLAN,
            "--over PATH,…": (
                "numbers, as whatif --paths has them (default: all of the cluster's file and its accelerators'); may be repeated",
                Listed(str),
                [],
            ),
            "--out FILE": (
                "draw a tornado chart to FILE.pdf, .svg or .png (without an ending: png and svg)",
                written_figure,
            ),
            "--json": "print one JSON document",
        },
    )
    add_imported(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay, print and draw."""
    import simulator

    problem, plan = read_plan(arguments)
    with progress("replaying") as report:
        found = simulator.sensitivity(
            problem, plan, arguments.over or None, lambda done, of, path: report(done, f"{done} of {of}: {path}")
        )
    if arguments.out is not None:
        simulator.save(found.plot(), arguments.out)
    tell(found, as_json=arguments.json)
    return OK
