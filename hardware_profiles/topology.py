"""Topology: which devices, servers and switches links join, and the routes of messages between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, takewhile
from math import inf
from typing import TYPE_CHECKING

from hardware_profiles.grids import Grid, find_grid
from hardware_profiles.links import Channel, Link, channels_of

if TYPE_CHECKING:
    import networkx

ROUTING_BYTES = 2**20
"""A route is the path on which a message of this size would arrive first (bytes)."""

ROUNDING = 1e-12
"""Relative tolerance: more than the rounding of a sum of the same seconds in another order."""

Place = tuple[int, ...]
"""Indices of nested components, the largest first, as in `Topology.places`."""


def common(one: Place, other: Place) -> Place:
    """The smallest component that contains both."""
    return tuple(both[0] for both in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))


@dataclass(frozen=True)
class Topology:
    """A graph of devices, switches and links.

    name: for errors; the others: as of a `Cluster`
    channels: of all links; hops: index of the channel from a node to the next one

    Raises ValueError for duplicate names, links to nodes that do not exist, devices in no or two servers,
    devices that cannot reach one another, and links that share a medium but disagree about it.
    """

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    servers: tuple[tuple[int, ...], ...]
    links: tuple[Link, ...]
    channels: tuple[Channel, ...] = field(init=False, compare=False)
    hops: Mapping[tuple[str, str], int] = field(init=False, repr=False, compare=False)
    _routes: dict[tuple[int, int], tuple[int, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _depths: dict[int, tuple[list[int], list[Place]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._check_nodes()
        channels, hops = channels_of(self.links)
        object.__setattr__(self, "channels", channels)
        object.__setattr__(self, "hops", hops)
        self._check_connected()

    # ----------------------------------------------------------------------------------------------- places

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """For each device the indices of the components that contain it, the largest first (pod, rack, server), then its place in
        its server.
        """
        found: list[Place] = [()] * len(self.nodes)
        for number, server in enumerate(self.servers):
            components = tuple(labels[number] for labels in self._components)
            for place, device in enumerate(server):
                found[device] = (*components, number, place)
        return tuple(found)

    @property
    def depth(self) -> int:
        """Number of nested components around each device; its server is the innermost."""
        return len(self._components) + 1

    def in_components(self, devices: Iterable[int], depth: int) -> list[list[int]]:
        """Devices grouped by component at a depth: 0 for all in one group, `depth` for servers; empty groups are left out."""
        turn, (component, _) = self._order, self.numbered(depth)
        groups: dict[int, list[int]] = {}
        for device in sorted(devices, key=turn.__getitem__):
            groups.setdefault(component[device], []).append(device)
        return list(groups.values())

    @cached_property
    def _order(self) -> list[int]:
        """The place of each device among all of them, component by component."""
        order = sorted(range(len(self.nodes)), key=self.places.__getitem__)
        return sorted(range(len(order)), key=order.__getitem__)

    @cached_property
    def seats(self) -> list[int]:
        """The place of each device in its server."""
        return [place[-1] for place in self.places]

    def numbered(self, depth: int) -> tuple[list[int], list[Place]]:
        """For each device the index of its component at a depth, and the component of each index."""
        if depth not in self._depths:
            known: dict[Place, int] = {}
            numbers = [known.setdefault(place[:depth], len(known)) for place in self.places]
            self._depths[depth] = numbers, list(known)
        return self._depths[depth]

    def by_server(self, devices: Iterable[int]) -> list[list[int]]:
        """Devices grouped by server; servers without any are left out."""
        return self.in_components(devices, self.depth)

    def together(self, devices: Iterable[int]) -> int:
        """Depth of the smallest component that contains all of some devices: `depth` for one server, 0 for the whole."""
        places = [self.places[device][:-1] for device in devices]
        return len(common(min(places), max(places)))

    def parted(self, devices: Iterable[int]) -> int:
        """Depth of the largest components that separate some devices; that of servers, if all are in one.

        What they send each other leaves these components, and shares the links on which others leave them.
        """
        return min(self.together(devices) + 1, self.depth)

    def even_levels(self, several: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """Levels at which all components hold equally many of each group of devices, as pairs (devices per component, depth).

        The devices themselves are the first level, the whole is the last; of several with as many devices the innermost counts.
        """
        depths = {len(several[0]): 0}
        for depth in range(1, self.depth + 1):
            sizes = {len(part) for devices in several for part in self.in_components(devices, depth)}
            if len(sizes) == 1 and (size := sizes.pop()) < len(several[0]):
                depths[size] = depth
        return sorted((depths | {1: self.depth + 1}).items())

    @cached_property
    def _components(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the components that the servers are in: for each size of several servers, though not all, the largest first.

        A component is what links join that lead to no switch farther from devices than so many hops: racks one, pods two.
        Links between switches that are as far join what is next: groups of a dragonfly are racks.
        """
        if not self._trunks:
            return ()
        near = self.hops_from_devices
        above = {self.nodes[device]: f" {number}" for number, server in enumerate(self.servers) for device in server}

        def top(node: str) -> str:
            while (over := above.get(node, node)) != node:
                above[node] = above.get(over, over)
                node = over
            return node

        found = [tuple(range(len(self.servers)))]
        levels = [
            max(near[one.first], near[one.second]) + (near[one.first] == near[one.second] > 0) for one in self.links
        ]
        for hops in range(1, max(levels)):
            for link, level in zip(self.links, levels, strict=True):
                if level <= hops:
                    above[top(link.first)] = top(link.second)
            known: dict[str, int] = {}
            labels = tuple(known.setdefault(top(f" {number}"), len(known)) for number in range(len(self.servers)))
            if 1 < len(known) < len(set(found[-1])):
                found.append(labels)
        return tuple(found[:0:-1])

    @cached_property
    def hops_from_devices(self) -> dict[str, int]:
        """Links from each node to the nearest device, nodes near to them first."""
        near, waiting = dict.fromkeys(self.nodes, 0), list(self.nodes)
        for node in waiting:  # which grows
            for other in self.neighbours[node]:
                if other not in near:
                    near[other] = near[node] + 1
                    waiting.append(other)
        return near

    @cached_property
    def neighbours(self) -> dict[str, list[str]]:
        """Nodes at the other ends of each node's links."""
        found: dict[str, list[str]] = {node: [] for node in (*self.nodes, *self.switches)}
        for tail, head in self.hops:
            found[tail].append(head)
        return found

    @cached_property
    def _trunks(self) -> list[set[str]]:
        """Ends of the links between two switches."""
        switches = set(self.switches)
        ends = ({link.first, link.second} for link in self.links)
        return [trunk for trunk in ends if trunk <= switches]

    # ----------------------------------------------------------------------------------------------- routes

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Indices of the channels from one device to another, in order; none on the same device.

        The path on which ROUTING_BYTES arrive first, were every hop stored and forwarded; among equals the
        one that the order of the links puts first. Raises ValueError for a device id that does not exist.
        """
        known = self._routes.get((source, destination))
        if known is None:
            self.check_ids((source, destination))
            if source == destination:
                return ()
            ends = self.nodes[source], self.nodes[destination]
            path = self._path_over_switches(*ends) or self._path_in_grid(*ends) or self._searched_path(*ends)
            # A bus is entered and left over one medium: its channel counts once.
            known = tuple(dict.fromkeys(self.hops[hop] for hop in pairwise(path)))
            self._routes[source, destination] = known
        return known

    def _path_over_switches(self, source: str, destination: str) -> tuple[str, ...] | None:
        """The quickest path between two devices of a cluster of stars; None elsewhere, and where two are equally quick.

        One switch is passed, or one cable; between two leaves their uplinks. A way over more of them passes a leaf and more, or
        one star again and again, and one over several cables leads to where one cable does: it takes longer.
        """
        stars = self.stars
        if not stars:
            return None
        ways: list[tuple[float, tuple[str, ...]]] = [
            (2.0 * one[0], (source, one[1], destination)) for one in stars[source] if one in stars[destination]
        ]
        if destination in self.cabled.get(source, ()):
            ways.append((self._hop_seconds(self.hops[source, destination]), (source, destination)))
        if not ways:
            near, far = (
                next(switch for _, switch in stars[end] if switch in self.uplinks) for end in (source, destination)
            )
            return source, near, self.uplinks[near], far, destination
        ways.sort()
        if len(ways) > 1 and ways[0][0] >= ways[1][0] * (1.0 - ROUNDING):
            return None
        return ways[0][1]

    def _path_in_grid(self, source: str, destination: str) -> tuple[str, ...] | None:
        """The path along the sides of the grid that holds two devices; None in no grid, and where a way out may be quicker."""
        places, way_out = self._grids
        if source not in places or destination not in places:
            return None
        (nodes, grid, step, here), (others, _, _, there) = places[source], places[destination]
        path = grid.path(here, there) if nodes is others else []
        return tuple(nodes[place] for place in path) if path and (len(path) - 1) * step <= 2 * way_out else None

    @cached_property
    def _grids(self) -> tuple[dict[str, tuple[tuple[str, ...], Grid, float, int]], float]:
        """Of each device in a grid of equal cables, of all devices or of those of a server, its nodes, it, the seconds of
        ROUTING_BYTES over one of them, and the device's place; the least such seconds over a link that is in none.
        """
        found: dict[str, tuple[tuple[str, ...], Grid, float, int]] = {}
        inside = set[tuple[str, str]]()
        for members in (range(len(self.nodes)), *self.servers):
            nodes = tuple(self.nodes[member] for member in members)
            grid = None if nodes[0] in found else find_grid(nodes, self.cabled)
            if grid is None:
                continue
            hops = [(nodes[one], nodes[other]) for those in grid.hops() for one, other in those]
            seconds = {self._hop_seconds(self.hops[hop]) for hop in hops}
            if len(seconds) == 1:
                found |= {node: (nodes, grid, min(seconds), place) for place, node in enumerate(nodes)}
                inside.update(hops)
        out = (self._hop_seconds(index) for hop, index in self.hops.items() if hop not in inside)
        return found, min(out, default=inf)

    @cached_property
    def uplinks(self) -> dict[str, str]:
        """The spine that each leaf is joined to, in a cluster all of whose links between switches lead to one of them."""
        spines = sorted(set.intersection(*self._trunks)) if self._trunks else []
        if len(spines) != 1:
            return {}
        return {leaf: spines[0] for trunk in self._trunks for leaf in trunk if leaf != spines[0]}

    @cached_property
    def cabled(self) -> dict[str, set[str]]:
        """Devices at the other ends of each device's cables; those without such cables are left out."""
        cabled: dict[str, set[str]] = {}
        devices = set(self.nodes)
        for link in self.links:
            if link.first in devices and link.second in devices:
                cabled.setdefault(link.first, {link.first}).add(link.second)
                cabled.setdefault(link.second, {link.second}).add(link.first)
        return cabled

    @cached_property
    def stars(self) -> dict[str, list[tuple[float, str]]]:
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
            seconds = self._hop_seconds(self.hops[link.first, link.second])
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
        if any(self.cabled[other] != those for those in self.cabled.values() for other in those):
            return {}
        if not self._meet(joined):
            return {}
        known: dict[tuple[str, ...], list[tuple[float, str]]] = {}  # devices of a server share theirs
        for switches in set(map(tuple, joined.values())):
            known[switches] = sorted((quickest[switch], switch) for switch in switches)
        return {device: known[tuple(switches)] for device, switches in joined.items()}

    def _meet(self, joined: Mapping[str, Sequence[str]]) -> bool:
        """Whether all devices meet at one switch, or each on one leaf of the spine with all on its star or at its cables.

        joined: switches of each device
        """
        if not self._trunks:
            return bool(set.intersection(*map(set, joined.values())))
        leaves = {device: [one for one in those if one in self.uplinks] for device, those in joined.items()}
        if any(len(those) != 1 for those in leaves.values()) or set(self.uplinks.values()) & set().union(
            *joined.values()
        ):
            return False
        near = [(device, other) for device, others in self.cabled.items() for other in others]
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
        """The topology: one edge per direction of a link, with the `seconds` of ROUTING_BYTES."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        graph.add_nodes_from((*self.nodes, *self.switches))
        for (tail, head), index in self.hops.items():
            graph.add_edge(tail, head, seconds=self._hop_seconds(index))
        return graph

    @cached_property
    def lone_channels(self) -> frozenset[int]:
        """Channels that a single hop uses."""
        return frozenset(channel for channel, hops in Counter(self.hops.values()).items() if hops == 1)

    # ----------------------------------------------------------------------------------------------- checks

    def check_ids(self, devices: Iterable[int]) -> None:
        for device in devices:
            if not 0 <= device < len(self.nodes):
                raise ValueError(f"{self.name}: device ids run from 0 to {len(self.nodes) - 1}: {device}")

    def _check_nodes(self) -> None:
        names = Counter((*self.nodes, *self.switches))
        repeated = [name for name, count in names.items() if count > 1]
        if repeated:
            raise ValueError(f"{self.name}: devices and switches have names of their own; {repeated[0]!r} is repeated")
        housed = Counter(device for server in self.servers for device in server)
        if housed != Counter(range(len(self.nodes))):
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
        reached, waiting = {self.nodes[0]}, [self.nodes[0]]
        while waiting:
            new = set(self.neighbours[waiting.pop()]) - reached
            reached |= new
            waiting.extend(new)
        for device, node in enumerate(self.nodes):
            if node not in reached:
                raise ValueError(
                    f"{self.name}: device {device} ({node}) is not connected to device 0 ({self.nodes[0]}); add a link"
                )


def _listed(names: Iterable[str], most: int = 12) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (", ..." if len(ordered) > most else "")
