"""BaPipe explore: its schedules, its explorer and its claims, on GPU clusters and FPGA boards.

`python -m experiments.bapipe_explore [--out FOLDER] [--json] [--quick]`. Studies:
- schedules: formula, simulation and memory of 1F1B-AS, FBP-AS (shared and split lanes), 1F1B-SNO and 1F1B-SO over transfers
- plans: VGG-16, ResNet-50 and GNMT-8 on 2, 4, 8 V100 (pipedream-b) and on chains of 1 to 4 FPGA boards, by data parallelism,
  uniform GPipe, PipeDream (asynchronous and flushed) and BaPipe (its answer, and its best straight pipeline); where the rule of
  thumb and the simulation disagree; what splitting layers between boards adds
- claims: sweeps over link bandwidth and device memory on 8 V100, and over link bandwidth and DSP rate on 4 VCU118, for "up to
  3.2x" speedup over data parallelism and "4x" less memory, the only figures of the paper (arXiv 2012.12544) that are known
- depth: the largest L of GNMT-L that fits per method
Links and clocks of the paper's boards are unknown; those of the bundled files are assumed there, beside each number.
"""

from __future__ import annotations

import argparse
import sys

from experiments.bapipe_explore.exploration import measure, print_document
from experiments.studies import add_shared, run_study
from experiments.terminal.exits import INTERRUPTED, OK
from experiments.terminal.output import output_folder, print_json, to_json
from simulator import (
    write_atomically,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the study."""
    add_shared(parser, out="figures and explore.json", quick="VGG-16 on two devices only")


def run(options: argparse.Namespace) -> int:
    """Run the studies, print them, and draw them if a folder is given."""
    folder = output_folder(options.out) if options.out else None
    document = measure(options.quick)
    if folder is not None:
        from experiments.bapipe_explore.exploration_plots import draw_all

        write_atomically(folder / "explore.json", to_json(document) + "\n")
        draw_all(document, folder, interrupted=document["interrupted"])
    if options.json:
        print_json(document)
    else:
        print_document(document)
    return INTERRUPTED if document["interrupted"] else OK


if __name__ == "__main__":
    sys.exit(run_study("bapipe-explore"))
