"""The recurrence compiled: makespans of a population of sizes.

A chain is walked a stage and the link behind it at a time, which have the same blocks. If all of them are full, of
durations d and l, a path through both from block i to block j costs t d + (j - i + 2 - t) l, linear in t, so that (R) of
the pair is the one recurrence

    out[j] = max( out[j-1] + max(d, l), arrival[j] + d + l )

Blocks finer than upstream's that share one arrival follow it in closed form; for the others (M) leaves one maximum a
block on the critical path. With a tail, both ends are kept in registers, and which upstream block holds the last
sample of a block is known by additions, without a table. Durations lie on a grid on which all sums are exact (see
`problem`), so these regroupings change no bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hardware_profiles import Floats, Integers
from planners.unequal.chain import Chain
from planners.unequal.problem import UnequalProblem
from simulator import kernel


@kernel(error_model="numpy", borrows=True)
def _advance(
    ends: Floats,
    step: int,
    upstream: int,
    block: int,
    durations: Floats,
    row: int,
    counts: Integers,
) -> float:
    """Fill `ends[step + 1]` with the ends of the blocks of a stage and the link behind it; returns the last.

    `ends[step]` of K + 1 holds the upstream ends of blocks of `upstream` samples; `durations[row, b]` seconds of the stage,
    `durations[K + step, b]` of the link; `counts[b]` blocks of b samples in the mini-batch.
    """
    row_, source, target = np.uintp(row), np.uintp(step), np.uintp(step + 1)
    other_ = np.uintp(ends.shape[0] - 1 + step)
    count, upstream_count = counts[np.uintp(block)], counts[np.uintp(upstream)]
    samples = counts[1]
    tail = samples - (count - 1) * block
    duration, link = durations[row_, np.uintp(block)], durations[other_, np.uintp(block)]
    tail_duration, tail_link = durations[row_, np.uintp(tail)], durations[other_, np.uintp(tail)]
    if tail == block:
        # out[j] = max(out[j-1] + slower, arrival[j] + both): of n blocks on two processes all but one overlap
        both = duration + link
        slower = duration if duration > link else link
        sent = -slower
        if block < upstream:
            ratio = np.uintp(upstream) // np.uintp(block)
            if ratio * np.uintp(block) == np.uintp(upstream):
                place = np.uintp(0)
                for i in range(np.uintp(upstream_count)):
                    arrival = ends[source, np.uintp(i)] + both
                    sent += slower
                    sent = arrival if arrival > sent else sent
                    # the blocks of one arrival follow each other; the last arrival may bring fewer
                    fresh = min(ratio, np.uintp(count) - place)
                    for t in range(fresh):
                        ends[target, place + np.uintp(t)] = sent + t * slower
                    sent += (np.float64(fresh) - 1.0) * slower
                    place += fresh
                return float(sent)
        else:
            stride = np.uintp(block) // np.uintp(upstream)
            if stride * np.uintp(upstream) == np.uintp(block):
                # prefix sums and a running maximum: one maximum a block on the critical path
                passed = 0.0
                index = stride - np.uintp(1)
                most = -slower
                for j in range(count):
                    arrival = ends[source, index] + both - passed
                    most = arrival if arrival > most else most
                    ends[target, np.uintp(j)] = most + passed
                    passed += slower
                    index += stride
                return float(ends[target, np.uintp(count - 1)])
    end = 0.0
    sent = 0.0
    if block >= upstream:
        stride = np.uintp(block) // np.uintp(upstream)
        whole = np.int64(stride)
        excess = np.int64(block) - whole * upstream
        at, slack = np.int64(-1), np.int64(0)
        for j in range(count - 1):
            at += whole
            slack -= excess
            if slack < 0:
                slack += upstream
                at += 1
            arrival = ends[source, np.uintp(at)]
            end = (arrival if arrival > end else end) + duration
            sent = (end if end > sent else sent) + link
            ends[target, np.uintp(j)] = sent
    else:
        whole = np.int64(np.uintp(upstream) // np.uintp(block))
        excess = np.int64(upstream) - whole * block
        begun, stop, rest = np.int64(0), np.int64(0), np.int64(0)
        for i in range(upstream_count):
            stop += whole
            rest += excess
            if rest >= block:
                rest -= block
                stop += 1
            last = min(stop, count - 1)
            if begun < last:
                arrival = ends[source, np.uintp(i)]
                end = (arrival if arrival > end else end) + duration
                sent = (end if end > sent else sent) + link
                ends[target, np.uintp(begun)] = sent
                for t in range(1, last - begun):
                    straight = end + t * duration + link
                    queued = sent + t * link
                    ends[target, np.uintp(begun + t)] = straight if straight > queued else queued
                end += (last - begun - 1) * duration
                sent = ends[target, np.uintp(last - 1)]
                begun = last
    arrival = ends[source, np.uintp(upstream_count - 1)]
    end = (arrival if arrival > end else end) + tail_duration
    sent = (end if end > sent else sent) + tail_link
    ends[target, np.uintp(count - 1)] = sent
    return float(sent)


@kernel(inner=True)
def _block_counts(samples: int) -> Integers:
    """Number of blocks of b samples in the mini-batch, for b = 0 (0) to B."""
    counts = np.zeros(samples + 1, dtype=np.int64)
    for block in range(1, samples + 1):
        counts[block] = (samples + block - 1) // block
    return counts


@kernel(inner=True, borrows=True)
def _chain_end(
    durations: Floats,
    reverse: bool,
    sizes: Integers,
    individual: int,
    differs: Integers,
    ends: Floats,
    counts: Integers,
) -> float:
    """End of the last block of a chain for one row of `sizes` (stage order).

    `durations` as in `Chain`; `ends[i + 1]` receives the profile after step i (`samples + 1` wide). `differs` has no columns, or
    1 for the stages that run forward again.
    """
    stages = sizes.shape[1]
    origin = stages - 1 if reverse else 0
    sign = -1 if reverse else 1
    upstream = counts[1]
    last = 0.0
    for step in range(stages):
        block = sizes[individual, origin + sign * step]
        row = step
        if differs.shape[1]:
            row += 2 * stages * differs[individual, stages - 1 - step]  # only a backward chain is coupled
        last = _advance(ends, step, upstream, block, durations, row, counts)
        upstream = block
    return last


@kernel()
def evaluate_rows(
    durations: Floats, reverse: bool, sizes: Integers, differs: Integers, result: Floats, first: int, stop: int
) -> None:
    """Fill `result` with the end of the chain for rows `first`..`stop` - 1 of `sizes`; arguments as of `_chain_end`."""
    samples = durations.shape[1] - 1
    ends = np.zeros((sizes.shape[1] + 1, samples + 1))
    counts = _block_counts(samples)
    for i in range(first, stop):
        result[i] = _chain_end(durations, reverse, sizes, i, differs, ends, counts)


@dataclass(frozen=True, slots=True)
class PopulationEvaluator(ABC):
    """Seconds of many individuals of one problem; sizes (individuals, K) in stage order, results (individuals,)."""

    problem: UnequalProblem

    @abstractmethod
    def chain_seconds(self, chain: Chain, sizes: Integers, differs: Integers) -> Floats:
        """Seconds of one pass for each individual; sizes: valid ones; differs: as of `differing_stages`"""

    def forward_population(self, forward_sizes: ArrayLike) -> Floats:
        """Seconds of the forward pass of each individual."""
        sizes = population(self.problem, forward_sizes)
        return self.chain_seconds(self.problem.forward_chain, sizes, fixed_stages(sizes))

    def backward_population(self, backward_sizes: ArrayLike, forward_sizes: ArrayLike | None = None) -> Floats:
        """Seconds of the backward pass of each individual; `forward_sizes` are needed where recomputation depends on them."""
        sizes = population(self.problem, backward_sizes)
        differs = differing_stages(self.problem, sizes, forward_sizes)
        return self.chain_seconds(self.problem.backward_chain, sizes, differs)

    def __call__(self, forward_sizes: ArrayLike, backward_sizes: ArrayLike) -> Floats:
        """Seconds of a mini-batch with a flush, of each individual."""
        return self.forward_population(forward_sizes) + self.backward_population(backward_sizes, forward_sizes)


@dataclass(frozen=True, slots=True)
class Compiled(PopulationEvaluator):
    """Evaluator of populations by the compiled recurrence."""

    def chain_seconds(self, chain: Chain, sizes: Integers, differs: Integers) -> Floats:
        """Seconds of one pass for each individual."""
        return chain_population(chain, sizes, differs)


def chain_population(chain: Chain, sizes: Integers, differs: Integers | None = None) -> Floats:
    """Seconds at which one chain ends, for many individuals; sizes (individuals, K) are not checked.

    differs: as of `differing_stages`; None: as if no stage recomputed where that depends on the sizes
    """
    result = np.empty(len(sizes))
    again = fixed_stages(sizes) if differs is None else differs
    evaluate_rows(chain.durations, chain.reverse, sizes, again, result, 0, len(sizes))
    return result


def population(problem: UnequalProblem, sizes: ArrayLike) -> Integers:
    """`sizes` as a contiguous array (individuals, K); ValueError where it is not sizes in 1..B of that shape."""
    array = np.ascontiguousarray(sizes, dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != problem.stages:
        raise ValueError(f"sizes must have shape (individuals, {problem.stages}), not {array.shape}")
    if array.size and (array.min() < 1 or array.max() > problem.samples):
        raise ValueError(f"sizes must be in 1..{problem.samples}; they are in {array.min()}..{array.max()}")
    return array


def differing_stages(problem: UnequalProblem, sizes: Integers, forward_sizes: ArrayLike | None) -> Integers:
    """1 where a stage runs forward again because its sizes differ, else 0, (individuals, K); no columns where recomputation does
    not depend on sizes.
    """
    if not problem.coupled:
        return fixed_stages(sizes)
    if forward_sizes is None:
        raise ValueError("the backward pass needs the forward sizes where recomputation is 'where-differs'")
    return np.ascontiguousarray(sizes != population(problem, forward_sizes), dtype=np.int64)


def fixed_stages(sizes: Integers) -> Integers:
    """An array without columns, (individuals, 0), which stands for recomputation that does not depend on sizes."""
    return np.zeros((len(sizes), 0), dtype=np.int64)
