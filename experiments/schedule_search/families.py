"""Families: what the known schedules take on a schedule problem, replayed as anybody would."""

from __future__ import annotations

from planners import ScheduleProblem
from simulator import OpMemory, OpSeconds, ScheduleError, build_schedule, replay_schedule, schedule_families


def fastest_family(problem: ScheduleProblem) -> tuple[str, float | None]:
    """Name and makespan of the family that is fastest within the limits; "" and None where none fits, or has the placement."""
    found = [
        (seconds, name)
        for name, family in schedule_families().items()
        if family.flush
        for seconds in _makespan(name, problem)
    ]
    return (min(found)[1], min(found)[0]) if found else ("", None)


def _makespan(name: str, problem: ScheduleProblem) -> list[float]:
    """Seconds of a family; none where it has other devices for the stages, or does not fit."""
    family, chunks = schedule_families()[name], problem.stages // problem.devices
    if (
        family.lanes
        or family.communications
        or set(family.options) - {"chunks"}
        or (family.placement == "bidirectional") != (len(problem.chains) > 1)
    ):
        return []
    options = {"chunks": chunks} if "chunks" in family.options else {}
    try:
        schedule = build_schedule(name, problem.stages, problem.microbatches, **options)
    except (ValueError, ScheduleError):
        return []
    if schedule.holders() != tuple(zip(*problem.chains, strict=True)):
        return []
    kept, longer = (problem.each(name) for name in ("freed_at_input_gradient", "freed_at_weight_gradient"))
    ops = OpSeconds(
        problem.each("forward"),
        problem.each("input_gradient"),
        weight=problem.each("weight_gradient"),
        transfer=problem.each("transfer") or 0.0,
    )
    memory = OpMemory(
        [one + other for one, other in zip(kept, longer, strict=True)],
        stash_weight=longer,
        memory=problem.each("limit"),
    )
    replayed = replay_schedule(schedule, ops, engine="recurrence").holding(memory)
    return [replayed.timeline.makespan_seconds] if replayed.fits else []
