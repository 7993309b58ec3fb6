"""UMPIPE plots: gains over every reading of the baselines, convergence, memory against makespan, and two Gantt charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.compare.method_looks import look_of
from experiments.terminal.report_tables import STALE_WORDS, Row
from experiments.umpipe.gain_tables import HEADINGS, SHOWN
from experiments.umpipe.gains import ALIKE, PUBLISHED, GainCase
from experiments.umpipe.readings import JOINT
from experiments.umpipe.search_comparison import COMPILED_FORM, MATRIX_FORM, Instance
from experiments.unequal_sizes.table_costs import program_of
from hardware_profiles import legible, percent
from planners.unequal import FoundSizes
from simulator import gantt
from simulator.engines import event_loop
from simulator.results.figures import (
    ALARM,
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    LINEAR_WORDS,
    ORANGE,
    Picture,
    legend_below,
    linear_part,
    logarithmic_axes,
    noted,
    panels,
    titled,
    unframed,
)

PUBLISHED_SYSTEMS = {"gpipe": "GPipe", "pipedream": "PipeDream"}

RECUTS = {"all recompute": BLUE, "run again": ORANGE, "free": GREEN, "nothing stored": "#c6ccd4"}
"""Colour of a rule of re-cutting stored activations."""

RECUT_WORDS = {
    "all recompute": "both sides recompute",
    "run again": "stored; forward again where sizes differ",
    "free": "stored; cut again for free",
    "nothing stored": "tables without activations",
}

STROKES: dict[str, Any] = {
    "DGAP": "-",
    "DGAP, single chromosome": "-",
    "TiDGAP": "--",
    "TiDGAP, distinct survivors": "-",
    "pymoo GA": "-",
    MATRIX_FORM: "--",
    COMPILED_FORM: ":",
    "greedy DP": "-.",
    "best equal size": (0, (1, 2)),
}
"""Dashes of a search."""

LINES = {
    title: (look_of("DGAP" if title in (MATRIX_FORM, COMPILED_FORM) else title).color, STROKES[title])
    for title in STROKES
}
"""Colour and dashes of a search; DGAP has one colour on all evaluators."""

SIMULATED = "simulation"
"""What the networks of tables are called, whose gains are up to a hundred times those of others."""

LINEAR, MOST = 100.0, 100.0
"""Per cent up to which the gains of tables are drawn in proportion, and those of other networks at all."""

SEARCHES, LEVELS = list(LINES)[:5], list(LINES)[7:]
"""Different searches, and those without a history."""

EVALUATORS = {"DGAP": "DGAP", MATRIX_FORM: "matrix evaluator (TiDGAP)", COMPILED_FORM: "compiled evaluator"}
"""The same search, from the same start, on three evaluators."""


# ---- gains ---------------------------------------------------------------------------------------------------


class GainLine(NamedTuple):
    """A line of the figure: its words, the system that it compares with, and the gains of all settings by rule of re-cutting."""

    words: str
    system: str
    gains: Mapping[str, Sequence[float]]


def lines_of(rows: Sequence[Row], network: str) -> list[GainLine]:
    """The lines of a network, from the top: every reading over GPipe tuned alike, then the other baselines, both sides alike.

    rows: of `gains.mean_gains`
    """
    own = [row for row in rows if row["network"] == network]
    readings = list(dict.fromkeys((row["partition"], row["sizes"]) for row in own))
    alike = [reading for reading in readings if reading[0] in (JOINT, "given")]
    shown = [(ALIKE["gpipe"], reading) for reading in readings]
    shown += [(baseline, reading) for baseline in SHOWN[1:] for reading in alike if reading[1] == "all"]
    found = []
    for baseline, reading in shown:
        gains: dict[str, list[float]] = {}
        for row in own:
            if (row["partition"], row["sizes"]) == reading and baseline in row["gains"]:
                gains.setdefault(row["recut"], []).append(100.0 * row["gains"][baseline])
        words = [word for word in reading if word != "given"]
        found.append(GainLine(" · ".join((HEADINGS[baseline], *words)), baseline.split(" ")[0], gains))
    return found


def gains_figure(rows: Sequence[Row]) -> Figure:
    """One panel per network: a line per reading, a dot for every setting, a bar at the mean, dashes at the published gain, a
    triangle where some lie beyond the axis.

    rows: of `gains.mean_gains`
    """
    networks = list(dict.fromkeys(row["network"] for row in rows))
    found = {network: lines_of(rows, network) for network in networks}
    figure, ((*panes,),) = panels(6.4 * len(networks), 1.6 + 0.34 * max(map(len, found.values())), 1, len(networks))
    linear, beyond = None, False
    for ax, (network, lines) in zip(panes, found.items(), strict=True):
        least, most = _ends(network, lines)
        for place, line in enumerate(lines):
            for shift, (recut, gains) in zip((-0.2, 0.0, 0.2), line.gains.items(), strict=False):
                look = {"color": RECUTS[recut], "markersize": 4, "clip_on": True}
                ax.plot(gains, [place + shift] * len(gains), "o", alpha=0.45, **look)
                mean = sum(gains) / len(gains)
                ax.plot(min(mean, most), place + shift, "|", color=INK, markersize=9, markeredgewidth=1.6)
                if max(gains) > most:
                    beyond = True
                    ax.plot(most, place + shift, ">", color=RECUTS[recut], markersize=6, clip_on=False)
        for system in PUBLISHED_SYSTEMS:
            of = [place for place, line in enumerate(lines) if line.system == system]
            if of:
                gain = 100.0 * PUBLISHED[network, system]
                ax.plot([gain, gain], [of[0] - 0.5, of[-1] + 0.5], color=ALARM, linestyle="--", linewidth=1.3)
        ax.axvline(0.0, color=INK, linewidth=0.8)
        texts = ", ".join(
            f"{words} {percent(PUBLISHED[network, system], '.4g')}" for system, words in PUBLISHED_SYSTEMS.items()
        )
        titled(ax, f"{network}\npublished over {texts}", size=9.5)
        if network == SIMULATED:
            ax.set_xscale("symlog", linthresh=LINEAR)
            ticks = [-50, 0, 50, 100, 300, 1000, 4000]
            ax.set_xticks(ticks, [str(tick) for tick in ticks])
            linear = linear_part(ax, LINEAR)
        ax.set_xlim(least, most)
        ax.set_yticks(range(len(lines)), [line.words for line in lines])
        ax.set_ylim(len(lines) - 0.5, -0.5)
        ax.set_xlabel("gain in speed, %", color=INK)
        _plain(ax, "x")
    used = list(dict.fromkeys(recut for lines in found.values() for line in lines for recut in line.gains))
    handles = [*_gain_handles(used, beyond=beyond)]
    entries = [(one, str(one.get_label())) for one in handles] + [(linear, LINEAR_WORDS)] * (linear is not None)
    legend_below(figure, len(entries), *zip(*entries, strict=True), note=STALE_WORDS)
    title = "Gain of unequal micro-batches of optimal sizes, by baseline · partition · sizes"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _gain_handles(recuts: Sequence[str], *, beyond: bool) -> Iterator[Line2D]:
    mark: dict[str, Any] = {"linestyle": "", "markersize": 9}
    for one in recuts:
        yield Line2D([], [], marker="o", linestyle="", color=RECUTS[one], label=RECUT_WORDS[one])
    yield Line2D([], [], marker="|", color=INK, label="mean of the settings", **mark)
    if beyond:
        yield Line2D([], [], marker=">", color=GREY, label="some beyond the axis", **mark)
    yield Line2D([], [], color=ALARM, linestyle="--", linewidth=1.3, label="published gain")


def _ends(network: str, lines: Sequence[GainLine]) -> tuple[float, float]:
    """Gains at the ends of an axis, which holds all of a network's but those beyond MOST."""
    if network == SIMULATED:
        return -LINEAR, 7000.0
    gains = [gain for line in lines for own in line.gains.values() for gain in own]
    gains += [0.0, *(100.0 * PUBLISHED[network, system] for system in PUBLISHED_SYSTEMS)]
    room = 0.05 * (min(MOST, max(gains)) - min(gains))
    return min(gains) - room, min(MOST, max(gains) + room)


# ---- convergence ---------------------------------------------------------------------------------------------


def convergence(plan: FoundSizes, optimum: float) -> tuple[list[int], list[float], list[float]]:
    """Evaluations, seconds, and per cent above the optimum at every point of a search's history."""
    evaluations = [count for count, _ in plan.history]
    above = [100.0 * (best / optimum - 1.0) for _, best in plan.history]
    return evaluations, list(plan.history_seconds), above


def convergence_figure(instances: Sequence[Instance]) -> Figure:
    """A row per instance: best so far above the optimum, of the searches against evaluations (left) and seconds (middle), and of
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
            f"one search: matrix {matrix:.0f}×, compiled {compiled:.0f}× as fast",
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
    """A panel per setting: makespan against the static memory of the fullest stage, the exact front and equal sizes beside.

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
        far, room = left + 1.5 * (points[-1][0] - left), 0.15 * (top - bottom)
        inside = [(x, y) for x, y in sorted(places["equal"]) if x < far and y < top + 2.6 * room]
        right = max(points[-1][0], *(x for x, _ in inside), left)
        ax.set_xlim(left - 0.05 * (right - left), right + 0.08 * (right - left))
        ax.set_ylim(bottom - room, top + 3.0 * room)
        _capacity(ax, max(row["capacity_bytes"] for row in rows if row["setting"] == setting) / 2**20)
        crosses = [x for x, _ in inside], [y for _, y in inside]
        ax.plot(*crosses, "x", color=ORANGE, markersize=6, label="equal sizes; beside each its samples", zorder=2)
        for place, size in places["equal"].items():
            if place in inside:
                noted(ax, str(size), place, (6, 4), fontsize=8, color=FAINT)
        ax.set_xlabel("makespan of a mini-batch, ms", color=INK)
        ax.set_ylabel("memory of the fullest stage, MiB\n(without receive queues)", color=INK)
        titled(ax, legible(setting, 60))
        _plain(ax, "both")
    legend_below(figure, 2, *found[0].get_legend_handles_labels())
    return figure


def _capacity(ax: Axes, mebibytes: float) -> None:
    """The memory that a device has for plans: a line, or words where it lies above the panel."""
    inside = mebibytes < ax.get_ylim()[1]
    if inside:
        ax.axhline(mebibytes, color=ALARM, linewidth=1.2)
    words = f"capacity {mebibytes:,.0f} MiB" + ", above the panel" * (not inside)
    place = {"xycoords": ("axes fraction", "data")} if inside else {"xycoords": "axes fraction"}
    at = (1.0, mebibytes) if inside else (1.0, 1.0)
    noted(ax, words, at, (-4, -4), ha="right", va="top", fontsize=8, color=ALARM, **place)


# ---- Gantt ---------------------------------------------------------------------------------------------------


def gantt_figure(shown: GainCase) -> Figure:
    """The tuned GPipe above the unequal winner, on one time axis."""
    figure = Picture(figsize=(13.0, 8.4), dpi=100, facecolor="white")
    axes = figure.subplots(2, 1)
    longest = max(shown.plan.makespan_seconds, shown.gpipe.makespan_seconds)
    for ax, problem, plan, words in (
        (axes[0], shown.gpipe_problem, shown.gpipe, f"GPipe, {shown.gpipe.forward_sizes[0]} samples each"),
        (axes[1], shown.problem, shown.plan, f"unequal, {_sizes(shown.plan)}"),
    ):
        timeline = event_loop.replay(program_of(problem, plan.forward_sizes, plan.backward_sizes), contention=True)
        title = f"{shown.network}, {shown.setting} · {words}"
        gantt(timeline, ax, title=title, window=(0.0, longest))
        ax.set_xlabel("time, ms", color=INK)
    figure.tight_layout(h_pad=2.5)
    return figure


def _sizes(plan: FoundSizes) -> str:
    forward, backward = (" ".join(map(str, sizes)) for sizes in (plan.forward_sizes, plan.backward_sizes))
    return f"sizes {forward}" if forward == backward else f"forward {forward}, backward {backward}"


def _plain(ax: Axes, along: Literal["x", "y", "both"]) -> None:
    unframed(ax, along, 0.7)
    ax.tick_params(labelsize=9, colors=INK)
