"""Joint search: pipelines are plans, moves keep to what is asked for, and no plan of a small space is faster."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import combinations, islice, pairwise, product
from math import inf
from typing import Any, get_args
from unittest.mock import Mock, patch

import numpy as np
import pytest

from hardware_profiles import Constant, Runs, Stack, load_cluster, load_stack
from planners import Evaluator, Request, make_plan, planner_entry
from planners.joint import joint_search
from planners.joint.climbs import Climbs
from planners.joint.neighbourhood import DIVIDING, FAMILIES, LOOPED, Neighbourhood
from planners.joint.niches import Niches
from planners.joint.orders import in_order, ops_of, orders, within
from planners.joint.pipeline import Pipeline, pipeline_of
from planners.joint.told import (
    NextBest,
    OwnOrder,
    SimplerPlan,
    Unordered,
    complexity,
    own_order,
    simpler_plan,
    unordered,
)
from planners.search.notes import Note
from planners.search.quick_replay import QuickReplays
from planners.search.replay_work import WORK_PER_SECOND
from planners.search.runner_ups import DECISIONS
from simulator import (
    Experts,
    Gpt,
    InfeasiblePlanError,
    LayerCosts,
    OpKind,
    Plan,
    PlanCosts,
    Problem,
    Recompute,
    Score,
    Stage,
    build_schedule,
    check_plan,
    equal_microbatches,
    flushes,
    lower_bound,
    plan_lacks,
    schedule_families,
    stages_from_cuts,
    workload_from_spec,
)
from tests.chains import chain
from tests.planners.conftest import PROBLEMS, REQUESTS, shape, sums, with_memory
from tests.planners.test_bapipe_search import row_of_boards
from tests.planners.test_found import LARGER
from tests.records import Recorded, weights

PARTS = "data-parallel", "pipeline-data", "large", "mixed", "bapipe", "pipedream-flush"
"""Planners of parts of the space, but for orders of their own."""


def problem(workload: str = "gpt2-medium", cluster: str = "pipedream-a", batch: int = 32, **options: object) -> Problem:
    """A network on GPUs."""
    return Problem(workload_from_spec(workload, None), load_cluster(cluster), batch, **options)  # type: ignore[arg-type]


def some(asked: Problem, request: Request, seed: int, steps: int) -> Iterator[Pipeline]:
    """Pipelines on a random walk from a seed."""
    choose, moves = random.Random(seed), Neighbourhood(asked, request, LayerCosts(asked))
    one = choose.choice([*moves.seeds()])
    for _ in range(steps):
        near = [each for each in choose.choice([*moves.decisions.values()])(one) if moves.allows(each)]
        one = choose.choice(near) if near else one
        yield one


@pytest.mark.parametrize(
    ("workload", "cluster", "options"),
    [
        ("gpt2-medium", "dgx-a100:2", {"precision": "bf16", "optimizer": "adam"}),
        ("mixtral-8x7b", "dgx-h100:4", {"precision": "bf16", "optimizer": "adam"}),
        ("vgg16", "pipedream-a", {}),
        ("bert-large", "sailor-gcp-24", {"precision": "fp16", "optimizer": "adam"}),
    ],
)
def test_a_walk_meets_plans_that_are_those_pipelines(workload: str, cluster: str, options: dict[str, object]) -> None:
    """Every pipeline on a walk of random moves is a plan of the problem, or refused, and read from its plan it is itself."""
    asked, ran = problem(workload, cluster, **options), 0
    for one in some(asked, Request(), seed=3, steps=40):
        plan = one.plan(asked, "joint")
        try:
            check_plan(asked, plan)
        except InfeasiblePlanError:
            continue
        assert pipeline_of(asked, plan) == one
        ran += 1
    assert ran >= 30


NONE = ("none", 0)
SERVERS = (tuple(range(8)), tuple(range(8, 16)))


def blocks(stack: str, precision: str, experts: Experts | None = None) -> Problem:
    """Four small blocks on two servers."""
    return Problem(
        Gpt(4, 64, 4, vocabulary=512, sequence=32, experts=experts).workload(),
        load_cluster("dgx-a100:2"),
        32,
        precision=precision,
        optimizer="adam",
        stack=load_stack(stack),
    )


BESIDE = {
    "experts and two stages a rank": (
        blocks("generic", "bf16", Experts(4, 2, 128)),
        Pipeline(
            "interleaved-1f1b",
            SERVERS,
            (16, 30, 44),
            8,
            (("whole", 0), NONE, NONE, ("blocks", 1)),
            (("chunks", 2),),
            group=2,
            zero=1,
            expert=2,
        ),
    ),
    "what DeepSpeed runs": (
        blocks("megatron-deepspeed", "fp16"),
        Pipeline("1f1b", SERVERS, (22,), 8, (("whole", 0), NONE), group=4, zero=1),
    ),
    "unequal replicas": (
        problem("chain:6", "dapple-b:4", 12),
        Pipeline("1f1b", ((0, 1), (2,)), (3,), 4, (NONE, NONE)),
    ),
    "groups": (
        problem("gpt2", "dgx-a100:1", 16, precision="bf16", optimizer="adam"),
        Pipeline("1f1b", ((0, 1, 2, 3), (4, 5, 6, 7)), (62,), 4, (NONE, ("attention", 0)), group=2, zero=1),
    ),
    "eight cuts of a chain": (
        problem("chain:24", "dgx-a100:1", 16),
        Pipeline(
            "interleaved-1f1b", ((0,), (1,), (2,)), (2, 5, 7, 10, 13, 15, 18, 21), 6, (NONE,) * 9, (("chunks", 3),)
        ),
    ),
    "eight cuts of blocks": (
        problem("gpt2", "dgx-a100:1", 16),
        Pipeline("zb-h1", tuple((rank,) for rank in range(8)), (9, 22, 35, 48, 61, 74, 87), 4, (NONE,) * 8),
    ),
}
"""Pipelines of few devices."""


def test_seeds_have_the_stages_that_are_asked_for() -> None:
    """Of one a rank and of two, on four devices."""
    asked = PROBLEMS["two-servers"]
    for stages, chunks in ((2, 1), (4, 1), (4, 2)):
        moves = Neighbourhood(asked, Request(stages=stages, chunks=chunks), LayerCosts(asked))
        found = {(one.stages, one.chunks, len(one.ranks)) for one in moves.seeds()}
        assert found == {(stages, chunks, stages // chunks)}


@pytest.mark.parametrize("alone", [True, False])
def test_replicas_of_the_whole_network_may_have_several_stages_to_begin_with(alone: bool) -> None:
    """One number of them, with each ZeRO stage and what of the replicas these are divided over; none where the stack runs no
    stages one by one on devices that hold the whole network, or where another number is asked for.
    """
    asked = problem(
        "gpt2", "pipedream-b:2", 16, optimizer="adam", stack=Stack(name="plain", runs=Runs(looped_alone=alone))
    )
    moves = Neighbourhood(asked, Request(), LayerCosts(asked))
    one = Pipeline("1f1b", (tuple(range(16)),), (), 2, (NONE,), zero=2)
    found = [*moves.looped(one)]
    divided = [(0, 0), *((zero, shard) for zero in (1, 2, 3) for shard in (0, 8))]
    assert sorted((other.zero, other.shard) for other in found) == (divided if alone else [])
    assert all((other.chunks, other.ranks, other.microbatches) == (LOOPED, one.ranks, 2) for other in found)
    assert not [*Neighbourhood(asked, Request(chunks=2), LayerCosts(asked)).looped(one)]


def test_a_stack_without_interleaving_has_one_stage_a_rank() -> None:
    """Families with one keep theirs, others have none."""
    asked = replace(PROBLEMS["two-servers"], stack=Stack(name="plain", runs=Runs(interleaved=False)))
    moves = Neighbourhood(asked, Request(), LayerCosts(asked))
    assert [moves.chunks(name) for name in ("1f1b", "gpipe", "zb-v", "interleaved-1f1b")] == [(1,), (1,), (), ()]


@pytest.mark.parametrize("name", BESIDE)
def test_moves_lead_to_these_pipelines(name: str, recorded: Recorded) -> None:
    """By decision, what each pipeline beside one has otherwise, in the order in which they are tried, the first of those that
    change two decisions; all are pipelines of the problem, and none is it itself. Of all but the first the weights.
    """
    asked, one = BESIDE[name]
    moves = Neighbourhood(asked, Request(), LayerCosts(asked))
    near = {
        decision: [*islice(move(one), 24 if " and " in decision else None)]
        for decision, move in moves.decisions.items()
    }
    others = {
        decision: [
            "; ".join(f"{key} {now}" for key, now in asdict(each).items() if now != asdict(one)[key]) for each in found
        ]
        for decision, found in near.items()
    }
    assert all(map(all, others.values()))
    recorded(**(others if name == next(iter(BESIDE)) else weights(others)))


@pytest.mark.parametrize(
    "request_",
    [
        Request(schedule="zb-h1", microbatches=8),
        Request(stages=4, options={"zero": (1,), "tensor": (1, 2)}),
        Request(chunks=2, recompute="whole"),
        Request(options={"context": (2,)}),
    ],
)
def test_moves_keep_to_what_is_asked_for(request_: Request) -> None:
    """What a request fixes no move of the search changes."""
    asked = problem("gpt2-medium", "dgx-a100:2", precision="bf16", optimizer="adam")
    for one in some(asked, request_, seed=5, steps=30):
        assert request_.schedule in (None, one.schedule)
        assert request_.microbatches in (None, one.microbatches)
        assert request_.stages in (None, one.stages)
        assert request_.chunks in (None, one.chunks)
        assert request_.recompute is None or set(one.recompute) == {(request_.recompute, 0)}
        for option, value in (("zero", one.zero), ("tensor", one.tensor), ("context", one.context)):
            assert value in (request_.asked(option) or (value,))


@pytest.mark.parametrize(
    ("name", "request_"),
    [("measured", REQUESTS["joint"]), *(pytest.param(name, Request(), marks=pytest.mark.slow) for name in PROBLEMS)],
)
def test_no_planner_of_a_part_is_faster(name: str, request_: Request) -> None:
    """On each small problem."""
    asked = PROBLEMS[name]
    found = make_plan("joint", asked, request_)
    for other in PARTS:
        if planner_entry(other).reason(asked, Request()) is None:
            assert found.iteration_seconds <= make_plan(other, asked).iteration_seconds * (1.0 + 1e-9), other


def every_plan(asked: Problem) -> Iterator[Plan]:
    """All plans of two families' pipelines on neighbouring devices: cuts, replicas of each rank, micro-batches, ZeRO."""
    layers, devices = len(asked.workload), len(asked.cluster.devices)
    for ranks in range(1, min(layers, devices) + 1):
        for cuts, ends in product(
            combinations(range(1, layers), ranks - 1), combinations(range(1, devices + 1), ranks)
        ):
            held = tuple(tuple(range(*pair)) for pair in zip((0, *ends[:-1]), ends, strict=True))
            words = ((asked.recompute, 0),) * ranks
            families = ("1f1b", "zb-h1", *(("chimera",) if ranks > 1 and ends[-1] == ranks else ()))
            for schedule, count, zero in product(families, range(1, asked.batch + 1), (0, 1)):
                if schedule == "chimera" and count == 1:
                    continue  # one direction has no micro-batch
                yield Pipeline(schedule, held, cuts, count, words, zero=zero).plan(asked, "")  # type: ignore[arg-type]


def beyond_the_optimum(seed: int, request: Request | None = None) -> float:
    """By how much the answer for a random chain of layers on three or four devices is above the fastest of all plans."""
    choose = random.Random(seed)
    asked = problem(
        choose.choice(["chain:3", "chain:4"]),
        choose.choice(["dapple-c:3", "dapple-c:4", "dapple-b:3"]),
        choose.choice([4, 6]),
        optimizer=choose.choice(["sgd", "adam"]),
    )
    evaluate = Evaluator(asked)
    least = min(score.iteration_seconds for score in map(evaluate, every_plan(asked)) if score.fits)
    return make_plan("joint", asked, request).iteration_seconds / least - 1.0


@pytest.mark.parametrize(
    ("schedule", "ranks"),
    [("chimera", ((4,), (1,), (2,))), ("dualpipe", ((0,), (1,), (2,), (3,))), ("seq1f1b", ((0, 1), (2, 3)))],
)
def test_opposite_pipelines_and_slices_are_plans(schedule: str, ranks: tuple[tuple[int, ...], ...]) -> None:
    """A stage is on the rank of each direction, the one in the middle of both; what is read from its plan is the same."""
    asked = problem("gpt2", "pipedream-a:2", precision="fp16")
    words = (("none", 0),) * len(ranks)
    options = (("slices", 4),) if schedule == "seq1f1b" else ()
    one = Pipeline(schedule, ranks, (20, 50, 80)[: len(ranks) - 1], 8, words, options)  # type: ignore[arg-type]
    plan = one.plan(asked, "joint")
    held = [stage.devices for stage in plan.stages]
    assert (
        held
        == {
            "chimera": [(4, 2), (1,), (2, 4)],
            "dualpipe": [(0, 3), (1, 2), (2, 1), (3, 0)],
            "seq1f1b": [(0, 1), (2, 3)],
        }[schedule]
    )
    assert Evaluator(asked)(plan).iteration_seconds > 0.0
    assert pipeline_of(asked, plan) == one
    assert one.copies == 2
    assert Neighbourhood(asked, Request(schedule=schedule), LayerCosts(asked)).allows(one)
    assert pipeline_of(asked, replace(plan, schedule="1f1b", options=())) != one


def test_slices_and_both_directions_are_found_where_they_are_asked_for() -> None:
    """One sequence passes four GPUs in slices sooner than whole; opposite pipelines beat those of equal numbers of layers."""
    asked, brief = problem("gpt2-medium", "dapple-b:4", 1), {"seconds": 0.1}
    whole, cut = (
        make_plan("joint", asked, Request(schedule=name, stages=4, options=brief)) for name in ("1f1b", "seq1f1b")
    )
    assert cut.plan.slices > 1
    assert cut.iteration_seconds < 0.9 * whole.iteration_seconds
    asked = problem("gpt2", "dapple-b:4", 16)
    for name in ("chimera", "dualpipe"):
        found = make_plan("joint", asked, Request(schedule=name, options=brief))
        assert found.plan.schedule == name
        one = pipeline_of(asked, found.plan)
        assert one is not None
        even = replace(one, cuts=tuple(len(asked.workload) * cut // one.stages for cut in range(1, one.stages)))
        assert found.iteration_seconds < Evaluator(asked)(even.plan(asked, "by hand")).iteration_seconds


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor": 2}, "one GPU per stage and direction, not tensor 2"),
        ({"context": 2}, "one GPU per stage and direction, not context 2"),
        ({"microbatches": 1}, "micro-batches in both directions, at least 2, got 1"),
        ({"stages": 3}, "needs an even number of stages, got 3 stages"),
    ],
)
def test_opposite_pipelines_refuse(options: dict[str, int], words: str) -> None:
    """What two opposite pipelines cannot have is told by its number; planners of one direction name the one of both."""
    asked, given = problem(), {name: options[name] for name in options if name in ("microbatches", "stages")}
    request_ = Request(schedule="dualpipe", options={name: options[name] for name in options.keys() - given}, **given)
    assert words in (planner_entry("joint").reason(asked, request_) or "")
    assert "planners that do: joint" in (planner_entry("large").reason(asked, Request(schedule="chimera")) or "")


def test_no_plan_of_a_small_space_is_faster() -> None:
    """Of one."""
    assert beyond_the_optimum(2, REQUESTS["joint"]) <= 1e-9


@pytest.mark.slow
def test_the_optimum_of_small_spaces_is_found() -> None:
    """In each of ten; plans of other schedules may be faster."""
    assert max(beyond_the_optimum(seed) for seed in range(10)) <= 1e-9


@pytest.mark.slow
def test_a_schedule_of_a_large_network_begins_with_plans_of_others() -> None:
    """DeepSeek-V3 on 2,048 GPUs under DualPipeV, which none of the parts plans: seeds of its own need many times the memory."""
    network, cluster = workload_from_spec("deepseek-v3", 4096), load_cluster("deepseek-h800:256")
    asked = Problem(
        network, cluster, 15360, precision="fp8", optimizer="adam", gradient_bytes=4, sequence_parallel=True
    )
    found = make_plan("joint", asked, Request(schedule="dualpipev", options={"seconds": 100.0}))
    assert found.fits
    assert found.plan.schedule == "dualpipev"


def test_a_schedule_that_is_asked_for_orders_the_answer() -> None:
    """Replicas of the whole network are faster, which a note tells; they are the answer where they are asked for, and on one
    device, where a note tells that there is no pipeline.
    """
    found = make_plan("joint", asked := problem("chain:4", "dapple-b:2", 64), Request(schedule="1f1b"))
    alone = make_plan("joint", asked, Request(schedule="1f1b", stages=1))
    (told,) = (one for one in found.notes if isinstance(one, Unordered))
    assert (len(found.plan.stages), len(alone.plan.stages)) == (2, 1)
    assert alone.iteration_seconds <= told.unordered_seconds < found.iteration_seconds
    part = 1 - told.unordered_seconds / found.iteration_seconds
    assert told.text == f"without a pipeline, of what was replayed, {100 * part:.2g} % less time: {told.unordered}"
    assert told.unordered.startswith("pp1 dp2 ")
    assert all(len(plan.stages) > 1 for plan in found.replayed)
    single = make_plan("joint", problem("chain:4", "dapple-b:1", 64), Request(schedule="zb-h1"))
    assert single.plan.devices == (0,)
    assert Note("no pipeline through several GPUs was found that fits: each holds the whole network") in single.notes
    assert not any("no pipeline" in one.text for one in (*found.notes, *alone.notes))


def test_what_is_looked_for_is_the_best_so_far() -> None:
    """Of plans replayed before and after; without a wish all that obey are."""
    asked = problem("chain:4", "dapple-b:2", 64)
    evaluate, plans = Evaluator(asked), [make_plan(name, asked).plan for name in ("data-parallel", "uniform")]
    seconds = [evaluate(plan).iteration_seconds for plan in plans]
    fastest = seconds.index(min(seconds))
    assert evaluate.best == plans[fastest]
    evaluate.look_for(lambda plan: plan.stages == plans[1 - fastest].stages)
    assert evaluate.best is not None
    assert evaluate.best.stages == plans[1 - fastest].stages
    assert not evaluate.admits(plans[fastest])
    assert evaluate.obeys(plans[fastest])
    evaluate.look_for(None)
    assert evaluate.best.stages == plans[fastest].stages


def test_a_schedule_on_many_devices_begins_with_plans_of_others() -> None:
    """Where no part plans it: the pipelines that they find without it, under it, and no seed of its own."""
    asked = problem("chain:4", "dapple-c:17", 16)
    plan = Plan("part", "1f1b", stages_from_cuts((2,), len(asked.workload), [(0,), (1,)]), (4,) * 4)

    def part(asked: Problem, request: Request) -> Any:
        return None if request.schedule else lambda problem, evaluate, rng: evaluate(plan)

    planner = joint_search.JointSearch(Request(schedule="zb-h1"), (part,))
    evaluate = Evaluator(asked, admits=lambda plan: plan.schedule == "zb-h1")
    search = joint_search._Descents(planner, asked, evaluate)
    assert search.begin(np.random.default_rng(0)) is None
    assert {(one.schedule, one.stages) for one in search.replayed()} == {("zb-h1", plan.stages)}
    assert search.done > 0


def test_the_work_that_is_asked_for_is_what_is_done(recorded: Recorded) -> None:
    """With next to no work the answer is that of the plans to begin with; with more it is faster.

    Recorded is how many plans were replayed for it.
    """
    asked = PROBLEMS["two-servers"]
    little, more = (make_plan("joint", asked, Request(options={"seconds": one})) for one in (0.0005, 0.5))
    assert more.iteration_seconds < little.iteration_seconds
    assert more.evaluations > little.evaluations
    recorded(answers=[(one.iteration_seconds, one.evaluations) for one in (little, more)])


@pytest.mark.parametrize("name", ["mixed-devices", "blocks"])
def test_a_further_round_never_answers_worse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From seeds alone: each round ends at twice the work of the one before, and the first ones are the same."""
    monkeypatch.setattr(joint_search, "FIRST_ROUND", 0.03)
    asked = SMALL_BLOCKS if name == "blocks" else PROBLEMS[name]
    searches = [joint_search.JointSearch(Request(options={"seconds": one})) for one in (0.03, 0.06, 0.24)]
    found = [make_plan(search, asked) for search in searches]
    for less, more in pairwise(found):
        assert more.iteration_seconds <= less.iteration_seconds * joint_search.SAME
        assert more.evaluations >= less.evaluations
    assert found[0].evaluations < found[-1].evaluations


SMALL_BLOCKS = Problem(
    Gpt(4, 64, 4, vocabulary=512, sequence=32).workload(),
    load_cluster("dgx-a100").take(4),
    16,
    optimizer="adam",
    precision="bf16",
)
COURSES = {
    "two servers": (PROBLEMS["two-servers"], 0.5),
    "unlike devices": (LARGER["mixed"], 1.0),
    "blocks in little memory": (
        with_memory(SMALL_BLOCKS, 9.0 * sum(layer.parameters for layer in SMALL_BLOCKS.workload.layers)),
        0.5,
    ),
}
"""Problems, and nominal seconds of the search."""


def test_what_does_not_fit_leads_to_each_pipeline_with_more_recomputation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one leads to may lead back to it: where nothing was left to replay, a search went round and round."""
    looked_at, most = Counter[Pipeline](), [0]
    best, waiting = joint_search._Descents._best, joint_search._Descents._waiting

    def counted_best(self: Any, among: Iterator[Pipeline], now: Any, *, climbing: bool) -> Any:
        looked_at.clear()
        found = best(self, dict.fromkeys(among), now, climbing=climbing)
        most.append(max(looked_at.values(), default=0))
        return found

    def counted_waiting(self: Any, one: Pipeline, known: Any) -> Any:
        looked_at[one] += 1
        return waiting(self, one, known)

    monkeypatch.setattr(joint_search._Descents, "_best", counted_best)
    monkeypatch.setattr(joint_search._Descents, "_waiting", counted_waiting)
    workload = Gpt(2, 64, 2, vocabulary=512, sequence=32).workload()
    asked = replace(SMALL_BLOCKS, workload=workload, cluster=SMALL_BLOCKS.cluster.take(2), batch=4)
    asked = with_memory(asked, 12.0 * sum(layer.parameters for layer in workload.layers))
    assert make_plan("joint", asked, Request(options={"seconds": 0.2})).iteration_seconds > 0.0
    assert max(most) == 2  # as a neighbour, and as one with more


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "two servers" else name for name in COURSES]
)
def test_searches_take_the_course_that_they_took(name: str, recorded: Recorded) -> None:
    """Work done to begin with and in the end, pipelines that were looked at, and the plans that were replayed, in their order;
    then what would be descended from, and ordered, next."""
    asked, seconds = COURSES[name]
    evaluate = Evaluator(asked)
    search = joint_search._Descents(
        planner_entry("joint").planner(Request(options={"seconds": seconds})), asked, evaluate
    )
    search.begin(np.random.default_rng(0))
    begun = search.done
    best = search.descend()
    replayed = np.array([(one.iteration_seconds, one.peak_bytes) for one in evaluate.replayed.values()])
    work, search.most = [begun, search.done_at_best, search.done, search.most], np.inf
    search.ordered.clear()
    recorded(
        work=work,
        looked_at=[len(search.quickly), len(search.whole), len(search.passed), next(search.numbers)],
        quickly=sums(np.array([each for one in search.quickly.values() for each in one.values()])),
        replayed=[*map(sums, replayed.T)],
        best=[*shape(best), best.zero, best.recompute, bool(best.order)],
        starts=[[one.schedule, one.cuts, one.microbatches] for one in search._starts()],
        families=[[one.schedule, one.cuts, one.microbatches] for one in search._of_families()],
        orderable=[[*shape(plan), one.work, one.seconds] for plan, one in search._orderable().items()],
    )


def descents(
    asked: Problem, seconds: float | None = 1.0, planner: Callable[[Request], Any] = joint_search.JointSearch
) -> joint_search._Descents:
    """A search that has begun, from seeds alone."""
    request = Request(options={} if seconds is None else {"seconds": seconds})
    search = joint_search._Descents(planner(request), asked, Evaluator(asked))
    search.begin(np.random.default_rng(0))
    return search


def test_what_is_looked_at_is_replayed_quickly_where_it_may_be_the_next() -> None:
    """The first of those below a limit are those of quick replays of all; a bound spares some of the rest."""
    asked = PROBLEMS["mixed-devices"]
    first, every = (joint_search._Descents(joint_search.JointSearch(), asked, Evaluator(asked)) for _ in range(2))
    limit = 0.0, 0.035
    least = [each for one in first.moves.seeds() for each in first._waiting(one, limit)]
    quick = sorted((every.quick(plan), number) for _, number, _, plan, _ in least)
    known = [(seconds, number) for seconds, number, *_ in islice(first._rising(least), 5)]
    assert known == quick[:5]
    assert 5 <= len(first.whole) < len(least) // 2
    rest = [(seconds, number) for seconds, number, *_ in first._rising(least)]
    assert rest == [one for one in quick if one[0] < limit[1]]
    assert len(rest) < len(least)


def test_orders_for_their_own_seconds_do_not_crowd_out_others() -> None:
    """Of a family with both, the quick replays of one kind err more: many of them are no better, yet one of the others is found;
    it is not, where as many of the others were no better.
    """
    asked = problem("chain:4", "dapple-b:4", 8)
    search = joint_search._Descents(joint_search.JointSearch(), asked, Evaluator(asked))
    one = Pipeline("zb-v", ((0,), (1,)), (1, 2, 3), 4, (NONE,) * 4)
    plain, better = one.plan(asked, "by hand"), replace(one, microbatches=2)
    timed = replace(plain, options=(("op_seconds", (1.0, 1.0, 1.0, 0.0)),))

    def found(many: Plan) -> Pipeline | None:
        waiting = [(0.5, number, one, many, 1.0) for number in range(joint_search.PATIENCE)]
        last = (0.6, len(waiting), better, better.plan(asked, "by hand"), 1.0)
        search.whole = {many, last[3]}  # their quick replays are known
        search.quickly = {one: {many: 0.5}, better: {last[3]: 0.6}}
        scores = Mock(evaluations=0, judge=None)

        def score(plan: Plan) -> Score:
            scores.evaluations += 1
            return Score(0.9 if plan == last[3] else 2.0, 0.0, 1.0, 0)

        scores.side_effect = score
        with patch.object(search, "_waiting", lambda *_: [*waiting, last]), patch.object(search, "evaluate", scores):
            best = search._best([one], joint_search._Known((0.0, 1.0), 1.0), climbing=False)
        return best and best[0]

    assert (found(timed), found(plain)) == (better, None)


def test_a_search_ends_some_time_after_its_last_better_answer() -> None:
    """As long after it as it took to find, or three nominal seconds; and where the work that is asked for is done."""
    search = joint_search._Descents(
        planner_entry("joint").planner(Request()), PROBLEMS["two-servers"], Evaluator(PROBLEMS["two-servers"])
    )
    for found, last in ((0.0, 3.0), (1.0, 4.0), (5.0, 10.0), (18.0, 20.0)):
        search.done_at_best = found * WORK_PER_SECOND
        ends = []
        for search.done in ((last - 0.1) * WORK_PER_SECOND, (last + 0.1) * WORK_PER_SECOND):
            ends.append(not search.goes_on)
        assert ends == [False, True]


def test_descents_from_what_is_a_sixth_slower_than_another_answer_are_hopeless() -> None:
    """None is begun from these; from what is nearer to it some are."""
    for share, begun in ((0.84, False), (0.86, True)):
        search = descents(PROBLEMS["two-servers"], 0.1)
        least, done = min(score.iteration_seconds for score in search.replayed().values()), search.done
        search.evaluate.beat = least * share
        search.descend()
        assert (search.done > done) == begun


def test_descents_undercut_no_more_than_a_part_of_what_the_bound_leaves() -> None:
    """A tenth above the bound they gain less than two thirds of it; of twice the bound a sixth; with memory missing, whatever. Of
    what a judge counts plans as no bound is known: a sixth."""
    search = descents(PROBLEMS["two-servers"], 0.1)
    bound = lower_bound(search.problem).of(flush=True).seconds
    cases = [((0.0, 1.1), 1.03), ((0.0, 1.1), 1.05), ((0.0, 2.0), 1.69), ((0.0, 2.0), 1.71), ((1.0, 2.0), 0.5)]
    found = []
    for (missing, seconds), beat in cases:
        search.least, search.evaluate.beat = (missing, seconds * bound), beat * bound
        found.append(search._may_beat())
    assert found == [False, True, False, True, True]
    search.evaluate.judge = Mock()
    for beat, may in ((0.92, False), (0.95, True)):
        search.least, search.evaluate.beat = (0.0, 1.1 * bound), beat * bound
        assert search._may_beat() == may


@pytest.mark.parametrize(
    ("asked", "left", "ends_early"), [(None, 0.04, True), (None, 0.06, False), (20.0, 0.04, False)]
)
def test_a_plan_next_to_the_bound_ends_the_search_with_a_round(
    asked: float | None, left: float, ends_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the bound leaves less than a twentieth, and nobody asks for so many seconds."""
    rounds = list[float]()
    search = descents(PROBLEMS["two-servers"], asked)
    monkeypatch.setattr(search, "_bound", lambda: search.least[1] * (1.0 - left))
    monkeypatch.setattr(search, "_round", lambda begun, end: rounds.append(end))
    monkeypatch.setattr(joint_search, "DRY", 0.0)
    search.descend()
    assert (len(rounds) == 1) == ends_early


def test_orders_are_searched_for_pipelines_of_unlike_shapes() -> None:
    """Of seven on lone devices the two with most to gain, of any other no more, and one of two replicas each beside."""
    asked = problem("chain:12", "dapple-c:4", 8)
    search, words = descents(asked, 0.1, planner_entry("joint").planner), (NONE, NONE)
    for ranks, cuts in ((((0,), (1,)), range(1, 8)), (((0, 1), (2, 3)), (5, 6))):
        for cut in cuts:
            search.evaluate(Pipeline("1f1b", ranks, (cut,), 4, words).plan(asked, "joint"))
    alike = Counter((plan.replicas, plan.chunks) for plan in search._orderable())
    assert (alike[(1, 1), 1], max(alike.values())) == (2, 2)
    assert (2, 2, 1) in {(*replicas, chunks) for replicas, chunks in alike}


def test_a_searched_order_is_replayed_with_the_cuts_that_suit_it() -> None:
    """Cuts that were balanced for a family's order: what moves of them lead to is faster under the searched one."""
    asked = problem("vgg16", "dapple-c:4", 24)
    search = descents(asked, 1.0)
    plan = make_plan("uniform", asked, Request(schedule="zb-h1", stages=4, microbatches=6)).plan
    ordered = search._limited(plan)
    assert ordered is not None
    family = ordered.seconds
    found = search._in_orders(plan, ordered, 2.0, 0.005)
    assert found
    for other, one in found.items():
        assert other.stages != plan.stages
        assert one.seconds < ordered.seconds <= family


def test_seeds_that_lead_nowhere_below_another_answer_are_not_replayed() -> None:
    """Beside a plan of one device: none where the answer to beat is as fast as no seed, some without one."""
    replayed = []
    for beat in (np.inf, 1e-9):
        asked = problem("chain:4", "dapple-c:17", 16)
        search = joint_search._Descents(planner_entry("joint").planner(Request()), asked, Evaluator(asked, beat=beat))
        search.evaluate(Plan("alone", "1f1b", stages_from_cuts((), len(asked.workload), [(0,)]), (16,)))
        search._sow()
        replayed.append(search.evaluate.evaluations)
    assert replayed[0] > replayed[1] == 1


def test_seeds_are_replayed_beside_other_plans_on_few_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """On few of one rank and of several; on more of them those of several only where nothing fits."""
    monkeypatch.setattr(joint_search, "NICHED_ON", 17)
    for devices, more in ((17, True), (18, False)):
        asked = problem("chain:4", f"dapple-c:{devices}", 16)
        search = joint_search._Descents(planner_entry("joint").planner(Request()), asked, Evaluator(asked))
        search.evaluate(make_plan("data-parallel", asked).plan)
        search._sow()
        ranks = {len({stage.devices for stage in plan.stages}) for plan in search.evaluate.replayed}
        assert (1 in ranks, max(ranks) > 1) == (True, more)


def test_replicas_that_reduce_their_stages_one_by_one_are_begun_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """MobileNet on two servers, beside a plan of data parallelism on all devices: the fastest that is sown has several stages."""
    monkeypatch.setattr(joint_search, "NICHED_ON", 0)
    asked = problem("mobilenet-v1", "pipedream-b:2", 128)
    search = joint_search._Descents(planner_entry("joint").planner(Request()), asked, Evaluator(asked))
    whole = make_plan("data-parallel", asked).plan
    search.evaluate(whole)
    search._sow()
    fastest = min(search.evaluate.replayed, key=lambda one: search.evaluate.replayed[one].key)
    assert {stage.devices for stage in fastest.stages} == {whole.stages[0].devices}
    assert len(fastest.stages) == LOOPED


def test_what_leads_where_another_did_is_descended_from_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the schedule, which led away; what stayed, or led elsewhere, by all decisions from there."""
    search = descents(PROBLEMS["two-servers"], 0.5)
    starts = [Pipeline("1f1b", ((0,), (1,)), (cut,), 4, (NONE,) * 2) for cut in (1, 2, 3, 4)]
    leads = dict(zip(starts, (starts[0], starts[0], starts[3], starts[3]), strict=True))
    monkeypatch.setattr(search, "_starts", lambda: starts)
    monkeypatch.setattr(search, "_descend_from", lambda start, decisions: ((0.0, 1.0), leads[start]))
    found = [(one, "schedule" in decisions) for _, one, decisions in search._briefly_descended()]
    assert found == [(starts[0], True), (starts[1], False), (starts[3], True), (starts[3], True)]


def test_forms_behind_faster_ones_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that nothing came to, each once, in equal parts of what the ones before it left; at most UNTRIED of them."""
    search, ends = descents(PROBLEMS["two-servers"], 0.5), list[tuple[object, float]]()
    ranks = [((0,), (1,)), ((0, 1), (2,)), ((0,), (1, 2)), ((0, 1), (2, 3)), ((0, 1, 2), (3,))]
    starts = [Pipeline("1f1b", each, (2,), 4, (NONE,) * 2) for each in ranks]

    def descended(start: Pipeline, decisions: object) -> None:
        ends.append((start, search.most - search.done))
        search.done += 10.0

    monkeypatch.setattr(joint_search, "UNTRIED", 3)
    monkeypatch.setattr(search, "_starts", lambda: starts)
    monkeypatch.setattr(search, "_descend_from", descended)
    search.tried = {joint_search._form(starts[1])}
    for found in ([(starts[0], 40.0), (starts[2], 55.0), (starts[3], 100.0)], [(starts[4], 120.0)], []):
        search._descend_from_untried(search.done + 120.0)
        assert ends == [(one, pytest.approx(work)) for one, work in found]
        ends.clear()


def test_a_further_round_begins_with_forms_that_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first one; a part of the work that is not for orders."""
    search, ends = descents(PROBLEMS["two-servers"], 0.5), list[float]()
    monkeypatch.setattr(search, "_descend_from_untried", ends.append)
    search._round(0.0, 1000.0)
    assert not ends
    begun = search.done
    search._round(begun, begun + 1000.0)
    assert ends == [pytest.approx(begun + joint_search.OF_UNTRIED * (1.0 - joint_search.OF_ORDERS) * 1000.0)]


def test_a_round_more_is_worth_it_where_the_last_gained_and_the_bound_leaves_much() -> None:
    """Half of a percent, or memory that is missing no more; a fifth above the bound."""
    asked = problem("chain:4", "dapple-b:4", 8)
    search = joint_search._Descents(joint_search.JointSearch(), asked, Evaluator(asked))
    bound = lower_bound(asked).of(flush=True).seconds
    rounds = [((0.0, 2.02), 2.0), ((0.0, 2.005), 2.0), ((0.0, 1.4), 1.26), ((0.0, 1.4), 1.24), ((1.0, 1.0), 2.0)]
    worth = []
    for (missing, before), after in rounds:
        search.least = 0.0, after * bound
        worth.append(search._is_worth_a_round((missing, before * bound)))
    assert worth == [True, False, True, False, True]
    search.least = 1.0, bound
    assert search._is_worth_a_round((2.0, bound))


def test_a_search_that_runs_dry_on_many_devices_sows_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through 24 GPUs of two kinds in both directions; where no round is dry, not in both."""
    found = []
    for dry in (0.5, 0.0):
        monkeypatch.setattr(joint_search, "DRY", dry)
        asked = problem("gnmt8", "sailor-gcp-24", 16)
        search = joint_search._Descents(joint_search.JointSearch(), asked, evaluate := Evaluator(asked))
        search.most = 1.0 * joint_search.WORK_PER_SECOND
        search.evaluate(make_plan("data-parallel", asked).plan)
        search.descend()
        ways = {tuple(asked.cluster.devices[one.devices[0]].name for one in plan.stages) for plan in evaluate.replayed}
        found.append(len({way[0] for way in ways if len(set(way)) == 2}))
    assert found[0] == 2 > found[1]


def test_seeds_left_out_are_slow_or_do_not_fit() -> None:
    """Of one rank, with groups that divide tensors, contexts and experts: busy as long as was asked, or replays do not fit."""
    blocks = Gpt(4, 256, 8, vocabulary=512, sequence=64, experts=Experts(8, 2, 512)).workload()
    asked = with_memory(Problem(blocks, load_cluster("dgx-a100").take(8), 24, optimizer="adam"), 1.2e8)
    evaluate = Evaluator(asked)
    moves, quick = Neighbourhood(asked, Request(), evaluate.layer_costs), QuickReplays(asked, evaluate.layer_costs)
    every = {one: one.plan(asked, "joint") for one in moves.seeds(most=1)}
    below = float(np.median([quick.fill_and_work(plan) for plan in every.values()]))
    kept, left = {*moves.seeds(most=1, below=below)}, [0, 0]
    for one in every.keys() - kept:
        fast = quick.fill_and_work(every[one]) < below
        left[fast] += 1
        assert not (fast and evaluate(every[one]).fits)
    assert min(len(kept), *left) > 20


def test_seeds_of_one_rank_have_whole_servers_and_whole_samples_per_replica() -> None:
    """Four servers of four devices, a batch of 60: replicas on 16, 8 and 4 devices and on one, of 1, 2, 4, ... samples each."""
    moves = Neighbourhood(asked := problem("vgg16", "pipedream-a", 60), Request(), LayerCosts(asked))
    counts: dict[int, set[int]] = {}
    for one in moves.seeds(most=1):
        counts.setdefault(len(one.ranks[0]), set()).add(one.microbatches)
    assert counts == {16: {1, 2, 4}, 8: {1, 2, 4, 8}, 4: {1, 2, 4, 8, 15}, 1: {1, 2, 4, 8, 15, 30, 60}}
    assert {len(one.ranks) for one in moves.seeds(least=2)} == set(range(2, 17))


@pytest.mark.parametrize(("gained", "taken"), [(1e-7, "simple"), (1e-5, "ordered")])
def test_of_plans_as_fast_the_simpler_is_the_answer(gained: float, taken: str) -> None:
    """An order of its own that is a rounding faster is not, and then one that needs less memory is; one that is more than a
    millionth faster is."""
    asked = PROBLEMS["two-servers"]
    planner = planner_entry("joint").planner(Request(schedule="1f1b", options={"seconds": 0.0005}))
    search = joint_search._Descents(planner, asked, evaluate := Evaluator(asked))
    plans = {"simple": make_plan("data-parallel", asked).plan}
    plans["ordered"] = replace(plans["simple"], order=("0F0 0B0",))
    score = evaluate(plans["simple"])
    faster = replace(score, iteration_seconds=score.iteration_seconds * (1.0 - gained))
    with patch.object(search, "replayed", lambda: {plans["ordered"]: faster, plans["simple"]: score}):
        assert search.descend() == plans[taken]
    lighter = replace(plans["simple"], planner="lighter")
    less = replace(score, iteration_seconds=score.iteration_seconds * (1.0 + gained), peak_bytes=score.peak_bytes / 2)
    with patch.object(search, "replayed", lambda: {plans["simple"]: score, lighter: less}):
        assert search.descend() == (lighter if taken == "simple" else plans["simple"])


def test_orders_of_the_fastest_pipelines_are_searched(recorded: Recorded) -> None:
    """Work done, plans that were replayed, and which pipelines were ordered."""
    search = descents(PROBLEMS["two-servers"], 0.3, planner_entry("joint").planner)
    search.descend()
    search.most, made = np.inf, search.evaluate.evaluations
    search.ordered.clear()
    pipelines = search._orderable()
    search.ordered.clear()
    search._order()
    seconds = [one.iteration_seconds for one in search.evaluate.replayed.values()][made:]
    recorded(
        orderable=[[plan.schedule, one.work, one.seconds] for plan, one in pipelines.items()],
        done=search.done,
        replayed=seconds,
    )


def test_families_flush() -> None:
    """What is searched is known, and which of it divides backwards."""
    for name in FAMILIES:
        family = schedule_families()[name]
        chunks = {"chunks": 2} if "chunks" in family.options else {}
        schedule = build_schedule(name, 8 if family.chunks > 1 or chunks else 4, 8, **chunks)
        assert (OpKind.WEIGHT_GRADIENT in schedule.kind) == (name in DIVIDING)
        assert family.flush
        assert not family.lanes


def test_divided_backwards_of_a_profile_are_told() -> None:
    """A profile has whole backwards alone: what the answer assumes of their halves stands in a note."""
    asked = replace(PROBLEMS["measured"], recompute="none", batch=12)
    found = make_plan("joint", asked, Request(schedule="zb-h1", stages=2))
    assert any("half of each measured backward" in note.text for note in found.notes)
    whole = make_plan("joint", asked, Request(schedule="1f1b", stages=2))
    assert not any("half of each measured backward" in note.text for note in whole.notes)


def test_what_is_no_pipeline_is_told() -> None:
    """Sizes and orders of its own, and stale weights."""
    asked = PROBLEMS["two-servers"]
    plan = make_plan("uniform", asked).plan
    assert pipeline_of(asked, plan) is not None
    unlike = replace(plan, microbatches=(3, 1) if asked.batch == 4 else equal_microbatches(asked.batch, 1))
    assert pipeline_of(asked, unlike) is None
    assert pipeline_of(asked, replace(plan, schedule="pipedream")) is None
    sizes = (plan.microbatches,) * len(plan.stages)
    assert pipeline_of(asked, replace(plan, forward_sizes=sizes, backward_sizes=sizes)) is None
    first, last = Stage((0, 1), (0, 1), (2,)), Stage((2, 3), (2,), (1,))
    assert pipeline_of(asked, replace(plan, stages=(first, last))) is None
    assert pipeline_of(asked, replace(plan, order=("0F0 0B0",), schedule="mine")) is None
    assert pipeline_of(asked, replace(plan, schedule="zb-v")) is None  # which has two stages a rank


def test_an_order_of_other_ops_is_none_to_search_from() -> None:
    """Of other micro-batches; nor is there a note of a searched one beside plans of other micro-batches alone."""
    asked = PROBLEMS["two-servers"]
    plan = Pipeline("1f1b", ((0,), (1,)), (2,), 4, (NONE,) * 2).plan(asked, "")
    ops, free = ops_of(PlanCosts(asked, plan)), {0: 0.0, 1: 0.0}
    other = replace(plan, microbatches=(2, 2))
    assert within(ops, plan, free) is not None
    assert within(ops, other, free) is None
    own = replace(plan, order=("0F0",), schedule="own")
    scores = {own: Score(1.0, 1.0, 1.0, 0), other: Score(3.0, 1.0, 1.0, 0), plan: Score(2.0, 1.0, 1.0, 0)}
    assert own_order(own, {one: scores[one] for one in (own, other)}) is None
    told = own_order(own, scores)
    assert told is not None
    assert (told.family, told.family_seconds) == ("1f1b", 2.0)
    assert own_order(plan, scores) is None


def test_a_stage_inside_a_block_is_divided_in_its_middle() -> None:
    """Of three layers between two cuts of one block the first goes to one of two replicas; where stages end with blocks alone the
    replicas stay together."""
    asked = blocks("generic", "bf16")
    begin = next(number for number, layer in enumerate(asked.workload.layers) if layer.block == 2)
    one = Pipeline("1f1b", ((0,), (1, 2), (3,)), (begin, begin + 3), 4, (NONE, ("whole", 0), NONE))
    found = []
    for runs in (Runs(), Runs(cut_blocks=False)):
        other = replace(asked, stack=Stack(name="any", runs=runs))
        moves = Neighbourhood(other, Request(), LayerCosts(other))
        found.append({each for each in moves.replicas(one) if len(each.ranks) > 3})
    parted = replace(
        one,
        ranks=((0,), (1,), (2,), (3,)),
        cuts=(begin, begin + 1, begin + 3),
        recompute=(NONE, ("whole", 0), ("whole", 0), NONE),
    )
    assert parted in found[0]
    assert found[1] == set()


def test_an_end_of_the_layers_goes_to_a_device_of_its_own() -> None:
    """The first place's layers, an embedding, or the last one's, from a replica of that end, if it has several."""
    asked = problem("gnmt8", "pipedream-b", 64)
    moves, layers = Neighbourhood(asked, Request(), LayerCosts(asked)), len(asked.workload)
    one = Pipeline("1f1b", ((0, 1, 2),), (), 1, (NONE,))
    first = replace(one, ranks=((0,), (1, 2)), cuts=(1,), recompute=(NONE, NONE))
    last = replace(one, ranks=((0, 1), (2,)), cuts=(layers - 1,), recompute=(NONE, NONE))
    assert {first, last} <= set(moves.replicas(one))
    for ends in (replace(first, ranks=((0,), (1,))), replace(last, cuts=(1,))):
        assert not any(each.cuts == (1, layers - 1) for each in moves.replicas(ends))
    both = replace(first, ranks=((0,), (1,), (2,)), cuts=(1, layers - 1), recompute=(NONE,) * 3)
    assert both in set(moves.replicas(first))


def test_a_search_that_ends_without_a_plan_that_fits_says_that_more_work_may_find_one() -> None:
    """Where its work is done: the numbers of the closest plan, and what else may help."""
    tiny = with_memory(PROBLEMS["measured"], 1e5)
    with pytest.raises(
        InfeasiblePlanError,
        match=r"^planner 'joint' finds no plan that fits: .*, or more --seconds: the search ended with its work "
        "done$",
    ):
        make_plan("joint", tiny, Request(options={"seconds": 1e-9}))


def test_as_many_blocks_run_again_as_memory_needs() -> None:
    """One device, one micro-batch: no policy is faster on all blocks, and with one block less the plan would not fit."""
    asked = problem("gpt2-medium", "dapple-c:1", 4, precision="fp16", optimizer="adam")
    found = make_plan("joint", asked, Request(microbatches=1, stages=1))
    (blocks,) = found.plan.recomputed_blocks
    assert 0 < blocks < 24
    evaluate = Evaluator(asked)
    assert not evaluate(replace(found.plan, recomputed_blocks=(blocks - 1,))).fits
    for policy in get_args(Recompute):
        whole = evaluate(replace(found.plan, recompute=(policy,), recomputed_blocks=()))
        assert found.iteration_seconds < whole.iteration_seconds or not whole.fits


def test_smaller_micro_batches_also_run_fewer_blocks_again() -> None:
    """Where some run again, half of them and three quarters."""
    asked = problem("gpt2", "pipedream-a", 64)
    one = Pipeline("1f1b", ((0, 1, 2, 3),), (), 4, (("blocks", 8),))
    found: dict[int, set[int]] = {}
    for each in Neighbourhood(asked, Request(), LayerCosts(asked)).counts_with_fewer_blocks(one):
        found.setdefault(each.microbatches, set()).add(each.recompute[0][1])
    assert min(found) > 4
    assert found[8] == {7, 6, 4}


@pytest.mark.parametrize(
    ("again", "told"), [((12, 12), (12, 0)), ((1, 11), (1, 11)), ((99, 3), (0, 3)), ((13, 12), ()), ((0, 0), ())]
)
def test_no_more_blocks_run_again_than_a_stage_has(again: tuple[int, int], told: tuple[int, ...]) -> None:
    """Of 13 and 12 blocks, one cut in two: a plan says how many of them only where others do not run again."""
    asked = problem("bert-large", "dapple-b:4", 16)
    one = Pipeline("1f1b", ((0,), (1,)), (len(asked.workload) // 2,), 4, tuple(("blocks", count) for count in again))
    assert one.blocks(asked) == [13, 12]
    assert one.plan(asked, "").recomputed_blocks == told


def test_searched_orders_keep_to_the_memory_of_the_familys_own() -> None:
    """On devices that hold no more than the family's plan takes, orders of the same stages replay and nearly all of them fit."""
    asked = problem("gpt2-medium", "pipedream-a:1", 16, precision="fp16", optimizer="adam")
    plan = make_plan("uniform", asked, Request(schedule="zb-h1", stages=4, microbatches=8)).plan
    evaluate = Evaluator(asked)
    peaks = evaluate(plan) and evaluate.peak_bytes(plan)
    assert peaks is not None
    ops = within(ops_of(PlanCosts(asked, plan, evaluate.layer_costs)), plan, dict.fromkeys(peaks, 0.0))
    assert ops is not None
    roomy = ops_of(PlanCosts(asked, plan))
    assert all(most < 8 * kept for most, kept in zip(ops.each("limit"), roomy.least_limits(), strict=True))
    for slower in (1.0, 4.0):
        for order in orders(ops, slower, seconds=0.005):
            other = in_order(plan, order)
            assert (other.stages, other.microbatches) == (plan.stages, plan.microbatches)
            assert evaluate(other).peak_bytes <= evaluate(plan).peak_bytes * 1.01


def test_an_order_is_searched_where_none_is_asked_for() -> None:
    """It is the answer where it is faster than every family, which a note says; a family that is asked for keeps its order."""
    asked = problem("chain:12", "dapple-c:4", 8)
    free, family = (
        make_plan("joint", asked, Request(schedule=name, options={"seconds": 0.3})) for name in (None, "zb-h2")
    )
    assert free.iteration_seconds <= family.iteration_seconds
    assert not family.plan.order
    told = free.noted(OwnOrder)
    assert free.plan.order
    assert told is not None
    assert told.family_seconds > free.iteration_seconds


def test_what_is_simpler_or_else_decided_is_told() -> None:
    """Of two plans that are as fast the simpler is the answer; a simpler one that is nearly as fast is named, with what it loses;
    and of other decisions what the best known loses.
    """
    asked = PROBLEMS["two-servers"]
    found = make_plan("joint", asked, Request(options={"seconds": 0.5}))
    seconds, replayed = (
        found.iteration_seconds,
        {one: score for one, score in found.replayed.items() if score.fits and flushes(one)},
    )
    least = min(score.iteration_seconds for score in replayed.values())
    assert seconds == least
    assert complexity(found.plan) == min(
        complexity(one) for one in replayed if replayed[one].iteration_seconds == least
    )
    near = [complexity(one) for one, score in replayed.items() if score.iteration_seconds <= 1.01 * seconds]
    told, others = found.noted(SimplerPlan), found.noted(NextBest)
    assert (told is not None) == (min(near) < complexity(found.plan))
    assert told is None or seconds <= told.simpler_seconds <= 1.01 * seconds
    assert others is not None
    assert others.next_best.keys() == others.next_best_loses.keys()
    for place, (name, lost) in enumerate(others.next_best_loses.items()):
        own, of = DECISIONS[name](asked, found.plan), DECISIONS[name]
        other = min(
            (score.iteration_seconds, of(asked, one)) for one, score in replayed.items() if of(asked, one) != own
        )
        assert (seconds * (1.0 + lost), others.next_best[name]) == (pytest.approx(other[0]), other[1])
        more = f"{100 * lost:.0f}" if lost >= 0.1 else f"{100 * lost:.2g}"
        assert (f"{name} {other[1]} {more} % slower" in others.text) == (place < 5)


def test_simple_is_what_every_framework_runs() -> None:
    """1F1B is simpler than interleaved 1F1B, that than zero bubble, and this than an order of its own; one stage has none."""
    plan = make_plan("uniform", PROBLEMS["two-servers"], Request(schedule="1f1b", stages=2)).plan
    own = replace(plan, schedule="search", order=("0F0 0B0", "1F0 1B0"))
    ranked = [plan, *(replace(plan, schedule=name) for name in ("interleaved-1f1b", "zb-h1")), own]
    assert [complexity(one) for one in ranked] == sorted({complexity(one) for one in ranked})
    assert complexity(replace(plan, recompute=("none", "whole"))) > complexity(plan)


def test_boards_share_a_layer_where_that_is_faster() -> None:
    """Three equal layers with many weights on two boards with a slow link: a part of the second on each, under any schedule."""
    network = chain([6e9] * 3, parameters=[2 * 10**7] * 3, output_elements=[1e3] * 3)
    asked, request = Problem(network, row_of_boards(["vcu118"] * 2, [1e8]), 2), Request(options={"seconds": 0.5})
    found = make_plan("joint", asked, request)
    with patch.object(joint_search._Descents, "_share", lambda search: None):
        before = make_plan("joint", asked, request)
    assert [one.layer for one in found.plan.splits] == [1]
    assert found.iteration_seconds < 0.96 * before.iteration_seconds


def test_what_replicas_divide_rules_no_other_out() -> None:
    """Where gathers are exposed ZeRO 3 keeps devices busy for longer: what is known of it first is no bound on ZeRO 0."""
    asked = replace(
        problem("gpt2-medium", "dgx-a100:1", precision="bf16"), stack=Stack(name="any", exposed=Constant(0.5))
    )
    descents = joint_search._Descents(joint_search.JointSearch(), asked, Evaluator(asked))
    whole = Pipeline("1f1b", (tuple(range(8)),), (), 1, (("none", 0),), zero=3)
    for one in (whole, replace(whole, zero=0)):
        next(descents._waiting(one, (0.0, float("inf"))))
    divided, kept = (descents.quick.fill_and_work(replace(whole, zero=zero).plan(asked, "joint")) for zero in (3, 0))
    assert list(descents.least_work.values()) == [kept]
    assert kept < divided


def test_moves_keep_to_what_the_stack_runs() -> None:
    """No pipeline; no looped one on one rank; no cut inside a block; the same recomputation of all stages."""
    asked = problem("gpt2", "pipedream-a:4", 16)

    def moves(**runs: bool) -> Neighbourhood:
        own = replace(asked, stack=Stack(name="less", runs=Runs(**runs)))  # type: ignore[arg-type]
        return Neighbourhood(own, Request(), LayerCosts(own))

    alone = moves(pipeline=False)
    (one, *others) = alone.seeds()
    assert {len(each.ranks) for each in (one, *others, *alone.degrees(one))} == {1}
    assert {len(each.ranks) for each in moves().degrees(one)} == {1, 2}
    chunks = [{each.chunks for each in moves(looped_alone=looped).schedules(one)} for looped in (True, False)]
    assert (max(chunks[0]) > 1, chunks[1]) == (True, {1})
    many = tuple((rank,) for rank in range(16))
    cuts = [moves(cut_blocks=cut).balanced(many, 1, 1, "1f1b") for cut in (True, False)]
    assert (len(cuts[0] or ()), cuts[1]) == (15, None)
    words = (("none", 0),) * 2
    two = replace(one, schedule="1f1b", ranks=((0,), (1,)), cuts=(50,), recompute=words, group=1)
    for unlike, several in ((True, {1, 2}), (False, {2})):
        more = moves(unlike_recompute=unlike).with_more_again(two, 0)
        assert {sum(policy != "none" for policy, _ in each.recompute) for each in more} == several


@pytest.mark.parametrize("stack", ["fsdp1-eager", "fsdp2-compiled", "megatron-core", "megatron-deepspeed"])
def test_a_stack_refuses_nothing_that_is_allowed(stack: str) -> None:
    """On random walks and in niches; of batches that not every number of micro-batches divides."""
    asked = replace(problem("gpt2", "pipedream-a:2", 24, precision="fp16"), stack=load_stack(stack))
    costs = LayerCosts(asked)
    moves = Neighbourhood(asked, Request(), costs)
    begun = [one for _, _, one in Niches(moves, Climbs(asked, costs, QuickReplays(asked, costs)), "none").begun(inf)]
    walked = list(some(asked, Request(), seed=4, steps=60))
    assert bool(begun) == asked.stack.runs.pipeline
    for one in (*begun, *walked):
        assert moves.allows(one)
        assert not list(plan_lacks(asked.stack.runs, asked, one.plan(asked, "joint")))


def test_pipelines_that_are_not_asked_for_are_not_allowed() -> None:
    """Two directions need several ranks of a device each; recomputation is what is asked for, of all blocks."""
    asked = problem("gpt2", "dgx-a100:1", 16)
    moves, kept = (
        Neighbourhood(asked, request, LayerCosts(asked)) for request in (Request(), Request(recompute="blocks"))
    )
    both = Pipeline("chimera", ((0,), (1,)), (50,), 4, (("none", 0),) * 2)
    assert moves.allows(both)
    assert not moves.allows(replace(both, ranks=((0,),), cuts=(), recompute=(("none", 0),)))
    assert not moves.allows(replace(both, ranks=((0, 1), (2,))))
    one = replace(both, schedule="1f1b")
    for again, free, fixed in (("none", True, False), ("blocks", True, True)):
        assert moves.allows(replace(one, recompute=((again, 0),) * 2)) == free
        assert kept.allows(replace(one, recompute=((again, 0),) * 2)) == fixed
    counted = replace(one, recompute=(("blocks", 2),) * 2)
    assert (moves.allows(counted), kept.allows(counted)) == (True, False)
    bare = replace(one, cuts=(1,), recompute=(("blocks", 0),) * 2)  # the embedding alone has no block
    assert not [*moves._counted(bare, (0,), (lambda now, held: now + 1,))]
    assert [*moves._counted(bare, (1,), (lambda now, held: 3,))] == [
        replace(bare, recompute=(("blocks", 0), ("blocks", 3)))
    ]


def test_plans_of_no_schedules_order_are_told_where_they_are_as_asked_for() -> None:
    """Of one rank, flushed, of those that are as asked for, the fastest that fits."""
    asked = PROBLEMS["two-servers"]
    plan = make_plan("uniform", asked, Request(schedule="1f1b", stages=2)).plan
    whole = replace(plan, stages=stages_from_cuts([], len(asked.workload), [(0, 1)]))
    other = replace(plan, microbatches=equal_microbatches(asked.batch, 1))
    streams = replace(whole, schedule="pipedream")

    def told(faster: Plan, *, fits: bool = True, obeys: bool = True) -> Note | None:
        scores = {plan: Score(2.0, 1.0, 2.0, 0), faster: Score(1.0, 1.0 if fits else 3.0, 2.0, 0)}
        return unordered(asked, plan, Mock(outcomes=scores, obeys=lambda one: one != faster or obeys))

    found = told(whole)
    assert isinstance(found, Unordered)
    assert "50 % less time" in found.text
    assert [told(other), told(streams), told(whole, fits=False), told(whole, obeys=False)] == [None] * 4


def test_a_simpler_plan_may_be_as_fast() -> None:
    """By hand: none slower, one by 0.5 %, and none of those that are slower by more."""
    asked = PROBLEMS["two-servers"]
    plain = make_plan("uniform", asked, Request(schedule="1f1b", stages=2)).plan
    plan = replace(plain, schedule="zb-h1")
    for seconds, words in ((1.0, "simpler, and as fast: "), (1.005, "simpler, and 0.5 % slower: "), (1.5, None)):
        scores = {plan: Score(1.0, 1.0, 2.0, 0), plain: Score(seconds, 1.0, 2.0, 0)}
        found = simpler_plan(asked, plan, scores)
        assert (found is None) == (words is None)
        assert found is None or found.text.startswith(words or "")
