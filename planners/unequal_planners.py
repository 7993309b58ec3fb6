"""Unequal planners: a straight pipeline with a flush whose stages have micro-batch sizes of their own (UMPIPE).

The partition is a balanced one: of those that balance the stages' seconds at 1, 2, 4, … samples, the one on which the greedy
dynamic programme or the best equal size is fastest; for "best-equal", a tuned GPipe, and for "dgap", which is to start from
no greedy plan, the best equal size alone. So none but "local-greedy" is slower than a tuned GPipe on a partition of its own
("greedy-dp" takes the better of greedy and equal sizes). `UnequalNested` searches the partition too. The searches see links as
processes at their idle rate and leave the optimizer's update out; the plan is replayed like any other, where transfers may
contend and the update counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from planners.baselines import balanced_cuts
from planners.candidates import devices_in_order
from planners.search import Evaluator, Request, fitting
from planners.unequal import (
    InfeasibleSizes,
    UnequalPlan,
    UnequalProblem,
    best_equal,
    dgap,
    exact_coupled,
    exact_sizes,
    greedy_dp,
    local_greedy,
    lower_bound,
    powers_of_two,
    search_partition,
    tidgap,
)
from planners.unequal_tables import UnequalTables, candidate_sizes, tables_of, unequal_plan, unequal_problem
from simulator import InfeasiblePlanError, Plan, Problem

Progress = Callable[[int, float], None]
Search = Callable[[UnequalProblem, np.random.Generator, Progress], UnequalPlan]
"""(problem, generator, progress(evaluations, best seconds)) -> sizes."""

Cuts = tuple[int, ...]

MEMORY_ROUNDS = 6
"""How often the search is repeated with less memory when its plan does not fit in the replay, which adds receive queues."""


def exact(problem: UnequalProblem, rng: np.random.Generator, progress: Progress) -> UnequalPlan:
    """The exact method for either kind of recomputation."""
    return exact_coupled(problem) if problem.coupled else exact_sizes(problem, progress=progress)


def _without_chance(search: Callable[[UnequalProblem], UnequalPlan]) -> Search:
    return lambda problem, rng, progress: search(problem)


def _greedy_or_equal(problem: UnequalProblem) -> UnequalPlan:
    """The greedy dynamic programme, or the best equal size where that is faster."""
    plans = [greedy_dp(problem)]
    with suppress(InfeasibleSizes):  # the memory limits of two stages may have no size in common
        plans.append(best_equal(problem))
    return min(plans, key=lambda plan: plan.makespan_seconds)


SEARCHES: dict[str, Search] = {
    "exact-unequal": exact,
    "tidgap": tidgap(),
    "dgap": dgap(),
    "greedy-dp": _without_chance(_greedy_or_equal),
    "local-greedy": _without_chance(local_greedy),
    "best-equal": _without_chance(best_equal),
}
"""Planner name -> its search."""


def number_of_stages(problem: Problem, request: Request) -> int:
    """The stages asked for, else as many as there are devices and layers."""
    return request.stages or min(len(problem.cluster.devices), len(problem.workload))


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the unequal planners cannot plan this, or None."""
    if request.schedule not in (None, "gpipe") or request.microbatches is not None:
        asked = f"{request.microbatches or 'any number of'} equal micro-batches"
        return (
            f"it chooses the sizes of every stage for a flush (gpipe), not {request.schedule or 'gpipe'!r} with {asked}"
        )
    stages, most = number_of_stages(problem, request), min(len(problem.cluster.devices), len(problem.workload))
    if stages > most:
        return f"{stages} stages are more than the {len(problem.cluster.devices)} devices or {len(problem.workload)} layers"
    return None


@dataclass(frozen=True, slots=True)
class UnequalSizes:
    """Sizes for the balanced partition, by one of the searches."""

    request: Request
    name: str
    search: Search

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The plan that the search finds within the memory of the devices; InfeasiblePlanError if none fits."""
        tables = _tables(problem, self.request, evaluate)
        sizes = candidate_sizes(problem.batch, self.request.candidates)

        def solve(limits: list[float]) -> tuple[Cuts, UnequalPlan]:
            cuts, unequal = tuned_partition(tables, sizes, limits, _quick(self.name in ("best-equal", "dgap")))
            plan = self.search(unequal, rng, evaluate.report)
            if unequal.coupled and min(unequal.backward_caps or (problem.batch,)) < max(sizes):
                # the caps are stricter than memory where sizes are equal: they may have cut off something better
                free = lower_bound(replace(unequal, backward_caps=None))
                plan = replace(plan, proven_optimal=False, lower_bound_seconds=min(free, plan.makespan_seconds))
            return cuts, plan

        return _within_memory(self.name, tables, evaluate, solve)


@dataclass(frozen=True, slots=True)
class UnequalNested:
    """Partition and sizes together: partitions by local moves (all of them, where there are few), sizes exactly.

    Unless the user fixes the candidates, partitions are compared at powers of two, and the best one, and the partition that the
    other planners take, get all candidates at the end.
    """

    request: Request
    name: str = "unequal-nested"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best plan found within the memory of the devices; InfeasiblePlanError if none fits."""
        tables = _tables(problem, self.request, evaluate)
        sizes = candidate_sizes(problem.batch, self.request.candidates or "powers-of-two")
        every = candidate_sizes(problem.batch, self.request.candidates)

        def solve(limits: list[float]) -> tuple[Cuts, UnequalPlan]:
            found = search_partition(
                lambda cuts: within_memory(unequal_problem(tables, cuts, sizes), limits),
                tables.layers,
                len(tables.devices),
                starts=balanced_partitions(tables),
                solve=lambda unequal: exact(unequal, rng, lambda evaluations, seconds: None),
                progress=evaluate.report,
            )
            proven = found.proven_optimal
            plan = replace(
                found.plan,
                proven_optimal=proven,
                lower_bound_seconds=found.plan.lower_bound_seconds if proven else 0.0,
                evaluations=found.bounded,
                interrupted=found.interrupted or found.plan.interrupted,
            )
            if every == sizes or plan.interrupted:
                return found.cuts, plan
            final = found.cuts, within_memory(unequal_problem(tables, found.cuts, every), limits)
            ends = [
                (cuts, exact(one, rng, evaluate.report))
                for cuts, one in (final, tuned_partition(tables, every, limits))
            ]
            cuts, plan = min(ends, key=lambda one: one[1].makespan_seconds)
            return cuts, replace(plan, proven_optimal=False, lower_bound_seconds=0.0, evaluations=found.bounded)

        return _within_memory(self.name, tables, evaluate, solve)


def balanced_partitions(tables: UnequalTables) -> list[Cuts]:
    """The partitions that balance the stages' seconds at 1, 2, 4, … samples, each once."""
    sizes = powers_of_two(tables.problem.batch)
    return list(dict.fromkeys(tuple(balanced_cuts(tables.stage_seconds(size))) for size in sizes))


def balanced_problem(
    tables: UnequalTables, candidates: Sequence[int] = (), *, equal: bool = False
) -> tuple[Cuts, UnequalProblem]:
    """The partition that the planners would take and its problem, within the memory of the devices.

    candidates: sizes; default `candidate_sizes` of the batch; equal: as "best-equal" would take it
    Raises InfeasibleSizes where no balanced partition fits.
    """
    problem = tables.problem
    limits = [problem.cluster.devices[device].memory_bytes for device in tables.devices]
    sizes = tuple(candidates) or candidate_sizes(problem.batch)
    return tuned_partition(tables, sizes, limits, _quick(equal))


def _quick(equal: bool) -> Callable[[UnequalProblem], UnequalPlan]:
    """The search by which a partition is chosen."""
    return best_equal if equal else _greedy_or_equal


def tuned_partition(
    tables: UnequalTables,
    candidates: tuple[int, ...],
    limits: Sequence[float],
    quick: Callable[[UnequalProblem], UnequalPlan] = _greedy_or_equal,
) -> tuple[Cuts, UnequalProblem]:
    """The balanced partition that is fastest with the sizes of a quick search, and its problem.

    limits: bytes of each device. Raises InfeasibleSizes where no balanced partition fits.
    """
    best: tuple[float, Cuts, UnequalProblem] | None = None
    failure: InfeasibleSizes | None = None
    for cuts in balanced_partitions(tables):
        try:
            unequal = within_memory(unequal_problem(tables, cuts, candidates), limits)
            seconds = quick(unequal).makespan_seconds
        except InfeasibleSizes as error:
            failure = error
            continue
        if best is None or seconds < best[0]:
            best = seconds, cuts, unequal
    if best is None:
        raise failure or InfeasibleSizes("there is no balanced partition")
    return best[1], best[2]


def within_memory(unequal: UnequalProblem, limits: Sequence[float]) -> UnequalProblem:
    """The problem with the caps under which every stage stays within its limit in bytes.

    Where a stage recomputes only if its sizes differ, it must hold all activations of the mini-batch, and its backward size is
    capped as if it recomputed: safe, and for equal sizes stricter than it need be. Raises InfeasibleSizes where a stage does
    not fit.
    """
    if not unequal.coupled:
        return unequal.with_memory_limit(limits)
    model, batch = unequal.memory, unequal.samples
    if model is None:
        raise ValueError("memory limits need a memory model")
    caps = []
    for stage, limit in enumerate(limits):
        state, activations = model.state_bytes[stage], model.activation_bytes[stage]
        if state + batch * activations > limit:
            raise InfeasibleSizes(f"stage {stage} does not fit into {limit:.0f} bytes with any candidate size")
        base = state + batch * model.input_bytes[stage]
        caps.append(max((c for c in unequal.candidates if base + c * activations <= limit), default=batch))
    return replace(unequal, backward_caps=tuple(caps))


def _tables(problem: Problem, request: Request, evaluate: Evaluator) -> UnequalTables:
    devices = devices_in_order(problem)[: number_of_stages(problem, request)]
    return tables_of(problem, devices, evaluate.layer_costs)


def _within_memory(
    name: str, tables: UnequalTables, evaluate: Evaluator, solve: Callable[[list[float]], tuple[Cuts, UnequalPlan]]
) -> Plan:
    """Solve, replay, and solve again with less memory where the replay needs more than there is."""
    problem = tables.problem
    limits = [problem.cluster.devices[device].memory_bytes for device in tables.devices]
    first: tuple[Cuts, UnequalPlan] | None = None
    for _ in range(MEMORY_ROUNDS):
        try:
            cuts, found = solve(limits)
        except InfeasibleSizes as error:
            raise InfeasiblePlanError(_does_not_fit(name, tables)) from error
        if first is None:
            first = cuts, found
        else:  # with less memory than there is nothing is proven; the first bound still holds for its partition
            bound = first[1].lower_bound_seconds if first[0] == cuts else 0.0
            found = replace(found, proven_optimal=False, lower_bound_seconds=bound)
        plan = unequal_plan(name, tables, cuts, found.forward_sizes, found.backward_sizes)
        score = evaluate(plan)
        if score.fits or found.interrupted:
            break
        limits[tables.devices.index(score.device)] -= 1.01 * (score.peak_bytes - score.capacity_bytes)
    evaluate.details.update(
        stage_forward_samples=list(found.forward_sizes),
        stage_backward_samples=list(found.backward_sizes),
        makespan_seconds=found.makespan_seconds,
        sizes_lower_bound_seconds=found.lower_bound_seconds,
        sizes_gap=found.makespan_seconds / found.lower_bound_seconds - 1.0 if found.lower_bound_seconds else None,
        proven_optimal=found.proven_optimal,
        evaluations=found.evaluations,
        recomputation="always" if problem.recompute else "where-differs",
    )
    if found.proven_optimal:
        evaluate.declare_optimal("unequal micro-batch sizes for this partition, links without contention")
    if found.interrupted:
        raise KeyboardInterrupt
    plan = fitting(name, plan, evaluate)
    evaluate.credit(found.evaluations)
    return plan


def _does_not_fit(name: str, tables: UnequalTables) -> str:
    """One line with the numbers of the stage that misses most, for an even partition."""
    problem, stages = tables.problem, len(tables.devices)
    cuts = [tables.layers * stage // stages for stage in range(1, stages)]
    model = unequal_problem(tables, cuts, (1,)).memory
    if model is None:
        raise ValueError("the tables have a memory model")
    kept = model.input_bytes if problem.recompute else model.activation_bytes
    once = model.activation_bytes if problem.recompute else (0.0,) * stages
    needs = [
        state + problem.batch * one + again for state, one, again in zip(model.state_bytes, kept, once, strict=True)
    ]
    held = [problem.cluster.devices[device].memory_bytes for device in tables.devices]
    worst = max(range(stages), key=lambda stage: needs[stage] / held[stage])
    return (
        f"planner {name!r} finds no sizes that fit: stage {worst} of an even partition needs at least "
        f"{needs[worst] / 2**30:.4g} GiB on device {tables.devices[worst]}, which holds {held[worst] / 2**30:.4g} GiB; "
        "use more stages, recomputation or a smaller batch"
    )
