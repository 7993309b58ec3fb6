"""BaPipe explore plots: schedules, speedup and memory per plan, the claims over bandwidth and memory, and depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

COLOURS = {
    "data-parallel": "#8c959f",
    "uniform": "#e0a458",
    "pipedream": "#8db8dc",
    "pipedream-flush": "#4f8fbf",
    "bapipe": "#1f2328",
    "bapipe pipeline": "#3a9d6b",
}
NAMES = {
    "data-parallel": "data parallelism",
    "uniform": "uniform GPipe",
    "pipedream": "PipeDream, asynchronous",
    "pipedream-flush": "PipeDream, flushed",
    "bapipe": "BaPipe's answer",
    "bapipe pipeline": "BaPipe, straight pipeline",
}
SCHEDULE_COLOURS = {
    "1F1B-AS": "#1b6ca8",
    "FBP-AS": "#3a9d6b",
    "FBP split": "#9ccfb3",
    "1F1B-SNO": "#b3261e",
    "1F1B-SO": "#e0a458",
}
TITLES = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "gnmt8": "GNMT-8"}
SPEEDUP_CLAIM, MEMORY_CLAIM = 3.2, 4.0
GIB = 2.0**30


def draw_all(result: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """Write every figure as PNG and SVG; returns the files."""
    figures = {
        "schedules": schedules(result["schedules"]),
        "claims": claims(result["claims"], "memory_gib"),
        "boards": claims(result["boards"], "precision"),
        "depth": depth(result["depth"]),
    }
    for study in ("gpu", "fpga"):
        rows = [row for row in result["plans"] if row["study"] == study]
        figures[f"{study}-speedup"] = plans(
            rows, "speedup", "speedup over data parallelism", lambda row: row.get("speedup")
        )
        figures[f"{study}-memory"] = plans(rows, "memory", "peak memory of the fullest device, GiB", _peak_gib)
    written = []
    for name, figure in figures.items():
        for suffix in ("png", "svg"):
            path = folder / f"{name}.{suffix}"
            figure.savefig(path, dpi=150)
            written.append(path)
    return written


def _peak_gib(row: Row) -> float | None:
    return None if row.get("peak_bytes") is None else float(row["peak_bytes"]) / GIB


def schedules(rows: Sequence[Row]) -> Figure:
    """Mini-batch seconds over transfer seconds (lines: formula, marks: simulation), and micro-batches kept by stage."""
    shape = (rows[0]["stages"], rows[0]["microbatches"])
    chosen = [row for row in rows if (row["stages"], row["microbatches"]) == shape]
    figure = Figure(figsize=(12, 4.6), layout="constrained")
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
    time.axvline(1.5, color="#59636e", linewidth=1, linestyle=":")
    time.text(1.48, time.get_ylim()[1], "SR = (F+B)/2", ha="right", va="top", fontsize=8, color="#59636e")
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
        axes.grid(True, axis="y", alpha=0.3)
        axes.legend(fontsize=8, frameon=False)
    figure.suptitle(f"BaPipe's schedules: {shape[0]} stages, {shape[1]} micro-batches, F = 1, B = 2")
    return figure


def plans(rows: Sequence[Row], what: str, label: str, value: Callable[[Row], float | None]) -> Figure:
    """Bars of one measure, a panel a workload, a group of bars a cluster; a cross where a method has no plan."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    methods = [method for method in COLOURS if any(row["method"] == method for row in rows)]
    tall = len(clusters) > 4
    figure = Figure(
        figsize=(13, 3.2 * len(workloads) + 1.6) if tall else (4.4 * len(workloads) + 1, 5), layout="constrained"
    )
    panels = np.atleast_1d(figure.subplots(*((len(workloads), 1) if tall else (1, len(workloads))), sharex=tall))
    width = 0.84 / len(methods)
    for axes, workload in zip(panels, workloads, strict=True):
        for position, method in enumerate(methods):
            offset = (position - (len(methods) - 1) / 2) * width
            for place, cluster in enumerate(clusters):
                row = next(r for r in rows if (r["workload"], r["cluster"], r["method"]) == (workload, cluster, method))
                found = value(row)
                if found is None:
                    axes.plot(place + offset, 0, "x", color=COLOURS[method], markersize=5, clip_on=False)
                else:
                    axes.bar(place + offset, found, width, color=COLOURS[method])
        if what == "speedup":
            axes.axhline(1.0, color="#1f2328", linewidth=0.8)
            if max((value(row) or 0.0) for row in rows) > SPEEDUP_CLAIM / 2:
                axes.axhline(SPEEDUP_CLAIM, color="#b3261e", linewidth=1, linestyle="--")
                axes.text(-0.45, SPEEDUP_CLAIM, "up to 3.2x", fontsize=8, color="#b3261e", va="bottom")
        axes.set_title(TITLES.get(workload, workload), fontsize=11)
        axes.set_ylabel(label if not tall or axes is panels[len(panels) // 2] else "")
        axes.set_xticks(range(len(clusters)), [_two_lines(cluster) for cluster in clusters], fontsize=9)
        axes.set_xlim(-0.5, len(clusters) - 0.5)
        axes.grid(True, axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[method]) for method in methods]
    figure.legend(
        handles, [NAMES[method] for method in methods], loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    return figure


def _two_lines(text: str) -> str:
    return text.replace(" + ", " +\n") if "+" in text else text.replace(" ", "\n", 1)


def claims(rows: Sequence[Row], down: str) -> Figure:
    """Speedup, and memory of data parallelism over BaPipe's, by bandwidth and `down`; red frames where a claim is reached.

    down: key of the rows' axis, `memory_gib` or `precision`
    """
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    lines = len({row[down] for row in rows})
    figure = Figure(figsize=(4.9 * len(workloads) + 0.6, 3 * (0.62 * lines + 1.1) + 0.5), layout="constrained")
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
    figure.suptitle(
        f"BaPipe against data parallelism. Red frames: “up to {SPEEDUP_CLAIM:g}x” or “{MEMORY_CLAIM:g}x memory” is reached; "
        "“only”: data parallelism does not fit; “–”: nothing fits;\n“at”: speedup of the leanest plan over data parallelism",
        fontsize=10,
    )
    return figure


def _heat(axes: Axes, rows: Sequence[Row], key: str, claim: float, down: str) -> None:
    bandwidths = sorted({row["bandwidth"] for row in rows})
    places = list(dict.fromkeys(row[down] for row in rows))
    values = np.full((len(places), len(bandwidths)), np.nan)
    for row in rows:
        y, x = places.index(row[down]), bandwidths.index(row["bandwidth"])
        found = row.get(key)
        if found is None:
            text = "only" if row["bapipe_fits"] else "–"
        else:
            values[y, x] = found
            text = f"{found:.2g}x" if found < 9.95 else f"{found:.0f}x"
            if key == "most_memory_reduction":
                text += f"\nat {row['leanest_speedup']:.2g}x"
            if found >= claim:
                frame = Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, color="#b3261e", linewidth=2.5)
                axes.add_patch(frame)
        dark = found is not None and found > 0.6 * claim
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if dark else "#1f2328")
    axes.imshow(values, cmap="Blues", vmin=0.8, vmax=claim, aspect="auto")
    axes.set_xticks(range(len(bandwidths)), [f"{one / 1e9:g}" for one in bandwidths])
    axes.set_yticks(range(len(places)), [str(one) if down == "precision" else f"{one:g}" for one in places])
    axes.set(
        xlabel="bandwidth of a link, GB/s", ylabel="precision" if down == "precision" else "memory of a device, GiB"
    )


def depth(rows: Sequence[Row]) -> Figure:
    """Largest L of GNMT-L, a group of bars a number of devices."""
    devices = list(dict.fromkeys(row["devices"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    colours = [
        *(COLOURS[name] for name in ("data-parallel", "uniform", "pipedream")),
        "#e0c458",
        COLOURS["bapipe pipeline"],
    ]
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    width = 0.84 / len(methods)
    for position, method in enumerate(methods):
        places = np.arange(len(devices)) + (position - (len(methods) - 1) / 2) * width
        layers = [next(r["layers"] for r in rows if (r["devices"], r["method"]) == (n, method)) for n in devices]
        bars = axes.bar(places, layers, width, color=colours[position % len(colours)], label=method)
        axes.bar_label(bars, fontsize=8, padding=2)
    axes.set_xticks(range(len(devices)), [f"{n} V100" for n in devices])
    axes.set(
        ylabel="largest L of GNMT-L that fits (steps of 8)", title="GNMT-L on V100s of 16 GiB, 64 sequences a device"
    )
    axes.grid(True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize=9, frameon=False)
    return figure
