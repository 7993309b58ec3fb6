"""Minimax cuts: partitions whose slowest stage is as fast as can be, as BaPipe balances (arXiv 2012.12544).

Inter-layer: whole layers. Coarse-grained: whole layers, but no cut whose transfer takes too long. Intra-layer: see
`planners.partitioning.fraction_search`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hardware_profiles import Floats, Integers
from simulator import LayerCosts, kernel

StageSeconds = Callable[[int, int, int], float]
"""(stage, first layer, end layer) -> seconds of these layers on the stage's device; never falls as layers are added."""


BISECTIONS = 40
"""Halvings, at most, of the interval that holds the seconds of the fastest slowest stage: to 1e-12 of its first width."""


CLOSE_ENOUGH = 1e-3
"""Relative width of the interval at which `filled_cuts` stops."""


def ideal_stage_seconds(whole: Sequence[float]) -> float:
    """Seconds of every stage if work could be divided at will: T* = 1 / sum of 1 / T_n; 0 if an accelerator takes none.

    whole: T_n, seconds of the whole network on each accelerator
    """
    if min(whole) <= 0.0:
        return 0.0
    return 1.0 / sum(1.0 / seconds for seconds in whole)


def minimax_cuts(points: Sequence[int], totals: Floats) -> list[int]:
    """Cuts, out of `points`, with the fastest slowest stage, exactly; every stage gets at least one layer.

    points: layers before each place where the network may be cut, rising, from 0 to all layers
    totals: float64 [stages, layers + 1]; seconds of the first i layers on the device of each stage
    best[s][j] = min over i < j of max(best[s-1][i], totals[s][j] - totals[s][i]); of equals the earliest cut. Time O(stages ·
    points^2) at most. Raises ValueError if there are fewer points than stages + 1.
    """
    _check_points(points, len(totals))
    at = np.asarray(points, dtype=np.int64)
    origins = _slowest_origins(np.ascontiguousarray(totals[:, at]))
    cuts, end = [], len(at) - 1
    for origin in origins[:0:-1]:
        end = int(origin[end])
        cuts.append(int(at[end]))
    return cuts[::-1]


@kernel()
def _slowest_origins(held: Floats) -> Integers:
    """For each stage and each point that it may end at, the point that it begins at, int64 [stages, points].

    held: float64 [stages, points]; seconds of all layers before each point
    """
    stages, points = held.shape
    origins, best = np.zeros((stages, points), dtype=np.int64), np.full(points, np.inf)
    best[0] = 0.0
    for stage in range(stages):
        slowest = np.full(points, np.inf)
        for end in range(1, points):
            for begin in range(end - 1, -1, -1):
                alone = held[stage, end] - held[stage, begin]
                if alone > slowest[end]:
                    break  # longer stages are slower
                seconds = max(best[begin], alone)
                if seconds <= slowest[end] and seconds < np.inf:
                    slowest[end], origins[stage, end] = seconds, begin
        best = slowest
    return origins


def filled_cuts(points: Sequence[int], stages: int, seconds: StageSeconds) -> list[int]:
    """Cuts with a fast slowest stage where a stage's seconds are no sum over its layers, by bisection: each stage takes as many
    layers as one limit permits.

    points: as of `minimax_cuts`. Exact, to CLOSE_ENOUGH, where devices are equal and seconds never fall as layers are added;
    otherwise good, not proven best. Raises ValueError if there are fewer points than stages + 1.
    """
    _check_points(points, stages)
    low, high = 0.0, max(seconds(stage, points[0], points[-1]) for stage in range(stages))
    best = _filled(points, stages, seconds, high) or list(points[1:stages])
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        found = _filled(points, stages, seconds, middle)
        if found is None:
            low = middle
        else:
            best, high = found, min(middle, _slowest([points[0], *found, points[-1]], seconds))
        if high - low <= CLOSE_ENOUGH * high:
            break
    return best


def _check_points(points: Sequence[int], stages: int) -> None:
    """Raise ValueError where there are too few places for so many stages."""
    if len(points) < stages + 1:
        raise ValueError(f"{stages} stages need at least {stages - 1} places to cut at, got {len(points) - 2}")


def _slowest(bounds: Sequence[int], seconds: StageSeconds) -> float:
    """Seconds of the slowest stage between these bounds."""
    return max(seconds(stage, bounds[stage], bounds[stage + 1]) for stage in range(len(bounds) - 1))


def _filled(points: Sequence[int], stages: int, seconds: StageSeconds, limit: float) -> list[int] | None:
    """Cuts with which no stage exceeds `limit` seconds, or None if there are none."""
    cuts, start = [], 0
    for stage in range(stages):
        low, high = start + 1, len(points) - (stages - stage)
        if seconds(stage, points[start], points[low]) > limit:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if seconds(stage, points[start], points[middle]) <= limit:
                low = middle
            else:
                high = middle - 1
        cuts.append(points[low])
        start = low
    return cuts[:-1] if start == len(points) - 1 else None


def balanced_cuts(costs: LayerCosts, points: Sequence[int], devices: Sequence[int], samples: int) -> list[int]:
    """Cuts out of `points` that even out the seconds of forward, backward and recomputation of `samples` samples; devices: of
    each stage

    Exact but where stages stream: see `minimax_cuts`, and `filled_cuts`, which computes the seconds of few stages.
    """
    if not any(costs.streams(device) for device in devices):
        table = np.array([costs.round_trip_seconds(device, samples) for device in devices])
        return minimax_cuts(points, np.concatenate([np.zeros((len(devices), 1)), table.cumsum(axis=1)], axis=1))
    policy = costs.problem.recompute
    repeated = costs.runs_again(policy) > 0.0

    def seconds(stage: int, begin: int, end: int) -> float:
        held = np.arange(begin, end, dtype=np.int64)
        again = held[repeated[held]]
        forward = costs.stage_seconds(devices[stage], held, samples, "forward")
        forward += costs.stage_seconds(devices[stage], again, samples, "forward", again=policy) if len(again) else 0.0
        return forward + costs.stage_seconds(devices[stage], held, samples, "backward")

    return filled_cuts(points, len(devices), seconds)


def coarse_points(transfer_seconds: Floats, stages: int, allowed: float) -> list[int]:
    """Places to cut at: those with transfers of at most `allowed` seconds, or the stages - 1 fastest ones if these are too few;
    with both ends.

    transfer_seconds: float64 [layers + 1], of the cut before each layer
    """
    inside = range(1, len(transfer_seconds) - 1)
    kept = [cut for cut in inside if transfer_seconds[cut] <= allowed]
    if len(kept) < stages - 1:
        kept = sorted(sorted(inside, key=lambda cut: (transfer_seconds[cut], cut))[: stages - 1])
    return [0, *kept, len(transfer_seconds) - 1]
