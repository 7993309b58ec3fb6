"""Keys: what plans share, by the fields that decide it; and what is kept by such keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sized
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Sized)

NOTHING: Mapping[str, str] = {"decides": "nothing of what runs"}
ORDER: Mapping[str, str] = {"decides": "which ops run, and in which order"}
COSTS: Mapping[str, str] = {"decides": "seconds and bytes"}
LAYERS: Mapping[str, str] = {"decides": "seconds and bytes of the layers, which tables have"}
PARTS: Mapping[str, str] = {"decides": "what keys of its parts say"}
"""What a field of a problem, plan or stage decides, as its metadata; one without any decides everything, and is in every key."""


def key_of(kind: type, *left: Mapping[str, str]) -> Callable[[Any], tuple[Any, ...]]:
    """Read of a frozen value all fields but those that decide nothing but what is left out."""
    names = [one.name for one in fields(kind) if one.metadata not in left]
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)


class Kept(OrderedDict[Key, Value]):
    """Values by key, the one that was used last behind the others; they are as large as they are long."""

    size = 0

    def used(self, key: Key) -> Value | None:
        """The value of a key, or None."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def keep(self, key: Key, value: Value, most: int) -> list[Key]:
        """Add one that is not there, unless it alone is larger than `most`; the keys of those that are given up for it."""
        dropped = []
        if len(value) <= most:
            self[key] = value
            self.size += len(value)
        while self.size > most:
            oldest, old = self.popitem(last=False)
            self.size -= len(old)
            dropped.append(oldest)
        return dropped
