"""Fill: seconds, bytes and devices of a plan into its structure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers
from simulator.costs.given import Costs, Route, StageCollectives, TiedReduction, Transfer
from simulator.costs.stand_ins import StandIns
from simulator.lowering.coverage import Duration
from simulator.lowering.program import LaneKind, Program
from simulator.lowering.structure import Structure
from simulator.schedules.ops import BACKWARD_KINDS, HOST_KINDS, OpKind, among

_BESIDE = {OpKind.FORWARD: OpKind.BACKWARD, OpKind.BACKWARD: OpKind.FORWARD}
"""Kind of op -> kind on the other lane of a device that is divided in fixed shares."""


class Collectives(NamedTuple):
    """Seconds of all collectives, and the parts of ops that they wait for.

    seconds: float64; of the buckets stage by stage, ties, gathers and then scatters of all units, gathers of updated weights
    shares: float64; parts of the seconds of ops: of the buckets, of units forward, and backward
    """

    seconds: Floats
    shares: Floats


_NO_COLLECTIVES = Collectives(np.zeros(0), np.zeros(0))


def collectives_of(
    structure: Structure, several: Mapping[int, StageCollectives], ties: Sequence[TiedReduction]
) -> Collectives:
    """The collectives of a structure; several: of each stage that has any."""
    if not several and not ties:
        return _NO_COLLECTIVES
    held = [(structure.forms[stage], one) for stage, one in several.items()]
    buckets = [one for form, stage in held if form.buckets for one in stage.buckets]
    units = [one for form, stage in held if form.units for one in stage.units]
    updates = [stage.update_gather.seconds for form, stage in held if form.updates and stage.update_gather]
    seconds = [
        *(one.seconds for one in buckets),
        *(one.seconds for one in ties),
        *(one.gather or 0.0 for one in units),
        *(one.scatter for one in units),
        *updates,
    ]
    shares = [*(one.share for one in buckets), *(one.forward for one in units), *(one.backward for one in units)]
    return Collectives(np.array(seconds), np.array(shares))


def collective_bytes(structure: Structure, costs: Costs) -> dict[int, float]:
    """Bytes of each collective of a structure, on each device, by the number of its value."""
    held = [(form, costs.collectives(stage)) for stage, form in enumerate(structure.forms) if form]
    units = [one for form, stage in held if form.units for one in stage.units]
    sizes = [
        *(one.size_bytes for form, stage in held if form.buckets for one in stage.buckets),
        *(one.size_bytes for one in costs.tied_reductions),
        *(one.gather_bytes for one in units),
        *(one.scatter_bytes for one in units),
        *(stage.update_gather.size_bytes for form, stage in held if form.updates and stage.update_gather),
    ]
    pairs = len(structure.pairs)
    first = len(structure.duration_of) + (pairs + 1 if pairs else 0) + len(structure.moves) + 1
    return dict(enumerate(sizes, start=first))


def fill(structure: Structure, costs: Costs, stand_ins: StandIns | None = None) -> Program:
    """The program of a structure with these costs; stand_ins: if the structure has them alone."""
    transfers = [Transfer(0.0, 0.0), *(costs.transfer(*move) for move in structure.moves)]
    seconds = np.array([one.seconds for one in transfers])
    held = {stage: costs.collectives(stage) for stage, form in enumerate(structure.forms) if form}
    ties = costs.tied_reductions
    collectives = collectives_of(structure, held, ties)
    asked = _asked(structure, costs)
    values, least = values_of(structure, asked, seconds, collectives, overlapped=costs.overlapped_seconds)
    compute = len(structure.lane_first)
    reducing = [stage for stage, form in enumerate(structure.forms) if form and not form.units]
    busy = [held[stage].busy for stage in reducing] + [(one.route, one.occupancy) for one in ties]
    busy += [held[stage].busy for stage in structure.reducing[len(busy) :]]
    device = [
        *(costs.device(*one) for one in structure.lane_first),
        *(costs.device(one, 0) for one in structure.reducing),
    ]
    lane_device = np.array(device, dtype=np.int32)
    lane_sharing = np.full(len(lane_device), -1, dtype=np.int32)
    if structure.lanes == "shared":
        lane_sharing[:compute] = lane_device[:compute]
    heads = structure.kind[np.minimum(structure.lane_offsets[:compute], len(structure) - 1)]
    own = np.where(among(heads, HOST_KINDS), LaneKind.HOST, LaneKind.COMPUTE).astype(np.int8)
    routes = [() if structure.free else one.route for one in transfers]
    if stand_ins is not None:
        busy = _looked_at(busy, stand_ins)
    slowdown = _overlap_slowdown(structure, costs, lane_device[:compute], own == LaneKind.COMPUTE)
    return Program(
        lane_offsets=structure.lane_offsets,
        lane_device=lane_device,
        lane_kind=np.append(own, np.full(len(structure.reducing), LaneKind.COLLECTIVE, dtype=np.int8)),
        lane_sharing=lane_sharing,
        kind=structure.kind,
        stage=structure.stage,
        microbatch=structure.microbatch,
        replica=structure.replica,
        first_sample=structure.first_sample,
        samples=structure.samples,
        seconds=values[structure.value],
        dependency_offsets=structure.dependency_offsets,
        dependency=structure.dependency,
        transfer=structure.transfer,
        transfer_seconds=np.zeros_like(seconds) if structure.free else seconds,
        transfer_bytes=np.array([one.size_bytes for one in transfers]),
        transfer_route=tuple(routes),
        transfer_pair=_pairs(structure, costs),
        transfer_loads=tuple(() if structure.free else one.loads for one in transfers),
        lane_route=(*((),) * compute, *(route for route, _ in busy)),
        channels=tuple(costs.channels),
        lane_occupancy=(*((),) * compute, *(occupancy for _, occupancy in busy)),
        least_seconds=None if least is None else least[structure.value],
        sends=structure.sends,
        together=structure.together,
        transfer_copies=() if stand_ins is None else _copies(structure, routes, stand_ins),
        overlap_slowdown=slowdown,
        taking_part=() if slowdown is None else _taking_part(structure),
    )


def _overlap_slowdown(structure: Structure, costs: Costs, devices: NDArray[np.int32], computes: Flags) -> Floats | None:
    """How much slower each lane computes while its device communicates; None for not at all, as where transfers take lanes."""
    slower = np.zeros(len(devices) + len(structure.reducing))
    pairs = zip(devices.tolist(), computes.tolist(), strict=True)
    slower[: len(devices)] = [costs.overlap_slowdown(device) * lane for device, lane in pairs]
    return slower if slower.any() and structure.sends is None else None


def _taking_part(structure: Structure) -> tuple[tuple[int, ...], ...]:
    """Of each collective lane the lanes that run ops of its stages."""
    compute, holders = len(structure.lane_first), dict[int, list[int]]()
    for lane in range(compute):
        held = structure.stage[structure.lane_offsets[lane] : structure.lane_offsets[lane + 1]]
        for stage in np.unique(held).tolist():
            holders.setdefault(stage, []).append(lane)
    stages: list[tuple[int, ...]] = [(stage,) for stage in structure.reducing]
    first = sum(1 for form in structure.forms if form and not form.units)
    stages[first : first + len(structure.ties)] = structure.ties
    return (
        *((),) * compute,
        *(tuple(sorted({lane for stage in those for lane in holders.get(stage, ())})) for those in stages),
    )


_Busy = tuple[Route, tuple[float, ...]]
"""Channels that a collective keeps busy, and shares of its seconds; () is all of them."""


def _looked_at(busy: Sequence[_Busy], stand_ins: StandIns) -> list[_Busy]:
    """What collectives keep busy of the channels that a replay looks at."""
    known: dict[Hashable, _Busy] = {}
    for one in busy:
        if id(one[0]) not in known:
            pairs = zip(one[0], one[1] or (1.0,) * len(one[0]), strict=True)
            kept = [(channel, share) for channel, share in pairs if channel in stand_ins.looked_at]
            known[id(one[0])] = tuple([channel for channel, _ in kept]), tuple([share for _, share in kept])
    return [known[id(one[0])] for one in busy]


def _copies(structure: Structure, routes: Sequence[Route], stand_ins: StandIns) -> tuple[tuple[int, ...], ...]:
    """For how many transfers each class stands on each channel of its route."""
    copies, senders = stand_ins.copies, (0, *(source[1] for source, _, _ in structure.moves))
    return tuple(
        [
            tuple([copies[sender] if channel in stand_ins.shared else 1 for channel in route])
            for sender, route in zip(senders, routes, strict=True)
        ]
    )


def _pairs(structure: Structure, costs: Costs) -> NDArray[np.int32]:
    """The pair of devices of each transfer class, numbered as they come; class 0, which moves nothing, has the first."""
    known: dict[tuple[int, int], int] = {(-1, -1): 0}
    ends = [(costs.device(*source), costs.device(*target)) for source, target, _ in structure.moves]
    return np.array([0, *(known.setdefault(one, len(known)) for one in ends)], dtype=np.int32)


def _asked(structure: Structure, costs: Costs) -> Floats:
    """The durations that a structure asks for; symmetrically placed replicas share them."""
    known: dict[Hashable, Floats] = {}
    found = []
    for what, samples in structure.asked:
        kind, stage, replica, slice_number = what
        alike = kind, stage, slice_number, costs.group(stage, replica), samples.tobytes()
        if alike not in known:
            known[alike] = durations(structure, costs, what, samples)
        found.append(known[alike])
    return np.concatenate(found)


def values_of(
    structure: Structure,
    asked: Floats,
    transfer_seconds: Floats,
    collectives: Collectives,
    *,
    overlapped: Callable[[int, int, float], float],
) -> tuple[Floats, Floats | None]:
    """Values of a structure, and least seconds of tasks on lanes that share a device (None: there is no such floor).

    asked: the durations that the structure asks for, float64; transfer_seconds: float64 [transfer classes]
    overlapped: `Costs.overlapped_seconds`
    """
    own = asked[structure.duration_of]
    if len(structure.pairs):
        asked_of = [(stage, int(size)) for (_, stage, *_), sizes in structure.asked for size in sizes]
        forwards = [asked_of[one] for one in structure.pairs[:, 0].tolist()]
        apart = own[structure.pairs].sum(axis=1).tolist()
        pairs = [overlapped(stage, size, both) for (stage, size), both in zip(forwards, apart, strict=True)]
        own = np.concatenate([own, pairs, [0.0]])
    least = None
    if len(structure.sends_offsets):
        sender = np.repeat(np.arange(len(own)), np.diff(structure.sends_offsets))
        sent = np.bincount(sender, weights=transfer_seconds[structure.sends_class], minlength=len(own))
        least = np.maximum(own, sent)
        if structure.lanes != "shared":
            own, least = least, None
    if not len(collectives.seconds):
        beside = [transfer_seconds]
        return np.concatenate([own, *beside]), None if least is None else np.concatenate([least, *beside])
    shares = collectives.shares[structure.part_share]
    beside = [transfer_seconds, collectives.seconds]
    values = np.concatenate([own, *beside, own[structure.part_duration] * shares])
    if least is not None:
        least = np.concatenate([least, *beside, least[structure.part_duration] * shares])
    return values, least


def durations(structure: Structure, costs: Costs, what: Duration, samples: Integers) -> Floats:
    """Durations of one kind, stage, replica and slice, by number of samples; 0 for none.

    A backward includes recomputation, unless this is an op of its own.

    Where a device is divided in fixed shares, forwards and backwards both take their sum: the forward lane has the share
    F / (F + B) of the device, and F / (F / (F + B)) = F + B.
    """
    kind, stage, replica, slice_number = what
    if slice_number is not None:
        costs = costs.of_slice(slice_number)
    again = stage not in structure.apart and costs.recomputes(stage)

    def alone(one: OpKind) -> Floats:
        seconds = costs.seconds(one, stage, replica, samples)
        if again and one in BACKWARD_KINDS:
            seconds = seconds + costs.seconds(OpKind.RECOMPUTE, stage, replica, samples)
        return seconds

    seconds = alone(kind)
    if structure.lanes == "split" and kind in _BESIDE:
        seconds = seconds + alone(_BESIDE[kind])
    if kind not in (OpKind.UPDATE, OpKind.PREDICT):
        seconds = np.where(samples == 0, 0.0, seconds)
    return seconds
