"""Brute force: every contiguous partition × schedule × number of micro-batches of a small problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import numpy as np

from planners.candidates import CHUNKS, devices_in_order, least_microbatches, microbatch_counts, straight_plan
from planners.search import Evaluator, Request, best_plan
from simulator import Plan, Problem, schedule_families

SCHEDULES = ("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs")
"""Synchronous families that are tried when none is requested."""

CONFIGURATION_LIMIT = 5_000
"""More plans than this are too many to replay one by one (a few milliseconds each)."""


@dataclass(frozen=True, slots=True)
class BruteForce:
    """The fastest straight pipeline that fits, proven by replaying them all.

    Stages are contiguous ranges of the layers, on the first devices in the cluster's order, one device a stage or, for schedules
    that go round the devices, CHUNKS stages a device. Micro-batches: the same counts that the other planners try.
    """

    request: Request = field(default_factory=Request)
    limit: int = CONFIGURATION_LIMIT
    name: str = "brute-force"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The optimum; ValueError if there are more plans than the limit, InfeasiblePlanError if none fits."""
        reason = self.inapplicable(problem)
        if reason is not None:
            raise ValueError(f"planner {self.name!r} does not apply: {reason}")
        plan = best_plan(self.name, self.plans(problem), evaluate)
        schedules = ", ".join(dict.fromkeys(shape[0] for shape in self._shapes(problem)))
        evaluate.declare_optimal(f"straight pipelines on contiguous layers with {schedules}")
        return plan

    def inapplicable(self, problem: Problem) -> str | None:
        """Why the problem is too large to try every plan, or None."""
        count = self.configurations(problem)
        if count <= self.limit:
            return None
        # A count of hundreds of digits is no float.
        number = f"{count:,}" if count < 10**12 else f"about 10^{len(str(count)) - 1}"
        return f"{number} plans to replay, the limit is {self.limit:,}"

    def configurations(self, problem: Problem) -> int:
        """Number of plans that would be replayed."""
        layers = len(problem.workload)
        return sum(
            comb(layers - 1, devices * chunks - 1) * len(self._counts(problem, schedule, devices * chunks))
            for schedule, devices, chunks in self._shapes(problem)
        )

    def plans(self, problem: Problem) -> Iterator[Plan]:
        """Every plan, fewer stages first."""
        layers, order = len(problem.workload), devices_in_order(problem)
        for schedule, devices, chunks in self._shapes(problem):
            for cuts in combinations(range(1, layers), devices * chunks - 1):
                for count in self._counts(problem, schedule, len(cuts) + 1):
                    yield straight_plan(self.name, problem, schedule, cuts, order[:devices] * chunks, count)

    def _counts(self, problem: Problem, schedule: str, stages: int) -> tuple[int, ...]:
        """Numbers of micro-batches that the other planners try on any number of devices, and that the schedule can run."""
        free = Request(microbatches=self.request.microbatches)
        counts = {
            count
            for devices in range(1, len(problem.cluster.devices) + 1)
            for count in microbatch_counts(problem, free, devices)
        }
        return tuple(sorted(count for count in counts if count >= least_microbatches(schedule, stages)))

    def _shapes(self, problem: Problem) -> Iterator[tuple[str, int, int]]:
        """Schedule, devices, stages a device."""
        layers, most = len(problem.workload), len(problem.cluster.devices)
        families = schedule_families()
        for schedule in SCHEDULES if self.request.schedule is None else (self.request.schedule,):
            looped = "chunks" in families[schedule].options
            for devices in range(1, min(layers, most) + 1):
                # One stage a device is 1F1B or GPipe again: only where the looped schedule itself is asked for.
                chunks = (CHUNKS,) if looped and self.request.schedule is None else (1, CHUNKS) if looped else (1,)
                yield from ((schedule, devices, held) for held in chunks if devices * held <= layers)
