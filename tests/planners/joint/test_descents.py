"""Descents of a joint search: which neighbours are replayed, and from where the search descends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args
from unittest.mock import Mock, patch

import pytest

from planners import Evaluator, Request, make_plan
from planners.joint.descents import PATIENCE, Descents, form
from planners.joint.joint_search import JointSearch
from planners.joint.pipeline import Pipeline
from planners.joint.search_state import KnownPipeline, SearchState
from simulator import (
    Gpt,
    Plan,
    Recompute,
    Score,
)
from tests.planners.conftest import PROBLEMS, with_memory
from tests.planners.joint.problems import NONE, SMALL_BLOCKS, begin, problem


def test_what_does_not_fit_leads_to_each_pipeline_with_more_recomputation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one leads to may lead back to it: where nothing was left to replay, a search went round and round."""
    looked_at, most = Counter[Pipeline](), [0]
    best, waiting = Descents.best, SearchState.waiting

    def counted_best(self: Any, among: Iterator[Pipeline], now: Any, *, climbing: bool) -> Any:
        looked_at.clear()
        found = best(self, dict.fromkeys(among), now, climbing=climbing)
        most.append(max(looked_at.values(), default=0))
        return found

    def counted_waiting(self: Any, one: Pipeline, known: Any) -> Any:
        looked_at[one] += 1
        return waiting(self, one, known)

    monkeypatch.setattr(Descents, "best", counted_best)
    monkeypatch.setattr(SearchState, "waiting", counted_waiting)
    workload = Gpt(2, 64, 2, vocabulary=512, sequence=32).workload()
    asked = replace(SMALL_BLOCKS, workload=workload, cluster=SMALL_BLOCKS.cluster.take(2), batch=4)
    asked = with_memory(asked, 12.0 * sum(layer.parameters for layer in workload.layers))
    assert make_plan("joint", asked, Request(options={"seconds": 0.2})).iteration_seconds > 0.0
    assert max(most) == 2  # as a neighbour, and as one with more


def test_orders_for_their_own_seconds_do_not_crowd_out_others() -> None:
    """Of a family with both, the quick replays of one kind err more: many of them are no better, yet one of the others is found;
    it is not, where as many of the others were no better.
    """
    asked = problem("chain:4", "dapple-b:4", 8)
    search = JointSearch().rounds(asked, Evaluator(asked))
    one = Pipeline("zb-v", ((0,), (1,)), (1, 2, 3), 4, (NONE,) * 4)
    plain, better = one.plan(asked, "by hand"), replace(one, microbatches=2)
    timed = replace(plain, options=(("op_seconds", (1.0, 1.0, 1.0, 0.0)),))

    def found(many: Plan) -> Pipeline | None:
        waiting = [(0.5, number, one, many, 1.0) for number in range(PATIENCE)]
        last = (0.6, len(waiting), better, better.plan(asked, "by hand"), 1.0)
        search.state.quick_replayed = {many, last[3]}  # their quick replays are known
        search.state.quick_seconds = {one: {many: 0.5}, better: {last[3]: 0.6}}
        scores = Mock(evaluations=0, judge=None)

        def score(plan: Plan) -> Score:
            scores.evaluations += 1
            return Score(0.9 if plan == last[3] else 2.0, 0.0, 1.0, 0)

        scores.side_effect = score
        with (
            patch.object(search.state, "waiting", lambda *_: [*waiting, last]),
            patch.object(search.state, "evaluate", scores),
        ):
            best = search.descents.best([one], KnownPipeline((0.0, 1.0), 1.0), climbing=False)
        return best and best[0]

    assert (found(timed), found(plain)) == (better, None)


def test_what_leads_where_another_did_is_descended_from_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the schedule, which led away; what stayed, or led elsewhere, by all decisions from there."""
    search = begin(PROBLEMS["two-servers"], 0.5)
    starts = [Pipeline("1f1b", ((0,), (1,)), (cut,), 4, (NONE,) * 2) for cut in (1, 2, 3, 4)]
    leads = dict(zip(starts, (starts[0], starts[0], starts[3], starts[3]), strict=True))
    monkeypatch.setattr(search.descents, "starts", lambda: starts)
    monkeypatch.setattr(search.descents, "descend_from", lambda start, decisions: ((0.0, 1.0), leads[start]))
    found = [(one, "schedule" in decisions) for _, one, decisions in search.descents.briefly_descended()]
    assert found == [(starts[0], True), (starts[1], False), (starts[3], True), (starts[3], True)]


def test_forms_behind_faster_ones_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that nothing came to, each once, in equal parts of what the ones before it left; at most UNTRIED of them."""
    search, ends = begin(PROBLEMS["two-servers"], 0.5), list[tuple[object, float]]()
    ranks = [((0,), (1,)), ((0, 1), (2,)), ((0,), (1, 2)), ((0, 1), (2, 3)), ((0, 1, 2), (3,))]
    starts = [Pipeline("1f1b", each, (2,), 4, (NONE,) * 2) for each in ranks]

    def descended(start: Pipeline, decisions: object) -> None:
        ends.append((start, search.state.most - search.state.done))
        search.state.done += 10.0

    monkeypatch.setattr("planners.joint.descents.UNTRIED", 3)
    monkeypatch.setattr(search.descents, "starts", lambda: starts)
    monkeypatch.setattr(search.descents, "descend_from", descended)
    search.descents.tried = {form(starts[1])}
    for found in ([(starts[0], 40.0), (starts[2], 55.0), (starts[3], 100.0)], [(starts[4], 120.0)], []):
        search.descents.descend_from_untried(search.state.done + 120.0)
        assert ends == [(one, pytest.approx(work)) for one, work in found]
        ends.clear()


def test_as_many_blocks_run_again_as_memory_needs() -> None:
    """One device, one micro-batch: no policy is faster on all blocks, and with one block less the plan would not fit."""
    asked = problem("gpt2-medium", "dapple-c:1", 4, precision="fp16", optimizer="adam")
    found = make_plan("joint", asked, Request(microbatches=1, stages=1))
    (blocks,) = found.plan.recomputed_blocks
    assert 0 < blocks < 24
    evaluate = Evaluator(asked)
    assert not evaluate(replace(found.plan, recomputed_blocks=(blocks - 1,))).fits
    for policy in get_args(Recompute):
        whole = evaluate(replace(found.plan, recompute=(policy,), recomputed_blocks=()))
        assert found.iteration_seconds < whole.iteration_seconds or not whole.fits
