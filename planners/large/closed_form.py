"""Closed form: seconds of an iteration, and bytes, of the plans of a shape.

With M micro-batches, v stages a device, and T[r] the seconds of rank r for one micro-batch (its v stages forward and backward):

    iteration = M * max T + (sum of T - max T) / v + transfers + what the first rank does after its last backward

The first rank ends last: its gradients are reduced while its last backward runs, in the buckets of `PlanCosts.buckets`, and an
update follows. Every round of 1F1B waits for a transfer there or back; interleaving hides these, but for the filling ones. On
its way up the last gradient waits, behind every stage, for the bucket that is being reduced over the same card.

Bytes of rank r: what its stages hold all the time, what each keeps of its micro-batches in flight, the most that is made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise, takewhile
from math import gcd
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flow, Rates, reduce_seconds
from planners.large.division import divided
from planners.large.like_blocks import LikeBlocks
from planners.large.shapes import Shape
from planners.large.stage_costs import FIRST, LAST, MIDDLE, ONLY, Line, Pass, StageCosts
from planners.search.candidates import device_groups
from simulator import (
    BUCKET_BYTES,
    MOST_BUCKETS,
    GroupRates,
    Parallelism,
    Problem,
    Recompute,
    Stage,
    StagePlaces,
    Zero,
)

Floats = NDArray[np.float64]

PASSES: tuple[Pass, Pass] = ("forward", "backward")

ROUNDING = 1e-9
"""Share of a stage's backward within which it is at an end."""


@dataclass(frozen=True, slots=True)
class DividedShape:
    """The best division of a shape, by the closed form.

    seconds: of an iteration; zero: what replicas divide; blocks: of each rank; words: what each of them runs again
    choice: words among which it is the best
    """

    seconds: float
    shape: Shape
    zero: Zero
    blocks: tuple[int, ...]
    words: tuple[Recompute, ...]
    choice: tuple[Recompute, ...]


class ClosedForm:
    """What the shapes of one problem cost; tables fill as they are asked for."""

    def __init__(self, problem: Problem, blocks: LikeBlocks, words: Sequence[Recompute], zeros: Sequence[Zero]) -> None:
        """words, zeros: what stages may run again, and what replicas may divide, among which to choose"""
        self.problem, self.blocks, self.words, self.zeros = problem, blocks, tuple(words), zeros
        self.costs = StageCosts(problem, blocks, words)
        self._groups: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._rates: dict[tuple[Parallelism, int], GroupRates] = {}
        self._peers: dict[tuple[int, int, int, bool], tuple[Rates, Rates]] = {}
        self._queueing: dict[tuple[int, int], bool] = {}
        self._links: dict[tuple[int, int, int, int, int], Flow] = {}
        self._tables: dict[tuple[Shape, int], _Tables] = {}

    @property
    def memory_bytes(self) -> float:
        """Of a device."""
        return self.problem.cluster.devices[0].memory_bytes

    # ---- devices ----

    def groups(self, degree: int) -> tuple[tuple[int, ...], ...]:
        """Groups of that many devices, neighbours in a server beside each other."""
        if degree not in self._groups:
            self._groups[degree] = device_groups(self.problem, degree)
        return self._groups[degree]

    def rates(self, shape: Shape, *, alone: bool = False) -> GroupRates:
        """Of what the devices of a replica do, beside those of the others of its stage in its servers; alone: beside none but
        those that divide its experts.
        """
        step = shape.expert // gcd(shape.expert, shape.context)
        near = 1 if alone else max(self._in_server, shape.expert * shape.tensor) // (shape.tensor * shape.context)
        replicas = min(shape.data, step * max(1, near // step))
        key = shape.parallel, replicas
        if key not in self._rates:
            self._rates[key] = self._places(shape, replicas).rates(0)
        return self._rates[key]

    def _places(self, shape: Shape, replicas: int) -> StagePlaces:
        """Of so many replicas of the first rank's stages."""
        parts = self.groups(shape.tensor)[: replicas * shape.context]
        degrees = (shape.tensor * shape.context,) * replicas
        stage = Stage((), tuple(device for part in parts for device in part), degrees)
        return StagePlaces(stage, self.problem, shape.context, shape.expert)

    @cached_property
    def _in_server(self) -> int:
        return max(map(len, self.problem.cluster.servers))

    def peers(self, shape: Shape, apart: bool) -> tuple[Rates, Rates]:
        """All-reduces of each device of a rank with those that hold the same weights, and the same experts.

        apart: their scatters, or gathers
        """
        key = shape.tensor, shape.copies, shape.expert, apart
        if key not in self._peers:
            self._peers[key] = self._places(shape, shape.data).peer_rates(apart=apart)
        return self._peers[key]

    def transfers_queue(self, shape: Shape) -> bool:
        """Whether what the first rank sends queues with the reductions of its gradients."""
        if not self.problem.contention or shape.pipeline == 1 or shape.copies == 1:
            return False
        key = shape.tensor, shape.copies
        if key not in self._queueing:
            rings = self._places(shape, shape.data).rings
            self._queueing[key] = self.problem.cluster.collectives.allreduces_meet(self.link(shape).route, *rings)
        return self._queueing[key]

    def link(self, shape: Shape, rank: int = 0, *, alone: bool = False) -> Flow:
        """The way from a rank to the next, or from the last to the first, where all its replicas in its first server, or rack
        that they leave, send at once; alone: where the first one does.
        """
        several = shape.context if alone or not self.problem.contention else shape.copies
        key = shape.tensor, shape.copies, several, rank, (rank + 1) % shape.pipeline
        if key not in self._links:
            self._links[key] = self._link(shape, rank, several)
        return self._links[key]

    def _link(self, shape: Shape, rank: int, several: int) -> Flow:
        copies, cluster = shape.copies, self.problem.cluster
        ranks = rank, (rank + 1) % shape.pipeline
        senders, receivers = (self.groups(shape.tensor)[one * copies : (one + 1) * copies] for one in ranks)
        places, depth = cluster.topology.places, cluster.topology.parted((senders[0][0], receivers[0][0]))
        home = places[senders[0][0]][:depth]
        near = takewhile(lambda group: places[group[0]][:depth] == home, senders[:several])
        return cluster.flow([pair for both in zip(near, receivers, strict=False) for pair in zip(*both, strict=True)])

    def unlike_links(self, shape: Shape) -> dict[int, int]:
        """The first ranks of those whose ways to the next part in one server, in one rack and so on, and how many each is of."""
        groups, topology = self.groups(shape.tensor), self.problem.cluster.topology
        firsts = [groups[rank * shape.copies][0] for rank in range(shape.pipeline)]
        kinds = [topology.together(both) for both in pairwise(firsts)]
        return {kinds.index(kind): count for kind, count in Counter(kinds).items()}

    def parts(self, shape: Shape, rank: int) -> int:
        """Servers, or racks and so on, that a pipeline is in: such as the way from a rank to the next leaves."""
        groups, topology = self.groups(shape.tensor), self.problem.cluster.topology
        firsts = [groups[one * shape.copies][0] for one in range(shape.pipeline)]
        depth = topology.parted((firsts[rank], firsts[rank + 1]))
        return len({topology.places[first][:depth] for first in firsts})

    # ---- what is divided ----

    def state_bytes(
        self, zero: Zero | NDArray[np.int64], held: Floats, divided: Floats, copies: int | NDArray[np.int64]
    ) -> Floats:
        """Bytes that are there all the time of weight elements that a device holds; divided: by all that hold copies, as of
        `PlanCosts.divided_elements`.
        """
        alone = np.array([self.problem.divided_state_bytes(one, np.inf) for one in get_args(Zero)])[zero]
        return np.asarray(held * alone + divided / copies * (self.problem.state_bytes - alone))

    def unit_bytes(self, zero: Zero | NDArray[np.int64]) -> Floats:
        """Bytes an element of a unit that is there whole, where replicas divide it: of gradients, and of weights."""
        gradients, weights = self.problem.accumulated_bytes, self.problem.element_bytes
        return np.asarray(gradients * np.greater_equal(zero, 2) + weights * np.equal(zero, 3))

    def block_moves(self, shape: Shape) -> tuple[float, float]:
        """Seconds in which weights of a block are gathered, and gradients scattered: its part of the largest unit there is."""
        held, experts = self.costs.elements(shape.parallel)
        most = self.costs.most_in_unit(shape.parallel)
        sizes = self.problem.element_bytes, self.problem.accumulated_bytes
        gather, scatter = (
            float(self.move_seconds(shape, np.array(held.block * most), np.array(experts.block * most), size)) / most
            for size in sizes
        )
        return gather, scatter

    def move_seconds(
        self, shape: Shape, elements: Floats, experts: Floats, size: float, *, apart: bool = True
    ) -> Floats:
        """Seconds in which those that hold the same weights scatter, or gather, so many bytes of each.

        experts: of these elements; apart: else they all-reduce
        """
        peers, of_experts = self.peers(shape, apart)
        if shape.expert == 1:
            return _reduce_seconds(peers, elements * size)
        dense = _reduce_seconds(peers, (elements - experts) * size)
        return dense + _reduce_seconds(of_experts, experts * size) * (experts > 0.0)

    # ---- one shape ----

    def best(
        self,
        shape: Shape,
        spare: float = 0.0,
        *,
        limit: float = np.inf,
        bounds: Mapping[Zero, float] | None = None,
    ) -> DividedShape | None:
        """The best division of a shape, and what its replicas divide; None where none below `limit` fits.

        bounds: as of `least_seconds_in_memory`, of what replicas may divide, if not all that is asked for
        spare: as of `division`
        """
        bounds = bounds or dict.fromkeys(self.zeros, 0.0)
        found: DividedShape | None = None
        for zero in sorted(list(bounds)[: None if shape.copies > 1 else 1], key=bounds.__getitem__):
            most = limit if found is None else found.seconds
            if bounds[zero] < most:
                found = self.division(shape, zero, self.words, spare, limit=most, bound=bounds[zero]) or found
        return found

    def division(
        self,
        shape: Shape,
        zero: Zero,
        words: tuple[Recompute, ...],
        spare: float = 0.0,
        *,
        limit: float = np.inf,
        bound: float = 0.0,
    ) -> DividedShape | None:
        """The best division of a shape whose replicas divide that, and whose stages run one of these words again; None where
        none below `limit` fits.

        spare: bytes of every device that are to stay free; bound: seconds before what follows the last backward, at least
        """
        blocks = self.blocks.count
        most = blocks if shape.pipeline == 1 else min(blocks, 2 * (-(-blocks // shape.pipeline) + shape.chunks))
        while True:
            if (shape, most) not in self._tables:
                self._tables[shape, most] = _Tables(self, shape, most)
            tables = self._tables[shape, most]
            if tables.least_bytes(zero) > self.memory_bytes - spare or bound + tables.least_tail(zero) >= limit:
                return None
            found = tables.best(zero, words, spare, limit)
            if most == blocks or tables.seconds_beyond >= (limit if found is None else found.seconds):
                return found
            most = min(blocks, 2 * most)


def chunk_blocks(count: int | NDArray[np.int64], chunks: int, *, last: bool) -> NDArray[np.int64]:
    """Blocks of each stage of a device that holds `count` of them, int64 [..., chunks]: equally many, but for the first stage,
    or the last of the last device, which have the rest: the ends of the network have more to do than a block.
    """
    held = np.asarray(count)[..., None]
    alike = -(-held // chunks)
    end = np.arange(chunks) == (chunks - 1 if last else 0)
    return np.asarray(alike - end * (alike * chunks - held))


class _Tables:
    """Seconds and bytes of the ranks of one shape that hold 0 to `most` blocks.

    Arrays are float64 [places, most + 1, chunks] where they tell stages, and [ranks, most + 1, words] where they tell choices.
    """

    def __init__(self, form: ClosedForm, shape: Shape, most: int) -> None:
        self.form, self.shape, self.most, self.problem = form, shape, most, form.problem
        self.count = shape.microbatches(form.problem.batch)
        self._tails: dict[Zero, Floats] = {}
        self._of_zero: dict[Zero, tuple[Floats, Floats]] = {}
        self.ranks = np.array([ONLY] if shape.pipeline == 1 else [FIRST, *[MIDDLE] * (shape.pipeline - 2), LAST])
        number = np.arange(most + 1)
        rising, falling = (chunk_blocks(number, shape.chunks, last=last) for last in (False, True))
        self.blocks = np.stack([rising, rising, falling, rising])
        # The first and the last of several stages may hold an end of the network alone.
        alone = form.blocks.ends if shape.chunks > 1 else (False, False)
        least = np.array([not alone[0], 1, not alone[1], 1], dtype=np.int64)
        self.held = (self.blocks >= least[:, None, None]).all(axis=2) & (number > 0)
        # Stages that are unlike wait for each other in an interleaved schedule: between the ends one block at most is left out.
        self.held[MIDDLE] &= -number % shape.chunks <= 1
        if shape.pipeline == 1:
            self.held &= number == form.blocks.count
        self.passes = [self._of_stages(self._line(one)) for one in PASSES]
        gather = form.costs.gather_seconds(shape.parallel, self._rates, shape.samples)
        if gather and shape.pipeline > 1:
            ways = np.full((2, *self.blocks.shape), gather)
            ways[0, FIRST, :, 0] = ways[1, LAST, :, -1] = 0.0
            self.passes = [one + way for one, way in zip(self.passes, ways, strict=True)]

    def best(self, zero: Zero, words: tuple[Recompute, ...], spare: float, limit: float) -> DividedShape | None:
        """The best division below `limit` where replicas divide that, and stages run one of these again; None where none fits."""
        shape, form = self.shape, self.form
        rounds, fill, tail = self.count - 1 / shape.chunks, 1 / shape.chunks, self.tail_seconds(zero)
        limit -= self._transfer_seconds
        if zero not in self._of_zero:
            self._of_zero[zero] = self._seconds(zero)[self.ranks], self._bytes(zero)
        seconds, held = self._of_zero[zero]
        may = self.held[self.ranks][:, :, None] & np.array([one in words for one in form.words])
        cost = np.where(may & (held <= form.memory_bytes - spare), seconds, np.inf)
        chosen = cost.argmin(axis=2)
        found = divided(cost.min(axis=2), form.blocks.count, (rounds, fill), tail, limit, self._crossing_seconds)
        if found is None:
            return None
        again = tuple(form.words[chosen[rank, n]] for rank, n in enumerate(found.blocks))
        return DividedShape(found.seconds + self._transfer_seconds, shape, zero, found.blocks, again, words)

    @property
    def seconds_beyond(self) -> float:
        """Seconds that an iteration takes at least where a rank has more than `most` blocks."""
        block = sum(self._line(one).block for one in PASSES)
        return (self.count - 1 / self.shape.chunks) * block * (self.most + 1)

    # ---- seconds ----

    @cached_property
    def _rates(self) -> GroupRates:
        return self.form.rates(self.shape)

    def _line(self, what: Pass) -> Line:
        return self.form.costs.seconds(self.shape.parallel, self._rates, self.shape.samples, what)

    def _of_stages(self, line: Line) -> Floats:
        """A figure of each stage; those that are not at the ends are like the middle ones."""
        own = np.full(self.blocks.shape, line.own[MIDDLE])
        own[FIRST, :, 0], own[LAST, :, -1], own[ONLY] = line.own[FIRST], line.own[LAST], line.own[ONLY]
        return np.asarray(own + line.block * self.blocks)

    def _seconds(self, zero: Zero) -> Floats:
        """Seconds of a micro-batch on a rank, float64 [places, most + 1, words].

        Where replicas divide gradients, those of a unit are scattered while the next one computes. Where they divide weights,
        too, the next unit is gathered behind that: under the first unit of a forward, which follows a backward, and not under the
        first one of a backward.
        """
        forward, backward = self.passes[0][..., None], self.passes[1][..., None] + self._again
        if zero >= 2 and self.shape.copies > 1:
            weights, gradients = (one[..., None] for one in self._moved_seconds)
            scattered = np.maximum(backward, gradients)
            if zero == 3:
                first = 1.0 / np.maximum(self._units[..., :1], 1.0)
                both = weights + gradients
                scattered = first * np.maximum(backward, weights) + (1.0 - first) * np.maximum(backward, both)
                forward = first * np.maximum(forward, both) + (1.0 - first) * np.maximum(forward, weights)
            backward = scattered
        return np.asarray((forward + backward).sum(axis=2))

    @cached_property
    def _again(self) -> Floats:
        """Seconds for which each stage runs forwards again, float64 [places, most + 1, chunks, words]."""
        return np.stack([self._of_stages(self._line(word)) for word in self.form.words], axis=3)

    @cached_property
    def _moved_seconds(self) -> tuple[Floats, Floats]:
        """Seconds in which the weights of each stage are gathered, and its gradients scattered."""
        count = np.maximum(self._units[..., 0], 1.0)
        weights, gradients = (
            count * self.form.move_seconds(self.shape, self._elements / count, self._experts / count, size)
            for size in (self.problem.element_bytes, self.problem.accumulated_bytes)
        )
        return weights, gradients

    @cached_property
    def _units(self) -> Floats:
        """As of `StageCosts.units`, of each stage, float64 [places, most + 1, chunks, 5]."""
        of_place = self.form.costs.units(self.shape.parallel, self.most)
        found = of_place[MIDDLE][self.blocks]
        found[FIRST, :, 0], found[ONLY] = of_place[FIRST][self.blocks[FIRST, :, 0]], of_place[ONLY][self.blocks[ONLY]]
        found[LAST, :, -1] = of_place[LAST][self.blocks[LAST, :, -1]]
        return np.asarray(found)

    @cached_property
    def _elements(self) -> Floats:
        return self._of_stages(self.form.costs.elements(self.shape.parallel)[0])

    @cached_property
    def _experts(self) -> Floats:
        return self._of_stages(self.form.costs.elements(self.shape.parallel)[1])

    @cached_property
    def _divided(self) -> Floats:
        """Weight elements as of `PlanCosts.divided_elements`."""
        return self._elements + (self.shape.expert - 1) * self._experts

    @cached_property
    def _transfer_seconds(self) -> float:
        """Seconds of an iteration that wait for transfers between ranks."""
        return 2 * self._ways_seconds + self._waited_seconds

    @cached_property
    def _ways_seconds(self) -> float:
        """Seconds of the transfers of a micro-batch from the first rank to the last."""
        if self.shape.pipeline == 1:
            return 0.0
        return sum(count * self._way_seconds(rank) for rank, count in self.form.unlike_links(self.shape).items())

    def _way_seconds(self, rank: int, *, alone: bool = False) -> float:
        """Seconds of a transfer from a rank to the next; alone: as of `ClosedForm.link`."""
        flow = self.form.link(self.shape, rank, alone=alone)
        return flow.latency + self._sent / flow.bandwidth

    @cached_property
    def _sent(self) -> float:
        """Bytes of a micro-batch that a device sends over a boundary."""
        return self.form.costs.sent_bytes(self.shape.parallel) * self.shape.samples

    @cached_property
    def _waited_seconds(self) -> float:
        """Seconds for which stages wait for transfers beside those on the first way and the last.

        With one stage a device every round waits for one: replicas that have waited for each other's first ones send at other
        times from then on. With several each further lap begins when the one before has come back from the last rank.
        """
        shape = self.shape
        if shape.pipeline == 1:
            return 0.0
        if shape.chunks > 1:
            ways = sum(
                count * self._way_seconds(rank, alone=True) for rank, count in self.form.unlike_links(shape).items()
            )
            return 2 * (shape.chunks - 1) * (ways + self._way_seconds(shape.pipeline - 1, alone=True))
        return (self.count - 1) * max(self._way_seconds(rank, alone=True) for rank in self.form.unlike_links(shape))

    @cached_property
    def _crossing_seconds(self) -> float:
        """Seconds of a round for which the busiest card, or cable, of a rank sends on both ways, beside `_waited_seconds`."""
        shape, form, rounds = self.shape, self.form, self.count - 1 / self.shape.chunks
        if shape.pipeline == 1 or not self.problem.contention or not rounds:
            return 0.0
        # Of two servers, or racks, neither sends both ways but where a lap comes back.
        sends = {rank: 2 * shape.chunks - (form.parts(shape, rank) == 2) for rank in form.unlike_links(shape)}
        busiest = max(count * self._sent / form.link(shape, rank).bandwidth for rank, count in sends.items())
        return max(0.0, busiest - self._waited_seconds / rounds)

    def tail_seconds(self, zero: Zero) -> Floats:
        """Seconds of the first rank after its last backward, float64 [most + 1]."""
        if zero not in self._tails:
            self._tails[zero] = self._tail_seconds(zero)
        return self._tails[zero]

    def least_tail(self, zero: Zero) -> float:
        """The least of `tail_seconds`, of blocks that the first rank may hold."""
        return float(self.tail_seconds(zero)[self.held[self.ranks[0]]].min(initial=np.inf))

    def _tail_seconds(self, zero: Zero) -> Floats:
        problem, copies = self.problem, self.shape.copies
        elements, experts = self._elements[self.ranks[0]], self._experts[self.ranks[0]]
        updated = self._divided[self.ranks[0]] / copies if zero and copies > 1 else elements
        seconds = self._update_seconds(updated).sum(axis=1)
        if copies == 1:
            return np.asarray(seconds)
        if zero < 2:
            size = elements[:, 0] * problem.accumulated_bytes
            whole = problem.gradient_reduction == "whole"
            buckets = np.ones(len(size)) if whole else np.clip(size // BUCKET_BYTES, 1, MOST_BUCKETS)
            parts = elements[:, 0] / buckets, experts[:, 0] / buckets
            apart = zero > 0
            reduced = buckets * self.form.move_seconds(self.shape, *parts, problem.accumulated_bytes, apart=apart)
            last = self.passes[1][self.ranks[0]][:, 0]
            seconds += np.maximum(reduced / buckets, reduced - last * (1.0 - 1.0 / buckets))
            seconds += self._queued_seconds(apart)
        else:  # what its last unit scatters, and its first one gathers, is beside nothing
            first, of_experts = self._units[self.ranks[0]][:, 0, 1:3].T
            seconds += self.form.move_seconds(self.shape, first, of_experts, problem.accumulated_bytes)
            seconds += self.form.move_seconds(self.shape, first, of_experts, problem.element_bytes) * (zero == 3)
        if zero in (1, 2):
            seconds += self.form.move_seconds(self.shape, elements, experts, problem.element_bytes).sum(axis=1)
        return np.asarray(seconds)

    def _update_seconds(self, elements: Floats) -> Floats:
        """Seconds in which the optimizer updates so many elements of each stage: a line, from the least that a call takes."""
        member, most = self.form.costs.costs.at(self.shape.parallel), max(float(elements.max()), 1.0)
        least, half, whole = (member.update_seconds(0, one) for one in (1.0, most / 2, most))
        line = np.maximum(whole + (elements - most) * ((whole - half) / (most / 2)), least)
        return np.where(elements > 0.0, line, 0.0)

    def _queued_seconds(self, apart: bool) -> float:
        """Seconds for which the gradient of the last micro-batch waits on its way up: behind every stage, the bucket that is
        reduced when its backward ends has the card. apart: as of `peers`.
        """
        shape, form = self.shape, self.form
        if not form.transfers_queue(shape):
            return 0.0
        stages = shape.pipeline * shape.chunks
        count = -(-form.blocks.count // stages)
        backward = float(self.passes[1][MIDDLE, min(count * shape.chunks, self.most), -1])
        ready = free = 0.0
        for share, *sizes in form.costs.bucket_shares(shape.parallel, self._rates, shape.samples, count):
            ready += share * backward
            if max(ready, free) >= backward * (1.0 - ROUNDING):
                break
            dense, experts = (
                reduce_seconds(rates, size) if size else 0.0
                for rates, size in zip(form.peers(shape, apart), sizes, strict=True)
            )
            free = max(ready, free) + dense + experts
        return (stages - 1) * max(0.0, free - backward)

    # ---- bytes ----

    def least_bytes(self, zero: Zero) -> float:
        """Bytes that weights, gradients and states take on the rank that has most of them, at least: those of the mean."""
        lines = self.form.costs.elements(self.shape.parallel)
        held, experts = (line.own[ONLY : ONLY + 1] + line.block * self.form.blocks.count for line in lines)
        divided = held + (self.shape.expert - 1) * experts
        return float(self.form.state_bytes(zero, held, divided, self.shape.copies)[0]) / self.shape.pipeline

    def _bytes(self, zero: Zero) -> Floats:
        """Bytes on each device of a rank, float64 [ranks, most + 1, words]."""
        copies = self.shape.copies
        always = self.form.state_bytes(zero, self._elements.sum(axis=2), self._divided.sum(axis=2), copies)
        if zero >= 2 and copies > 1:
            always = always + self._two_units * self.form.unit_bytes(zero)
        return np.asarray(always[self.ranks][:, :, None] + self._activations)

    @cached_property
    def _two_units(self) -> Floats:
        """Weight elements of the two largest units of a rank, float64 [places, most + 1]."""
        units = self._units[..., 3:].reshape(*self._units.shape[:2], -1)
        return np.asarray(np.partition(units, -2, axis=2)[..., -2:].sum(axis=2))

    @cached_property
    def _activations(self) -> Floats:
        """What micro-batches keep, what is made again of one, what is sent, and gradients in work, float64 [ranks, most + 1,
        words].
        """
        costs, parallel, found = self.form.costs, self.shape.parallel, []
        flight = self._in_flight.swapaxes(1, 2)
        for kept, made in costs.stashes(parallel):
            most = (self._of_stages(kept)[self.ranks] @ flight).max(axis=2)
            found.append(most + self._of_stages(made).max(axis=2)[self.ranks])
        beside = costs.boundary_bytes(parallel) * (self.shape.pipeline > 1)
        in_work = self._of_stages(costs.gradient_in_work(self.shape.parallel)).max(axis=2)[self.ranks]
        return np.asarray((np.stack(found, axis=2) + beside) * self.shape.samples + in_work[:, :, None])

    @cached_property
    def _in_flight(self) -> Floats:
        """Micro-batches in flight of each stage of a rank, when it may be fullest, float64 [ranks, moments, chunks].

        After W forwards of a warm-up, each further one has a backward behind it. With several stages a device p micro-batches
        pass each stage in turn, backwards in the other order; between the moments at which either begins another stage what is
        in flight changes evenly.
        """
        shape, ranks = self.shape, np.arange(self.shape.pipeline)
        if shape.chunks == 1:
            return np.minimum(self.count, shape.pipeline - ranks).astype(np.float64)[:, None, None]
        total, pipeline, chunks = self.count * shape.chunks, shape.pipeline, shape.chunks
        ahead = np.minimum(2 * (pipeline - 1 - ranks) + (chunks - 1) * pipeline, total)[:, None]
        turns = np.arange(2 * chunks + 1) * pipeline
        forwards = np.concatenate([turns + (chunks - 1) * pipeline + 0 * ahead, turns + ahead + 1], axis=1)
        forwards = np.clip(forwards, np.minimum(ahead + 1, total), total)
        backwards = np.maximum(forwards - ahead - 1, 0)
        lap = pipeline * chunks

        def passed(number: NDArray[np.int64]) -> NDArray[np.int64]:
            """Of the first so many ops, those of each stage in its turn."""
            rest = (number % lap)[:, :, None] - np.arange(chunks) * pipeline
            return np.asarray((number // lap * pipeline)[:, :, None] + np.clip(rest, 0, pipeline))

        return (passed(forwards) - passed(backwards)[:, :, ::-1]).astype(np.float64)


def _reduce_seconds(rates: Rates, sizes: Floats) -> Floats:
    """`reduce_seconds` of each of some sizes."""
    if not rates:
        return np.zeros_like(sizes)
    return np.asarray(reduce(np.minimum, (latency + sizes * seconds for latency, seconds in rates)))
