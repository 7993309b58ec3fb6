"""Seed bounds: what pipelines of one rank take at least, by their degrees and numbers alone, before any is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from planners.estimate.memory import SAFE, state_bytes
from planners.search.candidates import device_groups
from planners.search.remembered import remembered
from simulator import SLACK, LayerCosts, Parallelism, Recompute, Stage, StagePlaces, Zero, stage_stash

AT_LEAST = 1.0 - 2.0 * SLACK
"""Lowers sums of layers below those of another order."""


@dataclass(frozen=True)
class SeedBounds:
    """Which pipelines of one rank may fit, and undercut so many seconds.

    costs: of the problem; devices: to choose from; contexts: degrees of context parallelism, rising
    policy: what they run again; below: seconds, None where all may
    """

    costs: LayerCosts
    devices: Sequence[int]
    contexts: Sequence[int]
    policy: Recompute
    below: float | None

    @remembered
    def groups(self, degree: int) -> list[tuple[int, ...]]:
        """Groups of so many of the devices."""
        among = set(self.devices)
        return [one for one in device_groups(self.costs.problem, degree) if among.issuperset(one)]

    def promises(self, parallel: Parallelism, copies: int, count: int, zero: Zero) -> bool:
        """Whether one with so many replicas and micro-batches, the first of which begins with the first device, may."""
        if self.below is None:
            return True
        size, larger = divmod(self.costs.problem.batch, count)
        sizes = {-(-size // copies): count - larger}
        if larger:
            sizes[-(-(size + 1) // copies)] = sizes.get(-(-(size + 1) // copies), 0) + larger
        states = self._states(parallel._replace(context=1), copies * parallel.context, zero)
        left = self.costs.rooms[self.groups(parallel.tensor)[0][0]] - states
        return bool(
            left >= 0
            and not self._is_slow_at_once(parallel, copies, self.below)
            and self._kept(parallel) * max(sizes) <= left
            and sum(often * self._passes(parallel, samples) for samples, often in sizes.items()) < self.below
        )

    @remembered
    def _states(self, parallel: Parallelism, copies: int, zero: Zero) -> float:
        """Bytes of weights, gradients and states; copies: parts of contexts of all replicas."""
        layers, problem = self.costs.at(parallel), self.costs.problem
        held = layers.weight_elements(range(len(problem.workload)))
        divided = held + (parallel.expert - 1) * float(layers.expert_parameters.sum())
        return float(state_bytes(problem, zero, np.array([held]), np.array([divided]), copies)[0]) * (1.0 - SAFE)

    @remembered
    def _kept(self, parallel: Parallelism) -> float:
        """Bytes per sample that are kept of all layers from forward to backward."""
        layers = range(len(self.costs.problem.workload))
        return stage_stash(self.costs.at(parallel), layers, self.policy).kept * (1.0 - SAFE)

    def _is_slow_at_once(self, parallel: Parallelism, copies: int, below: float) -> bool:
        """Whether it is too slow even if each sample took what it takes where the whole batch is passed at once.

        Parts of a context take no less together than fewer and larger ones, which are asked first.
        """
        problem, parts = self.costs.problem, parallel.context
        if not problem.cluster.devices[self.groups(parallel.tensor)[0][0]].sublinear or problem.workload.measured:
            return False
        fewer = (one for one in self.contexts if parts % one == 0)
        return any(
            self._passes(parallel._replace(context=one), problem.batch) * one / parts / copies >= below for one in fewer
        )

    @remembered
    def _passes(self, parallel: Parallelism, samples: int) -> float:
        """Seconds of a forward and a backward of the whole network, beside none but what divides its experts."""
        tensor, context, expert = parallel
        groups = self.groups(tensor)[: expert // gcd(expert, context) * context]
        devices = tuple(device for one in groups for device in one)
        stage = Stage((), devices, (tensor * context,) * (len(groups) // context))
        rates = StagePlaces(stage, self.costs.problem, context, expert).rates(0)
        layers = self.costs.at(parallel, rates)
        both = (layers.seconds(devices[0], samples, one).sum() for one in ("forward", "backward"))
        return float(sum(both)) * AT_LEAST
