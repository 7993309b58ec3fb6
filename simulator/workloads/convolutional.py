"""Convolutional operators: what VGG, AlexNet and ResNet are made of, one layer an operator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.workloads.builder import INDEX_FP32, MASK_FP32, Builder
from simulator.workloads.layers import Layer


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """A tensor of square images: builder handle, channels, and pixels of one side (1 for a vector of features)."""

    tensor: int
    channels: int
    size: int = 1

    @property
    def elements(self) -> int:
        """Elements a sample."""
        return self.channels * self.size * self.size


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
    weights = kernel * kernel * x.channels * channels + (channels if bias else 0)
    flop = 2.0 * kernel * kernel * x.channels * output
    layer = Layer(name, "convolution", flop=flop, parameters=weights, output_elements=output)
    return FeatureMap(builder.add(layer, [x.tensor]), channels, size)


def relu(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """ReLU in place."""
    layer = Layer(name, "activation", output_elements=x.elements)
    return replace(x, tensor=builder.add(layer, [x.tensor], in_place=True))


def batch_norm(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """Batch normalization with scale and shift."""
    layer = Layer(name, "normalization", output_elements=x.elements, parameters=2 * x.channels)
    return replace(x, tensor=builder.add(layer, [x.tensor]))


def max_pool(builder: Builder, name: str, x: FeatureMap, *, kernel: int, stride: int, padding: int = 0) -> FeatureMap:
    """Max pooling; it keeps the index of every maximum."""
    size = _reduced(name, x.size, kernel, stride, padding)
    output = x.channels * size * size
    layer = Layer(name, "pooling", output_elements=output, stashed_elements=INDEX_FP32 * output)
    return FeatureMap(builder.add(layer, [x.tensor]), x.channels, size)


def global_average_pool(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """Mean over all pixels of each channel."""
    return FeatureMap(builder.add(Layer(name, "pooling", output_elements=x.channels), [x.tensor]), x.channels)


def add(builder: Builder, name: str, x: FeatureMap, shortcut: FeatureMap) -> FeatureMap:
    """Residual sum, in place on the first operand."""
    layer = Layer(name, "elementwise", output_elements=x.elements)
    return replace(x, tensor=builder.add(layer, [x.tensor, shortcut.tensor], in_place=True))


def flatten(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """View as one vector a sample."""
    layer = Layer(name, "reshape", output_elements=x.elements)
    return FeatureMap(builder.add(layer, [x.tensor], in_place=True), x.elements)


def linear(builder: Builder, name: str, x: FeatureMap, features: int) -> FeatureMap:
    """Fully connected layer with bias."""
    if features < 1:
        raise ValueError(f"{name}: features must be at least 1, got {features}")
    weights = x.channels * features
    layer = Layer(name, "linear", flop=2.0 * weights, parameters=weights + features, output_elements=features)
    return FeatureMap(builder.add(layer, [x.tensor]), features)


def dropout(builder: Builder, name: str, x: FeatureMap) -> FeatureMap:
    """Dropout out of place; it keeps a mask of one byte an element."""
    layer = Layer(name, "dropout", output_elements=x.elements, stashed_elements=MASK_FP32 * x.elements)
    return replace(x, tensor=builder.add(layer, [x.tensor]))


def cross_entropy(builder: Builder, name: str, x: FeatureMap) -> int:
    """Classification loss; it keeps the log-probabilities."""
    return builder.add(Layer(name, "loss", output_elements=1, stashed_elements=x.elements), [x.tensor])


def _reduced(name: str, size: int, kernel: int, stride: int, padding: int) -> int:
    if size + 2 * padding < kernel:
        raise ValueError(f"{name}: input must be at least {kernel - 2 * padding} pixels a side, got {size}")
    return (size + 2 * padding - kernel) // stride + 1
