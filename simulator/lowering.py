"""Lowering: schedule × costs -> program; every wait, transfer and all-reduce is decided here, once for both engines.

In order: ops are copied to the replicas that share a micro-batch; an op waits for every op that delivers a sample that it covers;
blocking transfers become tasks of the compute lanes; the gradients of replicated stages are all-reduced bucket by bucket on a
lane of their own; and a flushed mini-batch ends in one update per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Bucket, Costs, Transfer
from simulator.ops import OpKind
from simulator.program import LaneKind, Program, Route
from simulator.schedule import Schedule, ScheduleError

Communication = Literal["overlapped", "send-blocking", "both-blocking"]
COMMUNICATIONS: tuple[str, ...] = get_args(Communication)

Rows = NDArray[np.int64]


def lower(
    schedule: Schedule,
    costs: Costs,
    *,
    forward_sizes: Sequence[int] | Sequence[Sequence[int]] | None = None,
    backward_sizes: Sequence[int] | Sequence[Sequence[int]] | None = None,
    split_replicas: Sequence[int] | None = None,
    communication: Communication = "overlapped",
    updates: bool = False,
) -> Program:
    """Lower a schedule to a program.

    forward_sizes, backward_sizes: samples of each micro-batch, one list for all stages or one list a stage; default 1 each,
        backward as forward
    split_replicas: devices that share each micro-batch of a stage, one count a stage; default 1
    communication: `overlapped`: transfers run beside computation; `send-blocking`: the sender's device is busy for the transfer
        right after the op, the receiver waits for the arrival; `both-blocking`: the receiver's device is then busy as long before
        its op
    updates: a flushed schedule ends in an update op per stage (asynchronous schedules bring their own)
    Raises ValueError for sizes that do not fit the schedule, ScheduleError for an order that contradicts its data.
    """
    if communication not in COMMUNICATIONS:
        raise ValueError(f"communication {communication!r} is unknown; choices: {', '.join(COMMUNICATIONS)}")
    forward = _bounds("forward sizes", forward_sizes, schedule)
    backward = forward if backward_sizes is None else _bounds("backward sizes", backward_sizes, schedule)
    _check_same_samples(forward, backward)
    replicas = np.ones(schedule.stages, dtype=np.int64) if split_replicas is None else np.asarray(split_replicas)
    base = _copy_to_replicas(schedule, replicas, forward, backward)
    edges = _data_edges(base, schedule.stages, costs)
    seconds = _durations(base, costs)
    return _assemble(schedule, base, edges, seconds, costs, communication, updates)


# ---- samples of micro-batches ---------------------------------------------------------------------------------------


Bounds = list[NDArray[np.int64]]
"""Per stage: int64 [micro-batches + 1], first sample of each micro-batch and the end."""


def _bounds(
    name: str, sizes: Sequence[int] | Sequence[Sequence[int]] | None, schedule: Schedule
) -> Bounds:
    if sizes is None:
        shared = np.arange(schedule.microbatches + 1, dtype=np.int64)
        return [shared] * schedule.stages
    nested = len(sizes) > 0 and not np.isscalar(sizes[0])
    per_stage = list(sizes) if nested else [sizes] * schedule.stages
    if len(per_stage) != schedule.stages:
        raise ValueError(f"{name} need one list for each of {schedule.stages} stages, got {len(per_stage)} lists")
    made: dict[int, NDArray[np.int64]] = {}
    result = []
    for stage, stage_sizes in enumerate(per_stage):
        bounds = made.get(id(stage_sizes))
        if bounds is None:
            values = np.asarray(stage_sizes, dtype=np.int64)
            if not nested and len(values) != schedule.microbatches:
                raise ValueError(f"{name} need {schedule.microbatches} micro-batches, got {len(values)}")
            if len(values) == 0 or values.min() < 1:
                raise ValueError(f"{name} of stage {stage} must be at least 1 sample each, got {values.tolist()}")
            bounds = np.concatenate([[0], np.cumsum(values)])
            made[id(stage_sizes)] = bounds
        result.append(bounds)
    return result


def _check_same_samples(forward: Bounds, backward: Bounds) -> None:
    total = forward[0][-1]
    for name, bounds in (("forward", forward), ("backward", backward)):
        for stage, one in enumerate(bounds):
            if one[-1] != total:
                raise ValueError(
                    f"{name} sizes of stage {stage} sum to {one[-1]} samples, those of stage 0 forward to {total}; "
                    "every stage must cover the same mini-batch"
                )


# ---- ops on lanes ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Base:
    """Ops of the schedule on lanes, before transfers and all-reduces: lane by lane, as columns."""

    lane_offsets: NDArray[np.int64]
    lane_replica: NDArray[np.int32]
    stage: NDArray[np.int32]
    kind: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    first: NDArray[np.int32]
    samples: NDArray[np.int32]
    rows_of_stage: list[list[tuple[int, Rows]]]
    """Per stage: (lane, rows of the stage on that lane, rising)."""


def _copy_to_replicas(schedule: Schedule, replicas: NDArray[np.int64], forward: Bounds, backward: Bounds) -> _Base:
    if len(replicas) != schedule.stages or replicas.min() < 1:
        raise ValueError(
            f"split replicas need a count of at least 1 for each of {schedule.stages} stages, got {replicas.tolist()}"
        )
    split = bool(replicas.max() > 1)
    if split and (schedule.replicas() > 1).any():
        raise ValueError("a schedule with round-robin replicas cannot split micro-batches over replicas as well")
    spans: list[tuple[int, int, int]] = []  # first row, end row, replica
    for rank in range(schedule.ranks):
        rows = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
        counts = np.unique(replicas[schedule.stage[rows[0] : rows[1]]]) if split else np.ones(1, dtype=np.int64)
        if len(counts) > 1:
            raise ValueError(f"the stages of device {rank} must have one number of replicas, got {counts.tolist()}")
        for replica in range(int(counts[0]) if len(counts) else 1):
            spans.append((*rows, replica if split else int(schedule.replica[rank])))
    offsets = np.concatenate([[0], np.cumsum([end - first for first, end, _ in spans], dtype=np.int64)])
    if split:
        source = np.concatenate([np.arange(first, end) for first, end, _ in spans])
        stage, kind, microbatch = schedule.stage[source], schedule.kind[source], schedule.microbatch[source]
    else:
        stage, kind, microbatch = schedule.stage, schedule.kind, schedule.microbatch
    base = _Base(
        lane_offsets=offsets,
        lane_replica=np.array([replica for _, _, replica in spans], dtype=np.int32),
        stage=stage,
        kind=kind,
        microbatch=microbatch,
        first=np.zeros(len(stage), dtype=np.int32),
        samples=np.zeros(len(stage), dtype=np.int32),
        rows_of_stage=[[] for _ in range(schedule.stages)],
    )
    for lane in range(len(spans)):
        begin, end = int(offsets[lane]), int(offsets[lane + 1])
        held = stage[begin:end]
        for number in np.unique(held):
            rows = begin + np.flatnonzero(held == number)
            base.rows_of_stage[int(number)].append((lane, rows))
            share = (int(base.lane_replica[lane]), int(replicas[number])) if split else (0, 1)
            _cover(base, rows, forward[int(number)], backward[int(number)], share)
    return base


def _cover(
    base: _Base, rows: Rows, forward: NDArray[np.int64], backward: NDArray[np.int64], share: tuple[int, int]
) -> None:
    """Write the sample range of each row; `share` is (replica, replicas) where a micro-batch is split."""
    kind, microbatch = base.kind[rows], base.microbatch[rows].astype(np.int64)
    for bounds, select in (
        (forward, kind == OpKind.FORWARD),
        (backward, (kind >= OpKind.BACKWARD) & (kind <= OpKind.WEIGHT_GRADIENT)),
    ):
        chosen, number = rows[select], microbatch[select]
        if len(number) and number.max() >= len(bounds) - 1:
            row = chosen[int(np.argmax(number))]
            raise ScheduleError(
                f"stage {base.stage[row]} has {len(bounds) - 1} micro-batches, the schedule asks for number {number.max()}"
            )
        begin, end = bounds[number], bounds[number + 1]
        replica, count = share
        size = end - begin
        base.first[chosen] = begin + size * replica // count
        base.samples[chosen] = size * (replica + 1) // count - size * replica // count


def _durations(base: _Base, costs: Costs) -> NDArray[np.float64]:
    seconds = np.zeros(len(base.stage), dtype=np.float64)
    for stage, lanes in enumerate(base.rows_of_stage):
        for lane, rows in lanes:
            kinds = base.kind[rows]
            for kind in np.unique(kinds):
                chosen = rows[kinds == kind]
                samples = base.samples[chosen].astype(np.int64)
                value = costs.seconds(OpKind(int(kind)), stage, int(base.lane_replica[lane]), samples)
                timeless = (samples == 0) & (kind <= OpKind.WEIGHT_GRADIENT)
                seconds[chosen] = np.where(timeless, 0.0, value)
    return seconds


# ---- who waits for whom ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Edges:
    """Data dependencies between base rows; `transfer` indexes `transfers`, 0 for none."""

    consumer: Rows
    producer: Rows
    transfer: NDArray[np.int32]
    transfers: list[Transfer]


class _TransferClasses:
    """Numbers each distinct transfer once."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._numbers: dict[tuple[tuple[int, int], tuple[int, int], int], int] = {}
        self.transfers = [Transfer(0.0, 0.0)]

    def number(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> int:
        key = (source, target, samples)
        if key not in self._numbers:
            self._numbers[key] = len(self.transfers)
            self.transfers.append(self._costs.transfer(source, target, samples))
        return self._numbers[key]


@dataclass(slots=True)
class _Covering:
    """Rows of one stage and direction over all its lanes, by the first sample that they cover."""

    rows: Rows
    lane: NDArray[np.int64]
    first: NDArray[np.int64]
    end: NDArray[np.int64]


def _covering(base: _Base, stage: int, kinds: tuple[OpKind, ...]) -> _Covering:
    rows_list, lane_list = [], []
    for lane, rows in base.rows_of_stage[stage]:
        kind = base.kind[rows]
        chosen = rows[np.isin(kind, kinds) & (base.samples[rows] > 0)] if len(kinds) > 1 else rows[
            (kind == kinds[0]) & (base.samples[rows] > 0)
        ]
        rows_list.append(chosen)
        lane_list.append(np.full(len(chosen), lane, dtype=np.int64))
    rows, lanes = np.concatenate(rows_list), np.concatenate(lane_list)
    first = base.first[rows].astype(np.int64)
    if len(first) > 1 and not (first[1:] >= first[:-1]).all():
        order = np.argsort(first, kind="stable")
        rows, lanes, first = rows[order], lanes[order], first[order]
    return _Covering(rows, lanes, first, first + base.samples[rows])


_GRADIENT_KINDS = (OpKind.BACKWARD, OpKind.INPUT_GRADIENT)


def _data_edges(base: _Base, stages: int, costs: Costs) -> _Edges:
    classes = _TransferClasses(costs)
    consumers: list[Rows] = []
    producers: list[Rows] = []
    numbers: list[NDArray[np.int32]] = []

    def join(down: _Covering, up: _Covering, source_stage: int, target_stage: int, what: str) -> None:
        consumer, producer, transfer = _match(base, down, up, source_stage, target_stage, classes, what)
        consumers.append(consumer)
        producers.append(producer)
        numbers.append(transfer)

    before: tuple[_Covering, _Covering] | None = None
    for stage in range(stages):
        if not base.rows_of_stage[stage]:
            raise ScheduleError(f"stage {stage} has no op on any device, but stages are numbered to {stages - 1}")
        forward = _covering(base, stage, (OpKind.FORWARD,))
        gradient = _covering(base, stage, _GRADIENT_KINDS)
        weight = _covering(base, stage, (OpKind.WEIGHT_GRADIENT,))
        if len(gradient.rows):
            join(gradient, forward, stage, stage, "backward")
        if len(weight.rows):
            join(weight, gradient, stage, stage, "weight gradient")
        if before is not None:
            join(forward, before[0], stage - 1, stage, "forward")
            if len(before[1].rows):
                join(before[1], gradient, stage, stage - 1, "backward")
        before = (forward, gradient)
    return _Edges(
        np.concatenate(consumers), np.concatenate(producers), np.concatenate(numbers), classes.transfers
    )


def _match(
    base: _Base,
    down: _Covering,
    up: _Covering,
    source_stage: int,
    target_stage: int,
    classes: _TransferClasses,
    what: str,
) -> tuple[Rows, Rows, NDArray[np.int32]]:
    """Edges from every row of `up` to the rows of `down` that cover a sample of it; those that the lane's order implies are left out."""
    begin = np.searchsorted(up.end, down.first, side="right")
    stop = np.searchsorted(up.first, down.end, side="left")
    _check_delivered(base, down, up, begin, stop, what)
    counts = stop - begin
    index = np.repeat(np.arange(len(down.rows)), counts)
    within = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    source = np.repeat(begin, counts) + within
    consumer, producer = down.rows[index], up.rows[source]
    same_lane = down.lane[index] == up.lane[source]
    late = same_lane & (producer > consumer)
    if late.any():
        row = int(consumer[np.argmax(late)])
        lane = int(np.searchsorted(base.lane_offsets, row, side="right")) - 1
        raise ScheduleError(
            f"device {lane}, position {row - base.lane_offsets[lane]}: op {_name(base, row)} stands before "
            f"{_name(base, int(producer[np.argmax(late)]))}, whose output it needs"
        )
    keep = ~same_lane
    index, source, consumer, producer = index[keep], source[keep], consumer[keep], producer[keep]
    if source_stage == target_stage:
        return consumer, producer, np.zeros(len(consumer), dtype=np.int32)
    shared = np.minimum(down.end[index], up.end[source]) - np.maximum(down.first[index], up.first[source])
    number = _classify(base, down.lane[index], up.lane[source], producer, shared, source_stage, target_stage, classes)
    return consumer, producer, number


def _check_delivered(base: _Base, down: _Covering, up: _Covering, begin: Rows, stop: Rows, what: str) -> None:
    """Every sample of every row must come from somewhere: the producers must tile the consumer's range."""
    covered = np.concatenate([[0], np.cumsum(up.end - up.first)])
    have = covered[stop] - covered[begin]
    overhang = np.zeros(len(have), dtype=np.int64)
    some = stop > begin
    overhang[some] = (down.first - up.first[np.minimum(begin, len(up.first) - 1)])[some].clip(min=0) + (
        up.end[np.maximum(stop - 1, 0)] - down.end
    )[some].clip(min=0)
    short = have - overhang < down.end - down.first
    if short.any():
        row = int(down.rows[np.argmax(short)])
        raise ScheduleError(f"op {_name(base, row)} ({what}) covers samples that no op before it delivers")


def _classify(
    base: _Base,
    target_lane: Rows,
    source_lane: Rows,
    producer: Rows,
    shared: Rows,
    source_stage: int,
    target_stage: int,
    classes: _TransferClasses,
) -> NDArray[np.int32]:
    """Class of the transfer of each edge: one transfer per producer and receiving lane carries all samples that the lane needs."""
    if len(producer) == 0:
        return np.zeros(0, dtype=np.int32)
    if len(producer) > 1 and not (producer[1:] > producer[:-1]).all():
        lanes = np.int64(len(base.lane_replica))
        _, group = np.unique(producer * lanes + target_lane, return_inverse=True)
        samples = np.bincount(group, weights=shared).astype(np.int64)[group]
    else:
        samples = shared
    keys = (source_lane * len(base.lane_replica) + target_lane) * (np.int64(samples.max()) + 1) + samples
    if (keys == keys[0]).all():
        distinct, first, inverse = keys[:1], np.zeros(1, dtype=np.int64), np.zeros(len(keys), dtype=np.int64)
    else:
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    numbers = np.empty(len(distinct), dtype=np.int32)
    for position, row in enumerate(first):
        numbers[position] = classes.number(
            (source_stage, int(base.lane_replica[source_lane[row]])),
            (target_stage, int(base.lane_replica[target_lane[row]])),
            int(samples[row]),
        )
    return numbers[inverse]


def _name(base: _Base, row: int) -> str:
    return f"{base.stage[row]}{'FBIWUP'[base.kind[row]]}{base.microbatch[row]}"


# ---- tasks ----------------------------------------------------------------------------------------------------------


def _assemble(
    schedule: Schedule,
    base: _Base,
    edges: _Edges,
    seconds: NDArray[np.float64],
    costs: Costs,
    communication: Communication,
    updates: bool,
) -> Program:
    """Lay the tasks out: [receives, parts of the op, sends] per row, updates at the end of lanes, all-reduce lanes last."""
    rows = len(base.stage)
    blocking = communication != "overlapped" and len(edges.transfers) > 1
    sends, receives = _blocking_groups(edges, communication) if blocking else (None, None)
    reduced = {stage: costs.buckets(stage) for stage in range(schedule.stages) if len(base.rows_of_stage[stage]) > 1}
    reduced = {stage: buckets for stage, buckets in reduced.items() if buckets}
    parts = np.ones(rows, dtype=np.int64) if reduced else None
    rounds = {stage: _reduction_rounds(schedule, base, stage) for stage in reduced}
    for stage, triggers in rounds.items():
        for _, trigger in triggers:
            assert parts is not None
            parts[trigger] = len(reduced[stage])

    width = np.ones(rows, dtype=np.int64) if parts is None else parts.copy()
    pre = np.zeros(rows, dtype=np.int64)
    if receives is not None:
        pre = np.bincount(receives.row, minlength=rows)
        width += pre
    if sends is not None:
        width += np.bincount(sends.row, minlength=rows)
    trailing = _trailing_updates(schedule, base) if updates and schedule.flush else []
    builder = _Layout(schedule, base, costs, width, pre, trailing, reduced, rounds)
    return builder.program(base, edges, seconds, parts, sends, receives, blocking)


@dataclass(slots=True)
class _Groups:
    """Blocking transfers: the base row that each stands beside, its class, and the transfer's group number."""

    row: Rows
    transfer: NDArray[np.int32]
    group: Rows


def _blocking_groups(edges: _Edges, communication: Communication) -> tuple[_Groups, _Groups | None]:
    """One send per (producer, transfer class), right after the producer; one receive before the first consumer of each."""
    moving = np.flatnonzero(edges.transfer)
    key = edges.producer[moving] * np.int64(len(edges.transfers)) + edges.transfer[moving]
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    sends = _Groups(edges.producer[moving][first], edges.transfer[moving][first], np.arange(len(first)))
    if communication == "send-blocking":
        return sends, None
    order = np.lexsort((edges.consumer[moving], group))
    begins = np.concatenate([[True], group[order][1:] != group[order][:-1]])
    chosen = order[begins]
    return sends, _Groups(edges.consumer[moving][chosen], edges.transfer[moving][chosen], group[chosen])


def _reduction_rounds(schedule: Schedule, base: _Base, stage: int) -> list[tuple[int, Rows]]:
    """Rounds of gradient all-reduce of a stage: (number, rows whose gradients complete it), in order.

    Flushed: one round, the last gradient of each lane. Asynchronous: the last gradient before each update; round-robin replicas
    reduce together once each has run one mini-batch (the last round may have fewer).
    """
    lanes = base.rows_of_stage[stage]
    kinds = (OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT)
    gradients = [rows[np.isin(base.kind[rows], kinds)] for _, rows in lanes]
    if schedule.flush:
        return [(0, np.array([rows[-1] for rows in gradients], dtype=np.int64))]
    triggers, numbers = [], []
    for (_, rows), gradient in zip(lanes, gradients, strict=True):
        updating = rows[base.kind[rows] == OpKind.UPDATE]
        triggers.append(gradient[np.searchsorted(gradient, updating) - 1])
        numbers.append(_round_of_update(schedule, base, stage, updating))
    rows, round_of = np.concatenate(triggers), np.concatenate(numbers)
    order = np.argsort(round_of, kind="stable")
    distinct, starts = np.unique(round_of[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(rows[order], starts[1:]), strict=True))


def _round_of_update(schedule: Schedule, base: _Base, stage: int, updating: Rows) -> NDArray[np.int32]:
    return base.microbatch[updating] // max(1, int(schedule.replicas()[stage]))


def _trailing_updates(schedule: Schedule, base: _Base) -> list[tuple[int, int]]:
    """(lane, stage) of the update ops that end a flushed mini-batch."""
    return sorted((lane, stage) for stage, lanes in enumerate(base.rows_of_stage) for lane, _ in lanes)


class _Layout:
    """Where each base row's tasks stand, and the columns of the program."""

    def __init__(
        self,
        schedule: Schedule,
        base: _Base,
        costs: Costs,
        width: Rows,
        pre: Rows,
        trailing: list[tuple[int, int]],
        reduced: dict[int, tuple[Bucket, ...]],
        rounds: dict[int, list[tuple[int, Rows]]],
    ) -> None:
        self.schedule, self.costs = schedule, costs
        self.reduced, self.rounds, self.trailing = reduced, rounds, trailing
        lanes = len(base.lane_replica)
        ends = np.zeros(lanes, dtype=np.int64)
        for lane, _ in trailing:
            ends[lane] += 1
        lane_of_row = np.repeat(np.arange(lanes), np.diff(base.lane_offsets))
        shift = np.concatenate([[0], np.cumsum(ends)])[:-1]
        start = np.cumsum(width) - width + shift[lane_of_row]
        row_totals = np.concatenate([[0], np.cumsum(width)])
        lane_lengths = row_totals[base.lane_offsets[1:]] - row_totals[base.lane_offsets[:-1]] + ends
        collective = [len(self.rounds[stage]) * len(buckets) for stage, buckets in reduced.items()]
        self.lane_offsets = np.concatenate([[0], np.cumsum(np.concatenate([lane_lengths, collective]))]).astype(np.int64)
        self.row_start = start  # first task of the row
        self.main = start + pre  # first part of the op
        self.width, self.pre = width, pre
        self.tasks = int(self.lane_offsets[-1])
        self.plain = self.tasks == len(base.stage)

    def program(
        self,
        base: _Base,
        edges: _Edges,
        seconds: NDArray[np.float64],
        parts: Rows | None,
        sends: _Groups | None,
        receives: _Groups | None,
        blocking: bool,
    ) -> Program:
        lanes = len(base.lane_replica)
        last = self.main if parts is None else self.main + parts - 1  # task that delivers the row's output
        columns = self._columns(base, seconds, parts)
        deps: list[tuple[Rows, Rows, NDArray[np.int32]]] = []
        if blocking:
            assert sends is not None
            deps.append(self._blocking_tasks(base, edges, columns, last, sends, receives))
            still = edges.transfer == 0
            deps.append((self.main[edges.consumer[still]], last[edges.producer[still]], edges.transfer[still]))
        else:
            deps.append((self.main[edges.consumer], last[edges.producer], edges.transfer))
        lane_route: list[Route] = [()] * lanes
        lane_device = [self.costs.device(int(base.stage[o]), int(r)) for o, r in self._lane_heads(base)]
        for number, (stage, buckets) in enumerate(self.reduced.items()):
            deps.extend(self._reduce_tasks(base, stage, buckets, lanes + number, columns))
            lane_route.append(buckets[0].route)
            lane_device.append(self.costs.device(stage, 0))
        deps.extend(self._update_tasks(base, columns))
        offsets, dependency, transfer = _sort_dependencies(self.tasks, deps)
        kinds = np.full(len(lane_device), LaneKind.COMPUTE, dtype=np.int8)
        kinds[lanes:] = LaneKind.COLLECTIVE
        return Program(
            lane_offsets=self.lane_offsets,
            lane_device=np.array(lane_device, dtype=np.int32),
            lane_kind=kinds,
            lane_sharing=np.full(len(lane_device), -1, dtype=np.int32),
            **columns,
            dependency_offsets=offsets,
            dependency=dependency,
            transfer=transfer,
            transfer_seconds=np.array([one.seconds for one in edges.transfers], dtype=np.float64),
            transfer_bytes=np.array([one.size_bytes for one in edges.transfers], dtype=np.float64),
            transfer_route=tuple(one.route for one in edges.transfers),
            lane_route=tuple(lane_route),
            channels=tuple(self.costs.channels),
        )

    @staticmethod
    def _lane_heads(base: _Base) -> list[tuple[int, int]]:
        heads = np.minimum(base.lane_offsets[:-1], len(base.stage) - 1)
        return list(zip(heads.tolist(), base.lane_replica.tolist(), strict=True))

    def _columns(self, base: _Base, seconds: NDArray[np.float64], parts: Rows | None) -> dict[str, NDArray[np.generic]]:
        lane_of_row = np.repeat(np.arange(len(base.lane_replica), dtype=np.int32), np.diff(base.lane_offsets))
        replica = base.lane_replica[lane_of_row]
        if self.plain:
            return {
                "kind": base.kind,
                "stage": base.stage,
                "microbatch": base.microbatch,
                "replica": replica,
                "first_sample": base.first,
                "samples": base.samples,
                "seconds": seconds,
            }
        source = {
            "kind": base.kind,
            "stage": base.stage,
            "microbatch": base.microbatch,
            "replica": replica,
            "first_sample": base.first,
            "samples": base.samples,
            "seconds": seconds,
        }
        target = np.repeat(self.row_start, self.width) + (
            np.arange(int(self.width.sum())) - np.repeat(np.cumsum(self.width) - self.width, self.width)
        )
        columns: dict[str, NDArray[np.generic]] = {}
        for name, values in source.items():
            column = np.zeros(self.tasks, dtype=values.dtype)
            column[target] = np.repeat(values, self.width)
            columns[name] = column
        if parts is not None:
            for stage, buckets in self.reduced.items():
                for _, rows in self.rounds[stage]:
                    for row in rows:
                        tasks = slice(int(self.main[row]), int(self.main[row]) + len(buckets))
                        columns["seconds"][tasks] = np.array([seconds[row] * bucket.share for bucket in buckets])
        return columns

    def _blocking_tasks(
        self,
        base: _Base,
        edges: _Edges,
        columns: dict[str, NDArray[np.generic]],
        last: Rows,
        sends: _Groups,
        receives: _Groups | None,
    ) -> tuple[Rows, Rows, NDArray[np.int32]]:
        """Write send and receive tasks; the dependencies that carry data over lanes."""
        duration = np.array([one.seconds for one in edges.transfers])
        send_task = last[sends.row] + 1 + _rank_within(sends.row)
        columns["kind"][send_task] = OpKind.SEND
        columns["seconds"][send_task] = duration[sends.transfer]
        if receives is not None:
            receive_task = self.row_start[receives.row] + _rank_within(receives.row)
            columns["kind"][receive_task] = OpKind.RECEIVE
            columns["seconds"][receive_task] = duration[receives.transfer]
            return receive_task, send_task[receives.group], np.zeros(len(receive_task), dtype=np.int32)
        moving = np.flatnonzero(edges.transfer)
        key = edges.producer[moving] * np.int64(len(edges.transfers)) + edges.transfer[moving]
        _, group = np.unique(key, return_inverse=True)
        return self.main[edges.consumer[moving]], send_task[group], np.zeros(len(moving), dtype=np.int32)

    def _reduce_tasks(
        self, base: _Base, stage: int, buckets: tuple[Bucket, ...], lane: int, columns: dict[str, NDArray[np.generic]]
    ) -> list[tuple[Rows, Rows, NDArray[np.int32]]]:
        first = int(self.lane_offsets[lane])
        tasks = np.arange(first, int(self.lane_offsets[lane + 1]))
        rounds = self.rounds[stage]
        columns["kind"][tasks] = OpKind.REDUCE
        columns["stage"][tasks] = stage
        columns["microbatch"][tasks] = np.repeat([number for number, _ in rounds], len(buckets))
        columns["seconds"][tasks] = np.tile([bucket.seconds for bucket in buckets], len(rounds))
        deps = []
        for position, (_, rows) in enumerate(rounds):
            for bucket in range(len(buckets)):
                task = first + position * len(buckets) + bucket
                deps.append((np.full(len(rows), task), self.main[rows] + bucket, np.zeros(len(rows), dtype=np.int32)))
        return deps

    def _update_tasks(
        self, base: _Base, columns: dict[str, NDArray[np.generic]]
    ) -> list[tuple[Rows, Rows, NDArray[np.int32]]]:
        """Updates wait for the last all-reduce of their round; a flushed mini-batch's updates stand at the end of each lane."""
        deps = []
        last_reduce: dict[int, dict[int, int]] = {}
        for number, (stage, buckets) in enumerate(self.reduced.items()):
            first = int(self.lane_offsets[len(base.lane_replica) + number])
            last_reduce[stage] = {
                round_number: first + (position + 1) * len(buckets) - 1
                for position, (round_number, _) in enumerate(self.rounds[stage])
            }
        zero = np.zeros(1, dtype=np.int32)
        cursor = self.lane_offsets[1:].copy()
        for lane, stage in reversed(self.trailing):
            cursor[lane] -= 1
            task = int(cursor[lane])
            replica = int(base.lane_replica[lane])
            columns["kind"][task] = OpKind.UPDATE
            columns["stage"][task] = stage
            columns["microbatch"][task] = 0
            columns["replica"][task] = replica
            columns["seconds"][task] = self.costs.seconds(OpKind.UPDATE, stage, replica, np.ones(1, dtype=np.int64))[0]
            if stage in last_reduce:
                deps.append((np.array([task]), np.array([last_reduce[stage][0]]), zero))
        for stage, rounds in last_reduce.items():
            for _, rows in base.rows_of_stage[stage]:
                updating = rows[base.kind[rows] == OpKind.UPDATE]
                if len(updating) == 0:
                    continue
                wanted = [rounds[number] for number in _round_of_update(self.schedule, base, stage, updating).tolist()]
                deps.append((self.main[updating], np.array(wanted), np.zeros(len(wanted), dtype=np.int32)))
        return deps


def _rank_within(values: Rows) -> Rows:
    """Position of each entry among the equal entries before it; equal entries stand in order of appearance."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, dtype=bool)
    starts = np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - starts
    return result


def _sort_dependencies(
    tasks: int, deps: list[tuple[Rows, Rows, NDArray[np.int32]]]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Dependencies by consuming task, as offsets and two columns."""
    if len(deps) == 1:
        consumer, producer, transfer = deps[0]
    else:
        consumer, producer, transfer = (np.concatenate([one[i] for one in deps]) for i in range(3))
    counts = np.bincount(consumer, minlength=tasks)
    offsets = np.zeros(tasks + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    if len(consumer) and counts.max() == 1:
        dependency = np.empty(len(consumer), dtype=np.int32)
        classes = np.empty(len(consumer), dtype=np.int32)
        place = offsets[consumer]
        dependency[place], classes[place] = producer, transfer
        return offsets, dependency, classes
    order = np.argsort(consumer, kind="stable")
    return offsets, producer[order].astype(np.int32), transfer[order].astype(np.int32)
