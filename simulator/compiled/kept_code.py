"""Kept code: where the machine code of kernels is kept and found again, so that nobody waits twice for the compiler."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from functools import cache
from glob import escape
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
)
from numba.core.runtime.nrt import rtsys

SHIPPED_PROCESSOR = "x86-64-v3"
"""What the code of a package is compiled for (processors since 2013), with the features of SHIPPED_FEATURES."""

SHIPPED_FEATURES = (
    "+64bit,+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,+sahf,"
    "+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave"
)


class _Unwritable(InTreeCacheLocator):  # type: ignore[misc]
    """Beside the module, where no place can be written: code that a package brought is read, and none is kept."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Unwritable | None:
        return cls(py_func, py_file) if os.path.exists(py_file) else None


class _Places(CompileResultCacheImpl):  # type: ignore[misc]
    """Numba's own places, in its order, and then none."""

    _locator_classes = [*CompileResultCacheImpl._locator_classes, _Unwritable]  # noqa: RUF012 - numba's own name


class _Index(IndexDataCacheFile):  # type: ignore[misc]
    """The code that is kept of one kernel, by signature and processor.

    Numba unpickles an index, with the types of its arguments, before it looks whether the source is still the same: one that
    names classes or modules that no longer exist is as none, as is one that cannot be read.
    """

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())
        except (AttributeError, ImportError, EOFError, OSError):
            return {}

    def save(self, key: Any, data: Any) -> None:
        """Keep code under a name of its own, which its source, signature and processor decide, then say so in the index.

        Numba numbers names, and writes the index first: of processes that compile at once one could read what another wrote.
        """
        if not self._load_index():  # what is there is of an older source
            for old in Path(self._cache_path).glob(f"{escape(self._index_name.removesuffix('.nbi'))}.*.nbc"):
                old.unlink(missing_ok=True)
        number = int.from_bytes(hashlib.sha256(repr((key, self._source_stamp)).encode()).digest()[:6])
        self._save_data(self._data_name(number), data)
        self._save_index(self._load_index() | {key: self._data_name(number)})

    def load(self, wanted: Any) -> Any:
        """The code for a key, or what was compiled for the same source and signature on a processor that this one includes."""
        signature, processor, source = wanted
        kept = self._load_index()
        if wanted not in kept:
            wanted = next(
                (one for one in kept if (one[0], one[2]) == (signature, source) and _includes(processor, one[1])), None
            )
        try:
            return None if wanted is None else self._load_data(kept[wanted])
        except OSError:  # removed since
            return None


class KernelCache(FunctionCache):  # type: ignore[misc]
    """The kept code of one kernel: what numba keeps, found where a package brought it, too.

    Code is written beside the module, or else into the user's cache folder (NUMBA_CACHE_DIR goes before both), and read
    there and beside the module: packages are installed with code in place, at times where nobody may write.
    """

    _impl_class = _Places

    def __init__(self, function: Callable[..., Any], unkept: Callable[[], None]) -> None:
        """unkept: called when code could not be written."""
        super().__init__(function)
        self.unkept = unkept
        module, base = Path(function.__code__.co_filename), self._impl.filename_base
        if module.exists():  # and not a cell of a notebook
            self._cache_file = _Index(self._cache_path, base, source_stamp(function))
        beside = str(module.parent / "__pycache__")
        self._brought = _Index(beside, base, self._cache_file._source_stamp) if beside != self._cache_path else None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel for one signature, or None; loaded without first loading the whole compiler (0.4 s).

        The code needs numba's memory for arrays only. Where none is kept, numba loads the rest before it compiles.
        """
        rtsys.initialize(target_context)
        wanted = self._index_key(sig, target_context.codegen())
        with self._guard_against_spurious_io_errors():
            for index in filter(None, (self._cache_file, self._brought)):
                if (kept := index.load(wanted)) is not None:
                    return self._impl.rebuild(target_context, kept)
        _say_compiling()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled kernel for one signature, or say that nothing can be kept."""
        try:
            super().save_overload(sig, data)
        except OSError:
            self.unkept()


@cache
def _say_compiling() -> None:
    """Tell who sits before the terminal, once per process, what the seconds are for."""
    if sys.stderr.isatty():
        print("pipeplan: compiling kernels that were not kept, for some seconds", file=sys.stderr)


def _includes(processor: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    """Whether this processor runs code that was compiled for another: (triple, name, features) each, as LLVM names them."""
    (triple, _, features), (other_triple, other_name, other_features) = processor, other
    return triple == other_triple and other_name == SHIPPED_PROCESSOR and _enabled(other_features) <= _enabled(features)


@cache
def _enabled(features: str) -> frozenset[str]:
    return frozenset(one for one in features.split(",") if one.startswith("+"))


def source_stamp(function: Callable[..., Any]) -> str:
    """A hash of all that the code of a kernel is made of, beside its own bytes: equal wherever and whenever it was installed.

    That is every module of its folder, the constants that it names, and the same of every kernel that it calls: numba compiles
    them in, and by itself looks at the kernel's own file only.
    """
    made_of = hashlib.sha256()
    for module in sorted(Path(function.__code__.co_filename).parent.glob("*.py")):
        state = module.stat()
        made_of.update(module.name.encode() + _content(module, state.st_mtime_ns, state.st_size))
    for name in sorted(_names(function.__code__)):
        used = function.__globals__.get(name)
        if isinstance(kept := getattr(used, "_cache", None), KernelCache):
            made_of.update(repr((name, kept._cache_file._source_stamp)).encode())
        elif isinstance(used, bool | int | float | str | tuple):
            made_of.update(repr((name, used)).encode())
        elif isinstance(used, np.ndarray):
            made_of.update(used.tobytes())
    return made_of.hexdigest()


def _names(code: CodeType) -> set[str]:
    """What a function and the functions in it name."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names, inner))


@cache
def _content(module: Path, changed: int, size: int) -> bytes:
    """A hash of a file, read again once it has changed."""
    return hashlib.sha256(module.read_bytes()).digest()
