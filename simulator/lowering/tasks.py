"""Tasks: the layout of a program: receives, parts of an op, sends; all-reduce lanes; updates at the end of lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Bucket, Costs, TiedReduction
from simulator.lowering.coverage import LaneOps, Rows
from simulator.lowering.waits import Waits
from simulator.ops import OpKind
from simulator.program import LaneKind, Program
from simulator.schedule import Schedule

Columns = dict[str, NDArray[Any]]
"""Columns of the program, by name."""

Dependencies = tuple[Rows, Rows, NDArray[np.int32]]
"""Consuming task, producing task, transfer class."""


def assemble(
    schedule: Schedule,
    ops: LaneOps,
    waits: Waits,
    seconds: NDArray[np.float64],
    costs: Costs,
    *,
    least: NDArray[np.float64] | None,
    blocking: str | None,
    updates: bool,
) -> Program:
    """Lay the tasks out and write the program.

    seconds: float64 [rows of `ops`]; least: as `Program.least_seconds`, by row of `ops`
    blocking: None, "send" or "both" for transfers that occupy compute lanes
    """
    reductions = _reductions(schedule, ops, costs)
    ties = [_tied_rounds(schedule, ops, one) for one in costs.tied_reductions]
    parts = np.ones(len(ops.stage), dtype=np.int64)
    for reduction in reductions:
        for _, rows in reduction.rounds:
            parts[rows] = len(reduction.buckets)
    moves = _Moves(waits, blocking) if blocking and len(waits.transfers) > 1 else None
    trailing = _trailing_updates(ops) if updates and schedule.flush else []
    reduce_lengths = [*(len(one.rounds) * len(one.buckets) for one in reductions), *(len(one.rounds) for one in ties)]
    layout = _lay_out(ops, parts, moves, trailing, reduce_lengths)
    columns = _columns(ops, layout, seconds, least, parts, reductions)

    depend: list[Dependencies] = []
    if moves is None:
        depend.append((layout.main[waits.consumer], layout.last[waits.producer], waits.transfer))
    else:
        columns["sends"] = np.zeros(layout.tasks, dtype=np.int32)
        depend.append(_blocking_tasks(waits, moves, layout, columns))
        still = waits.transfer == 0
        depend.append((layout.main[waits.consumer[still]], layout.last[waits.producer[still]], waits.transfer[still]))
    final_reduce: dict[tuple[int, int], int] = {}
    for number, reduction in enumerate(reductions):
        first = int(layout.lane_offsets[ops.lanes + number])
        depend.extend(_reduce_tasks(reduction, first, layout, columns, final_reduce))
    _write_updates(ops, trailing, layout, columns, costs)
    depend.extend(_update_waits(schedule, ops, trailing, layout, reductions, final_reduce))
    for number, tie in enumerate(ties, start=ops.lanes + len(reductions)):
        depend.extend(_tied_tasks(schedule, ops, tie, int(layout.lane_offsets[number]), layout, columns, trailing))
    offsets, dependency, transfer = _by_consumer(layout.tasks, depend)
    lane_device = _lane_devices(ops, costs, [*(one.stage for one in reductions), *(one.cost.stages[0] for one in ties)])
    lane_sharing = np.full(ops.lanes + len(reductions) + len(ties), -1, dtype=np.int32)
    if schedule.lanes == "shared":
        lane_sharing[: ops.lanes] = lane_device[: ops.lanes]
    return Program(
        lane_offsets=layout.lane_offsets,
        lane_device=lane_device,
        lane_kind=np.repeat(
            np.array([LaneKind.COMPUTE, LaneKind.COLLECTIVE], dtype=np.int8), [ops.lanes, len(reductions) + len(ties)]
        ),
        lane_sharing=lane_sharing,
        **columns,
        dependency_offsets=offsets,
        dependency=dependency,
        transfer=transfer,
        transfer_seconds=np.array([one.seconds for one in waits.transfers], dtype=np.float64),
        transfer_bytes=np.array([one.size_bytes for one in waits.transfers], dtype=np.float64),
        transfer_route=tuple(one.route for one in waits.transfers),
        lane_route=(
            *((),) * ops.lanes,
            *(reduction.buckets[0].route for reduction in reductions),
            *(tie.cost.route for tie in ties),
        ),
        channels=tuple(costs.channels),
        lane_occupancy=(
            *((),) * ops.lanes,
            *(reduction.buckets[0].occupancy for reduction in reductions),
            *(tie.cost.occupancy for tie in ties),
        ),
    )


# ---- blocking transfers ---------------------------------------------------------------------------------------------


class _Moves:
    """Transfers as tasks: one send per producer and transfer class, one receive before the first op that needs it.

    send_row, receive_row: row of `ops` that each stands beside; send_class, receive_class: transfer class
    send_of_wait: the send of each moving wait; send_of_receive: the send of each receive
    """

    def __init__(self, waits: Waits, blocking: str) -> None:
        self.moving = np.flatnonzero(waits.transfer)
        producer, consumer = waits.producer[self.moving], waits.consumer[self.moving]
        key = producer * np.int64(len(waits.transfers)) + waits.transfer[self.moving]
        _, first, self.send_of_wait = np.unique(key, return_index=True, return_inverse=True)
        self.send_row, self.send_class = producer[first], waits.transfer[self.moving][first]
        order = np.lexsort((consumer, self.send_of_wait))
        group = self.send_of_wait[order]
        begins = np.concatenate([[True], group[1:] != group[:-1]])
        chosen = order[begins] if blocking == "both" else order[:0]
        self.receive_row, self.receive_class = consumer[chosen], waits.transfer[self.moving][chosen]
        self.send_of_receive = self.send_of_wait[chosen]


def _blocking_tasks(waits: Waits, moves: _Moves, layout: _Layout, columns: Columns) -> Dependencies:
    """Write send and receive tasks; returns who waits for the sends."""
    duration = np.array([one.seconds for one in waits.transfers])
    send = layout.last[moves.send_row] + 1 + _rank_within(moves.send_row)
    columns["kind"][send] = OpKind.SEND
    columns["seconds"][send] = duration[moves.send_class]
    columns["sends"][send] = moves.send_class
    if len(moves.receive_row):
        receive = layout.first[moves.receive_row] + _rank_within(moves.receive_row)
        columns["kind"][receive] = OpKind.RECEIVE
        columns["seconds"][receive] = duration[moves.receive_class]
        return receive, send[moves.send_of_receive], np.zeros(len(receive), dtype=np.int32)
    consumer = layout.main[waits.consumer[moves.moving]]
    return consumer, send[moves.send_of_wait], np.zeros(len(consumer), dtype=np.int32)


# ---- gradients and updates ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reduction:
    """All-reduce of one replicated stage: its buckets, and rounds of (number, rows whose gradients complete the round)."""

    stage: int
    buckets: tuple[Bucket, ...]
    rounds: list[tuple[int, Rows]]


def _reductions(schedule: Schedule, ops: LaneOps, costs: Costs) -> list[_Reduction]:
    found = []
    for stage, lanes in enumerate(ops.rows_of_stage):
        buckets = costs.buckets(stage) if len({int(ops.lane_replica[lane]) for lane, _ in lanes}) > 1 else ()
        if buckets:
            found.append(_Reduction(stage, buckets, _rounds(schedule, ops, stage)))
    return found


def _rounds(schedule: Schedule, ops: LaneOps, stage: int) -> list[tuple[int, Rows]]:
    """Rounds of gradient all-reduce of a stage, in order.

    Flushed: one round, the last gradient of each lane. Asynchronous: the last gradient of each update's mini-batch; round-robin
    replicas reduce together once each has run one mini-batch (the last round may have fewer).
    """
    lanes = ops.rows_of_stage[stage]
    kinds = (OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT)
    gradients = [rows[np.isin(ops.kind[rows], kinds)] for _, rows in lanes]
    if schedule.flush:
        return [(0, np.array([rows[-1] for rows in gradients if len(rows)], dtype=np.int64))]
    triggers, numbers = [], []
    in_turn = bool(schedule.replicas()[stage] > 1)
    for (_, rows), gradient in zip(lanes, gradients, strict=True):
        updating = rows[ops.kind[rows] == OpKind.UPDATE]
        triggers.append(_of_minibatch(ops, gradient, updating) if in_turn else _just_before(gradient, updating))
        numbers.append(_round_of_update(schedule, ops, stage, updating))
    rows, round_of = np.concatenate(triggers), np.concatenate(numbers)
    order = np.argsort(round_of, kind="stable")
    distinct, starts = np.unique(round_of[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(rows[order], starts[1:]), strict=True))


def _just_before(gradient: Rows, updating: Rows) -> Rows:
    """The last gradient in front of each update."""
    return gradient[np.searchsorted(gradient, updating) - 1]


def _of_minibatch(ops: LaneOps, gradient: Rows, updating: Rows) -> Rows:
    """The last gradient of each update's own mini-batch: replicas in turn may run later ones before they update."""
    order = np.argsort(ops.microbatch[gradient], kind="stable")
    place = np.searchsorted(ops.microbatch[gradient[order]], ops.microbatch[updating], side="right") - 1
    return gradient[order[place]]


def _round_of_update(schedule: Schedule, ops: LaneOps, stage: int, updating: Rows) -> NDArray[np.int32]:
    return ops.microbatch[updating] // max(1, int(schedule.replicas()[stage]))


def _reduce_tasks(
    reduction: _Reduction,
    first: int,
    layout: _Layout,
    columns: Columns,
    final: dict[tuple[int, int], int],
) -> list[Dependencies]:
    """Write a lane of all-reduces, bucket by bucket, round by round; a bucket waits for its part of every replica's backward."""
    buckets, rounds = reduction.buckets, reduction.rounds
    tasks = slice(first, first + len(rounds) * len(buckets))
    columns["kind"][tasks] = OpKind.REDUCE
    columns["stage"][tasks] = reduction.stage
    columns["microbatch"][tasks] = np.repeat([number for number, _ in rounds], len(buckets))
    columns["seconds"][tasks] = np.tile([bucket.seconds for bucket in buckets], len(rounds))
    depend: list[Dependencies] = []
    for position, (number, rows) in enumerate(rounds):
        task = first + position * len(buckets)
        final[reduction.stage, number] = task + len(buckets) - 1
        for bucket in range(len(buckets)):
            zero = np.zeros(len(rows), dtype=np.int32)
            depend.append((np.full(len(rows), task + bucket), layout.main[rows] + bucket, zero))
    return depend


@dataclass(frozen=True, slots=True)
class _TiedRounds:
    """All-reduce of a weight that several stages use: rounds of (rows whose gradients it sums, the owner's round that waits).

    An asynchronous stage never waits for a stage before it: only the first stage, which has its gradient last, waits for the
    sum; the others take it with their next update after that.
    """

    cost: TiedReduction
    rounds: list[tuple[Rows, int]]


def _tied_rounds(schedule: Schedule, ops: LaneOps, cost: TiedReduction) -> _TiedRounds:
    """Flushed: one round, the last gradient of each lane. Asynchronous: as often as the stage with the fewest rounds has one."""
    own = [_rounds(schedule, ops, stage) for stage in cost.stages]
    if schedule.flush:
        return _TiedRounds(cost, [(np.concatenate([rows for _, rows in (one[0] for one in own)]), 0)])
    ends = [np.array([ops.microbatch[rows].max() for _, rows in rounds]) for rounds in own]
    found = []
    for end in min(ends, key=len):
        rows = [
            rounds[last][1]
            for rounds, upto in zip(own, ends, strict=True)
            if (last := int((upto <= end).sum()) - 1) >= 0
        ]
        waiting = int((ends[0] < end).sum())
        if waiting < len(own[0]):
            found.append((np.concatenate(rows), own[0][waiting][0]))
    return _TiedRounds(cost, found)


def _tied_tasks(
    schedule: Schedule,
    ops: LaneOps,
    tie: _TiedRounds,
    first: int,
    layout: _Layout,
    columns: Columns,
    trailing: list[tuple[int, int]],
) -> list[Dependencies]:
    """Write a lane of all-reduces, one a round; each waits for the stages' gradients, and updates wait for it."""
    tasks = slice(first, first + len(tie.rounds))
    columns["kind"][tasks] = OpKind.REDUCE
    columns["stage"][tasks] = tie.cost.stages[0]
    columns["microbatch"][tasks] = [number for _, number in tie.rounds]
    columns["seconds"][tasks] = tie.cost.seconds
    depend: list[Dependencies] = []
    for task, (rows, number) in enumerate(tie.rounds, start=first):
        if schedule.flush:
            updates = [
                place for (_, stage), place in zip(trailing, layout.trailing, strict=True) if stage in tie.cost.stages
            ]
        else:
            updates = []
            for _, held in ops.rows_of_stage[tie.cost.stages[0]]:
                updating = held[ops.kind[held] == OpKind.UPDATE]
                chosen = updating[_round_of_update(schedule, ops, tie.cost.stages[0], updating) == number]
                updates.extend(layout.main[chosen].tolist())
        depend.append((np.full(len(rows), task), layout.last[rows], np.zeros(len(rows), dtype=np.int32)))
        depend.append(
            (np.array(updates, dtype=np.int64), np.full(len(updates), task), np.zeros(len(updates), dtype=np.int32))
        )
    return depend


def _trailing_updates(ops: LaneOps) -> list[tuple[int, int]]:
    """(lane, stage) of the update ops that end a flushed mini-batch, in the order of the tasks; none after a lane of forwards."""
    return sorted(
        (lane, stage)
        for stage, lanes in enumerate(ops.rows_of_stage)
        for lane, rows in lanes
        if (ops.kind[rows] != OpKind.FORWARD).any()
    )


def _write_updates(
    ops: LaneOps, trailing: list[tuple[int, int]], layout: _Layout, columns: Columns, costs: Costs
) -> None:
    one = np.ones(1, dtype=np.int64)
    for (lane, stage), task in zip(trailing, layout.trailing, strict=True):
        replica = int(ops.lane_replica[lane])
        columns["kind"][task] = OpKind.UPDATE
        columns["stage"][task] = stage
        columns["replica"][task] = replica
        columns["seconds"][task] = costs.seconds(OpKind.UPDATE, stage, replica, one)[0]


def _update_waits(
    schedule: Schedule,
    ops: LaneOps,
    trailing: list[tuple[int, int]],
    layout: _Layout,
    reductions: list[_Reduction],
    final: dict[tuple[int, int], int],
) -> list[Dependencies]:
    """Updates wait for the last all-reduce of their round."""
    depend: list[Dependencies] = []
    for (_, stage), task in zip(trailing, layout.trailing, strict=True):
        if (stage, 0) in final:
            depend.append((np.array([task]), np.array([final[stage, 0]]), np.zeros(1, dtype=np.int32)))
    if schedule.flush:
        return depend
    for reduction in reductions:
        for _, rows in ops.rows_of_stage[reduction.stage]:
            updating = rows[ops.kind[rows] == OpKind.UPDATE]
            rounds = _round_of_update(schedule, ops, reduction.stage, updating).tolist()
            wanted = np.array([final[reduction.stage, number] for number in rounds], dtype=np.int64)
            depend.append((layout.main[updating], wanted, np.zeros(len(wanted), dtype=np.int32)))
    return depend


# ---- layout ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where tasks stand. Per row of ops: its first task, its first part, its last part, and how many tasks it has.

    trailing: tasks of the trailing updates; lane_offsets: of compute lanes, then of all-reduce lanes
    """

    lane_offsets: NDArray[np.int64]
    first: Rows
    main: Rows
    last: Rows
    width: Rows
    trailing: list[int]

    @property
    def tasks(self) -> int:
        return int(self.lane_offsets[-1])


def _lay_out(
    ops: LaneOps,
    parts: Rows,
    moves: _Moves | None,
    trailing: list[tuple[int, int]],
    reduce_lengths: list[int],
) -> _Layout:
    rows = len(ops.stage)
    before = np.zeros(rows, dtype=np.int64)
    width = parts
    if moves is not None:
        before = np.bincount(moves.receive_row, minlength=rows)
        width = parts + before + np.bincount(moves.send_row, minlength=rows)
    updates = np.bincount([lane for lane, _ in trailing], minlength=ops.lanes).astype(np.int64)
    totals = np.concatenate([[0], np.cumsum(width)])
    lengths = totals[ops.lane_offsets[1:]] - totals[ops.lane_offsets[:-1]] + updates
    lane_offsets = np.concatenate([[0], np.cumsum(np.concatenate([lengths, reduce_lengths]))]).astype(np.int64)
    shift = np.cumsum(updates) - updates
    first = totals[:-1] + np.repeat(shift, np.diff(ops.lane_offsets))
    main = first + before
    seen = np.zeros(ops.lanes, dtype=np.int64)
    places = []
    for lane, _ in trailing:
        places.append(int(lane_offsets[lane + 1] - updates[lane] + seen[lane]))
        seen[lane] += 1
    return _Layout(lane_offsets, first, main, main + parts - 1, width, places)


def _columns(
    ops: LaneOps,
    layout: _Layout,
    seconds: NDArray[np.float64],
    least: NDArray[np.float64] | None,
    parts: Rows,
    reductions: list[_Reduction],
) -> Columns:
    """Columns of the program with every row's op in all of its tasks; parts of a backward take their share of its seconds."""
    lane_of_row = np.repeat(np.arange(ops.lanes, dtype=np.int32), np.diff(ops.lane_offsets))
    source: Columns = {
        "kind": ops.kind,
        "stage": ops.stage,
        "microbatch": ops.microbatch,
        "replica": ops.lane_replica[lane_of_row],
        "first_sample": ops.first,
        "samples": ops.samples,
        "seconds": seconds,
    }
    if least is not None:
        source["least_seconds"] = least
    if layout.tasks == len(ops.stage):
        return source
    within = np.arange(int(layout.width.sum())) - np.repeat(np.cumsum(layout.width) - layout.width, layout.width)
    target = np.repeat(layout.first, layout.width) + within
    columns: Columns = {}
    for name, values in source.items():
        columns[name] = np.zeros(layout.tasks, dtype=values.dtype)
        columns[name][target] = np.repeat(values, layout.width)
    for reduction in reductions:
        shares = np.array([bucket.share for bucket in reduction.buckets])
        for _, rows in reduction.rounds:
            tasks = layout.main[rows][:, None] + np.arange(len(shares))
            columns["seconds"][tasks] = seconds[rows][:, None] * shares
            if least is not None:
                columns["least_seconds"][tasks] = least[rows][:, None] * shares
    return columns


def _lane_devices(ops: LaneOps, costs: Costs, reducing: list[int]) -> NDArray[np.int32]:
    """Device of each lane: that of its ops; an all-reduce lane counts to its (first) stage's first replica."""
    devices = [
        costs.device(int(ops.stage[head]), int(replica))
        for head, replica in zip(np.minimum(ops.lane_offsets[:-1], len(ops.stage) - 1), ops.lane_replica, strict=True)
    ]
    return np.array([*devices, *(costs.device(stage, 0) for stage in reducing)], dtype=np.int32)


def _rank_within(values: Rows) -> Rows:
    """Position of each entry among the equal entries before it; equal entries stand in order of appearance."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, dtype=bool)
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - starts
    return result


def _by_consumer(
    tasks: int, depend: list[Dependencies]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Dependencies by consuming task, as offsets and two columns."""
    consumer, producer, transfer = (np.concatenate([one[i] for one in depend]) for i in range(3))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(consumer, minlength=tasks))])
    order = np.argsort(consumer, kind="stable")
    return offsets, producer[order].astype(np.int32), transfer[order].astype(np.int32)
