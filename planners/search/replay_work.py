"""Replay work: how much a replay of a plan takes of a search that ends by work, not by the clock."""

from __future__ import annotations

PREPARED, BY_STAGE, BY_REPLICA = 375, 150, 3
"""Ops whose replay takes as long as the preparation of a plan, of a stage, and of a stage's replica."""


def replay_work(stages: int, replicas: int, microbatches: int) -> int:
    """Work of a replay with its preparation, in pairs of a forward and a backward (about 20 microseconds).

    stages: of the pipeline; replicas: of each stage
    """
    return PREPARED + stages * (BY_STAGE + replicas * (microbatches + BY_REPLICA))
