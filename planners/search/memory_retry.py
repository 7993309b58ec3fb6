"""Memory retry: a search repeated with less memory while the replay of its plan needs more than there is.

Searches count weights and activations; the buffers of transfers only a replay knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import isinf

from simulator import Plan, Score

ROUNDS = 6
"""Most repetitions of a search."""


def within_memory(evaluate: Callable[[Plan], Score], search: Callable[[Sequence[Score]], Plan | None]) -> Plan | None:
    """The first plan whose replay fits, else the one that exceeds memory least; None if the search finds none.

    search: takes the scores of its plans so far, none of which fits
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
    """Bytes by which plans exceeded the memory of these devices, together: what a search is to leave free there."""
    return sum(score.peak_bytes - score.capacity_bytes for score in misses if score.device in devices)


def shrunk(memory_bytes: float, misses: Sequence[Score]) -> float:
    """Memory of every device, for a search that knows one figure for all, less the share that plans exceeded it by, and 1 %."""
    for score in misses:
        memory_bytes *= 0.99 * score.capacity_bytes / score.peak_bytes
    return memory_bytes
