"""Growth plots of PipeDream's partitioner: CPU seconds against states, workers and levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.terminal.panel_plots import legend_below, logarithmic_axes, panels


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds over states, over workers and per level, one panel each."""
    figure, ((by_states, by_workers, by_levels),) = panels(12, 4.4, 1, 3)
    for variant, colour, offset in (("paper", "#0072b2", -0.2), ("script", "#d55e00", 0.2)):

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
        heights = chosen("levels", "search_cpu_seconds")
        places = [place + offset for place in range(len(heights))]
        by_levels.bar(places, heights, width=0.4, color=colour, label=variant)
        by_levels.set_xticks(range(len(heights)), chosen("levels", "shape"))
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
