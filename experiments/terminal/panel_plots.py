"""Panel plots: what the panels of all figures share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from simulator.results.figures import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = "#dfe3e8"
BLUE, ORANGE, GREEN, GREY = "#1b6ca8", "#d9822b", "#4f8a3c", "#9aa4af"


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
