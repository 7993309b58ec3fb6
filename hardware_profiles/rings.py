"""Rings: orders of devices in which a sum goes round, or along a chain and back, over cables that no other ring uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from math import gcd

from hardware_profiles.topology import ROUNDING, Topology

MOST_PARALLEL = 16
"""Most devices of a server among which rings are searched: as many rings as devices, each through all of them."""

MOST_HOPS = 20_000
"""Most steps of a search for rings, which then ends with what it has found. A DGX-1 needs fewer than 200."""


def parallel_rings(topology: Topology, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rings through all devices of some servers, equally many of each, that share no cable; else one ring.

    Between servers a ring leaves each of them at another card than the other rings, and comes in at the next device.
    """
    if len(groups) == 1 or len(groups[0]) == 1:
        return _rings_inside(topology, joined(groups))
    used, leaving = set[int](), list[int]()
    for last, ends in enumerate(zip(groups[0], groups[1], strict=True)):
        route = topology.route(*ends)
        if used.isdisjoint(route):
            used.update(route)
            leaving.append(last)
    return [joined([[*group[last + 1 :], *group[: last + 1]] for group in groups]) for last in leaving]


def _rings_inside(topology: Topology, members: Sequence[int]) -> list[list[int]]:
    """Rings through all of some devices of a server, or of servers of one each, that share no cable; else one ring.

    Where all pairs have equal cables, a ring goes on by a step that has no divisor in common with the number of devices;
    else each link-disjoint cycle of the cables is two rings, one each way.
    """
    units, size = _cable_units(topology, members), len(members)
    if len(units) == size * (size - 1) and set(units.values()) == {1}:
        steps = [step for step in range(1, size) if gcd(step, size) == 1]
        return [[members[place * step % size] for place in range(size)] for step in steps]
    cycles = _disjoint_cycles(members, units, MOST_PARALLEL)
    return [ring for cycle in cycles for ring in (cycle, cycle[::-1])] or [list(members)]


def chain(topology: Topology, members: Sequence[int]) -> list[int]:
    """Devices of a server, ordered so that cables join neighbours and the narrowest of these is as wide as can be; [] if none."""
    units = _cable_units(topology, members)
    end = -1  # a device cabled to all: a cycle through it is a chain of the others
    for least in sorted(set(units.values()), reverse=True):
        wide = {pair: 1 for pair, count in units.items() if count >= least}
        wide |= {pair: 1 for member in members for pair in ((end, member), (member, end))}
        if found := _disjoint_cycles((end, *members), wide, 1):
            return found[0][1:]
    return []


def _cable_units(topology: Topology, members: Sequence[int]) -> dict[tuple[int, int], int]:
    """Bandwidth between each two devices that cables join, both ways, in multiples of the slowest cable's (rounded down).

    Empty for two devices, and for more than MOST_PARALLEL. A medium that several hops share is no cable.
    """
    if not 2 < len(members) <= MOST_PARALLEL or topology.nodes[members[0]] not in topology.cabled:
        return {}
    ends = {pair: (topology.nodes[pair[0]], topology.nodes[pair[1]]) for pair in permutations(members, 2)}
    hops = {pair: topology.hops[names] for pair, names in ends.items() if names in topology.hops}
    rates = {
        pair: topology.channels[hop].collective_bandwidth for pair, hop in hops.items() if hop in topology.lone_channels
    }
    slowest = min(rates.values(), default=1.0)
    return {pair: int(rate / slowest + ROUNDING) for pair, rate in rates.items()}


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


def joined(groups: Iterable[Sequence[int]]) -> list[int]:
    """The devices of several groups, concatenated."""
    return [device for group in groups for device in group]
