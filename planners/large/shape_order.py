"""Shape order: the shapes of a grid by rising lower bound; bounds are refined when a shape's turn comes.

The shapes of a tensor-parallel degree are bounded context degree by context degree. Parts of a context take no fewer device
seconds together than the whole: a smaller part of a pass runs no faster, and keys and values cross more often. So the bound of a
context degree holds for all larger ones, and those for which it is too much are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import numpy as np

from hardware_profiles import Flags, Floats, Integers
from planners.large.shape_bounds import ShapeBounds


class ShapeOrder:
    """Order of the shapes of one problem, which are rows of `grid`; bounds are computed when they are first needed."""

    def __init__(self, shapes: Integers, bounds: ShapeBounds) -> None:
        self.shapes, self.bounds = shapes, bounds
        self._least = np.full(len(shapes), np.nan)
        tensor, context = shapes[:, 0], shapes[:, 5]
        self._chains = [
            [np.flatnonzero((tensor == one) & (context == two)) for two in np.unique(context[tensor == one]).tolist()]
            for one in np.unique(tensor).tolist()
        ]

    def rising(self, among: Flags | None = None) -> Iterator[tuple[float, int]]:
        """Lower bounds on the seconds of an iteration, rising, each with the number of its shape.

        among: shapes to yield, bool [shapes]; None for all
        """
        waiting: list[tuple[float, int, int, int]] = [(0.0, chain, 0, -1) for chain in range(len(self._chains))]
        heapify(waiting)
        opened: dict[tuple[int, int], tuple[Floats, Integers]] = {}
        while waiting:
            least, chain, part, place = heappop(waiting)
            if place < 0:
                opened[chain, part] = self._part(chain, part, among)
                if part + 1 < len(self._chains[chain]):
                    further = self.bounds.least_device_seconds(self.shapes[self._chains[chain][part]])
                    heappush(waiting, (max(least, further), chain, part + 1, -1))
            else:
                yield least, int(opened[chain, part][1][place])
            found, _ = opened[chain, part]
            if place + 1 < len(found):
                heappush(waiting, (float(found[place + 1]), chain, part, place + 1))

    def _part(self, chain: int, part: int, among: Flags | None) -> tuple[Floats, Integers]:
        """Bounds of the shapes of one tensor degree and one context degree, rising, and their numbers."""
        rows = self._chains[chain][part]
        if np.isnan(self._least[rows[:1]]).any():
            self._least[rows] = self.bounds.least_seconds(self.shapes[rows])
        rows = rows if among is None else rows[among[rows]]
        rows = rows[np.argsort(self._least[rows], kind="stable")]
        return self._least[rows], rows
