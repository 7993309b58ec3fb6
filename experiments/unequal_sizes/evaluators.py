"""The evaluators of unequal sizes by name: all give the makespans of a population, and the same ones, to the last bit.

The planners use the compiled one. The plain recurrence and the matrix form are those of the paper's searches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numba import get_num_threads, prange
from numpy.typing import ArrayLike

from experiments.unequal_sizes.matrix_form import Matrix
from experiments.unequal_sizes.plain_recurrence import Recurrence
from experiments.unequal_sizes.table_costs import program_of
from hardware_profiles import Floats, Integers
from planners.unequal import Compiled, PopulationEvaluator, UnequalProblem, differing_stages, evaluate_rows, population
from simulator import Program, kernel
from simulator.engines import event_loop, reference

Evaluate = Callable[[Integers, Integers], Floats]
"""(forward sizes, backward sizes), each (individuals, K) -> makespans in seconds."""


@dataclass(frozen=True, slots=True)
class CompiledParallel(Compiled):
    """The compiled recurrence with the individuals of a makespan split over numba's threads, in one go for both passes.

    It pays where the cores are free: the threads meet at a barrier that spins, so beside other busy processes one core is faster
    (`OMP_WAIT_POLICY=passive` softens that).
    """

    def __call__(self, forward_sizes: ArrayLike, backward_sizes: ArrayLike) -> Floats:
        """Seconds of a mini-batch with a flush."""
        problem = self.problem
        ahead, back = population(problem, forward_sizes), population(problem, backward_sizes)
        result = np.empty((2, len(ahead)))
        tables = problem.forward_chain.durations, problem.backward_chain.durations
        _makespans(*tables, ahead, back, differing_stages(problem, back, ahead), result, get_num_threads())
        total: Floats = result[0] + result[1]
        return total


@kernel(parallel=True)
def _makespans(
    forward: Floats,
    backward: Floats,
    forward_sizes: Integers,
    backward_sizes: Integers,
    differs: Integers,
    result: Floats,
    parts: int,
) -> None:
    """Forward seconds into `result[0]`, backward into `result[1]`, individuals split over `parts` threads at once."""
    count = forward_sizes.shape[0]
    none = np.zeros((count, 0), dtype=np.int64)
    for part in prange(parts):
        first, stop = part * count // parts, (part + 1) * count // parts
        evaluate_rows(forward, False, forward_sizes, none, result[0], first, stop)
        evaluate_rows(backward, True, backward_sizes, differs, result[1], first, stop)


POPULATION_EVALUATORS: dict[str, Callable[[UnequalProblem], PopulationEvaluator]] = {
    "recurrence": Recurrence,
    "matrix": Matrix,
    "compiled": Compiled,
    "compiled-parallel": CompiledParallel,
}
"""Name -> (problem) -> evaluator of populations; tables are built once, by this call."""

ENGINES = {"event-loop": event_loop.replay, "simpy": reference.replay}
"""Engines of the simulator that know contention, and so the links of the model."""


def programs_of(problem: UnequalProblem, forward_sizes: Integers, backward_sizes: Integers) -> list[Program]:
    """Each individual lowered as any schedule is, with a flush."""
    return [program_of(problem, *pair) for pair in zip(forward_sizes.tolist(), backward_sizes.tolist(), strict=True)]


def makespans(engine: str, programs: Iterable[Program]) -> Floats:
    """Seconds of each program on an engine of the simulator."""
    return np.array([ENGINES[engine](program, contention=True).makespan_seconds for program in programs])


def on_engine(engine: str) -> Callable[[UnequalProblem], Evaluate]:
    """An evaluator that lowers and replays one individual after the other."""
    return lambda problem: lambda forward, backward: makespans(engine, programs_of(problem, forward, backward))


EVALUATORS: dict[str, Callable[[UnequalProblem], Evaluate]] = {
    **POPULATION_EVALUATORS,
    **{name: on_engine(name) for name in ENGINES},
}
"""All of them by name, those that lower and replay each individual too."""
