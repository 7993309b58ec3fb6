"""Runner-ups: for every decision of a plan, the best known plan that decides otherwise, and how much slower it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from planners.search.result import Result, RunnerUp
from simulator import Outcome, Plan, Problem, Score, counted, flushes, recompute_phrases

Decision = Callable[[Problem, Plan], object]
"""(problem, plan) -> what the plan has, in words."""


def _replicas(problem: Problem, plan: Plan) -> str:
    return counted(map(str, plan.replicas))


def _degrees(problem: Problem, plan: Plan) -> str:
    degrees = ((degree // plan.context for degree in stage.degrees or (1,)) for stage in plan.stages)
    return counted(" and ".join(map(str, dict.fromkeys(of_stage))) for of_stage in degrees)


def _recompute(problem: Problem, plan: Plan) -> str:
    return counted(recompute_phrases(problem, plan))


def _microbatches(problem: Problem, plan: Plan) -> str:
    return "sizes of each stage" if plan.forward_sizes else str(len(plan.microbatches))


def _layers(problem: Problem, plan: Plan) -> str:
    return counted(str(len(stage.layers)) for stage in plan.stages)


DECISIONS: dict[str, Decision] = {
    "schedule": lambda problem, plan: plan.schedule,
    "stages": lambda problem, plan: str(len(plan.stages)),
    "stages per device": lambda problem, plan: str(plan.chunks),
    "replicas": _replicas,
    "tensor parallel": _degrees,
    "context parallel": lambda problem, plan: str(plan.context),
    "expert parallel": lambda problem, plan: str(plan.expert),
    "micro-batches": _microbatches,
    "ZeRO": lambda problem, plan: str(plan.zero),
    "recomputation": _recompute,
    "layers of stages": _layers,
    "shared layers": lambda problem, plan: str(len({split.layer for split in plan.splits})),
}
"""Decisions by name -> what a plan has, in words; equal stages in a row are counted."""

WITHIN: dict[str, tuple[str, ...]] = {
    "replicas": ("stages",),
    "recomputation": ("stages",),
    "layers of stages": ("stages",),
    "shared layers": ("stages",),
}
"""Decisions that are compared only between plans that agree in others: replicas of other stages cannot be compared."""


def runner_ups(answer: Result | Outcome, beside: Mapping[Plan, Score] = MappingProxyType({})) -> tuple[RunnerUp, ...]:
    """By decision, the best known plan that decides otherwise than an answer, in the order of DECISIONS; decisions without one
    are left out.

    It is what the planner knows itself, or the fastest replayed plan that fits; the first of equals.
    answer: of a search, or the replay of a plan, of which nothing else is known; beside: other plans of the problem and their
    scores
    """
    found: dict[str, RunnerUp] = {}
    if isinstance(answer, Result):
        known = [*otherwise(answer.problem, answer.plan, {**beside, **answer.replayed}).values(), *answer.told]
    else:
        known = list(otherwise(answer.problem, answer.plan, beside).values())
    for one in sorted(known, key=lambda one: one.seconds):
        found.setdefault(one.decision, one)
    order = [*DECISIONS, *(name for name in found if name not in DECISIONS)]
    return tuple(found[name] for name in order if name in found)


def otherwise(problem: Problem, plan: Plan, replayed: Mapping[Plan, Score]) -> dict[str, RunnerUp]:
    """By decision, the fastest replayed plan that fits and decides otherwise than a plan; the first of equals.

    Flushed plans are compared with flushed ones, plans that update with stale weights with such.
    """
    chosen = {name: str(decide(problem, plan)) for name, decide in DECISIONS.items()}
    found: dict[str, RunnerUp] = {}
    for other, score in sorted(_fitting(replayed, flushes(plan)), key=lambda one: one[1].iteration_seconds):
        has = {name: str(DECISIONS[name](problem, other)) for name in DECISIONS}
        for name in DECISIONS:
            alike = all(has[one] == chosen[one] for one in WITHIN.get(name, ()))
            if name not in found and has[name] != chosen[name] and alike:
                seconds, peak = score.iteration_seconds, score.peak_bytes
                found[name] = RunnerUp(name, chosen[name], has[name], seconds, peak, other.notation, problem, other)
    return found


def _fitting(replayed: Mapping[Plan, Score], flushed: bool) -> Iterator[tuple[Plan, Score]]:
    """Plans that fit and are flushed, or, if `flushed` is False, that fit and are not; with their scores."""
    return ((plan, score) for plan, score in replayed.items() if score.fits and flushes(plan) == flushed)
