"""Rules of kernels: they run where no folder takes their compiled code, and one decorator makes them all."""

from __future__ import annotations

import ast
import ctypes
import gc
import importlib.util
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from simulator.compiled import numba_kernels as kernels

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("hardware_profiles", "simulator", "planners", "experiments")

KERNELS = """
from simulator import kernel

@kernel()
def double(value):
    return 2 * value

@kernel(error_model="numpy")
def inverse(value):
    return 1.0 / value

print(double(21), inverse(0.0))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python in `folder` for a user who can keep compiled code nowhere: no cache of numba's own, and a home that is no folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    environment |= {"HOME": os.devnull, "PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(folder)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_kernels_compile_without_a_place_for_a_cache(tmp_path: Path) -> None:
    """A file called `__pycache__` stops root too: both kernels run as told and hold interrupts; one line says so."""
    (tmp_path / "__pycache__").touch()
    (tmp_path / "kernels.py").write_text(KERNELS, encoding="utf-8")
    report = "print(type(kernels.double).__name__)"
    done = run(tmp_path, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import kernels; {report}")
    assert (done.returncode, done.stdout) == (0, "42 inf\nHolding\n")
    assert done.stderr.count("\n") == 1
    assert "NUMBA_CACHE_DIR" in done.stderr


def double(value: int) -> int:
    """What some of these kernels do."""
    return 2 * value


def imported(path: Path) -> Any:
    """The module of a file, anew."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_kernels_call_an_inner_kernel() -> None:
    """Python is refused, before and after a kernel has called it."""

    @kernels.kernel(inner=True)
    def doubled(value: float) -> float:
        return 2 * value

    @kernels.kernel()
    def quadrupled(value: float) -> float:
        return doubled(doubled(value))

    for value in (21, 1.5):
        with pytest.raises(TypeError, match="only kernels call the kernel doubled"):
            doubled(value)
        assert quadrupled(value) == 4 * value


def test_a_kernel_that_borrows_arrays_gives_none_away() -> None:
    """It works with those that it takes out of a tuple, and is refused where it makes one or returns one."""

    @kernels.kernel(borrows=True)
    def added(pair: Any) -> float:
        return pair[0][0] + pair[1][0]

    @kernels.kernel(borrows=True)
    def same(one: Any) -> Any:
        return one

    @kernels.kernel(borrows=True)
    def made(pair: Any) -> float:
        return np.zeros(2)[0] + pair[0][0]

    pair = np.ones(1), np.full(1, 2.0)
    before = [sys.getrefcount(one) for one in pair]
    assert added(pair) == 3.0
    assert [sys.getrefcount(one) for one in pair] == before
    with pytest.raises(TypeError, match="kernel same returns an array that it only borrows"):
        same(pair[0])
    with pytest.raises(numba.core.errors.NumbaError):
        made(pair)


def test_constants_share_the_code_of_all_values() -> None:
    """A kernel that others call with 0, 1, True and what they compute is compiled once for whole numbers, once for booleans."""

    @kernels.kernel(inner=True)
    def negated(value: Any) -> Any:
        return not value

    @kernels.kernel()
    def counted(value: int, flag: bool) -> int:
        return negated(0) + negated(1) + negated(value) + negated(True) + negated(False) + negated(flag)

    assert counted(2, True) == 2
    assert len(negated.signatures) == 2  # type: ignore[attr-defined]


DOUBLE = "from simulator import kernel\n\n@kernel()\ndef double(value):\n    return 2 * value\n"


def kept(path: Path) -> bool:
    """Whether the compiled code of a file's kernel `double` was found where it is kept, and not made anew."""
    double = imported(path).double
    assert double(21) == 42
    hits, misses = double.stats.cache_hits.total(), double.stats.cache_misses.total()
    assert hits + misses == 1
    return bool(hits)


def test_a_changed_neighbour_makes_compiled_code_old(tmp_path: Path) -> None:
    """Kept code may hold functions of other modules of its folder: a change of any of them is a change of the source."""
    source, neighbour = tmp_path / "held.py", tmp_path / "neighbour.py"
    source.write_text(DOUBLE, encoding="utf-8")
    neighbour.write_text("one = 1\n", encoding="utf-8")
    assert [kept(source), kept(source)] == [False, True]
    neighbour.write_text("one, two = 1, 2\n", encoding="utf-8")
    assert [kept(source), kept(source)] == [False, True]


def named_what_is_gone(index: Path) -> None:
    """The index becomes one of an older version, of types in a module of that version."""
    index.write_bytes(pickle.dumps(numba.__version__) + b"cno_such_module\nTotals\n.")


def without_its_code(index: Path) -> None:
    """The index names files which are gone."""
    for one in index.parent.glob("*.nbc"):
        one.unlink()


@pytest.mark.parametrize("broken", [named_what_is_gone, without_its_code])
def test_an_index_that_leads_to_nothing_is_as_none(broken: Callable[[Path], None], tmp_path: Path) -> None:
    """Code is made anew, and another index follows."""
    path = tmp_path / "left.py"
    path.write_text(DOUBLE, encoding="utf-8")
    assert not kept(path)
    (index,) = Path(numba.config.CACHE_DIR or tmp_path).rglob("left.double-*.nbi")
    broken(index)
    assert [kept(path), kept(path)] == [False, True]


def test_kept_code_is_loaded_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that finds a kernel's compiled code imports none of the functions that numba can compile."""
    path = tmp_path / "kept_kernels.py"
    path.write_text(KERNELS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    importlib.import_module(path.stem)
    report = "print(double.stats.cache_hits.total(), 'numba.np.arraymath' in sys.modules)"
    words = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]; from kept_kernels import double; {report}"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "42 inf\n1 False\n"


@pytest.mark.parametrize("lacking", ["caching.InTreeCacheLocator", "runtime.nrt.rtsys"])
def test_a_numba_with_other_internals_keeps_code_as_it_does(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a name that is numba's own affair is missing, kernels run, and their code is kept as numba keeps it."""
    monkeypatch.delattr(f"numba.core.{lacking}")
    monkeypatch.delitem(sys.modules, "simulator.compiled.kept_code")
    doubled = kernels.kernel()(double)
    assert doubled(21) == 42
    assert type(doubled._cache).__module__ == "numba.core.caching"  # type: ignore[attr-defined]


def test_where_no_numba_keeps_code_kernels_run_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other internals, and a function of no file."""
    monkeypatch.delattr("numba.core.caching.InTreeCacheLocator")
    monkeypatch.delitem(sys.modules, "simulator.compiled.kept_code")
    said = []
    monkeypatch.setattr(kernels, "_say_unkept", lambda: said.append("unkept"))
    made: dict[str, Any] = {}
    exec("def double(value):\n    return 2 * value", made)
    assert kernels.kernel()(made["double"])(21) == 42
    assert said == ["unkept"]


@pytest.mark.slow
def test_a_command_plans_without_a_place_for_a_cache(tmp_path: Path) -> None:
    """A whole search of a package whose folders take nothing: the plan on stdout, one line on stderr."""
    for name in FLOORS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [one for one in tmp_path.rglob("*") if one.is_dir()]:
        (folder / "__pycache__").touch()
    words = ("plan", "--workload", "chain:4", "--cluster", "pipedream-b", "--devices", "2", "--batch", "4")
    done = run(tmp_path, "-m", "experiments.cli", *words, "--planner", "pipedream", "--json")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("planning with")]  # on a slow machine
    assert len(said) == 1
    assert "NUMBA_CACHE_DIR" in said[0]


def test_one_decorator_makes_every_kernel() -> None:
    """No other module takes numba's own, whose cache ends the command where it cannot be written."""
    takers = {
        str(path.relative_to(ROOT))
        for name in FLOORS
        for path in (ROOT / name).rglob("*.py")
        if "numba" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        and node.module == "numba"
        and {"njit", "jit"} & {a.name for a in node.names}
    }
    assert takers == {"simulator/compiled/numba_kernels.py"}


def test_no_garbage_is_collected_while_a_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it compiles or cannot; then garbage is collected as before."""

    @numba.njit
    def doubled(value: Any) -> Any:
        return 2 * value

    kernels._held(doubled)
    compile_extra, collected = numba.core.compiler.compile_extra, []

    def compiling(*given: Any, **named: Any) -> Any:
        collected.append(gc.isenabled())
        return compile_extra(*given, **named)

    monkeypatch.setattr("numba.core.compiler.compile_extra", compiling)
    assert doubled(21) == 42
    assert gc.isenabled()
    with pytest.raises(numba.TypingError):
        doubled(None)
    assert (collected, gc.isenabled()) == ([False, False], True)


def test_an_interrupt_waits_for_the_end_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGINT while a kernel runs or is compiled is raised behind it, once: neither numba nor LLVM sees it."""
    interrupt = ctypes.CDLL(None)["raise"]
    interrupt.argtypes = (ctypes.c_int,)
    number = int(signal.SIGINT)

    @numba.njit
    def interrupted(values: Any) -> Any:
        interrupt(number)
        return values, values

    kernels._held(interrupted)  # without a cache, which takes no function of C
    compile_extra = numba.core.compiler.compile_extra
    usual = signal.signal(signal.SIGINT, kernels.interrupts)  # a process in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted(np.zeros(2))
        assert not kernels.interrupts.came

        compiled = []

        def compiling(*given: Any, **named: Any) -> Any:
            signal.raise_signal(number)
            compiled.append(given)
            return compile_extra(*given, **named)

        monkeypatch.setattr("numba.core.compiler.compile_extra", compiling)
        with pytest.raises(KeyboardInterrupt):
            interrupted(np.zeros((2, 2)))
        assert (len(compiled), kernels.interrupts.kernels, kernels.interrupts.came) == (1, 0, False)
        assert len(interrupted.signatures) == 2
    finally:
        signal.signal(signal.SIGINT, usual)


def test_interrupts_are_deferred_where_they_are_pythons_own() -> None:
    """By the main thread; a program's own handler stays."""
    usual = signal.getsignal(signal.SIGINT)
    try:
        for handler in (signal.default_int_handler, signal.SIG_IGN):
            signal.signal(signal.SIGINT, handler)
            with ThreadPoolExecutor(1) as other:
                assert other.submit(kernels._Interrupts).exception() is None
            assert signal.getsignal(signal.SIGINT) == handler
            own = kernels._Interrupts()
            assert signal.getsignal(signal.SIGINT) == (handler if handler is signal.SIG_IGN else own)
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_kernel_of_another_thread_raises_no_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came to the main thread stays there."""
    monkeypatch.setattr(kernels.interrupts, "came", True)
    doubled = kernels.kernel()(double)
    with ThreadPoolExecutor(1) as other:
        found = other.submit(doubled, 21)
    assert found.exception() is None
    assert found.result() == 42
    assert kernels.interrupts.came
    with pytest.raises(KeyboardInterrupt):
        doubled(21)
