"""Rules of what is printed: words stay whole at any width, cells are shown as they are, faults of stdout are one line."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import pkgutil
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import experiments
from experiments import cli
from experiments.terminal import output
from experiments.terminal.exits import MOST_CHARACTERS, guarded, short
from experiments.terminal.output import print_table, say, to_csv, to_json
from experiments.terminal.report_tables import Cell, ReportTable
from tests.experiments.commands import Terminal, ended
from tests.records import assert_text

GOLDEN = Path(__file__).parent / "golden" / "output"

COLUMNS = ("planner", "schedule", "micro-\nbatches", "iteration,\nseconds", "what it is", "peak memory,\nGiB")
ROWS = (
    ("data-parallel", "gpipe", "1", "0.2432", "the whole network on every device", "0.79 of 16"),
    ("exact-unequal", "interleaved-1f1b", "1,024", "12,345.6", "unsplittable-word-of-thirty-six-letters", "15.9 of 16"),
)


def printed(monkeypatch: pytest.MonkeyPatch, width: int, title: str, columns: tuple[str, ...], rows: object) -> str:
    """The table on a terminal of that width, without its colours."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(title, columns, rows)  # type: ignore[arg-type]
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())


@pytest.mark.parametrize("width", [*range(20, 140, 8), 80, 60])
def test_no_word_is_broken_at_any_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Every word of every shown column stands whole; the columns that are not shown are named; lines fit, unless in a stack."""
    text = printed(monkeypatch, width, "Title of words", COLUMNS, ROWS)
    body, _, lost = text.partition("not shown in")
    missing = [column for column in COLUMNS if column.replace("-\n", "-").replace("\n", " ") in " ".join(lost.split())]
    assert len(missing) < len(COLUMNS) - 1
    for number, column in enumerate(COLUMNS):
        words = [word for row in ROWS for word in row[number].split()] + column.replace("-\n", "-\n ").split()
        assert column in missing or all(word in body for word in words)
    if "planner: " not in text:
        assert all(len(line) <= width for line in text.splitlines())
    if width == 80:
        assert missing == ["what it is"]
    if width == 60:
        assert missing == ["micro-\nbatches", "what it is"]  # seconds and memory decide


def test_what_decides_is_shown_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table of memory what devices hold together and have free, though both stand last."""
    columns = ("stages", "weights", "gradients", "optimizer", "together", "free", "devices")
    text = printed(monkeypatch, 48, "Memory", columns, [("0", "1.00", "2.00", "6.00", "9.00", "7.00", "0-7")])
    assert text.endswith("room for: optimizer; devices\n")


def test_a_narrow_terminal_gets_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not two columns fit, each cell has a line with its heading."""
    text = printed(monkeypatch, 20, "Title", COLUMNS, ROWS)
    assert "planner: data-parallel\nschedule: gpipe\nmicro-batches: 1\niteration, seconds: 0.2432\n" in text
    assert "not shown" not in text


def test_cells_are_no_markup_and_move_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets, colons of emoji and controls are shown, in the title too, and in a stack."""
    row = ("x[/red][bold]y", ":smile: [link=http://a]b", "\x1b[31m\x07\u202e\n")
    for width in (200, 20):
        text = printed(monkeypatch, width, "[/red]\x1b[2J", ("a", "b", "c"), [row])
        for shown in ("x[/red][bold]y", "\\x1b[31m\\x07\\u202e\\n", "[/red]\\x1b[2J"):
            assert shown in text
        assert ":smile:" in text
        assert "\x1b" not in text


def test_a_table_that_is_no_terminals_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file or a pipe gets every column on one line, whatever COLUMNS says."""
    monkeypatch.setenv("COLUMNS", "30")
    print_table("Title", COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert any(all(cell in line for cell in ROWS[1]) for line in lines)


# ---- faults of the streams -------------------------------------------------------------------------------------------

SMALL = ("simulate", "--schedule", "gpipe", "--stages", "2", "--microbatches", "2", "--forward", "1", "--backward", "1")
CHECK = ("check", str(Path(__file__).parents[2] / "hardware_profiles" / "clusters" / "pipedream-b.toml"))


def test_a_full_device_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """/dev/full takes nothing: exit code 1, and what was printed is named."""
    for words in (
        CHECK,
        ("list", "schedules"),
        ("list", "planners", "--json"),
        ("plan", "--help"),
        ("study", "umpipe", "--help"),
    ):
        with open("/dev/full", "w", encoding="utf-8") as full:
            monkeypatch.setattr(sys, "stdout", full)
            assert cli.main(words) == 1
        err = capsys.readouterr().err
        assert err == f"pipeplan {words[0]}: standard output: No space left on device\n"


def test_the_interpreter_ends_quietly_on_a_full_device() -> None:
    """In a process of its own: exit code 1 and the one line, without the interpreter's own complaint at its end."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "experiments.cli", *CHECK],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=Path(__file__).parents[2],
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_closed_output_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The interpreter has no stdout where descriptor 1 is closed: exit code 1 before anything is done."""
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(CHECK) == 1
    assert capsys.readouterr().err == "pipeplan check: standard output is closed\n"


def test_closed_stderr_leaves_stdout_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What would be said on stderr goes nowhere: results alone are on stdout, and a complaint is its exit code."""
    for words, code in ((CHECK, 0), (("check", "/no/such/file"), 4)):
        monkeypatch.setattr(sys, "stderr", None)
        assert cli.main(words) == code
        out = capsys.readouterr().out
        assert out.count("\n") == (1 if code == 0 else 0)


def test_a_reader_that_goes_ends_the_command_silently(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pipeplan list | head -1`: a broken pipe says nothing, and the code is that of `cat` in a shell."""
    for words in (
        CHECK,
        ("list",),
        ("list", "--json"),
        ("study",),
        ("--help",),
        ("--version",),
        ("simulate", "--help"),
        SMALL,
    ):
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w", encoding="utf-8") as pipe:
            monkeypatch.setattr(sys, "stdout", pipe)
            assert cli.main(words) == 128 + signal.SIGPIPE
        assert capsys.readouterr().err == ""


def test_lines_on_a_terminal_end_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of remarks below tables, which a terminal would cut anywhere; a word that is longer than the terminal stays whole."""
    text = f"proven the fastest of {'x' * 50} plans, which are all of [straight] pipelines"
    for width in (20, 40, 80, 200):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("COLUMNS", str(width))
        say(text)
        lines = terminal.getvalue().splitlines()
        assert " ".join(lines) == text
        assert all(len(line) <= width or " " not in line for line in lines)


def test_an_ascii_terminal_gets_question_marks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the encoding lacks is replaced, in tables, lines and messages."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    err = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    words = (
        "plan",
        "--workload",
        "chain:4",
        "--cluster",
        "pipedream-arxiv-b",
        "--devices",
        "2",
        "--batch",
        "8",
        "--stages",
        "2",
    )
    assert cli.main((*words, "--planner", "uniform")) == 0
    assert cli.main(("check", "µ.toml")) == 4
    out.seek(0)
    err.seek(0)
    assert "2: layer1 ? layer2" in out.read()
    assert err.read() == "pipeplan check: ?.toml: there is no such file\n"


@pytest.mark.parametrize("words", [("plan",), ("compare", "--help"), ("--version",)])
def test_an_interrupt_while_modules_load_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """SIGINT before the command runs: exit code 130, no traceback."""

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", interrupted)
    monkeypatch.setattr(cli.Parser, "parse_known_args", interrupted)
    assert cli.main(words) == 130
    name = " ".join(["pipeplan", *words[:1]]) if words[0] in cli.COMMANDS else "pipeplan"
    assert capsys.readouterr().err == f"{name}: interrupted\n"


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--workload", "x" * 5000),
        ("plan", "--cluster", "y[/red]" * 1000),
        ("plan", "--planner", "\x1b[31m" * 400),
        ("plan", "--batch", "9" * 5000),
        ("plan", "z" * 5000),
        ("w" * 5000,),
        ("simulate", "--schedule", "1f1b", "--forward", "1", "--backward", "v" * 5000),
        ("check", "u" * 5000),
        ("check", "t" * 200 + "\n" * 50),
        ("export", "--format", "s" * 5000),
        ("list", "r" * 5000),
    ],
    ids=lambda words: "-".join(words)[:30],
)
def test_messages_are_short(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """One printable line of at most 300 characters, however long the value that it complains of."""
    try:
        code = cli.main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert (code in (2, 4), out, err.count("\n")) == (True, "", 1)
    assert len(err) <= 301
    assert err.rstrip("\n").isprintable()


def test_what_is_said_of_a_file_does_not_depend_on_where_it_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long its path, which is kept whole."""
    said = set[str]()
    for folder in (tmp_path, tmp_path / ("d" * 120)):
        folder.mkdir(exist_ok=True)
        path = folder / "cluster.toml"
        path.write_text("kind = " + repr("k" * 400), encoding="utf-8")
        assert cli.main(["check", str(path)]) == 4
        err = capsys.readouterr().err
        assert str(path) in err
        said.add(err.replace(str(path), ""))
    assert len(said) == 1


def test_memory_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1."""

    def greedy(_: object) -> int:
        raise MemoryError

    monkeypatch.setattr("experiments.commands.check_command.run", greedy)
    assert cli.main(CHECK) == 1
    assert capsys.readouterr().err.startswith("pipeplan check: not enough memory")


def test_what_no_command_foresees_is_shown_as_python_shows_it() -> None:
    """An error that is a fault of the program, and a warning that is no doubt of the command's."""

    def action() -> int:
        warnings.warn("of a library", RuntimeWarning, stacklevel=1)
        raise RuntimeError("a fault")

    with pytest.warns(RuntimeWarning, match="of a library") as told, pytest.raises(RuntimeError, match="a fault"):
        guarded("pipeplan plan", action)
    assert told[0].filename == __file__


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not finite is null, as JSON has no word for it."""
    from experiments.terminal.output import print_json

    print_json({"a": float("inf"), "b": [float("nan"), 1.5]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5]}


def test_no_command_is_the_help_and_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """`pipeplan` alone: exit code 2, the commands on stderr, each with a sentence."""
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(name in err for name in cli.COMMANDS)


def test_figures_stand_to_the_right_and_words_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    """A column of numbers with units is aligned at its end, one with a word in it at its beginning, the first always so."""
    print_table("Title", ("1st", "number", "mixed"), [("1", "7 of 16", "7"), ("22", "1,024.5", "seven")])
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines() if "7" in line or "seven" in line]
    assert rows == [" 1    7 of 16  7", " 22   1,024.5  seven"]


def report_tables() -> Iterator[tuple[str, ReportTable]]:
    """Every table of the package, once, by the module that has it and its name there."""
    seen: set[int] = set()
    for module in pkgutil.walk_packages(experiments.__path__, "experiments."):
        try:
            found = vars(import_module(module.name))
        except ModuleNotFoundError as missing:
            if missing.name != "torch":
                raise
            continue  # modules that time kernels: they print no tables
        for name, table in found.items():
            if isinstance(table, ReportTable) and id(table) not in seen:
                seen.add(id(table))
                yield f"{module.name} {name}", table


class Alike(dict[str, Any]):
    """A row whose every value is the same, and which of them were read."""

    def __init__(self, value: int) -> None:
        self.value, self.read = value, list[str]()

    def __missing__(self, key: str) -> int:
        self.read.append(key)
        return self.value

    def get(self, key: str, default: Any = None) -> Any:
        """As of a key that is there."""
        return self[key]


def written(heading: str, cell: Cell) -> tuple[str, str]:
    """What a cell reads of a row of threes, of 3 * 2^30 where bytes are shown, and says of it: nothing of a text or a list."""
    row = Alike(3 * 2**30 if re.search("[GM]i?B|ops/s", heading) else 3)
    try:
        said = cell.format_map(row) if isinstance(cell, str) else cell(row)
    except (AttributeError, KeyError, TypeError):
        said = ""
    return ", ".join(dict.fromkeys(row.read)), said


def test_cells_of_every_table_have_their_units() -> None:
    """What each column reads of its row, and how it writes numbers, which are in base units: per cent, milliseconds, GiB, places,
    words behind; of the columns that write a number, or a text, as it is, no line is kept. No two of a table read the same."""
    lines = []
    for place, table in report_tables():
        cells = {heading: written(heading, cell) for heading, cell in table.columns.items()}
        told = [one for one in cells.values() if one[1]]
        assert len(told) == len(set(told)), place
        lines += [
            f"{place}: {' '.join(heading.split())}: {read}: {said}"
            for heading, (read, said) in cells.items()
            if said not in ("3", "")
        ]
    assert_text(GOLDEN / "cells.txt", "\n".join(lines) + "\n")


class Empty(dict[str, Any]):
    """A document without rows."""

    def __missing__(self, key: str) -> list[Any]:
        return []


@pytest.mark.parametrize(
    "name",
    [
        "bapipe_explore.__main__",
        "cost_model.__main__",
        "modern_schedules.__main__",
        "pipedream_optimizer",
        "published_layouts.__main__",
        "sailor.__main__",
        "umpipe.gain_tables",
    ],
)
def test_headings_of_studies(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables, their columns, and the lines between them, where no table has a row."""
    import_module(f"experiments.{name}").print_document(Empty())
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert_text(GOLDEN / f"{name.split('.')[0]}.txt", f"{printed}\n")


def test_documents_are_indented_by_two() -> None:
    """Lists and objects stand on lines of their own; what is not finite is null."""
    assert to_json({"a": [1.5, float("nan")], "b": {}}) == '{\n  "a": [\n    1.5,\n    null\n  ],\n  "b": {}\n}'


# ---- CSV -------------------------------------------------------------------------------------------------------------


def test_no_cell_of_a_table_begins_a_formula() -> None:
    """Texts that a spreadsheet would compute stand behind an apostrophe; numbers, also negative ones, are as they are."""
    texts = ["=1+1", "+1", "-1", "@x", "\t=x", "\r=x", "  =x", "\uff1dx", "a=b", "plain", ""]
    rows = [
        {"=name": text, "n": -1.5, "none": None, "nan": math.nan, "true": True, "whole": -(10**20)} for text in texts
    ]
    table = list(csv.reader(io.StringIO(to_csv(rows, list(rows[0])), newline="")))
    assert table[0] == ["'=name", "n", "none", "nan", "true", "whole"]
    for text, (cell, *others) in zip(texts, table[1:], strict=True):
        controlled = text.startswith(("\t", "\r"))  # is `\\t`, two characters
        assert cell == (ascii(text)[1:-1] if controlled else text if text in ("a=b", "plain", "") else f"'{text}")
        assert others == ["-1.5", "", "", "True", str(-(10**20))]


SAID_EVERY = output.EVERY  # before a test takes it away


def test_long_work_says_where_it_is_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A line every half minute, and none where --quiet is asked for."""
    now = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    with patch.object(output, "EVERY", SAID_EVERY):
        report = output._lines("planning", 5, lambda: next(now))
        for done, text in ((1, "a"), (2, "b"), (3, "c"), (4, "d")):
            report(done, text)
    assert capsys.readouterr().err == "planning b: 2 of 5, 31 s so far\nplanning d: 4 of 5, 62 s so far\n"
    with patch.object(output, "EVERY", 0.0):
        with output.quiet(), output.progress("planning") as report:
            report(1, "a")
        assert capsys.readouterr().err == ""
        with output.progress("planning") as report:
            report(1, "a")
    assert capsys.readouterr().err == "planning a: 1, 0 s so far\n"


def test_long_work_on_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done and the words of the last step, in one line that is gone at the end; nothing where --quiet is asked for."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with output.quiet(), output.progress("planning", 5) as report:
        report(1, "best 9 s")
    assert terminal.getvalue() == ""
    with output.progress("planning", 5) as report:
        report(2, "best 3 s")
    assert "planning best 3 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K")


def test_quiet_reaches_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A search reports each better plan; with --quiet nothing is on stderr."""
    words = ("plan", "--planner", "greedy", "--workload", "chain:4", "--cluster", "pipedream-b", "--batch", "8")
    with patch.object(output, "EVERY", 0.0):
        assert ended(capsys, (*words, "--quiet"))[::2] == (0, "")
        assert "planning with greedy best " in ended(capsys, words)[2]


def test_a_cut_goes_round_words_but_long_ones() -> None:
    """Of names in a row each is whole or left out; of one long path the middle is left out."""
    names = [f"planner-{number}" for number in range(60)]
    before, after = short(", ".join(names)).split(" … ")
    assert set(re.findall("[^, ]+", f"{before} {after}")) < set(names)
    assert len(before) + len(after) > MOST_CHARACTERS - 40
    assert short("x" * 999) == f"{'x' * (MOST_CHARACTERS * 2 // 3 - 3)} … {'x' * (MOST_CHARACTERS // 3)}"
