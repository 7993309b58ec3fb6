"""Remembered: a decorator that caches a method's results per object, by its arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple

Self = TypeVar("Self")
Arguments = TypeVarTuple("Arguments")
Answer = TypeVar("Answer")


def remembered(method: Callable[[Self, *Arguments], Answer]) -> Callable[[Self, *Arguments], Answer]:
    """The method with its results cached in its object; its arguments must be hashable and given by position."""
    name = f"_remembered_{method.__name__.strip('_')}"

    @wraps(method)
    def ask(self: Self, *arguments: *Arguments) -> Answer:
        known: dict[tuple[*Arguments], Answer] = self.__dict__.setdefault(name, {})
        if arguments not in known:
            known[arguments] = method(self, *arguments)
        return known[arguments]

    return ask
