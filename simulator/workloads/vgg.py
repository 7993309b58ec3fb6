"""VGG: stacks of 3x3 convolutions, then three fully connected layers.

Simonyan & Zisserman 2015, table 1, columns D (VGG-16) and E (VGG-19).
"""

from __future__ import annotations

from simulator.workloads import convolutional as op
from simulator.workloads.builder import Builder
from simulator.workloads.layers import Workload

CONVOLUTIONS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions of each of the five blocks, by depth."""

CHANNELS = (64, 128, 256, 512, 512)


def vgg(depth: int = 16, *, image_size: int = 224, classes: int = 1000, minibatch: int = 64) -> Workload:
    """VGG of 16 or 19 weight layers on square RGB images of a multiple of 32 pixels; a sample is an image.

    The default mini-batch is PipeDream's (SOSP'19, section 5.1). Raises ValueError.
    """
    if depth not in CONVOLUTIONS:
        raise ValueError(f"VGG depth must be one of {', '.join(map(str, CONVOLUTIONS))}, got {depth}")
    if image_size < 32 or image_size % 32:
        raise ValueError(f"VGG image_size must be a positive multiple of 32, got {image_size}")
    builder = Builder()
    x = op.image(builder, 3, image_size)
    for block, (count, channels) in enumerate(zip(CONVOLUTIONS[depth], CHANNELS, strict=True), 1):
        for number in range(1, count + 1):
            x = op.convolution(builder, f"conv{block}_{number}", x, channels, op.Window(3, padding=1))
            x = op.relu(builder, f"relu{block}_{number}", x)
        x = op.max_pool(builder, f"pool{block}", x, op.Window(2, 2))
    x = op.flatten(builder, "flatten", x)
    for number in (6, 7):
        x = op.linear(builder, f"fc{number}", x, 4096)
        x = op.relu(builder, f"relu{number}", x)
        x = op.dropout(builder, f"dropout{number}", x)
    x = op.linear(builder, "fc8", x, classes)
    op.cross_entropy(builder, "loss", x)
    return builder.build(f"vgg{depth}", sample="image", minibatch=minibatch)


def vgg16() -> Workload:
    """VGG-16: 138,357,544 parameters, 30.94 GFLOP an image."""
    return vgg(16)


def vgg19() -> Workload:
    """VGG-19: 143,667,240 parameters."""
    return vgg(19)
