"""Exits: how a command ends: its exit code, and one line on stderr for every foreseen error."""

from __future__ import annotations

import errno
import logging
import os
import sys
import warnings
from collections.abc import Callable
from io import StringIO, TextIOWrapper
from typing import Any

from experiments.terminal.stops import INTERRUPTED, stopping

LONG_WORD = 24
"""Characters of a word that a cut may go through."""

MOST_CHARACTERS = 270
"""Of a complaint beside the file's path, so that the line stays below 300 with the command's name."""

OK, FAILURE, USAGE, INFEASIBLE, BAD_FILE = 0, 1, 2, 3, 4

UNREAD = 141
"""Exit code where whoever reads the output has gone (`| head -1`): as a shell tells of a program that SIGPIPE ends."""


def guarded(name: str, action: Callable[[], int], *, own: bool = False) -> int:
    """Run a command; every foreseen error becomes one line on stderr and its exit code.

    own: whether the process is the command's own (see `stopping`)
    A character that the terminal's encoding lacks is printed as `?`.
    """
    with stopping(name, own=own):
        return _guarded(name, action)


def _guarded(name: str, action: Callable[[], int]) -> int:
    if sys.stderr is None:  # closed: what is said there goes nowhere, and not to stdout
        sys.stderr = StringIO()
    if sys.stdout is None:
        return _end(name, "standard output is closed", FAILURE)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _warner(name)
            logging.getLogger("matplotlib").addFilter(_of_no_folder)
            code = _flushed(action)
    except KeyboardInterrupt:
        return _end(name, "interrupted", INTERRUPTED)
    except OSError as error:
        lost = _abandon_output()
        if isinstance(error, BrokenPipeError):
            return UNREAD
        full = error.errno == errno.ENOSPC  # files are named where they are written
        gone = "the current folder" if error.errno == errno.ENOENT else None  # of a removed one nobody says its name
        where = error.filename or ("standard output" if lost or full else gone)
        return _end(name, f"{where}: {error.strerror}" if where else str(error), FAILURE)
    except MemoryError:
        return _end(name, "not enough memory for a problem of this size", FAILURE)
    except ValueError as error:
        return _end(name, str(error), _exit_code(error))
    except RuntimeError as error:
        from simulator import UndercutBoundError

        if not isinstance(error, UndercutBoundError):
            raise
        return _end(name, str(error), FAILURE)
    return code


def _flushed(action: Callable[[], int]) -> int:
    """The action's exit code, once all that it has printed is written: a help's, too, which ends with SystemExit."""
    try:
        code = action()
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _warner(name: str) -> Callable[..., None]:
    """What prints a doubt (a UserWarning) as one line on stderr, each text once, and leaves other warnings as they are."""
    others, said = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        text = str(message)
        if category is not UserWarning:
            others(message, category, *where, **more)
        elif text not in said:
            said.add(text)
            print(f"{name}: warning: {short(text)}", file=sys.stderr)

    return show


def _of_no_folder(record: logging.LogRecord) -> bool:
    """A filter that passes over what Matplotlib says of a folder for its files that it cannot write: it takes a temporary one."""
    words = ("mkdir -p failed", "%s is not a writable directory", "Matplotlib created a temporary cache directory")
    return not str(record.msg).startswith(words)


def _abandon_output() -> bool:
    """Whether stdout cannot be written; what it holds then goes nowhere, as the interpreter would complain again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _end(name: str, complaint: str, code: int) -> int:
    """Print the one line and return the code."""
    print(f"{name}: {short(complaint)}", file=sys.stderr)
    return code


def short(text: str, most: int = MOST_CHARACTERS) -> str:
    """One printable line: white space as single spaces, controls as escapes, the middle left out of what is too long, by words
    but of long ones.

    The path of a file that it begins with is kept whole and does not count, so that what is said of it is left.
    """
    from hardware_profiles import one_line, printable

    line = printable(one_line(text))
    path, colon, said = line.partition(": ")
    if colon and os.sep in path and len(path) <= most:
        return f"{path}: {_cut(said, most)}"
    return _cut(line, most)


def _cut(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    head, tail = line[: most - most // 3 - 3], line[-(most // 3) :]
    left, right = head.rfind(" "), tail.find(" ")
    head = head[:left] if left > len(head) - LONG_WORD else head
    return f"{head} … {tail[right + 1 :] if right < LONG_WORD else tail}"


def _exit_code(error: ValueError) -> int:
    from hardware_profiles import FileError, PluginError, ProfileWordsError
    from planners import PlannerFailedError
    from simulator import InfeasiblePlanError

    if isinstance(error, InfeasiblePlanError):
        return INFEASIBLE
    if isinstance(error, PlannerFailedError | PluginError):
        return FAILURE
    return BAD_FILE if isinstance(error, FileError) and not isinstance(error, ProfileWordsError) else USAGE
