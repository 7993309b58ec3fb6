"""Families: what the known schedules take on a schedule problem, replayed as anybody would."""

from __future__ import annotations

from planners import ScheduleProblem
from simulator import (
    OpMemory,
    OpSeconds,
    ScheduleError,
    ScheduleReplay,
    build_schedule,
    replay_schedule,
    schedule_families,
)


def comparable_families() -> list[str]:
    """Names of the families that end with a flush and run where a device has one lane and computes while it sends."""
    return [
        name
        for name, family in schedule_families().items()
        if family.flush and not family.lanes and family.communication("overlapped") == "overlapped"
    ]


def fastest_family(problem: ScheduleProblem) -> tuple[str, float | None]:
    """Name and makespan of the family that is fastest within the limits; "" and None where none fits, or has the placement."""
    found = [
        (replayed.timeline.makespan_seconds, name)
        for name in comparable_families()
        if (replayed := replay_family(name, problem)) is not None and replayed.fits
    ]
    return (min(found)[1], min(found)[0]) if found else ("", None)


def replay_family(name: str, problem: ScheduleProblem, slices: int = 1) -> ScheduleReplay | None:
    """A family's order of a problem, and what it holds; None where it has other devices for the stages, or not such counts.

    slices: of a sequence, for families that have them: the problem's micro-batches are then these slices
    """
    family = schedule_families()[name]
    if not family.lies_on(problem.chains):
        return None
    options = {"chunks": problem.stages // problem.devices, "slices": slices}
    try:
        schedule = build_schedule(
            name,
            problem.stages,
            problem.microbatches // slices,
            **{option: value for option, value in options.items() if option in family.options},
        )
    except (ValueError, ScheduleError):
        return None
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
    return replay_schedule(schedule, ops, engine="recurrence").holding(memory)
