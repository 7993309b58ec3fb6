"""Schedule: the order of operations on each device, as data."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import GIB, MOST_COUNT, Flags, Integers, brief, check_fields, check_whole
from simulator.schedules.ops import BACKWARD_KINDS, Op, OpKind, computes

Lanes = Literal["shared", "split"]
"""How the ranks of one device divide it: by processor sharing, or in fixed shares (see `Schedule.lanes`)."""

LANES: tuple[str, ...] = get_args(Lanes)


MOST_OPS = 2**26
"""Forwards and backwards of a schedule at most: 4,096 stages and 8,192 micro-batches, the largest that was replayed."""

OP_BYTES = 150
"""Memory of an op while its schedule is built and replayed by the recurrence: 143 bytes measured, at every size."""


def check_size(stages: int, microbatches: int, *, most: int = MOST_OPS, where: str = "") -> None:
    """Raise ValueError, before a schedule is built, if it has more than `most` ops or does not fit into this machine's memory.

    where: words behind the number, of what has that limit
    """
    ops = 2 * stages * microbatches
    what = f"a forward and a backward of {stages} stages and {microbatches} micro-batches"
    if ops > most:
        raise ValueError(f"a schedule has at most {most:,} ops{where}: {what} are more")
    memory = _memory_bytes()
    if ops * OP_BYTES > memory:
        raise ValueError(
            f"{what} need about {ops * OP_BYTES / GIB:.3g} GiB of memory, this machine has {memory / GIB:.3g} GiB"
        )


COUNTED = ("chunks", "microbatch_group_size", "slices", "replicas", "microbatches_per_minibatch")
"""Options of families that are a whole number or a list of them."""


def check_counts(**counts: object) -> None:
    """Raise ValueError for a count, or one of a list, that is no whole number or too large for any schedule; None is skipped."""
    for name, value in counts.items():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if one is not None:
                check_whole(name.replace("_", " "), one, -MOST_OPS, MOST_COUNT if name in LENGTHS else MOST_OPS)


LENGTHS = ("stages", "microbatches", "minibatches")
"""Counts whose product `check_size` limits."""


def _memory_bytes() -> float:
    """Memory of this machine; unlimited where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return math.inf


class ScheduleError(ValueError):
    """An invalid schedule; the message names the device, the position and the op."""


class DeadlockError(ScheduleError):
    """A schedule whose lists wait for each other, or a program whose lanes do; names devices, positions and ops."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The ops of every rank, in order, as columns.

    A rank is one list of ops: of a device, of a group of devices that run in step, or of one of several lanes of a device.

    name: of the family, as in `1f1b`
    stages: number of stages S; stage numbers are 0..S-1
    microbatches: number of micro-batches M in the stream
    offsets: int64 [ranks + 1]; the ops of rank r are rows offsets[r]:offsets[r+1]
    stage, kind, microbatch: int32, int8, int32 [rows]
    flush: True if the stream ends in one update after a flush; False if updates are ops of the lists
    device: int32 [ranks]; ranks of one number are lanes of one device; default: every rank is a device, numbered alike
    lanes: how lanes of one device divide it. `shared`: a lane that is alone has it all, n active lanes proceed at 1/n of their
        speed. `split`: in fixed shares, the forward's and the backward's seconds over their sum, so that both take the sum
    credit: int32 [stages] or None; the forward of micro-batch j waits for the backward of micro-batch j - credit on its stage,
        which bounds the micro-batches in flight where forwards and backwards stand in different lists
    overlapped: bool [rows] or None; a forward that begins and ends together with the row after it, a full backward or an input
        gradient of the same list: an overlapped pair
    slices: of the sequences of a micro-batch, k: number j·k + i is slice i of micro-batch j
    """

    name: str
    stages: int
    microbatches: int
    offsets: Integers
    stage: NDArray[np.int32]
    kind: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    flush: bool = True
    device: NDArray[np.int32] | None = None
    lanes: Lanes | None = None
    credit: NDArray[np.int32] | None = None
    overlapped: Flags | None = None
    slices: int = 1

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {self.stages} stages, {self.microbatches} micro-batches, {len(self)} ops")

    @property
    def ranks(self) -> int:
        """Number of lists of ops."""
        return len(self.offsets) - 1

    def device_of_rank(self) -> NDArray[np.int32]:
        """int32 [ranks]: number of the device that runs each rank."""
        return np.arange(self.ranks, dtype=np.int32) if self.device is None else self.device

    def __len__(self) -> int:
        return len(self.stage)

    def ops(self, rank: int) -> tuple[Op, ...]:
        """The ops of one rank, as a person reads them."""
        rows = range(int(self.offsets[rank]), int(self.offsets[rank + 1]))
        return tuple(Op(int(self.stage[row]), OpKind(int(self.kind[row])), int(self.microbatch[row])) for row in rows)

    def lists(self) -> Iterator[tuple[Op, ...]]:
        """The ops of every rank in turn."""
        return (self.ops(rank) for rank in range(self.ranks))

    def words(self, rank: int) -> list[tuple[Op, ...]]:
        """The ops of one rank as text; an overlapped pair is one word."""
        ops, begin = self.ops(rank), int(self.offsets[rank])
        if self.overlapped is None:
            return [(op,) for op in ops]
        paired = self.overlapped[begin : begin + len(ops)].tolist()
        return [
            ops[place : place + 1 + paired[place]] for place in range(len(ops)) if not (place and paired[place - 1])
        ]

    def check_pairs(self) -> None:
        """Raise ScheduleError unless every overlapped pair is a forward and a backward of one list."""
        if self.overlapped is None:
            return
        first = np.flatnonzero(self.overlapped)
        second = np.isin(np.append(self.kind, OpKind.UPDATE), BACKWARD_KINDS)[first + 1]
        faults = first[(self.kind[first] != OpKind.FORWARD) | ~second | np.isin(first + 1, self.offsets)]
        if len(faults):
            device, position = self.place(int(faults[0]))
            rank = int(np.searchsorted(self.offsets, faults[0], side="right")) - 1
            raise ScheduleError(
                f"device {device}, position {position}: an overlapped pair is a forward and a "
                f"backward (or an input gradient), got {' '.join(map(str, self.ops(rank)[position : position + 2]))}"
            )

    def place(self, row: int) -> tuple[int, int]:
        """Device of a row, and its position in the list of its rank."""
        rank = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return int(self.device_of_rank()[rank]), int(row - self.offsets[rank])

    def rank_of_row(self) -> NDArray[np.int32]:
        """int32 [rows]: the rank that each row belongs to."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.offsets))

    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Devices that run each stage, replica 0 first: in the order of the first micro-batch that each of them runs there."""
        begins: list[dict[int, int]] = [{} for _ in range(self.stages)]
        for rank, device in enumerate(self.device_of_rank().tolist()):
            rows = slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))
            stage, microbatch = self.stage[rows], self.microbatch[rows]
            for held in stages_in(stage):
                first = int(microbatch[stage == held].min())
                begins[held][device] = min(first, begins[held].get(device, first))
        return tuple(tuple(sorted(one, key=one.__getitem__)) for one in begins)

    def replicas(self) -> Integers:
        """int64 [stages]: devices that run each stage."""
        return np.array([len(devices) for devices in self.holders()], dtype=np.int64)


def stages_in(stage: NDArray[np.integer]) -> list[int]:
    """The different stages of a column, rising."""
    if len(stage) and (stage == stage[0]).all():  # the usual case, without sorting
        return [int(stage[0])]
    found: list[int] = np.unique(stage).tolist()
    return found


Columns = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]
"""Stage, kind and micro-batch of the ops of one rank."""


def from_columns(
    name: str,
    stages: int,
    microbatches: int,
    ranks: Sequence[Columns],
    *,
    flush: bool = True,
    device: Sequence[int] | None = None,
) -> Schedule:
    """Join the columns of each rank into one schedule; the other arguments are the schedule's fields."""
    lengths = [len(columns[0]) for columns in ranks]
    offsets = np.zeros(len(ranks) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    stage = np.empty(offsets[-1], dtype=np.int32)
    kind = np.empty(offsets[-1], dtype=np.int8)
    microbatch = np.empty(offsets[-1], dtype=np.int32)
    for rank, (stages_here, kinds_here, microbatches_here) in enumerate(ranks):
        rows = slice(offsets[rank], offsets[rank + 1])
        stage[rows], kind[rows], microbatch[rows] = stages_here, kinds_here, microbatches_here
    return Schedule(
        name,
        stages,
        microbatches,
        offsets,
        stage,
        kind,
        microbatch,
        flush,
        device=None if device is None else np.asarray(device, dtype=np.int32),
    )


def columns_of(ops: Sequence[Op]) -> Columns:
    """The columns of some ops."""
    return (
        np.array([op.stage for op in ops], dtype=np.int32),
        np.array([int(op.kind) for op in ops], dtype=np.int8),
        np.array([op.microbatch for op in ops], dtype=np.int32),
    )


def from_ranks(name: str, ranks: Sequence[Columns], *, flush: bool = True) -> Schedule:
    """A schedule from the columns of each rank, whose stages and micro-batches are counted from the ops."""
    if not any(len(stage) for stage, _, _ in ranks):
        raise ScheduleError("a schedule needs at least one op, got none")
    computing = [int(microbatch[computes(kind)].max(initial=0)) for _, kind, microbatch in ranks]
    stages = 1 + max(int(stage.max()) for stage, _, _ in ranks if len(stage))
    return from_columns(name, stages, 1 + max(computing), ranks, flush=flush)
