"""Problem and plan: what is to be trained on what, and everything that a planner decides (partition, schedule, ...)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Annotated, Literal, get_args

from hardware_profiles import (
    FOR_INFERENCE,
    GENERIC,
    PRECISION_BYTES,
    RECIPES,
    Accelerator,
    Bounds,
    Channel,
    Cluster,
    FileBounds,
    OptionValue,
    Precision,
    Stack,
    blaming,
    brief,
    check_fields,
    check_known,
    counted,
    optional_members,
    shown,
    unchosen,
)
from simulator.options.training_options import (
    BY_BLOCK,
    DEFAULT_OPTIMIZER,
    DEFAULT_PRECISION,
    OptimizerName,
    Recompute,
    TrainingOptions,
)
from simulator.plans.keys import COSTS, LAYERS, NOTHING, ORDER, PARTS
from simulator.plans.lacks import plan_lacks, problem_lacks
from simulator.schedules import ScheduleFamily, schedule_families
from simulator.workloads.layer_splits import LayerSplit, ends_of, split_workload
from simulator.workloads.layers import Layer, Workload
from simulator.workloads.sequence_slices import check_context
from simulator.workloads.shares import divides_heads

Replication = Literal["split", "round-robin"]

OPTIMIZER_STATES: dict[OptimizerName, int] = {"sgd": 0, "momentum": 1, "adam": 2}
"""State tensors per parameter (fp32 each): none, momentum, two moments."""

Zero = Literal[0, 1, 2, 3]

Count = Annotated[int, FileBounds(ge=1)]
Index = Annotated[int, FileBounds(ge=0, le=10**9)]
Number = Annotated[int, FileBounds(ge=0)]

KEPT_REPLICAS = 256
"""Stages' devices whose replicas are kept."""

MOST_SAMPLES = 2**24
"""Samples of an iteration at most; the largest in use have a thousandth of it."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Problem(TrainingOptions):
    """What is to be trained, on what, and how (`TrainingOptions`, by name).

    workload, cluster: the network and the machine
    batch: samples of one iteration of the whole cluster (one update of a synchronous plan)
    recompute: of all stages; True and False stand for `whole` and `none`
    contention: not known to the engine `recurrence`
    stack: what runs the plans
    """

    workload: Workload = field(metadata=LAYERS)
    cluster: Cluster = field(metadata=LAYERS)
    batch: Annotated[int, Bounds(ge=1, le=MOST_SAMPLES)]
    stack: Stack = GENERIC

    def __post_init__(self) -> None:
        object.__setattr__(self, "recompute", recompute_word(self.recompute))
        check_fields(self)
        self._check_precision()
        check_recompute(self.workload, self.recompute)
        self._check_stack()

    def _check_precision(self) -> None:
        """Raise ValueError unless all devices compute in the precision of products and in that of the rest."""
        if all(layer.measured for layer in self.workload.layers):
            return
        common = self.cluster.precisions
        for needed, words in ((self.precision, "it"), (self.stored_precision, f"{self.stored_precision} beside it")):
            if needed not in common:
                lacking = next(one for one in self.cluster.devices if needed not in optional_members(one).precisions)
                raise ValueError(
                    f"precision {self.precision!r}: {lacking.name} has no rate for {words}; what all devices of "
                    f"{self.cluster.name} have: {', '.join(common) or 'nothing in common'}"
                )

    def _check_stack(self) -> None:
        """Raise ValueError for a stack that knows other words of recomputation, or that runs no plan of this problem."""
        stack = self.stack
        check_known(f"{stack.title}: no recompute policy is", stack.runs.recompute, get_args(Recompute))
        for lack in problem_lacks(stack.runs, self):
            raise ValueError(f"{stack.title} has no {lack}")
        for device in self.cluster.kinds[0]:
            if self._room(device) <= stack.workspace_bytes(device):
                raise ValueError(f"{stack.title} takes all the memory of {device.name} for itself")

    def __repr__(self) -> str:
        options: list[str] = [self.precision, self.optimizer]
        for one in fields(TrainingOptions)[2:]:
            value, name = getattr(self, one.name), one.name.replace("_", " ")
            if value != one.default:
                options.append(name if value is True else f"no {name}" if value is False else f"{name} {value}")
        return brief(self, f"{self.title}, {', '.join(options)}")

    @property
    def sends_behind(self) -> bool:
        """Whether transfers take time behind their ops: not where ops stream their results, or transfers are free."""
        return self.communication not in ("streaming", "free")

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The cluster's channels, shared as the problem says."""
        return self.cluster.channels if self.sharing == "links" else self.cluster.alike_channels[self.sharing]

    @property
    def title(self) -> str:
        """Workload, machine, mini-batch, precision, optimizer and stack, as a heading names them: the latter three where they are
        not what an image network has.
        """
        told = [self.cluster.counted_devices, counted(self.batch, self.workload.sample)]
        told += [self.precision] * (self.precision != DEFAULT_PRECISION)
        told += [self.optimizer] * (self.optimizer != DEFAULT_OPTIMIZER)
        told += [self.stack.name] * (self.stack.name != GENERIC.name)
        told += [f"launched by {self.stack.launcher}"] * bool(self.stack.launcher)
        return f"{self.workload.name} on {self.cluster.name}, {', '.join(told)}"

    def under(self, stack: Stack) -> Problem:
        """The problem under another stack, without sequence parallelism where that has none; ValueError where it runs no plan."""
        return replace(self, stack=stack, sequence_parallel=self.sequence_parallel and stack.runs.sequence_parallel)

    @property
    def device_word(self) -> str:
        """The word for one device of its cluster in messages and figures."""
        return self.cluster.device_word

    @property
    def element_bytes(self) -> float:
        """Bytes of one element of weights, activations and gradients."""
        return self.workload.bytes_per_element or PRECISION_BYTES[self.stored_precision]

    @property
    def stored_precision(self) -> Precision:
        """The precision of all but products: of weights, activations and gradients."""
        return RECIPES.get(self.precision, self.precision)

    @property
    def trains(self) -> bool:
        """Whether plans may train in its precision; else it is of forward passes alone."""
        return self.precision not in FOR_INFERENCE

    def precision_of(self, layer: Layer) -> Precision:
        """The precision in which a layer computes: under one of `RECIPES` products, but for the output head's, compute in it."""
        narrow = layer.kind == "linear" and layer.part != "output head"
        return self.precision if narrow else self.stored_precision

    def doubts(self) -> tuple[str, ...]:
        """Warnings: settings of the problem that have no effect although a reader would expect one, one line each."""
        workload = self.workload
        if not workload.measured:
            return ()
        names = sorted({device.name for device in self.cluster.devices})
        on = f"on {workload.measured_on}" if workload.measured_on else "on a device that the profile does not name"
        found = [
            f"workload {workload.name!r} was measured {on}: its layers take these seconds on {', '.join(names)}, "
            "whatever the accelerator"
        ]
        if workload.bytes_per_element is not None and self.precision != DEFAULT_PRECISION:
            found.append(
                f"precision {self.precision} is ignored: workload {workload.name!r} was measured at "
                f"{workload.bytes_per_element} bytes per element"
            )
        return tuple(found)

    @property
    def accumulated_bytes(self) -> float:
        """Bytes per parameter of the gradient that micro-batches accumulate and replicas all-reduce."""
        return self.gradient_bytes or (self.element_bytes == 2 and self.stack.gradient_bytes) or self.element_bytes

    def room_bytes(self, device: int) -> float:
        """Bytes that a plan may allocate on a device: alone they decide what fits (`Stack.room_bytes`, less what stays free)."""
        return self._room(self.cluster.devices[device])

    @property
    def rooms(self) -> tuple[float, ...]:
        """`room_bytes` of every device of the cluster, by id."""
        kinds, numbers = self.cluster.kinds
        rooms = list(map(self._room, kinds))
        return tuple(rooms[number] for number in numbers)

    def _room(self, device: Accelerator) -> float:
        return (1.0 - self.memory_reserve) * self.stack.room_bytes(device)

    @property
    def workspace_bytes(self) -> float:
        """Bytes that the stack's libraries allocate on each device; on devices of several kinds the most of them."""
        return max(self.stack.workspace_bytes(device) for device in self.cluster.kinds[0])

    @property
    def state_bytes(self) -> float:
        """Bytes per parameter that a device always holds: weight, gradient and optimizer states."""
        return self.divided_state_bytes(0, 1)

    def divided_state_bytes(self, zero: int, replicas: float) -> float:
        """`state_bytes` per parameter on one of so many replicas under a ZeRO stage; of infinitely many, what is not divided."""
        optimizer = self.optimizer_bytes + (self.master_beside(zero) if replicas > 1 else 0.0)
        parts = (3, self.element_bytes), (2, self.held_gradient_bytes), (1, optimizer)
        return sum((size / replicas if zero >= least else float(size) for least, size in parts), 0.0)

    def master_beside(self, zero: int) -> float:
        """Bytes per parameter of the fp32 weights that replicas divide beyond those of `optimizer_bytes`: under ZeRO 1 and 2 the
        16-bit weights, which each replica has whole, are no part of these.
        """
        return self.element_bytes if zero in (1, 2) and self.element_bytes < 4 and not self.stack.narrow_copy else 0.0

    @property
    def held_gradient_bytes(self) -> float:
        """Bytes per parameter of the gradient that a device holds: as it is accumulated, or as wide as the weights that are
        updated where these have no narrow copy.
        """
        return self.accumulated_bytes if self.stack.narrow_copy else max(4.0, self.accumulated_bytes)

    @property
    def optimizer_bytes(self) -> float:
        """Optimizer states, bytes per parameter: in fp32, with an fp32 master copy where weights are narrower, or what it has
        more where the stack keeps no narrow one beside it.
        """
        narrower = 4.0 - self.element_bytes
        master = 0.0 if narrower <= 0.0 else 4.0 if self.stack.narrow_copy else narrower
        return 4.0 * OPTIMIZER_STATES[self.optimizer] + master


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of the network on one device, or on several replicas, each one device or a group of them.

    layers: indices into the workload's layers, rising
    devices: device ids of the cluster, replica by replica; where replicas take whole micro-batches, replica 0 has the first
    degrees: devices of each replica, a group that divides each of its layers: tensor-parallel groups one after the other, as many
        as `Plan.context` says; empty: one each
    """

    layers: tuple[Index, ...] = field(metadata=LAYERS)
    devices: tuple[Index, ...] = field(metadata=COSTS)
    degrees: tuple[Count, ...] = field(default=(), metadata=COSTS)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.degrees and self.degrees == (1,) * len(self.devices):
            object.__setattr__(self, "degrees", ())

    def __repr__(self) -> str:
        groups = f", groups of {' and '.join(map(str, dict.fromkeys(self.degrees)))}" if self.degrees else ""
        return brief(self, f"layers {ranges(self.layers)} on devices {ranges(self.devices)}{groups}")

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """Devices of each replica."""
        return _replicas(self.devices, self.degrees)

    @property
    def leads(self) -> tuple[int, ...]:
        """The first device of each replica, which represents it: devices of one group work in lockstep."""
        return self.devices if not self.degrees else tuple([group[0] for group in self.replicas])

    def notation(self, context: int = 1) -> str:
        """Replicas, and devices of each where these are groups: `2`, `2t4`; `t4+t2` where groups differ; `2t4c2` where each has
        two tensor-parallel groups of four for its context.
        """
        if not self.degrees:
            return str(len(self.devices))
        words = [f"t{degree // context}" + f"c{context}" * (context > 1) for degree in self.degrees]
        return "+".join(words) if len(set(words)) > 1 else f"{len(words)}{words[0]}"


@lru_cache(maxsize=KEPT_REPLICAS)
def _replicas(devices: tuple[int, ...], degrees: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Devices of each replica of a stage; stages on the same devices share them."""
    if not degrees:
        return tuple([(device,) for device in devices])
    ends = accumulate(degrees)
    return tuple([devices[end - degree : end] for end, degree in zip(ends, degrees, strict=True)])


@dataclass(frozen=True, slots=True)
class Plan:
    """Partition, placement, micro-batches and schedule.

    planner: who made it
    schedule: name of a family of `simulator.schedules.SCHEDULES`
    stages: in the order of the data
    microbatches: samples of each micro-batch of one iteration; their sum is the problem's batch
    replication: replicas `split` every micro-batch, or take whole ones (`round-robin`): in turn, or as the order says
    forward_sizes, backward_sizes: micro-batches of each stage where stages differ, else empty
    order: the ops themselves, a line for each list of ops as `simulator.schedules.text` reads it; `schedule` then is a name of
        the plan's own. Empty: the family of that name makes them
    recompute: of each stage, what it runs again (True and False as in a problem); empty: all stages as the problem says
    recomputed_blocks: of each stage that recomputes by blocks, how many of its first ones, as Megatron-LM's
        `--recompute-method block` does; 0, or empty: all of them
    options: of the schedule's family, by name, but for those that follow from the rest of the plan and from the problem
    zero: what the replicas of a stage divide among themselves (Rajbhandari et al. 2020): 0 nothing, 1 the optimizer's states,
        2 gradients too, 3 weights too
    context: parts of the tokens of every sample, each on a tensor-parallel group of every replica
    expert: parts of the routed experts of a layer, on as many neighbours of the tensor-parallel groups of all replicas of a stage
    shard: neighbours among these groups that divide what `zero` says; others hold copies (hybrid sharding: Zhao et al. 2023,
        "PyTorch FSDP", section 3.2.2). 0: all groups of a stage
    splits: cuts inside layers, by rising layer and fraction; a layer with one stands in two neighbouring stages
    """

    planner: str = field(metadata=NOTHING)
    schedule: str = field(metadata=ORDER)
    stages: tuple[Stage, ...] = field(metadata=PARTS)
    microbatches: tuple[Count, ...] = field(metadata=ORDER)
    replication: Replication = "split"
    forward_sizes: tuple[tuple[Count, ...], ...] = field(default=(), metadata=ORDER)
    backward_sizes: tuple[tuple[Count, ...], ...] = field(default=(), metadata=ORDER)
    order: tuple[str, ...] = field(default=(), metadata=ORDER)
    recompute: tuple[Recompute, ...] = field(default=(), metadata=COSTS)
    recomputed_blocks: tuple[Number, ...] = field(default=(), metadata=COSTS)
    options: tuple[tuple[str, OptionValue], ...] = field(default=(), metadata=ORDER)
    zero: Zero = field(default=0, metadata=COSTS)
    context: Count = field(default=1, metadata=COSTS)
    expert: Count = field(default=1, metadata=COSTS)
    shard: Number = field(default=0, metadata=COSTS)
    splits: tuple[LayerSplit, ...] = field(default=(), metadata=COSTS)

    def __post_init__(self) -> None:
        if isinstance(self.recompute, tuple | list):
            object.__setattr__(self, "recompute", tuple(map(recompute_word, self.recompute)))
        check_fields(self)

    def __repr__(self) -> str:
        return brief(
            self,
            f"{self.planner}: {self.schedule}, {self.notation}, {len(self.stages)} stages on {len(self.devices)} devices, "
            f"{self.microbatch_words}",
        )

    @property
    def microbatch_words(self) -> str:
        """Number and sizes of the micro-batches, in words."""
        if self.forward_sizes:
            return "micro-batch sizes differ by stage"
        count, sizes = len(self.microbatches), sorted(set(self.microbatches))
        samples = "s" * (sizes != [1])
        return f"{counted(count, 'micro-batch')} of {' or '.join(map(str, sizes))} sample{samples}"

    @property
    def chunks(self) -> int:
        """Stages (chunks) per device."""
        return len(self.stages) // len({stage.devices for stage in self.stages})

    @property
    def slices(self) -> int:
        """Slices of each sequence, from the schedule's option `slices`; 1 without it."""
        asked = dict(self.options).get("slices", 1)
        return asked if isinstance(asked, int) else 1

    @property
    def replicas(self) -> tuple[int, ...]:
        """Number of replicas of each stage."""
        return tuple(len(stage.leads) for stage in self.stages)

    @property
    def groups(self) -> dict[int, tuple[int, ...]]:
        """Devices of each replica's group, by its first device; stages on the same devices share a group."""
        return {group[0]: group for stage in self.stages for group in stage.replicas}

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices in use, in rising order."""
        return tuple(sorted({device for stage in self.stages for device in stage.devices}))

    @property
    def notation(self) -> str:
        """As the papers write it: `16` (data parallel), `15-1`, `straight` (every stage on one device); `2t4-2t4` where each
        stage has two replicas, tensor-parallel groups of four.

        More than eight stages of equally many replicas are counted: `32x8` for 32 stages of 8. `2t4c2-2t4c2 e4`: each replica
        has two such groups, for half of the tokens each, and experts are divided among all four of a stage; `s2`: ZeRO divides
        among neighbours, two by two.
        """
        words = [stage.notation(self.context) for stage in self.stages]
        beside = f" e{self.expert}" * (self.expert > 1) + f" s{self.shard}" * (self.shard > 0)
        if len(words) > 1 and set(words) == {"1"}:
            return "straight"
        if len(words) > 8 and len(set(words)) == 1:
            return f"{len(words)}x{words[0]}{beside}"
        return "-".join(words) + beside


def family_of(plan: Plan) -> ScheduleFamily | None:
    """The schedule family that generates the ops of a plan; None if the plan brings its own order, or no known family has the
    name.
    """
    return None if plan.order else schedule_families().get(plan.schedule)


def flushes(plan: Plan) -> bool:
    """Whether every mini-batch ends with one update of all stages (a flush); always so for a plan with its own order."""
    family = family_of(plan)
    return family is None or family.flush


def recompute_word(value: Recompute | bool) -> Recompute:
    """The recompute policy that a boolean stands for: True is `whole`, False is `none`."""
    return value if not isinstance(value, bool) else "whole" if value else "none"


def recompute_words(workload: Workload) -> tuple[Recompute, ...]:
    """The recompute policies that a network allows."""
    there = {
        "attention": any(layer.kind == "attention" for layer in workload.layers),
        **dict.fromkeys(BY_BLOCK, any(layer.block for layer in workload.layers)),
    }
    return tuple(word for word in get_args(Recompute) if there.get(word, True))


def check_recompute(workload: Workload, word: str) -> None:
    """Raise ValueError unless the word is a recompute policy that the workload allows (it has such layers or blocks)."""
    if word not in get_args(Recompute):
        raise ValueError(unchosen("recompute", word, get_args(Recompute)))
    if word not in (choices := recompute_words(workload)):
        missing = "attention layers" if word == "attention" else "blocks"
        raise ValueError(
            f"recompute {word!r}: workload {workload.name!r} has no {missing}; choices: {', '.join(choices)}"
        )


class InfeasiblePlanError(ValueError):
    """A plan that cannot run on its problem; the message states the rule and the numbers."""


class PlanNotRunError(InfeasiblePlanError):
    """A plan that the problem's stack does not run."""


def check_plan(problem: Problem, plan: Plan) -> None:
    """Raise InfeasiblePlanError if the plan is not one for this problem; PlanNotRunError if its stack does not run it.

    Of layers that are split the parts count (`plan_of_parts`).
    """
    if not problem.trains:
        raise InfeasiblePlanError(
            f"plan {plan.planner!r} trains, and precision {problem.precision!r} is of forward passes alone"
        )
    if plan.splits:
        problem, plan = problem_of_parts(problem, plan), plan_of_parts(plan)
    _check_layers(problem, plan)
    _check_sizes(problem, plan)
    _check_recomputation(problem, plan)
    if any(stage.degrees for stage in plan.stages):
        _check_groups(problem, plan)
    if plan.context != 1:
        _check_context(problem, plan)
    if plan.expert != 1:
        _check_experts(problem, plan)
    if plan.zero:
        _check_zero(plan)
    if plan.shard:
        _check_shard(plan)
    _check_stack(problem, plan)


def _check_layers(problem: Problem, plan: Plan) -> None:
    """Raise InfeasiblePlanError unless stages hold every layer once, in the order of the data, on devices that there are."""
    workload, devices = problem.workload, len(problem.cluster.devices)
    stage_of: dict[int, int] = {}
    for number, stage in enumerate(plan.stages):
        if not stage.layers:
            raise InfeasiblePlanError(f"stage {number} of plan {plan.planner!r} holds no layer")
        for layer in stage.layers:
            if layer in stage_of or not 0 <= layer < len(workload.layers):
                raise InfeasiblePlanError(
                    f"stage {number} of plan {plan.planner!r} holds layer {layer}, which "
                    + ("stage " + str(stage_of[layer]) + " holds" if layer in stage_of else "does not exist")
                )
            stage_of[layer] = number
        if not stage.devices or len(set(stage.devices)) != len(stage.devices):
            raise InfeasiblePlanError(
                f"stage {number} of plan {plan.planner!r} needs {problem.device_word}s of its own, got {stage.devices}"
            )
        if not all(0 <= device < devices for device in stage.devices):
            raise InfeasiblePlanError(
                f"stage {number} of plan {plan.planner!r} uses {problem.device_word}s {ranges(stage.devices)}, the cluster has "
                f"0 to {devices - 1}"
            )
    if len(stage_of) != len(workload.layers):
        lost = next(i for i in range(len(workload.layers)) if i not in stage_of)
        raise InfeasiblePlanError(
            f"no stage of plan {plan.planner!r} holds layer {lost} ({workload.layers[lost].name})"
        )
    for producer, consumer in workload.edges:
        if stage_of[producer] > stage_of[consumer]:
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} puts layer {producer} in stage {stage_of[producer]}, "
                f"behind its consumer {consumer} in stage {stage_of[consumer]}"
            )


def _check_sizes(problem: Problem, plan: Plan) -> None:
    """Raise InfeasiblePlanError unless micro-batches, those of single stages too, are samples that sum to the batch."""
    if min(plan.microbatches, default=0) < 1 or sum(plan.microbatches) != problem.batch:
        raise InfeasiblePlanError(
            f"micro-batches of plan {plan.planner!r} must be at least 1 sample and sum to {problem.batch}, "
            f"got {len(plan.microbatches)} that sum to {sum(plan.microbatches)}"
        )
    for name, value in plan.options:
        if isinstance(value, int) and value * len(plan.microbatches) > MOST_SAMPLES:
            raise InfeasiblePlanError(
                f"option {name} of plan {plan.planner!r} times its {len(plan.microbatches)} micro-batches must be at most "
                f"{MOST_SAMPLES:,}, got {shown(value)}"
            )
    for name, sizes in (("forward", plan.forward_sizes), ("backward", plan.backward_sizes)):
        fit = [min(one, default=0) >= 1 and sum(one) == problem.batch for one in sizes]
        if sizes and (len(sizes) != len(plan.stages) or not all(fit)):
            raise InfeasiblePlanError(
                f"{name} sizes of plan {plan.planner!r} must be one list for each of {len(plan.stages)} stages, of at least "
                f"1 sample each, that sum to {problem.batch}; got lists that sum to {[sum(one) for one in sizes]}"
            )
    if plan.backward_sizes and not plan.forward_sizes:
        raise InfeasiblePlanError(f"plan {plan.planner!r} has backward sizes of its stages and no forward sizes")


def _check_recomputation(problem: Problem, plan: Plan) -> None:
    """Raise InfeasiblePlanError unless what stages recompute is said of each, and is what the network allows."""
    if plan.recompute and len(plan.recompute) != len(plan.stages):
        raise InfeasiblePlanError(
            f"plan {plan.planner!r} says of {len(plan.recompute)} stages whether they recompute, and has {len(plan.stages)}"
        )
    for word in dict.fromkeys(plan.recompute):
        with blaming(InfeasiblePlanError, f"plan {plan.planner!r}"):
            check_recompute(problem.workload, word)
    if plan.recomputed_blocks:
        _check_recomputed_blocks(problem, plan)


def problem_of_parts(problem: Problem, plan: Plan) -> Problem:
    """The problem whose layers are the parts of those that a plan splits (`split_workload`).

    Raises InfeasiblePlanError where they cannot be split, or nothing is known of parts: on accelerators that are not `sublinear`
    a part may take less than its share, below what bounds count. Raises PlanNotRunError where the stack runs no such plan.
    """
    with blaming(InfeasiblePlanError, f"plan {plan.planner!r}"):
        parts = split_workload(problem.workload, plan.splits)
    unknown = [one.name for one in problem.cluster.kinds[0] if not one.sublinear]
    if unknown and not all(problem.workload.layers[split.layer].measured for split in plan.splits):
        raise InfeasiblePlanError(
            f"plan {plan.planner!r} splits layers, and accelerator {unknown[0]} is not sublinear: what parts take is not known"
        )
    _check_stack(problem, plan)
    return replace(problem, workload=parts)


def plan_of_parts(plan: Plan) -> Plan:
    """The plan of the parts, which has no splits.

    Raises InfeasiblePlanError unless a split layer stands in as many stages as it has parts, one behind the other.
    """
    ends = ends_of(plan.splits)
    holders = {layer: [number for number, one in enumerate(plan.stages) if layer in one.layers] for layer in ends}
    for layer, held in holders.items():
        count = len(ends[layer]) + 1
        if len(held) != count or held[-1] - held[0] >= count:
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} splits layer {layer} into {count} parts, which stands in stages "
                f"{ranges(held) or 'none'}: it must stand in {count} neighbouring ones"
            )
    more = [0, *accumulate(len(ends.get(layer, ())) for layer in range(max(ends, default=-1) + 1))]

    def part(stage: int, layer: int) -> int:
        own = stage - holders[layer][0] if layer in holders else 0
        return layer + more[min(layer, len(more) - 1)] + own

    stages = [
        replace(one, layers=tuple(part(number, layer) for layer in one.layers))
        for number, one in enumerate(plan.stages)
    ]
    return replace(plan, stages=tuple(stages), splits=())


def recompute_phrases(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """What each stage of a plan recomputes, in words: its policy, or `2 of 8 blocks`, `between-products of 2 of 8 blocks`."""
    policies = plan.recompute or (problem.recompute,) * len(plan.stages)
    counts = plan.recomputed_blocks or (0,) * len(plan.stages)
    held = [len(problem.workload.blocks_of(stage.layers)) if any(counts) else 0 for stage in plan.stages]
    return tuple(
        f"{f'{policy} of ' * (policy != 'blocks')}{count} of {all_of_them} blocks" if count else policy
        for policy, count, all_of_them in zip(policies, counts, held, strict=True)
    )


def _check_recomputed_blocks(problem: Problem, plan: Plan) -> None:
    """Raise InfeasiblePlanError unless each stage recomputes no more blocks than it has, by a policy of blocks."""
    policies = plan.recompute or (problem.recompute,) * len(plan.stages)
    if len(plan.recomputed_blocks) != len(plan.stages):
        raise InfeasiblePlanError(
            f"plan {plan.planner!r} says of {len(plan.recomputed_blocks)} stages how many blocks they recompute, "
            f"and has {len(plan.stages)}"
        )
    for number, (blocks, policy, stage) in enumerate(zip(plan.recomputed_blocks, policies, plan.stages, strict=True)):
        if blocks and policy not in BY_BLOCK:
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} recomputes {blocks} blocks of stage {number}, whose recompute is {policy}; "
                f"choices: {', '.join(BY_BLOCK)}"
            )
        held = len(problem.workload.blocks_of(stage.layers))
        if blocks > held:
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} recomputes {blocks} blocks of stage {number}, which has {held}"
            )


def _check_stack(problem: Problem, plan: Plan) -> None:
    """Raise PlanNotRunError for what the problem's stack does not run."""
    runs = problem.stack.runs
    if runs == GENERIC.runs:  # it runs everything: searches ask this of each plan
        return
    if lacks := "; no ".join(plan_lacks(runs, problem, plan)):
        raise PlanNotRunError(f"{problem.stack.title} does not run plan {plan.planner!r}: it has no {lacks}")


def _check_groups(problem: Problem, plan: Plan) -> None:
    """Raise InfeasiblePlanError unless stages have the devices of their groups, and a group divides its layers, is in one server
    where the cluster asks for that, and meets no other group: its devices work in step.
    """
    workload = problem.workload
    group_of: dict[int, tuple[int, ...]] = {}
    looked_at: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    degrees = [stage.degrees for stage in plan.stages if stage.degrees]
    if not any(layer.split for layer in workload.layers) and max(map(max, degrees)) > plan.context:
        raise InfeasiblePlanError(
            f"plan {plan.planner!r} has groups of {problem.device_word}s, and no layer of workload {workload.name!r} says how a "
            "group divides it"
        )
    for number, stage in enumerate(plan.stages):
        where = f"stage {number} of plan {plan.planner!r}"
        if (stage.devices, stage.degrees) not in looked_at:
            looked_at.add((stage.devices, stage.degrees))
            _check_places(problem, plan, stage, where, group_of)
        tensor = dict.fromkeys(degree // plan.context for degree in stage.degrees)
        for layer in (workload.layers[index] for index in stage.layers):
            if wrong := [degree for degree in tensor if not divides_heads(layer, degree)]:
                most = max(layer.heads, layer.query_heads)
                raise InfeasiblePlanError(
                    f"{where} has groups of {wrong[0]}, which does not divide the {layer.heads} key-value heads of layer "
                    f"{layer.name!r}; choices: {', '.join(str(one) for one in divisors(most) if divides_heads(layer, one))}"
                )


def _check_places(problem: Problem, plan: Plan, stage: Stage, where: str, group_of: dict[int, tuple[int, ...]]) -> None:
    """Raise InfeasiblePlanError for groups of a stage that are not as `_check_groups` says, wherever its layers are.

    where: the stage in words; group_of: the group of each device of stages before, to which those of this one are added
    """
    cluster, word = problem.cluster, problem.device_word
    if stage.degrees and (min(stage.degrees) < 1 or sum(stage.degrees) != len(stage.devices)):
        raise InfeasiblePlanError(
            f"{where} has replicas of {', '.join(map(str, stage.degrees))} {word}s, {counted(len(stage.devices), word)} in all"
        )
    for group in stage.replicas:
        for device in group:
            if group_of.setdefault(device, group) != group:
                raise InfeasiblePlanError(
                    f"{where} has {word} {device} in group {group}, another stage in group {group_of[device]}: groups "
                    f"are the same or share no {word}"
                )
    if wrong := [degree for degree in stage.degrees if plan.context < 1 or degree % plan.context]:
        raise InfeasiblePlanError(
            f"{where} has groups of {wrong[0]} {word}s, which context {plan.context} does not divide; choices: "
            f"{', '.join(map(str, divisors(math.gcd(*stage.degrees))))}"
        )
    for part in tensor_groups(stage.replicas, plan.context) if stage.degrees else ():
        if cluster.tensor_groups == "server" and len({cluster.server_of(device) for device in part}) > 1:
            raise InfeasiblePlanError(
                f"{where} has group {part} on several servers, and cluster {cluster.name!r} says tensor_groups = 'server'; "
                f"its servers have {' or '.join(map(str, sorted(set(map(len, cluster.servers)))))} {word}s"
            )


def _check_context(problem: Problem, plan: Plan) -> None:
    """Raise InfeasiblePlanError unless the workload can be divided into the context parts of the plan and every replica has a
    group of devices for each of them.
    """
    where = f"context {plan.context} of plan {plan.planner!r}"
    if plan.context < 1:
        raise InfeasiblePlanError(f"{where} must be at least 1")
    if any(not stage.degrees for stage in plan.stages):
        number = next(number for number, stage in enumerate(plan.stages) if not stage.degrees)
        raise InfeasiblePlanError(
            f"{where} needs replicas of as many {problem.device_word}s, or a multiple of them; stage {number} has one each; "
            "choices: 1"
        )
    if plan.slices > 1:
        raise InfeasiblePlanError(
            f"{where} divides samples that schedule {plan.schedule!r} cuts into slices; choices: 1"
        )
    with blaming(InfeasiblePlanError, where):
        check_context(problem.workload, plan.context)


def _check_experts(problem: Problem, plan: Plan) -> None:
    """Raise InfeasiblePlanError unless there are experts to divide, evenly, among the groups of every stage that has some."""
    where, layers = f"expert {plan.expert} of plan {plan.planner!r}", problem.workload.layers
    choices = expert_degrees(problem.workload)
    if plan.expert not in choices:
        lacks = "no layers of routed experts" if choices == (1,) else "experts that this does not divide"
        raise InfeasiblePlanError(
            f"{where}: workload {problem.workload.name!r} has {lacks}; choices: {', '.join(map(str, choices))}"
        )
    if plan.replication != "split":
        raise InfeasiblePlanError(f"{where} needs replicas that split every micro-batch, these take turns; choices: 1")
    for number, stage in enumerate(plan.stages):
        groups = len(stage.leads) * plan.context
        if groups % plan.expert and any(layers[layer].experts for layer in stage.layers):
            raise InfeasiblePlanError(
                f"{where} does not divide the {groups} groups (replicas × context) of stage {number}; choices: "
                f"{', '.join(str(one) for one in choices if groups % one == 0)}"
            )


def _check_zero(plan: Plan) -> None:
    """Raise InfeasiblePlanError if the ZeRO stage does not fit the plan: it keeps weight versions, or its replicas take turns and
    would divide what every pass needs.
    """
    if not flushes(plan):
        raise InfeasiblePlanError(
            f"plan {plan.planner!r} divides states by zero {plan.zero}, and schedule {plan.schedule!r} updates without a flush; "
            "choices: 0"
        )
    if plan.zero > 1 and plan.replication != "split":
        raise InfeasiblePlanError(
            f"zero {plan.zero} of plan {plan.planner!r} needs replicas that split every micro-batch, these take turns; "
            "choices: 0, 1"
        )


def _check_shard(plan: Plan) -> None:
    """Raise InfeasiblePlanError unless ZeRO divides something, among equal parts of the groups of every stage that has several,
    and among whole sets of experts.
    """
    where = f"shard {plan.shard} of plan {plan.planner!r}"
    if not plan.zero:
        raise InfeasiblePlanError(f"{where} says among how many groups ZeRO divides, and zero is 0; choices: 0")
    groups = math.gcd(*(count for stage in plan.stages if (count := len(stage.leads) * plan.context) > 1))
    choices = [one for one in divisors(groups) if one > 1 and one % plan.expert == 0]
    if plan.shard not in choices:
        raise InfeasiblePlanError(
            f"{where} must divide the groups (replicas × context) of every stage that has several, and be a multiple of expert "
            f"{plan.expert}; choices: {', '.join(map(str, [0, *choices]))}"
        )


def tensor_groups(replicas: Sequence[tuple[int, ...]], context: int) -> tuple[tuple[int, ...], ...]:
    """The tensor-parallel groups of the replicas of a stage, replica by replica; each has as many as there are context parts."""
    if context == 1:
        return tuple(replicas)
    sizes = [len(replica) // context for replica in replicas]
    return tuple(
        replica[at : at + size]
        for replica, size in zip(replicas, sizes, strict=True)
        for at in range(0, len(replica), size)
    )


def expert_degrees(workload: Workload) -> tuple[int, ...]:
    """Expert-parallel degrees that divide the experts of every layer evenly, rising; (1,) for a network without experts."""
    return divisors(math.gcd(*(layer.experts for layer in workload.layers)) or 1)


def group_degrees(problem: Problem) -> tuple[int, ...]:
    """Possible sizes of a tensor-parallel group on a problem, rising."""
    workload, cluster = problem.workload, problem.cluster
    if not any(layer.split for layer in workload.layers):
        return (1,)
    server = len(cluster.devices) if cluster.tensor_groups == "cluster" else max(map(len, cluster.servers))
    headed = {(layer.heads, layer.query_heads): layer for layer in workload.layers if layer.heads}.values()
    return tuple(one for one in range(1, server + 1) if all(divides_heads(layer, one) for layer in headed))


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, rising."""
    return tuple(one for one in range(1, number + 1) if number % one == 0)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as text with runs joined: `0-14, 16`."""
    return in_order(sorted(numbers))


def in_order(numbers: Iterable[int]) -> str:
    """Numbers in their order as text, with rising runs joined: `0, 8, 1-3`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def cuts_of(plan: Plan) -> tuple[int, ...] | None:
    """Number of layers before each stage boundary, as `stages_from_cuts` takes them; None unless all stages are contiguous and in
    order.
    """
    reached, cuts = 0, []
    for stage in plan.stages:
        cuts.append(reached)
        reached += len(stage.layers)
        if not stage.layers or stage.layers != tuple(range(cuts[-1], reached)):
            return None
    return tuple(cuts[1:])


def equal_microbatches(batch: int, count: int) -> tuple[int, ...]:
    """`count` micro-batches of `batch` samples, as equal as whole samples permit (the first ones larger).

    Raises ValueError if there are more micro-batches than samples.
    """
    if not 1 <= count <= batch:
        raise ValueError(f"micro-batches must be from 1 to the batch of {batch} samples, got {count}")
    size, more = divmod(batch, count)
    return (size + 1,) * more + (size,) * (count - more)


def stages_from_cuts(
    cuts: Sequence[int], layers: int, devices: Sequence[Sequence[int]], group: int = 1
) -> tuple[Stage, ...]:
    """Stages of contiguous layers: stage s holds layers cuts[s-1]:cuts[s] (0 and `layers` at the ends).

    group: devices of each replica
    """
    return tuple(
        Stage(tuple(range(*ends)), tuple(held), (group,) * (len(held) // group) if group > 1 else ())
        for ends, held in zip(pairwise([0, *cuts, layers]), devices, strict=True)
    )
