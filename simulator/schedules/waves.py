"""Waves: stages go back and forth over the devices (Liu et al. 2023, "Hanayo", arXiv 2308.15762).

2 devices, one wave (stages 0 to 3 on devices 0 1 1 0), 2 micro-batches, B = F:

    device 0: 0F0  0F1  .    3F0  3B0  3F1  3B1  0B0  .    0B1
    device 1: .    1F0  2F0  1F1  2F1  2B0  1B0  2B1  1B1  .
"""

from __future__ import annotations

import numpy as np

from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Columns, Schedule, from_columns


def hanayo(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Hanayo: w waves are 2w stages per device; Chimera's slots, but one pipeline, and no weights twice.

    chunks: stages per device, 2w
    A unit of P micro-batches, for P devices and S stages, fills slots of equal forwards and backwards: its i-th is forward on
    stage s in slot s + 2i, backward in slot 2S-1-s + 2i. A device's stages on the way down have slots of one parity, those on
    the way back slots of the other, and each begins where the one before it ends: so do units, every 2S slots. What a unit of
    fewer micro-batches lacks is left out.
    Makespans: for B >= F of P micro-batches 2wP(F+B) + 2(P-1)B; for B = F of m, a multiple of P, 2(2wm + P-1)F. A device holds at
    most P micro-batches of all its stages.
    """
    if chunks < 2 or chunks % 2:
        raise ValueError(f"hanayo has two stages per device in each wave, so an even number of chunks, got {chunks}")
    if stages % chunks:
        raise ValueError(
            f"hanayo needs stages divisible by chunks (stages per device), got {stages} stages and {chunks} chunks"
        )
    devices = stages // chunks
    unit, place = np.divmod(np.arange(microbatches), devices)
    begin = 2 * (unit * stages + place)

    def columns(device: int) -> Columns:
        held = [chunk * devices + (devices - 1 - device if chunk % 2 else device) for chunk in range(chunks)]
        stage, number = np.repeat(held, microbatches), np.tile(np.arange(microbatches), chunks)
        slot = np.concatenate([begin[number] + stage, begin[number] + 2 * stages - 1 - stage])
        order = np.argsort(slot, kind="stable")
        kind = np.repeat(np.array([OpKind.FORWARD, OpKind.BACKWARD], dtype=np.int8), len(stage))
        return np.tile(stage, 2)[order], kind[order], np.tile(number, 2)[order]

    return from_columns("hanayo", stages, microbatches, [columns(device) for device in range(devices)])
