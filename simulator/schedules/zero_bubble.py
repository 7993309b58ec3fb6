"""Zero-bubble schedules of one stage per device: weight gradients fill what would be idle (Qi et al. 2024, arXiv 2401.10241).

4 stages, 6 and 9 micro-batches, F = I = W; digits are forwards, letters the input gradients of the same micro-batches, capitals
the weight gradients:

    ZB-H1    stage 0: 0123...aA4bB5cCdDeEfF    ZB-H2    stage 0: 0123456aA7bB8cCdDeEfFgGhHiI
             stage 1:  012..a3bA4cB5dCeDfEF             stage 1:  01234a5b6cA7dB8eCfDgEhFiGHI
             stage 2:   01.a2b3cA4dB5eCfDEF             stage 2:   012a3b4c5d6eA7fB8gChDiEFGHI
             stage 3:    0a1b2c3dA4eB5fCDEF             stage 3:    0a1b2c3d4e5f6gA7hB8iCDEFGHI
"""

from __future__ import annotations

import numpy as np

from simulator.schedules.flushed import after_backwards
from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Columns, Schedule


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """ZB-H1, the handcrafted order: 1F1B whose stage s runs the weight gradient of a micro-batch s micro-batches later.

    Every stage holds at most p micro-batches, as stage 0 of 1F1B does. m(F+I+W) + (p-1)(F+I-W+4c) for p stages, m > p
    micro-batches (m >= p where c = 0), F >= W, I >= W and W >= 2c; other seconds else.
    """
    return _in_rounds("zb-h1", stages, microbatches, 1)


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """ZB-H2, the handcrafted order: the warm-up of eager 1F1B, weight gradients 2s micro-batches later on stage s.

    Every stage holds at most 2p-1 micro-batches, 2(p-s)-1 of them before their input gradient. For p stages, m >= 2p-1
    micro-batches, F >= W >= 2c the longest stage takes m(F+I+W) + (p-1)(F+I+2c-2W), or m(F+I+W) if that is more.
    """
    return _in_rounds("zb-h2", stages, microbatches, 2)


def _in_rounds(name: str, stages: int, microbatches: int, rounds: int) -> Schedule:
    """The order of stage s with `rounds` x (stages - 1 - s) forwards ahead, weight gradients `rounds` x s micro-batches later.

    The place of every op is counted from those before it: F..F (F I)* (F I W)* (I W)* W..W, or with I..I where few are ahead.
    """
    stage, number = np.arange(stages)[:, None], np.arange(microbatches)
    ahead, lag = np.minimum(rounds * (stages - 1 - stage), microbatches), rounds * stage
    inputs = np.maximum(0, number - ahead)  # before a forward
    forward = number + inputs + np.maximum(0, inputs - lag)
    backward = number + np.minimum(microbatches, number + 1 + ahead) + np.maximum(0, number - lag)
    behind = (
        1 + 2 * number + lag + np.minimum(microbatches, number + lag + 1 + ahead)
    )  # an input gradient, or at the end
    weight = np.where(number + lag < microbatches, behind, 2 * microbatches + number)
    kind, microbatch = (
        np.empty((stages, 3 * microbatches), dtype=np.int8),
        np.empty((stages, 3 * microbatches), np.int32),
    )
    for place, one in (
        (forward, OpKind.FORWARD),
        (backward, OpKind.INPUT_GRADIENT),
        (weight, OpKind.WEIGHT_GRADIENT),
    ):
        kind[stage, place], microbatch[stage, place] = one, number
    offsets = np.arange(stages + 1, dtype=np.int64) * 3 * microbatches
    rows = np.repeat(np.arange(stages, dtype=np.int32), 3 * microbatches)
    return Schedule(name, stages, microbatches, offsets, rows, kind.ravel(), microbatch.ravel())


def with_weight_gradients(columns: Columns, lag: int) -> Columns:
    """Split each backward: its input gradient in its place, its weight gradient behind the `lag`-th input gradient after it."""
    stage, kind, microbatch = after_backwards(columns, lag, OpKind.WEIGHT_GRADIENT)
    kind[kind == OpKind.BACKWARD] = OpKind.INPUT_GRADIENT
    return stage, kind, microbatch
