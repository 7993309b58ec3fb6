"""Reading: files that people name, up to a size, and words about what is wrong with them, fit to print.

A file that somebody names himself is shown, cut, where it is wrong. Of one that another file names no content is told: that file
may come from elsewhere, and name whatever its reader may read.
"""

from __future__ import annotations

import copy
import errno
import os
import stat
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from gzip import GzipFile
    from importlib.resources.abc import Traversable

MOST_BYTES = 16 * 2**20
"""Bytes of a file at most: what pipeplan reads is far smaller."""


class FileError(ValueError):
    """A file that cannot be used. The message is one line: file, place in it, what stands there, and the rule.

    untold: the same without what stands there, for a file that another one names
    """

    def __init__(self, message: str, untold: str = "") -> None:
        super().__init__(message)
        self.untold = untold or "the file cannot be used here; pipeplan check says why"


def told_of(fault: ValueError) -> str:
    """What a fault says where another file names the one that it is of."""
    return fault.untold if isinstance(fault, FileError) else str(fault)


_referred: ContextVar[bool] = ContextVar("referred", default=False)


def is_referred() -> bool:
    """Whether another file refers to the one that is being read."""
    return _referred.get()


@contextmanager
def referring() -> Iterator[None]:
    """Read inside what a file refers to: what is unusual is told without its value."""
    before = _referred.set(True)
    try:
        yield
    finally:
        _referred.reset(before)


@contextmanager
def referred(place: str, error: type[FileError], said: str = "") -> Iterator[None]:
    """Read inside what a value of a file refers to: its ValueError becomes the file's, without content of what is referred to.

    place: the file, and where in it the value stands; said: the value, where nothing else tells it
    """
    try:
        with referring():
            yield
    except ValueError as fault:
        raise error(f"{place}{said}: {told_of(fault)}", f"{place}: names what cannot be used") from None


def read_bytes(path: Path | Traversable, most: int = MOST_BYTES) -> bytes:
    """The file's content without a byte-order mark. OSError where it cannot be read, is no regular file (a pipe may never end, or
    never begin), has a name that no file has, or more than so many bytes.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "no file has a name with a zero byte")
    opener = _regular if isinstance(path, Path) else None
    with open(path, "rb", opener=opener) if isinstance(path, Path) else path.open("rb") as file:
        return at_most(file, most).removeprefix(BOM_UTF8)


def at_most(file: IO[bytes] | GzipFile, most: int) -> bytes:
    """What is left of a file; OSError where that is more than so many bytes."""
    content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"is larger than {most // 2**20} MiB, the most that is read")
    return content


def _regular(path: str, flags: int) -> int:
    """Open a regular file, as `open` asks of its opener; nothing else is opened, not even to see what it is."""
    _check_regular(os.stat(path).st_mode)
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    try:
        _check_regular(os.fstat(handle).st_mode)  # it may have been replaced
    except OSError:
        os.close(handle)
        raise
    return handle


def _check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is no regular file, but a pipe, a socket or a device; write its content to a file")


Value = TypeVar("Value")


def remembering(value: Value, source: object) -> Value:
    """A copy of a frozen value with a field `source` that says where it came from; one made anew of it has none."""
    known = copy.copy(value)
    object.__setattr__(known, "source", source)
    return known
