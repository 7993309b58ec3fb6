"""Run folder: where a run writes. What the run before it wrote there goes, what others put there stays."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from experiments.terminal.output import UsageError, output_folder
from hardware_profiles import FileError, json_value, printable
from simulator import write_atomically

MANIFEST = "pipeplan-files.json"
"""Name of the list of what runs wrote to a folder, by who wrote it."""

FORMAT = "pipeplan-files-1"


class RunFolder:
    """Files of one run of a command or a study.

    Lifetime: made before the work, which fails at once where the folder cannot be used; `clear` when there is something to
    write; then `write` for each file or figure. A file stands in the list before it is written, so that nothing is left of a run
    that is killed; it is removed only if it still is what was written.
    """

    def __init__(self, path: str | Path, owner: str) -> None:
        """A folder, there or not; UsageError, in one line, for one that cannot be written to, or whose list is none."""
        self.path, self._owner = output_folder(path), owner
        self._lists = self._read()

    @property
    def manifest(self) -> Path:
        """The file of the list."""
        return self.path / MANIFEST

    def refuse_reading(self, option: str, path: str) -> None:
        """UsageError for a file that runs wrote here, where the command reads it: this run would remove it, or write over it."""
        listed = {name for names in self._lists.values() for name in names}
        if os.path.basename(path) in listed and os.path.realpath(os.path.dirname(path)) == os.path.realpath(self.path):
            raise UsageError(
                f"{option} {printable(path)}: is of the run before in that folder, which this run replaces; name another --out"
            )

    def clear(self) -> None:
        """Remove what the last run of this owner wrote, but for what somebody has changed since."""
        for name, digest in self._lists.pop(self._owner, {}).items():
            file = self.path / name
            if file.is_file() and digest in ("", _digest(file)):
                file.unlink()
        self._lists[self._owner] = {}

    def write(self, names: Iterable[str], write: Callable[[], Any]) -> list[Path]:
        """Call what writes these files; returns their paths."""
        files = [self.path / name for name in names]
        self._list(files, lambda file: "")
        write()
        self._list(files, _digest)
        return files

    def _list(self, files: Iterable[Path], digest: Callable[[Path], str]) -> None:
        for file in files:
            for owned in self._lists.values():
                owned.pop(file.name, None)
            self._lists.setdefault(self._owner, {})[file.name] = digest(file)
        document = {"format": FORMAT, "written": self._lists}
        write_atomically(self.manifest, json.dumps(document, indent=1) + "\n")

    def _read(self) -> dict[str, dict[str, str]]:
        """Names and digests of files by owner; nothing where there is no list."""
        if not self.manifest.exists() and not self.manifest.is_symlink():
            return {}
        try:
            found = json_value(self.manifest.read_bytes(), MANIFEST, FileError)
            lists = {str(owner): dict(files) for owner, files in found["written"].items()}
            known = found["format"] == FORMAT
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            known, lists = False, {}
        names = [(name, digest) for files in lists.values() for name, digest in files.items()]
        if not known or not all(_is_own(name) and isinstance(digest, str) for name, digest in names):
            raise UsageError(
                f"--out {printable(str(self.path))}: {MANIFEST} there is no list of files of pipeplan; move it, or name another "
                "folder"
            )
        return lists


def _is_own(name: str) -> bool:
    """Whether a name is of a file in the folder itself, and not of the list."""
    return name not in ("", ".", "..", MANIFEST) and not {"/", "\\", "\0"} & set(name)


def _digest(file: Path) -> str:
    """Of what stands in a file; empty where there is none, or what stands there is no regular file."""
    if not file.is_file():
        return ""
    return hashlib.sha256(file.read_bytes()).hexdigest()
