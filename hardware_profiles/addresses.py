"""Addresses: one rule by which a dotted path names a value in the tables of files, and what such a value is set to.

An address is the keys from a file's name down to the value, as the files say them: `cluster.network.bandwidth_gbps`. A path may
leave keys out (`network.bandwidth_gbps`, `accelerator.tflops_bf16`): it names the address that leaves out fewest, if there is one
such address. Of a list, or a table of names, it names every member, or the one whose number or name stands behind it:
`servers.0.count`, `accelerator[b200].memory_gib`. The path of a table is that of its MAIN_KEYS, if it is no other's. No step is
empty: one dot stands between two keys, and none elsewhere.

A value is set to another one (`200`, `true`, `adam`, `4,4,8`), or to a change of the one that is there: `+10%`, `-10%`, `*2`,
`/2`, `+8`, `-8`. The keys, and what each may be, come from the declared tables alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from hardware_profiles.fields import check_kind
from hardware_profiles.numbers import real_number
from hardware_profiles.words import blaming, legible, shown

MAIN_KEYS = ("value", "count")
"""Keys that a path which ends at their table stands for: a constant's value, the number of servers."""

MOST_NAMED = 4
"""Addresses that a message names at most."""

_CHANGE = re.compile(r"(?:([+-])([^%]+)(%?)|([*/])(.+))")
_STEP = re.compile(r"\[([^\[\]]+)\]|([^.\[\]]+)")
_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[[^\[\]]+\])*")
"""Steps, the first a key, of which a dot stands before each further one that is in no brackets."""


class SettingError(ValueError):
    """A path that names no value, or several, or a value that cannot be there: one line with the nearest choices."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A path, and what its value is set to: a value, or its text."""

    path: str
    value: object

    def __str__(self) -> str:
        return f"{self.path}={self.value if isinstance(self.value, str) else shown(self.value)}"


@dataclass(frozen=True, slots=True)
class Address:
    """The keys down to a value, and its declared type.

    several: of each key whether a `list`, or a table of `names`, stands there, whose members a path may choose from; else ""
    default: where the tables say nothing; None where they then have none
    rivals: other keys of its table, of which a table says one alone
    """

    keys: tuple[str, ...]
    several: tuple[str, ...]
    type: inspect.Type
    default: Any = None
    rivals: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join(self.keys)


@dataclass(frozen=True, slots=True)
class Place:
    """An address, and of each key the chosen member; None for all of them.

    whole: the path ends at the table: what it says holds for tables of names in it, too, as for the generations of a constant
    """

    address: Address
    chosen: tuple[str | None, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What a setting changed: the address, and the values before and after; "" before where there was none."""

    address: str
    before: object
    after: object

    @property
    def words(self) -> tuple[str, str]:
        """Both values as a table shows them."""
        return value_words(self.before), value_words(self.after)

    def __str__(self) -> str:
        return f"{self.address}: {' -> '.join(self.words)}"


def read_setting(text: str) -> Setting:
    """`PATH=VALUE`; SettingError for what is none."""
    path, _, value = text.partition("=")
    if not (path.strip() and value.strip()):
        raise SettingError(f"{shown(text)} must be PATH=VALUE, as in network.bandwidth_gbps=200")
    return Setting(path.strip(), value.strip())


def settings_of(given: Mapping[str, object] | Iterable[str | Setting]) -> tuple[Setting, ...]:
    """Settings from `PATH=VALUE` texts, or values by path."""
    if isinstance(given, Mapping):
        for path in given:
            check_kind("path of a setting", path, str)
        return tuple(Setting(path, value) for path, value in given.items())
    check_kind("settings", given, Iterable)
    several = (given,) if isinstance(given, str) else tuple(given)
    for one in several:
        check_kind("a setting", one, str, Setting)
    return tuple(one if isinstance(one, Setting) else read_setting(one) for one in several)


def addresses_of(tables: Mapping[str, Sequence[type]]) -> tuple[Address, ...]:
    """Every value that files may say.

    tables: by the first key, the declared tables that stand there; a name that ends in `[]` has several of them, by their names
    """
    found: dict[tuple[str, ...], Address] = {}
    for name, forms in tables.items():
        for form in forms:
            found |= {one.keys: one for one in _of_form(name, form) if one.keys not in found}
    return tuple(found.values())


@cache
def _of_form(name: str, form: type) -> tuple[Address, ...]:
    """The addresses of a declared table; name: as of `addresses_of`."""
    several = "names" if name.endswith("[]") else ""
    return tuple(_below(inspect.type_info(form), (name.removesuffix("[]"),), (several,)))


def _below(kind: inspect.Type, keys: tuple[str, ...], several: tuple[str, ...]) -> Iterator[Address]:
    """The addresses below a type."""
    if isinstance(kind, inspect.Metadata):
        yield from _below(kind.type, keys, several)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _below(one, keys, several)
    elif isinstance(kind, inspect.DictType):
        yield from _below(kind.value_type, keys, (*several[:-1], "names"))
    elif isinstance(kind, inspect.CollectionType):
        yield from _below(kind.item_type, keys, (*several[:-1], "list"))
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            key = field.encode_name
            default = None if field.default in (msgspec.NODEFAULT, msgspec.UNSET) else field.default
            if not _is_table(field.type):
                others = (names for names in getattr(kind.cls, "one_of", ()) if key in names)
                rivals = tuple(other for names in others for other in names if other != key)
                own = "names" if _is_names(field.type) else ""
                yield Address((*keys, key), (*several, own), field.type, default, rivals)
            yield from _below(field.type, (*keys, key), (*several, ""))


def is_real(address: Address) -> bool:
    """Whether a value is a number that need not be whole."""
    return any(isinstance(one, inspect.FloatType) for one in _kinds(address.type)) and not _is_names(address.type)


def _kinds(kind: inspect.Type) -> Iterator[inspect.Type]:
    """What a value of a type may be, one kind after the other."""
    if isinstance(kind, inspect.Metadata):
        yield from _kinds(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _kinds(one)
    else:
        yield kind


def _is_table(kind: inspect.Type) -> bool:
    """Whether a value of a type can be tables alone."""
    return all(
        isinstance(one, inspect.StructType | inspect.NoneType)
        or (isinstance(one, inspect.CollectionType) and _is_table(one.item_type))
        or (isinstance(one, inspect.DictType) and _is_table(one.value_type))
        for one in _kinds(kind)
    )


def _is_names(kind: inspect.Type) -> bool:
    """Whether a table of values by names of its own stands there, as a plan's options."""
    return any(isinstance(one, inspect.DictType) for one in _kinds(kind))


def find_address(path: str, known: Sequence[Address]) -> Place:
    """The place that a path names; SettingError where it names none, or several."""
    steps = [inside or key for inside, key in _STEP.findall(path)]
    if not _PATH.fullmatch(path):
        raise SettingError(f"{shown(path)} is no path, as a.b or a[member].b{_nearest(steps, known)}")
    found = [way for one in known if (way := _way(one, steps)) is not None]
    if not found:
        raise SettingError(f"{shown(path)} names no value{_nearest(steps, known)}")
    ranks = [(left_out, place.whole) for left_out, place in found]
    places = [place for rank, (_, place) in zip(ranks, found, strict=True) if rank == min(ranks)]
    if len(places) > 1:
        raise SettingError(f"{shown(path)} names several values: {_some([str(one.address) for one in places])}")
    return places[0]


def _way(address: Address, steps: Sequence[str]) -> tuple[int, Place] | None:
    """How a path is that of an address, and how many keys it leaves out; None where it is not."""
    whole = _chosen(address.keys, address.several, steps)
    if whole is not None:
        return whole[0], Place(address, whole[1])
    if address.keys[-1] not in MAIN_KEYS or len(address.keys) == 1:
        return None
    table = _chosen(address.keys[:-1], address.several[:-1], steps)
    return None if table is None else (table[0], Place(address, (*table[1], None), whole=True))


def _chosen(
    keys: tuple[str, ...], several: tuple[str, ...], steps: Sequence[str]
) -> tuple[int, tuple[str | None, ...]] | None:
    """The keys that steps leave out, and the member that they choose behind each; None where they do not lead to the last key."""
    if not keys or not steps:
        return (0, ()) if not keys and not steps else None
    if keys[0] == steps[0]:
        member = steps[1:2] if several[0] == "names" or (several[0] and steps[1:2] and steps[1].isdigit()) else []
        for chosen in (None, *member):
            rest = _chosen(keys[1:], several[1:], steps[1 if chosen is None else 2 :])
            if rest is not None:
                return rest[0], (chosen, *rest[1])
    rest = _chosen(keys[1:], several[1:], steps) if len(keys) > 1 else None
    return None if rest is None else (rest[0] + 1, (None, *rest[1]))


def _is_inside(address: Address, steps: Sequence[str]) -> bool:
    """Whether a path leads to a table that an address is in; it may leave out the first keys, and tell members by numbers."""
    for count in range(1, len(address.keys)):
        for begin in range(count):
            found = _chosen(address.keys[begin:count], address.several[begin:count], steps)
            if found is not None and not found[0] and all(one is None or one.isdigit() for one in found[1]):
                return True
    return False


def _nearest(steps: Sequence[str], known: Sequence[Address]) -> str:
    """The hint at what was meant: addresses whose last key is close to a path's, those that share its other keys first."""
    if inside := [str(one) for one in known if _is_inside(one, steps)]:
        return f", but a table: {_some(inside)}"
    last, others = (steps[-1] if steps else "").lower(), set(steps[:-1])
    keys = dict.fromkeys(one.keys[-1] for one in known)
    holding = [key for key in keys if len(last) > 2 and (last in key or key in last)]
    close = [*get_close_matches(last, keys, n=3, cutoff=0.6), *holding]
    meant = [one for one in known if one.keys[-1] in close] or [one for one in known if others & set(one.keys)]
    meant.sort(key=lambda one: (-len(others & set(one.keys)), close.index(one.keys[-1]) if close else 0))
    if not meant:
        return f"; the first key is one of {', '.join(dict.fromkeys(one.keys[0] for one in known))}"
    return f"; near it: {_some([str(one) for one in meant])}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + f", and {more} more" * (more > 0)


# ---------------------------------------------------------------------------------------------------------- setting


def set_in(tables: dict[str, Any], place: Place, setting: Setting) -> tuple[Change, ...]:
    """Set the values of a place in tables of plain values, by the first key; the changes, equal ones once.

    SettingError for a member that is not there, and a change of what has no number. Whether the tables then are right, their own
    declaration says.
    """
    missed: list[str] = []
    changes = list(dict.fromkeys(_set(tables, place, setting, missed)))
    if not changes:
        raise SettingError(f"{setting}: {missed[0] if missed else f'nothing has {place.address}'}")
    return tuple(changes)


def _set(
    table: Any, place: Place, setting: Setting, missed: list[str], depth: int = 0, above: str = ""
) -> Iterator[Change]:
    """Set the values below the key at some depth.

    missed: where to say which chosen members are not there; above: the keys and members that lead to this table
    """
    address, (key, chosen) = place.address, (place.address.keys[depth], place.chosen[depth])
    here = f"{above}{key}"
    if depth == len(address.keys) - 1:
        if chosen is not None:
            yield _put(table.setdefault(key, {}), chosen, address, setting, f"{here}.{chosen}")
            return
        yield _put(table, key, address, setting, here)
        for name, names in [(name, one) for name, one in table.items() if place.whole and isinstance(one, dict)]:
            for member, own in names.items():
                if isinstance(own, dict) and key in own:
                    yield _put(own, key, address, setting, f"{above}{name}.{member}.{key}")
        return
    below = table.setdefault(key, {})
    if not address.several[depth]:
        if isinstance(below, str):  # a file's name, in place of its table
            below = table[key] = {"name": below}
        yield from _set(below, place, setting, missed, depth + 1, f"{here}.")
        return
    members = {str(name): one for name, one in (below.items() if isinstance(below, dict) else enumerate(below))}
    if chosen is not None and chosen not in members:
        missed.append(f"{here} has no {shown(chosen)}; there: {', '.join(members) or 'none'}")
    for name, one in members.items():
        if chosen in (None, name):
            inside = _inside(here, name, told=chosen is not None or len(members) > 1)
            yield from _set(one, place, setting, missed, depth + 1, inside)


def _put(table: dict[str, Any], key: str, address: Address, setting: Setting, where: str) -> Change:
    """Set one value, in place of those that exclude it."""
    before = table.get(key, address.default)
    instead = next((other for other in address.rivals if other in table), "none")
    table[key] = _value(setting, address, before, instead)
    for other in address.rivals:
        table.pop(other, None)
    return Change(where, "" if before is None else _plain(before), _plain(table[key]))


def values_in(tables: Mapping[str, Any], known: Iterable[Address]) -> dict[str, Any]:
    """The value of every address in tables, by its path with the members that lead there.

    Of what a table does not say the default, of what is in a table that is not there None.
    """
    found = {}
    for one in known:
        found.update({path: _plain(value) for path, value in _values(tables, one, 0, "")})
    return found


def _values(table: Mapping[str, Any], address: Address, depth: int, above: str) -> Iterator[tuple[str, Any]]:
    key = address.keys[depth]
    here = f"{above}{key}"
    if depth == len(address.keys) - 1:
        value = table.get(key, address.default)
        yield from (
            {f"{here}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {here: value}
        ).items()
        return
    below = table.get(key)
    if below is None:
        yield ".".join((here, *address.keys[depth + 1 :])), None
        return
    if not address.several[depth]:
        yield from _values(below if isinstance(below, Mapping) else {"name": below}, address, depth + 1, f"{here}.")
        return
    members = {str(name): one for name, one in (below.items() if isinstance(below, dict) else enumerate(below))}
    for name, one in members.items():
        yield from _values(one, address, depth + 1, _inside(here, name, told=len(members) > 1))


def _inside(path: str, member: str, *, told: bool) -> str:
    """The path of what is inside a member of a list or a table of names, which is told where there are others."""
    return f"{path}." if not told else f"{path}[{member}]." if "." in member else f"{path}.{member}."


def _value(setting: Setting, address: Address, before: Any, instead: str) -> Any:
    """The value that a setting gives a place which has another one.

    instead: the key that the table says in place of this one, or none
    """
    text, kinds = setting.value, list(_kinds(address.type))
    if not isinstance(text, str):
        return text
    numeric = any(isinstance(one, inspect.IntType | inspect.FloatType) for one in kinds)
    change = _CHANGE.fullmatch(text.strip()) if numeric or _is_names(address.type) else None
    if change is not None and (isinstance(before, bool) or not isinstance(before, int | float)):
        has = f"its file says {instead}" if before is None else f"what is there is {shown(before)}"
        raise SettingError(f"{setting}: there is no number to change, {has}; give the value itself")
    if change is not None:
        whole = isinstance(before, int) and any(isinstance(one, inspect.IntType) for one in kinds)
        return _changed(setting, change, before, whole=whole)
    listed = [one for one in kinds if isinstance(one, inspect.CollectionType)]
    whole = any(isinstance(one, inspect.IntType) for held in listed for one in _kinds(held.item_type))
    found = _toml(text) if not listed or text.startswith("[") else _list(text, whole=whole)
    texts = any(isinstance(one, inspect.StrType) or _has_words(one) for one in kinds)
    return text if texts and not numeric and isinstance(found, int | float) and _refuses(found, address.type) else found


def _has_words(kind: inspect.Type) -> bool:
    """Whether a type is a choice among values some of which are words."""
    return isinstance(kind, inspect.LiteralType) and any(isinstance(one, str) for one in kind.values)


def _refuses(value: object, kind: inspect.Type) -> bool:
    """Whether a type of words has no such number among them."""
    literals = [one for one in _kinds(kind) if isinstance(one, inspect.LiteralType)]
    switches = any(isinstance(one, inspect.BoolType) for one in _kinds(kind))
    return not any(value in one.values for one in literals) and not (isinstance(value, bool) and switches)


def _changed(setting: Setting, change: re.Match[str], before: int | float, *, whole: bool) -> int | float:
    """The number that a change makes of the one that is there."""
    sign, addend, percent, operator, factor = change.groups()
    with blaming(SettingError, f"{setting}: a change is +10%, -10%, *2, /2, +8 or -8"):
        amount = real_number(addend or factor)
    if operator == "/" and not amount:
        raise SettingError(f"{setting}: divides by 0")
    if sign:
        signed = amount if sign == "+" else -amount
        found = before * (1.0 + signed / 100.0) if percent else before + signed
    else:
        found = before * amount if operator == "*" else before / amount
    if abs(found - round(found)) <= 1e-9 * abs(found):  # as 110.00000000000001
        found = float(round(found))
    if not whole:
        return float(found)
    if found != int(found):
        raise SettingError(f"{setting}: {before:,} becomes {found:g}, where a whole number is wanted")
    return int(found)


def _toml(text: str) -> Any:
    """The value that a text is in TOML, or else the text: a number, too, that is not in plain digits, as in 1_000 or 0x10."""
    try:
        value = tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text
    return text if isinstance(value, int | float) and re.search("[_xob]", text) else value


_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


def _list(text: str, *, whole: bool) -> list[Any]:
    """The values between commas; whole: of whole numbers, where `0-14` are the numbers from 0 to 14."""
    found: list[Any] = []
    for one in (part.strip() for part in text.split(",")):
        ends = _RANGE.fullmatch(one) if whole else None
        numbers = range(int(ends[1]), int(ends[2]) + 1) if ends else ()
        found += numbers or [_toml(one)]
    return found


def _plain(value: Any) -> Any:
    """A value that can be compared and kept; of a table its name."""
    if isinstance(value, dict):
        return value.get("name") or shown(value)
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def value_words(value: object) -> str:
    """A value as a line or a table shows it."""
    if isinstance(value, tuple):
        return legible(f"[{', '.join(map(value_words, value))}]")
    if isinstance(value, float):
        return f"{value:.6g}"
    return legible(str(value)) if value not in ("", None) else "none"
