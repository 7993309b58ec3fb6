"""Optima: small schedule problems of a file, with the best makespan that is known of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from experiments.benchmarks.timing import least_seconds
from experiments.studies.public_inputs import read_json
from experiments.terminal.output import InputError
from hardware_profiles import MOST_AMOUNT, MOST_COUNT, blaming
from planners import FoundSchedule, ScheduleProblem, search_schedule
from simulator import Placement, chains_of

TOLERANCE = 1e-9
"""Relative; sums of seconds are rounded."""


_Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=MOST_AMOUNT)]


class OptimumCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case as its file has it; `schedule_problem` says what the numbers are."""

    name: str
    devices: _Count
    stages: _Count
    placement: Placement
    microbatches: _Count
    forward: list[_Amount]
    input_gradient: list[_Amount]
    weight_gradient: list[_Amount]
    transfer: _Amount
    freed_at_input_gradient: list[_Amount]
    freed_at_weight_gradient: list[_Amount]
    memory_limit: _Amount
    best_makespan: Annotated[float, msgspec.Meta(gt=0, le=MOST_AMOUNT)]
    proven: bool = False

    def problem(self) -> ScheduleProblem:
        """What is searched; ValueError for numbers that do not go together."""
        return ScheduleProblem(
            chains=chains_of(self.placement, self.stages, self.devices),
            microbatches=self.microbatches,
            forward=self.forward,
            input_gradient=self.input_gradient,
            weight_gradient=self.weight_gradient,
            transfer=self.transfer,
            freed_at_input_gradient=self.freed_at_input_gradient,
            freed_at_weight_gradient=self.freed_at_weight_gradient,
            limit=self.memory_limit,
        )


class OptimumFile(msgspec.Struct, frozen=True):
    """A file of cases."""

    cases: list[OptimumCase]


def read_optima(path: str) -> list[tuple[OptimumCase, ScheduleProblem]]:
    """The cases of a file, a list or an object with `cases`; InputError names the file and what is wrong."""
    found = read_json(Path(path), list[OptimumCase] | OptimumFile)
    cases = found.cases if isinstance(found, OptimumFile) else found
    if not cases:
        raise InputError(f"{path}: the list of cases is empty")
    problems = []
    for number, case in enumerate(cases):
        with blaming(InputError, f"{path}: case {number} ({case.name})"):
            problems.append((case, case.problem()))
    return problems


def check_optimum(case: OptimumCase, problem: ScheduleProblem, seconds: float) -> dict[str, Any]:
    """Search one case; a row with the verdict `matched` or `failed`."""
    found, spent = timed_search(problem, seconds)
    gap = found.makespan / case.best_makespan - 1.0
    wrong = "below what is proven" if case.proven and gap < -TOLERANCE else "slower" if gap > TOLERANCE else ""
    return {
        "name": case.name,
        "best_makespan": case.best_makespan,
        "makespan_seconds": found.makespan,
        "lower_bound_seconds": found.bound,
        "gap": gap,
        "gap_over_bound": found.gap,
        "proven": found.proven,
        "cpu_seconds": spent,
        "verdict": f"failed: {wrong}" if wrong else "matched",
    }


def timed_search(problem: ScheduleProblem, seconds: float) -> tuple[FoundSchedule, float]:
    """What a search finds, and its CPU seconds."""
    return least_seconds(lambda: search_schedule(problem, seconds=seconds))
