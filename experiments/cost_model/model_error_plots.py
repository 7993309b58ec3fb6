"""Cost-model plots: measured and modelled seconds, totals and layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.terminal.report_tables import Row
from hardware_profiles import legible, percent
from simulator.results.figures import ORANGE, grouped_bars, legend_below, noted, panels

BARS: dict[str, dict[str, Any]] = {"measured": {"color": "#c3c7cc"}, "model": {"color": ORANGE}}


def draw(rows: Sequence[Row], accelerator: str) -> Figure:
    """Totals in the first panel; in each further panel the groups of one profile, measured over predicted."""
    figure, axes = panels(13.0, 7.2, 2, 3)
    totals, *others = axes.ravel()
    _draw_totals(totals, rows)
    for axis, row in zip(others, rows, strict=True):
        _draw_groups(axis, row)
    (bars, words), (ticks, _) = (axis.get_legend_handles_labels() for axis in (totals, others[0]))
    legend_below(figure, 3, [*bars, ticks[0]], [words[0], f"{words[1]}, totals", f"{words[1]}, layer by layer"])
    figure.suptitle(f"Analytic seconds of {legible(accelerator, 40)} (fp32) beside PipeDream's measured V100 profiles")
    return figure


def _draw_totals(axis: Axes, rows: Sequence[Row]) -> None:
    seconds = [
        [1e3 * (row[f"{of}_forward"] + row[f"{of}_backward"]) for row in rows] for of in ("measured", "predicted")
    ]
    grouped_bars(axis, dict(zip(BARS, seconds, strict=True)), BARS)
    for place, (row, top) in enumerate(zip(rows, map(max, *seconds), strict=True)):
        noted(axis, percent(row["error"], "+.1f"), (place, top), (0, 3), ha="center", fontsize=9)
    names = [f"{legible(row['name'], 12)}\n({row['minibatch']})" for row in rows]
    axis.set_xticks(range(len(rows)), names, fontsize=8)
    axis.margins(y=0.15)
    axis.set_ylabel("forward + backward, ms")
    axis.set_title("Totals (mini-batch below the name)", fontsize=10)


def _draw_groups(axis: Axes, row: Row) -> None:
    positions = range(1, len(row["groups"]) + 1)
    measured, predicted = ([1e3 * group[of] for group in row["groups"]] for of in ("measured", "predicted"))
    size, width = (3.5, 1.4) if len(positions) > 40 else (11, 2.2)
    axis.bar(positions, measured, 0.9, **BARS["measured"])
    look: dict[str, Any] = {"markersize": size, "markeredgewidth": width, "label": "model", **BARS["model"]}
    axis.plot(positions, predicted, linestyle="none", marker="_", **look)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("layer with parameters, in order", fontsize=9)
    axis.set_ylabel("forward + backward, ms", fontsize=9)
    title = f"{legible(row['name'], 18)}: {percent(row['share_distance'], '.0f')} of the time in the wrong group"
    axis.set_title(title, fontsize=9)
