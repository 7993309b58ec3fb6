"""PipeDream growth: how the partitioner's CPU seconds grow with states, workers and levels.

`python -m experiments.pipedream_growth [--json] [--out FOLDER]`. Networks are synthetic, seeded chains, and a graph of
Inception-v3's shape; every search is run once to warm up the caches and then timed, the least of a few repeats.
"""

from __future__ import annotations

import argparse
import sys

from experiments.pipedream_growth.partitioner_growth import growth_exponent, measure, print_growth
from experiments.studies import add_shared, run_study
from experiments.terminal.output import output_folder, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the study."""
    add_shared(parser, out="the figure", quick="only the small searches of each study")


def run(options: argparse.Namespace) -> int:
    """Measure, print and draw."""
    folder = output_folder(options.out) if options.out else None
    rows = measure(options.quick)
    exponents = {
        f"{study}, {variant}": growth_exponent(
            [r for r in rows if (r["study"], r["variant"]) == (study, variant)], axis
        )
        for study, axis in (("states, flat", "states"), ("states, two levels", "states"), ("workers, flat", "workers"))
        for variant in ("paper", "script")
    }
    if options.json:
        print_json({"growth_exponents": exponents, "rows": rows})
    else:
        print_growth(rows)
        for name, exponent in exponents.items():
            print(f"{name}: CPU seconds grow as the power {exponent:.1f} at the largest sizes")
    if folder is not None:
        from experiments.pipedream_growth.partitioner_growth_plots import draw
        from simulator import save

        save(draw(rows), folder / "pipedream_growth")
    return 0


if __name__ == "__main__":
    sys.exit(run_study("pipedream-growth"))
