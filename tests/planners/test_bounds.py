"""Bounds: no plan beats them, and some plans attain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hardware_profiles import Accelerator, Cluster, GraphicsProcessor, Link, Phase, Precision, Work, load_accelerator
from planners import (
    PLANNERS,
    Request,
    applicable_planners,
    iteration_lower_bound,
    make_plan,
)
from planners.search.bounds import best_weighted_sum
from simulator import SCHEDULES, InfeasiblePlanError, LayerCosts, Problem
from simulator.simulation import simulate
from simulator.workloads.synthetic import uniform_chain
from tests.chains import chain, measured_chain, random_chain


def _switched(devices: tuple[object, ...]) -> Cluster:
    nodes = tuple(f"node{number}" for number in range(len(devices)))
    links = tuple(Link(node, "switch", 5e9, 1e-5) for node in nodes)
    return Cluster("switched", devices, nodes, ("switch",), (tuple(range(len(devices))),), links)  # type: ignore[arg-type]


def _gpu(speed: float = 1.0) -> GraphicsProcessor:
    return GraphicsProcessor(f"gpu-{speed:g}", 2.0**36, 500e9 * speed, {"fp32": 10e12 * speed})


def test_one_device_with_the_whole_batch_attains_the_bound() -> None:
    """A single device runs forward, backward and update of the batch at once: nothing is left to gain."""
    problem = Problem(uniform_chain(1), _switched((_gpu(),)), 16)
    plan = make_plan("data-parallel", problem).plan
    seconds = simulate(problem, plan).iteration_seconds
    assert iteration_lower_bound(problem) == pytest.approx(seconds, rel=1e-11)
    assert iteration_lower_bound(problem) <= seconds


def test_the_bound_knows_that_ops_may_overlap() -> None:
    """Where a forward and a backward together take half their seconds, so may all of them."""
    problem = Problem(chain([1e9] * 4, parameters=[0] * 4), _switched((_gpu(), _gpu())), 8)
    assert iteration_lower_bound(replace(problem, overlap=0.5), asynchronous=True) == 0.5 * iteration_lower_bound(
        problem, asynchronous=True
    )


@pytest.mark.parametrize("device", [_gpu(), load_accelerator("vcu118")], ids=["gpu", "board"])
def test_work_bound_by_hand(device: Accelerator) -> None:
    """Measured layers of 3 + 6 seconds for 4 samples, no weights: 16 samples on 2 devices, of any kind, are 4 * 9 / 2 seconds."""
    problem = Problem(measured_chain([1.0, 2.0], [2.0, 4.0], samples=4.0), _switched((device, device)), 16)
    assert iteration_lower_bound(problem, asynchronous=True) == pytest.approx(18.0)
    assert iteration_lower_bound(replace(problem, recompute=True), asynchronous=True) == pytest.approx(24.0)


def test_latency_bounds_small_batches_of_flushed_plans() -> None:
    """One sample on 4 devices: 9 / 4 seconds of its forward and backward are the latency, a quarter of it the work."""
    problem = Problem(measured_chain([1.0, 2.0], [2.0, 4.0], samples=4.0), _switched((_gpu(),) * 4), 1)
    assert iteration_lower_bound(problem) == pytest.approx(9.0 / 4.0)
    assert iteration_lower_bound(problem, asynchronous=True) == pytest.approx(9.0 / 16.0)


@pytest.mark.parametrize("recompute", [False, True])
def test_latency_is_that_of_one_sample_through_all_layers(recompute: bool) -> None:
    """On GPUs of two speeds: the quick one's forwards and gradients of inputs, forwards twice where they are made again."""
    problem = Problem(
        random_chain(5, np.random.default_rng(0)), _switched((_gpu(), *(_gpu(3.0),) * 7)), 1, recompute=recompute
    )
    costs = LayerCosts(problem)
    forward, back = (float(costs.seconds(1, 1, phase).sum()) for phase in ("forward", "input_gradient"))
    assert iteration_lower_bound(problem) == pytest.approx((2.0 if recompute else 1.0) * forward + back)
    assert iteration_lower_bound(problem, asynchronous=True) < iteration_lower_bound(problem)


def test_profile_rows_between_sizes_are_used() -> None:
    """Rows of 2 s for 1 sample and 2 s for 4: the least seconds a sample are a half, at 4, though the batch has 6."""
    bare = measured_chain([1.0], [1.0])
    layer = replace(bare.layers[0], measured=((1.0, 1.0, 1.0), (4.0, 1.0, 1.0), (8.0, 4.0, 4.0)))
    problem = Problem(replace(bare, layers=(layer,)), _switched((_gpu(),)), 6)
    assert iteration_lower_bound(problem, asynchronous=True) == pytest.approx(6 * 0.5)


def test_devices_of_one_kind_at_two_speeds_add_their_rates() -> None:
    """Seconds a sample of 1 and 1/2 on two devices: together 3 samples a second (harmonic rates)."""
    assert best_weighted_sum(np.array([[1.0, 1.0], [0.5, 0.5]])) == pytest.approx(2.0 / 3.0)


def test_devices_that_differ_by_layer_take_what_they_are_good_at() -> None:
    """Each of two devices does one of two jobs in 1 s and the other in 10 s: 1 s is the optimum of the assignment."""
    assert best_weighted_sum(np.array([[1.0, 10.0], [10.0, 1.0]])) == pytest.approx(1.0)


def test_two_unlike_devices_get_the_best_weights() -> None:
    """min(y, 3 - 3y) + min(4y, 1 - y) + min(2y, 5 - 5y) is largest at y = 5/7, where the last job changes hands: 17/7."""
    seconds = np.array([[1.0, 4.0, 2.0], [3.0, 1.0, 5.0]])
    assert best_weighted_sum(seconds) == pytest.approx(17.0 / 7.0)
    assert best_weighted_sum(seconds[::-1]) == pytest.approx(17.0 / 7.0)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_weights_of_two_kinds_are_the_best_of_all(jobs: int, seed: int) -> None:
    """The sum is concave and bends where a job changes hands: the largest value of all is at one of these weights."""
    one, two = np.random.default_rng(seed).uniform(0.1, 3.0, (2, jobs))
    bends = two / (one + two)
    best = max(float(np.minimum(y * one, (1.0 - y) * two).sum()) for y in bends)
    assert best_weighted_sum(np.array([one, two])) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(("kinds", "jobs", "seeds"), [(3, 6, range(3, 10)), (4, 5, (3, 7, 8, 9))])
def test_weights_of_more_kinds_are_the_best_of_each_pair(kinds: int, jobs: int, seeds: Sequence[int]) -> None:
    """From equal totals pair after pair gets its best share, found here by thirds, until no pair gains any more."""
    for seed in seeds:
        seconds = np.random.default_rng(seed).uniform(0.1, 3.0, (kinds, jobs))
        assert best_weighted_sum(seconds) == pytest.approx(_by_thirds(seconds), rel=1e-8)


def _by_thirds(seconds: NDArray[np.float64]) -> float:
    def total(weights: NDArray[np.float64]) -> float:
        return float((seconds * weights[:, None]).min(axis=0).sum())

    def shared(weights: NDArray[np.float64], pair: tuple[int, int], share: float) -> NDArray[np.float64]:
        moved = weights.copy()
        moved[list(pair)] = np.array([share, 1.0 - share]) * weights[list(pair)].sum()
        return moved

    weights, before = 1.0 / seconds.sum(axis=1) / (1.0 / seconds.sum(axis=1)).sum(), 0.0
    while total(weights) > before * (1.0 + 1e-9):
        before = total(weights)
        for pair in combinations(range(len(weights)), 2):
            low, high = 0.0, 1.0
            for _ in range(60):
                one, two = low + (high - low) / 3.0, high - (high - low) / 3.0
                rises = total(shared(weights, pair, one)) < total(shared(weights, pair, two))
                low, high = (one, high) if rises else (low, two)
            weights = max(weights, shared(weights, pair, (low + high) / 2.0), key=total)
    return total(weights)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_weighted_sum_never_passes_an_assignment(kinds: int, jobs: int, seed: int) -> None:
    """Whatever whole assignment of jobs to devices: its slowest device takes no less than the bound."""
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(0.0, 3.0, (kinds, jobs)) * rng.integers(0, 2, (kinds, jobs))
    bound = best_weighted_sum(seconds)
    for _ in range(20):
        chosen = rng.integers(0, kinds, jobs)
        slowest = max(seconds[kind, chosen == kind].sum() for kind in range(kinds))
        assert bound <= slowest + 1e-12


@dataclass(frozen=True)
class _Odd:
    """A device whose passes of one number of samples are free of overhead: the least seconds a sample may lie in the middle."""

    quick: int = 3
    name: str = "odd"
    memory_bytes: float = 2.0**36
    streams: bool = False
    sublinear: bool = False

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """A second a sample, and another one unless there are `quick`."""
        if phase == "input_gradient":
            return 0.0
        return samples * (1.0 if samples == self.quick else 2.0)


@pytest.mark.parametrize(("quick", "seconds"), [(1, 14.0), (3, 14.0), (7, 14.0), (8, 28.0)])
def test_other_accelerators_are_asked_for_every_size(quick: int, seconds: float) -> None:
    """One size costs 1 s a sample each way, all others 2 s: 7 samples cost at least 14 s, and 28 if they are too few for it."""
    problem = Problem(chain([1e9], output_elements=[1e5]), _switched((_Odd(quick),)), 7)
    assert iteration_lower_bound(problem, asynchronous=True) == pytest.approx(seconds)


@given(
    layers=st.integers(1, 5),
    speeds=st.lists(st.sampled_from([1.0, 0.5, 3.0]), min_size=1, max_size=4),
    batch=st.integers(1, 12),
    recompute=st.booleans(),
    name=st.sampled_from([name for name in PLANNERS if name != "brute-force"]),
    schedule=st.sampled_from([None, *SCHEDULES]),
    seed=st.integers(0, 2**32 - 1),
)
@example(
    layers=4, speeds=[1.0] * 4, batch=1, recompute=False, name="best-equal", schedule="2bw", seed=0
)  # a batch too small for the schedule's weight versions: every planner still says whether it applies
@settings(deadline=None, max_examples=80)
def test_no_plan_beats_the_bound(
    layers: int,
    speeds: list[float],
    batch: int,
    recompute: bool,
    name: str,
    schedule: str | None,
    seed: int,
) -> None:
    """Random chains, devices, batches, planners and schedules."""
    chain = random_chain(layers, np.random.default_rng(seed))
    problem = Problem(chain, _switched(tuple(_gpu(speed) for speed in speeds)), batch, recompute=recompute)
    request = Request(schedule=schedule)
    if applicable_planners(problem, request)[name] is not None:
        return
    try:
        plan = make_plan(name, problem, request).plan
    except InfeasiblePlanError:
        return
    family = SCHEDULES[plan.schedule]
    seconds = simulate(problem, plan, engine="simpy" if family.lanes else "recurrence").iteration_seconds
    assert iteration_lower_bound(problem, asynchronous=not family.flush) <= seconds


def test_bound_holds_on_boards() -> None:
    """FPGAs of two kinds: the uniform plan is no faster than the bound."""
    boards = (load_accelerator("vcu118"), load_accelerator("vcu129"))
    problem = Problem(uniform_chain(4), _switched(boards), 4, precision="fp16")
    plan = make_plan("uniform", problem).plan
    assert 0 < iteration_lower_bound(problem) <= simulate(problem, plan).iteration_seconds
