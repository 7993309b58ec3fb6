"""Cost-model plots: measured and modelled seconds, totals and layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hardware_profiles import legible

if TYPE_CHECKING:
    from experiments.cost_model.model_errors import ProfileComparison


def draw(comparisons: Sequence[ProfileComparison], accelerator: str) -> Figure:
    """Totals in the first panel; in each further panel the groups of one profile, measured over predicted."""
    figure = Figure(figsize=(13.0, 7.2), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    _draw_totals(axes[0], comparisons)
    for axis, comparison in zip(axes[1:], comparisons, strict=True):
        _draw_groups(axis, comparison)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(
        handles,
        [f"{label}, layer by layer" for label in labels],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=9,
    )
    figure.suptitle(f"Analytic seconds of {legible(accelerator, 40)} (fp32) beside PipeDream's measured V100 profiles")
    return figure


MEASURED_COLOUR, PREDICTED_COLOUR, LAYER_COLOUR = "#4d4d4d", "#d96f00", "#c3c7cc"


def _draw_totals(axis: Axes, comparisons: Sequence[ProfileComparison]) -> None:
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
    axis.set_xticks(
        range(len(comparisons)), [f"{legible(c.name, 12)}\n({c.minibatch})" for c in comparisons], fontsize=8
    )
    axis.margins(y=0.15)
    axis.set_ylabel("forward + backward, ms")
    axis.set_title("Totals (mini-batch below the name)", fontsize=10)
    axis.legend(frameon=False, fontsize=9, loc="best")


def _draw_groups(axis: Axes, comparison: ProfileComparison) -> None:
    positions = range(1, len(comparison.groups) + 1)
    measured = [1e3 * group.measured for group in comparison.groups]
    predicted = [1e3 * group.predicted for group in comparison.groups]
    many = len(positions) > 40
    axis.bar(positions, measured, 0.9, color=LAYER_COLOUR, label="measured")
    axis.plot(
        positions,
        predicted,
        linestyle="none",
        marker="_",
        markersize=3.5 if many else 11,
        markeredgewidth=1.4 if many else 2.2,
        color=PREDICTED_COLOUR,
        label="model",
    )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("layer with parameters, in order", fontsize=9)
    axis.set_ylabel("forward + backward, ms", fontsize=9)
    axis.set_title(
        f"{legible(comparison.name, 18)}: {comparison.share_distance:.0%} of the time in the wrong group", fontsize=9
    )
