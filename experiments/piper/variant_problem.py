"""Layers with variants: what a layer costs at each tensor-parallel degree, in each way to run it, and what a plan of them takes.

The model is that of Tarnawski, Narayanan and Phanishayee, Piper: Multidimensional Planner for DNN Parallelization (NeurIPS 2021),
section 3, as their program judges plans (`getTPSForResult`): a stage runs on t x d devices, degree t of tensor and d of data
parallelism; y = ceil(sum of d from the stage to the last / d) micro-batches are in flight on each replica. All replicas together
are at most the micro-batches of a batch, so that each has one.

    seconds per sample of a stage = sum over layers of seconds / d
        + (2 x bytes that cross its ends / d + 4 (d - 1) / d x weight bytes / micro-batches of a batch) / bandwidth
    bytes of a stage            = sum over layers of y x flight bytes + held bytes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

EdgeBytes = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class LayerVariant:
    """A way to run a layer on the devices of a tensor-parallel group.

    seconds: of a sample, forward and backward; weight_bytes: that replicas reduce
    flight_bytes, held_bytes: kept on a device for each micro-batch in flight, and whatever is in flight
    received_bytes, sent_bytes: by the layer at the other end, what a group adds to an edge that crosses the stage's ends
    """

    name: str
    seconds: float
    weight_bytes: float
    flight_bytes: float
    held_bytes: float
    received_bytes: EdgeBytes = field(default_factory=dict)
    sent_bytes: EdgeBytes = field(default_factory=dict)


@dataclass(frozen=True)
class VariantProblem:
    """A network of layers with variants, and the devices that are alike.

    layers: of each layer its variants by tensor-parallel degree
    edges: (layer, layer behind it) -> bytes that the first sends
    microbatches: of a batch; a stage's replicas share them, so that their number divides it
    """

    layers: tuple[Mapping[int, tuple[LayerVariant, ...]], ...]
    edges: Mapping[tuple[int, int], float]
    devices: int
    memory_bytes: float
    bandwidth: float
    microbatches: int

    @property
    def degrees(self) -> tuple[int, ...]:
        """Tensor-parallel degrees that some layer has, rising, of no more devices than there are."""
        return tuple(sorted({degree for layer in self.layers for degree in layer if degree <= self.devices}))

    @property
    def widths(self) -> tuple[int, ...]:
        """Replicas that a stage may have."""
        most = min(self.devices, self.microbatches)
        return tuple(width for width in range(1, most + 1) if self.microbatches % width == 0)


@dataclass(frozen=True, slots=True)
class VariantStage:
    """Layers on replicas of tensor-parallel groups; variants: of each layer, by name."""

    layers: tuple[int, ...]
    degree: int
    replicas: int
    variants: Mapping[int, str]


def plan_seconds_per_sample(problem: VariantProblem, stages: tuple[VariantStage, ...]) -> float:
    """Seconds per sample of the slowest stage of a plan.

    stages: from input to output. Raises ValueError, with the rule, for a plan that breaks one or does not fit.
    """
    placed = {layer: number for number, stage in enumerate(stages) for layer in stage.layers}
    if sorted(layer for stage in stages for layer in stage.layers) != list(range(len(problem.layers))):
        raise ValueError("every layer must be in one stage")
    if any(placed[before] > placed[behind] for before, behind in problem.edges):
        raise ValueError("a layer must not stand before one that it needs")
    used = sum(stage.degree * stage.replicas for stage in stages)
    if used > problem.devices:
        raise ValueError(f"stages must take at most {problem.devices} devices, got {used}")
    slowest, behind = 0.0, sum(stage.replicas for stage in stages)
    if behind > problem.microbatches:
        raise ValueError(
            f"{behind} replicas of all stages are more than the batch's {problem.microbatches} micro-batches"
        )
    for number, stage in enumerate(stages):
        if problem.microbatches % stage.replicas:
            raise ValueError(f"{stage.replicas} replicas must divide {problem.microbatches} micro-batches")
        flights = -(-behind // stage.replicas)
        kept = sum(one.flight_bytes * flights + one.held_bytes for one in _chosen(problem, stage).values())
        if kept > problem.memory_bytes:
            raise ValueError(f"stage {number} needs {kept:.6g} bytes per device, more than {problem.memory_bytes:.6g}")
        slowest = max(slowest, stage_seconds_per_sample(problem, stage))
        behind -= stage.replicas
    return slowest


def stage_seconds_per_sample(problem: VariantProblem, stage: VariantStage) -> float:
    """Seconds per sample of one stage."""
    chosen = _chosen(problem, stage)
    crossing = 0.0
    for (before, behind), sent in problem.edges.items():
        if (before in chosen) != (behind in chosen):
            added = chosen[before].sent_bytes if before in chosen else chosen[behind].received_bytes
            crossing += 2.0 * (sent + added.get(behind if before in chosen else before, 0.0))
    weights = sum(one.weight_bytes for one in chosen.values())
    reduced = 4.0 * (stage.replicas - 1) * weights / stage.replicas / problem.microbatches
    computed = sum(one.seconds for one in chosen.values())
    return (crossing / stage.replicas + reduced) / problem.bandwidth + computed / stage.replicas


def _chosen(problem: VariantProblem, stage: VariantStage) -> dict[int, LayerVariant]:
    """The variant of each layer of a stage."""
    chosen = {}
    for layer in stage.layers:
        named = {variant.name: variant for variant in problem.layers[layer].get(stage.degree, ())}
        name = stage.variants[layer]
        if name not in named:
            raise ValueError(f"layer {layer} has no variant {name!r} at degree {stage.degree}; it has {sorted(named)}")
        chosen[layer] = named[name]
    return chosen
