"""Rules of placements in which a device holds stages of pipelines in opposite directions: time, memory, all-reduce, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator import (
    CATEGORIES,
    InfeasiblePlanError,
    LayerCosts,
    Op,
    OpKind,
    OpSeconds,
    Plan,
    Problem,
    build_program,
    build_schedule,
    check_schedule,
    from_text,
    given_costs,
    lower,
    simulate,
    stages_from_cuts,
)
from simulator.engines import reference as simpy_engine
from simulator.plan_replay import replay_compiled
from tests.chains import random_chain
from tests.simulator.strategies import bits, star_cluster


def opposite(stages: int, layers: int) -> tuple[Any, ...]:
    """Stage s on devices s and D - 1 - s, one pipeline each."""
    held = [(stage, stages - 1 - stage) for stage in range(stages)]
    return stages_from_cuts([layers // stages * cut for cut in range(1, stages)], layers, held)


def bidirectional(stages: int = 4, microbatches: int = 4, **changes: Any) -> tuple[Problem, Plan]:
    """Two layers a stage, and Chimera on as many devices; micro-batches of 2 samples."""
    layers = 2 * stages
    workload = random_chain(layers, np.random.default_rng(1), flop=1.0, parameters=1000)
    problem = Problem(workload, star_cluster(stages, bandwidth=1e5), 2 * microbatches, **changes)
    return problem, Plan("hand", "chimera", opposite(stages, layers), (2,) * microbatches, "round-robin")


@pytest.mark.parametrize(
    ("stages", "microbatches", "forward", "backward", "seconds"),
    [
        *[(d, d, 1.0, 2.0, d + 2.0 * (2 * d - 2)) for d in (2, 6, 8)],
        *[(d, n, 1.0, 1.0, 2.0 * n + d - 2) for d in (2, 4) for n in (d, 5 * d)],
    ],
)
def test_makespan_is_the_closed_form(
    stages: int, microbatches: int, forward: float, backward: float, seconds: float
) -> None:
    """N = D: D·F + (2D-2)·B; N = kD, B = F: 2N + D - 2. As published: bubble (D-2)/(3N/2+D-2) where B = 2F, (D-2)/(2N+D-2)."""
    schedule = build_schedule("chimera", stages, microbatches)
    check_schedule(schedule)
    program = lower(schedule, given_costs(stages, OpSeconds(forward, backward), devices=schedule))
    for timeline in (simpy_engine.replay(program), replay_compiled(program)):
        assert timeline.makespan_seconds == seconds
        published = (stages - 2) / ((1.5 if backward > forward else 2.0) * microbatches + stages - 2)
        assert timeline.bubble().idle_over_makespan == pytest.approx(published)


def test_ops_run_where_the_plan_puts_their_pipeline() -> None:
    """Micro-batches of the first half of a unit: stage s on device s; of the second half: on device D - 1 - s."""
    problem, plan = bidirectional(6, 12)
    timeline = simulate(problem, plan).timeline
    rows = timeline.compute() & (timeline.kind <= OpKind.WEIGHT_GRADIENT)
    stage, up = timeline.stage[rows], timeline.microbatch[rows] % 6 >= 3
    assert (timeline.device[rows] == np.where(up, 5 - stage, stage)).all()
    assert (timeline.replica[rows] == up).all()


def test_memory_is_the_sum_over_both_stages_of_a_device() -> None:
    """Weights, gradients, optimizer of both; activations as the device's own order of forwards and backwards adds them up."""
    problem, plan = bidirectional()
    outcome, costs = simulate(problem, plan), LayerCosts(problem)
    for device, memory in enumerate(outcome.memory):
        held = (device, 3 - device)
        weights = 4.0 * sum(problem.workload.layers[i].parameters for stage in held for i in plan.stages[stage].layers)
        columns = dict(zip(CATEGORIES, memory.bytes.T, strict=True))
        for category in ("weights", "gradients", "optimizer"):
            assert set(columns[category]) == {weights}
        live = most = 0.0
        for op in outcome.schedule.ops(device):
            kept = 2.0 * np.ceil(costs.stashed_bytes[list(plan.stages[op.stage].layers)].sum())
            live += kept if op.kind is OpKind.FORWARD else -kept
            most = max(most, live)
        assert columns["activations"].max() == most


@pytest.mark.parametrize(
    ("stages", "order"),
    [
        (((0, 3), (1, 2), (2, 1), (3, 0)), None),
        (((0, 1), (0, 2)), ("0F0 1F0 0F1 1B0 0B0 0B1", "0F2 0B2", "1F1 1F2 1B1 1B2")),
        (((0, 1), (0, 1)), ("0F0 1F0 0F1 1B0 0B0 1F2 1B2 0B1", "0F2 1F1 1B1 0B2")),
    ],
)
def test_bytes_moved_are_those_of_the_transfers(stages: Any, order: tuple[str, ...] | None) -> None:
    """What the timeline's transfers carry, where no weights are reduced: also where some micro-batches stay on a device."""
    count, sizes = len(stages), (2, 2, 2, 2) if order is None else (1, 5, 2)
    workload = random_chain(2 * count, np.random.default_rng(1), flop=1.0, parameters=0)
    problem = Problem(workload, star_cluster(4, bandwidth=1e5), sum(sizes))
    held = stages_from_cuts([2 * cut for cut in range(1, count)], 2 * count, stages)
    plan = Plan("hand", "chimera", held, sizes, "round-robin", order=order or ())
    outcome = simulate(problem, plan)
    moved = outcome.timeline.transfers.size_bytes.sum() / problem.batch
    assert outcome.bytes_per_sample == pytest.approx(moved)
    assert moved > 0


def test_gradients_are_summed_over_both_devices_before_the_update() -> None:
    """Each stage has an all-reduce that waits for the last backward on both of its devices, and both updates wait for it."""
    problem, plan = bidirectional()
    timeline = simulate(problem, plan).timeline
    for stage in range(4):
        own = timeline.stage == stage
        reduce = own & (timeline.kind == OpKind.REDUCE)
        update = own & (timeline.kind == OpKind.UPDATE)
        assert sorted(timeline.device[update]) == sorted(plan.stages[stage].devices)
        assert timeline.start[reduce].min() >= timeline.end[own & (timeline.kind == OpKind.BACKWARD)].max()
        assert timeline.start[update].min() >= timeline.end[reduce].max() > timeline.start[reduce].min()


def test_a_tied_weight_is_kept_once_where_a_device_holds_both_of_its_stages() -> None:
    """Devices 0 and 3 hold the first and the last stage, which share a weight: one copy each, one sum over the two devices."""
    problem, plan = bidirectional()
    first, *middle, last = problem.workload.layers
    last = replace(last, tied_to=first.name, tied_parameters=first.parameters)
    tied = replace(problem, workload=replace(problem.workload, layers=(first, *middle, last)))
    for own, with_tie in zip(simulate(problem, plan).memory, simulate(tied, plan).memory, strict=True):
        assert own.bytes[0, :2].tolist() == with_tie.bytes[0, :2].tolist()
    costs, _, _ = build_program(tied, plan)
    assert [(one.stages, costs.groups_of(one.stages)) for one in costs.tied_reductions] == [((0, 3), ((0,), (3,)))]


def test_devices_that_share_one_stage_of_several() -> None:
    """Device 0 runs stages 0 and 2, device 1 helps with stage 0 alone: each op is on its own device, and transfers count."""
    schedule = from_text("0F0 2F0 2B0 2F1 2B1 0B0\n0F1 0B1\n1F0 1F1 1B0 1B1")
    assert schedule.holders() == ((0, 1), (2,), (0,))
    program = lower(schedule, given_costs(3, OpSeconds(1.0, 2.0, transfer=0.5), devices=schedule))
    timeline = simpy_engine.replay(program)
    assert bits(timeline.start, replay_compiled(program).start)
    starts = {
        (int(d), str(Op(int(s), OpKind(int(k)), int(m)))): float(t)
        for d, s, k, m, t in zip(
            timeline.device, timeline.stage, timeline.kind, timeline.microbatch, timeline.start, strict=True
        )
    }
    assert starts[0, "0F0"] == starts[1, "0F1"] == 0.0
    assert starts[2, "1F0"] == 1.5
    assert starts[2, "1F1"] == 2.5
    assert starts[0, "2F0"] == 3.0
    assert starts[2, "1B0"] == 3.0 + 3.0 + 0.5
    assert starts[1, "0B1"] == starts[2, "1B1"] + 2.0 + 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"replication": "split"},
            (
                "schedule 'chimera' has 2 lists of ops of stage 0, which plan 'hand' puts on 2 devices, "
                "replication split"
            ),
        ),
        (
            {"stages": ((0,), (1,), (2,), (3,))},
            (
                "schedule 'chimera' has 2 lists of ops of stage 0, which plan 'hand' puts on 1 devices, "
                "replication round-robin"
            ),
        ),
        (
            {"stages": ((0, 3), (1, 2), (1, 2), (3, 0))},
            (
                r"schedule 'chimera' runs stages \[1, 2\] on one device, the plan puts stage 2 on device 1 "
                r"and stage 1 on device 2"
            ),
        ),
        (
            {"stages": ((0, 3), (1, 2), (2, 1), (0, 3))},
            (
                r"schedule 'chimera' runs stages \[0, 3\] on one device, the plan puts stage 3 on device 0 "
                r"and stage 0 on device 3"
            ),
        ),
        (
            {"stages": ((0, 3), (0, 3), (3, 0), (3, 0))},
            "device 0 of plan 'hand' holds stages that schedule 'chimera' runs on sev",
        ),
        (
            {"microbatches": (8,)},
            (
                "schedule 'chimera' has one list of ops of stage 0, which plan 'hand' puts on 2 devices, "
                "replication round-robin"
            ),
        ),
    ],
)
def test_a_placement_that_the_schedule_does_not_have_is_refused(changes: dict[str, Any], message: str) -> None:
    """Replicas of a stage are numbered by their first micro-batch, and a list of ops has one device for all of its stages."""
    problem, plan = bidirectional()
    if "stages" in changes:
        changes = {"stages": stages_from_cuts([2, 4, 6], 8, changes["stages"])}
    with pytest.raises(InfeasiblePlanError, match=message):
        simulate(problem, replace(plan, **changes))
