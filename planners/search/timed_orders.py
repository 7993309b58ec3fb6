"""Timed orders: families whose order depends on seconds, given those of a plan's own stages.

A family such as ZB-V places weight gradients for a few seconds that stand for all stages. Its own order is for unit seconds;
neither order is always the faster, so that both are replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import numpy as np

from simulator import LayerCosts, OpKind, Plan, PlanCosts, Problem, schedule_families

OPTION = "op_seconds"
"""Option of the families whose order depends on seconds."""

_KINDS = (OpKind.FORWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT)


def with_timed(problem: Problem, plans: Iterable[Plan], layer_costs: LayerCosts) -> Iterator[Plan]:
    """Each plan, followed by the one made for its stages' seconds where its family has such orders and the plan says none."""
    for plan in plans:
        yield plan
        family = schedule_families().get(plan.schedule)
        if family is not None and OPTION in family.options and OPTION not in dict(plan.options):
            seconds = stage_seconds(PlanCosts(problem, plan, layer_costs))
            yield replace(plan, options=(*plan.options, (OPTION, seconds)))


def stage_seconds(costs: PlanCosts) -> tuple[float, ...]:
    """Mean seconds of a stage's forward, input gradient and weight gradient of the largest micro-batch, and of a transfer."""
    plan = costs.plan
    samples = np.array([max(plan.microbatches)])
    places = range(len(plan.stages))
    ops = [fmean(float(costs.seconds(kind, stage, 0, samples)[0]) for stage in places) for kind in _KINDS]
    crossed = [
        costs.transfer((near, 0), (far, 0), max(plan.microbatches)).seconds
        for near, far in pairwise(places)
        if plan.stages[near].devices != plan.stages[far].devices
    ]
    return (*ops, fmean(crossed) if crossed else 0.0)
