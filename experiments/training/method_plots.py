"""Method plots: what figures of methods share: a colour per method, the look of panels."""

from __future__ import annotations

from matplotlib.axes import Axes

from simulator.results.figures import FAINT, INK, unframed

GRID = "#e3e6ea"
FAMILY_COLORS = {
    "synchronous": "#30363d",
    "data parallel": "#8c6d31",
    "GPipe": "#7b848e",
    "1F1B": "#30363d",
    "PipeDream": "#d1495b",
    "2BW": "#edae49",
    "SpecTrain": "#8e5ea2",
    "PipeOptim": "#00798c",
    "PipeMare": "#c77d9b",
    "naive": "#a04000",
    "XPipe": "#1b6ca8",
}
"""Colour of a method by the start of its label."""


def color_of(label: str) -> str:
    """Colour of a method; grey for one that is not listed."""
    return next((color for name, color in FAMILY_COLORS.items() if label.startswith(name)), FAINT)


def plain(axes: Axes) -> None:
    """Panels of bars and dots: no frame, a grid across."""
    unframed(axes, "x", 0.8, GRID)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
