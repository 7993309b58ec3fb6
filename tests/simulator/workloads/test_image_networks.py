"""Convolutional networks against published figures and sums worked out by hand."""

from __future__ import annotations

import pytest

from simulator.workloads.image_networks import alexnet, resnet50, resnet101, vgg16, vgg19
from simulator.workloads.layers import Workload
from tests.chains import kept_bytes


def named(workload: Workload, name: str) -> int:
    return [layer.name for layer in workload.layers].index(name)


@pytest.mark.parametrize(
    ("workload", "parameters"),
    [
        (vgg16(), 138_357_544),
        (vgg19(), 143_667_240),
        (alexnet(), 61_100_840),
        (resnet50(), 25_557_032),
        (resnet101(), 44_549_160),
    ],
    ids=lambda value: value.name if isinstance(value, Workload) else "",
)
def test_parameters_are_torchvisions(workload: Workload, parameters: int) -> None:
    """Weights and biases as torchvision counts them."""
    assert workload.parameters() == parameters


def test_vgg16_flop_is_the_sum_over_its_sixteen_weight_layers() -> None:
    """2·9·in·out·pixels a convolution and 2·in·out a linear layer: 15.47 GMAC, 30.94 GFLOP an image."""
    convolutions = [
        (3, 64, 224), (64, 64, 224),
        (64, 128, 112), (128, 128, 112),
        (128, 256, 56), (256, 256, 56), (256, 256, 56),
        (256, 512, 28), (512, 512, 28), (512, 512, 28),
        (512, 512, 14), (512, 512, 14), (512, 512, 14),
    ]  # fmt: skip
    multiply_adds = sum(9 * inputs * outputs * side * side for inputs, outputs, side in convolutions)
    multiply_adds += 25088 * 4096 + 4096 * 4096 + 4096 * 1000
    assert multiply_adds == 15_470_264_320
    assert vgg16().flop() == 2 * multiply_adds


def test_resnet50_and_alexnet_multiply_adds() -> None:
    """4.09 GMAC and 0.714 GMAC an image (torchvision's model table)."""
    assert resnet50().flop() / 2e9 == pytest.approx(4.09, abs=0.005)
    assert alexnet().flop() / 2e9 == pytest.approx(0.714, abs=0.0005)


def test_pool5_of_vgg16_sends_512_maps_of_7_by_7() -> None:
    """The cut after pool5 carries 25,088 elements an image; that before it 512·14·14."""
    workload = vgg16()
    pool5 = named(workload, "pool5")
    assert workload.cut_elements()[pool5 + 1] == 512 * 7 * 7
    assert workload.cut_elements()[pool5] == 512 * 14 * 14


def test_a_cut_inside_a_residual_block_carries_the_shortcut_too() -> None:
    """Inside conv2_2: the block's input 256·56·56 and the branch's 64·56·56."""
    workload = resnet50()
    first = named(workload, "conv2_2.conv1")
    assert workload.cut_elements()[first] == 256 * 56 * 56
    assert workload.cut_elements()[first + 1] == (256 + 64) * 56 * 56


def test_vgg16_keeps_inputs_indices_masks_and_the_loss() -> None:
    """Image, every convolution's and pool's output once, dropout inputs; of any width int64 indices, masks, logits in fp32."""
    sides = [(64, 224, 2), (128, 112, 2), (256, 56, 3), (512, 28, 3), (512, 14, 3)]
    maps = sum(channels * side * side * count for channels, side, count in sides)
    pooled = sum(channels * (side // 2) ** 2 for channels, side, _ in sides)
    numbers = 3 * 224 * 224 + maps + pooled + 2 * 4096
    for width in (2, 4):
        assert kept_bytes(vgg16().layers, width) == width * numbers + 8 * pooled + 2 * 4096 + 4 * 1000


def test_relu_in_place_keeps_nothing_and_the_next_layer_keeps_its_result() -> None:
    """conv1_2 keeps relu1_1's 64·224·224; relu1_1 adds nothing."""
    workload = vgg16()
    assert workload.layers[named(workload, "relu1_1")].stashed_elements == 0
    assert workload.layers[named(workload, "conv1_2")].stashed_elements == 64 * 224 * 224


def test_a_tensor_that_two_layers_keep_is_stored_once() -> None:
    """conv2_1's two convolutions read one tensor: the first counts it, the projection does not."""
    workload = resnet50()
    assert workload.layers[named(workload, "conv2_1.conv1")].stashed_elements == 64 * 56 * 56
    assert workload.layers[named(workload, "conv2_1.downsample")].stashed_elements == 0
