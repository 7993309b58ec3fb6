"""Error bars: how far the seconds and the bytes of a plan may be off, by measured runs that are like it."""

from __future__ import annotations

from hardware_profiles import Figure, PlanKind, PredictionError, prediction_error
from simulator.plans.plan import Plan, Problem


def plan_kind(problem: Problem, plan: Plan) -> PlanKind:
    """The kind that a plan is of, as errors are told by it."""
    if not problem.workload.is_transformer:
        return "other"
    if any(layer.experts for layer in problem.workload.layers):
        return "experts"
    if problem.precision == "fp8":
        return "fp8"
    if plan.zero == 3:
        return "zero-3"
    return "pipeline" if len(plan.stages) > 1 else "data"


def error_of(problem: Problem, plan: Plan, figure: Figure) -> PredictionError:
    """What a plan's seconds, or the bytes of its fullest device, may be off by."""
    devices = (problem.cluster.devices[device] for stage in plan.stages for device in stage.devices)
    return prediction_error(figure, problem.stack, dict.fromkeys(devices), plan_kind(problem, plan))
