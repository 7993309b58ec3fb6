"""pymoo search: the genetic algorithm of pymoo (extra `search`) on unequal sizes, as an outside baseline."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from hardware_profiles import Integers
from planners.unequal import Compiled, FoundSizes, UnequalProblem, evaluated_sizes


def available() -> bool:
    """Whether pymoo is installed (`pip install pipeplan[search]`)."""
    return find_spec("pymoo") is not None


def pymoo_search(problem: UnequalProblem, seed: int, *, individuals: int = 200, generations: int) -> FoundSizes:
    """pymoo's GA over both size vectors at once, integer-coded with its own crossover (SBX), mutation (PM) and duplicate removal.

    As many evaluations as our searches make: individuals x (generations + 1). It gets neither equal sizes nor a greedy plan to
    start from. Raises ModuleNotFoundError where pymoo is not installed.
    """
    started = time.perf_counter()
    evaluate = Compiled(problem)
    sizes, stages = np.array(problem.candidates), problem.stages
    allowed = [
        len(one)
        for chain in (problem.forward_chain, problem.backward_chain)
        for one in chain.allowed[:: -1 if chain.reverse else 1]
    ]
    history: list[tuple[int, float]] = []
    clock: list[float] = []
    best = float("inf")

    class Sizes(import_module("pymoo.core.problem").Problem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(n_var=2 * stages, n_obj=1, xl=0, xu=np.array(allowed) - 1, vtype=int)

        def _evaluate(self, vectors: Integers, out: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            nonlocal best
            chosen = sizes[np.asarray(vectors, dtype=np.int64)]
            values = evaluate(chosen[:, :stages], chosen[:, stages:])
            best = min(best, float(values.min()))
            history.append((len(values) + (history[-1][0] if history else 0), best))
            clock.append(time.perf_counter() - started)
            out["F"] = values[:, None]

    rounding = import_module("pymoo.operators.repair.rounding").RoundingRepair()
    algorithm = import_module("pymoo.algorithms.soo.nonconvex.ga").GA(
        pop_size=individuals,
        sampling=import_module("pymoo.operators.sampling.rnd").IntegerRandomSampling(),
        crossover=import_module("pymoo.operators.crossover.sbx").SBX(vtype=float, repair=rounding),
        mutation=import_module("pymoo.operators.mutation.pm").PM(vtype=float, repair=rounding),
        eliminate_duplicates=True,
    )
    limit = individuals * (generations + 1)
    result = import_module("pymoo.optimize").minimize(Sizes(), algorithm, ("n_eval", limit), seed=seed, verbose=False)
    found = sizes[np.asarray(result.X, dtype=np.int64)]
    answer = evaluated_sizes(problem, found[:stages], found[stages:], history[-1][0], started)
    return replace(answer, history=tuple(history), history_seconds=tuple(clock))
