"""Rules of the study of searched schedules: optima that are known are met, wrong ones are seen, families stand beside."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from experiments.schedule_search import __main__ as study
from experiments.schedule_search import joint
from experiments.schedule_search.families import fastest_family, replay_family
from experiments.schedule_search.problems import PUBLISHED, questions
from experiments.studies.study_harness import run_study
from planners import Request, Result, ScheduleProblem, make_plan, search_schedule
from simulator import Gpt, InfeasiblePlanError, Problem, chains_of, recompute_words
from tests.chains import chain
from tests.experiments.commands import refused
from tests.planners.scheduler.schedule_cases import TWO_DEVICES
from tests.records import Recorded, lines

CASE: dict[str, Any] = {
    "name": "two devices",
    "devices": 2,
    "stages": 2,
    "placement": "straight",
    "microbatches": 2,
    "forward": [1, 1],
    "input_gradient": [1, 1],
    "weight_gradient": [1, 1],
    "transfer": 0,
    "freed_at_input_gradient": [1, 1],
    "freed_at_weight_gradient": [1, 1],
    "memory_limit": 4,
    "best_makespan": 7,
    "proven": True,
}
"""F0 F1 . I0 I1 W0 W1 on the first device: 1 + 2 x 3 s on the second."""


def studied(path: Path, cases: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Exit code and document of the study of a file."""
    path.write_text(json.dumps(cases))
    code = run_study("schedule-search", ["--cases", str(path), "--seconds", "0.01", "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


def test_a_known_best_is_matched(tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: Recorded) -> None:
    """Two devices: the second one begins after a forward and then has work for 2 x 3 s."""
    code, document = studied(tmp_path / "cases.json", {"note": "units", "cases": [CASE]}, capsys)
    assert (code, document["matched"], document["failed"], document["worst_gap"]) == (0, 1, 0, 0)
    assert document["rows"][0]["proven"]
    words = ["--cases", str(tmp_path / "cases.json"), "--seconds", "0.01"]
    assert run_study("schedule-search", words) == 0
    recorded(printed=lines(capsys.readouterr().out, r"\b\d+\.\d{3}\b", r"at most (\S+) CPU"))


@pytest.mark.parametrize("best", [7 * (1 - 8e-10), 7 * (1 + 8e-10)])
def test_a_best_may_be_off_by_rounding(tmp_path: Path, capsys: pytest.CaptureFixture[str], best: float) -> None:
    """By less than a part in a billion, whether it is proven or not."""
    cases = [{**CASE, "best_makespan": best}, {**CASE, "best_makespan": best, "proven": False}]
    assert studied(tmp_path / "cases.json", cases, capsys)[0] == 0


def test_a_best_that_is_not_proven_may_be_beaten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is where a case does not say it."""
    case = {key: value for key, value in CASE.items() if key != "proven"} | {"best_makespan": 7.5}
    assert studied(tmp_path / "cases.json", [case], capsys)[0] == 0


@pytest.mark.parametrize(
    ("best", "verdict"),
    [(6.5, "failed: slower"), (7 * (1 - 2e-9), "failed: slower"), (7.5, "failed: below what is proven")],
)
def test_a_best_that_is_missed_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], best: float, verdict: str
) -> None:
    """A search that is slower, or faster than what is said to be proven, ends with 1."""
    code, document = studied(tmp_path / "cases.json", [{**CASE, "best_makespan": best}], capsys)
    assert (code, document["matched"], document["failed"]) == (1, 0, 1)
    assert document["worst_gap"] == pytest.approx(7 / best - 1)
    assert document["rows"][0]["verdict"] == verdict


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ([], "the list of cases is empty"),
        ([{**CASE, "placement": "z"}], "Invalid enum value 'z'"),
        ([{key: CASE[key] for key in CASE if key != "devices"}], "missing required field `devices`"),
        ([{**CASE, "best_makespan": 0}], "Expected `float` > 0.0 - at `$[0].best_makespan`"),
        (
            [{**CASE, "stages": 10**9, "devices": 10**9}],
            "case 0 (two devices): a placement has at most 1,048,576 stages",
        ),
        ([{**CASE, "memory_limit": 1}], "case 0 (two devices): device 0 has 1"),
        ([{**CASE, "forward": [1, 1, 1]}], "case 0 (two devices): forward needs one number"),
    ],
)
def test_a_wrong_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: list[dict[str, Any]], said: str
) -> None:
    """The line names the file, the case and the rule; exit code 4."""
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    line = refused(capsys, ["study", "schedule-search", "--cases", str(path)], 4)
    assert str(path) in line
    assert said in line


def test_families_stand_beside() -> None:
    """GPipe's four micro-batches in flight do not fit in the memory of two, 1F1B and its like do; none goes up and down."""
    row = PUBLISHED[0]
    name, seconds = fastest_family(replace(TWO_DEVICES, limit=2))
    assert name in ("1f1b", "zb-h1")
    assert seconds is not None
    assert 4 * 3 + 1 <= seconds <= 4 * 3 + 3
    least = ScheduleProblem(
        chains=chains_of("bidirectional", 2, 2), microbatches=4, forward=1, input_gradient=1, limit=1
    )
    assert fastest_family(least) == ("", None)
    assert row.problem(8).each("limit") == (8 * 201216,) * 8


def test_a_family_without_such_counts_is_passed_over() -> None:
    """DualPipe has an even number of devices."""
    told = []
    for devices in (2, 3):
        chains = chains_of("bidirectional", devices, devices)
        problem = ScheduleProblem(chains=chains, microbatches=4, forward=1, input_gradient=1, limit=8)
        told.append(replay_family("dualpipe", problem))
    assert [one is None for one in told] == [False, True]


def test_a_baseline_that_nothing_makes_fit_has_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for under every recomputation, and then without a limit."""
    asked: list[tuple[str, str, float]] = []

    def planned(name: str, problem: Problem, request: Request) -> Any:
        asked.append((name, str(problem.recompute), problem.rooms[0]))
        if problem.rooms[0] < 1e12:
            raise InfeasiblePlanError("no room")
        return "a plan"

    monkeypatch.setattr(joint, "make_plan", planned)
    network = Gpt(8, 64, 4, vocabulary=512, sequence=128, attention="unfused").workload()
    assert joint._baseline(joint.JointQuestion(network, 6.5e6), "even 1F1B") == "a plan"
    *tight, (name, _, room) = asked
    assert {one[0] for one in asked} == {"uniform"}
    assert [one[1] for one in tight] == list(recompute_words(network))
    assert (name, room) == ("uniform", 1e15)


def planned(name: str, problem: Problem, request: Request = Request(stages=8), **more: Any) -> Result:  # noqa: B008
    """In place of planners: even stages in four micro-batches; those of `modern` run all again."""
    problem = replace(problem, recompute="whole") if name == "modern" else problem
    return make_plan("uniform", problem, replace(request, microbatches=4), **more)


def test_a_small_study(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: Recorded) -> None:
    """A search beside families, and a GPT in little memory beside its baselines: the document, and what it prints,
    with CPU seconds of a half and a quarter."""
    small = [replace(one, seconds=0.002) for one in questions(True)][:1]
    network = Gpt(8, 64, 4, vocabulary=512, sequence=128, attention="unfused").workload()
    monkeypatch.setattr(study, "_compile", lambda: None)
    monkeypatch.setattr(
        study, "timed_search", lambda problem, seconds: (search_schedule(problem, seconds=seconds), 0.25)
    )
    monkeypatch.setattr(study, "questions", lambda quick: small)
    monkeypatch.setattr(study, "joint_questions", lambda: [joint.JointQuestion(network, size) for size in (6.5e6,)])
    monkeypatch.setattr(joint, "SEEDS", (0,))
    monkeypatch.setattr(joint, "BATCH", 16)
    monkeypatch.setattr(joint, "least_seconds", lambda plan: (plan(), 0.5))
    monkeypatch.setattr(joint, "make_plan", planned)
    found = study.run(argparse.Namespace(cases=None, seconds=None, quick=False))
    found.show(found.document)
    recorded(document=found.document, printed=lines(capsys.readouterr().out))


def test_the_questions_are_those_of_the_tables(recorded: Recorded) -> None:
    """Twelve published rows at two limits; 64 devices at five, even and uneven, by two lengths of search; six V-shaped ones."""
    assert len([*questions(quick=True)]) == 24
    found = [*questions()]
    groups = [question.group for question in found]
    assert [groups.count(group) for group in dict.fromkeys(groups)] == [24, 70, 6]
    recorded(
        questions=[
            {"name": one.name, "limit": one.limit, "of each": one.problem.each("limit")[0], "search": one.seconds}
            | {
                name: fmean(one.problem.each(name))
                for name in ("forward", "input_gradient", "weight_gradient", "transfer")
            }
            for one in found
        ]
    )


def test_networks_of_the_joint_search_need_recomputation() -> None:
    """Two networks that store scores of attention, on eight GPUs that a plan fills to what is asked for, one layer each."""
    asked = {question.workload.name: question.problem() for question in joint.joint_questions()}
    assert list(asked) == ["gpt2-xl", "llama3-8b"]
    for problem in asked.values():
        assert not any(layer.fused_pairs for layer in problem.workload.layers)
        assert len(problem.cluster.devices) == 8
    assert [problem.rooms[0] for problem in asked.values()] == [37e9, 75e9]
    assert {layer.causal_tokens for layer in asked["llama3-8b"].workload.layers} == {0, 4096}


@pytest.mark.slow
def test_a_network_is_planned_beside_its_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row per seed, with each baseline and its share; a baseline that nothing makes fit is given what it needs."""
    network = chain([4e12] * 16, parameters=[10**6] * 16, output_elements=[10**6] * 16, stashed_elements=[10**6] * 16)
    question = joint.JointQuestion(network, 1e9)
    monkeypatch.setattr(joint, "SEEDS", range(1))
    (row,) = joint.joint_rows(question)
    assert [one["name"] for one in row["baselines"]] == ["even 1F1B", "tuned interleaved"]
    assert all(one["fits"] and one["ratio"] >= 1 for one in row["baselines"])
    tight = joint.JointQuestion(network, 1e6)
    assert joint._baseline(tight, "even 1F1B").outcome.fullest.peak_bytes > 1e6
