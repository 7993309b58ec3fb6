"""Engine growth plots: CPU seconds and memory of a replay against its ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.terminal.panel_plots import BLUE, unframed
from simulator.results.figures import ALARM, INK, logarithmic

MEMORY = "#c0792a"
_GIB = 2.0**30


def growth_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw CPU seconds of each step, and memory, against the ops of a replay; both axes logarithmic.

    rows: ops, build_seconds, prepare_seconds, replay_seconds, simpy_seconds (or None), peak_bytes, devices, microbatches
    """
    figure = Figure(figsize=(12.0, 4.6), dpi=100, facecolor="white", layout="constrained")
    time_axes, memory_axes = figure.subplots(1, 2, width_ratios=[1.5, 1.0])
    ops = [float(row["ops"]) for row in rows]
    lines = (
        ("simpy_seconds", "SimPy engine", "#b3261e", "s"),
        ("build_seconds", "schedule and program", "#59636e", "^"),
        ("prepare_seconds", "order the tasks (once)", "#e0a458", "v"),
        ("replay_seconds", "recurrence, prepared", BLUE, "o"),
    )
    for key, label, color, marker in lines:
        known = [(x, float(row[key])) for x, row in zip(ops, rows, strict=True) if row[key] is not None]
        if known:
            time_axes.plot(*zip(*known, strict=True), color=color, marker=marker, markersize=4, label=label)
    memory_axes.plot(ops, [float(row["peak_bytes"]) / _GIB for row in rows], color=MEMORY, marker="o", markersize=4)
    memory_axes.axhline(16.0, color=ALARM, linewidth=1.2)
    memory_axes.annotate(
        "16 GiB", (ops[0], 16.0), (0, -4), textcoords="offset points", va="top", color=ALARM, fontsize=9
    )
    last = rows[-1]
    size = f"{last['devices']:,} devices × {last['microbatches']:,} micro-batches"
    memory_axes.annotate(
        f"{size}\n{float(last['peak_bytes']) / _GIB:.1f} GiB",
        (ops[-1], float(last["peak_bytes"]) / _GIB),
        (-30, 4),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8.5,
    )
    for axes, label, title in (
        (time_axes, "CPU seconds", "1F1B with transfers: seconds of one replay"),
        (memory_axes, "peak memory of the process (GiB)", "memory of program and recurrence"),
    ):
        axes.set_xscale("log")
        axes.set_yscale("log")
        logarithmic(axes.xaxis)
        logarithmic(axes.yaxis)
        axes.set_xlabel("ops")
        axes.set_ylabel(label)
        axes.set_title(title, loc="left", fontsize=11, color=INK)
        unframed(axes, "both", 0.6)
    time_axes.legend(frameon=False, fontsize=9)
    return figure
