"""PipeDream's partitioner: stages and replicas of the pipeline whose slowest stage is fastest.

Symbols (SOSP 2019, section 3.1): level k joins m_k components of level k-1 by links of bandwidth B_k; level 0 is
one device.
T^k(i..j, m) = (1/m) max( A^{k-1}(i..j, m_{k-1}), synchronisation of W(i..j) over m at B_k )
A^k(i..j, m) = min( T^k(i..j, m), min over s, m' of max( A^k(i..s, m-m'), 2 a_s / B_k, T^k(s+1..j, m') ) )
Only the top level needs prefixes alone; a lower level needs every slice.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from math import ceil, inf, isfinite, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Floats, Level
from planners.pipedream.dynamic_program import (
    BARRIER,
    RING,
    SCRIPT,
    Integers,
    LevelCosts,
    RowSlices,
    RowTables,
    StateTotals,
    VersionMemory,
    fewest_workers,
    furthest_states,
    solve_all_rows,
    solve_row,
    stage_seconds,
    synchronization_seconds,
)
from planners.pipedream.state_table import StateTable
from simulator import AntichainStates, InfeasiblePlanError

SHARES = 1.01, 1.1, 1.3, 1.6, 2.0, 2.5, 4.0
"""Limits on the slowest stage's seconds that are tried first, as multiples of the least that it can take."""

NEAR = 6
"""States on both sides of a stage's first state whose slices are computed anew, too, where memory makes the stage slower."""

BISECTIONS = 10
"""Halvings of the interval that holds the lower bound on the slowest stage's seconds."""

VARIANTS = {"paper": RING, "barrier": BARRIER, "script": SCRIPT}

_Context = tuple[int, Fraction]  # a level, and the workers downstream of one of its components


class InfeasiblePartition(InfeasiblePlanError):
    """No partition of the network fits into the devices' memory."""


@dataclass(frozen=True, slots=True)
class LevelStage:
    """A stage of one level: states [start, stop) on `workers` components of the level below."""

    start: int
    stop: int
    workers: int


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of the whole plan.

    start, stop: its states [start, stop)
    layers: indices of its layers in the workload
    workers: replicas per level, lowest level first; their product is `replicas`
    """

    start: int
    stop: int
    layers: tuple[int, ...]
    workers: tuple[int, ...]

    @property
    def replicas(self) -> int:
        """Devices that hold a copy of the stage."""
        return prod(self.workers)


@dataclass(frozen=True, slots=True)
class HierarchicalPartition:
    """The best partition: its stages, from input to output, and seconds by the search's own model.

    levels: the stages of each level, lowest first; those of a level refine those of the next one
    slowest_stage_seconds: seconds per mini-batch in the steady state
    one_device_seconds: seconds per mini-batch on one device
    data_parallel_seconds: seconds per mini-batch of plain data parallelism over all devices, by the same form
    planning_seconds: wall-clock of the search, its kernels compiled
    """

    variant: str
    workers_per_level: tuple[int, ...]
    stages: tuple[PlannedStage, ...]
    levels: tuple[tuple[LevelStage, ...], ...]
    slowest_stage_seconds: float
    one_device_seconds: float
    data_parallel_seconds: float
    planning_seconds: float

    @property
    def speedup_over_one(self) -> float:
        """Throughput per throughput of one device."""
        return self.one_device_seconds / self.slowest_stage_seconds

    @property
    def data_parallel_speedup_over_one(self) -> float:
        """Throughput of plain data parallelism per throughput of one device."""
        return self.one_device_seconds / self.data_parallel_seconds

    @property
    def speedup_over_dp(self) -> float:
        """Throughput per throughput of plain data parallelism on as many devices."""
        return self.data_parallel_seconds / self.slowest_stage_seconds


def notation(partition: HierarchicalPartition) -> str:
    """The papers' name of a partition: replicas of its stages (`15-1`; `16` is one stage), or `straight` if all are 1."""
    replicas = [stage.replicas for stage in partition.stages]
    if len(replicas) > 1 and all(count == 1 for count in replicas):
        return "straight"
    return "-".join(str(count) for count in replicas)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The memory of a device, and what a stage keeps beside the weight versions and mini-batches of PipeDream's runtime.

    capacity_bytes: of a device
    unversioned_copies: of the weights, for gradients and optimizer; replicated_copies: more of them on a stage with replicas on
    the lowest level
    recompute: a stage keeps its input of the mini-batches in flight, and the stash of one
    Raises ValueError for a capacity that is not a number of bytes above 0.
    """

    capacity_bytes: float = inf
    unversioned_copies: float = 1.0
    replicated_copies: float = 0.0
    recompute: bool = False

    def __post_init__(self) -> None:
        if not self.capacity_bytes > 0:
            raise ValueError(f"memory of a device must be a number of bytes > 0, got {self.capacity_bytes}")


UNLIMITED = MemoryLimit()


def network_levels(workers: Sequence[int], bandwidths: Sequence[float]) -> tuple[Level, ...]:
    """Levels of a cluster, lowest first, whose all-reduce reaches the rate of their links: workers (4, 4) are 4 servers of 4
    devices.

    bandwidths: bytes per second. Raises ValueError unless there is one for each level.
    """
    if len(workers) != len(bandwidths):
        raise ValueError(f"bandwidths must be {len(workers)}, one per level, got {tuple(bandwidths)}")
    return tuple(Level(width, bandwidth, bandwidth) for width, bandwidth in zip(workers, bandwidths, strict=True))


def partition(
    table: StateTable,
    levels: Sequence[Level],
    *,
    variant: str = "paper",
    straight: bool = False,
    memory: MemoryLimit = UNLIMITED,
    activation_transfers: bool = True,
) -> HierarchicalPartition:
    """The partition whose slowest stage is fastest; every worker has a place in it.

    levels: of the cluster, lowest first
    variant: "paper", all-reduce by a ring, 2 (m-1)/m W/B, overlapped with compute; "barrier", the same ring after the compute,
    while replicas wait for it; "script", PipeDream's published program, which adds 4 (m-1)/m W/B to it and divides transfers by
    the replicas
    straight: no stage has a second replica
    memory: of a device. Paper: as many weight versions and stashed mini-batches as PipeDream's runtime keeps (1 + workers
    downstream / replicas, rounded up), and what `MemoryLimit` adds. Script: its own test, a level at a time, ceil(workers
    downstream / replicas) x (outputs + weights).
    activation_transfers: whether activations and their gradients take time between stages
    Raises ValueError for options outside these rules, InfeasiblePartition if no partition fits into memory.
    """
    _load_kernels()
    began = time.perf_counter()
    search = _Levels(table, _checked_levels(levels), _checked_variant(variant), straight, activation_transfers, memory)
    workers = tuple(level.width for level in levels)
    slowest, stages = search.fastest()
    if not isfinite(slowest):
        what = "straight partition" if straight else "partition"
        raise InfeasiblePartition(
            f"a {what} of {len(table)} states over {prod(workers)} workers must exist"
            + (f" within {memory.capacity_bytes:.4g} bytes per device" if isfinite(memory.capacity_bytes) else "")
            + ", none does; use fewer workers, replicas or more memory"
        )
    return HierarchicalPartition(
        variant=variant,
        workers_per_level=workers,
        stages=flattened(table.states, stages),
        levels=tuple(map(tuple, stages)),
        slowest_stage_seconds=slowest,
        one_device_seconds=table.one_device_seconds,
        data_parallel_seconds=search.data_parallel_seconds(),
        planning_seconds=time.perf_counter() - began,
    )


def plan_seconds(
    table: StateTable,
    stages: Sequence[Sequence[LevelStage]],
    levels: Sequence[Level],
    *,
    variant: str = "paper",
    activation_transfers: bool = True,
) -> float:
    """Seconds per mini-batch of the slowest stage of a given partition, by the search's own cost functions; memory is not tested.

    stages: as of `HierarchicalPartition.levels`; levels: of the cluster; lowest first, both
    """

    def pipeline_seconds(level: int, start: int, stop: int) -> float:
        if level < 0:
            return slice_total(table.seconds, start, stop)
        return max(
            stage_cost(
                table,
                stage,
                pipeline_seconds(level - 1, stage.start, stage.stop),
                levels[: level + 1],
                first=stage.start == start,
                variant=variant,
                activation_transfers=activation_transfers,
            )
            for stage in stages[level]
            if start <= stage.start < stop
        )

    return pipeline_seconds(len(stages) - 1, 0, len(table))


def stage_cost(
    table: StateTable,
    stage: LevelStage,
    inner_seconds: float,
    levels: Sequence[Level],
    *,
    first: bool,
    variant: str,
    activation_transfers: bool,
) -> float:
    """Seconds per mini-batch of one stage of one level: its T, and the transfers that the form charges to it.

    inner_seconds: seconds of its states on one component of its level
    levels: of the cluster up to the stage's own, which is the last
    first: whether the stage begins its pipeline; nothing is sent to it then
    """
    form = _checked_variant(variant)
    parameters = slice_total(table.parameter_bytes, stage.start, stage.stop)
    divisor = _below(levels, len(levels) - 1) if first else 1
    collective = levels[-1].collective_bandwidth
    seconds = _one_stage_seconds(form, inner_seconds, parameters, collective, stage.workers, divisor)
    if activation_transfers and not first:
        seconds = max(seconds, _transfer_seconds(form, table, stage, levels[-1].bandwidth))
    return seconds


def _below(levels: Sequence[Level], level: int) -> int:
    """Components that the level below joins, 1 on the lowest level; only the script's form reads it."""
    return levels[level - 1].width if level > 0 else 1


def _one_stage_seconds(
    form: int, inner_seconds: float, parameter_bytes: float, bandwidth: float, replicas: int, below: int
) -> float:
    """Seconds per mini-batch of a stage over its replicas, with its all-reduce; below: as of `_below`"""
    synchronization = synchronization_seconds(form, parameter_bytes, bandwidth, replicas)
    if form == SCRIPT:
        synchronization /= below
    return float(stage_seconds(form, inner_seconds, synchronization, replicas))


def _transfer_seconds(form: int, table: StateTable, stage: LevelStage, bandwidth: float) -> float:
    """Seconds per mini-batch of the transfers that the form charges to a stage that is not the first."""
    if form != SCRIPT:
        return float(2.0 * table.output_bytes[stage.start - 1] / bandwidth)
    sent = table.augmented_output_bytes
    ends = [stage.start, stage.stop] if stage.stop < len(table) else [stage.start]
    return max(float(2.0 * sent[end - 1] / bandwidth / stage.workers) for end in ends)


def slice_total(totals: Floats, start: int, stop: int) -> float:
    """Sum over states [start, stop) of values whose running totals are given, (states,)."""
    return float(totals[stop - 1] - (totals[start - 1] if start > 0 else 0.0))


def totals_of(table: StateTable, form: int) -> StateTotals:
    """A network's figures as the kernels take them; the script sends and keeps other tensors."""
    script = form == SCRIPT
    return StateTotals(
        table.seconds,
        table.augmented_output_bytes if script else table.output_bytes,
        table.parameter_bytes,
        table.copy_bytes,
        table.activation_bytes if script else table.stash_bytes,
        table.states.predecessors,
        table.states.offsets,
    )


def version_memory(memory: MemoryLimit, downstream: Fraction = Fraction(0), *, tested: bool) -> VersionMemory:
    """A memory limit as the kernels take it.

    downstream: components behind this one, per replica of the stage that it is in; tested: whether the kernels test memory at all
    """
    return VersionMemory(
        float(memory.capacity_bytes),
        tested,
        downstream.numerator,
        downstream.denominator,
        memory.unversioned_copies,
        memory.replicated_copies,
        memory.recompute,
    )


def flattened(states: AntichainStates, levels: Sequence[Sequence[LevelStage]]) -> tuple[PlannedStage, ...]:
    """The stages of the lowest level, each with its layers and its workers on all levels; levels: lowest first"""
    flat = []
    placed = np.zeros(states.members.shape[1], dtype=np.bool_)
    for stage in levels[0]:
        workers = tuple(next(s.workers for s in level if s.start <= stage.start < s.stop) for level in levels)
        # The script's form may cut at states that are not nested; like the script, the first stage takes the layer.
        members = states.members[stage.stop - 1]
        layers = tuple(int(layer) for layer in np.flatnonzero(members & ~placed))
        placed |= members
        flat.append(PlannedStage(stage.start, stage.stop, layers, workers))
    return tuple(flat)


@cache
def _load_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, by a search over one state: takes seconds the first time, then
    nothing.
    """
    one, nothing = np.ones((1, 1), dtype=np.bool_), np.zeros(1)
    states = AntichainStates(one, one, one, np.zeros(0, dtype=np.int32), np.zeros(2, dtype=np.int64))
    table = StateTable(states, nothing, nothing, np.zeros((0, 0)), nothing, nothing, nothing, nothing)
    _Levels(table, network_levels((1, 1), (1.0, 1.0)), RING, False, True, UNLIMITED).expand(1, Fraction(0), 0, 1)


class _Slices:
    """Lower bounds on the seconds of slices of states on one component of a level, as `LevelCosts.inner`; context: how much is
    downstream.

    They begin as seconds without a limit of memory. Where a plan needs a slice within its memory, the seconds of that row are
    written down; these hold, as bounds, wherever more is downstream.
    """

    def __init__(self, free: Floats, context: NDArray[np.int32]) -> None:
        states = len(free)
        self.context, self._values, self._filled = context, free, states
        self.row = np.tile(np.arange(states, dtype=np.int32), (int(context.max(initial=0)) + 1, 1))
        self._within: dict[int, list[int]] = {}

    @property
    def values(self) -> Floats:
        """Seconds by row and end, float64 [rows, states]."""
        return self._values[: self._filled]

    def seconds(self, context: int, start: int, stop: int) -> float:
        """Lower bound on the seconds of states [start, stop)."""
        return float(self._values[self.row[context, start], stop - 1])

    def is_limited(self, context: int, start: int) -> bool:
        """Whether seconds within memory are known of slices from `start` on, in this context or one with less downstream."""
        return int(self.row[context, start]) >= len(self.row[0])

    def limit(self, context: int, start: int, seconds: Floats) -> None:
        """Write down the seconds of slices from `start` on within the memory of a context, by their end, float64 [states]."""
        if self._filled == len(self._values):
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
        self._values[self._filled] = seconds
        known = self._within.setdefault(start, [])
        place = bisect_right(known, context)
        until = known[place] if place < len(known) else len(self.row)
        self.row[context:until, start] = self._filled
        known.insert(place, context)
        self._filled += 1


@dataclass(frozen=True)
class _Levels:
    """One search: its checked options, and the tables of lower levels, each computed when first needed."""

    table: StateTable
    levels: tuple[Level, ...]
    form: int
    straight: bool
    transfers: bool
    memory: MemoryLimit
    _free: dict[int, Floats] = field(default_factory=dict)
    _fewest: dict[tuple[int, float], tuple[Integers, Integers]] = field(default_factory=dict)
    _inner: dict[_Context, _Slices] = field(default_factory=dict)
    _inside: dict[tuple[_Context, int, int], tuple[float, list[list[LevelStage]]]] = field(default_factory=dict)

    def fastest(self) -> tuple[float, list[list[LevelStage]]]:
        """Seconds of the slowest stage, and stages by level, of the best pipeline over all states; infinite and [] where none
        fits.

        The seconds are sought below limits that rise from the least that they can be: what is above a limit costs nothing.
        """
        if self._furthest is not None and self._furthest[-1] < len(self.table) - 1:
            return inf, []
        least = self._least_seconds()
        for most in (*(least * share for share in SHARES if least > 0.0 and self.form != SCRIPT), inf):
            found = self.expand(len(self.levels) - 1, Fraction(0), 0, len(self.table), most)
            if found[0] <= most:
                break
        return found

    def _least_seconds(self) -> float:
        """Where limits on the slowest stage's seconds begin: its part of all work, and on a single level about the least with
        which workers suffice.
        """
        most = self.table.one_device_seconds
        least = most / prod(level.width for level in self.levels)
        if len(self.levels) > 1 or self.form == SCRIPT or least <= 0.0:
            return least
        network, costs, _ = self._arguments(0, Fraction(0))
        for _ in range(BISECTIONS):
            middle = sqrt(least * most)
            before, _behind = fewest_workers(self.form, network, costs._replace(most=middle))
            least, most = (least, middle) if before[-1] <= costs.workers else (middle, most)
        return least

    @cached_property
    def _furthest(self) -> Integers | None:
        """The last state that pipelines on the first m of all devices reach within memory, int64 [devices + 1]; None where that
        is not known or memory is no limit.
        """
        states = len(self.table)
        chain = len(self.table.states.predecessors) == states * (states - 1) // 2
        if not chain or self.form == SCRIPT or not isfinite(self.memory.capacity_bytes):
            return None
        devices = prod(level.width for level in self.levels)
        held = version_memory(self.memory, tested=True)
        return furthest_states(self.form, devices, totals_of(self.table, self.form), held)

    def expand(
        self, level: int, downstream: Fraction, start: int, stop: int, most: float = inf
    ) -> tuple[float, list[list[LevelStage]]]:
        """Seconds and stages, a list per level up to this one, of the best pipeline over states [start, stop); infinite and empty
        lists where none fits.

        downstream: components downstream of the one that holds the slice, per replica of the stage it is in; the mini-batches in
        flight depend on it, and with them the memory
        most: limit on the seconds; a pipeline above it counts as none
        """
        row, begin = self._empty_row(level, stop), start
        while True:
            solve_row(self.form, RowSlices(start, begin, stop), *self._arguments(level, downstream, most), row)
            value = float(row.best[stop - 1, self.levels[level].width])
            levels: list[list[LevelStage]] = [[] for _ in range(level + 1)]
            if not isfinite(value) or value > most:
                return inf, levels
            levels[level] = self._stages(row, level, start, stop)
            slower = [] if level == 0 else self._refine(level, downstream, levels)
            if not slower:
                return value, levels
            begin = max(start, min(slower))

    def _row(self, level: int, downstream: Fraction, start: int, stop: int) -> RowTables:
        """The tables of the slices that begin at state `start`."""
        row = self._empty_row(level, stop)
        solve_row(self.form, RowSlices(start, start, stop), *self._arguments(level, downstream), row)
        return row

    def _empty_row(self, level: int, stop: int) -> RowTables:
        """Unfilled tables for slices that end before state `stop`."""
        best = np.empty((stop, self.levels[level].width + 1))
        split = np.empty(best.shape, dtype=np.int32)
        return RowTables(best, np.empty_like(best), split, np.empty_like(split))

    def _stages(self, row: RowTables, level: int, start: int, stop: int) -> list[LevelStage]:
        """The stages of one level that a filled row gives to states [start, stop)."""
        stages: list[LevelStage] = []
        end, total = stop - 1, self.levels[level].width
        while end >= start:
            cut, replicas = int(row.split[end, total]), int(row.last[end, total])
            first = cut + 1 if cut >= 0 else start
            stages.insert(0, LevelStage(first, end + 1, replicas))
            end, total = first - 1, total - replicas
        return stages

    def _refine(self, level: int, downstream: Fraction, levels: list[list[LevelStage]]) -> list[int]:
        """Put the stages of lower levels into the stages of a level; first states of slices that turned out slower than the
        tables had them.

        Where memory makes a slice slower, its seconds are written down for another search; on the lowest level, whose rows are
        found fast, also those of slices that begin near it, to which that search would turn.
        """
        slices, total, slower = self._slices(level, downstream), 0, list[int]()
        for stage in levels[level]:
            total += stage.workers
            context = int(slices.context[total, stage.workers])
            below = self._downstream(level, downstream, total, stage.workers)
            key = (level - 1, below), stage.start, stage.stop
            if key not in self._inside:
                self._inside[key] = self.expand(level - 1, below, stage.start, stage.stop)
            seconds, refined = self._inside[key]
            if seconds > slices.seconds(context, stage.start, stage.stop):
                slower += self._limit(level - 1, below, stage, seconds, slices, context)
            for kept, added in zip(levels, refined, strict=False):
                kept.extend(added)
        return slower

    def _limit(
        self, level: int, downstream: Fraction, stage: LevelStage, seconds: float, slices: _Slices, context: int
    ) -> list[int]:
        """Write down the seconds within memory of slices that begin near a stage, on upper levels only of the stage's own slice;
        their first states.
        """
        if level > 0:
            values = np.array(slices.values[slices.row[context, stage.start]])
            values[stage.stop - 1] = seconds
            slices.limit(context, stage.start, values)
            return [stage.start]
        near = range(max(stage.start - NEAR, 0), min(stage.start + NEAR + 1, len(self.table)))
        begins = [one for one in near if one == stage.start or not slices.is_limited(context, one)]
        for begin in begins:
            row = self._row(0, downstream, begin, len(self.table))
            slices.limit(context, begin, np.asarray(row.best[:, self.levels[0].width]))
        return begins

    def data_parallel_seconds(self) -> float:
        """Seconds per mini-batch of one stage over all workers of all levels."""
        seconds = self.table.one_device_seconds
        parameters = float(self.table.parameter_bytes[-1])
        for number, level in enumerate(self.levels):
            below = _below(self.levels, number)
            seconds = _one_stage_seconds(self.form, seconds, parameters, level.collective_bandwidth, level.width, below)
        return seconds

    def _downstream(self, level: int, downstream: Fraction, total: int, replicas: int) -> Fraction:
        """Components downstream of a stage's component, per replica, for the level below; 0 where memory does not depend on it.

        total: workers that the stage and all before it take together
        """
        if not isfinite(self.memory.capacity_bytes) or self.form == SCRIPT:
            return Fraction(0)
        workers = self.levels[level].width
        per_replica = (workers - total + downstream * workers) / replicas
        if level == 1:
            # The lowest level rounds (M - m + d M) / m' up, and m' is whole: rounding d M up first changes nothing.
            per_replica = Fraction(ceil(per_replica * self.levels[0].width), self.levels[0].width)
        return per_replica

    def _arguments(
        self, level: int, downstream: Fraction, most: float = inf, *, free: bool = False
    ) -> tuple[StateTotals, LevelCosts, VersionMemory]:
        """The kernels' arguments that are the same for every row of a level; free: leave memory out, but for the script's own
        test
        """
        here, slices = self.levels[level], self._slices(level, downstream, free=free)
        costs = LevelCosts(
            here.width,
            _below(self.levels, level),
            self.straight,
            self.transfers,
            float(here.bandwidth),
            float(here.collective_bandwidth),
            slices.values,
            slices.context,
            slices.row,
            most,
            *self._fewest_workers(level, most),
        )
        tested = isfinite(self.memory.capacity_bytes) and (self.form == SCRIPT or (level == 0 and not free))
        return totals_of(self.table, self.form), costs, version_memory(self.memory, downstream, tested=tested)

    def _fewest_workers(self, level: int, most: float) -> tuple[Integers, Integers]:
        """`fewest_workers` of a level, without a limit of memory on those below."""
        if not isfinite(most):
            nothing = np.zeros(len(self.table) + 1, dtype=np.int64)
            return nothing, nothing
        if (level, most) not in self._fewest:
            network, costs, _ = self._arguments(level, Fraction(0), free=True)
            before, behind = fewest_workers(self.form, network, costs._replace(most=most))
            if level == len(self.levels) - 1 and self._furthest is not None:
                devices = np.searchsorted(self._furthest, np.arange(-1, len(self.table)))
                before = np.maximum(before, -(-devices // prod(one.width for one in self.levels[:-1])))
            self._fewest[level, most] = before, behind
        return self._fewest[level, most]

    def _slices(self, level: int, downstream: Fraction, *, free: bool = False) -> _Slices:
        """Seconds of slices on the level below, with a context for each number of workers downstream, rising."""
        workers = self.levels[level].width
        context = np.zeros((workers + 1, workers + 1), dtype=np.int32)
        if level == 0:
            return _Slices(np.empty((0, 0)), context)
        if free:
            return _Slices(self._all_slices(level - 1), context)
        key = (level, downstream)
        if key not in self._inner:
            cases = {
                (total, replicas): self._downstream(level, downstream, total, replicas)
                for total in range(1, workers + 1)
                for replicas in range(1, (1 if self.straight else total) + 1)
            }
            place = {below: number for number, below in enumerate(sorted(set(cases.values())))}
            for case, below in cases.items():
                context[case] = place[below]
            self._inner[key] = _Slices(self._all_slices(level - 1), context)
        return self._inner[key]

    def _all_slices(self, level: int) -> Floats:
        """Seconds of every slice on all workers of a level without a limit of memory, but for the script's own test, float64
        [states, states].
        """
        if level not in self._free:
            self._free[level] = solve_all_rows(self.form, *self._arguments(level, Fraction(0), free=True))
        return self._free[level]


def _checked_levels(levels: Sequence[Level]) -> tuple[Level, ...]:
    workers = tuple(level.width for level in levels)
    if not workers or min(workers) < 1:
        raise ValueError(f"a cluster must have one or more levels of 1 worker and more, lowest first, got {workers}")
    for name in ("bandwidth", "collective_bandwidth"):
        rates = tuple(getattr(level, name) for level in levels)
        if not all(0 < rate < inf for rate in rates):
            raise ValueError(f"{name} of each level must be finite bytes per second > 0, got {rates}")
    return tuple(levels)


def _checked_variant(variant: str) -> int:
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    return VARIANTS[variant]
