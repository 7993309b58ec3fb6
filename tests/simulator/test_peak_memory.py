"""The compiled pass over a replay's times finds the peaks that memory over time has, to the last byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from simulator import Plan, Problem, build_program
from simulator.memory.over_time import memory_over_time
from simulator.memory.peaks import fullest, memory_events, peaks
from simulator.plan_replay import replay_compiled
from simulator.schedules.ops import OpKind
from tests.simulator.strategies import plans


@settings(max_examples=30)
@given(plans(1))
def test_peaks_are_those_of_memory_over_time(case: tuple[Problem, list[Plan]]) -> None:
    """Every device, to the last byte; and the fullest of them is found without a look at all."""
    problem, (plan,) = case
    costs, _, program = build_program(problem, plan)
    timeline = replay_compiled(program, contention=problem.contention)
    memory = memory_over_time(costs, timeline)
    stages = len(costs.plan.stages)
    events = memory_events(program, np.array([costs.recomputes(stage) for stage in range(stages)]))
    times = np.concatenate([timeline.start, timeline.end, [0.0], timeline.transfers.end])
    apart = np.isin(np.arange(stages), program.stage[program.kind == OpKind.RECOMPUTE]).tolist()
    stashes = np.array([costs.stash(stage, at_once=apart[stage]) for stage in range(stages)]).T
    sizes = np.concatenate([*stashes, np.ceil(program.transfer_bytes)])
    static = np.array([device.bytes[0, :4].sum() for device in memory])
    found = peaks(events, times, np.zeros(0), sizes, static)
    assert found.tolist() == [device.peak_bytes for device in memory]
    if (timeline.end > timeline.start).all():
        capacity = np.random.default_rng(problem.batch).choice((1e6, 2e6, 3e6), len(static))
        device, peak = fullest(events, times, np.zeros(0), sizes, static, capacity)
        assert (device, peak) == (int(np.argmax(found / capacity)), float((found)[np.argmax(found / capacity)]))
