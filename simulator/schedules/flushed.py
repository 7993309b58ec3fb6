"""Flushed schedules of one stage per device: GPipe, 1F1B, eager 1F1B.

4 stages, 4 micro-batches, B = F; digits are forwards, letters are backwards (a = backward of micro-batch 0):

    GPipe    stage 0: 0123......abcd     1F1B   stage 0: 0123...a.b.c.d
             stage 1:  0123....abcd             stage 1:  012..a3b.c.d
             stage 2:   0123..abcd              stage 2:   01.a2b3c.d
             stage 3:    0123abcd               stage 3:    0a1b2c3d
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Columns, Schedule, from_columns

Number = TypeVar("Number", bound=np.integer)


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards in order, then all backwards in order (Huang et al. 2019; the order of torch's ScheduleGPipe)."""
    return alternating("gpipe", microbatches, [microbatches] * stages)


def one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """Stage s runs stages-1-s forwards, then alternates forward and backward (Narayanan et al. 2021)."""
    return alternating("1f1b", microbatches, range(stages - 1, -1, -1))


def eager_one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """Stage s runs 2(stages-1-s) forwards, then alternates: transfers up to F/2 hide behind computation."""
    return alternating("eager-1f1b", microbatches, range(2 * (stages - 1), -1, -2))


def alternating(name: str, microbatches: int, warm_ups: Sequence[int]) -> Schedule:
    """One stage per device: its warm-up of forwards (clamped to the micro-batches), then F B F B …, then the last backwards."""
    columns = [(np.full(2 * microbatches, s), *alternation(microbatches, ahead)) for s, ahead in enumerate(warm_ups)]
    return from_columns(name, len(warm_ups), microbatches, columns)


def alternation(count: int, warm_up: int) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Kinds and positions of `count` forwards and backwards with `warm_up` forwards ahead: F..F (F B)* B..B."""
    position = np.arange(count, dtype=np.int32)
    forward, backward = np.full((2, count), [[OpKind.FORWARD], [OpKind.BACKWARD]], dtype=np.int8)
    return alternated(forward, backward, warm_up), alternated(position, position, warm_up)


def alternated(forward: NDArray[Number], backward: NDArray[Number], warm_up: int) -> NDArray[Number]:
    """A column of forwards and one of equally many backwards merged in the order of `alternation`."""
    warm = min(warm_up, len(forward))
    steady = len(forward) - warm
    column = np.empty(2 * len(forward), dtype=forward.dtype)
    column[:warm] = forward[:warm]
    column[warm : warm + 2 * steady : 2] = forward[warm:]
    column[warm + 1 : warm + 2 * steady : 2] = backward[:steady]
    column[warm + 2 * steady :] = backward[steady:]
    return column


def after_backwards(columns: Columns, lag: int, added: OpKind) -> Columns:
    """Put an op of kind `added` for each backward behind the `lag`-th backward after it, the last ones at the end."""
    stage, kind, microbatch = columns
    backward = np.flatnonzero(kind == OpKind.BACKWARD)
    after = np.append(backward[lag:], np.full(min(lag, len(backward)), len(kind) - 1)) + 1
    place = after + np.arange(len(after))
    kept = np.ones(len(kind) + len(after), dtype=np.bool_)
    kept[place] = False

    def woven(column: NDArray[np.integer], values: NDArray[np.integer] | OpKind) -> NDArray[np.integer]:
        whole = np.empty(len(kept), dtype=column.dtype)
        whole[kept], whole[place] = column, values
        return whole

    return woven(stage, stage[backward]), woven(kind, added), woven(microbatch, microbatch[backward])
