"""Runner-ups: for every decision of a plan, the best known plan that decides otherwise, and how much slower it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from planners.search.result import Result, RunnerUp
from simulator import Outcome, Plan, Problem, Score, counted, flushes, recompute_phrases

Decision = Callable[[Problem, Plan], object]


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
"""Decisions of plans -> the value of a plan in words; runs of equal stages are counted."""

WITHIN: dict[str, tuple[str, ...]] = {
    "replicas": ("stages",),
    "recomputation": ("stages",),
    "layers of stages": ("stages",),
    "shared layers": ("stages",),
}
"""Decisions that only plans which agree in others decide otherwise: replicas of other stages are other stages."""


def runner_ups(answer: Result | Outcome, beside: Mapping[Plan, Score] = MappingProxyType({})) -> tuple[RunnerUp, ...]:
    """By decision, in the order of DECISIONS, the best plan that decides otherwise: what the planner knows, or the fastest of
    those that it replayed and that fit; the first of equals. A decision without one is left out.

    answer: of a search, or a plan's replay, of which nothing else is known; beside: other plans of the problem, and their scores
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
    """By decision the fastest of the replayed plans that fit and decide otherwise than a plan; the first of equals.

    Plans that update with stale weights, which a search may look at, are none beside one that is flushed, nor it beside them.
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
    return ((plan, score) for plan, score in replayed.items() if score.fits and flushes(plan) == flushed)
