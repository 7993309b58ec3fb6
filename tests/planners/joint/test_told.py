"""What a joint search tells of its answer beside other plans."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from planners import Request, make_plan
from planners.joint.told import (
    NextBest,
    SimplerPlan,
    Unordered,
    complexity,
    simpler_plan,
    unordered,
)
from planners.search.notes import Note
from planners.search.runner_ups import DECISIONS
from simulator import (
    Plan,
    Score,
    equal_microbatches,
    flushes,
    stages_from_cuts,
)
from tests.planners.conftest import PROBLEMS


def test_what_is_simpler_or_else_decided_is_told() -> None:
    """Of two plans that are as fast the simpler is the answer; a simpler one that is nearly as fast is named, with what it loses;
    and of other decisions what the best known loses.
    """
    asked = PROBLEMS["two-servers"]
    found = make_plan("joint", asked, Request(options={"seconds": 0.5}))
    seconds, replayed = (
        found.iteration_seconds,
        {one: score for one, score in found.replayed.items() if score.fits and flushes(one)},
    )
    least = min(score.iteration_seconds for score in replayed.values())
    assert seconds == least
    assert complexity(found.plan) == min(
        complexity(one) for one in replayed if replayed[one].iteration_seconds == least
    )
    near = [complexity(one) for one, score in replayed.items() if score.iteration_seconds <= 1.01 * seconds]
    told, others = found.noted(SimplerPlan), found.noted(NextBest)
    assert (told is not None) == (min(near) < complexity(found.plan))
    assert told is None or seconds <= told.simpler_seconds <= 1.01 * seconds
    assert others is not None
    assert others.next_best.keys() == others.next_best_loses.keys()
    for place, (name, lost) in enumerate(others.next_best_loses.items()):
        own, of = DECISIONS[name](asked, found.plan), DECISIONS[name]
        other = min(
            (score.iteration_seconds, of(asked, one)) for one, score in replayed.items() if of(asked, one) != own
        )
        assert (seconds * (1.0 + lost), others.next_best[name]) == (pytest.approx(other[0]), other[1])
        more = f"{100 * lost:.0f}" if lost >= 0.1 else f"{100 * lost:.2g}"
        assert (f"{name} {other[1]} {more} % slower" in others.text) == (place < 5)


def test_simple_is_what_every_framework_runs() -> None:
    """1F1B is simpler than interleaved 1F1B, that than zero bubble, and this than an order of its own; one stage has none."""
    plan = make_plan("uniform", PROBLEMS["two-servers"], Request(schedule="1f1b", stages=2)).plan
    own = replace(plan, schedule="search", order=("0F0 0B0", "1F0 1B0"))
    ranked = [plan, *(replace(plan, schedule=name) for name in ("interleaved-1f1b", "zb-h1")), own]
    assert [complexity(one) for one in ranked] == sorted({complexity(one) for one in ranked})
    assert complexity(replace(plan, recompute=("none", "whole"))) > complexity(plan)


def test_divided_backwards_of_a_profile_are_told() -> None:
    """A profile has whole backwards alone: what the answer assumes of their halves stands in a note."""
    asked = replace(PROBLEMS["measured"], recompute="none", batch=12)
    found = make_plan("joint", asked, Request(schedule="zb-h1", stages=2))
    assert any("half of each measured backward" in note.text for note in found.notes)
    whole = make_plan("joint", asked, Request(schedule="1f1b", stages=2))
    assert not any("half of each measured backward" in note.text for note in whole.notes)


def test_plans_of_no_schedules_order_are_told_where_they_are_as_asked_for() -> None:
    """Of one rank, flushed, of those that are as asked for, the fastest that fits."""
    asked = PROBLEMS["two-servers"]
    plan = make_plan("uniform", asked, Request(schedule="1f1b", stages=2)).plan
    whole = replace(plan, stages=stages_from_cuts([], len(asked.workload), [(0, 1)]))
    other = replace(plan, microbatches=equal_microbatches(asked.batch, 1))
    streams = replace(whole, schedule="pipedream")

    def told(faster: Plan, *, fits: bool = True, obeys: bool = True) -> Note | None:
        scores = {plan: Score(2.0, 1.0, 2.0, 0), faster: Score(1.0, 1.0 if fits else 3.0, 2.0, 0)}
        return unordered(asked, plan, Mock(outcomes=scores, obeys=lambda one: one != faster or obeys))

    found = told(whole)
    assert isinstance(found, Unordered)
    assert "50 % less time" in found.text
    assert [told(other), told(streams), told(whole, fits=False), told(whole, obeys=False)] == [None] * 4


def test_a_simpler_plan_may_be_as_fast() -> None:
    """By hand: none slower, one by 0.5 %, and none of those that are slower by more."""
    asked = PROBLEMS["two-servers"]
    plain = make_plan("uniform", asked, Request(schedule="1f1b", stages=2)).plan
    plan = replace(plain, schedule="zb-h1")
    for seconds, words in ((1.0, "simpler, and as fast: "), (1.005, "simpler, and 0.5 % slower: "), (1.5, None)):
        scores = {plan: Score(1.0, 1.0, 2.0, 0), plain: Score(seconds, 1.0, 2.0, 0)}
        found = simpler_plan(asked, plan, scores)
        assert (found is None) == (words is None)
        assert found is None or found.text.startswith(words or "")
