"""PipeDream tables plots: published and simulated speedups over data parallelism, with the band of collective efficiencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.terminal.panel_plots import grid

PUBLISHED, SIMULATED, INK = "#9aa5b1", "#0072b2", "#1f2328"


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A pair of bars a row; the whisker of the simulated one spans the sensitivity band."""
    figure = Figure(figsize=(11, 4.8), dpi=100, layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        low, high, value = row["speedup_low"], row["speedup_high"], row["speedup"]
        axes.bar(
            place - 0.2, row["published_speedup"], 0.38, color=PUBLISHED, label="published" if place == 0 else None
        )
        axes.bar(place + 0.2, value, 0.38, color=SIMULATED, label="simulated" if place == 0 else None)
        axes.errorbar(
            place + 0.2,
            value,
            yerr=[[max(0.0, value - low)], [max(0.0, high - value)]],
            color=INK,
            capsize=4,
            linewidth=1.3,
            label="over the band of collective efficiencies" if place == 0 else None,
        )
        axes.annotate(
            f"{100 * row['relative_error']:+.0f} %",
            (place, max(high, value, row["published_speedup"])),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=INK,
        )
    mark = {True: "†", False: ""}
    names = [
        f"{row['model']}{mark[row['published_recalled']]}\n{_cluster_word(row['cluster'])}, "
        f"{row['devices']} GPUs\n{row['published_plan']}"
        for row in rows
    ]
    axes.set_xticks(range(len(rows)), names, fontsize=9)
    axes.set(
        ylabel="speedup over data parallelism", title="PipeDream's published plans: published and simulated speedups"
    )
    if any(row["published_recalled"] for row in rows):
        axes.set_xlabel("† published figure recalled, not checked", fontsize=9)
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.margins(y=0.12)
    grid(axes)
    figure.legend(frameon=False, loc="outside lower center", ncols=3)
    return figure


def _cluster_word(cluster: str) -> str:
    """`A` for pipedream-a, `arXiv B` for pipedream-arxiv-b."""
    source, _, letter = cluster.removeprefix("pipedream-").rpartition("-")
    return f"{'arXiv ' if source else ''}{letter.upper()}"
