"""Cluster files: what the TOML file of a cluster may say, and the devices and links that it describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Annotated, ClassVar, Literal

import msgspec

from hardware_profiles.accelerator import Accelerator
from hardware_profiles.cluster import Cluster, TensorGroups
from hardware_profiles.collectives import AllReduce
from hardware_profiles.fabrics import FabricName
from hardware_profiles.file_tables import GIGA, MICRO, FileTable, Name, Share, Text
from hardware_profiles.links import Duplex, Link, Sharing
from hardware_profiles.numbers import MOST_DEVICES
from hardware_profiles.ranges import within

MOST_LINKS = 65_536
"""Links of a cluster at most: a full topology of n devices has n (n - 1) / 2."""

NetworkGigabits = Annotated[float, within((0.1, 10_000), (1e-6, 1e7), "10^9 bits/s")]
LinkRate = Annotated[float, within((0.01, 5000), (1e-7, 1e6), "10^9 bytes/s")]
LatencyMicroseconds = Annotated[float, within((0.01, 10_000), (0, 1e7), "microseconds")]
DeviceCount = Annotated[int, within((1, 1024), (1, MOST_DEVICES), "devices of a server")]
Price = Annotated[float, within((0.01, 1000), (0, 1e6), "per device and hour, in the file's currency")]
Currency = Annotated[str, msgspec.Meta(min_length=1, max_length=20)]
ServerCount = Annotated[int, within((1, 20_000), (1, MOST_DEVICES), "servers")]


class Medium(FileTable, frozen=True, kw_only=True):
    """Keys of every link: exactly one of the two bandwidths, of one direction."""

    one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("bandwidth_gbps", "bandwidth_gb_per_s"),)
    bandwidth_gbps: NetworkGigabits | None = None
    bandwidth_gb_per_s: LinkRate | None = None
    latency_us: LatencyMicroseconds = 0.0
    duplex: Duplex = "full"
    point_to_point_efficiency: Share = 1.0
    collective_efficiency: Share = 1.0
    collective_latency_us: LatencyMicroseconds = 0.0
    gather_efficiency: Share | None = None
    gather_latency_us: LatencyMicroseconds = 0.0
    sharing: Sharing | None = None
    scatter_efficiency: Share | None = None
    in_switch_efficiency: Share | None = None
    fabric: FabricName | None = None

    def link(self, where: str, first: str, second: str, shared: str | None = None) -> Link:
        """A link of this medium; `where` is the table's path, for the error."""
        rates = (self.bandwidth_gbps, GIGA / 8.0), (self.bandwidth_gb_per_s, GIGA)
        given = [rate * unit for rate, unit in rates if rate is not None]
        if len(given) != 1:
            raise ValueError(
                f"{where}: give exactly one of bandwidth_gbps (10^9 bits/s) and bandwidth_gb_per_s (bytes)"
            )
        reached = self.point_to_point_efficiency, self.collective_efficiency
        together = self.collective_latency_us * MICRO, self.gather_efficiency or 0.0, self.gather_latency_us * MICRO
        others = self.scatter_efficiency or 0.0, self.in_switch_efficiency or 0.0
        own = first, second, given[0], self.latency_us * MICRO, self.duplex
        return Link(*own, *reached, shared, *together, self.sharing, self.fabric, *others)


class InsideTable(Medium, frozen=True, kw_only=True):
    """`[servers.inside]`: how the devices of one server are joined.

    switch: each by its own link to a switch; shared-bus: all on one medium; full: a link per pair; ring; chain: a line
    carries_network: traffic of the network crosses the switch or the bus as well
    """

    topology: Literal["switch", "shared-bus", "full", "ring", "chain"]
    carries_network: bool = False


class NetworkTable(Medium, frozen=True, kw_only=True):
    """`[network]`: one switch that joins the servers, each by one card, or by one per device."""

    attach: Literal["server", "device"] = "server"


class SpineTable(FileTable, frozen=True, kw_only=True):
    """`[spine]`: a third level. The network's switch is one of several leaves, each of so many servers, that a spine joins.

    leaf: a switch a `rack` of servers, or one for each `rail` of them: for the first devices of all servers, the second, ...
    oversubscription: bandwidth of a leaf's cards together over that of its uplink, which has the network's efficiencies
    """

    servers: ServerCount
    leaf: Literal["rack", "rail"] = "rack"
    oversubscription: Annotated[float, within((1, 16), (1, 1e4), "times the bandwidth of an uplink")] = 1.0
    latency_us: LatencyMicroseconds = 0.0


class ServersTable(FileTable, frozen=True, kw_only=True):
    """One `[[servers]]`: `count` equal servers of `devices` equal accelerators, or of the `accelerators` listed.

    network_bandwidth_gbps: of their cards, where it is not that of `[network]`
    price_per_device_hour: of their devices, where it is not the file's
    """

    count: ServerCount = 1
    devices: DeviceCount | None = None
    accelerator: Text | None = None
    accelerators: Annotated[list[Text], msgspec.Meta(min_length=1)] | None = None
    inside: InsideTable | None = None
    network_bandwidth_gbps: NetworkGigabits | None = None
    price_per_device_hour: Price | None = None

    def network(self, where: str, network: NetworkTable | None) -> NetworkTable | None:
        """`[network]`, with the bandwidth of these servers' cards where they have one of their own."""
        if self.network_bandwidth_gbps is None:
            return network
        if network is None:
            raise ValueError(f"{where}.network_bandwidth_gbps: goes with a [network]; there is none")
        own = self.network_bandwidth_gbps
        return msgspec.structs.replace(network, bandwidth_gbps=own, bandwidth_gb_per_s=None)

    def names(self, where: str) -> list[str]:
        """Accelerators of one server by name."""
        if (self.accelerator is None) == (self.accelerators is None):
            raise ValueError(f"{where}: give exactly one of accelerator (a name) and accelerators (a list of names)")
        if self.accelerators is not None:
            if self.devices is not None:
                raise ValueError(f"{where}.devices: goes with accelerator; the list accelerators has a length already")
            return self.accelerators
        assert self.accelerator is not None
        return [self.accelerator] * (self.devices or 1)


class ClusterTable(FileTable, frozen=True, kw_only=True):
    """Keys of the whole machine in a cluster's file of either form.

    price_per_device_hour: in `currency`, of every device that has no price of its own
    """

    name: Name
    allreduce: AllReduce = "fastest"
    tensor_groups: TensorGroups = "server"
    sharing: Sharing = "fair"
    price_per_device_hour: Price | None = None
    currency: Currency = "USD"
    description: str = ""

    def prices(self, own: Sequence[float | None]) -> tuple[float, ...]:
        """The price of every device, from its own price or None; empty if no device has one. ValueError if only some have one."""
        found = [self.price_per_device_hour if one is None else one for one in own]
        known = tuple(one for one in found if one is not None)
        if known and len(known) < len(found):
            raise ValueError(
                f"$.price_per_device_hour: {len(found) - len(known)} of {len(found)} devices have no price of their own; "
                "give one for all of them"
            )
        return known


class CompactFile(ClusterTable, frozen=True, kw_only=True):
    """A cluster as servers and a network."""

    servers: Annotated[list[ServersTable], msgspec.Meta(min_length=1)]
    network: NetworkTable | None = None
    spine: SpineTable | None = None

    def named(self) -> dict[str, str]:
        """The path of the first key that names each accelerator, by its name."""
        found: dict[str, str] = {}
        for position, table in enumerate(self.servers):
            where = f"$.servers[{position}]"
            key = "accelerator" if table.accelerators is None else "accelerators"
            for name in table.names(where):
                found.setdefault(name, f"{where}.{key}")
        return found


class DeviceTable(FileTable, frozen=True, kw_only=True):
    """One `[[devices]]` of an explicit graph; devices with the same `server` stand in one."""

    name: Name
    accelerator: Text
    server: Name | None = None
    price_per_device_hour: Price | None = None


class SwitchTable(FileTable, frozen=True, kw_only=True):
    """One `[[switches]]` of an explicit graph."""

    name: Name


class LinkTable(Medium, frozen=True, kw_only=True):
    """One `[[links]]` of an explicit graph; links with the same `shared` label are one medium."""

    between: Annotated[list[Name], msgspec.Meta(min_length=2, max_length=2)]
    shared: Name | None = None


class GraphFile(ClusterTable, frozen=True, kw_only=True):
    """A cluster as an explicit graph."""

    devices: Annotated[list[DeviceTable], msgspec.Meta(min_length=1)]
    links: tuple[LinkTable, ...] = ()
    switches: tuple[SwitchTable, ...] = ()

    def named(self) -> dict[str, str]:
        """The path of the first key that names each accelerator, by its name."""
        found: dict[str, str] = {}
        for index, device in enumerate(self.devices):
            found.setdefault(device.accelerator, f"$.devices[{index}].accelerator")
        return found


FindAccelerator = Callable[[str, str], Accelerator]
"""(name or path, path of the key that says it) -> accelerator; ValueError if there is none."""


def build_graph(file: GraphFile, find: FindAccelerator) -> Cluster:
    """The cluster of an explicit graph."""
    found = {name: find(name, where) for name, where in file.named().items()}
    servers: dict[str, list[int]] = {}
    for index, device in enumerate(file.devices):
        # A device that names no server stands alone; a space cannot occur in a name, so this label is free.
        servers.setdefault(device.server or f" {device.name}", []).append(index)
    return Cluster(
        name=file.name,
        devices=tuple(found[device.accelerator] for device in file.devices),
        nodes=tuple(device.name for device in file.devices),
        switches=tuple(switch.name for switch in file.switches),
        servers=tuple(tuple(members) for members in servers.values()),
        links=tuple(
            link.link(f"$.links[{index}]", link.between[0], link.between[1], link.shared)
            for index, link in enumerate(file.links)
        ),
        allreduce=file.allreduce,
        tensor_groups=file.tensor_groups,
        prices=file.prices([device.price_per_device_hour for device in file.devices]),
        currency=file.currency,
        sharing=file.sharing,
    )


def build_compact(file: CompactFile, find: FindAccelerator, count: int | None = None) -> Cluster:
    """The cluster of servers and a network; `count` replaces the number of servers where there is one `[[servers]]`."""
    if count is not None and len(file.servers) != 1:
        raise ValueError(f"$.servers: name:count needs one [[servers]] table; this file has {len(file.servers)}")
    _check_size(file, count)
    found = {name: find(name, where) for name, where in file.named().items()}
    devices: list[Accelerator] = []
    prices: list[float | None] = []
    nodes: list[str] = []
    switches: list[str] = []
    servers: list[tuple[int, ...]] = []
    links: list[Link] = []
    for position, table in enumerate(file.servers):
        where = f"$.servers[{position}]"
        names = table.names(where)
        own = [found[name] for name in names]
        copies = table.count if count is None else count
        network = table.network(where, file.network)
        for _ in range(copies):
            server = f"server{len(servers)}"
            members = [f"{server}.device{index}" for index in range(len(names))]
            servers.append(tuple(range(len(devices), len(devices) + len(names))))
            devices.extend(own)
            prices.extend([table.price_per_device_hour] * len(own))
            nodes.extend(members)
            hub = _join_inside(table.inside, f"{where}.inside", server, members, switches, links)
            if network is not None:
                ends = [hub] if hub else members
                _join_network(
                    network, server, list(zip(ends, _leaves(file, len(servers) - 1, ends), strict=True)), links
                )
    if file.spine is not None and file.network is None:
        raise ValueError("$.spine: joins the leaves of a [network]; there is none")
    if file.network is not None:
        switches.extend(_join_leaves(file, links))
    elif len(servers) > 1:
        raise ValueError(f"$.network: {len(servers)} servers need a [network] to join them")
    places = tuple(devices), tuple(nodes), tuple(switches), tuple(servers), tuple(links)
    return Cluster(
        file.name,
        *places,
        allreduce=file.allreduce,
        tensor_groups=file.tensor_groups,
        prices=file.prices(prices),
        currency=file.currency,
        sharing=file.sharing,
    )


def _check_size(file: CompactFile, count: int | None) -> None:
    """Raise ValueError before anything is built if the cluster would have too many devices or links."""
    devices = links = 0
    for position, table in enumerate(file.servers):
        copies = table.count if count is None else count
        members = len(table.accelerators) if table.accelerators is not None else table.devices or 1
        full = table.inside is not None and table.inside.topology == "full"
        devices += copies * members
        links += copies * (members * (members - 1) // 2 if full else 2 * members)
        where = f"$.servers[{position}]: {copies} servers of {members} devices"
        if devices > MOST_DEVICES:
            raise ValueError(f"{where}: a cluster has at most {MOST_DEVICES} devices, this one {devices}")
        if links > MOST_LINKS:
            raise ValueError(f"{where}: a cluster has at most {MOST_LINKS} links, this one up to {links}")


def _join_inside(
    inside: InsideTable | None, where: str, server: str, members: list[str], switches: list[str], links: list[Link]
) -> str | None:
    """Add the links of one server; the switch through which its network traffic goes, if it does."""
    if inside is None:
        if len(members) > 1:
            raise ValueError(f"{where}: {len(members)} devices in a server need [servers.inside] to join them")
        return None
    hubbed = inside.topology in ("switch", "shared-bus")
    if inside.carries_network and not hubbed:
        raise ValueError(f"{where}.carries_network: goes with topology switch or shared-bus: {inside.topology}")
    if hubbed:
        hub = f"{server}.{'switch' if inside.topology == 'switch' else 'bus'}"
        switches.append(hub)
        shared = hub if inside.topology == "shared-bus" else None
        links.extend(inside.link(where, member, hub, shared) for member in members)
        return hub if inside.carries_network else None
    pairs = list(combinations(members, 2) if inside.topology == "full" else pairwise(members))
    if inside.topology == "ring" and len(members) > 2:
        pairs.append((members[-1], members[0]))
    links.extend(inside.link(where, *pair) for pair in pairs)
    return None


def _join_network(network: NetworkTable, server: str, ends: list[tuple[str, str]], links: list[Link]) -> None:
    """Add the links of one server to the network; ends: nodes of the server, and the switch to which each of them leads."""
    # Every device of a server reaches the network by the server's one card: one medium, as many links as ends.
    shared = f"{server}.network" if network.attach == "server" else None
    links.extend(network.link("$.network", end, switch, shared) for end, switch in ends)


def _leaves(file: CompactFile, server: int, ends: list[str]) -> list[str]:
    """The switch of the network that each end of a server leads to: one for all, or its leaf."""
    if file.spine is None:
        return ["network"] * len(ends)
    rack = f"rack{server // file.spine.servers}"
    if file.spine.leaf == "rack":
        return [rack] * len(ends)
    if file.network is None or file.network.attach != "device":
        raise ValueError('$.spine.leaf = "rail": goes with a card a device ($.network.attach = "device")')
    return [f"{rack}.rail{index}" for index in range(len(ends))]


def _join_leaves(file: CompactFile, links: list[Link]) -> list[str]:
    """Add the uplinks of all leaves; the switches of the network."""
    if file.network is None or file.spine is None:
        return ["network"]
    cards: dict[str, dict[str, float]] = {}
    for link in links:
        if link.second.startswith("rack"):
            cards.setdefault(link.second, {})[link.shared or link.first] = link.bandwidth
    for leaf, those in cards.items():
        uplink = file.network.link("$.network", leaf, "spine")
        bandwidth = sum(those.values()) / file.spine.oversubscription
        links.append(replace(uplink, bandwidth=bandwidth, latency=file.spine.latency_us * MICRO))
    return [*cards, "spine"]
