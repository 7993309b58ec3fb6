"""Field types: what the fields of values made in Python may hold, which their annotations say and msgspec checks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, fields, make_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from hardware_profiles.fields import CHOICES, KINDS, FieldError, a_kind, bounds_of, words_of
from hardware_profiles.numbers import MOST_COUNT
from hardware_profiles.option_declarations import FileBounds
from hardware_profiles.words import shown, unchosen


def check_fields(value: object) -> None:
    """FieldError for a frozen dataclass with a field that is not what its annotation says, or a whole number beyond MOST_COUNT.

    A list in the place of a tuple becomes one, and whole numbers and switches of numpy become Python's.
    """
    kind: Any = type(value)
    if _fits(value, kind):
        return
    for name, (hint, words) in _declared(kind).items():
        given = getattr(value, name)
        try:
            found = _converted(given, hint)
        except msgspec.ValidationError:
            raise FieldError(_complaint(name, kind, words, given)) from None
        if found is not given:
            object.__setattr__(value, name, found)


def _fits(value: object, kind: Any) -> bool:
    """Whether every field is what its annotation says, as it stands; all at once, as msgspec reads annotations at each call."""
    try:
        found = msgspec.convert(value, _fields_of(kind), from_attributes=True)
    except msgspec.ValidationError:
        return False
    pairs = ((getattr(found, name), getattr(value, name)) for name in _declared(kind))
    return all(one is given or one == given for one, given in pairs)


@cache
def _fields_of(kind: Any) -> Any:
    return make_dataclass(kind.__name__, [(name, hint) for name, (hint, _) in _declared(kind).items()])


def _converted(given: Any, hint: Any) -> Any:
    """The value converted to a type of `msgspec_type`; numpy's numbers and lists become Python's, without loading numpy."""
    with suppress(msgspec.ValidationError):
        found = msgspec.convert(given, hint)
        if found is given or found == given:
            return given
    plain = _plain(given)
    found = msgspec.convert(plain, hint)
    if found != plain:
        raise msgspec.ValidationError  # a set, whose members have no order
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list | range):
        return tuple(map(_plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def _complaint(name: str, kind: type, words: str, given: object) -> str:
    if words.startswith(CHOICES):
        return unchosen(name, given, words.removeprefix(CHOICES).split(", "))
    return f"{name} of {a_kind(kind)} must be {words}, got {shown(given)}"


@cache
def _declared(kind: Any) -> dict[str, tuple[Any, str]]:
    """The type of each field of a dataclass, as msgspec takes it, and its words."""
    hints = {name: _without_file_bounds(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    return {one.name: (msgspec_type(hints[one.name]), words_of(hints[one.name])) for one in fields(kind)}


def _without_file_bounds(hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated and isinstance(bounds_of(inner), FileBounds):
        return inner[0]
    return tuple.__class_getitem__(tuple(map(_without_file_bounds, inner))) if origin is tuple else hint


def msgspec_type(hint: Any) -> Any:
    """An annotation as msgspec reads it: with its `Bounds`, no whole number beyond MOST_COUNT, and classes by their instances."""
    origin, inner = get_origin(hint), get_args(hint)
    alias = getattr(origin or hint, "__value__", None)
    if alias is not None:  # of a `type` statement, as numpy's arrays are from Python 3.12
        return msgspec_type(alias)
    if origin is Annotated:
        ends: dict[str, Any] = {end: one for end, one in asdict(bounds_of(inner)).items() if one is not None}
        return Annotated[inner[0], msgspec.Meta(**(_COUNT if inner[0] is int else {}) | ends)]
    if origin in (Union, UnionType):
        return Union[tuple(map(msgspec_type, inner))]  # noqa: UP007 (of types that are not known here)
    if origin is tuple:
        return tuple.__class_getitem__(tuple(one if one is ... else msgspec_type(one) for one in inner))
    if hint is int:
        return Annotated[int, msgspec.Meta(**_COUNT)]
    if origin is Literal or hint in KINDS:
        return hint
    return _InstancesOf("Instance", (), {"of": origin or hint})


_COUNT: dict[str, Any] = {"ge": -MOST_COUNT, "le": MOST_COUNT}


class _InstancesOf(type):
    """A class whose instances are those of its attribute `of`: msgspec would look into the fields of a dataclass."""

    of: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.of)
