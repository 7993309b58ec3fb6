"""Time split: what each device of a replay does with the seconds of an iteration, and what it waits for.

While a device runs an op it computes, runs a forward again, waits for others with which it divides layers or for other replicas,
or steps the optimizer, as the costs say of the op. While it runs none it waits for what its next op needs last. Until that was
made, somewhere else, the wait is bubble; from then on it is the time that a transfer, or a reduction of gradients, takes to bring
it, queueing included. What is behind a device's last op is bubble, but for gathers of the weights that it has updated. What a
device does not wait for is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Floats, Integers, brief
from simulator.costs.plan_costs import PlanCosts
from simulator.engines.timeline import Timeline, timeline_of
from simulator.lowering.program import LaneKind, Program
from simulator.schedules.ops import BACKWARD_KINDS, BETWEEN_KINDS, HOST_KINDS, OpKind, among

TIME_PARTS = (
    "computation",
    "recomputation",
    "tensor-parallel communication",
    "context-parallel communication",
    "expert-parallel communication",
    "transfers",
    "gradient sync",
    "optimizer",
    "bubble",
)
"""What the seconds of a device consist of. Transfers: between stages, and to and from the host; gradient sync: everything among
replicas, what ZeRO gathers and scatters too; optimizer: updates and predictions of weights; bubble: waits for others' work."""

_COMPUTATION, _RECOMPUTATION, _TENSOR, _CONTEXT, _EXPERT, _TRANSFERS, _SYNC, _OPTIMIZER, _BUBBLE = range(
    len(TIME_PARTS)
)

ROUNDING = 1e-12
"""Relative; less than two sums of the same seconds in another order may differ by."""


_MOVING = (OpKind.SEND, OpKind.RECEIVE, *HOST_KINDS)


@dataclass(frozen=True, slots=True, eq=False)
class TimeSplit:
    """Seconds of one iteration, by device and by what they are spent on.

    devices: int64 [rows], one for each device or tensor-parallel group in use (its first), rising
    members: int64 [rows], devices of each, which work in step
    seconds: float64 [rows, len(TIME_PARTS)]; every row sums to the iteration
    hidden: float64 [rows, 2]; seconds of transfers, and of reductions on lanes of their own, for which a device did not wait
    """

    devices: Integers
    members: Integers
    seconds: Floats
    hidden: Floats

    def __repr__(self) -> str:
        parts = zip(TIME_PARTS, self.mean.tolist(), strict=True)
        return brief(self, ", ".join(f"{name} {seconds:.4g} s" for name, seconds in parts if seconds))

    @property
    def mean(self) -> Floats:
        """Mean seconds of each part over all devices in use, float64 [len(TIME_PARTS)]."""
        return np.asarray(np.average(self.seconds, axis=0, weights=self.members))

    @property
    def mean_hidden(self) -> Floats:
        """Mean hidden seconds of transfers and of reductions over all devices in use, float64 [2]."""
        return np.asarray(np.average(self.hidden, axis=0, weights=self.members))

    def scaled(self, factor: float) -> TimeSplit:
        """The split with all seconds multiplied by a factor."""
        return replace(self, seconds=factor * self.seconds, hidden=factor * self.hidden)


class ComputingShares(NamedTuple):
    """What of each task its device computes, float64 [tasks]; the rest it waits for others.

    working: share of the task's seconds that is not sending alone, which goes on beside the rest
    computing: share of computing, forwards that run again and updates in that
    """

    working: Floats
    computing: Floats


class Awaited(NamedTuple):
    """What each task waits for last, float64 [tasks] except the part and the task: when it was made, when it arrived, the time
    part in between, and the task that made it, or -1.
    """

    made: Floats
    there: Floats
    part: Integers
    task: Integers


def time_split(costs: PlanCosts, program: Program, timeline: Timeline, window: tuple[float, float]) -> TimeSplit:
    """Split the seconds of a window of a timeline by device and part.

    costs, program: of the plan whose replay the timeline is
    """
    begin, end = window
    start, stop = np.clip(timeline.start, begin, end), np.clip(timeline.end, begin, end)
    shares = _op_shares(costs, program, timeline)
    awaited, behind = awaited_last(program, timeline), gathers_behind(program, timeline)
    groups = costs.plan.groups
    leads = sorted(groups)
    number = {device: position for position, device in enumerate(leads)}
    seconds, units = np.zeros((len(leads), len(TIME_PARTS))), np.zeros(len(leads))
    for own in rows_of_units(program, timeline):
        position = number[int(timeline.device[own[0]])]
        units[position] += 1
        seconds[position] += _busy(start[own], stop[own]) @ shares[own]
        seconds[position] += _idle(own, start, stop, awaited, window)
        gathered = np.clip(behind[np.isin(behind[:, 0], own)][:, 1:], stop[own].max(), end)
        still = _busy(*gathered[np.argsort(gathered[:, 0])].T).sum()
        seconds[position, [_SYNC, _BUBBLE]] += still, -still
    seconds /= units[:, None]
    members = np.array([len(groups[device]) for device in leads])
    hidden = np.maximum(_moving(timeline, costs, number, window) - seconds[:, [_TRANSFERS, _SYNC]], 0.0)
    return TimeSplit(np.array(leads), members, seconds, hidden)


def rows_of_units(program: Program, timeline: Timeline) -> list[Integers]:
    """The tasks that keep each unit busy, in the order in which they start.

    A device is one unit, as are lanes that share it; lanes with fixed shares of it are units of their own.
    """
    rows = np.flatnonzero((timeline.lane_kind == LaneKind.COMPUTE)[timeline.lane] & ~timeline.second_of_pair())
    sharing = program.lane_sharing[timeline.lane]
    unit = np.where(sharing >= 0, program.lanes + sharing, timeline.lane)
    rows = rows[np.lexsort((rows, timeline.start[rows], unit[rows]))]
    bounds = np.flatnonzero(np.append(True, np.diff(unit[rows]) != 0))
    return np.split(rows, bounds[1:])


def _busy(start: Floats, stop: Floats) -> Floats:
    """Seconds that each task keeps its device busy, by rising start, float64 [tasks]; tasks that run at once share the time."""
    if (stop[:-1] <= start[1:]).all():
        return stop - start
    moments = np.unique(np.concatenate([start, stop]))
    first, last = np.searchsorted(moments, start), np.searchsorted(moments, stop)
    change = np.zeros(len(moments))
    np.add.at(change, first, 1.0)
    np.add.at(change, last, -1.0)
    at_once = np.cumsum(change)[:-1]
    each = np.concatenate([[0.0], np.cumsum(np.diff(moments) / np.maximum(at_once, 1.0))])
    return np.asarray(each[last] - each[first])


def _idle(own: Integers, start: Floats, stop: Floats, awaited: Awaited, window: tuple[float, float]) -> Floats:
    """Idle seconds of a device by the part that it waits for, float64 [len(TIME_PARTS)]."""
    begin, end = window
    free = np.maximum.accumulate(np.concatenate([[begin], stop[own]]))
    before, until = free[:-1], start[own]
    gap = np.maximum(until - before, 0.0)
    came = np.minimum(awaited.there[own], until) - np.maximum(awaited.made[own], before)
    waited = np.where(awaited.part[own] == _BUBBLE, 0.0, np.clip(came, 0.0, gap))
    found: Floats = np.bincount(awaited.part[own], weights=waited, minlength=len(TIME_PARTS)).astype(np.float64)
    found[_BUBBLE] += (gap - waited).sum() + end - free[-1]
    return found


def _op_shares(costs: PlanCosts, program: Program, timeline: Timeline) -> Floats:
    """Share of each part in the seconds of each task, float64 [tasks, len(TIME_PARTS)]."""
    plan = costs.plan
    of_slice = timeline.microbatch % plan.slices
    columns = np.stack([timeline.kind, timeline.stage, timeline.replica, timeline.samples, of_slice]).astype(np.int64)
    working = timeline.compute() | among(timeline.kind, BETWEEN_KINDS)
    distinct, number = np.unique(columns[:, working], axis=1, return_inverse=True)
    apart = set(timeline.stage[timeline.kind == OpKind.RECOMPUTE].tolist())
    split = _splits_devices(program)
    found = np.zeros((len(timeline), len(TIME_PARTS)))
    of_distinct = np.array([_op_parts(costs, one, apart, split) for one in distinct.T.tolist()])
    found[working] = of_distinct[number.reshape(-1)]
    if timeline.together is not None:
        second = np.flatnonzero(timeline.second_of_pair())
        found[timeline.together[second]] += found[second]
    total = found.sum(axis=1)
    # An op that sends while it computes takes at least as long as its transfers; a part of one takes less than the whole.
    alone = program.seconds if program.least_seconds is None else program.least_seconds
    found[:, _TRANSFERS] = np.where(working & (alone > (1.0 + ROUNDING) * total), alone - total, 0.0)
    found[among(timeline.kind, _MOVING), _TRANSFERS] = 1.0
    found[working & (total == 0.0), _COMPUTATION] = 1.0
    return np.asarray(found / np.maximum(found.sum(axis=1), np.finfo(np.float64).tiny)[:, None])


def computing_shares(costs: PlanCosts, program: Program) -> ComputingShares:
    """What devices compute of each task of a plan's program."""
    nothing = np.zeros(len(program))
    shares = _op_shares(costs, program, timeline_of(program, nothing, nothing))
    working = 1.0 - shares[:, _TRANSFERS]
    own = shares[:, [_COMPUTATION, _RECOMPUTATION, _OPTIMIZER]].sum(axis=1)
    computing = np.minimum(1.0, own / np.maximum(working, np.finfo(np.float64).tiny))
    if program.least_seconds is not None:  # and its seconds are those of what it works
        working = np.ones(len(program))
    return ComputingShares(working, computing)


def _splits_devices(program: Program) -> bool:
    """Whether devices are divided between lanes in fixed shares, so that an op takes as long as both lanes together."""
    devices = program.lane_device[(program.lane_kind == LaneKind.COMPUTE) & (program.lane_sharing < 0)]
    return len(np.unique(devices)) < len(devices)


def _op_parts(costs: PlanCosts, op: list[int], apart: set[int], split: bool) -> Floats:
    """Seconds of an op by part, float64 [len(TIME_PARTS)].

    op: kind, stage, replica, samples, slice; apart: stages that run forwards again in ops of their own
    """
    kind, stage, replica, samples, of_slice = OpKind(op[0]), *op[1:]
    own = costs if costs.plan.slices == 1 else costs.of_slice(of_slice)
    found = np.zeros(len(TIME_PARTS))

    def add(one: OpKind, part: int) -> None:
        parts = own.parts(one, stage, replica, samples)
        found[part] += parts.computing
        found[[_TENSOR, _CONTEXT, _EXPERT, _SYNC]] += parts[1:]

    if kind in BETWEEN_KINDS:
        add(kind, _OPTIMIZER)
    elif samples:
        kinds = (OpKind.FORWARD, OpKind.BACKWARD) if split and kind in (OpKind.FORWARD, OpKind.BACKWARD) else (kind,)
        for one in kinds:
            add(one, _RECOMPUTATION if one == OpKind.RECOMPUTE else _COMPUTATION)
            if one in BACKWARD_KINDS and stage not in apart and own.recomputes(stage):
                add(OpKind.RECOMPUTE, _RECOMPUTATION)
    return found


def awaited_last(program: Program, timeline: Timeline) -> Awaited:
    """What each task waits for last."""
    consumer, producer = program.consumers(), program.dependency
    end, lane, tasks = timeline.end, timeline.lane, len(timeline)
    made, there = end[producer].copy(), end[producer].copy()
    part = np.full(len(producer), _BUBBLE)
    # Moved between lanes: one transfer for each producer and receiving lane, whichever of its ops is the first.
    moves = timeline.transfers
    key = moves.producer.astype(np.int64) * program.lanes + lane[moves.consumer]
    order = np.argsort(key)
    wanted = producer.astype(np.int64) * program.lanes + lane[consumer]
    place = np.minimum(np.searchsorted(key[order], wanted), max(0, len(order) - 1))
    moving = (program.transfer > 0) & (key[order][place] == wanted) if len(order) else np.zeros(len(wanted), bool)
    there[moving] = moves.end[order[place[moving]]]
    part[moving] = _TRANSFERS
    # Occupying a lane of another: a send, the way to the host, a reduction.
    apart = lane[producer] != lane[consumer]
    carried = apart & among(timeline.kind[producer], _MOVING)
    made[carried], part[carried] = timeline.start[producer[carried]], _TRANSFERS
    reduced = apart & (timeline.lane_kind[lane[producer]] == LaneKind.COLLECTIVE)
    ready = np.zeros(tasks)
    np.maximum.at(ready, consumer[apart], end[producer[apart]])
    made[reduced], part[reduced] = ready[producer[reduced]], _SYNC
    order = np.lexsort((-made, there, consumer))
    last = order[np.flatnonzero(np.append(np.diff(consumer[order]) != 0, True))] if len(order) else order
    found = Awaited(np.zeros(tasks), np.zeros(tasks), np.full(tasks, _BUBBLE), np.full(tasks, -1))
    columns: tuple[NDArray[Any], ...] = found
    sources: tuple[NDArray[Any], ...] = made, there, part, producer
    for column, values in zip(columns, sources, strict=True):
        column[consumer[last]] = values[last]
    return found


def gathers_behind(program: Program, timeline: Timeline) -> Floats:
    """For each update: its row, and when the all-gather of the updated weights begins and ends; columns."""
    consumer = program.consumers()
    gathers = timeline.kind[consumer] == OpKind.GATHER
    updates = np.flatnonzero(gathers & (timeline.kind[program.dependency] == OpKind.UPDATE))
    ready = np.zeros(len(timeline))
    np.maximum.at(ready, consumer[updates], timeline.end[program.dependency[updates]])
    return np.stack([program.dependency[updates], ready[consumer[updates]], timeline.end[consumer[updates]]], axis=1)


def _moving(timeline: Timeline, costs: PlanCosts, number: dict[int, int], window: tuple[float, float]) -> Floats:
    """Seconds during which transfers are on their way to each device, and during which gradients are reduced on separate lanes,
    float64 [devices, 2].
    """
    found = np.zeros((len(number), 2))
    moves = timeline.transfers
    _add_covered(found[:, 0], timeline.device[moves.consumer], moves.start, moves.end, number, window)
    reducing = np.flatnonzero((timeline.lane_kind == LaneKind.COLLECTIVE)[timeline.lane])
    holders = [stage.leads for stage in costs.plan.stages]
    counts = np.array([len(holders[stage]) for stage in timeline.stage[reducing].tolist()], dtype=np.int64)
    rows = np.repeat(reducing, counts)
    devices = np.array([lead for stage in timeline.stage[reducing].tolist() for lead in holders[stage]], dtype=np.int64)
    _add_covered(found[:, 1], devices, timeline.start[rows], timeline.end[rows], number, window)
    return found


def _add_covered(
    found: Floats,
    device: NDArray[np.integer],
    start: Floats,
    stop: Floats,
    number: dict[int, int],
    window: tuple[float, float],
) -> None:
    """Add to each device the seconds of a window that at least one of its intervals covers."""
    if not len(device):
        return
    order = np.lexsort((start, device))
    bounds = np.flatnonzero(np.append(True, np.diff(device[order]) != 0))
    start, stop = np.clip(start, *window), np.clip(stop, *window)
    for own in np.split(order, bounds[1:]):
        found[number[int(device[own[0]])]] += _busy(start[own], stop[own]).sum()
