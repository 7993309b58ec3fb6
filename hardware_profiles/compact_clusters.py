"""Compact clusters: the devices, switches and links of servers, their network, and the levels of switches above it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

from hardware_profiles.accelerator import Accelerator
from hardware_profiles.cluster import Cluster
from hardware_profiles.cluster_files import (
    CompactFile,
    FindAccelerator,
    InsideTable,
    NetworkTable,
    ServersTable,
    TrunkTable,
    check_sides,
)
from hardware_profiles.file_tables import MICRO
from hardware_profiles.links import Link
from hardware_profiles.numbers import MOST_DEVICES
from hardware_profiles.wiring import Sides, cables, most_cables

MOST_LINKS = 65_536
"""Links of a cluster at most: a full topology of n devices has n (n - 1) / 2."""


@dataclass
class _Parts:
    """What is built so far.

    ends: of each server, the nodes at which the network begins, each with the number of its card
    media: of each server, what its cards are
    """

    devices: list[Accelerator] = field(default_factory=list)
    prices: list[float | None] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    servers: list[tuple[int, ...]] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    ends: list[list[tuple[str, int]]] = field(default_factory=list)
    media: list[NetworkTable] = field(default_factory=list)


def build_compact(file: CompactFile, find: FindAccelerator, count: int | None = None) -> Cluster:
    """The cluster of servers and a network; `count` replaces the number of servers where there is one `[[servers]]`."""
    if count is not None and len(file.servers) != 1:
        raise ValueError(f"$.servers: name:count needs one [[servers]] table; this file has {len(file.servers)}")
    _check_size(file, count)
    found = {name: find(name, where) for name, where in file.named().items()}
    parts = _Parts()
    for position, table in enumerate(file.servers):
        where = f"$.servers[{position}]"
        own = [found[name] for name in table.names(where)]
        network = table.network(where, file.network)
        for _ in range(table.count if count is None else count):
            _add_server(parts, table, own, where, network)
    if file.spine is not None and file.network is None:
        raise ValueError("$.spine: joins the leaves of a [network]; there is none")
    if file.core is not None and file.spine is None:
        raise ValueError("$.core: joins the spines of a [spine]; there is none")
    if file.network is not None:
        _join_servers(parts, file, file.network)
    elif len(parts.servers) > 1:
        raise ValueError(f"$.network: {len(parts.servers)} servers need a [network] to join them")
    return Cluster(
        file.name,
        *(tuple(parts.devices), tuple(parts.nodes), tuple(parts.switches), tuple(parts.servers), tuple(parts.links)),
        allreduce=file.allreduce,
        tensor_groups=file.tensor_groups,
        prices=file.prices(parts.prices),
        currency=file.currency,
        sharing=file.sharing,
    )


def _check_size(file: CompactFile, count: int | None) -> None:
    """Raise ValueError before anything is built if the cluster would have too many devices or links."""
    devices = links = servers = 0
    for position, table in enumerate(file.servers):
        copies = table.count if count is None else count
        members = len(table.accelerators) if table.accelerators is not None else table.devices or 1
        inside = table.inside
        devices += copies * members
        servers += copies
        links += copies * (2 * members if inside is None else most_cables(inside.topology, members, inside.sides))
        where = f"$.servers[{position}]: {copies} servers of {members} devices"
        if devices > MOST_DEVICES:
            raise ValueError(f"{where}: a cluster has at most {MOST_DEVICES} devices, this one {devices}")
        if links > MOST_LINKS:
            raise ValueError(f"{where}: a cluster has at most {MOST_LINKS} links, this one up to {links}")
    if file.network is not None and file.network.topology == "full":
        links += most_cables("full", servers, None)
    if links > MOST_LINKS:
        raise ValueError(f"$.network: a cluster has at most {MOST_LINKS} links, this one up to {links}")


def _add_server(
    parts: _Parts, table: ServersTable, own: Sequence[Accelerator], where: str, network: NetworkTable | None
) -> None:
    """Add a server of some devices, and find where the network begins at it."""
    server, first = f"server{len(parts.servers)}", len(parts.devices)
    members = [f"{server}.device{index}" for index in range(len(own))]
    parts.servers.append(tuple(range(first, first + len(own))))
    parts.devices.extend(own)
    parts.prices.extend([table.price_per_device_hour] * len(own))
    parts.nodes.extend(members)
    levels = _join_inside(parts, table.inside, f"{where}.inside", server, members)
    if network is not None:
        parts.ends.append(_ends(network, levels, members))
        parts.media.append(network)


def _join_inside(
    parts: _Parts, inside: InsideTable | None, where: str, server: str, members: list[str]
) -> list[list[str]]:
    """Add the links of one server; its switches that carry the network, level by level from the devices to the root."""
    if inside is None:
        if len(members) > 1:
            raise ValueError(f"{where}: {len(members)} devices in a server need [servers.inside] to join them")
        return []
    check_sides(where, inside.topology, inside.sides, len(members), "devices")
    if inside.topology not in ("switch", "shared-bus", "tree"):
        if inside.carries_network:
            raise ValueError(
                f"{where}.carries_network: goes with topology switch, shared-bus or tree: {inside.topology}"
            )
        pairs = cables(inside.topology, members, inside.sides)
        parts.links.extend(inside.link(where, *pair) for pair in pairs)
        return []
    root = f"{server}.{'bus' if inside.topology == 'shared-bus' else 'switch'}"
    shared = root if inside.topology == "shared-bus" else None
    levels = _tree(inside.sides or [len(members)], root)
    for below, above in pairwise([members, *levels]):
        width = len(below) // len(above)
        parts.links.extend(inside.link(where, node, above[place // width], shared) for place, node in enumerate(below))
        parts.switches.extend(above)
    return levels if inside.carries_network else []


def _tree(sides: Sides, root: str) -> list[list[str]]:
    """The switches of a tree by name, from those above the devices to its root."""
    counts = [prod(sides[level + 1 :]) for level in range(len(sides))]
    return [
        [f"{root}{level}.{place}" for place in range(count)] if count > 1 else [root]
        for level, count in enumerate(counts)
    ]


def _ends(network: NetworkTable, levels: Sequence[Sequence[str]], members: Sequence[str]) -> list[tuple[str, int]]:
    """The nodes of a server at which the network begins, each with the number of its card."""
    cards = network.cards
    if levels:
        found = next((level for level in levels if len(level) == cards), None)
        if found is None:
            counts = ", ".join(str(len(level)) for level in levels)
            raise ValueError(
                f"$.network.cards = {cards}: stand on the switches that carry the network, of which a server has {counts}"
            )
        return [(node, card) for card, node in enumerate(found)]
    if network.attach == "device":
        if cards > 1:
            raise ValueError(
                f'$.network.cards = {cards}: goes with attach = "server"; each device has a card of its own'
            )
        return [(node, card) for card, node in enumerate(members)]
    if cards > len(members):
        raise ValueError(f"$.network.cards = {cards}: a server of {len(members)} devices has at most as many")
    return [(node, place * cards // len(members)) for place, node in enumerate(members)]


def _join_servers(parts: _Parts, file: CompactFile, network: NetworkTable) -> None:
    """Add the links between servers, and the switches that they lead to."""
    check_sides("$.network", network.topology, network.sides, len(parts.servers), "servers")
    if network.topology != "switch":
        if file.spine is not None:
            raise ValueError(f'$.spine: joins switches of a network with topology = "switch": {network.topology}')
        _cable_servers(parts, network)
        return
    leaves: dict[str, int] = {}
    for server, ends in enumerate(parts.ends):
        # What several devices of a server reach the network by, a card, is one medium.
        labels = {card: f"server{server}.network{card if network.cards > 1 else ''}" for _, card in ends}
        alone = network.attach == "device"
        for end, card in ends:
            leaf = _leaf(file, server, card)
            leaves.setdefault(leaf, server)
            parts.links.append(parts.media[server].link("$.network", end, leaf, None if alone else labels[card]))
    parts.switches.extend(leaves)
    if file.spine is not None:
        _join_switches(parts, file, network, leaves)


def _cable_servers(parts: _Parts, network: NetworkTable) -> None:
    """Add the cables of a network without a switch: between the first cards of servers, the second, ..."""
    counts = sorted({len(ends) for ends in parts.ends})
    if len(counts) > 1 or counts[0] != len({card for _, card in parts.ends[0]}):
        raise ValueError(
            f"$.network.topology = {network.topology!r}: needs servers with equally many cards, each of a device "
            '(attach = "device") or of a switch that carries the network'
        )
    for ends in zip(*parts.ends, strict=True):
        medium = {node: own for (node, _), own in zip(ends, parts.media, strict=True)}
        for first, second in cables(network.topology, list(medium), network.sides):
            both = [medium[node].link("$.network", first, second) for node in (first, second)]
            parts.links.append(min(both, key=lambda link: link.bandwidth))


def _leaf(file: CompactFile, server: int, card: int) -> str:
    """The switch of the network that a card of a server leads to: one for all, or its leaf."""
    if file.spine is None:
        return "network"
    rack = f"rack{server // file.spine.servers}"
    if file.spine.leaf == "rack":
        return rack
    if file.network is None or (file.network.attach != "device" and file.network.cards == 1):
        raise ValueError(
            '$.spine.leaf = "rail": goes with a card a device ($.network.attach = "device"), or several a server'
        )
    return f"{rack}.rail{card}"


def _join_switches(parts: _Parts, file: CompactFile, network: NetworkTable, leaves: dict[str, int]) -> None:
    """Add the levels above the leaves of a network; leaves: the first server below each."""
    assert file.spine is not None
    below: dict[str, dict[str, float]] = {leaf: {} for leaf in leaves}
    for link in parts.links:
        if link.second in below:
            below[link.second][link.shared or link.first] = link.bandwidth
    widths = {leaf: sum(cards.values()) for leaf, cards in below.items()}
    if file.core is None:
        _join_level(parts, network, "spine", file.spine, widths, dict.fromkeys(leaves, "spine"))
        return
    if file.core.servers % file.spine.servers:
        raise ValueError(
            f"$.core.servers = {file.core.servers}: must be a multiple of $.spine.servers = {file.spine.servers}"
        )
    if file.spine.topology != "switch":
        raise ValueError(f"$.core: joins spines; $.spine.topology is {file.spine.topology}, not switch")
    spines = {leaf: f"spine{server // file.core.servers}" for leaf, server in leaves.items()}
    above = _join_level(parts, network, "spine", file.spine, widths, spines)
    _join_level(parts, network, "core", file.core, above, dict.fromkeys(above, "core"))


def _join_level(
    parts: _Parts,
    network: NetworkTable,
    name: str,
    table: TrunkTable,
    widths: dict[str, float],
    above: dict[str, str],
) -> dict[str, float]:
    """Add the links of some switches to those above them, or among them.

    widths: bytes/s of what is below each; above: the switch that each leads to. Returns the widths of these.
    """
    check_sides(f"$.{name}", table.topology, table.sides, len(widths), "switches")
    pairs: Iterable[tuple[str, str]] = (
        above.items() if table.topology == "switch" else cables(table.topology, list(widths), table.sides)
    )
    pairs = list(pairs)
    ends = Counter(node for pair in pairs for node in pair)
    wide = {node: width / table.oversubscription / ends[node] for node, width in widths.items() if ends[node]}
    found = dict[str, float]()
    for first, second in pairs:
        bandwidth = min(wide[first], wide.get(second, wide[first]))
        found[second] = found.get(second, 0.0) + bandwidth
        uplink = network.link("$.network", first, second)
        parts.links.append(replace(uplink, bandwidth=bandwidth, latency=table.latency_us * MICRO))
    if table.topology == "switch":
        parts.switches.extend(found)
    return found
