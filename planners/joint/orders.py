"""Orders of ops that are searched for the fastest pipelines of a joint search, in place of their families' orders.

A search for an order takes links as free, which a replay shares, and leaves out what replicas reduce behind the last backward. As
an order that allows for slower transfers is often the faster one in a replay, orders are searched for several speeds of
transfers, and replays choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from planners.joint.pipeline import Pipeline, pipeline_of
from planners.joint.search_state import CANNOT_RUN, NEAR_BEST, SearchState, ops_replayed
from planners.scheduler.bound import lower_bound as order_bound
from planners.scheduler.instance import codes_of, instance_of, peaks_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.search import search_orders
from planners.scheduler.stage_ops import StageOps
from planners.search.quick_replay import order_of_plan
from planners.search.replay_work import WORK_PER_SECOND
from planners.search.timed_orders import op_seconds
from simulator import OpKind, Plan, PlanCosts, Schedule, schedule_families, to_text

ROUNDS = ((8, 2.0, 0.05), (4, 4.0, 0.05), (2, 1.0, 0.05))
"""Rounds of searches for orders, each: how many pipelines, the fastest so far; by what factor transfers are slowed; nominal
seconds of each search.
"""

ORDERS = 2
"""Orders of each search that are replayed."""

OF_SAME_SHAPE = 8, 2
"""Pipelines of the same replicas, groups and stages per device, at most, that are bounded, and whose orders are searched."""

OF_A_REPLAY = 0.2
"""Share of its work as which a replay counts here: searches for orders, beside it, run far longer for the work that they
count.
"""

WORTH = 0.001
"""Share of the best plan's seconds that a bound on a pipeline's orders must leave to gain for a search."""

ORDERABLE = 24
"""Pipelines, at most, that are bounded; of these, those with most to gain have their orders searched."""


@dataclass(slots=True)
class Orderable:
    """A plan whose order is searched. ops: the ops to order; work: of a replay; seconds: fewest of its replays so far"""

    ops: ScheduleProblem
    work: int
    seconds: float


class JointOrders:
    """The searches for orders of one joint search. ordered: pipelines that were searched, without schedule and options"""

    def __init__(self, state: SearchState) -> None:
        self.state, self.ordered = state, set[Pipeline]()

    def order_fastest(self) -> None:
        """Search and replay orders of the fastest pipelines of unlike stages, in ROUNDS; then of the fastest with near numbers of
        micro-batches, while these are faster.
        """
        found = self.orderable()
        for most, slower, seconds in ROUNDS:
            for plan in sorted(found, key=lambda one: found[one].seconds)[:most]:
                if self.state.ended:
                    return
                found |= self.in_orders(plan, found[plan], slower, seconds)
        better = bool(found)
        while better and not self.state.ended:
            fastest = min(found, key=lambda one: found[one].seconds)
            before = found[fastest].seconds
            for plan, one in self._with_other_counts(fastest, before * NEAR_BEST):
                found[plan] = one
                found |= self.in_orders(plan, one, *ROUNDS[0][1:])
            better = min(one.seconds for one in found.values()) < before

    def _with_other_counts(self, plan: Plan, below: float) -> Iterator[tuple[Plan, Orderable]]:
        """The plan with near numbers of micro-batches, if that takes less than `below` seconds, with the ops to order; ends with
        the work.
        """
        for one in filter(self.state.moves.allows, self.state.moves.counts(self._pipeline(plan))):
            if self.state.ended:
                return
            other = one.plan(self.state.problem, self.state.name)
            found = None if _unordered(one) in self.ordered else self.limited(other)
            if found is not None and found.seconds < below:
                yield other, found

    def in_orders(self, plan: Plan, pipeline: Orderable, slower: float, seconds: float) -> dict[Plan, Orderable]:
        """Replay a plan in searched orders, under its own cuts and those at which a climb ends for each order.

        slower: factor of its transfers' seconds; seconds: nominal ones of the search
        The plans with other cuts that are faster than it, with their ops to order; its own fewest seconds stand in `one`.
        """
        found = dict[Plan, Orderable]()
        self.state.done += seconds * WORK_PER_SECOND
        for order in orders(pipeline.ops, slower, seconds)[:ORDERS]:
            pipeline.seconds = min(pipeline.seconds, self._in_order(plan, order, pipeline.work))
            other = self._cut_for(plan, order)
            took = inf if other is None else self._in_order(other, order, pipeline.work)
            if other is not None and took < pipeline.seconds:
                there = self.limited(other)
                if there is not None:
                    there.seconds, found[other] = took, there
        return found

    def _in_order(self, plan: Plan, order: Schedule, work: int) -> float:
        """Replay a plan in an order of its own and return its seconds; inf where it cannot run or does not fit. work: of a
        replay
        """
        self.state.done += OF_A_REPLAY * work
        with suppress(*CANNOT_RUN):
            score = self.state.evaluate(in_order(plan, order))
            if score.fits:
                return score.key[1]
        return inf

    def _cut_for(self, plan: Plan, order: Schedule) -> Plan | None:
        """The plan with the cuts at which a climb ends under an order of ops; None where it ends with the plan's own or has no
        estimates.
        """
        one, began = self._pipeline(plan), self.state.climbs.work
        there = self.state.climbs.climbed(one, order)
        self.state.done += self.state.climbs.work - began
        return None if there is None or there[1] == one else there[1].plan(self.state.problem, self.state.name)

    def orderable(self) -> dict[Plan, Orderable]:
        """The pipelines with most to gain by an order of their own, with their ops to order, few of the same shape.

        What may be gained is told by the product of a lower bound on all orders and the seconds of the pipeline.
        """
        promise, bounded = dict[Plan, float](), Counter[object]()
        for plan, seconds in self._unlike():
            shape = _shape(self._pipeline(plan))
            if len(promise) == ORDERABLE:
                break
            if bounded[shape] < OF_SAME_SHAPE[0]:
                ops = ops_of(PlanCosts(self.state.problem, plan, self.state.evaluate.layer_costs))
                least = order_bound(instance_of(ops), windows=False)
                if least <= self.state.least[1] * (1.0 - WORTH):
                    promise[plan] = least * seconds
                    bounded[shape] += 1
        orderable, searched = dict[Plan, Orderable](), Counter[object]()
        for plan in sorted(promise, key=lambda one: promise[one]):
            shape = _shape(self._pipeline(plan))
            if self.state.ended or len(orderable) == ROUNDS[0][0]:
                break
            searched[shape] += 1
            found = self.limited(plan) if searched[shape] <= OF_SAME_SHAPE[1] else None
            if found is not None:
                orderable[plan] = found
        return orderable

    def _unlike(self) -> Iterator[tuple[Plan, float]]:
        """Replayed plans near the best that fit and whose orders no earlier round searched, with their seconds, fastest first.

        Of plans that differ in nothing but the order of ops only the fastest stands there.
        """
        replayed, stages = self.state.replayed(), set(self.ordered)
        for plan in sorted(replayed, key=lambda one: replayed[one].key):
            score, one = replayed[plan], pipeline_of(self.state.problem, plan)
            if not score.fits or score.iteration_seconds > self.state.least[1] * NEAR_BEST:
                return
            if one is None or len(one.ranks) == 1 or one.opposite or one.slices > 1 or _unordered(one) in stages:
                continue
            stages.add(_unordered(one))
            if self.state.done + OF_A_REPLAY * ops_replayed(one) <= self.state.most:
                yield plan, score.iteration_seconds

    def limited(self, plan: Plan) -> Orderable | None:
        """The ops of a plan to order, within the memory that its own order takes and leaves free; None where it does not fit, or
        where its order is not made of these ops.
        """
        one = self._pipeline(plan)
        self.ordered.add(_unordered(one))
        self.state.done += OF_A_REPLAY * ops_replayed(one)
        try:
            missing, seconds = self.state.evaluate(plan).key
        except CANNOT_RUN:
            return None
        if missing:
            return None
        peaks = self.state.evaluate.peak_bytes(plan) or {}
        free = {device: self.state.problem.room_bytes(device) - peak for device, peak in peaks.items()}
        ops = within(ops_of(PlanCosts(self.state.problem, plan, self.state.evaluate.layer_costs)), plan, free)
        return None if ops is None else Orderable(ops, ops_replayed(one), seconds)

    def _pipeline(self, plan: Plan) -> Pipeline:
        """The pipeline of a plan that has one (`pipeline_of`)."""
        one = pipeline_of(self.state.problem, plan)
        assert one is not None
        return one


def _shape(pipeline: Pipeline) -> tuple[object, ...]:
    """Replicas of each rank, devices of a group, and stages per rank."""
    return pipeline.replicas, pipeline.group, pipeline.chunks


def _unordered(pipeline: Pipeline) -> Pipeline:
    """The pipeline without the family and options that order its ops: equal for pipelines that differ in these alone."""
    return replace(pipeline, schedule=schedule_families()[pipeline.schedule].placement, options=())


def ops_of(costs: PlanCosts) -> ScheduleProblem:
    """The ops of a plan for a search for an order: replicas split every micro-batch, all are as large as the largest, memory is
    unlimited.
    """
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
    """The ops of a plan with a limit of memory on each rank: the peak of its own order and what its replay leaves free.

    free: by device, bytes that the plan's replay leaves free
    None where the plan's order is not made of these ops.
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
    """Searched orders of some ops, the most promising first.

    slower: factor of the transfers' seconds; seconds: nominal ones of the search
    """
    transfer = [slower * one for one in asked.each("transfer")]
    return search_orders(replace(asked, transfer=transfer), seconds=seconds)


def in_order(plan: Plan, order: Schedule) -> Plan:
    """The plan with an order of ops of its own in place of its family's."""
    return replace(plan, schedule=order.name, options=(), order=tuple(to_text(order).splitlines()))
