"""PipeDream tables plots: published and simulated speedups over data parallelism, with the band of collective efficiencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.terminal.panel_plots import grid, legend_below, noted, panels
from experiments.terminal.report_tables import STALE, STALE_WORDS
from simulator.results.figures import INK

PUBLISHED, SIMULATED = "#9aa5b1", "#0072b2"
LABELS = ("published", "simulated", "over the band of collective efficiencies")
LEFT_OUT = "with the efficiency that the cluster's other rows fit"


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A pair of bars a row; the whisker of the simulated one spans the sensitivity band, a diamond is a row left out of the fit.

    The error stands above; of a row that a constant was fitted to, that of the fit and, after "out", that of the row left out.
    """
    figure, ((axes,),) = panels(12, 5.2)
    outs: list[Line2D] = []
    for place, row in enumerate(rows):
        published, value = row["published_speedup"], row["speedup"]
        band = [[max(0.0, value - row["speedup_low"])], [max(0.0, row["speedup_high"] - value)]]
        axes.bar(place - 0.2, published, 0.38, color=PUBLISHED)
        axes.bar(place + 0.2, value, 0.38, color=SIMULATED)
        axes.errorbar(place + 0.2, value, yerr=band, color=INK, capsize=4, linewidth=1.3)
        left, words = row["left_out"], f"{100 * row['relative_error']:+.0f} %"
        top = max(row["speedup_high"], value, published)
        if row["efficiency_fitted_to_it"]:
            words = f"fit {words}" + (f"\nout {100 * left['relative_error']:+.0f} %" if left else "")
        if left:
            outs = axes.plot(
                place + 0.2, left["speedup"], "D", color="white", markeredgecolor=INK, markersize=7, zorder=4
            )
            top = max(top, left["speedup"])
        noted(axes, words, (place, top), (0, 8), ha="center", fontsize=9, color=INK)
    for drawn, label in zip(axes.containers, LABELS, strict=False):  # of the first row, for the legend
        drawn.set_label(label)
    for diamond in outs:
        diamond.set_label(LEFT_OUT)
    names = [
        f"{row['model']}{'†' * row['published_recalled']}\n{_cluster_word(row['cluster'])}, "
        f"{row['devices']} GPUs\n{row['published_plan']}{STALE * row['stale']}"
        for row in rows
    ]
    axes.set_xticks(range(len(rows)), names, fontsize=9)
    title = "PipeDream's published plans: published and simulated speedups"
    axes.set(ylabel="speedup over data parallelism", title=title)
    marks = [STALE_WORDS] * any(row["stale"] for row in rows)
    marks += ["† published figure recalled, not checked"] * any(row["published_recalled"] for row in rows)
    axes.set_xlabel("   ".join(marks), fontsize=9)
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.margins(y=0.12)
    grid(axes)
    legend_below(figure, 4, size=10)
    return figure


def _cluster_word(cluster: str) -> str:
    """`A` for pipedream-a, `arXiv B` for pipedream-arxiv-b."""
    source, _, letter = cluster.removeprefix("pipedream-").rpartition("-")
    return f"{'arXiv ' if source else ''}{letter.upper()}"
