"""Comparison: several planners on one problem, each plan replayed on the reference engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from planners import (
    InapplicablePlannerError,
    PlannedOutcome,
    Request,
    iteration_lower_bound,
    make_plan,
    planner_entries,
    planner_entry,
)
from simulator import InfeasiblePlanError, LayerCosts, Outcome, Problem, schedule_families, simulate

REFERENCE = "data-parallel"
"""Speedups are over this planner's plan."""

Status = Literal["fits", "does-not-fit", "no-plan-fits", "not-applicable", "failed", "interrupted"]
"""How a planner ended: with a plan that fits, with one that does not in the reference replay, without one because none fits,
because it does not apply, or by an error; `interrupted`: stopped before it had a plan, or not asked any more."""


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """One planner's answer: how it was found and what its replay gave; both None where it has no plan.

    reason: why there is no plan, or why it does not fit, or what to know of one that does, one line
    error: what was raised, if anything was
    """

    planner: str
    status: Status
    planned: PlannedOutcome | None = None
    outcome: Outcome | None = None
    reason: str = ""
    error: ValueError | None = None

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt cut the search short: its plan, if it has one, is the best so far."""
        return self.status == "interrupted" or (self.planned is not None and self.planned.interrupted)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every planner's answer, data parallelism's iteration for reference, and the bounds."""

    problem: Problem
    plans: tuple[ComparedPlan, ...]
    reference_seconds: float | None
    flushed_bound_seconds: float
    steady_bound_seconds: float

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt cut a search short; the planners behind it were not asked."""
        return any(one.interrupted for one in self.plans)

    def records(self) -> list[dict[str, Any]]:
        """One flat record a planner: the table's columns, in base units."""
        return [self._record(one) for one in self.plans]

    def _record(self, one: ComparedPlan) -> dict[str, Any]:
        record: dict[str, Any] = dict.fromkeys(FIELDS)
        record.update(
            planner=one.planner, status=one.status, feasible=False, interrupted=one.interrupted, reason=one.reason
        )
        if one.outcome is None or one.planned is None:
            return record
        outcome, plan = one.outcome, one.outcome.plan
        bubble, fullest = outcome.timeline.bubble(), outcome.fullest
        flushed = schedule_families()[plan.schedule].flush
        bound = self.flushed_bound_seconds if flushed else self.steady_bound_seconds
        seconds = outcome.iteration_seconds
        record.update(
            schedule=plan.schedule,
            asynchronous=not flushed,
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
            optimal_among=one.planned.optimal_among,
            feasible=outcome.fits,
        )
        return record


FIELDS = (
    "planner",
    "status",
    "schedule",
    "asynchronous",
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
    "optimal_among",
    "interrupted",
    "feasible",
    "reason",
)
"""Columns of a record. `lower_bound_seconds` holds for any plan, flushed or `asynchronous` (stale weights; steady state) as
this one is, and `gap` is the part by which the plan is above it; `optimal_among` are the plans among which it is proven the
fastest."""


def compare(
    problem: Problem,
    request: Request,
    *,
    names: Sequence[str] = (),
    seed: int = 0,
    report: Callable[[int, str], None] = lambda done, text: None,
) -> Comparison:
    """Plan with each planner and replay each plan on SimPy; whatever ends one planner is the reason in its row.

    names: planners to ask; none for every one but those of unequal micro-batches (what does not apply is listed with its reason)
    report: called with the planners done and the one at work
    An interrupt ends the search that runs, which keeps its best plan so far; the planners behind it are not asked.
    Raises ValueError for an unknown planner; KeyboardInterrupt if there is no plan yet.
    """
    for name in names:
        planner_entry(name)
    asked = list(dict.fromkeys(names)) or [name for name, entry in planner_entries().items() if not entry.unequal]
    costs = LayerCosts(problem)
    plans: list[ComparedPlan] = []
    for number, name in enumerate(asked):
        if plans and plans[-1].interrupted:
            plans.append(ComparedPlan(name, "interrupted", reason="not asked: an interrupt ended the comparison"))
            continue
        report(number, name)
        plans.append(_ask(problem, request, name, seed, costs))
    stopped = any(one.interrupted for one in plans)
    if stopped and all(one.outcome is None for one in plans):
        raise KeyboardInterrupt
    return Comparison(
        problem=problem,
        plans=tuple(plans),
        reference_seconds=_reference(problem, request, plans, seed, costs, search=not stopped),
        flushed_bound_seconds=iteration_lower_bound(problem, layer_costs=costs),
        steady_bound_seconds=iteration_lower_bound(problem, asynchronous=True, layer_costs=costs),
    )


def _ask(problem: Problem, request: Request, name: str, seed: int, costs: LayerCosts) -> ComparedPlan:
    try:
        planned = make_plan(name, problem, request, seed=seed)
        outcome = simulate(problem, planned.plan, layer_costs=costs)
    except KeyboardInterrupt:
        return ComparedPlan(name, "interrupted", reason="interrupted before it had a plan that fits")
    except InapplicablePlannerError as error:
        return ComparedPlan(name, "not-applicable", reason=error.reason, error=error)
    except InfeasiblePlanError as error:
        return ComparedPlan(name, "no-plan-fits", reason=str(error), error=error)
    except ValueError as error:
        return ComparedPlan(name, "failed", reason=str(error), error=error)
    if outcome.fits:
        notes = (outcome.warning, planned.details.get("cuts_left_out"))
        return ComparedPlan(name, "fits", planned, outcome, "; ".join(str(note) for note in notes if note))
    fullest = outcome.fullest
    reason = (
        f"needs {fullest.peak_bytes / 2**30:.4g} GiB on device {fullest.device}, "
        f"which holds {fullest.capacity_bytes / 2**30:.4g} GiB"
    )
    return ComparedPlan(name, "does-not-fit", planned, outcome, reason)


def _reference(
    problem: Problem,
    request: Request,
    plans: Sequence[ComparedPlan],
    seed: int,
    costs: LayerCosts,
    *,
    search: bool,
) -> float | None:
    """Iteration seconds of data parallelism, with its own schedule; None where it does not fit or may not be sought."""
    known = next((one for one in plans if one.planner == REFERENCE), None)
    if search and (known is None or (known.outcome is None and request.schedule is not None)):
        known = _ask(problem, Request(engine=request.engine), REFERENCE, seed, costs)
    return None if known is None or known.outcome is None else known.outcome.iteration_seconds
