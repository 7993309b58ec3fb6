"""Learning plots: loss and accuracy over simulated seconds, and the seconds to a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.compare.method_looks import look_of
from experiments.terminal.report_tables import STALE_WORDS, marked
from experiments.training.clocks import MethodCase
from experiments.training.method_plots import GRID, plain
from experiments.training.seed_grid import CaseResult
from hardware_profiles import Floats, legible, percent
from simulator.results.figures import (
    FAINT,
    INK,
    captioned,
    legend_below,
    logarithmic_axes,
    multiples,
    noted,
    panels,
    time_unit,
    titled,
)


def curve(result: CaseResult, measure: str, updates: Floats, window: int = 44) -> tuple[Floats, Floats]:
    """Simulated seconds and the mean over seeds of a measure: `loss`, the mini-batches' loss as a running mean over `window`
    of them, or `accuracy`, of the test samples at each evaluation. updates: seconds of the updates."""
    runs = result.runs
    seconds = np.maximum.accumulate(updates)
    if measure == "accuracy":
        at = runs[0].evaluated_updates
        return seconds[at - 1], np.mean([run.evaluated_accuracy for run in runs], axis=0)
    width = min(window, len(seconds))
    losses = np.mean([run.update_loss for run in runs], axis=0)
    smooth = np.convolve(losses, np.full(width, 1.0 / width), mode="valid")
    return seconds[width - 1 :], smooth


GROUPS: dict[str, Callable[[MethodCase], bool]] = {
    "synchronous": lambda case: case.method == "synchronous",
    "asynchronous, T = 1": lambda case: case.method not in ("synchronous", "xpipe") and case.per_minibatch == 1,
    "asynchronous, T > 1": lambda case: case.method not in ("synchronous", "xpipe") and case.per_minibatch > 1,
    "XPipe": lambda case: case.method == "xpipe",
}
"""Small multiples: which methods share a panel."""

DASHES = {1: "-", 2: "--", 4: "-.", 8: ":"}
"""Of a method's curve, by its micro-batches per mini-batch."""

MARKED = 6
"""Marks on a curve."""


def time_figure(curves: Sequence[tuple[CaseResult, Floats]], target: float, clock: str) -> Figure:
    """Train loss and test accuracy over simulated seconds, one line per method, one column per group of methods.

    The first case is drawn thinly in every column, for comparison.
    curves: a case and the seconds of its updates; target: test accuracy that is marked; clock: what the seconds are of
    """
    groups = {name: [pair for pair in curves if belongs(pair[0].case)] for name, belongs in GROUPS.items()}
    groups = {name: pairs for name, pairs in groups.items() if pairs}
    figure, grid = panels(max(6.5, 3.7 * len(groups)), 7.2, 2, len(groups), sharex=True, sharey="row")
    unit, factor = time_unit(max(float(seconds[-1]) for _, seconds in curves))
    lowest = min(float(curve(result, "accuracy", seconds)[1].min()) for result, seconds in curves)
    for (upper, lower), (group, pairs) in zip(grid.T, groups.items(), strict=True):
        handles = []
        for place, (result, seconds) in enumerate(pairs if curves[0] in pairs else [curves[0], *pairs]):
            look = _line(result.case, thin=result is curves[0][0])
            for axes, measure, scale in ((upper, "loss", 1.0), (lower, "accuracy", 100.0)):
                x, y = curve(result, measure, seconds)
                step = max(1, len(x) // MARKED)
                axes.plot(x * factor, y * scale, **look, markevery=(place % step, step))
            name = marked({"label": result.case.label, "stale": result.case.stale})
            handles.append(Line2D([], [], label=legible(name, 40), **look))
        titled(upper, group)
        logarithmic_axes(upper, "y")
        handles.append(lower.axhline(100 * target, color=INK, linewidth=0.8, label=f"target, {percent(target, 'g')}"))
        lower.set_ylim(min(80.0, 5.0 * math.floor(20.0 * lowest)), 100.0)
        lower.set_xlim(left=0)
        for axes in (upper, lower):
            plain(axes)
            axes.grid(axis="y", color=GRID, linewidth=0.8)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1)}
        lower.legend(handles=handles, **below, frameon=False, fontsize=8, handlelength=5.5)
    grid[0][0].set_ylabel("train loss, running mean\nover an epoch of 44 mini-batches", fontsize=9)
    grid[1][0].set_ylabel("test accuracy, %", fontsize=9)
    figure.suptitle(legible(clock, 110), x=0.01, ha="left", fontsize=11, color=INK)
    captioned(figure, f"simulated time, {unit}; {STALE_WORDS}", 9)
    return figure


def _line(case: MethodCase, *, thin: bool) -> dict[str, Any]:
    """The look of a case's curves: its method's colour and mark, its dashes by T."""
    look = look_of(case.label)
    if thin:
        return {"color": look.color, "linewidth": 0.9}
    dashes = DASHES.get(case.per_minibatch, (0, (6, 2)))
    return {"color": look.color, "marker": look.mark, "markersize": 4, "linestyle": dashes, "linewidth": 1.6}


def target_figure(clusters: Mapping[str, Sequence[Mapping[str, Any]]], target: float) -> Figure:
    """Median simulated seconds to the target, a panel per cluster; hollow bars do not fit in memory.

    A method that some seeds do not bring to the target says how many do; one that none does has a cross and a word in place of a
    bar.
    """
    names = list(clusters)
    labels = [row["label"] for row in clusters[names[0]]][::-1]
    shown = {row["label"]: marked(row) for row in clusters[names[0]]}
    wide = 5.0 if len(names) > 1 else 6.5
    figure, found = multiples(len(names), len(names), wide, 1.4 + 0.33 * len(labels), sharey=True)
    for axes, name in zip(found, names, strict=True):
        most = max((row["seconds_to_target"] or 0.0 for row in clusters[name]), default=0.0) or 1.0
        for row in clusters[name]:
            y, seconds = labels.index(row["label"]), row["seconds_to_target"]
            some = row["seeds_at_target"] < row["seeds"]
            note = f" ({row['seeds_at_target']} of {row['seeds']} seeds)" if some else ""
            if seconds is None:
                axes.plot(0, y, "x", color=INK, markersize=5, clip_on=False)
                noted(axes, "never", (0, y), (7, 0), va="center", fontsize=8, color=FAINT)
                continue
            axes.barh(y, seconds, height=0.68, **look_of(row["label"]).bar_of(fits=row["fits"]))
            axes.text(seconds, y, f" {seconds:,.0f}{note}", va="center", fontsize=8, color=INK)
        axes.set_yticks(range(len(labels)), [legible(shown[label], 40) for label in labels])
        titled(axes, legible(name, 40), xlim=(0, most * 1.6), ylim=(-0.6, len(labels) - 0.4))
        axes.set_xlabel(f"median simulated seconds to {percent(target, 'g')} test accuracy", fontsize=9)
        plain(axes)
    if any(row["seconds_to_target"] is not None and not row["fits"] for rows in clusters.values() for row in rows):
        hollow = Patch(facecolor="white", edgecolor=INK, linewidth=1.3)
        legend_below(figure, 1, [hollow], ["does not fit in the device's memory"], note=STALE_WORDS)
    else:
        captioned(figure, STALE_WORDS, 9)
    return figure
