"""Tight sizes: a search for unequal sizes that fit, where the preferred ones do not.

The searches count what a stage holds whatever the moment. A replay adds the tensors that are being sent or wait to be used; and a
stage that stores its activations holds less where its sizes differ and it recomputes. So replays decide, and each one that does
not fit rules out many plans. A flush runs forward, turns once, and runs backward. What a stage holds going forward depends on the
forward sizes of the stages up to it, and on whether it recomputes itself; going backward, on the backward sizes of the stages
from it on, and on which of these recompute. Plans that begin, or end, in the same way up to there do not fit either.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from hardware_profiles import Floats
from planners.estimate.memory import furthest_ends, range_bytes
from planners.partitioning.fastest_cuts import fastest_cuts
from planners.partitioning.partition_costs import PartitionCosts, straight_costs
from planners.partitioning.tight_memory import cuts_within
from planners.search.evaluator import Evaluator
from planners.unequal.compiled import Compiled
from planners.unequal.found_sizes import Cuts
from planners.unequal.problem import UnequalProblem, near_sizes, powers_of_two
from planners.unequal.tables import UnequalTables, memory_limits, unequal_plan, unequal_problem
from simulator import LayerCosts, Plan

Pairs = tuple[tuple[int, int], ...]
"""Forward and backward size of each stage."""

Choice = tuple[int, bool]
"""Size of a stage in one pass, and whether the stage recomputes."""

FORWARD, BACKWARD = 0, 1
"""Passes. A path of choices runs from the first stage on forward, and from the last stage on backward."""

PARTITIONS = 3_000
"""Partitions that are looked at first: all, where there are no more of them, else the fastest."""

PLANS = 2**16
"""Plans that are tried by rising seconds of the model, at most; where more may fit, other ways are tried."""

OPS = 2**19
"""Ops of the plans that are replayed, at most, unless a budget says how many plans may be until one fits."""
LEAST_OPS = 512
"""Ops that a plan counts as, at least: OPS are at most 1,024 replays. A figure of a search's room: it proves nothing, and of the
problems that were decided when it was chosen the worst took 889.
"""

EQUAL = 500
"""Plans with one size throughout that are tried before others, the fastest by the model first, where there are more than
PLANS.
"""

ROUND = 16
"""Plans of each partition that are replayed in the first round; each further round replays four times as many."""

STARTS = 10
"""Plans that fit, at most, each of another partition, whose sizes are then changed as long as they get faster."""
CHANGES = 150
"""Plans that are replayed for each of these, at most."""


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

    @property
    def paths(self) -> tuple[tuple[Choice, ...], tuple[Choice, ...]]:
        """The choices of each pass, forward from the first stage on and backward from the last one on."""
        always = self.unequal.recomputation == "always"
        again = [always or (self.unequal.coupled and ahead != back) for ahead, back in self.pairs]
        return tuple(zip(self.forward, again, strict=True)), tuple(zip(self.backward, again, strict=True))[::-1]

    @property
    def ops(self) -> int:
        """Number of forwards and backwards of all stages."""
        return sum(-(-self.unequal.samples // size) for pair in self.pairs for size in pair)


@dataclass(frozen=True, slots=True)
class NothingFits:
    """The answer of a search that found no plan that fits.

    every: all plans were replayed or ruled out, so that none fits; else only `tried` plans were replayed
    looked: plans that a budget must exceed for more to be looked at
    """

    every: bool
    tried: int
    looked: int = 0


class _LimitReached(Exception):
    """Raised when the limit of replayed ops is reached."""


@dataclass(frozen=True, slots=True)
class _Space:
    """A partition, and the choices of each stage with which it may fit, those that need least first.

    room: share of its memory that the fullest stage spares, with its least choices
    """

    cuts: Cuts
    unequal: UnequalProblem
    forward: tuple[tuple[Choice, ...], ...]
    backward: tuple[tuple[Choice, ...], ...]
    room: float

    def beside(self, stage: int, backward: Choice) -> tuple[Choice, ...]:
        """The forward choices of a stage that go with one of its backward choices."""
        size, again = backward
        free = not self.unequal.coupled
        return tuple(one for one in self.forward[stage] if one[1] == again and (free or (one[0] != size) == again))

    def pairs(self, stage: int) -> list[tuple[int, int]]:
        """Forward and backward sizes that a stage may have."""
        return [(size, back[0]) for back in self.backward[stage] for size, _ in self.beside(stage, back)]

    @property
    def equal(self) -> list[TightSizes]:
        """The plans with one size for all stages and passes."""
        same = set.intersection(*(set(of_stage) for of_stage in (*self.forward, *self.backward)))
        again = not self.unequal.coupled
        return [self.with_sizes([(size, size)] * len(self.forward)) for size, one in sorted(same) if one == again]

    @property
    def every(self) -> Iterator[TightSizes]:
        """All plans of the partition."""
        return map(self.with_sizes, itertools.product(*map(self.pairs, range(len(self.forward)))))

    @property
    def plans(self) -> int:
        """Number of all plans of the partition."""
        if not self.unequal.coupled:
            return math.prod(map(len, (*self.forward, *self.backward)))
        count = 1
        for of_stage in zip(self.forward, self.backward, strict=True):
            (stored, differing), (stored_back, differing_back) = (
                [{size for size, again in choices if again is kind} for kind in (False, True)] for choices in of_stage
            )
            count *= len(stored & stored_back) + len(differing) * len(differing_back) - len(differing & differing_back)
        return count

    def with_sizes(self, pairs: Sequence[tuple[int, int]]) -> TightSizes:
        """The plan of this partition with these sizes."""
        return TightSizes(self.cuts, self.unequal, tuple(pairs))


class _Replays:
    """Replays of one search, and the plans that they rule out.

    Lifetime: made for one search, which asks it whether plans fit, and which ones may still fit.
    """

    def __init__(self, name: str, tables: UnequalTables, evaluate: Evaluator) -> None:
        self.name, self.tables, self.evaluate = name, tables, evaluate
        self.tried, self.found, self.ops = 0, False, 0
        self._limits, self._places = np.array(memory_limits(tables)), np.argsort(np.argsort(tables.devices))
        self._most, self._of_a_plan = OPS, max(LEAST_OPS, 2 * len(tables.devices) * tables.problem.batch)
        if not math.isinf(evaluate.remaining):  # then the budget ends before it
            self._most = max(OPS, (int(evaluate.remaining) + 1) * self._of_a_plan)
        self._depths = _depths(tables)
        self._ruled_out = set[Hashable]()

    @property
    def looked(self) -> int:
        """Number of the longest plans for whose replays the allowed ops suffice: a larger budget continues the search."""
        return self._most // self._of_a_plan

    def plan(self, one: TightSizes) -> Plan:
        """The plan that is replayed for these sizes."""
        return unequal_plan(self.name, self.tables, one.cuts, one.forward, one.backward)

    def seconds(self, one: TightSizes) -> float:
        """Seconds of a mini-batch."""
        return self.evaluate(self.plan(one)).iteration_seconds

    def spend(self, ops: int) -> None:
        """Count ops, LEAST_OPS at least; raise _LimitReached beyond the limit."""
        self.ops += max(ops, LEAST_OPS)
        if self.ops > (OPS if self.found else self._most):
            raise _LimitReached

    def fits(self, sizes: TightSizes) -> bool:
        """Whether a plan fits by its replay; if not, plans that begin or end as it does are ruled out.

        Raises _LimitReached beyond OPS; while nothing has been found, a budget is the only limit.
        """
        paths = sizes.paths
        if any(self.rules_out(side, sizes.cuts, path) for side, path in enumerate(paths)):
            return False
        self.spend(sizes.ops)
        self.tried += 1
        plan = self.plan(sizes)
        self.evaluate(plan)
        peaks = self.evaluate.pass_peak_bytes(plan)
        if peaks is None:  # too many ops for its passes to be told apart
            fits = self.evaluate.on_reference(plan).fits
        else:
            over = peaks[:, self._places] > self._limits
            for side, stages in enumerate((over[FORWARD], over[BACKWARD, ::-1])):
                for place in np.flatnonzero(stages).tolist():
                    self._ruled_out.add(_key(side, sizes.cuts, paths[side][: self._depths[side][place]], place))
            fits = not over.any()
        self.found |= fits
        return fits

    def rules_out(self, side: int, cuts: Cuts, path: Sequence[Choice]) -> bool:
        """Whether no plan of a partition fits whose first (forward) or last (backward) stages choose so."""
        return any(
            _key(side, cuts, path[:depth], place) in self._ruled_out
            for place, depth in enumerate(self._depths[side])
            if depth <= len(path)
        )

    def left(self, space: _Space) -> Iterator[TightSizes]:
        """The plans of a partition that are not ruled out when their turn comes."""
        stages, beside = len(space.forward), functools.cache(space.beside)

        def begins(end: Sequence[Choice]) -> Iterator[tuple[Choice, ...]]:
            """Forward choices for all stages where the last ones choose so backward."""
            fixed = [beside(stages - 1 - place, choice) for place, choice in enumerate(end)]
            return _paths(
                (*space.forward[: stages - len(end)], *reversed(fixed)),
                functools.partial(self.rules_out, FORWARD, space.cuts),
            )

        def hopeless(end: Sequence[Choice]) -> bool:
            return self.rules_out(BACKWARD, space.cuts, end) or next(begins(end), None) is None

        for end in _paths(space.backward[::-1], hopeless):
            for begin in begins(end):
                yield space.with_sizes([(ahead[0], back[0]) for ahead, back in zip(begin, reversed(end), strict=True)])
                if self.rules_out(BACKWARD, space.cuts, end):
                    break


def _key(side: int, cuts: Cuts, path: Sequence[Choice], place: int) -> Hashable:
    """Key of all that decides what the stage at `place` of a path holds in a pass; path: choices of the stages that it depends
    on
    """
    if side == FORWARD:
        return place, path[place][1], cuts[: len(path)], tuple(size for size, _ in path)
    return place, cuts[-len(path) :], tuple(path)


def _depths(tables: UnequalTables) -> tuple[list[int], list[int]]:
    """Number of stages, from the first (forward) or the last (backward) on, whose choices decide what each stage holds, by stage.

    They are those up to it; and where transfers queue, those that send over channels on which theirs queue.
    """
    devices, found = tables.devices, []
    for order in devices, devices[::-1]:
        routes = (
            [tables.problem.cluster.route(*ends) for ends in itertools.pairwise(order)]
            if tables.problem.contention
            else []
        )
        last_on = {channel: link for link, route in enumerate(routes) for channel in route}
        reach = list(itertools.accumulate((max(last_on[channel] for channel in route) for route in routes), max))
        depths = []
        for stage in range(len(order)):
            while stage < len(reach) and reach[stage] > stage:
                stage = reach[stage]
            depths.append(stage + 1)
        found.append(depths)
    return found[0], found[1]


def _paths(
    choices: Sequence[Sequence[Choice]], ruled_out: Callable[[Sequence[Choice]], bool]
) -> Iterator[tuple[Choice, ...]]:
    """Every path, one of `choices` per stage, no beginning of which is ruled out when its turn comes; depth first."""
    path: list[Choice] = []
    untried = [iter(choices[0])]
    while untried:
        choice = next(untried[-1], None)
        if choice is None:
            untried.pop()
            del path[-1:]
            continue
        path.append(choice)
        if ruled_out(path):
            path.pop()
        elif len(path) < len(choices):
            untried.append(iter(choices[len(path)]))
        else:
            yield tuple(path)
            kept = next((count for count in range(len(path)) if ruled_out(path[: count + 1])), len(path) - 1)
            del path[kept:], untried[kept + 1 :]


def tight_sizes(
    name: str, tables: UnequalTables, evaluate: Evaluator, sizes: Sequence[int], *, equal: bool = False
) -> TightSizes | NothingFits:
    """A plan that fits, with sizes of these candidates; NothingFits where none is found.

    equal: one size for all stages and passes. Where at most PLANS plans may fit, the fastest by the model that fits is taken;
    elsewhere what is found first in each partition, and with one size throughout, is changed as long as it gets faster. Where
    nothing is found the other partitions follow, until all plans are ruled out, or the limit of replays is reached.
    """
    replays, costs = _Replays(name, tables, evaluate), _loosest(tables)
    first = _partitions(tables, costs)
    spaces = [space for cuts in first if (space := _space(tables, cuts, sizes)) is not None]
    try:
        if equal or sum(space.plans for space in spaces) <= PLANS:
            plans = _by_seconds(space.equal if equal else space.every for space in spaces)
            found = next((one for _, one in plans if replays.fits(one)), None)
        else:
            found = _quick(replays, spaces, sizes)
        seen = set(first)
        for cuts in cuts_within(costs):
            if found is not None:
                return found
            if cuts in seen:
                continue
            replays.spend(0)
            if (space := _space(tables, cuts, sizes)) is not None:
                found = next(filter(replays.fits, space.equal if equal else replays.left(space)), None)
    except _LimitReached:
        return NothingFits(False, replays.tried, replays.looked)
    return found or NothingFits(True, replays.tried)


def _partitions(tables: UnequalTables, costs: PartitionCosts) -> list[Cuts]:
    """The partitions to look at first: all that may fit; of very many the fastest at some sizes, and the one with most room."""
    if not fastest_cuts(costs, 1):
        return []
    if math.comb(tables.layers - 1, len(tables.devices) - 1) <= PARTITIONS:
        return list(cuts_within(costs))
    batch = tables.problem.batch
    found = [
        cuts
        for size in powers_of_two(batch)
        for _, cuts in fastest_cuts(
            replace(straight_costs(tables.costs, tables.devices, size), furthest=costs.furthest), -(-batch // size)
        )
    ]
    return list(dict.fromkeys((*found, _roomiest(tables, costs))))


def _loosest(tables: UnequalTables) -> PartitionCosts:
    """Costs of the partition search for blocks of one sample, with memory for the whole batch in flight, stored or recomputed,
    whichever reaches further.
    """
    devices, held = tables.devices, [tables.problem.batch] * len(tables.devices)
    ends = np.array([furthest_ends(one, devices, 1, held) for one in _stored_or_recomputed(tables)])
    return replace(straight_costs(tables.costs, devices, 1), furthest=ends.max(axis=0))


def _stored_or_recomputed(tables: UnequalTables) -> tuple[LayerCosts, ...]:
    """Costs of the network under each policy that stages may have: recomputing, and storing where the problem permits it."""
    if tables.problem.recompute == "whole":
        return (tables.costs,)
    return tables.costs, LayerCosts(replace(tables.problem, recompute="whole"))


def _roomiest(tables: UnequalTables, costs: PartitionCosts) -> Cuts:
    """The partition whose fullest stage, without tied weights, fills the least share of its device; found with bytes in place of
    seconds.
    """
    begin, end = np.ogrid[: len(tables.costs.parameters) + 1, : len(tables.costs.parameters) + 1]
    kinds = map(range_bytes, _stored_or_recomputed(tables))
    needs = np.min([one.needed(begin, end, tables.problem.batch, 1) for one in kinds], axis=0)
    shares = np.maximum(needs, 0.0) / np.array(memory_limits(tables))[:, None, None]
    full = PartitionCosts(
        stage_seconds=shares[None],
        kind=tuple(range(len(shares))),
        link_seconds=np.zeros_like(costs.link_seconds[:1]),
        latency_seconds=np.zeros_like(costs.latency_seconds),
        furthest=costs.furthest,
    )
    return fastest_cuts(full, 10**6)[0][1]


def _space(tables: UnequalTables, cuts: Cuts, sizes: Sequence[int]) -> _Space | None:
    """A partition with the choices of each stage with which it may fit; None if a stage has none."""
    unequal, batch, chosen = unequal_problem(tables, cuts, sizes), tables.problem.batch, np.array(sizes)
    limits, held = np.array(memory_limits(tables))[:, None], [tables.stage_bytes(*ends) for ends in tables.ranges(cuts)]
    sent = [*tables.costs.cut_bytes[list(cuts)].tolist(), 0.0]
    kinds = (False, True) if unequal.coupled else (True,)
    forward, backward, least = list[Floats](), list[Floats](), []
    for again in kinds:
        turns = [one.at_the_turn(batch, chosen, out, again=again) for one, out in zip(held, sent, strict=True)]
        for side, parts in enumerate((forward, backward)):
            parts.append(np.array([one[side] for one in turns]) / limits)
        least.append(np.maximum(forward[-1].min(axis=1), backward[-1].min(axis=1)))
    space = _Space(
        cuts,
        unequal,
        _choices(forward, kinds, sizes),
        _choices(backward, kinds, sizes),
        1.0 - float(np.max(np.min(least, axis=0))),
    )
    return space if space.plans else None


def _choices(parts: Sequence[Floats], kinds: Iterable[bool], sizes: Sequence[int]) -> tuple[tuple[Choice, ...], ...]:
    """Choices of each stage that fit into its memory, those that need least first.

    parts: for each kind of recomputation, the share of its memory that each stage needs by size, float64 [stages, sizes]
    """
    every = [(size, again) for again in kinds for size in sizes]
    of_stage = np.hstack(parts)
    order = np.argsort(of_stage, axis=1, kind="stable")
    return tuple(
        tuple(every[number] for number in row[needs[row] <= 1.0].tolist())
        for row, needs in zip(order, of_stage, strict=True)
    )


def _by_seconds(plans: Iterable[Iterable[TightSizes]]) -> list[tuple[float, TightSizes]]:
    """Plans with their seconds by the model, rising; plans: by partition"""
    found: list[tuple[float, TightSizes]] = []
    for every in map(list, plans):
        if every:
            sizes = [plan.forward for plan in every], [plan.backward for plan in every]
            seconds = Compiled(every[0].unequal)(*sizes) + every[0].unequal.fixed_seconds
            found += zip(seconds.tolist(), every, strict=True)
    return sorted(found, key=lambda one: one[0])


def _quick(replays: _Replays, spaces: Sequence[_Space], sizes: Sequence[int]) -> TightSizes | None:
    """The fastest plan reached by changes of sizes from the plans that are found to fit first; None if none fits."""
    starts = _starts(replays, spaces)
    replays.ops, of_cuts = 0, {space.cuts: space for space in spaces}
    ends = [_quicker(replays, of_cuts[start.cuts], start, sizes) for start in starts]
    return min(ends, key=replays.seconds, default=None)


def _starts(replays: _Replays, spaces: Sequence[_Space]) -> list[TightSizes]:
    """Plans that fit: with one size throughout, and of the partitions with most room, in rounds of more and more replays."""
    equal = [one for _, one in _by_seconds(space.equal for space in spaces)[:EQUAL]]
    found = list(itertools.islice(filter(replays.fits, equal), 1))
    waiting, count = sorted(spaces, key=lambda space: -space.room), ROUND
    try:
        while waiting:
            unfinished = []
            for space in waiting:
                plans = replays.left(space)
                one = next(filter(replays.fits, itertools.islice(plans, count)), None)
                if one is not None:
                    found.append(one)
                    if len(found) >= STARTS:
                        return found
                elif next(plans, None) is not None:
                    unfinished.append(space)
            if found:
                break
            waiting, count = unfinished, 4 * count
    except _LimitReached:
        if not found:
            raise
    return found


def _quicker(replays: _Replays, space: _Space, best: TightSizes, sizes: Sequence[int]) -> TightSizes:
    """The sizes of a partition that no change of a single stage makes faster while they fit, within CHANGES replays and OPS."""
    last, seen, seconds = replays.tried + CHANGES, {best.pairs}, replays.seconds(best)
    near = _by_seconds([_neighbours(space, sizes, best)])
    with suppress(_LimitReached):
        while near and replays.tried < last:
            least, one = near.pop(0)
            if least >= seconds:  # the model is a lower bound
                break
            if one.pairs not in seen and replays.fits(one) and replays.seconds(one) < seconds:
                best, seconds = one, replays.seconds(one)
                near = _by_seconds([_neighbours(space, sizes, best)])
            seen.add(one.pairs)
    return best


def _neighbours(space: _Space, sizes: Sequence[int], one: TightSizes) -> Iterator[TightSizes]:
    """Plans with the sizes of one stage changed to near candidates (`near_sizes`)."""
    for stage, pair in enumerate(one.pairs):
        for forward, backward in itertools.product(*(sorted(near_sizes(sizes, size)) for size in pair)):
            again = not space.unequal.coupled or forward != backward
            if (forward, again) in space.forward[stage] and (backward, again) in space.backward[stage]:
                yield space.with_sizes((*one.pairs[:stage], (forward, backward), *one.pairs[stage + 1 :]))
