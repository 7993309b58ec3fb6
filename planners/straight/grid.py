"""Pipeline × data grid: equal replicas of a pipeline, as most large models are trained (Megatron-LM, arXiv 2104.04473).

A shape of the grid is a number of stages, of replicas of each, of stages per device, of micro-batches, schedule and placement.
Where tensor-parallel groups are asked for, a replica is a group of neighbours, which its first device stands for, and each degree
has a grid of its own. The cuts of promising shapes come from the shared partition search, which knows communication and memory.
Quick replays, which are never slower than replays, rank them; shapes are replayed, with the problem's own options, until none
that is left can be faster, or PATIENCE of them in a row were slower than the best.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush, merge
from itertools import chain, pairwise, repeat
from typing import Any, NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers, Operation, Rates, gibibytes, reduce_seconds, scaled
from planners.estimate.memory import most_held, range_bytes
from planners.partitioning.fastest_cuts import fastest_cuts
from planners.partitioning.partition_costs import PartitionCosts, straight_costs
from planners.partitioning.tight_memory import fitting_cuts
from planners.search.candidates import (
    FEW_SAMPLES,
    asked_degrees,
    asked_zeros,
    counts_by_size,
    device_choices,
    device_groups,
    runs_shape,
    straight_decisions,
    straight_shape,
)
from planners.search.evaluator import Evaluator, fitting
from planners.search.memory_retry import missing_bytes, within_memory
from planners.search.quick_replay import QuickReplays, order_of
from planners.search.remembered import remembered
from planners.search.request import Request
from simulator import (
    BY_BLOCK,
    GroupRates,
    InfeasiblePlanError,
    Parallelism,
    Plan,
    Problem,
    Score,
    Zero,
    equal_microbatches,
    schedule_families,
    stages_from_cuts,
)

SCHEDULES = ("1f1b", "eager-1f1b", "interleaved-1f1b")
"""Flushed families that are tried where no schedule is requested: least memory, hidden transfers, smaller bubbles."""

CHUNKS = (2, 3, 4)
"""Stages per device that are tried for looped schedules where none are requested."""

PATIENCE = 32
"""Replays of shapes in a row without a better one after which the search ends."""

BESIDE = 8
"""Further sizes of micro-batches, at most, that are replayed for the best shape."""

UNLIKE_LAYERS = 0.1
"""Share by which a rank of like layers may exceed its memory and still have its cuts searched first with equal shares of the
device.
"""

MOST_TRIED = 240
"""Shapes, at most, that are replayed while none of them fits."""

Groups = tuple[tuple[int, ...], ...]
"""Devices of each rank of a pipeline, one per replica."""


@dataclass(frozen=True, slots=True)
class GridShape:
    """One shape of the grid: all of a plan but its cuts.

    groups: the devices of each pipeline rank, one per replica; rank r holds stages r, r + len(groups), ... (`chunks` of them)
    """

    schedule: str
    groups: Groups
    chunks: int
    microbatches: int

    @property
    def replicas(self) -> int:
        """Number of replicas of each stage."""
        return len(self.groups[0])

    @property
    def stages(self) -> int:
        """Number of stages of the pipeline."""
        return len(self.groups) * self.chunks


@dataclass(frozen=True, slots=True)
class CutShape:
    """A shape with the cuts that the partition search gives it.

    seconds: of the quick replay; fullest: largest share of a device's memory that its stages' weights and activations take,
    without buffers of transfers
    """

    seconds: float
    shape: GridShape
    cuts: tuple[int, ...]
    fullest: float


@dataclass(frozen=True, slots=True)
class PipelineDataGrid:
    """Planner of the pipeline × data grid: quick replays rank its shapes, replays choose."""

    request: Request = field(default_factory=Request)
    name: str = "pipeline-data"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan that fits; InfeasiblePlanError, with numbers, if none of the grid fits."""
        replayed: list[Plan] = []
        for degree in reversed(asked_degrees(problem, self.request, (1,))):
            searches = [
                GridSearch(problem, evaluate, self.request, self.name, division)
                for division in _divisions(problem, evaluate, self.request, degree)
            ]
            replayed += self._replayed(searches, evaluate, any(evaluate(plan).fits for plan in replayed))
        if not replayed:
            raise InfeasiblePlanError(GridSearch(problem, evaluate, self.request, self.name).does_not_fit())
        return fitting(self.name, min(replayed, key=lambda plan: evaluate(plan).key), evaluate)

    def _replayed(self, searches: Sequence[GridSearch], evaluate: Evaluator, some_fit: bool) -> list[Plan]:
        """Plans of the most promising shapes of some grids, replayed; some_fit: whether a plan of another grid is known to fit"""
        replayed: list[Plan] = []
        best, idle, found = math.inf, 0, None
        several = (zip(search.candidates(), repeat(search), strict=False) for search in searches)
        for candidate, search in merge(*several, key=lambda pair: pair[0].seconds):
            none_fits = best == math.inf and not some_fit
            if candidate.seconds >= best or idle >= (MOST_TRIED if none_fits else PATIENCE):
                break
            replayed.append(search.within_memory(candidate))
            score, idle = evaluate(replayed[-1]), idle + 1
            if score.fits and score.iteration_seconds < best:
                best, idle, found = score.iteration_seconds, 0, (search, candidate.shape)
        for search, shape in [found] if found else ():
            replayed += search.beside(shape, best)
        return replayed


class GroupDivision(NamedTuple):
    """How devices divide what they hold.

    degree: devices of a tensor-parallel group; zero: ZeRO stage; replicas: number that divide states, None for any
    """

    degree: int = 1
    zero: Zero = 0
    replicas: int | None = None


WHOLE = GroupDivision()
"""The division of plans without tensor parallelism and ZeRO."""


def _divisions(problem: Problem, evaluate: Evaluator, request: Request, degree: int) -> list[GroupDivision]:
    """Divisions with tensor-parallel groups of one degree: a single one, or with ZeRO one for each number of replicas."""
    zero: Zero = asked_zeros(problem, request, (0,))[0]
    one = GroupDivision(degree, zero)
    if not zero:
        return [one]
    counts = {shape.replicas for shape in GridSearch(problem, evaluate, request, "", one).shapes()}
    return [GroupDivision(degree, zero, count) for count in sorted(counts)]


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the planner cannot plan what is asked for, as a sentence for the user; None where it can."""
    try:
        asked_degrees(problem, request, (1,))
    except ValueError as error:
        return str(error)
    if request.schedule is not None and not schedule_families()[request.schedule].flush:
        return f"the grid's plans are synchronous; schedule {request.schedule!r} never flushes"
    if request.schedule is not None and schedule_families()[request.schedule].lanes:
        return f"the grid's {problem.device_word}s run one op at a time; schedule {request.schedule!r} runs two"
    if request.schedule is not None and schedule_families()[request.schedule].placement in ("v", "wave"):
        return f"the grid's stages go round; those of schedule {request.schedule!r} go back and forth"
    return straight_shape(problem, request)


def grid_counts(problem: Problem) -> tuple[int, ...]:
    """Numbers of micro-batches, rising: all for a batch of FEW_SAMPLES, else those whose largest has 1, 2, 3, 4, 6, 8, 12, ...
    samples.
    """
    if problem.batch <= FEW_SAMPLES:
        return tuple(range(1, problem.batch + 1))
    return tuple(sorted({1, *counts_by_size(problem)}))


def searched(problem: Problem, request: Request) -> dict[str, Iterable[Any]]:
    """Values that a search tries, by the name of the decision, for decisions that the request leaves open."""
    return straight_decisions(problem, request, SCHEDULES, grid_counts(problem), (1, *CHUNKS))


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Ranks of a pipeline. memory_bytes: of all of them together; slowest: for each rank a device of its slowest kind; last: of
    that of its last replica, which has most samples where a micro-batch is divided unevenly
    """

    memory_bytes: float
    slowest: tuple[int, ...]
    last: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Transfers:
    """Transfers from each rank of a pipeline to the next, and from the last one to the first, there and back.

    crowd: transfers between the replicas of two ranks that share their busiest channel, 1 without contention, int64 [ranks]
    behind, channel, bandwidth: of every hop over a channel, the rank that it follows, the channel, and bytes per second
    """

    crowd: Integers
    behind: Integers
    channel: Integers
    bandwidth: Floats


def _transfers(problem: Problem, groups: Groups) -> _Transfers:
    """The transfers between the ranks of a pipeline; groups: devices of each rank"""
    cluster, crowd, hops = problem.cluster, [], list[tuple[int, int]]()
    for rank, (near, far) in enumerate(pairwise((*groups, groups[0]))):
        routes = [(cluster.route(one, two), cluster.route(two, one)) for one, two in zip(near, far, strict=True)]
        uses = Counter(channel for ahead, _ in routes for channel in ahead)
        crowd.append(max(uses.values(), default=1) if problem.contention else 1)
        hops += [(rank, channel) for ahead, back in routes for channel in (*ahead, *back)]
    behind, channel = np.array(hops, dtype=np.int64).reshape(-1, 2).T
    bandwidth = np.array([cluster.channels[one].bandwidth for one in channel.tolist()])
    return _Transfers(np.array(crowd), behind, channel, bandwidth)


class _Hops(NamedTuple):
    """Seconds of transfers of a micro-batch on its way through a pipeline and back.

    latency: seconds; there_and_back: seconds per byte of every cut, of all links together; busiest: of the busiest channel
    """

    latency: float
    there_and_back: float
    busiest: float


class GridSearch:
    """The shapes of one problem's grid, with bounds and quick replays; tables fill when first needed."""

    def __init__(
        self, problem: Problem, evaluate: Evaluator, request: Request, name: str, division: GroupDivision = WHOLE
    ) -> None:
        self.problem, self.evaluate, self.request, self.name = problem, evaluate, request, name
        self.division = division
        self.quick = QuickReplays(problem, evaluate.layer_costs)
        self.members = {group[0]: group for group in device_groups(problem, division.degree)}
        first = next(iter(self.members.values()), ())
        times = problem.stack.tensor_collectives.on(problem.cluster.devices[0])
        tensor = problem.cluster.collectives.rates(Operation.ALL_REDUCE, first) if division.degree > 1 else ()
        rates = GroupRates(scaled(tensor, times))
        state = problem.divided_state_bytes(division.zero, division.replicas or 1)
        self.costs = evaluate.layer_costs.at(Parallelism(division.degree), rates, state)
        self.bytes = range_bytes(self.costs)
        self.whole_bytes = self._state_bytes([(0, len(problem.workload))])
        """Bytes of all weights, gradients and optimizer states."""

    # ---- the grid ----

    def shapes(self) -> list[GridShape]:
        """Every shape, of those that the stack runs: devices × schedule × stages per device × stages × replicas × placement ×
        micro-batches. Where it runs none all of them, for it to say why.
        """
        every = list(self._shapes())
        return [shape for shape in every if self._is_run(shape)] or every

    def _is_run(self, shape: GridShape) -> bool:
        return runs_shape(self.problem, shape.schedule, shape.stages, shape.chunks, shape.microbatches)

    def _shapes(self) -> Iterator[GridShape]:
        layers, families = len(self.problem.workload), schedule_families()
        for chosen in device_choices(self.problem, self.costs):
            among = set(chosen)
            devices = [one for one in chosen if one in self.members and among.issuperset(self.members[one])]
            for schedule in self._families():
                for chunks in self._chunks("chunks" in families[schedule].options):
                    for ranks in range(1, min(len(devices), layers // chunks) + 1):
                        if self.request.stages not in (None, ranks * chunks):
                            continue
                        for groups, counts in self._placements(devices, ranks):
                            if self.division.replicas in (None, len(groups[0])):
                                yield from (GridShape(schedule, groups, chunks, count) for count in counts)

    def _families(self) -> tuple[str, ...]:
        """Schedule families to try."""
        if self.request.schedule is not None:
            return (self.request.schedule,)
        allowed = self.problem.stack.runs.schedules
        return tuple(one for one in SCHEDULES if not allowed or one in allowed)

    def _chunks(self, looped: bool) -> tuple[int, ...]:
        """Numbers of stages per device to try; looped: whether the schedule may have several"""
        wanted = self.request.chunks
        if not looped:
            return (1,) if wanted in (None, 1) else ()
        if wanted is not None:
            return (wanted,)
        return CHUNKS if self.request.schedule is None else (1, *CHUNKS)

    def _placements(self, devices: Sequence[int], ranks: int) -> Iterator[tuple[Groups, list[int]]]:
        """Devices of each rank, with the numbers of micro-batches to try: replicas beside each other (so that all-reduces stay
        inside servers), and ranks beside each other (so that pipelines do).

        Replicas: as many as devices permit and as have samples of every micro-batch, and the largest power of two of these.
        """
        counts_of = dict[int, set[int]]()
        for count in self._counts:
            most = max(1, min(len(devices) // ranks, self.problem.batch // count))
            for replicas in (most, 1 << (most.bit_length() - 1)):
                counts_of.setdefault(replicas, set()).add(count)
        for replicas, counts in sorted(counts_of.items(), reverse=True):
            used = tuple(devices[: ranks * replicas])
            beside = tuple(used[rank * replicas : (rank + 1) * replicas] for rank in range(ranks))
            for groups in dict.fromkeys((beside, tuple(used[rank::ranks] for rank in range(ranks)))):
                yield groups, sorted(counts)

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        """Numbers of micro-batches: the requested one, else those of `grid_counts`."""
        asked = self.request.microbatches
        return grid_counts(self.problem) if asked is None else (asked,)

    def beside(self, shape: GridShape, best: float) -> list[Plan]:
        """Plans of a shape with sizes of micro-batches between those of `_counts`, where quick replays are faster than `best`
        seconds.
        """
        counts, share = self._counts, shape.replicas
        if len(counts) == 1 or self.problem.batch <= FEW_SAMPLES:
            return []
        place = counts.index(shape.microbatches)
        ends = counts[max(0, place - 1)], counts[min(len(counts) - 1, place + 1)]
        largest = -(-self.problem.batch // (ends[0] * share)), -(-self.problem.batch // (ends[1] * share))
        between = {-(-self.problem.batch // (share * size)) for size in range(largest[1] + 1, largest[0])}
        shapes = [replace(shape, microbatches=count) for count in sorted(between.difference(counts))]
        shapes = list(filter(self._is_run, shapes))
        found = [
            one for one in map(self.candidate, shapes) if one is not None and one.seconds < best and one.fullest <= 1.0
        ]
        return [self.within_memory(one) for one in sorted(found, key=lambda one: one.seconds)[:BESIDE]]

    # ---- the quick replays ----

    def candidates(self) -> Iterator[CutShape]:
        """Shapes with their cuts: those that fit by the closed form, by rising quick replay, then the others, by rising share of
        memory.

        Cuts are sought for a shape only once its lower bound (`at_best`) is the least.
        """
        shapes = [shape for shape in self.shapes() if self.may_fit(shape)]
        rough = sorted(((self.at_best(shape), number) for number, shape in enumerate(shapes)))
        too_large: list[CutShape] = []
        waiting: list[tuple[float, int, CutShape]] = []
        for least, number in rough:
            while waiting and waiting[0][0] <= least:
                yield heappop(waiting)[2]
            candidate = self._roomiest(shapes[number])
            if candidate is not None and candidate.fullest <= 1.0:
                heappush(waiting, (candidate.seconds, number, candidate))
            elif candidate is not None:
                too_large.append(candidate)
        while waiting:
            yield heappop(waiting)[2]
        yield from sorted(too_large, key=lambda candidate: candidate.fullest)

    def _roomiest(self, shape: GridShape) -> CutShape | None:
        """The shape with cuts that leave its stages equal shares of a device; with any shares where these leave too little; None
        where no cuts fit.
        """
        even = self.candidate(shape, self.equal_shares(shape)) if self.has_room(shape) else None
        return even if even is not None and even.fullest <= 1.0 else self.candidate(shape)

    def may_fit(self, shape: GridShape) -> bool:
        """Whether the devices together may hold all weights, and activations of one micro-batch."""
        state, kept = self.whole_bytes, float(self.bytes.kept[-1]) * self._samples(shape)
        return state + kept <= self._ranks(shape.groups).memory_bytes

    def has_room(self, shape: GridShape) -> bool:
        """Whether the first rank, which has most micro-batches in flight, fits if all layers were alike, but for
        UNLIKE_LAYERS.
        """
        state, stash, kept = self._like_stage(shape)
        need = shape.chunks * state + kept * self.most_held(shape)[0][0] + stash
        return bool(need <= (1.0 + UNLIKE_LAYERS) * self._memory_bytes(shape.groups[0]))

    def at_best(self, shape: GridShape) -> float:
        """Lower bound on the seconds of a shape: the network divided at will, and cut where it sends least.

        Of micro-batches that are unlike, the smallest fill and drain the pipeline, and each takes at least its share of the
        largest one's seconds. Every rank runs its part of each micro-batch. A rank with one stage begins behind all earlier
        ranks, and these run the last micro-batch's backward behind it: so any n ranks together hold at most so much of the
        network that its parts, each smaller than the one before by the share of that wait, end in time. The reduction of a rank's
        gradients begins with its last backward.
        """
        ranks, samples = self._ranks(shape.groups), self._samples(shape)
        smallest = self.problem.batch // (shape.microbatches * shape.replicas)
        rounds = shape.microbatches if smallest == samples else self.problem.batch / (shape.replicas * samples)
        rates, part = self._rates(ranks.slowest if smallest == samples else ranks.last, samples), smallest / samples
        work = rounds / sum(rates)
        waiting = 1.0 - part / rounds if shape.chunks == 1 else 1.0
        computing = rounds / sum(rate * waiting**place for place, rate in enumerate(rates))
        reduced = self._least_reduction(shape.groups) * (rates[-1] / sum(rates)) / shape.chunks
        exposed = max(0.0, reduced - self._backward_at_most(ranks.slowest, samples))
        hops, sent = self._hops(shape.groups, shape.chunks), self._least_crossing
        way = part / rates[0] + hops.latency + sent * smallest * hops.there_and_back
        return max(computing, way, work + exposed, sent * self.problem.batch / shape.replicas * hops.busiest)

    @remembered
    def _least_reduction(self, groups: Groups) -> float:
        """Seconds in which the replicas of any rank reduce all gradients: those of all ranks take no less together."""
        size = self.costs.range_elements([(0, len(self.problem.workload))]) * self.problem.accumulated_bytes
        return min(reduce_seconds(self._peer_rates(group), size) for group in groups) if size else 0.0

    def _backward_at_most(self, slowest: tuple[int, ...], samples: int) -> float:
        """Upper bound on the seconds of any rank's last backward: that of the whole network on its slowest device."""
        return max(self._backward_seconds(device, samples) for device in set(slowest))

    @remembered
    def _hops(self, groups: Groups, chunks: int) -> _Hops:
        """Transfers of a micro-batch through all stages and back, between the slowest devices of ranks."""
        if not self.problem.sends_behind:
            return _Hops(0.0, 0.0, 0.0)
        devices = [self._slowest(group) for group in groups] * chunks
        ways = [self.problem.cluster.point_to_point(*way) for one in pairwise(devices) for way in (one, one[::-1])]
        _, channel, bandwidth = self._links(groups, chunks)
        busiest = float(np.bincount(channel, 1.0 / bandwidth).max(initial=0.0)) if self.problem.contention else 0.0
        waits = sum(latency for latency, _ in ways), sum(1.0 / rate for _, rate in ways)
        return _Hops(*waits, busiest)

    def _samples(self, shape: GridShape) -> int:
        """Samples of the largest part of a micro-batch that a replica runs."""
        return -(-self.problem.batch // (shape.microbatches * shape.replicas))

    @remembered
    def _ranks(self, groups: Groups) -> _Ranks:
        """Memory of all ranks together, and each one's slowest and last device."""
        kind = self.costs.kind_of_device
        of_kind = {kind(device): device for group in groups for device in group}
        slowest = tuple(of_kind[kind(self._slowest(group))] for group in groups)
        return _Ranks(
            sum(map(self._memory_bytes, groups)), slowest, tuple(of_kind[kind(group[-1])] for group in groups)
        )

    @remembered
    def _rates(self, devices: tuple[int, ...], samples: int) -> tuple[float, ...]:
        """Passes of the whole network per second, forward and backward, of each rank by one of its devices, the fastest first."""
        rate = {device: 1.0 / max(self._whole_seconds(device, samples), 1e-300) for device in set(devices)}
        return tuple(sorted([rate[device] for device in devices], reverse=True))

    @remembered
    def _whole_seconds(self, device: int, samples: int) -> float:
        """Seconds of a forward and a backward of the whole network on a device."""
        return float(self.costs.round_trip_seconds(device, samples).sum())

    def _slowest(self, group: Sequence[int]) -> int:
        """The device of a group that the others wait for."""
        kinds = {self.costs.kind_of_device(device): device for device in reversed(group)}
        if len(kinds) == 1:
            return group[0]
        return max(kinds.values(), key=lambda device: float(self.costs.round_trip_seconds(device, 1).sum()))

    def candidate(self, shape: GridShape, spare: Sequence[float] = ()) -> CutShape | None:
        """A shape with the cuts of the partition search and its quick replay; None where no cuts keep every stage within its
        memory.

        spare: bytes of each stage's device that are to stay free
        """
        costs = self.partition_costs(shape, spare)
        # A device that holds several stages is as fast as their sum: the slowest stage counts for every round.
        found = fastest_cuts(costs, shape.microbatches * shape.chunks)
        if not found:
            return None
        cuts = found[0][1]
        seconds = self.quick(self._plan(shape, cuts))
        return CutShape(seconds, shape, cuts, self._fullest(shape, cuts))

    def equal_shares(self, shape: GridShape) -> list[float]:
        """Bytes that each stage leaves free for the other stages of its device, so that all can have equally many like layers."""
        (state, stash, kept), (together, alone) = self._like_stage(shape), self.most_held(shape)
        memory = np.array([self._memory_bytes(group) for group in shape.groups])
        shares = (state + kept * alone.reshape(shape.chunks, -1) + stash) / (
            shape.chunks * state + kept * together + stash
        )
        left = (memory * (1.0 - shares)).reshape(-1)
        if self.problem.recompute in BY_BLOCK:  # a stage may begin within a block, and keep more than like layers do
            left = left - alone * float(self.bytes.entering[:, -1].max()) * self._samples(shape)
        return [float(one) for one in np.maximum(left, 0.0)]

    def _like_stage(self, shape: GridShape) -> tuple[float, float, float]:
        """Bytes of a stage if all layers were alike: of weights and states, of what a backward makes again, and of each
        micro-batch in flight.
        """
        samples, stages = self._samples(shape), self.bytes
        whole = self.problem.recompute == "whole"
        again = float(stages.made[0, -1]) * samples / (shape.stages if whole else 1)
        inputs = float(stages.entering[:, -1].mean()) * samples if whole else 0.0
        kept = float(stages.kept[-1]) * samples / shape.stages + inputs
        return self.whole_bytes / shape.stages, again + float(stages.in_work[0, -1]), kept

    def _state_bytes(self, ranges: Sequence[tuple[int, int]]) -> float:
        """Bytes of weights, gradients and optimizer states of a device that holds some ranges of layers."""
        return self.costs.range_elements(ranges) * self.costs.member.state_bytes

    def _memory_bytes(self, group: Sequence[int]) -> float:
        """Bytes that the device with least memory may allocate, among replicas of a rank and their groups."""
        rooms = self.problem.rooms
        return min(rooms[member] for device in group for member in self.members[device])

    def _fullest(self, shape: GridShape, cuts: Sequence[int]) -> float:
        """Largest share of a device's memory that weights of its stages and activations of micro-batches in flight take."""
        samples, bounds = self._samples(shape), np.array([0, *cuts, len(self.problem.workload)])
        begin, end = bounds[:-1], bounds[1:]
        made, in_work = (
            one.reshape(shape.chunks, -1).max(axis=0)
            for one in (self.bytes.made[begin, end] * samples, self.bytes.in_work[begin, end])
        )
        fullest, schedule = 0.0, order_of(shape.schedule, shape.stages, shape.microbatches, shape.chunks, ())
        together, _ = most_held(schedule, self.bytes.stashed(begin, end) * samples)
        for rank, (group, held) in enumerate(zip(shape.groups, together + made + in_work, strict=True)):
            stages = range(rank, shape.stages, len(shape.groups))
            state = self._state_bytes([(bounds[s], bounds[s + 1]) for s in stages])
            fullest = max(fullest, float(state + held) / self._memory_bytes(group))
        return fullest

    def partition_costs(self, shape: GridShape, spare: Sequence[float] = ()) -> PartitionCosts:
        """What the partition search weighs for a shape: of its largest part of a micro-batch, with transfers that take turns.

        spare: bytes of each stage's device that are to stay free
        """
        samples = self._samples(shape)
        devices = [self._slowest(group) for group in shape.groups] * shape.chunks
        held = (self.most_held(shape)[1] * samples).tolist()
        costs = straight_costs(self.costs, devices, samples, alternating=True, in_flight=held, spare=spare)
        crowds = np.tile(self._transfers(shape.groups).crowd, shape.chunks)[: shape.stages - 1]
        return replace(costs, link_seconds=costs.link_seconds * crowds[None, :, None])

    @remembered
    def _transfers(self, groups: Groups) -> _Transfers:
        return _transfers(self.problem, groups)

    def most_held(self, shape: GridShape) -> tuple[Floats, Integers]:
        """Most micro-batches that all stages of each rank hold at once, float64 [ranks], and each stage, int64 [stages]."""
        return self._most_held(shape.schedule, shape.stages, shape.microbatches, shape.chunks)

    @remembered
    def _most_held(self, name: str, stages: int, microbatches: int, chunks: int) -> tuple[Floats, Integers]:
        return most_held(order_of(name, stages, microbatches, chunks, ()), np.ones(stages))

    def _links(self, groups: Groups, chunks: int) -> tuple[Integers, Integers, Floats]:
        """Every hop of a micro-batch over a channel, there and back: its boundary, channel and bytes per second."""
        round_trip = self._transfers(groups)
        laps = np.arange(chunks)[:, None] * len(groups)
        link = (round_trip.behind + laps).reshape(-1)
        there = link < len(groups) * chunks - 1
        return link[there], np.tile(round_trip.channel, chunks)[there], np.tile(round_trip.bandwidth, chunks)[there]

    @remembered
    def _backward_seconds(self, device: int, samples: int) -> float:
        """Seconds of a backward of the whole network, with recomputation."""
        again = self.costs.seconds(device, samples, "forward") * self.costs.runs_again(self.problem.recompute)
        return float((self.costs.seconds(device, samples, "backward") + again).sum())

    @remembered
    def _peer_rates(self, group: tuple[int, ...]) -> Rates:
        """Rates of all-reduces among the replicas of a rank."""
        rings = zip(*(self.members[device] for device in group), strict=True)
        cluster, times = self.problem.cluster, self.problem.stack.replica_collectives
        return scaled(cluster.collectives.rates(Operation.ALL_REDUCE, *rings), times.on(cluster.devices[group[0]]))

    @cached_property
    def _least_crossing(self) -> float:
        """Bytes per sample at the cut that sends least; 0 for a single layer."""
        inside = self.costs.cut_bytes[1:-1]
        return float(inside.min()) if len(inside) else 0.0

    # ---- plans ----

    def plan(self, candidate: CutShape) -> Plan:
        """The plan of a candidate."""
        return self._plan(candidate.shape, candidate.cuts)

    def _plan(self, shape: GridShape, cuts: Sequence[int]) -> Plan:
        """The plan of a shape with these cuts."""
        ranks = tuple(tuple(chain.from_iterable(map(self.members.__getitem__, group))) for group in shape.groups)
        stages = stages_from_cuts(cuts, len(self.problem.workload), ranks * shape.chunks, self.division.degree)
        sizes = equal_microbatches(self.problem.batch, shape.microbatches)
        return Plan(self.name, shape.schedule, stages, sizes, zero=self.division.zero)

    def within_memory(self, candidate: CutShape) -> Plan:
        """The candidate's plan; where its replay exceeds memory, the plan with cuts that leave as much more free, if one fits.

        The search counts no buffers of transfers, which only a replay knows. Where layers that one device gives away fill the
        next one, round after round, all devices leave as much free; where that fails, too, all cuts are tried if they are few.
        """
        shape = candidate.shape

        def search(misses: Sequence[Score]) -> Plan | None:
            spare = [missing_bytes(misses, group) / shape.chunks for group in shape.groups * shape.chunks]
            found = self.candidate(shape, spare) if misses else candidate
            return self.plan(found) if found else None

        best = within_memory(self.evaluate, search) or self.plan(candidate)
        if self.evaluate(best).fits:
            return best
        missed = self.evaluate(best)

        def evenly(misses: Sequence[Score]) -> Plan | None:
            every = sum(score.peak_bytes - score.capacity_bytes for score in (missed, *misses)) / shape.chunks
            found = self.candidate(shape, [every] * shape.stages)
            return self.plan(found) if found else None

        even = within_memory(self.evaluate, evenly)
        if even is not None and self.evaluate(even).fits:
            return even
        costs = self.partition_costs(shape)
        found = fitting_cuts(costs, self.evaluate, lambda cuts: self.plan(replace(candidate, cuts=tuple(cuts))))
        return best if found is None else found

    def does_not_fit(self) -> str:
        """The message that no plan fits, in one line, with the bytes of all weights and states."""
        problem = self.problem
        state = self.whole_bytes
        held = max(problem.rooms)
        return (
            f"planner {self.name!r} finds no stages that fit: weights, gradients and optimizer states take {gibibytes(state)}, "
            f"the largest of {problem.cluster.counted_devices} holds {gibibytes(held)}; "
            f"use more {problem.device_word}s, recomputation or a smaller batch"
        )
