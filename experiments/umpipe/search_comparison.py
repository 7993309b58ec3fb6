"""UMPIPE searches: all of them on one instance: what they find, how far above the optimum, and how they converge."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from experiments.umpipe.pymoo_search import available, pymoo_search
from experiments.unequal_sizes.matrix_form import matrix
from experiments.unequal_sizes.plain_recurrence import Recurrence
from planners.unequal import FoundSizes, Genetic, UnequalProblem, best_equal, exact_sizes, greedy_dp, local_greedy


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found on an instance; `above_exact` 0.1 is 10 % more seconds than the optimum.

    `cpu_seconds` of the search, apart from compilation.
    """

    search: str
    plan: FoundSizes
    above_exact: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance by name, with what every search found, the exact method first."""

    name: str
    found: tuple[Found, ...]

    def plan(self, search: str) -> FoundSizes:
        """The plan of one search."""
        return self._found(search).plan

    def _found(self, search: str) -> Found:
        return next(one for one in self.found if one.search == search)

    @property
    def optimum(self) -> float:
        """Seconds of the exact plan."""
        return self.found[0].plan.makespan_seconds

    @property
    def acceleration(self) -> float:
        """CPU seconds of DGAP over those of the same search on the matrix form (TiDGAP), from the same first population."""
        return self._found("DGAP").cpu_seconds / self._found("TiDGAP, unseeded").cpu_seconds

    @property
    def compiled_acceleration(self) -> float:
        """The same over the same search on the compiled recurrence."""
        return self._found("DGAP").cpu_seconds / self._found("TiDGAP, compiled").cpu_seconds


def exact(problem: UnequalProblem) -> FoundSizes:
    """The proven optimum; KeyboardInterrupt where the search was interrupted."""
    return _whole(exact_sizes(problem))


def _whole(plan: FoundSizes) -> FoundSizes:
    """A plan whose search came to its end; an interrupted one is no measurement."""
    if plan.interrupted:
        raise KeyboardInterrupt
    return plan


GENETIC: dict[str, Genetic] = {
    "DGAP": Genetic(Recurrence),
    "DGAP, single chromosome": Genetic(Recurrence, chromosomes="single"),
    "TiDGAP": Genetic(matrix, seeded=True),
    "TiDGAP, unseeded": Genetic(matrix),
    "TiDGAP, compiled": Genetic(),
    "TiDGAP, distinct survivors": Genetic(survival="distinct"),
}
"""Genetic searches by name; TiDGAP starts from the greedy plan, the others from random and equal sizes.

The last one is no variant of the paper: see `Genetic.survival`.
"""


def search_all(name: str, problem: UnequalProblem, *, seed: int = 0, generations: int = 100) -> Instance:
    """Run every search on an instance, all genetic ones (pymoo's too, where it is installed) with equally many evaluations."""
    quick: dict[str, Callable[[UnequalProblem], FoundSizes]] = {
        "exact": exact,
        "greedy DP": greedy_dp,
        "local greedy": local_greedy,
        "best equal size": best_equal,
    }
    found: dict[str, tuple[FoundSizes, float]] = {}
    for title, method in quick.items():
        method(problem)  # compiles what it needs, so that the seconds are those of the search
        found[title] = _timed(lambda method=method: method(problem))  # type: ignore[misc]
    for title, search in GENETIC.items():
        dataclasses.replace(search, generations=1)(problem, np.random.default_rng(seed))
        settings = dataclasses.replace(search, generations=generations)
        found[title] = _timed(lambda settings=settings: settings(problem, np.random.default_rng(seed)))  # type: ignore[misc]
    if available():
        pymoo_search(problem, seed, generations=1)
        found["pymoo GA"] = _timed(lambda: pymoo_search(problem, seed, generations=generations))
    best = found["exact"][0].makespan_seconds
    return Instance(
        name,
        tuple(Found(title, plan, plan.makespan_seconds / best - 1.0, cpu) for title, (plan, cpu) in found.items()),
    )


def _timed(search: Callable[[], FoundSizes]) -> tuple[FoundSizes, float]:
    """A plan, and the CPU seconds that it took, not less than the clock can tell."""
    started = time.process_time()
    plan = _whole(search())
    return plan, max(time.process_time() - started, 1e-6)
