"""Stops: SIGINT and SIGTERM end a command with what it has found; a second one ends it at once, in one line."""

from __future__ import annotations

import io
import itertools
import json
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import planners
import simulator
from experiments import make_problem
from experiments.cli import main
from experiments.sweep import runs
from experiments.terminal import stops
from experiments.terminal.exits import guarded
from experiments.terminal.stops import SIGNALS
from simulator.compiled.numba_kernels import interrupts
from tests.experiments.commands import Terminal, no_picture

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("interruptible")

SAVING = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
from experiments.terminal.exits import guarded

def command():
    try:
        print("searching", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("saving", flush=True)
        time.sleep(float(sys.argv[1]))
    return 130

sys.exit(guarded("pipeplan plan", command, own=True))
"""


def command(seconds: float) -> subprocess.Popen[str]:
    """A process whose command takes so long to save what it has found, once it runs."""
    made = subprocess.Popen(
        [sys.executable, "-c", SAVING, str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "searching\n"
    return made


@pytest.mark.parametrize("number", SIGNALS, ids=lambda one: one.name)
def test_a_signal_ends_a_command_with_what_it_has_found(number: signal.Signals) -> None:
    """Either signal is an interrupt: what the command does with it is done, and the code is 130."""
    made = command(0.0)
    made.send_signal(number)
    assert made.communicate() == ("saving\n", "")
    assert made.returncode == 130


@pytest.mark.parametrize("number", SIGNALS, ids=lambda one: one.name)
def test_a_second_signal_ends_a_command_at_once(number: signal.Signals) -> None:
    """While the first is being answered: one line, no traceback, 130."""
    made = command(60.0)
    made.send_signal(signal.SIGTERM)
    assert made.stdout is not None
    assert made.stdout.readline() == "saving\n"
    made.send_signal(number)
    assert made.communicate() == ("", "pipeplan plan: interrupted\n")
    assert made.returncode == 130


def test_handlers_of_a_program_come_back() -> None:
    """Within a program that calls a command its handlers stand again behind it, and what it handles itself stays so."""
    before = [signal.getsignal(number) for number in SIGNALS]
    seen: list[int] = []

    def action() -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert guarded("x", action) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
        assert guarded("x", action) == 0
        assert seen == [signal.SIGTERM]
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def test_a_command_in_another_thread_leaves_signals_alone() -> None:
    """Only the main thread may set handlers: the command runs without."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(guarded, "x", lambda: 3).result() == 3


def test_a_signal_waits_for_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM within a kernel is raised at its end, as SIGINT is."""
    steps: list[str] = []

    def action() -> int:
        monkeypatch.setattr(interrupts, "kernels", 1)
        signal.raise_signal(signal.SIGTERM)
        steps.append("in the kernel")
        monkeypatch.setattr(interrupts, "kernels", 0)
        interrupts.raised()
        steps.append("never here")
        return 0

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert guarded("x", action) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == ["in the kernel"]


ENDED = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
from experiments.terminal.exits import guarded

class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), signals=(signal.SIGINT, signal.SIGTERM)):
        for number in signals:
            kill(process, number)

late = Late()  # collected when the interpreter has taken its handlers away
raise SystemExit(guarded("pipeplan plan", lambda: 3, own=True))
"""


def test_a_signal_behind_the_end_of_a_command_changes_nothing() -> None:
    """What comes while the interpreter ends: the command's own code, nothing said."""
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda one: one.name)
def test_a_signal_while_a_command_is_loaded_is_one_line(number: signal.Signals, tmp_path: Path) -> None:
    """Before any module of the command's own has run: one line, 130."""
    (tmp_path / "lazy_loader.py").write_text(f"import signal\nsignal.raise_signal({int(number)})\n")
    program = tmp_path / "pipeplan"
    program.write_text(
        f"import signal, sys\nsignal.signal({int(signal.SIGINT)}, signal.default_int_handler)\n"
        f"sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\nfrom experiments.cli import main\nsys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, str(program), "list"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "pipeplan: interrupted\n")


SMALL = ("--workload", "chain:4", "--cluster", "pipedream-b", "--devices", "2", "--planner", "uniform", "--json")


@pytest.mark.parametrize(
    ("command", "moment"),
    [
        *(("plan", moment) for moment in ("planners.registry.simulate", "simulator.decisions", "simulator.peak_rows")),
        *(("plan", f"experiments.commands.plan_command.{moment}") for moment in ("_told", "_flushed")),
        ("compare", "planners.registry.simulate"),
        *(
            ("compare", f"experiments.compare.comparison.{moment}")
            for moment in ("_references", "Comparison.plot", "Comparison.record")
        ),
        *(("compare", f"experiments.commands.compare_command.{moment}") for moment in ("_write", "_tell")),
        *(("compare", moment) for moment in ("simulator.save", "simulator.write_atomically")),
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_a_plan_that_is_found_is_told_once_and_marked(
    command: str,
    moment: str,
    behind: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A signal when a step behind the search begins or has ended: one document, whole, and the mark goes with the code 130."""
    monkeypatch.setattr(simulator, "save", no_picture)
    owner, name = moment.rsplit(".", 1)
    place = pkgutil.resolve_name(owner)
    step = getattr(place, name)
    came: list[str] = []

    def once() -> None:
        if not came:
            came.append(name)
            signal.raise_signal(signal.SIGINT)

    def stopped(*given: Any, **named: Any) -> Any:
        if not behind:
            once()
        result = step(*given, **named)
        once()
        return result

    monkeypatch.setattr(place, name, stopped)
    drawn = () if name in ("plot", "save") else ("--no-figures",)
    code = main([command, *SMALL, *(("--out", str(tmp_path), *drawn) if command == "compare" else ())])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["interrupted"]) in ((130, True), (0, False))
    assert code == 130 or not came or name in ("decisions", "peak_rows", "_tell", "_document")  # the document is begun


def test_a_signal_behind_what_is_drawn_marks_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it is told: the document is whole, and marked."""
    began: list[int] = []

    @contextmanager
    def stoppable() -> Iterator[None]:
        began.append(1)
        with stops.stoppable():
            yield
        if len(began) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("experiments.commands.compare_command.stoppable", stoppable)
    assert main(["compare", *SMALL, "--no-figures", "--out", str(tmp_path)]) == 130
    document = json.loads(capsys.readouterr().out)
    assert (document["interrupted"], len(began)) == (True, 2)


def test_an_interrupt_that_a_library_passes_over_ends_a_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind the batch in which it came: what is answered then is told, and what is not."""
    asked = runs.answered

    def passing_over(batch: Sequence[runs.Asked]) -> runs.Answered:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return asked(batch)

    monkeypatch.setattr(runs, "answered", passing_over)
    assert main(["sweep", *SMALL, "--over", "batch=4:8:+1", "--jobs", "1"]) == 130
    document = json.loads(capsys.readouterr().out)
    assert (document["interrupted"], document["missing"]) == (True, 4)


def test_what_an_ended_command_heard_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Handlers of a process of the command's own stay behind its end; the next command in that process is not interrupted."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert guarded("pipeplan plan", lambda: 0, own=True) == 0
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert main(["plan", *SMALL]) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert json.loads(capsys.readouterr().out)["interrupted"] is False


def test_a_planner_without_an_answer_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is no plan: a fault of the planner; one that never ends is ended by an interrupt."""
    problem = make_problem("chain:4", "pipedream-b", batch=4)
    with pytest.raises(planners.PlannerFailedError, match="must return a Plan, not NoneType"):
        planners.make_plan(lambda problem, evaluate, rng: None, problem)

    def endless(problem: Any, evaluate: Any, rng: Any) -> Any:
        for turn in itertools.count():
            if turn == 1000:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        planners.make_plan(endless, problem)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "/bin/pipeplan", "plan"], "pipeplan"),
        (["python", "-m", "experiments.xpipe", "--quick"], "experiments"),
    ],
)
def test_an_interrupt_while_modules_are_loaded_names_who_was_called(
    monkeypatch: pytest.MonkeyPatch, words: list[str], name: str
) -> None:
    """The command, or the package of a study; what else ends a program is shown as Python shows it."""
    seen: list[object] = []
    monkeypatch.setattr(stops._Stop, "end", lambda stop: seen.append(stop.name))
    monkeypatch.setattr(sys, "__excepthook__", lambda kind, error, trace: seen.append(kind))
    monkeypatch.setattr(sys, "orig_argv", words)
    stops.loading_failed(ValueError, ValueError(), None)
    assert seen == [ValueError]
    stops.loading_failed(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert seen[1] == name


@pytest.mark.parametrize(("stderr", "cursor"), [(Terminal(), b"\x1b[?25h"), (io.StringIO(), b""), (None, b"")])
def test_a_command_that_ends_at_once_shows_the_cursor_of_its_terminal(
    monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO | None, cursor: bytes
) -> None:
    """A progress bar hides it; what is no terminal gets the line alone, and a closed stderr is none."""
    done: list[object] = []
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(stops, "os", SimpleNamespace(write=lambda *given: done.append(given), _exit=done.append))
    stops._Stop("pipeplan plan", own=True).end()
    assert done == [(2, cursor + b"pipeplan plan: interrupted\n"), 130]
