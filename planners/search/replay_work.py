"""Replay work: how much a replay of a plan takes of a search that ends by work, not by the clock."""

from __future__ import annotations

from simulator import Plan

WORK_PER_SECOND = 25_000
"""Work (see `replay_work`) that a nominal second stands for, whatever the machine takes for it."""

PREPARED, BY_STAGE, BY_REPLICA = 375, 150, 3
"""Ops whose replay takes as long as the preparation of a plan, of a stage, and of a stage's replica."""

UNLIKE = 16
"""Replicas of a stage whose ops are replayed, at most: of more, on large clusters, like ones are one."""

OF_SIZES = 0.01
"""Work of an evaluation of unequal sizes, which extends a profile by a stage."""


def replay_work(stages: int, replicas: int, microbatches: int) -> int:
    """Work of a replay with its preparation, in pairs of a forward and a backward (about 20 microseconds).

    stages: of the pipeline; replicas: of each stage
    """
    return PREPARED + stages * (BY_STAGE + min(replicas, UNLIKE) * microbatches + replicas * BY_REPLICA)


def work_of(plan: Plan) -> int:
    """`replay_work` of a plan, as if all stages had the most replicas."""
    return replay_work(len(plan.stages), max(plan.replicas), len(plan.microbatches) * plan.slices)
