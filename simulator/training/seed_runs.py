"""Train: check a request, replay it for one or many seeds, in one or many processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from joblib import Parallel, delayed

from simulator.training.data import DataSet
from simulator.training.networks import Network
from simulator.training.optimizers import Optimizer
from simulator.training.order import TrainingOrder
from simulator.training.prediction import PREDICTION_RULES, Naive, PredictionRule, Stashing
from simulator.training.replay import Replay
from simulator.training.run import TrainingRun, TrainingSettings

REPLICATED_RULES = (Naive, Stashing)
"""Rules that use a replica's own versions only, and so hold where replicas of a stage take mini-batches in turn."""

REPLICATED_METHODS = tuple(name for name, rule in PREDICTION_RULES.items() if isinstance(rule, REPLICATED_RULES))
"""Methods of these rules."""


def minibatches_per_epoch(data: DataSet, batch: int) -> int:
    """Whole mini-batches in an epoch; ValueError unless 1 <= batch <= training samples."""
    if not 1 <= batch <= len(data.train_x):
        raise ValueError(
            f"the mini-batch must have 1 to {len(data.train_x)} samples ({data.name} has no more), got {batch}"
        )
    return len(data.train_x) // batch


def train_seeds(
    order: TrainingOrder,
    method: str,
    network: Network,
    data: DataSet,
    optimizer: Optimizer,
    settings: TrainingSettings,
    seeds: Sequence[int],
    rule: PredictionRule | None = None,
) -> list[TrainingRun]:
    """Train `network` on `data` through every mini-batch of `order`, once for each seed, side by side.

    method: name in `PREDICTION_RULES`; `rule` replaces its default settings. The same seed gives the same initial
    weights and data order for every method. A seed's result does not depend on the other seeds.
    ValueError: an unknown method, a network that does not fit the order or the data, a rule that is not defined
    for the order, a mini-batch with fewer samples than micro-batches, no seeds.
    """
    if method not in PREDICTION_RULES:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(PREDICTION_RULES)}")
    if len(network) != order.stages:
        raise ValueError(f"the network must have one block a stage: {len(network)} blocks, {order.stages} stages")
    minibatches_per_epoch(data, settings.batch)
    if settings.batch < order.microbatches_per_minibatch:
        raise ValueError(
            f"a mini-batch of {settings.batch} samples cannot be cut into {order.microbatches_per_minibatch} micro-batches"
        )
    if not seeds or min(seeds) < 0:
        raise ValueError(f"seeds must be one or more non-negative numbers, got {list(seeds)}")
    chosen = PREDICTION_RULES[method] if rule is None else rule
    if max(order.replicas) > 1 and not isinstance(chosen, REPLICATED_RULES):
        raise ValueError(
            f"method {method!r} is defined for stages without replicas in turn, got replicas {list(order.replicas)}; "
            f"{' and '.join(REPLICATED_METHODS)} are for both"
        )
    chosen.check(order.stages, order.microbatches_per_minibatch)
    # a diverging run overflows by design and is reported as diverged
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        replay = Replay(order, chosen, network, data, optimizer, settings, seeds)
        replay.play()
        return replay.results(method, seeds, data.classes)


def train(
    order: TrainingOrder,
    method: str,
    network: Network,
    data: DataSet,
    optimizer: Optimizer,
    settings: TrainingSettings,
    seed: int = 0,
    rule: PredictionRule | None = None,
) -> TrainingRun:
    """`train_seeds` for one seed."""
    return train_seeds(order, method, network, data, optimizer, settings, [seed], rule)[0]


def runs(
    order: TrainingOrder,
    method: str,
    network: Network,
    data: DataSet,
    optimizer: Optimizer,
    settings: TrainingSettings,
    seeds: Sequence[int],
    rule: PredictionRule | None = None,
    jobs: int = 1,
) -> list[TrainingRun]:
    """`train_seeds` with the seeds divided over `jobs` processes (joblib); the same bits for any number of them.

    ValueError: jobs < 1, or as `train_seeds`.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    groups = [list(seeds[part::jobs]) for part in range(min(jobs, len(seeds)))] or [[]]
    if len(groups) == 1:
        return train_seeds(order, method, network, data, optimizer, settings, groups[0], rule)
    parts = Parallel(n_jobs=len(groups))(
        delayed(train_seeds)(order, method, network, data, optimizer, settings, group, rule) for group in groups
    )
    by_seed = {run.seed: run for part in parts for run in part}
    return [by_seed[seed] for seed in seeds]
