"""Neighbourhood: the pipelines that differ from a given one in one decision."""

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
    asked_words,
    asked_zeros,
    cut_places,
    device_choices,
    device_groups,
    devices_in_order,
    ranks_of,
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
    number_lacks,
    schedule_families,
    slice_of,
)

Move = Callable[[Pipeline], Iterator[Pipeline]]
"""A pipeline -> those that differ from it in one decision."""

DIVIDING = ("zb-h1", "zb-h2", "interleaved-zb", "zb-v", "v-half", "v-min", "dualpipev", "dualpipe")
"""Schedule families that are searched whose backwards are divided into gradients of inputs and of weights."""

FAMILIES = ("1f1b", "eager-1f1b", "gpipe", "interleaved-1f1b", "looped-bfs", "hanayo", *DIVIDING, "chimera", "seq1f1b")
"""Flushed schedule families that are searched."""

ONE_A_RANK = "straight", "bidirectional"
"""Placements of one stage per rank, of one direction and of both: the same stages suit either."""

SLICES = (2, 4, 8)
"""Slices of each sequence that are searched."""

ON_ONE_RANK = "1f1b", "gpipe", "interleaved-1f1b", "looped-bfs"
"""Families that differ where all stages are on the same devices: gradients of several stages are reduced one by one."""

SEEDS = "1f1b", "interleaved-1f1b"
"""Schedules of the plans to begin with, the first that is allowed."""

GROUP = "microbatch_group_size"
"""Option of schedules whose micro-batches pass a stage in groups before the next one has its turn."""

CHUNKS = (2, 3, 4, 6, 8)
"""Stages per device of looped schedules and waves that are searched."""

FEW = 8
"""Boundaries up to which cuts are moved by several places, and together with the schedule."""

LOOPED = 4
"""Stages to begin with of one rank whose replicas reduce them one by one."""

STEPS = (-1, 1, -2, 2, -4, 4)
"""Places by which few cuts are moved."""

ALONE = (*STEPS, -3, 3, -6, 6, -8, 8, -12, 12, -16, 16)
"""Places by which a cut that is the only one is moved."""

EACH = 16
"""Ranks up to which every number of them is one to begin with."""

FEWER: tuple[Callable[[int, int], int], ...] = (
    lambda now, held: now - 1,
    lambda now, held: now // 2,
    lambda now, held: now * 3 // 4,
)
"""Numbers of blocks of a stage that run again instead of so many, to save seconds."""

PARTS: tuple[Callable[[int, int], int], ...] = (
    lambda now, held: held // 4,
    lambda now, held: held // 2,
    lambda now, held: held * 3 // 4,
)
"""Numbers of blocks to begin with where another policy takes their place."""

MORE: tuple[Callable[[int, int], int], ...] = (lambda now, held: now + 1, lambda now, held: (now + held + 1) // 2)
"""The same, to save memory."""

MANY = 16
"""Boundaries up to which every run of them is shifted; of more each alone."""


class Neighbourhood:
    """The decisions of one problem that a request leaves open, each as a move."""

    def __init__(self, problem: Problem, request: Request, costs: LayerCosts) -> None:
        self.problem, self.request, self.costs = problem, request, costs
        self.zeros, self.words = asked_zeros(problem, request), asked_words(problem, request)
        self.tensors = asked_degrees(problem, request)
        self.contexts = asked_degrees(problem, request, option="context")
        self.experts = asked_degrees(problem, request, option="expert")
        self.unlike = problem.stack.runs.unlike_recompute
        self.counted = request.recompute is None and problem.recompute == "none"  # blocks that run again
        self._parts = divisors(problem.batch)
        self._seconds_again: dict[Recompute, float] = {}
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
        """Slices into which sequences of the network may be cut."""

        def possible(count: int) -> bool:
            try:
                slice_of(self.problem.workload, 0, count)
            except ValueError:
                return False
            return True

        return tuple(filter(possible, SLICES))

    @cached_property
    def points(self) -> tuple[int, ...]:
        """Places where the network is cut first (`cut_places`), and both of its ends."""
        return (0, *cut_places(self.problem.workload), len(self.problem.workload))

    @property
    def decisions(self) -> dict[str, Move]:
        """The moves by the decision that they change, in the order in which they are tried."""
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
        """The decisions that leave the schedule as it is."""
        return [name for name in self.decisions if "schedule" not in name]

    def allows(self, one: Pipeline) -> bool:
        """Whether a pipeline is one of those that are asked for."""
        if one.opposite and (len(one.ranks) == 1 or set(map(len, one.ranks)) != {1}):
            return False  # a stage is on two devices: one of each direction
        return (
            one.schedule in self.families
            and self._runs_numbers(one)
            and (one.slices == 1 or one.context == 1)
            and self.request.counts_are(one.microbatches, one.stages, one.chunks)
            and one.tensor in self.tensors
            and one.context in self.contexts
            and one.expert in self.experts
            and (one.zero in self.zeros or one.copies == 1)
            and all(word in self.words and (self.counted or not count) for word, count in one.recompute)
        )

    def _runs_numbers(self, one: Pipeline) -> bool:
        """Whether the stack runs such numbers of ranks, stages per rank, replicas and micro-batches."""
        runs = self.problem.stack.runs
        if not runs.unequal and (self.problem.batch % one.microbatches or len(set(one.replicas)) > 1):
            return False
        return not any(number_lacks(runs, one.stages, one.chunks, one.microbatches))

    def possible_counts(self, wanted: Iterable[int]) -> list[int]:
        """Numbers of micro-batches that are near those wanted, rising: these, or where the stack has all of one size the next
        divisors of the batch below.
        """
        held = {count for count in wanted if 1 <= count <= self.problem.batch}
        if not self.problem.stack.runs.unequal:
            held = {self._parts[bisect_right(self._parts, count) - 1] for count in held}
        return sorted(held)

    # ---- to begin with ----

    def seeds(self, least: int = 1, most: int | None = None, below: float | None = None) -> Iterator[Pipeline]:
        """Equal ranks, so many at least and at most, of equal replicas: on all devices, on half of them, on whole servers, and of
        one replica each; a few micro-batches, and where one rank holds all layers each ZeRO stage.

        below: seconds; of one rank only those that may fit and undercut them, if any are given
        """
        again = min(self.words, key=self.again_seconds)
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
                        words = ((again, 0),) * (ranks * held)
                        laid = ranks_of(groups, ranks, copies * context)
                        empty = Pipeline(schedule, (), (), count, words, (), tensor * context, zero, context, expert)
                        yield from self.laid(empty, laid, held)
                        if self._unlike(laid):
                            yield from self.laid(empty, laid[::-1], held)

    def looped(self, one: Pipeline) -> Iterator[Pipeline]:
        """A pipeline of one rank with LOOPED stages in place of one, which replicas reduce one by one, with each ZeRO stage."""
        for other in islice((each for each in self.schedules(one) if each.chunks == LOOPED), 1):
            yield from (other, *self.zeros_of(other))

    def _unlike(self, ranks: Ranks) -> bool:
        """Whether ranks are of several kinds of device, so that a pipeline is another one the other way."""
        return len({self.costs.kind_of_device(rank[0]) for rank in ranks}) > 1

    def _seed_copies(self, most: int, ranks: int, group: int) -> list[int]:
        """Replicas of each rank: on all devices, on half of them, on one, two, four, ... whole servers; and one."""
        server = min(map(len, self.problem.cluster.servers)) // group
        whole = (server << doubled for doubled in range(most.bit_length()))
        held = {copies // ranks for copies in (most, *whole) if copies <= most}
        return sorted({*held, most // ranks // 2, 1} - {0})

    def _seed_counts(self, ranks: int, copies: int) -> Iterable[int]:
        """Micro-batches: once, twice, four times as many as ranks; on one rank those of 1, 2, 4, ... samples per replica."""
        batch = self.problem.batch
        if self.request.microbatches is not None:
            return (self.request.microbatches,)
        if ranks > 1:
            return self.possible_counts(min(batch, ranks * many) for many in (1, 2, 4))
        share = -(-batch // copies)
        return self.possible_counts(-(-share >> doubled) for doubled in range(share.bit_length() + 1))

    # ---- schedule ----

    def schedules(self, one: Pipeline) -> Iterator[Pipeline]:
        """Other families on the same ranks, with near numbers of micro-batches; other numbers of stages are cut anew."""
        alone = max(map(len, one.ranks)) == 1
        for name in self.families:
            if self.goes_both_ways(name) and not alone:
                continue
            ranks = len(one.ranks)
            for chunks in self.chunks(name):
                if name == one.schedule and chunks == one.chunks:
                    continue
                if ranks == 1 and (
                    name not in ON_ONE_RANK or (chunks > 1 and not self.problem.stack.runs.looped_alone)
                ):
                    continue
                if self.request.stages not in (None, chunks * ranks):
                    continue
                other = replace(one, schedule=name, options=())
                if chunks == one.chunks and self._lies_alike(name, one.schedule):
                    yield from self.slices_of(other) if name == "seq1f1b" else (other, *self.counts(other))
                elif name != "seq1f1b":  # of whole sequences it is 1f1b
                    yield from self.laid(other, one.ranks, chunks)

    def goes_both_ways(self, name: str) -> bool:
        """Whether a family has pipelines in opposite directions, each stage on two ranks of one device."""
        return schedule_families()[name].placement == "bidirectional"

    def _lies_alike(self, *names: str) -> bool:
        """Whether the same stages suit the placements of two families."""
        placements = {schedule_families()[name].placement for name in names}
        return len(placements) == 1 or placements.issubset(ONE_A_RANK)

    def chunks(self, name: str) -> tuple[int, ...]:
        family, asked = schedule_families()[name], self.request.chunks
        if "chunks" not in family.options:
            possible: tuple[int, ...] = (family.chunks,)
        else:
            possible = tuple(one for one in CHUNKS if one % family.chunks == 0)
        if not self.problem.stack.runs.interleaved:
            possible = tuple(one for one in possible if one == 1)
        return possible if asked is None else tuple(one for one in possible if one == asked)

    # ---- numbers ----

    def counts(self, one: Pipeline) -> Iterator[Pipeline]:
        """Near numbers of micro-batches: one more and less, halves and doubles, the next divisors and multiples of the ranks."""
        if self.request.microbatches is not None:
            return
        now, parts, ranks = one.microbatches, self._parts, len(one.ranks)
        near = {now - 1, now + 1, now * 2, now // 2, now * 3 // 2, now * 3 // 4, now // ranks * ranks}
        near |= {(now // ranks + step) * ranks for step in (-1, 1)}
        near |= {*[part for part in parts if part < now][-2:], *[part for part in parts if part > now][:2]}
        for count in self.possible_counts(near):
            if count != now:
                yield _in_groups(replace(one, microbatches=count))

    def counts_with_fewer_blocks(self, one: Pipeline) -> Iterator[Pipeline]:
        """Smaller micro-batches together with fewer blocks that run again."""
        for other in self.counts(one):
            if other.microbatches > one.microbatches:
                yield from self._counted(other, range(one.stages), FEWER)

    def slices_of(self, one: Pipeline) -> Iterator[Pipeline]:
        """Other slices of the sequences, of as many micro-batches and of so many fewer that ops stay as large."""
        for slices in self.slices if one.schedule == "seq1f1b" else ():
            if slices != one.slices:
                count = one.microbatches * one.slices // slices
                for microbatches in dict.fromkeys((one.microbatches, max(count, 1))):
                    yield replace(one, options=(("slices", slices),), microbatches=microbatches)

    def zeros_of(self, one: Pipeline) -> Iterator[Pipeline]:
        """Other ZeRO stages, over all replicas or over those of one server."""
        copies = one.copies
        if copies == 1:
            return
        shards = {0}
        if self.problem.stack.runs.hybrid_sharding:
            inside = min(map(len, self.problem.cluster.servers)) // one.tensor
            shards |= {part for part in (inside, inside * 2) if 1 < part < copies and copies % part == 0}
        for zero in self.zeros:
            for shard in sorted(shards) if zero else (0,):
                if (zero, shard) != (one.zero, one.shard):
                    yield replace(one, zero=zero, shard=shard)

    def recomputations(self, one: Pipeline) -> Iterator[Pipeline]:
        """Less recomputation, by policy or by blocks: in all stages, in those of one rank, in one stage."""
        held = one.rank_of_stage
        among: list[Sequence[int]] = [range(one.stages)]
        if self.unlike:
            among += [[stage for stage in range(one.stages) if held[stage] == rank] for rank in set(held)]
            among += [[stage] for stage in range(one.stages)] if one.chunks > 1 else []
        for stages in among:
            for word in self.words:
                if any(self.again_seconds(word) < self.again_seconds(one.recompute[stage][0]) for stage in stages):
                    yield _recomputing(one, dict.fromkeys(stages, (word, 0)))
            yield from self._counted(one, stages, FEWER)
            again = [stage for stage in stages if one.recompute[stage][0] != "none"]
            for policy in (one for one in BY_BLOCK if one in self.words and again):
                yield from self._counted(_recomputing(one, dict.fromkeys(again, (policy, 0))), again, PARTS)

    def with_more_again(self, one: Pipeline, device: int) -> Iterator[Pipeline]:
        """A pipeline that misses memory of a device, with each policy that recomputes more, in its stages and in all."""
        rank = next(rank for rank, held in enumerate(one.ranks) if device in held)
        own = [stage for stage, held in enumerate(one.rank_of_stage) if held == rank]
        for stages in (own, range(one.stages)) if self.unlike else (range(one.stages),):
            least = min(self.again_seconds(one.recompute[stage][0]) for stage in stages)
            more = [word for word in self.words if self.again_seconds(word) > least]
            yield from (_recomputing(one, dict.fromkeys(stages, (word, 0))) for word in more)
            yield from self._counted(one, stages, MORE)

    def _counted(
        self, one: Pipeline, stages: Iterable[int], steps: Sequence[Callable[[int, int], int]]
    ) -> Iterator[Pipeline]:
        """The pipeline with other numbers of recomputed blocks in those of some stages whose policy goes by blocks."""
        if not self.counted or not any(one.recompute[stage][0] in BY_BLOCK for stage in stages):
            return
        held, most = one.blocks(self.problem), max(count for _, count in one.recompute)
        for step in steps:
            changed: dict[int, Again] = {}
            for stage in stages:
                policy, count = one.recompute[stage]
                blocks = (
                    held[stage] if self.unlike else max(held)
                )  # where all recompute alike, as far as they have blocks
                if policy in BY_BLOCK and blocks:
                    now = min((count if self.unlike else most) or blocks, blocks)
                    other = min(max(step(now, blocks), 0), blocks)
                    changed[stage] = (policy, other * (other < blocks)) if other else ("none", 0)
            if (found := _recomputing(one, changed)) != one:
                yield found

    def again_seconds(self, word: Recompute) -> float:
        """Seconds of what runs again, of all layers for one sample on the first device."""
        if word not in self._seconds_again:
            seconds = self.costs.seconds(devices_in_order(self.problem)[0], 1, "forward")
            self._seconds_again[word] = float((seconds * self.costs.runs_again(word)).sum())
        return self._seconds_again[word]

    # ---- cuts ----

    def cuts(self, one: Pipeline) -> Iterator[Pipeline]:
        """One cut, or a run of neighbours, moved to the next place between blocks, or some places on; or to the next layer."""
        count, layers = len(one.cuts), len(self.problem.workload)
        runs = [(first, last) for first in range(count) for last in range(first, count)]
        if count > MANY:
            runs = [(place, place) for place in range(count)]
        fine = len(self.points) != layers + 1 and self.problem.stack.runs.cut_blocks
        for first, last in runs:
            for step in self._steps(count):
                yield from self._moved(one, first, last, step, blocks=True)
                if fine and first == last and abs(step) == 1:
                    yield from self._moved(one, first, last, step, blocks=False)

    def _steps(self, cuts: int) -> Sequence[int]:
        """Places by which so many cuts are moved."""
        return ALONE if cuts == 1 else STEPS if cuts <= FEW else STEPS[:2]

    def _moved(self, one: Pipeline, first: int, last: int, step: int, *, blocks: bool) -> Iterator[Pipeline]:
        cuts = list(one.cuts)
        for place in range(first, last + 1):
            cuts[place] = self._next(cuts[place], step) if blocks else cuts[place] + step
        bounds = [0, *cuts, len(self.problem.workload)]
        if all(begin < end for begin, end in pairwise(bounds)):
            yield replace(one, cuts=tuple(cuts))

    def _next(self, cut: int, step: int) -> int:
        """The place between blocks so many places before or behind a cut."""
        at = int(np.searchsorted(self.points, cut, side="left" if step < 0 else "right")) + step - (step > 0)
        return self.points[min(max(at, 0), len(self.points) - 1)]

    def schedules_cut_otherwise(self, one: Pipeline) -> Iterator[Pipeline]:
        """Another family of the same placement together with other cuts: few of them, as families hide transfers unlike."""
        for name in self.families if len(one.cuts) <= FEW else ():
            if name != one.schedule and self._lies_alike(name, one.schedule) and len(one.ranks) > 1:
                yield from self.cuts(replace(one, schedule=name, options=()))

    # ---- devices ----

    def replicas(self, one: Pipeline) -> Iterator[Pipeline]:
        """A replica, or half of them, go to another rank, one idles, an idle one joins; two ranks become one, one becomes two."""
        if one.chunks > 1 or one.opposite or not self.problem.stack.runs.unequal:
            return
        used = {device for rank in one.ranks for device in rank}
        spare = [group for group in device_groups(self.problem, one.group) if not used.intersection(group)]
        ranks, group = one.ranks, one.group
        for giver in range(len(ranks)):
            if len(ranks[giver]) == group:
                continue
            some = sorted({1, len(ranks[giver]) // group // 2})
            for taker, replicas in product(range(len(ranks)), some):
                if taker != giver:
                    yield from self._recut(one, _given(ranks, giver, taker, group * replicas))
            yield from self._recut(one, (*ranks[:giver], ranks[giver][:-group], *ranks[giver + 1 :]))
        for taker in range(len(ranks)) if spare else ():
            yield from self._recut(one, (*ranks[:taker], ranks[taker] + spare[0], *ranks[taker + 1 :]))
        if self.request.stages is None:
            yield from self._joined_and_split(one)
            yield from self._with_an_end_alone(one)

    def _joined_and_split(self, one: Pipeline) -> Iterator[Pipeline]:
        ranks, group, layers = one.ranks, one.group, len(self.problem.workload)
        bounds = one.bounds(layers)
        for rank in range(len(ranks) - 1):
            joined = (*ranks[:rank], ranks[rank] + ranks[rank + 1], *ranks[rank + 2 :])
            cuts = (*one.cuts[:rank], *one.cuts[rank + 1 :])
            words = (*one.recompute[:rank], *one.recompute[rank + 1 :])
            yield replace(one, ranks=joined, cuts=cuts, recompute=words)
            yield from self._recut(replace(one, recompute=words), joined)
        for rank, held in enumerate(ranks):
            half, (begin, end) = len(held) // group // 2 * group, bounds[rank : rank + 2]
            if not half or end - begin < 2:
                continue
            parted = (*ranks[:rank], held[:half], held[half:], *ranks[rank + 1 :])
            words = (*one.recompute[: rank + 1], *one.recompute[rank:])
            inner = [point for point in self.points if begin < point < end]
            if not inner and self.problem.stack.runs.cut_blocks:
                inner = [(begin + end) // 2]
            if not inner:
                continue
            middle = inner[len(inner) // 2]
            yield replace(one, ranks=parted, cuts=(*one.cuts[:rank], middle, *one.cuts[rank:]), recompute=words)
            yield from self._recut(replace(one, recompute=words), parted)

    def _with_an_end_alone(self, one: Pipeline) -> Iterator[Pipeline]:
        """A replica of the first rank becomes a rank of its own with the layers up to the first place for a cut, or one of the
        last rank with those behind the last: weights of an embedding, or of the loss, have no replicas then.
        """
        ranks, group, words = one.ranks, one.group, one.recompute
        bounds = one.bounds(len(self.problem.workload))
        first = [point for point in self.points if 0 < point < bounds[1]][:1]
        last = [point for point in self.points if bounds[-2] < point < bounds[-1]][-1:]
        if first and len(ranks[0]) > group:
            parted = (ranks[0][:group], ranks[0][group:], *ranks[1:])
            yield replace(one, ranks=parted, cuts=(*first, *one.cuts), recompute=(words[0], *words))
        if last and len(ranks[-1]) > group:
            parted = (*ranks[:-1], ranks[-1][:-group], ranks[-1][-group:])
            yield replace(one, ranks=parted, cuts=(*one.cuts, *last), recompute=(*words, words[-1]))

    def _recut(self, one: Pipeline, ranks: Ranks) -> Iterator[Pipeline]:
        """The cuts as they are where they may stay, and those that even out seconds."""
        other = replace(one, ranks=ranks)
        if len(one.cuts) + 1 == len(ranks):
            yield other
        yield from self.laid(other, ranks, 1)

    def degrees(self, one: Pipeline) -> Iterator[Pipeline]:
        """Twice one degree for half of another (tensor, context, ranks, replicas); other experts; fewer devices."""
        if len(set(one.replicas)) > 1 or one.opposite:
            return
        now = {"tensor": one.tensor, "context": one.context, "ranks": len(one.ranks), "data": one.replicas[0]}
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
            yield from self._regrouped(one, counts)
        for expert in self.experts:
            if expert != one.expert and one.replicas[0] * one.context % expert == 0:
                yield replace(one, expert=expert)

    def _regrouped(self, one: Pipeline, counts: dict[str, int]) -> Iterator[Pipeline]:
        """The pipeline with other degrees and equal ranks, its replicas on neighbouring devices."""
        tensor, context, ranks, data = counts["tensor"], counts["context"], counts["ranks"], counts["data"]
        if tensor not in self.tensors or context not in self.contexts or ranks < 1:
            return
        if self.request.stages not in (None, ranks * one.chunks) or not (
            ranks == 1 or self.problem.stack.runs.pipeline
        ):
            return
        groups = device_groups(self.problem, tensor)
        if tensor * context * ranks * data > len(groups) * tensor or data * context % one.expert:
            return
        same = one if ranks > 1 else replace(one, schedule="1f1b", options=())
        if same.schedule not in self.families:
            return
        same = replace(same, group=tensor * context, context=context, shard=0)
        held = one.chunks if ranks > 1 else 1
        yield from self.laid(same, ranks_of(groups, ranks, data * context), held)

    def placements(self, one: Pipeline) -> Iterator[Pipeline]:
        """Replicas beside each other or apart; the pipeline through its devices the other way; micro-batches in larger groups."""
        if len(set(one.replicas)) == 1 and one.replicas[0] > 1 and len(one.ranks) > 1:
            flat = [device for rank in one.ranks for device in rank]
            groups = sorted(tuple(flat[at : at + one.group]) for at in range(0, len(flat), one.group))
            count, ranks = one.replicas[0], len(one.ranks)
            beside = ranks_of(groups, ranks, count)
            apart = tuple(tuple(device for group in groups[rank::ranks] for device in group) for rank in range(ranks))
            yield from (replace(one, ranks=other) for other in (beside, apart) if other != one.ranks)
        if self._unlike(one.ranks):
            yield from self.laid(one, one.ranks[::-1], one.chunks)
        if GROUP in schedule_families()[one.schedule].options and one.chunks > 1:
            ranks, count = len(one.ranks), one.microbatches
            sizes = [size for size in range(ranks, count + 1) if is_group(size, count, ranks)]
            least = {
                next(size for size in sizes if size >= most)
                for most in (ranks + 1, 3 * ranks // 2, 2 * ranks)
                if most <= count
            }
            for size in sorted({*sizes[:1], *least, *sizes[-1:]}):
                options = ((GROUP, size),) if size > sizes[0] else ()
                if options != one.options:
                    yield replace(one, options=options)

    # ---- laying out anew ----

    def laid(self, one: Pipeline, ranks: Ranks, chunks: int) -> Iterator[Pipeline]:
        """The pipeline on other ranks, with so many stages each, cut so that seconds are even; none where layers are too few."""
        cuts = self.balanced(ranks, one.group, chunks, one.schedule)
        if cuts is None:
            return
        words, stages = one.recompute, chunks * len(ranks)
        if len(words) != stages:
            words = (max(words, key=words.count),) * stages
        yield _in_groups(replace(one, ranks=ranks, cuts=cuts, recompute=words))

    def balanced(self, ranks: Ranks, group: int, chunks: int, schedule: str) -> tuple[int, ...] | None:
        """Cuts that even out the seconds of stages, each on its rank's replicas; None where layers are too few."""
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
        """Seconds of the layers before each place on a kind of device, of a device's share of the batch."""
        share = max(1, self.problem.batch // (4 * len(self.problem.cluster.devices)))
        seconds = self.costs.round_trip_seconds(self.costs.first_of_kind(kind), share)
        return np.concatenate([[0.0], np.cumsum(seconds)])


def _some_counts(most: int) -> Iterator[int]:
    """1, 2, ... up to EACH, then 3/2, 2, 3, 4, ... times as many, up to `most`."""
    yield from range(1, min(most, EACH) + 1)
    size = EACH
    while size < most:
        yield from (one for one in (3 * size // 2, 2 * size) if one <= most)
        size *= 2


def _given(ranks: Ranks, giver: int, taker: int, group: int) -> Ranks:
    """Ranks of which one has given its last replica to another; ranks between them pass one on, so that neighbours stay."""
    flat = [device for rank in ranks for device in rank]
    sizes = [len(rank) - group * (number == giver) + group * (number == taker) for number, rank in enumerate(ranks)]
    ends = np.cumsum(sizes).tolist()
    return tuple(tuple(flat[end - size : end]) for end, size in zip(ends, sizes, strict=True))


def _in_groups(one: Pipeline) -> Pipeline:
    """The pipeline with groups of micro-batches that its schedule chooses, where it cannot have those of its options."""
    size = dict(one.options).get(GROUP)
    possible = not isinstance(size, int) or is_group(size, one.microbatches, len(one.ranks))
    return one if possible else replace(one, options=())


def _recomputing(one: Pipeline, changed: Mapping[int, Again]) -> Pipeline:
    """The pipeline with other recomputation of some stages."""
    return replace(one, recompute=tuple(changed.get(stage, now) for stage, now in enumerate(one.recompute)))
