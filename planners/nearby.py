"""Nearby: searches beside a search, each with another value of one decision, so that every decision has a runner-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planners.registry import make_plan, planner_entry
from planners.search.evaluator import PlannerFailedError, Request, Score
from planners.search.result import Result
from simulator import Outcome, Plan, Problem, group_degrees

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1")
"""Whose plans are looked for in place of those of a schedule; of planners that have them."""


def search_nearby(
    result: Result, request: Request, *, seed: int = 0, progress: Callable[[int, str], None] = lambda done, text: None
) -> Result:
    """The result, with what was replayed in searches for the next values of each decision that the request leaves open.

    request, seed: of the search that found it
    progress: called with searches done, and words for the one at work
    A search that does not apply, or finds no plan that fits, adds nothing; PlannerFailedError as of `make_plan`.
    """
    replayed, request = dict(result.replayed), replace(request, runner_ups=False)
    for done, (words, wanted) in enumerate(nearby(result.problem, result.plan, request)):
        progress(done, words)
        try:
            found = make_plan(result.plan.planner, result.problem, wanted, seed=seed)
        except PlannerFailedError:
            raise
        except ValueError:
            continue
        replayed |= {plan: score for plan, score in found.replayed.items() if plan not in replayed}
        replayed.setdefault(replace(found.plan, planner=""), _score(found.outcome))
    return replace(result, replayed=replayed)


def nearby(problem: Problem, plan: Plan, request: Request) -> Iterator[tuple[str, Request]]:
    """Words and a request for each next value of a decision that the planner takes a request for, and this one leaves open.

    Numbers that double and halve; degrees, and what ZeRO divides, the next below and above.
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
    if request.stages is None and "stages" in entry.takes:
        for count in (stages // 2, 2 * stages):
            if 1 <= count <= len(problem.workload):
                yield f"{count} stages", replace(request, stages=count)
    if request.chunks is None and "chunks" in entry.takes:
        for count in (chunks // 2, 2 * chunks):
            if count >= 1:
                yield f"{count} stages a device", replace(request, chunks=count)
    tensor = max((degree // plan.context for stage in plan.stages for degree in stage.degrees), default=1)
    for option, chosen, choices in (("tensor", tensor, group_degrees(problem)), ("zero", plan.zero, range(4))):
        if option in entry.options and option not in request.options:
            for value in _neighbours(chosen, tuple(choices)):
                yield f"{option} {value}", replace(request, options={**request.options, option: str(value)})


def _neighbours(chosen: int, choices: tuple[int, ...]) -> Iterator[int]:
    """The next below and the next above."""
    below, above = [one for one in choices if one < chosen], [one for one in choices if one > chosen]
    yield from (*below[-1:], *above[:1])


def _score(outcome: Outcome) -> Score:
    fullest = outcome.fullest
    return Score(outcome.iteration_seconds, fullest.peak_bytes, fullest.capacity_bytes, fullest.device)
