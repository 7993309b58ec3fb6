"""Pareto plots: seconds per iteration against peak memory, one line for each number of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from hardware_profiles import GIB, counted, legible
from simulator.results.figures import (
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


def draw(found: Pareto) -> Figure:
    """Steps between plans, of which there is one at least: more memory buys nothing until the next; below each its notation."""
    figure, ((axes,),) = panels(10, 6.2)
    word = found.problem.device_word
    most = max(one.peak_bytes / GIB for one in found.points)
    for number, count in enumerate(counts := sorted({one.devices for one in found.points})):
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
    legend_below(figure, min(len(counts) + 1, 8))
    return figure


def _name(point: UnbeatenPlan) -> str:
    """The plan, and its ZeRO where it has one."""
    return legible(point.notation, 24) + f" z{point.zero}" * bool(point.zero)
