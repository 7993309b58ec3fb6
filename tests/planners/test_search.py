"""Search: the evaluator's memo, budget and history, and how a search ends."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners import Evaluator, Planner, Progress, Request, make_plan, run_planner
from planners.search.evaluator import BudgetSpent, best_plan
from planners.search.replay_work import WORK_PER_SECOND, work_of
from planners.straight.baselines import UniformLayers
from simulator import (
    InfeasiblePlanError,
    Plan,
    Problem,
    Score,
    equal_microbatches,
    stages_from_cuts,
    workload_from_spec,
)
from tests.chains import chain


def _plan(problem: Problem, count: int, planner: str = "test") -> Plan:
    stages = stages_from_cuts([3], len(problem.workload), [(0,), (1,)])
    return Plan(planner, "gpipe", stages, equal_microbatches(problem.batch, count))


def test_equal_plans_are_replayed_once(small_problems: dict[str, Problem]) -> None:
    """Who made a plan does not matter to its score."""
    problem = small_problems["two-devices"]
    evaluate = Evaluator(problem)
    assert evaluate(_plan(problem, 2)) == evaluate(_plan(problem, 2, "another"))
    assert evaluate.evaluations == 1


def test_history_keeps_improvements_only(small_problems: dict[str, Problem]) -> None:
    """Seconds fall from entry to entry, and progress hears of each as it happens; a given clock times them."""
    problem = small_problems["two-devices"]
    heard: list[Progress] = []
    ticks = iter(range(7, 100))
    evaluate = Evaluator(problem, progress=heard.append, clock=lambda: float(next(ticks)))
    for count in (1, 2, 4, 1, 8):
        evaluate(_plan(problem, count))
    seconds = [step.iteration_seconds for step in evaluate.history]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == len(seconds)
    assert heard == evaluate.history
    assert [step.elapsed_seconds for step in heard] == list(range(1, len(heard) + 1))
    assert [step.evaluations for step in heard] == [1, 2, 3, 4][: len(heard)]
    evaluate.report(7, 0.5)  # a search with an evaluator of its own: its evaluations beside those of before
    assert heard[-1] == Progress(evaluate.evaluations + 7, float(len(heard)), 0.5)


def test_spent_budget_answers_with_the_best_so_far(small_problems: dict[str, Problem]) -> None:
    """A search of one evaluation gives the first plan, marked as interrupted."""
    found = make_plan("uniform", small_problems["two-devices"], budget=1)
    assert found.interrupted
    assert found.evaluations == 1
    assert found.outcome.fits


@pytest.mark.parametrize("name", ["pipedream-flush", "bapipe", "joint"])
def test_the_best_so_far_is_as_it_was_asked_for(name: str) -> None:
    """Searches that look at plans of others, asynchronous ones and other numbers of micro-batches too, end with none of these."""
    problem = Problem(workload_from_spec("chain:5"), load_cluster("dapple-c:2"), 12)
    for budget in (1, 2, 3, 5):
        with suppress(InfeasiblePlanError):  # where the first plans are all of others
            found = make_plan(name, problem, Request(microbatches=8), budget=budget)
            assert (found.plan.schedule != "1f1b-rr", len(found.plan.microbatches)) == (True, 8)


def test_interrupt_answers_with_the_best_so_far(small_problems: dict[str, Problem]) -> None:
    """Ctrl-C in the middle of a search keeps its best plan; before any plan it goes on up."""
    problem = small_problems["two-devices"]

    def stopped(problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        evaluate(_plan(problem, 1))
        evaluate(_plan(problem, 4))
        raise KeyboardInterrupt

    def stopped_at_once(problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        raise KeyboardInterrupt

    found = run_planner(stopped, problem, Evaluator(problem), np.random.default_rng(0))
    assert found.interrupted
    assert found.plan in (_plan(problem, 1), _plan(problem, 4))
    with pytest.raises(KeyboardInterrupt):
        run_planner(stopped_at_once, problem, Evaluator(problem), np.random.default_rng(0))


def test_budget_without_a_plan_that_fits_is_infeasible(small_problems: dict[str, Problem]) -> None:
    """A budget that ends among plans that do not fit has no answer."""
    problem = small_problems["two-devices"]
    tiny = replace(
        problem,
        cluster=replace(
            problem.cluster,
            devices=tuple(replace(one, memory_bytes=1e6) for one in problem.cluster.devices),  # type: ignore[type-var]
        ),
    )
    with pytest.raises(InfeasiblePlanError, match="budget of 1 evaluation ended"):
        run_planner(UniformLayers(Request()), tiny, Evaluator(tiny, budget=1), np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least 1 evaluation, got 0"):
        Evaluator(problem, budget=0)
    for budget, shown in (
        (1.5, r"1\.5"),
        (True, "True"),
        ("8", "'8'"),
        (2**63, r"at most \S+, got 9223372036854775808"),
    ):
        with pytest.raises(ValueError, match=f"^budget must be a whole number.*{shown}$"):
            Evaluator(problem, budget=budget)  # type: ignore[arg-type]


def test_score_prefers_plans_that_fit(small_problems: dict[str, Problem]) -> None:
    """Key: missing memory first, seconds second."""
    problem = small_problems["two-devices"]
    score = Evaluator(problem)(_plan(problem, 2))
    assert score.fits
    assert score.key == (0.0, score.iteration_seconds)
    fuller = replace(score, capacity_bytes=score.peak_bytes / 2, iteration_seconds=0.0)
    assert not fuller.fits
    assert fuller.key == (1.0, 0.0)
    assert score.key < fuller.key


def test_scores_know_contention(small_problems: dict[str, Problem]) -> None:
    """Activations of 40 MB from servers 0 to 1, 1 to 0 and 0 to 1 queue at the network card: a search sees it, too."""
    problem = replace(small_problems["two-servers"], workload=chain([1e9] * 4, output_elements=[1e7] * 4))
    stages = stages_from_cuts([1, 2, 3], len(problem.workload), [(0,), (4,), (1,), (5,)])
    plan = Plan("test", "gpipe", stages, equal_microbatches(problem.batch, 4))
    crowded, calm = Evaluator(problem), Evaluator(replace(problem, contention=False))
    assert crowded(plan).iteration_seconds > 1.1 * calm(plan).iteration_seconds
    assert crowded.on_reference(plan) == crowded(plan)
    blind = Evaluator(problem, engine="recurrence")
    assert blind(plan) == calm(plan) == calm.on_reference(plan)
    assert not blind.replayed
    assert blind.on_reference(plan) == crowded(plan)
    assert list(blind.replayed.values()) == [crowded(plan)]
    assert (crowded.evaluations, calm.evaluations) == (2, 2)
    assert len(crowded.history) == len(calm.history) == 1


def test_a_budget_allows_as_many_replays_as_it_says(small_problems: dict[str, Problem]) -> None:
    """What is known costs nothing, a replay on the reference one, and what another evaluator made is credited."""
    problem = small_problems["two-devices"]
    evaluate = Evaluator(problem, budget=5)
    for _ in range(2):
        evaluate(_plan(problem, 1))
    assert evaluate.remaining == 4
    evaluate.on_reference(_plan(problem, 1))
    evaluate.credit(2)
    assert (evaluate.remaining, evaluate.evaluations) == (1, 4)
    evaluate(_plan(problem, 2))
    with pytest.raises(BudgetSpent):
        evaluate(_plan(problem, 4))
    assert evaluate(_plan(problem, 1)).fits
    assert (evaluate.remaining, evaluate.evaluations) == (0, 5)
    assert Evaluator(problem).remaining == float("inf")


def test_nominal_seconds_allow_as_much_work_as_they_stand_for(small_problems: dict[str, Problem]) -> None:
    """A first replay always; then as long as the work so far is less, of replays and of what a planner evaluates itself."""
    problem = small_problems["two-devices"]
    work = [work_of(_plan(problem, count)) for count in (1, 2, 4)]
    evaluate = Evaluator(problem, seconds=(work[0] + work[1] + 7) / WORK_PER_SECOND)
    for count in (1, 1, 2):
        evaluate(_plan(problem, count))
    assert (evaluate.has_time(), evaluate.has_time(7), evaluate.has_time(6)) == (True, False, True)
    assert evaluate.remaining == float("inf")
    evaluate.credit(3, 7)
    assert (evaluate.remaining, evaluate.evaluations) == (0, 5)
    with pytest.raises(BudgetSpent):
        evaluate(_plan(problem, 4))
    assert evaluate(_plan(problem, 2)).fits
    first = Evaluator(problem, seconds=1e-9)
    assert first(_plan(problem, 4)).fits
    assert not first.has_time()
    assert work[0] < work[1] < work[2]


def test_a_full_device_fits() -> None:
    """Memory may be used to its last byte, and not by one more; a quarter too much is a key of a quarter."""
    assert Score(1.0, 100.0, 100.0, 0).fits
    assert not Score(1.0, 101.0, 100.0, 0).fits
    assert Score(2.0, 100.0, 100.0, 0).key == Score(2.0, 1.0, 100.0, 0).key == (0.0, 2.0)
    assert Score(2.0, 125.0, 100.0, 0).key == (0.25, 2.0)


def test_of_equals_the_first_plan_is_the_best(small_problems: dict[str, Problem]) -> None:
    """Neither the choice among plans nor the best so far changes for a plan that is as fast."""
    problem = small_problems["two-devices"]

    class Fixed(Evaluator):
        def _replay(self, plan: Plan, engine: object) -> Score:
            return Score({1: 5.0, 2: 4.0, 4: 4.0, 8: 6.0}[len(plan.microbatches)], 1.0, 1.0, 0)

    evaluate = Fixed(problem)
    plans = [_plan(problem, count) for count in (1, 2, 4, 8)]
    assert best_plan("test", plans, evaluate) == evaluate.best == plans[1]
    assert [step.iteration_seconds for step in evaluate.history] == [5.0, 4.0]


@pytest.mark.parametrize("name", ["microbatches", "stages", "chunks"])
def test_counts_of_a_request_begin_at_one(name: str) -> None:
    """One is a count, none is not."""
    counts = [getattr(Request(**{name: one}), name) for one in (1, np.int64(1))]  # type: ignore[arg-type]
    assert counts == [1, 1]
    assert {type(one) for one in counts} == {int}
    with pytest.raises(ValueError, match=r"at least 1.*got 0"):
        Request(**{name: 0})  # type: ignore[arg-type]


def test_proven_is_what_a_planner_declares_that_came_to_its_end(small_problems: dict[str, Problem]) -> None:
    """Without a declaration, or stopped early, the result says why nothing is proven."""
    problem = small_problems["two-devices"]

    def planner(space: str, *, stops: bool) -> Planner:
        def search(problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
            evaluate(_plan(problem, 1))
            evaluate.declare_optimal(space)
            if stops:
                raise BudgetSpent
            return _plan(problem, 1)

        return search

    for space, stops, said in (
        ("all plans", False, "proven the fastest of all plans"),
        ("", False, "not proven: the planner has not ruled out the plans that it did not try"),
        ("all plans", True, "not proven: interrupted, this is the best so far"),
    ):
        found = run_planner(planner(space, stops=stops), problem, Evaluator(problem), np.random.default_rng(0))
        assert str(found.proof) == said
        assert (bool(found.proof), found.interrupted) == (said.startswith("proven"), stops)


def test_an_option_of_a_request_is_fixed_anew_or_left_open() -> None:
    """The others stay."""
    asked = Request(stages=2, options={"zero": 1, "seconds": 2})
    assert asked.fixing("zero", 3) == Request(stages=2, options={"seconds": 2, "zero": 3})
    assert asked.fixing("zero", None) == Request(stages=2, options={"seconds": 2})
    assert asked.fixing("stages", None) == Request(options={"zero": 1, "seconds": 2})
