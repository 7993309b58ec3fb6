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
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simulator.costs.given import CollectiveForm
from simulator.lowering.coverage import LaneOps, Rows
from simulator.schedules.ops import OpKind, among

DOWNWARDS = OpKind.FORWARD, OpKind.RECOMPUTE
"""Ops that run the units in the order of the forward."""

GATHERING = *DOWNWARDS, OpKind.BACKWARD, OpKind.INPUT_GRADIENT
"""Ops that need the weights."""

SCATTERING = OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT
"""Ops that make their gradients."""


class Part(NamedTuple):
    """A part of an op: row of the op on the rank's first lane, and number of the part."""

    row: int
    part: int


class _Use(NamedTuple):
    """Parts, from a first to a last, that use a unit of a stage, for a micro-batch."""

    first: Part
    last: Part
    stage: int
    unit: int
    microbatch: int


@dataclass(slots=True)
class UnitLane:
    """Collectives of one rank, in their order.

    lanes: the compute lanes that are its replicas
    kind, stage, unit, microbatch: of each collective
    after: (collective, part that ends before it on all replicas); before: (collective, part that it ends before)
    """

    lanes: tuple[int, ...]
    kind: list[OpKind] = field(default_factory=list)
    stage: list[int] = field(default_factory=list)
    unit: list[int] = field(default_factory=list)
    microbatch: list[int] = field(default_factory=list)
    after: list[tuple[int, Part]] = field(default_factory=list)
    before: list[tuple[int, Part]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def stages(self) -> list[int]:
        """Of the rank, those that have units, rising."""
        return sorted(set(self.stage))


def parts_of_units(ops: LaneOps, forms: Sequence[CollectiveForm]) -> Rows:
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


def unit_lanes(ops: LaneOps, forms: Sequence[CollectiveForm], parts: Rows) -> list[UnitLane]:
    """The lanes of all ranks whose stages have units; parts: as of `parts_of_units`."""
    ranks: dict[tuple[int, ...], None] = {}
    for held, form in zip(ops.rows_of_stage, forms, strict=True):
        lanes: list[list[int]] = []
        for lane, rows in held if form.units else []:
            if ops.replica[rows[0]] == 0:
                lanes.append([])
            lanes[-1].append(lane)
        ranks.update(dict.fromkeys(map(tuple, lanes)))
    return [found for lanes in ranks if len(found := _unit_lane(ops, forms, parts, lanes))]


def _unit_lane(ops: LaneOps, forms: Sequence[CollectiveForm], parts: Rows, lanes: tuple[int, ...]) -> UnitLane:
    gathered, scattered = _uses(ops, forms, parts, lanes[0])
    # A gather is asked for when the use before begins, a scatter when its own has ended.
    asked = [(Part(-1, 0), 0), *((use.first, 0) for use in gathered[:-1])]
    order = sorted(
        [*((key, OpKind.GATHER, number) for number, (key, _) in enumerate(zip(asked, gathered, strict=False)))]
        + [((use.last, 1), OpKind.SCATTER, number) for number, use in enumerate(scattered)]
    )
    task_of = {(kind, number): task for task, (_, kind, number) in enumerate(order)}
    lane = UnitLane(lanes)
    for task, (_, kind, number) in enumerate(order):
        uses = gathered if kind is OpKind.GATHER else scattered
        use, let_go = uses[number], _let_go(uses, number)
        lane.kind.append(kind)
        lane.stage.append(use.stage)
        lane.unit.append(use.unit)
        lane.microbatch.append(use.microbatch)
        if kind is OpKind.GATHER:
            lane.before.append((task, use.first))
            lane.after.extend([(task, uses[let_go].last)] if let_go >= 0 else [])
        else:
            lane.after.append((task, use.last))
            lane.before.extend([(task_of[kind, let_go], use.first)] if let_go >= 0 else [])
    return lane


def _uses(ops: LaneOps, forms: Sequence[CollectiveForm], parts: Rows, lane: int) -> tuple[list[_Use], list[_Use]]:
    """Uses of weights, those of one unit in a row as one, and of gradients, on a lane."""
    gathered: list[_Use] = []
    scattered: list[_Use] = []
    seconds = set((ops.overlapped + 1).tolist())
    for row in range(int(ops.lane_offsets[lane]), int(ops.lane_offsets[lane + 1])):
        stage, kind, microbatch = int(ops.stage[row]), int(ops.kind[row]), int(ops.microbatch[row])
        form = forms[stage]
        for place, unit in enumerate(units_in_order(kind, form.units)):
            part = Part(row - (row in seconds), place if parts[row] > 1 else 0)
            use = _Use(part, part, stage, unit, microbatch)
            if form.gathers and kind in GATHERING:
                if gathered and (gathered[-1].stage, gathered[-1].unit) == (stage, unit):
                    gathered[-1] = gathered[-1]._replace(last=part)
                else:
                    gathered.append(use)
            if kind in SCATTERING:
                scattered.append(use)
    return gathered, scattered


def _let_go(uses: Sequence[_Use], number: int) -> int:
    """The last use, but the one before, that ends before a use begins; -1 for none."""
    return next((one for one in range(number - 2, -1, -1) if uses[one].last < uses[number].first), -1)
