"""The genetic searches DGAP and TiDGAP, with a chromosome for each pass.

Operators as the reference gives them: tournament of 2, two-point crossover over the stages (0.9), mutation 1/K per gene
(30 % any size, 40 % the next smaller or larger candidate, 30 % the size of a neighbouring stage), 4 elites, and a first
population that holds every equal size. With a flush the passes add up, so the two chromosomes have a fitness each and
evolve apart; where recomputation depends on the sizes they are one vector with one fitness, and half of the children give
a stage that mutates one size for both passes (else f_k = g_k, which saves the second forward pass, were rarely kept). DGAP
and TiDGAP are the same search on different evaluators, TiDGAP from the greedy plan; all evaluators agree to the last bit,
so under one seed they find the same sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hardware_profiles import Flags, Floats, Integers
from planners.search.evaluator import BudgetSpent
from planners.unequal.chain import Chain
from planners.unequal.compiled import Compiled, PopulationEvaluator
from planners.unequal.found_sizes import FoundSizes, Report
from planners.unequal.greedy import evaluated_sizes, greedy_chain, greedy_pairs
from planners.unequal.problem import UnequalProblem
from planners.unequal.profiles import lower_bound


@dataclass(frozen=True, slots=True)
class Genetic:
    """A genetic search with its settings; call it with a problem and a generator.

    `evaluator` of populations, which changes the speed and nothing else; `seeded` puts the sizes of the greedy dynamic programme
    into the first population; `crossover` the probability of one; `elites` the best individuals, which stay as they are.
    """

    evaluator: Callable[[UnequalProblem], PopulationEvaluator] = Compiled
    seeded: bool = False
    individuals: int = 200
    generations: int = 100
    crossover: float = 0.9
    elites: int = 4

    def __post_init__(self) -> None:
        if self.individuals < 2 or not 0 <= self.elites < self.individuals or self.generations < 0:
            raise ValueError(
                f"a search needs 2 or more individuals, fewer elites and generations >= 0, not {self.individuals} "
                f"individuals, {self.elites} elites, {self.generations} generations"
            )

    def __call__(self, problem: UnequalProblem, rng: np.random.Generator, progress: Report | None = None) -> FoundSizes:
        """Search; the same problem, settings and seed give the same plan.

        `progress` is called before each generation. An interrupt (Ctrl-C), or a `progress` that raises BudgetSpent, ends the
        search with the best so far and `interrupted` set. Ends early where the best reaches the lower bound.
        """
        started = time.perf_counter()
        bound = lower_bound(problem)
        parts = self.populations(problem, self.evaluator(problem))
        history: list[tuple[int, float]] = []
        clock: list[float] = []
        evaluations, interrupted = 0, False
        if progress is not None:
            progress(max(self.individuals, *(part.known for part in parts)), float("inf"))
        for part in parts:
            part.begin(rng, self.individuals)
        evaluations += max(part.evaluated for part in parts)
        best = sum(part.best for part in parts)
        try:
            for generation in range(self.generations + 1):
                if generation:
                    if progress is not None:
                        progress(evaluations + self.individuals, best)
                    for part in parts:
                        self.advance(part, rng)
                    evaluations += self.individuals
                best = sum(part.best for part in parts)
                history.append((evaluations, best))
                clock.append(time.perf_counter() - started)
                if best <= bound:
                    break
        except (KeyboardInterrupt, BudgetSpent):
            interrupted = True
        found = evaluated_sizes(problem, *self.sizes(problem, parts), evaluations, started)
        return replace(found, history=tuple(history), history_seconds=tuple(clock), interrupted=interrupted)

    def populations(self, problem: UnequalProblem, evaluate: PopulationEvaluator) -> list[Population]:
        """A population for each vector that evolves on its own."""
        limits, seeds = self.limits_and_seeds(problem)
        sizes, genes = np.array(problem.candidates, dtype=np.int64), problem.stages
        if problem.coupled:
            both = np.concatenate(limits)
            pairs = [np.concatenate(pair) for pair in greedy_pairs(seeds)] if seeds else []
            held = [np.minimum(pair, both - 1) for pair in pairs]
            return [Population(sizes, both, lambda chosen: evaluate(chosen[:, :genes], chosen[:, genes:]), held, True)]
        return [
            Population(sizes, limits[0], evaluate.forward_population, seeds[:1]),
            Population(sizes, limits[1], evaluate.backward_population, seeds[1:]),
        ]

    def limits_and_seeds(self, problem: UnequalProblem) -> tuple[list[Integers], list[Integers]]:
        """For each pass the number of candidates of each gene, and the seed if there is one; both in stage order."""
        chains = problem.forward_chain, problem.backward_chain
        sizes = np.array(problem.candidates, dtype=np.int64)
        seeds = [np.searchsorted(sizes, greedy_chain(chain)) for chain in chains] if self.seeded else []
        return [_limits(chain) for chain in chains], seeds

    def sizes(self, problem: UnequalProblem, populations: Sequence[Population]) -> tuple[Integers, Integers]:
        """Forward and backward sizes of the best individuals."""
        found = [one.sizes[one.winner] for one in populations]
        if problem.coupled:
            return found[0][: problem.stages], found[0][problem.stages :]
        return found[0], found[1]

    def advance(self, population: Population, rng: np.random.Generator) -> None:
        """One generation: the elites stay, the others are children."""
        stay = np.argsort(population.fitness, kind="stable")[: self.elites]
        children = population.children(rng, self.crossover)[: len(population.vectors) - len(stay)]
        vectors = np.vstack([population.vectors[stay], children])
        fitness = np.concatenate([population.fitness[stay], population.fitness_of(population.sizes[children])])
        population.take(vectors, fitness)


@dataclass(slots=True, eq=False)
class Population:
    """A population of index vectors into `sizes`; gene i stays below `limits[i]`.

    paired: the second half of a vector are the same stages again, backward
    """

    sizes: Integers
    limits: Integers
    fitness_of: Callable[[Integers], Floats]
    seeds: list[Integers]
    paired: bool = False
    vectors: Integers = field(init=False)
    fitness: Floats = field(init=False)
    winner: Integers = field(init=False)
    best: float = float("inf")
    evaluated: int = 0

    @property
    def known(self) -> int:
        """Vectors that the first population holds whatever its size."""
        return len(self.sizes) + len(self.seeds)

    def begin(self, rng: np.random.Generator, individuals: int) -> None:
        """Every equal size (within the caps), the seeds, and random vectors up to `individuals`; the best of them."""
        equal = np.minimum(np.arange(len(self.sizes))[:, None], self.limits - 1)
        known = np.vstack([equal, *(seed[None, :] for seed in self.seeds)])
        more = max(individuals - len(known), 0)
        vectors = np.vstack([known, rng.integers(self.limits, size=(more, len(self.limits)))])
        fitness = self.fitness_of(self.sizes[vectors])
        self.evaluated = len(vectors)
        kept = np.argsort(fitness, kind="stable")[:individuals]
        self.take(vectors[kept], fitness[kept])

    def children(self, rng: np.random.Generator, crossover: float) -> Integers:
        """As many children as there are individuals, made by tournaments, crossovers and mutations (1/K per gene)."""
        crossed = self._crossed(rng, self._selected(rng), crossover)
        return self._mutated(rng, crossed, 1.0 / self.vectors.shape[1])

    def _selected(self, rng: np.random.Generator) -> Integers:
        pairs = rng.integers(len(self.vectors), size=(len(self.vectors), 2))
        first, second = pairs[:, 0], pairs[:, 1]
        return self.vectors[np.where(self.fitness[second] < self.fitness[first], second, first)]

    def _crossed(self, rng: np.random.Generator, parents: Integers, probability: float) -> Integers:
        """Neighbouring parents exchange the genes between two cuts."""
        individuals, genes = parents.shape
        cuts = np.sort(rng.integers(genes + 1, size=(individuals // 2, 2)), axis=1)
        places = np.arange(genes)
        swap = (places >= cuts[:, :1]) & (places < cuts[:, 1:]) & (rng.random((individuals // 2, 1)) < probability)
        children = parents.copy()
        pairs = individuals // 2 * 2
        left, right = parents[0:pairs:2], parents[1:pairs:2]
        children[0:pairs:2] = np.where(swap, right, left)
        children[1:pairs:2] = np.where(swap, left, right)
        return children

    def _mutated(self, rng: np.random.Generator, children: Integers, rate: float) -> Integers:
        individuals, genes = children.shape
        where = rng.random(children.shape) < rate
        kind = rng.random(children.shape)
        anywhere = rng.integers(self.limits, size=children.shape)
        side = rng.integers(2, size=children.shape) * 2 - 1
        next_size = np.clip(children + side, 0, self.limits - 1)
        stage = np.clip(np.arange(genes) + side, 0, genes - 1)
        copied = np.minimum(children[np.arange(individuals)[:, None], stage], self.limits - 1)
        changed = np.where(kind < 0.3, anywhere, np.where(kind < 0.7, next_size, copied))
        mutated = np.where(where, changed, children)
        return self._tied(rng, mutated, where) if self.paired else mutated

    def _tied(self, rng: np.random.Generator, children: Integers, mutated: Flags) -> Integers:
        """In half of the children, a stage of which one gene mutated takes that size (within the caps) for both passes."""
        half = children.shape[1] // 2
        forward, backward = children[:, :half], children[:, half:]
        tied = rng.random((len(children), 1)) < 0.5
        from_forward, from_backward = mutated[:, :half] & tied, mutated[:, half:] & ~mutated[:, :half] & tied
        both = np.hstack(
            [np.where(from_backward, backward, forward), np.where(from_forward, forward, backward)],
        )
        within: Integers = np.minimum(both, self.limits - 1)
        return within

    def take(self, vectors: Integers, fitness: Floats) -> None:
        """Go on with these individuals."""
        self.vectors, self.fitness = vectors, fitness
        first = int(np.argmin(fitness))
        if fitness[first] < self.best:
            self.best, self.winner = float(fitness[first]), vectors[first]


def _limits(chain: Chain) -> Integers:
    """Number of candidates that each gene may take, in stage order; caps leave the smallest ones."""
    counts = np.array([len(allowed) for allowed in chain.allowed], dtype=np.int64)
    return counts[::-1].copy() if chain.reverse else counts
