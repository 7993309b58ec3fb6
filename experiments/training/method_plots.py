"""Method plots: the look of panels that figures of methods share."""

from __future__ import annotations

from matplotlib.axes import Axes

from simulator.results.figures import FAINT, INK, unframed

GRID = "#e3e6ea"


def plain(axes: Axes) -> None:
    """Panels of bars and dots: no frame, a grid across."""
    unframed(axes, "x", 0.8, GRID)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
