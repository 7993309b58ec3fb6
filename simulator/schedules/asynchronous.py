"""Asynchronous schedules: the stream of mini-batches never flushes, updates are ops of the lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hardware_profiles import unchosen
from simulator.options.training_options import REPLICA_UPDATES
from simulator.schedules.flushed import after_backwards, alternation
from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Columns, Schedule, from_columns


def pipedream(stages: int, microbatches: int) -> Schedule:
    """PipeDream's 1F1B on a straight pipeline: stage s of n keeps n-s mini-batches in flight, one update per backward."""
    return _round_robin("pipedream", stages, microbatches, (1,) * stages)


def one_forward_one_backward_round_robin(
    stages: int, microbatches: int, replicas: Sequence[int], replica_updates: str = "overlapped"
) -> Schedule:
    """PipeDream's 1F1B-RR (Narayanan et al. 2019, section 3.2): mini-batch i runs on replica i mod R of each stage.

    A rank of stage s warms up with floor((ranks - 1 - ranks before the stage) / R_s) forwards, then strictly alternates.
    replica_updates: one of REPLICA_UPDATES. Two replicas of stage 0 in front of two stages, R = 2, w = 1, `|` an update:

        overlapped: replica 0: 0 2 a 4 c|6 e|8 g|   (a's update after c; meanwhile b comes back on replica 1)
        barrier:    replica 0: 0 2 a|4 c|6 e|8 g|

    Mini-batches come back one by one, so the replicas of a stage are a mini-batch apart; at a barrier the first waits for
    the last, and all then send at once to stages that take one at a time.
    """
    if replica_updates not in REPLICA_UPDATES:
        raise ValueError(unchosen("replica_updates", replica_updates, REPLICA_UPDATES))
    counts = tuple(int(count) for count in replicas)
    if len(counts) != stages or min(counts) < 1:
        raise ValueError(
            f"1f1b-rr needs one replica count of at least 1 for each of {stages} stages, got {list(counts)}"
        )
    return _round_robin("1f1b-rr", stages, microbatches, counts, overlapped=replica_updates == "overlapped")


def _round_robin(
    name: str, stages: int, minibatches: int, replicas: tuple[int, ...], *, overlapped: bool = False
) -> Schedule:
    ranks = sum(replicas)
    columns: list[Columns] = []
    before = 0
    for stage, count in enumerate(replicas):
        warm_up = (ranks - 1 - before) // count
        for replica in range(min(count, minibatches)):  # a rank without an op would be on no device
            own = np.arange(replica, minibatches, count, dtype=np.int32)
            kind, position = alternation(len(own), warm_up)
            # One replica alone has no round to wait for: it updates at once.
            lag = 1 if overlapped and count > 1 else 0
            ops = np.full(len(kind), stage, dtype=np.int32), kind, own[position]
            columns.append(after_backwards(ops, lag, OpKind.UPDATE))
        before += count
    return from_columns(name, stages, minibatches, columns, flush=False)
