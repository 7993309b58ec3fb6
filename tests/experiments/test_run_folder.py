"""Rules of run folders: one run's files are together there, others' stay, and nothing is left of a run that was killed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import simulator
from experiments.cli import main
from experiments.terminal.output import UsageError
from experiments.terminal.run_folder import FORMAT, MANIFEST, RunFolder
from tests.experiments.commands import no_picture, refused

COMPARE = ("compare", "--workload", "chain:4", "--cluster", "pipedream-b", "--devices", "2", "--batch", "8")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def put(folder: RunFolder, *files: str, content: str = "x") -> None:
    """What a run does."""
    folder.clear()
    for name in files:
        folder.write([name], lambda name=name: (folder.path / name).write_text(content, encoding="utf-8"))  # type: ignore[misc]


def test_the_files_of_the_run_before_go_and_others_stay(tmp_path: Path) -> None:
    """Of the same owner; what somebody has changed, or put there, is his."""
    put(RunFolder(tmp_path, "one"), "a", "b", "c")
    put(RunFolder(tmp_path, "two"), "d", "e")
    (tmp_path / "mine").touch()
    (tmp_path / "b").write_text("noted by hand", encoding="utf-8")
    put(RunFolder(tmp_path, "one"), "c", "e")
    assert names(tmp_path) == {"b", "c", "d", "e", "mine", MANIFEST}
    put(RunFolder(tmp_path, "two"), "f")
    assert names(tmp_path) == {"b", "c", "e", "f", "mine", MANIFEST}
    written = json.loads((tmp_path / MANIFEST).read_text(encoding="utf-8"))["written"]
    assert {owner: sorted(files) for owner, files in written.items()} == {"one": ["c", "e"], "two": ["f"]}


def test_a_run_that_is_killed_leaves_nothing_that_the_next_does_not_know(tmp_path: Path) -> None:
    """Before, in and after a file that it writes."""

    def half(name: str) -> None:
        (tmp_path / name).write_text("ha", encoding="utf-8")
        raise KeyboardInterrupt

    folder = RunFolder(tmp_path, "one")
    put(folder, "a")
    with pytest.raises(KeyboardInterrupt):
        folder.write(["b", "never"], lambda: half("b"))
    assert names(tmp_path) == {"a", "b", MANIFEST}
    put(RunFolder(tmp_path, "one"), "c")
    assert names(tmp_path) == {"c", MANIFEST}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "3",
        '{"format": "other", "written": {}}',
        f'{{"format": "{FORMAT}", "written": {{"one": {{"../a": ""}}}}}}',
        f'{{"format": "{FORMAT}", "written": {{"one": {{"/etc/passwd": ""}}}}}}',
        f'{{"format": "{FORMAT}", "written": {{"one": {{"a": "", "../a": ""}}}}}}',
        f'{{"format": "{FORMAT}", "written": {{"one": {{"b": ""}}, "two": {{"a": 3}}}}}}',
        f'{{"format": "{FORMAT}", "written": {{"one": ["a"]}}}}',
        f'{{"format": "{FORMAT}", "written": {{"one": {{"{MANIFEST}": ""}}}}}}',
        f'{{"format": "{FORMAT}", "written": {{"one": {{"a": ""}}}}, "written": {{}}}}',
        "[" * 100_000,
    ],
)
def test_a_list_that_is_none_of_ours_is_refused_before_the_work(tmp_path: Path, content: str) -> None:
    """And nothing is removed."""
    (tmp_path / MANIFEST).write_text(content, encoding="utf-8")
    (tmp_path / "a").touch()
    with pytest.raises(
        UsageError, match=f"^--out {tmp_path}: {MANIFEST} there is no list of files of pipeplan; move it"
    ):
        RunFolder(tmp_path, "one")
    assert names(tmp_path) == {"a", MANIFEST}


def test_unusual_folders_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file, a link round in a circle, a folder in the place of the list."""
    (tmp_path / "file").touch()
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    (tmp_path / "odd" / MANIFEST).mkdir(parents=True)
    for place in ("file", "loop", "odd", "file/below"):
        words = (*COMPARE, "--planner", "data-parallel", "--no-figures", "--out", str(tmp_path / place))
        assert str(tmp_path / place) in refused(capsys, words)


def test_compare_owns_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures of planners that are not asked any more are not there any more."""
    monkeypatch.setattr(simulator, "save", no_picture)
    (tmp_path / "notes.txt").touch()
    assert main((*COMPARE, "--planner", "data-parallel", "--timelines", "--out", str(tmp_path), "--json")) == 0
    assert (tmp_path / "data-parallel-gantt.png").exists()
    assert main((*COMPARE, "--planner", "greedy", "--no-figures", "--out", str(tmp_path), "--json")) == 0
    capsys.readouterr()
    assert names(tmp_path) == {"notes.txt", "comparison.csv", "comparison.json", "greedy-plan.json", MANIFEST}


def test_compare_does_not_remove_the_plan_that_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan file of the run before, in the same folder, is refused before the work; a copy with another name is not."""
    assert main((*COMPARE, "--planner", "greedy", "--no-figures", "--out", str(tmp_path), "--json")) == 0
    plan, mine = tmp_path / "greedy-plan.json", tmp_path / "mine.json"
    mine.write_bytes(plan.read_bytes())
    capsys.readouterr()
    again = ("compare", "--planner", "data-parallel", "--no-figures", "--out", f"{tmp_path}/.", "--json", "--plan")
    said = refused(capsys, (*again, str(plan)))
    assert f": --plan {plan}: is of the run before in that folder, which this run replaces; name another --out" in said
    assert plan.read_bytes() == mine.read_bytes()
    assert main((*again, str(mine))) == 0
    assert mine.exists()
