"""Chain programs: stages and links of an unequal pipeline as processes, on both engines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import (
    ChainProcess,
    DeadlockError,
    LaneKind,
    OpKind,
    chain_process,
    lower_chain,
)
from simulator.engines import recurrence
from simulator.engines import reference as engine

GRID = 2.0**-20
"""Durations are multiples of it, so that every sum is exact."""


def linear(samples: int, seconds: float = 1.0) -> np.ndarray:
    """Seconds of 0..samples samples at `seconds` each."""
    return seconds * np.arange(samples + 1)


def ends_of(process: ChainProcess, before: ChainProcess | None, ends: list[float]) -> list[float]:
    """The formula in plain Python: a block waits for the block before it and for the one that holds its last sample."""
    last, source = np.cumsum(process.sizes), None if before is None else np.cumsum(before.sizes)
    found: list[float] = []
    for number, seconds in zip(last.tolist(), process.seconds.tolist(), strict=True):
        ready = 0.0 if source is None else ends[int(np.searchsorted(source, number))]
        found.append(max(ready, found[-1] if found else 0.0) + seconds)
    return found


def chain_seconds(processes: list[ChainProcess]) -> float:
    """End of a chain of processes by the formula."""
    ends: list[float] = []
    before: ChainProcess | None = None
    for process in processes:
        ends, before = ends_of(process, before, ends), process
    return ends[-1]


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[ChainProcess], list[ChainProcess]]:
    """Forward and backward processes of 1-4 stages; every process has blocks of any sizes (ramps too)."""
    stages, samples = draw(st.integers(1, 4)), draw(st.integers(1, 12))

    def process() -> ChainProcess:
        cuts = sorted(draw(st.sets(st.integers(1, samples), max_size=samples)) | {samples})
        sizes = np.diff([0, *cuts])
        ticks = draw(st.lists(st.integers(0, 2**16), min_size=len(sizes), max_size=len(sizes)))
        return ChainProcess(sizes, np.array(ticks) * GRID)

    return [process() for _ in range(2 * stages - 1)], [process() for _ in range(2 * stages - 1)]


def test_figures_by_hand() -> None:
    """4 samples, a second each: blocks of 2 end at 2 and 4, single samples behind them at 3, 4, 5 and 6."""
    free = np.zeros(5)
    forward = [chain_process(4, 2, linear(4)), chain_process(4, 2, free), chain_process(4, 1, linear(4))]
    timeline = engine.replay(lower_chain(forward))
    assert timeline.end[timeline.stage == 0].tolist()[:2] == [2.0, 4.0]
    computed = (timeline.stage == 1) & (timeline.kind == OpKind.FORWARD)
    assert timeline.end[computed].tolist() == [3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize(("stages", "count", "seconds"), [(1, 1, 0.5), (3, 4, 2.0), (5, 2, 0.25)])
def test_equal_sizes_take_m_plus_k_minus_1(stages: int, count: int, seconds: float) -> None:
    """M equal blocks of t seconds on K stages take (M + K - 1) t forward, and as long again backward."""
    samples = 2 * count
    one = chain_process(samples, 2, linear(samples, seconds / 2))
    free = chain_process(samples, 2, np.zeros(samples + 1))
    chain = [one if position % 2 == 0 else free for position in range(2 * stages - 1)]
    program = lower_chain(chain, chain)
    for replayed in (engine.replay(program), recurrence.replay(program)):
        assert replayed.makespan_seconds == 2 * (count + stages - 1) * seconds


@settings(max_examples=60, deadline=None)
@given(chains())
def test_engines_agree_with_the_formula(pair: tuple[list[ChainProcess], list[ChainProcess]]) -> None:
    """Both engines give forward + backward of the formula, to the last bit, with blocks of any sizes within a process."""
    forward, backward = pair
    program = lower_chain(forward, backward)
    expected = chain_seconds(forward) + chain_seconds(backward)
    quick, reference = recurrence.replay(program), engine.replay(program)
    assert quick.makespan_seconds == reference.makespan_seconds == expected
    assert quick.end.tobytes() == reference.end.tobytes()


def test_a_ramp_within_a_stage_runs() -> None:
    """Blocks of 1, 2 and 3 samples, then 3 and 3 behind them, a second a sample: 1, 3, 6, then 3+3 and 6+3."""
    ramp, plain = ChainProcess(np.array([1, 2, 3]), np.array([1.0, 2.0, 3.0])), chain_process(6, 3, linear(6))
    link = chain_process(6, 3, np.zeros(7))
    timeline = engine.replay(lower_chain([ramp, link, plain]))
    assert timeline.end[timeline.stage == 0][:3].tolist() == [1.0, 3.0, 6.0]
    assert timeline.makespan_seconds == 9.0


def test_links_are_lanes_of_their_own() -> None:
    """Two stages: two compute lanes, a link lane each way; a link's blocks are sends of the stage that sends."""
    one, link = chain_process(4, 2, linear(4)), chain_process(4, 4, linear(4, 0.5))
    program = lower_chain([one, link, one], [one, link, one], devices=[5, 7])
    assert program.lane_kind.tolist() == [LaneKind.COMPUTE, LaneKind.COMPUTE, LaneKind.LINK, LaneKind.LINK]
    assert program.lane_device.tolist() == [5, 7, 5, 7]
    timeline = engine.replay(program)
    sends = timeline.kind == OpKind.SEND
    assert timeline.stage[sends].tolist() == [0, 1]
    assert timeline.makespan_seconds == 2 * (4.0 + 2.0 + 4.0)


def test_one_forward_one_backward_order() -> None:
    """2 stages, 2 samples, a second each, no link time: 1F1B ends at 6 = (M + K - 1)(F + B), as a flush does."""
    one, free = chain_process(2, 1, linear(2)), chain_process(2, 1, np.zeros(3))
    orders = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)], [("F", 0), ("B", 0), ("F", 1), ("B", 1)]]
    program = lower_chain([one, free, one], [one, free, one], orders)
    assert recurrence.replay(program).makespan_seconds == engine.replay(program).makespan_seconds == 6.0


def test_an_order_against_the_data_is_a_deadlock() -> None:
    """A stage that must run its backward before its forward never runs; both engines say so."""
    one = chain_process(2, 2, linear(2))
    program = lower_chain([one], [one], [[("B", 0), ("F", 0)]])
    for replay in (engine.replay, recurrence.replay):
        with pytest.raises(DeadlockError, match="op 0B0 waits for 0F0"):
            replay(program)


def test_the_door_is_guarded() -> None:
    """Bad blocks, durations, numbers of processes and orders are refused in one line each."""
    one, other = chain_process(4, 2, linear(4)), chain_process(5, 2, linear(5))
    with pytest.raises(ValueError, match="at least 1 sample each"):
        ChainProcess(np.array([1, 0]), np.zeros(2))
    with pytest.raises(ValueError, match="2 finite durations"):
        ChainProcess(np.array([1, 1]), np.array([1.0, -1.0]))
    with pytest.raises(ValueError, match="2K-1 processes"):
        lower_chain([one, one])
    with pytest.raises(ValueError, match="process 2 covers 5 samples, process 0 4"):
        lower_chain([one, one, other])
    with pytest.raises(ValueError, match="stage 0 must hold its 2 F blocks once each, in sequence"):
        lower_chain([one], [one], [[("F", 1), ("F", 0), ("B", 0), ("B", 1)]])
    with pytest.raises(ValueError, match="other than F and B"):
        lower_chain([one], [one], [[("F", 0), ("F", 1), ("B", 0), ("B", 1), ("W", 0)]])
    with pytest.raises(ValueError, match="orders must be 1 lists"):
        lower_chain([one], [one], [])
    with pytest.raises(ValueError, match="devices must be 1"):
        lower_chain([one], devices=[0, 1])
