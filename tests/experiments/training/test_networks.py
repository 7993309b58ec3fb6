"""Gradients of the networks, against finite differences and, where torch is installed, against autograd."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.training import DataSet, Network
from experiments.training.clocks import network_workload
from experiments.training.networks import (
    Convolution,
    Dense,
    DensePart,
    convolutional,
    cross_entropy,
    perceptron,
    split_block,
)
from experiments.training.prediction import Array
from simulator import LayerSplit, split_workload


def smooth_sizes() -> dict[str, Network]:
    """Small networks, one of each kind of block, pooled and not."""
    return {
        "mlp": perceptron(3, (5,), 4, hidden=6),
        "shared": split_block(split_block(perceptron(3, (5,), 4, hidden=6), 1, 0.5), 0, 0.3),
        "convolutional": (Convolution(4, 2, 3), Convolution(4, 3, 2, pool=True), Dense(8, 3, relu=False)),
    }


def start(network: Network, shape: tuple[int, ...]) -> tuple[list[Array], Array, Array]:
    """Weights of every stage for 2 seeds, inputs of 3 samples, labels; biases not zero."""
    draw = np.random.default_rng(5)
    weights = [np.stack([block.initial(draw) for _ in range(2)]) for block in network]
    weights = [flat + 0.1 * draw.normal(size=flat.shape) for flat in weights]
    return weights, draw.normal(size=(2, 3, *shape)), draw.integers(0, 3, (2, 3))


def loss_and_gradients(
    network: Network, weights: list[Array], x: Array, labels: Array, backward: list[Array] | None = None
) -> tuple[Array, list[Array], Array]:
    """Loss (seeds,), gradient of every stage's weights, gradient of the input."""
    saved = []
    for block, flat in zip(network, weights, strict=True):
        x, kept = block.forward(flat, x)
        saved.append(kept)
    loss, dy = cross_entropy(x, labels)
    gradients = [np.zeros_like(flat) for flat in weights]
    for k in reversed(range(len(network))):
        dz = network[k].output_gradient(saved[k], dy)
        network[k].weight_gradient(saved[k], dz, gradients[k])
        dy = network[k].input_gradient((backward or weights)[k], saved[k], dz)
    return loss, gradients, dy


SHAPES: dict[str, tuple[int, ...]] = {"mlp": (5,), "shared": (5,), "convolutional": (4, 4, 2)}


@pytest.mark.parametrize("name", ["mlp", "convolutional"])
def test_a_workload_has_the_products_and_tensors_of_its_blocks(name: str, blobs: DataSet) -> None:
    """What a sample's forward pass reads, multiplies and makes: two FLOP for each entry of a product's rows and output."""
    network = smooth_sizes()[name]
    weights, x, _ = start(network, SHAPES[name])
    samples = x.shape[0] * x.shape[1]
    workload = network_workload(network, blobs)
    for block, flat, layer in zip(network, weights, workload.layers, strict=True):
        y, (rows, *_) = block.forward(flat, x)
        assert layer.flop * samples == 2 * rows.size * block.outputs
        assert layer.parameters == flat[0].size
        assert (layer.stashed_elements * samples, layer.output_elements * samples) == (x.size, y.size)
        x = y
    assert workload.edges == ((0, 1), (1, 2))


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_match_finite_differences(name: str) -> None:
    """(f(w+h) - f(w-h)) / 2h with h = 1e-6 agrees to 1e-6 for every weight and every input."""
    network = smooth_sizes()[name]
    weights, x, labels = start(network, SHAPES[name])
    _, gradients, dx = loss_and_gradients(network, weights, x, labels)
    h = 1e-6
    for array, gradient in [*zip(weights, gradients, strict=True), (x, dx)]:
        flat, expected = array.reshape(2, -1), gradient.reshape(2, -1)
        for place in range(flat.shape[1]):
            kept = flat[:, place].copy()
            flat[:, place] = kept + h
            above = loss_and_gradients(network, weights, x, labels)[0]
            flat[:, place] = kept - h
            below = loss_and_gradients(network, weights, x, labels)[0]
            flat[:, place] = kept
            assert (above - below) / (2 * h) == pytest.approx(expected[:, place], abs=1e-6)


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_match_autograd(name: str) -> None:
    """The same loss written in torch gives the same gradients to 1e-12 (needs torch)."""
    torch = pytest.importorskip("torch", reason="torch is not installed: gradients are checked by finite differences")
    network = smooth_sizes()[name]
    weights, x, labels = start(network, SHAPES[name])
    loss, gradients, _ = loss_and_gradients(network, weights, x, labels)
    for seed in range(2):
        leaves = [torch.tensor(flat[seed], requires_grad=True) for flat in weights]
        y = torch.tensor(x[seed])
        for block, leaf in zip(network, leaves, strict=True):
            if isinstance(block, Dense):
                cut = block.inputs * block.outputs
                y = y.reshape(3, -1) @ leaf[:cut].reshape(block.inputs, block.outputs) + leaf[cut:]
                y = torch.relu(y) if block.relu else y
            elif isinstance(block, DensePart):
                cut = block.inputs * block.outputs
                made = y[:, : block.inputs] @ leaf[:cut].reshape(block.inputs, block.outputs) + leaf[cut:]
                made = torch.relu(made) if block.relu else made
                y = torch.cat([y if block.follows else y[:, block.inputs :], made], dim=1)
            elif isinstance(block, Convolution):
                cut = 9 * block.inputs * block.outputs
                kernel = leaf[:cut].reshape(3, 3, block.inputs, block.outputs).permute(3, 2, 0, 1)
                y = torch.conv2d(y.permute(0, 3, 1, 2), kernel, leaf[cut:], padding=1).relu()
                y = torch.nn.functional.avg_pool2d(y, 2) if block.pool else y
                y = y.permute(0, 2, 3, 1)
        total = torch.nn.functional.cross_entropy(y, torch.tensor(labels[seed]), reduction="sum")
        total.backward()
        assert float(total.detach()) == pytest.approx(float(loss[seed]), rel=1e-12)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            assert leaf.grad.numpy() == pytest.approx(gradient[seed], abs=1e-12)


@pytest.mark.parametrize("name", ["mlp", "convolutional"])
def test_backward_may_use_other_weights(name: str) -> None:
    """Twice the weights in one stage's backward: twice the gradients before it, the same from it on."""
    network = smooth_sizes()[name]
    weights, x, labels = start(network, SHAPES[name])
    _, plain, dx = loss_and_gradients(network, weights, x, labels)
    other = [weights[0], 2.0 * weights[1], weights[2]]
    _, changed, dx_changed = loss_and_gradients(network, weights, x, labels, backward=other)
    assert np.array_equal(changed[1], plain[1])
    assert np.array_equal(changed[2], plain[2])
    assert np.array_equal(changed[0], 2.0 * plain[0])
    assert np.array_equal(dx_changed, 2.0 * dx)


def test_cross_entropy_of_even_logits() -> None:
    """Equal logits of 4 classes: ln 4 a sample; gradient 1/4, and 1/4 - 1 at the label; huge logits do not overflow."""
    loss, gradient = cross_entropy(np.zeros((1, 2, 4)), np.array([[0, 3]]))
    assert loss == pytest.approx([2 * np.log(4)])
    assert gradient[0].tolist() == [[-0.75, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, -0.75]]
    loss, _ = cross_entropy(np.array([[[1e4, 0.0]]]), np.array([[1]]))
    assert loss.tolist() == [1e4]


def test_shapes_of_the_ready_networks() -> None:
    """64-64x7-10 has 8 blocks of 4160 and 650 parameters; the convolutional one ends in 10 logits for every depth."""
    assert [block.parameters for block in perceptron(8, (8, 8, 1), 10)] == [4160] * 7 + [650]
    draw = np.random.default_rng(0)
    for stages in range(2, 10):
        x = np.ones((1, 2, 8, 8, 1))
        network = convolutional(stages, (8, 8, 1), 10)
        for block in network:
            x, _ = block.forward(block.initial(draw)[None], x)
        assert len(network) == stages
        assert x.shape == (1, 2, 10)


def test_impossible_networks_are_refused() -> None:
    """No stages; a convolution of a table."""
    with pytest.raises(ValueError, match="at least 1 stage, got 0"):
        perceptron(0, (4,), 2)
    with pytest.raises(
        ValueError,
        match=(
            r"a convolutional network needs square images and at least 2 stages, got samples of shape "
            r"\(30,\) and 4 stages"
        ),
    ):
        convolutional(4, (30,), 2)


def test_a_block_of_another_kind_has_no_seconds(blobs: DataSet) -> None:
    """It is named with its place."""
    network = (*perceptron(1, blobs.features, blobs.classes), object())
    with pytest.raises(ValueError, match="block 1 of the network is a object, which no accelerator can time"):
        network_workload(network, blobs)  # type: ignore[arg-type]


def test_parts_of_a_block_train_as_the_whole() -> None:
    """With the whole one's weights by outputs: the same loss, gradients and, for stages before, input gradient."""
    whole = perceptron(3, (5,), 4, hidden=6)
    parts = split_block(whole, 1, 0.34)
    weights, x, labels = start(whole, (5,))
    matrix, bias = whole[1].matrices(weights[1])
    halves = [
        np.concatenate([matrix[:, :, columns].reshape(2, -1), bias[:, 0, columns]], axis=1)
        for columns in (slice(0, 2), slice(2, 6))
    ]
    loss, gradients, dx = loss_and_gradients(whole, weights, x, labels)
    shared, of_parts, dx_shared = loss_and_gradients(parts, [weights[0], *halves, weights[2]], x, labels)
    np.testing.assert_allclose(shared, loss, rtol=1e-12)
    np.testing.assert_allclose(dx_shared, dx, rtol=1e-9, atol=1e-12)
    matrix, bias = whole[1].matrices(gradients[1])
    for part, (found, columns) in zip(
        parts[1:3], zip(of_parts[1:3], (slice(0, 2), slice(2, 6)), strict=True), strict=True
    ):
        np.testing.assert_allclose(part.matrices(found)[0], matrix[:, :, columns], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(part.matrices(found)[1], bias[:, :, columns], rtol=1e-9, atol=1e-12)
    for found, other in ((of_parts[0], gradients[0]), (of_parts[3], gradients[2])):
        np.testing.assert_allclose(found, other, rtol=1e-9, atol=1e-12)


def test_a_block_in_parts_is_timed_as_a_layer_in_parts(blobs: DataSet) -> None:
    """The network of its blocks is that whose layer the simulator splits: FLOP, weights, what crosses and what is kept."""
    whole = perceptron(3, (5,), 4, hidden=6)
    parts = network_workload(split_block(whole, 1, 0.5), blobs)
    expected = split_workload(network_workload(whole, blobs), [LayerSplit(1, 0.5)])
    assert parts.edges == expected.edges
    for one, other in zip(parts.layers, expected.layers, strict=True):
        assert (one.flop, one.parameters, one.output_elements) == (other.flop, other.parameters, other.output_elements)
        assert one.stashed_elements == other.stashed_elements
    assert parts.cut_elements().tolist() == expected.cut_elements().tolist()


@pytest.mark.parametrize(
    ("number", "fraction", "message"),
    [
        (3, 0.5, "block 3 cannot be split: the network has blocks 0 to 2"),
        (0, 0.5, "block 0 cannot be split: only dense blocks can, this is a Convolution"),
        (2, 0.1, "fraction 0.1 of the 3 outputs of block 2 leaves one of its parts without any"),
    ],
)
def test_blocks_that_no_stages_share(number: int, fraction: float, message: str) -> None:
    """One line that names the block and the rule."""
    with pytest.raises(ValueError, match=message):
        split_block(smooth_sizes()["convolutional"], number, fraction)
