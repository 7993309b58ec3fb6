"""Stops: SIGINT and SIGTERM end a command with what it has found; a second one ends it at once, in one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.terminal.exits import guarded
from experiments.terminal.stops import SIGNALS
from simulator.compiled.kernels import interrupts

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
        cwd=Path(__file__).parents[2],
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
