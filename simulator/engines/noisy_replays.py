"""Noisy replays: the seconds of one program in many replays, each with noise of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from hardware_profiles import Floats
from simulator.compiled.garbage import no_garbage_collection
from simulator.engines import event_loop
from simulator.engines.recurrence import makespans_of_values, narrow, order_of
from simulator.engines.timeline import Timeline, timeline_of
from simulator.lowering.program import NoisyProgram

DRAWN = 2**21
"""Factors that are drawn at once, about: 16 MB."""


Replays = Callable[[Floats], Floats]
"""The seconds of a program with each row of factors: those that every engine finds, to the last bit."""


def portions(noisy: NoisyProgram, replays: int) -> Iterator[int]:
    """How many replays to draw for at once, until all are drawn."""
    at_once = max(8, DRAWN // noisy.drawn // 8 * 8)
    for first in range(0, replays, at_once):
        yield min(at_once, replays - first)


def one_by_one(noisy: NoisyProgram, seconds_of: Callable[[Timeline], float], *, contention: bool) -> Replays:
    """Replays on the event loop; seconds_of: a timeline, of which nobody asks the transfers."""
    base = noisy.base
    prepared = event_loop.prepare(base, contention=contention)
    empty = timeline_of(base, np.zeros(len(base)), np.zeros(len(base)))

    def seconds(factors: Floats) -> float:
        start, end, _ = event_loop.run(prepared.slowed(factors[noisy.of_task], factors[noisy.of_class]))
        return seconds_of(replace(empty, start=start if base.together is None else start[base.together], end=end))

    def several(rows: Floats) -> Floats:
        with no_garbage_collection():
            return np.array([seconds(one) for one in rows])

    return several


def makespans(noisy: NoisyProgram) -> Replays:
    """Replays of a program without queues, eight at once. Each transfer is a task on a lane of its own, and so has seconds of its
    own."""
    base = noisy.base
    deliveries, tasks = base.deliveries(), len(base)
    moving = np.flatnonzero(deliveries.transfer)
    producer = np.repeat(np.arange(tasks), np.diff(deliveries.offsets))
    carrier = producer.copy()
    carrier[moving] = tasks + np.arange(len(moving))
    dependency = np.empty_like(base.dependency)
    dependency[deliveries.rows] = np.repeat(carrier, np.diff(deliveries.row_offsets))
    rows, one_each = len(dependency), np.arange(1, len(moving) + 1)
    spread = replace(
        base,
        lane_offsets=np.concatenate([base.lane_offsets, tasks + one_each]),
        lane_sharing=np.full(base.lanes + len(moving), -1, dtype=np.int32),
        seconds=np.concatenate([base.seconds, base.transfer_seconds[deliveries.transfer[moving]]]),
        dependency_offsets=np.concatenate([base.dependency_offsets, rows + one_each]),
        dependency=np.concatenate([dependency, producer[moving]]).astype(np.int32),
        transfer=np.zeros(rows + len(moving), dtype=np.int32),
    )
    order, lags = order_of(spread), np.zeros(1)
    value = narrow(order.task)
    number = np.concatenate([noisy.of_task, noisy.of_class[deliveries.transfer[moving]]])

    def several(factors: Floats) -> Floats:
        return np.asarray(makespans_of_values(order, value, spread.seconds * factors[:, number], lags))

    return several
