"""Rules of places to write to: what cannot be written is one line and exit code 2 before the work, at every door that writes."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from experiments.cli import COMMANDS
from experiments.commands.calibrate_command import written_toml
from experiments.commands.simulate_command import written_schedule
from experiments.studies.catalogue import STUDIES
from experiments.studies.study_harness import add_study_options, folder_or_stack
from experiments.terminal.argument_types import WRITTEN, written_figure, written_file, written_folder
from experiments.terminal.command_parser import Parser
from experiments.terminal.exits import USAGE
from experiments.view.page_option import written_page
from tests.experiments.commands import ended, refused

ROOT = Path(__file__).resolve().parents[2]

NAMES = {
    written_file: "plan.json",
    written_figure: "figure",
    written_schedule: "order.txt",
    written_toml: "stack.toml",
    written_folder: "",
    folder_or_stack: "",
}
"""What each kind of argument would write to in a folder."""

PLACES = ("file", "read-only", "closed", "closed/below", "loop")
"""A file in place of the folder, one that is not to be written to, one that is not to be opened, a link round in a circle."""


def writing(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """The options of a parser that name what is written, and the name that they are tried with."""
    for action in parser._actions:
        if action.type in NAMES:
            yield action.option_strings[0], NAMES[action.type]  # type: ignore[index]


def doors() -> Iterator[tuple[str, str, str]]:
    """Every command and study that writes, its option, and a name."""
    for command in COMMANDS:
        parser = Parser()
        import_module(f"experiments.commands.{command}_command").add_arguments(parser)
        yield from ((command, *option) for option in writing(parser))
    for name, study in STUDIES.items():
        parser = Parser()
        add_study_options(parser, study)
        yield from ((f"study {name}", *option) for option in writing(parser))


DOORS = list(doors())

Told = dict[tuple[str, str, str], tuple[int, str, str]]
"""By command, option and place."""

TRIED = """
import contextlib, io, json, sys
from experiments.cli import main
told = []
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    told.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(told))
"""


def as_anybody() -> None:
    """Permissions hold for root, too, in what the child runs: the capabilities that pass over them are dropped."""
    if os.geteuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, capability)  # PR_CAPBSET_DROP


def child(*words: str, given: str = "") -> str:
    """What a Python without these capabilities prints."""
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], input=given, preexec_fn=as_anybody, cwd=ROOT, env=paths, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def child_of_all(tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Path]:
    """Exit code, stdout and stderr of every door at every place, and, at places that have no name, of `plan` at a file that is
    not to be written and `simulate` in a folder that cannot be listed; where all of these are.
    """
    folder = tmp_path_factory.mktemp("places")
    (folder / "file").touch()
    (folder / "read-only").mkdir(mode=0o555)
    (folder / "closed").mkdir(mode=0o000)
    os.symlink(folder / "loop", folder / "loop")
    tried = {
        (command, option, place): [*command.split(), option, str(folder / place / name)]
        for command, option, name in DOORS
        for place in PLACES
    }
    (folder / "plan.json").touch(mode=0o444)
    tried["plan", "--out", ""] = ["plan", "--out", str(folder / "plan.json")]
    (folder / "drop").mkdir()
    (folder / "drop").chmod(0o333)  # beyond the umask
    schedule = "simulate --schedule gpipe --stages 2 --microbatches 2 --forward 1 --backward 1 --out"
    tried["simulate", "--out", ""] = [*schedule.split(), str(folder / "drop" / "order.txt")]
    found = json.loads(child("-c", TRIED, given=json.dumps(list(tried.values()))))
    (folder / "drop").chmod(0o755)
    return dict(zip(tried, found, strict=True)), folder


@pytest.fixture(scope="module")
def told(child_of_all: tuple[Told, Path]) -> Told:
    """What was said at each door and place."""
    return child_of_all[0]


@pytest.mark.parametrize(("command", "option", "name"), DOORS)
@pytest.mark.parametrize("place", PLACES)
def test_what_cannot_be_written_is_one_line_before_the_work(
    told: Told, command: str, option: str, name: str, place: str
) -> None:
    """Exit code 2, nothing on stdout, and the option and what was named for it in the one line."""
    code, out, err = told[command, option, place]
    assert (code, out, err.count("\n")) == (USAGE, "", 1), err
    assert err.startswith(f"pipeplan {command}: argument {option}: ")
    assert f"/{place}/{name}".rstrip("/") in err


def test_all_that_write_are_tried() -> None:
    """Among them every command with --out."""
    assert {command for command, option, _ in DOORS if option == "--out"} >= {
        "compare", "export", "plan", "profile", "simulate", *(f"study {name}" for name, one in STUDIES.items() if one.figures)
    }  # fmt: skip


def test_all_that_write_are_held_against_what_is_read() -> None:
    """Every option of a command that names what is written, those of pages among them, is known as one."""
    parsers = {command: Parser() for command in COMMANDS}
    for command, parser in parsers.items():
        import_module(f"experiments.commands.{command}_command").add_arguments(parser)
    actions = [action for parser in parsers.values() for action in parser._actions]
    assert {one.dest for one in actions if one.type in (*NAMES, written_page)} == {*WRITTEN}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("simulate --plan kept.json --out kept.json", "--out kept.json is a file that the command reads"),
        (
            "simulate --plan kept.json --out other.json --out ./kept.json",
            "--out kept.json is a file that the command reads",
        ),
        (
            "export --plan kept.json --format chrome-trace --out link.json",
            "--out kept.json is a file that the command reads",
        ),
        (
            "export --plan megatron:kept.json --format text --out kept.json",
            "--out kept.json is a file that the command reads",
        ),
        ("plan --problem kept.json --out kept.json", "--out kept.json is a file that the command reads"),
        ("plan --stack generic,kept.toml --out kept.toml", "--out kept.toml is a file that the command reads"),
        ("check kept.toml:2 --draw drawn --plan kept.json", None),
        ("plan --workload gpt2 --problem gone.json --out gpt2", None),
        ("sweep --html one.html --out one.html", "--out and --html write one file, one.html: name two"),
        (
            "calibrate --out one.toml --stack-out ./one.toml",
            "--out and --stack-out write one file, one.toml: name two",
        ),
        (
            "plan --pareto 2,4 --figure one --out one.svg",
            "--out and --figure write one file, one.svg: name two",
        ),
    ],
)
def test_what_is_read_is_not_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str | None
) -> None:
    """By whatever name of the file; nor do two options write one. A name that is no file's stands for what it names."""
    monkeypatch.chdir(tmp_path)
    for name in ("kept.json", "kept.toml", "gpt2"):
        (tmp_path / name).write_text("kept", encoding="utf-8")
    (tmp_path / "link.json").symlink_to("kept.json")
    err = ended(capsys, words.split())[2] if said is None else refused(capsys, words.split())
    assert ("is a file that the command reads" not in err) if said is None else (f": {said}" in err)
    assert (tmp_path / "kept.json").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "plan --out p.json",
            "argument --out: p.json: the current folder is no longer there (see pipeplan plan --help)",
        ),
        ("compare", "argument --out: out/compare: the current folder is no longer there (see pipeplan compare --help)"),
        ("plan --workload config.json", "the current folder: No such file or directory"),
    ],
)
def test_a_folder_that_is_gone_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    """A command whose current folder was removed says so, not that something is missing without a name."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    _, out, err = ended(capsys, words.split())
    assert (out, err) == ("", f"pipeplan {words.split()[0]}: {said}\n")


def test_a_file_that_is_not_to_be_written_is_named(child_of_all: tuple[Told, Path]) -> None:
    """It is there, in a folder that others may be written into."""
    told, folder = child_of_all
    line = f"pipeplan plan: argument --out: {folder / 'plan.json'}: cannot be written to (see pipeplan plan --help)\n"
    assert told["plan", "--out", ""] == [USAGE, "", line]


def test_a_folder_that_cannot_be_listed_is_written_to(child_of_all: tuple[Told, Path]) -> None:
    """Leftovers of writers that were killed cannot be found there, and the file is written all the same."""
    told, folder = child_of_all
    assert told["simulate", "--out", ""][0] == 0, told["simulate", "--out", ""]
    assert [path.name for path in (folder / "drop").iterdir()] == ["order.txt"]


@pytest.mark.parametrize("home", [pytest.param(None, marks=pytest.mark.slow), os.devnull])
def test_a_command_that_draws_without_a_home_says_nothing_of_matplotlibs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """Matplotlib takes a temporary folder for its files; its own two lines about that are not the command's."""
    for name in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(*(("XDG_CACHE_HOME", os.devnull) if home is None else ("HOME", home)))
    words = "simulate --schedule gpipe --stages 2 --microbatches 2 --forward 1 --backward 1 --engine recurrence --gantt"
    done = subprocess.run(
        [sys.executable, "-m", "experiments.cli", *words.split(), str(tmp_path / "time.svg")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {"time.svg"}
