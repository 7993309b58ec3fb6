"""Likeness: symmetric components of a topology, of which collectives are computed once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from itertools import groupby

from hardware_profiles.topology import Place, Topology, common


class Likeness:
    """Which components of a topology are symmetric, and which of them represent the others."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._numbers: dict[Hashable, int] = {}

    @cached_property
    def forms(self) -> dict[Place, int]:
        """A number for each component, the same for symmetric ones.

        These have symmetric inner components, and the same links among them, to their own switches, and to those around them.

        Empty where a link joins components that are not in one another, or several share a medium.
        """
        links: dict[Place, list[Hashable]] = {}
        media: dict[str, tuple[Place, int]] = {}
        for link in self.topology.links:
            (one, place), (other, place_of_other) = self.roles[link.first], self.roles[link.second]
            around, inside = (one, other) if one < other else (other, one)
            own, medium = links.setdefault(inside, []), None
            if link.shared is not None:
                home, medium = media.setdefault(link.shared, (inside, len(own)))
                if home != inside:
                    return {}
            if inside[: len(around)] != around:
                return {}
            roles = len(one), place, len(other), place_of_other
            speed = link.bandwidth, link.latency, link.duplex, link.point_to_point, link.in_switch, link.fabric
            own.append((*speed, *link.shares, *link.latencies, medium, *roles))
        known: dict[Hashable, int] = {}
        found: dict[Place, int] = {}
        components, inner = sorted({place[:-1] for place in self.topology.places}), dict[Place, list[Place]]()
        while components != [()]:
            for one in components:
                look = tuple(links.get(one, ())), tuple(found[child] for child in inner.get(one, ()))
                found[one] = known.setdefault(look, len(known))
            inner = _by_component(components)
            components = list(inner)
        return found

    @cached_property
    def roles(self) -> dict[str, tuple[Place, int]]:
        """The component of each node, and its place there; a switch is in the smallest that has all nodes below it."""
        topology, found, counts = self.topology, dict[str, tuple[Place, int]](), dict[Place, int]()
        near = topology.hops_from_devices
        for node, place in zip(topology.nodes, topology.places, strict=True):
            found[node] = place[:-1], place[-1]
        for node in list(near)[len(found) :]:
            below = [found[one][0] for one in topology.neighbours[node] if near[one] < near[node]]
            home = common(min(below), max(below))
            counts[home] = counts.get(home, 0) - 1
            found[node] = home, counts[home]
        return found

    def look(self, several: Sequence[Sequence[int]]) -> int:
        """A number for some groups of devices, the same for groups at the same places of like components; -1 for no device."""
        looks, _ = self._components(several)
        return looks.get((), -1)

    def _components(self, several: Sequence[Sequence[int]]) -> tuple[dict[Place, int], dict[Place, list[Place]]]:
        """What each component that holds devices of some groups looks like, by a number, and those that are in it."""
        (server, servers), seat = self.topology.numbered(self.topology.depth), self.topology.seats
        held: dict[int, list[int]] = {}
        for number, devices in enumerate(several):
            first = number * len(seat)
            for device in devices:
                held.setdefault(server[device], []).append(first + seat[device])
        looks = {servers[one]: self._number((self.forms[servers[one]], tuple(own))) for one, own in held.items()}
        inner: dict[Place, list[Place]] = {}
        components = sorted(looks)
        while any(components):
            above = _by_component(components)
            for one, own in above.items():
                rows = groupby([looks[child] for child in own])
                looks[one] = self._number((self.forms.get(one), *((look, len(list(row))) for look, row in rows)))
            inner |= above
            components = list(above)
        return looks, inner

    def _number(self, look: Hashable) -> int:
        return self._numbers.setdefault(look, len(self._numbers))

    def standing(self, several: Sequence[Sequence[int]], depth: int) -> list[list[int]]:
        """Devices of several rings without those that symmetric ones represent.

        Of symmetric components in a row, down to a depth, that hold devices of the same rings at the same places, the first two
        and the last are kept: they pass on as much over equally fast channels.
        """
        looks, inner = self._components(several)
        kept: list[Place] = [()]
        for _ in range(depth):
            kept = [child for one in kept for child in _ends_of_rows(inner[one], looks)]
        component, places = self.topology.numbered(depth)
        chosen = set(kept)
        stands = [place in chosen for place in places]
        return [[device for device in devices if stands[component[device]]] for devices in several]


def _by_component(components: Sequence[Place]) -> dict[Place, list[Place]]:
    """Components, in order, by the one that they are in."""
    found: dict[Place, list[Place]] = {}
    for one in components:
        found.setdefault(one[:-1], []).append(one)
    return found


def _ends_of_rows(components: Sequence[Place], looks: Mapping[Place, int]) -> list[Place]:
    """The first two and the last of each row of symmetric components."""
    own = [looks[one] for one in components]
    return [
        one
        for place, one in enumerate(components)
        if not 1 < place < len(own) - 1 or not own[place - 2] == own[place - 1] == own[place] == own[place + 1]
    ]
