"""XPipe: which claims of its abstract hold here: throughput, memory, accuracy over seeds, prediction error.

Throughput. XPipe's steady seconds of a mini-batch against GPipe's on balanced stages, beside (T+N-1)/T; then BERT-large
on 8 V100 (cluster `dapple-b:8`), a mini-batch of 32 sequences, with predictions and updates as ops: samples per second
and peak memory of every method. PipeDream and SpecTrain send whole mini-batches (T = 1), as their papers do.

Accuracy. 8 stages, one block each, on the 8 x 8 digits: the same seeds (initial weights, order of the samples) for
every method; the order of ops from the simulator's own timeline. Differences from synchronous training are tested seed
by seed (sign-flip permutation test, Holm's correction over the methods of a setting).

Replication. `--seeds A:B` trains the seeds A to B-1; the order of methods is judged over the first five, over every
twenty in turn, and over all of them: a step that rises in one block of twenty and falls in the next has not replicated.

Prediction. Its error ratio is the distance of the weights that a forward uses from those of synchronous training, over the
distance of the weights that it would have used without prediction: above 1, prediction leads away from synchronous training.

What to keep in mind of the figures. The network is a small perceptron, not VGG or a transformer. With N = 8 and T = 4
XPipe's forward step of stage 0 is a half, (T + N - 2) / T = 2.5: that halves round up is this project's choice, and the
order of methods over FIVE seeds rests on it. The scale of the inputs (-1..1) was chosen after results had been seen.
The section `sensitivity` trains with other roundings, with the literal bias correction, and with inputs of 0..1.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.output import progress, to_json
from experiments.training.method_throughput import (
    BATCH,
    CLUSTER,
    DEVICES,
    WORKLOAD,
    balanced_rows,
    cluster_problem,
    cluster_rows,
)
from experiments.xpipe.abstract_claims import claims
from experiments.xpipe.accuracy import HEADLINE, grid_parts, judged, train_parts
from experiments.xpipe.accuracy_tables import print_document


def run(arguments: argparse.Namespace) -> Findings:
    """Measure, train, judge."""
    epochs = 2 if arguments.quick else HEADLINE.epochs
    document: dict[str, Any] = {"quick": arguments.quick, "epochs": epochs}
    with progress("XPipe") as report:
        report(0, "throughput")
        document["balanced"] = balanced_rows((2, 4, 8), (1, 2, 4, 8, 16))
        document["cluster"] = cluster_rows(cluster_problem())
        seeds = range(3) if arguments.quick else arguments.seeds
        trained = train_parts(grid_parts(arguments.quick, arguments.headline, epochs), seeds, arguments.jobs, report)
    done = trained["accuracy"][0].each("seed")
    document |= {"seeds": done, "interrupted": len(done) < len(seeds)}
    document |= judged(trained)
    document["claims"] = claims(document)
    return Findings(document, print_document, drawn)


def drawn(document: dict[str, Any]) -> Made:
    """Figures and the document."""
    from experiments.xpipe.xpipe_plots import accuracy_figure, difference_figure, throughput_figure

    setting = HEADLINE.optimizer, HEADLINE.learning_rate
    headline = [row for row in document["accuracy"] if (row["optimizer"], row["learning_rate"]) == setting]
    problem = f"{WORKLOAD}, {DEVICES} devices of {CLUSTER}, mini-batch {BATCH}"
    yield "xpipe_throughput", throughput_figure(document["balanced"], document["cluster"], problem)
    what = f"{HEADLINE.stages} stages, {HEADLINE.label}, {document['epochs']} epochs"
    yield "xpipe_accuracy", accuracy_figure(headline, what)
    yield "xpipe_difference", difference_figure(document["accuracy"])
    yield "xpipe.json", to_json(document) + "\n"


if __name__ == "__main__":
    sys.exit(run_study("xpipe"))
