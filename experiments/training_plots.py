"""Training plots: throughput and memory of methods, losses and accuracies over seeds, learning over simulated seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from simulator.figures import FAINT, INK, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from experiments.training_grid import CaseResult

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


def _logarithmic(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 of every decade of a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def throughput_figure(
    balanced: Sequence[Mapping[str, Any]], cluster: Sequence[Mapping[str, Any]], problem: str
) -> Figure:
    """XPipe over GPipe by T, beside the formula; samples a second and peak memory of every method on the cluster.

    problem: what runs on the cluster, for the title
    """
    figure = Figure(figsize=(14.0, 6.2), dpi=100, facecolor="white", layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.0, 1.15, 1.0])
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
    for axes, key, scale, title, form in (
        (middle, "samples_per_second", 1.0, f"{problem}\nsamples a second", "{:.1f}"),
        (right, "peak_memory_bytes", 2.0**-30, "\npeak memory, fullest device, GiB (line: capacity)", "{:.1f}"),
    ):
        values = [row[key] * scale for row in rows]
        axes.barh(position, values, color=[color_of(row["label"]) for row in rows], height=0.68)
        for y, value, row in zip(position, values, rows, strict=True):
            text = form.format(value) + ("" if row["fits"] else " does not fit")
            label = axes.text(value, y, f" {text}", va="center", fontsize=8, color=INK)
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85})
        axes.set_yticks(position, [row["label"] for row in rows] if axes is middle else [])
        axes.set_xlim(0, max(values) * 1.25)
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        _plain(axes)
        axes.tick_params(axis="y", length=0)
    right.axvline(rows[0]["capacity_bytes"] * 2.0**-30, color="#b3261e", linewidth=1.2, zorder=1.5)
    return figure


def accuracy_figure(records: Sequence[Mapping[str, Any]], setting: str) -> Figure:
    """Final train loss and test accuracy of every seed and method under one setting; bars are means."""
    rows = list(reversed(records))
    figure = Figure(figsize=(12.0, 1.6 + 0.36 * len(rows)), dpi=100, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for y, row in enumerate(rows):
        color = color_of(row["label"])
        offsets = y + np.linspace(-0.22, 0.22, len(row["train_losses"]))
        for axes, values in ((left, row["train_losses"]), (right, [100 * one for one in row["test_accuracies"]])):
            axes.plot(values, offsets, "o", color=color, markersize=3.5, alpha=0.55, markeredgewidth=0)
            axes.plot([np.mean(values)] * 2, [y - 0.36, y + 0.36], color=color, linewidth=2.5)
    left.set_xscale("log")
    _logarithmic(left.xaxis)
    left.set_yticks(range(len(rows)), [row["label"] for row in rows])
    seeds = len(rows[0]["train_losses"])
    left.set_title(
        f"Final train loss: {setting}\ndots: {seeds} seeds, bars: their means", loc="left", fontsize=10, color=INK
    )
    right.set_title("Final test accuracy, %\n ", loc="left", fontsize=10, color=INK)
    for axes in (left, right):
        _plain(axes)
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
    figure = Figure(figsize=(4.6 * columns + 1.2, height), dpi=100, facecolor="white", layout="constrained")
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
                axes.text(low + 0.5, y, f"{mean:.1f}", va="center", fontsize=8, color=INK)
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
    figure.supxlabel(
        "test accuracy minus synchronous, points (95 % interval over seeds; shaded: within a point)", fontsize=10
    )
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


def time_figure(curves: Sequence[tuple[CaseResult, NDArray[np.float64]]], target: float, clock: str) -> Figure:
    """Train loss and test accuracy over simulated seconds, one line a method.

    curves: a case and the seconds of its updates; target: test accuracy that is marked; clock: what the seconds are of
    """
    figure = Figure(figsize=(14.0, 6.6), dpi=100, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    unit, factor = time_unit(max(float(seconds[-1]) for _, seconds in curves))
    styles = {1: ":", 2: "-.", 4: "-", 8: "--"}
    for result, seconds in curves:
        label = result.case.label
        parallel = label.startswith("data parallel")
        style = "-" if parallel else styles.get(result.case.per_minibatch, "-")
        bold = label.startswith("XPipe")
        for axes, measure, scale in ((left, "loss", 1.0), (right, "accuracy", 100.0)):
            x, y = curve(result, measure, seconds)
            axes.plot(
                x * factor,
                y * scale,
                style,
                color=color_of(label),
                linewidth=2.4 if bold else 1.5,
                label=label if axes is left else None,
                zorder=3 if bold else 2,
            )
    left.set_yscale("log")
    _logarithmic(left.yaxis)
    left.set_title("Train loss (running mean over an epoch of 44 mini-batches)", loc="left", fontsize=10, color=INK)
    right.set_title(f"Test accuracy, % (line: the target of {100 * target:g} %)", loc="left", fontsize=10, color=INK)
    right.axhline(100 * target, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    right.set_ylim(80, 98)
    for axes in (left, right):
        axes.set_xlabel(f"simulated time, {unit}: {clock}", fontsize=9)
        axes.set_xlim(left=0)
        _plain(axes)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9, handlelength=2.8)
    return figure


def target_figure(clusters: Mapping[str, Sequence[Mapping[str, Any]]], target: float) -> Figure:
    """Median simulated seconds to the target, a panel a cluster; hollow bars do not fit in memory.

    A method that some seeds do not bring to the target says how many do.
    """
    names = list(clusters)
    labels = [row["label"] for row in clusters[names[0]]][::-1]
    figure = Figure(
        figsize=(4.7 * len(names) + 1.0, 1.4 + 0.33 * len(labels)), dpi=100, facecolor="white", layout="constrained"
    )
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=True):
        most = max((row["seconds_to_target"] or 0.0 for row in clusters[name]), default=0.0) or 1.0
        for row in clusters[name]:
            y, color, seconds = labels.index(row["label"]), color_of(row["label"]), row["seconds_to_target"]
            some = row["seeds_at_target"] < row["seeds"]
            note = f" {row['seeds_at_target']} of {row['seeds']} seeds" if some else ""
            if seconds is None:
                axes.text(0, y, " never", va="center", fontsize=8, color=FAINT)
                continue
            axes.barh(y, seconds, height=0.68, color=color if row["fits"] else "white", edgecolor=color, linewidth=1.3)
            axes.text(seconds, y, f" {seconds:,.0f}{note}", va="center", fontsize=8, color=INK)
        axes.set_xlim(0, most * 1.35)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_title(name, loc="left", fontsize=10, color=INK)
        _plain(axes)
    figure.supxlabel(
        f"median simulated seconds to {100 * target:g} % test accuracy (hollow: does not fit in the device's memory)",
        fontsize=10,
    )
    return figure
