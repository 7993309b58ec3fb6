"""Cut moves: partitions near another one, and the climb from one to the next while any of them is faster."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hardware_profiles import Floats, Integers
from simulator import SLACK

STEPS = (1, 2, 4, 8)
"""Places by which a move shifts a cut."""

MOST_ROUNDS = 40
"""Rounds of moves at most; each takes the best move."""


def number_of_moves(boundaries: int, *, runs: bool) -> int:
    """How many partitions `moved` hands back."""
    return boundaries * (boundaries - 1 + 2 * len(STEPS)) if runs else 2 * len(STEPS) * boundaries


def moved(cuts: Integers, places: Integers, *, runs: bool) -> Integers:
    """One cut shifted by STEPS places, or a run of them by one, either way, int64 [moves, boundaries]; some cannot be.

    cuts: int64 [boundaries], of `places`, where stages may begin; runs: whether runs of several cuts are shifted
    """
    boundaries, shifts, every = len(cuts), list[Integers](), np.arange(len(cuts))
    for first in range(boundaries):
        for last in range(first, boundaries if runs else first + 1):
            chosen = ((every >= first) & (every <= last)).astype(np.int64)
            shifts += [sign * step * chosen for step in (STEPS if first == last else STEPS[:1]) for sign in (-1, 1)]
    at = np.searchsorted(places, cuts) + np.array(shifts, dtype=np.int64).reshape(len(shifts), boundaries)
    return np.asarray(places[np.clip(at, 0, len(places) - 1)])


def relocated(cuts: Integers, places: Integers) -> Integers:
    """One cut taken away and another stage halved, int64 [boundaries * stages, boundaries]; some cannot be.

    cuts, places: as of `moved`
    """
    boundaries, at = len(cuts), np.searchsorted(places, cuts)
    ends = np.concatenate([[0], at, [len(places) - 1]])
    every = np.tile(at, (boundaries * (boundaries + 1), 1))
    every[np.arange(len(every)), np.repeat(np.arange(boundaries), boundaries + 1)] = np.tile(
        (ends[:-1] + ends[1:]) // 2, boundaries
    )
    return np.asarray(places[np.sort(every, axis=1)])


def climbed(cuts: Integers, quick: Callable[[Integers], Floats], moves: Callable[[Integers], Integers]) -> Integers:
    """The partitions of the last round of moves, the fastest first, int64 [partitions, boundaries].

    cuts: int64 [boundaries], to begin with; quick: seconds of partitions; moves: partitions near one
    """
    seconds, every = float(quick(cuts[None])[0]), cuts[None]
    for _ in range(MOST_ROUNDS):
        near = np.vstack([every[:1], moves(every[0])])
        found = quick(near)
        every = near[np.argsort(found, kind="stable")]
        if found.min() >= seconds * (1.0 - SLACK):
            break
        seconds = float(found.min())
    return every
