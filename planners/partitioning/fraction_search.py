"""Fraction search: cuts inside layers, which neighbouring stages share by output channels (BaPipe, arXiv 2012.12544, step 3).

A place to cut at is a number of parts, GRAIN per layer: between layers, or inside one that can be split (`simulator.LayerSplit`).
Fractions even out what whole layers leave uneven, for more bytes on the link: both stages read the layer's input. On boards that
stream, `streamed_fractions` cuts so that all stages take equally long; `FractionSearch` moves cuts while replays are faster, of
any plan of contiguous stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product
from math import comb, inf

from hardware_profiles import StreamingAccelerator, Work, streaming
from planners.partitioning.minimax_cuts import filled_cuts
from planners.search.candidates import microbatch_counts
from planners.search.evaluator import Evaluator
from planners.search.request import Request
from simulator import (
    InfeasiblePlanError,
    LayerCosts,
    LayerSplit,
    Plan,
    Problem,
    ScheduleError,
    Workload,
    equal_microbatches,
    splittable_layers,
)

GRAIN = 16
"""Parts into which a layer may be cut."""

MOVES = tuple(step for size in (16, 8, 4, 2, 1) for step in (-size, size))
"""Parts by which a cut moves in one step, in the order in which they are tried."""


def places_of(workload: Workload) -> list[int]:
    """Places where a network may be cut, in parts, rising, with both ends; inside a layer where it can be split and has a weight
    for each part.
    """
    places = [0]
    for number, (layer, may) in enumerate(zip(workload.layers, splittable_layers(workload), strict=True)):
        inside = may and layer.parameters >= GRAIN
        places.extend(range(number * GRAIN + 1, (number + 1) * GRAIN) if inside else ())
        places.append((number + 1) * GRAIN)
    return places


class FractionSearch:
    """Search for plans of contiguous stages whose cuts may lie inside layers; plans are compared by their replays."""

    def __init__(self, evaluate: Evaluator, request: Request) -> None:
        self.evaluate, self.problem, self.request = evaluate, evaluate.problem, request
        self.places = places_of(self.problem.workload)
        self._known, self._even = set(self.places), dict[tuple[int, ...], list[int]]()

    def evened(self, plan: Plan) -> Plan:
        """The better of a plan with one board per stage and the same plan with fractions that even out its stages; the plan
        itself where a device does not stream.
        """
        devices = [stage.devices[0] for stage in plan.stages]
        if not all(map(self.evaluate.layer_costs.streams, devices)):
            return plan
        key = (*devices, max(plan.microbatches))
        if key not in self._even:
            self._even[key] = streamed_fractions(self.problem, devices, max(plan.microbatches))
        return min(plan, self.at(plan, self._even[key]), key=self._key)

    def on_grid(self, plan: Plan, most: int) -> Plan:
        """The best of a plan and all plans that differ in cuts alone, on the finest grid of parts that has at most `most` such
        plans.

        Grids are every part, every second, ..., every whole layer; the plan itself where even the last has more.
        """
        cuts = len(plan.stages) - 1
        for every in (1, 2, 4, 8, GRAIN):
            grid = [place for place in self.places[1:-1] if place % every == 0]
            if comb(len(grid), cuts) <= most:
                tried = (self.at(plan, one) for one in combinations(grid, cuts) if self._may_be(plan, one))
                return min((plan, *tried), key=self._key)
        return plan

    def climbed(self, plan: Plan) -> Iterator[Plan]:
        """Better and better plans: each is the best of the moves of the one before, and the last has no better move.

        Where no move of a single cut is better, neighbouring cuts move together. Stages of the plan are contiguous.
        """
        while True:
            found = min(self._moved(plan), key=self._key, default=plan)
            if self._key(found) >= self._key(plan):
                found = min(self._moved_together(plan), key=self._key, default=plan)
            if self._key(found) >= self._key(plan):
                return
            yield (plan := found)

    def at(self, plan: Plan, places: Sequence[int]) -> Plan:
        """The plan with its stages cut at these places, in parts, rising, without the ends."""
        ends = pairwise((0, *places, self.places[-1]))
        stages = tuple(
            replace(stage, layers=tuple(range(begin // GRAIN, -(-end // GRAIN))))
            for (begin, end), stage in zip(ends, plan.stages, strict=True)
        )
        splits = tuple(LayerSplit(place // GRAIN, place % GRAIN / GRAIN) for place in places if place % GRAIN)
        return replace(plan, stages=stages, splits=splits)

    def _key(self, plan: Plan) -> tuple[float, float]:
        """The key of a plan's score; infinite where it cannot run."""
        try:
            return self.evaluate(plan).key
        except (InfeasiblePlanError, ScheduleError):
            return inf, inf

    def _moved(self, plan: Plan) -> Iterator[Plan]:
        """The plan with one cut moved by one of MOVES, or with the next smaller or larger number of micro-batches.

        A cut lies inside a layer only where the next stage is on other devices.
        """
        places, count = _places(plan), len(plan.microbatches)
        for number, place in enumerate(places):
            for step in MOVES:
                moved = (*places[:number], place + step, *places[number + 1 :])
                if self._may_be(plan, moved):
                    yield self.at(plan, moved)
        if plan.order or plan.forward_sizes:
            return
        counts = microbatch_counts(self.problem, self.request, len(plan.stages))
        fewer, more = [one for one in counts if one < count], [one for one in counts if one > count]
        for other in (*fewer[-1:], *more[:1]):
            yield replace(plan, microbatches=equal_microbatches(self.problem.batch, other))

    def _moved_together(self, plan: Plan) -> Iterator[Plan]:
        """The plan with two neighbouring cuts moved, each by one of MOVES."""
        places = _places(plan)
        for number, (place, following) in enumerate(pairwise(places)):
            for step, other in product(MOVES, MOVES):
                moved = (*places[:number], place + step, following + other, *places[number + 2 :])
                if self._may_be(plan, moved):
                    yield self.at(plan, moved)

    def _may_be(self, plan: Plan, places: Sequence[int]) -> bool:
        """Whether a plan may be cut at these places: they rise, the network may be cut there, and stages that share a layer are
        on different devices.
        """
        ends = (0, *places, self.places[-1])
        return (
            self._known.issuperset(places)
            and all(one < two for one, two in pairwise(ends))
            and not any(
                place % GRAIN and one.devices == two.devices
                for place, (one, two) in zip(places, pairwise(plan.stages), strict=True)
            )
        )


def _places(plan: Plan) -> tuple[int, ...]:
    """The places where a plan's stages are cut, in parts."""
    splits, found = iter(plan.splits), []
    for before, stage in pairwise(plan.stages):
        layer = stage.layers[0]
        inside = round(next(splits).fraction * GRAIN) if before.layers[-1] == layer else 0
        found.append(layer * GRAIN + inside)
    return tuple(found)


def streamed_fractions(problem: Problem, devices: Sequence[int], samples: int) -> list[int]:
    """Places to cut at, in parts, for boards whose layers work at the same time; each stage is filled by its board's own seconds.

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

    @cache
    def on_kind(kind: int, begin: int, end: int) -> float:
        works = _works_between(costs.works, begin, end)
        board = boards[kinds.index(kind)]
        forward = board.stage_seconds(works, samples, "forward", problem.precision)
        return forward + board.stage_seconds(works, samples, "backward", problem.precision)

    def seconds(stage: int, begin: int, end: int) -> float:
        return on_kind(kinds[stage], begin, end)

    kinds = [costs.kind_of_device(device) for device in devices]
    return filled_cuts(places_of(problem.workload), len(devices), seconds)


def _works_between(works: Sequence[Work], begin: int, end: int) -> list[Work]:
    """The works of the parts begin to end - 1, counted in GRAIN parts per layer; the parts of one layer are one work."""
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
