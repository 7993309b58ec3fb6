"""BaPipe's schedules: 1F1B-AS and FBP-AS for accelerators that stream, 1F1B-SNO and 1F1B-SO for those that do not.

BaPipe (arXiv 2012.12544). N stages i = 1..N, M micro-batches, F and B seconds of a stage, SR seconds of a transfer:

    name       order                          transfers              mini-batch time                        in flight at stage i
    1f1b-as    1F1B                           free while streaming   (M+N-1)(F+B)                           N-i+1
    fbp-as     forwards beside backwards      free while streaming   (M+N-1)(F+B); split (M+2N-1)(F+B)      2(N-i+1)
    1f1b-sno   1F1B                           block the sender       (M+N-1)(F+B) + 2 SR (M+N-2) - SR       N-i+1
    1f1b-so    1F1B, warm-up 2(N-i)+1         overlapped             (M+N-1)(F+B) + 2 SR (N-1),             2(N-i)+1
                                                                     while SR <= (F+B)/2

The paper's table has SNO one SR longer and counts 2(N-i+1) in flight for SO: the last stage needs no second one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.schedules.flushed import alternating
from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import LANES, Columns, Lanes, Schedule, from_columns


def streamed_one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """1F1B-AS: the order of 1F1B on accelerators that send while they compute."""
    return alternating("1f1b-as", microbatches, range(stages - 1, -1, -1))


def blocking_one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """1F1B-SNO: the order of 1F1B where the sender's device is busy while it sends."""
    return alternating("1f1b-sno", microbatches, range(stages - 1, -1, -1))


def overlapped_one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """1F1B-SO: stage i admits 2(N-i)+1 micro-batches before its first backward, which hides their transfers."""
    return alternating("1f1b-so", microbatches, range(2 * (stages - 1), -1, -2))


def forward_and_backward_parallel(stages: int, microbatches: int, lanes: Lanes = "shared") -> Schedule:
    """FBP-AS: every stage has a lane of forwards and a lane of backwards, which run at the same time and divide the device.

    lanes: `shared`: a lane has the whole device while the other is idle, as in fill and drain; `split`: in fixed shares
    Stage i keeps at most 2(N-i+1) micro-batches (the credit), as the paper's table says. Raises ValueError for other lanes.
    """
    if lanes not in LANES:
        raise ValueError(f"lanes {lanes!r} are unknown; choices: {', '.join(LANES)}")
    order = np.arange(microbatches, dtype=np.int32)

    def lane(stage: int, kind: OpKind) -> Columns:
        return np.full(microbatches, stage, dtype=np.int32), np.full(microbatches, kind, dtype=np.int8), order

    columns = [lane(stage, kind) for stage in range(stages) for kind in (OpKind.FORWARD, OpKind.BACKWARD)]
    device = [stage for stage in range(stages) for _ in range(2)]
    credit = np.array([2 * (stages - stage) for stage in range(stages)], dtype=np.int32)
    return replace(from_columns("fbp-as", stages, microbatches, columns, device=device), lanes=lanes, credit=credit)
