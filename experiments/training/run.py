"""Training run: what is trained, the settings that go in, and the result of one seed that comes out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.training.data import DataSet
from experiments.training.networks import Network
from experiments.training.optimizers import LearningRateSchedule, Optimizer, constant
from experiments.training.order import TrainingOrder
from experiments.training.prediction import PREDICTION_RULES, PredictionRule

REPLICATED_METHODS = tuple(name for name, rule in PREDICTION_RULES.items() if rule.for_replicas)
"""Methods that hold where replicas of a stage take mini-batches in turn."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How to train, the same for every method that is compared.

    batch: samples per mini-batch, divided over the order's micro-batches as evenly as whole samples allow
    learning_rate, schedule: base rate and the factor on it, by update
    evaluate_every: updates between evaluations on the test samples (None: once per epoch)
    ValueError: a value out of range.
    """

    batch: int = 32
    learning_rate: float = 0.002
    schedule: LearningRateSchedule = constant
    evaluate_every: int | None = None

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"the mini-batch must have at least 1 sample, got {self.batch}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0.0):
            raise ValueError(f"the learning rate must be a positive number, got {self.learning_rate}")
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise ValueError(f"updates between evaluations must be at least 1, got {self.evaluate_every}")


def minibatches_per_epoch(data: DataSet, batch: int) -> int:
    """Whole mini-batches in an epoch; ValueError unless 1 <= batch <= training samples."""
    if not 1 <= batch <= len(data.train_x):
        raise ValueError(
            f"the mini-batch must have 1 to {len(data.train_x)} samples ({data.name} has no more), got {batch}"
        )
    return len(data.train_x) // batch


MOST_TRAINED = 2**24
"""Forwards and backwards of a stage that are trained at most, those of all seeds together: hours."""


def check_work(stages: int, microbatches: int, seeds: int) -> None:
    """ValueError for more training than MOST_TRAINED, before any of it is made."""
    if 2 * stages * microbatches * seeds > MOST_TRAINED:
        raise ValueError(
            f"at most {MOST_TRAINED:,} forwards and backwards are trained: those of {stages:,} stages, {microbatches:,} "
            f"micro-batches and {seeds:,} seeds are more"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """A network, trained on `data` through every mini-batch of `order`.

    method: name in `PREDICTION_RULES`; rule: in place of the method's own with its default settings
    ValueError: an unknown method, a network that does not fit the order or the data, a rule that is not defined
    for the order, a mini-batch with fewer samples than micro-batches.
    """

    order: TrainingOrder
    method: str
    network: Network
    data: DataSet
    optimizer: Optimizer
    settings: TrainingSettings
    rule: PredictionRule | None = None

    def __post_init__(self) -> None:
        order, batch = self.order, self.settings.batch
        if self.method not in PREDICTION_RULES:
            raise ValueError(f"unknown method {self.method!r}; choose one of {', '.join(PREDICTION_RULES)}")
        if len(self.network) != order.stages:
            raise ValueError(
                f"the network must have one block a stage: {len(self.network)} blocks, {order.stages} stages"
            )
        minibatches_per_epoch(self.data, batch)
        if batch < order.microbatches_per_minibatch:
            raise ValueError(
                f"a mini-batch of {batch} samples cannot be cut into {order.microbatches_per_minibatch} micro-batches"
            )
        if max(order.replicas) > 1 and not self.chosen_rule.for_replicas:
            raise ValueError(
                f"method {self.method!r} is defined for stages without replicas in turn, got replicas "
                f"{list(order.replicas)}; {' and '.join(REPLICATED_METHODS)} are for both"
            )
        self.chosen_rule.check(order.stages, order.microbatches_per_minibatch)

    @property
    def chosen_rule(self) -> PredictionRule:
        """The rule given, or the method's own."""
        return self.rule or PREDICTION_RULES[self.method]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRun:
    """What one seed's training gave.

    train_loss, test_accuracy: mean cross-entropy over the training samples and share of right test samples, with
        the final weights of every stage
    diverged: a number overflowed, or the final train loss is not below that of guessing, ln(classes)
    weight_copies: most copies of weights that any stage held at once, the current ones included;
        weight_copies_per_stage: the same for each stage
    simulated_seconds: the timeline's end
    prediction_error_ratio: ||W_used - W(m-1)|| / ||W_current - W(m-1)||, root mean square over the forwards of all
        stages, W(m-1) the synchronous version: 1 without prediction, NaN where no version differs
    update_seconds, update_loss: (M,) the timeline's time of every update, and the mean loss of its mini-batch
    evaluated_updates, evaluated_seconds, evaluated_loss, evaluated_accuracy: the test samples' loss and accuracy
        with every stage's weights after so many updates, and the time at which the last stage had them
    """

    method: str
    seed: int
    train_loss: float
    test_accuracy: float
    diverged: bool
    weight_copies: int
    weight_copies_per_stage: tuple[int, ...]
    simulated_seconds: float
    prediction_error_ratio: float
    update_seconds: NDArray[np.float64]
    update_loss: NDArray[np.float64]
    evaluated_updates: NDArray[np.int64]
    evaluated_seconds: NDArray[np.float64]
    evaluated_loss: NDArray[np.float64]
    evaluated_accuracy: NDArray[np.float64]
