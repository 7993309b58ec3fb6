"""Search of mixed pipelines: whole spaces listed by hand, bounds, shares of replicas, work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from hardware_profiles import Floats, Integers
from planners.mixed import label_kernels, label_search
from planners.mixed.label_search import search
from planners.mixed.space import MixedPipeline, StageVariants, Variant, price_ratios, variant_sets
from planners.mixed.whole_counts import TooManyShares, whole_counts
from tests.records import Recorded

LAYERS, BATCH = 3, 8


@dataclass(frozen=True)
class DrawnSpace:
    """Seconds and memory drawn at random; transfers depend on the cut alone, so that every share of replicas has them.

    policies: of each of which a stage takes 1.3 times as long as of the last, and keeps 0.6 times as much
    """

    seed: int
    devices: tuple[int, ...]
    waiting: float
    layers: int = LAYERS
    sizes: tuple[int, ...] = (1, 2)
    memory: float = 9.0
    policies: int = 1
    queued: float = 0.5

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """Two degrees of each kind."""
        return tuple(Variant(*one) for one in product(range(len(self.devices)), (1, 2), range(self.policies)))

    def replicas(self, samples: int) -> Sequence[int]:
        """One or two."""
        return (1, 2)

    def rounds(self, samples: int, replicas: int) -> int:
        """Whole micro-batches."""
        return -(-BATCH // (samples * replicas))

    def transfer_weights(self, stages: int) -> tuple[float, float]:
        """The ends count otherwise than the middle."""
        return (1.0 if stages < 3 else 2.0), 1.5

    def in_flight(self, samples: int, replicas: int, ahead: int) -> int:
        """One for each stage behind."""
        return ahead

    @cache  # noqa: B019 - a space lives as long as its test
    def stages(self, samples: int) -> StageVariants:
        """Sums of layers, each with seconds and bytes of its own."""
        rng = np.random.default_rng([self.seed, samples])
        count, again = len(self.variants), np.array([one.policy for one in self.variants])
        shape = count, LAYERS + 1, LAYERS + 1
        seconds, stash, deepest = np.full(shape, np.inf), np.ones(shape), np.zeros(shape, dtype=np.int64)
        layers, kept = (
            rng.uniform(1, 3, (2, count // self.policies, LAYERS)).repeat(self.policies, axis=1),
            rng.uniform(1, 2, LAYERS),
        )
        for begin, end in combinations(range(LAYERS + 1), 2):
            seconds[:, begin, end] = layers[0, :, begin:end].sum(axis=1) * samples * 1.3**again
            stash[:, begin, end] = kept[begin:end].sum() * 0.6**again
            deepest[:, begin, end] = self.memory / stash[:, begin, end]
        cuts = np.concatenate([[0.0], rng.uniform(0, 1, LAYERS - 1), [0.0]])
        across = np.broadcast_to(cuts[:, None, None], (LAYERS + 1, count, count))
        return StageVariants(seconds, deepest, across, 2 * across)

    def deepest(self, samples: int, replicas: int) -> Integers:
        """More replicas hold more."""
        return self.stages(samples).deepest - (replicas == 1)

    def update(self, samples: int, replicas: int) -> Floats:
        """By variant; replicas divide it."""
        rng, count = np.random.default_rng([self.seed, samples, 1]), len(self.variants) // self.policies
        of_each = rng.uniform(0, 1, count).repeat(self.policies) / replicas
        return np.broadcast_to(of_each[:, None, None], (len(of_each), LAYERS + 1, LAYERS + 1))

    def shared(self, replicas: int, sets: Sequence[Sequence[int]]) -> Floats:
        """The most of two variants, whatever their policies."""
        count = len(self.variants) // self.policies
        drawn = np.random.default_rng([self.seed, 2]).uniform(0, 4 * replicas, (count, count))
        held = [np.array(members) // self.policies for members in sets]
        return np.array([[drawn[np.ix_(one, other)].max() for other in held] for one in held])

    def synchronization(self, samples: int, replicas: int, sets: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """By layers, and the smallest degree; a tenth of it in every micro-batch, too."""
        width = np.arange(LAYERS + 1)
        layers = np.maximum(width[None, :] - width[:, None], 0) * (replicas - 1.0)
        found = np.array([layers / min(self.variants[one].degree for one in members) for members in sets])
        return found, found / 10

    def seconds(self, pipeline: MixedPipeline) -> float:
        """The formula, stage by stage."""
        stages, last = self.stages(pipeline.samples), len(pipeline.ends) - 1
        own, slowest, reduced, updates = [], [], [], []
        of_update = self.update(pipeline.samples, pipeline.replicas)
        for stage, (begin, end) in enumerate(pairwise((0, *pipeline.ends))):
            used = sorted(set(pipeline.held(stage)))
            first, after = self.transfer_weights(last + 1)
            forth = (first if stage == 0 else 1.0) * stages.forward[end, 0, 0] if stage < last else 0.0
            back = (after if stage == last else 1.0) * stages.backward[begin, 0, 0] if stage else 0.0
            exposed, longer = (one[0, begin, end] for one in self.synchronization(1, pipeline.replicas, [used]))
            seconds = max(stages.seconds[one, begin, end] for one in used) + longer
            own.append(seconds + forth + back)
            slowest.append(seconds + self.waiting * (forth + back))
            reduced.append(exposed)
            updates.append(max(of_update[one, begin, end] for one in used))
        if last:
            ends = [sorted(set(pipeline.held(stage))) for stage in (0, last)]
            pair = reduced[0], self.shared(pipeline.replicas, ends)[0, 1]
            reduced[0] = max(pair) + self.queued * min(pair)
        rounds = self.rounds(pipeline.samples, pipeline.replicas)
        return float((rounds - 1) * max(slowest) + sum(own) + max(reduced) + max(updates))


def every_pipeline(space: DrawnSpace) -> Iterator[MixedPipeline]:
    """All pipelines that fit."""
    usable = np.ones(len(space.variants), dtype=bool)
    for samples, replicas in product(space.sizes, space.replicas(1)):
        deepest = space.deepest(samples, replicas)
        shares = {
            tuple(counts)
            for members in variant_sets(space.variants, usable)
            for given in product(range(replicas + 1), repeat=len(members))
            if sum(given) == replicas
            for counts in [np.bincount(members, given, len(usable)).astype(int).tolist()]
        }
        for cuts in (cuts for count in range(LAYERS) for cuts in combinations(range(1, LAYERS), count)):
            ends = (*cuts, LAYERS)
            ahead = range(len(ends), 0, -1)
            fitting = [
                [one for one in shares if all(deepest[v, b, e] >= flight for v in np.flatnonzero(one))]
                for (b, e), flight in zip(pairwise((0, *ends)), ahead, strict=True)
            ]
            for counts in product(*fitting):
                total = np.sum(counts, axis=0)
                used = [
                    sum(n * v.degree for n, v in zip(total, space.variants, strict=True) if v.kind == kind)
                    for kind in range(len(space.devices))
                ]
                if all(one <= most for one, most in zip(used, space.devices, strict=True)):
                    yield MixedPipeline(samples, replicas, ends, counts)


@pytest.mark.parametrize(
    ("seed", "devices", "waiting", "memory"),
    [
        (1, (2, 3), 1.0, 9.0),
        (2, (3, 3), 0.0, 9.0),
        (3, (1, 2, 1), 0.5, 9.0),
        (5, (3, 1), 0.5, 2.0),
        pytest.param(4, (2, 1), 0.5, 3.0, marks=pytest.mark.slow),
    ],
)
def test_the_best_of_all_pipelines(seed: int, devices: tuple[int, ...], waiting: float, memory: float) -> None:
    """Of every pipeline of a small space none is faster than the answer, which is proven; where memory is tight, of those that
    run again what they do not keep, too."""
    space = DrawnSpace(seed, devices, waiting, memory=memory, policies=1 if memory > 5 else 3)
    found = search(space, 1e6)
    seconds, pipeline = found.pipelines[0]
    every = {one: space.seconds(one) for one in every_pipeline(space)}
    assert seconds == pytest.approx(min(every.values()), rel=1e-12)
    assert pipeline in every
    assert found.proven
    assert found.bound == pytest.approx(seconds)


@pytest.mark.parametrize(("seed", "devices", "memory", "policies"), [(1, (2, 3), 9.0, 1), (5, (3, 1), 2.0, 3)])
def test_the_best_of_each_number_of_micro_batches(
    seed: int, devices: tuple[int, ...], memory: float, policies: int
) -> None:
    """Where one of each is wanted it is there, and which numbers have any is told; else some are ruled out by the best."""
    space = DrawnSpace(seed, devices, 0.5, memory=memory, policies=policies)

    def best_of_each(pipelines: Iterable[MixedPipeline]) -> dict[int, float]:
        found: dict[int, float] = {}
        for one in pipelines:
            rounds = space.rounds(one.samples, one.replicas)
            found[rounds] = min(found.get(rounds, np.inf), space.seconds(one))
        return found

    every = best_of_each(every_pipeline(space))
    alone, each = search(space, 1e6), search(space, 1e6, of_each=True)
    assert best_of_each(one for _, one in each.pipelines) == pytest.approx(every)
    assert each.rounds == every.keys() == {2, 4, 8}
    assert each.proven
    assert len(best_of_each(one for _, one in alone.pipelines)) < 3


@pytest.mark.parametrize(("seed", "memory"), [(1, 5.5), (2, 7.0), pytest.param(4, 9.0, marks=pytest.mark.slow)])
def test_all_that_is_found_fits(seed: int, memory: float) -> None:
    """More pipelines are asked for than there are: each is one of those that fit, with its seconds, and the best is there."""
    space = DrawnSpace(seed, (2, 1), 0.5, memory=memory)
    every = {one: space.seconds(one) for one in every_pipeline(space)}
    found = search(space, np.inf, 500).pipelines
    assert [seconds for seconds, _ in found] == sorted(every[one] for _, one in found)
    assert found[0][0] == pytest.approx(min(every.values()))


def test_bounds_hold_before_the_end(recorded: Recorded) -> None:
    """However little work is permitted, the bound is below the best pipeline of the space; the same work has the same answer.

    Recorded is how near it is, and the work until it is the best.
    """
    space = DrawnSpace(4, (3, 4), waiting=1.0)
    whole, bounds = search(space, 1e6), []
    best = whole.pipelines[0][0]
    for work in (1, 300, 3000):
        found = search(space, work)
        assert found == search(space, work)
        bounds.append(found.bound)
        assert found.bound <= best * (1 + 1e-12) <= found.pipelines[0][0] * (1 + 1e-9)
    assert bounds == sorted(bounds)
    recorded(work=whole.work, bounds=[bound / best for bound in bounds])


@pytest.mark.parametrize("labels", [2, 5, pytest.param(20, marks=pytest.mark.slow)])
def test_bounds_hold_where_labels_run_out(labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out because no further label may be kept is no faster than the bound; in plain Python, with so few labels."""
    for name in ("_in_front", "_keep", "least_seconds", "_no_slower", "both_reduced"):
        monkeypatch.setattr(label_kernels, name, getattr(label_kernels, name).py_func)
    monkeypatch.setattr(label_kernels, "MOST_LABELS", labels)
    monkeypatch.setattr(label_search, "grown", label_kernels.grown.py_func)
    for seed in (6, 7, 8):
        space = DrawnSpace(seed, (2, 3), waiting=1.0)
        best = min(map(space.seconds, every_pipeline(space)))
        found = search(space, 3000)
        assert found.bound <= best * (1 + 1e-12)
        assert not found.proven or found.pipelines[0][0] == pytest.approx(best)


@dataclass(frozen=True)
class ThreeDegrees(DrawnSpace):
    """Four layers on groups of one to three devices of two kinds; seconds of each layer by degree, of both kinds alike but for
    the first layer, which the first kind alone runs, and the last one, which the other runs alone in groups of one.
    """

    layers: int = 4
    sizes: tuple[int, ...] = (1,)
    variants: tuple[Variant, ...] = tuple(Variant(kind, degree) for kind in (0, 1) for degree in (1, 2, 3))

    @cache  # noqa: B019 - a space lives as long as its test
    def stages(self, samples: int) -> StageVariants:
        """Nothing but seconds."""
        never = 100.0
        pairs, threes = [never, 5.0, 9.0, 9.0], [never, never, 8.0, never]
        seconds = np.array(
            [[1.0, never, never, never], pairs, threes, [never, never, never, 10.0], pairs, threes],
        )
        begin, end = np.indices((5, 5))
        sums = np.concatenate([np.zeros((6, 1)), np.cumsum(seconds, axis=1)], axis=1)
        table = np.where(begin < end, sums[:, None, :] - sums[:, :, None], np.inf)
        still = np.zeros((5, 6, 6))
        return StageVariants(table, np.full((6, 5, 5), 9), still, still)

    def shared(self, replicas: int, sets: Sequence[Sequence[int]]) -> Floats:
        """Takes no time."""
        return np.zeros((len(sets), len(sets)))

    def update(self, samples: int, replicas: int) -> Floats:
        """Takes no time."""
        return np.zeros((6, 5, 5))

    def synchronization(self, samples: int, replicas: int, sets: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
        """Takes no time, either."""
        return np.zeros((len(sets), 5, 5)), np.zeros((len(sets), 5, 5))


def test_what_cannot_be_shared_out_proves_nothing() -> None:
    """Seven devices of each kind: pairs behind pairs behind pairs would be best, but one device of each kind is left over.

    A pipeline that needs no less fills both kinds; as pairs were preferred to it unseen, nothing is known below what they take.
    """
    space = ThreeDegrees(0, (7, 7), waiting=0.0)
    rounds = 4
    best = MixedPipeline(
        1, 2, (1, 2, 3, 4), ((2, 0, 0, 0, 0, 0), (0, 1, 0, 0, 1, 0), (0, 0, 1, 0, 0, 1), (0, 0, 0, 2, 0, 0))
    )
    assert space.seconds(best) == (rounds - 1) * 10 + 24
    found = search(space, 1e6)
    assert found.bound <= space.seconds(best)
    assert not found.proven


def test_no_pipeline_fits() -> None:
    """Where no stage holds its layers the search proves that there is none."""
    found = search(DrawnSpace(5, (0, 0), waiting=1.0), 1e6)
    assert (found.pipelines, found.bound, found.proven) == ((), np.inf, True)


def test_shares_by_hand() -> None:
    """Three replicas of two stages on 4 devices of one kind and 4 of the other: pairs of these fill what is left."""
    variants = Variant(0, 1), Variant(1, 2)
    prices = price_ratios(variants, 2)
    both = (0, 1), (0, 1)
    assert list(whole_counts(both, 3, variants, (4, 4), prices)) == [((3, 0), (1, 2)), ((1, 2), (3, 0))]
    assert (
        list(whole_counts(both, 3, variants, (3, 5), prices)) == []
    )  # five devices are two pairs: five replicas of six
    assert list(whole_counts([(0,), (1,)], 2, variants, (2, 4), prices)) == [((2, 0), (0, 2))] * 2


def test_shares_that_take_too_long_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many shares of stages as may be tried: here four are, two for each order."""
    variants, both = (Variant(0, 1), Variant(1, 2)), ((0, 1), (0, 1))
    asked = both, 3, variants, (4, 4), price_ratios(variants, 2)
    monkeypatch.setattr("planners.mixed.whole_counts.MOST_STEPS", 2)
    assert len(list(whole_counts(*asked))) == 2
    monkeypatch.setattr("planners.mixed.whole_counts.MOST_STEPS", 1)
    with pytest.raises(TooManyShares):
        list(whole_counts(*asked))


def test_prices_by_hand() -> None:
    """Each kind alone, and every ratio of degrees of two kinds."""
    variants = Variant(0, 1), Variant(0, 2), Variant(1, 1)
    assert price_ratios(variants, 2).tolist() == [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]


def test_worths_by_hand() -> None:
    """Two devices more save 6 s: each is worth 3 s, in a pipeline of n stages 3/n; of the kind that both need alike nothing."""
    price, worth = label_search._worths(np.array([10.0, 4.0]), np.array([[1.0, 2.0], [3.0, 2.0]]))
    assert not price.any()
    assert sorted(set(worth.tolist())) == sorted({0.0, *(3.0 / stages for stages in label_search.STAGES)})


def test_transfers_of_sets_and_of_what_is_in_front() -> None:
    """Of random seconds between variants: between sets each replica has its best partner, and the slowest replica counts; a stage
    in front of a cut sends forward and back to whom it takes least, and some stage is as slow as the slowest layer."""
    rng = np.random.default_rng(4)
    space = DrawnSpace(4, (3, 4), waiting=0.5)
    variants, cuts = len(space.variants), LAYERS + 1
    drawn = [rng.uniform(0, 1, (cuts, variants, variants)) for _ in range(2)]
    stages = space.stages(1)._replace(forward=drawn[0], backward=drawn[1])
    sets = [(0,), (1, 2), (0, 2, 3)]
    found = label_search._between(drawn[0], sets)
    for cut, (one, front), (two, behind) in product(range(cuts), enumerate(sets), enumerate(sets)):
        across = drawn[0][cut]
        ways = [min(across[a, b] for b in behind) for a in front] + [min(across[a, b] for a in front) for b in behind]
        assert found[cut, one, two] == max(ways)
    usable = np.array([True, True, False, True])
    kept, need, in_flight = np.flatnonzero(usable), rng.uniform(1, 2, (3, 2)), np.array([0, 1, 2, 3])
    seconds, held = np.full((2, 3, cuts, cuts), np.inf)
    for (place, one), (begin, end) in product(enumerate(kept), combinations(range(cuts), 2)):
        sent = min(drawn[0][end, one, other] for other in kept) + min(drawn[1][begin, other, one] for other in kept)
        seconds[place, begin, end] = stages.seconds[one, begin, end] + sent
        held[place, begin, end] = stages.seconds[one, begin, end] + 0.5 * sent
    ahead = label_search._least_ahead(space, stages, usable, need, 1.25, in_flight)
    deepest = stages.deepest[usable]
    assert ahead.levels[[0, -1]] == pytest.approx([1.25, held[np.isfinite(held)].max()])
    assert ahead.levels[1:] / ahead.levels[:-1] == pytest.approx(ahead.levels[1] / ahead.levels[0])
    needs = label_kernels.least_needs(held, deepest, need, ahead.levels, in_flight)
    sums = label_kernels.least_sums(seconds, deepest, need, ahead.price, ahead.worth, in_flight)
    assert ahead.needs == pytest.approx(needs)
    assert ahead.sums == pytest.approx(sums)
