"""PipeDream's dynamic program over unlike devices that stages take in a given order.

A pipeline takes its devices in that order, so that the first m of them tell which ones a stage has (symbols of SOSP 2019, section
3.1; B is the rate of the slowest links):

    A(0..j, m) = min over s, m' of  max( A(0..s, m - m'), 2 a_s / B, T(s+1..j, devices m - m' + 1..m) )
    T(i..j, D) = (1 / |D|) max( seconds of i..j on the slowest of D, all-reduce of W(i..j) over D at B )

Replicas take turns, so that all are as slow as the slowest. This is exact for pipelines that take devices in the order and use
all of them, at one rate of links; the caller chooses orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from planners.pipedream.dynamic_program import (
    BARRIER,
    RING,
    StateTotals,
    VersionMemory,
    copies_of,
    held_copies,
    stage_bytes,
    stage_seconds,
    synchronization_seconds,
)
from planners.pipedream.partitioner import LevelStage, MemoryLimit, totals_of, version_memory
from planners.pipedream.state_table import StateTable
from simulator import kernel


@dataclass(frozen=True, slots=True)
class OrderedDevices:
    """Devices in the order in which stages take them.

    kinds: the kind of each; bandwidth, collective_bandwidth: bytes per second of their slowest links, alone and in a ring
    """

    kinds: tuple[int, ...]
    bandwidth: float
    collective_bandwidth: float


class _Costs(NamedTuple):
    """Inputs of the kernel beside the network.

    seconds: of all states up to each one, on each device, [devices, states]; capacity: bytes of each device
    held: versions and copies that a stage keeps
    """

    seconds: Floats
    capacity: Floats
    held: VersionMemory
    bandwidth: float
    collective_bandwidth: float


def ordered_partition(
    tables: Sequence[StateTable],
    devices: OrderedDevices,
    memories: Sequence[MemoryLimit],
    *,
    barrier: bool = False,
    straight: bool = False,
) -> tuple[LevelStage, ...] | None:
    """The stages of the partition whose slowest stage is fastest, in their order; None where none fits.

    tables, memories: of each kind; barrier: replicas wait for each other's gradients; straight: no stage has two replicas
    """
    costs = _Costs(
        np.array([tables[kind].seconds for kind in devices.kinds]),
        np.array([memories[kind].capacity_bytes for kind in devices.kinds]),
        version_memory(memories[0], tested=True),
        devices.bandwidth,
        devices.collective_bandwidth,
    )
    most = 1 if straight else len(devices.kinds)
    best, before, replicas = _solved(totals_of(tables[0], RING), costs, BARRIER if barrier else RING, most)
    last, left = len(tables[0]) - 1, len(devices.kinds)
    if best[last, left] == np.inf:
        return None
    stages: list[LevelStage] = []
    while last >= 0:
        workers, start = int(replicas[last, left]), int(before[last, left]) + 1
        stages.append(LevelStage(start, last + 1, workers))
        last, left = start - 1, left - workers
    return tuple(reversed(stages))


@kernel(error_model="numpy")
def _solved(network: StateTotals, costs: _Costs, form: int, most: int) -> tuple[Floats, Integers, Integers]:
    """A(0..j, m), the last state before its last stage (-1: none), and that stage's replicas, each [states, devices + 1]."""
    count, states = costs.seconds.shape
    copies = copies_of(RING, count, costs.held)
    best = np.full((states, count + 1), np.inf)
    before = np.full((states, count + 1), -1)
    replicas = np.zeros((states, count + 1), dtype=np.int64)
    for last in range(states):
        for position in range(network.offsets[last] - 1, network.offsets[last + 1]):
            split = network.predecessors[position] if position >= network.offsets[last] else -1
            entry, stash, parameters = 0.0, network.stash_bytes[last], network.parameter_bytes[last]
            if split >= 0:
                entry = network.output_bytes[split]
                stash -= network.stash_bytes[split]
                parameters -= network.parameter_bytes[split]
            held = parameters + held_copies(network.copy_bytes, split + 1, last)
            sent = 2.0 * entry / costs.bandwidth
            for used in range(1, count + 1):
                compute, capacity = 0.0, np.inf
                for workers in range(1, min(used, most) + 1):
                    device = used - workers
                    own = costs.seconds[device, last] - (costs.seconds[device, split] if split >= 0 else 0.0)
                    compute, capacity = max(compute, own), min(capacity, costs.capacity[device])
                    if (split < 0) != (device == 0):
                        continue
                    rest = max(best[split, device], sent) if split >= 0 else 0.0
                    if rest >= best[last, used]:
                        continue
                    if stage_bytes(costs.held, copies, used, workers, stash, held, entry) > capacity:
                        continue
                    reduced = synchronization_seconds(RING, parameters, costs.collective_bandwidth, workers)
                    slowest = max(rest, stage_seconds(form, compute, reduced, workers))
                    if slowest < best[last, used]:
                        best[last, used], before[last, used], replicas[last, used] = slowest, split, workers
    return best, before, replicas
