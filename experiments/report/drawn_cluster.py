"""Drawn clusters: which devices, switches and links a picture of a cluster has, and where; like ones are folded into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, cos, pi, prod, sin, sqrt

from hardware_profiles import Cluster, Grid, find_grid
from simulator import LinkLoads

MOST_DEVICES = 40
"""Devices that are drawn one by one; of more, like components are folded."""

MOST_IN_A_ROW = 16
"""Devices of a server that are drawn one by one where others are folded and all are on the same switches."""

MOST_OF_A_SIDE = 4
"""Devices along a side of a large grid."""

Point = tuple[float, float]
Component = tuple[int, ...]
"""Numbers of the nested components that lead to one."""


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A device or a switch: its name, its accelerator or "", where it is, and for how many it stands.

    framed: whether it is drawn in the frame of a server; servers: for how many this one stands, 1 without
    """

    name: str
    accelerator: str
    place: Point
    count: int
    framed: bool
    servers: int


@dataclass(frozen=True, slots=True)
class DrawnLink:
    """A link between two drawn nodes: bytes/s and seconds of one, and of the busiest that it stands for the part of the iteration
    that it is busy, None without a plan.

    bent: as straight it would run through other nodes
    """

    first: str
    second: str
    bandwidth: float
    latency: float
    busy: float | None
    bent: bool


@dataclass(frozen=True, slots=True)
class DrawnServer:
    """The frame of a server: its corners, and for how many it stands."""

    low: Point
    high: Point
    count: int


@dataclass(frozen=True, slots=True)
class DrawnCluster:
    """What a picture of a cluster has. note: what is left out, in words; "" if nothing is."""

    nodes: tuple[DrawnNode, ...]
    links: tuple[DrawnLink, ...]
    servers: tuple[DrawnServer, ...]
    note: str


def drawn_cluster(cluster: Cluster, loads: LinkLoads | None = None) -> DrawnCluster:
    """What a picture of a cluster has."""
    topology = cluster.topology
    whole = None if topology.switches else find_grid(topology.nodes, topology.cabled)
    stands = _stand_ins(cluster, whole)
    counts = Counter(stands.values() if whole is None else set(stands.values()))
    kept = [node for node in (*topology.nodes, *topology.switches) if stands[node] == node]
    places, blocks = _places(cluster, kept, whole)
    names = dict(zip(topology.nodes, (device.name for device in cluster.devices), strict=True))
    servers = _servers(blocks, places, counts)
    framed = {node: server.count for own, server in zip(blocks.values(), servers, strict=True) for node in own}
    nodes = tuple(
        DrawnNode(node, names.get(node, ""), places[node], counts[node], node in framed, framed.get(node, 1))
        for node in kept
    )
    return DrawnCluster(nodes, _links(cluster, loads, stands, places), servers, _note(cluster, counts, whole))


def _note(cluster: Cluster, counts: Mapping[str, int], whole: Grid | None) -> str:
    if whole is None:
        return "× N: what is drawn stands for N like ones" if max(counts.values()) > 1 else ""
    if len(counts) < len(cluster.devices):
        sides = " × ".join(map(str, whole.sides))
        return f"{sides} devices, of which at most {MOST_OF_A_SIDE} along each side are drawn"
    return ""


# ----------------------------------------------------------------------------------------------- folding


def _stand_ins(cluster: Cluster, whole: Grid | None) -> dict[str, str]:
    """For each node the one that is drawn for it."""
    topology = cluster.topology
    every = (*topology.nodes, *topology.switches)
    if len(cluster.devices) <= MOST_DEVICES or (whole is not None and max(whole.sides) <= MOST_OF_A_SIDE):
        return {node: node for node in every}
    if whole is not None:
        return {node: topology.nodes[_cut(whole, place)] for place, node in enumerate(topology.nodes)}
    likeness = cluster.collectives.likeness
    if not likeness.forms:
        return _by_server(cluster)
    inner: dict[Component, list[Component]] = {}
    for component in sorted(likeness.forms):
        inner.setdefault(component[:-1], []).append(component)
    first: dict[Component, Component] = {(): ()}
    for component in sorted(likeness.forms, key=len):
        alike = (one for one in inner[first[component[:-1]]] if likeness.forms[one] == likeness.forms[component])
        first[component] = next(alike)
    named = {role: node for node, role in likeness.roles.items()}
    stands = {node: named[first[component], number] for node, (component, number) in likeness.roles.items()}
    return _devices_folded(cluster, stands)


def _cut(grid: Grid, place: int) -> int:
    """The place along whose sides nothing is farther than the drawn part of a grid."""
    found, stride = 0, 1
    for side in reversed(grid.sides):
        found += min(place // stride % side, MOST_OF_A_SIDE - 1) * stride
        stride *= side
    return found


def _devices_folded(cluster: Cluster, stands: Mapping[str, str]) -> dict[str, str]:
    """The stand-ins, where of many devices of a server on the same switches the first stands for all."""
    topology, switches, first = cluster.topology, set(cluster.switches), dict[Hashable, str]()
    again = {}
    for server, members in enumerate(cluster.servers):
        for member in members if len(members) > MOST_IN_A_ROW else ():
            node = topology.nodes[member]
            if switches.issuperset(topology.neighbours[node]):
                look = server, cluster.devices[member].name, tuple(topology.neighbours[node])
                again[node] = first.setdefault(look, node)
    return {node: again.get(one, one) for node, one in stands.items()}


def _by_server(cluster: Cluster) -> dict[str, str]:
    """The first device of each server stands for all of it, but for its switches that others lead to."""
    topology = cluster.topology
    return {node: node for node in topology.switches} | {
        topology.nodes[member]: topology.nodes[members[0]] for members in cluster.servers for member in members
    }


# ------------------------------------------------------------------------------------------------ places


def _places(cluster: Cluster, kept: Sequence[str], whole: Grid | None) -> tuple[dict[str, Point], dict[int, list[str]]]:
    """Where each drawn node is, and the nodes of each server."""
    topology, drawn = cluster.topology, set(kept)
    if whole is not None:
        members = [node for node in topology.nodes if node in drawn]
        cut = MOST_OF_A_SIDE if len(members) < len(topology.nodes) else len(topology.nodes)
        points = _grid_places([min(side, cut) for side in whole.sides], whole.closed)
        return dict(zip(members, points, strict=True)), {}
    blocks, places = dict[int, list[str]](), dict[str, Point]()
    home = _homes(cluster)
    for server, housed in enumerate(cluster.servers):
        own = [topology.nodes[member] for member in housed if topology.nodes[member] in drawn]
        if own:
            blocks[server] = own
    outer = [node for node in topology.switches if node in drawn and node not in home]
    inner = {server: [node for node in kept if home.get(node) == server] for server in blocks}
    columns = len(blocks) if outer else ceil(sqrt(len(blocks)))
    shapes = {server: _block(cluster, own, inner[server], home) for server, own in blocks.items()}
    wide = max(1.0 + max(x for x, _ in shape.values()) - min(x for x, _ in shape.values()) for shape in shapes.values())
    tall = max(1.4 + max(y for _, y in shape.values()) - min(y for _, y in shape.values()) for shape in shapes.values())
    left, top = 0.0, 0.0
    for number, (server, shape) in enumerate(shapes.items()):
        if outer:
            low, high = min(x for x, _ in shape.values()), max(x for x, _ in shape.values())
            shift = left - low, 0.0
            left += high - low + 1.6
        else:
            shift = number % columns * wide * 1.25, -(number // columns) * tall * 1.25
        for node, (x, y) in shape.items():
            places[node] = x + shift[0], y + shift[1]
        blocks[server] = list(shape)
        top = max(top, *(y for _, y in shape.values()))
    _place_outer(cluster, outer, places, top)
    return places, blocks


def _homes(cluster: Cluster) -> dict[str, int]:
    """The server of each switch that is in one: all nodes below it are."""
    topology, found = cluster.topology, dict[str, int]()
    near = topology.hops_from_devices
    server = {topology.nodes[member]: number for number, members in enumerate(cluster.servers) for member in members}
    for node in near:
        if node not in server:
            below = {
                server.get(other, found.get(other, -1))
                for other in topology.neighbours[node]
                if near[other] < near[node]
            }
            if (len(below) == 1 and -1 not in below and len(cluster.servers) > 1) or len(cluster.servers) == 1:
                found[node] = below.pop() if len(cluster.servers) > 1 else 0
    return found


def _block(
    cluster: Cluster, devices: Sequence[str], switches: Sequence[str], home: Mapping[str, int]
) -> dict[str, Point]:
    """Where the nodes of a server are: devices in a row, a circle or a grid; switches below, or above if they lead out."""
    topology = cluster.topology
    cabled = {node: topology.cabled[node] & set(devices) for node in devices if node in topology.cabled}
    grid = find_grid(devices, cabled)
    if grid is not None:
        found = dict(zip(devices, _grid_places(grid.sides, grid.closed), strict=True))
    elif len(devices) > 2 and any(len(others) > 1 for others in cabled.values()):
        found = dict(zip(devices, _circle(len(devices)), strict=True))
    else:
        found = {node: (float(place), 0.0) for place, node in enumerate(devices)}
    near, outward = topology.hops_from_devices, set(switches)
    leads = any(other not in outward and near[other] > 0 for node in switches for other in topology.neighbours[node])
    edge = max(y for _, y in found.values()) if leads else min(y for _, y in found.values())
    for node in sorted(switches, key=lambda node: near[node]):
        below = [found[other][0] for other in topology.neighbours[node] if other in found and near[other] < near[node]]
        found[node] = sum(below) / max(1, len(below)), edge + (1.1 if leads else -1.1) * near[node]
    return found


def _grid_places(sides: Sequence[int], closed: Sequence[bool]) -> list[Point]:
    """Places of a grid's nodes: rows of the last side, columns of the one before, planes of others behind each other."""
    if len(sides) == 1 and closed[0]:
        return _circle(sides[0])
    found = []
    deep = len(sides) > 2
    for place in range(prod(sides)):
        x, rest = place % sides[-1], place // sides[-1]
        y, plane = (rest % sides[-2], rest // sides[-2]) if len(sides) > 1 else (0, 0)
        step = 1.9 if deep else 1.0
        found.append((step * x + 0.52 * plane, -step * y + 0.42 * plane))
    return found


def _circle(count: int) -> list[Point]:
    """Places of so many nodes on a circle, the first on top, clockwise."""
    radius, angles = 0.2 * count + 0.3, [pi / 2 - 2 * pi * place / count for place in range(count)]
    return [(radius * cos(angle), radius * sin(angle)) for angle in angles]


def _place_outer(cluster: Cluster, outer: Sequence[str], places: dict[str, Point], top: float) -> None:
    """Place the switches above the servers, level by level, each above the middle of what is below it."""
    topology, near = cluster.topology, cluster.topology.hops_from_devices
    levels = sorted({near[node] for node in outer})
    width = max((x for x, _ in places.values()), default=0.0)
    for number, level in enumerate(levels):
        for node in (one for one in outer if near[one] == level):
            below = [places[other][0] for other in topology.neighbours[node] if other in places and near[other] < level]
            places[node] = sum(below) / max(1, len(below)), top + max(1.6, 0.1 * width) * (number + 1)


# ------------------------------------------------------------------------------------- links and servers


def _links(
    cluster: Cluster, loads: LinkLoads | None, stands: Mapping[str, str], places: Mapping[str, Point]
) -> tuple[DrawnLink, ...]:
    """The links between drawn nodes; a bundle of like ones has the busiest one's load."""
    found: dict[tuple[str, str, float, float], list[float | None]] = {}
    for number, link in enumerate(cluster.topology.links):
        first, second = stands[link.first], stands[link.second]
        if first != second:
            key = min(first, second), max(first, second), link.bandwidth, link.latency
            found.setdefault(key, []).append(None if loads is None else float(loads.busy[number]))
    return tuple(
        DrawnLink(
            *key,
            max((one for one in busy if one is not None), default=None),
            _bent(places, key[0], key[1]),
        )
        for key, busy in found.items()
    )


def _bent(places: Mapping[str, Point], first: str, second: str) -> bool:
    """Whether another node is on the straight line between two."""
    (x0, y0), (x1, y1) = places[first], places[second]
    length = max(1e-9, (x1 - x0) ** 2 + (y1 - y0) ** 2)
    for node, (x, y) in places.items():
        if node not in (first, second):
            along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length
            off = abs((x - x0) * (y1 - y0) - (y - y0) * (x1 - x0)) / sqrt(length)
            if 0.0 < along < 1.0 and off < 0.1:
                return True
    return False


def _servers(
    blocks: Mapping[int, Sequence[str]], places: Mapping[str, Point], counts: Mapping[str, int]
) -> tuple[DrawnServer, ...]:
    """The frames of servers."""
    found = []
    for own in blocks.values():
        xs, ys = zip(*(places[node] for node in own), strict=True)
        stands = min(counts[node] for node in own)
        found.append(DrawnServer((min(xs) - 0.45, min(ys) - 0.5), (max(xs) + 0.45, max(ys) + 0.45), stands))
    return tuple(found)
