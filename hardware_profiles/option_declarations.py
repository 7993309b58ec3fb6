"""Options: what a function says of its further parameters: type, range, choices, default, help."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hardware_profiles.words import blaming, one_line, shown, unknown

Value = bool | int | float | str
OptionValue = Value | tuple[Value, ...]

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", object: "a number or a text"}
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?([0-9]{1,300}\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]{1,3})?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a number, to annotate a parameter with: `Annotated[int, Bounds(ge=1, le=8)]`."""

    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None

    def __str__(self) -> str:
        """The range in words, as in "at least 1 and at most 8"."""
        signs = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
        ends = [(words, limit) for name, words in signs.items() if (limit := getattr(self, name)) is not None]
        return " and ".join(
            f"{words} {limit:,}" if isinstance(limit, int) else f"{words} {limit:g}" for words, limit in ends
        )

    def __contains__(self, value: float) -> bool:
        """Whether a number is in the range."""
        lower = (self.ge is None or value >= self.ge) and (self.gt is None or value > self.gt)
        return lower and (self.le is None or value <= self.le) and (self.lt is None or value < self.lt)


@dataclass(frozen=True, slots=True)
class FileBounds(Bounds):
    """The range of a number in a file; a value made in Python checks this field together with its others."""


def declared_bounds(value: object) -> dict[str, tuple[type, Bounds]]:
    """The type and the range of each field of a dataclass's value that declares a range."""
    kind: Any = type(value)
    return _bounds_of_kind(kind)


@cache
def _bounds_of_kind(kind: Any) -> dict[str, tuple[type, Bounds]]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: get_args(hint)[:2] for name, hint in hints.items() if get_origin(hint) is Annotated}


@dataclass(frozen=True, slots=True)
class DeclaredOption:
    """One option.

    kind: bool, int, float or str; object where the function does not say
    several: it takes a list, on the command line with commas; choices: the only values, where they are few
    needed: it has no default
    """

    name: str
    kind: type = object
    bounds: Bounds = Bounds()
    choices: tuple[Value, ...] = ()
    several: bool = False
    needed: bool = False
    default: object = None
    help: str = ""

    @property
    def rule(self) -> str:
        """The rule for a value, in words."""
        one = f"one of {', '.join(map(str, self.choices))}" if self.choices else _WORDS[self.kind]
        if str(self.bounds):
            one += f" of {self.bounds}" if self.bounds.ge is not None else f", {self.bounds}"
        return f"a list of which each is {one}" if self.several else one

    @property
    def words(self) -> str:
        """One line for a person: help, rule and default."""
        default = "" if self.needed or self.default is None else f"; default {shown(self.default)}"
        return f"{self.help} ({self.rule}{default})" if self.help else f"{self.rule}{default}"

    def read(self, value: object) -> Any:
        """A value as the function takes it, from itself or from a text.

        ValueError, in one line with the option and the rule, for what is no such value.
        """
        found = self._listed(value) if self.several else self._one(value)
        if found is None:
            raise ValueError(f"option {self.name} must be {self.rule}, got {shown(value)}")
        return found

    def _listed(self, value: object) -> tuple[Value, ...] | None:
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Iterable) else [value]
        found = tuple(self._one(part) for part in parts)
        return None if None in found else tuple(one for one in found if one is not None)

    def _one(self, value: object) -> Value | None:
        """A single value; None for what is none."""
        if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
            value = value.item()
        found = self._read(value.strip() if isinstance(value, str) else value)
        if found is None or (self.choices and found not in self.choices):
            return None
        if isinstance(found, bool | str):
            return found
        return found if found in self.bounds and math.isfinite(found) else None

    def _read(self, value: object) -> Value | None:
        if isinstance(value, str):
            if self.kind is str:
                return value
            if self.kind is bool:
                return _SWITCHES.get(value.lower())
            if _WHOLE.fullmatch(value):
                return float(value) if self.kind is float else int(value)
            if self.kind is not int and _NUMBER.fullmatch(value):
                return float(value)
            return value if self.kind is object else None
        if isinstance(value, bool):
            return value if self.kind in (bool, object) else None
        if isinstance(value, int):
            return value if self.kind in (int, object) else float(value) if self.kind is float else None
        return value if isinstance(value, float) and self.kind in (float, object) else None


def option_text(name: str, value: object) -> str:
    """The text that says a value on the command line: numbers as they are, lists with commas.

    ValueError for what has no such text.
    """
    if hasattr(value, "tolist"):  # of numpy
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes):
        return ",".join(option_text(name, one) for one in value)
    if isinstance(value, int | float):
        return str(value)
    raise ValueError(f"option {name} must be a text, a number or a list of them, got {shown(value)}")


def declared_options(function: Callable[..., object], given: int) -> dict[str, DeclaredOption]:
    """The options of a function by name: its parameters behind the first `given`, which it is called with anyway.

    An annotation says type, choices (`Literal`) and range (`Annotated` with Bounds, or what else has ge, le, gt or lt), the
    default value the type where no annotation does, a line `name: words` of the docstring the help. A function whose signature
    cannot be known has none.
    """
    hints, text = _hints(function), inspect.getdoc(function) or ""
    return {one.name: _declared(one, hints, text) for one in _further_parameters(function, given)}


def option_names(function: Callable[..., object], given: int) -> tuple[str, ...]:
    """The names of `declared_options`, without what is said of each."""
    return tuple(one.name for one in _further_parameters(function, given))


def _further_parameters(function: Callable[..., object], given: int) -> list[inspect.Parameter]:
    """The named parameters behind the first `given`; none of a function whose signature cannot be known."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one for one in parameters[given:] if one.kind in named]


def _hints(function: Callable[..., object]) -> Mapping[str, Any]:
    """Annotations by parameter; none where they name what cannot be found."""
    source = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    if not inspect.isroutine(source):
        source = getattr(source, "func", None) or type(source).__call__
    try:
        return get_type_hints(source, include_extras=True)
    except Exception:  # whatever names in the annotations of somebody's function lead to
        return {}


def _declared(parameter: inspect.Parameter, hints: Mapping[str, Any], text: str) -> DeclaredOption:
    needed = parameter.default is inspect.Parameter.empty
    default = None if needed else parameter.default
    kind, bounds, choices, several = _meant(hints.get(parameter.name), default)
    words = _help(parameter.name, text)
    return DeclaredOption(parameter.name, kind, bounds, choices, several, needed, default, words)


def _help(name: str, text: str) -> str:
    """What a docstring says behind `name:`, up to the next name (behind a semicolon or on a line), or an empty line."""
    end = r"(?=;\s+`*\w+`*\s*:|\n\s*\n|\n\s*`*\w+`*\s*:|\Z)"
    said = re.search(rf"(?:^\s*|;\s+)`*{re.escape(name)}`*\s*:\s*(\S.*?){end}", text, re.MULTILINE | re.DOTALL)
    return one_line(said[1]).rstrip(".") if said else ""


def _meant(hint: Any, default: object) -> tuple[type, Bounds, tuple[Value, ...], bool]:
    """Type, range, choices and whether it is a list: read from an annotation, or from the default if there is none."""
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        kind, _, choices, several = _meant(inner, default)
        ends = ({end: getattr(extra, end, None) for end in ("ge", "le", "gt", "lt")} for extra in extras)
        found = {end: limit for one in ends for end, limit in one.items() if limit is not None}
        return kind, Bounds(**found), choices, several
    if get_origin(hint) in (Union, UnionType):
        first = next((one for one in get_args(hint) if one is not NoneType), None)
        return _meant(first, default)
    if get_origin(hint) is Literal:
        return type(get_args(hint)[0]), Bounds(), get_args(hint), False
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Iterable) and get_args(hint):
        kind, bounds, choices, _ = _meant(get_args(hint)[0], None)
        return kind, bounds, choices, True
    if hint in (bool, int, float, str):
        return hint, Bounds(), (), False
    if hint is None and type(default) in (bool, int, float, str):
        return type(default), Bounds(), (), False
    if hint is None and isinstance(default, tuple | list) and default:
        kinds = {type(one) for one in default}
        kind = kinds.pop() if len(kinds) == 1 else object
        return kind if kind in (bool, int, float, str) else object, Bounds(), (), True
    return object, Bounds(), (), False


def read_options(declared: Mapping[str, DeclaredOption], given: Mapping[str, object], of: str) -> dict[str, Any]:
    """Options as their function takes them.

    of: who declares them, as in "schedule 'x'", for messages
    ValueError, in one line, for one that is not declared, a value that is none, and one that is needed and not given.
    """
    for name in given:
        if name not in declared:
            takes = unknown(f"{of} has no option {name!r}", name, declared) if declared else f"{of} takes no options"
            raise ValueError(takes)
    missing = [one for one in declared.values() if one.needed and one.name not in given]
    if missing:
        raise ValueError(f"{of} needs option {missing[0].name}: {missing[0].words}")
    with blaming(ValueError, of):
        return {name: declared[name].read(value) for name, value in given.items()}
