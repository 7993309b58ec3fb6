"""Orders with a flush and one forward one backward: classic warm-up, credits, and no deadlock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners.unequal import (
    FAMILIES,
    LINK_BLOCKS,
    one_forward_one_backward_order,
    problem_from_callables,
    random_problem,
)
from planners.unequal.orders import Deadlock, Order, default_credits, least_credits, replay


def spelled(order: Order) -> str:
    """F0 F1 B0 ..."""
    return " ".join(f"{kind}{index}" for kind, index in order)


def test_equal_sizes_give_classic_1f1b() -> None:
    """Stage k of K starts with K - k forward micro-batches, then alternates."""
    problem = problem_from_callables(4, [float] * 3, [float] * 3)
    orders = one_forward_one_backward_order(problem, (1, 1, 1), (1, 1, 1))
    assert [spelled(order) for order in orders] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_1f1b_of_equal_sizes_takes_as_long_as_the_flush_order() -> None:
    """M micro-batches of t forward and 2t backward, no links: (M + K - 1)(t + 2t) either way."""
    problem = problem_from_callables(6, [float] * 3, [lambda b: 2.0 * b] * 3)
    ones = (1, 1, 1)
    run = replay(problem, ones, ones, one_forward_one_backward_order(problem, ones, ones))
    assert run.makespan_seconds == (6 + 3 - 1) * 3.0
    assert run.outstanding == (3, 2, 1)


def test_unequal_sizes_by_hand() -> None:
    """The example of the module: K=2, B=4, f = (2, 1), g = (1, 2)."""
    problem = problem_from_callables(4, [float] * 2, [float] * 2)
    orders = one_forward_one_backward_order(problem, (2, 1), (1, 2), (4, 2))
    assert [spelled(order) for order in orders] == ["F0 F1 B0 B1 B2 B3", "F0 F1 B0 F2 F3 B1"]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    stages=st.integers(1, 6),
    samples=st.integers(1, 30),
    family=st.sampled_from(sorted(FAMILIES)),
    link_block=st.sampled_from(sorted(LINK_BLOCKS)),
)
def test_no_deadlock_and_credits_hold(seed: int, stages: int, samples: int, family: str, link_block: str) -> None:
    """Whatever the sizes, orders under any safe credits run to the end and never stash more than the credit."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, family, stages, samples, tuple(range(1, samples + 1)), link_block)
    f, g = rng.integers(1, samples + 1, (2, problem.genes)).tolist()
    more = [0] * stages
    for stage in range(stages - 1, -1, -1):  # random credits, each at least what the later ones demand
        more[stage] = least_credits(problem, f, g, more)[stage] + int(rng.integers(0, samples + 1))
    for credits in (least_credits(problem, f, g), default_credits(problem, f, g), more):
        run = replay(problem, f, g, one_forward_one_backward_order(problem, f, g, credits))
        assert all(held <= credit for held, credit in zip(run.outstanding, credits, strict=True))
        assert [len(ends) for ends in run.forward_ends] == [-(-samples // size) for size in stage_sizes(f, stages)]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), stages=st.integers(1, 5), samples=st.integers(1, 20))
def test_credits_below_the_least_are_refused(seed: int, stages: int, samples: int) -> None:
    """One sample less than the least, at any stage, is an error that names the least."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, "affine", stages, samples, (1,))
    f, g = rng.integers(1, samples + 1, (2, stages)).tolist()
    credits = least_credits(problem, f, g)
    credits[int(rng.integers(stages))] -= 1
    with pytest.raises(ValueError, match="can deadlock"):
        one_forward_one_backward_order(problem, f, g, credits)


def test_an_order_that_deadlocks_is_found() -> None:
    """Stage 0 wants its backward block first: it waits for stage 1, which waits for stage 0."""
    problem = problem_from_callables(1, [float] * 2, [float] * 2)
    with pytest.raises(Deadlock, match=r"\('B', 0\)"):
        replay(problem, (1, 1), (1, 1), [[("B", 0), ("F", 0)], [("F", 0), ("B", 0)]])


def stage_sizes(sizes: list[int], stages: int) -> list[int]:
    """Entries of the stages, where links have theirs in between."""
    return sizes if len(sizes) == stages else sizes[::2]
