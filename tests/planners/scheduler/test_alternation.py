"""Tests of `planners.scheduler.alternation`: orders of straight pipelines that run as they are timed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from experiments.schedule_search.problems import PUBLISHED, uneven
from planners.scheduler.alternation import alternate, alternations
from planners.scheduler.bound import lower_bound, spare_seconds
from planners.scheduler.instance import instance_of, schedule_of
from planners.scheduler.order_replay import replay, trace_of
from planners.scheduler.schedule_problem import ScheduleProblem
from simulator import chains_of, to_text
from tests.planners.scheduler.schedule_cases import schedule_problems
from tests.records import Recorded


@given(schedule_problems(("straight",)))
@settings(max_examples=15)
def test_orders_take_what_they_say(problem: ScheduleProblem) -> None:
    """Every setting gives a whole order within limits and its time, or none; one of the settings gives one."""
    instance = instance_of(problem)
    trace = trace_of(instance)
    made = []
    for way in alternations(spare_seconds(instance, False, lower_bound(instance))):
        makespan = alternate(instance, way, trace)
        if makespan < np.inf:
            order = trace.order.copy()
            assert replay(instance, order, instance.offsets, False, 0.0, trace, False) == makespan
            made.append(makespan)
    assert made


@pytest.mark.parametrize(("limit", "second"), [(3, "0F0 0F1 0F2 0I0 0W0 0F3"), (6, "0F0 0F1 0F2 0F3 0I0")])
def test_forwards_before_the_first_input_gradient(limit: float, second: str) -> None:
    """Two stages of ops of 1 s and transfers of 1 s: an input gradient is back after 6 s; memory holds 3 forwards or all."""
    problem = ScheduleProblem(
        chains=chains_of("straight", 2, 2),
        microbatches=4,
        forward=1,
        input_gradient=1,
        weight_gradient=1,
        transfer=1,
        freed_at_input_gradient=0.5,
        freed_at_weight_gradient=0.5,
        limit=limit,
    )
    instance = instance_of(problem)
    trace = trace_of(instance)
    alternate(instance, next(alternations(np.zeros(2))), trace)
    text = to_text(schedule_of(instance, trace.order, problem, "alternation"))
    assert text.splitlines()[0].startswith(second)


@pytest.mark.parametrize("filled", [True, False])
def test_a_gap_takes_a_longer_weight_gradient_where_it_is_told_to(filled: bool) -> None:
    """Three stages of ops of 1 s, weight gradients of 2 s: the second waits 1 s between input gradients, and the first longer."""
    problem = ScheduleProblem(
        chains=chains_of("straight", 3, 3),
        microbatches=3,
        forward=1,
        input_gradient=1,
        weight_gradient=2,
        transfer=1,
        freed_at_input_gradient=0.5,
        freed_at_weight_gradient=0.5,
        limit=3,
    )
    instance = instance_of(problem)
    trace = trace_of(instance)
    way = next(one for one in alternations(np.zeros(3)) if one.filled == filled)
    assert alternate(instance, way, trace) == 18.0
    lines = to_text(schedule_of(instance, trace.order, problem, "alternation")).splitlines()
    assert lines[1] == ("1F0 1F1 1F2 1I0 1W0 1I1 1I2 1W1 1W2" if filled else "1F0 1F1 1F2 1I0 1I1 1I2 1W0 1W1 1W2")


@pytest.mark.parametrize("limit", [8, 10, 16])
def test_alternations_are_as_long_as_before(limit: float, recorded: Recorded) -> None:
    """Makespan of every setting over the bound, on uneven stages of published seconds and on slower transfers."""
    row, found = PUBLISHED[0].problem(limit), dict[str, list[float]]()
    for name, problem in {
        "uneven": uneven(row, 0.3, 1),
        "slow transfers": replace(uneven(row, 0.1, 2), transfer=9000),
    }.items():
        instance = instance_of(problem)
        bound, trace = lower_bound(instance), trace_of(instance)
        found[name] = [
            alternate(instance, way, trace) / bound for way in alternations(spare_seconds(instance, False, bound))
        ]
    recorded(**found)
