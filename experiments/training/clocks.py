"""Training clock: the order of ops in which a method trains, and the simulated seconds at which its updates are done.

A clock replays a schedule and gives its timeline; the numerics of training take their order, and their time axis, from
that timeline. Two clocks: stage seconds given as numbers, and a plan of a workload on a cluster. Both replay without
contention, on the compiled recurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

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
from simulator.training import (
    REPLICATED_METHODS,
    Convolution,
    DataSet,
    Dense,
    Network,
    TrainingOrder,
    joined,
    repeated,
    training_order,
)

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
            OpSeconds(
                [seconds / per_minibatch for seconds in self.forward],
                [seconds / per_minibatch for seconds in self.backward],
                update=self.update,
                predict=self.predict,
                transfer=self.transfer / per_minibatch,
            ),
            devices=schedule,
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
    """The ops of a whole training run of one method, and what its timeline says of weight versions, a number a stage.

    copies: of the weights, held at most; forward_difference, backward_difference: updates missing at most, as
        `VersionTable` counts them (behind a warm-up, which misses none)
    """

    order: TrainingOrder
    copies: tuple[int, ...]
    forward_difference: tuple[int, ...]
    backward_difference: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainedMethod:
    """A whole training run: `minibatches` mini-batches of a method on stages, T = `per_minibatch`.

    flushed: schedule of the synchronous method, and of a warm-up: `warmup` synchronous mini-batches first (PipeMare's T3)
    replicas: of each stage, which take mini-batches in turn and update by `replica_updates` (T is 1); none where empty
    ValueError for an unknown method, a warm-up that leaves no mini-batch, or replicas of a method that is not for them.
    """

    method: str
    stages: int
    per_minibatch: int
    minibatches: int
    flushed: str = FLUSHED
    warmup: int = 0
    replicas: tuple[int, ...] = ()
    replica_updates: str = "overlapped"

    def __post_init__(self) -> None:
        if self.method not in METHOD_SCHEDULES:
            raise ValueError(f"method {self.method!r} is unknown; choices: {', '.join(METHOD_SCHEDULES)}")
        if not 0 <= self.warmup < self.minibatches:
            raise ValueError(
                f"the warm-up must have 0 to {self.minibatches - 1} of {self.minibatches} mini-batches, got {self.warmup}"
            )
        if not self.replicas:
            return
        if self.method not in REPLICATED_METHODS:
            raise ValueError(
                f"replicas that take turns train by the methods {' and '.join(REPLICATED_METHODS)}, got {self.method!r}"
            )
        if self.per_minibatch != 1:
            raise ValueError(f"replicas in turn take whole mini-batches, T = 1, got T = {self.per_minibatch}")
        if max(self.replicas) > self.minibatches:
            raise ValueError(f"{max(self.replicas)} replicas need as many mini-batches, got {self.minibatches}")

    def order(self, clock: Clock) -> MethodOrder:
        """The order of its ops. Synchronous: one flushed iteration, repeated. Asynchronous: the whole run as one timeline,
        behind the warm-up."""
        if self.replicas:
            options = {"replicas": self.replicas, "replica_updates": self.replica_updates}
            return self._read(clock(build_schedule("1f1b-rr", self.stages, self.minibatches, **options), 1))
        iteration = clock(build_schedule(self.flushed, self.stages, self.per_minibatch), self.per_minibatch)
        if self.method == "synchronous":
            one = self._read(iteration)
            return replace(one, order=repeated(one.order, self.minibatches))
        schedule = build_schedule(
            METHOD_SCHEDULES[self.method],
            self.stages,
            self.per_minibatch * (self.minibatches - self.warmup),
            microbatches_per_minibatch=self.per_minibatch,
        )
        found = self._read(clock(schedule, self.per_minibatch))
        if not self.warmup:
            return found
        first = repeated(training_order(iteration, self.per_minibatch), self.warmup)
        return replace(found, order=joined(first, found.order))

    def _read(self, timeline: Timeline) -> MethodOrder:
        table = version_table(timeline, self.per_minibatch)
        counts = (COPY_RULES[self.method](table), table.forward_difference(), table.backward_difference())
        return MethodOrder(training_order(timeline, self.per_minibatch), *(tuple(count.tolist()) for count in counts))


def network_workload(network: Network, data: DataSet) -> Workload:
    """The trained network as a workload of one layer a block, so that a cluster can time it; fp32."""
    layers = []
    for number, block in enumerate(network):
        if isinstance(block, Dense):
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
    edges = tuple((i, i + 1) for i in range(len(layers) - 1))
    return Workload(f"{data.name} network", tuple(layers), edges)


def network_clock(
    network: Network,
    data: DataSet,
    cluster: Cluster,
    batch: int,
    optimizer: OptimizerName,
    replicas: Sequence[int] = (),
) -> ClusterClock:
    """The trained network itself on the first devices of a cluster, one block a stage.

    batch: samples a mini-batch; optimizer: one of `simulator.OPTIMIZER_STATES`; replicas: devices of each stage, one unless
    given
    """
    problem = Problem(network_workload(network, data), cluster, batch, optimizer=optimizer)
    devices = [device for server in cluster.servers for device in server]
    ends = tuple(accumulate(replicas or (1,) * len(network)))
    stages = tuple(
        Stage((number,), tuple(devices[begin:end])) for number, (begin, end) in enumerate(pairwise((0, *ends)))
    )
    return ClusterClock(problem, stages, LayerCosts(problem))
