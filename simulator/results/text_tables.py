"""Tables: figures as rows of words, and what explains itself by them, in a terminal and in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from hardware_profiles import printable


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of words.

    columns: headings, the most important first; a line end in one is where it may be broken
    rows: as many cells as columns
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def headings(self) -> tuple[str, ...]:
        """The columns' names, each in one line."""
        return tuple(in_a_line(column) for column in self.columns)

    def __str__(self) -> str:
        """Columns as wide as their cells; those of figures are flush right."""
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
        """The table for a notebook."""
        rows = (self.headings, ["---"] * len(self.columns), *self.rows)
        lines = ["| " + " | ".join(escape(printable(cell)).replace("|", "\\|") for cell in row) + " |" for row in rows]
        return f"**{escape(printable(self.title))}**\n\n" + "\n".join(lines)


class Explained(ABC):
    """What explains itself: by tables, and by sentences under them."""

    __slots__ = ()

    @abstractmethod
    def tables(self) -> tuple[TextTable, ...]:
        """The figures."""

    @abstractmethod
    def remarks(self) -> tuple[str, ...]:
        """What to know of them, a line each."""

    def summary(self) -> str:
        """Tables and remarks as text."""
        return "\n\n".join([*map(str, self.tables()), "\n".join(map(printable, self.remarks()))]).rstrip()

    def _repr_markdown_(self) -> str:
        lines = [escape(printable(line)) for line in self.remarks()]
        return "\n\n".join([*(table.markdown() for table in self.tables()), *lines])


def in_a_line(column: str) -> str:
    """A column's heading without its line ends."""
    return column.replace("-\n", "-").replace("\n", " ")


def is_numeric(number: int, cells: Iterable[str]) -> bool:
    """Whether a column, by its number, holds figures: none of its cells is a word; the first column names its rows."""
    return bool(number) and all(_is_figure(cell) for cell in cells if cell)


def _is_figure(text: str) -> bool:
    """Whether a cell is a number, perhaps with a unit or `of` another one."""
    first = text.replace(",", "").removeprefix("-").split(" ")[0]
    return first.translate(str.maketrans("", "", ".e+")).isdigit()
