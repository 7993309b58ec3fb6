"""`pipeplan show`: the file of an accelerator, a cluster or a stack by name, to be copied and changed."""

from __future__ import annotations

import argparse
import sys

import hardware_profiles
from experiments.terminal.argument_types import add_options, check_choice
from experiments.terminal.output import UsageError, print_json

KINDS: tuple[hardware_profiles.FileKind, ...] = ("accelerator", "cluster", "stack")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan show`."""
    parser.add_argument(
        "name", metavar="NAME", help="as pipeplan list accelerators, list clusters or list stacks has it"
    )
    add_options(
        parser,
        {
            "--kind KIND": f"{', '.join(KINDS)}: where several have the name",
            "--json": "print one JSON document: kind, name, and the text of the file",
        },
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the file as it is."""
    if arguments.kind is not None:
        check_choice("--kind", arguments.kind, KINDS)
    name, colon, _ = arguments.name.partition(":")
    if colon and hardware_profiles.profile_kinds(name):
        raise UsageError(f"{arguments.name}: files are named without a number of servers: pipeplan show {name}")
    text = hardware_profiles.profile_text(arguments.name, arguments.kind)
    if arguments.json:
        kind = arguments.kind or hardware_profiles.profile_kinds(name)[0]
        print_json({"kind": kind, "name": name, "text": text})
    else:
        sys.stdout.write(text)
    return 0
