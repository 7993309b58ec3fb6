"""Planner `joint`: every decision of a flushed pipeline searched together.

The planners that search a part of the decisions exactly (shapes of large models, the pipeline × data grid, mixed devices) give
plans to begin with, climbs of niches others. From the fastest of unlike ones the search descends: it replays the neighbours
that one decision makes of a plan, goes to the best one, and ends where no neighbour is faster. A quick replay, which is never
slower than a replay, rules most neighbours out before they are replayed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planners.joint.neighbourhood import CHUNKS, DIVIDING, FAMILIES
from planners.joint.rounds import JointRounds
from planners.joint.search_state import SearchState
from planners.joint.sowing import Part, Sowing
from planners.joint.told import next_best, own_order, simpler_plan, unordered
from planners.search.candidates import (
    asked_degrees,
    asked_words,
    asked_zeros,
    searched_counts,
    straight_decisions,
    straight_shape,
)
from planners.search.evaluator import Evaluator, fitting
from planners.search.notes import HALVES_ASSUMED, Note, halves_are_known
from planners.search.quick_replay import order_of
from planners.search.request import Request
from simulator import InfeasiblePlanError, Plan, Problem, schedule_families

LEFT_OUT = (
    "not searched: offload of stashes and states to the host, groups of unlike sizes, layers that stages share but on boards, "
    "orders of ops but those of the fastest pipelines in one direction, of whole sequences"
)
"""Decisions that are not searched."""


@dataclass(frozen=True, slots=True)
class JointSearch:
    """The fastest plan that descents from the plans of other searches come to."""

    request: Request = field(default_factory=Request)
    parts: tuple[Part, ...] = ()
    name: str = "joint"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits, of those of several ranks where a schedule is asked for and one of them fits;
        InfeasiblePlanError, with numbers, if none does.
        """
        rounds = self.rounds(problem, evaluate)
        try:
            best = self._found(rounds, rng)
        except InfeasiblePlanError:
            if not rounds.state.in_a_row:
                raise
            rounds.state.look_for_all()
            best = self._found(rounds, rng)
        _tell(best, rounds.state)
        return replace(best, planner=self.name)

    def rounds(self, problem: Problem, evaluate: Evaluator) -> JointRounds:
        """The rounds of a search of which nothing is sown."""
        state = SearchState(problem, self.request, evaluate, self.name)
        return JointRounds(state, Sowing(state, self.parts))

    def _found(self, rounds: JointRounds, rng: np.random.Generator) -> Plan:
        """The best plan of a search that fits; InfeasiblePlanError, with numbers, if none does."""
        state, refusal = rounds.state, rounds.sowing.begin(rng)
        if not state.replayed():
            raise refusal or InfeasiblePlanError(f"planner {self.name!r} finds no plan to begin with")
        try:
            return fitting(self.name, rounds.descend(), state.evaluate)
        except InfeasiblePlanError as error:
            if not state.ended:
                raise
            raise InfeasiblePlanError(f"{error}, or more --seconds: the search ended with its work done") from None


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why there is no pipeline of the kind that is asked for, or None."""
    if request.schedule is not None:
        family = schedule_families()[request.schedule]
        if not family.flush or family.lanes:
            return f"it plans schedules that flush, of one op at a time; {request.schedule!r} is none"
    try:
        for option in ("tensor", "context", "expert"):
            asked_degrees(problem, request, option=option)
        asked_zeros(problem, request)
    except ValueError as error:
        return str(error)
    return straight_shape(problem, request) or _not_opposite(problem, request)


def _not_opposite(problem: Problem, request: Request) -> str | None:
    """Why no two pipelines in opposite directions are as asked for, or None, also where none are asked for."""
    if request.schedule is None or schedule_families()[request.schedule].placement != "bidirectional":
        return None
    if request.microbatches == 1:
        return f"schedule {request.schedule!r} has micro-batches in both directions, at least 2, got 1"
    for name in ("tensor", "context", "expert"):
        if 1 not in (asked := request.asked(name) or (1,)):
            return f"schedule {request.schedule!r} has one {problem.device_word} per stage and direction, not {name} {asked[0]}"
    try:
        if request.stages is not None:
            order_of(request.schedule, request.stages, 2, 1, ())
    except ValueError as error:
        return str(error)
    return None


def searched(problem: Problem, request: Request) -> dict[str, Iterable[Any]]:
    """Values that a search tries for decisions that the request leaves open."""
    return {
        **straight_decisions(problem, request, FAMILIES, searched_counts(problem), (1, *CHUNKS)),
        "recompute": asked_words(problem, request),
        **{name: asked_degrees(problem, Request(), option=name) for name in ("tensor", "context", "expert")},
        "zero": asked_zeros(problem, Request()),
    }


def _tell(plan: Plan, state: SearchState) -> None:
    """Note what the answer is beside other plans, what is not searched, and whether the work ended the search."""
    problem, request, evaluate = state.problem, state.request, state.evaluate
    replayed = {one: score for one, score in evaluate.outcomes.items() if score.fits and state.is_asked_for(one)}
    notes: list[Note | None] = [own_order(plan, replayed), simpler_plan(problem, plan, replayed)]
    if request.schedule is not None and request.stages != 1:
        notes.append(unordered(problem, plan, evaluate))
    notes += [next_best(problem, plan, replayed), Note(LEFT_OUT)]
    if state.ended:
        notes.append(Note("the search ended with its work done: with more --seconds it may find more"))
    if not halves_are_known(problem) and (plan.order or plan.schedule in DIVIDING):
        notes.append(HALVES_ASSUMED)
    for note in filter(None, notes):
        evaluate.note(note)
