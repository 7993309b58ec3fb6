"""`pipeplan whatif`: the same plan and a new one under other values, beside the plan as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pipeplan as pp
from experiments.cli import main
from experiments.report import what_ifs
from experiments.report.what_ifs import WhatIf, WhatIfAnswer
from planners import Request, make_plan
from simulator import Plan, Problem, Stage, Workload, change_settings, simulate
from tests.experiments.commands import ended, refused
from tests.simulator.strategies import star_cluster
from tests.simulator.test_time_split import network


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of four layers on two devices, and its problem."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    result = pp.plan(pp.Problem("chain:4", "pipedream-a", 8, devices=2), "uniform", microbatches=4)
    pp.PlanFile(result.problem, result.plan).write(path)
    return path


def document(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> dict[str, Any]:
    """The JSON document of an answer."""
    assert main(("whatif", "--plan", str(path), *words, "--json")) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_both_plans_are_those_of_the_changed_problem(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    """The same plan is replayed on it, and the planner asked about it."""
    found = document(capsys, plan_file, "--set", "network.bandwidth_gbps=/4", "--set", "problem.cluster.devices=3")
    file = pp.PlanFile.read(plan_file)
    assert file.plan is not None
    problem = change_settings(file.problem, ["network.bandwidth_gbps=/4", "problem.cluster.devices=3"]).problem
    assert found["before"]["iteration_seconds"] == simulate(file.problem, file.plan).iteration_seconds
    assert found["same_plan"]["iteration_seconds"] == simulate(problem, file.plan).iteration_seconds
    anew = make_plan("uniform", problem)
    assert (found["planned_anew"]["planner"], found["planned_anew"]["iteration_seconds"]) == (
        "uniform",
        anew.iteration_seconds,
    )
    assert {one["decision"] for one in found["decisions"]} >= {"stages"}
    assert all(one["same"] != one["anew"] for one in found["decisions"])


def test_another_batch_has_as_many_more_micro_batches(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    """Four of two samples become eight of two; of twelve samples six; of ten none can be made but five."""
    for batch, count in ((16, 8), (12, 6), (10, 5)):
        found = document(capsys, plan_file, "--set", f"batch={batch}", "--keep")
        assert found["same_plan"]["plan"]["microbatches"] == [2] * count
        assert f"-> {count} of 2" in found["adapted"]
    found = document(capsys, plan_file, "--set", "batch=12", "--set", "plan.microbatches=3,3,6", "--keep")
    assert (found["same_plan"]["plan"]["microbatches"], found["adapted"]) == ([3, 3, 6], "")


def test_a_plan_that_cannot_stay(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    """One device is too few for it: the line says so, and a new plan is the answer; without one there is none."""
    words = ("whatif", "--plan", str(plan_file), "--set", "problem.cluster.devices=1")
    code, out, _ = ended(capsys, words)
    assert code == 0
    assert "the same plan: cannot be: stage 1 of plan 'uniform' uses GPUs 1, the cluster has 0 to 0" in out
    code, out, _ = ended(capsys, (*words, "--keep"))
    assert (code, "planned anew" in out) == (3, False)


def test_paths_are_listed_with_their_values(capsys: pytest.CaptureFixture[str], plan_file: Path) -> None:
    """Those of the plan and the files, after the settings."""
    code, out, _ = ended(capsys, ("whatif", "--plan", str(plan_file), "--paths", "--set", "batch=16"))
    assert code == 0
    lines = out.splitlines()
    assert "problem.batch=16" in lines
    assert "plan.microbatches=[2, 2, 2, 2]" in lines
    assert any(line.startswith("accelerator.compute.tflops_fp32=") for line in lines)
    paths = document(capsys, plan_file, "--paths", "--set", "batch=16")["paths"]
    assert (paths["problem.batch"], paths["plan.microbatches"]) == (16, [2, 2, 2, 2])
    assert list(paths) == [line.partition("=")[0] for line in lines]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "whatif needs --set PATH=VALUE"),
        (("--set", "batch"), "'batch' must be PATH=VALUE"),
        (("--set", "btch=3"), "'btch' names no value; near it: problem.batch"),
        (("--set", "batch=3", "--planner", "jont"), "did you mean joint?"),
        (("--set", "batch=3", "--keep", "--planner", "joint"), "--planner plans anew, --keep does not"),
        (("--paths", "--keep"), "--keep is for an answer"),
    ],
)
def test_questions_that_are_none(
    capsys: pytest.CaptureFixture[str], plan_file: Path, words: tuple[str, ...], said: str
) -> None:
    """Exit code 2 and one line."""
    assert said in refused(capsys, ("whatif", "--plan", str(plan_file), *words))


def test_the_face_asks_the_same(plan_file: Path) -> None:
    """`pp.what_if` takes values by path; its answer explains itself."""
    file = pp.PlanFile.read(plan_file)
    assert file.plan is not None
    answer = pp.what_if(file.problem, file.plan, {"batch": "*2", "accelerator.memory_gib": 8}, planner="greedy")
    assert answer.planner == "greedy"
    assert [str(one) for one in answer.changes] == ["problem.batch: 8 -> 16", "accelerator.memory_gib: 16 -> 8"]
    assert "planned anew" in answer.summary()


@pytest.mark.parametrize(
    ("seconds", "fits", "said"),
    [
        (1.0, True, "keep the plan: the search found none that is faster"),
        (0.8, True, "keep the plan: the search found none that is faster"),
        (2.0, True, "planned anew an iteration takes 50.0 % less than with the same plan"),
        (2.0, False, "the same plan does not fit; planned anew an iteration takes -50.0 % of its seconds"),
        (0.8, False, "the same plan does not fit; planned anew an iteration takes +25.0 % of its seconds"),
    ],
)
def test_what_a_new_plan_gains(seconds: float, fits: bool, said: str) -> None:
    """Against a new plan of one second; without one, or of a plan that cannot run, nothing is said."""
    kept, new = (
        WhatIfAnswer(SimpleNamespace(iteration_seconds=one, fits=room, words=""))
        for one, room in ((seconds, fits), (1.0, True))
    )
    assert WhatIf((), kept, kept, new).remarks()[-1] == said
    assert len(WhatIf((), kept, kept, None).remarks()) == 2
    assert len(WhatIf((), kept, WhatIfAnswer(None, refused="too few devices"), new).remarks()) == 3


def test_a_plan_that_ran_on_nothing_before() -> None:
    """Where only the new plan runs, it stands alone: no seconds to change from, no decision beside another."""
    anew = WhatIfAnswer(pp.plan(pp.Problem("chain:4", "pipedream-a", 8, devices=2), "uniform", microbatches=4))
    none = WhatIfAnswer(None, refused="too few devices")
    found = WhatIf((), none, none, anew, planner="uniform")
    assert (found.otherwise(), found.feasible) == ([], True)
    _, table = found.tables()
    rows = {name: cells for name, *cells in table.rows}
    assert (table.title, rows["change"], rows["fits"]) == ("", ["-", "-", ""], ["-", "-", "yes"])
    assert len(found.remarks()) == 3


def test_a_plan_of_no_seconds_loses_none() -> None:
    """Of layers that do nothing, on one device: no change in percent, and nothing to gain."""
    layers = tuple(replace(layer, flop=0.0, output_elements=0.0) for layer in network(2).layers)
    problem = Problem(Workload("nothing", layers, ((0, 1),)), star_cluster(1), 4)
    plan = Plan("hand", "gpipe", (Stage((0, 1), (0,)),), (4,))
    told = pp.what_if(problem, plan, {"batch": 8}, planner="uniform")
    rows = {name: cells for name, *cells in told.tables()[1].rows}
    assert (rows["change"], rows["samples per second"]) == ([""] * 3, ["inf"] * 3)
    assert not any("an iteration takes" in line or "keep the plan" in line for line in told.remarks())
    found = pp.report(simulate(problem, plan))
    assert found.limit == "limited by computation, 100 % of the time: nothing else, were it free, would save 5 %"
    assert found.limits == ()
    (time,) = (table for table in found.tables() if table.title.startswith("Seconds per iteration"))
    assert [row[:3] for row in time.rows] == [("iteration", "0", "100.0 %")]
    assert found.record()["efficiency"]["samples_per_second_per_device"] == inf


def test_seconds_are_an_option_of_the_search(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, plan_file: Path
) -> None:
    """They reach the planner where they are given, and nothing does where not."""
    asked: list[Request] = []

    def planned(name: str, problem: Problem, request: Request, **named: Any) -> Any:
        asked.append(request)
        return make_plan(name, problem, request, **named)

    monkeypatch.setattr(what_ifs, "make_plan", planned)
    for words in ((), ("--seconds", "3")):
        document(capsys, plan_file, "--set", "batch=16", "--planner", "uniform", *words)
    assert asked == [Request(), Request(options={"seconds": 3.0})]
