"""Nearby: which searches stand beside a search, and what they add to it."""

from __future__ import annotations

from planners import PLANNERS, Request, make_plan, runner_ups, search_nearby
from planners.nearby import nearby
from simulator import Problem


def words_of(problem: Problem, name: str, request: Request) -> list[str]:
    """Of the searches beside a planner's."""
    plan = make_plan(name, problem, request).plan
    return [words for words, _ in nearby(problem, plan, request)]


def test_only_open_decisions_that_a_planner_takes_are_searched(small_problems: dict[str, Problem]) -> None:
    """Half and double numbers, other schedules; no stages of data parallelism; nothing that the request fixes."""
    problem = small_problems["two-devices"]
    fixed = Request(schedule="gpipe", microbatches=4)
    assert words_of(problem, "data-parallel", fixed) == []
    assert words_of(problem, "uniform", fixed) == ["1 stages", "4 stages", "2 stages a device"]
    assert words_of(problem, "data-parallel", Request(microbatches=4)) == ["gpipe", "interleaved-1f1b", "zb-h1"]
    count = len(make_plan("data-parallel", problem, Request(schedule="gpipe")).plan.microbatches)
    open_count = [f"{one} micro-batches" for one in (count // 2, 2 * count) if 1 <= one <= problem.batch]
    assert words_of(problem, "data-parallel", Request(schedule="gpipe")) == open_count
    assert {"tensor", "zero"} <= set(PLANNERS["pipeline-data"].options)
    assert [one for one in words_of(problem, "pipeline-data", Request(schedule="1f1b")) if one[:4] == "zero"] == [
        "zero 1"
    ]


def test_what_is_found_beside_is_a_runner_up(small_problems: dict[str, Problem]) -> None:
    """Each has the seconds of a search for it; the answer stays."""
    problem, request = small_problems["two-devices"], Request(schedule="gpipe", microbatches=4)
    result = make_plan("uniform", problem, request)
    heard: list[tuple[int, str]] = []
    beside = search_nearby(result, request, progress=lambda done, words: heard.append((done, words)))
    assert beside.outcome is result.outcome
    assert heard == [(0, "1 stages"), (1, "4 stages"), (2, "2 stages a device")]
    (stages,) = (one for one in runner_ups(beside) if one.decision == "stages")
    one_stage = make_plan("uniform", problem, Request(schedule="gpipe", microbatches=4, stages=1)).outcome
    assert (stages.other, stages.seconds) == ("1", one_stage.iteration_seconds)
