"""End-time profiles by sample, compiled: extending one by a stage, bounds on what follows, and Pareto fronts.

A profile R[s], s = 1..B, holds the seconds at which sample s has left the stages that are decided. Every step of a search decides
the size of one stage and runs that stage and the link behind it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats, Integers
from planners.unequal.chain import Chain, Step
from planners.unequal.problem import UnequalProblem
from simulator import kernel


class Front(NamedTuple):
    """Profiles after a step.

    profiles: (count, width); sizes: of the step in each pass, (count, passes); parents: index of the profile before the step,
    (count,)
    """

    profiles: Floats
    sizes: Integers
    parents: Integers

    def room(self, rows: int) -> Front:
        """An uninitialized front of the same form with `rows` rows."""
        shapes = ((rows, *column.shape[1:]) for column in self)
        return Front._make(np.empty(shape, column.dtype) for shape, column in zip(shapes, self, strict=True))

    def chosen(self, rows: Integers | slice) -> Front:
        """The front of these rows alone."""
        return Front._make(column[rows] for column in self)


def origin(width: int, passes: int) -> Front:
    """The front of the one profile before the first step, all of whose samples are there at 0 s."""
    return Front(np.zeros((1, width)), np.zeros((1, passes), np.int64), np.zeros(1, np.int64))


def tails(chain: Chain) -> Floats:
    """Lower bounds on the seconds that remain, V[i, s], shape (K + 1, B + 2).

    If sample s leaves step i - 1 at R[s], the chain ends no earlier than R[s] + V[i, s], whatever the sizes of the steps from i
    on; V[0, 1] bounds the whole chain. V falls with s. The block that holds s starts after R[s] and the blocks after it follow,
    so with size b and cumulative durations C the end is at least R[s] + C_j - C_{j0-1} + V[i+1, first sample of j] for every
    block j from that of s, j0, on; V is the least over b.
    """
    steps = chain.steps()
    values = np.zeros((len(steps) + 1, chain.samples + 2))
    for index in range(len(steps) - 1, -1, -1):
        _tail(steps[index], values[index + 1], values[index])
    return values


def lower_bound(problem: UnequalProblem) -> float:
    """Lower bound on the seconds of any size vectors; where recomputation depends on them, as if no stage recomputed.

    At least the textbook bound max over stages of (fastest fill + least total time of the stage + fastest drain): the
    chosen size of a stage may differ from sample to sample in the bound, but fill, work and drain add up all the same.
    """
    return float(tails(problem.forward_chain)[0, 1]) + float(tails(problem.backward_chain)[0, 1])


@kernel(inner=True, borrows=True)
def tail_of_process(row: Floats, block: int, after: Floats, before: Floats) -> None:
    """Fill `before` with V in front of one process with blocks of `block` samples, from V behind it (`after`)."""
    samples = row.shape[0] - 1
    count = (samples + block - 1) // block
    best = 0.0
    for j in range(count - 1, -1, -1):
        first = j * block + 1
        last = min(first + block - 1, samples)
        # end of block j on the clock that starts with block j; what is best so far moves on by its duration
        best = row[last - first + 1] + max(best, after[first])
        for s in range(first, last + 1):
            before[s] = best


@kernel()
def _tail(step: Step, after: Floats, before: Floats) -> None:
    between = np.zeros_like(after)
    one = np.zeros_like(after)
    before[1:-1] = np.inf
    for index in range(step.allowed.shape[0]):
        block = step.allowed[index]
        tail_of_process(step.link, block, after, between)
        tail_of_process(step.compute, block, between, one)
        for s in range(1, before.shape[0] - 1):
            before[s] = min(before[s], one[s])


@kernel(inner=True, borrows=True)
def extend(profile: Floats, step: Step, block: int, tail: Floats, upper: float, ends: Floats) -> float:
    """Fill `ends` with the ends of the blocks behind the step's link; returns the last, or inf if it cannot beat `upper` seconds.

    profile: before the step; tail: V behind the step
    """
    samples = profile.shape[0] - 1
    end = 0.0
    sent = 0.0
    begun = 0
    j = 0
    while begun < samples:
        last = min(begun + block, samples)
        arrival = profile[last]
        end = (arrival if arrival > end else end) + step.compute[last - begun]
        sent = (end if end > sent else sent) + step.link[last - begun]
        if sent + tail[begun + 1] >= upper:
            return np.inf
        ends[j] = sent
        j += 1
        begun = last
    return sent


@kernel(inner=True, borrows=True)
def spread(ends: Floats, block: int, profile: Floats) -> None:
    """Fill `profile` with the end of each sample's block."""
    samples = profile.shape[0] - 1
    for s in range(1, samples + 1):
        profile[s] = ends[(s - 1) // block]


@kernel()
def best_of_each_size(profiles: Floats, step: Step, tail: Floats, best: Front) -> None:
    """Fill `best` with, for every allowed size, the extension of any profile that ends first; its parent is the first one on
    ties.
    """
    ends = np.zeros(profiles.shape[1] - 1)
    for a in range(step.allowed.shape[0]):
        block = step.allowed[a]
        least = np.inf
        best.sizes[a, 0] = block
        for i in range(profiles.shape[0]):
            end = extend(profiles[i], step, block, tail, least, ends)
            if end < least:
                least = end
                best.parents[a] = i
                spread(ends, block, best.profiles[a])


@kernel()
def non_dominated(profiles: Floats) -> Integers:
    """Indices of the profiles that no other equals or precedes in every sample, by rising sum of their times.

    Of equal ones the first stays. A dominating profile has a smaller sum, or is equal: one pass in that order suffices.
    """
    count, width = profiles.shape
    sums = np.zeros(count)
    for i in range(count):
        for s in range(1, width):
            sums[i] += profiles[i, s]
    order = np.argsort(sums, kind="mergesort")
    kept = np.empty(count, dtype=np.int64)
    size = 0
    for position in range(count):
        i = order[position]
        dominated = False
        for k in range(size):
            other = kept[k]
            dominated = True
            for s in range(1, width):
                if profiles[other, s] > profiles[i, s]:
                    dominated = False
                    break
            if dominated:
                # the one that dominated last moves up: neighbours in the order fall to the same one
                kept[k] = kept[k >> 1]
                kept[k >> 1] = other
                break
        if not dominated:
            kept[size] = i
            size += 1
    return kept[:size]


@kernel()
def extend_all(
    step: Step, tail: Floats, upper: float, profiles: Floats, start: int, found: Front, filled: int
) -> tuple[int, int]:
    """Append every extension by a step that may beat `upper` seconds, as of `sweep.Decision.extend`."""
    ends = np.zeros(profiles.shape[1] - 1)
    for i in range(start, profiles.shape[0]):
        if filled + step.allowed.shape[0] > found.sizes.shape[0]:
            return i, filled
        for a in range(step.allowed.shape[0]):
            block = step.allowed[a]
            if extend(profiles[i], step, block, tail, upper, ends) < upper:
                spread(ends, block, found.profiles[filled])
                found.sizes[filled, 0] = block
                found.parents[filled] = i
                filled += 1
    return profiles.shape[0], filled


@kernel()
def least_ends(tail: Floats, profiles: Floats) -> Floats:
    """Lower bound max_s R[s] + V[s] on the end of the chain, for each profile, float64 [profiles]."""
    count, width = profiles.shape
    bounds = np.zeros(count)
    for i in range(count):
        for s in range(1, width):
            value = profiles[i, s] + tail[s]
            if value > bounds[i]:
                bounds[i] = value
    return bounds
