"""Network: a chain of blocks, one a pipeline stage, with an explicit backward that may use other weights.

Shapes: S seeds are trained side by side along the leading axis; a block's weights are one flat array (S, P); its
input and output are (S, samples, ...). The backward of a block is two functions, as in a split backward:
`input_gradient` needs weights (dx = dz @ W_backward^T), `weight_gradient` does not (dW = x^T @ dz).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from simulator.training.prediction import Array

Saved = Any
"""What a forward keeps for its backward; only the block that made it looks inside."""


class Block(Protocol):
    """The layers of one stage."""

    @property
    def parameters(self) -> int:
        """Number of weights P, biases included."""

    def initial(self, generator: np.random.Generator) -> Array:
        """Initial weights of one seed, (P,)."""

    def forward(self, weights: Array, x: Array) -> tuple[Array, Saved]:
        """Output, and what the backward will need."""

    def output_gradient(self, saved: Saved, dy: Array) -> Array:
        """dz: the gradient before the activation, from the gradient of the output."""

    def input_gradient(self, weights: Array, saved: Saved, dz: Array) -> Array:
        """dx, in the shape of the input, by the weights given."""

    def weight_gradient(self, saved: Saved, dz: Array, total: Array) -> None:
        """Add the gradient of the weights to `total`, (S, P)."""


Network = tuple[Block, ...]


def _kaiming(generator: np.random.Generator, inputs: int, outputs: int, gain: float) -> Array:
    """Normal weights of variance gain / inputs (He et al., 2015), then zero biases; flat."""
    weights = generator.normal(0.0, math.sqrt(gain / inputs), inputs * outputs)
    return np.concatenate([weights, np.zeros(outputs)])


def _matrices(flat: Array, inputs: int, outputs: int) -> tuple[Array, Array]:
    """Views (S, inputs, outputs) of the weights and (S, 1, outputs) of the biases."""
    seeds = flat.shape[0]
    return flat[:, : inputs * outputs].reshape(seeds, inputs, outputs), flat[:, None, inputs * outputs :]


@dataclass(frozen=True, slots=True)
class Dense:
    """y = act(x @ W + b); inputs of more axes are flattened. `relu`: rectify (the last block of a network does not)."""

    inputs: int
    outputs: int
    relu: bool = True

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.inputs * self.outputs + self.outputs

    def initial(self, generator: np.random.Generator) -> Array:
        """He initialisation (variance 2/inputs before a rectifier, 1/inputs otherwise), zero biases."""
        return _kaiming(generator, self.inputs, self.outputs, 2.0 if self.relu else 1.0)

    def forward(self, weights: Array, x: Array) -> tuple[Array, Saved]:
        """(S, b, inputs) -> (S, b, outputs)."""
        matrix, bias = _matrices(weights, self.inputs, self.outputs)
        flat = x.reshape(*x.shape[:2], self.inputs)
        y = flat @ matrix
        y += bias
        if self.relu:
            np.maximum(y, 0.0, out=y)
        return y, (flat, y, x.shape)

    def output_gradient(self, saved: Saved, dy: Array) -> Array:
        """Zero where the rectifier was."""
        return dy * (saved[1] > 0.0) if self.relu else dy

    def input_gradient(self, weights: Array, saved: Saved, dz: Array) -> Array:
        """dz @ W^T."""
        matrix, _ = _matrices(weights, self.inputs, self.outputs)
        dx: Array = dz @ matrix.swapaxes(1, 2)
        return dx.reshape(saved[2])

    def weight_gradient(self, saved: Saved, dz: Array, total: Array) -> None:
        """x^T @ dz, and the sum of dz for the biases."""
        matrix, bias = _matrices(total, self.inputs, self.outputs)
        matrix += saved[0].swapaxes(1, 2) @ dz
        bias += dz.sum(axis=1, keepdims=True)


@dataclass(frozen=True, slots=True)
class Convolution:
    """3 x 3 convolution with zero padding, rectifier, and optionally the mean over 2 x 2; channels last.

    side: height and width of the input; `pool` needs it even.
    """

    side: int
    inputs: int
    outputs: int
    pool: bool = False

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return 9 * self.inputs * self.outputs + self.outputs

    def initial(self, generator: np.random.Generator) -> Array:
        """He initialisation, zero biases."""
        return _kaiming(generator, 9 * self.inputs, self.outputs, 2.0)

    def forward(self, weights: Array, x: Array) -> tuple[Array, Saved]:
        """(S, b, side, side, inputs) -> (S, b, side, side, outputs), halved where pooled."""
        seeds, samples, side = x.shape[0], x.shape[1], self.side
        matrix, bias = _matrices(weights, 9 * self.inputs, self.outputs)
        padded = np.zeros((seeds, samples, side + 2, side + 2, self.inputs), x.dtype)
        padded[:, :, 1:-1, 1:-1] = x.reshape(seeds, samples, side, side, self.inputs)
        windows = sliding_window_view(padded, (3, 3), axis=(2, 3))  # (S, b, side, side, inputs, 3, 3)
        patches = windows.transpose(0, 1, 2, 3, 5, 6, 4).reshape(seeds, samples * side * side, 9 * self.inputs)
        y = patches @ matrix
        y += bias
        np.maximum(y, 0.0, out=y)
        saved = (patches, y, x.shape)
        image = y.reshape(seeds, samples, side, side, self.outputs)
        if not self.pool:
            return image, saved
        half = image.reshape(seeds, samples, side // 2, 2, side // 2, 2, self.outputs)
        pooled: Array = half.mean(axis=(3, 5))
        return pooled, saved

    def output_gradient(self, saved: Saved, dy: Array) -> Array:
        """(S, b * side * side, outputs): spread over the pooled pixels, zero where the rectifier was."""
        seeds, samples = dy.shape[:2]
        if self.pool:
            half = self.side // 2
            spread = (seeds, samples, half, 2, half, 2, self.outputs)
            dy = np.broadcast_to(dy[:, :, :, None, :, None, :] * 0.25, spread)
        dz: Array = dy.reshape(saved[1].shape) * (saved[1] > 0.0)
        return dz

    def input_gradient(self, weights: Array, saved: Saved, dz: Array) -> Array:
        """Gradient of the patches, summed where they overlap."""
        matrix, _ = _matrices(weights, 9 * self.inputs, self.outputs)
        seeds, samples, side = saved[2][0], saved[2][1], self.side
        patches = (dz @ matrix.swapaxes(1, 2)).reshape(seeds, samples, side, side, 3, 3, self.inputs)
        padded = np.zeros((seeds, samples, side + 2, side + 2, self.inputs), dz.dtype)
        for row in range(3):
            for column in range(3):
                padded[:, :, row : row + side, column : column + side] += patches[:, :, :, :, row, column]
        dx: Array = padded[:, :, 1:-1, 1:-1].reshape(saved[2])
        return dx

    def weight_gradient(self, saved: Saved, dz: Array, total: Array) -> None:
        """patches^T @ dz, and the sum of dz for the biases."""
        matrix, bias = _matrices(total, 9 * self.inputs, self.outputs)
        matrix += saved[0].swapaxes(1, 2) @ dz
        bias += dz.sum(axis=1, keepdims=True)


def perceptron(stages: int, features: tuple[int, ...], classes: int, hidden: int = 64) -> Network:
    """Multi-layer perceptron of `stages` dense blocks, `hidden` wide; features is the shape of a sample."""
    _at_least_one_stage(stages)
    widths = [math.prod(features), *[hidden] * (stages - 1), classes]
    return tuple(Dense(widths[k], widths[k + 1], relu=k < stages - 1) for k in range(stages))


def convolutional(stages: int, features: tuple[int, ...], classes: int, channels: int = 8) -> Network:
    """Small convolutional network: the first half of the stages convolve, the others are dense, 64 wide.

    The second convolution and every second one after it pool, while the side stays even.
    ValueError: samples that are no square images (side, side, channels), or fewer than 2 stages.
    """
    _at_least_one_stage(stages)
    if stages < 2 or len(features) != 3 or features[0] != features[1]:
        raise ValueError(
            f"a convolutional network needs square images and at least 2 stages, got samples of shape {features} "
            f"and {stages} stages"
        )
    side, _, inputs = features
    blocks: list[Block] = []
    for k in range(stages // 2):
        pool = (k % 2 == 1 or stages < 4) and side % 2 == 0
        blocks.append(Convolution(side, inputs, channels, pool))
        side, inputs = side // 2 if pool else side, channels
    return (*blocks, *perceptron(stages - len(blocks), (side, side, inputs), classes))


NETWORKS: dict[str, Callable[[int, tuple[int, ...], int], Network]] = {
    "mlp": perceptron,
    "convolutional": convolutional,
}
"""Name -> (stages, shape of a sample, classes) -> network with one block a stage."""


def cross_entropy(logits: Array, labels: Array) -> tuple[Array, Array]:
    """Softmax cross-entropy summed over the samples, (S,), and its gradient by the logits (S, samples, classes).

    labels: (S, samples) integers.
    """
    shifted = logits - logits.max(axis=2, keepdims=True)
    gradient = np.exp(shifted)
    total = gradient.sum(axis=2, keepdims=True)
    gradient /= total
    where = np.asarray(labels)[:, :, None]
    chosen = np.take_along_axis(shifted, where, axis=2) - np.log(total)
    np.put_along_axis(gradient, where, np.take_along_axis(gradient, where, axis=2) - 1.0, axis=2)
    return -chosen[:, :, 0].sum(axis=1), gradient


def predict_logits(network: Network, weights: tuple[Array, ...], x: Array) -> Array:
    """Output of the whole network, (S, samples, classes), for weights of every stage and inputs (S, samples, ...)."""
    for block, flat in zip(network, weights, strict=True):
        x, _ = block.forward(flat, x)
    return x


def _at_least_one_stage(stages: int) -> None:
    if stages < 1:
        raise ValueError(f"a network needs at least 1 stage, got {stages}")
