"""Makespan against memory: the front is complete, and no point beats another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planners.unequal import memory_use, pareto_front, random_problem
from planners.unequal.chain_recurrence import makespan


@pytest.mark.parametrize("recomputation", ["none", "always"])
def test_the_front_is_that_of_exhaustive_search(recomputation: str) -> None:
    """3 stages, 4 candidates: all 4^6 pairs of vectors, their non-dominated ones, to the last bit."""
    problem = random_problem(
        np.random.default_rng(11), "affine", 3, 8, (1, 2, 4, 8), recomputation=recomputation, memory=True
    )
    vectors = list(itertools.product(problem.candidates, repeat=3))
    every = sorted(
        {
            (makespan(problem, f, g), float(memory_use(problem, f, g).static_bytes.max()))
            for f in vectors
            for g in vectors
        }
    )
    front = []
    least = float("inf")
    for seconds, size in every:
        if size < least:
            front.append((seconds, size))
            least = size
    points = pareto_front(problem)
    assert [(point.makespan_seconds, point.static_bytes) for point in points] == front
    assert all(point.plan.proven_optimal and point.peak_bytes >= point.static_bytes for point in points)


def test_a_front_needs_a_memory_model() -> None:
    """Without bytes there is nothing to trade."""
    with pytest.raises(ValueError, match="need a memory model"):
        pareto_front(random_problem(np.random.default_rng(0), "affine", 2, 4, (1, 2)))
