"""Staircase: seconds of a micro-batch in the steady state of XPipe's order, in closed form, and the cuts that make them least.

Stage k of N has N - k micro-batches in flight and then alternates (`simulator.schedules.weight_versions`). So behind the forward
of micro-batch i on stages k to m, the next op of m is the backward of micro-batch i - (N - m) + 1; once that one has come back to
k, the forward of i + m - k + 1 follows there. Of such circles, which the order closes, the longest decides; T micro-batches have
one update:

    seconds >= (sum of F + B on stages k..m + sum of both transfers between them + (U_k + P_k + P_m) / T) / (m - k + 1)

for all k <= m; k = m is a stage that is always busy. Nor is it less than any link is busy. A replay attains the most of these
where micro-batches are equal, no two links share a channel, and updates (U) and predictions (P) fall into the circles of their
mini-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from planners.estimate.memory import RangeBytes
from simulator import SLACK, kernel

PRECISION = 1e-6
"""Relative width of the interval at which the bisection of `fastest_staircase` ends."""

SAFE = 1e-9
"""Share by which rounding may exceed the memory of a device."""


class Staircase(NamedTuple):
    """Seconds and bytes of straight pipelines of S stages, for any cuts of L layers; D kinds of device.

    before: float64 [D, L + 1]; seconds of a forward and a backward of a micro-batch of all layers before each cut; beside: [D],
    per stage
    updates, predictions: float64 [D, L + 1]; seconds of one, of all layers before each cut, divided by T
    kind: int64 [S]; kind of each stage's device
    lasting, busy: float64 [S - 1, L + 1]; of each link, by cut: seconds of both transfers of a micro-batch, and seconds for which
    they keep it busy
    held: bytes of stages, with all copies of their weights; room: float64 [S]; bytes of each device
    in_flight: float64 [S]; samples that each stage has in flight; samples: of the largest micro-batch
    waiting: float64 [L + 1]; bytes of a sample at each cut: of one micro-batch the input and the gradient wait at a stage
    """

    before: Floats
    beside: Floats
    updates: Floats
    predictions: Floats
    kind: Integers
    lasting: Floats
    busy: Floats
    held: RangeBytes
    room: Floats
    in_flight: Floats
    samples: float
    waiting: Floats


def fastest_staircase(costs: Staircase, least: float, most: float) -> tuple[float, tuple[int, ...]] | None:
    """Least seconds of a micro-batch over all cuts that fit, to PRECISION, and the cuts; None if no cuts are below `most`
    seconds.

    least: seconds that no cuts undercut
    """
    cuts = _cuts_within(costs, most * (1.0 - PRECISION))
    if not len(cuts):
        return None
    best, seconds = cuts, staircase_seconds(costs, cuts[:-1])
    while seconds - least > PRECISION * seconds:
        middle = (least + seconds) / 2.0
        cuts = _cuts_within(costs, middle)
        if len(cuts):
            best, seconds = cuts, min(middle, staircase_seconds(costs, cuts[:-1]))
        else:
            least = middle
    return seconds * (1.0 - SLACK), tuple(best[:-1].tolist())


def staircase_seconds(costs: Staircase, cuts: Sequence[int] | Integers) -> float:
    """Seconds of a micro-batch under these cuts."""
    return float(_seconds(costs, np.asarray(cuts, dtype=np.int64)))


@kernel()
def _seconds(costs: Staircase, cuts: Integers) -> float:
    """Seconds of a micro-batch under these cuts, by the formula of this module."""
    stages, places = len(costs.kind), costs.before.shape[1]
    bounds = np.zeros(stages + 1, dtype=np.int64)
    bounds[1:stages], bounds[stages] = cuts, places - 1
    longest = 0.0
    for first in range(stages):
        circle, kind = 0.0, costs.kind[first]
        turned = costs.updates[kind, bounds[first + 1]] - costs.updates[kind, bounds[first]]
        turned += costs.predictions[kind, bounds[first + 1]] - costs.predictions[kind, bounds[first]]
        for last in range(first, stages):
            kind = costs.kind[last]
            circle += costs.before[kind, bounds[last + 1]] - costs.before[kind, bounds[last]] + costs.beside[kind]
            if last > first:
                circle += costs.lasting[last - 1, bounds[last]]
                longest = max(longest, costs.busy[last - 1, bounds[last]])
            predicted = costs.predictions[kind, bounds[last + 1]] - costs.predictions[kind, bounds[last]]
            longest = max(longest, (circle + turned + predicted) / (last - first + 1))
    return longest


@kernel()
def _cuts_within(costs: Staircase, limit: float) -> Integers:
    """Cuts that fit and with which no circle takes more than `limit` seconds per micro-batch, with the number of layers behind
    them; [] if there are none.

    over[s, j]: the least, over cuts of the stages before, of the most by which a circle that ends with stage s, before layer j,
    exceeds its limit. What follows is the same for all such cuts, and is the better the less that is.
    """
    stages, places = len(costs.kind), costs.before.shape[1]
    over = np.full((stages, places), np.inf)
    begins = np.zeros((stages, places), dtype=np.int64)
    for s in range(stages):
        kind, flights, reached = costs.kind[s], costs.in_flight[s], False
        before, updates, predictions = costs.before[kind], costs.updates[kind], costs.predictions[kind]
        first_end = s + 1 if s < stages - 1 else places - 1
        for end in range(first_end, places - (stages - 1 - s)):
            for begin in range(end - 1 if s else 0, s - 1 if s else -1, -1):
                own = before[end] - before[begin] + costs.beside[kind] - limit
                if own > 0.0:
                    break
                predicted = predictions[end] - predictions[begin]
                here = own + updates[end] - updates[begin] + predicted
                if s:
                    if over[s - 1, begin] == np.inf or costs.busy[s - 1, begin] > limit:
                        continue
                    here = max(here, over[s - 1, begin] + costs.lasting[s - 1, begin] + own)
                if here + predicted > 0.0 or here >= over[s, end]:
                    continue
                kept = (costs.held.kept[end] - costs.held.kept[begin] + costs.held.entering[begin, end]) * flights
                needed = costs.held.states[end] - costs.held.states[begin] + kept + costs.held.in_work[begin, end]
                for_one = costs.held.made[begin, end] + costs.waiting[begin] + costs.waiting[end]
                if needed + for_one * costs.samples > costs.room[s] * (1.0 + SAFE):
                    continue
                over[s, end], begins[s, end], reached = here, begin, True
        if not reached:
            return begins[0, :0]
    cuts, end = np.empty(stages, dtype=np.int64), places - 1
    if over[stages - 1, end] == np.inf:
        return begins[0, :0]
    for s in range(stages - 1, -1, -1):
        cuts[s] = end
        end = begins[s, end]
    return cuts
