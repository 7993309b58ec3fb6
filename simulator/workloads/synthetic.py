"""Synthetic: a chain of equal layers, for studies of planners and schedules."""

from __future__ import annotations

from itertools import pairwise

from simulator.workloads.layers import Layer, Workload


def uniform_chain(layers: int) -> Workload:
    """A chain of `layers` equal layers: 1 GFLOP, a million weights, 100,000 output elements, kept for the backward.

    Raises ValueError for fewer than one layer.
    """
    made = tuple(Layer(f"layer{number + 1}", "linear", 1e9, 1_000_000, 1e5, 1e5) for number in range(layers))
    return Workload(f"chain-{layers}", made, tuple(pairwise(range(layers))))
