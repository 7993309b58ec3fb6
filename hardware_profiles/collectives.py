"""Collectives: seconds of all-reduces and exchanges of some devices, and the channels that they keep busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain as chained
from itertools import combinations, pairwise, permutations
from math import inf, log2
from operator import attrgetter
from typing import Literal

from hardware_profiles.algorithms import (
    IN_SWITCH_LEAST,
    CollectiveTime,
    Side,
    Steps,
    along,
    at_once,
    binomial,
    in_switch,
    in_switch_tree,
    ring,
    tree,
)
from hardware_profiles.fabrics import Fabric, Operation, Protocol
from hardware_profiles.grids import Grid, find_grid
from hardware_profiles.likeness import Likeness
from hardware_profiles.links import Channel
from hardware_profiles.rings import chain, joined, parallel_rings
from hardware_profiles.topology import Topology

AllReduce = Literal["fastest", "flat-ring"]
"""Which rings a cluster's library all-reduces over between servers: the best of all, or the flat one only."""


@dataclass(frozen=True)
class CollectivePlan:
    """One way to run a collective: seconds = latency + seconds_per_byte * bytes, on some channels.

    name: of the algorithm and the protocol; over: of the `_Flows` that it has, empty for several; find: finds `occupancy`
    """

    name: str
    latency: float
    seconds_per_byte: float
    over: str = field(repr=False, compare=False)
    find: Callable[[], dict[int, float]] = field(repr=False, compare=False)

    @cached_property
    def occupancy(self) -> dict[int, float]:
        """By channel, rising, the share of those seconds for which its bytes keep it busy at the rate of a lone transfer; what a
        collective does not reach of a channel (its efficiency, a narrower channel elsewhere) is left to other transfers.
        """
        return dict(sorted(self.find().items()))

    def seconds(self, size_bytes: float) -> float:
        """Seconds of the collective for a tensor of `size_bytes`."""
        return self.latency + size_bytes * self.seconds_per_byte


Rates = tuple[tuple[float, float], ...]
"""Ways to run a collective as pairs (latency in seconds, seconds per byte); empty for a single device."""


def reduce_seconds(rates: Rates, size_bytes: float) -> float:
    """Seconds of a collective of `size_bytes`, the whole tensor, in the fastest of some ways."""
    return min((latency + size_bytes * seconds_per_byte for latency, seconds_per_byte in rates), default=0.0)


def one_after_the_other(first: Rates, second: Rates) -> Rates:
    """Ways to run two collectives of equally many bytes one after the other; those of one alone if the other takes no time."""
    if not first or not second:
        return first or second
    both = [(one[0] + two[0], one[1] + two[1]) for one in first for two in second]
    return tuple(both[place] for place in _least(both))


def _least(lines: Sequence[tuple[float, float]]) -> list[int]:
    """Which of some lines (latency, seconds per byte) are least somewhere from 0 bytes on, by rising latency."""
    kept: list[int] = []
    for place in sorted(range(len(lines)), key=lambda place: lines[place]):
        latency, rate = lines[place]
        if kept and rate >= lines[kept[-1]][1]:
            continue
        while len(kept) > 1:
            (l0, r0), (l1, r1) = lines[kept[-2]], lines[kept[-1]]
            if (l1 - l0) * (r1 - rate) < (latency - l1) * (r0 - r1):
                break
            kept.pop()  # where it undercuts the one before, the new one undercuts both
        kept.append(place)
    return kept


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages that rings, or a chain, send at once; the first of channels that are alike stands for them.

    ways: their unlike routes; uses: unlike channels that they pass, each with how many messages in all pass it
    """

    ways: tuple[tuple[Channel, ...], ...]
    uses: tuple[tuple[Channel, int], ...]


@dataclass(frozen=True, slots=True)
class _Flows:
    """The messages of rings, or of a chain, that run at once.

    name: of the algorithm; inside, between: messages in servers, and from one to another; parts: rings of one tensor
    devices, servers: of each ring; uses: how many messages pass each channel
    """

    name: str
    inside: _Messages
    between: _Messages
    devices: int
    servers: int
    parts: int
    uses: Counter[int]


_Groups = tuple[tuple[int, ...], ...]


def _largest(plans: Sequence[CollectivePlan]) -> CollectivePlan | None:
    """The fastest way for large tensors; None for one device."""
    return min(plans, key=lambda plan: plan.seconds_per_byte, default=None)


def _kept(plans: Sequence[CollectivePlan]) -> tuple[CollectivePlan, ...]:
    """Those that are quickest for some size."""
    return tuple(plans[one] for one in _least([(plan.latency, plan.seconds_per_byte) for plan in plans]))


def scaled(rates: Rates, factor: float) -> Rates:
    """The same ways, each `factor` times as slow."""
    return rates if factor == 1.0 else tuple((factor * latency, factor * per_byte) for latency, per_byte in rates)


class CollectiveRates:
    """Times of collectives among devices of a topology; results are cached.

    allreduce: the rings that all-reduces run over, one of `AllReduce`
    """

    def __init__(self, topology: Topology, allreduce: AllReduce) -> None:
        self.topology, self.likeness, self.allreduce = topology, Likeness(topology), allreduce
        self._plans: dict[tuple[Operation, Hashable], tuple[CollectivePlan, ...]] = {}
        self._busy: dict[tuple[Operation, _Groups], tuple[tuple[int, ...], tuple[float, ...]]] = {}

    def seconds(self, operation: Operation, devices: Sequence[int], size_bytes: float) -> float:
        """Seconds of a collective over `devices`, of a tensor of `size_bytes`; 0 for one device.

        Raises ValueError for repeated or unknown devices.
        """
        if not size_bytes >= 0.0:
            raise ValueError(f"{self.topology.name}: size_bytes is at least 0: {size_bytes}")
        return reduce_seconds(self.rates(operation, devices), size_bytes)

    def rates(self, operation: Operation, devices: Sequence[int], *beside: Sequence[int]) -> Rates:
        """The ways to run a collective over `devices` while each of `beside`, as many devices each, runs the same; none for one
        device. Raises ValueError as `seconds`.
        """
        plans = self._plans_of(operation, self._sorted(devices, *beside))
        return tuple((plan.latency, plan.seconds_per_byte) for plan in plans)

    def taken(
        self, operation: Operation, size_bytes: float, devices: Sequence[int], *beside: Sequence[int]
    ) -> CollectivePlan | None:
        """The quickest way to run a collective of so many bytes; None for one device."""
        plans = self._plans_of(operation, self._sorted(devices, *beside))
        return min(plans, key=lambda plan: plan.seconds(size_bytes), default=None)

    def busy(
        self, operation: Operation, devices: Sequence[int], *beside: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Channels that collectives of large tensors occupy, by rising index, and shares of their seconds (0 to 1) for which
        they keep each busy; beside: as in `rates`.
        """
        key = operation, self._sorted(devices, *beside)
        if key not in self._busy:
            occupied = self._occupied(*key, whole=True)
            self._busy[key] = tuple(occupied), tuple(occupied.values())
        return self._busy[key]

    def allreduces_meet(self, route: Iterable[int], devices: Sequence[int], *beside: Sequence[int]) -> bool:
        """Whether a transfer from the first of some devices over a route queues with their all-reduces of large tensors."""
        occupied = self._occupied(Operation.ALL_REDUCE, self._sorted(devices, *beside))
        return not occupied.keys().isdisjoint(route)

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
        used, operation = {index: self.topology.channels[index] for index in uses}, Operation.ALL_GATHER
        busiest = max(count / used[index].collective_bandwidths[operation] for index, count in uses.items())
        servers = len(self.topology.by_server(devices))
        told = max(one.latencies[operation] for one in used.values())
        known = [one.own_fabric.protocol(operation, 1) for one in used.values() if one.own_fabric is not None]
        if told:
            latency = told * max(1.0, log2(servers))
        elif known:
            latency = max(one.base for one in known) + log2(servers) * max(one.hop for one in known)
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

    def _sorted(self, *several: Sequence[int]) -> _Groups:
        """Groups of devices, each by rising id; ValueError for ids of no device."""
        groups = tuple([tuple(sorted(devices)) for devices in several])
        for devices in groups:
            if devices and not 0 <= devices[0] <= devices[-1] < len(self.topology.nodes):
                self.topology.check_ids(devices)
        return groups

    def _plans_of(self, operation: Operation, groups: _Groups) -> tuple[CollectivePlan, ...]:
        """Ways in which groups of devices run a collective at the same time: those that are quickest for some size. Groups that
        are alike share them, but for the channels.
        """
        key = operation, self.likeness.look(groups) if self.likeness.forms else groups
        known = self._plans.get(key)
        if known is None:
            for devices in groups:
                if len(set(devices)) != len(devices):
                    raise ValueError(f"{self.topology.name}: an all-reduce names each device once: {devices}")
            self._plans[key] = known = _kept(self.ways(operation, groups) if len(groups[0]) > 1 else [])
        return known

    def _occupied(self, operation: Operation, groups: _Groups, *, whole: bool = False) -> dict[int, float]:
        """Channels that collectives of large tensors occupy, by rising index, and the share of their seconds for each.

        whole: all of them, else those of components that stand for like ones
        """
        plan = _largest(self._plans_of(operation, groups))
        if plan is None:
            return {}
        if not plan.over:
            plan = _largest(_kept(self.ways(operation, groups, whole)))
            assert plan is not None  # as there is one
            return plan.occupancy
        devices, servers = len(groups[0]), len(self.topology.by_server(groups[0]))
        standing = groups if whole or not self.likeness.forms else self.likeness.standing(groups, self.topology.depth)
        housed = [self.topology.by_server(one) for one in standing]
        flat = plan.over == "ring"
        flows = self._flat(housed, devices, servers) if flat else self._parallel(housed, devices, servers)[0]
        return self._plan(operation, flows, plan.name, CollectiveTime(plan.latency, plan.seconds_per_byte)).occupancy

    def ways(self, operation: Operation, several: Sequence[Sequence[int]], whole: bool = False) -> list[CollectivePlan]:
        """All ways in which groups of devices can run a collective at the same time; the fastest is taken.

        - ring: one through the devices, server by server
        - rails: rings that all pass every device, each with a part of the bytes, where they share no cable: between servers
          whose devices have cards of their own as many as devices, each leaving a server at another one; inside a server
          whose devices are linked pair by pair as many as there are steps from device to device that pass all of them, or
          both ways round each of the link-disjoint cycles of unlike cables
        - chain, inside a server whose cables close no ring: the sum goes along it and comes back, 2 * bytes / bandwidth. NCCL
          counts half of the links' rate for its trees, too (5 V100 of a DGX-1: 23 of two links' 45 GB/s, vTrain f8dda84)
        - torus, of devices whose cables are a grid of rings or lines: scattered along one side after the other in any order, both
          ways round a ring, and gathered back; or as many parts at once as there are sides, each first along another one. Sameer
          Kumar et al., arXiv 1909.09756, for two sides
        - hierarchical, where components at some levels (servers, racks, ...; at one or more) take part with equal numbers:
          reduce-scatter inside each server, then inside each rack what a local rank holds, one ring per rank between the racks
          (all at once, sharing network cards and uplinks where they do), all-gathers back. Libraries of a known fabric have none
        - tree of the servers, and sums inside a server's switch, of an all-reduce; PAT of a gather or a scatter of one device
          a server: where the fabrics are known

        Each of them in each protocol. With `flat-ring` the library has the first alone between servers. whole: with all of their
        channels, else with those of components that stand for like ones. Patarasuk and Yuan, JPDC 2009, for the ring.
        """
        deepest, members, whole = self.topology.depth, len(several[0]), whole or not self.likeness.forms
        few = [several if whole else self.likeness.standing(several, depth) for depth in range(1, deepest + 1)]
        housed = [self.topology.by_server(devices) for devices in few[-1]]
        servers = len(self.topology.by_server(several[0]))
        flat = self._flat(housed, members, servers)
        if self.allreduce == "flat-ring" and servers > 1:
            return self._ring_plans(operation, flat)
        flows = [flat, *self._parallel(housed, members, servers)]
        plans = [plan for one in flows for plan in self._ring_plans(operation, one)]
        widest = flows[-1]
        if not self._fabrics(flat):
            plans += self._torus_plans(operation, several) + self._hierarchical_plans(operation, several, few)
        if operation is not Operation.ALL_REDUCE:
            return plans + (self._binomial_plans(operation, flat) if members == servers else [])
        if servers > 1:
            plans += self._tree_plans(flat, widest)
        return plans + self._in_switch_plans(widest)

    def _flat(self, housed: Sequence[Sequence[Sequence[int]]], members: int, servers: int) -> _Flows:
        """One ring through the devices of each group, server by server."""
        return self._flows("ring", [joined(groups) for groups in housed], members, servers)

    def _parallel(self, housed: Sequence[Sequence[Sequence[int]]], members: int, servers: int) -> list[_Flows]:
        """Several rings at once through all devices, as many of each server; or chains, where one server's close no ring."""
        if len({len(group) for groups in housed for group in groups}) > 1:
            return []
        parallel = [parallel_rings(self.topology, groups) for groups in housed]
        fewest = min(map(len, parallel))
        if fewest > 1:
            rings = [ring for rings in parallel for ring in rings[:fewest]]
            return [self._flows("rails" if servers > 1 else "rings", rings, members, servers, fewest)]
        if servers == 1 and all(chains := [chain(self.topology, groups[0]) for groups in housed]):
            hops = [hop for chain in chains for pair in pairwise(chain) for hop in (pair, pair[::-1])]
            return [self._of_edges("chain", Counter(hops), members, 1)]
        return []

    def _flows(self, name: str, rings: Sequence[Sequence[int]], devices: int, servers: int, parts: int = 1) -> _Flows:
        """Rings at once, each of so many devices on so many servers (of which those that are given stand for all), and each of
        one of so many parts of a tensor.
        """
        edges = Counter((one[place - 1], one[place]) for one in rings for place in range(len(one)))
        return self._of_edges(name, edges, devices, servers, parts)

    def _of_edges(
        self, name: str, edges: Mapping[tuple[int, int], int], devices: int, servers: int, parts: int = 1
    ) -> _Flows:
        """Flows with so many messages between some pairs of devices."""
        (server, _), like, channels = self.topology.numbered(self.topology.depth), self.like, self.topology.channels
        passed: tuple[Counter[tuple[int, ...]], ...] = Counter(), Counter()
        for (first, second), count in edges.items():
            passed[server[first] != server[second]][self.topology.route(first, second)] += count
        uses = Counter[int]()
        for routes in passed:
            for route, count in routes.items():
                for index in route:
                    uses[index] += count

        def messages(routes: Iterable[tuple[int, ...]]) -> _Messages:
            unlike = {tuple([like[index] for index in route]) for route in routes}
            found = {(like[index], uses[index]) for index in set(chained(*routes))}
            return _Messages(
                tuple([tuple([channels[index] for index in way]) for way in unlike]),
                tuple([(channels[index], count) for index, count in found]),
            )

        inside, between = map(messages, passed)
        return _Flows(name, inside, between, devices, servers, parts, uses)

    @cached_property
    def like(self) -> list[int]:
        """For each channel the first one that differs from it in no more than its name."""
        known: dict[tuple[Hashable, ...], int] = {}
        look = attrgetter(*(one.name for one in fields(Channel) if one.name not in ("name", "fabric")))
        looks = ((*look(one), id(one.fabric)) for one in self.topology.channels)
        return [known.setdefault(one, index) for index, one in enumerate(looks)]

    # ------------------------------------------------------------------------------------------------ algorithms

    def _ring_plans(self, operation: Operation, flows: _Flows) -> list[CollectivePlan]:
        """A ring, or several at once, in each protocol; a chain passes a tensor whole, each way."""
        own = max((one.own_part[operation] for one in self._fabrics(flows)), default=0.0)
        own = 1.0 if flows.name == "chain" else own
        steps = self._protocols(operation, flows)
        return [
            self._plan(
                operation, flows, f"{flows.name} {name}", ring(operation, flows.devices, flows.servers, one, own)
            )
            for name, one in steps
        ]

    def _tree_plans(self, flat: _Flows, flows: _Flows) -> list[CollectivePlan]:
        """Trees of the servers, where it is known what their steps take; in a server they are a chain, as the flat ring is."""
        if not all(any(one.latencies[0] or one.fabric for one in way) for way in flows.between.ways):
            return []
        plans, inside = list[CollectivePlan](), self._protocols(Operation.ALL_REDUCE, flat)
        for (_, alone), (name, steps) in zip(inside, self._protocols(Operation.ALL_REDUCE, flows), strict=True):
            line = tree(flows.devices, flows.servers, steps._replace(inside_rate=alone.inside_rate))
            plans.append(self._plan(Operation.ALL_REDUCE, flows, f"tree {name}", line))
        return plans

    def _binomial_plans(self, operation: Operation, flows: _Flows) -> list[CollectivePlan]:
        """PAT, which the library has in its highest protocol alone."""
        if not self._fabrics(flows):
            return []
        name, steps = self._protocols(operation, flows)[-1]
        return [self._plan(operation, flows, f"PAT {name}", binomial(flows.devices, steps))]

    def _in_switch_plans(self, flows: _Flows) -> list[CollectivePlan]:
        """All-reduces that sum inside the switches of servers, with a tree between the servers."""
        rate = min((one.in_switch for one, _ in flows.inside.uses), default=0.0)
        fabrics, each = self._fabrics(flows), flows.devices // flows.servers
        if not rate or not fabrics or each < IN_SWITCH_LEAST:
            return []
        line = in_switch(each, max(one.sum_base for one in fabrics), rate)
        if flows.servers == 1:
            return [self._plan(Operation.ALL_REDUCE, flows, "NVLS Simple", line)]
        name, steps = self._protocols(Operation.ALL_REDUCE, flows)[-1]
        return [
            self._plan(Operation.ALL_REDUCE, flows, f"NVLS-tree {name}", in_switch_tree(flows.servers, line, steps))
        ]

    def _torus_plans(self, operation: Operation, several: Sequence[Sequence[int]]) -> list[CollectivePlan]:
        """Along the sides of like grids: in every order of these, and all at once."""
        found = {self._grid(devices) for devices in several}
        grid = found.pop()
        if found or grid is None or (not any(grid.closed) and len(grid.sides) < 2):
            return []
        along_sides = []
        for those, hops, closed in zip(grid.rows(), grid.hops(), grid.closed, strict=True):
            edges = Counter((devices[one], devices[other]) for devices in several for one, other in hops)
            servers = len(self.topology.by_server([several[0][place] for place in those[0]]))
            along_sides.append(self._of_edges("torus", edges, len(those[0]), servers, 2 if closed else 1))
        sides = [self._side(operation, flows) for flows in along_sides]
        numbers = range(len(sides))
        orders = [[one] for one in permutations(numbers)]
        orders += [[(*numbers[first:], *numbers[:first]) for first in numbers]] if len(sides) > 1 else []
        return [self._torus(operation, along_sides, sides, one) for one in orders]

    def _grid(self, devices: Sequence[int]) -> Grid | None:
        """The grid that the cables of some devices are, if each of these is one's own."""
        nodes, cabled = [self.topology.nodes[device] for device in devices], self.topology.cabled
        found = find_grid(nodes, cabled)
        if found is None:
            return None
        hops = [self.topology.hops[nodes[one], nodes[other]] for those in found.hops() for one, other in those]
        return found if self.topology.lone_channels.issuperset(hops) else None

    def _side(self, operation: Operation, flows: _Flows) -> Side:
        """A dimension of a grid with these messages; both ways round a ring the farthest device is half of it away."""
        (_, steps), *_ = self._protocols(operation, flows)
        crossing = flows.servers > 1
        return Side(
            flows.devices,
            flows.devices // 2 if flows.parts > 1 else flows.devices - 1,
            steps.base + (steps.between if crossing else steps.inside),
            steps.rate,
        )

    def _torus(
        self, operation: Operation, flows: Sequence[_Flows], sides: Sequence[Side], orders: Sequence[tuple[int, ...]]
    ) -> CollectivePlan:
        """Parts of a tensor at once, each along the sides in one of some orders; flows: of each side."""
        times = [along(operation, [sides[number] for number in order]) for order in orders]
        whole = at_once(times)

        def busy() -> dict[int, float]:
            found = dict[int, float]()
            for order, parts in zip(orders, times, strict=True):
                for number, time in zip(order, parts, strict=True):
                    share = time.seconds_per_byte / len(orders) / whole.seconds_per_byte
                    for channel, one in self._plan(operation, flows[number], "", time).occupancy.items():
                        found[channel] = found.get(channel, 0.0) + one * share
            return found

        name = "both ways" if len(sides) == 1 else "torus" if len(orders) > 1 else "by dimension"
        return CollectivePlan(name, *whole, "", busy)

    def _hierarchical_plans(
        self, operation: Operation, several: Sequence[Sequence[int]], few: Sequence[Sequence[Sequence[int]]]
    ) -> list[CollectivePlan]:
        """Through the components of every choice of levels that hold as many of some devices each; few: as in `_hierarchical`."""
        devices, *inner, whole_ring = self.topology.even_levels(several)
        chosen = chained.from_iterable(combinations(inner, count) for count in range(1, len(inner) + 1))
        return [self._hierarchical(operation, several, few, (devices, *one, whole_ring)) for one in chosen]

    def _hierarchical(
        self,
        operation: Operation,
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
            ring_alone = self._ring_plans(operation, self._flows("ring", rings, size // held, servers))
            plan = min([*ring_alone, *self._torus_plans(operation, rings)], key=attrgetter("seconds_per_byte"))
            # A ring carries the part that its devices hold after the reduce-scatters before.
            parts.append((plan, plan.seconds_per_byte / held))
        seconds = sum(part for _, part in parts)

        def busy() -> dict[int, float]:
            found = dict[int, float]()
            for plan, part in parts:
                for channel, share in plan.occupancy.items():
                    found[channel] = found.get(channel, 0.0) + share * part / seconds
            return found

        return CollectivePlan("hierarchical", sum(plan.latency for plan, _ in parts), seconds, "", busy)

    # ------------------------------------------------------------------------------------------------ steps

    @staticmethod
    def _fabrics(flows: _Flows) -> list[Fabric]:
        """Fabrics that some messages pass and that say what a collective takes there."""
        passed = (one for one, _ in (*flows.inside.uses, *flows.between.uses))
        return [one.own_fabric for one in passed if one.own_fabric is not None]

    def _protocols(self, operation: Operation, flows: _Flows) -> list[tuple[str, Steps]]:
        """The protocols by name, and what each of them takes of some messages."""
        names = next((one.protocols for one in self._fabrics(flows)), (Protocol(),))  # all fabrics have the same
        return [(one.name, self._steps(operation, number, flows)) for number, one in enumerate(names)]

    def _steps(self, operation: Operation, number: int, flows: _Flows) -> Steps:
        inside = [self._step(operation, number, way, between=False) for way in flows.inside.ways]
        between = [self._step(operation, number, way, between=True) for way in flows.between.ways]
        rates = (self._rate(operation, number, messages) for messages in (flows.inside, flows.between))
        return Steps(
            max(one.base for one in (*inside, *between)),
            max((one.hop for one in inside), default=0.0),
            max((one.hop for one in between), default=0.0),
            max((one.tree_hop for one in inside), default=0.0),
            max((one.tree_hop for one in between), default=0.0),
            *(flows.parts * rate for rate in rates),
        )

    @staticmethod
    def _step(operation: Operation, number: int, way: Sequence[Channel], *, between: bool) -> Protocol:
        """Seconds of a step of a protocol over a route: of its slowest channel, or the latencies if no channel knows more."""
        known = [found for one in way if (found := one.protocol(operation, number, between=between))]
        if not known:
            latency = sum(one.latency for one in way)
            return Protocol(hop=latency, tree_hop=latency)
        return Protocol(
            base=max(one.base for one in known),
            hop=max(one.hop for one in known),
            tree_hop=max(one.tree_hop for one in known),
        )

    @staticmethod
    def _rate(operation: Operation, number: int, messages: _Messages) -> float:
        """Bytes/s of the slowest of some messages in a protocol where all share channels evenly; infinite of none."""
        rates = (
            one.collective_bandwidths[operation]
            * (1.0 if one.own_fabric is None else one.own_fabric.protocols[number].share)
            / count
            for one, count in messages.uses
        )
        return min(rates, default=inf)

    def _plan(self, operation: Operation, flows: _Flows, name: str, line: CollectiveTime) -> CollectivePlan:
        """The plan of a collective whose messages take these routes at once."""

        def busy() -> dict[int, float]:
            used = [(self.topology.channels[index], count) for index, count in flows.uses.items()]
            bandwidth = min(one.collective_bandwidths[operation] / count for one, count in used)
            shares = (min(1.0, count * bandwidth / one.bandwidth) for one, count in used)
            return dict(zip(flows.uses, shares, strict=True))

        return CollectivePlan(name.rstrip(), *line, flows.name, busy)

    def ring_bandwidth(self, members: Sequence[int]) -> float:
        """Bytes/s of each member of a ring that all-reduces."""
        _, steps = self._protocols(Operation.ALL_REDUCE, self._flows("ring", [members], len(members), 1))[-1]
        return steps.rate

    def _latency(self, route: Iterable[int]) -> float:
        return sum(self.topology.channels[index].latency for index in route)
