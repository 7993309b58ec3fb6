"""What if: seconds of a plan if one cost (a link, a collective, ...) were free, replayed with everything else unchanged."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from hardware_profiles import Floats, Integers
from simulator.costs.given import StageCollectives, TiedReduction, Transfer
from simulator.costs.plan_costs import PlanCosts
from simulator.lowering.fill import fill
from simulator.plan_replay import plan_structure, replay_on, steady_of
from simulator.schedules.ops import OpKind
from simulator.simulation import Outcome

GROUPS = tuple(f"{name}-parallel communication" for name in ("tensor", "context", "expert"))
"""Communication inside ops, in the order of `OpParts`."""

WHAT_IFS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in (*GROUPS, "transfers", "gradient sync", "recomputation", "optimizer")},
    "all communication": (*GROUPS, "transfers", "gradient sync"),
}
"""What may take no time, and the parts of time (`simulator.results.time_split.TIME_PARTS`) that it consists of."""


class _FreeCosts(PlanCosts):
    """The costs of a plan with some of them set to zero; shares the tables of the plan's own costs."""

    def __init__(self, costs: PlanCosts, free: Collection[str]) -> None:
        self.__dict__.update(costs.__dict__)
        self.free = free

    def of_slice(self, number: int) -> _FreeCosts:
        """The same for one slice of the sequences."""
        return _FreeCosts(super().of_slice(number), self.free)

    def seconds(self, kind: OpKind, stage: int, replica: int, samples: Integers) -> Floats:
        """Seconds of an op without the parts that are free."""
        own = {OpKind.RECOMPUTE: "recomputation", OpKind.UPDATE: "optimizer", OpKind.PREDICT: "optimizer"}.get(kind, "")
        names = own, *(own if own in self.free else name for name in (*GROUPS, "gradient sync"))
        parts = (self.parts(kind, stage, replica, count) for count in samples.tolist())
        left = (
            sum(seconds for name, seconds in zip(names, one, strict=True) if name not in self.free) for one in parts
        )
        return np.array(list(left), dtype=np.float64)

    def transfer(self, source: tuple[int, int], target: tuple[int, int], samples: int) -> Transfer:
        """The transfer of the plan, or a free one."""
        found = super().transfer(source, target, samples)
        return Transfer(0.0, found.size_bytes) if "transfers" in self.free else found

    def collectives(self, stage: int) -> StageCollectives:
        """The collectives of the plan, or free ones."""
        found = super().collectives(stage)
        if "gradient sync" not in self.free:
            return found
        units = (
            replace(one, gather=None if one.gather is None else 0.0, scatter=0.0, route=(), occupancy=())
            for one in found.units
        )
        update_gather = found.update_gather and self._reduced(found.update_gather)
        return StageCollectives(tuple(map(self._reduced, found.buckets)), tuple(units), update_gather)

    @property
    def tied_reductions(self) -> tuple[TiedReduction, ...]:
        """The tied reductions of the plan, or free ones."""
        return tuple(map(self._reduced, super().tied_reductions))

    def _reduced(self, one: Any) -> Any:
        return replace(one, seconds=0.0, route=(), occupancy=()) if "gradient sync" in self.free else one


def seconds_without(outcome: Outcome, names: Iterable[str] = tuple(WHAT_IFS)) -> dict[str, float]:
    """Seconds of an iteration if each of some costs were free, by name of WHAT_IFS, one at a time.

    Replayed on the compiled engine, with links contended as the problem says. Of a stream without a flush its rate, read off as
    many micro-batches as in the outcome.
    """
    problem, plan = outcome.problem, outcome.plan
    costs = PlanCosts(problem, plan)
    schedule, structure = plan_structure(costs, outcome.stream)
    found = {}
    for name in names:
        timeline = replay_on(
            fill(structure, _FreeCosts(costs, WHAT_IFS[name])), "compiled", contention=problem.contention
        )
        if schedule.flush:
            found[name] = timeline.makespan_seconds
        else:
            found[name] = steady_of(plan, timeline, outcome.stream).seconds_per_sample * problem.batch
    return found
