"""Kernels: the decorator of every numba-compiled function."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from numba import njit, types

from simulator.compiled.garbage import no_garbage_collection

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(*, inner: bool = False, **options: Any) -> Callable[[Function], Function]:
    """`numba.njit(cache=True, **options)`, or without a cache if no cache folder is writable.

    A kernel is called by Python and by other kernels: it gets no door for C, which would be a tenth of the seconds of compiling.
    inner: only other kernels call it; without a door for Python a short one is compiled in half the time
    Numba keeps compiled code beside the module, or else in the user's cache folder, and refuses to decorate where it can write
    to neither (a container's user without a home): every process then compiles anew, which a line on stderr says once.
    What makes that cache quicker and more forgiving stands on names that numba keeps to itself: a version without them loads as
    it does by itself.
    """

    options = {"no_cfunc_wrapper": True, "no_cpython_wrapper": inner, **options}
    held = _closed if inner else _held

    def decorate(function: Function) -> Function:
        easings: tuple[Callable[[Any], None], ...] = (
            _stamped_by_its_folder,
            _with_readable_index,
            _quickly_loaded,
            held,
        )
        try:
            compiled = njit(cache=True, **options)(function)
        except RuntimeError:  # raised for the lack of a place, and before the first call for nothing else
            _say_uncached()
            compiled, easings = njit(**options)(function), (held,)
        for eased in easings:
            with suppress(AttributeError, ImportError, OSError, TypeError):
                eased(compiled)
        return compiled  # type: ignore[no-any-return]

    return decorate


class _Interrupts:
    """SIGINT handler that defers interrupts while the main thread runs a kernel, and raises them when it ends.

    Python looks for interrupts when a kernel has ended and its results are made into Python's: numba expects none there, and the
    call fails, or the process; LLVM, which calls Python while a kernel is compiled, loses them, or ends the process. It stands
    in place of Python's own handler; where a program has another one, that one stays.
    """

    def __init__(self) -> None:
        self.thread = threading.main_thread().ident
        self.kernels = 0  # that it is in
        self.came = False
        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """As `signal.signal` asks for."""
        self.came = self.kernels > 0
        if not self.kernels:
            signal.default_int_handler(number, frame)

    def raised(self) -> None:
        """Raise a deferred interrupt, once no kernel is running."""
        if self.came and not self.kernels:
            self.came = False
            raise KeyboardInterrupt


interrupts = _Interrupts()


def _held(compiled: Any) -> None:
    """Defer interrupts while this kernel runs or is compiled."""
    compiled.__class__ = _holding(compiled.__class__)


def _closed(compiled: Any) -> None:
    """Refuse a call from Python, for which nothing is compiled."""
    compiled.__class__ = _inner(_holding(compiled.__class__))


@cache
def _inner(holding: type) -> Any:
    """The class of a kernel that only kernels call."""

    class Inner(holding):  # type: ignore[misc]
        def __call__(self, *given: Any) -> Any:
            raise TypeError(f"only kernels call the kernel {self.py_func.__name__}")

    return Inner


@cache
def _holding(dispatcher: type) -> Any:
    """The subclass of a numba dispatcher that defers interrupts; kernels call each other without it.

    A kernel that another one calls with `0` or `True` is compiled for any such value, not for each once more. Garbage would be
    looked for during a sixth of the seconds of compiling: nothing is collected meanwhile.
    """

    class Holding(dispatcher):  # type: ignore[misc]
        def compile(self, sig: Any) -> Any:
            with no_garbage_collection():
                return super().compile(sig)

        def get_call_template(self, args: Any, kws: Any) -> Any:
            plain = map(types.unliteral, (*args, *kws.values()))
            return super().get_call_template(tuple(islice(plain, len(args))), dict(zip(kws, plain, strict=True)))

        def __call__(self, *given: Any) -> Any:
            if threading.get_ident() != interrupts.thread:
                return super().__call__(*given)
            interrupts.kernels += 1
            try:
                return super().__call__(*given)
            finally:
                interrupts.kernels -= 1
                interrupts.raised()

    return Holding


def _stamped_by_its_folder(compiled: Any) -> None:
    """Invalidate cached code when any module in the folder has changed: it may inline functions of its neighbours, while numba
    checks only the file of the function itself.
    """
    index = compiled._cache._cache_file
    own = index._source_stamp
    files = sorted(Path(compiled.py_func.__code__.co_filename).parent.glob("*.py"))
    index._source_stamp = own, tuple((file.name, file.stat().st_mtime, file.stat().st_size) for file in files)


def _with_readable_index(compiled: Any) -> None:
    """Treat cached code from an older version as missing if it names classes or modules that no longer exist.

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


def _quickly_loaded(compiled: Any) -> None:
    """Load cached code without first loading the whole numba compiler (0.4 s per process).

    The code needs numba's memory for arrays only. Where none is kept, numba loads the rest before it compiles.
    """
    runtime, kept = import_module("numba.core.runtime.nrt").rtsys, compiled._cache
    initialize, read, patient = runtime.initialize, kept._load_overload, kept._guard_against_spurious_io_errors

    def load(signature: Any, target_context: Any) -> Any:
        initialize(target_context)
        with patient():
            return read(signature, target_context)

    kept.load_overload = load


@cache
def _say_uncached() -> None:
    """Print once per process that the cache is not used."""
    print(
        "pipeplan: compiling anew: no cache folder is writable; set NUMBA_CACHE_DIR to one that is",
        file=sys.stderr,
    )
