"""Plan costs: problem × plan -> durations, transfers and gradient buckets of its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Channel, Cluster, Flow, Phase, Rates, reduce_seconds
from simulator.costs.given import Bucket, TiedReduction, Transfer
from simulator.costs.layer_costs import ALONE, NO_RATES, GroupRates, LayerCosts
from simulator.costs.stashes import StageStash, gradient_in_work, stage_stash
from simulator.plans.plan import Plan, Problem, Recompute, Stage, cuts_of, tensor_groups
from simulator.schedules.ops import HOST_KINDS, OpKind
from simulator.workloads.layers import TiedWeight
from simulator.workloads.shares import Parallelism

Devices = tuple[int, ...]

_ByServer = dict[int, list[Devices]]

COMPARED_BYTES = 2**20
"""Of like groups of devices the slowest is that which takes longest for as many bytes."""

BUCKET_BYTES = 25 * 2**20
"""Gradients are all-reduced in buckets of at least this size, layer by layer from the back (PyTorch DDP's default)."""

MOST_BUCKETS = 32
"""A stage has no more buckets than this: the bucket size grows with the stage."""

_PHASES: dict[OpKind, Phase] = {
    OpKind.FORWARD: "forward",
    OpKind.BACKWARD: "backward",
    OpKind.INPUT_GRADIENT: "input_gradient",
    OpKind.WEIGHT_GRADIENT: "weight_gradient",
    OpKind.RECOMPUTE: "forward",
}

_GATHERING = OpKind.FORWARD, OpKind.BACKWARD, OpKind.INPUT_GRADIENT
"""Ops before which ZeRO 3 gathers weights; what runs a forward again has those of its backward."""

_SCATTERING = OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT
"""Ops after which ZeRO 2 and 3 scatter gradients."""


class Group(NamedTuple):
    """What the seconds of a replica's ops depend on, beside its stage's layers; that of replicas that lie alike is the same.

    kinds: numbers of the kinds of its devices, rising
    parallel, rates: how they divide layers with each other and with those of other replicas, the slowest of them
    peers, expert_peers: rates of all-reduces of each of them with all that hold the same weights in the stage, and the same
        experts, where ZeRO divides anything; replicas: among how many it does, else 1
    gathers: whether what its forwards, and its backwards, receive comes in parts, to be gathered
    """

    kinds: tuple[int, ...]
    parallel: Parallelism = ALONE
    rates: GroupRates = NO_RATES
    peers: Rates = ()
    expert_peers: Rates = ()
    replicas: int = 1
    gathers: tuple[bool, bool] = (False, False)


class OpParts(NamedTuple):
    """Seconds of an op: what its devices compute, what they then wait for others with which they divide layers by tensor, context
    and experts, and for other replicas.
    """

    computing: float
    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    replicas: float = 0.0


class _Places:
    """Where the replicas of a stage are: their devices, by server.

    number: tells it from others of a plan
    groups: devices of each replica; parts: of each of its tensor-parallel groups
    """

    def __init__(self, number: int, stage: Stage, plan: Plan, cluster: Cluster) -> None:
        self.number, self.groups, self.cluster = number, stage.replicas, cluster
        self.parts = tensor_groups(stage.replicas, plan.context)
        self.context, self.expert = plan.context, plan.expert

    @cached_property
    def members(self) -> frozenset[tuple[int, ...]]:
        """The groups, without an order."""
        return frozenset(self.groups)

    @cached_property
    def rings(self) -> list[tuple[int, ...]]:
        """Devices that hold the same weights; those of experts divide these among `expert` in a row."""
        return peers_of(self.parts)

    @cached_property
    def expert_rings(self) -> list[tuple[int, ...]]:
        """Devices that hold the same experts."""
        return [ring[first :: self.expert] for ring in self.rings for first in range(self.expert)]

    @cached_property
    def peer_rates(self) -> Rates:
        """Of all-reduces of all `rings` at once."""
        return self.cluster.allreduce_rates(*self.rings)

    @cached_property
    def expert_rates(self) -> Rates:
        """Of all-reduces of all `expert_rings` at once."""
        return self.cluster.allreduce_rates(*self.expert_rings)

    def rates(self, replica: int) -> GroupRates:
        """Of what a replica's devices do together, and with those of other replicas."""
        parts = self.parts[replica * self.context : (replica + 1) * self.context]
        reduce, exchange = self.cluster.allreduce_rates, self.cluster.alltoall_rates
        return GroupRates(
            self._slowest(parts, self._beside(self.parts), reduce) if len(parts[0]) > 1 else (),
            self._slowest(peers_of(parts), self._contexts, reduce) if self.context > 1 else (),
            self._slowest(self._exchanging(parts), self._exchanges, exchange) if self.expert > 1 else (),
        )

    def _slowest(self, own: Sequence[Devices], several: _ByServer, rates: Callable[..., Rates]) -> Rates:
        """Of some of several like groups of devices, of which those that share a server are at work at the same time."""
        found: dict[Rates, None] = {}
        for devices in own:
            near = dict.fromkeys(other for server in self._servers(devices) for other in several.get(server, ()))
            found[rates(devices, *(one for one in near if one != devices and len(one) == len(devices)))] = None
        return max(found, key=lambda one: reduce_seconds(one, COMPARED_BYTES))

    def _beside(self, several: Iterable[Devices]) -> _ByServer:
        """Groups of devices by each server that they are in."""
        found: _ByServer = {}
        for devices in several:
            for server in self._servers(devices):
                found.setdefault(server, []).append(devices)
        return found

    def _servers(self, devices: Devices) -> Iterable[int]:
        return dict.fromkeys(map(self.cluster.server_of, devices))

    @cached_property
    def _contexts(self) -> _ByServer:
        """Devices that have parts of the same samples."""
        step = self.context
        replicas = (self.parts[at : at + step] for at in range(0, len(self.parts), step))
        return self._beside(ring for parts in replicas for ring in peers_of(parts))

    @cached_property
    def _exchanges(self) -> _ByServer:
        """Devices that divide experts."""
        return self._beside(self._exchanging(self.parts))

    def _exchanging(self, parts: Sequence[Devices]) -> list[Devices]:
        """Devices that divide experts, of the groups of those that some parts are in."""
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
    reduce-scattered in the buckets, and an update ends in an all-gather of the weights. From 2 on every backward reduce-scatters
    its gradients, from 3 on every pass gathers the weights, both beside the computation: an op takes as long as the longer.
    """

    def __init__(self, problem: Problem, plan: Plan, layer_costs: LayerCosts | None = None) -> None:
        self.problem, self.plan = problem, plan
        self.layers = LayerCosts(problem) if layer_costs is None else layer_costs
        self._stage_seconds: dict[tuple[OpKind, int, Group, int], float] = {}
        self._stage_parts: dict[tuple[OpKind, int, Group, int], OpParts] = {}
        self._slices: dict[int, PlanCosts] = {}
        self._groups: dict[tuple[int, int, int, int], Group] = {}
        self._flows: dict[tuple[int, int, int, int], tuple[Flow, float]] = {}

    @cached_property
    def _places(self) -> tuple[_Places, ...]:
        """Where the replicas of each stage are; stages of the same devices share one."""
        known: dict[tuple[tuple[int, ...], tuple[int, ...]], _Places] = {}
        found = []
        for stage in self.plan.stages:
            key = stage.devices, stage.degrees
            if key not in known:
                known[key] = _Places(len(known), stage, self.plan, self.problem.cluster)
            found.append(known[key])
        return tuple(found)

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The cluster's channels."""
        return self.problem.cluster.channels

    @cached_property
    def boundary_bytes(self) -> tuple[float, ...]:
        """Bytes a sample that cross from stages 0..s to the rest, one entry a boundary (stages - 1)."""
        return self._crossing(self.layers)

    def _crossing(self, layers: LayerCosts, *, gathered: bool = False) -> tuple[float, ...]:
        """As `boundary_bytes`, of what a member of a group keeps; gathered: of those bytes that every member has whole."""
        cuts = cuts_of(self.plan)
        if cuts is not None:
            return tuple((layers.gathered_cut_bytes if gathered else layers.cut_bytes)[list(cuts)].tolist())
        near: set[int] = set()
        result = []
        for stage in self.plan.stages[:-1]:
            near.update(stage.layers)
            result.append(layers.crossing_bytes(near, gathered=gathered))
        return tuple(result)

    @cached_property
    def weight_elements(self) -> tuple[float, ...]:
        """`held_elements` of the first replica of each stage."""
        return tuple(self.held_elements(stage) for stage in range(len(self.plan.stages)))

    def held_elements(self, stage: int, replica: int = 0) -> float:
        """Weight elements that a stage keeps on each device of a replica.

        A weight that is tied to another stage's is kept once a device: by the first stage that uses it, where all devices of the
        other are among that stage's.
        """
        layers, there = self.plan.stages[stage].layers, self._there_before[stage]
        return self._member(stage, replica).weight_elements(layers, there)

    def divided_elements(self, stage: int, replica: int) -> float:
        """`held_elements` as if no experts were divided: what ZeRO divides among all replicas of a stage."""
        return self.held_elements(stage, replica) + (self.plan.expert - 1) * self._expert_elements(stage, replica)

    def _expert_elements(self, stage: int, replica: int) -> float:
        """Weight elements of `held_elements` that belong to routed experts, where these are divided."""
        if self.plan.expert == 1:
            return 0.0
        return float(self._member(stage, replica).expert_parameters[list(self.plan.stages[stage].layers)].sum())

    def gathered_elements(self, stage: int, replica: int) -> float:
        """Weight elements of the two largest layers of a stage, on each device of a replica."""
        parameters = self._member(stage, replica).parameters[list(self.plan.stages[stage].layers)]
        return float(np.sort(parameters)[-2:].sum())

    def gradient_in_work(self, stage: int, replica: int) -> float:
        """Bytes of weight gradients on each device of a replica beside those that micro-batches add up."""
        return gradient_in_work(self._member(stage, replica), self.plan.stages[stage].layers)

    @cached_property
    def _there_before(self) -> tuple[set[int], ...]:
        """Layers of earlier stages that all devices of each stage hold."""
        held: dict[int, set[int]] = {}
        found = []
        for stage in self.plan.stages:
            there = [held.setdefault(device, set()) for device in stage.leads]
            found.append(set.intersection(*there))
            for layers in there:
                layers.update(stage.layers)
        return tuple(found)

    def _member(self, stage: int, replica: int) -> LayerCosts:
        """The layers of a stage as a device of a replica has them, with what it reduces and gathers with its group."""
        if not self.plan.stages[stage].degrees and self.plan.expert == 1:
            return self.layers
        group = self.group(stage, replica)
        return self.layers.at(group.parallel, group.rates)

    def reduced_bytes(self, stage: int) -> float:
        """Bytes of gradients that all devices of a stage send in one all-reduce with those that hold the same weights: not those
        of `tied_reductions`.
        """
        held = self._places[stage]
        dense, experts = self._reduced_parameters(stage, len(held.rings)).sum(axis=1) * self.problem.accumulated_bytes
        moved = 2.0 * (len(held.parts) - 1) * dense + 2.0 * (len(held.parts) - held.expert) * experts
        return float(moved * len(held.rings))

    @cached_property
    def shared_weights(self) -> tuple[tuple[TiedWeight, tuple[int, ...]], ...]:
        """Tied weights that several stages use, and these stages."""
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
                seconds = reduce_seconds(cluster.allreduce_rates(*rings), size)
                found.append(TiedReduction(stages, seconds, *cluster.allreduce_channels(*rings)))
        return tuple(found)

    def _tied_elements(self, weight: TiedWeight, degree: int) -> float:
        """Elements of a tied weight that a device of a group of so many holds."""
        if degree == 1:
            return weight.parameters
        tied = self.layers.at(Parallelism(degree)).tied_weights
        return next(one.parameters for one in tied if one.layers == weight.layers)

    def groups_of(self, stages: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Devices of each tensor-parallel group that holds any of these stages, rising."""
        return tuple(sorted({part for stage in stages for part in self._places[stage].parts}))

    def of_slice(self, number: int) -> PlanCosts:
        """What ops on one slice of the sequences take and keep."""
        if number not in self._slices:
            layers = self.layers.of_slice(number, self.plan.slices)
            self._slices[number] = PlanCosts(layers.problem, self.plan, layers)
        return self._slices[number]

    def device(self, stage: int, replica: int) -> int:
        """Device of one replica of a stage, the first of its group."""
        return self._places[stage].groups[replica][0]

    def group(self, stage: int, replica: int) -> Group:
        """What the seconds of a replica's ops depend on."""
        own, before, behind = self._neighbours[stage]
        key = own.number, replica, before.number if before else -1, behind.number if behind else -1
        known = self._groups.get(key)
        if known is None:
            known = self._groups[key] = self._group(stage, replica)
        return known

    @cached_property
    def _neighbours(self) -> tuple[tuple[_Places, _Places | None, _Places | None], ...]:
        """Where each stage is, the one before it and the one after it."""
        return tuple(zip(self._places, (None, *self._places[:-1]), (*self._places[1:], None), strict=True))

    def _group(self, stage: int, replica: int) -> Group:
        (held, *near), kinds, plan = self._neighbours[stage], self._devices_by_kind(stage, replica), self.plan
        if not plan.stages[stage].degrees and not plan.zero and plan.expert == 1:
            return Group(tuple(kinds))
        own = held.groups[replica]
        parallel = Parallelism(len(own) // plan.context, plan.context, plan.expert)
        gathers = tuple(parallel.tensor > 1 and one is not None and own not in one.members for one in near)
        found = Group(tuple(kinds), parallel, held.rates(replica), gathers=(gathers[0], gathers[1]))
        if not plan.zero or len(held.parts) == 1:
            return found
        return found._replace(peers=held.peer_rates, expert_peers=held.expert_rates, replicas=len(held.parts))

    def _devices_by_kind(self, stage: int, replica: int) -> dict[int, int]:
        """A device of each kind that a replica has, by the number of the kind, rising."""
        held = self.plan.stages[stage]
        if not held.degrees:
            device = held.devices[replica]
            return {self.layers.kind_of_device(device): device}
        return dict(
            sorted((self.layers.kind_of_device(device), device) for device in self._places[stage].groups[replica])
        )

    def recomputes(self, stage: int) -> bool:
        """Whether a stage runs any of its layers forward again."""
        return self.recomputation(stage) != "none"

    def recomputation(self, stage: int) -> Recompute:
        """What a stage runs forward again before backward: as the plan says, or else the problem; all of it where its backward
        takes other micro-batches.

        What a forward op has stored cannot be cut again at other samples.
        """
        plan = self.plan
        if plan.forward_sizes and plan.backward_sizes and plan.forward_sizes[stage] != plan.backward_sizes[stage]:
            return "whole"
        return plan.recompute[stage] if plan.recompute else self.problem.recompute

    def stash(self, stage: int, replica: int = 0, *, at_once: bool = False) -> StageStash:
        """What the layers of a stage stash on each device of a replica (the network's input is kept by nobody).

        at_once: what it runs again it does in ops of their own
        """
        recompute, member = self.recomputation(stage), self._member(stage, replica)
        received = self._crossing(member)[stage - 1] if stage and recompute == "whole" else 0.0
        return stage_stash(member, self.plan.stages[stage].layers, recompute, received, at_once=at_once)

    def _host_bandwidth(self, device: int) -> float:
        accelerator = self.problem.cluster.devices[device]
        bandwidth: float = getattr(accelerator, "host_bandwidth", 0.0)
        if not bandwidth:
            raise ValueError(
                f"device {device} ({accelerator.name}) cannot offload: its file does not say host_bandwidth_gb_per_s"
            )
        return bandwidth

    def seconds(self, kind: OpKind, stage: int, replica: int, samples: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sum of the stage's layers, of those that it runs again, or of what it keeps over the device's link to the host; with
        what a device moves to its group and its peers.
        """
        return np.array([self._op_seconds(kind, stage, replica, one) for one in samples.tolist()])

    def _op_seconds(self, kind: OpKind, stage: int, replica: int, samples: int) -> float:
        group = self.group(stage, replica)
        key = (kind, stage, group, samples)
        if key not in self._stage_seconds:
            value = self._seconds_in_step(kind, (stage, replica), samples, self._member(stage, replica))
            if any(group.gathers):
                value += self._gather_seconds(kind, stage, group, samples)
            if group.replicas > 1:
                value = self._with_peers(kind, (stage, replica), value)
            self._stage_seconds[key] = value
        return self._stage_seconds[key]

    def parts(self, kind: OpKind, stage: int, replica: int, samples: int) -> OpParts:
        """What the `seconds` of an op consist of."""
        group, member = self.group(stage, replica), self._member(stage, replica)
        key = (kind, stage, group, samples)
        if key not in self._stage_parts:
            place, whole = (stage, replica), self._op_seconds(kind, stage, replica, samples)
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
            self._stage_parts[key] = OpParts(computing, tensor, context, expert, whole - within)
        return self._stage_parts[key]

    def _seconds_in_step(self, kind: OpKind, place: tuple[int, int], samples: int, layers: LayerCosts) -> float:
        """Seconds of an op on the slowest device of a (stage, replica), which has these layers."""
        devices = self._devices_by_kind(*place).values()
        return max(self._device_seconds(kind, place, samples, device, layers) for device in devices)

    def _device_seconds(
        self, kind: OpKind, place: tuple[int, int], samples: int, device: int, layers: LayerCosts
    ) -> float:
        """Seconds of an op of a (stage, replica) on a device of it, without what it waits for from others."""
        stage, replica = place
        if kind is OpKind.UPDATE:
            replicas = self.group(stage, replica).replicas
            held = self.held_elements if replicas == 1 else self.divided_elements
            return layers.update_seconds(device, held(stage, replica) / replicas)
        if kind is OpKind.PREDICT:
            return layers.predict_seconds(device, self.held_elements(stage, replica))
        if kind in HOST_KINDS:
            return self.stash(stage, replica).kept * samples / self._host_bandwidth(device)
        run = self._layers_of(kind, stage)
        return layers.stage_seconds(device, run, samples, _PHASES[kind]) if samples and len(run) else 0.0

    def _layers_of(self, kind: OpKind, stage: int) -> NDArray[np.int64]:
        """Layers of a stage that an op runs."""
        held = np.array(self.plan.stages[stage].layers, dtype=np.int64)
        return held[self.layers.runs_again(self.recomputation(stage))[held]] if kind is OpKind.RECOMPUTE else held

    def _gather_seconds(self, kind: OpKind, stage: int, group: Group, samples: int) -> float:
        """Seconds in which the devices of a group gather what an op has received in parts."""
        received = {OpKind.FORWARD: 0, OpKind.BACKWARD: 1, OpKind.INPUT_GRADIENT: 1}.get(kind)
        if received is None or not group.gathers[received]:
            return 0.0
        whole = self._crossing(self.layers.at(group.parallel), gathered=True)[stage - 1 + received]
        return reduce_seconds(group.rates.tensor, whole * samples) / 2

    def inside_bytes(self, stage: int) -> float:
        """Bytes a sample that the devices of a replica reduce, gather and exchange; of replicas that differ, the mean."""
        moved = []
        for replica, devices in enumerate(self._places[stage].groups):
            group = self.group(stage, replica)
            layers, tensor = self.layers.at(group.parallel), group.parallel.tensor
            passes = (OpKind.FORWARD, OpKind.BACKWARD, *[OpKind.RECOMPUTE] * self.recomputes(stage))
            size = sum(layers.sent_bytes(self._layers_of(kind, stage), _PHASES[kind]) for kind in passes)
            boundaries = (0.0, *self._crossing(layers, gathered=True), 0.0)[stage : stage + 2]
            received = sum(whole for whole, gathered in zip(boundaries, group.gathers, strict=True) if gathered)
            moved.append(len(devices) * (size + received * (tensor - 1) / tensor))
        return sum(moved) / len(moved)

    def _with_peers(self, kind: OpKind, place: tuple[int, int], alone: float) -> float:
        """Seconds of an op that takes `alone`, with what ZeRO scatters and gathers among a device and its peers."""
        weights, gradients = (
            self._scatter_seconds(place, size) for size in (self.problem.element_bytes, self.problem.accumulated_bytes)
        )
        if kind is OpKind.UPDATE:
            return alone + weights * (self.plan.zero < 3)
        beside = weights * (self.plan.zero == 3 and kind in _GATHERING)
        beside += gradients * (self.plan.zero >= 2 and kind in _SCATTERING)
        return max(alone, beside)

    def _scatter_seconds(self, place: tuple[int, int], size: float) -> float:
        """Seconds in which a device and its peers scatter, or gather, so many bytes for each weight that it holds."""
        group, experts = self.group(*place), self._expert_elements(*place)
        dense = reduce_seconds(group.peers, (self.held_elements(*place) - experts) * size)
        return (dense + (reduce_seconds(group.expert_peers, experts * size) if experts else 0.0)) / 2

    def overlapped_seconds(self, stage: int, samples: int, apart: float) -> float:
        """The problem's share of the seconds that they take one after the other."""
        return self.problem.overlap * apart

    def transfer(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> Transfer:
        """Activations of the boundary (of a slice of them) downwards, as many bytes of gradients upwards."""
        flow, share = self.flow(source, target)
        size = self.boundary_bytes[min(source[0], target[0])] * (samples * share) / self.plan.slices
        return Transfer(flow.latency + size / flow.bandwidth, size, flow.route, flow.loads)

    def flow(self, source: tuple[int, int], target: tuple[int, int]) -> tuple[Flow, float]:
        """The way between two (stage, replica), and the part of a boundary that a device of the smaller group has on it."""
        ends = [(self._places[stage], replica) for stage, replica in (source, target)]
        key = ends[0][0].number, ends[0][1], ends[1][0].number, ends[1][1]
        if key not in self._flows:
            senders, receivers = (held.groups[replica] for held, replica in ends)
            many, few = max(len(senders), len(receivers)), min(len(senders), len(receivers))
            pairs = [
                (senders[one * len(senders) // many], receivers[one * len(receivers) // many]) for one in range(many)
            ]
            self._flows[key] = self.problem.cluster.flow(pairs, few / many), 1.0 / few
        return self._flows[key]

    def buckets(self, stage: int) -> tuple[Bucket, ...]:
        """Gradient buckets from the last layer to the first; a bucket's all-reduce starts when its layers' backward is done. One
        where gradients are reduced whole.
        """
        places, zero = self._places[stage], self.plan.zero
        groups, rings = places.groups, places.rings
        if len(places.parts) == 1 or zero >= 2:
            return ()
        held = np.array(self.plan.stages[stage].layers, dtype=np.int64)
        dense, experts = self._reduced_parameters(stage, len(rings)) * self.problem.accumulated_bytes
        sizes = dense + experts
        if not sizes.any():
            return ()  # without weights there is nothing to wait for
        samples = max(1, max(self.plan.microbatches) // (len(groups) if self.plan.replication == "split" else 1))
        backward = self._member(stage, 0).seconds(groups[0][0], samples, "backward")[held]
        total = float(backward.sum())
        shares = backward / total if total > 0 else np.full(len(held), 1.0 / len(held))
        whole = self.problem.gradient_reduction == "whole"
        least = float(sizes.sum()) if whole else max(BUCKET_BYTES, float(sizes.sum()) / MOST_BUCKETS)
        busy = self.problem.cluster.allreduce_channels(*rings)
        scattered = 0.5 if zero else 1.0
        buckets: list[Bucket] = []
        share, size, of_experts = 0.0, 0.0, 0.0
        for position in range(len(held) - 1, -1, -1):
            share += float(shares[position])
            size += float(sizes[position])
            of_experts += float(experts[position])
            if size >= least or (position == 0 and (share > 0 or size > 0)):
                seconds = reduce_seconds(places.peer_rates, size - of_experts) if size > of_experts else 0.0
                seconds += reduce_seconds(places.expert_rates, of_experts) if of_experts else 0.0
                buckets.append(Bucket(share, scattered * seconds, *busy))
                share, size, of_experts = 0.0, 0.0, 0.0
        return tuple(buckets)

    def _reduced_parameters(self, stage: int, degree: int) -> NDArray[np.float64]:
        """Weight elements of each layer of a stage whose gradients its buckets carry, of a device in a group of `degree` devices,
        float64 [2, layers of the stage]: all but those of divided experts, and these.
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


def peers_of(groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Devices that hold the same part of a stage, one of each group; one of a smaller group than others is in several of them."""
    most = max(map(len, groups))
    if most == 1:
        return [tuple(group[0] for group in groups)]
    return [tuple(group[part * len(group) // most] for group in groups) for part in range(most)]
