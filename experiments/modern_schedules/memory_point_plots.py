"""Memory point plots: time above the busiest device's work against peak memory, a panel for even and one for uneven stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import cos, pi, sin
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWNBASE

from experiments.modern_schedules.memory_points import over_seeds
from hardware_profiles import Floats, percent
from simulator.results.figures import (
    FAINT,
    INK,
    SERIES,
    legend_below,
    logarithmic_axes,
    noted,
    panels,
    titled,
    unframed,
)

LOOKS = {
    "straight": (SERIES[0], "o"),
    "interleaved": (SERIES[1], "s"),
    "v": (SERIES[2], "v"),
    "bidirectional": (SERIES[3], "D"),
    "straight, slices": ("#e3b505", "P"),
}
"""Colour and marker of each placement, and of one whose ops are slices of sequences."""

FRONTS = ("straight", "interleaved", "v")
"""Placements whose searched orders are drawn, and their bounds: more lines cannot be told apart."""

PANEL = np.array([434.0, 461.0])
"""Points (of 1/72 inch) that a panel is wide and high."""

LEAST_SHOWN = 1.0
"""Per cent: what is below leaves the panel, at whose edge a mark says so."""

BELOW = "a bound below the panel"

LETTER, AIR = 4.8, np.array([5.0, 13.0])
"""Points: width of a letter, and what stays free beside, above and below the middle of a name."""

OFFSETS = tuple(
    (reach * cos(pi * turn / 12), reach * sin(pi * turn / 12))
    for reach in range(8, 140, 6)
    for turn in (0, 12, 1, -1, 11, -11, 2, -2, 10, -10, 3, -3, 9, -9, 4, -4, 8, -8, 5, -5, 7, -7)
)
"""Points from a marker to the nearer end of its name, the best first: near, then level, then to the right."""

Point = tuple[float, float]
"""Micro-batches and per cent; of offsets points."""


class Frame(NamedTuple):
    """Micro-batches and per cent at the ends of the axes."""

    least: Point
    most: Point

    @classmethod
    def around(cls, points: Iterable[Point]) -> Frame:
        """With room for marks and names around points."""
        xs, ys = zip(*points, strict=True)
        shown = [y for y in ys if y >= LEAST_SHOWN]
        return cls((0.8 * min(xs), max(LEAST_SHOWN, 0.7 * min(shown))), (1.4 * max(xs), 1.4 * max(shown)))

    def along(self, line: Sequence[Point]) -> Floats:
        """Places along a line, close to each other: points from the lower left corner of the panel, float64 [n, 2]."""
        decade = PANEL / np.log10(np.array(self.most) / np.array(self.least))
        corners = decade * np.log10(np.maximum(line, self.least) / np.array(self.least))
        parts = [np.linspace(one, other, 2 + int(np.abs(other - one).max() / 2)) for one, other in pairwise(corners)]
        return np.concatenate([corners, *parts])


def draw(document: Mapping[str, Any]) -> Figure:
    """A panel for each kind of stages; whiskers from the least to the most of the seeds."""
    kinds = [*dict.fromkeys(row["stages"] for row in document["families"])]
    figure, (row,) = panels(13, 7.6, 1, len(kinds), sharey=True)
    frame = Frame.around(_points(document))
    for axes, kind in zip(row, kinds, strict=True):
        _draw(axes, document, kind, frame)
    row[0].set_ylabel("makespan above the work of the busiest device, %")
    shown = {label: one for axes in row for one, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    legend_below(figure, 5, list(shown.values()), list(shown))
    return figure


def _searched(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Searched orders but for those within what a family holds."""
    return [row for row in document["searched"] if row["limit_microbatches"] in document["limits_microbatches"]]


def _points(document: Mapping[str, Any]) -> Iterator[Point]:
    """All that is drawn: families and searched orders, and their bounds."""
    drawn = [row for row in _searched(document) if row["placement"] in FRONTS]
    for rows, memory in ((document["families"], "peak_microbatches"), (drawn, "limit_microbatches")):
        for row in rows:
            yield row[memory], 100 * row["above_busiest"]
            yield row[memory], 100 * row["bound_above_busiest"]


def _draw(axes: Axes, document: Mapping[str, Any], kind: str, frame: Frame) -> None:
    families = [row for row in document["families"] if row["stages"] == kind]
    searched = [row for row in _searched(document) if row["stages"] == kind]
    lines = [line for place in FRONTS for line in _front(axes, place, searched)]
    for look in LOOKS:
        lines += _families(axes, look, [row for row in families if look_of(row) == look])
    for point, name, offset in labels(named(families), lines, frame):
        leader = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6} if offset != OFFSETS[0] else None
        side = "left" if offset[0] > 0 else "right"
        noted(axes, name, point, offset, fontsize=8, color=INK, ha=side, va="center", arrowprops=leader)
    logarithmic_axes(axes, "both")
    axes.set(xlim=(frame.least[0], frame.most[0]), ylim=(frame.least[1], frame.most[1]))
    draws = len({row["seed"] for row in families})
    drawn = f"mean and range of {draws} draws" if draws > 1 else "one draw"
    uneven = f"uneven stages, ±{percent(document['uneven_spread'], 'g')}: {drawn}"
    memory = "peak memory, micro-batches of a device's part of the model"
    titled(axes, "even stages" if kind == "even" else uneven, xlabel=memory)
    unframed(axes, "both", 0.7)


def _front(axes: Axes, place: str, searched: Sequence[dict[str, Any]]) -> Iterator[list[Point]]:
    """Searched orders against their limits, and the bound of orders of the same ops: the lines drawn."""
    rows = [*over_seeds([row for row in searched if row["placement"] == place], "limit_microbatches")]
    found = [(row["limit_microbatches"], 100 * row["above_busiest"]) for row in rows]
    look: dict[str, Any] = {"color": LOOKS[place][0], "linewidth": 1.3, "markersize": 5}
    for what, style, line in (("searched", ".-", found), ("bound", ":", stairs(rows))):
        axes.plot(*zip(*line, strict=True), style, label=f"{place}, {what}", **look)
        yield line


def stairs(rows: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The bound at every memory: between two limits that of the greater, as an order in less memory keeps to it."""
    corners = [(row["limit_microbatches"], 100 * row["bound_above_busiest"]) for row in rows]
    return [*corners[:1], *(corner for one, (x, y) in pairwise(corners) for corner in ((one[0], y), (x, y)))]


def look_of(row: Mapping[str, Any]) -> str:
    """Name of the look of a family's row in LOOKS."""
    return row["placement"] if row["slices"] == 1 else f"{row['placement']}, slices"


def _families(axes: Axes, look: str, families: Sequence[dict[str, Any]]) -> Iterator[list[Point]]:
    """A marker for each family at what it holds, and its own bound where no line is it: the whiskers drawn."""
    rows = [*over_seeds(families, "family")]
    memory = [row["peak_microbatches"] for row in rows]
    mean, least, most, bound = (
        [100 * row[key] for row in rows] for key in ("above_busiest", "least", "most", "bound_above_busiest")
    )
    color, marker = LOOKS[look]
    axes.plot(memory, mean, marker, color=color, markersize=7, label=f"{look}, families")
    axes.vlines(memory, least, most, color=color, linewidth=1)
    if look not in FRONTS:
        axes.plot(memory, bound, "_", color=color, markersize=9, markeredgewidth=1.8, label=f"{look}, own bounds")
        axes.vlines(memory, bound, mean, color=color, linewidth=1.3, linestyles=":")
        below = [x for x, y in zip(memory, bound, strict=True) if y < LEAST_SHOWN]
        if below:
            edge: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": "none"}
            axes.plot(below, [0.0] * len(below), marker=CARETDOWNBASE, color=color, markersize=7, **edge, label=BELOW)
        least = [*map(min, least, bound)]
    for x, low, high in zip(memory, least, most, strict=True):
        yield [(x, low), (x, high)]


def named(families: Sequence[dict[str, Any]]) -> dict[Point, str]:
    """Micro-batches and per cent -> the families there."""
    names: dict[Point, str] = {}
    for row in over_seeds(families, "family"):
        point = row["peak_microbatches"], 100 * row["above_busiest"]
        names[point] = f"{names[point]}, {row['family']}" if point in names else row["family"]
    return names


def labels(
    names: Mapping[Point, str], lines: Sequence[Sequence[Point]], frame: Frame
) -> Iterator[tuple[Point, str, Point]]:
    """Point, name, and the first of OFFSETS at which it covers nothing drawn or written before it, and stays in the panel."""
    taken = np.concatenate([frame.along(line) for line in (*([point] for point in names), *lines)])
    low, high = np.zeros(2), PANEL
    offsets = np.array(OFFSETS)
    for point, name in sorted(names.items(), key=lambda one: -one[0][1]):
        width = np.array([LETTER * len(name), 0.0])
        begins = frame.along([point])[0] + offsets - np.where(offsets[:, :1] > 0, 0.0, width)
        lower, upper = begins - AIR, begins + width + AIR
        covers = ((taken > lower[:, None]) & (taken < upper[:, None])).all(axis=2).any(axis=1)
        best = int(np.argmin(covers | (lower < low).any(axis=1) | (upper > high).any(axis=1)))
        taken = np.concatenate([taken, np.linspace(begins[best], begins[best] + width, 2 + len(name))])
        yield point, name, OFFSETS[best]
