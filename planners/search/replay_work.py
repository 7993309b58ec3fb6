"""Replay work: a measure of what a replay takes, by which searches end after equal work on every machine."""

from __future__ import annotations

from simulator import Plan

WORK_PER_SECOND = 25_000
"""Work (see `replay_work`) per nominal second, whatever a machine takes for it."""

PREPARED, BY_STAGE, BY_REPLICA = 375, 150, 3
"""Work to prepare a plan, per stage of it, and per replica of a stage."""

UNLIKE = 16
"""Replicas of a stage, at most, whose ops count: of more, on large clusters, those that do the same are replayed once."""

OF_SIZES = 0.01
"""Work of an evaluation of unequal sizes, which extends a profile by one stage."""


def replay_work(stages: int, replicas: int, microbatches: int) -> int:
    """Work of a plan's replay with its preparation; the unit is a forward and a backward (about 20 microseconds).

    stages: of the pipeline; replicas: of each stage
    """
    return PREPARED + stages * (BY_STAGE + min(replicas, UNLIKE) * microbatches + replicas * BY_REPLICA)


def work_of(plan: Plan) -> int:
    """Work of a plan's replay, as if all stages had as many replicas as the one with most."""
    return replay_work(len(plan.stages), max(plan.replicas), len(plan.microbatches) * plan.slices)
