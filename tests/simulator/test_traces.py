"""Rules of Chrome traces: what Perfetto needs, and that they say what the timeline says."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.costs.given import OpSeconds, given_costs
from simulator.engines import recurrence
from simulator.engines.timeline import LaneKind, Timeline, Transfers
from simulator.lowering.lower import lower
from simulator.memory.device_memory import CATEGORIES, DeviceMemory
from simulator.results.traces import chrome_trace, free_tracks
from simulator.schedules import build_schedule


def replayed(
    name: str,
    stages: int,
    microbatches: int,
    *,
    transfer: float = 0.0,
    communication: Any = "overlapped",
    **options: Any,
) -> Timeline:
    schedule = build_schedule(name, stages, microbatches, **options)
    costs = given_costs(stages, OpSeconds(1.0, 2.0, transfer=transfer), devices=schedule)
    return recurrence.replay(lower(schedule, costs, communication=communication))


def hand_made() -> Timeline:
    """Device 0 sends micro-batches 0 and 1 at once (over a slow link); stage 1 runs on two replicas that all-reduce."""
    rows = [  # lane, device, stage, kind, microbatch, replica, start, end
        (0, 0, 0, 0, 0, 0, 0.0, 1.0),
        (0, 0, 0, 0, 1, 0, 1.0, 2.0),
        (1, 3, 1, 0, 0, 0, 4.0, 5.0),
        (1, 3, 1, 1, 0, 0, 5.0, 6.0),
        (1, 3, 1, 1, 0, 0, 6.0, 7.0),
        (2, 4, 1, 0, 1, 1, 5.0, 6.0),
        (2, 4, 1, 1, 1, 1, 6.0, 8.0),
        (3, 3, 1, 6, 0, 0, 7.0, 9.0),
    ]
    lane, device, stage, kind, microbatch, replica, start, end = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    return Timeline(
        lane.astype(np.int32),
        device.astype(np.int32),
        stage.astype(np.int32),
        kind.astype(np.int8),
        microbatch.astype(np.int32),
        replica.astype(np.int32),
        microbatch.astype(np.int32),
        np.ones(len(rows), dtype=np.int32),
        start,
        end,
        np.array([LaneKind.COMPUTE] * 3 + [LaneKind.COLLECTIVE], dtype=np.int8),
        Transfers(
            np.array([0, 1], dtype=np.int32),
            np.array([2, 5], dtype=np.int32),
            np.array([1.0, 2.0]),
            np.array([4.0, 5.0]),
            np.array([100.0, 100.0]),
        ),
    )


def of_phase(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def assert_no_overlap(trace: dict[str, Any]) -> None:
    tracks = defaultdict(list)
    for event in of_phase(trace, "X"):
        begin = nanoseconds(event["ts"])
        tracks[event["pid"], event["tid"]].append((begin, begin + nanoseconds(event["dur"])))
    for spans in tracks.values():
        for (_, end), (begin, _) in itertools.pairwise(sorted(spans)):
            assert end <= begin


def assert_flows(trace: dict[str, Any], transfers: int) -> None:
    begins = {event["id"]: event for event in of_phase(trace, "s")}
    ends = {event["id"]: event for event in of_phase(trace, "f")}
    assert begins.keys() == ends.keys()
    assert len(begins) == transfers == len(of_phase(trace, "s")) == len(of_phase(trace, "f"))
    slices = defaultdict(list)
    for event in of_phase(trace, "X"):
        begin = nanoseconds(event["ts"])
        slices[event["pid"], event["tid"]].append((begin, begin + nanoseconds(event["dur"])))
    for number, begin in begins.items():
        assert begin["ts"] < ends[number]["ts"]
        assert ends[number]["bp"] == "e"
        for event in (begin, ends[number]):
            at = nanoseconds(event["ts"])
            assert any(low <= at < high for low, high in slices[event["pid"], event["tid"]])


@settings(deadline=None, max_examples=12)
@given(
    name=st.sampled_from(["gpipe", "1f1b", "eager-1f1b", "pipedream"]),
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 7),
    transfer=st.sampled_from([0.0, 0.1, 2.5]),
    communication=st.sampled_from(["overlapped", "send-blocking", "both-blocking"]),
)
def test_tracks_flows_and_busy_time(
    name: str, stages: int, microbatches: int, transfer: float, communication: str
) -> None:
    """No two events of a track overlap, every flow ends after it starts, compute events last as long as the timeline computes."""
    timeline = replayed(name, stages, microbatches, transfer=transfer, communication=communication)
    trace = chrome_trace(timeline)
    assert_no_overlap(trace)
    assert_flows(trace, len(timeline.transfers))
    for event in of_phase(trace, "X"):
        begin, end = (1e6 * event["args"][f"{one}_seconds"] for one in ("start", "end"))
        assert (event["ts"], event["ts"] + event["dur"]) == pytest.approx((begin, end), abs=2e-3)
    compute = [event for event in of_phase(trace, "X") if event["cat"] == "compute"]
    assert len(compute) == timeline.ops
    assert sum(event["dur"] for event in compute) == pytest.approx(timeline.busy_seconds().sum() * 1e6, rel=1e-6)


def test_a_whole_trace_event_by_event() -> None:
    """Two stages, one micro-batch, transfers of half a second: every event with its process, track and microseconds."""
    timeline = replayed("gpipe", 2, 1, transfer=0.5)  # 0F0 0-1, sent until 1.5; 1F0 until 2.5; 1B0 until 4.5; 0B0 5-7
    held = np.zeros((2, len(CATEGORIES)))
    held[0, 4] = 6
    trace = chrome_trace(timeline, [DeviceMemory(1, 9.0, np.array([0.0, 4.5]), held)])
    assert [(e["name"], e["pid"], e["tid"], *e["args"].values()) for e in of_phase(trace, "M")] == [
        ("process_name", 0, 0, "device 0 · stage 0"),
        ("process_sort_index", 0, 0, 0),
        ("process_name", 1, 0, "device 1 · stage 1"),
        ("process_sort_index", 1, 0, 1),
        *(
            (f"thread_{what}", pid, tid, value)
            for pid in (0, 1)
            for tid, name in ((0, "compute"), (1000, "send"), (2000, "receive"))
            for what, value in (("name", name), ("sort_index", tid))
        ),
    ]
    slices = [tuple(e[key] for key in ("name", "cat", "pid", "tid", "ts", "dur")) for e in of_phase(trace, "X")]
    assert sorted(slices) == [
        ("0B0", "compute", 0, 0, 5e6, 2e6),
        ("0F0", "compute", 0, 0, 0.0, 1e6),
        ("0RECV_B0", "receive", 0, 2000, 4.5e6, 0.5e6),
        ("0SEND_F0", "send", 0, 1000, 1e6, 0.5e6),
        ("1B0", "compute", 1, 0, 2.5e6, 2e6),
        ("1F0", "compute", 1, 0, 1.5e6, 1e6),
        ("1RECV_F0", "receive", 1, 2000, 1e6, 0.5e6),
        ("1SEND_B0", "send", 1, 1000, 4.5e6, 0.5e6),
    ]
    flows = [e for e in trace["traceEvents"] if e["ph"] in "sf"]
    assert [tuple(e[key] for key in ("ph", "name", "id", "pid", "tid", "ts", "cat")) for e in flows] == [
        ("s", "F0", 0, 0, 0, 0.5e6, "transfer"),  # from the middle of the producing op
        ("f", "F0", 0, 1, 0, 1.5e6, "transfer"),
        ("s", "B0", 1, 1, 0, 3.5e6, "transfer"),
        ("f", "B0", 1, 0, 0, 5e6, "transfer"),
    ]
    assert [(e["name"], e["pid"], e["tid"], e["ts"], e["args"]) for e in of_phase(trace, "C")] == [
        ("memory (bytes)", 1, 0, 0.0, {"activations": 6}),
        ("memory total (bytes)", 1, 0, 0.0, {"total": 6}),
        ("memory (bytes)", 1, 0, 4.5e6, {"activations": 0}),
        ("memory total (bytes)", 1, 0, 4.5e6, {"total": 0}),
    ]


def test_overlapping_transfers_go_to_further_tracks() -> None:
    """Two transfers that leave device 0 at once stand on two send tracks; each receiver needs one track."""
    trace = chrome_trace(hand_made())
    assert_no_overlap(trace)
    assert_flows(trace, 2)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in of_phase(trace, "M") if e["name"] == "thread_name"}
    assert sorted(tracks.items()) == [
        ((0, 0), "compute"),
        ((0, 1000), "send"),
        ((0, 1001), "send 2"),
        ((3, 0), "compute"),
        ((3, 2000), "receive"),
        ((3, 3000), "collective"),
        ((4, 0), "compute"),
        ((4, 2000), "receive"),
    ]
    order = {
        (e["pid"], e["tid"]): e["args"]["sort_index"] for e in of_phase(trace, "M") if e["name"] == "thread_sort_index"
    }
    assert order == {(pid, tid): tid for pid, tid in tracks}
    moved = {e["name"]: e["args"] for e in of_phase(trace, "X") if e["cat"] in ("send", "receive")}
    assert set(moved) == {"0SEND_F0", "0SEND_F1", "1RECV_F0", "1RECV_F1"}
    assert (moved["0SEND_F1"]["bytes"], moved["0SEND_F1"]["to"], moved["0SEND_F1"]["torch"]) == (
        100.0,
        "device 4",
        "PP:0SEND_F1",
    )


def test_processes_are_devices_in_the_order_of_stages() -> None:
    """One process a device, named with its stages, sorted by them; an op has its figures, and torch's name, as arguments."""
    trace = chrome_trace(hand_made(), device_word="FPGA")
    names = {e["pid"]: e["args"]["name"] for e in of_phase(trace, "M") if e["name"] == "process_name"}
    order = {e["pid"]: e["args"]["sort_index"] for e in of_phase(trace, "M") if e["name"] == "process_sort_index"}
    assert names == {0: "FPGA 0 · stage 0", 3: "FPGA 3 · stage 1", 4: "FPGA 4 · stage 1"}
    assert order == {0: 0, 3: 1, 4: 2}
    (event,) = [event for event in of_phase(trace, "X") if event["name"] == "1F1"]
    figures = {"stage": 1, "microbatch": 1, "replica": 1, "first_sample": 1, "samples": 1}
    assert event["args"] == {**figures, "start_seconds": 5.0, "end_seconds": 6.0, "torch": "PP:1F1"}


def test_blocking_transfers_are_named_by_the_op_they_serve() -> None:
    """A send that occupies the device is named for the op before it, a receive for the op behind it."""
    trace = chrome_trace(replayed("1f1b", 2, 1, transfer=0.5, communication="both-blocking"))
    names = [event["name"] for event in of_phase(trace, "X") if event["tid"] == 0]
    assert names == ["0F0", "0SEND_F0", "0RECV_B0", "0B0", "1RECV_F0", "1F0", "1B0", "1SEND_B0"]
    beside = [event["name"] for event in of_phase(trace, "X") if event["tid"] != 0]
    assert sorted(beside) == ["0RECV_B0", "0SEND_F0", "1RECV_F0", "1SEND_B0"]


def test_counters_reach_the_peak() -> None:
    """The largest total of a device's counters is its peak; of several steps at one moment the last one stands."""
    held = np.zeros((4, len(CATEGORIES)))
    held[:, 0] = 10
    held[1:3, 4] = (5, 25)
    memory = DeviceMemory(2, 100.0, np.array([0.0, 1.0, 1.0, 3.0]), held)
    counters = of_phase(chrome_trace(replayed("gpipe", 1, 1), [memory]), "C")
    totals = [(e["ts"], e["args"]["total"]) for e in counters if e["name"] == "memory total (bytes)"]
    parts = [(e["ts"], e["args"]) for e in counters if e["name"] == "memory (bytes)"]
    assert totals == [(0.0, 10), (1e6, 35), (3e6, 10)]
    assert max(total for _, total in totals) == memory.peak_bytes
    assert parts[1] == (1e6, {"weights": 10, "activations": 25})
    assert {event["pid"] for event in counters} == {2}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=20))
@example([(0, 5), (5, 3)])  # one that begins as the other ends
def test_free_tracks_are_as_few_as_overlap_demands(spans: list[tuple[int, int]]) -> None:
    """Intervals of one track do not overlap, and there are no more tracks than intervals at one moment."""
    start = np.array([begin for begin, _ in spans], dtype=np.int64)
    end = start + np.array([size for _, size in spans], dtype=np.int64)
    track = free_tracks(start, end)
    for a, b in itertools.combinations(range(len(spans)), 2):
        if track[a] == track[b]:
            assert end[a] <= start[b] or end[b] <= start[a]
    if len(spans) and (end > start).all():
        most = max(int(((start <= moment) & (end > moment)).sum()) for moment in range(30))
        assert track.max() + 1 == most
