"""Obedience: what a plan has of each thing that a request may fix, and whether it is what the request fixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planners.search.request import Request
from planners.search.search_options import PLANNER_OPTIONS
from simulator import Plan, Problem


def _recomputed(problem: Problem, plan: Plan) -> object:
    """The recompute policy of a plan, or the set of them; a stage whose forwards and backwards differ in size recomputes
    wholly.
    """
    policies = {*(plan.recompute or (problem.recompute,))}
    if problem.recompute == "none" and plan.forward_sizes != plan.backward_sizes:
        policies.add("whole")
    return policies.pop() if len(policies) == 1 else policies


HAS: Mapping[str, Callable[[Problem, Plan], object]] = {
    "schedule": lambda problem, plan: plan.schedule if len(plan.stages) > 1 else None,
    "recompute": _recomputed,
    "stages": lambda problem, plan: len(plan.stages),
    "microbatches": lambda problem, plan: len(plan.microbatches),
    "chunks": lambda problem, plan: plan.chunks,
    "zero": lambda problem, plan: plan.zero if max(plan.replicas) > 1 else None,
    "tensor": lambda problem, plan: (
        max((one for stage in plan.stages for one in stage.degrees), default=1) // plan.context
    ),
    "context": lambda problem, plan: plan.context,
    "expert": lambda problem, plan: plan.expert,
}
"""Option -> (problem, plan) -> what the plan has of it; None where nothing of the kind applies, as a single stage has no
schedule.
"""


def disobeyed(problem: Problem, request: Request, plan: Plan) -> str | None:
    """Which option of a request a plan does not keep to, and what it has instead, as a sentence; None if it keeps to all."""
    for name, has in HAS.items():
        asked = request.asked(name) if name in PLANNER_OPTIONS else request.fixed(name)
        given = has(problem, plan)
        if asked is not None and given is not None and given not in (asked if isinstance(asked, tuple) else (asked,)):
            return f"{name} {asked!r} is not obeyed: {given!r}"
    return None
