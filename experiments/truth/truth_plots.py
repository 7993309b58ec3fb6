"""Truth plots: predicted against measured, with the line on which they agree."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from hardware_profiles import legible, percent
from simulator.results.figures import BLUE, GREEN, GREY, MARKS, ORANGE, logarithmic_axes, multiples, titled

COLOURS = (BLUE, ORANGE, GREEN, GREY)
BAND = 0.1
"""Share of the measured value by which the grey band is wide on either side."""

ROOM = 1.5
"""Times that axes reach beyond the least and the largest value."""

UNITS = {"memory": 2.0**-30}
"""What a figure is multiplied with; seconds stay seconds."""


def draw(points: Mapping[str, pd.DataFrame]) -> Figure:
    """A panel a table: every figure of every row, in seconds (memory in GiB), on logarithmic axes; beside each its mean error.

    points: of each table, columns what, measured, predicted
    """
    figure, axes = multiples(len(points), 3, 4.2, 4.1)
    for axis, (name, table) in zip(axes, points.items(), strict=True):
        scaled = table.assign(unit=[UNITS.get(what, 1.0) for what in table["what"]])
        measured, predicted = (scaled[column] * scaled["unit"] for column in ("measured", "predicted"))
        ends = np.array([min(measured.min(), predicted.min()) / ROOM, max(measured.max(), predicted.max()) * ROOM])
        axis.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="#e3e6ea", linewidth=0)
        axis.plot(ends, ends, color="#4d4d4d", linewidth=0.8)
        kinds = list(dict.fromkeys(table["what"]))
        size = 14 if len(table) < 300 else 4
        for colour, mark, what in zip(cycle(COLOURS), MARKS, kinds, strict=False):
            of = table["what"] == what
            error = float((predicted[of] / measured[of] - 1.0).abs().mean())
            named = f"{what}, GiB" if what in UNITS else what if what == "seconds" else f"{what}, s"
            label = f"{named}: {percent(error)}"
            axis.scatter(
                measured[of], predicted[of], s=size, color=colour, marker=mark, alpha=0.7, linewidths=0, label=label
            )
        unit = " and ".join(dict.fromkeys("GiB" if what in UNITS else "s" for what in kinds))
        title = f"{legible(name, 30)} ({len(table):,} values)"
        titled(axis, title, size=9, xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}")
        logarithmic_axes(axis, "both")
        axis.set(xlim=ends, ylim=ends)
        axis.tick_params(labelsize=8)
        axis.legend(frameon=False, fontsize=8, loc="upper left")
    figure.suptitle(f"Predicted against measured, with mean errors; line: equal, band: within {percent(BAND, '.0f')}")
    return figure
