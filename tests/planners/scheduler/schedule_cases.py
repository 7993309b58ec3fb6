"""Schedule problems of these tests, and independent replays of what is found."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from planners.scheduler.schedule_problem import ScheduleProblem
from simulator import OpKind, OpSeconds, Schedule, Timeline, chains_of, check_schedule, given_costs, lower
from simulator.engines import reference
from simulator.plan_replay import replay_compiled

PLACEMENTS = ("straight", "interleaved", "v", "wave", "bidirectional")

TWO_DEVICES = ScheduleProblem(
    chains=chains_of("straight", 2, 2),
    microbatches=4,
    forward=1,
    input_gradient=1,
    weight_gradient=1,
    freed_at_input_gradient=0.5,
    freed_at_weight_gradient=0.5,
)
"""Two devices, four micro-batches, every op 1 s; a micro-batch is one unit of memory."""


@st.composite
def schedule_problems(
    draw: st.DrawFn, placements: Sequence[str] = PLACEMENTS, most_devices: int = 4, most_microbatches: int = 7
) -> ScheduleProblem:
    """Problems of all placements: uneven stages, some with full backwards, transfers by boundary, limits from the least on."""
    name = draw(st.sampled_from(placements))
    devices = draw(st.integers(2 if name == "bidirectional" else 1, most_devices))
    each = {"straight": 1, "bidirectional": 1, "v": 2, "wave": 2, "interleaved": draw(st.integers(1, 3))}[name]
    stages = devices * each
    microbatches = draw(st.integers(1, most_microbatches))

    def numbers(least: int, most: int, count: int = stages) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=count, max_size=count))

    chains = chains_of(name, stages, devices)
    given: dict[str, Any] = {
        "chains": chains,
        "microbatches": microbatches,
        "forward": numbers(1, 9),
        "input_gradient": numbers(1, 9),
        "weight_gradient": numbers(0, 9),
        "transfer": numbers(0, 3, stages - 1),
        "freed_at_input_gradient": numbers(0, 3),
        "freed_at_weight_gradient": numbers(0, 3),
    }
    free = ScheduleProblem(**given)
    more = numbers(0, 12, devices)
    return ScheduleProblem(**given, limit=[low + extra for low, extra in zip(free.least_limits(), more, strict=True)])


def replayed(problem: ScheduleProblem, schedule: Schedule) -> Timeline:
    """The schedule on the reference engine, which the compiled one meets to the bit; checked, and within limits at all times."""
    check_schedule(schedule)
    ops = OpSeconds(
        problem.each("forward"),
        problem.each("input_gradient"),
        weight=problem.each("weight_gradient"),
        transfer=problem.each("transfer") or 0.0,
    )
    program = lower(schedule, given_costs(problem.stages, ops, devices=schedule))
    timeline, twin = reference.replay(program), replay_compiled(program)
    assert timeline.start.tobytes() == twin.start.tobytes()
    assert timeline.end.tobytes() == twin.end.tobytes()
    peaks = held_at_most(problem, timeline)
    assert all(peak <= limit + 1e-9 for peak, limit in zip(peaks, problem.each("limit"), strict=True))
    return timeline


def held_at_most(problem: ScheduleProblem, timeline: Timeline) -> list[float]:
    """Most bytes that each device holds at any time of a timeline: what ends at a time is freed before what begins then."""
    first, second = problem.each("freed_at_input_gradient"), problem.each("freed_at_weight_gradient")
    changes: list[list[tuple[float, float]]] = [[] for _ in range(problem.devices)]
    rows = zip(timeline.device, timeline.stage, timeline.kind, timeline.start, timeline.end, strict=True)
    for device, stage, kind, start, end in rows:
        freed = {
            OpKind.FORWARD: -first[stage] - second[stage],
            OpKind.BACKWARD: first[stage] + second[stage],
            OpKind.INPUT_GRADIENT: first[stage],
            OpKind.WEIGHT_GRADIENT: second[stage],
        }.get(OpKind(kind), 0.0)
        changes[device].append((start if kind == OpKind.FORWARD else end, -freed))
    return [max(itertools.accumulate((change for _, change in sorted(one)), initial=0.0)) for one in changes]
