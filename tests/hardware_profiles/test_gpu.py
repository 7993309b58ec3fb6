"""GPU: the roofline and its saturation."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import LAYER_KINDS, GraphicsProcessor, Work, load_accelerator
from hardware_profiles.accelerator import PRECISION_BYTES, ZERO_COST_KINDS
from hardware_profiles.accelerator_files import EfficiencyTables
from hardware_profiles.gpu import (
    DEFAULT_EFFICIENCIES,
    FUSED_ATTENTION,
    Demand,
    KindEfficiency,
    demand,
    tile_use,
    window_overlap,
)

PLAIN = KindEfficiency(forward=0.5, backward=0.25, matrix=0.5, memory=0.5)


def device(**changes: object) -> GraphicsProcessor:
    """1 TFLOP/s in fp32, 8 in fp16, 100 GB/s, no overheads, every kind at half of the peaks."""
    plain = GraphicsProcessor(
        name="plain",
        memory_bytes=1e9,
        memory_bandwidth=100e9,
        peak_flops={"fp32": 1e12, "fp16": 8e12},
        call_overhead=0.0,
        step_overhead=0.0,
        efficiencies=dict.fromkeys(DEFAULT_EFFICIENCIES, PLAIN),
    )
    return replace(plain, **changes)


LINEAR = Work("linear", flop=2e9, input_elements=1e3, output_elements=1e3, parameters=1e6)
STREAM = Work("activation", flop=0.0, input_elements=1e6, output_elements=1e6, parameters=0)

works = st.builds(
    Work,
    kind=st.sampled_from(sorted(set(LAYER_KINDS) - ZERO_COST_KINDS)),
    flop=st.floats(1e3, 1e12),
    input_elements=st.floats(1.0, 1e8),
    output_elements=st.floats(1.0, 1e8),
    parameters=st.one_of(st.just(0.0), st.floats(1.0, 1e9)),
    sequential_steps=st.integers(1, 100),
)
phases = st.sampled_from(["forward", "backward", "input_gradient", "weight_gradient"])
precisions = st.sampled_from(["fp32", "fp16"])


def test_bytes_of_an_element() -> None:
    """As numpy stores them; bf16 is half of a single, tf32 is stored as one, fp8 is a byte, narrower ones share a byte."""
    stored = {name: np.dtype(kind).itemsize for name, kind in (("fp32", "f4"), ("fp16", "f2"), ("int8", "i1"))}
    narrow = {name: stored["int8"] * bits / 8 for name, bits in (("int4", 4), ("int3", 3), ("int2", 2), ("int1", 1))}
    wide = {"tf32": stored["fp32"], "bf16": stored["fp32"] // 2, "fp8": stored["int8"]}
    assert stored | wide | narrow == PRECISION_BYTES


def test_what_a_gpu_is_by_default() -> None:
    """Its name, memory, bandwidth and rates alone: the documented overheads, no reserve, efficiencies of every kind."""
    gpu = GraphicsProcessor("gpu", 1e9, 900e9, {"fp32": 15e12})
    assert (gpu.call_overhead, gpu.step_overhead, gpu.reserve_bytes) == (20e-6, 5e-6, 0.0)
    assert gpu.efficiencies == DEFAULT_EFFICIENCIES


def test_knows_every_kind_of_layer() -> None:
    """Kinds with an efficiency (of attention two) and those without a cost are the simulator's; a file may name the former."""
    assert set(DEFAULT_EFFICIENCIES) - {FUSED_ATTENTION} | ZERO_COST_KINDS == set(LAYER_KINDS)
    assert set(EfficiencyTables.__struct_fields__) == set(DEFAULT_EFFICIENCIES)


def test_compute_bound_forward() -> None:
    """10 samples of 2 GFLOP at half of 1 TFLOP/s take 40 ms."""
    assert device().seconds(LINEAR, 10, "forward", "fp32") == pytest.approx(0.040)


def test_memory_bound_forward() -> None:
    """Reading and writing 4 MB per sample at half of 100 GB/s takes 160 us."""
    assert device().seconds(STREAM, 1, "forward", "fp32") == pytest.approx(8e6 / 50e9)


def test_half_precision_halves_the_traffic_and_uses_the_matrix_ceiling() -> None:
    """fp16 moves 2 bytes an element; its peak and its ceiling are its own."""
    assert device().seconds(STREAM, 1, "forward", "fp16") == pytest.approx(4e6 / 50e9)
    assert device().seconds(LINEAR, 10, "forward", "fp16") == pytest.approx(20e9 / 4e12)


def test_backward_is_twice_the_flop_where_there_are_parameters() -> None:
    """Input gradient and weight gradient cost a forward's FLOP each, at the backward's ceiling."""
    assert demand(LINEAR, 3, "input_gradient", 4).flop == demand(LINEAR, 3, "weight_gradient", 4).flop == 6e9
    assert device().seconds(LINEAR, 10, "backward", "fp32") == pytest.approx(2 * 20e9 / 0.25e12)


def test_layers_without_parameters_have_no_weight_gradient() -> None:
    """The whole backward of an activation is its input gradient."""
    gpu = device(call_overhead=1.0)
    assert gpu.seconds(STREAM, 4, "weight_gradient", "fp32") == 0.0
    assert gpu.seconds(STREAM, 4, "backward", "fp32") == gpu.seconds(STREAM, 4, "input_gradient", "fp32")


def test_scratch_is_added_to_the_products_and_moves_twice_in_a_backward() -> None:
    """Scores that no fused kernel keeps: their bytes take 160 us beside 20 ms of products, and as much in each gradient."""
    plain = Work("attention", 1e9, 1e3, 1e3, 0)
    unfused = replace(plain, scratch_elements=2e6)
    for phase, times in (("forward", 1), ("backward", 2)):
        extra = device().seconds(unfused, 10, phase, "fp32") - device().seconds(plain, 10, phase, "fp32")
        assert extra == pytest.approx(times * 10 * 8e6 / 50e9)
    weighted = replace(unfused, parameters=1e3)
    assert [demand(weighted, 1, phase, 4).scratch for phase in ("input_gradient", "weight_gradient")] == [8e6, 8e6]


def test_matrix_engines_may_have_a_ceiling_of_their_own_for_gradients() -> None:
    """Products at half of 8 TFLOP/s forward and a quarter in each gradient; one ceiling alone holds for both."""
    uneven = {"linear": replace(PLAIN, matrix_backward=0.25)}
    assert device(efficiencies=uneven).seconds(LINEAR, 10, "forward", "fp16") == pytest.approx(20e9 / 4e12)
    assert device(efficiencies=uneven).seconds(LINEAR, 10, "backward", "fp16") == pytest.approx(2 * 20e9 / 2e12)
    assert device().seconds(LINEAR, 10, "backward", "fp16") == pytest.approx(2 * 20e9 / 4e12)


def test_a_weight_gradient_is_added_to_what_is_there() -> None:
    """Twice the 8 MB of its weights at 50 GB/s beside its product, in the weight gradient alone and whatever the samples."""
    adding = device(efficiencies={"linear": replace(PLAIN, accumulated=2.0)})
    weights = replace(LINEAR, parameters=2e6)
    for samples in (1, 10):
        for phase, extra in (("forward", 0.0), ("input_gradient", 0.0), ("weight_gradient", 16e6 / 50e9)):
            more = adding.seconds(weights, samples, phase, "fp32") - device().seconds(weights, samples, phase, "fp32")
            assert more == pytest.approx(extra)


def test_products_of_experts_move_their_weights_beside_themselves() -> None:
    """The 8 MB of all experts at 50 GB/s once in the forward and in the input gradient, and as often as sums say in the weight
    gradient: of experts where there is a figure for them."""
    weights = replace(LINEAR, parameters=2e6, experts=4)
    for shares, sums in (({"accumulated": 2.0}, 2), ({"accumulated": 2.0, "accumulated_experts": 4.0}, 4)):
        gpu = device(efficiencies={"linear": replace(PLAIN, **shares)})
        for phase, times in (("forward", 1), ("input_gradient", 1), ("weight_gradient", sums)):
            more = gpu.seconds(weights, 1, phase, "fp32") - device().seconds(
                replace(weights, experts=0), 1, phase, "fp32"
            )
            assert more == pytest.approx(times * 8e6 / 50e9)


def test_attention_in_one_kernel() -> None:
    """It has shares of its own, three quarters of the peak; a causal mask hides half of the FLOP, without one it computes all of
    them. A quarter in several kernels. What else it moves comes on top."""
    kinds = {"attention": replace(PLAIN, forward=0.25), FUSED_ATTENTION: replace(PLAIN, forward=0.75)}
    gpu, fused = device(efficiencies=kinds), Work("attention", 1e9, 1e3, 1e3, 0, fused_pairs=0.5)
    assert gpu.seconds(fused, 1, "forward", "fp32") == pytest.approx(0.5e9 / 0.75e12)
    assert gpu.seconds(replace(fused, fused_pairs=1.0), 1, "forward", "fp32") == pytest.approx(1e9 / 0.75e12)
    assert gpu.seconds(replace(fused, fused_pairs=0.0), 1, "forward", "fp32") == pytest.approx(1e9 / 0.25e12)
    moved = gpu.seconds(replace(fused, scratch_elements=1e3), 1, "forward", "fp32")
    assert moved == pytest.approx(0.5e9 / 0.75e12 + 4e3 / 50e9)


def test_a_loss_moves_its_logits_in_fp32() -> None:
    """38 bytes per logit forward and 22 backward, whatever the precision."""
    loss = Work("loss", 0.0, 1000, 1, 0)
    for precision in (2, 4):
        found = [
            demand(loss, 3, phase, precision).traffic for phase in ("forward", "input_gradient", "weight_gradient")
        ]
        assert found == [114e3, 66e3, 0.0]


def test_hooks_of_a_profiler_add_to_each_pass() -> None:
    """0.3 s around a forward and 0.04 s around each of two gradients."""
    hooked, plain = device(forward_hook=0.3, gradient_hook=0.04), device()
    for phase, extra in (("forward", 0.3), ("backward", 0.08), ("weight_gradient", 0.04)):
        assert hooked.seconds(LINEAR, 1, phase, "fp32") == pytest.approx(
            plain.seconds(LINEAR, 1, phase, "fp32") + extra
        )


@pytest.mark.parametrize("kind", ["input", "reshape"])
def test_inputs_and_views_cost_nothing(kind: str) -> None:
    """Nothing is launched for data that arrive, nor for a view."""
    work = Work(kind, 0.0, 1e6, 1e6, 0)
    assert device(call_overhead=1.0).seconds(work, 8, "forward", "fp32") == 0.0
    assert device(call_overhead=1.0).seconds(work, 8, "backward", "fp32") == 0.0


@pytest.mark.parametrize(
    ("kind", "parameters", "forward", "input_gradient", "weight_gradient"),
    [
        ("linear", 7, (300, 97), (300, 97), (300, 97)),
        ("activation", 0, (300, 90), (300, 120), (0, 0)),  # the gradient reads the stashed input
        ("elementwise", 0, (300, 90), (300, 90), (0, 0)),  # a sum needs none
        ("attention", 0, (300, 90), (600, 120), (0, 0)),  # a product of two activations
        ("attention", 7, (300, 97), (300, 97), (300, 97)),
        ("normalization", 7, (300, 127), (300, 97), (300, 97)),  # mean and variance come first
        (
            "embedding",
            7,
            (300, 150),
            (0, 0),
            (300, 97),
        ),  # rows are read and written, the gradient is as wide as the table
        ("reshape", 0, (0, 0), (0, 0), (0, 0)),
    ],
)
def test_what_each_pass_asks_for(
    kind: str,
    parameters: int,
    forward: tuple[float, float],
    input_gradient: tuple[float, float],
    weight_gradient: tuple[float, float],
) -> None:
    """FLOP, and elements moved, of 3 samples of 100 FLOP that read 10 elements and write 20: 30 + 60, and parameters once."""
    work = Work(kind, flop=100, input_elements=10, output_elements=20, parameters=parameters)
    for phase, (flop, elements) in (
        ("forward", forward),
        ("input_gradient", input_gradient),
        ("weight_gradient", weight_gradient),
    ):
        assert demand(work, 3, phase, 4) == Demand(flop, 4 * elements)  # type: ignore[arg-type]


def test_overheads_count_a_call_and_a_step() -> None:
    """A recurrent layer of 7 steps pays the call once and the step 7 times."""
    work = Work("recurrent", 7e9, 1e3, 1e3, 1e3, sequential_steps=7)
    slow = device(call_overhead=0.1, step_overhead=0.01)
    extra = slow.seconds(work, 1, "forward", "fp32") - device().seconds(work, 1, "forward", "fp32")
    assert extra == pytest.approx(0.1 + 0.07)


def test_half_work_reaches_half_of_the_ceiling() -> None:
    """Work of exactly the saturation seconds at peak takes twice what it would at the ceiling."""
    kinds = {"linear": replace(PLAIN, saturation_seconds=0.002)}
    assert device(efficiencies=kinds).seconds(LINEAR, 1, "forward", "fp32") == pytest.approx(2 * 0.004)


def test_window_overlap_is_kernel_over_stride_squared() -> None:
    """A 3x3 convolution of stride 1 overlaps 9-fold, of stride 2 2.25-fold, a 1x1 not at all, nor does a linear layer."""

    def convolution(kernel: int, stride: int) -> Work:
        weights, positions = kernel**2 * 16 * 32, 100.0
        return Work("convolution", 2 * weights * positions, stride**2 * positions * 16, positions * 32, weights)

    assert window_overlap(convolution(3, 1)) == pytest.approx(9.0)
    assert window_overlap(convolution(3, 2)) == pytest.approx(2.25)
    assert window_overlap(convolution(1, 1)) == pytest.approx(1.0)
    assert window_overlap(LINEAR) == 1.0
    for nothing in ("parameters", "input_elements", "output_elements"):
        assert window_overlap(replace(convolution(3, 1), **{nothing: 0})) == 1.0


def convolution(read: int, made: int, kernel: int = 3, groups: int = 1) -> Work:
    """A convolution of stride 1 with an output of 10 x 10 pixels; channels are those of all groups."""
    flop = 2.0 * kernel**2 * read / groups * made * 100
    weights = kernel**2 * read // groups * made
    return Work("convolution", flop, 100 * read, 100 * made, weights, channels=(read // groups, made // groups))


@pytest.mark.parametrize(
    ("work", "forward", "input_gradient"),
    [
        (convolution(128, 128), 1.0, 1.0),
        (convolution(3, 128), 27 / 64, 3 / 64),  # 27 weights an output; the gradient of an image's 3 channels
        (convolution(128, 16, kernel=1), 16 / 64, 16 / 64),  # the gradient adds up 16 terms
        (convolution(128, 128, groups=32), 4 / 64, 4 / 64),
        (convolution(128, 128, groups=128), 1 / 64, 1 / 64),
        (replace(convolution(3, 128), channels=(0, 0)), 1.0, 1.0),
        (replace(convolution(3, 128), channels=(3, 0)), 1.0, 1.0),
    ],
)
def test_thin_and_grouped_convolutions_fill_a_part_of_their_tiles(
    work: Work, forward: float, input_gradient: float
) -> None:
    """Tiles of 64: by the terms that an output adds up, or by the channels that a group makes, whichever are fewer; a kernel
    without tiles does an eighth of what full ones do, and starts no later."""
    assert tile_use(work, "forward", 64) == tile_use(work, "weight_gradient", 64) == pytest.approx(forward)
    assert tile_use(work, "input_gradient", 64) == pytest.approx(input_gradient)
    quick = {"memory_bandwidth": 1e18}
    full, tiled = device(**quick), device(**quick, efficiencies={"convolution": replace(PLAIN, tile=64)})
    times = tiled.seconds(work, 1, "forward", "fp32") / full.seconds(work, 1, "forward", "fp32")
    assert times == pytest.approx(min(1 / forward, 8))
    start = replace(PLAIN, tile=64, saturation_seconds=1e-3)
    late = device(**quick, efficiencies={"convolution": start}).seconds(work, 1, "forward", "fp32")
    waited = late - tiled.seconds(work, 1, "forward", "fp32")
    assert waited == pytest.approx(1e-3 / PLAIN.forward * (1 / forward if forward > 1 / 8 else 1))


def test_what_no_layer_made_is_read_and_copied_but_has_no_gradient() -> None:
    """Images: their bytes move over the device's memory, and from the host at 10 GB/s where a forward waits for them."""
    first = Work("convolution", 2e9, 0, 1e3, 1e3, loaded_elements=1e6)
    later = replace(first, input_elements=1e6, loaded_elements=0)
    assert demand(first, 1, "forward", 4) == demand(later, 1, "forward", 4)
    assert demand(first, 1, "weight_gradient", 4) == demand(later, 1, "weight_gradient", 4)
    assert demand(first, 1, "input_gradient", 4) == Demand(0.0, 0.0)
    both = replace(first, input_elements=1e6)  # of what a layer made there is one
    assert demand(both, 1, "input_gradient", 4) == Demand(2e9, 4 * (2e6 + 1e3 + 1e3))
    waits, plain = device(load_seconds_per_byte=1e-10), device()
    assert waits.seconds(first, 3, "forward", "fp32") - plain.seconds(first, 3, "forward", "fp32") == pytest.approx(
        12e-4
    )
    assert waits.seconds(first, 3, "backward", "fp32") == plain.seconds(first, 3, "backward", "fp32")


def test_who_loads_while_it_computes_waits_for_nothing() -> None:
    """The devices whose file says no rate at which images come from the host; PipeDream's V100 waited for them."""
    first = Work("convolution", 1.0, 0, 1.0, 1.0, loaded_elements=1.0)
    for name, precision in (("a100-80", "bf16"), ("h100", "fp32")):
        assert load_accelerator(name).seconds(first, 1, "forward", precision) < 1e-3
    assert load_accelerator("v100-sxm2").load_seconds_per_byte > 0.0  # type: ignore[attr-defined]


def test_fast_convolution_is_taken_only_where_it_is_quicker() -> None:
    """With overlap 9 and exponent 1/2 the rate triples, unless the transformed tiles take longer to move."""
    kinds = {"convolution": replace(PLAIN, window_exponent=0.5, transform_traffic=10.0)}
    gpu = device(efficiencies=kinds)
    weights = 9 * 1000 * 1000
    many = Work("convolution", 2.0 * weights * 100, 1e5, 1e5, weights)
    assert gpu.seconds(many, 100, "forward", "fp32") == pytest.approx(many.flop * 100 / 1.5e12)
    weights = 9 * 4 * 4
    few = Work("convolution", 2.0 * weights * 1e4, 4e4, 4e4, weights)
    assert gpu.seconds(few, 100, "forward", "fp32") == device().seconds(few, 100, "forward", "fp32")
    assert gpu.seconds(many, 100, "forward", "fp16") == device().seconds(many, 100, "forward", "fp16")


def test_a_fast_convolution_moves_no_more_unless_told() -> None:
    """Without transform_traffic it moves the bytes of a direct one, at half of 100 GB/s; without an exponent there is none."""
    weights = 9 * 1000 * 1000
    work = Work("convolution", 2.0 * weights * 100, 1e5, 1e5, weights)
    shares = {"forward": 0.5, "backward": 0.5, "matrix": 0.5, "memory": 0.5}
    fast = {"convolution": KindEfficiency(**shares, window_exponent=8.0)}
    seconds = device(efficiencies=fast).seconds(work, 1, "forward", "fp32")
    assert seconds == pytest.approx(4 * (2e5 + weights) / 50e9)
    direct = {"convolution": KindEfficiency(**shares)}
    assert device(efficiencies=direct).seconds(work, 1, "forward", "fp32") == pytest.approx(work.flop / 0.5e12)


@settings(deadline=None, max_examples=80)
@given(work=works, samples=st.integers(1, 4096), more=st.integers(1, 4096), phase=phases, precision=precisions)
def test_never_falls_as_samples_rise(work: Work, samples: int, more: int, phase: str, precision: str) -> None:
    """More samples never take less time, whatever the layer."""
    gpu = GraphicsProcessor("gpu", 1e9, 900e9, {"fp32": 15e12, "fp16": 120e12})
    less_time = gpu.seconds(work, samples, phase, precision)
    assert gpu.seconds(work, samples + more, phase, precision) >= less_time * (1 - 1e-12)


@settings(deadline=None, max_examples=80)
@given(work=works, samples=st.integers(1, 4096), precision=precisions)
def test_positive_and_backward_is_the_sum_of_its_gradients(work: Work, samples: int, precision: str) -> None:
    """A forward takes time, and a full backward is exactly its input gradient plus its weight gradient."""
    gpu = GraphicsProcessor("gpu", 1e9, 900e9, {"fp32": 15e12, "fp16": 120e12})
    assert gpu.seconds(work, samples, "forward", precision) > 0.0
    split = [gpu.seconds(work, samples, phase, precision) for phase in ("input_gradient", "weight_gradient")]
    assert gpu.seconds(work, samples, "backward", precision) == split[0] + split[1] > 0.0


def test_is_a_value() -> None:
    """Equal devices are equal and hash alike, also after a trip through pickle."""
    copy = pickle.loads(pickle.dumps(device()))
    assert copy == device()
    assert hash(copy) == hash(device())


@pytest.mark.parametrize(
    ("samples", "phase", "precision", "kind", "words"),
    [
        (0, "forward", "fp32", "linear", "plain: samples must be above 0: 0"),
        (float("nan"), "forward", "fp32", "linear", "plain: samples must be above 0: nan"),
        (
            1,
            "sideways",
            "fp32",
            "linear",
            "plain: unknown phase 'sideways'; choose from forward, backward, input_gradient, weight_gradient",
        ),
        (1, "forward", "fp8", "linear", "plain: the profile gives no rate for precision 'fp8'; it has fp32, fp16"),
        (
            1,
            "forward",
            "fp32",
            "magic",
            (
                "plain: unknown kind of layer 'magic'; choose from input, convolution, linear, attention, "
                "recurrent, embedding, normalization, activation, pooling, dropout, elementwise, reshape, "
                "loss"
            ),
        ),
    ],
)
def test_refuses_what_it_cannot_time(samples: float, phase: str, precision: str, kind: str, words: str) -> None:
    """A bad request names the rule, the value and the choices in one line."""
    with pytest.raises(ValueError, match=words) as caught:
        device().seconds(replace(LINEAR, kind=kind), samples, phase, precision)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"peak_flops": {}},
        {"peak_flops": {"fp99": 1.0}},
        {"peak_flops": {"fp32": -1.0}},
        {"efficiencies": {"magic": PLAIN}},
    ],
)
def test_refuses_impossible_devices(changes: dict[str, object]) -> None:
    """Rates are above 0, kinds and precisions are known."""
    with pytest.raises(ValueError, match="plain: "):
        device(**changes)


@pytest.mark.parametrize("figure", ["forward", "backward", "matrix", "memory"])
def test_refuses_shares_beyond_one(figure: str) -> None:
    """An efficiency is a share of the peak."""
    with pytest.raises(ValueError, match=f"efficiency: {figure} is above 0 and at most 1"):
        replace(PLAIN, **{figure: 1.5})


@pytest.mark.parametrize("name", ["memory_bytes", "memory_bandwidth"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_memory_is_above_zero(name: str, value: float) -> None:
    """A device without memory or bandwidth is refused by the name of the figure."""
    with pytest.raises(ValueError, match=f"plain: {name} is above 0"):
        device(**{name: value})


@pytest.mark.parametrize(
    "name", ["call_overhead", "step_overhead", "reserve_bytes", "launch_overhead", "pass_overhead", "gradient_hook"]
)
def test_overheads_are_at_least_zero(name: str) -> None:
    """Nothing takes less than no time, or less than no memory."""
    with pytest.raises(ValueError, match=f"plain: {name} is at least 0: -1"):
        device(**{name: -1.0})
    assert device(**{name: 0.0}).name == "plain"
