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


@dataclass(frozen=True, slots=True)
class Window:
    """What a convolution or a pooling slides over an image: pixels of a side, of a step, and of zeros around the image."""

    kernel: int
    stride: int = 1
    padding: int = 0

    def places(self, name: str, size: int) -> int:
        """Places of the window along a side of `size` pixels. ValueError, naming the layer, if it does not fit."""
        if size + 2 * self.padding < self.kernel:
            raise ValueError(
                f"{name}: input must be at least {self.kernel - 2 * self.padding} pixels a side, got {size}"
            )
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


def image(builder: Builder, channels: int, size: int) -> FeatureMap:
    """The image that the network reads (no layer: it comes from the data loader)."""
    if size < 1:
        raise ValueError(f"image_size must be at least 1 pixel, got {size}")
    return FeatureMap(builder.source(channels * size * size), channels, size)


def convolution(
    builder: Builder, name: str, x: FeatureMap, channels: int, window: Window, *, bias: bool = True
) -> FeatureMap:
    """Square convolution: 2·kernel²·channels_in FLOP an output element."""
    size, kernel = window.places(name, x.size), window.kernel
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


def max_pool(builder: Builder, name: str, x: FeatureMap, window: Window) -> FeatureMap:
    """Max pooling; it keeps the index of every maximum."""
    size = window.places(name, x.size)
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
