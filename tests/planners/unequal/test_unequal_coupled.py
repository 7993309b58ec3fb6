"""The exact method where the passes depend on each other: against exhaustive search over pairs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.unequal_sizes.random_tables import FAMILIES, random_problem
from hardware_profiles import Integers
from planners.search.evaluator import BudgetSpent
from planners.unequal import Compiled, FoundSizes, UnequalProblem, exact, exact_sizes, sweep
from planners.unequal.found_sizes import Report
from planners.unequal.profiles import lower_bound
from planners.unequal.sweep import Known
from tests.unequal import makespan, problem_from_callables


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), family=st.sampled_from(sorted(FAMILIES)))
def test_exact_over_pairs_is_exhaustive_search(seed: int, family: str) -> None:
    """No pair (f, g) is better; to the last bit, and proven."""
    rng = np.random.default_rng(seed)
    stages, samples = int(rng.integers(1, 4)), int(rng.integers(1, 11))
    candidates = tuple(rng.integers(1, samples + 1, 3).tolist())
    problem = random_problem(rng, family, stages, samples, candidates, "where-differs")
    f, g = pairs_of_vectors(problem)
    plan = exact_sizes(problem)
    assert plan.makespan_seconds == plan.lower_bound_seconds == Compiled(problem)(f, g).min()
    assert plan.proven_optimal


def pairs_of_vectors(problem: UnequalProblem) -> tuple[Integers, Integers]:
    """Every forward vector with every backward one."""
    vectors = np.array(list(itertools.product(problem.candidates, repeat=problem.stages)))
    f, g = np.divmod(np.arange(len(vectors) ** 2), len(vectors))
    return vectors[f], vectors[g]


def test_recomputation_is_avoided_where_it_does_not_pay() -> None:
    """One stage, 4 samples: forward 2 + b wants 4 (6 s), backward b^2 wants 1 (4 s), but f != g runs 6 s .. 12 s more.

    f = g = 1: 12 + 4; 2: 8 + 8; 4: 6 + 16; (4, 1): 6 + 4 (1 + 3) = 22. The best is 16.
    """
    problem = problem_from_callables(
        4, [lambda b: 2.0 + b], [lambda b: float(b * b)], candidates=(1, 2, 4), recomputation="where-differs"
    )
    assert exact_sizes(problem).makespan_seconds == 16.0


def worst(problem: UnequalProblem) -> Known:
    """The slowest pair of vectors, with the bound that needs no search."""
    f, g = pairs_of_vectors(problem)
    values = Compiled(problem)(f, g)
    at = int(values.argmax())
    forward, backward = (tuple(one[at].tolist()) for one in (f, g))
    return Known((forward, backward), float(values[at]), lower_bound(problem), 1)


def swept(
    problem: UnequalProblem, start: Known, max_profiles: int = 10**6, progress: Report | None = None
) -> FoundSizes:
    """What the sweeps make of it, with nothing from a genetic search."""
    return exact.best_sizes(problem, [start], max_profiles, progress, 0.0)


@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_found_from_the_worst_start(seed: int) -> None:
    """The sweeps alone, with nothing from a genetic search: the exhaustive optimum, sizes that take it, and the proof."""
    rng = np.random.default_rng(seed)
    samples = int(rng.integers(4, 9))
    problem = random_problem(rng, "log-uniform", 2 + seed % 2, samples, (1, 2, 3, samples), "where-differs")
    best = Compiled(problem)(*pairs_of_vectors(problem)).min()
    start = worst(problem)
    plan = swept(problem, start)
    assert plan.makespan_seconds == plan.lower_bound_seconds == best < start.seconds
    assert plan.proven_optimal
    assert makespan(problem, plan.forward_sizes, plan.backward_sizes) == best
    assert plan.evaluations > 1


def test_room_for_few_pairs_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer with room for two pairs' extensions, cleared and doubled again and again, holds the same in the end."""
    problem = random_problem(
        np.random.default_rng(0), "log-uniform", 6, 12, (1, 2, 3, 12), recomputation="where-differs"
    )
    start = worst(replace(problem, candidates=(12,)))
    roomy = swept(problem, start)
    monkeypatch.setattr(sweep, "ROWS", 1)
    tight = swept(problem, start)
    assert replace(tight, seconds=0.0) == replace(roomy, seconds=0.0)
    assert tight.proven_optimal


def test_too_few_pairs_kept_leave_a_bound_that_holds() -> None:
    """With room for one pair a stage nothing is proven unless what was dropped is no better; the bound is one."""
    unproven = 0
    for seed in range(12):
        problem = random_problem(
            np.random.default_rng(seed), "log-uniform", 3, 8, (1, 2, 4, 8), recomputation="where-differs"
        )
        best = exact_sizes(problem).makespan_seconds
        plan = swept(problem, worst(problem), max_profiles=1)
        assert plan.lower_bound_seconds <= best <= plan.makespan_seconds
        assert plan.proven_optimal == (plan.lower_bound_seconds == plan.makespan_seconds)
        unproven += not plan.proven_optimal
    assert unproven


def test_a_stop_between_stages_keeps_the_start() -> None:
    """The plan known before the sweep is the answer, marked, with the bound that needs no search."""
    problem = random_problem(np.random.default_rng(1), "log-uniform", 3, 8, (1, 2, 4, 8), recomputation="where-differs")
    start = worst(problem)
    made: list[int] = []

    def stop(evaluations: int, seconds: float) -> None:
        made.append(evaluations)
        if len(made) == 2:
            raise BudgetSpent

    plan = swept(problem, start, progress=stop)
    assert (plan.forward_sizes, plan.backward_sizes) == start.sizes
    assert plan.interrupted
    assert not plan.proven_optimal
    assert made == [1 + 16, made[1]]  # one pair of profiles, 4 sizes each way
    assert plan.lower_bound_seconds == lower_bound(problem) > 0


def test_a_narrow_search_extends_no_more_than_it_keeps() -> None:
    """One pair kept after each stage: two sweeps try at most all pairs of sizes of each stage twice, and all are announced."""
    problem = random_problem(
        np.random.default_rng(5), "log-uniform", 3, 12, (1, 2, 4, 12), recomputation="where-differs"
    )
    announced: list[int] = []
    plan = swept(problem, worst(problem), 1, lambda made, _: announced.append(made))
    assert plan.evaluations == announced[-1] <= worst(problem).tried + 2 * 3 * 4 * 4
