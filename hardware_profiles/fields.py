"""Fields: one error for what a field or an argument may not hold, and the words for what it may."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hardware_profiles.numbers import MOST_COUNT
from hardware_profiles.option_declarations import Bounds
from hardware_profiles.words import shown, unknown


class FieldError(ValueError):
    """An invalid field of a value; the message is one line: value, field, rule, and what was given."""


CHOICES = "one of "
"""How a rule with choices begins."""


def a_kind(kind: type) -> str:
    """The name of a class with its article."""
    name = "array" if kind.__name__ == "ndarray" else kind.__name__
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"


def check_kind(what: str, value: object, *kinds: type) -> None:
    """Raise FieldError unless a value is of one of these types."""
    if not isinstance(value, kinds):
        words = " or ".join(map(words_of, kinds))
        raise FieldError(f"{what} must be {words}, got {shown(value)}")


def check_known(of: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise FieldError, with the choices, for an unknown name.

    of: what has such names, as in "a problem has no"
    """
    choices = list(known)
    for name in given:
        if name not in choices:
            raise FieldError(unknown(f"{of} {shown(name)}", name, choices))


def path_text(what: str, value: object) -> str:
    """The text of a name or a path; FieldError for anything else."""
    check_kind(what, value, str, os.PathLike)
    return os.fsdecode(value)  # type: ignore[arg-type]


def bounds_of(inner: tuple[Any, ...]) -> Bounds:
    """The bounds among the parts of an annotation."""
    return next(extra for extra in inner[1:] if isinstance(extra, Bounds))


def words_of(hint: Any) -> str:
    """A type in words, as in "must be a whole number"."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds, words = bounds_of(inner), words_of(inner[0]).partition(" of at most")[0]
        return f"{words}{' of' if bounds.ge is not None else ','} {bounds}"
    if origin in (Union, UnionType):
        plain = {bool, int, float, str} if {bool, int, float, str} <= set(inner) else set()
        return " or ".join(
            ["a text, a number or a switch"] * bool(plain) + [words_of(one) for one in inner if one not in plain]
        )
    if origin is Literal:
        return CHOICES + ", ".join(map(str, inner))
    if origin is tuple and inner[1:] == (Ellipsis,):
        return f"a tuple, each part {words_of(inner[0])}"
    if origin is tuple:
        return f"a tuple of {' and '.join(map(words_of, inner))}"
    return KINDS.get(hint) or a_kind(origin or hint)


KINDS: Mapping[Any, str] = {
    int: f"a whole number of at most {MOST_COUNT:,}",
    float: "a number",
    bool: "True or False",
    str: "a text",
    NoneType: "None",
    Any: "anything",
    object: "anything",
}
"""Type in an annotation -> words for it in a rule."""
