"""Training comparison: paired tests between methods that trained the same seeds, their order, and published directions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.training.seed_grid import CaseResult, deviation

LEVEL = 0.05
"""p values below this are called a difference."""

BLOCK = 20
"""Seeds of one repetition: what holds in one block and not in the next has not replicated."""

ALL_SEEDS = slice(None)

EXACT = 2**16
"""Sign patterns up to which the permutation test counts all of them; beyond, it draws as many."""

RESAMPLES = 10_000
"""Bootstrap resamples of an interval."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """`other` minus `reference` over the seeds where both are finite.

    mean, low, high: mean and its bootstrap 95 % interval
    p: two-sided, of the sign-flip permutation test of mean 0 (1.0 where no pair differs)
    pairs: seeds that count
    """

    mean: float
    low: float
    high: float
    p: float
    pairs: int


def paired_difference(reference: Sequence[float], other: Sequence[float], seed: int = 0) -> PairedDifference:
    """Compare two methods seed by seed; ValueError for different numbers of seeds, or none with finite values."""
    if len(reference) != len(other):
        raise ValueError(f"a paired test needs the same seeds, got {len(reference)} and {len(other)} values")
    difference = np.asarray(other, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    difference = difference[np.isfinite(difference)]
    if len(difference) == 0:
        raise ValueError("a paired test needs at least one seed with finite values, got none")
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, len(difference), (RESAMPLES, len(difference)))
    low, high = np.quantile(difference[chosen].mean(axis=1), (0.025, 0.975))
    return PairedDifference(
        float(difference.mean()), float(low), float(high), _sign_flip(difference, generator), len(difference)
    )


def _sign_flip(difference: NDArray[np.float64], generator: np.random.Generator) -> float:
    """Share of sign patterns whose sum is at least as far from 0 as the one seen."""
    count = len(difference)
    if 2**count <= EXACT:
        signs = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    else:
        signs = generator.integers(0, 2, (EXACT, count))
        signs[0] = 0  # the pattern seen is one of the draws, so that p is never 0
    sums = np.abs((1 - 2 * signs) @ difference)
    seen = abs(float(difference.sum()))
    return float(np.mean(sums >= seen * (1 - 1e-12)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for many tests: the p values, adjusted, in the order given."""
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order.tolist()):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def compared(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """Records with the paired difference from the synchronous case of the same setting, p values corrected by setting."""
    records: list[dict[str, Any]] = []
    for setting in dict.fromkeys(result.setting for result in results):
        own = [result for result in results if result.setting == setting]
        reference = next(result for result in own if result.case.method == "synchronous")
        block = [result.record() for result in own]
        for measure in ("train_loss", "test_accuracy"):
            tested = []
            for record, result in zip(block, own, strict=True):
                pair = reference.each(measure), result.each(measure)
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


def seed_blocks(seeds: Sequence[int]) -> dict[str, slice]:
    """Name -> positions of the seeds: the first five, every twenty in turn (whole ones), and all of them."""
    bounds = [(0, min(5, len(seeds)))]
    bounds += [(first, first + BLOCK) for first in range(0, len(seeds) - BLOCK + 1, BLOCK)]
    bounds.append((0, len(seeds)))
    return {f"seeds {seeds[first]} to {seeds[stop - 1]}": slice(first, stop) for first, stop in bounds}


def order_of(results: Sequence[CaseResult], labels: Sequence[str], chosen: slice = ALL_SEEDS) -> dict[str, Any]:
    """Train losses of the methods named over the chosen seeds, whether their means rise in that order, and every step's paired
    difference with its 95 % interval, its p value corrected over the steps (Holm), and the share of seeds that rise.

    results: of one setting
    """
    own = {result.case.label: result.each("train_loss")[chosen] for result in results}
    means = [float(np.mean(own[label])) for label in labels]
    pairs = list(itertools.pairwise(labels))
    tests = [paired_difference(own[one], own[other]) for one, other in pairs]
    return {
        "mean_train_loss": dict(zip(labels, means, strict=True)),
        "train_loss_deviation": {label: deviation(own[label]) for label in labels},
        "rises": all(one < other for one, other in itertools.pairwise(means)),
        "steps": [
            {"from": one, "to": other, "difference": test.mean, "low": test.low, "high": test.high, "p_holm": p}
            | {"rising_seeds": float(np.mean(np.array(own[other]) > np.array(own[one])))}
            for (one, other), test, p in zip(pairs, tests, holm([test.p for test in tests]), strict=True)
        ],
    }


def replicated(orders: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every step of an order over several blocks of seeds, by `seed_blocks`: in how many blocks of twenty it rises, and its
    difference over all seeds; `replicates` where it rises in each of two blocks or more, and clearly over all seeds."""
    *blocks, whole = (order["steps"] for order in orders.values())
    blocks = blocks[1:]
    rows = []
    for number, step in enumerate(whole):
        rising = sum(block[number]["difference"] > 0 for block in blocks)
        clear = step["difference"] > 0 and step["p_holm"] < LEVEL
        rows.append(
            {**step, "rising_blocks": rising, "blocks": len(blocks)}
            | {"replicates": len(blocks) > 1 and rising == len(blocks) and clear}
        )
    return rows


def directions(
    results: Sequence[CaseResult], published: Mapping[str, Mapping[str, float]], pairs: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Pairs of methods (better, worse) by published test accuracies, and here: mean difference, p, and whether they agree.

    published: name of a table -> method -> accuracy in percent
    """
    rows = []
    for setting in dict.fromkeys(result.setting for result in results):
        own = {result.case.label: result.each("test_accuracy") for result in results if result.setting == setting}
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
