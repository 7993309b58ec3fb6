"""Tests of `simulator.engines.timeline`: bubbles, peaks in flight and transfers read off a replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Bubble, Bucket, OpKind, OpSeconds, Timeline, build_schedule, from_text, given_costs, lower
from simulator.engines.recurrence import replay
from tests.simulator.strategies import HandCosts, programs


def timeline(name: str, p: int, m: int, transfer: float = 0.0, updates: bool = False, **costs: Any) -> Timeline:
    """F = 1, B = 2 on every stage."""
    return replay(
        lower(
            build_schedule(name, p, m), given_costs(p, OpSeconds(1.0, 2.0, transfer=transfer, **costs)), updates=updates
        )
    )


def test_the_three_bubble_measures() -> None:
    """1F1B, p = m = 2: makespan 9, each device busy for 6; device 0 spans 0-9."""
    outcome = timeline("1f1b", 2, 2)
    bubble = outcome.bubble()
    assert (outcome.devices().tolist(), outcome.busy_seconds().tolist(), outcome.ops) == ([0, 1], [6.0, 6.0], 8)
    assert bubble.idle_over_makespan == pytest.approx(1 / 3)
    assert bubble.over_ideal == pytest.approx(1 / 2)
    assert bubble.longest_stage == pytest.approx(1 / 3)


def test_updates_count_as_idle_but_not_for_the_longest_stage() -> None:
    """With updates of 1 s the makespan is 10, the longest stage still 9."""
    outcome = timeline("1f1b", 2, 2, updates=True, update=1.0)
    bubble = outcome.bubble()
    assert outcome.makespan_seconds == 10.0
    assert bubble.idle_over_makespan == pytest.approx(1 - 12 / 20)
    assert bubble.over_ideal == pytest.approx(4 / 6)
    assert bubble.longest_stage == pytest.approx(1 - 6 / 9)


def test_the_longest_stage_may_be_shorter_than_the_makespan() -> None:
    """Device 1 works 1-13 without a break (W of 10 s), device 0 is done at 5: idle by the makespan, none by the longest stage."""
    costs = HandCosts((1.0, 1.0), (2.0, 11.0), weight=(1.0, 10.0))
    outcome = replay(lower(from_text("0F0 0I0 0W0\n1F0 1I0 1W0"), costs))
    assert outcome.makespan_seconds == 13.0
    assert outcome.bubble().longest_stage == pytest.approx(0.0)
    assert outcome.bubble().over_ideal == pytest.approx(1 / 12)
    assert outcome.bubble().idle_over_makespan == pytest.approx(1 - 15 / 26)


def test_ops_of_no_seconds_leave_no_bubble() -> None:
    """Transfers of 1 s between ops that take none: a makespan of 2 s in which nothing was to be computed."""
    timeline = replay(lower(build_schedule("gpipe", 2, 1), given_costs(2, OpSeconds(0.0, 0.0, transfer=1.0))))
    assert timeline.makespan_seconds == 2.0
    assert timeline.bubble() == Bubble(0.0, 0.0, 0.0)
    nothing = lower(build_schedule("gpipe", 2, 2), given_costs(2, OpSeconds(0.0, 0.0)))
    assert replay(nothing).bubble().idle_over_makespan == 0.0  # durations of 0 divide by nothing


def test_parts_of_a_backward_free_their_microbatch_once() -> None:
    """A backward in 3 buckets ends its micro-batch with the last one: peak m for GPipe, never below 0."""
    m = 5
    buckets = {0: tuple(Bucket(1 / 3, 0.5) for _ in range(3))}
    program = lower(
        build_schedule("gpipe", 1, m),
        HandCosts((1.0,), (3.0,), stage_buckets=buckets),
        split_replicas=[2],
        forward_sizes=[2] * m,
    )
    assert replay(program).peak_in_flight().tolist() == [m, m]


def test_peak_in_samples() -> None:
    """Micro-batches of 1, 5 and 2 samples: 8 in GPipe, and the largest alone on the last stage of 1F1B."""
    costs = given_costs(2, OpSeconds(1.0, 1.0), per_sample=True)
    for name, peaks in (("gpipe", [8, 8]), ("1f1b", [7, 5])):
        outcome = replay(lower(build_schedule(name, 2, 3), costs, forward_sizes=[1, 5, 2]))
        assert outcome.peak_in_flight(unit="samples").tolist() == peaks
    with pytest.raises(ValueError, match="unit 'litres' is unknown; choices: microbatches, samples"):
        outcome.peak_in_flight(unit="litres")


def test_split_backward_frees_with_the_weight_gradient() -> None:
    """F0 I0 F1 I1 W0 W1 holds 2: the stash of 0 lives until W0."""
    program = lower(from_text("0F0 0I0 0F1 0I1 0W0 0W1"), given_costs(1, OpSeconds(1.0, 1.0, weight=1.0)))
    assert replay(program).peak_in_flight().tolist() == [2]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_bubbles_are_fractions_of_what_happened(data: st.DataObject) -> None:
    """0 <= idle < 1; the longest stage is no longer than the makespan; no device is busier than the makespan."""
    try:
        program = data.draw(programs())
        outcome = replay(program)
    except ValueError:
        return
    if (outcome.end - outcome.start)[outcome.compute()].sum() == 0:
        return
    bubble = outcome.bubble()
    assert -1e-12 <= bubble.idle_over_makespan < 1
    assert -1e-12 <= bubble.longest_stage < 1
    assert bubble.longest_stage <= bubble.over_ideal + 1e-9
    assert (outcome.busy_seconds() <= outcome.makespan_seconds * (1 + 1e-12)).all()


def test_transfers_of_a_replay() -> None:
    """One row a tensor: it leaves at the producer's end and arrives a transfer later."""
    outcome = timeline("gpipe", 2, 2, transfer=0.5)
    moved = outcome.transfers
    assert len(moved) == 4
    assert (moved.start == outcome.end[moved.producer]).all()
    assert (moved.end - moved.start == 0.5).all()
    assert (outcome.start[moved.consumer] >= moved.end).all()
    assert (outcome.device[moved.producer] != outcome.device[moved.consumer]).all()


def test_frame_has_one_row_a_task() -> None:
    """The columns as a table, for whoever wants pandas."""
    outcome = timeline("1f1b", 2, 2)
    frame = outcome.frame
    assert len(frame) == len(outcome) == 8
    assert frame.loc[frame.kind == OpKind.FORWARD, "end"].max() == outcome.end[outcome.kind == OpKind.FORWARD].max()
    assert np.array_equal(frame["start"].to_numpy(), outcome.start)
