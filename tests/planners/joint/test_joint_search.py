"""Joint search: no planner of a part is faster, no plan of a small space, and what is asked for is what is answered."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import pytest

from planners import Evaluator, Request, make_plan, planner_entry
from planners.joint.pipeline import Again, Pipeline, pipeline_of
from planners.joint.told import (
    Unordered,
)
from planners.search.notes import Note
from simulator import (
    InfeasiblePlanError,
    Plan,
    Problem,
    Zero,
)
from tests.planners.conftest import PROBLEMS, REQUESTS, with_memory
from tests.planners.joint.problems import problem
from tests.records import Recorded

PARTS = "data-parallel", "pipeline-data", "large", "mixed", "bapipe", "pipedream-flush"
"""Planners of parts of the space, but for orders of their own."""


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
            again: Again = asked.recompute, 0
            families = ("1f1b", "zb-h1", *(("chimera",) if ranks > 1 and ends[-1] == ranks else ()))
            zeros: tuple[Zero, ...] = 0, 1
            for schedule, count, zero in product(families, range(1, asked.batch + 1), zeros):
                if schedule == "chimera" and count == 1:
                    continue  # one direction has no micro-batch
                yield Pipeline(schedule, held, cuts, count, (again,) * ranks, zero=zero).plan(asked, "")


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


def test_no_plan_of_a_small_space_is_faster() -> None:
    """Of one."""
    assert beyond_the_optimum(2, REQUESTS["joint"]) <= 1e-9


@pytest.mark.slow
def test_the_optimum_of_small_spaces_is_found() -> None:
    """In each of ten; plans of other schedules may be faster."""
    assert max(beyond_the_optimum(seed) for seed in range(10)) <= 1e-9


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


def test_the_work_that_is_asked_for_is_what_is_done(recorded: Recorded) -> None:
    """With next to no work the answer is that of the plans to begin with; with more it is faster.

    Recorded is how many plans were replayed for it.
    """
    asked = PROBLEMS["two-servers"]
    little, more = (make_plan("joint", asked, Request(options={"seconds": one})) for one in (0.0005, 0.5))
    assert more.iteration_seconds < little.iteration_seconds
    assert more.evaluations > little.evaluations
    recorded(answers=[(one.iteration_seconds, one.evaluations) for one in (little, more)])


def test_a_search_that_ends_without_a_plan_that_fits_says_that_more_work_may_find_one() -> None:
    """Where its work is done: the numbers of the closest plan, and what else may help."""
    tiny = with_memory(PROBLEMS["measured"], 1e5)
    with pytest.raises(
        InfeasiblePlanError,
        match=r"^planner 'joint' finds no plan that fits: .*, or more --seconds: the search ended with its work "
        "done$",
    ):
        make_plan("joint", tiny, Request(options={"seconds": 1e-9}))
