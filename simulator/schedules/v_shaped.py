"""V-shaped schedules: device d of p holds stages d and 2p-1-d, so the first and the last stage share one; backwards are split.

An order is written in letters, capitals for the stage on the way down, small ones for that on the way back: F forward, I input
gradient, W weight gradient, B both gradients at once; two in parentheses overlap. ZB-V on 2 devices, 4 micro-batches, F = I = W:

    device 0: FFFfiwfiwFIWfiwIWfiwIWIW
    device 1:  FfFfiwFIWfiwFIWfiwIiIWwW
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Integers
from simulator.schedules.ops import LETTERS
from simulator.schedules.schedule import Schedule
from simulator.schedules.timed_v import OpSecondsOption, timed


def zb_v(stages: int, microbatches: int, op_seconds: OpSecondsOption = ()) -> Schedule:
    """ZB-V (Qi et al. 2024, section 6), the order for equal F, I and W: no device idles between its first and its last op.

    op_seconds: F, I, W of a stage, and of a transfer, that weight gradients are placed for
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

    return made_for("zb-v", stages, microbatches, [letters(device) for device in range(devices)], op_seconds)


def made_for(
    name: str, stages: int, microbatches: int, devices: Sequence[str], op_seconds: Sequence[float]
) -> Schedule:
    """A schedule from the letters of each device; with seconds, weight gradients move into the pauses that these leave."""
    schedule = from_letters(name, stages, microbatches, devices)
    if not op_seconds:
        return schedule
    letters = [_written(schedule, rank) for rank in range(schedule.ranks)]
    return from_letters(name, stages, microbatches, timed(name, letters, op_seconds))


def _written(schedule: Schedule, rank: int) -> str:
    """The letters of a device's ops."""
    rows = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    up, kind = schedule.stage[rows] >= schedule.stages // 2, schedule.kind[rows]
    codes = np.array([ord(letter) for letter in LETTERS], dtype=np.uint8)[kind] + np.where(up, 32, 0).astype(np.uint8)
    return codes.tobytes().decode("ascii")


def v_devices(name: str, stages: int) -> int:
    """Devices of a V of `stages` stages; ValueError for an odd number."""
    if stages % 2:
        raise ValueError(f"{name} has two stages per device, so an even number of them, got {stages} stages")
    return stages // 2


def from_letters(name: str, stages: int, microbatches: int, devices: Sequence[str]) -> Schedule:
    """A schedule from the letters of each device, without the ops of micro-batches beyond `microbatches`."""
    read = read_letters(devices)
    stage = np.where(read.up, stages - 1 - read.device, read.device)
    return of_letters(name, stages, microbatches, read._replace(stage=stage), read.microbatch < microbatches)


class Letters(NamedTuple):
    """The ops that the letters of all devices stand for, as columns.

    up: whether an op is on the way back; stage: of its device, 0 where it is not known yet
    paired: whether it overlaps the op behind it
    """

    device: Integers
    up: Flags
    stage: Integers
    kind: NDArray[np.int8]
    microbatch: Integers
    paired: Flags


def of_letters(name: str, stages: int, microbatches: int, read: Letters, real: Flags) -> Schedule:
    """The schedule of those ops that are real; one may overlap the one behind it where both are."""
    lengths = np.bincount(read.device[real], minlength=int(read.device[-1]) + 1)
    overlapped = (read.paired & np.roll(real, -1))[real]
    return Schedule(
        name,
        stages,
        microbatches,
        np.append(0, np.cumsum(lengths)),
        read.stage[real].astype(np.int32),
        read.kind[real],
        read.microbatch[real].astype(np.int32),
        overlapped=overlapped if overlapped.any() else None,
    )


_KIND_OF_CODE = np.zeros(128, dtype=np.int8)
_KIND_OF_CODE[[ord(letter) for letter in LETTERS + LETTERS.lower()]] = 2 * list(range(len(LETTERS)))


def read_letters(devices: Sequence[str]) -> Letters:
    """The ops of each device's letters.

    Micro-batches are counted for the forwards and for the backwards, whole or split, of each of a device's two stages; its n-th
    weight gradient belongs to its n-th input gradient.
    """
    codes = np.frombuffer("".join(devices).encode("ascii"), dtype=np.uint8)
    device = np.repeat(np.arange(len(devices)), [len(letters) for letters in devices])
    is_op = codes >= ord("A")
    paired = np.concatenate([[0], codes[:-1]])[is_op] == ord("(")
    codes, device = codes[is_op], device[is_op]
    up, kind = codes >= ord("a"), _KIND_OF_CODE[codes]
    from simulator.schedules.letter_kernels import microbatches_of

    return Letters(device, up, np.zeros_like(device), kind, microbatches_of(device, up, kind), paired)
