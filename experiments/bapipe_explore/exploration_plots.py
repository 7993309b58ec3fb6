"""BaPipe explore plots: schedules, speedup and memory per plan, the claims over bandwidth and memory, and depth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from experiments.bapipe_explore.exploration import MEMORY_CLAIM, SPEEDUP_CLAIM
from experiments.compare.method_looks import look_of
from experiments.terminal.report_tables import STALE, STALE_WORDS, Row, marked
from hardware_profiles import GIB, legible
from simulator.results.figures import ALARM, FAINT, INK, grid, grouped_bars, legend_below, noted, panels

NAMES = {
    "data-parallel": "data parallelism",
    "uniform": "uniform GPipe",
    "pipedream": f"PipeDream{STALE}, asynchronous",
    "pipedream-flush": "PipeDream, flushed",
    "bapipe": "BaPipe's answer",
    "bapipe pipeline": "BaPipe, straight pipeline",
}
SCHEDULES = "1F1B-AS", "FBP-AS", "FBP split", "1F1B-SNO", "1F1B-SO"
TITLES = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "gnmt8": "GNMT-8"}


def figures(result: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, Figure]]:
    """Every figure, by its file's name; studies without rows are left out, and maps of one cell, which the tables tell."""
    if result.get("schedules"):
        yield "schedules", schedules(result["schedules"])
    for study in ("gpu", "fpga"):
        rows = [row for row in result.get("plans", ()) if row["study"] == study]
        if rows:
            yield f"{study}-speedup", plans(rows, "speedup", "speedup over data parallelism")
            yield f"{study}-memory", plans(rows, "peak_bytes", "peak memory of the fullest device, GiB", 1 / GIB)
    for name, down in (("claims", "memory_gib"), ("boards", "precision")):
        if len({(row["bandwidth"], row[down]) for row in result.get(name, ())}) > 1:
            yield name, claims(result[name], down)
    if result.get("depth"):
        yield "depth", depth(result["depth"])


def schedules(rows: Sequence[Row]) -> Figure:
    """Mini-batch seconds over transfer seconds, by formula and simulated, and micro-batches kept by stage."""
    shape = (rows[0]["stages"], rows[0]["microbatches"])
    chosen = [row for row in rows if (row["stages"], row["microbatches"]) == shape]
    figure, ((time, link, kept),) = panels(12, 4.8, 1, 3)
    link.sharey(time)
    held: dict[str, Any] = {}
    for label in SCHEDULES:
        mine, look = [row for row in chosen if row["schedule"] == label], look_of(label)
        held[label] = mine[0]["kept_simulated"]
        sending, formula, simulated, streamed = (
            [row[f"{of}_seconds"] for row in mine] for of in ("transfer", "formula", "simulated", "streamed")
        )
        # Two rows of the table coincide: the dashes let both be seen.
        style = (0, (4, 4)) if label == "FBP-AS" else "-"
        points = {"color": look.color, "marker": look.mark, "markersize": 6, "linestyle": "none"}
        time.plot(sending, formula, linestyle=style, color=look.color, linewidth=2)
        time.plot(sending, simulated, **points)
        if streamed[0] is not None:
            link.plot(sending, streamed, **points | {"linestyle": ":"})
    time.axvline(1.5, color=FAINT, linewidth=1, linestyle=":")
    upright = {"xycoords": time.get_xaxis_transform(), "rotation": 90, "va": "center", "fontsize": 8, "color": FAINT}
    noted(time, "SR = (F+B)/2", (1.5, 0.8), (4, 0), **upright)
    time.margins(x=0.08)
    seconds = {"xlabel": "SR, seconds of one transfer", "ylabel": "mini-batch seconds"}
    time.set(title="transfers behind their ops", **seconds)
    link.set(title="transfers streamed beside their ops", **seconds)
    grouped_bars(kept, held, {label: look_of(label).bar for label in SCHEDULES})
    kept.set_xticks(range(shape[0]), [str(stage + 1) for stage in range(shape[0])])
    kept.set(title="micro-batches kept, simulated", xlabel="stage", ylabel="micro-batches")
    for axes in (time, link, kept):
        grid(axes)
    bars, labels = kept.get_legend_handles_labels()
    looks = [look_of(label) for label in labels]
    pairs: list[Any] = [
        (bar, Line2D([], [], color=look.color, marker=look.mark, markersize=6, linestyle="none"))
        for bar, look in zip(bars, looks, strict=True)
    ]
    pairs.append(Line2D([], [], color=INK, linewidth=2))
    pairs.append(Line2D([], [], color=INK, marker="o", linestyle="none"))
    pairs.append(Line2D([], [], color=INK, marker="o", linestyle=":"))
    words = ["formula", "simulated", "simulated, where there is no formula"]
    legend_below(figure, 4, pairs, [*labels, *words], handler_map={tuple: HandlerTuple(ndivide=None)})
    figure.suptitle(f"BaPipe's schedules: {shape[0]} stages, {shape[1]} micro-batches, F = 1, B = 2")
    return figure


def plans(rows: Sequence[Row], key: str, label: str, scale: float = 1.0) -> Figure:
    """Bars of one measure, a panel per workload, a group of bars per cluster; a cross and a word where a method has no plan.

    key: of the rows, `speedup` or `peak_bytes`; label, scale: of the axis
    """
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    methods = [method for method in NAMES if any(row["method"] == method for row in rows)]
    looks = {method: look_of(method).bar for method in methods}
    known = {(row["workload"], row["cluster"], row["method"]): row.get(key) for row in rows}
    if len(clusters) > 4:
        figure, found = panels(13, 3.2 * len(workloads) + 1.6, len(workloads), 1, sharex=True)
    else:
        figure, found = panels(max(8.0, 4.4 * len(workloads) + 1), 5, 1, len(workloads))
    claimed = key == "speedup" and max((one or 0.0) for one in known.values()) > SPEEDUP_CLAIM / 2
    for axes, workload in zip(found.ravel(), workloads, strict=True):
        shown = {one: [known.get((workload, cluster, one), math.nan) for cluster in clusters] for one in methods}
        grouped_bars(axes, shown, looks, width=0.84, scale=scale, absent="no plan")
        if key == "peak_bytes":
            _capacities(axes, [row for row in rows if row["workload"] == workload], clusters, methods)
        if key == "speedup":
            axes.axhline(1.0, color=INK, linewidth=0.8)
            if claimed:
                axes.axhline(SPEEDUP_CLAIM, color=ALARM, linewidth=1, linestyle="--")
        axes.set_title(legible(TITLES.get(workload, workload), 40), fontsize=11)
        axes.set_ylabel(label, fontsize=9)
        axes.set_xticks(range(len(clusters)), [_two_lines(cluster) for cluster in clusters], fontsize=9)
        axes.set_xlim(-0.5, len(clusters) - 0.5)
        axes.margins(y=0.1)
        grid(axes)
    handles: list[Any] = [Rectangle((0, 0), 1, 1, **looks[method]) for method in methods]
    labels = [NAMES[method] for method in methods]
    if key == "peak_bytes":
        handles.append(Line2D([], [], color=ALARM, linewidth=1.5))
        labels.append("capacity")
    if claimed:
        handles.append(Line2D([], [], color=ALARM, linewidth=1, linestyle="--"))
        labels.append(f"“up to {SPEEDUP_CLAIM:g}×”")
    legend_below(figure, min(4, len(labels)), handles, labels, note=STALE_WORDS * ("pipedream" in methods))
    return figure


def _capacities(axes: Axes, rows: Sequence[Row], clusters: Sequence[str], methods: Sequence[str]) -> None:
    """A line over each bar at what its device may hold."""
    each = 0.84 / len(methods)
    for row in rows:
        if "capacity_bytes" in row:
            left = clusters.index(row["cluster"]) + (methods.index(row["method"]) - len(methods) / 2) * each
            axes.hlines(row["capacity_bytes"] / GIB, left, left + each, color=ALARM, linewidth=1.5)


def _two_lines(text: str) -> str:
    return text.replace(" + ", " +\n") if "+" in text else text.replace(" ", "\n", 1)


def claims(rows: Sequence[Row], down: str) -> Figure:
    """Speedup, and memory of data parallelism over BaPipe's, by bandwidth and `down`; red frames where a claim is reached.

    down: key of the rows' axis, `memory_gib` or `precision`
    """
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    lines = len({row[down] for row in rows})
    figure, grid = panels(
        max(6.5, 4.9 * len(workloads) + 0.6), 3 * max(1.9, 0.62 * lines + 1.1) + 0.9, 3, len(workloads)
    )
    measures = (
        ("speedup", "speedup over data parallelism", SPEEDUP_CLAIM),
        ("memory_reduction", "times less memory, fastest plan", MEMORY_CLAIM),
        ("most_memory_reduction", "times less memory, leanest plan, at its speedup", MEMORY_CLAIM),
    )
    for line, (key, title, claim) in zip(grid, measures, strict=True):
        for axes, workload in zip(line, workloads, strict=True):
            _heat(axes, [row for row in rows if row["workload"] == workload], key, claim, down)
            axes.set_title(f"{TITLES.get(workload, workload)}: {title}", fontsize=10)
    figure.suptitle(f"BaPipe against data parallelism on {rows[0]['machine']}")
    frame = Rectangle((0, 0), 1, 1, fill=False, color=ALARM, linewidth=2)
    legend_below(figure, 1, [frame], [f"“up to {SPEEDUP_CLAIM:g}×” or “{MEMORY_CLAIM:g}× less memory” is reached"])
    return figure


def _heat(axes: Axes, rows: Sequence[Row], key: str, claim: float, down: str) -> None:
    bandwidths = sorted({row["bandwidth"] for row in rows})
    places = list(dict.fromkeys(row[down] for row in rows))
    values = np.full((len(places), len(bandwidths)), np.nan)
    scale, colours = mpl.colors.Normalize(0.8, 1.5 * claim), mpl.colormaps["Blues"]
    for row in rows:
        y, x = places.index(row[down]), bandwidths.index(row["bandwidth"])
        found = row.get(key)
        text, ink = ("BaPipe\nalone fits" if row["bapipe_fits"] else "neither\nfits"), INK
        if found is not None:
            values[y, x] = found
            text = f"{found:.2g}×" if found < 9.95 else f"{found:.0f}×"
            if key == "most_memory_reduction":
                text += f"\nat {row['leanest_speedup']:.2g}×"
            if found >= claim:
                axes.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, color=ALARM, linewidth=2.5))
            ink = "white" if scale(found) > 0.55 else INK
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color=ink)
    axes.imshow(values, cmap=colours, norm=scale, aspect="auto")
    axes.set_xticks(range(len(bandwidths)), [f"{one / 1e9:g}" for one in bandwidths])
    axes.set_yticks(range(len(places)), [str(one) if down == "precision" else f"{one:g}" for one in places])
    axes.set_xlabel("bandwidth of a link, GB/s", fontsize=9)
    axes.set_ylabel("precision" if down == "precision" else "memory for plans, GiB", fontsize=9)


def depth(rows: Sequence[Row]) -> Figure:
    """Largest L of GNMT-L, a group of bars per number of devices; a search that was not finished has no bar."""
    devices = list(dict.fromkeys(row["devices"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    looks = {method: look_of(method).bar for method in methods}
    deepest = {(row["method"], row["devices"]): row["layers"] for row in rows}
    shown = {method: [deepest.get((method, count), math.nan) for count in devices] for method in methods}
    figure, ((axes,),) = panels(8, 4.6)
    for method, bars in grouped_bars(axes, shown, looks, width=0.84).items():
        bars.set_label(next(marked(row, "method") for row in rows if row["method"] == method))
        axes.bar_label(bars, fontsize=8, padding=2)
    axes.set_xticks(range(len(devices)), [f"{n} V100" for n in devices])
    axes.set(
        ylabel="largest L of GNMT-L that fits, layers",
        title="GNMT-L on V100s of 16 GiB, 64 sequences per device",
    )
    grid(axes)
    axes.margins(y=0.1)
    legend_below(figure, len(methods), note=STALE_WORDS)
    return figure
