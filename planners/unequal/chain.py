"""A chain: the stages that the samples of one direction pass, each with the link behind it, and their duration tables.

Formula (R) of the model, for process p with blocks of b_p samples, P_p[j] = min((j + 1) b_p, B):

    E_p[j] = max( E_p[j-1], E_{p-1}[block of p-1 that holds sample P_p[j]] ) + d_p( samples of block j )

Processes in chain order are computation, link, computation, ..., computation. A link sends the blocks of the stage before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers


class Step(NamedTuple):
    """One decision of a search: the size of a stage (a named tuple, because that is what a compiled function takes).

    `compute[b]`, `link[b]` seconds of a block of b samples on the stage and on the link behind it, shape (B+1,); `allowed` its
    sizes, ascending.
    """

    compute: Floats
    link: Floats
    allowed: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """One direction of an unequal problem, ready to be evaluated.

    - `durations[row, b]` seconds of a block of b samples, shape (2K, B+1): the K stages in chain order, then the link behind
      each (behind the last one none, which takes no time). Where recomputation depends on the sizes K rows more: the stages with
      the forward pass run again.
    - `allowed[i]` the sizes that stage i may take, ascending, in chain order.
    - `reverse` says that stage K-1 comes first (the backward pass): size vectors are always given in stage order.
    """

    samples: int
    durations: Floats
    allowed: tuple[tuple[int, ...], ...]
    reverse: bool

    @property
    def stages(self) -> int:
        """Number of stages K."""
        return len(self.allowed)

    @property
    def coupled(self) -> bool:
        """Whether a stage may run its forward pass again depending on the sizes of the other direction."""
        return len(self.durations) > 2 * self.stages

    def steps(self, again: bool = False) -> list[Step]:
        """The decisions in chain order; again: of stages that run forward again, where recomputation depends on the sizes"""
        first = 2 * self.stages if again and self.coupled else 0
        return [
            Step(self.durations[first + stage], self.durations[self.stages + stage], np.array(sizes, dtype=np.int64))
            for stage, sizes in enumerate(self.allowed)
        ]

    def ordered(self, sizes: Sequence[int]) -> list[int]:
        """A size vector in stage order, turned into chain order, or back."""
        return [int(size) for size in (sizes[::-1] if self.reverse else sizes)]
