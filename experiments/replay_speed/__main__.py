"""Replay speed: ops per CPU second of the three engines and of a plain-Python replay, measured in one run.

    python -m experiments.replay_speed [--json]
    python -m experiments.replay_speed --growth [--largest P M] [--out DIR]

1F1B, forward 1 s, backward 2 s, with and without a transfer of 0.1 s, and with the transfers of each boundary and direction in
turn on a channel of their own (contended). `--growth` replays ever larger pipelines, each in a
process of its own, and draws seconds and memory against ops. Absolute figures are this machine's; the ratios are what to compare.
"""

from __future__ import annotations

import argparse
import json
import sys

from experiments.replay_speed.engine_rates import GROWTH, SHAPES, growth, label, measure, one_size
from experiments.studies import add_shared, run_study
from experiments.terminal.exits import OK
from experiments.terminal.output import print_json, print_table, progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the study."""
    add_shared(parser, out="the growth's figure and table", folder="out/replay_speed")
    parser.add_argument(
        "--growth", action="store_true", help="measure growth up to 4,096 devices × 8,192 micro-batches"
    )
    parser.add_argument(
        "--largest", nargs=2, type=int, default=GROWTH[-1], metavar=("P", "M"), help="stop the growth there"
    )
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    if arguments.one:
        print(json.dumps(one_size(*arguments.one)))
        return OK
    if arguments.growth:
        return growth(arguments)
    rows = []
    with progress("measuring", len(SHAPES)) as report:
        for number, (devices, microbatches) in enumerate(SHAPES):
            rows.append(measure(devices, microbatches))
            report(number + 1)
    if arguments.json:
        print_json({"unit": "ops per CPU second", "schedule": "1f1b", "rows": rows})
        return OK
    names = [key for key in rows[0] if key.startswith("ops_per_second")]
    print_table(
        "Ops per CPU second, 1F1B",
        ("engine", *(f"p={row['devices']} m={row['microbatches']}" for row in rows)),
        [(label(name), *(f"{row[name]:,.0f}" for row in rows)) for name in names],
    )
    ratios = rows[0]["ratios_over_plain_python"]
    print_table(
        "Ratio over the plain-Python replay",
        ("engine", *(f"p={row['devices']} m={row['microbatches']}" for row in rows)),
        [(label(name), *(f"{row['ratios_over_plain_python'][name]:,.2f}" for row in rows)) for name in ratios],
    )
    return OK


if __name__ == "__main__":
    sys.exit(run_study("replay-speed"))
