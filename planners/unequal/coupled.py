"""The exact method where the two passes are not independent: recomputation where f_k != g_k.

One sweep over the stages decides (f_k, g_k) together. The forward pass is carried as in `exact`: when each sample has
left stage k. The backward pass runs the other way, so its time is carried as what follows: L[s], the longest path from
the delivery of sample s to backward stage k until the end of the chain. Both only grow with the choices made, and the
makespan is R[B] + L[1] after the last stage, so a pair (R, L) that is nowhere below another can be dropped, and so can
one whose bounds do not beat the best plan known: max_s (R[s] + V[s]) with V from `profiles.tails`, plus
max_s (H[s] + L[s]) with H[s] the earliest delivery of sample s under any sizes of the later stages.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planners.search.evaluator import BudgetSpent
from planners.unequal import compiled
from planners.unequal.chain import Chain, Floats, Integers, Step
from planners.unequal.found_sizes import FoundSizes, Report
from planners.unequal.genetic import Genetic
from planners.unequal.problem import UnequalProblem
from planners.unequal.profiles import BEAM, ROWS, extend, lower_bound, non_dominated, spread, tail_of_process, tails
from simulator import kernel

MOST_PAIRS = 50_000
"""Pairs of profiles kept after a stage unless a search says otherwise."""


def exact_coupled(
    problem: UnequalProblem,
    max_profiles: int = MOST_PAIRS,
    progress: Report | None = None,
    start: FoundSizes | None = None,
) -> FoundSizes:
    """The optimal pair of size vectors where `recomputation` depends on them: `exact.exact_sizes` of such a problem.

    `proven_optimal` is False, and the bound weaker, where more than `max_profiles` pairs of profiles would have to be kept
    after a stage, or after an interrupt or a BudgetSpent of `progress`.
    Work grows with the square of the candidates. `start` is the first plan to beat, by default that of a genetic search
    with a fixed seed.
    """
    started = time.perf_counter()
    search = Genetic(seeded=True)
    first = search(problem, np.random.default_rng(0), progress) if start is None else start
    best = _Best(
        first.forward_sizes, first.backward_sizes, first.makespan_seconds, first.lower_bound_seconds, first.evaluations
    )
    tail, head = tails(problem.forward_chain), _heads(problem.backward_chain)
    interrupted = first.interrupted
    for width in (min(BEAM, max_profiles), max_profiles):
        if best.seconds == best.bound or interrupted:
            break
        try:
            best = _sweep(problem, tail, head, best, width, progress)
        except (KeyboardInterrupt, BudgetSpent):
            interrupted = True
    makespan = compiled.makespan(problem, best.forward, best.backward)
    return FoundSizes(
        forward_sizes=best.forward,
        backward_sizes=best.backward,
        makespan_seconds=makespan,
        lower_bound_seconds=max(best.bound, min(lower_bound(problem), makespan)),
        evaluations=best.tried,
        seconds=time.perf_counter() - started,
        history=((first.evaluations, first.makespan_seconds), (best.tried, makespan)),
        interrupted=interrupted,
    )


@dataclass(frozen=True, slots=True)
class _Best:
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    seconds: float
    bound: float
    tried: int


class _Pairs(NamedTuple):
    """Profiles kept after a step: R (count, B+1), L (count, B+2), their last sizes, their parents, and bounds in seconds."""

    ahead: Floats
    after: Floats
    forward: Integers
    backward: Integers
    parents: Integers
    bounds: Floats

    def chosen(self, rows: Integers) -> _Pairs:
        """Some of them."""
        return _Pairs._make(column[rows] for column in self)


class _PairStep(NamedTuple):
    """What a sweep decides at a stage.

    ahead, back: the steps of both chains; back_again: the backward one with the forward pass run again
    tail, head: bounds on what the other stages take, V after the forward step, H before the backward one
    """

    ahead: Step
    back: Step
    back_again: Step
    tail: Floats
    head: Floats


def _sweep(
    problem: UnequalProblem, tail: Floats, head: Floats, best: _Best, width: int, progress: Report | None
) -> _Best:
    """One pass over the stages, keeping at most `width` pairs after each."""
    samples = problem.samples
    whole, origin = np.full(1, samples, dtype=np.int64), np.zeros(1, dtype=np.int64)
    pairs = _Pairs(np.zeros((1, samples + 1)), np.zeros((1, samples + 2)), whole, whole, origin, np.zeros(1))
    layers: list[_Pairs] = []
    least, tried = best.seconds, best.tried
    for stage in _stages(problem, tail, head):
        tried += len(pairs.parents) * len(stage.ahead.allowed) * len(stage.back.allowed)
        if progress is not None:
            progress(tried, best.seconds)
        pairs = _layer(stage, best.seconds, pairs)
        if len(pairs.bounds) > width:
            order = np.argsort(pairs.bounds, kind="stable")
            least = min(least, float(pairs.bounds[order[width]]))
            pairs = pairs.chosen(np.sort(order[:width]))
        layers.append(pairs)
        if not len(pairs.parents):
            return _Best(best.forward, best.backward, best.seconds, max(best.bound, least), tried)
    totals = pairs.ahead[:, -1] + pairs.after[:, 1]
    index = int(np.argmin(totals))
    seconds = float(totals[index])
    forward, backward = [], []
    for layer in reversed(layers):
        forward.append(int(layer.forward[index]))
        backward.append(int(layer.backward[index]))
        index = int(layer.parents[index])
    bound = max(best.bound, min(least, seconds))
    return _Best(tuple(forward[::-1]), tuple(backward[::-1]), seconds, bound, tried)


def _stages(problem: UnequalProblem, tail: Floats, head: Floats) -> list[_PairStep]:
    back, again = (problem.backward_chain.steps(one)[::-1] for one in (False, True))
    return list(map(_PairStep, problem.forward_chain.steps(), back, again, tail[1:], head[::-1]))


def _layer(stage: _PairStep, upper: float, pairs: _Pairs) -> _Pairs:
    """All non-dominated extensions by one stage that may beat `upper`."""
    count, samples = len(stage.ahead.allowed) * len(stage.back.allowed), pairs.ahead.shape[1] - 1
    rows = max(ROWS // 4, 2 * count)
    fresh = _room(rows, samples)
    filled = following = 0
    while True:
        following, filled = _extend_pairs(pairs, following, stage, upper, fresh, filled)
        part = fresh.chosen(np.arange(filled))
        kept = part.chosen(non_dominated(np.hstack([part.ahead, part.after[:, 1:-1]])))
        if following == len(pairs.parents):
            return kept
        filled = len(kept.parents)
        rows = rows if filled * 2 + count <= rows else rows * 2
        fresh = _room(rows, samples)
        for target, source in zip(fresh, kept, strict=True):
            target[:filled] = source


def _room(rows: int, samples: int) -> _Pairs:
    sizes = np.empty((3, rows), dtype=np.int64)
    return _Pairs(
        np.empty((rows, samples + 1)), np.zeros((rows, samples + 2)), sizes[0], sizes[1], sizes[2], np.empty(rows)
    )


def _heads(chain: Chain) -> Floats:
    """Earliest deliveries to every stage of a chain under any sizes, H[i, s]; shape (K, B + 1), seconds."""
    heads = [np.zeros(chain.samples + 1)]
    for step in chain.steps()[:-1]:
        heads.append(_earliest(heads[-1], step))
    return np.array(heads)


@kernel()
def _earliest(profile: Floats, step: Step) -> Floats:
    """The earliest end of every sample over all sizes, one step on."""
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
    pairs: _Pairs, start: int, stage: _PairStep, upper: float, found: _Pairs, filled: int
) -> tuple[int, int]:
    """Append every pair of extensions that may beat `upper`, from pair `start` on, while there is room for all of one.

    Returns (next pair to extend, rows filled).
    """
    samples = pairs.ahead.shape[1] - 1
    forward_count, backward_count = stage.ahead.allowed.shape[0], stage.back.allowed.shape[0]
    ends, no_tail, middle = np.zeros(samples), np.zeros(samples + 2), np.zeros(samples + 2)
    profiles, forward_bounds = np.zeros((forward_count, samples + 1)), np.zeros(forward_count)
    follow, backward_bounds = np.zeros((2, backward_count, samples + 2)), np.zeros((2, backward_count))
    for i in range(start, pairs.ahead.shape[0]):
        if filled + forward_count * backward_count > found.bounds.shape[0]:
            return i, filled
        for a in range(forward_count):
            block = stage.ahead.allowed[a]
            extend(pairs.ahead[i], stage.ahead, block, no_tail, np.inf, ends)
            spread(ends, block, profiles[a])
            forward_bounds[a] = 0.0
            for s in range(1, samples + 1):
                forward_bounds[a] = max(forward_bounds[a], profiles[a, s] + stage.tail[s])
        for again in range(2):
            step = stage.back_again if again else stage.back
            for b in range(backward_count):
                tail_of_process(step.link, step.allowed[b], pairs.after[i], middle)
                tail_of_process(step.compute, step.allowed[b], middle, follow[again, b])
                backward_bounds[again, b] = 0.0
                for s in range(1, samples + 1):
                    backward_bounds[again, b] = max(backward_bounds[again, b], stage.head[s] + follow[again, b, s])
        for a in range(forward_count):
            for b in range(backward_count):
                again = 0 if stage.ahead.allowed[a] == stage.back.allowed[b] else 1
                bound = forward_bounds[a] + backward_bounds[again, b]
                if bound < upper:
                    found.ahead[filled] = profiles[a]
                    found.after[filled] = follow[again, b]
                    found.forward[filled] = stage.ahead.allowed[a]
                    found.backward[filled] = stage.back.allowed[b]
                    found.parents[filled] = i
                    found.bounds[filled] = bound
                    filled += 1
    return pairs.ahead.shape[0], filled
