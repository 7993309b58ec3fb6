"""Contents: digests of what stands behind the names of a question, so that a file that changes is another question."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import simulator
from experiments.terminal.output import InputError
from hardware_profiles import (
    ProfileWordsError,
    installed,
    load_cluster,
    load_stack,
    machine_tables,
    stack_names,
    whole_stack_table,
)


class Contents:
    """Digests of what stands behind names; each is read once, and may be another one in the next run.

    Lifetime: made for one run of a sweep, or one batch of questions.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], str] = {}

    def of(self, kind: str, name: str | None) -> str:
        """The digest. Raises FileError, and other ValueErrors in one line, for a name behind which nothing stands."""
        if (kind, name) not in self._known:
            self._known[kind, name] = hashlib.sha256(json.dumps(_content(kind, name), default=str).encode()).hexdigest()
        return self._known[kind, name]


def _content(kind: str, name: str | None) -> Any:
    """What stands behind a name, or the name itself where it says all; of a stack that nobody names, every stack; of plug-ins all
    that may answer: a planner may use a schedule that nobody names.
    """
    if kind == "plugins":
        return installed()
    if kind == "stack":
        return [(one, _file_of_stack(one)) for one in (stack_names() if name is None else name.split(","))]
    if name is None or kind == "document":
        return name
    if kind == "cluster":
        try:
            tables = machine_tables(name)
        except ProfileWordsError:
            return load_cluster(name).name  # an object of another package, or an error
        return tables.cluster, tables.accelerators
    if kind == "workload":
        simulator.workload_from_spec(name)
    elif not Path(name).is_file():
        missing = f"{name}: there is no such {kind}"
        raise InputError(missing, missing)
    return Path(name).read_bytes().hex() if Path(name).is_file() else name


def _file_of_stack(name: str) -> Any:
    try:
        return whole_stack_table(name)
    except ProfileWordsError:
        return load_stack(name).name
