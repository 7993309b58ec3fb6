"""Tables: rows of words for the terminal and notebooks, and the base class of results that print as tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

from hardware_profiles import printable


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of words with headings.

    columns: headings, the most important first; a line end in one is where it may be broken
    rows: as many cells as columns
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def headings(self) -> tuple[str, ...]:
        """The column names, each on one line."""
        return tuple(in_a_line(column) for column in self.columns)

    def __str__(self) -> str:
        """The table as text: columns as wide as their cells, numbers right-aligned."""
        cells = [self.headings, *([printable(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        right = [is_numeric(number, (row[number] for row in self.rows)) for number in range(len(self.columns))]
        lines = (
            "  ".join(
                cell.rjust(width) if flush else cell.ljust(width)
                for cell, width, flush in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in cells
        )
        return "\n".join((printable(self.title), *lines))

    def markdown(self) -> str:
        """The table as Markdown, for notebooks."""
        rows = (self.headings, ["---"] * len(self.columns), *self.rows)
        lines = ["| " + " | ".join(escape(printable(cell)).replace("|", "\\|") for cell in row) + " |" for row in rows]
        return f"**{escape(printable(self.title))}**\n\n" + "\n".join(lines)


class Explained(ABC):
    """A result that prints itself as tables with sentences below them."""

    __slots__ = ()

    @abstractmethod
    def tables(self) -> tuple[TextTable, ...]:
        """The figures of the result, as tables."""

    @abstractmethod
    def remarks(self) -> tuple[str, ...]:
        """What to know about the figures, one line each."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The figures by name, in base units."""

    def summary(self) -> str:
        """Tables and remarks as text."""
        return "\n\n".join([*map(str, self.tables()), "\n".join(map(printable, self.remarks()))]).rstrip()

    def _repr_markdown_(self) -> str:
        lines = [escape(printable(line)) for line in self.remarks()]
        return "\n\n".join([*(table.markdown() for table in self.tables()), *lines])


def in_a_line(column: str) -> str:
    """A column heading without line breaks."""
    return column.replace("-\n", "-").replace("\n", " ")


def is_numeric(number: int, cells: Iterable[str]) -> bool:
    """Whether a column contains numbers only; the first column never does, it names its rows."""
    return bool(number) and all(_is_figure(cell) for cell in cells if cell)


def _is_figure(text: str) -> bool:
    """Whether a cell is a number, possibly with a unit or `of` another number."""
    first = text.replace(",", "").removeprefix("-").split(" ")[0]
    return first.translate(str.maketrans("", "", ".e+")).isdigit()
