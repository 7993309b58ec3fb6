"""Rules of `pipeplan study`: one entry a study, listed without loading it, run by its name as by its module."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.studies.catalogue import STUDIES, Study
from experiments.studies.public_inputs import Amount, NodeNumber, PositiveAmount, agrees, compared, read_json
from experiments.studies.study_harness import add_study_options, run_study
from experiments.terminal.command_parser import Parser
from experiments.terminal.output import InputError
from experiments.terminal.report_tables import ReportTable, marked
from experiments.testing import check_study
from experiments.time_to_accuracy.dated_training import CASES
from tests.records import Recorded, weights

ROOT = Path(__file__).resolve().parents[2]


def test_every_module_that_runs_is_a_study() -> None:
    """What `python -m` runs, but for the command line and what a build runs, is entered once, by its name with hyphens."""
    runs = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "experiments").rglob("*.py")
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    modules = {study.module for study in STUDIES.values()}
    assert modules == {
        module.removesuffix(".__main__") for module in runs - {"experiments.cli", "experiments.compile_kernels"}
    }
    rooms = "experiments.", "experiments.benchmarks."
    assert all(study.module in {f"{room}{name.replace('-', '_')}" for room in rooms} for name, study in STUDIES.items())


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_keeps_its_contract(name: str) -> None:
    """Its entry, and its help by name and by module."""
    check_study(name)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # loaded by other tests, too
@pytest.mark.parametrize("name", STUDIES)
def test_a_module_runs_its_own_study(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m` of a study's module is that study, and not another."""
    module = STUDIES[name].module
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_module(module, run_name="__main__")
    assert capsys.readouterr().out.startswith(f"usage: python -m {module} ")


@pytest.mark.parametrize(
    ("study", "said"),
    [
        (Study("experiments.umpipe", "Why?", 5.0), "what takes a minute has a --quick"),
        (Study("experiments.umpipe", "", 0.1, figures=("one",), options={"--out DIR": "other"}), "conflicting"),
        (Study("experiments.umpipe", "", 0.1, options={"--rate N": "of 50%"}), "its help does not end the program"),
    ],
)
def test_a_study_without_what_it_owes_is_named(monkeypatch: pytest.MonkeyPatch, study: Study, said: str) -> None:
    """An entry that lacks what the contract asks for does not pass."""
    for module in ("experiments.studies.catalogue", "experiments.studies.study_harness", "experiments.testing"):
        monkeypatch.setattr(f"{module}.studies", lambda: {"broken": study})
    with pytest.raises((AssertionError, argparse.ArgumentError), match=said):
        check_study("broken")


LISTING = """
import contextlib, io, json, sys
from experiments.cli import main
from experiments.studies.catalogue import STUDIES
main(["study", "--json"])
for name in STUDIES:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(["study", name, "--help"])
slow = ("experiments.", "numba", "numpy", "pandas", "scipy", "matplotlib", "networkx")
print(json.dumps([name for name in sys.modules if name.startswith(slow)]))
"""


def test_the_list_and_the_help_load_no_study(tmp_path: Path) -> None:
    """Names, questions, minutes and options come from the entries; no module of a study, and nothing slow, is loaded."""
    done = subprocess.run([sys.executable, "-c", LISTING], capture_output=True, text=True, check=True, cwd=ROOT)
    listed, loaded = done.stdout.rsplit("\n", 2)[:2]
    found = {row["name"]: row for row in json.loads(listed)["studies"]}
    assert {name: found[name]["question"] for name in STUDIES} == {name: one.question for name, one in STUDIES.items()}
    assert found["umpipe"]["figures"] == list(STUDIES["umpipe"].figures)
    assert not {study.module for study in STUDIES.values()} & set(json.loads(loaded))
    assert not [name for name in json.loads(loaded) if not name.startswith("experiments.")]


def test_an_interrupt_while_a_study_is_loaded_is_one_line(tmp_path: Path) -> None:
    """Run as a module, which loads what is slow before anything can be caught."""
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    words = [sys.executable, "-m", "experiments.benchmarks.evaluator_speed", "--seconds", "0.1"]
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "experiments: interrupted\n")


def test_a_study_runs_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Document and exit code are those of the module; an unknown name, and a bad option, are one line and exit code 2."""
    case = {"schedule": "1f1b", "devices": 4, "microbatches": 8, "F": 1.0, "B": 2.0, "W": None, "p2p": 0.0, "ops": 64}
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([{**case, "name": "a", "expected_makespan": 33.0}]), encoding="utf-8")
    words = ["--cases", str(path), "--json"]
    assert main(["study", "schedule-cases", *words]) == 0
    named = capsys.readouterr().out
    assert run_study("schedule-cases", words) == 0
    assert capsys.readouterr().out == named
    assert main(["study", "--json", "schedule-cases", *words[:-1]]) == 0
    assert capsys.readouterr().out == named
    assert json.loads(named)["matched"] == 1
    assert main(["study", "magic"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("pipeplan study: study 'magic' is unknown; choices: bapipe-explore")
    assert err.count("\n") == 1
    with pytest.raises(SystemExit) as stop:
        main(["study", "schedule-cases", "--magic"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_table_of_studies(capsys: pytest.CaptureFixture[str], recorded: Recorded) -> None:
    """One row a study: name, minutes, minutes with --quick, question, figures; recorded is the weight of what their help says."""
    assert main(["study"]) == 0
    printed = capsys.readouterr().out
    recorded(**weights({name: [study.epilog, options_of(study)] for name, study in STUDIES.items()}))
    rows = [line.split() for line in printed.splitlines()]
    for name, study in STUDIES.items():
        (row,) = [row for row in rows if row[:1] == [name]]
        quick = [] if study.quick_minutes is None else [f"{study.quick_minutes:g}"]
        figures = ", ".join(one + (" (not with --quick)" if one in study.not_quick else "") for one in study.figures)
        assert row[1:] == [f"{study.minutes:g}", *quick, *study.question.split(), *figures.split()]


def options_of(study: Study) -> dict[str, str]:
    """The help of each option, which says its default, and what it is where nothing is said."""
    parser = Parser()
    add_study_options(parser, study)
    return {
        [one.dest, *one.option_strings][-1]: f"{one.help}: {one.default}"
        for one in parser._actions
        if one.dest != "help"
    }


def test_one_mark_stands_for_stale_weights() -> None:
    """The mark is behind what says that it is stale, and nothing else in the studies' code writes it."""
    assert marked({"label": "XPipe T=4", "stale": True}) == "XPipe T=4*"
    assert marked({"label": "synchronous", "stale": False}) == marked({"label": "synchronous"}) == "synchronous"
    assert {one.label for one in CASES if not one.stale} == {
        one.label for one in CASES if one.flushed and one.method == "synchronous"
    }
    written = [
        path.name
        for path in (ROOT / "experiments").rglob("*.py")
        if path.parent.name != "training"  # code that trains, no table
        and any(mark in path.read_text(encoding="utf-8") for mark in ('"*"\n', "(* ", "* updates"))
    ]
    assert written == ["report_tables.py"]


def test_profiles_that_are_nowhere_are_told_with_where_they_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 2."""
    monkeypatch.setattr("experiments.studies.study_harness.BUNDLED_PROFILES", "no/such/folder")
    assert main(["study", "cost-model"]) == 2
    err = capsys.readouterr().err
    assert ("pipeplan data pipedream-profiles" in err, err.count("\n")) == (True, 1)


def test_published_figures_agree_to_six_digits(capsys: pytest.CaptureFixture[str]) -> None:
    """Or fail the study; what is not proven and what was passed over is said."""
    assert agrees(1.0, None) is None
    assert (agrees(None, 1.0), agrees(1.2345649, 1.23456), agrees(1.234566, 1.23456)) == (False, True, False)
    rows = [
        {"instance": name, "matched": matched, "not_searched": left}
        for name, matched, left in (("a", True, ""), ("b", None, "too many sets"), ("c", False, ""))
    ]
    found = compared(rows, ["other.json"], ReportTable("T", "rows", {"instance": "{instance}"}))
    assert (found.failed, found.document["matched"], found.document["failed"]) == (True, 1, 1)
    assert not compared(rows[:2], [], ReportTable("T", "rows", {})).failed
    found.show(found.document)
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "b is not proven: too many sets",
        "passed over (of another form): other.json",
        "published figures: matched 1, failed 1",
    ]


@pytest.mark.parametrize(
    ("form", "within", "beyond"),
    [
        (Amount, (0, 0.25, 1e18), (-1e-9, 1.1e18)),
        (PositiveAmount, (1e-9, 1e18), (0, -1, 1.1e18)),
        (NodeNumber, (-(2**53), 0, 2**53), (-(2**53) - 1, 2**53 + 1, 0.5)),
    ],
    ids=["amount", "positive amount", "node"],
)
def test_numbers_of_public_inputs_have_ends(
    tmp_path: Path, form: Any, within: tuple[float, ...], beyond: tuple[float, ...]
) -> None:
    """Files of others: layers may take no time and have no bytes; each wrong number is one line that names the file."""
    file = tmp_path / "input.json"
    for value in within:
        file.write_text(json.dumps(value))
        assert read_json(file, form) == value
    for value in beyond:
        file.write_text(json.dumps(value))
        with pytest.raises(InputError, match=r"input\.json: [^\n]+$"):
            read_json(file, form)
