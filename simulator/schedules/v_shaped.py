"""V-shaped schedules: device d of p holds stages d and 2p-1-d, so the first and the last stage share one; backwards are split.

An order is written in letters, capitals for the stage on the way down, small ones for that on the way back: F forward, I input
gradient, W weight gradient; the n-th of a letter is of micro-batch n. ZB-V on 2 devices, 4 micro-batches, F = I = W:

    device 0: FFFfiwfiwFIWfiwIWfiwIWIW
    device 1:  FfFfiwFIWfiwFIWfiwIiIWwW
"""

from __future__ import annotations

import numpy as np

from simulator.schedules.ops import LETTERS
from simulator.schedules.schedule import Columns, Schedule, from_columns


def zb_v(stages: int, microbatches: int) -> Schedule:
    """ZB-V (Qi et al. 2024, section 6), the order for equal F, I and W: no device idles between its first and its last op.

    p devices, unit chunks: 6m + p-1 for m >= 2p-1. A device holds at most p micro-batches of both its stages together.
    """
    devices = v_devices("zb-v", stages)
    count = max(2 * devices - 1, microbatches)  # what there is no micro-batch for is left out

    def letters(device: int) -> str:
        left = devices - device
        return (
            "F" * (2 * left - 1)
            + "fF" * device
            + "fiw" * left
            + "FIWfiw" * (count - 2 * devices + 1 + device)
            + "IWfiw" * (left - 1)
            + "Ii" * device
            + "IW" * left
            + "w" * device
            + "W" * device
        )

    return from_letters("zb-v", stages, microbatches, [letters(device) for device in range(devices)])


def v_devices(name: str, stages: int) -> int:
    """Devices of a V of `stages` stages; ValueError for an odd number."""
    if stages % 2:
        raise ValueError(f"{name} has two stages a device, so an even number of them, got {stages} stages")
    return stages // 2


def from_letters(name: str, stages: int, microbatches: int, devices: list[str]) -> Schedule:
    """A schedule from the letters of each device, but for the ops of micro-batches beyond `microbatches`."""

    return from_columns(
        name, stages, microbatches, [_columns(*one, stages, microbatches) for one in enumerate(devices)]
    )


_KIND_OF_CODE = np.zeros(128, dtype=np.int8)
_KIND_OF_CODE[[ord(letter) for letter in LETTERS + LETTERS.lower()]] = 2 * list(range(len(LETTERS)))


def _columns(device: int, letters: str, stages: int, microbatches: int) -> Columns:
    codes = np.frombuffer(letters.encode("ascii"), dtype=np.uint8)
    number = np.empty(len(codes), dtype=np.int32)
    for code in np.unique(codes):
        own = np.flatnonzero(codes == code)
        number[own] = np.arange(len(own))
    real = number < microbatches
    stage = np.where(codes >= ord("a"), stages - 1 - device, device)
    return stage[real], _KIND_OF_CODE[codes[real]], number[real]
