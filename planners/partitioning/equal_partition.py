"""Equal partition: the fastest GPipe with one micro-batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hardware_profiles import Integers
from planners.partitioning.fastest_cuts import fastest_cuts, least_seconds
from planners.partitioning.partition_costs import every_cuts, makespans, straight_costs
from simulator import LayerCosts

MOST_PARTITIONS = 20_000
"""Partitions, at most, that `equal_partition` tries one by one."""


EQUAL_SLACK = 0.02
"""Share by which a partition may be slower with equal micro-batches and still be tried with a smaller last one."""


def equal_partition(
    costs: LayerCosts, devices: Sequence[int], sizes: Sequence[int], spare: Sequence[float] = ()
) -> tuple[float, tuple[int, ...], int] | None:
    """The fastest GPipe pipeline with one micro-batch size, as (seconds, cuts, size), without the update; None where none fits.

    devices: of each stage; sizes: to choose from, in samples; the last micro-batch takes what is left; spare: as of
    `straight_costs`
    For every size all partitions are tried, or, where they are more than MOST_PARTITIONS, those that `fastest_cuts` finds within
    EQUAL_SLACK: for a size that divides the batch, the fastest.
    """
    layers = len(costs.problem.workload)
    every: Integers | None = None
    if math.comb(layers - 1, len(devices) - 1) <= MOST_PARTITIONS:
        every = every_cuts(layers, len(devices))
    held = [costs.problem.batch] * len(devices)
    tables = {size: straight_costs(costs, devices, size, in_flight=held, spare=spare) for size in sizes}
    bounds = {size: least_seconds(table, costs.problem.batch // size) for size, table in tables.items()}
    best: tuple[float, tuple[int, ...], int] | None = None
    for size in sorted(bounds, key=lambda size: (bounds[size], size)):
        if bounds[size] == math.inf or (best is not None and bounds[size] >= best[0]):
            break
        whole, rest = divmod(costs.problem.batch, size)
        last = straight_costs(costs, devices, rest) if rest else None
        cuts = every
        if cuts is None:
            front = fastest_cuts(tables[size], whole + (rest > 0), slack=EQUAL_SLACK if rest else 0.0)
            cuts = np.array([one for _, one in front], dtype=np.int64).reshape(len(front), len(devices) - 1)
        seconds = makespans(tables[size], cuts, whole, last)
        first = int(seconds.argmin())
        if seconds[first] < (math.inf if best is None else best[0]):
            best = float(seconds[first]), tuple(cuts[first].tolist()), size
    return best
