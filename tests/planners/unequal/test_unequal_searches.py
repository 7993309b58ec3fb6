"""Searches: the exact method against exhaustive search, the order of the searches, bounds, seeds and interrupts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.umpipe.genetic_variants import DistinctSurvivors, SingleChromosome
from experiments.unequal_sizes.evaluators import POPULATION_EVALUATORS
from experiments.unequal_sizes.random_tables import FAMILIES, random_problem
from hardware_profiles import Floats, Integers
from planners.unequal import (
    RECOMPUTATION,
    Compiled,
    Genetic,
    UnequalProblem,
    best_equal,
    exact_sizes,
    greedy_dp,
    local_greedy,
    powers_of_two,
    sweep,
)
from planners.unequal.exact import _decisions
from planners.unequal.genetic import Population
from planners.unequal.greedy import greedy_chain
from planners.unequal.planners import SEARCHES
from planners.unequal.profiles import Front, lower_bound, origin
from planners.unequal.sweep import Known
from tests.unequal import makespan, problem_from_callables


def small_problem(seed: int, family: str, recomputation: str) -> UnequalProblem:
    """1-4 stages, up to 12 samples, up to 4 candidates."""
    rng = np.random.default_rng(seed)
    stages, samples = int(rng.integers(1, 5)), int(rng.integers(1, 13))
    candidates = tuple(rng.integers(1, samples + 1, 4).tolist())
    return random_problem(rng, family, stages, samples, candidates, recomputation)


def textbook_bound(problem: UnequalProblem) -> float:
    """Max over stages of (fastest fill + least total time of the stage + fastest drain), both passes."""
    total = 0.0
    for chain in (problem.forward_chain, problem.backward_chain):
        # the last block may be a remainder: any size in fill and drain
        stages, links = np.split(chain.durations[: 2 * chain.stages], 2)
        fastest = stages[:, 1:].min(axis=1), links[:, 1:].min(axis=1)
        passing = [float(one + other) for one, other in zip(*fastest, strict=True)]
        least = []
        for row in stages:
            times = []
            for size in problem.candidates:
                whole, rest = divmod(chain.samples, size)
                times.append(whole * row[size] + row[rest])
            least.append(min(times))
        total += max(
            sum(passing[:stage]) + work + fastest[1][stage] + sum(passing[stage + 1 :])
            for stage, work in enumerate(least)
        )
    return total


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    family=st.sampled_from(sorted(FAMILIES)),
    recomputation=st.sampled_from(RECOMPUTATION[:2]),
)
def test_exact_is_exhaustive_search(seed: int, family: str, recomputation: str) -> None:
    """No size vector is better, to the last bit, and the plan says that it is proven."""
    problem = small_problem(seed, family, recomputation)
    vectors = np.array(list(itertools.product(problem.candidates, repeat=problem.stages)))
    evaluate = Compiled(problem)
    best = evaluate.forward_population(vectors).min() + evaluate.backward_population(vectors).min()
    plan = exact_sizes(problem)
    assert plan.makespan_seconds == plan.lower_bound_seconds == best
    assert plan.proven_optimal
    assert makespan(problem, plan.forward_sizes, plan.backward_sizes) == best
    assert textbook_bound(problem) <= lower_bound(problem) * (1 + 1e-12)
    assert lower_bound(problem) <= best


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    family=st.sampled_from(sorted(FAMILIES)),
)
def test_the_order_of_the_searches(seed: int, family: str) -> None:
    """Exact <= TiDGAP (seeded) <= greedy DP; exact and both genetic searches <= best equal size; bound <= exact."""
    rng = np.random.default_rng(seed)
    stages, samples = int(rng.integers(1, 9)), int(rng.choice([8, 24, 64]))
    problem = random_problem(rng, family, stages, samples, powers_of_two(samples))
    exact = exact_sizes(problem).makespan_seconds
    search = Genetic(seeded=True, individuals=30, generations=10)
    seeded = search(problem, np.random.default_rng(seed)).makespan_seconds
    unseeded = Genetic(individuals=30, generations=5)(problem, rng).makespan_seconds
    equal = best_equal(problem).makespan_seconds
    assert lower_bound(problem) <= exact <= seeded <= min(greedy_dp(problem).makespan_seconds, equal)
    assert exact <= unseeded <= equal
    assert exact <= local_greedy(problem).makespan_seconds


def test_memory_caps_hold_in_every_search() -> None:
    """Stage 1 may not exceed 2 backward; nobody does, and the cap costs time."""
    rng = np.random.default_rng(2)
    free = random_problem(rng, "affine", 4, 32, powers_of_two(32))
    capped = random_problem(np.random.default_rng(2), "affine", 4, 32, powers_of_two(32))
    capped = UnequalProblem(
        32, capped.forward, capped.backward, capped.forward_link, capped.backward_link, capped.candidates,
        backward_caps=(32, 2, 32, 32),
    )  # fmt: skip
    searches = (
        exact_sizes,
        greedy_dp,
        local_greedy,
        best_equal,
        lambda p: Genetic(seeded=True)(p, np.random.default_rng(0)),
    )
    for search in searches:
        plan = search(capped)
        assert plan.backward_sizes[1] <= 2
    assert exact_sizes(capped).makespan_seconds > exact_sizes(free).makespan_seconds


def test_the_best_equal_size_by_hand() -> None:
    """K = 3 stages of 1 + b seconds, B = 4: (M + 2)(1 + b) is 12 for b = 1, 12 for 2, 15 for 4."""
    times = [lambda b: 1.0 + b] * 3
    plan = best_equal(problem_from_callables(4, times, times))
    assert plan.makespan_seconds == 24.0
    assert plan.forward_sizes == plan.backward_sizes == (1, 1, 1)


def test_local_greedy_by_hand() -> None:
    """(ceil(B / b) + K - 1) t: for 1 + b seconds, B = 4, K = 2 that is 10, 9, 10 for b = 1, 2, 4."""
    times = [lambda b: 1.0 + b] * 2
    assert local_greedy(problem_from_callables(4, times, times, candidates=(1, 2, 4))).forward_sizes == (2, 2)


def test_large_blocks_suit_weight_bound_stages() -> None:
    """Two stages of 1 s per sample, then one of 6 s for any block: (1, 1, 4) takes 1 + 4 + 6, four samples each.

    Equal sizes: 1 takes 2 + 4 x 6 = 26, 2 takes 2 + 2 + 2 x 6 = 16, 4 takes 4 + 4 + 6 = 14.
    """
    problem = problem_from_callables(4, [float, float, lambda b: 6.0], [lambda b: 0.0] * 3)
    plan = exact_sizes(problem)
    assert plan.makespan_seconds == 11.0
    assert plan.forward_sizes == (1, 1, 4)
    assert best_equal(problem).makespan_seconds == 14.0


def test_truncated_exact_says_so() -> None:
    """With room for one profile a stage the answer is no proof, and its bound is still a bound."""
    unproven = 0
    for seed in range(6):
        problem = random_problem(np.random.default_rng(seed), "affine", 8, 64, tuple(range(1, 65)))
        full, narrow = exact_sizes(problem), exact_sizes(problem, max_profiles=1)
        assert full.proven_optimal
        assert narrow.lower_bound_seconds <= full.makespan_seconds <= narrow.makespan_seconds
        assert narrow.proven_optimal == (narrow.lower_bound_seconds == narrow.makespan_seconds)
        unproven += not narrow.proven_optimal
    assert unproven


@pytest.mark.parametrize("seed", [0, 10])
def test_room_for_few_profiles_loses_none(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer with room for two profiles' extensions, cleared and doubled again and again, holds the same in the end."""
    problem = random_problem(np.random.default_rng(seed), "roofline", 8, 24, tuple(range(1, 25)))
    roomy = exact_sizes(problem)
    rooms: list[int] = []
    room = Front.room
    monkeypatch.setattr(sweep, "ROWS", 1)
    monkeypatch.setattr(Front, "room", lambda front, rows: rooms.append(rows) or room(front, rows))
    assert replace(exact_sizes(problem), seconds=0.0) == replace(roomy, seconds=0.0)
    assert sorted({*rooms})[:2] == [24, 2 * 24]  # of the greedy programme, of the sweeps at first
    assert max(rooms) > 2 * 24


@pytest.mark.parametrize("recomputation", RECOMPUTATION)
@pytest.mark.parametrize("kind", [Genetic, SingleChromosome])
def test_the_same_search_on_every_evaluator(recomputation: str, kind: type[Genetic]) -> None:
    """DGAP and TiDGAP differ in speed only: one seed, one plan, one history."""
    problem = random_problem(
        np.random.default_rng(4), "roofline", 4, 16, powers_of_two(16), recomputation=recomputation
    )
    plans = [
        kind(build, individuals=10, generations=4)(problem, np.random.default_rng(9))
        for build in POPULATION_EVALUATORS.values()
    ]
    assert len({(p.forward_sizes, p.backward_sizes, p.makespan_seconds, p.history) for p in plans}) == 1
    assert makespan(problem, plans[0].forward_sizes, plans[0].backward_sizes) == plans[0].makespan_seconds
    if kind is SingleChromosome:
        assert plans[0].forward_sizes == plans[0].backward_sizes


def test_history_never_rises() -> None:
    """Elites survive: the best so far falls or stays, over evaluations that rise by the population."""
    problem = random_problem(np.random.default_rng(1), "uniform", 8, 64, powers_of_two(64))
    plan = Genetic()(problem, np.random.default_rng(0))
    best = [value for _, value in plan.history]
    assert best == sorted(best, reverse=True)
    assert [count for count, _ in plan.history] == [200 * (i + 1) for i in range(len(best))]
    assert len(plan.history_seconds) == len(plan.history)


def test_an_interrupt_returns_the_best_so_far() -> None:
    """Ctrl-C in the third generation: the plan is the best of the first three, marked as interrupted."""
    problem = random_problem(np.random.default_rng(1), "uniform", 8, 64, powers_of_two(64))
    calls: list[float] = []

    def progress(evaluations: int, best: float) -> None:
        calls.append(best)
        if len(calls) == 3:
            raise KeyboardInterrupt

    plan = Genetic(individuals=20)(problem, np.random.default_rng(0), progress)
    assert plan.interrupted
    assert plan.makespan_seconds == calls[-1]


def test_the_exact_method_tells_the_seconds_of_both_passes() -> None:
    """What is announced is the best known of both passes together; it never rises, and ends with what both searches found."""
    problem = random_problem(np.random.default_rng(1), "affine", 8, 64, tuple(range(1, 65)))
    told: list[tuple[int, float]] = []
    plan = exact_sizes(problem, progress=lambda evaluations, seconds: told.append((evaluations, seconds)))
    (_, first), *searched = told
    assert first == np.inf  # before anything is known
    counts, seconds = [count for count, _ in searched], [value for _, value in searched]
    assert counts == sorted(counts)
    assert counts[-1] == plan.evaluations
    assert seconds == sorted(seconds, reverse=True)
    assert {*seconds} <= {value for _, value in plan.history}
    assert seconds[0] == plan.history[0][1] > plan.makespan_seconds


def test_the_exact_method_is_interrupted_cleanly() -> None:
    """Ctrl-C after the second stage: a plan no worse than the greedy one, not called optimal, with a true bound."""
    problem = random_problem(np.random.default_rng(1), "affine", 8, 64, tuple(range(1, 65)))
    calls: list[int] = []

    def progress(evaluations: int, best: float) -> None:
        calls.append(evaluations)
        if len(calls) == 2:
            raise KeyboardInterrupt

    plan, full = exact_sizes(problem, progress=progress), exact_sizes(problem)
    assert plan.interrupted
    assert not plan.proven_optimal
    assert plan.lower_bound_seconds <= full.makespan_seconds <= plan.makespan_seconds
    assert plan.makespan_seconds <= greedy_dp(problem).makespan_seconds
    assert makespan(problem, plan.forward_sizes, plan.backward_sizes) == plan.makespan_seconds
    assert full.history[-1][1] == full.makespan_seconds < full.history[0][1]


def test_the_least_settings_of_a_genetic_search() -> None:
    """Two individuals, no elite and no generation are enough: the best of the first population; one less of any is refused."""
    problem = problem_from_callables(2, [float], [float], candidates=(1, 2))
    least = Genetic(individuals=2, elites=0, generations=0)
    plan = least(problem, np.random.default_rng(0))
    assert (plan.makespan_seconds, plan.evaluations) == (4.0, 2)
    for wrong, got in (
        ({"individuals": 1}, "1 individuals, 0 elites, 0 generations"),
        ({"elites": -1}, "2 individuals, -1 elites, 0 generations"),
        ({"elites": 2}, "2 individuals, 2 elites, 0 generations"),
        ({"generations": -1}, "2 individuals, 0 elites, -1 generations"),
    ):
        with pytest.raises(ValueError, match=f"2 or more individuals, fewer elites and generations >= 0, not {got}$"):
            replace(least, **wrong)  # type: ignore[arg-type]
    assert replace(least, elites=1).elites == 1


def test_evaluations_are_those_of_both_passes() -> None:
    """One stage, sizes 1 and 2: a pass takes two extensions, the greedy vector and two equal ones, and meets the bound.

    They are announced before they are made.
    """
    problem = problem_from_callables(2, [lambda size: 1.0 + size], [lambda size: 2.0 + size], candidates=(1, 2))
    announced: list[int] = []
    plan = exact_sizes(problem, progress=lambda evaluations, seconds: announced.append(evaluations))
    assert plan.proven_optimal
    assert (plan.evaluations, plan.makespan_seconds) == (10, 3.0 + 4.0)
    assert announced == [10]


@pytest.mark.parametrize(("recomputation", "pairs"), [("none", 0), ("where-differs", 3)])
def test_evaluations_of_the_greedy_searches_by_hand(recomputation: str, pairs: int) -> None:
    """Two stages of three sizes: 3 + 3 x 3 extensions a pass, then each pass's sizes alone and for both where passes depend.

    Equal sizes: three, one for both passes. Alone a stage takes none but the vector itself. What is announced before is no
    less, and just that where the passes depend.
    """
    times = [lambda size: 1.0 + size] * 2
    problem = problem_from_callables(4, times, times, candidates=(1, 2, 4), recomputation=recomputation)
    told: list[int] = []

    def progress(evaluations: int, seconds: float) -> None:
        told.append(evaluations)

    greedy = greedy_dp(problem, progress)
    assert greedy.evaluations == greedy.history[0][0] == 2 * (3 + 3 * 3) + pairs
    assert told == [2 * (3 + 3 * 3) + 3]
    told.clear()
    assert [best_equal(problem, progress).evaluations] == told == [3]
    assert local_greedy(problem).evaluations == 1


def test_the_genetic_searches_have_the_settings_of_the_reference() -> None:
    """200 individuals, 100 generations, crossover 0.9, 4 elites; TiDGAP starts from the greedy sizes."""
    tidgap, dgap = SEARCHES["tidgap"], SEARCHES["dgap"]
    assert isinstance(tidgap, Genetic)
    assert isinstance(dgap, Genetic)
    assert (tidgap.seeded, dgap.seeded) == (True, False)
    for search in (tidgap, dgap):
        assert (search.individuals, search.generations, search.crossover, search.elites) == (200, 100, 0.9, 4)


def _plain_part(genes: int, sizes: int) -> Population:
    """A part of so many genes, all of the same sizes; the fitness is the sum of the sizes."""
    return Population(
        np.arange(1, sizes + 1), np.full(genes, sizes), lambda chosen: chosen.sum(axis=1).astype(float), []
    )


def test_mutations_are_of_three_kinds_in_the_shares_of_the_reference() -> None:
    """Of a tenth of the genes 30 % to any size, 40 % to the next, 30 % to a neighbouring stage's (at an end half to its own)."""
    before = np.tile([1000, 2000, 3000], (20_000, 1))
    after = _plain_part(3, 4000)._mutated(np.random.default_rng(0), before, rate=0.1)
    expected = 0.1 * np.array([0.4, 0.4, 0.4])
    assert (abs(after - before) == 1).mean(axis=0) == pytest.approx(expected, abs=0.005)
    copied = [[np.mean(after[:, gene] == before[0, source]) for source in range(3)] for gene in range(3)]
    own = [0.9 + 0.1 * 0.15, 0.9, 0.9 + 0.1 * 0.15]
    assert np.diag(copied) == pytest.approx(own, abs=0.007)
    neighbours = copied[0][1], copied[1][0], copied[1][2], copied[2][1]
    assert neighbours == pytest.approx([0.1 * 0.15] * 4, abs=0.003)
    anywhere = after[~np.isin(after, [one + side for one in before[0] for side in (-1, 0, 1)])]
    assert len(anywhere) / after.size == pytest.approx(0.1 * 0.3, abs=0.003)
    assert anywhere.min() < 40 < 3960 < anywhere.max()


@pytest.mark.parametrize("probability", [0.0, 0.9, 1.0])
def test_neighbours_exchange_the_genes_between_two_cuts(probability: float) -> None:
    """Of two parents, one all 0 and one all 1, the children are complements, with one run exchanged; a last one alone stays.

    Of the cuts in 0..4 a fifth are equal, and then nothing is exchanged.
    """
    parents = np.tile([[0] * 4, [1] * 4], (5_000, 1))
    parents = np.vstack([parents, [[7] * 4]])
    children = _plain_part(4, 8)._crossed(np.random.default_rng(0), parents, probability)
    first, second = children[0:-1:2], children[1:-1:2]
    assert (first + second == 1).all()
    assert (np.abs(np.diff(np.pad(first, ((0, 0), (1, 1))), axis=1)).sum(axis=1) <= 2).all()  # one run of ones
    assert first.any(axis=1).mean() == pytest.approx(0.8 * probability, abs=0.02)
    assert (children[-1] == 7).all()
    assert parents[0].tolist() == [0] * 4  # parents stay as they are


def test_the_better_of_two_random_individuals_is_a_parent() -> None:
    """Of n with different fitness the k-th best wins a tournament of two with probability (2 (n - k) - 1) / n^2, k from 0."""
    part = _plain_part(1, 4)
    part.take(np.tile([[2], [0], [3], [1]], (5_000, 1)), np.tile([3.0, 1.0, 4.0, 2.0], 5_000))
    chosen = part._selected(np.random.default_rng(0))
    shares = np.bincount(chosen[:, 0], minlength=4) / len(chosen)
    assert shares == pytest.approx([7 / 16, 5 / 16, 3 / 16, 1 / 16], abs=0.015)


@pytest.mark.parametrize("kind", [Genetic, SingleChromosome])
@pytest.mark.parametrize("recomputation", RECOMPUTATION)
def test_a_seeded_population_holds_the_greedy_sizes_within_the_caps(recomputation: str, kind: type[Genetic]) -> None:
    """Each pass's own sizes; where one vector serves both passes, cut to the caps of both. All are announced as evaluated."""
    candidates, caps = (1, 2, 3, 4, 6, 12), (2, 3, 12, 12)
    problem = replace(
        random_problem(np.random.default_rng(1), "affine", 4, 12, candidates, recomputation=recomputation),
        backward_caps=caps,
    )
    search = kind(seeded=True, individuals=5, generations=0)
    forward, backward = (np.array(greedy_chain(one)) for one in (problem.forward_chain, problem.backward_chain))
    if kind is SingleChromosome:
        expected = [[np.minimum(one, caps) for one in (forward, backward)]]
    elif problem.coupled:
        pairs = (forward, backward), (forward, forward), (backward, backward)
        expected = [[np.hstack([f, np.minimum(g, caps)]) for f, g in pairs]]
    else:
        expected = [[forward], [backward]]
    parts = search.populations(problem, Compiled(problem))
    assert [[part.sizes[seed].tolist() for seed in part.seeds] for part in parts] == [
        [one.tolist() for one in part] for part in expected
    ]
    told: list[int] = []
    plan = search(problem, np.random.default_rng(0), lambda evaluations, seconds: told.append(evaluations))
    assert told == [plan.evaluations] == [len(candidates) + len(expected[0])]


def test_elites_stay_and_the_others_are_children() -> None:
    """Of sixty individuals the three best stay as they are, 57 children replace the rest and are evaluated, no more."""
    part = _plain_part(5, 50)
    rng = np.random.default_rng(0)
    part.begin(rng, 60)
    best = part.vectors[np.argsort(part.fitness, kind="stable")[:3]]
    evaluated: list[np.ndarray] = []

    def fitness(sizes: Integers) -> Floats:
        evaluated.append(sizes)
        return np.asarray(1000.0 + sizes.sum(axis=1))

    part.fitness_of = fitness
    Genetic(individuals=60, elites=3).advance(part, rng)
    assert part.vectors[:3].tolist() == best.tolist()
    assert (part.sizes[part.vectors[3:]] == evaluated[0]).all()
    assert [len(one) for one in evaluated] == [60 - 3]
    assert part.fitness[3:].tolist() == fitness(evaluated[0]).tolist()


def test_the_distinct_that_survive_are_the_best_of_parents_and_children() -> None:
    """No vector stands twice where there are enough; where there are not, the best ones do; the population keeps its size."""
    part, few = _plain_part(4, 6), _plain_part(1, 2)
    rng, settings = np.random.default_rng(0), DistinctSurvivors(individuals=30)
    part.begin(rng, 30)
    settings.advance(part, rng)
    children: list[np.ndarray] = []

    def fitness(sizes: Integers) -> Floats:
        children.append(sizes - 1)
        return np.asarray(sizes.sum(axis=1), dtype=float)

    for _ in range(3):
        parents, part.fitness_of = part.vectors, fitness
        settings.advance(part, rng)
        every = {tuple(one) for one in np.vstack([parents, children[-1]]).tolist()}
        assert len({*map(tuple, part.vectors.tolist())}) == len(part.vectors) == 30
        assert {*map(tuple, part.vectors.tolist())} <= every
        assert sorted(part.fitness) == sorted(sum(one) + 4.0 for one in every)[:30]
    few.begin(rng, 5)
    settings.advance(few, rng)
    assert sorted(few.fitness) == [1.0, 1.0, 1.0, 1.0, 2.0]


def test_a_neighbour_mutation_takes_the_next_candidate_and_stays_within_the_caps() -> None:
    """With every gene mutated that way: one up or one down, never below the smallest or above what the gene may take."""

    class Always(np.random.Generator):
        """Mutates every gene to a neighbouring size; the sides are those of the generator."""

        def random(self, size: object = None) -> np.ndarray:  # type: ignore[override]
            return np.full(size, 0.5)  # type: ignore[call-overload,no-any-return]

    limits = np.array([4, 2, 1])
    part = Population(np.array([1, 2, 4, 8]), limits, lambda sizes: sizes.sum(axis=1).astype(float), [])
    rng = Always(np.random.PCG64(0))
    before = np.array([[0, 0, 0], [3, 1, 0], [1, 1, 0], [2, 0, 0]] * 20)
    after = part._mutated(rng, before, rate=1.0)
    assert (after >= 0).all()
    assert (after < limits).all()
    assert set((after - before)[:, 0]) == {-1, 0, 1}
    middle = (before[:, 0] > 0) & (before[:, 0] < 3)
    assert set((after - before)[middle, 0]) == {-1, 1}  # inside, a neighbour is never the size itself
    assert (after[:, 2] == 0).all()


@pytest.mark.parametrize("seed", range(2))
def test_greedy_sizes_are_within_the_caps_of_their_stages(seed: int) -> None:
    """Where recomputation depends on the sizes, the sizes of one pass serve for both only as the caps of each stage permit."""
    rng = np.random.default_rng(seed)
    problem = replace(
        random_problem(rng, "affine", 4, 12, (1, 2, 3, 4, 6, 12), recomputation="where-differs"),
        backward_caps=(2, 3, 12, 12),
    )
    plan = greedy_dp(problem)
    assert all(size <= cap for size, cap in zip(plan.backward_sizes, (2, 3, 12, 12), strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("last_cap", [1, 5])
def test_a_sweep_that_knows_no_plan_finds_the_optimum_of_each_pass(seed: int, last_cap: int) -> None:
    """From infinite seconds: seconds and sizes of the best of all vectors, also where the last blocks are of one sample."""
    problem = replace(
        random_problem(np.random.default_rng(seed), "log-uniform", 3, 5, (1, 2, 3, 4, 5), "none"),
        backward_caps=(last_cap, 5, 5),
    )
    evaluate = Compiled(problem)
    passes = (
        (problem.forward_chain, evaluate.forward_population),
        (problem.backward_chain, evaluate.backward_population),
    )
    for chain, seconds_of in passes:
        nothing = Known((), float("inf"), 0.0, 0)
        found = sweep.sweep(_decisions(chain), origin(chain.samples + 1, 1), nothing, 10**6)
        ordered = chain.allowed[::-1] if chain.reverse else chain.allowed
        every = np.array(list(itertools.product(*ordered)))
        assert found.seconds == found.bound == seconds_of(every).min()
        assert seconds_of(np.array([chain.ordered(found.sizes[0])]))[0] == found.seconds


def test_a_stage_takes_a_mutated_size_for_both_passes_within_the_caps_of_each() -> None:
    """In half of the children; the forward gene goes first where both have mutated, and no other gene changes."""
    part = Population(
        np.arange(1, 7), np.array([6, 6, 2, 3]), lambda sizes: sizes.sum(axis=1).astype(float), [], paired=True
    )
    children = np.array([[4, 5, 0, 1], [1, 0, 1, 2], [1, 5, 0, 2]] * 40)
    mutated = np.array([[True, False, False, False], [False, False, False, True], [True, True, False, True]] * 40)
    found = part._tied(np.random.default_rng(0), children, mutated)
    for row, tied in enumerate([(4, 5, 1, 1), (1, 2, 1, 2), (1, 5, 1, 2)]):
        after = found[row::3].tolist()
        assert {tuple(one) for one in after} == {tuple(children[row].tolist()), tied}
        assert 10 <= sum(tuple(one) == tied for one in after) <= 30


def test_tidgap_is_never_slower_than_the_greedy_sizes_that_it_begins_with() -> None:
    """Eight stages of unlike seconds: what begins at random has not found as fast sizes after as many generations."""
    problem = random_problem(np.random.default_rng(2), "log-uniform", 8, 32, tuple(range(1, 33)), "none")
    begun, drawn = (
        SEARCHES[name](problem, np.random.default_rng(0), lambda made, best: None) for name in ("tidgap", "dgap")
    )
    assert begun.makespan_seconds <= greedy_dp(problem).makespan_seconds < drawn.makespan_seconds
