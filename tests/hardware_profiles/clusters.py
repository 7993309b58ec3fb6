"""Clusters of accelerators that take no time, made by hand and drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from hypothesis import strategies as st

from hardware_profiles import Cluster, Link, Phase, Precision, Work

GIGA = 1e9


@dataclass(frozen=True)
class Stub:
    """An accelerator that takes no time."""

    name: str = "stub"
    memory_bytes: float = 1e9
    streams: bool = False
    sublinear: bool = True

    def seconds(self, work: Work, samples: float, phase: Phase, precision: Precision) -> float:
        """Nothing takes time."""
        return 0.0


def star(count: int, *links: Link, servers: tuple[tuple[int, ...], ...] | None = None) -> Cluster:
    """Devices d0, d1, ... and one switch `hub`, joined as the links say (default: 1 GB/s, 1 ms each)."""
    nodes = tuple(f"d{i}" for i in range(count))
    return Cluster(
        name="star",
        devices=(Stub(),) * count,
        nodes=nodes,
        switches=("hub",),
        servers=servers or tuple((i,) for i in range(count)),
        links=links or tuple(Link(node, "hub", GIGA, 1e-3) for node in nodes),
    )


def line(count: int, closed: bool = False, **link: object) -> Cluster:
    """Devices in a line (or a ring), in one server, without switches."""
    nodes = [f"d{i}" for i in range(count)]
    pairs = [*pairwise(nodes), *([(nodes[-1], nodes[0])] if closed else [])]
    links = tuple(replace(Link(first, second, GIGA, 1e-3), **link) for first, second in pairs)
    return Cluster("line", (Stub(),) * count, tuple(nodes), (), (tuple(range(count)),), links)


def two_servers(attach: str) -> Cluster:
    """2 servers of 2 devices: 10 GB/s inside over a switch; 1 GB/s outside, one card a server or one a device."""
    links = []
    for server in range(2):
        for member in (2 * server, 2 * server + 1):
            links.append(Link(f"d{member}", f"switch{server}", 10 * GIGA))
            shared = f"card{server}" if attach == "server" else None
            links.append(Link(f"d{member}", "network", GIGA, 1e-3, shared=shared))
    return Cluster(
        "two",
        (Stub(),) * 4,
        ("d0", "d1", "d2", "d3"),
        ("switch0", "switch1", "network"),
        ((0, 1), (2, 3)),
        tuple(links),
    )


def cards(servers: int, devices: int, inside: float, allreduce: str = "fastest") -> Cluster:
    """Servers on a switch of so many bytes/s per device, whose devices have a card of 1 GB/s each."""
    nodes = [f"s{server}d{device}" for server in range(servers) for device in range(devices)]
    links = [Link(node, f"{node[:2]}hub", inside) for node in nodes] + [Link(node, "net", GIGA) for node in nodes]
    return Cluster(
        "cards",
        (Stub(),) * len(nodes),
        tuple(nodes),
        (*(f"s{server}hub" for server in range(servers)), "net"),
        tuple(tuple(range(server * devices, (server + 1) * devices)) for server in range(servers)),
        tuple(links),
        allreduce,  # type: ignore[arg-type]
    )


@st.composite
def almost_stars(draw: st.DrawFn) -> Cluster:
    """Devices on a trunk, some of them on one of two stars too or cabled pair by pair, and sometimes a link more that makes the
    paths many.
    """
    speeds, count = st.sampled_from((GIGA, 2.0 * GIGA, 8.0 * GIGA)), draw(st.integers(2, 5))
    nodes, trunk, star = [f"d{device}" for device in range(count)], draw(speeds), draw(speeds)
    links = [Link(node, "trunk", trunk) for node in nodes]
    if draw(st.booleans()):
        links += [Link(node, f"star{draw(st.integers(0, 1))}", star) for node in nodes if draw(st.booleans())]
    else:
        groups = {node: draw(st.integers(0, 2)) for node in nodes}
        links += [Link(one, two, star) for one, two in combinations(nodes, 2) if groups[one] == groups[two] > 0]
    taken = [{link.first, link.second} for link in links]
    free = [pair for pair in combinations([*nodes, "trunk", "star0", "star1"], 2) if {*pair} not in taken]
    links += [Link(one, two, draw(speeds)) for one, two in draw(st.lists(st.sampled_from(free), max_size=1))]
    return Cluster(
        "stars", (Stub(),) * count, tuple(nodes), ("trunk", "star0", "star1"), ((*range(count),),), tuple(links)
    )


@st.composite
def racks(draw: st.DrawFn) -> Cluster:
    """Servers of one or two devices, on a star or cabled, behind leaves on a spine; a star sometimes spans two of them."""
    speeds = st.sampled_from((GIGA, 2.0 * GIGA, 8.0 * GIGA))
    card, star, uplinks, cabled = draw(speeds), draw(speeds), [draw(speeds) for _ in range(2)], draw(st.booleans())
    size, strange = draw(st.integers(1, 2)), draw(st.booleans())
    nodes = [f"d{device}" for device in range(4 * size)]
    leaf = {node: (number // size) // 2 if not strange else number % 2 for number, node in enumerate(nodes)}
    links = [Link(node, f"leaf{leaf[node]}", card, 1e-4) for node in nodes]
    links += [Link(f"leaf{number}", "spine", uplink, 1e-4) for number, uplink in enumerate(uplinks)]
    mates = [tuple(nodes[first : first + size]) for first in range(0, len(nodes), size)]
    if cabled:
        links += [Link(*pair, star, 1e-4) for those in mates for pair in combinations(those, 2)]
    else:
        links += [Link(node, f"hub{number}", star, 1e-4) for number, those in enumerate(mates) for node in those]
    switches = ("leaf0", "leaf1", "spine", *(f"hub{number}" for number in range(4)))
    servers = tuple(tuple(nodes.index(node) for node in those) for those in mates)
    return Cluster("racks", (Stub(),) * len(nodes), tuple(nodes), switches, servers, tuple(links))


def tree(*levels: tuple[int, float]) -> Cluster:
    """Devices that hang on a switch, such switches on a switch, and so on: of each level how many there are on a switch of the
    next, and bytes/s of their uplinks. What hangs on the lowest switches is a server.
    """
    nodes, links, below = [""], [], []
    for width, bandwidth in reversed(levels):
        below.append([f"{node}.{place}" for node in nodes for place in range(width)])
        links += [Link(node, node.rpartition(".")[0] or "top", bandwidth) for node in below[-1]]
        nodes = below[-1]
    size = levels[0][0]
    servers = tuple(tuple(range(first, first + size)) for first in range(0, len(nodes), size))
    switches = ("top", *(node for nodes in below[:-1] for node in nodes))
    return Cluster("tree", (Stub(),) * len(nodes), tuple(nodes), switches, servers, tuple(links))
