"""What searches find and how far they look, as records: the rules that they follow are stated beside their own tests.

A search that leaves out less, or looks twice, gives the same plan; its counts tell.
"""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from functools import partial
from itertools import combinations, islice, product
from typing import Any

import numpy as np
import pytest

from experiments.umpipe.genetic_variants import DistinctSurvivors, SingleChromosome
from experiments.unequal_sizes.random_tables import random_problem
from hardware_profiles import Cluster, load_cluster
from planners import (
    PLANNERS,
    Evaluator,
    InapplicablePlannerError,
    PartitionCosts,
    Request,
    explore,
    fastest_cuts,
    make_plan,
    planner_entry,
)
from planners.partitioning import straight_search, streamed_search
from planners.partitioning.fastest_cuts import least_seconds
from planners.partitioning.partition_costs import straight_costs
from planners.partitioning.streamed_search import StreamedSearch
from planners.pipedream import planner as pipedream_planner
from planners.pipedream.flushed_partition import FlushedPipeline, flushed_partition
from planners.pipedream.partitioner import InfeasiblePartition, MemoryLimit, network_levels, partition
from planners.pipedream.state_table import StateTable
from planners.search import candidates
from planners.straight.grid import GridSearch
from planners.testing import line
from planners.unequal import Genetic, best_equal, exact_sizes, greedy_dp, local_greedy
from planners.unequal.found_sizes import FoundSizes
from simulator import Gpt, InfeasiblePlanError, Problem, lower_bound
from tests.chains import chain, random_chain
from tests.planners.conftest import PROBLEMS, shape, sums, with_memory
from tests.planners.test_pipedream import network, tabled
from tests.records import Recorded, weights


def sized(layers: int, cluster: Cluster, batch: int, seed: int, **more: Any) -> Problem:
    """Layers that differ in work, weights, and what they send and keep."""
    rng = np.random.default_rng(seed)
    workload = chain(
        rng.uniform(1e9, 1e10, layers).tolist(),
        parameters=rng.integers(10**5, 10**6, layers).tolist(),
        output_elements=rng.uniform(1e4, 3e6, layers).tolist(),
        stashed_elements=rng.uniform(1e5, 1e7, layers).tolist(),
    )
    return Problem(workload, cluster, batch, **more)


LARGER = {
    "recomputed": sized(6, line(speeds=(1.0,) * 4), 8, 1, recompute=True),
    "mixed": sized(5, line(speeds=(1.0, 3.0, 1.0)), 6, 2),
    "servers": sized(5, load_cluster("pipedream-a").take(8), 8, 3),
    "calm": sized(6, line(speeds=(1.0,) * 3), 9, 4, contention=False, communication="send-blocking"),
}
"""Problems with room for choices, by name."""


def test_shapes_of_the_grid(recorded: Recorded) -> None:
    """How many shapes there are and are handed out, the first two, sums of seconds and memory, of lower bounds, of what may fit,
    and of equal shares of a device; with two sizes of memory."""
    values: dict[str, Any] = {}
    for name, memory_bytes in product(("mixed", "servers"), (16e9, 1.2e8)):
        problem = with_memory(LARGER[name], memory_bytes)
        search = GridSearch(problem, Evaluator(problem), Request(), "grid")
        found = list(search.candidates())
        shapes = [*search.shapes()]
        bounds = [
            sums(np.array([rule(one) for one in shapes])) for rule in (search.at_best, search.may_fit, search.has_room)
        ]
        shares = sums(
            np.array([one for shape in shapes[:: max(1, len(shapes) // 20)] for one in search.equal_shares(shape)])
        )
        first = [[one.shape.schedule, one.shape.groups, one.shape.microbatches, one.cuts] for one in found[:2]]
        together = sum(one.seconds for one in found), sum(one.fullest for one in found)
        values[f"{name}, {memory_bytes:.2g} bytes"] = [len(shapes), len(found), *first, *together, *bounds, shares]
    recorded(**values)


SMALL = {
    "mixed": sized(4, line(speeds=(1.0, 2.0, 1.0)), 4, 7),
    "servers": sized(4, load_cluster("pipedream-a").take(8), 4, 8),
}
TIGHT = ("data-parallel", "uniform", "greedy", "pipeline-data", "pipedream", "pipedream-flush", "bapipe", "best-equal")


@pytest.mark.parametrize("name", ["mixed", pytest.param("servers", marks=pytest.mark.slow)])
def test_answers_with_little_memory(name: str, recorded: Recorded) -> None:
    """What planners find where most plans do not fit, or what they say where they find none."""
    values: dict[str, Any] = {}
    looped = Request(schedule="interleaved-1f1b", stages=4)
    asked = [*product(TIGHT, (1.2e8, 7e7), (Request(),)), *product(("uniform", "greedy"), (1.2e8, 1e8), (looped,))]
    for planner, memory_bytes, request in asked:
        case = f"{planner}, {memory_bytes:.2g} bytes" + ", looped" * (request is looped)
        try:
            found = make_plan(planner, with_memory(SMALL[name], memory_bytes), request)
        except (InfeasiblePlanError, InapplicablePlannerError) as error:
            values[case] = str(error)
        else:
            values[case] = [*shape(found.plan), found.evaluations]
    recorded(**values)


@pytest.mark.parametrize(("name", "memory_bytes"), [("mixed", 2e8), ("calm", 16e9)])
def test_what_bapipe_explores(name: str, memory_bytes: float, recorded: Recorded) -> None:
    """The fastest candidate of each origin, and what the rule of thumb says."""
    problem = with_memory(LARGER[name], memory_bytes)
    found = explore(problem, Evaluator(problem), np.random.default_rng(0))
    fastest: dict[str, Any] = {}
    for one in found.candidates:
        fastest.setdefault(one.origin, [*shape(one.plan), one.seconds])
    rule, scores = found.rule, [(one.seconds, one.score.peak_bytes) for one in found.candidates]
    told = [rule.schedule, rule.reason, rule.formula_seconds, rule.candidate.seconds, found.disagreement]
    recorded(candidates=[*map(sums, np.array(scores).T)], fastest=fastest, rule=told)


def test_partitions_of_boards(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where layers stream, by boards and micro-batches: seconds of the best of all partitions, and of those that moves of one cut
    lead to; the first of them; and of the whole network on all boards, by samples."""
    layers = random_chain(14, np.random.default_rng(5), flop=4e8, parameters=400_000, output_elements=4e4)
    evaluate = Evaluator(Problem(layers, load_cluster("fpga-mixed-4"), 16, precision="int8"))
    values: dict[str, Any] = {}
    for most, boards, count in product((20_000, 5), ((0, 1, 2, 3), (3, 1)), (3, 16)):
        monkeypatch.setattr(streamed_search, "MOST_PARTITIONS", most)
        seconds, cuts = StreamedSearch(evaluate).best_cuts(boards, count)
        values[f"{most}, {boards}, {count}"] = [seconds, len(cuts), cuts[:3]]
    recorded(**values, whole=[StreamedSearch(evaluate).whole_seconds(samples) for samples in (1, 3, 16)])


def test_partitions_of_boards_are_estimated_each_by_itself() -> None:
    """Some fit and some do not: the same figures one after the other and all at once."""
    layers = random_chain(6, np.random.default_rng(5), flop=4e8, parameters=400_000, output_elements=4e4)
    cluster = load_cluster("fpga-mixed-4")
    cluster = replace(cluster, devices=tuple(replace(one, ddr_bytes=2e7) for one in cluster.devices))  # type: ignore[type-var]
    search, boards = StreamedSearch(Evaluator(Problem(layers, cluster, 16, precision="int8"))), (0, 1, 2)
    cuts = np.array([*combinations(range(1, 6), 2)])
    found = search.estimates(boards, 4, cuts)
    assert 0 < np.isinf(found).sum() < len(cuts)
    assert found.tolist() == [search.estimates(boards, 4, one[None])[0] for one in cuts]


def test_shapes_are_replayed_from_the_most_promising_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order they are named: the same plan after as many replays, as those that cannot be near it are left out."""
    layers = random_chain(8, np.random.default_rng(5), flop=4e8, parameters=400_000, output_elements=4e4)
    problem = Problem(layers, load_cluster("fpga-mixed-4"), 16, precision="int8")
    shapes = [
        straight_search.StraightShape("1f1b", tuple(range(boards)), count)
        for boards in (1, 2, 3, 4)
        for count in (1, 2, 8, 16)
    ]
    found = []
    for named in (shapes, shapes[::-1]):
        evaluate = Evaluator(problem)
        plans = StreamedSearch(evaluate).fastest("streamed", named)
        found.append(([evaluate(plan).key for plan in plans], evaluate.evaluations))
    assert found[0] == found[1]
    assert len(found[0][0]) == 1  # of the only schedule


def array_sums(value: Any) -> dict[str, list[float]]:
    """The sums of a value's arrays."""
    found = {one.name: getattr(value, one.name) for one in fields(value)}
    return {name: sums(one) for name, one in found.items() if isinstance(one, np.ndarray)}


CHOSEN_FROM = LARGER | {
    "blocks": Problem(
        Gpt(3, 64, 4, vocabulary=512, sequence=32).workload(), load_cluster("dgx-1-v100"), 100, optimizer="adam"
    ),
    "boards": sized(7, load_cluster("fpga-mixed-4"), 12, 6, precision="int8"),
}


@pytest.mark.parametrize("name", CHOSEN_FROM)
def test_what_searches_choose_from(name: str, recorded: Recorded) -> None:
    """Orders, groups, rows and choices of devices, numbers of micro-batches, devices of stages by schedule, levels and rates of
    the cluster, and the tables of costs that partitions are searched in."""
    problem = CHOSEN_FROM[name]
    evaluate = Evaluator(problem)
    costs, order = evaluate.layer_costs, candidates.devices_in_order(problem)
    table = pipedream_planner.problem_table(problem, evaluate, 2)
    recorded(
        groups=[candidates.device_groups(problem, degree) for degree in (1, 2, 3)],
        choices=candidates.device_choices(problem, costs),
        rows=[*candidates.unlike_rows(problem, costs, candidates.device_rows(problem))],
        counts=[candidates.microbatch_counts(problem, Request(schedule=one), 3) for one in (None, "2bw")],
        sizes=sorted(candidates.counts_by_size(problem)),
        places=candidates.cut_places(problem.workload),
        stages=[
            candidates.stage_devices(problem, schedule, Request(stages=stages))
            for schedule, stages in (
                ("1f1b", None),
                ("interleaved-1f1b", None),
                ("interleaved-1f1b", 4),
                ("zb-v", None),
            )
        ],
        orders=pipedream_planner.device_orders(problem, costs),
        views=pipedream_planner.without_levels(problem) or pipedream_planner.cluster_views(problem),
        rates=pipedream_planner.slowest_rates(problem, order[:3]),
        forms=pipedream_planner.cost_forms(problem),
        limit=pipedream_planner.memory_limit(problem, 1e9),
        table=array_sums(table),
        partitions=[
            array_sums(straight_costs(costs, order[:3], 2, alternating=one, in_flight=(6, 4, 2)))
            for one in (False, True)
        ],
    )


@pytest.mark.parametrize("name", ["calm", "blocks", "boards", "servers"])
def test_values_that_planners_try(name: str, recorded: Recorded) -> None:
    """By planner that applies, of each decision that a request leaves open, also where it fixes the schedule; of all problems
    but one the weights."""
    problem, found = CHOSEN_FROM[name], dict[str, Any]()
    for planner, request in product(PLANNERS, (Request(), Request(schedule="interleaved-1f1b"))):
        entry = planner_entry(planner)
        with contextlib.suppress(ValueError, InfeasiblePlanError):
            if entry.applicable(problem, request) is None:
                values = {decision: [*tried(problem, request)] for decision, tried in entry.searches.items()}
                found[f"{planner}, {request.schedule or 'any schedule'}"] = [values, entry.is_default(problem)]
    recorded(**(found if name == "blocks" else weights(found)))


@pytest.mark.parametrize(("schedule", "microbatches"), [("1f1b", 5), ("gpipe", 4), ("interleaved-1f1b", 4)])
def test_straight_pipelines_of_a_shape(schedule: str, microbatches: int, recorded: Recorded) -> None:
    """By problem and number of moves at most: ops, work, bounds, and the cuts that are best by quick replays."""
    values: dict[str, Any] = {}
    for name, few in product(LARGER, (8192, 1)):
        evaluate = Evaluator(LARGER[name])
        devices = candidates.stage_devices(LARGER[name], schedule, Request())[:4]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(straight_search, "FEW_CUTS", few)
            one = straight_search.CutSearch(evaluate, straight_search.StraightShape(schedule, devices, microbatches))
            first = list(islice(one.ranked(np.inf), 4))
            bounds = [one.least_seconds(), *(one.least_of(cuts) for _, cuts in first[:2])]
            values[f"{name}, {few}"] = [one.ops, one.work, bounds, first]
    recorded(**values)


def test_bounds_of_unlike_devices(recorded: Recorded) -> None:
    """Seconds that no plan beats, flushed or not, by problem."""
    every = PROBLEMS | LARGER
    recorded(
        **{
            name: [lower_bound(problem).of(flush=flush).seconds for flush in (True, False)]
            for name, problem in every.items()
        }
    )


def table_of(seed: int) -> StateTable:
    """Seven layers of whole seconds and bytes."""
    rng = np.random.default_rng(seed)
    return tabled(
        network(rng.integers(1, 20, 7).tolist(), rng.integers(0, 30, 7).tolist(), rng.integers(0, 12, 7).tolist())
    )


def test_partitions_of_pipedream(recorded: Recorded) -> None:
    """By levels of the cluster, form of the cost and memory: the stages of each level, and their seconds."""
    values: dict[str, Any] = {}
    levels = {1: ((2, 3), (8.0, 2.0)), 2: ((6,), (1.0,)), 3: ((2, 2, 2), (9.0, 3.0, 1.0)), 4: ((3, 2), (1.0, 0.5))}
    for seed, variant, memory in product(levels, ("paper", "barrier", "script"), (np.inf, 150.0, 75.0)):
        try:
            found = partition(
                table_of(seed),
                network_levels(*levels[seed]),
                variant=variant,
                memory=MemoryLimit(memory, 2.0, float(seed % 2)),
            )
        except InfeasiblePartition:
            values[f"{seed} {variant} {memory}"] = "infeasible"
        else:
            stages = [[one.start, one.stop, one.workers] for one in found.stages]
            values[f"{seed} {variant} {memory}"] = [stages, found.slowest_stage_seconds, found.data_parallel_seconds]
    recorded(**values)


def test_flushed_partitions(recorded: Recorded) -> None:
    """By network and memory: the stages and their replicas."""
    values: dict[str, Any] = {}
    for seed, memory in product((0, 5, 6, 7), (1e9, 160.0, 120.0, 90.0)):
        pipeline = FlushedPipeline(5, 4, 8, np.arange(1, 6), memory, 3.0, seed % 2 == 0, 2.0, 1.5)
        found = flushed_partition(table_of(seed), pipeline)
        values[f"{seed} {memory}"] = found and [[one.start, one.stop, one.workers] for one in found]
    recorded(**values)


def test_fronts_of_cuts(recorded: Recorded) -> None:
    """Random tables of one and two passes, one and two kinds: the fastest cuts and those that are a tenth slower, and a bound."""
    values: dict[str, Any] = {}
    for seed in (2, 3):
        rng = np.random.default_rng(seed)
        passes, layers, stages = 1 + seed % 2, 12, 4
        before = np.concatenate([np.zeros((passes, 1)), rng.uniform(0.1, 1.0, (passes, layers)).cumsum(axis=1)], axis=1)
        table = (
            np.maximum(before[:, None, None, :] - before[:, None, :, None], 0.0) * np.array([1.0, 2.5])[:, None, None]
        )
        costs = PartitionCosts(
            table,
            tuple(int(kind) for kind in rng.integers(0, 2, stages)),
            rng.uniform(0.0, 1.5, (passes, stages - 1, layers + 1)),
            rng.uniform(0.0, 0.2, (stages - 1, layers + 1)),
            np.minimum(np.arange(layers + 1) + int(rng.integers(4, 9)), layers) * np.ones((stages, 1), dtype=np.int64),
        )
        for microbatches in (1, 20):
            values[f"{seed}, {microbatches} micro-batches"] = [
                least_seconds(costs, microbatches),
                fastest_cuts(costs, microbatches, slack=0.1),
            ]
    recorded(**values)


@pytest.mark.parametrize(
    ("recomputation", "family"), [("none", "affine"), ("always", "roofline"), ("where-differs", "log-uniform")]
)
def test_unequal_sizes(recomputation: str, family: str, recorded: Recorded) -> None:
    """Sizes, seconds, bound and evaluations of every search with and without caps, the genetic ones with one seed."""
    genetic = {"dual": Genetic, "seeded": partial(Genetic, seeded=True), "single": SingleChromosome}
    searches = {
        "exact": exact_sizes,
        "greedy": greedy_dp,
        "local": local_greedy,
        "equal": best_equal,
        **{
            name: lambda problem, kind=kind: kind(individuals=12, generations=4)(problem, np.random.default_rng(5))
            for name, kind in {**genetic, "distinct": DistinctSurvivors}.items()
        },
    }
    free = random_problem(np.random.default_rng(0), family, 4, 12, (1, 2, 3, 5, 12), recomputation)
    limited = replace(free, backward_caps=(3, 4, 5, 6))
    values: dict[str, Any] = {}
    for (name, search), problem in product(searches.items(), (free, limited)):
        found: FoundSizes = search(problem)
        sizes = found.forward_sizes, found.backward_sizes
        values[f"{name}, caps {problem.backward_caps}"] = [
            *(*sizes, found.makespan_seconds, found.lower_bound_seconds, found.evaluations)
        ]
    recorded(**values)
