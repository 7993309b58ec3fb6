"""Sequencing: an order made from keys, one op at a time over all devices: of the ops that may run, the one with the least key.

An op may run if it has what it needs, fits into memory, and leaves all that is in flight able to end (see `list_scheduling`). So
any keys make an order that runs, and there are keys for every such order, also for those in which a device waits for what is not
yet known to come. Keys drawn at random begin anywhere; those of a known order, but for some micro-batches that are moved as a
whole and everywhere at once, begin where no exchange of single ops leads.
"""

from __future__ import annotations

import numpy as np

from hardware_profiles import Flags, Floats
from planners.scheduler.bound import ways_of
from planners.scheduler.instance import Codes, ScheduleInstance
from planners.scheduler.list_scheduling import can_finish
from planners.scheduler.order_replay import Trace
from simulator import kernel

SHIFTS = (0.02, 0.1, 0.3, 1.0)
"""Shares of the makespan by which micro-batches are moved, at most."""

MOVED = (1, 1, 2, 3)
"""Numbers of micro-batches that are moved, drawn from these."""

PACES, NOISES = (0.0, 0.3, 0.7, 1.0, 1.5), (0.0, 0.1, 0.5)
"""Of random keys. PACES: time between micro-batches, in units of the busiest device's seconds per micro-batch; NOISES: noise of
every op, in units of the longest round.
"""


def random_keys(instance: ScheduleInstance, random: np.random.Generator) -> Floats:
    """Random keys, float64 [3 P, M]: as if every micro-batch passed its chain undisturbed, begun at a time drawn for it."""
    ways, most = ways_of(instance), int(instance.passes.max())
    times = np.stack([ways.head, ways.head + ways.round - instance.seconds[1], ways.head + ways.round])
    period = float(np.bincount(instance.device, weights=instance.seconds.sum(axis=0)).max())
    chain = np.cumsum(instance.first) - 1
    gaps = random.random((int(chain[-1]) + 1, most)) * 2.0 * period * random.choice(PACES)
    gaps[:, 0] = random.random(len(gaps)) * period * most * random.integers(0, 2, len(gaps))
    begins = np.cumsum(gaps, axis=1)
    late = np.array([0.0, 0.0, random.random() * period * most * random.integers(0, 2)])
    keys = np.repeat((times + late[:, None]).ravel()[:, None], most, axis=1) + np.tile(begins[chain], (3, 1))
    noise = random.choice(NOISES) * float(ways.round.max())
    return np.sort(keys + noise * random.random(keys.shape), axis=1)


def moved_keys(instance: ScheduleInstance, order: Codes, trace: Trace, random: np.random.Generator) -> Floats:
    """The keys of an order with some micro-batches moved, all their ops or only forwards or backwards, float64 [3 P, M].

    trace: of the order's replay
    """
    keys = np.zeros((3 * len(instance.device), int(instance.passes.max())))
    times_of(instance, order, trace, keys)
    chain = np.tile(np.cumsum(instance.first) - 1, 3)
    kind = np.repeat(np.arange(3), len(instance.device))
    for _ in range(int(random.choice(MOVED))):
        number, one = int(random.integers(keys.shape[1])), int(random.integers(int(chain[-1]) + 1))
        part = ((0, 2), (0, 2), (0, 0), (1, 2), (2, 2))[int(random.integers(5))]
        rows = (chain == one) & (kind >= part[0]) & (kind <= part[1])
        keys[rows, number] += random.uniform(-1.0, 1.0) * random.choice(SHIFTS) * trace.finish.max()
    return np.sort(keys, axis=1)


@kernel()
def times_of(instance: ScheduleInstance, order: Codes, trace: Trace, keys: Floats) -> None:
    """Fill `keys` with when each op of an order begins, float64 [3 P, M], infinite where there is no such op; trace: of its
    replay
    """
    positions = len(instance.device)
    most = len(trace.ends) // (2 * positions)
    done = np.zeros(3 * positions, dtype=np.int64)
    keys[:] = np.inf
    for device in range(len(instance.limit)):
        now = 0.0
        for row in range(instance.offsets[device], instance.offsets[device + 1]):
            code = order[row]
            now = trace.ends[code * most + done[code]] if code < 2 * positions else now + instance.takes[code]
            keys[code, done[code]] = now - instance.takes[code]
            done[code] += 1


@kernel(error_model="numpy")
def sequence(instance: ScheduleInstance, keys: Floats, order: Codes) -> bool:
    """Fill `order`, int16 [N], with the ops that may run, least key first; True if all come to run, as they do where any order
    runs.
    """
    positions, devices = len(instance.device), len(instance.limit)
    done, row_of = np.zeros(3 * positions, dtype=np.int64), instance.offsets[:devices].copy()
    memory = np.zeros(devices, dtype=np.int64)
    refused: Flags = np.zeros(positions, dtype=np.bool_)  # until something is freed
    left = instance.offsets[devices]
    while left > 0:
        best, least = -1, np.inf
        for code in range(3 * positions):
            p, number, before = code % positions, done[code], instance.source[code]
            if number == instance.passes[p] or (best >= 0 and keys[code, number] >= least):
                continue
            if (before >= 0 and done[before] <= number) or (code >= positions and done[code - positions] <= number):
                continue
            if code < positions:
                device = instance.device[p]
                short = refused[p] or memory[device] + instance.keep[p] > instance.limit[device]
                if short or not can_finish(instance, done, p):
                    refused[p] = True
                    continue
            elif code >= 2 * positions and not instance.split[p]:
                continue
            best, least = code, keys[code, number]
        if best < 0:
            return False
        device = instance.device[best % positions]
        order[row_of[device]] = best
        row_of[device] += 1
        done[best] += 1
        left -= 1
        memory[device] += instance.change[best]
        if best >= positions:
            refused[:] = False
    return True
