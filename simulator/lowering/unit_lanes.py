"""Unit lanes: when the replicas of a stage gather the weights of its units, and scatter their gradients, where they divide these.

As PyTorch's fully sharded data parallelism does it (`fully_shard`, FSDP 2; DeepSpeed's ZeRO 3 fetches ahead likewise): the
collectives of one rank run one after the other on a lane of their own, beside the computation.

    forward     unit 0          unit 1          unit 2              computes once it is there
    lane     G0   G1              G2              ...               gathers the next unit while one computes
    backward    unit 2          unit 1          unit 0
    lane          ...  S2              S1              S0           scatters a unit's gradients while the next one computes

At most two units are there whole: a gather begins when the unit before the one in use is let go, and a unit's backward begins
when the gradients of the unit before the last one are scattered. A unit that is used again at once stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hardware_profiles import Flags, Integers
from simulator.costs.given import CollectiveForm
from simulator.lowering.coverage import LaneOps
from simulator.schedules.ops import OpKind, among

DOWNWARDS = OpKind.FORWARD, OpKind.RECOMPUTE
"""Kinds of ops that run the units in the order of the forward."""

GATHERING = *DOWNWARDS, OpKind.BACKWARD, OpKind.INPUT_GRADIENT
"""Kinds of ops that need the weights of units."""

SCATTERING = OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT
"""Kinds of ops that make the gradients of units."""


class Parts(NamedTuple):
    """Parts of ops: row of each op on the rank's first lane, and number of the part, int64 [parts]."""

    rows: Integers
    numbers: Integers

    def of(self, some: Integers) -> Parts:
        """The parts that are selected."""
        return Parts(self.rows[some], self.numbers[some])


class UnitWaits(NamedTuple):
    """Waits between collectives of a lane, int64 [waits], and parts of ops."""

    tasks: Integers
    parts: Parts


class _Uses(NamedTuple):
    """Uses of the weights of units, one after the other, then those of their gradients: each for a micro-batch, from a first to a
    last part; columns as in `UnitLane`.
    """

    gathers: Flags
    stage: Integers
    unit: Integers
    microbatch: Integers
    first: Parts
    last: Parts


@dataclass(frozen=True, slots=True)
class UnitLane:
    """Collectives of one rank, in their order.

    lanes: the compute lanes that are its replicas
    gathers: which collectives gather weights, bool [collectives]; the others scatter gradients
    stage, unit, microbatch: of each collective, int64 [collectives]
    after: parts that end before a collective on all replicas; before: parts that begin after one
    """

    lanes: tuple[int, ...]
    gathers: Flags
    stage: Integers
    unit: Integers
    microbatch: Integers
    after: UnitWaits
    before: UnitWaits

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def stages(self) -> list[int]:
        """Stages of the rank that have units, rising."""
        return sorted(set(self.stage.tolist()))


def parts_of_units(ops: LaneOps, forms: Sequence[CollectiveForm]) -> Integers:
    """Parts of each op, int64 [rows]: as many as its stage has units, where these gather or scatter; an overlapped pair is not
    cut."""
    parts = np.ones(len(ops.stage), dtype=np.int64)
    for stage, form in enumerate(forms):
        if form.units > 1:
            rows = np.concatenate([rows for _, rows in ops.rows_of_stage[stage]])
            parts[rows[among(ops.kind[rows], (*GATHERING, *SCATTERING) if form.gathers else SCATTERING)]] = form.units
    parts[ops.overlapped] = parts[ops.overlapped + 1] = 1
    return parts


def units_in_order(kind: int, units: int) -> range:
    """Units of a stage as an op runs them."""
    return range(units) if kind in DOWNWARDS else range(units - 1, -1, -1)


def unit_lanes(ops: LaneOps, forms: Sequence[CollectiveForm], parts: Integers) -> list[UnitLane]:
    """The lanes of all ranks whose stages have units; parts: as in `parts_of_units`."""
    ranks: dict[tuple[int, ...], None] = {}
    for held, form in zip(ops.rows_of_stage, forms, strict=True):
        lanes: list[list[int]] = []
        for lane, rows in held if form.units else []:
            if ops.replica[rows[0]] == 0:
                lanes.append([])
            lanes[-1].append(lane)
        ranks.update(dict.fromkeys(map(tuple, lanes)))
    return [found for lanes in ranks if len(found := _unit_lane(ops, forms, parts, lanes))]


def _unit_lane(ops: LaneOps, forms: Sequence[CollectiveForm], parts: Integers, lanes: tuple[int, ...]) -> UnitLane:
    uses = _uses(ops, forms, parts, lanes[0])
    every, weights = np.arange(len(uses.gathers)), int(uses.gathers.sum())
    width = max(form.units for form in forms)
    begins, ends = (one.rows * width + one.numbers for one in (uses.first, uses.last))
    # A gather is asked for when the use before begins, a scatter when its own has ended.
    asked = np.where(uses.gathers, np.concatenate([[-1], begins])[: len(every)], ends)
    order = np.lexsort((every, ~uses.gathers, asked))
    task = np.argsort(order)
    # The last use of its kind, but the one before, that ends before a use begins; -1 for none.
    alike = slice(weights), slice(weights, None)
    let_go = np.concatenate([np.searchsorted(ends[one], begins[one]) - 1 for one in alike])
    numbers = np.where(uses.gathers, every, every - weights)
    let_go = np.maximum(np.minimum(let_go, numbers - 2), -1)
    earlier = let_go + np.where(uses.gathers, 0, weights)
    after, before = (order[(waits | (let_go >= 0))[order]] for waits in (~uses.gathers, uses.gathers))
    return UnitLane(
        lanes,
        uses.gathers[order],
        uses.stage[order],
        uses.unit[order],
        uses.microbatch[order],
        UnitWaits(task[after], uses.last.of(np.where(uses.gathers, earlier, every)[after])),
        UnitWaits(task[np.where(uses.gathers, every, earlier)[before]], uses.first.of(before)),
    )


def _uses(ops: LaneOps, forms: Sequence[CollectiveForm], parts: Integers, lane: int) -> _Uses:
    """The uses of units by the ops of a lane; consecutive uses of one unit's weights count as one."""
    own = np.arange(ops.lane_offsets[lane], ops.lane_offsets[lane + 1])
    units = np.array([form.units for form in forms])[ops.stage[own]]
    rows, place = np.repeat(own, units), np.arange(units.sum()) - np.repeat(np.cumsum(units) - units, units)
    kind, stage = ops.kind[rows], ops.stage[rows].astype(np.int64)
    unit = np.where(among(kind, DOWNWARDS), place, np.repeat(units, units) - 1 - place)
    part = Parts(rows - np.isin(rows, ops.overlapped + 1), np.where(parts[rows] > 1, place, 0))
    gathering = np.flatnonzero(np.array([form.gathers for form in forms])[stage] & among(kind, GATHERING))
    scattering = np.flatnonzero(among(kind, SCATTERING))
    other = np.diff(stage[gathering], prepend=-1) | np.diff(unit[gathering], prepend=-1)
    begins = np.flatnonzero(other)
    ends = np.append(begins, len(gathering))[1:] - 1
    first, last = (np.concatenate([gathering[one], scattering]) for one in (begins, ends))
    gathers = np.arange(len(first)) < len(begins)
    microbatch = ops.microbatch[rows[first]].astype(np.int64)
    return _Uses(gathers, stage[first], unit[first], microbatch, part.of(first), part.of(last))
