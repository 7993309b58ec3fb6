"""Tests of `planners.scheduler.list_scheduling`: forwards are admitted so that all that is in flight can be finished."""

from __future__ import annotations

import math

from hypothesis import given, settings

from planners.scheduler.instance import instance_of
from planners.scheduler.list_scheduling import list_schedule, settings_of
from planners.scheduler.order_replay import trace_of
from planners.scheduler.schedule_problem import ScheduleProblem
from tests.planners.scheduler.schedule_cases import schedule_problems


@given(schedule_problems())
@settings(max_examples=30)
def test_no_setting_gets_stuck(problem: ScheduleProblem) -> None:
    """Whatever the placement and however little memory there is beyond the least, every setting makes a whole order."""
    instance = instance_of(problem)
    trace = trace_of(instance)
    assert all(
        math.isfinite(list_schedule(instance, setting, trace)) for setting in settings_of(instance, problem.stages)
    )
