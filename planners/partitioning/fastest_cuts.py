"""Fastest cuts: the partitions with the least makespan in closed form, stages and transfers weighed; for planners without a rule
of their own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from planners.estimate.memory import ROUNDING
from planners.estimate.pipeline_seconds import pipelined, rounds_and_fill
from planners.partitioning.partition_costs import PartitionCosts
from simulator import kernel

EXCESSES = (*(0.01 * 8.0**power for power in range(4)), math.inf)
"""Shares of the fastest slowest stage by which caps exceed it, one after the other, where `fastest_cuts` seeks a first
partition.
"""


LABELS_AN_END = 4.0
"""Partial partitions of a stage, on average per layer that it ends before, above which `fastest_cuts` halves its bands."""


TIGHTER = 0.01
"""Share by which the cap on a stage must fall for bounds on what follows to be computed anew."""


class Tables(NamedTuple):
    """The arrays of `PartitionCosts`, as compiled code takes them; `furthest` is always an array."""

    stage_seconds: Floats
    kind: Integers
    link_seconds: Floats
    latency_seconds: Floats
    furthest: Integers


class Ahead(NamedTuple):
    """Lower bounds on what follows a partial partition.

    rest: float64 [layers + 1]; least sum of the stages behind, by the layer at which they begin
    floor: float64 [passes, layers + 1]; least seconds of the slowest of these, of each pass
    weight: factor on the slowest, which all micro-batches but one follow; limit: seconds that a partition may take
    """

    rest: Floats
    floor: Floats
    weight: float
    limit: float


def least_seconds(costs: PartitionCosts, microbatches: int) -> float:
    """Lower bound on the seconds of any partition, from the least sum and the least slowest stage of all; inf if no partition is
    feasible.
    """
    rest, floor = _completions(_tables(costs))
    return (
        math.inf if rest[0, 0] == math.inf else pipelined(float(rest[0, 0]), float(floor[:, 0, 0].sum()), microbatches)
    )


def fastest_cuts(
    costs: PartitionCosts, microbatches: int, *, slack: float = 0.0
) -> list[tuple[float, tuple[int, ...]]]:
    """The partitions with the least makespan on idle links, exactly, best first, as (seconds, cuts); [] where none is feasible.

    With equal micro-batches, the first one runs through all stages and links, and each of the others follows behind the slowest
    of them:

        seconds = sum of all stages and links + (microbatches - 1) * (sum over the passes of the slowest stage or link)

    which a replay meets where forwards run before backwards and no two links share a channel; elsewhere it is an estimate.

    slack: partitions that are slower by up to this share are returned too, as long as no other has as small a sum and as fast a
    slowest stage or link in every pass: a replay may prefer one of these
    With a single micro-batch nothing follows, so that only the sum counts: one partition is returned, whatever the slack, of
    equal sums (as where no cut costs anything) the one whose slowest stage is fastest.
    Method: the front of (sum, slowest of each pass) is carried from stage to stage for each last layer. A partial partition is
    dropped if another is nowhere worse, or if even the best that can follow exceeds a limit: the seconds of a partition found
    first, and the slack. The best that can follow is the least sum of stages no slower than the limit permits.
    """
    weight, tables = rounds_and_fill(microbatches)[0], _tables(costs)
    rest, floor = _completions(tables)
    if rest[0, 0] == math.inf:
        return []
    if microbatches == 1:
        cuts = tuple(_quickest_once(tables, rest).tolist())
        return [(costs.seconds(cuts, 1), cuts)]
    share = max(slack, ROUNDING)
    good = _good_seconds(costs, microbatches, tables, float(rest[0, 0]), floor[:, 0, 0])
    found = _sweep(tables, weight, good * (1.0 + share), share)
    return [one for one in found if one[0] <= found[0][0] * (1.0 + share)]


def _good_seconds(costs: PartitionCosts, microbatches: int, tables: Tables, least_sum: float, floor: Floats) -> float:
    """Least makespan of a few partitions, an upper bound for the search: those of least sum within rising caps on stages and
    links.

    least_sum: of all stages and links; floor: seconds of the fastest slowest stage of each pass, float64 [passes]
    """
    best = math.inf
    for caps in _rising(floor):
        if (microbatches - 1) * caps.sum() >= best:
            break
        once, cuts = _quickest_within(tables, caps)
        if once < math.inf:
            best = min(best, costs.seconds(cuts, microbatches))
        if once == least_sum:
            break
    return best


def first_cuts(costs: PartitionCosts) -> list[list[int]]:
    """Unlike partitions to begin a search with: those of least sum within caps on stages and links that rise from the fastest
    slowest ones; [] where none is feasible.
    """
    tables, found = _tables(costs), list[list[int]]()
    rest, floor = _completions(tables)
    for caps in _rising(floor[:, 0, 0]) if rest[0, 0] < math.inf else ():
        once, cuts = _quickest_within(tables, caps)
        found += [cuts] if once < math.inf and cuts not in found else []
        if once == rest[0, 0]:
            break
    return found


def _rising(floor: Floats) -> Iterator[Floats]:
    """Caps on the seconds of stages and links in each pass, float64 [passes], from those of the fastest slowest ones to
    infinity.
    """
    yield floor
    for excess in EXCESSES:
        yield floor + (excess * floor.sum() if excess < math.inf else math.inf)


def _quickest_within(tables: Tables, caps: Floats) -> tuple[float, list[int]]:
    """The least sum of stages and links within the caps, and cuts that have it; inf and [] where there are none."""
    capped = _capped(tables, caps)
    rest, _ = _completions(capped)
    once = float(rest[0, 0])
    return once, _quickest_once(capped, rest).tolist() if once < math.inf else []


def _tables(costs: PartitionCosts) -> Tables:
    """The arrays of partition costs, without a limit of memory where they have none."""
    everywhere = np.full((len(costs.kind), costs.layers + 1), costs.layers)
    return Tables(
        np.ascontiguousarray(costs.stage_seconds),
        np.asarray(costs.kind, dtype=np.int64),
        np.ascontiguousarray(costs.link_seconds),
        np.ascontiguousarray(costs.latency_seconds),
        np.ascontiguousarray(everywhere if costs.furthest is None else costs.furthest, dtype=np.int64),
    )


def _capped(tables: Tables, caps: Floats) -> Tables:
    """The tables without the stages and links that take longer than `caps` in a pass, float64 [passes].

    Of stages: without the ends behind the last one within the caps; others remain where seconds fall as layers are added.
    """
    ends = _last_ends(tables.stage_seconds, np.ascontiguousarray(caps))
    links = np.where(tables.link_seconds <= caps[:, None, None], tables.link_seconds, np.inf)
    return tables._replace(link_seconds=links, furthest=np.minimum(tables.furthest, ends[tables.kind]))


@kernel()
def _last_ends(stage_seconds: Floats, caps: Floats) -> Integers:
    """The last end with which a stage is within the caps in every pass, by kind and first layer, int64 [kinds, layers + 1]; that
    layer where there is none.
    """
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
    """All partitions within `limit` seconds, and a share `slack` above the best, that no other beats in everything, best first.

    Bands of seconds of the slowest stage are halved while one has more than LABELS_AN_END partial partitions. In the narrowest
    bands, where all slowest stages are alike, only the sum counts: an end has few.
    """
    passes = len(tables.stage_seconds)
    found, bands = list[tuple[float, tuple[int, ...]]](), [(np.full(passes, -np.inf), np.full(passes, np.inf))]
    while bands:
        above, upto = bands.pop()
        band = _narrowed(tables, weight, limit, above, upto)
        if band is None:
            continue
        width = band.upto - band.least
        wide = bool((width > ROUNDING * band.upto).any())
        labels = _labels(
            band, weight, limit, int(LABELS_AN_END * tables.stage_seconds.shape[-1]) if wide else sys.maxsize
        )
        if labels is None:
            middle, split = band.least + 0.5 * width, np.arange(passes) == width.argmax()
            bands += [(np.where(split, middle, above), band.upto), (above, np.where(split, middle, band.upto))]
            continue
        found += [(once + weight * sum(slow), cuts) for once, slow, cuts in labels if all(np.array(slow) > above)]
        limit = min(limit, min(found)[0] * (1.0 + slack)) if found else limit
    return sorted(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Band:
    """Tables, and bounds on what follows, for partitions whose slowest stage of each pass takes from `least` to `upto` seconds.

    rest, floor: as `_completions` finds them for these tables
    """

    tables: Tables
    rest: Floats
    floor: Floats
    least: Floats
    upto: Floats


def _narrowed(tables: Tables, weight: float, limit: float, above: Floats, upto: Floats) -> _Band | None:
    """The band `above` < slowest <= `upto` without stages that `limit` seconds rule out; None where no partition is left."""
    capped = _capped(tables, upto)
    while True:
        rest, floor = _completions(capped)
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
    """Sum, slowest of each pass, and cuts of the partitions of a band that no other beats.

    None where more than `most` partial partitions of a stage are not beaten.
    """
    state, place = np.array([[0.0, *band.least]]), np.zeros((1, 2), dtype=np.int64)
    places = []
    for stage in range(len(band.tables.kind)):
        floor = np.ascontiguousarray(band.floor[:, stage + 1])  # one type for one pass and two: compiled once
        ahead = Ahead(band.rest[stage + 1], floor, weight, limit)
        state, place, complete = _extended(band.tables, stage, state, place, ahead, most)
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
def _completions(tables: Tables) -> tuple[Floats, Floats]:
    """Least sum, and least slowest of each pass, of stage s and all behind it (its own link first) where it begins at layer i.

    float64 [stages + 1, layers + 1] and [passes, stages + 1, layers + 1]; inf where that cannot be: where the stages before
    cannot reach so far, or those behind not the end
    """
    stage_seconds, kind, link_seconds, latency_seconds, furthest = tables
    passes, _, places, _ = stage_seconds.shape
    stages = kind.shape[0]
    rest, floor = np.full((stages + 1, places), np.inf), np.full((passes, stages + 1, places), np.inf)
    reach = np.zeros(stages + 1, dtype=np.int64)  # the last layer that each stage may begin at
    for stage in range(stages):
        for begin in range(stage, reach[stage] + 1):
            reach[stage + 1] = max(reach[stage + 1], min(furthest[stage, begin], places - stages + stage))
    rest[stages, places - 1] = 0.0
    floor[:, stages, places - 1] = 0.0
    for stage in range(stages - 1 if reach[stages] == places - 1 else -1, -1, -1):
        for begin in range(stage, reach[stage] + 1):
            for end in range(begin + 1, min(furthest[stage, begin], reach[stage + 1]) + 1):
                total = rest[stage + 1, end] + (latency_seconds[stage - 1, begin] if stage else 0.0)
                if total == np.inf:
                    continue
                for p in range(passes):
                    link = link_seconds[p, stage - 1, begin] if stage else 0.0
                    busy = stage_seconds[p, kind[stage], begin, end]
                    total += link + busy
                    slow = max(link, busy, floor[p, stage + 1, end])
                    floor[p, stage, begin] = min(floor[p, stage, begin], slow)
                rest[stage, begin] = min(rest[stage, begin], total)
    return rest, floor


@kernel()
def _quickest_once(tables: Tables, rest: Floats) -> Integers:
    """The cuts with the least sum, int64 [stages - 1]; of equal sums those with the fastest slowest stage, its link included.

    rest: least sums, of `_completions`; the first one is finite
    A tail is built from the last stage to the first: one with as small a sum and a faster slowest stage serves every front
    better.
    """
    stage_seconds, kind, link_seconds, latency_seconds, furthest = tables
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
    tables: Tables, stage: int, state: Floats, place: Integers, ahead: Ahead, most: int
) -> tuple[Floats, Integers, bool]:
    """Every partial partition with one stage more that no other beats: its sum and slowest of each pass; its end and the row it
    extends.

    The third value is False where there are more than `most`.
    """
    stage_seconds, kind, link_seconds, latency_seconds, furthest = tables
    rest, floor, _, limit = ahead
    passes, _, places, _ = stage_seconds.shape
    count, filled = state.shape[0], 0
    new_state, new_place = np.empty((places, 1 + passes)), np.empty((places, 2), dtype=np.int64)
    fresh, value, parent = np.empty((count, 1 + passes)), np.empty(count), np.empty(count, dtype=np.int64)
    rows_of = np.full(places + 1, count)  # of each layer, the first row that begins there: rows stand by their ends
    for row in range(count - 1, -1, -1):
        rows_of[place[row, 0]] = row
    for end in range(places - 1, -1, -1):
        rows_of[end] = min(rows_of[end], rows_of[end + 1])
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
            if not _least_seconds(ideal, begin, step, ahead, end) <= limit:
                continue
            for row in range(rows_of[begin], rows_of[begin + 1]):
                least = _least_seconds(state, row, step, ahead, end)
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
                for column in range(1 + passes):
                    new_state[filled, column] = fresh[one, column]
                new_place[filled, 0], new_place[filled, 1] = end, parent[one]
                filled += 1
    return new_state[:filled], new_place[:filled], True


@kernel(inner=True, borrows=True)
def _least_seconds(states: Floats, row: int, step: Floats, ahead: Ahead, end: int) -> float:
    """Least makespan that can follow from a partial partition (sum, slowest of each pass) and a step that ends before `end`."""
    rest, floor, weight, _ = ahead
    bottleneck = 0.0
    for p in range(floor.shape[0]):
        bottleneck += max(states[row, 1 + p], step[1 + p], floor[p, end])
    least: float = states[row, 0] + step[0] + rest[end] + weight * bottleneck
    return least
