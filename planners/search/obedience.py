"""Obedience: what a plan has of each thing that a request may fix, and whether that is what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planners.search.request import Request
from planners.search.search_options import PLANNER_OPTIONS
from simulator import Plan, Problem


def _recomputed(problem: Problem, plan: Plan) -> object:
    """What stages run again: of sizes of their own a stage does whose two differ."""
    words = {*(plan.recompute or (problem.recompute,))}
    if problem.recompute == "none" and plan.forward_sizes != plan.backward_sizes:
        words.add("whole")
    return words.pop() if len(words) == 1 else words


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
"""What a plan has of what may be asked for, by option; None where it has nothing of the kind, as one stage has no schedule."""


def disobeyed(problem: Problem, request: Request, plan: Plan) -> str | None:
    """What of a request a plan does not keep to, with what it has instead; None if it is as it was asked for."""
    for name, has in HAS.items():
        asked = request.asked(name) if name in PLANNER_OPTIONS else request.fixed(name)
        given = has(problem, plan)
        if asked is not None and given is not None and given not in (asked if isinstance(asked, tuple) else (asked,)):
            return f"{name} {asked!r} is not obeyed: {given!r}"
    return None
