"""Grids: the torus or the mesh that the cables of some nodes are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from hardware_profiles.wiring import rows, steps

MOST_DIMENSIONS = 6
"""Dimensions of a grid at most; a node has two cables for each."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Nodes in a torus or a mesh: along each dimension how many, and whether its rows close to rings.

    Nodes are named by their places, which rise along the last dimension first.
    """

    sides: tuple[int, ...]
    closed: tuple[bool, ...]

    def rows(self) -> list[list[list[int]]]:
        """The rows of each dimension."""
        return rows(self.sides)

    def hops(self) -> list[list[tuple[int, int]]]:
        """Of each dimension the neighbours along its rows, both ways."""
        forth = [
            [pair for row in those for pair in steps(row, closed)]
            for those, closed in zip(self.rows(), self.closed, strict=True)
        ]
        return [pairs + [pair[::-1] for pair in pairs] for pairs in forth]

    def path(self, source: int, destination: int) -> list[int]:
        """The shortest way, along one dimension after the other; half round a ring forwards from even places, else backwards."""
        path = [source]
        for dimension, (side, closed) in enumerate(zip(self.sides, self.closed, strict=True)):
            stride = prod(self.sides[dimension + 1 :])
            here, there = source // stride % side, destination // stride % side
            ahead = (there - here) % side
            forward = there > here if not closed else (ahead, here % 2) < (side - ahead, 1)
            for _ in range(abs(there - here) if not closed else min(ahead, side - ahead)):
                after = (here + (1 if forward else -1)) % side
                path.append(path[-1] + (after - here) * stride)
                here = after
        return path


def find_grid(nodes: Sequence[str], cabled: Mapping[str, set[str]]) -> Grid | None:
    """The grid whose cables are all those among some nodes in this order; None if there is none.

    cabled: nodes at the other ends of each node's cables. A line and a ring are grids of one dimension.
    """
    if len(nodes) < 2 or nodes[0] not in cabled:
        return None
    places = {node: place for place, node in enumerate(nodes)}
    joined = {
        (place, places[other]) for node, place in places.items() for other in cabled.get(node, ()) if other in places
    } - {(place, place) for place in places.values()}
    near = sorted(other for one, other in joined if one == 0)
    if len(near) > 2 * MOST_DIMENSIONS:
        return None
    for sides in _sides(near, len(nodes), 1):
        strides = (prod(sides[dimension + 1 :]) for dimension in range(len(sides)))
        closed = (side > 2 and (side - 1) * stride in near for side, stride in zip(sides, strides, strict=True))
        found = Grid(sides, tuple(closed))
        if {hop for those in found.hops() for hop in those} == joined:
            return found
    return None


def _sides(near: Sequence[int], count: int, stride: int) -> Iterator[tuple[int, ...]]:
    """Sides of the grids of so many nodes in which the first node's neighbours are at these places, from a dimension on."""
    if stride == count:
        yield ()
    elif stride in near:
        for above in (*near, count):
            if stride < above and above % stride == 0 and count % above == 0:
                for larger in _sides(near, count, above):
                    yield *larger, above // stride
