"""Timing: how benchmarks measure CPU seconds and memory: the best of several calls, as other work only slows one down."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")

TICK = 1e-7
"""Seconds that a clock can tell: no call takes less."""


def least_seconds(
    call: Callable[[], Made], *, calls: int = 1, seconds: float = 0.0, wall: bool = False
) -> tuple[Made, float]:
    """What a call makes, and the least CPU seconds of one.

    calls: made at least, and more until all have taken `seconds`; wall: by the wall clock, which all threads share
    """
    clock = time.perf_counter if wall else time.process_time
    made, least, total = 0, math.inf, 0.0
    while made < calls or total < seconds:
        began = clock()
        result = call()
        spent = max(clock() - began, TICK)
        made, least, total = made + 1, min(least, spent), total + spent
    return result, least


def cpu_seconds(body: Callable[[], object]) -> float:
    """Least CPU seconds of three calls, or of as many as fit in 0.3 s."""
    gc.collect()
    return least_seconds(body, calls=3, seconds=0.3)[1]


def rate(some: Callable[[], int], seconds: float) -> float:
    """Evaluations per CPU second of the best of as many calls as fit in so many seconds; each makes as many evaluations."""
    some()  # compiles, fills tables
    count, spent = least_seconds(some, seconds=seconds)
    return count / spent


def children_seconds() -> float:
    """CPU seconds of all processes that this one has started and waited for."""
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peak_bytes() -> int:
    """The most memory that this process has had so far, in bytes; Linux tells it in KiB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
