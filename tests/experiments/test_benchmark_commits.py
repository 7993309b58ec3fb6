"""Rules of the comparison of two commits: each runs its own code, in turn, and ratios are of CPU seconds, old over new."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from experiments.benchmarks.benchmark_commits import PACKAGES, check_out, compared, seconds_of_rates
from experiments.studies.study_harness import run_study
from experiments.terminal.output import UsageError

COMMAND_LINE = """
import json, os, sys
RATE = {rate}
with open(os.environ["CALLS"], "a") as calls:
    print(RATE, *sys.argv[1:3], file=calls)
document = {{"straight_plans_per_second": RATE, "only_{rate}_per_second": 1.0, "seed": 0}}
if "replay-speed" in sys.argv:
    document = {{"rows": [{{"devices": 2, "microbatches": 4, "ops_per_second_simpy": 8.0 * RATE}}]}}
print(json.dumps(document))
"""
"""The command line of a repository that is `rate` fast."""


def git(folder: Path, *words: str) -> str:
    """Git in a folder, as somebody."""
    who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(commits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the repository of commits."""
    _without_git(monkeypatch)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return Path(copytree(commits, tmp_path / "repository"))


def _without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment says which repository git works on."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of tagged commits: `foreign`, without our packages, `slow`, `fast`, `silent`, and `broken`, which fails."""
    with pytest.MonkeyPatch.context() as patch:
        _without_git(patch)
        return _committed(tmp_path_factory.mktemp("commits"))


def _committed(folder: Path) -> Path:
    git(folder, "init", "-q")
    (folder / "none").touch()
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "foreign")
    git(folder, "tag", "foreign")
    for package in PACKAGES:
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    texts = {name: COMMAND_LINE.format(rate=rate) for name, rate in (("slow", 100), ("fast", 200))}
    for name, text in {**texts, "silent": "", "broken": "raise SystemExit('no such study')"}.items():
        (folder / "experiments" / "cli.py").write_text(text, encoding="utf-8")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", name)
        git(folder, "tag", name)
    return folder


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a call that ends with exit code 2."""
    assert run_study("benchmark-commits", words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_the_ratio_is_that_of_the_commits(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the rate is half of the CPU seconds, in every round; the commits take turns in going first, and leave nothing."""
    monkeypatch.chdir(repository / "experiments")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert run_study("benchmark-commits", ["slow", "fast", "--rounds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["old"]["name"], found["new"]["name"], found["rounds"]) == ("slow", "fast", 2)
    assert found["old"]["commit"] == git(repository, "rev-parse", "slow").strip()
    rows = {(row.pop("benchmark"), row.pop("figure")): row for row in found["rows"]}
    twice = {"ratio": 2.0, "least_ratio": 2.0, "most_ratio": 2.0}
    replay = {"old_cpu_seconds": 1 / 800, "new_cpu_seconds": 1 / 1600, **twice}
    assert rows["evaluator-speed", "straight_plans_per_second"] == {
        "old_cpu_seconds": 1 / 100,
        "new_cpu_seconds": 1 / 200,
        **twice,
    }
    assert rows["replay-speed", "ops_per_second_simpy 2x4"] == replay
    assert all(rows[f"plan {name}", "whole process"]["old_cpu_seconds"] > 0 for name in ("vgg16", "gpt2-xl"))
    assert [row["benchmark"] for row in found["benchmarks"]] == [name for name, _ in rows]
    assert found["in_one_commit_alone"] == [f"evaluator-speed only_{rate}_per_second" for rate in (100, 200)]
    calls = (tmp_path / "calls").read_text().split("\n")
    assert [call for call in calls if "replay" in call] == [
        f"{rate} study replay-speed" for rate in (100, 200, 200, 100)
    ]
    assert sum("plan" in call for call in calls) == 2 * 2 * (1 + 2)
    assert not list(temporary.iterdir())
    assert git(repository, "worktree", "list").count("\n") == 1


def test_quick_is_one_round_without_the_engines(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables for a person; the first line says which commit is divided by which."""
    assert run_study("benchmark-commits", ["fast", "slow", "--quick", "--repository", str(repository)]) == 0
    out = capsys.readouterr().out
    assert "CPU seconds of fast over those of slow: above 1 the new commit is faster (rounds: 1)" in out
    assert "replay-speed" not in out
    assert ["evaluator-speed", "0.500", "0.500", "0.500", "1"] in [line.split() for line in out.splitlines()]
    assert "measured in one commit alone: evaluator-speed only_100_per_second" in out


def test_a_commit_that_does_not_exist(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names it, whichever of both it is."""
    for name in ("nope", "", "slow:experiments", "--all", "-x", "slow nope"):
        for pair in (["--", name, "fast"], ["--", "fast", name]):
            line = refused(capsys, "--repository", str(repository), *pair)
            assert line.endswith(f"commit {name!r} does not exist in {repository}\n")


def test_a_folder_that_is_no_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder outside git, a file, a folder that is not there, a repository without a checkout; and no git at all."""
    (tmp_path / "file").touch()
    git(tmp_path, "init", "-q", "--bare", "bare")
    for folder in (tmp_path, tmp_path / "file", tmp_path / "missing", tmp_path / "bare"):
        line = refused(capsys, "a", "b", "--repository", str(folder))
        assert "must be a folder of a git checkout" in line
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git must be installed" in refused(capsys, "a", "b", "--repository", str(tmp_path))


def test_a_commit_that_cannot_be_measured(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that fails and one that prints no document: what it ran, and what it said last; the worktrees are gone."""
    where = ["--repository", str(repository)]
    assert "in the new commit it ended with exit code 1: no such study" in refused(capsys, "fast", "broken", *where)
    assert "in the old commit it must print one JSON object" in refused(capsys, "silent", "fast", *where)
    assert "is not one of pipeplan: it has no package experiments, planners" in refused(
        capsys, "foreign", "fast", *where
    )
    assert git(repository, "worktree", "list").count("\n") == 1


def test_a_commit_that_git_cannot_check_out(repository: Path, tmp_path: Path) -> None:
    """Where something is in its place: what git says last."""
    with pytest.raises(UsageError, match=f"commit fast cannot be checked out: fatal: '{tmp_path}' already exists"):
        check_out(repository, tmp_path, "fast")


def test_seconds_are_those_of_one_evaluation() -> None:
    """Rates of a document and of its rows by shape; what is no rate is left out."""
    row = {"devices": 8, "microbatches": 64, "ops": 1024, "ops_per_second_simpy": 4.0, "ratios": {"simpy": 2.0}}
    document: dict[str, Any] = {"unit": "ops per CPU second", "plans_per_second": 10.0, "none_per_second": 0.0}
    assert seconds_of_rates({**document, "rows": [row]}) == {"plans_per_second": 0.1, "ops_per_second_simpy 8x64": 0.25}
    assert seconds_of_rates({}) == {}


def test_a_ratio_belongs_to_a_round() -> None:
    """Rounds of 4/2, 9/3 and 8/8 s: 2 in the middle, from 1 to 3, though the middle seconds are 8 and 3; a benchmark's
    ratio is the geometric mean of its figures, round by round."""
    pairs = ((4.0, 2.0), (9.0, 3.0), (8.0, 8.0))
    rounds = [[{("a", "x"): seconds, ("a", "y"): 1.0} for seconds in pair] for pair in pairs]
    found = compared(rounds)
    spread = {"ratio": 2.0, "least_ratio": 1.0, "most_ratio": 3.0}
    medians = {"old_cpu_seconds": 8.0, "new_cpu_seconds": 3.0}
    assert found["rows"][0] == {"benchmark": "a", "figure": "x", **medians, **spread}
    (one,) = found["benchmarks"]
    assert one == pytest.approx(
        {"benchmark": "a", "figures": 2, "ratio": 2**0.5, "least_ratio": 1.0, "most_ratio": 3**0.5}
    )
    assert found["in_one_commit_alone"] == []
