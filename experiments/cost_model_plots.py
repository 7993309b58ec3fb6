"""Cost-model plots: measured and modelled seconds, totals and layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from experiments.cost_model import Comparison


def draw(comparisons: Sequence[Comparison], accelerator: str) -> Figure:
    """Totals in the first panel; in each further panel the groups of one profile, measured over predicted."""
    figure = Figure(figsize=(13.0, 7.2), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    _draw_totals(axes[0], comparisons)
    for axis, comparison in zip(axes[1:], comparisons, strict=True):
        _draw_groups(axis, comparison)
    figure.suptitle(f"Analytic seconds of {accelerator} (fp32) beside PipeDream's measured V100 profiles")
    return figure


MEASURED_COLOUR, PREDICTED_COLOUR = "#4d4d4d", "#e07b00"


def _draw_totals(axis: Axes, comparisons: Sequence[Comparison]) -> None:
    for position, comparison in enumerate(comparisons):
        measured = 1e3 * (comparison.measured_forward + comparison.measured_backward)
        predicted = 1e3 * (comparison.predicted_forward + comparison.predicted_backward)
        first = position == 0
        axis.bar(position - 0.2, measured, 0.38, color=MEASURED_COLOUR, label="measured" if first else None)
        axis.bar(position + 0.2, predicted, 0.38, color=PREDICTED_COLOUR, label="model" if first else None)
        axis.annotate(
            f"{comparison.error:+.1%}", (position, max(measured, predicted)), xytext=(0, 3),
            textcoords="offset points", ha="center", fontsize=9,
        )  # fmt: skip
    axis.set_xticks(range(len(comparisons)), [f"{c.name}\n({c.minibatch})" for c in comparisons], fontsize=8)
    axis.margins(y=0.15)
    axis.set_ylabel("forward + backward, ms")
    axis.set_title("Totals (mini-batch below the name)", fontsize=10)
    axis.legend(frameon=False, fontsize=9)


def _draw_groups(axis: Axes, comparison: Comparison) -> None:
    positions = range(1, len(comparison.groups) + 1)
    measured = [1e3 * group.measured for group in comparison.groups]
    predicted = [1e3 * group.predicted for group in comparison.groups]
    many = len(positions) > 40
    axis.bar(positions, measured, 0.9, color=MEASURED_COLOUR, alpha=0.45)
    axis.plot(
        positions,
        predicted,
        linestyle="none",
        marker="_",
        markersize=3.5 if many else 11,
        markeredgewidth=1.4 if many else 2.2,
        color=PREDICTED_COLOUR,
    )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("layer with parameters, in order", fontsize=9)
    axis.set_ylabel("ms", fontsize=9)
    axis.set_title(f"{comparison.name}: {comparison.share_distance:.0%} of the time in the wrong group", fontsize=10)
