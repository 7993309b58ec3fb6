"""Kept code of kernels: found wherever a package was installed and for whichever processor runs it, never for another source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from simulator.compiled import kept_code
from simulator.compiled.kept_code import SHIPPED_FEATURES, SHIPPED_PROCESSOR, source_stamp
from simulator.compiled.numba_kernels import kernel

ROOT = Path(__file__).resolve().parents[2]

CALLED = "from simulator import kernel\n\n@kernel()\ndef double(value):\n    return 2 * value\n"

FRESH = "print(double(21), double.stats.cache_hits.total(), double.stats.cache_misses.total())"


def run(folder: Path, script: str, **variables: str) -> str:
    """What Python prints that imports `double` from `kept` in a folder."""
    words = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(folder)!r}]; from kept import double; {script}"
    given = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", words], env=given | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="this processor is not x86-64")
def test_code_of_a_package_is_read_where_it_was_installed_and_may_not_be_written(tmp_path: Path) -> None:
    """Compiled in one folder for any newer processor, moved, its files touched; found by another processor, kept elsewhere."""
    built, installed, own = tmp_path / "built", tmp_path / "installed", tmp_path / "own"
    built.mkdir()
    (built / "kept.py").write_text(CALLED, encoding="utf-8")
    shipped = {"NUMBA_CPU_NAME": SHIPPED_PROCESSOR, "NUMBA_CPU_FEATURES": SHIPPED_FEATURES}
    assert run(built, FRESH, **shipped) == "42 0 1"
    built.rename(installed)
    os.utime(installed / "kept.py", (1, 1))
    kept = {path.name: path.read_bytes() for path in (installed / "__pycache__").glob("*.nb?")}
    assert run(installed, f"double(0.5); {FRESH}", NUMBA_CACHE_DIR=str(own)) == "42 1 1"
    assert {path.name: path.read_bytes() for path in (installed / "__pycache__").glob("*.nb?")} == kept
    old = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": "+sse4.2,+cx16,+popcnt"}
    assert run(installed, FRESH, NUMBA_CACHE_DIR=str(own), **old) == "42 0 1"
    (installed / "kept.py").write_text(CALLED.replace("2 *", "value + 1 *"), encoding="utf-8")
    assert run(installed, FRESH, NUMBA_CACHE_DIR=str(own)) == "42 0 1"


@pytest.mark.parametrize(
    ("processor", "other", "runs"),
    [
        (("linux", "newer", "+a,+b,-c"), ("linux", SHIPPED_PROCESSOR, "+a,-c"), True),
        (("linux", "newer", "+a,-b"), ("linux", SHIPPED_PROCESSOR, "+a,+b"), False),
        (("linux", "newer", "+a,+b"), ("windows", SHIPPED_PROCESSOR, "+a"), False),
        (("linux", "newer", "+a,+b"), ("linux", "older", "+a"), False),
    ],
)
def test_a_processor_runs_the_code_of_a_package_that_needs_no_more(
    processor: tuple[str, str, str], other: tuple[str, str, str], runs: bool
) -> None:
    """A name may stand for more than its features say: only that of packages is taken."""
    assert kept_code._includes(processor, other) == runs


def test_processes_that_compile_at_once_mix_up_no_code(tmp_path: Path) -> None:
    """Two that read the index before either wrote it, and one whose source is newer: what is found is what was kept for it."""
    numbers, words = (("int64",), ("linux", "any", ""), ("", "")), (("str",), ("linux", "any", ""), ("", ""))
    first, second = (kept_code._Index(str(tmp_path), "kernel", "source") for _ in range(2))
    second.save(words, "of words")
    (index,) = tmp_path.glob("*.nbi")
    alone = index.read_bytes()
    index.unlink()
    first.save(numbers, "of numbers")
    index.write_bytes(alone)
    second.save(words, "of words")
    assert second.load(numbers) is None
    assert second.load(words) == "of words"
    first.save(numbers, "of numbers")
    assert [second.load(one) for one in (numbers, words)] == ["of numbers", "of words"]
    newer = kept_code._Index(str(tmp_path), "kernel", "newer source")
    assert newer.load(numbers) is None
    newer.save(numbers, "of the newer source")
    assert newer.load(numbers) == "of the newer source"
    (code,) = tmp_path.glob("kernel.*.nbc")  # that of the older source goes
    code.unlink()
    assert newer.load(numbers) is None, "the index is written, the code not yet"


def made(folder: Path, text: str, **names: Any) -> Any:
    """The kernel `outer` of a module in a folder of its own."""
    folder.mkdir(exist_ok=True)
    path = folder / "module.py"
    path.write_text(text, encoding="utf-8")
    module = ModuleType("module")
    vars(module).update(names)
    exec(compile(text, str(path), "exec"), vars(module))
    return vars(module)["outer"]


@pytest.mark.parametrize("changed", ["body", "neighbour", "number", "array", "inner", "nothing"])
def test_a_stamp_changes_with_all_that_is_compiled_in(changed: str, tmp_path: Path) -> None:
    """The kernel's folder, the numbers and arrays that it names, and kernels of other folders that it calls."""
    outer = "def outer(value):\n    return [inner(value) * NUMBER + one for one in ARRAY]\n"
    inner = "def outer(value):\n    return value + STEP\n"

    def stamp(before: bool) -> str:
        def now(what: str) -> bool:
            return what == changed and not before

        called = kernel()(made(tmp_path / "other", inner, STEP=2 if now("inner") else 1))
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / "neighbour.py").write_text("ONE = 2" if now("neighbour") else "ONE = 1", encoding="utf-8")
        text = outer.replace("+ one", "- one") if now("body") else outer
        array = np.array([1.0, 3.0 if now("array") else 2.0])
        names = {"NUMBER": 4 if now("number") else 3, "ARRAY": array, "inner": called}
        return source_stamp(made(tmp_path / "own", text, **names))

    assert stamp(before=True) == stamp(before=True)
    assert (stamp(before=True) == stamp(before=False)) == (changed == "nothing")


def test_who_waits_before_a_terminal_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiling is told to a terminal, and to nothing else."""
    for terminal, lines in ((False, 0), (True, 1)):
        kept_code._say_compiling.cache_clear()
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=terminal: shown)
        kept_code._say_compiling()
        kept_code._say_compiling()
        assert capsys.readouterr().err.count("compiling kernels") == lines


def test_code_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk stops no kernel; who made it hears of it."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    told: list[str] = []
    cache = kept_code.KernelCache(source_stamp, lambda: told.append("unkept"))
    monkeypatch.setattr(kept_code.FunctionCache, "save_overload", full)
    cache.save_overload(None, None)
    assert told == ["unkept"]
