"""Climbs: cuts of a pipeline are moved while that is faster, by quick replays of many partitions at once, some microseconds each.

Their seconds are an estimate to choose by, where the quick replay of a plan is a bound: transfers and reductions of replicas
take turns on the channels that they share, and gradients that are reduced in buckets hide behind the last backward but for the
last bucket.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers, Phase
from planners.estimate.memory import stage_begins
from planners.joint.neighbourhood import MANY
from planners.joint.pipeline import Pipeline
from planners.partitioning.cut_moves import climbed, moved, relocated
from planners.partitioning.fastest_cuts import first_cuts
from planners.partitioning.partition_costs import PartitionCosts
from planners.search.candidates import cut_places
from planners.search.quick_replay import (
    BACK,
    KINDS,
    PHASES,
    ROWS,
    CutSeconds,
    OrderColumns,
    QuickReplays,
    columns_of,
    replay_cuts,
    seconds_before,
)
from planners.search.remembered import remembered
from simulator import Kept, LayerCosts, PlanCosts, Problem, Recompute, Schedule, equal_microbatches, schedule_families

OPS, BY_STAGE = 500.0, 2.0
"""Ops of quick replays of many partitions that take as long as a unit of `replay_work`, and units by stage of what they need."""

FIRST_PLACES = 64
"""Places, at most, among which the partitions to begin climbs with are cut."""

MOST_KEPT = 2**24
"""Numbers of the tables that are kept for the next pipelines."""

Rank = tuple[int, ...]
"""Devices of a rank."""


class _RankReduction(NamedTuple):
    """What the replicas of a rank reduce: seconds per weight element, those of a last bucket, and the share of these for which
    each channel is busy; and seconds per weight element that an op of each of KINDS waits for them.
    """

    by_weight: float = 0.0
    bucket: float = inf
    busy: tuple[tuple[int, float], ...] = ()
    waits: tuple[float, ...] = (0.0,) * len(KINDS)


class _Links(NamedTuple):
    """What pipelines on the same ranks have in common: `CutSeconds` says of what.

    layers: costs of a member of their groups; devices, replicas: of each stage, the first device and how many
    waits: of each stage, seconds per weight element that an op of each of KINDS waits for other replicas
    """

    layers: LayerCosts
    devices: tuple[int, ...]
    replicas: tuple[int, ...]
    waits: tuple[tuple[float, ...], ...]
    latency: Floats
    byte_seconds: Floats
    busy_seconds: Floats
    reductions: Floats
    bucket: Floats
    loads: Floats
    furthest: Integers


class _Sized(NamedTuple):
    """A value that is kept, by how many numbers it holds."""

    numbers: int
    links: _Links | None = None
    tables: tuple[OrderColumns, CutSeconds] | None = None
    first: Integers | None = None

    def __len__(self) -> int:
        return self.numbers


class Climbs:
    """The cuts of the pipelines of one problem; work: that climbs took so far, in units of `replay_work`."""

    def __init__(self, problem: Problem, layers: LayerCosts, quick: QuickReplays) -> None:
        self.problem, self.layers, self.quick = problem, layers, quick
        self.places, self.work = stage_begins(problem), 0.0
        self._known: Kept[object, _Sized] = Kept()
        self._reductions = dict[object, _RankReduction]()
        self._members = dict[object, LayerCosts]()

    def seconds(self, one: Pipeline, cuts: Integers) -> Floats | None:
        """Estimated seconds of partitions of a pipeline, float64 [partitions], inf for those that cannot be.

        cuts: int64 [partitions, stages - 1]
        None where they are not known: on boards that stream, of two directions and of slices, where stages wait for collectives
        of groups of unlike sizes, and where they run a number of blocks again.
        """
        tables = self._tables(one)
        return None if tables is None else self._replayed(*tables, cuts)

    def begun(self, one: Pipeline) -> tuple[float, Pipeline] | None:
        """A pipeline with the fastest of its cuts and those to begin with, and its estimated seconds; None where these are not
        known.
        """
        tables = self._tables(one)
        if tables is None:
            return None
        begun = self._with_first(one, tables[1])
        seconds = self._replayed(*tables, begun)
        least = seconds.argmin()
        return float(seconds[least]), replace(one, cuts=tuple(begun[least].tolist()))

    def climbed(self, one: Pipeline, order: Schedule | None = None) -> tuple[float, Pipeline] | None:
        """Where moves of cuts lead from a pipeline with the fastest of its cuts and those to begin with, and its estimated
        seconds; None where these are not known.

        order: of its ops, if not its family's
        """
        tables = self._tables(one)
        if tables is None:
            return None
        if order is not None:
            samples = np.array(equal_microbatches(self.problem.batch, one.microbatches))
            tables = columns_of(order, samples), tables[1]
        columns, costs = tables
        begun, few = self._with_first(one, costs), len(one.cuts) <= MANY

        def quick(near: Integers) -> Floats:
            return self._replayed(columns, costs, near)

        def near(at: Integers) -> Integers:
            one_moved = moved(at, self.places, runs=few)
            return np.vstack([one_moved, relocated(at, self.places)]) if few else one_moved

        there = climbed(begun[quick(begun).argmin()], quick, near)[:1]
        return float(quick(there)[0]), replace(one, cuts=tuple(there[0].tolist()))

    @remembered
    def before(self, layers: LayerCosts, device: int, samples: int, phase: Phase, again: Recompute) -> Floats:
        """As `seconds_before`."""
        return seconds_before(layers, device, samples, phase, again)

    def _replayed(self, order: OrderColumns, costs: CutSeconds, cuts: Integers) -> Floats:
        self.work += len(cuts) * len(order.stage) / OPS
        return np.asarray(replay_cuts(order, costs, ROWS, cuts))

    def _with_first(self, one: Pipeline, costs: CutSeconds) -> Integers:
        """The cuts of a pipeline, and those to begin with."""
        key = "first", replace(one, cuts=())
        known = self._known.used(key)
        if known is None:
            first = self._first(costs)
            self._known.keep(key, known := _Sized(max(first.size, 1), first=first), MOST_KEPT)
        assert known.first is not None
        return np.vstack([np.array([one.cuts], dtype=np.int64), known.first])

    @cached_property
    def _first_places(self) -> Integers:
        """Where partitions to begin with are cut, and both ends: of many places those that least crosses, of each part of the
        seconds.
        """
        layers = len(self.problem.workload)
        places = np.array([0, *cut_places(self.problem.workload), layers], dtype=np.int64)
        if len(places) <= FIRST_PLACES + 2:
            return places
        before = np.cumsum(self.layers.round_trip_seconds(0, 1))[places[1:-1] - 1]
        part = np.minimum(before * (FIRST_PLACES / before[-1]), FIRST_PLACES - 1).astype(np.int64)
        least = np.lexsort((self.layers.cut_bytes[places[1:-1]], part))
        chosen = least[np.unique(part[least], return_index=True)[1]]
        return np.concatenate([[0], np.sort(places[1:-1][chosen]), [layers]])

    def _first(self, costs: CutSeconds) -> Integers:
        """Cuts to begin with: that even out stages and links, and let less and less cross; a single one everywhere."""
        places, stages = self._first_places, len(costs.kind)
        if stages <= 2 or len(places) <= stages:
            return places[1:-1, None] if stages == 2 else np.empty((0, stages - 1), dtype=np.int64)
        before = (costs.before[0] + costs.before[1])[:, -1, places]
        link = costs.crossing[-1, places] * costs.byte_seconds.max(axis=0)[:, None]
        latency = np.zeros_like(link) + costs.latency.sum(axis=0)[:, None]
        own = np.maximum(before[:, None, :] - before[:, :, None], 0.0)
        found = first_cuts(PartitionCosts(own[None], tuple(costs.kind.tolist()), link[None], latency))
        return places[np.array(found, dtype=np.int64).reshape(len(found), stages - 1)]

    def _tables(self, one: Pipeline) -> tuple[OrderColumns, CutSeconds] | None:
        """The order and the seconds of pipelines that differ in cuts alone."""
        key = replace(one, cuts=())
        known = self._known.used(key)
        if known is None:
            found = self._made(one)
            self.work += BY_STAGE * one.stages
            known = _Sized(1 if found is None else found[1].before.size, tables=found)
            self._known.keep(key, known, MOST_KEPT)
        return known.tables

    def _made(self, one: Pipeline) -> tuple[OrderColumns, CutSeconds] | None:
        try:
            links = self._links(one)
            if links is None:
                return None
            order = self.quick.order(one.schedule, one.stages, one.microbatches, one.chunks, one.options)
        except ValueError:  # counts that its placement or its schedule cannot have
            return None
        samples, layers = np.array(equal_microbatches(self.problem.batch, one.microbatches)), links.layers
        kinds, words = map(layers.kind_of_device, links.devices), (policy for policy, _ in one.recompute)
        rows, sizes = [*zip(kinds, links.replicas, words, links.waits, strict=True)], np.unique(samples)
        alike = dict(zip(rows, links.devices, strict=True))
        before = [
            [
                [
                    self.before(layers, device, part, PHASES[kind], again if kind in BACK else "none")
                    + waits[row] * layers.parameters_before
                    for part in (-(-sizes // copies)).tolist()
                ]
                for (_, copies, again, waits), device in alike.items()
            ]
            for row, kind in enumerate(KINDS)
        ]
        devices, places = alike.values(), {row: place for place, row in enumerate(alike)}
        return columns_of(order, samples), CutSeconds(
            before=np.array(before),
            beside=np.array([[layers.pass_seconds(one, PHASES[kind]) for one in devices] for kind in KINDS]),
            kind=np.array([places[row] for row in rows]),
            crossing=layers.cut_bytes * sizes[:, None],
            latency=links.latency,
            byte_seconds=links.byte_seconds,
            busy_seconds=links.busy_seconds,
            overlap=float(self.problem.overlap),
            reductions=links.reductions,
            bucket=links.bucket,
            loads=links.loads * np.array([1.0, self.problem.batch / sizes[0]])[:, None],
            updates=np.array([self._updates(layers, device) for device in devices]),
            furthest=links.furthest,
        )

    @remembered
    def _updates(self, layers: LayerCosts, device: int) -> Floats:
        elements = layers.parameters_before
        return np.asarray(elements * (layers.update_seconds(device, elements[-1]) / max(elements[-1], 1.0)))

    def _links(self, one: Pipeline) -> _Links | None:
        """What pipelines on these ranks have in common; None where that is not all that there is."""
        if one.opposite or one.slices > 1 or any(count for _, count in one.recompute):
            return None
        placement = schedule_families()[one.schedule].placement
        key = placement, one.ranks, one.chunks, one.group, one.context, one.expert, one.zero, one.shard
        known = self._known.used(key)
        if known is None:
            held = [one.ranks[rank] for rank in one.rank_of_stage]
            found = self._found_links(one, held) if self._are_known(one, held) else None
            known = _Sized(1 if found is None else 2 * found.reductions.size, links=found)
            self._known.keep(key, known, MOST_KEPT)
        return known.links

    def _are_known(self, one: Pipeline, held: list[Rank]) -> bool:
        """Whether the devices of a pipeline's stages wait for nothing but transfers, replicas and groups of like devices."""
        kinds = self.layers.kind_of_device
        if any(self.layers.streams(own[0]) for own in held):
            return False
        return one.group == 1 or (
            len(set(one.replicas)) == 1 and all(len(set(map(kinds, own[: one.group]))) == 1 for own in held)
        )

    def _found_links(self, one: Pipeline, held: list[Rank]) -> _Links:
        costs, stages = _CostsOf(self, one), one.stages
        replicas, numbers = tuple(len(own) // one.group for own in held), np.zeros((3, 2, stages - 1))
        loads: defaultdict[int, Floats] = defaultdict(lambda: np.zeros((2, stages)))
        for stage, pair in enumerate(pairwise(held)):
            for way, (near, far) in enumerate((pair, pair[::-1])):
                latency, alone, busy = self._transfer(near, far, one.group)
                longest = max(busy.values(), default=0.0)
                numbers[:, way, stage] = latency, max(alone, longest), longest
                for channel, seconds in busy.items():
                    loads[channel][1, stage] += seconds
        elements = self.layers.parameters_before
        reductions, bucket = np.zeros((stages, len(elements))), np.full(stages, inf)
        reduced = [self._reduction(costs, stage, own) for stage, own in enumerate(held)]
        for stage, reduction in enumerate(reduced):
            reductions[stage], bucket[stage] = elements * reduction.by_weight, reduction.bucket
            for channel, share in reduction.busy:
                loads[channel][0, stage] += share
        unlike = np.unique(np.array([*loads.values()]).reshape(-1, 2 * stages), axis=0).reshape(-1, 2, stages)
        latencies, byte_seconds, busy_seconds = map(np.ascontiguousarray, numbers)
        return _Links(
            layers=self._member(costs),
            devices=tuple(own[0] for own in held),
            replicas=replicas,
            waits=tuple(reduction.waits for reduction in reduced),
            latency=latencies,
            byte_seconds=byte_seconds,
            busy_seconds=busy_seconds,
            reductions=reductions,
            bucket=bucket,
            loads=np.ascontiguousarray(unlike),
            furthest=np.full((stages, len(elements)), len(elements) - 1),
        )

    @remembered
    def _transfer(self, near: Rank, far: Rank, group: int) -> tuple[float, float, dict[int, float]]:
        """Latency of a transfer between two ranks, its seconds per byte of a micro-batch, and those for which channels are busy.

        Each replica sends its samples to the replicas that take them, by the first device of its group.
        """
        cluster, copies, others = self.problem.cluster, len(near) // group, len(far) // group
        if near == far:
            return 0.0, 0.0, {}
        latency, bandwidth = cluster.point_to_point(near[0], far[0])
        busy: defaultdict[int, float] = defaultdict(float)
        for source in range(copies if self.problem.contention else 0):
            for target in range(source * others // copies, -(-(source + 1) * others // copies)):
                shared = min((source + 1) / copies, (target + 1) / others) - max(source / copies, target / others)
                for channel in cluster.route(near[source * group], far[target * group]):
                    busy[channel] += shared / cluster.channels[channel].bandwidth
        return latency, 1.0 / bandwidth / max(copies, others), dict(busy)

    def _reduction(self, costs: _CostsOf, stage: int, own: Rank) -> _RankReduction:
        """What a rank reduces, as the first of its stages does that is asked for."""
        one = costs.pipeline
        if len(own) == 1:
            return _RankReduction()
        key = own, one.group, one.context, one.expert, one.zero, one.shard
        if key not in self._reductions:
            self._reductions[key] = _reduction_of(costs.made, stage)
        return self._reductions[key]

    def _member(self, costs: _CostsOf) -> LayerCosts:
        """Costs of the layers on a member of a pipeline's groups."""
        one = costs.pipeline
        anywhere = one.group == one.expert == 1 and not self.problem.stack.straggles
        key = None if anywhere else (one.ranks, one.group, one.context, one.expert)
        if key not in self._members:
            self._members[key] = costs.made.member_costs(0, 0)
        return self._members[key]


class _CostsOf:
    """The costs of a pipeline's plan, made when they are first asked for."""

    def __init__(self, climbs: Climbs, pipeline: Pipeline) -> None:
        self._climbs, self.pipeline = climbs, pipeline

    @cached_property
    def made(self) -> PlanCosts:
        """The costs; ValueError for counts that its placement cannot have."""
        problem = self._climbs.problem
        return PlanCosts(problem, self.pipeline.plan(problem, ""), self._climbs.layers)


def _reduction_of(costs: PlanCosts, stage: int) -> _RankReduction:
    own, held, elements = costs.collectives(stage), costs.plan.stages[stage].layers, costs.layers.parameters_before
    seconds = sum(bucket.seconds for bucket in own.buckets) + sum(unit.scatter for unit in own.units)
    seconds += own.update_gather.seconds if own.update_gather else 0.0
    weights = elements[held[-1] + 1] - elements[held[0]]
    route, shares = own.busy if own.buckets else ((), ())
    return _RankReduction(
        float(seconds / weights) if weights else 0.0,
        own.buckets[-1].seconds if len(own.buckets) > 1 else inf,
        tuple(zip(route, shares or (1.0,) * len(route), strict=True)),
        tuple(float(costs.exposed_seconds(kind, stage) / weights) if weights else 0.0 for kind in KINDS),
    )
