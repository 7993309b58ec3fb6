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

from collections import deque

from simulator.schedules.schedule import Schedule
from simulator.schedules.v_shaped import from_letters, v_devices

Block = list[tuple[int, int, int, int]]
"""Slots of the passes F f i I of the first micro-batch on each device."""

PASSES = "FfiI"

PERIOD = 6
"""Slots from one micro-batch to the next: two forwards, two input gradients, two weight gradients on every device."""


def v_half(stages: int, microbatches: int) -> Schedule:
    """V-Half: at most (p+2)//2 micro-batches of both stages of a device, on p devices.

    Unit chunks, even p, m >= 2p: 6m + 3p-5.
    """
    devices = v_devices("v-half", stages)
    pause = 3 if devices % 2 == 0 else 0
    block = [
        (2 * d, 3 * devices - d - 2, 3 * devices + pause + 2 * d - 1, 6 * devices + pause - d - 2)
        for d in range(devices)
    ]
    return from_letters("v-half", stages, microbatches, repeated(block, microbatches, 2 * ((devices + 2) // 2)))


def v_min(stages: int, microbatches: int) -> Schedule:
    """V-Min: at most (p+4)//3 micro-batches of both stages of a device, on p devices.

    Unit chunks, p no multiple of 3, m >= 2p: 6m + 4p-5.
    """
    devices = v_devices("v-min", stages)
    pause = 2 if devices % 3 == 0 else 0
    block = [(d, 2 * devices - d - 1, 2 * devices + pause + d, 4 * devices + pause - d - 1) for d in range(devices)]
    return from_letters("v-min", stages, microbatches, repeated(block, microbatches, 2 * ((devices + 4) // 3)))


def repeated(block: Block, microbatches: int, limit: int) -> list[str]:
    """The letters of each device for a block that every micro-batch repeats, with its idle slots squeezed out.

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
    """The letters of each device, slot after slot: the passes in the order of their blocks, weight gradients while those wait.

    A device whose forwards on the way down are done takes whichever pass is ready.
    """
    devices = len(block)
    ends: list[list[list[int]]] = [[[] for _ in PASSES] for _ in block]
    sources = [_sources(ends, device) for device in range(devices)]
    held = [0] * devices
    owed: list[deque[str]] = [deque() for _ in block]
    letters: list[list[str]] = [[] for _ in block]
    slot, left = 0, PERIOD * devices * microbatches

    def ready(device: int, one: int) -> bool:
        number, source = len(ends[device][one]), sources[device][one]
        if number == microbatches or (PASSES[one] in "Ff" and held[device] == limit):
            return False
        return source is None or (number < len(source) and source[number] <= slot)

    while left:
        for device, begins in enumerate(block):
            own = ends[device]
            planned = sorted(range(len(PASSES)), key=lambda one: begins[one] + PERIOD * len(own[one]))
            if len(own[0]) < microbatches:
                planned = planned[:1]
            taken = next((one for one in planned if ready(device, one)), None)
            if taken is not None:
                own[taken].append(slot + 1)
                letter = PASSES[taken]
                if letter in "Ff":
                    held[device] += 1
                else:
                    owed[device].append("w" if letter == "i" else "W")
            elif owed[device]:
                letter = owed[device].popleft()
                held[device] -= 1
            else:
                continue
            letters[device].append(letter)
            left -= 1
        slot += 1
    return ["".join(ops) for ops in letters]


def _sources(ends: list[list[list[int]]], device: int) -> list[list[int] | None]:
    """The ends of what each pass of a device waits for: F and i come from the device before, f and I from the next."""
    before = ends[device - 1] if device else None
    after = ends[device + 1] if device + 1 < len(ends) else None
    own = ends[device]
    return [
        before[0] if before else None,
        after[1] if after else own[0],
        before[2] if before else own[1],
        after[3] if after else own[2],
    ]
