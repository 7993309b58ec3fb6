"""Abstract claims: what XPipe's abstract says, judged on one run of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.training.method_comparison import BLOCK, LEVEL
from experiments.training.method_throughput import DEVICES, WORKLOAD
from experiments.xpipe.accuracy import ORDER

COMPARABLE = 0.01
"""Test accuracies are called comparable where the 95 % interval of the difference lies within this."""


def claims(document: dict[str, Any]) -> list[dict[str, str]]:
    """The abstract's claims, judged on these runs alone."""
    cluster = {row["label"]: row for row in document["cluster"]}
    found = [gpipe_claim(document["balanced"], cluster)]
    for other in ("PipeDream T=1", "SpecTrain v2 T=1"):
        found += asynchronous_claims(cluster, other)
    found += accuracy_claims(document["accuracy"]) + prediction_claims(document["prediction_error"])
    return [*found, order_claim(document["replication"]["headline_order"])]


def _claim(claim: str, verdict: str, evidence: str) -> dict[str, str]:
    return {"claim": claim, "verdict": verdict, "evidence": evidence}


def gpipe_claim(balanced: Sequence[dict[str, Any]], cluster: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """XPipe's samples per second over GPipe's at the same T, beside the formula."""
    worst = max(abs(row["speedup"] / row["formula"] - 1.0) for row in balanced)
    ratios = {
        t: cluster[f"XPipe T={t}"]["samples_per_second"] / cluster[f"GPipe T={t}"]["samples_per_second"]
        for t in (4, 8, 16)
    }
    beside = ", ".join(f"{ratio:.2f}x at T={t} (formula {(t + DEVICES - 1) / t:.2f})" for t, ratio in ratios.items())
    return _claim(
        "higher throughput than GPipe, ideally (T+N-1)/T",
        "holds" if min(ratios.values()) > 1.0 else "does not hold",
        f"equal stages: at most {worst:.1e} from the formula; {WORKLOAD}: {beside}",
    )


def asynchronous_claims(cluster: Mapping[str, dict[str, Any]], other: str) -> list[dict[str, str]]:
    """XPipe beside a method of whole mini-batches: with the same mini-batch, and each with the most that fits in memory."""

    def rate(label: str) -> float:
        return float(cluster[label]["samples_per_second"])

    name, peak = other.removesuffix(" T=1"), cluster[other]["peak_memory_bytes"]
    ratios = {label: rate(label) / rate(other) for label in cluster if label.startswith("XPipe")}
    holds = (
        "holds"
        if min(ratios.values()) > 1.0
        else "holds for some T"
        if max(ratios.values()) > 1.001
        else "does not hold"
    )
    evidence = ", ".join(
        f"{label} {ratio:.3f}x at {cluster[label]['peak_memory_bytes'] / peak:.2f}x the memory"
        for label, ratio in ratios.items()
    )
    found = [_claim(f"higher throughput than {name}, same mini-batch", holds, evidence)]
    fitting = [label for label in cluster if cluster[label]["fits"]]
    best = max((label for label in fitting if label.startswith(other)), key=rate, default=None)
    mine = max((label for label in fitting if label in ratios), key=rate, default=None)
    if best is not None and mine is not None:
        holds = "holds" if rate(mine) > rate(best) else "does not hold"
        evidence = f"{mine} {rate(mine):.2f} samples/s, {best} {rate(best):.2f}: {rate(mine) / rate(best):.3f}x"
        found.append(_claim(f"higher throughput than {name}, the most that fits in memory", holds, evidence))
    return found


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
            _claim(
                f"very comparable (even slightly better) accuracy: {record['label']}, "
                f"{record['optimizer']} {record['learning_rate']:g}",
                verdict,
                f"test accuracy {100 * record['test_accuracy_difference']:+.2f} points "
                f"[{100 * low:+.2f}, {100 * high:+.2f}], p {record['test_accuracy_p_holm']:.3g}; "
                f"train loss {record['train_loss_difference']:+.4f}, p {record['train_loss_p_holm']:.3g}",
            )
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
            _claim(
                f"prediction brings the weights nearer to the synchronous ones: {row['label']}",
                nearer if row["p"] < LEVEL else "not shown",
                f"distance {row['ratio']:.3f} times that without prediction [{row['low']:.3f}, {row['high']:.3f}], "
                f"seed by seed {row['least']:.3f} to {row['most']:.3f}, p {row['p']:.2g}",
            )
        )
    return found


def order_claim(steps: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Which steps of the order of train losses replicate."""
    replicating = [f"{step['from']} < {step['to']}" for step in steps if step["replicates"]]
    whole = len(replicating) == len(steps)
    return _claim(
        "train loss rises: " + " < ".join([ORDER[0], *(step["to"] for step in steps)]),
        "replicates" if whole else "replicates in part" if replicating else "not shown",
        f"of {steps[0]['blocks']} blocks of {BLOCK} seeds; replicating steps: {', '.join(replicating) or 'none'}",
    )
