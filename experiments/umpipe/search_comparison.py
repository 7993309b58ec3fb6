"""UMPIPE searches: all of them on one instance: what they find, how far above the optimum, and how they converge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from experiments.benchmarks.timing import least_seconds
from experiments.umpipe.genetic_variants import DistinctSurvivors, SingleChromosome
from experiments.umpipe.pymoo_search import available, pymoo_search
from experiments.unequal_sizes.matrix_form import Matrix
from experiments.unequal_sizes.plain_recurrence import Recurrence
from planners.unequal import FoundSizes, Genetic, UnequalProblem, best_equal, exact_sizes, greedy_dp, local_greedy


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance by name, with the plan of every search, the exact method first, and its CPU seconds, apart from compilation."""

    name: str
    plans: Mapping[str, FoundSizes]
    cpu_seconds: Mapping[str, float]

    @property
    def optimum(self) -> float:
        """Seconds of the exact plan."""
        return self.plans["exact"].makespan_seconds

    def above(self, search: str) -> float:
        """How far a search's plan is above the optimum: 0.1 is 10 % more seconds."""
        return self.plans[search].makespan_seconds / self.optimum - 1.0

    def acceleration(self, search: str) -> float:
        """CPU seconds of DGAP over those of another search."""
        return self.cpu_seconds["DGAP"] / self.cpu_seconds[search]


def exact(problem: UnequalProblem) -> FoundSizes:
    """The proven optimum; KeyboardInterrupt where the search was interrupted: half a search is no measurement."""
    plan = exact_sizes(problem)
    if plan.interrupted:
        raise KeyboardInterrupt
    return plan


GENETIC: dict[str, Genetic] = {
    "DGAP": Genetic(Recurrence),
    "DGAP, single chromosome": SingleChromosome(Recurrence),
    "TiDGAP": Genetic(Matrix, seeded=True),
    "TiDGAP, unseeded": Genetic(Matrix),
    "TiDGAP, compiled": Genetic(),
    "TiDGAP, distinct survivors": DistinctSurvivors(),
}
"""Genetic searches by name; TiDGAP starts from the greedy plan, the others from random and equal sizes.

The last one is no variant of the paper.
"""

MATRIX_FORM, COMPILED_FORM = "TiDGAP, unseeded", "TiDGAP, compiled"
"""DGAP's search from the same first population, on the other evaluators."""


def search_all(name: str, problem: UnequalProblem, *, seed: int = 0, generations: int = 100) -> Instance:
    """Run every search on an instance, all genetic ones (pymoo's too, where it is installed) with equally many evaluations."""

    def genetic(search: Genetic, generations: int) -> FoundSizes:
        return replace(search, generations=generations)(problem, np.random.default_rng(seed))

    direct = {
        "exact": exact,
        "greedy DP": greedy_dp,
        "local greedy": local_greedy,
        "best equal size": best_equal,
    }
    searches: dict[str, Callable[[int], FoundSizes]] = {
        **{title: lambda _, method=method: method(problem) for title, method in direct.items()},  # type: ignore[misc]
        **{title: partial(genetic, search) for title, search in GENETIC.items()},
    }
    if available():
        searches["pymoo GA"] = lambda generations: pymoo_search(problem, seed, generations=generations)
    plans, cpu_seconds = {}, {}
    for title, search in searches.items():
        search(1)  # compiles what it needs, so that the seconds are those of the search
        plans[title], cpu_seconds[title] = least_seconds(partial(search, generations))
        if plans[title].interrupted:
            raise KeyboardInterrupt
    return Instance(name, plans, cpu_seconds)
