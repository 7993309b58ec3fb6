"""Traces: timelines and memory as Chrome Trace Event JSON, for Perfetto and chrome://tracing.

Format: "Trace Event Format" (Google, 2016). Perfetto takes no overlapping events on one track, so every lane has a track of its
own and transfers that overlap go to further ones. Times are whole nanoseconds, written as microseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from hardware_profiles import Floats, Integers
from simulator.engines.timeline import Timeline
from simulator.lowering.program import LaneKind
from simulator.memory.device_memory import CATEGORIES, DeviceMemory
from simulator.schedules.ops import LETTERS, OpKind

Event = dict[str, Any]

TRACKS = {"compute": 0, "overlapped": 500, "send": 1000, "receive": 2000, "collective": 3000, "host": 4000}
"""First thread id of each kind of track of a device; a second track of the kind has the next one. overlapped: the second ops of
pairs of the compute track."""

_LANES = {LaneKind.COMPUTE: "compute", LaneKind.COLLECTIVE: "collective", LaneKind.HOST: "host"}

_GROUPS = {
    OpKind.UPDATE: "update",
    OpKind.PREDICT: "predict",
    OpKind.REDUCE: "all-reduce",
    OpKind.SEND: "send",
    OpKind.RECEIVE: "receive",
    OpKind.OFFLOAD: "offload",
    OpKind.RELOAD: "reload",
    OpKind.SCATTER: "reduce-scatter",
    OpKind.GATHER: "all-gather",
}


def chrome_trace(
    timeline: Timeline, memories: Sequence[DeviceMemory] = (), *, name: str = "pipeplan", device_word: str = "device"
) -> dict[str, Any]:
    """The timeline as a Chrome trace, ready for `json.dump`.

    One process per device with tracks compute, send, receive and collective; `X` events named as ops are (`2F0`), with torch's
    profiler name (`PP:2F0`) among their arguments; an `s`/`f` flow from producer to consumer of every transfer; `C` counters of
    memory, bytes by category and in total. An op that collectives cut into parts has one event per part.
    """
    start, end = _nanoseconds(timeline.start), _nanoseconds(timeline.end)
    tracks = _task_tracks(timeline)
    slices = [*_op_events(timeline, start, end, tracks), *_transfer_events(timeline, device_word)]
    events = [*_metadata(timeline, memories, slices, device_word), *slices]
    events += _flow_events(timeline, start, end, tracks)
    for memory in sorted(memories, key=lambda memory: memory.device):
        events += _counter_events(memory)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"name": name, "makespan_seconds": timeline.makespan_seconds, "ops": timeline.ops},
        "traceEvents": events,
    }


def _nanoseconds(seconds: Floats) -> Integers:
    return np.rint(seconds * 1e9).astype(np.int64)


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000


# ---- tracks ---------------------------------------------------------------------------------------------------------


def _task_tracks(timeline: Timeline) -> list[tuple[int, int]]:
    """(process, thread) of every task: its device, and a track for compute, second ops of pairs, or collectives."""
    tracks: dict[int, tuple[int, int]] = {}
    used: dict[tuple[int, str], int] = {}
    lanes, rows = np.unique(timeline.lane, return_index=True)
    for lane, row in zip(lanes.tolist(), rows.tolist(), strict=True):
        what = _LANES[LaneKind(int(timeline.lane_kind[lane]))]
        device = int(timeline.device[row])
        number = used.get((device, what), 0)
        used[device, what] = number + 1
        tracks[lane] = (device, TRACKS[what] + number)
    return [
        (tracks[lane][0], tracks[lane][1] + TRACKS["overlapped"] * second)
        for lane, second in zip(timeline.lane.tolist(), timeline.second_of_pair().tolist(), strict=True)
    ]


def free_tracks(start: Integers, end: Integers) -> Integers:
    """The lowest track, from 0, on which each interval overlaps no other: int64 [intervals]."""
    track = np.zeros(len(start), dtype=np.int64)
    busy: list[tuple[int, int]] = []  # end, track
    free: list[int] = []
    tracks = 0
    for row in np.lexsort((end, start)).tolist():
        while busy and busy[0][0] <= start[row]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, tracks)
            tracks += 1
        track[row] = heapq.heappop(free)
        heapq.heappush(busy, (int(end[row]), int(track[row])))
    return track


def _metadata(
    timeline: Timeline, memories: Sequence[DeviceMemory], slices: Sequence[Event], device_word: str
) -> list[Event]:
    """Names and positions of the devices and of their non-empty tracks."""
    stages: dict[int, set[int]] = {memory.device: set() for memory in memories}
    devices, stage = timeline.device.tolist(), timeline.stage.tolist()
    collective = (timeline.lane_kind[timeline.lane] == LaneKind.COLLECTIVE).tolist()
    for device, number, shared in set(zip(devices, stage, collective, strict=True)):
        stages.setdefault(device, set()).update(() if shared else (number,))
    threads = {(event["pid"], event["tid"]) for event in slices}
    order = sorted(stages, key=lambda device: (min(stages[device], default=0), device))
    events: list[Event] = []
    for position, device in enumerate(order):
        held = sorted(stages[device])
        words = f" · stage{'s' if len(held) > 1 else ''} {', '.join(map(str, held))}" if held else ""
        events.append(_meta("process_name", device, 0, {"name": f"{device_word} {device}{words}"}))
        events.append(_meta("process_sort_index", device, 0, {"sort_index": position}))
    for device, thread in sorted(threads):
        what = max((name for name in TRACKS if TRACKS[name] <= thread), key=TRACKS.__getitem__)
        number = thread - TRACKS[what]
        events.append(_meta("thread_name", device, thread, {"name": f"{what} {number + 1}" if number else what}))
        events.append(_meta("thread_sort_index", device, thread, {"sort_index": thread}))
    return events


def _meta(name: str, process: int, thread: int, args: dict[str, object]) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": args}


# ---- ops ------------------------------------------------------------------------------------------------------------


def _op_names(timeline: Timeline) -> list[str]:
    """Name of every row, as `2F0`; sends and receives on a compute lane as torch writes them, `2SEND_F0`, `3RECV_F0`."""
    letters = [LETTERS[kind] for kind in timeline.kind.tolist()]
    columns = (timeline.stage.tolist(), letters, timeline.microbatch.tolist())
    names = [f"{stage}{letter}{microbatch}" for stage, letter, microbatch in zip(*columns, strict=True)]
    for kind, word, step in ((OpKind.SEND, "SEND", -1), (OpKind.RECEIVE, "RECV", 1)):
        for row in np.flatnonzero(timeline.kind == kind).tolist():
            op = (
                row  # the op whose output is sent stands before its sends, the op that waits stands behind its receives
            )
            while timeline.kind[op] == kind:
                op += step
            names[row] = f"{timeline.stage[row]}{word}_{_direction(timeline, op)}{timeline.microbatch[row]}"
    return names


def _direction(timeline: Timeline, row: int) -> str:
    return "F" if timeline.kind[row] == OpKind.FORWARD else "B"


def _op_events(timeline: Timeline, start: Integers, end: Integers, tracks: Sequence[tuple[int, int]]) -> list[Event]:
    names = _op_names(timeline)
    events: list[Event] = []
    for row, name in enumerate(names):
        args: dict[str, object] = {
            "stage": int(timeline.stage[row]),
            "microbatch": int(timeline.microbatch[row]),
            "replica": int(timeline.replica[row]),
            "first_sample": int(timeline.first_sample[row]),
            "samples": int(timeline.samples[row]),
            "start_seconds": float(timeline.start[row]),
            "end_seconds": float(timeline.end[row]),
            "torch": f"PP:{name}",
        }
        group = _GROUPS.get(OpKind(int(timeline.kind[row])), "compute")
        events.append(_slice(name, group, tracks[row], int(start[row]), int(end[row]), args))
    return events


def _slice(name: str, group: str, track: tuple[int, int], start: int, end: int, args: dict[str, object]) -> Event:
    when = {"ts": _microseconds(start), "dur": _microseconds(end - start)}
    return {"ph": "X", "name": name, "cat": group, "pid": track[0], "tid": track[1], **when, "args": args}


# ---- transfers ------------------------------------------------------------------------------------------------------


def _transfer_events(timeline: Timeline, device_word: str) -> list[Event]:
    moved = timeline.transfers
    start, end = _nanoseconds(moved.start), _nanoseconds(moved.end)
    events: list[Event] = []
    for what, word, ops in (("send", "SEND", moved.producer), ("receive", "RECV", moved.consumer)):
        device = timeline.device[ops]
        track = np.zeros(len(moved), dtype=np.int64)
        for one in np.unique(device):
            chosen = np.flatnonzero(device == one)
            track[chosen] = free_tracks(start[chosen], end[chosen])
        for row, op in enumerate(ops.tolist()):
            producer, consumer = int(moved.producer[row]), int(moved.consumer[row])
            name = f"{timeline.stage[op]}{word}_{_direction(timeline, producer)}{timeline.microbatch[op]}"
            args: dict[str, object] = {
                "bytes": float(moved.size_bytes[row]),
                "from": f"{device_word} {timeline.device[producer]}",
                "to": f"{device_word} {timeline.device[consumer]}",
                "start_seconds": float(moved.start[row]),
                "end_seconds": float(moved.end[row]),
                "torch": f"PP:{name}",
            }
            place = int(device[row]), TRACKS[what] + int(track[row])
            events.append(_slice(name, what, place, int(start[row]), int(end[row]), args))
    return events


def _flow_events(timeline: Timeline, start: Integers, end: Integers, tracks: Sequence[tuple[int, int]]) -> list[Event]:
    """Arrows from the middle of the producing op (a flow binds to the slice around it) to the start of the consuming op."""
    moved = timeline.transfers
    events: list[Event] = []
    pairs = zip(moved.producer.tolist(), moved.consumer.tolist(), strict=True)
    for number, (producer, consumer) in enumerate(pairs):
        name = f"{_direction(timeline, producer)}{timeline.microbatch[producer]}"
        middle = int(start[producer] + end[producer]) // 2
        for phase, row, moment in (("s", producer, middle), ("f", consumer, int(start[consumer]))):
            process, thread = tracks[row]
            event: Event = {"ph": phase, "name": name, "cat": "transfer", "id": number, "pid": process, "tid": thread}
            event |= {"ts": _microseconds(moment), **({"bp": "e"} if phase == "f" else {})}
            events.append(event)
    return events


# ---- memory ---------------------------------------------------------------------------------------------------------


def _counter_events(memory: DeviceMemory) -> list[Event]:
    """Two counters per device: bytes by category, and in total; of several at one moment the last."""
    moments = _nanoseconds(memory.times)
    last = np.flatnonzero(np.concatenate([moments[1:] > moments[:-1], [True]]))
    held = np.flatnonzero(memory.bytes.max(axis=0) > 0)
    total = memory.bytes.sum(axis=1)
    events: list[Event] = []
    for row in last.tolist():
        at = _microseconds(int(moments[row]))
        parts = {CATEGORIES[number]: round(float(memory.bytes[row, number])) for number in held.tolist()}
        for name, args in (("memory (bytes)", parts), ("memory total (bytes)", {"total": round(float(total[row]))})):
            events.append({"ph": "C", "name": name, "pid": memory.device, "tid": 0, "ts": at, "args": args})
    return events
