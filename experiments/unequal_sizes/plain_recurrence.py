"""The recurrence (R) in plain Python: the readable form, the oracle of the others, and what DGAP evaluates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles import Floats, Integers
from planners.unequal import Chain, PopulationEvaluator


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


def chain_profile(chain: Chain, sizes: Sequence[int], differs: Sequence[int] = ()) -> list[list[float]]:
    """End times of every block of every stage and of the link behind it, in chain order, from sizes in stage order; seconds.

    differs: 1 for the stages, in stage order, that run forward again; none for no stage
    """
    upstream_block, ends = chain.samples, [0.0]
    profile: list[list[float]] = []
    again = list(differs)[::-1] or [0] * chain.stages  # only a backward chain is coupled
    for stage, block in enumerate(chain.ordered(sizes)):
        for row in (stage + 2 * chain.stages * again[stage], chain.stages + stage):
            ends = process_ends(chain.samples, chain.durations[row].tolist(), block, upstream_block, ends)
            upstream_block = block
            profile.append(ends)
    return profile


@dataclass(frozen=True, slots=True)
class Recurrence(PopulationEvaluator):
    """The plain recurrence: one individual after the other."""

    def chain_seconds(self, chain: Chain, sizes: Integers, differs: Integers) -> Floats:
        """Seconds of one pass."""
        rows = zip(sizes.tolist(), differs.tolist(), strict=True)
        return np.array([chain_profile(chain, *row)[-1][-1] for row in rows])
