"""Waits: which op waits for which, and the transfer in between."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Integers
from simulator.lowering.coverage import LaneOps, op_name
from simulator.schedules.ops import BACKWARD_KINDS, HOST_KINDS, OpKind, among
from simulator.schedules.schedule import ScheduleError

Move = tuple[tuple[int, int], tuple[int, int], int]
"""A transfer as costs are asked for it: from (stage, replica), to (stage, replica), samples."""


@dataclass(slots=True)
class Waits:
    """Data dependencies between base rows; `transfer`: index of its move in `moves`, from 1; 0 for none."""

    consumer: Integers
    producer: Integers
    transfer: NDArray[np.int32]
    moves: tuple[Move, ...]

    @property
    def classes(self) -> int:
        """Number of transfer classes, class 0 (no transfer) included."""
        return len(self.moves) + 1


class _TransferClasses:
    """Numbers each distinct transfer once, from 1."""

    def __init__(self) -> None:
        self.moves: dict[Move, int] = {}

    def number(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> int:
        return self.moves.setdefault((source, target, samples), len(self.moves) + 1)


@dataclass(slots=True)
class _Covering:
    """Rows of one stage and direction over all its lanes, by the first sample that they cover."""

    rows: Integers
    lane: Integers
    first: Integers
    end: Integers


def _covering(ops: LaneOps, held: tuple[Integers, Integers], kinds: tuple[OpKind, ...]) -> _Covering:
    """Rows of some kinds that cover any sample; held: rows of the stage, lane by lane, and their lanes."""
    wanted = np.zeros(max(OpKind) + 1, dtype=np.bool_)
    wanted[list(kinds)] = True
    chosen = wanted[ops.kind[held[0]]] & (ops.samples[held[0]] > 0)
    rows, lanes = (one[chosen] for one in held)
    first = ops.first[rows]
    if not (first[1:] >= first[:-1]).all():
        order = np.argsort(first, kind="stable")
        rows, lanes, first = rows[order], lanes[order], first[order]
    return _Covering(rows, lanes, first, first + ops.samples[rows])


def data_waits(ops: LaneOps, stages: int) -> Waits:
    """Waits of every op: for activations from the stage before, gradients from the stage behind, and its own stash."""
    classes = _TransferClasses()
    consumers: list[Integers] = []
    producers: list[Integers] = []
    numbers: list[NDArray[np.int32]] = []

    def join(down: _Covering, up: _Covering, *, moves: bool = False) -> None:
        consumer, producer, transfer = _match(ops, down, up, classes if moves else None)
        consumers.append(consumer)
        producers.append(producer)
        numbers.append(transfer)

    before: tuple[_Covering, _Covering] | None = None
    for stage in range(stages):
        lanes, rows = zip(*ops.rows_of_stage[stage], strict=True)
        held = np.concatenate(rows), np.repeat(np.array(lanes), [len(one) for one in rows])
        forward, weight, again, away, back = (
            _covering(ops, held, (kind,))
            for kind in (OpKind.FORWARD, OpKind.WEIGHT_GRADIENT, OpKind.RECOMPUTE, *HOST_KINDS)
        )
        gradient = _covering(ops, held, BACKWARD_KINDS)
        join(gradient, forward)
        if len(weight.rows):
            join(weight, gradient)
        if len(again.rows):
            join(again, forward)
            join(gradient, again)
        if len(away.rows):
            join(away, forward)
            join(back, away)
            for needing in (gradient, again):
                join(needing, back)
        if before is not None:
            join(forward, before[0], moves=True)
            join(before[1], gradient, moves=True)
        before = (forward, gradient)
    return Waits(np.concatenate(consumers), np.concatenate(producers), np.concatenate(numbers), tuple(classes.moves))


def sendings(waits: Waits) -> tuple[Integers, Integers]:
    """Rows that send, rising, and the transfer classes that each sends, rising per row."""
    moving = np.flatnonzero(waits.transfer)
    key = np.unique(waits.producer[moving] * np.int64(waits.classes) + waits.transfer[moving])
    return key // waits.classes, key % waits.classes


def add_credit(waits: Waits, ops: LaneOps, credit: NDArray[np.int32]) -> Waits:
    """Let the forward of micro-batch j wait for the last gradient op of micro-batch j - credit on the same stage and replica."""
    consumers, producers = [waits.consumer], [waits.producer]
    for stage, lanes in enumerate(ops.rows_of_stage):
        for replica in sorted({int(ops.replica[rows[0]]) for _, rows in lanes}):
            rows = np.concatenate([rows for _, rows in lanes if ops.replica[rows[0]] == replica])
            forward = rows[ops.kind[rows] == OpKind.FORWARD]
            ends = rows[among(ops.kind[rows], (OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT))]
            end_of = {int(ops.microbatch[row]): int(row) for row in ends}
            for row in forward:
                before = int(ops.microbatch[row]) - int(credit[stage])
                if before >= 0 and before not in end_of:
                    raise ScheduleError(
                        f"op {op_name(ops, int(row))} waits for the backward of micro-batch {before} of its stage, "
                        "which is not there; a credit needs the same micro-batches forward and backward"
                    )
                if before >= 0:
                    consumers.append(np.array([row], dtype=np.int64))
                    producers.append(np.array([end_of[before]], dtype=np.int64))
    consumer, producer = np.concatenate(consumers), np.concatenate(producers)
    transfer = np.zeros(len(consumer), dtype=np.int32)
    transfer[: len(waits.transfer)] = waits.transfer
    return replace(waits, consumer=consumer, producer=producer, transfer=transfer)


def begin_together(waits: Waits, ops: LaneOps) -> Waits:
    """Let the first op of each overlapped pair wait for what the second needs, too."""
    borrowed = np.flatnonzero(np.isin(waits.consumer, ops.overlapped + 1))
    return replace(
        waits,
        consumer=np.concatenate([waits.consumer, waits.consumer[borrowed] - 1]),
        producer=np.concatenate([waits.producer, waits.producer[borrowed]]),
        transfer=np.concatenate([waits.transfer, waits.transfer[borrowed]]),
    )


def _match(
    ops: LaneOps, down: _Covering, up: _Covering, classes: _TransferClasses | None
) -> tuple[Integers, Integers, NDArray[np.int32]]:
    """A wait for every row of `up` that shares a sample with a row of `down`, but for those that the lane's order implies.

    Those that it contradicts stay, and can never end.
    classes: of the transfers between the two stages; None where both are one
    """
    begin = np.searchsorted(up.end, down.first, side="right")
    stop = np.searchsorted(up.first, down.end, side="left")
    counts = stop - begin
    index = np.repeat(np.arange(len(down.rows)), counts)
    within = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    source = np.repeat(begin, counts) + within
    consumer, producer = down.rows[index], up.rows[source]
    keep = (down.lane[index] != up.lane[source]) | (producer > consumer)
    if len(ops.overlapped):  # the second of a pair begins with the first
        keep |= (producer == consumer - 1) & np.isin(producer, ops.overlapped)
    index, source, consumer, producer = index[keep], source[keep], consumer[keep], producer[keep]
    if classes is None:
        return consumer, producer, np.zeros(len(consumer), dtype=np.int32)
    shared = np.minimum(down.end[index], up.end[source]) - np.maximum(down.first[index], up.first[source])
    lanes = down.lane[index], up.lane[source]
    return consumer, producer, _classify(ops, lanes, consumer, producer, shared, classes)


def _classify(
    ops: LaneOps,
    lanes: tuple[Integers, Integers],
    consumer: Integers,
    producer: Integers,
    shared: Integers,
    classes: _TransferClasses,
) -> NDArray[np.int32]:
    """Transfer class of each wait: one transfer per producer and receiving lane carries all samples that the lane needs.

    lanes: of each consumer and producer; shared: samples that a wait is about
    """
    if len(producer) == 0:
        return np.zeros(0, dtype=np.int32)
    target_lane, source_lane = lanes
    if len(producer) > 1 and not (producer[1:] > producer[:-1]).all():
        _, group = np.unique(producer * np.int64(ops.lanes) + target_lane, return_inverse=True)
        samples = np.bincount(group, weights=shared).astype(np.int64)[group]
    else:
        samples = shared
    sizes, size = np.unique(samples, return_inverse=True)
    keys = (source_lane * ops.lanes + target_lane) * len(sizes) + size
    if (keys == keys[0]).all():
        distinct, first, inverse = keys[:1], np.zeros(1, dtype=np.int64), np.zeros(len(keys), dtype=np.int64)
    else:
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    numbers = np.empty(len(distinct), dtype=np.int32)
    for position, row in enumerate(first):
        numbers[position] = classes.number(
            (int(ops.stage[producer[row]]), int(ops.replica[producer[row]])),
            (int(ops.stage[consumer[row]]), int(ops.replica[consumer[row]])),
            int(samples[row]),
        )
    return numbers[inverse]
