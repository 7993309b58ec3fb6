"""Label search: the best mixed pipelines of a space, and a lower bound on all of them.

Shapes (a size of micro-batches and a number of replicas) are searched in the order of their bounds, first with few labels and
then with more and more, until none can hold a better pipeline or the work that the search is given is done. Work is counted in
stages that were looked at, not in seconds: the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hardware_profiles import Flags, Floats, Integers
from planners.estimate.pipeline_seconds import rounds_and_fill
from planners.mixed.label_kernels import (
    NEED,
    SLOWEST,
    Asked,
    Ends,
    LeastAhead,
    SetTables,
    grown,
    least_needs,
    least_seconds,
    least_sums,
)
from planners.mixed.space import MixedPipeline, Space, StageVariants, price_ratios, variant_sets
from planners.mixed.whole_counts import TooManyShares, whole_counts

FIRST_WIDTH, WIDTHS = 8, (64, 256)
"""Labels that are kept per first layer and set of variants: in a first pass over stages of one kind of device each, which is soon
done and mostly finds the best, and in each pass over all stages.
"""

KEPT = 8
"""Pipelines, at most, that are kept per shape, unless more are wanted."""

LEVELS = 40
"""Number of levels of the slowest stage's seconds that bounds tell apart."""

WORTHS, STAGES = (0.2, 0.5, 0.8), (2, 4, 8, 16)
"""WORTHS: quantiles of the rates at which variants exchange seconds for devices; STAGES: numbers of stages that share these
seconds.
"""

DEPTH = 8
"""Stages behind a cut up to which bounds tell how many micro-batches are in flight; more stages count as these."""

EXACT = 1e-9
"""Share of a bound within which the best pipeline counts as proven."""


@dataclass(frozen=True, slots=True)
class FoundPipelines:
    """The result of a search: pipelines, and bounds on all others.

    pipelines: with their seconds, fastest first: all that were the best at some time, and some near them
    rounds: numbers of micro-batches that pipelines of the space may have
    bound: seconds that no pipeline of the space undercuts; infinite where it has none
    work: stages that were looked at; shapes: number of shapes of the space; opened: number of searches of a shape
    """

    pipelines: tuple[tuple[float, MixedPipeline], ...]
    rounds: frozenset[int]
    bound: float
    work: int
    shapes: int
    opened: int

    @property
    def proven(self) -> bool:
        """Whether it is proven that no pipeline of the space is faster than the best found, or that there is none."""
        return self.bound >= (self.pipelines[0][0] if self.pipelines else np.inf) * (1.0 - EXACT)


def search(
    space: Space,
    most_work: float,
    pipelines: int = 1,
    watch: Callable[[FoundPipelines], None] = lambda found: None,
    below: float = np.inf,
    *,
    of_each: bool = False,
) -> FoundPipelines:
    """The best pipelines of a space, with bounds.

    most_work: stages that are looked at before the search ends without a proof (a shape that is begun is searched to its end)
    pipelines: number that is wanted, so that bounds prune against the last of the best so many; of_each: of each number of
    micro-batches
    watch: called with the result so far at every improvement
    below: seconds above which pipelines are of no use; the bound is no higher
    """
    state = _LabelSearch(space, pipelines, below, of_each)
    passes = [(True, FIRST_WIDTH)] if len(space.devices) > 1 else []
    for alone, width in (*passes, *((False, width) for width in WIDTHS)):
        for shape in sorted(state.shapes, key=lambda one: (one.bound, one.samples, one.replicas)):
            if shape.bound < state.limit(shape) and state.work < most_work and state.open(shape, width, alone):
                watch(state.found)
    return state.found


@dataclass(slots=True, eq=False)
class _Shape:
    """A size of micro-batches and a number of replicas, with what is known of their pipelines.

    rounds: micro-batches of each replica; bound: seconds that no pipeline of the shape undercuts
    """

    samples: int
    replicas: int
    rounds: int
    asked: Asked
    bound: float


@dataclass(frozen=True, slots=True, eq=False)
class _Size:
    """The tables of one size of micro-batches. sets: of variants; slowest: lower bound on the seconds of the slowest stage"""

    sets: tuple[tuple[int, ...], ...]
    tables: SetTables
    ahead: LeastAhead
    slowest: float

    def alone(self) -> _Size:
        """The tables of stages of one kind of device each."""
        kept = np.array([len(members) == 1 for members in self.sets])
        both = np.ix_(kept, kept)
        tables = self.tables._replace(
            **{name: getattr(self.tables, name)[kept] for name in ("seconds", "deepest", "shallowest", "need")},
            **{name: np.ascontiguousarray(getattr(self.tables, name)[:, *both]) for name in ("forward", "backward")},
        )
        return replace(self, sets=tuple(one for one in self.sets if len(one) == 1), tables=tables)


class _LabelSearch:
    """One search, with what it has found so far."""

    def __init__(self, space: Space, pipelines: int, below: float, of_each: bool) -> None:
        self.space, self.wanted, self.below, self.of_each = space, pipelines, below, of_each
        self.most_stages = min(space.layers, sum(space.devices))
        self.prices = price_ratios(space.variants, len(space.devices))
        self.sizes: dict[tuple[int, bool], _Size] = {}
        self.shapes: list[_Shape] = []
        self.work = self.opened = 0
        self.best: dict[MixedPipeline, float] = {}
        for samples in space.sizes:
            self._add(samples)

    def limit(self, shape: _Shape) -> float:
        """Seconds below which a pipeline of a shape is among those that are wanted."""
        ordered = sorted(
            seconds
            for one, seconds in self.best.items()
            if not self.of_each or self.space.rounds(one.samples, one.replicas) == shape.rounds
        )
        return min(self.below, ordered[self.wanted - 1] if len(ordered) >= self.wanted else np.inf)

    @property
    def found(self) -> FoundPipelines:
        """The result so far."""
        ordered = sorted(self.best.items(), key=lambda one: one[1])
        least = min((shape.bound for shape in self.shapes), default=np.inf)
        bound = min(least, ordered[0][1] if ordered else self.below)
        best = tuple((seconds, pipeline) for pipeline, seconds in ordered)
        rounds = {shape.rounds for shape in self.shapes if shape.bound < np.inf}
        rounds |= {self.space.rounds(one.samples, one.replicas) for one in self.best}
        return FoundPipelines(best, frozenset(rounds), bound, self.work, len(self.shapes), self.opened)

    def _add(self, samples: int) -> None:
        """Add the shapes of one size of micro-batches with their first bounds; those that cannot hold a pipeline are left out."""
        size = _size(self.space, samples, self.prices, self.most_stages)
        if size is None:
            return
        self.sizes[samples, False], self.sizes[samples, True] = size, size.alone()
        for replicas in self.space.replicas(samples):
            asked = self._asked(samples, replicas, size)
            label = np.zeros(NEED + len(self.prices))
            label[SLOWEST] = size.slowest
            bound = least_seconds(label, 0, self.space.layers, size.ahead, asked, np.inf)
            if bound < np.inf:
                self.shapes.append(_Shape(samples, replicas, self.space.rounds(samples, replicas), asked, bound))

    def _asked(self, samples: int, replicas: int, size: _Size) -> Asked:
        """The figures of a size of micro-batches and a number of replicas, for the kernels."""
        space, most = self.space, self.most_stages
        weights = [space.transfer_weights(max(1, stages)) for stages in range(most + 1)]
        return Asked(
            self.prices @ np.array(space.devices) / replicas,
            rounds_and_fill(space.rounds(samples, replicas))[0],
            np.array([space.in_flight(samples, replicas, ahead) for ahead in range(most + 1)]),
            size.slowest,
            np.array([first for first, _ in weights]),
            weights[-1][1],
            space.waiting,
            space.queued,
        )

    def open(self, shape: _Shape, width: int, alone: bool) -> bool:
        """Search one shape; True if a pipeline that is wanted was found.

        width: labels kept per first layer and set of variants; alone: only stages of one kind of device each; the shape's bound
        then stays
        """
        space, size, limit = self.space, self.sizes[shape.samples, alone], self.limit(shape)
        deepest, update = (of(shape.samples, shape.replicas) for of in (space.deepest, space.update))
        reduced, longer = space.synchronization(shape.samples, shape.replicas, size.sets)
        shared = space.shared(shape.replicas, size.sets)
        reduced[:, 1:, -1] = np.maximum(reduced[:, 1:, -1], shared.min(axis=0)[:, None])  # with any first stage
        longest, fitting = size.tables.seconds + longer, np.array([deepest[list(one)].min(axis=0) for one in size.sets])
        updated = np.array([update[list(one)].max(axis=0) for one in size.sets])
        tables = size.tables._replace(
            seconds=longest,
            deepest=fitting,
            shallowest=self._shallowest(size.sets, fitting, size.tables.seconds, longest, reduced, updated),
            update=updated,
            synchronization=reduced,
            shared=shared,
        )
        ends = Ends(*grown(tables, _apart(shared), size.ahead, shape.asked, limit, width, max(KEPT, self.wanted)))
        self.work += int(ends.work)
        self.opened += 1
        bound, known = float(ends.left_out), len(self.best)
        for number in np.argsort(ends.seconds, kind="stable").tolist():
            least = float(ends.seconds[number])
            if least == np.inf:
                break
            try:
                filled = {one: space.seconds(one) for one in self._filled(shape, size, ends, number)}
            except TooManyShares:
                filled = {}
            wanted = self.limit(shape)
            self.best.update({one: seconds for one, seconds in filled.items() if seconds < wanted})
            if min(filled.values(), default=np.inf) > least * (1.0 + EXACT):
                bound = min(bound, least)  # other shares may take less, or labels that it was preferred to
        else:
            bound = min(bound, float(ends.seconds.max()))
        if not alone:
            shape.bound = max(shape.bound, min(bound, limit))
        return len(self.best) > known

    def _shallowest(self, sets: Sequence[tuple[int, ...]], deepest: Integers, *seconds: Floats) -> Integers:
        """Fewest micro-batches in flight with which a set is of use, `SetTables.shallowest`: with fewer another set fits that
        differs in its recompute policy alone and takes no longer.
        """
        alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
        found = np.zeros_like(deepest)
        for number, members in enumerate(sets):
            replicas = tuple((self.space.variants[one].kind, self.space.variants[one].degree) for one in members)
            for other in alike.setdefault(replicas, []):
                no_slower = np.all([own[other] <= own[number] for own in seconds], axis=0)
                faster = np.all([own[number] <= own[other] for own in seconds], axis=0) & ~no_slower
                for one, two, preferred in ((other, number, no_slower), (number, other, faster)):
                    found[two] = np.where(preferred, np.maximum(found[two], deepest[one] + 1), found[two])
            alike[replicas].append(number)
        return found

    def _filled(self, shape: _Shape, size: _Size, ends: Ends, number: int) -> Iterator[MixedPipeline]:
        """Pipelines of search result `number`, with numbers of replicas per variant that the devices permit."""
        label, own = ends.last[number].tolist()
        stages, begins = [own], []
        while label > 0:
            label, begin, own = ends.labels[label].tolist()
            stages.append(own)
            begins.append(begin)
        chosen = [size.sets[own] for own in stages]
        space = self.space
        for counts in whole_counts(chosen, shape.replicas, space.variants, space.devices, self.prices):
            yield MixedPipeline(shape.samples, shape.replicas, (*begins, space.layers), counts)


def _size(space: Space, samples: int, prices: Floats, most_stages: int) -> _Size | None:
    """The tables of one size of micro-batches; None where no variant can be used."""
    stages = space.stages(samples)
    usable = np.isfinite(stages.seconds[:, 0, 1]) & (stages.deepest > 0).any(axis=(1, 2))
    sets = variant_sets(space.variants, usable)
    if not sets:
        return None
    seconds, deepest = (
        np.array([pick(one[list(members)], axis=0) for members in sets])
        for pick, one in ((np.max, stages.seconds), (np.min, stages.deepest))
    )
    forward = _between(stages.forward, sets)
    backward = forward if stages.backward is stages.forward else _between(stages.backward, sets)
    priced = np.array([prices[:, one.kind] * one.degree for one in space.variants])
    tables = SetTables(
        seconds,
        deepest,
        np.zeros_like(deepest),
        np.zeros((0, 0, 0)),
        np.zeros((0, 0, 0)),
        forward,
        backward,
        np.array([priced[list(members)].min(axis=0) for members in sets]),
        np.zeros((0, 0)),
    )
    first = np.arange(space.layers)
    slowest = float(stages.seconds[usable][:, first, first + 1].min(axis=0).max())
    fewest = [
        min(space.in_flight(samples, replicas, ahead) for replicas in space.replicas(samples))
        for ahead in range(min(DEPTH, most_stages) + 2)
    ]
    ahead = _least_ahead(space, stages, usable, priced[usable], slowest, np.array(fewest))
    return _Size(sets, tables, ahead, slowest)


def _between(transfers: Floats, sets: Sequence[Sequence[int]]) -> Floats:
    """Lower bounds on seconds of a transfer between replicas of two sets of variants, [layers + 1, sets, sets]: each replica on
    either side has the partner that suits it best.
    """
    least_of_second = np.stack([transfers[:, :, list(members)].min(axis=2) for members in sets], axis=2)
    least_of_first = np.stack([transfers[:, list(members)].min(axis=1) for members in sets], axis=1)
    one = np.stack([least_of_second[:, list(members)].max(axis=1) for members in sets], axis=1)
    two = np.stack([least_of_first[:, :, list(members)].max(axis=2) for members in sets], axis=2)
    return np.ascontiguousarray(np.maximum(one, two))


def _apart(shared: Floats) -> Floats:
    """Seconds by which `shared` is longer, at most, with one last stage than with another, [sets, sets]."""
    columns, number = np.unique(shared, axis=1, return_inverse=True)
    finite = np.isfinite(columns)
    known = np.where(finite, columns, 0.0)
    longer = [np.where(finite, one[:, None] - known, 0.0).max(axis=0) for one in columns.T]
    return np.maximum(longer, 0.0)[np.ix_(number.ravel(), number.ravel())]


def _least_ahead(
    space: Space, stages: StageVariants, usable: Flags, need: Floats, slowest: float, in_flight: Integers
) -> LeastAhead:
    """Lower bounds on the stages in front of a cut; slowest: least level; in_flight: fewest micro-batches in flight, by stages
    behind
    """
    both = np.ix_(np.arange(space.layers + 1), usable, usable)
    forth, back = stages.forward[both].min(axis=2).T, stages.backward[both].min(axis=1).T
    seconds, deepest = stages.seconds[usable], stages.deepest[usable]
    transfers = forth[:, None, :] + back[:, :, None]
    total, held = seconds + transfers, seconds + space.waiting * transfers
    levels = np.geomspace(slowest, held[np.isfinite(held)].max(), LEVELS)
    price, worth = _worths(seconds[:, 0, -1], need)
    needs = least_needs(held, deepest, need, levels, in_flight)
    sums = least_sums(total, deepest, need, price, worth, in_flight)
    return LeastAhead(levels, needs, sums, price, worth)


def _worths(seconds: Floats, need: Floats) -> tuple[Integers, Floats]:
    """Prices and worths for bounds: index of a price of devices, and what a unit of that cost is worth in seconds, both [worths].

    They are exchange rates between variants that take `seconds` for the whole network, for pipelines of several numbers of
    stages; any worth gives a bound, the best of them the best.
    """
    pairs = [(0, 0.0)]
    for price, needed in enumerate(need.T):
        fewer, saved = needed[:, None] - needed, seconds - seconds[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = np.unique((saved / fewer)[(fewer > 0) & (saved > 0) & (needed > 0)])
        if len(rates):
            middle = np.quantile(rates, WORTHS)
            pairs += [(price, rate / stages) for stages in STAGES for rate in middle.tolist()]
    return np.array([price for price, _ in pairs]), np.array([worth for _, worth in pairs])
