"""Tests of `pipeplan goodput`: which options go together, and what a plan says for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import pipeplan as pp
from experiments.cli import main
from tests.experiments.commands import instead

JOB = ("goodput", "--mtbf", "100", "--restart-seconds", "60", "--days", "1", "--runs", "2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "goodput needs --plan, or --servers in its place"),
        ("--plan a.json --servers 2 --checkpoint-seconds 9", "goodput needs --plan, or --servers"),
        ("--servers 2", "goodput needs --checkpoint-seconds, or --checkpoint-gb-per-s"),
        ("--servers 2 --checkpoint-gb-per-s 1", "--checkpoint-gb-per-s goes with --plan"),
        ("--servers 2 --checkpoint-seconds 9 --per device", "--devices goes with --per device, and with --servers"),
        ("--servers 2 --checkpoint-seconds 9 --devices 16", "--devices goes with --per device, and with --servers"),
        ("--servers 2 --checkpoint-seconds 9 --per gpu", "--per 'gpu' is unknown; choices: server, device, job"),
        ("--servers 2 --checkpoint-seconds 9 --replan greedy", "--replan goes with --plan"),
        ("--plan a --checkpoint-seconds 9 --devices 3", "--devices goes with --servers; a plan says its own"),
        ("--plan a --checkpoint-seconds 9 --replan greedy --slower 2", "--slower stands in place of --replan"),
        ("--servers 2 --checkpoint-seconds 9 --slower 2", "--slower goes with --spares"),
        (
            "--servers 2 --checkpoint-seconds 9 --mtbf 0.001 --days 3000",
            (
                "2 runs of 3000 days, for 19 intervals, have 5.47e+09 failures, at most 20,000,000: ask for "
                "fewer runs or days, or for one interval"
            ),
        ),
    ],
)
def test_options_that_are_no_job(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    assert main(instead(JOB, *words.split())) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert message in said.err


@pytest.mark.parametrize("words", ["--checkpoint-seconds 0", "--checkpoint-seconds 9 --runs 10001", "--days 4e3"])
def test_numbers_beyond_their_ends(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the option."""
    with pytest.raises(SystemExit) as stop:
        main(instead(JOB, "--servers", "2", *words.split()))
    assert stop.value.code == 2
    assert f"argument {words.split()[-2]}: {words.split()[-1]!r} must be a" in capsys.readouterr().err


def test_a_plan_says_servers_states_and_iterations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two servers of eight devices; 16 bytes a parameter of bf16 Adam but for the gradient; intervals of whole iterations."""
    monkeypatch.chdir(tmp_path)
    cluster = ("--workload", "gpt2", "--cluster", "dgx-a100:2", "--batch", "32")
    assert main(["export", "--format", "plan", "--planner", "data-parallel", *cluster, "--out", "plan.json"]) == 0
    capsys.readouterr()
    words = ("--plan", "plan.json", "--checkpoint-gb-per-s", "2", "--per", "device", "--json")
    assert main([*JOB, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["servers"] == 2
    assert found["mean_seconds_between_failures"] == 100 * 3600 / 16
    assert 0.1 < found["checkpoint_seconds"] * 2e9 / (124e6 * 14) < 1.2
    assert abs(found["intervals"][1]["seconds"] / found["iteration_seconds"] % 1.0 - 0.5) > 0.49
    assert "fewer" not in found
    assert main([*JOB, *words[:-1], "--spares", "0", "--replan", "data-parallel"]) == 0
    assert "with a server fewer: pp1 tp1 cp1 dp8" in capsys.readouterr().out
    assert main([*JOB, *words, "--spares", "0", "--replan", "data-parallel"]) == 0
    fewer = json.loads(capsys.readouterr().out)["fewer"]
    problem = pp.PlanFile.read("plan.json").problem
    alone = pp.plan(replace(problem, cluster=problem.cluster.take(8)), "data-parallel")
    assert fewer == {"layout": alone.outcome.words, "iteration_seconds": alone.iteration_seconds}


def test_the_face_asks_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a number of servers and of a plan; what does not go together is said in Python's words."""
    words = ("--servers", "4", "--devices", "32", "--per", "device", "--checkpoint-seconds", "9", "--json")
    assert main([*JOB, *words]) == 0
    asked = {"mtbf_hours": 100, "restart_seconds": 60, "days": 1.0, "runs": 2}
    found = pp.goodput(4, devices=32, per="device", checkpoint_seconds=9, **asked)
    assert json.loads(capsys.readouterr().out) == found.record()
    alike = {"server": 100 / 8, "job": 100 / 32}  # as often as one of 32 devices fails in 100 hours
    for per, hours in alike.items():
        assert (
            pp.goodput(4, per=per, checkpoint_seconds=9, **(asked | {"mtbf_hours": hours})).record() == found.record()
        )
    result = pp.plan(pp.Problem("gpt2", "dgx-a100:2", 32), "data-parallel")
    of_plan = pp.goodput(result, checkpoint_gb_per_s=2, spares=0, replan="data-parallel", **asked)
    assert (of_plan.failing.servers, of_plan.iteration_seconds) == (2, result.iteration_seconds)
    fewer = pp.plan(pp.Problem("gpt2", "dgx-a100:1", 32), "data-parallel")
    assert of_plan.failing.slower == fewer.iteration_seconds / result.iteration_seconds
    assert pp.goodput(
        result.outcome, checkpoint_gb_per_s=2, spares=0, slower=of_plan.failing.slower, **asked
    ).record() == (of_plan.record())
    slow = {"checkpoint_seconds": 9, "spares": 0, "slower": 2.0, **asked, "days": 30.0}
    usual, long = (pp.goodput(4, repair_hours=hours, **slow) for hours in (24.0, 240.0))
    assert usual.record() == pp.goodput(4, **slow).record() != long.record()
    assert (usual.failing.repair_seconds, long.failing.repair_seconds) == (24 * 3600, 240 * 3600)
    with pytest.raises(ValueError, match="the plan is on one server, and on none fewer is one"):
        pp.goodput(fewer, checkpoint_seconds=9, spares=0, replan="data-parallel", **asked)
    for wrong, said in (
        ({"checkpoint_gb_per_s": 2}, "checkpoint_gb_per_s goes with a plan"),
        ({}, "goodput needs checkpoint_seconds, or checkpoint_gb_per_s in its place"),
        ({"checkpoint_seconds": 9, "per": "gpu"}, "per 'gpu' is unknown; choices: server, device, job"),
        ({"checkpoint_seconds": 9, "slower": 2.0}, "slower goes with spares"),
        ({"checkpoint_seconds": 9, "runs": 0}, "runs must be a whole number"),
        ({"checkpoint_seconds": 9, "mtbf_hours": "a"}, "mtbf_hours must be"),
        ({"checkpoint_seconds": 9, "per": "device", "devices": 3}, "devices 3: each of 4 servers has one at least"),
        ({"checkpoint_seconds": 9, "per": "device", "devices": "32"}, "devices must be a whole number"),
    ):
        with pytest.raises(ValueError, match=said):
            pp.goodput(4, **(asked | wrong))
    with pytest.raises(ValueError, match="the job is on one server, and on none fewer is one"):
        pp.goodput(1, **slow)
