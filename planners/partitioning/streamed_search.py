"""Streamed search: the fastest pipeline with one board per stage, where the layers of a stage stream.

A board divides itself over the layers of its stage, so that a stage's seconds are no sum over its layers: each range of layers
has seconds of its own. All partitions of a shape (a schedule, a board of each stage, a number of micro-batches) are ranked by an
estimate, or, where they are too many, those of the partition search and of moves of single cuts from there. The best by the
estimate are replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import comb, inf

import numpy as np

from hardware_profiles import Floats, Integers
from planners.estimate.pipeline_seconds import pipelined
from planners.partitioning.fastest_cuts import fastest_cuts
from planners.partitioning.partition_costs import PartitionCosts, every_cuts, straight_costs
from planners.partitioning.straight_search import StraightShape
from planners.search.candidates import straight_plan
from planners.search.evaluator import Evaluator
from planners.search.remembered import remembered
from simulator import Plan

Cuts = Integers
"""Layers before each boundary, int64 [partitions, stages - 1]."""

MOST_PARTITIONS = 20_000
"""Partitions into one number of stages, at most, that are all ranked."""

MOST_SIZES = 16
"""Sizes of micro-batches, at most, whose ranges of layers are given seconds: the most promising ones."""

REPLAYED = 8
"""Partitions of a shape that are replayed, at most."""

NEAR = 1.25
"""Estimated seconds per second of the best replay below which a shape is replayed: the estimate misses forwards beside
backwards.
"""

ROUNDS = 12
"""Rounds of moves of single cuts, at most."""


class StreamedSearch:
    """Estimates and replays of the pipelines of one problem's boards."""

    def __init__(self, evaluate: Evaluator) -> None:
        self.evaluate, self.problem, self.costs = evaluate, evaluate.problem, evaluate.layer_costs
        self.layers = len(self.problem.workload)
        elements = self.costs.parameters_before
        whole = [self.costs.update_seconds(device, elements[-1]) for device in range(len(self.problem.cluster.devices))]
        self._updates = np.outer(whole, elements / max(elements[-1], 1.0))

    def fastest(self, planner: str, shapes: Iterable[StraightShape]) -> list[Plan]:
        """The fastest plan that is found for each schedule among these shapes, whether it fits or not."""
        ranked = [
            (self.evaluate.at_least(shape.devices, least), number, shape, cuts)
            for number, (least, shape, cuts) in enumerate(self._estimated(shapes))
        ]
        best: dict[str, tuple[tuple[float, float], Plan]] = {}
        for least, _, shape, cuts in sorted(ranked, key=lambda one: one[:2]):
            known = best.get(shape.schedule)
            if known is not None and known[0] < (0.0, least / NEAR):
                continue
            for one in cuts.tolist():
                plan = straight_plan(planner, self.problem, shape.schedule, one, shape.devices, shape.microbatches)
                key = self.evaluate(plan).key
                if known is None or key < known[0]:
                    best[shape.schedule] = known = key, plan
        return [plan for _, plan in best.values()]

    def _estimated(self, shapes: Iterable[StraightShape]) -> Iterator[tuple[float, StraightShape, Cuts]]:
        """Shapes with their least estimated seconds, and the cuts that are best by the estimate."""
        found: dict[tuple[tuple[int, ...], int], tuple[float, Cuts]] = {}
        every = list(shapes)
        sizes = sorted(sorted({-(-self.problem.batch // one.microbatches) for one in every}), key=self.whole_seconds)
        for shape in every:
            if -(-self.problem.batch // shape.microbatches) not in sizes[:MOST_SIZES]:
                continue
            key = shape.devices, shape.microbatches
            if key not in found:
                found[key] = self.best_cuts(*key)
            least, cuts = found[key]
            if len(cuts):
                yield least, shape, cuts

    def whole_seconds(self, samples: int) -> float:
        """Rank of a size of micro-batches, in seconds: of the batch in micro-batches of so many samples, if every board ran an
        equal share of the network, with the first one's way through all of them.
        """
        boards, batch = len(self.problem.cluster.devices), self.problem.batch
        held = np.arange(self.layers)
        passes = (self.costs.stage_seconds(0, held, samples, phase) for phase in ("forward", "backward"))
        return sum(passes) / boards * (-(-batch // samples) + boards - 1)

    def best_cuts(self, devices: tuple[int, ...], count: int) -> tuple[float, Cuts]:
        """The least estimated seconds, and cuts by rising estimates; inf and none where memory permits none."""
        stages = len(devices)
        if comb(self.layers - 1, stages - 1) <= MOST_PARTITIONS:
            every = every_cuts(self.layers, stages)
        else:
            every = self._moved(devices, count)
        seconds = self.estimates(devices, count, every) if len(every) else np.zeros(0)
        first = np.argsort(seconds, kind="stable")[:REPLAYED]
        return (float(seconds[first[0]]) if len(first) else inf), every[first[seconds[first] < inf]]

    def _moved(self, devices: tuple[int, ...], count: int) -> Cuts:
        """The last round of a climb that moves single cuts anywhere between their neighbours, from the cuts of the partition
        search; fastest first.
        """
        samples = -(-self.problem.batch // count)
        together = straight_costs(self.costs, devices, samples, alternating=True, in_flight=[samples] * len(devices))
        found = fastest_cuts(together, count)
        cuts = np.array([one for _, one in found[:1]], dtype=np.int64).reshape(-1, len(devices) - 1)
        for _ in range(ROUNDS if len(cuts) else 0):
            tried = np.array([[*cuts[0]], *one_moved(cuts[0].tolist(), self.layers)], dtype=np.int64)
            order = np.argsort(self.estimates(devices, count, tried), kind="stable")
            cuts = tried[order]
            if order[0] == 0:
                break
        return cuts

    def estimates(self, devices: tuple[int, ...], count: int, cuts: Cuts) -> Floats:
        """Estimated seconds of partitions, float64 [partitions]; inf for those that cannot fit. count: micro-batches

        They are one micro-batch's way through all stages and back, rounds of the slowest stage behind it, and the update: a
        stage's begins while the backwards of the stages before it are still to come.
        """
        stages, samples = len(devices), -(-self.problem.batch // count)
        costs = self._costs(devices, samples)
        ends = np.hstack([np.zeros((len(cuts), 1), np.int64), cuts, np.full((len(cuts), 1), self.layers)]).T
        kinds, places = np.array(costs.kind)[:, None], np.arange(stages)[:, None]
        forward, back = (costs.stage_seconds[one, kinds, ends[:-1], ends[1:]] for one in (0, 1))
        waits = costs.latency_seconds[places[:-1], ends[1:-1]].sum(axis=0)
        links = costs.link_seconds[:, places[:-1], ends[1:-1]].max(axis=(0, 1), initial=0.0)
        held = np.array(devices)[:, None]
        with np.errstate(invalid="ignore"):  # of what must not be
            slowest = np.maximum((forward + back).max(axis=0), links)
            updates = self._updates[held, ends[1:]] - self._updates[held, ends[:-1]]
            through = forward.sum(axis=0) + back.sum(axis=0) + waits
            rounds = pipelined(through, slowest, self.problem.batch / samples)
            seconds = (rounds - (np.cumsum(back, axis=0) - back) + updates).max(axis=0)
        assert costs.furthest is not None  # it was asked for
        too_far = (ends[1:] > costs.furthest[places, ends[:-1]]).any(axis=0)
        return np.where(too_far | np.isnan(seconds), inf, seconds)

    @remembered
    def _costs(self, devices: tuple[int, ...], samples: int) -> PartitionCosts:
        """The costs of partitions with micro-batches of so many samples, each stage with one micro-batch in flight."""
        held = [samples] * len(devices)
        return straight_costs(self.costs, devices, samples, in_flight=held)


def one_moved(cuts: Sequence[int], layers: int) -> Iterator[list[int]]:
    """All cuts that differ from the given ones in a single cut, which lies anywhere else between its neighbours."""
    bounds = [0, *cuts, layers]
    for place in range(1, len(bounds) - 1):
        for to in range(bounds[place - 1] + 1, bounds[place + 1]):
            if to != bounds[place]:
                yield [*bounds[1:place], to, *bounds[place + 1 : -1]]
