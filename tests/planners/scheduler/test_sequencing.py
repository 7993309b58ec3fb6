"""Tests of `planners.scheduler.sequencing`: whatever the keys, an order that runs within limits."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planners.scheduler.instance import instance_of
from planners.scheduler.order_replay import replay, trace_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.sequencing import moved_keys, random_keys, sequence, times_of
from tests.planners.scheduler.schedule_cases import schedule_problems


@given(schedule_problems(), st.integers(0, 10**6))
@settings(max_examples=30)
def test_any_keys_make_an_order(problem: ScheduleProblem, seed: int) -> None:
    """Drawn at random or moved, in every placement, from the least memory on; and the times of an order's ops are its keys."""
    instance, random = instance_of(problem), np.random.default_rng(seed)
    trace, order = trace_of(instance), np.empty(int(instance.offsets[-1]), dtype=np.int16)
    keys = random_keys(instance, random)
    for _ in range(4):
        assert sequence(instance, keys, order)
        makespan = replay(instance, order, instance.offsets, False, 0.0, trace, False)
        assert makespan < np.inf
        times_of(instance, order, trace, keys)
        assert keys.min() == 0.0
        assert keys[keys < np.inf].max() <= makespan
        keys = moved_keys(instance, order, trace, random)


@given(schedule_problems())
@settings(max_examples=30)
def test_times_of_an_order_are_its_keys(problem: ScheduleProblem) -> None:
    """What begins first is sequenced first: the order comes back in its own time, or in less."""
    instance = instance_of(problem)
    trace, order = trace_of(instance), np.empty(int(instance.offsets[-1]), dtype=np.int16)
    assert sequence(instance, np.zeros((3 * len(instance.device), int(instance.passes.max()))), order)
    makespan = replay(instance, order, instance.offsets, False, 0.0, trace, False)
    keys = np.empty((3 * len(instance.device), int(instance.passes.max())))
    times_of(instance, order, trace, keys)
    for device in range(problem.devices):
        codes = order[instance.offsets[device] : instance.offsets[device + 1]]
        number = [int((codes[:row] == code).sum()) for row, code in enumerate(codes)]
        begins = keys[codes, number]
        assert (np.diff(begins) >= 0).all()
    assert makespan >= keys[keys < np.inf].max()


@given(schedule_problems())
@settings(max_examples=10)
def test_where_no_order_runs_none_is_made(problem: ScheduleProblem) -> None:
    """With the least that each device needs some order runs; where one device holds nothing at all, none."""
    instance = instance_of(problem)
    order = np.empty(int(instance.offsets[-1]), dtype=np.int16)
    keys = np.zeros((3 * len(instance.device), int(instance.passes.max())))
    for device in np.unique(instance.device[(instance.keep > 0) & (instance.passes > 0)]):
        limit = instance.limit.copy()
        limit[device] = 0
        assert not sequence(instance._replace(limit=limit), keys, order)
