"""`pipeplan train`: train a real network under the weight versions of a method's timeline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any

import hardware_profiles
import simulator
from experiments import training
from experiments.terminal.argument_types import (
    MOST_JOBS,
    MOST_SEEDS,
    CountUpTo,
    Option,
    add_options,
    check_choice,
    count,
    counts,
    number,
    numbers,
    refuse,
)
from experiments.terminal.output import UsageError, print_json, progress
from experiments.terminal.report_tables import ReportTable, either, figure, share
from hardware_profiles import MOST_COUNT, blaming, percent, real_number, shown, whole_number

if TYPE_CHECKING:
    from experiments.training.clocks import Clock, MethodOrder

DEFAULT_STAGES = 8

DEFAULT_CLUSTER = "dapple-b"
"""16 servers of one V100: one stage a server."""

DEFAULT_UPDATES = "overlapped"

METHOD: dict[str, Option] = {
    "--method NAME": (
        "synchronous, naive, pipedream, vertical-sync, 2bw, spectrain-v1, spectrain-v2, xpipe, xpipe-exact, pipeoptim or "
        "pipemare",
        str,
        ...,
    ),
    "--json": "print one JSON document",
    "--stages N": (f"stages, one block each (default {DEFAULT_STAGES}, or those of --replicas)", count),
    "--split BLOCK:FRACTION": "let the stage behind share a dense block (from 0): the first makes a FRACTION of its outputs",
    "--microbatches-per-minibatch T": ("micro-batches per update (default 1)", count, 1),
    "--replicas R,…": ("replicas of each stage that take mini-batches in turn (pipedream, naive)", counts),
    "--replica-updates RULE": "when replicas update: overlapped (default) or barrier",
}

TRAINING: dict[str, Option] = {
    "--data NAME": ("digits (default), breast-cancer or wine", str, "digits"),
    "--network NAME": ("mlp (default) or convolutional", str, "mlp"),
    "--optimizer NAME": ("adam (default), adamw or sgd", str, "adam"),
    "--lr RATE": ("learning rate (default 0.002); sgd averages its gradients: 10 times PyTorch's", number, 0.002),
    "--lr-schedule NAME": ("constant (default), cosine, step or warmup", str, "constant"),
    "--batch B": ("samples per mini-batch (default 32)", count, 32),
    "--epochs E": ("epochs (default 10)", count, 10),
    "--seeds K": ("train seeds 0 to K-1 (default 5)", CountUpTo(MOST_SEEDS), 5),
    "--jobs J": ("processes (default 1); the same results", CountUpTo(MOST_JOBS), 1),
}

RULE: dict[str, Option] = {
    "--forward-rounding HOW": "xpipe: round (default), half-even, floor or ceil",
    "--backward-rounding HOW": "xpipe: floor (default), round, half-even or ceil",
    "--correction HOW": "xpipe: bias correction of the prediction, adam (default) or literal",
    "--warmup-minibatches W": ("pipemare: synchronous mini-batches first (default 0)", count),
}

CLOCK: dict[str, Option] = {
    "--cluster NAME": f"cluster whose devices run the stages (default {DEFAULT_CLUSTER})",
    "--forward F": ("seconds of a MINI-BATCH's forward: one number, or one per stage", numbers),
    "--backward B": ("seconds of a mini-batch's backward", numbers),
    "--update U": ("seconds of an update (default 0)", number),
    "--predict P": ("seconds of a weight prediction (default 0)", number),
    "--transfer C": ("one-way seconds of a mini-batch's tensor (default 0)", number),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan train`."""
    add_options(parser, METHOD)
    add_options(parser.add_argument_group("training"), TRAINING)
    add_options(parser.add_argument_group("the method's own settings"), RULE)
    unless = "of the network's own layers on a cluster, unless numbers are given"
    add_options(parser.add_argument_group("simulated seconds", unless), CLOCK)


def run(arguments: argparse.Namespace) -> int:
    """Train every seed and print."""
    from experiments.training.clocks import MethodCase

    check_choice("--data", arguments.data, training.DATA_SETS)
    check_choice("--network", arguments.network, training.NETWORKS)
    check_choice("--optimizer", arguments.optimizer, training.OPTIMIZERS)
    check_choice("--lr-schedule", arguments.lr_schedule, training.LEARNING_RATE_SCHEDULES)
    rule = read_rule(arguments)
    settings = training.TrainingSettings(
        batch=arguments.batch,
        learning_rate=arguments.lr,
        schedule=training.LEARNING_RATE_SCHEDULES[arguments.lr_schedule],
    )
    stages, per_minibatch = _stages(arguments), arguments.microbatches_per_minibatch
    rule.check(stages, per_minibatch)
    if arguments.batch < per_minibatch:
        raise UsageError(f"--batch {arguments.batch} samples cannot be cut into {per_minibatch} micro-batches")
    data = training.DATA_SETS[arguments.data]()
    minibatches = arguments.epochs * training.minibatches_per_epoch(data, arguments.batch)
    simulator.check_size(stages, per_minibatch * minibatches)
    training.check_work(stages, per_minibatch * minibatches, arguments.seeds)
    network = _network(arguments, stages, data)
    clock, seconds_of = _clock(arguments, network, data)
    with progress(f"training {arguments.method}, {arguments.seeds} seeds, {minibatches} mini-batches each"):
        case = MethodCase(
            arguments.method,
            arguments.method,
            per_minibatch,
            warmup=arguments.warmup_minibatches or 0,
            replicas=tuple(arguments.replicas or ()),
            replica_updates=arguments.replica_updates or DEFAULT_UPDATES,
        )
        found = case.order(clock, stages, minibatches)
        optimizer = training.OPTIMIZERS[arguments.optimizer]()
        wanted = training.Training(found.order, arguments.method, network, data, optimizer, settings, rule)
        trained = training.train(wanted, range(arguments.seeds), jobs=min(arguments.jobs, arguments.seeds))
    document = _document(arguments, trained, found, minibatches, seconds_of)
    (print_json if arguments.json else _print)(document)
    return 0


def _network(arguments: argparse.Namespace, stages: int, data: training.DataSet) -> training.Network:
    """The network asked for, of so many stages; UsageError for a block that cannot be split."""
    make = training.NETWORKS[arguments.network]
    if arguments.split is None:
        return make(stages, data.features, data.classes)
    block, _, fraction = arguments.split.partition(":")
    with blaming(UsageError, f"argument --split: {shown(arguments.split)}"):
        asked = whole_number(block, 0, MOST_COUNT), real_number(fraction)
        return training.split_block(make(stages - 1, data.features, data.classes), *asked)


def _stages(arguments: argparse.Namespace) -> int:
    """Stages asked for; UsageError for replicas of other stages, of a method without a rule for them, or an unknown rule."""
    replicas, updates = arguments.replicas, arguments.replica_updates
    if replicas is None:
        refuse(arguments, ["replica_updates"], "goes with --replicas")
        return arguments.stages or DEFAULT_STAGES
    if arguments.method not in training.REPLICATED_METHODS:
        raise UsageError(
            f"--replicas goes with --method {' or '.join(training.REPLICATED_METHODS)}, not {arguments.method}: no paper says "
            "what others do where replicas of a stage update in rounds"
        )
    if updates is not None:
        check_choice("--replica-updates", updates, simulator.REPLICA_UPDATES)
    if arguments.microbatches_per_minibatch != 1:
        raise UsageError(
            "--replicas take whole mini-batches in turn: --microbatches-per-minibatch must be 1, got "
            f"{arguments.microbatches_per_minibatch}"
        )
    if arguments.stages not in (None, len(replicas)):
        raise UsageError(f"--replicas has counts of {len(replicas)} stages, --stages is {arguments.stages}")
    return len(replicas)


def read_rule(arguments: argparse.Namespace) -> training.PredictionRule:
    """The method's rule with the settings asked for; UsageError for an unknown method, or settings that it has not."""
    method = arguments.method
    check_choice("--method", method, training.PREDICTION_RULES)
    rule, settings = training.PREDICTION_RULES[method], {}
    for option, field, owners in (
        ("forward_rounding", "forward_rounding", ("xpipe",)),
        ("backward_rounding", "backward_rounding", ("xpipe",)),
        ("correction", "correction", ("xpipe", "xpipe-exact")),
        ("warmup_minibatches", "warmup_updates", ("pipemare",)),
    ):
        if method not in owners:
            refuse(arguments, [option], f"goes with --method {' or '.join(owners)}, not {method}")
        elif (value := getattr(arguments, option)) is not None:
            settings[field] = value
    return replace(rule, **settings) if settings else rule


def _clock(arguments: argparse.Namespace, network: training.Network, data: training.DataSet) -> tuple[Clock, str]:
    """The clock asked for, and what its seconds are of."""
    from experiments.training.clocks import given_clock, network_clock

    names = ("forward", "backward", "update", "predict", "transfer")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if given:
        first = next(iter(given))
        refuse(arguments, ["cluster"], f"times the network's layers; it does not go with --{first}")
        if arguments.forward is None or arguments.backward is None:
            raise UsageError(f"--{first} needs both --forward and --backward")
        return given_clock(simulator.OpSeconds(**given)), "given seconds"
    cluster = hardware_profiles.load_cluster(arguments.cluster or DEFAULT_CLUSTER)
    replicas = arguments.replicas or [1] * len(network)
    if len(cluster.devices) < sum(replicas):
        asked = f"--stages {len(network)}" if arguments.replicas is None else f"--replicas of {sum(replicas)} in all"
        raise UsageError(
            f"{asked}: cluster {cluster.name} has {len(cluster.devices)} devices, one per stage or replica"
        )
    optimizer: simulator.OptimizerName = "momentum" if arguments.optimizer == "sgd" else "adam"
    return (
        network_clock(network, data, cluster, arguments.batch, optimizer, replicas),
        f"the network's own layers on {cluster.name}, one {'stage' if arguments.replicas is None else 'replica'} per device, "
        "without contention",
    )


RUN = (
    "seed",
    "train_loss",
    "test_accuracy",
    "diverged",
    "weight_copies",
    "simulated_seconds",
    "prediction_error_ratio",
)
"""What the document tells of a seed's run."""


def _document(
    arguments: argparse.Namespace,
    trained: Sequence[training.TrainingRun],
    found: MethodOrder,
    minibatches: int,
    seconds_of: str,
) -> dict[str, Any]:
    copies = max(found.copies)
    return {
        "method": arguments.method,
        "stages": len(found.copies),
        "replicas": list(found.order.replicas),
        "replica_updates": None if arguments.replicas is None else arguments.replica_updates or DEFAULT_UPDATES,
        "microbatches_per_minibatch": arguments.microbatches_per_minibatch,
        "data": arguments.data,
        "network": arguments.network,
        "split": arguments.split,
        "optimizer": arguments.optimizer,
        "learning_rate": arguments.lr,
        "learning_rate_schedule": arguments.lr_schedule,
        "batch": arguments.batch,
        "epochs": arguments.epochs,
        "minibatches": minibatches,
        "seconds_of": seconds_of,
        "weight_copies_per_stage": found.copies,
        "forward_difference_per_stage": found.forward_difference,
        "backward_difference_per_stage": found.backward_difference,
        "runs": [{**{name: getattr(run, name) for name in RUN}, "weight_copies": copies} for run in trained],
    }


RUNS = ReportTable(
    "{method}: {what}, {optimizer} {learning_rate:g} on {data}",
    "runs",
    {
        "seed": "{seed}",
        "train loss": "{train_loss:.4f}",
        "test accuracy": share("test_accuracy"),
        "diverged": either("diverged"),
        "prediction error ratio": figure("prediction_error_ratio", ".3f", missing="-"),
    },
)


def _print(document: dict[str, Any]) -> None:
    """A row per seed, and what they have in common."""
    what = "{stages} stages, T = {microbatches_per_minibatch}".format_map(document)
    if document["replica_updates"] is not None:
        what = f"replicas {'-'.join(map(str, document['replicas']))}, {document['replica_updates']}"
    RUNS.print({**document, "what": what})
    runs = document["runs"]
    copies, forward, backward = (
        " ".join(map(str, document[f"{name}_per_stage"]))
        for name in ("weight_copies", "forward_difference", "backward_difference")
    )
    print(
        f"mean train loss {mean(run['train_loss'] for run in runs):.4f}, "
        f"test accuracy {percent(mean(run['test_accuracy'] for run in runs))}; "
        f"weight copies by stage {copies}; updates missing at forward {forward}, at backward {backward}"
    )
    print(f"{runs[0]['simulated_seconds']:.6g} simulated seconds: {document['seconds_of']}")
