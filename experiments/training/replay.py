"""Numerical replay: train a real network under exactly the weight versions that a timeline dictates.

The seeds of a call are trained side by side along a leading array axis, because the small matrix products of one
micro-batch cost less than the calls that start them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from experiments.training.data import DataSet
from experiments.training.networks import Network, cross_entropy, predict_logits
from experiments.training.optimizers import Array
from experiments.training.run import Training, TrainingRun, TrainingSettings, check_work
from experiments.training.stage import Position, TrainedStage
from simulator import OpKind


@dataclass(slots=True)
class _PredictionError:
    """Sums of squared distances of the used and of the current weights from the synchronous version, per seed."""

    used: Array
    current: Array

    def add(self, synchronous: Array, used: Array, current: Array, count: int) -> None:
        for total, weights in ((self.used, used), (self.current, current)):
            if weights is not synchronous:
                distance = weights - synchronous
                total += count * np.einsum("sp,sp->s", distance, distance)

    def ratios(self) -> Array:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(self.used / self.current)


class Replay:
    """One run of an order: all seeds of one method. Built, played once, read."""

    def __init__(self, training: Training, seeds: Sequence[int]) -> None:
        self.training, self.order, self.rule = training, training.order, training.chosen_rule
        order, data, settings, optimizer = training.order, training.data, training.settings, training.optimizer
        t = order.microbatches_per_minibatch
        self.bounds = [j * settings.batch // t for j in range(t + 1)]
        self.evaluate_every = settings.evaluate_every or len(data.train_x) // settings.batch
        self.samples = np.stack([_sample_order(seed, data, settings, order.minibatches) for seed in seeds])
        self.entry_versions: dict[int, int] = {}
        self.replicas: list[list[TrainedStage]] = []
        for k, initial in enumerate(zip(*(_initial(training.network, seed) for seed in seeds), strict=True)):
            weights = np.stack(initial)
            self.replicas.append(
                [
                    TrainedStage(
                        Position(k, order.stages, t),
                        training.network[k],
                        optimizer,
                        weights,
                        optimizer.start(weights),
                        np.zeros_like(weights),
                        self.entry_versions,
                        order.replicas[k],
                    )
                    for _ in range(order.replicas[k])
                ]
            )
            for stage in self.replicas[-1]:
                self._set_learning_rate(stage)
        self.stages = [group[0] for group in self.replicas]
        self.rounds: dict[tuple[int, int], dict[int, Array]] = {}
        self.losses = np.zeros((len(seeds), order.minibatches))
        self.error = _PredictionError(np.zeros(len(seeds)), np.zeros(len(seeds)))
        self.activations: dict[int, Array] = {}
        self.gradients: dict[tuple[int, int], Array] = {}
        self.pending: dict[tuple[int, int], Array] = {}
        self.snapshots: dict[int, dict[int, Array]] = {}
        self.evaluations: dict[int, tuple[Array, Array]] = {}

    def play(self) -> None:
        """Execute every op of the order."""
        order = self.order
        columns = (order.stage, order.replica, order.kind, order.microbatch)
        for k, replica, kind, microbatch in zip(*(column.tolist() for column in columns), strict=True):
            stage = self.replicas[k][replica]
            if kind == OpKind.FORWARD:
                self._forward(stage, k, microbatch)
            elif kind == OpKind.BACKWARD:
                self._input_gradient(stage, k, microbatch)
                self._weight_gradient(stage, k, microbatch)
            elif kind == OpKind.INPUT_GRADIENT:
                self._input_gradient(stage, k, microbatch)
            elif kind == OpKind.WEIGHT_GRADIENT:
                self._weight_gradient(stage, k, microbatch)
            else:
                self._update(stage, microbatch)

    def _forward(self, stage: TrainedStage, k: int, microbatch: int) -> None:
        minibatch, piece = divmod(microbatch, self.order.microbatches_per_minibatch)
        batch = self.training.settings.batch
        chosen = self.samples[:, minibatch * batch :][:, self.bounds[piece] : self.bounds[piece + 1]]
        if k == 0:
            self._enter(stage, microbatch)
            x = self.training.data.train_x[chosen]
        else:
            x = self.activations.pop(microbatch)
        weights = self.rule.forward(stage, microbatch)
        if self.rule.stashes:
            stage.used[microbatch] = weights
        wanted = minibatch // stage.replicas
        if stage.version != wanted:
            known = stage.awaiting.setdefault(wanted, {})
            known.setdefault((id(weights), stage.version), [weights, stage.weights, 0])[2] += 1
        elif weights is not stage.weights:
            self.error.add(stage.weights, weights, stage.weights, 1)
        stage.count_copies()
        y, stage.saved[microbatch] = stage.block.forward(weights, x)
        if k < self.order.stages - 1:
            self.activations[microbatch] = y
            return
        loss, gradient = cross_entropy(y, self.training.data.train_labels[chosen])
        gradient *= 1.0 / batch  # the sum over micro-batches is then the mini-batch's mean
        self.losses[:, minibatch] += loss / batch
        self.gradients[k, microbatch] = gradient

    def _input_gradient(self, stage: TrainedStage, k: int, microbatch: int) -> None:
        weights = self.rule.backward(stage, microbatch)
        stage.count_copies()
        saved = stage.saved[microbatch]
        dz = stage.block.output_gradient(saved, self.gradients.pop((k, microbatch)))
        if k > 0:
            self.gradients[k - 1, microbatch] = stage.block.input_gradient(weights, saved, dz)
        self.pending[k, microbatch] = dz
        stage.used.pop(microbatch, None)

    def _weight_gradient(self, stage: TrainedStage, k: int, microbatch: int) -> None:
        dz = self.pending.pop((k, microbatch))
        gradient = stage.gradient
        if stage.replicas > 1:
            gradient = np.zeros_like(stage.gradient)
            self.rounds.setdefault((k, microbatch // stage.replicas), {})[microbatch] = gradient
        stage.block.weight_gradient(stage.saved.pop(microbatch), dz, gradient)

    def _reduced(self, stage: TrainedStage, minibatch: int) -> Array:
        """The gradient of an update: the mean over the round's mini-batches, the same numbers on every replica."""
        if stage.replicas == 1:
            return stage.gradient
        gradients = self.rounds[stage.position.stage, minibatch // stage.replicas]
        mean: Array = np.mean([gradients[one] for one in sorted(gradients)], axis=0)
        return mean

    def _update(self, stage: TrainedStage, minibatch: int) -> None:
        previous, before = stage.weights, stage.version * stage.replicas
        gradient = self._reduced(stage, minibatch)
        stage.weights, stage.state = stage.optimizer.step(previous, gradient, stage.state, stage.learning_rate)
        stage.gradient[:] = 0.0
        if self.rule.holds_versions:
            stage.held[stage.version] = previous
        stage.version += 1
        self._release_round(stage, minibatch)
        self._release(stage)
        self._set_learning_rate(stage)
        self.rule.updated(stage, previous)
        stage.count_copies()
        for used, current, count in stage.awaiting.pop(stage.version, {}).values():
            self.error.add(stage.weights, used, current, count)
        if stage is self.stages[stage.position.stage]:
            self._snapshot(stage, before, min(stage.version * stage.replicas, self.order.minibatches))

    def _enter(self, stage: TrainedStage, microbatch: int) -> None:
        """Note the version with which a micro-batch enters the pipeline."""
        if stage.replicas == 1 and microbatch != len(self.entry_versions):
            raise ValueError(
                f"training needs the input stage to take micro-batches in order, got {microbatch} after "
                f"{len(self.entry_versions) - 1}"
            )
        self.entry_versions[microbatch] = stage.version

    def _release_round(self, stage: TrainedStage, minibatch: int) -> None:
        """Drop the gradients of a round that every replica has applied."""
        key = stage.position.stage, minibatch // stage.replicas
        group = self.replicas[key[0]]
        if all(group[one % stage.replicas].version > key[1] for one in self.rounds.get(key, ())):
            self.rounds.pop(key, None)

    def _release(self, stage: TrainedStage) -> None:
        """Drop held versions that no micro-batch of an unfinished mini-batch can ask for."""
        if stage.held:
            first = stage.version * self.order.microbatches_per_minibatch
            entered = self.entry_versions.get(first, self.stages[0].version)
            for version in [v for v in stage.held if v < entered]:
                del stage.held[version]

    def _set_learning_rate(self, stage: TrainedStage) -> None:
        update = min(stage.version * stage.replicas, self.order.minibatches - 1)
        factor = self.training.settings.schedule(update, self.order.minibatches)
        scale = self.rule.learning_rate_factor(stage.position, update)
        stage.learning_rate = float(self.training.settings.learning_rate * factor * scale)

    def _snapshot(self, stage: TrainedStage, before: int, now: int) -> None:
        """Keep the stage's weights for each evaluation between so many mini-batches; evaluate when the last stage is there."""
        for minibatches in range(before + 1, now + 1):
            if minibatches % self.evaluate_every and minibatches != self.order.minibatches:
                continue
            snapshot = self.snapshots.setdefault(minibatches, {})
            snapshot[stage.position.stage] = stage.weights
            if len(snapshot) == self.order.stages:
                del self.snapshots[minibatches]
                weights = tuple(snapshot[k] for k in range(self.order.stages))
                data = self.training.data
                self.evaluations[minibatches] = self._evaluate(weights, data.test_x, data.test_labels)

    def _evaluate(
        self, weights: tuple[Array, ...], x: Array, labels: NDArray[np.int64], chunk: int = 64
    ) -> tuple[Array, Array]:
        """Mean loss and accuracy per seed, in chunks too small for BLAS to start threads for."""
        seeds = weights[0].shape[0]
        loss, right = np.zeros(seeds), np.zeros(seeds)
        for first in range(0, len(x), chunk):
            part = np.broadcast_to(x[first : first + chunk], (seeds, *x[first : first + chunk].shape))
            wanted = np.broadcast_to(labels[first : first + chunk], part.shape[:2])
            logits = predict_logits(self.training.network, weights, part)
            loss += cross_entropy(logits, wanted)[0]
            right += (logits.argmax(axis=2) == wanted).sum(axis=1)
        return loss / len(x), right / len(x)

    def results(self, seeds: Sequence[int]) -> list[TrainingRun]:
        """The `TrainingRun` of each seed."""
        final = tuple(stage.weights for stage in self.stages)
        train_loss, _ = self._evaluate(final, self.training.data.train_x, self.training.data.train_labels)
        updates = np.array(sorted(self.evaluations), np.int64)
        seconds = self.order.update_seconds
        loss, accuracy = (np.stack([self.evaluations[int(u)][part] for u in updates]) for part in (0, 1))
        copies = tuple(max(replica.copies for replica in group) for group in self.replicas)
        ratios = self.error.ratios()
        finite = np.isfinite(train_loss) & np.isfinite(self.losses).all(axis=1)
        diverged = ~(finite & (train_loss < math.log(self.training.data.classes)))
        return [
            TrainingRun(
                self.training.method,
                seed,
                float(train_loss[s]),
                float(accuracy[-1, s]),
                bool(diverged[s]),
                max(copies),
                copies,
                self.order.makespan,
                float(ratios[s]),
                seconds,
                self.losses[s],
                updates,
                np.maximum.accumulate(seconds)[updates - 1],
                loss[:, s],
                accuracy[:, s],
            )
            for s, seed in enumerate(seeds)
        ]


def _initial(network: Network, seed: int) -> list[Array]:
    """Initial weights of every stage: a stream of its own, so that the order of the data does not depend on it."""
    generator = np.random.default_rng([seed, 0])
    return [block.initial(generator) for block in network]


def _sample_order(seed: int, data: DataSet, settings: TrainingSettings, minibatches: int) -> NDArray[np.int64]:
    """Training samples of every mini-batch in turn: a shuffle per epoch, the last incomplete mini-batch left out."""
    generator = np.random.default_rng([seed, 1])
    samples = len(data.train_x)
    usable = samples // settings.batch * settings.batch
    epochs = -(-minibatches * settings.batch // usable)
    order = np.concatenate([generator.permutation(samples)[:usable] for _ in range(epochs)])
    return order[: minibatches * settings.batch]


def train(training: Training, seeds: Sequence[int], jobs: int = 1) -> list[TrainingRun]:
    """Train once for each seed, side by side, the seeds divided over `jobs` processes (joblib).

    The same seed gives the same initial weights and data order for every method. A seed's result depends neither on the
    other seeds nor on the number of processes, to the bit. ValueError: no seeds, a negative one, jobs < 1, more work than
    MOST_TRAINED.
    """
    if not seeds or min(seeds) < 0:
        raise ValueError(f"seeds must be one or more non-negative numbers, got {list(seeds)}")
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    order = training.order
    check_work(order.stages, order.minibatches * order.microbatches_per_minibatch, len(seeds))
    groups = [list(seeds[part::jobs]) for part in range(min(jobs, len(seeds)))]
    if len(groups) == 1:
        return _replayed(training, groups[0])
    parts = Parallel(n_jobs=len(groups))(delayed(_replayed)(training, group) for group in groups)
    by_seed = {run.seed: run for part in parts for run in part}
    return [by_seed[seed] for seed in seeds]


def _replayed(training: Training, seeds: list[int]) -> list[TrainingRun]:
    # a diverging run overflows by design and is reported as diverged
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        replay = Replay(training, seeds)
        replay.play()
        return replay.results(seeds)
