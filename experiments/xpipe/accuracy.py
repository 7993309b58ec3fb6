"""Accuracy: what is trained for XPipe's claims, and how the claims are judged."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.terminal.output import print_table
from experiments.training.method_comparison import BLOCK, LEVEL, compared, directions, order_of, replicated, seed_blocks
from experiments.training.method_throughput import (
    BATCH,
    CLUSTER,
    DEVICES,
    WORKLOAD,
)
from experiments.training.paired_tests import paired_difference
from experiments.training.seed_grid import CaseResult, MethodCase, Setting, rule_with, train_grid
from simulator import save
from simulator.training import DATA_SETS

COMPARABLE = 0.01
"""Test accuracies are called comparable where the 95 % interval of the difference lies within this."""

SYNCHRONOUS = MethodCase("synchronous", "synchronous", 4)
HEADLINE = Setting("adam", 0.002)
SETTINGS = (
    Setting("adam", 0.0005),
    Setting("adam", 0.001),
    HEADLINE,
    Setting("adam", 0.004),
    Setting("sgd", 0.1),
    Setting("sgd", 0.3),
)
"""`sgd` averages its gradients (momentum .9): 0.1 is PyTorch's 0.01."""

CASES = (
    SYNCHRONOUS,
    MethodCase("XPipe T=4", "xpipe", 4),
    MethodCase("naive T=4", "naive", 4),
    MethodCase("2BW T=8", "2bw", 8),
    MethodCase("XPipe T=1", "xpipe", 1),
    MethodCase("PipeOptim T=1", "pipeoptim", 1),
    MethodCase("SpecTrain v2 T=1", "spectrain-v2", 1),
    MethodCase("PipeDream T=1", "pipedream", 1),
    MethodCase("naive T=1", "naive", 1),
)
MORE_CASES = (
    MethodCase("XPipe T=2", "xpipe", 2),
    MethodCase("XPipe T=8", "xpipe", 8),
    MethodCase("XPipe exact s T=4", "xpipe-exact", 4),
    MethodCase("PipeOptim T=4", "pipeoptim", 4),
    MethodCase("SpecTrain v1 T=1", "spectrain-v1", 1),
    MethodCase("PipeMare T=1", "pipemare", 1),
)
"""At the headline setting only."""

ORDER = ("synchronous", "XPipe T=4", "naive T=4", "XPipe T=1", "PipeOptim T=1", "naive T=1")
"""Expected to rise in train loss at the headline setting."""

PREDICTING = ("xpipe", "xpipe-exact", "spectrain-v1", "spectrain-v2", "pipeoptim")
"""Methods whose forwards use predicted weights."""

SPECTRAIN_TABLE = {
    "VGG on CIFAR-10": {"synchronous": 91.10, "naive T=1": 88.31, "PipeDream T=1": 88.91, "SpecTrain v2 T=1": 89.38},
    "Transformer on IMDb": {
        "synchronous": 81.12,
        "naive T=1": 77.26,
        "PipeDream T=1": 78.11,
        "SpecTrain v2 T=1": 78.79,
    },
}
"""Test accuracy, %, on 4 GPUs: SpecTrain's published table, from public notes; its data-parallel run is synchronous."""

PRINTED_PAIRS = (
    ("synchronous", "SpecTrain v2 T=1"),
    ("SpecTrain v2 T=1", "PipeDream T=1"),
    ("PipeDream T=1", "naive T=1"),
    ("SpecTrain v2 T=1", "naive T=1"),
    ("synchronous", "naive T=1"),
)
"""Better and worse method in both of its columns."""


def write(document: dict[str, Any], folder: Path) -> None:
    """Figures and the document."""
    from experiments.terminal.output import to_json
    from experiments.training.training_plots import accuracy_figure, difference_figure, throughput_figure
    from simulator import write_atomically

    headline = [
        row
        for row in document["accuracy"]
        if (row["optimizer"], row["learning_rate"]) == (HEADLINE.optimizer, HEADLINE.learning_rate)
    ]
    problem = f"{WORKLOAD}, {DEVICES} devices of {CLUSTER}, mini-batch {BATCH}"
    what = f"{HEADLINE.stages} stages, {HEADLINE.label}, {document['epochs']} epochs"
    what += ", INTERRUPTED" if document["interrupted"] else ""
    save(throughput_figure(document["balanced"], document["cluster"], problem), folder / "xpipe_throughput")
    save(accuracy_figure(headline, what), folder / "xpipe_accuracy")
    save(difference_figure(document["accuracy"]), folder / "xpipe_difference")
    write_atomically(folder / "xpipe.json", (to_json(document) + "\n").encode())


# ---- accuracy --------------------------------------------------------------------------------------------------------


def grid_parts(quick: bool, headline_only: bool, epochs: int) -> dict[str, list[tuple[MethodCase, Setting]]]:
    """What is trained, by the section of the document that it is for."""
    settings = [replace(one, epochs=epochs) for one in ((HEADLINE,) if quick or headline_only else SETTINGS)]
    headline = replace(HEADLINE, epochs=epochs)
    four_stages = [replace(setting, epochs=epochs, stages=4) for setting in (Setting("sgd", 0.1), HEADLINE)]
    return {
        "accuracy": [
            (case, setting)
            for setting in settings
            for case in (*CASES, *(MORE_CASES if setting.label == HEADLINE.label else ()))
        ],
        "published": [
            (case, setting)
            for setting in four_stages
            if not headline_only
            for case in CASES
            if case.label in SPECTRAIN_TABLE["VGG on CIFAR-10"]
        ],
        "readings": [] if headline_only else [(case, headline) for case in sensitivity_cases()],
        "inputs_0_to_1": [(case, replace(headline, unit_inputs=True)) for case in CASES if case.label in ORDER],
    }


def train_parts(
    parts: dict[str, list[tuple[MethodCase, Setting]]],
    seeds: Sequence[int],
    jobs: int | None,
    report: Callable[[int, str], None],
) -> dict[str, list[CaseResult]]:
    """Train all parts as one grid, so that an interrupt leaves every part with the same seeds."""
    whole = [pair for part in parts.values() for pair in part]
    results = iter(train_grid(whole, DATA_SETS["digits"](), seeds, jobs=jobs, report=report))
    return {name: list(itertools.islice(results, len(part))) for name, part in parts.items()}


def judged(trained: dict[str, list[CaseResult]]) -> dict[str, Any]:
    """The sections of the document on accuracy: records, orders, readings, directions, claims."""
    accuracy, shifted = trained["accuracy"], trained["inputs_0_to_1"]
    headline = [one for one in accuracy if one.setting.label == HEADLINE.label]
    eight = [one for one in accuracy if one.setting.label in ("adam 0.001", HEADLINE.label, "sgd 0.1")]
    blocks = seed_blocks(accuracy[0].seeds)
    orders = {
        name: {block: order_of(results, ORDER, chosen) for block, chosen in blocks.items()}
        for name, results in (("headline_order", headline), ("inputs_0_to_1", shifted))
    }
    records = compared(accuracy)
    return {
        "accuracy": records,
        "orders": orders,
        "replication": {name: replicated(order) for name, order in orders.items()},
        "prediction_error": prediction_errors(headline),
        "inputs_0_to_1_records": compared(shifted),
        "readings": [result.record() for result in trained["readings"]],
        "spectrain_directions": directions([*trained["published"], *eight], SPECTRAIN_TABLE, PRINTED_PAIRS),
    }


def prediction_errors(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """Error ratio of every method that predicts: mean over the seeds, its spread, 95 % interval, and p of the ratio 1."""
    rows = []
    for result in results:
        ratios = result.error_ratios
        if result.case.method not in PREDICTING or not np.isfinite(ratios).any():
            continue
        test = paired_difference([1.0] * len(ratios), ratios)
        rows.append(
            {
                "label": result.case.label,
                "ratio": 1.0 + test.mean,
                "low": 1.0 + test.low,
                "high": 1.0 + test.high,
                "least": float(np.nanmin(ratios)),
                "most": float(np.nanmax(ratios)),
                "p": test.p,
                "seeds": test.pairs,
            }
        )
    return rows


def sensitivity_cases() -> list[MethodCase]:
    """XPipe T = 4 with every choice that the paper's text leaves open."""

    return [
        MethodCase("XPipe T=4, halves up, floor (default)", "xpipe", 4),
        MethodCase("XPipe T=4, halves to even", "xpipe", 4, rule_with("xpipe", forward_rounding="half-even")),
        MethodCase("XPipe T=4, forward floored", "xpipe", 4, rule_with("xpipe", forward_rounding="floor")),
        MethodCase("XPipe T=4, backward rounded", "xpipe", 4, rule_with("xpipe", backward_rounding="round")),
        MethodCase("XPipe T=4, literal bias correction", "xpipe", 4, rule_with("xpipe", correction="literal")),
        MethodCase("XPipe T=4, synchronous-equivalent s", "xpipe-exact", 4),
        MethodCase("naive T=4", "naive", 4),
    ]


# ---- claims ----------------------------------------------------------------------------------------------------------


def claims(document: dict[str, Any]) -> list[dict[str, str]]:
    """The abstract's claims, judged on these runs alone."""
    cluster = {row["label"]: row for row in document["cluster"]}
    worst = max(abs(row["speedup"] / row["formula"] - 1.0) for row in document["balanced"])

    def rate(label: str) -> float:
        return float(cluster[label]["samples_per_second"])

    found = [
        {
            "claim": "higher throughput than GPipe, ideally (T+N-1)/T",
            "verdict": "holds"
            if all(rate(f"XPipe T={t}") > rate(f"GPipe T={t}") for t in (4, 8, 16))
            else "does not hold",
            "evidence": f"equal stages: at most {worst:.1e} from the formula; {WORKLOAD}: "
            + ", ".join(
                f"{rate(f'XPipe T={t}') / rate(f'GPipe T={t}'):.2f}x at T={t} (formula {(t + DEVICES - 1) / t:.2f})"
                for t in (4, 8, 16)
            ),
        }
    ]
    xpipe = {label: row for label, row in cluster.items() if label.startswith("XPipe")}
    for other in ("PipeDream T=1", "SpecTrain v2 T=1"):
        ratios = {label: rate(label) / rate(other) for label in xpipe}
        found.append(
            {
                "claim": f"higher throughput than {other.removesuffix(' T=1')}, same mini-batch",
                "verdict": "holds" if min(ratios.values()) > 1.0 else "holds for some T" if max(ratios.values()) > 1.001
                else "does not hold",
                "evidence": ", ".join(
                    f"{label} {ratio:.3f}x at {xpipe[label]['peak_memory_bytes'] / cluster[other]['peak_memory_bytes']:.2f}x "
                    "the memory"
                    for label, ratio in ratios.items()
                ),
            }
        )  # fmt: skip
        fitting = [label for label in cluster if label.startswith(other) and cluster[label]["fits"]]
        best, mine = (max(labels, key=rate, default=None)
                      for labels in (fitting, [label for label in xpipe if cluster[label]["fits"]]))  # fmt: skip
        if best is not None and mine is not None:
            found.append(
                {
                    "claim": f"higher throughput than {other.removesuffix(' T=1')}, the most that fits in memory",
                    "verdict": "holds" if rate(mine) > rate(best) else "does not hold",
                    "evidence": f"{mine} {rate(mine):.2f} samples/s, {best} {rate(best):.2f}: {rate(mine) / rate(best):.3f}x",
                }
            )
    found += accuracy_claims(document["accuracy"]) + prediction_claims(document["prediction_error"])
    return [*found, order_claim(document["replication"]["headline_order"])]


def accuracy_claims(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """XPipe's accuracy beside the synchronous one, setting by setting."""
    found = []
    for record in records:
        if record["label"] not in ("XPipe T=4", "XPipe T=1") or "test_accuracy_difference" not in record:
            continue
        low, high = record["test_accuracy_difference_low"], record["test_accuracy_difference_high"]
        sure = record["test_accuracy_p_holm"] < LEVEL
        comparable = low > -COMPARABLE and high < COMPARABLE
        if sure and record["test_accuracy_difference"] > 0:
            verdict = "better"
        elif comparable:
            verdict = "comparable"
        else:
            verdict = "worse" if sure else "not shown"
        found.append(
            {
                "claim": f"very comparable (even slightly better) accuracy: {record['label']}, "
                f"{record['optimizer']} {record['learning_rate']:g}",
                "verdict": verdict,
                "evidence": f"test accuracy {100 * record['test_accuracy_difference']:+.2f} points "
                f"[{100 * low:+.2f}, {100 * high:+.2f}], p {record['test_accuracy_p_holm']:.3g}; "
                f"train loss {record['train_loss_difference']:+.4f}, p {record['train_loss_p_holm']:.3g}",
            }
        )
    return found


def prediction_claims(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Whether prediction brings the weights of XPipe's forwards nearer to those of synchronous training."""
    found = []
    for row in rows:
        if not row["label"].startswith("XPipe T="):
            continue
        nearer = "holds" if row["ratio"] < 1.0 else "does not hold: it leads away"
        found.append(
            {
                "claim": f"prediction brings the weights nearer to the synchronous ones: {row['label']}",
                "verdict": nearer if row["p"] < LEVEL else "not shown",
                "evidence": f"distance {row['ratio']:.3f} times that without prediction [{row['low']:.3f}, {row['high']:.3f}], "
                f"seed by seed {row['least']:.3f} to {row['most']:.3f}, p {row['p']:.2g}",
            }
        )
    return found


def order_claim(steps: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Which steps of the order of train losses replicate."""
    replicating = [f"{step['from']} < {step['to']}" for step in steps if step["replicates"]]
    return {
        "claim": "train loss rises: " + " < ".join([ORDER[0], *(step["to"] for step in steps)]),
        "verdict": "replicates"
        if len(replicating) == len(steps)
        else "replicates in part"
        if replicating
        else "not shown",
        "evidence": f"of {steps[0]['blocks']} blocks of {BLOCK} seeds; replicating steps: {', '.join(replicating) or 'none'}",
    }


# ---- print -----------------------------------------------------------------------------------------------------------


def print_document(document: dict[str, Any]) -> None:
    """Tables to stdout."""
    seeds = document["seeds"]
    if document["interrupted"]:
        print(f"INTERRUPTED: only the seeds {seeds[0]} to {seeds[-1]} are trained\n")
    if document["quick"]:
        print("QUICK RUN: 3 seeds, 2 epochs; the tables show their form, the figures prove nothing\n")
    print_table(
        "XPipe over GPipe, balanced stages",
        ("N", "T", "speedup", "(T+N-1)/T"),
        [
            (f"{r['stages']}", f"{r['microbatches_per_minibatch']}", f"{r['speedup']:.4f}", f"{r['formula']:.4f}")
            for r in document["balanced"]
        ],
    )
    print_table(
        f"{WORKLOAD} on {DEVICES} devices of {CLUSTER}, mini-batch of {BATCH} unless said",
        ("method", "samples/s", "s a mini-batch", "peak GiB", "weight copies"),
        [
            (
                r["label"],
                f"{r['samples_per_second']:.2f}",
                f"{r['seconds_per_minibatch']:.4f}",
                f"{r['peak_memory_bytes'] / 2**30:.2f}" + ("" if r["fits"] else " (does not fit)"),
                f"{r['most_weight_copies']:.0f}",
            )
            for r in document["cluster"]
        ],
    )
    print_table(
        f"Training on the digits, seeds {seeds[0]} to {seeds[-1]} (± standard deviation; difference from synchronous, paired)",
        (
            "setting",
            "method",
            "train loss",
            "test accuracy, %",
            "diverged",
            "Δ accuracy, points [95 %]",
            "p (Holm)",
            "error ratio",
        ),
        [_accuracy_row(record) for record in document["accuracy"]],
    )
    for name, inputs in (("headline_order", "-1..1"), ("inputs_0_to_1", "0..1")):
        _print_order(f"inputs {inputs}", document["orders"][name], document["replication"][name])
    print_table(
        "Distance of the predicted weights from the synchronous ones, times that of the current weights (above 1: led away)",
        ("method", "ratio", "95 %", "least and most of a seed", "p"),
        [
            (
                row["label"],
                f"{row['ratio']:.3f}",
                f"[{row['low']:.3f}, {row['high']:.3f}]",
                f"{row['least']:.3f} to {row['most']:.3f}",
                f"{row['p']:.2g}",
            )
            for row in document["prediction_error"]
        ],
    )
    print_table(
        "XPipe T = 4 with other readings of the paper",
        ("variant", "train loss", "of 5 seeds", "test accuracy, %", "error ratio"),
        [
            (
                r["label"],
                _mean(r, "train_loss", 1, 4),
                f"{np.mean(r['train_losses'][:5]):.4f}",
                _mean(r, "test_accuracy", 100, 1),
                _ratio(r),
            )
            for r in document["readings"]
        ],
    )
    print_table(
        "Directions beside SpecTrain's published table (points of test accuracy; p not corrected)",
        ("setting", "better", "worse", *SPECTRAIN_TABLE, "here", "p", "verdict"),
        [
            (
                r["setting"],
                r["better"],
                r["worse"],
                *(f"{100 * r[f'published, {name}']:+.2f}" for name in SPECTRAIN_TABLE),
                f"{100 * r['here']:+.2f}",
                f"{r['p']:.3g}",
                r["verdict"],
            )
            for r in document["spectrain_directions"]
        ],
    )
    print_table("Claims", ("claim", "verdict", "evidence"), [tuple(claim.values()) for claim in document["claims"]])
    print(
        "The five-seed order rests on halves rounding up; the scale of the inputs was chosen after results had been seen."
    )


def _print_order(what: str, orders: dict[str, Any], steps: Sequence[dict[str, Any]]) -> None:
    print_table(
        f"Train loss by block of seeds, {what} (mean ± standard deviation)",
        ("seeds", *ORDER, "rises"),
        [
            (
                block.removeprefix("seeds "),
                *(f"{order['mean_train_loss'][m]:.4f} ± {order['train_loss_deviation'][m]:.4f}" for m in ORDER),
                "yes" if order["rises"] else "NO",
            )
            for block, order in orders.items()
        ],
    )
    print_table(
        f"Steps of the order, {what}, over all seeds (paired; p corrected by Holm)",
        (
            "from",
            "to",
            "difference [95 %]",
            "p (Holm)",
            "seeds that rise",
            f"blocks of {BLOCK} that rise",
            "replicates",
        ),
        [
            (
                step["from"],
                step["to"],
                f"{step['difference']:+.4f} [{step['low']:+.4f}, {step['high']:+.4f}]",
                f"{step['p_holm']:.2g}",
                f"{step['rising_seeds']:.0%}",
                f"{step['rising_blocks']} of {step['blocks']}",
                "yes" if step["replicates"] else "one block only" if step["blocks"] < 2 else "NO",
            )
            for step in steps
        ],
    )


def _mean(record: dict[str, Any], name: str, scale: float, digits: int) -> str:
    mean, deviation = record[f"{name}_mean"], record[f"{name}_deviation"]
    if mean is None or not np.isfinite(mean):
        return "not finite"
    return f"{scale * mean:.{digits}f} ± {scale * deviation:.{digits}f}"


def _ratio(record: dict[str, Any]) -> str:
    ratio = record["prediction_error_ratio"]
    return "" if ratio is None or not np.isfinite(ratio) else f"{ratio:.3f}"


def _accuracy_row(record: dict[str, Any]) -> tuple[str, ...]:
    difference, p = "", ""
    if "test_accuracy_difference" in record:
        low, high = record["test_accuracy_difference_low"], record["test_accuracy_difference_high"]
        difference = f"{100 * record['test_accuracy_difference']:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
        p = f"{record['test_accuracy_p_holm']:.3g}"
    return (
        f"{record['optimizer']} {record['learning_rate']:g}",
        record["label"],
        _mean(record, "train_loss", 1, 4),
        _mean(record, "test_accuracy", 100, 1),
        str(record["diverged"]),
        difference,
        p,
        _ratio(record),
    )
