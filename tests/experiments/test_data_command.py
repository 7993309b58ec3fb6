"""`pipeplan data`: what studies read is declared once, and a folder is looked through for it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from experiments.cost_model.model_errors import CASES
from experiments.dnn_partitioning.__main__ import FOLDER, PUBLISHED
from experiments.piper.__main__ import SETTINGS
from experiments.studies.catalogue import STUDIES, Study, as_study
from experiments.studies.input_sets import INPUT_SETS, PIPEDREAM_PROFILES
from tests.experiments.commands import ended, refused


def test_declarations_are_what_the_studies_read() -> None:
    """Every set has a reader, every reader an option of it; files are those that the published figures are of."""
    read = set[str]()
    for study in STUDIES.values():
        options = {words.split(" ")[0] for words in study.options}
        inputs = {**study.inputs, **study.optional_inputs}
        assert set(inputs) <= options
        read |= set(inputs.values())
    assert read == set(INPUT_SETS)
    assert PIPEDREAM_PROFILES.files == tuple(case.profile for case in CASES)
    graphs = INPUT_SETS["dnn-partitioning"]
    assert sorted(name.rpartition("/")[2] for name in graphs.files) == sorted(name for name, *_ in PUBLISHED)
    assert graphs.forms[0].startswith(f"{FOLDER}/")
    assert INPUT_SETS["piper"].files == tuple(name for name, _ in SETTINGS)


def test_a_plug_in_reads_what_is_declared() -> None:
    """Its study may name inputs of this package, and no others."""
    mine = Study("mine", "Which?", 1.0, inputs={"--inputs": "piper"})
    assert as_study(mine) is mine
    with pytest.raises(TypeError, match="did you mean piper"):
        as_study(Study("mine", "Which?", 1.0, optional_inputs={"--inputs": "pipr"}))


@pytest.mark.parametrize("study", [name for name, study in STUDIES.items() if study.inputs])
def test_a_study_without_its_inputs_names_them(capsys: pytest.CaptureFixture[str], study: str) -> None:
    """One line: the option, the inputs, and the command that tells of them."""
    option, inputs = next(iter(STUDIES[study].inputs.items()))
    complaint = refused(capsys, ("study", study))
    assert f"{option}: is missing: inputs {inputs}" in complaint
    assert f"pipeplan data {inputs} tells" in complaint


def test_a_list_and_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Facts that are not known are null, and said to be not stated."""
    code, out, _ = ended(capsys, ("data", "--json"))
    sets = {one["name"]: one for one in json.loads(out)["inputs"]}
    assert (code, set(sets)) == (0, set(INPUT_SETS))
    assert sets["pipedream-profiles"]["studies"] == ["cost-model", "pipedream-optimizer", "pipedream-tables"]
    assert sets["schedule-cases"]["repository"] is None
    told = ended(capsys, ("data",))[1]
    assert told.count("not stated") == sum(
        one[key] is None for one in sets.values() for key in ("repository", "commit", "licence")
    )
    code, out, _ = ended(capsys, ("data", "piper"))
    assert code == 0
    assert "published: https://github.com/msr-fiddle/piper\ncommit of the figures: d7fc8cf\nlicence: MIT" in out
    assert "needs: inputs/bert32a100.json or bert32a100.json\n" in out
    assert "licence: not stated" in ended(capsys, ("data", "schedule-cases"))[1]


def test_a_checkout_that_lacks_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One line for each on stderr, exit code 4, one document, and no command; with all of them the command and the commit."""
    folder = tmp_path / "my sailor"
    first, *others = INPUT_SETS["sailor"].files
    (folder / first).parent.mkdir(parents=True)
    (folder / first).write_text("{}")
    words = ("data", "sailor", "--from", str(folder), "--json")
    code, out, err = ended(capsys, words)
    told = json.loads(out)
    assert (code, told["missing"], told["commands"]) == (4, others, [])
    assert err.splitlines() == [f"pipeplan data: {folder}: lacks {name}" for name in others]
    for name in others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "LICENSE").write_text("text")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    code, out, err = ended(capsys, words)
    told = json.loads(out)
    assert (code, err, told["missing"], told["same_commit"]) == (0, "", [], False)
    assert told["commands"] == [f"pipeplan study sailor --inputs '{folder}'"]
    assert told["licence_file"] == str(folder / "LICENSE")
    _, out, _ = ended(capsys, words[:-1])
    assert f"commit: {told['commit_found']}, the figures are of cf2c8e3\n" in out
    assert f"; file: {folder / 'LICENSE'}\n" in out


def test_a_checkout_without_git_has_no_commit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where git is not installed, nobody tells it; the files are found all the same."""

    def missing(*given: object, **named: object) -> None:
        raise FileNotFoundError("git")

    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(subprocess, "run", missing)
    _, out, _ = ended(capsys, ("data", "sailor", "--from", str(tmp_path), "--json"))
    assert json.loads(out)["commit_found"] is None


def test_places_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A profile as a checkout has it, a file that the option takes itself, a folder that a variable names."""
    place = tmp_path / "profiler" / "translation" / "profiles" / "gnmt" / "graph.txt"
    place.parent.mkdir(parents=True)
    place.write_text("")
    assert PIPEDREAM_PROFILES.path(tmp_path, "gnmt") == place
    assert PIPEDREAM_PROFILES.path(tmp_path, "vgg16") == tmp_path / "vgg16.txt"
    for name in ("*", "/etc/*", "x" * 300, "a\0b"):
        assert PIPEDREAM_PROFILES.find(tmp_path, name) is None
    (tmp_path / "schedule_cases.json").write_text("[]")
    (tmp_path / "rows.csv").write_text("")
    (tmp_path / "hardware").mkdir()
    _, out, _ = ended(capsys, ("data", "schedule-cases", "--from", str(tmp_path)))
    assert f"run: pipeplan study schedule-cases --cases {tmp_path}/schedule_cases.json\n" in out
    _, out, _ = ended(capsys, ("data", "measured-tables", "--from", str(tmp_path)))
    assert f"run: PIPEPLAN_PROFILES={tmp_path}/hardware pipeplan study truth --tables {tmp_path}\n" in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("data sailr", 2, "NAME 'sailr' is unknown (did you mean sailor?)"),
        (
            "data --from .",
            2,
            (
                "--from: goes with the name of inputs; choices: dnn-partitioning, measured-tables, "
                "pipedream-optimizer-runs, pipedream-profiles, piper, sailor, schedule-cases, schedule-optima"
            ),
        ),
        ("data sailor --from /no/such", 4, "/no/such: is not a folder"),
    ],
)
def test_words_that_are_none(capsys: pytest.CaptureFixture[str], words: str, code: int, said: str) -> None:
    """One line."""
    assert said in refused(capsys, words.split(), code)
