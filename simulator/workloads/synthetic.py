"""Synthetic: a chain of equal layers, for studies of planners and schedules."""

from __future__ import annotations

from itertools import pairwise

from hardware_profiles import check_whole
from simulator.workloads.layers import Layer, Workload

LONGEST_CHAIN = 100_000
"""Layers of a chain at most."""


def uniform_chain(layers: int) -> Workload:
    """A chain of `layers` equal layers: 1 GFLOP, a million weights, 100,000 output elements, kept for the backward.

    Raises ValueError for fewer than one layer, or more than LONGEST_CHAIN.
    """
    check_whole("layers of a chain", layers, 0, LONGEST_CHAIN)
    made = tuple(Layer(f"layer{number + 1}", "linear", 1e9, 1_000_000, 1e5, 1e5) for number in range(layers))
    return Workload(f"chain-{layers}", made, tuple(pairwise(range(layers))))
