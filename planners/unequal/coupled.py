"""The exact method where the two passes are not independent: recomputation where f_k != g_k, or f = g demanded.

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

import numpy as np

from planners.unequal import compiled
from planners.unequal.bound import lower_bound
from planners.unequal.chain import LINK_BLOCKS, Chain, Floats, Integers
from planners.unequal.exact import BEAM, ROWS
from planners.unequal.genetic import Genetic
from planners.unequal.problem import UnequalProblem
from planners.unequal.profiles import extend, non_dominated, spread, steps, tail_of_process, tails
from planners.unequal.result import Report, SearchStopped, UnequalPlan
from simulator import kernel

_SMALLER = LINK_BLOCKS["smaller"]


def exact_coupled(
    problem: UnequalProblem,
    single: bool = False,
    max_profiles: int = 50_000,
    progress: Report | None = None,
    start: UnequalPlan | None = None,
) -> UnequalPlan:
    """The optimal pair of size vectors when `recomputation` depends on them, or with f = g (`single`) under any.

    As `exact.exact_sizes` otherwise: `proven_optimal` is False, and the bound weaker, where more than `max_profiles`
    pairs of profiles would have to be kept after a stage, or after an interrupt or a SearchStopped of `progress`.
    Work grows with the square of the candidates. `start` is the first plan to beat, by default that of a genetic search
    with a fixed seed.
    """
    started = time.perf_counter()
    search = Genetic("compiled", "single" if single else "dual", seeded=True)
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
            best = _sweep(problem, single, tail, head, best, width, progress)
        except (KeyboardInterrupt, SearchStopped):
            interrupted = True
    makespan = compiled.makespan(problem, best.forward, best.backward)
    return UnequalPlan(
        forward_sizes=best.forward,
        backward_sizes=best.backward,
        makespan_seconds=makespan,
        lower_bound_seconds=max(best.bound, min(lower_bound(problem), makespan)),
        proven_optimal=best.bound == makespan,
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


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Profiles kept after a step: R (count, B+1), L (count, B+2), their last sizes, and their parents."""

    ahead: Floats
    after: Floats
    forward: Integers
    backward: Integers
    parents: Integers

    def chosen(self, rows: Integers) -> _Pairs:
        return _Pairs(self.ahead[rows], self.after[rows], self.forward[rows], self.backward[rows], self.parents[rows])


def _sweep(
    problem: UnequalProblem,
    single: bool,
    tail: Floats,
    head: Floats,
    best: _Best,
    width: int,
    progress: Report | None,
) -> _Best:
    """One pass over the stages, keeping at most `width` pairs after each."""
    samples = problem.samples
    whole, origin = np.full(1, samples, dtype=np.int64), np.zeros(1, dtype=np.int64)
    pairs = _Pairs(np.zeros((1, samples + 1)), np.zeros((1, samples + 2)), whole, whole, origin)
    layers: list[_Pairs] = []
    least, tried = best.seconds, best.tried
    for gene in range(problem.genes):
        ahead, back = problem.forward_chain.allowed[gene], problem.backward_chain.allowed[::-1][gene]
        tried += len(pairs.parents) * len(ahead) * (1 if single else len(back))
        if progress is not None:
            progress(tried, best.seconds)
        pairs, bounds = _layer(
            problem, gene, single, tail[gene + 1], head[problem.genes - 1 - gene], best.seconds, pairs
        )
        if len(bounds) > width:
            order = np.argsort(bounds, kind="stable")
            least = min(least, float(bounds[order[width]]))
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


def _layer(
    problem: UnequalProblem, gene: int, single: bool, tail: Floats, head: Floats, upper: float, pairs: _Pairs
) -> tuple[_Pairs, Floats]:
    """All non-dominated extensions by one gene that may beat `upper`, and their bounds."""
    samples, rule = problem.samples, LINK_BLOCKS[problem.link_block]
    step = steps(problem.forward_chain)[gene]
    later, earlier = _backward_rows(problem, gene)
    own = problem.link_block == "own"
    ahead = np.array(problem.forward_chain.allowed[gene], dtype=np.int64)
    back = np.array(problem.backward_chain.allowed[::-1][gene], dtype=np.int64)
    coupled = problem.coupled and (not own or gene % 2 == 0)
    offset = problem.backward_chain.processes if coupled else 0
    rows = max(ROWS // 4, 2 * len(ahead) * len(back))
    fresh, bounds = _empty(rows, samples), np.empty(rows)
    filled = following = 0
    while True:
        following, filled = _extend_pairs(
            pairs.ahead,
            pairs.after,
            pairs.forward,
            pairs.backward,
            following,
            problem.forward_chain.durations,
            step.first,
            step.second,
            problem.backward_chain.durations,
            later,
            earlier,
            offset,
            rule,
            single,
            ahead,
            back,
            tail,
            head,
            upper,
            fresh.ahead,
            fresh.after,
            fresh.forward,
            fresh.backward,
            fresh.parents,
            bounds,
            filled,
        )
        part = fresh.chosen(np.arange(filled))
        joined = np.hstack([part.ahead, part.after[:, 1:-1]])
        kept = non_dominated(joined, part.forward * (samples + 1) + part.backward, rule == _SMALLER)
        result, values = part.chosen(kept), bounds[kept]
        if following == len(pairs.parents):
            return result, values
        count = len(kept)
        rows = rows if count * 2 + len(ahead) * len(back) <= rows else rows * 2
        fresh, bounds = _empty(rows, samples), np.empty(rows)
        for target, source in (
            (fresh.ahead, result.ahead),
            (fresh.after, result.after),
            (fresh.forward, result.forward),
            (fresh.backward, result.backward),
            (fresh.parents, result.parents),
            (bounds, values),
        ):
            target[:count] = source
        filled = count


def _empty(rows: int, samples: int) -> _Pairs:
    numbers = [np.empty(rows, dtype=np.int64) for _ in range(3)]
    return _Pairs(np.empty((rows, samples + 1)), np.zeros((rows, samples + 2)), *numbers)


def _backward_rows(problem: UnequalProblem, gene: int) -> tuple[int, int]:
    """Rows of the backward processes that this gene adds in front of the chain: the later one, then the earlier; or -1.

    A link whose size the smaller neighbour gives is added with the stage that sends, when both sizes are known.
    """
    chain = problem.backward_chain
    place = chain.genes - 1 - gene
    if problem.link_block == "own":
        return -1, place
    compute = 2 * place
    if problem.link_block == "receiver":
        return compute, compute - 1
    return (compute + 1 if compute + 1 < chain.processes else -1), compute


def _heads(chain: Chain) -> Floats:
    """Earliest deliveries to every step of a chain under any sizes, H[i, s]; shape (genes, B + 1), seconds."""
    own = chain.link_block == "own"
    every = tuple(sorted(set().union(*chain.allowed)))
    profile = np.zeros(chain.samples + 1)
    heads = [profile]
    for process in range(chain.processes - 1):
        # a link takes some candidate's size; which is left open, so that all rules share one bound
        allowed = chain.allowed[process] if own else every if process % 2 else chain.allowed[process // 2]
        profile = _earliest(profile, chain.durations, process, np.array(allowed, dtype=np.int64))
        heads.append(profile)
    if own:
        return np.array(heads)
    if chain.link_block == "receiver":  # a step starts with its link
        return np.array([heads[max(2 * i - 1, 0)] for i in range(chain.stages)])
    return np.array(heads[::2])


@kernel()
def _earliest(profile: Floats, durations: Floats, row: int, allowed: Integers) -> Floats:
    """The earliest end of every sample over all sizes, one process on."""
    samples = profile.shape[0] - 1
    no_tail = np.zeros(samples + 2)
    ends, between, one = np.zeros(samples), np.zeros(samples + 1), np.zeros(samples + 1)
    best = np.full(samples + 1, np.inf)
    best[0] = 0.0
    for index in range(allowed.shape[0]):
        block = allowed[index]
        extend(profile, durations, -1, row, block, block, no_tail, np.inf, ends, between)
        spread(ends, block, one)
        for s in range(1, samples + 1):
            best[s] = min(best[s], one[s])
    return best


@kernel()
def _extend_pairs(
    ahead: Floats,
    after: Floats,
    last_forward: Integers,
    last_backward: Integers,
    start: int,
    forward: Floats,
    first: int,
    second: int,
    backward: Floats,
    later: int,
    earlier: int,
    offset: int,
    rule: int,
    single: bool,
    forward_sizes: Integers,
    backward_sizes: Integers,
    tail: Floats,
    head: Floats,
    upper: float,
    new_ahead: Floats,
    new_after: Floats,
    new_forward: Integers,
    new_backward: Integers,
    parents: Integers,
    bounds: Floats,
    filled: int,
) -> tuple[int, int]:
    """Append every pair of extensions that may beat `upper`, from pair `start` on, while there is room for all of one.

    `offset` > 0 is the distance of the rows with recomputation, used where the two sizes differ.
    """
    samples = ahead.shape[1] - 1
    forward_count, backward_count = forward_sizes.shape[0], backward_sizes.shape[0]
    ends, between = np.zeros(samples), np.zeros(samples + 1)
    no_tail = np.zeros(samples + 2)
    profiles = np.zeros((forward_count, samples + 1))
    forward_bounds = np.zeros(forward_count)
    variants = 2 if offset > 0 else 1
    follow = np.zeros((variants, backward_count, samples + 2))
    backward_bounds = np.zeros((variants, backward_count))
    middle = np.zeros(samples + 2)
    for i in range(start, ahead.shape[0]):
        if filled + forward_count * backward_count > new_ahead.shape[0]:
            return i, filled
        for a in range(forward_count):
            block = forward_sizes[a]
            link = min(last_forward[i], block) if rule == 2 else block
            extend(ahead[i], forward, first, second, link, block, no_tail, np.inf, ends, between)
            spread(ends, block, profiles[a])
            forward_bounds[a] = 0.0
            for s in range(1, samples + 1):
                forward_bounds[a] = max(forward_bounds[a], profiles[a, s] + tail[s])
        for variant in range(variants):
            for b in range(backward_count):
                block = backward_sizes[b]
                source = after[i]
                # of the two processes the link is the later one but where it follows its receiver
                row, other = later, earlier
                if rule == 1 and row >= 0:
                    row += variant * offset
                elif rule != 1:
                    other += variant * offset
                if row >= 0:
                    link = min(last_backward[i], block) if rule == 2 else block
                    tail_of_process(backward[row], link, source, middle)
                    source = middle
                if other >= 0:
                    tail_of_process(backward[other], block, source, follow[variant, b])
                else:
                    follow[variant, b] = source
                backward_bounds[variant, b] = 0.0
                for s in range(1, samples + 1):
                    value = head[s] + follow[variant, b, s]
                    backward_bounds[variant, b] = max(backward_bounds[variant, b], value)
        for a in range(forward_count):
            for b in range(backward_count):
                same = forward_sizes[a] == backward_sizes[b]
                if single and not same:
                    continue
                variant = 1 if variants == 2 and not same else 0
                bound = forward_bounds[a] + backward_bounds[variant, b]
                if bound < upper:
                    new_ahead[filled] = profiles[a]
                    new_after[filled] = follow[variant, b]
                    new_forward[filled] = forward_sizes[a]
                    new_backward[filled] = backward_sizes[b]
                    parents[filled] = i
                    bounds[filled] = bound
                    filled += 1
    return ahead.shape[0], filled
