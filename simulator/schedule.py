"""Schedule: the order of operations on each device, as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.ops import Op, OpKind


class ScheduleError(ValueError):
    """A schedule that cannot run; the message names the device, the position and the op."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Ops of every rank, in order, as columns (a rank is one pipeline position: one device, or one group that runs in step).

    name: of the family, as in `1f1b`
    stages: number of stages S; stage numbers are 0..S-1
    microbatches: number of micro-batches M in the stream
    offsets: int64 [ranks + 1]; the ops of rank r are rows offsets[r]:offsets[r+1]
    stage, kind, microbatch: int32, int8, int32 [rows]
    replica: int32 [ranks]; number of the rank among those that hold the same stages (round robin); all 0 without replicas
    flush: True if the stream ends in one update after a flush; False if updates are ops of the lists
    """

    name: str
    stages: int
    microbatches: int
    offsets: NDArray[np.int64]
    stage: NDArray[np.int32]
    kind: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    replica: NDArray[np.int32]
    flush: bool = True

    @property
    def ranks(self) -> int:
        """Number of pipeline positions."""
        return len(self.offsets) - 1

    def __len__(self) -> int:
        return len(self.stage)

    def ops(self, rank: int) -> tuple[Op, ...]:
        """The ops of one rank, as a person reads them."""
        rows = range(int(self.offsets[rank]), int(self.offsets[rank + 1]))
        return tuple(Op(int(self.stage[row]), OpKind(int(self.kind[row])), int(self.microbatch[row])) for row in rows)

    def lists(self) -> Iterator[tuple[Op, ...]]:
        """The ops of every rank in turn."""
        return (self.ops(rank) for rank in range(self.ranks))

    def rank_of_row(self) -> NDArray[np.int32]:
        """int32 [rows]: the rank that each row belongs to."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.offsets))

    def replicas(self) -> NDArray[np.int64]:
        """int64 [stages]: ranks that hold each stage."""
        pairs = np.unique(self.rank_of_row().astype(np.int64) * self.stages + self.stage)
        return np.bincount(pairs % self.stages, minlength=self.stages)


Columns = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]
"""Stage, kind and micro-batch of the ops of one rank."""


def from_columns(
    name: str,
    stages: int,
    microbatches: int,
    ranks: Sequence[Columns],
    *,
    replica: Sequence[int] | None = None,
    flush: bool = True,
) -> Schedule:
    """Join the columns of each rank into one schedule."""
    lengths = [len(columns[0]) for columns in ranks]
    offsets = np.zeros(len(ranks) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    stage = np.empty(offsets[-1], dtype=np.int32)
    kind = np.empty(offsets[-1], dtype=np.int8)
    microbatch = np.empty(offsets[-1], dtype=np.int32)
    for rank, (stages_here, kinds_here, microbatches_here) in enumerate(ranks):
        rows = slice(offsets[rank], offsets[rank + 1])
        stage[rows], kind[rows], microbatch[rows] = stages_here, kinds_here, microbatches_here
    numbers = np.zeros(len(ranks), dtype=np.int32) if replica is None else np.asarray(replica, dtype=np.int32)
    return Schedule(name, stages, microbatches, offsets, stage, kind, microbatch, numbers, flush)


def from_lists(name: str, lists: Sequence[Sequence[Op]], *, flush: bool = True) -> Schedule:
    """A schedule from one list of ops per rank; stages and micro-batches are counted from the ops."""
    every = [op for ops in lists for op in ops]
    if not every:
        raise ScheduleError("a schedule needs at least one op, got none")
    stages = max(op.stage for op in every) + 1
    computing = [op.microbatch for op in every if op.kind <= OpKind.WEIGHT_GRADIENT]
    microbatches = max(computing, default=0) + 1
    columns = [
        (
            np.array([op.stage for op in ops], dtype=np.int32),
            np.array([int(op.kind) for op in ops], dtype=np.int8),
            np.array([op.microbatch for op in ops], dtype=np.int32),
        )
        for ops in lists
    ]
    seen: dict[frozenset[int], int] = {}
    replica = []
    for ops in lists:
        held = frozenset(op.stage for op in ops)
        replica.append(seen.get(held, 0))
        seen[held] = seen.get(held, 0) + 1
    return from_columns(name, stages, microbatches, columns, replica=replica, flush=flush)
