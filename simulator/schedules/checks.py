"""Checks of a schedule before it is lowered: every op once, on one device.

Whether a schedule is complete is told from its columns at once; where it is not, what is wrong is looked up op by op.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from hardware_profiles import Integers
from simulator.schedules.ops import BETWEEN_KINDS, HOST_KINDS, LETTERS, Op, OpKind, among
from simulator.schedules.schedule import Schedule, ScheduleError

Bounds = Sequence[Integers]
"""Per stage: int64 [micro-batches + 1], first sample of each micro-batch and the end."""

Counts = Integers

_OF_BACKWARD = (OpKind.BACKWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT, OpKind.RECOMPUTE)
"""Kinds numbered by backward micro-batches."""

_OF_FORWARD = (OpKind.FORWARD, *HOST_KINDS)
"""Kinds numbered by forward micro-batches."""


def check_complete(schedule: Schedule, forward: Bounds | None = None, backward: Bounds | None = None) -> None:
    """Raise ScheduleError naming the device, position and op of the first that is missing, too many, or out of place.

    Rules: each stage runs the forward of every micro-batch once, and either its full backward or its input gradient and its
    weight gradient once; all of a sample on one device. Overlapped pairs are a forward and a backward. Forwards run again once
    before their backwards, of a stage all or none; what is offloaded is loaded back, both once, in lists of their own. Updates
    and predictions stand on devices of their stage; where one stage updates, all do, on each of their devices.
    forward, backward: samples of the micro-batches of each stage; default one each, backward as forward
    """
    _check_columns(schedule)
    schedule.check_pairs()
    forward = [np.arange(schedule.microbatches + 1)] * schedule.stages if forward is None else forward
    backward = forward if backward is None else backward
    if not _is_complete(schedule, forward, backward):
        _name_fault(_Lists(schedule, forward, backward))


# ---- columns ---------------------------------------------------------------------------------------------------------


def _check_columns(schedule: Schedule) -> None:
    """Raise ScheduleError unless the columns belong together, and hold kinds and stages that a schedule has."""
    offsets, rows, ranks = schedule.offsets, len(schedule.stage), schedule.ranks
    columns = offsets, schedule.stage, schedule.kind, schedule.microbatch
    fit = all(isinstance(one, np.ndarray) and one.ndim == 1 and one.dtype.kind == "i" for one in columns)
    fit = fit and len(schedule.kind) == len(schedule.microbatch) == rows > 0 <= ranks and offsets[0] == 0
    fit = fit and offsets[-1] == rows and bool((np.diff(offsets) >= 0).all())
    fit = fit and (schedule.device is None or len(schedule.device) == ranks)
    fit = fit and (schedule.overlapped is None or len(schedule.overlapped) == rows)
    if schedule.credit is not None:
        fit = fit and len(schedule.credit) == schedule.stages and bool((schedule.credit >= 1).all())
    if not fit:
        raise ScheduleError(
            f"the columns of schedule {schedule.name!r} do not belong together: whole numbers of {rows} ops in {ranks} lists, a "
            "device of each list, a credit of at least 1 of each stage"
        )
    known = among(schedule.kind.clip(0, len(OpKind) - 1), (*_OF_FORWARD, *_OF_BACKWARD, *BETWEEN_KINDS))
    known &= (schedule.kind >= 0) & (schedule.kind < len(OpKind)) & (schedule.microbatch >= 0)
    known &= (schedule.stage >= 0) & (schedule.stage < schedule.stages)
    if not known.all():
        row = int(np.argmin(known))
        kind = int(schedule.kind[row])
        letter = LETTERS[kind] if 0 <= kind < len(LETTERS) else f" kind {kind} "
        op = f"{schedule.stage[row]}{letter}{schedule.microbatch[row]}"
        raise ScheduleError(
            f"{_at(schedule.place(row))}: op {op} is no op of a schedule of {schedule.stages} stages; kinds: F B I W U P A O L"
        )


@dataclass(frozen=True, slots=True)
class _Slots:
    """Micro-batches of all stages, one after another; begins: int64 [stages + 1], the first of each stage, and the end."""

    begins: Integers

    @staticmethod
    def of(bounds: Bounds) -> _Slots:
        return _Slots(np.cumsum([0, *(len(one) - 1 for one in bounds)]))

    def of_ops(self, schedule: Schedule, rows: Counts) -> Counts | None:
        """int64 [rows]: the slot of each op; None if an op has a micro-batch number that its stage lacks."""
        stage = schedule.stage[rows]
        slot = self.begins[stage] + schedule.microbatch[rows]
        return None if (slot >= self.begins[stage + 1]).any() else slot


def _is_complete(schedule: Schedule, forward: Bounds, backward: Bounds) -> bool:
    """Whether every op is there once and in its place, without naming a fault; columns and pairs are valid."""
    down, up = _Slots.of(forward), _Slots.of(backward)
    there = np.bincount(schedule.kind, minlength=len(OpKind))
    slots: dict[OpKind, tuple[Counts, Counts]] = {}  # rows of a kind, and their slots
    times: dict[OpKind, Counts] = dict.fromkeys((*_OF_FORWARD, *_OF_BACKWARD), np.zeros(1, dtype=np.int64))
    for kind in [one for one in times if there[one]]:
        every, rows = down if kind in _OF_FORWARD else up, np.flatnonzero(schedule.kind == kind)
        found = every.of_ops(schedule, rows)
        if found is None:
            return False
        slots[kind] = rows, found
        times[kind] = np.bincount(found, minlength=int(every.begins[-1]))
    full, of_input, of_weight = (times[kind] for kind in _OF_BACKWARD[:3])
    again, away, back = (times[kind] for kind in (OpKind.RECOMPUTE, *HOST_KINDS))
    if not ((times[OpKind.FORWARD] == 1).all() and (full + of_input == 1).all() and (of_input == of_weight).all()):
        return False
    if there[OpKind.RECOMPUTE]:
        runs, wanted = np.add.reduceat(again, up.begins[:-1]), np.diff(up.begins)
        if again.max() > 1 or not ((runs == 0) | (runs == wanted)).all():
            return False
    if there[list(HOST_KINDS)].any() and (away.max() > 1 or (away != back).any() or len(_mixed(schedule))):
        return False
    if schedule.credit is not None and (np.diff(down.begins) != np.diff(up.begins)).any():
        return False
    return _in_place(schedule, slots, _forwards_of(forward, backward, down))


def _mixed(schedule: Schedule) -> Integers:
    """Rows of offloads and reloads that stand in a list of other ops."""
    rank, host = schedule.rank_of_row(), among(schedule.kind, HOST_KINDS)
    others = np.zeros(schedule.ranks, dtype=np.bool_)
    others[rank[~host]] = True
    return np.flatnonzero(host & others[rank])


def _forwards_of(forward: Bounds, backward: Bounds, down: _Slots) -> tuple[Counts, Counts] | None:
    """Slots of the first and the last forward whose samples each backward micro-batch covers; None where both are one's own."""
    if all(one is other or np.array_equal(one, other) for one, other in zip(forward, backward, strict=True)):
        return None
    pairs = list(zip(forward, backward, down.begins[:-1].tolist(), strict=True))
    first = [begin + np.searchsorted(one, other[:-1], side="right") - 1 for one, other, begin in pairs]
    last = [begin + np.searchsorted(one, other[1:], side="left") - 1 for one, other, begin in pairs]
    return np.concatenate(first), np.concatenate(last)


def _in_place(
    schedule: Schedule, slots: dict[OpKind, tuple[Counts, Counts]], forwards: tuple[Counts, Counts] | None
) -> bool:
    """Whether every op stands on the device of the forwards of its samples, updates and predictions on one of their stage, and no
    update twice on one; of a schedule with updates each stage has some on each of its devices.

    slots: rows and slots of the ops of each kind; forwards: as in `_forwards_of`
    """
    device = np.repeat(schedule.device_of_rank(), np.diff(schedule.offsets)).astype(np.int64)
    update = np.flatnonzero(schedule.kind == OpKind.UPDATE)
    place = device * schedule.stages + schedule.stage
    if len(update):
        number = schedule.microbatch[update].astype(np.int64)
        ordered = np.lexsort((number, place[update]))
        same = (np.diff(place[update][ordered]) == 0) & (np.diff(number[ordered]) == 0)
        if same.any():
            return False
        updated = np.zeros(1 + int(place.max()), dtype=np.bool_)
        updated[place[update]] = True
        if not updated[place[among(schedule.kind, _OF_BACKWARD)]].all():
            return False
    holder = np.empty(schedule.stages, dtype=np.int64)
    holder[schedule.stage] = device
    if (holder[schedule.stage] == device).all():  # the usual case: every stage on one device
        return True
    rows, slot = slots[OpKind.FORWARD]
    if not np.isin(place[among(schedule.kind, BETWEEN_KINDS)], place[rows]).all():
        return False
    ran = np.empty(len(slot), dtype=np.int64)
    ran[slot] = device[rows]
    changes = np.cumsum(np.diff(ran, prepend=ran[:1]) != 0)
    for kind, (rows, slot) in slots.items():
        first, last = (
            (slot, slot) if forwards is None or kind in _OF_FORWARD else (forwards[0][slot], forwards[1][slot])
        )
        if not ((ran[first] == device[rows]) & (changes[first] == changes[last])).all():
            return False
    return True


# ---- op by op --------------------------------------------------------------------------------------------------------

Place = tuple[int, int]
"""Device, and position in the list of one of its ranks."""


class _Lists:
    """The lists of a schedule, op by op; ScheduleError for an op that stands twice.

    where: place of every op that covers samples; between: of updates and predictions, by device
    """

    def __init__(self, schedule: Schedule, forward: Bounds, backward: Bounds) -> None:
        self.schedule = schedule
        self.forward, self.backward = ([one.tolist() for one in bounds] for bounds in (forward, backward))
        self.where: dict[Op, Place] = {}
        self.between: dict[tuple[int, Op], Place] = {}
        for device, ops in zip(schedule.device_of_rank().tolist(), schedule.lists(), strict=True):
            for position, op in enumerate(ops):
                between = op.kind in BETWEEN_KINDS
                before = self.between.get((device, op)) if between else self.where.get(op)
                if before is not None and op.kind is not OpKind.PREDICT:
                    raise ScheduleError(
                        f"device {device}, position {position}: op {op} is doubled, "
                        f"it stands at device {before[0]}, position {before[1]} already"
                    )
                if between:
                    self.between[device, op] = device, position
                else:
                    self.where[op] = device, position

    def forwards(self, op: Op, stage: int) -> Iterator[Op]:
        """The forwards of a stage that cover any sample of an op."""
        own = (self.forward if op.kind in _OF_FORWARD else self.backward)[op.stage]
        first, end = own[op.microbatch], own[op.microbatch + 1]
        sharing = range(bisect_right(self.forward[stage], first) - 1, bisect_left(self.forward[stage], end))
        return (Op(stage, OpKind.FORWARD, number) for number in sharing)


def _name_fault(lists: _Lists) -> NoReturn:
    """Raise ScheduleError for the first op of a schedule that is missing, too many or out of place."""
    where, schedule = lists.where, lists.schedule
    rows = _mixed(schedule)
    if len(rows):
        row = int(rows[0])
        op = Op(int(schedule.stage[row]), OpKind(int(schedule.kind[row])), int(schedule.microbatch[row]))
        raise ScheduleError(
            f"{_at(schedule.place(row))}: op {op} stands among other ops; offloads and reloads have a list of their own"
        )
    holders: dict[int, set[int]] = defaultdict(set)
    for op, (device, _) in where.items():
        holders[op.stage].add(device)
    for op, place in where.items():
        count = len((lists.forward if op.kind in _OF_FORWARD else lists.backward)[op.stage]) - 1
        if op.microbatch >= count:
            raise ScheduleError(f"{_at(place)}: op {op} is one too many, stage {op.stage} has {count} micro-batches")
    for stage in range(schedule.stages):
        if stage not in holders:
            raise ScheduleError(
                f"stage {stage} has no op on any device, but stages are numbered to {schedule.stages - 1}"
            )
        counts = len(lists.forward[stage]) - 1, len(lists.backward[stage]) - 1
        for number in range(max(counts)):
            if number < counts[0]:
                _check_forward(lists, stage, number, min(holders[stage]))
            if number < counts[1]:
                _check_backward(lists, stage, number, min(holders[stage]))
        if schedule.credit is not None and counts[0] != counts[1]:
            raise ScheduleError(
                f"device {min(holders[stage])}: stage {stage} has {counts[0]} micro-batches forward and {counts[1]} backward; "
                "a credit needs the same"
            )
    for op, place in where.items():
        for forward in lists.forwards(op, op.stage):
            if where[forward][0] != place[0]:
                raise ScheduleError(
                    f"{_at(place)}: op {op} runs where its forward did not ({forward} is on device {where[forward][0]})"
                )
    for (_, op), place in lists.between.items():
        if place[0] not in holders[op.stage]:
            raise ScheduleError(
                f"{_at(place)}: op {op} stands where its stage does not (stage {op.stage} is on device {min(holders[op.stage])})"
            )
    updates = [(device, op) for device, op in lists.between if op.kind is OpKind.UPDATE]
    updated = {(device, op.stage) for device, op in updates}
    for stage, devices in holders.items():
        for device in sorted(devices):
            if updates and (device, stage) not in updated:
                elsewhere, op = updates[0]
                raise ScheduleError(
                    f"device {device}: stage {stage} has no update, where others have (op {op} on device {elsewhere})"
                )
    raise AssertionError(f"schedule {schedule.name!r} is at fault, and none of its ops is")


def _at(place: Place) -> str:
    """Device and position of an op, as a message begins with them."""
    return f"device {place[0]}, position {place[1]}"


def _check_forward(lists: _Lists, stage: int, number: int, device: int) -> None:
    """Raise ScheduleError unless a micro-batch's forward is there, and both its offload and its reload or neither is."""
    where = lists.where
    forward, away, back = (Op(stage, kind, number) for kind in _OF_FORWARD)
    if forward not in where:
        raise ScheduleError(f"device {device}: op {forward} is missing{_stray(forward, where)}")
    if (away in where) != (back in where):
        lost = back if away in where else away
        raise ScheduleError(f"device {device}: op {lost} is missing: what is offloaded is loaded back")


def _check_backward(lists: _Lists, stage: int, number: int, device: int) -> None:
    """Raise ScheduleError unless a micro-batch has its full backward or both its gradients, and runs again as its stage does."""
    where = lists.where
    full, of_input, of_weight, again = (Op(stage, kind, number) for kind in _OF_BACKWARD)
    halves = [half for half in (of_input, of_weight) if half in where]
    if full in where and halves:
        raise ScheduleError(f"{_at(where[halves[0]])}: op {halves[0]} repeats the full backward {full}")
    if full not in where and not halves:
        raise ScheduleError(f"device {device}: op {full} is missing (or {of_input} with {of_weight})")
    if full not in where and len(halves) < 2:
        lost = of_input if of_input not in where else of_weight
        raise ScheduleError(f"device {device}: op {lost} is missing")
    first = Op(stage, OpKind.RECOMPUTE, 0)
    if (again in where) != (first in where):
        raise ScheduleError(
            f"device {device}: stage {stage} runs forwards again in ops of their own, all or none; "
            f"op {again if again not in where else first} is missing"
        )


def _stray(missing: Op, where: dict[Op, Place]) -> str:
    """Where else the micro-batch of a missing op stands, if it does so once: then that one op is likelier to be wrong."""
    others = [(op, place) for op, place in where.items() if op.microbatch == missing.microbatch]
    if len(others) != 1:
        return ""
    ((op, (device, position)),) = others
    return f"; micro-batch {missing.microbatch} stands nowhere but in {op} (device {device}, position {position})"
