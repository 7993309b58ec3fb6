"""Structure: a schedule lowered to tasks and waits, without seconds, bytes and devices.

The layout of a program: receives, parts of an op, sends; all-reduce lanes; updates at the end of lanes. What a task takes is the
number of a value; `simulator.lowering.fill` asks the costs of a plan for the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Integers
from simulator.costs.given import CollectiveForm
from simulator.lowering.coverage import Duration, LaneOps, durations
from simulator.lowering.unit_lanes import DOWNWARDS, UnitLane, parts_of_units, unit_lanes, units_in_order
from simulator.lowering.waits import Move, Waits, sendings
from simulator.schedules.ops import BACKWARD_KINDS, OpKind, among
from simulator.schedules.schedule import Lanes, Schedule

Columns = dict[str, NDArray[Any]]
"""Columns of the program, by name."""

Dependencies = tuple[Integers, Integers, NDArray[np.int32]]
"""Consuming task, producing task, transfer class."""


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """The part of a program that does not depend on seconds, bytes and devices.

    Columns as in `simulator.lowering.program.Program`, but for these:

    value: int32 [tasks]; number of what the task takes. Values stand in this order: durations of ops, and of overlapped pairs
        and the 0 of their second ops, seconds of transfer classes, collectives as `simulator.lowering.fill.Collectives` has
        them, parts of ops
    asked: what durations the costs are asked for, and their numbers of samples
    duration_of, sends_offsets, sends_class: of each duration of ops, the number of the asked one; and where an op takes at
        least as long as its sending, the transfer classes that it sends: rows sends_offsets[d]:sends_offsets[d+1]; else empty
    pairs: int64 [pairs, 2]; durations of the forward and the backward of each duration of an overlapped pair
    moves: transfer classes from 1: from (stage, replica), to (stage, replica), samples
    free: transfers take no time and queue nowhere, though their bytes are counted
    forms: of each stage, how many collectives its replicas have; ties: stages of each tied reduction
    part_duration, part_share: int64 [parts]; the duration that is cut, and the share (of `Collectives.shares`) that is taken
    apart: stages that run forwards again in ops of their own, not within their backwards
    lane_first: (stage, replica) of the head of each compute lane; lanes: how lanes of one device divide it, as in `Schedule`
    reducing: the stage that each collective lane counts to, in the order of the lanes: of buckets, of ties, of units
    """

    lane_offsets: Integers
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    replica: NDArray[np.int32]
    first_sample: Integers
    samples: Integers
    value: NDArray[np.int32]
    dependency_offsets: Integers
    dependency: NDArray[np.int32]
    transfer: NDArray[np.int32]
    sends: NDArray[np.int32] | None
    together: NDArray[np.int32] | None
    asked: tuple[tuple[Duration, Integers], ...]
    duration_of: Integers
    sends_offsets: Integers
    sends_class: Integers
    pairs: Integers
    moves: tuple[Move, ...]
    free: bool
    forms: tuple[CollectiveForm, ...]
    ties: tuple[tuple[int, ...], ...]
    part_duration: Integers
    part_share: Integers
    apart: tuple[int, ...]
    lane_first: tuple[tuple[int, int], ...]
    reducing: tuple[int, ...]
    lanes: Lanes | None

    def __len__(self) -> int:
        return len(self.value)


def assemble(
    schedule: Schedule,
    ops: LaneOps,
    waits: Waits,
    *,
    forms: Sequence[CollectiveForm],
    ties: Sequence[tuple[int, ...]],
    communication: str,
    updates: bool,
) -> Structure:
    """Lay the tasks out.

    forms: of each stage, used where it has replicas; ties: stages of each tied reduction
    communication: as in `simulator.lowering.lower`
    """
    trailing = _trailing_updates(ops, wanted=updates and schedule.flush)
    updated = set(trailing.stage.tolist())
    forms = [one._replace(updates=one.updates and stage in updated) for stage, one in enumerate(forms)]
    reductions = [
        _Reduction(stage, form, _rounds(schedule, ops, stage) if form.buckets else [])
        for stage, form in enumerate(forms)
        if form and not form.units
    ]
    tied = [_tied_rounds(schedule, ops, stages) for stages in ties]
    parts = parts_of_units(ops, forms)
    units = unit_lanes(ops, forms, parts)
    for reduction in reductions:
        for _, rows in reduction.rounds:
            parts[rows] = reduction.form.buckets
    blocking = {"send-blocking": "send", "both-blocking": "both"}.get(communication)
    moves = _Moves(waits, blocking) if blocking and waits.moves else None
    collective_lengths = [
        *(len(one.rounds) * one.form.buckets + one.form.updates for one in reductions),
        *(len(one.rounds) for one in tied),
        *(len(one) + sum(forms[stage].updates for stage in one.stages) for one in units),
    ]
    layout = _lay_out(ops, parts, moves, trailing, collective_lengths)
    values = _Values(ops, waits, trailing, forms, ties=len(ties), streaming=communication == "streaming")
    columns = _columns(ops, layout, values, reductions, forms)

    depend: list[Dependencies] = []
    if moves is None:
        depend.append((layout.main[waits.consumer], layout.last[waits.producer], waits.transfer))
    else:
        columns["sends"] = np.zeros(layout.tasks, dtype=np.int32)
        depend.append(_blocking_tasks(waits, moves, layout, columns, values))
        still = waits.transfer == 0
        depend.append((layout.main[waits.consumer[still]], layout.last[waits.producer[still]], waits.transfer[still]))
    final: dict[tuple[int, int], int] = {}
    begins = layout.lane_offsets[ops.lanes :].tolist()
    for reduction, first in zip(reductions, begins, strict=False):
        depend.extend(_reduce_tasks(reduction, first, layout, columns, values, final))
    for number, (tie, first) in enumerate(zip(tied, begins[len(reductions) :], strict=False)):
        columns["value"][first : first + len(tie.rounds)] = values.first_tie + number
        depend.extend(_tied_tasks(schedule, ops, tie, first, layout, columns, trailing))
    for lane, first in zip(units, begins[len(reductions) + len(tied) :], strict=False):
        depend.extend(_unit_tasks(ops, lane, first, layout, columns, values, final))
    _write_updates(trailing, layout, columns, values)
    depend.extend(_update_waits(schedule, ops, trailing, layout, reductions, final))
    behind = [[one.stage] for one in reductions] + [[] for _ in tied] + [one.stages for one in units]
    for stages, end in zip(behind, layout.lane_offsets[ops.lanes + 1 :].tolist(), strict=True):
        updating = [stage for stage in stages if forms[stage].updates]
        depend.extend(_update_gathers(updating, end - len(updating), trailing, layout, columns, values))
    offsets, dependency, transfer = _by_consumer(layout.tasks, depend)
    heads, no_parts = np.minimum(ops.lane_offsets[:-1], len(ops.stage) - 1), np.zeros(0, dtype=np.int64)
    return Structure(
        lane_offsets=layout.lane_offsets,
        kind=columns["kind"],
        stage=columns["stage"],
        microbatch=columns["microbatch"],
        replica=columns["replica"],
        first_sample=columns["first_sample"],
        samples=columns["samples"],
        value=columns["value"],
        dependency_offsets=offsets,
        dependency=dependency,
        transfer=transfer,
        sends=columns.get("sends"),
        together=_together(ops, layout) if len(ops.overlapped) else None,
        asked=values.asked,
        duration_of=values.duration_of,
        sends_offsets=values.sends_offsets,
        sends_class=values.sends_class,
        pairs=values.pairs,
        moves=waits.moves,
        free=communication in ("streaming", "free"),
        forms=tuple(forms),
        ties=tuple(ties),
        part_duration=np.concatenate([no_parts, *(one for one, _ in values.parts)]),
        part_share=np.concatenate([no_parts, *(one for _, one in values.parts)]),
        apart=tuple(np.unique(ops.stage[ops.kind == OpKind.RECOMPUTE]).tolist()),
        lane_first=tuple(zip(ops.stage[heads].tolist(), ops.replica[heads].tolist(), strict=True)),
        reducing=(
            *(one.stage for one in reductions),
            *(one.stages[0] for one in tied),
            *(one.stage[0] for one in units),
        ),
        lanes=schedule.lanes,
    )


class _Values:
    """Numbering of the distinct durations (values) of a structure's tasks.

    of_row: int32 [rows of ops]; of_update: int64 [updates at the ends of lanes]; the others as in `Structure`
    first_*: where each sort of value begins
    """

    def __init__(
        self,
        ops: LaneOps,
        waits: Waits,
        trailing: _Updates,
        forms: Sequence[CollectiveForm],
        *,
        ties: int,
        streaming: bool,
    ) -> None:
        self.of_row, asked = durations(ops)
        count = sum(len(samples) for _, samples in asked)
        self.duration_of = np.arange(count)
        self.sends_offsets, self.sends_class = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if streaming:
            self._tell_by_sending(*sendings(waits), waits.classes)
        known: dict[tuple[int, int], int] = {}
        places = zip(trailing.stage.tolist(), trailing.replica.tolist(), strict=True)
        own = [known.setdefault(place, len(known)) for place in places]
        self.of_update = len(self.duration_of) + np.array(own, dtype=np.int64)
        one = np.ones(1, dtype=np.int64)
        asked.extend((Duration(OpKind.UPDATE, *place), one) for place in known)
        self.duration_of = np.concatenate([self.duration_of, np.arange(count, count + len(known))])
        if streaming:
            last = np.full(len(known), self.sends_offsets[-1])
            self.sends_offsets = np.concatenate([self.sends_offsets, last])
        self.asked = tuple(asked)
        self.first_transfer = len(self.duration_of)
        self.pairs = np.zeros((0, 2), dtype=np.int64)
        if len(ops.overlapped):
            self._pair(ops.overlapped)
        buckets, units, updates = (
            np.cumsum([0, *counts])
            for counts in zip(*((one.buckets, one.units, one.updates) for one in forms), strict=True)
        )
        self.first_bucket = self.first_transfer + waits.classes
        self.bucket_of_stage, self.unit_of_stage, self._update_gather_of_stage = buckets, units, updates
        self.buckets, self.units = int(buckets[-1]), int(units[-1])
        self.first_tie = self.first_bucket + self.buckets
        self.first_gather = self.first_tie + ties
        self.first_scatter = self.first_gather + self.units
        self._first_part = self.first_scatter + self.units + int(updates[-1])
        self.parts: list[tuple[Integers, Integers]] = []  # durations and shares

    def _pair(self, first: Integers) -> None:
        """Number what overlapped pairs take, by the durations of both, and behind these the 0 of their second ops."""
        of_both = np.stack([self.of_row[first], self.of_row[first + 1]], axis=1).astype(np.int64)
        self.pairs, number = np.unique(of_both, axis=0, return_inverse=True)
        self.of_row[first] = self.first_transfer + number.reshape(-1)
        self.of_row[first + 1] = self.first_transfer + len(self.pairs)
        self.first_transfer += len(self.pairs) + 1

    def _tell_by_sending(self, rows: Integers, classes: Integers, count: int) -> None:
        """Tell durations apart by what their ops send, so that a duration and its sending are one value."""
        sent = np.bincount(rows, minlength=len(self.of_row))
        signature = np.zeros(len(self.of_row), dtype=np.int64)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(sent) - sent, sent)
        for position in range(int(sent.max(initial=0))):
            here = place == position
            following = np.zeros(len(self.of_row), dtype=np.int64)
            following[rows[here]] = classes[here]
            _, signature = np.unique(signature * count + following, return_inverse=True)
        key = self.of_row.astype(np.int64) * (int(signature.max(initial=0)) + 1) + signature
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        begins = np.cumsum(sent) - sent
        self.duration_of = self.of_row[first].astype(np.int64)
        self.sends_offsets = np.concatenate([[0], np.cumsum(sent[first])]).astype(np.int64)
        held = [classes[begins[row] : begins[row] + sent[row]] for row in first.tolist()]
        self.sends_class = np.concatenate(held)
        self.of_row = number.astype(np.int32)

    def update_gather(self, stage: int) -> int:
        """Value of the all-gather of what a stage's replicas have updated."""
        return self.first_scatter + self.units + int(self._update_gather_of_stage[stage])

    def cut(self, durations: Integers, shares: Integers) -> Integers:
        """Values of the parts of some durations, none of which was cut into these shares before, int64 [durations, shares]."""
        first = self._first_part + sum(len(one) for one, _ in self.parts)
        self.parts.append((np.repeat(durations, len(shares)), np.tile(shares, len(durations))))
        return first + np.arange(len(durations) * len(shares)).reshape(len(durations), len(shares))


# ---- blocking transfers ---------------------------------------------------------------------------------------------


class _Moves:
    """Transfers as tasks: one send per producer and transfer class, one receive before the first op that needs it.

    send_row, receive_row: row of `ops` that each stands beside; send_class, receive_class: transfer class
    send_of_wait: the send of each moving wait; send_of_receive: the send of each receive
    """

    def __init__(self, waits: Waits, blocking: str) -> None:
        self.moving = np.flatnonzero(waits.transfer)
        producer, consumer = waits.producer[self.moving], waits.consumer[self.moving]
        key = producer * np.int64(waits.classes) + waits.transfer[self.moving]
        _, first, self.send_of_wait = np.unique(key, return_index=True, return_inverse=True)
        self.send_row, self.send_class = producer[first], waits.transfer[self.moving][first]
        order = np.lexsort((consumer, self.send_of_wait))
        group = self.send_of_wait[order]
        begins = np.concatenate([[True], group[1:] != group[:-1]])
        chosen = order[begins] if blocking == "both" else order[:0]
        self.receive_row, self.receive_class = consumer[chosen], waits.transfer[self.moving][chosen]
        self.send_of_receive = self.send_of_wait[chosen]


def _blocking_tasks(waits: Waits, moves: _Moves, layout: _TaskRows, columns: Columns, values: _Values) -> Dependencies:
    """Write send and receive tasks; returns who waits for the sends."""
    send = layout.last[moves.send_row] + 1 + _rank_within(moves.send_row)
    columns["kind"][send] = OpKind.SEND
    columns["value"][send] = values.first_transfer + moves.send_class
    columns["sends"][send] = moves.send_class
    if len(moves.receive_row):
        receive = layout.first[moves.receive_row] + _rank_within(moves.receive_row)
        columns["kind"][receive] = OpKind.RECEIVE
        columns["value"][receive] = values.first_transfer + moves.receive_class
        return receive, send[moves.send_of_receive], np.zeros(len(receive), dtype=np.int32)
    consumer = layout.main[waits.consumer[moves.moving]]
    return consumer, send[moves.send_of_wait], np.zeros(len(consumer), dtype=np.int32)


# ---- gradients and updates ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reduction:
    """Reduction of one replicated stage: its buckets, and rounds of (number, rows whose gradients complete the round)."""

    stage: int
    form: CollectiveForm
    rounds: list[tuple[int, Integers]]


def _rounds(schedule: Schedule, ops: LaneOps, stage: int) -> list[tuple[int, Integers]]:
    """Rounds of gradient all-reduce of a stage, in order.

    Flushed: one round, the last gradient of each lane. Asynchronous: the last gradient of each update's mini-batch; round-robin
    replicas reduce together once each has run one mini-batch (the last round may have fewer).
    """
    lanes = ops.rows_of_stage[stage]
    kinds = (OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT)
    gradients = [rows[among(ops.kind[rows], kinds)] for _, rows in lanes]
    if schedule.flush:
        return [(0, np.array([rows[-1] for rows in gradients if len(rows)], dtype=np.int64))]
    triggers, numbers = [], []
    in_turn = ops.in_turn[stage] > 1
    for (_, rows), gradient in zip(lanes, gradients, strict=True):
        updating = rows[ops.kind[rows] == OpKind.UPDATE]
        triggers.append(
            _of_minibatch(ops, gradient, updating) if in_turn else gradient[np.searchsorted(gradient, updating) - 1]
        )
        numbers.append(_round_of_update(ops, stage, updating))
    rows, round_of = np.concatenate(triggers), np.concatenate(numbers)
    order = np.argsort(round_of, kind="stable")
    distinct, starts = np.unique(round_of[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(rows[order], starts[1:]), strict=True))


def _of_minibatch(ops: LaneOps, gradient: Integers, updating: Integers) -> Integers:
    """The last gradient of each update's own mini-batch: replicas in turn may run later ones before they update."""
    order = np.argsort(ops.microbatch[gradient], kind="stable")
    place = np.searchsorted(ops.microbatch[gradient[order]], ops.microbatch[updating], side="right") - 1
    return gradient[order[place]]


def _round_of_update(ops: LaneOps, stage: int, updating: Integers) -> NDArray[np.int32]:
    return ops.microbatch[updating] // max(1, ops.in_turn[stage])


def _reduce_tasks(
    reduction: _Reduction,
    first: int,
    layout: _TaskRows,
    columns: Columns,
    values: _Values,
    final: dict[tuple[int, int], int],
) -> list[Dependencies]:
    """Write a lane of reductions, bucket by bucket, round by round; a bucket waits for its part of every replica's backward."""
    buckets, rounds = reduction.form.buckets, reduction.rounds
    if not rounds:
        return []
    tasks = slice(first, first + len(rounds) * buckets)
    columns["kind"][tasks] = OpKind.SCATTER if reduction.form.scatters else OpKind.REDUCE
    columns["stage"][tasks] = reduction.stage
    columns["microbatch"][tasks] = np.repeat([number for number, _ in rounds], buckets)
    begin = values.first_bucket + int(values.bucket_of_stage[reduction.stage])
    columns["value"][tasks] = np.tile(np.arange(begin, begin + buckets), len(rounds))
    final.update(
        ((reduction.stage, number), first + (place + 1) * buckets - 1) for place, (number, _) in enumerate(rounds)
    )
    rows = np.concatenate([rows for _, rows in rounds])
    round_of = np.repeat(np.arange(len(rounds)), [len(rows) for _, rows in rounds])
    every = np.arange(buckets)[:, None]
    own, theirs = (first + round_of * buckets + every).reshape(-1), (layout.main[rows] + every).reshape(-1)
    return [(own, theirs, np.zeros(len(own), dtype=np.int32))]


def _unit_tasks(
    ops: LaneOps,
    lane: UnitLane,
    first: int,
    layout: _TaskRows,
    columns: Columns,
    values: _Values,
    final: dict[tuple[int, int], int],
) -> list[Dependencies]:
    """Write the collectives of a rank whose replicas divide gradients, or weights, too."""
    tasks = slice(first, first + len(lane))
    columns["kind"][tasks] = np.where(lane.gathers, OpKind.GATHER, OpKind.SCATTER)
    columns["stage"][tasks], columns["microbatch"][tasks] = lane.stage, lane.microbatch
    number = values.unit_of_stage[lane.stage] + lane.unit
    columns["value"][tasks] = number + np.where(lane.gathers, values.first_gather, values.first_scatter)
    for place in np.flatnonzero(~lane.gathers).tolist():
        final[int(lane.stage[place]), 0] = first + place
    begins = ops.lane_offsets[list(lane.lanes)]
    depend = []
    for waits, of_part in ((lane.after, False), (lane.before, True)):
        if len(waits.tasks):
            own = first + np.repeat(waits.tasks, len(begins))
            rows = (waits.parts.rows - begins[0])[:, None] + begins
            theirs = (layout.main[rows] + waits.parts.numbers[:, None]).reshape(-1)
            depend.append((*((theirs, own) if of_part else (own, theirs)), np.zeros(len(own), dtype=np.int32)))
    return depend


def _update_gathers(
    stages: list[int],
    first: int,
    trailing: _Updates,
    layout: _TaskRows,
    columns: Columns,
    values: _Values,
) -> list[Dependencies]:
    """Write the all-gathers at the end of a lane, of what the replicas of some stages have updated."""
    depend: list[Dependencies] = []
    for task, stage in enumerate(stages, start=first):
        columns["kind"][task], columns["stage"][task] = OpKind.GATHER, stage
        columns["value"][task] = values.update_gather(stage)
        updates = layout.trailing[trailing.stage == stage]
        depend.append((np.full(len(updates), task), updates, np.zeros(len(updates), dtype=np.int32)))
    return depend


@dataclass(frozen=True, slots=True)
class _TiedRounds:
    """All-reduce of a weight that several stages use: rounds of (rows whose gradients it sums, the owner's round that waits).

    An asynchronous stage never waits for a stage before it: only the first stage, which has its gradient last, waits for the
    sum; the others take it with their next update after that.
    """

    stages: tuple[int, ...]
    rounds: list[tuple[Integers, int]]


def _tied_rounds(schedule: Schedule, ops: LaneOps, stages: tuple[int, ...]) -> _TiedRounds:
    """Flushed: one round, the last gradient of each lane. Asynchronous: as often as the stage with the fewest rounds has one."""
    own = [_rounds(schedule, ops, stage) for stage in stages]
    if schedule.flush:
        return _TiedRounds(stages, [(np.concatenate([rows for _, rows in (one[0] for one in own)]), 0)])
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
    return _TiedRounds(stages, found)


def _tied_tasks(
    schedule: Schedule,
    ops: LaneOps,
    tie: _TiedRounds,
    first: int,
    layout: _TaskRows,
    columns: Columns,
    trailing: _Updates,
) -> list[Dependencies]:
    """Write a lane of all-reduces, one per round; each waits for the stages' gradients, and updates wait for it."""
    tasks = slice(first, first + len(tie.rounds))
    columns["kind"][tasks] = OpKind.REDUCE
    columns["stage"][tasks] = tie.stages[0]
    columns["microbatch"][tasks] = [number for _, number in tie.rounds]
    depend: list[Dependencies] = []
    for task, (rows, number) in enumerate(tie.rounds, start=first):
        if schedule.flush:
            updates = layout.trailing[np.isin(trailing.stage, tie.stages)].tolist()
        else:
            updates = []
            for _, held in ops.rows_of_stage[tie.stages[0]]:
                updating = held[ops.kind[held] == OpKind.UPDATE]
                chosen = updating[_round_of_update(ops, tie.stages[0], updating) == number]
                updates.extend(layout.main[chosen].tolist())
        depend.append((np.full(len(rows), task), layout.last[rows], np.zeros(len(rows), dtype=np.int32)))
        depend.append(
            (np.array(updates, dtype=np.int64), np.full(len(updates), task), np.zeros(len(updates), dtype=np.int32))
        )
    return depend


class _Updates(NamedTuple):
    """Update ops that end a flushed mini-batch, in the order of the tasks, after lanes with gradients; int64 [updates] each."""

    lane: Integers
    stage: Integers
    replica: Integers


def _trailing_updates(ops: LaneOps, *, wanted: bool) -> _Updates:
    """The trailing updates of all lanes and their stages; empty if none are wanted."""
    rows = np.flatnonzero(among(ops.kind, (*BACKWARD_KINDS, OpKind.WEIGHT_GRADIENT)) & wanted)
    key = ops.lane_of_row()[rows] * len(ops.rows_of_stage) + ops.stage[rows]
    found, first = np.unique(key, return_index=True)
    return _Updates(*np.divmod(found, len(ops.rows_of_stage)), ops.replica[rows[first]].astype(np.int64))


def _write_updates(trailing: _Updates, layout: _TaskRows, columns: Columns, values: _Values) -> None:
    columns["kind"][layout.trailing] = OpKind.UPDATE
    columns["stage"][layout.trailing] = trailing.stage
    columns["replica"][layout.trailing] = trailing.replica
    columns["value"][layout.trailing] = values.of_update


def _update_waits(
    schedule: Schedule,
    ops: LaneOps,
    trailing: _Updates,
    layout: _TaskRows,
    reductions: list[_Reduction],
    final: dict[tuple[int, int], int],
) -> list[Dependencies]:
    """Updates wait for the last all-reduce of their round."""
    depend: list[Dependencies] = []
    if schedule.flush:
        for stage in dict.fromkeys(stage for stage, _ in final):
            tasks = layout.trailing[trailing.stage == stage]
            depend.append((tasks, np.full(len(tasks), final[stage, 0]), np.zeros(len(tasks), dtype=np.int32)))
        return depend
    for reduction in reductions:
        for _, rows in ops.rows_of_stage[reduction.stage]:
            updating = rows[ops.kind[rows] == OpKind.UPDATE]
            rounds = _round_of_update(ops, reduction.stage, updating).tolist()
            wanted = np.array([final[reduction.stage, number] for number in rounds], dtype=np.int64)
            depend.append((layout.main[updating], wanted, np.zeros(len(wanted), dtype=np.int32)))
    return depend


# ---- layout ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TaskRows:
    """Places of tasks. Per row of ops: its first task, its first part, its last part, and how many tasks it has.

    trailing: tasks of the trailing updates; lane_offsets: of compute lanes, then of all-reduce lanes
    """

    lane_offsets: Integers
    first: Integers
    main: Integers
    last: Integers
    width: Integers
    trailing: Integers

    @property
    def tasks(self) -> int:
        return int(self.lane_offsets[-1])


def _lay_out(
    ops: LaneOps,
    parts: Integers,
    moves: _Moves | None,
    trailing: _Updates,
    reduce_lengths: list[int],
) -> _TaskRows:
    rows = len(ops.stage)
    before = np.zeros(rows, dtype=np.int64)
    width = parts
    if moves is not None:
        before = np.bincount(moves.receive_row, minlength=rows)
        width = parts + before + np.bincount(moves.send_row, minlength=rows)
    updates = np.bincount(trailing.lane, minlength=ops.lanes).astype(np.int64)
    totals = np.concatenate([[0], np.cumsum(width)])
    lengths = totals[ops.lane_offsets[1:]] - totals[ops.lane_offsets[:-1]] + updates
    lane_offsets = np.concatenate([[0], np.cumsum(np.concatenate([lengths, reduce_lengths]))]).astype(np.int64)
    shift = np.cumsum(updates) - updates
    first = totals[:-1] + np.repeat(shift, np.diff(ops.lane_offsets))
    main = first + before
    places = (lane_offsets[1 : ops.lanes + 1] - updates)[trailing.lane] + _rank_within(trailing.lane)
    return _TaskRows(lane_offsets, first, main, main + parts - 1, width, places)


def _columns(
    ops: LaneOps,
    layout: _TaskRows,
    values: _Values,
    reductions: list[_Reduction],
    forms: Sequence[CollectiveForm],
) -> Columns:
    """Columns of the program with every row's op in all of its tasks; parts of an op take their share of it."""
    source: Columns = {
        "kind": ops.kind,
        "stage": ops.stage,
        "microbatch": ops.microbatch,
        "replica": ops.replica,
        "first_sample": ops.first,
        "samples": ops.samples,
        "value": values.of_row,
    }
    if layout.tasks == len(ops.stage):
        return source
    within = np.arange(int(layout.width.sum())) - np.repeat(np.cumsum(layout.width) - layout.width, layout.width)
    target = np.repeat(layout.first, layout.width) + within
    columns: Columns = {}
    for name, held in source.items():
        columns[name] = np.zeros(layout.tasks, dtype=held.dtype)
        columns[name][target] = np.repeat(held, layout.width)

    def cut(rows: Integers, shares: Sequence[int]) -> None:
        """Let the parts of some rows take these shares of their durations."""
        known, number = np.unique(values.of_row[rows], return_inverse=True)
        parts = values.cut(known.astype(np.int64), np.array(shares))
        columns["value"][layout.main[rows][:, None] + np.arange(len(shares))] = parts[number]

    for reduction in reductions:
        first = int(values.bucket_of_stage[reduction.stage])
        if reduction.rounds:
            rows = np.concatenate([rows for _, rows in reduction.rounds])
            cut(rows, range(first, first + reduction.form.buckets))
    parts = layout.last - layout.main + 1
    for stage, form in enumerate(forms):
        if form.units > 1:
            own = np.concatenate([rows for _, rows in ops.rows_of_stage[stage]])
            own = own[parts[own] > 1]
            first = values.buckets + int(values.unit_of_stage[stage])
            for kind in np.unique(ops.kind[own]).tolist():
                begin = first + (0 if kind in DOWNWARDS else values.units)
                cut(own[ops.kind[own] == kind], [begin + unit for unit in units_in_order(kind, form.units)])
    return columns


def _together(ops: LaneOps, layout: _TaskRows) -> NDArray[np.int32]:
    """int32 [tasks]: the task that each begins and ends with, as `Program.together` says."""
    result = np.arange(layout.tasks, dtype=np.int32)
    for row in ops.overlapped.tolist():
        result[layout.main[row + 1] : layout.last[row + 1] + 1] = layout.main[row]
    return result


def _rank_within(values: Integers) -> Integers:
    """Position of each entry among the equal entries before it; equal entries stand in order of appearance."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, dtype=bool)
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - starts
    return result


def _by_consumer(tasks: int, depend: list[Dependencies]) -> tuple[Integers, NDArray[np.int32], NDArray[np.int32]]:
    """Dependencies by consuming task, as offsets and two columns."""
    consumer, producer, transfer = (np.concatenate([one[i] for one in depend]) for i in range(3))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(consumer, minlength=tasks))])
    order = np.argsort(consumer, kind="stable")
    return offsets, producer[order].astype(np.int32), transfer[order].astype(np.int32)
