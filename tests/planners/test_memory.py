"""Memory in closed form beside the peaks of replays."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners.estimate.memory import (
    RangeBytes,
    _last_within,
    copied_bytes,
    furthest_ends,
    given_lack_room,
    least_excess,
    least_in_flight,
    least_needed,
    most_bytes,
    most_held,
    most_in_flight,
    range_bytes,
    reaches_the_end,
    room_for_stashes,
)
from planners.search.candidates import straight_plan
from simulator import (
    LayerCosts,
    Plan,
    PlanCosts,
    Problem,
    Recompute,
    Stage,
    build_schedule,
    gradient_in_work,
    least_group,
    load_workload,
    simulate,
)
from simulator.workloads.language_models import Gpt
from simulator.workloads.synthetic import uniform_chain

NETWORKS = Gpt(4, 256, 8, 128, 1000).workload(), load_workload("alexnet"), load_workload("resnet50")


def random_pipeline(choose: random.Random) -> tuple[Problem, Plan]:
    """A straight pipeline on four GPUs with any recompute policy, any width of numbers, and one or two chunks per device."""
    workload = choose.choice(NETWORKS)
    wide = choose.random() < 0.5
    problem = Problem(
        workload,
        load_cluster("dgx-a100:1").take(4),
        batch=24,
        precision="bf16" if wide else "fp32",
        optimizer=choose.choice(("sgd", "momentum", "adam")),
        recompute=choose.choice(("none", "whole", *(("blocks", "attention") if workload is NETWORKS[0] else ()))),
        gradient_bytes=4 if wide and choose.random() < 0.7 else 0,
    )
    schedule = choose.choice(("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b"))
    chunks = 2 if schedule == "interleaved-1f1b" else 1
    ranks = choose.randint(2, 4)
    cuts = sorted(choose.sample(range(1, len(workload)), ranks * chunks - 1))
    return problem, straight_plan("", problem, schedule, cuts, tuple(range(ranks)) * chunks, choose.choice((4, 8, 12)))


@pytest.mark.parametrize("seed", range(4))
def test_room_is_what_weights_gradients_and_states_of_a_replay_leave(seed: int) -> None:
    """To the byte, and less by what a backward makes again."""
    problem, plan = random_pipeline(random.Random(seed))
    bounds = [*(stage.layers[0] for stage in plan.stages), len(problem.workload)]
    ranks = len(plan.stages) // plan.chunks
    held = [list(pairwise(bounds))[rank::ranks] for rank in range(ranks)]
    room = room_for_stashes(LayerCosts(problem), range(ranks), held, np.full(ranks, 7.0))
    for memory, left in zip(simulate(problem, plan).memory, room, strict=False):
        states = sum(memory.peak_parts[name] for name in ("weights", "gradients", "optimizer"))
        assert left == memory.capacity_bytes - states - 7.0


@pytest.mark.parametrize("seed", [*range(7), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(7, 14))])
def test_stages_need_the_peaks_of_replays_but_for_buffers_of_transfers(seed: int) -> None:
    """What the closed form says is there at the peak of every device, and beside it nothing but boundary tensors."""
    problem, plan = random_pipeline(random.Random(seed))
    costs = LayerCosts(problem)
    stages = range_bytes(costs)
    bounds = [*(stage.layers[0] for stage in plan.stages), len(problem.workload)]
    ranks, samples = len(plan.stages) // plan.chunks, plan.microbatches[0]
    begin, end = np.array(bounds[:-1]), np.array(bounds[1:])
    options = {"chunks": plan.chunks} if plan.chunks > 1 else {}
    order = build_schedule(plan.schedule, len(plan.stages), len(plan.microbatches), **options)
    held, flight = most_held(order, stages.stashed(begin, end) * samples)
    outcome = simulate(problem, plan)
    for rank, memory in enumerate(outcome.memory[:ranks]):
        own = range(rank, len(plan.stages), ranks)
        once = [float(stages.made[bounds[n], bounds[n + 1]] * samples) for n in own]
        in_work = max(float(stages.in_work[bounds[n], bounds[n + 1]]) for n in own)
        states = costs.range_elements([(bounds[n], bounds[n + 1]) for n in own]) * costs.member.state_bytes
        sure = states + float(held[rank]) + in_work
        # bytes of a sample are rounded up by stage and by part
        rounded = 64.0 * samples * len(plan.microbatches)
        buffers = float(memory.bytes[:, -1].max())
        assert sure <= memory.peak_bytes * (1 + 1e-12)
        assert memory.peak_bytes <= sure + max(once) + buffers + rounded
        if plan.chunks == 1:
            in_flight = (flight * samples).tolist()
            here = bounds[rank], bounds[rank + 1]
            needed = float(stages.needed(*here, in_flight[rank], samples) + copied_bytes(costs, *here))
            assert needed <= memory.peak_bytes * (1 + 1e-12)
            for room, fits in ((needed, True), (needed - rounded, False)):
                device = replace(problem.cluster.devices[0], memory_bytes=room)  # type: ignore[type-var]
                cluster = replace(problem.cluster, devices=(device,) * 4)
                small = LayerCosts(replace(problem, cluster=cluster))
                reach = furthest_ends(small, range(ranks), samples, in_flight)
                assert (reach[rank, bounds[rank]] >= bounds[rank + 1]) == fits


@pytest.mark.parametrize("seed", range(6))
def test_a_stage_holds_its_weights_and_copies_of_tied_ones(seed: int) -> None:
    """Of any first and last layer: with no sample in flight, weights, gradients and states of its layers and of its copies."""
    choose = random.Random(seed)
    costs = LayerCosts(random_pipeline(choose)[0])
    every, layers = range_bytes(costs), len(costs.parameters)
    for begin, end in (sorted(choose.sample(range(layers + 1), 2)) for _ in range(20)):
        states = costs.range_elements([(begin, end)]) * costs.member.state_bytes
        assert every.held(begin, end, 0) + copied_bytes(costs, begin, end) == pytest.approx(states)


@pytest.mark.parametrize("word", ["none", "blocks"])
def test_gradients_in_work_of_ranges_are_those_of_their_stages(word: Recompute) -> None:
    """A shape that two layers of a stage have counts once, whatever stage they are in."""
    problem = Problem(NETWORKS[0], load_cluster("dgx-a100:1"), 4, precision="bf16", gradient_bytes=4, recompute=word)
    costs = LayerCosts(problem)
    stages, layers = range_bytes(costs), len(problem.workload)
    for begin, end in ((0, layers), (0, 3), (2, 12), (7, 30), (layers - 1, layers)):
        assert stages.in_work[begin, end] == gradient_in_work(costs, range(begin, min(end, layers)), word)
    assert stages.in_work[0, layers] > 0.0
    assert all(stages.in_work[one, two] <= stages.in_work[0, two] for one, two in pairwise(range(layers)))


@pytest.mark.parametrize(("ranks", "chunks", "rounds"), [(1, 1, 3), (4, 1, 2), (2, 2, 3), (4, 3, 1), (3, 4, 5)])
@pytest.mark.parametrize("more", [0, 1])
def test_lines_of_micro_batches_in_flight_bound_what_schedules_hold(
    ranks: int, chunks: int, rounds: int, more: int
) -> None:
    """Ranks of stages with 5 blocks each, with a block less in any one stage, and with any number in one stage."""
    schedule = build_schedule(
        "interleaved-1f1b" if chunks > 1 else "1f1b",
        ranks * chunks,
        count := ranks * rounds + more,
        **({"chunks": chunks} if chunks > 1 else {}),
    )
    alike, fewest, less = least_in_flight(np.arange(ranks), ranks, chunks, count, least_group(count, ranks))
    for short, chunk in itertools.product((0, 1, 2, 5), range(chunks)):
        blocks = np.full((chunks, ranks), 5.0)
        blocks[chunk] -= short
        held, total = most_held(schedule, blocks.reshape(-1))[0], blocks.sum(axis=0)
        assert (held >= fewest * total).all()
        if short < 2:
            assert (held >= alike * total + (less if chunks > 1 else 0.0) * short).all()
        if not short:
            assert held == pytest.approx(alike * total)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 12))])
def test_no_device_holds_more_than_the_most_of_its_stage(seed: int) -> None:
    """Also of stages with unequal numbers of replicas, whose parts of a micro-batch are no whole parts of each other."""
    choose = random.Random(seed)
    problem, plan = random_pipeline(choose)
    held = sorted(choose.sample(range(1, 8), len(plan.stages) - 1))
    rows = [tuple(range(*ends)) for ends in pairwise([0, *held, 8])]
    stages = tuple(replace(stage, devices=row) for stage, row in zip(plan.stages, rows, strict=True))
    schedule = choose.choice(("gpipe", "1f1b", "eager-1f1b"))
    sizes = choose.choice(((5, 5, 5, 5, 4), (8, 8, 8), (24,)))
    plan = Plan("", schedule, stages, sizes)
    problem = replace(problem, cluster=load_cluster("dgx-a100:1"), recompute=choose.choice(("none", "whole")))
    flights = most_in_flight(build_schedule(schedule, len(stages), len(sizes))).tolist()
    most = most_bytes(PlanCosts(problem, plan), flights)
    peaks = {memory.device: memory.peak_bytes for memory in simulate(problem, plan).memory}
    for row, bytes_of_stage in zip(rows, most, strict=True):
        assert max(peaks[device] for device in row) <= bytes_of_stage


@pytest.mark.parametrize("seed", range(8))
def test_what_a_plan_needs_at_least_is_what_its_fullest_stage_keeps(seed: int) -> None:
    """Weights, gradients and states of its layers, but for copies of tied weights, and what its micro-batches in flight keep on
    the replica with the most samples of the smallest one; given cuts lack room where a stage needs more than all it has."""
    choose = random.Random(seed)
    problem, plan = random_pipeline(choose)
    ends = [0, *sorted(choose.sample(range(1, 8), len(plan.stages) - 1)), 8]
    stages = tuple(
        replace(stage, devices=tuple(range(*pair))) for stage, pair in zip(plan.stages, pairwise(ends), strict=True)
    )
    schedule = choose.choice(("gpipe", "1f1b", "eager-1f1b"))
    plan = Plan("", schedule, stages, choose.choice(((5, 5, 5, 5, 4), (8, 8, 8), (24,))))
    problem = replace(problem, cluster=load_cluster("dgx-a100:1"), recompute=choose.choice(("none", "whole")))
    costs = LayerCosts(problem)
    bytes_of, needed = range_bytes(costs), []
    flights = most_in_flight(build_schedule(schedule, len(stages), len(plan.microbatches)))
    for stage, flight in zip(stages, flights.tolist(), strict=True):
        begin, end = stage.layers[0], stage.layers[-1] + 1
        states = float(costs.parameters[begin:end].sum()) * costs.member.state_bytes
        samples = -(-min(plan.microbatches) // len(stage.devices))
        needed.append(states + flight * samples * float(bytes_of.stashed(begin, end)))
    found, fullest = least_needed(costs, plan), int(np.argmax(needed))
    assert found is not None
    assert found.peak_bytes == pytest.approx(max(needed), rel=1e-8)
    assert found.peak_bytes <= max(needed)
    assert (found.device, found.capacity_bytes) == (stages[fullest].devices[0], problem.room_bytes(0))
    assert least_excess(costs, plan) == max(0.0, found.peak_bytes / found.capacity_bytes - 1.0)
    assert least_needed(costs, replace(plan, zero=1)) is None
    assert least_needed(costs, replace(plan, schedule="zb-h1")) is None
    bounds = np.array([*(stage.layers[0] for stage in stages), len(problem.workload)])
    in_flight = flights * 3
    most = max(
        float(bytes_of.needed(begin, end, flight, 3) + copied_bytes(costs, begin, end))
        for (begin, end), flight in zip(pairwise(bounds.tolist()), in_flight.tolist(), strict=True)
    )
    for share, lacks in ((1.0, False), (1.0 - 1e-6, True)):
        devices = tuple(replace(one, memory_bytes=most * share) for one in problem.cluster.devices)  # type: ignore[type-var]
        small = LayerCosts(replace(problem, cluster=replace(problem.cluster, devices=devices)))
        assert given_lack_room(small, range(len(stages)), 3, in_flight, bounds) == lacks


@pytest.mark.parametrize("seed", range(6))
def test_how_far_stages_reach(seed: int) -> None:
    """Any stage from any layer that the one before may at most end at: as far as its device has room for all that it needs."""
    rng, layers, stages = np.random.default_rng(seed), 7, 3

    def rising(*shape: int) -> Any:
        """Whole numbers that rise along the last axis, from 0 on."""
        return np.cumsum(np.append(np.zeros((*shape[:-1], 1)), rng.integers(0, 4, shape), axis=-1), axis=-1)

    entering = np.repeat(rng.integers(0, 3, layers + 1).astype(float)[:, None], layers + 1, axis=1)
    made, places = [rising(layers + 1, layers) for _ in range(2)], np.unique([0, *rng.integers(1, layers, 4), layers])
    ends = np.array([max(place for place in places if place <= end) for end in range(layers + 1)])
    every = RangeBytes(rising(layers), rising(layers), entering, *made, ends)
    in_flight, reaches = np.array([3.0, 2.0, 1.0]), set[bool]()
    for room in rng.integers(10, 70, (20, stages)).astype(float):
        reached = 0
        for stage in range(stages):
            fits = [
                end
                for begin in range(reached + 1)
                for end in range(begin, layers + 1)
                if every.states[end]
                - every.states[begin]
                + (every.kept[end] - every.kept[begin] + entering[begin, end]) * in_flight[stage]
                + every.made[begin, end] * 2.0
                + every.in_work[begin, end]
                <= room[stage]
            ]
            reached = int(ends[max([reached, *fits])])
        assert reaches_the_end.py_func(every, room, 2.0, in_flight) == (reached == layers)
        reaches.add(reached == layers)
    assert reaches == {True, False}
    before, once = rising(stages, layers), rising(layers + 1, layers)
    room = rng.integers(0, 40, (stages, layers + 1)).astype(float)
    found = _last_within.py_func(before, room, once, entering, in_flight)
    for stage, begin in itertools.product(range(stages), range(layers + 1)):
        beside = once[begin] + entering[begin] * in_flight[stage]
        fits = [end for end in range(layers + 1) if before[stage, end] + beside[end] <= room[stage, begin]]
        assert found[stage, begin] == max(fits, default=-1)


@pytest.mark.parametrize(
    "own",
    [
        {"order": ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1")},
        {"forward_sizes": ((2, 2), (4,))},
        {"backward_sizes": ((2, 2), (4,))},
        {"recompute": ("whole", "none")},
        {"recomputed_blocks": (1, 1)},
        {"zero": 1},
        {"replication": "round-robin"},
        {"schedule": "zb-h1"},
        {"stages": (Stage((0, 2), (0,)), Stage((1, 3), (1,)))},
    ],
    ids=str,
)
def test_of_plans_of_another_form_the_least_is_not_known(own: dict[str, Any]) -> None:
    """It rules nothing out; nor does it on devices of unlike memory, whose rooms differ."""
    problem = Problem(load_workload("alexnet"), load_cluster("dgx-a100:1").take(2), 4)
    problem = replace(problem, workload=uniform_chain(4))
    plan = straight_plan("mine", problem, "1f1b", (2,), (0, 1), 2)
    costs = LayerCosts(problem)
    assert least_needed(costs, plan) is not None
    assert least_needed(costs, replace(plan, **own)) is None
    assert least_excess(costs, replace(plan, **own)) == 0.0
    first, second = problem.cluster.devices
    less = replace(second, memory_bytes=second.memory_bytes / 2)  # type: ignore[type-var]
    unlike = replace(problem, cluster=replace(problem.cluster, devices=(first, less)))
    assert least_needed(LayerCosts(unlike), plan) is None
