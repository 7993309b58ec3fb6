"""Cluster files: what the TOML file of a cluster may say, and the devices and links that it describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
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

NetworkGigabits = Annotated[float, within((0.1, 10_000), (1e-6, 1e7), "10^9 bits/s")]
LinkRate = Annotated[float, within((0.01, 5000), (1e-7, 1e6), "10^9 bytes/s")]
LatencyMicroseconds = Annotated[float, within((0.01, 10_000), (0, 1e7), "microseconds")]
DeviceCount = Annotated[int, within((1, 1024), (1, MOST_DEVICES), "devices of a server")]
Price = Annotated[float, within((0.01, 1000), (0, 1e6), "per device and hour, in the file's currency")]
Currency = Annotated[str, msgspec.Meta(min_length=1, max_length=20)]
ServerCount = Annotated[int, within((1, 20_000), (1, MOST_DEVICES), "servers")]
SideCounts = Annotated[
    list[Annotated[int, msgspec.Meta(ge=2, le=MOST_DEVICES)]], msgspec.Meta(min_length=1, max_length=6)
]
NetworkTopology = Literal["switch", "full", "ring", "chain", "torus", "mesh"]
SIDED = "torus", "mesh", "tree"
"""Topologies that have sides."""


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


def check_sides(where: str, topology: str, sides: list[int] | None, count: int, of: str) -> None:
    """Raise ValueError unless a torus, a mesh or a tree, and nothing else, has sides whose product is the number of its nodes."""
    if (sides is None) == (topology in SIDED):
        rule = "needs them, as in sides = [4, 4]" if sides is None else "has none; they go with " + ", ".join(SIDED)
        raise ValueError(f"{where}.sides: topology {topology} {rule}")
    if sides is not None and prod(sides) != count:
        raise ValueError(f"{where}.sides = {sides}: hold {prod(sides)} {of}, of which there are {count}")


class InsideTable(Medium, frozen=True, kw_only=True):
    """`[servers.inside]`: how the devices of one server are joined.

    switch: each by its own link to a switch; shared-bus: all on one medium; tree: switches of `sides[0]` devices, that links as
    wide join by `sides[1]` to the next switch, to one root; full: a link per pair; ring; chain: a line; torus and mesh: a grid
    whose rows are rings or lines
    carries_network: traffic of the network crosses the switch or the bus as well
    """

    topology: Literal["switch", "shared-bus", "tree", "full", "ring", "chain", "torus", "mesh"]
    sides: SideCounts | None = None
    carries_network: bool = False


class NetworkTable(Medium, frozen=True, kw_only=True):
    """`[network]`: a switch, or cables, that join the servers, each by a card, by several, or by one per device.

    cards: of a server, which equal runs of its devices share, or that stand on as many switches of its tree
    topology: `switch`, or how cables join the servers without one: their switches that carry the network, or the cards of
        their first devices, of the second, ...
    """

    attach: Literal["server", "device"] = "server"
    cards: Annotated[int, within((1, 16), (1, 1024), "cards of a server")] = 1
    topology: NetworkTopology = "switch"
    sides: SideCounts | None = None


class TrunkTable(FileTable, frozen=True, kw_only=True):
    """A level of switches below which stand those of the level before, each of so many `servers`.

    oversubscription: bandwidth of what is below a switch over that of its other links, which have the network's efficiencies
    topology: `switch` above all of them, or how cables join them without one (`full` between groups is a dragonfly)
    """

    servers: ServerCount
    oversubscription: Annotated[float, within((1, 16), (1, 1e4), "times the bandwidth of an uplink")] = 1.0
    latency_us: LatencyMicroseconds = 0.0
    topology: NetworkTopology = "switch"
    sides: SideCounts | None = None


class SpineTable(TrunkTable, frozen=True, kw_only=True):
    """`[spine]`: a third level. The network's switch is one of several leaves, each of so many servers, that a spine joins.

    leaf: a switch a `rack` of servers, or one for each `rail` of them: for the first cards of all servers, the second, ...
    """

    leaf: Literal["rack", "rail"] = "rack"


class CoreTable(TrunkTable, frozen=True, kw_only=True):
    """`[core]`: a fourth level (a fat tree of three levels of switches). The spine is one of several, each of so many servers."""


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
    core: CoreTable | None = None

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
