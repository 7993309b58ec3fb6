"""Evaluator: what scores the plans of a search; and the role of a planner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import MOST_COUNT, check_whole, gibibytes, optional_members, shown
from planners.search.notes import Note
from planners.search.plan_judge import PlanJudge
from planners.search.replay_work import WORK_PER_SECOND, work_of
from simulator import (
    Engine,
    Evaluations,
    InfeasiblePlanError,
    LayerCosts,
    Plan,
    PlanCosts,
    PlanNotRunError,
    Problem,
    Score,
    energy,
    simulate,
)

if TYPE_CHECKING:
    from planners.search.result import RunnerUp

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Progress:
    """A search at the moment of an improvement.

    evaluations, elapsed_seconds: spent so far; iteration_seconds: of the best plan that fits
    """

    evaluations: int
    elapsed_seconds: float
    iteration_seconds: float


class InapplicablePlannerError(ValueError):
    """Error of a planner that cannot plan this problem, or does not take what the request fixes; `reason` says why."""

    def __init__(self, planner: str, reason: str) -> None:
        super().__init__(f"planner {planner!r} does not apply: {reason}")
        self.planner, self.reason = planner, reason


class PlannerFailedError(ValueError):
    """Error of a planner that stopped on an error of its own program; the message names the planner and the error, in one
    line.
    """


class BudgetSpent(Exception):
    """Raised when the evaluations or nominal seconds of a search are used up; `run_planner` then answers with the best plan so
    far.
    """


class Evaluator:
    """Scores plans of one problem; the one mutable object of a search.

    With a judge the seconds of a score are those as which the judge counts the plan; `outcomes` has the seconds of replays.

    Lifetime: made for one problem and one search; called by the planner; read by `run_planner` when the planner returns or stops.
    Equal plans (whoever made them) are replayed once. It remembers the best plan that fits and may be the answer, so that an
    interrupted search still has one. A planner may write down what it knows of its search: notes (`note`), and runner-ups
    (`runner_ups`) beside those among its replays.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        engine: Engine = "compiled",
        budget: int | None = None,
        seconds: float = inf,
        beat: float = inf,
        judge: PlanJudge | None = None,
        admits: Callable[[Plan], bool] | None = None,
        progress: Callable[[Progress], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare a search.

        budget: evaluations after which BudgetSpent is raised; None for no limit
        seconds: nominal seconds, after whose work of replays (`WORK_PER_SECOND`) BudgetSpent is raised
        beat: seconds of an iteration of another answer, as plans are judged: a search that will not come below them may end early
        judge: turns the energy of a plan into the seconds as which it counts; None where seconds alone decide
        admits: whether a plan may be the answer, where a search looks at others, too; None: all may
        progress: called at every improvement
        clock: seconds; read for the history only, never for a decision
        Raises ValueError for a budget below 1.
        """
        if budget is not None:
            check_whole("budget", budget, -MOST_COUNT)
        if budget is not None and budget < 1:
            raise ValueError(f"budget must be at least 1 evaluation, got {budget}")
        self.problem = problem
        self.engine: Engine = engine
        self.beat, self.judge, self._admits = beat, judge, admits
        self.least_watts = inf
        self.layer_costs = LayerCosts(problem)
        self._evaluations = {
            "compiled": Evaluations(problem, self.layer_costs),
            "recurrence": Evaluations(problem, self.layer_costs, contention=False),
        }
        self.evaluations = 0
        self.history: list[Progress] = []
        self.best: Plan | None = None
        self.optimal_among = ""
        self.notes: list[Note] = []
        self.runner_ups: list[RunnerUp] = []
        self._not_run: PlanNotRunError | None = None
        self._wanted: Callable[[Plan], bool] | None = None
        self._best_seconds = inf
        self.budget, self.seconds, self._progress, self._clock = budget, seconds, progress, clock
        self._work = 0.0
        self._began = clock()
        self._known: dict[tuple[Engine, Plan], Score] = {}
        self._outcomes = self._known if judge is None else dict[tuple[Engine, Plan], Score]()

    def __call__(self, plan: Plan) -> Score:
        """The score of a plan, by a replay or recalled from an earlier one.

        A plan that exceeds memory has a score, and one that the problem's stack does not run has one of infinite seconds.
        Raises InfeasiblePlanError or ScheduleError for a plan that cannot run at all.
        Raises BudgetSpent if budget or nominal seconds allow no further replay.
        """
        return self._score(plan, self.engine)

    def on_reference(self, plan: Plan) -> Score:
        """The score of a plan on the reference engine with the problem's own options; for finalists and proofs.

        Raises as a call does. The best plan so far and the history stay those of the search's own engine.
        """
        return self._score(plan, "simpy")

    def _score(self, plan: Plan, engine: Engine) -> Score:
        key = engine, replace(plan, planner="")
        score = self._known.get(key)
        if score is None:
            outcome = self._replay(plan, engine)  # what cannot run costs nothing, and is refused whatever remains
            if self.remaining <= 0:
                raise BudgetSpent
            self._outcomes[key] = outcome
            score = self._known[key] = self._judged(plan, outcome)
            self.credit(1, work_of(plan))
            if engine == self.engine:
                self._remember(plan, score, outcome.iteration_seconds)
        return score

    def _judged(self, plan: Plan, outcome: Score) -> Score:
        """The score of a plan with the seconds as which the judge counts it."""
        if self.judge is None or not isfinite(outcome.iteration_seconds):
            return outcome
        drawn = energy(PlanCosts(self.problem, plan, self.layer_costs), outcome.iteration_seconds)
        if outcome.fits and self.admits(plan):
            self.least_watts = min(self.least_watts, drawn.watts)
        return replace(outcome, iteration_seconds=self.judge.judged(drawn))

    def at_least(self, devices: Iterable[int], seconds: float) -> float:
        """Lower bound on the seconds in the score of a plan on these devices, given a lower bound on the seconds of its
        replay.
        """
        if self.judge is None:
            return seconds
        powers = (optional_members(self.problem.cluster.devices[one]).power for one in devices)
        return self.judge.at_least(sum(one.idle for one in powers if one is not None), seconds)

    def peak_bytes(self, plan: Plan) -> dict[int, float] | None:
        """By device, the peak bytes of a plan that has a score, without an evaluation; None as of `Evaluations.peak_bytes`."""
        return self._evaluations["compiled"].peak_bytes(plan)

    def pass_peak_bytes(self, plan: Plan) -> Floats | None:
        """`Evaluations.pass_peak_bytes` of a plan that has a score, without an evaluation."""
        return self._evaluations["compiled"].pass_peak_bytes(plan)

    def forward_seconds(self, plan: Plan) -> float | None:
        """`Evaluations.forward_seconds` of a plan that has a score, without an evaluation."""
        return self._evaluations["compiled"].forward_seconds(plan)

    def obeys(self, plan: Plan) -> bool:
        """Whether a plan keeps to the request, and is flushed where the planner's plans are."""
        return self._admits is None or self._admits(plan)

    def admits(self, plan: Plan) -> bool:
        """Whether a plan may be the answer: it obeys the request and is of the kind that the planner looks for (`look_for`)."""
        return self.obeys(plan) and (self._wanted is None or self._wanted(plan))

    def look_for(self, wanted: Callable[[Plan], bool] | None) -> None:
        """From now on admit only plans for which `wanted` holds (None: all that obey), and find the best of those replayed so far
        anew.
        """
        self._wanted, self.best, self._best_seconds = wanted, None, inf
        outcomes = self.outcomes
        for plan, score in self.replayed.items():
            self._remember(plan, score, outcomes[plan].iteration_seconds)

    @property
    def replayed(self) -> dict[Plan, Score]:
        """Replayed plans (without their planner's name) and scores, of engines that know contention, which agree to the last
        bit.
        """
        return {plan: score for (engine, plan), score in self._known.items() if engine != "recurrence"}

    @property
    def outcomes(self) -> dict[Plan, Score]:
        """The plans of `replayed` with the seconds of their replays in place of what the judge counts."""
        return {plan: score for (engine, plan), score in self._outcomes.items() if engine != "recurrence"}

    @property
    def refusal(self) -> PlanNotRunError | None:
        """Why the problem's stack runs none of the plans that were scored: its first refusal; None where it runs one of them, or
        refused none.
        """
        return None if any(isfinite(score.iteration_seconds) for score in self._known.values()) else self._not_run

    @property
    def remaining(self) -> float:
        """Evaluations that the budget still allows, infinite without one; 0 once the nominal seconds are used up."""
        if not self.has_time():
            return 0.0
        return inf if self.budget is None else self.budget - self.evaluations

    def has_time(self, work: float = 0.0) -> bool:
        """Whether nominal seconds would be left after `work` more; always True before the first evaluation."""
        return not self._work or self._work + work < self.seconds * WORK_PER_SECOND

    def credit(self, evaluations: int, work: float = 0.0) -> None:
        """Count evaluations and work that a planner did by itself, within what `remaining` and `has_time` allowed."""
        self.evaluations += evaluations
        self._work += work

    def report(self, evaluations: int, seconds: float) -> None:
        """Report progress of a planner that evaluates by itself; evaluations: beside those counted so far; seconds: the best of
        an iteration
        """
        if self._progress is not None:
            self._progress(Progress(self.evaluations + evaluations, self._clock() - self._began, seconds))

    def note(self, note: Note) -> None:
        """Record a note of the planner about its search or its plan; equal notes once.

        Raises TypeError for anything but a `Note`.
        """
        if not isinstance(note, Note):
            raise TypeError(f"a planner notes a Note, as in Note('a sentence'), not {shown(note)}")
        if not note.text or (type(note), note.text) not in {(type(one), one.text) for one in self.notes}:
            self.notes.append(note)

    def declare_optimal(self, among: str) -> None:
        """Record that the planner has proven its plan the best of a space of plans, which `among` describes in words."""
        self.optimal_among = among

    def withdraw(self) -> None:
        """Drop notes and proofs so far, which are about a plan that is not the answer after all."""
        self.notes, self.optimal_among = [], ""

    def _replay(self, plan: Plan, engine: Engine) -> Score:
        try:
            found = self._evaluations[engine](plan) if engine in self._evaluations else None
            return found or simulate(self.problem, plan, engine=engine, layer_costs=self.layer_costs).score
        except PlanNotRunError as refusal:
            self._not_run = self._not_run or refusal
            device = plan.devices[0]
            return Score(inf, inf, self.problem.room_bytes(device), device)

    def _remember(self, plan: Plan, score: Score, seconds: float) -> None:
        if not score.fits or score.iteration_seconds >= self._best_seconds or not self.admits(plan):
            return
        self.best, self._best_seconds = plan, score.iteration_seconds
        step = Progress(self.evaluations, self._clock() - self._began, seconds)
        self.history.append(step)
        if self._progress is not None:
            self._progress(step)


class Planner(Protocol):
    """A search for a good plan: a function, or a frozen dataclass that holds its settings."""

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """A plan that runs and fits.

        rng: the only source of chance
        Raises InfeasiblePlanError, with the numbers in one line, if the planner finds none.
        """


def best_plan(name: str, plans: Iterable[Plan], evaluate: Evaluator) -> Plan:
    """The fastest of some plans that fit, the first of equals.

    name: of the planner, for the message
    Raises InfeasiblePlanError, with the numbers of the plan that comes closest, if none fits.
    """
    best = min(((evaluate(plan).key, number, plan) for number, plan in enumerate(plans)), key=lambda one: one[:2])[2]
    return fitting(name, best, evaluate)


def fitting(name: str, plan: Plan, evaluate: Evaluator, score: Score | None = None) -> Plan:
    """The plan itself if it fits; else raises InfeasiblePlanError with its numbers.

    name: of the planner, for the message; score: the plan's, where another engine than the search's own gave it
    """
    score = score or evaluate(plan)
    if not score.fits:
        raise refusal(name, evaluate.problem, plan, score)
    return plan


def refusal(name: str, problem: Problem, closest: Plan, score: Score) -> InfeasiblePlanError:
    """The error of a planner none of whose plans fits.

    closest, score: the plan that comes closest to fit; infinite seconds in its score say that its bytes are a lower bound
    """
    least, word = "" if isfinite(score.iteration_seconds) else "at least ", problem.device_word
    return InfeasiblePlanError(
        f"planner {name!r} finds no plan that fits: the closest needs {least}{gibibytes(score.peak_bytes)} on {word} "
        f"{score.device}, which holds {gibibytes(score.capacity_bytes)} ({closest.schedule}, {len(closest.stages)} stages, "
        f"{len(closest.microbatches)} micro-batches); use more {word}s, recomputation or a smaller batch"
    )
