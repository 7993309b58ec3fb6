"""V-Half and V-Min: a building block, the passes of one micro-batch in unit slots, begins anew every six slots.

Qi et al. 2024, "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362): how long a device holds a micro-batch in the
block bounds what it holds at all. The slots of F and f, i and I (the letters of `simulator.schedules.v_shaped`) on 4 devices of
V-Min, where each pass moves a device a slot; V-Half has two slots from device to device for F and i:

    device 0: F......fi......I
    device 1:  F....f  i....I
    device 2:   F..f    i..I
    device 3:    Ff      iI
"""

from __future__ import annotations

import numpy as np

from simulator.schedules.schedule import Schedule
from simulator.schedules.timed_v import OpSecondsOption
from simulator.schedules.v_shaped import made_for, v_devices

Block = list[tuple[int, int, int, int]]
"""Slots of the passes F f i I of the first micro-batch on each device."""

PERIOD = 6
"""Slots per micro-batch: two forwards, two input gradients and two weight gradients on every device."""

MOST_DEVICES = 1024
"""Most devices of these schedules: they are built slot by slot, in time at least quadratic in devices: 8 s for so many."""

PASSES = np.frombuffer(b"FfiIwW", dtype=np.uint8)
"""Letters of the passes, in the order of their numbers in squeezed blocks."""


def v_half(stages: int, microbatches: int, op_seconds: OpSecondsOption = ()) -> Schedule:
    """V-Half: at most (p+2)//2 micro-batches of both stages of a device, on p devices.

    op_seconds: F, I, W of a stage, and of a transfer, that weight gradients are placed for
    Unit chunks, m >= 2p: 6m + 3p-7 for an even p of at least 4, 6m + 3p-4 for an odd one of at least 3.
    """
    devices = _block_devices("v-half", stages)
    pause = 3 if devices % 2 == 0 else 0
    block = [
        (2 * d, 3 * devices - d - 2, 3 * devices + pause + 2 * d - 1, 6 * devices + pause - d - 2)
        for d in range(devices)
    ]
    letters = repeated(block, microbatches, 2 * ((devices + 2) // 2))
    return made_for("v-half", stages, microbatches, letters, op_seconds)


def v_min(stages: int, microbatches: int, op_seconds: OpSecondsOption = ()) -> Schedule:
    """V-Min: at most (p+4)//3 micro-batches of both stages of a device, on p devices.

    op_seconds: F, I, W of a stage, and of a transfer, that weight gradients are placed for
    Unit chunks, m >= 2p: 6m + 4p-5 for p of at least 4, or 6m + 4p-7 where that is a multiple of 3.
    """
    devices = _block_devices("v-min", stages)
    pause = 2 if devices % 3 == 0 else 0
    block = [(d, 2 * devices - d - 1, 2 * devices + pause + d, 4 * devices + pause - d - 1) for d in range(devices)]
    letters = repeated(block, microbatches, 2 * ((devices + 4) // 3))
    return made_for("v-min", stages, microbatches, letters, op_seconds)


def _block_devices(name: str, stages: int) -> int:
    """Devices, two stages each; ValueError for more than MOST_DEVICES."""
    devices = v_devices(name, stages)
    if devices > MOST_DEVICES:
        raise ValueError(f"{name} is built for at most {MOST_DEVICES} devices, got {stages} stages on {devices}")
    return devices


def repeated(block: Block, microbatches: int, limit: int) -> list[str]:
    """The letters of each device for a building block repeated for every micro-batch, with idle slots squeezed out.

    limit: stages' micro-batches that a device holds at most
    The steady pattern of long streams comes from a short one, of which it is the middle.
    """
    devices = len(block)
    short = min(microbatches, 3 * devices + 4)
    letters = squeezed(block, short, limit)
    if short == microbatches:
        return letters
    whole = []
    for ops in letters:
        begins = [position for position, letter in enumerate(ops) if letter == "F"]
        first, last = begins[2 * devices : 2 * devices + 2]
        whole.append(ops[:first] + ops[first:last] * (1 + microbatches - short) + ops[last:])
    return whole


def squeezed(block: Block, microbatches: int, limit: int) -> list[str]:
    """The letters of each device for a building block repeated for every micro-batch: the whole stream, slot by slot."""
    # compiled code is loaded by those who build such a schedule alone
    from simulator.schedules import squeezed_blocks

    passes = squeezed_blocks.squeezed(np.array(block, dtype=np.int64), PERIOD, microbatches, limit)
    return [PASSES[one].tobytes().decode("ascii") for one in passes]
