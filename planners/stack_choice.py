"""Stack choice: a planner's search under each of several stacks, and the fastest answer of all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from hardware_profiles import GENERIC, ProfileError, Stack, load_stack, passed_over, stack_names
from planners.registry import NotFasterError, PlannerEntry, make_plan, others_told
from planners.search.evaluator import Evaluator, InapplicablePlannerError, Progress
from planners.search.notes import Note
from planners.search.plan_judge import PlanJudge
from planners.search.request import Request
from planners.search.result import Proof, Result, RunnerUp
from simulator import InfeasiblePlanError, Plan, PlanNotRunError, Problem, Score, kept_with_its_first, lower_bound

Refusal = InapplicablePlannerError | InfeasiblePlanError
"""Errors that say why there is no plan under a stack."""

NOT_RUN = (InapplicablePlannerError, PlanNotRunError)
"""Errors of a stack that runs no plan of the planner; other refusals say that no plan fits into memory."""


@dataclass(frozen=True, slots=True)
class StackChoice(Note):
    """The stack that an answer is for, among those that were searched.

    stack: its name
    stack_seconds: by stack, seconds of an iteration of the best plan under it; None where there is none
    """

    stack: str
    stack_seconds: Mapping[str, float | None]


def stacks_that_run(problem: Problem) -> tuple[Stack, ...]:
    """All stacks but `generic` that can run plans of a problem.

    Frameworks that stacks describe train transformers, and measured seconds are those of one framework: a network without blocks,
    or with measured layers, has none. A file that cannot be read is named on stderr and left out.
    """
    if not problem.workload.is_transformer:
        return ()
    found = []
    for name in stack_names():
        try:
            stack = load_stack(name)
        except ProfileError as error:
            passed_over(f"stack {name!r}", str(error))
            continue
        if stack != GENERIC and stack.runs_on(problem.cluster.kinds[0]) and _runs(problem, stack):
            found.append(stack)
    return tuple(found)


def _runs(problem: Problem, stack: Stack) -> bool:
    """Whether the problem can be put under a stack."""
    try:
        problem.under(stack)
    except ValueError:
        return False
    return True


def plan_over_stacks(
    planner: str | Callable[..., object] | PlannerEntry,
    problem: Problem,
    stacks: Sequence[Stack],
    request: Request | None = None,
    *,
    seed: int = 0,
    budget: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """The fastest plan that fits, over searches under each of some stacks; the answer's problem is under the stack that it is
    for.

    problem: under any stack
    stacks: searched by rising lower bound; if empty, the problem's own alone
    seed, budget, progress: of every search, as of `make_plan`
    A stack whose lower bound is not below the best plan so far is not searched. Nor is one under which no plan takes fewer
    seconds or bytes than under another that was searched: the other's best plan is replayed. Where none of them runs any plan of
    this planner the answer is for the problem's own stack, and a note says so. After an interrupt the answer is the best so far,
    and marked.
    Raises as `make_plan` does; where no stack has a plan that fits, what the first of them says. The error of a planner that does
    not apply names those that do.
    """
    search = _StackSearch(planner, request, seed, budget, progress)
    try:
        return _over_stacks(search, problem, stacks)
    except InapplicablePlannerError as error:
        told = "planners that" in error.reason
        others = "" if told else others_told(problem, request or Request(), error.planner)
        raise InapplicablePlannerError(error.planner, f"{error.reason}{others}") from None


def _over_stacks(search: _StackSearch, problem: Problem, stacks: Sequence[Stack]) -> Result:
    """The answer of a search that has not begun; arguments as of `plan_over_stacks`."""
    if not stacks:
        return search.plan(problem)
    under = [_under(problem, stack) for stack in dict.fromkeys(stacks)]
    for least, asked in sorted(((_least_seconds(one), one) for one in under), key=lambda one: one[0]):
        if not search.goes_on(asked, least):
            break
    if search.found:
        return search.fastest()
    too_large = [one for one in search.refused.values() if not isinstance(one, NOT_RUN)]
    if too_large:
        raise too_large[0]
    if problem.stack in stacks:
        raise search.refused[problem.stack.name]
    return search.on_its_own(problem)


@kept_with_its_first
def _known_under(problem: Problem) -> dict[Stack, Problem]:
    """A problem under stacks that were asked about, by stack; each is made once, so that what is kept with it serves every
    planner.
    """
    return {}


def _under(problem: Problem, stack: Stack) -> Problem:
    """The problem under a stack."""
    known = _known_under(problem)
    if stack not in known:
        known[stack] = problem.under(stack)
    return known[stack]


def _least_seconds(problem: Problem) -> float:
    """Lower bound on the seconds of any plan of the problem, flushed or not."""
    return lower_bound(problem).of(flush=False).seconds


@dataclass(slots=True)
class _StackSearch:
    """One planner's searches under several stacks: made for one question, asked stack by stack, then for the answer.

    asked: problems by the name of their stack; found: answers by it; refused: errors where there is none
    slower: lower bounds of stacks that were not searched
    beaten: plans of stacks whose search did not beat one found before
    """

    planner: str | Callable[..., object] | PlannerEntry
    request: Request | None
    seed: int
    budget: int | None
    progress: Callable[[Progress], None] | None
    asked: dict[str, Problem] = field(default_factory=dict)
    found: dict[str, Result] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    slower: dict[str, float] = field(default_factory=dict)
    beaten: dict[str, NotFasterError] = field(default_factory=dict)
    interrupted: bool = False

    def plan(self, problem: Problem, beat: float = inf) -> Result:
        """The answer under one stack; beat: seconds of another answer, as of `make_plan`"""
        return make_plan(
            self.planner, problem, self.request, seed=self.seed, budget=self.budget, progress=self.progress, beat=beat
        )

    def goes_on(self, problem: Problem, least: float) -> bool:
        """Search under the problem's stack, unless no plan under it can beat what is found; False after an interrupt, else True.

        least: lower bound on the seconds of any plan under it
        """
        name = problem.stack.name
        self.asked[name] = problem
        beat = min((one.judged for one in self.found.values() if one.outcome.fits), default=inf)
        if least >= beat:
            self.slower[name] = least
            return True
        try:
            if self._is_answered(problem, least):
                return True
            result = self.found[name] = self.plan(problem, beat)
        except NotFasterError as slower:
            self.beaten[name] = slower
            return True
        except (InapplicablePlannerError, InfeasiblePlanError) as refusal:
            self.refused[name] = refusal
            return True
        except KeyboardInterrupt:
            if not self.found:
                raise
            self.interrupted = True
            return False
        self.interrupted = result.interrupted and self.budget is None
        return not self.interrupted

    def _is_answered(self, problem: Problem, least: float) -> bool:
        """Whether the search under another stack answers for this one, since every plan is at least as fast and small there.

        The other's best plan is then replayed here and kept; where it does not fit here, the lower bound is; where none did
        there, the error.
        """
        if PlanJudge.of(problem, self.request or Request()) is not None:
            return False
        name, searched = problem.stack.name, (*self.found, *self.beaten, *self.refused)
        quicker = next((one for one in searched if self._is_nowhere_quicker(problem, one)), None)
        if quicker in self.refused:
            self.refused[name] = self.refused[quicker]
        elif quicker is not None:
            began, plan = time.process_time(), (self.found | self.beaten)[quicker].plan
            score = Evaluator(problem)(plan)
            if score.fits:
                self.beaten[name] = NotFasterError(plan, score, 1, time.process_time() - began)
            else:
                self.slower[name] = least
        return quicker is not None

    def _is_nowhere_quicker(self, problem: Problem, other: str) -> bool:
        """Whether no plan is faster or smaller under the problem's stack than under the stack of name `other`."""
        return problem.stack.is_nowhere_quicker(self.asked[other].stack, problem.cluster.kinds[0])

    def fastest(self) -> Result:
        """The fastest answer that fits, or else the fastest, with notes and a runner-up of what other stacks came to."""
        name = min(self.found, key=lambda one: (not self.found[one].fits, self.found[one].judged))
        best, others = self.found[name], self._others(name)
        searched: list[Result | NotFasterError] = [*self.found.values(), *self.beaten.values()]
        seconds = {name: best.iteration_seconds, **{one: score.iteration_seconds for one, (_, score) in others.items()}}
        second = next(iter(others), "")
        told_of = [_runner_up(name, self.asked[second], *others[second])] if second and others[second][1].fits else []
        told = [f"{one} {took:.4g} s" for one, took in seconds.items()]
        told += [f"{one} at least {least:.4g} s" for one, least in self.slower.items()]
        told += [f"no plan under {', '.join(self.refused)}"] * bool(self.refused)
        beside = dict.fromkeys((*self.slower, *self.refused))
        note = StackChoice(f"under each stack that runs it: {', '.join(told)}", name, {**seconds, **beside})
        proof = Proof(reason="interrupted, this is the best so far") if self.interrupted else best.proof
        return replace(
            best,
            evaluations=sum(one.evaluations for one in searched),
            planning_seconds=sum(one.planning_seconds for one in searched),
            interrupted=best.interrupted or self.interrupted,
            proof=proof,
            told=(*best.told, *told_of),
            notes=(*best.notes, note),
        )

    def _others(self, name: str) -> dict[str, tuple[Plan, Score]]:
        """Plans found under other stacks than the one of the answer, the fastest that fits first."""
        found = {one: (result.plan, result.outcome.score) for one, result in self.found.items() if one != name}
        found |= {one: (slower.plan, slower.score) for one, slower in self.beaten.items()}
        return dict(sorted(found.items(), key=lambda item: (not item[1][1].fits, item[1][1].iteration_seconds)))

    def on_its_own(self, problem: Problem) -> Result:
        """The answer for the problem's own stack, where the stacks that were searched run no plan of the planner."""
        result, name = self.plan(problem), problem.stack.name
        words = ", no framework in particular" if name == GENERIC.name else ""
        text = f"stack {name}{words}: no plan of this planner runs under {', '.join(self.refused)}"
        note = StackChoice(text, name, {name: result.iteration_seconds, **dict.fromkeys(self.refused)})
        return replace(result, notes=(*result.notes, note))


def _runner_up(chosen: str, problem: Problem, plan: Plan, score: Score) -> RunnerUp:
    """The best plan under another stack, as a runner-up in the decision "stack"."""
    other, seconds, peak = problem.stack.name, score.iteration_seconds, score.peak_bytes
    return RunnerUp("stack", chosen, other, seconds, peak, plan.notation, problem, plan)
