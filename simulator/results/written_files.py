"""Written files: each is written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from pathlib import Path

if os.name == "posix":
    import fcntl

SUFFIX = ".part"
"""End of the name of a file that is not whole yet: `.plan.json.k3v9x_2a.part`."""

FIGURE_ENDINGS = (".png", ".svg", ".pdf")
"""Of files of figures."""


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write a file atomically: a temporary file in its folder is renamed, so that a reader never sees half of it.

    Folders that are not there are made. A link stays a link, and the file that it leads to is written; a device, a FIFO or what
    else is no regular file is written to as it stands. An existing file keeps its mode. Returns the path; raises OSError, which
    names the path, where it cannot be written.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:  # also where it is a folder, for the error
                file.write(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    return path


def _replace(path: Path, data: bytes) -> None:
    """Atomically replace a regular file, or create it, with this content."""
    if path.is_symlink():  # what still is a link leads round in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o666 & ~_umask()
    if path.exists():
        path.open("ab").close()  # a file that may not be written is not replaced either
        mode = stat.S_IMODE(path.stat().st_mode)
    _remove_leftovers(path)
    handle, temporary = _temporary(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.chmod(temporary, mode)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _temporary(path: Path) -> tuple[int, str]:
    """Open a new file beside `path`, locked while it is open: the lock says that its writer lives."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=SUFFIX)
        _lock(handle, wait=True)
        if os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)  # another writer took it for a leftover before it was locked


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of `path` whose writers were killed: those that nobody has locked."""
    own = re.compile(re.escape(f".{path.name}.") + "[a-z0-9_]{8}" + re.escape(SUFFIX))
    try:
        names = os.listdir(path.parent)
    except PermissionError:  # a folder that may be written to, and not read
        return
    for name in filter(own.fullmatch, names):
        with contextlib.suppress(OSError), (path.parent / name).open("rb") as leftover:
            if _lock(leftover.fileno(), wait=False):
                os.unlink(leftover.name)


def _lock(handle: int, *, wait: bool) -> bool:
    """Lock an open file; False if another process has locked it, or if files cannot be locked (then no leftover is removed)."""
    if os.name != "posix":
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def figure_files(path: str | Path) -> tuple[Path, ...]:
    """The files of a figure: `path` itself, where its ending is a figure's, else `path`.png and `path`.svg."""
    named = Path(path)
    if named.suffix in FIGURE_ENDINGS:
        return (named,)
    return named.with_name(f"{named.name}.png"), named.with_name(f"{named.name}.svg")
