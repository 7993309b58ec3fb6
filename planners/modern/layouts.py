"""Layouts: all that a plan says but for the order of its ops, and what a search for that order must know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Phase
from planners.scheduler.bound import lower_bound
from planners.scheduler.instance import instance_of
from planners.scheduler.schedule_problem import ScheduleProblem
from simulator import (
    LayerCosts,
    Placement,
    Plan,
    Recompute,
    Schedule,
    chains_of,
    equal_microbatches,
    stages_from_cuts,
    to_text,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Layout:
    """Stages of contiguous layers on devices, without an order.

    placement: how stages go round the devices, in one direction; devices: of the cluster, in the order of the placement
    cuts: layers before each boundary, as `simulator.stages_from_cuts` takes them
    microbatches: of an iteration
    recompute: of each stage, what it runs again
    """

    placement: Placement
    devices: tuple[int, ...]
    cuts: tuple[int, ...]
    microbatches: int
    recompute: tuple[Recompute, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """Place among `devices` of each stage."""
        return chains_of(self.placement, len(self.cuts) + 1, len(self.devices))[0]


class LayoutCosts:
    """Seconds and bytes of the layouts of one problem; tables of layers fill as they are asked for."""

    def __init__(self, costs: LayerCosts) -> None:
        self.costs, self.problem = costs, costs.problem
        self._seconds: dict[tuple[int, int, str], Floats] = {}
        stashes = costs.stashed_bytes, costs.weight_stashed_bytes, costs.made_bytes("attention")
        self._bytes = tuple(map(_before, stashes))

    def _seconds_before(self, device: int, samples: int, phase: Phase | Literal["again"]) -> Floats:
        """Seconds of one pass of the layers before each cut, float64 [layers + 1]; `again`: forward, of attention alone."""
        key = self.costs.kind_of_device(device), samples, phase
        if key not in self._seconds:
            attention = self.costs.runs_again("attention") if phase == "again" else 1.0
            seconds = self.costs.seconds(device, samples, "forward" if phase == "again" else phase)
            self._seconds[key] = _before(seconds * attention)
        return self._seconds[key]

    def samples(self, microbatches: int) -> int:
        """Samples of the largest of so many micro-batches."""
        return -(-self.problem.batch // microbatches)

    def least_seconds(self, layout: Layout) -> float:
        """Seconds of all forwards and gradients that no order of a layout undercuts, where links share no channel.

        Of micro-batches that are unlike all are taken as the smallest. ValueError where `missing_bytes` is above 0.
        """
        smallest = replace(self.problem, batch=self.problem.batch // layout.microbatches * layout.microbatches)
        costs = self if smallest.batch == self.problem.batch else LayoutCosts(LayerCosts(smallest))
        return lower_bound(instance_of(costs.schedule_problem(layout)))

    def missing_bytes(self, layout: Layout, spare: Sequence[float] = ()) -> float:
        """Bytes by which the fullest device fails to hold one micro-batch of each of its stages; 0 where all do.

        spare: bytes of each of the layout's devices that are to stay free
        """
        kept, longer, _ = self._kept(layout)
        least = np.bincount(layout.places, weights=kept + longer)
        return float(np.max(least - self._room(layout, spare), initial=0.0))

    def schedule_problem(self, layout: Layout, spare: Sequence[float] = ()) -> ScheduleProblem:
        """The ops of a layout; ValueError where `missing_bytes` is above 0.

        What a backward makes again is there while it runs: on each device the largest of it stays free. A stage that recomputes
        all of itself would hold it until the weight gradient: it runs one full backward.
        """
        places, whole = layout.places, np.array([word == "whole" for word in layout.recompute])
        forward, back, weight = (self._of_stages(layout, phase) for phase in _PHASES)
        back = back + self._again(layout, forward)
        kept, longer, _ = self._kept(layout)
        transfers = [
            self.problem.cluster.transfer_seconds(layout.devices[near], layout.devices[far], size)
            if near != far
            else 0.0
            for (near, far), size in zip(pairwise(places), self._cut_bytes(layout)[1:].tolist(), strict=True)
        ]
        return ScheduleProblem(
            chains=(places,),
            microbatches=layout.microbatches,
            forward=forward.tolist(),
            input_gradient=np.where(whole, back + weight, back).tolist(),
            weight_gradient=np.where(whole, 0.0, weight).tolist(),
            transfer=transfers or 0.0,
            freed_at_input_gradient=kept.tolist(),
            freed_at_weight_gradient=longer.tolist(),
            limit=self._room(layout, spare).tolist(),
        )

    def plan(self, planner: str, layout: Layout, schedule: Schedule) -> Plan:
        """The plan of a layout with an order of its own."""
        stages = stages_from_cuts(
            layout.cuts, len(self.problem.workload), [(layout.devices[place],) for place in layout.places]
        )
        return Plan(
            planner,
            schedule.name,
            stages,
            equal_microbatches(self.problem.batch, layout.microbatches),
            order=tuple(to_text(schedule).splitlines()),
            recompute=layout.recompute,
        )

    def _bounds(self, layout: Layout) -> list[int]:
        return [0, *layout.cuts, len(self.problem.workload)]

    def _of_stages(self, layout: Layout, phase: Phase | Literal["again"]) -> Floats:
        """Seconds of one pass of each stage over a micro-batch, or of its attention layers forward again; float64 [stages]."""
        bounds, samples = self._bounds(layout), self.samples(layout.microbatches)
        tables = {place: self._seconds_before(layout.devices[place], samples, phase) for place in set(layout.places)}
        ends = zip(layout.places, pairwise(bounds), strict=True)
        return np.array([tables[place][end] - tables[place][begin] for place, (begin, end) in ends])

    def _again(self, layout: Layout, forward: Floats) -> Floats:
        """Seconds of what each stage runs again, float64 [stages]."""
        again = np.where([word == "whole" for word in layout.recompute], forward, 0.0)
        if "attention" in layout.recompute:
            again += np.where([word == "attention" for word in layout.recompute], self._of_stages(layout, "again"), 0.0)
        return again

    def _cut_bytes(self, layout: Layout) -> Floats:
        """Bytes of a micro-batch that each stage takes in; the network's input is kept and sent by nobody."""
        sizes = self.costs.cut_bytes[self._bounds(layout)[:-1]] * self.samples(layout.microbatches)
        sizes[0] = 0.0
        return sizes

    def _kept(self, layout: Layout) -> tuple[Floats, Floats, Floats]:
        """Whole bytes of a micro-batch on each stage: kept to the input gradient, on to the weight gradient, made again."""
        bounds, samples, words = self._bounds(layout), self.samples(layout.microbatches), np.array(layout.recompute)
        stash, longer, made = (np.ceil(np.diff(table[bounds]) * samples) for table in self._bytes)
        whole = words == "whole"
        made = np.where(whole, stash, np.where(words == "attention", made, 0.0))
        kept = np.where(whole, np.ceil(self._cut_bytes(layout)), stash - longer - made)
        return kept, np.where(whole, 0.0, longer), made

    def _room(self, layout: Layout, spare: Sequence[float]) -> Floats:
        """Bytes that each of the layout's devices has for what its micro-batches keep, float64 [devices]."""
        bounds, (_, _, made) = self._bounds(layout), self._kept(layout)
        room = np.array([self.problem.cluster.devices[device].memory_bytes for device in layout.devices])
        places = np.array(layout.places)
        for place in range(len(room)):
            held = np.flatnonzero(places == place)
            elements = self.costs.range_elements([(bounds[stage], bounds[stage + 1]) for stage in held])
            room[place] -= np.ceil(elements * self.problem.state_bytes) + made[held].max(initial=0.0)
        return room - np.asarray(spare) if len(spare) else room


_PHASES: tuple[Phase, ...] = ("forward", "input_gradient", "weight_gradient")


def _before(values: Floats) -> Floats:
    """Sums of what stands before each place, float64 [len(values) + 1]."""
    return np.concatenate([[0.0], np.cumsum(values)])
