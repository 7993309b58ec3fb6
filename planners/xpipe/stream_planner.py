"""XPipe planner: the straight pipeline that is fastest in the steady state of XPipe's order, by a closed form, then by replays.

XPipe takes its partition as given. Here the number of stages, micro-batches and cuts are searched together, by rising lower
bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf, isinf
from typing import NamedTuple

import numpy as np

from hardware_profiles import GIB, Floats
from planners.estimate.memory import RangeBytes, range_bytes, reaches_the_end, samples_in_flight
from planners.partitioning.partition_costs import both_ways
from planners.search.candidates import device_choices, microbatch_counts, straight_plan, straight_shape
from planners.search.evaluator import Evaluator, fitting
from planners.search.memory_retry import shrunk
from planners.search.notes import Note
from planners.search.remembered import remembered
from planners.search.request import Request
from planners.xpipe.staircase import SAFE, Staircase, fastest_staircase
from simulator import COPY_RULES, SLACK, InfeasiblePlanError, Plan, Problem, Score, stream_micro_batches

SCHEDULE = "xpipe"

COPIES = 1 + COPY_RULES[SCHEDULE].buffers
"""Copies of the weights: the current ones, and predictions for forwards and for backwards."""

REPLAYS = 256
"""Plans that fit, at most, whose replays are compared, the fastest by the closed form first: where links share channels, replays
take longer.
"""

MISSES = 16
"""Plans that do not fit, at most: each is followed by another one of its shape."""

MOST_OPS = 2**17
"""Forwards and backwards, at most, of the stream that shows a plan's steady state, which is replayed on SimPy in the end."""

WORK = 2**22
"""Stages times layers of all partitions that are sought, after which no further shape is searched once one fits."""


@dataclass(frozen=True, slots=True)
class XPipeStream:
    """Planner of asynchronous pipelines of one device per stage in XPipe's order, in mini-batches of T micro-batches one behind
    the other.

    Stages on the first devices of the cluster (also of some kinds of device alone), T and cuts are searched. Three copies of the
    weights (the current ones, and two predictions) and N - k micro-batches in flight on stage k of N must fit.
    """

    request: Request = field(default_factory=Request)
    name: str = "xpipe"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan that fits; InfeasiblePlanError if none does."""
        plan = StaircaseSearch(self.name, self.request, problem, evaluate).fastest()
        if plan is None:
            word = problem.device_word
            capacity = " or ".join(f"{one / GIB:.4g}" for one in sorted(set(problem.rooms)))
            raise InfeasiblePlanError(
                f"planner {self.name!r} finds no partition of {len(problem.workload)} layers over "
                f"{problem.cluster.counted_devices} within {capacity} GiB per {word}, {COPIES} copies of the "
                f"weights included; use more {word}s, recomputation or a smaller batch"
            )
        count = len(plan.microbatches)
        evaluate.note(Note(f"an update every {count} micro-batches, on weights that the first of them predicts"))
        return fitting(self.name, plan, evaluate)


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the planner cannot plan what is asked for, as a sentence for the user; None where it can."""
    if request.schedule not in (None, SCHEDULE):
        return f"XPipe runs its own order, {SCHEDULE}, not {request.schedule!r}"
    runs = problem.stack.runs.schedules
    if runs and SCHEDULE not in runs:
        return f"{problem.stack.title} runs {', '.join(runs)}, not {SCHEDULE!r}"
    return straight_shape(problem, request)


class DeviceRow(NamedTuple):
    """The devices of a pipeline, one per stage, and the links between them, float64 [stages - 1].

    latency: seconds of a transfer down and one up; byte_seconds: seconds per byte of both; busy: seconds per byte for which both
    keep the link busy
    """

    devices: tuple[int, ...]
    latency: Floats
    byte_seconds: Floats
    busy: Floats

    def first(self, stages: int) -> DeviceRow:
        """The row of its first `stages` devices."""
        return DeviceRow(self.devices[:stages], *(links[: stages - 1] for links in self[1:]))


class _StreamShape(NamedTuple):
    """All of a pipeline but its cuts; least: lower bound on the seconds of a mini-batch under any cuts"""

    row: DeviceRow
    microbatches: int
    least: float


class StaircaseSearch:
    """One search of shapes and cuts by the closed form, judged by replays.

    Lifetime: made for one problem and evaluator; `fastest` is asked once. A shape whose plan does not fit is searched again with
    less room.
    """

    def __init__(self, name: str, request: Request, problem: Problem, evaluate: Evaluator) -> None:
        self.name, self.request, self.problem, self.evaluate = name, request, problem, evaluate
        self.costs, self.layers = evaluate.layer_costs, len(problem.workload)
        self.shapes = sorted(self._shapes(), key=lambda shape: shape.least)
        self._misses = dict[int, list[Score]]()
        self._found = dict[int, tuple[float, Plan | None]]()

    def fastest(self) -> Plan | None:
        """The plan whose replay is best, of the fastest by the closed form; None where no cuts fit by it.

        A plan that does not fit is returned only where no replay shows one that does.
        """
        scores, fit = dict[Plan, Score](), 0
        while fit < REPLAYS and len(scores) - fit < MISSES:
            ranked = ((seconds, place, plan) for seconds, place, plan in self._ranked(scores) if plan not in scores)
            seconds, place, plan = next(ranked, (inf, 0, None))
            if plan is None or (0.0, seconds) >= min((one.key for one in scores.values()), default=(inf, inf)):
                break
            scores[plan] = score = self.evaluate(plan)
            fit += score.fits
            if isinf(score.peak_bytes):  # which the stack does not run: no memory helps
                break
            if not score.fits:
                self._misses.setdefault(place, []).append(score)
                del self._found[place]
        return min(scores, key=lambda plan: scores[plan].key, default=None)

    def _ranked(self, scores: Mapping[Plan, Score]) -> list[tuple[float, int, Plan]]:
        """Plans of the fastest shapes, each with its seconds by the closed form and the number of its shape, fastest first.

        No shape that is left out is faster than the fastest of them, whose seconds are those of its replay (but for rounding) if
        it was replayed.
        """
        best, work, ranked = inf, 0, list[tuple[float, int, Plan]]()
        for place, shape in enumerate(self.shapes):
            if shape.least >= best or (work > WORK and best < inf):
                break
            work += len(shape.row.devices) * self.layers
            seconds, plan = self._of_shape(place, best)
            if plan is not None:
                best = min(best, scores[plan].key[1] * (1.0 - SLACK) if plan in scores else seconds)
                ranked.append((seconds, place, plan))
        return sorted(ranked, key=lambda one: one[:2])

    def _of_shape(self, place: int, most: float) -> tuple[float, Plan | None]:
        """The fastest plan of shape number `place` by the closed form, with its seconds; None with `most`, or less, where none
        undercuts that.
        """
        known, plan = self._found.get(place, (0.0, None))
        if plan is not None or known >= most:
            return known, plan
        shape, misses = self.shapes[place], self._misses.get(place, [])
        row, count, fastest = shape.row, shape.microbatches, None
        if self._may_have_room(row, count, misses):
            fastest = fastest_staircase(self.staircase(row, count, misses), shape.least / count, most / count)
        if fastest is None:
            self._found[place] = most, None
        else:
            if most < inf:  # the same cuts whatever is known of other shapes
                fastest = fastest_staircase(self.staircase(row, count, misses), shape.least / count, inf) or fastest
            plan = straight_plan(self.name, self.problem, SCHEDULE, fastest[1], row.devices, count)
            self._found[place] = max(fastest[0] * count, self._shared(row.devices, fastest[1])), plan
        return self._found[place]

    def _shared(self, devices: Sequence[int], cuts: Sequence[int]) -> float:
        """Seconds of a mini-batch for which the busiest channel is busy with transfers of any stages; 0 without contention."""
        cluster, busy = self.problem.cluster, defaultdict[int, float](float)
        for (near, far), cut in zip(pairwise(devices), cuts, strict=True):
            for channel in (*cluster.route(near, far), *cluster.route(far, near)):
                busy[channel] += float(self.costs.cut_bytes[cut]) / cluster.channels[channel].bandwidth
        shared = self.problem.contention and self.problem.sends_behind
        longest = max(busy.values(), default=0.0) if shared else 0.0
        return self.problem.batch * longest * (1.0 - SLACK)

    def _shapes(self) -> Iterator[_StreamShape]:
        """Every number of stages, on each choice of devices, with every number of micro-batches."""
        seen = set[tuple[int, ...]]()
        for order in device_choices(self.problem, self.costs):
            whole = self.row(order)
            for stages in range(min(len(order), self.layers), 0, -1):
                if self.request.stages in (None, stages) and order[:stages] not in seen:
                    seen.add(order[:stages])
                    yield from self._of_row(whole.first(stages))

    def _of_row(self, row: DeviceRow) -> Iterator[_StreamShape]:
        """The shapes on a row of devices, by number of micro-batches; none where no cuts fit."""
        stages = len(row.devices)
        counts = microbatch_counts(self.problem, self.request, stages)
        if self.request.microbatches is None:
            counts = tuple(one for one in counts if 2 * stages * stream_micro_batches(one, stages) <= MOST_OPS)
        if not counts or not self._may_have_room(row, counts[-1], ()):
            return  # nor of fewer, larger micro-batches
        whole, widest = self._whole_and_widest(tuple(self._alike(row)), counts)
        sent = (
            self.costs.cut_bytes[1:-1].min(initial=inf) * self.problem.batch / np.array(counts) if stages > 1 else 0.0
        )
        lasting = row.latency.sum() + row.byte_seconds.sum() * sent
        least = np.maximum((whole + lasting) / stages, widest) * np.array(counts) * (1.0 - SLACK)
        yield from (_StreamShape(row, count, one) for count, one in zip(counts, least.tolist(), strict=True))

    @remembered
    def _whole_and_widest(self, alike: tuple[int, ...], counts: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Lower bounds on the seconds of a forward and a backward of the whole network on one device, and of its longest layer,
        float64 [counts] each.
        """
        passes = np.array([[self._passes(device, count) for count in counts] for device in alike])
        beside = min(map(self._beside, alike))
        return passes.sum(axis=2).min(axis=0) + beside, passes.min(axis=0).max(axis=1) + beside

    def _alike(self, row: DeviceRow) -> list[int]:
        """One device of each kind."""
        return list(map(self.costs.first_of_kind, sorted(set(map(self.costs.kind_of_device, row.devices)))))

    def row(self, devices: tuple[int, ...]) -> DeviceRow:
        """The devices with the links between them."""
        links = [both_ways(self.problem.cluster, *ends) for ends in pairwise(devices)]
        there, back, latency, one_way = np.array(links, dtype=np.float64).reshape(-1, 4).T
        if not self.problem.sends_behind:
            return DeviceRow(devices, *(np.zeros_like(latency) for _ in range(3)))
        together = 1.0 / there + 1.0 / back
        busy = np.where(one_way > 0.0, together, np.maximum(1.0 / there, 1.0 / back))
        return DeviceRow(devices, latency, together, busy if self.problem.contention else 0.0 * busy)

    def _beside(self, device: int) -> float:
        """Seconds of a forward and a backward beside those of the layers."""
        return self.costs.pass_seconds(device, "forward") + self.costs.pass_seconds(device, "backward")

    @remembered
    def _passes(self, device: int, count: int) -> Floats:
        """Seconds of a forward and a backward of each layer, averaged over `count` micro-batches, float64 [layers]."""
        size, larger = divmod(self.problem.batch, count)
        seconds = self.costs.round_trip_seconds(device, size) * (count - larger)
        if larger:
            seconds = seconds + self.costs.round_trip_seconds(device, size + 1) * larger
        return np.asarray(seconds / count)

    def staircase(self, row: DeviceRow, count: int, misses: Sequence[Score] = ()) -> Staircase:
        """The figures of pipelines on these devices with `count` micro-batches, for any cuts.

        misses: scores of plans that did not fit, by which less room is left
        """
        costs, problem = self.costs, self.problem
        kinds = [costs.kind_of_device(device) for device in row.devices]
        alike = self._alike(row)
        passes = np.array([self._passes(device, count) for device in alike])
        sent = costs.cut_bytes * (problem.batch / count)
        return Staircase(
            before=np.concatenate([np.zeros((len(alike), 1)), passes.cumsum(axis=1)], axis=1),
            beside=np.array([self._beside(device) for device in alike]),
            updates=self._of_weights(costs.update_seconds, alike) / count,
            predictions=self._of_weights(costs.predict_seconds, alike) / count,
            kind=np.array([sorted(set(kinds)).index(kind) for kind in kinds], dtype=np.int64),
            lasting=row.latency[:, None] + row.byte_seconds[:, None] * sent,
            busy=row.busy[:, None] * sent,
            held=self._held,
            room=self._room(row, misses),
            in_flight=self._in_flight(len(row.devices), count),
            samples=float(-(-problem.batch // count)),
            waiting=np.concatenate([[0.0], costs.cut_bytes[1:-1], [0.0]]),
        )

    def _may_have_room(self, row: DeviceRow, count: int, misses: Sequence[Score]) -> bool:
        """Whether some cuts may fit; False proves that none do."""
        in_flight, room = self._in_flight(len(row.devices), count), self._room(row, misses)
        return bool(reaches_the_end(self._held, room * (1.0 + SAFE), float(self.problem.batch // count), in_flight))

    def _room(self, row: DeviceRow, misses: Sequence[Score]) -> Floats:
        """Bytes of each device, less the share by which plans exceeded memory."""
        return np.asarray(self.costs.rooms[list(row.devices)] * shrunk(1.0, misses))

    def _in_flight(self, stages: int, count: int) -> Floats:
        """Samples in flight on each stage: N - k micro-batches, which may be several mini-batches; float64 [stages]."""
        rounds, more = np.divmod(np.arange(stages, 0, -1), count)
        return np.asarray(
            rounds * self.problem.batch + samples_in_flight(more, self.problem.batch, count), dtype=np.float64
        )

    def _of_weights(self, seconds: Callable[[int, float], float], devices: Sequence[int]) -> Floats:
        """Seconds of an update, or a prediction, of all weights before each cut, at the rate of the whole network, float64
        [devices, layers + 1].
        """
        before = self.costs.parameters_before
        return np.array([before * (seconds(device, before[-1]) / max(before[-1], 1.0)) for device in devices])

    @cached_property
    def _held(self) -> RangeBytes:
        """Bytes of stages with the predictions of their weights."""
        every = range_bytes(self.costs)
        copies = self.costs.parameters_before * (COPIES - 1) * self.problem.element_bytes
        return every._replace(states=every.states + copies)
