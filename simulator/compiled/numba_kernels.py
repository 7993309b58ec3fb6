"""Kernels: the decorator of every numba-compiled function."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import islice
from types import FrameType
from typing import Any, TypeVar

from numba import njit, types

from simulator.compiled.garbage import no_garbage_collection

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(*, inner: bool = False, borrows: bool = False, **options: Any) -> Callable[[Function], Function]:
    """`numba.njit(cache=True, **options)`, or without a cache if no cache folder is writable.

    A kernel is called by Python and by other kernels: it gets no door for C, which would be a tenth of the seconds of compiling.
    inner: only other kernels call it; without a door for Python a short one is compiled in half the time
    borrows: it makes and returns no array, and so counts no references to those that it takes out of tuples, which takes longer
        than most steps: numba refuses one that makes an array, and `Holding` one that returns any
    """

    options = {"no_cfunc_wrapper": True, "no_cpython_wrapper": inner, "_nrt": not borrows, **options}

    def decorate(function: Function) -> Function:
        compiled = _kept(function, options)
        with suppress(AttributeError, TypeError):
            (_closed if inner else _held)(compiled)
        return compiled  # type: ignore[no-any-return]

    return decorate


def _kept(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A kernel whose compiled code is kept, by names that numba keeps to itself: a version without them keeps it as it does.

    Numba refuses to decorate where it can write nowhere (a container's user without a home), or where there is no file.
    """
    try:
        from simulator.compiled.kept_code import KernelCache

        compiled = njit(**options)(function)
        compiled._cache = KernelCache(function, _say_unkept)
    except (AttributeError, ImportError, TypeError, RuntimeError):
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:
            _say_unkept()
            return njit(**options)(function)
    return compiled


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
                entry = super().compile(sig)
            returned = (str(one.signature.return_type) for one in self.overloads.values())
            if not self.targetoptions.get("_nrt", True) and any("array(" in one for one in returned):
                raise TypeError(f"kernel {self.py_func.__name__} returns an array that it only borrows")
            return entry

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


@cache
def _say_unkept() -> None:
    """Print once per process that the cache is not used."""
    print(
        "pipeplan: compiling anew: no cache folder is writable; set NUMBA_CACHE_DIR to one that is",
        file=sys.stderr,
    )
