"""Pipeline × data grid: it finds the plan that neither straight pipelines nor data parallelism hold; options and memory."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hardware_profiles import Runs, Stack, load_cluster, load_stack
from planners import Evaluator, Request, make_plan, planner_entry
from planners.straight import grid
from planners.straight.grid import GridSearch, GridShape
from planners.testing import line
from simulator import InfeasiblePlanError, Plan, Problem, Stage, simulate, workload_from_spec
from simulator.workloads.language_models import Gpt
from simulator.workloads.synthetic import uniform_chain
from tests.chains import chain, random_chain
from tests.planners.conftest import seconds_of
from tests.simulator.test_lower_bound import _gpu, _switched


def _heavy(batch: int = 32) -> Problem:
    """Four layers of 1.6 GB state on eight devices of 3 GB: the whole network fits nowhere, and there are four stages at most."""
    network = chain([2e12] * 4, parameters=[10**8] * 4, output_elements=[1e4] * 4)
    devices = tuple(replace(_gpu(), memory_bytes=3e9) for _ in range(8))
    return Problem(network, _switched(devices), batch, optimizer="adam")


def search_of(problem: Problem, **asked: Any) -> GridSearch:
    """A search that has not begun."""
    return GridSearch(problem, Evaluator(problem), Request(**asked), "grid")


def test_more_devices_than_layers_are_replicas() -> None:
    """Straight pipelines use four of eight devices: two replicas of each stage take little more than half the time."""
    problem = _heavy()
    grid, straight = make_plan("pipeline-data", problem).plan, make_plan("greedy", problem).plan
    assert len(grid.devices) == 8
    assert set(grid.replicas) == {2}
    assert simulate(problem, grid).fits
    assert simulate(problem, grid).iteration_seconds < 0.65 * simulate(problem, straight).iteration_seconds


@pytest.mark.slow
def test_slow_devices_are_left_idle() -> None:
    """Two devices at a tenth of the speed of two others: a ring or a pipeline over all waits for the slow ones."""
    workload = chain([1e11] * 4, parameters=[1_000_000] * 4, output_elements=[1e5] * 4)
    mixed = Problem(workload, _switched(tuple(_gpu(speed) for speed in (1.0, 1.0, 0.1, 0.1))), 16)
    for name in ("pipeline-data", "data-parallel", "uniform", "greedy", "bapipe", "brute-force"):
        assert make_plan(name, mixed).plan.devices == (0, 1), name


def test_stages_and_chunks_that_cannot_be_are_refused() -> None:
    """In one line that names the number and the rule; two things that are asked for together are both kept."""
    problem = Problem(uniform_chain(8), _switched((_gpu(),) * 4), 8)
    for name in ("uniform", "greedy", "pipeline-data"):
        plan = make_plan(name, problem, Request(stages=4, chunks=2, microbatches=4)).plan
        assert (len(plan.stages), plan.chunks) == (4, 2), name
    for name, request, said in (
        ("data-parallel", Request(stages=2), "it has no option 'stages'"),
        ("pipedream", Request(chunks=2), "it has no option 'chunks'"),
        ("uniform", Request(options={"candidates": "all"}), "it has no option 'candidates'"),
        ("uniform", Request(stages=9), "9 stages are more than the 8 layers"),
        ("uniform", Request(stages=5), "5 stages, 1 per GPU, are more than 4 GPUs hold"),
        ("greedy", Request(stages=5, chunks=2), "5 stages cannot be 2 per GPU"),
        ("greedy", Request(chunks=9), "9 stages per GPU are more than the 8 layers"),
        ("pipeline-data", Request(chunks=2, schedule="gpipe"), "schedule 'gpipe' has one stage per GPU, not 2"),
    ):
        reason = planner_entry(name).reason(problem, request)
        assert reason is not None
        assert said in reason
    with pytest.raises(ValueError, match="chunks of a Request must be a whole number of at least 1 or None, got 0"):
        Request(chunks=0)


POINTS = {
    "1f1b": GridShape("1f1b", ((0,), (1,), (2,), (3,)), 1, 8),
    "eager": GridShape("eager-1f1b", ((0,), (1,), (2,), (3,)), 1, 8),
    "two stages per device": GridShape("interleaved-1f1b", ((0,), (1,), (2,), (3,)), 2, 8),
    "three stages per device": GridShape("interleaved-1f1b", ((0,), (1,)), 3, 8),
    "two replicas": GridShape("1f1b", ((0, 1), (2, 3)), 1, 8),
    "four replicas": GridShape("1f1b", ((0, 1, 2, 3),), 1, 4),
}


@pytest.mark.parametrize("shape", POINTS.values(), ids=POINTS)
@pytest.mark.parametrize(
    ("elements", "parameters", "error"),
    [(1e4, 10**5, 0.01), (2e7, 10**5, 0.21), (1e4, 2 * 10**7, 0.025)],
    ids=["computation", "links that bind", "all-reduces"],
)
def test_a_quick_replay_is_close_to_the_replay(
    shape: GridShape, elements: float, parameters: int, error: float
) -> None:
    """Eight like layers on four devices: quick replays are never above, 21 % below where links bind, 3 % at most elsewhere."""
    network = chain([2e10] * 8, parameters=[parameters] * 8, output_elements=[elements] * 8)
    problem = Problem(network, _switched((_gpu(),) * 4), 32)
    evaluate = Evaluator(problem)
    search = search_of(problem)
    candidate = search.candidate(shape)
    assert candidate is not None
    plan = search.plan(candidate)
    assert (1.0 - error) * evaluate(plan).iteration_seconds <= candidate.seconds <= evaluate(plan).iteration_seconds
    fullest = max(memory.peak_parts["activations"] for memory in simulate(problem, plan).memory)
    width = 2.0 * problem.element_bytes + problem.optimizer_bytes
    held = 8 * parameters * width / len(shape.groups)
    assert candidate.fullest * _gpu().memory_bytes == pytest.approx(held + fullest, rel=1e-9)
    if 8 % shape.stages == 0:  # the fullest is what a rank of like layers needs, of which a tenth may be missing
        for slack, room in ((1e-9, True), (-1e-9, False)):
            device = replace(_gpu(), memory_bytes=(held + fullest) / 1.1 * (1.0 + slack))
            assert search_of(replace(problem, cluster=_switched((device,) * 4))).has_room(shape) == room
    # No shape beats its balance at will; alone, where nothing is sent, it attains it.
    assert search.at_best(shape) <= candidate.seconds
    if elements < 1e5 and parameters < 10**6 and len(shape.groups) == 1:
        assert search.at_best(shape) == pytest.approx(candidate.seconds, rel=error)


@pytest.mark.parametrize("seed", range(4))
def test_no_shape_of_random_problems_is_faster_than_at_best(seed: int) -> None:
    """Unlike layers and micro-batches, devices of two kinds, replicas that reduce a lot on links that are shared, or are not."""
    rng = random.Random(seed)
    layers = random_chain(7, np.random.default_rng(seed), flop=10.0 ** rng.uniform(9, 11), parameters=3_000_000)
    problem = Problem(
        layers,
        load_cluster(rng.choice(["dapple-c:4", "pipedream-a:1", "sailor-mit-4"])).take(4),
        rng.choice([6, 8, 24]),
        contention=seed % 2 == 0,
        gradient_reduction=rng.choice(["buckets", "whole"]),
    )
    search = search_of(problem)
    shapes = rng.sample([*search.shapes()], 60)
    found = [(shape, search.candidate(shape)) for shape in shapes]
    assert all(one is None or search.at_best(shape) <= one.seconds * (1.0 + 1e-12) for shape, one in found)
    assert sum(one is not None for _, one in found) > 20


@pytest.mark.parametrize("seed", range(3))
def test_where_replicas_divide_unevenly_at_best_is_below_replays(seed: int) -> None:
    """Of devices of two kinds, the last of which may be the faster one, and has most samples."""
    rng = random.Random(seed)
    layers = random_chain(7, np.random.default_rng(seed), flop=10.0 ** rng.uniform(9, 11), parameters=10_000)
    problem = Problem(layers, _switched((_gpu(0.2), _gpu(), _gpu(0.2), _gpu())), rng.choice([7, 9, 11, 13]))
    search, evaluate = search_of(problem), Evaluator(problem)
    shapes = rng.sample([shape for shape in search.shapes() if shape.replicas > 1], 30)
    found = [(shape, search.candidate(shape)) for shape in shapes]
    seconds = [(search.at_best(shape), evaluate(search.plan(one)).iteration_seconds) for shape, one in found if one]
    assert len(seconds) > 10
    assert all(least <= took * (1.0 + 1e-12) for least, took in seconds)


def test_stages_of_one_device_reduce_beside_each_other() -> None:
    """On links that nothing is shared on, four stages on the same devices are faster than any that lie apart."""
    cluster = load_cluster("dapple-c:4")
    problem = Problem(uniform_chain(4), cluster, 24, gradient_reduction="whole", contention=False)
    every, one = (seconds_of("pipeline-data", problem, request) for request in (Request(), Request(stages=3)))
    assert every < 0.9 * one


def test_few_points_are_replayed() -> None:
    """Quick replays leave a dozen of hundreds of shapes to the replay."""
    assert make_plan("pipeline-data", _heavy()).evaluations <= 12


@pytest.mark.slow
def test_no_part_of_the_grid_is_faster_than_all_of_it() -> None:
    """BERT-large on four servers of four devices, where transfers share a slow link: a shape was 20 % faster when asked for."""
    problem = Problem(
        workload_from_spec("bert-large", None), load_cluster("pipedream-a:4"), 64, precision="fp16", optimizer="adam"
    )
    every = make_plan("pipeline-data", problem).outcome.iteration_seconds
    asked = Request(stages=16, chunks=2, microbatches=8)
    assert every <= make_plan("pipeline-data", problem, asked).outcome.iteration_seconds


@pytest.mark.slow
def test_llama_on_64_devices() -> None:
    """Llama-2 7B, 512 samples on eight DGX-A100: PP4 × DP16 with 32 micro-batches takes 10.48 s; the grid finds no slower one."""
    problem = Problem(
        workload_from_spec("llama2-7b", None), load_cluster("dgx-a100:8"), 512, precision="bf16", optimizer="adam"
    )
    outcome = make_plan("pipeline-data", problem).outcome
    assert outcome.fits
    assert outcome.iteration_seconds < 10.48


def test_many_equal_stages_are_counted() -> None:
    """Nine stages of two replicas are `9x2`, not nine numbers; unequal ones keep theirs."""
    stages = tuple(Stage((number,), (2 * number, 2 * number + 1)) for number in range(9))
    assert Plan("test", "1f1b", stages, (1,)).notation == "9x2"
    assert Plan("test", "1f1b", stages[:8], (1,)).notation == "2-2-2-2-2-2-2-2"
    assert Plan("test", "1f1b", (*stages[:8], Stage((8,), (16,))), (1,)).notation == "2-2-2-2-2-2-2-2-1"


def test_numbers_of_microbatches_of_the_grid() -> None:
    """All of few samples; of a large batch those with 1, 2, 3, 4, 6, 8, ... samples of a micro-batch; the one asked for."""
    problem = replace(_heavy(), batch=12)
    for one, asked, counts in (
        (problem, None, {*range(1, 13)}),
        (replace(problem, batch=72), None, {1, 2, 3, 5, 6, 9, 12, 18, 24, 36, 72}),
        (problem, 5, {5}),
    ):
        assert {shape.microbatches for shape in search_of(one, microbatches=asked).shapes()} == counts


def test_transfers_that_share_a_channel_take_turns() -> None:
    """Two replicas of each stage, a server a stage: both send over the servers' one link, which is busy twice as long."""
    problem = Problem(uniform_chain(6), load_cluster("pipedream-a").take(8), 8)
    shapes = GridShape("1f1b", ((0,), (4,)), 1, 8), GridShape("1f1b", ((0, 1), (4, 5)), 1, 4)
    for contention, times in ((True, 2.0), (False, 1.0)):
        asked = replace(problem, contention=contention)
        search = search_of(asked)
        alone, crowded = (search.partition_costs(shape).link_seconds for shape in shapes)
        assert crowded == pytest.approx(times * alone)
        assert alone.any() == contention


def test_points_come_by_their_quick_replays_however_their_stages_share_a_device() -> None:
    """By rising seconds, those that fit with equal shares of a device for its stages, and those that fit with others only."""
    network = chain([2e12] * 4, parameters=[2 * 10**8, 5 * 10**7, 10**8, 5 * 10**7], stashed_elements=[2e7] * 4)
    problem = Problem(network, _switched((replace(_gpu(), memory_bytes=6e9),) * 4), 4, optimizer="adam")
    search = search_of(problem)
    found = [one for one in search.candidates() if one.fullest <= 1.0]
    even = [search.candidate(one.shape, search.equal_shares(one.shape)) for one in found]
    assert {one is None or one.fullest > 1.0 for one in even} == {True, False}
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)


@pytest.mark.parametrize(
    ("recompute", "together", "first"),
    [(False, 48e6 + 384e6, 24e6 + 2 * 192e6), (True, 48e6, 24e6 + 192e6 + 2 * 14.4e6)],
)
def test_room_is_judged_as_if_layers_were_alike(
    recompute: bool, together: float, first: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four layers a device, 12 MB of weights and, for two samples, 96 MB of activations each; the first holds two.

    Recomputed, a micro-batch leaves its input only, on the mean of all cuts 3/5 of 24 MB, and one is made again. All devices
    together hold the weights and one micro-batch; the first may be a tenth too small.
    """
    network = chain([2e10] * 4, parameters=[10**6] * 4, output_elements=[3e6] * 4, stashed_elements=[1.2e7] * 4)
    shape = GridShape("1f1b", ((0,), (1,)), 1, 4)
    for memory_bytes, fits, room in (
        (together / 2, True, False),
        (together / 2 - 1.0, False, False),
        (first / 1.1 + 1.0, True, True),
        (first / 1.1 - 1.0, True, False),
    ):
        devices = (replace(_gpu(), memory_bytes=memory_bytes),) * 2
        problem = Problem(network, _switched(devices), 8, optimizer="momentum", recompute=recompute)
        search = search_of(problem)
        assert (search.may_fit(shape), search.has_room(shape)) == (fits, room)
    monkeypatch.setattr(grid, "UNLIKE_LAYERS", 0.0)
    for memory_bytes in (first, first - 1.0):
        devices = (replace(_gpu(), memory_bytes=memory_bytes),) * 2
        problem = Problem(network, _switched(devices), 8, optimizer="momentum", recompute=recompute)
        assert search_of(problem).has_room(shape) == (memory_bytes == first)


@pytest.mark.parametrize("recompute", [False, True])
def test_stages_of_a_device_share_its_memory_by_what_each_needs(recompute: bool) -> None:
    """Three like stages on a device that just holds them: each leaves so much free that what it needs alone is left.

    Recomputed, what backward makes again counts for each stage, and once for all of them.
    """
    network = chain([2e10] * 6, parameters=[10**6] * 6, output_elements=[3e6] * 6, stashed_elements=[1.2e7] * 6)
    problem = Problem(network, _switched((_gpu(),) * 2), 8, optimizer="momentum", recompute=recompute)
    search = search_of(problem)
    shape = GridShape("interleaved-1f1b", ((0,), (1,)), 3, 4)
    again, kept = (96e6, 24e6 * 5 / 7) if recompute else (0.0, 96e6)
    spare = search.equal_shares(shape)
    in_flight, most = search.most_held(shape)
    for stage, alone in enumerate(most.tolist()):
        together = 3 * 12e6 + kept * in_flight[stage % 2] + again
        assert _gpu().memory_bytes - spare[stage] == pytest.approx(
            _gpu().memory_bytes * (12e6 + kept * alone + again) / together
        )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"1f1b": {1}, "eager-1f1b": {1}, "interleaved-1f1b": {2, 3, 4}}),
        ({"chunks": 1}, {"1f1b": {1}, "eager-1f1b": {1}, "interleaved-1f1b": {1}}),
        ({"chunks": 2}, {"interleaved-1f1b": {2}}),
        ({"chunks": 5}, {"interleaved-1f1b": {5}}),
        ({"schedule": "gpipe"}, {"gpipe": {1}}),
        ({"schedule": "gpipe", "chunks": 1}, {"gpipe": {1}}),
        ({"schedule": "looped-bfs"}, {"looped-bfs": {1, 2, 3, 4}}),
        ({"schedule": "looped-bfs", "chunks": 3}, {"looped-bfs": {3}}),
    ],
    ids=str,
)
def test_points_have_the_schedules_and_the_stages_a_device_that_are_asked_for(
    asked: dict[str, Any], expected: dict[str, set[int]]
) -> None:
    """Of ten layers on two devices: only looped schedules put several stages on a device, one only where that is asked for."""
    problem = Problem(uniform_chain(10), _switched((_gpu(),) * 2), 4)
    found: dict[str, set[int]] = {}
    for shape in search_of(problem, **asked).shapes():
        found.setdefault(shape.schedule, set()).add(shape.chunks)
        assert shape.stages <= 10
        assert {count for group in shape.groups for count in group} <= {0, 1}
    assert found == expected


def test_points_are_what_the_stack_runs() -> None:
    """One of the schedules, and no pipeline: nor several stages on one device."""
    problem = Problem(uniform_chain(10), _switched((_gpu(),) * 2), 4)
    for runs, expected in (
        (Runs(schedules=("gpipe", "1f1b")), {("1f1b", 1), ("1f1b", 2)}),
        (Runs(pipeline=False), {("1f1b", 1), ("eager-1f1b", 1)}),
    ):
        shapes = search_of(replace(problem, stack=Stack(name="less", runs=runs))).shapes()
        assert {(one.schedule, len(one.groups)) for one in shapes} == expected


@pytest.mark.parametrize(
    ("stack", "workload", "cluster", "batch", "asked"),
    [
        ("megatron-core", "chain:6", "dapple-c:6", 24, {"schedule": "interleaved-1f1b"}),
        ("megatron-core", "chain:6", "dapple-c:6", 24, {"chunks": 1}),
        ("fsdp2-eager", "bert-base", "sailor-mit-2", 33, {"schedule": "eager-1f1b"}),
    ],
)
def test_what_the_stack_does_not_run_takes_no_patience(
    stack: str, workload: str, cluster: str, batch: int, asked: dict[str, Any]
) -> None:
    """A part of the grid is no faster than all of it where many points have micro-batches of unlike sizes, or loop once."""
    problem = Problem(
        workload_from_spec(workload, None),
        load_cluster(cluster),
        batch,
        optimizer="sgd",
        gradient_reduction="whole",
        memory_reserve=0.5,
        stack=load_stack(stack),
    )
    every, part = (seconds_of("pipeline-data", problem, request) for request in (Request(), Request(**asked)))
    assert every <= part * (1.0 + 1e-9)


def test_it_says_what_the_stack_does_not_run() -> None:
    """Where no point is one that it runs, in one line."""
    problem = Problem(uniform_chain(6), load_cluster("dapple-c:4"), 33, stack=load_stack("megatron-core"))
    for asked, words in (
        ({"microbatches": 7}, r"it has no micro-batches of unlike sizes \(4, 5\)"),
        (
            {"schedule": "interleaved-1f1b", "chunks": 1, "stages": 3},
            "schedule interleaved-1f1b with one stage per device",
        ),
        ({"chunks": 2, "stages": 2}, "several stages on devices that hold the whole network"),
    ):
        with pytest.raises(InfeasiblePlanError, match=words):
            make_plan("pipeline-data", problem, Request(**asked))


def test_groups_of_unlike_devices_are_of_no_kind() -> None:
    """Of four devices the second is slow: its pair stands beside the other, and is not among the fast ones."""
    problem = Problem(Gpt(2, 8, 2, 4, 10).workload(), line(speeds=(1.0, 0.5, 1.0, 1.0)), 1)
    search = GridSearch(problem, Evaluator(problem), Request(schedule="1f1b", stages=1), "grid", grid.GroupDivision(2))
    assert [one.groups for one in search.shapes()] == [((0,),), ((2,),)]


@pytest.mark.parametrize(
    ("batch", "microbatches", "ranks", "replicas"),
    [
        (8, None, 1, {7, 4, 2, 1}),
        (8, None, 2, {3, 2, 1}),
        (8, None, 7, {1}),
        (5, None, 1, {5, 4, 2, 1}),
        (1, None, 2, {1}),
        (8, 4, 1, {2}),
        (8, 8, 2, {1}),
        (15, 5, 2, {3, 2}),
    ],
)
def test_replicas_are_as_many_as_devices_and_samples_permit(
    batch: int, microbatches: int | None, ranks: int, replicas: set[int]
) -> None:
    """On seven devices: the most with a sample of each micro-batch for every replica, and the power of two below."""
    problem = Problem(uniform_chain(8), _switched((_gpu(),) * 7), batch)
    asked = search_of(problem, schedule="1f1b", stages=ranks, microbatches=microbatches)
    found = {shape.groups for shape in asked.shapes()}
    assert {len(groups[0]) for groups in found} == replicas
    for count in replicas:
        beside = tuple(tuple(range(rank * count, rank * count + count)) for rank in range(ranks))
        apart = tuple(tuple(range(rank, ranks * count, ranks)) for rank in range(ranks))
        assert {groups for groups in found if len(groups[0]) == count} == {beside, apart}


@pytest.mark.parametrize(
    ("layers", "reach"), [(2.0, ([1, 2, 3, 4, 4], [2, 3, 4, 4, 4])), (4.0, ([2, 3, 4, 4, 4], [4, 4, 4, 4, 4]))]
)
def test_cuts_keep_stages_within_what_they_have_in_flight(layers: float, reach: tuple[list[int], list[int]]) -> None:
    """Two samples a micro-batch: a layer takes 12 MB of weights and 96 MB for each of two micro-batches, then of one.

    On a device that holds so many layers of the last stage, each stage may reach from every layer as far as that.
    """
    network = chain([2e10] * 4, parameters=[10**6] * 4, stashed_elements=[1.2e7] * 4)
    devices = (replace(_gpu(), memory_bytes=layers * 108e6),) * 2
    problem = Problem(network, _switched(devices), 8, optimizer="momentum")
    search = search_of(problem)
    furthest = search.partition_costs(GridShape("1f1b", ((0,), (1,)), 1, 4)).furthest
    assert furthest is not None
    assert tuple(furthest.tolist()) == reach


def test_recomputing_stages_hold_their_inputs_and_one_stash() -> None:
    """Two of eight layers a stage, four samples: 24 MB of weights, 2 x 192 MB made again, and 48 MB for each input in flight.

    The first stage's input is nothing, so that the second, with three in flight, is the fullest.
    """
    network = chain([2e10] * 8, parameters=[10**6] * 8, output_elements=[3e6] * 8, stashed_elements=[1.2e7] * 8)
    problem = Problem(network, _switched((_gpu(),) * 4), 32, optimizer="momentum", recompute=True)
    candidate = search_of(problem).candidate(POINTS["1f1b"])
    assert candidate is not None
    assert candidate.cuts == (2, 4, 6)
    assert candidate.fullest * _gpu().memory_bytes == pytest.approx(24e6 + 384e6 + 3 * 48e6)


def _language() -> Problem:
    """A GPT of 4 blocks on servers of eight and of four GPUs."""
    return Problem(Gpt(2, 256, 8, 128, 1000).workload(), load_cluster("dgx-a100:2").take(12), 12, precision="fp16")


def test_tensor_parallel_groups_are_chosen_where_they_are_asked_for() -> None:
    """Every replica is a group of neighbours in one server; several degrees are no slower than one of them."""
    problem = replace(_language(), batch=2)
    found = {
        asked: make_plan("pipeline-data", problem, Request(options={"tensor": asked})) for asked in ("2", "4", "2,4")
    }
    for asked, result in found.items():
        for group in (one for stage in result.plan.stages for one in stage.replicas):
            assert str(len(group)) in asked.split(",")
            assert len({problem.cluster.server_of(device) for device in group}) == 1
        assert result.outcome.fits
        assert result.bound <= result.outcome.iteration_seconds
    seconds = {asked: result.outcome.iteration_seconds for asked, result in found.items()}
    assert seconds["2,4"] == min(seconds.values())


def test_replicas_divide_states_where_that_is_asked_for() -> None:
    """A network whose states fit on no device alone, in replicas that hold a part of the optimizer's each."""
    problem = _heavy()
    roomy = replace(problem, batch=64, workload=replace(problem.workload, layers=problem.workload.layers[:1], edges=()))
    tight = replace(roomy, cluster=_switched((replace(_gpu(), memory_bytes=1.2e9),) * 4))
    with pytest.raises(InfeasiblePlanError):
        make_plan("pipeline-data", tight)
    result = make_plan("pipeline-data", tight, Request(options={"zero": "1"}))
    assert result.outcome.fits
    assert (result.plan.zero, result.plan.replicas) == (1, (4,))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tensor": "3"}, "inside one server unless tensor_groups says otherwise; choices: 1, 2, 4, 8"),
        ({"tensor": "two"}, "each is a whole number of at least 1, got 'two'"),
        ({"zero": "4"}, "zero must be one of 0, 1, 2, 3, got '4'"),
    ],
)
def test_divisions_that_cannot_be_are_refused(options: dict[str, str], said: str) -> None:
    """One line with the choices."""
    reason = planner_entry("pipeline-data").reason(_language(), Request(options=options))
    assert reason is not None
    assert said in reason
