"""Stops: what SIGINT and SIGTERM do to a command: the first ends it with what it has found, the next one at once."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

INTERRUPTED = 130
"""Exit code after either signal: what was printed and written is the best so far, or nothing."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Stop:
    """The handler of both signals.

    Lifetime: made when a command begins; called by the interpreter between two of its steps. The first signal raises
    KeyboardInterrupt, behind the compiled code that runs; in a process of the command's own the next one ends the process, as an
    interrupt of what an interrupt has begun would be a traceback.
    """

    def __init__(self, name: str, *, own: bool) -> None:
        self.name, self.own, self.came, self.held, self.ended = name, own, False, False, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """As `signal.signal` asks for."""
        if self.own and self.came:
            self.end()
        self.came = True
        if self.held:
            return
        kernels = sys.modules.get("simulator.compiled.numba_kernels")
        getattr(kernels, "interrupts", signal.default_int_handler)(number, frame)

    def end(self) -> None:
        """End the process; files are whole or not there, and so is the cursor that a progress bar hides."""
        shown = "\x1b[?25h" if sys.stderr is not None and sys.stderr.isatty() else ""
        with suppress(OSError):
            os.write(2, f"{shown}{self.name}: interrupted\n".encode(errors="replace"))
        os._exit(INTERRUPTED)


@contextmanager
def stopping(name: str, *, own: bool) -> Iterator[None]:
    """SIGINT and SIGTERM inside are a KeyboardInterrupt, unless the process ignores them or has handlers of its own.

    own: whether the process is the command's own, and ends with it: handlers stay, and what comes behind the command ends it
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = {number: signal.getsignal(number) for number in SIGNALS}
    kernels = sys.modules.get("simulator.compiled.numba_kernels")
    usual = (signal.default_int_handler, signal.SIG_DFL, getattr(kernels, "interrupts", None))
    taken = [number for number, handler in known.items() if handler in usual]
    stop = _Stop(name, own=own)
    for number in taken:
        signal.signal(number, stop)
    if own:
        atexit.register(_ignore, taken)
    try:
        yield
    finally:
        stop.came = stop.ended = True
        for number in taken if not own else ():
            signal.signal(number, known[number])


@contextmanager
def finishing() -> Iterator[Callable[[], bool]]:
    """An answer is told whole: the first signal inside ends only what is `stoppable`; yields what says whether one has come."""
    stop = _at_work()
    if stop is None:
        yield lambda: False
        return
    stop.held = True
    try:
        yield lambda: stop.came
    finally:
        stop.held = False


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """What takes long inside `finishing`: a signal is a KeyboardInterrupt again, at once where it has come before.

    Yields what says whether one has come: a library in which it does may pass it over.
    """
    stop = _at_work()
    if stop is None or not stop.held:
        yield lambda: False
        return
    stop.held = False
    try:
        if stop.came:
            raise KeyboardInterrupt
        yield lambda: stop.came
    finally:
        stop.held = True


def _at_work() -> _Stop | None:
    """The handler of the command that runs, if there is one."""
    return next((one for one in map(signal.getsignal, SIGNALS) if isinstance(one, _Stop) and not one.ended), None)


def _ignore(numbers: Iterable[int]) -> None:
    """Signals change nothing any more: the interpreter takes handlers away before it ends, and would die of the next one."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def stopped_from_the_start() -> None:
    """Make SIGTERM an interrupt, too, and both one line, in a process that loads a command: before `stopping` can."""
    sys.excepthook = loading_failed
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def loading_failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A `sys.excepthook` by which an interrupt is one line and its exit code; what else ends the program is shown as ever."""
    if issubclass(kind, KeyboardInterrupt):
        _Stop(
            "experiments" if any(word.startswith("experiments.") for word in sys.orig_argv) else "pipeplan", own=True
        ).end()
    sys.__excepthook__(kind, error, trace)
