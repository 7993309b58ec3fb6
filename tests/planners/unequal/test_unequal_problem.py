"""The unequal problem: what it refuses, and its grid of durations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from experiments.unequal_sizes.random_tables import FAMILIES, random_problem
from planners.unequal import InfeasibleSizes, UnequalProblem, powers_of_two
from planners.unequal.compiled import population
from tests.unequal import problem_from_callables


def two_stages(**options: Any) -> UnequalProblem:
    """Two stages, 8 samples, a second a sample forward and two backward."""
    return problem_from_callables(8, [float, float], [lambda b: 2.0 * b] * 2, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": ()}, r"^candidates must be sizes in 1\.\.8, not \(\)$"),
        ({"candidates": (0, 1)}, "candidates must be sizes in 1..8"),
        ({"candidates": (9,)}, "candidates must be sizes in 1..8"),
        ({"samples": 0}, r"^candidates must be sizes in 1\.\.0, not \(1, 2, 3, 4, 5, 6, 7, 8\)$"),
        ({"recomputation": "sometimes"}, "recomputation must be one of none, always, where-differs, not 'sometimes'"),
        ({"backward_caps": (1,)}, r"caps must be 2 sizes, one per stage, not \(1,\)"),
    ],
)
def test_bad_choices_are_refused(options: dict[str, Any], message: str) -> None:
    """An error states the rule and the choices."""
    with pytest.raises(ValueError, match=message):
        replace(two_stages(), **options)


@pytest.mark.parametrize("sizes", [[[1, 0]], [[1, 2], [9, 1]]])
def test_sizes_lie_between_one_and_all_samples(sizes: list[list[int]]) -> None:
    """Too few and too many alike, wherever they stand; the ends are well, and so is no individual."""
    with pytest.raises(ValueError, match=r"^sizes must be in 1\.\.8"):
        population(two_stages(), sizes)
    assert population(two_stages(), [[1, 8]]).tolist() == [[1, 8]]
    assert population(two_stages(), np.zeros((0, 2))).shape == (0, 2)
    with pytest.raises(ValueError, match=r"sizes must have shape \(individuals, 2\), not \(1, 3\)"):
        population(two_stages(), [[1, 2, 3]])


def test_bad_tables_are_refused() -> None:
    """Wrong shapes, negative seconds, and time for no samples."""
    good = two_stages()
    with pytest.raises(
        ValueError, match=r"forward_link must have shape \(1, 9\), a row per process and sizes 0..B, not \(2, 9\)"
    ):
        replace(good, forward_link=np.zeros((2, 9)))
    alone = {"forward": [range(9)], "backward": [range(9)], "again": None, "forward_link": (), "backward_link": ()}
    assert replace(good, **alone).stages == 1
    with pytest.raises(ValueError, match=r"forward_link must have shape \(0, 9\).*, not \(1, 9\)"):
        replace(good, **alone | {"forward_link": np.zeros((1, 9))})
    with pytest.raises(ValueError, match="non-negative"):
        replace(good, forward=-good.forward)
    with pytest.raises(ValueError, match=r"^forward must hold finite, non-negative seconds; it has inf \.\. inf$"):
        replace(good, forward=np.full_like(good.forward, np.inf))
    with pytest.raises(ValueError, match=r"forward\[:, 0\], the time of no samples, must be 0, not \[1.0, 1.0\]"):
        replace(good, forward=good.forward + 1.0)


@pytest.mark.parametrize("quantum", [-0.5, -1e-9, 0.3, 3.0])
def test_a_grid_is_of_a_power_of_two(quantum: float) -> None:
    """Of another step sums were not exact; none means the finest."""
    with pytest.raises(ValueError, match="quantum"):
        replace(two_stages(), quantum=quantum)
    assert replace(two_stages(), quantum=0.25).quantum == 0.25
    assert replace(two_stages(), quantum=0.0).quantum > 0.0


def test_caps_without_a_candidate_are_infeasible() -> None:
    """Candidates 4 and 8 with a cap of 2 on stage 1."""
    with pytest.raises(InfeasibleSizes, match=r"stage 1: no candidate of \(4, 8\) is within its cap of 2"):
        two_stages(candidates=(4, 8), backward_caps=(8, 2))


def test_the_grid_survives_replace() -> None:
    """A copy with other options has the same durations, bit for bit."""
    problem = random_problem(np.random.default_rng(0), "log-uniform", 4, 16, powers_of_two(16))
    copy = replace(problem, recomputation="always")
    assert copy.forward.tobytes() == problem.forward.tobytes()
    assert (problem.forward / problem.quantum == np.rint(problem.forward / problem.quantum)).all()


def _up_to_two(seconds: float, size: int) -> float:
    """So many seconds per sample in blocks of one or two; larger ones are quicker."""
    return seconds * min(size, 2)


@pytest.mark.parametrize(
    ("forward", "backward", "links", "longest"),
    [
        ([1.0], [0.0], [], 16.0),  # 8 samples, forward twice
        ([0.99], [0.0], [], 15.84),
        ([1.0], [1.99], [], 31.92),
        ([1.0], [2.0], [], 32.0),
        ([0.5, 0.25], [0.25, 0.125], [0.06], 15.96),
        ([0.5, 0.25], [0.25, 0.125], [0.0625], 16.0),
        ([0.0], [0.0], [], 0.5),  # any grid is good for no time at all
    ],
)
def test_the_grid_is_the_finest_on_which_sums_are_exact(
    forward: list[float], backward: list[float], links: list[float], longest: float
) -> None:
    """The longest possible makespan, in blocks of the slowest size, forward twice, is under 2^52 steps, no less than 2^51."""
    tables = [[partial(_up_to_two, one) for one in row] for row in (forward, backward, links)]
    problem = problem_from_callables(8, tables[0], tables[1], tables[2], tables[2])
    assert 2.0**51 <= longest / problem.quantum < 2.0**52


def test_tables_are_read_only() -> None:
    """A frozen value holds frozen arrays."""
    with pytest.raises(ValueError, match="read-only"):
        two_stages().forward[0, 1] = 3.0


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families_are_reproducible(family: str) -> None:
    """The same seed gives the same tables; no samples take no time, one takes some."""
    first, second = (FAMILIES[family](np.random.default_rng(3), 2, 8) for _ in range(2))
    assert first.tobytes() == second.tobytes()
    assert (first[:, 0] == 0).all()
    assert (first[:, 1:] > 0).all()


def test_powers_of_two_include_the_mini_batch() -> None:
    """1, 2, 4, ... and B."""
    assert powers_of_two(12) == (1, 2, 4, 8, 12)
