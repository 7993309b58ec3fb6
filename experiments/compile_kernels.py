"""Compile the kernels that commands run, on small problems: `python -m experiments.compile_kernels`.

A package is built with what this keeps, so that no command waits for a compiler; run it again after a new numba.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

FIRST = (
    "compare --no-figures --workload alexnet --cluster pipedream-b:1 --devices 4 --batch 64",
    "compare --no-figures --workload gpt2 --cluster dgx-a100:1 --devices 4 --batch 8",
)
"""Commands whose kernels the others share."""

OTHERS = (
    "simulate --schedule zb-h1 --stages 4 --microbatches 8 --forward 1 --backward 1 --weight 1 --transfer 0.1",
    "simulate --schedule search --objective steady --stages 3 --microbatches 4 --forward 2 --backward 2 --weight 1 --seconds 0.2",
    "plan --planner modern --workload alexnet --cluster pipedream-b:1 --devices 3 --batch 32",
    "plan --planner exact-unequal --workload alexnet --cluster pipedream-b:1 --devices 3 --batch 32",
    "plan --planner unequal-nested --workload alexnet --cluster pipedream-b:1 --devices 3 --batch 32",
    "plan --planner largest-load --workload alexnet --cluster pipedream-b:1 --devices 3 --batch 32",
    "plan --planner mixed --workload gpt2 --cluster pipedream-b:1 --devices 3 --batch 8",
)


def compile_all() -> None:
    """Run every command, its output unseen, the others beside each other; one that fails ends this with what it said."""
    for command in FIRST:
        run(command)
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        list(workers.map(run, OTHERS))


def run(command: str) -> None:
    """A command in a process of its own."""
    words = [sys.executable, "-m", "experiments.cli", *shlex.split(command)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"pipeplan {command}: exit code {done.returncode}\n{done.stderr}")


if __name__ == "__main__":
    compile_all()
