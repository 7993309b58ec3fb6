"""Balanced partition: where to cut a chain of layers into the stages of a pipeline.

`fastest_cuts` weighs stages and transfers, for every planner that has no rule of its own. `minimax_cuts` and `filled_cuts` make
the slowest stage as fast as can be, as BaPipe does (arXiv 2012.12544). Inter-layer: whole layers. Coarse-grained: whole layers,
but no cut whose transfer takes too long. Intra-layer: see `planners.bapipe.intra_layer`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Phase
from simulator import LayerCosts, kernel

StageSeconds = Callable[[int, int, int], float]
"""(stage, first layer, end layer) -> seconds of these layers on the stage's device; never falls as layers are added."""

BISECTIONS = 40
"""Halvings of the interval that holds the least time of the slowest stage: 1e-12 of the first one."""

CLOSE_ENOUGH = 1e-3
"""Relative width of the interval at which `filled_cuts` stops."""

EXCESSES = (*(0.01 * 8.0**power for power in range(4)), math.inf)
"""Shares above the fastest slowest stage that stages may have where `fastest_cuts` seeks a first partition."""

MOST_PARTITIONS = 20_000
"""Partitions that `equal_partition` tries one by one."""

EQUAL_SLACK = 0.02
"""Share by which a partition may be slower for equal micro-batches and still be tried with a smaller last one."""

MOST_PLACES = 64
"""Places at most where a network is cut whose ranges are divided on boards one by one (about a millisecond each)."""

LABELS_AN_END = 4.0
"""Partial partitions of a stage, on average for each layer that it ends before, above which `fastest_cuts` halves its bands."""

TIGHTER = 0.01
"""Share by which a cap on the stages must fall for what can follow to be found again."""

ROUNDING = 1e-12
"""Relative; more than two sums of the same seconds in another order can differ by."""


def ideal_stage_seconds(whole: Sequence[float]) -> float:
    """T* = 1 / sum of 1 / T_n: every stage's seconds if work could be divided at will.

    whole: T_n, seconds of the whole network on each accelerator
    """
    if min(whole) <= 0.0:
        return 0.0
    return 1.0 / sum(1.0 / seconds for seconds in whole)


def minimax_cuts(points: Sequence[int], totals: NDArray[np.float64]) -> list[int]:
    """Cuts, out of `points`, with the fastest slowest stage; every stage gets at least one layer. Exact.

    points: layers before each place where the network may be cut, rising, from 0 to all layers
    totals: float64 [stages, layers + 1]; seconds of the first i layers on the device of each stage
    best[s][j] = min over i < j of max(best[s-1][i], totals[s][j] - totals[s][i]); of equals the earliest cut. Time O(stages ·
    points^2). Raises ValueError if there are fewer points than stages + 1.
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
def _slowest_origins(held: NDArray[np.float64]) -> NDArray[np.int64]:
    """Of each stage and each point that it may end at, the point that it begins at, int64 [stages, points].

    held: float64 [stages, points]; seconds of all layers before each point
    """
    stages, points = held.shape
    origins, best = np.zeros((stages, points), dtype=np.int64), np.full(points, np.inf)
    best[0] = 0.0
    for stage in range(stages):
        slowest = np.full(points, np.inf)
        for end in range(1, points):
            for begin in range(end):
                seconds = max(best[begin], held[stage, end] - held[stage, begin])
                if seconds < slowest[end]:
                    slowest[end], origins[stage, end] = seconds, begin
        best = slowest
    return origins


def filled_cuts(points: Sequence[int], stages: int, seconds: StageSeconds) -> list[int]:
    """Cuts for stages whose seconds are no sum of their layers: each stage takes what it can within one time, halved and halved.

    points: as above. Exact where devices are equal and seconds never fall as layers are added; otherwise good, not proven best.
    Raises ValueError if there are fewer points than stages + 1.
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
    if len(points) < stages + 1:
        raise ValueError(f"{stages} stages need at least {stages - 1} places to cut at, got {len(points) - 2}")


def _slowest(bounds: Sequence[int], seconds: StageSeconds) -> float:
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
    """Cuts out of `points` that even out the seconds (forward, backward, forward again) of `samples` on the stages' devices.

    Exact but where stages stream: see `minimax_cuts` and `filled_cuts`, which ask for few stages.
    """
    if not any(costs.streams(device) for device in devices):
        table = np.array([costs.round_trip_seconds(device, samples) for device in devices])
        return minimax_cuts(points, np.concatenate([np.zeros((len(devices), 1)), table.cumsum(axis=1)], axis=1))
    again = 2.0 if costs.problem.recompute else 1.0

    def seconds(stage: int, begin: int, end: int) -> float:
        held = np.arange(begin, end, dtype=np.int64)
        forward = costs.stage_seconds(devices[stage], held, samples, "forward")
        return again * forward + costs.stage_seconds(devices[stage], held, samples, "backward")

    return filled_cuts(points, len(devices), seconds)


def coarse_points(transfer_seconds: NDArray[np.float64], stages: int, allowed: float) -> list[int]:
    """Places to cut at: those whose transfer takes at most `allowed` seconds, or if these are too few the quickest ones.

    transfer_seconds: float64 [layers + 1], of the cut before each layer; the ends are no cuts and always kept
    """
    inside = range(1, len(transfer_seconds) - 1)
    kept = [cut for cut in inside if transfer_seconds[cut] <= allowed]
    if len(kept) < stages - 1:
        kept = sorted(sorted(inside, key=lambda cut: (transfer_seconds[cut], cut))[: stages - 1])
    return [0, *kept, len(transfer_seconds) - 1]


@dataclass(frozen=True, slots=True, eq=False)
class PartitionCosts:
    """What every stage and every cut of a pipeline of contiguous layers would cost a micro-batch.

    stage_seconds: float64 [passes, kinds, layers + 1, layers + 1]; [p, k, i, j] are the seconds that layers i to j - 1 keep a
        stage of kind k busy in pass p (one pass: forwards and backwards alternate, as in 1F1B; two: all forwards run before
        all backwards, as in GPipe); inf for a stage that must not be
    kind: the kind of each stage (its accelerator, its number of replicas, ...)
    link_seconds: float64 [passes, stages - 1, layers + 1]; the seconds that a cut before layer j keeps the link behind stage s
        busy; inf where there must be no cut
    latency_seconds: float64 [stages - 1, layers + 1]; what a micro-batch waits at that cut beyond that, in all passes together
    furthest: int64 [stages, layers + 1]; the last layer before which a stage that begins at a layer may end within its memory,
        or None where memory is no limit
    """

    stage_seconds: NDArray[np.float64]
    kind: tuple[int, ...]
    link_seconds: NDArray[np.float64]
    latency_seconds: NDArray[np.float64]
    furthest: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        passes, kinds, layers = self.stage_seconds.shape[:3]
        stages = len(self.kind)
        shapes = {
            "stage_seconds": (self.stage_seconds.shape, (passes, kinds, layers, layers)),
            "link_seconds": (self.link_seconds.shape, (passes, stages - 1, layers)),
            "latency_seconds": (self.latency_seconds.shape, (stages - 1, layers)),
        }
        if self.furthest is not None:
            shapes["furthest"] = self.furthest.shape, (stages, layers)
        for name, (shape, wanted) in shapes.items():
            if shape != wanted:
                raise ValueError(f"{name} must have shape {wanted}, got {shape}")
        if not set(self.kind) <= set(range(kinds)):
            raise ValueError(f"kinds of stages must be from 0 to {kinds - 1}, got {self.kind}")

    @property
    def layers(self) -> int:
        """Layers of the network."""
        return int(self.stage_seconds.shape[-1]) - 1

    def seconds(self, cuts: Sequence[int], microbatches: int) -> float:
        """The makespan of one partition, as `fastest_cuts` has it; inf where a stage or a cut must not be."""
        return float(makespans(self, np.array([cuts], dtype=np.int64).reshape(1, -1), microbatches)[0])


def makespans(
    costs: PartitionCosts, cuts: NDArray[np.int64], microbatches: int, last: PartitionCosts | None = None
) -> NDArray[np.float64]:
    """The makespans of many partitions on idle links, float64 [partitions]; inf where a stage or a cut must not be.

    cuts: int64 [partitions, stages - 1]; last: costs of one micro-batch more, no longer than the others, behind them
    Exact where forwards run before backwards. The n-th equal micro-batch leaves process p at (sum of the processes up to p) +
    (n - 1) * (slowest of them), and one behind it at max(that, its own end before p) + its seconds.
    """
    count, stages = len(cuts), len(costs.kind)
    bounds = np.hstack([np.zeros((count, 1), dtype=np.int64), cuts, np.full((count, 1), costs.layers)])
    total = np.zeros(count)
    for number in range(len(costs.stage_seconds)):
        passed, slowest, end = np.zeros(count), np.zeros(count), np.zeros(count)
        order = range(2 * stages - 1) if number == 0 else range(2 * stages - 2, -1, -1)
        for process in order:
            busy = _busy(costs, number, process, bounds)
            passed, slowest = passed + busy, np.maximum(slowest, busy)
            if last is not None:
                before = np.maximum(end, passed + (microbatches - 1) * slowest) if microbatches else end
                end = before + _busy(last, number, process, bounds)
        with np.errstate(invalid="ignore"):  # 0 times inf: what must not be, once
            total += passed + (microbatches - 1) * slowest if last is None else end
    for stage in range(stages - 1):
        total += costs.latency_seconds[stage, bounds[:, stage + 1]]
    if costs.furthest is not None:
        for stage in range(stages):
            total[bounds[:, stage + 1] > costs.furthest[stage, bounds[:, stage]]] = math.inf
    return np.where(np.isnan(total), math.inf, total)


def _busy(costs: PartitionCosts, number: int, process: int, bounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds of a stage (even) or of the link behind it (odd) in one pass, float64 [partitions]."""
    stage = process // 2
    if process % 2:
        return np.asarray(costs.link_seconds[number, stage, bounds[:, stage + 1]])
    return np.asarray(costs.stage_seconds[number, costs.kind[stage], bounds[:, stage], bounds[:, stage + 1]])


def equal_partition(
    costs: LayerCosts, devices: Sequence[int], sizes: Sequence[int], spare: Sequence[float] = ()
) -> tuple[float, tuple[int, ...], int] | None:
    """The fastest GPipe with one micro-batch size: seconds, cuts and size; None where none fits.

    sizes: to choose from, in samples; the last micro-batch takes what is left. spare: as in `straight_costs`
    Without the update. Of every size all partitions are tried, or, where they are more than MOST_PARTITIONS, those that
    `fastest_cuts` finds within EQUAL_SLACK: of a size that divides the batch, the fastest.
    """
    layers = len(costs.problem.workload)
    every: NDArray[np.int64] | None = None
    if math.comb(layers - 1, len(devices) - 1) <= MOST_PARTITIONS:
        every = _rows(combinations(range(1, layers), len(devices) - 1))
    held = [costs.problem.batch] * len(devices)
    tables = {size: straight_costs(costs, devices, size, in_flight=held, spare=spare) for size in sizes}
    bounds = {size: least_seconds(table, costs.problem.batch // size) for size, table in tables.items()}
    best: tuple[float, tuple[int, ...], int] | None = None
    for size in sorted(bounds, key=lambda size: (bounds[size], size)):
        if bounds[size] == math.inf or (best is not None and bounds[size] >= best[0]):
            break
        whole, rest = divmod(costs.problem.batch, size)
        last = straight_costs(costs, devices, rest) if rest else None
        cuts = every
        if cuts is None:
            front = fastest_cuts(tables[size], whole + (rest > 0), slack=EQUAL_SLACK if rest else 0.0)
            cuts = _rows(one for _, one in front)
        seconds = makespans(tables[size], cuts, whole, last)
        first = int(seconds.argmin())
        if seconds[first] < (math.inf if best is None else best[0]):
            best = float(seconds[first]), tuple(cuts[first].tolist()), size
    return best


def least_seconds(costs: PartitionCosts, microbatches: int) -> float:
    """Seconds that no partition undercuts: the least sum and the least bottleneck, of any partitions; inf if none is feasible."""
    rest, floor = _completions(*_tables(costs))
    return math.inf if rest[0, 0] == math.inf else float(rest[0, 0] + (microbatches - 1) * floor[:, 0, 0].sum())


def _rows(cuts: Iterable[tuple[int, ...]]) -> NDArray[np.int64]:
    """Cuts as an array, int64 [partitions, stages - 1]; of one stage a row without columns."""
    rows = list(cuts)
    return np.array(rows, dtype=np.int64).reshape(len(rows), len(rows[0]) if rows else 0)


def fastest_cuts(
    costs: PartitionCosts, microbatches: int, *, slack: float = 0.0
) -> list[tuple[float, tuple[int, ...]]]:
    """The partitions with the least makespan on idle links, exactly, best first: (seconds, cuts); none where none is feasible.

    With equal micro-batches, the first one runs through all stages and links, and each of the others follows behind the slowest
    of them:

        seconds = sum of all stages and links + (microbatches - 1) * (sum over the passes of the slowest stage or link)

    which a replay meets where forwards run before backwards and no two links share a channel; elsewhere it is an estimate.

    slack: partitions that are slower by up to this share are handed back too, as long as no other has as small a sum and as
        fast a slowest stage or link in every pass: a replay may prefer one of these
    A single micro-batch has nobody behind it, so that only the sum counts: one partition is handed back, whatever the slack, of
    equal sums (as where no cut costs anything) the one whose slowest stage is fastest.
    Method: the front of (sum, slowest of each pass) is carried from stage to stage for each last layer. A partial partition is
    dropped if another is nowhere worse, or if even the best that can follow exceeds a limit: the seconds of a partition found
    first, and the slack. The best that can follow is the least sum of stages no slower than the limit permits.
    """
    weight, tables = float(microbatches - 1), _tables(costs)
    rest, floor = _completions(*tables)
    if rest[0, 0] == math.inf:
        return []
    if microbatches == 1:
        cuts = tuple(_quickest_once(*tables, rest).tolist())
        return [(costs.seconds(cuts, 1), cuts)]
    share = max(slack, ROUNDING)
    good = _good_seconds(costs, microbatches, tables, float(rest[0, 0]), floor[:, 0, 0])
    found = _sweep(tables, weight, good * (1.0 + share), share)
    return [one for one in found if one[0] <= found[0][0] * (1.0 + share)]


def _good_seconds(
    costs: PartitionCosts, microbatches: int, tables: Tables, least_sum: float, floor: NDArray[np.float64]
) -> float:
    """The least makespan of a few partitions: those of least sum whose stages and links are within caps, rising from `floor`.

    least_sum: of all stages and links; floor: seconds of the fastest slowest stage of each pass, float64 [passes]
    """
    best, caps = math.inf, floor
    for excess in EXCESSES:
        if (microbatches - 1) * caps.sum() >= best:
            break
        capped = _capped(tables, caps)
        rest, _ = _completions(*capped)
        if rest[0, 0] < math.inf:
            best = min(best, costs.seconds(_quickest_once(*capped, rest).tolist(), microbatches))
        if rest[0, 0] == least_sum:
            break
        caps = floor + (excess * floor.sum() if excess < math.inf else math.inf)
    return best


Tables = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]
"""The arrays of `PartitionCosts`, as the compiled code takes them."""


def _tables(costs: PartitionCosts) -> Tables:
    everywhere = np.full((len(costs.kind), costs.layers + 1), costs.layers)
    return (
        np.ascontiguousarray(costs.stage_seconds),
        np.asarray(costs.kind, dtype=np.int64),
        np.ascontiguousarray(costs.link_seconds),
        np.ascontiguousarray(costs.latency_seconds),
        np.ascontiguousarray(everywhere if costs.furthest is None else costs.furthest, dtype=np.int64),
    )


def _capped(tables: Tables, caps: NDArray[np.float64]) -> Tables:
    """The tables without the stages and links that take longer than `caps` in a pass, float64 [passes].

    Of stages: without the ends behind the last one within the caps; others remain where seconds fall as layers are added.
    """
    stage_seconds, kind, link_seconds, latency_seconds, furthest = tables
    ends = _last_ends(stage_seconds, caps)
    links = np.where(link_seconds <= caps[:, None, None], link_seconds, np.inf)
    return stage_seconds, kind, links, latency_seconds, np.minimum(furthest, ends[kind])


@kernel()
def _last_ends(stage_seconds: NDArray[np.float64], caps: NDArray[np.float64]) -> NDArray[np.int64]:
    """The last end with which a stage is within the caps in every pass, by kind and first layer; that layer where none is."""
    passes, kinds, places, _ = stage_seconds.shape
    last = np.empty((kinds, places), dtype=np.int64)
    for kind in range(kinds):
        for begin in range(places):
            end, within = places, False
            while not within and end > begin + 1:
                end, within = end - 1, True
                for p in range(passes):
                    within = within and stage_seconds[p, kind, begin, end] <= caps[p]
            last[kind, begin] = end if within else begin
    return last


def _sweep(tables: Tables, weight: float, limit: float, slack: float) -> list[tuple[float, tuple[int, ...]]]:
    """All partitions within a limit in seconds, and a share above the best, that no other beats in everything, best first.

    Bands of seconds of the slowest stage are halved while one has more than LABELS_AN_END partial partitions. In the narrowest
    ones, where all stages that are the slowest are alike, only the sum counts: an end has few.
    """
    passes = len(tables[0])
    found, bands = list[tuple[float, tuple[int, ...]]](), [(np.full(passes, -np.inf), np.full(passes, np.inf))]
    while bands:
        above, upto = bands.pop()
        band = _narrowed(tables, weight, limit, above, upto)
        if band is None:
            continue
        width = band.upto - band.least
        wide = bool((width > ROUNDING * band.upto).any())
        labels = _labels(band, weight, limit, int(LABELS_AN_END * len(tables[0][0, 0])) if wide else sys.maxsize)
        if labels is None:
            middle, split = band.least + 0.5 * width, np.arange(passes) == width.argmax()
            bands += [(np.where(split, middle, above), band.upto), (above, np.where(split, middle, band.upto))]
            continue
        found += [(once + weight * sum(slow), cuts) for once, slow, cuts in labels if all(np.array(slow) > above)]
        limit = min(limit, min(found)[0] * (1.0 + slack)) if found else limit
    return sorted(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Band:
    """What partitions whose slowest stage of each pass takes from `least` to `upto` seconds may be made of.

    rest, floor: as `_completions` finds them for these tables
    """

    tables: Tables
    rest: NDArray[np.float64]
    floor: NDArray[np.float64]
    least: NDArray[np.float64]
    upto: NDArray[np.float64]


def _narrowed(
    tables: Tables, weight: float, limit: float, above: NDArray[np.float64], upto: NDArray[np.float64]
) -> _Band | None:
    """The band `above` < slowest <= `upto` without what a limit in seconds rules out; None where nothing is left."""
    capped = _capped(tables, upto)
    while True:
        rest, floor = _completions(*capped)
        least = np.maximum(floor[:, 0, 0], above)
        if not rest[0, 0] + weight * least.sum() <= limit:
            return None
        tighter = (limit - rest[0, 0]) / weight - (least.sum() - least)
        if not (tighter < upto * (1.0 - TIGHTER)).any():
            return _Band(capped, rest, floor, least, np.minimum(upto, tighter))
        upto = np.minimum(upto, tighter)
        capped = _capped(tables, upto)


def _labels(
    band: _Band, weight: float, limit: float, most: int
) -> list[tuple[float, list[float], tuple[int, ...]]] | None:
    """Sum, slowest of each pass and cuts of the partitions of a band that no other beats.

    None where more than `most` partial partitions of a stage are not beaten.
    """
    state, place = np.array([[0.0, *band.least]]), np.zeros((1, 2), dtype=np.int64)
    places = []
    for stage in range(len(band.tables[1])):
        state, place, complete = _extended(
            *band.tables, stage, state, place, band.rest[stage + 1], band.floor[:, stage + 1], weight, limit, most
        )
        if not complete:
            return None
        places.append(place)
    found = []
    for row, (once, *slowest) in enumerate(state.tolist()):
        cuts, at = [], row
        for one in reversed(places):
            cuts.append(int(one[at, 0]))
            at = int(one[at, 1])
        found.append((once, slowest, tuple(cuts[:0:-1])))
    return found


@kernel()
def _completions(
    stage_seconds: NDArray[np.float64],
    kind: NDArray[np.int64],
    link_seconds: NDArray[np.float64],
    latency_seconds: NDArray[np.float64],
    furthest: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least sum, and least slowest of each pass, of stage s and all behind it (its own link first) where it begins at layer i.

    float64 [stages + 1, layers + 1] and [passes, stages + 1, layers + 1]; inf where that cannot be
    """
    passes, _, places, _ = stage_seconds.shape
    stages = kind.shape[0]
    rest, floor = np.full((stages + 1, places), np.inf), np.full((passes, stages + 1, places), np.inf)
    rest[stages, places - 1] = 0.0
    floor[:, stages, places - 1] = 0.0
    for stage in range(stages - 1, -1, -1):
        for begin in range(stage, places if stage else 1):
            for end in range(begin + 1, furthest[stage, begin] + 1):
                total = rest[stage + 1, end] + (latency_seconds[stage - 1, begin] if stage else 0.0)
                for p in range(passes):
                    link = link_seconds[p, stage - 1, begin] if stage else 0.0
                    busy = stage_seconds[p, kind[stage], begin, end]
                    total += link + busy
                    slow = max(link, busy, floor[p, stage + 1, end])
                    floor[p, stage, begin] = min(floor[p, stage, begin], slow)
                rest[stage, begin] = min(rest[stage, begin], total)
    return rest, floor


@kernel()
def _quickest_once(
    stage_seconds: NDArray[np.float64],
    kind: NDArray[np.int64],
    link_seconds: NDArray[np.float64],
    latency_seconds: NDArray[np.float64],
    furthest: NDArray[np.int64],
    rest: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The cuts with the least sum, int64 [stages - 1]; of equal sums those with the fastest slowest stage, its link included.

    rest: least sums, of `_completions`; the first one is finite
    Best tails, from the last stage to the first: a tail with as small a sum and a faster slowest stage serves every front better.
    """
    passes, _, places, _ = stage_seconds.shape
    stages = kind.shape[0]
    slowest, ends = np.full((stages + 1, places), np.inf), np.zeros((stages, places), dtype=np.int64)
    slowest[stages, places - 1] = 0.0
    for stage in range(stages - 1, -1, -1):
        for begin in range(stage, places if stage else 1):
            within = rest[stage, begin] * (1.0 + ROUNDING)
            for end in range(begin + 1, furthest[stage, begin] + 1 if within < np.inf else 0):
                here = 0.0
                for p in range(passes):
                    link = link_seconds[p, stage - 1, begin] if stage else 0.0
                    here += link + stage_seconds[p, kind[stage], begin, end]
                delay = latency_seconds[stage - 1, begin] if stage else 0.0
                slow = max(here, slowest[stage + 1, end])
                if here + delay + rest[stage + 1, end] <= within and slow < slowest[stage, begin]:
                    slowest[stage, begin], ends[stage, begin] = slow, end
    cuts, begin = np.empty(stages - 1, dtype=np.int64), 0
    for stage in range(stages - 1):
        begin = ends[stage, begin]
        cuts[stage] = begin
    return cuts


@kernel()
def _extended(
    stage_seconds: NDArray[np.float64],
    kind: NDArray[np.int64],
    link_seconds: NDArray[np.float64],
    latency_seconds: NDArray[np.float64],
    furthest: NDArray[np.int64],
    stage: int,
    state: NDArray[np.float64],
    place: NDArray[np.int64],
    rest: NDArray[np.float64],
    floor: NDArray[np.float64],
    weight: float,
    limit: float,
    most: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], bool]:
    """Every partial partition with one stage more that is not beaten: its sum and slowest of each pass; its end and parent.

    The third value is False where they are more than `most`.
    """
    passes, _, places, _ = stage_seconds.shape
    count, filled = state.shape[0], 0
    new_state, new_place = np.empty((places, 1 + passes)), np.empty((places, 2), dtype=np.int64)
    fresh, value, parent = np.empty((count, 1 + passes)), np.empty(count), np.empty(count, dtype=np.int64)
    rows_of = np.searchsorted(place[:, 0], np.arange(places + 1))
    ideal = np.full((places, 1 + passes), np.inf)  # as if one partial partition were the best in everything
    for row in range(count):
        for column in range(1 + passes):
            ideal[place[row, 0], column] = min(ideal[place[row, 0], column], state[row, column])
    step = np.empty(1 + passes)
    for end in range(stage + 1, places):
        found = 0
        for begin in range(end if rest[end] < np.inf else 0):
            if rows_of[begin] == rows_of[begin + 1] or end > furthest[stage, begin]:
                continue
            step[0] = latency_seconds[stage - 1, begin] if stage > 0 else 0.0
            for p in range(passes):
                link = link_seconds[p, stage - 1, begin] if stage > 0 else 0.0
                busy = stage_seconds[p, kind[stage], begin, end]
                step[0] += link + busy
                step[1 + p] = max(link, busy)
            if not _least_seconds(ideal, begin, step, rest, floor, end, weight) <= limit:
                continue
            for row in range(rows_of[begin], rows_of[begin + 1]):
                least = _least_seconds(state, row, step, rest, floor, end, weight)
                if least <= limit and least < np.inf:
                    fresh[found, 0] = state[row, 0] + step[0]
                    for p in range(passes):
                        fresh[found, 1 + p] = max(state[row, 1 + p], step[1 + p], floor[p, end])
                    value[found], parent[found] = least, row
                    found += 1
        first = filled
        for one in np.argsort(value[:found], kind="mergesort"):
            beaten = False
            for other in range(first, filled):
                beaten = True
                for column in range(1 + passes):
                    beaten = beaten and new_state[other, column] <= fresh[one, column]
                if beaten:
                    break
            if not beaten:
                if filled == most:
                    return new_state, new_place, False
                if filled == new_state.shape[0]:
                    new_state = np.concatenate((new_state, np.empty_like(new_state)))
                    new_place = np.concatenate((new_place, np.empty_like(new_place)))
                new_state[filled] = fresh[one]
                new_place[filled, 0], new_place[filled, 1] = end, parent[one]
                filled += 1
    return new_state[:filled], new_place[:filled], True


@kernel()
def _least_seconds(
    states: NDArray[np.float64],
    row: int,
    step: NDArray[np.float64],
    rest: NDArray[np.float64],
    floor: NDArray[np.float64],
    end: int,
    weight: float,
) -> float:
    """Least makespan that can follow from a partial partition (sum, slowest of each pass) and a step that ends before `end`."""
    bottleneck = 0.0
    for p in range(floor.shape[0]):
        bottleneck += max(states[row, 1 + p], step[1 + p], floor[p, end])
    least: float = states[row, 0] + step[0] + rest[end] + weight * bottleneck
    return least


def straight_costs(
    costs: LayerCosts,
    devices: Sequence[int],
    samples: int,
    *,
    alternating: bool = False,
    in_flight: Sequence[int] | None = None,
    spare: Sequence[float] = (),
) -> PartitionCosts:
    """The costs of a pipeline with one device a stage and micro-batches of `samples`.

    devices: of each stage; alternating: forwards and backwards take turns (1F1B), else they are passes of their own (GPipe)
    in_flight: samples whose activations each stage holds at once; None leaves memory out. Buffers of transfers are not counted,
        so that a partition which is left out cannot fit, and one which is not may still not.
    spare: bytes that each stage is to leave free of its device's memory; () for none
    Where links contend a transfer keeps its link busy for its bytes, and its latency delays; else it only delays.
    """
    distinct = sorted({costs.kind_of_device(device): device for device in devices}.items())
    number = {kind: position for position, (kind, _) in enumerate(distinct)}
    furthest = None if in_flight is None else furthest_ends(costs, devices, samples, in_flight, spare)
    layers = len(costs.problem.workload)
    reach = np.full(layers + 1, layers) if furthest is None else furthest.max(axis=0)
    forward, backward = (
        np.array([_ranges(costs, device, samples, phase, reach) for _, device in distinct])
        for phase in ("forward", "backward")
    )
    if costs.problem.recompute:
        backward = backward + forward
    busy, latency = _boundaries(costs, devices, samples, alternating)
    return PartitionCosts(
        stage_seconds=(forward + backward)[None] if alternating else np.array([forward, backward]),
        kind=tuple(number[costs.kind_of_device(device)] for device in devices),
        link_seconds=busy,
        latency_seconds=latency,
        furthest=furthest,
    )


def _ranges(
    costs: LayerCosts, device: int, samples: int, phase: Phase, reach: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Seconds of one pass of layers i to j - 1 as one stage, float64 [layers + 1, layers + 1].

    reach: int64 [layers + 1], the last layer before which any stage that begins at a layer fits
    On a board whose layers stream each range is divided by itself: none that fits nowhere (its entry is inf), and, of deep
    networks, only those between MOST_PLACES places that divide the FLOP evenly.
    """
    layers = len(costs.problem.workload)
    if not costs.streams(device):
        before = np.concatenate([[0.0], np.cumsum(costs.seconds(device, samples, phase))])
        return np.asarray(np.maximum(before[None, :] - before[:, None], 0.0), dtype=np.float64)
    table = np.full((layers + 1, layers + 1), np.inf)
    np.fill_diagonal(table, 0.0)
    for begin, end in combinations(_places(costs), 2):
        if end <= reach[begin]:
            held = np.arange(begin, end, dtype=np.int64)
            table[begin, end] = costs.stage_seconds(device, held, samples, phase)
    return table


def _places(costs: LayerCosts) -> list[int]:
    """Where a network on boards may be cut, rising, with both ends: everywhere, or at MOST_PLACES that divide the FLOP evenly."""
    work = np.cumsum([0.0, *(layer.flop for layer in costs.problem.workload.layers)])
    if len(work) <= MOST_PLACES:
        return list(range(len(work)))
    inside = np.searchsorted(work, np.linspace(0.0, work[-1], MOST_PLACES)[1:-1])
    return sorted({0, *inside.tolist(), len(work) - 1})


def _boundaries(
    costs: LayerCosts, devices: Sequence[int], samples: int, alternating: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds that a micro-batch keeps each link busy in each pass, by cut, and what it waits beyond that."""
    cluster, sizes = costs.problem.cluster, costs.cut_bytes * samples
    busy, latency = np.zeros((2, len(devices) - 1, len(sizes))), np.zeros((len(devices) - 1, len(sizes)))
    one_way = np.zeros(len(devices) - 1, dtype=bool)
    for link, (near, far) in enumerate(pairwise(devices)):
        for direction, (source, target) in enumerate(((near, far), (far, near))):
            delay, bandwidth = cluster.point_to_point(source, target)
            busy[direction, link] = sizes / bandwidth
            latency[link] += delay
        one_way[link] = bool({*cluster.route(near, far)} & {*cluster.route(far, near)})
    if not costs.problem.contention:
        return np.zeros_like(busy[:1] if alternating else busy), latency + busy.sum(axis=0)
    if not alternating:
        return busy, latency
    both = np.where(one_way[:, None], busy.sum(axis=0), busy.max(axis=0))
    return both[None], latency + busy.sum(axis=0) - both


def furthest_ends(
    costs: LayerCosts, devices: Sequence[int], samples: int, in_flight: Sequence[int], spare: Sequence[float] = ()
) -> NDArray[np.int64]:
    """The last layer before which a stage that begins at a layer may end within its device's memory, int64 [stages, layers + 1].

    Counted are weights, gradients and optimizer states, what `in_flight` samples leave behind in each stage, and, where the stage
    recomputes, what a micro-batch of `samples` makes again. spare: as in `straight_costs`
    """
    problem, layers = costs.problem, len(costs.problem.workload)
    each = problem.state_bytes
    state = costs.parameters * each
    copies = _copied_weights(costs)
    inputs = costs.cut_bytes
    furthest = np.zeros((len(devices), layers + 1), dtype=np.int64)
    for stage, (device, count) in enumerate(zip(devices, in_flight, strict=True)):
        held = state + costs.stashed_bytes * (samples if problem.recompute else count)
        before = np.concatenate([[0.0], np.cumsum(held)])
        kept = inputs * count if problem.recompute else np.zeros(layers + 1)
        free = spare[stage] if len(spare) else 0.0
        room = problem.cluster.devices[device].memory_bytes * (1.0 + ROUNDING) - free - kept + before
        furthest[stage] = np.searchsorted(before, room, side="right") - 1
        for user, elements in copies:  # a stage that holds the user needs room for the copy, or ends before it
            room = room - np.where(user <= layers, elements * each, 0.0)
            shorter = np.maximum(np.searchsorted(before, room, side="right") - 1, user)
            furthest[stage] = np.where(furthest[stage] > user, shorter, furthest[stage])
    return furthest


def _copied_weights(costs: LayerCosts) -> list[tuple[NDArray[np.int64], float]]:
    """Of each tied weight, by a stage's first layer: the layer whose stage needs a copy (layers + 1: none), and its elements.

    That is the first user in the stage or behind it, where the owner stands before the stage.
    """
    layers = len(costs.problem.workload)
    starts = np.arange(layers + 1)
    found = []
    for tied in costs.tied_weights:
        users = np.array([*tied.layers, layers + 1])
        user = users[np.searchsorted(users, starts, side="left").clip(max=len(users) - 1)]
        found.append((np.where(starts > tied.layers[0], user, layers + 1), float(tied.parameters)))
    return found
