"""Straight search: the fastest pipeline with one device per stage, over schedules, devices, micro-batches and cuts together.

Shapes (a schedule, a device of each stage, a number of micro-batches) come by seconds that none of their cuts undercuts; a shape
is skipped once these are no faster than the best replay. Of its cuts, all are given a quick replay where they are few; else the
partition search's, improved by moves of one cut or of a run of cuts. Those are replayed whose quick replays, which are never
slower, are faster than the best replay so far: where all cuts are few, none that fits is faster than the answer.
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
from planners.search.candidates import straight_plan
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
"""Partitions up to which all of a shape get a quick replay, and as many ops together in units of OPS."""

OPS = 512
"""Forwards and backwards of a partition for which FEW_CUTS are few: of longer ones fewer are."""

PROMISING = 1.1
"""Cuts are moved where their quick replay takes less than this many times the best replay."""

REPLAYED = 64
"""Partitions of a shape that are replayed at most."""

WORK = 2**26
"""Ops of quick replays, and steps of partition searches, after which no further shape is looked at once a plan fits."""

ROUND = 2**20
"""Ops of the quick replays of a round of moves at most; of longer pipelines cuts are moved one by one, or not at all."""

MOST_REPLAYED_OPS = 2**18
"""Forwards and backwards of the replays of a round of moves at most."""

NEAR, FINALISTS = 1.02, 8
"""Shapes whose cuts are moved by replays in the end: so many, of those whose best replay takes less than NEAR times the best of
all before them."""


@dataclass(frozen=True, slots=True)
class StraightShape:
    """All of a pipeline but its cuts.

    devices: of each stage
    """

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
    """The fastest plan of these shapes that is found to fit; None where none is, and of devices whose layers stream.

    beat: seconds of another plan that fits; what is no faster need not be found
    """
    every = _bounded(evaluate, shapes)
    best, work, found = beat, 0, dict[int, tuple[float, Plan]]()
    searches = dict[int, _Cuts]()
    for place in np.argsort(every.least, kind="stable").tolist():
        if every.least[place] >= best or (work > WORK and best < inf):
            break
        one = every.search(place)
        work += one.work
        for seconds, cuts in one.ranked(best):
            if seconds >= found.get(place, (best * NEAR,))[0]:
                break
            plan = one.plan(planner, cuts)
            score = evaluate(plan)
            if score.fits and score.iteration_seconds < found.get(place, (inf,))[0]:
                found[place], searches[place] = (score.iteration_seconds, plan), one
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
    """As `fastest_straight`, where so many stages have no cuts but those of `cuts_of`, and what these take at least is known.

    beat: seconds of another plan that fits; what is slower need not be found
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
        one = every.search(place)
        own = cuts[one.stages]
        if one.streamed or one.stages not in run:
            continue
        if not known:
            heappush(waiting, (one.least_of(own), place, True))
            continue
        work += one.ops
        if one.quick_of(own) < best:
            plan = one.plan(planner, own)
            score = evaluate(plan)
            if score.fits:
                found[place], best = plan, min(best, score.iteration_seconds)
    plans = [plan for _, plan in sorted(found.items())]
    return min(plans, key=lambda plan: evaluate(plan).iteration_seconds, default=None)


def least_seconds_of(evaluate: Evaluator, schedule: str, devices: tuple[int, ...], counts: Sequence[int]) -> Floats:
    """Lower bounds on the seconds of pipelines on these devices under any cuts, by number of micro-batches; 0 for boards that
    stream.
    """
    return _ShapeRow(evaluate, _Rows(evaluate.layer_costs), schedule, devices, counts).least


def quick_replays_know(problem: Problem, schedules: Iterable[str]) -> bool:
    """Whether searches of this module look at every plan of these schedules on these devices: none runs layers concurrently."""
    return all(map(_is_known, schedules)) and not any(device.streams for device in problem.cluster.devices)


def _is_known(schedule: str) -> bool:
    """Whether a quick replay knows the schedule: one flush, one op at a time, no options but the stages per device."""
    family = schedule_families()[schedule]
    return family.flush and not family.lanes and set(family.options) <= {"chunks", "microbatch_group_size"}


class _Cuts:
    """The cuts of a shape."""

    def __init__(self, evaluate: Evaluator, shape: StraightShape, rows: _Rows | None = None) -> None:
        self.evaluate, self.problem, self.shape = evaluate, evaluate.problem, shape
        self.rows = rows or _Rows(evaluate.layer_costs)
        self.costs, self.layers = evaluate.layer_costs, len(evaluate.problem.workload)
        self.stages = len(shape.devices)

    @property
    def _row(self) -> _DeviceRow:
        return self.rows.row(self.shape.devices)

    @property
    def streamed(self) -> bool:
        """Whether the layers of a stage run concurrently on any of the devices."""
        return self._row.streams

    def plan(self, planner: str, cuts: Sequence[int]) -> Plan:
        """The plan with these cuts."""
        shape = self.shape
        return straight_plan(planner, self.problem, shape.schedule, cuts, shape.devices, shape.microbatches)

    @property
    def ops(self) -> int:
        """Forwards and backwards of a pipeline of this shape."""
        return 2 * self.stages * self.shape.microbatches

    @property
    def work(self) -> int:
        """Ops of quick replays, and steps of a partition search, that a look at this shape is."""
        if self.streamed:
            return self.ops
        if self._few():
            return self.ops * comb(self.layers - 1, self.stages - 1)
        return self.stages * self.layers**2 + self._number_of_moves * self.ops

    def least_seconds(self) -> float:
        """As `_ShapeRow.least_seconds`, of the shape alone."""
        shape = self.shape
        return float(_ShapeRow(self.evaluate, self.rows, shape.schedule, shape.devices, [shape.microbatches]).least[0])

    def least_of(self, cuts: Sequence[int]) -> float:
        """Lower bound on the seconds under these cuts: all rounds of a device, behind a micro-batch's way to it and back.

        Of schedules that are not WHOLE_BACKWARDS it is that of any cuts.
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
        """Cuts worth a replay with the seconds of their quick replays, fastest first; best: of replays so far."""
        if self.streamed or lacks_room(self.costs, self.shape.devices, int(self._sizes[0]), self._held):
            return iter(())
        if self._few():
            every = every_cuts(self.layers, self.stages)
        else:
            every = self._improved(best)
        seconds = self.quick(every) if len(every) else np.zeros(0)
        first = np.argsort(seconds, kind="stable")[:REPLAYED]
        return ((float(seconds[one]), tuple(every[one].tolist())) for one in first if seconds[one] < inf)

    def _few(self) -> bool:
        return comb(self.layers - 1, self.stages - 1) * max(1.0, self.ops / OPS) <= FEW_CUTS

    def _improved(self, best: float) -> Cuts:
        """The partition search's cuts, those that moves lead to, and the last moves that were tried."""
        chunks = self.stages // len(set(self.shape.devices))
        found = fastest_cuts(self._partition_costs, self.shape.microbatches * chunks)
        if not found:
            return np.zeros((0, self.stages - 1), dtype=np.int64)
        uniform = self._places[uniform_cuts(len(self._places) - 1, self.stages)]
        begun = np.array([found[0][1], uniform], dtype=np.int64).reshape(2, -1)
        cuts = begun[np.argsort(self.quick(begun), kind="stable")]
        if float(self.quick(cuts[:1])[0]) >= PROMISING * best:
            return cuts
        return climbed(cuts[0], self.quick, self._moves)

    def replayed_moves(self, plan: Plan) -> Plan:
        """A plan of this shape after moves that make its replay faster: quick replays do not know links that others share."""
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
        """One cut shifted, or a run of them, as far as ROUND permits."""
        number = self._number_of_moves
        if not number:
            return np.zeros((0, len(cuts)), dtype=np.int64)
        return moved(cuts, self._places, runs=number == number_of_moves(len(cuts), runs=True))

    @cached_property
    def _places(self) -> Cuts:
        """Layers that a stage may begin at, and the number of layers."""
        return stage_begins(self.problem)

    @property
    def _number_of_moves(self) -> int:
        """Moves that are looked at, within ROUND: also of runs, of single cuts alone, or none."""
        numbers = (number_of_moves(self.stages - 1, runs=runs) for runs in (True, False))
        return next((number for number in numbers if number * self.ops <= ROUND), 0)

    def quick(self, cuts: Cuts) -> Floats:
        """Seconds of the quick replays of partitions, float64 [partitions]; inf for those that cannot be, or do not fit."""
        columns = columns_of(self._order, self._sizes)
        return np.asarray(replay_cuts(columns, self._seconds, ROWS, cuts)) * (1.0 - SLACK)

    def quick_of(self, cuts: Sequence[int]) -> float:
        """Seconds of the quick replay of these cuts alone; inf where they do not fit."""
        bounds = np.array([0, *cuts, self.layers])
        if given_lack_room(self.costs, self.shape.devices, int(self._sizes[0]), self._held, bounds):
            return inf
        columns, alone = columns_of(self._order, self._sizes), np.array([cuts], dtype=np.int64).reshape(1, -1)
        anywhere = np.full((self.stages, self.layers + 1), self.layers)
        return float(replay_cuts(columns, self._seconds_within(anywhere), ROWS, alone)[0]) * (1.0 - SLACK)

    @cached_property
    def _sizes(self) -> Integers:
        return np.array(equal_microbatches(self.problem.batch, self.shape.microbatches), dtype=np.int64)

    @cached_property
    def _order(self) -> Schedule:
        chunks = self.stages // len(set(self.shape.devices))
        return order_of(self.shape.schedule, self.stages, self.shape.microbatches, chunks, ())

    @property
    def _held(self) -> Integers:
        """Samples that each stage has in flight at most."""
        schedule, count = self.shape.schedule, self.shape.microbatches
        in_flight = in_flight_of(schedule, self.stages, count, lambda: self._order)
        return samples_in_flight(in_flight, self.problem.batch, count)

    @cached_property
    def _partition_costs(self) -> PartitionCosts:
        samples = int(self._sizes[0])
        return straight_costs(self.costs, self.shape.devices, samples, alternating=True, in_flight=self._held.tolist())

    @cached_property
    def _seconds(self) -> CutSeconds:
        """The tables of the quick replays of cuts within memory."""
        return self._seconds_within(np.asarray(self._partition_costs.furthest))

    def _seconds_within(self, furthest: Integers) -> CutSeconds:
        """The tables of the quick replays of stages that end no further; see `CutSeconds`."""
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
    """Shapes that differ in the number of micro-batches alone."""

    def __init__(
        self, evaluate: Evaluator, rows: _Rows, schedule: str, devices: tuple[int, ...], counts: Sequence[int]
    ) -> None:
        self.evaluate, self.rows, self.schedule, self.devices = evaluate, rows, schedule, devices
        self.counts = np.array(counts, dtype=np.int64)

    @cached_property
    def least(self) -> Floats:
        """Lower bounds on the seconds under any cuts: m rounds of a device behind one round of all devices before it; by m.

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
        """Whether these cuts have room on the devices with the fewest samples that stages have in flight for any count."""
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
    """Shapes by rows, with lower bounds on the seconds of each, float64 [shapes]."""

    rows: Sequence[_ShapeRow]
    least: Floats
    row_of: Integers
    microbatches: Integers

    def search(self, place: int) -> _Cuts:
        """The search of the cuts of a shape."""
        row = self.rows[self.row_of[place]]
        shape = StraightShape(row.schedule, row.devices, int(self.microbatches[place]))
        return _Cuts(row.evaluate, shape, row.rows)


def _bounded(evaluate: Evaluator, shapes: Iterable[StraightShape]) -> _Bounded:
    """Shapes that quick replays know, each once, in order, but for devices that lack room for the smallest micro-batches."""
    shared, counts = _Rows(evaluate.layer_costs), dict[tuple[str, tuple[int, ...]], dict[int, None]]()
    for key, alike in groupby(shapes, lambda shape: (shape.schedule, shape.devices)):
        if _is_known(key[0]):
            counts.setdefault(key, {}).update((one.microbatches, None) for one in alike)
    roomy = [(*key, list(own)) for key, own in counts.items() if may_have_room(evaluate.layer_costs, *key, max(own))]
    rows = [_ShapeRow(evaluate, shared, *row) for row in roomy]
    none = np.zeros(0, dtype=np.int64)
    return _Bounded(
        rows,
        np.concatenate([none, *(row.least for row in rows)]),
        np.repeat(np.arange(len(rows)), [len(row.counts) for row in rows]),
        np.concatenate([none, *(row.counts for row in rows)]),
    )


class _DeviceRow(NamedTuple):
    """Devices of a pipeline, one per stage.

    alike: one of each kind; kind: int64 [stages], place of each device's kind among them; streams: whether any of them does
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
    """Rows of devices, and seconds on them, of the shapes of one search: they have many in common."""

    def __init__(self, costs: LayerCosts) -> None:
        self.costs = costs

    def alike(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        """A device of each kind."""
        costs = self.costs
        return tuple(map(costs.first_of_kind, sorted(set(map(costs.kind_of_device, devices)))))

    @remembered
    def row(self, devices: tuple[int, ...]) -> _DeviceRow:
        """The devices of a pipeline."""
        costs, between = self.costs, self.costs.problem.cluster.point_to_point
        kinds, alike = [costs.kind_of_device(device) for device in devices], self.alike(devices)
        distinct = sorted(set(kinds))
        there = [between(near, far) for near, far in pairwise(devices)]
        back = [between(far, near) for near, far in pairwise(devices)]
        links = np.array([there, back], dtype=np.float64).reshape(2, -1, 2)
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
        """Seconds of a forward and a backward of the whole network."""
        return float(self.costs.round_trip_seconds(device, samples).sum())

    @remembered
    def seconds_before(self, device: int, samples: int) -> Floats:
        """Seconds of a forward and a backward of the layers before each cut, float64 [layers + 1]."""
        return np.append(0.0, np.cumsum(self.costs.round_trip_seconds(device, samples)))
