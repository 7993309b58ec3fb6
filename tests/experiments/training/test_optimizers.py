"""Optimizers and learning-rate schedules by hand figures, and against torch where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.training import LEARNING_RATE_SCHEDULES, OPTIMIZERS
from experiments.training.optimizers import Adam, MomentumSGD, Optimizer


def test_momentum_by_hand() -> None:
    """momentum 0.5, lr 0.1, gradients 1, 1: steps 0.1 and 0.15; averaged (dampening 0.5): 0.05 and 0.075."""
    for dampening, expected in ((0.0, [0.9, 0.75]), (0.5, [0.95, 0.875])):
        optimizer = MomentumSGD(momentum=0.5, dampening=dampening)
        weights, gradient = np.ones((1, 1)), np.ones((1, 1))
        state = optimizer.start(weights)
        for value in expected:
            weights, state = optimizer.step(weights, gradient, state, 0.1)
            assert weights[0, 0] == pytest.approx(value)
        assert state.updates == 2


def test_adams_first_step_is_the_learning_rate() -> None:
    """Bias correction makes the first step lr in every weight, whatever the gradient's size."""
    optimizer = Adam()
    weights, _ = optimizer.step(np.zeros((1, 2)), np.array([[1e-3, -50.0]]), optimizer.start(np.zeros((1, 2))), 0.01)
    assert weights[0] == pytest.approx([-0.01, 0.01], rel=1e-4)


def test_decoupled_decay_by_hand() -> None:
    """AdamW with no gradient shrinks the weights by lr * decay."""
    optimizer, ones = Adam(weight_decay=0.1), np.ones((1, 1))
    weights, _ = optimizer.step(ones, np.zeros((1, 1)), optimizer.start(ones), 0.1)
    assert weights[0, 0] == pytest.approx(0.99)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_usual_settings_by_hand(name: str) -> None:
    """Three steps of one weight as Polyak, Kingma and Ba, and Loshchilov and Hutter write them."""
    weights, expected, gradients, rate = np.ones((1, 1)), 1.0, (0.5, -2.0, 0.25), 0.1
    optimizer = OPTIMIZERS[name]()
    state, first, second = optimizer.start(weights), 0.0, 0.0
    for number, gradient in enumerate(gradients, 1):
        weights, state = optimizer.step(weights, np.full((1, 1), gradient), state, rate)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        adams = first / (1 - 0.9**number) / ((second / (1 - 0.999**number)) ** 0.5 + 1e-8)
        expected -= rate * (first if name == "sgd" else adams + (0.01 * expected if name == "adamw" else 0.0))
        assert weights[0, 0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_pure(name: str) -> None:
    """A step changes neither weights, nor gradient, nor the old state; the next direction is a step of lr 1."""
    optimizer = OPTIMIZERS[name]()
    draw = np.random.default_rng(1)
    weights, gradient = draw.normal(size=(2, 5)), draw.normal(size=(2, 5))
    _, state = optimizer.step(weights, gradient, optimizer.start(weights), 0.1)
    kept = [a.copy() for a in (weights, gradient, state.first) if a is not None]
    optimizer.step(weights, gradient, state, 0.1)
    for direction in ("step", "literal-step", "momentum"):
        optimizer.direction(state, direction)
    for array, copy in zip((weights, gradient, state.first), kept, strict=True):
        assert np.array_equal(array, copy)


@pytest.mark.parametrize("optimizer", [MomentumSGD(), MomentumSGD(dampening=0.9), Adam()])
def test_the_direction_is_the_last_step(optimizer: Optimizer) -> None:
    """Weights changed by lr times the direction of the new state."""
    draw = np.random.default_rng(2)
    weights = draw.normal(size=(1, 4))
    state = optimizer.start(weights)
    for _ in range(5):
        before = weights
        weights, state = optimizer.step(weights, draw.normal(size=(1, 4)), state, 0.02)
        assert before - weights == pytest.approx(0.02 * optimizer.direction(state, "step"))


@pytest.mark.parametrize("name", ["sgd", "sgd-plain", "adam", "adamw"])
def test_optimizers_match_torch(name: str) -> None:
    """Ten steps with random gradients end where torch's own optimizer ends, to 1e-12 (needs torch)."""
    torch = pytest.importorskip("torch", reason="torch is not installed: optimizers are checked by hand figures")
    draw = np.random.default_rng(3)
    weights = draw.normal(size=(1, 6))
    leaf = torch.tensor(weights[0], requires_grad=True)
    ours, theirs = {
        "sgd": (MomentumSGD(), torch.optim.SGD([leaf], lr=0.05, momentum=0.9)),
        "sgd-plain": (MomentumSGD(momentum=0.0), torch.optim.SGD([leaf], lr=0.05)),
        "adam": (Adam(), torch.optim.Adam([leaf], lr=0.05)),
        "adamw": (Adam(weight_decay=0.1), torch.optim.AdamW([leaf], lr=0.05, weight_decay=0.1)),
    }[name]
    state = ours.start(weights)
    for _ in range(10):
        gradient = draw.normal(size=(1, 6))
        leaf.grad = torch.tensor(gradient[0])
        theirs.step()
        weights, state = ours.step(weights, gradient, state, 0.05)
    assert weights[0] == pytest.approx(leaf.detach().numpy(), abs=1e-12)


def test_schedules_by_hand() -> None:
    """100 updates: cosine 1, 1/2, about 0; steps at 50 and 75; warm-up over 10."""
    assert {LEARNING_RATE_SCHEDULES["constant"](u, 100) for u in (0, 50, 99)} == {1.0}
    cosine = LEARNING_RATE_SCHEDULES["cosine"]
    assert [cosine(u, 100) for u in (0, 50)] == pytest.approx([1.0, 0.5])
    assert cosine(99, 100) < 0.001
    assert [LEARNING_RATE_SCHEDULES["step"](u, 100) for u in (49, 50, 75)] == pytest.approx([1.0, 0.1, 0.01])
    assert [LEARNING_RATE_SCHEDULES["warmup"](u, 100) for u in (0, 4, 9, 50)] == pytest.approx([0.1, 0.5, 1.0, 1.0])


def test_bad_settings_are_refused() -> None:
    """Factors outside [0, 1) and a negative decay."""
    with pytest.raises(ValueError, match=r"momentum must be at least 0 and below 1, got 1\.0"):
        MomentumSGD(momentum=1.0)
    with pytest.raises(ValueError, match="beta2"):
        Adam(beta2=-0.1)
    with pytest.raises(ValueError, match="weight decay >= 0"):
        Adam(weight_decay=-1.0)
