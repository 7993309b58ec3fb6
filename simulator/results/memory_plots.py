"""Memory plots: bytes on devices over time, and peak memory of all devices; the numbers first, the drawing second."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hardware_profiles import Floats, legible
from simulator.memory.device_memory import CATEGORIES, DeviceMemory
from simulator.plans.plan import ranges
from simulator.results.figures import ALARM, DPI, INK, Picture, beside, byte_unit, figures, fitting, time_unit, unframed
from simulator.results.memory_tables import activations_by_part, peak_rows

CATEGORY_COLORS: dict[str, str] = dict(
    zip(CATEGORIES, ("#1f4e79", "#9cc9ee", "#4f7a3a", "#f2df9b", "#e08a3c", "#93386b", "#7d8792"), strict=True)
)
"""Colour of each category of memory, each of a lightness of its own."""

RESERVE = "#dfe3e8"
"""Colour of what no plan may fill."""

PART_SHADES = 0.98, 0.12
"""Of the first and the last part of activations among matplotlib's `Oranges`, light to dark; others lie evenly between them."""

MOST_PARTS, LEAST_PART, OTHERS = 8, 0.005, "others"
"""Parts of activations that are drawn apart at most, and the share of the highest peak that one of them has at least; what the
rest of them is called together."""

LEGEND_LINE = 0.2
"""Inches that a line of a legend is high."""

WIDE = 12.0
"""Inches of a figure."""

MOST_BARS = 24
"""Peaks that have their numbers beside them; of more devices those that hold the same share a bar."""


# ---- numbers ------------------------------------------------------------------------------------------------


def memory_steps(memory: DeviceMemory, most: int = 1000) -> tuple[Floats, Floats]:
    """Reduce the memory of one device to at most `most` + 1 steps: times [steps], and bytes [steps, len(CATEGORIES)].

    The steps themselves where they are few enough, the last of those at one moment; otherwise, and where the peak lasts no time,
    `most` equal parts of the time with the fullest step of each. The peak is always among them, and the end is as it is.
    """
    total = memory.bytes.sum(axis=1)
    last = np.concatenate([memory.times[1:] > memory.times[:-1], [True]])
    horizon = float(memory.times[-1])
    if np.count_nonzero(last) <= most and total[last].max() == total.max():
        return memory.times[last], memory.bytes[last]
    edges = np.linspace(0.0, horizon, most + 1)
    before = np.searchsorted(memory.times, edges[:-1], side="right") - 1  # what is held as each part begins
    inside = np.minimum(np.searchsorted(edges, memory.times, side="right") - 1, most - 1)
    part, step = np.concatenate([np.arange(most), inside]), np.concatenate([before, np.arange(len(total))])
    order = np.lexsort((total[step], part))
    fullest = step[order][np.concatenate([part[order][1:] != part[order][:-1], [True]])]
    return edges, memory.bytes[np.append(fullest, len(total) - 1)]


def shown_devices(memories: Sequence[DeviceMemory]) -> tuple[DeviceMemory, ...]:
    """Devices that get a panel over time: all of up to four, else the fullest and the emptiest."""
    ordered = sorted(memories, key=lambda memory: memory.device)
    if len(ordered) <= 4:
        return tuple(ordered)
    shares = [memory.peak_bytes / memory.capacity_bytes for memory in ordered]
    fullest, emptiest = int(np.argmax(shares)), int(np.argmin(shares))
    return (ordered[fullest],) if shares[fullest] == shares[emptiest] else (ordered[fullest], ordered[emptiest])


def capacity_in_view(memories: Iterable[DeviceMemory]) -> bool:
    """Whether a capacity line leaves at least a third of the axis for the data."""
    pairs = [(memory.peak_bytes, memory.capacity_bytes) for memory in memories]
    return max(capacity for _, capacity in pairs) <= 3.0 * max(peak for peak, _ in pairs)


def drawn_parts(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Bytes of the activation parts that are large enough to see, with all others summed, one number per row."""
    found = activations_by_part(rows)
    largest = sorted(found, key=lambda part: max(found[part]), reverse=True)[:MOST_PARTS]
    least = LEAST_PART * max(row["peak_bytes"] for row in rows)
    seen = {part: sizes for part, sizes in found.items() if part in largest and max(sizes) >= least}
    others = [sum(sizes) for sizes in zip(*(found[part] for part in found if part not in seen), strict=True)]
    return seen | ({OTHERS: others} if others and seen else {})


def part_colors(parts: Iterable[str]) -> dict[str, str]:
    """One shade per activation part, dark to light in stacking order."""
    names = list(parts)
    shades = np.linspace(*PART_SHADES, len(names)) if len(names) > 1 else [0.5] * len(names)
    return {name: to_hex(colormaps["Oranges"](shade)) for name, shade in zip(names, shades, strict=True)}


def peak_bars(rows: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Bars of peak memory: one per device; for many devices one per group with equal peaks."""
    if len(rows) <= MOST_BARS:
        return [(str(row["device"]), row) for row in rows]
    alike: dict[str, tuple[list[int], dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault(repr({**row, "device": None}), ([], row))[0].append(row["device"])
    return [(ranges(devices), row) for devices, row in alike.values()]


# ---- drawing ------------------------------------------------------------------------------------------------


def memory_figure(
    memories: Sequence[DeviceMemory], *, title: str | None = None, device_word: str = "GPU", unit: str = ""
) -> Figure:
    """Draw memory over time for the devices of `shown_devices`, and the peak of every device against its capacity.

    unit: of memory that is not counted in bytes; over time there is then a line at the limit, where it is in view
    Raises ValueError where there is no device.
    """
    if not memories:
        raise ValueError("a memory figure needs at least one device, got none")
    rows, shown, device_word = peak_rows(memories), shown_devices(memories), legible(device_word, 20)
    bars, parts = peak_bars(rows), part_colors(drawn_parts(rows))
    legend = LEGEND_LINE * (1 + bool(parts))
    tall = max(3.4, 1.9 * len(shown) + 0.7, min(9.0, 0.24 * len(bars) + 1.3)) + legend
    figure = Picture(figsize=(WIDE, tall), dpi=DPI, facecolor="white")
    top, low = 1.0 - (0.75 + legend) / tall, 0.6 / tall
    used = [name for name in CATEGORIES if any(row[name] > 0 for row in rows)]
    used += [n for i, n in enumerate(CATEGORIES) if n not in used and any(m.bytes[:, i].max() > 0 for m in shown)]
    used.sort(key=CATEGORIES.index)
    longest = max(len(_bar_name(device_word, devices)) for devices, _ in bars)
    between = max(0.2, 0.08 + 0.013 * longest)
    grid = figure.add_gridspec(len(shown), 2, left=0.065, right=0.935, top=top, bottom=low, wspace=between, hspace=0.34)
    grid.set_width_ratios([1.5, 1.0])
    most = max(memory.peak_bytes for memory in shown)
    first: Axes | None = None
    for position, memory in enumerate(shown):
        ax = figure.add_subplot(grid[position, 0], sharex=first)
        _memory_panel(ax, memory, used, most, device_word, unit)
        if unit and capacity_in_view(shown):
            ax.axhline(memory.capacity_bytes, color=ALARM, linewidth=1.6, zorder=3)
            ax.set_ylim(top=1.12 * max(memory.capacity_bytes, ax.get_ylim()[1] / 1.12))
        ax.tick_params(labelbottom=position == len(shown) - 1)
        if position < len(shown) - 1:
            ax.set_xlabel("")
        first = first or ax
    line = capacity_in_view(memories)
    _peak_panel(figure.add_subplot(grid[:, 1]), bars, used, parts, line, device_word, unit)
    entries = [(CATEGORY_COLORS[name], name) for name in used]
    entries += [(RESERVE, "reserve")] * (line and any(row["reserve_bytes"] for row in rows))
    kept = [("none", "activations at the peak:")] * bool(parts) + [(color, part) for part, color in parts.items()]
    for number, line_of_legend in enumerate([entries, kept][: 1 + bool(kept)]):
        figure.legend(
            handles=[Patch(facecolor=color, label=label) for color, label in line_of_legend],
            loc="upper left",
            bbox_to_anchor=(0.06, 1.0 - (0.33 + LEGEND_LINE * number) / tall),
            ncols=max(1, len(line_of_legend)),
            frameon=False,
            fontsize=8.5,
            handlelength=1.0,
            handleheight=1.0,
            columnspacing=1.3,
        )
    if title is not None:
        name, size = fitting(title, 0.93 * 72.0 * WIDE)
        figure.text(0.065, 1.0 - 0.12 / tall, name, fontsize=size, fontweight="bold", color=INK, ha="left", va="top")
    return figure


def _memory_panel(
    ax: Axes, memory: DeviceMemory, used: Sequence[str], most: float, device_word: str, own_unit: str
) -> None:
    """Draw one device over time, on the scale of the fullest (`most` bytes), or on its own scale where that would flatten it."""
    times, held = memory_steps(memory, most=400)  # a step is then two pixels wide at least
    time_name, per_second = time_unit(float(times[-1]))
    peak = memory.peak_bytes
    own = peak < 0.25 * most
    top = peak if own else most
    top = max(top, 1e-12 if own_unit else 1.0)
    unit, factor = _unit(top, own_unit)
    layers = [held[:, CATEGORIES.index(name)] * factor for name in used]
    if layers:
        colors = [CATEGORY_COLORS[name] for name in used]
        ax.stackplot(times * per_second, *layers, colors=colors, step="post", linewidth=0, zorder=2)
    ax.axhline(peak * factor, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
    head = f"{device_word} {memory.device}: peak {_amount(peak, own_unit)}"
    if math.isfinite(memory.capacity_bytes):
        share = figures(100 * peak / memory.capacity_bytes)
        head += f", {share} % of {_amount(memory.capacity_bytes, own_unit)}"
    head += "" if memory.fits else ": does not fit"
    head += " (own scale)" if own else ""
    ax.set_title(head, fontsize=9, color=INK if memory.fits else ALARM, loc="left", pad=4)
    ax.set_ylim(0.0, top * factor * 1.12)
    ax.set_xlim(0.0, max(float(times[-1]) * per_second, 1e-12))
    ax.set_ylabel(f"memory ({unit})", fontsize=9)
    ax.set_xlabel(f"time ({time_name})", fontsize=9)
    unframed(ax, "y", 0.6)
    ax.tick_params(labelsize=8.5)


def _bar_name(device_word: str, devices: str) -> str:
    return f"{device_word} {legible(devices, 14)}"


def _unit(value: float, own: str) -> tuple[str, float]:
    """The unit to show an amount in, and the factor for it; a unit of its own stays as it is."""
    return (own, 1.0) if own else byte_unit(value)


def _amount(value: float, own: str) -> str:
    unit, factor = _unit(value, own)
    return f"{figures(value * factor)} {unit}"


def _peak_panel(
    ax: Axes,
    bars: Sequence[tuple[str, dict[str, Any]]],
    used: Sequence[str],
    parts: Mapping[str, str],
    line: bool,
    device_word: str,
    own_unit: str,
) -> None:
    """Draw the peak of every bar by category, activations by part; parts: with their colours, as far as known."""
    rows = [row for _, row in bars]
    unit, factor = _unit(max(max(row["peak_bytes"] for row in rows), 1.0), own_unit)
    places, tall = np.arange(len(rows), dtype=np.float64), min(0.74, 0.1 + 0.12 * len(rows))
    left = np.zeros(len(rows))
    stack = [(CATEGORY_COLORS[name], [row[name] for row in rows]) for name in used]
    if parts:
        at, told = used.index("activations"), drawn_parts(rows)
        stack[at : at + 1] = [(color, told[part]) for part, color in parts.items()]
    for color, sizes in stack:
        width = np.array(sizes) * factor
        ax.barh(places, width, tall, left=left, color=color, linewidth=0, zorder=2)
        left += width
    capacity, reserve = (np.array([row[name] for row in rows]) * factor for name in ("capacity_bytes", "reserve_bytes"))
    if line:
        if reserve.any():
            ax.barh(places, reserve, tall, left=capacity, color=RESERVE, linewidth=0, zorder=1)
        ax.vlines(capacity, places - 0.5, places + 0.5, color=ALARM, linewidth=1.6, zorder=3)
    longest = float(left.max())
    most = max(longest, float((capacity + reserve).max()) if line else 0.0, 1e-12)
    decimals = max(0, 2 - math.floor(math.log10(longest))) if longest > 0.0 else 0
    if len(rows) <= MOST_BARS:
        for place, row in zip(places.tolist(), rows, strict=True):
            over = row["share"] > 1
            words = f"{row['peak_bytes'] * factor:,.{decimals}f}" + ("\ndoes not fit" if over else "")
            beside(ax, place, words, 5, color=ALARM if over else INK, size=8, linespacing=0.95)
    step = max(1, math.ceil(len(rows) / 32))
    ax.set_yticks(places[::step], [_bar_name(device_word, devices) for devices, _ in bars[::step]])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(0, most * 1.04)
    ax.set_xlabel(f"peak memory ({unit})", fontsize=9)
    values = sorted({row["capacity_bytes"] for row in rows})
    words = " to ".join(_amount(value, own_unit) for value in dict.fromkeys((values[0], values[-1])))
    capacity_words = f"; {'red line: ' if line else ''}capacity {words}{'' if line else ', far beyond the axis'}"
    ax.set_title(
        f"peak of every device{capacity_words if math.isfinite(values[-1]) else ''}",
        fontsize=9,
        color=INK,
        loc="left",
        pad=4,
    )
    unframed(ax, "x", 0.6)
    ax.tick_params(labelsize=8.5)
    ax.tick_params(axis="y", length=0)
