"""Kernels: the one decorator of every function that numba compiles."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from numba import njit
from numba.core.runtime.nrt import rtsys

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(**options: Any) -> Callable[[Function], Function]:
    """`numba.njit(cache=True, **options)`, or without the cache where it has no place.

    Numba keeps compiled code beside the module, or else in the user's cache folder, and refuses to decorate where it can write
    to neither (a container's user without a home): every process then compiles anew, which a line on stderr says once.
    """

    def decorate(function: Function) -> Function:
        try:
            return _quickly_loaded(_with_readable_index(njit(cache=True, **options)(function)))  # type: ignore[no-any-return]
        except RuntimeError:  # raised for the lack of a place, and before the first call for nothing else
            _say_uncached()
            return njit(**options)(function)  # type: ignore[no-any-return]

    return decorate


def _with_readable_index(compiled: Any) -> Any:
    """Take compiled code that an older version left for none where it names classes or modules that are gone.

    Numba unpickles the index of a function's compiled code, with the types of its arguments, before it looks whether the source
    is still the same.
    """
    index = compiled._cache._cache_file
    load = index._load_index

    def readable() -> dict[Any, str]:
        try:
            return dict(load())
        except (AttributeError, ImportError):
            return {}

    index._load_index = readable
    return compiled


def _quickly_loaded(compiled: Any) -> Any:
    """Load kept code without all that numba can compile (0.4 s a process), which it would load first.

    The code needs numba's memory for arrays only. Where none is kept, numba loads the rest before it compiles.
    """
    kept = compiled._cache

    def load(signature: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        with kept._guard_against_spurious_io_errors():
            return kept._load_overload(signature, target_context)

    kept.load_overload = load
    return compiled


@cache
def _say_uncached() -> None:
    """Say it once a process."""
    print(
        "pipeplan: compiling anew: no folder for compiled code can be written; set NUMBA_CACHE_DIR to one that can",
        file=sys.stderr,
    )
