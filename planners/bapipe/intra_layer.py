"""Intra-layer partition: stages that share a boundary layer by output channels (BaPipe, arXiv 2012.12544, step 3).

A place to cut at is a number of parts, GRAIN a layer: between layers, or inside one that can be split (`simulator.LayerSplit`).
Fractions even out what whole layers leave uneven, for more bytes on the link: both stages read the layer's input. On boards that
stream, `streamed_fractions` cuts so that all stages take as long as each other; `FractionSearch` moves cuts while replays are
faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from hardware_profiles import StreamingAccelerator, Work, streaming
from planners.partitioning.minimax_cuts import filled_cuts
from planners.search.candidates import microbatch_counts
from planners.search.evaluator import Evaluator
from planners.search.request import Request
from simulator import (
    LayerCosts,
    LayerSplit,
    Plan,
    Problem,
    Stage,
    Workload,
    equal_microbatches,
    splittable_layers,
)

GRAIN = 16
"""Parts of a layer between which it may be cut."""

STEPS = 16, 8, 4, 2, 1
"""Parts by which a cut moves in one step."""


def places_of(workload: Workload) -> list[int]:
    """Places where a network may be cut, rising, with both ends: inside layers that have a weight for each part, too."""
    places = [0]
    for number, (layer, may) in enumerate(zip(workload.layers, splittable_layers(workload), strict=True)):
        inside = may and layer.parameters >= GRAIN
        places.extend(range(number * GRAIN + 1, (number + 1) * GRAIN) if inside else ())
        places.append((number + 1) * GRAIN)
    return places


class FractionSearch:
    """Pipelines of one device per stage whose cuts may lie inside layers."""

    def __init__(self, planner: str, evaluate: Evaluator, request: Request) -> None:
        self.planner, self.evaluate, self.problem, self.request = planner, evaluate, evaluate.problem, request
        self.places = places_of(self.problem.workload)
        self._known, self._even = set(self.places), dict[tuple[int, ...], list[int]]()

    def evened(self, plan: Plan) -> Plan:
        """The better one of a pipeline of whole layers and that whose fractions even out its boards, where all layers stream."""
        devices = [stage.devices[0] for stage in plan.stages]
        if not all(map(self.evaluate.layer_costs.streams, devices)):
            return plan
        key = (*devices, max(plan.microbatches))
        if key not in self._even:
            self._even[key] = streamed_fractions(self.problem, devices, max(plan.microbatches))
        other = self.at(plan.schedule, self._even[key], devices, len(plan.microbatches))
        return min(plan, other, key=lambda one: self.evaluate(one).key)

    def after_moves(self, plan: Plan) -> Plan:
        """A pipeline after the best moves, one after the other, while its replays get better."""
        while True:
            found = min(self._moved(plan), key=lambda one: self.evaluate(one).key, default=plan)
            if self.evaluate(found).key >= self.evaluate(plan).key:
                return plan
            plan = found

    def at(self, schedule: str, places: Sequence[int], devices: Sequence[int], microbatches: int) -> Plan:
        """A pipeline that is cut at these places, rising, without the ends; devices: of each stage."""
        ends = pairwise((0, *places, self.places[-1]))
        stages = tuple(
            Stage(tuple(range(begin // GRAIN, -(-end // GRAIN))), (device,))
            for (begin, end), device in zip(ends, devices, strict=True)
        )
        splits = tuple(LayerSplit(place // GRAIN, place % GRAIN / GRAIN) for place in places if place % GRAIN)
        sizes = equal_microbatches(self.problem.batch, microbatches)
        return Plan(self.planner, schedule, stages, sizes, splits=splits)

    def _moved(self, plan: Plan) -> Iterator[Plan]:
        """The plan after each step of a cut, to where the network may be cut, and with the next numbers of micro-batches."""
        devices, places, count = [stage.devices[0] for stage in plan.stages], _places(plan), len(plan.microbatches)
        ends = (0, *places, self.places[-1])
        for number, place in enumerate(places):
            for to in (place + step for size in STEPS for step in (-size, size)):
                if ends[number] < to < ends[number + 2] and to in self._known:
                    yield self.at(plan.schedule, (*places[:number], to, *places[number + 1 :]), devices, count)
        counts = microbatch_counts(self.problem, self.request, len(devices))
        fewer, more = [one for one in counts if one < count], [one for one in counts if one > count]
        for other in (*fewer[-1:], *more[:1]):
            yield self.at(plan.schedule, places, devices, other)


def _places(plan: Plan) -> tuple[int, ...]:
    """The places where a pipeline is cut."""
    splits, found = iter(plan.splits), []
    for before, stage in pairwise(plan.stages):
        layer = stage.layers[0]
        inside = round(next(splits).fraction * GRAIN) if before.layers[-1] == layer else 0
        found.append(layer * GRAIN + inside)
    return tuple(found)


def streamed_fractions(problem: Problem, devices: Sequence[int], samples: int) -> list[int]:
    """Places to cut at for boards whose layers work at the same time, filled by the boards' own stage seconds.

    devices: of each stage; samples: of a micro-batch. Raises ValueError unless every device streams the problem's layers, and
    there are places enough.
    """
    costs = LayerCosts(problem)
    boards: list[StreamingAccelerator] = []
    for device in devices:
        board = problem.cluster.devices[device]
        if not (streaming(board) and costs.streams(device)):
            raise ValueError(
                f"device {device} ({board.name}) does not stream layers; fractions are for FPGAs and analytic layers"
            )
        boards.append(board)

    def seconds(stage: int, begin: int, end: int) -> float:
        works = _works_between(costs.works, begin, end)
        board = boards[stage]
        forward = board.stage_seconds(works, samples, "forward", problem.precision)
        return forward + board.stage_seconds(works, samples, "backward", problem.precision)

    return filled_cuts(places_of(problem.workload), len(devices), seconds)


def _works_between(works: Sequence[Work], begin: int, end: int) -> list[Work]:
    """The works of the parts [begin, end), counted in GRAIN parts a layer; a layer's parts are one."""
    found = []
    for number in range(begin // GRAIN, -(-end // GRAIN)):
        share = (min(end, (number + 1) * GRAIN) - max(begin, number * GRAIN)) / GRAIN
        work = works[number]
        found.append(
            work
            if share == 1.0
            else replace(
                work,
                flop=work.flop * share,
                output_elements=work.output_elements * share,
                parameters=work.parameters * share,
            )
        )
    return found
