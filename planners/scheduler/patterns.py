"""Patterns: orders of the simulator's schedule families for a problem's placement, and the order that fits wherever one does."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hardware_profiles import Flags, Integers
from planners.scheduler.instance import Codes, ScheduleInstance
from planners.scheduler.schedule_problem import ScheduleProblem
from simulator import SCHEDULES, Schedule, build_schedule

KEPT, LARGEST = 32, 2**16
"""KEPT: patterns that are kept for later problems of as many stages and micro-batches; LARGEST: passes, at most, of one that is
kept.
"""


def pattern_names(problem: ScheduleProblem) -> list[str]:
    """Names of the flushed families on the problem's placement, without those of slices (with one slice these are other
    families).
    """
    return [
        name
        for name, family in SCHEDULES.items()
        if family.flush
        and not (family.lanes or family.communications or "slices" in family.options)
        and family.lies_on(problem.chains)
    ]


def pattern_of(problem: ScheduleProblem, name: str) -> Schedule | None:
    """The schedule of a family with the problem's numbers of stages and micro-batches; None for counts that it cannot have."""
    build = _kept if problem.stages * problem.microbatches <= LARGEST else _kept.__wrapped__
    return build(name, problem.stages, problem.microbatches, problem.stages // problem.devices)


@lru_cache(maxsize=KEPT)
def _kept(name: str, stages: int, microbatches: int, chunks: int) -> Schedule | None:
    try:
        return build_schedule(name, stages, microbatches, **SCHEDULES[name].of_chunks(chunks))
    except ValueError:
        return None


def one_at_a_time(instance: ScheduleInstance) -> Codes:
    """The order that runs every micro-batch to its end before the next one begins, int16 [N]; it fits wherever any order does."""
    positions = len(instance.device)
    chain = np.cumsum(instance.first) - 1
    passes = instance.passes[instance.first]
    parts: list[Integers] = []
    for device in range(len(instance.limit)):
        held = [np.flatnonzero((instance.device == device) & (chain == one)) for one in range(len(passes))]
        lists = [_down_and_up(rows, positions, instance.split[rows]) for rows in held]
        shared = int(passes.min())  # the first chains have one micro-batch more
        parts += [np.tile(np.concatenate(lists), shared)]
        parts += [codes for codes, count in zip(lists, passes, strict=True) if count > shared]
    return np.concatenate(parts).astype(np.int16)


def _down_and_up(rows: Integers, positions: int, split: Flags) -> Integers:
    """Codes of one micro-batch on the positions of a device: forwards, then backwards from the last position on."""
    backwards = np.stack([positions + rows, 2 * positions + rows], axis=1)[::-1]
    wanted = np.stack([np.ones_like(split), split], axis=1)[::-1]
    return np.concatenate([rows, backwards[wanted]])
