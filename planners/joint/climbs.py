"""Climbs: local searches that move the cuts of a pipeline while estimates of its seconds fall, without replays.

An estimate is a quick replay of many partitions at once, some microseconds each. Other than the quick replay of a plan it is no
lower bound: transfers, and reductions of replicas, take turns on the channels that they share, and of gradients that are reduced
in buckets all but the last bucket hide behind the last backward.
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
"""OPS: ops of these quick replays that count as a unit of `replay_work`; BY_STAGE: units per stage for the tables that they
read.
"""

FIRST_PLACES = 64
"""Places, at most, at which the first partitions of climbs are cut."""

MOST_KEPT = 2**24
"""Numbers, at most, in tables that are kept for later pipelines."""

Rank = tuple[int, ...]
"""Devices of a rank, replica after replica."""


class _RankReduction(NamedTuple):
    """How the replicas of a rank reduce their gradients.

    by_weight: seconds per weight element; bucket: seconds of the last bucket, inf where gradients are reduced at once
    busy: channels, each with the share of these seconds for which it is busy
    waits: seconds per weight element that an op of each of KINDS waits for other replicas
    """

    by_weight: float = 0.0
    bucket: float = inf
    busy: tuple[tuple[int, float], ...] = ()
    waits: tuple[float, ...] = (0.0,) * len(KINDS)


class _Links(NamedTuple):
    """What pipelines on the same ranks have in common, whatever their cuts; further fields are those of `CutSeconds`.

    layers: costs of a member of their groups; devices, replicas: of each stage, its first device and the number of its replicas
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
    """A value that is kept (one of the three), with how many numbers it holds."""

    numbers: int
    links: _Links | None = None
    tables: tuple[OrderColumns, CutSeconds] | None = None
    first: Integers | None = None

    def __len__(self) -> int:
        return self.numbers


class Climbs:
    """Estimates and climbs of the pipelines of one problem.

    work: work of all climbs so far, in units of `replay_work`
    """

    def __init__(self, problem: Problem, layers: LayerCosts, quick: QuickReplays) -> None:
        self.problem, self.layers, self.quick = problem, layers, quick
        self.places, self.work = stage_begins(problem), 0.0
        self._known: Kept[object, _Sized] = Kept()
        self._reductions = dict[object, _RankReduction]()
        self._members = dict[object, LayerCosts]()

    def seconds(self, pipeline: Pipeline, cuts: Integers) -> Floats | None:
        """Estimated seconds of partitions of a pipeline, float64 [partitions]; inf where a stage has no layer.

        cuts: int64 [partitions, stages - 1], layers before each boundary between stages
        None where estimates do not cover the pipeline: boards that stream, two directions, slices, recomputation of some of a
        stage's blocks, groups of unlike devices or in unequal numbers, or counts that its schedule cannot have.
        """
        tables = self._tables(pipeline)
        return None if tables is None else self._replayed(*tables, cuts)

    def begun(self, pipeline: Pipeline) -> tuple[float, Pipeline] | None:
        """Estimated seconds and the pipeline under the fastest of its own cuts and the first cuts; None without estimates."""
        tables = self._tables(pipeline)
        if tables is None:
            return None
        begun = self._with_first(pipeline, tables[1])
        seconds = self._replayed(*tables, begun)
        least = seconds.argmin()
        return float(seconds[least]), replace(pipeline, cuts=tuple(begun[least].tolist()))

    def climbed(self, pipeline: Pipeline, order: Schedule | None = None) -> tuple[float, Pipeline] | None:
        """Estimated seconds and the pipeline at which moves of cuts end that begin with the fastest of its own cuts and the first
        cuts.

        order: of its ops, in place of its family's
        None without estimates, as of `seconds`.
        """
        tables = self._tables(pipeline)
        if tables is None:
            return None
        if order is not None:
            samples = np.array(equal_microbatches(self.problem.batch, pipeline.microbatches))
            tables = columns_of(order, samples), tables[1]
        columns, costs = tables
        begun, few = self._with_first(pipeline, costs), len(pipeline.cuts) <= MANY

        def quick(near: Integers) -> Floats:
            return self._replayed(columns, costs, near)

        def near(at: Integers) -> Integers:
            one_moved = moved(at, self.places, runs=few)
            return np.vstack([one_moved, relocated(at, self.places)]) if few else one_moved

        there = climbed(begun[quick(begun).argmin()], quick, near)[:1]
        return float(quick(there)[0]), replace(pipeline, cuts=tuple(there[0].tolist()))

    @remembered
    def before(self, layers: LayerCosts, device: int, samples: int, phase: Phase, again: Recompute) -> Floats:
        """Seconds of a pass of all layers before each cut, as of `seconds_before`, computed once for each choice of arguments."""
        return seconds_before(layers, device, samples, phase, again)

    def _replayed(self, order: OrderColumns, costs: CutSeconds, cuts: Integers) -> Floats:
        """Quick replays of partitions, float64 [partitions]; their work is counted."""
        self.work += len(cuts) * len(order.stage) / OPS
        return np.asarray(replay_cuts(order, costs, ROWS, cuts))

    def _with_first(self, pipeline: Pipeline, costs: CutSeconds) -> Integers:
        """A pipeline's own cuts and the first cuts, int64 [partitions, stages - 1]."""
        key = "first", replace(pipeline, cuts=())
        known = self._known.used(key)
        if known is None:
            first = self._first(costs)
            self._known.keep(key, known := _Sized(max(first.size, 1), first=first), MOST_KEPT)
        assert known.first is not None
        return np.vstack([np.array([pipeline.cuts], dtype=np.int64), known.first])

    @cached_property
    def _first_places(self) -> Integers:
        """Layers before each place at which first partitions are cut, both ends included, int64 [places].

        Of more than FIRST_PLACES places those are chosen that least bytes cross, one in each equal part of the network's seconds.
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
        """First cuts: partitions that even out stages and links while less and less may cross, int64 [partitions, stages - 1]; of
        two stages every cut.
        """
        places, stages = self._first_places, len(costs.kind)
        if stages <= 2 or len(places) <= stages:
            return places[1:-1, None] if stages == 2 else np.empty((0, stages - 1), dtype=np.int64)
        before = (costs.before[0] + costs.before[1])[:, -1, places]
        link = costs.crossing[-1, places] * costs.byte_seconds.max(axis=0)[:, None]
        latency = np.zeros_like(link) + costs.latency.sum(axis=0)[:, None]
        own = np.maximum(before[:, None, :] - before[:, :, None], 0.0)
        found = first_cuts(PartitionCosts(own[None], tuple(costs.kind.tolist()), link[None], latency))
        return places[np.array(found, dtype=np.int64).reshape(len(found), stages - 1)]

    def _tables(self, pipeline: Pipeline) -> tuple[OrderColumns, CutSeconds] | None:
        """The order of ops and the seconds by cut of a pipeline, which those that differ in cuts alone share; None without
        estimates.
        """
        key = replace(pipeline, cuts=())
        known = self._known.used(key)
        if known is None:
            found = self._made(pipeline)
            self.work += BY_STAGE * pipeline.stages
            known = _Sized(1 if found is None else found[1].before.size, tables=found)
            self._known.keep(key, known, MOST_KEPT)
        return known.tables

    def _made(self, pipeline: Pipeline) -> tuple[OrderColumns, CutSeconds] | None:
        """The tables of `_tables`, made anew."""
        try:
            links = self._links(pipeline)
            if links is None:
                return None
            order = self.quick.order(
                pipeline.schedule, pipeline.stages, pipeline.microbatches, pipeline.chunks, pipeline.options
            )
        except ValueError:  # counts that its placement or its schedule cannot have
            return None
        samples, layers = np.array(equal_microbatches(self.problem.batch, pipeline.microbatches)), links.layers
        kinds, policies = map(layers.kind_of_device, links.devices), (policy for policy, _ in pipeline.recompute)
        rows, sizes = [*zip(kinds, links.replicas, policies, links.waits, strict=True)], np.unique(samples)
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
        """Seconds of the update of the layers before each cut on a device, float64 [layers + 1]."""
        elements = layers.parameters_before
        return np.asarray(elements * (layers.update_seconds(device, elements[-1]) / max(elements[-1], 1.0)))

    def _links(self, pipeline: Pipeline) -> _Links | None:
        """Links, replicas and reductions of a pipeline's ranks; None where its devices wait for something that these do not
        tell.
        """
        if pipeline.opposite or pipeline.slices > 1 or any(count for _, count in pipeline.recompute):
            return None
        placement = schedule_families()[pipeline.schedule].placement
        key = (
            placement,
            pipeline.ranks,
            pipeline.chunks,
            pipeline.group,
            pipeline.context,
            pipeline.expert,
            pipeline.zero,
            pipeline.shard,
        )
        known = self._known.used(key)
        if known is None:
            held = [pipeline.ranks[rank] for rank in pipeline.rank_of_stage]
            found = self._found_links(pipeline, held) if self._are_known(pipeline, held) else None
            known = _Sized(1 if found is None else 2 * found.reductions.size, links=found)
            self._known.keep(key, known, MOST_KEPT)
        return known.links

    def _are_known(self, pipeline: Pipeline, held: list[Rank]) -> bool:
        """Whether the devices of all stages wait for nothing but transfers, replicas, and groups of like devices; held: rank of
        each stage
        """
        kinds = self.layers.kind_of_device
        if any(self.layers.streams(own[0]) for own in held):
            return False
        return pipeline.group == 1 or (
            len(set(pipeline.replicas)) == 1 and all(len(set(map(kinds, own[: pipeline.group]))) == 1 for own in held)
        )

    def _found_links(self, pipeline: Pipeline, held: list[Rank]) -> _Links:
        """The links of `_links`, made anew; held: rank of each stage"""
        costs, stages = _CostsOf(self, pipeline), pipeline.stages
        replicas, numbers = tuple(len(own) // pipeline.group for own in held), np.zeros((3, 2, stages - 1))
        loads: defaultdict[int, Floats] = defaultdict(lambda: np.zeros((2, stages)))
        for stage, pair in enumerate(pairwise(held)):
            for way, (near, far) in enumerate((pair, pair[::-1])):
                latency, alone, busy = self._transfer(near, far, pipeline.group)
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
        """Latency of a transfer between two ranks, its seconds per byte of a micro-batch, and by channel the seconds per byte
        that it is busy.

        Each replica sends its samples to the replicas that take them, from the first device of its group.
        """
        cluster, copies, others = self.problem.cluster, len(near) // group, len(far) // group
        if near == far or not self.problem.sends_behind:
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
        """How the replicas of a rank reduce: as those of the first of its stages that was asked for, for all that share the
        rank.
        """
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
    """The costs of a pipeline's plan, made when they are first read."""

    def __init__(self, climbs: Climbs, pipeline: Pipeline) -> None:
        self._climbs, self.pipeline = climbs, pipeline

    @cached_property
    def made(self) -> PlanCosts:
        """The costs; ValueError for counts that the pipeline's placement cannot have."""
        problem = self._climbs.problem
        return PlanCosts(problem, self.pipeline.plan(problem, ""), self._climbs.layers)


def _reduction_of(costs: PlanCosts, stage: int) -> _RankReduction:
    """How the replicas of a stage of a plan reduce, per weight element of the stage."""
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
