"""Seed bounds: what pipelines of one rank take at least, by their degrees and numbers alone, before any is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planners.estimate.memory import SAFE, state_bytes
from planners.search.remembered import remembered
from simulator import SLACK, LayerCosts, Parallelism, Zero

AT_LEAST = 1.0 - 2.0 * SLACK
"""Lowers sums of layers below those of another order."""


@dataclass(frozen=True)
class SeedBounds:
    """Which pipelines of one rank may fit, and undercut so many seconds.

    costs: of the problem; contexts: degrees of context parallelism, rising
    """

    costs: LayerCosts
    contexts: Sequence[int]
    below: float

    def promises(self, device: int, parallel: Parallelism, copies: int, count: int, zero: Zero) -> bool:
        """Whether one with so many replicas and micro-batches may, whose first replica begins with a device."""
        return (
            self._holds(device, parallel.tensor, parallel.expert, copies * parallel.context, zero)
            and not self._is_slow_at_once(device, parallel, copies)
            and self._seconds(device, parallel, copies, count) < self.below
        )

    @remembered
    def _holds(self, device: int, tensor: int, expert: int, copies: int, zero: Zero) -> bool:
        """Whether a device has room for weights, gradients and states; copies: parts of contexts of all replicas."""
        layers, problem = self.costs.at(Parallelism(tensor, expert=expert)), self.costs.problem
        held = layers.weight_elements(range(len(problem.workload)))
        divided = held + (expert - 1) * float(layers.expert_parameters.sum())
        states = state_bytes(problem, zero, np.array([held]), np.array([divided]), copies)
        return bool(states[0] * (1.0 - SAFE) <= self.costs.rooms[device])

    def _is_slow_at_once(self, device: int, parallel: Parallelism, copies: int) -> bool:
        """Whether it is too slow even if each sample took what it takes where the whole batch is passed at once.

        Parts of a context take no less together than fewer and larger ones, which are asked first.
        """
        problem, parts = self.costs.problem, parallel.context
        if not problem.cluster.devices[device].sublinear or problem.workload.measured:
            return False
        fewer = (one for one in self.contexts if parts % one == 0)
        return any(
            self._passes(device, parallel._replace(context=one), problem.batch) * one / parts / copies >= self.below
            for one in fewer
        )

    @remembered
    def _seconds(self, device: int, parallel: Parallelism, copies: int, count: int) -> float:
        """Seconds of all forwards and backwards of a device, without what it waits for others."""
        size, larger = divmod(self.costs.problem.batch, count)
        seconds = (count - larger) * self._passes(device, parallel, -(-size // copies))
        return seconds + larger * self._passes(device, parallel, -(-(size + 1) // copies)) if larger else seconds

    @remembered
    def _passes(self, device: int, parallel: Parallelism, samples: int) -> float:
        """Seconds of a forward and a backward of the whole network."""
        layers = self.costs.at(parallel)
        both = (layers.seconds(device, samples, one).sum() for one in ("forward", "backward"))
        return float(sum(both)) * AT_LEAST
