"""Asynchronous schedules: the stream of mini-batches never flushes, updates are ops of the lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.ops import OpKind
from simulator.schedule import Columns, Schedule, from_columns
from simulator.schedules.flushed import alternation


def pipedream(stages: int, microbatches: int) -> Schedule:
    """PipeDream's 1F1B on a straight pipeline: stage s of n keeps n-s mini-batches in flight, one update a backward."""
    return _round_robin("pipedream", stages, microbatches, (1,) * stages)


def one_forward_one_backward_round_robin(stages: int, microbatches: int, replicas: Sequence[int]) -> Schedule:
    """PipeDream's 1F1B-RR (Narayanan et al. 2019, section 3.2): mini-batch i runs on replica i mod R of each stage.

    A rank of stage s warms up with floor((ranks - 1 - ranks before the stage) / R_s) forwards, then strictly alternates.
    """
    counts = tuple(int(count) for count in replicas)
    if len(counts) != stages or min(counts) < 1:
        raise ValueError(
            f"1f1b-rr needs one replica count of at least 1 for each of {stages} stages, got {list(counts)}"
        )
    return _round_robin("1f1b-rr", stages, microbatches, counts)


def _round_robin(name: str, stages: int, minibatches: int, replicas: tuple[int, ...]) -> Schedule:
    ranks = sum(replicas)
    columns: list[Columns] = []
    numbers: list[int] = []
    before = 0
    for stage, count in enumerate(replicas):
        warm_up = (ranks - 1 - before) // count
        for replica in range(min(count, minibatches)):  # a rank without an op would be on no device
            own = np.arange(replica, minibatches, count, dtype=np.int32)
            kind, position = alternation(len(own), warm_up)
            columns.append(_with_updates(stage, kind, own[position]))
            numbers.append(replica)
        before += count
    return from_columns(name, stages, minibatches, columns, replica=numbers, flush=False)


def _with_updates(stage: int, kind: NDArray[np.int8], microbatch: NDArray[np.int32]) -> Columns:
    """Put the update of a mini-batch right after its backward."""
    after = np.flatnonzero(kind == OpKind.BACKWARD) + 1
    kinds = np.insert(kind, after, OpKind.UPDATE)
    return (
        np.full(len(kinds), stage, dtype=np.int32),
        kinds,
        np.insert(microbatch, after, microbatch[after - 1]),
    )
