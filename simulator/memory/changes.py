"""Changes: the one list of what the ops and transfers of a program take of memory, and what they free.

From the start of a forward to the end of its backward: what the layers stash, or the stage's input only where the stage
recomputes; what is left out then comes back during backward. Where backward is split, what the weight gradient does not need goes
at the end of the input gradient. What is offloaded is gone from the end of its way to the host to the start of its way back. From
the end of the producer to the arrival on the sender, and from its departure to the start of the consumer on the receiver (which
then stashes what it needs): the boundary tensor; where several ops use it, each takes its samples of it.
Everything is counted in whole bytes, rounded up, so that a sum is the same in whatever order it is taken.
At one time ops and transfers that end free memory before those that begin take it; what takes no time at all comes in between, in
the order of the tasks.

Two readers know when the changes happen: `simulator.memory.over_time` and, compiled, `simulator.memory.peaks`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers
from simulator.engines.timeline import Moves, Timeline, Transfers
from simulator.lowering.program import Program
from simulator.schedules.ops import BACKWARD_KINDS, HOST_KINDS, OpKind, among, computes

START, END, ARRIVAL, DEPARTURE = range(4)
"""Moments of a task: it begins, it ends, what it sent arrives, what it sent leaves."""

KEPT, MADE, MADE_FOR_INPUT, KEPT_LONGER, MADE_LONGER, SENT = range(6)
"""What bytes a change is of: those of a `StageStash`, per sample, in the order of its fields; of a transfer."""

LAST = np.iinfo(np.int64).max
"""Place of what comes behind everything else of its time."""


@dataclass(frozen=True, slots=True, eq=False)
class MemoryChanges:
    """Changes of memory over a program, one row each: which task takes or frees how many bytes, and when.

    moment: int8; START, END, ARRIVAL, or DEPARTURE of `task`: int64 (of an overlapped pair the first)
    holder: int64; the op that takes or frees the bytes, or one on the device that does
    size: int64; KEPT to MADE_LONGER of the holder's stage, or SENT; transfer: int64; row of the transfer, 0 for none
    factor: float64; times the bytes: samples, or 1; less than 0 where memory is freed
    begin, end, whole: int64; which part of that, from `begin` to `end` of `whole`
    """

    moment: NDArray[np.int8]
    task: Integers
    holder: Integers
    size: Integers
    transfer: Integers
    factor: Floats
    begin: Integers
    end: Integers
    whole: Integers

    def __len__(self) -> int:
        return len(self.task)

    def amounts(self, size: Floats) -> Floats:
        """Bytes that each change takes (negative: frees); size: bytes of each kind, float64 [changes]."""
        return np.sign(self.factor) * whole_part(np.abs(self.factor) * size, self.begin, self.end, self.whole)

    def places(self, lasting: Flags) -> Integers:
        """Sort key among changes at the same time, int64 [changes].

        lasting: bool [changes]; whether the task, or the transfer that arrives, takes time
        """
        sure = np.where(self.moment == START, LAST, 0)
        return np.where(lasting | (self.moment == DEPARTURE), sure, 1 + self.moment + 3 * self.task)


def memory_changes(
    tasks: Program | Timeline, recomputes: Flags, moves: Moves | Transfers | None = None
) -> MemoryChanges:
    """The memory changes of a program, or of its timeline.

    recomputes: bool [stages]; whether a stage runs anything again; moves: its transfers; by default the ops count alone
    """
    found = [*_of_ops(tasks, recomputes), *(() if moves is None else _of_transfers(tasks, moves))]
    return MemoryChanges(
        *(np.concatenate([getattr(one, column.name) for one in found]) for column in fields(MemoryChanges))
    )


def _of_ops(tasks: Program | Timeline, recomputes: Flags) -> list[MemoryChanges]:
    rows = np.flatnonzero(computes(tasks.kind) | among(tasks.kind, HOST_KINDS))
    slot = tasks.stage[rows].astype(np.int64) * (int(tasks.replica.max(initial=0)) + 1) + tasks.replica[rows]
    rows, slot = (one[np.argsort(slot, kind="stable")] for one in (rows, slot))
    kind, samples = tasks.kind[rows], tasks.samples[rows].astype(np.float64)
    op = slot * (int(tasks.microbatch.max(initial=0)) + 1) + tasks.microbatch[rows]
    # what an op takes it has from its first part on, and the input gradient frees what it does with its last
    edges = np.flatnonzero(np.diff(op * len(OpKind) + kind, prepend=-1, append=-1))
    begins, ends = (_marked(len(rows), one) for one in (edges[:-1], edges[1:] - 1))
    part, parts = parts_of(op, among(kind, (OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT)))
    first = _first_of_pair(tasks, rows)

    def changes(at: Integers, moment: int, sign: int, size: NDArray[np.integer] | int) -> MemoryChanges:
        sizes = size[at] if isinstance(size, np.ndarray) else size
        cut = (part[at], part[at] + 1, parts[at]) if moment == END else (0, 1, 1)
        return _rows(moment, first[at], rows[at], sizes, 0, sign * samples[at], cut)

    begun = np.flatnonzero(among(kind, (*BACKWARD_KINDS, OpKind.RECOMPUTE)))
    # an op of its own, or the first part of a backward, runs forward again, for all parts
    starts = _marked(len(rows), begun[np.unique(op[begun], return_index=True)[1]])
    input_gradient, again = kind == OpKind.INPUT_GRADIENT, recomputes[tasks.stage[rows]]
    made = np.where(input_gradient & ~np.isin(slot, slot[kind == OpKind.RECOMPUTE]), MADE_FOR_INPUT, MADE)
    halved, weight_gradient = input_gradient & ends, kind == OpKind.WEIGHT_GRADIENT
    freed = (kind == OpKind.BACKWARD) | halved
    every: tuple[tuple[Flags, int, int, NDArray[np.integer] | int], ...] = (
        ((kind == OpKind.FORWARD) & begins, START, 1, KEPT),
        (kind == OpKind.OFFLOAD, END, -1, KEPT),
        (kind == OpKind.RELOAD, START, 1, KEPT),
        (freed, END, -1, KEPT),
        (halved, END, 1, KEPT_LONGER),
        (weight_gradient, END, -1, KEPT_LONGER),
        (starts & again, START, 1, made),
        (freed & again, END, -1, made),
        (halved & again, END, 1, MADE_LONGER),
        (weight_gradient & again, END, -1, MADE_LONGER),
    )
    at = [np.flatnonzero(chosen) for chosen, *_ in every]
    return [changes(rows, *one[1:]) for rows, one in zip(at, every, strict=True) if len(rows)]


def _marked(count: int, rows: Integers) -> Flags:
    """Whether each of so many rows is among some, bool [count]."""
    found = np.zeros(count, dtype=np.bool_)
    found[rows] = True
    return found


def _of_transfers(tasks: Program | Timeline, moves: Moves | Transfers) -> tuple[MemoryChanges, ...]:
    count, (transfer, user, *cut) = np.arange(len(moves.producer)), _uses(tasks, moves.producer, moves.consumer)
    made = _first_of_pair(tasks, moves.producer)
    return (
        _rows(END, made, moves.producer, SENT, count, 1.0),
        _rows(ARRIVAL, made, moves.producer, SENT, count, -1.0),
        _rows(DEPARTURE, made, moves.consumer, SENT, count, 1.0),
        _rows(START, _first_of_pair(tasks, user), user, SENT, transfer, -1.0, cut),
    )


def _first_of_pair(tasks: Program | Timeline, rows: NDArray[np.integer]) -> Integers:
    """For each row, the first op of its overlapped pair, which represents the pair in task order."""
    return np.asarray(rows if tasks.together is None else tasks.together[rows], dtype=np.int64)


def _rows(
    moment: int,
    task: Integers,
    holder: NDArray[np.integer],
    size: Any,
    transfer: Any,
    factor: Any,
    cut: Any = (0, 1, 1),
) -> MemoryChanges:
    """Build rows of one moment from columns, or from one number for all of them. cut: begin, end and whole."""
    columns = (np.int8(moment), task, holder, size, transfer, factor, *cut)
    return MemoryChanges(*(one if isinstance(one, np.ndarray) else np.full(len(task), one) for one in columns))


def parts_of(group: NDArray[np.integer], chosen: Flags) -> tuple[Integers, Integers]:
    """For each chosen row: how many rows of its group stand before it, and how many there are; int64 [rows], 0 and 1 for the
    others.

    All-reduce splits a backward into parts that make one together.
    """
    part, parts = np.zeros(len(group), dtype=np.int64), np.ones(len(group), dtype=np.int64)
    rows = np.flatnonzero(chosen)
    order = rows[np.argsort(group[rows], kind="stable")]
    _, first, count = np.unique(group[order], return_index=True, return_counts=True)
    part[order] = np.arange(len(order)) - np.repeat(first, count)
    parts[order] = np.repeat(count, count)
    return part, parts


def whole_part(amount: Floats, begin: Integers, end: Integers, whole: Integers) -> Floats:
    """The share from `begin` to `end` of `whole` of an amount of whole bytes, in whole bytes; all shares sum to the amount."""
    upto = np.where(end == whole, amount, np.floor(amount * end / whole))
    return np.asarray(upto - np.floor(amount * begin / whole))


def _uses(
    tasks: Program | Timeline, producer: NDArray[np.integer], consumer: NDArray[np.integer]
) -> tuple[Integers, ...]:
    """Which ops use each transfer: one, or several with some of its samples each if micro-batch sizes differ between stages.

    producer, consumer: of every transfer, the first consumer where there are several
    Columns, one row for each use; each transfer's rows stand together, by rising samples: the transfer, the op, and begin, end
    and number of the transfer's samples that it uses.
    """
    lane = tasks.lane if isinstance(tasks, Timeline) else tasks.lane_of_task()
    first, end = tasks.first_sample, tasks.first_sample + tasks.samples
    count = np.arange(len(producer))
    if ((first[producer] >= first[consumer]) & (end[producer] <= end[consumer])).all():
        return count, consumer.astype(np.int64), np.zeros_like(count), np.ones_like(count), np.ones_like(count)
    ops = np.flatnonzero((tasks.kind <= OpKind.INPUT_GRADIENT) & (tasks.samples > 0))
    same = lane * (2 * (int(tasks.stage.max()) + 1)) + 2 * tasks.stage + (tasks.kind != OpKind.FORWARD)
    ops = ops[np.lexsort((ops, first[ops], same[ops]))]
    # all-reduce splits a backward into parts: the first one uses what was transferred
    ops = ops[np.append(True, (np.diff(same[ops]) != 0) | (np.diff(tasks.microbatch[ops]) != 0))]
    bounds = {int(one): rows for one in np.unique(same[consumer]) for rows in [ops[same[ops] == one]]}
    begin, stop = np.zeros_like(count), np.zeros_like(count)
    offset, found = 0, []
    for one, rows in bounds.items():
        here = same[consumer] == one
        begin[here] = offset + np.searchsorted(end[rows], first[producer[here]], side="right")
        stop[here] = offset + np.searchsorted(first[rows], end[producer[here]], side="left")
        found.append(rows)
        offset += len(rows)
    counts = stop - begin
    transfer = np.repeat(count, counts)
    within = np.arange(len(transfer)) - np.repeat(np.cumsum(counts) - counts, counts)
    task = np.concatenate(found)[np.repeat(begin, counts) + within]
    source = producer[transfer]
    shared = np.minimum(end[task], end[source]) - np.maximum(first[task], first[source])
    upto = np.cumsum(shared)
    before = (upto - shared)[np.cumsum(counts) - counts]
    whole = np.bincount(transfer, weights=shared, minlength=len(count)).astype(np.int64)
    return transfer, task, upto - shared - before[transfer], upto - before[transfer], whole[transfer]
