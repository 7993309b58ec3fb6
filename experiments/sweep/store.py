"""Store: the answers of sweeps in one SQLite file, by the digests of their questions, and the points of the sweep asked last.

One process writes at a time: SQLite's lock on the file is held from opening to closing, and goes with a process that is killed.
What such a process was writing, SQLite takes back when the file is next opened: an answer is there whole, or not at all.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from experiments.terminal.output import InputError, UsageError, to_json

APPLICATION = 0x70697065
"""What SQLite's header says a file is for: "pipe"."""

FORMAT = "1"
"""Of the tables; a store of another one is of another version."""

TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE answers (key TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE points (number INTEGER PRIMARY KEY, swept TEXT NOT NULL, key TEXT NOT NULL);
"""

IN_MEMORY = ":memory:"


class Store:
    """A store that is open.

    Lifetime: opened, for writing or to be read; `begin` with the points of a sweep, then `keep` for its answers; closed.
    Raises InputError for a file that is no store, or of another version, UsageError for one that another process writes.
    """

    def __init__(self, path: str | Path, *, reading: bool = False) -> None:
        self.path = str(path)
        if reading and not Path(path).is_file():
            raise InputError(f"{path}: there is no such store")
        if not reading and self.path != IN_MEMORY:
            Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
        with self._told():
            mode = "rw" if reading else "rwc"
            name = IN_MEMORY if self.path == IN_MEMORY else f"file:{quote(self.path)}?mode={mode}"
            self._database = sqlite3.connect(name, uri=True, timeout=0, isolation_level=None)
            try:
                self._open(reading=reading)
            except BaseException:
                self._database.close()
                raise

    def _open(self, *, reading: bool) -> None:
        if not reading:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("BEGIN EXCLUSIVE")
        application = self._database.execute("PRAGMA application_id").fetchone()[0]
        empty = not self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty and not application and not reading:
            self._database.execute(f"PRAGMA application_id = {APPLICATION}")
            for table in TABLES.strip().split(";\n"):
                self._database.execute(table)
            about = {"format": FORMAT, "version": version("pipeplan")}
            self._database.executemany("INSERT INTO about VALUES (?, ?)", about.items())
        elif application != APPLICATION:
            raise InputError(f"{self.path}: is no store of pipeplan sweep; name another file")
        said = dict(self._database.execute("SELECT name, value FROM about"))
        if said.get("format") != FORMAT:
            raise InputError(
                f"{self.path}: is a store of form {said.get('format')}, this pipeplan has form {FORMAT}; name another file"
            )
        if said.get("version") != version("pipeplan"):
            raise InputError(
                f"{self.path}: is a store of pipeplan {said.get('version')}, this is {version('pipeplan')}, whose answers may "
                "be others; name another file"
            )
        if not reading:
            self._database.execute("COMMIT")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What SQLite refuses, in one line."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise UsageError(f"{self.path}: another process is writing it; wait, or name another store") from None
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise InputError(f"{self.path}: is no store of pipeplan sweep, or damaged: {error}") from None
            raise OSError(f"{self.path}: {error}") from None

    @contextmanager
    def _at_once(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or nothing."""
        with self._told():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def begin(self, points: Iterable[tuple[Mapping[str, Any], str]]) -> set[str]:
        """The points of a sweep, with their keys, in place of those that were asked last; the keys that have no answer yet."""
        with self._at_once() as database:
            database.execute("DELETE FROM points")
            rows = ((number, json.dumps(dict(swept)), key) for number, (swept, key) in enumerate(points))
            database.executemany("INSERT INTO points VALUES (?, ?, ?)", rows)
            open_ = database.execute("SELECT DISTINCT key FROM points WHERE key NOT IN (SELECT key FROM answers)")
            return {key for (key,) in open_}

    def keep(self, answers: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Keep answers by their keys."""
        rows = [(key, to_json(record)) for key, record in answers]
        with self._at_once() as database:
            database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    def rows(self) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
        """What is swept at each point of the last sweep, and its answer, or None as long as there is none."""
        asked = "SELECT swept, record FROM points LEFT JOIN answers USING (key) ORDER BY number"
        with self._told():
            found = self._database.execute(asked).fetchall()
        return [(json.loads(swept), record and json.loads(record)) for swept, record in found]

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()
