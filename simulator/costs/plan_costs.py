"""Plan costs: problem × plan -> durations, transfers and gradient buckets of its stages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Channel, Phase
from simulator.costs.given import Bucket, TiedReduction, Transfer
from simulator.costs.layer_costs import LayerCosts
from simulator.plans.plan import Plan, Problem, Recompute, cuts_of
from simulator.schedules.ops import HOST_KINDS, OpKind
from simulator.workloads.layers import TiedWeight

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


class StageStash(NamedTuple):
    """What a sample takes on a stage, in whole bytes (or in a unit of one's own).

    kept: from the start of its forward; made: what its backward makes again, from the backward's start (0: nothing)
    kept_longer, made_longer: parts of these that its weight gradient needs, which the input gradient leaves
    """

    kept: float
    made: float
    kept_longer: float
    made_longer: float


class PlanCosts:
    """The costs of one plan, as `simulator.lowering.lower` asks for them; tables fill as they are used."""

    def __init__(self, problem: Problem, plan: Plan, layer_costs: LayerCosts | None = None) -> None:
        self.problem, self.plan = problem, plan
        self.layers = LayerCosts(problem) if layer_costs is None else layer_costs
        self._stage_seconds: dict[tuple[OpKind, int, int, int], float] = {}
        self._slices: dict[int, PlanCosts] = {}

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The cluster's channels."""
        return self.problem.cluster.channels

    @cached_property
    def boundary_bytes(self) -> tuple[float, ...]:
        """Bytes a sample that cross from stages 0..s to the rest, one entry a boundary (stages - 1)."""
        cuts = cuts_of(self.plan)
        if cuts is not None:
            return tuple(self.layers.cut_bytes[list(cuts)].tolist())
        near: set[int] = set()
        result = []
        for stage in self.plan.stages[:-1]:
            near.update(stage.layers)
            result.append(self.layers.crossing_bytes(near))
        return tuple(result)

    @cached_property
    def weight_elements(self) -> tuple[float, ...]:
        """Weight elements that each stage keeps on each of its devices, one entry a stage.

        A weight that is tied to another stage's is kept once a device: by the first stage that uses it, where all devices of the
        other are among that stage's.
        """
        held: dict[int, set[int]] = {}
        elements = []
        for stage in self.plan.stages:
            there = [held.setdefault(device, set()) for device in stage.devices]
            elements.append(self.layers.weight_elements(stage.layers, set.intersection(*there)))
            for layers in there:
                layers.update(stage.layers)
        return tuple(elements)

    def reduced_bytes(self, stage: int) -> float:
        """Gradient bytes that the replicas of a stage all-reduce among themselves: not those of `tied_reductions`."""
        return float(self._reduced_parameters(stage).sum()) * self.problem.element_bytes

    @cached_property
    def shared_weights(self) -> tuple[tuple[TiedWeight, tuple[int, ...]], ...]:
        """Tied weights that several stages use, and these stages."""
        if not self.layers.tied_weights:
            return ()
        stage_of = {layer: number for number, stage in enumerate(self.plan.stages) for layer in stage.layers}
        found = []
        for weight in self.layers.tied_weights:
            stages = tuple(sorted({stage_of[layer] for layer in weight.layers}))
            if len(stages) > 1:
                found.append((weight, stages))
        return tuple(found)

    @cached_property
    def tied_reductions(self) -> tuple[TiedReduction, ...]:
        """All-reduces of the gradients of `shared_weights` over all devices that hold them; none where that is one device."""
        cluster = self.problem.cluster
        found = []
        for weight, stages in self.shared_weights:
            devices = self.devices_of(stages)
            if len(devices) > 1:
                seconds = cluster.allreduce_seconds(devices, weight.parameters * self.problem.element_bytes)
                found.append(TiedReduction(stages, seconds, *cluster.allreduce_channels(devices)))
        return tuple(found)

    def devices_of(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Devices that hold any of these stages, rising."""
        return tuple(sorted({device for stage in stages for device in self.plan.stages[stage].devices}))

    def of_slice(self, number: int) -> PlanCosts:
        """What ops on one slice of the sequences take and keep."""
        if number not in self._slices:
            layers = self.layers.of_slice(number, self.plan.slices)
            self._slices[number] = PlanCosts(layers.problem, self.plan, layers)
        return self._slices[number]

    def device(self, stage: int, replica: int) -> int:
        """Device of one replica of a stage."""
        return self.plan.stages[stage].devices[replica]

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

    def stash(self, stage: int) -> StageStash:
        """What the layers of a stage stash, but for what backward makes again where attention layers recompute; its input alone
        where all of it does (the network's input is kept by nobody).
        """
        recompute, layers = self.recomputation(stage), self.plan.stages[stage].layers
        stash, longer, attention = self.layers.stash_bytes(layers)
        if recompute == "whole":
            return StageStash(float(np.ceil(self.boundary_bytes[stage - 1])) if stage else 0.0, stash, 0.0, longer)
        made = attention if recompute == "attention" else 0.0
        return StageStash(stash - made, made, longer, 0.0)

    def _host_bandwidth(self, device: int) -> float:
        accelerator = self.problem.cluster.devices[device]
        bandwidth: float = getattr(accelerator, "host_bandwidth", 0.0)
        if not bandwidth:
            raise ValueError(
                f"device {device} ({accelerator.name}) cannot offload: its file does not say host_bandwidth_gb_per_s"
            )
        return bandwidth

    def seconds(self, kind: OpKind, stage: int, replica: int, samples: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sum of the stage's layers, of those that it runs again, or of what it keeps over the device's link to the host."""
        return np.array([self._op_seconds(kind, stage, replica, one) for one in samples.tolist()])

    def _op_seconds(self, kind: OpKind, stage: int, replica: int, samples: int) -> float:
        device = self.device(stage, replica)
        key = (kind, stage, self.layers.kind_of_device(device), samples)
        if key not in self._stage_seconds:
            held = np.array(self.plan.stages[stage].layers, dtype=np.int64)
            if kind is OpKind.UPDATE:
                value = self.layers.update_seconds(device, self.weight_elements[stage])
            elif kind is OpKind.PREDICT:
                value = self.layers.predict_seconds(device, self.weight_elements[stage])
            elif kind in HOST_KINDS:
                value = self.stash(stage).kept * samples / self._host_bandwidth(device)
            elif samples == 0:
                value = 0.0
            else:
                if kind is OpKind.RECOMPUTE:
                    held = held[self.layers.runs_again(self.recomputation(stage))[held]]
                value = self.layers.stage_seconds(device, held, samples, _PHASES[kind]) if len(held) else 0.0
            self._stage_seconds[key] = value
        return self._stage_seconds[key]

    def overlapped_seconds(self, stage: int, samples: int, apart: float) -> float:
        """The problem's share of the seconds that they take one after the other."""
        return self.problem.overlap * apart

    def transfer(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> Transfer:
        """Activations of the boundary (of a slice of them) downwards, as many bytes of gradients upwards."""
        devices = self.device(*source), self.device(*target)
        size = self.boundary_bytes[min(source[0], target[0])] * samples / self.plan.slices
        cluster = self.problem.cluster
        return Transfer(cluster.transfer_seconds(*devices, size), size, cluster.route(*devices))

    def buckets(self, stage: int) -> tuple[Bucket, ...]:
        """Gradient buckets from the last layer to the first; a bucket's all-reduce starts when its layers' backward is done."""
        devices = self.plan.stages[stage].devices
        if len(devices) == 1:
            return ()
        held = np.array(self.plan.stages[stage].layers, dtype=np.int64)
        sizes = self._reduced_parameters(stage) * self.problem.element_bytes
        if not sizes.any():
            return ()  # without weights there is nothing to wait for
        samples = max(1, max(self.plan.microbatches) // (len(devices) if self.plan.replication == "split" else 1))
        backward = self.layers.seconds(devices[0], samples, "backward")[held]
        total = float(backward.sum())
        shares = backward / total if total > 0 else np.full(len(held), 1.0 / len(held))
        least = max(BUCKET_BYTES, float(sizes.sum()) / MOST_BUCKETS)
        cluster = self.problem.cluster
        busy = cluster.allreduce_channels(devices)
        buckets: list[Bucket] = []
        share, size = 0.0, 0.0
        for position in range(len(held) - 1, -1, -1):
            share += float(shares[position])
            size += float(sizes[position])
            if size >= least or (position == 0 and (share > 0 or size > 0)):
                seconds = cluster.allreduce_seconds(devices, size) if size > 0 else 0.0
                buckets.append(Bucket(share, seconds, *busy))
                share, size = 0.0, 0.0
        return tuple(buckets)

    def _reduced_parameters(self, stage: int) -> NDArray[np.float64]:
        """Weight elements of each layer of a stage whose gradients its buckets carry, float64 [layers of the stage]."""
        held = np.array(self.plan.stages[stage].layers, dtype=np.int64)
        parameters = self.layers.parameters[held]
        for weight, _ in self.shared_weights:
            parameters[held == weight.layers[0]] -= weight.parameters
        return parameters
