"""Lower bound on the makespan of every order that keeps to the limits of memory.

Ops run one at a time on a device and are not interrupted; a micro-batch keeps its memory from the start of a forward on. Nothing
is assumed of the order of micro-batches: naming them anew by their turn changes no time (see `instance`), so that "the k-th" is
the k-th of any order. Each term holds for a device, from the least times that a chain allows:

    head   from 0 to the start of a forward;   round  from there to the end of its input gradient;   tail  from there to the end

work: first head + seconds of all ops + least time after the last of them
warm-up and drain: before its first input gradient a device runs forwards only, as many as its memory holds, and waits for the
    rest of the shortest round; from its last forward on it runs what its memory still holds, and waits for the rest of round and
    tail. The two do not overlap where not all forwards fit at once: then both are added to the work, else the longer of them
rounds: a forward waits for the input gradient k micro-batches before it where memory holds k; and where it holds no weight
    gradient's share beside them, for that one's weight gradient, or for the next input gradient
area: what micro-batches keep, times how long they do, fits into limit times time
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from planners.scheduler.instance import WEIGHT, Floats, ScheduleInstance
from simulator import kernel

Objective = Literal["makespan", "longest-stage"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)


class Ways(NamedTuple):
    """Least seconds of each position, float64 [P]: before a forward, from its start to its input gradient's end, after that."""

    head: Floats
    round: Floats
    tail: Floats


def ways_of(instance: ScheduleInstance) -> Ways:
    """The least times of every position's chain."""
    forward, backward, weight = instance.seconds
    positions = len(forward)
    head, around, tail = np.zeros(positions), np.zeros(positions), np.zeros(positions)
    for p in range(positions):
        if not instance.first[p]:
            head[p] = head[p - 1] + forward[p - 1] + instance.lag[p]
        before = 0.0 if instance.first[p] else instance.lag[p] + backward[p - 1] + tail[p - 1]
        tail[p] = max(before, weight[p])
    for p in reversed(range(positions)):
        beyond = 0.0 if instance.last[p] else around[p + 1] + 2 * instance.lag[p + 1]
        around[p] = forward[p] + beyond + backward[p]
    return Ways(head, around, tail)


def lower_bound(instance: ScheduleInstance, objective: Objective = "makespan") -> float:
    """Seconds that no order within the limits can beat: of everything, or of the device that is busy longest.

    objective: `longest-stage` bounds the longest time from a device's first start to its last end
    """
    ways = ways_of(instance)
    if objective == "longest-stage":  # heads count from the first forward of the device, tails end with its own ops
        base: dict[int, float] = {}
        for p in range(len(instance.device)):
            base[int(instance.device[p])] = min(base.get(int(instance.device[p]), np.inf), ways.head[p])
        one_chain = bool(instance.first.sum() == 1)
        start = np.array([base[int(one)] for one in instance.device])
        ways = Ways(
            ways.head - start if one_chain else np.zeros(len(start)), ways.round, instance.seconds[WEIGHT].copy()
        )
    bound = float(_bound(instance, ways))
    ops = int(instance.offsets[-1])
    whole = bool((instance.seconds % 1 == 0).all() and (instance.lag % 1 == 0).all() and bound * ops < 2**53)
    return bound if whole else bound * (1.0 - ops * 2.0**-52)  # a replay adds in another order


@kernel(error_model="numpy")
def _bound(instance: ScheduleInstance, ways: Ways) -> float:
    """The largest term of any device."""
    _, count, seconds, split, _, _, _, keep, freed, _, limits, _, held, held_at = instance
    head, around, tail = ways
    bound = 0.0
    for device in range(len(limits)):
        limit = limits[device]
        load, opens, after, back = 0.0, np.inf, np.inf, np.inf
        least_kept, least_left, kept, longest_backward, longest_weight = np.inf, np.inf, 0.0, 0.0, 0.0
        ops, area = 0, 0.0
        for h in range(held_at[device], held_at[device + 1]):
            p = held[h]
            if count[p] == 0:
                continue
            left = keep[p] - freed[p]
            ops += count[p]
            load += count[p] * (seconds[0, p] + seconds[1, p] + seconds[2, p])
            kept += float(count[p]) * keep[p]
            area += count[p] * (keep[p] * around[p] + left * seconds[2, p])
            opens = min(opens, head[p])
            after = min(after, 0.0 if split[p] else tail[p])
            back = min(back, head[p] + around[p] - seconds[1, p])
            least_kept = min(least_kept, keep[p])
            if split[p]:
                least_left = min(least_left, left)
            longest_backward = max(longest_backward, seconds[1, p] + seconds[2, p])
            longest_weight = max(longest_weight, seconds[2, p])
            bound = max(bound, head[p] + around[p] + tail[p])
        if ops == 0:
            continue
        # forwards before the first input gradient: the longest ones that memory holds
        fit = ops if least_kept * ops <= limit else int(limit // least_kept)
        room, forwards, above = fit, 0.0, np.inf
        while room > 0:
            longest, number = -1.0, 0
            for h in range(held_at[device], held_at[device + 1]):
                p = held[h]
                if seconds[0, p] < above and count[p] > 0:
                    if seconds[0, p] > longest:
                        longest, number = seconds[0, p], 0
                    if seconds[0, p] == longest:
                        number += count[p]
            if number == 0:
                break
            forwards += min(number, room) * longest
            room -= min(number, room)
            above = longest
        warm_up = max(0.0, back - opens - forwards)
        # what is left to do when the last forward starts: x input gradients with their weight gradients, y of these alone
        work = 0.0
        for x in range(fit + 1):
            rest = limit - x * least_kept
            y = ops - x if least_left * (ops - x) <= rest else int(rest // least_left)
            work = max(work, x * longest_backward + y * longest_weight)
        drain = np.inf
        for h in range(held_at[device], held_at[device + 1]):
            p = held[h]
            later = h + 1 < held_at[device + 1] and not instance.first[p + 1 : held[h + 1] + 1].any()
            if count[p] > 0 and not later:
                drain = min(drain, max(0.0, around[p] + tail[p] - seconds[0, p] - work))
        bound = max(bound, opens + load + after)
        if kept > limit:
            bound = max(bound, opens + load + warm_up + drain)
            bound = max(bound, opens + area / limit)
        else:
            bound = max(bound, opens + load + max(warm_up, drain))
        for h in range(held_at[device], held_at[device + 1]):
            p = held[h]
            if count[p] > 0 and keep[p] * count[p] > limit:
                fit = limit // keep[p]
                waits = around[p]
                if limit - fit * keep[p] < keep[p] - freed[p]:
                    waits += min(seconds[2, p], seconds[1, p])
                full = (count[p] - 1) // fit
                rest = (count[p] - 1) - full * fit
                bound = max(bound, head[p] + full * waits + rest * seconds[0, p] + around[p] + tail[p])
    return bound
