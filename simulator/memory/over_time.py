"""Memory over time: bytes on every device during a replay, by category."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Floats, Integers, optional_members
from simulator.costs.plan_costs import PlanCosts
from simulator.costs.stand_ins import StandIns
from simulator.costs.stashes import ACTIVATION_PARTS, KeptByPart, StageStash
from simulator.engines.timeline import Timeline
from simulator.memory.always_held import copies_held, copy_bytes
from simulator.memory.changes import (
    ARRIVAL,
    DEPARTURE,
    KEPT,
    KEPT_LONGER,
    MADE,
    SENT,
    START,
    MemoryChanges,
    memory_changes,
)
from simulator.memory.device_memory import CATEGORIES, DeviceMemory
from simulator.schedules.ops import OpKind

_CATEGORY = np.array([CATEGORIES.index(name) for name in ("activations", "workspace", "buffers")])[[0, 1, 1, 0, 1, 2]]
"""Category of each size of `simulator.memory.changes`."""


def memory_over_time(
    costs: PlanCosts, timeline: Timeline, stand_ins: StandIns | None = None
) -> tuple[DeviceMemory, ...]:
    """Memory of every device in use, by device id; devices of a group, and those for which it stands in, hold the same.

    stand_ins: replicas that the timeline is of, if not of all

    Always there: weights (on each device that uses it a copy of a tied one), gradients (of every round that is still being
    all-reduced), those in work before they are added up (of the device's stage that has most of them), optimizer states, and in
    asynchronous plans the copies of the weights that the plan's schedule asks for (`simulator.memory.versions`).
    Over time: `simulator.memory.changes`.
    """
    problem, plan = costs.problem, costs.plan
    groups, slices = plan.groups if stand_ins is None else stand_ins.groups(plan), plan.slices
    static = {lead: np.zeros(len(CATEGORIES)) for lead in groups}
    in_work = dict.fromkeys(groups, 0.0)
    replicas = max(len(stage.leads) for stage in plan.stages)
    stashes = np.zeros((len(plan.stages), replicas, slices, SENT))
    parts: list[Mapping[str, float]] = [{}] * (2 * stashes[..., 0].size)
    runs = timeline.kind == OpKind.RECOMPUTE
    at_once = set(zip(timeline.stage[runs].tolist(), timeline.replica[runs].tolist(), strict=True))
    known: dict[Hashable, _Held] = {}
    for place, copies in copies_held(timeline, plan, problem.weight_versions).items():
        number, replica = place
        if stand_ins is not None and stand_ins.of[replica] != replica:
            continue
        lead = costs.device(*place)
        alike = number, costs.group(*place), copies, place in at_once
        if alike not in known:
            known[alike] = _held(costs, place, copies, at_once=place in at_once)
        held = known[alike]
        static[lead] += held.always
        in_work[lead] = max(in_work[lead], held.in_work)
        stashes[place] = [stash for stash, _ in held.stashed]
        first = 2 * (number * replicas + replica) * slices
        parts[first : first + 2 * slices] = [one for _, kept in held.stashed for one in (kept.kept, kept.longer)]
    again = np.array([costs.recomputes(stage) for stage in range(len(plan.stages))])
    rows = _timed(timeline, memory_changes(timeline, again, timeline.transfers), stashes)
    horizon = timeline.makespan_seconds
    found: list[DeviceMemory] = []
    for lead, group in groups.items():
        static[lead][CATEGORIES.index("workspace")] = in_work[lead]
        memory = _device_memory(lead, 0.0, static[lead], rows, horizon, parts)
        of_kind: dict[int, DeviceMemory] = {}
        for device in group:
            kind = costs.layers.kind_of_device(device)
            if kind not in of_kind:
                accelerator = problem.cluster.devices[device]
                of_kind[kind] = replace(
                    memory,
                    capacity_bytes=problem.room_bytes(device),
                    reserve_bytes=optional_members(accelerator).reserve_bytes,
                    reserved_bytes=problem.stack.reserved_bytes(accelerator, memory.peak_bytes),
                    driver_bytes=problem.stack.driver_bytes(accelerator, memory.peak_bytes),
                )
            found.append(replace(of_kind[kind], device=device))
    return tuple(sorted(found, key=lambda memory: memory.device))


class _Held(NamedTuple):
    """Memory of one (stage, replica); symmetrically placed replicas share it.

    always: bytes as in `copy_bytes`; in_work: of gradients before they are added up
    stashed: of a sample in each slice of the sequences
    """

    always: Floats
    in_work: float
    stashed: list[tuple[StageStash, KeptByPart]]


def _held(costs: PlanCosts, place: tuple[int, int], copies: tuple[int, int], *, at_once: bool) -> _Held:
    """Memory of a (stage, replica) with so many copies of its weights and gradients; at_once: as in `PlanCosts.stash`."""
    slices = costs.plan.slices
    parts = [costs] if slices == 1 else [costs.of_slice(part) for part in range(slices)]
    stashed = [(one.stash(*place, at_once=at_once), one.kept_by_part(*place)) for one in parts]
    return _Held(copy_bytes(costs, place, *copies), costs.gradient_in_work(*place), stashed)


MOST_DIGITS = 300
"""Decimals that numbers can be rounded to."""


def stashes_over_time(
    timeline: Timeline, stashes: Sequence[StageStash], limits: Sequence[float]
) -> tuple[DeviceMemory, ...]:
    """Memory of each device of a timeline from given stash sizes, one per stage, in their unit; by device id.

    limits: of the devices
    Only what ops keep, by the rule of `memory_over_time`. Sums are rounded to twelve digits, so that three times 0.1 is 0.3, and
    what is the limit to twelve digits is the limit.
    """
    each = np.array(stashes)
    table = np.repeat(each[:, None, None, :], int(timeline.replica.max(initial=0)) + 1, axis=1)
    rows = _timed(timeline, memory_changes(timeline, each[:, MADE] > 0), table)
    nothing, horizon = np.zeros(len(CATEGORIES)), timeline.makespan_seconds
    found = [
        _device_memory(device, limit, nothing, rows, horizon)
        for limit, device in zip(limits, timeline.devices().tolist(), strict=True)
    ]
    most = max(one.peak_bytes for one in found)
    digits = max(0, 12 - math.ceil(math.log10(most))) if most else 0
    activations = np.array(CATEGORIES) == "activations"
    levels = []
    for one, limit in zip(found, limits, strict=True):
        level = one.bytes.sum(axis=1)
        if digits <= MOST_DIGITS:
            level = np.round(level, digits)
        levels.append(np.where(np.abs(level - limit) <= 1e-12 * most, limit, level))
    return tuple(replace(one, bytes=level[:, None] * activations) for one, level in zip(found, levels, strict=True))


class _Timed(NamedTuple):
    """Memory changes sorted by device and time. place: as `MemoryChanges.places`, frees before takes; source: twice the index of
    the stash that a change belongs to, plus one for what is kept longer; -1 for others.
    """

    device: NDArray[np.int32]
    times: Floats
    category: Integers
    amounts: Floats
    source: Integers


def _timed(timeline: Timeline, changes: MemoryChanges, stashes: Floats) -> _Timed:
    """The memory changes of a timeline with their times; stashes: as `StageStash`, float64 [stages, replicas, slices, 5]."""
    transfers, moment, task, holder = timeline.transfers, changes.moment, changes.task, changes.holder
    start, end = timeline.start[task], timeline.end[task]
    times, sent = np.where(moment == START, start, end), changes.size == SENT
    size = np.zeros(len(changes))
    size[sent] = np.ceil(transfers.size_bytes)[changes.transfer[sent]]
    for one, column in ((ARRIVAL, transfers.end), (DEPARTURE, transfers.start)):
        times[moment == one] = column[changes.transfer[moment == one]]
    lasting = np.where(moment == ARRIVAL, times > end, end > start)
    slot = (timeline.stage[holder].astype(np.int64) * stashes.shape[1] + timeline.replica[holder]) * stashes.shape[2]
    slot += timeline.microbatch[holder] % stashes.shape[2]
    size[~sent] = stashes.reshape(-1, SENT)[slot[~sent], changes.size[~sent]]
    kept = (changes.size == KEPT) | (changes.size == KEPT_LONGER)
    source = np.where(kept, 2 * slot + (changes.size == KEPT_LONGER), -1)
    device, amounts = timeline.device[holder], changes.amounts(size)
    order = np.lexsort((amounts, changes.places(lasting), times, device))
    category = _CATEGORY[changes.size[order]]
    return _Timed(device[order], times[order], category, amounts[order], source[order])


def _device_memory(
    device: int,
    capacity: float,
    static: Floats,
    changes: _Timed,
    horizon: float,
    parts: Sequence[Mapping[str, float]] = (),
) -> DeviceMemory:
    """Sum the changes of one device over time; parts: what the bytes of each source belong to."""
    here = slice(*np.searchsorted(changes.device, (device, device + 1)))
    times, amounts = changes.times[here], changes.amounts[here]
    steps = np.zeros((len(times) + 1, len(CATEGORIES)))
    steps[0] = static
    steps[np.arange(1, len(times) + 1), changes.category[here]] = amounts
    levels = np.cumsum(steps, axis=0)
    until = slice(int(levels.sum(axis=1).argmax()))
    divided = _divided(changes.source[here][until], amounts[until], parts) if parts else {}
    times = np.concatenate([[0.0], times, [horizon]])
    levels = np.vstack([levels, levels[-1:]])
    return DeviceMemory(device, capacity, times, levels, activations_by_part=divided)


def _divided(source: Integers, amounts: Floats, parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Activations by part of the layers, for some of the changes."""
    sources, index = np.unique(source, return_inverse=True)
    held = np.bincount(index, weights=amounts, minlength=len(sources))
    found = dict.fromkeys(ACTIVATION_PARTS, 0.0)
    for one, amount in zip(sources.tolist(), held.tolist(), strict=True):
        total = sum(parts[one].values()) if one >= 0 else 0.0
        for part, size in parts[one].items() if total else ():
            found[part] += amount * size / total
    return {part: amount for part, amount in found.items() if amount}
