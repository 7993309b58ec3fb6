"""The numerical replay: what must be equal is equal, and stale weights are really stale."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from experiments.training import (
    DataSet,
    Training,
    TrainingRun,
    TrainingSettings,
    minibatches_per_epoch,
    train,
    training_order,
)
from experiments.training.data import digits
from experiments.training.networks import Dense, convolutional, perceptron
from experiments.training.optimizers import Adam, MomentumSGD, Optimizer
from experiments.training.order import TrainingOrder, joined, repeated
from experiments.training.prediction import PREDICTION_RULES, PipeMare
from simulator.memory.versions import COPY_RULES, version_table
from simulator.schedules.ops import OpKind
from tests.experiments.training.test_replicas import train_once

SETTINGS = TrainingSettings(batch=8, learning_rate=0.01)
MINIBATCHES = 18


def staircase(hand: Any, stages: int, per_minibatch: int, minibatches: int = MINIBATCHES) -> TrainingOrder:
    """The training order of XPipe's staircase."""
    return training_order(hand.replayed(hand.staircase(stages, per_minibatch, minibatches)), per_minibatch)


def flushed(hand: Any, stages: int, per_minibatch: int, minibatches: int = MINIBATCHES) -> TrainingOrder:
    """The training order of 1F1B with flush."""
    return training_order(hand.replayed(hand.flushed(stages, per_minibatch, minibatches)), per_minibatch)


def play(order: TrainingOrder, method: str, data: DataSet, **options: Any) -> TrainingRun:
    """Train a narrow perceptron with Adam for one seed, unless told otherwise."""
    network = perceptron(order.stages, data.features, data.classes, hidden=7)
    optimizer: Optimizer = options.pop("optimizer", Adam())
    return train_once(order, method, network, data, optimizer, options.pop("settings", SETTINGS), **options)


def same_numbers(one: TrainingRun, other: TrainingRun) -> bool:
    """Equal to the last bit in every loss."""
    return one.train_loss == other.train_loss and np.array_equal(one.update_loss, other.update_loss)


@pytest.mark.parametrize("optimizer", [Adam(), MomentumSGD()])
@pytest.mark.parametrize("per_minibatch", [2, 3, 8])
def test_one_microbatch_synchronous_equals_many(
    hand: Any, blobs: DataSet, per_minibatch: int, optimizer: Optimizer
) -> None:
    """Gradients of T micro-batches (of unequal sizes, too) add up to the mini-batch's: losses agree to 1e-12."""
    whole = play(flushed(hand, 3, 1), "synchronous", blobs, optimizer=optimizer)
    parts = play(flushed(hand, 3, per_minibatch), "synchronous", blobs, optimizer=optimizer)
    assert parts.update_loss == pytest.approx(whole.update_loss, rel=1e-12, abs=1e-12)
    assert parts.train_loss == pytest.approx(whole.train_loss, rel=1e-12)


@pytest.mark.parametrize("method", PREDICTION_RULES)
@pytest.mark.parametrize("per_minibatch", [1, 4])
def test_one_stage_makes_every_method_synchronous(hand: Any, blobs: DataSet, method: str, per_minibatch: int) -> None:
    """With N = 1 there is nothing to be late for: every method gives the synchronous numbers, bit for bit."""
    expected = play(flushed(hand, 1, per_minibatch), "synchronous", blobs)
    found = play(staircase(hand, 1, per_minibatch), method, blobs)
    assert same_numbers(found, expected)
    assert math.isnan(found.prediction_error_ratio)


def test_synchronous_schedules_agree(hand: Any, blobs: DataSet) -> None:
    """GPipe and 1F1B with flush give the same bits, and so does every rule without prediction on them."""
    fill_drain = training_order(hand.replayed(hand.flushed(3, 4, MINIBATCHES, fill_drain=True)), 4)
    expected = play(fill_drain, "synchronous", blobs)
    for method in ("synchronous", "naive", "pipedream"):
        assert same_numbers(play(flushed(hand, 3, 4), method, blobs), expected)


def test_exact_xpipe_at_one_microbatch_is_pipeoptim(hand: Any, blobs: DataSet) -> None:
    """XPipe with s = N-1-k forward and 0 backward, T = 1, gives PipeOptim's bits; with the printed steps it does not."""
    order = staircase(hand, 4, 1)
    expected = play(order, "pipeoptim", blobs)
    assert same_numbers(play(order, "xpipe-exact", blobs), expected)
    assert not same_numbers(play(order, "xpipe", blobs), expected)


def test_every_asynchronous_method_is_its_own(hand: Any, blobs: DataSet) -> None:
    """On a staircase of 4 stages the methods give different numbers (all but PipeOptim and exact XPipe)."""
    order = staircase(hand, 4, 1)
    methods = [name for name in PREDICTION_RULES if name not in ("synchronous", "2bw", "xpipe-exact")]
    assert len({play(order, method, blobs).train_loss for method in methods}) == len(methods)


@pytest.mark.parametrize(
    ("stages", "per_minibatch"),
    [(1, 2), (3, 1), (4, 2), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(4, 1), (4, 4), (5, 3), (3, 8)])],
)
def test_copies_held_are_those_counted_from_the_timeline(
    hand: Any, blobs: DataSet, stages: int, per_minibatch: int
) -> None:
    """The arrays that the replay really holds are as many as `COPY_RULES` counts from the versions."""
    timeline = hand.replayed(hand.staircase(stages, per_minibatch, MINIBATCHES))
    table, order = version_table(timeline, per_minibatch), training_order(timeline, per_minibatch)
    for method in PREDICTION_RULES:
        if method == "synchronous" or (method == "2bw" and per_minibatch < stages):
            continue
        if method == "spectrain-v2" and per_minibatch > 1:
            continue  # predictions of 0 steps need no copy, and how many there are depends on T
        run, held = play(order, method, blobs), tuple(COPY_RULES[method](table))
        assert (run.weight_copies_per_stage, run.weight_copies) == (held, max(held)), method


def by_hand(stages: int, delayed: bool, data: DataSet) -> list[float]:
    """Losses of plain SGD, T=1, on a chain of linear blocks; forward weights N-1-k updates late when `delayed`."""
    draw = np.random.default_rng([0, 0])
    widths = [5, 4, 3]
    weights = []
    for inputs, outputs in pairwise(widths):
        flat = draw.normal(0.0, math.sqrt(1 / inputs), inputs * outputs)
        weights.append((flat.reshape(inputs, outputs), np.zeros(outputs)))
    history = [[w] for w in weights]
    samples = np.random.default_rng([0, 1]).permutation(96)
    losses = []
    for m in range(6):
        chosen = samples[8 * m : 8 * m + 8]
        late = [history[k][max(0, m - (stages - 1 - k)) if delayed else m] for k in range(stages)]
        x = [data.train_x[chosen]]
        for matrix, bias in late:
            x.append(x[-1] @ matrix + bias)
        odds = np.exp(x[-1])
        odds /= odds.sum(axis=1, keepdims=True)
        losses.append(float(-np.log(odds[np.arange(8), data.train_labels[chosen]]).mean()))
        dz = odds.copy()
        dz[np.arange(8), data.train_labels[chosen]] -= 1
        dz /= 8
        for k in reversed(range(stages)):
            matrix, bias = history[k][m]  # naive: the weights present at backward
            change = (x[k].T @ dz, dz.sum(axis=0))
            history[k].append((matrix - 0.1 * change[0], bias - 0.1 * change[1]))
            dz = dz @ matrix.T
    return losses


@pytest.mark.parametrize("delayed", [True, False])
def test_against_an_independent_loop(hand: Any, blobs: DataSet, delayed: bool) -> None:
    """Two linear stages, SGD: naive on the staircase is a forward N-1-k updates late; synchronous is none."""
    network = (Dense(5, 4, relu=False), Dense(4, 3, relu=False))
    order = staircase(hand, 2, 1, 6) if delayed else flushed(hand, 2, 1, 6)
    run = train_once(
        order, "naive", network, blobs, MomentumSGD(momentum=0.0), TrainingSettings(batch=8, learning_rate=0.1)
    )
    assert run.update_loss == pytest.approx(by_hand(2, delayed, blobs), rel=1e-12)


def test_split_backward_gives_the_same_bits(hand: Any, blobs: DataSet) -> None:
    """B replaced by I and a later W, before the update: the same numbers."""
    whole = hand.replayed(hand.flushed(3, 2, 4))
    rows = []
    for stage, kind, i, start, end in zip(
        whole.stage, whole.kind, whole.microbatch, whole.start, whole.end, strict=True
    ):
        if kind == OpKind.BACKWARD:
            middle = (start + end) / 2
            rows += [(stage, OpKind.INPUT_GRADIENT, i, start, middle), (stage, OpKind.WEIGHT_GRADIENT, i, middle, end)]
        else:
            rows.append((stage, kind, i, start, end))
    split = training_order(hand.columns(rows), 2)
    assert same_numbers(play(split, "synchronous", blobs), play(training_order(whole, 2), "synchronous", blobs))


def test_a_repeated_iteration_trains_as_the_long_run(hand: Any, blobs: DataSet) -> None:
    """A synchronous run from one iteration repeated gives the same bits and as many updates."""
    assert same_numbers(
        play(repeated(flushed(hand, 3, 2, 1), MINIBATCHES), "synchronous", blobs),
        play(flushed(hand, 3, 2), "synchronous", blobs),
    )


def test_pipemare_warm_up_is_synchronous(hand: Any, blobs: DataSet) -> None:
    """T3: after 9 flushed mini-batches the losses so far are the synchronous ones; then they differ."""
    warm = joined(flushed(hand, 4, 1, 9), staircase(hand, 4, 1, 9))
    run = play(warm, "pipemare", blobs, rule=PipeMare(warmup_updates=9, anneal_updates=5))
    expected = play(flushed(hand, 4, 1, 18), "synchronous", blobs).update_loss
    assert np.array_equal(run.update_loss[:10], expected[:10])
    assert not np.array_equal(run.update_loss[10:], expected[10:])


def test_prediction_error_ratio(hand: Any, blobs: DataSet) -> None:
    """Naive is 1 by definition; older weights than present are worse; a smooth run with small steps is predicted better."""
    order = staircase(hand, 4, 1, 60)
    small = TrainingSettings(batch=96, learning_rate=1e-4)
    ratios = {name: play(order, name, blobs, settings=small).prediction_error_ratio for name in PREDICTION_RULES
              if name not in ("synchronous", "2bw")}  # fmt: skip
    assert ratios["naive"] == ratios["pipedream"] == 1.0
    assert ratios["vertical-sync"] > 1.0
    assert ratios["pipeoptim"] < 0.5


def test_seeds_do_not_depend_on_each_other(hand: Any, blobs: DataSet) -> None:
    """Seeds together, alone, and in two processes give the same bits; different seeds differ."""
    order = staircase(hand, 3, 2)
    network = perceptron(3, blobs.features, blobs.classes, hidden=7)
    training = Training(order, "xpipe", network, blobs, Adam(), SETTINGS)
    together = train(training, [3, 1, 2])
    alone = [train(training, [seed])[0] for seed in (3, 1, 2)]
    spread = train(training, [3, 1, 2], jobs=2)
    for one, two, three in zip(together, alone, spread, strict=True):
        assert same_numbers(one, two)
        assert same_numbers(one, three)
        assert one.seed == two.seed == three.seed
        assert one.prediction_error_ratio == two.prediction_error_ratio
    assert len({run.train_loss for run in together}) == 3


def test_results_carry_the_timelines_seconds(hand: Any, blobs: DataSet) -> None:
    """Updates and evaluations are dated by the timeline; an epoch of 96 samples is 12 mini-batches of 8."""
    order = staircase(hand, 3, 2)
    run = play(order, "xpipe", blobs)
    assert np.array_equal(run.update_seconds, order.update_seconds)
    assert run.evaluated_updates.tolist() == [12, 18]
    assert run.evaluated_seconds.tolist() == order.update_seconds[[11, 17]].tolist()
    assert run.simulated_seconds == order.makespan
    assert run.test_accuracy == run.evaluated_accuracy[-1]
    every = play(order, "xpipe", blobs, settings=replace(SETTINGS, evaluate_every=6))
    assert every.evaluated_updates.tolist() == [6, 12, 18]
    assert same_numbers(every, run)


def test_training_learns(hand: Any, blobs: DataSet) -> None:
    """Ten epochs of easy clusters: better than 80 % right in every kind of method."""
    for method, order in (("synchronous", flushed(hand, 3, 2, 120)), ("xpipe", staircase(hand, 3, 2, 120))):
        run = play(order, method, blobs)
        assert not run.diverged
        assert run.test_accuracy > 0.8
        assert run.update_loss[-12:].mean() < run.update_loss[:12].mean()


def test_divergence_is_reported(hand: Any, blobs: DataSet) -> None:
    """A learning rate of 1e6 overflows; the result says so and no warning escapes."""
    hot = TrainingSettings(batch=8, learning_rate=1e6)
    assert play(staircase(hand, 3, 1), "naive", blobs, optimizer=MomentumSGD(), settings=hot).diverged


def test_convolutional_network_trains(hand: Any) -> None:
    """Images: T=1 equals T=2 synchronously, and a staircase runs, through convolutions and pooling."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 40)
    images = draw.normal(size=(40, 4, 4, 1)) + labels[:, None, None, None]
    data = DataSet("squares", 2, images[:32], labels[:32], images[32:], labels[32:])
    network = convolutional(4, data.features, data.classes, channels=3)
    whole, parts = (train_once(flushed(hand, 4, t, 6), "synchronous", network, data, Adam(), SETTINGS) for t in (1, 2))
    assert parts.update_loss == pytest.approx(whole.update_loss, rel=1e-12)
    asynchronous = train_once(staircase(hand, 4, 2, 6), "xpipe", network, data, Adam(), SETTINGS)
    assert not np.array_equal(asynchronous.update_loss, parts.update_loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic'; choose one of synchronous, naive"),
        (
            {"method": "synchronous"},
            (
                "synchronous training needs an order that flushes after every mini-batch: stage 0 starts "
                "micro-batch 2 after 0 updates, not 1"
            ),
        ),
        ({"method": "2bw"}, "got T=2, N=3"),
        ({"settings": TrainingSettings(batch=1)}, "1 samples cannot be cut into 2 micro-batches"),
        ({"settings": TrainingSettings(batch=97)}, r"1 to 96 samples \(blobs has no more\), got 97"),
        ({"seed": -1}, r"seeds must be one or more non-negative numbers, got \[-1\]"),
    ],
)
def test_bad_requests_are_refused(hand: Any, blobs: DataSet, options: dict[str, Any], message: str) -> None:
    """One line that states the rule and the value."""
    with pytest.raises(ValueError, match=message):
        play(staircase(hand, 3, 2), options.pop("method", "naive"), blobs, **options)


def test_orders_that_no_method_can_train_are_refused(hand: Any, blobs: DataSet) -> None:
    """The second micro-batch first; a stage that has not made the update with whose version the input stage goes on."""
    f, b, u = (int(kind) for kind in (OpKind.FORWARD, OpKind.BACKWARD, OpKind.UPDATE))
    turned = [(0, f, 1, 0, 1), (0, f, 0, 1, 2), (0, b, 0, 2, 3), (0, b, 1, 3, 4), (0, u, 0, 4, 5)]
    with pytest.raises(ValueError, match="input stage to take micro-batches in order, got 1 after -1"):
        play(training_order(hand.columns(turned), 2), "naive", blobs)
    late = [(0, f, 0, 0, 1), (1, f, 0, 1, 2), (1, b, 0, 2, 3), (0, b, 0, 3, 4), (0, u, 0, 4, 5), (0, f, 1, 5, 6)]
    late += [(1, f, 1, 6, 7), (1, u, 0, 7, 8), (1, b, 1, 8, 9), (1, u, 1, 9, 10), (0, b, 1, 9, 10), (0, u, 1, 10, 11)]
    with pytest.raises(ValueError, match=r"stage 1 needs version 1 but holds \[\] and 0: vertical sync needs an order"):
        play(training_order(hand.columns(late), 1), "vertical-sync", blobs)


def test_bad_settings_are_refused(hand: Any, blobs: DataSet) -> None:
    """Numbers out of range, another number of blocks than stages, no processes."""
    for wrong in ({"batch": 0}, {"learning_rate": 0.0}, {"evaluate_every": 0}):
        with pytest.raises(ValueError, match="got"):
            TrainingSettings(**wrong)  # type: ignore[arg-type]
    order = staircase(hand, 3, 2)
    network = perceptron(2, blobs.features, blobs.classes)
    with pytest.raises(ValueError, match="2 blocks, 3 stages"):
        Training(order, "naive", network, blobs, Adam(), SETTINGS)
    training = Training(order, "naive", perceptron(3, blobs.features, blobs.classes), blobs, Adam(), SETTINGS)
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        train(training, [0], jobs=0)
    with pytest.raises(ValueError, match=r"seeds must be one or more non-negative numbers, got \[\]"):
        train(training, [])


def test_stale_weights_cost_accuracy_on_digits(hand: Any) -> None:
    """8 stages, Adam lr .002, 2 epochs of the digits, 2 seeds: mean train loss synchronous < XPipe T=1 < naive T=1."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra `learn`)")
    data = digits()
    network = perceptron(8, data.features, data.classes)
    minibatches = 2 * minibatches_per_epoch(data, 32)
    assert minibatches == 88
    late, prompt = staircase(hand, 8, 1, minibatches), flushed(hand, 8, 1, minibatches)
    mean_loss = {
        method: np.mean(
            [
                run.train_loss
                for run in train(Training(order, method, network, data, Adam(), TrainingSettings()), [0, 1])
            ]
        )
        for method, order in (("synchronous", prompt), ("xpipe", late), ("naive", late))
    }
    assert mean_loss["synchronous"] < mean_loss["xpipe"] < mean_loss["naive"]
