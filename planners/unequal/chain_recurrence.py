"""The recurrence (R) in plain Python: the readable form, and the oracle of the others."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from planners.unequal.chain import Chain
from planners.unequal.chain_memory import MemoryUse
from planners.unequal.problem import UnequalProblem


def process_ends(
    samples: int, table: Sequence[float], block: int, upstream_block: int, upstream_ends: Sequence[float]
) -> list[float]:
    """End times in seconds of the blocks of one process: formula (R), `table[b]` seconds of a block of b samples."""
    ends: list[float] = []
    free = 0.0
    done = 0
    while done < samples:
        last = min(done + block, samples)
        arrival = upstream_ends[math.ceil(last / upstream_block) - 1]
        free = max(free, arrival) + table[last - done]
        ends.append(free)
        done = last
    return ends


def chain_profile(chain: Chain, sizes: Sequence[int], differs: Sequence[bool] | None = None) -> list[list[float]]:
    """End times of every block of every stage and of the link behind it, in chain order, from sizes in stage order; seconds."""
    upstream_block, ends = chain.samples, [0.0]
    profile: list[list[float]] = []
    again = differs[::-1] if differs is not None else [False] * chain.stages  # only a backward chain is coupled
    for stage, block in enumerate(chain.ordered(sizes)):
        row = stage + 2 * chain.stages * again[stage]
        for table in (chain.durations[row], chain.durations[chain.stages + stage]):
            ends = process_ends(chain.samples, table.tolist(), block, upstream_block, ends)
            upstream_block = block
            profile.append(ends)
    return profile


def forward_seconds(problem: UnequalProblem, forward_sizes: Sequence[int]) -> float:
    """Seconds of the forward pass of a mini-batch; sizes in stage order."""
    return chain_profile(problem.forward_chain, forward_sizes)[-1][-1]


def backward_seconds(
    problem: UnequalProblem, backward_sizes: Sequence[int], forward_sizes: Sequence[int] | None = None
) -> float:
    """Seconds of the backward pass; `forward_sizes` matter where recomputation depends on them (ValueError if absent)."""
    return chain_profile(problem.backward_chain, backward_sizes, _differs(problem, forward_sizes, backward_sizes))[-1][
        -1
    ]


def makespan(problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int]) -> float:
    """Seconds of one mini-batch with a flush: forward + backward, exactly additive."""
    return forward_seconds(problem, forward_sizes) + backward_seconds(problem, backward_sizes, forward_sizes)


def memory_use(problem: UnequalProblem, forward_sizes: Sequence[int], backward_sizes: Sequence[int]) -> MemoryUse:
    """Bytes of every stage over a mini-batch with a flush, receive queues from the end-time profiles.

    While a block runs, the stage holds its state, the stash of every sample that it has begun (forward) or not yet
    finished (backward), the block's workspace, and what was delivered but not yet begun. Between blocks it holds less:
    what waits is part of the next block. Raises ValueError without a memory model.
    """
    model = problem.memory
    if model is None:
        raise ValueError("memory_use needs a problem with a memory model")
    stages, samples = problem.stages, problem.samples
    forward, backward = list(forward_sizes), list(backward_sizes)
    recomputes = problem.recomputes(forward_sizes, backward_sizes)
    stash, block_bytes = model.stash_bytes(recomputes), model.backward_block_bytes(recomputes)
    state, inputs = np.asarray(model.state_bytes), np.asarray(model.input_bytes)
    ahead = chain_profile(problem.forward_chain, forward_sizes)
    back = chain_profile(problem.backward_chain, backward_sizes, _differs(problem, forward_sizes, backward_sizes))
    links = forward, backward[::-1]
    workspace = np.asarray(forward) * np.asarray(model.forward_workspace_bytes), np.asarray(backward) * block_bytes
    static_bytes = state + samples * stash + np.maximum(*workspace)
    queue, peak = np.zeros(stages), static_bytes.copy()
    for stage in range(stages):
        place = stages - 1 - stage  # of the stage in the backward chain
        gradient = float(inputs[stage + 1]) if stage + 1 < stages else 0.0
        for chain_ends, position, link, size, waiting, phase in (
            (ahead, stage, links[0], forward[stage], float(inputs[stage]), 0),
            (back, place, links[1], backward[stage], gradient, 1),
        ):
            if position == 0:
                continue
            arrivals, sent = chain_ends[2 * position - 1], link[position - 1]
            for index, end in enumerate(chain_ends[2 * position]):
                begun = min((index + 1) * size, samples)
                delivered = min(bisect_left(arrivals, end) * sent, samples)
                waits = waiting * max(delivered - begun, 0)
                held = begun if phase == 0 else samples - index * size
                queue[stage] = max(queue[stage], waits)
                peak[stage] = max(peak[stage], state[stage] + held * stash[stage] + workspace[phase][stage] + waits)
    return MemoryUse(static_bytes=static_bytes, queue_bytes=queue, peak_bytes=peak)


def _differs(
    problem: UnequalProblem, forward_sizes: Sequence[int] | None, backward_sizes: Sequence[int]
) -> list[bool] | None:
    if not problem.coupled:
        return None
    if forward_sizes is None:
        raise ValueError("backward_seconds needs the forward sizes where recomputation is 'where-differs'")
    return problem.differs(forward_sizes, backward_sizes)
