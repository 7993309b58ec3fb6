"""Replayed sizes: a search of the sizes of one partition by replays, for links that share channels.

The recurrence gives each link channels of its own. Where links share some (boards in a ring, servers behind one cable, a bus) a
replay takes longer, and other sizes may be the fastest. What the recurrence still gives is a bound on every choice of sizes; and
a channel that carries all blocks of several links is busy from the first of them to the last (`SizeBounds`).

A flush runs forward, turns, and runs backward: the backward pass depends on the forward one by the moment of the turn, and by
which stages recompute. So first every forward vector that is left is replayed once, for its turn, and then pairs of turns and
backward vectors, by rising bound. Where all that the bounds leave open are replayed, no sizes are faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from hardware_profiles import Floats, Integers
from planners.search.evaluator import BudgetSpent, Evaluator
from planners.unequal.chain import Chain
from planners.unequal.compiled import Compiled
from planners.unequal.found_sizes import Cuts
from planners.unequal.problem import UnequalProblem, near_sizes
from planners.unequal.tables import WITHOUT_LINKS, UnequalTables, unequal_plan
from simulator import Plan, Score

Vector = tuple[int, ...]
"""A size for each stage."""

Pair = tuple[Vector, Vector]
"""Forward and backward sizes."""

OPS = 2**18
"""Ops of the plans that are replayed, at most: the work of a search."""
LEAST_OPS = 512
"""Ops that a plan counts as, at least: OPS are at most 512 replays."""

STARTS = 3
"""Sizes to begin with, at most the fastest so many, whose changes are replayed."""

VECTORS = 2**16
"""Size vectors of a pass (times choices of the stages that recompute), at most, that are enumerated and bounded."""

PAIRS = 2**22
"""Pairs of forward and backward vectors, at most, that are put in order."""

ROUNDING = 1e-9
"""Relative tolerance of rounding between bounds and replays."""


class _WorkDone(Exception):
    """Raised when the limit of replayed ops is reached."""


@dataclass(frozen=True, slots=True)
class ReplayedSizes:
    """The fastest sizes that replays found for one partition.

    score: of these sizes; every: whether all sizes that may be faster were replayed
    replays: plans replayed; stopped: by an interrupt or the end of a budget
    """

    sizes: Pair
    score: Score
    every: bool
    replays: int
    stopped: bool


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """Lower bounds on the replays of a partition, by sizes.

    tables: of its devices and channels; unequal: the loosest problem of the partition, without caps; cuts: of the partition
    """

    tables: UnequalTables
    unequal: UnequalProblem
    cuts: Cuts

    @property
    def update(self) -> float:
        """Seconds of the first stage's update, which ends last."""
        return self.unequal.fixed_seconds - sum(map(sum, self._latencies))

    @property
    def _latencies(self) -> tuple[list[float], list[float]]:
        """Latency of each link in seconds, down and up."""
        ends, cluster = list(pairwise(self.tables.devices)), self.tables.problem.cluster
        return (
            [cluster.point_to_point(near, far)[0] for near, far in ends],
            [cluster.point_to_point(far, near)[0] for near, far in ends],
        )

    def forward(self, sizes: Integers) -> Floats:
        """Lower bounds on the seconds of the forward pass, until the last stage ends it, float64 [vectors]; sizes: (vectors,
        stages)
        """
        model = Compiled(self.unequal).forward_population(sizes) + sum(self._latencies[0])
        return np.maximum(model, self._of_channels(self.unequal.forward_chain, sizes, self._busy(up=False)))

    def backward(self, sizes: Integers, again: Integers) -> Floats:
        """Lower bounds on the seconds of the backward pass without the update, float64 [vectors]; again: 1 where a stage
        recomputes because its sizes differ
        """
        chain, other = self.unequal.backward_chain, sizes % self.unequal.samples + 1
        model = Compiled(self.unequal).backward_population(sizes, np.where(again, other, sizes))
        channels = self._of_channels(chain, sizes[:, ::-1], self._busy(up=True))
        return np.maximum(model + sum(self._latencies[1]), channels)

    def _busy(self, *, up: bool) -> list[tuple[list[int], float]]:
        """For each channel that several links of a pass share: these links, in chain order, and the seconds that it is busy."""
        problem = self.tables.problem
        if not problem.contention or problem.communication in WITHOUT_LINKS:
            return []
        links: dict[int, list[int]] = {}
        seconds: dict[int, float] = {}
        stations = list(zip(pairwise(self.tables.devices), self.cuts, strict=True))
        for place, (ends, cut) in enumerate(reversed(stations) if up else stations):
            size = float(self.tables.costs.cut_bytes[cut]) * problem.batch
            for channel in problem.cluster.route(*(ends[::-1] if up else ends)):
                links.setdefault(channel, []).append(place)
                lasting = size / problem.cluster.channels[channel].bandwidth
                seconds[channel] = seconds.get(channel, 0.0) + lasting
        return [(of_channel, seconds[channel]) for channel, of_channel in links.items() if len(set(of_channel)) > 1]

    def _of_channels(self, chain: Chain, sizes: Integers, busy: Sequence[tuple[list[int], float]]) -> Floats:
        """Lower bounds by channels that several links share: what comes before a channel's first block, all its blocks, what
        follows the last.

        sizes: in chain order. Before the first block of a link stands one block of each stage and link before it; behind its last
        one the last blocks of those behind it.
        """
        bounds, stages = np.zeros(len(sizes)), chain.stages
        if not busy:
            return bounds
        first, last = sizes, (chain.samples - 1) % sizes + 1
        columns = np.arange(stages)
        own = [chain.durations[columns, one] for one in (first, last)]
        link = [chain.durations[columns + stages, one] for one in (first, last)]
        zero = np.zeros((len(sizes), 1))
        before = np.cumsum(own[0], axis=1) + np.hstack([zero, np.cumsum(link[0], axis=1)[:, :-1]])
        both = (own[1] + np.hstack([link[1][:, :-1], zero]))[:, ::-1]
        after = np.cumsum(both, axis=1)[:, ::-1]  # of the stages from each on
        for links, seconds in busy:
            held = sorted(set(links))
            one = before[:, held].min(axis=1) + seconds + after[:, [place + 1 for place in held]].min(axis=1)
            bounds = np.maximum(bounds, one)
        return bounds


@dataclass(slots=True)
class _SizeReplays:
    """Replays of the sizes of one partition, and the fastest that fit; raises _WorkDone after OPS.

    Lifetime: made for one search, which asks it for seconds until it is done.
    """

    name: str
    bounds: SizeBounds
    evaluate: Evaluator
    known: dict[Pair, float] = field(default_factory=dict)
    best: Pair | None = None
    score: Score | None = None
    ops: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of the fastest sizes that fit, infinite without any."""
        return math.inf if self.score is None else self.score.iteration_seconds

    def plan(self, pair: Pair) -> Plan:
        """The plan that is replayed for these sizes."""
        return unequal_plan(self.name, self.bounds.tables, self.bounds.cuts, *pair)

    def __call__(self, pair: Pair) -> float:
        """Seconds of an iteration, infinite for sizes that do not fit."""
        if pair not in self.known:
            batch = self.bounds.unequal.samples
            self.ops += max(LEAST_OPS, sum(-(-batch // size) for sizes in pair for size in sizes))
            if self.ops > OPS:
                raise _WorkDone
            score = self.evaluate(self.plan(pair))
            self.known[pair] = score.iteration_seconds if score.fits else math.inf
            if self.known[pair] < self.seconds:
                self.best, self.score = pair, score
        return self.known[pair]

    def turn(self, forward: Vector, backward: Vector) -> float:
        """Seconds at which the forward pass ends, which do not depend on backward sizes."""
        self((forward, backward))
        found = self.evaluate.forward_seconds(self.plan((forward, backward)))
        if found is None:
            raise _WorkDone
        return found


def replayed_sizes(
    name: str, tables: UnequalTables, cuts: Cuts, unequal: UnequalProblem, starts: Iterable[Pair], evaluate: Evaluator
) -> ReplayedSizes | None:
    """The fastest sizes that replays find for a partition; None where none of them fits.

    unequal: the problem of the partition without caps; starts: sizes to begin with
    The changes of the fastest starts come first, a stage or a pass at a time, each the first that is faster; then whatever the
    bounds leave open, where that is little enough. A change whose bound is no faster than what is known is not replayed.
    """
    replays = _SizeReplays(name, SizeBounds(tables, unequal, cuts), evaluate)
    every = stopped = False
    try:
        for pair in dict.fromkeys((*starts, *_even(unequal))):
            replays(pair)
        for pair in sorted(replays.known, key=replays.known.__getitem__)[:STARTS]:
            _descend(replays, pair)
        every = _enumerate(replays)
    except _WorkDone:
        pass
    except (KeyboardInterrupt, BudgetSpent):
        stopped = True
    if replays.best is None or replays.score is None:
        return None
    return ReplayedSizes(replays.best, replays.score, every, len(replays.known), stopped)


def _even(unequal: UnequalProblem) -> Iterator[Pair]:
    """Sizes that are the same for all stages and passes: powers of two among the candidates, and the batch."""
    for size in unequal.candidates:
        if size & (size - 1) == 0 or size == unequal.samples:
            yield (size,) * unequal.stages, (size,) * unequal.stages


def _descend(replays: _SizeReplays, pair: Pair) -> None:
    """Replay changes of sizes by rising bound; begin again from the first that is faster, until none is."""
    moved = True
    while moved and not math.isinf(replays(pair)):
        moved = False
        near = [one for one in dict.fromkeys(_changed(replays.bounds.unequal, pair)) if one not in replays.known]
        least = _bounds(replays.bounds, near)
        for number in np.argsort(least, kind="stable").tolist():
            if least[number] >= replays(pair) * (1.0 - ROUNDING):
                break
            if replays(near[number]) < replays(pair):
                pair, moved = near[number], True
                break


def _bounds(bounds: SizeBounds, pairs: Sequence[Pair]) -> Floats:
    """Lower bounds on the seconds of an iteration, float64 [pairs]."""
    if not pairs:
        return np.zeros(0)
    forward, backward = (np.array(sizes, dtype=np.int64) for sizes in zip(*pairs, strict=True))
    return bounds.forward(forward) + bounds.backward(backward, _again(bounds, forward, backward)) + bounds.update


def _again(bounds: SizeBounds, forward: Integers, backward: Integers) -> Integers:
    """1 where a stage recomputes because its sizes differ, else 0, (pairs, stages)."""
    return np.asarray((forward != backward) & bounds.unequal.coupled, dtype=np.int64)


def _changed(unequal: UnequalProblem, pair: Pair) -> Iterator[Pair]:
    """Sizes with one stage of a pass, or of both, changed to a near size or that of a stage beside it; with a whole pass a size
    up or down; and with one pass's sizes for both.
    """
    forward, backward = pair
    for vector, put in ((forward, lambda one: (one, backward)), (backward, lambda one: (forward, one))):
        for stage, size in enumerate(vector):
            for other in {*near_sizes(unequal.candidates, size), *vector[max(0, stage - 1) : stage + 2]} - {size}:
                yield put(_with(vector, stage, other))
        for step in (-1, 1):
            yield put(tuple(_step(unequal.candidates, size, step) for size in vector))
    for stage in range(unequal.stages):
        for size in near_sizes(unequal.candidates, forward[stage]) | near_sizes(unequal.candidates, backward[stage]):
            yield _with(forward, stage, size), _with(backward, stage, size)
    yield forward, forward
    yield backward, backward


def _with(vector: Vector, stage: int, size: int) -> Vector:
    """The vector with this size at one stage."""
    return (*vector[:stage], size, *vector[stage + 1 :])


def _step(sizes: Sequence[int], size: int, step: int) -> int:
    """The candidate beside a size, itself at the ends."""
    return sizes[min(max(sizes.index(size) + step, 0), len(sizes) - 1)]


def _enumerate(replays: _SizeReplays) -> bool:
    """Replay all sizes that may be faster, by rising bound; False where these are too many to be bounded."""
    bounds, unequal = replays.bounds, replays.bounds.unequal
    kinds = 2**unequal.stages if unequal.coupled else 1
    if len(unequal.candidates) ** unequal.stages * kinds > VECTORS or replays.best is None:
        return False
    vectors = np.array(list(itertools.product(unequal.candidates, repeat=unequal.stages)), dtype=np.int64)
    again = np.array(list(itertools.product((0, 1), repeat=unequal.stages))[:kinds], dtype=np.int64)
    backward = np.array([bounds.backward(vectors, np.broadcast_to(one, vectors.shape)) for one in again])
    least, backward = bounds.forward(vectors), backward + bounds.update
    turns = np.full(len(vectors), np.inf)
    for row in np.argsort(least, kind="stable").tolist():
        if least[row] + backward.min() < replays.seconds * (1.0 - ROUNDING):
            turns[row] = replays.turn(tuple(vectors[row].tolist()), replays.best[1])
    weights = 1 << np.arange(unequal.stages)[::-1]
    rows = np.flatnonzero(turns + backward.min() < replays.seconds * (1.0 - ROUNDING))
    if len(rows) * len(vectors) > PAIRS:
        return False
    kind = _again(bounds, vectors[rows, None], vectors[None]) @ weights
    sums = turns[rows, None] + backward[kind, np.arange(len(vectors))]
    seen = set[tuple[float, int, int]]()
    for place in np.argsort(sums, axis=None, kind="stable").tolist():
        row, column = divmod(place, len(vectors))
        if sums[row, column] >= replays.seconds * (1.0 - ROUNDING):
            break
        key = float(turns[rows[row]]), int(kind[row, column]), column
        if key not in seen and not math.isinf(
            replays((tuple(vectors[rows[row]].tolist()), tuple(vectors[column].tolist())))
        ):
            seen.add(key)  # from the same turn, the same backward pass
    return True
