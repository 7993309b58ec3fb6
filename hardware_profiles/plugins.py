"""Plug-ins: what installed packages offer in the entry-point groups `pipeplan.*`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import TypeVar

from hardware_profiles.words import one_line, printable

Offered = TypeVar("Offered")


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
    except PluginError:
        raise
    except ValueError as error:
        text = one_line(str(error))
        if plugin in text:
            raise
        raise ValueError(f"{plugin}: {text}") from error
    except (Exception, SystemExit) as error:
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
        except (Exception, SystemExit) as error:
            passed_over(what, complaint_of(error))
    return found


def passed_over(what: str, complaint: str) -> None:
    """Say on stderr, in one line, what is left out and why."""
    print(f"pipeplan: passing over {printable(what)}: {printable(one_line(complaint))}", file=sys.stderr)


def summary_of(made: object) -> str:
    """The first line of an object's docstring, or that it is from another package."""
    text = (getattr(made, "__doc__", None) or "").strip()
    return text.splitlines()[0] if text else "from another package"
