"""PipeDream planner: problem -> state table -> PipeDream's partition -> plan, asynchronous or flushed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import inf

import numpy as np

from hardware_profiles import GIB, Component, Level, Operation, counted
from planners.estimate.memory import in_flight_of, least_excess, most_bytes, most_in_flight
from planners.pipedream.flushed_partition import FlushedPipeline, flushed_partition
from planners.pipedream.ordered_devices import OrderedDevices, ordered_partition
from planners.pipedream.partitioner import (
    InfeasiblePartition,
    LevelStage,
    MemoryLimit,
    PlannedStage,
    flattened,
    partition,
)
from planners.pipedream.state_table import StateTable, state_table
from planners.search.candidates import closest_to_fit, device_choices, devices_in_order, microbatch_counts
from planners.search.evaluator import Evaluator, best_plan, fitting
from planners.search.memory_retry import shrunk, within_memory
from planners.search.notes import CutsLeftOut
from planners.search.quick_replay import WHOLE_BACKWARDS, order_of, order_of_plan
from planners.search.request import Request
from simulator import (
    BY_BLOCK,
    AntichainStates,
    InfeasiblePlanError,
    LayerCosts,
    Plan,
    PlanCosts,
    Problem,
    Score,
    Stage,
    Workload,
    antichain_states,
    equal_microbatches,
    kept_with_its_first,
)

StagesWithin = Callable[[Sequence[Score]], "tuple[Stage, ...] | None"]
"""Scores of plans that did not fit -> the stages of a partition that takes as much less memory; None where there are none."""

MOST_ORDERS = 24
"""Orders of kinds of device, at most, that are tried: all orders of up to four kinds."""


@dataclass(frozen=True, slots=True)
class PipeDream:
    """PipeDream (SOSP 2019): its partition, run as asynchronous 1F1B-RR with weight stashing.

    A micro-batch is one device's mini-batch: the batch over the devices, unless a count is requested. On a cluster
    of two levels two partitions are compared by simulation: the hierarchical one, and a flat one at the rates of
    the slowest links, which may leave servers in the middle (15-1 on 4 servers of 4); on the engine with
    contention, if the problem has it. A partition of a single stage is plain, synchronous data parallelism. The
    dynamic program bounds memory by its own rule; where the replay needs more, it searches again with as much less.
    Where devices or servers differ, stages take devices kind by kind (see `ordered_devices`): every order of kinds is tried, and
    kinds alone.
    """

    request: Request = field(default_factory=Request)
    name: str = "pipedream"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The faster of the partitions that fit."""
        return fitting(self.name, preferred_plan(self.name, self.request, problem, evaluate), evaluate)


@dataclass(frozen=True, slots=True)
class PipeDreamFlush:
    """PipeDream's partition run synchronously: replicas split every micro-batch, one update per batch.

    The partition is the one that `PipeDream` prefers, or the one with the fastest slowest stage within the memory of a flushed
    pipeline, which has one version of the weights; that and the number of micro-batches are chosen by simulation. Where devices
    or servers differ, data parallelism stands in place of the latter.
    """

    request: Request = field(default_factory=Request)
    name: str = "pipedream-flush"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan that fits, of all numbers of micro-batches; InfeasiblePlanError if none fits."""
        schedule = self.request.schedule or "1f1b"
        counts = microbatch_counts(problem, self.request, len(problem.cluster.devices))
        closest = [self._closest(problem, evaluate, schedule, counts)]
        try:
            # The partition is that of the asynchronous pipeline, whatever count is requested of the flushed one.
            own = Request(engine=self.request.engine)
            stages = preferred_plan(self.name, own, problem, evaluate).stages
        except InfeasiblePlanError:
            pass  # weight versions do not fit: the flushed pipeline has only one
        else:
            shared = (Plan(self.name, schedule, stages, equal_microbatches(problem.batch, count)) for count in counts)
            closest.append(closest_to_fit(shared, evaluate, excess=least_excess))
        return best_plan(self.name, closest, evaluate)

    def _closest(self, problem: Problem, evaluate: Evaluator, schedule: str, counts: Sequence[int]) -> Plan:
        """The fastest plan that fits, else the closest to it, of all numbers of micro-batches; plain data parallelism where no
        partition is found.
        """

        def whole(count: int) -> Plan:
            return Plan(self.name, schedule, (_whole(problem),), equal_microbatches(problem.batch, count))

        def retried(plan: Plan) -> Plan:
            count = len(plan.microbatches)
            return within_memory(evaluate, searches[count]) or whole(count)

        def surely_fits(plan: Plan) -> bool:
            in_flight = most_in_flight(order_of_plan(plan)).tolist()
            most = most_bytes(PlanCosts(problem, plan, evaluate.layer_costs), in_flight)
            return schedule in WHOLE_BACKWARDS and max(most) <= min(problem.rooms)

        partitions = known_partitions(problem)
        searches = {count: self._search(problem, evaluate, schedule, count, partitions) for count in counts}
        first = [search(()) or whole(count) for count, search in searches.items()]
        return closest_to_fit(first, evaluate, retried=retried, surely_fits=surely_fits, excess=least_excess)

    def _search(
        self, problem: Problem, evaluate: Evaluator, schedule: str, count: int, partitions: KnownPartitions
    ) -> Callable[[Sequence[Score]], Plan | None]:
        """A search for the fastest partition within the memory of a flushed pipeline, as `within_memory` takes it."""
        microbatches = equal_microbatches(problem.batch, count)
        if without_levels(problem) is not None:
            return lambda misses: None
        view, states = cluster_views(problem)[-1], problem_states(problem, evaluate)
        stages = min(len(view.components), len(states))
        in_flight = in_flight_of(schedule, stages, count, lambda: order_of(schedule, stages, count, 1, ()))
        pipeline = FlushedPipeline(
            devices=len(view.components),
            samples=microbatches[0],
            microbatches=count,
            in_flight=in_flight[::-1].copy(),
            memory_bytes=min(problem.rooms),
            weight_copies=problem.state_bytes / problem.element_bytes,
            recompute=problem.recompute in (*BY_BLOCK, "whole"),
            bandwidth=view.levels[0].bandwidth,
            collective_bandwidth=view.levels[0].collective_bandwidth,
        )

        def within(memory_bytes: float) -> tuple[Stage, ...] | None:
            table = problem_table(problem, evaluate, microbatches[0])
            found = flushed_partition(table, pipeline._replace(memory_bytes=memory_bytes))
            if found is None:
                return None
            return place_stages(flattened(table.states, [found]), [found], view.components)

        def search(misses: Sequence[Score]) -> Plan | None:
            memory = shrunk(pipeline.memory_bytes, misses)
            stages = partitions.of((schedule, count, memory), partial(within, memory))
            return None if stages is None else Plan(self.name, schedule, stages, microbatches)

        return search


class KnownPartitions:
    """Partitions of one problem that were found already, for the several planners that ask for them."""

    def __init__(self) -> None:
        self._known = dict[Hashable, "tuple[Stage, ...] | None"]()

    def of(self, key: Hashable, find: Callable[[], tuple[Stage, ...] | None]) -> tuple[Stage, ...] | None:
        """The stages of a partition, by `find` where the key is new; None where there are none. key: all that decides it beside
        the problem
        """
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]


@kept_with_its_first
def known_partitions(problem: Problem) -> KnownPartitions:
    """The partitions of a problem that were found already; kept with the problem."""
    return KnownPartitions()


def inapplicable(problem: Problem) -> str | None:
    """Why PipeDream's partitioner cannot plan for a cluster, as a sentence; None where it can: devices and servers may differ,
    but not links alone.
    """
    cluster = problem.cluster
    differ = len({device.name for device in cluster.devices}) > 1 or len(set(map(len, cluster.servers))) > 1
    return None if differ else without_levels(problem)


def without_levels(problem: Problem) -> str | None:
    """Why a cluster has no levels of alike components, as a sentence; None where it has."""
    try:
        problem.cluster.levels()
    except ValueError as reason:
        return str(reason)
    return None


def preferred_plan(name: str, request: Request, problem: Problem, evaluate: Evaluator) -> Plan:
    """The asynchronous plan whose replay is best: partitions differ most in how their transfers compete, which no form of the
    cost tells.
    """
    plans = pipedream_plans(name, request, problem, evaluate)
    if len(plans) == 1:
        return plans[0]
    return min(plans, key=lambda plan: evaluate(plan).key)


def pipedream_plans(name: str, request: Request, problem: Problem, evaluate: Evaluator) -> list[Plan]:
    """The asynchronous plan of each view of the cluster and each form of the cost, hierarchical first, without duplicates.

    Raises InfeasiblePlanError if the dynamic program finds no partition within the memory.
    """
    devices = len(problem.cluster.devices)
    count = min(devices, problem.batch) if request.microbatches is None else request.microbatches
    microbatches = equal_microbatches(problem.batch, count)
    table = problem_table(problem, evaluate, max(microbatches))
    unlike = without_levels(problem) is not None
    partitions = (
        _in_device_orders(problem, evaluate, max(microbatches))
        if unlike
        else _in_levels(problem, table, max(microbatches))
    )
    plans: list[Plan] = []
    for stages_within in partitions:

        def search(misses: Sequence[Score], stages_within: StagesWithin = stages_within) -> Plan | None:
            stages = stages_within(misses)
            return None if stages is None else _asynchronous_plan(name, stages, microbatches, request)

        plan = within_memory(evaluate, search)
        if plan is not None and all(plan.stages != other.stages for other in plans):
            plans.append(plan)
    if not plans:
        memories, word = set(problem.rooms), problem.device_word
        capacity = " or ".join(f"{one / GIB:.4g}" for one in (sorted(memories) if unlike else [min(memories)]))
        raise InfeasiblePlanError(
            f"planner {name!r} finds no partition of {len(table)} states over {counted(devices, word)} within "
            f"{capacity} GiB per {word}; use more {word}s, recomputation or a smaller batch"
        )
    return plans


def _in_levels(problem: Problem, table: StateTable, samples: int) -> Iterator[StagesWithin]:
    """For each view of a cluster of alike devices, and each form of the cost, the function that finds its partition; table: of
    `samples`
    """
    memory, partitions = memory_limit(problem, min(problem.rooms)), known_partitions(problem)

    def searched(view: ClusterView, form: tuple[str, bool], left: MemoryLimit) -> tuple[Stage, ...] | None:
        try:
            found = partition(table, view.levels, variant=form[0], straight=form[1], memory=left)
        except InfeasiblePartition:
            return None
        return place_stages(found.stages, found.levels, view.components)

    def stages_within(view: ClusterView, form: tuple[str, bool], misses: Sequence[Score]) -> tuple[Stage, ...] | None:
        left = replace(memory, capacity_bytes=shrunk(memory.capacity_bytes, misses))
        return partitions.of((samples, view.levels, form, left), partial(searched, view, form, left))

    for view, form in itertools.product(cluster_views(problem), cost_forms(problem)):
        yield partial(stages_within, view, form)


def _in_device_orders(problem: Problem, evaluate: Evaluator, samples: int) -> Iterator[StagesWithin]:
    """For each order in which a pipeline may take the kinds of device, and each form of the cost, the function that finds its
    partition.
    """
    costs = evaluate.layer_costs
    kinds = [costs.first_of_kind(kind) for kind in range(costs.accelerator_kinds)]
    tables = [problem_table(problem, evaluate, samples, device) for device in kinds]

    def stages_within(
        order: tuple[int, ...], form: tuple[str, bool], misses: Sequence[Score]
    ) -> tuple[Stage, ...] | None:
        devices = OrderedDevices(tuple(map(costs.kind_of_device, order)), *slowest_rates(problem, order))
        capacities = [problem.room_bytes(device) for device in kinds]
        memories = [memory_limit(problem, shrunk(capacity, misses)) for capacity in capacities]
        stages = ordered_partition(tables, devices, memories, barrier=form[0] == "barrier", straight=form[1])
        return None if stages is None else place_stages(flattened(tables[0].states, [stages]), [stages], order)

    for order, form in itertools.product(device_orders(problem, costs), cost_forms(problem)):
        yield partial(stages_within, order, form)


def device_orders(problem: Problem, costs: LayerCosts) -> tuple[tuple[int, ...], ...]:
    """Orders of devices, kind by kind: every order of all kinds, and of the kinds to which `device_choices` confines plans."""
    found: dict[tuple[int, ...], None] = {}
    for chosen in device_choices(problem, costs):
        of_kind: dict[int, list[int]] = {}
        for device in chosen:
            of_kind.setdefault(costs.kind_of_device(device), []).append(device)
        for kinds in itertools.islice(itertools.permutations(of_kind), MOST_ORDERS):
            found[tuple(device for kind in kinds for device in of_kind[kind])] = None
    return tuple(found)


def slowest_rates(problem: Problem, order: Sequence[int]) -> tuple[float, float]:
    """Bytes per second of the slowest link between neighbours, and of each member of a ring through all."""
    if len(order) == 1:
        return inf, inf
    cluster = problem.cluster
    bandwidth = min(cluster.point_to_point(one, two)[1] for one, two in itertools.pairwise(order))
    second = min(seconds for _, seconds in cluster.collectives.rates(Operation.ALL_REDUCE, order))
    return bandwidth, 2.0 * (len(order) - 1) / len(order) / second


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster as the dynamic program sees it.

    levels: lowest first; components: of the top level, nested tuples of device ids
    """

    levels: tuple[Level, ...]
    components: tuple[Component, ...]


def cluster_views(problem: Problem) -> list[ClusterView]:
    """The cluster's own levels and, if there are several, one flat level at the rates of its slowest links."""
    levels, order = problem.cluster.levels(), devices_in_order(problem)
    if not levels:
        return [ClusterView((Level(1, 1.0, 1.0),), order)]
    slowest = min(level.bandwidth for level in levels), min(level.collective_bandwidth for level in levels)
    flat = ClusterView((Level(len(order), *slowest),), order)
    return [flat] if len(levels) == 1 else [ClusterView(levels, problem.cluster.components()), flat]


def problem_table(problem: Problem, evaluate: Evaluator, minibatch: int, device: int = 0) -> StateTable:
    """The figures of a problem's network on a device, for one device's mini-batch of so many samples."""
    return state_table(
        problem.workload,
        evaluate.layer_costs.round_trip_seconds(device, minibatch),
        minibatch=minibatch,
        bytes_per_element=problem.element_bytes,
        states=problem_states(problem, evaluate),
    )


def problem_states(problem: Problem, evaluate: Evaluator) -> AntichainStates:
    """The antichain states of a problem's network; a note tells of those that were left out, if any."""
    states = _states(problem.workload)
    if states.lost:
        evaluate.note(CutsLeftOut.of(states.lost))
    return states


@lru_cache(maxsize=1)
def _states(workload: Workload) -> AntichainStates:
    """The antichain states of a network; the last network's are kept."""
    # A measured profile's inputs are layers that PipeDream's profiler timed.
    return antichain_states(workload, drop_inputs=workload.bytes_per_element is None)


def place_stages(
    stages: Sequence[PlannedStage], levels: Sequence[Sequence[LevelStage]], components: Sequence[Component]
) -> tuple[Stage, ...]:
    """The stages with their devices: the stages of a level take its components in order, alike in every replica."""
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


def cost_forms(problem: Problem) -> tuple[tuple[str, bool], ...]:
    """Forms of the cost to search with, each with whether only straight plans are searched.

    The paper's form holds where replicas do not wait for each other. At a barrier the all-reduce comes on top, and replicas that
    send at once to several stages behind them wait for these as well, which no form of the recurrence knows: plans of the forms
    around it are compared by replay.
    """
    if problem.replica_updates != "barrier":
        return (("paper", False),)
    return (("barrier", False), ("paper", False), ("barrier", True))


def memory_limit(problem: Problem, capacity_bytes: float) -> MemoryLimit:
    """The memory that a stage must fit into."""
    return MemoryLimit(
        capacity_bytes,
        # Beside the weight versions: gradients, and what the optimizer keeps.
        unversioned_copies=(problem.accumulated_bytes + problem.optimizer_bytes) / problem.element_bytes,
        # A replica that does not wait has the gradients of its last round still in the all-reduce.
        replicated_copies=1.0 if problem.replica_updates == "overlapped" else 0.0,
        recompute=problem.recompute in (*BY_BLOCK, "whole"),
    )


def _asynchronous_plan(name: str, stages: tuple[Stage, ...], microbatches: tuple[int, ...], request: Request) -> Plan:
    """The plan that runs the stages asynchronously; a single stage as synchronous data parallelism, in one micro-batch unless
    more are requested.
    """
    if len(stages) > 1:
        return Plan(name, "1f1b-rr", stages, microbatches, "round-robin")
    if request.microbatches is None or len(microbatches) == 1:
        return Plan(name, "gpipe", stages, (sum(microbatches),))
    return Plan(name, "1f1b", stages, microbatches)
