"""Figures: units, palette, panels, legends and deterministic files, shared by all plots."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hardware_profiles import legible
from simulator.results.written_files import figure_files, write_atomically

INK, FAINT, IDLE, ALARM, GRID = "#1f2328", "#59636e", "#eceef1", "#b3261e", "#dfe3e8"
BLUE, ORANGE, GREEN, GREY = "#1b6ca8", "#d9822b", "#4f8a3c", "#9aa4af"
SERIES = ("#123f73", "#d55e00", "#3fae8c", "#8e5aa8", "#b08d1a", "#c0395a", "#4b6f8f", "#7a4a2a")
"""Of lines that stand for numbers or places, in their order, then again; methods have colours of their own."""

MARKS = "os^DvPX"
"""Of points, as many as there are not colours, so that two lines of a colour have other marks."""

DPI = 100

LONG = 4.5
"""Decades, of which the numbers need not have room below a panel."""

_UNTOLD: Mapping[str, Mapping[str, str | None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
"""What a figure's file would tell of when and with what it was made, by its ending."""


class Picture(Figure):
    """A matplotlib figure that a notebook displays as a cell value, with or without pyplot; texts are drawn literally.

    Every figure of this package is one.
    """

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure with all texts taken literally: a `$` in a name starts no formula."""
        with plain_texts():
            for text in _texts(self):
                text.set_parse_math(False)
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def _texts(artist: Artist) -> Iterator[Text]:
    """All texts of a drawing, as `findobj` has them, which takes a sixth of the seconds of drawing."""
    waiting = [artist]
    while waiting:
        one = waiting.pop()
        waiting += one.get_children()
        if isinstance(one, Text):
            yield one


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
    """Label a logarithmic axis with plain numbers: every decade; also 2 and 5 over at most two decades of data in view; also 1.5,
    3 and 7 over one; every other decade below a panel of more than LONG decades.
    """
    (least, most), (first, last) = axis.get_data_interval(), sorted(axis.get_view_interval())
    low, high = max(least, first), min(most, last)
    decades = math.log10(high / low) if low > 0 else math.inf
    subs = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades <= 1.0 else (1.0, 2.0, 5.0) if decades <= 2.0 else (1.0,)
    wide = axis is axis.axes.xaxis and decades > LONG
    axis.set_major_locator(LogLocator(base=100.0) if wide else LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: figures(value)))
    axis.set_minor_formatter(NullFormatter())


def series_look(number: int) -> dict[str, Any]:
    """Colour, dashes and mark of the Nth line."""
    dashes = "-" if number // len(SERIES) % 2 == 0 else "--"
    return {"color": SERIES[number % len(SERIES)], "linestyle": dashes, "marker": MARKS[number % len(MARKS)]}


def whitened(color: str, share: float) -> str:
    """A colour, `#rrggbb`, so much of the way to white."""
    red, green, blue = (part + (1.0 - part) * share for part in to_rgb(color))
    return to_hex((red, green, blue))


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Figure, Any]:
    """A white figure of so many inches, and its panels as an array [rows, columns]."""
    figure = Picture(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def multiples(count: int, columns: int, wide: float, tall: float, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Small multiples: `count` panels in rows of at most `columns`, in a figure of so many inches per column and per row."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, found = panels(wide * columns, tall * rows, rows, columns, **shared)
    for axes in found.ravel()[count:]:
        axes.set_visible(False)
    return figure, list(found.ravel()[:count])


TITLE, SMALL_TITLE = 12.0, 8.5
"""Points of a bold title, and of one that would not have room."""


def title_points(name: str, size: float) -> float:
    """Points that a bold title is long: 0.64 of its size per character, the mean of a wide name."""
    return 0.64 * size * len(name)


def fitting(title: str, room: float) -> tuple[str, float]:
    """A title and its size for so many points of room: smaller where it is long, and only then without its middle."""
    size = min(TITLE, max(SMALL_TITLE, TITLE * room / max(1.0, title_points(title, TITLE))))
    return legible(title, max(12, round(room / title_points("x", size)))), size


def captioned(figure: Figure, words: str, size: float = 10) -> None:
    """Write words below all panels, in lines that are as long as the figure is wide."""
    figure.supxlabel("\n".join(wrap(words, int(110 / size * figure.get_figwidth()))), fontsize=size)


def grouped_bars(
    axes: Axes,
    series: Mapping[str, Sequence[float | None]],
    looks: Mapping[str, Mapping[str, Any]],
    *,
    width: float = 0.8,
    scale: float = 1.0,
    absent: str = "none",
) -> dict[str, BarContainer]:
    """A group of bars per place 0, 1, 2, …, in it a bar per series, labelled by its name; the bars of each series.

    Nothing is drawn of what is NaN; of what is None a cross, and the word for what is absent.
    looks: of the bars of each series, as `Axes.bar` takes them; width: of a group; scale: of the values
    """
    each, drawn = width / len(series), {}
    for number, (name, values) in enumerate(series.items()):
        places = [place + (number - (len(series) - 1) / 2) * each for place in range(len(values))]
        known = [(x, scale * y) for x, y in zip(places, values, strict=True) if y is not None and not math.isnan(y)]
        drawn[name] = axes.bar([x for x, _ in known], [y for _, y in known], each, label=name, **looks[name])
        for x in (x for x, y in zip(places, values, strict=True) if y is None):
            axes.plot(x, 0, "x", color=INK, markersize=5, clip_on=False)
            noted(axes, absent, (x, 0), (0, 5), rotation=90, ha="center", va="bottom", fontsize=8, color=FAINT)
    return drawn


def titled(axes: Axes, title: str, *, size: float = 10, color: str = INK, **labels: Any) -> None:
    """A title on the left, and what `Axes.set` takes beside it: labels, limits."""
    axes.set_title(title, loc="left", fontsize=size, color=color)
    axes.set(**labels)


IN_VIEW = 2.0
"""Times the largest peak at most where a capacity is drawn: beyond it plans would stand in a corner."""


def capacities_in_view(gib: Iterable[float], most: float) -> tuple[list[float], str]:
    """Of capacities those that are drawn beside peaks of at most `most`, rising; and words of those that are not, or ""."""
    known = sorted(set(gib))
    beyond = [f"{one:.4g}" for one in known if one > IN_VIEW * most]
    words = f"capacity {' and '.join(beyond)} GiB, beyond the axis" if beyond else ""
    return [one for one in known if one <= IN_VIEW * most], words


def capacity_lines(axes: Axes, gib: Iterable[float], most: float) -> float:
    """Dotted lines at the capacities in view, along x in GiB, with labels for a legend of all; the largest of what is in view."""
    drawn, beyond = capacities_in_view(gib, most)
    for one in drawn:
        axes.axvline(one, color=FAINT, linestyle=":", linewidth=1.2, label=f"capacity {one:.4g} GiB")
    if beyond:
        axes.plot([], [], linestyle="none", label=beyond)
    return max([most, *drawn])


LINEAR_WORDS = "linear scale, logarithmic beyond"


def linear_part(axes: Axes, end: float) -> Artist:
    """Shade where a `symlog` axis is linear, from -end to end, with an edge where its scale changes: LINEAR_WORDS."""
    return axes.axvspan(-end, end, facecolor="#eef2f6", edgecolor=FAINT, linestyle=":", linewidth=0.8, zorder=0)


def logarithmic_axes(axes: Axes, along: Literal["x", "y", "both"]) -> None:
    """Logarithmic scales with plain numbers; to be called when everything is drawn."""
    for one in (axes.xaxis, axes.yaxis) if along == "both" else (getattr(axes, f"{along}axis"),):
        axes.set(**{f"{one.axis_name}scale": "log"})
        logarithmic(one)


def noted(axes: Axes, text: str, place: tuple[float, float], points: tuple[float, float], **look: Any) -> None:
    """Write so many points from a place."""
    axes.annotate(text, place, points, textcoords="offset points", **look)


def legend_below(figure: Figure, columns: int, *entries: Any, size: float = 9, note: str = "", **look: Any) -> None:
    """One legend below all panels, in fewer columns where these are wider than the figure; entries: handles and their labels,
    where not all that is labelled stands in it; note: words between it and the panels.
    """
    look |= {"title": note, "title_fontsize": size} if note else {}
    look |= {"loc": "outside lower center", "frameon": False, "fontsize": size}
    legend = figure.legend(*entries, ncols=columns, **look)
    while columns > 1 and legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        columns -= 1
        legend = figure.legend(*entries, ncols=columns, **look)


def grid(axes: Axes) -> None:
    """Faint lines below the bars."""
    axes.grid(True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def unframed(axes: Axes, along: Literal["x", "y", "both"], width: float, color: str = GRID) -> None:
    """No frame above and to the right, and a grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, axis=along, color=color, linewidth=width)
    axes.set_axisbelow(True)


def beside(axes: Axes, y: float, text: str, points: float, *, color: str = INK, size: float = 9.0, **look: Any) -> None:
    """Write right of the panel, where no bar and no line can run through it; `points` from its edge."""
    look |= {"va": "center", "ha": "left", "fontsize": size, "color": color, "annotation_clip": False}
    noted(axes, text, (1.0, y), (points, 0), xycoords=axes.get_yaxis_transform(), **look)


def plain_texts() -> AbstractContextManager[None]:
    """Draw texts literally inside this block: a `$` in a name starts no formula."""
    return mpl.rc_context({"text.parse_math": False})


def save(figure: Figure, path: str | Path) -> tuple[Path, ...]:
    """Write the files of a figure (`figure_files`) atomically, byte-identical for the same figure; return their paths.

    Raises OSError where the folder cannot be written.
    """
    files, pictures = figure_files(path), []
    with mpl.rc_context({"svg.hashsalt": "pipeplan", "pdf.fonttype": 42}):
        for file in files:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=file.suffix[1:], dpi=150, metadata=_UNTOLD[file.suffix])
            pictures.append(buffer.getvalue())
    for file, picture in zip(files, pictures, strict=True):
        write_atomically(file, picture)
    return files
