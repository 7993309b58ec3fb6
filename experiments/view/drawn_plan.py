"""Drawn plan: what a page shows of a replay: lanes, boxes, idle intervals, the critical path, memory; the numbers only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers, legible
from simulator import (
    CAUSE_WORDS,
    CAUSES,
    LETTERS,
    DeviceMemory,
    Explanation,
    OpKind,
    Outcome,
    Plan,
    ScheduleReplay,
    Timeline,
    explain,
    ranges,
)
from simulator.results.gantt_plots import KIND_COLORS, KIND_WORDS, GanttRow, clipped_window, gantt_rows, shade
from simulator.results.memory_plots import memory_steps
from simulator.results.traces import free_tracks

Window = tuple[float, float]

MOST_BOXES = 600_000
"""Ops, transfers and idle intervals that a page of 20 MB has room for, those of all plans together."""

MOST_LANES = 1_000
"""Lanes of all plans that a page has room for."""

MOST_STEPS = 40_000
"""Steps of memory of all devices of a plan, of one device at most `MOST_STEPS_EACH`."""

MOST_STEPS_EACH = 2_000

TRANSFER_COLOR = "#8a94a0"

CAUSE_COLORS = dict(
    zip(
        CAUSES,
        ("#d3dbe3", "#bcc8d4", "#f6cfd2", "#f3df9d", "#d9b8ea", "#ef8f86", "#a9d6ee", "#b5dfb0"),
        strict=True,
    )
)
"""Colour of each idle cause: lighter than ops."""

PATH_AT = 0.82
"""Where in a lane, from its top, the critical path runs: below the numbers of boxes."""

_HEIGHTS = {"device": 1.0, "link": 0.5, "collective": 0.5}
_DEVICES_SHOWN = 24  # characters of the devices of a lane


class TooManyBoxesError(ValueError):
    """A page that would be too large."""


class Lane(NamedTuple):
    """A row of the page; heights are in those of a device's lane, from the top.

    copies: lanes of the replay, all alike, that it stands for; devices: what it is of, in words
    """

    what: Literal["device", "link", "collective"]
    label: str
    copies: int
    devices: str
    top: float
    bottom: float


class Look(NamedTuple):
    """What many boxes have in common: the lane, which of several tracks of it, the colour, and words for who points at it.

    name: the letters of an op between its stage and its micro-batch, the ends of a transfer, or a cause
    """

    lane: int
    track: int
    tracks: int
    color: str
    stage: int
    name: str
    words: str
    samples: int
    bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class BoxLayer:
    """Boxes of one sort, lane by lane, those of a track rising.

    look: int64 [boxes], of `looks`; start, end: float64 [boxes], seconds
    numbers: what else is said of each: `microbatch`; boxes of ops by number, or -1: `awaited` (which the box waits for last),
        `op` (which begins then), `producer`; `there`, float64, seconds: when what it waits for had come
    """

    looks: tuple[Look, ...]
    look: Integers
    start: Floats
    end: Floats
    numbers: Mapping[str, NDArray[np.number]]

    def __len__(self) -> int:
        return len(self.look)


class MemoryTrack(NamedTuple):
    """Memory of the device of a lane: times [steps] in seconds, bytes [steps, categories], which hold from each to the next."""

    label: str
    times: Floats
    bytes: Floats
    capacity: float


@dataclass(frozen=True, slots=True, eq=False)
class DrawnPlan:
    """What a page shows of one replay.

    title: of the replay; window: seconds that are shown; makespan: of the whole
    path: float64 [2 · tasks of the critical path, 2]; seconds and heights of the ends of each
    unit: of memory that is not counted in bytes
    """

    name: str
    title: str
    window: Window
    makespan: float
    lanes: tuple[Lane, ...]
    ops: BoxLayer
    links: BoxLayer
    idle: BoxLayer
    path: Floats
    memory: tuple[MemoryTrack, ...]
    unit: str = ""

    @property
    def boxes(self) -> int:
        """Boxes of all layers."""
        return len(self.ops) + len(self.links) + len(self.idle)

    def counts(self) -> dict[str, int]:
        """Boxes of each sort, by what they are called."""
        return {"ops": len(self.ops), "transfers": len(self.links), "waits": len(self.idle)}

    def record(self) -> dict[str, Any]:
        """What is shown of it, by name."""
        lanes = [{"what": one.what, "label": one.label, "copies": one.copies} for one in self.lanes]
        return {"plan": self.name, "window": list(self.window), **self.counts(), "rows": lanes}

    @property
    def height(self) -> float:
        """Of all lanes."""
        return self.lanes[-1].bottom if self.lanes else 1.0


def drawn_plans(replays: Mapping[str, Outcome | ScheduleReplay], window: Window | None = None) -> tuple[DrawnPlan, ...]:
    """What a page shows of replays, by name.

    window: the seconds to show; default all
    Raises TooManyBoxesError where they are too many, ValueError for a noisy replay of a plan and a window that shows nothing.
    """
    made = [_Drawing(name, replayed, window) for name, replayed in replays.items()]
    _check(sum(one.count for one in made), sum(len(one.rows) for one in made))
    drawn = tuple(one.drawn() for one in made)
    _check(sum(one.boxes for one in drawn), sum(len(one.lanes) for one in drawn))
    return drawn


def _check(boxes: int, lanes: int) -> None:
    for count, most, what in ((boxes, MOST_BOXES, "ops, transfers and waits"), (lanes, MOST_LANES, "rows")):
        if count > most:
            raise TooManyBoxesError(
                f"the page would have {count:,} {what}, and has room for {most:,}: show a part of the time, or fewer plans"
            )


class _Drawing:
    """A replay on its way to a page.

    rows: of the Gantt chart, those of devices first; count: ops and transfers in the window
    """

    def __init__(self, name: str, replayed: Outcome | ScheduleReplay, window: Window | None) -> None:
        self.name, self.replayed = name, replayed
        self.plan: Plan | None = None
        self.groups: dict[int, tuple[int, ...]] = {}
        self.timeline: Timeline
        if isinstance(replayed, Outcome):
            self.plan, self.timeline, self.word = replayed.plan, replayed.replay, replayed.problem.device_word
            standing = replayed.stand_ins
            self.groups = self.plan.groups if standing is None else standing.groups(self.plan)
        else:
            self.timeline, self.word = replayed.timeline, "device"
        whole = self.timeline.makespan_seconds
        self.window = clipped_window(window, whole, name)
        rows = gantt_rows(self.timeline, device_word=self.word, most_rows=0)
        self.rows = sorted(rows, key=lambda row: row.thin)
        self.begins = np.searchsorted(self.timeline.lane, np.arange(len(self.timeline.lane_kind) + 1))
        self.row_of_lane = {lane: number for number, row in enumerate(self.rows) for lane in row.lanes}
        self.firsts = np.array([row.lanes[0] for row in self.rows], dtype=np.int64)
        self.moves = self._moves()
        self.count = sum(int(np.count_nonzero(self._within(row.start, row.end))) for row in self.rows) + len(self.moves)

    def _within(self, start: Floats, end: Floats) -> Flags:
        return (end > self.window[0]) & (start < self.window[1]) & (end > start)

    def _moves(self) -> Integers:
        """Transfers in the window from the first lane of each row, one of those that are alike."""
        moves, lane = self.timeline.transfers, self.timeline.lane
        chosen = np.flatnonzero(np.isin(lane[moves.producer], self.firsts) & self._within(moves.start, moves.end))
        row = np.array([self.row_of_lane.get(one, -1) for one in range(len(self.timeline.lane_kind))])
        keys = np.stack([moves.producer, row[lane[moves.consumer]], moves.start, moves.end])[:, chosen]
        return chosen[np.sort(np.unique(keys, axis=1, return_index=True)[1])]

    def drawn(self) -> DrawnPlan:
        """The numbers of the page."""
        found = explain(self.replayed, window=self.window, gains=False)
        sent = self._sent()
        places, links = self._link_lanes()
        lanes = self._lanes(links)
        devices = sum(not row.thin for row in self.rows)
        of_row = [number if number < devices else number + len(links) for number in range(len(self.rows))]
        ops, box = self._ops(found, of_row, sent)
        return DrawnPlan(
            self.name,
            self.replayed.title,
            self.window,
            self.timeline.makespan_seconds,
            lanes,
            ops,
            self._links(places + devices, box, lanes),
            self._idle(found, of_row, box),
            self._path(found, lanes, of_row),
            self._memory(lanes),
            "" if self.plan is not None else "units",
        )

    # ------------------------------------------------------------------------------------------------ lanes

    def _lanes(self, links: Sequence[tuple[str, str, int]]) -> tuple[Lane, ...]:
        devices = [("device", *self._device_words(row)) for row in self.rows if not row.thin]
        others = [("collective", row.label, "", 1) for row in self.rows if row.thin]
        found, top = list[Lane](), 0.0
        for what, label, of, count in (*devices, *(("link", *link) for link in links), *others):
            bottom = top + _HEIGHTS[what]
            words = f"{label} × {count}" if count > 1 else label
            found.append(Lane(what, words, count, of, top, bottom))  # type: ignore[arg-type]
            top = bottom
        return tuple(found)

    def _device_words(self, row: GanttRow) -> tuple[str, str, int]:
        """What a device's lane is called, its devices, and for how many lanes it stands."""
        leads = [int(self.timeline.device[self.begins[lane]]) for lane in row.lanes]
        devices = sorted({one for lead in leads for one in self.groups.get(lead, (lead,))})
        word = f"{legible(self.word, 20)}{'s' * (len(devices) > 1)}"
        stages = f"stage{'s' * (len(row.stages) > 1)} {ranges(row.stages)}"
        of = f"{word} {ranges(devices)}"
        return f"{stages} · {legible(of, _DEVICES_SHOWN)}", of, self._copies(row)

    def _copies(self, row: GanttRow) -> int:
        standing = self.replayed.stand_ins if isinstance(self.replayed, Outcome) else None
        if standing is None:
            return len(row.lanes)
        copies = standing.copies
        return sum(copies[int(self.timeline.replica[self.begins[lane]])] for lane in row.lanes)

    def _link_lanes(self) -> tuple[Integers, list[tuple[str, str, int]]]:
        """The lane of each transfer: one for each row that sends and the stages of the row that receives; and their words."""
        moves, lane = self.timeline.transfers, self.timeline.lane
        sends = [self.row_of_lane[one] for one in lane[moves.producer[self.moves]].tolist()]
        takes = [self.row_of_lane[one] for one in lane[moves.consumer[self.moves]].tolist()]
        keys = [(one, self.rows[other].stages) for one, other in zip(sends, takes, strict=True)]
        order = {key: number for number, key in enumerate(sorted(set(keys)))}
        words = []
        for number, stages in order:
            row = self.rows[number]
            words.append((f"{ranges(row.stages)} → {ranges(stages)}", "", self._copies(row)))
        return np.array([order[key] for key in keys], dtype=np.int64), words

    # ------------------------------------------------------------------------------------------------ layers

    def _sent(self) -> Floats:
        """Bytes that each task sends to one that waits for it first, float64 [tasks]."""
        moves = self.timeline.transfers
        return np.bincount(moves.producer, moves.size_bytes, minlength=len(self.timeline)).astype(np.float64)

    def _ops(self, found: Explanation, of_row: Sequence[int], sent: Floats) -> tuple[BoxLayer, Integers]:
        """The layer of ops and collectives, and the box of each task, -1 for none, int64 [tasks]."""
        timeline, awaited = self.timeline, found.awaited
        box, columns, boxes = np.full(len(timeline), -1), [], 0
        for number, row in enumerate(self.rows):
            shown = self._within(row.start, row.end)
            order = np.flatnonzero(shown)[np.lexsort((row.start[shown], row.half[shown]))]
            place = np.full(len(row), -1)
            place[order] = boxes + np.arange(len(order))
            size = self.begins[row.lanes[0] + 1] - self.begins[row.lanes[0]]
            first = self.begins[row.lanes[0]]
            of_task = place[np.searchsorted(row.task, first + np.arange(size), side="right") - 1]
            for lane in row.lanes:
                box[self.begins[lane] : self.begins[lane + 1]] = of_task
            total = np.add.reduceat(sent[first : first + size], row.task - first) if len(row) else np.zeros(0)
            lane_of = np.full(len(order), of_row[number])
            task = row.task[order]
            looks = lane_of, row.half[order], row.kind[order], row.chunk[order], np.full(len(order), len(row.stages))
            sizes = timeline.stage[task], timeline.samples[task], total[order]
            columns.append(np.stack([*looks, *sizes, task, row.start[order], row.end[order]]))
            boxes += len(order)
        table = np.concatenate(columns, axis=1) if columns else np.zeros((11, 0))
        task = table[8].astype(np.int64)
        own, look = _looks(table[:8], _op_look)
        there = awaited.there[task]
        start, end = self._clipped(table[9], table[10])
        for_box = _boxes_of(box, awaited.task[task])
        numbers = {"microbatch": timeline.microbatch[task], "awaited": for_box, "there": there}
        return BoxLayer(own, look, start, end, numbers), box

    def _clipped(self, start: Floats, end: Floats) -> tuple[Floats, Floats]:
        return np.maximum(start, self.window[0]), np.minimum(end, self.window[1])

    def _links(self, lane: Integers, box: Integers, lanes: Sequence[Lane]) -> BoxLayer:
        """The layer of transfers; those of a lane that are on their way together lie on several tracks of it."""
        moves, timeline = self.timeline.transfers, self.timeline
        start, end = moves.start[self.moves], moves.end[self.moves]
        track, tracks = np.zeros(len(lane), dtype=np.int64), np.ones(len(lane), dtype=np.int64)
        for one in np.unique(lane):
            own = np.flatnonzero(lane == one)
            track[own] = free_tracks(
                np.rint(start[own] * 1e12).astype(np.int64), np.rint(end[own] * 1e12).astype(np.int64)
            )
            tracks[own] = track[own].max() + 1
        order = np.lexsort((start, track, lane))
        chosen = self.moves[order]
        producer, consumer = moves.producer[chosen], moves.consumer[chosen]
        ends = timeline.device[producer], timeline.device[consumer]
        table = np.stack([lane[order], track[order], tracks[order], *ends, moves.size_bytes[chosen]])

        def look(column: Sequence[float]) -> Look:
            of, number, many, one, other = map(int, column[:5])
            words = f"{self.word} {one} → {self.word} {other}"
            return Look(of, number, many, TRANSFER_COLOR, -1, lanes[of].label, words, 0, column[5])

        looks, found = _looks(table, look)
        clipped = self._clipped(start[order], end[order])
        numbers = {"producer": _boxes_of(box, producer), "op": _boxes_of(box, consumer)}
        return BoxLayer(looks, found, *clipped, numbers)

    def _idle(self, found: Explanation, of_row: Sequence[int], box: Integers) -> BoxLayer:
        """The layer of idle intervals, of the first lane of each row."""
        firsts = set(self.firsts.tolist())
        columns: list[tuple[float, ...]] = []
        for device, units in zip(found.idle.devices.tolist(), found.idle.pieces, strict=True):
            own = np.flatnonzero((self.timeline.device == device) & self.timeline.compute())
            usual = int(self.timeline.lane[own[0]])
            for pieces in units:
                lane = next((int(self.timeline.lane[one.op]) for one in pieces if one.op >= 0), usual)
                if lane in firsts:
                    of = of_row[self.row_of_lane[lane]]
                    columns += [(of, one.cause, one.begin, one.end, one.op, one.awaited) for one in pieces]
        table = np.array(columns).reshape(-1, 6).T
        table = table[:, np.lexsort((table[2], table[0]))]

        def look(column: Sequence[float]) -> Look:
            lane, cause = map(int, column)
            name = CAUSES[cause]
            return Look(lane, 0, 1, CAUSE_COLORS[name], -1, name, CAUSE_WORDS[name], 0, 0.0)

        looks, of_looks = _looks(table[:2], look)
        pointers = {
            name: _boxes_of(box, table[number].astype(np.int64)) for name, number in (("op", 4), ("awaited", 5))
        }
        return BoxLayer(looks, of_looks, table[2], table[3], pointers)

    def _path(self, found: Explanation, lanes: Sequence[Lane], of_row: Sequence[int]) -> Floats:
        """Ends of the tasks of the critical path within the window."""
        tasks = np.array([step.task for step in found.steps], dtype=np.int64)
        start, end = self.timeline.start[tasks], self.timeline.end[tasks]
        shown = self._within(start, end)
        of_lane = {lane: of_row[row] for lane, row in self.row_of_lane.items()}
        rows = [of_lane[one] for one in self.timeline.lane[tasks[shown]].tolist()]
        low = np.array([lanes[one].top + PATH_AT * (lanes[one].bottom - lanes[one].top) for one in rows])
        moments = np.stack(self._clipped(start[shown], end[shown]), axis=1).reshape(-1)
        return np.stack([moments, np.repeat(low, 2)], axis=1)

    # ------------------------------------------------------------------------------------------------ memory

    def _memory(self, lanes: Sequence[Lane]) -> tuple[MemoryTrack, ...]:
        """Memory of the first device of each row of devices, each device once."""
        known = {one.device: one for one in self.replayed.memory}
        leads: dict[int, str] = {}
        for row, lane in zip(self.rows, lanes, strict=False):
            if not row.thin:
                leads.setdefault(int(self.timeline.device[self.begins[row.lanes[0]]]), lane.label)
        shown = {device: label for device, label in leads.items() if device in known}
        most = min(MOST_STEPS_EACH, max(1, MOST_STEPS // max(1, len(shown))))
        return tuple(
            MemoryTrack(label, *memory_steps(self._held(known[device]), most), known[device].capacity_bytes)
            for device, label in shown.items()
        )

    def _held(self, memory: DeviceMemory) -> DeviceMemory:
        """Memory in the window: from the step that holds as it begins."""
        begin, end = self.window
        first = max(0, int(np.searchsorted(memory.times, begin, side="right")) - 1)
        last = int(np.searchsorted(memory.times, end, side="right"))
        times = np.append(np.clip(memory.times[first:last], begin, end), end)
        return replace(
            memory, times=times, bytes=np.append(memory.bytes[first:last], memory.bytes[last - 1 : last], axis=0)
        )


def _boxes_of(box: Integers, tasks: NDArray[np.integer]) -> Integers:
    """The boxes of tasks; -1 of -1."""
    return np.where(tasks >= 0, box[tasks], -1) if len(box) else np.full(len(tasks), -1)


def _looks(table: Floats, look: Callable[[Sequence[float]], Look]) -> tuple[tuple[Look, ...], Integers]:
    """The distinct columns of a table as looks, and the look of each column."""
    if not table.shape[1]:
        return (), np.zeros(0, dtype=np.int64)
    columns, number = np.unique(table, axis=1, return_inverse=True)
    return tuple(look(column) for column in columns.T.tolist()), number.reshape(-1).astype(np.int64)


def _op_look(column: Sequence[float]) -> Look:
    lane, half, kind, chunk, chunks, stage, samples = map(int, column[:7])
    parts = shade(KIND_COLORS[OpKind(kind)], chunk, chunks)
    color = "#" + "".join(f"{round(255 * part):02x}" for part in parts)
    words, letter = KIND_WORDS[OpKind(kind)], LETTERS[kind]
    return Look(lane, int(half > 0), 1 + (half != 0), color, stage, letter, words, samples, column[7])


def used_kinds(plans: Iterable[DrawnPlan]) -> dict[str, str]:
    """Colours of the kinds of ops that pages show, by their words; a transfer's, where there is one."""
    shown = {look.name for plan in plans for look in plan.ops.looks}
    found = {KIND_WORDS[kind]: KIND_COLORS[kind] for kind in OpKind if LETTERS[kind] in shown}
    return found | ({"transfer": TRANSFER_COLOR} if any(len(plan.links) for plan in plans) else {})
