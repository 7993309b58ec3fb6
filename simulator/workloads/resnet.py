"""ResNet: bottleneck blocks whose shortcut makes the graph a DAG, not a chain.

He et al. 2016, table 1, with the stride on the 3x3 convolution of a block (the "v1.5" of torchvision and of
PipeDream's profile).
"""

from __future__ import annotations

from simulator.workloads import convolutional as op
from simulator.workloads.builder import Builder
from simulator.workloads.layers import Workload

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Bottleneck blocks of each of the four stages, by depth."""

EXPANSION = 4
"""Channels out of a bottleneck block over channels inside."""


def resnet(depth: int = 50, *, image_size: int = 224, classes: int = 1000, minibatch: int = 128) -> Workload:
    """ResNet of 50, 101 or 152 layers on square RGB images; a sample is an image.

    The default mini-batch is PipeDream's (SOSP'19, section 5.1). Raises ValueError.
    """
    if depth not in BLOCKS:
        raise ValueError(f"ResNet depth must be one of {', '.join(map(str, BLOCKS))}, got {depth}")
    builder = Builder()
    x = op.image(builder, 3, image_size)
    x = op.convolution(builder, "conv1", x, 64, op.Window(7, 2, 3), bias=False)
    x = op.batch_norm(builder, "bn1", x)
    x = op.relu(builder, "relu1", x)
    x = op.max_pool(builder, "pool1", x, op.Window(3, 2, 1))
    for stage, count in enumerate(BLOCKS[depth], 2):
        for block in range(1, count + 1):
            stride = 2 if stage > 2 and block == 1 else 1
            x = _bottleneck(builder, f"conv{stage}_{block}", x, 64 * 2 ** (stage - 2), stride)
    x = op.global_average_pool(builder, "pool5", x)
    x = op.flatten(builder, "flatten", x)
    x = op.linear(builder, "fc", x, classes)
    op.cross_entropy(builder, "loss", x)
    return builder.build(f"resnet{depth}", sample="image", minibatch=minibatch)


def _bottleneck(builder: Builder, name: str, x: op.FeatureMap, width: int, stride: int) -> op.FeatureMap:
    """1x1 down to `width`, 3x3, 1x1 up to 4·width; 1x1 on the shortcut where the shape changes."""
    shortcut = x
    y = op.convolution(builder, f"{name}.conv1", x, width, op.Window(1), bias=False)
    y = op.batch_norm(builder, f"{name}.bn1", y)
    y = op.relu(builder, f"{name}.relu1", y)
    y = op.convolution(builder, f"{name}.conv2", y, width, op.Window(3, stride, 1), bias=False)
    y = op.batch_norm(builder, f"{name}.bn2", y)
    y = op.relu(builder, f"{name}.relu2", y)
    y = op.convolution(builder, f"{name}.conv3", y, EXPANSION * width, op.Window(1), bias=False)
    y = op.batch_norm(builder, f"{name}.bn3", y)
    if stride != 1 or x.channels != EXPANSION * width:
        shortcut = op.convolution(builder, f"{name}.downsample", x, EXPANSION * width, op.Window(1, stride), bias=False)
        shortcut = op.batch_norm(builder, f"{name}.downsample_bn", shortcut)
    y = op.add(builder, f"{name}.add", y, shortcut)
    return op.relu(builder, f"{name}.relu3", y)


def resnet50() -> Workload:
    """ResNet-50: 25,557,032 parameters, 8.18 GFLOP an image."""
    return resnet(50)


def resnet101() -> Workload:
    """ResNet-101: 44,549,160 parameters."""
    return resnet(101)
