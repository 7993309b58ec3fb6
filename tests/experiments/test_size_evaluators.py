"""Evaluators: closed forms, a staircase worked out by hand, and agreement to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.unequal_sizes import matrix_form
from experiments.unequal_sizes.evaluators import POPULATION_EVALUATORS as EVALUATORS
from experiments.unequal_sizes.plain_recurrence import Recurrence, chain_profile
from experiments.unequal_sizes.random_tables import FAMILIES, random_problem
from experiments.unequal_sizes.table_costs import program_of
from planners.unequal import RECOMPUTATION, UnequalProblem
from simulator.engines import event_loop
from tests.unequal import makespan, problem_from_callables


def forward_seconds(problem: UnequalProblem, sizes: tuple[int, ...]) -> float:
    """Seconds of the forward pass by the plain recurrence."""
    return float(Recurrence(problem).forward_population([sizes])[0])


def backward_seconds(problem: UnequalProblem, sizes: tuple[int, ...]) -> float:
    """Seconds of the backward pass by the plain recurrence."""
    return float(Recurrence(problem).backward_population([sizes])[0])


def constant_problem(
    stages: int, samples: int, seconds: float, link_seconds: float = 0.0, **options: str
) -> UnequalProblem:
    """Every block takes `seconds` on a stage and `link_seconds` on a link, whatever its size."""
    stage = [lambda size: seconds] * stages
    link = [lambda size: link_seconds] * (stages - 1)
    return problem_from_callables(samples, stage, stage, link, link, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(EVALUATORS))
def test_equal_sizes_without_links(name: str) -> None:
    """K stages, M equal micro-batches of t seconds, no links: each pass takes (M + K - 1) t."""
    problem = constant_problem(stages=4, samples=24, seconds=0.5)
    evaluate = EVALUATORS[name](problem)
    for size in (1, 2, 3, 4, 6, 8, 12, 24):
        sizes = [[size] * 4]
        assert evaluate.forward_population(sizes)[0] == (24 // size + 4 - 1) * 0.5
        assert evaluate(sizes, sizes)[0] == 2 * (24 // size + 4 - 1) * 0.5


@pytest.mark.parametrize("name", sorted(EVALUATORS))
def test_equal_sizes_with_links(name: str) -> None:
    """Links are processes too: fill and drain cross K stages and K - 1 links, the slower of both paces the rest."""
    problem = constant_problem(stages=3, samples=8, seconds=1.0, link_seconds=2.0)
    assert EVALUATORS[name](problem).forward_population([[2, 2, 2]])[0] == 3 * 1.0 + 2 * 2.0 + (4 - 1) * 2.0


def test_staircase_of_unequal_sizes() -> None:
    """Two stages, blocks of 2 then 3 of 6 samples, a second a sample: stage 1 waits for samples 3 and 6.

    stage 0:  2   4   6      ends of blocks 1-2, 3-4, 5-6
    stage 1:          7  10  block 1-3 starts at 4, when 3-4 ended; block 4-6 at 7 (6 samples at 6)
    """
    problem = problem_from_callables(6, [float, float], [float, float])
    assert chain_profile(problem.forward_chain, (2, 3))[0::2] == [[2.0, 4.0, 6.0], [7.0, 10.0]]


def test_last_block_is_the_remainder() -> None:
    """Blocks of 4 of 6 samples are 4 and 2: on one stage with b^2 seconds that is 16 + 4."""
    problem = problem_from_callables(6, [lambda size: float(size * size)], [lambda size: 0.0])
    assert forward_seconds(problem, (4,)) == 20.0


def test_a_link_sends_the_blocks_of_the_stage_before_it() -> None:
    """Blocks of 1 s: stage 0 makes 4 of 1 sample, the link sends 4, stage 1 takes one of 4; the other way round it sends one."""
    problem = constant_problem(2, 4, 1.0, 1.0)
    assert forward_seconds(problem, (1, 4)) == 1 + 4 + 1
    assert forward_seconds(problem, (4, 1)) == 1 + 1 + 4
    assert backward_seconds(problem, (1, 4)) == 1 + 1 + 4  # here stage 1 comes first


def test_the_backward_chain_runs_the_other_way() -> None:
    """With sizes (4, 1) stage 1 goes first and takes 4 blocks of 1 s, then stage 0 one of 1 s."""
    problem = constant_problem(2, 4, 1.0)
    assert backward_seconds(problem, (4, 1)) == 4 + 1
    assert backward_seconds(problem, (1, 4)) == 1 + 4


def test_recomputation_adds_the_forward_pass() -> None:
    """One stage, 3 s forward and 5 s backward a block: 8 s with recomputation, where-differs only if f != g."""
    times = [lambda size: 3.0], [lambda size: 5.0]
    assert backward_seconds(problem_from_callables(4, *times, recomputation="always"), (4,)) == 8.0
    differs = problem_from_callables(4, *times, recomputation="where-differs")
    assert makespan(differs, (4,), (4,)) == 3.0 + 5.0
    assert makespan(differs, (2,), (4,)) == 2 * 3.0 + 8.0
    with pytest.raises(ValueError, match="needs the forward sizes"):
        backward_seconds(differs, (4,))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    stages=st.integers(1, 7),
    samples=st.integers(1, 70),
    family=st.sampled_from(sorted(FAMILIES)),
    recomputation=st.sampled_from(RECOMPUTATION),
)
def test_all_evaluators_agree_to_the_last_bit(
    seed: int, stages: int, samples: int, family: str, recomputation: str
) -> None:
    """Recurrence, matrix form, compiled on one core and on all, and the sizes lowered and replayed give the same bits."""
    rng = np.random.default_rng(seed)
    every = tuple(range(1, samples + 1))
    problem = random_problem(rng, family, stages, samples, every, recomputation)
    forward, backward = rng.integers(1, samples + 1, (2, 4, problem.stages))
    found = {name: build(problem)(forward, backward).tobytes() for name, build in EVALUATORS.items()}
    programs = (program_of(problem, *pair) for pair in zip(forward.tolist(), backward.tolist(), strict=True))
    replayed = [event_loop.replay(program, contention=True).makespan_seconds for program in programs]
    assert set(found.values()) == {np.array(replayed).tobytes()}


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_short_chains_agree(stages: int) -> None:
    """The first link and the last one of one, two and three stages: whose blocks they send is the same for all evaluators."""
    rng = np.random.default_rng(stages)
    for recomputation in RECOMPUTATION:
        problem = random_problem(rng, "affine", stages, 12, (1, 2, 3, 5, 12), recomputation)
        forward, backward = rng.choice(problem.candidates, (2, 5, problem.stages))
        expected = [makespan(problem, f, g) for f, g in zip(forward.tolist(), backward.tolist(), strict=True)]
        assert all(build(problem)(forward, backward).tolist() == expected for build in EVALUATORS.values())


def test_wide_and_narrow_profiles_in_one_population(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 blocks of 1 sample beside one block of 1,000: no class of widths is left out of the matrix form, whether it has room
    for tables of all pairs of sizes or not."""
    rng = np.random.default_rng(5)
    problem = random_problem(rng, "affine", 3, 1000, (1, 3, 10, 30, 100, 300, 1000))
    sizes = rng.choice(problem.candidates, (50, 3))
    results = [build(problem)(sizes, sizes[::-1]) for build in EVALUATORS.values()]
    assert all((result == results[0]).all() for result in results)
    monkeypatch.setattr(matrix_form, "PAIR_TABLE_ENTRIES", 0)
    assert (EVALUATORS["matrix"](problem)(sizes, sizes[::-1]) == results[0]).all()


def test_the_grid_makes_addition_associative() -> None:
    """0.1 + 0.2 + 0.3 differs from 0.3 + 0.2 + 0.1 in float64; durations on the grid sum alike in any order."""
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
    problem = problem_from_callables(2, [lambda b: 0.1 * b, lambda b: 0.2 * b, lambda b: 0.3], [lambda b: 0.0] * 3)
    a, b, c = problem.forward[:, 1]
    assert a + b + c == c + b + a
    assert abs(problem.forward[0, 1] - 0.1) < 1e-15


def test_sizes_are_checked() -> None:
    """Sizes outside 1..B, of a wrong number, or (in the matrix form) not candidates, are refused with the rule."""
    problem = constant_problem(2, 4, 1.0)
    for name in EVALUATORS:
        for wrong in ([[0, 1]], [[1, 5]], [[1, 1, 1]]):
            with pytest.raises(ValueError, match="sizes must"):
                EVALUATORS[name](problem).forward_population(wrong)
        for shaped in ([1, 1], [[[1, 1], [1, 1]]]):  # neither one individual nor a list of populations
            with pytest.raises(ValueError, match=r"must have shape \(individuals, 2\)"):
                EVALUATORS[name](problem).forward_population(shaped)
    narrow = problem_from_callables(4, [float], [float], candidates=(1, 4))
    with pytest.raises(ValueError, match=r"sizes must be candidates, one of \[1, 4\]"):
        EVALUATORS["matrix"](narrow).forward_population([[2]])


@pytest.mark.parametrize("name", sorted(EVALUATORS))
def test_the_least_and_the_largest_size_are_taken(name: str) -> None:
    """1 and B, the ends of the range, are sizes: blocks of a second on two stages take a second more than the most blocks."""
    evaluate = EVALUATORS[name](constant_problem(2, 4, 1.0))
    assert evaluate.forward_population([[1, 1], [4, 4], [1, 4]]).tolist() == [5.0, 2.0, 5.0]
