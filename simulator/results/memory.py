"""Memory: bytes on every device over time, and what the peak consists of."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import brief
from simulator.costs.plan_costs import PlanCosts
from simulator.costs.stashes import ACTIVATION_PARTS, KeptByPart, StageStash
from simulator.engines.timeline import Timeline
from simulator.lowering.program import Program
from simulator.plans.plan import Plan, Problem, family_of, ranges
from simulator.results.text_tables import TextTable
from simulator.results.versions import COPY_RULES, version_table
from simulator.schedules.ops import BACKWARD_KINDS, HOST_KINDS, OpKind, among

CATEGORIES = ("weights", "weight versions", "gradients", "optimizer", "activations", "workspace", "buffers")
"""What memory holds. Weight versions: copies beside the current weights; workspace: activations that a recomputing backward makes
again, and gradients of weights before they are added up; buffers: boundary tensors that are being sent or wait to be used."""


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """Bytes on one device over one replay.

    device: id; capacity_bytes: what plans may fill; reserve_bytes: what of the device they may not
    times: float64 [steps], seconds, rising; the bytes hold from each time to the next
    bytes: float64 [steps, len(CATEGORIES)]
    activations_by_part: activations of the (first) peak by what they belong to, in the order of `ACTIVATION_PARTS`
    """

    device: int
    capacity_bytes: float
    times: NDArray[np.float64]
    bytes: NDArray[np.float64]
    reserve_bytes: float = 0.0
    activations_by_part: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return brief(
            self, f"device {self.device}: peak {self.peak_bytes / 2**30:.4g} of {self.capacity_bytes / 2**30:.4g} GiB"
        )

    @cached_property
    def peak_bytes(self) -> float:
        """Most bytes at once."""
        return float(self.bytes.sum(axis=1).max())

    @property
    def peak_parts(self) -> dict[str, float]:
        """What the (first) peak consists of, bytes by category."""
        at = int(self.bytes.sum(axis=1).argmax())
        return dict(zip(CATEGORIES, self.bytes[at].tolist(), strict=True))

    @property
    def fits(self) -> bool:
        """Whether the peak is within the capacity."""
        return self.peak_bytes <= self.capacity_bytes


def peak_rows(memories: Sequence[DeviceMemory]) -> list[dict[str, Any]]:
    """One row a device, by id: device, peak_bytes, capacity_bytes, share (of the capacity), reserve_bytes, what the peak
    consists of by category, and its activations by what they belong to (activations_by_part)."""
    return [
        {
            "device": memory.device,
            "peak_bytes": memory.peak_bytes,
            "capacity_bytes": memory.capacity_bytes,
            "share": memory.peak_bytes / memory.capacity_bytes,
            "reserve_bytes": memory.reserve_bytes,
            **memory.peak_parts,
            "activations_by_part": dict(memory.activations_by_part),
        }
        for memory in sorted(memories, key=lambda memory: memory.device)
    ]


def peak_tables(memories: Sequence[DeviceMemory]) -> tuple[TextTable, ...]:
    """What the peak of each device consists of, in GiB, and its activations by part; devices that hold the same in one row."""
    found = peak_rows(memories)
    used = [name for name in CATEGORIES if any(row[name] for row in found)]
    totals = {"together": "peak_bytes", "capacity": "capacity_bytes", "reserve beside": "reserve_bytes"}
    whole = {name: [row[key] for row in found] for name, key in ({name: name for name in used} | totals).items()}
    tables = [_alike("Memory at the peak, GiB", found, whole)]
    if parts := activations_by_part(found):
        tables.append(_alike(ACTIVATIONS, found, parts))
    return tuple(tables)


ACTIVATIONS = "Activations at the peak by part, GiB"


def activations_by_part(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Bytes of each part that any of some rows with `activations_by_part` has, a number a row; in the order of the parts."""
    found = [row["activations_by_part"] for row in rows]
    return {
        part: [one.get(part, 0.0) for one in found] for part in ACTIVATION_PARTS if any(part in one for one in found)
    }


def _alike(title: str, found: Sequence[Mapping[str, Any]], columns: Mapping[str, Sequence[float]]) -> TextTable:
    """A table of GiB of the devices of `peak_rows`, bytes by heading; devices whose cells are the same in one row."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for row, *amounts in zip(found, *columns.values(), strict=True):
        alike.setdefault(tuple(f"{one / 2**30:,.2f}" for one in amounts), []).append(row["device"])
    rows = tuple((ranges(devices), *cells) for cells, devices in alike.items())
    return TextTable(title, ("devices", *columns), rows)


def memory_over_time(costs: PlanCosts, timeline: Timeline) -> tuple[DeviceMemory, ...]:
    """Memory of every device in use, by device id; devices of a group hold the same.

    Always there: weights (on each device that uses it a copy of a tied one), gradients (of every round that is still being
    all-reduced), those in work before they are added up (of the device's stage that has most of them), optimizer states, and in
    asynchronous plans the copies of the weights that the plan's schedule asks for (`simulator.results.versions`).
    From the start of a forward to the end of its backward: what the layers stash, or the stage's input only where the
    stage recomputes; what is left out then comes back during backward. Where backward is split, what the weight gradient does not
    need goes at the end of the input gradient. What is offloaded is gone from the end of its way to the host to the start of its
    way back. From the end of the producer to the arrival on the sender, and from its
    departure to the start of the consumer on the receiver (which then stashes what it needs): the boundary tensor; where
    several ops use it, each takes its samples of it.
    Everything is counted in whole bytes, rounded up, so that a sum is the same in whatever order it is taken.
    At one moment ops and transfers that end free memory before those that begin take it; what takes no time at all comes in
    between, in the order of the tasks.
    """
    problem, plan = costs.problem, costs.plan
    groups = plan.groups
    events: dict[int, list[_HeldChanges]] = {lead: [] for lead in groups}
    static = {lead: np.zeros(len(CATEGORIES)) for lead in groups}
    in_work = dict.fromkeys(groups, 0.0)
    rows_of = _holding_rows(timeline)
    known: dict[Hashable, _Held] = {}
    for (number, replica), copies in copies_held(timeline, plan, problem.weight_versions).items():
        lead = costs.device(number, replica)
        # none: more replicas than micro-batches
        rows = rows_of.get((lead, number, replica), np.zeros(0, dtype=np.int64))
        at_once = bool((timeline.kind[rows] == OpKind.RECOMPUTE).any())
        alike = number, costs.group(number, replica), copies, at_once
        if alike not in known:
            known[alike] = _held(costs, (number, replica), copies, at_once=at_once)
        held = known[alike]
        static[lead] += held.always
        in_work[lead] = max(in_work[lead], held.in_work)
        for part, (stash, kept) in enumerate(held.stashed):
            _activation_events(
                events[lead], stash, timeline, rows[timeline.microbatch[rows] % plan.slices == part], kept
            )
    _buffer_events(events, timeline)
    horizon = timeline.makespan_seconds
    found: list[DeviceMemory] = []
    for lead, group in groups.items():
        static[lead][CATEGORIES.index("workspace")] = in_work[lead]
        memory = _device_memory(lead, 0.0, static[lead], events[lead], horizon)
        for device in group:
            accelerator = problem.cluster.devices[device]
            capacity, reserve = accelerator.memory_bytes, getattr(accelerator, "reserve_bytes", 0.0)
            found.append(replace(memory, device=device, capacity_bytes=capacity, reserve_bytes=reserve))
    return tuple(sorted(found, key=lambda memory: memory.device))


class _Held(NamedTuple):
    """What a replica of a stage holds, the same on those that lie alike.

    always: bytes as of `copy_bytes`; in_work: of gradients before they are added up
    stashed: of a sample in each slice of the sequences
    """

    always: NDArray[np.float64]
    in_work: float
    stashed: list[tuple[StageStash, KeptByPart]]


def _held(costs: PlanCosts, place: tuple[int, int], copies: tuple[int, int], *, at_once: bool) -> _Held:
    """What a (stage, replica) holds with some copies of its weights and gradients; at_once: as of `PlanCosts.stash`."""
    slices = costs.plan.slices
    parts = [costs] if slices == 1 else [costs.of_slice(part) for part in range(slices)]
    stashed = [(one.stash(*place, at_once=at_once), one.kept_by_part(*place)) for one in parts]
    return _Held(copy_bytes(costs, place, *copies), costs.gradient_in_work(*place), stashed)


MOST_DIGITS = 300
"""Decimals that numbers can be rounded to."""


def stashes_over_time(
    timeline: Timeline, stashes: Sequence[StageStash], limits: Sequence[float]
) -> tuple[DeviceMemory, ...]:
    """What each device of a timeline holds of numbers that were given, one a stage, in their unit; by device id.

    limits: of the devices
    Only what ops keep, by the rule of `memory_over_time`. Sums are rounded to twelve digits, so that three times 0.1 is 0.3, and
    what is the limit to twelve digits is the limit.
    """
    events: dict[int, list[_HeldChanges]] = {int(device): [] for device in timeline.devices()}
    for (device, stage, _), rows in _holding_rows(timeline).items():
        _activation_events(events[device], stashes[stage], timeline, rows)
    nothing, horizon = np.zeros(len(CATEGORIES)), timeline.makespan_seconds
    found = [
        _device_memory(device, limit, nothing, changes, horizon)
        for limit, (device, changes) in zip(limits, events.items(), strict=True)
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


def always_there(problem: Problem, elements: float, copies: int = 1, gradients: int = 1) -> NDArray[np.float64]:
    """Whole bytes that weights and what goes with them take on a device all the time, float64 [len(CATEGORIES)].

    elements: weight elements; copies: of the weights; gradients: of how many rounds
    """
    weights, gradient = np.ceil(elements * problem.element_bytes), np.ceil(elements * problem.accumulated_bytes)
    row = np.zeros(len(CATEGORIES))
    row[:4] = weights, weights * (copies - 1), gradient * gradients, np.ceil(elements * problem.optimizer_bytes)
    return row


def copy_bytes(costs: PlanCosts, place: tuple[int, int], copies: int = 1, gradients: int = 1) -> NDArray[np.float64]:
    """`always_there` of the weights of a (stage, replica) on each of its devices, as ZeRO divides them among the replicas.

    Where it divides gradients, those of the unit in use and of the one that is scattered are buffers; where it divides weights,
    those of the unit in use and of the one that is gathered are, too.
    """
    plan = costs.plan
    row = always_there(costs.problem, costs.held_elements(*place), copies, gradients)
    replicas = costs.group(*place).replicas
    whole = always_there(costs.problem, costs.divided_elements(*place), copies, gradients) if replicas > 1 else row
    for category, least in (("weights", 3), ("gradients", 2), ("optimizer", 1)):
        if plan.zero >= least:
            number = CATEGORIES.index(category)
            row[number] = np.ceil(whole[number] / replicas)
    row[CATEGORIES.index("buffers")] = np.ceil(costs.unit_buffers(*place))
    return row


def copies_held(timeline: Timeline, plan: Plan, weight_versions: str) -> dict[tuple[int, int], tuple[int, int]]:
    """Copies of the weights and of the gradients that each (stage, replica) holds; one of both where the plan flushes.

    Of the weights by the rule of the plan's schedule. Where that is one lane, as in all but families of several lanes a device,
    the order of its ops decides, at whatever times.
    """
    slots = [(number, replica) for number, stage in enumerate(plan.stages) for replica in range(len(stage.leads))]
    family = family_of(plan)
    if family is None or family.flush:
        return dict.fromkeys(slots, (1, 1))
    name = weight_versions if family.copies == "problem" else family.copies or "stashing"
    rule = COPY_RULES["pipedream" if name == "stashing" else name]
    table = version_table(timeline, 1 if name == "vertical-sync" else len(plan.microbatches))
    if name == "stashing":
        copies = rule.by_replica(table)
    else:  # the replicas of a stage keep room for as many as the fullest of them
        copies = {slot: int(peak) for slot, peak in zip(slots, rule(table)[[stage for stage, _ in slots]], strict=True)}
    return {slot: (copies[slot], _gradient_copies(timeline, *slot, plan)) for slot in slots}


def _gradient_copies(timeline: Timeline, stage: int, replica: int, plan: Plan) -> int:
    """Gradients that a replica holds at once: 1, or one for each mini-batch whose round it has not yet applied."""
    if plan.replication != "round-robin":
        return 1
    rows = np.flatnonzero((timeline.stage == stage) & (timeline.replica == replica))
    pending: set[int] = set()
    most = 1
    for kind, minibatch in zip(timeline.kind[rows].tolist(), timeline.microbatch[rows].tolist(), strict=True):
        if kind == OpKind.UPDATE:
            pending.discard(minibatch)
        elif kind == OpKind.BACKWARD:
            pending.add(minibatch)
            most = max(most, len(pending))
    return most


_NOTHING_KNOWN = KeptByPart({}, {})


class _HeldChanges(NamedTuple):
    """Changes of one category: seconds, place among the changes of that moment (see `_at_starts`), category, bytes; and of
    activations what they belong to, in whatever unit.
    """

    times: NDArray[np.float64]
    places: NDArray[np.int64]
    category: int
    amounts: NDArray[np.float64]
    parts: Mapping[str, float] = _NOTHING_KNOWN.kept


_LAST = np.iinfo(np.int64).max


def _at_starts(timeline: Timeline, tasks: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Moments at which tasks begin, and their places: behind all others, or a task's own where the task takes no time."""
    start, own = timeline.start[tasks], 1 + 3 * _first_of_pair(timeline, tasks)
    return start, np.where(timeline.end[tasks] > start, _LAST, own)


def _at_ends(timeline: Timeline, tasks: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Moments at which tasks end, and their places: before all others, or behind its start where a task takes no time."""
    end, own = timeline.end[tasks], 2 + 3 * _first_of_pair(timeline, tasks)
    return end, np.where(end > timeline.start[tasks], 0, own)


def _first_of_pair(timeline: Timeline, tasks: NDArray[np.integer]) -> NDArray[np.int64]:
    """The task that each begins and ends with, which stands for it in the order of the tasks."""
    return np.asarray(tasks if timeline.together is None else timeline.together[tasks], dtype=np.int64)


def _holding_rows(timeline: Timeline) -> dict[tuple[int, int, int], NDArray[np.int64]]:
    """The ops that take activations or free them, rising, by device, stage and replica."""
    rows = np.flatnonzero(timeline.compute() | among(timeline.kind, HOST_KINDS))
    slots = np.stack([timeline.device[rows], timeline.stage[rows], timeline.replica[rows]])
    order = np.lexsort(slots[::-1])
    begins = np.flatnonzero(np.append(True, (np.diff(slots[:, order]) != 0).any(axis=0)))
    groups = np.split(rows[order], begins[1:])
    return {tuple(slots[:, order[begin]].tolist()): group for begin, group in zip(begins, groups, strict=True)}


def _activation_events(
    events: list[_HeldChanges],
    stash: StageStash,
    timeline: Timeline,
    rows: NDArray[np.integer],
    by_part: KeptByPart = _NOTHING_KNOWN,
) -> None:
    kind, samples = timeline.kind[rows], timeline.samples[rows].astype(np.float64)
    begins, ends_op = op_ends(timeline.microbatch[rows], kind)
    forward, freed = (kind == OpKind.FORWARD) & begins, (kind == OpKind.INPUT_GRADIENT) & ends_op
    activations, workspace = CATEGORIES.index("activations"), CATEGORIES.index("workspace")

    def add(
        where: tuple[NDArray[np.float64], NDArray[np.int64]],
        category: int,
        amounts: NDArray[np.float64],
        *,
        longer: bool = False,
    ) -> None:
        parts = by_part.longer if longer else by_part.kept
        events.append(_HeldChanges(*where, category, amounts, parts if category == activations else {}))

    add(_at_starts(timeline, rows[forward]), activations, samples[forward] * stash.kept)
    away, back = (kind == one for one in HOST_KINDS)
    add(_at_ends(timeline, rows[away]), activations, -samples[away] * stash.kept)
    add(_at_starts(timeline, rows[back]), activations, samples[back] * stash.kept)
    if stash.made:
        begun = np.flatnonzero(among(kind, (*BACKWARD_KINDS, OpKind.RECOMPUTE)))
        _, first = np.unique(timeline.microbatch[rows[begun]], return_index=True)
        begun = begun[first]  # an op of its own, or the first part of a backward, runs forward again, for all parts
        made = samples[begun] * np.where(kind[begun] == OpKind.INPUT_GRADIENT, stash.made_for_input, stash.made)
        add(_at_starts(timeline, rows[begun]), workspace, made)
    left = _at_ends(timeline, rows[freed])
    for category, amount, for_input, longer in (
        (activations, stash.kept, stash.kept, stash.kept_longer),
        (workspace, stash.made, stash.made_for_input, stash.made_longer),
    ):
        if not amount:
            continue
        add(left, category, -samples[freed] * for_input)
        add(left, category, samples[freed] * longer, longer=True)
        for one, whole in ((OpKind.BACKWARD, amount), (OpKind.WEIGHT_GRADIENT, longer)):
            done = kind == one
            part, parts = parts_of(timeline.microbatch[rows], done)
            gone = whole_part(samples[done] * whole, part[done], part[done] + 1, parts[done])
            add(_at_ends(timeline, rows[done]), category, -gone, longer=one == OpKind.WEIGHT_GRADIENT)


def op_ends(*columns: NDArray[np.integer]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows are the first part of an op, and which the last, bool [rows]; columns: what tells ops, in a lane's order.

    What an op takes it has from its first part on, and the input gradient frees what it does with its last.
    """
    other = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    rows = len(columns[0])
    return np.append(True, other)[:rows], np.append(other, True)[:rows]


def parts_of(group: NDArray[np.integer], chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each chosen row, how many of its group stand before it, and how many there are; int64 [rows], 0 and 1 for the others.

    All-reduce splits a backward into parts that make one together.
    """
    part, parts = np.zeros(len(group), dtype=np.int64), np.ones(len(group), dtype=np.int64)
    rows = np.flatnonzero(chosen)
    order = rows[np.argsort(group[rows], kind="stable")]
    _, first, count = np.unique(group[order], return_index=True, return_counts=True)
    part[order] = np.arange(len(order)) - np.repeat(first, count)
    parts[order] = np.repeat(count, count)
    return part, parts


def whole_part(
    amount: NDArray[np.float64], begin: NDArray[np.int64], end: NDArray[np.int64], whole: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Bytes from `begin` to `end` of `whole` of an amount of whole bytes: whole bytes, too, which sum to the amount."""
    upto = np.where(end == whole, amount, np.floor(amount * end / whole))
    return np.asarray(upto - np.floor(amount * begin / whole))


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """The ops that use what was transferred, one row for each use; each transfer's rows stand together, by rising samples.

    transfer: int64; row of the transfer; task: int64; the op
    begin, end, whole: int64; which of the transfer's samples it uses, and how many there are
    """

    transfer: NDArray[np.int64]
    task: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    whole: NDArray[np.int64]


def uses_of(
    tasks: Program | Timeline, lane: NDArray[np.integer], producer: NDArray[np.integer], consumer: NDArray[np.integer]
) -> Uses:
    """Which ops use each transfer: one, or where micro-batches of stages differ several, each some of its samples.

    lane: of every task; producer, consumer: of every transfer, the first consumer where there are several
    """
    first, end = tasks.first_sample, tasks.first_sample + tasks.samples
    count = np.arange(len(producer))
    if ((first[producer] >= first[consumer]) & (end[producer] <= end[consumer])).all():
        return Uses(count, consumer.astype(np.int64), np.zeros_like(count), np.ones_like(count), np.ones_like(count))
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
    return Uses(transfer, task, upto - shared - before[transfer], upto - before[transfer], whole[transfer])


def _buffer_events(events: dict[int, list[_HeldChanges]], timeline: Timeline) -> None:
    buffers = CATEGORIES.index("buffers")
    transfers = timeline.transfers
    size = np.ceil(transfers.size_bytes)
    source, target = timeline.device[transfers.producer], timeline.device[transfers.consumer]
    made, places = _at_ends(timeline, transfers.producer)
    uses = uses_of(timeline, timeline.lane, transfers.producer, transfers.consumer)
    used, places_used = _at_starts(timeline, uses.task)
    freed = whole_part(size[uses.transfer], uses.begin, uses.end, uses.whole)
    gone = np.where(transfers.end > made, 0, 3 + 3 * _first_of_pair(timeline, transfers.producer))
    for device, rows in events.items():
        sent, received = source == device, target == device
        rows.append(_HeldChanges(made[sent], places[sent], buffers, size[sent]))
        rows.append(_HeldChanges(transfers.end[sent], gone[sent], buffers, -size[sent]))
        rows.append(
            _HeldChanges(transfers.start[received], np.zeros(received.sum(), dtype=np.int64), buffers, size[received])
        )
        here = received[uses.transfer]
        rows.append(_HeldChanges(used[here], places_used[here], buffers, -freed[here]))


def _device_memory(
    device: int, capacity: float, static: NDArray[np.float64], events: Sequence[_HeldChanges], horizon: float
) -> DeviceMemory:
    """Sum the changes by moment, by place, and in one place what is freed before what is taken."""
    times, places, change = (
        np.concatenate(columns)
        for columns in zip(*((one.times, one.places, one.amounts) for one in events), strict=True)
    )
    counts = [len(one.times) for one in events]
    category = np.repeat([one.category for one in events], counts)
    source = np.repeat(np.arange(len(events)), counts)
    order = np.lexsort((change, places, times))
    times, category, change, source = times[order], category[order], change[order], source[order]
    steps = np.zeros((len(times) + 1, len(CATEGORIES)))
    steps[0] = static
    steps[np.arange(1, len(times) + 1), category] = change
    levels = np.cumsum(steps, axis=0)
    until = slice(int(levels.sum(axis=1).argmax()))
    held = np.bincount(source[until], weights=change[until], minlength=len(events)).astype(np.float64)
    times = np.concatenate([[0.0], times, [horizon]])
    levels = np.vstack([levels, levels[-1:]])
    return DeviceMemory(device, capacity, times, levels, activations_by_part=_divided(events, held))


def _divided(events: Sequence[_HeldChanges], held: NDArray[np.float64]) -> dict[str, float]:
    """Activations by part, of the bytes of each element of `events` that are held."""
    alike: dict[int, float] = {}  # those of one stage belong to the same, and sum to what it holds
    for one, amount in zip(events, held.tolist(), strict=True):
        alike[id(one.parts)] = alike.get(id(one.parts), 0.0) + amount
    found = dict.fromkeys(ACTIVATION_PARTS, 0.0)
    for parts in {id(one.parts): one.parts for one in events}.values():
        total = sum(parts.values())
        for part, size in parts.items() if total else ():
            found[part] += alike[id(parts)] * size / total
    return {part: amount for part, amount in found.items() if amount}
