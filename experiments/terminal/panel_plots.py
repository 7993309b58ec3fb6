"""Panel plots: what the panels of all figures share."""

from __future__ import annotations

from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.results.figures import INK, Picture, logarithmic

GRID = "#dfe3e8"
BLUE, ORANGE, GREEN, GREY = "#1b6ca8", "#d9822b", "#4f8a3c", "#9aa4af"


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Figure, Any]:
    """A white figure of so many inches, and its panels as an array [rows, columns]."""
    figure = Picture(figsize=(width, height), dpi=100, facecolor="white", layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def titled(axes: Axes, title: str, *, size: float = 10, color: str = INK, **labels: Any) -> None:
    """A title on the left, and what `Axes.set` takes beside it: labels, limits."""
    axes.set_title(title, loc="left", fontsize=size, color=color)
    axes.set(**labels)


def logarithmic_axes(axes: Axes, along: Literal["x", "y", "both"]) -> None:
    """Logarithmic scales with plain numbers; to be called when everything is drawn."""
    for one in (axes.xaxis, axes.yaxis) if along == "both" else (getattr(axes, f"{along}axis"),):
        axes.set(**{f"{one.axis_name}scale": "log"})
        logarithmic(one)


def noted(axes: Axes, text: str, place: tuple[float, float], points: tuple[float, float], **look: Any) -> None:
    """Write so many points from a place."""
    axes.annotate(text, place, points, textcoords="offset points", **look)


def legend_below(figure: Figure, columns: int, *entries: Any, size: float = 9) -> None:
    """One legend below all panels; entries: handles and their labels, where not all that is labelled stands in it."""
    figure.legend(*entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=size)


def grid(axes: Axes) -> None:
    """Faint lines below the bars."""
    axes.grid(True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def unframed(axes: Axes, along: Literal["x", "y", "both"], width: float, color: str = GRID) -> None:
    """No frame above and to the right, and a grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, axis=along, color=color, linewidth=width)
    axes.set_axisbelow(True)


def beside(axes: Axes, y: float, text: str, points: float, *, color: str = INK, size: float = 9.0, **look: Any) -> None:
    """Write right of the panel, where no bar and no line can run through it; `points` from its edge."""
    axes.annotate(
        text,
        (1.0, y),
        (points, 0),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        va="center",
        ha="left",
        fontsize=size,
        color=color,
        annotation_clip=False,
        **look,
    )
