"""Pareto plots: seconds per iteration against peak memory, one line for each number of devices, and against joules per sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hardware_profiles import GIB, counted, legible
from simulator.results.figures import (
    INK,
    capacity_lines,
    legend_below,
    logarithmic_axes,
    noted,
    panels,
    series_look,
    titled,
    unframed,
)

if TYPE_CHECKING:
    from experiments.report.pareto import Pareto, UnbeatenPlan


NOTED = 0.16
"""Of the panel's width left of the least joules, where the names of plans stand."""


def draw(found: Pareto) -> Figure:
    """Steps between plans, of which there is one at least: more memory buys nothing until the next; below each its notation.

    Beside it, where power is known, the same plans by their joules; the line joins those that none beats in seconds and joules.
    """
    figure, ((axes, *others),) = panels(10 + 6 * found.power_is_known, 6.2, 1, 1 + found.power_is_known, sharey=True)
    word = found.problem.device_word
    most = max(one.peak_bytes / GIB for one in found.points)
    counts = sorted({one.devices for one in found.points})
    for number, count in enumerate(counts):
        own = sorted((one for one in found.points if one.devices == count), key=lambda one: one.peak_bytes)
        memory, seconds = [one.peak_bytes / GIB for one in own], [one.seconds for one in own]
        look = series_look(number)
        words = {"markersize": 6, "linewidth": 1.3, "label": counted(count, word)}
        axes.plot(memory, seconds, drawstyle="steps-post", **look, **words)
        for place, point in zip(zip(memory, seconds, strict=True), own, strict=True):
            # where no line of its own is
            noted(axes, _name(point), place, (-5, -4), fontsize=8, color=look["color"], ha="right", va="top")
    right = capacity_lines(axes, (device.memory_bytes / GIB for device in found.problem.cluster.devices), most)
    logarithmic_axes(axes, "both")
    labels = {"xlabel": f"peak memory of the fullest {word}, GiB", "ylabel": "seconds per iteration"}
    titled(axes, legible(found.title, 90), size=11, **labels)
    axes.set_xlim(0.7 * min(one.peak_bytes / GIB for one in found.points), 1.05 * right)
    unframed(axes, "both", 0.7)
    for beside in others:
        _draw_energy(beside, found, counts)
    entries = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    entries |= {name: handle for one in others for handle, name in zip(*one.get_legend_handles_labels(), strict=True)}
    legend_below(figure, min(len(entries), 8), entries.values(), entries.keys())
    return figure


def _draw_energy(axes: Axes, found: Pareto, counts: Sequence[int]) -> None:
    """The plans by their joules, each with the mark of its number of devices; those that none beats have their notation."""
    unbeaten = found.unbeaten_in_energy
    places = {one: (one.joules_per_sample or 0.0, one.seconds) for one in found.points}
    front = [places[one] for one in unbeaten]
    label = "none beats these in seconds and joules"
    axes.plot(*zip(*front, strict=True), color=INK, linewidth=0.9, drawstyle="steps-pre", label=label)
    for number, count in enumerate(counts):
        look = series_look(number)
        own = [places[one] for one in found.points if one.devices == count]
        axes.plot(*zip(*own, strict=True), **{**look, "linestyle": "none"}, markersize=6)
        for one in (one for one in unbeaten if one.devices == count):
            noted(axes, _name(one), places[one], (-5, -4), fontsize=8, color=look["color"], ha="right", va="top")
    axes.margins(x=NOTED)
    titled(axes, "The same plans, by energy", size=11, xlabel=f"joules per {found.problem.workload.sample}")
    unframed(axes, "both", 0.7)


def _name(point: UnbeatenPlan) -> str:
    """The plan, and its ZeRO where it has one."""
    return legible(point.notation, 24) + f" z{point.zero}" * bool(point.zero)
