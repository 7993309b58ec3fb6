"""Growth plots: CPU seconds of replays and of searches, against their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hardware_profiles import GIB
from simulator.results.figures import (
    ALARM,
    BLUE,
    FAINT,
    ORANGE,
    legend_below,
    logarithmic_axes,
    noted,
    panels,
    titled,
    unframed,
)

MEMORY = "#c0792a"
LINES = (
    ("simpy_seconds", "SimPy engine", ALARM, "s"),
    ("build_seconds", "schedule and program", FAINT, "^"),
    ("prepare_seconds", "order the tasks (once)", ORANGE, "v"),
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
    """Draw CPU seconds of PipeDream's partitioner over states, over workers and per level, one panel each, on one axis."""
    figure, (panes,) = panels(12, 4.4, 1, 3, sharey=True)
    by_states, by_workers, by_levels = panes
    shapes = list(dict.fromkeys(row["shape"] for row in rows if row["study"] == "levels"))
    for variant, color in VARIANTS.items():

        def chosen(study: str, key: str, variant: str = variant) -> list[Any]:
            return [row[key] for row in rows if (row["study"], row["variant"]) == (study, variant)]

        for axes, axis, study in (
            (by_states, "states", "states, flat"),
            (by_states, "states", "states, two levels"),
            (by_states, "states", "graph"),
            (by_workers, "workers", "workers, flat"),
            (by_levels, "shape", "levels"),
        ):
            style, size = STYLES[study][1:]
            places = [shapes.index(one) if axis == "shape" else one for one in chosen(study, axis)]
            axes.plot(places, chosen(study, "search_cpu_seconds"), style, color=color, markersize=size)
    by_states.set(xlabel="antichain states, on 16 workers", title="states")
    by_workers.set(xlabel="workers, one level, 100 states", title="workers")
    by_levels.set(xlabel="64 workers in levels, a chain of 240 states", title="levels")
    by_levels.set_xticks(range(len(shapes)), shapes)
    by_levels.margins(x=0.15)
    logarithmic_axes(by_states, "both")
    logarithmic_axes(by_workers, "x")
    by_states.set_ylabel("CPU seconds of one search")
    for axes in panes:
        axes.grid(True, which="major", alpha=0.3)
        axes.set_axisbelow(True)
    handles = [Line2D([], [], color=color, linewidth=3, label=f"rule of the {one}") for one, color in VARIANTS.items()]
    seen = {words: (style, size) for words, style, size in STYLES.values()}
    handles += [Line2D([], [], color=FAINT, label=words, **_stroke(*look)) for words, look in seen.items()]
    legend_below(figure, len(handles), handles, [str(one.get_label()) for one in handles], size=8)
    return figure


def _stroke(style: str, size: float) -> dict[str, Any]:
    """What `Axes.plot` makes of a style such as `--s`."""
    return {"linestyle": style[:-1], "marker": style[-1], "markersize": size}


VARIANTS = {"paper": BLUE, "script": ORANGE}

STYLES = {
    "states, flat": ("one level", "-o", 4),
    "states, two levels": ("4 × 4 workers", "--s", 4),
    "graph": ("Inception-like, 8 workers", "^", 7),
    "workers, flat": ("one level", "-o", 4),
    "levels": ("levels as named", ":D", 5),
}
"""What a study is called, its line and mark, and the size of the mark."""
