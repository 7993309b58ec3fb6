"""Training comparison: differences between methods that trained the same seeds, their order, and published directions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.paired_tests import holm, paired_difference
from experiments.training_grid import CaseResult

LEVEL = 0.05
"""p values below this are called a difference."""


def compared(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """Records with the paired difference from the synchronous case of the same setting, p values corrected by setting."""
    records: list[dict[str, Any]] = []
    for setting in dict.fromkeys(result.setting for result in results):
        own = [result for result in results if result.setting == setting]
        reference = next(result for result in own if result.case.method == "synchronous")
        block = [result.record() for result in own]
        for measure, values in (("train_loss", "losses"), ("test_accuracy", "accuracies")):
            tested = []
            for record, result in zip(block, own, strict=True):
                pair = getattr(reference, values), getattr(result, values)
                if result is not reference and np.isfinite(np.array(pair)).all(axis=0).any():
                    tested.append((record, paired_difference(*pair)))
            for (record, test), corrected in zip(tested, holm([test.p for _, test in tested]), strict=True):
                record[f"{measure}_difference"] = test.mean
                record[f"{measure}_difference_low"] = test.low
                record[f"{measure}_difference_high"] = test.high
                record[f"{measure}_p"] = test.p
                record[f"{measure}_p_holm"] = corrected
        records += block
    return records


def order_of(results: Sequence[CaseResult], labels: Sequence[str], seeds: int | None = None) -> dict[str, Any]:
    """Mean train loss of the methods named over the first seeds (default all), whether they rise in that order, and every
    step's paired difference and p value (not corrected). results: of one setting."""
    own = {result.case.label: result.losses[:seeds] for result in results}
    means = [float(np.mean(own[label])) for label in labels]
    steps = []
    for a, b in itertools.pairwise(labels):
        test = paired_difference(own[a], own[b])
        steps.append({"from": a, "to": b, "difference": test.mean, "p": test.p})
    return {
        "mean_train_loss": dict(zip(labels, means, strict=True)),
        "rises": all(a < b for a, b in itertools.pairwise(means)),
        "steps": steps,
    }


def directions(
    results: Sequence[CaseResult], published: Mapping[str, Mapping[str, float]], pairs: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Pairs of methods (better, worse) by published test accuracies, and here: mean difference, p, and whether they agree.

    published: name of a table -> method -> accuracy in percent
    """
    rows = []
    for setting in dict.fromkeys(result.setting for result in results):
        own = {result.case.label: result.accuracies for result in results if result.setting == setting}
        for better, worse in pairs:
            test = paired_difference(own[worse], own[better])
            agrees = "same" if test.mean > 0 else "opposite"
            rows.append(
                {
                    "setting": f"{setting.label}, {setting.stages} stages",
                    "better": better,
                    "worse": worse,
                    **{f"published, {name}": (t[better] - t[worse]) / 100.0 for name, t in published.items()},
                    "here": test.mean,
                    "p": test.p,
                    "verdict": agrees if test.p < LEVEL else "not distinguishable",
                }
            )
    return rows
