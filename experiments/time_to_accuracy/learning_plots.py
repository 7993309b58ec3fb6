"""Learning plots: loss and accuracy over simulated seconds, and the seconds to a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from experiments.terminal.report_tables import STALE_WORDS, marked
from experiments.training.clocks import MethodCase
from experiments.training.method_plots import GRID, color_of, plain
from experiments.training.seed_grid import CaseResult
from hardware_profiles import legible
from simulator.results.figures import FAINT, INK, captioned, logarithmic_axes, multiples, panels, time_unit, titled


def curve(
    result: CaseResult, measure: str, updates: NDArray[np.float64], window: int = 44
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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

LINES = (
    ("#1f2328", "-"),
    ("#1b6ca8", "--"),
    ("#d9822b", "-"),
    ("#4f8a3c", ":"),
    ("#7f63c9", "-."),
    ("#c2448a", (0, (6, 2))),
)
"""Colour and dashes of the curves of a panel, by their order."""


def time_figure(curves: Sequence[tuple[CaseResult, NDArray[np.float64]]], target: float, clock: str) -> Figure:
    """Train loss and test accuracy over simulated seconds, one line per method, one column per group of methods.

    The first case is drawn faintly in every column, for comparison.
    curves: a case and the seconds of its updates; target: test accuracy that is marked; clock: what the seconds are of
    """
    groups = {name: [pair for pair in curves if belongs(pair[0].case)] for name, belongs in GROUPS.items()}
    groups = {name: pairs for name, pairs in groups.items() if pairs}
    figure, grid = panels(max(6.5, 3.7 * len(groups)), 7.2, 2, len(groups), sharex=True, sharey="row")
    unit, factor = time_unit(max(float(seconds[-1]) for _, seconds in curves))
    lowest = min(curve(result, "accuracy", seconds)[1][-1] for result, seconds in curves)
    for (upper, lower), (group, pairs) in zip(grid.T, groups.items(), strict=True):
        styles = iter(LINES)
        handles = []
        for result, seconds in pairs if curves[0] in pairs else [curves[0], *pairs]:
            reference = result is curves[0][0]
            color, dashes = (FAINT, "-") if reference else next(styles)
            look: dict[str, Any] = {"color": color, "linestyle": dashes, "linewidth": 0.9 if reference else 1.6}
            for axes, measure, scale in ((upper, "loss", 1.0), (lower, "accuracy", 100.0)):
                x, y = curve(result, measure, seconds)
                axes.plot(x * factor, y * scale, **look)
            name = marked({"label": result.case.label, "stale": result.case.stale})
            handles.append(Line2D([], [], label=legible(name, 40), **look))
        titled(upper, group)
        logarithmic_axes(upper, "y")
        lower.axhline(100 * target, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        lower.set_ylim(min(80.0, 5.0 * math.floor(20.0 * lowest)), 100.0)
        lower.set_xlim(left=0)
        for axes in (upper, lower):
            plain(axes)
            axes.grid(axis="y", color=GRID, linewidth=0.8)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1)}
        lower.legend(handles=handles, **below, frameon=False, fontsize=8, handlelength=3.0)
    grid[0][0].set_ylabel("train loss, running mean\nover an epoch of 44 mini-batches", fontsize=9)
    grid[1][0].set_ylabel(f"test accuracy, %\n(dashed: the target of {100 * target:g} %)", fontsize=9)
    figure.supxlabel(f"simulated time, {unit}: {legible(clock, 90)}; {STALE_WORDS}", fontsize=9)
    return figure


def target_figure(clusters: Mapping[str, Sequence[Mapping[str, Any]]], target: float) -> Figure:
    """Median simulated seconds to the target, a panel per cluster; hollow bars do not fit in memory.

    A method that some seeds do not bring to the target says how many do.
    """
    names = list(clusters)
    labels = [row["label"] for row in clusters[names[0]]][::-1]
    shown = {row["label"]: marked(row) for row in clusters[names[0]]}
    wide = 5.0 if len(names) > 1 else 6.5
    figure, found = multiples(len(names), len(names), wide, 1.4 + 0.33 * len(labels), sharey=True)
    for axes, name in zip(found, names, strict=True):
        most = max((row["seconds_to_target"] or 0.0 for row in clusters[name]), default=0.0) or 1.0
        for row in clusters[name]:
            y, color, seconds = labels.index(row["label"]), color_of(row["label"]), row["seconds_to_target"]
            some = row["seeds_at_target"] < row["seeds"]
            note = f" ({row['seeds_at_target']} of {row['seeds']} seeds)" if some else ""
            if seconds is None:
                axes.text(0, y, " never", va="center", fontsize=8, color=FAINT)
                continue
            axes.barh(y, seconds, height=0.68, color=color if row["fits"] else "white", edgecolor=color, linewidth=1.3)
            axes.text(seconds, y, f" {seconds:,.0f}{note}", va="center", fontsize=8, color=INK)
        axes.set_yticks(range(len(labels)), [legible(shown[label], 40) for label in labels])
        titled(axes, legible(name, 40), xlim=(0, most * 1.6), ylim=(-0.6, len(labels) - 0.4))
        plain(axes)
    hollow = "hollow: does not fit in the device's memory"
    captioned(figure, f"median simulated seconds to {100 * target:g} % test accuracy ({hollow}); {STALE_WORDS}")
    return figure
