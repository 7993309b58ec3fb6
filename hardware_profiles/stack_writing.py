"""Stack writing: the TOML text of a stack that has other constants than the one that it begins from, and of classes of errors."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from hardware_profiles.load import load_stack, stack_table
from hardware_profiles.prediction_errors import ErrorClass
from hardware_profiles.stack import GENERIC, Constant, Stack
from hardware_profiles.stack_files import FactorsTable, MemoryTable, OverheadsTable, constant_unit

PLACES: Mapping[str, tuple[str, str]] = {
    constant_unit(one.name)[0]: (section, one.name)
    for section, table in (("factors", FactorsTable), ("overheads", OverheadsTable), ("memory", MemoryTable))
    for one in msgspec.structs.fields(table)
}
"""The constants of a stack by name: the section of its file and the key there."""

DIGITS = 5
"""Significant digits of a written constant."""


def changed_stack(stack: Stack, values: Mapping[str, float], generations: Sequence[str]) -> Stack:
    """A stack with other constants on accelerators of some generations; "" stands for those that tell none.

    Raises ValueError as `Stack`.
    """
    changed: dict[str, Any] = {
        name: _changed(getattr(stack, name), value, generations) for name, value in values.items()
    }
    return replace(stack, **changed)


def _changed(constant: Constant, value: float, generations: Sequence[str]) -> Constant:
    own = dict(constant.generations) | {name: Constant(value) for name in generations if name}
    return replace(constant, value=value if "" in generations else constant.value, generations=tuple(own.items()))


def changed_stack_text(
    base: str,
    name: str,
    constants: Mapping[str, Constant],
    generations: Sequence[str],
    description: str = "",
    errors: Sequence[ErrorClass] = (),
) -> str:
    """The file of a stack with other constants on accelerators of some generations; "" stands for those that tell none.

    base: name or path of the stack that it begins from; constants: by name, in base units, with what they rest on
    errors: of its predictions; those of the base's file are not kept
    Raises ProfileError for a base that has no file.
    """
    table = copy.deepcopy(stack_table(base)) | {"name": name}
    if description:
        table["description"] = description
    table["errors"] = [error_table(one) for one in errors]
    own = load_stack(base).constants()
    for one, constant in constants.items():
        section, key = PLACES[one]
        place = table.setdefault(section, {}).setdefault(
            key, _told(own.get(one, getattr(GENERIC, one)), key) | {"source": "no measured row tells another one"}
        )
        for generation in generations:
            entry = place.setdefault("generations", {}).setdefault(generation, {}) if generation else place
            for old in ("fitted", "judged"):  # of the value that was there
                entry.pop(old, None)
            entry.update(_told(constant, key))
    return toml_text(table)


def whole_stack_table(name: str) -> dict[str, Any]:
    """The table of a stack's file with every constant: those that it does not say change nothing. Raises as `stack_table`."""
    table = copy.deepcopy(stack_table(name))
    for constant, (section, key) in PLACES.items():
        nothing = _told(getattr(GENERIC, constant), key) | {"source": "changes nothing"}
        table.setdefault(section, {}).setdefault(key, nothing)
    return table


def _told(constant: Constant, key: str) -> dict[str, Any]:
    """A constant as its entry in a stack's file."""
    value = float(f"{constant.value / constant_unit(key)[1]:.{DIGITS}g}")
    lists = {"fitted": list(constant.fitted), "judged": list(constant.judged)}
    return {"value": value, "source": constant.source, **{name: said for name, said in lists.items() if said}}


HEAD = """\
# Errors of predictions, as `pipeplan study truth --tables DIR --errors-out FILE` writes them: measured / predicted of published
# rows that no constant saw. `how` says why: constants are as they are; or the table was left out, and the stack's constants were
# fitted to its others; or the shares of a kind of chip saw its rows, which the kind's spread makes up for. Rows that constants of
# accelerators or clusters saw are not there: they only make a class wider. `generic` is judged by the rows of all frameworks. A
# class of fewer than 19 rows is as wide as all of them and 90 % of the rows of the next wider one.

"""


def errors_text(classes: Mapping[str, Sequence[ErrorClass]]) -> str:
    """The file of classes by stack; ratios to a thousandth."""
    said = {name: [error_table(one) for one in some] for name, some in classes.items()}
    return HEAD + toml_text({"kind": "errors", "stacks": said})


def error_table(one: ErrorClass) -> dict[str, object]:
    """A class as a file has it."""
    rounded = {name: round(getattr(one, name), 3) for name in ("median", "low", "high")}
    told = {**asdict(one), **rounded}
    return {name: value for name, value in told.items() if value or name in rounded}


def toml_text(table: Mapping[str, Any]) -> str:
    """A table of strings, numbers, lists of these, tables and lists of tables as TOML; reading it gives the same."""
    return "\n".join(_lines(table, ())).strip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...], brackets: tuple[str, str] = ("[", "]")) -> list[str]:
    plain = {key: value for key, value in table.items() if not _is_tables(value)}
    lines = ["", f"{brackets[0]}{'.'.join(map(_key, path))}{brackets[1]}"] if path and (plain or not table) else []
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines(value, (*path, key))
        elif _is_tables(value):
            lines += [line for one in value for line in _lines(one, (*path, key), ("[[", "]]"))]
    return lines


def _is_tables(value: object) -> bool:
    """Whether a value is a table, or a list of tables."""
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(one, Mapping) for one in value)
    )


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(
        value, str
    ):  # TOML has all escapes of JSON but for surrogates, which are not written; DEL it wants escaped
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool) else repr(value)
