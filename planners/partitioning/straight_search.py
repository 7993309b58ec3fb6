"""Straight search: the fastest pipeline with one device per stage, over schedules, devices, micro-batches and cuts together.

Shapes (a schedule, a device of each stage, a number of micro-batches) are taken in the order of a lower bound over all their
cuts, until the bound is no faster than the best replay. Where a shape has few cuts all are given a quick replay; else those of
the partition search, and a climb from there by moves of a cut or of a run of cuts. Cuts are replayed whose quick replay, which is
never slower, is faster than the best replay so far: where all shapes have few cuts, no plan that fits is faster than the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import groupby, pairwise
from math import comb, inf
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from planners.estimate.memory import (
    given_lack_room,
    in_flight_of,
    lacks_room,
    may_have_room,
    samples_in_flight,
    stage_begins,
)
from planners.partitioning.cut_moves import MOST_ROUNDS, climbed, moved, number_of_moves
from planners.partitioning.fastest_cuts import fastest_cuts
from planners.partitioning.partition_costs import PartitionCosts, every_cuts, straight_costs, uniform_cuts
from planners.search.candidates import runs_shape, straight_plan
from planners.search.evaluator import Evaluator
from planners.search.quick_replay import (
    BACK,
    KINDS,
    PHASES,
    ROWS,
    WHOLE_BACKWARDS,
    CutSeconds,
    columns_of,
    order_of,
    replay_cuts,
    seconds_before,
)
from planners.search.remembered import remembered
from simulator import SLACK, LayerCosts, Plan, Problem, Schedule, equal_microbatches, schedule_families

Cuts = Integers
"""Layers before each boundary, int64 [partitions, stages - 1]."""

FEW_CUTS = 8192
"""Partitions of a shape up to which all are given a quick replay, as long as they have OPS ops at most."""

OPS = 512
"""Ops of a partition up to which FEW_CUTS of them are few; of longer ones proportionally fewer are."""

PROMISING = 1.1
"""Seconds per second of the best replay below which the quick replay of cuts must lie for a climb from them."""

REPLAYED = 64
"""Partitions of a shape that are replayed, at most."""

WORK = 2**26
"""Ops of quick replays, and steps of partition searches, after which no further shape is searched once a plan fits."""

ROUND = 2**20
"""Ops, at most, of the quick replays of a round of moves; of longer pipelines single cuts are moved, or none."""

MOST_REPLAYED_OPS = 2**18
"""Forwards and backwards, at most, of the replays of a round of moves."""

NEAR, FINALISTS = 1.02, 8
"""FINALISTS: shapes whose cuts are moved by replays in the end; each has a replay of less than NEAR times the best before it."""


@dataclass(frozen=True, slots=True)
class StraightShape:
    """A pipeline with one device per stage, without its cuts. devices: of each stage"""

    schedule: str
    devices: tuple[int, ...]
    microbatches: int


def fastest_straight(
    planner: str,
    evaluate: Evaluator,
    shapes: Iterable[StraightShape],
    *,
    beat: float = inf,
) -> Plan | None:
    """The fastest plan of these shapes that is found to fit; None where none is. Shapes of devices whose layers stream are left
    out.

    planner: name for the plan; beat: seconds of another plan that fits; what is no faster need not be found
    """
    every = _bounded(evaluate, shapes)
    best, work, found = beat, 0, dict[int, tuple[float, Plan]]()
    searches = dict[int, CutSearch]()
    for place in np.argsort(every.least, kind="stable").tolist():
        if every.least[place] >= best or (work > WORK and best < inf):
            break
        search = every.search(place)
        ranked = search.ranked(best)
        work += search.work
        for seconds, cuts in ranked:
            if seconds >= found.get(place, (best * NEAR,))[0]:
                break
            plan = search.plan(planner, cuts)
            score = evaluate(plan)
            if score.fits and score.iteration_seconds < found.get(place, (inf,))[0]:
                found[place], searches[place] = (score.iteration_seconds, plan), search
        best = min(best, found.get(place, (inf,))[0])
    ends = sorted((seconds, place) for place, (seconds, _) in found.items())[:FINALISTS]
    moved = {place: searches[place].replayed_moves(found[place][1]) for _, place in ends}
    plans = [moved.get(place, plan) for place, (_, plan) in sorted(found.items())]
    return min(plans, key=lambda plan: evaluate(plan).iteration_seconds, default=None)


def fastest_given(
    planner: str,
    evaluate: Evaluator,
    shapes: Iterable[StraightShape],
    cuts_of: Callable[[int], Sequence[int]],
    *,
    beat: float = inf,
) -> Plan | None:
    """The fastest plan that fits of shapes whose cuts are given by their number of stages; None where none fits.

    planner: name for the plan; cuts_of: number of stages -> their cuts; beat: seconds of another plan that fits; what is slower
    need not be found
    Devices whose layers stream are left out, as are cuts inside blocks where the stack runs none.
    """
    every, places = _bounded(evaluate, shapes), frozenset(stage_begins(evaluate.problem).tolist())
    cuts = {stages: tuple(cuts_of(stages)) for stages in {len(row.devices) for row in every.rows}}
    run = {stages for stages, own in cuts.items() if places.issuperset(own)}
    if not any(len(row.devices) in run and row.may_hold(cuts[len(row.devices)]) for row in every.rows):
        return None
    best, work, found = float(np.nextafter(beat, inf)), 0, dict[int, Plan]()
    waiting = [(least, place, False) for place, least in enumerate(every.least.tolist())]
    heapify(waiting)
    while waiting:
        least, place, known = heappop(waiting)
        if least >= best or (work > WORK and best < inf):
            break
        search = every.search(place)
        own = cuts[search.stages]
        if search.streamed or search.stages not in run:
            continue
        if not known:
            heappush(waiting, (search.least_of(own), place, True))
            continue
        work += search.ops
        if search.quick_of(own) < best:
            plan = search.plan(planner, own)
            score = evaluate(plan)
            if score.fits:
                found[place], best = plan, min(best, score.iteration_seconds)
    plans = [plan for _, plan in sorted(found.items())]
    return min(plans, key=lambda plan: evaluate(plan).iteration_seconds, default=None)


def least_seconds_of(evaluate: Evaluator, schedule: str, devices: tuple[int, ...], counts: Sequence[int]) -> Floats:
    """Lower bounds on the seconds of pipelines on these devices under any cuts, float64 [counts]; 0 for boards that stream.

    counts: numbers of micro-batches
    """
    return _ShapeRow(evaluate, _Rows(evaluate.layer_costs), schedule, devices, counts).least


def quick_replays_know(problem: Problem, schedules: Iterable[str]) -> bool:
    """Whether the searches here cover every plan of these schedules: quick replays know all of them, and no device runs layers
    concurrently.
    """
    return all(map(_is_known, schedules)) and not any(device.streams for device in problem.cluster.devices)


def _is_known(schedule: str) -> bool:
    """Whether a quick replay covers the schedule: one that flushes, runs one op at a time, and has no options but the stages per
    device and the groups of micro-batches.
    """
    family = schedule_families()[schedule]
    return family.flush and not family.lanes and set(family.options) <= {"chunks", "microbatch_group_size"}


class CutSearch:
    """The search of the cuts of one shape.

    work: ops of quick replays, and steps of partition searches, that it has taken so far
    """

    def __init__(self, evaluate: Evaluator, shape: StraightShape, rows: _Rows | None = None) -> None:
        self.evaluate, self.problem, self.shape = evaluate, evaluate.problem, shape
        self.rows = rows or _Rows(evaluate.layer_costs)
        self.costs, self.layers = evaluate.layer_costs, len(evaluate.problem.workload)
        self.stages, self.work = len(shape.devices), 0

    @property
    def _row(self) -> _DeviceRow:
        """The devices of the shape."""
        return self.rows.row(self.shape.devices)

    @property
    def streamed(self) -> bool:
        """Whether any of the devices runs the layers of its stage concurrently."""
        return self._row.streams

    def plan(self, planner: str, cuts: Sequence[int]) -> Plan:
        """The plan of the shape with these cuts; planner: the name to put into it"""
        shape = self.shape
        return straight_plan(planner, self.problem, shape.schedule, cuts, shape.devices, shape.microbatches)

    @property
    def ops(self) -> int:
        """Number of forwards and backwards of a pipeline of this shape."""
        return 2 * self.stages * self.shape.microbatches

    def least_seconds(self) -> float:
        """Lower bound on the seconds of this shape under any cuts."""
        shape = self.shape
        return float(_ShapeRow(self.evaluate, self.rows, shape.schedule, shape.devices, [shape.microbatches]).least[0])

    def least_of(self, cuts: Sequence[int]) -> float:
        """Lower bound on the seconds under these cuts: all rounds of a device, behind a micro-batch's way to it and back.

        For schedules that are not of WHOLE_BACKWARDS it is the bound under any cuts.
        """
        if self.shape.schedule not in WHOLE_BACKWARDS:
            return self.least_seconds()
        row, bounds = self._row, np.array([0, *cuts, self.layers])
        least, more = divmod(self.problem.batch, self.shape.microbatches)

        def stages(samples: int) -> Floats:
            before = np.array([self.rows.seconds_before(device, samples) for device in row.alike])
            return np.asarray(before[row.kind, bounds[1:]] - before[row.kind, bounds[:-1]] + row.beside[row.kind])

        passed = stages(least)
        rounds = passed * (self.shape.microbatches - more) + (stages(least + 1) * more if more else 0.0)
        sent = self.costs.cut_bytes[bounds[1:-1]] * least * row.byte_seconds.sum(axis=0) + row.latency.sum(axis=0)
        return float((rounds + np.append(0.0, np.cumsum(passed[:-1] + sent))).max()) * (1.0 - SLACK)

    def ranked(self, best: float) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Cuts worth a replay, each with the seconds of its quick replay, fastest first; none where no cuts fit. best: seconds of
        the best replay so far
        """
        if self.streamed or lacks_room(self.costs, self.shape.devices, int(self._sizes[0]), self._held):
            self.work += self.ops
            return iter(())
        if self._few():
            every = self._places[every_cuts(len(self._places) - 1, self.stages)]
            self.work += self.ops * len(every)
        else:
            every = self._improved(best)
        seconds = self.quick(every) if len(every) else np.zeros(0)
        first = np.argsort(seconds, kind="stable")[:REPLAYED]
        return ((float(seconds[one]), tuple(every[one].tolist())) for one in first if seconds[one] < inf)

    def _few(self) -> bool:
        """Whether all cuts of the shape are given a quick replay."""
        return comb(len(self._places) - 2, self.stages - 1) * max(1.0, self.ops / OPS) <= FEW_CUTS

    def _improved(self, best: float) -> Cuts:
        """The cuts of the partition search and even cuts; or, where these are promising, the last round of a climb from the
        better of them.
        """
        chunks = self.stages // len(set(self.shape.devices))
        self.work += self.stages * (len(self._places) - 1) ** 2
        found = fastest_cuts(self._partition_costs, self.shape.microbatches * chunks)
        if not found:
            return np.zeros((0, self.stages - 1), dtype=np.int64)
        uniform = self._places[uniform_cuts(len(self._places) - 1, self.stages)]
        begun = np.array([found[0][1], uniform], dtype=np.int64).reshape(2, -1)
        cuts = begun[np.argsort(self.quick(begun), kind="stable")]
        if float(self.quick(cuts[:1])[0]) >= PROMISING * best:
            return cuts
        self.work += self._number_of_moves * self.ops
        return climbed(cuts[0], self.quick, self._moves)

    def replayed_moves(self, plan: Plan) -> Plan:
        """The plan after moves of its cuts, each by replays, while one is faster; quick replays do not know links that others
        share.
        """
        for _ in range(MOST_ROUNDS):
            best = evaluated = self.evaluate(plan).iteration_seconds
            cuts = np.array([stage.layers[0] for stage in plan.stages[1:]], dtype=np.int64)
            near = self._moves(cuts)
            seconds = self.quick(near) if len(near) else np.zeros(0)
            most = min(REPLAYED, MOST_REPLAYED_OPS // self.ops)
            for one in np.argsort(seconds, kind="stable")[:most].tolist():
                if seconds[one] >= best:
                    break
                other = self.plan(plan.planner, near[one].tolist())
                score = self.evaluate(other)
                if score.fits and score.iteration_seconds < best:
                    plan, best = other, score.iteration_seconds
            if best == evaluated:
                break
        return plan

    def _moves(self, cuts: Cuts) -> Cuts:
        """Partitions with one cut shifted, or a run of them, as far as ROUND permits."""
        number = self._number_of_moves
        if not number:
            return np.zeros((0, len(cuts)), dtype=np.int64)
        return moved(cuts, self._places, runs=number == number_of_moves(len(cuts), runs=True))

    @cached_property
    def _places(self) -> Cuts:
        """Layers at which a stage may begin, then the number of layers."""
        return stage_begins(self.problem)

    @property
    def _number_of_moves(self) -> int:
        """Number of moves of a round within ROUND: those of runs and single cuts, of single cuts alone, or 0."""
        numbers = (number_of_moves(self.stages - 1, runs=runs) for runs in (True, False))
        return next((number for number in numbers if number * self.ops <= ROUND), 0)

    def quick(self, cuts: Cuts) -> Floats:
        """Seconds of the quick replays of partitions, float64 [partitions]; inf where a stage has no layer or memory too little
        room.
        """
        columns = columns_of(self._order, self._sizes)
        return np.asarray(replay_cuts(columns, self._seconds, ROWS, cuts)) * (1.0 - SLACK)

    def quick_of(self, cuts: Sequence[int]) -> float:
        """Seconds of the quick replay of one partition; inf where it surely exceeds memory."""
        bounds = np.array([0, *cuts, self.layers])
        if given_lack_room(self.costs, self.shape.devices, int(self._sizes[0]), self._held, bounds):
            return inf
        columns, alone = columns_of(self._order, self._sizes), np.array([cuts], dtype=np.int64).reshape(1, -1)
        anywhere = np.full((self.stages, self.layers + 1), self.layers)
        return float(replay_cuts(columns, self._seconds_within(anywhere), ROWS, alone)[0]) * (1.0 - SLACK)

    @cached_property
    def _sizes(self) -> Integers:
        """Samples of each micro-batch, largest first."""
        return np.array(equal_microbatches(self.problem.batch, self.shape.microbatches), dtype=np.int64)

    @cached_property
    def _order(self) -> Schedule:
        """The ops of the shape's schedule."""
        chunks = self.stages // len(set(self.shape.devices))
        return order_of(self.shape.schedule, self.stages, self.shape.microbatches, chunks, ())

    @property
    def _held(self) -> Integers:
        """Most samples that each stage has in flight at once."""
        schedule, count = self.shape.schedule, self.shape.microbatches
        in_flight = in_flight_of(schedule, self.stages, count, lambda: self._order)
        return samples_in_flight(in_flight, self.problem.batch, count)

    @cached_property
    def _partition_costs(self) -> PartitionCosts:
        """The costs of the partition search for this shape, within memory."""
        samples = int(self._sizes[0])
        return straight_costs(self.costs, self.shape.devices, samples, alternating=True, in_flight=self._held.tolist())

    @cached_property
    def _seconds(self) -> CutSeconds:
        """The tables of the quick replays of cuts within memory."""
        return self._seconds_within(np.asarray(self._partition_costs.furthest))

    def _seconds_within(self, furthest: Integers) -> CutSeconds:
        """The tables of the quick replays of stages that end no further than `furthest`; see `CutSeconds`."""
        costs, problem, row = self.costs, self.problem, self._row
        alike = row.alike
        sizes = np.unique(self._sizes).tolist()
        again = problem.recompute
        before = [
            [
                [seconds_before(costs, device, size, PHASES[kind], again if kind in BACK else "none") for size in sizes]
                for device in alike
            ]
            for kind in KINDS
        ]
        elements = costs.parameters_before
        updates = [elements * (costs.update_seconds(one, elements[-1]) / max(elements[-1], 1.0)) for one in alike]
        sublinear = [problem.cluster.devices[one].sublinear for one in alike]
        return CutSeconds(
            before=np.array(before),
            beside=np.array([[costs.pass_seconds(device, PHASES[kind]) for device in alike] for kind in KINDS]),
            kind=row.kind,
            crossing=np.array([costs.cut_bytes * size for size in sizes]),
            latency=row.latency,
            byte_seconds=row.byte_seconds,
            busy_seconds=row.byte_seconds if problem.contention else np.zeros_like(row.byte_seconds),
            overlap=1.0,
            reductions=np.zeros((self.stages, self.layers + 1)),
            bucket=np.zeros(self.stages),
            loads=np.zeros((0, 2, self.stages)),
            updates=np.array(updates) * np.array(sublinear)[:, None],
            furthest=np.ascontiguousarray(furthest, dtype=np.int64),
        )


class _ShapeRow:
    """Shapes that differ in their number of micro-batches alone. counts: these numbers"""

    def __init__(
        self, evaluate: Evaluator, rows: _Rows, schedule: str, devices: tuple[int, ...], counts: Sequence[int]
    ) -> None:
        self.evaluate, self.rows, self.schedule, self.devices = evaluate, rows, schedule, devices
        self.counts = np.array(counts, dtype=np.int64)

    @cached_property
    def least(self) -> Floats:
        """Lower bounds on the seconds under any cuts, float64 [counts]: m rounds of a device behind one round of all devices
        before it.

        With devices as fast as the fastest, of which each has t[d] seconds of a micro-batch, T >= t[0] + ... + t[d - 1] + m t[d]
        for every d, which is least where all are equal: T = w / (1 - (1 - 1/m)^n), w the seconds of the whole network. Where
        weight gradients are ops of their own, or devices hold several stages, only m rounds of the slowest device are sure.
        """
        alike, count = self.rows.alike(self.devices), self.counts
        if any(map(self.evaluate.layer_costs.streams, alike)):
            return np.zeros(len(count))
        ranks, batch = len(set(self.devices)), self.evaluate.problem.batch
        whole = [min(self.rows.whole_seconds(one, batch // m) for one in alike) for m in count.tolist()]
        in_turn = self.schedule in WHOLE_BACKWARDS  # which have one stage per device
        share = 1.0 - (1.0 - 1.0 / count) ** ranks if in_turn else ranks / count
        return np.asarray(np.array(whole) / share * (1.0 - SLACK))

    def may_hold(self, cuts: Sequence[int]) -> bool:
        """Whether these cuts may fit into the devices' memory with the fewest samples in flight of any of the counts."""
        if self.schedule not in WHOLE_BACKWARDS:
            return True
        stages, costs, batch = len(self.devices), self.evaluate.layer_costs, self.evaluate.problem.batch
        samples = -(-batch // self.counts)
        held = np.array(
            [samples_in_flight(in_flight_of(self.schedule, stages, m), batch, m) for m in self.counts.tolist()]
        )
        bounds = np.array([0, *cuts, len(self.evaluate.problem.workload)])
        return not given_lack_room(costs, self.devices, int(samples.min()), held.min(axis=0), bounds)


@dataclass(frozen=True, slots=True)
class _Bounded:
    """All shapes of a search with their lower bounds.

    rows: shapes by schedule and devices; least: lower bound of each shape in seconds, float64 [shapes]; row_of, microbatches: row
    and number of micro-batches of each shape, int64 [shapes]
    """

    rows: Sequence[_ShapeRow]
    least: Floats
    row_of: Integers
    microbatches: Integers

    def search(self, place: int) -> CutSearch:
        """The search of the cuts of shape number `place`."""
        row = self.rows[self.row_of[place]]
        shape = StraightShape(row.schedule, row.devices, int(self.microbatches[place]))
        return CutSearch(row.evaluate, shape, row.rows)


def _bounded(evaluate: Evaluator, shapes: Iterable[StraightShape]) -> _Bounded:
    """Shapes that quick replays cover and the stack runs, each once, without those on devices that lack room even for the
    smallest micro-batches.
    """
    shared, counts = _Rows(evaluate.layer_costs), dict[tuple[str, tuple[int, ...]], dict[int, None]]()
    for key, alike in groupby(shapes, lambda shape: (shape.schedule, shape.devices)):
        if _is_known(key[0]) and (run := [one for one in alike if _is_run(evaluate.problem, one)]):
            counts.setdefault(key, {}).update((one.microbatches, None) for one in run)
    roomy = [(*key, list(own)) for key, own in counts.items() if may_have_room(evaluate.layer_costs, *key, max(own))]
    rows = [_ShapeRow(evaluate, shared, *row) for row in roomy]
    none = np.zeros(0, dtype=np.int64)
    return _Bounded(
        rows,
        np.concatenate([none, *(row.least for row in rows)]),
        np.repeat(np.arange(len(rows)), [len(row.counts) for row in rows]),
        np.concatenate([none, *(row.counts for row in rows)]),
    )


def _is_run(problem: Problem, shape: StraightShape) -> bool:
    """Whether the stack runs a shape."""
    stages = len(shape.devices)
    return runs_shape(problem, shape.schedule, stages, stages // len(set(shape.devices)), shape.microbatches)


class _DeviceRow(NamedTuple):
    """The devices of a pipeline, one per stage, and the links between them.

    alike: one device of each kind; kind: int64 [stages], place of each device's kind among them; streams: whether any device
    streams
    beside: seconds of a forward and a backward beside those of the layers, float64 [kinds]
    latency, byte_seconds: of each link, down and up, float64 [2, stages - 1]
    """

    alike: tuple[int, ...]
    kind: Integers
    streams: bool
    beside: Floats
    latency: Floats
    byte_seconds: Floats


class _Rows:
    """Rows of devices and seconds on them, shared by the shapes of one search."""

    def __init__(self, costs: LayerCosts) -> None:
        self.costs = costs

    def alike(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        """One device of each kind among these."""
        costs = self.costs
        return tuple(map(costs.first_of_kind, sorted(set(map(costs.kind_of_device, devices)))))

    @remembered
    def row(self, devices: tuple[int, ...]) -> _DeviceRow:
        """The devices of a pipeline and the links between them."""
        costs, between = self.costs, self.costs.problem.cluster.point_to_point
        kinds, alike = [costs.kind_of_device(device) for device in devices], self.alike(devices)
        distinct = sorted(set(kinds))
        there = [between(near, far) for near, far in pairwise(devices)]
        back = [between(far, near) for near, far in pairwise(devices)]
        links = np.array([there, back], dtype=np.float64).reshape(2, -1, 2)
        if not costs.problem.sends_behind:
            links[:] = 0.0, np.inf
        return _DeviceRow(
            alike=alike,
            kind=np.array([distinct.index(kind) for kind in kinds], dtype=np.int64),
            streams=any(map(costs.streams, alike)),
            beside=np.array(
                [costs.pass_seconds(one, "forward") + costs.pass_seconds(one, "backward") for one in alike]
            ),
            latency=np.ascontiguousarray(links[:, :, 0]),
            byte_seconds=np.ascontiguousarray(1.0 / links[:, :, 1]),
        )

    @remembered
    def whole_seconds(self, device: int, samples: int) -> float:
        """Seconds of a forward and a backward of the whole network for so many samples."""
        return float(self.costs.round_trip_seconds(device, samples).sum())

    @remembered
    def seconds_before(self, device: int, samples: int) -> Floats:
        """Seconds of a forward and a backward of all layers before each cut, float64 [layers + 1]."""
        return np.append(0.0, np.cumsum(self.costs.round_trip_seconds(device, samples)))
