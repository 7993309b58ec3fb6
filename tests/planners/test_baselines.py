"""Baselines: figures one can work out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners import Request, balanced_cuts, make_plan, uniform_cuts
from simulator import Problem
from simulator.workloads.synthetic import chain


@pytest.mark.parametrize(
    ("layers", "stages", "cuts"), [(6, 2, [3]), (7, 3, [3, 5]), (4, 4, [1, 2, 3]), (5, 1, []), (8, 3, [3, 6])]
)
def test_uniform_cuts_differ_by_one_layer_at_most(layers: int, stages: int, cuts: list[int]) -> None:
    """7 layers on 3 stages: 3, 2, 2."""
    assert uniform_cuts(layers, stages) == cuts


def test_greedy_fills_stages_to_the_mean() -> None:
    """Layers 1 1 1 3 on two equal devices: three ones against the three."""
    assert balanced_cuts(np.array([[1.0, 1.0, 1.0, 3.0]] * 2)) == [3]


def test_greedy_gives_a_faster_device_more_layers() -> None:
    """Six equal layers, the second device twice as fast: 2 and 4 layers take 2 seconds each."""
    assert balanced_cuts(np.array([[1.0] * 6, [0.5] * 6])) == [2]


@given(
    layers=st.lists(st.floats(0.0, 10.0), min_size=3, max_size=9),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=3),
)
@settings(deadline=None, max_examples=60)
def test_balance_is_a_partition_no_single_move_improves(layers: list[float], speeds: list[float]) -> None:
    """Cuts rise, every stage has a layer, and the slowest is never below the optimum's nor above all layers on one device."""
    seconds = np.outer(1.0 / np.array(speeds), np.array(layers))
    cuts = balanced_cuts(seconds)
    bounds = [0, *cuts, len(layers)]
    assert all(begin < end for begin, end in pairwise(bounds))

    def slowest(chosen: tuple[int, ...]) -> float:
        ends = [0, *chosen, len(layers)]
        return max(float(seconds[s, ends[s] : ends[s + 1]].sum()) for s in range(len(speeds)))

    best = min(slowest(chosen) for chosen in combinations(range(1, len(layers)), len(speeds) - 1))
    assert best - 1e-9 <= slowest(tuple(cuts)) <= float(seconds.sum(axis=1).max()) + 1e-9


def test_data_parallel_uses_every_device_and_the_whole_batch(small_problems: dict[str, Problem]) -> None:
    """One stage, all devices, one micro-batch where it fits."""
    plan = make_plan("data-parallel", small_problems["fewer-layers-than-devices"]).plan
    assert plan.notation == "4"
    assert plan.microbatches == (8,)
    assert plan.schedule == "gpipe"


def test_data_parallel_accumulates_gradients_where_memory_is_short(small_problems: dict[str, Problem]) -> None:
    """4 samples a device of 100 MB activations do not fit 350 MB; 1F1B on one stage holds one micro-batch: 2 samples do."""
    problem = small_problems["two-devices"]
    devices = tuple(replace(one, memory_bytes=350e6) for one in problem.cluster.devices)
    heavy = replace(
        problem,
        workload=chain([1e9] * 4, output_elements=[6.25e6] * 4),
        cluster=replace(problem.cluster, devices=devices),
    )
    plan = make_plan("data-parallel", heavy).plan
    assert plan.schedule == "1f1b"
    assert plan.microbatches == (4, 4)


def test_fewer_layers_than_devices_uses_as_many_stages_as_layers(small_problems: dict[str, Problem]) -> None:
    """Three layers on four devices: three stages."""
    for name in ("uniform", "greedy"):
        assert len(make_plan(name, small_problems["fewer-layers-than-devices"]).plan.stages) == 3


def test_looped_schedules_get_two_stages_a_device(small_problems: dict[str, Problem]) -> None:
    """Six layers, two devices: four stages on devices 0 1 0 1; a single layer stays one stage."""
    for schedule in ("interleaved-1f1b", "looped-bfs"):
        plan = make_plan("uniform", small_problems["two-devices"], Request(schedule=schedule)).plan
        assert [stage.devices for stage in plan.stages] == [(0,), (1,), (0,), (1,)]
        assert len(make_plan("uniform", small_problems["one-layer"], Request(schedule=schedule)).plan.stages) == 1


def test_greedy_is_no_slower_than_uniform_on_unequal_devices(small_problems: dict[str, Problem]) -> None:
    """Devices of speed 1, 1/2 and 2 and hardly any communication: balance beats equal numbers of layers."""
    problem = replace(small_problems["mixed-devices"], workload=chain([2e11] * 9))
    scores = {name: make_plan(name, problem).history[-1].iteration_seconds for name in ("uniform", "greedy")}
    assert scores["greedy"] < scores["uniform"]


def test_planner_turns_to_1f1b_where_gpipe_does_not_fit(small_problems: dict[str, Problem]) -> None:
    """GPipe keeps the batch, 1F1B at most as many micro-batches as stages: 16 samples of 100 MB, 450 MB a device."""
    problem = small_problems["two-devices"]
    devices = tuple(replace(one, memory_bytes=450e6) for one in problem.cluster.devices)
    heavy = replace(
        problem,
        batch=16,
        workload=chain([1e9] * 4, output_elements=[1e6] * 4, stashed_elements=[12.5e6] * 4),
        cluster=replace(problem.cluster, devices=devices),
    )
    assert make_plan("uniform", heavy).plan.schedule == "1f1b"
    assert make_plan("greedy", heavy).plan.schedule == "1f1b"
