"""Comparison: several planners on one problem, each plan replayed on the reference engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from planners import (
    InfeasiblePartition,
    PlannedOutcome,
    Request,
    applicable_planners,
    iteration_lower_bound,
    make_plan,
    planner_entry,
)
from simulator import InfeasiblePlanError, LayerCosts, Outcome, Problem, schedule_families, simulate

REFERENCE = "data-parallel"
"""Speedups are over this planner's plan."""


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """One planner's answer: how it was found and what its replay gave; `outcome` is None where it has no plan.

    reason: why there is no plan, one line
    """

    planner: str
    planned: PlannedOutcome | None
    outcome: Outcome | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every planner's answer, data parallelism's iteration for reference, and the bounds."""

    problem: Problem
    plans: tuple[ComparedPlan, ...]
    reference_seconds: float | None
    flushed_bound_seconds: float
    steady_bound_seconds: float

    def records(self) -> list[dict[str, Any]]:
        """One flat record a planner: the table's columns, in base units."""
        return [self._record(one) for one in self.plans]

    def _record(self, one: ComparedPlan) -> dict[str, Any]:
        record: dict[str, Any] = dict.fromkeys(FIELDS)
        record.update(planner=one.planner, feasible=False, reason=one.reason)
        if one.outcome is None or one.planned is None:
            return record
        outcome, plan = one.outcome, one.outcome.plan
        bubble, fullest = outcome.timeline.bubble(), outcome.fullest
        flushed = schedule_families()[plan.schedule].flush
        bound = self.flushed_bound_seconds if flushed else self.steady_bound_seconds
        seconds = outcome.iteration_seconds
        record.update(
            schedule=plan.schedule,
            notation=plan.notation,
            stages=len(plan.stages),
            devices=len(plan.devices),
            microbatches=len(plan.microbatches),
            iteration_seconds=seconds,
            samples_per_second=outcome.samples_per_second,
            speedup_over_data_parallel=None if self.reference_seconds is None else self.reference_seconds / seconds,
            bubble_idle_over_makespan=bubble.idle_over_makespan,
            bubble_over_ideal=bubble.over_ideal,
            bubble_longest_stage=bubble.longest_stage,
            peak_memory_bytes=fullest.peak_bytes,
            capacity_bytes=fullest.capacity_bytes,
            fullest_device=fullest.device,
            bytes_per_sample=outcome.bytes_per_sample,
            planning_seconds=one.planned.planning_seconds,
            evaluations=one.planned.evaluations,
            lower_bound_seconds=bound,
            gap=seconds / bound - 1.0,
            feasible=outcome.fits,
            reason=one.reason,
        )
        return record


FIELDS = (
    "planner",
    "schedule",
    "notation",
    "stages",
    "devices",
    "microbatches",
    "iteration_seconds",
    "samples_per_second",
    "speedup_over_data_parallel",
    "bubble_idle_over_makespan",
    "bubble_over_ideal",
    "bubble_longest_stage",
    "peak_memory_bytes",
    "capacity_bytes",
    "fullest_device",
    "bytes_per_sample",
    "planning_seconds",
    "evaluations",
    "lower_bound_seconds",
    "gap",
    "feasible",
    "reason",
)


def compare(
    problem: Problem,
    request: Request,
    *,
    names: Sequence[str] = (),
    seed: int = 0,
    report: Callable[[int, str], None] = lambda done, text: None,
) -> Comparison:
    """Plan with each planner and replay each plan on SimPy.

    names: planners to ask; none for every one but those of unequal micro-batches (what does not apply is listed with its reason)
    report: called with the planners done and the one at work
    Raises ValueError for an unknown planner.
    """
    for name in names:
        planner_entry(name)
    reasons = applicable_planners(problem, request)
    asked = list(dict.fromkeys(names)) or [name for name in reasons if not planner_entry(name).unequal]
    costs = LayerCosts(problem)
    plans = []
    for number, name in enumerate(asked):
        report(number, name)
        if reasons[name] is not None:
            plans.append(ComparedPlan(name, None, None, str(reasons[name])))
        else:
            plans.append(_ask(problem, request, name, seed, costs))
    return Comparison(
        problem=problem,
        plans=tuple(plans),
        reference_seconds=_reference(problem, request, plans, seed, costs),
        flushed_bound_seconds=iteration_lower_bound(problem, layer_costs=costs),
        steady_bound_seconds=iteration_lower_bound(problem, asynchronous=True, layer_costs=costs),
    )


def _ask(problem: Problem, request: Request, name: str, seed: int, costs: LayerCosts) -> ComparedPlan:
    try:
        planned = make_plan(name, problem, request, seed=seed)
        outcome = simulate(problem, planned.plan, layer_costs=costs)
    except (InfeasiblePlanError, InfeasiblePartition) as error:
        return ComparedPlan(name, None, None, str(error))
    fullest = outcome.fullest
    reason = (
        ""
        if outcome.fits
        else f"needs {fullest.peak_bytes / 2**30:.4g} GiB on device {fullest.device}, "
        f"which holds {fullest.capacity_bytes / 2**30:.4g} GiB"
    )
    return ComparedPlan(name, planned, outcome, reason)


def _reference(
    problem: Problem, request: Request, plans: Sequence[ComparedPlan], seed: int, costs: LayerCosts
) -> float | None:
    """Iteration seconds of data parallelism, with its own schedule; None where it does not fit."""
    known = next((one for one in plans if one.planner == REFERENCE), None)
    if known is None or (known.outcome is None and request.schedule is not None):
        known = _ask(problem, dataclasses.replace(request, schedule=None, microbatches=None), REFERENCE, seed, costs)
    return None if known.outcome is None else known.outcome.iteration_seconds
