"""UMPIPE plots: gains over every reading of the baselines, convergence, memory against makespan, and two Gantt charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.terminal.panel_plots import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    legend_below,
    logarithmic_axes,
    noted,
    panels,
    titled,
    unframed,
)
from experiments.terminal.report_tables import Row
from experiments.umpipe.gains import PUBLISHED, GainCase, gains_by_reading
from experiments.umpipe.search_comparison import COMPILED_FORM, MATRIX_FORM, Instance
from experiments.unequal_sizes.table_costs import program_of
from hardware_profiles import legible
from planners.unequal import FoundSizes
from simulator import gantt
from simulator.engines import event_loop
from simulator.results.figures import ALARM, FAINT, INK, Picture

SYSTEMS = {"gpipe": BLUE, "pipedream": ORANGE}

LINES: dict[str, tuple[str, Any]] = {
    "DGAP": (BLUE, "-"),
    "DGAP, single chromosome": (ORANGE, "-"),
    "TiDGAP": (GREEN, "--"),
    "TiDGAP, distinct survivors": ("#7a2653", "-"),
    "pymoo GA": ("#b9b2dd", "-"),
    MATRIX_FORM: (BLUE, "--"),
    COMPILED_FORM: (BLUE, ":"),
    "greedy DP": (GREY, "-."),
    "best equal size": (INK, (0, (1, 2))),
}
"""Colour and dashes of a search."""

SEARCHES, LEVELS = list(LINES)[:5], list(LINES)[7:]
"""Different searches, and those without a history."""

EVALUATORS = {"DGAP": "DGAP", MATRIX_FORM: "matrix evaluator (TiDGAP)", COMPILED_FORM: "compiled evaluator"}
"""The same search, from the same start, on three evaluators."""


# ---- gains ---------------------------------------------------------------------------------------------------


def gains_figure(rows: Sequence[Row]) -> Figure:
    """One panel a network: a dot for every setting, a row for every reading, a line at each published gain.

    rows: of `gains.mean_gains`
    """
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure = Picture(figsize=(13.5, 5.4), dpi=100, facecolor="white")
    for ax, network in zip(figure.subplots(1, len(networks), sharey=True, squeeze=False)[0], networks, strict=True):
        found = {
            name: [100.0 * gain for gain in gains] for name, gains in reversed(gains_by_reading(rows, network).items())
        }
        most = 7000.0 if network == "simulation" else 100.0
        for place, (name, gains) in enumerate(found.items()):
            color = SYSTEMS[name.split(" ")[0]]
            ax.plot(gains, [place] * len(gains), "o", color=color, alpha=0.55, markersize=5, clip_on=True)
            if max(gains) > most:
                ax.plot(most, place, ">", color=color, markersize=6, clip_on=False)
        published = {system: 100.0 * PUBLISHED[network, system] for system in SYSTEMS}
        for system, gain in published.items():
            ax.axvline(gain, color=SYSTEMS[system], linestyle="--", linewidth=1.2)
        ax.axvline(0.0, color=INK, linewidth=0.8)
        texts = ", ".join(f"{system} {gain:.4g} %" for system, gain in published.items())
        titled(ax, f"{network}\npublished: {texts}")
        if network == "simulation":
            ax.set_xscale("symlog", linthresh=100.0)
            ticks = [-50, 0, 50, 100, 300, 1000, 4000]
            ax.set_xlim(-100.0, most)
            ax.set_xticks(ticks, [str(tick) for tick in ticks])
        else:
            ax.set_xlim(min(-60.0, min(map(min, found.values())) - 3.0), most)
        ax.set_yticks(range(len(found)), list(found))
        ax.set_xlabel("gain in speed, %", color=INK)
        _plain(ax, "x")
    words = (
        "What unequal micro-batches gain (proven optimum), by reading of the baseline; a dot is a setting; blue GPipe, orange "
        "PipeDream, dashed: published; a triangle: settings beyond the axis"
    )
    figure.suptitle(words, fontsize=10, x=0.01, ha="left")
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 0.98))
    return figure


# ---- convergence ---------------------------------------------------------------------------------------------


def convergence(plan: FoundSizes, optimum: float) -> tuple[list[int], list[float], list[float]]:
    """Evaluations, seconds, and per cent above the optimum at every point of a search's history."""
    evaluations = [count for count, _ in plan.history]
    above = [100.0 * (best / optimum - 1.0) for _, best in plan.history]
    return evaluations, list(plan.history_seconds), above


def convergence_figure(instances: Sequence[Instance]) -> Figure:
    """A row an instance: best so far above the optimum, of the searches against evaluations (left) and seconds (middle), and of
    one search on three evaluators against seconds (right)."""
    figure, grid = panels(14.0, 1.3 + 2.9 * len(instances), len(instances), 3, sharey="row")
    for row, instance in zip(grid, instances, strict=True):
        plans = instance.plans
        for titles, axes in ((SEARCHES, row[1]), (EVALUATORS, row[2])):
            for title in filter(plans.__contains__, titles):
                evaluations, seconds, above = convergence(plans[title], instance.optimum)
                color, line = LINES[title]
                look = {"where": "post", "color": color, "linestyle": line, "linewidth": 1.6}
                axes.step(seconds, above, **look)
                if axes is row[1]:
                    row[0].step(evaluations, above, **look)
        for title in LEVELS:
            color, line = LINES[title]
            for ax in row:
                ax.axhline(100.0 * instance.above(title), color=color, linestyle=line, linewidth=1.2)
        for ax in row[1:]:
            ax.axvline(plans["exact"].seconds, color=ALARM, linewidth=1.2)
            logarithmic_axes(ax, "x")
        shown = [title for title, plan in plans.items() if plan.history_seconds]
        most = 100.0 * max(map(instance.above, ("best equal size", *shown)))
        row[0].set_ylim(-0.03 * most, 1.25 * max(most, 0.5))
        row[0].set_ylabel("above the optimum, %", color=INK)
        matrix, compiled = instance.acceleration(MATRIX_FORM), instance.acceleration(COMPILED_FORM)
        heads = (
            legible(instance.name, 48),
            "searches",
            f"one search: matrix {matrix:.0f} ×, compiled {compiled:.0f} × as fast",
        )
        for ax, title, words in zip(row, heads, ("evaluations", "seconds", "seconds"), strict=True):
            titled(ax, title)
            _plain(ax, "both")
            ax.set_xlabel(words, color=INK, fontsize=9)
    figure.legend(handles=[*_convergence_handles()], loc="outside upper center", ncols=5, frameon=False, fontsize=8.5)
    return figure


def _convergence_handles() -> Iterator[Line2D]:
    for title, (color, line) in LINES.items():
        yield Line2D([], [], color=color, linestyle=line, linewidth=1.6, label=EVALUATORS.get(title, title))
    yield Line2D([], [], color=ALARM, linewidth=1.2, label="exact method has its proof")


# ---- memory --------------------------------------------------------------------------------------------------


def pareto_figure(rows: Sequence[Row]) -> Figure:
    """A panel a setting: makespan against the static memory of the fullest stage, the exact front and equal sizes beside.

    rows: of `memory_fronts`, with their setting
    """
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    figure, ((*found,),) = panels(6.4 * len(settings), 5.0, 1, len(settings))
    for ax, setting in zip(found, settings, strict=True):
        places: dict[str, dict[tuple[float, float], int]] = {"unequal": {}, "equal": {}}
        for row in rows:
            if row["setting"] == setting:
                place = 1e3 * row["seconds"], row["static_bytes"] / 2**20
                places[row["sizes"]][place] = row["forward_sizes"][0]
        points = sorted(places["unequal"])
        (left, top), (_, bottom) = points[0], points[-1]
        look = {"color": BLUE, "markersize": 5, "label": "unequal sizes: every optimum", "zorder": 3}
        ax.step(*zip(*points, strict=True), where="post", color=BLUE, linewidth=1.4, zorder=2)
        ax.plot(*zip(*points, strict=True), "o", **look)
        right, room = left + 1.5 * (points[-1][0] - left), 0.15 * (top - bottom)
        ax.set_xlim(left - 0.05 * (right - left), right)
        ax.set_ylim(bottom - room, top + 3.0 * room)
        inside = [(x, y) for x, y in sorted(places["equal"]) if x < right and y < top + 2.6 * room]
        crosses = [x for x, _ in inside], [y for _, y in inside]
        ax.plot(*crosses, "x", color=ORANGE, markersize=6, label="equal sizes", zorder=2)
        for place, size in places["equal"].items():
            if place in inside:
                noted(ax, str(size), place, (6, 4), fontsize=8, color=FAINT)
        ax.set_xlabel("makespan of a mini-batch, ms (numbers: the equal size)", color=INK)
        ax.set_ylabel("memory of the fullest stage, MiB\n(without receive queues)", color=INK)
        titled(ax, legible(setting, 60))
        _plain(ax, "both")
    legend_below(figure, 2, *found[0].get_legend_handles_labels())
    return figure


# ---- Gantt ---------------------------------------------------------------------------------------------------


def gantt_figure(shown: GainCase) -> Figure:
    """The tuned GPipe above the unequal winner, on one time axis."""
    figure = Picture(figsize=(13.0, 8.4), dpi=100, facecolor="white")
    axes = figure.subplots(2, 1)
    longest = max(shown.plan.makespan_seconds, shown.gpipe.makespan_seconds)
    for ax, problem, plan, words in (
        (axes[0], shown.gpipe_problem, shown.gpipe, f"GPipe, size {shown.gpipe.forward_sizes[0]} everywhere"),
        (axes[1], shown.problem, shown.plan, f"unequal: {_sizes(shown.plan)}"),
    ):
        timeline = event_loop.replay(program_of(problem, plan.forward_sizes, plan.backward_sizes), contention=True)
        title = f"{shown.network}, {shown.setting} · {words} · {1e3 * plan.makespan_seconds:.4g} ms"
        gantt(timeline, ax, title=title, window=(0.0, longest))
        ax.set_xlabel("time, ms", color=INK)
    figure.tight_layout(h_pad=2.5)
    return figure


def _sizes(plan: FoundSizes) -> str:
    forward, backward = (" ".join(map(str, sizes)) for sizes in (plan.forward_sizes, plan.backward_sizes))
    return f"f = g = {forward}" if forward == backward else f"f = {forward}, g = {backward}"


def _plain(ax: Axes, along: Literal["x", "y", "both"]) -> None:
    unframed(ax, along, 0.7)
    ax.tick_params(labelsize=9, colors=INK)
