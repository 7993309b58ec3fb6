"""The recurrence (R) in plain Python: the readable form, and the oracle of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planners.unequal.chain import Chain
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


def _differs(
    problem: UnequalProblem, forward_sizes: Sequence[int] | None, backward_sizes: Sequence[int]
) -> list[bool] | None:
    if not problem.coupled:
        return None
    if forward_sizes is None:
        raise ValueError("backward_seconds needs the forward sizes where recomputation is 'where-differs'")
    return problem.differs(forward_sizes, backward_sizes)
