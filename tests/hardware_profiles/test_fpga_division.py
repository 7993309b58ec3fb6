"""Tests of `hardware_profiles.fpga_division`: proportions, whole DSPs, on-chip memory, and the bounds of first principles."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import FieldProgrammableGateArray, Phase, Work, load_accelerator
from hardware_profiles.fpga_division import divide, divide_dsps, feature_traffic, weight_traffic
from hardware_profiles.gpu import demand
from simulator import load_workload

PASSES: tuple[Phase, ...] = ("forward", "input_gradient", "weight_gradient")


def board(**changes: float) -> FieldProgrammableGateArray:
    """100 DSPs of one multiply-add a cycle at 1 Hz, 1,000 bytes on chip, 10 bytes/s of DDR."""
    made = FieldProgrammableGateArray("hand", 100, 1.0, {"int8": 1.0, "fp32": 1.0}, 1.0, 1000.0, 1e9, 10.0, 1.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def product(macs: float, parameters: float = 0.0, features: float = 0.0) -> Work:
    """A linear layer of that many multiply-adds."""
    return Work("linear", 2.0 * macs, features, features, parameters)


def test_shares_are_proportional_to_work() -> None:
    """Layers of 10, 30 and 60 multiply-adds get 10, 30 and 60 of 100 DSPs and finish together."""
    division = divide(board(), [product(10), product(30), product(60)], "int8")
    assert division.dsps.tolist() == [[10, 30, 60]]
    assert board().stage_seconds([product(10), product(30), product(60)], 1, "forward", "int8") == 1.0


def test_layers_without_multiply_adds_need_no_dsps() -> None:
    """A pooling layer and an input leave the DSPs to the product."""
    works = [Work("input", 0.0, 0.0, 5.0, 0.0), product(50), Work("pooling", 0.0, 5.0, 1.0, 0.0)]
    assert divide(board(), works, "int8").dsps.tolist() == [[0, 100, 0]]


@settings(max_examples=60, deadline=None)
@given(work=st.lists(st.integers(1, 50), min_size=1, max_size=4), dsps=st.integers(4, 12))
def test_whole_dsps_are_divided_in_the_best_way(work: list[int], dsps: int) -> None:
    """No other whole division has a faster slowest layer (all are tried)."""
    shares = divide_dsps(tuple(work), dsps)
    assert sum(shares) <= dsps
    best = min(
        max(w / n for w, n in zip(work, tried, strict=True))
        for tried in itertools.product(range(1, dsps + 1), repeat=len(work))
        if sum(tried) <= dsps
    )
    assert max(w / n for w, n in zip(work, shares, strict=True)) == pytest.approx(best)


def test_more_layers_than_dsps_are_refused() -> None:
    """Each layer with work needs a DSP."""
    with pytest.raises(ValueError, match="3 layers with multiply-adds need as many DSPs, got 2"):
        divide_dsps((1.0,) * 3, 2)
    with pytest.raises(ValueError, match=r"4 layers with multiply-adds need as many DSPs, got 3$"):
        divide(board(dsps=5, share=0.7), [product(1.0)] * 4, "int8")


@pytest.mark.parametrize("work", [5e-324, 2e-323, 1e-310, 1e300])
def test_work_of_any_size_is_divided(work: float) -> None:
    """Also where no number lies between the two ends of the search."""
    assert sum(divide_dsps((work, work, work), 4)) <= 4


def test_weights_stay_on_the_chip_where_all_of_the_stage_fit_with_their_gradients() -> None:
    """1,000 bytes hold 2 x (300 + 150) of a stage and leave 100; 2 x 551 of another do not fit, and all of them stream."""
    works = [product(1, 150), product(1, 101), product(1, 300)]
    division = divide(board(), works, "int8", np.array([[True, False, True], [True, True, True]]))
    assert division.on_chip.tolist() == [True, False]
    assert division.free_bytes.tolist() == [100.0, 1000.0]


def test_weights_in_ddr_bound_a_streaming_sample() -> None:
    """600 weights x 2 do not fit in 1,000 bytes: 60 s per sample forward and 120 s for the weight gradient, at 10 bytes/s."""
    works = [product(100, 600)]
    division = divide(board(), works, "int8")
    assert division.on_chip.tolist() == [False]
    assert division.sample_seconds(1, "forward") == 60.0
    assert division.sample_seconds(1, "weight_gradient") == 120.0


def test_many_samples_are_better_run_layer_by_layer_where_weights_lie_in_ddr() -> None:
    """Eight samples read the weights eight times when they stream (480 s), once layer by layer (60 s)."""
    works = [product(100, 600)]
    assert divide(board(), works, "int8").layerwise_seconds(8, "forward") == 60.0
    assert board().stage_seconds(works, 8, "forward", "int8") == 60.0
    assert board().stage_seconds(works, 1, "forward", "int8") == 60.0


def test_smaller_stages_keep_their_weights_on_the_chip() -> None:
    """Two layers of 400 weights: one board reads both from DDR, two boards none."""
    works = [product(100, 400), product(100, 400)]
    whole = board().stage_seconds(works, 1, "forward", "int8")
    half = board().stage_seconds(works[:1], 1, "forward", "int8")
    assert (whole, half) == (80.0, 1.0)


def test_features_go_to_ddr_where_they_do_not_fit() -> None:
    """400 bytes of input a sample: two samples are kept on the chip, three are written (40 s each) and read again; of a reshape,
    which computes nothing, no input is kept.
    """
    works = [product(100, features=400), Work("reshape", 0.0, 400.0, 400.0, 0.0)]
    division = divide(board(), works, "int8")
    assert division.sample_seconds(2, "forward") == 1.0
    assert division.sample_seconds(3, "forward") == 40.0
    assert division.sample_seconds(3, "input_gradient") == 1.0


@pytest.mark.parametrize("name", ["vcu118", "vcu129", "u280"])
@settings(max_examples=40, deadline=None)
@given(
    layers=st.lists(st.tuples(st.floats(1e3, 1e9), st.floats(0, 3e7), st.floats(1e2, 1e6)), min_size=1, max_size=6),
    samples=st.integers(1, 64),
    phase=st.sampled_from(PASSES),
)
def test_no_layer_is_faster_than_its_dsps_or_ddr(
    name: str, layers: list[tuple[float, float, float]], samples: int, phase: Phase
) -> None:
    """A stage takes at least the DSP seconds of its work, and the DDR seconds of weights that cannot be on the chip."""
    made = load_accelerator(name)
    assert isinstance(made, FieldProgrammableGateArray)
    works = [product(*layer) for layer in layers]
    seconds = made.stage_seconds(works, samples, phase, "fp32")
    flop = sum(demand(work, samples, phase, 4).flop for work in works)
    assert seconds >= flop / made.flop_rate("fp32") * (1 - 1e-12)
    division = divide(made, works, "fp32")
    assert division.dsps.sum() <= made.dsps
    weights = sum(8 * work.parameters for work in works)
    left = (
        made.on_chip_bytes - weights
    )  # weights stay where they fit, unless what they leave is too little for features
    assert bool(division.on_chip[0]) <= (left >= 0)
    if all(4 * feature_traffic(work) <= left for work in works):
        assert division.on_chip[0]
    if not division.on_chip[0]:
        moved = sum(weight_traffic(work, phase) for work in works)
        assert seconds >= 4 * moved / made.ddr_bandwidth * (1 - 1e-12)


KINDS = ("linear", "convolution", "embedding", "normalization", "pooling", "attention", "reshape")


@settings(max_examples=60, deadline=None)
@given(
    layers=st.lists(
        st.tuples(st.sampled_from(KINDS), st.floats(0, 1e9), st.floats(0, 3e7), st.floats(1e2, 1e6)),
        min_size=1,
        max_size=7,
    ),
    samples=st.integers(1, 64),
    phase=st.sampled_from(("backward", *PASSES)),
    data=st.data(),
)
def test_stages_that_are_asked_for_together_take_what_each_takes(
    layers: list[tuple[str, float, float, float]], samples: int, phase: Phase, data: st.DataObject
) -> None:
    """Any layers of a network as a stage, to the last bit; of none no time."""
    works = [Work(kind, flop, features, features, parameters) for kind, flop, parameters, features in layers]
    stage = st.lists(st.booleans(), min_size=len(works), max_size=len(works))
    held = np.array(data.draw(st.lists(stage, min_size=1, max_size=4)), dtype=np.bool_)
    made = load_accelerator("vcu118")
    assert isinstance(made, FieldProgrammableGateArray)
    alone = [
        made.stage_seconds([one for one, has in zip(works, row, strict=True) if has], samples, phase, "fp32")
        for row in held
    ]
    assert made.divided(works, held, "fp32").seconds(samples, phase).tolist() == alone
    assert not made.divided(works, np.zeros_like(held), "fp32").seconds(samples, phase).any()


def test_backward_is_the_sum_of_its_gradients() -> None:
    """Error and weight gradient, one after the other."""
    works = [product(100, 10, 5), product(60, 20, 5)]
    parts = [board().stage_seconds(works, 2, phase, "int8") for phase in PASSES]
    assert board().stage_seconds(works, 2, "backward", "int8") == parts[1] + parts[2]
    assert parts[1] == parts[0]


def test_features_are_counted_in_bytes_of_the_precision() -> None:
    """400 elements per sample are 1,600 bytes in fp32: one sample no longer fits in 1,000, and takes 160 s to write."""
    works = [product(100, features=400)]
    division = divide(board(), works, "fp32")
    assert division.sample_seconds(1, "forward") == 160.0
    assert division.sample_seconds(1, "weight_gradient") == 160.0
    roomy = board(on_chip_bytes=1600.0)
    assert divide(roomy, works, "fp32").sample_seconds(1, "forward") == 1.0


def test_what_is_moved_layer_by_layer() -> None:
    """Weights in DDR once an op, features where an op's do not fit, each layer the larger of its DSPs and its DDR."""
    weighty, wide = product(100, 600), product(100, features=300)
    division = divide(board(), [weighty, wide], "int8")
    assert division.on_chip.tolist() == [False]
    assert division.layerwise_seconds(1, "forward") == 60.0 + 1.0
    # 2 x 300 elements of two samples do not fit in 1,000 bytes: 1,200 bytes at 10 bytes/s.
    assert division.layerwise_seconds(2, "forward") == 60.0 + 120.0
    assert division.layerwise_seconds(1, "weight_gradient") == 120.0


@pytest.mark.parametrize(
    ("kind", "phase", "moved"),
    [
        ("linear", "forward", 600.0),
        ("linear", "input_gradient", 600.0),
        ("linear", "weight_gradient", 1200.0),
        ("embedding", "forward", 50.0),
        ("embedding", "input_gradient", 0.0),
        ("embedding", "weight_gradient", 1200.0),
        ("reshape", "forward", 0.0),
    ],
)
def test_weights_that_a_pass_moves(kind: str, phase: Phase, moved: float) -> None:
    """Read once, gradient sums read and written; a gather moves its rows."""
    assert weight_traffic(Work(kind, 0.0, 10.0, 50.0, 600.0), phase) == moved


@pytest.mark.parametrize(
    ("kind", "in_place", "moved"),
    [
        ("pooling", False, 150.0),
        ("activation", True, 50.0),  # a sum's second operand
        ("activation", False, 300.0),  # a function of 100, and a product with it
        ("reshape", False, 0.0),
        ("dropout", False, 0.0),
    ],
)
def test_features_that_a_layer_moves(kind: str, in_place: bool, moved: float) -> None:
    """Read and written; in place only what is read beside; SiLU writes a function, and reads both again."""
    assert feature_traffic(Work(kind, 0.0, 100.0, 50.0, 0.0, in_place=in_place)) == moved


def test_normalizations_behind_convolutions_and_layers_that_keep_nothing_are_in_place() -> None:
    """ReLU and BN of MobileNet; of EfficientNet no SiLU, and no product of channels and weights."""
    for name, kinds in (("mobilenet-v1", {"activation", "normalization"}), ("efficientnet-b0", {"normalization"})):
        workload = load_workload(name)
        found = {one.kind for one in workload.works() if one.in_place and one.output_elements > 1e5}
        assert found == kinds
    assert not any(one.in_place for one in load_workload("gpt2").works() if one.kind == "normalization")


def test_depthwise_convolutions_run_on_an_engine_of_their_own() -> None:
    """A fifth of 100 multiply-adds a second: 100 take 5 s forward and as long for each gradient; others run on the array."""
    fpga, depthwise = board(depthwise=0.2), Work("convolution", 200.0, 0.0, 1.0, 0.0, channels=(1, 1))
    division = divide(fpga, [depthwise, replace(depthwise, channels=(1, 4))], "int8")
    assert [division.computing_seconds(1, phase).tolist() for phase in ("forward", "input_gradient")] == [
        [5.0, 1.0]
    ] * 2
    assert fpga.multiply_seconds(depthwise, "forward", "int8") == 5.0


def test_sums_and_pools_run_on_the_engine_of_depthwise_convolutions() -> None:
    """It takes 20 of their elements a second, forward and for the gradient of what they read; without it they take no cycles."""
    fpga, works = (
        board(depthwise=0.2),
        [Work(kind, 0.0, 60.0, 30.0, 0.0) for kind in ("elementwise", "pooling", "activation")],
    )
    seconds = {phase: divide(fpga, works, "int8").computing_seconds(1, phase).tolist() for phase in PASSES[1:]}
    assert seconds == {"input_gradient": [3.0, 3.0, 0.0], "weight_gradient": [0.0] * 3}
    assert divide(fpga, works, "int8").computing_seconds(2, "forward").tolist() == [6.0, 6.0, 0.0]
    assert fpga.multiply_seconds(works[0], "backward", "int8") == 3.0
    assert not divide(board(), works, "int8").computing_seconds(1, "forward").any()


def test_ports_bound_what_the_memory_beside_the_chip_brings() -> None:
    """100 DSPs that take 0.04 bytes a cycle at 1 Hz reach half of 4 bytes a second; 500 of them half of the memory's 10."""
    fpga = board(port_bytes=0.04, memory_efficiency=0.5)
    assert (fpga.offered_bandwidth, fpga.reached_bandwidth) == (4.0, 2.0)
    assert replace(fpga, dsps=500).reached_bandwidth == 5.0
    assert replace(fpga, port_bytes=0.0).reached_bandwidth == 5.0


def test_samples_that_share_an_array_leave_parts_of_it_idle() -> None:
    """100 DSPs, 25 for each of four samples: one takes as long as four, five as eight."""
    fpga = board(sample_dsps=25)
    assert fpga.batch == 4
    division = divide(fpga, [product(100)], "int8")
    assert [division.layerwise_seconds(samples, "forward")[0] for samples in (1, 4, 5)] == [4.0, 4.0, 8.0]
