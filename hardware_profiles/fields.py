"""Fields: what the fields of values made in Python may hold, which their annotations say, and one error for what they may not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hardware_profiles.numbers import MOST_COUNT
from hardware_profiles.options import Bounds
from hardware_profiles.words import shown, unchosen, unknown


class FieldError(ValueError):
    """A field of a value that holds what it cannot; the message is one line: value, field, rule, and what was given."""


class _UnfitError(Exception):
    """What an annotation does not allow."""


CHOICES = "one of "
"""What the words of choices begin with."""

Reader = Callable[[Any], Any]
"""A value as its annotation has it: itself, or what means the same (a tuple for a list); _UnfitError for anything else."""


def check_fields(value: object) -> None:
    """FieldError for a frozen dataclass with a field that is not what its annotation says, or a whole number beyond MOST_COUNT.

    A list in the place of a tuple becomes one, and whole numbers and switches of numpy become Python's.
    """
    kind: Any = type(value)
    for name, (read, words) in _readers(kind).items():
        given = getattr(value, name)
        try:
            found = read(given)
        except _UnfitError:
            raise FieldError(_complaint(name, type(value), words, given)) from None
        if found is not given:
            object.__setattr__(value, name, found)


def _complaint(name: str, kind: type, words: str, given: object) -> str:
    if words.startswith(CHOICES):
        return unchosen(name, given, words.removeprefix(CHOICES).split(", "))
    return f"{name} of {_a(kind)} must be {words}, got {shown(given)}"


def _a(kind: type) -> str:
    name = "array" if kind.__name__ == "ndarray" else kind.__name__
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"


def check_kind(what: str, value: object, *kinds: type) -> None:
    """FieldError for what is of none of these kinds."""
    if not isinstance(value, kinds):
        words = " or ".join(_KINDS[kind][1] if kind in _KINDS else _a(kind) for kind in kinds)
        raise FieldError(f"{what} must be {words}, got {shown(value)}")


def check_known(of: str, given: Iterable[str], known: Iterable[str]) -> None:
    """FieldError, with the choices, for a name that is not known.

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


@cache
def _readers(kind: Any) -> dict[str, tuple[Reader, str]]:
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: _reader(hints[one.name]) for one in fields(kind)}


def _reader(hint: Any) -> tuple[Reader, str]:
    """How a value of an annotation is read, and its words, as in "must be a whole number"."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = next(extra for extra in inner[1:] if isinstance(extra, Bounds))
        read, words = _reader(inner[0])
        return _within(
            read, bounds
        ), f"{words.partition(' of at most')[0]}{' of' if bounds.ge is not None else ','} {bounds}"
    if origin in (Union, UnionType):
        parts = [_reader(one) for one in inner]
        plain = {bool, int, float, str} if {bool, int, float, str} <= set(inner) else set()
        said = [words for one, (_, words) in zip(inner, parts, strict=True) if one not in plain]
        said = ["a text, a number or a switch"] * bool(plain) + said
        return _first_of([read for read, _ in parts]), " or ".join(said)
    if origin is Literal:
        return _choice(inner), CHOICES + ", ".join(map(str, inner))
    if origin is tuple and inner[1:] == (Ellipsis,):
        read, words = _reader(inner[0])
        return (_wholes if inner[0] is int else _several(read)), f"a tuple, each part {words}"
    if origin is tuple:
        parts = [_reader(one) for one in inner]
        return _together([read for read, _ in parts]), f"a tuple of {' and '.join(words for _, words in parts)}"
    kind = origin or hint
    return _KINDS.get(kind) or (_instance(kind), _a(kind) if isinstance(kind, type) else "anything")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _UnfitError
    number = int(value)
    if not -MOST_COUNT <= number <= MOST_COUNT:
        raise _UnfitError
    return number


def _within(read: Reader, bounds: Bounds) -> Reader:
    def read_bounded(value: Any) -> Any:
        found = read(value)
        if found not in bounds:
            raise _UnfitError
        return found

    return read_bounded


def _wholes(value: Any) -> Any:
    """Many numbers, of which a search checks very many: without a call for each where all is as it should be."""
    if type(value) is tuple and set(map(type, value)) <= {int}:
        if value and not -MOST_COUNT <= min(value) <= max(value) <= MOST_COUNT:
            raise _UnfitError
        return value
    return _several(_whole)(value)


def _real(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _UnfitError
    return value


def _plain(value: Any) -> Any:
    """What a scalar or an array of numpy, which is not loaded for this, means in Python."""
    return value.tolist() if hasattr(value, "tolist") else value


def _switch(value: Any) -> bool:
    found = _plain(value)
    if not isinstance(found, bool):
        raise _UnfitError
    return found


def _instance(kind: Any) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(kind, type) and not isinstance(value, kind):
            raise _UnfitError
        return value

    return read


def _choice(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, bool) and isinstance(value, Integral):
            value = int(value)
        for one in choices:
            if type(one) is type(value) and one == value:
                return one
        raise _UnfitError

    return read


def _several(read: Reader) -> Reader:
    def read_all(value: Any) -> Any:
        parts = _plain(value)
        if not isinstance(parts, tuple | list | range):
            raise _UnfitError
        found = tuple(map(read, parts))
        same = type(value) is tuple and all(map(_is_same, found, value))
        return value if same else found

    return read_all


def _is_same(one: object, other: object) -> bool:
    return one is other


def _together(reads: Iterable[Reader]) -> Reader:
    def read_each(value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            raise _UnfitError
        return tuple(read(one) for read, one in zip(parts, value, strict=True))

    parts = tuple(reads)
    return read_each


def _first_of(reads: Iterable[Reader]) -> Reader:
    def read_one(value: Any) -> Any:
        for read in parts:
            try:
                return read(value)
            except _UnfitError:
                continue
        raise _UnfitError

    parts = tuple(reads)
    return read_one


_KINDS: Mapping[Any, tuple[Reader, str]] = {
    int: (_whole, f"a whole number of at most {MOST_COUNT:,}"),
    float: (_real, "a number"),
    bool: (_switch, "True or False"),
    str: (_instance(str), "a text"),
    NoneType: (_instance(NoneType), "None"),
    Any: (_instance(Any), "anything"),
    object: (_instance(object), "anything"),
}
"""How what an annotation names is read, and its words."""
