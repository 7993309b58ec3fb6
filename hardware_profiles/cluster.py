"""Cluster: a graph of devices, switches and links, and the seconds that messages take on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise, permutations
from math import gcd, log2
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from hardware_profiles.accelerator import PRECISION_BYTES, Accelerator, check_figures
from hardware_profiles.reading import brief, remembering

if TYPE_CHECKING:
    import networkx

Duplex = Literal["full", "half"]

AllReduce = Literal["fastest", "flat-ring"]
"""Which rings a cluster's library all-reduces over between servers: the best of all, or the flat one only."""

TensorGroups = Literal["server", "cluster"]
"""Where the devices of one tensor-parallel group may be: in one server, or anywhere."""

ROUTING_BYTES = 2**20
"""A route is the path on which a message of this size would arrive first (bytes)."""

MOST_PARALLEL = 16
"""Devices of a server at most whose rings are looked for: there are as many as devices, and each passes all of them."""

MOST_HOPS = 20_000
"""Hops that a search for rings takes at most; what it has found by then counts. A DGX-1 needs fewer than 200."""

ROUNDING = 1e-12
"""Relative; more than two sums of the same seconds in another order can differ by."""


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between two nodes (devices or switches), named by the nodes' names.

    bandwidth: bytes/s of the medium in one direction; latency: seconds
    duplex: `full` is one channel each way, `half` one channel that both directions share
    point_to_point, collective: share of the bandwidth that a lone transfer, and an all-reduce, reach
    collective_latency: seconds that an all-reduce over such links takes beside its bytes, in one server or between two, and
        again whenever the servers double; 0: those of every hop of its ring, one after the other
    shared: links with the same label are one medium and share its channels (a PCIe bus, a server's network
        card); a channel then belongs to the direction first -> second of each of them, or to both
    """

    first: str
    second: str
    bandwidth: float
    latency: float = 0.0
    duplex: Duplex = "full"
    point_to_point: float = 1.0
    collective: float = 1.0
    shared: str | None = None
    collective_latency: float = 0.0

    def __post_init__(self) -> None:
        label = f"link {self.first} - {self.second}"
        if self.first == self.second:
            raise ValueError(f"{label}: a link joins two different nodes")
        if self.duplex not in ("full", "half"):
            raise ValueError(f"{label}: duplex is full or half: {self.duplex!r}")
        rules = {
            "above 0": ("bandwidth",),
            "at least 0": ("latency", "collective_latency"),
            "above 0 and at most 1": ("point_to_point", "collective"),
        }
        check_figures(label, self, rules)


@dataclass(frozen=True, slots=True)
class Channel:
    """One direction of a link (both of a half-duplex one): what a transfer occupies.

    bandwidth: bytes/s that a lone transfer reaches; collective_bandwidth: bytes/s of an all-reduce; latency: seconds
    collective_latency: as of a `Link`
    """

    name: str
    bandwidth: float
    latency: float
    collective_bandwidth: float
    collective_latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a homogeneous tree: `width` components of the level below on equal links (bytes/s)."""

    width: int
    bandwidth: float
    collective_bandwidth: float


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
"""Ways to all-reduce: seconds of latency, and seconds a byte, of each; none among devices that are one."""


def reduce_seconds(rates: Rates, size_bytes: float) -> float:
    """Seconds of an all-reduce of `size_bytes` on the quickest way; of a reduce-scatter or an all-gather the half."""
    return min((latency + size_bytes * seconds_per_byte for latency, seconds_per_byte in rates), default=0.0)


@dataclass(frozen=True, slots=True)
class Flow:
    """Transfers that set out together, each of as many bytes, as the slowest of them fares.

    latency: seconds; bandwidth: bytes/s that it reaches, where transfers share a channel evenly
    route: its channels, in order; loads: how many times its bytes pass each of these, with those of the others; () is once
    """

    latency: float
    bandwidth: float
    route: tuple[int, ...]
    loads: tuple[float, ...] = ()


class ClusterSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a cluster comes from: a name, name:SERVERS or path as `load_cluster` takes it; how many devices are in use, if not
    all of them.
    """

    name: str
    devices: Annotated[int, msgspec.Meta(ge=1)] | None = None


@dataclass(frozen=True)
class Cluster:
    """Devices and the links between them.

    devices: accelerators; the index is the device id
    nodes: name of each device's node in the graph; switches: names of the nodes that only pass on
    servers: device ids by server; links: cables
    allreduce: the rings that all-reduces run over, one of `AllReduce`
    tensor_groups: one of `TensorGroups`
    prices: of each device an hour, in `currency`; empty where they are not known
    source: what gives it again; None for one that was made in Python, or changed there

    Raises ValueError for duplicate names, links to nodes that do not exist, devices in no or two servers,
    devices that cannot reach one another, and links that share a medium but disagree about it.
    """

    name: str
    devices: tuple[Accelerator, ...]
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    servers: tuple[tuple[int, ...], ...]
    links: tuple[Link, ...]
    allreduce: AllReduce = "fastest"
    tensor_groups: TensorGroups = "server"
    prices: tuple[float, ...] = ()
    currency: str = ""
    source: ClusterSource | None = field(init=False, default=None, repr=False, compare=False)
    channels: tuple[Channel, ...] = field(init=False, compare=False)
    _hops: Mapping[tuple[str, str], int] = field(init=False, repr=False, compare=False)
    _routes: dict[tuple[int, int], tuple[int, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _plans: dict[tuple[tuple[tuple[int, ...], ...], bool], tuple[CollectivePlan, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(device.name for device in self.devices))
        return brief(self, f"{self.name}: {len(self.servers)} servers, {len(self.devices)} devices: {kinds}")

    def __post_init__(self) -> None:
        self._check_nodes()
        channels, hops = _channels_of(self.links)
        object.__setattr__(self, "channels", channels)
        object.__setattr__(self, "_hops", hops)
        self._check_connected()

    @cached_property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that every device has a rate for, in the order of PRECISION_BYTES; one that does not say has all."""
        kinds = {id(device): device for device in self.devices}.values()
        known = [getattr(device, "precisions", PRECISION_BYTES) for device in kinds]
        return tuple(one for one in PRECISION_BYTES if all(one in those for those in known))

    # ---------------------------------------------------------------------------------------------- transfers

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Indices of the channels from one device to another, in order; none on the same device.

        The path on which ROUTING_BYTES arrive first, were every hop stored and forwarded; among equals the
        one that the order of the links puts first. Raises ValueError for a device id that does not exist.
        """
        known = self._routes.get((source, destination))
        if known is None:
            self._check_ids((source, destination))
            if source == destination:
                return ()
            ends = self.nodes[source], self.nodes[destination]
            path = self._path_over_switches(*ends) or self._searched_path(*ends)
            # A bus is entered and left over one medium: its channel counts once.
            known = tuple(dict.fromkeys(self._hops[hop] for hop in pairwise(path)))
            self._routes[source, destination] = known
        return known

    def _path_over_switches(self, source: str, destination: str) -> tuple[str, ...] | None:
        """The quickest path between two devices of a cluster of stars; None elsewhere, and where two are equally quick.

        One switch is passed, or one cable; between two leaves their uplinks. A way over more of them passes a leaf and more, or
        one star again and again, and one over several cables leads to where one cable does: it takes longer.
        """
        stars = self._stars
        if not stars:
            return None
        ways: list[tuple[float, tuple[str, ...]]] = [
            (2.0 * one[0], (source, one[1], destination)) for one in stars[source] if one in stars[destination]
        ]
        if destination in self._cabled.get(source, ()):
            ways.append((self._hop_seconds(self._hops[source, destination]), (source, destination)))
        if not ways:
            near, far = (
                next(switch for _, switch in stars[end] if switch in self._uplinks) for end in (source, destination)
            )
            return source, near, self._uplinks[near], far, destination
        ways.sort()
        if len(ways) > 1 and ways[0][0] >= ways[1][0] * (1.0 - ROUNDING):
            return None
        return ways[0][1]

    @cached_property
    def _uplinks(self) -> dict[str, str]:
        """The spine that each leaf is joined to, in a cluster all of whose links between switches lead to one of them."""
        switches = set(self.switches)
        trunks = [
            {link.first, link.second} for link in self.links if link.first in switches and link.second in switches
        ]
        spines = sorted(set.intersection(*trunks)) if trunks else []
        if len(spines) != 1:
            return {}
        return {leaf: spines[0] for trunk in trunks for leaf in trunk if leaf != spines[0]}

    @cached_property
    def _cabled(self) -> dict[str, set[str]]:
        """Devices at the other ends of each device's cables; those without such cables are left out."""
        cabled: dict[str, set[str]] = {}
        devices = set(self.nodes)
        for link in self.links:
            if link.first in devices and link.second in devices:
                cabled.setdefault(link.first, {link.first}).add(link.second)
                cabled.setdefault(link.second, {link.second}).add(link.first)
        return cabled

    @cached_property
    def _stars(self) -> dict[str, list[tuple[float, str]]]:
        """Each device's switches in a cluster of stars, the quickest first, with the seconds of ROUTING_BYTES; empty elsewhere.

        Every link joins a device to a switch, links of a switch are equally fast, one switch (the trunk) joins all devices, and
        each device is on one other (its star) at most: servers on a switch or a bus that send over a network of their own. In a
        star's place devices may be cabled to all others of their server, equally fast; in the trunk's place each device may be
        on one of several leaves that one spine joins, all of its server on the same.
        """
        ports: dict[str, set[float]] = {switch: set() for switch in self.switches}
        joined: dict[str, list[str]] = {device: [] for device in self.nodes}
        cables: set[float] = set()
        for link in self.links:
            seconds = self._hop_seconds(self._hops[link.first, link.second])
            switch, device = (link.first, link.second) if link.first in ports else (link.second, link.first)
            if switch in joined:
                cables.add(seconds)
            elif device in joined:
                ports[switch].add(seconds)
                joined[device].append(switch)
        quickest = {switch: min(alike) for switch, alike in ports.items() if alike}
        most = 1 if cables else 2
        if max(map(len, [cables, *ports.values()])) > 1 or max(map(len, joined.values())) > most:
            return {}
        if any(self._cabled[other] != those for those in self._cabled.values() for other in those):
            return {}
        times = [*quickest.values(), *cables]
        if not times or min(times) <= ROUNDING * max(times):
            return {}  # a sum of seconds would not tell one switch from two
        if not self._meet(joined):
            return {}
        return {
            device: sorted((quickest[switch], switch) for switch in switches) for device, switches in joined.items()
        }

    def _meet(self, joined: Mapping[str, Sequence[str]]) -> bool:
        """Whether all devices meet at one switch, or each on one leaf of the spine with all on its star or at its cables.

        joined: switches of each device
        """
        switches = set(self.switches)
        if not any({link.first, link.second} <= switches for link in self.links):
            return bool(set.intersection(*map(set, joined.values())))
        leaves = {device: [one for one in those if one in self._uplinks] for device, those in joined.items()}
        if any(len(those) != 1 for those in leaves.values()) or set(self._uplinks.values()) & set().union(
            *joined.values()
        ):
            return False
        near = [(device, other) for device, others in self._cabled.items() for other in others]
        first = {switch: device for device, those in joined.items() for switch in those}
        near += [(device, first[switch]) for device, those in joined.items() for switch in those]
        return all(leaves[device] == leaves[other] for device, other in near)

    def _hop_seconds(self, channel: int) -> float:
        """Seconds of ROUTING_BYTES over a channel."""
        return self.channels[channel].latency + ROUTING_BYTES / self.channels[channel].bandwidth

    def _searched_path(self, source: str, destination: str) -> list[str]:
        """The quickest path between two nodes of any graph."""
        import networkx

        _, path = networkx.bidirectional_dijkstra(self._graph, source, destination, weight="seconds")
        return list(path)

    @cached_property
    def _graph(self) -> networkx.DiGraph[str]:
        """The topology: one edge a direction of a link, with the `seconds` of ROUTING_BYTES."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        graph.add_nodes_from((*self.nodes, *self.switches))
        for (tail, head), index in self._hops.items():
            graph.add_edge(tail, head, seconds=self._hop_seconds(index))
        return graph

    def point_to_point(self, source: int, destination: int) -> tuple[float, float]:
        """Latency (seconds) and bottleneck bandwidth (bytes/s) of a lone transfer; (0, inf) on the same device."""
        channels = [self.channels[index] for index in self.route(source, destination)]
        if not channels:
            return 0.0, float("inf")
        return sum(channel.latency for channel in channels), min(channel.bandwidth for channel in channels)

    def transfer_seconds(self, source: int, destination: int, size_bytes: float) -> float:
        """Seconds of a lone transfer: the latencies of the route plus bytes over its narrowest channel."""
        if not size_bytes >= 0.0:
            raise ValueError(f"{self.name}: size_bytes is at least 0: {size_bytes}")
        latency, bandwidth = self.point_to_point(source, destination)
        return latency + size_bytes / bandwidth

    def flow(self, pairs: Sequence[tuple[int, int]], part: float = 1.0) -> Flow:
        """Transfers from the first to the second device of each pair, at once; a pair of one device has nothing to move.

        part: that each transfer has of the bytes in which bandwidth and loads are counted
        """
        if len(pairs) == 1:
            return Flow(*self.point_to_point(*pairs[0]), self.route(*pairs[0]))
        routes = [route for pair in pairs if (route := self.route(*pair))]
        uses = Counter(index for route in routes for index in route)

        def fares(route: tuple[int, ...]) -> tuple[float, float]:
            channels = [self.channels[index] for index in route]
            bandwidth = min(one.bandwidth / (uses[index] * part) for index, one in zip(route, channels, strict=True))
            return sum(channel.latency for channel in channels), bandwidth

        if not routes:
            return Flow(0.0, float("inf"), ())
        slowest = max(routes, key=lambda route: fares(route)[0] + ROUTING_BYTES / fares(route)[1])
        return Flow(*fares(slowest), slowest, tuple(uses[index] * part for index in slowest))

    # --------------------------------------------------------------------------------------------- all-reduce

    def allreduce_seconds(self, devices: Sequence[int], size_bytes: float) -> float:
        """Seconds to sum `size_bytes` over `devices` and leave the sum on each: the best of these (the second is for libraries
        that know more than a `flat-ring`); 0 for one device.

        - flat: one ring through the devices, server by server: 2(m-1)/m * bytes / bandwidth + 2(m-1) * latency,
          where bandwidth is that of the narrowest channel divided by the edges of the ring that use it
        - hierarchical, if several servers take part with equal numbers: reduce-scatter inside each server, one ring
          a local rank between the servers (all at once, sharing network cards where they do), all-gather inside
        - parallel: rings that all pass every device, each with a part of the bytes, where they share no cable: between servers
          whose devices have cards of their own as many as devices, each leaving a server at another one; inside a server
          whose devices are linked pair by pair as many as there are steps from device to device that pass all of them, or
          both ways round each of the link-disjoint cycles of unlike cables
        - chain, inside a server whose cables close no ring: the sum goes along it and comes back, 2 * bytes / bandwidth. NCCL
          counts half of the links' rate for its trees, too (5 V100 of a DGX-1: 23 of two links' 45 GB/s, vTrain f8dda84)

        Patarasuk and Yuan, JPDC 2009, for the ring. Raises ValueError for repeated or unknown devices.
        """
        if not size_bytes >= 0.0:
            raise ValueError(f"{self.name}: size_bytes is at least 0: {size_bytes}")
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
        """Seconds of latency, and seconds a byte that each device has for all of `devices`, itself among them, of an exchange in
        which every device sends each other one an equal part; while each of `beside` exchanges as much. None for one device.

        All messages are on their way at once: the busiest channel decides. The latency is that of the slowest route, or half of
        what an all-reduce takes there, which has two such passes.
        """
        if len(devices) < 2:
            return ()
        uses = Counter[int]()
        for group in (devices, *beside):
            uses.update(self._exchange_uses(group))
        busiest = max(count / self.channels[index].collective_bandwidth for index, count in uses.items())
        at_once = max(self.channels[index].collective_latency for index in uses)
        if at_once:
            latency = at_once / 2 * max(1.0, log2(len(self._by_server(devices))))
        else:
            latency = max(self.point_to_point(*pair)[0] for pair in permutations(devices, 2))
        return ((latency, busiest / len(devices)),)

    def _exchange_uses(self, devices: Sequence[int]) -> Counter[int]:
        """How many of the messages between all pairs of some devices each channel carries.

        In a cluster of stars those from one server to others begin on the same channel of their sender and end on the same one of
        their receiver; between these are the uplinks of their leaves.
        """
        if not self._stars:
            return Counter(index for pair in permutations(devices, 2) for index in self.route(*pair))
        uses, across, housed = Counter[int](), Counter[str](), self._by_server(devices)
        for number, group in enumerate(housed):
            uses.update(index for pair in permutations(group, 2) for index in self.route(*pair))
            far, outside = housed[number - 1][0], len(devices) - len(group)
            for one in group if outside else ():
                for channel in (self.route(one, far)[0], self.route(far, one)[-1]):
                    uses[channel] += outside
            across.update(self._across_leaves(group, -1))
        across.update(self._across_leaves(devices, 1))
        for leaf, count in across.items():
            for hop in (leaf, self._uplinks[leaf]), (self._uplinks[leaf], leaf):
                uses[self._hops[hop]] += count
        return +uses

    def _across_leaves(self, devices: Sequence[int], sign: int) -> dict[str, int]:
        """Pairs of some devices, the first below each leaf and the second not, with a sign."""
        switches = [switch for one in devices for _, switch in self._stars[self.nodes[one]]]
        below = Counter(switch for switch in switches if switch in self._uplinks)
        return {leaf: sign * count * (len(devices) - count) for leaf, count in below.items()}

    def _collective_plans(self, several: Sequence[Sequence[int]], *, whole: bool = False) -> tuple[CollectivePlan, ...]:
        """Ways in which some devices, and others at the same time, all-reduce.

        whole: with all of their channels, else with those of servers that stand for like ones
        """
        key = tuple(tuple(sorted(devices)) for devices in several), whole or not self._server_forms
        if not key[1]:
            key = self._in_first_server(key[0]), False
        known = self._plans.get(key)
        if known is None:
            for devices in key[0]:
                self._check_ids(devices)
                if len(set(devices)) != len(devices):
                    raise ValueError(f"{self.name}: an all-reduce names each device once: {devices}")
            known = self._make_collective_plans(*key) if len(key[0][0]) > 1 else ()
            self._plans[key] = known
        return known

    def _make_collective_plans(self, several: Sequence[Sequence[int]], whole: bool) -> tuple[CollectivePlan, ...]:
        housed: list[list[Sequence[int]]] = [[*self._by_server(devices)] for devices in several]
        members, servers = len(several[0]), len(housed[0])
        housed = housed if whole else self._representative(housed)
        flat = self._rings([_joined(groups) for groups in housed], members, servers)
        shapes = {tuple(map(len, groups)) for groups in housed}
        sizes = {size for shape in shapes for size in shape}
        lone, limited = servers == 1, self.allreduce == "flat-ring"
        if len(shapes) > 1 or len(sizes) > 1 or (limited and not lone):
            return (flat,)
        parallel = [self._parallel_rings(groups) for groups in housed]
        plans = [flat]
        fewest = min(map(len, parallel))
        if fewest > 1:
            rings = [ring for rings in parallel for ring in rings[:fewest]]
            plans.append(self._rings(rings, members, servers, parts=fewest))
        elif lone and all(chains := [self._chain(groups[0]) for groups in housed]):
            plans.append(self._there_and_back(chains))
        if lone or sizes == {1}:
            return tuple(plans)
        local = sizes.pop()
        inside = self._rings([group for groups in housed for group in groups], local)
        peers = [list(peers) for groups in housed for peers in zip(*groups, strict=True)]
        between = self._rings(peers, servers, servers)
        # A ring between the servers carries the part that its rank holds after the reduce-scatter.
        parts = ((inside, inside.seconds_per_byte), (between, between.seconds_per_byte / local))
        seconds = sum(part for _, part in parts)
        busy = dict.fromkeys(sorted({*inside.channels, *between.channels}), 0.0)
        for plan, part in parts:
            for channel, share in zip(plan.channels, plan.occupancy, strict=True):
                busy[channel] += share * part / seconds
        hierarchical = CollectivePlan(inside.latency + between.latency, seconds, tuple(busy), tuple(busy.values()))
        return (*plans, hierarchical)

    def _in_first_server(self, several: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        """Devices at the same places of the first server like theirs, where all are in one server; else themselves."""
        places, forms = self._places, self._server_forms
        one = {places[device][0] if device in places else -1 for devices in several for device in devices}
        if len(one) != 1 or -1 in one:
            return several
        first = self.servers[forms.index(forms[one.pop()])]
        return tuple([tuple([first[places[device][1]] for device in devices]) for devices in several])

    def _representative(self, housed: Sequence[Sequence[Sequence[int]]]) -> list[list[Sequence[int]]]:
        """The devices of each ring by server, without servers for which others stand: of like ones in a row, with devices of the
        same rings at the same places, the first two and the last pass on as much, over channels as fast, as all of them.
        """
        held: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        places = self._places
        for ring, groups in enumerate(housed):
            for group in groups:
                own = tuple([places[device][1] for device in group])
                held.setdefault(places[group[0]][0], []).append((ring, own))
        numbers = sorted(held)
        looks = [(self._server_forms[number], held[number]) for number in numbers]
        kept = {
            number
            for place, number in enumerate(numbers)
            if not 1 < place < len(numbers) - 1
            or not looks[place - 2] == looks[place - 1] == looks[place] == looks[place + 1]
        }
        return [[group for group in groups if places[group[0]][0] in kept] for groups in housed]

    @cached_property
    def _server_forms(self) -> tuple[int, ...]:
        """A number for each server, the same for those whose devices have like links, to each other and to the same switches.

        None where routes depend on more, or several servers share a medium.
        """
        if not self._stars:
            return ()
        ends: list[list[tuple[int, int]]] = []  # of each link: server and place of each device
        users: dict[str, set[int]] = {}  # servers that use a switch or a medium
        at = {node: self._places[device] for device, node in enumerate(self.nodes)}
        for link in self.links:
            ends.append([at[node] for node in (link.first, link.second) if node in at])
            for server, _ in ends[-1]:
                for name in (link.first, link.second, link.shared):
                    if name is not None and name not in at:
                        users.setdefault(name, set()).add(server)
        if any(len(users.get(link.shared or "", ())) > 1 for link in self.links):
            return ()
        found: list[list[object]] = [[] for _ in self.servers]
        names: list[dict[str, int]] = [{} for _ in self.servers]
        for link, devices in zip(self.links, ends, strict=True):
            figures = link.bandwidth, link.latency, link.duplex, link.point_to_point, link.collective
            for server, _ in devices[:1]:
                own = names[server]
                roles = [
                    name if len(users.get(name, ())) > 1 else own.setdefault(name, len(own))
                    for name in (link.first, link.second, link.shared or "")
                ]
                found[server].append((*figures, link.collective_latency, *roles, tuple(place for _, place in devices)))
        known: dict[tuple[object, ...], int] = {}
        return tuple(known.setdefault(tuple(one), len(known)) for one in found)

    def _parallel_rings(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        """Rings through all devices of some servers, as many of each, that share no cable; one where they would.

        Between servers a ring leaves each of them at another device than the other rings, and comes in at the next one.
        """
        first = groups[0]
        if len(first) > 1 and len(groups) > 1 and not self._share((first[0], groups[1][0]), (first[1], groups[1][1])):
            return [
                _joined([[*group[last + 1 :], *group[: last + 1]] for group in groups]) for last in range(len(first))
            ]
        return self._rings_inside(first) if len(groups) == 1 else [_joined(groups)]

    def _rings_inside(self, members: Sequence[int]) -> list[list[int]]:
        """Rings through all of some devices of a server that share no cable; one where they would.

        Where all pairs have equal cables, a ring goes on by a step that has no divisor in common with the number of devices;
        else each link-disjoint cycle of the cables is two rings, one each way.
        """
        units, size = self._cable_units(members), len(members)
        if len(units) == size * (size - 1) and set(units.values()) == {1}:
            steps = [step for step in range(1, size) if gcd(step, size) == 1]
            return [[members[place * step % size] for place in range(size)] for step in steps]
        cycles = _disjoint_cycles(members, units, MOST_PARALLEL)
        return [ring for cycle in cycles for ring in (cycle, cycle[::-1])] or [list(members)]

    def _chain(self, members: Sequence[int]) -> list[int]:
        """All of some devices of a server in an order in which cables join them, the narrowest as wide as can be; [] for none."""
        units = self._cable_units(members)
        end = -1  # a device cabled to all: a cycle through it is a chain of the others
        for least in sorted(set(units.values()), reverse=True):
            wide = {pair: 1 for pair, count in units.items() if count >= least}
            wide |= {pair: 1 for member in members for pair in ((end, member), (member, end))}
            if found := _disjoint_cycles((end, *members), wide, 1):
                return found[0][1:]
        return []

    def _cable_units(self, members: Sequence[int]) -> dict[tuple[int, int], int]:
        """Cables by the two of some devices that they join, both ways, as multiples of the slowest (rounded down).

        Empty for two devices, and for more than MOST_PARALLEL. A medium that several hops share is no cable.
        """
        if not 2 < len(members) <= MOST_PARALLEL or self.nodes[members[0]] not in self._cabled:
            return {}
        ends = {pair: (self.nodes[pair[0]], self.nodes[pair[1]]) for pair in permutations(members, 2)}
        hops = {pair: self._hops[names] for pair, names in ends.items() if names in self._hops}
        rates = {pair: self.channels[hop].collective_bandwidth for pair, hop in hops.items() if hop in self._own}
        slowest = min(rates.values(), default=1.0)
        return {pair: int(rate / slowest + ROUNDING) for pair, rate in rates.items()}

    @cached_property
    def _own(self) -> frozenset[int]:
        """The channels that are one hop's alone."""
        return frozenset(channel for channel, hops in Counter(self._hops.values()).items() if hops == 1)

    def _share(self, one: Sequence[int], other: Sequence[int]) -> bool:
        """Whether transfers between two pairs of devices share a channel."""
        return not set(self.route(one[0], one[1])).isdisjoint(self.route(other[0], other[1]))

    def server_of(self, device: int) -> int:
        """Number of a device's server."""
        return self._places[device][0]

    def _by_server(self, devices: Iterable[int]) -> list[list[int]]:
        """Devices server by server, of those servers that have any."""
        groups: dict[int, list[int]] = {}
        for device in sorted(devices, key=self._places.__getitem__):
            groups.setdefault(self.server_of(device), []).append(device)
        return list(groups.values())

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """Number of each device's server, and its place there."""
        return {
            device: (number, place) for number, server in enumerate(self.servers) for place, device in enumerate(server)
        }

    def _rings(self, rings: Sequence[Sequence[int]], members: int, servers: int = 1, parts: int = 1) -> CollectivePlan:
        """Rings at once, each of so many members on so many servers (of which those that are given stand for all), and each a
        reduce-scatter and an all-gather of one of so many parts of a tensor.
        """
        routes = [route for ring in rings for route in self._edges(ring)]
        return self._collective(routes, 2.0 * (members - 1) / members / parts, members, servers)

    def _there_and_back(self, chains: Sequence[Sequence[int]]) -> CollectivePlan:
        """Chains of equal length at once: the sum goes along each of them, and then the result comes back."""
        hops = [hop for chain in chains for pair in pairwise(chain) for hop in (pair, pair[::-1])]
        return self._collective([self.route(*hop) for hop in hops], 2.0, len(chains[0]))

    def _collective(
        self, routes: Sequence[tuple[int, ...]], passes: float, members: int, servers: int = 1
    ) -> CollectivePlan:
        """An all-reduce whose messages, a tensor's bytes so many times, go over all of these routes at once.

        members, servers: of each of the rings or chains
        """
        latency = max(sum(self.channels[index].latency for index in route) for route in routes)
        bandwidth = self._shared_bandwidth(routes)
        uses = Counter(index for route in routes for index in route)
        at_once = max(self.channels[index].collective_latency for index in uses)
        return CollectivePlan(
            at_once * max(1.0, log2(servers)) if at_once else 2.0 * (members - 1) * latency,
            passes / bandwidth,
            tuple(sorted(uses)),
            tuple(min(1.0, uses[index] * bandwidth / self.channels[index].bandwidth) for index in sorted(uses)),
        )

    def _edges(self, ring: Sequence[int]) -> list[tuple[int, ...]]:
        return [self.route(ring[position - 1], ring[position]) for position in range(len(ring))]

    def _shared_bandwidth(self, routes: Iterable[Sequence[int]]) -> float:
        """Bytes/s of the slowest of these flows where they share channels evenly."""
        uses = Counter(index for route in routes for index in route)
        return min(self.channels[index].collective_bandwidth / count for index, count in uses.items())

    # ------------------------------------------------------------------------------------------------ shape

    def levels(self) -> tuple[Level, ...]:
        """Devices in a server, then servers, innermost first, for a hierarchical planner; none of width 1.

        `bandwidth` is what a lone transfer between two components reaches, `collective_bandwidth` what each
        member of one ring through the components does. Raises ValueError unless all servers are alike: as
        many devices, of one kind, over equal links.
        """
        sizes = sorted({len(server) for server in self.servers})
        if len(sizes) > 1:
            raise ValueError(f"{self.name}: levels need servers of equal size; these hold {sizes} devices")
        kinds = sorted({device.name for device in self.devices})
        if len(kinds) > 1:
            raise ValueError(f"{self.name}: levels need one kind of accelerator; this cluster mixes {', '.join(kinds)}")
        found = []
        if sizes[0] > 1:
            found.append(self._level(self.servers))
        if len(self.servers) > 1:
            found.append(self._level([[server[0] for server in self.servers]]))
        return tuple(found)

    def _level(self, groups: Iterable[Sequence[int]]) -> Level:
        levels = set()
        for group in groups:
            # Every pair of a small group; neighbours and ends of a large one, whose pairs would be too many.
            pairs = combinations(group, 2) if len(group) <= 16 else [*pairwise(group), (group[0], group[-1])]
            bandwidths = {self.point_to_point(first, second)[1] for first, second in pairs}
            if len(bandwidths) > 1:
                raise ValueError(
                    f"{self.name}: levels need equal links between the components of a level; devices "
                    f"{tuple(group)} see {min(bandwidths):.4g} to {max(bandwidths):.4g} bytes/s"
                )
            levels.add(Level(len(group), bandwidths.pop(), self._shared_bandwidth(self._edges(group))))
        if len(levels) > 1:
            raise ValueError(f"{self.name}: levels need servers with equal links inside")
        return levels.pop()

    def take(self, count: int) -> Cluster:
        """The same machines with the first `count` devices in use; what leads nowhere any more is dropped."""
        if not 1 <= count <= len(self.devices):
            raise ValueError(f"{self.name}: take from 1 to {len(self.devices)} devices: {count}")
        if count == len(self.devices):
            return self
        spare = set(self.nodes[count:])
        passive = {*self.switches, *spare}
        links, switches = self.links, set(self.switches)
        # A spare device in a ring or a chain still passes messages on between its neighbours; one on switches
        # only, or at a dead end, does not, nor does a switch with a single link left.
        while dead := {node for node, relayed in _relayed(passive, spare, switches, links).items() if relayed <= 1}:
            passive -= dead
            links = tuple(link for link in links if link.first not in dead and link.second not in dead)
        servers = (tuple(device for device in server if device < count) for server in self.servers)
        taken = Cluster(
            name=self.name,
            devices=self.devices[:count],
            nodes=self.nodes[:count],
            switches=tuple(node for node in (*self.switches, *self.nodes[count:]) if node in passive),
            servers=tuple(server for server in servers if server),
            links=links,
            allreduce=self.allreduce,
            tensor_groups=self.tensor_groups,
            prices=self.prices[:count],
            currency=self.currency,
        )
        source = self.source
        return taken if source is None else remembering(taken, msgspec.structs.replace(source, devices=count))

    # ------------------------------------------------------------------------------------------------ checks

    def _check_ids(self, devices: Iterable[int]) -> None:
        for device in devices:
            if not 0 <= device < len(self.devices):
                raise ValueError(f"{self.name}: device ids run from 0 to {len(self.devices) - 1}: {device}")

    def _check_nodes(self) -> None:
        if not self.devices:
            raise ValueError(f"{self.name}: a cluster has at least one device")
        if len(self.nodes) != len(self.devices):
            raise ValueError(f"{self.name}: {len(self.devices)} devices need as many nodes: {len(self.nodes)}")
        names = Counter((*self.nodes, *self.switches))
        repeated = [name for name, count in names.items() if count > 1]
        if repeated:
            raise ValueError(f"{self.name}: devices and switches have names of their own; {repeated[0]!r} is repeated")
        housed = Counter(device for server in self.servers for device in server)
        if housed != Counter(range(len(self.devices))):
            raise ValueError(f"{self.name}: every device belongs to exactly one server: {self.servers}")
        joined: set[frozenset[str]] = set()
        for link in self.links:
            for end in (link.first, link.second):
                if end not in names:
                    raise ValueError(
                        f"{self.name}: link {link.first} - {link.second} ends at {end!r}, which is no device or switch; "
                        f"choose from {_listed(names)}"
                    )
            pair = frozenset((link.first, link.second))
            if pair in joined:
                raise ValueError(f"{self.name}: {link.first} and {link.second} are linked twice; give one faster link")
            joined.add(pair)

    def _check_connected(self) -> None:
        neighbours: dict[str, list[str]] = {}
        for tail, head in self._hops:
            neighbours.setdefault(tail, []).append(head)
        reached, waiting = {self.nodes[0]}, [self.nodes[0]]
        while waiting:
            new = set(neighbours.get(waiting.pop(), ())) - reached
            reached |= new
            waiting.extend(new)
        for device, node in enumerate(self.nodes):
            if node not in reached:
                raise ValueError(
                    f"{self.name}: device {device} ({node}) is not connected to device 0 ({self.nodes[0]}); add a link"
                )


def _relayed(nodes: set[str], devices: set[str], switches: set[str], links: Iterable[Link]) -> dict[str, int]:
    """Neighbours between which each of `nodes` passes messages on: any for a switch, devices only for one of `devices`."""
    relayed = dict.fromkeys(nodes, 0)
    for link in links:
        for node, end in ((link.first, link.second), (link.second, link.first)):
            if node in relayed and (node not in devices or end not in switches):
                relayed[node] += 1
    return relayed


def _disjoint_cycles(members: Sequence[int], units: Mapping[tuple[int, int], int], most: int) -> tuple[list[int], ...]:
    """Cycles through all members that share no unit of a cable, as many as there are, but `most`.

    units: cables between two members, both ways. The search backtracks; it ends after MOST_HOPS with the most found by then.
    """
    left = dict(units)
    degrees = [sum(left.get((member, other), 0) for other in members) for member in members]
    most = min(most, *(degree // 2 for degree in degrees))
    best: tuple[list[int], ...] = ()
    hops = 0

    def take(one: int, other: int, count: int) -> None:
        left[one, other] -= count
        left[other, one] -= count

    def extend(chosen: tuple[list[int], ...], path: list[int]) -> bool:
        """Whether the search is over; chosen: the cycles that are closed, path: the one that is not."""
        nonlocal best, hops
        hops += 1
        if hops > MOST_HOPS:
            return True
        closing = len(path) == len(members)
        for other in members[:1] if closing else members:
            if left.get((path[-1], other), 0) < 1 or (other in path and not closing):
                continue
            take(path[-1], other, 1)
            if closing and len(chosen) == len(best):
                best = (*chosen, path)
            over = len(best) >= most or (
                extend((*chosen, path), [members[0]]) if closing else extend(chosen, [*path, other])
            )
            take(path[-1], other, -1)
            if over:
                return True
        return False

    if most:
        extend((), [members[0]])
    return best


def _joined(groups: Iterable[Sequence[int]]) -> list[int]:
    return [device for group in groups for device in group]


def _listed(names: Iterable[str], most: int = 12) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (", ..." if len(ordered) > most else "")


def _channels_of(links: Sequence[Link]) -> tuple[tuple[Channel, ...], dict[tuple[str, str], int]]:
    """Channels of the links, and the channel of each directed hop between two nodes."""
    channels: list[Channel] = []
    hops: dict[tuple[str, str], int] = {}
    media: dict[str, tuple[Link, int, int]] = {}
    for link in links:
        if link.shared is not None and link.shared in media:
            model, forth, back = media[link.shared]
            agreed = ("bandwidth", "latency", "duplex", "point_to_point", "collective", "collective_latency")
            differing = [figure for figure in agreed if getattr(model, figure) != getattr(link, figure)]
            if differing:
                raise ValueError(
                    f"links that share {link.shared!r} are one medium, but {link.first} - {link.second} has another "
                    f"{differing[0]}: {getattr(link, differing[0])} against {getattr(model, differing[0])}"
                )
        else:
            label = link.shared or f"{link.first}-{link.second}"
            names = (label,) if link.duplex == "half" else (f"{label}:forth", f"{label}:back")
            forth, back = len(channels), len(channels) + len(names) - 1
            for name in names:
                figures = link.bandwidth * link.point_to_point, link.latency, link.bandwidth * link.collective
                channels.append(Channel(name, *figures, link.collective_latency))
            if link.shared is not None:
                media[link.shared] = (link, forth, back)
        hops[link.first, link.second] = forth
        hops[link.second, link.first] = back
    return tuple(channels), hops
