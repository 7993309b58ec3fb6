"""Event heap: the events that wait in the compiled event loop, by moment and then in the order in which they were caused."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from simulator.compiled.numba_kernels import kernel

LANE, ARRIVAL, HEAD, SHARE, ARRIVED, LEAVES = range(6)
"""Kinds of events; `simulator.engines.event_loop` says what happens at each."""

KINDS = 6
"""An event is the number kind + KINDS · index."""

EARLIER = 2**32
"""More than there are numbers of events: in the heap an event stands behind how many were caused before it, as one number."""


class Heap(NamedTuple):
    """Events that wait, a binary heap by (time, number).

    number: events that were caused before · EARLIER + event; counters: events waiting, events so far
    """

    time: Floats
    number: Integers
    counters: Integers


def empty_heap(most: int) -> Heap:
    """A heap with room for so many events; unused room takes no memory."""
    return Heap(np.empty(most), np.empty(most, dtype=np.int64), np.zeros(2, dtype=np.int64))


@kernel(inner=True, borrows=True)
def push(heap: Heap, time: float, event: int) -> None:
    """Add an event, behind those of the same time."""
    times, numbers, counters = heap
    place, number = counters[0], counters[1] * EARLIER + event
    counters[0] += 1
    counters[1] += 1
    while place > 0:
        parent = (place - 1) // 2
        if times[parent] <= time:  # an earlier event of the same time has the lower number
            break
        times[place], numbers[place] = times[parent], numbers[parent]
        place = parent
    times[place], numbers[place] = time, number


@kernel(inner=True, borrows=True)
def pop(heap: Heap) -> None:
    """Drop the first event."""
    times, numbers, counters = heap
    counters[0] -= 1
    count = counters[0]
    time, number = times[count], numbers[count]
    place = 0
    while 2 * place + 1 < count:
        child = 2 * place + 1
        other = child + 1
        if other < count and (
            times[other] < times[child] or (times[other] == times[child] and numbers[other] < numbers[child])
        ):
            child = other
        if time < times[child] or (time == times[child] and number < numbers[child]):
            break
        times[place], numbers[place] = times[child], numbers[child]
        place = child
    times[place], numbers[place] = time, number
