"""Graph pipeline: one device per stage, cut anywhere that data flow forward, so that the most loaded device has least to do.

Other straight pipelines cut a network between layers in their order. Where it branches, a stage may also be a branch: of all
cuts, and of devices of several kinds in any order, the shared search (`planners.partitioning.largest_load`) finds those with the
least largest load. Parts may end up in any order of devices, so that the links between these must be alike. A replay chooses the
micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, prod

import numpy as np

from hardware_profiles import gibibytes
from planners.estimate.memory import layer_bytes
from planners.partitioning.largest_load import (
    LOAD_RULES,
    MOST_CHOICES,
    DeviceClass,
    Output,
    PlacedParts,
    PlacementProblem,
    least_largest_load,
)
from planners.search.candidates import (
    closest_to_fit,
    devices_in_order,
    microbatch_counts,
    single_or_pipeline,
)
from planners.search.evaluator import Evaluator, fitting
from planners.search.memory_retry import shrunk, within_memory
from planners.search.notes import CutsLeftOut
from planners.search.request import Request
from simulator import (
    InfeasiblePlanError,
    LayerCosts,
    Plan,
    Problem,
    Score,
    Stage,
    equal_microbatches,
    kept_bytes,
    schedule_families,
)

SET_LIMIT = 4_000
"""Down-sets above whose number only a part of them is searched, for each number of micro-batches."""


@dataclass(frozen=True, slots=True)
class GraphPipeline:
    """Planner of the placement with the least largest load, over rules of load and numbers of micro-batches compared by replays.

    Options: `load`, whether transfers add to a device's load or overlap with it, default whichever is faster; `host`, the kind of
    device in whose memory the tensors are, which pays for no transfer.
    """

    request: Request = field(default_factory=Request)
    name: str = "largest-load"

    def __call__(self, problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        """The fastest plan that fits; InfeasiblePlanError if none does, ValueError for options that are not known."""
        rule = self.request.asked("load")
        host = self.request.asked("host")
        names = sorted({device.name for device in problem.cluster.devices})
        if host is not None and host not in names:
            raise ValueError(
                f"host must be a kind of {problem.device_word} of the cluster, got {host!r}; choices: {', '.join(names)}"
            )
        link = _links(problem)[0]
        several = [_LoadRules(one, host, *link) for one in (LOAD_RULES if rule is None else (rule,))]
        counts = microbatch_counts(problem, self.request, len(problem.cluster.devices))
        found = (self._plan(problem, evaluate, count, rules) for count in counts for rules in several)
        plans = [plan for plan in found if plan is not None]
        if not plans:
            most, word = max(problem.rooms), problem.device_word
            raise InfeasiblePlanError(
                f"planner {self.name!r} finds no parts of the network that fit into {gibibytes(most)} per {word}; use more "
                f"{word}s, recomputation or a smaller batch"
            )
        return fitting(self.name, closest_to_fit(plans, evaluate), evaluate)

    def _plan(self, problem: Problem, evaluate: Evaluator, count: int, rules: _LoadRules) -> Plan | None:
        """The plan with `count` micro-batches, searched again with less memory while its replay does not fit; None where no
        placement fits.
        """
        microbatches = equal_microbatches(problem.batch, count)

        def search(misses: Sequence[Score]) -> Plan | None:
            asked = _placement_problem(evaluate.layer_costs, microbatches[0], count, rules, shrunk(1.0, misses))
            found = least_largest_load(asked, SET_LIMIT)
            if found is None:
                return None
            if found.lost:
                evaluate.note(CutsLeftOut.of(found.lost))
            stages = _stages(found, evaluate.layer_costs)
            return single_or_pipeline(self.name, self.request.schedule or "1f1b", stages, microbatches)

        return within_memory(evaluate, search)


@dataclass(frozen=True, slots=True)
class _LoadRules:
    """How a device's load is counted: rule, one of LOAD_RULES; host: the kind that pays for no transfer, if any.

    latency, bandwidth: seconds that a transfer waits, and bytes per second
    """

    rule: str
    host: str | None
    latency: float
    bandwidth: float


def inapplicable(problem: Problem, request: Request) -> str | None:
    """Why the planner cannot plan what is asked for, as a sentence for the user; None where it can."""
    family = schedule_families()[request.schedule or "1f1b"]
    if family.placement != "straight" or family.chunks > 1:
        return f"a graph pipeline has one stage per {problem.device_word}; schedule {request.schedule!r} is not that"
    if len(_links(problem)) > 1:
        return "links between its devices differ; a graph pipeline puts its stages on them in any order"
    costs = LayerCosts(problem)
    if prod(len(devices) + 1 for devices in _devices_of_kinds(costs)) > MOST_CHOICES:
        return f"its {problem.device_word}s of several kinds have more than {MOST_CHOICES:,} choices"
    if any(map(costs.streams, range(len(problem.cluster.devices)))):
        return "layers stream on boards, where a stage does not take the sum of its layers' seconds"
    return None


def _devices_of_kinds(costs: LayerCosts) -> list[list[int]]:
    """Device ids of each kind, in the cluster's order."""
    order = devices_in_order(costs.problem)
    kinds = list(dict.fromkeys(map(costs.kind_of_device, order)))
    return [[device for device in order if costs.kind_of_device(device) == kind] for kind in kinds]


def _links(problem: Problem) -> list[tuple[float, float]]:
    """Latency in seconds and bytes per second of the links between neighbours, unlike ones once each; (0, inf) for a single
    device.
    """
    cluster, order = problem.cluster, devices_in_order(problem)
    both = (cluster.point_to_point(*pair) for near, far in pairwise(order) for pair in ((near, far), (far, near)))
    return list(dict.fromkeys(both)) or [(0.0, inf)]


def _placement_problem(
    costs: LayerCosts, samples: int, microbatches: int, rules: _LoadRules, share: float
) -> PlacementProblem:
    """The network's layers as units to place. share: of each device's memory that may be used"""
    problem = costs.problem
    classes = []
    for held in _devices_of_kinds(costs):
        device = problem.cluster.devices[held[0]]
        seconds = costs.round_trip_seconds(held[0], samples)
        classes.append(DeviceClass(len(held), seconds, share * problem.room_bytes(held[0]), device.name != rules.host))
    readers: dict[int, list[int]] = {}
    for producer, consumer in problem.workload.edges:
        readers.setdefault(producer, []).append(consumer)
    # An activation one way, its gradient the other.
    sent = 2.0 * (costs.output_bytes * samples / rules.bandwidth + rules.latency)
    return PlacementProblem(
        edges=problem.workload.edges,
        outputs=tuple(Output(layer, tuple(behind), float(sent[layer])) for layer, behind in readers.items()),
        classes=tuple(classes),
        held_bytes=layer_bytes(costs, 0),
        flight_bytes=kept_bytes(costs, problem.recompute) * samples,
        rule=rules.rule,
        most_in_flight=microbatches,
    )


def _stages(found: PlacedParts, costs: LayerCosts) -> tuple[Stage, ...]:
    """The stages of a placement: one per part, each on the next device of its class."""
    waiting = [iter(devices) for devices in _devices_of_kinds(costs)]
    return tuple(Stage(part.units, (next(waiting[part.device_class]),)) for part in found.parts)
