"""Block division: the best numbers of like blocks for the ranks of a pipeline, exactly.

Of seconds[r, n] that rank r takes for a micro-batch with n blocks, it finds whole n[r] with a given sum that minimize

    rounds * max over r of seconds[r, n[r]] + fill * sum over r of seconds[r, n[r]] + tail[n[0]].

A threshold on the slowest rank leaves each rank its first blocks up to some number: the smallest threshold that leaves enough of
them is the least maximum. Of each threshold from there on a dynamic program over the blocks left out finds the least rest;
thresholds whose maximum, with the least rest of all, exceeds the best so far are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardware_profiles import Floats, Integers


@dataclass(frozen=True, slots=True)
class BlockDivision:
    """Number of blocks of each rank, and the seconds of an iteration by the sum above."""

    seconds: float
    blocks: tuple[int, ...]


def divided(
    seconds: Floats,
    total: int,
    weights: tuple[float, float],
    tail: Floats,
    limit: float = np.inf,
    shortest: float = 0.0,
    filling: Floats | None = None,
) -> BlockDivision | None:
    """The best division of `total` blocks among ranks; None if there is none below `limit` seconds.

    seconds: of a micro-batch, float64 [ranks, most blocks + 1], infinite where a rank cannot hold so many
    weights: rounds and fill; tail: float64 [most blocks + 1]
    shortest: lower bound on the seconds of a round, whatever ranks take; filling: in place of `seconds` in the sum of the fill
    """
    rounds, fill = weights
    ranks, finite = np.arange(len(seconds)), np.isfinite(seconds)
    least = finite.argmax(axis=1)
    begin = seconds.min(axis=1)
    if not np.isfinite(begin).all() or least.sum() > total:
        return None
    ordered = np.sort(seconds[finite])
    thresholds = ordered[np.diff(ordered, prepend=-np.inf) > 0.0]
    low, high = int(np.searchsorted(thresholds, begin.max())), len(thresholds)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _reached(seconds, thresholds[middle]).sum() >= total else (middle + 1, high)
    rest = np.where(finite, seconds if filling is None else filling, np.inf) * fill
    rest[0] += tail
    least_rest = _least_rest(rest, least, total)
    best: BlockDivision | None = None
    low = max(low, int(np.searchsorted(thresholds, shortest, side="right")) - 1)  # shorter rounds save nothing
    for threshold in thresholds[low:].tolist():
        if rounds * max(threshold, shortest) + least_rest >= (limit if best is None else best.seconds):
            break
        found = _least_sum(np.where(seconds <= threshold, rest, np.inf), least, _reached(seconds, threshold), total)
        if found is None:
            continue
        value = float(rounds * max(seconds[ranks, found].max(), shortest) + rest[ranks, found].sum())
        if value < (limit if best is None else best.seconds):
            best = BlockDivision(value, tuple(found.tolist()))
    return best


def _reached(seconds: Floats, threshold: float) -> Integers:
    """Most blocks of each rank whose seconds are within a threshold, int64 [ranks]."""
    return np.asarray(seconds.shape[1] - 1 - (seconds <= threshold)[:, ::-1].argmax(axis=1))


def _least_rest(rest: Floats, least: Integers, total: int) -> float:
    """Lower bound on the sum of `rest` over the ranks of any division: each block adds the least that one adds anywhere."""
    begin, more = rest[np.arange(len(rest)), least], total - int(least.sum())
    if not more:
        return float(begin.sum())
    beyond = np.arange(rest.shape[1]) - least[:, None]
    added = (rest - begin[:, None]) / np.maximum(beyond, 1)
    return float(begin.sum() + added[beyond > 0].min(initial=np.inf) * more)


def _least_sum(rest: Floats, least: Integers, most: Integers, total: int) -> Integers | None:
    """Blocks of each rank, from `least` to `most`, that sum to `total` with the least sum of `rest`, int64 [ranks]; None where no
    sum is finite.
    """
    spare = int(most.sum()) - total
    if not spare:
        return most
    best, chosen = np.full(spare + 1, np.inf), np.zeros((len(rest), spare + 1), dtype=np.int64)
    best[0] = 0.0
    away = np.arange(spare + 1)
    gap = away[:, None] - away  # what this rank leaves out, by what it and those before do, and what those before do
    possible = np.maximum(gap, 0)
    for rank, (fewest, highest) in enumerate(zip(least.tolist(), most.tolist(), strict=True)):
        own = np.full(spare + 1, np.inf)
        count = min(spare, highest - fewest) + 1
        own[:count] = rest[rank, highest - count + 1 : highest + 1][::-1]
        sums = np.where(gap >= 0, best + own[possible], np.inf)
        before = sums.argmin(axis=1)
        chosen[rank], best = away - before, sums[away, before]
    if not np.isfinite(best[spare]):
        return None
    blocks, left = most.copy(), spare
    for rank in range(len(rest) - 1, -1, -1):
        out = int(chosen[rank, left])
        blocks[rank], left = most[rank] - out, left - out
    return blocks
