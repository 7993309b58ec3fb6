"""Time to accuracy: loss and accuracy against simulated seconds, for data parallelism and every pipeline method.

    python -m experiments.time_to_accuracy [--out DIR] [--json] [--quick]

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

import numpy as np
from numpy.typing import NDArray

from experiments.studies import add_shared, run_study
from experiments.terminal.argument_types import count
from experiments.terminal.exits import INTERRUPTED, OK
from experiments.terminal.output import UsageError, output_folder, print_json, print_table, progress, to_json
from experiments.training.clocks import ClusterClock, method_order
from experiments.training.method_throughput import (
    BATCH,
    CLUSTER,
    DEVICES,
    WORKLOAD,
    balanced_stages,
    cluster_problem,
    data_parallel_plan,
)
from experiments.training.seed_grid import CaseResult, MethodCase, Setting, rule_with, train_grid
from simulator import LayerCosts, Plan, equal_microbatches, save, simulate, write_atomically
from simulator.training import DATA_SETS, minibatches_per_epoch

OTHER_CLUSTERS = ("dapple-c", "dgx-a100:1")
"""Clusters that the same trainings are dated on beside the chosen one: 10 Gb/s between V100, and NVSwitch between A100."""

EVALUATE_EVERY = 11
"""Updates between evaluations on the test samples: a quarter of an epoch of the digits."""

WARMUP = 110
"""Synchronous mini-batches of PipeMare's warm-up (T3): a quarter of 10 epochs."""

DATA_PARALLEL = "data parallel"

CASES = (
    MethodCase(DATA_PARALLEL, "synchronous", 1),
    MethodCase("GPipe T=4", "synchronous", 4, flushed="gpipe"),
    MethodCase("GPipe T=8", "synchronous", 8, flushed="gpipe"),
    MethodCase("1F1B T=8", "synchronous", 8, flushed="1f1b"),
    MethodCase("PipeDream T=1", "pipedream", 1),
    MethodCase("2BW T=8", "2bw", 8),
    MethodCase("SpecTrain v2 T=1", "spectrain-v2", 1),
    MethodCase("PipeOptim T=1", "pipeoptim", 1),
    MethodCase("PipeOptim T=4", "pipeoptim", 4),
    MethodCase("PipeMare T=1", "pipemare", 1),
    MethodCase("PipeMare T=4, warm-up", "pipemare", 4, rule_with("pipemare", warmup_updates=WARMUP), warmup=WARMUP),
    MethodCase("XPipe T=1", "xpipe", 1),
    MethodCase("XPipe T=2", "xpipe", 2),
    MethodCase("XPipe T=4", "xpipe", 4),
    MethodCase("XPipe T=8", "xpipe", 8),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the study."""
    quick = "2 seeds, 2 epochs: shows the form, proves nothing"
    add_shared(parser, out="figures and the document", quick=quick, seeds=10)
    parser.add_argument("--target", type=float, default=0.95, metavar="A", help="test accuracy to reach (default 0.95)")
    parser.add_argument("--workload", default=WORKLOAD, metavar="NAME", help=f"whose seconds (default {WORKLOAD})")
    parser.add_argument("--cluster", default=CLUSTER, metavar="NAME", help=f"on which machine (default {CLUSTER})")
    parser.add_argument("--jobs", type=count, metavar="J", help="processes (default: the cores)")


def run(arguments: argparse.Namespace) -> int:
    """Train, date, print and draw."""
    if not 0.0 < arguments.target < 1.0:
        raise UsageError(f"--target must be an accuracy between 0 and 1, got {arguments.target:g}")
    folder = output_folder(arguments.out) if arguments.out else None
    clocks = {
        name: MachineClock(name, arguments.workload) for name in dict.fromkeys((arguments.cluster, *OTHER_CLUSTERS))
    }
    data = DATA_SETS["digits"]()
    setting = Setting(epochs=2 if arguments.quick else 10)
    seeds = range(2) if arguments.quick else arguments.seeds
    with progress("training") as report:
        results = train_grid(
            [(case, setting) for case in CASES],
            data,
            seeds,
            evaluate_every=EVALUATE_EVERY,
            jobs=arguments.jobs,
            report=report,
        )
    done = results[0].seeds
    interrupted = len(done) < len(seeds)
    minibatches = setting.epochs * minibatches_per_epoch(data, setting.batch)
    dated = {
        name: [(result, clock.update_seconds(result.case, setting, minibatches)) for result in results]
        for name, clock in clocks.items()
    }
    document = {
        "quick": arguments.quick,
        "seeds": done,
        "interrupted": interrupted,
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
    if folder is not None:
        from experiments.training.training_plots import target_figure, time_figure

        clock = f"{arguments.workload} on {DEVICES} devices of {arguments.cluster}, mini-batch {BATCH}"
        clock += ", INTERRUPTED" if interrupted else ""
        save(time_figure(dated[arguments.cluster], arguments.target, clock), folder / "time_to_accuracy")
        save(target_figure(document["clusters"], arguments.target), folder / "time_to_target")
        write_atomically(folder / "time_to_accuracy.json", (to_json(document) + "\n").encode())
    if arguments.json:
        print_json(document)
    else:
        print_document(document, arguments.cluster)
    return INTERRUPTED if interrupted else OK


class MachineClock:
    """Seconds and memory of the methods for one workload on one cluster.

    Made once a cluster: partitions the workload; then dates orders of updates, and tells what fits.
    """

    def __init__(self, cluster: str, workload: str) -> None:
        self.problem = cluster_problem(DEVICES, workload, cluster)
        self.stages = balanced_stages(self.problem)
        if len(self.stages) != DEVICES:
            raise UsageError(f"--workload {workload}: {len(self.stages)} stages, {DEVICES} are needed")
        self.clock = ClusterClock(self.problem, self.stages, LayerCosts(self.problem))

    def update_seconds(self, case: MethodCase, setting: Setting, minibatches: int) -> NDArray[np.float64]:
        """When each update was done, float64 [minibatches]."""
        if case.label == DATA_PARALLEL:
            seconds = simulate(self.problem, data_parallel_plan(self.problem)).iteration_seconds
            return np.arange(1, minibatches + 1, dtype=np.float64) * seconds
        found = method_order(
            case.method,
            setting.stages,
            case.per_minibatch,
            minibatches,
            self.clock,
            flushed=case.flushed,
            warmup=min(case.warmup, minibatches - 1),
        )
        return np.maximum.accumulate(found.order.update_seconds)

    def memory(self, case: MethodCase) -> dict[str, Any]:
        """Peak bytes of the fullest device, and whether it fits; of the asynchronous part where there is a warm-up."""
        plan = data_parallel_plan(self.problem)
        if case.label != DATA_PARALLEL:
            schedule = case.flushed if case.method == "synchronous" else case.method
            plan = Plan("clock", schedule, self.stages, equal_microbatches(BATCH, case.per_minibatch))
        outcome = simulate(self.problem, plan, engine="recurrence", layer_costs=self.clock.layer_costs)
        return {"peak_memory_bytes": outcome.fullest.peak_bytes, "fits": outcome.fits}


def target_record(
    result: CaseResult, seconds: NDArray[np.float64], target: float, updates_per_epoch: int
) -> dict[str, Any]:
    """Epochs and seconds until the test accuracy is first at the target: median over the seeds that reach it, and how many do."""
    reached = [
        int(run.evaluated_updates[np.argmax(run.evaluated_accuracy >= target)])
        for run in result.runs
        if (run.evaluated_accuracy >= target).any()
    ]
    record = result.record()
    return {
        **{key: value for key, value in record.items() if key not in ("train_losses", "test_accuracies")},
        "seconds_per_minibatch": float(seconds[-1] / len(seconds)),
        "seeds_at_target": len(reached),
        "epochs_to_target": float(np.median(reached)) / updates_per_epoch if reached else None,
        "seconds_to_target": float(np.median(seconds[np.array(reached) - 1])) if reached else None,
    }


def print_document(document: dict[str, Any], chosen: str) -> None:
    """The table of the chosen cluster, and seconds to the target on the others."""
    target, seeds = document["target_accuracy"], document["seeds"]
    if document["interrupted"]:
        print(f"INTERRUPTED: only the seeds {seeds[0]} to {seeds[-1]} are trained\n")
    if document["quick"]:
        print("QUICK RUN: 2 seeds, 2 epochs; the tables show their form, the figures prove nothing\n")
    rows = document["clusters"][chosen]
    print_table(
        f"{document['workload']}'s seconds on {DEVICES} devices of {chosen}; digits, Adam {document['learning_rate']:g}, "
        f"seeds {seeds[0]} to {seeds[-1]}; median epochs and seconds to {target:.0%} test accuracy",
        ("method", "seeds there", "epochs", "seconds", "s a mini-batch", "train loss", "test accuracy, %", "diverged",
         "weight copies", "error ratio", "peak GiB"),
        [
            (
                row["label"],
                f"{row['seeds_at_target']} of {len(seeds)}",
                _figure(row["epochs_to_target"], 2),
                _figure(row["seconds_to_target"], 1),
                f"{row['seconds_per_minibatch']:.3f}",
                f"{row['train_loss_mean']:.4f} ± {row['train_loss_deviation']:.4f}",
                f"{100 * row['test_accuracy_mean']:.1f} ± {100 * row['test_accuracy_deviation']:.1f}",
                str(row["diverged"]),
                str(row["weight_copies"]),
                _figure(row["prediction_error_ratio"], 3),
                f"{row['peak_memory_bytes'] / 2**30:.1f}" + ("" if row["fits"] else " (does not fit)"),
            )
            for row in rows
        ],
    )  # fmt: skip
    names = list(document["clusters"])
    print_table(
        "Median seconds to the target by cluster (* the plan does not fit in its memory)",
        ("method", *names),
        [
            (
                row["label"],
                *(
                    _figure(here["seconds_to_target"], 1) + ("" if here["fits"] else "*")
                    for here in (document["clusters"][name][number] for name in names)
                ),
            )
            for number, row in enumerate(rows)
        ],
    )
    print("Learned by a small perceptron, timed as a large network; one learning rate for all; see the module's text.")


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(run_study("time-to-accuracy"))
