"""Paired passes: a sweep that decides both passes of a stage together, as recomputation where f_k != g_k couples them.

The forward pass is carried as in `exact`: when each sample has left stage k. The backward pass runs the other way, so its time is
carried as what follows: L[s], the longest path from the delivery of sample s to backward stage k until the end of the chain. Both
only grow with the choices made, and the makespan is R[B] + L[1] after the last stage, so a pair (R, L) that is nowhere below
another can be dropped, and so can one whose bounds do not beat the best sizes known: max_s (R[s] + V[s]) with V from
`profiles.tails`, plus max_s (H[s] + L[s]) with H[s] the earliest delivery of sample s under any sizes of the later stages. A pair
is one profile, R[0..B] and then L[0..B+1], of which L[0] and L[B+1] are 0.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats
from planners.unequal.chain import Chain, Step
from planners.unequal.problem import UnequalProblem
from planners.unequal.profiles import Front, extend, least_ends, spread, tail_of_process, tails
from planners.unequal.sweep import Decision
from simulator import kernel


class _PairStep(NamedTuple):
    """A stage in both passes.

    ahead, back: its steps in both chains; back_again: the backward one with the forward pass run again
    tail, head: bounds on what the other stages take, V after the forward step, H before the backward one
    """

    ahead: Step
    back: Step
    back_again: Step
    tail: Floats
    head: Floats


def pair_decisions(problem: UnequalProblem) -> list[Decision]:
    """The decisions of a sweep over pairs of sizes, in the order of the stages."""
    back, again = (problem.backward_chain.steps(one)[::-1] for one in (False, True))
    tail, head = tails(problem.forward_chain)[1:], _heads(problem.backward_chain)[::-1]
    stages = map(_PairStep, problem.forward_chain.steps(), back, again, tail, head)
    return [
        Decision(len(one.ahead.allowed) * len(one.back.allowed), partial(_extend_pairs, one), partial(_bounds, one))
        for one in stages
    ]


def _bounds(stage: _PairStep, pairs: Floats) -> Floats:
    """Lower bounds on the makespan of each pair of profiles after a stage, in seconds."""
    middle = len(stage.head)
    ahead, after = np.ascontiguousarray(pairs[:, :middle]), np.ascontiguousarray(pairs[:, middle:-1])
    return least_ends(stage.tail, ahead) + least_ends(stage.head, after)


def _heads(chain: Chain) -> Floats:
    """Earliest seconds at which each sample is delivered to every stage of a chain under any sizes, H[i, s], shape (K, B + 1)."""
    heads = [np.zeros(chain.samples + 1)]
    for step in chain.steps()[:-1]:
        heads.append(_earliest(heads[-1], step))
    return np.array(heads)


@kernel()
def _earliest(profile: Floats, step: Step) -> Floats:
    """The earliest end of every sample behind one more step, over all its sizes."""
    samples = profile.shape[0] - 1
    no_tail = np.zeros(samples + 2)
    ends, one = np.zeros(samples), np.zeros(samples + 1)
    best = np.full(samples + 1, np.inf)
    best[0] = 0.0
    for index in range(step.allowed.shape[0]):
        block = step.allowed[index]
        extend(profile, step, block, no_tail, np.inf, ends)
        spread(ends, block, one)
        for s in range(1, samples + 1):
            best[s] = min(best[s], one[s])
    return best


@kernel()
def _extend_pairs(
    stage: _PairStep, upper: float, pairs: Floats, start: int, found: Front, filled: int
) -> tuple[int, int]:
    """Append every pair of extensions that may beat `upper` seconds, as of `sweep.Decision.extend`."""
    samples = stage.head.shape[0] - 1
    middle = samples + 1
    forward_count, backward_count = stage.ahead.allowed.shape[0], stage.back.allowed.shape[0]
    ends, no_tail, between = np.zeros(samples), np.zeros(samples + 2), np.zeros(samples + 2)
    profiles, forward_bounds = np.zeros((forward_count, samples + 1)), np.zeros(forward_count)
    follow, backward_bounds = np.zeros((2, backward_count, samples + 2)), np.zeros((2, backward_count))
    for i in range(start, pairs.shape[0]):
        if filled + forward_count * backward_count > found.parents.shape[0]:
            return i, filled
        for a in range(forward_count):
            block = stage.ahead.allowed[a]
            extend(pairs[i, :middle], stage.ahead, block, no_tail, np.inf, ends)
            spread(ends, block, profiles[a])
            forward_bounds[a] = 0.0
            for s in range(1, samples + 1):
                forward_bounds[a] = max(forward_bounds[a], profiles[a, s] + stage.tail[s])
        for again in range(2):
            step = stage.back_again if again else stage.back
            for b in range(backward_count):
                tail_of_process(step.link, step.allowed[b], pairs[i, middle:], between)
                tail_of_process(step.compute, step.allowed[b], between, follow[again, b])
                backward_bounds[again, b] = 0.0
                for s in range(1, samples + 1):
                    backward_bounds[again, b] = max(backward_bounds[again, b], stage.head[s] + follow[again, b, s])
        for a in range(forward_count):
            for b in range(backward_count):
                again = 0 if stage.ahead.allowed[a] == stage.back.allowed[b] else 1
                if forward_bounds[a] + backward_bounds[again, b] < upper:
                    found.profiles[filled, :middle] = profiles[a]
                    found.profiles[filled, middle:] = follow[again, b]
                    found.sizes[filled, 0] = stage.ahead.allowed[a]
                    found.sizes[filled, 1] = stage.back.allowed[b]
                    found.parents[filled] = i
                    filled += 1
    return pairs.shape[0], filled
