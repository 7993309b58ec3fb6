"""Growth plots of PipeDream's partitioner: CPU seconds against states, workers and levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from simulator.results.figures import logarithmic


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds over states, over workers and per level, one panel each."""
    figure = Figure(figsize=(12, 4.4), dpi=100, layout="constrained")
    by_states, by_workers, by_levels = figure.subplots(1, 3)
    colours = {"paper": "#0072b2", "script": "#d55e00"}
    for variant, colour in colours.items():
        for study, style in (("states, flat", "-o"), ("states, two levels", "--s")):
            chosen = [row for row in rows if (row["study"], row["variant"]) == (study, variant)]
            label = f"{variant}, {'16 workers' if 'flat' in study else '4 × 4 workers'}"
            by_states.loglog(*_points(chosen, "states"), style, color=colour, label=label, markersize=4)
        chosen = [row for row in rows if (row["study"], row["variant"]) == ("graph", variant)]
        by_states.loglog(
            *_points(chosen, "states"), "^", color=colour, label=f"{variant}, Inception-like, 8", markersize=7
        )
        chosen = [row for row in rows if (row["study"], row["variant"]) == ("workers, flat", variant)]
        by_workers.loglog(*_points(chosen, "workers"), "-o", color=colour, label=variant, markersize=4)
        chosen = [row for row in rows if (row["study"], row["variant"]) == ("levels", variant)]
        offset = -0.2 if variant == "paper" else 0.2
        places = [position + offset for position in range(len(chosen))]
        by_levels.bar(places, [row["search_cpu_seconds"] for row in chosen], width=0.4, color=colour, label=variant)
        by_levels.set_xticks(range(len(chosen)), [row["shape"] for row in chosen])
    by_states.set(xlabel="antichain states", title="states")
    by_workers.set(xlabel="workers, one level, 100 states", title="workers")
    by_levels.tick_params(axis="x", labelsize=8)
    by_levels.set(xlabel="64 workers in levels, a chain of 240 states", title="levels")
    for axes in (by_states, by_workers, by_levels):
        axes.set_ylabel("CPU seconds of one search")
        axes.grid(True, which="major", alpha=0.3)
        axes.set_axisbelow(True)
    for axes in (by_states, by_workers):
        logarithmic(axes.xaxis)
        logarithmic(axes.yaxis)
    handles, labels = by_states.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    by_workers.legend(fontsize=8, frameon=False)
    return figure


def _points(rows: Sequence[Mapping[str, Any]], axis: str) -> tuple[list[float], list[float]]:
    return [row[axis] for row in rows], [row["search_cpu_seconds"] for row in rows]
