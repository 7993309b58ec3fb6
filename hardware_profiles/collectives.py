"""Collectives: seconds of all-reduces and exchanges of some devices, and the channels that they keep busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations
from math import log2
from typing import Literal

from hardware_profiles.likeness import Likeness
from hardware_profiles.rings import chain, joined, parallel_rings
from hardware_profiles.topology import Topology

AllReduce = Literal["fastest", "flat-ring"]
"""Which rings a cluster's library all-reduces over between servers: the best of all, or the flat one only."""


@dataclass(frozen=True, slots=True)
class CollectivePlan:
    """One way to all-reduce: seconds = latency + seconds_per_byte * bytes, on these channels.

    occupancy: share of those seconds for which its bytes keep each channel busy at the rate of a lone transfer; what a
        collective does not reach of a channel (its efficiency, a narrower channel elsewhere) is left to other transfers
    """

    latency: float
    seconds_per_byte: float
    channels: tuple[int, ...]
    occupancy: tuple[float, ...]


Rates = tuple[tuple[float, float], ...]
"""Ways to all-reduce: seconds of latency, and seconds per byte, of each; none among devices that are one."""


def reduce_seconds(rates: Rates, size_bytes: float) -> float:
    """Seconds of an all-reduce of `size_bytes` on the quickest way; of a reduce-scatter or an all-gather the half."""
    return min((latency + size_bytes * seconds_per_byte for latency, seconds_per_byte in rates), default=0.0)


def halved(rates: Rates) -> Rates:
    """Of a reduce-scatter, or an all-gather, alone."""
    return tuple((latency / 2, seconds_per_byte / 2) for latency, seconds_per_byte in rates)


def scaled(rates: Rates, factor: float) -> Rates:
    """Of the same where everything takes `factor` times as long."""
    return rates if factor == 1.0 else tuple((factor * latency, factor * per_byte) for latency, per_byte in rates)


class CollectiveRates:
    """What devices of a topology do together; what was asked for once is kept.

    allreduce: the rings that all-reduces run over, one of `AllReduce`
    """

    def __init__(self, topology: Topology, allreduce: AllReduce) -> None:
        self.topology, self.likeness, self.allreduce = topology, Likeness(topology), allreduce
        self._plans: dict[tuple[tuple[tuple[int, ...], ...], bool], tuple[CollectivePlan, ...]] = {}

    def allreduce_seconds(self, devices: Sequence[int], size_bytes: float) -> float:
        """Seconds to sum `size_bytes` over `devices` and leave the sum on each: the best of these (the second is for libraries
        that know more than a `flat-ring`); 0 for one device.

        - flat: one ring through the devices, server by server: 2(m-1)/m * bytes / bandwidth + 2(m-1) * latency,
          where bandwidth is that of the narrowest channel divided by the edges of the ring that use it
        - hierarchical, where components at some levels (servers, racks, ...; at one or more) take part with equal numbers:
          reduce-scatter inside each server, then inside each rack what a local rank holds, one ring per rank between the racks
          (all at once, sharing network cards and uplinks where they do), all-gathers back
        - parallel: rings that all pass every device, each with a part of the bytes, where they share no cable: between servers
          whose devices have cards of their own as many as devices, each leaving a server at another one; inside a server
          whose devices are linked pair by pair as many as there are steps from device to device that pass all of them, or
          both ways round each of the link-disjoint cycles of unlike cables
        - chain, inside a server whose cables close no ring: the sum goes along it and comes back, 2 * bytes / bandwidth. NCCL
          counts half of the links' rate for its trees, too (5 V100 of a DGX-1: 23 of two links' 45 GB/s, vTrain f8dda84)

        Patarasuk and Yuan, JPDC 2009, for the ring. Raises ValueError for repeated or unknown devices.
        """
        if not size_bytes >= 0.0:
            raise ValueError(f"{self.topology.name}: size_bytes is at least 0: {size_bytes}")
        return reduce_seconds(self.allreduce_rates(devices), size_bytes)

    def allreduce_rates(self, devices: Sequence[int], *beside: Sequence[int]) -> Rates:
        """The ways to all-reduce over `devices` while each of `beside`, as many devices each, all-reduces as much; none for one
        device. Raises ValueError as `allreduce_seconds`.
        """
        return tuple((plan.latency, plan.seconds_per_byte) for plan in self._collective_plans((devices, *beside)))

    def allreduce_channels(
        self, devices: Sequence[int], *beside: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Channels that the all-reduces of large tensors occupy, by rising index, and shares of their seconds (0 to 1) for which
        they keep each busy; beside: as of `allreduce_rates`.
        """
        plans = self._collective_plans((devices, *beside), whole=True)
        plan = min(plans, key=lambda plan: plan.seconds_per_byte, default=None)
        return ((), ()) if plan is None else (plan.channels, plan.occupancy)

    def allreduces_meet(self, route: Iterable[int], devices: Sequence[int], *beside: Sequence[int]) -> bool:
        """Whether a transfer from the first of some devices over a route queues with their all-reduces of large tensors."""
        plans = self._collective_plans((devices, *beside))
        plan = min(plans, key=lambda plan: plan.seconds_per_byte, default=None)
        return plan is not None and not set(plan.channels).isdisjoint(route)

    def alltoall_rates(self, devices: Sequence[int], *beside: Sequence[int]) -> Rates:
        """Latency in seconds, and seconds per byte that each device holds for all of `devices`, itself among them, of an exchange
        (all-to-all) in which every device sends each other one an equal part, while each of `beside` exchanges as much. None
        for one device.

        All messages are on their way at once: the busiest channel decides. The latency is that of the slowest route, or half of
        what an all-reduce takes there, which has two such passes.
        """
        if len(devices) < 2:
            return ()
        uses = Counter[int]()
        for group in (devices, *beside):
            uses.update(self._exchange_uses(group))
        busiest = max(count / self.topology.channels[index].collective_bandwidth for index, count in uses.items())
        at_once = max(self.topology.channels[index].collective_latency for index in uses)
        if at_once:
            latency = at_once / 2 * max(1.0, log2(len(self.topology.by_server(devices))))
        else:
            latency = max(self._latency(self.topology.route(*pair)) for pair in permutations(devices, 2))
        return ((latency, busiest / len(devices)),)

    def _exchange_uses(self, devices: Sequence[int]) -> Counter[int]:
        """How many of the messages between all pairs of some devices each channel carries.

        In a cluster of stars those from one server to others begin on the same channel of their sender and end on the same one of
        their receiver; between these are the uplinks of their leaves.
        """
        if not self.topology.stars:
            return Counter(index for pair in permutations(devices, 2) for index in self.topology.route(*pair))
        uses, across, housed = Counter[int](), Counter[str](), self.topology.by_server(devices)
        for number, group in enumerate(housed):
            uses.update(index for pair in permutations(group, 2) for index in self.topology.route(*pair))
            far, outside = housed[number - 1][0], len(devices) - len(group)
            for one in group if outside else ():
                for channel in (self.topology.route(one, far)[0], self.topology.route(far, one)[-1]):
                    uses[channel] += outside
            across.update(self._across_leaves(group, -1))
        across.update(self._across_leaves(devices, 1))
        for leaf, count in across.items():
            for hop in (leaf, self.topology.uplinks[leaf]), (self.topology.uplinks[leaf], leaf):
                uses[self.topology.hops[hop]] += count
        return +uses

    def _across_leaves(self, devices: Sequence[int], sign: int) -> dict[str, int]:
        """Pairs of some devices, the first below each leaf and the second not, with a sign."""
        switches = [switch for one in devices for _, switch in self.topology.stars[self.topology.nodes[one]]]
        below = Counter(switch for switch in switches if switch in self.topology.uplinks)
        return {leaf: sign * count * (len(devices) - count) for leaf, count in below.items()}

    def _collective_plans(self, several: Sequence[Sequence[int]], *, whole: bool = False) -> tuple[CollectivePlan, ...]:
        """Ways in which some devices, and others at the same time, all-reduce.

        whole: with all of their channels, else with those of components that stand for like ones
        """
        key = tuple(tuple(sorted(devices)) for devices in several), whole or not self.likeness.forms
        if not key[1]:
            key = self._in_first_server(key[0]), False
        known = self._plans.get(key)
        if known is None:
            for devices in key[0]:
                self.topology.check_ids(devices)
                if len(set(devices)) != len(devices):
                    raise ValueError(f"{self.topology.name}: an all-reduce names each device once: {devices}")
            known = self._make_collective_plans(*key) if len(key[0][0]) > 1 else ()
            self._plans[key] = known
        return known

    def _make_collective_plans(self, several: Sequence[Sequence[int]], whole: bool) -> tuple[CollectivePlan, ...]:
        deepest, members = self.topology.depth, len(several[0])
        few = [several if whole else self.likeness.standing(several, depth) for depth in range(1, deepest + 1)]
        housed = [self.topology.by_server(devices) for devices in few[-1]]
        servers = len(self.topology.by_server(several[0]))
        flat = self._rings([joined(groups) for groups in housed], members, servers)
        if self.allreduce == "flat-ring" and servers > 1:
            return (flat,)
        plans = [flat, *self._parallel(housed, members, servers)]
        devices, *inner, whole_ring = self.topology.even_levels(several)
        for count in range(1, len(inner) + 1):
            for chosen in combinations(inner, count):
                plans.append(self._hierarchical(several, few, (devices, *chosen, whole_ring)))
        return tuple(plans)

    def _parallel(self, housed: Sequence[Sequence[Sequence[int]]], members: int, servers: int) -> list[CollectivePlan]:
        """Several rings at once through all devices, as many of each server; or chains, where one server's close no ring."""
        if len({len(group) for groups in housed for group in groups}) > 1:
            return []
        parallel = [parallel_rings(self.topology, groups) for groups in housed]
        fewest = min(map(len, parallel))
        if fewest > 1:
            rings = [ring for rings in parallel for ring in rings[:fewest]]
            return [self._rings(rings, members, servers, parts=fewest)]
        if servers == 1 and all(chains := [chain(self.topology, groups[0]) for groups in housed]):
            return [self._there_and_back(chains)]
        return []

    def _hierarchical(
        self,
        several: Sequence[Sequence[int]],
        few: Sequence[Sequence[Sequence[int]]],
        levels: Sequence[tuple[int, int]],
    ) -> CollectivePlan:
        """Reduce-scatters inside ever larger components, one ring through the largest, and all-gathers back.

        few: `several` without components for which others stand, by how deep these are; levels: of `Topology.even_levels`
        """
        parts = []
        for (held, depth), (size, outer) in pairwise(levels):
            rings = [
                peers
                for devices in few[min(depth, len(few)) - 1]
                for component in self.topology.in_components(devices, outer)
                for peers in zip(*self.topology.in_components(component, depth), strict=True)
            ]
            first = self.topology.in_components(several[0], outer)[0]
            servers = size // held if held > 1 else len(self.topology.by_server(first))
            plan = self._rings(rings, size // held, servers)
            # A ring carries the part that its devices hold after the reduce-scatters before.
            parts.append((plan, plan.seconds_per_byte / held))
        seconds = sum(part for _, part in parts)
        busy = dict.fromkeys(sorted({index for plan, _ in parts for index in plan.channels}), 0.0)
        for plan, part in parts:
            for channel, share in zip(plan.channels, plan.occupancy, strict=True):
                busy[channel] += share * part / seconds
        latency = sum(plan.latency for plan, _ in parts)
        return CollectivePlan(latency, seconds, tuple(busy), tuple(busy.values()))

    def _in_first_server(self, several: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        """Devices at the same places of the first server like theirs, where all are in one server; else themselves."""
        places, known = self.topology.places, range(len(self.topology.nodes))
        servers = {places[device][-2] if device in known else -1 for devices in several for device in devices}
        if len(servers) != 1 or -1 in servers:
            return several
        first = self.topology.servers[self.likeness.first_like[servers.pop()]]
        return tuple([tuple([first[places[device][-1]] for device in devices]) for devices in several])

    def _rings(self, rings: Sequence[Sequence[int]], members: int, servers: int = 1, parts: int = 1) -> CollectivePlan:
        """Rings at once, each of so many members on so many servers (of which those that are given stand for all), and each a
        reduce-scatter and an all-gather of one of so many parts of a tensor.
        """
        routes = [route for ring in rings for route in self._edges(ring)]
        return self._collective(routes, 2.0 * (members - 1) / members / parts, members, servers)

    def _there_and_back(self, chains: Sequence[Sequence[int]]) -> CollectivePlan:
        """Chains of equal length at once: the sum goes along each of them, and then the result comes back."""
        hops = [hop for chain in chains for pair in pairwise(chain) for hop in (pair, pair[::-1])]
        return self._collective([self.topology.route(*hop) for hop in hops], 2.0, len(chains[0]))

    def _collective(
        self, routes: Sequence[tuple[int, ...]], passes: float, members: int, servers: int = 1
    ) -> CollectivePlan:
        """An all-reduce whose messages, a tensor's bytes so many times, go over all of these routes at once.

        members, servers: of each of the rings or chains
        """
        latency = max(map(self._latency, routes))
        bandwidth = self._shared_bandwidth(routes)
        uses = Counter(index for route in routes for index in route)
        at_once = max(self.topology.channels[index].collective_latency for index in uses)
        return CollectivePlan(
            at_once * max(1.0, log2(servers)) if at_once else 2.0 * (members - 1) * latency,
            passes / bandwidth,
            tuple(sorted(uses)),
            tuple(
                min(1.0, uses[index] * bandwidth / self.topology.channels[index].bandwidth) for index in sorted(uses)
            ),
        )

    def _latency(self, route: Iterable[int]) -> float:
        return sum(self.topology.channels[index].latency for index in route)

    def _edges(self, ring: Sequence[int]) -> list[tuple[int, ...]]:
        return [self.topology.route(ring[position - 1], ring[position]) for position in range(len(ring))]

    def ring_bandwidth(self, ring: Sequence[int]) -> float:
        """Bytes/s of each member of a ring."""
        return self._shared_bandwidth(self._edges(ring))

    def _shared_bandwidth(self, routes: Iterable[Sequence[int]]) -> float:
        """Bytes/s of the slowest of these flows where they share channels evenly."""
        uses = Counter(index for route in routes for index in route)
        return min(self.topology.channels[index].collective_bandwidth / count for index, count in uses.items())
