"""Contract: what every planner of the registry owes, on small problems, and what each finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from planners import PLANNERS, Evaluator, Planner, PlannerEntry, Request, make_plan, planner_entry, testing
from planners.search.search_options import takes
from planners.testing import check_planner, check_result, small_problems
from simulator import (
    SCHEDULES,
    InfeasiblePlanError,
    Plan,
    Problem,
    Recompute,
    Stage,
    equal_microbatches,
    simulate,
)
from simulator.workloads.synthetic import uniform_chain
from tests.planners.conftest import PROBLEMS, REQUESTS, searched, shape, slower
from tests.records import Recorded

SHARED = ("dgap", "greedy-dp", "local-greedy", "best-equal")
"""Planners that are others but for a function on numbers."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SHARED else name for name in PLANNERS]
)
def test_a_planner_keeps_its_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of three small problems; of one, what is asked for, budgets, interrupts, little memory, and a second search."""
    every, names = small_problems(), ["transformer", "fewer-layers-than-devices", "one-layer"]
    few = {key: every[key] for key in (sorted(names) if name in ("modern", "scheduler") else names)}
    monkeypatch.setattr(testing, "small_problems", lambda: few)
    shorter: dict[str, Any] = {"microbatches": 2, "recompute": "none"} if "seconds" in PLANNERS[name].options else {}
    check_planner(name, replace(REQUESTS[name], **shorter), every=20)


def straight(problem: Problem, cut: int = 0, microbatches: int = 1) -> Plan:
    """GPipe on one device, or on the first two behind a cut."""
    layers = range(len(problem.workload))
    whole = (Stage(tuple(layers), (0,)),)
    stages = (Stage(tuple(layers[:cut]), (0,)), Stage(tuple(layers[cut:]), (1,))) if cut else whole
    return Plan("mine", "gpipe", stages, equal_microbatches(problem.batch, microbatches))


def honest(problem: Problem, evaluate: Evaluator, rng: Any) -> Plan:
    """One device, or the fastest cut in two."""
    cuts = range(len(problem.workload) if len(problem.cluster.devices) > 1 else 1)
    scores = {cut: evaluate(straight(problem, cut)) for cut in cuts}
    fitting = [cut for cut, one in scores.items() if one.fits]
    if not fitting:
        raise InfeasiblePlanError("no cut fits")
    return straight(problem, min(fitting, key=lambda cut: scores[cut].iteration_seconds))


def test_a_planner_of_another_package_keeps_the_contract() -> None:
    """A function, as a plug-in would offer it."""
    check_planner(honest)


calls: list[int] = []


def by_chance(problem: Problem, evaluate: Evaluator, rng: Any) -> Plan:
    """Another plan each time."""
    calls.append(1)
    evaluate(plan := straight(problem, microbatches=1 + len(calls) % 2))
    return plan


def without_a_look(problem: Problem, evaluate: Evaluator, rng: Any) -> Plan:
    """Nothing is replayed."""
    return straight(problem)


def whether_it_fits_or_not(problem: Problem, evaluate: Evaluator, rng: Any) -> Plan:
    """One device."""
    evaluate(plan := straight(problem))
    return plan


def without_a_budget(problem: Problem, evaluate: Evaluator, rng: Any) -> Plan:
    """One device, unless evaluations are counted."""
    if evaluate.budget is not None:
        raise InfeasiblePlanError("too few evaluations")
    evaluate(plan := straight(problem))
    return plan


def of_its_own(request: Request) -> Planner:
    """One device, and as many micro-batches as samples unless some are asked for; deaf for anything else."""

    def plan(problem: Problem, evaluate: Evaluator, rng: Any) -> Plan:
        found = straight(problem, microbatches=request.microbatches or problem.batch)
        if not evaluate(found).fits:
            raise InfeasiblePlanError("one device does not hold all")
        return found

    return plan


def in_two(request: Request) -> Planner:
    """GPipe in two stages, whatever schedule is asked for."""

    def plan(problem: Problem, evaluate: Evaluator, rng: Any) -> Plan:
        found = straight(problem, 1, request.microbatches or problem.batch)
        if not evaluate(found).fits:
            raise InfeasiblePlanError("two devices do not hold all")
        return found

    return plan


def entry(reason: str | None = None, **more: Any) -> PlannerEntry:
    """An entry of that planner."""
    return PlannerEntry(of_its_own, "of its own", lambda problem, request: reason, **more)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (by_chance, "two plans"),
        (without_a_look, "evaluated no plan"),
        (without_a_budget, "needs more evaluations than it counted"),
        (whether_it_fits_or_not, "a plan that does not fit"),
        (entry(options=takes("stages")), "stages 2 is not obeyed"),
        (entry(searches={"microbatches": lambda problem, request: (1, 2)}), "asked for a part of what it searches"),
        (PlannerEntry(in_two, "in two", lambda problem, request: None), "schedule '.*' is not obeyed"),
        (entry("never"), "applies to none"),
        (entry("two\nlines"), "more than one line"),
    ],
)
def test_a_planner_without_what_it_owes_is_named(made: Any, said: str) -> None:
    """Chance, plans that were not looked at or do not fit, requests that are not heard: each is named."""
    with pytest.raises(AssertionError, match=said):
        check_planner(made)


def test_a_plan_of_another_problem_is_no_answer() -> None:
    """It lacks a layer: that is said, not that its bound is another one."""
    problem = PROBLEMS["measured"]
    found = make_plan("uniform", problem)
    layers = problem.workload.layers
    longer = replace(problem.workload, layers=(*layers, replace(layers[-1], name="one more")))
    check_result(problem, found)
    with pytest.raises(InfeasiblePlanError, match="layer"):
        check_result(replace(problem, workload=longer), found)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNERS)
def test_a_planner_keeps_all_of_its_contract(name: str) -> None:
    """Whatever it may be asked for; of `joint` with all of its work, as a search that ends early may miss what a part finds."""
    check_planner(name, Request() if name == "joint" else REQUESTS[name])


@pytest.mark.parametrize("name", PLANNERS)
def test_answers(name: str, recorded: Recorded) -> None:
    """Of measured layers: plan, seconds, how many plans it took to find, whether it is proven; or why there is none."""
    found = searched(name, "measured")
    if isinstance(found, str):
        recorded(measured=found)
        return
    check_result(PROBLEMS["measured"], found)
    proven = "proven" if found.proof else "not proven"
    recorded(measured=[*shape(found.plan), found.iteration_seconds, found.evaluations, proven])


def _check_unit_of_time(name: str, problem: str) -> None:
    first = searched(name, problem)
    assert not isinstance(first, str)
    second = make_plan(name, slower(PROBLEMS[problem], 1024.0), REQUESTS[name])
    assert (first.plan, first.evaluations, first.proof) == (second.plan, second.evaluations, second.proof)
    assert [one.iteration_seconds * 1024.0 for one in first.history] == [
        one.iteration_seconds for one in second.history
    ]
    assert first.bound * 1024.0 == second.bound


@pytest.mark.parametrize("name", PLANNERS)
def test_no_step_of_a_search_knows_a_second(name: str) -> None:
    """Where everything takes 1,024 times as long, the plan is the same, found after as many evaluations; seconds to the bit."""
    among = "measured", "mixed-devices", "transformer"
    _check_unit_of_time(name, next(one for one in among if not isinstance(searched(name, one), str)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNERS)
def test_no_step_of_a_search_knows_a_second_on_any_problem(name: str) -> None:
    """The same, on every problem."""
    for problem in PROBLEMS:
        if not isinstance(searched(name, problem), str):
            _check_unit_of_time(name, problem)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_is_kept_or_refused(name: str, schedule: str) -> None:
    """A requested schedule and count are those of the plan, or the planner says why it does not apply."""
    problems, request = small_problems().values(), Request(schedule=schedule, microbatches=4)
    problem = next(one for one in problems if planner_entry(name).reason(one, REQUESTS[name]) is None)
    reason = planner_entry(name).reason(problem, request)
    if reason is not None:
        assert schedule in reason
        return
    plan = make_plan(name, problem, request).plan
    if len(plan.stages) > 1 or name == "data-parallel":
        assert (plan.schedule, len(plan.microbatches)) == (schedule, 4)


def _seconds(name: str, problem: str) -> float:
    found = searched(name, problem)
    return float("inf") if isinstance(found, str) else simulate(PROBLEMS[problem], found.plan).iteration_seconds


def test_brute_force_is_never_slower_than_other_straight_pipelines() -> None:
    """Uniform and greedy plans are among those that brute force tries, and replayed with the problem's own options."""
    best = _seconds("brute-force", "measured")
    assert best <= min(_seconds(other, "measured") for other in ("uniform", "greedy"))


def test_brute_force_says_what_is_proven_and_refuses_large_problems() -> None:
    """The claim names the schedules; a problem with too many plans is refused with their number."""
    found = searched("brute-force", "measured")
    assert not isinstance(found, str)
    assert "straight pipelines" in found.proof.space
    assert "gpipe, 1f1b" in found.proof.space
    large = replace(PROBLEMS["measured"], workload=uniform_chain(2_000))
    reason = planner_entry("brute-force").applicable(large, Request())
    assert reason is not None
    assert "plans to replay, the limit is 5,000" in reason


def test_unknown_names_and_impossible_counts_are_refused() -> None:
    """Bad requests give one line each that states the rule, the value and the choices."""
    problem = PROBLEMS["measured"]
    with pytest.raises(ValueError, match=r"planner 'magic' is unknown; choices: .*brute-force, data-parallel"):
        make_plan("magic", problem)
    with pytest.raises(ValueError, match="schedule 'magic' is unknown"):
        Request(schedule="magic")
    with pytest.raises(ValueError, match="at least 1 or None, got 0"):
        Request(microbatches=0)
    with pytest.raises(ValueError, match="7 micro-batches are more than the batch of 6 samples"):
        make_plan("uniform", problem, Request(microbatches=7))


CHOOSERS = ("joint", "rule-of-thumb", "large", "mixed", "modern", "scheduler")


@pytest.mark.parametrize("name", CHOOSERS)
def test_who_chooses_what_runs_again_takes_every_word(name: str) -> None:
    """Where the problem says none; who does not choose says whose word counts."""
    alike, unlike, *_ = small_problems().values()
    for word in get_args(Recompute):
        for problem in (alike, unlike):
            if PLANNERS[name].reason(problem, Request()) is None:
                assert PLANNERS[name].reason(problem, Request(recompute=word)) is None
    assert PLANNERS["uniform"].reason(alike, Request(recompute="blocks")) == (
        "its stages run again what the problem says (none), not 'blocks'; "
        f"planners that choose it: {', '.join(CHOOSERS)}"
    )
    whole = PLANNERS["uniform"].reason(alike, Request(recompute="whole"))
    assert whole is not None
    assert whole.endswith(", ".join((*CHOOSERS, "umpipe")))  # whose stages run again as a whole or not at all


def test_what_a_network_has_not_cannot_run_again() -> None:
    """A chain has neither attention nor blocks; a word that is none is refused before any planner."""
    reason = PLANNERS["modern"].reason(PROBLEMS["measured"], Request(recompute="blocks"))
    assert reason is not None
    assert "has no blocks" in reason
    with pytest.raises(ValueError, match="recompute 'often' is unknown; choices: none, attention, between-products"):
        Request(recompute="often")  # type: ignore[arg-type]
