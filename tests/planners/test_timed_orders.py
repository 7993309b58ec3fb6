"""Tests of `planners.search.timed_orders`: V-shaped families are made for the seconds of their stages where that is faster."""

from __future__ import annotations

import pytest

from hardware_profiles import load_cluster
from planners import Request, make_plan
from planners.search.timed_orders import OPTION, op_seconds, stage_seconds, with_timed
from simulator import LayerCosts, Plan, PlanCosts, Problem, load_workload, simulate
from tests.chains import chain


def _problem() -> Problem:
    """Five layers of uneven seconds on four devices."""
    return Problem(
        chain([4e12, 9e12, 5e12, 8e12, 4e12], parameters=[10**6] * 5, output_elements=[10**6] * 5),
        load_cluster("pipedream-a:1"),
        8,
    )


def _seconds(problem: Problem, plan: Plan) -> float:
    return simulate(problem, plan).iteration_seconds


@pytest.mark.parametrize(("name", "schedule"), [("uniform", "zb-v"), ("greedy", "v-half"), ("brute-force", "v-min")])
def test_answers_are_the_faster_order(name: str, schedule: str) -> None:
    """What is answered is the faster of the family's own order and that for the stages' seconds."""
    problem = _problem()
    found = make_plan(name, problem, Request(schedule=schedule, microbatches=4))
    plain = Plan(name, schedule, found.plan.stages, found.plan.microbatches)
    both = [*with_timed(problem, [plain], LayerCosts(problem))]
    assert [dict(one.options).keys() for one in both] == [set(), {OPTION}]
    assert found.outcome.iteration_seconds == min(_seconds(problem, one) for one in both)


def test_an_order_for_its_stages_is_faster() -> None:
    """BERT-large on eight A100s: weight gradients are a third of a forward, for which ZB-V's own order is not made."""
    problem = Problem(load_workload("bert-large"), load_cluster("dgx-a100:1"), 64, precision="fp16", optimizer="adam")
    found = make_plan("uniform", problem, Request(schedule="zb-v", microbatches=8))
    plain = Plan("uniform", "zb-v", found.plan.stages, found.plan.microbatches)
    assert dict(found.plan.options)[OPTION] == stage_seconds(PlanCosts(problem, plain))
    assert found.outcome.iteration_seconds < 0.95 * _seconds(problem, plain)


def test_what_stays_on_a_device_takes_no_transfer() -> None:
    """The stages in the middle of a V are the last device's: nothing passes there."""
    problem = _problem()
    plan = make_plan("uniform", problem, Request(schedule="zb-v", stages=4, microbatches=4)).plan
    costs = PlanCosts(problem, plan)
    sent = op_seconds(costs).transfer
    assert [seconds > 0 for seconds in sent] == [True, False, True]
    assert stage_seconds(costs)[-1] == pytest.approx((sent[0] + sent[2]) / 2)


def test_seconds_that_are_given_stay() -> None:
    """An order for seconds that are asked for is made for these; families without the option have one order."""
    problem = _problem()
    request = Request(schedule="zb-v", microbatches=8, options={OPTION: "1,1,1,0"})
    assert dict(make_plan("uniform", problem, request).plan.options)[OPTION] == (1.0, 1.0, 1.0, 0.0)
    plan = make_plan("uniform", problem, Request(schedule="1f1b")).plan
    assert [*with_timed(problem, [plan], LayerCosts(problem))] == [plan]
