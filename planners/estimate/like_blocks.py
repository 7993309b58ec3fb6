"""Like blocks: the part of a network that repeats, and the layers before and after it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import attrgetter

from simulator import Workload


@dataclass(frozen=True, slots=True)
class LikeBlocks:
    """The longest run of like blocks of a network. Stages hold whole blocks; the first and the last stage also the layers around
    the run.

    before: layers in front of the run; size: layers of each block; count: blocks; layers: of the whole network
    """

    before: int
    size: int
    count: int
    layers: int

    @property
    def ends(self) -> tuple[bool, bool]:
        """Whether there are layers in front of the run, and whether there are layers behind it."""
        return self.before > 0, self.layers > self.before + self.count * self.size

    def range(self, first: int, end: int) -> tuple[int, ...]:
        """Layers of a stage of blocks `first` to `end` - 1, with those in front of the run if it has the first block, behind it
        if the last.
        """
        begin = 0 if first == 0 else self.before + first * self.size
        stop = self.layers if end == self.count else self.before + end * self.size
        return tuple(range(begin, stop))


def like_blocks(workload: Workload) -> LikeBlocks | None:
    """The longest run of like blocks of a network, the first of equally long ones; None if no two neighbouring blocks are
    alike.
    """
    best: LikeBlocks | None = None
    runs: list[tuple[object, int, int, int]] = []  # what its blocks are, first layer, layers of a block, blocks
    figures = attrgetter(*({one.name for one in fields(workload.layers[0])} - {"name", "block"}))
    for number, places in groupby(range(len(workload)), lambda one: workload.layers[one].block):
        held = list(places)
        kind = number and tuple(figures(workload.layers[one]) for one in held)
        if runs and runs[-1][0] == kind:
            kind, begin, size, count = runs.pop()
            runs.append((kind, begin, size, count + 1))
        else:
            runs.append((kind, held[0], len(held), 1))
    for kind, begin, size, count in runs:
        if kind and count > max(1, best.count if best else 1):
            best = LikeBlocks(begin, size, count, len(workload))
    return best


def shortened(workload: Workload, blocks: LikeBlocks, count: int) -> Workload:
    """The network with only the first `count` blocks of the run; layers that read an output of the last block read that of the
    last kept.
    """
    left_out = (blocks.count - count) * blocks.size
    end = blocks.before + count * blocks.size

    def place(layer: int) -> int:
        if layer < end:
            return layer
        if layer >= end + left_out:
            return layer - left_out
        return end - blocks.size + (layer - blocks.before) % blocks.size

    layers = workload.layers[:end] + workload.layers[end + left_out :]
    edges = {(place(one), place(two)) for one, two in workload.edges if two < end or two >= end + left_out}
    return replace(workload, layers=layers, edges=tuple(sorted(edges)))
