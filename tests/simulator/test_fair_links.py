"""Tests of fair links: max-min fair flows, on SimPy and in the compiled event loop, in figures worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import Channel
from simulator import DeadlockError, Plan, Problem, Program, Timeline, simulate, stages_from_cuts
from simulator.engines import event_loop
from simulator.engines import reference as engine
from simulator.engines.fair_links import fair_speeds
from simulator.lowering.program import LaneKind
from simulator.schedules.schedule import ScheduleError
from tests.chains import random_chain
from tests.simulator.noise import with_noise
from tests.simulator.strategies import bits, channel, programs, star_cluster


def shared(program: Program, how: Any) -> Program:
    """The program with channels that are shared so: one way, or each its own."""
    ways = [how] * len(program.channels) if isinstance(how, str) else how
    channels = tuple(replace(one, sharing=way) for one, way in zip(program.channels, ways, strict=True))
    return replace(program, channels=channels)


@st.composite
def sharing_programs(draw: st.DrawFn, *, mixed: bool = True) -> Program | None:
    """A generated plan with routes, whose channels are fair, or some of them; noisy or not."""
    try:
        program = draw(programs(contended=True))
    except ScheduleError:
        return None
    seed = draw(st.sampled_from((None, None, 1, 2)))
    if seed is not None:
        program = with_noise(program, 0.3, np.random.default_rng(seed))
    ways = (
        [draw(st.sampled_from(("fair", "fair", "fifo"))) for _ in program.channels]
        if mixed and draw(st.booleans())
        else "fair"
    )
    return shared(program, ways)


def replayed(replay: Any, program: Program) -> Timeline | str:
    """The timeline, or the message of the deadlock."""
    try:
        return replay(program, contention=True)  # type: ignore[no-any-return]
    except DeadlockError as deadlock:
        return str(deadlock)


def assert_same(program: Program) -> None:
    """SimPy and the event loop: the same bits of every start, end and arrival, or the same deadlock."""
    reference, compiled = (replayed(one.replay, program) for one in (engine, event_loop))
    if isinstance(reference, str) or isinstance(compiled, str):
        assert compiled == reference
        return
    assert bits(compiled.start, reference.start)
    assert bits(compiled.end, reference.end)
    assert bits(compiled.transfers.end, reference.transfers.end)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(program=sharing_programs())
def test_engine_and_event_loop_agree_to_the_last_bit(program: Program | None) -> None:
    """Any plan over fair links, and over links of both kinds; the times are small whole numbers often enough."""
    if program is not None:
        assert_same(program)


# ---- rates -----------------------------------------------------------------------------------------------------------


def test_three_links_in_a_row() -> None:
    """Links of 2, 1 and 3 bytes per second; a flow over all of them, and one on each alone: 1/2, and what is left of each."""
    half, rest = fair_speeds(
        [((0, 0.5), (1, 1.0), (2, 1 / 3)), ((0, 1.0),), ((1, 1.0),), ((2, 1.0),)], [1, 1 / 2, 1, 1 / 3]
    )[::3]
    assert (half, rest * 3) == pytest.approx((0.5, 2.5))


Case = tuple[list[tuple[tuple[int, float], ...]], list[float]]


def random_case(rng: np.random.Generator) -> Case:
    """Uses and slowness of 1 to 7 flows over 1 to 5 channels; some need only a part of each channel."""
    channels = int(rng.integers(1, 6))
    uses, slowness = [], []
    for _ in range(int(rng.integers(1, 8))):
        route = rng.choice(channels, int(rng.integers(1, channels + 1)), replace=False).tolist()
        shares = rng.choice([0.1, 0.25, 0.5, 1.0], len(route))
        shares[0] = 1.0 if rng.random() < 0.8 else shares[0]
        uses.append(tuple(zip(route, shares.tolist(), strict=True)))
        slowness.append(float(rng.choice([0.25, 1.0, 1.0, 3.0])))
    return uses, slowness


def by_linear_programs(uses: Any, slowness: list[float]) -> list[float]:
    """Max-min speeds: the least rate as large as can be, then that of the others, and so on.

    Flows whose bound has a price stay where they are."""
    from scipy.optimize import linprog  # a second to load

    flows, channels = len(uses), 1 + max(channel for one in uses for channel, _ in one)
    load = np.zeros((channels, flows + 1))
    for flow, one in enumerate(uses):
        for link, share in one:
            load[link, flow] = share
    fixed: dict[int, float] = {}
    while len(fixed) < flows:
        rising = [flow for flow in range(flows) if flow not in fixed]
        least = np.zeros((len(rising), flows + 1))
        for row, flow in enumerate(rising):
            least[row, flow], least[row, -1] = -1.0 / slowness[flow], 1.0
        bounds = [(fixed[one], fixed[one]) if one in fixed else (0.0, 1.0) for one in range(flows)]
        found = linprog(
            [0.0] * flows + [-1.0],
            np.vstack([load, least]),
            [1.0] * channels + [0.0] * len(rising),
            bounds=[*bounds, (0, None)],
        )
        assert found.status == 0
        for flow, price in zip(rising, found.ineqlin.marginals[channels:].tolist(), strict=True):
            if price < -1e-9:
                fixed[flow] = float(found.x[-1]) * slowness[flow]
    return [fixed[flow] for flow in range(flows)]


def assert_fair(uses: Any, slowness: list[float], speeds: list[float]) -> None:
    """No channel is overloaded, and every flow is as quick as alone, or on a full channel where nobody has a higher rate: that is
    max-min fairness (Bertsekas and Gallager, 6.5.2)."""
    rates = [speed / slow for speed, slow in zip(speeds, slowness, strict=True)]
    load, most = dict[int, float](), dict[int, float]()
    for one, speed, rate in zip(uses, speeds, rates, strict=True):
        for link, share in one:
            load[link] = load.get(link, 0.0) + share * speed
            most[link] = max(most.get(link, 0.0), rate)
    assert max(load.values()) <= 1.0 + 1e-9
    for one, speed, rate in zip(uses, speeds, rates, strict=True):
        held = (load[channel] >= 1.0 - 1e-9 and rate >= most[channel] * (1.0 - 1e-9) for channel, _ in one)
        assert speed >= 1.0 - 1e-9 or any(held)


def test_water_filling_is_fair() -> None:
    """1,000 random cases."""
    rng = np.random.default_rng(1)
    for _ in range(1_000):
        case = random_case(rng)
        assert_fair(*case, fair_speeds(*case))


@pytest.mark.parametrize("cases", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_water_filling_is_what_linear_programs_say(cases: int) -> None:
    """Random cases (1e-7)."""
    rng = np.random.default_rng(2)
    for _ in range(cases):
        case = random_case(rng)
        assert fair_speeds(*case) == pytest.approx(by_linear_programs(*case), abs=1e-7)


def test_a_channel_first_come_first_served_gives_what_is_left() -> None:
    """On channel 0 the flow that began later has what the other leaves, if nobody needs channel 1; else what both leave."""
    uses = [((0, 1.0), (1, 1.0)), ((0, 0.75),), ((1, 1.0),)]
    assert fair_speeds(uses, [1.0, 1.0, 1.0], [5, 3, 4], [True, False]) == [0.0, 1.0, 1.0]
    assert fair_speeds(uses[:2], [1.0, 1.0], [5, 3], [True, False]) == [0.25, 1.0]


# ---- flows in time ---------------------------------------------------------------------------------------------------

Request = tuple[float, float, tuple[int, ...]]


def flows(
    requests: Sequence[Request], channels: tuple[Any, ...], pairs: Sequence[int] | None = None, reduction: Any = None
) -> list[float]:
    """When transfers of (moment of the request, bytes, route) arrive, each from a lane of its own, and when a reduction ends.

    pairs: of each transfer the pair of devices; reduction: (moment, seconds, route, occupancy) of one all-reduce beside them
    """
    count = len(requests)
    senders = [moment for moment, _, _ in requests] + ([reduction[0]] if reduction else [])
    followers = len(senders)
    kind = np.zeros(2 * followers, dtype=np.int8)
    seconds = np.array([*senders, *[0.0] * followers])
    routes: list[Any] = [()] * (2 * followers)
    shares: list[Any] = [()] * (2 * followers)
    if reduction:
        kind[-1], seconds[-1], routes[-1], shares[-1] = LaneKind.COLLECTIVE, *reduction[1:]
    zeros = np.zeros(2 * followers, dtype=np.int32)
    idle = [
        sum(channels[c].latency for c in route) + size / min(channels[c].bandwidth for c in route)
        for _, size, route in requests
    ]
    numbers = np.arange(followers, dtype=np.int32)
    program = Program(
        lane_offsets=np.arange(2 * followers + 1, dtype=np.int64),
        lane_device=np.arange(2 * followers, dtype=np.int32),
        lane_kind=kind,
        lane_sharing=zeros - 1,
        kind=zeros.astype(np.int8),
        stage=zeros,
        microbatch=zeros,
        replica=zeros,
        first_sample=zeros,
        samples=zeros + 1,
        seconds=seconds,
        dependency_offsets=np.concatenate([zeros[:followers], np.arange(followers + 1)]).astype(np.int64),
        dependency=numbers,
        transfer=np.where(numbers < count, numbers + 1, 0).astype(np.int32),
        transfer_seconds=np.array([0.0, *idle]),
        transfer_bytes=np.array([0.0, *(size for _, size, _ in requests)]),
        transfer_route=((), *(route for _, _, route in requests)),
        lane_route=tuple(routes),
        channels=tuple(channels),
        lane_occupancy=tuple(shares),
        transfer_pair=np.array([0, *(1 + pair for pair in (range(count) if pairs is None else pairs))], dtype=np.int32),
        transfer_loads=((),) * (count + 1),
    )
    timeline = engine.replay(program, contention=True)
    assert_same(program)
    return [
        *timeline.start[followers : followers + count].tolist(),
        *timeline.end[2 * followers - 1 :][: followers - count].tolist(),
    ]


def fair(bandwidth: float = 1.0, latency: float = 0.0, sharing: Any = "fair") -> Channel:
    """One channel."""
    return replace(channel(bandwidth, latency), sharing=sharing)


def test_two_equal_flows_get_half_each() -> None:
    """3 bytes from 0 on and one byte from 1 on: half each until 3, when the byte is there; what is left of the first until 4."""
    assert flows([(0.0, 3.0, (0,)), (1.0, 1.0, (0,))], (fair(),)) == [4.0, 3.0]
    assert flows([(0.0, 2.0, (0,)), (0.0, 2.0, (0,))], (fair(),)) == [4.0, 4.0]


def test_flows_over_three_links_in_a_row() -> None:
    """Links of 2, 1 and 3: 4 bytes over all of them and 4 on the second at 1/2, 12 at 3/2 and 20 at 5/2: all are there at 8."""
    links = fair(2.0), fair(1.0), fair(3.0)
    asked = [(0.0, 4.0, (0, 1, 2)), (0.0, 12.0, (0,)), (0.0, 4.0, (1,)), (0.0, 20.0, (2,))]
    assert flows(asked, links) == pytest.approx([8.0] * 4)


def test_incast() -> None:
    """1, 2 and 3 bytes over cards of their own into one: a third each until 3, a half until 5, the last alone until 6."""
    links = (fair(),) * 4
    assert flows([(0.0, 1.0 + n, (n, 3)) for n in range(3)], links) == pytest.approx([3.0, 5.0, 6.0])


def test_latency_stays_apart_from_bytes() -> None:
    """2 bytes each at half a byte per second until 4, and 3 s of latency more; the channel is free from 4 on."""
    asked = [(0.0, 2.0, (0,)), (0.0, 2.0, (0,)), (4.0, 1.0, (0,))]
    assert flows(asked, (fair(latency=3.0),)) == [7.0, 7.0, 8.0]


def test_transfers_of_a_pair_go_one_after_the_other() -> None:
    """Of two pairs each has half: 2 bytes of both are there at 4, 2 more of the first at 6; and a pair alone queues."""
    asked = [(0.0, 2.0, (0,))] * 3
    assert flows(asked, (fair(),), pairs=(0, 0, 1)) == [4.0, 6.0, 4.0]
    assert flows(asked, (fair(),), pairs=(0, 0, 0)) == [2.0, 4.0, 6.0]
    assert flows(asked, (fair(),)) == [6.0, 6.0, 6.0]


def test_a_slow_flow_leaves_a_fast_channel_to_others() -> None:
    """8 bytes over 1 and 4 bytes per second pass the fast channel at 1: who needs it alone has the other 3."""
    assert flows([(0.0, 8.0, (0, 1)), (0.0, 6.0, (1,))], (fair(1.0), fair(4.0))) == pytest.approx([8.0, 2.0])


def test_the_end_of_a_flow_that_was_never_slowed_is_felt() -> None:
    """2 bytes at 1 byte per second leave half of channel 0 to 6 others until 2; these are there at 4."""
    assert flows([(0.0, 2.0, (0, 1)), (0.0, 6.0, (0,))], (fair(2.0), fair(1.0))) == pytest.approx([2.0, 4.0])


def test_an_all_reduce_is_a_flow() -> None:
    """3 bytes from 0 on, and 4 s of an all-reduce from 0.5 on, half each until 5.5; then it is alone until 7. One that keeps a
    channel busy for half of its time takes nothing from a pair that needs no more."""
    reduction = (0.5, 4.0, (0,), (1.0,))
    assert flows([(0.0, 3.0, (0,))], (fair(),), reduction=reduction) == [5.5, 7.0]
    both = (0.0, 4.0, (0,), (0.5,))
    assert flows([(0.0, 2.0, (0, 1))], (fair(2.0), fair(1.0)), reduction=both) == pytest.approx([2.0, 4.0])


def test_links_of_both_kinds() -> None:
    """Channel 0 is first come, first served, channel 1 fair: the second flow begins when the first leaves channel 0 at 2, and has
    half of channel 1 then; a third one has what nobody takes of it."""
    links = fair(sharing="fifo"), fair()
    asked = [(0.0, 2.0, (0,)), (1.0, 2.0, (0, 1)), (1.0, 2.0, (1,))]
    assert flows(asked, links) == pytest.approx([2.0, 5.0, 4.0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    moment=st.floats(0.0, 50.0),
    links=st.lists(st.tuples(st.floats(0.1, 10.0), st.sampled_from((0.0, 0.1, 0.7, 3.0))), min_size=1, max_size=5),
    size=st.floats(0.0, 100.0),
)
def test_a_lone_transfer_is_the_same_under_both_rules(
    moment: float, links: list[tuple[float, float]], size: float
) -> None:
    """To the last bit, on routes of any length, at any moment."""
    asked = [(moment, size, tuple(range(len(links))))]
    one, other = (flows(asked, tuple(fair(*link, how) for link in links)) for how in ("fair", "fifo"))
    assert one == other


def random_flows(rng: np.random.Generator) -> None:
    """Up to 9 transfers of up to 5 pairs and perhaps a reduction over up to 4 channels, fair or not: figures are fractions, or
    small whole numbers that meet in the same moments."""
    whole = bool(rng.integers(2))

    def figure(least: int, most: int) -> float:
        return float(rng.integers(least, most + 1)) if whole else float(rng.uniform(least, most))

    count, pairs = int(rng.integers(1, 10)), int(rng.integers(1, 6))
    links = [
        fair(figure(1, 4), figure(0, 1), str(rng.choice(["fair", "fair", "fifo"]))) for _ in range(rng.integers(1, 5))
    ]
    routes = [
        tuple(rng.choice(len(links), int(rng.integers(1, len(links) + 1)), replace=False).tolist())
        for _ in range(pairs)
    ]
    pair = rng.integers(pairs, size=count).tolist()
    asked = [(figure(0, 6), figure(0, 5), routes[one]) for one in pair]
    share = tuple(rng.choice([0.3, 0.5, 1.0], len(links)).tolist())
    reduction = (figure(0, 4), figure(1, 4), tuple(range(len(links))), share) if rng.integers(2) else None
    flows(asked, tuple(links), pair, reduction)


def test_flows_of_any_figures_are_the_same_on_both_engines() -> None:
    """150 random cases, to the last bit: flows that begin at full speed beside others, wait for their pair, or end at once."""
    rng = np.random.default_rng(3)
    for _ in range(150):
        random_flows(rng)


# ---- gradients that are reduced while an interleaved pipeline runs -----------------------------------------------------


def bucketed_and_whole(chunks: int, bandwidth: float, replicas: int, sharing: Any) -> list[float]:
    """Seconds of an interleaved pipeline on three ranks, gradients reduced in buckets while it runs, and whole behind it."""
    layers, groups = 12 * chunks, [tuple(range(rank * replicas, (rank + 1) * replicas)) for rank in range(3)]
    workload = random_chain(layers, np.random.default_rng(chunks), flop=1.0, parameters=10**7)
    cluster = replace(star_cluster(3 * replicas, bandwidth=bandwidth), sharing=sharing)
    stages = stages_from_cuts(range(4, layers, 4), layers, groups * chunks)
    plan = Plan("hand", "interleaved-1f1b", stages, (replicas,) * 6)
    problem = Problem(workload, cluster, 6 * replicas)
    both = (replace(problem, gradient_reduction=one) for one in ("buckets", "whole"))
    return [simulate(one, plan, engine="compiled").iteration_seconds for one in both]


@pytest.mark.parametrize(
    ("chunks", "count", "most"), [((2,), 4, 0.0864), pytest.param((2, 3), 10, 0.158, marks=pytest.mark.slow)]
)
def test_overlapped_reductions_slow_no_interleaved_pipeline(chunks: Sequence[int], count: int, most: float) -> None:
    """In none of 12 cases on fair links; first come, first served they slow 10, by up to 15.8 %, of two chunks 4 of 6."""
    cases = list(product(chunks, (2e5, 1e6, 4e6), (2, 4)))
    fair_ones, queued = ([bucketed_and_whole(*case, how) for case in cases] for how in ("fair", "fifo"))
    assert all(buckets < whole for buckets, whole in fair_ones)
    slower = [buckets / whole - 1.0 for buckets, whole in queued if buckets > whole]
    assert len(slower) == count
    assert max(slower) == pytest.approx(most, abs=5e-4)
