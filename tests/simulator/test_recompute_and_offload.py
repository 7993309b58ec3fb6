"""Forwards that run again in ops of their own, and stashes that go to the host: when they run, what they free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_profiles import load_accelerator
from simulator import (
    CATEGORIES,
    ENGINES,
    Engine,
    InfeasiblePlanError,
    OpMemory,
    OpSeconds,
    Outcome,
    Plan,
    Problem,
    ScheduleError,
    Stage,
    check_schedule,
    chrome_trace,
    from_text,
    replay_schedule,
    simulate,
    to_text,
    to_torch_csv,
)
from simulator.lowering.program import LaneKind
from tests.chains import chain
from tests.simulator.strategies import chain_cluster

AGAIN = from_text("0F0 0F1 0A0 0B0 0A1 0B1")
AWAY = from_text("0F0 0F1 0F2 0B2 0B1 0B0\n0O0 0O1 0L1 0L0\n")


def levels(text: str, seconds: OpSeconds, engine: Engine = "simpy") -> dict[float, float]:
    """What device 0 holds from each moment on, where every forward keeps 2 and weight gradients need 1 of it."""
    (device,) = replay_schedule(from_text(text), seconds, engine=engine).holding(OpMemory(2)).memory
    return dict(zip(device.times.tolist(), device.bytes.sum(axis=1).tolist(), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_forward_that_runs_again_takes_its_stash_then(engine: Engine) -> None:
    """F 0-1 1-2, A 2-3, B 3-5, A 5-6, B 6-8: nothing is kept until A begins; all ops but the bubble count as work."""
    assert levels(to_text(AGAIN), OpSeconds(1, 2), engine) == {0.0: 0.0, 1.0: 0.0, 2.0: 2.0, 5.0: 2.0, 8.0: 0.0}
    timeline = replay_schedule(AGAIN, OpSeconds(1, 2), engine=engine).timeline
    assert (timeline.makespan_seconds, timeline.busy_seconds().tolist(), timeline.ops) == (8.0, [8.0], 6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stash_is_gone_from_the_end_of_its_way_to_the_start_of_its_way_back(engine: Engine) -> None:
    """F 0-1 1-2 2-3, O 1-2 2-3, B2 3-5; L1 3-4, L0 4-5: all three are there again at 4, as B2 still runs."""
    expected = {0.0: 2.0, 1.0: 4.0, 2.0: 4.0, 3.0: 4.0, 4.0: 6.0, 5.0: 4.0, 7.0: 2.0, 9.0: 0.0}
    assert levels(to_text(AWAY), OpSeconds(1, 2, offload=1), engine) == expected
    timeline = replay_schedule(AWAY, OpSeconds(1, 2, offload=1), engine=engine).timeline
    assert timeline.lane_kind.tolist() == [LaneKind.COMPUTE, LaneKind.HOST]
    assert timeline.busy_seconds().tolist() == [9.0]


def test_a_backward_waits_until_its_stash_is_back() -> None:
    """O 1-4, L 4-7: the backward begins at 7, and frees at 9."""
    timeline = replay_schedule(from_text("0F0 0B0\n0O0 0L0"), OpSeconds(1, 2, offload=3)).timeline
    assert timeline.start.tolist() == [0.0, 7.0, 1.0, 4.0]


def outcome(order: tuple[str, ...], recompute: str) -> Outcome:
    """Three layers of 1 s per sample (2 s backward) that stash 12, 20 and 8 bytes, attention in the middle; two samples."""
    network = chain([1.0] * 3, output_elements=[4.0, 2.0, 1.0], stashed_elements=[3.0, 5.0, 2.0])
    first, second, third = network.layers
    network = replace(network, layers=(first, replace(second, kind="attention"), third))
    problem = Problem(network, chain_cluster(1), 2)
    plan = Plan("hand", "own", (Stage((0, 1, 2), (0,)),), (1, 1), order=order, recompute=(recompute,))  # type: ignore[arg-type]
    return simulate(problem, plan)


@pytest.mark.parametrize(
    ("recompute", "within", "forward", "kept"), [("whole", 9.0, 3.0, 0.0), ("attention", 7.0, 1.0, 36.0)]
)
def test_ops_of_a_plan_run_again_what_the_stage_recomputes(
    recompute: str, within: float, forward: float, kept: float
) -> None:
    """Backwards of 6 s with or without a forward of the layers that run again, which is then an op of its own."""
    inside, own = (outcome((order,), recompute) for order in ("0F0 0F1 0B0 0B1", "0F0 0F1 0A0 0A1 0B0 0B1"))
    for one, names, seconds in (
        (inside, "FFBB", [3.0, 3.0, within, within]),
        (own, "FFAABB", [3, 3, forward, forward, 6, 6]),
    ):
        computing = one.timeline.compute()
        assert (one.timeline.end - one.timeline.start)[computing].tolist() == seconds, names
    activations, workspace = (CATEGORIES.index(name) for name in ("activations", "workspace"))
    (memory,) = own.memory
    assert memory.bytes[:, activations].max() == 2 * kept
    assert memory.bytes[:, workspace].max() == 2 * (40.0 - kept)
    assert inside.memory[0].bytes[:, workspace].max() == 40.0 - kept


def test_seconds_to_the_host_are_those_of_its_link() -> None:
    """Forty bytes per sample on a link of 10^5 bytes/s; boards say nothing of theirs."""
    timeline = outcome(("0F0 0F1 0B0 0B1", "0O0 0O1 0L0 0L1"), "none").timeline
    host = timeline.lane == 1
    assert (timeline.end - timeline.start)[host] == pytest.approx([40 / 1e5] * 4)
    assert load_accelerator("a100-80").host_bandwidth == 32e9  # type: ignore[attr-defined]
    problem = Problem(chain([1e9]), replace(chain_cluster(1), devices=(load_accelerator("vcu118"),)), 1)
    with pytest.raises(ValueError, match=r"FPGA 0 \(vcu118\) cannot offload: its file does not say host_bandwidth_gb"):
        simulate(problem, Plan("hand", "own", (Stage((0,), (0,)),), (1,), order=("0F0 0B0", "0O0 0L0")))


def test_a_stage_that_recomputes_nothing_has_no_forwards_to_run_again() -> None:
    """Its plan is refused."""
    with pytest.raises(
        InfeasiblePlanError,
        match="the order of plan 'hand' runs forwards of stage 0 again, whose recompute says none",
    ):
        outcome(("0F0 0F1 0A0 0A1 0B0 0B1",), "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "0F0 0F1 0A0 0B0 0B1",
            "device 0: stage 0 runs forwards again in ops of their own, all or none; op 0A1 is missing",
        ),
        ("0F0 0B0 0A0", "op 0B0 waits for 0A0"),
        ("0F0 0B0\n0O0", "device 0: op 0L0 is missing: what is offloaded is loaded back"),
        ("0F0 0B0\n0L0 0O0", "op 0L0 waits for 0O0"),
        ("0F0 0O0 0L0 0B0", "device 0, position 1: op 0O0 stands among other ops"),
        ("0O0 0L0\n0F0 0B0\n1F0 1L0 1B0 1O0", "device 1, position 1: op 1L0 stands among other ops"),
        ("0F0 0B0\n1O0 1L0", "row 2: no device runs 1F0, which 1O0 follows"),
        ("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n0O0 0L0 1O1 1L1", "op 1O1 runs where its forward did not"),
    ],
)
def test_orders_that_cannot_run_are_named(text: str, message: str) -> None:
    """By the check, and before a replay, in the same words."""
    for check in (check_schedule, lambda schedule: replay_schedule(schedule, OpSeconds(1, 2))):
        with pytest.raises(ScheduleError, match=message):
            check(from_text(text))


def test_text_has_them_and_torch_has_not() -> None:
    """Lines of the links to the host stand beside their devices when they are read again."""
    for schedule in (AGAIN, AWAY, from_text("0O1 0L1\n0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n1O0 1L0")):
        read = from_text(to_text(schedule))
        assert to_text(read) == to_text(schedule)
        assert read.device_of_rank().tolist() == schedule.device_of_rank().tolist()
    assert read.device_of_rank().tolist() == [0, 0, 1, 1]
    with pytest.raises(
        ScheduleError, match="schedule 'text' runs forwards again in ops of their own; torch does so within backwards"
    ):
        to_torch_csv(AGAIN)
    with pytest.raises(
        ScheduleError, match="schedule 'text' runs two lists of ops at once on a device; torch runs one per rank"
    ):
        to_torch_csv(AWAY)


def test_the_link_to_the_host_has_a_track_of_its_own() -> None:
    """Offloads run beside ops."""
    events = chrome_trace(replay_schedule(AWAY, OpSeconds(1, 2, offload=1)).timeline)["traceEvents"]
    names = {event["name"]: event["cat"] for event in events if event["ph"] == "X" and event["tid"] >= 4000}
    assert names == {"0O0": "offload", "0O1": "offload", "0L1": "reload", "0L0": "reload"}
