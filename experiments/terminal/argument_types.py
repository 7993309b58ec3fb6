"""Argument types: options as data, and what words of a command line must be."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from experiments.terminal.output import UsageError, output_file, output_folder
from hardware_profiles import (
    MOST_COUNT,
    MOST_SEED,
    DeclaredOption,
    blaming,
    nearest,
    printable,
    real_number,
    shown,
    unchosen,
    whole_number,
)
from simulator import FIGURE_ENDINGS, figure_files

Item = TypeVar("Item")

LONGEST = 1e9
"""Seconds that a search or a measurement is given at most: thirty years."""

MOST_JOBS = 1024
"""Processes at most."""

MOST_SEEDS = 10_000
"""Runs that are asked for at most."""

MOST_FLOAT = sys.float_info.max
"""Of a number at most, where what it is of has an end of its own."""

INCHES = 1.0, 100.0
"""Width and height of a figure at least and at most."""

Option = str | tuple[str, Callable[[str], object]] | tuple[str, Callable[[str], object], object]
"""Help of a text that may be left out; or help, type and default: None where none is given, `...` for an option that must be
given, an empty list for one that may be repeated. A metavar that ends with `,…` takes a comma list, and more of it from another
word: `--planner a,b` and `--planner a --planner b` are the same."""


def numbers(text: str) -> list[float]:
    """One number, or a comma list."""
    try:
        return [real_number(part, -MOST_FLOAT, MOST_FLOAT) for part in text.split(",")]
    except ValueError as error:
        several = "," in text or "finite" in str(error)
        rule = f"{error}" if several else f"{shown(text)} is not a number or a comma list of numbers"
        raise argparse.ArgumentTypeError(rule) from None


def number(text: str) -> float:
    """A finite number."""
    return _asked(lambda: real_number(text, -MOST_FLOAT, MOST_FLOAT))


@dataclass(frozen=True, slots=True)
class NumberUpTo:
    """The type of a finite number of at least `least` and at most `most`."""

    most: float
    least: float = 0.0

    def __call__(self, text: str) -> float:
        """The number that a word is."""
        return _asked(lambda: real_number(text, self.least, self.most))


def counts(text: str) -> list[int]:
    """A comma list of whole numbers of at least 1."""
    try:
        return [whole_number(part, 1, MOST_COUNT) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not a comma list of whole numbers: {error}" if "," in text else str(error)
        ) from None


def count(text: str) -> int:
    """A whole number of at least 1."""
    return _asked(lambda: whole_number(text, 1, MOST_COUNT))


def natural(text: str) -> int:
    """A whole number of at least 0, such as a seed."""
    return _asked(lambda: whole_number(text, 0, MOST_SEED))


@dataclass(frozen=True, slots=True)
class CountUpTo:
    """The type of a whole number of at least 1 and at most `most`."""

    most: int

    def __call__(self, text: str) -> int:
        """The number that a word is."""
        return _asked(lambda: whole_number(text, 1, self.most))


def _asked(read: Callable[[], Item]) -> Item:
    """What is read of a word; a ValueError becomes argparse's."""
    with blaming(argparse.ArgumentTypeError):
        return read()


def written_file(text: str) -> Path:
    """A file that the command writes when its work is done."""
    return _asked(lambda: output_file(text))


def written_toml(text: str) -> Path:
    """A TOML file that the command writes."""
    if not text.endswith(".toml"):
        raise argparse.ArgumentTypeError(f"{text}: the name must end in .toml")
    return written_file(text)


def written_folder(text: str) -> Path:
    """A folder that the command writes to when its work is done."""
    return _asked(lambda: output_folder(text))


def written_figure(text: str) -> Path:
    """FILE of a figure: FILE.png, FILE.svg or FILE.pdf is written as such, FILE without an ending as FILE.png and FILE.svg."""
    ending = Path(text).suffix
    if ending not in ("", *FIGURE_ENDINGS):
        raise argparse.ArgumentTypeError(
            f"{shown(text)} must end in {', '.join(FIGURE_ENDINGS)}, or have no ending: FILE.png and FILE.svg"
        )
    for file in figure_files(text):
        written_file(str(file))
    return Path(text)


def inches(text: str) -> tuple[float, float]:
    """`WIDTHxHEIGHT` of a figure."""
    width, _, height = text.partition("x")
    try:
        return real_number(width, *INCHES), real_number(height, *INCHES)
    except ValueError:
        least, most = INCHES
        raise argparse.ArgumentTypeError(
            f"{shown(text)} must be WIDTHxHEIGHT, each from {least:g} to {most:g} inches"
        ) from None


@dataclass(frozen=True, slots=True)
class Listed:
    """The type of a comma list, each part of which is of another type."""

    read: Callable[[str], object]

    def __call__(self, text: str) -> list[object]:
        """The parts that a word has, in their order."""
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise argparse.ArgumentTypeError(f"{shown(text)}: a part of the list is empty")
        return [self.read(part) for part in parts]


class _Joined(argparse.Action):
    """Adds a comma list to what the option said before."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        if before is not None:
            values = f"{before},{values}" if isinstance(values, str) else (*before, *values)
        setattr(namespace, self.dest, values)


def named_count(text: str) -> tuple[str, int]:
    """`NAME=N`: a name and a whole number of at least 1."""
    name, _, digits = text.partition("=")
    try:
        return name, whole_number(digits, 1, MOST_COUNT)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shown(text)} must be NAME=N, N a whole number of at least 1") from None


def named_text(text: str) -> tuple[str, str]:
    """`NAME=TEXT`."""
    name, _, said = text.partition("=")
    if not (name and said):
        raise argparse.ArgumentTypeError(f"{shown(text)} must be NAME=TEXT")
    return name, said


OWN_OPTION: dict[str, Option] = {
    "--option NAME=VALUE": (
        "an option that the planner or the schedule declares, such as one of another package (see pipeplan list planners, list "
        "schedules); may be repeated",
        named_text,
        [],
    ),
}
"""Options that have no words of their own on the command line."""


def own_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The values of --option by name; UsageError for a name that is given twice, or as an option of its own, too."""
    found: dict[str, str] = {}
    for name, value in arguments.option:
        if name in found or getattr(arguments, name, None) not in (None, False):
            raise UsageError(f"--option {name}={value}: {name} is given twice")
        found[name] = value
    return found


def price(text: str) -> float | dict[str, float]:
    """A number, or `NAME=NUMBER,…`, of which each name once."""
    try:
        if "=" not in text:
            return real_number(text, -MOST_FLOAT, MOST_FLOAT)
        pairs = [named_text(part) for part in text.split(",")]
        found = {name: real_number(price, -MOST_FLOAT, MOST_FLOAT) for name, price in pairs}
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{shown(text)} must be a number, or NAME=NUMBER,…") from None
    if len(found) < len(pairs):
        raise argparse.ArgumentTypeError(f"{shown(text)} names an accelerator twice")
    return found


def check_choice(option: str, value: object, known: Collection[str]) -> None:
    """UsageError for a value that is not known."""
    if value not in known:
        raise UsageError(unchosen(option, value, known))


def check_torch(what: str) -> None:
    """UsageError where PyTorch, which measuring something needs, is not installed."""
    if find_spec("torch") is None:
        raise UsageError(f"measuring {what} needs PyTorch, which is not installed; install pipeplan[torch]")


def declared(one: DeclaredOption) -> tuple[str, Option]:
    """A declared option as `add_options` takes it; a switch that is on by default is `--no-name`."""
    if one.kind is bool:
        return flag_of(one), one.help if one.default is not True else f"switch off: {one.help}"
    metavar = "NAME" if one.kind is str else "N" if one.kind is int else "X"
    choices = f" ({', '.join(map(str, one.choices))})" if one.choices else ""
    default = "" if one.default is None else f"; default {one.default}"
    return f"{flag_of(one)} {metavar}{',…' * one.several}", (f"{one.help}{choices}{default}", DeclaredText(one))


def destination(one: DeclaredOption) -> str:
    """The name that a declared option has once it is read."""
    return flag_of(one)[2:].replace("-", "_")


def flag_of(one: DeclaredOption) -> str:
    """The words of a declared option on the command line, without its value."""
    return f"--{'no-' * (one.kind is bool and one.default is True)}{one.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class DeclaredText:
    """The type of a declared option."""

    option: DeclaredOption

    def __call__(self, text: str) -> object:
        """The value that a word is."""
        try:
            return self.option.read(text)
        except ValueError:
            choices = tuple(map(str, self.option.choices))
            rule = f"{shown(text)} is unknown{nearest(text, choices)}; choices: {', '.join(choices)}"
            raise argparse.ArgumentTypeError(
                rule if choices else f"must be {self.option.rule}, got {shown(text)}"
            ) from None


def names_of(options: Iterable[str]) -> list[str]:
    """The names that options have once they are read: `seed` of `--seed SEED`."""
    return [words.split(" ")[0].removeprefix("--").replace("-", "_") for words in options]


def refuse(arguments: argparse.Namespace, names: Iterable[str], rule: str) -> None:
    """UsageError, `--option rule`, for the first of these options that was given; seed 0 is what is not given."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value is not False and value != [] and (name, value) != ("seed", 0):
            raise UsageError(f"{_flag(name)} {rule}")


WRITTEN = ("out", "html", "gantt", "figure", "draw", "stack_out", "cluster_out")
"""Options that name files, or a folder, which a command writes."""

READ = ("plan", "problem", "profile", "schedule_csv", "measured", "kernels")
"""Options that name files which a command reads."""

NAMED = ("cluster", "workload", "stack", "accelerator", "file")
"""Options and arguments that take a name, or a file of one of these endings."""

ENDINGS = (".toml", ".json", ".txt")


def check_written(arguments: argparse.Namespace) -> None:
    """UsageError for a file that a command would write, where another option writes it, too, or the command reads it."""
    written: dict[str, str] = {}
    for option in WRITTEN:
        for said in _words_of(getattr(arguments, option, None)):
            for file in _written_at(said):
                other = written.setdefault(os.path.realpath(file), option)
                if other != option:
                    raise UsageError(f"{_flag(other)} and {_flag(option)} write one file, {printable(file)}: name two")
    for name in (*READ, *NAMED) if written else ():
        words = list(_words_of(getattr(arguments, name, None)))
        in_forms = (one.partition(":")[2] for one in words)  # of a target, as in `megatron:FILE`
        for word in (*words, *in_forms):
            option = written.get(os.path.realpath(word), "")
            if option and os.path.isfile(word) and (name in READ or word.endswith(ENDINGS)):
                raise UsageError(
                    f"{_flag(option)} {printable(word)} is a file that the command reads: name another to write"
                )


def _written_at(said: str) -> tuple[str, ...]:
    """Files that an option may write which says so: of a figure without an ending those of both; none of a folder's."""
    if os.path.isdir(said):
        return ()
    return (said,) if Path(said).suffix else (said, *map(str, figure_files(said)))


def _words_of(said: object) -> Iterator[str]:
    """The words of an option that takes one, several, or a comma list of them."""
    for one in said if isinstance(said, (list, tuple)) else (said,):
        if isinstance(one, (str, Path)):
            yield from (str(one), *(str(one).split(",") if "," in str(one) else ()))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup, options: Mapping[str, Option]) -> None:
    """Options by `--name METAVAR`: one of several metavars takes as many values, `METAVAR …` any number, none is a flag; one of
    `[METAVAR=VALUE]` has VALUE where it stands alone; one of `METAVAR,…` joins the lists of all its words."""
    for words, option in options.items():
        name, *metavars = words.split(" ")
        given: dict[str, Any] = dict(
            zip(("help", "type", "default"), (option,) if isinstance(option, str) else option, strict=False)
        )
        if not metavars:
            given["action"] = "store_true"
        elif metavars[0].startswith("["):
            given |= {"nargs": "?", **dict(zip(("metavar", "const"), metavars[0][1:-1].split("="), strict=True))}
        elif metavars[1:] == ["…"]:
            given |= {"metavar": metavars[0], "nargs": "+"}
        elif metavars[1:]:
            given |= {"metavar": tuple(metavars), "nargs": len(metavars)}
        else:
            given["metavar"] = metavars[0]
        if given.get("default") is ...:
            given |= {"required": True, "default": None}
        elif given.get("default") == []:
            given["action"] = "extend" if words.endswith(",…") else "append"
        elif words.endswith(",…") and given.get("default") is None:
            given["action"] = _Joined
        parser.add_argument(name, **given)
