"""Lower bound: seconds of an iteration that no plan of a problem can beat, whatever it decides.

It is a property of the problem: of its network, machine, stack, batch, precision, optimizer and `overlap`. What a plan
decides, or a planner is asked for, is not in it: partition, replicas, what runs again (`Problem.recompute` is what stages do
where their plan does not say), tensor, context and expert degrees, ZeRO, slices, sizes, the order of the ops, pairs that
overlap, offload.
Transfers, collectives of replicas, bubbles, memory and what runs again only add to its terms, each of which holds by itself; the
largest is the bound. Noise is not covered.

Work. Whatever the plan, each of the `batch` samples passes each layer forward and backward, in ops on a device's compute lane,
and a lane runs one op at a time. Let r[l, d] be the least seconds per sample of layer l on device d over all sizes of an op (of
the devices of a group together), and x[l, d] the samples of l that d runs: T >= sum over l of x[l, d] r[l, d] for every d, and
sum over d of x[l, d] = batch. For any weights y[d] >= 0 that sum to 1, T >= sum over d of y[d] T >= batch * sum over l of min
over d of y[d] r[l, d]: with equal devices and weights, the work over the devices. Unequal devices get the weights that make it
largest (the dual of the assignment's linear program). Further jobs are one update of all weights, whose elements ZeRO may divide,
as each is updated somewhere, and what the framework takes for one forward and one backward beside their layers.

Work and latency. A flushed iteration runs every sample, or every slice of it, through all layers forward and then backward, one
after the other: T is at least the seconds of the ops that a sample is in, but those of gradients of weights, and at least the
mean of these seconds over all samples. An op of q samples in a group of t devices that takes s seconds counts t y s in the sum
over devices, and q s / batch in that mean. For any weight w from 0 to 1, T is at least (1 - w) of the first and w of the second:
each op has ((1 - w) t y / q + w / batch) s for each of its samples. The larger an op, the less its samples cost and the longer
is their way: T >= batch * sum over the layers of the least of this over all sizes, groups and devices, with one size forward
and backward (`LeastOps.least`). The weight is the one that makes the sum largest.

`simulator.costs.least_ops` tells the seconds. A pair of a forward and a backward takes `overlap` times the seconds of both, and
all of them may be in pairs; gradients of weights are not. Sums are rounded, so the bound is lowered by SLACK of itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import inf

import numpy as np

from hardware_profiles import Floats
from simulator.costs.layer_costs import LayerCosts
from simulator.costs.least_ops import LeastOps, LeastOpsOf
from simulator.plans.keys import kept_with_its_first
from simulator.plans.plan import Problem

SLACK = 1e-10
"""Relative; more than sums of a million rounded seconds can differ by."""

WEIGHT_SWEEPS = 20
"""Sweeps over the pairs of kinds of accelerators when their weights are chosen; any weights give a valid bound."""

THIRDS = 24
"""Steps by which the weight of a sample's way is found; any weight gives a valid bound."""

_COUNTS = {
    "work": "computation alone, evenly on all devices, in ops of the whole batch",
    "work and latency": "computation and what groups reduce and exchange in it, evenly on all devices, and the way of a sample "
    "through all layers and back, each layer in ops of the size that is best for both",
}


@dataclass(frozen=True, slots=True)
class BoundTerm:
    """One term of the lower bound: seconds that an iteration takes at least, and why.

    name: of the term; seconds: of an iteration at least; flushed: it holds for plans that flush, not for those on stale weights
    """

    name: str
    seconds: float
    flushed: bool

    @property
    def counts(self) -> str:
        """What it counts of an iteration, in words."""
        return _COUNTS[self.name]

    def gap(self, seconds: float) -> float:
        """Relative distance of so many seconds above the bound; infinite above a bound of 0."""
        return gap_above(seconds, self.seconds)


def gap_above(value: float, bound: float) -> float:
    """Relative distance of a value above its lower bound: 0 where it is the bound, infinite above a bound of 0."""
    if value == bound:
        return 0.0
    return value / bound - 1.0 if bound > 0 else inf


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Lower bound on the seconds of an iteration under any plan: the largest of several terms, each valid by itself."""

    terms: tuple[BoundTerm, ...]

    def of(self, *, flush: bool) -> BoundTerm:
        """The largest term for plans that flush, or for those that train on stale weights."""
        return max((one for one in self.terms if flush or not one.flushed), key=lambda one: one.seconds)


@kept_with_its_first
def lower_bound(problem: Problem, layer_costs: LayerCosts | None = None) -> LowerBound:
    """The lower bound of a problem; it is kept with the problem."""
    ops = LeastOpsOf(problem, LayerCosts(problem) if layer_costs is None else layer_costs)
    least = [_LeastSeconds(ops, experts) for experts in ops.expert_degrees]
    both = BoundTerm("work and latency", min(one.work_and_latency_seconds() for one in least), True)
    terms = BoundTerm("work", min(one.work_seconds() for one in least), False), both
    return LowerBound(tuple(replace(one, seconds=one.seconds * (1.0 - SLACK)) for one in terms))


class _LeastSeconds:
    """Least seconds of an iteration of a problem, under any plan whose expert degree is in a range."""

    def __init__(self, ops: LeastOpsOf, experts: tuple[int, int]) -> None:
        self.problem, self.costs, self.ops, self.experts = ops.problem, ops.costs, ops, experts
        problem, costs = self.problem, self.costs
        self.devices = [costs.first_of_kind(kind) for kind in range(costs.accelerator_kinds)]
        kinds = [costs.kind_of_device(device) for device in range(len(problem.cluster.devices))]
        self.counts = np.bincount(kinds)

    def work_seconds(self) -> float:
        """Lower bound from work: every layer for every sample, one update of all weights and one pass of the framework, balanced
        over all devices.
        """
        return _weighted_sum(self._jobs, self._weights)

    def work_and_latency_seconds(self) -> float:
        """Lower bound from both: the largest found of their means, over the weight of a sample's way."""
        low, high = 0.0, 1.0
        best = max(self._mean(low), self._mean(high))
        for _ in range(THIRDS):  # the mean is concave in the weight
            one, two = low + (high - low) / 3.0, high - (high - low) / 3.0
            first, second = self._mean(one), self._mean(two)
            best = max(best, first, second)
            low, high = (one, high) if first < second else (low, two)
        return best

    def _mean(self, way: float) -> float:
        """Mean of the seconds of a device and of a sample's way, which has this weight, where every layer has the ops for which
        it is least.
        """
        work = (1.0 - way) * self._weights
        beside = (work[:, None] * self._beside).min(axis=0).sum() + way * self._framework_seconds.min(axis=0).sum()
        costs = (work / self.counts * self.problem.batch).tolist()
        return float(beside) + sum(
            count * min(ops.least(cost, way) for ops, cost in zip(kinds, costs, strict=True))
            for kinds, count in self._layers
        )

    @cached_property
    def _weights(self) -> Floats:
        """Weights of the kinds of accelerators, float64 [kinds]."""
        return best_weights(self._jobs)

    @cached_property
    def _jobs(self) -> Floats:
        """Seconds of each job of an iteration, done by all devices of a kind, float64 [kinds, jobs]."""
        passes = [[count * ops.least(self.problem.batch, 0.0) for ops in kinds] for kinds, count in self._layers]
        return np.hstack([np.array(passes).T / self.counts[:, None], self._beside])

    @cached_property
    def _layers(self) -> list[tuple[list[LeastOps], int]]:
        """The ops of each unlike layer on each kind of accelerator, and how many such layers there are."""
        of, devices = self.ops.of, self.devices
        return [([of(number, device, self.experts) for device in devices], count) for number, count in self.ops.unlike]

    @cached_property
    def _beside(self) -> Floats:
        """Seconds of an update of all weights, and of the framework, done by all devices of a kind, float64 [kinds, 3]."""
        updates = np.array([[self._update(device)] for device in self.devices])
        return np.hstack([updates, self._framework_seconds]) / self.counts[:, None]

    @cached_property
    def _framework_seconds(self) -> Floats:
        """Framework overhead of one forward and one backward of a stage, seconds, float64 [kinds, 2]."""
        costs = self.costs
        found = [
            [0.0] * 2
            if costs.streams(one)
            else [costs.pass_seconds(one, "forward"), costs.pass_seconds(one, "backward")]
            for one in self.devices
        ]
        return np.asarray(self.problem.overlap * np.array(found), dtype=np.float64)

    def _update(self, device: int) -> float:
        """Least seconds of an update of all weights; 0 if a small stage may update for free. Elsewhere a parameter costs least in
        the largest stage, as an element does in the largest call.
        """
        accelerator = self.problem.cluster.devices[device]
        if accelerator.streams or not accelerator.sublinear:
            return 0.0
        return self.costs.update_seconds(device, float(self.costs.parameters.sum()))


def best_weights(seconds: Floats) -> Floats:
    """Weights y >= 0 of sum 1 for which the sum over jobs of min over kinds of y[kind] * seconds[kind, job] is the largest found,
    float64 [kinds].

    seconds: float64 [kinds, jobs]. Exact for one kind and for two; for more, pair after pair is improved, which may stop short.
    """
    kinds, totals = seconds.shape[0], seconds.sum(axis=1)
    if not (totals > 0).all():
        return np.full(kinds, 1.0 / kinds)
    weights: Floats = (1.0 / totals) / (1.0 / totals).sum()
    best = _weighted_sum(seconds, weights)
    for _ in range(WEIGHT_SWEEPS):
        before = best
        for first, second in combinations(range(kinds), 2):
            for share in _breakpoints(seconds, weights, first, second):
                moved = weights.copy()
                both = weights[first] + weights[second]
                moved[first], moved[second] = share * both, (1.0 - share) * both
                value = _weighted_sum(seconds, moved)
                if value > best:
                    best, weights = value, moved
        if best <= before * (1.0 + 1e-9):
            break
    return weights


def _weighted_sum(seconds: Floats, weights: Floats) -> float:
    return float((seconds * weights[:, None]).min(axis=0).sum())


def _breakpoints(seconds: Floats, weights: Floats, first: int, second: int) -> list[float]:
    """Shares of two kinds' common weight at which a job's minimum passes from one kind to another, rising.

    Between two of them the sum is a straight line: its largest value lies at one.
    """
    both = weights[first] + weights[second]
    others = np.delete(np.arange(len(weights)), [first, second])
    one, two = seconds[first] * both, seconds[second] * both
    rest = (seconds[others] * weights[others, None]).min(axis=0, initial=np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.concatenate([two / (one + two), rest / one, 1.0 - rest / two])
    inside = found[np.isfinite(found) & (found > 0) & (found < 1)]
    return [float(share) for share in np.unique(inside)]
