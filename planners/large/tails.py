"""Tails: seconds of a rank after its last backward, for many shapes at once.

Gradients are reduced while the last backward runs, in the buckets of `PlanCosts.buckets`, or scattered unit by unit; the update
of its stages follows, and then weights that replicas divide are gathered again.
"""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np

from hardware_profiles import Floats, Integers, Operation, Rates, reduce_seconds
from planners.estimate.replica_traffic import gathered_seconds, reduced_seconds, scattered_seconds, update_seconds
from planners.estimate.stage_costs import FIRST, LAST, MIDDLE, ONLY, Line, StageCosts
from planners.large.rank_groups import RankGroups
from planners.large.shapes import Shape, unlike
from simulator import Parallelism


class Tails:
    """Tails of the shapes of one problem, which are rows of `grid`."""

    def __init__(self, devices: RankGroups, costs: StageCosts) -> None:
        self.devices, self.costs, self.problem = devices, costs, devices.problem

    def seconds(self, shapes: Integers, zero: Integers, most: int, place: int = FIRST) -> Floats:
        """Seconds after the last backward of the rank at a place, by its blocks (0 to `most`), float64 [shapes, most + 1].

        zero: ZeRO stage of each shape. Entries for numbers of blocks that its stages cannot have mean nothing.
        """
        updates, gathers = _Tail(self, shapes, zero, most, place).updates(), np.zeros((len(shapes), most + 1))
        reduced = np.zeros((len(shapes), most + 1))
        for buckets in (True, False):
            at = np.flatnonzero(((zero < 2) == buckets) & (shapes[:, 2] * shapes[:, 5] > 1))
            if len(at):
                own = _Tail(self, shapes[at], zero[at], most, place)
                reduced[at], gathers[at] = own.reduced() if buckets else own.scattered(), own.gathered()
        tied = self._tied_seconds(shapes)[:, None] * (place == FIRST)
        # The same cards carry both, one after the other.
        return (reduced + tied if self.problem.contention else np.maximum(reduced, tied)) + updates + gathers

    def _tied_seconds(self, shapes: Integers) -> Floats:
        """Seconds in which the first and the last rank all-reduce the gradients of weights that they share, float64 [shapes]."""
        if not self.costs.tied_elements(Parallelism()):
            return np.zeros(len(shapes))
        rows, number = unlike(shapes, (0, 1, 2, 5))
        return np.array([self._tied(Shape(*row)) for row in shapes[rows].tolist()])[number]

    def _tied(self, shape: Shape) -> float:
        """Seconds of that all-reduce for one shape; 0 for a single rank."""
        if shape.pipeline == 1:
            return 0.0
        size = self.costs.tied_elements(Parallelism(shape.tensor)) * self.problem.accumulated_bytes
        return reduce_seconds(self.devices.ends(shape), size)

    def moved(
        self, shapes: Integers, operation: Operation | Integers, elements: Floats, experts: Floats, size: float, /
    ) -> Floats:
        """Seconds of a collective, as of `Moved`, float64 [shapes, ...]."""
        kinds = np.column_stack([shapes, np.broadcast_to(operation, len(shapes))])
        rows, number = unlike(kinds, (0, 2, 5, 6, 7))
        peers = [self.devices.peers(Shape(*row), Operation(one)) for *row, one in kinds[rows].tolist()]
        dense, of_experts = (_Rates([one[kind] for one in peers], number, elements.ndim) for kind in (0, 1))
        divided = shapes[:, 6].reshape(-1, *[1] * (elements.ndim - 1)) > 1
        among = np.where(divided, experts, 0.0)
        found = dense.seconds((elements - among) * size)
        return found + np.where(among > 0.0, of_experts.seconds(among * size), 0.0) if divided.any() else found


class _Rates:
    """Latencies and seconds per byte of collectives, by algorithm, float64 [ways, shapes, 1, ...]; 0 for a device without
    peers.
    """

    def __init__(self, rates: list[Rates], number: Integers, dimensions: int) -> None:
        ways = max(1, *map(len, rates))
        table = np.array([[*(one or ((0.0, 0.0),)), *[(np.inf, 0.0)] * (ways - max(1, len(one)))] for one in rates])
        self.latency, self.rate = (
            table[number, :, column].T.reshape(ways, -1, *[1] * (dimensions - 1)) for column in (0, 1)
        )

    def seconds(self, sizes: Floats) -> Floats:
        """Seconds of a collective over `sizes` bytes by the fastest algorithm, float64 of their shape."""
        found = self.latency[0] + sizes * self.rate[0]
        for latency, rate in zip(self.latency[1:], self.rate[1:], strict=True):
            found = np.minimum(found, latency + sizes * rate)
        return np.asarray(found)


class _Tail:
    """Tables of some shapes at their ZeRO stages, for the rank at one place.

    first, others: blocks of its first stage, and of its others together, int64 [shapes, most + 1]
    elements, experts: weight elements of the first stage and of each other one, and those of them in routed experts
    """

    def __init__(self, tails: Tails, shapes: Integers, zero: Integers, most: int, place: int) -> None:
        self.tails, self.shapes, self.zero = tails, shapes, zero[:, None]
        self.problem, self.costs, self.most = tails.problem, tails.costs, most
        self.moved = partial(tails.moved, shapes)
        self.reduction = np.where(zero > 0, Operation.REDUCE_SCATTER, Operation.ALL_REDUCE)
        self.copies, self.further = (shapes[:, 2] * shapes[:, 5])[:, None], shapes[:, 4:5] - 1
        number = np.arange(most + 1)
        alike = -(-number // shapes[:, 4:5])
        self.first = alike if place == LAST else number - alike * self.further
        self.others = number - self.first
        several = self.further[:, 0] > 0
        self.place = np.where(shapes[:, 1] == 1, ONLY, np.where(several, MIDDLE, LAST) if place == LAST else place)
        self.behind = np.where(several & (place == LAST), LAST, MIDDLE)
        self.rows, self.number = unlike(shapes, (0, 5, 6))
        self.kinds = [Shape(*row).parallel for row in shapes[self.rows].tolist()]
        pairs = [self.costs.elements(one) for one in self.kinds]
        self.lines = [pair[0] for pair in pairs]
        self.elements, self.experts = (self._stages([pair[kind] for pair in pairs]) for kind in (0, 1))

    def _stages(self, lines: list[Line]) -> tuple[Floats, Floats]:
        """A figure of the first stage and of each other one, float64 [shapes, most + 1] each; lines: for each kind of shape"""
        own, block = np.array([one.own for one in lines])[self.number], np.array([one.block for one in lines])
        block, row = block[self.number][:, None], np.arange(len(own))
        first, behind = (own[row, places][:, None] for places in (self.place, self.behind))
        return first + block * self.first, (behind + block * self.others) / np.maximum(self.further, 1)

    def updates(self) -> Floats:
        """Seconds of the optimizer updates of all stages, float64 [shapes, most + 1]."""
        lines = np.array([self.costs.update_line(one) for one in self.kinds])[self.number].T[:, :, None]
        shared, expert = (self.zero > 0) & (self.copies > 1), self.shapes[:, 6:] - 1

        def of(stage: int) -> Floats:
            held = self.elements[stage]
            return update_seconds(np.where(shared, (held + expert * self.experts[stage]) / self.copies, held), *lines)

        return np.asarray(of(0) + self.further * of(1))

    def reduced(self) -> Floats:
        """Seconds of the bucket reductions of the first stage that its last backward does not hide, and of those of later stages
        still under way.
        """
        first = np.maximum(self.elements[0] - self._tied_elements, 0.0)
        front = np.array([one.own for one in self.lines])[self.number, self.place][:, None] - self._tied_elements
        figures = first, self.experts[0], front, self._last_backward()
        return np.asarray(reduced_seconds(self.problem, self.moved, *figures, self.reduction) + self._left())

    def _left(self) -> Floats:
        """Seconds for which gradients of later stages are still being reduced when those of the first stage are ready.

        Each is reduced since the last backwards of its stage's micro-batches in a row, which stand before as many of the stage
        before it.
        """
        if not self.further.any():
            return np.zeros(1)
        found = self.moved(self.reduction, self.elements[1], self.experts[1], self.problem.accumulated_bytes)
        return np.asarray(self.further * np.maximum(found - self.shapes[:, 1:2] * self._last_backward(), 0.0))

    def scattered(self) -> Floats:
        """Seconds of the last unit's reduce-scatter and the first unit's all-gather, which nothing hides."""
        units = np.stack([self.costs.units(one, self.most) for one in self.kinds])
        held = np.clip(self.first, 0, self.most)
        first = units[self.number[:, None], self.place[:, None], held]
        return scattered_seconds(self.problem, self.moved, first, self.zero, self._tied_elements)

    @cached_property
    def _tied_elements(self) -> Floats:
        """Weight elements that the first stage shares with the last one, where that is another stage, float64 [shapes, 1]."""
        tied = np.array([self.costs.tied_elements(one) for one in self.kinds])[self.number]
        return (tied * (self.shapes[:, 1] > 1))[:, None]

    def gathered(self) -> Floats:
        """Seconds of the all-gathers of updated weights of all stages (ZeRO 1 and 2), else 0."""
        where = (self.zero == 1) | (self.zero == 2)
        if not where.any():
            return np.zeros(1)
        first, other = (
            gathered_seconds(self.problem, self.moved, *held) for held in zip(self.elements, self.experts, strict=True)
        )
        return np.asarray((first + self.further * other) * where)

    def _last_backward(self) -> Floats:
        """Seconds of the first stage's last backward without recomputation, float64 [shapes, most + 1]."""
        rows, number = unlike(self.shapes, (0, 1, 2, 3, 5, 6))
        own, block, gathers = [], [], []
        for shape in (Shape(*row) for row in self.shapes[rows].tolist()):
            rates = self.tails.devices.rates(shape)
            line = self.costs.seconds(shape.parallel, rates, shape.samples, "backward")
            gather = self.costs.gather_seconds(shape.parallel, rates, shape.samples) if shape.pipeline > 1 else 0.0
            own.append(line.own)
            gathers.append(gather)
            block.append(line.block)
        beside = np.array(own)[number, self.place] + np.array(gathers)[number]
        return np.asarray(beside[:, None] + np.array(block)[number, None] * self.first)
