"""Closed form: seconds of an iteration, and bytes, of the plans of a shape.

With M micro-batches, v stages per device, and T[r] the seconds of rank r for one micro-batch (its v stages forward and backward):

    iteration = M * R + (sum of T - R) / v + transfers + what ends last, after the first rank's last backward

where R is the longest T with one stage per device. With several, stages that are unlike wait for each other: R is the longest
first stage, and the longest second one, and so on.

Mostly the first rank ends last, with what `Tails` tells, or one before it in the backward that has longer to reduce; `RankWaits`
tells of transfers. On its way up the last gradient waits, behind every stage, for the bucket that is being reduced over the same
card.

Bytes of rank r: what its stages hold all the time, what each keeps of its micro-batches in flight, the most that is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from hardware_profiles import Floats, Integers, Operation, reduce_seconds
from planners.estimate.like_blocks import LikeBlocks
from planners.estimate.memory import in_flight, state_bytes, two_largest, unit_bytes
from planners.estimate.pipeline_seconds import pipelined, rounds_and_fill
from planners.estimate.replica_traffic import StageWeights, beside_traffic, unit_seconds
from planners.estimate.stage_costs import FIRST, LAST, MIDDLE, ONLY, Line, Pass, StageCosts
from planners.large.division import BlockDivision, divided
from planners.large.rank_groups import RankGroups
from planners.large.rank_waits import RankWaits
from planners.large.shapes import Shape
from planners.large.tails import Tails
from planners.search.remembered import remembered
from simulator import (
    GroupRates,
    Problem,
    Recompute,
    Zero,
)

PASSES: tuple[Pass, Pass] = ("forward", "backward")

WAITED = 0.3
"""Share of the waits of unlike stages for each other, of those with nothing in flight between them, that rounds take. Fitted to
replays.
"""

FURTHER = 3
"""Numbers of blocks that are tried for the largest stages, from the least possible one on."""

ROUNDING = 1e-9
"""Relative tolerance on the end of a stage's backward."""


@dataclass(frozen=True, slots=True)
class DividedShape:
    """A shape with the best division of its blocks among ranks, by the closed form.

    seconds: of an iteration; zero: ZeRO stage; blocks, policies: of each rank, its number of whole blocks and its recompute
    policy
    choice: recompute policies among which the division is the best
    """

    seconds: float
    shape: Shape
    zero: Zero
    blocks: tuple[int, ...]
    policies: tuple[Recompute, ...]
    choice: tuple[Recompute, ...]


class ClosedForm:
    """Seconds and bytes of the shapes of one problem; tables are filled when first needed."""

    def __init__(
        self, problem: Problem, blocks: LikeBlocks, policies: Sequence[Recompute], zeros: Sequence[Zero]
    ) -> None:
        """blocks: the network's run of like blocks; policies, zeros: the recompute policies and ZeRO stages to choose from"""
        self.problem, self.blocks, self.policies, self.zeros = problem, blocks, tuple(policies), zeros
        self.costs = StageCosts(problem, blocks, policies)
        self.devices = RankGroups(problem)
        self.tails = Tails(self.devices, self.costs)

    @property
    def memory_bytes(self) -> float:
        """Bytes that a plan may allocate on each device."""
        return self.problem.room_bytes(0)

    # ---- what is divided ----

    def block_moves(self, shapes: Integers) -> tuple[Floats, Floats]:
        """Lower bounds on the seconds in which a block's weights are gathered, and its gradients scattered, float64 [shapes]
        each: its part of those of the largest unit.
        """
        kinds = [Shape(*row).parallel for row in shapes.tolist()]
        most = np.array([self.costs.most_in_unit(one) for one in kinds])
        pairs = [self.costs.elements(one) for one in kinds]
        unit = [most * np.array([pair[kind].block for pair in pairs]) for kind in (0, 1)]
        moved = partial(self.tails.moved, shapes)
        gather = moved(Operation.ALL_GATHER, unit[0], unit[1], self.problem.element_bytes)
        scatter = moved(Operation.REDUCE_SCATTER, unit[0], unit[1], self.problem.accumulated_bytes)
        return gather / most, scatter / most

    @remembered
    def ways(self, shape: Shape) -> RankWaits:
        """Waits of a shape's ranks for transfers."""
        return RankWaits(shape, self.devices, self.costs)

    @remembered
    def _tables(self, shape: Shape, most: int) -> _Tables:
        """Tables of a shape's ranks of up to `most` blocks."""
        return _Tables(self, shape, most)

    # ---- one shape ----

    def division(
        self,
        shape: Shape,
        zero: Zero,
        policies: tuple[Recompute, ...],
        spare: float = 0.0,
        *,
        limit: float = np.inf,
        bound: float = 0.0,
    ) -> DividedShape | None:
        """The best division of a shape's blocks at a ZeRO stage, each rank under one of these recompute policies; None where none
        fits below `limit` seconds.

        spare: bytes of every device that are to stay free
        bound: lower bound on the seconds of an iteration without what follows the last backward
        """
        blocks = self.blocks.count
        most = blocks if shape.pipeline == 1 else min(blocks, 2 * (-(-blocks // shape.pipeline) + shape.chunks))
        while True:
            tables = self._tables(shape, most)
            if tables.least_bytes(zero) > self.memory_bytes - spare or bound + tables.least_tail(zero) >= limit:
                return None
            found = tables.best(zero, policies, spare, limit)
            if most == blocks or tables.seconds_beyond >= (limit if found is None else found.seconds):
                return found
            most = min(blocks, 2 * most)


def chunk_blocks(count: int | Integers, chunks: int, *, last: bool) -> Integers:
    """Blocks of each stage of a device that holds `count` blocks, int64 [..., chunks].

    All stages but one have equally many; the first, or on the last device the last, has what is left: an end of the network has
    more to do than a block.
    """
    held = np.asarray(count)[..., None]
    alike = -(-held // chunks)
    end = np.arange(chunks) == (chunks - 1 if last else 0)
    return np.asarray(alike - end * (alike * chunks - held))


class _Tables:
    """Seconds and bytes of the ranks of one shape, for 0 to `most` blocks.

    Arrays are float64 [places, most + 1, chunks] where they tell stages, and [ranks, most + 1, policies] where they tell choices.
    """

    def __init__(self, form: ClosedForm, shape: Shape, most: int) -> None:
        self.form, self.shape, self.most, self.problem = form, shape, most, form.problem
        self.count = shape.microbatches(form.problem.batch)
        self.weights = rounds_and_fill(self.count, shape.chunks)
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
        self.places = np.full((ONLY + 1, 1, shape.chunks), MIDDLE)
        self.places[FIRST, :, 0], self.places[LAST, :, -1], self.places[ONLY] = FIRST, LAST, ONLY
        self.passes = [self._of_stages(self._line(one)) for one in PASSES]
        gather = form.costs.gather_seconds(shape.parallel, self._rates, shape.samples)
        if gather and shape.pipeline > 1:
            ways = np.full((2, *self.blocks.shape), gather)
            ways[0, FIRST, :, 0] = ways[1, LAST, :, -1] = 0.0
            self.passes = [one + way for one, way in zip(self.passes, ways, strict=True)]

    def best(self, zero: Zero, policies: tuple[Recompute, ...], spare: float, limit: float) -> DividedShape | None:
        """The best division below `limit` seconds at a ZeRO stage with these recompute policies; None where none fits. spare:
        bytes left free
        """
        shape, form = self.shape, self.form
        stages, held = self._seconds(zero), self._bytes(zero)
        may = self.held[self.ranks][:, :, None] & np.array([one in policies for one in form.policies])
        seconds = np.maximum(stages.sum(axis=2), self._sent_seconds(zero)[:, :, None])[self.ranks]
        cost = np.where(may & (held <= form.memory_bytes - spare), seconds, np.inf)
        chosen = cost.argmin(axis=2)
        search = self._together if shape.chunks == 1 else self._stage_by_stage
        ranks, number = self.ranks[:, None], np.arange(self.most + 1)
        figures = cost.min(axis=2), stages[ranks, number, :, chosen]
        found = self._ended(
            zero, figures[0], lambda cost, most: search(zero, cost, figures[1], most), limit - self._ways.seconds
        )
        if found is None:
            return None
        again = tuple(form.policies[chosen[rank, n]] for rank, n in enumerate(found.blocks))
        return DividedShape(found.seconds + self._ways.seconds, shape, zero, found.blocks, again, policies)

    def _ended(
        self, zero: Zero, cost: Floats, search: Callable[[Floats, float], BlockDivision | None], limit: float
    ) -> BlockDivision | None:
        """The best division where a rank whose tail is longer than the first one's may end after it; None where none is below
        `limit`.

        cost: seconds of a micro-batch, infinite where a rank cannot hold so many blocks, float64 [ranks, most + 1]; search:
        (cost, limit) -> the best division as if the first rank ended last
        """
        ends, best = self._rank_ends(zero), None
        among = [(-np.inf, np.inf)]  # the first rank ends no sooner, and others sooner
        while among:
            least, most = among.pop()
            may = ends < most
            may[0] = ends[0] >= least
            found = search(np.where(may, cost, np.inf), limit)
            if found is None:
                continue
            first, last = ends[0, found.blocks[0]], float(ends[np.arange(len(ends)), found.blocks].max())
            if found.seconds + last - first < limit:
                best = BlockDivision(found.seconds + last - first, found.blocks)
                limit = best.seconds
            if last > first:
                among += [(max(least, last), most), (least, last)]
        return best

    @remembered
    def _rank_ends(self, zero: Zero) -> Floats:
        """Seconds from the last backward of the first rank to the end of each rank, float64 [ranks, most + 1].

        A rank's own last backward ends earlier than the first rank's by the backwards of the ranks before it.
        """
        tails = [self.tail_seconds(zero)]
        for place in ((), (LAST,), (MIDDLE, LAST))[min(self.shape.pipeline, 3) - 1]:
            tails.append(self.form.tails.seconds(self.shape.row, np.array([zero]), self.most, place)[0])
        stages = self.shape.pipeline * self.shape.chunks
        sooner = self._line("backward").block * self.form.blocks.count / stages
        rank = np.arange(self.shape.pipeline)
        of_rank = np.minimum(rank, 1) if self.shape.pipeline < 3 else np.where(rank == rank[-1], 2, np.minimum(rank, 1))
        return np.asarray(np.array(tails)[of_rank] - rank[:, None] * sooner)

    def _together(self, zero: Zero, seconds: Floats, stages: Floats, limit: float) -> BlockDivision | None:
        """The best division where only whole ranks wait for each other. seconds: of a micro-batch, float64 [ranks, most + 1]"""
        tail, crossing = self.tail_seconds(zero), self._ways.crossing
        return divided(seconds, self.form.blocks.count, self.weights, tail, limit, crossing)

    def _stage_by_stage(self, zero: Zero, seconds: Floats, stages: Floats, limit: float) -> BlockDivision | None:
        """The best division where the stages of ranks wait for each other: each round waits for the slowest of the first stages,
        then for the slowest of the second ones, and so on.

        seconds, stages: of a micro-batch on each rank, float64 [ranks, most + 1], and in each of its stages, float64 [ranks, most
        + 1, chunks]
        Divisions are tried by two limits: on the blocks of first stages but the first rank's, and on those of all others. None
        within the limits is waited for less than stages with as many blocks.
        """
        shape, total, number = self.shape, self.form.blocks.count, np.arange(self.most + 1)
        tail = self.tail_seconds(zero)
        alike, first = -(-number // shape.chunks), self.blocks[self.ranks][:, :, 0]
        middle = self._seconds(zero)[MIDDLE, :: shape.chunks, -1].min(axis=1)  # of a stage of 0, 1, ... blocks
        least, best = -(-total // (shape.pipeline * shape.chunks)), None
        for most in range(least, min(least + FURTHER, len(middle))):
            for begin in range(max(1, most - FURTHER), most + 1):
                within = (alike <= most) & (first <= np.where(self.ranks == FIRST, most, begin)[:, None])
                floors = np.array([middle[begin], *[middle[most]] * (shape.chunks - 1)])
                waited = seconds + WAITED * (np.maximum(stages, floors) - stages).sum(axis=2)
                waited[~within] = np.inf
                found = divided(waited, total, self.weights, tail, limit, self._ways.crossing, seconds)
                if found is None:
                    continue
                held = stages[np.arange(shape.pipeline), found.blocks]
                own = seconds[np.arange(shape.pipeline), found.blocks]
                slowest = own.max() + WAITED * (held.max(axis=0).sum() - own.max())
                rounds = pipelined(float(own.sum()), max(slowest, self._ways.crossing), self.count, shape.chunks)
                value = float(rounds + tail[found.blocks[0]])
                if value < limit:
                    best, limit = BlockDivision(value, found.blocks), value
        return best

    @property
    def seconds_beyond(self) -> float:
        """Lower bound on the seconds of an iteration where a rank has more than `most` blocks."""
        block = sum(self._line(one).block for one in PASSES)
        return self.weights[0] * block * (self.most + 1)

    # ---- seconds ----

    @cached_property
    def _rates(self) -> GroupRates:
        """Rates of the collectives of a replica of the shape."""
        return self.form.devices.rates(self.shape)

    def _line(self, what: Pass) -> Line:
        """Seconds of a pass, or of what a policy runs again, as a line in a stage's blocks."""
        return self.form.costs.seconds(self.shape.parallel, self._rates, self.shape.samples, what)

    def _of_stages(self, line: Line) -> Floats:
        """The figure of a line for each stage, float64 [places, most + 1, chunks]; all stages but those at the ends of the
        network are middle ones.
        """
        return np.asarray(line.own[self.places] + line.block * self.blocks)

    @remembered
    def _seconds(self, zero: Zero) -> Floats:
        """Seconds of a micro-batch in each stage, float64 [places, most + 1, chunks, policies]."""
        forward, backward = self.passes[0][..., None], self.passes[1][..., None] + self._again
        if zero >= 2 and self.shape.copies > 1:
            gathers, scatters = (one[..., None] for one in self._moved_seconds)
            exposed = self.problem.stack.exposed.on(self.problem.cluster.devices[0])
            forward, backward = beside_traffic(
                forward, backward, gathers, scatters, self._units[..., :1], zero, exposed
            )
        return np.asarray(forward + backward)

    @cached_property
    def _again(self) -> Floats:
        """Seconds of what each stage runs again, float64 [places, most + 1, chunks, policies]."""
        return np.stack([self._of_stages(self._line(policy)) for policy in self.form.policies], axis=3)

    def _sent_seconds(self, zero: Zero) -> Floats:
        """Seconds of a micro-batch for which the card of a rank moves weights and gradients of replicas (ZeRO 2 and 3) and sends
        to other ranks, float64 [places, most + 1]; 0 where these take different routes.
        """
        if zero < 2 or not self.form.devices.transfers_queue(self.shape):
            return np.zeros(self.blocks.shape[:2])
        weights, gradients = self._moved_seconds
        return np.asarray((gradients + 2 * weights * (zero == 3)).sum(axis=2) + self._ways.crossing)

    @cached_property
    def _moved_seconds(self) -> tuple[Floats, Floats]:
        """Seconds in which the weights of each stage are gathered, and its gradients scattered, float64 [places, most + 1,
        chunks] each.
        """
        tails, row = self.form.tails, self.shape.row
        weights = StageWeights(self._elements[None], self._experts[None], self._units[None])
        gathers, scatters = unit_seconds(self.problem, partial(tails.moved, row), weights)
        return gathers[0], scatters[0]

    @cached_property
    def _units(self) -> Floats:
        """Units of each stage, as of `StageCosts.units`, float64 [places, most + 1, chunks, 5]."""
        return np.asarray(self.form.costs.units(self.shape.parallel, self.most)[self.places, self.blocks])

    @cached_property
    def _elements(self) -> Floats:
        """Weight elements of each stage."""
        return self._of_stages(self.form.costs.elements(self.shape.parallel)[0])

    @cached_property
    def _experts(self) -> Floats:
        """Weight elements of each stage in routed experts."""
        return self._of_stages(self.form.costs.elements(self.shape.parallel)[1])

    @cached_property
    def _divided(self) -> Floats:
        """Weight elements of each stage that replicas divide, as of `PlanCosts.divided_elements`."""
        return self._elements + (self.shape.expert - 1) * self._experts

    @cached_property
    def _ways(self) -> RankWaits:
        """Waits of the shape's ranks for transfers."""
        return self.form.ways(self.shape)

    @remembered
    def tail_seconds(self, zero: Zero) -> Floats:
        """Seconds of the first rank after its last backward, by its blocks, float64 [most + 1]."""
        (seconds,) = self.form.tails.seconds(self.shape.row, np.array([zero]), self.most)
        return np.asarray(
            seconds + self._queued_seconds(Operation.of_gradients(zero > 0))
            if zero < 2 and self.shape.copies > 1
            else seconds
        )

    def least_tail(self, zero: Zero) -> float:
        """Least of `tail_seconds` over the numbers of blocks that the first rank may hold."""
        return float(self.tail_seconds(zero)[self.held[self.ranks[0]]].min(initial=np.inf))

    def _queued_seconds(self, operation: Operation) -> float:
        """Seconds for which the gradient of the last micro-batch waits for buckets on its way up through all stages.

        Behind every stage the bucket that is being reduced when its backward ends has the card, or half of it where links are
        fair. operation: of the reduction
        """
        shape, form = self.shape, self.form
        if not form.devices.transfers_queue(shape):
            return 0.0
        stages = shape.pipeline * shape.chunks
        count = -(-form.blocks.count // stages)
        backward = float(self.passes[1][MIDDLE, count * shape.chunks, -1])
        ready = free = 0.0
        for share, *sizes in form.costs.bucket_shares(shape.parallel, self._rates, shape.samples, count):
            ready += share * backward
            if max(ready, free) >= backward * (1.0 - ROUNDING):
                break
            dense, experts = (
                reduce_seconds(rates, size) if size else 0.0
                for rates, size in zip(form.devices.peers(shape, operation), sizes, strict=True)
            )
            free = max(ready, free) + dense + experts
        waits = max(0.0, free - backward)
        return (stages - 1) * (min(waits, self._ways.way(0)) if form.devices.fair else waits)

    # ---- bytes ----

    def least_bytes(self, zero: Zero) -> float:
        """Lower bound on bytes of weights, gradients and optimizer states on the fullest rank: the mean over ranks."""
        lines = self.form.costs.elements(self.shape.parallel)
        held, experts = (line.own[ONLY : ONLY + 1] + line.block * self.form.blocks.count for line in lines)
        divided = held + (self.shape.expert - 1) * experts
        return float(state_bytes(self.problem, zero, held, divided, self.shape.copies)[0]) / self.shape.pipeline

    @remembered
    def _bytes(self, zero: Zero) -> Floats:
        """Bytes on each device of a rank, float64 [ranks, most + 1, policies]."""
        copies = self.shape.copies
        always = state_bytes(self.problem, zero, self._elements.sum(axis=2), self._divided.sum(axis=2), copies)
        if zero >= 2 and copies > 1:
            units = self._units[..., 3:].reshape(*self._units.shape[:2], -1)
            always = always + two_largest(units) * unit_bytes(self.problem, zero)
            in_work: Floats | float = float(np.ceil(self.problem.workspace_bytes))
        else:
            in_work = self._in_work
        return np.asarray(always[self.ranks][:, :, None] + self._activations + in_work)

    @cached_property
    def _in_work(self) -> Floats:
        """Bytes of gradients before they are added up, float64 [ranks, 1 or most + 1, policies]."""
        found = [
            self._of_stages(one).max(axis=2)[self.ranks]
            for one in self.form.costs.gradients_in_work(self.shape.parallel)
        ]
        return np.stack(found, axis=2)

    @cached_property
    def _activations(self) -> Floats:
        """Bytes that micro-batches in flight keep, that a backward makes again, and that are sent, float64 [ranks, most + 1,
        policies].
        """
        costs, parallel, found = self.form.costs, self.shape.parallel, []
        flight = in_flight(self.shape.pipeline, self.shape.chunks, self.count).swapaxes(1, 2)
        for kept, made in costs.stashes(parallel):
            most = (self._of_stages(kept)[self.ranks] @ flight).max(axis=2)
            found.append(most + self._of_stages(made).max(axis=2)[self.ranks])
        beside = costs.boundary_bytes(parallel) * (self.shape.pipeline > 1)
        return np.asarray((np.stack(found, axis=2) + beside) * self.shape.samples)
