"""Training clock: the order of ops in which a method trains, and the simulated seconds at which its updates are done.

A clock replays a schedule and gives its timeline; the numerics of training take their order, and their time axis, from
that timeline. Two clocks: stage seconds given as numbers, and a plan of a workload on a cluster. Both replay without
contention, on the compiled recurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from experiments.training.data import DataSet
from experiments.training.networks import Convolution, Dense, DensePart, Network
from experiments.training.order import TrainingOrder, joined, repeated, training_order
from experiments.training.prediction import PredictionRule
from hardware_profiles import Cluster
from simulator import (
    COPY_RULES,
    METHOD_SCHEDULES,
    Layer,
    LayerCosts,
    OpSeconds,
    OptimizerName,
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
    version_table,
)
from simulator.engines import recurrence

Clock = Callable[[Schedule, int], Timeline]
"""(schedule, T) -> its timeline; a mini-batch has T micro-batches, whatever the mini-batch's seconds."""

FLUSHED = "1f1b"
"""Synchronous schedule of a warm-up, and of the synchronous method unless another is asked for."""


def given_clock(seconds: OpSeconds) -> Clock:
    """The clock of ops that take these seconds: forwards, backwards and transfers those of a whole MINI-BATCH, of which a
    micro-batch takes a T-th, updates and predictions as they are. It raises ValueError for numbers that do not fit the stages."""

    def replay(schedule: Schedule, per_minibatch: int) -> Timeline:
        whole = {name: np.atleast_1d(getattr(seconds, name)) for name in ("forward", "backward", "transfer")}
        shares = replace(seconds, **{name: (one / per_minibatch).tolist() for name, one in whole.items()})
        costs = given_costs(schedule.stages, shares, devices=schedule)
        return recurrence.replay(lower(schedule, costs, updates=True))

    return replay


@dataclass(frozen=True, slots=True)
class ClusterClock:
    """Stages of a workload on devices of a cluster: the problem's batch is the mini-batch."""

    problem: Problem
    stages: tuple[Stage, ...]
    layer_costs: LayerCosts

    def __call__(self, schedule: Schedule, per_minibatch: int) -> Timeline:
        """Replay; ValueError for more micro-batches than samples."""
        sizes = equal_microbatches(self.problem.batch, per_minibatch)
        plan = Plan("clock", schedule.name, self.stages, sizes, "split" if schedule.flush else "round-robin")
        costs = PlanCosts(self.problem, plan, self.layer_costs)
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
    """The ops of a whole training run of one method, and what its timeline says of weight versions, a number per stage.

    copies: of the weights, held at most; forward_difference, backward_difference: updates missing at most, as
        `VersionTable` counts them (behind a warm-up, which misses none)
    """

    order: TrainingOrder
    copies: tuple[int, ...]
    forward_difference: tuple[int, ...]
    backward_difference: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MethodCase:
    """A method and its settings, under a name.

    label: what it is called; method: name in `PREDICTION_RULES`; per_minibatch: T
    rule: settings of the method other than the default
    flushed: schedule of the synchronous method, and of a warm-up: `warmup` synchronous mini-batches first (PipeMare's T3)
    replicas: of each stage, which take mini-batches in turn and update by `replica_updates` (T is 1); none where empty
    """

    label: str
    method: str
    per_minibatch: int = 1
    rule: PredictionRule | None = None
    flushed: str = FLUSHED
    warmup: int = 0
    replicas: tuple[int, ...] = ()
    replica_updates: str = "overlapped"

    @property
    def stale(self) -> bool:
        """Whether it runs without a flush, so that it updates with gradients of other weights than it has."""
        return self.method != "synchronous"

    def order(self, clock: Clock, stages: int, minibatches: int) -> MethodOrder:
        """The order of ops of so many mini-batches. Synchronous: one flushed iteration, repeated. Asynchronous: the whole run as
        one timeline, behind the warm-up.

        ValueError for a warm-up that leaves no mini-batch, or replicas that T or the mini-batches are not for.
        """
        if not 0 <= self.warmup < minibatches:
            raise ValueError(
                f"the warm-up must have 0 to {minibatches - 1} of {minibatches} mini-batches, got {self.warmup}"
            )
        if self.replicas:
            return self._in_turn(clock, stages, minibatches)
        iteration = clock(build_schedule(self.flushed, stages, self.per_minibatch), self.per_minibatch)
        if self.method == "synchronous":
            one = self._read(iteration)
            return replace(one, order=repeated(one.order, minibatches))
        schedule = build_schedule(
            METHOD_SCHEDULES[self.method],
            stages,
            self.per_minibatch * (minibatches - self.warmup),
            microbatches_per_minibatch=self.per_minibatch,
        )
        found = self._read(clock(schedule, self.per_minibatch))
        if not self.warmup:
            return found
        first = repeated(training_order(iteration, self.per_minibatch), self.warmup)
        return replace(found, order=joined(first, found.order))

    def _in_turn(self, clock: Clock, stages: int, minibatches: int) -> MethodOrder:
        if self.per_minibatch != 1:
            raise ValueError(f"replicas in turn take whole mini-batches, T = 1, got T = {self.per_minibatch}")
        if max(self.replicas) > minibatches:
            raise ValueError(f"{max(self.replicas)} replicas need as many mini-batches, got {minibatches}")
        options = {"replicas": self.replicas, "replica_updates": self.replica_updates}
        return self._read(clock(build_schedule("1f1b-rr", stages, minibatches, **options), 1))

    def _read(self, timeline: Timeline) -> MethodOrder:
        table = version_table(timeline, self.per_minibatch)
        counts = (COPY_RULES[self.method](table), table.forward_difference(), table.backward_difference())
        return MethodOrder(training_order(timeline, self.per_minibatch), *(tuple(count.tolist()) for count in counts))


def network_workload(network: Network, data: DataSet) -> Workload:
    """The trained network as a workload of one layer per block, so that a cluster can time it; fp32."""
    layers, edges = list[Layer](), list[tuple[int, int]]()
    makers, parts = list[int](), list[int]()  # of what a block reads, and those of itself so far
    for number, block in enumerate(network):
        edges += [(maker, number) for maker in makers]
        if isinstance(block, Dense | DensePart):
            flop = 2.0 * block.inputs * block.outputs
            layers.append(Layer(f"dense{number}", "linear", flop, block.parameters, block.outputs, block.inputs))
        elif isinstance(block, Convolution):
            pixels = block.side**2
            flop, made = 18.0 * pixels * block.inputs * block.outputs, pixels * block.outputs / (4 if block.pool else 1)
            name = f"convolution{number}"
            layers.append(Layer(name, "convolution", flop, block.parameters, made, pixels * block.inputs))
        else:
            raise ValueError(
                f"block {number} of the network is a {type(block).__name__}, which no accelerator can time"
            )
        parts.append(number)
        if not (isinstance(block, DensePart) and block.follows):
            makers, parts = parts, []
    return Workload(f"{data.name} network", tuple(layers), tuple(edges))


def network_clock(
    network: Network,
    data: DataSet,
    cluster: Cluster,
    batch: int,
    optimizer: OptimizerName,
    replicas: Sequence[int],
) -> ClusterClock:
    """The trained network itself on the first devices of a cluster, one block per stage.

    batch: samples per mini-batch; optimizer: one of `simulator.OPTIMIZER_STATES`; replicas: devices of each stage, none for
    one each
    """
    problem = Problem(network_workload(network, data), cluster, batch, optimizer=optimizer)
    devices = [device for server in cluster.servers for device in server]
    ends = tuple(accumulate(replicas or (1,) * len(network)))
    stages = tuple(
        Stage((number,), tuple(devices[begin:end])) for number, (begin, end) in enumerate(pairwise((0, *ends)))
    )
    return ClusterClock(problem, stages, LayerCosts(problem))
