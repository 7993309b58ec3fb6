"""Sweep plots: seconds along an axis, with the points where the plan changes; heat maps over two axes; throughput and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.compare.method_looks import look_of
from experiments.sweep.axes import Axis
from experiments.sweep.swept import Swept, place_words
from experiments.terminal.report_tables import Row
from hardware_profiles import GIB, counted, legible
from simulator.results.figures import (
    FAINT,
    GREY,
    INK,
    capacity_lines,
    figures,
    legend_below,
    logarithmic_axes,
    multiples,
    panels,
    series_look,
    titled,
    unframed,
)

MOST_LINES = 12
"""Lines of a figure, and panels of heat maps, at most; a sweep of more is drawn in part, and says so."""

MOST_CELLS = 200
"""Cells of a heat map that are written in."""

MOST_TICKS = 12
"""Values of an axis that are all written below it."""


def figures_of(swept: Swept) -> dict[str, Figure]:
    """The figures of a sweep by name: those for which it has plans, and axes enough."""
    if not swept.planned:
        return {}
    found = {"lines": lines_figure(swept)}
    if len(swept.varied) > 1:
        found["heat_map"] = heat_map_figure(swept)
    return {**found, "pareto": pareto_figure(swept)}


def line_look(swept: Swept, number: int, row: Row) -> Mapping[str, Any]:
    """Colour, dashes and mark of the Nth line: those of its planner or schedule, where lines differ in that alone."""
    names = [one.name for one in swept.others]
    return look_of(row[names[0]]).line if names in (["planner"], ["schedule"]) else series_look(number)


RING = "; a ring: the plan changes"
"""Behind the title of lines that change their plan."""


def rises_by_factors(along: Axis) -> bool:
    """Whether numbers of an axis are drawn on a logarithmic scale."""
    numbers = sorted(float(one) for one in along.values) if along.numeric else [0.0]
    return numbers[0] > 0 and numbers[-1] >= 8 * numbers[0]


def lines_figure(swept: Swept) -> Figure:
    """Seconds of an iteration along the longest axis, a line for each point of the others; a ring where the plan is another one
    than at the point before.
    """
    figure, ((axes,),) = panels(10, 6.2)
    along, lines = swept.along, list(swept.lines().values())
    shown = [rows for rows in lines if any(row["feasible"] for row in rows)][:MOST_LINES]
    changed = {id(after) for _, after, _ in swept.changes()}
    for number, rows in enumerate(shown):
        fitting = [row for row in rows if row["feasible"]]
        look = line_look(swept, number, rows[0])
        axes.plot(
            *_points(along, fitting), **look, linewidth=1.3, markersize=4, label=place_words(swept.others, rows[0])
        )
        rings = [row for row in fitting if id(row) in changed]
        axes.plot(
            *_points(along, rings), "o", color=look["color"], markersize=10, markerfacecolor="none", label="_rings"
        )
    logarithmic_axes(axes, "y")
    _scaled(axes, along)
    left = f"; {MOST_LINES} of {len(lines)} lines" if len(lines) > MOST_LINES else ""
    left += RING * bool(changed)
    titled(
        axes,
        legible(f"{swept.title}{left}", 110),
        xlabel=along.name,
        ylabel="seconds per iteration",
    )
    unframed(axes, "both", 0.7)
    if swept.others:
        legend_below(figure, min(len(shown), 4))
    return figure


def heat_map_figure(swept: Swept) -> Figure:
    """Seconds of an iteration over the two axes of most values, a panel for each point of the others; grey: no plan fits."""
    rows_of, columns = swept.plane
    others = [one for one in swept.varied if one is not rows_of and one is not columns]
    names, places = [one.name for one in others], list(product(*(one.values for one in others)))
    shown = places[:MOST_LINES]
    found = {tuple(row[one.name] for one in (*others, rows_of, columns)): row for row in swept.rows}
    known = [row["iteration_seconds"] for row in swept.planned]
    norm = LogNorm(min(known), max(known)) if max(known) > min(known) else LogNorm(min(known) / 2, 2 * max(known))
    figure, panes = multiples(len(shown), 3, max(5.0, 0.75 * len(columns.values)), max(3.2, 0.45 * len(rows_of.values)))
    colors = mpl.colormaps["viridis"].with_extremes(bad=GREY)
    for axes, place in zip(panes, shown, strict=True):
        seconds = [[_seconds(found.get((*place, one, two))) for two in columns.values] for one in rows_of.values]
        image = axes.imshow(seconds, norm=norm, cmap=colors, aspect="auto", origin="lower")
        _ticks(axes, rows_of, columns)
        titled(
            axes,
            legible(place_words(others, dict(zip(names, place, strict=True))) or swept.title),
            size=9,
            xlabel=columns.name,
            ylabel=rows_of.name,
        )
        if len(rows_of.values) * len(columns.values) <= MOST_CELLS:
            middle = math.sqrt(norm.vmin * norm.vmax)  # type: ignore[operator]
            for (y, line), x in product(enumerate(seconds), range(len(columns.values))):
                words = "" if math.isnan(line[x]) else figures(line[x])
                axes.text(x, y, words, ha="center", va="center", fontsize=7, color="white" if line[x] < middle else INK)
    left = f" ({MOST_LINES} of {len(places)} panels)" if len(places) > MOST_LINES else ""
    bar = figure.colorbar(image, ax=panes, label=f"seconds per iteration{left}; grey: none fits")
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: figures(value)))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return figure


def pareto_figure(swept: Swept) -> Figure:
    """Samples per second against the peak memory of the fullest device: every plan that fits, and, by the devices in use, a line
    through those that none beats.
    """
    figure, ((axes,),) = panels(10, 6.2)
    axes.plot(*_worth(swept.planned), "o", color=FAINT, markersize=3, label="plans that fit")
    front = sorted(swept.front(), key=lambda row: row["peak_memory_bytes"])
    counts = sorted({row["plan_devices"] for row in front})
    for number, count in enumerate(counts):
        own = [row for row in front if row["plan_devices"] == count]
        look = {**series_look(number), "markersize": 7, "linewidth": 1.3}
        axes.plot(*_worth(own), drawstyle="steps-post", **look, label=counted(count, "device"))
    capacity_lines(axes, swept.capacities_gib, max(_worth(swept.planned)[0]))
    logarithmic_axes(axes, "both")
    title = legible(f"{swept.title}; lines: plans that none beats in throughput, memory and devices", 110)
    titled(axes, title, xlabel="peak memory of the fullest device, GiB", ylabel="samples per second")
    unframed(axes, "both", 0.7)
    legend_below(figure, min(len(counts) + 2, 6))
    return figure


def _worth(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Memory and throughput of rows."""
    return [row["peak_memory_bytes"] / GIB for row in rows], [row["samples_per_second"] for row in rows]


def _seconds(row: Row | None) -> float:
    return row["iteration_seconds"] if row is not None and row["feasible"] else math.nan


def _points(along: Axis, rows: Sequence[Row]) -> tuple[list[Any], list[float]]:
    """Places of rows on an axis: their numbers, or the numbers of their words."""
    places = [row[along.name] if along.numeric else along.values.index(row[along.name]) for row in rows]
    return places, [row["iteration_seconds"] for row in rows]


def _scaled(axes: Axes, along: Axis) -> None:
    """A logarithmic scale for numbers that rise by factors, places for words."""
    if not along.numeric:
        axes.set_xticks(
            range(len(along.values)), [legible(str(one), 24) for one in along.values], rotation=20, ha="right"
        )
        return
    if rises_by_factors(along):
        logarithmic_axes(axes, "x")
    if len(along.values) <= MOST_TICKS:
        axes.set_xticks(sorted(map(float, along.values)), [str(one) for one in sorted(along.values)])
        axes.minorticks_off()


def _ticks(axes: Axes, rows: Axis, columns: Axis) -> None:
    for one, name in ((columns, "x"), (rows, "y")):
        step = -(-len(one.values) // 24)
        labels = [legible(str(value), 18) for value in one.values[::step]]
        look = {"rotation": 30, "ha": "right"} if name == "x" and not one.numeric else {}
        getattr(axes, f"set_{name}ticks")(range(0, len(one.values), step), labels, fontsize=8, **look)
