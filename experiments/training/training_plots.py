"""Training plots: throughput and memory of methods, losses and accuracies over seeds, learning over simulated seconds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from hardware_profiles import legible
from simulator.results.figures import ALARM, FAINT, INK, logarithmic, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from experiments.training.seed_grid import CaseResult, MethodCase

GRID = "#e3e6ea"
FAMILY_COLORS = {
    "synchronous": "#30363d",
    "data parallel": "#8c6d31",
    "GPipe": "#7b848e",
    "1F1B": "#30363d",
    "PipeDream": "#d1495b",
    "2BW": "#edae49",
    "SpecTrain": "#8e5ea2",
    "PipeOptim": "#00798c",
    "PipeMare": "#c77d9b",
    "naive": "#a04000",
    "XPipe": "#1b6ca8",
}
"""Colour of a method by the start of its label."""


def color_of(label: str) -> str:
    """Colour of a method; grey for one that is not listed."""
    return next((color for name, color in FAMILY_COLORS.items() if label.startswith(name)), FAINT)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def throughput_figure(
    balanced: Sequence[Mapping[str, Any]], cluster: Sequence[Mapping[str, Any]], problem: str
) -> Figure:
    """XPipe over GPipe by T, beside the formula; samples a second and peak memory of every method on the cluster.

    problem: what runs on the cluster, for the title
    """
    figure = Figure(figsize=(14.0, 6.2), dpi=100, facecolor="white", layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.0, 1.15, 1.0])
    figure.suptitle(legible(problem, 110), x=0.01, ha="left", fontsize=11, color=INK)
    for n, color in zip(sorted({row["stages"] for row in balanced}), ("#9cc4e4", "#4f94c4", "#1b4f7a"), strict=False):
        own = [row for row in balanced if row["stages"] == n]
        t = [row["microbatches_per_minibatch"] for row in own]
        smooth = np.linspace(min(t), max(t), 200)
        left.plot(smooth, (smooth + n - 1) / smooth, color=color, linewidth=1.5)
        left.plot(t, [row["speedup"] for row in own], "o", color=color, markersize=6, label=f"N = {n}")
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.set_xlabel("micro-batches a mini-batch, T")
    left.set_title(
        "XPipe over GPipe, equal stages\ndots: replayed, lines: (T+N-1)/T", loc="left", fontsize=10, color=INK
    )
    left.set_ylabel("times GPipe's samples a second")
    left.legend(frameon=False, title="stages")
    _plain(left)
    left.grid(axis="y", color=GRID, linewidth=0.8)
    rows = list(reversed(cluster))
    position = np.arange(len(rows))
    capacity = rows[0]["capacity_bytes"] * 2.0**-30
    for axes, key, scale, title in (
        (middle, "samples_per_second", 1.0, "samples a second"),
        (right, "peak_memory_bytes", 2.0**-30, "peak memory of the fullest device, GiB"),
    ):
        values = [row[key] * scale for row in rows]
        axes.barh(position, values, color=[color_of(row["label"]) for row in rows], height=0.68)
        for y, value, row in zip(position, values, rows, strict=True):
            # Beside the panel: no bar and no line can run through it.
            axes.annotate(
                f"{value:.1f}" + ("" if row["fits"] else " does not fit"),
                (1.0, y),
                (4, 0),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=INK if row["fits"] else ALARM,
                annotation_clip=False,
            )
        axes.set_yticks(position, [legible(row["label"], 40) for row in rows] if axes is middle else [])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlim(0, max(*values, capacity if axes is right else 0.0) * 1.04)
        axes.set_xlabel(title)
        _plain(axes)
        axes.tick_params(axis="y", length=0)
    right.axvline(capacity, color=ALARM, linewidth=1.2, zorder=3)
    right.set_title(f"line: capacity, {capacity:g} GiB", loc="left", fontsize=10, color=ALARM)
    return figure


def accuracy_figure(records: Sequence[Mapping[str, Any]], setting: str) -> Figure:
    """Final train loss and test accuracy of every seed and method under one setting; bars are means. A run whose loss is not
    finite has no dot."""
    rows = list(reversed(records))
    figure = Figure(figsize=(12.0, 1.6 + 0.36 * len(rows)), dpi=100, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for y, row in enumerate(rows):
        color = color_of(row["label"])
        offsets = y + np.linspace(-0.22, 0.22, len(row["train_losses"]))
        for axes, values in ((left, row["train_losses"]), (right, [100 * one for one in row["test_accuracies"]])):
            axes.plot(values, offsets, "o", color=color, markersize=3.5, alpha=0.55, markeredgewidth=0)
            axes.plot([np.mean(values)] * 2, [y - 0.36, y + 0.36], color=color, linewidth=2.5, solid_capstyle="butt")
    left.set_xscale("log")
    logarithmic(left.xaxis)
    left.set_yticks(range(len(rows)), [legible(row["label"], 40) for row in rows])
    seeds = len(rows[0]["train_losses"])
    left.set_title(f"{setting}; dots: {seeds} seeds, bars: their means", loc="left", fontsize=10, color=INK)
    left.set_xlabel("final train loss (cross-entropy, nats)")
    right.set_xlabel("final test accuracy, %")
    for axes in (left, right):
        _plain(axes)
        axes.set_ylim(-0.6, len(rows) - 0.4)
    right.tick_params(axis="y", length=0)
    return figure


def difference_figure(records: Sequence[Mapping[str, Any]], low: float = -8.0, high: float = 2.5) -> Figure:
    """Test accuracy minus synchronous with its 95 % interval, a panel a setting; what lies left of `low` is written.

    Methods that were trained under some of the settings only are left out.
    """
    settings = list(dict.fromkeys((row["optimizer"], row["learning_rate"]) for row in records))
    tested = [row["label"] for row in records if "test_accuracy_difference" in row]
    labels = [label for label in dict.fromkeys(tested) if tested.count(label) == len(settings)][::-1]
    columns = min(3, len(settings))
    lines = -(-len(settings) // columns)
    height = lines * (1.1 + 0.26 * len(labels)) + 0.3
    wide = max(6.5, 4.6 * columns + 1.2)
    figure = Figure(figsize=(wide, height), dpi=100, facecolor="white", layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
    for axes, (optimizer, rate) in zip(panels, settings, strict=False):
        axes.axvspan(-1, 1, color="#eef2f6", zorder=0)
        axes.axvline(0, color=FAINT, linewidth=1)
        for row in records:
            if (row["optimizer"], row["learning_rate"]) != (optimizer, rate) or row["label"] not in labels:
                continue
            if "test_accuracy_difference" not in row:
                continue
            y, color = labels.index(row["label"]), color_of(row["label"])
            mean, begin, end = (100 * row[f"test_accuracy_difference{part}"] for part in ("", "_low", "_high"))
            if mean < low:
                axes.plot(low + 0.15, y, "<", color=color, markersize=6)
                axes.text(low + 0.5, y, f"{mean:.1f}", va="center_baseline", fontsize=8, color=INK)
                continue
            axes.plot([max(begin, low), min(end, high)], [y, y], color=color, linewidth=1.6)
            axes.plot(mean, y, "o", color=color, markersize=5)
        axes.set_xlim(low, high)
        axes.set_ylim(-0.6, len(labels) - 0.4)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_title(f"{optimizer}, learning rate {rate:g}", loc="left", fontsize=10, color=INK)
        _plain(axes)
    for axes in panels[len(settings) :]:
        axes.set_visible(False)
    words = "test accuracy minus synchronous, percentage points (95 % interval over seeds; shaded: within a point)"
    figure.supxlabel("\n".join(textwrap.wrap(words, int(11 * wide))), fontsize=10)
    return figure


def curve(
    result: CaseResult, measure: str, updates: NDArray[np.float64] | None = None, window: int = 44
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Simulated seconds and the mean over seeds of a measure: `loss`, the mini-batches' loss as a running mean over `window`
    of them, or `accuracy`, of the test samples at each evaluation. updates: seconds of the updates, default the runs' own."""
    runs = result.runs
    seconds = np.maximum.accumulate(runs[0].update_seconds if updates is None else updates)
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
    """Train loss and test accuracy over simulated seconds, one line a method, a column a group of methods.

    The first case is drawn faintly in every column, for comparison.
    curves: a case and the seconds of its updates; target: test accuracy that is marked; clock: what the seconds are of
    """
    groups = {name: [pair for pair in curves if belongs(pair[0].case)] for name, belongs in GROUPS.items()}
    groups = {name: pairs for name, pairs in groups.items() if pairs}
    figure = Figure(figsize=(max(6.5, 3.7 * len(groups)), 7.2), dpi=100, facecolor="white", layout="constrained")
    grid = figure.subplots(2, len(groups), sharex=True, sharey="row", squeeze=False)
    unit, factor = time_unit(max(float(seconds[-1]) for _, seconds in curves))
    lowest = min(curve(result, "accuracy", seconds)[1][-1] for result, seconds in curves)
    for (upper, lower), (name, pairs) in zip(grid.T, groups.items(), strict=True):
        drawn = [*pairs] if curves[0] in pairs else [curves[0], *pairs]
        styles = iter(LINES)
        for result, seconds in drawn:
            reference = result is curves[0][0]
            color, dashes = (FAINT, "-") if reference else next(styles)
            for axes, measure, scale in ((upper, "loss", 1.0), (lower, "accuracy", 100.0)):
                x, y = curve(result, measure, seconds)
                axes.plot(x * factor, y * scale, color=color, linestyle=dashes, linewidth=0.9 if reference else 1.6)
        handles = _curve_handles(drawn, curves[0][0])
        upper.set_title(name, loc="left", fontsize=10, color=INK)
        upper.set_yscale("log")
        logarithmic(upper.yaxis)
        lower.axhline(100 * target, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        lower.set_ylim(min(80.0, 5.0 * math.floor(20.0 * lowest)), 100.0)
        lower.set_xlim(left=0)
        for axes in (upper, lower):
            _plain(axes)
            axes.grid(axis="y", color=GRID, linewidth=0.8)
        lower.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False, fontsize=8, handlelength=3.0
        )
    grid[0][0].set_ylabel("train loss, running mean\nover an epoch of 44 mini-batches", fontsize=9)
    grid[1][0].set_ylabel(f"test accuracy, %\n(dashed: the target of {100 * target:g} %)", fontsize=9)
    figure.supxlabel(f"simulated time, {unit}: {legible(clock, 90)}", fontsize=9)
    return figure


def _curve_handles(drawn: Sequence[tuple[CaseResult, NDArray[np.float64]]], reference: CaseResult) -> list[Line2D]:
    styles = iter(LINES)
    handles = []
    for result, _ in drawn:
        color, dashes = (FAINT, "-") if result is reference else next(styles)
        width = 0.9 if result is reference else 1.6
        label = legible(result.case.label, 40)
        handles.append(Line2D([], [], color=color, linestyle=dashes, linewidth=width, label=label))  # type: ignore[arg-type]
    return handles


def target_figure(clusters: Mapping[str, Sequence[Mapping[str, Any]]], target: float) -> Figure:
    """Median simulated seconds to the target, a panel a cluster; hollow bars do not fit in memory.

    A method that some seeds do not bring to the target says how many do.
    """
    names = list(clusters)
    labels = [row["label"] for row in clusters[names[0]]][::-1]
    wide = max(6.5, 4.7 * len(names) + 1.0)
    figure = Figure(figsize=(wide, 1.4 + 0.33 * len(labels)), dpi=100, facecolor="white", layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=True):
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
        axes.set_xlim(0, most * 1.6)
        axes.set_ylim(-0.6, len(labels) - 0.4)
        axes.set_yticks(range(len(labels)), [legible(label, 40) for label in labels])
        axes.set_title(legible(name, 40), loc="left", fontsize=10, color=INK)
        _plain(axes)
    words = (
        f"median simulated seconds to {100 * target:g} % test accuracy (hollow: does not fit in the device's memory)"
    )
    figure.supxlabel("\n".join(textwrap.wrap(words, int(11 * wide))), fontsize=10)
    return figure
