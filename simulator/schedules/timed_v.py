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
    count, last = len(passes), len(passes) - 1
    ends: dict[tuple[str, int, int], float] = {}
    done: list[dict[str, int]] = [dict.fromkeys("FfiIwW", 0) for _ in range(count)]
    due: list[deque[str]] = [deque() for _ in range(count)]
    ran: list[list[str]] = [[] for _ in range(count)]
    place, held, free = [0] * count, [0] * count, [0.0] * count

    def arrival(device: int, letter: str) -> float | None:
        """When what a pass waits for is there; None where that has not begun."""
        source, before = {
            "F": (device - 1, "F"),
            "f": (last, "F") if device == last else (device + 1, "f"),
            "i": (0, "f") if device == 0 else (device - 1, "i"),
            "I": (last, "i") if device == last else (device + 1, "I"),
        }.get(letter, (-1, ""))
        if source < 0:
            return 0.0
        end = ends.get((before, source, done[device][letter]))
        return None if end is None else end + transfer * (source != device)

    events = [(0.0, device) for device in range(count)]
    while events:
        now, device = heapq.heappop(events)
        if now < free[device]:
            continue
        head = passes[device][place[device]] if place[device] < len(passes[device]) else ""
        there = arrival(device, head) if head else None
        full = bool(head) and head in "fF" and held[device] == limit and share is not None
        soonest = now + takes[head] + transfer if head and there is None else there or 0.0
        letter = head if head and there is not None and there <= now and not full else ""
        if (
            not letter
            and due[device]
            and share is not None
            and (not head or full or (soonest > now and soonest - now >= share * weight))
        ):
            letter = due[device].popleft()
        if not letter:
            if there is not None and there > now:
                heapq.heappush(events, (there, device))
            continue
        if share is None or letter not in "wW":
            place[device] += 1
        free[device] = end = now + takes[letter]
        ends[letter, device, done[device][letter]] = end
        done[device][letter] += 1
        held[device] += (letter in "fF") - (letter in "wW")
        if letter in _WEIGHTS:
            due[device].append(_WEIGHTS[letter])
        ran[device].append(letter)
        heapq.heappush(events, (end, device))
        for other in (device - 1, device + 1):
            if 0 <= other < count:
                heapq.heappush(events, (max(end + transfer, free[other]), other))
                if free[other] <= now:
                    heapq.heappush(events, (now, other))
    whole = sum(map(len, ran)) == 3 * sum(one in "FfiI" for letters in passes for one in letters) // 2
    return (max(free) if whole else float("inf")), ["".join(one) for one in ran]
