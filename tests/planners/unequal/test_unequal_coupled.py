"""The exact method where the passes depend on each other: against exhaustive search over pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners.unequal import (
    FAMILIES,
    LINK_BLOCKS,
    RECOMPUTATION,
    exact_coupled,
    exact_sizes,
    problem_from_callables,
    random_problem,
)
from planners.unequal.compiled import makespan_population


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    family=st.sampled_from(sorted(FAMILIES)),
    link_block=st.sampled_from(sorted(LINK_BLOCKS)),
    recomputation=st.sampled_from(RECOMPUTATION),
)
def test_exact_over_pairs_is_exhaustive_search(seed: int, family: str, link_block: str, recomputation: str) -> None:
    """No pair (f, g) is better, and no f is better with g = f; to the last bit, and proven."""
    rng = np.random.default_rng(seed)
    stages, samples = int(rng.integers(1, 4)), int(rng.integers(1, 11))
    candidates = tuple(rng.integers(1, samples + 1, 2 if link_block == "own" else 3).tolist())
    problem = random_problem(rng, family, stages, samples, candidates, link_block, recomputation)
    vectors = np.array(list(itertools.product(problem.candidates, repeat=problem.genes)))
    f, g = np.divmod(np.arange(len(vectors) ** 2), len(vectors))
    for single, best in (
        (False, makespan_population(problem, vectors[f], vectors[g]).min()),
        (True, makespan_population(problem, vectors, vectors).min()),
    ):
        plan = exact_coupled(problem, single=single)
        assert plan.makespan_seconds == plan.lower_bound_seconds == best
        assert plan.proven_optimal
        assert not single or plan.forward_sizes == plan.backward_sizes


def test_recomputation_is_avoided_where_it_does_not_pay() -> None:
    """One stage, 4 samples: forward 2 + b wants 4 (6 s), backward b^2 wants 1 (4 s), but f != g runs 6 s .. 12 s more.

    f = g = 1: 12 + 4; 2: 8 + 8; 4: 6 + 16; (4, 1): 6 + 4 (1 + 3) = 22. The best is 16.
    """
    problem = problem_from_callables(
        4, [lambda b: 2.0 + b], [lambda b: float(b * b)], candidates=(1, 2, 4), recomputation="where-differs"
    )
    assert exact_coupled(problem).makespan_seconds == 16.0
    with pytest.raises(ValueError, match="coupled"):
        exact_sizes(problem)


def test_without_coupling_both_exact_methods_agree() -> None:
    """Where recomputation does not depend on the sizes, pairs bring nothing over the two passes apart."""
    problem = random_problem(np.random.default_rng(3), "log-uniform", 6, 32, (1, 2, 4, 8, 16, 32))
    assert exact_coupled(problem).makespan_seconds == exact_sizes(problem).makespan_seconds
