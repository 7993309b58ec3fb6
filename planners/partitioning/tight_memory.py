"""Tight memory: a search for cuts that fit, where the preferred cuts do not.

What a stage holds is known before a replay but for the buffers of transfers: its weights, and the activations of the
micro-batches that its schedule keeps in flight. The partition search leaves out what cannot fit by that rule; a replay decides
about the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from hardware_profiles import Flags, Integers
from planners.estimate.memory import most_in_flight, samples_in_flight
from planners.partitioning.fastest_cuts import fastest_cuts
from planners.partitioning.partition_costs import PartitionCosts, straight_costs
from planners.search.candidates import straight_plan
from planners.search.evaluator import Evaluator
from planners.search.memory_retry import missing_bytes, within_memory
from simulator import InfeasiblePlanError, Plan, ScheduleError, Score, build_program, schedule_families

PlanOf = Callable[[Sequence[int]], Plan]
"""Cuts -> the plan with these cuts."""

EXHAUSTIVE = 300
"""Partitions, at most, that are replayed one by one where those of the partition search do not fit."""


def cuts_within(costs: PartitionCosts) -> Iterator[tuple[int, ...]]:
    """Every partition whose stages end where memory permits, in the order of its cuts."""
    stages, layers = len(costs.kind), costs.layers
    furthest = np.full((stages, layers + 1), layers) if costs.furthest is None else costs.furthest
    live = _live(furthest)

    def behind(cuts: tuple[int, ...], begin: int) -> Iterator[tuple[int, ...]]:
        stage = len(cuts)
        if stage == stages - 1:
            yield cuts
            return
        ends = begin + 1 + np.flatnonzero(live[stage + 1, begin + 1 : furthest[stage, begin] + 1])
        for end in ends.tolist():
            yield from behind((*cuts, end), end)

    return behind((), 0) if live[0, 0] else iter(())


def _live(furthest: Integers) -> Flags:
    """Whether stage s and those behind it can hold the layers from layer b on, bool [stages, layers + 1].

    With it no dead end is followed: there are exponentially many where the last stages hold too little.
    """
    live: Flags = np.asarray(furthest >= furthest.shape[1] - 1)
    live[:, -1] = False  # every stage holds a layer
    begins = np.arange(furthest.shape[1])
    for stage in reversed(range(len(live) - 1)):
        before = np.concatenate(([0], np.cumsum(live[stage + 1])))
        live[stage] = before[furthest[stage] + 1] > before[begins + 1]
    return live


def tight_plan(
    planner: str, evaluate: Evaluator, schedule: str, devices: Sequence[int], counts: Sequence[int]
) -> Plan | None:
    """The fastest straight pipeline on `devices` that fits, of the one found for each number of micro-batches (`counts`); None if
    none fits.

    All partitions are tried where they are EXHAUSTIVE or fewer.
    """
    found = [_tight(planner, evaluate, schedule, devices, count) for count in counts]
    fitting = [plan for plan in found if plan is not None]
    return min(fitting, key=lambda plan: evaluate(plan).key, default=None)


def _tight(planner: str, evaluate: Evaluator, schedule: str, devices: Sequence[int], count: int) -> Plan | None:
    """A straight pipeline with `count` micro-batches that fits; None if none is found, or the schedule does not run with so
    many.
    """
    problem, stages = evaluate.problem, len(devices)

    def plan_of(cuts: Sequence[int]) -> Plan:
        return straight_plan(planner, problem, schedule, cuts, devices, count)

    try:
        held = most_held_by(evaluate, plan_of(range(1, stages)))
    except (InfeasiblePlanError, ScheduleError):
        return None  # the schedule does not run with so many micro-batches
    samples = -(-problem.batch // count)

    def costs(misses: Sequence[Score]) -> PartitionCosts:
        spare = [missing_bytes(misses, (device,)) for device in devices]
        samples_held = samples_in_flight(held, problem.batch, count).tolist()
        return straight_costs(
            evaluate.layer_costs, devices, samples, alternating=True, in_flight=samples_held, spare=spare
        )

    def search(misses: Sequence[Score]) -> Plan | None:
        best = fastest_cuts(costs(misses), count)
        return plan_of(best[0][1]) if best else None

    found = within_memory(evaluate, search)
    return found if found and evaluate(found).fits else fitting_cuts(costs(()), evaluate, plan_of)


def fitting_cuts(costs: PartitionCosts, evaluate: Evaluator, plan_of: PlanOf) -> Plan | None:
    """The first plan that fits, of all partitions that memory permits by the rule; None if none does, or there are more than
    EXHAUSTIVE.
    """
    every = list(islice(cuts_within(costs), EXHAUSTIVE + 1))
    if len(every) > EXHAUSTIVE:
        return None
    return next((plan for plan in map(plan_of, every) if evaluate(plan).fits), None)


def most_held_by(evaluate: Evaluator, plan: Plan) -> Integers:
    """Most micro-batches whose activations each stage of a plan holds at once, int64 [stages]; 1 where ops run side by side on
    lanes.
    """
    if schedule_families()[plan.schedule].lanes:
        return np.ones(len(plan.stages), dtype=np.int64)
    _, schedule, _ = build_program(evaluate.problem, plan, evaluate.layer_costs)
    return most_in_flight(schedule)
