"""Evaluation: fast replay of many plans of one problem, for seconds and peak memory; shared structure is lowered once.

Plans that differ in nothing but the layers of their stages have one structure. It is lowered, ordered, and its changes of memory
are listed, for the first of them; every plan then fills seconds and bytes into it, and compiled passes replay it: the recurrence,
or the event loop where channels are contended or lanes share a device. What comes out is that of
`simulator.simulation.simulate`, to the last bit.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hardware_profiles import Flags, Floats, Integers
from simulator.compiled.garbage import no_garbage_collection
from simulator.costs.given import CollectiveForm, StageCollectives
from simulator.costs.layer_costs import KEPT_SPLITS, LayerCosts
from simulator.costs.plan_costs import Group, PlanCosts
from simulator.costs.stand_ins import stand_ins
from simulator.costs.stashes import StageStash, gradient_in_work, stage_stash
from simulator.engines import event_loop
from simulator.engines.recurrence import Numbers, Order, makespans_of_values, narrow, order_of, replay_values
from simulator.engines.timeline import Timeline, moves_of, timeline_of
from simulator.lowering.coverage import Duration
from simulator.lowering.fill import Collectives, collectives_of, durations, fill, values_of
from simulator.lowering.program import MOST_SECONDS
from simulator.lowering.structure import Structure
from simulator.memory.always_held import always_there, copies_held, copy_bytes
from simulator.memory.changes import KEPT_LONGER, MADE, SENT
from simulator.memory.peaks import MemoryEvents, fullest, memory_events, peaks
from simulator.options.training_options import Recompute
from simulator.plan_replay import grown, plan_structure, queues, steady_of
from simulator.plans.keys import LAYERS, NOTHING, ORDER, PARTS, Kept, key_of
from simulator.plans.plan import Plan, Problem, Stage, check_plan, family_of, plan_of_parts
from simulator.results.score import Score
from simulator.results.steady_state import SteadyState
from simulator.schedules.ops import BACKWARD_KINDS, BETWEEN_KINDS, OpKind
from simulator.workloads.layer_splits import LayerSplit

MOST_TASKS = 2**20
"""Tasks of all structures that are kept, at about 300 bytes each; the ones that were used last stay."""


@dataclass(frozen=True, slots=True, eq=False)
class Durations:
    """The distinct durations of the ops of a plan with whole sequences.

    what: of each; samples: int64, of each; seconds: float64, of each
    """

    what: tuple[Duration, ...]
    samples: Integers
    seconds: Floats


class Evaluations:
    """Evaluator of plans with contiguous stages; caches the costs of stages and the structures of plans.

    A table of stages has a row for every range of layers that was a stage, and a column for every kind of op, device and
    number of samples that its seconds were asked for.
    """

    def __init__(self, problem: Problem, layer_costs: LayerCosts | None = None, *, contention: bool = True) -> None:
        """Start with empty caches; contention: replay contended channels if the problem asks for contention, and devices that
        communication slows; else never.
        """
        self.problem = problem
        self.layers = LayerCosts(problem) if layer_costs is None else layer_costs
        self.contention, self._slowed = contention and problem.contention, contention
        self._rooms = problem.rooms
        self._structures: Kept[_Key, _Prepared] = Kept()
        self._checked: set[Hashable] = set()  # what structures that are kept say but for layers
        self._stages: dict[tuple[int, ...], int] = {}
        self._ranges = np.zeros((64, 2), dtype=np.int64)  # first layer and end of each stage
        # always there, kept from forward to backward, of these to the weight gradient; gradients before they are added up
        self._bytes = np.zeros((64, 4))
        self._stashes: dict[tuple[int, Recompute, int, bool], StageStash] = {}
        self._columns: dict[_Column, int] = {}
        self._seconds = np.full((64, 16), np.nan)
        self._collectives: dict[Hashable, StageCollectives] = {}
        self._of_parts: Kept[tuple[LayerSplit, ...], tuple[Evaluations]] = Kept()

    def __call__(self, plan: Plan) -> Score | None:
        """Evaluate a plan; None if it is not covered: non-contiguous stages, too many tasks, an asynchronous schedule with
        several lanes per device, slices of sequences, or replicas of a stage with groups of different sizes.

        Raises as `simulator.simulation.simulate`.
        """
        found = self._replay(plan)
        if found is None:
            return None
        capacity, events = found.prepared.capacity, found.prepared.events
        if found.lasting and not found.prepared.divided:
            device, peak = fullest(events, found.times, found.lags, found.sizes, found.static, capacity)
        else:
            every = peaks(events, found.times, found.lags, found.sizes, found.static)
            parts, devices = every / capacity, found.prepared.devices
            device = min(np.flatnonzero(parts == parts.max()).tolist(), key=devices.__getitem__)
            peak = every[device]
        return Score(found.seconds, float(peak), float(capacity[device]), found.prepared.devices[device])

    def peak_bytes(self, plan: Plan) -> dict[int, float] | None:
        """Peak memory of every device of a plan, by device; None if the plan is not covered (see the call)."""
        found = self._replay(plan)
        if found is None:
            return None
        every = peaks(found.prepared.events, found.times, found.lags, found.sizes, found.static)
        pairs = zip(found.prepared.groups, every.tolist(), strict=True)
        return {device: peak for group, peak in pairs for device in group}

    def pass_peak_bytes(self, plan: Plan) -> Floats | None:
        """Peak memory of every device in each pass of a plan, float64 [2, devices]: forward and backward, by rising device.

        For a flush that turns once (gpipe without replicas): no device begins a backward before all forwards have ended, so the
        greater of the two is its peak. None as of a call; raises ValueError for other plans.
        """
        if plan.schedule != "gpipe" or plan.order or max(plan.replicas) > 1:
            raise ValueError(f"plan {plan.planner!r} is not gpipe without replicas: its passes may overlap")
        found = self._replay(plan)
        if found is None:
            return None
        down, stages = found.prepared.move_down, len(plan.stages)
        held = np.tile(
            found.sizes, (2, 1)
        )  # what a pass does not hold has no size; the stash is whole where the passes meet
        held[0, MADE * stages : KEPT_LONGER * stages] = 0.0
        held[0, SENT * stages :][~down] = held[1, SENT * stages :][down] = 0.0
        replay = found.prepared.events, found.times, found.lags
        return np.array([peaks(*replay, sizes, found.static) for sizes in held])

    def forward_seconds(self, plan: Plan) -> float | None:
        """Time at which the last forward of a mini-batch ends; None if the plan is not covered."""
        found = self._replay(plan)
        if found is None:
            return None
        rows = np.flatnonzero(found.prepared.structure.kind == OpKind.FORWARD)
        place = found.prepared.events.position
        return float(found.times[len(place) + place[rows]].max(initial=0.0))

    def durations(self, plan: Plan) -> Durations | None:
        """The durations of a plan's ops; None for an asynchronous plan, or one that is not covered."""
        found = self._replay(plan)
        if found is None or found.steady is not None:
            return None
        prepared = found.prepared
        return Durations(prepared.what, prepared.ask_samples, found.asked)

    def makespans(self, plan: Plan, seconds: Floats) -> Floats:
        """Seconds of a mini-batch of a plan with other durations for its ops, float64 [rows]; its transfers stay the same.

        seconds: float64 [rows, durations of the plan], as `durations` gives and orders them; those of updates and predictions too
        Raises ValueError for another shape, seconds that are negative or not finite, and a plan that a call does not cover.
        """
        found = self._replay(plan)
        if found is None or found.steady is not None:
            raise ValueError(
                f"plan {plan.planner!r} is asynchronous or its stages are not contiguous: it has no table of durations"
            )
        if seconds.ndim != 2 or seconds.shape[1] != len(found.asked):
            raise ValueError(f"seconds must have shape (rows, {len(found.asked)}), got {seconds.shape}")
        if not (np.isfinite(seconds).all() and (seconds >= 0.0).all()):
            raise ValueError("seconds must be finite and at least 0")
        prepared, structure = found.prepared, found.prepared.structure
        plain = not len(structure.sends_offsets) and not len(structure.part_duration) and not len(structure.pairs)
        if prepared.order is not None and plain:
            values = np.empty((len(seconds), len(found.values)))
            own = len(structure.duration_of)
            values[:, :own], values[:, own:] = seconds[:, structure.duration_of], found.values[own:]
            return np.asarray(makespans_of_values(*prepared.order, values, found.lags))
        overlapped = PlanCosts(self.problem, plan, self.layers).overlapped_seconds
        rows = [
            values_of(structure, row, found.transfer_seconds, found.collectives, overlapped=overlapped)
            for row in seconds
        ]
        return np.array([prepared.replay(*row, found.lags, found.moved) for row in rows])

    # ---- one plan ----

    def _with_parts(self, plan: Plan) -> Evaluations:
        """The evaluator of plans for the parts of layers that a plan splits; structures, which know no layers, are common."""
        known = self._of_parts.used(plan.splits)
        if known is None:
            layers = self.layers.of_parts(plan)
            known = (Evaluations(layers.problem, layers, contention=self._slowed),)
            known[0]._structures, known[0]._checked, known[0]._columns = self._structures, self._checked, self._columns
            self._of_parts.keep(plan.splits, known, KEPT_SPLITS)
        return known[0]

    def _replay(self, plan: Plan) -> _Replay | None:
        """Replay a flushed mini-batch, or streams that grow until one shows its steady state, as in a simulation."""
        if plan.splits:
            return self._with_parts(plan)._replay(plan_of_parts(plan))
        numbers = self._numbers(plan)
        if numbers is None or plan.slices > 1:  # a stage has other seconds and bytes for each slice
            return None
        apart = _all_but_layers(plan)
        # whether groups divide layers evenly, and stages have so many blocks
        by_layers = any(plan.recomputed_blocks) or any(stage.degrees for stage in plan.stages)
        if by_layers or apart not in self._checked:
            check_plan(self.problem, plan)
        family = family_of(plan)
        if family is not None and family.lanes and not family.flush:
            return None  # copies of weights then depend on when updates end

        def replay(stream: int) -> tuple[_Replay | None, SteadyState | None]:
            found = self._replay_once(plan, numbers, apart, stream)
            return found, found and found.steady

        return grown(plan, replay)

    def _replay_once(self, plan: Plan, numbers: Integers, apart: Hashable, stream: int) -> _Replay | None:
        if 2 * len(plan.stages) * (stream or len(plan.microbatches)) > MOST_TASKS // 4:
            return None
        degrees = [stage.degrees for stage in plan.stages]
        if any(degrees) and any(len(set(one)) > 1 for one in degrees):
            return None
        costs = PlanCosts(self.problem, plan, self.layers)
        several = {
            stage: self._collectives_of(costs, stage) for stage, held in enumerate(plan.stages) if len(held.devices) > 1
        }
        ties = costs.tied_reductions
        forms = tuple([one.form for one in several.values()])
        prepared = self._structure(costs, stream, ((stream, apart), forms, tuple([tie.stages for tie in ties])))
        asked = self._asked(costs, numbers, prepared)
        cuts = self._ranges[numbers]
        moved = self.layers.cut_bytes[cuts[:, 1]][prepared.move_boundary] * prepared.move_samples
        lags = prepared.move_latency + moved / prepared.move_bandwidth
        structure = prepared.structure
        collectives = collectives_of(structure, several, ties)
        transfer_seconds = lags
        values, least = values_of(structure, asked, transfer_seconds, collectives, overlapped=costs.overlapped_seconds)
        if structure.free:
            lags = np.zeros_like(lags)
        if not np.maximum.reduce(values) * len(structure) <= MOST_SECONDS:
            return None
        seconds = prepared.replay(values, least, lags, moved)
        timeline, steady = prepared.timeline(), None
        if timeline is not None:
            steady = steady_of(plan, timeline, stream)
            seconds = steady.seconds_per_sample * self.problem.batch
        static = np.bincount(prepared.slot_device, weights=self._always_there(costs, numbers, prepared))
        if self.problem.accumulated_bytes > self.problem.element_bytes or self.problem.workspace_bytes:
            in_work = np.zeros_like(static)
            np.maximum.at(in_work, prepared.slot_device, self._in_work(costs, numbers, prepared))
            static = static + in_work
        return _Replay(
            prepared=prepared,
            asked=asked,
            values=values,
            transfer_seconds=transfer_seconds,
            lags=lags,
            moved=moved,
            collectives=collectives,
            seconds=seconds,
            steady=steady,
            times=prepared.times,
            sizes=np.concatenate([*self._stashed(costs, numbers, prepared), np.ceil(moved)]),
            static=np.asarray(static, dtype=np.float64),
            lasting=bool(np.minimum.reduce(asked[prepared.computing]) > 0.0),
        )

    def _structure(self, costs: PlanCosts, stream: int, key: _Key) -> _Prepared:
        """The structure of a plan from the cache, lowered if no earlier plan had it."""
        prepared = self._structures.used(key)
        if prepared is None:
            prepared = self._prepare(costs, stream)
            self._checked.add(key[0][1])
            for oldest in self._structures.keep(key, prepared, MOST_TASKS):
                self._checked.discard(oldest[0][1])
        return prepared

    def _stashed(self, costs: PlanCosts, numbers: Integers, prepared: _Prepared) -> tuple[Floats, ...]:
        """Columns of the stash of each stage, each float64 [stages]."""
        if not prepared.divided and not prepared.recomputing:
            nothing = prepared.nothing
            return self._bytes[numbers, 1], nothing, nothing, self._bytes[numbers, 2], nothing
        if prepared.divided:
            found = [costs.stash(stage, at_once=once) for stage, once in enumerate(prepared.at_once)]
        else:
            again = zip(numbers.tolist(), prepared.recomputes, prepared.at_once, strict=True)
            found = [self._stash(number, *policy, once) for number, policy, once in again]
        return tuple(np.array(found).T)

    def _stash(self, number: int, recompute: Recompute, blocks: int, at_once: bool) -> StageStash:
        """The stash of a cached stage."""
        key = number, recompute, blocks, at_once
        if key not in self._stashes:
            begin, end = self._ranges[number].tolist()
            received = float(self.layers.cut_bytes[begin])
            self._stashes[key] = stage_stash(
                self.layers, range(begin, end), recompute, received, blocks, at_once=at_once
            )
        return self._stashes[key]

    def _always_there(self, costs: PlanCosts, numbers: Integers, prepared: _Prepared) -> Floats:
        """Permanent bytes of each copy of a stage."""
        if prepared.rows is None and not self._tied(prepared) and not prepared.divided:
            return np.asarray(self._bytes[numbers, 0][prepared.slot_stage])
        held = list(
            zip(prepared.slot_stage.tolist(), prepared.copies, strict=True)
        )  # replicas of a stage hold the same
        known = {one: copy_bytes(costs, (one[0], 0), *one[1]).sum() for one in dict.fromkeys(held)}
        return np.array([known[one] for one in held])

    def _in_work(self, costs: PlanCosts, numbers: Integers, prepared: _Prepared) -> Floats:
        """Bytes of temporary weight gradients, and of the stack's workspace, of each copy of a stage."""
        if not prepared.divided:
            return np.asarray(self._bytes[numbers, 3][prepared.slot_stage])
        found = np.array([costs.gradient_in_work(stage, 0) for stage in range(len(numbers))])
        return np.asarray(found[prepared.slot_stage])  # replicas of a stage hold the same

    def _tied(self, prepared: _Prepared) -> bool:
        """Whether tied weights make a stage's memory depend on the other stages of its devices."""
        return prepared.together and bool(self.layers.tied_weights)

    def _numbers(self, plan: Plan) -> Integers | None:
        """Cache rows of a plan's stages, int64 [stages]; None unless they are contiguous and hold the whole network."""
        known = self._stages
        try:
            numbers = np.array([known[stage.layers] for stage in plan.stages])
        except KeyError:
            for stage in plan.stages:
                if stage.layers not in known:
                    self._add_stage(stage.layers)
            numbers = np.array([known[stage.layers] for stage in plan.stages])
        ranges = self._ranges[numbers]
        if (
            ranges[0, 0]
            or ranges[-1, 1] != len(self.problem.workload)
            or np.logical_or.reduce(ranges[1:, 0] != ranges[:-1, 1])
        ):
            return None
        return numbers

    def _add_stage(self, layers: tuple[int, ...]) -> None:
        row = len(self._stages)
        self._stages[layers] = row
        if row == len(self._ranges):
            self._ranges = np.concatenate([self._ranges, np.zeros_like(self._ranges)])
            self._bytes = np.concatenate([self._bytes, np.zeros_like(self._bytes)])
            self._seconds = np.concatenate([self._seconds, np.full_like(self._seconds, np.nan)])
        if not layers or layers != tuple(range(layers[0], layers[0] + len(layers))) or layers[0] < 0:
            self._ranges[row] = -1, -2  # joins nothing
        elif layers[-1] < len(self.problem.workload):
            self._ranges[row] = layers[0], layers[0] + len(layers)
            always = always_there(self.problem, self.layers.weight_elements(layers)).sum()
            stash = stage_stash(self.layers, layers, "none")
            self._bytes[row] = always, stash.kept, stash.kept_longer, gradient_in_work(self.layers, layers)

    def _asked(self, costs: PlanCosts, numbers: Integers, prepared: _Prepared) -> Floats:
        """The durations that a structure needs."""
        while len(self._columns) > self._seconds.shape[1]:
            self._seconds = np.hstack([self._seconds, np.full_like(self._seconds, np.nan)])
        asked: Floats = self._seconds[numbers[prepared.ask_stage], prepared.ask_column]
        if np.isnan(np.add.reduce(asked)):
            asked = self._ask(costs, numbers, prepared)
        if self._tied(prepared):
            for row in prepared.updates:
                kind, stage, replica, _ = prepared.what[row]
                asked[row] = costs.seconds(kind, stage, replica, prepared.ask_samples[row : row + 1])[0]
        return asked

    def _ask(self, costs: PlanCosts, numbers: Integers, prepared: _Prepared) -> Floats:
        """As `_asked`, computing those that are not cached."""
        stages = numbers[prepared.ask_stage]
        for row in np.flatnonzero(np.isnan(self._seconds[stages, prepared.ask_column])).tolist():
            place = stages[row], prepared.ask_column[row]
            if np.isnan(self._seconds[place]):  # and no symmetrically placed replica stood before it
                found = durations(prepared.structure, costs, prepared.what[row], prepared.ask_samples[row : row + 1])
                self._seconds[place] = found[0]
        asked: Floats = self._seconds[stages, prepared.ask_column]
        return asked

    def _collectives_of(self, costs: PlanCosts, stage: int) -> StageCollectives:
        plan, held = costs.plan, costs.plan.stages[stage]
        key = held.layers, costs.layers.member.servers, _reduced_by(plan, stage)
        found = None if self.layers.tied_weights else self._collectives.get(key)
        if found is None:
            found = self._collectives[key] = costs.collectives(stage)
        return found

    # ---- one structure ----

    @no_garbage_collection()
    def _prepare(self, costs: PlanCosts, stream: int) -> _Prepared:
        plan, standing = costs.plan, stand_ins(costs)
        schedule, structure = plan_structure(costs, stream, standing)
        groups = tuple(
            group for _, group in sorted((plan.groups if standing is None else standing.groups(plan)).items())
        )
        place = {group[0]: number for number, group in enumerate(groups)}
        slots = [(place[lead], stage) for stage, held in enumerate(plan.stages) for lead in held.leads if lead in place]
        together = len(slots) > len(groups)
        recomputes = tuple(
            (costs.recomputation(stage), costs.recomputed_blocks(stage)) for stage in range(len(plan.stages))
        )
        again = np.array([word != "none" for word, _ in recomputes])
        what, samples, columns = [], [], []
        for one, sizes in structure.asked:
            kind, stage, replica, _ = one
            group = costs.group(stage, replica)
            for size in sizes.tolist():
                within = stage not in structure.apart or kind not in BACKWARD_KINDS
                column = (
                    kind,
                    group,
                    size,
                    recomputes[stage] if within else ("none", 0),
                    structure.lanes == "split",
                    together,
                    _reduced_by(plan, stage) if costs.exposed(stage) else None,
                )
                columns.append(self._columns.setdefault(column, len(self._columns)))
                what.append(one)
                samples.append(size)
        flows = [costs.flow(source, target) for source, target, _ in structure.moves]
        program = fill(structure, costs, standing)
        program = program if self._slowed else program.alone()
        moves = moves_of(program)
        order, loop = None, None
        if queues(program, contention=self.contention):
            loop = event_loop.prepare(program, contention=self.contention)
        else:
            order = order_of(program)
        rows, copies = None, ((1, 1),) * len(slots)
        if not schedule.flush:
            rows = timeline_of(program, np.zeros(len(program)), np.zeros(len(program)))
            copies = tuple(copies_held(rows, plan, self.problem.weight_versions).values())
        return _Prepared(
            structure=structure,
            what=tuple(what),
            ask_stage=np.array([one.stage for one in what]),
            ask_samples=np.array(samples),
            ask_column=np.array(columns),
            updates=tuple(row for row, one in enumerate(what) if one.kind in BETWEEN_KINDS),
            computing=np.array([one.kind not in BETWEEN_KINDS for one in what]),
            move_boundary=np.array([0, *(min(source[0], target[0]) for source, target, _ in structure.moves)]),
            move_down=np.array([False, *(source[0] < target[0] for source, target, _ in structure.moves)]),
            move_samples=np.array(
                [0.0, *(move[2] * part for move, (_, part) in zip(structure.moves, flows, strict=True))]
            ),
            move_latency=np.array([0.0, *(flow.latency for flow, _ in flows)]),
            move_bandwidth=np.array([np.inf, *(flow.bandwidth for flow, _ in flows)]),
            arrival_rows=moves.row if program.sends is None else moves.row[:0],
            recomputes=recomputes,
            recomputing=bool(again.any()),
            at_once=tuple(stage in structure.apart for stage in range(len(recomputes))),
            nothing=np.zeros(len(recomputes)),
            slot_device=np.array([number for number, _ in slots]),
            slot_stage=np.array([stage for _, stage in slots]),
            groups=groups,
            devices=tuple(self._smallest(group) for group in groups),
            together=together,
            divided=bool(plan.zero) or plan.expert > 1 or any(stage.degrees for stage in plan.stages),
            capacity=np.array([self._rooms[self._smallest(group)] for group in groups]),
            events=memory_events(program, again, None if order is None else order.place),
            order=None if order is None else (order, narrow(structure.value[order.task])),
            loop=loop,
            times=np.empty(2 * len(program) + 1 + len(moves.row)),
            rows=rows,
            copies=copies,
        )

    def _smallest(self, group: tuple[int, ...]) -> int:
        """The first device of a group with the least room."""
        return min(group, key=lambda device: (self._rooms[device], device))


_Key = tuple[tuple[int, Hashable], tuple[CollectiveForm, ...], tuple[tuple[int, ...], ...]]
"""Micro-batches of a stream, and `_all_but_layers` of its plan; forms of the stages' collectives; stages that share weights."""


def _all_but_layers(plan: Plan) -> Hashable:
    """Cache key of a plan: all of its fields except the layers of its stages."""
    return _PLAN(plan), *map(_STAGE, plan.stages)


def _reduced_by(plan: Plan, stage: int) -> Hashable:
    """Cache key of what replicas of a stage do together, beside its layers."""
    return _STAGE(plan.stages[stage]), max(plan.microbatches), _COLLECTIVES(plan)


_PLAN, _STAGE = key_of(Plan, NOTHING, PARTS), key_of(Stage, LAYERS)
_COLLECTIVES = key_of(Plan, NOTHING, PARTS, ORDER)

_Column = tuple[OpKind, Group, int, tuple[Recompute, int], bool, bool, Hashable]
"""Kind of op, what its seconds depend on of the replica, samples; what the stage recomputes, and of how many blocks; whether
lanes divide the device in fixed shares, and a device holds several stages; what replicas gather and scatter in it, if nothing
hides all of that."""


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """A structure on its devices with buffers, ready to be filled with seconds and bytes.

    what, ask_stage, ask_samples, ask_column: each duration that is asked for, and its column in the table of stages
    updates: rows of these that depend on the weights; computing: bool, rows that are forwards and gradients
    move_*: of each transfer class: the boundary that it crosses, whether forward, samples, seconds of latency, bytes per second
    recomputes: what each stage runs again, and of how many blocks (0: all); recomputing: any of them does; at_once: it does so in
        ops of their own
    nothing: 0 for each stage
    arrival_rows: the dependency that each transfer serves; none where transfers occupy lanes
    slot_device, slot_stage: each copy of a stage: place of its replica among the groups, stage
    groups: devices that do the same, by the first device of the replica that is replayed; devices: of each the first to be full
    together: a device holds several stages
    divided: replicas are groups, or divide what ZeRO divides, so that bytes are not those of whole layers
    order (with the value at each position) or loop: what the recurrence, or the event loop, replays
    times: of the last replay, as `replay_values` writes them; used again, because new memory takes longer than a replay
    rows: of a stream, its timeline without times; copies: of weights and gradients that each copy of a stage keeps
    """

    structure: Structure
    what: tuple[Duration, ...]
    ask_stage: Integers
    ask_samples: Integers
    ask_column: Integers
    updates: tuple[int, ...]
    computing: Flags
    move_boundary: Integers
    move_down: Flags
    move_samples: Floats
    move_latency: Floats
    move_bandwidth: Floats
    arrival_rows: Integers
    recomputes: tuple[tuple[Recompute, int], ...]
    recomputing: bool
    at_once: tuple[bool, ...]
    nothing: Floats
    slot_device: Integers
    slot_stage: Integers
    groups: tuple[tuple[int, ...], ...]
    devices: tuple[int, ...]
    together: bool
    divided: bool
    capacity: Floats
    events: MemoryEvents
    order: tuple[Order, Numbers] | None
    loop: event_loop.Prepared | None
    times: Floats
    rows: Timeline | None
    copies: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.structure)

    def timeline(self) -> Timeline | None:
        """The last replay of a stream, without its transfers; None for a flushed mini-batch."""
        if self.rows is None:
            return None
        place = self.events.position
        begins = place if self.rows.together is None else place[self.rows.together]
        return replace(self.rows, start=self.times[begins], end=self.times[len(place) + place])

    def replay(self, values: Floats, least: Floats | None, lags: Floats, moved: Floats) -> float:
        """Write starts, ends and arrivals into `times`; the makespan in seconds.

        values, least: of the structure; lags, moved: seconds and bytes of each transfer class
        """
        times = self.times
        if self.order is not None:
            order, value = self.order
            return float(replay_values(order, value, values, lags, times))
        assert self.loop is not None
        tasks, of_task = len(self.structure), self.structure.value
        filled = self.loop.with_seconds(values[of_task], None if least is None else least[of_task], lags, moved)
        start, end, arrival = event_loop.run(filled)
        times[:tasks], times[tasks : 2 * tasks] = start, end
        times[2 * tasks + 1 :][: len(self.arrival_rows)] = arrival[self.arrival_rows]
        return float(end.max(initial=0.0))


class _Replay(NamedTuple):
    """A plan with the results of its replay.

    asked, values, transfer_seconds, collectives: as `simulator.lowering.values_of` takes and gives them
    lags, moved: seconds and bytes of each transfer class
    seconds: of a mini-batch; steady: of a stream, how they were read
    times, sizes, static: as `simulator.memory.peaks` takes them; lasting: every op takes time
    """

    prepared: _Prepared
    asked: Floats
    values: Floats
    transfer_seconds: Floats
    lags: Floats
    moved: Floats
    collectives: Collectives
    seconds: float
    steady: SteadyState | None
    times: Floats
    sizes: Floats
    static: Floats
    lasting: bool
