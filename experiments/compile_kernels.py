"""Compile the kernels that usual commands run, on small problems: `python -m experiments.compile_kernels`.

A package is built with what this keeps, so that a first command waits for no compiler; run it again after a new numba.
"""

from __future__ import annotations

import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from experiments.cli import main

COMMANDS = (
    "compare --no-figures --workload alexnet --cluster pipedream-b:1 --devices 4 --batch 64",
    "compare --no-figures --workload gpt2 --cluster dgx-a100:1 --devices 4 --batch 8",
    "simulate --schedule 1f1b --stages 4 --microbatches 8 --forward 1 --backward 2",
    "simulate --schedule zb-h1 --stages 4 --microbatches 8 --forward 1 --backward 1 --weight 1 --transfer 0.1",
)


def compile_all() -> None:
    """Run every command, its output unseen; an error ends it with the command's exit code."""
    for command in COMMANDS:
        shown = StringIO()
        with redirect_stdout(shown), redirect_stderr(shown):
            code = main(shlex.split(command))
        if code:
            sys.exit(f"pipeplan {command}: exit code {code}\n{shown.getvalue()}")


if __name__ == "__main__":
    compile_all()
