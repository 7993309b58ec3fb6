"""Tests of BaPipe's schedules: every row of its check table, on the engine, with the micro-batches in flight."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from experiments.cli import main
from simulator import (
    SCHEDULES,
    OpKind,
    OpSeconds,
    ScheduleError,
    Timeline,
    build_schedule,
    check_schedule,
    given_costs,
    lower,
    replay_schedule,
    unequal_schedule,
)
from simulator.engines import reference as engine
from simulator.schedules.checks import check_complete
from simulator.schedules.schedule import from_columns

SHAPES = [(4, 8), (3, 5), (1, 3), (5, 3)]
TIMES = [(1.0, 2.0), (2.0, 1.0)]


def run(name: str, n: int, m: int, f: Any, b: Any, sr: float = 0.0, mode: str = "", **options: Any) -> Timeline:
    """Replay a family in its own communication mode."""
    schedule = build_schedule(name, n, m, **options)
    chosen: Any = mode or SCHEDULES[name].communications[0]
    return engine.replay(
        lower(schedule, given_costs(n, OpSeconds(f, b, transfer=sr), devices=schedule), communication=chosen)
    )


def in_flight(m: int, counts: list[int]) -> list[int]:
    """Counts that a mini-batch of m micro-batches cannot exceed."""
    return [min(m, count) for count in counts]


def column(*values: int) -> NDArray[np.int64]:
    """Stages, kinds or micro-batches of a list of ops."""
    return np.array(values, dtype=np.int64)


# ---- the two tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize(("f", "b"), TIMES)
@pytest.mark.parametrize("part", [0.3, 1.0, 1.5])
def test_streaming_one_forward_one_backward(n: int, m: int, f: float, b: float, part: float) -> None:
    """1F1B-AS: (M+N-1)(F+B) whatever the transfer, a bubble of (N-1)/(M+N-1), N-i+1 micro-batches kept."""
    timeline = run("1f1b-as", n, m, f, b, part * f)
    assert timeline.makespan_seconds == (m + n - 1) * (f + b)
    assert timeline.bubble().idle_over_makespan == pytest.approx((n - 1) / (m + n - 1))
    assert timeline.peak_in_flight().tolist() == in_flight(m, list(range(n, 0, -1)))


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize(("f", "b"), TIMES)
def test_shared_lanes_reach_the_same_time(n: int, m: int, f: float, b: float) -> None:
    """FBP-AS by processor sharing: (M+N-1)(F+B), the bubble of 1F1B-AS, 2(N-i+1) micro-batches kept."""
    timeline = run("fbp-as", n, m, f, b, 0.3 * f)
    assert timeline.makespan_seconds == pytest.approx((m + n - 1) * (f + b), rel=1e-12)
    assert timeline.bubble().idle_over_makespan == pytest.approx((n - 1) / (m + n - 1))
    assert timeline.peak_in_flight().tolist() == in_flight(m, list(range(2 * n, 0, -2)))


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize(("f", "b"), TIMES)
def test_split_lanes_leave_resources_idle_in_fill_and_drain(n: int, m: int, f: float, b: float) -> None:
    """FBP with fixed shares: (M+2N-1)(F+B); a device works M(F+B) of that."""
    timeline = run("fbp-as", n, m, f, b, lanes="split")
    assert timeline.makespan_seconds == pytest.approx((m + 2 * n - 1) * (f + b), rel=1e-12)
    assert timeline.busy_seconds() == pytest.approx([m * (f + b)] * n)
    assert timeline.peak_in_flight().tolist() == in_flight(m, list(range(2 * n, 0, -2)))


@pytest.mark.parametrize(("n", "m"), [(n, m) for n, m in SHAPES if 1 < n <= m])
@pytest.mark.parametrize(("f", "b"), TIMES)
@pytest.mark.parametrize("part", [0.3, 1.0, 1.5])
def test_blocking_transfers(n: int, m: int, f: float, b: float, part: float) -> None:
    """1F1B-SNO: the table's (M+N-1)(F+B) + 2 SR (M+N-2), less one SR; N-i+1 micro-batches kept."""
    sr = part * f
    timeline = run("1f1b-sno", n, m, f, b, sr)
    assert timeline.makespan_seconds == pytest.approx((m + n - 1) * (f + b) + 2 * sr * (m + n - 2) - sr, rel=1e-12)
    assert timeline.peak_in_flight().tolist() == in_flight(m, list(range(n, 0, -1)))


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize(("f", "b"), TIMES)
@pytest.mark.parametrize("part", [0.3, 1.0, 1.5])
def test_overlapped_transfers(n: int, m: int, f: float, b: float, part: float) -> None:
    """1F1B-SO: (M+N-1)(F+B) + 2 SR (N-1) while SR <= (F+B)/2, more beyond; 2(N-i)+1 micro-batches kept."""
    sr = part * f
    timeline = run("1f1b-so", n, m, f, b, sr)
    formula = (m + n - 1) * (f + b) + 2 * sr * (n - 1)
    if sr <= (f + b) / 2:
        assert timeline.makespan_seconds == pytest.approx(formula, rel=1e-12)
    else:
        assert timeline.makespan_seconds >= formula - 1e-9
    assert timeline.peak_in_flight().tolist() == in_flight(m, list(range(2 * n - 1, 0, -2)))


@pytest.mark.parametrize(
    ("arguments", "seconds", "kept"),
    [
        (["1f1b-as"], 33.0, [4, 3, 2, 1]),
        (["fbp-as"], 33.0, [8, 6, 4, 2]),
        (["fbp-as", "--lanes", "split"], 45.0, [8, 6, 4, 2]),
        (["1f1b-sno"], 38.7, [4, 3, 2, 1]),
        (["1f1b-so"], 34.8, [7, 5, 3, 1]),
    ],
)
def test_command_line(
    arguments: list[str], seconds: float, kept: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """`pipeplan simulate --schedule NAME` gives the table's rows."""
    numbers = "--stages 4 --microbatches 8 --forward 1 --backward 2 --transfer 0.3 --json"
    assert main(["simulate", "--schedule", *arguments, *numbers.split()]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["makespan_seconds"] == pytest.approx(seconds, abs=1e-9)
    assert result["peak_in_flight"] == kept
    assert result["devices"] == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ["1f1b-sno", "--communication", "overlapped"],
        ["1f1b", "--lanes", "split"],
        ["fbp-as", "--lanes", "half"],
    ],
)
def test_contradictions_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A mode or an option that is not the schedule's ends in one line and exit code 2."""
    numbers = ["--stages", "2", "--microbatches", "2", "--forward", "1", "--backward", "2"]
    assert main(["simulate", "--schedule", *arguments, *numbers]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


# ---- links that are slower than what streams over them ---------------------------------------------------------------


def test_an_op_that_streams_takes_at_least_as_long_as_its_transfer() -> None:
    """Two stages, F = 1, SR = 1.5: stage 0 forwards at 1.5 s, stage 1 sends gradients at its own 2 s."""
    timeline = run("1f1b-as", 2, 1, 1.0, 2.0, 1.5, "streaming")
    assert (timeline.end - timeline.start).tolist() == [1.5, 2.0, 1.0, 2.0]
    assert timeline.makespan_seconds == 6.5


def test_streaming_is_free_while_the_link_keeps_up() -> None:
    """While SR <= F (link demand a/F), streaming costs what free transfers cost."""
    for name in ("1f1b-as", "fbp-as"):
        assert run(name, 4, 8, 1.0, 2.0, 1.0, "streaming").makespan_seconds == pytest.approx(33.0)


def test_forwards_beside_backwards_need_less_bandwidth() -> None:
    """Where F < SR < F+B the links slow 1F1B-AS down in its steady state, FBP-AS in fill and drain only."""
    n, m, sr = 4, 40, 2.0
    alternating = run("1f1b-as", n, m, 1.0, 2.0, sr, "streaming").makespan_seconds
    beside = run("fbp-as", n, m, 1.0, 2.0, sr, "streaming").makespan_seconds
    assert alternating >= m * (sr + 2.0)
    assert beside == pytest.approx((m + n - 1) * 3.0, rel=0.05)


def test_a_task_that_waits_for_its_link_leaves_the_device_to_the_other() -> None:
    """Work 1 over 4 s takes a quarter of the device; 3 s of work beside it have three quarters: both end after 4 s."""
    columns = [(column(0, 0), column(0, 0), column(0, 1)), (column(0, 0), column(1, 1), column(0, 1))]
    schedule = replace(from_columns("pair", 1, 2, columns, device=[0, 0]), lanes="shared")
    program = lower(schedule, given_costs(1, OpSeconds(1.0, 3.0), devices=schedule))
    least = np.where(program.kind == OpKind.FORWARD, 4.0, program.seconds)
    timeline = engine.replay(replace(program, least_seconds=least))
    forward, backward = timeline.kind == OpKind.FORWARD, timeline.kind == OpKind.BACKWARD
    assert timeline.end[forward].tolist() == [4.0, 8.0]
    assert timeline.end[backward] == pytest.approx([8.0, 11.0])


# ---- lanes, credit, devices ------------------------------------------------------------------------------------------


def test_two_lanes_are_one_device() -> None:
    """A stage with two lanes counts as one device, for replicas, updates and costs alike."""
    schedule = build_schedule("fbp-as", 3, 4)
    assert schedule.ranks == 6
    assert schedule.replicas().tolist() == [1, 1, 1]
    program = lower(schedule, given_costs(3, OpSeconds(1.0, 2.0, update=0.5), devices=schedule), updates=True)
    assert program.lane_device.tolist() == [0, 0, 1, 1, 2, 2]
    assert program.lane_sharing.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.count_nonzero(program.kind == OpKind.UPDATE) == 3


def test_a_credit_that_the_order_overdraws_is_a_deadlock() -> None:
    """Three forwards ahead of the first backward in one list cannot run on a credit of two."""
    columns = [(column(*[0] * 6), column(0, 0, 0, 1, 1, 1), column(0, 1, 2, 0, 1, 2))]
    schedule = replace(from_columns("overdrawn", 1, 3, columns), credit=column(2))
    with pytest.raises(ScheduleError, match="op 0F2 waits for 0B0"):
        check_schedule(schedule)
    with pytest.raises(ValueError, match="0F2"):
        engine.replay(lower(schedule, given_costs(1, OpSeconds(1.0, 1.0))))


@pytest.mark.parametrize(("forward", "backward"), [([2, 2], [4]), ([4], [2, 2])])
def test_a_credit_needs_as_many_micro_batches_backward_as_forward(forward: list[int], backward: list[int]) -> None:
    """It counts micro-batches, and each backward gives one back; sizes alone may differ."""
    bounds = [[np.cumsum([0, *sizes])] for sizes in (forward, backward)]
    halves = unequal_schedule("gpipe", [forward], [backward])
    check_complete(halves, *bounds)
    said = f"device 0: stage 0 has {len(forward)} micro-batches forward and {len(backward)} backward; a credit needs the same"
    with pytest.raises(ScheduleError, match=said):
        check_complete(replace(halves, credit=column(2)), *bounds)
    in_turn = replace(build_schedule("1f1b-rr", 1, 2, replicas=(2,)), credit=column(1))
    with pytest.raises(
        ScheduleError, match=r"^op 0F1 waits for the backward of micro-batch 0 of its stage, which is not there"
    ):
        replay_schedule(in_turn, OpSeconds(1.0, 1.0))
    others = [np.array([0, 1, 4])], [np.array([0, 3, 4])]
    check_complete(replace(unequal_schedule("gpipe", [[1, 3]], [[3, 1]]), credit=column(2)), *others)


def test_a_backward_on_another_device_is_still_refused() -> None:
    """Forward and backward may stand in two lists, but of one device."""
    columns = [(column(0), column(0), column(0)), (column(0), column(1), column(0))]
    check_schedule(from_columns("one", 1, 1, columns, device=[0, 0]))
    with pytest.raises(ScheduleError, match="runs where its forward did not"):
        check_schedule(from_columns("two", 1, 1, columns))


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 5),
    m=st.integers(1, 12),
    seconds=st.lists(st.floats(0.1, 5.0), min_size=10, max_size=10),
    sr=st.floats(0.0, 4.0),
)
def test_credit_bounds_what_is_kept_and_sharing_conserves_work(n: int, m: int, seconds: list[float], sr: float) -> None:
    """Unbalanced stages: no stage keeps more than 2(N-i+1), and no device is faster than its work."""
    forward, backward = seconds[:n], seconds[5 : 5 + n]
    shared = run("fbp-as", n, m, forward, backward, sr, "streaming")
    split = run("fbp-as", n, m, forward, backward, sr, "streaming", lanes="split")
    for timeline in (shared, split):
        assert all(kept <= 2 * (n - s) for s, kept in enumerate(timeline.peak_in_flight().tolist()))
    work = max(m * (f + b) for f, b in zip(forward, backward, strict=True))
    assert work * (1 - 1e-9) <= shared.makespan_seconds
    assert work * (1 - 1e-9) <= split.makespan_seconds
    assert shared.busy_seconds().max() <= shared.makespan_seconds * (1 + 1e-9)
