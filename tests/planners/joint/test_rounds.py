"""Rounds of a joint search: what they take, when they end, and which of the plans as fast is the answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from unittest.mock import Mock, patch

import numpy as np
import pytest

from planners import Evaluator, Request, make_plan, planner_entry
from planners.joint.joint_search import JointSearch
from planners.joint.rounds import OF_ORDERS, OF_UNTRIED, SAME, JointRounds
from planners.search.replay_work import WORK_PER_SECOND
from simulator import (
    Problem,
    lower_bound,
)
from tests.chains import chain
from tests.planners.conftest import PROBLEMS, shape, sums, with_memory
from tests.planners.joint.problems import SMALL_BLOCKS, begin, problem
from tests.planners.test_bapipe_search import row_of_boards
from tests.planners.test_found import LARGER
from tests.records import Recorded

COURSES = {
    "two servers": (PROBLEMS["two-servers"], 0.5),
    "unlike devices": (LARGER["mixed"], 1.0),
    "blocks in little memory": (
        with_memory(SMALL_BLOCKS, 9.0 * sum(layer.parameters for layer in SMALL_BLOCKS.workload.layers)),
        0.5,
    ),
}
"""Problems, and nominal seconds of the search."""


@pytest.mark.parametrize("name", ["mixed-devices", "blocks"])
def test_a_further_round_never_answers_worse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From seeds alone: each round ends at twice the work of the one before, and the first ones are the same."""
    for module in ("rounds", "sowing"):
        monkeypatch.setattr(f"planners.joint.{module}.FIRST_ROUND", 0.03)
    asked = SMALL_BLOCKS if name == "blocks" else PROBLEMS[name]
    searches = [JointSearch(Request(options={"seconds": one})) for one in (0.03, 0.06, 0.24)]
    found = [make_plan(search, asked) for search in searches]
    for less, more in pairwise(found):
        assert more.iteration_seconds <= less.iteration_seconds * SAME
        assert more.evaluations >= less.evaluations
    assert found[0].evaluations < found[-1].evaluations


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "two servers" else name for name in COURSES]
)
def test_searches_take_the_course_that_they_took(name: str, recorded: Recorded) -> None:
    """Work done to begin with and in the end, pipelines that were looked at, and the plans that were replayed, in their order;
    then what would be descended from, and ordered, next."""
    asked, seconds = COURSES[name]
    evaluate = Evaluator(asked)
    search = planner_entry("joint").planner(Request(options={"seconds": seconds})).rounds(asked, evaluate)
    search.sowing.begin(np.random.default_rng(0))
    begun = search.state.done
    best = search.descend()
    replayed = np.array([(one.iteration_seconds, one.peak_bytes) for one in evaluate.replayed.values()])
    work, search.state.most = [begun, search.state.done_at_best, search.state.done, search.state.most], np.inf
    search.orders.ordered.clear()
    recorded(
        work=work,
        looked_at=[
            len(search.state.quick_seconds),
            len(search.state.quick_replayed),
            len(search.descents.passed),
            next(search.state.numbers),
        ],
        quickly=sums(np.array([each for one in search.state.quick_seconds.values() for each in one.values()])),
        replayed=[*map(sums, replayed.T)],
        best=[*shape(best), best.zero, best.recompute, bool(best.order)],
        starts=[[one.schedule, one.cuts, one.microbatches] for one in search.descents.starts()],
        families=[[one.schedule, one.cuts, one.microbatches] for one in search.descents.of_families()],
        orderable=[[*shape(plan), one.work, one.seconds] for plan, one in search.orders.orderable().items()],
    )


def test_descents_from_what_is_a_sixth_slower_than_another_answer_are_hopeless() -> None:
    """None is begun from these; from what is nearer to it some are."""
    for share, begun in ((0.84, False), (0.86, True)):
        search = begin(PROBLEMS["two-servers"], 0.1)
        least, done = min(score.iteration_seconds for score in search.state.replayed().values()), search.state.done
        search.state.evaluate.beat = least * share
        search.descend()
        assert (search.state.done > done) == begun


def test_descents_undercut_no_more_than_a_part_of_what_the_bound_leaves() -> None:
    """A tenth above the bound they gain less than two thirds of it; of twice the bound a sixth; with memory missing, whatever. Of
    what a judge counts plans as no bound is known: a sixth."""
    search = begin(PROBLEMS["two-servers"], 0.1)
    bound = lower_bound(search.state.problem).of(flush=True).seconds
    cases = [((0.0, 1.1), 1.03), ((0.0, 1.1), 1.05), ((0.0, 2.0), 1.69), ((0.0, 2.0), 1.71), ((1.0, 2.0), 0.5)]
    found = []
    for (missing, seconds), beat in cases:
        search.state.least, search.state.evaluate.beat = (missing, seconds * bound), beat * bound
        found.append(search.may_beat())
    assert found == [False, True, False, True, True]
    search.state.evaluate.judge = Mock()
    for beat, may in ((0.92, False), (0.95, True)):
        search.state.least, search.state.evaluate.beat = (0.0, 1.1 * bound), beat * bound
        assert search.may_beat() == may


@pytest.mark.parametrize(
    ("asked", "left", "ends_early"), [(None, 0.04, True), (None, 0.06, False), (20.0, 0.04, False)]
)
def test_a_plan_next_to_the_bound_ends_the_search_with_a_round(
    asked: float | None, left: float, ends_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the bound leaves less than a twentieth, and nobody asks for so many seconds."""
    rounds = list[float]()
    search = begin(PROBLEMS["two-servers"], asked)
    monkeypatch.setattr(search.state, "bound", lambda: search.state.least[1] * (1.0 - left))
    monkeypatch.setattr(search, "run", lambda begun, end: rounds.append(end))
    monkeypatch.setattr("planners.joint.rounds.DRY", 0.0)
    search.descend()
    assert (len(rounds) == 1) == ends_early


def test_a_further_round_begins_with_forms_that_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first one; a part of the work that is not for orders."""
    search, ends = begin(PROBLEMS["two-servers"], 0.5), list[float]()
    monkeypatch.setattr(search.descents, "descend_from_untried", ends.append)
    search.run(0.0, 1000.0)
    assert not ends
    begun = search.state.done
    search.run(begun, begun + 1000.0)
    assert ends == [pytest.approx(begun + OF_UNTRIED * (1.0 - OF_ORDERS) * 1000.0)]


def test_a_round_more_is_worth_it_where_the_last_gained_and_the_bound_leaves_much() -> None:
    """Half of a percent, or memory that is missing no more; a fifth above the bound."""
    asked = problem("chain:4", "dapple-b:4", 8)
    search = JointSearch().rounds(asked, Evaluator(asked))
    bound = lower_bound(asked).of(flush=True).seconds
    rounds = [((0.0, 2.02), 2.0), ((0.0, 2.005), 2.0), ((0.0, 1.4), 1.26), ((0.0, 1.4), 1.24), ((1.0, 1.0), 2.0)]
    worth = []
    for (missing, before), after in rounds:
        search.state.least = 0.0, after * bound
        worth.append(search.is_worth_a_round((missing, before * bound)))
    assert worth == [True, False, True, False, True]
    search.state.least = 1.0, bound
    assert search.is_worth_a_round((2.0, bound))


def test_a_search_that_runs_dry_on_many_devices_sows_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through 24 GPUs of two kinds in both directions; where no round is dry, not in both."""
    found = []
    for dry in (0.5, 0.0):
        monkeypatch.setattr("planners.joint.rounds.DRY", dry)
        asked = problem("gnmt8", "sailor-gcp-24", 16)
        search = JointSearch().rounds(asked, evaluate := Evaluator(asked))
        search.state.most = 1.0 * WORK_PER_SECOND
        search.state.evaluate(make_plan("data-parallel", asked).plan)
        search.descend()
        ways = {tuple(asked.cluster.devices[one.devices[0]].name for one in plan.stages) for plan in evaluate.replayed}
        found.append(len({way[0] for way in ways if len(set(way)) == 2}))
    assert found[0] == 2 > found[1]


@pytest.mark.parametrize(("gained", "taken"), [(1e-7, "simple"), (1e-5, "ordered")])
def test_of_plans_as_fast_the_simpler_is_the_answer(gained: float, taken: str) -> None:
    """An order of its own that is a rounding faster is not, and then one that needs less memory is; one that is more than a
    millionth faster is."""
    asked = PROBLEMS["two-servers"]
    planner = planner_entry("joint").planner(Request(schedule="1f1b", options={"seconds": 0.0005}))
    search = planner.rounds(asked, evaluate := Evaluator(asked))
    plans = {"simple": make_plan("data-parallel", asked).plan}
    plans["ordered"] = replace(plans["simple"], order=("0F0 0B0",))
    score = evaluate(plans["simple"])
    faster = replace(score, iteration_seconds=score.iteration_seconds * (1.0 - gained))
    with patch.object(search.state, "replayed", lambda: {plans["ordered"]: faster, plans["simple"]: score}):
        assert search.descend() == plans[taken]
    lighter = replace(plans["simple"], planner="lighter")
    less = replace(score, iteration_seconds=score.iteration_seconds * (1.0 + gained), peak_bytes=score.peak_bytes / 2)
    with patch.object(search.state, "replayed", lambda: {plans["simple"]: score, lighter: less}):
        assert search.descend() == (lighter if taken == "simple" else plans["simple"])


def test_boards_share_a_layer_where_that_is_faster() -> None:
    """Three equal layers with many weights on two boards with a slow link: a part of the second on each, under any schedule."""
    network = chain([6e9] * 3, parameters=[2 * 10**7] * 3, output_elements=[1e3] * 3)
    asked, request = Problem(network, row_of_boards(["vcu118"] * 2, [1e8]), 2), Request(options={"seconds": 0.5})
    found = make_plan("joint", asked, request)
    with patch.object(JointRounds, "share_layers", lambda search: None):
        before = make_plan("joint", asked, request)
    assert [one.layer for one in found.plan.splits] == [1]
    assert found.iteration_seconds < 0.96 * before.iteration_seconds
