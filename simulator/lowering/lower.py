"""Lower: the wiring from schedule and costs to a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hardware_profiles import Integers, unchosen
from simulator.compiled.turns import turns
from simulator.costs.given import CollectiveForm, Costs
from simulator.lowering.coverage import CoveredSchedule, LaneOps, copy_to_replicas, covered
from simulator.lowering.fill import fill
from simulator.lowering.program import Program, describe_deadlock
from simulator.lowering.structure import Structure, assemble
from simulator.lowering.waits import add_credit, begin_together, data_waits
from simulator.options.training_options import COMMUNICATIONS, Communication
from simulator.schedules.schedule import DeadlockError, Schedule, ScheduleError


def lower(
    schedule: Schedule,
    costs: Costs,
    *,
    forward_sizes: Sequence[int] | Sequence[Sequence[int]] | None = None,
    backward_sizes: Sequence[int] | Sequence[Sequence[int]] | None = None,
    split_replicas: Sequence[int] | None = None,
    communication: Communication = "overlapped",
    updates: bool = False,
) -> Program:
    """Lower a schedule to a program.

    forward_sizes, backward_sizes: samples of each micro-batch, one list for all stages or one list per stage; default 1 each,
        backward as forward
    split_replicas: devices that share each micro-batch of a stage, one count per stage; default 1
    communication: `overlapped`: transfers run beside computation; `send-blocking`: the sender's device is busy for the transfer
        right after the op, the receiver waits for the arrival; `both-blocking`: the receiver's device is then busy as long before
        its op; `streaming`: an op sends its result while it computes and takes at least as long as that (a link of its own, one
        transfer at a time; on lanes that share a device the rest of the device is the other lane's), nothing is left to send
        after it; `free`: transfers take no time at all
    updates: a flushed schedule ends in an update op per stage (asynchronous schedules bring their own)
    The first op of an overlapped pair has the waits and the seconds of both, the second stands behind it and takes none.
    Raises ValueError for sizes that do not fit the schedule, ScheduleError for a schedule that is not complete, as
    `simulator.schedules.checks.check_complete` tells, or that deadlocks.
    """
    structure = structure_of(
        covered(schedule, forward_sizes, backward_sizes),
        costs,
        split_replicas=split_replicas,
        communication=communication,
        updates=updates,
    )
    return fill(structure, costs)


def structure_of(
    complete: CoveredSchedule,
    costs: Costs,
    *,
    split_replicas: Sequence[int] | None = None,
    communication: Communication,
    updates: bool,
    replayed: Sequence[int] | None = None,
) -> Structure:
    """Lower a schedule to its structure: all that does not depend on seconds, bytes and devices, which `fill` adds.

    costs: asked for the form of each stage's collectives and the stages of each tied reduction alone
    replayed: as of `copy_to_replicas`
    The others, and what is raised, as in `lower`.
    """
    schedule = complete.schedule
    forms = [costs.collectives(stage).form for stage in range(schedule.stages)]
    ties = [one.stages for one in costs.tied_reductions]
    if communication not in COMMUNICATIONS:
        raise ValueError(unchosen("communication", communication, COMMUNICATIONS))
    if schedule.overlapped is not None and communication not in ("overlapped", "free"):
        raise ScheduleError(
            f"schedule {schedule.name!r} overlaps forwards and backwards, which communication {communication!r} does not; "
            "choices: overlapped, free"
        )
    replicas = np.ones(schedule.stages, dtype=np.int64) if split_replicas is None else np.asarray(split_replicas)
    try:
        lowering: dict[str, Any] = {"communication": communication, "updates": updates}
        return _running(complete, replicas, replayed, forms=forms, ties=ties, **lowering)
    except DeadlockError:
        _check_order(complete)  # by the ops of the schedule, or else with what is added to them
        raise


def check_schedule(schedule: Schedule) -> None:
    """Raise ScheduleError for a schedule that is not complete, as `check_complete` tells, or that deadlocks."""
    _check_order(covered(schedule))


def _check_order(complete: CoveredSchedule) -> None:
    """Raise DeadlockError, naming ops, for lists of a complete schedule that wait for each other."""
    stages = complete.schedule.stages
    forms, replicas = [CollectiveForm()] * stages, np.ones(stages, dtype=np.int64)
    _running(complete, replicas, forms=forms, ties=(), communication="overlapped", updates=False)


def _running(
    complete: CoveredSchedule, replicas: Integers, replayed: Sequence[int] | None = None, **assembled: Any
) -> Structure:
    """The structure of a schedule; DeadlockError for lanes that wait for each other.

    assembled: further arguments of `assemble`
    """
    ops = copy_to_replicas(complete, replicas, replayed)
    waits = data_waits(ops, complete.schedule.stages)
    if complete.schedule.credit is not None:
        waits = add_credit(waits, ops, complete.schedule.credit)
    if len(ops.overlapped):
        waits = begin_together(waits, ops)
    structure = assemble(complete.schedule, ops, waits, **assembled)
    _check_runs(structure, complete, ops)
    return structure


def _check_runs(structure: Structure, complete: CoveredSchedule, ops: LaneOps) -> None:
    """Raise DeadlockError for lanes that wait for each other."""
    order, position = turns(structure.lane_offsets, structure.dependency_offsets, structure.dependency)
    if len(order) == len(structure):
        return
    done = np.zeros(len(structure), dtype=np.bool_)
    done[order] = True
    device = [*ops.device, *(complete.schedule.holders()[stage][0] for stage in structure.reducing)]
    raise DeadlockError(describe_deadlock(structure, np.array(device), position, done))
