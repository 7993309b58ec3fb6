"""BaPipe explore plots: schedules, speedup and memory per plan, the claims over bandwidth and memory, and depth."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from experiments.terminal.panel_plots import grid
from hardware_profiles import legible
from simulator.results.figures import ALARM, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

COLOURS = {
    "data-parallel": "#a5adb5",
    "uniform": "#f0b866",
    "pipedream": "#b9d9f0",
    "pipedream-flush": "#4f8fbf",
    "bapipe": "#1f2328",
    "bapipe pipeline": "#1f6b47",
}
"""Each of a lightness of its own."""

NAMES = {
    "data-parallel": "data parallelism",
    "uniform": "uniform GPipe",
    "pipedream": "PipeDream, asynchronous",
    "pipedream-flush": "PipeDream, flushed",
    "bapipe": "BaPipe's answer",
    "bapipe pipeline": "BaPipe, straight pipeline",
}
SCHEDULE_COLOURS = {
    "1F1B-AS": "#123f66",
    "FBP-AS": "#3a9d6b",
    "FBP split": "#9ccfb3",
    "1F1B-SNO": "#b3261e",
    "1F1B-SO": "#e0a458",
}
TITLES = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "gnmt8": "GNMT-8"}
DEPTH_METHODS = ("data-parallel", "uniform GPipe", "pipedream", "bapipe 1F1B-SO", "bapipe 1F1B")
SPEEDUP_CLAIM, MEMORY_CLAIM = 3.2, 4.0
GIB = 2.0**30


def figures(result: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, Figure]]:
    """Every figure, by its file's name; studies without rows are left out."""
    if result.get("schedules"):
        yield "schedules", schedules(result["schedules"])
    for study in ("gpu", "fpga"):
        rows = [row for row in result.get("plans", ()) if row["study"] == study]
        if rows:
            what = "speedup over data parallelism"
            yield f"{study}-speedup", plans(rows, "speedup", what, lambda row: row.get("speedup"))
            yield f"{study}-memory", plans(rows, "memory", "peak memory of the fullest device, GiB", _peak_gib)
    for name, down in (("claims", "memory_gib"), ("boards", "precision")):
        if result.get(name):
            yield name, claims(result[name], down)
    if result.get("depth"):
        yield "depth", depth(result["depth"])


def _peak_gib(row: Row) -> float | None:
    return None if row.get("peak_bytes") is None else float(row["peak_bytes"]) / GIB


def schedules(rows: Sequence[Row]) -> Figure:
    """Mini-batch seconds over transfer seconds (lines: formula, marks: simulation), and micro-batches kept by stage."""
    shape = (rows[0]["stages"], rows[0]["microbatches"])
    chosen = [row for row in rows if (row["stages"], row["microbatches"]) == shape]
    figure = Figure(figsize=(12, 4.8), dpi=100, layout="constrained")
    time, link, kept = figure.subplots(1, 3)
    for label, colour in SCHEDULE_COLOURS.items():
        mine = [row for row in chosen if row["schedule"] == label]
        sending = [row["transfer_seconds"] for row in mine]
        # Two rows of the table coincide: the dashes let both be seen.
        style = (0, (4, 4)) if label == "FBP-AS" else "-"
        time.plot(
            sending, [row["formula_seconds"] for row in mine], linestyle=style, color=colour, linewidth=2, label=label
        )
        time.plot(sending, [row["simulated_seconds"] for row in mine], "o", color=colour, markersize=5)
        if mine[0]["streamed_seconds"] is not None:
            link.plot(sending, [row["streamed_seconds"] for row in mine], "o-", color=colour, label=label)
    time.axvline(1.5, color=FAINT, linewidth=1, linestyle=":")
    time.annotate(
        "SR = (F+B)/2",
        (1.5, 0.8),
        (4, 0),
        xycoords=time.get_xaxis_transform(),
        textcoords="offset points",
        rotation=90,
        va="center",
        fontsize=8,
        color=FAINT,
    )
    time.margins(x=0.08)
    time.set(
        title="lines: formula, marks: simulation",
        xlabel="SR, seconds of one transfer",
        ylabel="mini-batch seconds",
    )
    link.set(
        title="streaming: no op ends before its transfer",
        xlabel="SR, seconds of one transfer",
        ylabel="mini-batch seconds",
    )
    stages = np.arange(shape[0])
    width = 0.8 / len(SCHEDULE_COLOURS)
    for position, (label, colour) in enumerate(SCHEDULE_COLOURS.items()):
        row = next(row for row in chosen if row["schedule"] == label)
        places = stages + (position - (len(SCHEDULE_COLOURS) - 1) / 2) * width
        kept.bar(places, row["kept_simulated"], width, color=colour, label=label)
    kept.set_xticks(stages, [str(stage + 1) for stage in stages])
    kept.set(title="micro-batches kept, simulated", xlabel="stage", ylabel="micro-batches")
    for axes in (time, link, kept):
        grid(axes)
    handles, labels = kept.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.suptitle(f"BaPipe's schedules: {shape[0]} stages, {shape[1]} micro-batches, F = 1, B = 2")
    return figure


def plans(rows: Sequence[Row], what: str, label: str, value: Callable[[Row], float | None]) -> Figure:
    """Bars of one measure, a panel a workload, a group of bars a cluster; a cross where a method has no plan."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    methods = [method for method in COLOURS if any(row["method"] == method for row in rows)]
    known = {(row["workload"], row["cluster"], row["method"]): value(row) for row in rows}
    tall = len(clusters) > 4
    figure = Figure(
        figsize=(13, 3.2 * len(workloads) + 1.6) if tall else (max(8.0, 4.4 * len(workloads) + 1), 5),
        dpi=100,
        layout="constrained",
    )
    panels = np.atleast_1d(figure.subplots(*((len(workloads), 1) if tall else (1, len(workloads))), sharex=tall))
    width = 0.84 / len(methods)
    for axes, workload in zip(panels, workloads, strict=True):
        for position, method in enumerate(methods):
            offset = (position - (len(methods) - 1) / 2) * width
            for place, cluster in enumerate(clusters):
                found = known.get((workload, cluster, method))
                if found is not None:
                    axes.bar(place + offset, found, width, color=COLOURS[method])
                elif (workload, cluster, method) in known:
                    axes.plot(place + offset, 0, "x", color=INK, markersize=5, clip_on=False)
        if what == "speedup":
            axes.axhline(1.0, color=INK, linewidth=0.8)
            if max((one or 0.0) for one in known.values()) > SPEEDUP_CLAIM / 2:
                axes.axhline(SPEEDUP_CLAIM, color=ALARM, linewidth=1, linestyle="--")
                axes.annotate(
                    f"“up to {SPEEDUP_CLAIM:g}x”",
                    (-0.45, SPEEDUP_CLAIM),
                    (0, 3),
                    textcoords="offset points",
                    fontsize=8,
                    color=ALARM,
                    va="bottom",
                )
        axes.set_title(legible(TITLES.get(workload, workload), 40), fontsize=11)
        axes.set_ylabel(label, fontsize=9)
        axes.set_xticks(range(len(clusters)), [_two_lines(cluster) for cluster in clusters], fontsize=9)
        axes.set_xlim(-0.5, len(clusters) - 0.5)
        axes.margins(y=0.1)
        grid(axes)
    handles: list[Any] = [Rectangle((0, 0), 1, 1, color=COLOURS[method]) for method in methods]
    labels = [NAMES[method] for method in methods]
    if any(found is None for found in known.values()):
        handles.append(Line2D([], [], color=INK, marker="x", markersize=5, linestyle="none"))
        labels.append("no plan")
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=9)
    return figure


def _two_lines(text: str) -> str:
    return text.replace(" + ", " +\n") if "+" in text else text.replace(" ", "\n", 1)


def claims(rows: Sequence[Row], down: str) -> Figure:
    """Speedup, and memory of data parallelism over BaPipe's, by bandwidth and `down`; red frames where a claim is reached.

    down: key of the rows' axis, `memory_gib` or `precision`
    """
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    lines = len({row[down] for row in rows})
    wide = max(6.5, 4.9 * len(workloads) + 0.6)
    figure = Figure(figsize=(wide, 3 * max(1.9, 0.62 * lines + 1.1) + 0.9), dpi=100, layout="constrained")
    grid = figure.subplots(3, len(workloads), squeeze=False)
    measures = (
        ("speedup", "speedup over data parallelism", SPEEDUP_CLAIM),
        ("memory_reduction", "memory saved by the fastest plan", MEMORY_CLAIM),
        ("most_memory_reduction", "memory saved by the leanest plan", MEMORY_CLAIM),
    )
    for line, (key, title, claim) in enumerate(measures):
        for column, workload in enumerate(workloads):
            mine = [row for row in rows if row["workload"] == workload]
            _heat(grid[line][column], mine, key, claim, down)
            grid[line][column].set_title(f"{TITLES.get(workload, workload)}: {title}", fontsize=10)
    words = (
        f"BaPipe against data parallelism. Red frames: “up to {SPEEDUP_CLAIM:g}x” or “{MEMORY_CLAIM:g}x memory” is reached; "
        "“only”: data parallelism does not fit; “–”: nothing fits; “at”: speedup of the leanest plan over data parallelism"
    )
    figure.suptitle("\n".join(textwrap.wrap(words, int(13.5 * wide))), fontsize=10)
    return figure


def _heat(axes: Axes, rows: Sequence[Row], key: str, claim: float, down: str) -> None:
    bandwidths = sorted({row["bandwidth"] for row in rows})
    places = list(dict.fromkeys(row[down] for row in rows))
    values = np.full((len(places), len(bandwidths)), np.nan)
    scale, colours = mpl.colors.Normalize(0.8, 1.5 * claim), mpl.colormaps["Blues"]
    for row in rows:
        y, x = places.index(row[down]), bandwidths.index(row["bandwidth"])
        found = row.get(key)
        text, ink = ("only" if row["bapipe_fits"] else "–"), INK
        if found is not None:
            values[y, x] = found
            text = f"{found:.2g}x" if found < 9.95 else f"{found:.0f}x"
            if key == "most_memory_reduction":
                text += f"\nat {row['leanest_speedup']:.2g}x"
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
    """Largest L of GNMT-L, a group of bars a number of devices; a search that was not finished has no bar."""
    devices = list(dict.fromkeys(row["devices"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    colours = dict(zip(DEPTH_METHODS, ("#a5adb5", "#f0b866", "#b9d9f0", "#4f8fbf", "#1f6b47"), strict=True))
    found = {(row["devices"], row["method"]): row["layers"] for row in rows}
    figure = Figure(figsize=(8, 4.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    width = 0.84 / len(methods)
    for position, method in enumerate(methods):
        offset = (position - (len(methods) - 1) / 2) * width
        shown = [(place, found[n, method]) for place, n in enumerate(devices) if (n, method) in found]
        bars = axes.bar(
            [place + offset for place, _ in shown],
            [layers for _, layers in shown],
            width,
            color=colours[method],
            label=method,
        )
        axes.bar_label(bars, fontsize=8, padding=2)
    axes.set_xticks(range(len(devices)), [f"{n} V100" for n in devices])
    axes.set(ylabel="largest L of GNMT-L that fits, layers", title="GNMT-L on V100s of 16 GiB, 64 sequences a device")
    grid(axes)
    axes.margins(y=0.1)
    figure.legend(loc="outside lower center", ncols=len(methods), fontsize=9, frameon=False)
    return figure
