"""Fitting: constants of a stack fitted on part of a measured table's rows, and judged on the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.calibration.fit import Fitted, Observation, fit, record
from experiments.terminal.output import InputError, UsageError, progress, say, tracked
from experiments.terminal.report_tables import ReportTable, figure
from experiments.truth.error_classes import HELD_OUT, Judged, accelerator_of, error_classes
from experiments.truth.errors import errors
from experiments.truth.measured_tables import MEASURED, MeasuredRun, MeasuredTable, read_tables
from experiments.truth.predictions import stack_of, training_problem
from hardware_profiles import (
    ENOUGH,
    RANGES,
    Constant,
    ErrorClass,
    Stack,
    changed_stack_text,
    counted,
    errors_of,
    load_stack,
    percent,
    unchosen,
)
from simulator import check_plan, error_of, plan_kind, write_atomically


class FitRequest(NamedTuple):
    """What a fit is asked for.

    stack: to begin from, None for that of most rows; constants: that may move; hold: share of the plans that judge
    """

    stack: str | None
    constants: tuple[str, ...]
    hold: float
    seed: int


def table_to_fit(where: str, folder: Path | None, renamed: Mapping[str, str]) -> MeasuredTable:
    """The table of a name in a folder, or in a file. Raises UsageError, InputError."""
    path = Path(where)
    there = os.path.isfile(path)  # a name may be too long to be one
    if folder is None or there:
        if not there:
            raise InputError(f"{where}: there is no such table")
        folder, where = path.parent, path.stem
        tables, skipped = read_tables(folder, renamed, only=path.name)
    else:
        tables, skipped = read_tables(folder, renamed)
    found = next((table for table in tables if table.name == where), None)
    if found is None:
        if f"{where}.csv" in skipped:
            raise InputError(f"{folder / where}.csv: {skipped[f'{where}.csv']}")
        raise UsageError(unchosen("--fit: table", where, [table.name for table in tables]))
    if found.kind is not MeasuredRun:
        raise InputError(f"{found.path}: --fit takes a table of iterations, this one has rows of another kind")
    return found


def fitted(table: MeasuredTable, machine: str | None, asked: FitRequest, out: Path | None) -> dict[str, Any]:
    """Fit constants on part of a table's rows, judge them on the rest, and write the stack.

    Raises UsageError for names that are unknown, InputError for a table of too few rows.
    """
    if wrong := next((name for name in asked.constants if name not in RANGES), None):
        raise UsageError(unchosen("--constants: constant", wrong, list(RANGES)))
    rows = {line: row for line, row in table.rows.items() if isinstance(row, MeasuredRun)}
    base = asked.stack or _of_most(rows)
    observed, left_out = _observed(table, rows, machine, base)
    kept, held = _divided(rows, observed, asked)
    if not kept:
        raise InputError(f"{table.path}: no row is left to fit: {len(observed)} rows, --hold {asked.hold:g}")
    parts = {"fitted": kept, "held out": held}
    stack = load_stack(base)
    with progress(f"fitting {table.name}") as report:
        found = fit(stack, kept, asked.constants, report)
    before = {"fitted": [one.before for one in found.figures], "held out": found.predicted(held, fitted=False)}
    after = {"fitted": [one.after for one in found.figures], "held out": found.predicted(held)}
    if out is not None:
        write_atomically(out, _text(base, stack, out.stem, table, found, kept, held, after))
    return {
        "table": table.name,
        "stack": base,
        "out": None if out is None else str(out),
        "generations": list(found.generations),
        "seed": asked.seed,
        "hold": asked.hold,
        "constants": [record(one) for one in found.constants],
        "parts": [
            {"part": part, "when": when, **_errors(some, figures[part])}
            for part, some in parts.items()
            for when, figures in (("before", before), ("after", after))
        ],
        "rows": [
            {"row": one.name, "part": part, "measured": one.measured, "before": was, "after": now}
            for part, some in parts.items()
            for one, was, now in zip(some, before[part], after[part], strict=True)
        ],
        "left_out": {**table.left_out, **left_out},
        "notes": _notes(found, kept, held),
    }


def _of_most(rows: Mapping[int, MeasuredRun]) -> str:
    """The stack of most rows, the first of those."""
    names = [stack_of(row) for row in rows.values()]
    return max(dict.fromkeys(names), key=names.count)


def _observed(
    table: MeasuredTable, rows: Mapping[int, MeasuredRun], machine: str | None, base: str
) -> tuple[dict[int, Observation], dict[str, int]]:
    """The seconds of the rows that a plan can say, by line; and the others, counted by reason."""
    found: dict[int, Observation] = {}
    left_out: dict[str, int] = {}
    for line, row in tracked(table.name, list(rows.items()), lambda item: ""):
        try:
            if row.measured_s is None:
                raise ValueError("it tells no seconds")
            problem, plan = training_problem(row, machine, base)
            check_plan(problem, plan)
            found[line] = Observation(f"{table.name}:{line}", problem, plan, row.measured_s)
        except ValueError as error:
            left_out[str(error)] = left_out.get(str(error), 0) + 1
    return found, left_out


SAID = tuple(name for name in MeasuredRun.__struct_fields__ if name not in (*MEASURED, "source"))
"""Columns that say what ran: rows that agree in them are runs of one plan."""


def _divided(
    rows: Mapping[int, MeasuredRun], observed: Mapping[int, Observation], asked: FitRequest
) -> tuple[list[Observation], list[Observation]]:
    """The observations to fit, and those held out: all of one plan on one side."""
    plans = {line: tuple(getattr(rows[line], name) for name in SAID) for line in observed}
    different = list(dict.fromkeys(plans.values()))
    order = np.random.default_rng(asked.seed).permutation(len(different)).tolist()
    held = {different[place] for place in order[: round(asked.hold * len(different))]}
    kept = [one for line, one in observed.items() if plans[line] not in held]
    return kept, [one for line, one in observed.items() if plans[line] in held]


def _errors(some: Sequence[Observation], predicted: Sequence[float]) -> dict[str, Any]:
    return errors([one.measured for one in some], predicted) if some else {"rows": 0}


def _text(
    base: str,
    stack: Stack,
    name: str,
    table: MeasuredTable,
    found: Fitted,
    kept: Sequence[Observation],
    held: Sequence[Observation],
    after: Mapping[str, Sequence[float]],
) -> str:
    """The file of the stack, whose constants name what they saw and what judged them, with the errors of the rows held out."""
    said = (
        [
            f"{table.name}: mean error {percent(errors([one.measured for one in held], after['held out'])['mape'])} of "
            f"{counted(len(held), 'row')} held out"
        ]
        if held
        else []
    )
    source = f"pipeplan study truth --fit, from {base}: {counted(len(kept), 'row')}"
    constants = {
        one.name: Constant(one.after, source, (table.name,), tuple(said)) for one in found.constants if one.told
    }
    classes = _classes(stack, table.name, held, after["held out"])
    return changed_stack_text(base, name, constants, found.generations, f"{base}, fitted to {table.name}", classes)


def _classes(base: Stack, table: str, held: Sequence[Observation], predicted: Sequence[float]) -> list[ErrorClass]:
    """Classes of errors of a fitted stack: of seconds what the rows held out make, of memory those of the stack it begins from.

    One of fewer than ENOUGH rows is as wide as the errors of these plans were before, too.
    """
    rows = [
        Judged(
            "seconds",
            base.name,
            accelerator_of(one.problem, one.plan, "seconds"),
            plan_kind(one.problem, one.plan),
            table,
            one.measured / seconds,
            HELD_OUT,
        )
        for one, seconds in zip(held, predicted, strict=True)
    ]
    found = [one for one in errors_of(base) if one.figure == "memory"]
    for one in error_classes(rows).get(base.name, []):
        before = [
            error_of(run.problem, run.plan, "seconds")
            for run, row in zip(held, rows, strict=True)
            if one.rows < ENOUGH and row.accelerator in one.accelerators and row.plan in one.plans
        ]
        low, high = min([one.low, *(each.low for each in before)]), max([one.high, *(each.high for each in before)])
        found.append(replace(one, low=low, high=high))
    return found


def _notes(found: Fitted, kept: Sequence[Observation], held: Sequence[Observation]) -> list[str]:
    notes = []
    if len(kept) < len(found.constants):
        notes.append(
            f"{counted(len(kept), 'row')} for {counted(len(found.constants), 'constant')}: "
            "what they cannot tell apart priors decide"
        )
    if not held:
        notes.append("no row is held out: nothing judges the constants")
    return notes


CONSTANTS = ReportTable(
    "Constants of {stack}, fitted on {table}",
    "constants",
    {
        "constant": "{constant}",
        "before": figure("before", ".4g"),
        "after": figure("after", ".4g"),
        "spread before": figure("spread_before", ".2g"),
        "spread after": figure("spread_after", ".2g"),
        "told": lambda row: "by the rows" if row["told"] else "no: kept",
    },
)

JUDGED = ReportTable(
    "Predicted / measured - 1, per cent",
    "parts",
    {
        "rows": "{part}",
        "constants": "{when}",
        "number": figure("rows", "d"),
        "mean": figure("mape", ".1f", 100),
        "median": figure("median", ".1f", 100),
        "worst": figure("worst", ".1f", 100),
        "signed": figure("signed", "+.1f", 100),
    },
)


def print_fit(document: Mapping[str, Any]) -> None:
    """The constants, and both parts of the rows."""
    CONSTANTS.print(document)
    JUDGED.print(document)
    for reason, count in document["left_out"].items():
        say(f"{counted(count, 'row')} left out: {reason}")
    for line in document["notes"]:
        say(line)
    if document["out"]:
        say(f"{document['out']} (--stack {document['out']})")
