"""XPipe plots: throughput and memory of methods, losses and accuracies over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from experiments.compare.method_looks import look_of
from experiments.terminal.report_tables import STALE_WORDS, Row, marked
from experiments.training.method_plots import GRID, plain
from hardware_profiles import legible
from simulator.results.figures import (
    ALARM,
    FAINT,
    INK,
    LINEAR_WORDS,
    beside,
    captioned,
    legend_below,
    linear_part,
    logarithmic_axes,
    multiples,
    panels,
    titled,
)

LINEAR = 1.0
"""Percentage points up to which differences are drawn in proportion."""


def throughput_figure(balanced: Sequence[Row], cluster: Sequence[Row], problem: str) -> Figure:
    """XPipe over GPipe by T, beside the formula; samples per second and peak memory of every method on the cluster.

    problem: what runs on the cluster, for the title
    """
    figure, ((left, middle, right),) = panels(14.0, 6.2, 1, 3, width_ratios=[1.0, 1.15, 1.0])
    figure.suptitle(legible(problem, 110), x=0.01, ha="left", fontsize=11, color=INK)
    captioned(figure, STALE_WORDS, 9)
    for n, color in zip(sorted({row["stages"] for row in balanced}), ("#9cc4e4", "#4f94c4", "#1b4f7a"), strict=False):
        own = [row for row in balanced if row["stages"] == n]
        t = [row["microbatches_per_minibatch"] for row in own]
        smooth = np.linspace(min(t), max(t), 200)
        left.plot(smooth, (smooth + n - 1) / smooth, color=color, linewidth=1.5)
        left.plot(t, [row["speedup"] for row in own], "o", color=color, markersize=6, label=f"{n} stages, replayed")
    left.plot([], [], color=FAINT, linewidth=1.5, label="(T + stages - 1) / T")
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    titled(
        left,
        "XPipe over GPipe, equal stages",
        xlabel="micro-batches per mini-batch, T",
        ylabel="times GPipe's samples per second",
    )
    left.legend(frameon=False, fontsize=9)
    plain(left)
    left.grid(axis="y", color=GRID, linewidth=0.8)
    rows = list(reversed(cluster))
    position = range(len(rows))
    capacity = rows[0]["capacity_bytes"] * 2.0**-30
    for axes, key, scale, title, least in (
        (middle, "samples_per_second", 1.0, "samples per second", 0.0),
        (right, "peak_memory_bytes", 2.0**-30, "peak memory of the fullest device, GiB", capacity),
    ):
        values = [row[key] * scale for row in rows]
        for y, value, row in zip(position, values, rows, strict=True):
            axes.barh(y, value, height=0.68, **look_of(row["label"]).bar_of(fits=row["fits"]))
            note = f"{value:.1f}" + ("" if row["fits"] else " does not fit")
            beside(axes, y, note, 4, color=INK if row["fits"] else ALARM, size=8)
        axes.set_yticks(position, [legible(marked(row), 40) for row in rows] if axes is middle else [])
        axes.set(xlabel=title, xlim=(0, max(*values, least) * 1.04), ylim=(-0.6, len(rows) - 0.4))
        plain(axes)
        axes.tick_params(axis="y", length=0)
    right.axvline(capacity, color=ALARM, linewidth=1.2)
    titled(right, f"line: capacity, {capacity:g} GiB", color=ALARM)
    return figure


def accuracy_figure(records: Sequence[Row], setting: str) -> Figure:
    """Final train loss and test accuracy of every seed and method under one setting, and their means. A run whose loss is not
    finite has no dot."""
    rows = list(reversed(records))
    figure, ((left, right),) = panels(12.0, 1.6 + 0.36 * len(rows), 1, 2, sharey=True)
    for y, row in enumerate(rows):
        color = look_of(row["label"]).color
        offsets = y + np.linspace(-0.22, 0.22, len(row["train_losses"]))
        for axes, values in ((left, row["train_losses"]), (right, [100 * one for one in row["test_accuracies"]])):
            axes.plot(values, offsets, "o", color=color, markersize=3.5, alpha=0.55, markeredgewidth=0)
            axes.plot([np.mean(values)] * 2, [y - 0.36, y + 0.36], color=color, linewidth=2.5, solid_capstyle="butt")
    logarithmic_axes(left, "x")
    left.set_yticks(range(len(rows)), [legible(marked(row), 40) for row in rows])
    seeds = len(rows[0]["train_losses"])
    titled(left, setting, xlabel="final train loss (cross-entropy, nats)")
    right.set_xlabel("final test accuracy, %")
    dot = Line2D([], [], marker="o", linestyle="none", color=FAINT, markersize=3.5, label=f"one of {seeds} seeds")
    mean = Line2D(
        [], [], marker="|", linestyle="none", color=FAINT, markersize=11, markeredgewidth=2.5, label="their mean"
    )
    legend_below(figure, 2, [dot, mean], [dot.get_label(), mean.get_label()], note=STALE_WORDS)
    for axes in (left, right):
        plain(axes)
        axes.set_ylim(-0.6, len(rows) - 0.4)
    right.tick_params(axis="y", length=0)
    return figure


def difference_figure(records: Sequence[Row]) -> Figure:
    """Test accuracy minus synchronous with its 95 % interval, a panel per setting, all on one axis that holds every interval.

    Methods that were trained under some of the settings only are left out.
    """
    settings = list(dict.fromkeys((row["optimizer"], row["learning_rate"]) for row in records))
    tested = [row for row in records if "test_accuracy_difference" in row]
    named, shown = [row["label"] for row in tested], {row["label"]: marked(row) for row in tested}
    labels = [label for label in dict.fromkeys(named) if named.count(label) == len(settings)][::-1]
    drawn = [row for row in tested if row["label"] in labels]
    wide, tall = 5.0 if len(settings) > 1 else 6.5, 1.2 + 0.26 * len(labels)
    figure, found = multiples(len(settings), 3, wide, tall, sharex=True, sharey=True)
    for axes, setting in zip(found, settings, strict=True):
        linear = linear_part(axes, LINEAR)
        axes.axvline(0, color=FAINT, linewidth=1)
        for row in drawn:
            if (row["optimizer"], row["learning_rate"]) == setting:
                y, color = labels.index(row["label"]), look_of(row["label"]).color
                mean, low, high = (100 * row[f"test_accuracy_difference{part}"] for part in ("", "_low", "_high"))
                axes.plot([low, high], [y, y], color=color, linewidth=1.6)
                axes.plot(mean, y, "o", color=color, markersize=5)
        axes.set_yticks(range(len(labels)), [shown[label] for label in labels])
        axes.tick_params(labelbottom=True)
        optimizer, rate = setting
        titled(axes, f"{optimizer}, learning rate {rate:g}", ylim=(-0.6, len(labels) - 0.4))
        plain(axes)
        axes.set_xlabel("test accuracy minus synchronous, percentage points", fontsize=9)
    interval = Line2D([], [], color=FAINT, marker="o", markersize=5, linewidth=1.6)
    _points_axis(found[0], [100 * row[f"test_accuracy_difference_{end}"] for row in drawn for end in ("low", "high")])
    entries = [interval, linear], ["mean and 95 % interval over seeds", LINEAR_WORDS]
    legend_below(figure, 2, *entries, note=STALE_WORDS)
    return figure


def _points_axis(axes: Axes, ends: Sequence[float]) -> None:
    """An axis of percentage points from the least to the largest of `ends`: linear within LINEAR, logarithmic beyond."""
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.6)
    left, right = min([-LINEAR, *ends]), max([LINEAR, *ends])
    sizes = [digit * 10**power for power in (0, 1) for digit in (1, 2, 5)]
    ticks = [tick for tick in (*(-size for size in reversed(sizes)), 0, *sizes, 100) if left <= tick <= right]
    axes.set_xticks(ticks)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(1.15 * left, 1.15 * right)
