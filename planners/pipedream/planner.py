"""PipeDream planner: problem -> state table -> PipeDream's partition -> plan, asynchronous or flushed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Level
from planners.partitioning.in_flight import most_in_flight
from planners.pipedream.flushed_partition import FlushedPipeline, flushed_partition
from planners.pipedream.partitioner import (
    HierarchicalPartition,
    InfeasiblePartition,
    LevelStage,
    MemoryLimit,
    PlannedStage,
    flattened,
    partition,
)
from planners.pipedream.state_table import StateTable, state_table
from planners.search.candidates import closest_to_fit, devices_in_order, microbatch_counts
from planners.search.evaluator import Evaluator, Request, Score, best_plan, fitting
from planners.search.memory_retry import shrunk, within_memory
from simulator import (
    InfeasiblePlanError,
    Plan,
    Problem,
    Stage,
    antichain_states,
    build_schedule,
    equal_microbatches,
    schedule_families,
)

Component = int | tuple["Component", ...]
"""A part of the cluster: a device id, or the parts that a level joins."""


@dataclass(frozen=True, slots=True)
class PipeDream:
    """PipeDream (SOSP 2019): its partition, run as asynchronous 1F1B-RR with weight stashing.

    A micro-batch is one device's mini-batch: the batch over the devices, unless a count is requested. On a cluster
    of two levels two partitions are compared by simulation: the hierarchical one, and a flat one at the rates of
    the slowest links, which may leave servers in the middle (15-1 on 4 servers of 4); on the engine with
    contention, if the problem has it. A partition of a single stage is plain, synchronous data parallelism. The
    dynamic program bounds memory by its own rule; where the replay needs more, it searches again with as much less.
    """

    request: Request = field(default_factory=Request)
    name: str = "pipedream"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The faster of the partitions that fit; ValueError if the cluster is no tree of equal servers."""
        return fitting(self.name, preferred_plan(self.name, self.request, problem, evaluate), evaluate)


@dataclass(frozen=True, slots=True)
class PipeDreamFlush:
    """PipeDream's partition run synchronously: replicas split every micro-batch, one update a batch.

    The partition is the one that `PipeDream` prefers, or the one with the fastest slowest stage within the memory of a flushed
    pipeline, which has one version of the weights; that and the number of micro-batches are chosen by simulation.
    """

    request: Request = field(default_factory=Request)
    name: str = "pipedream-flush"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The best number of micro-batches; ValueError if the cluster is no tree of equal servers."""
        schedule = self.request.schedule or "1f1b"
        counts = microbatch_counts(problem, self.request, len(problem.cluster.devices))
        own_plans = (self._plan(problem, evaluate, schedule, count) for count in counts)
        closest = [closest_to_fit(own_plans, evaluate)]
        try:
            # The partition is that of the asynchronous pipeline, whatever count is requested of the flushed one.
            own = Request(engine=self.request.engine)
            stages = preferred_plan(self.name, own, problem, evaluate).stages
        except InfeasiblePlanError:
            pass  # weight versions do not fit: the flushed pipeline has only one
        else:
            shared = (Plan(self.name, schedule, stages, equal_microbatches(problem.batch, count)) for count in counts)
            closest.append(closest_to_fit(shared, evaluate))
        return best_plan(self.name, closest, evaluate)

    def _plan(self, problem: Problem, evaluate: Evaluator, schedule: str, count: int) -> Plan:
        """The fastest partition that fits by the rule of a flushed pipeline, else plain data parallelism."""
        view, microbatches = cluster_views(problem)[-1], equal_microbatches(problem.batch, count)
        table = problem_table(problem, evaluate, microbatches[0])
        pipeline = FlushedPipeline(
            devices=len(view.components),
            samples=microbatches[0],
            microbatches=count,
            in_flight=_in_flight(schedule, min(len(view.components), len(table)), count),
            memory_bytes=min(device.memory_bytes for device in problem.cluster.devices),
            weight_copies=problem.state_bytes / problem.element_bytes,
            recompute=problem.recompute in ("blocks", "whole"),
            bandwidth=view.levels[0].bandwidth,
            collective_bandwidth=view.levels[0].collective_bandwidth,
        )

        def search(misses: Sequence[Score]) -> Plan | None:
            left = pipeline._replace(memory_bytes=shrunk(pipeline.memory_bytes, misses))
            found = flushed_partition(table, left)
            if found is None:
                return None
            stages = place_stages(flattened(table.states, [found]), [found], view.components)
            return Plan(self.name, schedule, stages, microbatches)

        return within_memory(evaluate, search) or Plan(self.name, schedule, (_whole(problem),), microbatches)


def inapplicable(problem: Problem) -> str | None:
    """Why PipeDream's partitioner cannot plan for a cluster, or None."""
    try:
        problem.cluster.levels()
    except ValueError as reason:
        return str(reason)
    return None


def preferred_plan(name: str, request: Request, problem: Problem, evaluate: Evaluator) -> Plan:
    """The asynchronous plan that is fastest on the reference engine: partitions differ most in how their transfers compete."""
    plans = pipedream_plans(name, request, problem, evaluate)
    if len(plans) == 1:
        return plans[0]
    return min(plans, key=lambda plan: evaluate(plan).key)


def pipedream_plans(name: str, request: Request, problem: Problem, evaluate: Evaluator) -> list[Plan]:
    """One asynchronous plan for each way to look at the cluster and form of the cost, hierarchical first.

    Raises InfeasiblePlanError if the dynamic program finds no partition within the memory.
    """
    devices = len(problem.cluster.devices)
    count = min(devices, problem.batch) if request.microbatches is None else request.microbatches
    microbatches = equal_microbatches(problem.batch, count)
    table = problem_table(problem, evaluate, max(microbatches))
    plans: list[Plan] = []
    for view, (form, straight) in itertools.product(cluster_views(problem), _forms(problem)):

        def plan_of(found: HierarchicalPartition, view: ClusterView = view) -> Plan:
            return _asynchronous_plan(
                name, place_stages(found.stages, found.levels, view.components), microbatches, request
            )

        plan = _plan_within_memory(problem, evaluate, table, view, form, straight, plan_of)
        if plan is not None and all(plan.stages != other.stages for other in plans):
            plans.append(plan)
    if not plans:
        capacity = min(device.memory_bytes for device in problem.cluster.devices)
        raise InfeasiblePlanError(
            f"planner {name!r} finds no partition of {len(table)} states over {devices} devices within "
            f"{capacity / 2**30:.4g} GiB a device; use more devices, recomputation or a smaller batch"
        )
    return plans


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster for the dynamic program: its levels, lowest first, and the top one's components, nested tuples of device ids."""

    levels: tuple[Level, ...]
    components: tuple[Component, ...]


def cluster_views(problem: Problem) -> list[ClusterView]:
    """The cluster's own levels and, if there are several, one flat level at the rates of its slowest links."""
    levels, order = problem.cluster.levels(), devices_in_order(problem)
    if not levels:
        return [ClusterView((Level(1, 1.0, 1.0),), order)]
    slowest = min(level.bandwidth for level in levels), min(level.collective_bandwidth for level in levels)
    flat = ClusterView((Level(len(order), *slowest),), order)
    return [flat] if len(levels) == 1 else [ClusterView(levels, tuple(problem.cluster.servers)), flat]


def problem_table(problem: Problem, evaluate: Evaluator, minibatch: int) -> StateTable:
    """The problem's costs as the dynamic program reads them, at one device's mini-batch (samples)."""
    workload = problem.workload
    # A measured profile's inputs are layers that PipeDream's profiler timed.
    states = antichain_states(workload, drop_inputs=workload.bytes_per_element is None)
    if states.lost:
        evaluate.details["cuts_left_out"] = states.lost
    return state_table(
        workload,
        evaluate.layer_costs.round_trip_seconds(0, minibatch),
        minibatch=minibatch,
        bytes_per_element=problem.element_bytes,
        states=states,
    )


def place_stages(
    stages: Sequence[PlannedStage], levels: Sequence[Sequence[LevelStage]], components: Sequence[Component]
) -> tuple[Stage, ...]:
    """Devices of each stage: the stages of a level take their components in order, inside every replica alike."""
    placed = _placed(levels, len(levels) - 1, [tuple(components)], 0, stages[-1].stop)
    return tuple(Stage(planned.layers, devices) for planned, devices in zip(stages, placed, strict=True))


def _placed(
    levels: Sequence[Sequence[LevelStage]],
    level: int,
    groups: Sequence[tuple[Component, ...]],
    start: int,
    stop: int,
) -> Iterator[tuple[int, ...]]:
    """Devices of the lowest stages within states [start, stop); `groups` are the replicas that hold these states."""
    taken = 0
    for stage in levels[level]:
        if not start <= stage.start < stop:
            continue
        held = [component for group in groups for component in group[taken : taken + stage.workers]]
        taken += stage.workers
        if level == 0:
            yield tuple(component for component in held if isinstance(component, int))
        else:
            inner = [component for component in held if isinstance(component, tuple)]
            yield from _placed(levels, level - 1, inner, stage.start, stage.stop)


def _whole(problem: Problem) -> Stage:
    """The whole network on every device."""
    return Stage(tuple(range(len(problem.workload))), devices_in_order(problem))


def _in_flight(name: str, stages: int, microbatches: int) -> NDArray[np.int64]:
    """Micro-batches in flight on each stage of a schedule at its peak, the last stage first, int64 [stages]."""
    options = {"chunks": 1} if "chunks" in schedule_families()[name].options else {}
    return most_in_flight(build_schedule(name, stages, microbatches, **options))[::-1].copy()


def _forms(problem: Problem) -> tuple[tuple[str, bool], ...]:
    """Forms of the cost to search with, and whether straight plans only.

    The paper's form holds where replicas do not wait for each other. At a barrier the all-reduce comes on top, and replicas
    that send at once to several stages behind them wait for these as well, which no form of the recurrence knows: plans of the
    forms around it are compared by replay.
    """
    if problem.replica_updates != "barrier":
        return (("paper", False),)
    return (("barrier", False), ("paper", False), ("barrier", True))


def _plan_within_memory(
    problem: Problem,
    evaluate: Evaluator,
    table: StateTable,
    view: ClusterView,
    variant: str,
    straight: bool,
    plan_of: Callable[[HierarchicalPartition], Plan],
) -> Plan | None:
    """The plan of one view; searched again with less memory while the replay does not fit. None if there is none."""
    memory = MemoryLimit(
        min(device.memory_bytes for device in problem.cluster.devices),
        # Beside the weight versions: gradients, and what the optimizer keeps.
        unversioned_copies=(problem.accumulated_bytes + problem.optimizer_bytes) / problem.element_bytes,
        # A replica that does not wait has the gradients of its last round still in the all-reduce.
        replicated_copies=1.0 if problem.replica_updates == "overlapped" else 0.0,
        recompute=problem.recompute in ("blocks", "whole"),
    )

    def search(misses: Sequence[Score]) -> Plan | None:
        left = replace(memory, capacity_bytes=shrunk(memory.capacity_bytes, misses))
        try:
            found = partition(table, view.levels, variant=variant, straight=straight, memory=left)
        except InfeasiblePartition:
            return None
        return plan_of(found)

    return within_memory(evaluate, search)


def _asynchronous_plan(name: str, stages: tuple[Stage, ...], microbatches: tuple[int, ...], request: Request) -> Plan:
    """The stages as a stream; a single one as synchronous data parallelism, at once unless micro-batches are requested."""
    if len(stages) > 1:
        return Plan(name, "1f1b-rr", stages, microbatches, "round-robin")
    if request.microbatches is None or len(microbatches) == 1:
        return Plan(name, "gpipe", stages, (sum(microbatches),))
    return Plan(name, "1f1b", stages, microbatches)
