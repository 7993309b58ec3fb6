"""Network: a chain of blocks, one per pipeline stage, with an explicit backward that may use other weights.

Shapes: S seeds are trained side by side along the leading axis; a block's weights are one flat array (S, P); its
input and output are (S, samples, ...). The backward of a block is two functions, as in a split backward:
`input_gradient` needs weights (dx = dz @ W_backward^T), `weight_gradient` does not (dW = x^T @ dz).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from experiments.training.optimizers import Array

Saved = Any
"""What a forward keeps for its backward; only the block that made it looks inside."""


class Block(ABC):
    """The layers of one stage: products y = x @ W + b of what the block makes of its input.

    outputs: columns of W; relu: whether the products are rectified
    """

    __slots__ = ()
    outputs: int
    relu: bool = True

    @property
    @abstractmethod
    def inputs_of_product(self) -> int:
        """Rows of W."""

    @property
    def parameters(self) -> int:
        """Number of weights P, biases included."""
        return self.inputs_of_product * self.outputs + self.outputs

    def initial(self, generator: np.random.Generator) -> Array:
        """Initial weights of one seed, (P,): normal, of variance 2/inputs before a rectifier (He et al., 2015), else 1/inputs.

        Biases are zero.
        """
        inputs = self.inputs_of_product
        weights = generator.normal(0.0, math.sqrt((2.0 if self.relu else 1.0) / inputs), inputs * self.outputs)
        return np.concatenate([weights, np.zeros(self.outputs)])

    def matrices(self, flat: Array) -> tuple[Array, Array]:
        """Views (S, inputs, outputs) of the weights and (S, 1, outputs) of the biases."""
        end = self.inputs_of_product * self.outputs
        return flat[:, :end].reshape(flat.shape[0], self.inputs_of_product, self.outputs), flat[:, None, end:]

    def product(self, weights: Array, rows: Array) -> Array:
        """act(rows @ W + b), (S, b, outputs)."""
        matrix, bias = self.matrices(weights)
        y: Array = rows @ matrix
        y += bias
        if self.relu:
            np.maximum(y, 0.0, out=y)
        return y

    @abstractmethod
    def forward(self, weights: Array, x: Array) -> tuple[Array, Saved]:
        """Output, and what the backward will need: rows of x, y, shape of the input."""

    def output_gradient(self, saved: Saved, dy: Array) -> Array:
        """dz: the gradient before the activation, from the gradient of the output; zero where a rectifier was."""
        dz: Array = dy.reshape(saved[1].shape) * (saved[1] > 0.0) if self.relu else dy
        return dz

    @abstractmethod
    def input_gradient(self, weights: Array, saved: Saved, dz: Array) -> Array:
        """dx, in the shape of the input, by the weights given."""

    def weight_gradient(self, saved: Saved, dz: Array, total: Array) -> None:
        """Add the gradient of the weights to `total`, (S, P): x^T @ dz, and the sum of dz for the biases."""
        matrix, bias = self.matrices(total)
        matrix += saved[0].swapaxes(1, 2) @ dz
        bias += dz.sum(axis=1, keepdims=True)


Network = tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Dense(Block):
    """y = act(x @ W + b); inputs of more axes are flattened. `relu`: rectify (the last block of a network does not)."""

    inputs: int
    outputs: int
    relu: bool = True

    @property
    def inputs_of_product(self) -> int:
        """All of the input."""
        return self.inputs

    def forward(self, weights: Array, x: Array) -> tuple[Array, Saved]:
        """(S, b, inputs) -> (S, b, outputs)."""
        flat = x.reshape(*x.shape[:2], self.inputs)
        y = self.product(weights, flat)
        return y, (flat, y, x.shape)

    def input_gradient(self, weights: Array, saved: Saved, dz: Array) -> Array:
        """dz @ W^T."""
        dx: Array = dz @ self.matrices(weights)[0].swapaxes(1, 2)
        return dx.reshape(saved[2])


@dataclass(frozen=True, slots=True)
class DensePart(Block):
    """Part of a dense block that neighbouring stages share by its outputs: act(x @ W + b) of so many of them.

    Its input is x, and behind it what the parts before made (`before` columns); its output is that and its own, behind x where a
    part follows. So the gradient that it hands back has a column for each of these: of x its own share, and those of later parts.
    """

    inputs: int
    outputs: int
    before: int
    follows: bool
    relu: bool = True

    @property
    def inputs_of_product(self) -> int:
        """All of x."""
        return self.inputs

    def forward(self, weights: Array, x: Array) -> tuple[Array, Saved]:
        """(S, b, inputs + before) -> (S, b, before + outputs), and as many columns as x has where a part follows."""
        flat = x.reshape(*x.shape[:2], self.inputs + self.before)
        rows = flat[:, :, : self.inputs]
        y = self.product(weights, rows)
        kept = flat if self.follows else flat[:, :, self.inputs :]
        return np.concatenate([kept, y], axis=2), (rows, y, x.shape)

    def output_gradient(self, saved: Saved, dy: Array) -> Array:
        """The gradient of the output, of its own columns before the activation."""
        own = Block.output_gradient(self, saved, np.ascontiguousarray(dy[:, :, -self.outputs :]))
        return np.concatenate([dy[:, :, : -self.outputs], own], axis=2)

    def input_gradient(self, weights: Array, saved: Saved, dz: Array) -> Array:
        """dz @ W^T of its own columns, added to that of later parts, and what parts before are due."""
        dx: Array = dz[:, :, -self.outputs :] @ self.matrices(weights)[0].swapaxes(1, 2)
        passed = dz[:, :, : -self.outputs]
        if self.follows:
            dx += passed[:, :, : self.inputs]
            passed = passed[:, :, self.inputs :]
        return np.concatenate([dx, passed], axis=2).reshape(saved[2])

    def weight_gradient(self, saved: Saved, dz: Array, total: Array) -> None:
        """As of a whole block, of its own columns."""
        Block.weight_gradient(self, saved, dz[:, :, -self.outputs :], total)


def split_block(network: Network, number: int, fraction: float) -> Network:
    """The network with a dense block in two parts, of which the first makes a fraction of its outputs: one stage more.

    ValueError: no such block, one that is not dense, and a fraction that leaves a part without outputs.
    """
    if not 0 <= number < len(network):
        raise ValueError(f"block {number} cannot be split: the network has blocks 0 to {len(network) - 1}")
    whole = network[number]
    if not isinstance(whole, Dense):
        raise ValueError(f"block {number} cannot be split: only dense blocks can, this is a {type(whole).__name__}")
    first = round(whole.outputs * fraction)
    if not 0 < first < whole.outputs:
        raise ValueError(
            f"fraction {fraction:g} of the {whole.outputs} outputs of block {number} leaves one of its parts without any"
        )
    parts = (
        DensePart(whole.inputs, first, 0, follows=True, relu=whole.relu),
        DensePart(whole.inputs, whole.outputs - first, first, follows=False, relu=whole.relu),
    )
    return (*network[:number], *parts, *network[number + 1 :])


@dataclass(frozen=True, slots=True)
class Convolution(Block):
    """3 x 3 convolution with zero padding, rectifier, and optionally the mean over 2 x 2; channels last.

    side: height and width of the input; `pool` needs it even.
    """

    side: int
    inputs: int
    outputs: int
    pool: bool = False

    @property
    def inputs_of_product(self) -> int:
        """A window of the input."""
        return 9 * self.inputs

    def forward(self, weights: Array, x: Array) -> tuple[Array, Saved]:
        """(S, b, side, side, inputs) -> (S, b, side, side, outputs), halved where pooled."""
        seeds, samples, side = x.shape[0], x.shape[1], self.side
        matrix, bias = self.matrices(weights)
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
        if self.pool:
            half = self.side // 2
            spread = (*dy.shape[:2], half, 2, half, 2, self.outputs)
            dy = np.broadcast_to(dy[:, :, :, None, :, None, :] * 0.25, spread)
        return Block.output_gradient(self, saved, dy)

    def input_gradient(self, weights: Array, saved: Saved, dz: Array) -> Array:
        """Gradient of the patches, summed where they overlap."""
        seeds, samples, side = saved[2][0], saved[2][1], self.side
        patches = dz @ self.matrices(weights)[0].swapaxes(1, 2)
        patches = patches.reshape(seeds, samples, side, side, 3, 3, self.inputs)
        padded = np.zeros((seeds, samples, side + 2, side + 2, self.inputs), dz.dtype)
        for row in range(3):
            for column in range(3):
                padded[:, :, row : row + side, column : column + side] += patches[:, :, :, :, row, column]
        dx: Array = padded[:, :, 1:-1, 1:-1].reshape(saved[2])
        return dx


def perceptron(stages: int, features: tuple[int, ...], classes: int, hidden: int = 64) -> Network:
    """Multi-layer perceptron of `stages` dense blocks, `hidden` wide; features is the shape of a sample."""
    if stages < 1:
        raise ValueError(f"a network needs at least 1 stage, got {stages}")
    widths = [math.prod(features), *[hidden] * (stages - 1), classes]
    return tuple(Dense(widths[k], widths[k + 1], relu=k < stages - 1) for k in range(stages))


def convolutional(stages: int, features: tuple[int, ...], classes: int, channels: int = 8) -> Network:
    """Small convolutional network: the first half of the stages convolve, the others are dense, 64 wide.

    The second convolution and every second one after it pool, while the side stays even.
    ValueError: samples that are no square images (side, side, channels), or fewer than 2 stages.
    """
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
"""Name -> (stages, shape of a sample, classes) -> network with one block per stage."""


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
