"""Seed bounds: seconds and bytes that pipelines of one rank need at least, from their degrees and counts alone, before devices
are chosen.
"""

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
"""Factor just below 1: a sum over layers times it is a lower bound on the same sum in any other order of addition."""


@dataclass(frozen=True)
class SeedBounds:
    """Test of which seeds of one rank may fit in memory and take less than a number of seconds.

    costs: of the problem's layers; devices: to choose from; contexts: degrees of context parallelism, rising
    policy: what all stages recompute; below: seconds to undercut, None where every seed may
    """

    costs: LayerCosts
    devices: Sequence[int]
    contexts: Sequence[int]
    policy: Recompute
    below: float | None

    @remembered
    def groups(self, degree: int) -> list[tuple[int, ...]]:
        """Tensor-parallel groups of `degree` devices each that lie among the devices to choose from."""
        among = set(self.devices)
        return [one for one in device_groups(self.costs.problem, degree) if among.issuperset(one)]

    def promises(self, parallel: Parallelism, copies: int, count: int, zero: Zero) -> bool:
        """Whether a pipeline of one rank with these degrees, replicas (`copies`) and micro-batches (`count`) may fit and take
        less than `below`.

        The bounds are those of the group that begins with the first of the devices.
        """
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
        """Lower bound on bytes of weights, gradients and optimizer states per device.

        copies: replicas times parts of the context
        """
        layers, problem = self.costs.at(parallel), self.costs.problem
        held = layers.weight_elements(range(len(problem.workload)))
        divided = held + (parallel.expert - 1) * float(layers.expert_parameters.sum())
        return float(state_bytes(problem, zero, np.array([held]), np.array([divided]), copies)[0]) * (1.0 - SAFE)

    @remembered
    def _kept(self, parallel: Parallelism) -> float:
        """Lower bound on bytes per sample that all layers keep from forward to backward."""
        layers = range(len(self.costs.problem.workload))
        return stage_stash(self.costs.at(parallel), layers, self.policy).kept * (1.0 - SAFE)

    def _is_slow_at_once(self, parallel: Parallelism, copies: int, below: float) -> bool:
        """Whether a pipeline takes `below` seconds even if every sample ran at the rate of the whole batch in one pass.

        Context-parallel degrees that divide this one are asked first: their larger parts take no more seconds in all.
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
        """Lower bound on the seconds of a forward and a backward of the whole network for so many samples, without communication
        but for what divides the experts.
        """
        tensor, context, expert = parallel
        groups = self.groups(tensor)[: expert // gcd(expert, context) * context]
        devices = tuple(device for one in groups for device in one)
        stage = Stage((), devices, (tensor * context,) * (len(groups) // context))
        rates = StagePlaces(stage, self.costs.problem, context, expert).rates(0)
        layers = self.costs.at(parallel, rates)
        both = (layers.seconds(devices[0], samples, one).sum() for one in ("forward", "backward"))
        return float(sum(both)) * AT_LEAST
