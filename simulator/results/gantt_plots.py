"""Gantt charts of timelines: the numbers first, the drawing second."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers, legible, percent
from simulator.engines.timeline import Timeline
from simulator.lowering.program import LaneKind
from simulator.results.figures import (
    DPI,
    FAINT,
    IDLE,
    INK,
    Picture,
    figures,
    fitting,
    plain_texts,
    time_unit,
    title_points,
)
from simulator.schedules.ops import OpKind, computes

_KINDS: dict[OpKind, tuple[str, str]] = {
    OpKind.FORWARD: ("#4585cf", "forward"),
    OpKind.BACKWARD: ("#f6a84f", "backward"),
    OpKind.INPUT_GRADIENT: ("#93eee2", "input gradient"),
    OpKind.WEIGHT_GRADIENT: ("#2f5e22", "weight gradient"),
    OpKind.RECOMPUTE: ("#1f61a7", "forward again"),
    OpKind.UPDATE: ("#4b2e63", "update"),
    OpKind.PREDICT: ("#dbc966", "weight prediction"),
    OpKind.REDUCE: ("#a3527a", "gradient all-reduce"),
    OpKind.SEND: ("#959eaa", "send (device busy)"),
    OpKind.RECEIVE: ("#a2acb7", "receive (device busy)"),
    OpKind.OFFLOAD: ("#43250a", "offload"),
    OpKind.RELOAD: ("#6b3a12", "reload"),
    OpKind.SCATTER: ("#381429", "gradient reduce-scatter"),
    OpKind.GATHER: ("#40a080", "weight all-gather"),
}
"""Colour and name of each kind: torch's hues for F (blue), B (orange), I (teal), W (green); each of a lightness of its own."""

KIND_COLORS = {kind: color for kind, (color, _) in _KINDS.items()}

KIND_WORDS = {kind: word for kind, (_, word) in _KINDS.items()}

Groups = Mapping[int, Sequence[int]]
"""Devices of each tensor-parallel group, by the first of them."""

_COLLECTIVES = {OpKind.REDUCE: "all-reduce", OpKind.SCATTER: "scatter", OpKind.GATHER: "gather"}
"""What a row of collectives is called, by what it has."""

MOST_ROWS = 40
"""Above this many rows, replicas that do the same at the same time share one row."""

MOST_STAGES = 4
"""Stages of a row that are all told."""

MOST_NUMBERED = 64
"""Above this many boxes per row, boxes carry no micro-batch number."""

_CUT_SVG_BOXES = 20_000  # above this many boxes, SVG holds them as an image
_SMALLEST = 5.5  # points of the smallest number that can be read
_LEAST_POINTS = 0.5  # drawn width of the narrowest box, where there are few
_LEAST_GAP = 2.0  # points between two buckets of an all-reduce that can be seen
_MARGIN = 14.0  # points
_ENTRY, _ENTRY_CHARACTER = 22.0, 4.75  # points of an entry of a legend without its label, and of a character of that
_HEADING = 215.0  # points of the heading that a legend may stand beside
_LEGEND_ROW = 8  # that have room in a row of their own
_EDGED = 3.0  # points from which a box has an edge
_NARROW, _WIDE = 1.5, 4.0  # points: the mean of boxes that are not told apart, one that is
_BIN = 6.0  # points of a bin of their shares
_ROUND = 8  # bins that the longest round of chunks has that is one bin
_FLAT = 0.04  # of a row: how far neighbours may be from their mean that are one bin
_LEAST_INCHES = 1.5, 0.3  # width and height of the rows
_FULL_WIDTH = 6.0  # inches of a page from which letters are as large as they may be
_LEAST_SCALE = 0.75  # of that, on narrow pages
_NAME_CHARACTER = 0.072  # inches
_LEAST_NAME = 16  # characters of a row's name that every figure has room for


# ---- numbers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class GanttRow:
    """One row of a Gantt chart: its label and its boxes, ordered by start.

    label: what the row is; thin: a collective lane
    lanes: lanes of the timeline that the row stands for (several where equal replicas share it)
    stages: on the row's device, rising
    task: int64 [boxes], first task of the box in the timeline, on the first of the lanes
    kind, microbatch: int8, int32 [boxes]; chunk: int32 [boxes], position of the box's stage in `stages`
    half: int8 [boxes]; of an overlapped pair -1 for the upper, 1 for the lower box; 0 for a whole one
    start, end: float64 [boxes], seconds
    """

    label: str
    thin: bool
    lanes: tuple[int, ...]
    stages: tuple[int, ...]
    task: Integers
    kind: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    chunk: NDArray[np.int32]
    half: NDArray[np.int8]
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.start)

    def within(self, begin: float, end: float) -> GanttRow:
        """The part of the row between two moments, with boxes clipped to it."""
        shown = (self.end > begin) & (self.start < end)
        row = self.chosen(shown, shown)
        return replace(row, start=np.maximum(row.start, begin), end=np.minimum(row.end, end))

    def chosen(self, opens: Flags, closes: Flags) -> GanttRow:
        """Merge boxes: the i-th result begins where the i-th of `opens` does and ends where the i-th of `closes` does."""
        return replace(
            self,
            task=self.task[opens],
            kind=self.kind[opens],
            microbatch=self.microbatch[opens],
            chunk=self.chunk[opens],
            half=self.half[opens],
            start=self.start[opens],
            end=self.end[closes],
        )


def gantt_rows(
    timeline: Timeline, *, device_word: str = "GPU", most_rows: int = MOST_ROWS, groups: Groups | None = None
) -> tuple[GanttRow, ...]:
    """Rows of the chart from top to bottom: stage 0 first, replicas by number, all-reduces below the replicas of each stage. If
    devices share several stages (bidirectional pipelines), rows are ordered by device instead.

    groups: devices of each tensor-parallel group, by the first of them, which stands for all in the timeline
    The parts into which all-reduce splits a backward become one box. Where there would be more than `most_rows`, replicas of a
    stage that do the same at the same time share one row.
    """
    offsets = np.searchsorted(timeline.lane, np.arange(len(timeline.lane_kind) + 1))
    computing = timeline.lane_kind[timeline.lane] == LaneKind.COMPUTE
    lanes, stages_of = np.unique(np.stack([timeline.lane[computing], timeline.stage[computing]]), axis=1)
    holders = np.bincount(stages_of, minlength=int(timeline.stage.max(initial=0)) + 1)
    several = np.isin(lanes, np.flatnonzero(np.bincount(lanes) > 1)) if len(lanes) else np.zeros(0, dtype=bool)
    by_device = bool((holders[stages_of[several]] > 1).any())
    keyed: list[tuple[tuple[int, int, int, int], GanttRow]] = []
    for lane, (first, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        if first == stop:
            continue
        lane_kind = LaneKind(int(timeline.lane_kind[lane]))
        thin = lane_kind is not LaneKind.COMPUTE
        stages = tuple(np.unique(timeline.stage[first:stop]).tolist())
        replica, device = int(timeline.replica[first]), int(timeline.device[first])
        many = int(holders[stages[0]]) > 1 and not thin and not by_device
        label = f"stage {stages[0]}" if len(stages) == 1 else f"stages {_listed(stages)}"
        if thin:
            kinds = sorted(set(timeline.kind[first:stop].tolist()))
            words = (
                " and ".join(_COLLECTIVES[OpKind(kind)] for kind in kinds)
                if lane_kind is LaneKind.COLLECTIVE
                else "host link"
            )
            label += f" {words}"
        elif many:
            label += f" · replica {replica}"
        label += "" if thin else f" ({_devices(device_word, (groups or {}).get(device, (device,)))})"
        place = stages[0]
        if by_device:
            place = int(timeline.device[computing & (timeline.stage == stages[0])].max()) if thin else device
        keyed.append(((place, int(thin), replica, lane), _row(timeline, lane, first, stop, stages, thin, label)))
    keyed.sort(key=lambda pair: pair[0])
    rows = tuple(row for _, row in keyed)
    return rows if len(rows) <= most_rows else _share_rows(rows, device_word, timeline, groups or {})


def _listed(stages: Sequence[int]) -> str:
    """The stages of a device: all of a few, else the first two and the last."""
    return ", ".join(map(str, stages)) if len(stages) <= MOST_STAGES else f"{stages[0]}, {stages[1]}, … {stages[-1]}"


def _devices(word: str, group: Sequence[int]) -> str:
    """`GPU 0`, or `GPUs 0–3` of a group."""
    return f"{word} {group[0]}" if len(group) == 1 else f"{word}s {group[0]}–{group[-1]}"


def _row(
    timeline: Timeline, lane: int, first: int, stop: int, stages: tuple[int, ...], thin: bool, label: str
) -> GanttRow:
    kind, stage = timeline.kind[first:stop], timeline.stage[first:stop]
    microbatch, start, end = timeline.microbatch[first:stop], timeline.start[first:stop], timeline.end[first:stop]
    same = (kind[1:] == kind[:-1]) & (stage[1:] == stage[:-1]) & (microbatch[1:] == microbatch[:-1])
    half = _halves(timeline)[first:stop]
    same &= ((start[1:] == end[:-1]) | (half[1:] == 1) & (half[:-1] == 1)) & computes(kind[1:])
    chunk = np.searchsorted(np.array(stages), stage).astype(np.int32)
    row = GanttRow(label, thin, (lane,), stages, np.arange(first, stop), kind, microbatch, chunk, half, start, end)
    return row.chosen(np.append(True, ~same), np.append(~same, True))


def _halves(timeline: Timeline) -> NDArray[np.int8]:
    """Position in an overlapped pair, int8 [tasks]: -1 for the first op, 1 for the second, 0 for every other."""
    second = timeline.second_of_pair()
    half = second.astype(np.int8)
    if timeline.together is not None:
        half[timeline.together[second]] = -1
    return half


def _share_rows(
    rows: Sequence[GanttRow], device_word: str, timeline: Timeline, members: Groups
) -> tuple[GanttRow, ...]:
    """Merge rows of one stage that do the same at the same time."""
    groups: dict[tuple[object, ...], list[GanttRow]] = {}
    for row in rows:
        columns = (row.kind, row.microbatch, row.half, row.start, row.end)
        groups.setdefault((row.thin, row.stages, *(column.tobytes() for column in columns)), []).append(row)
    result = []
    for one, *others in groups.values():
        if others:
            lanes = tuple(lane for row in (one, *others) for lane in row.lanes)
            leads = np.unique(timeline.device[np.isin(timeline.lane, lanes)]).tolist()
            devices = [leads[0], members.get(leads[-1], leads[-1:])[-1]]
            words = f"{1 + len(others)} equal replicas ({_devices(device_word, devices)})"
            one = replace(one, lanes=lanes, label=f"{one.label.split(' ·')[0].split(' (')[0]} · {words}")
        result.append(one)
    return tuple(result)


def readable_window(timeline: Timeline, *, boxes: int = 48) -> tuple[float, float] | None:
    """A window (begin, end; seconds) from the middle in which the fullest row has about `boxes` boxes; None if all boxes fit.

    Meant for streams without a flush, whose middle shows the steady state.
    """
    if boxes < 2:
        raise ValueError(f"a cut needs at least 2 boxes per row, got {boxes}")
    rows = [row for row in gantt_rows(timeline, most_rows=0) if not row.thin]
    fullest = max(rows, key=lambda row: int(np.count_nonzero(computes(row.kind))))
    compute = computes(fullest.kind)
    start, end = fullest.start[compute], fullest.end[compute]
    if len(start) <= max(boxes, MOST_NUMBERED):
        return None
    first = len(start) // 2 - boxes // 2
    return float(start[first]), float(end[first + boxes - 1])


def clipped_window(window: tuple[float, float] | None, makespan: float, name: str) -> tuple[float, float]:
    """The part of a window (begin, end; seconds) in which there is something of what is called `name`; of None, all.

    Raises ValueError where there is nothing.
    """
    if window is None:
        return 0.0, makespan
    begin, end = window[0], min(window[1], makespan)
    if not begin < end:
        raise ValueError(f"window {begin:g}:{window[1]:g} shows nothing of {name}, which takes {makespan:.4g} s")
    return begin, end


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Part of a row whose boxes are too narrow to be told apart: what its time goes to.

    edges: float64 [bins + 1], seconds; each bin holds whole turns of what repeats
    looks: kind and chunk of each share
    shares: float64 [looks, bins], of a bin's time; what remains is idle
    """

    edges: Floats
    looks: tuple[tuple[int, int], ...]
    shares: Floats


def shared_time(row: GanttRow, point: float) -> tuple[GanttRow, tuple[Shares, ...]]:
    """A row without its runs of boxes that are too narrow to be told apart, and what the time of these goes to.

    point: seconds of a point
    A run has no gap of _NARROW points and no box of _WIDE ones, is at least _BIN points long, and its boxes are less than
    _NARROW points wide in the mean.
    """
    width = row.end - row.start
    if row.thin or len(row) < _BIN / _NARROW or row.half.any():
        return row, ()
    wide = width > _WIDE * point
    breaks = wide[1:] | wide[:-1] | (row.start[1:] - row.end[:-1] > _NARROW * point)
    firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    lasts = np.append(firsts[1:], len(row)) - 1
    span = row.end[lasts] - row.start[firsts]
    chosen = (span >= _BIN * point) & (span < (lasts - firsts + 1) * _NARROW * point)
    kept, runs = np.ones(len(row), dtype=bool), []
    for first, last in zip(firsts[chosen].tolist(), lasts[chosen].tolist(), strict=True):
        here = np.arange(first, last + 1)
        kept[here] = False
        runs.append(_shares(row.chosen(here, here), _BIN * point))
    return row.chosen(kept, kept), tuple(runs)


def _shares(run: GanttRow, least: float) -> Shares:
    """The shares of a run of boxes, in bins that begin with such a box as the run, at least so many seconds apart.

    Of a device with several chunks they begin with its rounds, unless a round is as long as many bins.
    """
    first, last = float(run.start[0]), float(run.end[-1])
    alike = np.flatnonzero(run.kind == run.kind[0])
    own = run.chunk[alike] == run.chunk[0]
    turns, rounds = run.start[alike[own]], run.start[alike[own & ~np.append(False, own[:-1])]]
    if len(rounds) * _ROUND * least > last - first:
        turns = rounds
    wished = np.linspace(first, last, 1 + max(1, int((last - first) / least)))[1:-1]
    inner = turns[np.minimum(np.searchsorted(turns, wished), len(turns) - 1)]
    edges = np.unique(np.concatenate([[first], inner, [last]]))
    looks = sorted(set(zip(run.kind.tolist(), run.chunk.tolist(), strict=True)))
    shares = np.empty((len(looks), len(edges) - 1))
    for place, (kind, chunk) in enumerate(looks):
        boxes = (run.kind == kind) & (run.chunk == chunk)
        start, end = run.start[boxes], run.end[boxes]
        moments = np.stack([start, end], axis=1).ravel()
        spent = np.stack([np.cumsum(end - start) - (end - start), np.cumsum(end - start)], axis=1).ravel()
        shares[place] = np.diff(np.interp(edges, moments, spent)) / np.diff(edges)
    return _flat(Shares(edges, tuple(looks), shares))


def _flat(run: Shares) -> Shares:
    """The run with neighbours in one bin that have nearly the same shares: steps of a pixel say nothing."""
    wide, firsts = np.diff(run.edges), [0]
    for place in range(1, len(wide)):
        mean = np.average(run.shares[:, firsts[-1] : place], axis=1, weights=wide[firsts[-1] : place])
        if np.abs(run.shares[:, place] - mean).max() > _FLAT:
            firsts.append(place)
    spent = np.add.reduceat(run.shares * wide, firsts, axis=1)
    return Shares(run.edges[[*firsts, -1]], run.looks, spent / np.add.reduceat(wide, firsts))


# ---- drawing -------------------------------------------------------------------------------------------------


def gantt(
    timeline: Timeline,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    window: tuple[float, float] | None = None,
    device_word: str = "GPU",
    groups: Groups | None = None,
    size: tuple[float, float] | None = None,
) -> Axes:
    """Draw a timeline as a Gantt chart: one row per lane, stage 0 on top, micro-batch numbers in boxes that have room.

    Where boxes are too narrow to be told apart, the height of a colour is its share of the time.

    ax: where to draw; by default a figure of its own (`ax.get_figure()`)
    window: seconds (begin, end) to show, as from `readable_window`; default all
    device_word: what a device is called; groups: as `gantt_rows` takes them
    size: width and height in inches of a figure of its own; by default 12, and as high as its rows need
    Raises ValueError for a window that does not rise from at least 0, and a size without room for names and rows.
    """
    makespan = timeline.makespan_seconds
    begin, end = (0.0, makespan if makespan > 0 else 1.0) if window is None else window
    cut = begin > 0 or end < makespan
    if not 0 <= begin < end:
        raise ValueError(f"a window must rise from at least 0 seconds, got {begin} to {end}")
    whole = gantt_rows(timeline, device_word=legible(device_word, 20), groups=groups)
    rows = [row.within(begin, end) for row in whole]
    unit, factor = time_unit(end - begin)
    heights = np.array([0.45 if row.thin else 1.0 for row in rows])
    handles = _legend_handles(rows)
    if ax is None:
        if size:
            room = (size[0] - 0.45 - _LEAST_INCHES[0]) / (_NAME_CHARACTER * _scale(size[0]))
            rows = [replace(row, label=legible(row.label, max(_LEAST_NAME, int(room)))) for row in rows]
        ax = _gantt_figure(rows, heights, handles, titled=title is not None, size=size)
    scale = _scale(_page_of(ax).get_figwidth())
    bottom = np.cumsum(heights) - heights
    box = ax.get_window_extent()
    points = 72.0 / ax.figure.dpi
    per_second = box.width * points / (end - begin)
    row_points = box.height * points / max(1.0, float(heights.sum()))
    boxes, turned = sum(len(row) for row in rows), False
    for row, low, height in zip(rows, bottom.tolist(), heights.tolist(), strict=True):
        ax.broken_barh(
            [(begin * factor, (end - begin) * factor)], (low + 0.06, height - 0.12), facecolor=IDLE, zorder=1
        )
        shown, runs = shared_time(joined(row, _LEAST_GAP / per_second) if row.thin else row, 1.0 / per_second)
        turned |= bool(runs)
        for run in runs:
            _draw_shares(ax, run, len(row.stages), low, height, factor)
        _draw_boxes(ax, shown, low, height, factor, per_second, rasterized=boxes > _CUT_SVG_BOXES)
    _draw_numbers(ax, rows, bottom + heights / 2, factor, per_second, row_points)
    middle = {lane: at + tall / 2 for row, at, tall in zip(whole, bottom, heights, strict=True) for lane in row.lanes}
    _draw_transfers(ax, timeline, middle, (begin, end), factor, per_second)
    words = f"; a cut of {_seconds(end - begin)} from {_seconds(makespan)}" if cut else ""
    words += "; narrow ops as shares of the time" if turned else ""
    with plain_texts():  # on a page of the caller's, too
        _gantt_axes(ax, rows, bottom, heights, row_points, scale)
        ax.set_xlim(begin * factor, end * factor)
        name = f"time ({unit}{words})"
        long = 5.5 * scale * len(name) > box.width * points
        place: dict[str, Any] = {"x": 1.0, "ha": "right"} if long else {}
        ax.set_xlabel(name, color=INK, fontsize=10.0 * scale, labelpad=4.0 * scale, **place)
        _gantt_heading(ax, timeline, handles, title, scale, cut=cut)
    return ax


def _seconds(value: float) -> str:
    unit, factor = time_unit(value)
    return f"{figures(value * factor)} {unit}"


def _gantt_figure(
    rows: Sequence[GanttRow],
    heights: Floats,
    handles: Sequence[Patch],
    *,
    titled: bool,
    size: tuple[float, float] | None,
) -> Axes:
    total = float(heights.sum())
    inches = max(min(0.34, 8.0 / max(total, 1.0)), 0.04)
    body = max(0.5, inches * total)
    label = max((len(row.label) for row in rows), default=1)
    width = size[0] if size else 12.0
    scale = _scale(width)
    left, right, below = 0.25 + _NAME_CHARACTER * scale * label, 0.2, 0.6 * scale
    legend = _legend_rows(handles, 72.0 * (width - left - right), 72.0 * left - _MARGIN, scale)[0]
    above = scale * ((0.78 if titled else 0.5) + 0.22 * legend)
    height = size[1] if size else body + above + below
    body = height - above - below
    if size and (width - left - right < _LEAST_INCHES[0] or body < _LEAST_INCHES[1]):
        least = left + right + _LEAST_INCHES[0], above + below + _LEAST_INCHES[1]
        rule = " x ".join(f"{math.ceil(10 * one) / 10:g}" for one in least)
        raise ValueError(f"a figure of {width:g} x {height:g} inches has no room for its rows: at least {rule}")
    figure = Picture(figsize=(width, height), dpi=DPI, facecolor="white")
    return figure.add_axes((left / width, below / height, (width - left - right) / width, body / height))


def _scale(width: float) -> float:
    """How large letters, and distances in their measure, are on a page of so many inches, as a part of what they are on a wide
    one.
    """
    return min(1.0, max(_LEAST_SCALE, width / _FULL_WIDTH))


def _legend_rows(handles: Sequence[Patch], points: float, left: float, scale: float) -> tuple[int, float]:
    """Number of legend rows below the heading of a panel of that width in points, 0 if the legend fits beside it; and how many of
    the points left of the panel it takes: all where it has several rows.
    """
    wide, room = [_ENTRY + _ENTRY_CHARACTER * len(str(one.get_label())) for one in handles], points / scale
    if sum(wide) + _HEADING <= room:
        return 0, 0.0
    fewest = -(-len(wide) // _LEGEND_ROW)
    for begin in (0.0, left):
        rows = fewest
        while (
            rows < len(wide)
            and sum(max(wide[at : at + rows]) for at in range(0, len(wide), rows)) > room + begin / scale
        ):
            rows += 1
        if rows == fewest:
            break
    return rows, begin


def shade(color: str, chunk: int, chunks: int) -> tuple[float, float, float]:
    """The colour of an op by the position of its stage among the chunks of its device: lighter for every later chunk."""
    white = min(0.38, 0.6 / max(1, chunks - 1)) * chunk
    red, green, blue = (part + (1.0 - part) * white for part in mpl.colors.to_rgb(color))
    return red, green, blue


def _draw_boxes(
    ax: Axes, row: GanttRow, low: float, height: float, factor: float, per_second: float, *, rasterized: bool
) -> None:
    width = visible_widths(row, _LEAST_POINTS / per_second)
    looks = np.stack([row.kind, row.chunk, row.half])[:, width > 0]
    for kind, chunk, half in np.unique(looks, axis=1).T.tolist():
        chosen = (row.kind == kind) & (row.chunk == chunk) & (row.half == half) & (width > 0)
        edged = float(np.median(width[chosen])) * per_second > _EDGED
        tall = height - 0.12
        ax.broken_barh(
            list(zip((row.start[chosen] * factor).tolist(), (width[chosen] * factor).tolist(), strict=True)),
            (low + 0.06 + tall / 2 * (half == 1), tall / 2 if half else tall),
            facecolor=shade(KIND_COLORS[OpKind(kind)], chunk, len(row.stages)),
            edgecolor="white" if edged else "none",
            linewidth=0.6 if edged else 0.0,
            # Snapped to pixels, boxes narrower than one would vanish by chance.
            snap=edged,
            rasterized=rasterized,
            zorder=2,
        )


def _draw_shares(ax: Axes, run: Shares, chunks: int, low: float, height: float, factor: float) -> None:
    """A run of narrow boxes: in each bin the shares of its time above each other, from the row's lower end."""
    bottom = np.full(run.shares.shape[1], low + height - 0.06)
    for (kind, chunk), share in zip(run.looks, run.shares, strict=True):
        top = bottom - share * (height - 0.12)
        ax.fill_between(
            run.edges * factor,
            np.append(bottom, bottom[-1]),
            np.append(top, top[-1]),
            step="post",
            facecolor=shade(KIND_COLORS[OpKind(kind)], chunk, chunks),
            edgecolor="none",
            linewidth=0.0,
            zorder=2,
        )
        bottom = top


def joined(row: GanttRow, gap: float) -> GanttRow:
    """Merge boxes of one kind and stage that are less than `gap` seconds apart, so that many small all-reduce buckets do not fade
    into the gaps between them.
    """
    if len(row) < 2:
        return row
    near = (row.start[1:] - row.end[:-1] < gap) & (row.kind[1:] == row.kind[:-1]) & (row.chunk[1:] == row.chunk[:-1])
    narrow = row.end - row.start < gap
    near &= narrow[1:] | narrow[:-1]
    return row.chosen(np.append(True, ~near), np.append(~near, True))


def visible_widths(row: GanttRow, least: float) -> Floats:
    """Drawn width of each box in seconds [boxes]: at least `least`, but never into the next box.

    The least width shrinks where many boxes need it, so that all of them add no more than a twentieth of the row's time.
    """
    width = row.end - row.start
    if len(row) < 2:
        return width
    span = float(row.end.max() - row.start.min())
    room = np.append(row.start[1:] - row.start[:-1], np.inf)
    wished = np.minimum(min(least, 0.05 * span / len(row)), np.maximum(room, width))
    return np.where(width > 0, np.maximum(width, wished), 0.0)


def _numbered_boxes(rows: Sequence[GanttRow], per_second: float, row_points: float) -> dict[tuple[int, int], Integers]:
    """Which boxes to number, by (row, kind): all boxes of a kind in a row, or none.

    A kind for which fewer than half of the rows have room gets no numbers. `per_second` is points per second. Boxes that a window
    has cut narrow do not count, and get no number.
    """
    chosen: dict[tuple[int, int], Integers] = {}
    if row_points * 0.6 < _SMALLEST:
        return chosen
    rows_of_kind: Counter[int] = Counter()
    for place, row in enumerate(rows):
        compute = computes(row.kind)
        if row.thin or not 0 < np.count_nonzero(compute) <= MOST_NUMBERED:
            continue
        for kind in np.unique(row.kind[compute]).tolist():
            boxes = np.flatnonzero(row.kind == kind)
            rows_of_kind[kind] += 1
            room = (row.end - row.start)[boxes] * per_second
            needed = _room(int(row.microbatch[boxes].max()), _SMALLEST)
            if float(np.median(room)) >= needed:
                chosen[place, kind] = boxes[room >= needed]
    numbered = Counter(kind for _, kind in chosen)
    return {key: boxes for key, boxes in chosen.items() if 2 * numbered[key[1]] >= rows_of_kind[key[1]]}


def _room(microbatch: int, size: float) -> float:
    """Width in points of a number of font size `size`, with some margin."""
    return 0.64 * size * len(str(microbatch)) + 1.0


def _draw_numbers(
    ax: Axes, rows: Sequence[GanttRow], middle: Floats, factor: float, per_second: float, row_points: float
) -> None:
    chosen = _numbered_boxes(rows, per_second, row_points)
    sizes: dict[int, float] = {}
    for (place, _), boxes in chosen.items():
        row = rows[place]
        room = float(np.median((row.end - row.start)[boxes])) * per_second
        fitting = _SMALLEST * room / _room(int(row.microbatch[boxes].max()), _SMALLEST)
        sizes[place] = max(_SMALLEST, min(8.0, row_points * 0.6, fitting, sizes.get(place, 8.0)))
    for (place, kind), boxes in chosen.items():
        row = rows[place]
        centres = (row.start[boxes] + row.end[boxes]) / 2 * factor
        columns = centres.tolist(), row.half[boxes].tolist(), row.microbatch[boxes].tolist()
        for x, half, number in zip(*columns, strict=True):
            ax.text(
                x,
                float(middle[place]) + 0.22 * half,
                str(number),
                ha="center",
                va="center_baseline",
                fontsize=min(sizes[place], row_points * 0.35) if half else sizes[place],
                color="white" if kind in (OpKind.WEIGHT_GRADIENT, OpKind.RECOMPUTE) else INK,
                clip_on=True,
                zorder=4,
            )


def _draw_transfers(
    ax: Axes,
    timeline: Timeline,
    middle: Mapping[int, float],
    window: tuple[float, float],
    factor: float,
    per_second: float,
) -> None:
    """Draw a thin line from producer to consumer for every transfer of visible length, if there are few of them and their rows
    are adjacent (ignoring all-reduce rows). middle: vertical centre of the row of each lane.
    """
    moved = timeline.transfers
    shown = np.flatnonzero((moved.end > window[0]) & (moved.start < window[1]))
    if not 0 < len(shown) <= 160 or float(np.median((moved.end - moved.start)[shown])) * per_second < 2.0:
        return
    reach = max(abs(middle[a] - middle[b]) for a, b in _lane_pairs(timeline, shown))
    if reach > 2.0:
        return
    for index, lanes in zip(shown.tolist(), _lane_pairs(timeline, shown), strict=True):
        ys = [float(middle[lane]) for lane in lanes]
        side = 0.42 if ys[1] > ys[0] else -0.42
        xs = [float(moved.start[index]) * factor, float(moved.end[index]) * factor]
        ax.plot(xs, [ys[0] + side, ys[1] - side], color=FAINT, linewidth=0.8, zorder=3)


def _lane_pairs(timeline: Timeline, transfers: Integers) -> list[tuple[int, int]]:
    producer, consumer = timeline.transfers.producer[transfers], timeline.transfers.consumer[transfers]
    return list(zip(timeline.lane[producer].tolist(), timeline.lane[consumer].tolist(), strict=True))


def _gantt_axes(
    ax: Axes,
    rows: Sequence[GanttRow],
    bottom: Floats,
    heights: Floats,
    row_points: float,
    scale: float,
) -> None:
    ax.set_ylim(max(float(heights.sum()), 0.5), 0.0)
    middle, chosen = bottom + heights / 2, list[int]()
    for i in sorted(range(len(rows)), key=lambda i: rows[i].thin):  # names of thin rows where there is room
        if all(abs(middle[i] - middle[one]) * row_points >= 8.5 * scale for one in chosen):
            insort(chosen, i)
    ax.set_yticks(middle[chosen].tolist(), [rows[i].label for i in chosen])
    for text, i in zip(ax.get_yticklabels(), chosen, strict=True):
        text.set_fontsize(max(6.0, scale * (7.0 if rows[i].thin else min(9.0, max(6.5, row_points * 0.75)))))
        text.set_color(FAINT if rows[i].thin else INK)
        text.set_parse_math(False)  # ticks may be older than the block of their names
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelsize=8.5 * scale, colors=INK)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_axisbelow(True)


def _legend_handles(rows: Sequence[GanttRow]) -> list[Patch]:
    """Legend entries: the kinds that take time, idle time, and the shades of later chunks."""
    kinds = sorted({kind for row in rows for kind in np.unique(row.kind[row.end > row.start]).tolist()})
    handles = [Patch(facecolor=color, label=word) for color, word in map(_KINDS.__getitem__, map(OpKind, kinds))]
    handles.append(Patch(facecolor=IDLE, label="idle"))
    if max((int(row.chunk.max(initial=0)) for row in rows), default=0):
        handles.append(Patch(facecolor=shade("#68707a", 1, 2), label="lighter: later chunk"))
    if any(row.half.any() for row in rows):
        handles.append(Patch(facecolor="none", edgecolor=FAINT, label="halves: overlapped pair"))
    return handles


def _page_of(ax: Axes) -> Figure:
    return cast("Figure", ax.get_figure(root=True))


def _room_beside(ax: Axes) -> tuple[float, float]:
    """Width in points from the left end of a panel to the left margin of the page (if no other panel is there), and to the
    panel's right end.
    """
    box, page = ax.get_window_extent(), _page_of(ax)
    point = page.dpi / 72.0
    alone = len(page.axes) == 1
    return max(0.0, (box.x0 - page.bbox.x0) / point - _MARGIN) * alone, (page.bbox.x1 - box.x0) / point


def _gantt_heading(
    ax: Axes, timeline: Timeline, handles: list[Patch], title: str | None, scale: float, *, cut: bool
) -> None:
    words = f"{'in all' if cut else 'makespan'} {_seconds(timeline.makespan_seconds)}"
    words += f" · devices idle {percent(timeline.bubble().idle_over_makespan)} of it"
    points = ax.get_window_extent().width * 72.0 / _page_of(ax).dpi
    left, right = _room_beside(ax)
    below, begin = _legend_rows(handles, points, left, scale)
    beside, line = not below, scale * (8 + 16 * below)
    over: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
    place = min(0.0, right - 0.55 * 9 * scale * len(words)), line  # a long one begins above the labels
    ax.annotate(words, (0, 1), place, ha="left", va="bottom", fontsize=9 * scale, color=FAINT, **over)
    if title is not None:
        name, size = fitting(title, (left + right) / scale)
        size *= scale
        place = min(0.0, right - title_points(name, size)), line + 17 * scale
        ax.annotate(name, (0, 1), place, ha="left", va="bottom", fontsize=size, color=INK, fontweight="bold", **over)
    ax.legend(
        handles=handles,
        loc="lower right" if beside else "lower left",
        bbox_to_anchor=(1.0 if beside else -begin / points, 1.0),
        ncols=-(-len(handles) // max(1, below)),
        frameon=False,
        fontsize=8.5 * scale,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.1,
        handletextpad=0.5,
        borderaxespad=0.2,
        borderpad=0.4 if beside else 0.0,
    )
