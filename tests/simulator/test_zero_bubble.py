"""Rules of schedules with split backwards: closed forms, published figures, peaks, no micro-batch that is not there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from hardware_profiles import load_cluster
from simulator import (
    SCHEDULES,
    OpKind,
    Plan,
    PlanFile,
    Problem,
    Schedule,
    Timeline,
    build_schedule,
    check_schedule,
    load_workload,
    simulate,
    stages_from_cuts,
    to_text,
)
from simulator.schedules import building_blocks
from tests.simulator.strategies import timeline_of

Numbers = float | Sequence[float]

SPLIT = ("zb-h1", "zb-h2", "interleaved-zb", "zb-v", "v-half", "v-min")
V_SHAPED = SPLIT[3:]


def replayed(
    schedule: Schedule, forward: Numbers = 1.0, gradient: Numbers = 1.0, weight: Numbers = 1.0, transfer: float = 0.0
) -> Timeline:
    """The timeline of F, I, W and c seconds, of every stage or of each."""
    return timeline_of(schedule, forward, gradient, weight=weight, transfer=transfer)


def longest_stage(timeline: Timeline) -> float:
    """Seconds from the first to the last op of the device that takes longest so."""
    return float(timeline.busy_seconds().max() / (1 - timeline.bubble().longest_stage))


# ---- one stage per device ----------------------------------------------------------------------------------------------

SECONDS = [(2, 1, 1), (18, 18, 9), (5, 6, 4)]


def drawn_seconds(seed: int) -> tuple[int, int, int, float]:
    """F, I, W and c with F >= W, I >= W and W >= 2c; often at an end of these."""
    rng = Random(seed)
    weight = rng.randint(1, 12)
    forward, gradient = (weight + rng.choice((0, 1, rng.randint(0, 30))) for _ in range(2))
    return forward, gradient, weight, weight * rng.choice((0.0, 0.125, 0.5))


@pytest.mark.parametrize("seed", range(12))
def test_zb_h1_takes_its_closed_form(seed: int) -> None:
    """m(F+I+W) + (p-1)(F+I-W+4c) for m > p, or m = p where c = 0; its peak is p micro-batches on every stage."""
    forward, gradient, weight, transfer = drawn_seconds(seed)
    p = 1 + seed % 7
    m = p + seed % 5 + (transfer > 0)
    timeline = replayed(build_schedule("zb-h1", p, m), forward, gradient, weight, transfer)
    fill = (p - 1) * (forward + gradient - weight + 4 * transfer)
    assert timeline.makespan_seconds == m * (forward + gradient + weight) + fill
    assert timeline.peak_in_flight().tolist() == [p] * p


@pytest.mark.parametrize("seed", range(12))
def test_longest_stage_of_zb_h2_takes_its_closed_form(seed: int) -> None:
    """m(F+I+W) + (p-1)(F+I+2c-2W), no less than the ops, for m >= 2p-1 and F >= W >= 2c, whatever I.

    2(p-s)-1 micro-batches between F and I, 2p-1 until their W.
    """
    forward, gradient, weight, transfer = drawn_seconds(seed)
    gradient = gradient if seed % 2 else 1 + gradient // 4
    p = 1 + seed % 6
    m = 2 * p - 1 + seed % 4
    schedule = build_schedule("zb-h2", p, m)
    timeline = replayed(schedule, forward, gradient, weight, transfer)
    fill = max(0, forward + gradient + 2 * transfer - 2 * weight)
    expected = m * (forward + gradient + weight) + (p - 1) * fill
    assert longest_stage(timeline) == pytest.approx(expected, rel=1e-12)
    assert timeline.peak_in_flight().tolist() == [2 * p - 1] * p
    for stage in range(p):
        kind = schedule.kind[schedule.stage == stage]
        change = (kind == OpKind.FORWARD).astype(int) - (kind == OpKind.INPUT_GRADIENT)
        assert np.cumsum(change).max() == 2 * (p - stage) - 1


def test_published_rows_of_handcrafted_zero_bubble(shared_data: Path) -> None:
    """The bubble of the longest stage, to all printed digits, in each row of the paper."""
    rows = json.loads((shared_data / "zero_bubble_rows.json").read_text(encoding="utf-8"))
    for row in rows:
        for name in ("zb-h1", "zb-h2"):
            timeline = replayed(build_schedule(name, row["p"], row["m"]), row["F"], row["B"], row["W"], row["p2p"])
            assert round(timeline.bubble().longest_stage, 4) == row["bubble_" + name.replace("-", "_")]
    assert len(rows) >= 6


# ---- several stages per device ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 3, 8), (3, 2, 9)])
def test_interleaved_zero_bubble_takes_its_closed_form(p: int, v: int, m: int) -> None:
    """m·v(F+I+W) + (p-1)(F+I-W) for F, I and W <= F, I of a chunk, p a divisor of m; the peak: p micro-batches of all chunks."""
    schedule = build_schedule("interleaved-zb", p * v, m, chunks=v)
    for forward, gradient, weight in SECONDS:
        timeline = replayed(schedule, forward, gradient, weight)
        fill = (p - 1) * (forward + gradient - weight)
        assert timeline.makespan_seconds == pytest.approx(m * v * (forward + gradient + weight) + fill, rel=1e-12)
        assert timeline.peak_in_flight().tolist() == [p * v] * p


def test_interleaved_zero_bubble_of_one_chunk_is_zb_h1() -> None:
    """Op for op."""
    assert to_text(build_schedule("interleaved-zb", 4, 8, chunks=1)) == to_text(build_schedule("zb-h1", 4, 8))


# ---- a V -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "m", "seconds"), [(8, 32, 199), (16, 64, 399), (1, 3, 18), (4, 8, 51)])
def test_zb_v_has_no_bubble_but_the_way_down(p: int, m: int, seconds: int) -> None:
    """6m + p-1 for unit chunks, every device without a pause; peak p micro-batches of both chunks of a device."""
    timeline = replayed(build_schedule("zb-v", 2 * p, m))
    assert timeline.makespan_seconds == seconds == 6 * m + p - 1
    assert longest_stage(timeline) == 6 * m
    assert timeline.peak_in_flight().max() == 2 * p


@pytest.mark.parametrize(("p", "m", "seconds"), [(4, 8, 54.25), (16, 64, 417.25)])
def test_zb_v_with_transfers_takes_what_an_independent_replay_found(p: int, m: int, seconds: float) -> None:
    """Unit chunks, a quarter of a second a transfer."""
    assert replayed(build_schedule("zb-v", 2 * p, m), transfer=0.25).makespan_seconds == seconds


@pytest.mark.parametrize("p", [3, 4, 5, 6])
def test_v_half_and_v_min_keep_their_memory(p: int) -> None:
    """(p+2)//2 and (p+4)//3 micro-batches of both chunks; unit chunks: bubbles of at most p/2m and 2p/3m of the work."""
    for m in (2 * p, 3 * p + 5):
        half, least = (replayed(build_schedule(name, 2 * p, m)) for name in ("v-half", "v-min"))
        assert half.peak_in_flight().max() == 2 * ((p + 2) // 2)
        assert least.peak_in_flight().max() == 2 * ((p + 4) // 3)
        assert half.makespan_seconds == 6 * m + 3 * p - (4 if p % 2 else 7)
        assert least.makespan_seconds == 6 * m + 4 * p - (5 if p % 3 else 7)


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_building_blocks_of_too_many_devices_are_refused(name: str) -> None:
    """In one line, before minutes of work."""
    with pytest.raises(ValueError, match=f"{name} is built for at most 1024 devices, got 4096 stages on 2048"):
        build_schedule(name, 4096, 1000)


def test_v_half_keeps_its_pace_where_weight_gradients_take_less() -> None:
    """F 14407, I 14380, W 9676, transfers 1610: each further micro-batch takes its ops' seconds, and no bubble."""
    seconds = [replayed(build_schedule("v-half", 16, m), 14407, 14380, 9676, 1610).makespan_seconds for m in (24, 40)]
    assert seconds[1] - seconds[0] == pytest.approx(16 * 2 * (14407 + 14380 + 9676), rel=1e-12)


@pytest.mark.parametrize(("name", "p"), [("v_half", 3), ("v_half", 4), ("v_min", 3), ("v_min", 4)])
def test_a_long_stream_repeats_the_middle_of_a_short_one(name: str, p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Op for op what the whole stream gives, slot after slot."""
    family = getattr(building_blocks, name)
    tiled = to_text(family(2 * p, 6 * p + 1))
    monkeypatch.setattr(building_blocks, "repeated", building_blocks.squeezed)
    assert tiled == to_text(family(2 * p, 6 * p + 1))


@pytest.mark.parametrize("name", V_SHAPED)
def test_an_odd_number_of_stages_makes_no_v(name: str) -> None:
    """Two stages per device."""
    with pytest.raises(ValueError, match=f"{name} has two stages per device, so an even number of them, got 3 stages"):
        build_schedule(name, 3, 4)


# ---- every family with split backwards -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("m", [1, 3])
def test_fewer_micro_batches_than_devices(name: str, m: int) -> None:
    """Every op once, in an order that runs, of the micro-batches there are; peaks no higher than these."""
    stages = 4 if name in ("zb-h1", "zb-h2") else 8
    schedule = build_schedule(name, stages, m)
    check_schedule(schedule)
    assert (schedule.microbatches, len(schedule)) == (m, 3 * stages * m)
    assert replayed(schedule).peak_in_flight().max() <= m * stages // 4


# ---- plans -----------------------------------------------------------------------------------------------------------


# ---- made for seconds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(9))
def test_a_v_that_is_made_for_seconds_is_never_slower_and_holds_no_more(seed: int) -> None:
    """Than the same family's order of unit seconds; all ops once, on the same devices."""
    rng = Random(seed)
    name, p = V_SHAPED[seed % 3], rng.randint(1, 6)
    m = rng.randint(1, 2 * p + 3)
    seconds = (*(rng.randint(1, 20) for _ in range(3)), rng.choice((0.0, 0.5, 3.0)))
    unit, timed = build_schedule(name, 2 * p, m), build_schedule(name, 2 * p, m, op_seconds=seconds)
    check_schedule(timed)
    assert timed.holders() == unit.holders()
    before, after = (replayed(one, *seconds) for one in (unit, timed))
    assert after.makespan_seconds <= before.makespan_seconds * (1 + 1e-12)
    assert after.peak_in_flight().max() <= before.peak_in_flight().max()


def test_fewer_micro_batches_than_devices_gain_most() -> None:
    """F 18513, I 18086, W 9331, transfers 626 on 5 devices, 4 micro-batches: what zero-bubble's own generator takes."""
    seconds = (18513, 18086, 9331, 626)
    unit, timed = build_schedule("zb-v", 10, 4), build_schedule("zb-v", 10, 4, op_seconds=seconds)
    assert replayed(timed, *seconds).makespan_seconds == 497638
    assert replayed(unit, *seconds).makespan_seconds > 1.12 * 497638


def test_seconds_are_an_option_like_others(tmp_path: Path) -> None:
    """Of a plan and its file, as text on the command line; four numbers of at least 0."""
    problem = Problem(load_workload("gpt2"), load_cluster("dgx-a100").take(2), 8)
    cuts = stages_from_cuts(range(4, 16, 4), len(problem.workload), SCHEDULES["zb-v"].device_of_stage([(0,), (1,)], 2))
    plan = Plan("hand", "zb-v", cuts, (2,) * 4, options=(("op_seconds", (9.0, 9.0, 3.0, 1.0)),))
    PlanFile(problem, plan).write(tmp_path / "plan.json")
    assert PlanFile.read_plan(tmp_path / "plan.json")[1] == plan
    assert simulate(problem, plan).iteration_seconds > 0
    as_text = build_schedule("zb-v", 4, 4, op_seconds="9,9,3,1")
    assert to_text(as_text) == to_text(build_schedule("zb-v", 4, 4, op_seconds=(9.0, 9.0, 3.0, 1.0)))
    assert to_text(build_schedule("zb-v", 4, 4, op_seconds="0,0,0,1")) == to_text(build_schedule("zb-v", 4, 4))
    for wrong, said in (
        ("1,2", "^zb-v is made for op_seconds of a forward, .*, got 2$"),
        ("1,2,3,-1", "op_seconds must be a list"),
        ("a,b,c,d", "op_seconds must be a list"),
    ):
        with pytest.raises(ValueError, match=said):
            build_schedule("zb-v", 4, 4, op_seconds=wrong)
