"""What a joint search begins with."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners import Evaluator, Request, make_plan, planner_entry
from planners.joint.joint_search import JointSearch
from planners.joint.neighbourhood import LOOPED
from planners.joint.pipeline import pipeline_of
from simulator import Plan, Problem, stages_from_cuts, workload_from_spec
from tests.planners.conftest import with_memory
from tests.planners.joint.problems import problem


@pytest.mark.slow
def test_a_schedule_of_a_large_network_begins_with_plans_of_others() -> None:
    """DeepSeek-V3 on 2,048 GPUs under DualPipeV, which none of the parts plans: seeds of its own need many times the memory."""
    network, cluster = workload_from_spec("deepseek-v3", 4096), load_cluster("deepseek-h800:256")
    asked = Problem(
        network, cluster, 15360, precision="fp8", optimizer="adam", gradient_bytes=4, sequence_parallel=True
    )
    found = make_plan("joint", asked, Request(schedule="dualpipev", options={"seconds": 100.0}))
    assert found.fits
    assert found.plan.schedule == "dualpipev"


def test_a_schedule_on_many_devices_begins_with_plans_of_others() -> None:
    """Where no part plans it: the pipelines that they find without it, under it, and no seed of its own."""
    asked = problem("chain:4", "dapple-c:17", 16)
    plan = Plan("part", "1f1b", stages_from_cuts((2,), len(asked.workload), [(0,), (1,)]), (4,) * 4)

    def part(asked: Problem, request: Request) -> Any:
        return None if request.schedule else lambda problem, evaluate, rng: evaluate(plan)

    planner = JointSearch(Request(schedule="zb-h1"), (part,))
    evaluate = Evaluator(asked, admits=lambda plan: plan.schedule == "zb-h1")
    search = planner.rounds(asked, evaluate)
    assert search.sowing.begin(np.random.default_rng(0)) is None
    assert {(one.schedule, one.stages) for one in search.state.replayed()} == {("zb-h1", plan.stages)}
    assert search.state.done > 0


def test_seeds_that_lead_nowhere_below_another_answer_are_not_replayed() -> None:
    """Beside a plan of one device: none where the answer to beat is as fast as no seed, some without one."""
    replayed = []
    for beat in (np.inf, 1e-9):
        asked = problem("chain:4", "dapple-c:17", 16)
        search = planner_entry("joint").planner(Request()).rounds(asked, Evaluator(asked, beat=beat))
        search.state.evaluate(Plan("alone", "1f1b", stages_from_cuts((), len(asked.workload), [(0,)]), (16,)))
        search.sowing.sow()
        replayed.append(search.state.evaluate.evaluations)
    assert replayed[0] > replayed[1] == 1


def test_seeds_are_replayed_beside_other_plans_on_few_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """On few of one rank and of several; on more of them those of several only where nothing fits."""
    monkeypatch.setattr("planners.joint.sowing.NICHED_ON", 17)
    for devices, more in ((17, True), (18, False)):
        asked = problem("chain:4", f"dapple-c:{devices}", 16)
        search = planner_entry("joint").planner(Request()).rounds(asked, Evaluator(asked))
        search.state.evaluate(make_plan("data-parallel", asked).plan)
        search.sowing.sow()
        ranks = {len({stage.devices for stage in plan.stages}) for plan in search.state.evaluate.replayed}
        assert (1 in ranks, max(ranks) > 1) == (True, more)


def test_replicas_that_reduce_their_stages_one_by_one_are_begun_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """MobileNet on two servers, beside a plan of data parallelism on all devices: the fastest that is sown has several stages."""
    monkeypatch.setattr("planners.joint.sowing.NICHED_ON", 0)
    asked = problem("mobilenet-v1", "pipedream-b:2", 128)
    search = planner_entry("joint").planner(Request()).rounds(asked, Evaluator(asked))
    whole = make_plan("data-parallel", asked).plan
    search.state.evaluate(whole)
    search.sowing.sow()
    fastest = min(search.state.evaluate.replayed, key=lambda one: search.state.evaluate.replayed[one].key)
    assert {stage.devices for stage in fastest.stages} == {whole.stages[0].devices}
    assert len(fastest.stages) == LOOPED


def test_cuts_of_stages_that_gather_their_weights_are_climbed_by_replays() -> None:
    """ResNet-50 on four servers under ZeRO 3: no cut is better a place or two beside, and all are better than the first."""
    asked = problem("resnet50", "dapple-c:4", 128, precision="fp16")
    request = Request(stages=4, options={"zero": (3,)})
    search = JointSearch(request).rounds(asked, evaluate := Evaluator(asked))
    search.sowing.sow()
    keys = {plan: score.key for plan, score in evaluate.replayed.items()}
    fastest = min(keys, key=lambda plan: keys[plan])
    one = pipeline_of(asked, fastest)
    assert one is not None
    assert (len(one.ranks), one.chunks, one.zero) == (1, LOOPED, 3)
    for place, step in product(range(3), (-2, -1, 1, 2)):
        cuts = tuple(cut + step * (number == place) for number, cut in enumerate(one.cuts))
        assert evaluate(replace(one, cuts=cuts).plan(asked, "")).iteration_seconds >= keys[fastest][1] * (1.0 - 1e-9)
    begun = next(search.state.moves.laid(replace(one, cuts=()), one.ranks, LOOPED))
    assert keys[fastest][1] < 0.98 * evaluate(begun.plan(asked, "")).iteration_seconds


@pytest.mark.parametrize("near", [slice(None), slice(1)])
def test_niches_are_climbed_under_the_policy_with_which_they_fit(near: slice) -> None:
    """Also from where a niche begins: BERT-base in little memory, where cuts that suit no recomputation are a tenth slower."""
    asked = with_memory(problem("bert-base", "dapple-c:4", optimizer="adam"), 2.5e9)
    search = JointSearch().rounds(asked, evaluate := Evaluator(asked))
    sown = search.sowing.with_more_recomputation
    with patch.object(
        search.sowing, "with_more_recomputation", lambda niches, some, words: sown(niches, some[near], words)
    ):
        search.sowing.sow()
    missing, seconds = min(score.key for score in evaluate.replayed.values())
    assert missing == 0.0
    assert (seconds < 0.57) == (near == slice(None))


def test_a_climb_by_replays_ends_with_the_work() -> None:
    """Of ResNet-50 under ZeRO 3: without work left for it nothing is replayed that was not."""
    made = []
    for share in (1.0, 0.0):
        asked = problem("resnet50", "dapple-c:4", 128, precision="fp16")
        search = JointSearch(Request(stages=4, options={"zero": (3,)})).rounds(asked, evaluate := Evaluator(asked))
        search.state.most *= share
        search.sowing.sow()
        made.append(evaluate.evaluations)
    assert made[0] > 100 > 20 > made[1]
