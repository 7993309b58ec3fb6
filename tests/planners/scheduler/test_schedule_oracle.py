"""Orders and bounds against an exact solver (the extra `oracle`: OR-tools' CP-SAT)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners.scheduler.bound import Objective
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.search import search_schedule
from tests.planners.scheduler.schedule_cases import schedule_problems

cp_model = pytest.importorskip("ortools.sat.python.cp_model")


def least_seconds(problem: ScheduleProblem, horizon: int, objective: Objective) -> float:
    """The least makespan or longest stage of any order, by a model of its own: any order of micro-batches, memory a reservoir."""
    model = cp_model.CpModel()
    seconds = [problem.each(name) for name in ("forward", "input_gradient", "weight_gradient")]
    at_input, at_weight = problem.each("freed_at_input_gradient"), problem.each("freed_at_weight_gradient")
    intervals: list[list[object]] = [[] for _ in range(problem.devices)]
    changes: list[list[tuple[object, int]]] = [[] for _ in range(problem.devices)]
    longest = model.NewIntVar(0, horizon, "")
    begins: list[Any] = [model.NewIntVar(0, horizon, "") for _ in range(problem.devices)]
    if objective == "makespan":
        begins = [0] * problem.devices
    for chain, count in zip(problem.chains, problem.counts(), strict=True):
        for _ in range(count):
            starts = [[model.NewIntVar(0, horizon, "") for _ in chain] for _ in range(3)]
            ends = [
                [start + int(takes[s]) for s, start in enumerate(row)]
                for takes, row in zip(seconds, starts, strict=True)
            ]
            for stage, device in enumerate(chain):
                for kind in range(3):
                    intervals[device].append(
                        model.NewFixedSizeIntervalVar(starts[kind][stage], int(seconds[kind][stage]), "")
                    )
                    model.Add(ends[kind][stage] <= begins[device] + longest)
                model.Add(begins[device] <= starts[0][stage])
                model.Add(starts[1][stage] >= ends[0][stage])
                model.Add(starts[2][stage] >= ends[1][stage])
                kept = int(at_input[stage]), int(at_weight[stage])
                changes[device] += [
                    (starts[0][stage], sum(kept)),
                    (ends[1][stage], -kept[0]),
                    (ends[2][stage], -kept[1]),
                ]
            for stage, (here, there) in enumerate(itertools.pairwise(chain)):
                lag = int(problem.each("transfer")[stage]) if here != there else 0
                model.Add(starts[0][stage + 1] >= ends[0][stage] + lag)
                model.Add(starts[1][stage] >= ends[1][stage + 1] + lag)
    for device, limit in enumerate(problem.each("limit")):
        model.AddNoOverlap(intervals[device])
        real = [change for change in changes[device] if change[1]]
        model.AddReservoirConstraint([time for time, _ in real], [by for _, by in real], -(10**6), int(limit))
    model.Minimize(longest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.Solve(model) == cp_model.OPTIMAL
    return float(solver.ObjectiveValue())


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["makespan", "longest-stage"])
@given(schedule_problems(most_devices=3, most_microbatches=3))
@settings(max_examples=60)
def test_no_order_beats_a_proof_or_a_bound(objective: Objective, problem: ScheduleProblem) -> None:
    """The least cost is at least the bound, at most the search's, and equal to it where that says proven."""
    found = search_schedule(problem, seconds=0.1, objective=objective)
    least = least_seconds(problem, int(found.makespan), objective)
    assert found.bound <= least <= found.cost
    assert least == found.cost or not found.proven


@pytest.mark.slow
@given(schedule_problems(("straight",), most_devices=4, most_microbatches=4))
@settings(max_examples=20)
def test_no_order_of_a_straight_pipeline_beats_its_bound(problem: ScheduleProblem) -> None:
    """More devices and micro-batches, where a bound counts how often a round is waited for."""
    for objective in ("makespan", "longest-stage"):
        found = search_schedule(problem, seconds=0.05, objective=objective)
        if not found.proven:
            assert found.bound <= least_seconds(problem, int(found.makespan), objective) <= found.cost


@pytest.mark.slow
@pytest.mark.parametrize(
    "problems",
    [
        schedule_problems(("bidirectional",), most_devices=3, most_microbatches=5),
        schedule_problems(("interleaved", "v", "wave"), most_devices=3, most_microbatches=4),
    ],
    ids=["two chains", "several stages"],
)
def test_no_order_of_stages_that_share_a_device_beats_its_bound(problems: st.SearchStrategy[ScheduleProblem]) -> None:
    """More micro-batches of two chains, or of several stages per device: no order beats the bound, also where it is met."""

    @given(problems)
    @settings(max_examples=40)
    def check(problem: ScheduleProblem) -> None:
        found = search_schedule(problem, seconds=0.05)
        assert found.bound <= least_seconds(problem, int(found.makespan), "makespan") <= found.cost

    check()
