"""Idle causes: every interval in which a device runs no op, what it waits for, and why.

A wait for the next op's last input ends in two parts, as in `simulator.results.time_split`: until the input was made, and then,
as a transfer or a reduction, until it is there. The first part is

    fill        before the device's first op
    order       from when another of its later ops could have begun, which its order has behind
    memory      the same, where that op is a forward for which the device then had no room
    straggler   as far as the op that is waited for takes longer than others of its kind, or itself has waited for such a one
    op          all the rest: another device's op is at work, or waits itself

and `drain` is what is left behind the last op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers, brief
from simulator.engines.timeline import Timeline
from simulator.lowering.program import LaneKind, Program
from simulator.memory.device_memory import DeviceMemory
from simulator.results.time_split import TIME_PARTS, Awaited, awaited_last, gathers_behind, rows_of_units
from simulator.schedules.ops import OpKind, among, computes

CAUSES = ("fill", "drain", "op", "order", "memory", "straggler", "transfer", "reduction")
"""Why a device is idle."""

FILL, DRAIN, OP, ORDER, MEMORY, STRAGGLER, TRANSFER, REDUCTION = range(len(CAUSES))

ROUNDING = 1e-9
"""Relative; an op that takes no more than this longer than others takes as long."""

_MOVED = {TIME_PARTS.index("transfers"): TRANSFER, TIME_PARTS.index("gradient sync"): REDUCTION}
"""The cause of the way of an input, by its part of time."""


_NEEDS = (
    (OpKind.FORWARD, (OpKind.BACKWARD, OpKind.INPUT_GRADIENT, OpKind.RECOMPUTE)),
    (OpKind.RECOMPUTE, (OpKind.BACKWARD, OpKind.INPUT_GRADIENT)),
    (OpKind.INPUT_GRADIENT, (OpKind.WEIGHT_GRADIENT,)),
)
"""Ops of a stage that others of the same samples need."""


class Piece(NamedTuple):
    """Part of an idle interval: seconds from the start of the replay, the cause, the task that begins then, and the one that it
    waits for; -1 for none.
    """

    begin: float
    end: float
    cause: int
    op: int
    awaited: int


@dataclass(frozen=True, slots=True, eq=False)
class IdleTime:
    """The idle intervals of a window of a timeline.

    devices: int64 [rows]; seconds: float64 [rows, len(CAUSES)]; busy: float64 [rows], of all ops; they sum to the window
    pieces: of each device's units (lanes with fixed shares of a device are units of their own), rising
    """

    devices: Integers
    seconds: Floats
    busy: Floats
    pieces: tuple[tuple[tuple[Piece, ...], ...], ...]

    def __repr__(self) -> str:
        parts = zip(CAUSES, self.seconds.sum(axis=0).tolist(), strict=True)
        return brief(self, ", ".join(f"{name} {seconds:.4g} s" for name, seconds in parts if seconds))


def idle_time(
    program: Program, timeline: Timeline, window: tuple[float, float], memory: Sequence[DeviceMemory]
) -> IdleTime:
    """The idle intervals of a timeline of a program within a window.

    memory: of the devices; where there is none no wait is for want of room
    """
    begin, end = window
    units, awaited = rows_of_units(program, timeline), awaited_last(program, timeline)
    behind = gathers_behind(program, timeline)
    usual, rooms = _usual_seconds(timeline), {one.device: _Room(one, timeline) for one in memory}
    start, stop = np.clip(timeline.start, begin, end), np.clip(timeline.end, begin, end)
    gaps = _gaps(units, start, stop, _could_begin(timeline, awaited), begin)
    before: dict[int, list[Piece]] = {}
    found: list[list[Piece]] = [[] for _ in units]
    for gap in sorted(gaps, key=lambda one: one.end):
        room = rooms.get(int(timeline.device[gap.task]))
        pieces = list(_of_gap(gap, awaited, timeline, usual, before, room))
        before[gap.task] = pieces
        found[gap.unit] += pieces
    for number, own in enumerate(units):
        gathered = behind[np.isin(behind[:, 0], own)][:, 1:]
        found[number] += _behind(float(max(stop[own].max(), begin)), end, gathered)
    devices = sorted({int(timeline.device[own[0]]) for own in units})
    seconds, busy, pieces_of = np.zeros((len(devices), len(CAUSES))), np.zeros(len(devices)), []
    for row, device in enumerate(devices):
        numbers = [number for number, own in enumerate(units) if timeline.device[own[0]] == device]
        for piece in (piece for number in numbers for piece in found[number]):
            seconds[row, piece.cause] += (piece.end - piece.begin) / len(numbers)
        busy[row] = end - begin - seconds[row].sum()
        pieces_of.append(tuple(tuple(found[number]) for number in numbers))
    return IdleTime(np.array(devices), seconds, busy, tuple(pieces_of))


class _Gap(NamedTuple):
    """An idle interval of a unit before a task; ready: from when a later task of the unit could have begun, and that task."""

    unit: int
    begin: float
    end: float
    task: int
    first: bool
    ready: float
    other: int


def _could_begin(timeline: Timeline, awaited: Awaited) -> Floats:
    """When each task could have begun by what it needs, whatever its device does; infinite for what ends a mini-batch.

    A backward needs its forwards of the same device, which lanes do not wait for, as these come first in them; a weight gradient
    its input gradient; a part of an op the part before it.
    """
    found = awaited.there.copy()
    found[~timeline.compute()] = np.inf
    place = timeline.stage.astype(np.int64)  # whose replicas have samples of their own
    for need, takers in _NEEDS:
        of_kind = np.flatnonzero(timeline.kind == need)
        of_kind = of_kind[np.lexsort((timeline.first_sample[of_kind], place[of_kind]))]
        if not len(of_kind):
            continue
        rows = np.flatnonzero(among(timeline.kind, takers))
        span = int((timeline.first_sample + timeline.samples).max()) + 1
        keys = place[of_kind] * span + timeline.first_sample[of_kind]
        last = np.searchsorted(keys, place[rows] * span + timeline.first_sample[rows] + timeline.samples[rows])
        first = np.searchsorted(keys, place[rows] * span + timeline.first_sample[rows], side="right") - 1
        for row, begin, end in zip(rows.tolist(), np.maximum(first, 0).tolist(), last.tolist(), strict=True):
            found[row] = max(found[row], timeline.end[of_kind[begin:end]].max(initial=0.0))
    columns = timeline.lane, timeline.kind, timeline.stage, timeline.microbatch, timeline.replica
    parts = 1 + np.flatnonzero(np.logical_and.reduce([one[1:] == one[:-1] for one in columns]))
    found[parts] = np.maximum(found[parts], timeline.end[parts - 1])
    return found


def _gaps(units: Sequence[Integers], start: Floats, stop: Floats, could: Floats, begin: float) -> list[_Gap]:
    """could: as `_could_begin`."""
    found = []
    for number, own in enumerate(units):
        free = np.maximum.accumulate(np.concatenate([[begin], stop[own]]))[:-1]
        least = np.append(np.minimum.accumulate(could[own][::-1])[::-1][1:], np.inf)
        for position in np.flatnonzero(start[own] > free).tolist():
            other = -1
            if least[position] < start[own[position]]:
                behind = own[position + 1 :]
                other = int(behind[int(could[behind].argmin())])
            found.append(
                _Gap(
                    *(number, float(free[position]), float(start[own[position]]), int(own[position]), position == 0),
                    *(float(least[position]), other),
                )
            )
    return found


def _of_gap(
    gap: _Gap,
    awaited: Awaited,
    timeline: Timeline,
    usual: Callable[[int], float],
    before: dict[int, list[Piece]],
    room: _Room | None,
) -> list[Piece]:
    """The pieces of an idle interval before a task."""
    task, part = gap.task, int(awaited.part[gap.task])
    moved = _MOVED.get(part)
    made = min(max(float(awaited.made[task]), gap.begin), gap.end) if moved is not None else gap.end
    maker = _maker(task, awaited, timeline)
    if gap.first:
        waits = [(gap.begin, made, FILL)]
    else:
        late = min(max(gap.ready, gap.begin), made)
        held = room is not None and room.lacks(late, gap.other, timeline)
        waits = [*_for_op(gap.begin, late, maker, timeline, usual, before), (late, made, MEMORY if held else ORDER)]
    pieces = [Piece(*one, task, maker) for one in waits]
    if moved is not None:
        pieces.append(Piece(made, gap.end, moved, task, maker))  # the task begins as soon as it is there
    return [one for one in pieces if one.end > one.begin]


def _maker(task: int, awaited: Awaited, timeline: Timeline) -> int:
    """The op that a task waits for, behind sends, ways to the host and collectives; -1 for none."""
    maker = int(awaited.task[task])
    while maker >= 0 and not (computes(timeline.kind[maker : maker + 1])[0] or timeline.kind[maker] == OpKind.UPDATE):
        maker = int(awaited.task[maker])
    return maker


def _for_op(
    begin: float,
    end: float,
    maker: int,
    timeline: Timeline,
    usual: Callable[[int], float],
    before: dict[int, list[Piece]],
) -> list[tuple[float, float, int]]:
    """The parts of a wait for an op: as a straggler what is beyond its usual seconds, and what it has waited for one."""
    if end <= begin or maker < 0:
        return [(begin, end, OP)]
    started, ended = float(timeline.start[maker]), float(timeline.end[maker])
    slow = [(one.begin, one.end) for one in before.get(maker, ()) if one.cause == STRAGGLER]
    excess = ended - started - usual(maker)
    if excess > ROUNDING * usual(maker):
        slow.append((ended - excess, ended))
    found, place = [], begin
    for first, last in slow:
        first, last = max(first, place), min(last, end)
        if last > first:
            found += [(place, first, OP), (first, last, STRAGGLER)]
            place = last
    return [*found, (place, end, OP)]


def _usual_seconds(timeline: Timeline) -> Callable[[int], float]:
    """Seconds of most tasks of a kind over as many samples: their lower median."""
    seconds = timeline.end - timeline.start
    keys = np.stack([timeline.kind.astype(np.int64), timeline.samples])
    _, number = np.unique(keys, axis=1, return_inverse=True)
    number = number.reshape(-1)
    order = np.lexsort((seconds, number))
    counts = np.bincount(number)
    middle = order[np.cumsum(counts) - counts + (counts - 1) // 2]
    usual = seconds[middle][number]
    return lambda task: float(usual[task])


class _Room:
    """What a device holds over time, and what its forwards take."""

    def __init__(self, memory: DeviceMemory, timeline: Timeline) -> None:
        self.times, self.levels, self.limit = memory.times, memory.bytes.sum(axis=1), memory.capacity_bytes
        rows = np.flatnonzero((timeline.device == memory.device) & (timeline.kind == OpKind.FORWARD))
        starts = timeline.start[rows]
        taken = self._at(starts, "right") - self._at(starts, "left")
        self.takes = {
            stage: float(taken[timeline.stage[rows] == stage].max())
            for stage in np.unique(timeline.stage[rows]).tolist()
        }

    def _at(self, times: Floats, side: str) -> Floats:
        places = np.searchsorted(self.times, times, side=side)  # type: ignore[call-overload]
        return np.where(places > 0, self.levels[np.maximum(places - 1, 0)], 0.0)

    def lacks(self, time: float, task: int, timeline: Timeline) -> bool:
        """Whether a task is a forward for which the device has no room at a time."""
        if task < 0 or timeline.kind[task] != OpKind.FORWARD:
            return False
        held = float(self._at(np.array([time]), "right")[0])
        return bool(held + self.takes[int(timeline.stage[task])] > self.limit)


def _behind(begin: float, end: float, gathered: Floats) -> list[Piece]:
    """The pieces behind a unit's last op: gathers of the weights that it has updated, and the drain."""
    found, place = [], begin
    for first, last in sorted(np.clip(gathered, begin, end).tolist()):
        first = max(first, place)
        if last > first:
            found += [Piece(place, first, DRAIN, -1, -1), Piece(first, last, REDUCTION, -1, -1)]
            place = last
    return [one for one in (*found, Piece(place, end, DRAIN, -1, -1)) if one.end > one.begin]


class PathStep(NamedTuple):
    """A task of the critical path, and the seconds between the end of the task before it and its start: a transfer, or a wait."""

    task: int
    gap: float


def critical_path(program: Program, timeline: Timeline) -> tuple[PathStep, ...]:
    """The tasks that follow one another from the start to the end of a replay, each as soon as the one before it lets it begin.

    Seconds of tasks and gaps sum to the makespan.
    """
    awaited, lane = awaited_last(program, timeline), timeline.lane
    task, found = int(timeline.end.argmax()), list[PathStep]()
    while task >= 0:
        started = float(timeline.start[task])
        before = task - 1
        while before >= 0 and lane[before] == lane[task] and timeline.end[before] > started:
            before -= 1  # the first op of a pair
        free = float(timeline.end[before]) if before >= 0 and lane[before] == lane[task] else -1.0
        maker, there = int(awaited.task[task]), float(awaited.there[task])
        last = before if free >= 0.0 and (maker < 0 or free >= there) else maker
        found.append(PathStep(task, started - (float(timeline.end[last]) if last >= 0 else 0.0)))
        task = last
    return tuple(reversed(found))


def is_collective(timeline: Timeline, task: int) -> bool:
    """Whether a task reduces, scatters or gathers among replicas."""
    return bool(timeline.lane_kind[timeline.lane[task]] == LaneKind.COLLECTIVE)
