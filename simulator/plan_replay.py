"""Plan replay: the steps from a plan to the timeline of its iteration, shared by simulation, evaluation and what-if."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from hardware_profiles import Integers, blaming, counted
from simulator.costs.layer_costs import LayerCosts
from simulator.costs.plan_costs import PlanCosts
from simulator.costs.stand_ins import StandIns
from simulator.engines.timeline import Timeline
from simulator.lowering.coverage import CoveredSchedule, covered
from simulator.lowering.fill import fill
from simulator.lowering.lower import structure_of
from simulator.lowering.program import Program
from simulator.lowering.structure import Structure
from simulator.options.training_options import BY_BLOCK
from simulator.plans.keys import COSTS, LAYERS, NOTHING, PARTS, key_of
from simulator.plans.plan import InfeasiblePlanError, Plan, Problem, Stage, check_plan, family_of, flushes
from simulator.results.steady_state import LEAST_WATCHED, MOST_PERIOD, SteadyState, steady_state
from simulator.schedules import ScheduleFamily, blamed_on, build_schedule
from simulator.schedules.ops import COMPUTE_KINDS, HOST_KINDS, LETTERS, OpKind, among
from simulator.schedules.schedule import Schedule, ScheduleError
from simulator.schedules.text import from_text
from simulator.schedules.unequal import unequal_schedule

Engine = Literal["simpy", "compiled", "recurrence"]
"""`simpy`: the reference. `compiled`: the same to the last bit, by the recurrence where no channel is contended and no lanes
share a device, else by the event loop. `recurrence`: as compiled, but every link is unlimited, whatever the problem says, and no
device is slower while it communicates."""

ENGINES: tuple[str, ...] = get_args(Engine)

Found = TypeVar("Found")

MOST_STREAM = 4096
"""Most micro-batches of a stream that does not become steady; one that a plan's turns need is as long as they need."""

KEPT_TASKS = 200_000
"""Tasks of all structures that a process keeps, the ones that were used last."""


def replay_on(program: Program, engine: Engine, *, contention: bool = False) -> Timeline:
    """Replay a program on an engine; `recurrence` models no contention."""
    if engine == "simpy":
        from simulator.engines import reference as simpy_engine

        return simpy_engine.replay(program, contention=contention)
    if engine == "recurrence":
        return replay_compiled(program.alone())
    return replay_compiled(program, contention=contention)


def replay_compiled(program: Program, *, contention: bool = False) -> Timeline:
    """Replay a program on the fastest engine whose timeline equals SimPy's to the last bit."""
    if queues(program, contention=contention):
        from simulator.engines import event_loop

        return event_loop.replay(program, contention=contention)
    from simulator.engines import recurrence

    return recurrence.replay(program)


def queues(program: Program, *, contention: bool) -> bool:
    """Whether tasks delay each other beyond their order: on contended channels, or on devices that lanes share, or that compute
    more slowly while they communicate.
    """
    routed = contention and (any(program.transfer_route) or any(program.lane_route))
    return bool(routed or (program.lane_groups() >= 0).any())


def build_program(
    problem: Problem, plan: Plan, layer_costs: LayerCosts | None = None, stream: int = 0
) -> tuple[PlanCosts, Schedule, Program]:
    """Build the schedule, the program and the costs of a plan.

    stream: micro-batches of an asynchronous plan; by default `stream_length` of it
    """
    costs = PlanCosts(problem, plan, layer_costs)
    schedule, structure = plan_structure(costs, stream)
    return costs, schedule, fill(structure, costs)


@dataclass(frozen=True, slots=True, eq=False)
class _Lowered:
    """A schedule and its lowered structure; family: that made it, which lives as long, so that no other has its identity."""

    complete: CoveredSchedule
    structure: Structure
    family: ScheduleFamily | None

    def __len__(self) -> int:
        return len(self.structure)


_PLAN, _STAGE, _PROBLEM = key_of(Plan, NOTHING, PARTS, COSTS), key_of(Stage, LAYERS, COSTS), key_of(Problem, LAYERS)


def plan_structure(costs: PlanCosts, stream: int = 0, stand_ins: StandIns | None = None) -> tuple[Schedule, Structure]:
    """The schedule of a plan and its lowered structure, of its stand-ins alone if there are any; arguments and errors as in
    `build_program`.

    Plans that differ in layers and devices alone share both, of whatever problems, which are kept for the next ones.
    """
    problem, plan = costs.problem, costs.plan
    check_plan(problem, plan)
    count = len(plan.microbatches) if flushes(plan) else stream or stream_length(plan)
    options = _family_options(problem, plan)
    sizes = np.repeat(stream_sizes(plan, count), plan.slices)  # of a slice as many samples as of whole sequences
    forward, backward = plan.forward_sizes or tuple(sizes.tolist()), plan.backward_sizes or None
    forms = tuple(costs.collectives(stage).form for stage in range(len(plan.stages)))
    ties = tuple(one.stages for one in costs.tied_reductions)
    replayed = None if stand_ins is None else stand_ins.replicas
    parts = plan.replicas, replayed, plan.chunks, tuple(map(_STAGE, plan.stages))
    family = family_of(plan)
    key = count, _PLAN(plan), parts, _PROBLEM(problem), forms, ties, id(family)
    known = costs.layers.structures.used(key)
    with _blamed_on_family(plan):
        complete = known.complete if known else covered(_schedule_of(plan, count, options), forward, backward)
    schedule = complete.schedule
    _check_placement(plan, schedule)
    if not known and not schedule.flush:
        with _blamed_on_family(plan):
            _check_updates(plan, schedule)
    if plan.slices > 1:
        _check_slices(costs)
    for stage in np.unique(schedule.stage[schedule.kind == OpKind.RECOMPUTE]).tolist():
        if not costs.recomputes(stage):
            raise InfeasiblePlanError(
                f"the order of plan {plan.planner!r} runs forwards of stage {stage} again, whose recompute says none"
            )
    if known:
        return schedule, known.structure
    replicas = plan.replicas if plan.replication == "split" else None
    communication = problem.communication if family is None else family.communication(problem.communication)
    lowering: dict[str, Any] = {"split_replicas": replicas, "communication": communication, "updates": True}
    lowering["replayed"] = replayed
    with _blamed_on_family(plan):
        structure = structure_of(complete, costs, **lowering)
    costs.layers.structures.keep(key, _Lowered(complete, structure, family), KEPT_TASKS)
    return schedule, structure


@contextmanager
def _blamed_on_family(plan: Plan) -> Iterator[None]:
    """Add the name of the schedule family to a ScheduleError raised inside, unless the plan brings its own order."""
    with nullcontext() if plan.order else blamed_on(plan.schedule):
        yield


def _schedule_of(plan: Plan, count: int, options: Mapping[str, object]) -> Schedule:
    """Build the schedule of a plan, with `count` micro-batches."""
    if plan.order:
        return _order_of(plan)
    if plan.forward_sizes:
        return unequal_schedule(plan.schedule, plan.forward_sizes, plan.backward_sizes or plan.forward_sizes)
    return build_schedule(plan.schedule, len(plan.stages), count, **options)


def _check_slices(costs: PlanCosts) -> None:
    """Raise InfeasiblePlanError if the sequences of a plan cannot be cut into its slices."""
    plan = costs.plan
    with blaming(InfeasiblePlanError, f"plan {plan.planner!r} cannot slice sequences"):
        costs.of_slice(0)
    for stage, held in enumerate(plan.stages):
        if costs.recomputation(stage) in (*BY_BLOCK, "whole"):
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} slices sequences: stage {stage} cannot run all of itself, or blocks, again, as later "
                "slices read what earlier ones keep"
            )
        if any(map(costs.layers.streams, held.devices)):
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} slices sequences: layers of stage {stage} stream on a board"
            )


def _family_options(problem: Problem, plan: Plan) -> dict[str, object]:
    """Options for the schedule family of a plan: those that follow from plan and problem, and the plan's own."""
    family = family_of(plan)
    taken = () if family is None else family.options
    follow = {
        "chunks": plan.chunks,
        "replicas": plan.replicas,
        "replica_updates": problem.replica_updates,
        "microbatches_per_minibatch": len(plan.microbatches),
    }
    for name, value in plan.options:
        if family is None or name in follow or name not in taken or plan.forward_sizes:
            own = ", ".join(one for one in taken if one not in follow and not plan.forward_sizes)
            raise InfeasiblePlanError(
                f"plan {plan.planner!r} cannot give schedule {plan.schedule!r} option {name} = {value!r}; it can: {own or 'none'}"
            )
        with blaming(InfeasiblePlanError, f"plan {plan.planner!r}: schedule {plan.schedule!r}"):
            family.declared[name].read(value)
    return {**{name: value for name, value in follow.items() if name in taken}, **dict(plan.options)}


def _order_of(plan: Plan) -> Schedule:
    """The schedule from the order that a plan brings: one mini-batch that ends with its update."""
    text = "\n".join(plan.order)
    rare = [kind for kind in (OpKind.RECOMPUTE, *HOST_KINDS) if re.search(f"[0-9]{LETTERS[kind]}[0-9]", text)]
    kinds = (*COMPUTE_KINDS, OpKind.PREDICT, *rare)
    schedule = from_text(text, plan.schedule, len(kinds) * len(plan.stages) * len(plan.microbatches))
    updates = np.flatnonzero(schedule.kind == OpKind.UPDATE)
    if len(updates):
        device, position = schedule.place(int(updates[0]))
        raise InfeasiblePlanError(
            f"device {device}, position {position}: the order of plan {plan.planner!r} is of one mini-batch, which its update "
            "ends: it has no updates of its own"
        )
    return replace(schedule, stages=len(plan.stages), microbatches=len(plan.microbatches) * plan.slices)


def stream_sizes(plan: Plan, count: int) -> tuple[int, ...]:
    """Samples of each of `count` micro-batches."""
    return tuple(plan.microbatches[i % len(plan.microbatches)] for i in range(count))


def _check_placement(plan: Plan, schedule: Schedule) -> None:
    """Raise InfeasiblePlanError unless each list of ops has its own devices, those that the plan puts its stages on.

    One device where it is one of the replicas of each of its stages that take whole micro-batches; else all replicas, which split
    every micro-batch.
    """
    placed: dict[
        int, tuple[int, tuple[int, ...]]
    ] = {}  # of each device of the schedule: a stage, and where the plan puts it
    owner: dict[int, int] = {}
    in_turn = plan.replication == "round-robin"
    for stage, holders in enumerate(schedule.holders()):
        devices = plan.stages[stage].leads
        if len(holders) != (len(devices) if in_turn else 1):
            raise InfeasiblePlanError(
                f"schedule {plan.schedule!r} has {_lists(len(holders))} of stage {stage}, which plan {plan.planner!r} puts on "
                f"{len(devices)} devices, replication {plan.replication}"
            )
        for replica, device in enumerate(holders):
            used = devices[replica : replica + 1] if in_turn else devices
            first, known = placed.setdefault(device, (stage, used))
            if used != known:
                raise InfeasiblePlanError(
                    f"schedule {plan.schedule!r} runs stages {[first, stage]} on one device, the plan puts stage {stage} on "
                    f"device {used[0]} and stage {first} on device {known[0]}"
                )
            for one in used:
                if owner.setdefault(one, device) != device:
                    raise InfeasiblePlanError(
                        f"device {one} of plan {plan.planner!r} holds stages that schedule {plan.schedule!r} runs on several "
                        "devices"
                    )


def _check_updates(plan: Plan, schedule: Schedule) -> None:
    """Raise ScheduleError unless each device of a stream updates its stages as often as an iteration of its own samples ends.

    An update may come an iteration after its gradients, and of the last ones none.
    """
    device, each = np.repeat(schedule.device_of_rank(), np.diff(schedule.offsets)), len(plan.microbatches)
    place = schedule.stage.astype(np.int64) * (1 + int(device.max())) + device

    def there(*kinds: OpKind) -> Integers:
        return np.bincount(place[among(schedule.kind, kinds)], minlength=1 + int(place.max()))

    gradients, updates = there(OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT), there(OpKind.UPDATE)
    lacking = np.flatnonzero(updates < gradients // each - 1)
    if len(lacking):
        first = int(lacking[0])
        stage, where = divmod(first, 1 + int(device.max()))
        raise ScheduleError(
            f"device {where}: stage {stage} has {counted(int(updates[first]), 'update')} in {gradients[first] // each} "
            "iterations of its micro-batches; each ends in one"
        )


def _lists(count: int) -> str:
    return "one list of ops" if count == 1 else f"{count} lists of ops"


def stream_length(plan: Plan) -> int:
    """Micro-batches needed to show the steady state of an asynchronous plan: fill, two periods to measure, drain.

    The period is that of `turns`, as far as it is watched; the stream is a multiple of it.
    """
    return stream_micro_batches(turns(plan), len(plan.groups))


def stream_micro_batches(turns: int, lanes: int) -> int:
    """`stream_length` of a plan with so many lists of ops."""
    period = min(turns, MOST_PERIOD)
    return period * (2 * -(-max(2 * lanes, 4) // period) + 2 * -(-max(LEAST_WATCHED, lanes) // period))


def updates_by_minibatch(plan: Plan) -> bool:
    """Whether an asynchronous plan updates once per iteration, after all of its micro-batches, rather than after each."""
    family = family_of(plan)
    return family is not None and "microbatches_per_minibatch" in family.options


def turns(plan: Plan) -> int:
    """Micro-batches after which replicas, micro-batch sizes and updates all return to their first turn."""
    if updates_by_minibatch(plan):
        return len(plan.microbatches)
    sizes = len(plan.microbatches) if len(set(plan.microbatches)) > 1 else 1
    rounds = math.lcm(*plan.replicas) if plan.replication == "round-robin" else 1
    return math.lcm(sizes, rounds)


def grown(plan: Plan, replay: Callable[[int], tuple[Found, SteadyState | None]]) -> Found:
    """Replay a flushed mini-batch, or streams of doubling length until one shows its steady state.

    plan: one that was checked
    replay: of so many micro-batches of a stream, 0 for a mini-batch; no steady state ends it, and so do MOST_STREAM micro-batches
    """
    stream = 0 if flushes(plan) else stream_length(plan)
    while True:
        found, steady = replay(stream)
        if steady is None or steady.reached or 2 * stream > MOST_STREAM:
            return found
        stream *= 2


def steady_of(plan: Plan, timeline: Timeline, stream: int) -> SteadyState:
    """Steady state of a stream of so many micro-batches."""
    return steady_state(timeline, np.array(stream_sizes(plan, stream), dtype=np.int64), turns(plan))
