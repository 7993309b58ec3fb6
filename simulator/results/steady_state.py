"""Steady state: seconds per sample of an asynchronous stream, read off its timeline.

A micro-batch is complete when its last backward on the input stage ends (then its input is used up). Between fill and drain the
completions of a stream whose durations are fixed repeat: after some period of micro-batches the same gaps come again. The
period is found, not assumed: round robins of 7, 9 and 11 replicas repeat after 693 micro-batches at the latest, but where the
second is the slowest its 9 decide. Seconds of whole periods over their samples are then exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardware_profiles import Floats, Integers
from simulator.engines.timeline import Timeline
from simulator.schedules.ops import OpKind

MOST_DRIFT = 1e-3
"""Difference between the rates of both halves of a stream below which it counts as steady."""

LEAST_WATCHED, MOST_PERIOD = 16, 512
"""Micro-batches for which gaps must repeat before they count as repeating: at least and at most."""

TOLERANCE = 1e-10
"""Part of the time since the start by which two gaps may differ and count as equal: sums of that many terms are rounded."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Steady state of an asynchronous stream: its seconds per sample, and how reliable they are.

    seconds_per_sample: in whole periods; where the completions do not repeat, over as many micro-batches as stand between fill
        and drain
    period: micro-batches after which completions repeat, 0 where they do not
    drift: where they do not, the relative difference between the rates of the first half of those micro-batches and the second;
        1 where both take no time, though the stream does
    begin, end: between which moments of the timeline they were read, in seconds
    """

    seconds_per_sample: float
    period: int
    drift: float
    begin: float
    end: float

    @property
    def reached(self) -> bool:
        """Whether the stream is long enough to show a steady state."""
        return self.drift <= MOST_DRIFT

    @property
    def uncertainty(self) -> float:
        """Relative error of the seconds: the tolerance within which gaps count as equal, or without a period the drift."""
        if not self.period:
            return MOST_DRIFT + self.drift
        return TOLERANCE * self.end / (self.end - self.begin) if self.end > self.begin else 0.0


def steady_state(timeline: Timeline, samples: Integers, turns: int) -> SteadyState:
    """The steady state of a stream.

    samples: int64 [micro-batches of the stream, at least 2]; of each
    turns: micro-batches after which every turn-taking of the plan (replicas, sizes, updates) begins anew
    Gaps count as repeating when they have done so for as many micro-batches as turns, LEAST_WATCHED and devices, but at most
    MOST_PERIOD, and for one period more.
    """
    done = _completions(timeline, len(samples))
    first, last = _between_fill_and_drain(timeline, done)
    gaps, sizes = np.diff(done[first : last + 1]), samples[first + 1 : last + 1]
    watched = min(max(turns, LEAST_WATCHED, len(timeline.devices())), MOST_PERIOD)
    period = _period(gaps, sizes, watched, TOLERANCE * done[last])
    if period:
        whole = (watched + period) // period * period
        begin = last - whole
        seconds = float((done[last] - done[begin]) / samples[begin + 1 : last + 1].sum())
        return SteadyState(seconds, period, 0.0, float(done[begin]), float(done[last]))
    half = max(1, len(gaps) // 2 // turns * turns or len(gaps) // 2)
    rates = [
        float((done[end] - done[end - half]) / samples[end - half + 1 : end + 1].sum())
        for end in (max(half, last - half), last)
    ]
    begin = max(0, last - 2 * half)
    overall = float((done[last] - done[begin]) / samples[begin + 1 : last + 1].sum())
    drift = abs(rates[0] - rates[1]) / overall if overall > 0 else float(done[-1] > 0)
    return SteadyState(overall, 0, drift, float(done[begin]), float(done[last]))


def _completions(timeline: Timeline, count: int) -> Floats:
    """Time at which each micro-batch and all before it are complete, float64 [count]."""
    rows = np.flatnonzero(np.isin(timeline.kind, (OpKind.BACKWARD, OpKind.INPUT_GRADIENT)) & (timeline.stage == 0))
    done = np.zeros(count)
    np.maximum.at(done, timeline.microbatch[rows], timeline.end[rows])
    return np.maximum.accumulate(done)


def _between_fill_and_drain(timeline: Timeline, done: Floats) -> tuple[int, int]:
    """First and last micro-batch of the middle of a stream, between fill and drain.

    The drain begins when the first replica of the input stage that has samples has ended its last forward: until then nothing is
    as it would not be in a longer stream. The first quarter of what is before counts as fill.
    """
    forward = np.flatnonzero((timeline.stage == 0) & (timeline.kind == OpKind.FORWARD) & (timeline.samples > 0))
    lanes, index = np.unique(timeline.lane[forward], return_inverse=True)
    ends = np.zeros(len(lanes))
    np.maximum.at(ends, index, timeline.end[forward])
    last = int(np.searchsorted(done, ends.min(), side="right")) - 1
    last = max(last, min(1, len(done) - 1))
    return last // 4, last


def _period(gaps: Floats, sizes: Integers, watched: int, tolerance: float) -> int:
    """The smallest number of micro-batches after which gaps and sizes repeat, over the last `watched` of them; 0 if none."""
    for period in range(1, len(gaps) - watched + 1):
        if abs(gaps[-1] - gaps[-1 - period]) <= tolerance:
            now, before = slice(len(gaps) - watched, None), slice(len(gaps) - watched - period, len(gaps) - period)
            if (sizes[now] == sizes[before]).all() and (np.abs(gaps[now] - gaps[before]) <= tolerance).all():
                return period
    return 0
