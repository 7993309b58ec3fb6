"""Comparison plots: bars that compare the plans of one problem; numbers first and drawing second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hardware_profiles import GIB, Floats, legible, percent
from simulator.results.figures import ALARM, BLUE, INK, beside, figures, legend_below, panels, unframed

if TYPE_CHECKING:
    from experiments.compare.comparison import Ranking

OTHER, MEMORY = "#8db8dc", "#c0792a"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    label: planner, plan and schedule, and what sets the plan apart: stale weights, a search cut short; note: what stands beside
    samples_per_second, limit_samples_per_second: of the plan; of the lower bound on its iteration, None where none is known
    peak_gib, capacity_gib: of the fullest device
    rate_ends, peak_ends: the least and the most of 90 % of runs like it
    """

    label: str
    note: str
    samples_per_second: float
    limit_samples_per_second: float | None
    peak_gib: float
    capacity_gib: float
    feasible: bool
    rate_ends: tuple[float, float]
    peak_ends: tuple[float, float]


def comparison_bars(rows: Sequence[Mapping[str, Any]], ranking: Ranking | None = None) -> tuple[Bar, ...]:
    """Bars from top to bottom: plans that fit before those that do not, fast before slow; equal ones stay in their order.

    rows: records of `comparison.Answer` that have a plan; ranking: what they are sorted by, and tell, in place of speed
    """
    if ranking is None:
        return tuple(sorted(map(_bar, rows), key=lambda plan: (not plan.feasible, -plan.samples_per_second)))
    counts = ranking.counts
    best_first = sorted(
        rows, key=lambda row: (not row["feasible"], counts(row["iteration_seconds"], row["joules_per_sample"]))
    )
    unit = ranking.heading.replace("\n", " ")
    return tuple(_bar(row, f"{ranking.cell(row)} {unit}") for row in best_first)


def _bar(row: Mapping[str, Any], judged: str = "") -> Bar:
    rate, bound = float(row["samples_per_second"]), _known(row["lower_bound_seconds"])
    speedup, idle = _known(row["speedup_over_data_parallel"]), _known(row["bubble_idle_over_makespan"])
    label = legible(row["planner"], 32) + (" (interrupted)" if row["interrupted"] else "")
    plan = f"{legible(row['notation'], 18)} · {legible(row['schedule'], 20)}"
    note = [f"{_number(rate)}/s"]
    note += [] if speedup is None else [f"{speedup:.2f}×"]
    note += [] if idle is None else [f"idle {percent(idle, '.0f')}"]
    note += [judged] * bool(judged)
    return Bar(
        label=f"{label}\n{plan}" + (" · stale weights" if row["asynchronous"] else ""),
        note=" · ".join(note),
        samples_per_second=rate,
        limit_samples_per_second=rate * float(row["iteration_seconds"]) / bound if bound else None,
        peak_gib=float(row["peak_memory_bytes"]) / GIB,
        capacity_gib=float(row["capacity_bytes"]) / GIB,
        feasible=bool(row["feasible"]),
        rate_ends=(_rate_at(row, "error_high"), _rate_at(row, "error_low")),
        peak_ends=(float(row["memory_error_low"]) / GIB, float(row["memory_error_high"]) / GIB),
    )


def _rate_at(row: Mapping[str, Any], end: str) -> float:
    """Samples per second at an end of the error of the seconds."""
    rate, seconds = float(row["samples_per_second"]), float(row[end])
    return rate * float(row["iteration_seconds"]) / seconds if seconds else rate


def _known(value: Any) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)


def _number(value: float) -> str:
    """Three digits or all before the point, thousands apart."""
    if value >= 100 or value <= 0:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def comparison_figure(rows: Sequence[Mapping[str, Any]], title: str = "", ranking: Ranking | None = None) -> Figure:
    """Draw the plans of one problem as bars: samples per second with the upper limit, and peak memory against capacity beside.

    rows, ranking: as for `comparison_bars`. Plans that do not fit are hatched. The limit is one line where it is the same for
    every plan and a mark on each bar elsewhere; a limit or capacity so far away that it would flatten the bars is written out
    instead.
    Raises ValueError where there is no row.
    """
    plans = comparison_bars(rows, ranking)
    if not plans:
        raise ValueError("a comparison figure needs at least one row, got none")
    figure, ((speed, memory),) = panels(
        12.0, max(2.9, 1.75 + 0.5 * len(plans)), 1, 2, width_ratios=[0.64, 0.36], sharey=True
    )
    with mpl.rc_context({"hatch.linewidth": 1.4}):
        _speed_panel(speed, plans)
        _memory_panel(memory, plans)
    figure.suptitle(legible(title, 110), x=0.015, ha="left", fontsize=12, fontweight="bold", color=INK)
    handles = _handles(plans, "fastest" if ranking is None else ranking.best)
    legend_below(figure, len(handles), handles, [str(one.get_label()) for one in handles], size=8.5)
    return figure


def limit_in_view(plans: Sequence[Bar]) -> bool:
    """Whether the upper limits leave the fastest bar at least a third of the axis."""
    limits = [plan.limit_samples_per_second for plan in plans if plan.limit_samples_per_second is not None]
    return bool(limits) and max(limits) <= 3.0 * max(plan.samples_per_second for plan in plans)


def common_limit(plans: Sequence[Bar]) -> float | None:
    """The upper limit that all plans share (to one part in a million), or None."""
    limits = [plan.limit_samples_per_second for plan in plans]
    first = limits[0]
    if first is None or any(one is None or not math.isclose(one, first, rel_tol=1e-6) for one in limits):
        return None
    return first


def _speed_panel(ax: Axes, plans: Sequence[Bar]) -> None:
    rates = np.array([plan.samples_per_second for plan in plans])
    places = _bars(ax, plans, rates, [BLUE, *[OTHER] * (len(plans) - 1)])
    most, shared = _whiskers(ax, places, [plan.rate_ends for plan in plans], float(rates.max())), common_limit(plans)
    if limit_in_view(plans):
        limits = [plan.limit_samples_per_second or math.nan for plan in plans]
        most = max(most, np.nanmax(limits))
        if shared is not None:
            ax.axvline(shared, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        else:
            ax.vlines(limits, places - 0.42, places + 0.42, color=INK, linewidth=1.4, zorder=3)
    for place, plan in zip(places.tolist(), plans, strict=True):
        beside(ax, place, plan.note, 7, color=INK if plan.feasible else ALARM)
    ax.set_yticks(places, [plan.label for plan in plans], fontsize=9)
    ax.set_ylim(len(plans) - 0.45, -0.55)
    _plain(ax, 1.03 * max(most, 1e-12), "samples per second")


def _memory_panel(ax: Axes, plans: Sequence[Bar]) -> None:
    peaks = np.array([plan.peak_gib for plan in plans])
    places = _bars(ax, plans, peaks, [MEMORY] * len(plans))
    most = _whiskers(ax, places, [plan.peak_ends for plan in plans], float(peaks.max()))
    if _capacity_in_view(plans):
        capacities = [plan.capacity_gib for plan in plans]
        most = max(most, *capacities)
        ax.vlines(capacities, places - 0.5, places + 0.5, color=ALARM, linewidth=1.6, zorder=3)
    for place, plan in zip(places.tolist(), plans, strict=True):
        note = _number(plan.peak_gib) + ("" if plan.feasible else "\ndoes not fit")
        beside(ax, place, note, 5, color=INK if plan.feasible else ALARM, linespacing=1.0)
    _plain(ax, 1.04 * max(most, 1e-12), "peak memory of the fullest device (GiB)")


def _capacity_in_view(plans: Sequence[Bar]) -> bool:
    """Whether the capacities leave the fullest bar at least a third of the axis."""
    return max(plan.capacity_gib for plan in plans) <= 3.0 * max(plan.peak_gib for plan in plans)


def _bars(ax: Axes, plans: Sequence[Bar], values: Floats, colors: Sequence[str]) -> Floats:
    """A bar a plan, hatched where it does not fit; their places."""
    places = np.arange(len(plans), dtype=np.float64)
    for bar, plan in zip(ax.barh(places, values, 0.62, color=colors, zorder=2), plans, strict=True):
        if not plan.feasible:
            bar.set(facecolor="white", edgecolor=ALARM, hatch="///", linewidth=0.8)
    return places


def _whiskers(ax: Axes, places: Floats, ends: Sequence[tuple[float, float]], most: float) -> float:
    """Draw the errors of bars, from end to end; the greatest of bars and ends."""
    low, high = np.array(ends).T
    ax.hlines(places, low, high, color=INK, linewidth=1.0, zorder=4)
    for one in (low, high):
        ax.vlines(one, places - 0.13, places + 0.13, color=INK, linewidth=1.0, zorder=4)
    return max(most, float(high.max()))


def _plain(ax: Axes, most: float, label: str) -> None:
    """An axis from nothing to `most`."""
    unframed(ax, "x", 0.6)
    ax.set_xlim(0, most)
    ax.set_xlabel(label, fontsize=9)
    ax.tick_params(axis="x", labelsize=8.5)
    ax.xaxis.set_major_formatter(lambda value, _: figures(value))
    ax.tick_params(axis="y", length=0)


def _handles(plans: Sequence[Bar], best: str) -> list[Patch | Line2D]:
    """Entries of the legend; best: what the first plan is."""
    handles: list[Patch | Line2D] = [Patch(facecolor=BLUE, label=f"{best} that fits")] if plans[0].feasible else []
    if any(plan.feasible for plan in plans[1:]):
        handles.append(Patch(facecolor=OTHER, label="others"))
    handles.append(Patch(facecolor=MEMORY, label="memory"))
    if not all(plan.feasible for plan in plans):
        handles.append(Patch(facecolor="white", edgecolor=ALARM, hatch="///", label="does not fit"))
    handles.append(Line2D([], [], color=INK, linewidth=1.0, marker="|", label="prediction error"))
    limits = [plan.limit_samples_per_second for plan in plans if plan.limit_samples_per_second is not None]
    shared = common_limit(plans)
    if limits and not limit_in_view(plans):
        handles.append(Line2D([], [], linewidth=0, label=f"upper limit {_number(max(limits))}/s, beyond the axis"))
    elif shared is not None:
        label = f"upper limit (lower bound on time): {_number(shared)}/s"
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=(0, (4, 3)), label=label))
    elif limits:
        handles.append(Line2D([], [], color=INK, linewidth=1.2, label="upper limit"))
    capacities = sorted({plan.capacity_gib for plan in plans})
    words = f"{capacities[0]:g}" if len(capacities) == 1 else f"{capacities[0]:g} to {capacities[-1]:g}"
    line = _capacity_in_view(plans)
    label = f"capacity {words} GiB{'' if line else ', beyond the axis'}"
    return [*handles, Line2D([], [], color=ALARM, linewidth=1.6 if line else 0, label=label)]
