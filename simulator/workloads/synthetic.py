"""Synthetic: chains of layers with figures of one's own, for studies of planners and schedules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.workloads.layers import Layer, Workload


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

    flop: forward FLOP a sample; parameters: weight elements (None: 0); output_elements: elements a sample
    (None: 0); stashed_elements: elements a sample (None: as output_elements)

    Raises ValueError if the lengths differ or a figure is out of range.
    """
    count = len(flop)
    columns = {
        "parameters": parameters,
        "output_elements": output_elements,
        "stashed_elements": stashed_elements,
    }
    for column, values in columns.items():
        if values is not None and len(values) != count:
            raise ValueError(f"chain {column} must have one figure a layer ({count}), got {len(values)}")
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
    return Workload(name, layers, _links(count), "sample", minibatch)


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
    """A chain whose layers carry times of `samples` samples instead of FLOP; other arguments as in `chain`.

    Raises ValueError if the lengths differ or a figure is out of range.
    """
    count = len(forward_seconds)
    if len(backward_seconds) != count:
        raise ValueError(f"chain backward_seconds must have one figure a layer ({count}), got {len(backward_seconds)}")
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


def uniform_chain(
    layers: int,
    *,
    flop: float = 1e9,
    parameters: int = 1_000_000,
    output_elements: float = 1e5,
    minibatch: int = 1,
) -> Workload:
    """A chain of `layers` equal layers: 1 GFLOP, a million weights, 100,000 output elements unless given.

    Raises ValueError for fewer than one layer.
    """
    _check_layers(layers)
    return chain(
        [flop] * layers,
        parameters=[parameters] * layers,
        output_elements=[output_elements] * layers,
        name=f"chain-{layers}",
        minibatch=minibatch,
    )


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

    Weights and outputs are whole numbers. Raises ValueError for fewer than one layer or a spread below 1.
    """
    _check_layers(layers)
    if not spread >= 1:
        raise ValueError(f"chain spread must be at least 1, got {spread}")
    factors = spread ** generator.uniform(-1.0, 1.0, size=(3, layers))
    return chain(
        (flop * factors[0]).tolist(),
        parameters=np.rint(parameters * factors[1]).astype(np.int64).tolist(),
        output_elements=np.rint(output_elements * factors[2]).tolist(),
        name=f"random-chain-{layers}",
        minibatch=minibatch,
    )


def _check_layers(layers: int) -> None:
    if layers < 1:
        raise ValueError(f"chain layers must be at least 1, got {layers}")


def _links(count: int) -> tuple[tuple[int, int], ...]:
    return tuple((index, index + 1) for index in range(count - 1))
