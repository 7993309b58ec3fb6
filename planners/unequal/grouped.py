"""Grouped sizes: UMPIPE's unequal micro-batches for batches of any size, whose blocks are whole groups of samples.

UMPIPE optimizes the sizes of a given partition. Here that is the partition of the fastest GPipe with equal sizes, for each of the
few most promising numbers of stages; its sizes are those of the greedy dynamic programme, of the best equal size, or of a genetic
search that begins with these (TiDGAP). Replays choose among the partitions, with stages that store their activations and with
stages that all run forward again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

import numpy as np

from hardware_profiles import gibibytes
from planners.estimate.memory import lacks_room
from planners.partitioning.equal_partition import equal_partition
from planners.search.candidates import asked_policies, devices_in_order
from planners.search.evaluator import Evaluator, best_plan
from planners.search.memory_retry import missing_bytes, within_memory
from planners.search.notes import Note
from planners.search.request import Request
from planners.unequal.genetic import Genetic
from planners.unequal.greedy import best_equal, greedy_dp
from planners.unequal.planners import STORED, number_of_stages, unlike_shape
from planners.unequal.problem import InfeasibleSizes, UnequalProblem
from planners.unequal.tables import candidate_sizes, limited_problem, memory_limits, tables_of, unequal_plan
from simulator import InfeasiblePlanError, LayerCosts, Plan, Problem, Recompute, Score

MOST_GROUPS = 256
"""Groups of samples in a batch, at most, unless a granularity is asked for."""

EVERY_COUNT = 16
"""Groups up to which a micro-batch may have any number of them; larger ones have 2^k or 3 · 2^k groups, or are the whole
batch.
"""

MOST_STAGES = 128
"""Stages, at most, unless more are asked for: the plan is replayed on SimPy in the end."""

SHARES, FEW_STAGES = 4, 16
"""SHARES: numbers of stages that are tried, evenly spread up to the most; FEW_STAGES: up to which every number is tried."""

PARTITIONS = 2
"""Partitions, at most, whose sizes are searched, the fastest with equal sizes first."""
PROMISING = 1.1
"""Seconds with equal sizes, per second of the fastest partition, below which a partition's sizes are searched."""

GENETIC = Genetic(seeded=True, individuals=100, generations=40)


@dataclass(frozen=True, slots=True)
class GroupedSizes:
    """Planner of flushed pipelines whose stages have their own micro-batch sizes in each pass, multiples of a granularity."""

    request: Request = field(default_factory=Request)
    name: str = "umpipe"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan that fits; InfeasiblePlanError if none does."""
        samples = granularity(problem, self.request)
        sizes = grouped_sizes(problem.batch, samples)
        choices = sorted(self._choices(problem, evaluate, sizes), key=lambda one: one.seconds)
        close = [one for one in choices if one.seconds < PROMISING * choices[0].seconds]
        found = (within_memory(evaluate, partial(self._plan, one, sizes, rng)) for one in close[:PARTITIONS])
        plans = [plan for plan in found if plan is not None]
        if not plans:
            word = problem.device_word
            raise InfeasiblePlanError(
                f"planner {self.name!r} finds no partition of {len(problem.workload)} layers over "
                f"{problem.cluster.counted_devices} within {gibibytes(min(problem.rooms))} per {word}, with the "
                f"whole batch in flight and micro-batches of {samples} samples or more; use more {word}s, a smaller batch or "
                "granularity"
            )
        plan = best_plan(self.name, plans, evaluate)
        equal = [plan.microbatches] * len(plan.stages)
        forward, backward = (
            ", ".join(str(one[0]) for one in of_pass or equal) for of_pass in (plan.forward_sizes, plan.backward_sizes)
        )
        evaluate.note(Note(f"samples of the micro-batches of each stage: forward {forward}; backward {backward}"))
        every = f"all up to {EVERY_COUNT * samples} samples, larger ones 2^k or 3 · 2^k times it"
        evaluate.note(
            Note(
                f"sizes are multiples of {samples} samples (granularity), {every}; the last micro-batch takes what is left"
            )
        )
        return plan

    def _choices(self, problem: Problem, evaluate: Evaluator, sizes: Sequence[int]) -> Iterator[_Grouping]:
        """Numbers of stages with and without recomputation that may be promising, each with the seconds of the fastest equal
        size.
        """
        order, best = devices_in_order(problem), inf
        few = candidate_sizes(problem.batch, "powers-of-two", granularity(problem, self.request))
        for policy in tried_policies(problem, self.request):
            one = problem if policy == problem.recompute else replace(problem, recompute=policy)
            costs = evaluate.layer_costs if one is problem else LayerCosts(one)
            for stages in self._stages(problem):
                devices = order[:stages]
                if _busy_seconds(costs, devices, few) >= PROMISING * best:
                    break  # fewer devices are busier
                if lacks_room(costs, devices, sizes[0], np.full(stages, float(problem.batch))):
                    continue
                found = equal_partition(costs, devices, few)
                if found is not None:
                    best = min(best, found[0])
                    yield _Grouping(one, costs, devices, few, found[0])

    def _stages(self, problem: Problem) -> list[int]:
        """Numbers of stages to try, the most first."""
        most = number_of_stages(problem, self.request)
        if self.request.stages is not None:
            return [most]
        most = min(most, MOST_STAGES)
        shares = {-(-most * share // SHARES) for share in range(1, SHARES + 1)}
        return sorted({*range(1, min(most, FEW_STAGES) + 1), *shares}, reverse=True)

    def _plan(
        self, choice: _Grouping, sizes: Sequence[int], rng: np.random.Generator, misses: Sequence[Score]
    ) -> Plan | None:
        """The plan with the fastest sizes, with as much less memory as earlier plans exceeded it by; None where no sizes fit."""
        tables = tables_of(choice.problem, choice.devices, choice.costs, sizes)
        less = [1.01 * missing_bytes(misses, (device,)) for device in choice.devices]
        limits = [room - one for room, one in zip(memory_limits(tables), less, strict=True)]
        partition = equal_partition(choice.costs, choice.devices, choice.few, less)
        if partition is None:
            return None
        try:
            unequal = limited_problem(tables, partition[1], sizes, limits)
        except InfeasibleSizes:
            return None
        plan = unequal_plan(self.name, tables, partition[1], *fastest_sizes(unequal, rng))
        return replace(plan, recompute=(choice.problem.recompute,) * len(choice.devices))


@dataclass(frozen=True, slots=True, eq=False)
class _Grouping:
    """A pipeline whose sizes are searched.

    problem: under its recompute policy; devices: of its stages; few: equal sizes tried; seconds: of the fastest of these
    """

    problem: Problem
    costs: LayerCosts
    devices: tuple[int, ...]
    few: tuple[int, ...]
    seconds: float


def _busy_seconds(costs: LayerCosts, devices: Sequence[int], sizes: Sequence[int]) -> float:
    """Lower bound on the seconds for which the devices are busy with the whole batch, on average; 0 for boards whose layers
    stream.
    """
    alike = [costs.first_of_kind(kind) for kind in sorted(set(map(costs.kind_of_device, devices)))]
    if any(map(costs.streams, alike)):
        return 0.0
    blocks = ((size, costs.problem.batch // size) for size in sizes)
    least = min(float(costs.round_trip_seconds(one, size).sum()) * count for one in alike for size, count in blocks)
    return least / len(devices)


def fastest_sizes(unequal: UnequalProblem, rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Forward and backward sizes: of the greedy dynamic programme, the best equal ones, or of the genetic search from both."""
    found = [greedy_dp(unequal), best_equal(unequal), GENETIC(unequal, rng)]
    best = min(found, key=lambda one: one.makespan_seconds)
    return best.forward_sizes, best.backward_sizes


def grouped_sizes(batch: int, samples: int) -> tuple[int, ...]:
    """The sizes to choose from, ascending, in groups of `samples` samples."""
    groups = max(1, batch // samples)
    powers = {base << power for base in (1, 3) for power in range(groups.bit_length())}
    counts = {*range(1, min(groups, EVERY_COUNT) + 1), *(count for count in powers if count <= groups)}
    return tuple(sorted({*(count * samples for count in counts), batch}))


def granularity(problem: Problem, request: Request) -> int:
    """Samples of a group: as asked for, else the fewest of which the batch has at most MOST_GROUPS, or a divisor of the batch
    that is less than twice that.
    """
    asked: int | None = request.asked("granularity")
    if asked is not None:
        return asked
    least = -(-problem.batch // MOST_GROUPS)
    return next((one for one in range(least, 2 * least) if problem.batch % one == 0), least)


def tried_policies(problem: Problem, request: Request) -> tuple[Recompute, ...]:
    """Recompute policies to try: "none", where only stages whose sizes differ recompute, and "whole"."""
    return tuple(policy for policy in asked_policies(problem, request) if policy in ("none", "whole"))


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the planner cannot plan what is asked for, as a sentence for the user; None where it can."""
    if request.recompute == "none":
        return STORED
    if not tried_policies(problem, request):
        return f"stages run forward again as a whole or not at all, not {request.recompute or problem.recompute!r}"
    return unlike_shape(problem, request)
