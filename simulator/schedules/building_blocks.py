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

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from simulator.schedules.schedule import Schedule
from simulator.schedules.v_shaped import from_letters, v_devices

Block = list[tuple[int, int, int, int]]
"""Slots of the passes F f i I of the first micro-batch on each device."""

PERIOD = 6
"""Slots from one micro-batch to the next: two forwards, two input gradients, two weight gradients on every device."""

MOST_DEVICES = 256
"""Their orders are made slot by slot, in the square of the devices' time and more: 8 s for as many."""

WEIGHT = {"i": "w", "I": "W"}
"""The weight gradient that an input gradient leaves."""

HOLDS = {"F": 1, "f": 1, "w": -1, "W": -1}
"""What an op adds to the micro-batches that a device holds."""


def v_half(stages: int, microbatches: int) -> Schedule:
    """V-Half: at most (p+2)//2 micro-batches of both stages of a device, on p devices.

    Unit chunks, m >= 2p: 6m + 3p-7 for an even p of at least 4, 6m + 3p-4 for an odd one of at least 3.
    """
    devices = _block_devices("v-half", stages)
    pause = 3 if devices % 2 == 0 else 0
    block = [
        (2 * d, 3 * devices - d - 2, 3 * devices + pause + 2 * d - 1, 6 * devices + pause - d - 2)
        for d in range(devices)
    ]
    return from_letters("v-half", stages, microbatches, repeated(block, microbatches, 2 * ((devices + 2) // 2)))


def v_min(stages: int, microbatches: int) -> Schedule:
    """V-Min: at most (p+4)//3 micro-batches of both stages of a device, on p devices.

    Unit chunks, m >= 2p: 6m + 4p-5 for p of at least 4, or 6m + 4p-7 where that is a multiple of 3.
    """
    devices = _block_devices("v-min", stages)
    pause = 2 if devices % 3 == 0 else 0
    block = [(d, 2 * devices - d - 1, 2 * devices + pause + d, 4 * devices + pause - d - 1) for d in range(devices)]
    return from_letters("v-min", stages, microbatches, repeated(block, microbatches, 2 * ((devices + 4) // 3)))


def _block_devices(name: str, stages: int) -> int:
    """Devices, two stages each; ValueError for more than MOST_DEVICES."""
    devices = v_devices(name, stages)
    if devices > MOST_DEVICES:
        raise ValueError(f"{name} is built for at most {MOST_DEVICES} devices, got {stages} stages on {devices}")
    return devices


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
    """The letters of each device, slot after slot, in the order of `planned` where that has no device wait needlessly."""
    devices = [_Device(planned(begins, microbatches), limit) for begins in block]
    for near, far in pairwise(devices):
        near.sources |= {"f": far.ends["f"], "I": far.ends["I"]}
        far.sources |= {"F": near.ends["F"], "i": near.ends["i"]}
    slot = 0
    while any(device.left for device in devices):
        for device in devices:
            device.step(slot)
        slot += 1
    return [device.letters for device in devices]


def planned(begins: Sequence[int], microbatches: int) -> str:
    """The letters of a device where every micro-batch begins a period later, weight gradients in the first free slots."""
    passes = {
        begin + PERIOD * number: letter
        for letter, begin in zip("FfiI", begins, strict=True)
        for number in range(microbatches)
    }
    letters, owed, slot = "", "", 0
    while passes or owed:
        letter = passes.pop(slot, "")
        if not letter and owed:
            letters, owed = letters + owed[0], owed[1:]
        if letter in ("i", "I"):
            owed += WEIGHT[letter]
        letters += letter
        slot += 1
    return letters


@dataclass(slots=True)
class _Device:
    """A device amid `squeezed`.

    left: letters that it has not run, in the planned order; limit: stages' micro-batches that it holds at most
    letters: those that it has run; ends: the slots behind each of them; sources: the ends that each letter waits for
    """

    left: str
    limit: int
    letters: str = ""
    held: int = 0
    ends: dict[str, list[int]] = field(default_factory=lambda: {letter: [] for letter in "FfiIwW"})
    sources: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.sources = {after: self.ends[before] for before, after in pairwise("FfiI")}
        self.sources |= {WEIGHT[letter]: self.ends[letter] for letter in WEIGHT}

    def step(self, slot: int) -> None:
        """Run an op in a slot, if there is one to run."""
        place = self._place_of_next(slot)
        if place is None:
            return
        letter = self.left[place]
        self.left, self.letters = self.left[:place] + self.left[place + 1 :], self.letters + letter
        self.held += HOLDS.get(letter, 0)
        self.ends[letter].append(slot + 1)

    def _place_of_next(self, slot: int) -> int | None:
        """Where in the planned order the op is that runs now, or None: the first, with two exceptions.

        Where that waits and no I is done yet, a forward that fits in memory beside all that is planned before it; after the last
        F, whichever pass is ready, and weight gradients last.
        """
        if "F" not in self.left:
            first = sorted(self.left.find(letter) for letter in "fiI") + sorted(map(self.left.find, "wW"))
            return next((place for place in first if place >= 0 and self._ready(self.left[place], slot)), None)
        if self.left and self._ready(self.left[0], slot):
            return 0
        if not self.ends["I"]:
            most = held = self.held
            for place, letter in enumerate(self.left):
                if letter in "Ff" and (most == self.limit or self._ready(letter, slot)):
                    return place if most < self.limit else None
                held += HOLDS.get(letter, 0)
                most = max(most, held)
        return None

    def _ready(self, letter: str, slot: int) -> bool:
        """Whether the next op of a letter can run: it has what it waits for, and a forward has memory."""
        if letter in "Ff" and self.held == self.limit:
            return False
        source, number = self.sources.get(letter), len(self.ends[letter])
        return source is None or (number < len(source) and source[number] <= slot)
