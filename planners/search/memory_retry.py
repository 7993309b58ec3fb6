"""Memory retry: a search repeated with less memory as long as the replay of its plan exceeds what there is.

Closed forms of searches count weights and activations; the buffers of transfers only a replay knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import isinf

from simulator import Plan, Score

ROUNDS = 6
"""Runs of a search, at most."""


def within_memory(evaluate: Callable[[Plan], Score], search: Callable[[Sequence[Score]], Plan | None]) -> Plan | None:
    """The first plan of repeated searches whose replay fits, else the one that exceeds memory least; None if no search finds a
    plan.

    search: given the scores of all plans so far, none of which fits, the next plan, or None
    """
    misses: list[Score] = []
    best: tuple[tuple[float, float], Plan] | None = None
    for _ in range(ROUNDS):
        plan = search(misses)
        if plan is None:
            break
        score = evaluate(plan)
        best = min(best or (score.key, plan), (score.key, plan), key=lambda one: one[0])
        if score.fits or isinf(score.peak_bytes):  # which the stack does not run: no memory helps
            break
        misses.append(score)
    return best and best[1]


def missing_bytes(misses: Sequence[Score], devices: Collection[int]) -> float:
    """Sum of the bytes by which plans exceeded the memory of these devices: what the next search leaves free there."""
    return sum(score.peak_bytes - score.capacity_bytes for score in misses if score.device in devices)


def shrunk(memory_bytes: float, misses: Sequence[Score]) -> float:
    """Memory of every device for the next search, in bytes: less, for each miss, by the share by which it exceeded memory, and by
    1 %.

    memory_bytes: of the first search, one figure for all devices
    """
    for score in misses:
        memory_bytes *= 0.99 * score.capacity_bytes / score.peak_bytes
    return memory_bytes
