"""Greedy baselines: the best equal size, local greedy, and the global-greedy dynamic programme."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from hardware_profiles import Integers
from planners.unequal import compiled
from planners.unequal.chain import Chain
from planners.unequal.found_sizes import FoundSizes, Report
from planners.unequal.problem import UnequalProblem
from planners.unequal.profiles import Front, best_of_each_size, lower_bound, origin

PAIRS = 3
"""Number of pairs that `greedy_pairs` returns."""

Vector = TypeVar("Vector", bound=Sequence[int] | Integers)


def equal_sizes(chain: Chain) -> Integers:
    """Every size vector with one size on all stages that the caps allow, (count, K), ascending."""
    common = min(chain.allowed, key=len)  # caps cut from above
    return np.repeat(np.array(common, dtype=np.int64)[:, None], chain.stages, axis=1)


def one_size(problem: UnequalProblem, size: int) -> FoundSizes:
    """The answer with this one size for all stages and passes."""
    sizes = [size] * problem.stages
    return evaluated_sizes(problem, sizes, sizes, 1, time.perf_counter())


def best_equal(problem: UnequalProblem, progress: Report | None = None) -> FoundSizes:
    """The answer with the best single micro-batch size for all stages and both passes, as GPipe has it."""
    started = time.perf_counter()
    sizes = min(equal_sizes(problem.forward_chain), equal_sizes(problem.backward_chain), key=len)
    if progress is not None:
        progress(len(sizes), float("inf"))
    best = sizes[int(np.argmin(compiled.Compiled(problem)(sizes, sizes)))].tolist()
    return evaluated_sizes(problem, best, best, len(sizes), started)


def local_greedy(problem: UnequalProblem) -> FoundSizes:
    """Sizes of every stage by itself: argmin over b of (ceil(B / b) + K - 1) t_k(b), as if all stages were like it."""
    started = time.perf_counter()
    chosen = []
    for chain in (problem.forward_chain, problem.backward_chain):
        genes = []
        for seconds, _, sizes in chain.steps():
            genes.append(int(sizes[np.argmin((-(-chain.samples // sizes) + chain.stages - 1) * seconds[sizes])]))
        chosen.append(chain.ordered(genes))
    return evaluated_sizes(problem, chosen[0], chosen[1], 1, started)


def greedy_dp(problem: UnequalProblem, progress: Report | None = None) -> FoundSizes:
    """Global-greedy dynamic programme: for every (stage, size) keep the one profile that ends first.

    Not optimal: the profile that ends first is not always the best to continue. Where recomputation depends on the
    sizes, the passes are planned apart, the backward pass as if it always recomputed, and the best of these sizes and
    of either pass's sizes for both is taken.
    """
    started = time.perf_counter()
    chains = problem.forward_chain, problem.backward_chain
    tried = sum(map(greedy_extensions, chains))
    if progress is not None:
        progress(tried + PAIRS, float("inf"))
    forward, backward = map(greedy_chain, chains)
    if not problem.coupled:
        return evaluated_sizes(problem, forward, backward, tried, started)
    pairs = [pair for pair in greedy_pairs([forward, backward]) if _within_caps(problem.backward_chain, pair[1])]
    values = compiled.Compiled(problem)([f for f, _ in pairs], [g for _, g in pairs])
    best = int(np.argmin(values))
    return evaluated_sizes(problem, *pairs[best], tried + len(pairs), started)


def greedy_pairs(found: Sequence[Vector]) -> list[tuple[Vector, Vector]]:
    """Pairs of forward and backward sizes to try, of those planned for each pass apart: as they are, and either for both."""
    forward, backward = found
    return [(forward, backward), (forward, forward), (backward, backward)]


def _within_caps(chain: Chain, sizes: Sequence[int]) -> bool:
    """Whether each stage's size is one that the chain allows."""
    return all(size in allowed for size, allowed in zip(chain.ordered(sizes), chain.allowed, strict=True))


def greedy_chain(chain: Chain) -> list[int]:
    """Sizes of one chain in stage order by the greedy dynamic programme."""
    no_tail = np.zeros(chain.samples + 2)
    layers = [origin(chain.samples + 1, 1)]
    for step in chain.steps(again=True):
        best = layers[-1].room(len(step.allowed))
        best_of_each_size(layers[-1].profiles, step, no_tail, best)
        layers.append(best)
    return chain.ordered([size for (size,) in trace(layers[1:], int(np.argmin(layers[-1].profiles[:, -1])))])


def greedy_extensions(chain: Chain) -> int:
    """Number of extensions that `greedy_chain` tries."""
    counts = [1, *map(len, chain.allowed)]
    return sum(before * now for before, now in pairwise(counts))


def trace(layers: Sequence[Front], last: int) -> list[list[int]]:
    """Sizes by stage in chain order, of each pass, that led to profile `last` of the last layer."""
    sizes: list[list[int]] = []
    index = last
    for front in reversed(layers):
        sizes.append(front.sizes[index].tolist())
        index = int(front.parents[index])
    return sizes[::-1]


def evaluated_sizes(
    problem: UnequalProblem,
    forward: Sequence[int] | Integers,
    backward: Sequence[int] | Integers,
    evaluations: int,
    started: float,
) -> FoundSizes:
    """These sizes as an answer, with the lower bound of the problem; `started` is a `time.perf_counter` value."""
    makespan = float(compiled.Compiled(problem)(np.array([forward]), np.array([backward]))[0])
    bound = min(lower_bound(problem), makespan)
    return FoundSizes(
        forward_sizes=tuple(int(size) for size in forward),
        backward_sizes=tuple(int(size) for size in backward),
        makespan_seconds=makespan,
        lower_bound_seconds=bound,
        evaluations=evaluations,
        seconds=time.perf_counter() - started,
        history=((evaluations, makespan),),
    )
