"""Timed V: the order of a V-shaped family made for seconds: weight gradients where devices would wait, others as in the family.

Zero-bubble's published generators place a weight gradient where it fills a pause of these seconds, or where memory asks for it
(Qi et al. 2024, arXiv 2401.10241 and 2405.15362). Here passes of the pipeline keep the order of unit seconds, and a few rules
for weight gradients are tried; the fastest of them and the family's own order is the answer.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Annotated

from hardware_profiles import Bounds

OpSecondsOption = Annotated[tuple[float, ...], Bounds(ge=0)]
"""Option: seconds of a forward, an input gradient and a weight gradient of a stage, and of a transfer; () for the family's."""

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Rules that are tried: a weight gradient runs in a pause at least as long as this share of it."""

_WEIGHTS = {"i": "w", "I": "W"}


def timed(name: str, devices: Sequence[str], seconds: Sequence[float]) -> list[str]:
    """The letters of each device (of `simulator.schedules.v_shaped`) for these seconds, in no more memory than those given.

    ValueError unless the seconds are four.
    """
    if len(seconds) != 4:
        raise ValueError(
            f"{name} is made for op_seconds of a forward, an input gradient, a weight gradient and a transfer, got {len(seconds)}"
        )
    if not sum(seconds[:3]):
        return list(devices)
    limit = max(map(_peak, devices))
    passes = [[letter for letter in letters if letter not in "wW"] for letters in devices]
    tried = [_run(passes, seconds, limit, share) for share in SHARES]
    return min([_run([list(one) for one in devices], seconds, limit, None), *tried], key=lambda one: one[0])[1]


def _peak(letters: str) -> int:
    """Most micro-batches that a device holds at once, summed over its stages."""
    held = most = 0
    for letter in letters:
        held += (letter in "fF") - (letter in "wW")
        most = max(most, held)
    return most


def _run(
    passes: Sequence[Sequence[str]], seconds: Sequence[float], limit: int, share: float | None
) -> tuple[float, list[str]]:
    """The makespan and the letters of each device, where every device runs its passes in order.

    share: a weight gradient that is due runs before a pass that is this part of it away, or a forward that finds no memory;
        None where weight gradients stand among the passes
    """
    forward, gradient, weight, transfer = seconds
    takes = {"F": forward, "f": forward, "i": gradient, "I": gradient, "w": weight, "W": weight}
    kept = {"F": 1, "f": 1, "i": 0, "I": 0, "w": -1, "W": -1}
    count, last = len(passes), len(passes) - 1
    ends: list[dict[str, list[float]]] = [{letter: [] for letter in takes} for _ in range(count)]
    sources = [_sources(ends, device, transfer) for device in range(count)]
    due: list[deque[str]] = [deque() for _ in range(count)]
    ran: list[list[str]] = [[] for _ in range(count)]
    place, held, free = [0] * count, [0] * count, [0.0] * count
    neighbours = [[other for other in (device - 1, device + 1) if 0 <= other <= last] for device in range(count)]

    events = [(0.0, device) for device in range(count)]
    while events:
        now, device = heapq.heappop(events)
        if now < free[device]:
            continue
        own, done = passes[device], ends[device]
        head = own[place[device]] if place[device] < len(own) else ""
        there: float | None = None  # when what the next pass waits for arrives, where that has begun
        if head:
            awaited, later = sources[device].get(head, (None, 0.0))
            number = len(done[head])
            if awaited is None:
                there = 0.0
            elif number < len(awaited):
                there = awaited[number] + later
        full = share is not None and bool(head) and kept[head] > 0 and held[device] == limit
        letter = head if there is not None and there <= now and not full else ""
        if not letter and share is not None and due[device]:
            soonest = now + takes[head] + transfer if head and there is None else there or 0.0
            if not head or full or (soonest > now and soonest - now >= share * weight):
                letter = due[device].popleft()
        if not letter:
            if there is not None and there > now:
                heapq.heappush(events, (there, device))
            continue
        if share is None or letter not in "wW":
            place[device] += 1
        free[device] = end = now + takes[letter]
        done[letter].append(end)
        held[device] += kept[letter]
        if letter in _WEIGHTS:
            due[device].append(_WEIGHTS[letter])
        ran[device].append(letter)
        heapq.heappush(events, (end, device))
        for other in neighbours[device]:
            if free[other] <= now:  # it waits, and now knows for how long
                heapq.heappush(events, (now, other))
    whole = sum(map(len, ran)) == 3 * sum(one in "FfiI" for letters in passes for one in letters) // 2
    return (max(free) if whole else float("inf")), ["".join(one) for one in ran]


def _sources(
    ends: Sequence[dict[str, list[float]]], device: int, transfer: float
) -> dict[str, tuple[list[float], float]]:
    """The ends of the passes that each pass of a device waits for, by micro-batch, and how much later they arrive."""
    last = len(ends) - 1
    before = {
        "f": (last, "F") if device == last else (device + 1, "f"),
        "i": (0, "f") if device == 0 else (device - 1, "i"),
        "I": (last, "i") if device == last else (device + 1, "I"),
    }
    if device > 0:
        before["F"] = (device - 1, "F")
    return {letter: (ends[one][of], transfer * (one != device)) for letter, (one, of) in before.items()}
