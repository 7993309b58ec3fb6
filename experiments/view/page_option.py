"""Page option: what commands that write a page take, and how they write it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.terminal.argument_types import Option, numbers, written_file
from experiments.terminal.output import UsageError, progress
from hardware_profiles import blaming

if TYPE_CHECKING:
    from experiments.view.drawn_plan import DrawnPlan, Window
    from simulator import Outcome, ScheduleReplay


def written_page(text: str) -> Path:
    """A page that the command writes."""
    if not text.endswith(".html"):
        raise argparse.ArgumentTypeError(f"{text}: the name must end in .html")
    return written_file(text)


def check_bokeh(path: Path | None) -> None:
    """UsageError for a page where Bokeh, which draws it, is not installed."""
    if path is not None and find_spec("bokeh") is None:
        raise UsageError(f"{path}: a page needs Bokeh, which is not installed; install pipeplan[view]")


def window(text: str) -> Window:
    """`BEGIN:END` in seconds."""
    begin, _, end = text.partition(":")
    try:
        (first,), (last,) = numbers(begin), numbers(end)
    except (ValueError, argparse.ArgumentTypeError):
        first, last = 0.0, 0.0
    if not 0.0 <= first < last:
        raise argparse.ArgumentTypeError(f"{text} must be BEGIN:END, seconds that rise from at least 0")
    return first, last


def html_option(what: str) -> dict[str, Option]:
    """`--html FILE` of a command, whose page shows so and so."""
    shown = f"write FILE.html: a page with {what}, which a browser shows without a network (extra pipeplan[view])"
    return {"--html FILE": (shown, written_page)}


HTML = html_option("timelines, memory, waits and decisions")
"""Of commands whose page shows replays."""


def write_page(
    path: Path, replays: Mapping[str, Outcome | ScheduleReplay], *, title: str, window: Window | None = None
) -> tuple[DrawnPlan, ...]:
    """Write the page of replays, by name; returns what it shows. UsageError where that is too much, or nothing."""
    from experiments.view.drawn_plan import drawn_plans
    from experiments.view.page import html_page
    from simulator import write_atomically

    with drawing_page(path):
        drawn = drawn_plans(replays, window)
        write_atomically(path, html_page(drawn, replays, title=title))
    return drawn


@contextmanager
def drawing_page(path: Path) -> Iterator[None]:
    """Show that a page is drawn; a ValueError becomes a UsageError that names its file."""
    with progress("drawing the page"), blaming(UsageError, path):
        yield
