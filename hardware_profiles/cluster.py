"""Cluster: accelerators, the links between them, and the seconds that messages take there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import Annotated, Literal, get_args

import msgspec

from hardware_profiles.accelerator import PRECISION_BYTES, Accelerator, check_members, optional_members
from hardware_profiles.collectives import AllReduce, CollectiveRates
from hardware_profiles.links import Channel, Link, Sharing
from hardware_profiles.numbers import MOST_COUNT, MOST_DEVICES, check_whole
from hardware_profiles.reading import remembering
from hardware_profiles.topology import ROUTING_BYTES, Topology
from hardware_profiles.words import brief, counted

Component = int | tuple["Component", ...]
"""A part of a cluster: a device id, or the parts that a level joins."""

TensorGroups = Literal["server", "cluster"]
"""Where the devices of one tensor-parallel group may be: in one server, or anywhere."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a homogeneous tree: `width` components of the level below on equal links (bytes/s)."""

    width: int
    bandwidth: float
    collective_bandwidth: float


@dataclass(frozen=True, slots=True)
class Flow:
    """Transfers of equal size that begin together, timed by the slowest of them.

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
    devices: Annotated[int, msgspec.Meta(ge=1, le=MOST_DEVICES)] | None = None


@dataclass(frozen=True)
class Cluster:
    """Devices and the links between them.

    devices: accelerators; the index is the device id
    nodes: name of each device's node in the graph; switches: names of the nodes that only pass on
    servers: device ids by server; links: cables
    allreduce: the rings that all-reduces run over, one of `AllReduce`
    tensor_groups: one of `TensorGroups`
    sharing: of the links that do not say how messages share them
    prices: of each device an hour, in `currency`; empty where they are not known
    source: what gives it again; None for one that was made in Python, or changed there

    topology: of them all; raises ValueError as a `Topology`
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
    sharing: Sharing = "fair"
    source: ClusterSource | None = field(init=False, default=None, repr=False, compare=False)
    topology: Topology = field(init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(device.name for device in self.devices))
        return brief(self, f"{self.name}: {len(self.servers)} servers, {len(self.devices)} devices: {kinds}")

    def __hash__(self) -> int:
        """Of what tells most clusters apart, not of every device and link; TypeError where an accelerator has no hash."""
        return hash((self.name, len(self.devices), self.kinds[0], len(self.links), self.sharing, self.currency))

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError(f"{self.name}: a cluster has at least one device")
        for device in {id(device): device for device in self.devices}.values():
            check_members(device)
        if len(self.nodes) != len(self.devices):
            raise ValueError(f"{self.name}: {len(self.devices)} devices need as many nodes: {len(self.nodes)}")
        if self.sharing not in ("fair", "fifo"):
            raise ValueError(f"{self.name}: sharing is fair or fifo: {self.sharing!r}")
        topology = Topology(self.name, self.nodes, self.switches, self.servers, self.links)
        object.__setattr__(self, "topology", topology)

    @cached_property
    def collectives(self) -> CollectiveRates:
        """Times of the collectives of its devices."""
        return CollectiveRates(self.topology, self.allreduce)

    @cached_property
    def kinds(self) -> tuple[tuple[Accelerator, ...], tuple[int, ...]]:
        """Its distinct accelerators, in the order of their first devices, and for each device the index of its accelerator."""
        numbers: dict[int, int] = {}
        found: list[Accelerator] = []
        for device in self.devices:
            if id(device) not in numbers:
                if device not in found:
                    found.append(device)
                numbers[id(device)] = found.index(device)
        return tuple(found), tuple(numbers[id(device)] for device in self.devices)

    @property
    def device_word(self) -> str:
        """The word for one device in messages and figures: `GPU`, `FPGA`, or `device` for a mix and where there is none."""
        words = {optional_members(device).word for device in self.kinds[0]}
        return words.pop() if len(words) == 1 else "device"

    @property
    def counted_devices(self) -> str:
        """The number of devices in words: `16 GPUs`."""
        return counted(len(self.devices), self.device_word)

    @cached_property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that every device has a rate for, in the order of PRECISION_BYTES; one that does not say has all."""
        kinds = {id(device): device for device in self.devices}.values()
        known = [optional_members(device).precisions for device in kinds]
        return tuple(one for one in PRECISION_BYTES if all(one in those for those in known))

    # ---------------------------------------------------------------------------------------------- transfers

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """The channels, which transfers and collectives occupy."""
        return tuple(replace(one, sharing=one.sharing or self.sharing) for one in self.topology.channels)

    @cached_property
    def alike_channels(self) -> dict[Sharing, tuple[Channel, ...]]:
        """The `channels` by way of sharing, if messages shared all of them in that way, whatever the links say."""
        return {how: tuple(replace(one, sharing=how) for one in self.channels) for how in get_args(Sharing)}

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Indices of the channels from one device to another, as of its topology."""
        return self.topology.route(source, destination)

    def point_to_point(self, source: int, destination: int) -> tuple[float, float]:
        """Latency (seconds) and bottleneck bandwidth (bytes/s) of a lone transfer; (0, inf) on the same device."""
        known, ends = self._lone_transfers, (source, destination)
        if ends not in known:
            channels = [self.channels[index] for index in self.route(source, destination)]
            bandwidth = min((channel.bandwidth for channel in channels), default=float("inf"))
            known[ends] = sum((channel.latency for channel in channels), 0.0), bandwidth
        return known[ends]

    @cached_property
    def _lone_transfers(self) -> dict[tuple[int, int], tuple[float, float]]:
        """The answers of `point_to_point` so far."""
        return {}

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
        likeness = self.collectives.likeness
        if not likeness.forms:
            return self._slowest_flow(pairs, part)[1]
        key = likeness.look([(device,) for pair in pairs for device in pair]), part
        if key not in self._slowest_flows:
            self._slowest_flows[key] = self._slowest_flow(pairs, part)
        place, flow = self._slowest_flows[key]  # of pairs that are like these
        return replace(flow, route=self.route(*pairs[place]))

    @cached_property
    def _slowest_flows(self) -> dict[tuple[int, float], tuple[int, Flow]]:
        """For the look of some pairs, and their part, as of `_slowest_flow`."""
        return {}

    def _slowest_flow(self, pairs: Sequence[tuple[int, int]], part: float) -> tuple[int, Flow]:
        """Which of some transfers at once arrives last, and its flow."""
        routes = [self.route(*pair) for pair in pairs]
        uses = Counter(index for route in routes for index in route)

        def rate(route: tuple[int, ...]) -> tuple[float, float]:
            channels = [self.channels[index] for index in route]
            bandwidth = min(one.bandwidth / (uses[index] * part) for index, one in zip(route, channels, strict=True))
            return sum(channel.latency for channel in channels), bandwidth

        if not uses:
            return 0, Flow(0.0, float("inf"), ())
        found = [(rate(route), place) for place, route in enumerate(routes) if route]
        reached, place = max(found, key=lambda one: one[0][0] + ROUTING_BYTES / one[0][1])
        return place, Flow(*reached, routes[place], tuple(uses[index] * part for index in routes[place]))

    def server_of(self, device: int) -> int:
        """Number of a device's server."""
        return self.topology.places[device][-2]

    # ------------------------------------------------------------------------------------------------ shape

    def levels(self) -> tuple[Level, ...]:
        """Devices in a server, then servers (in a rack, then racks, if as many servers are in each), innermost first, for a
        hierarchical planner; none of width 1.

        `bandwidth` is what a lone transfer between two components reaches, `collective_bandwidth` what each
        member of one ring through the components does. Raises ValueError unless all servers are alike: as
        many devices, of one kind, over equal links.
        """
        return self._levels

    @cached_property
    def _levels(self) -> tuple[Level, ...]:
        sizes = sorted({len(server) for server in self.servers})
        if len(sizes) > 1:
            raise ValueError(f"{self.name}: levels need servers of equal size; these hold {sizes} devices")
        kinds = sorted({device.name for device in self.devices})
        if len(kinds) > 1:
            raise ValueError(f"{self.name}: levels need one kind of accelerator; this cluster mixes {', '.join(kinds)}")
        in_components, everywhere = self.topology.in_components, range(len(self.devices))
        forms, places = self.collectives.likeness.forms, self.topology.places

        def unlike(depth: int) -> Iterable[list[int]]:
            """The devices of each component at a depth, or of the first of those that are alike."""
            groups = in_components(everywhere, depth)
            found: dict[Hashable, list[int]] = {}
            for number, group in enumerate(groups):
                found.setdefault(forms.get(places[group[0]][:depth], -1 - number), group)
            return found.values()

        return tuple(
            self._level([[one[0] for one in in_components(group, inner)] for group in unlike(outer)])
            for inner, outer in pairwise(self._level_depths)
        )

    def components(self) -> tuple[Component, ...]:
        """All devices as nested components: those of the last of the `levels`, each made of components of the level before."""

        def nested(devices: Sequence[int], depths: Sequence[int]) -> tuple[Component, ...]:
            groups = self.topology.in_components(devices, depths[-1])
            return tuple(nested(one, depths[:-1]) for one in groups) if depths[1:] else tuple(devices)

        return nested(range(len(self.devices)), self._level_depths[:-1])

    @cached_property
    def _level_depths(self) -> list[int]:
        return [depth for _, depth in self.topology.even_levels([range(len(self.devices))])]

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
            levels.add(Level(len(group), bandwidths.pop(), self.collectives.ring_bandwidth(group)))
        if len(levels) > 1:
            raise ValueError(f"{self.name}: levels need servers with equal links inside, and racks")
        return levels.pop()

    def take(self, count: int) -> Cluster:
        """The same machines with the first `count` devices in use; links that lead nowhere any more are dropped."""
        check_whole(f"{self.name}: devices", count, -MOST_COUNT)
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
            sharing=self.sharing,
        )
        source = self.source
        return taken if source is None else remembering(taken, msgspec.structs.replace(source, devices=count))


def cluster_of_one(device: Accelerator) -> Cluster:
    """The cluster of one device alone, without a link."""
    return Cluster("one", (device,), ("device",), (), ((0,),), ())


def _relayed(nodes: set[str], devices: set[str], switches: set[str], links: Iterable[Link]) -> dict[str, int]:
    """Neighbours between which each of `nodes` passes messages on: any for a switch, devices only for one of `devices`."""
    relayed = dict.fromkeys(nodes, 0)
    for link in links:
        for node, end in ((link.first, link.second), (link.second, link.first)):
            if node in relayed and (node not in devices or end not in switches):
                relayed[node] += 1
    return relayed
