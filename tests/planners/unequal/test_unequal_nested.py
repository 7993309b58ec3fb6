"""Partition and sizes together: against every partition with every size."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.unequal_sizes.random_tables import affine_table, roofline_table
from hardware_profiles import load_cluster
from planners.search.evaluator import BudgetSpent
from planners.unequal import (
    FoundSizes,
    InfeasibleSizes,
    UnequalProblem,
    exact_sizes,
    nested,
    tables_of,
    unequal_problem,
)
from planners.unequal.found_sizes import Sized
from planners.unequal.nested import search_partition
from simulator import Problem, load_workload

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


def test_no_cut_is_better_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without looking at all partitions: VGG-16 on eight stages is no slower than with any one cut anywhere else.

    Moves by one layer end 10 % above: a cut has to pass a whole block of the network, whose layers all cost more to send from.
    """
    tables = tables_of(Problem(load_workload("vgg16"), load_cluster("pipedream-a"), 32), range(8))
    monkeypatch.setattr(nested, "MOST_PARTITIONS", 0)

    def build(cuts: tuple[int, ...]) -> UnequalProblem:
        return replace(unequal_problem(tables, cuts, (1, 4, 32)), recomputation="none")

    found, ends = search_partition(build, tables.layers, 8), tables.layers
    for number, cut in enumerate(found.cuts):
        before, after = (0, *found.cuts, ends)[number], (0, *found.cuts, ends)[number + 2]
        for place in {*range(before + 1, after)} - {cut}:
            cuts = (*found.cuts[:number], place, *found.cuts[number + 1 :])
            assert exact_sizes(one := build(cuts)).makespan_seconds + one.fixed_seconds >= found.seconds


def test_passes_decided_apart_spare_work() -> None:
    """Where a stage runs forward again whose sizes differ, at most 3 of 21 partitions are decided by pairs; the best is found."""
    _, plain = builder(1)

    def build(cuts: tuple[int, ...]) -> UnequalProblem:
        return replace(plain(cuts), recomputation="where-differs", candidates=(1, 2, 4, 16))

    every = [exact_sizes(build(cuts)) for cuts in itertools.combinations(range(1, LAYERS), STAGES - 1)]
    solved: list[UnequalProblem] = []

    def solve(problem: UnequalProblem) -> FoundSizes:
        solved.append(problem)
        return exact_sizes(problem)

    found = search_partition(build, LAYERS, STAGES, solve=solve)
    assert (found.seconds, found.whole) == (min(one.makespan_seconds for one in every), True)
    assert sum(problem.coupled for problem in solved) <= 3


def test_a_known_bound_spares_building() -> None:
    """Only partitions whose bound is below the best so far are built."""
    _, build = builder(1)
    free, built = search_partition(build, LAYERS, STAGES), list[tuple[int, ...]]()

    def counting(cuts: tuple[int, ...]) -> UnequalProblem:
        built.append(cuts)
        return build(cuts)

    found = search_partition(
        counting, LAYERS, STAGES, bound=lambda cuts: 0.0 if cuts in ((2, 5), free.cuts) else float("inf")
    )
    assert (found.cuts, found.seconds, found.whole) == (free.cuts, free.seconds, True)
    assert set(built) <= {(2, 5), free.cuts}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, BudgetSpent])
def test_a_stop_ends_with_the_best_so_far(stop: type[BaseException]) -> None:
    """At the second partition that is solved the first one, the even one, is the answer; at the first there is none."""
    _, build = builder(1)

    def solving(most: int) -> Callable[[UnequalProblem], FoundSizes]:
        left = iter(range(most))

        def solve(problem: UnequalProblem) -> FoundSizes:
            if next(left, None) is None:
                raise stop
            return exact_sizes(problem)

        return solve

    found = search_partition(build, LAYERS, STAGES, solve=solving(1))
    assert (found.cuts, found.stopped, found.whole) == ((2, 5), True, False)
    assert found.sizes.makespan_seconds == exact_sizes(build((2, 5))).makespan_seconds
    with pytest.raises(stop):
        search_partition(build, LAYERS, STAGES, solve=solving(0))


def test_wrong_cuts_are_refused() -> None:
    """More stages than layers, and starts that are no cuts."""
    _, build = builder(1)
    with pytest.raises(ValueError, match=r"stages must be in 1..8, the number of layers, not 9"):
        search_partition(build, LAYERS, 9)
    for wrong in ((2, 2), (5, 2), (0, 3), (3, 8), (3,)):
        with pytest.raises(ValueError, match=r"^cuts must be 2 ascending layers in 1\.\.\d+, not "):
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


def test_each_improvement_is_moved_on_from_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cut of 8 layers, the later the better: from the even one it moves a layer at a time, and looks at no more."""
    looked: list[int] = []

    def build(cuts: tuple[int, ...]) -> UnequalProblem:
        looked.append(cuts[0])
        seconds = np.array([[0.0, 10.0 - cuts[0]]])
        return UnequalProblem(1, seconds.repeat(2, axis=0), seconds.repeat(2, axis=0), 0 * seconds, 0 * seconds, (1,))

    monkeypatch.setattr(nested, "MOST_PARTITIONS", 0)
    found = search_partition(build, LAYERS, 2)
    assert found.cuts == (7,)
    assert looked == [4, 3, 5, 6, 7, 2, 1]
