"""Tests of `planners.scheduler.order_replay`: a replay that begins where an order was changed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners.scheduler.bound import ways_of
from planners.scheduler.instance import codes_of, instance_of
from planners.scheduler.order_replay import Form, replay, replay_again, trace_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.search import search_schedule, without_weights
from tests.planners.scheduler.schedule_cases import schedule_problems


@pytest.mark.parametrize("fill", [False, True])
@given(schedule_problems(), st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_replayed_from_the_change(fill: bool, problem: ScheduleProblem, random: Random) -> None:
    """A chain of changed orders, each replayed from the change on, gives what whole replays give, or nothing that ends later."""
    instance = instance_of(problem)
    codes = codes_of(instance, search_schedule(problem, seconds=0.0).schedule, problem)
    assert codes is not None
    codes, offsets = without_weights(instance, codes) if fill else (codes, instance.offsets)
    ways = ways_of(instance)
    after = np.concatenate([ways.round - instance.seconds[0] + ways.tail, ways.tail])
    form = Form(fill, 0.0, True, False, after)
    trace, whole = trace_of(instance), trace_of(instance)
    makespan = replay(instance, codes, offsets, fill, 0.0, trace, True)
    for _ in range(12):
        device = random.randrange(problem.devices)
        if offsets[device + 1] - offsets[device] < 2:
            continue
        place = random.randrange(int(offsets[device]), int(offsets[device + 1]) - 1)
        changed = codes.copy()
        changed[[place, place + 1]] = changed[[place + 1, place]]
        expected = replay(instance, changed, offsets, fill, 0.0, whole, True)
        latest = makespan * random.choice([1.0, 1.1, np.inf])
        found = replay_again(instance, changed, offsets, form, trace, place, latest)
        if expected <= latest and expected < np.inf:
            assert found == expected
            assert trace.ends.tobytes() == whole.ends.tobytes()
            for name in ("order", "cause", "places"):
                assert getattr(trace, name).tobytes() == getattr(whole, name).tobytes()
            codes, makespan = changed, expected
        else:
            assert found == np.inf or latest < found == expected
            makespan = replay(instance, codes, offsets, fill, 0.0, trace, True)
