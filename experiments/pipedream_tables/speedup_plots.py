"""PipeDream tables plots: published and simulated speedups over data parallelism, with the band of collective efficiencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.terminal.report_tables import STALE, STALE_WORDS
from hardware_profiles import percent
from simulator.results.figures import BLUE, GREY, INK, grid, grouped_bars, legend_below, noted, panels

BARS = {"published": {"color": GREY}, "simulated": {"color": BLUE}}
BAND = "over the band of collective efficiencies"
LEFT_OUT = "with the efficiency that the cluster's other rows fit"


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A pair of bars per row; a whisker over the band of collective efficiencies, and a diamond for a row left out of the fit.

    The error stands above; of a row that a constant was fitted to, that of the fit and, behind a diamond, of the row left out.
    """
    figure, ((axes,),) = panels(12, 5.2)
    published, simulated, low, high = (
        [row[key] for row in rows] for key in ("published_speedup", "speedup", "speedup_low", "speedup_high")
    )
    outs = [math.nan if row["left_out"] is None else row["left_out"]["speedup"] for row in rows]
    right = np.arange(len(rows)) + 0.2
    grouped_bars(axes, {"published": published, "simulated": simulated}, BARS)
    band = np.maximum(0.0, [np.subtract(simulated, low), np.subtract(high, simulated)])
    axes.errorbar(right, simulated, yerr=band, fmt="none", ecolor=INK, capsize=4, elinewidth=1.3, label=BAND)
    label = "" if np.isnan(outs).all() else LEFT_OUT
    axes.plot(right, outs, "D", color="white", markeredgecolor=INK, markersize=7, zorder=4, label=label)
    for place, (row, *values) in enumerate(zip(rows, published, simulated, high, outs, strict=True)):
        left, words = row["left_out"], percent(row["relative_error"], "+.0f")
        if row["efficiency_fitted_to_it"]:
            words = f"{words}, fitted" + (f"\n◇ {percent(left['relative_error'], '+.0f')}" if left else "")
        noted(axes, words, (place, np.nanmax(values)), (0, 8), ha="center", fontsize=9, color=INK)
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
