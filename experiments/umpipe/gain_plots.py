"""UMPIPE plots: gains over every reading of the baselines, convergence, memory against makespan, and two Gantt charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.terminal.panel_plots import BLUE, GREEN, GREY, ORANGE, unframed
from experiments.unequal_sizes.table_costs import program_of
from hardware_profiles import legible
from planners.unequal import FoundSizes, UnequalProblem
from simulator import gantt
from simulator.engines import event_loop
from simulator.results.figures import ALARM, FAINT, INK, logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from experiments.umpipe.search_comparison import Instance

SEARCHES: dict[str, tuple[str, str]] = {
    "DGAP": (BLUE, "-"),
    "DGAP, single chromosome": (ORANGE, "-"),
    "TiDGAP": (GREEN, "--"),
    "TiDGAP, distinct survivors": ("#7a2653", "-"),
    "pymoo GA": ("#b9b2dd", "-"),
}
"""Different searches: colour and dashes."""

EVALUATORS: dict[str, tuple[str, str, str]] = {
    "DGAP": ("plain evaluator (DGAP)", BLUE, "-"),
    "TiDGAP, unseeded": ("matrix evaluator (TiDGAP)", BLUE, "--"),
    "TiDGAP, compiled": ("compiled evaluator", BLUE, ":"),
}
"""The same search, from the same start, on three evaluators: words, colour and dashes."""

LEVELS: dict[str, tuple[str, Any]] = {"greedy DP": (GREY, "-."), "best equal size": (INK, (0, (1, 2)))}


class Shown(Protocol):
    """What a Gantt pair is drawn from: UMPIPE's plan and a tuned GPipe's, each on its own partition."""

    @property
    def network(self) -> str: ...
    @property
    def setting(self) -> str: ...
    @property
    def problem(self) -> UnequalProblem: ...
    @property
    def plan(self) -> FoundSizes: ...
    @property
    def gpipe_problem(self) -> UnequalProblem: ...
    @property
    def gpipe(self) -> FoundSizes: ...


# ---- gains ---------------------------------------------------------------------------------------------------


def gains_by_reading(gains: Mapping[tuple[str, str], Mapping[str, float]], network: str) -> dict[str, list[float]]:
    """Reading -> gains in percent over all settings of a network."""
    found: dict[str, list[float]] = {}
    for (one, _), values in gains.items():
        if one == network:
            for name, gain in values.items():
                found.setdefault(name, []).append(100.0 * gain)
    return found


def gains_figure(
    gains: Mapping[tuple[str, str], Mapping[str, float]], published: Mapping[tuple[str, str], float]
) -> Figure:
    """One panel a network: a dot for every setting, a row for every reading, a line at each published gain."""
    networks = list(dict.fromkeys(network for network, _ in gains))
    figure = Figure(figsize=(13.5, 5.4), dpi=100, facecolor="white")
    panels = figure.subplots(1, len(networks), sharey=True, squeeze=False)[0]
    for ax, network in zip(panels, networks, strict=True):
        found = gains_by_reading(gains, network)
        names = list(found)[::-1]
        most = 7000.0 if network == "simulation" else 100.0
        for row, name in enumerate(names):
            color = BLUE if name.startswith("gpipe") else ORANGE
            ax.plot(found[name], [row] * len(found[name]), "o", color=color, alpha=0.55, markersize=5, clip_on=True)
            beyond = [gain for gain in found[name] if gain > most]
            if beyond:
                ax.plot(most, row, ">", color=color, markersize=6, clip_on=False)
        for system, color in (("gpipe", BLUE), ("pipedream", ORANGE)):
            value = 100.0 * published[network, system]
            ax.axvline(value, color=color, linestyle="--", linewidth=1.2)
        ax.axvline(0.0, color=INK, linewidth=0.8)
        texts = [f"{system} {100 * published[network, system]:.4g} %" for system in ("gpipe", "pipedream")]
        ax.set_title(f"{network}\npublished: {', '.join(texts)}", fontsize=10, color=INK, loc="left")
        if network == "simulation":
            ax.set_xscale("symlog", linthresh=100.0)
            ticks = [-50, 0, 50, 100, 300, 1000, 4000]
            ax.set_xlim(-100.0, most)
            ax.set_xticks(ticks, [str(tick) for tick in ticks])
        else:
            ax.set_xlim(min(-60.0, min(map(min, found.values())) - 3.0), most)
        ax.set_yticks(range(len(names)), names)
        ax.set_xlabel("gain in speed, %", color=INK)
        _plain(ax, "x")
    figure.suptitle(
        "What unequal micro-batches gain (proven optimum), by reading of the baseline; a dot is a setting; blue GPipe, orange "
        "PipeDream, dashed: published; a triangle: settings beyond the axis",
        fontsize=10,
        x=0.01,
        ha="left",
    )
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
    figure = Figure(figsize=(14.0, 1.3 + 2.9 * len(instances)), dpi=100, facecolor="white", layout="constrained")
    grid = figure.subplots(len(instances), 3, sharey="row", squeeze=False)
    for row, instance in zip(grid, instances, strict=True):
        plans = {found.search: found.plan for found in reversed(instance.found)}
        for title, (color, line) in SEARCHES.items():
            if title in plans:
                evaluations, seconds, above = convergence(plans[title], instance.optimum)
                row[0].step(evaluations, above, where="post", color=color, linestyle=line, linewidth=1.6)
                row[1].step(seconds, above, where="post", color=color, linestyle=line, linewidth=1.6)
        for title, (_, color, line) in EVALUATORS.items():
            if title in plans:
                _, seconds, above = convergence(plans[title], instance.optimum)
                row[2].step(seconds, above, where="post", color=color, linestyle=line, linewidth=1.6)
        for title, (color, line) in LEVELS.items():
            level = 100.0 * (instance.plan(title).makespan_seconds / instance.optimum - 1.0)
            for ax in row:
                ax.axhline(level, color=color, linestyle=line, linewidth=1.2)
        for ax in row[1:]:
            ax.axvline(instance.plan("exact").seconds, color=ALARM, linewidth=1.2)
            ax.set_xscale("log")
            logarithmic(ax.xaxis)
        level = 100.0 * (instance.plan("best equal size").makespan_seconds / instance.optimum - 1.0)
        worst = max(
            above for found in instance.found for above in [100 * found.above_exact] if found.plan.history_seconds
        )
        row[0].set_ylim(-0.03 * max(level, worst), 1.25 * max(level, worst, 0.5))
        row[0].set_ylabel("above the optimum, %", color=INK)
        row[0].set_title(legible(instance.name, 48), fontsize=10, loc="left", color=INK)
        row[1].set_title("searches", fontsize=10, loc="left", color=INK)
        row[2].set_title(
            f"one search: matrix {instance.acceleration:.0f} ×, compiled {instance.compiled_acceleration:.0f} × as fast",
            fontsize=10,
            loc="left",
            color=INK,
        )
        for ax in row:
            _plain(ax, "both")
    for row in grid:
        for ax, words in zip(row, ("evaluations", "seconds", "seconds"), strict=True):
            ax.set_xlabel(words, color=INK, fontsize=9)
    figure.legend(handles=_convergence_handles(), loc="outside upper center", ncols=5, frameon=False, fontsize=8.5)
    return figure


def _convergence_handles() -> list[Line2D]:
    lines: list[tuple[str, str, Any]] = [(title, color, line) for title, (color, line) in SEARCHES.items()]
    lines += [style for title, style in EVALUATORS.items() if title not in SEARCHES]
    lines += [(title, color, line) for title, (color, line) in LEVELS.items()]
    handles = [Line2D([], [], color=color, linestyle=line, linewidth=1.6, label=words) for words, color, line in lines]
    return [*handles, Line2D([], [], color=ALARM, linewidth=1.2, label="exact method has its proof")]


# ---- memory --------------------------------------------------------------------------------------------------


def pareto_figure(fronts: Mapping[str, tuple[Sequence[Any], Sequence[Any]]]) -> Figure:
    """A panel a setting: makespan against the static memory of the fullest stage, the exact front and equal sizes beside."""
    figure = Figure(figsize=(6.4 * len(fronts), 5.0), dpi=100, facecolor="white", layout="constrained")
    panels = figure.subplots(1, len(fronts), squeeze=False)[0]
    for ax, (setting, (front, equal)) in zip(panels, fronts.items(), strict=True):
        points, plain = _milliseconds_and_mib(front), _milliseconds_and_mib(equal)
        ax.step(*zip(*points, strict=True), where="post", color=BLUE, linewidth=1.4, zorder=2)
        ax.plot(
            *zip(*points, strict=True), "o", color=BLUE, markersize=5, label="unequal sizes: every optimum", zorder=3
        )
        right = points[0][0] + 1.5 * (points[-1][0] - points[0][0])
        room = 0.15 * (points[0][1] - points[-1][1])
        ax.set_xlim(points[0][0] - 0.05 * (right - points[0][0]), right)
        ax.set_ylim(points[-1][1] - room, points[0][1] + 3.0 * room)
        inside = [(x, y) for x, y in plain if x < right and y < points[0][1] + 2.6 * room]
        ax.plot(
            [x for x, _ in inside],
            [y for _, y in inside],
            "x",
            color=ORANGE,
            markersize=6,
            label="equal sizes",
            zorder=2,
        )
        for point in equal:
            place = 1e3 * point.seconds, point.static_bytes / 2**20
            if place in inside:
                label = str(point.forward_sizes[0])
                ax.annotate(label, place, (6, 4), textcoords="offset points", fontsize=8, color=FAINT)
        ax.set_xlabel("makespan of a mini-batch, ms (numbers: the equal size)", color=INK)
        ax.set_ylabel("memory of the fullest stage, MiB\n(without receive queues)", color=INK)
        ax.set_title(legible(setting, 60), fontsize=10, loc="left", color=INK)
        _plain(ax, "both")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _milliseconds_and_mib(points: Sequence[Any]) -> list[tuple[float, float]]:
    return sorted((1e3 * point.seconds, point.static_bytes / 2**20) for point in points)


# ---- Gantt ---------------------------------------------------------------------------------------------------


def gantt_figure(shown: Shown) -> Figure:
    """The tuned GPipe above the unequal winner, on one time axis."""
    figure = Figure(figsize=(13.0, 8.4), dpi=100, facecolor="white")
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
