"""Chains of layers with figures of one's own: small networks for tests of planners and schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from simulator import Layer, Workload


def chain(
    flop: Sequence[float],
    *,
    parameters: Sequence[int] | None = None,
    output_elements: Sequence[float] | None = None,
    stashed_elements: Sequence[float] | None = None,
    kind: str = "linear",
    name: str = "chain",
    minibatch: int = 1,
) -> Workload:
    """A chain of len(flop) layers, each array one figure a layer.

    flop: forward FLOP per sample; parameters: weight elements (None: 0); output_elements: elements per sample
    (None: 0); stashed_elements: elements per sample (None: as output_elements)
    """
    count = len(flop)
    outputs = [0.0] * count if output_elements is None else output_elements
    stashed = outputs if stashed_elements is None else stashed_elements
    layers = tuple(
        Layer(
            name=f"layer{index + 1}",
            kind=kind,
            flop=float(flop[index]),
            parameters=0 if parameters is None else int(parameters[index]),
            output_elements=float(outputs[index]),
            stashed_elements=float(stashed[index]),
        )
        for index in range(count)
    )
    return Workload(name, layers, tuple(pairwise(range(count))), "sample", minibatch)


def measured_chain(
    forward_seconds: Sequence[float],
    backward_seconds: Sequence[float],
    *,
    samples: float = 1.0,
    parameters: Sequence[int] | None = None,
    output_elements: Sequence[float] | None = None,
    bytes_per_element: int = 4,
    name: str = "measured-chain",
    minibatch: int = 1,
) -> Workload:
    """A chain whose layers carry times of `samples` samples instead of FLOP; other arguments as in `chain`."""
    count = len(forward_seconds)
    bare = chain([0.0] * count, parameters=parameters, output_elements=output_elements, name=name)
    layers = tuple(
        Layer(
            name=layer.name,
            kind=layer.kind,
            flop=0.0,
            parameters=layer.parameters,
            output_elements=layer.output_elements,
            stashed_elements=layer.stashed_elements,
            measured=((float(samples), float(forward), float(backward)),),
        )
        for layer, forward, backward in zip(bare.layers, forward_seconds, backward_seconds, strict=True)
    )
    return Workload(name, layers, bare.edges, "sample", minibatch, bytes_per_element)


def random_chain(
    layers: int,
    generator: np.random.Generator,
    *,
    flop: float = 1e9,
    parameters: int = 1_000_000,
    output_elements: float = 1e5,
    spread: float = 4.0,
    minibatch: int = 1,
) -> Workload:
    """A chain whose figures vary by up to `spread` times around the given ones, evenly on a log scale.

    Weights and outputs are whole numbers.
    """
    factors = spread ** generator.uniform(-1.0, 1.0, size=(3, layers))
    return chain(
        (flop * factors[0]).tolist(),
        parameters=np.rint(parameters * factors[1]).astype(np.int64).tolist(),
        output_elements=np.rint(output_elements * factors[2]).tolist(),
        name=f"random-chain-{layers}",
        minibatch=minibatch,
    )


def kept_bytes(layers: Iterable[Layer], width: int) -> float:
    """Bytes a sample that layers keep from forward to backward, at so many bytes an element."""
    return math.fsum(layer.stashed_elements * width + layer.stashed_bytes for layer in layers)
