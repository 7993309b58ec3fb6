"""Steady state: a round of ops, of one micro-batch of each chain or several, that all devices repeat endlessly as fast as they
can.

A device runs its codes once per round, in a fixed order; code c of round r is micro-batch r - delay[c] of its chain. However long
the stream, rounds then follow each other at the same pace: the largest ratio of seconds to rounds round any cycle of waits (of a
device for its op before, of an op for what it needs). That ratio depends neither on how the stream begins nor on how it ends, nor
on the number of micro-batches. A stream of given length is the rounds without the micro-batches that it does not have.

A round of several micro-batches is one of as many twins of each chain, on the same devices: what repeats is then longer, and may
be quicker for each of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Floats, Integers
from planners.scheduler.annealing import EXPONENTIAL, REACH, draw, keep
from planners.scheduler.blocks import BuildingBlock
from planners.scheduler.instance import Codes, ScheduleInstance, from_positions
from simulator import kernel

EDGES = 3
"""Waits of an op, at most: for its device, and for two ops that it needs."""


class Rounds(NamedTuple):
    """The round of ops that every device repeats.

    codes: int16, those of device d at offsets[d]:offsets[d + 1], int64 [D + 1]; each code of the device once
    delays: int64 [3 P]; rounds that the first micro-batch of each code begins after the first round, at least 0
    """

    codes: Codes
    offsets: Integers
    delays: Integers


def plain_rounds(instance: ScheduleInstance) -> Rounds:
    """Rounds that run one micro-batch after the other to its end; they fit wherever any order does."""
    positions = len(instance.device)
    chain = np.cumsum(instance.first) - 1
    down = np.arange(positions) * 1.0
    up = 3.0 * positions - down
    times = np.stack([down, up, up + 0.5]) + 4.0 * positions * chain
    return _rounds(instance, times, 4.0 * positions * (int(chain[-1]) + 1))


def rounds_of(instance: ScheduleInstance, block: BuildingBlock) -> Rounds:
    """The rounds of a building block, with weight gradients right behind their input gradients."""
    after = block.starts[1] + instance.seconds[1]
    return _rounds(instance, np.stack([block.starts[0], block.starts[1], after]), block.period)


def _rounds(instance: ScheduleInstance, times: Floats, period: float) -> Rounds:
    """Rounds in which each code of the first micro-batch begins at its time: float64 [3, P], by kind and position."""
    positions = len(instance.device)
    delays, within = np.divmod(times.ravel(), period)
    codes = np.concatenate([np.arange(2 * positions), 2 * positions + np.flatnonzero(instance.split)])
    device = np.tile(instance.device, 3)[codes]
    codes = codes[np.lexsort((times.ravel()[codes], within[codes], device))]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(device, minlength=len(instance.limit)))])
    return Rounds(codes.astype(np.int16), offsets, (delays - delays.min()).astype(np.int64))


def with_twins(instance: ScheduleInstance, count: int) -> ScheduleInstance:
    """The same problem with its micro-batches shared out in turn over `count` twins of each chain; positions twin after twin."""
    turn = np.repeat(np.arange(count), len(instance.device))
    columns: list[Any] = [np.tile(column, count) for column in instance[:10]]
    columns[1] = (columns[1] + count - 1 - turn) // count
    return from_positions(tuple(columns), instance.limit)


def without_twins(codes: Codes, positions: int, count: int) -> Codes:
    """The order of an instance with twins as an order of the problem itself, which is no slower (see `instance`); positions: of
    the problem
    """
    kind, position = np.divmod(codes, positions * count)
    merged: Codes = (kind * positions + position % positions).astype(np.int16)
    return merged


def rounds_of_order(instance: ScheduleInstance, codes: Codes, offsets: Integers, count: int) -> Rounds:
    """Rounds of twins that run a whole order of `count` micro-batches of each chain; codes: at offsets: int64 [D + 1]"""
    positions = len(instance.device)
    number = np.zeros(len(codes), dtype=np.int64)
    for code in np.unique(codes):
        number[codes == code] = np.arange(int((codes == code).sum()))
    kind, position = np.divmod(codes.astype(np.int64), positions)
    twins = (kind * count + number) * positions + position
    return Rounds(twins.astype(np.int16), offsets.copy(), np.zeros(3 * positions * count, dtype=np.int64))


def rounds_again(instance: ScheduleInstance, rounds: Rounds, count: int) -> Rounds:
    """Rounds of twins that run `count` of the given rounds (of one micro-batch of each chain) one after the other."""
    positions = len(instance.device)
    parts, delays = [], np.zeros(3 * positions * count, dtype=np.int64)
    for begins, ends in zip(rounds.offsets[:-1], rounds.offsets[1:], strict=True):
        codes = np.tile(rounds.codes[begins:ends].astype(np.int64), count)
        ahead = (
            np.repeat(np.arange(count), ends - begins) - rounds.delays[codes]
        )  # micro-batch in the first of the rounds
        turns, twin = np.divmod(ahead, count)
        twins = (codes // positions * count + twin) * positions + codes % positions
        delays[twins] = -turns
        parts.append(twins)
    return Rounds(np.concatenate(parts).astype(np.int16), rounds.offsets * count, delays)


def stream_of(instance: ScheduleInstance, rounds: Rounds) -> Codes:
    """The order that rounds make of the instance's micro-batches, int16 [N], device by device."""
    count = np.tile(instance.passes, 3)
    delays = rounds.delays - rounds.delays.min()
    parts = []
    for begins, ends in zip(rounds.offsets[:-1], rounds.offsets[1:], strict=True):
        codes = rounds.codes[begins:ends]
        number = np.arange(int(delays.max() + count.max()))[:, None] - delays[codes]
        parts.append(np.broadcast_to(codes, number.shape)[(number >= 0) & (number < count[codes])])
    return np.concatenate(parts)


@kernel(error_model="numpy")
def period_of(instance: ScheduleInstance, rounds: Rounds, least: float) -> float:
    """Seconds of a round; infinite for rounds that deadlock or break a limit; least: a lower bound on them"""
    return _period(instance, rounds, least, np.empty(3 * len(instance.device)))


@kernel(error_model="numpy")
def without_delay(instance: ScheduleInstance, rounds: Rounds, period: float) -> Rounds:
    """The rounds with chains and gradients begun as many rounds earlier as the period permits, so that streams end sooner.

    A code that begins in a round at the time that `_period` found may begin in an earlier one, if what it awaits is over then.
    That a chain is named by other micro-batches changes neither what a device keeps nor the pace.
    """
    codes, offsets, delays = rounds
    positions, start = len(instance.device), np.empty(3 * len(instance.device))
    sooner = Rounds(codes, offsets, delays.copy())
    if period == 0.0 or _period(instance, rounds, period, start) > period:
        return rounds
    begins = start[:positions] + period * delays[:positions]
    turns = np.floor((begins - begins[instance.first].min()) / period + 1e-9).astype(np.int64)
    first = 0
    for p in range(positions):
        first = p if instance.first[p] else first
        for kind in range(3):
            sooner.delays[kind * positions + p] -= turns[first]
    for kind in (1, 2):
        for p in range(positions - 1, -1, -1):
            code = kind * positions + p
            other = code - positions
            least = sooner.delays[other] + _turns_apart(instance, start, period, other, code)
            if kind == 1 and instance.source[code] >= 0:
                other = instance.source[code]
                least = max(least, sooner.delays[other] + _turns_apart(instance, start, period, other, code))
            sooner.delays[code] = min(sooner.delays[code], least)
    return sooner if _period(instance, sooner, period, start) <= period else rounds


@kernel(inner=True, error_model="numpy", borrows=True)
def _turns_apart(instance: ScheduleInstance, start: Floats, period: float, other: int | np.int64, code: int) -> int:
    """Least number of rounds by which a code comes behind another that it awaits, where they begin in a round at `start`."""
    ready = start[other] + instance.takes[other] + (instance.delay[code] if other == instance.source[code] else 0.0)
    return int(np.ceil((ready - start[code]) / period - 1e-9))


@kernel(inner=True, error_model="numpy")
def _period(instance: ScheduleInstance, rounds: Rounds, least: float, start: Floats) -> float:
    """Seconds of a round, as of `period_of`; fills start, float64 [3 P], with when each code begins in a round, where they are
    finite.
    """
    codes, offsets, delays = rounds
    if not _holds(instance, rounds):
        return np.inf
    positions, nodes = len(instance.device), 3 * len(instance.device)
    before = np.full((EDGES, nodes), -1, dtype=np.int64)  # code that each waits for
    waits, turns = np.zeros((EDGES, nodes)), np.zeros((EDGES, nodes), dtype=np.int64)  # seconds and rounds between them
    for device in range(len(instance.limit)):
        for i in range(offsets[device], offsets[device + 1]):
            code = int(codes[i])
            other = int(codes[i - 1] if i > offsets[device] else codes[offsets[device + 1] - 1])
            before[0, code], turns[0, code] = other, 1 if i == offsets[device] else 0
            before[1, code], waits[1, code] = instance.source[code], instance.delay[code]
            if code >= positions:
                before[2, code] = code - positions
            for edge in range(1, EDGES):
                if before[edge, code] >= 0:
                    turns[edge, code] = delays[code] - delays[before[edge, code]]
            for edge in range(EDGES):
                if before[edge, code] >= 0:
                    waits[edge, code] += instance.takes[before[edge, code]]
    cause = np.empty(nodes, dtype=np.int64)
    period = least
    while True:  # every turn finds a slower cycle; there is a finite number of them
        start[:] = 0.0
        late = -1
        for _ in range(len(codes) + 1):
            late = -1
            for i in range(len(codes)):
                code = int(codes[i])
                for edge in range(EDGES):
                    if before[edge, code] >= 0:
                        time = start[before[edge, code]] + waits[edge, code] - period * turns[edge, code]
                        if time > start[code] + 1e-9 * period:
                            start[code], cause[code], late = time, edge, code
            if late < 0:
                return period
        for _ in range(len(codes)):
            late = before[cause[late], late]
        seconds, cycle, code = 0.0, 0, late
        while True:
            edge = cause[code]
            seconds += waits[edge, code]
            cycle += turns[edge, code]
            code = before[edge, code]
            if code == late:
                break
        if cycle <= 0:
            return np.inf
        if seconds / cycle <= period:  # slower by no more than rounding
            return period
        period = seconds / cycle


@kernel()
def _holds(instance: ScheduleInstance, rounds: Rounds) -> bool:
    """Whether devices stay within their limits, and run an op only after the same micro-batch's earlier op on the device."""
    codes, offsets, delays = rounds
    positions = len(instance.device)
    ahead = -delays
    for device in range(len(instance.limit)):
        kept = 0
        for h in range(instance.held_offsets[device], instance.held_offsets[device + 1]):
            p = instance.held[h]
            freed = ahead[positions + p] if not instance.split[p] else ahead[2 * positions + p]
            kept += instance.keep[p] * (ahead[p] - ahead[positions + p])
            kept += (instance.keep[p] - instance.freed[p]) * (ahead[positions + p] - freed)
        for i in range(offsets[device], offsets[device + 1]):
            code = int(codes[i])
            kept += instance.change[code]
            if kept > instance.limit[device] or (code >= positions and ahead[code] >= ahead[code - positions]):
                return False
            ahead[code] += 1
    return True


@kernel(error_model="numpy")
def anneal_rounds(
    instance: ScheduleInstance, rounds: Rounds, steps: int, hot: float, least: float, random: NDArray[np.uint64]
) -> tuple[float, int]:
    """Anneal rounds; returns the seconds of the quickest ones met, which are left in `rounds`, and the steps taken.

    An op at a time is moved along what its device repeats, from one round into the next where it comes to its end; slower rounds
    are accepted as `anneal` does. hot: seconds, the first temperature; the last is 0; least: seconds at which to stop
    """
    codes, offsets, delays = rounds
    best, best_delays = codes.copy(), delays.copy()
    cost = period_of(instance, rounds, least)
    found, step = cost, 0
    kept_codes, kept_delays = codes.copy(), delays.copy()
    while step < steps and found > least * (1.0 + 1e-9):
        step += 1
        keep(codes, kept_codes)
        keep(delays, kept_delays)
        place = int(draw(random, len(codes)))
        device = 0
        while offsets[device + 1] <= place:
            device += 1
        begins, ends = int(offsets[device]), int(offsets[device + 1])
        later = draw(random, 2) == 1
        for _ in range(1 + draw(random, 1 + draw(random, REACH))):
            code = codes[place]
            beside = place + 1 if later else place - 1
            if beside == ends or beside < begins:  # it goes over into another round
                beside = begins if later else ends - 1
                delays[code] += 1 if later else -1
                delays[codes[beside]] -= 1 if later else -1
            codes[place] = codes[beside]
            codes[beside] = code
            place = beside
        temperature = hot * (1.0 - step / steps)
        changed = period_of(instance, rounds, least)
        if changed <= cost + temperature * EXPONENTIAL[draw(random, 1024)]:
            cost = changed
            if cost < found:
                found = cost
                keep(codes, best)
                keep(delays, best_delays)
        else:
            keep(kept_codes, codes)
            keep(kept_delays, delays)
    keep(best, codes)
    keep(best_delays, delays)
    return found, step
