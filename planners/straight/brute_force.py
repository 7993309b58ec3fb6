"""Brute force: every contiguous partition × schedule × number of micro-batches of a small problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from planners.estimate.memory import ROUNDING
from planners.search.candidates import (
    CHUNKS,
    device_choices,
    least_microbatches,
    microbatch_counts,
    straight_decisions,
    straight_plan,
)
from planners.search.evaluator import Evaluator, fitting
from planners.search.request import Request
from planners.search.timed_orders import OPTION, with_timed
from simulator import InfeasiblePlanError, LayerCosts, Plan, Problem, schedule_families

SCHEDULES = ("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs")
"""Flushed families that are tried where no schedule is requested."""

FEW_SAMPLES = 16
"""Samples of a batch up to which every number of micro-batches is tried."""

CONFIGURATION_LIMIT = 5_000
"""Plans, at most, that are replayed one by one (a few milliseconds each)."""


def few_counts(problem: Problem) -> tuple[int, ...]:
    """Numbers of micro-batches to try, rising: all for a batch of FEW_SAMPLES; for a larger one powers of two, these times 2, 3,
    ... up to the devices, and the batch.
    """
    batch = problem.batch
    if batch <= FEW_SAMPLES:
        return tuple(range(1, batch + 1))
    powers, devices = [2**power for power in range(batch.bit_length())], range(1, len(problem.cluster.devices) + 1)
    return tuple(sorted({*(power * count for power in powers for count in devices if power * count <= batch), batch}))


def searched(problem: Problem, request: Request) -> dict[str, Iterable[Any]]:
    """Values that a search tries, by the name of the decision, for decisions that the request leaves open."""
    return straight_decisions(problem, request, SCHEDULES, few_counts(problem), (1, CHUNKS))


@dataclass(frozen=True, slots=True)
class BruteForce:
    """The fastest straight pipeline that fits, proven on the reference engine with the problem's own options.

    Stages are contiguous ranges of the layers, on the first devices in the cluster's order, one device per stage or, for
    schedules that go round the devices, CHUNKS stages per device. Micro-batches: `few_counts`, or as many as are asked for.
    limit: plans, at most, that are replayed

    All plans are replayed with the search's engine first. On each device the order of the ops is fixed, so that waiting for a
    contended link only delays: also an engine without contention never gives more seconds than the reference. The plans go
    through the reference by rising seconds, until those exceed the best reference replay that fits: then no plan that is left can
    be faster.
    """

    request: Request = field(default_factory=Request)
    limit: int = CONFIGURATION_LIMIT
    name: str = "brute-force"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan; ValueError if there are more plans than the limit, InfeasiblePlanError if none fits."""
        reason = self.inapplicable(problem)
        if reason is not None:
            raise ValueError(f"planner {self.name!r} does not apply: {reason}")
        plans = enumerate(with_timed(problem, self.plans(problem), evaluate.layer_costs))
        ranked = sorted((evaluate(plan).iteration_seconds, number, plan) for number, plan in plans)
        best: tuple[tuple[float, float], Plan] | None = None
        for seconds, _, plan in ranked:
            if best is not None and (0.0, seconds * (1.0 - ROUNDING)) >= best[0]:
                break
            key = evaluate.on_reference(plan).key
            if best is None or key < best[0]:
                best = key, plan
        if best is None:  # of the schedule that needs a micro-batch per stage
            raise InfeasiblePlanError(
                f"schedule {self.request.schedule!r} needs at least {self.request.stages} micro-batches, one per stage, "
                f"got {self.request.microbatches or problem.batch}"
            )
        plan = fitting(self.name, best[1], evaluate, evaluate.on_reference(best[1]))
        evaluate.declare_optimal(self.space(problem))
        return plan

    def space(self, problem: Problem) -> str:
        """The plans that are compared, and what replays them, in words."""
        shapes = list(self._shapes(problem))
        schedules = [
            f"{schedule} ({chunks} stages per device)" if chunks > 1 else schedule
            for schedule, chunks in dict.fromkeys((schedule, chunks) for schedule, _, chunks in shapes)
        ]
        counts = {
            count
            for schedule, devices, chunks in shapes
            for count in self._counts(problem, schedule, len(devices) * chunks)
        }
        most = max(len(devices) for _, devices, _ in shapes)
        mixed = len({device.name for device in problem.cluster.devices}) > 1
        timed = any(OPTION in schedule_families()[schedule].options for schedule, _, _ in shapes)
        return (
            f"straight pipelines on whole, contiguous layers with {', '.join(schedules)}"
            f"{', as it is and made for the mean seconds of its stages' if timed else ''}, on the first "
            f"{'device' if most == 1 else f'1 to {most} devices'} of the cluster in its order"
            f"{', or of its fastest kinds, or of one kind' if mixed else ''}, in "
            f"{', '.join(map(str, sorted(counts)))} micro-batches as equal as whole samples permit, replayed with "
            f"{'contention' if problem.contention else 'unlimited links'}"
        )

    def inapplicable(self, problem: Problem) -> str | None:
        """Why the problem is too large to try every plan, as a sentence; None where it is not."""
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
            comb(layers - 1, len(devices) * chunks - 1)
            * len(self._counts(problem, schedule, len(devices) * chunks))
            * (2 if OPTION in schedule_families()[schedule].options else 1)
            for schedule, devices, chunks in self._shapes(problem)
        )

    def plans(self, problem: Problem) -> Iterator[Plan]:
        """Every plan to compare, fewer stages first."""
        layers = len(problem.workload)
        for schedule, devices, chunks in self._shapes(problem):
            held = schedule_families()[schedule].device_of_stage(devices, chunks)
            for cuts in combinations(range(1, layers), len(held) - 1):
                for count in self._counts(problem, schedule, len(cuts) + 1):
                    yield straight_plan(self.name, problem, schedule, cuts, held, count)

    def _counts(self, problem: Problem, schedule: str, stages: int) -> tuple[int, ...]:
        """Numbers of micro-batches that the schedule can run, of those asked for or of `few_counts`."""
        asked = self.request.microbatches
        counts = (
            few_counts(problem) if asked is None else microbatch_counts(problem, Request(microbatches=asked), stages)
        )
        return tuple(sorted(count for count in counts if count >= least_microbatches(schedule, stages)))

    def _shapes(self, problem: Problem) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """(schedule, devices, stages per device) of every pipeline to compare."""
        layers, choices = len(problem.workload), device_choices(problem, LayerCosts(problem))
        families = schedule_families()
        wanted = self.request
        for schedule in SCHEDULES if wanted.schedule is None else (wanted.schedule,):
            looped, own = "chunks" in families[schedule].options, families[schedule].chunks
            # One stage per device is 1F1B or GPipe again: only where the looped schedule itself is asked for.
            chunks = [CHUNKS] if looped and wanted.schedule is None else list({own, CHUNKS}) if looped else [own]
            if wanted.chunks is not None:
                chunks = [wanted.chunks] if looped or wanted.chunks == own else []
            first = [order[:count] for order in choices for count in range(1, min(layers, len(order)) + 1)]
            for devices in sorted(dict.fromkeys(first), key=len):
                yield from (
                    (schedule, devices, held)
                    for held in chunks
                    if len(devices) * held <= layers and wanted.stages in (None, len(devices) * held)
                )
