"""Genetic variants: what UMPIPE's genetic search is compared with, one vector for both passes and distinct survivors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles import Integers
from planners.unequal import Genetic, Population, PopulationEvaluator, UnequalProblem


@dataclass(frozen=True, slots=True)
class SingleChromosome(Genetic):
    """A genetic search with one vector of sizes for both passes."""

    def populations(self, problem: UnequalProblem, evaluate: PopulationEvaluator) -> list[Population]:
        """One population, within the caps of both passes."""
        limits, seeds = self.limits_and_seeds(problem)
        shared = np.minimum(*limits)
        held = [np.minimum(seed, shared - 1) for seed in seeds]
        sizes = np.array(problem.candidates, dtype=np.int64)
        return [Population(sizes, shared, lambda chosen: evaluate(chosen, chosen), held)]

    def sizes(self, problem: UnequalProblem, populations: Sequence[Population]) -> tuple[Integers, Integers]:
        """The same sizes twice."""
        found = populations[0].sizes[populations[0].winner]
        return found, found


@dataclass(frozen=True, slots=True)
class DistinctSurvivors(Genetic):
    """A genetic search in which the best different vectors among parents and children survive.

    That keeps a population from collapsing onto an equal size. It is no variant of the paper.
    """

    def advance(self, population: Population, rng: np.random.Generator) -> None:
        """One generation."""
        individuals = len(population.vectors)
        children = population.children(rng, self.crossover)
        vectors = np.vstack([population.vectors, children])
        fitness = np.concatenate([population.fitness, population.fitness_of(population.sizes[children])])
        _, first = np.unique(vectors, axis=0, return_index=True)
        order = first[np.argsort(fitness[first], kind="stable")][:individuals]
        if len(order) < individuals:  # fewer different vectors than individuals: the best stand twice
            order = np.concatenate([order, np.argsort(fitness, kind="stable")[: individuals - len(order)]])
        population.take(vectors[order], fitness[order])
