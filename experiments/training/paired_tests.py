"""Paired test: whether two methods that trained the same seeds differ; numpy only, the same bits for the same values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
