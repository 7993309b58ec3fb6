"""Bidirectional schedules: two copies of the pipeline in opposite directions over the same devices.

4 stages, 4 micro-batches, B = F. Micro-batches 0 and 1 go down (stage s on device s), 2 and 3 go up (stage s on device 3 - s):

    device 0: 0F0  0F1  .    3F2  3B2  3F3  3B3  0B0  .    0B1
    device 1: .    1F0  2F2  1F1  2F3  2B2  1B0  2B3  1B1  .
    device 2: .    1F2  2F0  1F3  2F1  2B0  1B2  2B1  1B3  .
    device 3: 0F2  0F3  .    3F0  3B0  3F1  3B1  0B2  .    0B3
"""

from __future__ import annotations

import numpy as np

from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Columns, Schedule, from_columns


def chimera(stages: int, microbatches: int) -> Schedule:
    """Chimera's two pipelines (Li and Hoefler 2021, section 3.1): each takes half of the micro-batches, D at a time for D stages.

    A unit of D micro-batches fills slots of equal forwards and backwards: the i-th forward of a pipeline is on its stage s in
    slot s + 2i, its backward in slot 2D - 1 - s + 2i. Where D is even the two never meet, as slots of one are odd where those of
    the other are even, and the next unit begins 2D slots later, in the last bubbles of the first. An odd D has one device in the
    middle, for both. What a unit of fewer micro-batches lacks is left out.
    Makespans, D even: of D micro-batches D·F + (2D-2)·B where B >= F; of N, a multiple of D, (2N+D-2)·F where B = F.
    """
    unit, rest = np.divmod(np.arange(microbatches), stages)
    in_unit = np.minimum(stages, microbatches - unit * stages)
    half = (in_unit + 1) // 2
    up = rest >= half
    begin = 2 * (unit * stages + np.where(up, rest - half, rest))

    def columns(device: int) -> Columns:
        stage = np.where(up, stages - 1 - device, device)
        slot = np.concatenate([begin + stage, begin + 2 * stages - 1 - stage])
        order = np.argsort(slot, kind="stable")
        kind = np.repeat(np.array([OpKind.FORWARD, OpKind.BACKWARD], dtype=np.int8), microbatches)
        return np.tile(stage, 2)[order], kind[order], np.tile(np.arange(microbatches), 2)[order]

    return from_columns("chimera", stages, microbatches, [columns(device) for device in range(stages)])
