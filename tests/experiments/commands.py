"""Command lines run in this process: what they end with and print, the one line of those that are refused, and what several
studies are tested with.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.cli import main
from experiments.training.data import DataSet
from simulator.results.figures import figure_files


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def ended(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], run: Callable[[Sequence[str]], int] = main
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `pipeplan words…`, or of what is run in its place."""
    try:
        code = run(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return (code, *capsys.readouterr())


def instead(usual: Sequence[str], *words: str) -> list[str]:
    """A usual command in which these words stand in place of what it says of their options."""
    said, kept = {word for word in words if word.startswith("--")}, list[str]()
    dropped = False
    for word in usual:
        dropped = word in said if word.startswith("--") else dropped
        kept += [word] * (not dropped)
    return [*kept, *words]


def refused(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], code: int = 2, run: Callable[[Sequence[str]], int] = main
) -> str:
    """The one line on stderr of a command that ends with this exit code and prints nothing; of a bad file it names one of those
    given.
    """
    found, out, err = ended(capsys, words, run)
    assert (found, out, err.count("\n")) == (code, "", 1), (words, found, out, err)
    files = [Path(part).name for word in words for part in re.split("[:=]", word) if "/" in part or "." in part]
    assert code != 4 or not files or any(name in err.partition(": ")[2] for name in files), (words, err)
    return err


def no_picture(figure: Figure, path: Path | str) -> tuple[Path, ...]:
    """In place of `simulator.save`: files without pictures, of the names that these would have."""
    files = figure_files(path)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return files


def small_gpt(folder: Path) -> str:
    """The path of a file that describes a GPT of two small blocks."""
    path, sizes = (
        folder / "config.json",
        {"n_layer": 2, "n_embd": 256, "n_head": 2, "n_positions": 64, "vocab_size": 512},
    )
    path.write_text(json.dumps({"model_type": "gpt2", **sizes}), encoding="utf-8")
    return str(path)


def noisy_clusters(name: str) -> DataSet:
    """Three noisy clusters in place of a data set: 96 samples to train on, 24 to test with."""
    draw = np.random.default_rng(11)
    labels = draw.integers(0, 3, 120)
    x = draw.normal(size=(120, 5)) + 2.0 * labels[:, None]
    return DataSet(name, 3, x[:96], labels[:96], x[96:], labels[96:])


def processes_asked_for(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[int]:
    """How many processes a module asks joblib for on a machine of two cores, call by call; what they would do is done in this
    one.
    """
    asked: list[int] = []

    def alone(n_jobs: int, **more: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
        asked.append(n_jobs)
        return lambda parts: (function(*given) for function, given, _ in parts)

    monkeypatch.setattr(module, "Parallel", alone)
    monkeypatch.setattr(module, "cpu_count", lambda: 2)
    return asked
