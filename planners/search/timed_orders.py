"""Timed orders: of families whose order of ops depends on seconds, the order for the seconds of a plan's own stages.

A family such as ZB-V places weight gradients by a few seconds that stand for all stages; by default unit seconds. As neither
order is always the faster, both are replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np

from hardware_profiles import Floats
from simulator import LayerCosts, OpKind, Plan, PlanCosts, Problem, schedule_families

OPTION = "op_seconds"
"""Option of the families whose order depends on seconds."""

_KINDS = (OpKind.FORWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT)


def with_timed(problem: Problem, plans: Iterable[Plan], layer_costs: LayerCosts) -> Iterator[Plan]:
    """Each plan, followed by the same plan timed for its stages where its family has such orders and the plan names no
    seconds.
    """
    for plan in plans:
        yield plan
        if OPTION in schedule_families()[plan.schedule].options and OPTION not in dict(plan.options):
            seconds = stage_seconds(PlanCosts(problem, plan, layer_costs))
            yield replace(plan, options=(*plan.options, (OPTION, seconds)))


class StageOpSeconds(NamedTuple):
    """Seconds of the ops of a plan's largest micro-batch on a replica of each stage, float64 [stages].

    transfer: over each boundary between stages, 0 within a device, float64 [stages - 1]
    """

    forward: Floats
    input_gradient: Floats
    weight_gradient: Floats
    transfer: Floats


def op_seconds(costs: PlanCosts) -> StageOpSeconds:
    """Seconds of the ops of a plan whose replicas split every micro-batch, without recomputation."""
    plan, size = costs.plan, max(costs.plan.microbatches)
    parts = [-(-size // copies) for copies in plan.replicas]
    forward, back, weights = (
        np.array([float(costs.seconds(kind, stage, 0, np.array([part]))[0]) for stage, part in enumerate(parts)])
        for kind in _KINDS
    )
    crossed = [
        costs.transfer((stage, 0), (stage + 1, 0), part).seconds
        if plan.stages[stage].devices != plan.stages[stage + 1].devices
        else 0.0
        for stage, part in enumerate(map(min, pairwise(parts)))
    ]
    return StageOpSeconds(forward, back, weights, np.array(crossed))


def stage_seconds(costs: PlanCosts) -> tuple[float, ...]:
    """Mean seconds of a stage's forward, input gradient and weight gradient of the largest micro-batch, and of a transfer (0
    without any).
    """
    *ops, transfers = op_seconds(costs)
    crossed = transfers[transfers > 0]
    return (*map(fmean, ops), fmean(crossed) if len(crossed) else 0.0)
