"""Convolutional operators: what VGG, AlexNet and ResNet are made of, one layer an operator."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.workloads.builder import INDEX_FP32, MASK_FP32, Builder


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """A tensor of square images: builder handle, channels, and pixels of one side (1 for a vector of features)."""

    tensor: int
    channels: int
    size: int = 1


def image(builder: Builder, channels: int, size: int) -> FeatureMap:
    """The image that the network reads (no layer: it comes from the data loader)."""
    if size < 1:
        raise ValueError(f"image_size must be at least 1 pixel, got {size}")
    return FeatureMap(builder.source(channels * size * size), channels, size)


def convolution(
    builder: Builder,
    name: str,
    x: FeatureMap,
    channels: int,
    *,
    kernel: int,
    stride: int = 1,
    padding: int = 0,
    bias: bool = True,
) -> FeatureMap:
    """Square convolution: 2·kernel²·channels_in FLOP an output element."""
    size = _reduced(name, x.size, kernel, stride, padding)
    output = channels * size * size
    weights = kernel * kernel * x.channels * channels
    tensor = builder.add(
        name,
        "convolution",
        [x.tensor],
        output=output,
        flop=2.0 * kernel * kernel * x.channels * output,
        parameters=weights + (channels if bias else 0),
        keeps_inputs=True,
    )
    return FeatureMap(tensor, channels, size)


def relu(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """ReLU in place."""
    output = builder.output_elements(x.tensor)
    tensor = builder.add(name, "activation", [x.tensor], output=output, in_place=True)
    return FeatureMap(tensor, x.channels, x.size)


def batch_norm(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """Batch normalization with scale and shift."""
    output = builder.output_elements(x.tensor)
    tensor = builder.add(name, "normalization", [x.tensor], output=output, parameters=2 * x.channels, keeps_inputs=True)
    return FeatureMap(tensor, x.channels, x.size)


def max_pool(builder: Builder, name: str, x: FeatureMap, *, kernel: int, stride: int, padding: int = 0) -> FeatureMap:
    """Max pooling; it keeps the index of every maximum."""
    size = _reduced(name, x.size, kernel, stride, padding)
    output = x.channels * size * size
    tensor = builder.add(name, "pooling", [x.tensor], output=output, keeps_inputs=True, keeps_extra=INDEX_FP32 * output)
    return FeatureMap(tensor, x.channels, size)


def global_average_pool(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """Mean over all pixels of each channel."""
    tensor = builder.add(name, "pooling", [x.tensor], output=x.channels, keeps_inputs=True)
    return FeatureMap(tensor, x.channels)


def add(builder: Builder, name: str, x: FeatureMap, shortcut: FeatureMap) -> FeatureMap:
    """Residual sum, in place on the first operand."""
    output = builder.output_elements(x.tensor)
    tensor = builder.add(name, "elementwise", [x.tensor, shortcut.tensor], output=output, in_place=True)
    return FeatureMap(tensor, x.channels, x.size)


def flatten(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """View as one vector a sample."""
    output = x.channels * x.size * x.size
    return FeatureMap(builder.add(name, "reshape", [x.tensor], output=output, in_place=True), output)


def linear(builder: Builder, name: str, x: FeatureMap, features: int) -> FeatureMap:
    """Fully connected layer with bias."""
    if features < 1:
        raise ValueError(f"{name}: features must be at least 1, got {features}")
    tensor = builder.add(
        name,
        "linear",
        [x.tensor],
        output=features,
        flop=2.0 * x.channels * features,
        parameters=x.channels * features + features,
        keeps_inputs=True,
    )
    return FeatureMap(tensor, features)


def dropout(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """Dropout out of place; it keeps a mask of one byte an element."""
    output = builder.output_elements(x.tensor)
    tensor = builder.add(name, "dropout", [x.tensor], output=output, keeps_extra=MASK_FP32 * output)
    return FeatureMap(tensor, x.channels, x.size)


def cross_entropy(builder: Builder, name: str, x: FeatureMap) -> int:
    """Classification loss; it keeps the log-probabilities."""
    return builder.add(name, "loss", [x.tensor], output=1, keeps_extra=builder.output_elements(x.tensor))


def _reduced(name: str, size: int, kernel: int, stride: int, padding: int) -> int:
    if size + 2 * padding < kernel:
        raise ValueError(f"{name}: input must be at least {kernel - 2 * padding} pixels a side, got {size}")
    return (size + 2 * padding - kernel) // stride + 1
