"""In flight: what the stages of a schedule have run forward and not yet backward."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator import OpKind, Schedule, kernel

_FORWARD = int(OpKind.FORWARD)
_FREEING = int(OpKind.BACKWARD), int(OpKind.WEIGHT_GRADIENT)


def most_in_flight(schedule: Schedule) -> NDArray[np.int64]:
    """Most micro-batches that each stage has in flight at once, on one device, int64 [stages]."""
    return most_held(schedule, np.ones(schedule.stages))[1]


def most_held(schedule: Schedule, each: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Most that the stages of each rank hold at once, float64 [ranks], if each micro-batch in flight is `each` [stages]; and
    `most_in_flight`.
    """
    return _walk(schedule.offsets, schedule.stage, schedule.kind, each)


@kernel()
def _walk(
    offsets: NDArray[np.int64], stage: NDArray[np.int32], kind: NDArray[np.int8], each: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Both, from one walk over the ops; most is held when a forward starts."""
    together, most = np.zeros(len(offsets) - 1), np.zeros(len(each), dtype=np.int64)
    own = np.empty(len(each), dtype=np.int64)
    for rank in range(len(together)):
        held, seen, stages = np.zeros(len(each), dtype=np.int64), np.zeros(len(each), dtype=np.bool_), 0
        for row in range(offsets[rank], offsets[rank + 1]):
            here = stage[row]
            if kind[row] == _FORWARD:
                if not seen[here]:
                    seen[here], own[stages] = True, here
                    stages += 1
                held[here] += 1
                most[here] = max(most[here], held[here])
                total = 0.0
                for place in range(stages):
                    total += held[own[place]] * each[own[place]]
                together[rank] = max(together[rank], total)
            elif kind[row] in _FREEING:
                held[here] -= 1
    return together, most
