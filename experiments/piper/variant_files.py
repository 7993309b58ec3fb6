"""Variant files: the inputs of Piper (Tarnawski et al., NeurIPS 2021) as problems of layers with variants.

A file is one JSON object; the `README.md` of msr-fiddle/piper names the fields, and calls a variant a TMPC. Node numbers are in
no order that means something.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from experiments.piper.variant_problem import LayerVariant, VariantProblem
from experiments.studies.public_inputs import Amount, Count, NodeNumber, PositiveAmount, check_graph


class FileVariant(msgspec.Struct, frozen=True):
    """A way to run a node on a tensor-parallel group; bytes that a group adds to an edge by the node at its other end."""

    id: str
    seconds: Amount = msgspec.field(name="timePerSample")
    weight_bytes: Amount = msgspec.field(name="parameterSize")
    flight_bytes: Amount = msgspec.field(name="memoryUsageA")
    held_bytes: Amount = msgspec.field(name="memoryUsageB")
    received_bytes: dict[NodeNumber, Amount] = msgspec.field(name="syncTimeFw")
    sent_bytes: dict[NodeNumber, Amount] = msgspec.field(name="syncTimeBw")


class FileNode(msgspec.Struct, frozen=True):
    """A layer: its variants by tensor-parallel degree."""

    id: NodeNumber
    variants: dict[Count, tuple[FileVariant, ...]] = msgspec.field(name="TMPCs")


class FileEdge(msgspec.Struct, frozen=True):
    """What one node sends another."""

    source: NodeNumber = msgspec.field(name="sourceId")
    reader: NodeNumber = msgspec.field(name="destId")
    bytes: Amount = msgspec.field(name="communicationCost")


class VariantFile(msgspec.Struct, frozen=True):
    """A file: the network, and the devices that it is for unless others are asked for."""

    devices: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = msgspec.field(name="maxDevices")
    memory_bytes: PositiveAmount = msgspec.field(name="maxMemoryPerDevice")
    bandwidth: PositiveAmount
    microbatches: Count = msgspec.field(name="mbsInBatch")
    nodes: Annotated[tuple[FileNode, ...], msgspec.Meta(min_length=1)]
    edges: tuple[FileEdge, ...]

    def __post_init__(self) -> None:
        check_graph((node.id for node in self.nodes), ((edge.source, edge.reader) for edge in self.edges))
        for node in self.nodes:
            if not any(node.variants.values()):
                raise ValueError(f"node {node.id} must have a variant")
            for degree, variants in node.variants.items():
                if len({one.id for one in variants}) < len(variants):
                    raise ValueError(f"variants of node {node.id} at degree {degree} must have different ids")
        if len({(edge.source, edge.reader) for edge in self.edges}) < len(self.edges):
            raise ValueError("edges must be between different pairs of nodes")

    def problem(self, devices: int, memory_bytes: float, bandwidth: float, microbatches: int) -> VariantProblem:
        """The network on so many devices; its layers are the file's nodes in their order."""
        number = {node.id: index for index, node in enumerate(self.nodes)}

        def renumbered(amounts: dict[int, float]) -> dict[int, float]:
            return {number[node]: amount for node, amount in amounts.items() if node in number}

        layers = tuple(
            {
                degree: tuple(
                    LayerVariant(
                        one.id,
                        one.seconds,
                        one.weight_bytes,
                        one.flight_bytes,
                        one.held_bytes,
                        renumbered(one.received_bytes),
                        renumbered(one.sent_bytes),
                    )
                    for one in variants
                )
                for degree, variants in node.variants.items()
            }
            for node in self.nodes
        )
        edges = {(number[edge.source], number[edge.reader]): edge.bytes for edge in self.edges}
        return VariantProblem(layers, edges, devices, memory_bytes, bandwidth, microbatches)
