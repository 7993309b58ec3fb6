"""Records: what a run gave, kept as a readable file beside the tests, and compared value by value.

A record is written anew, for a change that is meant, with `PIPEPLAN_REWRITE_RECORDS=1 python -m pytest TESTS`; its difference
is then read like code. Where a value follows from a rule, the test states the rule as well.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import count, zip_longest
from pathlib import Path
from typing import Any
from zlib import crc32

REWRITE = "PIPEPLAN_REWRITE_RECORDS"

TOLERANCE = 1e-9
"""Relative: sums of other versions of numpy and numba differ in the last bits, a fault does not stay this small."""

NOTHING = 1e-12
"""What is nearer to 0 than this is 0: differences of numbers that are equal but for rounding."""

SMALL = 1e-6
"""What is far below it weighs nothing (see `weight`): no time of an op, no share, is as small."""

MEASURED = "(measured)"
"""Stands for seconds and bytes of this process, which no two runs share."""

WIDTH = 120
LONG = 24
"""Numbers of a list that are recorded one by one; a longer list by its length, ends, mean, and mean weighted by position."""


def assert_text(path: Path, text: str) -> None:
    """The text is that of the file."""
    if os.environ.get(REWRITE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    _check_there(path)
    assert text == path.read_text(encoding="utf-8"), path


def _check_there(path: Path) -> None:
    assert path.exists(), f"{path}: there is no record yet; {REWRITE}=1 python -m pytest TEST writes it"


def assert_recorded(path: Path, shows: str, value: Any) -> None:
    """The value is that of the record, each number within the tolerance; the record's first line says what it shows."""
    found = {"shows": shows, "record": plain(value)}
    if os.environ.get(REWRITE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(readable(tabled(found)) + "\n", encoding="utf-8")
    _check_there(path)
    differing = list(differences(untabled(json.loads(path.read_text(encoding="utf-8"))), found))
    assert not differing, "\n".join([f"{path}: {len(differing)} values are not those recorded", *differing[:20]])


def plain(value: Any) -> Any:
    """The value as JSON has it: settings by their fields, functions by their names, long lists of numbers by a digest."""
    if isinstance(value, partial):
        return {"partial": plain(value.func), "given": plain([*value.args, value.keywords])}
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value) if one.repr}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(plain(key)): plain(one) for key, one in value.items()}
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else str(value)
    if isinstance(value, set | frozenset):
        return sorted(plain(one) for one in value)
    if isinstance(value, range | slice):
        return str(value)
    if isinstance(value, Iterable):
        return digest([plain(one) for one in value])
    return getattr(value, "__qualname__", str(value))


def digest(values: list[Any]) -> Any:
    """A long list of numbers (or of rows of as many numbers) in a few numbers; any other list as it is."""
    if len(values) <= LONG:
        return values
    if all(isinstance(one, int | float) for one in values):
        weighted = math.fsum(place * one for place, one in enumerate(values, 1)) / (len(values) * (len(values) + 1) / 2)
        means = {"mean": math.fsum(values) / len(values), "weighted mean": weighted}
        return {"count": len(values), "first": values[0], "last": values[-1], **plain(means)}
    if all(isinstance(one, list) and len(one) == len(values[0]) for one in values):
        columns = [digest(list(column)) for column in zip(*values, strict=True)]
        if all(isinstance(column, dict) for column in columns):
            return {"rows": columns}
    return values


def weight(value: Any) -> Any:
    """What is recorded of many values, beside a few whole ones: the mean of all numbers in it, each weighted by its place,
    and the checksum of all words, where there are any, names among them. A changed value changes it, and so does another order.

    The mean is of logarithms (asinh(x / SMALL)), so that bytes do not hide seconds.
    """
    leaves = list(_leaves(plain(value)))
    numbers = [math.asinh(one / SMALL) for one in leaves if not isinstance(one, str)]
    mean = math.fsum(place * one for place, one in enumerate(numbers, 1)) / max(
        1, len(numbers) * (len(numbers) + 1) // 2
    )
    words = " ".join(one for one in leaves if isinstance(one, str))
    return [plain(mean), crc32(words.encode())] if words else plain(mean)


def weights(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of each of several values its weight."""
    return {name: weight(value) for name, value in values.items()}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from _leaves(one)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    else:
        yield "none" if value is None else value


COLUMNS = "each row"
"""Key of the names of a table's columns; its rows stand below `rows`."""


def tabled(value: Any) -> Any:
    """The value with lists of like mappings as tables, whose names stand once."""
    if isinstance(value, dict):
        return {key: tabled(one) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    alike = len(value) > 1 and all(isinstance(one, dict) and one.keys() == value[0].keys() for one in value)
    if not alike:
        return [tabled(one) for one in value]
    return {COLUMNS: list(value[0]), "rows": [[tabled(one[key]) for key in value[0]] for one in value]}


def untabled(value: Any) -> Any:
    """What `tabled` was given."""
    if isinstance(value, list):
        return [untabled(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {COLUMNS, "rows"}:
        return [dict(zip(value[COLUMNS], map(untabled, row), strict=True)) for row in value["rows"]]
    return {key: untabled(one) for key, one in value.items()}


def readable(value: Any, indent: str = "") -> str:
    """JSON whose parts stand on one line where they fit; a list that is no table fills lines."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = indent + " "
    if isinstance(value, list):
        words = [json.dumps(one, ensure_ascii=False) for one in value]
        rows = all(isinstance(one, list) for one in value)
        if not rows and max(map(len, words)) < WIDTH - len(inner) and not any(isinstance(one, dict) for one in value):
            return "[\n" + "\n".join(_filled(words, inner)) + f"\n{indent}]"
        return "[\n" + ",\n".join(inner + readable(one, inner) for one in value) + f"\n{indent}]"
    parts = (f"{inner}{json.dumps(key, ensure_ascii=False)}: {readable(one, inner)}" for key, one in value.items())
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def _filled(words: list[str], indent: str) -> Iterator[str]:
    """Lines of as many words as fit, a comma behind each but the last."""
    line = indent
    for word in (*(f"{word}, " for word in words[:-1]), words[-1]):
        if len(line) + len(word.rstrip()) > WIDTH and line != indent:
            yield line.rstrip()
            line = indent
        line += word
    yield line


def differences(recorded: Any, found: Any, place: str = "") -> Iterator[str]:
    """Where two plain values differ, a line each."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*recorded, *found)):
            if key not in recorded or key not in found:
                yield f"{place}.{key}: only in the {'record' if key in recorded else 'run'}"
            else:
                yield from differences(recorded[key], found[key], f"{place}.{key}")
    elif isinstance(recorded, list) and isinstance(found, list):
        absent = "(absent)"
        for number, (one, other) in enumerate(zip_longest(recorded, found, fillvalue=absent)):
            yield from differences(one, other, f"{place}[{number}]")
    elif _is_number(recorded) and _is_number(found):
        if not math.isclose(recorded, found, rel_tol=TOLERANCE, abs_tol=NOTHING):
            yield f"{place}: {recorded!r} was recorded, {found!r} was found"
    elif type(recorded) is not type(found) or recorded != found:
        yield f"{place}: {recorded!r} was recorded, {found!r} was found"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def without_measured(value: Any, *measured: str) -> Any:
    """The value with a mark in place of what has one of these keys."""
    if isinstance(value, Mapping):
        return {
            key: MEASURED if key in measured and one is not None else without_measured(one, *measured)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_measured(one, *measured) for one in value]
    return value


def lines(text: str, *measured: str) -> list[str]:
    """The printed lines without the spaces at their ends; a mark in place of what matches a pattern's group (or all of it)."""

    def marked(found: re.Match[str]) -> str:
        if not found.re.groups:
            return MEASURED
        begin, end = (edge - found.start() for edge in found.span(1))
        return found[0][:begin] + MEASURED + found[0][end:]

    for pattern in measured:
        text = re.sub(pattern, marked, text)
    return [line.rstrip() for line in text.splitlines()]


def ticking(step: float = 1.0) -> Callable[[], float]:
    """A clock whose readings are 1, 2, 3, … steps apart, from 100 steps on: every span is its own, and the same in each run."""
    readings = (100.0 * step + step * number * (number + 1) / 2 for number in count())
    return lambda: next(readings)


Recorded = Callable[..., None]
"""What the fixture `recorded` gives: compares the values given by name with the record of the test."""
