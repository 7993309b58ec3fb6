"""Plan costs: durations, transfers and collectives of the stages of a plan on its problem."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hardware_profiles import (
    Channel,
    Floats,
    Flow,
    Integers,
    Operation,
    Phase,
    Rates,
    one_after_the_other,
    optional_members,
    reduce_seconds,
    scaled,
)
from simulator.costs.given import ALONE as LONE
from simulator.costs.given import Bucket, StageCollectives, TiedReduction, Transfer, Unit
from simulator.costs.layer_costs import ALONE, NO_RATES, GroupRates, LayerCosts
from simulator.costs.stashes import KeptByPart, StageStash, gradient_in_work, kept_by_part, stage_stash
from simulator.options.training_options import BY_BLOCK, Recompute
from simulator.plans.plan import Plan, Problem, Stage, cuts_of, plan_of_parts, tensor_groups
from simulator.schedules.ops import HOST_KINDS, OpKind
from simulator.workloads.layers import TiedWeight
from simulator.workloads.shares import Parallelism

Devices = tuple[int, ...]

_ByComponent = dict[tuple[int, ...], list[Devices]]

COMPARED_BYTES = 2**20
"""Of like groups of devices the slowest is that which takes longest for as many bytes."""

BUCKET_BYTES = 25 * 2**20
"""Gradients are all-reduced in buckets of at least this size, layer by layer from the back (PyTorch DDP's default)."""

KEPT_DEVICES = 2**18
"""Devices of all stage places that are kept for one `LayerCosts`, the ones that were used last."""

MOST_BUCKETS = 32
"""A stage has no more buckets than this: the bucket size grows with the stage."""

_PHASES: dict[OpKind, Phase] = {
    OpKind.FORWARD: "forward",
    OpKind.BACKWARD: "backward",
    OpKind.INPUT_GRADIENT: "input_gradient",
    OpKind.WEIGHT_GRADIENT: "weight_gradient",
    OpKind.RECOMPUTE: "forward",
}


_PASSES: tuple[Phase, Phase] = "forward", "backward"

_TRAFFIC: dict[OpKind, tuple[int, int]] = {
    OpKind.FORWARD: (1, 0),
    OpKind.BACKWARD: (1, 1),
    OpKind.INPUT_GRADIENT: (1, 0),
    OpKind.WEIGHT_GRADIENT: (0, 1),
}
"""How often replicas that divide weights gather them, and scatter their gradients, in an op."""


class Group(NamedTuple):
    """What the seconds of a replica's ops depend on, beside its stage's layers; symmetrically placed replicas share it.

    kinds: numbers of the kinds of its devices, rising
    parallel, rates: how they divide layers with each other and with those of other replicas, the slowest of them
    replicas: among how many groups ZeRO divides anything, else 1
    gathers: whether what its forwards, and its backwards, receive comes in parts, to be gathered
    servers: as of a `Member`
    """

    kinds: tuple[int, ...]
    parallel: Parallelism = ALONE
    rates: GroupRates = NO_RATES
    replicas: int = 1
    gathers: tuple[bool, bool] = (False, False)
    servers: int = 1


class OpParts(NamedTuple):
    """Seconds of an op by cause: computing, waiting for the collectives of tensor, context and expert groups, and what the stack
    does not hide of those of replicas.
    """

    computing: float
    tensor: float
    context: float
    expert: float
    replicas: float


_Step = tuple[Operation, list[tuple[int, ...]], float]
"""A collective, the rings that run it at once, and the share of the bytes that it is of."""


class StagePlaces:
    """Placement of the replicas of a stage, and the rates of the collectives that their devices run.

    problem: whose cluster they are in; context, expert, shard: as of a plan
    groups: devices of each replica; parts: of each of its tensor-parallel groups; shard: how many of these divide states
    """

    def __init__(self, stage: Stage, problem: Problem, context: int, expert: int, shard: int = 0) -> None:
        self.groups, self.cluster = stage.replicas, problem.cluster
        self.sequence_parallel, self.stack = problem.sequence_parallel, problem.stack
        self.parts = tensor_groups(stage.replicas, context)
        self.context, self.expert, self.shard = context, expert, min(shard, len(self.parts)) or len(self.parts)
        self._rates: dict[int, GroupRates] = {}
        self._like_rates: dict[Hashable, GroupRates] = {}
        self._peer_rates: dict[Operation, tuple[Rates, Rates]] = {}
        self._busy: dict[Operation, tuple[tuple[int, ...], tuple[float, ...]]] = {}
        self._flows: dict[tuple[StagePlaces, int, int], tuple[Flow, float]] = {}
        self.collectives: dict[Hashable, StageCollectives] = {}  # of stages there, as `PlanCosts` tells them

    def __len__(self) -> int:
        """Number of devices."""
        return sum(map(len, self.groups))

    @cached_property
    def members(self) -> frozenset[tuple[int, ...]]:
        """The groups as an unordered set."""
        return frozenset(self.groups)

    @cached_property
    def widest(self) -> int:
        """Index of the first replica with the most devices: each of them holds what one of `rings` reduces."""
        return max(range(len(self.groups)), key=lambda replica: len(self.groups[replica]))

    @cached_property
    def rings(self) -> list[tuple[int, ...]]:
        """Devices that hold the same weights, apart from experts, which `expert` consecutive ones divide."""
        return peers_of(self.parts)

    @cached_property
    def shard_rings(self) -> list[tuple[int, ...]]:
        """Devices of `rings` that divide among themselves what ZeRO says: neighbours, all of a ring unless `shard` is less."""
        return [ring[at : at + self.shard] for ring in self.rings for at in range(0, len(ring), self.shard)]

    @cached_property
    def copy_rings(self) -> list[tuple[int, ...]]:
        """Devices that hold the same of what `shard_rings` divide."""
        return [ring[first :: self.shard] for ring in self.rings for first in range(self.shard)]

    @cached_property
    def expert_rings(self) -> list[tuple[int, ...]]:
        """Devices of `shard_rings` that hold the same experts."""
        return [ring[first :: self.expert] for ring in self.shard_rings for first in range(self.expert)]

    def peer_rates(self, operation: Operation) -> tuple[Rates, Rates]:
        """Rates of a collective of dense weights, or of their gradients, by all devices at once, and of one of experts, among
        those that hold the same ones, if experts are divided.
        """
        if operation not in self._peer_rates:
            times = self.stack.replica_collectives.on(self.cluster.devices[self.groups[0][0]])
            dense, divided = self._rates_of(self._steps(operation, self.shard_rings, self.shard)), Rates()
            if 1 < self.expert <= self.shard:  # a stage on fewer devices has no experts
                divided = self._rates_of(self._steps(operation, self.expert_rings, self.shard // self.expert))
            self._peer_rates[operation] = scaled(dense, times), scaled(divided, times)
        return self._peer_rates[operation]

    def _steps(self, operation: Operation, rings: list[tuple[int, ...]], shares: int) -> list[_Step]:
        """What devices run, one after the other: what some rings scatter in so many shares, `copy_rings` all-reduce."""
        summed = [(Operation.ALL_REDUCE, self.copy_rings, 1.0 / shares)]
        apart = operation is Operation.REDUCE_SCATTER and self.shard < len(self.parts)
        return [(operation, rings, 1.0), *(summed if apart else ())]

    def _rates_of(self, steps: list[_Step]) -> Rates:
        found: Rates = ()
        for operation, rings, share in steps:
            rates = self.cluster.collectives.rates(operation, *rings)
            found = one_after_the_other(found, tuple((latency, share * per_byte) for latency, per_byte in rates))
        return found

    def busy(self, operation: Operation) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Channels that a collective of dense weights, or of their gradients, occupies, and shares of its seconds (0 to 1) for
        which it keeps each busy.
        """
        if operation not in self._busy:
            steps = self._steps(operation, self.shard_rings, self.shard)
            if len(steps) == 1:
                self._busy[operation] = self.cluster.collectives.busy(operation, *self.shard_rings)
                return self._busy[operation]
            taken = [reduce_seconds(self._rates_of([step]), COMPARED_BYTES) for step in steps]
            busy: dict[int, float] = {}
            for (one, rings, _), seconds in zip(steps, taken, strict=True):
                for channel, share in zip(*self.cluster.collectives.busy(one, *rings), strict=True):
                    busy[channel] = busy.get(channel, 0.0) + share * (seconds / sum(taken))
            busy = dict(sorted(busy.items()))
            self._busy[operation] = tuple(busy), tuple(busy.values())
        return self._busy[operation]

    def moved_seconds(self, operation: Operation, dense: float, experts: float) -> float:
        """Seconds of a collective of `dense` bytes over each ring, then of `experts` bytes over each expert ring."""
        rates, of_experts = self.peer_rates(operation)
        seconds = reduce_seconds(rates, dense) if dense > 0 else 0.0
        return seconds + reduce_seconds(of_experts, experts) if experts else seconds

    def flow(self, replica: int, places: StagePlaces, other: int) -> tuple[Flow, float]:
        """The way from a replica to one elsewhere, and the part of a boundary that each device of the smaller group sends."""
        key = places, replica, other
        if key not in self._flows:
            senders, receivers = self.groups[replica], places.groups[other]
            many, few = max(len(senders), len(receivers)), min(len(senders), len(receivers))
            pairs = [
                (senders[one * len(senders) // many], receivers[one * len(receivers) // many]) for one in range(many)
            ]
            self._flows[key] = self.cluster.flow(pairs, few / many), 1.0 / few
        return self._flows[key]

    def rates(self, replica: int) -> GroupRates:
        """Rates of the collectives of a replica: inside its groups, and with other replicas that divide experts with it."""
        if replica not in self._rates:
            look = self._look(replica)
            known = None if look is None else self._like_rates.get(look)
            self._rates[replica] = rates = self._rates_of_replica(replica) if known is None else known
            if look is not None:
                self._like_rates[look] = rates
        return self._rates[replica]

    def _look(self, replica: int) -> Hashable:
        """The same for replicas whose collectives have the same rates; None of one that meets others outside of its servers."""
        own, topology, likeness = self.groups[replica], self.cluster.topology, self.cluster.collectives.likeness
        if self.expert > 1 or not likeness.forms or topology.parted(own) < topology.depth:
            return None
        server, _ = topology.numbered(topology.depth)
        near = {other for one in {server[device] for device in own} for other in self._in_server[one]}
        several = replica, *sorted(near - {replica})
        parts = [self.parts[at] for one in several for at in range(one * self.context, (one + 1) * self.context)]
        return self.cluster.kinds[1][own[0]], likeness.look(parts)

    @cached_property
    def _in_server(self) -> dict[int, set[int]]:
        """The replicas that have devices in each server."""
        server, _ = self.cluster.topology.numbered(self.cluster.topology.depth)
        found: dict[int, set[int]] = {}
        for replica, group in enumerate(self.groups):
            for device in group:
                found.setdefault(server[device], set()).add(replica)
        return found

    def _rates_of_replica(self, replica: int) -> GroupRates:
        parts = self.parts[replica * self.context : (replica + 1) * self.context]
        collectives = self.cluster.collectives

        def gathers(*groups: Devices) -> Rates:
            return collectives.rates(Operation.ALL_GATHER, *groups)

        def both(*groups: Devices) -> Rates:
            return one_after_the_other(collectives.rates(Operation.REDUCE_SCATTER, *groups), gathers(*groups))

        reduce = both if self.sequence_parallel else partial(collectives.rates, Operation.ALL_REDUCE)
        divided = len(parts[0]) > 1
        times = self.stack.tensor_collectives.on(self.cluster.devices[self.groups[replica][0]])
        exchange = self.cluster.collectives.alltoall_rates
        return GroupRates(
            scaled(self._slowest(parts, self._tensor_groups, reduce), times) if divided else (),
            self._slowest(peers_of(parts), self._contexts, both) if self.context > 1 else (),
            self._slowest(self._exchanging(parts), self._exchanges, exchange) if self.expert > 1 else (),
            scaled(self._slowest(parts, self._tensor_groups, gathers), times) if divided else (),
        )

    def _slowest(self, own: Sequence[Devices], several: _ByComponent, rates: Callable[..., Rates]) -> Rates:
        """Rates of the slowest of several like groups that run at once and may share servers or rack uplinks."""
        found: dict[frozenset[Devices], Rates] = {}
        for devices in own:
            at_once = self._at_once(devices, several)
            if at_once not in found:
                found[at_once] = rates(devices, *sorted(at_once - {devices}))
        return max(found.values(), key=lambda one: reduce_seconds(one, COMPARED_BYTES))

    def _at_once(self, devices: Devices, several: _ByComponent) -> frozenset[Devices]:
        """A group, and all like groups that may share servers or rack uplinks with it."""
        near = {other for one in self._components(devices) for other in several.get(one, ())}
        return frozenset({devices, *(one for one in near if len(one) == len(devices))})

    @property
    def first_tensor_groups(self) -> list[Devices]:
        """The first tensor-parallel group, and those that run their collectives beside it."""
        first = self.parts[0]
        return [first, *sorted(self._at_once(first, self._tensor_groups) - {first})]

    def _beside(self, several: Iterable[Devices]) -> _ByComponent:
        """Groups of devices by component: for each server, rack and so on, those that are spread over it."""
        found: _ByComponent = {}
        for devices in several:
            for one in self._components(devices):
                found.setdefault(one, []).append(devices)
        return found

    def _components(self, devices: Devices) -> Iterable[tuple[int, ...]]:
        """Components (servers, racks, ...) over which some devices are spread."""
        topology = self.cluster.topology
        depths = range(topology.parted(devices), topology.depth + 1)
        return dict.fromkeys(topology.places[device][:depth] for depth in depths for device in devices)

    @cached_property
    def _tensor_groups(self) -> _ByComponent:
        """All `parts`."""
        return self._beside(self.parts)

    @cached_property
    def _contexts(self) -> _ByComponent:
        """Groups of devices that hold parts of the same samples."""
        step = self.context
        replicas = (self.parts[at : at + step] for at in range(0, len(self.parts), step))
        return self._beside(ring for parts in replicas for ring in peers_of(parts))

    @cached_property
    def _exchanges(self) -> _ByComponent:
        """Groups of devices that divide experts."""
        return self._beside(self._exchanging(self.parts))

    def _exchanging(self, parts: Sequence[Devices]) -> list[Devices]:
        """The expert-exchanging groups of the devices in some tensor-parallel groups."""
        step = self.expert
        firsts = dict.fromkeys(self._number[part] // step * step for part in parts)
        return [ring for first in firsts for ring in peers_of(self.parts[first : first + step])]

    @cached_property
    def _number(self) -> dict[Devices, int]:
        return {part: number for number, part in enumerate(self.parts)}


class PlanCosts:
    """The costs of one plan, as `simulator.lowering.lower` asks for them; tables fill as they are used.

    The devices of a replica work in step, each on its share of the stage's layers: an op takes as long as on the slowest of them,
    and what they reduce, gather and exchange, with each other and with those of other replicas that have other experts, is part
    of the op. Between replicas each device sends its part of the boundary. Gradients are reduced between the devices of a stage
    that hold the same weights, and those of experts between the devices that hold the same ones, one after the other.

    ZeRO (Rajbhandari et al. 2020) divides states, gradients and weights among the replicas of a stage. 1: gradients are
    reduce-scattered in the buckets, and the weights all-gathered behind the update. From 2 on every backward reduce-scatters
    its gradients, from 3 on every pass gathers the weights, both unit by unit beside the computation
    (`simulator.lowering.unit_lanes`).

    problem, plan: those of the parts where the plan splits layers: here and below a part is a layer like others
    """

    def __init__(self, problem: Problem, plan: Plan, layer_costs: LayerCosts | None = None) -> None:
        if plan.splits:
            layer_costs = (LayerCosts(problem) if layer_costs is None else layer_costs).of_parts(plan)
            problem, plan = layer_costs.problem, plan_of_parts(plan)
        self.problem, self.plan, self._given = problem, plan, layer_costs
        self._stage_seconds: dict[tuple[OpKind, int, Group, int], float] = {}
        self._stage_parts: dict[tuple[OpKind, int, Group, int], OpParts] = {}
        self._unit_traffic: dict[int, tuple[float, float]] = {}
        self._slices: dict[int, PlanCosts] = {}
        self._groups: dict[Hashable, Group] = {}
        self._crossings: dict[tuple[LayerCosts, bool], tuple[float, ...]] = {}
        self._collectives: dict[Hashable, StageCollectives] = {}

    @cached_property
    def layers(self) -> LayerCosts:
        """The costs of layers on the plan's devices."""
        known = LayerCosts(self.problem) if self._given is None else self._given
        several = dict.fromkeys(stage.devices for stage in self.plan.stages)
        return known.across(device for devices in several for device in devices)

    @cached_property
    def _places(self) -> tuple[StagePlaces, ...]:
        """Placement of the replicas of each stage; stages on the same devices share one."""
        plan = self.plan
        known, found = self.layers.places, dict[Hashable, StagePlaces]()
        keys = [(stage.devices, stage.degrees, plan.context, plan.expert, plan.shard) for stage in plan.stages]
        for key, stage in zip(keys, plan.stages, strict=True):
            if key not in found:
                held = known.used(key)
                if held is None:
                    held = StagePlaces(stage, self.problem, plan.context, plan.expert, plan.shard)
                    known.keep(key, held, KEPT_DEVICES)
                found[key] = held
        return tuple([found[key] for key in keys])

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The cluster's channels, shared as the problem says."""
        return self.problem.channels

    @cached_property
    def boundary_bytes(self) -> tuple[float, ...]:
        """Bytes per sample that cross from stages 0..s to the rest, one entry per boundary (stages - 1)."""
        return self._crossing(self.layers)

    def _crossing(self, layers: LayerCosts, *, gathered: bool = False) -> tuple[float, ...]:
        """`boundary_bytes` for one member of a group; gathered: the bytes that every member holds whole."""
        key = layers, gathered
        if key not in self._crossings:
            self._crossings[key] = tuple(self._crossing_bytes(layers, gathered=gathered))
        return self._crossings[key]

    def _crossing_bytes(self, layers: LayerCosts, *, gathered: bool) -> Iterator[float]:
        cuts = cuts_of(self.plan)
        if cuts is not None:
            yield from (layers.gathered_cut_bytes if gathered else layers.cut_bytes)[list(cuts)].tolist()
            return
        near: set[int] = set()
        for stage in self.plan.stages[:-1]:
            near.update(stage.layers)
            yield layers.crossing_bytes(near, gathered=gathered)

    def held_elements(self, stage: int, replica: int = 0) -> float:
        """Weight elements that a stage keeps on each device of a replica.

        A weight that is tied to another stage's is counted once per device, at the first stage that uses it, if all devices of
        the other stage are among that stage's.
        """
        layers, there = self.plan.stages[stage].layers, self._there_before[stage]
        return self.member_costs(stage, replica).weight_elements(layers, there)

    def divided_elements(self, stage: int, replica: int) -> float:
        """`held_elements` if experts were not divided: what ZeRO divides among all replicas of a stage."""
        return self.held_elements(stage, replica) + (self.plan.expert - 1) * self._expert_elements(stage, replica)

    def _expert_elements(self, stage: int, replica: int) -> float:
        """Weight elements among `held_elements` in routed experts, if experts are divided."""
        if self.plan.expert == 1:
            return 0.0
        return float(self.member_costs(stage, replica).expert_parameters[list(self.plan.stages[stage].layers)].sum())

    def unit_buffers(self, stage: int, replica: int) -> float:
        """Bytes of the whole (gathered) units that each device of a replica holds, or of layers where the stack gathers these:
        gradients of the two largest if these are divided, and weights. Counted for the first stage of a device; 0 for its others.

        Gradients of a whole unit have the width of elements, and are cast as they are added to the shard: as FSDP (reduce_dtype,
        by default that of the parameters) and DeepSpeed (communication_data_type) do.
        """
        zero, places = self.plan.zero, self._places[stage]
        if zero < 2 or len(places.parts) == 1 or stage not in self._first_stages:
            return 0.0
        width = self.problem.element_bytes * (zero - 1)
        member, beside = (
            self.member_costs(stage, replica),
            (one for one, held in enumerate(self._places) if held is places),
        )
        units = [unit for one in beside for unit in self.unit_layers[one]]
        if self.problem.stack.gathered == "products":
            units = [(layer,) for unit in units for layer in unit]
        return sum(sorted(map(member.weight_elements, units))[-2:]) * width

    @cached_property
    def _first_stages(self) -> frozenset[int]:
        """The first stage of each device."""
        return frozenset(map(self._places.index, set(self._places)))

    @cached_property
    def unit_layers(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Layers of each unit of each stage, in order: one block each, or consecutive layers outside of blocks up to
        BUCKET_BYTES.
        """
        return tuple(map(self._cut_into_units, range(len(self.plan.stages))))

    def _cut_into_units(self, stage: int) -> tuple[tuple[int, ...], ...]:
        held, layers = self.plan.stages[stage].layers, self.problem.workload.layers
        parameters = self.member_costs(stage, self._places[stage].widest).parameters[list(held)]
        begins = unit_begins(parameters.tolist(), [layers[layer].block for layer in held], self.problem)
        return tuple(held[begin:end] for begin, end in pairwise([*begins, len(held)]))

    def gradient_in_work(self, stage: int, replica: int) -> float:
        """Bytes of temporary weight gradients on each device of a replica, before they are added to the accumulated ones, beside
        the `unit_buffers` of those that replicas divide.
        """
        if self.plan.zero >= 2 and len(self._places[stage].parts) > 1:
            return float(np.ceil(self.problem.workspace_bytes))
        member, recompute = self.member_costs(stage, replica), self.recomputation(stage)
        return gradient_in_work(member, self.plan.stages[stage].layers, recompute, self.recomputed_blocks(stage))

    @cached_property
    def _there_before(self) -> tuple[set[int], ...]:
        """For each stage, the layers of earlier stages with tied weights that all of its devices already hold."""
        tied = {layer for weight in self.layers.tied_weights for layer in weight.layers}
        held: dict[int, set[int]] = {}
        found = []
        for stage in self.plan.stages:
            there = [held.setdefault(device, set()) for device in stage.leads] if tied else [set[int]()]
            found.append(set.intersection(*there))
            for layers in there if (own := tied.intersection(stage.layers)) else ():
                layers.update(own)
        return tuple(found)

    def member_costs(self, stage: int, replica: int) -> LayerCosts:
        """Layer costs of a stage on a device of a replica, including the collectives of its groups."""
        if not self.plan.stages[stage].degrees and self.plan.expert == 1:
            return self.layers
        group = self.group(stage, replica)
        return self.layers.at(group.parallel, group.rates)

    def scattered_bytes(self, stage: int) -> float:
        """Bytes that all devices of a stage send in one reduce-scatter of its gradients (half of an all-reduce), without
        `tied_reductions`.
        """
        dense, experts = self._reduced_parameters(stage, len(self._places[stage].rings)).sum(axis=1)
        held = self._places[stage]
        copies = 2.0 * (len(held.parts) // held.shard - 1) * len(held.rings)
        size: float = self._sent_once(stage, dense, experts) + copies * (dense + held.expert * experts)
        return size * self.problem.accumulated_bytes

    def gathered_bytes(self, stage: int) -> float:
        """Bytes that all devices of a stage send in one all-gather of its weights."""
        widest = self._places[stage].widest
        experts = self._expert_elements(stage, widest)
        return self._sent_once(stage, self.held_elements(stage, widest) - experts, experts) * self.problem.element_bytes

    def _sent_once(self, stage: int, dense: float, experts: float) -> float:
        """Bytes that all devices of a stage send in one scatter, or gather, of its dense and its expert elements over their
        rings.
        """
        held = self._places[stage]
        shards = len(held.parts) // held.shard
        return ((len(held.parts) - shards) * dense + (len(held.parts) - shards * held.expert) * experts) * len(
            held.rings
        )

    @cached_property
    def shared_weights(self) -> tuple[tuple[TiedWeight, tuple[int, ...]], ...]:
        """Tied weights that several stages use, with those stages."""
        found = []
        for weight in self.layers.tied_weights:
            held = (
                number
                for layer in weight.layers
                for number, stage in enumerate(self.plan.stages)
                if layer in stage.layers
            )
            stages = tuple(sorted(set(held)))
            if len(stages) > 1:
                found.append((weight, stages))
        return tuple(found)

    @cached_property
    def tied_reductions(self) -> tuple[TiedReduction, ...]:
        """All-reduces of the gradients of `shared_weights` over all devices that hold them; none where that is one device."""
        cluster = self.problem.cluster
        found = []
        for weight, stages in self.shared_weights:
            groups = self.groups_of(stages)
            if len(groups) > 1:
                rings = peers_of(groups)
                size = self._tied_elements(weight, len(rings)) * self.problem.accumulated_bytes
                seconds = reduce_seconds(cluster.collectives.rates(Operation.ALL_REDUCE, *rings), size)
                found.append(
                    TiedReduction(stages, seconds, *cluster.collectives.busy(Operation.ALL_REDUCE, *rings), size)
                )
        return tuple(found)

    def _tied_elements(self, weight: TiedWeight, degree: int) -> float:
        """Elements of a tied weight on each device of a tensor-parallel group of this degree."""
        if degree == 1:
            return weight.parameters
        tied = self.layers.at(Parallelism(degree)).tied_weights
        return next(one.parameters for one in tied if one.layers == weight.layers)

    def groups_of(self, stages: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Tensor-parallel groups that hold any of these stages, by device."""
        return tuple(sorted({part for stage in stages for part in self._places[stage].parts}))

    def of_slice(self, number: int) -> PlanCosts:
        """The costs of ops on one slice of the sequences."""
        if number not in self._slices:
            layers = self.layers.of_slice(number, self.plan.slices)
            self._slices[number] = PlanCosts(layers.problem, self.plan, layers)
        return self._slices[number]

    def device(self, stage: int, replica: int) -> int:
        """The first device of a replica, which represents its group."""
        return self._places[stage].groups[replica][0]

    def group(self, stage: int, replica: int) -> Group:
        """What the seconds of a replica's ops depend on."""
        key = *self._neighbours[stage], replica
        known = self._groups.get(key)
        if known is None:
            known = self._groups[key] = self._group(stage, replica)
        return known

    @cached_property
    def _neighbours(self) -> tuple[tuple[StagePlaces, StagePlaces | None, StagePlaces | None], ...]:
        """For each stage, its placement and those of the stages before and after it."""
        return tuple(zip(self._places, (None, *self._places[:-1]), (*self._places[1:], None), strict=True))

    def _group(self, stage: int, replica: int) -> Group:
        (held, *near), kinds, plan = self._neighbours[stage], self._devices_by_kind(stage, replica), self.plan
        if not plan.stages[stage].degrees and not plan.zero and plan.expert == 1:
            return Group(tuple(kinds), servers=self.layers.member.servers)
        own = held.groups[replica]
        parallel = Parallelism(len(own) // plan.context, plan.context, plan.expert)
        gathers = tuple(parallel.tensor > 1 and one is not None and own not in one.members for one in near)
        replicas = held.shard if plan.zero else 1
        servers = self.layers.member.servers
        return Group(tuple(kinds), parallel, held.rates(replica), replicas, (gathers[0], gathers[1]), servers)

    def _devices_by_kind(self, stage: int, replica: int) -> dict[int, int]:
        """One device of each accelerator kind in a replica, by rising index of the kind."""
        held = self.plan.stages[stage]
        if not held.degrees:
            device = held.devices[replica]
            return {self.layers.kind_of_device(device): device}
        return dict(
            sorted((self.layers.kind_of_device(device), device) for device in self._places[stage].groups[replica])
        )

    def recomputes(self, stage: int) -> bool:
        """Whether a stage recomputes any of its layers."""
        return self.recomputation(stage) != "none"

    def recomputation(self, stage: int) -> Recompute:
        """Recompute policy of a stage: as the plan says, else the problem; `whole` where its backward uses other micro-batches.

        What a forward op has stored cannot be cut again at other samples.
        """
        plan = self.plan
        if plan.forward_sizes and plan.backward_sizes and plan.forward_sizes[stage] != plan.backward_sizes[stage]:
            return "whole"
        return plan.recompute[stage] if plan.recompute else self.problem.recompute

    def recomputed_blocks(self, stage: int) -> int:
        """How many of its first blocks a stage recomputes; 0 for all that its policy says."""
        blocks = self.plan.recomputed_blocks
        return blocks[stage] if blocks and self.recomputation(stage) in BY_BLOCK else 0

    def stash(self, stage: int, replica: int = 0, *, at_once: bool = False) -> StageStash:
        """Activations that a stage's layers stash on each device of a replica; the network's input is not counted.

        at_once: what it runs again it does in ops of their own
        """
        return stage_stash(*self._stashing(stage, replica), at_once=at_once)

    def kept_by_part(self, stage: int, replica: int = 0) -> KeptByPart:
        """What `stash` keeps from the start of a forward, and beyond the input gradient, by part of the layers."""
        return kept_by_part(*self._stashing(stage, replica))

    def _stashing(self, stage: int, replica: int) -> tuple[LayerCosts, tuple[int, ...], Recompute, float, int]:
        """What the stash of a stage depends on: a device's layer costs, its layers, the recompute policy, the bytes of its input,
        and how many blocks it recomputes.
        """
        recompute, member = self.recomputation(stage), self.member_costs(stage, replica)
        received = self._crossing(member)[stage - 1] if stage and recompute == "whole" else 0.0
        return member, self.plan.stages[stage].layers, recompute, received, self.recomputed_blocks(stage)

    def _host_bandwidth(self, device: int) -> float:
        accelerator = self.problem.cluster.devices[device]
        bandwidth = optional_members(accelerator).host_bandwidth
        if not bandwidth:
            word = self.problem.device_word
            raise ValueError(
                f"{word} {device} ({accelerator.name}) cannot offload: its file does not say host_bandwidth_gb_per_s"
            )
        return bandwidth

    def seconds(self, kind: OpKind, stage: int, replica: int, samples: Integers) -> Floats:
        """Seconds of an op over each number of samples: its layers (or those recomputed, or its offload over the host link),
        framework overhead, and collectives of the device's groups.
        """
        return np.array([self._op_seconds(kind, stage, replica, one) for one in samples.tolist()])

    def _op_seconds(self, kind: OpKind, stage: int, replica: int, samples: int) -> float:
        group = self.group(stage, replica)
        key = (kind, stage, group, samples)
        if key not in self._stage_seconds:
            value = self._seconds_in_step(kind, (stage, replica), samples, self.member_costs(stage, replica))
            if any(group.gathers):
                value += self._gather_seconds(kind, stage, group, samples)
            self._stage_seconds[key] = value + self.exposed_seconds(kind, stage)
        return self._stage_seconds[key]

    def parts(self, kind: OpKind, stage: int, replica: int, samples: int) -> OpParts:
        """The `seconds` of an op by cause."""
        group, member = self.group(stage, replica), self.member_costs(stage, replica)
        key = (kind, stage, group, samples)
        if key not in self._stage_parts:
            place = stage, replica
            within = computing = self._seconds_in_step(kind, place, samples, member.computing)
            context = expert = 0.0
            if any(group.rates):
                within = self._seconds_in_step(kind, place, samples, member)
                within += self._gather_seconds(kind, stage, group, samples)
                context, expert = (
                    self._seconds_in_step(kind, place, samples, self.layers.at(group.parallel, alone)) - computing
                    for alone in (GroupRates(context=group.rates.context), GroupRates(expert=group.rates.expert))
                )
            tensor = within - computing - context - expert
            replicas = self.exposed_seconds(kind, stage)
            self._stage_parts[key] = OpParts(computing, tensor, context, expert, replicas)
        return self._stage_parts[key]

    def _seconds_in_step(self, kind: OpKind, place: tuple[int, int], samples: int, layers: LayerCosts) -> float:
        """Seconds of an op on the slowest device of a (stage, replica), for these layers."""
        devices = self._devices_by_kind(*place).values()
        return max(self._device_seconds(kind, place, samples, device, layers) for device in devices)

    def _device_seconds(
        self, kind: OpKind, place: tuple[int, int], samples: int, device: int, layers: LayerCosts
    ) -> float:
        """Seconds of an op of a (stage, replica) on one device, without waiting for collectives."""
        stage, replica = place
        if kind is OpKind.UPDATE:
            replicas = self.group(stage, replica).replicas
            held = self.held_elements if replicas == 1 else self.divided_elements
            return layers.update_seconds(device, held(stage, replica) / replicas)
        if kind is OpKind.PREDICT:
            return layers.predict_seconds(device, self.held_elements(stage, replica))
        if kind in HOST_KINDS:
            return self.stash(stage, replica).kept * samples / self._host_bandwidth(device)
        run = self.layers_of(kind, stage)
        if not (samples and len(run)):
            return 0.0
        again = self.recomputation(stage) if kind is OpKind.RECOMPUTE else None
        return layers.stage_seconds(device, run, samples, _PHASES[kind], again=again)

    def layers_of(self, kind: OpKind, stage: int) -> Integers:
        """Layers of a stage that an op of this kind runs."""
        held, policy = np.array(self.plan.stages[stage].layers, dtype=np.int64), self.recomputation(stage)
        if kind is not OpKind.RECOMPUTE:
            return held
        again, blocks = self.layers.runs_again(policy)[held] > 0.0, self.recomputed_blocks(stage)
        return held[again & (self.layers.parts_again(policy, held, blocks) > 0)] if blocks else held[again]

    def _gather_seconds(self, kind: OpKind, stage: int, group: Group, samples: int) -> float:
        """Seconds to all-gather an op's input inside a group that receives it in parts."""
        received = {OpKind.FORWARD: 0, OpKind.BACKWARD: 1, OpKind.INPUT_GRADIENT: 1}.get(kind)
        if received is None or not group.gathers[received]:
            return 0.0
        whole = self._crossing(self.layers.at(group.parallel), gathered=True)[stage - 1 + received]
        return reduce_seconds(group.rates.gather, whole * samples)

    def exposed(self, stage: int) -> float:
        """Share of what replicas of a stage gather and scatter in its passes that nothing hides."""
        if self.plan.zero < 2:
            return 0.0
        return self.problem.stack.exposed.on(self.problem.cluster.devices[self.device(stage, 0)])

    def exposed_seconds(self, kind: OpKind, stage: int) -> float:
        """Seconds of an op in which replicas gather weights, or scatter gradients, and nothing computes (ZeRO 2 and 3)."""
        if kind not in _TRAFFIC or not (share := self.exposed(stage)):
            return 0.0
        if stage not in self._unit_traffic:
            units = self.collectives(stage).units
            self._unit_traffic[stage] = sum(one.gather or 0.0 for one in units), sum(one.scatter for one in units)
        return share * sum(one * times for one, times in zip(self._unit_traffic[stage], _TRAFFIC[kind], strict=True))

    def inside_bytes(self, stage: int) -> float:
        """Bytes per sample that the devices of a replica send to each other in collectives; the mean over unequal replicas."""
        moved = []
        for replica, devices in enumerate(self._places[stage].groups):
            group = self.group(stage, replica)
            layers, tensor = self.layers.at(group.parallel), group.parallel.tensor
            passes = (OpKind.FORWARD, OpKind.BACKWARD, *[OpKind.RECOMPUTE] * self.recomputes(stage))
            size = sum(layers.sent_bytes(self.layers_of(kind, stage), _PHASES[kind]) for kind in passes)
            boundaries = (0.0, *self._crossing(layers, gathered=True), 0.0)[stage : stage + 2]
            received = sum(whole for whole, gathered in zip(boundaries, group.gathers, strict=True) if gathered)
            moved.append(len(devices) * (size + received * (tensor - 1) / tensor))
        return sum(moved) / len(moved)

    def overlapped_seconds(self, stage: int, samples: int, apart: float) -> float:
        """The problem's `overlap` share of the seconds one after the other."""
        return self.problem.overlap * apart

    def overlap_slowdown(self, device: int) -> float:
        """What the device's accelerator says."""
        return optional_members(self.problem.cluster.devices[device]).overlap_slowdown

    def transfer(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> Transfer:
        """Activations of a boundary (or of a slice) downwards, gradients of the same size upwards."""
        flow, share = self.flow(source, target)
        size = self.boundary_bytes[min(source[0], target[0])] * (samples * share) / self.plan.slices
        return Transfer(flow.latency + size / flow.bandwidth, size, flow.route, flow.loads)

    def flow(self, source: tuple[int, int], target: tuple[int, int]) -> tuple[Flow, float]:
        """The route between two (stage, replica), and the part of a boundary that each device of the smaller group sends."""
        return self._places[source[0]].flow(source[1], self._places[target[0]], target[1])

    def collectives(self, stage: int) -> StageCollectives:
        """The collectives that the replicas of a stage run together; empty for a stage without weights."""
        tied = bool(self.layers.tied_weights)  # what is reduced then depends on the other stages, too
        known = self._collectives if tied else self._places[stage].collectives
        held, servers = self.plan.stages[stage].layers, self.layers.member.servers
        key = stage * tied, held, self._samples(stage), self.plan.zero, servers
        if key not in known:
            known[key] = self._collectives_of(stage)
        return known[key]

    def _collectives_of(self, stage: int) -> StageCollectives:
        plan, places, width = self.plan, self._places[stage], self.problem.element_bytes
        if len(places.parts) == 1:
            return LONE
        update_gather = None
        if plan.zero in (1, 2) and (held := self.held_elements(stage, places.widest)):
            dense = self.dense_elements(stage)
            seconds = places.moved_seconds(Operation.ALL_GATHER, dense * width, (held - dense) * width)
            update_gather = Bucket(1.0, seconds, *places.busy(Operation.ALL_GATHER), held * width)
        if plan.zero < 2:
            return StageCollectives(self.buckets(stage), (), update_gather)
        return StageCollectives((), self._units(stage), update_gather)

    def _units(self, stage: int) -> tuple[Unit, ...]:
        """The units that replicas gather and scatter at once (ZeRO 2 and 3)."""
        places, problem = self._places[stage], self.problem
        weights, dense, experts = self.unit_elements(stage)
        if not (weights + experts).any():
            return ()
        bounds = np.cumsum([0, *map(len, self.unit_layers[stage])])[:-1]
        forward, backward = (np.add.reduceat(self._layer_shares(stage, one), bounds) for one in _PASSES)

        def seconds(operation: Operation, dense: Floats, width: float) -> list[float]:
            return [places.moved_seconds(operation, *one) for one in zip(dense * width, experts * width, strict=True)]

        gathers = seconds(Operation.ALL_GATHER, weights, problem.element_bytes)
        scatters = seconds(Operation.REDUCE_SCATTER, dense, problem.accumulated_bytes)
        whole, busy = self.plan.zero == 3, places.busy(Operation.REDUCE_SCATTER)
        sizes = ((weights + experts) * problem.element_bytes, (dense + experts) * problem.accumulated_bytes)
        columns = zip(
            forward.tolist(), backward.tolist(), gathers, scatters, *(one.tolist() for one in sizes), strict=True
        )
        return tuple(
            Unit(f, b, gather if whole else None, scatter, *busy, *own) for f, b, gather, scatter, *own in columns
        )

    def _samples(self, stage: int) -> int:
        """Samples of the largest micro-batch on a replica of a stage."""
        replicas = len(self._places[stage].groups) if self.plan.replication == "split" else 1
        return max(1, max(self.plan.microbatches) // replicas)

    def _layer_shares(self, stage: int, phase: Phase) -> Floats:
        """Each layer's part of the seconds of a pass of its stage, float64 [layers of the stage]."""
        groups, widest = self._places[stage].groups, self._places[stage].widest
        held = np.array(self.plan.stages[stage].layers, dtype=np.int64)
        seconds = self.member_costs(stage, widest).seconds(groups[widest][0], self._samples(stage), phase)[held]
        total = float(seconds.sum())
        return seconds / total if total > 0 else np.full(len(held), 1.0 / len(held))

    def buckets(self, stage: int) -> tuple[Bucket, ...]:
        """Gradient buckets from the last layer to the first; each is reduced once the backward of its layers is done."""
        places, cut = self._places[stage], self.bucket_bytes(stage)
        if len(places.parts) == 1 or not cut:
            return ()  # without weights there is nothing to wait for
        operation = Operation.of_gradients(self.plan.zero > 0)
        busy = places.busy(operation)
        return tuple(Bucket(share, places.moved_seconds(operation, *sizes), *busy, sum(sizes)) for share, *sizes in cut)

    def dense_elements(self, stage: int) -> float:
        """Weight elements that a device of a stage holds, apart from experts that replicas divide."""
        widest = self._places[stage].widest
        return self.held_elements(stage, widest) - self._expert_elements(stage, widest)

    def bucket_bytes(self, stage: int) -> list[tuple[float, float, float]]:
        """Gradient buckets of a device, as in `cut_buckets`; one where gradients are reduced whole, none without weights."""
        dense, experts = (
            self._reduced_parameters(stage, len(self._places[stage].rings)) * self.problem.accumulated_bytes
        )
        whole = self.problem.gradient_reduction == "whole"
        cut = cut_buckets(dense, experts, self._layer_shares(stage, "backward"), whole=whole)
        return cut if (dense + experts).any() else []

    def unit_elements(self, stage: int) -> tuple[Floats, Floats, Floats]:
        """Elements on a device of each unit: dense weights that are gathered, those whose gradients are scattered, without
        `tied_reductions`, and divided experts; float64 [units] each.
        """
        places, layers = self._places[stage], self.unit_layers[stage]
        bounds = np.cumsum([0, *map(len, layers)])[:-1]
        member = self.member_costs(stage, places.widest)
        weights = np.array([member.weight_elements(unit) for unit in layers])
        dense, experts = np.add.reduceat(self._reduced_parameters(stage, len(places.rings)), bounds, axis=1)
        return weights - experts, dense, experts

    def group_bytes(self, stage: int) -> float:
        """Bytes of the largest tensor that a tensor-parallel group of a stage reduces at once; 0 for devices alone."""
        return self.member_costs(stage, 0).group_bytes * self._samples(stage)

    def places(self, stage: int) -> StagePlaces:
        """Where the replicas of a stage are."""
        return self._places[stage]

    def _reduced_parameters(self, stage: int, degree: int) -> Floats:
        """Weight elements per layer in a stage's buckets, on a device of a group of `degree` devices, float64 [2, layers of the
        stage]: dense weights, and divided experts.
        """
        layers = self.layers.at(Parallelism(degree, expert=self.plan.expert))
        held = np.array(self.plan.stages[stage].layers, dtype=np.int64)
        parameters = layers.parameters[held]
        experts = layers.expert_parameters[held] * (self.plan.expert > 1)
        shared = {weight.layers for weight, _ in self.shared_weights}
        for weight in layers.tied_weights:
            if weight.layers in shared:
                parameters[held == weight.layers[0]] -= weight.parameters
        return np.array([parameters - experts, experts])


def cut_buckets(
    dense: Floats, experts: Floats, shares: Floats, *, whole: bool = False
) -> list[tuple[float, float, float]]:
    """Cut the gradients of a stage into buckets, last layer first: share of the backward, bytes of dense gradients, bytes of
    expert gradients.

    dense, experts, shares: of each layer, float64 [layers]; whole: one bucket
    """
    sizes = dense + experts
    least = float(sizes.sum()) if whole else max(BUCKET_BYTES, float(sizes.sum()) / MOST_BUCKETS)
    found: list[tuple[float, float, float]] = []
    share, size, of_experts = 0.0, 0.0, 0.0
    for position in range(len(sizes) - 1, -1, -1):
        share += float(shares[position])
        size += float(sizes[position])
        of_experts += float(experts[position])
        if size >= least or (position == 0 and (share > 0 or size > 0)):
            found.append((share, size - of_experts, of_experts))
            share, size, of_experts = 0.0, 0.0, 0.0
    return found


def unit_begins(parameters: Sequence[float], blocks: Sequence[int], problem: Problem) -> list[int]:
    """First layers of the units of a stage: no block is cut, and each unit has at least BUCKET_BYTES of weights unless it is a
    lone block.

    parameters, blocks: of the stage's layers, or of a block at once; block 0: outside of all
    """
    begins, size, least = [0], 0.0, BUCKET_BYTES / problem.element_bytes
    for place in range(1, len(parameters)):
        size += parameters[place - 1]
        if size >= least and not 0 < blocks[place] == blocks[place - 1]:
            begins.append(place)
            size = 0.0
    return begins[:-1] if len(begins) > 1 and size + parameters[-1] < least else begins


def peers_of(groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Peer groups: devices that hold the same part of a stage, one of each group; a device of a smaller group is in several."""
    most = max(map(len, groups))
    if min(map(len, groups)) == most:
        return list(zip(*groups, strict=True))
    return [tuple(group[part * len(group) // most] for group in groups) for part in range(most)]
