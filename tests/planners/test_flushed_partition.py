"""Partition of a flushed pipeline against plain enumeration, and the plans that it makes possible."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import load_cluster
from planners import Request, make_plan
from planners.estimate.memory import in_flight_of
from planners.pipedream.flushed_partition import FlushedPipeline, flushed_partition
from planners.pipedream.partitioner import LevelStage
from simulator import Problem, build_schedule, simulate, workload_from_spec
from tests.chains import chain as compute_chain
from tests.planners.test_pipedream import network, tabled


def slowest(
    table_of: dict[str, list[float]], pipeline: FlushedPipeline, stages: tuple[LevelStage, ...], tied: bool
) -> float:
    """Seconds of the slowest stage or transfer; infinite where a stage does not fit.

    tied: the last layer uses the first one's weights, whose copy it needs in another stage
    """
    worst = 0.0
    for position, stage in enumerate(stages):
        compute, weights, outputs = (
            sum(table_of[name][stage.start : stage.stop]) for name in ("seconds", "weights", "outputs")
        )
        copy = table_of["weights"][0] if tied and position == len(stages) - 1 > 0 else 0.0
        entry = table_of["outputs"][stage.start - 1] if stage.start else 0.0
        flights = pipeline.in_flight[len(stages) - position - 1]
        kept = outputs + flights * entry if pipeline.recompute else flights * outputs
        share = -(-pipeline.samples // stage.workers) / pipeline.samples
        if kept * share + pipeline.weight_copies * (weights + copy) > pipeline.memory_bytes:
            return float("inf")
        ring = 2 * (stage.workers - 1) / stage.workers * weights / pipeline.collective_bandwidth
        worst = max(worst, compute * share + ring / pipeline.microbatches, 2 * entry / pipeline.bandwidth)
    return worst


def fastest(table_of: dict[str, list[float]], pipeline: FlushedPipeline, tied: bool) -> float:
    """The least such seconds of every cut and every number of replicas."""
    best, count = float("inf"), len(table_of["seconds"])
    for stages in range(1, min(pipeline.devices, count) + 1):
        for cuts in combinations(range(1, count), stages - 1):
            bounds = [0, *cuts, count]
            for replicas in product(range(1, pipeline.devices + 1), repeat=stages):
                if sum(replicas) <= pipeline.devices:
                    plan = tuple(map(LevelStage, bounds[:-1], bounds[1:], replicas))
                    best = min(best, slowest(table_of, pipeline, plan, tied))
    return best


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_partition_is_faster(data: st.DataObject) -> None:
    """Over every cut and every number of replicas, with and without recomputation, within memory or not at all; to 0.1 %."""
    count = data.draw(st.integers(1, 4))
    figures = [data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)) for _ in range(3)]
    of = dict(zip(("seconds", "weights", "outputs"), ([float(one) for one in row] for row in figures), strict=True))
    devices, microbatches = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    pipeline = FlushedPipeline(
        devices=devices,
        samples=data.draw(st.integers(1, 4)),
        microbatches=microbatches,
        in_flight=np.array([min(k, microbatches) for k in range(1, min(devices, count) + 1)]),
        memory_bytes=float(data.draw(st.integers(5, 80))),
        weight_copies=2.0,
        recompute=data.draw(st.booleans()),
        bandwidth=data.draw(st.sampled_from([1.0, 10.0])),
        collective_bandwidth=data.draw(st.sampled_from([1.0, 10.0])),
    )
    tied = data.draw(st.booleans()) and count > 1
    if tied:
        of["weights"][-1] = 0.0
    workload = network(of["seconds"], [int(one) for one in of["weights"]], of["outputs"])
    if tied:
        head = replace(workload.layers[-1], tied_to=workload.layers[0].name, tied_parameters=figures[1][0])
        workload = replace(workload, layers=(*workload.layers[:-1], head))
    table = tabled(workload)
    best = fastest(of, pipeline, tied)
    found = flushed_partition(table, pipeline)
    assert (found is None) == (best == float("inf"))
    if found is not None:
        assert sum(stage.workers for stage in found) <= devices
        assert slowest(of, pipeline, found, tied) <= best * 1.001


@pytest.mark.parametrize(
    ("seconds", "weights", "outputs", "devices", "bandwidth"),
    [
        ([9, 2, 3], [5, 4, 4], [6, 3, 6], 2, 1.0),
        ([18, 4, 6], [5, 4, 4], [6, 3, 6], 2, 0.5),
        ([5, 3, 5], [1, 1, 7], [9, 2, 2], 4, 2.0),
        ([6, 3, 4, 1, 2, 7], [7, 5, 4, 9, 4, 1], [7, 8, 7, 5, 5, 1], 4, 1.0),
    ],
)
def test_a_transfer_may_be_slower_than_every_stage(
    seconds: list[float], weights: list[int], outputs: list[float], devices: int, bandwidth: float
) -> None:
    """The first partition found is slow by its transfers: between these and its stages there is a better one."""
    flights = tuple(min(k, 4) for k in range(1, min(devices, len(seconds)) + 1))
    pipeline = FlushedPipeline(devices, 1, 4, np.array(flights), 1e9, 2.0, False, bandwidth, 1.0)
    of = {"seconds": seconds, "weights": [float(one) for one in weights], "outputs": outputs}
    found = flushed_partition(tabled(network(seconds, weights, outputs)), pipeline)
    assert found is not None
    assert slowest(of, pipeline, found, False) <= fastest(of, pipeline, False) * 1.001


def test_a_device_that_does_not_help_stays_idle() -> None:
    """A micro-batch of one sample cannot be split: one of three devices has it, though two more would cost nothing."""
    pipeline = FlushedPipeline(3, 1, 1, np.ones(1, dtype=np.int64), 1e9, 2.0, False, 1.0, 1.0)
    assert flushed_partition(tabled(network([4.0], [0], [0.0])), pipeline) == (LevelStage(0, 1, 1),)


def test_one_version_of_the_weights_fits_where_several_do_not() -> None:
    """Llama 2 7B with Adam on eight 80 GB devices: 108 GB of weights, gradients and states fit, more versions of them hardly."""
    problem = Problem(
        workload_from_spec("llama2-7b"), load_cluster("dgx-a100:1"), 64, precision="bf16", optimizer="adam"
    )
    found = make_plan("pipedream-flush", problem, Request(microbatches=64))
    straight = make_plan("uniform", problem, Request(microbatches=64))
    assert len(found.plan.microbatches) == 64
    flushed, uniform = (simulate(problem, one.plan, engine="recurrence") for one in (found, straight))
    assert flushed.fits
    assert flushed.iteration_seconds <= 1.01 * uniform.iteration_seconds


@pytest.mark.parametrize(
    "schedule, peaks", [("gpipe", (6, 6, 6)), ("1f1b", (3, 2, 1)), ("eager-1f1b", (5, 3, 1)), ("naive", (3, 2, 1))]
)
def test_memory_is_that_of_the_schedule(schedule: str, peaks: tuple[int, ...]) -> None:
    """GPipe holds every micro-batch, 1F1B no more than the stages from it on."""
    assert tuple(in_flight_of(schedule, 3, 6, lambda: build_schedule(schedule, 3, 6))) == peaks


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("recompute", [False, True])
def test_what_fits_is_found(schedule: str, recompute: bool) -> None:
    """12 samples of 6 equal layers: 42 GB of activations in all, which three devices of 16 GiB hold only in equal parts."""
    network = compute_chain([1e11] * 6, parameters=[1000] * 6, output_elements=[1.45e8] * 6)
    problem = Problem(network, load_cluster("pipedream-b").take(3), 12, recompute=recompute)
    found = make_plan("pipedream-flush", problem, Request(schedule=schedule, microbatches=12))
    assert simulate(problem, found.plan, engine="recurrence").fits
