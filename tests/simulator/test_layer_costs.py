"""Tests of `simulator.costs.layer_costs` and `simulator.costs.plan_costs`: seconds and bytes of layers and stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hardware_profiles import GENERIC, Cluster, Constant, Link, Operation, Stack, load_cluster
from simulator import (
    Layer,
    LayerCosts,
    OpKind,
    Parallelism,
    Plan,
    PlanCosts,
    Problem,
    Stage,
    Workload,
    from_text,
    load_workload,
    lower,
)
from simulator.costs.layer_costs import GroupRates
from tests.chains import chain
from tests.simulator.strategies import UnitDevice, chain_cluster

ROWS = ((2.0, 1.0, 3.0), (4.0, 2.0, 4.0), (8.0, 3.0, 8.0))


def measured(rows: tuple[tuple[float, float, float], ...], parameters: int = 10) -> LayerCosts:
    """One measured layer on one device."""
    layer = Layer("one", "linear", 5.0, parameters, 1.0, 1.0, measured=rows)
    return LayerCosts(Problem(Workload("w", (layer,), (), bytes_per_element=4), chain_cluster(1), 1))


@pytest.mark.parametrize(
    ("samples", "forward", "backward"),
    [(1, 1.0, 3.0), (2, 1.0, 3.0), (3, 1.5, 3.5), (4, 2.0, 4.0), (6, 2.5, 6.0), (8, 3.0, 8.0), (16, 6.0, 16.0)],
)
def test_measured_seconds_of_several_sizes(samples: int, forward: float, backward: float) -> None:
    """Between sizes linearly, beyond the last in proportion, below the first as the first (a small call takes no less)."""
    costs = measured(ROWS)
    assert costs.seconds(0, samples, "forward").tolist() == [forward]
    assert costs.seconds(0, samples, "backward").tolist() == [backward]


def test_measured_seconds_of_one_size_are_proportional() -> None:
    """One row of 2 samples: in proportion both ways."""
    found = [measured(ROWS[:1]).seconds(0, samples, "forward")[0] for samples in (1, 2, 10)]
    assert found == pytest.approx([0.5, 1.0, 5.0])


def test_measured_gradients_are_halves_where_there_are_weights() -> None:
    """With parameters half each; without, the input gradient is the whole backward."""
    for parameters, weight in ((10, 1.5), (0, 0.0)):
        costs = measured(ROWS, parameters)
        assert costs.seconds(0, 2, "weight_gradient").tolist() == [weight]
        assert costs.seconds(0, 2, "input_gradient").tolist() == [3.0 - weight]


def mixed(**changes: Any) -> Problem:
    """A chain of 3 layers on a fast and a slow device."""
    workload = chain(
        [1.0, 2.0, 4.0], parameters=[10, 0, 30], output_elements=[4.0, 2.0, 1.0], stashed_elements=[3.0, 5.0, 7.0]
    )
    cluster = Cluster(
        "mixed",
        (UnitDevice(rate=2.0, name="fast"), UnitDevice(rate=1.0, name="slow"), UnitDevice(rate=2.0, name="fast")),
        ("a", "b", "c"),
        (),
        ((0,), (1,), (2,)),
        (Link("a", "b", 16.0, 0.5), Link("b", "c", 8.0, 0.25)),
    )
    return replace(Problem(workload, cluster, 4), **changes)


def test_seconds_are_the_devices_own() -> None:
    """flop / rate forward, twice that backward; equal accelerators are one kind."""
    costs = LayerCosts(mixed())
    assert costs.seconds(0, 4, "forward").tolist() == [2.0, 4.0, 8.0]
    assert costs.seconds(1, 4, "forward").tolist() == [4.0, 8.0, 16.0]
    assert costs.seconds(1, 1, "backward").tolist() == [2.0, 4.0, 8.0]
    assert costs.accelerator_kinds == 2
    assert [costs.kind_of_device(d) for d in range(3)] == [0, 1, 0]


def test_round_trip_counts_the_second_forward_of_recomputation() -> None:
    """F + B, and F again where the problem recomputes."""
    assert LayerCosts(mixed()).round_trip_seconds(1, 1).tolist() == [3.0, 6.0, 12.0]
    assert LayerCosts(mixed(recompute=True)).round_trip_seconds(1, 1).tolist() == [4.0, 8.0, 16.0]


def test_stashed_and_crossing_bytes() -> None:
    """Elements times bytes of the precision; every producer with a consumer outside counts once."""
    costs = LayerCosts(mixed())
    assert costs.stashed_bytes.tolist() == [12.0, 20.0, 28.0]
    assert LayerCosts(mixed(precision="fp16")).stashed_bytes.tolist() == [6.0, 10.0, 14.0]
    layers = tuple(Layer(f"l{i}", "elementwise", 0.0, 0, float(10**i), 0.0) for i in range(4))
    diamond = Workload("diamond", layers, ((0, 1), (0, 2), (1, 3), (2, 3)))
    costs = LayerCosts(Problem(diamond, chain_cluster(1), 1))
    assert costs.crossing_bytes({0}) == 4.0
    assert costs.crossing_bytes({0, 1}) == 44.0
    assert costs.crossing_bytes({0, 1, 2}) == 440.0
    assert costs.crossing_bytes({0, 1, 2, 3}) == 0.0
    assert costs.update_seconds(0, 0.0) == 0.0  # a stage without weights has nothing to update
    divided = replace(diamond, layers=(*layers[:1], replace(layers[1], kind="linear", split="columns"), *layers[2:]))
    half = LayerCosts(Problem(divided, chain_cluster(1), 1)).at(Parallelism(2))
    assert half.crossing_bytes({0, 1, 2}) == 4.0 * (5.0 + 100.0)
    assert half.crossing_bytes({0, 1, 2}, gathered=True) == 4.0 * 100.0  # of the other each device has its half


def test_what_a_weight_gradient_needs_of_a_stash_is_the_layers_input() -> None:
    """However small that is: half a byte a sample. All of a first layer's stash, whose input is data; none without weights."""
    workload = chain([1.0] * 3, parameters=[10, 10, 0], output_elements=[0.25] * 3, stashed_elements=[3.0, 5.0, 7.0])
    costs = LayerCosts(Problem(workload, chain_cluster(1), 1, precision="fp16"))
    assert costs.weight_stashed_bytes.tolist() == [costs.stashed_bytes[0], costs.output_bytes[0], 0.0]


def test_the_precision_is_no_matter_of_a_measured_network() -> None:
    """Its update moves the profile's 4 bytes an element at any precision, on devices that do not know it either."""
    cluster = load_cluster("pipedream-c").take(1)  # Titan X: fp32 only
    layer = Layer("one", "linear", 5.0, 1000, 1.0, 1.0, measured=ROWS)
    seconds = set()
    for precision in ("fp32", "fp16", "int8"):
        costs = LayerCosts(Problem(Workload("w", (layer,), (), bytes_per_element=4), cluster, 1, precision=precision))
        seconds.add(
            (costs.update_seconds(0, 1e6), costs.predict_seconds(0, 1e6), float(costs.seconds(0, 4, "forward")[0]))
        )
    assert len(seconds) == 1
    half = LayerCosts(Problem(Workload("w", (layer,), (), bytes_per_element=2), cluster, 1, optimizer="sgd"))
    overhead = cluster.devices[0].call_overhead  # type: ignore[attr-defined]
    update = seconds.pop()[0] - overhead
    assert half.update_seconds(0, 1e6) - overhead == pytest.approx(update * (2 + 2 + 2 + 4 + 4) / (4 * 3 + 4 * 2))


def launched(
    flop: list[float], overhead: float, parameters: list[int] | None = None, stack: Stack = GENERIC
) -> LayerCosts:
    """A chain on one device whose host takes so long for each layer's forward."""
    cluster = replace(chain_cluster(1), devices=(UnitDevice(launch_overhead=overhead),))
    return LayerCosts(Problem(chain(flop, parameters=parameters or [0] * len(flop)), cluster, 1, stack))


def test_kernels_wait_for_a_host_that_is_behind() -> None:
    """Launched at 3, 6, 9 and 12 s, kernels of 1, 1, 9 and 2 s end at 4, 7, 18 and 20: the large one lets the host get ahead."""
    costs = launched([1.0, 1.0, 9.0, 2.0], 3.0)
    assert costs.seconds(0, 1, "forward").tolist() == [4.0, 3.0, 11.0, 2.0]
    assert costs.kernel_seconds(0, 1, "forward").tolist() == [1.0, 1.0, 9.0, 2.0]
    assert costs.seconds(0, 9, "forward").tolist() == [9.0 + 3.0, 9.0, 81.0, 18.0]


def test_a_framework_launches_more_slowly_than_a_kernel_takes() -> None:
    """Three times 1 s is as a host of 3 s, forward and backward."""
    python, plain = (
        launched([1.0, 9.0], 1.0, [1, 1], Stack(name="python", launches=Constant(3.0))),
        launched([1.0, 9.0], 3.0, [1, 1]),
    )
    for phase in ("forward", "backward"):
        assert python.seconds(0, 1, phase).tolist() == plain.seconds(0, 1, phase).tolist()  # type: ignore[arg-type]


def test_gradients_are_launched_from_the_last_layer_to_the_first() -> None:
    """Backwards of 4, 2 and 2 s are launched every 1.5 x 2 s, one gradient of two every 1.5 s."""
    costs = launched([2.0, 1.0, 1.0], 2.0, parameters=[1, 1, 1])
    assert costs.seconds(0, 1, "backward").tolist() == [5.0, 3.0, 5.0]
    assert costs.seconds(0, 1, "weight_gradient").tolist() == [2.5, 1.5, 2.5]


def test_what_runs_nothing_is_launched_by_nobody() -> None:
    """A view and a measured layer wait for no host."""
    assert launched([0.0, 1.0, 0.0, 1.0], 3.0).seconds(0, 1, "forward").tolist() == [0.0, 4.0, 0.0, 3.0]
    slow = replace(chain_cluster(1), devices=(UnitDevice(launch_overhead=3.0),))
    assert LayerCosts(replace(measured(ROWS).problem, cluster=slow)).seconds(0, 2, "forward").tolist() == [1.0]


def test_a_framework_takes_as_long_for_every_forward_and_backward_of_a_stage() -> None:
    """0.5 s beside a stage of two layers of 1 s per sample, as for one; none for what a backward runs again, its weight gradient,
    an op of no samples, and measured layers."""
    device = UnitDevice(pass_overhead=0.5)
    cluster = replace(chain_cluster(2), devices=(device,) * 2)
    problem = Problem(chain([1.0, 1.0, 1.0], parameters=[1, 1, 1]), cluster, 4, recompute="whole")
    plan = Plan("hand", "1f1b", (Stage((0, 1), (0,)), Stage((2,), (1,))), (2, 2))
    costs, samples = PlanCosts(problem, plan), np.array([2, 0])
    expected = {
        OpKind.FORWARD: ([4.5, 0.0], [2.5, 0.0]),
        OpKind.BACKWARD: ([8.5, 0.0], [4.5, 0.0]),
        OpKind.INPUT_GRADIENT: ([4.5, 0.0], [2.5, 0.0]),
        OpKind.WEIGHT_GRADIENT: ([4.0, 0.0], [2.0, 0.0]),
        OpKind.RECOMPUTE: ([4.0, 0.0], [2.0, 0.0]),
    }
    for kind, stages in expected.items():
        assert tuple(costs.seconds(kind, stage, 0, samples).tolist() for stage in (0, 1)) == stages, kind
        assert costs.parts(kind, 0, 0, 2).computing == stages[0][0]
    block, ours = measured(ROWS).problem, Stack(name="ours", block_pass=Constant(0.25))
    block = replace(block, workload=replace(block.workload, layers=(replace(block.workload.layers[0], block=1),)))
    profiled = LayerCosts(replace(block, cluster=replace(chain_cluster(1), devices=(device,)), stack=ours))
    assert profiled.stage_seconds(0, np.arange(1), 2, "forward") == 1.0


def plan_costs(stages: tuple[Stage, ...], **changes: Any) -> PlanCosts:
    """Costs of a plan of 2 micro-batches of 2 samples."""
    return PlanCosts(mixed(**changes), Plan("hand", "1f1b", stages, (2, 2)))


SPLIT = (Stage((0, 1), (0,)), Stage((2,), (1,)))


def test_stage_seconds_are_sums_over_its_layers() -> None:
    """Stage 0 on the fast device: 1.5 s per sample forward, 3 backward; stage 1 on the slow one: 4 and 8."""
    costs = plan_costs(SPLIT)
    samples = np.array([2, 1, 0, 2])
    assert costs.seconds(OpKind.FORWARD, 0, 0, samples).tolist() == [3.0, 1.5, 0.0, 3.0]
    assert costs.seconds(OpKind.BACKWARD, 1, 0, samples).tolist() == [16.0, 8.0, 0.0, 16.0]
    both = sum(costs.seconds(kind, 1, 0, samples) for kind in (OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT))
    assert np.asarray(both).tolist() == [16.0, 8.0, 0.0, 16.0]


def test_recomputation_runs_forward_again_before_a_backward() -> None:
    """B takes F + B; where it is split, the input gradient pays."""
    costs, one = plan_costs(SPLIT, recompute=True), np.ones(1, dtype=np.int64)
    full, split = (
        lower(from_text(f"0F0 {ops[0]}\n1F0 {ops[1]}"), costs) for ops in (("0B0", "1B0"), ("0I0 0W0", "1I0 1W0"))
    )
    found = {full.name_of(n): float(full.seconds[n]) for n in range(len(full))}
    found |= {split.name_of(n): float(split.seconds[n]) for n in range(len(split))}
    assert (found["1B0"], found["1I0"], found["1W0"]) == (12.0, 8.0, 4.0)
    assert costs.seconds(OpKind.RECOMPUTE, 1, 0, one).tolist() == [4.0]


def test_transfers_take_the_route_of_the_cluster() -> None:
    """2 elements of 4 bytes per sample: 4 samples are 32 bytes; 0.5 + 2 s over one link, 0.75 + 4 over two, either way."""
    costs = plan_costs(SPLIT)
    assert costs.boundary_bytes == (8.0,)
    down = costs.transfer((0, 0), (1, 0), 4)
    assert (down.seconds, down.size_bytes, len(down.route)) == (2.5, 32.0, 1)
    far = plan_costs((Stage((0, 1), (0,)), Stage((2,), (2,))))
    up = far.transfer((1, 0), (0, 0), 4)
    assert (up.seconds, up.size_bytes, len(up.route)) == (4.75, 32.0, 2)


def test_buckets_of_a_replicated_stage() -> None:
    """Small gradients are one bucket of the whole backward; its seconds and channels are the cluster's all-reduce."""
    costs = plan_costs((Stage((0, 1, 2), (0, 2)),))
    (bucket,) = costs.buckets(0)
    assert bucket.share == pytest.approx(1.0)
    assert bucket.seconds == costs.problem.cluster.collectives.seconds(Operation.ALL_REDUCE, (0, 2), 160.0)
    assert bucket.route == costs.problem.cluster.collectives.busy(Operation.ALL_REDUCE, (0, 2))[0]
    assert plan_costs(SPLIT).buckets(0) == ()


def test_large_gradients_are_reduced_layer_by_layer_from_the_back() -> None:
    """Layers of 28 MB each fill a bucket of their own (25 MiB); shares are those of the layers' backward, last layer first."""
    workload = chain([1.0, 2.0, 5.0], parameters=[7_000_000] * 3, output_elements=[1.0] * 3)
    problem = Problem(workload, chain_cluster(2), 2)
    buckets = PlanCosts(problem, Plan("hand", "gpipe", (Stage((0, 1, 2), (0, 1)),), (2,))).buckets(0)
    assert [bucket.share for bucket in buckets] == pytest.approx([5 / 8, 2 / 8, 1 / 8])
    assert [bucket.seconds for bucket in buckets] == pytest.approx([28e6] * 3)
    assert sum(bucket.share for bucket in buckets) == pytest.approx(1.0)
    whole = replace(problem, gradient_reduction="whole")
    (bucket,) = PlanCosts(whole, Plan("hand", "gpipe", (Stage((0, 1, 2), (0, 1)),), (2,))).buckets(0)
    assert (bucket.share, bucket.seconds) == pytest.approx((1.0, 84e6))


def test_there_are_at_most_32_buckets() -> None:
    """However many layers, the bucket size grows with the stage."""
    workload = chain([1.0] * 100, parameters=[7_000_000] * 100, output_elements=[1.0] * 100)
    problem = Problem(workload, chain_cluster(2), 2)
    buckets = PlanCosts(problem, Plan("hand", "gpipe", (Stage(tuple(range(100)), (0, 1)),), (2,))).buckets(0)
    assert len(buckets) <= 32
    assert sum(bucket.share for bucket in buckets) == pytest.approx(1.0)


def test_weightless_layers_in_front_of_a_replicated_stage() -> None:
    """Their part of the backward is a bucket of its own that moves nothing and takes no time, not even latency."""
    workload = chain([3.0, 1.0], parameters=[0, 7_000_000], output_elements=[1.0, 1.0])
    problem = Problem(workload, chain_cluster(2, latency=5.0), 2)
    costs = PlanCosts(problem, Plan("hand", "gpipe", (Stage((0, 1), (0, 1)),), (2,)))
    assert [(bucket.share, bucket.seconds) for bucket in costs.buckets(0)] == [
        (0.25, problem.cluster.collectives.seconds(Operation.ALL_REDUCE, (0, 1), 28e6)),
        (0.75, 0.0),
    ]
    light = replace(problem, workload=chain([0.0, 1.0], parameters=[0, 7_000_000], output_elements=[1.0, 1.0]))
    assert [bucket.share for bucket in PlanCosts(light, costs.plan).buckets(0)] == [1.0]
    weighty = replace(problem, workload=chain([0.0, 1.0], parameters=[5, 7_000_000], output_elements=[1.0, 1.0]))
    assert [(bucket.share, bucket.seconds) for bucket in PlanCosts(weighty, costs.plan).buckets(0)] == [
        (1.0, problem.cluster.collectives.seconds(Operation.ALL_REDUCE, (0, 1), 28e6)),
        (0.0, problem.cluster.collectives.seconds(Operation.ALL_REDUCE, (0, 1), 20.0)),
    ]


def test_a_board_with_one_measured_layer_streams_nothing() -> None:
    """Seconds that were measured say nothing of DSPs: the stage is the sum of its layers, though one is analytic."""
    analytic = chain([1e6, 2e6], parameters=[10, 10], output_elements=[4.0, 4.0])
    layers = (replace(analytic.layers[0], measured=((1.0, 0.5, 1.0),)), analytic.layers[1])
    cluster = load_cluster("fpga-vcu118-4").take(1)
    mixed_layers, held = replace(analytic, layers=layers, bytes_per_element=4), np.arange(2)
    for workload, streams in ((analytic, True), (mixed_layers, False)):
        costs = LayerCosts(Problem(workload, cluster, 1))
        assert costs.streams(0) is streams
    total = costs.seconds(0, 1, "forward")
    assert total[0] == 0.5
    assert costs.stage_seconds(0, held, 1, "forward") == float(total.sum())
    stages = np.array([[True, True], [True, False]])
    assert costs.seconds_of_stages(0, stages)(1, "forward").tolist() == [float(total.sum()), 0.5]


@pytest.mark.parametrize("cluster", ["fpga-vcu118-4", "dgx-a100:1"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_stages_asked_for_at_once_take_what_each_takes(cluster: str, phase: Any) -> None:
    """Those of any layers on boards, whose layers stream, and on GPUs; one without layers takes nothing."""
    problem = Problem(load_workload("alexnet"), load_cluster(cluster).take(1), 4)
    costs, layers = LayerCosts(problem), len(problem.workload)
    held = np.array([[begin <= layer < end for layer in range(layers)] for begin, end in ((0, 4), (3, layers), (2, 2))])
    alone = [costs.stage_seconds(0, np.flatnonzero(row), 2, phase) for row in held[:2]]
    assert costs.seconds_of_stages(0, held)(2, phase) == pytest.approx([*alone, 0.0])


def test_stages_of_boards_in_groups_take_as_much_longer_as_the_boards_reduce() -> None:
    """Behind the layer that each of two boards has rows of: 1 s, and 0.25 s for a byte, of 8 elements a sample."""
    layers = (
        Layer("up", "linear", 8e6, 1000, 16.0, 4.0, split="columns"),
        Layer("down", "linear", 8e6, 1000, 8.0, 16.0, split="rows"),
    )
    alone = LayerCosts(Problem(Workload("w", layers, ((0, 1),)), load_cluster("fpga-vcu118-4").take(2), 4))
    group, held = alone.at(Parallelism(2), GroupRates(tensor=((1.0, 0.25),))), np.array([[True, True], [True, False]])
    longer = group.seconds_of_stages(0, held)(2, "forward") - group.computing.seconds_of_stages(0, held)(2, "forward")
    assert longer == pytest.approx([1.0 + 0.25 * 2 * 4 * 8.0, 0.0])


@pytest.mark.parametrize(("replication", "shares"), [("split", [1 / 4, 3 / 4]), ("round-robin", [3 / 4, 1 / 4])])
def test_shares_of_buckets_are_those_of_the_largest_part_of_a_microbatch(replication: Any, shares: list[float]) -> None:
    """Micro-batches of 2 and 4 samples on two replicas: parts of 2 where they are split, of 4 where they take turns.

    The last layer takes 1 of 4 seconds of the backward of 2 samples, and 3 of 4 of that of 4.
    """
    layers = tuple(
        Layer(name, "linear", 1.0, 7_000_000, 1.0, 1.0, measured=((1.0, 1.0, 1.0), (2.0, 1.0, two), (4.0, 1.0, four)))
        for name, two, four in (("first", 3.0, 1.0), ("last", 1.0, 3.0))
    )
    problem = Problem(Workload("w", layers, ((0, 1),), bytes_per_element=4), chain_cluster(2), 6)
    plan = Plan("hand", "1f1b-rr", (Stage((0, 1), (0, 1)),), (2, 4), replication)
    assert [bucket.share for bucket in PlanCosts(problem, plan).buckets(0)] == pytest.approx(shares)
