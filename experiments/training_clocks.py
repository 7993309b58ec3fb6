"""Training clock: the order of ops in which a method trains, and the simulated seconds at which its updates are done.

A clock replays a schedule and gives its timeline; the numerics of training take their order, and their time axis, from
that timeline. Two clocks: stage seconds given as numbers, and a plan of a workload on a cluster. Both replay without
contention (one device a stage, transfers between neighbours), on the compiled recurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hardware_profiles import Cluster
from simulator import (
    COPY_RULES,
    METHOD_SCHEDULES,
    Layer,
    LayerCosts,
    Plan,
    PlanCosts,
    Problem,
    Schedule,
    Stage,
    Timeline,
    Workload,
    build_schedule,
    equal_microbatches,
    given_costs,
    lower,
    recurrence,
    version_table,
)
from simulator.training import Convolution, DataSet, Dense, Network, TrainingOrder, joined, repeated, training_order

Clock = Callable[[Schedule, int], Timeline]
"""(schedule, T) -> its timeline; a mini-batch has T micro-batches, whatever the mini-batch's seconds."""

FLUSHED = "1f1b"
"""Synchronous schedule of a warm-up, and of the synchronous method unless another is asked for."""


@dataclass(frozen=True, slots=True)
class GivenClock:
    """Seconds of a stage for a whole MINI-BATCH forward and backward (a micro-batch takes a T-th), of an update, of a prediction.

    transfer: seconds of a whole mini-batch's tensor one way between neighbours
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    update: float = 0.0
    predict: float = 0.0
    transfer: float = 0.0

    def __call__(self, schedule: Schedule, per_minibatch: int) -> Timeline:
        """Replay; ValueError for numbers that do not fit the stages."""
        costs = given_costs(
            schedule.stages,
            [seconds / per_minibatch for seconds in self.forward],
            [seconds / per_minibatch for seconds in self.backward],
            update=self.update,
            predict=self.predict,
            transfer=self.transfer / per_minibatch,
        )
        return recurrence.replay(lower(schedule, costs, updates=True))


@dataclass(frozen=True, slots=True)
class ClusterClock:
    """Stages of a workload on devices of a cluster: the problem's batch is the mini-batch."""

    problem: Problem
    stages: tuple[Stage, ...]
    layer_costs: LayerCosts

    def __call__(self, schedule: Schedule, per_minibatch: int) -> Timeline:
        """Replay; ValueError for more micro-batches than samples."""
        sizes = equal_microbatches(self.problem.batch, per_minibatch)
        costs = PlanCosts(self.problem, Plan("clock", schedule.name, self.stages, sizes), self.layer_costs)
        program = lower(
            schedule,
            costs,
            forward_sizes=sizes * (schedule.microbatches // per_minibatch),
            communication=self.problem.communication,
            updates=True,
        )
        return recurrence.replay(program)


@dataclass(frozen=True, slots=True)
class MethodOrder:
    """The ops of a whole training run of one method, and the weight copies that each stage holds."""

    order: TrainingOrder
    copies: tuple[int, ...]


def method_order(
    method: str,
    stages: int,
    per_minibatch: int,
    minibatches: int,
    clock: Clock,
    *,
    flushed: str = FLUSHED,
    warmup: int = 0,
) -> MethodOrder:
    """Order of `minibatches` mini-batches of a method, T = `per_minibatch`.

    Synchronous: one flushed iteration, repeated. Asynchronous: the whole run as one timeline, behind `warmup` synchronous
    mini-batches (PipeMare's T3). ValueError for an unknown method, or a warm-up that leaves no mini-batch.
    """
    if method not in METHOD_SCHEDULES:
        raise ValueError(f"method {method!r} is unknown; choices: {', '.join(METHOD_SCHEDULES)}")
    if not 0 <= warmup < minibatches:
        raise ValueError(f"the warm-up must have 0 to {minibatches - 1} of {minibatches} mini-batches, got {warmup}")
    iteration = training_order(clock(build_schedule(flushed, stages, per_minibatch), per_minibatch), per_minibatch)
    if method == "synchronous":
        return MethodOrder(repeated(iteration, minibatches), (1,) * stages)
    schedule = build_schedule(
        METHOD_SCHEDULES[method],
        stages,
        per_minibatch * (minibatches - warmup),
        microbatches_per_minibatch=per_minibatch,
    )
    timeline = clock(schedule, per_minibatch)
    order = training_order(timeline, per_minibatch)
    copies = COPY_RULES[method](version_table(timeline, per_minibatch))
    if warmup:
        order = joined(repeated(iteration, warmup), order)
    return MethodOrder(order, tuple(copies.tolist()))


def with_seconds(order: TrainingOrder, minibatch_seconds: float) -> TrainingOrder:
    """A synchronous order dated anew: a mini-batch every `minibatch_seconds` (data parallelism trains the same numbers)."""
    updates = np.arange(1, order.minibatches + 1, dtype=np.float64) * minibatch_seconds
    return replace(order, update_seconds=updates, makespan=float(updates[-1]))


def network_workload(network: Network, data: DataSet) -> Workload:
    """The trained network as a workload of one layer a block, so that a cluster can time it; fp32."""
    layers = []
    for number, block in enumerate(network):
        if isinstance(block, Dense):
            layers.append(
                Layer(
                    f"dense{number}",
                    "linear",
                    2.0 * block.inputs * block.outputs,
                    block.parameters,
                    block.outputs,
                    block.inputs,
                )
            )
        elif isinstance(block, Convolution):
            pixels = block.side**2
            layers.append(
                Layer(
                    f"convolution{number}",
                    "convolution",
                    18.0 * pixels * block.inputs * block.outputs,
                    block.parameters,
                    pixels * block.outputs / (4 if block.pool else 1),
                    pixels * block.inputs,
                )
            )
        else:
            raise ValueError(
                f"block {number} of the network is a {type(block).__name__}, which no accelerator can time"
            )
    edges = tuple((i, i + 1) for i in range(len(layers) - 1))
    return Workload(f"{data.name} network", tuple(layers), edges)


def network_clock(network: Network, data: DataSet, cluster: Cluster, batch: int, optimizer: str) -> ClusterClock:
    """The trained network itself on the first devices of a cluster, one block a device.

    batch: samples a mini-batch; optimizer: one of `simulator.OPTIMIZER_STATES`
    """
    problem = Problem(network_workload(network, data), cluster, batch, optimizer=optimizer)
    devices = [device for server in cluster.servers for device in server]
    stages = tuple(Stage((number,), (devices[number],)) for number in range(len(network)))
    return ClusterClock(problem, stages, LayerCosts(problem))
