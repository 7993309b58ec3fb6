"""Graph files: the inputs of dnn-partitioning (Tarnawski et al., NeurIPS 2020) as placement problems.

A file is one JSON object; its `README.md` names the fields. Nodes of one colour class stay together: they are a unit. Only edges
between forward nodes order units, as data flow back over the same devices; a class of backward nodes alone is ordered by its
edges, turned round; classes that stand before each other are one unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from experiments.studies.public_inputs import Amount, NodeNumber, check_graph
from planners import DeviceClass, Output, PlacementProblem

_Count = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
_Truth = bool | Annotated[int, msgspec.Meta(ge=0, le=1)]


class GraphNode(msgspec.Struct, frozen=True):
    """A layer or operator, its seconds (in the file's unit) on a core of the host and on an accelerator, and its bytes there."""

    id: NodeNumber
    supported: _Truth = msgspec.field(name="supportedOnFpga")
    host_seconds: Amount = msgspec.field(name="cpuLatency")
    seconds: Amount = msgspec.field(name="fpgaLatency")
    backward: _Truth = msgspec.field(name="isBackwardNode")
    size: Amount = 0.0
    color: NodeNumber | None = msgspec.field(name="colorClass", default=None)


class GraphEdge(msgspec.Struct, frozen=True):
    """What one node sends another, and its seconds between an accelerator and the host's memory."""

    source: NodeNumber = msgspec.field(name="sourceId")
    reader: NodeNumber = msgspec.field(name="destId")
    cost: Amount


class OperatorGraph(msgspec.Struct, frozen=True):
    """A file: the graph, and the devices that it is for."""

    memory_bytes: Amount = msgspec.field(name="maxSizePerFPGA")
    accelerators: _Count = msgspec.field(name="maxFPGAs")
    host_cores: _Count = msgspec.field(name="maxCPUs")
    nodes: Annotated[tuple[GraphNode, ...], msgspec.Meta(min_length=1)]
    edges: tuple[GraphEdge, ...]

    def __post_init__(self) -> None:
        check_graph((node.id for node in self.nodes), ((edge.source, edge.reader) for edge in self.edges))
        if not self.accelerators + self.host_cores:
            raise ValueError("there must be a device, got maxFPGAs 0 and maxCPUs 0")

    def problem(self, rule: str, host_cores: int) -> PlacementProblem:
        """The graph's units on its accelerators and so many cores of the host, in the file's order of first nodes."""
        unit_of, count = self._units()
        works = {name: np.zeros(count) for name in ("host_seconds", "seconds", "size")}
        for node in self.nodes:
            for name, sums in works.items():
                sums[unit_of[node.id]] += getattr(node, name)
            if not node.supported:
                works["seconds"][unit_of[node.id]] = np.inf
        sent: dict[int, tuple[list[int], float]] = {}
        for edge in self.edges:
            sent.setdefault(edge.source, ([], edge.cost))[0].append(unit_of[edge.reader])
        outputs = (Output(unit_of[node], tuple(dict.fromkeys(to)), cost) for node, (to, cost) in sent.items())
        classes = []
        if self.accelerators:
            classes.append(DeviceClass(self.accelerators, works["seconds"], self.memory_bytes))
        if host_cores:
            classes.append(DeviceClass(host_cores, works["host_seconds"], pays_transfers=False))
        edges = dict.fromkeys((unit_of[a], unit_of[b]) for a, b in self._orders())
        return PlacementProblem(
            edges=tuple((a, b) for a, b in edges if a != b),
            outputs=tuple(outputs),
            classes=tuple(classes),
            held_bytes=works["size"],
            flight_bytes=np.zeros(count),
            rule=rule,
        )

    def _colors(self) -> dict[int, Any]:
        """What each node shares with those that it stays with."""
        return {node.id: ("alone", node.id) if node.color is None else node.color for node in self.nodes}

    def _orders(self) -> list[tuple[int, int]]:
        """Pairs of nodes whose units stand in this order."""
        colors = self._colors()
        backward = {node.id for node in self.nodes if node.backward}
        ahead = {colors[node.id] for node in self.nodes if not node.backward}
        pairs = []
        for edge in self.edges:
            both = edge.source in backward, edge.reader in backward
            if both == (False, False):
                pairs.append((edge.source, edge.reader))
            elif both == (True, True) and not {colors[edge.source], colors[edge.reader]} <= ahead:
                pairs.append((edge.reader, edge.source))
        return pairs

    def _units(self) -> tuple[dict[int, int], int]:
        """The unit of each node, and how many there are: colour classes, those that stand before each other joined."""
        colors = self._colors()
        names = list(dict.fromkeys(colors.values()))
        number = {color: index for index, color in enumerate(names)}
        reach = _reachable(len(names), [(number[colors[a]], number[colors[b]]) for a, b in self._orders()])
        first = [
            next(other for other in range(len(names)) if reach[one] >> other & reach[other] >> one & 1)
            for one in range(len(names))
        ]
        unit = {index: place for place, index in enumerate(dict.fromkeys(first))}
        return {node: unit[first[number[color]]] for node, color in colors.items()}, len(unit)


def _reachable(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """A bit mask per vertex: itself and all that edges lead to from it."""
    reach = [1 << vertex for vertex in range(count)]
    changed = True
    while changed:
        changed = False
        for before, behind in edges:
            more = reach[before] | reach[behind]
            if more != reach[before]:
                reach[before], changed = more, True
    return reach
