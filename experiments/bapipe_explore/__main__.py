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
from typing import Any

from experiments.bapipe_explore.exploration import measure
from experiments.bapipe_explore.exploration_tables import print_document
from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.output import to_json


def run(options: argparse.Namespace) -> Findings:
    """Run the studies."""
    return Findings(measure(options.quick), print_document, drawn)


def drawn(document: dict[str, Any]) -> Made:
    """The document and its figures."""
    from experiments.bapipe_explore.exploration_plots import figures

    yield "explore.json", to_json(document) + "\n"
    yield from figures(document)


if __name__ == "__main__":
    sys.exit(run_study("bapipe-explore"))
