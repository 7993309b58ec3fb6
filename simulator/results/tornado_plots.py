"""Tornado plots: seconds of an iteration against numbers of the machine, the largest swing on top."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from hardware_profiles import legible
from simulator.results.figures import BLUE, INK, ORANGE, legend_below, panels, unframed

MOST_BARS = 20


def tornado(title: str, seconds: float, bars: Sequence[tuple[str, float, float]], *, cut: bool) -> Figure:
    """A bar for each number, the first on top.

    seconds: of an iteration as it is
    bars: the number's name, seconds where it is as low as it is looked at, and as high; cut: some are not looked at so far
    """
    shown = bars[:MOST_BARS]
    figure, ((axes,),) = panels(9, 1.6 + 0.34 * max(1, len(shown)))
    for color, label, side in ((ORANGE, "half of it", 1), (BLUE, "twice as much", 2)):
        widths = [float(one[side]) - seconds for one in shown]
        axes.barh(range(len(shown)), widths, left=seconds, color=color, height=0.62, label=label)
    axes.axvline(seconds, color=INK, linewidth=1.0)
    axes.set_yticks(range(len(shown)), [legible(name, 46) for name, _, _ in shown], fontsize=8)
    axes.invert_yaxis()
    notes = [f"the {MOST_BARS} numbers of {len(bars)} that are felt most"] * (len(bars) > MOST_BARS)
    notes += ["bars end where a file allows no other value"] * cut
    figure.suptitle(legible(title, 120), x=0.01, ha="left", fontsize=9, color=INK)
    axes.set_xlabel("seconds per iteration")
    unframed(axes, "x", 0.7)
    legend_below(figure, 2, note="; ".join(notes))
    return figure
