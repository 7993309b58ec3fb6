"""A chain: the processes that the samples of one direction pass, with their duration tables.

Formula (R) of the model, for process p with blocks of b_p samples, P_p[j] = min((j + 1) b_p, B):

    E_p[j] = max( E_p[j-1], E_{p-1}[block of p-1 that holds sample P_p[j]] ) + d_p( samples of block j )

Processes in chain order are computation, link, computation, ..., computation: 2K - 1 of them for K stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LINK_BLOCKS: dict[str, int] = {"sender": 0, "receiver": 1, "smaller": 2, "own": 3}
"""Whose block size a link sends, and the number by which the compiled code knows the rule."""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """One direction of an unequal problem, ready to be evaluated.

    - `durations[p, b]` seconds of a block of b samples on process p, shape (2K-1, B+1), in chain order; where
      recomputation depends on the sizes, rows 2K-1.. repeat the table with the forward pass run again.
    - `allowed[i]` the sizes that gene i may take, ascending, in chain order: K genes, or 2K-1 with links of their own.
    - `reverse` says that stage K-1 comes first (the backward pass): size vectors are always given in stage order.
    """

    samples: int
    stages: int
    durations: Floats
    allowed: tuple[tuple[int, ...], ...]
    link_block: str
    reverse: bool
    coupled: bool

    @property
    def processes(self) -> int:
        """Computations and links: 2K - 1."""
        return 2 * self.stages - 1

    @property
    def genes(self) -> int:
        """Sizes to choose: one a stage, or one a process where links have a size of their own."""
        return self.processes if self.link_block == "own" else self.stages

    def ordered(self, sizes: Sequence[int]) -> list[int]:
        """A size vector in stage order, turned into chain order (and back: it is its own inverse)."""
        return [int(size) for size in (sizes[::-1] if self.reverse else sizes)]

    def blocks(self, sizes: Sequence[int]) -> list[int]:
        """Block size of every process in chain order, from a size vector in stage order."""
        genes = self.ordered(sizes)
        if self.link_block == "own":
            return genes
        blocks = [genes[0]]
        for sender, receiver in pairwise(genes):
            blocks += [link_size(self.link_block, sender, receiver), receiver]
        return blocks

    def rows(self, differs: Sequence[bool] | None) -> list[int]:
        """Row of `durations` of every process; `differs` (stage order) marks the stages that run forward again."""
        rows = list(range(self.processes))
        if self.coupled and differs is not None:
            for stage, flag in enumerate(differs[::-1]):  # only a backward chain is coupled
                rows[2 * stage] += self.processes if flag else 0
        return rows


def link_size(rule: str, sender: int, receiver: int) -> int:
    """Block size of a link between two computations, by any rule but "own"."""
    if rule == "sender":
        return sender
    return receiver if rule == "receiver" else min(sender, receiver)
