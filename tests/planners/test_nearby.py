"""Nearby: which searches stand beside a search, and what they add to it."""

from __future__ import annotations

from dataclasses import replace

from planners import PLANNERS, Request, make_plan, replayed_beside, runner_ups, search_nearby
from planners.nearby import changed, nearby
from simulator import LayerSplit, Plan, Problem, Score, Stage, equal_microbatches, simulate, stages_from_cuts
from simulator.workloads.language_models import Gpt


def words_of(problem: Problem, name: str, request: Request) -> list[str]:
    """Of the searches beside a planner's."""
    plan = make_plan(name, problem, request).plan
    return [words for words, _ in nearby(problem, plan, request)]


def test_only_open_decisions_that_a_planner_takes_are_searched(small_problems: dict[str, Problem]) -> None:
    """Half and double numbers, other schedules; no stages of data parallelism; nothing that the request fixes."""
    problem = small_problems["two-devices"]
    fixed = Request(schedule="gpipe", microbatches=4)
    assert words_of(problem, "data-parallel", fixed) == []
    assert words_of(problem, "uniform", fixed) == ["1 stages", "4 stages", "2 stages per device"]
    assert words_of(problem, "data-parallel", Request(microbatches=4)) == ["gpipe", "interleaved-1f1b", "zb-h1"]
    count = len(make_plan("data-parallel", problem, Request(schedule="gpipe")).plan.microbatches)
    open_count = [f"{one} micro-batches" for one in (count // 2, 2 * count) if 1 <= one <= problem.batch]
    assert words_of(problem, "data-parallel", Request(schedule="gpipe")) == open_count
    stages = Request(schedule="gpipe", microbatches=4, stages=2)
    assert words_of(problem, "uniform", stages) == ["2 stages per device"]
    assert words_of(problem, "uniform", replace(stages, chunks=1)) == []
    plan = replace(make_plan("uniform", problem, stages).plan, forward_sizes=((8,), (4, 4)))
    assert "8 micro-batches" not in [words for words, _ in nearby(problem, plan, replace(stages, microbatches=None))]
    asked = Request(schedule="1f1b", options={"zero": "0"})
    assert not [one for one in words_of(problem, "pipeline-data", asked) if one[:4] == "zero"]
    assert {"tensor", "zero"} <= set(PLANNERS["pipeline-data"].options)
    assert [one for one in words_of(problem, "pipeline-data", Request(schedule="1f1b")) if one[:4] == "zero"] == [
        "zero 1"
    ]


def test_what_is_faster_beside_is_the_answer(small_problems: dict[str, Problem]) -> None:
    """A plan of one stage, of a search on the same devices, is slower than what searches beside it find; nothing is proven of
    these."""
    problem, request = small_problems["two-devices"], Request(schedule="gpipe", microbatches=4)
    slow = make_plan("uniform", problem, replace(request, stages=1))
    beside = search_nearby(slow, request)
    assert beside.outcome.iteration_seconds < slow.outcome.iteration_seconds
    assert beside.outcome.iteration_seconds == min(
        one.iteration_seconds for one in beside.replayed.values() if one.fits
    )
    assert not beside.proof
    assert all(one.seconds >= beside.outcome.iteration_seconds for one in runner_ups(beside))


def test_what_is_found_beside_is_a_runner_up(small_problems: dict[str, Problem]) -> None:
    """Each has the seconds of a search for it; the answer stays where it is the fastest."""
    problem, request = small_problems["two-devices"], Request(schedule="gpipe", microbatches=4)
    result = make_plan("uniform", problem, request)
    heard: list[tuple[int, str]] = []
    beside = search_nearby(result, request, progress=lambda done, words: heard.append((done, words)))
    assert beside.outcome is result.outcome
    assert heard == [(0, "1 stages"), (1, "4 stages"), (2, "2 stages per device")]
    (stages,) = (one for one in runner_ups(beside) if one.decision == "stages")
    one_stage = make_plan("uniform", problem, Request(schedule="gpipe", microbatches=4, stages=1)).outcome
    assert (stages.other, stages.seconds) == ("1", one_stage.iteration_seconds)


def test_one_decision_of_a_plan_is_changed_at_a_time(small_problems: dict[str, Problem]) -> None:
    """Half and twice the micro-batches, the other of GPipe and 1F1B, the next ZeRO of replicas, a word of recomputation for all
    stages, the cut a layer earlier and later; of blocks a whole block. Nothing of orders and of plans without a flush."""
    problem = replace(small_problems["two-devices"], batch=8)
    plan = Plan("hand", "1f1b", stages_from_cuts([3], 6, [(0,), (1,)]), (2,) * 4)
    other = {
        "schedule": [replace(plan, schedule="gpipe")],
        "micro-batches": [replace(plan, microbatches=equal_microbatches(8, count)) for count in (2, 8)],
        "recomputation": [replace(plan, recompute=("whole",) * 2)],
        "layers of stages": [replace(plan, stages=stages_from_cuts([cut], 6, [(0,), (1,)])) for cut in (2, 4)],
    }
    expected = [(name, replace(one, planner="")) for name, plans in other.items() for one in plans]
    assert list(changed(problem, plan)) == expected
    replicated = replace(plan, stages=stages_from_cuts([], 6, [(0, 1)]), zero=1)
    assert [one.zero for name, one in changed(problem, replicated) if name == "ZeRO"] == [0, 2]
    assert not list(changed(problem, replace(plan, schedule="pipedream")))
    assert not list(changed(problem, replace(plan, forward_sizes=((8,), (4, 4)), backward_sizes=((8,), (4, 4)))))
    split = replace(plan, stages=(Stage((0, 1, 2, 3), (0,)), Stage((3, 4, 5), (1,))), splits=(LayerSplit(3, 0.5),))
    assert "layers of stages" not in dict(changed(problem, split))
    again = replace(plan, recompute=("whole",) * 2)
    for one, words in ((again, ["none"]), (replace(again, recomputed_blocks=(1, 1)), ["none", "whole"])):
        of_words = [other for name, other in changed(problem, one) if name == "recomputation"]
        assert [(other.recompute, other.recomputed_blocks) for other in of_words] == [
            ((word,) * 2, ()) for word in words
        ]
    thirds = replace(plan, stages=stages_from_cuts([1, 2], 6, [(0,), (1,), (2,)]))
    cuts = [[len(stage.layers) for stage in one.stages] for name, one in changed(problem, thirds) if "layers" in name]
    assert cuts == [[1, 2, 3]]  # no stage is left without a layer
    gpt = Gpt(3, 8, 2, 4, 10).workload()
    blocks = [next(n for n, layer in enumerate(gpt.layers) if layer.block == block) for block in (1, 2, 3)]
    halves = Plan("hand", "1f1b", stages_from_cuts([blocks[1]], len(gpt), [(0,), (1,)]), (2,) * 4)
    cuts = [
        len(one.stages[0].layers) for name, one in changed(replace(problem, workload=gpt), halves) if "layers" in name
    ]
    assert cuts == [blocks[0], blocks[2]]


def test_changed_plans_have_the_scores_of_their_replays(small_problems: dict[str, Problem]) -> None:
    """But for decisions of which another plan is known."""
    problem = small_problems["two-devices"]
    plan = Plan("hand", "1f1b", stages_from_cuts([3], 6, [(0,), (1,)]), equal_microbatches(problem.batch, 2))
    found = replayed_beside(problem, plan, {"recomputation", "micro-batches"})
    assert {len(one.microbatches) for one in found} == {2}
    assert {one.recompute for one in found} == {()}
    for one, score in found.items():
        fullest = (outcome := simulate(problem, one)).fullest
        assert score == Score(outcome.iteration_seconds, fullest.peak_bytes, fullest.capacity_bytes, fullest.device)


def test_changes_that_cannot_run_are_none(small_problems: dict[str, Problem]) -> None:
    """Opposite pipelines need two micro-batches, and replicas that take turns divide no gradients; cuts inside layers stay."""
    problem = small_problems["two-devices"]
    both = stages_from_cuts([3], 6, [(0, 1), (1, 0)])
    plan = Plan("hand", "chimera", both, equal_microbatches(problem.batch, 2), "round-robin", zero=1)
    every = [one for _, one in changed(problem, plan)]
    assert {(len(one.microbatches), one.zero) for one in every} == {(1, 1), (4, 1), (2, 0), (2, 2), (2, 1)}
    assert [*replayed_beside(problem, plan, ())] == [one for one in every if len(one.microbatches) > 1 and one.zero < 2]
    shared = Plan(
        "hand",
        "1f1b",
        (Stage((0, 1, 2), (0,)), Stage((2, 3, 4, 5), (1,))),
        equal_microbatches(problem.batch, 2),
        splits=(LayerSplit(2, 0.5),),
    )
    names = [name for name, _ in changed(problem, shared)]
    assert "micro-batches" in names
    assert "layers of stages" not in names
