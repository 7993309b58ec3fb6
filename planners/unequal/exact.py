"""The exact method: a dynamic programme over stages that keeps every end-time profile that may still win.

(R) is monotone in arrival times, so of two profiles the one that is nowhere earlier can be dropped; a profile whose
bound (`profiles.tails`) does not beat the best plan known can be dropped too. The best plan known comes from the
greedy dynamic programme, the best equal size, and the same programme with few profiles a stage (a beam). What is left
at the end is optimal, and the proof is that everything else was dropped for one of the two reasons. Durations lie on
a grid (see `problem`), so every comparison is exact.

Where recomputation depends on the sizes (f_k != g_k), the passes are not independent, and `coupled` does it in one sweep.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from planners.search.evaluator import BudgetSpent
from planners.unequal import compiled
from planners.unequal.chain import Chain, Floats, Integers, Step
from planners.unequal.coupled import MOST_PAIRS, exact_coupled
from planners.unequal.found_sizes import FoundSizes, Report
from planners.unequal.greedy import equal_sizes, greedy_chain, greedy_extensions, trace
from planners.unequal.problem import UnequalProblem
from planners.unequal.profiles import BEAM, ROWS, Front, extend_all, least_ends, non_dominated, tails


@dataclass(frozen=True, slots=True)
class _ChainSizes:
    """Sizes of one chain in stage order, its seconds, a bound on them, and what it took.

    `bound` equals `seconds` if the sizes are proven optimal; `extensions` is the number of profiles extended by one size.
    """

    sizes: tuple[int, ...]
    seconds: float
    bound: float
    extensions: int
    interrupted: bool = False


def exact_sizes(problem: UnequalProblem, max_profiles: int = 200_000, progress: Report | None = None) -> FoundSizes:
    """The optimal forward and backward sizes within the caps, with the proof in `proven_optimal`.

    If more than `max_profiles` profiles were to be kept at a stage (of pairs, MOST_PAIRS), those of the highest bound are
    dropped and the answer says so: `proven_optimal` is False and `lower_bound_seconds` the least bound of what was dropped.
    An interrupt (Ctrl-C), or a `progress` that raises BudgetSpent, ends the search with the best so far in the same way.
    """
    if problem.coupled:
        return exact_coupled(problem, min(max_profiles, MOST_PAIRS), progress)
    started = time.perf_counter()
    chains = problem.forward_chain, problem.backward_chain
    if progress is not None:
        progress(sum(greedy_extensions(chain) + 1 + len(equal_sizes(chain)) for chain in chains), float("inf"))
    plans = [_start(chain) for chain in chains]
    history = [(sum(plan.extensions for plan in plans), sum(plan.seconds for plan in plans))]

    def report(number: int, extensions: int, seconds: float) -> None:
        other = plans[1 - number]
        if progress is not None:
            progress(extensions + other.extensions, seconds + other.seconds)

    for number, chain in enumerate(chains):
        if not plans[0].interrupted:
            plans[number] = _search(chain, plans[number], max_profiles, partial(report, number))
            history.append((sum(plan.extensions for plan in plans), sum(plan.seconds for plan in plans)))
    forward, backward = plans
    makespan, bound = forward.seconds + backward.seconds, forward.bound + backward.bound
    return FoundSizes(
        forward_sizes=forward.sizes,
        backward_sizes=backward.sizes,
        makespan_seconds=makespan,
        lower_bound_seconds=bound,
        evaluations=forward.extensions + backward.extensions,
        seconds=time.perf_counter() - started,
        history=tuple(history),
        interrupted=forward.interrupted or backward.interrupted,
    )


def _start(chain: Chain) -> _ChainSizes:
    """The better of the greedy dynamic programme and the best equal size, with the bound that needs no search."""
    starts = np.vstack([np.array([greedy_chain(chain)], dtype=np.int64), equal_sizes(chain)])
    values = compiled.chain_population(chain, starts)
    best = int(np.argmin(values))
    bound = float(tails(chain)[0, 1])
    return _ChainSizes(tuple(starts[best].tolist()), float(values[best]), bound, greedy_extensions(chain) + len(starts))


def _search(chain: Chain, found: _ChainSizes, max_profiles: int, progress: Report | None) -> _ChainSizes:
    """A narrow sweep for a better plan, and a wide one for the proof."""
    bounds = tails(chain)
    for width in (min(BEAM, max_profiles), max_profiles):
        if found.seconds == found.bound or found.interrupted:
            break
        found = _sweep(chain, bounds, found, width, progress)
    return found


def _sweep(chain: Chain, bounds: Floats, known: _ChainSizes, width: int, progress: Report | None) -> _ChainSizes:
    """One pass over the stages, keeping at most `width` profiles after each."""
    profiles: Floats = np.zeros((1, chain.samples + 1))
    layers: list[tuple[Integers, Integers]] = []
    least, extensions = known.seconds, known.extensions
    try:
        for index, step in enumerate(chain.steps()):
            tried = len(profiles) * len(step.allowed)
            if progress is not None:
                progress(extensions + tried, known.seconds)
            front = _layer(step, bounds[index + 1], known.seconds, profiles)
            extensions += tried
            if len(front.sizes) > width:
                ends = least_ends(front.profiles, bounds[index + 1])
                order = np.argsort(ends, kind="stable")
                least = min(least, float(ends[order[width]]))
                front = _chosen(front, np.sort(order[:width]))
            profiles = front.profiles
            layers.append((front.sizes, front.parents))
            if not len(profiles):
                break
    except (KeyboardInterrupt, BudgetSpent):
        return _ChainSizes(known.sizes, known.seconds, known.bound, extensions, True)
    sizes, seconds = known.sizes, known.seconds
    if len(profiles):
        last = int(np.argmin(profiles[:, -1]))
        seconds = float(profiles[last, -1])
        sizes = tuple(chain.ordered(trace(layers, last)))
    return _ChainSizes(sizes, seconds, max(known.bound, min(least, seconds)), extensions)


def _layer(step: Step, tail: Floats, upper: float, profiles: Floats) -> Front:
    """All non-dominated extensions by one step that may beat `upper`."""
    rows = max(ROWS, 2 * len(step.allowed))
    found = _room(rows, profiles.shape[1])
    filled = following = 0
    while True:
        following, filled = extend_all(profiles, following, step, tail, upper, found, filled)
        kept = _chosen(found, non_dominated(found.profiles[:filled]))
        if following == len(profiles):
            return kept
        # the room is full: keep its front at the start, and double it if that frees too little
        filled = len(kept.sizes)
        rows = rows if filled * 2 + len(step.allowed) <= rows else rows * 2
        found = _room(rows, profiles.shape[1])
        for target, source in zip(found, kept, strict=True):
            target[:filled] = source


def _room(rows: int, width: int) -> Front:
    return Front(np.empty((rows, width)), np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64))


def _chosen(front: Front, rows: Integers) -> Front:
    return Front._make(column[rows] for column in front)
