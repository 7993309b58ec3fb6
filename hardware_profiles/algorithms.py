"""Algorithms: latency and seconds per byte of a collective, by the way in which a library runs it.

The formulas are those by which NCCL chooses (src/graph/tuning.cc, 5067397c): n devices on N servers, `passes` rounds of a ring (2
of an all-reduce, 1 of a gather or a scatter), S bytes of a whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from hardware_profiles.fabrics import Operation

TREE_SHARE = 0.92
"""Share of the rate that a tree reaches: NCCL, src/graph/tuning.cc."""

PAT_SHARE, PAT_HOPS, PAT_SECONDS = 0.63, 1 / 3.5, 2.8e-6
"""Binomial gather: share of the rate (16 nodes of Leonardo: 7.7 of 12.2 GB/s), part of a step of Simple that a doubling
takes, and seconds per device (both NCCL, src/graph/tuning.cc)."""

IN_SWITCH_LEAST = 5
"""Devices of a server from which the library sums inside the switch: fewer gain nothing (NCCL; 8 H200 do, 4 H100 do not)."""


class CollectiveTime(NamedTuple):
    """Seconds of a collective = latency + seconds_per_byte * bytes of the whole tensor."""

    latency: float
    seconds_per_byte: float


class Steps(NamedTuple):
    """Seconds of the steps of one protocol on the links of some devices, and bytes/s of all rings together.

    base: per pass; inside, between: per step of a ring within a server, and between servers; *_tree: per step of a tree
    inside_rate, between_rate: of a ring's edges in the servers, and between them
    """

    base: float
    inside: float
    between: float
    inside_tree: float
    between_tree: float
    inside_rate: float
    between_rate: float

    @property
    def rate(self) -> float:
        """Bytes/s of the narrowest edge."""
        return min(self.inside_rate, self.between_rate)


def ring(operation: Operation, devices: int, servers: int, steps: Steps, own_part: float = 0.0) -> CollectiveTime:
    """A ring: passes (base + (n - N) inside + (N - 1) between) + passes (n - 1 + own part) / n S / rate; one server: N = 1."""
    crossing = servers - 1
    latency = steps.base + (devices - 1 - crossing) * steps.inside + crossing * steps.between
    moved = operation.passes * (devices - 1 + own_part) / devices
    return CollectiveTime(operation.passes * latency, moved / steps.rate)


class Side(NamedTuple):
    """A dimension of a grid: devices of a row, steps of a pass along it, seconds of each, bytes/s that a device sends."""

    devices: int
    steps: int
    step: float
    rate: float


def along(operation: Operation, order: Sequence[Side]) -> list[CollectiveTime]:
    """A tensor scattered along one side after the other, and gathered back: the time of each side.

    A side of k devices after h devices of those before: passes (steps step), passes (k - 1) / k S / h / rate.
    """
    found, held = [], 1
    for side in order:
        moved = operation.passes * (side.devices - 1) / side.devices / held
        found.append(CollectiveTime(operation.passes * side.steps * side.step, moved / side.rate))
        held *= side.devices
    return found


def at_once(orders: Sequence[Sequence[CollectiveTime]]) -> CollectiveTime:
    """Equal parts of a tensor at once, each along all sides in another order: in each turn all wait for the slowest."""
    turns = list(zip(*orders, strict=True))
    latency = sum(max(one.latency for one in turn) for turn in turns)
    return CollectiveTime(latency, sum(max(one.seconds_per_byte for one in turn) for turn in turns) / len(orders))


def tree(devices: int, servers: int, steps: Steps) -> CollectiveTime:
    """A tree all-reduce: 2 (base + (n / N - 1) inside + log2 N between); 2 S in a server, S between two and 2 S between more."""
    latency = steps.base + (devices / servers - 1) * steps.inside_tree + log2(servers) * steps.between_tree
    slowest = max(2.0 / steps.inside_rate, (1.0 if servers == 2 else 2.0) / steps.between_rate)
    return CollectiveTime(2.0 * latency, slowest / TREE_SHARE)


def in_switch(devices: int, base: float, rate: float) -> CollectiveTime:
    """An all-reduce in one server whose switch sums: each device sends S, and the n-th part of the sum that it fetched."""
    return CollectiveTime(base, (devices + 1) / devices / rate)


def in_switch_tree(servers: int, inside: CollectiveTime, steps: Steps) -> CollectiveTime:
    """An all-reduce that sums in the switch of each server, then over a tree of the servers."""
    between = (1.0 if servers == 2 else 2.0) / TREE_SHARE / steps.between_rate
    return CollectiveTime(
        inside.latency + 2.0 * log2(servers) * steps.between_tree, max(inside.seconds_per_byte, between)
    )


def binomial(devices: int, steps: Steps) -> CollectiveTime:
    """PAT, an all-gather or reduce-scatter with one device per server: base + log2 N hop / 3.5 + 2.8 us n."""
    latency = log2(devices) * steps.between * PAT_HOPS + devices * PAT_SECONDS
    return CollectiveTime(steps.base + latency, (devices - 1) / devices / (PAT_SHARE * steps.rate))
