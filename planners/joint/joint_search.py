"""Planner `joint`: every decision of a flushed pipeline searched together.

It begins with plans of the planners that search a part of the decisions exactly (shapes of large models, the pipeline × data
grid, mixed devices), and with climbs of niches. From the fastest of these that are unlike it descends: it replays the neighbours
that differ from a plan in one decision, goes to the best of them, and ends where none is faster. A quick replay, which is never
slower than the replay, rules most neighbours out before they are replayed.
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
    asked_policies,
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
"""Note of the decisions that the search leaves alone."""


@dataclass(frozen=True, slots=True)
class JointSearch:
    """Planner that searches all decisions of a flushed pipeline together.

    request: what the user fixes; parts: planners whose plans it begins with (`Part`); name: of the planner in plans and messages
    """

    request: Request = field(default_factory=Request)
    parts: tuple[Part, ...] = ()
    name: str = "joint"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan found that fits; where a schedule is asked for, of several ranks if any such plan fits.

        Raises InfeasiblePlanError, with numbers, if no plan fits.
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
        """The rounds of a search that has not begun: no plan is replayed yet."""
        state = SearchState(problem, self.request, evaluate, self.name)
        return JointRounds(state, Sowing(state, self.parts))

    def _found(self, rounds: JointRounds, rng: np.random.Generator) -> Plan:
        """The best plan that a search finds; InfeasiblePlanError, with numbers, if none fits."""
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
    """Why the planner cannot plan what is asked for, as a sentence for the user; None where it can."""
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
    """Why the schedule of two opposite directions that is asked for cannot run as requested; None where it can, or none is asked
    for.
    """
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
    """Values that a search tries, by the name of the decision, for decisions that the request leaves open."""
    return {
        **straight_decisions(problem, request, FAMILIES, searched_counts(problem), (1, *CHUNKS)),
        "recompute": asked_policies(problem, request),
        **{name: asked_degrees(problem, Request(), option=name) for name in ("tensor", "context", "expert")},
        "zero": asked_zeros(problem, Request()),
    }


def _tell(plan: Plan, state: SearchState) -> None:
    """Note how the answer compares with other plans, what is not searched, and whether the search ran out of work."""
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
