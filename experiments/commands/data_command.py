"""`pipeplan data`: the public inputs that studies read, and whether a folder has them."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.studies.catalogue import studies
from experiments.studies.input_sets import INPUT_SETS, FoundInputs, look_in
from experiments.terminal.argument_types import add_options, check_choice
from experiments.terminal.exits import BAD_FILE, OK, short
from experiments.terminal.output import InputError, UsageError, print_json, say
from experiments.terminal.report_tables import ReportTable, words

NOT_STATED = "not stated"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan data`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="inputs to tell of; without a name they are listed")
    add_options(
        parser,
        {
            "--from DIR": ("a checkout, or a folder of the files: what is there, and what is missing", Path),
            "--json": "print one JSON document",
        },
    )


TABLE = ReportTable(
    "Inputs of studies",
    "inputs",
    {
        "name": "{name}",
        "studies": words("studies", ", "),
        "published": lambda row: row["repository"] or NOT_STATED,
        "commit": lambda row: row["commit"] or NOT_STATED,
        "licence": lambda row: row["licence"] or NOT_STATED,
    },
)


def run(arguments: argparse.Namespace) -> int:
    """List the inputs, tell of one, or look for it in a folder; exit code 4 where the folder lacks a file."""
    folder: Path | None = getattr(arguments, "from")
    if arguments.name is None:
        if folder is not None:
            raise UsageError(f"--from: goes with the name of inputs; choices: {', '.join(INPUT_SETS)}")
        (print_json if arguments.json else TABLE.print)({"inputs": [_told(name) for name in INPUT_SETS]})
        return OK
    check_choice("NAME", arguments.name, INPUT_SETS)
    if folder is None:
        (print_json if arguments.json else _print_set)(_told(arguments.name))
        return OK
    if not folder.is_dir():
        raise InputError(f"{folder}: is not a folder")
    found = _looked(arguments.name, look_in(folder, arguments.name))
    (print_json if arguments.json else _print_found)(found)
    for file in found["missing"]:
        print(short(f"pipeplan data: {folder}: lacks {_places(found, file)}"), file=sys.stderr)
    return BAD_FILE if found["missing"] else OK


def _told(name: str) -> dict[str, Any]:
    """What is known of an input set; None is not stated."""
    wanted = INPUT_SETS[name]
    return {
        "name": name,
        "holds": wanted.holds,
        "studies": [study for study, _ in _readers(name)],
        "repository": wanted.repository or None,
        "commit": wanted.commit or None,
        "licence": wanted.licence or None,
        "files": list(wanted.files),
        "more_files": list(wanted.more),
        "places": list(wanted.forms),
    }


def _readers(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The studies that read an input set, and the input sets of each by option."""
    for study, entry in sorted(studies().items()):
        options = {**entry.inputs, **entry.optional_inputs}
        if name in options.values():
            yield study, options


def _looked(name: str, found: FoundInputs) -> dict[str, Any]:
    """What is known of an input set, and what of it a folder has."""
    return {
        **_told(name),
        "from": str(found.folder),
        "found": {one: None if path is None else str(path) for one, path in found.files.items()},
        "missing": list(found.missing),
        "commit_found": found.commit,
        "same_commit": found.same_commit,
        "licence_file": None if found.licence is None else str(found.licence),
        "commands": [] if found.missing else [_command(name, found, *reader) for reader in _readers(name)],
    }


def _command(name: str, found: FoundInputs, study: str, options: dict[str, str]) -> str:
    """The command that runs a study with what was found; other inputs by their names in capitals."""
    values = {
        option: shlex.quote(str(found.value)) if given == name else given.upper() for option, given in options.items()
    }
    variables = (shlex.quote(one) for one in found.environment())
    return " ".join([*variables, "pipeplan study", study, *(f"{option} {value}" for option, value in values.items())])


def _places(told: dict[str, Any], file: str) -> str:
    """Where a folder may have a file."""
    return " or ".join(place.format(name=file) for place in told["places"])


def _print_set(told: dict[str, Any]) -> None:
    say(f"{told['name']}: {told['holds']}")
    say(f"studies: {', '.join(told['studies'])}")
    for key, title in (("repository", "published"), ("commit", "commit of the figures"), ("licence", "licence")):
        say(f"{title}: {told[key] or NOT_STATED}")
    for title, key in (("needs", "files"), ("takes where it is there", "more_files")):
        for file in told[key]:
            say(f"{title}: {_places(told, file)}")
    say(f"check a folder: pipeplan data {told['name']} --from DIR")


def _print_found(told: dict[str, Any]) -> None:
    for name, path in told["found"].items():
        say(f"{name}: {'not there' if path is None else path}")
    known = {True: ", that of the figures", False: f", the figures are of {told['commit']}", None: ""}
    say(f"commit: {told['commit_found'] or 'no git checkout'}{known[told['same_commit']]}")
    say(f"licence: {told['licence'] or NOT_STATED}; file: {told['licence_file'] or 'not there'}")
    for command in told["commands"]:
        say(f"run: {command}")
