"""Report tables: rows of a document as a table, whose columns are data: a heading, and how a row's cell is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.terminal.output import print_table
from hardware_profiles import percent
from simulator import TextTable

STALE = "*"
"""Behind what trains on stale weights, in every table and figure: what runs without a flush, whatever weights it predicts."""

STALE_WORDS = f"{STALE} updates with stale weights"
"""The line beside a table or figure that has the mark."""

Row = Mapping[str, Any]
Cell = str | Callable[[Row], str]
"""A format of the row's values (`{seconds:.4g} s`), or what writes the row's cell."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of a document.

    title: a format of the document's values, or what writes it; rows: the document's key of them, or what picks them from it
    columns: heading -> cell, the most important first
    """

    title: Cell
    rows: str | Callable[[Row], Iterable[Row]]
    columns: Mapping[str, Cell]

    def text(self, document: Row) -> TextTable:
        """The table of a document as words."""
        rows = document[self.rows] if isinstance(self.rows, str) else self.rows(document)
        cells = self.columns.values()
        written = (tuple(written_cell(cell, row) for cell in cells) for row in rows)
        return TextTable(written_cell(self.title, document), tuple(self.columns), tuple(written))

    def print(self, document: Row) -> None:
        """Print it to stdout."""
        table = self.text(document)
        print_table(table.title, table.columns, table.rows)


def written_cell(cell: Cell, row: Row) -> str:
    """What a cell says of a row."""
    return cell.format_map(row) if isinstance(cell, str) else cell(row)


def marked(row: Row, name: str = "label") -> str:
    """The row's name, with the mark of stale weights where it says that it is `stale`."""
    return f"{row[name]}{STALE * bool(row.get('stale'))}"


def share(key: str, form: str = ".1f") -> Callable[[Row], str]:
    """Writes the row's share in per cent, as `percent` does; nothing where there is none, or it is not finite."""

    def write(row: Row) -> str:
        value = row.get(key)
        return "" if value is None or not math.isfinite(value) else percent(value, form)

    return write


def figure(key: str, form: str, scale: float = 1, *, unit: str = "", missing: str = "") -> Callable[[Row], str]:
    """Writes the row's number times `scale` in a form of `format`; `missing` where there is none, or it is not finite."""

    def write(row: Row) -> str:
        value = row.get(key)
        return missing if value is None or not math.isfinite(value) else format(scale * value, form) + unit

    return write


def mean_and_deviation(name: str, form: str, scale: float = 1) -> Callable[[Row], str]:
    """Writes the row's `NAME_mean ± NAME_deviation` in a form of `format`; `not finite` where the mean is not."""
    mean, deviation = (figure(f"{name}_{part}", form, scale) for part in ("mean", "deviation"))
    return lambda row: f"{mean(row)} ± {deviation(row)}" if mean(row) else "not finite"


def fitting(write: Callable[[Row], str]) -> Callable[[Row], str]:
    """Writes a cell, and behind it that the row's plan does not fit, where it does not."""
    return lambda row: write(row) + ("" if row["fits"] else " (does not fit)")


def words(key: str, between: str = " ") -> Callable[[Row], str]:
    """Writes the row's list with something between its parts."""
    return lambda row: between.join(map(str, row[key]))


def either(key: str, no: str = "no") -> Callable[[Row], str]:
    """Writes `yes` where the row's value holds, else `no` or the word in its place."""
    return lambda row: "yes" if row[key] else no
