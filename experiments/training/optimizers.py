"""Optimizer: how a gradient changes the weights; pure functions over arrays, state in and state out.

All arrays are (seeds, parameters) of one stage. Names of the optimizers and learning-rate schedules are in
`OPTIMIZERS` and `LEARNING_RATE_SCHEDULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Weights of one stage: (seeds, parameters), float64."""

Direction = Literal["step", "literal-step", "momentum"]
"""`step`: what the optimizer's next step would be per unit of lr, from its present moments; `literal-step`: the same
with XPipe's printed bias correction; `momentum`: the smoothed gradient only (SpecTrain)."""


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerState:
    """Moments of one stage: `first` (momentum), `second` (None without), `updates` applied so far."""

    updates: int
    first: Array
    second: Array | None


class Optimizer(Protocol):
    """An update rule and the direction that it would take next."""

    def start(self, weights: Array) -> OptimizerState:
        """State before the first update."""

    def step(
        self, weights: Array, gradient: Array, state: OptimizerState, learning_rate: float
    ) -> tuple[Array, OptimizerState]:
        """New weights and new state; the given arrays stay as they are."""

    def direction(self, state: OptimizerState, kind: Direction) -> Array:
        """What the weights would lose next, per unit of learning rate, by the present moments."""


@dataclass(frozen=True, slots=True)
class MomentumSGD:
    """SGD with momentum: u = momentum * u + (1 - dampening) * g, W = W - lr * u.

    dampening: 0 as in PyTorch (the default), equal to `momentum` for the average that SpecTrain and XPipe write.
    ValueError: momentum or dampening outside [0, 1).
    """

    momentum: float = 0.9
    dampening: float = 0.0

    def __post_init__(self) -> None:
        _in_unit("momentum", self.momentum)
        _in_unit("dampening", self.dampening)

    def start(self, weights: Array) -> OptimizerState:
        """Zero momentum."""
        return OptimizerState(0, np.zeros_like(weights), None)

    def step(
        self, weights: Array, gradient: Array, state: OptimizerState, learning_rate: float
    ) -> tuple[Array, OptimizerState]:
        """One update."""
        first = state.first * self.momentum
        first += gradient if self.dampening == 0.0 else gradient * (1.0 - self.dampening)
        return weights - learning_rate * first, OptimizerState(state.updates + 1, first, None)

    def direction(self, state: OptimizerState, kind: Direction) -> Array:
        """The momentum, whatever the kind."""
        return state.first


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma and Ba, 2015), or AdamW, with weight decay apart from the gradient (Loshchilov and Hutter, 2019).

    ValueError: a beta outside [0, 1), epsilon <= 0 or a negative weight decay.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _in_unit("beta1", self.beta1)
        _in_unit("beta2", self.beta2)
        if self.epsilon <= 0.0 or self.weight_decay < 0.0:
            raise ValueError(
                f"Adam needs epsilon > 0 and weight decay >= 0, got {self.epsilon} and {self.weight_decay}"
            )

    def start(self, weights: Array) -> OptimizerState:
        """Zero moments."""
        return OptimizerState(0, np.zeros_like(weights), np.zeros_like(weights))

    def step(
        self, weights: Array, gradient: Array, state: OptimizerState, learning_rate: float
    ) -> tuple[Array, OptimizerState]:
        """One update."""
        assert state.second is not None
        first = state.first * self.beta1
        first += gradient * (1.0 - self.beta1)
        square = np.square(gradient)
        square *= 1.0 - self.beta2
        second = state.second * self.beta2
        second += square
        new = OptimizerState(state.updates + 1, first, second)
        change = self.direction(new, "step")
        change *= learning_rate
        if self.weight_decay:
            change += (learning_rate * self.weight_decay) * weights
        return np.subtract(weights, change, out=change), new

    def direction(self, state: OptimizerState, kind: Direction) -> Array:
        """m / (sqrt(v) + epsilon) with bias correction (without weight decay), or the bare first moment.

        The correction divides by 1 - beta^updates; that of `literal-step` by 1 - beta, as XPipe prints it (2.06 times too
        long at update 10, tending to 0.316 times).
        """
        if kind == "momentum" or state.updates == 0:
            return state.first
        assert state.second is not None
        power = state.updates if kind == "step" else 1
        result: Array = np.sqrt(state.second)
        result *= 1.0 / math.sqrt(1.0 - self.beta2**power)
        result += self.epsilon
        np.divide(state.first, result, out=result)
        result *= 1.0 / (1.0 - self.beta1**power)
        return result


OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": lambda: MomentumSGD(dampening=0.9),
    "adam": Adam,
    "adamw": lambda: Adam(weight_decay=0.01),
}
"""Name -> the optimizer with its usual settings; `sgd` averages its gradients, so that its lr is 10 times PyTorch's."""


LearningRateSchedule = Callable[[int, int], float]
"""(update, updates in all), both counted in updates -> factor on the base learning rate."""


def constant(update: int, updates: int) -> float:
    """1 throughout."""
    return 1.0


def cosine(update: int, updates: int) -> float:
    """Half a cosine from 1 down to 0 (Loshchilov and Hutter, 2017)."""
    return 0.5 * (1.0 + math.cos(math.pi * update / updates))


def step_decay(update: int, updates: int) -> float:
    """A tenth from half of the run on, a hundredth from three quarters on (PyTorch's MultiStepLR)."""
    return 0.1 ** sum(update >= fraction * updates for fraction in (0.5, 0.75))


def linear_warmup(update: int, updates: int) -> float:
    """A linear rise over the first tenth of the run, then 1."""
    return min(1.0, (update + 1) / max(1.0, 0.1 * updates))


LEARNING_RATE_SCHEDULES: dict[str, LearningRateSchedule] = {
    "constant": constant,
    "cosine": cosine,
    "step": step_decay,
    "warmup": linear_warmup,
}
"""Name -> learning-rate schedule."""


def _in_unit(what: str, value: float) -> None:
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{what} must be at least 0 and below 1, got {value}")
