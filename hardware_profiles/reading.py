"""Reading: files that people name, up to a size, and words about what is wrong with them, fit to print."""

from __future__ import annotations

import copy
import difflib
import errno
import re
from codecs import BOM_UTF8
from collections.abc import Iterable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import msgspec.inspect

MOST_BYTES = 16 * 2**20
"""Bytes of a file at most: what pipeplan reads is far smaller, and a device such as /dev/zero has no end."""


def read_bytes(path: Path | Traversable) -> bytes:
    """The file's content without a byte-order mark. OSError where it cannot be read or has more than MOST_BYTES."""
    with path.open("rb") as file:
        content: bytes = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"is larger than {MOST_BYTES // 2**20} MiB, the most that is read")
    return content.removeprefix(BOM_UTF8)


Value = TypeVar("Value")


def remembering(value: Value, source: object) -> Value:
    """A copy of a frozen value with a field `source` that says where it came from; one made anew of it has none."""
    known = copy.copy(value)
    object.__setattr__(known, "source", source)
    return known


def one_line(text: str) -> str:
    """The text with single spaces for all white space."""
    return " ".join(text.split())


def printable(text: str) -> str:
    """The text with what would move a cursor, ring a bell or reverse a line written as an escape: `\\x1b`."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def legible(name: str, most: int = 60) -> str:
    """A name as a figure or a line shows it: on one line, control characters written out, the middle left out of a long one."""
    text = printable(one_line(name))
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2 - 1) :]}"


def brief(value: object, facts: str) -> str:
    """A `repr` in one short line: the value's type, and the facts that tell it from others."""
    return f"{type(value).__name__}({legible(facts, 160)})"


def shown(value: object, most: int = 60) -> str:
    """A value as a message shows it: cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


def unknown(complaint: str, given: str, choices: Iterable[str]) -> str:
    """The complaint with the closest choice, if one is close, and all of them."""
    known = list(choices)
    close = [name for name in known if given and name.startswith(given.lower())]
    close = close or difflib.get_close_matches(given.lower(), known, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{complaint}{hint}; choose from {', '.join(known)}"


def explained(message: str, document: Any, into: Any) -> str:
    """msgspec's complaint about a document as `path = value: rule`, with the choices where it is about a key.

    message: of the ValidationError; into: the type that the document should have
    """
    rule, _, path = message.partition(" - at `")
    path = path.removesuffix("`") or "$"
    steps: list[str | int] = [int(index) if index else key for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path)]
    expected = _type_at(into, document, steps)
    keys = [field.encode_name for field in getattr(expected, "fields", ())]
    keys = [*filter(None, [getattr(expected, "tag_field", None)]), *keys]
    stranger = re.fullmatch(r"Object contains unknown field `(.*)`", rule, re.DOTALL)
    if stranger:
        key = stranger[1]
        value = _value_at(document, [*steps, key])
        return f"{path}.{shown(key)[1:-1]}{value}: " + unknown("unknown key", key[:60], keys)
    missing = re.fullmatch(r"Object missing required field `(.*)`", rule)
    if missing:
        return f"{path}.{missing[1]}: is missing; keys of this table: {', '.join(keys)}"
    if isinstance(expected, msgspec.inspect.LiteralType) and rule.startswith("Invalid enum value"):
        rule = f"must be one of {', '.join(map(str, expected.values))}"
    for theirs, ours in (
        ("Expected", "expected"),
        ("`str | object`", "a text or a table"),
        ("`object`", "a table"),
        ("`array`", "a list"),
        ("`null`", "nothing"),
    ):
        rule = rule.replace(theirs, ours)
    return f"{path}{_value_at(document, steps)}: {rule}"


def _value_at(document: Any, steps: list[str | int]) -> str:
    """` = value` at that path; nothing where the path leads nowhere, or where there is no document to look in."""
    for step in steps:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return ""
    return "" if document is None else f" = {shown(document)}"


def _type_at(into: Any, document: Any, steps: list[str | int]) -> msgspec.inspect.Type:
    """The type that stands at that path of a document; of a union the struct that the document's tag names, or the first."""
    current = msgspec.inspect.type_info(into)
    for step in [*steps, None]:
        if isinstance(current, msgspec.inspect.UnionType):
            structs = [t for t in current.types if isinstance(t, msgspec.inspect.StructType)]
            tagged = [t for t in structs if t.tag is not None and t.tag == document.get(str(t.tag_field))]
            others = [t for t in current.types if not isinstance(t, msgspec.inspect.NoneType)]
            current = (tagged or structs or others)[0]
        if isinstance(current, msgspec.inspect.StructType) and step is not None:
            current = next(field.type for field in current.fields if field.encode_name == step)
        elif isinstance(current, msgspec.inspect.CollectionType) and step is not None:
            current = current.item_type
    return current
