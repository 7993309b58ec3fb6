"""Output: results to stdout, progress to stderr, files written whole or not at all."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

from hardware_profiles import FileError, printable, referring
from simulator import Explained, in_a_line, is_numeric

if TYPE_CHECKING:
    from rich.table import Table


Item = TypeVar("Item")


class UsageError(ValueError):
    """A request that makes no sense; ends the command with exit code 2."""


class InputError(FileError):
    """A file that cannot be used; ends the command with exit code 4."""


@contextmanager
def blamed_on(source: str) -> Iterator[None]:
    """What a file's content leads to is the file's fault: a ValueError inside becomes an InputError that names the source."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        raise InputError(text if text.startswith(source) else f"{source}: {text}") from None


@contextmanager
def named_by(source: str | None) -> Iterator[None]:
    """Of files that a source names, messages tell the place and the rule, never the content; without a source they tell both."""
    if source is None:
        yield
        return
    try:
        with referring():
            yield
    except FileError as error:
        raise InputError(f"{source}: {error.untold}") from None


def plain(value: Any) -> Any:
    """The value as JSON knows it: numpy scalars and arrays become numbers and lists, what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value
    if isinstance(value, Iterable):
        return [plain(one) for one in value]
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def to_json(document: Mapping[str, Any]) -> str:
    """One JSON document, floats with all their digits."""
    return json.dumps(plain(document), indent=2, allow_nan=False)


FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a cell of a spreadsheet begins a formula with, in either width; white space before it is passed over."""


def to_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as CSV under a line of columns; numbers as they are, nothing for None and what is no number.

    A text that a spreadsheet would take for a formula has an apostrophe before it, as these programs mark a text; controls are
    written as escapes.
    """
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return target.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.lstrip().startswith(FORMULA) else text
    return "" if value is None or value != value else value


def print_json(document: Mapping[str, Any]) -> None:
    """Print exactly one JSON document to stdout."""
    sys.stdout.write(to_json(document) + "\n")


def say(line: str) -> None:
    """Print a line to stdout; what would move the cursor is written as an escape. A terminal's lines end between words."""
    text = printable(line)
    if sys.stdout.isatty():
        width = get_terminal_size().columns
        text = "\n".join(wrap(text, width, break_long_words=False, break_on_hyphens=False)) or text
    print(text)


SECONDS = ("iteration, seconds", "seconds per iteration")
DECIDING = (*SECONDS, "peak memory, GiB", "gap", "together", "free", "allocated", "room")
"""Headings of the columns by which plans are told apart, and whether they fit."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to stdout, as wide as the terminal, or as its content where stdout is no terminal.

    columns: the most important first. Words are never broken: where they do not fit, columns are left out from the right, those
    that decide last, and named below the table; where not even two fit, every row is a list of lines. Cells are shown as they
    are, controls as escapes.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.text import Text

    cells = [[printable(cell) for cell in row] for row in rows]
    width = Console().width if sys.stdout.isatty() else 400

    class Leaving(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to the command, which rich would end by itself."""
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    console = Leaving(width=width, highlight=False, markup=False, emoji=False)
    kept = set(range(len(columns)))
    waiting = sorted(range(1, len(columns)), key=lambda number: (in_a_line(columns[number]) not in DECIDING, number))
    table = _table(columns, cells)
    while waiting and Measurement.get(console, console.options.update(max_width=10_000), table).minimum > width:
        kept.remove(waiting.pop())
        shown = sorted(kept)
        table = _table([columns[number] for number in shown], [[row[number] for number in shown] for row in cells])
    if not waiting and len(columns) > 1:
        _print_rows(title, columns, cells)
        return
    console.print(Text(printable(title), style="bold"))
    console.print(table)
    if len(kept) < len(columns):
        lost = "; ".join(in_a_line(one) for number, one in enumerate(columns) if number not in kept)
        console.print(f"not shown in {width} columns, which a wider terminal has room for: {lost}")


def print_explained(value: Explained) -> None:
    """Print what explains itself: its tables, as wide as the terminal, and its remarks."""
    for table in value.tables():
        print_table(table.title, table.columns, table.rows)
    for line in value.remarks():
        say(line)


def tell(value: Explained, *lines: str, as_json: bool) -> None:
    """Print what explains itself: its figures as one JSON document; or its tables and remarks, and further lines."""
    if as_json:
        print_json(value.record())
        return
    print_explained(value)
    for line in lines:
        say(line)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for number, column in enumerate(columns):
        cells = [row[number] for row in rows]
        numeric = is_numeric(number, cells)
        whole = numeric or number == 0
        parts = [part for cell in cells for part in ([cell] if whole else cell.split())] + column.split("\n")
        table.add_column(
            Text(column),
            justify="right" if numeric else "left",
            min_width=max(map(cell_len, parts), default=1),
            no_wrap=whole,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _print_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print every row as lines of column and cell, for a terminal that is narrower than two columns."""
    print(printable(title))
    for row in rows:
        print()
        for column, cell in zip(columns, row, strict=True):
            print(f"{in_a_line(column)}: {cell}")


def output_folder(path: str | Path) -> Path:
    """The folder to write to later; UsageError at once, before the work, if that cannot be."""
    _check_folder(path, path)
    return Path(path)


def output_file(path: str) -> Path:
    """The file to write to later; UsageError at once, before the work, if that cannot be."""
    target = Path(path)
    there = _exists(target)
    if target.is_dir():
        raise UsageError(f"{path}: is a folder; name a file")
    if there and not os.access(target, os.W_OK):
        raise UsageError(f"{path}: cannot be written to")
    if target.is_file() or not there:  # its folder changes
        _check_folder(path, os.path.dirname(os.path.realpath(target) if target.is_symlink() else path))
    return target


def _check_folder(name: str | Path, folder: str | Path) -> None:
    """UsageError where no files can be written into a folder, there or not yet; it says what was named for that."""
    try:
        there = Path(folder).absolute()
    except FileNotFoundError:
        raise UsageError(f"{name}: the current folder is no longer there") from None
    while not _exists(there):
        there = there.parent
    if not there.is_dir():
        raise UsageError(f"{name}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{name}: {there} cannot be written to")


def _exists(path: Path) -> bool:
    """Whether something is there; UsageError for what cannot be known: no permission, a link round in a circle, a long name."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    return True


_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)

EVERY = 30.0
"""Seconds between two lines about long work where stderr is no terminal."""


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is said of progress inside."""
    token = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(token)


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Any]:
    """A progress bar on stderr, or a line every EVERY seconds where that is no terminal; yields a function `(done, text)`."""
    if _QUIET.get() or not sys.stderr.isatty():
        yield (lambda done, text="": None) if _QUIET.get() else _lines(description, total)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)

        def report(done: int, text: str = "") -> None:
            bar.update(task, completed=done, description=f"{description} {text}".strip())

        yield report


def _lines(description: str, total: int | None, clock: Callable[[], float] = time.monotonic) -> Callable[..., None]:
    """A function `(done, text)` that prints a line on stderr when EVERY seconds have passed since the last one."""
    began = last = clock()

    def report(done: int, text: str = "") -> None:
        nonlocal last
        if (now := clock()) - last >= EVERY:
            last, of = now, "" if total is None else f" of {total}"
            line = f"{description} {printable(text)}".strip()
            print(f"{line}: {done}{of}, {now - began:.0f} s so far", file=sys.stderr, flush=True)

    return report


def tracked(description: str, items: Sequence[Item], words: Callable[[Item], str] = lambda item: "") -> Iterator[Item]:
    """The items in turn, under a progress bar that says what `words` says of the one at work."""
    with progress(description, len(items)) as report:
        for number, item in enumerate(items):
            report(number, words(item))
            yield item
