"""Niches: pipelines that descents hardly lead to one another, by placement, stages a rank, ranks and replicas, each climbed."""

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
"""Stages a rank, at most, of what is begun with."""

ROUNDS_OF_RANKS = (0.5, 1.0, 2.0, 4.0)
"""Micro-batches to begin with, per rank."""

FILLING = ("zb-h1", "interleaved-zb", "zb-v")
"""Families that stand for their placement to begin with: they fill most."""

NEAR = 1.15
"""How far above the fastest, under its cuts, a neighbour may be that is climbed from."""

CLIMBED = 6
"""Neighbours that are climbed from at once, at most."""

EVEN, MOST_UNEVEN = 0.93, 8
"""Mean seconds of stages over the slowest one's from which on, and ranks above which, all ranks keep as many replicas."""


class Niche(NamedTuple):
    """What descents hardly change of a pipeline: its placement, and numbers of stages a rank, of ranks and of their replicas."""

    placement: str
    chunks: int
    ranks: int
    replicas: int


class Niches:
    """The niches of one problem; again: what all stages recompute."""

    def __init__(self, moves: Neighbourhood, climbs: Climbs, again: Recompute) -> None:
        self.moves, self.climbs, self.again, self.problem = moves, climbs, again, moves.problem

    def begun(self, below: float) -> Iterator[tuple[float, Niche, Pipeline]]:
        """The quickest pipeline of each niche with cuts to begin with, if its estimated seconds are below `below`.

        First stands what it may take at least: its seconds, of those with one stage a rank as if other replicas evened them out.
        """
        for placement, names in self._families.items():
            for chunks in filter(MOST_CHUNKS.__ge__, self.moves.chunks(names[0])):
                for replicas, ranks in self._ranks():
                    words = ((self.again, 0),) * (len(ranks) * chunks)
                    zero = self.moves.zeros[0]
                    empty = (Pipeline(names[0], (), (), count, words, zero=zero) for count in self._counts(len(ranks)))
                    laid = (one for each in empty for one in self.moves.laid(each, ranks, chunks))
                    begun = min((self._begun(one, below) for one in laid), key=itemgetter(0), default=None)
                    if begun is not None and begun[0] < below:
                        seconds, one = begun
                        evened = self._evenness(one) if self._may_be_uneven(one) else 1.0
                        yield seconds * evened, Niche(placement, chunks, len(ranks), replicas), one

    @cached_property
    def _families(self) -> dict[str, list[str]]:
        """Families of one direction and of whole sequences by placement, those first that fill most."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.moves.families, key=lambda one: one not in FILLING):
            if not self.moves.goes_both_ways(name) and name != "seq1f1b":
                found.setdefault(schedule_families()[name].placement, []).append(name)
        return found

    def _ranks(self) -> Iterator[tuple[int, Ranks]]:
        """Replicas and ranks: of as many replicas as there are devices for, and of 1, 2, 4, ..."""
        groups = device_groups(self.problem, 1)
        for ranks in range(2, min(len(groups), len(self.climbs.places) - 1) + 1):
            most = len(groups) // ranks
            for replicas in sorted({most, *(1 << power for power in range(most.bit_length()))}):
                yield replicas, ranks_of(groups, ranks, replicas)

    def _counts(self, ranks: int) -> list[int]:
        asked = self.moves.request.microbatches
        wanted = (max(1, int(ranks * part)) for part in ROUNDS_OF_RANKS) if asked is None else (asked,)
        return self.moves.possible_counts(wanted)

    def _begun(self, one: Pipeline, below: float) -> tuple[float, Pipeline]:
        """The pipeline with the fastest of its cuts and those to begin with, its estimated seconds first, as `_seconds`."""
        found = self.climbs.begun(one) if self._may_be(one, below) else None
        return (inf, one) if found is None else found

    def _seconds(self, one: Pipeline, below: float) -> float:
        """Estimated seconds, if they are below `below` and known; else inf."""
        found = self.climbs.seconds(one, np.array([one.cuts], dtype=np.int64)) if self._may_be(one, below) else None
        return inf if found is None or found[0] >= below else float(found[0])

    def _may_be(self, one: Pipeline, below: float) -> bool:
        """Whether a pipeline is asked for, and its passes alone take less than `below` seconds."""
        return self.moves.allows(one) and self._passes(one)[-1] * one.microbatches / len(one.ranks) < below

    def _passes(self, one: Pipeline) -> Floats:
        """Seconds of a forward and a backward of the layers before each cut, on the largest rank."""
        part, device = max(1, self.problem.batch // one.microbatches // max(one.replicas)), one.ranks[0][0]
        forward, back = (
            self.climbs.before(self.climbs.layers, device, part, PHASES[kind], "none") for kind in KINDS[:2]
        )
        return np.asarray(forward + back)

    def _evenness(self, one: Pipeline) -> float:
        """Mean seconds of its stages over those of the slowest."""
        seconds = np.diff(self._passes(one)[[0, *one.cuts, -1]]) / np.array(one.replicas)
        return float(seconds.mean() / seconds.max())

    def _may_be_uneven(self, one: Pipeline) -> bool:
        return one.chunks == 1 and len(one.ranks) <= MOST_UNEVEN and self.problem.stack.runs.unequal

    def fastest(self, one: Pipeline) -> Iterator[tuple[float, Pipeline]]:
        """Where moves of cuts, schedule within the placement and micro-batches lead from a pipeline, with its estimated seconds;
        then, of uneven stages, where those of replicas lead beside.
        """
        there = self._climbed(one, uneven=False)
        yield there
        if self._may_be_uneven(there[1]) and self._evenness(there[1]) < EVEN:
            yield self._climbed(there[1], uneven=True)

    def _climbed(self, one: Pipeline, *, uneven: bool) -> tuple[float, Pipeline]:
        best, now = self.climbs.climbed(one) or (inf, one)
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

    def _neighbours(self, one: Pipeline, *, uneven: bool) -> Iterator[Pipeline]:
        for name in self._families[schedule_families()[one.schedule].placement]:
            if one.chunks in self.moves.chunks(name):
                yield replace(one, schedule=name, options=())
        yield from (replace(other, options=()) for other in self.moves.counts(one))
        if uneven and len(one.ranks) <= MOST_UNEVEN:
            yield from self.moves.replicas(one)
