"""Intra-layer partition: stages that share a boundary layer by fractions (BaPipe, arXiv 2012.12544, step 3).

A layer is cut by output channels. Both parts read the layer's whole input, and each makes its share of the output: a cut inside a
layer sends the whole input of the layer and the first part's output downwards, and as many bytes of gradients upwards (the second
part's share of the input's gradient is a partial sum over its channels, as wide as the input). Weights are divided, and the input
is kept for the backward by both stages. This changes the network, so that it is an estimate beside the planner and no plan:
stages of a plan have whole layers, and no planner returns fractions. `split_workload` makes the network whose parts are layers,
and every planner, schedule and engine runs that as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hardware_profiles import StreamingAccelerator, Work, streaming
from planners.partitioning.minimax_cuts import filled_cuts
from simulator import Layer, LayerCosts, Problem, Workload

SPLITTABLE_KINDS = ("convolution", "linear")
"""Kinds of layer that may be cut by output channels."""


GRAIN = 16
"""Parts of a layer between which `streamed_fractions` may cut."""


def splittable_layers(workload: Workload) -> list[bool]:
    """Which layers may be cut: analytic ones of SPLITTABLE_KINDS whose weights no other layer uses."""
    tied = {layer for weight in workload.tied_weights() for layer in weight.layers}
    return [
        layer.kind in SPLITTABLE_KINDS and not layer.measured and number not in tied
        for number, layer in enumerate(workload.layers)
    ]


@dataclass(frozen=True, slots=True)
class LayerCut:
    """A cut after `fraction` (0 < fraction <= 1) of layer `layer`; 1 is behind the layer."""

    layer: int
    fraction: float


def split_workload(workload: Workload, cuts: Sequence[LayerCut]) -> tuple[Workload, list[int]]:
    """The network with its split layers in parts, and the layers before each cut of it.

    A part has its share of the multiply-adds, weights and output; it reads the layer's whole input and keeps it for its backward,
    as the other part does. Raises ValueError for a layer of a kind that cannot be split, or a measured one.
    """
    parts: list[list[float]] = [[] for _ in workload.layers]
    may = splittable_layers(workload)
    for cut in cuts:
        if cut.fraction < 1.0:
            layer = workload.layers[cut.layer]
            if not may[cut.layer]:
                raise ValueError(
                    f"layer {layer.name!r} cannot be split: only analytic layers of kind {', '.join(SPLITTABLE_KINDS)} "
                    f"with weights of their own can, "
                    f"this is {'measured' if layer.measured else layer.kind if layer.kind not in SPLITTABLE_KINDS else 'tied'}"
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


# ---- boards that stream ----------------------------------------------------------------------------------------------


def streamed_fractions(problem: Problem, devices: Sequence[int], samples: int) -> list[LayerCut]:
    """Cuts at GRAIN parts per layer for boards whose layers work at the same time, filled by the boards' own stage seconds.

    devices: of each stage; samples: of a micro-batch. Raises ValueError unless every device streams the problem's layers.
    """
    costs = LayerCosts(problem)
    boards: list[StreamingAccelerator] = []
    for device in devices:
        board = problem.cluster.devices[device]
        if not (streaming(board) and costs.streams(device)):
            raise ValueError(
                f"device {device} ({board.name}) does not stream layers; fractions are for FPGAs and analytic layers"
            )
        boards.append(board)
    points = [0]
    for number, may in enumerate(splittable_layers(problem.workload)):
        points.extend(range(number * GRAIN + 1, (number + 1) * GRAIN) if may else ())
        points.append((number + 1) * GRAIN)

    def seconds(stage: int, begin: int, end: int) -> float:
        works = _works_between(costs.works, begin, end)
        board = boards[stage]
        forward = board.stage_seconds(works, samples, "forward", problem.precision)
        return forward + board.stage_seconds(works, samples, "backward", problem.precision)

    cuts = filled_cuts(points, len(devices), seconds)
    return [LayerCut((cut - 1) // GRAIN, ((cut - 1) % GRAIN + 1) / GRAIN) for cut in cuts]


def _works_between(works: Sequence[Work], begin: int, end: int) -> list[Work]:
    """The works of the parts [begin, end), counted in GRAIN parts a layer; a layer's parts are one."""
    found = []
    for number in range(begin // GRAIN, -(-end // GRAIN)):
        share = (min(end, (number + 1) * GRAIN) - max(begin, number * GRAIN)) / GRAIN
        work = works[number]
        found.append(
            work
            if share == 1.0
            else replace(
                work,
                flop=work.flop * share,
                output_elements=work.output_elements * share,
                parameters=work.parameters * share,
            )
        )
    return found
