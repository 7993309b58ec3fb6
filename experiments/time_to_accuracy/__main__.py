"""Time to accuracy: loss and accuracy against simulated seconds, for data parallelism and every pipeline method.

Two things are joined, and both must be kept in mind. WHAT IS LEARNED is real: a perceptron of 8 blocks on the 8 x 8
digits, trained under the order of ops and the weight versions of each method's timeline. WHAT TIME IT TAKES is
simulated: the same order with the seconds of BERT-large in 8 balanced stages, a mini-batch of 32, on a cluster. The
small network itself would be all call overhead. Data parallelism, GPipe and 1F1B train the same numbers. The order of ops
on a stage does not depend on the seconds, so that one training is dated on several clusters.

Every method has the same learning rate (Adam .002), chosen for none of them; the scale of the inputs was chosen after
results had been seen; XPipe rounds halves of its steps up. See `experiments.xpipe` for other rates and roundings.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.output import UsageError, progress, to_json
from experiments.terminal.report_tables import (
    STALE_WORDS,
    Cell,
    ReportTable,
    figure,
    fitting,
    marked,
    mean_and_deviation,
)
from experiments.time_to_accuracy.dated_training import (
    CASES,
    EVALUATE_EVERY,
    OTHER_CLUSTERS,
    MachineClock,
    target_record,
)
from experiments.training.data import DATA_SETS
from experiments.training.method_throughput import BATCH, DEVICES
from experiments.training.run import minibatches_per_epoch
from experiments.training.seed_grid import TrainingSetting, train_grid
from hardware_profiles import percent


def run(arguments: argparse.Namespace) -> Findings:
    """Train, and date what was trained on every cluster."""
    if not 0.0 < arguments.target < 1.0:
        raise UsageError(f"--target must be an accuracy between 0 and 1, got {arguments.target:g}")
    names = dict.fromkeys((arguments.cluster, *OTHER_CLUSTERS))
    clocks = {name: MachineClock(name, arguments.workload) for name in names}
    data = DATA_SETS["digits"]()
    setting = TrainingSetting(epochs=2 if arguments.quick else 10)
    seeds = range(2) if arguments.quick else arguments.seeds
    with progress("training") as report:
        grid = [(case, setting) for case in CASES]
        results = train_grid(grid, data, seeds, evaluate_every=EVALUATE_EVERY, jobs=arguments.jobs, report=report)
    done = results[0].each("seed")
    minibatches = setting.epochs * minibatches_per_epoch(data, setting.batch)
    dated = {
        name: [(result, clock.update_seconds(result.case, setting, minibatches)) for result in results]
        for name, clock in clocks.items()
    }
    document = {
        "quick": arguments.quick,
        "seeds": done,
        "interrupted": len(done) < len(seeds),
        "epochs": setting.epochs,
        "target_accuracy": arguments.target,
        "workload": arguments.workload,
        "learning_rate": setting.learning_rate,
        "clusters": {
            name: [
                {**target_record(result, seconds, arguments.target, minibatches // setting.epochs),
                 **clocks[name].memory(result.case)}
                for result, seconds in curves
            ]
            for name, curves in dated.items()
        },
    }  # fmt: skip

    def drawn(_: object) -> Made:
        from experiments.time_to_accuracy.learning_plots import target_figure, time_figure

        clock = f"{arguments.workload} on {DEVICES} devices of {arguments.cluster}, mini-batch {BATCH}"
        yield "time_to_accuracy", time_figure(dated[arguments.cluster], arguments.target, clock)
        yield "time_to_target", target_figure(document["clusters"], arguments.target)
        yield "time_to_accuracy.json", to_json(document) + "\n"

    return Findings(document, print_document, drawn)


TABLE = ReportTable(
    lambda found: (
        f"{found['workload']}'s seconds on {DEVICES} devices of {found['chosen']}; digits, Adam {found['learning_rate']:g}, "
        f"seeds {found['seeds'][0]} to {found['last']}; median epochs and seconds to "
        f"{percent(found['target_accuracy'], '.0f')} test accuracy"
    ),
    "rows",
    {
        "method": marked,
        "seeds there": "{seeds_at_target} of {seeds}",
        "epochs": figure("epochs_to_target", ".2f", missing="-"),
        "seconds": figure("seconds_to_target", ".1f", missing="-"),
        "s a mini-batch": "{seconds_per_minibatch:.3f}",
        "train loss": mean_and_deviation("train_loss", ".4f"),
        "test accuracy, %": mean_and_deviation("test_accuracy", ".1f", 100),
        "diverged": "{diverged}",
        "weight copies": "{weight_copies}",
        "error ratio": figure("prediction_error_ratio", ".3f", missing="-"),
        "peak GiB": fitting(figure("peak_memory_bytes", ".1f", 2.0**-30)),
    },
)


def _seconds_on(name: str) -> Cell:
    """Seconds to the target on a cluster, of a row that holds the rows of all clusters."""
    write = fitting(figure("seconds_to_target", ".1f", missing="-"))
    return lambda row: write(row[name])


def print_document(document: dict[str, Any]) -> None:
    """The table of the chosen cluster, the first, and seconds to the target on all of them."""
    if document["quick"]:
        print("QUICK RUN: 2 seeds, 2 epochs; the tables show their form, the figures prove nothing\n")
    chosen, *_ = names = list(document["clusters"])
    rows = document["clusters"][chosen]
    TABLE.print({**document, "rows": rows, "chosen": chosen, "last": document["seeds"][-1]})
    by_cluster = [
        {"label": one[0]["label"], "stale": one[0]["stale"], **dict(zip(names, one, strict=True))}
        for one in zip(*document["clusters"].values(), strict=True)
    ]
    ReportTable(
        "Median seconds to the target by cluster (of a plan that does not fit in its memory, too)",
        "rows",
        {"method": marked, **{name: _seconds_on(name) for name in names}},
    ).print({"rows": by_cluster})
    print(STALE_WORDS)
    print("Learned by a small perceptron, timed as a large network; one learning rate for all; see the module's text.")


if __name__ == "__main__":
    sys.exit(run_study("time-to-accuracy"))
