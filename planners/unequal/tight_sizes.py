"""Tight sizes: unequal sizes that fit where those that a search prefers do not.

The searches count what a stage holds whatever the moment. A replay adds the tensors that are being sent or wait to be used; and a
stage that stores its activations holds less where its sizes differ and it recomputes. Here each partition, with each pair of
sizes of each stage, that memory permits without those tensors is a candidate, and replays decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planners.partitioning.fastest_cuts import fastest_cuts
from planners.partitioning.partition_costs import PartitionCosts, straight_costs
from planners.partitioning.stage_memory import furthest_ends
from planners.partitioning.tight_memory import cuts_within
from planners.search.evaluator import Evaluator, Score
from planners.unequal.compiled import Compiled
from planners.unequal.problem import UnequalProblem, powers_of_two
from planners.unequal.tables import Floats, UnequalTables, memory_limits, unequal_plan, unequal_problem
from simulator import LayerCosts

Cuts = tuple[int, ...]

Pairs = tuple[tuple[int, int], ...]
"""Forward and backward size of each stage."""

PARTITIONS = 3_000
"""Partitions into so many stages that are all looked at, where there are no more of them."""

REPLAYS = 2_000
"""Plans that are replayed at most; all that may fit, where there are no more of them."""

EQUAL = 500
"""Plans with one size for all that are replayed at most, the fastest by the model first, before unequal sizes are."""

DESCENTS = 10
"""Partitions whose sizes are changed as long as that helps, where there are more plans: those with most room."""


@dataclass(frozen=True, slots=True)
class TightSizes:
    """A partition, its problem without caps, and the sizes of its stages."""

    cuts: Cuts
    unequal: UnequalProblem
    pairs: Pairs

    @property
    def forward(self) -> tuple[int, ...]:
        """Forward size of each stage."""
        return tuple(size for size, _ in self.pairs)

    @property
    def backward(self) -> tuple[int, ...]:
        """Backward size of each stage."""
        return tuple(size for _, size in self.pairs)


@dataclass(frozen=True, slots=True)
class NothingFits:
    """No plan was found that fits.

    every: all plans that may fit were replayed, so that none does; else only `tried` of them were
    """

    every: bool
    tried: int


@dataclass(frozen=True, slots=True)
class _Space:
    """A partition and the pairs of sizes that each stage may have; room: share of its memory that the fullest stage spares."""

    cuts: Cuts
    unequal: UnequalProblem
    pairs: tuple[Pairs, ...]
    room: float

    @property
    def common(self) -> list[tuple[int, int]]:
        """Pairs that all stages may have."""
        return sorted(set.intersection(*map(set, self.pairs)))

    def with_sizes(self, pairs: Pairs) -> TightSizes:
        """This partition with these sizes."""
        return TightSizes(self.cuts, self.unequal, pairs)


def tight_sizes(
    name: str, tables: UnequalTables, evaluate: Evaluator, sizes: Sequence[int], *, equal: bool = False
) -> TightSizes | NothingFits:
    """A plan that fits, with sizes to choose from.

    equal: one size for all stages and passes. Where the plans that may fit are REPLAYS or fewer, of PARTITIONS or fewer, all are
    tried, by rising seconds of the model. Elsewhere the sizes of a few partitions are changed, one stage at a time, first until
    they fit, then while they get faster; one size for all is tried before.
    """
    partitions, whole = _partitions(tables)
    spaces = [space for cuts in partitions if (space := _space(tables, cuts, sizes)) is not None]
    tried = set[tuple[Cuts, Pairs]]()

    def score(one: TightSizes) -> Score:
        tried.add((one.cuts, one.pairs))
        return evaluate(unequal_plan(name, tables, one.cuts, one.forward, one.backward))

    def fits(one: TightSizes) -> bool:
        plan = unequal_plan(name, tables, one.cuts, one.forward, one.backward)
        return score(one).fits and evaluate.on_reference(plan).fits

    def first(plans: Sequence[TightSizes], every: bool) -> TightSizes | NothingFits:
        found = next(filter(fits, plans), None)
        return found or NothingFits(every, len(tried))

    if not equal and sum(math.prod(map(len, space.pairs)) for space in spaces) <= REPLAYS:
        return first(_every(spaces, equal=False), whole)
    plans = _every(spaces, equal=True)
    if equal:
        return first(plans[:REPLAYS], whole and len(plans) <= REPLAYS)
    same = first(plans[:EQUAL], every=False)
    begin = {space.cuts: _starts(space) for space in sorted(spaces, key=lambda space: -space.room)[:DESCENTS]}
    if isinstance(same, TightSizes):
        begin[same.cuts] = [same.pairs]
    chosen = [space for space in spaces if space.cuts in begin]
    replays = max(1, (REPLAYS - EQUAL) // max(1, len(chosen)))
    found = [_descend(space, begin[space.cuts], tables, sizes, score, replays) for space in chosen]
    return first(sorted(found, key=lambda one: score(one).key), every=False)


def _partitions(tables: UnequalTables) -> tuple[list[Cuts], bool]:
    """The partitions whose stages fit with the smallest sizes, and whether these are all.

    Of very many the fastest ones, and the one with most room.
    """
    costs = _loosest(tables)
    if not fastest_cuts(costs, 1):
        return [], True
    if math.comb(tables.layers - 1, len(tables.devices) - 1) <= PARTITIONS:
        return list(cuts_within(costs)), True
    batch = tables.problem.batch
    found = [
        cuts
        for size in powers_of_two(batch)
        for _, cuts in fastest_cuts(
            replace(straight_costs(tables.costs, tables.devices, size), furthest=costs.furthest), -(-batch // size)
        )
    ]
    return list(dict.fromkeys((*found, _roomiest(tables, costs)))), False


def _loosest(tables: UnequalTables) -> PartitionCosts:
    """Costs of one sample, with the memory of the whole batch, stored or recomputed, whichever is less."""
    devices, held = tables.devices, [tables.problem.batch] * len(tables.devices)
    again = LayerCosts(replace(tables.problem, recompute=True))
    furthest = np.maximum(
        furthest_ends(tables.costs, devices, 1, held),
        furthest_ends(again, devices, 1, held),
    )
    return replace(straight_costs(tables.costs, devices, 1), furthest=furthest)


def _roomiest(tables: UnequalTables, costs: PartitionCosts) -> Cuts:
    """The partition whose fullest stage, without tied weights, fills the least share of its device: seconds stand for bytes."""
    problem, layers = tables.problem, tables.costs
    state = layers.parameters * problem.state_bytes
    shares = np.zeros((len(tables.devices), tables.layers + 1, tables.layers + 1))
    for share, memory in zip(shares, memory_limits(tables), strict=True):
        stored, again = (
            np.concatenate([[0.0], np.cumsum(state + layers.stashed_bytes * samples)]) for samples in (problem.batch, 1)
        )
        kept = layers.cut_bytes[:, None] * problem.batch
        recomputed = kept + again[None, :] - again[:, None]
        needs = recomputed if problem.recompute else np.minimum(stored[None, :] - stored[:, None], recomputed)
        share[:] = np.maximum(needs, 0.0) / memory
    full = PartitionCosts(
        stage_seconds=shares[None],
        kind=tuple(range(len(shares))),
        link_seconds=np.zeros_like(costs.link_seconds[:1]),
        latency_seconds=np.zeros_like(costs.latency_seconds),
        furthest=costs.furthest,
    )
    return fastest_cuts(full, 10**6)[0][1]


def _space(tables: UnequalTables, cuts: Cuts, sizes: Sequence[int]) -> _Space | None:
    """The pairs of sizes of each stage with which it may fit; None where a stage has none."""
    unequal = unequal_problem(tables, cuts, sizes)
    pairs, least = [], []
    for needs, limit in zip(_static_bytes(tables, cuts, sizes), memory_limits(tables), strict=True):
        places = np.argwhere(needs <= limit).tolist()
        pairs.append(tuple((sizes[forward], sizes[backward]) for forward, backward in places))
        least.append(float(needs.min()) / limit)
    return _Space(cuts, unequal, tuple(pairs), 1.0 - max(least)) if all(pairs) else None


def _static_bytes(tables: UnequalTables, cuts: Cuts, sizes: Sequence[int]) -> Floats:
    """What each stage holds at least, by its forward and backward size, float64 [stages, sizes, sizes]."""
    batch, found = tables.problem.batch, []
    for ends in tables.ranges(cuts):
        held = tables.stage_bytes(*ends)
        again = np.tile([held.recomputed(batch, size) for size in sizes], (len(sizes), 1))
        if not tables.problem.recompute:
            np.fill_diagonal(again, held.stored(batch))
        found.append(again)
    return np.array(found)


def _every(spaces: Sequence[_Space], *, equal: bool) -> list[TightSizes]:
    """All plans, by rising seconds of the model."""
    found: list[tuple[float, TightSizes]] = []
    for space in spaces:
        same = [(pair,) * len(space.pairs) for pair in space.common if pair[0] == pair[1]]
        plans = [space.with_sizes(one) for one in (same if equal else itertools.product(*space.pairs))]
        if plans:
            sizes = [plan.forward for plan in plans], [plan.backward for plan in plans]
            seconds = Compiled(space.unequal)(*sizes) + space.unequal.fixed_seconds
            found += zip(seconds.tolist(), plans, strict=True)
    return [one for _, one in sorted(found, key=lambda one: one[0])]


def _starts(space: _Space) -> list[Pairs]:
    """Powers of two, the same for all stages; where none may be, what each stage may have first."""
    quick = {*powers_of_two(space.unequal.samples)}
    same = [(pair,) * len(space.pairs) for pair in space.common if {*pair} <= quick]
    return same or [tuple(pairs[0] for pairs in space.pairs)]


def _descend(
    space: _Space,
    starts: Sequence[Pairs],
    tables: UnequalTables,
    sizes: Sequence[int],
    score: Callable[[TightSizes], Score],
    replays: int,
) -> TightSizes:
    """Sizes of a partition that no change of one stage beside the fullest device improves, within so many replays."""
    tried = {one: score(space.with_sizes(one)) for one in starts[:replays]}
    best = min(tried, key=lambda one: tried[one].key)
    moved = True
    while moved and len(tried) < replays:
        moved = False
        for near in _neighbours(space, sizes, best, tables.devices.index(tried[best].device)):
            if near in tried or len(tried) >= replays:
                continue
            tried[near] = score(space.with_sizes(near))
            if tried[near].key < tried[best].key:
                best, moved = near, True
                break
    return space.with_sizes(best)


def _neighbours(space: _Space, sizes: Sequence[int], pairs: Pairs, fullest: int) -> list[Pairs]:
    """One stage, the fullest or one beside it, with sizes a step or a factor of two away."""
    found = []
    for stage in (fullest, fullest + 1, fullest - 1):
        if not 0 <= stage < len(pairs):
            continue
        allowed = set(space.pairs[stage])
        near = [_near(sizes, size) for size in pairs[stage]]
        found += [(*pairs[:stage], pair, *pairs[stage + 1 :]) for pair in itertools.product(*near) if pair in allowed]
    return found


def _near(sizes: Sequence[int], size: int) -> list[int]:
    """A size itself, those beside it, and half and twice of it, of those there are."""
    place = sizes.index(size)
    beside = sizes[max(0, place - 1) : place + 2]
    return sorted({*beside, *({size // 2, size * 2} & {*sizes})})
