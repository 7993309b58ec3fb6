"""Training of plans whose replicas take mini-batches in turn: the versions are those of the timeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from experiments.training import DataSet, PredictionRule, Training, TrainingRun, TrainingSettings, train, training_order
from experiments.training.networks import cross_entropy, perceptron
from experiments.training.optimizers import MomentumSGD
from simulator import OpKind, Timeline, simulate
from simulator.memory.versions import version_table
from tests.simulator.test_pipedream_runtime import plan_of, problem_of

SETTINGS = TrainingSettings(batch=8, learning_rate=0.05, evaluate_every=10)


def train_once(*parts: Any, seed: int = 0, rule: PredictionRule | None = None) -> TrainingRun:
    """Train for one seed; the order, method, network, data, optimizer and settings as `Training` takes them."""
    return train(Training(*parts, rule), [seed])[0]


def timeline_of(replicas: tuple[int, ...], rule: str) -> Timeline:
    """Balanced stages on fast links: the stream that shows the plan's steady state."""
    plan = plan_of(*replicas)
    return simulate(problem_of(plan, *map(float, replicas), replica_updates=rule), plan, engine="recurrence").timeline


def losses_by_versions(replicas: Sequence[int], timeline: Timeline, data: DataSet, minibatches: int) -> list[float]:
    """Losses of weight stashing by definition: each forward uses version `seen` of its stage, a version is the one before
    less a step along the mean gradient of its round; worked out backwards from each mini-batch, without any order."""
    network = perceptron(len(replicas), data.features, data.classes, hidden=7)
    table = version_table(timeline, 1)
    forward = table.kind == OpKind.FORWARD
    seen = {
        (int(k), int(i)): int(v)
        for k, i, v in zip(table.stage[forward], table.microbatch[forward], table.seen[forward], strict=True)
    }
    generator, shuffle = np.random.default_rng([0, 0]), np.random.default_rng([0, 1])
    first = [block.initial(generator)[None] for block in network]
    usable = len(data.train_x) // SETTINGS.batch * SETTINGS.batch
    epochs = -(-minibatches * SETTINGS.batch // usable)
    order = np.concatenate([shuffle.permutation(len(data.train_x))[:usable] for _ in range(epochs)])
    optimizer = MomentumSGD()

    @cache
    def version(k: int, v: int) -> tuple[Any, Any]:
        if v == 0:
            return first[k], optimizer.start(first[k])
        members = range((v - 1) * replicas[k], min(v * replicas[k], minibatches))
        gradient = np.mean([passed(i)[1][k] for i in members], axis=0)
        return optimizer.step(*_weights_gradient_state(version(k, v - 1), gradient), SETTINGS.learning_rate)

    @cache
    def passed(i: int) -> tuple[float, list[Any]]:
        chosen = order[i * SETTINGS.batch : (i + 1) * SETTINGS.batch]
        x, saved, weights = data.train_x[chosen][None], [], []
        for k, block in enumerate(network):
            weights.append(version(k, seen[k, i])[0])
            x, kept = block.forward(weights[-1], x)
            saved.append(kept)
        loss, gradient = cross_entropy(x, data.train_labels[chosen][None])
        gradient = gradient / SETTINGS.batch
        gradients: list[Any] = [None] * len(network)
        for k in range(len(network) - 1, -1, -1):
            dz = network[k].output_gradient(saved[k], gradient)
            gradient = network[k].input_gradient(weights[k], saved[k], dz)
            gradients[k] = np.zeros_like(weights[k])
            network[k].weight_gradient(saved[k], dz, gradients[k])
        return float(loss[0]) / SETTINGS.batch, gradients

    return [passed(i)[0] for i in range(minibatches)]


def _weights_gradient_state(version: tuple[Any, Any], gradient: Any) -> tuple[Any, Any, Any]:
    weights, state = version
    return weights, gradient, state


@pytest.mark.parametrize("rule", ["overlapped", "barrier"])
@pytest.mark.parametrize("replicas", [(3, 1), (15, 1), (2, 1, 1), (4, 2, 2)])
def test_replicas_train_on_the_versions_of_their_timeline(replicas: tuple[int, ...], rule: str, blobs: DataSet) -> None:
    """Every loss is that of the version table, mini-batch by mini-batch: one update a round, as late as the timeline says."""
    timeline = timeline_of(replicas, rule)
    order = training_order(timeline, 1)
    assert order.replicas == replicas
    network = perceptron(len(replicas), blobs.features, blobs.classes, hidden=7)
    run = train_once(order, "pipedream", network, blobs, MomentumSGD(), SETTINGS)
    expected = losses_by_versions(replicas, timeline, blobs, order.minibatches)
    assert run.update_loss == pytest.approx(expected, rel=1e-9)
    warm_up = (sum(replicas) - 1) // replicas[0]
    assert run.weight_copies_per_stage[0] == warm_up + 1


def test_a_replicated_stage_does_not_train_as_one(blobs: DataSet) -> None:
    """3-1 gives stage 0 one update every three mini-batches: other losses than 1-1, from the second round on."""
    found = []
    for replicas in ((3, 1), (1, 1)):
        order = training_order(timeline_of(replicas, "barrier"), 1)
        network = perceptron(2, blobs.features, blobs.classes, hidden=7)
        found.append(train_once(order, "pipedream", network, blobs, MomentumSGD(), SETTINGS).update_loss[:20])
    assert not np.allclose(found[0][3:], found[1][3:])


def test_replicas_that_split_a_microbatch_train_as_one(blobs: DataSet) -> None:
    """Their gradients add up to that of the micro-batch: the numbers of a flushed 2-1 are those of 1-1."""
    found = []
    for replicas in ((2, 1), (1, 1)):
        plan = dataclasses.replace(plan_of(*replicas, minibatches=4), schedule="1f1b", replication="split")
        problem = problem_of(plan, 2.0, 1.0)
        wide = dataclasses.replace(problem, batch=8)
        plan = dataclasses.replace(plan, microbatches=(2,) * 4)
        order = training_order(simulate(wide, plan, engine="recurrence").timeline, 4)
        assert order.replicas == (1, 1)
        network = perceptron(2, blobs.features, blobs.classes, hidden=7)
        found.append(train_once(order, "synchronous", network, blobs, MomentumSGD(), SETTINGS).train_loss)
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["vertical-sync", "xpipe"])
def test_methods_without_a_rule_for_rounds_are_refused(method: str, blobs: DataSet) -> None:
    """What a stage with rounds of three would use of an input stage's version, or predict, no paper says."""
    order = training_order(timeline_of((3, 1), "overlapped"), 1)
    network = perceptron(2, blobs.features, blobs.classes, hidden=7)
    with pytest.raises(
        ValueError,
        match=rf"^method '{method}' is .* without replicas in turn, got replicas \[3, 1\]; naive and pipedream are for both",
    ):
        train_once(order, method, network, blobs, MomentumSGD(), SETTINGS)


@pytest.mark.parametrize("replicas", [(1, 1), (3, 1)])
def test_the_learning_rate_follows_the_minibatches(replicas: tuple[int, ...], blobs: DataSet) -> None:
    """Each update asks for the rate of the mini-batches before it: all of them, or on three replicas every third one."""
    order = training_order(timeline_of(replicas, "overlapped"), 1)
    asked: list[int] = []

    def schedule(update: int, updates: int) -> float:
        asked.append(update)
        return 1.0

    network = perceptron(2, blobs.features, blobs.classes, hidden=7)
    train_once(order, "pipedream", network, blobs, MomentumSGD(), dataclasses.replace(SETTINGS, schedule=schedule))
    assert set(asked) == set(range(order.minibatches))
    if replicas == (3, 1):
        expected = [min(3 * version, order.minibatches - 1) for version in range(order.minibatches // 3 + 1)]
        assert all(asked.count(update) > 1 for update in expected)


def test_every_test_sample_counts(blobs: DataSet) -> None:
    """A test set of a single sample has its loss."""
    single = dataclasses.replace(blobs, test_x=blobs.test_x[:1], test_labels=blobs.test_labels[:1])
    order = training_order(timeline_of((1, 1), "overlapped"), 1)
    network = perceptron(2, blobs.features, blobs.classes, hidden=7)
    assert (train_once(order, "pipedream", network, single, MomentumSGD(), SETTINGS).evaluated_loss > 0).all()
