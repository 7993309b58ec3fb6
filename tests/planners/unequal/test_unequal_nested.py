"""Partition and sizes together: against every partition with every size."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.unequal_sizes.random_tables import affine_table, roofline_table
from planners.unequal import FoundSizes, InfeasibleSizes, UnequalProblem, exact_sizes, nested
from planners.unequal.found_sizes import Sized
from planners.unequal.nested import search_partition

LAYERS, STAGES, SAMPLES = 8, 3, 16


def builder(seed: int) -> tuple[NDArray[np.float64], Callable[[tuple[int, ...]], UnequalProblem]]:
    """Layer tables, and the problem of a partition: a stage takes as long as its layers together."""
    rng = np.random.default_rng(seed)
    forward, backward = roofline_table(rng, LAYERS, SAMPLES), 2 * roofline_table(rng, LAYERS, SAMPLES)
    links = 0.3 * affine_table(rng, LAYERS, SAMPLES)

    def build(cuts: tuple[int, ...]) -> UnequalProblem:
        edges = list(itertools.pairwise((0, *cuts, LAYERS)))
        return UnequalProblem(
            SAMPLES,
            np.array([forward[a:b].sum(axis=0) for a, b in edges]),
            np.array([backward[a:b].sum(axis=0) for a, b in edges]),
            links[list(cuts)],
            links[list(cuts)],
            candidates=(1, 2, 3, 4, 6, 8, 16),
        )

    return forward, build


def counted(build: Callable[[tuple[int, ...]], UnequalProblem], layers: int, stages: int) -> tuple[int, Sized]:
    """How many partitions were solved, and the answer."""
    solved: list[FoundSizes] = []

    def solve(problem: UnequalProblem) -> FoundSizes:
        solved.append(exact_sizes(problem))
        return solved[-1]

    found = search_partition(build, layers, stages, solve=solve)
    return len(solved), found


@pytest.mark.parametrize("seed", range(3))
def test_no_partition_is_better(seed: int) -> None:
    """All 21 partitions of 8 layers into 3 stages, each with its exact sizes; most are refuted by their bound alone."""
    _, build = builder(seed)
    every = {
        cuts: exact_sizes(build(cuts)).makespan_seconds for cuts in itertools.combinations(range(1, LAYERS), STAGES - 1)
    }
    solved, found = counted(build, LAYERS, STAGES)
    assert found.sizes.makespan_seconds == min(every.values()) == every[found.cuts]
    assert found.whole
    assert 0 < solved < 21


def test_descent_alone_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room to look at all partitions the answer is no worse than the even one, and says that it is no proof."""
    _, build = builder(1)
    monkeypatch.setattr(nested, "MOST_PARTITIONS", 20)
    found = search_partition(build, LAYERS, STAGES, starts=[(1, 2)])
    assert not found.whole
    assert found.sizes.makespan_seconds <= exact_sizes(build((2, 5))).makespan_seconds


def test_wrong_cuts_are_refused() -> None:
    """More stages than layers, and starts that are no cuts."""
    _, build = builder(1)
    with pytest.raises(ValueError, match=r"stages must be in 1\.\.8"):
        search_partition(build, LAYERS, 9)
    for wrong in ((2, 2), (5, 2), (0, 3), (3, 8), (3,)):
        with pytest.raises(ValueError, match="cuts must be 2 ascending layers"):
            search_partition(build, LAYERS, STAGES, starts=[wrong])


def test_nothing_fits() -> None:
    """Where no partition has sizes within the limits, that is an infeasible problem, not a plan."""

    def build(cuts: tuple[int, ...]) -> UnequalProblem:
        raise InfeasibleSizes("too large")

    with pytest.raises(InfeasibleSizes, match="8 layers into 3 stages"):
        search_partition(build, LAYERS, STAGES)


def test_a_bound_rules_out_only_what_it_must() -> None:
    """Two partitions of one size, whose bounds are exact: 1 % faster is taken; 10 % with fixed 20 %, or equal, not solved."""

    def build(seconds: float, fixed: float) -> UnequalProblem:
        half = np.array([[0.0, seconds / 4]] * 2)
        return UnequalProblem(1, half, half, np.zeros((1, 2)), np.zeros((1, 2)), candidates=(1,), fixed_seconds=fixed)

    for other, cuts, solved in (((99.0, 0.0), (2,), 2), ((90.0, 20.0), (1,), 1), ((100.0, 0.0), (1,), 1)):
        problems: dict[tuple[int, ...], UnequalProblem] = {(1,): build(100.0, 0.0), (2,): build(*other)}
        asked, found = counted(problems.__getitem__, 3, 2)
        assert (found.cuts, asked, found.whole) == (cuts, solved, True)


def test_what_a_solution_leaves_open_is_no_proof() -> None:
    """Solutions that are not proven prove a partition only where their own bound is no better than it."""
    _, build = builder(1)
    for bound, proven in ((0.0, False), (1.0, True)):
        found = search_partition(
            build,
            LAYERS,
            STAGES,
            solve=lambda one, bound=bound: replace(  # type: ignore[misc]
                (plan := exact_sizes(one)), lower_bound_seconds=bound * plan.makespan_seconds
            ),
        )
        assert found.whole is proven
