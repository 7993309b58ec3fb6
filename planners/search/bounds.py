"""Bounds: seconds of an iteration that no plan of the model can beat.

Work. Whatever the plan, each of the `batch` samples passes each layer forward and backward, in ops of 1 to `batch`
samples on one device's compute lane, and a lane runs one op at a time. Let r[l, d] be the least seconds a sample of
layer l on device d over all those sizes, and x[l, d] the samples of l that d runs: T >= sum over l of x[l, d] r[l, d]
for every d, and sum over d of x[l, d] = batch. For any weights y[d] >= 0 that sum to 1, T >= sum over d of y[d] T >=
batch * sum over l of min over d of y[d] r[l, d]: with equal devices and weights, the work over the devices. Unequal
devices get the weights that make it largest (the dual of the assignment's linear program). An update of a layer's
weights, at least one a batch, counts likewise.

Latency. A flushed iteration runs every sample through all layers forward and then backward, one after the other: T >=
the sum over the layers of the least forward and the least input-gradient seconds of any op, on any device; where plans may
have tensor-parallel groups, of a member's share in the largest of them. (The work of a layer is no less in shares.)

The least seconds, of a sample or of an op, lie at an end of the range of sizes for the GPU and FPGA models: a pass is
the larger (or the smaller) of lines a + b n with a, b >= 0, so that its seconds never fall with n, and its seconds a
sample never rise. Layers of a stage on an FPGA work at the same time, so that only their multiply-adds
count. A measured layer is interpolated: straight pieces, whose least value lies at the end of a piece. Of
any other accelerator every size is asked.

Transfers, all-reduces, bubbles and memory only add to these. Noise is not covered. An asynchronous plan is bounded in
its periodic steady state, where every period does the work of its samples. Sums are rounded, so a bound is lowered by
SLACK of itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Phase, streaming
from simulator import ALONE, Layer, LayerCosts, Parallelism, Problem

SLACK = 1e-12
"""Relative; more than sums of thousands of rounded seconds can differ by."""

WEIGHT_SWEEPS = 20
"""Sweeps over the pairs of kinds of accelerators when their weights are chosen; any weights give a valid bound."""


def iteration_lower_bound(
    problem: Problem,
    *,
    asynchronous: bool = False,
    layer_costs: LayerCosts | None = None,
    parallel: Parallelism = ALONE,
) -> float:
    """Seconds of an iteration that no plan can beat: work, and the latency of one sample unless `asynchronous`.

    parallel: how the largest groups of the plans that are meant divide layers
    layer_costs: of the same problem, to share tables that are already filled
    """
    costs = layer_costs or LayerCosts(problem)
    work = _Rates(problem, costs).work_seconds()
    bound = work if asynchronous else max(work, _Rates(problem, costs.at(parallel)).latency_seconds())
    return bound * (1.0 - SLACK)


class _Rates:
    """Least seconds of a sample and of an op, by kind of accelerator and layer."""

    def __init__(self, problem: Problem, costs: LayerCosts) -> None:
        self.problem, self.costs = problem, costs
        devices = range(len(problem.cluster.devices))
        self.devices = [
            next(device for device in devices if costs.kind_of_device(device) == kind)
            for kind in range(costs.accelerator_kinds)
        ]
        self.counts = np.bincount([costs.kind_of_device(device) for device in devices])

    def work_seconds(self) -> float:
        """The work bound; jobs are a sample of a layer (`batch` times) and the update of a layer (once)."""
        batch = self.problem.batch
        passes = np.array([self._passes(device) * batch for device in self.devices])
        updates = np.array([self._updates(device) for device in self.devices])
        return best_weighted_sum(np.hstack([passes, updates]) / self.counts[:, None])

    def latency_seconds(self) -> float:
        """The latency bound."""
        forward = np.min([self._least(device, "forward", False) for device in self.devices], axis=0)
        back = np.min(
            [
                np.minimum(self._least(device, "input_gradient", False), self._least(device, "backward", False))
                for device in self.devices
            ],
            axis=0,
        )
        again = forward * self.costs.runs_again(self.problem.recompute)
        return float((forward + back + again).sum())

    def _passes(self, device: int) -> NDArray[np.float64]:
        """Least seconds a sample of each layer, forward and backward, in one op or in two, float64 [layers]."""
        forward = self._least(device, "forward", True)
        split = self._least(device, "input_gradient", True) + self._least(device, "weight_gradient", True)
        back = np.minimum(self._least(device, "backward", True), split)
        return forward + back + forward * self.costs.runs_again(self.problem.recompute)

    def _least(self, device: int, phase: Phase, per_sample: bool) -> NDArray[np.float64]:
        """Least seconds of one pass of each layer over 1 to `batch` samples, or of a sample of it, float64 [layers]."""
        batch, layers = self.problem.batch, self.problem.workload.layers
        accelerator = self.problem.cluster.devices[device]
        if streaming(accelerator) and self.costs.streams(device):
            # The layers of a stage stream at the same time and share DDR, which binds none of them alone; their DSPs do.
            works, precision = self.costs.works, self.problem.precision
            return np.array([accelerator.multiply_seconds(work, phase, precision) for work in works])
        analytic = [number for number, layer in enumerate(layers) if not layer.measured]
        sizes = {batch} if per_sample else {1}
        if analytic and not accelerator.sublinear:
            sizes = set(range(1, batch + 1))
        divisors = {size: size if per_sample else 1 for size in sizes}
        least = np.min(
            [self.costs.kernel_seconds(device, size, phase) / divisors[size] for size in sorted(sizes)], axis=0
        )
        for number, layer in enumerate(layers):
            if layer.measured:
                least[number] = min(
                    float(self.costs.kernel_seconds(device, size, phase)[number]) / (size if per_sample else 1)
                    for size in _ends(layer, batch)
                )
        return np.asarray(least * self.problem.overlap, dtype=np.float64)  # where every op is one of an overlapped pair

    def _updates(self, device: int) -> NDArray[np.float64]:
        """Least seconds of a layer's part of an update, float64 [layers]; 0 where a small stage may update for nothing.

        Elsewhere a parameter costs least in the largest stage, as an element does in the largest call.
        """
        parameters = self.costs.parameters
        total = float(parameters.sum())
        accelerator = self.problem.cluster.devices[device]
        if total == 0.0 or accelerator.streams or not accelerator.sublinear:
            return np.zeros(len(parameters))
        return parameters * (self.costs.update_seconds(device, total) / total)


def _ends(layer: Layer, batch: int) -> Iterable[int]:
    """Sizes of 1 to `batch` samples among which a measured layer has its least seconds, of an op and of a sample.

    The ends of the range, and the whole sizes beside each profiled one: a piece between two rows is straight, so that
    over the whole sizes in it the least lies at the first or the last of them.
    """
    sizes = {1, batch}
    for samples, _, _ in layer.measured:
        below = int(samples)
        sizes.update(size for size in (below, below + 1) if 1 <= size <= batch)
    return sorted(sizes)


def best_weighted_sum(seconds: NDArray[np.float64]) -> float:
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


def _weighted_sum(seconds: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    return float((seconds * weights[:, None]).min(axis=0).sum())


def _breakpoints(seconds: NDArray[np.float64], weights: NDArray[np.float64], first: int, second: int) -> list[float]:
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
