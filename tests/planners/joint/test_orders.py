"""Orders of their own for the ops of the fastest pipelines."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from planners import Evaluator, Request, make_plan, planner_entry
from planners.joint.orders import in_order, ops_of, orders, within
from planners.joint.pipeline import Pipeline
from planners.joint.told import (
    OwnOrder,
    own_order,
)
from simulator import (
    PlanCosts,
    Score,
)
from tests.planners.conftest import PROBLEMS
from tests.planners.joint.problems import NONE, begin, problem
from tests.records import Recorded


def test_orders_are_searched_for_pipelines_of_unlike_shapes() -> None:
    """Of seven on lone devices the two with most to gain, of any other no more, and one of two replicas each beside."""
    asked = problem("chain:12", "dapple-c:4", 8)
    search, words = begin(asked, 0.1, planner_entry("joint").planner), (NONE, NONE)
    for ranks, cuts in ((((0,), (1,)), range(1, 8)), (((0, 1), (2, 3)), (5, 6))):
        for cut in cuts:
            search.state.evaluate(Pipeline("1f1b", ranks, (cut,), 4, words).plan(asked, "joint"))
    alike = Counter((plan.replicas, plan.chunks) for plan in search.orders.orderable())
    assert (alike[(1, 1), 1], max(alike.values())) == (2, 2)
    assert (2, 2, 1) in {(*replicas, chunks) for replicas, chunks in alike}


def test_a_searched_order_is_replayed_with_the_cuts_that_suit_it() -> None:
    """Cuts that were balanced for a family's order: what moves of them lead to is faster under the searched one."""
    asked = problem("vgg16", "dapple-c:4", 24)
    search = begin(asked, 1.0)
    plan = make_plan("uniform", asked, Request(schedule="zb-h1", stages=4, microbatches=6)).plan
    ordered = search.orders.limited(plan)
    assert ordered is not None
    family = ordered.seconds
    found = search.orders.in_orders(plan, ordered, 2.0, 0.005)
    assert found
    for other, one in found.items():
        assert other.stages != plan.stages
        assert one.seconds < ordered.seconds <= family


def test_orders_of_the_fastest_pipelines_are_searched(recorded: Recorded) -> None:
    """Work done, plans that were replayed, and which pipelines were ordered."""
    search = begin(PROBLEMS["two-servers"], 0.3, planner_entry("joint").planner)
    search.descend()
    search.state.most, made = np.inf, search.state.evaluate.evaluations
    search.orders.ordered.clear()
    pipelines = search.orders.orderable()
    search.orders.ordered.clear()
    search.orders.order_fastest()
    seconds = [one.iteration_seconds for one in search.state.evaluate.replayed.values()][made:]
    recorded(
        orderable=[[plan.schedule, one.work, one.seconds] for plan, one in pipelines.items()],
        done=search.state.done,
        replayed=seconds,
    )


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
