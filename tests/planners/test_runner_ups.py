"""Runner-ups: the best known plan that decides one thing otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planners import Proof, Result, RunnerUp, make_plan, runner_ups
from planners.joint.told import next_best
from planners.search.runner_ups import DECISIONS
from simulator import Plan, Problem, Score, Stage, equal_microbatches, simulate, stages_from_cuts


def _plan(problem: Problem, schedule: str, microbatches: int, cut: int = 3) -> Plan:
    stages = stages_from_cuts([cut], len(problem.workload), [(0,), (1,)])
    return Plan("", schedule, stages, equal_microbatches(problem.batch, microbatches))


@pytest.fixture
def searched(small_problems: dict[str, Problem]) -> Result:
    """An answer of 1F1B with four micro-batches, and scores that are written down by hand."""
    problem = small_problems["two-devices"]
    answer = _plan(problem, "1f1b", 4)
    one_stage = stages_from_cuts([], len(problem.workload), [(0, 1)])
    scores = {
        answer: Score(10.0, 5.0, 8.0, 0),
        _plan(problem, "1f1b", 8): Score(12.0, 4.0, 8.0, 0),
        _plan(problem, "gpipe", 8): Score(11.0, 6.0, 8.0, 0),
        _plan(problem, "gpipe", 4): Score(9.0, 9.0, 8.0, 1),  # does not fit
        _plan(problem, "1f1b", 4, cut=2): Score(14.0, 3.0, 8.0, 0),
        replace(answer, schedule="gpipe", stages=one_stage): Score(13.0, 7.0, 8.0, 0),
        _plan(problem, "1f1b-rr", 2): Score(1.0, 1.0, 8.0, 0),  # updates with stale weights
    }
    outcome = simulate(problem, answer)
    return Result(outcome, Proof(reason="by hand"), len(scores), 0.0, replayed=scores)


def test_runner_up_is_the_fastest_fitting_plan_that_decides_otherwise(searched: Result) -> None:
    """Of each decision; whatever else it decides otherwise, but for the layers of stages, which only as many stages have; what
    nothing decides otherwise is left out."""
    gpipe = "1f1b", "gpipe", 11.0, 6.0, "straight"
    assert [
        (one.decision, one.chosen, one.other, one.seconds, one.peak_bytes, one.notation) for one in runner_ups(searched)
    ] == [
        ("schedule", *gpipe),
        ("stages", "2", "1", 13.0, 7.0, "2"),
        ("micro-batches", "4", "8", 11.0, 6.0, "straight"),
        ("layers of stages", "3", "2, 4", 14.0, 3.0, "straight"),
    ]


def test_the_next_best_loses_something_by_more_than_its_layers(searched: Result) -> None:
    """Least first; what is as fast loses nothing, and of layers of stages alone nothing is said."""
    problem, plan, replayed = searched.problem, searched.plan, dict(searched.replayed)
    found = next_best(problem, plan, replayed)
    assert found is not None
    assert found.next_best == {"schedule": "gpipe", "micro-batches": "8", "stages": "1"}
    assert list(found.next_best_loses.values()) == pytest.approx([0.1, 0.1, 0.3])
    found = next_best(problem, plan, {**replayed, _plan(problem, "gpipe", 2): Score(10.0, 5.0, 8.0, 0)})
    assert found is not None
    assert found.next_best == {"stages": "1"}
    cut = _plan(problem, "1f1b", 4, cut=2)
    assert next_best(problem, plan, {plan: replayed[plan], cut: replayed[cut]}) is None


def test_what_the_planner_tells_comes_before_its_replays(searched: Result) -> None:
    """A planner that knows the best plan of other schedules has the word; decisions that only it knows stand last."""
    schedule, other = RunnerUp("schedule", "1f1b", "zb-h1", 10.5), RunnerUp("experts", "8", "4", 12.0)
    told = runner_ups(replace(searched, told=(other, schedule)))
    assert told[0] == schedule
    assert told[-1] == other
    assert len(told) == len(runner_ups(searched)) + 1


def test_runs_of_equal_stages_are_counted(searched: Result) -> None:
    """`1 × 3, 3` for stages of one, one, one and three layers; one word where all are alike."""
    places = [(0,), (1,), (0,), (1,)]
    looped = replace(searched.plan, schedule="interleaved-1f1b", stages=stages_from_cuts([1, 2, 3], 6, places))
    other = replace(looped, planner="", stages=stages_from_cuts([1, 3, 5], 6, places))
    outcome = simulate(searched.problem, looped)
    found = runner_ups(replace(searched, outcome=outcome, replayed={other: Score(9.0, 1.0, 8.0, 0)}))
    assert [(one.chosen, one.other) for one in found] == [("1 × 3, 3", "1, 2 × 2, 1")]


def test_groups_are_told_without_their_contexts(searched: Result) -> None:
    """Four devices that divide the tokens among two: groups of two; as many as all four, or none, decide otherwise."""
    whole = Stage(tuple(range(len(searched.problem.workload))), (0, 1, 2, 3), (4,))
    plans = [replace(searched.plan, planner="", stages=(whole,), context=context) for context in (2, 1)]
    plans.append(replace(plans[1], stages=(replace(whole, degrees=()),)))
    told = [DECISIONS["tensor parallel"](searched.problem, plan) for plan in plans]
    assert told == ["2", "4", "1"]


def test_an_answer_says_whether_it_is_proven(searched: Result) -> None:
    """In its line."""
    assert repr(searched).endswith(", not proven)")
    assert repr(replace(searched, proof=Proof("all plans"))).endswith(" %, proven)")


def test_a_search_keeps_what_it_replayed(small_problems: dict[str, Problem]) -> None:
    """The answer is among the plans that were replayed, with the seconds that the reference gives."""
    found = make_plan("greedy", small_problems["two-devices"])
    score = found.replayed[replace(found.plan, planner="")]
    assert score.iteration_seconds == found.outcome.iteration_seconds
    assert len(found.replayed) == found.evaluations
