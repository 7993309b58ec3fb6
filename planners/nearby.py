"""Neighbour plans: plans with one decision changed, from further searches or made of a plan, so that every decision
has a runner-up."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from math import inf
from typing import TypeVar, get_args

from planners.registry import make_plan, planner_entry
from planners.search.candidates import cut_places
from planners.search.evaluator import Evaluator, InapplicablePlannerError
from planners.search.request import Request
from planners.search.result import Proof, Result
from simulator import (
    InfeasiblePlanError,
    Plan,
    Problem,
    Score,
    Zero,
    equal_microbatches,
    flushes,
    group_degrees,
    recompute_words,
)

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1")
"""Schedules to try in place of a plan's own."""


def search_nearby(
    result: Result, request: Request, *, seed: int = 0, progress: Callable[[int, str], None] = lambda done, text: None
) -> Result:
    """The result with plans replayed by further searches, one for each next value of each decision that the request leaves open;
    if one of these finds a faster plan, that is the answer.

    request, seed: of the search that found the result
    progress: called with the number of searches done, and words for the next one
    A search that does not apply, or finds no plan that fits, adds nothing; other errors as in `make_plan`.
    """
    replayed, request, best = dict(result.replayed), replace(request, runner_ups=False), result
    for done, (words, wanted) in enumerate(nearby(result.problem, result.plan, request)):
        progress(done, words)
        try:
            found = make_plan(result.plan.planner, result.problem, wanted, seed=seed)
        except (InapplicablePlannerError, InfeasiblePlanError):
            continue
        replayed |= {plan: score for plan, score in found.replayed.items() if plan not in replayed}
        replayed.setdefault(replace(found.plan, planner=""), found.outcome.score)
        best = min(best, found, key=_seconds)
    if best is result:
        return replace(result, replayed=replayed)
    proof = Proof(reason="a search beside the planner's own, with more of the plan fixed, found it")
    return replace(best, replayed=replayed, proof=proof)


def _seconds(found: Result) -> float:
    """What the plan was judged by, in seconds; infinite for one that does not fit."""
    return found.judged if found.outcome.fits else inf


def nearby(problem: Problem, plan: Plan, request: Request) -> Iterator[tuple[str, Request]]:
    """Words and a request for each next value of each decision that this request leaves open and the plan's planner takes a
    request for.

    Numbers are halved and doubled; degrees and ZeRO stages take the next value below and above.
    """
    entry = planner_entry(plan.planner)
    microbatches, stages, chunks = len(plan.microbatches), len(plan.stages), plan.chunks
    if request.microbatches is None and not plan.forward_sizes:
        for count in (microbatches // 2, 2 * microbatches):
            if 1 <= count <= problem.batch:
                yield f"{count} micro-batches", replace(request, microbatches=count)
    if request.schedule is None:
        for name in SCHEDULES:
            if name != plan.schedule:
                yield name, replace(request, schedule=name)
    if request.stages is None and "stages" in entry.options:
        for count in (stages // 2, 2 * stages):
            if 1 <= count <= len(problem.workload):
                yield f"{count} stages", replace(request, stages=count)
    if request.chunks is None and "chunks" in entry.options:
        for count in (chunks // 2, 2 * chunks):
            if count >= 1:
                yield f"{count} stages per device", replace(request, chunks=count)
    tensor = max((degree // plan.context for stage in plan.stages for degree in stage.degrees), default=1)
    for option, chosen, choices in (("tensor", tensor, group_degrees(problem)), ("zero", plan.zero, range(4))):
        if option in entry.options and request.fixed(option) is None:
            for value in _neighbours(chosen, tuple(choices)):
                yield f"{option} {value}", request.fixing(option, value)


_Number = TypeVar("_Number", bound=int)


def _neighbours(chosen: int, choices: tuple[_Number, ...]) -> Iterator[_Number]:
    """The next choice below the chosen one, and the next above; fewer at the ends."""
    below, above = [one for one in choices if one < chosen], [one for one in choices if one > chosen]
    yield from (*below[-1:], *above[:1])


def replayed_beside(problem: Problem, plan: Plan, known: Container[str]) -> dict[Plan, Score]:
    """Scores of the `changed` plans that can run, without decisions of which another plan is known; known: names of these"""
    evaluate, found = Evaluator(problem), {}
    for decision, other in changed(problem, plan):
        if decision not in known:
            try:
                found[other] = evaluate(other)
            except InfeasiblePlanError:
                continue
    return found


def changed(problem: Problem, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans with one decision changed, each with the decision's name in `runner_ups`: the next values of what can be changed
    alone.

    They have half and twice the micro-batches, the next ZeRO stages, another recompute policy for all stages, the first or the
    last cut between stages one place earlier or later (for a network of blocks a whole block); GPipe for 1F1B and back.
    """
    if plan.order or plan.forward_sizes or not flushes(plan):
        return
    plan = replace(plan, planner="")
    for name, other in (("gpipe", "1f1b"), ("1f1b", "gpipe")):
        if plan.schedule == name and len(plan.stages) > 1:
            yield "schedule", replace(plan, schedule=other)
    count, replicas = len(plan.microbatches), max(plan.replicas)
    for number in (count // 2, 2 * count):
        if number and problem.batch % (number * replicas) == 0:
            yield "micro-batches", replace(plan, microbatches=equal_microbatches(problem.batch, number))
    for zero in _neighbours(plan.zero, get_args(Zero)) if replicas > 1 else ():
        yield "ZeRO", replace(plan, zero=zero)
    now = plan.recompute or (problem.recompute,) * len(plan.stages)
    for word in recompute_words(problem.workload):
        if now != (words := (word,) * len(now)) or any(plan.recomputed_blocks):
            yield "recomputation", replace(plan, recompute=words, recomputed_blocks=())
    for ends in _other_cuts(problem, plan):
        layers = (tuple(range(*pair)) for pair in pairwise((0, *ends)))
        stages = (replace(stage, layers=held) for stage, held in zip(plan.stages, layers, strict=True))
        yield "layers of stages", replace(plan, stages=tuple(stages))


def _other_cuts(problem: Problem, plan: Plan) -> Iterator[tuple[int, ...]]:
    """Ends of stages with the first, or the last but one, at the place before or behind its own."""
    if plan.splits:  # whose cuts are elsewhere
        return
    places, ends = cut_places(problem.workload), tuple(accumulate(len(stage.layers) for stage in plan.stages))
    for at in dict.fromkeys((0, len(ends) - 2)) if len(ends) > 1 else ():
        for place in _neighbours(ends[at], places):
            if (0, *ends)[at] < place < ends[at + 1]:
                yield (*ends[:at], place, *ends[at + 1 :])
