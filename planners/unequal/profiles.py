"""End-time profiles by sample, compiled: extending one by a stage, bounds on what follows, and Pareto fronts.

A profile R[s], s = 1..B, is when sample s has left the part of the chain that was decided. Every step of a search
decides one size b and runs one or two processes: computation and link (rule "sender"), link and computation
("receiver", "smaller"), or a single process ("own").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planners.unequal.chain import Chain, Floats, Integers
from simulator import kernel


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: rows of `Chain.durations` of the processes that it runs, -1 for none, in chain order."""

    first: int
    second: int
    allowed: tuple[int, ...]


def steps(chain: Chain) -> list[Step]:
    """The decisions of a chain, in chain order; one a gene."""
    if chain.link_block == "own":
        return [Step(-1, process, allowed) for process, allowed in enumerate(chain.allowed)]
    last = chain.processes - 1
    if chain.link_block == "sender":
        pairs = [(p, p + 1) if p < last else (-1, p) for p in range(0, chain.processes, 2)]
    else:
        pairs = [(p - 1, p) for p in range(0, chain.processes, 2)]
    return [Step(first, second, allowed) for (first, second), allowed in zip(pairs, chain.allowed, strict=True)]


def tails(chain: Chain) -> Floats:
    """Lower bounds on the time that remains, V[i, s], shape (genes + 1, B + 2), seconds.

    If sample s leaves step i - 1 at R[s], the chain ends no earlier than R[s] + V[i, s], whatever the sizes of the
    steps from i on; V[0, 1] bounds the whole chain. V falls with s. The block that holds s starts after R[s] and the
    blocks after it follow, so with size b and cumulative durations C the end is at least
    R[s] + C_j - C_{j0-1} + V[i+1, first sample of j] for every block j from that of s, j0, on; V is the least over b.
    """
    plan = steps(chain)
    values = np.zeros((len(plan) + 1, chain.samples + 2))
    for index in range(len(plan) - 1, -1, -1):
        step = plan[index]
        _tail(
            chain.durations,
            step.first,
            step.second,
            np.array(step.allowed, dtype=np.int64),
            chain.link_block == "smaller",
            values[index + 1],
            values[index],
        )
    return values


@kernel()
def tail_of_process(row: Floats, block: int, after: Floats, before: Floats) -> None:
    """V before one process with blocks of `block` samples, from V after it."""
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
def _tail(
    durations: Floats, first: int, second: int, allowed: Integers, smaller: bool, after: Floats, before: Floats
) -> None:
    between = np.zeros_like(after)
    outer = np.zeros_like(after)
    relaxed = np.zeros_like(after)
    before[1:-1] = np.inf
    for index in range(allowed.shape[0]):
        block = allowed[index]
        tail_of_process(durations[second], block, after, between)
        if first < 0:
            outer[:] = between
        elif smaller:
            # the link's size is the smaller of this and an unknown one: any up to this
            outer[1:-1] = np.inf
            for size in range(1, block + 1):
                tail_of_process(durations[first], size, between, relaxed)
                outer[:] = np.minimum(outer, relaxed)
        else:
            tail_of_process(durations[first], block, between, outer)
        for s in range(1, before.shape[0] - 1):
            before[s] = min(before[s], outer[s])


@kernel()
def extend(
    profile: Floats,
    durations: Floats,
    first: int,
    second: int,
    link_block: int,
    block: int,
    tail: Floats,
    upper: float,
    ends: Floats,
    between: Floats,
) -> float:
    """Ends of the blocks of the step's last process into `ends`; returns the last, or inf where it cannot beat `upper`.

    `link_block` is the size of the first process, `block` of the second; `between` is work space, (B + 1,).
    """
    samples = profile.shape[0] - 1
    end = 0.0
    if first >= 0 and link_block == block:
        sent = 0.0
        begun = 0
        j = 0
        while begun < samples:
            last = min(begun + block, samples)
            arrival = profile[last]
            end = (arrival if arrival > end else end) + durations[first, last - begun]
            sent = (end if end > sent else sent) + durations[second, last - begun]
            if sent + tail[begun + 1] >= upper:
                return np.inf
            ends[j] = sent
            j += 1
            begun = last
        return sent
    if first >= 0:
        begun = 0
        while begun < samples:
            last = min(begun + link_block, samples)
            arrival = profile[last]
            end = (arrival if arrival > end else end) + durations[first, last - begun]
            for s in range(begun + 1, last + 1):
                between[s] = end
            begun = last
    end = 0.0
    begun = 0
    j = 0
    while begun < samples:
        last = min(begun + block, samples)
        arrival = between[last] if first >= 0 else profile[last]
        end = (arrival if arrival > end else end) + durations[second, last - begun]
        if end + tail[begun + 1] >= upper:
            return np.inf
        ends[j] = end
        j += 1
        begun = last
    return end


@kernel()
def spread(ends: Floats, block: int, profile: Floats) -> None:
    """Block ends, written out as a profile by sample."""
    samples = profile.shape[0] - 1
    for s in range(1, samples + 1):
        profile[s] = ends[(s - 1) // block]


@kernel()
def best_of_each_size(
    profiles: Floats,
    blocks: Integers,
    durations: Floats,
    first: int,
    second: int,
    allowed: Integers,
    smaller: bool,
    result: Floats,
    parents: Integers,
    tail: Floats,
) -> None:
    """For every allowed size, the extension of any profile that ends first: profile and parent (lowest index on ties)."""
    samples = profiles.shape[1] - 1
    ends = np.zeros(samples)
    between = np.zeros(samples + 1)
    for a in range(allowed.shape[0]):
        block = allowed[a]
        best = np.inf
        for i in range(profiles.shape[0]):
            link_block = min(blocks[i], block) if smaller else block
            end = extend(profiles[i], durations, first, second, link_block, block, tail, best, ends, between)
            if end < best:
                best = end
                parents[a] = i
                spread(ends, block, result[a])


@kernel()
def non_dominated(profiles: Floats, blocks: Integers, same_size_only: bool) -> Integers:
    """Indices of the profiles that no other equals or precedes in every sample, by rising sum of their times.

    Of equal ones the first stays. A dominating profile has a smaller sum, or is equal: one pass in that order.
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
            if same_size_only and blocks[other] != blocks[i]:
                continue
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
    profiles: Floats,
    blocks: Integers,
    start: int,
    durations: Floats,
    first: int,
    second: int,
    allowed: Integers,
    smaller: bool,
    tail: Floats,
    upper: float,
    result: Floats,
    result_blocks: Integers,
    result_parents: Integers,
    filled: int,
) -> tuple[int, int]:
    """Append every extension that may beat `upper`, from profile `start` on, while a whole profile's worth has room.

    Returns (next profile to extend, rows filled).
    """
    samples = profiles.shape[1] - 1
    ends = np.zeros(samples)
    between = np.zeros(samples + 1)
    for i in range(start, profiles.shape[0]):
        if filled + allowed.shape[0] > result.shape[0]:
            return i, filled
        for a in range(allowed.shape[0]):
            block = allowed[a]
            link_block = min(blocks[i], block) if smaller else block
            end = extend(profiles[i], durations, first, second, link_block, block, tail, upper, ends, between)
            if end < upper:
                spread(ends, block, result[filled])
                result_blocks[filled] = block
                result_parents[filled] = i
                filled += 1
    return profiles.shape[0], filled


@kernel()
def least_ends(profiles: Floats, tail: Floats) -> Floats:
    """For every profile, the bound max_s R[s] + V[s] on the end of the chain."""
    count, width = profiles.shape
    bounds = np.zeros(count)
    for i in range(count):
        for s in range(1, width):
            value = profiles[i, s] + tail[s]
            if value > bounds[i]:
                bounds[i] = value
    return bounds
