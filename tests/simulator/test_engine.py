"""Rules of the reference engine: contention, all-reduce, deadlocks, noise and shared devices, in figures worked out by hand."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import (
    Bucket,
    DeadlockError,
    OpKind,
    OpSeconds,
    Program,
    Timeline,
    build_schedule,
    from_text,
    given_costs,
    lower,
)
from simulator.engines.reference import replay
from simulator.lowering.program import LaneKind
from tests.simulator.noise import with_noise
from tests.simulator.strategies import HandCosts, channel, lower_unchecked, programs


def times(timeline: Timeline, stage: int, kind: OpKind, replica: int = 0) -> list[tuple[float, float]]:
    """(start, end) of the ops of one kind of a stage, in order."""
    rows = (timeline.stage == stage) & (timeline.kind == kind) & (timeline.replica == replica)
    return list(zip(timeline.start[rows].tolist(), timeline.end[rows].tolist(), strict=True))


F, B = OpKind.FORWARD, OpKind.BACKWARD


# ---- contention ------------------------------------------------------------------------------------------------------


def two_stages(
    routes: dict[tuple[int, int], tuple[int, ...]], size: float, channels: int, name: str, m: int
) -> Program:
    """Two stages, F = B = 1 s, tensors of `size` bytes over channels of 1 byte per second."""
    costs = HandCosts((1.0, 1.0), (1.0, 1.0), transfer_bytes=size, routes=routes, channels=(channel(1.0),) * channels)
    return lower(build_schedule(name, 2, m), costs)


def test_two_transfers_on_one_channel_queue() -> None:
    """Tensors of 2 s leave at 1 and 2: the second waits until 3 and arrives at 5; gradients queue alike on the way back."""
    program = two_stages({(0, 1): (0,), (1, 0): (1,)}, 2.0, 2, "gpipe", 2)
    free, queued = replay(program), replay(program, contention=True)
    assert times(free, 1, F) == [(3.0, 4.0), (4.0, 5.0)]
    assert times(free, 0, B) == [(8.0, 9.0), (9.0, 10.0)]
    assert times(queued, 1, F) == [(3.0, 4.0), (5.0, 6.0)]
    assert times(queued, 1, B) == [(6.0, 7.0), (7.0, 8.0)]
    assert times(queued, 0, B) == [(9.0, 10.0), (11.0, 12.0)]
    assert queued.transfers.start.tolist() == [1.0, 2.0, 7.0, 8.0]
    assert queued.transfers.end.tolist() == [3.0, 5.0, 9.0, 11.0]
    assert queued.transfers.size_bytes.tolist() == [2.0] * 4


def two_senders(routes: dict[tuple[int, int], tuple[int, ...]], channels: tuple[Any, ...], size: float) -> float:
    """When the last of two tensors, sent at 1 by the two replicas of stage 0, arrives at stage 1."""
    costs = HandCosts((1.0, 1.0), (1.0, 1.0), transfer_bytes=size, routes=routes, channels=channels)
    program = lower(build_schedule("gpipe", 2, 1), costs, forward_sizes=[2], split_replicas=[2, 1])
    return times(replay(program, contention=True), 1, F)[0][0]


@pytest.mark.parametrize("bandwidths", [(4.0, 2.0), (2.0, 4.0)])
def test_cut_through_on_two_hops(bandwidths: tuple[float, float]) -> None:
    """8 bytes at 2 bytes per second and 0.75 s of latency: 4.75 alone; the second message is the bottleneck's 4 s behind."""
    channels = (channel(bandwidths[0], 0.5), channel(bandwidths[1], 0.25))
    apart = (*channels, *channels)
    assert two_senders({(0, 1): (0, 1), (100, 1): (2, 3)}, apart, 8.0) == 1.0 + 4.75
    assert two_senders({(0, 1): (0, 1), (100, 1): (0, 1)}, channels, 8.0) == 1.0 + 8.75


def test_half_duplex_makes_activations_and_gradients_wait_for_each_other() -> None:
    """1F1B, tensors of 3 s: the gradient of 6 s leaves at once on a channel of its own, at 7 on a shared one."""
    full = two_stages({(0, 1): (0,), (1, 0): (1,)}, 3.0, 2, "1f1b", 2)
    half = two_stages({(0, 1): (0,), (1, 0): (0,)}, 3.0, 1, "1f1b", 2)
    assert times(replay(full, contention=True), 0, B) == [(9.0, 10.0), (12.0, 13.0)]
    assert times(replay(half, contention=True), 0, B) == [(10.0, 11.0), (13.0, 14.0)]


@settings(max_examples=20, deadline=None)
@given(
    p=st.integers(1, 4),
    m=st.integers(1, 6),
    f=st.floats(1.0, 5.0),
    b=st.floats(1.0, 5.0),
    busy=st.floats(0.0, 1.0),
    latency=st.floats(0.0, 3.0),
)
def test_idle_links_under_contention_equal_no_contention(
    p: int, m: int, f: float, b: float, busy: float, latency: float
) -> None:
    """Where no transfer meets another (each channel is busy for less than F), contention changes nothing (1e-12)."""
    routes = {}
    for s in range(p - 1):
        routes[s, s + 1], routes[s + 1, s] = (2 * s,), (2 * s + 1,)
    costs = HandCosts(
        (f,) * p, (b,) * p, transfer_bytes=busy, routes=routes, channels=(channel(1.0, latency),) * (2 * p)
    )
    program = lower(build_schedule("1f1b", p, m), costs)
    free, contended = replay(program), replay(program, contention=True)
    np.testing.assert_allclose(contended.start, free.start, rtol=1e-12)
    np.testing.assert_allclose(contended.end, free.end, rtol=1e-12)
    np.testing.assert_allclose(contended.transfers.end, free.transfers.end, rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_contention_without_routes_is_no_contention(data: st.DataObject) -> None:
    """The loop for contended links finds the same times as the lean one where every link is its own (1e-12)."""
    try:
        program = data.draw(programs())
        free = replay(program)
    except ValueError:
        return
    contended = replay(program, contention=True)
    np.testing.assert_allclose(contended.end, free.end, rtol=1e-12, atol=1e-12)


@st.composite
def contended_programs(draw: st.DrawFn) -> Program:
    """Flushed schedules with replicas, whose transfers and all-reduces share a few channels, one or two hops a route."""
    p, m, channels = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    replicas = [draw(st.integers(1, 2)) for _ in range(p)]
    route = st.lists(st.integers(0, channels - 1), min_size=1, max_size=2, unique=True).map(tuple)
    devices = [s + 100 * r for s in range(p) for r in range(replicas[s])]
    seconds = st.sampled_from([0.5, 1.0, 2.0, 3.0])
    costs = HandCosts(
        forward=tuple(draw(seconds) for _ in range(p)),
        backward=tuple(draw(seconds) for _ in range(p)),
        transfer_bytes=draw(st.sampled_from([0.0, 1.0, 4.0])),
        routes={(a, b): draw(route) for a in devices for b in devices if a != b},
        channels=tuple(channel(draw(seconds), draw(st.sampled_from([0.0, 0.25]))) for _ in range(channels)),
        stage_buckets={s: (Bucket(0.5, draw(seconds), draw(route)),) * 2 for s in range(p) if replicas[s] > 1},
    )
    name = draw(st.sampled_from(["gpipe", "1f1b", "eager-1f1b"]))
    return lower(build_schedule(name, p, m), costs, forward_sizes=[2] * m, split_replicas=replicas, updates=True)


@settings(max_examples=25, deadline=None)
@given(program=contended_programs())
def test_contention_only_delays(program: Program) -> None:
    """The order on each device is fixed, so that no task and no tensor is earlier than on unlimited links."""
    free, contended = replay(program), replay(program, contention=True)
    assert (contended.start >= free.start - 1e-9).all()
    assert (contended.end >= free.end - 1e-9).all()
    assert (contended.transfers.end >= free.transfers.end - 1e-9).all()


@settings(max_examples=30, deadline=None)
@given(program=contended_programs(), seed=st.integers(0, 2**32 - 1))
def test_channels_serve_first_come_first_served(program: Program, seed: int) -> None:
    """Served one after the other in the order in which heads reach them, the channels alone give the replay's times (1e-9).

    Durations and latencies are drawn so that nothing happens at one moment but what one task sends.
    """
    rng = np.random.default_rng(seed)
    links = tuple(replace(link, latency=rng.uniform(0.1, 0.5)) for link in program.channels)
    program = replace(program, seconds=program.seconds * rng.uniform(0.5, 1.5, len(program)), channels=links)
    timeline = replay(program, contention=True)
    consumer = np.repeat(np.arange(len(program)), np.diff(program.dependency_offsets))
    lane = program.lane_of_task()
    sent: dict[tuple[int, int, int], list[int]] = {}
    for row in np.flatnonzero(program.transfer).tolist():
        key = int(program.dependency[row]), int(program.transfer[row]), int(lane[consumer[row]])
        sent.setdefault(key, []).append(row)
    asked: list[tuple[float, int, int, int, float]] = []  # moment, number, task or class, hop, tail
    for number, (producer, transfer, _) in enumerate(sorted(sent, key=lambda key: (key[0], sent[key][0]))):
        asked.append((float(timeline.end[producer]), number, transfer, 0, float(timeline.end[producer])))
    for task in np.flatnonzero(timeline.kind == OpKind.REDUCE).tolist():
        rows = slice(int(program.dependency_offsets[task]), int(program.dependency_offsets[task + 1]))
        before = timeline.end[task - 1] if task > program.lane_offsets[lane[task]] else 0.0
        ready = max(float(before), float(timeline.end[program.dependency[rows]].max()))
        asked.append((ready, len(sent) + task, task, -1, ready))
    heapq.heapify(asked)
    free = [0.0] * len(program.channels)
    arrived: list[float] = []
    while asked:
        now, number, what, hop, tail = heapq.heappop(asked)
        if hop < 0:
            turns = [max(now, free[c]) for c in program.lane_route[lane[what]]]
            for c, turn in zip(program.lane_route[lane[what]], turns, strict=True):
                free[c] = turn + program.seconds[what]
            assert timeline.start[what] == pytest.approx(max(turns), abs=1e-9)
            continue
        route = program.transfer_route[what]
        link = program.channels[route[hop]]
        begins = max(now, free[route[hop]])
        free[route[hop]] = begins + program.transfer_bytes[what] / link.bandwidth
        tail = max(free[route[hop]], tail) + link.latency
        if hop + 1 < len(route):
            heapq.heappush(asked, (begins + link.latency, number, what, hop + 1, tail))
        else:
            arrived.append(tail)
    assert sorted(arrived) == pytest.approx(sorted(timeline.transfers.end.tolist()), abs=1e-9)


# ---- what each clause of the contention model says ---------------------------------------------------------------------


def lanes(seconds: Sequence[Sequence[float]], sharing: Sequence[int], after: dict[int, int] | None = None) -> Program:
    """Lanes of tasks with the given durations on devices of their own; `after`: task -> the task that it waits for."""
    waits = after or {}
    flat = [one for lane in seconds for one in lane]
    count = len(flat)
    zeros = np.zeros(count, dtype=np.int32)
    has = [task in waits for task in range(count)]
    return Program(
        lane_offsets=np.cumsum([0, *map(len, seconds)], dtype=np.int64),
        lane_device=np.arange(len(seconds), dtype=np.int32),
        lane_kind=np.zeros(len(seconds), dtype=np.int8),
        lane_sharing=np.array(sharing, dtype=np.int32),
        kind=zeros.astype(np.int8),
        stage=zeros,
        microbatch=np.arange(count, dtype=np.int32),
        replica=zeros,
        first_sample=zeros,
        samples=zeros + 1,
        seconds=np.array(flat),
        dependency_offsets=np.cumsum([0, *has], dtype=np.int64),
        dependency=np.array([waits[task] for task in sorted(waits)], dtype=np.int32),
        transfer=np.zeros(len(waits), dtype=np.int32),
        transfer_seconds=np.zeros(1),
        transfer_bytes=np.zeros(1),
        transfer_route=((),),
        transfer_pair=zeros[:1],
        transfer_loads=((),),
        lane_route=((),) * len(seconds),
        lane_occupancy=((),) * len(seconds),
        channels=(),
    )


def arrivals(
    requests: Sequence[tuple[float, float, tuple[int, ...]]], channels: tuple[Any, ...], reduction: Any = None
) -> list[float]:
    """When transfers of (moment of the request, bytes, route) arrive, each from a lane of its own to another.

    reduction: (moment, seconds, route, occupancy) of one all-reduce beside them, whose start and end stand at the end of the list
    """
    count = len(requests)
    seconds, waits = [moment for moment, _, _ in requests] + [0.0] * count, {count + n: n for n in range(count)}
    classes, kinds, routes, occupancy = [*range(1, count + 1)], [LaneKind.COMPUTE] * 2 * count, [()] * 2 * count, [()]
    if reduction is not None:
        seconds, waits = [*seconds, *reduction[:2]], {**waits, 2 * count + 1: 2 * count}
        classes, kinds = [*classes, 0], [*kinds, LaneKind.COMPUTE, LaneKind.COLLECTIVE]
        routes, occupancy = [*routes, (), reduction[2]], [reduction[3]]
    idle = (
        sum(channels[c].latency for c in route) + size / min(channels[c].bandwidth for c in route)
        for _, size, route in requests
    )
    program = replace(
        lanes([[one] for one in seconds], [-1] * len(seconds), waits),
        lane_kind=np.array(kinds, dtype=np.int8),
        transfer=np.array(classes, dtype=np.int32),
        transfer_seconds=np.array([0.0, *idle]),
        transfer_bytes=np.array([0.0, *(size for _, size, _ in requests)]),
        transfer_route=((), *(route for _, _, route in requests)),
        transfer_pair=np.arange(count + 1, dtype=np.int32),
        transfer_loads=((),) * (count + 1),
        lane_route=tuple(routes),
        lane_occupancy=((),) * (len(seconds) - 1) + tuple(occupancy),
        channels=channels,
    )
    timeline = replay(program, contention=True)
    times = timeline.start[count : 2 * count].tolist()
    return [*times, timeline.start[-1], timeline.end[-1]] if reduction is not None else times


def test_a_channel_is_asked_when_the_head_reaches_it() -> None:
    """10 bytes hold channel 0 until 10, and one byte behind them for channels 0 and 1 arrives at 11; channel 1 is idle until
    10, so that the byte that asks for it at 1 is there at 2."""
    both = (channel(1.0), channel(1.0))
    assert arrivals([(0.0, 10.0, (0,)), (0.0, 1.0, (0, 1)), (1.0, 1.0, (1,))], both) == [10.0, 11.0, 2.0]


@pytest.mark.parametrize(("moment", "times"), [(2.0, [5.0, 3.0]), (2.5, [5.5, 3.5]), (4.0, [5.0, 6.0])])
def test_a_head_reaches_the_next_channel_a_latency_later(moment: float, times: list[float]) -> None:
    """2 bytes reach channel 1 at 3 and hold it until 5: a byte that comes before goes before, one that comes at 4 at 5."""
    assert arrivals([(0.0, 2.0, (0, 1)), (moment, 1.0, (1,))], (channel(1.0, 3.0), channel(1.0))) == times


@pytest.mark.parametrize("route", [(0, 1), (1, 0)])
def test_a_fast_channel_is_busy_for_its_own_bytes_only(route: tuple[int, int]) -> None:
    """8 bytes over 1 and 4 bytes per second take 8 s; the fast channel, before the slow one or behind it, is busy for 2 s."""
    channels = (channel(1.0), channel(4.0))
    assert arrivals([(0.0, 8.0, route), (1.0, 4.0, (1,)), (1.0, 1.0, (0,))], channels) == [8.0, 3.0, 9.0]


@pytest.mark.parametrize(("size", "time"), [(40.0, 12.0), (4.0, 8.0), (28.0, 9.0)])
def test_the_tail_arrives_when_all_bytes_have_passed_every_channel(size: float, time: float) -> None:
    """8 bytes come over a channel of 1 byte per second until 8. The next, of 4 bytes/s, is free at 10: they have all come,
    and pass in 2 s; free at 1: the last byte passes as it comes; free at 7: 2 s for all that was waiting, until 9."""
    assert arrivals([(0.0, size, (1,)), (0.0, 8.0, (0, 1))], (channel(1.0), channel(4.0)))[1] == time


@settings(max_examples=25, deadline=None)
@given(
    links=st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.0, 3.0)), min_size=1, max_size=5),
    size=st.floats(0.0, 100.0),
)
def test_an_idle_route_takes_its_latencies_and_its_slowest_channel(
    links: list[tuple[float, float]], size: float
) -> None:
    """Sum of latencies + bytes / slowest bandwidth, for routes of any length."""
    channels = tuple(channel(*link) for link in links)
    idle = sum(latency for _, latency in links) + size / min(bandwidth for bandwidth, _ in links)
    assert arrivals([(0.0, size, tuple(range(len(links))))], channels) == [pytest.approx(idle, rel=1e-12)]


def test_transfers_that_ask_at_one_moment_are_served_in_the_order_of_their_causes() -> None:
    """Of two at 1 s, on the lanes 0 and 1, the first lane's goes first."""
    assert arrivals([(1.0, 2.0, (0,)), (1.0, 1.0, (0,))], (channel(1.0),)) == [3.0, 4.0]


def test_an_all_reduce_takes_its_turn_on_every_channel() -> None:
    """An all-reduce of 4 s is asked for at 0.5: channel 0 (busy until 3) is its own for 4 s, channel 1 for a quarter of that at
    once. It runs from 3 to 7; a byte that asks at 1 has channel 0 at 7, and channel 1 at 1.5."""
    requests = [(0.0, 3.0, (0,)), (1.0, 1.0, (0,)), (1.0, 1.0, (1,))]
    reduction = (0.5, 4.0, (0, 1), (1.0, 0.25))
    assert arrivals(requests, (channel(1.0), channel(1.0)), reduction) == [3.0, 8.0, 2.5, 3.0, 7.0]


def test_blocking_transfers_queue_on_their_channel_too() -> None:
    """Two replicas that are busy sending 2 bytes each over one channel of 1 byte per second need 4 s together, not 2."""
    costs = HandCosts(
        (1.0, 1.0),
        (1.0, 1.0),
        transfer_bytes=2.0,
        routes={(0, 1): (0,), (100, 1): (0,)},
        channels=(channel(1.0),),
    )
    program = lower(
        build_schedule("gpipe", 2, 1), costs, forward_sizes=[2], split_replicas=[2, 1], communication="send-blocking"
    )
    assert times(replay(program, contention=True), 1, F)[0][0] == 5.0


# ---- all-reduce ------------------------------------------------------------------------------------------------------


def replicated(samples: int, buckets: tuple[Bucket, ...], m: int = 1) -> Timeline:
    """One stage on two replicas, F = 1 and B = 4 seconds per sample, updates of 0.5 s."""
    costs = HandCosts((1.0,), (4.0,), update=0.5, stage_buckets={0: buckets})
    program = lower(build_schedule("gpipe", 1, m), costs, forward_sizes=[samples] * m, split_replicas=[2], updates=True)
    return replay(program)


def test_all_reduce_overlaps_backward_bucket_by_bucket() -> None:
    """Backward 1-5: half of the gradients are there at 3 and reduced 3-5, the rest 5-6; the update follows at 6."""
    timeline = replicated(2, (Bucket(0.5, 2.0), Bucket(0.5, 1.0)))
    assert times(timeline, 0, B) == [(1.0, 3.0), (3.0, 5.0)]
    assert times(timeline, 0, OpKind.REDUCE) == [(3.0, 5.0), (5.0, 6.0)]
    assert times(timeline, 0, OpKind.UPDATE) == times(timeline, 0, OpKind.UPDATE, 1) == [(6.0, 6.5)]
    slow = replicated(2, (Bucket(0.5, 3.0), Bucket(0.5, 1.0)))
    assert times(slow, 0, OpKind.REDUCE) == [(3.0, 6.0), (6.0, 7.0)]


def test_all_reduce_waits_for_the_slower_replica() -> None:
    """3 samples over 2 replicas are 1 and 2: the first halves are there at 3 and 6, the second at 5 and 10."""
    timeline = replicated(3, (Bucket(0.5, 2.0), Bucket(0.5, 1.0)))
    assert times(timeline, 0, B, 0) == [(1.0, 3.0), (3.0, 5.0)]
    assert times(timeline, 0, B, 1) == [(2.0, 6.0), (6.0, 10.0)]
    assert times(timeline, 0, OpKind.REDUCE) == [(6.0, 8.0), (10.0, 11.0)]


def test_only_the_last_backward_is_reduced() -> None:
    """Gradients add up over micro-batches: 2 of them, one all-reduce, overlapped with the second backward (6-10)."""
    timeline = replicated(2, (Bucket(0.5, 2.0), Bucket(0.5, 1.0)), m=2)
    assert times(timeline, 0, B) == [(2.0, 6.0), (6.0, 8.0), (8.0, 10.0)]
    assert times(timeline, 0, OpKind.REDUCE) == [(8.0, 10.0), (10.0, 11.0)]


def test_round_robin_replicas_reduce_once_each_has_run_one_minibatch() -> None:
    """2-1, F = B = 1, all-reduce 0.5 s: mini-batches 0 and 1 end at 4 and 6 on stage 0, reduced 6-6.5, both updated then."""
    schedule = build_schedule("1f1b-rr", 2, 2, replicas=(2, 1))
    costs = HandCosts((1.0, 1.0), (1.0, 1.0), stage_buckets={0: (Bucket(1.0, 0.5),)})
    timeline = replay(lower(schedule, costs))
    assert times(timeline, 1, F) == [(1.0, 2.0), (3.0, 4.0)]
    assert times(timeline, 0, B, 0) == [(3.0, 4.0)]
    assert times(timeline, 0, B, 1) == [(5.0, 6.0)]
    assert times(timeline, 0, OpKind.REDUCE) == [(6.0, 6.5)]
    assert times(timeline, 0, OpKind.UPDATE, 0) == times(timeline, 0, OpKind.UPDATE, 1) == [(6.5, 6.5)]


# ---- deadlocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contention", [False, True])
def test_deadlock_names_device_position_and_op(contention: bool) -> None:
    """Every stuck device is named with its position, its op, and where the op stands that it waits for."""
    text = "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"
    program = lower_unchecked(from_text(text), given_costs(2, OpSeconds(1.0, 1.0, transfer=0.5)))
    with pytest.raises(DeadlockError) as caught:
        replay(program, contention=contention)
    assert str(caught.value) == (
        "deadlock: device 0, position 1: op 0B0 waits for 1B0 (device 1, position 2); "
        "device 1, position 1: op 1F1 waits for 0F1 (device 0, position 2)"
    )


def test_a_deadlock_of_many_devices_names_two() -> None:
    """Five devices that all wait: two are told apart, the others counted."""
    stages = range(5)
    text = "\n".join(f"{s}F0 {s}B0 {s}F1 {s}B1" if s % 2 == 0 else f"{s}F0 {s}F1 {s}B0 {s}B1" for s in stages)
    with pytest.raises(DeadlockError) as caught:
        replay(lower_unchecked(from_text(text), given_costs(5, OpSeconds(1.0, 1.0))))
    message = str(caught.value)
    assert message.count(" waits for ") == 2
    assert message.endswith("; 3 devices more")


# ---- noise -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.3, 0.8])
def test_noise_has_mean_one_and_the_spread_asked_for(spread: float) -> None:
    """Factors are log-normal of mean 1; 16,384 of them come within 5 standard errors."""
    program = lower(build_schedule("gpipe", 8, 1024), given_costs(8, OpSeconds(1.0, 1.0)))
    factors = with_noise(program, spread, np.random.default_rng(11)).seconds
    deviation = np.sqrt(np.expm1(spread * spread))
    assert abs(factors.mean() - 1.0) < 5 * deviation / np.sqrt(len(factors))
    assert np.log(factors).std() == pytest.approx(spread, rel=0.02)


def test_noise_stretches_an_op_that_sends_while_it_computes_as_a_whole() -> None:
    """On a shared device an op of 1 s that sends for 4 s takes 4 s and a quarter of the device; with noise f it is 4 f and f."""
    schedule = build_schedule("fbp-as", 3, 4)
    program = lower(
        schedule, given_costs(3, OpSeconds(1.0, 1.0, transfer=4.0), devices=schedule), communication="streaming"
    )
    assert program.least_seconds is not None
    assert set(program.least_seconds.tolist()) == {1.0, 4.0}
    noisy = with_noise(program, 0.3, np.random.default_rng(3))
    assert noisy.least_seconds is not None
    np.testing.assert_allclose(noisy.least_seconds / program.least_seconds, noisy.seconds / program.seconds, rtol=1e-14)
    assert len(set((noisy.seconds / program.seconds).tolist())) == len(program)


@pytest.mark.parametrize("contention", [False, True])
@pytest.mark.parametrize("communication", ["overlapped", "send-blocking", "both-blocking"])
def test_noise_applies_to_every_transfer_once(communication: Any, contention: bool) -> None:
    """Each transfer of 0.5 + 2 s on idle channels has a factor of its own, the same with contention; its bytes stay."""
    routes = {(0, 1): (0, 1), (1, 0): (2, 3)}
    links = (channel(1.0, 0.25), channel(2.0, 0.25)) * 2
    costs = HandCosts((9.0, 9.0), (9.0, 9.0), transfer_bytes=2.0, routes=routes, channels=links)
    program = lower(build_schedule("gpipe", 2, 3), costs, communication=communication)
    noisy = with_noise(program, 0.05, np.random.default_rng(5))
    moved = replay(noisy, contention=contention).transfers
    factor = (moved.end - moved.start) / 2.5
    assert len(set(np.round(factor, 9).tolist())) == len(moved) == 6
    assert np.abs(np.log(factor)).max() < 0.25
    assert 0.01 < np.log(factor).std() < 0.1
    assert moved.size_bytes.tolist() == [2.0] * 6
    again = replay(noisy, contention=not contention).transfers
    np.testing.assert_allclose(moved.end - moved.start, again.end - again.start, rtol=1e-9)


def test_a_receive_lasts_as_long_as_its_send() -> None:
    """Where transfers block both devices, noise stretches a transfer on both alike."""
    program = lower(
        build_schedule("gpipe", 2, 3), given_costs(2, OpSeconds(1.0, 1.0, transfer=0.5)), communication="both-blocking"
    )
    timeline = replay(with_noise(program, 0.3, np.random.default_rng(2)))
    spans = {
        kind: np.sort((timeline.end - timeline.start)[timeline.kind == kind]) for kind in (OpKind.SEND, OpKind.RECEIVE)
    }
    np.testing.assert_allclose(spans[OpKind.SEND], spans[OpKind.RECEIVE], rtol=1e-12)
    assert spans[OpKind.SEND].std() > 0.01


def test_noise_applies_to_all_reduces_once() -> None:
    """Buckets of 2 s on a channel of their own: each has its own factor, which is also how long the channel is busy."""
    costs = HandCosts((1.0,), (4.0,), stage_buckets={0: (Bucket(0.5, 2.0, (0,)),) * 2}, channels=(channel(1.0),))
    program = lower(build_schedule("gpipe", 1, 1), costs, forward_sizes=[2], split_replicas=[2])
    noisy = with_noise(program, 0.2, np.random.default_rng(4))
    spans = times(replay(noisy, contention=True), 0, OpKind.REDUCE)
    lasted = [end - start for start, end in spans]
    assert lasted == pytest.approx(noisy.seconds[-2:].tolist())
    assert len({2.0, *lasted}) == 3


@pytest.mark.parametrize("spread", [-0.1, 2.0, float("nan")])
def test_impossible_noise_is_refused(spread: float) -> None:
    """Spread is at least 0 and below 2."""
    program = lower(build_schedule("gpipe", 1, 1), given_costs(1, OpSeconds(1.0, 1.0)))
    with pytest.raises(ValueError, match="noise must be at least 0 and below 2"):
        with_noise(program, spread, np.random.default_rng(1))


# ---- lanes that share a device ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "sharing", "ends"),
    [
        ([[1.0], [1.0]], [0, 0], [2.0, 2.0]),
        ([[1.0], [1.0]], [-1, -1], [1.0, 1.0]),
        ([[1.0], [1.0]], [0, 1], [1.0, 1.0]),
        ([[1.0], [3.0]], [0, 0], [2.0, 4.0]),
        ([[1.0], [1.0], [1.0]], [0, 0, 0], [3.0, 3.0, 3.0]),
        ([[1.0, 1.0], [2.0]], [0, 0], [2.0, 4.0, 4.0]),
        ([[1.0], [1.0], [5.0]], [0, 0, -1], [2.0, 2.0, 5.0]),
        ([[0.0], [1.0]], [0, 0], [0.0, 1.0]),
        ([[1.0], [], [2.0], []], [-1] * 4, [1.0, 2.0]),
        ([[1.0], [], [2.0], []], [0] * 4, [2.0, 3.0]),
    ],
)
def test_lanes_that_share_a_device(seconds: list[list[float]], sharing: list[int], ends: list[float]) -> None:
    """n active lanes of a group proceed at 1/n: two of 1 s end at 2; lanes alone and other groups are not slowed."""
    assert replay(lanes(seconds, sharing)).end.tolist() == ends


def test_a_lane_that_joins_slows_the_other_from_then_on() -> None:
    """3 s begin at 0; 1 s joins at 1 and ends at 3; the first has 1 s left and ends at 4."""
    program = lanes([[3.0], [1.0], [1.0]], [0, 0, -1], after={1: 2})
    assert replay(program).end.tolist() == [4.0, 3.0, 1.0]


@settings(max_examples=25, deadline=None)
@given(seconds=st.lists(st.lists(st.floats(0.0, 10.0), max_size=5), min_size=1, max_size=4))
def test_a_shared_device_does_all_its_work_without_idling(seconds: list[list[float]]) -> None:
    """Without dependencies the last lane ends when the work of all is done."""
    work = sum(map(sum, seconds))
    assert replay(lanes(seconds, [0] * len(seconds))).makespan_seconds == pytest.approx(work, rel=1e-9, abs=1e-12)


def test_simpy_replays_programs_up_to_a_limit() -> None:
    """8,388,608 tasks are the most: one more is refused before anything is built."""

    class Long:
        def __len__(self) -> int:
            return 8_388_609

    with pytest.raises(ValueError, match="at most 8,388,608 tasks, got 8,388,609"):
        replay(Long())  # type: ignore[arg-type]
