"""The search of straight pipelines: quick replays of cuts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from hardware_profiles import Runs, Stack, load_cluster
from planners import Evaluator, Request, make_plan
from planners.estimate.memory import (
    given_lack_room,
    in_flight_of,
    lacks_room,
    least_excess,
    may_have_room,
    most_in_flight,
    samples_in_flight,
    stage_begins,
)
from planners.partitioning import straight_search
from planners.partitioning.cut_moves import moved
from planners.partitioning.partition_costs import every_cuts, uniform_cuts
from planners.partitioning.straight_search import StraightShape, fastest_straight
from planners.search.quick_replay import QuickReplays, order_of
from simulator import Gpt, LayerCosts, Problem, equal_microbatches
from simulator.options.training_options import Communication
from tests.chains import chain, random_chain
from tests.planners.conftest import with_memory


@pytest.mark.parametrize("contention", [False, True])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_quick_replays_of_cuts_are_those_of_their_plans(schedule: str, contention: bool) -> None:
    """Of layers with weights and outputs of every size; two servers, so that links are unlike."""
    network = chain([1e9, 4e10, 2e10, 1e10], parameters=[10**6, 0, 10**7, 10**4], output_elements=[2e6, 1e2, 1e5, 1.0])
    problem = Problem(network, load_cluster("pipedream-a:2"), 24, contention=contention)
    shape = StraightShape(schedule, (2, 3, 4), 5)
    evaluate = Evaluator(problem)
    search = straight_search.CutSearch(evaluate, shape)
    every = list(combinations(range(1, 4), 2))
    seconds = search.quick(np.array(every))
    plans = QuickReplays(problem, evaluate.layer_costs)
    for cuts, found in zip(every, seconds.tolist(), strict=True):
        plan = search.plan("test", cuts)
        replayed = evaluate(plan).iteration_seconds
        assert found == pytest.approx(plans(plan), rel=5e-3)  # of updates it knows the least
        assert found <= replayed * (1.0 + 1e-9)
        assert contention or found == pytest.approx(replayed, rel=5e-3)


@pytest.mark.parametrize(
    "schedule", ["gpipe", "1f1b", "eager-1f1b", "1f1b-so", "1f1b-sno", "zb-h1", "interleaved-1f1b"]
)
def test_the_least_seconds_of_a_shape_hold_and_are_near(schedule: str) -> None:
    """Of layers alike, links free: with whole backwards devices take their turns, T = w / (1 - (1 - 1/m)^n), else m w / n."""
    devices = (0, 1, 2, 3) * (2 if schedule == "interleaved-1f1b" else 1)
    problem = Problem(chain([4e10] * 8), load_cluster("pipedream-a"), 16)
    evaluate = Evaluator(problem)
    search = straight_search.CutSearch(evaluate, StraightShape(schedule, devices, 8))
    least = search.least_seconds()
    for cuts in combinations(range(1, 8), len(devices) - 1):
        assert least <= evaluate(search.plan("test", cuts)).iteration_seconds
    network = float(evaluate.layer_costs.round_trip_seconds(0, 2).sum())
    turns = 1 - (1 - 1 / 8) ** 4 if schedule not in ("zb-h1", "interleaved-1f1b") else 4 / 8
    assert least == pytest.approx(network / turns)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_least_seconds_hold_where_weight_gradients_overlap(microbatches: int) -> None:
    """Fewer micro-batches than stages: a stage's weight gradients run beside the others' input gradients."""
    problem = Problem(chain([4e10] * 8, parameters=[10**6] * 8), load_cluster("pipedream-a"), 16)
    evaluate = Evaluator(problem)
    search = straight_search.CutSearch(evaluate, StraightShape("zb-h1", (0, 1, 2, 3), microbatches))
    seconds = [evaluate(search.plan("test", cuts)).iteration_seconds for cuts in combinations(range(1, 8), 3)]
    assert 0.0 < search.least_seconds() <= min(seconds)


def test_moves_by_replays_end_where_no_move_is_faster() -> None:
    """From the worst cuts, on links that several boundaries share."""
    network = chain([1e9, 4e10, 2e10, 1e10, 3e10], parameters=[10**6] * 5, output_elements=[2e6, 1e2, 1e5, 1e6, 1.0])
    problem = Problem(network, load_cluster("pipedream-a:2"), 24)
    evaluate = Evaluator(problem)
    search = straight_search.CutSearch(evaluate, StraightShape("1f1b", (2, 3, 4), 6))
    seconds = {cuts: evaluate(search.plan("test", cuts)).iteration_seconds for cuts in combinations(range(1, 5), 2)}
    found = search.replayed_moves(search.plan("test", max(seconds, key=seconds.__getitem__)))
    cuts = tuple(stage.layers[0] for stage in found.stages[1:])
    near = [tuple(one) for one in moved(np.array(cuts), np.arange(6), runs=True).tolist()]
    assert seconds[cuts] < max(seconds.values())
    assert seconds[cuts] == min(seconds[one] for one in [cuts, *near] if one in seconds)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "1f1b-sno", "eager-1f1b", "1f1b-so", "zb-h1"])
def test_micro_batches_in_flight_need_no_order(schedule: str) -> None:
    """Of more and fewer micro-batches than stages."""
    for stages, count in product(range(1, 6), range(1, 9)):
        order = order_of(schedule, stages, count, 1, ())
        assert in_flight_of(schedule, stages, count, lambda one=order: one).tolist() == most_in_flight(order).tolist()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_shapes_that_lack_room_have_no_cuts_that_fit(seed: int) -> None:
    """Of random layers and memory, micro-batches equal: what is ruled out, cuts alone or all of a shape, fits in no replay."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, (2, 6)) * 1e6
    network = chain([4e10] * 6, parameters=sizes[0].astype(int).tolist(), output_elements=sizes[1].tolist())
    memory, outcomes = float(rng.uniform(0.5e8, 6e8)), set[bool]()
    problem = with_memory(Problem(network, load_cluster("pipedream-a:1"), 8), memory)
    evaluate = Evaluator(problem)
    for schedule, stages, count in product(("gpipe", "1f1b", "1f1b-so"), range(1, 5), (1, 2, 4, 8)):
        search = straight_search.CutSearch(evaluate, StraightShape(schedule, tuple(range(stages)), count))
        samples, held = 8 // count, samples_in_flight(in_flight_of(schedule, stages, count), 8, count)
        fitting = {one: evaluate(search.plan("test", one)).fits for one in combinations(range(1, 6), stages - 1)}
        for one, fits in fitting.items():
            plan = search.plan("test", one)
            assert least_excess(evaluate.layer_costs, plan) <= evaluate(plan).key[0]
            bounds = np.array([0, *one, 6])
            assert not (fits and given_lack_room(evaluate.layer_costs, range(stages), samples, held, bounds))
        lacking = lacks_room(evaluate.layer_costs, range(stages), samples, held)
        quick = search.quick(np.array([*fitting], dtype=np.int64).reshape(len(fitting), stages - 1))
        assert all(seconds < np.inf for seconds, fits in zip(quick.tolist(), fitting.values(), strict=True) if fits)
        assert not (lacking and [*search.ranked(np.inf)])
        outcomes.add(lacking)
        assert not (lacking and any(fitting.values()))
        assert may_have_room(evaluate.layer_costs, schedule, tuple(range(stages)), count) is not lacking
    assert outcomes


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "1f1b-so"])
def test_where_the_smallest_micro_batches_lack_room_all_do(schedule: str) -> None:
    """Of random memory, and batches that micro-batches do not divide."""
    rng, told = np.random.default_rng(5), set[bool]()
    for _ in range(30):
        batch, stages = int(rng.integers(1, 14)), int(rng.integers(1, 5))
        network = chain([4e10] * 5, parameters=[10**6] * 5, output_elements=rng.integers(1, 9, 5) * 1e6)
        room = float(rng.uniform(0.5e8, 8e8))
        costs = LayerCosts(with_memory(Problem(network, load_cluster("pipedream-a:1"), batch), room))
        roomy = [may_have_room(costs, schedule, tuple(range(stages)), count) for count in range(1, batch + 1)]
        told.add(roomy[-1])
        assert roomy[-1] or not any(roomy)
    assert told == {False, True}


def test_beside_one_board_what_a_pipeline_holds_is_not_known() -> None:
    """Weights of four terabytes lack room on GPUs; one board among them streams its layers, which has a rule of its own."""
    gpus, boards = load_cluster("pipedream-a:1"), load_cluster("fpga-vcu118-4")
    network = chain([1e9] * 4, parameters=[10**12 // 4] * 4)
    for cluster, roomy in ((gpus, False), (replace(gpus, devices=(*boards.devices[:1], *gpus.devices[1:])), True)):
        costs = LayerCosts(Problem(network, cluster, 4))
        assert may_have_room(costs, "gpipe", (0, 1, 2, 3), 4) is roomy


@pytest.mark.parametrize("contention", [pytest.param(False, marks=pytest.mark.slow), True])
def test_of_given_cuts_the_fastest_is_found_and_few_are_replayed(contention: bool) -> None:
    """What cuts take at least is no more than their replay."""
    network = chain([1e9, 4e10, 2e10, 1e10], parameters=[10**6, 0, 10**7, 10**4], output_elements=[2e6, 1e2, 1e5, 1.0])
    problem = Problem(network, load_cluster("pipedream-a:1"), 11, contention=contention)
    evaluate, replayed = Evaluator(problem), Evaluator(problem)
    cuts = {stages: uniform_cuts(4, stages) for stages in range(1, 5)}
    every = [
        StraightShape(schedule, tuple(range(stages)), count)
        for schedule in ("1f1b", "gpipe")
        for stages in cuts
        for count in range(1, 12)
    ]
    found = straight_search.fastest_given("test", evaluate, every, cuts.__getitem__)
    seconds = []
    for one in (straight_search.CutSearch(replayed, shape) for shape in every):
        seconds.append(replayed(one.plan("test", cuts[one.stages])).iteration_seconds)
        assert one.least_of(cuts[one.stages]) <= seconds[-1]
    assert found is not None
    assert evaluate(found).iteration_seconds == min(seconds)
    assert evaluate.evaluations < len(every) / 10


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_of_unequal_micro_batches_may_fill_its_memory(schedule: str) -> None:
    """Seven samples in six micro-batches: what stages have in flight counts them as they are, not each as the largest."""
    problem = Problem(chain([4e10] * 6, output_elements=[2e7] * 6), load_cluster("pipedream-a"), 7)
    shape = StraightShape(schedule, (0, 1), 6)
    roomy = fastest_straight("test", Evaluator(problem), [shape])
    assert roomy is not None
    evaluate = Evaluator(with_memory(problem, Evaluator(problem)(roomy).peak_bytes * (1.0 + 1e-6)))
    found = fastest_straight("test", evaluate, [shape])
    assert found == roomy
    assert evaluate(roomy).fits
    for batch, count in ((7, 6), (12, 5), (8, 8), (9, 1)):
        sizes = equal_microbatches(batch, count)
        held = samples_in_flight(np.arange(count + 1), batch, count)
        assert held.tolist() == [sum(sizes[:several]) for several in range(count + 1)]


def test_pipelines_are_cut_between_blocks_where_the_stack_cuts_none() -> None:
    """Six blocks over four devices: as fast as the fastest of all partitions between blocks of as many micro-batches."""
    blocks = Gpt(6, 64, 4, vocabulary=512, sequence=32).workload()
    between = Stack(name="between", runs=Runs(cut_blocks=False))
    evaluate = Evaluator(Problem(blocks, load_cluster("dgx-a100").take(4), 8, stack=between))
    shapes = [StraightShape("1f1b", (0, 1, 2, 3), count) for count in (2, 4, 8)]
    found = fastest_straight("test", evaluate, shapes)
    assert found is not None
    places = stage_begins(evaluate.problem)
    cuts = places[every_cuts(len(places) - 1, 4)]
    search = straight_search.CutSearch(evaluate, StraightShape("1f1b", (0, 1, 2, 3), len(found.microbatches)))
    best = min(evaluate(search.plan("test", one)).iteration_seconds for one in cuts.tolist())
    assert evaluate(found).iteration_seconds == best < np.inf


@pytest.mark.parametrize("communication", ["free", "streaming"])
def test_free_transfers_rule_no_cuts_out(communication: Communication) -> None:
    """Six layers on four GPUs with slow links: `greedy` is as fast as the fastest 1F1B of all cuts."""
    network = random_chain(6, np.random.default_rng(2), flop=2e9, parameters=300_000)
    problem = Problem(network, load_cluster("dapple-c:4"), 8, communication=communication, optimizer="sgd")
    found, best = (
        make_plan(name, problem, Request(schedule="1f1b")).iteration_seconds for name in ("greedy", "brute-force")
    )
    assert found <= best * (1.0 + 1e-9)


def test_what_the_stack_does_not_run_takes_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches of unlike sizes, or schedules that it has not, are no shapes: what is looked at before `WORK` ends is run."""
    network = Gpt(4, 64, 4, 128, 1000).workload()
    runs = Runs(schedules=("1f1b",), unequal=False, cut_blocks=False)
    problem = Problem(network, load_cluster("pipedream-a:1"), 35, stack=Stack(name="alike", runs=runs))
    shapes = [
        StraightShape(name, tuple(range(stages)), count)
        for name, stages, count in product(("gpipe", "1f1b"), range(2, 5), range(1, 36))
    ]
    monkeypatch.setattr(straight_search, "WORK", 1)
    evaluate = Evaluator(problem)
    assert fastest_straight("test", evaluate, shapes) is not None
    assert {(one.schedule, 35 % len(one.microbatches)) for one in evaluate.replayed} == {("1f1b", 0)}
    assert fastest_straight("test", evaluate, [one for one in shapes if one.schedule == "gpipe"]) is None


def test_all_cuts_between_blocks_are_looked_at_where_these_are_few() -> None:
    """Twelve blocks of ten layers in six stages: 1,287 partitions, of 10^8 that also cut blocks; work is what was looked at."""
    network = Gpt(12, 64, 4, 128, 1000).workload()
    cut, whole = (
        Problem(network, load_cluster("pipedream-b:1"), 8, stack=Stack(name="any", runs=Runs(cut_blocks=cuts)))
        for cuts in (True, False)
    )
    looks = [
        straight_search.CutSearch(Evaluator(one), StraightShape("1f1b", tuple(range(6)), 4)) for one in (cut, whole)
    ]
    for one in looks:
        assert one.work == 0
        list(one.ranked(np.inf))
    places = stage_begins(whole).tolist()
    assert looks[1].work == comb(len(places) - 2, 5) * looks[1].ops
    best = next(looks[1].ranked(np.inf))[0]
    every = np.array(list(combinations(places[1:-1], 5)))
    assert best == looks[1].quick(every).min()
    unpromising = straight_search.CutSearch(Evaluator(cut), StraightShape("1f1b", tuple(range(6)), 4))
    list(unpromising.ranked(1e-9))
    assert unpromising.work == 6 * len(network) ** 2 < looks[0].work
