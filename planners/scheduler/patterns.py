"""Patterns: the simulator's families of schedules that lie as a problem does, and the order that fits wherever one does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planners.scheduler.instance import Codes, Instance
from planners.scheduler.problem import PLACEMENTS, ScheduleProblem, placement
from simulator import SCHEDULES, Schedule, build_schedule

LIE = {"straight": "straight", "interleaved": "looped", "v": "wave", "wave": "wave", "bidirectional": "bidirectional"}
"""What families call each placement."""


def patterns_of(problem: ScheduleProblem) -> Iterator[Schedule]:
    """Flushed families of the problem's placement, in its number of stages and micro-batches."""
    stages, devices = problem.stages, problem.devices
    lie = _lie(problem)
    for name, family in SCHEDULES.items():
        if not family.flush or family.lanes or family.communications or family.placement != lie:
            continue
        chunks = {"chunks": stages // devices} if "chunks" in family.options else {}
        try:
            yield build_schedule(name, stages, problem.microbatches, **chunks)
        except ValueError:  # counts that this family cannot have
            continue


def _lie(problem: ScheduleProblem) -> str:
    """What families call the problem's placement; empty for one that has no name."""
    for name in PLACEMENTS:
        try:
            if placement(name, problem.stages, problem.devices) == problem.chains:
                return LIE[name]
        except ValueError:  # counts that this placement cannot have
            continue
    return ""


def one_at_a_time(instance: Instance) -> Codes:
    """The order that runs every micro-batch to its end before the next one: it fits wherever any order does."""
    positions = len(instance.device)
    chain = np.cumsum(instance.first) - 1
    lists: list[list[int]] = [[] for _ in instance.limit]
    for number in range(int(instance.passes.max())):
        for one in range(int(chain[-1]) + 1):
            held = np.flatnonzero((chain == one) & (instance.passes > number)).tolist()
            for p in held:
                lists[instance.device[p]].append(p)
            for p in reversed(held):
                lists[instance.device[p]] += [positions + p, 2 * positions + p][: 1 + int(instance.split[p])]
    return np.array([code for codes in lists for code in codes], dtype=np.int16)
