"""Argument types: options as data, and what words of a command line must be."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from experiments.terminal.output import UsageError

Option = str | tuple[str, Callable[[str], object]] | tuple[str, Callable[[str], object], object]
"""Help of a text that may be left out; or help, type and default: None where none is given, `...` for an option that must be
given, an empty list for one that may be repeated."""


def numbers(text: str) -> list[float]:
    """One number, or a comma list."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or a comma list of numbers") from None


def counts(text: str) -> list[int]:
    """A comma list of whole numbers of at least 1."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a comma list of whole numbers") from None
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must hold numbers of at least 1")
    return values


def count(text: str, least: int = 1) -> int:
    """A whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
    return int(text)


def natural(text: str) -> int:
    """A whole number of at least 0, such as a seed."""
    return count(text, 0)


def named_count(text: str) -> tuple[str, int]:
    """`NAME=N`: a name and a whole number of at least 1."""
    name, _, number = text.partition("=")
    try:
        return name, count(number)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=N, N a whole number of at least 1") from None


def named_text(text: str) -> tuple[str, str]:
    """`NAME=TEXT`."""
    name, equals, said = text.partition("=")
    if not (name and equals and said):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=TEXT")
    return name, said


def price(text: str) -> float | dict[str, float]:
    """A number, or `NAME=NUMBER,…`, of which each name once."""
    try:
        if "=" not in text:
            return float(text)
        pairs = [named_text(part) for part in text.split(",")]
        found = {name: float(number) for name, number in pairs}
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number, or NAME=NUMBER,…") from None
    if len(found) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} names an accelerator twice")
    return found


def check_choice(option: str, value: object, known: Collection[str]) -> None:
    """UsageError for a value that is not known."""
    if value not in known:
        raise UsageError(f"{option} {value!r} is unknown; choices: {', '.join(known)}")


def names_of(options: Iterable[str]) -> list[str]:
    """The names that options have once they are read: `seed` of `--seed SEED`."""
    return [words.split(" ")[0].removeprefix("--").replace("-", "_") for words in options]


def refuse(arguments: argparse.Namespace, names: Iterable[str], rule: str) -> None:
    """UsageError, `--option rule`, for the first of these options that was given; seed 0 is what is not given."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value is not False and (name, value) != ("seed", 0):
            raise UsageError(f"--{name.replace('_', '-')} {rule}")


def add_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup, options: Mapping[str, Option]) -> None:
    """Options by `--name METAVAR`: one of several metavars takes as many values, `METAVAR …` any number, none is a flag; one of
    `[METAVAR=VALUE]` has VALUE where it stands alone."""
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
            given["action"] = "append"
        parser.add_argument(name, **given)
