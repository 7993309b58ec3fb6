"""Lower bound: seconds of an iteration that no plan of a problem can beat, whatever it decides.

It is a property of the problem: of its network, machine, stack, batch, precision, optimizer and `overlap`. What a plan
decides, or a planner is asked for, is not in it: partition, replicas, what runs again (`Problem.recompute` is what stages do
where their plan does not say), tensor, context and expert degrees, ZeRO, slices, sizes, the order of the ops, pairs that
overlap, offload.
Transfers, collectives, bubbles, memory and what runs again only add to its terms, each of which holds by itself; the largest is
the bound. A plan that trains on stale weights is bounded in its periodic steady state, where the term of `latency` does not
hold. Noise is not covered.

Work. Whatever the plan, each of the `batch` samples passes each layer forward and backward, in ops of 1 to `batch` samples on a
device's compute lane, and a lane runs one op at a time. Let r[l, d] be the least seconds per sample of layer l on device d over
all those sizes, and x[l, d] the samples of l that d runs: T >= sum over l of x[l, d] r[l, d] for every d, and sum over d of
x[l, d] = batch. For any weights y[d] >= 0 that sum to 1, T >= sum over d of y[d] T >= batch * sum over l of min over d of y[d]
r[l, d]: with equal devices and weights, the work over the devices. Unequal devices get the weights that make it largest (the
dual of the assignment's linear program). Further jobs are one update of all weights, whose elements ZeRO may divide, as each is
updated somewhere, and what the framework takes for one forward and one backward beside their layers.

Latency. A flushed iteration runs every sample, or every slice of it, through all layers forward and then backward, one after
the other: T >= the sum over the layers of the least forward and the least input-gradient seconds of any op on any device, on
the smallest part of a sample that an op may have.

The least seconds, of a sample or of an op, lie at an end of the range of sizes for an accelerator that is `sublinear`, as the
GPU and FPGA models are: a pass is the larger (or the smaller) of lines a + b n with a, b >= 0, so that its seconds never fall
with n, and its seconds per sample never rise. Layers of a stage on an FPGA work at the same time, so that only their multiply-
adds count. A measured layer is interpolated: straight pieces, whose least value lies at the end of a piece. Of an accelerator
that is not `sublinear` every size is asked, up to MOST_SIZES.

Parts. A tensor-parallel group of t devices, c parts of the context and k slices each do a part of a layer, and such a line is
one in its FLOP, elements and weights, too: parts of these that sum to at least the whole take together no less seconds than it,
so that a sample of work is a sample of work however it is divided, and an op of a part takes no less than one of the smallest.
Of experts that e groups divide each reads its part of the weights for its own samples. A micro-batch of s samples has R
replicas of c groups, R c >= e, and ceil(s / R) samples in the largest op: a sample costs at least (p / e) / ceil(s / R), times
c, of reading p weights, which is no less than p / (batch + e - 1). What takes parts of a layer on a device that is not
`sublinear`, or of a convolution, whose efficiency depends on its channels, is not known: no seconds are counted.

A pair of a forward and a backward takes `overlap` times the seconds of both, and all of them may be in pairs; weight gradients
are not. Sums are rounded, so the bound is lowered by SLACK of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from math import inf
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Phase, Precision, Work, streaming
from simulator.costs.layer_costs import LayerCosts, measured_layer_seconds
from simulator.plans.plan import Problem, expert_degrees
from simulator.workloads.layers import Layer, Workload
from simulator.workloads.sequence_slices import slice_of
from simulator.workloads.shares import share_of

Floats = NDArray[np.float64]

SLACK = 1e-10
"""Relative; more than sums of a million rounded seconds can differ by."""

WEIGHT_SWEEPS = 20
"""Sweeps over the pairs of kinds of accelerators when their weights are chosen; any weights give a valid bound."""

MOST_SIZES = 4096
"""Sizes of ops that an accelerator which is not `sublinear` is asked for; of larger batches nothing is known of it."""

_COUNTS = {
    "work": "computation alone, evenly on all devices, in ops of the whole batch",
    "latency": "the way of the smallest part of one sample through all layers and back, alone",
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


_known: WeakKeyDictionary[LayerCosts, tuple[Problem, LowerBound]] = WeakKeyDictionary()
"""The problem of each `LayerCosts` and its bound, for as long as these live."""


def lower_bound(problem: Problem, layer_costs: LayerCosts | None = None) -> LowerBound:
    """The lower bound of a problem; it is cached with `layer_costs`."""
    costs = LayerCosts(problem) if layer_costs is None else layer_costs
    known = _known.get(costs)
    if known is None or known[0] is not problem:
        least = _LeastSeconds(problem, costs)
        terms = BoundTerm("work", least.work_seconds(), False), BoundTerm("latency", least.latency_seconds(), True)
        lowered = (replace(one, seconds=one.seconds * (1.0 - SLACK)) for one in terms)
        known = _known[costs] = problem, LowerBound(tuple(lowered))
    return known[1]


class _LeastSeconds:
    """Least seconds of each layer on each kind of accelerator; arrays are float64 [kinds, layers]."""

    def __init__(self, problem: Problem, costs: LayerCosts) -> None:
        self.problem, self.costs = problem, costs
        self.devices = [costs.first_of_kind(kind) for kind in range(costs.accelerator_kinds)]
        count, cluster = len(problem.cluster.devices), problem.cluster
        self.counts = np.bincount([costs.kind_of_device(device) for device in range(count)])
        self.most_experts = max(one for one in expert_degrees(problem.workload) if one <= count)
        self.most_tensor = max(map(len, cluster.servers)) if cluster.tensor_groups == "server" else count

    def work_seconds(self) -> float:
        """Lower bound from work: every layer for every sample, one update of all weights and one pass of the framework, balanced
        over all devices.
        """
        passes = self._there_and_back(per_sample=True) * self.problem.batch
        beside = [(self._update(device), *self._framework(device)) for device in self.devices]
        return best_weighted_sum(np.hstack([passes, beside]) / self.counts[:, None])

    def latency_seconds(self) -> float:
        """Lower bound from latency: the smallest part of a sample runs through all layers and back."""
        passes = self._there_and_back(per_sample=False).min(axis=0)
        framework = np.min([self._framework(device) for device in self.devices], axis=0)
        return float(passes.sum() + framework.sum())

    def _there_and_back(self, *, per_sample: bool) -> Floats:
        """Least seconds of forward plus backward: per sample with weight gradients, or per op without them."""
        works, overlap = self._whole if per_sample else self._smallest, self.problem.overlap
        forward, backward, inputs, weights = (
            np.array([self._of_pass(device, works, phase, per_sample=per_sample) for device in self.devices])
            for phase in ("forward", "backward", "input_gradient", "weight_gradient")
        )
        back = np.minimum(overlap * backward, overlap * inputs + weights * per_sample)
        return np.asarray(overlap * forward + back, dtype=np.float64)

    def _of_pass(self, device: int, works: tuple[Work, ...], phase: Phase, *, per_sample: bool) -> list[float]:
        """Least seconds of one pass of each layer, per op of 1 to `batch` samples, or per sample of such an op."""
        batch, accelerator, stack = self.problem.batch, self.problem.cluster.devices[device], self.problem.stack
        sizes: Iterable[int] = (batch if per_sample else 1,)
        if not accelerator.sublinear:
            sizes = range(1, batch + 1) if batch <= MOST_SIZES else ()

        def least(seconds: Callable[[int], float], sizes: Iterable[int]) -> float:
            return min((seconds(size) / (size if per_sample else 1) for size in sizes), default=0.0)

        @cache  # blocks of a network repeat
        def modelled(work: Work, precision: Precision) -> float:
            if streaming(accelerator):
                return accelerator.multiply_seconds(work, phase, self.problem.precision)
            return least(lambda size: stack.layer_seconds(accelerator, work, size, phase, precision), sizes)

        def of(layer: Layer, work: Work) -> float:
            if layer.measured:
                return least(lambda size: measured_layer_seconds(layer, size, phase), _ends(layer, batch))
            return modelled(work, self.problem.precision_of(layer)) if self._is_known(layer, device) else 0.0

        return [of(*one) for one in zip(self.problem.workload.layers, works, strict=True)]

    def _is_known(self, layer: Layer, device: int) -> bool:
        """Whether parts of a layer together take at least as long as the whole, or the layer cannot be divided."""
        accelerator = self.problem.cluster.devices[device]
        if accelerator.streams or (accelerator.sublinear and layer.kind != "convolution"):
            return True
        divided = (layer.split and self.most_tensor > 1) or (layer.experts and self.most_experts > 1)
        return not divided and self._smallest_slice is self.problem.workload

    @cached_property
    def _whole(self) -> tuple[Work, ...]:
        """The work of each whole layer; for experts, with the fewest weights read per sample."""
        batch = self.problem.batch
        shared = batch / (batch + self.most_experts - 1)
        pairs = zip(self.problem.workload.layers, self.costs.works, strict=True)
        return tuple(
            replace(work, parameters=work.parameters * shared) if layer.experts else work for layer, work in pairs
        )

    @cached_property
    def _smallest(self) -> tuple[Work, ...]:
        """The work of the smallest part of each layer that an op may do for one sample."""
        part = self._smallest_slice
        tensor, expert, sequence_parallel = self.most_tensor, self.most_experts, self.problem.sequence_parallel
        pairs = zip(part.layers, part.works(), strict=True)
        shares = (share_of(*one, tensor, expert=expert, sequence_parallel=sequence_parallel) for one in pairs)
        return tuple(share.work for share in shares)

    @cached_property
    def _smallest_slice(self) -> Workload:
        """The first of as many slices as sequences allow, or the workload itself if it has none; no part of the context is
        smaller.
        """
        workload = self.problem.workload
        tokens = min((layer.causal_tokens for layer in workload.layers if layer.causal_tokens), default=1)
        try:
            return slice_of(workload, 0, tokens)
        except ValueError:
            return workload

    def _framework(self, device: int) -> tuple[float, float]:
        """Framework overhead of one forward and one backward of a stage, seconds."""
        if self.costs.streams(device):
            return 0.0, 0.0
        there, back = (self.costs.pass_seconds(device, phase) for phase in ("forward", "backward"))
        return self.problem.overlap * there, self.problem.overlap * back

    def _update(self, device: int) -> float:
        """Least seconds of an update of all weights; 0 if a small stage may update for free. Elsewhere a parameter costs least in
        the largest stage, as an element does in the largest call.
        """
        accelerator = self.problem.cluster.devices[device]
        if accelerator.streams or not accelerator.sublinear:
            return 0.0
        return self.costs.update_seconds(device, float(self.costs.parameters.sum()))


def _ends(layer: Layer, batch: int) -> Iterable[int]:
    """Candidate sizes from 1 to `batch` samples that include those with the least seconds of a measured layer, per op and per
    sample.

    The ends of the range, and the whole sizes beside each profiled one: a piece between two rows is straight, so that
    over the whole sizes in it the least lies at the first or the last of them.
    """
    sizes = {1, batch}
    for samples, _, _ in layer.measured:
        below = int(samples)
        sizes.update(size for size in (below, below + 1) if 1 <= size <= batch)
    return sorted(sizes)


def best_weighted_sum(seconds: Floats) -> float:
    """The largest found of sum over jobs of min over kinds of y[kind] * seconds[kind, job], y >= 0 with sum 1.

    seconds: float64 [kinds, jobs]. Exact for one kind and for two; for more, pair after pair is improved, which may stop short.
    """
    kinds = seconds.shape[0]
    if kinds == 1:
        return float(seconds[0].sum())
    totals = seconds.sum(axis=1)
    if not (totals > 0).all():
        return 0.0
    weights = (1.0 / totals) / (1.0 / totals).sum()
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
    return best


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
