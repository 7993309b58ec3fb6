"""Idle causes: pipelines worked out by hand, and sums over generated schedules and plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeplan as pp
from experiments.cli import main
from simulator import (
    CAUSES,
    TIME_PARTS,
    Explanation,
    OpKind,
    Plan,
    Problem,
    ScheduleReplay,
    Stage,
    build_program,
    explain,
    simulate,
)
from simulator.results.idle_causes import is_collective
from tests.chains import chain
from tests.experiments.commands import refused
from tests.simulator.strategies import ASYNCHRONOUS, plans, star_cluster
from tests.simulator.test_time_split import network

WAITS = ("fill", "drain", "op", "order", "memory", "straggler")
"""Causes that the time split calls bubble."""


def replay(name: str, stages: int, microbatches: int, **numbers: Any) -> ScheduleReplay:
    """A schedule on numbers."""
    found = pp.simulate(name, stages=stages, microbatches=microbatches, **numbers)
    assert isinstance(found, ScheduleReplay)
    return found


def causes(found: Explanation, device: int) -> dict[str, float]:
    """Idle seconds of a device by cause, those that are there."""
    (record,) = [one for one in found.record()["devices"] if one["device"] == device]
    return {name: seconds for name, seconds in record["causes"].items() if seconds}


def test_1f1b_by_hand() -> None:
    """Three devices, F 1 s, B 2 s, four micro-batches; (P - 1)(F + B) = 6 s of each are idle.

    0: F F F . . . B B F B B B    waits for 1B0 until 7; from 3 on it could run its fourth forward
    """
    found = explain(replay("1f1b", 3, 4, forward=1, backward=2))
    assert found.seconds == 18.0
    assert causes(found, 0) == {"order": 4.0, "op": 2.0}
    assert causes(found, 1) == {"fill": 1.0, "drain": 2.0, "order": 2.0, "op": 1.0}
    assert causes(found, 2) == {"fill": 2.0, "drain": 4.0}
    assert found.idle_seconds == 18.0
    words = {
        "drain": "behind its last op",
        "order": "while another op could have run",
        "op": "for an op of another device",
    }
    told = (
        f"drain 11.1 % ({words['drain']}), order 11.1 % ({words['order']}), fill 5.6 % (before its first op), op 5.6 % "
    )
    assert found.remarks()[0] == f"devices are idle for 33.3 % of the time: {told}({words['op']})"
    behind = explain(
        replay("1f1b", 3, 4, forward=1, backward=2), window=(9.0, 18.0)
    )  # device 0 waits for 2 s, device 1 for 1
    told = f"drain 22.2 % ({words['drain']}), op 11.1 % ({words['op']})"
    assert behind.remarks()[0] == f"devices are idle for 33.3 % of the time: {told}"


def test_the_same_order_for_want_of_room() -> None:
    """Devices with room for as many micro-batches as 1F1B keeps could not have run another forward; with one more, they could."""
    for room, cause in (([3, 2, 1], "memory"), ([4, 3, 2], "order")):
        found = explain(replay("1f1b", 3, 4, forward=1, backward=2, stash=1, memory=room))
        assert causes(found, 0) == {cause: 4.0, "op": 2.0}


def test_a_stage_that_is_slower_makes_others_wait() -> None:
    """1F1B, F of stage 1 takes 3 s in place of 1. Stage 2 runs F0 B0 from 4 to 6, waits for F1 until 7, which has begun at 4,
    runs F1 B1 until 9, and waits for F2 until 11, which has begun at 8: as long as these take longer than a forward of 1 s.
    """
    found = explain(replay("1f1b", 3, 3, forward=[1, 3, 1], backward=1))
    assert causes(found, 2) == {"fill": 4.0, "straggler": 3.0, "drain": 2.0}


def test_transfers_are_told_apart_from_what_they_bring() -> None:
    """GPipe with transfers of a quarter second: device 1 waits for the way of its first activation, as it fills."""
    found = explain(replay("gpipe", 2, 2, forward=1, backward=2, transfer=0.25))
    assert causes(found, 1) == {"fill": 1.0, "transfer": 0.25, "drain": 2.25}
    assert causes(found, 0) == {"op": 3.25, "transfer": 0.25}
    (interval, *_) = found.record()["devices"][1]["intervals"]
    assert interval == {"begin": 0.0, "end": 1.0, "cause": "fill", "before": "1F0", "waits_for": "0F0"}
    (waits,) = [one for one in found.tables() if one.title == "Waits"]
    assert [row[:4] for row in waits.rows] == [
        ("0", "1B*", "1", "3.25"), ("1", "0F*", "1", "1"), ("0", "1B*", "1", "0.25"), ("1", "0F*", "1", "0.25")
    ]  # fmt: skip


def test_the_critical_path_by_hand() -> None:
    """Two stages, two micro-batches: F, and the ops of stage 1 until its first gradient; stage 0 then never waits."""
    found = explain(replay("gpipe", 2, 2, forward=1, backward=2, transfer=0.25))
    runs = [
        (one["device"], one["first"], one["last"], one["tasks"], one["gap_seconds"])
        for one in found.record()["critical_path"]
    ]
    assert runs == [(0, "0F0", "0F0", 1, 0.0), (1, "1F0", "1B0", 3, 0.25), (0, "0B0", "0B1", 2, 0.25)]


def test_what_would_gain_most_is_told() -> None:
    """Where nothing takes time a sentence says that nothing would, and no table of gains is there."""
    found = explain(replay("gpipe", 1, 1, forward=0, backward=0))
    assert found.remarks()[1:] == ("nothing that is 10 % faster alone would save 0.01 %",)
    assert not [one for one in found.tables() if one.title.startswith("If it were")]
    gained = explain(replay("gpipe", 1, 2, forward=1, backward=2))  # 6 s of one stage take 6 / 1.1
    assert gained.remarks()[1] == "10 % faster, stage 0 would save most: 9.09 %"


def test_of_a_long_path_the_ends_are_told() -> None:
    """Eight devices forth, and back: six and six of fifteen runs, and how many stand between them."""
    table = next(
        one
        for one in explain(replay("gpipe", 8, 1, forward=1, backward=2)).tables()
        if one.title.startswith("Critical path")
    )
    assert [row[0] for row in table.rows] == [
        *(f"{stage}F0" for stage in range(6)), "… 3 more", *(f"{stage}B0" for stage in reversed(range(6)))
    ]  # fmt: skip


def whole(name: str, **numbers: Any) -> float:
    """Seconds of three stages and six micro-batches."""
    return replay(name, 3, 6, **numbers).makespan_seconds


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_gains_are_replays_of_faster_numbers(name: str) -> None:
    """A stage, or a link between two, that is 10 % faster is the schedule on numbers that are."""
    numbers: dict[str, Any] = {"forward": [1.0, 1.5, 1.0], "backward": [2.0, 2.5, 2.0], "transfer": [0.5, 0.25]}
    found = {one["what"]: one["iteration_seconds"] for one in explain(replay(name, 3, 6, **numbers)).record()["gains"]}
    for stage in range(3):
        faster = {
            one: [n / (1.1 if i == stage else 1.0) for i, n in enumerate(numbers[one])]
            for one in ("forward", "backward")
        }
        assert found[f"stage {stage}"] == pytest.approx(whole(name, **numbers | faster))
    link = numbers | {"transfer": [0.5 / 1.1, 0.25]}
    assert found["transfers between stages 0 and 1"] == pytest.approx(whole(name, **link))


# ------------------------------------------------------------------------------------------------------------- sums


def busy(start: np.ndarray[Any, Any], end: np.ndarray[Any, Any], makespan: float) -> float:
    """Seconds that at least one of the intervals covers."""
    moments = np.unique(np.concatenate([start, end, [0.0, makespan]]))
    return float(sum(b - a for a, b in pairwise(moments.tolist()) if ((start <= a) & (end >= b)).any()))


NAMES: dict[str, Callable[[int], int]] = {"1f1b": int, "gpipe": int, "zb-h1": int, "zb-v": lambda stages: 2 * stages}


@given(st.sampled_from(sorted(NAMES)), st.integers(1, 4), st.integers(1, 6), st.data())
@settings(max_examples=25)
def test_causes_sum_to_the_idle_time(name: str, devices: int, microbatches: int, data: st.DataObject) -> None:
    """Of whole seconds exactly: each piece lies where the device runs nothing, and all of them are the time in which it does."""
    stages = NAMES[name](devices)
    seconds = {
        one: data.draw(st.lists(st.integers(1, 9), min_size=stages, max_size=stages))
        for one in ("forward", "backward", "weight")
    }
    replayed = replay(name, stages, microbatches, **seconds, transfer=data.draw(st.integers(0, 4)))
    found, line = explain(replayed), replayed.timeline
    for row in found.record()["devices"]:
        own = line.device == row["device"]
        pieces = [(one["begin"], one["end"]) for one in row["intervals"]]
        idle = line.makespan_seconds - busy(line.start[own], line.end[own], line.makespan_seconds)
        assert sum(end - begin for begin, end in pieces) == idle == pytest.approx(sum(row["causes"].values()))
        assert all(before[1] <= after[0] for before, after in pairwise(pieces))
        assert all(((line.end[own] <= begin) | (line.start[own] >= end)).all() for begin, end in pieces)
    path = found.record()["critical_path"]
    assert sum(one["seconds"] + one["gap_seconds"] for one in path) == pytest.approx(line.makespan_seconds)


def check_plan(problem: Problem, plan: Plan) -> None:
    """The causes of a plan's devices are the parts of its time split."""
    outcome = simulate(problem, plan, engine="compiled")
    found, split = explain(outcome), outcome.time_split()
    length = found.window[1] - found.window[0]
    mean = np.average(found.idle.seconds, axis=0, weights=found.members)
    named = dict(zip(found.totals(), mean.tolist(), strict=True))
    scale = outcome.iteration_seconds / length if length else 1.0
    bubble = split.mean[TIME_PARTS.index("bubble")]
    assert scale * sum(named[one] for one in WAITS) == pytest.approx(bubble, abs=1e-9 * outcome.iteration_seconds)
    assert np.allclose(found.idle.seconds.sum(axis=1) + found.idle.busy, length)
    assert (found.idle.seconds >= 0.0).all()
    reached = sum(one.seconds + one.gap for one in found.path)
    if build_program(problem, plan, stream=outcome.stream)[2].least_seconds is None:
        assert reached == pytest.approx(outcome.makespan_seconds)
    assert min((one.seconds for one in found.gains), default=0.0) <= outcome.iteration_seconds * (1 + 1e-9)


@given(plans(1))
@settings(max_examples=10)
def test_causes_are_the_bubble_of_generated_plans(made: tuple[Problem, list[Plan]]) -> None:
    """Synchronous ones, with replicas, groups, ZeRO and every communication."""
    problem, (plan,) = made
    check_plan(problem, plan)


@given(plans(1, ASYNCHRONOUS))
@settings(max_examples=5)
def test_causes_are_the_bubble_of_steady_streams(made: tuple[Problem, list[Plan]]) -> None:
    """Of asynchronous plans, in the part in which the rate was read."""
    problem, (plan,) = made
    check_plan(problem, plan)


# ---------------------------------------------------------------------------------------------------------- commands


def test_the_commands_tell_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """`explain` of a plan, and `simulate --explain` of it."""
    named = pp.Problem("chain:4", "pipedream-a", 8, devices=2)
    plan = Plan("hand", "1f1b", (Stage((0, 1), (0,)), Stage((2, 3), (1,))), (2, 2, 2, 2))
    path = tmp_path / "plan.json"
    pp.PlanFile(named, plan).write(path)
    assert main(("explain", "--plan", str(path), "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(("simulate", "--plan", str(path), "--explain", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["explanation"] == told
    assert main(("explain", "--plan", str(path))) == 0
    assert "10 % faster" in capsys.readouterr().out
    assert "--noise does not go with --explain" in refused(
        capsys, ("simulate", "--plan", str(path), "--explain", "--noise", "0.1")
    )
    assert "has devices 0 to 0" in refused(capsys, ("explain", "--plan", str(path), "--cluster", "pipedream-c:1"))
    schedule = "simulate --schedule 1f1b --stages 2 --microbatches 2 --forward 1 --backward 2"
    assert main((*schedule.split(), "--explain", "--noise", "0.1")) == 0


def test_collectives_are_those_of_replicas() -> None:
    """Each task of a plan whose stages have replicas, by its kind."""
    problem = Problem(chain([1.0] * 2, parameters=[1000] * 2), star_cluster(4, bandwidth=16.0), 4)
    line = simulate(problem, Plan("hand", "1f1b", (Stage((0,), (0, 1)), Stage((1,), (2, 3))), (2, 2), zero=1)).timeline
    kinds = np.isin(line.kind, (OpKind.REDUCE, OpKind.SCATTER, OpKind.GATHER))
    assert [is_collective(line, task) for task in range(len(line))] == kinds.tolist()
    assert 0 < kinds.sum() < len(line)


def test_a_noisy_plan_is_not_explained() -> None:
    """Its faster replays would have other noise."""
    problem = Problem(network(2), star_cluster(2, bandwidth=16.0), 2)
    plan = Plan("hand", "gpipe", (Stage((0,), (0,)), Stage((1,), (1,))), (1, 1))
    with pytest.raises(ValueError, match="noisy"):
        explain(simulate(problem, plan, noise=0.1, rng=np.random.default_rng(1)))


def test_a_slow_replica_idles_as_if_it_were_alone() -> None:
    """Three stages of two replicas that share nothing: the slow one waits for its own, the other drains longer."""

    def idle(copies: int, factor: float = 2.0) -> Any:
        problem = Problem(chain([1.0, 3.0, 2.0]), star_cluster(3 * copies, bandwidth=1e15), 4 * copies)
        stages = tuple(Stage((n,), tuple(range(n * copies, (n + 1) * copies))) for n in range(3))
        plan = Plan("hand", "1f1b", stages, (copies,) * 4)
        return explain(simulate(problem, plan, stragglers={2 * copies - 1: factor})).idle

    alone, beside = idle(1), idle(2)
    assert beside.devices.tolist() == [0, 1, 2, 3, 4, 5]
    assert beside.seconds[1::2].tolist() == alone.seconds.tolist()
    longer = beside.seconds[0::2] - idle(1, 1.0).seconds
    assert longer.tolist() == [[33.0 * (cause == "drain") for cause in CAUSES]] * 3
