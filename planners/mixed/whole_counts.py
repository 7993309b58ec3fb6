"""Whole counts: numbers of replicas of each variant in each stage, such that devices of each kind suffice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

import numpy as np

from hardware_profiles import Floats, Integers
from planners.mixed.space import Variant

MOST_STEPS = 20_000
"""Shares of stages, at most, that a search tries before it gives up."""

Counts = tuple[tuple[int, ...], ...]
"""By stage, the number of replicas of each variant."""


class TooManyShares(Exception):
    """Raised by a search that gave up after MOST_STEPS."""


def whole_counts(
    chosen: Sequence[Sequence[int]], replicas: int, variants: Sequence[Variant], devices: Sequence[int], prices: Floats
) -> Iterator[Counts]:
    """Numbers of replicas of each variant in each stage that the devices of each kind permit; none if there are none.

    Two are yielded: one that gives as many replicas as can be to the first variant of the first stages, and one that gives as
    many to the last.
    chosen: variants of each stage, by index; replicas: of each stage; devices: number of each kind; prices: of `price_ratios`
    Raises TooManyShares where it gave up without an answer.
    """
    used = np.zeros((len(variants), len(devices)), dtype=np.int64)
    for number, one in enumerate(variants):
        used[number, one.kind] = one.degree
    priced = used @ prices.T
    least = np.array([priced[list(members)].min(axis=0) for members in chosen]) * replicas
    behind = np.concatenate([np.cumsum(least[::-1], axis=0)[::-1][1:], np.zeros((1, len(prices)))])
    for last in (False, True):
        steps = 0

        def filled(stage: int, left: Integers, last: bool = last) -> tuple[Integers, ...] | None:
            nonlocal steps
            if stage == len(chosen):
                return ()
            members = list(chosen[stage])
            shares = _shares(len(members), replicas)
            rest = left - shares @ used[members]
            possible = (rest >= 0).all(axis=1) & (rest @ prices.T >= behind[stage] * (1.0 - 1e-12)).all(axis=1)
            order = np.flatnonzero(possible)
            for number in order if last else order[::-1]:
                steps += 1
                if steps > MOST_STEPS:
                    raise TooManyShares
                further = filled(stage + 1, rest[number])
                if further is not None:
                    counts = np.zeros(len(variants), dtype=np.int64)
                    counts[members] = shares[number]
                    return counts, *further
            return None

        found = filled(0, np.array(devices))
        if found is None:
            return
        yield tuple(tuple(counts.tolist()) for counts in found)


@cache
def _shares(members: int, replicas: int) -> Integers:
    """All ways to divide replicas over members, int64 [ways, members], in rising order."""
    places = list(combinations(range(replicas + members - 1), members - 1))
    bars = np.array(places, dtype=np.int64).reshape(len(places), members - 1)
    ends = np.full((len(bars), 1), replicas + members - 1)
    return np.diff(np.concatenate([np.full((len(bars), 1), -1), bars, ends], axis=1), axis=1) - 1
