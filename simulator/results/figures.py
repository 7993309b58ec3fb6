"""Figures: units, colours and deterministic files, shared by all plots."""

from __future__ import annotations

import io
import math
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from simulator.results.written_files import write_atomically

INK, FAINT, IDLE, ALARM = "#1f2328", "#59636e", "#eceef1", "#b3261e"
DPI = 100


class Picture(Figure):
    """A matplotlib figure that a notebook displays as a cell value, with or without pyplot; texts are drawn literally.

    Every figure of this package is one.
    """

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure with all texts taken literally: a `$` in a name starts no formula."""
        with plain_texts():
            for text in self.findobj(Text):
                text.set_parse_math(False)
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def time_unit(seconds: float) -> tuple[str, float]:
    """Best unit for a span of seconds, and how many of it are in one second: ("ms", 1000.0) below one second, and so on."""
    for name, size in (("h", 3600.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * (3.0 if name == "h" else 1.0):
            return name, 1.0 / size
    return ("ns", 1e9) if seconds > 0 else ("s", 1.0)


def byte_unit(size_bytes: float) -> tuple[str, float]:
    """Best unit for a number of bytes, and how many of it are in one byte: ("GiB", 2**-30), and so on."""
    for name, size in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if size_bytes >= size:
            return name, 1.0 / size
    return "bytes", 1.0


def figures(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, without exponents, with thousands separators: 2,416, 33.4, 0.0123."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def logarithmic(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers: every decade; also 2 and 5 over at most two decades; also 1.5, 3 and 7 over
    one.
    """
    low, high = axis.get_data_interval()
    decades = math.log10(high / low) if low > 0 else math.inf
    subs = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades <= 1.0 else (1.0, 2.0, 5.0) if decades <= 2.0 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: figures(value)))
    axis.set_minor_formatter(NullFormatter())


def plain_texts() -> AbstractContextManager[None]:
    """Draw texts literally inside this block: a `$` in a name starts no formula."""
    return mpl.rc_context({"text.parse_math": False})


def save(figure: Figure, path_stem: str | Path) -> tuple[Path, Path]:
    """Write `path_stem`.png and `path_stem`.svg atomically, byte-identical for the same figure; return the paths.

    Raises OSError where the folder cannot be written.
    """
    stem = Path(path_stem)
    png, svg = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    with mpl.rc_context({"svg.hashsalt": "pipeplan"}):
        pictures = []
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
            pictures.append(buffer.getvalue())
    for path, picture in zip((png, svg), pictures, strict=True):
        write_atomically(path, picture)
    return png, svg
