"""Coverage: ops of a schedule on lanes, and the samples that each one covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Integers
from simulator.schedules.checks import Bounds, check_complete
from simulator.schedules.ops import HOST_KINDS, LETTERS, OpKind, among, computes
from simulator.schedules.schedule import Schedule, stages_in

MOST_SAMPLES = 2**52
"""Most samples of a mini-batch: their sums are exact in float64."""


def sample_bounds(name: str, sizes: Sequence[int] | Sequence[Sequence[int]] | None, schedule: Schedule) -> Bounds:
    """First sample of each micro-batch, per stage; None is one sample each. ValueError for sizes that do not fit."""
    if sizes is None:
        shared = np.arange(schedule.microbatches + 1, dtype=np.int64)
        return [shared] * schedule.stages
    nested = len(sizes) > 0 and not np.isscalar(sizes[0])
    per_stage = list(sizes) if nested else [sizes] * schedule.stages
    if len(per_stage) != schedule.stages:
        raise ValueError(f"{name} need one list for each of {schedule.stages} stages, got {len(per_stage)} lists")
    made: dict[int, Integers] = {}
    result = []
    for stage, stage_sizes in enumerate(per_stage):
        bounds = made.get(id(stage_sizes))
        if bounds is None:
            values = np.asarray(stage_sizes)
            if len(values) and not np.issubdtype(values.dtype, np.integer):
                raise ValueError(f"{name} of stage {stage} must be whole samples, got {_shown(values)}")
            if not nested and len(values) != schedule.microbatches:
                raise ValueError(f"{name} need {schedule.microbatches} micro-batches, got {len(values)}")
            if len(values) == 0 or values.min() < 1:
                raise ValueError(f"{name} of stage {stage} must be at least 1 sample each, got {_shown(values)}")
            total = values.sum(dtype=np.float64)
            if total > MOST_SAMPLES:
                raise ValueError(f"{name} of stage {stage} must sum to at most 2^52 samples, got {total:g}")
            bounds = np.concatenate([[0], np.cumsum(values.astype(np.int64))])
            made[id(stage_sizes)] = bounds
        result.append(bounds)
    return result


def _shown(values: NDArray[Any], most: int = 8) -> str:
    """The first few values, for a message of one line."""
    more = f", and {len(values) - most} more" if len(values) > most else ""
    return f"{values[:most].tolist()}{more}"


@dataclass(frozen=True, slots=True, eq=False)
class CoveredSchedule:
    """A complete schedule, and the samples of the micro-batches of each stage in both directions; `covered` makes them."""

    schedule: Schedule
    forward: Bounds
    backward: Bounds


def covered(
    schedule: Schedule,
    forward_sizes: Sequence[int] | Sequence[Sequence[int]] | None = None,
    backward_sizes: Sequence[int] | Sequence[Sequence[int]] | None = None,
) -> CoveredSchedule:
    """A schedule that has passed `check_complete`, with sizes as in `simulator.lowering.lower`.

    Raises ScheduleError for one that is not complete, ValueError for sizes that do not fit it.
    """
    forward = sample_bounds("forward sizes", forward_sizes, schedule)
    backward = forward if backward_sizes is None else sample_bounds("backward sizes", backward_sizes, schedule)
    _check_same_samples(forward, backward)
    check_complete(schedule, forward, backward)
    return CoveredSchedule(schedule, forward, backward)


def _check_same_samples(forward: Bounds, backward: Bounds) -> None:
    """Raise ValueError unless every stage covers the same mini-batch in both directions."""
    total = forward[0][-1]
    for name, bounds in (("forward", forward), ("backward", backward)):
        for stage, one in enumerate(bounds):
            if one[-1] != total:
                raise ValueError(
                    f"{name} sizes of stage {stage} sum to {one[-1]} samples, those of stage 0 forward to {total}; "
                    "every stage must cover the same mini-batch"
                )


@dataclass(slots=True)
class LaneOps:
    """Ops of the schedule on compute lanes, before transfers and all-reduces: lane by lane, one row per op.

    lane_offsets: int64 [lanes + 1]
    stage, kind, microbatch, replica, first (first sample), samples: columns [rows]; a lane is one replica of each of its stages
    rows_of_stage: per stage, (lane, rows of the stage on that lane, rising)
    in_turn: per stage, devices that take its micro-batches in turn; 1 where one has them all, or all share each of them
    overlapped: rows that begin and end together with the row behind them
    slices: of sequences, as of a `Schedule`
    device: of the schedule, of each lane
    """

    lane_offsets: Integers
    stage: NDArray[np.int32]
    kind: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    replica: NDArray[np.int32]
    first: Integers
    samples: Integers
    rows_of_stage: list[list[tuple[int, Integers]]]
    in_turn: list[int]
    overlapped: Integers
    slices: int
    device: list[int]

    @property
    def lanes(self) -> int:
        """Number of compute lanes."""
        return len(self.lane_offsets) - 1

    def lane_of_row(self) -> Integers:
        """int64 [rows]: the lane of each op."""
        return np.repeat(np.arange(self.lanes), np.diff(self.lane_offsets))


def copy_to_replicas(one: CoveredSchedule, replicas: Integers, replayed: Sequence[int] | None) -> LaneOps:
    """Put the schedule's ops on lanes: a rank is one lane, or one for each device that shares its micro-batches.

    replayed: those of as many replicas of each stage that have lanes, if not all
    """
    schedule = one.schedule
    if len(replicas) != schedule.stages or replicas.min() < 1:
        raise ValueError(
            f"split replicas need a count of at least 1 for each of {schedule.stages} stages, got {replicas.tolist()}"
        )
    split = bool(replicas.max() > 1)
    holders = schedule.holders()
    in_turn = [len(devices) for devices in holders]
    if split and max(in_turn) > 1:
        raise ValueError("a schedule with round-robin replicas cannot split micro-batches over replicas as well")
    spans: list[tuple[int, int, int, int]] = []  # first row, end row, device of the schedule, copy of it
    for rank, device in enumerate(schedule.device_of_rank().tolist()):
        rows = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
        counts = np.unique(replicas[schedule.stage[rows[0] : rows[1]]]) if split else np.ones(1, dtype=np.int64)
        if len(counts) > 1:
            raise ValueError(f"the stages of device {rank} must have one number of replicas, got {counts.tolist()}")
        for replica in replayed or range(int(counts[0]) if len(counts) else 1):
            spans.append((*rows, device, replica))
    offsets = np.concatenate([[0], np.cumsum([end - first for first, end, _, _ in spans], dtype=np.int64)])
    stage, kind, microbatch, overlapped = schedule.stage, schedule.kind, schedule.microbatch, schedule.overlapped
    if split:
        source = np.concatenate([np.arange(first, end) for first, end, _, _ in spans])
        stage, kind, microbatch = stage[source], kind[source], microbatch[source]
        overlapped = None if overlapped is None else overlapped[source]
    ops = LaneOps(
        lane_offsets=offsets,
        stage=stage,
        kind=kind,
        microbatch=microbatch,
        replica=np.zeros(len(stage), dtype=np.int32),
        first=np.zeros(len(stage), dtype=np.int64),
        samples=np.zeros(len(stage), dtype=np.int64),
        rows_of_stage=[[] for _ in range(schedule.stages)],
        in_turn=in_turn,
        overlapped=np.zeros(0, dtype=np.int64) if overlapped is None else np.flatnonzero(overlapped),
        slices=schedule.slices,
        device=[device for _, _, device, _ in spans],
    )
    for lane, (_, _, device, copy) in enumerate(spans):
        begin, end = int(offsets[lane]), int(offsets[lane + 1])
        held = stage[begin:end]
        for number in stages_in(held):
            held_rows = begin + np.flatnonzero(held == number)
            ops.rows_of_stage[number].append((lane, held_rows))
            ops.replica[held_rows] = copy if split else holders[number].index(device)
    for number, lanes in enumerate(ops.rows_of_stage):
        held_rows = np.concatenate([rows for _, rows in lanes])
        _cover(ops, held_rows, one.forward[number], one.backward[number], int(replicas[number]) if split else 1)
    return ops


def _cover(ops: LaneOps, rows: Integers, forward: Integers, backward: Integers, count: int) -> None:
    """Write the sample range of each row of a stage, whose replicas divide every micro-batch by `count`."""
    kind, microbatch = ops.kind[rows], ops.microbatch[rows].astype(np.int64)
    for bounds, select in (
        (forward, among(kind, (OpKind.FORWARD, *HOST_KINDS))),
        (backward, computes(kind) & (kind != OpKind.FORWARD)),
    ):
        chosen, number = rows[select], microbatch[select]
        begin, end = bounds[number], bounds[number + 1]
        replica = ops.replica[chosen] if count > 1 else 0
        size = end - begin
        whole, rest = size // count, size % count  # size · replica could overflow
        ops.first[chosen] = begin + whole * replica + rest * replica // count
        ops.samples[chosen] = whole + rest * (replica + 1) // count - rest * replica // count


class Duration(NamedTuple):
    """Key of durations that the costs give in one call; slice_number: slice of the sequences, None for whole ones."""

    kind: OpKind
    stage: int
    replica: int
    slice_number: int | None = None


def durations(ops: LaneOps) -> tuple[NDArray[np.int32], list[tuple[Duration, Integers]]]:
    """Distinct durations: the index of each row's, int32 [rows], and the durations with their numbers of samples."""
    sizes, size = np.unique(ops.samples, return_inverse=True)
    columns = [one.astype(np.int64) for one in (ops.stage, ops.replica, ops.kind, ops.microbatch % ops.slices, size)]
    widths = [int(column.max(initial=0)) + 1 for column in columns]
    key = np.zeros(len(size), dtype=np.int64)
    for column, width in zip(columns, widths, strict=True):
        key = key * width + column
    distinct, number = np.unique(key, return_inverse=True)
    of_what, samples = distinct // widths[-1], sizes[distinct % widths[-1]]
    begins = np.flatnonzero(np.diff(of_what, prepend=-1))
    stages, replicas, kinds, parts = (one.tolist() for one in np.unravel_index(of_what[begins], widths[:-1]))
    sliced = parts if ops.slices > 1 else [None] * len(parts)
    what = map(Duration, map(OpKind, kinds), stages, replicas, sliced)
    return number.astype(np.int32), list(zip(what, np.split(samples, begins[1:]), strict=True))


def op_name(ops: LaneOps, row: int) -> str:
    """The op of a row as text, as in `2F0`."""
    return f"{ops.stage[row]}{LETTERS[ops.kind[row]]}{ops.microbatch[row]}"
