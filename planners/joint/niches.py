"""Niches: classes of pipelines between which descents hardly move, by placement, stages per rank, ranks and replicas.

In each niche the search climbs from a pipeline of its own: cuts, schedule, micro-batches and replicas are moved by estimates,
without replays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import inf
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats
from planners.joint.climbs import Climbs
from planners.joint.neighbourhood import Neighbourhood
from planners.joint.pipeline import Pipeline, Ranks
from planners.search.candidates import device_groups, ranks_of
from planners.search.quick_replay import KINDS, PHASES
from simulator import Recompute, schedule_families

MOST_CHUNKS = 4
"""Stages per rank, at most, of the niches."""

ROUNDS_OF_RANKS = (0.5, 1.0, 2.0, 4.0)
"""Micro-batches per rank of the pipelines that a niche begins with."""

FILLING = ("zb-h1", "interleaved-zb", "zb-v")
"""Families that a niche begins with where its placement has them: they leave the smallest bubble."""

NEAR = 1.15
"""Estimated seconds per second of the fastest pipeline so far, up to which a neighbour's cuts are climbed."""

CLIMBED = 6
"""Neighbours of a pipeline whose cuts are climbed, at most."""

EVEN, MOST_UNEVEN = 0.93, 8
"""EVEN: mean seconds of stages over those of the slowest, below which numbers of replicas are moved, too; MOST_UNEVEN: ranks up
to which they are.
"""


class Niche(NamedTuple):
    """A class of pipelines, named by what descents hardly change: placement, and numbers of stages per rank, of ranks, and of
    replicas of each rank.
    """

    placement: str
    chunks: int
    ranks: int
    replicas: int


class Niches:
    """The niches of one problem. moves: neighbours of pipelines; climbs: estimates of their cuts; policy: what all stages
    recompute
    """

    def __init__(self, moves: Neighbourhood, climbs: Climbs, policy: Recompute) -> None:
        self.moves, self.climbs, self.policy, self.problem = moves, climbs, policy, moves.problem

    def begun(self, below: float) -> Iterator[tuple[float, Niche, Pipeline]]:
        """The quickest pipeline of each niche, with its niche and the estimated seconds that it may lead to, if these are below
        `below`.

        Of pipelines with one stage per rank the seconds are lowered as if other numbers of replicas evened out their stages.
        """
        for placement, names in self._families.items():
            for chunks in filter(MOST_CHUNKS.__ge__, self.moves.chunks(names[0])):
                for replicas, ranks in self._ranks():
                    policies = ((self.policy, 0),) * (len(ranks) * chunks)
                    zero = self.moves.zeros[0]
                    empty = (
                        Pipeline(names[0], (), (), count, policies, zero=zero) for count in self._counts(len(ranks))
                    )
                    laid = (one for each in empty for one in self.moves.laid(each, ranks, chunks))
                    begun = min((self._begun(one, below) for one in laid), key=itemgetter(0), default=None)
                    if begun is not None and begun[0] < below:
                        seconds, one = begun
                        evened = self._evenness(one) if self._may_be_uneven(one) else 1.0
                        yield seconds * evened, Niche(placement, chunks, len(ranks), replicas), one

    @cached_property
    def _families(self) -> dict[str, list[str]]:
        """Families of one direction that run whole sequences, by placement; those of FILLING first."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.moves.families, key=lambda one: one not in FILLING):
            if not self.moves.goes_both_ways(name) and name != "seq1f1b":
                found.setdefault(schedule_families()[name].placement, []).append(name)
        return found

    def _ranks(self) -> Iterator[tuple[int, Ranks]]:
        """Numbers of replicas and the ranks of devices that hold so many each: 1, 2, 4, ... replicas, and as many as all devices
        permit.
        """
        groups = device_groups(self.problem, 1)
        for ranks in range(2, min(len(groups), len(self.climbs.places) - 1) + 1):
            most = len(groups) // ranks
            for replicas in sorted({most, *(1 << power for power in range(most.bit_length()))}):
                yield replicas, ranks_of(groups, ranks, replicas)

    def _counts(self, ranks: int) -> list[int]:
        """Numbers of micro-batches to begin with on so many ranks: ROUNDS_OF_RANKS per rank, or what is asked for."""
        asked = self.moves.request.microbatches
        wanted = (max(1, int(ranks * part)) for part in ROUNDS_OF_RANKS) if asked is None else (asked,)
        return self.moves.possible_counts(wanted)

    def _begun(self, pipeline: Pipeline, below: float) -> tuple[float, Pipeline]:
        """Estimated seconds of a pipeline under the fastest of its own cuts and the first cuts, and the pipeline so cut; inf
        where it cannot be below `below` seconds or there is no estimate.
        """
        found = self.climbs.begun(pipeline) if self._may_be(pipeline, below) else None
        return (inf, pipeline) if found is None else found

    def _seconds(self, pipeline: Pipeline, below: float) -> float:
        """Estimated seconds of a pipeline; inf where they are not below `below` or there is no estimate."""
        found = (
            self.climbs.seconds(pipeline, np.array([pipeline.cuts], dtype=np.int64))
            if self._may_be(pipeline, below)
            else None
        )
        return inf if found is None or found[0] >= below else float(found[0])

    def _may_be(self, pipeline: Pipeline, below: float) -> bool:
        """Whether a pipeline is asked for and may take less than `below` seconds: its forwards and backwards, spread over all
        ranks evenly, do.
        """
        return (
            self.moves.allows(pipeline)
            and self._passes(pipeline)[-1] * pipeline.microbatches / len(pipeline.ranks) < below
        )

    def _passes(self, pipeline: Pipeline) -> Floats:
        """Seconds of a forward and a backward of the layers before each cut, for a micro-batch's share on the rank with most
        replicas, float64 [layers + 1].
        """
        part, device = (
            max(1, self.problem.batch // pipeline.microbatches // max(pipeline.replicas)),
            pipeline.ranks[0][0],
        )
        forward, back = (
            self.climbs.before(self.climbs.layers, device, part, PHASES[kind], "none") for kind in KINDS[:2]
        )
        return np.asarray(forward + back)

    def _evenness(self, pipeline: Pipeline) -> float:
        """Mean seconds of a pipeline's stages over those of the slowest; 1 where all take the same."""
        seconds = np.diff(self._passes(pipeline)[[0, *pipeline.cuts, -1]]) / np.array(pipeline.replicas)
        return float(seconds.mean() / seconds.max())

    def _may_be_uneven(self, pipeline: Pipeline) -> bool:
        """Whether a pipeline's ranks may have unequal numbers of replicas here."""
        return pipeline.chunks == 1 and len(pipeline.ranks) <= MOST_UNEVEN and self.problem.stack.runs.unequal

    def fastest(self, pipeline: Pipeline) -> Iterator[tuple[float, Pipeline]]:
        """Estimated seconds and the pipeline to which moves of cuts, of schedules of the same placement and of micro-batches lead
        from a pipeline.

        Where the stages of that one are uneven a second pair follows, for which replicas are moved between ranks, too.
        """
        there = self._climbed(pipeline, uneven=False)
        yield there
        if self._may_be_uneven(there[1]) and self._evenness(there[1]) < EVEN:
            yield self._climbed(there[1], uneven=True)

    def _climbed(self, pipeline: Pipeline, *, uneven: bool) -> tuple[float, Pipeline]:
        """Estimated seconds and the pipeline at which a climb ends: no neighbour, with its cuts climbed, is faster. uneven: move
        replicas, too
        """
        best, now = self.climbs.climbed(pipeline) or (inf, pipeline)
        seen, better = {now}, True
        while better:
            better, ranked = False, list[tuple[float, int, Pipeline]]()
            for other in self._neighbours(now, uneven=uneven):
                alike = replace(other, cuts=()) if other.ranks == now.ranks else other
                if alike not in seen and self.moves.allows(other):
                    seen.add(alike)
                    ranked.append((self._seconds(other, best * NEAR), len(ranked), other))
            for seconds, _, other in sorted(ranked)[:CLIMBED]:
                seconds, there = (self.climbs.climbed(other) if seconds < inf else None) or (inf, other)
                if seconds < best:
                    best, now, better = seconds, there, True
        return best, now

    def _neighbours(self, pipeline: Pipeline, *, uneven: bool) -> Iterator[Pipeline]:
        """Pipelines with another schedule of the same placement, other micro-batches, or, if uneven, other replicas."""
        for name in self._families[schedule_families()[pipeline.schedule].placement]:
            if pipeline.chunks in self.moves.chunks(name):
                yield replace(pipeline, schedule=name, options=())
        yield from (replace(other, options=()) for other in self.moves.counts(pipeline))
        if uneven and len(pipeline.ranks) <= MOST_UNEVEN:
            yield from self.moves.replicas(pipeline)
