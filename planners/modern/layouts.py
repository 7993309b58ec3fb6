"""Layouts: plans without an order of ops, and the figures that a search for the order needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hardware_profiles import Floats, Phase
from planners.estimate.memory import room_for_stashes
from planners.scheduler.bound import lower_bound
from planners.scheduler.instance import instance_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.stage_ops import StageOps
from simulator import (
    LayerCosts,
    Placement,
    Plan,
    Recompute,
    Schedule,
    StageStash,
    chains_of,
    equal_microbatches,
    stage_stash,
    stages_from_cuts,
    to_text,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Stages of contiguous layers on devices, without an order of ops.

    placement: order in which stages visit the devices, in one direction; devices: of the cluster, in the order of the placement
    cuts: layers before each boundary, as `simulator.stages_from_cuts` takes them
    microbatches: number of them in an iteration
    recompute: recompute policy of each stage
    """

    placement: Placement
    devices: tuple[int, ...]
    cuts: tuple[int, ...]
    microbatches: int
    recompute: tuple[Recompute, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """Index in `devices` of each stage's device."""
        return chains_of(self.placement, len(self.cuts) + 1, len(self.devices))[0]


class LayoutCosts:
    """Seconds and bytes of the layouts of one problem; tables of layers are filled when first needed."""

    def __init__(self, costs: LayerCosts) -> None:
        self.costs, self.problem = costs, costs.problem
        self._seconds: dict[tuple[int, int, Phase, Recompute], Floats] = {}
        self._stashes: dict[tuple[int, int, Recompute], StageStash] = {}

    def _seconds_before(self, device: int, samples: int, phase: Phase, again: Recompute) -> Floats:
        """Seconds of one pass of all layers before each cut, or of what the policy `again` runs again of it, float64 [layers +
        1].
        """
        key = self.costs.kind_of_device(device), samples, phase, again
        if key not in self._seconds:
            seconds = self.costs.seconds(device, samples, phase) * self.costs.runs_again(again)
            self._seconds[key] = np.concatenate([[0.0], np.cumsum(seconds)])
        return self._seconds[key]

    def samples(self, microbatches: int) -> int:
        """Samples of the largest of `microbatches` micro-batches."""
        return -(-self.problem.batch // microbatches)

    def least_seconds(self, layout: Layout) -> float:
        """Lower bound on the seconds of all forwards and gradients under any order of a layout's ops, if links share no channel.

        Where micro-batches are unlike it takes all as the smallest. ValueError where `missing_bytes` is above 0.
        """
        larger = self.problem.batch % layout.microbatches
        if larger == 0:
            return lower_bound(instance_of(self.schedule_problem(layout)))
        smallest = LayoutCosts(LayerCosts(replace(self.problem, batch=self.problem.batch - larger)))
        load = larger * self._load(layout) + (layout.microbatches - larger) * smallest._load(layout)
        return max(float(load.max()), lower_bound(instance_of(smallest.schedule_problem(layout))))

    def _load(self, layout: Layout) -> Floats:
        """Seconds that each device of a layout computes for its largest micro-batch, float64 [devices]."""
        passes = sum((self._of_stages(layout, one) + self._beside(layout, one) for one in _PHASES), self._again(layout))
        return np.bincount(layout.places, weights=passes).astype(np.float64)

    def missing_bytes(self, layout: Layout, spare: Sequence[float] = ()) -> float:
        """Bytes by which the fullest device lacks room for one micro-batch of each of its stages; 0 where all have room.

        spare: bytes of each of the layout's devices that are to stay free
        """
        kept, _, _ = self._kept(layout)
        least = np.bincount(layout.places, weights=kept)
        return float(np.max(least - self._room(layout, spare), initial=0.0))

    def schedule_problem(self, layout: Layout, spare: Sequence[float] = ()) -> ScheduleProblem:
        """The ops of a layout to order, within the memory of its devices; ValueError where `missing_bytes` is above 0.

        What a backward makes again is there while it runs: on each device room for the largest of it stays free.
        """
        places = layout.places
        forward, back, weight = (self._of_stages(layout, one) + self._beside(layout, one) for one in _PHASES)
        kept, longer, _ = self._kept(layout)
        transfers = [
            self.problem.cluster.transfer_seconds(layout.devices[near], layout.devices[far], size)
            if near != far and self.problem.communication != "free"
            else 0.0
            for (near, far), size in zip(pairwise(places), self._cut_bytes(layout)[1:].tolist(), strict=True)
        ]
        ops = StageOps(forward, back, weight, self._again(layout), np.array(transfers), kept, longer)
        return ops.problem(places, layout.microbatches, layout.recompute, self._room(layout, spare).tolist())

    def plan(self, planner: str, layout: Layout, schedule: Schedule) -> Plan:
        """The plan of a layout with its own order of ops."""
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
        """The first layer of each stage, then the number of layers."""
        return [0, *layout.cuts, len(self.problem.workload)]

    def _of_stages(self, layout: Layout, phase: Phase, again: Recompute = "whole") -> Floats:
        """Seconds of one pass of each stage over a micro-batch, or of what the policy `again` runs again of it, float64
        [stages].
        """
        bounds, samples = self._bounds(layout), self.samples(layout.microbatches)
        tables = {
            place: self._seconds_before(layout.devices[place], samples, phase, again) for place in set(layout.places)
        }
        ends = zip(layout.places, pairwise(bounds), strict=True)
        return np.array([tables[place][end] - tables[place][begin] for place, (begin, end) in ends])

    def _beside(self, layout: Layout, phase: Phase) -> Floats:
        """Seconds that the framework takes in one pass of each stage, beside its layers, float64 [stages]."""
        return np.array([self.costs.pass_seconds(layout.devices[place], phase) for place in layout.places])

    def _again(self, layout: Layout) -> Floats:
        """Seconds of what each stage runs again under its own policy, float64 [stages]."""
        again = np.zeros(len(layout.recompute))
        for word in {*layout.recompute} - {"none"}:
            chosen = np.array([one == word for one in layout.recompute])
            again += np.where(chosen, self._of_stages(layout, "forward", word), 0.0)
        return again

    def _cut_bytes(self, layout: Layout) -> Floats:
        """Bytes of a micro-batch that each stage receives, float64 [stages]; 0 for the first, whose input nobody sends or
        keeps.
        """
        sizes = self.costs.cut_bytes[self._bounds(layout)[:-1]] * self.samples(layout.microbatches)
        sizes[0] = 0.0
        return sizes

    def _kept(self, layout: Layout) -> tuple[Floats, Floats, Floats]:
        """Whole bytes of a micro-batch on each stage, float64 [stages] each: kept from its forward, needed by its weight
        gradient, made again.
        """
        ranges = zip(pairwise(self._bounds(layout)), layout.recompute, strict=True)
        found = np.array([self._stash(begin, end, word) for (begin, end), word in ranges])
        kept, made, _, longer, _ = found.T * self.samples(layout.microbatches)
        return kept, longer, made

    def _stash(self, begin: int, end: int, recompute: Recompute) -> StageStash:
        """The stash of a stage of layers begin to end - 1."""
        key = begin, end, recompute
        if key not in self._stashes:
            received = float(self.costs.cut_bytes[begin])
            self._stashes[key] = stage_stash(self.costs, range(begin, end), recompute, received)
        return self._stashes[key]

    def _room(self, layout: Layout, spare: Sequence[float]) -> Floats:
        """Bytes of each of the layout's devices that are left for what its micro-batches keep, float64 [devices]."""
        most = np.zeros(len(layout.devices))
        held: list[list[tuple[int, int]]] = [[] for _ in layout.devices]
        _, _, made = self._kept(layout)
        np.maximum.at(most, np.array(layout.places), made)
        for place, layers in zip(layout.places, pairwise(self._bounds(layout)), strict=True):
            held[place].append(layers)
        room = room_for_stashes(self.costs, layout.devices, held, most)
        return room - np.asarray(spare) if len(spare) else room


_PHASES: tuple[Phase, ...] = ("forward", "input_gradient", "weight_gradient")
