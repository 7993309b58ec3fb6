"""Engine growth plots: CPU seconds and memory of a replay against its ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.terminal.panel_plots import BLUE, logarithmic_axes, noted, panels, titled, unframed
from simulator.results.figures import ALARM

MEMORY = "#c0792a"
_GIB = 2.0**30

LINES = (
    ("simpy_seconds", "SimPy engine", "#b3261e", "s"),
    ("build_seconds", "schedule and program", "#59636e", "^"),
    ("prepare_seconds", "order the tasks (once)", "#e0a458", "v"),
    ("replay_seconds", "recurrence, prepared", BLUE, "o"),
)
"""Key of a row, what it is called, colour and mark."""


def growth_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw CPU seconds of each step, and memory, against the ops of a replay; both axes logarithmic.

    rows: ops, build_seconds, prepare_seconds, replay_seconds, simpy_seconds (or None), peak_bytes, devices, microbatches
    """
    figure, ((seconds, memory),) = panels(12.0, 4.6, 1, 2, width_ratios=[1.5, 1.0])
    for key, label, color, marker in LINES:
        known = [(row["ops"], row[key]) for row in rows if row[key] is not None]
        if known:
            seconds.plot(*zip(*known, strict=True), color=color, marker=marker, markersize=4, label=label)
    ops, gib = [row["ops"] for row in rows], [row["peak_bytes"] / _GIB for row in rows]
    memory.plot(ops, gib, color=MEMORY, marker="o", markersize=4)
    memory.axhline(16.0, color=ALARM, linewidth=1.2)
    noted(memory, "16 GiB", (ops[0], 16.0), (0, -4), va="top", color=ALARM, fontsize=9)
    size = "{devices:,} devices × {microbatches:,} micro-batches".format_map(rows[-1])
    noted(memory, f"{size}\n{gib[-1]:.1f} GiB", (ops[-1], gib[-1]), (-30, 4), ha="right", va="top", fontsize=8.5)
    titled(seconds, "1F1B with transfers: seconds of one replay", size=11, ylabel="CPU seconds")
    titled(memory, "memory of program and recurrence", size=11, ylabel="peak memory of the process (GiB)")
    for axes in (seconds, memory):
        logarithmic_axes(axes, "both")
        axes.set_xlabel("ops")
        unframed(axes, "both", 0.6)
    seconds.legend(frameon=False, fontsize=9)
    return figure
