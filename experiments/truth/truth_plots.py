"""Truth plots: predicted against measured, with the line on which they agree."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.terminal.panel_plots import BLUE, GREEN, GREY, ORANGE, panels, titled
from hardware_profiles import legible

COLOURS = (BLUE, ORANGE, GREEN, GREY)
BAND = 0.1
"""Share of the measured value by which the grey band is wide on either side."""

COLUMNS = 3

UNITS = {"memory": 2.0**-30}
"""What a figure is multiplied with; seconds stay seconds."""


def draw(points: Mapping[str, pd.DataFrame]) -> Figure:
    """A panel a table: every figure of every row, in seconds (memory in GiB), on logarithmic axes.

    points: of each table, columns what, measured, predicted
    """
    rows = -(-len(points) // COLUMNS)
    figure, axes = panels(4.2 * COLUMNS, 3.9 * rows + 0.6, rows, COLUMNS)
    for axis in axes.ravel()[len(points) :]:
        axis.set_visible(False)
    for axis, (name, table) in zip(axes.ravel(), points.items(), strict=False):
        scaled = table.assign(unit=[UNITS.get(what, 1.0) for what in table["what"]])
        measured, predicted = (scaled[column] * scaled["unit"] for column in ("measured", "predicted"))
        extremes = np.log10([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
        ends = 10.0 ** np.array([np.floor(extremes[0]), max(np.ceil(extremes[1]), np.floor(extremes[0]) + 1)])
        axis.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="#e3e6ea", linewidth=0)
        axis.plot(ends, ends, color="#4d4d4d", linewidth=0.8)
        kinds = list(dict.fromkeys(table["what"]))
        size = 14 if len(table) < 300 else 4
        for colour, what in zip(COLOURS, kinds, strict=False):
            of = table["what"] == what
            label = f"{what}, GiB" if what in UNITS else what if what == "seconds" else f"{what}, s"
            axis.scatter(measured[of], predicted[of], s=size, color=colour, alpha=0.7, linewidths=0, label=label)
        error = float((predicted / measured - 1.0).abs()[table["what"] == kinds[0]].mean())
        titled(axis, f"{legible(name, 22)}: {error:.1%} mean error", xlabel="measured", ylabel="predicted")
        axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        for one in (axis.xaxis, axis.yaxis):
            one.set_major_locator(LogLocator(numticks=6))
            one.set_major_formatter("{x:g}")
            one.set_minor_formatter(NullFormatter())
        axis.legend(frameon=False, fontsize=8, loc="upper left")
    figure.suptitle(f"Predicted against measured; line: equal, band: within {BAND:.0%}")
    return figure
