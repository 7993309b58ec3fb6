"""Fabrics: what a library's collectives take on links of a kind beside their bytes, and the rate that its protocols reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal

MICRO = 1e-6


class Operation(IntEnum):
    """A collective in which every device gives and receives parts of one tensor."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2

    @classmethod
    def of_gradients(cls, divided: bool) -> Operation:
        """The collective that replicas run on gradients: all-reduce, or reduce-scatter if they divide states (ZeRO)."""
        return cls.REDUCE_SCATTER if divided else cls.ALL_REDUCE

    @property
    def passes(self) -> int:
        """Passes of a ring: an all-reduce is a reduce-scatter and an all-gather; each of these takes one."""
        return 2 if self is Operation.ALL_REDUCE else 1


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol of a communication library: a trade of bandwidth for latency.

    share: of the rate of a collective; base: seconds per pass; hop: seconds per step of a ring; tree_hop: of a tree
    """

    name: str = ""
    share: float = 1.0
    base: float = 0.0
    hop: float = 0.0
    tree_hop: float = 0.0


@dataclass(frozen=True, slots=True)
class Fabric:
    """Constants of collectives over one kind of link.

    protocols: from the least latency to the highest rate
    sum_base: seconds of a sum inside the switch, beside its bytes
    own_part: by operation, the part of its own piece of the tensor that a device moves beside those of the others
    base_part: by operation, of the protocols' base
    """

    protocols: tuple[Protocol, ...]
    sum_base: float = 0.0
    own_part: tuple[float, float, float] = (0.0, 0.0, 0.0)
    base_part: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def protocol(self, operation: Operation, number: int) -> Protocol:
        """The protocol of that number, with the figures that it has for an operation."""
        found = self.protocols[number]
        return replace(found, base=found.base * self.base_part[operation])


_Three = tuple[float, float, float]


def _fabric(bases: _Three, hops: _Three, tree_hops: _Three | None = None, shares: _Three = (0.5, 0.92, 1.0)) -> Fabric:
    """A fabric of NCCL's protocols; microseconds; tree_hops: as `hops` where nothing else is known.

    The shares of NCCL: src/graph/tuning.cc, 5067397c, as what cites it below.
    """
    rows = zip(("LL", "LL128", "Simple"), shares, bases, hops, tree_hops or hops, strict=True)
    return Fabric(tuple(Protocol(name, share, *(one * MICRO for one in times)) for name, share, *times in rows))


def _nvlink(sum_base: float = 0.0, shares: _Three = (0.5, 0.92, 1.0), low: float = 25.0) -> Fabric:
    """NVLinks and their switch; low: the base of LL128.

    Hops: NCCL's, but that of LL (there 0.6), which 2 to 8 H100 tell. Bases (of LL, LL128 and Simple) and own parts: fitted to
    gathers (1.0 % on rows held out, from 16 MiB), scatters (5 %) and sums of 2 to 8 H100 (OpenXLA's performance table); twice
    those bases and nearly that own part were found in sums of 2 to 8 A100, too (VIA-Research/vTrain f8dda84).
    """
    own = _fabric((10.6, low, 53.0), (1.5, 1.9, 3.4), (0.6, 1.25, 4.0), shares)
    return replace(own, sum_base=sum_base * MICRO, own_part=(0.2, 1.0, 0.38), base_part=(1.0, 0.1, 1.0))


FabricName = Literal["nvlink-3", "nvlink-4", "nvlink-5", "pcie", "infiniband", "efa", "tcpx", "ethernet"]
"""Kinds of links whose constants are known."""

_NET_BASES = (6.6, 14.0, 8.4)
"""NCCL, src/graph/tuning.cc."""

FABRICS: Mapping[FabricName, Fabric] = {
    "nvlink-3": _nvlink(
        shares=(0.1, 0.87, 1.0), low=22.0
    ),  # shares: sums of 2 to 8 A100, vTrain f8dda84, and of 8 from 32 KiB
    "nvlink-4": _nvlink(sum_base=68.0),  # sums of 8 H200, from 4 MiB
    "nvlink-5": _nvlink(sum_base=96.0),  # sums of 8 B200, from 4 MiB
    "pcie": _fabric(_NET_BASES, (1.0, 2.5, 5.7), (1.0, 1.9, 6.0)),  # NCCL
    # NCCL's 4.0 and 14 a step and 1.5 of the card: gathers over 16 and 64 nodes of Leonardo within 12 %; 5.5 there for LL, too.
    "infiniband": _fabric(_NET_BASES, (5.5, 5.5, 15.5), (6.5, 10.0, 15.5)),
    # Sums of 32 B200 on 4 nodes, as 336 us + x + sqrt(336 us x) with x at 474 GB/s: three of its tangents, over six steps.
    "efa": _fabric(_NET_BASES, (41.0, 72.0, 175.0), (76.0, 152.0, 175.0), (0.42, 0.84, 1.0)),
    # Sums of 16 H100 on 2 nodes, as 166 us + x + sqrt(166 us x) with x at 341 GB/s: the same, over two steps.
    "tcpx": _fabric(_NET_BASES, (75.0, 125.0, 310.0), shares=(0.42, 0.84, 1.0)),
    "ethernet": _fabric(_NET_BASES, (30.0, 30.0, 50.0)),  # assumed: order of magnitude of TCP
}
