"""`pipeplan sensitivity`: seconds of a plan against each of its machine's numbers, and a roofline of its layers."""

from __future__ import annotations

import argparse

from experiments.terminal.argument_types import add_options, written_figure
from experiments.terminal.exits import OK
from experiments.terminal.output import print_explained, print_json, progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan sensitivity`."""
    add_options(
        parser,
        {
            "--plan FILE": ("plan file of pipeplan plan --out, with its problem", str, ...),
            "--over PATH": (
                "a number, as whatif --paths has it (default: all of the cluster's file and its accelerators'); may be repeated",
                str,
                [],
            ),
            "--out FILE": (
                "draw a tornado chart to FILE.pdf, .svg or .png (without an ending: png and svg)",
                written_figure,
            ),
            "--json": "print one JSON document",
        },
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay, print and draw."""
    import simulator

    problem, plan = simulator.PlanFile.read_plan(arguments.plan)
    with progress("replaying") as report:
        found = simulator.sensitivity(
            problem, plan, arguments.over or None, lambda done, of, path: report(done, f"{done} of {of}: {path}")
        )
    if arguments.out is not None:
        simulator.save(found.plot(), arguments.out)
    if arguments.json:
        print_json(found.record())
    else:
        print_explained(found)
    return OK
