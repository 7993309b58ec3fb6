"""Accuracy tables: XPipe's study for a person to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments.terminal.report_tables import (
    STALE_WORDS,
    Cell,
    ReportTable,
    Row,
    either,
    figure,
    fitting,
    marked,
    mean_and_deviation,
    share,
)
from experiments.training.method_comparison import BLOCK
from experiments.training.method_throughput import BATCH, CLUSTER, DEVICES, WORKLOAD
from experiments.xpipe.accuracy import ORDER, SPECTRAIN_TABLE


def _difference(record: Row) -> str:
    """Points of test accuracy over the synchronous case, and their interval."""
    name = "test_accuracy_difference"
    if name not in record:
        return ""
    mean, low, high = (100 * record[name + part] for part in ("", "_low", "_high"))
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


TRAINED: dict[str, Cell] = {
    "train loss": mean_and_deviation("train_loss", ".4f"),
    "test accuracy, %": mean_and_deviation("test_accuracy", ".1f", 100),
    "error ratio": figure("prediction_error_ratio", ".3f"),
}
"""Columns of whatever was trained."""

THROUGHPUT = (
    ReportTable(
        "XPipe over GPipe, balanced stages",
        "balanced",
        {
            "N": "{stages}",
            "T": "{microbatches_per_minibatch}",
            "speedup": "{speedup:.4f}",
            "(T+N-1)/T": "{formula:.4f}",
        },
    ),
    ReportTable(
        f"{WORKLOAD} on {DEVICES} devices of {CLUSTER}, mini-batch of {BATCH} unless said",
        "cluster",
        {
            "method": marked,
            "samples/s": "{samples_per_second:.2f}",
            "s a mini-batch": "{seconds_per_minibatch:.4f}",
            "peak GiB": fitting(figure("peak_memory_bytes", ".2f", 2.0**-30)),
            "weight copies": "{most_weight_copies:.0f}",
        },
    ),
)

ACCURACY = ReportTable(
    "Training on the digits, seeds {seeds[0]} to {last} (± standard deviation; difference from synchronous, paired)",
    "accuracy",
    {
        "setting": "{optimizer} {learning_rate:g}",
        "method": marked,
        "train loss": TRAINED["train loss"],
        "test accuracy, %": TRAINED["test accuracy, %"],
        "diverged": "{diverged}",
        "Δ accuracy, points [95 %]": _difference,
        "p (Holm)": figure("test_accuracy_p_holm", ".3g"),
        "error ratio": TRAINED["error ratio"],
    },
)


def _named(method: str) -> str:
    """A method of ORDER or SPECTRAIN_TABLE, marked where it updates with stale weights."""
    return marked({"label": method, "stale": method != "synchronous"})


def _loss(method: str) -> Cell:
    return lambda order: f"{order['mean_train_loss'][method]:.4f} ± {order['train_loss_deviation'][method]:.4f}"


ORDER_TABLES = (
    ReportTable(
        "Train loss by block of seeds, {what} (mean ± standard deviation)",
        "orders",
        {"seeds": "{block}", **{_named(method): _loss(method) for method in ORDER}, "rises": either("rises", no="NO")},
    ),
    ReportTable(
        "Steps of the order, {what}, over all seeds (paired; p corrected by Holm)",
        "steps",
        {
            "from": lambda step: _named(step["from"]),
            "to": lambda step: _named(step["to"]),
            "difference [95 %]": "{difference:+.4f} [{low:+.4f}, {high:+.4f}]",
            "p (Holm)": "{p_holm:.2g}",
            "seeds that rise": share("rising_seeds", ".0f"),
            f"blocks of {BLOCK} that rise": "{rising_blocks} of {blocks}",
            "replicates": lambda step: (
                "yes" if step["replicates"] else "one block only" if step["blocks"] < 2 else "NO"
            ),
        },
    ),
)

OTHERS = (
    ReportTable(
        "Distance of the predicted weights from the synchronous ones, times that of the current weights (above 1: led away)",
        "prediction_error",
        {
            "method": marked,
            "ratio": "{ratio:.3f}",
            "95 %": "[{low:.3f}, {high:.3f}]",
            "least and most of a seed": "{least:.3f} to {most:.3f}",
            "p": "{p:.2g}",
        },
    ),
    ReportTable(
        "XPipe T = 4 with other readings of the paper",
        "readings",
        {
            "variant": marked,
            "train loss": TRAINED["train loss"],
            "of 5 seeds": lambda record: f"{np.mean(record['train_losses'][:5]):.4f}",
            "test accuracy, %": TRAINED["test accuracy, %"],
            "error ratio": TRAINED["error ratio"],
        },
    ),
    ReportTable(
        "Directions beside SpecTrain's published table (points of test accuracy; p not corrected)",
        "spectrain_directions",
        {
            "setting": "{setting}",
            "better": lambda row: _named(row["better"]),
            "worse": lambda row: _named(row["worse"]),
            **{name: figure(f"published, {name}", "+.2f", 100) for name in SPECTRAIN_TABLE},
            "here": figure("here", "+.2f", 100),
            "p": "{p:.3g}",
            "verdict": "{verdict}",
        },
    ),
    ReportTable("Claims", "claims", {"claim": "{claim}", "verdict": "{verdict}", "evidence": "{evidence}"}),
)


def _orders(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The order of train losses under both scales of the inputs, as documents of ORDER_TABLES."""
    for name, inputs in (("headline_order", "-1..1"), ("inputs_0_to_1", "0..1")):
        blocks = document["orders"][name].items()
        orders = [{"block": block.removeprefix("seeds "), **order} for block, order in blocks]
        yield {"what": f"inputs {inputs}", "orders": orders, "steps": document["replication"][name]}


def print_document(document: dict[str, Any]) -> None:
    """Tables to stdout."""
    if document["quick"]:
        print("QUICK RUN: 3 seeds, 2 epochs; the tables show their form, the figures prove nothing\n")
    for table in (*THROUGHPUT, ACCURACY):
        table.print({**document, "last": document["seeds"][-1]})
    for order in _orders(document):
        for table in ORDER_TABLES:
            table.print(order)
    for table in OTHERS:
        table.print(document)
    print(STALE_WORDS)
    print(
        "The five-seed order rests on halves rounding up; the scale of the inputs was chosen after results had been seen."
    )
