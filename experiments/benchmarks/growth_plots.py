"""Growth plots: CPU seconds of replays and of searches, against their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from hardware_profiles import GIB
from simulator.results.figures import (
    ALARM,
    BLUE,
    grouped_bars,
    legend_below,
    logarithmic_axes,
    noted,
    panels,
    titled,
    unframed,
)

MEMORY = "#c0792a"
LINES = (
    ("simpy_seconds", "SimPy engine", "#b3261e", "s"),
    ("build_seconds", "schedule and program", "#59636e", "^"),
    ("prepare_seconds", "order the tasks (once)", "#e0a458", "v"),
    ("replay_seconds", "recurrence, prepared", BLUE, "o"),
)
"""Key of a row, what it is called, colour and mark."""


def engine_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw CPU seconds of each step, and memory, against the ops of a replay; both axes logarithmic.

    rows: ops, build_seconds, prepare_seconds, replay_seconds, simpy_seconds (or None), peak_bytes, devices, microbatches
    """
    figure, ((seconds, memory),) = panels(12.0, 4.6, 1, 2, width_ratios=[1.5, 1.0])
    for key, label, color, marker in LINES:
        known = [(row["ops"], row[key]) for row in rows if row[key] is not None]
        if known:
            seconds.plot(*zip(*known, strict=True), color=color, marker=marker, markersize=4, label=label)
    ops, gib = [row["ops"] for row in rows], [row["peak_bytes"] / GIB for row in rows]
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


def partitioner_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw CPU seconds of PipeDream's partitioner over states, over workers and per level, one panel each."""
    figure, ((by_states, by_workers, by_levels),) = panels(12, 4.4, 1, 3)
    colours, heights = {"paper": "#0072b2", "script": "#d55e00"}, {}
    for variant, colour in colours.items():

        def chosen(study: str, key: str, variant: str = variant) -> list[Any]:
            return [row[key] for row in rows if (row["study"], row["variant"]) == (study, variant)]

        for axes, axis, study, style, label, size in (
            (by_states, "states", "states, flat", "-o", f"{variant}, 16 workers", 4),
            (by_states, "states", "states, two levels", "--s", f"{variant}, 4 × 4 workers", 4),
            (by_states, "states", "graph", "^", f"{variant}, Inception-like, 8", 7),
            (by_workers, "workers", "workers, flat", "-o", variant, 4),
        ):
            seconds = chosen(study, "search_cpu_seconds")
            axes.plot(chosen(study, axis), seconds, style, color=colour, label=label, markersize=size)
        heights[variant], shapes = chosen("levels", "search_cpu_seconds"), chosen("levels", "shape")
    grouped_bars(by_levels, heights, colours)
    by_levels.set_xticks(range(len(shapes)), shapes)
    by_states.set(xlabel="antichain states", title="states")
    by_workers.set(xlabel="workers, one level, 100 states", title="workers")
    by_levels.tick_params(axis="x", labelsize=8)
    by_levels.set(xlabel="64 workers in levels, a chain of 240 states", title="levels")
    for axes in (by_states, by_workers):
        logarithmic_axes(axes, "both")
    for axes in (by_states, by_workers, by_levels):
        axes.set_ylabel("CPU seconds of one search")
        axes.grid(True, which="major", alpha=0.3)
        axes.set_axisbelow(True)
    legend_below(figure, 3, *by_states.get_legend_handles_labels(), size=8)
    by_workers.legend(fontsize=8, frameon=False)
    return figure
