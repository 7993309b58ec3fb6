"""Public inputs: the files of a planner's public repository, and what is found on them beside what is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from experiments.studies.study_harness import Findings
from experiments.terminal.output import InputError, say
from experiments.terminal.report_tables import Cell, ReportTable, Row, either, figure
from hardware_profiles import MOST_COUNT, explained, json_value, read_bytes

Form = TypeVar("Form", bound=msgspec.Struct)

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
PositiveAmount = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
NodeNumber = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


def read_json(path: Path, form: Any = Any) -> Any:
    """The JSON value of a file, of a form; InputError names the file and what is wrong."""
    try:
        return msgspec.convert(json_value(read_bytes(path), path, InputError), form)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from None


def read_inputs(folder: Path, form: type[Form], within: str = "") -> tuple[dict[str, Form], list[str]]:
    """Files of a form in a folder and in those inside it, by path without its ending, and the names of all others; not of what is
    hidden, as a checkout's own folder.

    form: of one JSON object; a file is of it if it has all its fields without a default
    within: of a folder that has one of this name, the files of that one alone
    Raises InputError where there is no folder, no file of the form in it, and for one that has its fields and breaks its rules.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: is not a folder")
    asked = folder / within if (folder / within).is_dir() else folder
    found, skipped = {}, []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        read = _read(path, form) if path.suffix == ".json" and path.is_relative_to(asked) else None
        if read is None:
            skipped.append(str(path.relative_to(folder)))
        else:
            found[str(path.relative_to(asked).with_suffix(""))] = read
    if not found:
        raise InputError(f"{folder}: holds no JSON object with {', '.join(_fields(form))}")
    return found, skipped


def _fields(form: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(form) if field.required]


def _read(path: Path, form: type[Form]) -> Form | None:
    found = read_json(path)
    if not isinstance(found, dict) or not set(_fields(form)) <= set(found):
        return None
    try:
        return msgspec.convert(found, form, str_keys=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {explained(str(error), found, form)[0]}") from None


def check_graph(nodes: Iterable[int], edges: Iterable[tuple[int, int]]) -> None:
    """Raise ValueError for two nodes of one number, and for an edge from or to none of them."""
    numbers = list(nodes)
    known = set(numbers)
    if len(known) < len(numbers):
        raise ValueError("nodes must have different ids")
    for source, reader in edges:
        if source not in known or reader not in known:
            raise ValueError(f"edge {source} -> {reader} must be between nodes of the file")


def agrees(value: float | None, published: float | None) -> bool | None:
    """Whether a figure is the published one to all of its six digits; None where nothing is published."""
    if published is None:
        return None
    return value is not None and f"{value:.6g}" == f"{published:.6g}"


def judged(found: Any, value: float | None, published: float | None, spent: float) -> Row:
    """What rows say of an answer, or of none, which is proven: its bound and gap, and the published figure beside its value."""
    return {
        "lower_bound": None if found is None else found.lower_bound,
        "gap": None if found is None else found.gap,
        "proven": found is None or found.proven,
        "published": published,
        "matched": agrees(value, published),
        "cpu_seconds": spent,
    }


def judged_cells(value: str) -> dict[str, Cell]:
    """Cells of a `judged` row, whose value has this name."""
    return {
        "ours": figure(value, ".6g", missing="none fits"),
        "published": figure("published", ".6g"),
        "match": lambda row: {None: "", True: "yes", False: "no"}[row["matched"]],
        "CPU s": figure("cpu_seconds", ".3f"),
        "proven": either("proven"),
        "gap, %": figure("gap", ".2f", 100),
    }


def compared(made: Iterable[Row], skipped: Sequence[str], table: ReportTable) -> Findings:
    """Rows with `instance`, `matched` (see `agrees`) and `not_searched`, in words; failed where a published figure is missed.

    made: the rows, as they are made; those so far where an interrupt comes
    """
    rows: list[Row] = []
    interrupted = False
    try:
        rows.extend(made)
    except KeyboardInterrupt:
        interrupted = True
    verdicts = [row["matched"] for row in rows]
    counts = {"matched": verdicts.count(True), "failed": verdicts.count(False)}

    def show(document: Mapping[str, Any]) -> None:
        table.print(document)
        for row in document["rows"]:
            if row["not_searched"]:
                say(f"{row['instance']} is not proven: {row['not_searched']}")
        if document["skipped"]:
            say(f"passed over (of another form): {', '.join(document['skipped'])}")
        say("published figures: matched {matched}, failed {failed}".format_map(document))

    document = {**counts, "rows": rows, "skipped": skipped, "interrupted": interrupted}
    return Findings(document, show, failed=counts["failed"] > 0)
