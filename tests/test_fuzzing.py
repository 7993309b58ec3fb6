"""Every reader answers every file: what it holds, or what is wrong with it, in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli import main
from tests.fuzzing import COMMAND_LINES, READERS, Reader, fault, inputs, trial

MANY = 12_000
"""Files of the long check, over all readers."""


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_right_files_pass_and_mutants_differ(reader: Reader, tmp_path: Path) -> None:
    """The files that the mutants are made of are right, and the mutants are other files, the same ones every time."""
    path = tmp_path / f"file{reader.suffix}"
    for text in reader.right:
        path.write_bytes(text)
        assert fault(path) is None
        assert main(["check", str(path)]) == 0, text
    mutants = list(inputs(reader, 50))
    assert mutants == list(inputs(reader, 50))
    assert len(set(mutants) - set(reader.right)) > 30


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_mutants_end_in_one_line(reader: Reader, tmp_path: Path) -> None:
    """Sixty files that are nearly right: exit code 0 or 4, one printable line, no exception."""
    assert trial(reader, 60, tmp_path)["faults"] == []


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_many_mutants_end_in_one_line(reader: Reader) -> None:
    """A share of 12,000 files in a process of its own: no fault, never above 1 GB; the slowest of them is printed."""
    program = Path(__file__).with_name("fuzzing.py")
    words = [sys.executable, str(program), reader.name, str(MANY // len(READERS))]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=program.parents[1])
    found = json.loads(done.stdout)
    assert found["faults"] == []
    print(found["seconds"], found["slowest"])
    assert found["peak_bytes"] < 1e9


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMAND_LINES)
def test_no_value_of_an_option_is_too_much(command: str, tmp_path: Path) -> None:
    """Every option of every command with amounts that are none, or far too large: done, or one line, in bounded time."""
    (tmp_path / "graph.txt").write_bytes(next(one for one in READERS if one.suffix == ".txt").right[0])
    (tmp_path / "gemm.csv").write_text("m,n,k,forward_us,backward_us\n64,64,64,10,20\n")
    per_stage = ("forward", "input_gradient", "weight_gradient", "freed_at_input_gradient", "freed_at_weight_gradient")
    case = {"name": "two", "devices": 2, "stages": 2, "placement": "straight", "microbatches": 2, "transfer": 0}
    case |= {**{key: [1, 1] for key in per_stage}, "memory_limit": 4, "best_makespan": 8}
    (tmp_path / "optima.json").write_text(json.dumps([case]))
    if command == "profile":
        pytest.importorskip("torch")
    program = Path(__file__).with_name("fuzzing.py")
    words = [sys.executable, str(program), "options", command, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=program.parents[1])
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}
