"""Options of the command line: as many values as their words say."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import COMMANDS
from experiments.studies.catalogue import STUDIES
from experiments.terminal.argument_types import Listed, Option, add_options, inches, written_figure
from tests.records import Recorded, plain

OPTIONS: dict[str, Option] = {
    "--flag": "a flag",
    "--text T": "a text",
    "--count N": ("a number", int, 3),
    "--pair A B": ("two numbers", int),
    "--several N …": ("any number of numbers", int),
    "--maybe [WORD=so]": "a word or not",
    "--again N": ("repeated", int, []),
    "--listed N,…": ("a list, repeated", Listed(int), []),
    "--joined NAME,…": "a list as it is written",
    "--tuple N,…": ("a list that is read", lambda text: tuple(map(int, text.split(",")))),
}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("", "flag", False),
        ("--flag", "flag", True),
        ("--text x", "text", "x"),
        ("", "count", 3),
        ("--count 4", "count", 4),
        ("--pair 1 2", "pair", [1, 2]),
        ("--several 1 2 3", "several", [1, 2, 3]),
        ("", "maybe", None),
        ("--maybe", "maybe", "so"),
        ("--maybe no", "maybe", "no"),
        ("", "again", []),
        ("--again 1 --again 2", "again", [1, 2]),
        ("", "listed", []),
        ("--listed 1,2 --listed 3", "listed", [1, 2, 3]),
        ("--joined a,b", "joined", "a,b"),
        ("--joined a --joined b,c", "joined", "a,b,c"),
        ("--tuple 1,2 --tuple 3", "tuple", (1, 2, 3)),
    ],
)
def test_options_take_as_many_values_as_they_name(words: str, name: str, value: object) -> None:
    """A flag none, one of several names as many, one that may stand alone one or none."""
    parser = argparse.ArgumentParser()
    add_options(parser, OPTIONS)
    assert getattr(parser.parse_args(words.split()), name) == value


@pytest.mark.parametrize(
    "words",
    [
        "--flag 1",
        "--count",
        "--pair 1",
        "--pair 1 2 3",
        "--several",
        "--count x",
        "--again",
        "--listed 1,,2",
        "--listed 1,x",
    ],
)
def test_other_numbers_of_values_are_refused(words: str) -> None:
    """And what is needed must be there."""
    parser = argparse.ArgumentParser()
    add_options(parser, OPTIONS)
    with pytest.raises(SystemExit):
        parser.parse_args(words.split())
    add_options(parser, {"--needed N": ("a number", int, ...)})
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert parser.parse_args(["--needed", "1"]).needed == 1


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_files_of_a_figure_must_be_writable(kind: str, tmp_path: Path) -> None:
    """A folder of the name of one that is written is in the way, of another one not; endings are those of figures."""
    (tmp_path / f"chart.{kind}").mkdir()
    for name in ("chart", f"chart.{kind}"):
        with pytest.raises(argparse.ArgumentTypeError, match=rf"chart\.{kind}"):
            written_figure(str(tmp_path / name))
    assert written_figure(str(tmp_path / "chart.pdf")) == tmp_path / "chart.pdf"
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"'chart.jpg' must end in .png, .svg, .pdf, or have no ending"
    ):
        written_figure("chart.jpg")


def test_sizes_of_figures_have_both_ends() -> None:
    """Width and height, each within what is drawn."""
    assert inches("3.5x2") == (3.5, 2.0)
    for word in ("3", "3x", "0.5x2", "3x101", "3xnan", "2x2x2"):
        with pytest.raises(
            argparse.ArgumentTypeError, match=f"^'{word}' must be WIDTHxHEIGHT, each from 1 to 100 inches$"
        ):
            inches(word)


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Of every command and study."""
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        import_module(f"experiments.commands.{name}_command").add_arguments(parser)
        yield name, parser
    for name, study in STUDIES.items():
        parser = argparse.ArgumentParser()
        add_options(parser, study.options)
        yield f"study {name}", parser


def test_the_default_that_help_names_is_the_one_that_is_taken() -> None:
    """Numbers behind `default`, of every option that has one."""
    checked = 0
    for command, parser in parsers():
        for action in parser._actions:
            told = re.search(r"\(default ([0-9.,]+)[); ]", str(action.help))
            if told and action.default is not None:
                numbers = action.default if isinstance(action.default, list | tuple) else [action.default]
                assert [float(one) for one in told[1].split(",")] == numbers, (command, action.dest)
                checked += 1
    assert checked >= 20


def test_options_of_commands_and_studies(recorded: Recorded) -> None:
    """How many values each takes, their names, what may be given, what holds without it, and whether it is needed; then the
    commands that take it so."""
    found: dict[str, dict[str, list[Any]]] = {}
    for command, parser in parsers():
        for one in parser._actions:
            if one.dest != "help":
                default = str(one.default) if isinstance(one.default, Path) else one.default
                choices = one.choices and sorted(map(str, one.choices))
                said = [one.nargs, one.metavar, choices, default, one.required]
                alike = found.setdefault(" ".join(one.option_strings) or one.dest, {})
                alike.setdefault(str(plain(said)), [said]).append(command)
    recorded(
        **{name: [[*said, " ".join(commands)] for said, *commands in alike.values()] for name, alike in found.items()}
    )
