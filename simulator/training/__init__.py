"""Training: the numerical replay of a timeline with a real network on real data."""

from __future__ import annotations

from simulator.training.data import DATA_SETS, DataSet, breast_cancer, digits, wine
from simulator.training.networks import (
    NETWORKS,
    Block,
    Convolution,
    Dense,
    Network,
    convolutional,
    cross_entropy,
    perceptron,
)
from simulator.training.optimizers import (
    LEARNING_RATE_SCHEDULES,
    OPTIMIZERS,
    Adam,
    LearningRateSchedule,
    LinearWarmup,
    MomentumSGD,
    Optimizer,
    OptimizerState,
    StepDecay,
    constant,
    cosine,
)
from simulator.training.order import TrainingOrder, joined, repeated, training_order
from simulator.training.run import TrainingRun, TrainingSettings
from simulator.training.train import REPLICATED_METHODS, minibatches_per_epoch, runs, train, train_seeds

__all__ = [
    "DATA_SETS",
    "LEARNING_RATE_SCHEDULES",
    "NETWORKS",
    "OPTIMIZERS",
    "REPLICATED_METHODS",
    "Adam",
    "Block",
    "Convolution",
    "DataSet",
    "Dense",
    "LearningRateSchedule",
    "LinearWarmup",
    "MomentumSGD",
    "Network",
    "Optimizer",
    "OptimizerState",
    "StepDecay",
    "TrainingOrder",
    "TrainingRun",
    "TrainingSettings",
    "breast_cancer",
    "constant",
    "convolutional",
    "cosine",
    "cross_entropy",
    "digits",
    "joined",
    "minibatches_per_epoch",
    "perceptron",
    "repeated",
    "runs",
    "train",
    "train_seeds",
    "training_order",
    "wine",
]
