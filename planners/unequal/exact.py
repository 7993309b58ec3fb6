"""Exact method: a sweep over the stages of each pass, and the proof that no sizes are faster.

The best sizes known before it come from the greedy dynamic programme and the best equal size, or, where recomputation depends on
the sizes (f_k != g_k) and the passes are decided together, from a genetic search with a fixed seed; and from the same sweep with
few profiles per stage (a beam).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from planners.unequal import compiled
from planners.unequal.chain import Chain
from planners.unequal.found_sizes import FoundSizes, Report
from planners.unequal.genetic import Genetic
from planners.unequal.greedy import equal_sizes, greedy_chain, greedy_extensions
from planners.unequal.paired_passes import pair_decisions
from planners.unequal.problem import UnequalProblem
from planners.unequal.profiles import extend_all, least_ends, lower_bound, origin, tails
from planners.unequal.sweep import Decision, Known, sweep

BEAM = 24
"""Profiles that the first, narrow sweep keeps after each stage."""

MOST_PROFILES = 200_000
"""Profiles kept after a stage, at most, unless the caller says otherwise."""

MOST_PAIRS = 50_000
"""Pairs of profiles kept after a stage, at most; work grows with the square of the candidates."""


def exact_sizes(
    problem: UnequalProblem, max_profiles: int = MOST_PROFILES, progress: Report | None = None
) -> FoundSizes:
    """The optimal forward and backward sizes within the caps, with the proof in `proven_optimal`.

    If more than `max_profiles` profiles were to be kept at a stage (of pairs, MOST_PAIRS), those of the highest bound are
    dropped and the answer says so: `proven_optimal` is False and `lower_bound_seconds` the least bound of what was dropped.
    An interrupt (Ctrl-C), or a `progress` that raises BudgetSpent, ends the search with the best so far in the same way.
    """
    started = time.perf_counter()
    known = _first_pairs(problem, progress) if problem.coupled else _first(problem, progress)
    return best_sizes(problem, known, max_profiles, progress, started)


def best_sizes(
    problem: UnequalProblem, known: list[Known], max_profiles: int, progress: Report | None, started: float
) -> FoundSizes:
    """The best sizes, after a narrow sweep for better sizes than those known and a wide one for the proof, of each pass or of
    both together.
    """
    known, history = list(known), [(sum(one.tried for one in known), sum(one.seconds for one in known))]
    for number, (decisions, width) in enumerate(_passes(problem)):
        others = known[:number] + known[number + 1 :]

        def report(tried: int, seconds: float, others: list[Known] = others) -> None:
            if progress is not None:
                progress(tried + sum(one.tried for one in others), seconds + sum(one.seconds for one in others))

        if any(one.interrupted for one in known[:number]):
            break
        most = min(max_profiles, MOST_PAIRS) if problem.coupled else max_profiles
        for kept in (min(BEAM, most), most):
            one = known[number]
            if one.seconds != one.bound and not one.interrupted:
                known[number] = sweep(decisions, origin(width, len(one.sizes)), one, kept, report)
        history.append((sum(one.tried for one in known), sum(one.seconds for one in known)))
    forward, backward = (sizes for one in known for sizes in one.sizes)
    return FoundSizes(
        forward_sizes=forward,
        backward_sizes=backward if problem.coupled else backward[::-1],
        makespan_seconds=sum(one.seconds for one in known),
        lower_bound_seconds=sum(one.bound for one in known),
        evaluations=sum(one.tried for one in known),
        seconds=time.perf_counter() - started,
        history=tuple(history),
        interrupted=any(one.interrupted for one in known),
    )


def _passes(problem: UnequalProblem) -> Iterator[tuple[list[Decision], int]]:
    """The decisions of each sweep, with the width of its profiles."""
    samples = problem.samples
    if problem.coupled:
        yield pair_decisions(problem), 2 * samples + 3
        return
    for chain in (problem.forward_chain, problem.backward_chain):
        yield _decisions(chain), samples + 1


def _decisions(chain: Chain) -> list[Decision]:
    """The decisions of the sweep over one pass."""
    return [
        Decision(len(step.allowed), partial(extend_all, step, tail), partial(least_ends, tail))
        for step, tail in zip(chain.steps(), tails(chain)[1:], strict=True)
    ]


def _first(problem: UnequalProblem, progress: Report | None) -> list[Known]:
    """For each pass, the better of the greedy dynamic programme and the best equal size, with a lower bound that needs no
    search.
    """
    chains = problem.forward_chain, problem.backward_chain
    if progress is not None:
        progress(sum(greedy_extensions(chain) + 1 + len(equal_sizes(chain)) for chain in chains), float("inf"))
    known = []
    for chain in chains:
        starts = np.vstack([np.array([greedy_chain(chain)], dtype=np.int64), equal_sizes(chain)])
        values = compiled.chain_population(chain, starts)
        best = int(np.argmin(values))
        sizes, tried = tuple(chain.ordered(starts[best].tolist())), greedy_extensions(chain) + len(starts)
        known.append(Known((sizes,), float(values[best]), float(tails(chain)[0, 1]), tried))
    return known


def _first_pairs(problem: UnequalProblem, progress: Report | None) -> list[Known]:
    """For both passes together, the sizes of the genetic search, with a lower bound that needs no search."""
    found = Genetic(seeded=True)(problem, np.random.default_rng(0), progress)
    sizes = found.forward_sizes, found.backward_sizes
    bound = min(lower_bound(problem), found.makespan_seconds)
    return [Known(sizes, found.makespan_seconds, bound, found.evaluations, found.interrupted)]
