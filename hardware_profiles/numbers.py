"""Numbers: how people write them, and the two ends that every one of them has.

A number of a text (an option, a cell, a line) is written in the digits 0 to 9, without separators; a real one is finite.
"""

from __future__ import annotations

import re
import sys
from math import inf
from numbers import Integral, Real
from typing import Any

from hardware_profiles.option_declarations import declared_bounds
from hardware_profiles.words import shown

MOST_COUNT = 10**12
"""Largest count where no other limit is given."""

MOST_AMOUNT = 1e300
"""Largest amount (seconds, bytes, ...): sums of amounts stay finite."""

LEAST_WATTS, MOST_WATTS = 1e-3, 1e12
"""Ends of the power that devices may draw together."""

MOST_SEED = 2**63 - 1

MOST_DEVICES = 32_768
"""Devices of a cluster at most: a slip of the pen in a count should not eat the memory."""

_WHOLE = re.compile(r"[+-]?[0-9]+")

_MOST_DIGITS = 400
"""A longer number is beyond every limit."""

_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def whole_number(text: str, least: int, most: int) -> int:
    """Read a whole number in a range; ValueError, which shows the text, for anything else."""
    written = text.strip(" ")
    value: float | None = None
    if _WHOLE.fullmatch(written):
        value = int(written) if len(written) <= _MOST_DIGITS else -inf if written[0] == "-" else inf
    if value is None or not least <= value <= most:
        too_large = value is not None and value > most
        raise ValueError(f"{shown(text)} must be a whole number {_end(least, most, too_large=too_large)}")
    return int(value)


def real_number(text: str, least: float = 0.0, most: float = MOST_AMOUNT) -> float:
    """Read a finite number in a range; ValueError, which shows the text, for anything else."""
    written = text.strip(" ")
    if not _REAL.fullmatch(written):
        raise ValueError(
            f"{shown(text)} is not a number" + (", which is finite" if written[-3:] in ("inf", "nan") else "")
        )
    value = float(written) + 0.0  # no zero has a sign
    if not least <= value <= most:
        raise ValueError(f"{shown(text)} must be a finite number {_end(least, most, too_large=value > most)}")
    return value


def check_whole(what: str, value: Any, least: int, most: int = MOST_COUNT) -> None:
    """Raise ValueError unless a value is a whole number in a range; True and False are not numbers."""
    whole = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    if not (whole and least <= value <= most):
        end = "" if least < 0 and not whole else f" {_end(least, most, too_large=whole and value > most)}"
        raise ValueError(f"{what} must be a whole number{end}, got {shown(value)}")


def check_real(what: str, value: Any, least: float = 0.0, most: float = MOST_AMOUNT) -> None:
    """Raise ValueError unless a value is a finite number in a range; True and False are not numbers."""
    real = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    if real and least <= value <= most:
        return
    if real and most < value <= sys.float_info.max:
        rule = f"at most {most:g}"
    elif least < 0:
        rule = "a finite number"
    else:
        rule = f"finite and at least {least:g}" if least else "finite and not negative"
    raise ValueError(f"{what} must be {rule}, got {shown(value)}")


def check_numbers(where: str, value: object) -> None:
    """Raise ValueError for the first field of a dataclass that is not a number in its declared range.

    where: what messages begin with
    """
    kind: Any
    for name, (kind, bounds) in declared_bounds(value).items():
        number, least = getattr(value, name), bounds.ge or 0
        most: float = MOST_AMOUNT if kind is not int else MOST_COUNT if bounds.le is None else bounds.le
        if type(number) is kind and least <= number <= most:  # no words are made for a good one
            continue
        if kind is int:
            check_whole(f"{where}{name}", number, int(least), int(most))
        else:
            check_real(f"{where}{name}", number, least)


def _end(least: float, most: float, *, too_large: bool) -> str:
    """The limit that a number exceeds, in words."""
    word, end = ("most", most) if too_large else ("least", least)
    return f"of at {word} " + (f"{end:,}" if isinstance(end, int) else f"{end:g}")
