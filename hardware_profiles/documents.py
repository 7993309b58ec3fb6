"""Documents: the JSON value of a file, and msgspec's complaints about one in words of files."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec.inspect

from hardware_profiles.reading import FileError
from hardware_profiles.words import shown, unknown


def json_value(content: str | bytes, source: object, error: type[FileError]) -> Any:
    """The JSON value of a file's content.

    Raises the error, `source:line: ...`, for what is no JSON, a key that a table says again (a reader would take one of the
    values without a word), numbers that are none, and endless nesting.
    """

    def refuse(text: str, place: int, rule: str, untold: str = "") -> NoReturn:
        where = f"{source}:{text.count(chr(10), 0, place) + 1}"
        raise error(f"{where}: {rule}", f"{where}: {untold or rule}") from None

    try:
        text = content if isinstance(content, str) else content.decode()
    except UnicodeDecodeError as fault:
        refuse("", 0, f"not a text file (byte {fault.start} is not UTF-8)")
    try:
        value = json.loads(text, object_pairs_hook=_each_key_once, parse_constant=_no_number)
        if _SURROGATE.search(text):
            msgspec.json.decode(text)  # which knows halves of characters
        if _is_deep(value):
            raise RecursionError
        return value
    except json.JSONDecodeError as fault:
        refuse(text, fault.pos, f"not JSON: {fault.msg}")
    except msgspec.DecodeError as fault:
        refuse(text, 0, f"not JSON: {fault}")
    except RecursionError:
        refuse(text, 0, "not usable JSON: lists or tables are nested too deeply")
    except _DoubledKeyError as fault:
        said = [one.start() for one in re.finditer(re.escape(json.dumps(fault.key, ensure_ascii=False)), text)]
        place, rule = said[min(1, len(said) - 1)] if said else 0, "stands twice in a table"
        refuse(text, place, f"key {shown(fault.key)} {rule}", f"a key {rule}")
    except _NoNumberError as fault:
        refuse(text, text.find(fault.word), f"not JSON: {fault.word} is no number")
    except ValueError:  # Python reads no whole number of thousands of digits
        digits = re.search(r"[0-9]{4301}", text)
        refuse(text, digits.start() if digits else 0, "not usable JSON: a whole number has too many digits")


MOST_DEEP = 500
"""Lists and tables of a document within each other: fewer than any Python's recursion allows."""


def _is_deep(value: Any) -> bool:
    """Whether lists and tables are nested deeper than MOST_DEEP."""
    level = [value]
    for _ in range(MOST_DEEP):
        several = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [inner for one in several for inner in one]
        if not level:
            return False
    return any(isinstance(one, (dict, list)) for one in level)


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _DoubledKeyError(ValueError):
    """A key that stands twice in one table."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class _NoNumberError(ValueError):
    """A word for what is no number (NaN, Infinity), which some writers of JSON put in place of one."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DoubledKeyError(key)
        found[key] = value
    return found


def _no_number(word: str) -> NoReturn:
    raise _NoNumberError(word)


def explained(message: str, document: Any, into: Any) -> tuple[str, str]:
    """msgspec's complaint about a document as `path = value: rule`, with the choices where it is about a key; and the same
    without what stands in the document.

    message: of the ValidationError; into: the type that the document should have
    """
    rule, _, path = message.partition(" - at `")
    path = path.removesuffix("`") or "$"
    if "[...]" in path or "` in `" in path:  # keys of a table are values: which one is not told
        path = path.replace("key` in `", "")
        untold = f"{path}: {_words(rule)}"
        return untold, untold
    steps: list[str | int] = [int(index) if index else key for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path)]
    expected = _type_at(into, document, steps)
    keys = [field.encode_name for field in getattr(expected, "fields", ())]
    keys = [*filter(None, [getattr(expected, "tag_field", None)]), *keys]
    stranger = re.fullmatch(r"Object contains unknown field `(.*)`", rule, re.DOTALL)
    if stranger:
        key = stranger[1]
        value = _value_at(document, [*steps, key])
        complaint = unknown("unknown key", key[:60], keys)
        return f"{path}.{shown(key)[1:-1]}{value}: {complaint}", f"{path}: has a key that is not of {', '.join(keys)}"
    missing = re.fullmatch(r"Object missing required field `(.*)`", rule)
    if missing:
        untold = f"{path}.{missing[1]}: is missing; keys of this table: {', '.join(keys)}"
        return untold, untold
    if isinstance(expected, msgspec.inspect.LiteralType) and rule.startswith("Invalid enum value"):
        rule = f"must be one of {', '.join(map(str, expected.values))}"
    rule = _words(rule)
    # a rule of a table's own may tell its values
    own = not re.match(r"expected|must be one of|Number out of range", rule)
    return f"{path}{_value_at(document, steps)}: {rule}", f"{path}: {'breaks a rule' if own else rule}"


def _words(rule: str) -> str:
    """A rule of msgspec's in words of files."""
    for theirs, ours in (
        ("Expected", "expected"),
        ("`str | object`", "a text or a table"),
        ("`str | array`", "a text or a list"),
        ("expected `bool`", "expected true or false"),
        ("`object`", "a table"),
        ("`array`", "a list"),
        ("`null`", "nothing"),
    ):
        rule = rule.replace(theirs, ours)
    return rule


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
