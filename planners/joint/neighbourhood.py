"""Neighbourhood: the pipelines that differ from a given pipeline in one decision, and seeds to begin with."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice, pairwise, product

import numpy as np
from numpy.typing import NDArray

from planners.joint.pipeline import Again, Pipeline, Ranks
from planners.joint.seed_bounds import SeedBounds
from planners.partitioning.minimax_cuts import minimax_cuts
from planners.search.candidates import (
    asked_degrees,
    asked_policies,
    asked_zeros,
    cut_places,
    device_choices,
    device_groups,
    devices_in_order,
    ranks_of,
    runs_shape,
)
from planners.search.request import Request
from simulator import (
    BY_BLOCK,
    LayerCosts,
    Parallelism,
    Problem,
    Recompute,
    divisors,
    is_group,
    schedule_families,
    slice_of,
)

Move = Callable[[Pipeline], Iterator[Pipeline]]
"""A pipeline -> its neighbours in one decision."""

DIVIDING = ("zb-h1", "zb-h2", "interleaved-zb", "zb-v", "v-half", "v-min", "dualpipev", "dualpipe")
"""Schedule families of the search that divide backwards into gradients of inputs and of weights."""

FAMILIES = ("1f1b", "eager-1f1b", "gpipe", "interleaved-1f1b", "looped-bfs", "hanayo", *DIVIDING, "chimera", "seq1f1b")
"""Flushed schedule families of the search."""

ONE_A_RANK = "straight", "bidirectional"
"""Placements of one stage per rank, of one direction and of both: cuts of one suit the other."""

SLICES = (2, 4, 8)
"""Numbers of slices per sequence that are searched."""

ON_ONE_RANK = "1f1b", "gpipe", "interleaved-1f1b", "looped-bfs"
"""Families that are searched where all stages are on the same devices, where gradients of several stages are reduced one by
one.
"""

SEEDS = "1f1b", "interleaved-1f1b"
"""Schedule families of seeds: the first of these, else of FAMILIES, that is allowed."""

GROUP = "microbatch_group_size"
"""Option of schedules: micro-batches that pass a stage before the device's next stage has its turn."""

CHUNKS = (2, 3, 4, 6, 8)
"""Stages per device that are searched for looped schedules and waves."""

FEW = 8
"""Boundaries up to which cuts are moved by several places, and together with the schedule."""

LOOPED = 4
"""Stages of the one rank in `Neighbourhood.looped`."""

STEPS = (-1, 1, -2, 2, -4, 4)
"""Places by which cuts are moved, where there are no more than FEW."""

ALONE = (*STEPS, -3, 3, -6, 6, -8, 8, -12, 12, -16, 16)
"""Places by which a pipeline's only cut is moved."""

EACH = 16
"""Ranks up to which seeds have every number of them."""

FEWER: tuple[Callable[[int, int], int], ...] = (
    lambda now, held: now - 1,
    lambda now, held: now // 2,
    lambda now, held: now * 3 // 4,
)
"""(blocks of a stage that run again, blocks of the stage) -> fewer blocks that run again, to save seconds."""

PARTS: tuple[Callable[[int, int], int], ...] = (
    lambda now, held: held // 4,
    lambda now, held: held // 2,
    lambda now, held: held * 3 // 4,
)
"""(any, blocks of a stage) -> blocks that run again when another policy takes the place of the stage's own."""

MORE: tuple[Callable[[int, int], int], ...] = (lambda now, held: now + 1, lambda now, held: (now + held + 1) // 2)
"""(blocks of a stage that run again, blocks of the stage) -> more blocks that run again, to save memory."""

MANY = 16
"""Boundaries up to which every run of neighbouring cuts is moved together; of more each cut moves alone."""


class Neighbourhood:
    """The decisions of one problem that a request leaves open, each with the move that changes it.

    policies, zeros, tensors, contexts, experts: recompute policies, ZeRO stages and degrees to choose from
    unlike: whether stages may recompute differently; counted: whether the number of blocks that run again is open
    """

    def __init__(self, problem: Problem, request: Request, costs: LayerCosts) -> None:
        self.problem, self.request, self.costs = problem, request, costs
        self.zeros, self.policies = asked_zeros(problem, request), asked_policies(problem, request)
        self.tensors = asked_degrees(problem, request)
        self.contexts = asked_degrees(problem, request, option="context")
        self.experts = asked_degrees(problem, request, option="expert")
        self.unlike = problem.stack.runs.unlike_recompute
        self.counted = request.recompute is None and problem.recompute == "none"  # blocks that run again
        self._parts = divisors(problem.batch)
        self._recompute_seconds: dict[Recompute, float] = {}
        self._balanced: dict[tuple[int, tuple[tuple[int, int], ...]], tuple[int, ...] | None] = {}

    @cached_property
    def families(self) -> tuple[str, ...]:
        """Schedule families that the request and the stack allow."""
        allowed = self.problem.stack.runs.schedules
        if self.request.schedule is not None:
            return (self.request.schedule,)
        return tuple(
            name for name in FAMILIES if (not allowed or name in allowed) and (name != "seq1f1b" or self.slices)
        )

    @cached_property
    def slices(self) -> tuple[int, ...]:
        """Numbers of slices into which the network's sequences may be cut."""

        def possible(count: int) -> bool:
            try:
                slice_of(self.problem.workload, 0, count)
            except ValueError:
                return False
            return True

        return tuple(filter(possible, SLICES))

    @cached_property
    def points(self) -> tuple[int, ...]:
        """Layers before each place where cuts are searched first (`cut_places`), with both ends of the network."""
        return (0, *cut_places(self.problem.workload), len(self.problem.workload))

    @property
    def decisions(self) -> dict[str, Move]:
        """The moves by the name of their decision, in the order in which descents try them."""
        return {
            "schedule": self.schedules,
            "ZeRO": self.zeros_of,
            "micro-batches": self.counts,
            "slices": self.slices_of,
            "recomputation": self.recomputations,
            "layers of stages": self.cuts,
            "replicas": self.replicas,
            "degrees": self.degrees,
            "placement": self.placements,
            "schedule and layers of stages": self.schedules_cut_otherwise,
            "micro-batches and recomputation": self.counts_with_fewer_blocks,
        }

    @property
    def within_a_family(self) -> list[str]:
        """Names of the decisions that keep the schedule family."""
        return [name for name in self.decisions if "schedule" not in name]

    def allows(self, pipeline: Pipeline) -> bool:
        """Whether a pipeline keeps to the request and to what the stack runs."""
        if pipeline.opposite and (len(pipeline.ranks) == 1 or set(map(len, pipeline.ranks)) != {1}):
            return False  # a stage is on two devices: one of each direction
        return (
            pipeline.schedule in self.families
            and self._runs_numbers(pipeline)
            and (pipeline.slices == 1 or pipeline.context == 1)
            and self.request.counts_are(pipeline.microbatches, pipeline.stages, pipeline.chunks)
            and pipeline.tensor in self.tensors
            and pipeline.context in self.contexts
            and pipeline.expert in self.experts
            and (pipeline.zero in self.zeros or pipeline.copies == 1)
            and all(policy in self.policies and (self.counted or not count) for policy, count in pipeline.recompute)
        )

    def _runs_numbers(self, pipeline: Pipeline) -> bool:
        """Whether the stack runs a pipeline's numbers of ranks, stages per rank, replicas and micro-batches."""
        alike = self.problem.stack.runs.unequal or len(set(pipeline.replicas)) == 1
        shape = pipeline.schedule, pipeline.stages, pipeline.chunks, pipeline.microbatches
        return alike and runs_shape(self.problem, *shape)

    def possible_counts(self, wanted: Iterable[int]) -> list[int]:
        """Numbers of micro-batches that the stack runs near those wanted, rising.

        Where the stack has micro-batches of one size only, each is the largest divisor of the batch up to a wanted number.
        """
        held = {count for count in wanted if 1 <= count <= self.problem.batch}
        if not self.problem.stack.runs.unequal:
            held = {self._parts[bisect_right(self._parts, count) - 1] for count in held}
        return sorted(held)

    # ---- to begin with ----

    def seeds(self, least: int = 1, most: int | None = None, below: float | None = None) -> Iterator[Pipeline]:
        """Seeds: pipelines of equal ranks of equal replicas, on all devices, on half of them, on whole servers, and of one
        replica per rank; with a few numbers of micro-batches, and on one rank with each ZeRO stage.

        least, most: ranks; below: seconds, for seeds of one rank: those that surely exceed memory or take as long are left out
        """
        again = min(self.policies, key=self.recompute_seconds)
        layers, asked = len(self.problem.workload), self.request.stages
        most = most if self.problem.stack.runs.pipeline else 1
        looped = [
            (name, held) for name in (*SEEDS, *self.families) if name in self.families for held in self.chunks(name)
        ]
        degrees = product(self.tensors, self.contexts)
        looped = looped[:1] if asked is None else [one for one in looped if asked % one[1] == 0]
        choices = device_choices(self.problem, self.costs)
        bounded = [SeedBounds(self.costs, chosen, self.contexts, again, below) for chosen in choices]
        for bounds, (tensor, context), (schedule, held) in product(bounded, degrees, looped):
            groups = bounds.groups(tensor)
            for ranks in _some_counts(min(len(groups) // context, layers // held, most or layers)):
                if ranks < least or (ranks == 1 and self.goes_both_ways(schedule)):
                    continue
                zeros = self.zeros if ranks == 1 else self.zeros[:1]
                for copies in self._seed_copies(len(groups) // context, ranks, tensor * context):
                    decided = product(
                        self._seed_counts(ranks, copies), self.experts, zeros if copies > 1 else zeros[:1]
                    )
                    for count, expert, zero in decided if asked in (None, ranks * held) else ():
                        parallel = Parallelism(tensor, context, expert)
                        if copies * context % expert:
                            continue
                        if ranks == 1 and not bounds.promises(parallel, copies, count, zero):
                            continue
                        policies = ((again, 0),) * (ranks * held)
                        laid = ranks_of(groups, ranks, copies * context)
                        empty = Pipeline(schedule, (), (), count, policies, (), tensor * context, zero, context, expert)
                        yield from self.laid(empty, laid, held)
                        if self._unlike(laid):
                            yield from self.laid(empty, laid[::-1], held)

    def looped(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """A pipeline of one rank with LOOPED stages in place of one, whose gradients replicas reduce stage by stage, under each
        ZeRO stage.
        """
        for other in islice((each for each in self.schedules(pipeline) if each.chunks == LOOPED), 1):
            yield from (other, *self.zeros_of(other))

    def _unlike(self, ranks: Ranks) -> bool:
        """Whether ranks are of several kinds of device, so that the reverse order of them is another pipeline."""
        return len({self.costs.kind_of_device(rank[0]) for rank in ranks}) > 1

    def _seed_copies(self, most: int, ranks: int, group: int) -> list[int]:
        """Numbers of replicas per rank of seeds: so many that they fill all groups, half of them, or 1, 2, 4, ... servers; and
        one.

        most: groups in all; group: devices of each
        """
        server = min(map(len, self.problem.cluster.servers)) // group
        whole = (server << doubled for doubled in range(most.bit_length()))
        held = {copies // ranks for copies in (most, *whole) if copies <= most}
        return sorted({*held, most // ranks // 2, 1} - {0})

    def _seed_counts(self, ranks: int, copies: int) -> Iterable[int]:
        """Numbers of micro-batches of seeds: 1, 2 and 4 per rank; on a single rank those of 1, 2, 4, ... samples per replica."""
        batch = self.problem.batch
        if self.request.microbatches is not None:
            return (self.request.microbatches,)
        if ranks > 1:
            return self.possible_counts(min(batch, ranks * many) for many in (1, 2, 4))
        share = -(-batch // copies)
        return self.possible_counts(-(-share >> doubled) for doubled in range(share.bit_length() + 1))

    # ---- schedule ----

    def schedules(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline under other schedule families and stages per rank, on the same ranks.

        With as many stages in a like placement its cuts stay, and near numbers of micro-batches are tried, too; else it is cut
        anew.
        """
        alone = max(map(len, pipeline.ranks)) == 1
        for name in self.families:
            if self.goes_both_ways(name) and not alone:
                continue
            ranks = len(pipeline.ranks)
            for chunks in self.chunks(name):
                if name == pipeline.schedule and chunks == pipeline.chunks:
                    continue
                if ranks == 1 and (
                    name not in ON_ONE_RANK or (chunks > 1 and not self.problem.stack.runs.looped_alone)
                ):
                    continue
                if self.request.stages not in (None, chunks * ranks):
                    continue
                other = replace(pipeline, schedule=name, options=())
                if chunks == pipeline.chunks and self._lies_alike(name, pipeline.schedule):
                    yield from self.slices_of(other) if name == "seq1f1b" else (other, *self.counts(other))
                elif name != "seq1f1b":  # of whole sequences it is 1f1b
                    yield from self.laid(other, pipeline.ranks, chunks)

    def goes_both_ways(self, name: str) -> bool:
        """Whether a family runs two pipelines in opposite directions, so that each device holds a stage of each."""
        return schedule_families()[name].placement == "bidirectional"

    def _lies_alike(self, *names: str) -> bool:
        """Whether the cuts of a pipeline of one of these families suit the others: their placements are the same, or of one stage
        per rank.
        """
        placements = {schedule_families()[name].placement for name in names}
        return len(placements) == 1 or placements.issubset(ONE_A_RANK)

    def chunks(self, name: str) -> tuple[int, ...]:
        """Stages per rank of a family that are searched; empty where the request or the stack leaves none."""
        family, asked = schedule_families()[name], self.request.chunks
        if "chunks" not in family.options:
            possible: tuple[int, ...] = (family.chunks,)
        else:
            possible = tuple(one for one in CHUNKS if one % family.chunks == 0)
        if not self.problem.stack.runs.interleaved:
            possible = tuple(one for one in possible if one == 1)
        return possible if asked is None else tuple(one for one in possible if one == asked)

    # ---- numbers ----

    def counts(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with near numbers of micro-batches: one more or fewer, half, double, next divisors of the batch and
        multiples of the ranks.
        """
        if self.request.microbatches is not None:
            return
        now, parts, ranks = pipeline.microbatches, self._parts, len(pipeline.ranks)
        near = {now - 1, now + 1, now * 2, now // 2, now * 3 // 2, now * 3 // 4, now // ranks * ranks}
        near |= {(now // ranks + step) * ranks for step in (-1, 1)}
        near |= {*[part for part in parts if part < now][-2:], *[part for part in parts if part > now][:2]}
        for count in self.possible_counts(near):
            if count != now:
                yield _in_groups(replace(pipeline, microbatches=count))

    def counts_with_fewer_blocks(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with more, and so smaller, micro-batches and at the same time fewer blocks that run again."""
        for other in self.counts(pipeline):
            if other.microbatches > pipeline.microbatches:
                yield from self._counted(other, range(pipeline.stages), FEWER)

    def slices_of(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with other numbers of slices per sequence: with as many micro-batches, and with so many that ops stay as
        large.
        """
        for slices in self.slices if pipeline.schedule == "seq1f1b" else ():
            if slices != pipeline.slices:
                count = pipeline.microbatches * pipeline.slices // slices
                for microbatches in dict.fromkeys((pipeline.microbatches, max(count, 1))):
                    yield replace(pipeline, options=(("slices", slices),), microbatches=microbatches)

    def zeros_of(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with other ZeRO stages, over all replicas or over those of one server, or of two."""
        copies = pipeline.copies
        if copies == 1:
            return
        shards = {0}
        if self.problem.stack.runs.hybrid_sharding:
            inside = min(map(len, self.problem.cluster.servers)) // pipeline.tensor
            shards |= {part for part in (inside, inside * 2) if 1 < part < copies and copies % part == 0}
        for zero in self.zeros:
            for shard in sorted(shards) if zero else (0,):
                if (zero, shard) != (pipeline.zero, pipeline.shard):
                    yield replace(pipeline, zero=zero, shard=shard)

    def recomputations(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with less recomputation, by policy or by number of blocks: in all stages, in those of one rank, or in one
        stage.
        """
        held = pipeline.rank_of_stage
        among: list[Sequence[int]] = [range(pipeline.stages)]
        if self.unlike:
            among += [[stage for stage in range(pipeline.stages) if held[stage] == rank] for rank in set(held)]
            among += [[stage] for stage in range(pipeline.stages)] if pipeline.chunks > 1 else []
        for stages in among:
            for policy in self.policies:
                if any(
                    self.recompute_seconds(policy) < self.recompute_seconds(pipeline.recompute[stage][0])
                    for stage in stages
                ):
                    yield _recomputing(pipeline, dict.fromkeys(stages, (policy, 0)))
            yield from self._counted(pipeline, stages, FEWER)
            again = [stage for stage in stages if pipeline.recompute[stage][0] != "none"]
            for policy in (one for one in BY_BLOCK if one in self.policies and again):
                yield from self._counted(_recomputing(pipeline, dict.fromkeys(again, (policy, 0))), again, PARTS)

    def with_more_recomputation(self, pipeline: Pipeline, device: int) -> Iterator[Pipeline]:
        """A pipeline that exceeds the memory of a device, with more recomputation in that device's stages, and in all stages."""
        rank = next(rank for rank, held in enumerate(pipeline.ranks) if device in held)
        own = [stage for stage, held in enumerate(pipeline.rank_of_stage) if held == rank]
        for stages in (own, range(pipeline.stages)) if self.unlike else (range(pipeline.stages),):
            least = min(self.recompute_seconds(pipeline.recompute[stage][0]) for stage in stages)
            more = [policy for policy in self.policies if self.recompute_seconds(policy) > least]
            yield from (_recomputing(pipeline, dict.fromkeys(stages, (policy, 0))) for policy in more)
            yield from self._counted(pipeline, stages, MORE)

    def _counted(
        self, pipeline: Pipeline, stages: Iterable[int], steps: Sequence[Callable[[int, int], int]]
    ) -> Iterator[Pipeline]:
        """The pipeline with other numbers of blocks that run again, in those of some stages whose policy goes by blocks.

        steps: of FEWER, PARTS or MORE; one pipeline for each
        """
        if not self.counted or not any(pipeline.recompute[stage][0] in BY_BLOCK for stage in stages):
            return
        held, most = pipeline.blocks(self.problem), max(count for _, count in pipeline.recompute)
        for step in steps:
            changed: dict[int, Again] = {}
            for stage in stages:
                policy, count = pipeline.recompute[stage]
                blocks = (
                    held[stage] if self.unlike else max(held)
                )  # where all recompute alike, as far as they have blocks
                if policy in BY_BLOCK and blocks:
                    now = min((count if self.unlike else most) or blocks, blocks)
                    other = min(max(step(now, blocks), 0), blocks)
                    changed[stage] = (policy, other * (other < blocks)) if other else ("none", 0)
            if (found := _recomputing(pipeline, changed)) != pipeline:
                yield found

    def recompute_seconds(self, policy: Recompute) -> float:
        """Seconds that a policy runs again: of all layers, for one sample, on the first device."""
        if policy not in self._recompute_seconds:
            seconds = self.costs.seconds(devices_in_order(self.problem)[0], 1, "forward")
            self._recompute_seconds[policy] = float((seconds * self.costs.runs_again(policy)).sum())
        return self._recompute_seconds[policy]

    # ---- cuts ----

    def cuts(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with one cut, or a run of neighbouring cuts, moved by some places between blocks, or a single cut by one
        layer.
        """
        count, layers = len(pipeline.cuts), len(self.problem.workload)
        runs = [(first, last) for first in range(count) for last in range(first, count)]
        if count > MANY:
            runs = [(place, place) for place in range(count)]
        fine = len(self.points) != layers + 1 and self.problem.stack.runs.cut_blocks
        for first, last in runs:
            for step in self._steps(count):
                yield from self._moved(pipeline, first, last, step, blocks=True)
                if fine and first == last and abs(step) == 1:
                    yield from self._moved(pipeline, first, last, step, blocks=False)

    def _steps(self, cuts: int) -> Sequence[int]:
        """Places by which each of `cuts` cuts is moved."""
        return ALONE if cuts == 1 else STEPS if cuts <= FEW else STEPS[:2]

    def _moved(self, pipeline: Pipeline, first: int, last: int, step: int, *, blocks: bool) -> Iterator[Pipeline]:
        """The pipeline with cuts `first` to `last` moved by `step` places between blocks, or by `step` layers; none where a stage
        would be empty.
        """
        cuts = list(pipeline.cuts)
        for place in range(first, last + 1):
            cuts[place] = self._next(cuts[place], step) if blocks else cuts[place] + step
        bounds = [0, *cuts, len(self.problem.workload)]
        if all(begin < end for begin, end in pairwise(bounds)):
            yield replace(pipeline, cuts=tuple(cuts))

    def _next(self, cut: int, step: int) -> int:
        """The place between blocks that lies `step` places behind a cut, or before it if `step` is negative; at most an end of
        the network.
        """
        at = int(np.searchsorted(self.points, cut, side="left" if step < 0 else "right")) + step - (step > 0)
        return self.points[min(max(at, 0), len(self.points) - 1)]

    def schedules_cut_otherwise(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline under another family of a like placement and with other cuts, where cuts are FEW: families hide transfers
        differently.
        """
        for name in self.families if len(pipeline.cuts) <= FEW else ():
            if name != pipeline.schedule and self._lies_alike(name, pipeline.schedule) and len(pipeline.ranks) > 1:
                yield from self.cuts(replace(pipeline, schedule=name, options=()))

    # ---- devices ----

    def replicas(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with unequal replicas: some of a rank's go to another, idle or come from idle devices; two ranks join, or
        one splits.
        """
        if pipeline.chunks > 1 or pipeline.opposite or not self.problem.stack.runs.unequal:
            return
        used = {device for rank in pipeline.ranks for device in rank}
        spare = [group for group in device_groups(self.problem, pipeline.group) if not used.intersection(group)]
        ranks, group = pipeline.ranks, pipeline.group
        for giver in range(len(ranks)):
            if len(ranks[giver]) == group:
                continue
            some = sorted({1, len(ranks[giver]) // group // 2})
            for taker, replicas in product(range(len(ranks)), some):
                if taker != giver:
                    yield from self._recut(pipeline, _given(ranks, giver, taker, group * replicas))
            yield from self._recut(pipeline, (*ranks[:giver], ranks[giver][:-group], *ranks[giver + 1 :]))
        for taker in range(len(ranks)) if spare else ():
            yield from self._recut(pipeline, (*ranks[:taker], ranks[taker] + spare[0], *ranks[taker + 1 :]))
        if self.request.stages is None:
            yield from self._joined_and_split(pipeline)
            yield from self._with_an_end_alone(pipeline)

    def _joined_and_split(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with two neighbouring ranks joined, or one rank split, each with the cuts that stay and cut anew."""
        ranks, group, layers = pipeline.ranks, pipeline.group, len(self.problem.workload)
        bounds = pipeline.bounds(layers)
        for rank in range(len(ranks) - 1):
            joined = (*ranks[:rank], ranks[rank] + ranks[rank + 1], *ranks[rank + 2 :])
            cuts = (*pipeline.cuts[:rank], *pipeline.cuts[rank + 1 :])
            policies = (*pipeline.recompute[:rank], *pipeline.recompute[rank + 1 :])
            yield replace(pipeline, ranks=joined, cuts=cuts, recompute=policies)
            yield from self._recut(replace(pipeline, recompute=policies), joined)
        for rank, held in enumerate(ranks):
            half, (begin, end) = len(held) // group // 2 * group, bounds[rank : rank + 2]
            if not half or end - begin < 2:
                continue
            parted = (*ranks[:rank], held[:half], held[half:], *ranks[rank + 1 :])
            policies = (*pipeline.recompute[: rank + 1], *pipeline.recompute[rank:])
            inner = [point for point in self.points if begin < point < end]
            if not inner and self.problem.stack.runs.cut_blocks:
                inner = [(begin + end) // 2]
            if not inner:
                continue
            middle = inner[len(inner) // 2]
            yield replace(
                pipeline, ranks=parted, cuts=(*pipeline.cuts[:rank], middle, *pipeline.cuts[rank:]), recompute=policies
            )
            yield from self._recut(replace(pipeline, recompute=policies), parted)

    def _with_an_end_alone(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with one replica of the first rank as a rank of its own, for the layers before the first cut place; and
        the same at the end.

        Weights of an embedding, or of the loss, then have no replicas.
        """
        ranks, group, policies = pipeline.ranks, pipeline.group, pipeline.recompute
        bounds = pipeline.bounds(len(self.problem.workload))
        first = [point for point in self.points if 0 < point < bounds[1]][:1]
        last = [point for point in self.points if bounds[-2] < point < bounds[-1]][-1:]
        if first and len(ranks[0]) > group:
            parted = (ranks[0][:group], ranks[0][group:], *ranks[1:])
            yield replace(pipeline, ranks=parted, cuts=(*first, *pipeline.cuts), recompute=(policies[0], *policies))
        if last and len(ranks[-1]) > group:
            parted = (*ranks[:-1], ranks[-1][:-group], ranks[-1][-group:])
            yield replace(pipeline, ranks=parted, cuts=(*pipeline.cuts, *last), recompute=(*policies, policies[-1]))

    def _recut(self, pipeline: Pipeline, ranks: Ranks) -> Iterator[Pipeline]:
        """The pipeline on other ranks: with its cuts, if it has as many as they need, and with cuts that even out seconds."""
        other = replace(pipeline, ranks=ranks)
        if len(pipeline.cuts) + 1 == len(ranks):
            yield other
        yield from self.laid(other, ranks, 1)

    def degrees(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with a degree (tensor, context, ranks, replicas) doubled, halved, or both; with one rank more or fewer;
        with other expert degrees.
        """
        if len(set(pipeline.replicas)) > 1 or pipeline.opposite:
            return
        now = {
            "tensor": pipeline.tensor,
            "context": pipeline.context,
            "ranks": len(pipeline.ranks),
            "data": pipeline.replicas[0],
        }
        found = [
            {**now, more: now[more] * 2, less: now[less] // 2}
            for more in now
            for less in now
            if more != less and now[less] % 2 == 0
        ]
        found += [{**now, name: count * 2} for name, count in now.items()]
        found += [{**now, name: count // 2} for name, count in now.items() if count % 2 == 0]
        found += [{**now, "ranks": now["ranks"] + step} for step in (-1, 1)]
        for counts in found:
            yield from self._regrouped(pipeline, counts)
        for expert in self.experts:
            if expert != pipeline.expert and pipeline.replicas[0] * pipeline.context % expert == 0:
                yield replace(pipeline, expert=expert)

    def _regrouped(self, pipeline: Pipeline, counts: dict[str, int]) -> Iterator[Pipeline]:
        """The pipeline with these degrees and equal ranks, replicas of a rank on neighbouring devices; none where they are not
        possible.
        """
        tensor, context, ranks, data = counts["tensor"], counts["context"], counts["ranks"], counts["data"]
        if tensor not in self.tensors or context not in self.contexts or ranks < 1:
            return
        if self.request.stages not in (None, ranks * pipeline.chunks) or not (
            ranks == 1 or self.problem.stack.runs.pipeline
        ):
            return
        groups = device_groups(self.problem, tensor)
        if tensor * context * ranks * data > len(groups) * tensor or data * context % pipeline.expert:
            return
        same = pipeline if ranks > 1 else replace(pipeline, schedule="1f1b", options=())
        if same.schedule not in self.families:
            return
        same = replace(same, group=tensor * context, context=context, shard=0)
        held = pipeline.chunks if ranks > 1 else 1
        yield from self.laid(same, ranks_of(groups, ranks, data * context), held)

    def placements(self, pipeline: Pipeline) -> Iterator[Pipeline]:
        """The pipeline with replicas of a rank beside each other or apart, through unlike devices in reverse, or with larger
        groups of micro-batches.
        """
        if len(set(pipeline.replicas)) == 1 and pipeline.replicas[0] > 1 and len(pipeline.ranks) > 1:
            flat = [device for rank in pipeline.ranks for device in rank]
            groups = sorted(tuple(flat[at : at + pipeline.group]) for at in range(0, len(flat), pipeline.group))
            count, ranks = pipeline.replicas[0], len(pipeline.ranks)
            beside = ranks_of(groups, ranks, count)
            apart = tuple(tuple(device for group in groups[rank::ranks] for device in group) for rank in range(ranks))
            yield from (replace(pipeline, ranks=other) for other in (beside, apart) if other != pipeline.ranks)
        if self._unlike(pipeline.ranks):
            yield from self.laid(pipeline, pipeline.ranks[::-1], pipeline.chunks)
        if GROUP in schedule_families()[pipeline.schedule].options and pipeline.chunks > 1:
            ranks, count = len(pipeline.ranks), pipeline.microbatches
            sizes = [size for size in range(ranks, count + 1) if is_group(size, count, ranks)]
            least = {
                next(size for size in sizes if size >= most)
                for most in (ranks + 1, 3 * ranks // 2, 2 * ranks)
                if most <= count
            }
            for size in sorted({*sizes[:1], *least, *sizes[-1:]}):
                options = ((GROUP, size),) if size > sizes[0] else ()
                if options != pipeline.options:
                    yield replace(pipeline, options=options)

    # ---- laying out anew ----

    def laid(self, pipeline: Pipeline, ranks: Ranks, chunks: int) -> Iterator[Pipeline]:
        """The pipeline on other ranks with `chunks` stages each, cut so that stages take even seconds; none where layers are too
        few.
        """
        cuts = self.balanced(ranks, pipeline.group, chunks, pipeline.schedule)
        if cuts is None:
            return
        policies, stages = pipeline.recompute, chunks * len(ranks)
        if len(policies) != stages:
            policies = (max(policies, key=policies.count),) * stages
        yield _in_groups(replace(pipeline, ranks=ranks, cuts=cuts, recompute=policies))

    def balanced(self, ranks: Ranks, group: int, chunks: int, schedule: str) -> tuple[int, ...] | None:
        """Cuts that even out the seconds of stages, each on its rank's replicas; None where layers are too few.

        group: devices of a replica; chunks: stages per rank
        """
        held = schedule_families()[schedule].device_of_stage(range(len(ranks)), chunks)
        kinds = tuple((self.costs.kind_of_device(ranks[rank][0]), len(ranks[rank]) // group) for rank in held)
        key = chunks, kinds
        if key not in self._balanced:
            stages, places = len(kinds), self.points
            if len(places) <= stages and self.problem.stack.runs.cut_blocks:
                places = tuple(range(len(self.problem.workload) + 1))
            before = {kind: self._before(kind) for kind in {kind for kind, _ in kinds}}
            totals = np.array([before[kind] / copies for kind, copies in kinds])
            self._balanced[key] = tuple(minimax_cuts(places, totals)) if len(places) > stages else None
        return self._balanced[key]

    def _before(self, kind: int) -> NDArray[np.float64]:
        """Seconds of forward and backward of the layers before each cut on a kind of device, float64 [layers + 1], for a quarter
        of a device's share of the batch.
        """
        share = max(1, self.problem.batch // (4 * len(self.problem.cluster.devices)))
        seconds = self.costs.round_trip_seconds(self.costs.first_of_kind(kind), share)
        return np.concatenate([[0.0], np.cumsum(seconds)])


def _some_counts(most: int) -> Iterator[int]:
    """Numbers from 1 to `most`: every one up to EACH, then EACH times 3/2, 2, 3, 4, 6, ..."""
    yield from range(1, min(most, EACH) + 1)
    size = EACH
    while size < most:
        yield from (one for one in (3 * size // 2, 2 * size) if one <= most)
        size *= 2


def _given(ranks: Ranks, giver: int, taker: int, group: int) -> Ranks:
    """Ranks after `giver` has given `group` devices to `taker`; ranks between the two pass devices on, so that neighbours stay
    neighbours.
    """
    flat = [device for rank in ranks for device in rank]
    sizes = [len(rank) - group * (number == giver) + group * (number == taker) for number, rank in enumerate(ranks)]
    ends = np.cumsum(sizes).tolist()
    return tuple(tuple(flat[end - size : end]) for end, size in zip(ends, sizes, strict=True))


def _in_groups(pipeline: Pipeline) -> Pipeline:
    """The pipeline without its option GROUP where its micro-batches or ranks do not permit that."""
    size = dict(pipeline.options).get(GROUP)
    possible = not isinstance(size, int) or is_group(size, pipeline.microbatches, len(pipeline.ranks))
    return pipeline if possible else replace(pipeline, options=())


def _recomputing(pipeline: Pipeline, changed: Mapping[int, Again]) -> Pipeline:
    """The pipeline with other recomputation in the stages that `changed` names."""
    return replace(pipeline, recompute=tuple(changed.get(stage, now) for stage, now in enumerate(pipeline.recompute)))
