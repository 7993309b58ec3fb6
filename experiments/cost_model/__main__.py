"""Cost model: how well the analytic seconds of a V100 match PipeDream's measured profiles.

    python -m experiments.cost_model [--profiles DIR] [--profiled-minibatch NAME=N] [--out DIR] [--json]

For each bundled profile, the analytic workload at the profile's mini-batch on accelerator `v100-sxm2` in fp32, beside
the measured seconds: totals (forward + backward of all layers) and shares by group of layers. A group is a layer with
parameters and the layers without that follow it, so that both graphs have the same groups in the same order. Left out
on both sides: Input nodes (they measure data loading) and the loss (the profiles have none).

Sentences. The profiles of GNMT record the tensor shapes of ONE batch (48 tokens in `gnmt`, 25 in `gnmt_large`), but seconds
that are means over a thousand batches of changing length. The classifier shows that the two do not belong together: its
forward in `gnmt` would run at 17.7 TFLOP/s, beyond the 15.7 of the card, and in `gnmt_large` at 8.5. Both networks
translate the same corpus (WMT16, recalled), so that both are predicted at one mean length, MEAN_TOKENS, which is fitted;
the errors at the recorded lengths are printed beside it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.compare.problem_options import add_profiled_minibatches
from experiments.cost_model.model_errors import (
    ACCELERATOR,
    CASES,
    EXIT_FAILURE,
    EXIT_OK,
    TARGET,
    as_json,
    compare_all,
    default_profiles,
    print_comparisons,
)
from experiments.studies import add_shared, run_study
from experiments.terminal.output import InputError, output_folder, print_json
from hardware_profiles import load_accelerator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the study."""
    parser.add_argument(
        "--profiles", type=Path, help="folder of graph.txt files (default: shared/data/pipedream_profiles)"
    )
    add_profiled_minibatches(parser, [case.profile for case in CASES])
    add_shared(parser, out="the figure")


def run(options: argparse.Namespace) -> int:
    """Compare; exit code 0 if every total is within the target, 1 if not, 4 for a bad input file."""
    folder = options.profiles or default_profiles()
    if folder is None:
        raise InputError("shared/data/pipedream_profiles is not beside this checkout; give --profiles DIR")
    try:
        comparisons = compare_all(folder, load_accelerator(ACCELERATOR), dict(options.profiled_minibatch))
    except ValueError as error:
        raise InputError(str(error)) from None
    if options.out:
        from experiments.cost_model.model_error_plots import draw
        from simulator import save

        save(draw(comparisons, ACCELERATOR), output_folder(options.out) / "cost_model")
    if options.json:
        print_json(as_json(comparisons))
    else:
        print_comparisons(comparisons)
    return EXIT_OK if all(abs(row.error) <= TARGET for row in comparisons) else EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(run_study("cost-model"))
