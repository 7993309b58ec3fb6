"""Cut moves: the partitions near a given one, and a climb over them while any is faster."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hardware_profiles import Floats, Integers
from simulator import SLACK

STEPS = (1, 2, 4, 8)
"""Places by which a move shifts a single cut."""

MOST_ROUNDS = 40
"""Rounds of a climb, at most; each takes the best move."""


def number_of_moves(boundaries: int, *, runs: bool) -> int:
    """Number of partitions that `moved` returns. boundaries: cuts of the partition"""
    return boundaries * (boundaries - 1 + 2 * len(STEPS)) if runs else 2 * len(STEPS) * boundaries


def moved(cuts: Integers, places: Integers, *, runs: bool) -> Integers:
    """Partitions with one cut shifted by STEPS places either way, or a run of cuts by one place, int64 [moves, boundaries].

    cuts: int64 [boundaries], of `places`, where stages may begin; runs: whether runs of several cuts are shifted, too
    Cuts that leave the network stand at its end, and a shifted cut may pass another: such partitions have a stage without layers.
    """
    boundaries, shifts, every = len(cuts), list[Integers](), np.arange(len(cuts))
    for first in range(boundaries):
        for last in range(first, boundaries if runs else first + 1):
            chosen = ((every >= first) & (every <= last)).astype(np.int64)
            shifts += [sign * step * chosen for step in (STEPS if first == last else STEPS[:1]) for sign in (-1, 1)]
    at = np.searchsorted(places, cuts) + np.array(shifts, dtype=np.int64).reshape(len(shifts), boundaries)
    return np.asarray(places[np.clip(at, 0, len(places) - 1)])


def relocated(cuts: Integers, places: Integers) -> Integers:
    """Partitions with one cut taken away and the middle of a stage cut instead, int64 [boundaries * stages, boundaries].

    cuts, places: as of `moved`; some have a stage without layers
    """
    boundaries, at = len(cuts), np.searchsorted(places, cuts)
    ends = np.concatenate([[0], at, [len(places) - 1]])
    every = np.tile(at, (boundaries * (boundaries + 1), 1))
    every[np.arange(len(every)), np.repeat(np.arange(boundaries), boundaries + 1)] = np.tile(
        (ends[:-1] + ends[1:]) // 2, boundaries
    )
    return np.asarray(places[np.sort(every, axis=1)])


def climbed(cuts: Integers, quick: Callable[[Integers], Floats], moves: Callable[[Integers], Integers]) -> Integers:
    """The partitions of a climb's last round, fastest first, int64 [partitions, boundaries].

    cuts: int64 [boundaries], to begin with; quick: seconds of partitions; moves: partitions near a given one
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
