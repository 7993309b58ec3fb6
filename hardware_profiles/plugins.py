"""Plug-ins: what installed packages offer in the entry-point groups `pipeplan.*`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from hardware_profiles.words import one_line, printable

Offered = TypeVar("Offered")

GROUPS = "pipeplan"
"""Before the dot of every group."""


ENDED = (KeyboardInterrupt, GeneratorExit)
"""What nobody answers for: the user's interrupt, and the end of a generator. All else that a plug-in raises is its failure, also
what is no Exception: a SystemExit, a class of its own."""


class PluginError(ValueError):
    """A plug-in that does not do what its group asks for; the message names it and what it does, in one line."""


@contextmanager
def aside() -> Iterator[None]:
    """Redirect what a plug-in prints to stderr: stdout is for the command's answer alone."""
    with redirect_stdout(sys.stderr):
        yield


@contextmanager
def answering_for(plugin: str) -> Iterator[None]:
    """Turn any error inside into a PluginError that names the plug-in, but for a ValueError, which may be a refusal.

    plugin: as in "schedule 'mine'"
    """
    try:
        yield
    except (PluginError, *ENDED):
        raise
    except ValueError as error:
        text = one_line(str(error))
        if plugin in text:
            raise
        raise ValueError(f"{plugin}: {text}") from error
    except BaseException as error:
        raise PluginError(f"{plugin}, a plug-in, failed: {complaint_of(error)}") from error


@contextmanager
def about(what: str) -> Iterator[None]:
    """Add a note of what it is about to any error inside, for contract tests."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


def complaint_of(error: BaseException) -> str:
    """Type and text of an error on one line."""
    return f"{type(error).__name__}: {one_line(str(error))[:150]}"


@cache
def plugged_in(group: str, read: Callable[[object], Offered], own: frozenset[str] = frozenset()) -> dict[str, Offered]:
    """Objects that installed packages offer in an entry-point group, by name; loaded once.

    read: the object of an entry point as the group's kind; an exception says that it is none
    own: names that are this package's
    An entry that cannot be loaded or read, or whose name is taken, is named on stderr and passed over.
    """
    import importlib.metadata  # a seventh of what the face takes to load

    found: dict[str, Offered] = {}
    for point in importlib.metadata.entry_points(group=group):
        what = f"plug-in {point.name} = {point.value} of {group}"
        if point.name in own or point.name in found:
            whose = "pipeplan's own" if point.name in own else "another plug-in's"
            passed_over(what, f"the name {point.name!r} is {whose}")
            continue
        try:
            with aside():
                found[point.name] = read(point.load())
        except ENDED:
            raise
        except BaseException as error:
            passed_over(what, complaint_of(error))
    return found


class Installed(NamedTuple):
    """An entry point of a group `pipeplan.*`, and what it is of.

    distribution, version: of the package that offers it; contents: digest of the module that it names
    """

    group: str
    name: str
    value: str
    distribution: str
    version: str
    contents: str


def installed() -> tuple[Installed, ...]:
    """Every entry point of this package's groups, in the order of their names; none of them is loaded."""
    from importlib.metadata import entry_points

    found = []
    for group in entry_points().groups:
        for point in entry_points(group=group) if group.startswith(f"{GROUPS}.") else ():
            whose = point.dist
            named = ("", "") if whose is None else (whose.name, whose.version)
            found.append(Installed(group, point.name, point.value, *named, _contents(point.value)))
    return tuple(sorted(found))


def _contents(value: str) -> str:
    """The digest of the file of `MODULE:NAME`; "" where there is none to be read, as for a module that is not installed."""
    from importlib.util import find_spec

    try:
        with aside():
            place = find_spec(value.partition(":")[0].strip())
        if place is None or place.origin is None:
            return ""
        return hashlib.sha256(Path(place.origin).read_bytes()).hexdigest()
    except ENDED:
        raise
    except BaseException:  # of the package above it, which is imported
        return ""


def passed_over(what: str, complaint: str) -> None:
    """Say on stderr, in one line, what is left out and why."""
    print(f"pipeplan: passing over {printable(what)}: {printable(one_line(complaint))}", file=sys.stderr)


def summary_of(made: object) -> str:
    """The first line of an object's docstring, or that it is from another package."""
    text = (getattr(made, "__doc__", None) or "").strip()
    return text.splitlines()[0] if text else "from another package"
