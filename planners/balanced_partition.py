"""Balanced partition: where to cut a network so that the slowest stage is as fast as can be (BaPipe, arXiv 2012.12544).

Inter-layer: whole layers. Coarse-grained: whole layers, but no cut whose transfer takes too long. Intra-layer: a layer may be cut
by output channels; its two parts both read the layer's whole input and each makes its part of the output, so that a cut inside a
layer carries the whole input of the layer and the first part's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator import Layer, Workload

StageSeconds = Callable[[int, int, int], float]
"""(stage, first layer, end layer) -> seconds of these layers on the stage's device; never falls as layers are added."""

BISECTIONS = 40
"""Halvings of the interval that holds the least time of the slowest stage: 1e-12 of the first one."""

SPLITTABLE_KINDS = ("convolution", "linear")
"""Kinds of layer that may be cut by output channels."""


def ideal_stage_seconds(whole: Sequence[float]) -> float:
    """T* = 1 / sum of 1 / T_n: every stage's seconds if work could be divided at will.

    whole: T_n, seconds of the whole network on each accelerator
    """
    if min(whole) <= 0.0:
        return 0.0
    return 1.0 / sum(1.0 / seconds for seconds in whole)


def minimax_cuts(points: Sequence[int], stages: int, seconds: StageSeconds) -> list[int]:
    """Cuts, out of `points`, with the fastest slowest stage; stage after stage takes what it can within that time.

    points: layers before each place where the network may be cut, rising, from 0 to all layers; at least stages + 1
    Raises ValueError if there are fewer points.
    """
    if len(points) < stages + 1:
        raise ValueError(f"{stages} stages need at least {stages - 1} places to cut at, got {len(points) - 2}")
    low, high = 0.0, max(seconds(stage, points[0], points[-1]) for stage in range(stages))
    best = _filled(points, stages, seconds, high)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        found = _filled(points, stages, seconds, middle)
        if found is None:
            low = middle
        else:
            best, high = found, _slowest([points[0], *found, points[-1]], seconds)
        if high - low <= 1e-12 * high:
            break
    if best is None:
        raise ValueError("seconds of a stage must not fall as layers are added")
    return best


def _slowest(bounds: Sequence[int], seconds: StageSeconds) -> float:
    return max(seconds(stage, bounds[stage], bounds[stage + 1]) for stage in range(len(bounds) - 1))


def _filled(points: Sequence[int], stages: int, seconds: StageSeconds, limit: float) -> list[int] | None:
    """Cuts with which no stage exceeds `limit` seconds, or None if there are none."""
    cuts, start = [], 0
    for stage in range(stages):
        low, high = start + 1, len(points) - (stages - stage)
        if seconds(stage, points[start], points[low]) > limit:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if seconds(stage, points[start], points[middle]) <= limit:
                low = middle
            else:
                high = middle - 1
        cuts.append(points[low])
        start = low
    return cuts[:-1] if start == len(points) - 1 else None


def coarse_points(transfer_seconds: NDArray[np.float64], stages: int, allowed: float) -> list[int]:
    """Places to cut at: those whose transfer takes at most `allowed` seconds, or if these are too few the quickest ones.

    transfer_seconds: float64 [layers + 1], of the cut before each layer; the ends are no cuts and always kept
    """
    inside = range(1, len(transfer_seconds) - 1)
    kept = [cut for cut in inside if transfer_seconds[cut] <= allowed]
    if len(kept) < stages - 1:
        kept = sorted(sorted(inside, key=lambda cut: (transfer_seconds[cut], cut))[: stages - 1])
    return [0, *kept, len(transfer_seconds) - 1]


# ---- intra-layer -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayerCut:
    """A cut after `fraction` (0 < fraction <= 1) of layer `layer`; 1 is behind the layer."""

    layer: int
    fraction: float


def fractional_cuts(seconds: NDArray[np.float64], splittable: Sequence[bool]) -> list[LayerCut]:
    """Cuts that bring every stage to one time T, where layers that may be split permit.

    seconds: float64 [stages, layers], of each layer on each stage's device
    A layer that may not be split goes to the stage in which more than half of it would lie.
    """
    stages, layers = seconds.shape
    low, high = 0.0, float(seconds.sum(axis=1).max())
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        if _poured(seconds, middle)[1]:
            high = middle
        else:
            low = middle
    cuts = []
    for layer, fraction in _poured(seconds, high)[0][: stages - 1]:
        whole = not splittable[min(layer, layers - 1)]
        if fraction <= 1e-9 or (whole and fraction < 0.5):
            layer, fraction = layer - 1, 1.0
        elif whole or fraction >= 1.0 - 1e-9:
            fraction = 1.0
        cuts.append(LayerCut(layer, fraction))
    return _apart(cuts, layers)


def _poured(seconds: NDArray[np.float64], limit: float) -> tuple[list[tuple[int, float]], bool]:
    """Where each stage ends if it takes `limit` seconds: (layer, part of it that is done); and whether all is done."""
    stages, layers = seconds.shape
    ends, layer, done = [], 0, 0.0
    for stage in range(stages):
        left = limit
        while layer < layers:
            rest = float(seconds[stage, layer]) * (1.0 - done)
            if rest > left:
                done += left / float(seconds[stage, layer])
                break
            left -= rest
            layer, done = layer + 1, 0.0
        ends.append((layer, done))
    return ends, layer == layers


def _apart(cuts: list[LayerCut], layers: int) -> list[LayerCut]:
    """The cuts without doubles: every stage keeps at least part of a layer; ValueError if there are too few parts."""
    place = [0.0, *(cut.layer + cut.fraction for cut in cuts), float(layers)]
    for position in range(1, len(place) - 1):
        if place[position] <= place[position - 1]:
            place[position] = float(math.floor(place[position - 1]) + 1)
    for position in range(len(place) - 2, 0, -1):
        if place[position] >= place[position + 1]:
            place[position] = float(math.ceil(place[position + 1]) - 1)
    if any(second <= first for first, second in pairwise(place)):
        raise ValueError(f"{len(place) - 1} stages need as many layers or parts of layers, got {layers} layers")
    found = []
    for value in place[1:-1]:
        layer = math.ceil(value) - 1
        found.append(LayerCut(layer, value - layer))
    return found


def split_workload(workload: Workload, cuts: Sequence[LayerCut]) -> tuple[Workload, list[int]]:
    """The network with its split layers in parts, and the layers before each cut of it.

    A part has its share of the multiply-adds, weights and output; it reads the layer's whole input and keeps it for its backward,
    as the other part does. Raises ValueError for a layer of a kind that cannot be split, or a measured one.
    """
    parts: list[list[float]] = [[] for _ in workload.layers]
    for cut in cuts:
        if cut.fraction < 1.0:
            layer = workload.layers[cut.layer]
            if layer.kind not in SPLITTABLE_KINDS or layer.measured:
                raise ValueError(
                    f"layer {layer.name!r} cannot be split: only analytic layers of kind {', '.join(SPLITTABLE_KINDS)} can, "
                    f"this is {'measured' if layer.measured else layer.kind}"
                )
            parts[cut.layer].append(cut.fraction)
    layers: list[Layer] = []
    made: list[list[int]] = []
    for layer, ends in zip(workload.layers, parts, strict=True):
        bounds = [0.0, *ends, 1.0]
        made.append(list(range(len(layers), len(layers) + len(bounds) - 1)))
        before = 0
        for number, (begin, end) in enumerate(pairwise(bounds)):
            upto = layer.parameters if end == 1.0 else round(layer.parameters * end)
            layers.append(layer if not ends else _part(layer, number, end - begin, upto - before))
            before = upto
    edges = [(one, two) for first, second in workload.edges for one in made[first] for two in made[second]]
    positions = []
    for cut in cuts:
        held = made[cut.layer]
        number = len(held) if cut.fraction >= 1.0 else parts[cut.layer].index(cut.fraction) + 1
        positions.append(held[0] + number)
    name = workload.name if len(layers) == len(workload.layers) else f"{workload.name}-split"
    return replace(workload, name=name, layers=tuple(layers), edges=tuple(edges)), positions


def _part(layer: Layer, number: int, share: float, parameters: int) -> Layer:
    return replace(
        layer,
        name=f"{layer.name}#{number + 1}",
        flop=layer.flop * share,
        parameters=parameters,
        output_elements=layer.output_elements * share,
    )
