"""Axes: what a sweep varies, by name, and the values that it takes, as people write them.

64:1024:x2          from 64 to 1024, each twice the one before
8:264:+8            from 8 to 264 in steps of 8
gpipe,1f1b          a list; its parts may be ranges
dgx-h100:{1,2,4}    what stands before and behind the braces, with each of what stands between them
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice, takewhile
from math import prod
from typing import Any

from experiments.terminal.output import UsageError
from hardware_profiles import blaming, option_text, real_number, shown

MOST_POINTS = 100_000
"""Points of a sweep at most: they are counted before any is made."""

Value = bool | int | float | str

_PART = re.compile(r"(?:[^,{}]|\{[^{}]*\})*")
_BRACES = re.compile(r"([^{}]*)\{([^{}]*)\}([^{}]*)")
_RANGE = re.compile(r"([^:]*):([^:]*):([+x])([^:]*)")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")


@dataclass(frozen=True, slots=True)
class Axis:
    """A name, and the distinct values that it takes, in their order."""

    name: str
    values: tuple[Value, ...]

    @property
    def numeric(self) -> bool:
        """Whether every value is a number."""
        return all(isinstance(one, int | float) and not isinstance(one, bool) for one in self.values)


def read_axis(name: str, given: object) -> Axis:
    """An axis: its values as a text, or a list of them; UsageError, in one line, for what is none."""
    with blaming(UsageError, f"{name}={shown(given) if not isinstance(given, str) else given}"):
        found = list(islice(_values(given), MOST_POINTS + 1))
    if not found:
        raise UsageError(f"{name}: has no values")
    if len(found) > MOST_POINTS:
        raise UsageError(f"{name}: has more than {MOST_POINTS:,} values, the most points of a sweep")
    (text, times), *_ = Counter(option_text(name, one) for one in found).most_common(1)
    if times > 1:
        raise UsageError(f"{name}: {shown(text)} stands twice")
    return Axis(name, tuple(found))


def read_over(text: str) -> Axis:
    """`NAME=VALUES`; UsageError for what is none."""
    name, equals, values = text.partition("=")
    if not (name.strip() and equals):
        raise UsageError(f"{shown(text)} must be NAME=VALUES, as in batch=64:1024:x2")
    return read_axis(name.strip(), values)


def check_grid(axes: Iterable[Axis]) -> int:
    """The number of points of a grid; UsageError for none, or too many, and for two axes of a name."""
    known: dict[str, Axis] = {}
    for one in axes:
        if one.name in known:
            raise UsageError(f"{one.name} is swept twice: an axis has one list of values")
        known[one.name] = one
    if not known:
        raise UsageError("a sweep needs --over NAME=VALUES, or [over] in a study file: what is varied")
    count = prod(len(one.values) for one in known.values())
    if count > MOST_POINTS:
        counts = " × ".join(f"{len(one.values):,} {one.name}" for one in known.values())
        raise UsageError(f"{counts} are {count:,} points; a sweep has at most {MOST_POINTS:,}")
    return count


def _values(given: object) -> Iterator[Value]:
    """The values that a text, a list or a single value stands for; ValueError for what none can be."""
    if isinstance(given, str):
        yield from _of_text(given) if given.strip() else ()
    elif isinstance(given, Iterable) and not isinstance(given, Mapping | bytes):
        yield from (_single(one) for one in given)
    else:
        yield _single(given)


def _single(given: Any) -> Value:
    """One value of a list; a list in it is the text of its members, as for a value that is a list itself."""
    plain = given.item() if hasattr(given, "item") and getattr(given, "ndim", 0) == 0 else given
    return plain if isinstance(plain, bool | int | float | str) else option_text("value", plain)


def _of_text(text: str) -> Iterator[Value]:
    for part in _parts(text):
        if braces := _BRACES.fullmatch(part):
            before, inner, behind = braces.groups()
            yield from (_read(f"{before}{option_text('', one)}{behind}") for one in _of_text(inner))
        elif ends := _RANGE.fullmatch(part):
            yield from _range(part, *ends.groups())
        else:
            yield _read(part)


def _parts(text: str) -> Iterator[str]:
    """What stands between commas that are in no braces."""
    place = 0
    while place <= len(text):
        found = _PART.match(text, place)
        assert found is not None, "it matches nothing, too"
        end = found.end()
        if end < len(text) and text[end] != ",":
            raise ValueError("braces stand in pairs, and not in each other")
        if not found[0].strip():
            raise ValueError("a value is empty")
        yield found[0].strip()
        place = end + 1


def _read(text: str) -> Value:
    """A value of a list: what is no plain number, as a change by `+8`, stays a text."""
    if text in ("true", "false"):
        return text == "true"
    return _plain(Decimal(text)) if _NUMBER.fullmatch(text) else text


def _plain(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() and abs(number) < 10**18 else float(number)


def _range(text: str, first: str, last: str, how: str, step: str) -> Iterator[Value]:
    """Numbers from the first to the last at most, in decimals, so that 0.1:0.5:+0.1 has 0.3 in it."""
    for one in (first, last, step):
        real_number(one, -1e15, 1e15)  # ValueError for what is no number
    start, end, by = Decimal(first.strip()), Decimal(last.strip()), Decimal(step.strip())
    if end < start:
        raise ValueError(f"{text} ends below where it begins")
    if by <= (1 if how == "x" else 0) or (how == "x" and start <= 0):
        raise ValueError(
            f"{text} does not rise: steps are +N with N above 0, or xN with N above 1 from a start above 0"
        )
    rising = _rising(start, how, by)
    yield from map(_plain, takewhile(lambda value: value <= end, rising))


def _rising(value: Decimal, how: str, by: Decimal) -> Iterator[Decimal]:
    while True:
        yield value
        value = value * by if how == "x" else value + by
