"""Board plots: predicted against measured images per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hardware_profiles import legible, percent
from simulator.results.figures import logarithmic_axes, panels, series_look, titled

BAND, ROOM = 0.3, 1.5
"""Share of the measured value by which the grey band is wide on either side; times that axes reach beyond what is drawn."""


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Every row at its measured and predicted images per second, on logarithmic axes, a mark for each board."""
    figure, ((axes,),) = panels(6.4, 5.2)
    rates = [row[name] for row in rows for name in ("measured_images_per_second", "images_per_second")]
    ends = np.array([min(rates) / ROOM, max(rates) * ROOM])
    axes.fill_between(
        ends, ends * (1 - BAND), ends * (1 + BAND), color="#e3e6ea", linewidth=0, label=f"within {percent(BAND, '.0f')}"
    )
    axes.plot(ends, ends, color="#4d4d4d", linewidth=0.8, label="as measured")
    for number, board in enumerate(dict.fromkeys(row["board"] for row in rows)):
        own = [row for row in rows if row["board"] == board]
        look = {**series_look(number), "linestyle": "none"}
        places = [[row[name] for row in own] for name in ("measured_images_per_second", "images_per_second")]
        axes.plot(*places, label=legible(board, 30), markersize=7, **look)
    measured, predicted = "images per second, measured", "images per second, predicted"
    titled(axes, "Forward passes on FPGA boards", xlabel=measured, ylabel=predicted)
    axes.set(xlim=ends, ylim=ends)
    logarithmic_axes(axes, "both")
    axes.legend(frameon=False, loc="upper left")
    return figure
