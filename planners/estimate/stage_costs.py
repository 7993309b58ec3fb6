"""Stage costs: seconds and bytes of stages as functions of their number of like blocks, on a device of a group.

Everything is what `LayerCosts` says of a few blocks, and of the layers in front of and behind them: sums are lines in that
number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from hardware_profiles import Floats, Integers, Phase, reduce_seconds
from planners.estimate.like_blocks import LikeBlocks, shortened
from planners.search.remembered import remembered
from simulator import (
    BUCKET_BYTES,
    GroupRates,
    LayerCosts,
    Parallelism,
    Problem,
    Recompute,
    cut_buckets,
    gradient_in_work,
    launch_waits,
    stage_stash,
    unit_begins,
)

FIRST, MIDDLE, LAST, ONLY = range(4)
"""Places of a stage in its pipeline; ONLY: the one stage has all layers."""

Pass = Literal["forward", "backward"] | Recompute
"""A pass, or a recompute policy, which stands for what it runs forward again in a backward."""

PROBED = 3
"""Blocks, at most, of the shortened network whose layers are costed."""


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of stages as a line in their number n of blocks, own + block * n.

    own: by place in the pipeline (FIRST, MIDDLE, LAST, ONLY), float64 [4]
    """

    own: Floats
    block: float


class StageCosts:
    """Seconds and bytes of stages of like blocks on a device of each choice of group; tables are filled when first asked for."""

    def __init__(self, problem: Problem, blocks: LikeBlocks, policies: Sequence[Recompute], device: int = 0) -> None:
        """blocks: the network's run of like blocks; policies: recompute policies to choose from; device: any device of the
        kind
        """
        self.device, self.whole = device, blocks
        self.count = min(PROBED, blocks.count)
        self.blocks = replace(
            blocks, count=self.count, layers=blocks.layers - (blocks.count - self.count) * blocks.size
        )
        workload = shortened(problem.workload, blocks, self.count)
        everywhere = range(len(problem.cluster.devices))
        self.costs = LayerCosts(replace(problem, workload=workload)).across(everywhere)
        self.policies = tuple(policies)
        self._units: dict[Parallelism, Floats] = {}

    @cached_property
    def probes(self) -> tuple[Integers, ...]:
        """Layers of the probed stages through whose figures `line` goes: first, one middle block, two middle blocks, last,
        everything.
        """
        begin = self.blocks.before + (self.count - 2) * self.blocks.size
        inner = np.arange(begin, begin + 2 * self.blocks.size)
        ends = (0, 1), (self.count - 1, self.count), (0, self.count)
        first, last, everything = (np.array(self.blocks.range(*one)) for one in ends)
        return first, inner[: self.blocks.size], inner, last, everything

    def line(self, figures: Sequence[float]) -> Line:
        """The line through a figure of the five probes, in their order."""
        first, one, two, last, everything = figures
        block = two - one
        return Line(np.array([first - block, one - block, last - block, everything - block * self.count]), block)

    @remembered
    def seconds(self, parallel: Parallelism, rates: GroupRates, samples: int, what: Pass) -> Line:
        """Seconds of a pass over some samples, or of what a recompute policy runs again, as a line in the stage's blocks."""
        phase: Phase = "backward" if what == "backward" else "forward"
        member = self.costs.at(parallel, rates)
        of_layers, beside = member.seconds(self.device, samples, phase), 0.0
        if what in ("forward", "backward"):
            beside = self.costs.pass_seconds(self.device, phase)
        waited = self._waits(member, samples, phase)
        if waited is None:
            again = self._again(what)
            return self.line([float((of_layers * again)[one].sum()) + beside for one in self.probes])
        return self._waiting_line(of_layers, *waited, what, beside)

    def _waits(self, member: LayerCosts, samples: int, phase: Phase) -> tuple[Floats, Floats] | None:
        """Seconds that each layer waits for the host's launches: of all layers of the network, and of those of the shortened one;
        None where none waits.

        Both are needed, since a host that is ahead after a large layer falls behind some blocks later.
        """
        launches = member.launch_seconds(self.device, phase)
        if not launches.any():
            return None
        kernels = member.kernel_seconds(self.device, samples, phase)
        every = launch_waits(kernels[self._layers], launches[self._layers], phase)
        return (every, launch_waits(kernels, launches, phase)) if every.any() else None

    @cached_property
    def _layers(self) -> Integers:
        """For each layer of the network, the probed layer that stands for it, int64 [layers]."""
        block = np.arange(self.whole.count)
        held = np.where(block < self.whole.count - 1, np.minimum(block, max(self.count - 2, 0)), self.count - 1)
        begin, end = self.blocks.before, self.blocks.before + self.count * self.blocks.size
        inner = (begin + held[:, None] * self.blocks.size + np.arange(self.blocks.size)).ravel()
        return np.concatenate([np.arange(begin), inner, np.arange(end, self.blocks.layers)])

    def _waiting_line(self, seconds: Floats, every: Floats, few: Floats, what: Pass, beside: float) -> Line:
        """The line of stages whose blocks all wait for launches as long as blocks do on average.

        seconds: of the shortened network's layers, waits included; every, few: waits of `_waits`; beside: of the whole pass
        """
        found = ((seconds - few)[self._layers] + every) * self._again(what)[self._layers]
        begin, end = self.whole.before, self.whole.before + self.whole.count * self.whole.size
        front, behind = float(found[:begin].sum()), float(found[end:].sum())
        own = np.array([front, 0.0, behind, front + behind]) + beside
        return Line(own, float(found[begin:end].sum()) / self.whole.count)

    def _again(self, what: Pass) -> Floats:
        """Share of each layer's forward that a pass runs (all of it), or that a recompute policy runs again, float64 [layers]."""
        return self.costs.runs_again("whole" if what == "forward" or what == "backward" else what)

    def gather_seconds(self, parallel: Parallelism, rates: GroupRates, samples: int) -> float:
        """Seconds in which a group gathers a boundary tensor of some samples that it receives in parts."""
        gathered = self.costs.at(parallel).gathered_cut_bytes[self._between]
        return reduce_seconds(rates.gather, float(gathered) * samples)

    def boundary_bytes(self, parallel: Parallelism) -> float:
        """Bytes per sample that a device keeps of the tensor at a boundary between blocks."""
        return float(self.costs.at(parallel).cut_bytes[self._between])

    def sent_bytes(self, parallel: Parallelism) -> float:
        """Bytes per sample that a device sends over a boundary between blocks."""
        return float(self.costs.cut_bytes[self._between]) / (parallel.tensor * parallel.context)

    @property
    def _between(self) -> int:
        """The first layer behind a boundary between two blocks."""
        return int(self.probes[1][0])

    @remembered
    def elements(self, parallel: Parallelism) -> tuple[Line, Line]:
        """Weight elements of a stage on the device: all, and those in routed experts."""
        member = self.costs.at(parallel)
        figures = member.weight_elements, lambda layers: float(member.expert_parameters[layers].sum())
        held, experts = (self.line([figure(one) for one in self.probes]) for figure in figures)
        return held, experts

    @remembered
    def update_line(self, parallel: Parallelism) -> tuple[float, float, float]:
        """Seconds of an optimizer update as (least, own, element): max(least, own + elements * element)."""
        member, held = self.costs.at(parallel), self.elements(parallel)[0]
        most = max(1.0, float(held.own[ONLY]) + held.block * self.count)
        least, half, whole = (member.update_seconds(self.device, one) for one in (1.0, most / 2, most))
        element = (whole - half) / (most / 2)
        return least, whole - most * element, element

    def tied_elements(self, parallel: Parallelism) -> float:
        """Weight elements that layers in front of the like blocks share with layers behind them: their gradients are reduced
        apart.
        """
        end = self.blocks.before + self.count * self.blocks.size
        tied = self.costs.at(parallel).tied_weights
        return sum(one.parameters for one in tied if one.layers[0] < self.blocks.before and one.layers[-1] >= end)

    def units(self, parallel: Parallelism, most: int) -> Floats:
        """Units of stages, float64 [places, most + 1, 5], by place in the pipeline and 0 to `most` blocks.

        Columns: number of units; weight elements of the first unit; those of them in routed experts; elements of the two largest
        units (of the two largest layers where the stack gathers layer by layer).
        """
        known = self._units.get(parallel)
        if known is None or known.shape[1] <= most:
            # Of many blocks the units are those of few, and one after the other again.
            alike = self._in_unit(parallel) or most
            few = min(most + 1, 5 * alike)
            rows = [[self._units_of(parallel, place, count) for count in range(few)] for place in range(ONLY + 1)]
            count = np.arange(most + 1)
            more = np.maximum(0, count - 4 * alike) // alike
            known = self._units[parallel] = np.array(rows)[:, count - more * alike]
            known[:, :, 0] += more
        return known[:, : most + 1]

    def _in_unit(self, parallel: Parallelism) -> int:
        """Blocks that a unit of like blocks has; 0 where they have no weights."""
        size = self.elements(parallel)[0].block * self.costs.problem.element_bytes
        return int(-(-BUCKET_BYTES // size)) if size else 0

    def most_in_unit(self, parallel: Parallelism) -> int:
        """Blocks of the largest unit: of the last one, which takes those that are left over."""
        return max(1, 2 * self._in_unit(parallel) - 1)

    def _units_of(self, parallel: Parallelism, place: int, count: int) -> tuple[float, ...]:
        """The five columns of `units` for a stage of `count` blocks."""
        (block, experts), member = (line.block for line in self.elements(parallel)), self.costs.at(parallel)
        end = self.blocks.before + self.count * self.blocks.size
        before = range(self.blocks.before if place in (FIRST, ONLY) else 0)
        behind = range(end, self.blocks.layers if place in (LAST, ONLY) else end)
        front, back = ([member.weight_elements([layer]) for layer in one] for one in (before, behind))
        sizes = [*front, *[block] * count, *back]
        numbers = [0] * len(before) + [*range(1, count + 1)] + [0] * len(behind)
        if not sizes:
            return 0.0, 0.0, 0.0, 0.0, 0.0
        begins = unit_begins(sizes, numbers, self.costs.problem)
        units = [sum(sizes[one:two]) for one, two in pairwise([*begins, len(sizes)])]
        of_layers = member.expert_parameters
        within = [*of_layers[before], *[experts] * count, *of_layers[behind]][: [*begins, len(sizes)][1]]
        if self.costs.problem.stack.gathered == "products":  # of like blocks those of two
            inside = [member.weight_elements([layer]) for layer in self.probes[1]] * min(count, 2)
            largest = [*front, *inside, *back]
        else:
            largest = units
        return (float(len(units)), units[0], sum(within), *sorted([0.0, *largest])[-2:])

    def bucket_shares(
        self, parallel: Parallelism, rates: GroupRates, samples: int, count: int
    ) -> list[tuple[float, float, float]]:
        """Gradient buckets of a middle stage of `count` blocks, as `cut_buckets` gives them."""
        member, block, width = self.costs.at(parallel, rates), self.probes[1], self.costs.problem.accumulated_bytes
        experts = member.expert_parameters[block]
        backward = member.seconds(self.device, samples, "backward")[block]
        columns = (member.parameters[block] - experts) * width, experts * width, backward / (backward.sum() * count)
        whole = self.costs.problem.gradient_reduction == "whole"
        return cut_buckets(*(np.tile(one, count) for one in columns), whole=whole)

    @remembered
    def gradients_in_work(self, parallel: Parallelism) -> tuple[Line, ...]:
        """By recompute policy: bytes of weight gradients before they are added up, where replicas do not divide them."""
        member = self.costs.at(parallel)
        return tuple(
            self.line([gradient_in_work(member, one.tolist(), policy) for one in self.probes])
            for policy in self.policies
        )

    @remembered
    def stashes(self, parallel: Parallelism) -> tuple[tuple[Line, Line], ...]:
        """By recompute policy: bytes per sample that a stage keeps from forward to backward, and that its backward makes again at
        once.
        """
        member, found = self.costs.at(parallel), []
        for policy in self.policies:
            received = [0.0, *[self.boundary_bytes(parallel)] * 3, 0.0]
            pairs = zip(self.probes, received, strict=True)
            several = [stage_stash(member, one.tolist(), policy, size) for one, size in pairs]
            found.append((self.line([one.kept for one in several]), self.line([one.made for one in several])))
        return tuple(found)
