"""Wiring: the cables by which a topology joins nodes without a switch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import prod

Sides = Sequence[int]
"""Nodes along each dimension of a grid; the places of nodes rise along the last one first."""


def rows(sides: Sides) -> list[list[list[int]]]:
    """For each dimension of a grid its rows: the places of nodes that differ along it alone."""
    strides = [prod(sides[dimension + 1 :]) for dimension in range(len(sides))]
    return [
        [
            list(range(first, first + side * stride, stride))
            for first in range(prod(sides))
            if first // stride % side == 0
        ]
        for side, stride in zip(sides, strides, strict=True)
    ]


def steps(row: Sequence[int], closed: bool) -> list[tuple[int, int]]:
    """Neighbours along a row; a closed one of more than two has its last and its first, too."""
    return [*pairwise(row), *([(row[-1], row[0])] if closed and len(row) > 2 else [])]


def cables(topology: str, nodes: Sequence[str], sides: Sides | None) -> list[tuple[str, str]]:
    """The pairs of nodes that cables join.

    topology: `full` is a cable per pair, `ring` and `chain` go through all nodes, rows of a `torus` close, of a `mesh` do not
    sides: of a torus or a mesh, whose product is the number of nodes
    """
    if topology == "full":
        return list(combinations(nodes, 2))
    closed = topology in ("ring", "torus")
    pairs = [pair for dimension in rows(sides or [len(nodes)]) for row in dimension for pair in steps(row, closed)]
    return [(nodes[one], nodes[other]) for one, other in pairs]


def most_cables(topology: str, nodes: int, sides: Sides | None) -> int:
    """How many cables there are at most, with those to a switch."""
    return nodes * (nodes - 1) // 2 if topology == "full" else nodes * max(2, len(sides or ()))
