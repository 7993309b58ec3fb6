"""Grouped sizes: UMPIPE's planner for batches of any size, and the granularity of the other unequal planners."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardware_profiles import load_cluster
from planners import Evaluator, Request, make_plan
from planners.search.candidates import devices_in_order
from planners.testing import line
from planners.unequal.exact import exact_sizes
from planners.unequal.greedy import best_equal, evaluated_sizes
from planners.unequal.grouped import _busy_seconds, fastest_sizes, granularity, grouped_sizes
from planners.unequal.tables import candidate_sizes, tables_of, unequal_problem
from simulator import InfeasiblePlanError, LayerCosts, Plan, Problem
from tests.chains import chain
from tests.planners.conftest import with_memory

LAYERS = chain(
    [4e9, 1e9, 3e9, 2e9, 5e9, 1e9],
    parameters=[10**6] * 6,
    output_elements=[4e5, 1e5, 2e5, 1e5, 1e5, 1e3],
    stashed_elements=[8e5, 2e5, 4e5, 2e5, 2e5, 2e3],
)


def problem(batch: int = 40) -> Problem:
    """Six unlike layers on three devices."""
    return Problem(LAYERS, line(speeds=(1.0, 1.0, 1.0)), batch)


def sizes_of(plan: Plan) -> list[tuple[int, ...]]:
    """Micro-batches of every stage in both passes."""
    return [*(plan.forward_sizes or (plan.microbatches,)), *(plan.backward_sizes or (plan.microbatches,))]


@pytest.mark.parametrize(
    ("batch", "asked", "samples"), [(64, None, 1), (1024, None, 4), (1000, None, 4), (1021, None, 4), (1024, 32, 32)]
)
def test_a_batch_has_few_groups(batch: int, asked: int | None, samples: int) -> None:
    """At most 256, of as few samples as that takes, dividing the batch where such a number is near; or as asked for."""
    request = Request(options={} if asked is None else {"granularity": asked})
    assert granularity(problem(batch), request) == samples


def test_sizes_are_whole_groups() -> None:
    """All numbers of groups up to 16, then 2^k and 3 · 2^k of them, and the whole batch."""
    assert grouped_sizes(10, 4) == (4, 8, 10)
    assert grouped_sizes(64, 1) == (*range(1, 17), 24, 32, 48, 64)
    assert candidate_sizes(10, "all", 4) == (4, 8, 10)
    assert candidate_sizes(40, "powers-of-two", 5) == (5, 10, 20, 40)


def test_tables_of_some_sizes_are_those_of_all() -> None:
    """Of the sizes and what is left behind them: the same seconds."""
    one = problem(10)
    some, every = (tables_of(one, devices_in_order(one), sizes=sizes) for sizes in ((4, 8, 10), ()))
    asked = [2, 4, 8, 10]
    assert (some.stage_seconds(1, 2, 5)[:, asked] == every.stage_seconds(1, 2, 5)[:, asked]).all()
    assert not some.stage_seconds(1, 2, 5)[:, [1, 3, 5, 6, 7, 9]].any()


@pytest.mark.parametrize("recompute", ["none", "whole"])
@pytest.mark.parametrize("cuts", [(1, 4), (2, 4), (3, 5)])
def test_sizes_are_near_the_optimum(cuts: tuple[int, int], recompute: str) -> None:
    """Never slower than the best equal size, and within 1 % of the exact method, of the same partition."""
    one = Problem(LAYERS, line(speeds=(1.0, 1.0, 1.0)), 24, recompute=recompute)  # type: ignore[arg-type]
    sizes = grouped_sizes(24, 2)
    unequal = unequal_problem(tables_of(one, (0, 1, 2), sizes=sizes), cuts, sizes)
    found = evaluated_sizes(unequal, *fastest_sizes(unequal, np.random.default_rng(0)), 1, 0.0).makespan_seconds
    assert exact_sizes(unequal).makespan_seconds <= found <= best_equal(unequal).makespan_seconds
    assert found <= 1.01 * exact_sizes(unequal).makespan_seconds


@pytest.mark.parametrize("asked", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_its_plan_is_of_whole_groups_and_near_the_best_of_all_partitions(asked: int) -> None:
    """Every micro-batch but the last is a multiple of the granularity; the nested search, of all sizes, is hardly faster."""
    found = make_plan("umpipe", problem(), Request(options={"granularity": asked}))
    assert all(size % asked == 0 for sizes in sizes_of(found.plan) for size in sizes[:-1])
    assert any(f"multiples of {asked} samples" in one.text for one in found.notes)
    nested = make_plan("unequal-nested", problem(), Request(options={"granularity": asked}))
    assert found.iteration_seconds <= 1.05 * nested.iteration_seconds


@pytest.mark.parametrize(
    "name",
    [
        *("exact-unequal", "tidgap"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("greedy-dp", "local-greedy", "best-equal")),
    ],
)
def test_searches_by_name_take_a_granularity(name: str) -> None:
    """Their sizes are multiples of it, but for the last one; one of more than the batch is refused."""
    grouped = make_plan(name, problem(), Request(options={"granularity": 5}))
    assert all(size % 5 == 0 for sizes in sizes_of(grouped.plan) for size in sizes[:-1])
    with pytest.raises(ValueError, match="a granularity of 41 samples is more than the batch of 40"):
        make_plan(name, problem(), Request(options={"granularity": 41}))


def test_stages_run_again_where_their_activations_have_no_room() -> None:
    """Of little memory the plan recomputes and fits; of less none does, which is told in one line."""
    roomy = make_plan("umpipe", problem())
    assert set(roomy.plan.recompute) == {"none"}
    little = with_memory(problem(), 0.7 * roomy.outcome.fullest.peak_bytes)
    found = make_plan("umpipe", little)
    assert found.outcome.fits
    assert set(found.plan.recompute) == {"whole"}
    with pytest.raises(
        InfeasiblePlanError,
        match=(
            r"planner 'umpipe' finds no partition of 6 layers over 3 GPUs within 0.009313 GiB per GPU, "
            r"with the whole batch in flight and micro-batches of 1 samples or more; use more GPUs, a "
            r"smaller batch or granularity"
        ),
    ):
        make_plan("umpipe", with_memory(problem(), 1e7))
    with pytest.raises(ValueError, match="recompute cannot be 'none'"):
        make_plan("umpipe", problem(), Request(recompute="none"))


def test_boards_are_busy_with_all_layers_at_once() -> None:
    """Nothing is known of the least seconds on these; on GPUs it is the round trips of all layers, in parts of the best size,
    shared by the devices."""
    one = problem(4)
    costs = LayerCosts(one)
    whole = min(float(costs.round_trip_seconds(0, size).sum()) * (4 // size) for size in (1, 2, 4))
    assert _busy_seconds(costs, (0, 1), (1, 2, 4)) == whole / 2
    boards = replace(one, cluster=load_cluster("fpga-vcu118-4").take(2))
    assert _busy_seconds(LayerCosts(boards), (0, 1), (1, 2, 4)) == 0.0


def test_asked_for_stages_it_has_them() -> None:
    """And for recomputation."""
    found = make_plan("umpipe", problem(), Request(stages=2, recompute="whole"))
    assert len(found.plan.stages) == 2
    assert set(found.plan.recompute) == {"whole"}
    assert Evaluator(problem())(found.plan).iteration_seconds == found.iteration_seconds
