"""Stage ops: what the stages of a one-way pipeline take and keep of one micro-batch, and the schedule problem of their order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats
from planners.scheduler.schedule_problem import Numbers, ScheduleProblem
from simulator import BY_BLOCK, Recompute


class StageOps(NamedTuple):
    """What each stage takes and keeps of one micro-batch, float64 [stages].

    forward, input_gradient, weight_gradient: seconds; again: seconds of what a backward runs again
    transfer: seconds one way over each boundary, float64 [stages - 1]
    kept: bytes kept from the forward on; longer: how many of them the weight gradient needs
    """

    forward: Floats
    input_gradient: Floats
    weight_gradient: Floats
    again: Floats
    transfer: Floats
    kept: Floats
    longer: Floats

    def problem(
        self, devices: Sequence[int], microbatches: int, recompute: Sequence[Recompute], limit: Numbers = math.inf
    ) -> ScheduleProblem:
        """The problem of the order of these ops; devices, recompute: of each stage; limit: bytes per device

        A stage that recomputes all of itself, or blocks, would keep that until the weight gradient: it runs one full backward
        instead.
        """
        full = np.array([word in (*BY_BLOCK, "whole") for word in recompute])
        back, weight, longer = self.input_gradient + self.again, self.weight_gradient, np.where(full, 0.0, self.longer)
        return ScheduleProblem(
            chains=(tuple(devices),),
            microbatches=microbatches,
            forward=self.forward.tolist(),
            input_gradient=np.where(full, back + weight, back).tolist(),
            weight_gradient=np.where(full, 0.0, weight).tolist(),
            transfer=self.transfer.tolist() or 0.0,
            freed_at_input_gradient=(self.kept - longer).tolist(),
            freed_at_weight_gradient=longer.tolist(),
            limit=limit,
        )
