"""Devices that compute more slowly while they communicate: by hand, on every engine, from an accelerator's file to a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardware_profiles import load_accelerator, load_cluster
from simulator import Evaluations, Plan, Problem, Stage, build_schedule, load_workload, lower, simulate
from simulator.costs.given import Bucket
from simulator.engines import event_loop
from simulator.engines import reference as engine
from simulator.lowering.program import Program
from simulator.schedules.ops import OpKind
from tests.simulator.strategies import HandCosts, bits, channel


def times(program: Program, replay: Any, *, contention: bool = False) -> dict[str, tuple[float, float]]:
    """Start and end of each task, by name and replica."""
    found = replay(program, contention=contention)
    names = (f"{program.name_of(task)}/{program.replica[task]}" for task in range(len(program)))
    return dict(zip(names, zip(found.start.tolist(), found.end.tolist(), strict=True), strict=True))


ENGINES = pytest.mark.parametrize("replay", [engine.replay, event_loop.replay])


@ENGINES
@pytest.mark.parametrize("routed", [False, True])
def test_forwards_beside_transfers_by_hand(replay: Any, routed: bool) -> None:
    """Forwards of 2 s, transfers of 1 s in which both ends are half as quick, two micro-batches.

    Stage 0 sends from 2 to 3 and does half a second of its second forward, which ends at 4.5, and is sent until 5.5. Stage 1 has
    half a second of its first forward left at 4.5, and ends it at 5.5. Over a link of 1 byte/s it is the same.
    """
    costs = HandCosts((2.0, 2.0), (2.0, 2.0), transfer_seconds=1.0, slowdown=1.0)
    if routed:
        routes = {(0, 1): (0,), (1, 0): (1,)}
        costs = replace(costs, transfer_bytes=1.0, routes=routes, channels=(channel(1.0),) * 2)
    found = times(lower(build_schedule("gpipe", 2, 2), costs), replay, contention=routed)
    assert [found[name] for name in ("0F0/0", "0F1/0", "1F0/0", "1F1/0")] == [(0, 2), (2, 4.5), (3, 5.5), (5.5, 7.5)]


@dataclass(frozen=True)
class FirstSlower(HandCosts):
    """Costs of devices of which only the first computes more slowly."""

    def overlap_slowdown(self, device: int) -> float:
        return 1.0 if device == 0 else 0.0


@ENGINES
def test_a_device_of_another_kind_is_as_quick_beside_its_transfers(replay: Any) -> None:
    """As above, but stage 1 runs its first forward from 3 to 5."""
    costs = FirstSlower((2.0, 2.0), (2.0, 2.0), transfer_seconds=1.0)
    found = times(lower(build_schedule("gpipe", 2, 2), costs), replay)
    assert [found[name] for name in ("0F0/0", "0F1/0", "1F0/0", "1F1/0")] == [(0, 2), (2, 4.5), (3, 5), (5.5, 7.5)]


@ENGINES
def test_a_backward_is_slower_beside_the_sum_of_its_gradients(replay: Any) -> None:
    """Two replicas, a backward of 4 s, a first bucket after half of it that takes 1 s: beside it they are a quarter slower."""
    buckets = {0: (Bucket(0.5, 1.0), Bucket(0.5, 1.0))}
    costs = HandCosts((2.0,), (8.0,), stage_buckets=buckets, slowdown=0.25)
    program = lower(build_schedule("gpipe", 1, 1), costs, forward_sizes=[2], split_replicas=[2])
    backwards = (program.kind == OpKind.BACKWARD) & (program.replica == 1)
    end = float(replay(program).end[backwards].max())
    assert end == pytest.approx(2.0 + 4.0 + 1.0 + (4.0 - 1.0 / 1.25))
    assert float(replay(program.alone()).end[backwards].max()) == 10.0


@ENGINES
def test_transfers_at_once_slow_a_device_once(replay: Any) -> None:
    """A middle device that receives and sends at the same time is as slow as with one of both."""
    costs = HandCosts((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), transfer_seconds=1.0, slowdown=1.0)
    found = times(lower(build_schedule("gpipe", 3, 4), costs), replay)
    spans = {end - start for name, (start, end) in found.items() if name.startswith("1F")}
    assert 1.5 < max(spans) <= 2.0


def slowed_problem(folder: Path, slowdown: float, **options: Any) -> Problem:
    """AlexNet on four GPUs, two servers of PipeDream's cluster A, of an accelerator of its own file."""
    text = 'kind = "gpu"\nname = "slow"\nmemory_gib = 16\nmemory_bandwidth_gb_per_s = 900\nlike = "v100-pcie"\n'
    path = folder / "slow.toml"
    path.write_text(f"{text}overlap_slowdown = {slowdown}\n[compute]\ntflops_fp32 = 14\n")
    device, cluster = load_accelerator(path), load_cluster("pipedream-a:2").take(4)
    return Problem(load_workload("alexnet"), replace(cluster, devices=(device,) * 4), 16, **options)


PLANS = [
    Plan("hand", "1f1b", (Stage(tuple(range(8)), (0, 1)), Stage(tuple(range(8, 22)), (2, 3))), (4,) * 4),
    Plan("hand", "gpipe", (Stage(tuple(range(4)), (0,)), Stage(tuple(range(4, 22)), (1,))), (8, 8)),
    Plan("hand", "1f1b", (Stage(tuple(range(22)), (0, 1, 2, 3)),), (16,)),
    Plan("hand", "1f1b", (Stage(tuple(range(22)), (0, 1, 2, 3)),), (8, 8), zero=3),
    Plan("hand", "1f1b-rr", (Stage(tuple(range(8)), (0, 1)), Stage(tuple(range(8, 22)), (2,))), (8, 8), "round-robin"),
]


@pytest.mark.parametrize("plan", PLANS, ids=["pairs", "chain", "replicas", "zero", "stream"])
@pytest.mark.parametrize("options", [{"contention": False}, {"sharing": "fair"}, {"sharing": "fifo"}], ids=str)
def test_a_plan_takes_as_long_on_every_engine(tmp_path: Path, plan: Plan, options: dict[str, Any]) -> None:
    """SimPy, the event loop and an evaluator: the same bits, more than without; `recurrence` is without, and so a bound."""
    problem = slowed_problem(tmp_path, 0.19, **options)
    plain = slowed_problem(tmp_path, 0.0, **options)
    reference, compiled = (simulate(problem, plan, engine=name) for name in ("simpy", "compiled"))
    assert bits(compiled.replay.end, reference.replay.end)
    assert compiled.iteration_seconds == reference.iteration_seconds
    without = simulate(plain, plan)
    assert (
        reference.iteration_seconds >= without.iteration_seconds
    )  # the same where a sum of gradients is what takes longest
    later, before = (one.replay.end[one.replay.kind == OpKind.BACKWARD].max() for one in (reference, without))
    assert later > before
    bound = simulate(problem, plan, engine="recurrence").iteration_seconds
    assert bound == simulate(replace(plain, contention=False), plan).iteration_seconds
    score = Evaluations(problem)(plan)
    if score is not None:
        assert score.iteration_seconds == reference.iteration_seconds
        quick = Evaluations(problem, contention=False)(plan)
        assert quick is not None
        assert quick.iteration_seconds == bound


def test_nothing_is_slower_where_nothing_overlaps(tmp_path: Path) -> None:
    """One device alone, and transfers that take their device: as without the key."""
    alone = Plan("hand", "gpipe", (Stage(tuple(range(22)), (0,)),), (16,))
    for plan, options in ((alone, {}), (PLANS[1], {"communication": "both-blocking"})):
        slow, plain = (simulate(slowed_problem(tmp_path, one, **options), plan) for one in (0.5, 0.0))
        assert slow.iteration_seconds == plain.iteration_seconds
        assert np.array_equal(slow.replay.end, plain.replay.end)
