"""Keys of caches: values built from the fields that decide a result, and a store that drops the least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sized
from dataclasses import fields
from functools import wraps
from operator import attrgetter
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Sized)
First = TypeVar("First", bound=Hashable)
Answer = TypeVar("Answer")
More = ParamSpec("More")

NOTHING: Mapping[str, str] = {"decides": "nothing of what runs"}
ORDER: Mapping[str, str] = {"decides": "which ops run, and in which order"}
COSTS: Mapping[str, str] = {"decides": "seconds and bytes"}
LAYERS: Mapping[str, str] = {"decides": "seconds and bytes of the layers, which tables have"}
PARTS: Mapping[str, str] = {"decides": "what keys of its parts say"}
"""What a field of a problem, plan or stage decides, as its metadata; one without any decides everything, and is in every key."""


def key_of(kind: type, *left: Mapping[str, str]) -> Callable[[Any], tuple[Any, ...]]:
    """Make a function that reads the deciding fields of a frozen value of this kind: all of them, except those marked as not
    deciding.
    """
    names = [one.name for one in fields(kind) if one.metadata not in left]
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)


def kept_with_its_first(find: Callable[Concatenate[First, More], Answer]) -> Callable[Concatenate[First, More], Answer]:
    """The function, whose answer is kept for as long as its first argument lives, for all that are equal to that; for one without
    a hash, as an accelerator has none that may change, it is found anew.
    """
    known: WeakKeyDictionary[First, Answer] = WeakKeyDictionary()

    @wraps(find)
    def answer(first: First, /, *more: More.args, **named: More.kwargs) -> Answer:
        try:
            found = known.get(first)
        except TypeError:
            return find(first, *more, **named)
        if found is None:
            found = known[first] = find(first, *more, **named)
        return found

    return answer


_ONE_AT_A_TIME = RLock()


class Kept(OrderedDict[Key, Value]):
    """A cache that drops the least recently used entries when their total size exceeds a limit; threads may share one."""

    size = 0

    def used(self, key: Key) -> Value | None:
        """The value of a key, now the most recently used, or None."""
        with _ONE_AT_A_TIME:
            value = self.get(key)
            if value is not None:
                self.move_to_end(key)
            return value

    def keep(self, key: Key, value: Value, most: int) -> list[Key]:
        """Add a new value, unless it alone is larger than `most`; return the keys that are dropped to make room."""
        dropped: list[Key] = []
        with _ONE_AT_A_TIME:
            if len(value) <= most and key not in self:
                self[key] = value
                self.size += len(value)
            while self.size > most:
                oldest, old = self.popitem(last=False)
                self.size -= len(old)
                dropped.append(oldest)
        return dropped
