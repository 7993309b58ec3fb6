"""Layer splits: a layer that neighbouring stages share by output channels, as a network that has its parts for layers.

A layer is cut by output channels (BaPipe, arXiv 2012.12544, step 3). Each part reads the layer's whole input and makes its share
of the output: FLOP, weights, output and measured seconds are divided; what the layer keeps for its backward, its input, each part
keeps. So a cut inside a layer carries the layer's whole input and what the parts before it made, and gradients of as many bytes
come back: of the input each part makes a sum over its own channels, as wide as the input. A sum of an output keeps its length,
which is what a board's rate depends on; a part fills the tiles of a GPU, and reaches its measured rate, as the whole layer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from hardware_profiles import Bounds, check_fields
from simulator.workloads.layers import Layer, Workload

SPLITTABLE_KINDS = ("convolution", "linear")
"""Kinds of layer that have output channels of their own."""


@dataclass(frozen=True, slots=True, order=True)
class LayerSplit:
    """A cut inside a layer, between two stages that share it.

    layer: index into the workload's layers
    fraction: of its output channels, those that this stage and the stages before it make
    """

    layer: Annotated[int, Bounds(ge=0, le=10**9)]
    fraction: Annotated[float, Bounds(gt=0, lt=1)]

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        return f"layer {self.layer} at {self.fraction:g}"


def splittable_layers(workload: Workload) -> list[bool]:
    """Which layers may be split: products with weights of their own, but for those of attention heads or routed experts."""
    tied = {layer for weight in workload.tied_weights() for layer in weight.layers}
    return [
        layer.kind in SPLITTABLE_KINDS
        and layer.parameters > 0
        and number not in tied
        and not (layer.heads or layer.experts)
        for number, layer in enumerate(workload.layers)
    ]


def split_workload(workload: Workload, splits: Sequence[LayerSplit]) -> Workload:
    """The network with the parts of split layers in their places.

    Raises ValueError for splits that are not by rising layer and fraction, and for a layer that cannot be split.
    """
    may = splittable_layers(workload)
    for number, split in enumerate(splits):
        if split.layer >= len(workload):
            raise ValueError(f"split of layer {split.layer}: the workload has layers 0 to {len(workload) - 1}")
        if number and split <= splits[number - 1]:
            raise ValueError(f"splits must be by rising layer and fraction, got {split} after {splits[number - 1]}")
        if not may[split.layer]:
            raise ValueError(
                f"layer {split.layer} ({workload.layers[split.layer].name}) cannot be split: layers of kind "
                f"{' and '.join(SPLITTABLE_KINDS)} can, with weights of their own, not of attention heads or experts; "
                f"this is {_why_whole(workload.layers[split.layer])}"
            )
    ends, inputs = ends_of(splits), workload.input_elements().tolist()
    layers: list[Layer] = []
    made: list[range] = []
    for number, layer in enumerate(workload.layers):
        bounds = (0.0, *ends.get(number, ()), 1.0)
        made.append(range(len(layers), len(layers) + len(bounds) - 1))
        layers += [layer] if len(bounds) == 2 else _parts(layer, bounds, inputs[number])
    edges = [(one, two) for first, second in workload.edges for one in made[first] for two in made[second]]
    return replace(workload, layers=tuple(layers), edges=tuple(edges))


def ends_of(splits: Sequence[LayerSplit]) -> dict[int, tuple[float, ...]]:
    """The fractions at which each split layer is cut, as they come."""
    found: dict[int, tuple[float, ...]] = {}
    for split in splits:
        found[split.layer] = (*found.get(split.layer, ()), split.fraction)
    return found


def _why_whole(layer: Layer) -> str:
    if layer.kind not in SPLITTABLE_KINDS:
        return layer.kind
    if not layer.parameters:
        return "one without weights"
    return "of attention heads" if layer.heads else "of routed experts" if layer.experts else "tied"


def _parts(layer: Layer, bounds: Sequence[float], inputs: float) -> list[Layer]:
    """The parts of a layer between fractions of its output channels; its weights are divided in whole elements.

    inputs: elements per sample that it reads: a part behind the first keeps them, whatever a layer before it keeps elsewhere
    Raises ValueError for a part without weights.
    """

    def whole(count: int, begin: float, end: float) -> int:
        return round(count * end) - round(count * begin)

    counts = [whole(layer.parameters, *ends) for ends in pairwise(bounds)]
    if not all(counts):
        raise ValueError(
            f"layer {layer.name!r} has {layer.parameters} weights: a part of it between fractions {bounds} has none"
        )
    return [
        replace(
            layer,
            name=f"{layer.name}#{number}",
            flop=layer.flop * (end - begin),
            parameters=counts[number - 1],
            undivided=min(whole(layer.undivided, begin, end), counts[number - 1]),
            output_elements=layer.output_elements * (end - begin),
            stashed_elements=layer.stashed_elements if number == 1 else max(layer.stashed_elements, inputs),
            scratch_elements=layer.scratch_elements * (end - begin),
            key_values=layer.key_values * (end - begin),
            measured=tuple((samples, (end - begin) * one, (end - begin) * two) for samples, one, two in layer.measured),
        )
        for number, (begin, end) in enumerate(pairwise(bounds), 1)
    ]
