"""Orders: what a search for an order of a plan's ops needs to know, in the numbers of the scheduler.

Links that a search thinks free are shared in a replay, and replicas reduce behind their last backward. An order that waits for
slower transfers than there are is often the faster one, so that orders are searched for several, and replays choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from planners.scheduler.instance import codes_of, instance_of, peaks_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.search import search_orders
from planners.scheduler.stage_ops import StageOps
from planners.search.quick_replay import order_of_plan
from planners.search.timed_orders import op_seconds
from simulator import OpKind, Plan, PlanCosts, Schedule, to_text


def ops_of(costs: PlanCosts) -> ScheduleProblem:
    """The ops of a plan whose replicas split every micro-batch, all as large as the largest, without limits of memory."""
    plan, stages, size = costs.plan, range(len(costs.plan.stages)), max(costs.plan.microbatches)
    ranks = _ranks(plan)
    seconds, samples = op_seconds(costs), np.array([-(-size // copies) for copies in plan.replicas])
    again = [
        float(costs.seconds(OpKind.RECOMPUTE, stage, 0, samples[stage : stage + 1])[0])
        if costs.recomputes(stage)
        else 0.0
        for stage in stages
    ]
    stashes = [costs.stash(stage) for stage in stages]
    kept, longer = (samples * [getattr(one, name) for one in stashes] for name in ("kept", "kept_longer"))
    places = [ranks.index(stage.devices) for stage in plan.stages]
    ops = StageOps(*seconds[:3], np.array(again), seconds.transfer, kept, longer)
    return ops.problem(places, len(plan.microbatches), [*map(costs.recomputation, stages)])


def within(ops: ScheduleProblem, plan: Plan, free: Mapping[int, float]) -> ScheduleProblem | None:
    """The ops of a plan of a family, with as much memory on each rank as its own order takes and leaves free; None where that
    order is none of the ops.

    free: bytes that each device has left in the plan's replay
    """
    instance = instance_of(ops)
    own = codes_of(instance, order_of_plan(plan), ops)
    if own is None:
        return None
    left = [min(free[device] for device in rank) for rank in _ranks(plan)]
    return replace(ops, limit=[sum(pair) for pair in zip(peaks_of(instance, own, ops), left, strict=True)])


def _ranks(plan: Plan) -> list[tuple[int, ...]]:
    """Devices of each rank, in the order in which stages visit them."""
    return list(dict.fromkeys(stage.devices for stage in plan.stages))


def orders(asked: ScheduleProblem, slower: float, seconds: float) -> list[Schedule]:
    """Orders of some ops, the most promising first, where transfers take `slower` times as long as alone."""
    transfer = [slower * one for one in asked.each("transfer")]
    return search_orders(replace(asked, transfer=transfer), seconds=seconds)


def in_order(plan: Plan, order: Schedule) -> Plan:
    """A plan with an order of its own."""
    return replace(plan, schedule=order.name, options=(), order=tuple(to_text(order).splitlines()))
