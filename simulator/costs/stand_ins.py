"""Stand-ins: replicas that are replayed for others, which do the same at the same times.

Where the replicas of all stages divide micro-batches alike, each works on its own part until all reduce their gradients. Two of
them are alike if

- their parts are as large, and their ops take equal seconds (`PlanCosts.group`),
- what they send crosses as fast channels, in the same pattern: one of its own for each of the other's, over which the same
  collectives run, for the same share of their seconds; or the same channel, where several send over one.

The first of some that are alike stands for all of them. That is exact where links are free, or shared fairly: then nothing
depends on which of two events at one moment comes first. Where who comes first is served first, each replica has its own turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from simulator.costs.plan_costs import PlanCosts
from simulator.plans.plan import Plan, family_of


@dataclass(frozen=True, slots=True)
class StandIns:
    """Which replicas of a plan are replayed.

    of: of each replica the one that stands for it, the first that is like it
    shared: channels over which several replicas send
    looked_at: channels of which a replay needs the state: those over which stand-ins send, and of those over which none sends one
        for all that the same collectives keep as busy
    """

    of: tuple[int, ...]
    shared: frozenset[int]
    looked_at: frozenset[int]

    @property
    def replicas(self) -> tuple[int, ...]:
        """The replicas that are replayed, rising."""
        return tuple(sorted(set(self.of)))

    def groups(self, plan: Plan) -> dict[int, tuple[int, ...]]:
        """Devices that do what the replica does whose first device is given, its own among them."""
        found: dict[int, list[int]] = {}
        for groups in dict.fromkeys(stage.replicas for stage in plan.stages):
            for group, one in zip(groups, self.of, strict=True):
                found.setdefault(groups[one][0], []).extend(group)
        return {lead: tuple(devices) for lead, devices in found.items()}

    @property
    def copies(self) -> Counter[int]:
        """For how many replicas each of them stands, itself among them."""
        return Counter(self.of)


def stand_ins(costs: PlanCosts) -> StandIns | None:
    """The stand-ins of a plan; None where each replica has to be replayed."""
    replicas = _working_apart(costs)
    if replicas < 2:
        return None
    looks = _Looks(costs, replicas)
    if looks.queues:
        return None
    first: dict[Hashable, int] = {}
    of = tuple([first.setdefault(looks.of(replica), replica) for replica in range(replicas)])
    in_a_row = all(one <= two for one, two in pairwise(of))  # sums over those that share a channel keep their order
    if len(first) == replicas or (looks.shared and not in_a_row):
        return None
    return StandIns(of, looks.shared, looks.looked_at(set(of)))


def _working_apart(costs: PlanCosts) -> int:
    """How many replicas each stage of a plan has, which work on the same samples as those of the others with the same number; 1
    where some do not, or lanes share devices.
    """
    plan, family, counts = costs.plan, family_of(costs.plan), set(costs.plan.replicas)
    if len(counts) > 1 or plan.replication != "split" or plan.forward_sizes:
        return 1
    if family is not None and (not family.flush or family.lanes):
        return 1
    rising = all(one < two for stage in plan.stages for one, two in pairwise(stage.leads))
    return counts.pop() if rising else 1


class _Looks:
    """What tells the replicas of a plan apart.

    queues: whether any channel that they send over, or reduce over, serves those first who come first
    shared: channels over which several of them send
    """

    def __init__(self, costs: PlanCosts, replicas: int) -> None:
        self.costs, self.contended, self.replicas = costs, costs.problem.contention, replicas
        self._sizes = sorted(set(costs.plan.microbatches))
        self._stages, self._ways = _unlike_stages(costs), _unlike_ways(costs)
        self._sent = [set(self._channels(replica)) for replica in range(replicas)] if self.contended else []
        senders = Counter(channel for own in self._sent for channel in own)
        self.shared = frozenset(channel for channel, count in senders.items() if count > 1)
        self._busy = self._collectives() if self.contended else {}
        channels = costs.problem.channels if self.contended else ()
        self.queues = any(channels[one].sharing != "fair" for one in (*senders, *self._busy))

    def of(self, replica: int) -> Hashable:
        """The same for replicas that are alike."""
        numbers: dict[int, int] = {}
        parts = tuple([size * (replica + 1) // self.replicas - size * replica // self.replicas for size in self._sizes])
        groups = tuple([self.costs.group(stage, replica) for stage in self._stages])
        found: list[Hashable] = []
        for near, far in self._ways:
            flow, share = self.costs.flow((near, replica), (far, replica))
            passed = [self._look(channel, numbers) for channel in flow.route] if self.contended else ()
            found.append((flow.latency, flow.bandwidth, share, flow.loads, *passed))
        return parts, groups, tuple(found)

    def _look(self, channel: int, numbers: dict[int, int]) -> Hashable:
        """A channel as a replica sees it; numbers: of its own ones, as they come."""
        if channel in self.shared:
            return channel
        return -1 - numbers.setdefault(channel, len(numbers)), *self._figures(channel)

    def _figures(self, channel: int) -> tuple[Hashable, ...]:
        one = self.costs.problem.channels[channel]
        return one.bandwidth, one.latency, self._busy.get(channel, ())

    def looked_at(self, replicas: set[int]) -> frozenset[int]:
        """Channels as `StandIns` has them; replicas: the stand-ins."""
        if not self.contended:
            return frozenset()
        sent = set().union(*self._sent)
        alone = {self._figures(channel): channel for channel in self._busy if channel not in sent}
        return frozenset(alone.values()).union(*(self._sent[one] for one in replicas))

    def _channels(self, replica: int) -> Iterator[int]:
        """Channels over which a replica sends from stage to stage."""
        for near, far in self._ways:
            yield from self.costs.flow((near, replica), (far, replica))[0].route

    def _collectives(self) -> dict[int, tuple[tuple[int, float], ...]]:
        """For each channel the collectives that keep it busy, and for which share of their seconds."""
        held = map(self.costs.collectives, range(len(self.costs.plan.stages)))
        busy = [one.busy for one in held if one.form]
        busy += [(one.route, one.occupancy) for one in self.costs.tied_reductions]
        found: dict[int, list[tuple[int, float]]] = {}
        for number, (route, occupancy) in enumerate(dict.fromkeys(busy)):
            for channel, share in zip(route, occupancy, strict=True):
                found.setdefault(channel, []).append((number, share))
        return {channel: tuple(uses) for channel, uses in found.items()}


def _unlike_stages(costs: PlanCosts) -> list[int]:
    """The first stages of those that differ in their places, or in those of the stages beside them."""
    places = [costs.places(stage) for stage in range(len(costs.plan.stages))]
    found: dict[Hashable, int] = {}
    for stage, beside in enumerate(zip([None, *places], places, [*places[1:], None], strict=False)):
        found.setdefault(beside, stage)
    return list(found.values())


def _unlike_ways(costs: PlanCosts) -> list[tuple[int, int]]:
    """Pairs of neighbouring stages, there and back, of which no two have the same places."""
    stages = range(len(costs.plan.stages))
    found: dict[Hashable, tuple[int, int]] = {}
    for near, far in pairwise(stages):
        for way in ((near, far), (far, near)):
            found.setdefault(tuple(map(costs.places, way)), way)
    return list(found.values())
