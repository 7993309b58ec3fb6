"""Overlapped pairs: a forward and a backward that begin and end together, once in every figure."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest

from simulator import (
    ENGINES,
    Engine,
    OpMemory,
    OpSeconds,
    Plan,
    Problem,
    ScheduleError,
    Stage,
    check_schedule,
    chrome_trace,
    from_text,
    given_costs,
    lower,
    replay_schedule,
    simulate,
    to_text,
)
from simulator.schedules.schedule import Schedule
from simulator.schedules.weight_versions import repeated_minibatches
from tests.chains import chain
from tests.simulator.strategies import chain_cluster

TWO = from_text("0F0 0F1 0B0 0B1\n1F0 (1F1;1B0)OVERLAP_F_B 1B1")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("overlapped", "both"), [(None, 3.0), (2.5, 2.5), ([9.0, 2.5], 2.5)])
def test_a_pair_begins_when_both_have_their_inputs_and_ends_at_once(
    engine: Engine, overlapped: Any, both: float
) -> None:
    """F 1 s, B 2 s: stage 1 runs F0 1-2, the pair from 2 on, when F1 of stage 0 has come, then B1; stage 0 B0 after the pair."""
    timeline = replay_schedule(TWO, OpSeconds(1, 2, overlapped=overlapped), engine=engine).timeline
    rows = [timeline.stage == 1, timeline.stage == 0]
    assert list(zip(timeline.start[rows[0]].tolist(), timeline.end[rows[0]].tolist(), strict=True)) == [
        (1.0, 2.0), (2.0, 2.0 + both), (2.0, 2.0 + both), (2.0 + both, 4.0 + both)
    ]  # fmt: skip
    assert timeline.start[rows[1]].tolist() == [0.0, 1.0, 2.0 + both, 4.0 + both]
    assert timeline.busy_seconds().tolist() == [6.0, 3.0 + both]
    assert timeline.ops == 8


def test_seconds_of_a_pair_may_be_for_each_sample_of_its_forward() -> None:
    """Micro-batches of 3 and 5 samples: stage 1 runs F1 and B0 together in 5 times 2.5 s."""
    costs = given_costs(2, OpSeconds(1, 2, overlapped=2.5), per_sample=True)
    program = lower(TWO, costs, forward_sizes=(3, 5))
    assert program.seconds[program.stage == 1].tolist() == [3.0, 12.5, 0.0, 10.0]
    assert [f"{one}" for one in (costs, replace(costs, per_sample=False))] == [
        f"GivenCosts(2 stages, {what})" for what in ("a sample", "an op")
    ]


def test_a_pair_waits_for_the_later_input() -> None:
    """Its forward could begin at 1; its gradient leaves stage 1 at 5 and comes at 6. So does all that follows wait."""
    late = from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1\n1F0 1B0 1F1 1B1")
    timeline = replay_schedule(late, OpSeconds(1, 2, transfer=1)).timeline
    assert timeline.start.tolist() == [0.0, 6.0, 6.0, 14.0, 2.0, 3.0, 10.0, 11.0]


def test_a_pair_holds_what_both_hold() -> None:
    """Its forward takes at its start, its backward frees at its end: two at once on the second device, two on the first."""
    replayed = replay_schedule(TWO, OpSeconds(1, 2)).holding(OpMemory(1))
    assert replayed.peak_memory == [2.0, 2.0]
    assert replayed.timeline.peak_in_flight().tolist() == [2, 2]


def test_ops_of_a_pair_have_tracks_of_their_own() -> None:
    """Perfetto takes no overlapping slices on one track."""
    events = chrome_trace(replay_schedule(TWO, OpSeconds(1, 2)).timeline)["traceEvents"]
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        slices.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(slices))
    named = [(event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"]
    assert [device for device, name in named if name == "overlapped"] == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0 0F1 0B0 0B1\n1F0 1B0 (1F1;1B1)OVERLAP_F_B", "deadlock: .*op 1B1 waits for 1F1"),
        ("0F0 (0F1;0B0)OVERLAP_F_B 0B1\n1F0 1F1 1B0 1B1", "deadlock: device 0, position 2: op 0B0 waits for 1B0"),
    ],
)
def test_a_pair_that_cannot_begin_is_named(text: str, message: str) -> None:
    """One that needs the other, or what comes after it; by the check, and by the engines or the lowering."""
    with pytest.raises(ScheduleError, match=message):
        check_schedule(from_text(text))
    for engine in get_args(Engine):
        with pytest.raises(ScheduleError, match=message):
            replay_schedule(from_text(text), OpSeconds(1, 2), engine=engine)


@pytest.mark.parametrize(
    ("first", "place", "ops"), [(0, (0, 0), "0F0 0F1"), (4, (1, 0), "1F0 1F1"), (7, (1, 3), "1B1")]
)
def test_rows_that_are_no_pair_are_named(first: int, place: tuple[int, int], ops: str) -> None:
    """Two forwards, an op and one of another list, the last op of all."""
    overlapped = np.zeros(len(TWO), dtype=np.bool_)
    overlapped[first] = True
    wrong: Schedule = replace(TWO, overlapped=overlapped)
    said = "device {}, position {}: an overlapped pair is a forward and a backward (or an input gradient), got {}"
    for check in (check_schedule, lambda schedule: replay_schedule(schedule, OpSeconds(1, 2))):
        with pytest.raises(ScheduleError, match=re.escape(said.format(*place, ops)) + "$"):
            check(wrong)


def test_transfers_that_block_do_not_overlap() -> None:
    """A device that is busy sending cannot run two ops at once."""
    with pytest.raises(
        ScheduleError,
        match=(
            "schedule 'text' overlaps forwards and backwards, which communication 'send-blocking' does "
            "not; choices: overlapped, free"
        ),
    ):
        replay_schedule(TWO, OpSeconds(1, 2), communication="send-blocking")


@pytest.mark.parametrize("overlapped", [-1.0, [1.0, 2.0, 3.0], len])
def test_seconds_of_pairs_are_checked(overlapped: Any) -> None:
    """As those of every op."""
    with pytest.raises(ValueError, match="overlapped"):
        replay_schedule(TWO, OpSeconds(1, 2, overlapped=overlapped))


def test_repeated_mini_batches_keep_their_pairs() -> None:
    """Each of two mini-batches has them, with its own micro-batches and an update behind."""
    assert to_text(repeated_minibatches(TWO, 2)).splitlines()[1] == (
        "1F0 (1F1;1B0)OVERLAP_F_B 1B1 1U0 1F2 (1F3;1B2)OVERLAP_F_B 1B3 1U1"
    )


def test_repeated_mini_batches_update_where_they_compute() -> None:
    """Not on the link to the host, which has a list of its own on the same device. F 1 s, B 2 s, U 3 s, each way 1 s."""
    repeated = repeated_minibatches(from_text("0F0 0F1 0B0 0B1\n0O0 0L0"), 2)
    assert to_text(repeated).splitlines() == ["0F0 0F1 0B0 0B1 0U0 0F2 0F3 0B2 0B3 0U1", "0O0 0L0 0O2 0L2"]
    # F1 hides the way out; the backward waits for the way back until 3
    timeline = replay_schedule(repeated, OpSeconds(1, 2, update=3, offload=1)).timeline
    assert timeline.makespan_seconds == 2 * (3 + 2 + 2 + 3)
    assert timeline.devices() == [0]


def test_pairs_of_a_plan_take_their_share_of_the_problem() -> None:
    """Two layers of F 1 s and B 2 s per sample, nothing on their link: a pair takes 2.4 s at a share of 0.8."""
    order = tuple(to_text(TWO).splitlines())
    stages = (Stage((0,), (0,)), Stage((1,), (1,)))
    problem = Problem(chain([1.0, 1.0]), chain_cluster(2), 2, overlap=0.8)
    outcome = simulate(problem, Plan("hand", "own", stages, (1, 1), order=order))
    assert outcome.iteration_seconds == 2.0 + 0.8 * 3.0 + 4.0
    for share in (0.0, 1.5):
        with pytest.raises(
            ValueError, match=f"overlap of a Problem must be a number, more than 0 and at most 1, got {share}"
        ):
            replace(problem, overlap=share)
