"""Ranges: what a number of a profile can be, and what it usually is; a slip of the unit is outside of one of them."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from hardware_profiles.reading import is_referred
from hardware_profiles.words import shown


@dataclass(frozen=True, slots=True)
class Range:
    """Ends (included) of what is usual and of what is possible, and the unit in words.

    usual: of devices and clusters that exist, with room for the next ones; 0 is no doubt where it is possible
    possible: beyond it a factor of a hundred or more lies between the number and any device
    """

    usual: tuple[float, float]
    possible: tuple[float, float]
    unit: str


def within(usual: tuple[float, float], possible: tuple[float, float], unit: str) -> msgspec.Meta:
    """The annotation of a field with its ranges; the JSON Schema has the possible one."""
    low, high = possible
    return msgspec.Meta(
        description=unit,
        extra={"range": Range(usual, possible, unit)},
        extra_json_schema={"minimum": low, "maximum": high},
    )


def impossible(table: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """One line for each impossible number of a file, and the same line without the number."""
    for path, value, limits in _numbers(table, "$"):
        low, high = limits.possible
        if not low <= value <= high:
            rule = f": must be from {low:g} to {high:g} ({limits.unit}); check the unit"
            yield f"{path} = {_shown(value)}{rule}", f"{path}{rule}"


def doubts(table: msgspec.Struct) -> Iterator[str]:
    """One line for each unusual number of a file; without the number if another file refers to this one."""
    for path, value, limits in _numbers(table, "$"):
        low, high = limits.usual
        if value != 0.0 and not low <= value <= high:
            told = "" if is_referred() else f" = {_shown(value)}"
            yield f"{path}{told} is unusual: mostly from {low:g} to {high:g} ({limits.unit}); check the unit"


def _shown(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else shown(value)


def _numbers(table: msgspec.Struct, path: str) -> Iterator[tuple[str, float, Range]]:
    for name, limits in _ranges(type(table)).items():
        value = getattr(table, name)
        yield from _below(value, f"{path}.{name}")
        if limits is not None and value is not None:
            yield f"{path}.{name}", value, limits


@cache
def _ranges(kind: type[msgspec.Struct]) -> dict[str, Range | None]:
    """The range of each field, None where it has none."""
    return {name: _range(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _below(value: object, path: str) -> Iterator[tuple[str, float, Range]]:
    if isinstance(value, msgspec.Struct):
        yield from _numbers(value, path)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _below(one, f"{path}[{index}]")


def _range(hint: Any) -> Range | None:
    """The range in an annotation, also in one that may be left out (`... | None`)."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(filter(None, map(_range, get_args(hint))), None)
    if get_origin(hint) is Annotated:
        return next(
            (meta.extra["range"] for meta in hint.__metadata__ if isinstance(meta, msgspec.Meta) and meta.extra), None
        )
    return None
