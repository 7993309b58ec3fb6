"""The README is true: its recipe runs, its commands parse, its lists are complete."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import pipeplan
from experiments.cli import COMMANDS, main

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def block(marker: str) -> str:
    """The code block that follows a comment."""
    found = re.search(rf"<!-- {re.escape(marker)} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found is not None, marker
    return found[1]


def test_the_recipe_for_a_new_accelerator_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The two files and the two commands of the README give a comparison on the new accelerator."""
    monkeypatch.chdir(tmp_path)
    for name in ("my-gpu.toml", "my-cluster.toml"):
        Path(name).write_text(block(f"recipe: {name}"), encoding="utf-8")
    for line in block("recipe: commands").splitlines():
        words = shlex.split(line)
        assert words[0] == "pipeplan"
        more = ["--planner", "data-parallel", "--no-figures"] if words[1] == "compare" else []
        assert main(words[1:] + more) == 0
    out = capsys.readouterr().out
    assert "my-gpu" in out
    assert "my-cluster, 8 devices" in out


def test_the_plan_file_is_valid_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan of the README passes `check` and replays."""
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text(block("recipe: mine.json"), encoding="utf-8")
    assert main(["check", "mine.json"]) == 0
    capsys.readouterr()
    assert main(["simulate", "--plan", "mine.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_seconds"] > 0.0


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example in the face's docstring, and the README's blocks in their order, run as they stand, in one session each."""
    monkeypatch.chdir(tmp_path)
    example = re.findall(r"^    (.*)$", pipeplan.__doc__ or "", re.MULTILINE)
    for code in ("\n".join(example), "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))):
        session: dict[str, object] = {}
        exec(compile(code, "<example>", "exec"), session)
    assert example[0] == "import pipeplan as pp"


def test_every_command_line_of_the_readme_parses(capsys: pytest.CaptureFixture[str]) -> None:
    """Commands and options that the README names exist: each line with --help added prints help."""
    lines = re.findall(r"^pipeplan .*$", README, re.MULTILINE)
    assert len(lines) >= 7
    for line in lines:
        words = shlex.split(line.split(" #")[0])[1:]
        assert words[0] in COMMANDS
        with pytest.raises(SystemExit) as stop:
            main([*words, "--help"])
        assert stop.value.code == 0
        help_text = capsys.readouterr().out
        for word in words:
            if word.startswith("--"):
                assert word in help_text, line


def test_pictures_of_the_readme_exist() -> None:
    """Every picture that the README shows is in the repository."""
    root = Path(__file__).resolve().parents[1]
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert pictures
    assert all((root / picture).is_file() for picture in pictures)
