"""Compile the kernels that commands run, on small problems: `python -m experiments.compile_kernels [--studies]`.

A package is built with what this keeps, so that no command waits for a compiler; run it again after a new numba. An editable
installation, which the tests run on, keeps those that only studies run, too.
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
    "simulate --schedule search --objective steady --stages 3 --microbatches 4 --forward 1,3,2 --backward 3 --transfer 0.4 "
    "--stash 1 --memory 2 --seconds 0.2",
    "simulate --schedule gpipe --stages 2 --microbatches 2 --forward 1 --backward 2 --engine recurrence",
    "plan --planner modern --workload alexnet --cluster pipedream-b:1 --devices 3 --batch 32",
    "plan --planner greedy --workload alexnet --cluster pipedream-b:1 --devices 3 --batch 32",
    "plan --planner pipedream --workload chain:4 --cluster fpga-mixed-4 --batch 4",
    "plan --planner exact-unequal --workload alexnet --cluster pipedream-b:1 --devices 3 --batch 32",
    "plan --planner unequal-nested --workload alexnet --cluster pipedream-b:1 --devices 3 --batch 32",
    "plan --planner largest-load --workload alexnet --cluster pipedream-b:1 --devices 3 --batch 32",
    "plan --planner mixed --workload gpt2 --cluster pipedream-b:1 --devices 3 --batch 8",
)


STUDIES = (
    "from experiments.piper.__main__ import compile_kernels; compile_kernels()",
    "from experiments.benchmarks.evaluator_speed import batched; batched(1e-3)",
    "from experiments.benchmarks.unequal_speed import PipelineSize, core_rates, measure; "
    "measure(PipelineSize(2, 4), 'roofline', 0, 1e-3, core_rates(1e-3))",
)
"""Statements that run the kernels of single studies."""


def compile_all(studies: bool = False) -> None:
    """Run every command, its output unseen, the others beside each other; one that fails ends this with what it said."""
    for command in FIRST:
        run(command)
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        list(workers.map(run, OTHERS))
        list(workers.map(run_statements, STUDIES if studies else ()))


def run(command: str) -> None:
    """A command in a process of its own."""
    _run(f"pipeplan {command}", "-m", "experiments.cli", *shlex.split(command))


def run_statements(statements: str) -> None:
    """Python statements in a process of their own."""
    _run(statements, "-c", statements)


def _run(name: str, *words: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: exit code {done.returncode}\n{done.stderr}")


if __name__ == "__main__":
    compile_all(studies="--studies" in sys.argv[1:])
