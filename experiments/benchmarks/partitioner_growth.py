"""Partitioner growth: CPU seconds of searches over synthetic networks of rising size."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from experiments.benchmarks.timing import least_seconds, peak_bytes
from experiments.terminal.output import tracked
from planners import StateTable, network_levels, notation, partition, state_table
from simulator import Layer, Workload

BANDWIDTHS = (
    30e9,
    12e9,
    1.25e9,
    1.25e9,
    1.25e9,
    1.25e9,
)  # of a cluster's levels, lowest first; of up to three levels those up to the slowest
REPEATS = 3


def random_chain(count: int, seed: int = 0) -> Workload:
    """A chain of `count` layers with random seconds, weights and tensors of a convolutional network's size."""
    rng = np.random.default_rng(seed)
    layers = tuple(_layer(f"layer{i}", rng) for i in range(count))
    return Workload(f"chain{count}", layers, tuple((i, i + 1) for i in range(count - 1)), minibatch=1)


def inception_like(layers_per_convolution: int = 1, seed: int = 0) -> Workload:
    """A graph with the branches of Inception-v3: its modules A, B, C, D and E, as counts of convolutions per branch.

    layers_per_convolution: 1 takes a convolution, its normalisation and activation as one layer, 3 as three
    """
    rng = np.random.default_rng(seed)
    layers: list[Layer] = []
    edges: list[tuple[int, int]] = []

    def add(*producers: int) -> int:
        layers.append(_layer(f"layer{len(layers)}", rng))
        edges.extend((producer, len(layers) - 1) for producer in producers)
        return len(layers) - 1

    def convolutions(count: int, producer: int) -> int:
        for _ in range(count * layers_per_convolution):
            producer = add(producer)
        return producer

    def branches(counts: Sequence[int], pooled: int, start: int) -> list[int]:
        return [*(convolutions(count, start) for count in counts), convolutions(pooled, add(start))]

    end = convolutions(4, add())
    for counts, pooled, times in (((1, 2, 3), 1, 3), ((1, 3), 0, 1), ((1, 3, 5), 1, 4), ((2, 4), 0, 1)):
        for _ in range(times):
            end = add(*branches(counts, pooled, end))
    for _ in range(2):  # module E: two of its branches fork again
        forks = [convolutions(1, stem) for stem in (convolutions(1, end), convolutions(2, end)) for _ in range(2)]
        end = add(*forks, *branches((1,), 1, end))
    convolutions(1, add(end))
    return Workload(f"inception-like-{layers_per_convolution}", tuple(layers), tuple(sorted(edges)), minibatch=1)


def _layer(name: str, rng: np.random.Generator) -> Layer:
    elements = float(rng.integers(100_000, 5_000_000))
    seconds = float(rng.uniform(0.5e-3, 5e-3))
    return Layer(
        name,
        "linear",
        0.0,
        int(rng.integers(1_000, 3_000_000)),
        elements,
        elements,
        1,
        ((1, seconds / 3, seconds * 2 / 3),),
    )


def _table(workload: Workload) -> StateTable:
    seconds = np.array([sum(layer.measured[0][1:]) for layer in workload.layers])
    return state_table(workload, seconds)


def _row(study: str, workload: Workload, workers: Sequence[int], variant: str) -> dict[str, Any]:
    table, table_seconds = least_seconds(lambda: _table(workload))
    levels = network_levels(workers, BANDWIDTHS[max(0, 3 - len(workers)) :][: len(workers)])
    found, seconds = least_seconds(lambda: partition(table, levels, variant=variant), calls=REPEATS)
    return {
        "study": study,
        "network": workload.name,
        "states": len(table),
        "workers_per_level": list(workers),
        "shape": shape(workers),
        "workers": prod(workers),
        "levels": len(workers),
        "variant": variant,
        "table_cpu_seconds": table_seconds,
        "search_cpu_seconds": seconds,
        "plan": notation(found),
        "peak_memory_bytes": peak_bytes(),
    }


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Records of all studies, one per search. quick: only the small ones of each."""
    small = random_chain(4)
    for variant in ("paper", "script"):
        partition(_table(small), network_levels((2, 2), BANDWIDTHS[:2]), variant=variant)  # compiles
    states = (25, 50, 100) if quick else (25, 50, 100, 200, 400, 800, 1600)
    workers = (4, 16) if quick else (4, 16, 64, 256, 1024)
    levels = ((64,), (8, 8)) if quick else ((64,), (8, 8), (4, 4, 4), (2, 2, 2, 2, 2, 2))
    graphs = (1,) if quick else (1, 2)
    searches: list[tuple[str, Workload, tuple[int, ...], str]] = []
    for variant in ("paper", "script"):
        searches += [("states, flat", random_chain(count), (16,), variant) for count in states]
        searches += [("states, two levels", random_chain(count), (4, 4), variant) for count in states if count <= 800]
        searches += [("workers, flat", random_chain(100), (count,), variant) for count in workers]
        searches += [("levels", random_chain(100 if quick else 240), shape, variant) for shape in levels]
        searches += [("graph", inception_like(count), (8,), variant) for count in graphs]
    return [_row(*search) for search in tracked("searching", searches, lambda search: search[0])]


def growth_exponents(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Study and form -> the power with which CPU seconds grow at the largest sizes."""
    return {
        f"{study}, {variant}": growth_exponent(
            [row for row in rows if (row["study"], row["variant"]) == (study, variant)], axis
        )
        for study, axis in (("states, flat", "states"), ("states, two levels", "states"), ("workers, flat", "workers"))
        for variant in ("paper", "script")
    }


def growth_exponent(rows: Sequence[dict[str, Any]], axis: str) -> float:
    """Slope of log(search CPU seconds) over log(axis) between the two largest entries of a study."""
    (low, high) = sorted(rows, key=lambda row: row[axis])[-2:]
    ratio = np.log(high["search_cpu_seconds"] / low["search_cpu_seconds"]) / np.log(high[axis] / low[axis])
    return float(ratio)


def shape(workers: Sequence[int]) -> str:
    """Workers per level as 8×8; equal ones of many levels as a power."""
    if len(workers) > 3 and len(set(workers)) == 1:
        return f"{workers[0]}^{len(workers)}"
    return "×".join(map(str, workers))
