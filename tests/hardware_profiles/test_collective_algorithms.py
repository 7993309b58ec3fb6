"""Algorithms of collectives: their formulas by hand, the least of them, and what grows with ranks, servers and bytes."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import Link, Operation, load_cluster, one_after_the_other, reduce_seconds
from hardware_profiles.algorithms import Steps, binomial, in_switch, in_switch_tree, ring, tree
from hardware_profiles.collectives import _least
from hardware_profiles.fabrics import FABRICS
from tests.hardware_profiles.clusters import GIGA, star
from tests.records import Recorded, weights

REDUCE, SCATTER, GATHER = Operation
STEPS = Steps(10.0, 1.0, 5.0, 2.0, 7.0, 8.0, 4.0)
"""Base 10 s; 1 s a ring's step in a server, 5 between; of a tree 2 and 7; 8 bytes/s in servers, 4 between."""


def test_a_ring_steps_inside_servers_and_between_them() -> None:
    """8 devices on 2 servers: a pass is 10 + 6 * 1 + 1 * 5 s and 7/8 of the bytes at 4 bytes/s; an all-reduce has two."""
    assert ring(GATHER, 8, 2, STEPS) == (21.0, 7 / 8 / 4)
    assert ring(REDUCE, 8, 2, STEPS) == (42.0, 2 * 7 / 8 / 4)
    assert ring(SCATTER, 8, 1, STEPS._replace(between_rate=inf)) == (17.0, 7 / 8 / 8)
    assert ring(SCATTER, 8, 8, STEPS, own_part=1.0) == (10.0 + 7 * 5, 8 / 8 / 4)


def test_a_tree_is_as_deep_as_servers_double() -> None:
    """4 servers of 2 devices: 2 (10 + 1 * 2 + 2 * 7) s; the bytes twice over 4 bytes/s, but once between two servers."""
    assert tree(8, 4, STEPS) == (52.0, pytest.approx(2 / 4 / 0.92))
    assert tree(8, 2, STEPS) == (2 * (10 + 3 * 2 + 7), pytest.approx(2 / 8 / 0.92))


def test_a_switch_adds_up_and_a_gather_doubles() -> None:
    """8 devices send 9/8 of the bytes each; between 4 servers a tree of them; PAT: 10 + 2 * 5 / 3.5 s and 2.8 us per device."""
    inside = in_switch(8, 3.0, 9.0)
    assert inside == (3.0, 9 / 8 / 9.0)
    assert in_switch_tree(4, inside, STEPS) == (3.0 + 2 * 2 * 7, pytest.approx(2 / 4 / 0.92))
    assert binomial(4, STEPS) == (pytest.approx(10 + 2 * 5 / 3.5 + 4 * 2.8e-6), pytest.approx(3 / 4 / (0.63 * 4)))


def test_the_least_of_all_ways_is_taken() -> None:
    """Sums of 8 H100: LL for 32 KiB, the switch from 4 MiB; 4 are too few for it, and gathers add nothing: rings."""
    here = load_cluster("dgx-h100:1").collectives

    def names(operation: Operation, devices: int) -> list[str]:
        found = (here.taken(operation, size, range(devices)) for size in (2.0**15, 2.0**22, 2.0**30))
        return [one.name for one in found if one]

    assert names(REDUCE, 8) == ["ring LL", "NVLS Simple", "NVLS Simple"]
    assert names(REDUCE, 4)[::2] == names(GATHER, 8)[::2] == ["ring LL", "ring Simple"]
    assert here.taken(GATHER, 1.0, [3]) is None
    several = load_cluster("dgx-h100:16").collectives
    taken = [several.taken(REDUCE, size, range(128)) for size in (2.0**10, 2.0**33)]
    assert [one.name for one in taken if one] == ["tree LL", "rails Simple"]
    assert {one.name for one in several.ways(GATHER, (tuple(range(0, 128, 8)),))} >= {"PAT Simple", "ring LL"}


@pytest.mark.parametrize("operation", Operation)
def test_what_is_taken_is_the_least_of_every_way(operation: Operation) -> None:
    """At every size from nothing to 64 GiB: ways that are left out are nowhere the quickest."""
    here, devices = load_cluster("dgx-b200:4").collectives, tuple(range(32))
    ways = here.ways(operation, (devices,))
    for size in (0.0, *(2.0**power for power in range(8, 37))):
        assert here.seconds(operation, devices, size) == min(one.seconds(size) for one in ways)


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ([(0, 3), (1, 2.9), (2, 0)], [0, 2]),
        ([(2, 0), (1, 1), (0, 3)], [2, 1, 0]),
        ([(0, 8), (1, 4), (2, 3.9), (3, 1)], [0, 1, 3]),
        ([(0, 8), (1, 7.9), (2, 7.8), (3, 1)], [0, 3]),
        ([(1, 1), (0, 1), (2, 2)], [1]),
    ],
)
def test_only_lines_that_are_least_somewhere_are_kept(lines: list[tuple[float, float]], kept: list[int]) -> None:
    """Of seconds and seconds per byte: not those above the ones that meet below them, nor any that are never quicker."""
    assert _least(lines) == kept


def test_two_collectives_are_each_as_quick_as_they_can_be() -> None:
    """1 + 4 x or 3 + x, then 2 + 3 x or 4 + x: at 0.1 the first of both, at 10 the second of both, at 0.8 one of each."""
    one, two = ((1.0, 4.0), (3.0, 1.0)), ((2.0, 3.0), (4.0, 1.0))
    for size in (0.1, 0.8, 10.0):
        both = reduce_seconds(one, size) + reduce_seconds(two, size)
        assert reduce_seconds(one_after_the_other(one, two), size) == pytest.approx(both)
    assert (one_after_the_other(one, ()), one_after_the_other((), two), one_after_the_other((), ())) == (one, two, ())


def test_a_gather_over_thousands_of_ranks_waits_for_its_steps() -> None:
    """Two of 2,048 H100 on 512 servers at once: 511 steps of 5.5 us between them, the other 1,536 of 1.5 us at least inside."""
    here = load_cluster("dgx-h100:512").collectives
    halves = [[8 * server + seat for server in range(512) for seat in seats] for seats in (range(4), range(4, 8))]
    for size in (0.0, 1e6, 1e8, 1e9):
        assert reduce_seconds(here.rates(GATHER, *halves), size) > 5e-3
    least = 10.6e-6 + 1536 * 1.5e-6 + 511 * 5.5e-6
    assert min(latency for latency, _ in here.rates(GATHER, *halves)) == pytest.approx(least)
    assert min(latency for latency, _ in here.rates(REDUCE, *halves)) < 0.2e-3  # a tree is 9 servers deep


def test_a_link_that_says_its_latency_is_obeyed() -> None:
    """2 ms of an all-reduce in a server, or between two, whatever its fabric; over four a ring has it thrice, a tree twice."""
    links = [Link(f"d{one}", "hub", GIGA, 1e-6, collective_latency=2e-3, fabric="infiniband") for one in range(4)]
    together = star(4, *links, servers=((0, 1, 2, 3),))
    assert together.collectives.seconds(Operation.ALL_REDUCE, range(4), 0.0) == 2e-3
    apart = star(4, *links)
    ways = {one.name: one.latency for one in apart.collectives.ways(REDUCE, ((0, 1, 2, 3),))}
    assert ways["ring"] == pytest.approx(6e-3)
    assert ways["tree"] == pytest.approx(4e-3)
    assert apart.collectives.seconds(GATHER, range(4), 0.0) == pytest.approx(3e-3)


def test_a_step_takes_as_long_as_over_the_slowest_link() -> None:
    """A server on NVLink, one on PCIe: LL has steps of 1.0 us there and between them, not 0.6, and a base of 10.6, not 6.6."""
    fabrics = "nvlink-4", "nvlink-4", "pcie", "pcie"
    links = [Link(f"d{place}", "hub", GIGA, fabric=fabric) for place, fabric in enumerate(fabrics)]
    here = star(4, *links, servers=((0, 1), (2, 3)))
    ways = {one.name: one.latency for one in here.collectives.ways(REDUCE, ((0, 1, 2, 3),))}
    assert ways["tree LL"] == pytest.approx(2 * (10.6e-6 + 1.0e-6 + 1.0e-6))


@pytest.mark.parametrize(
    ("fabrics", "way", "latency"),
    [
        (("nvlink-4", "nvlink-4", "pcie"), "tree LL", 10.6 + 1.0 + log2(3) * 1.0),
        (("pcie", "pcie", "nvlink-4"), "tree LL", 10.6 + 1.0 + log2(3) * 1.0),
        (("pcie", "pcie", "nvlink-4"), "ring LL", 10.6 + 3 * 1.5 + 2 * 1.5),
        (("nvlink-4", "nvlink-4", "pcie"), "ring LL", 10.6 + 3 * 1.5 + 2 * 1.5),
    ],
)
def test_one_slow_link_slows_every_step(fabrics: tuple[str, ...], way: str, latency: float) -> None:
    """Three servers of two, of which two are alike; us of a pass in LL: bases of 10.6 and 6.6; steps of a ring of 1.5 on NVLink
    and 1.0 on PCIe, of a tree 0.6 and 1.0; the slowest is taken in servers and between them.
    """
    links = [Link(f"d{place}", "hub", GIGA, fabric=fabrics[place // 2]) for place in range(6)]
    here = star(6, *links, servers=((0, 1), (2, 3), (4, 5))).collectives
    ways = {one.name: one.latency for one in here.ways(REDUCE, (tuple(range(6)),))}
    assert ways[way] == pytest.approx(2e-6 * latency)


def test_tcp_has_no_quick_protocol_nor_tree() -> None:
    """What a step takes there is one assumed figure, above that of any fabric of its own, and below a millisecond."""
    low, middle, simple = FABRICS["ethernet"].protocols
    assert low.hop == low.tree_hop == middle.hop == middle.tree_hop
    assert simple.hop == simple.tree_hop
    for name in ("nvlink-4", "pcie", "infiniband"):
        assert all(
            own.hop < one.hop < 1e-3 for own, one in zip(FABRICS[name].protocols, (low, middle, simple), strict=True)
        )


def test_sums_in_a_switch_wait_for_its_slowest_link() -> None:
    """Eight send 9/8 of the bytes each at 0.4 of 1 GB/s, behind the longer of 68 and 96 us; none where one link cannot add."""
    for last, expected in ((0.4, (96e-6, 9 / 8 / (0.4 * GIGA))), (0.0, None)):
        shares, fabrics = (*[0.8] * 7, last), (*["nvlink-4"] * 6, "nvlink-5", "nvlink-4")
        links = [Link(f"d{at}", "hub", GIGA, in_switch=shares[at], fabric=fabrics[at]) for at in range(8)]
        here = star(8, *links, servers=(tuple(range(8)),)).collectives
        found = {one.name: (one.latency, one.seconds_per_byte) for one in here.ways(REDUCE, (tuple(range(8)),))}
        assert found.get("NVLS Simple") == (expected and pytest.approx(expected))


def test_a_ring_moves_the_largest_own_part_of_its_links() -> None:
    """Half of a server on NVLink: in a scatter each device moves its own quarter, too, half as fast in LL as links are."""
    for fabrics, moved in ((("pcie", "pcie"), 3 / 4), (("nvlink-4", "pcie"), 4 / 4), (("pcie", "nvlink-4"), 4 / 4)):
        links = [Link(f"d{place}", "hub", GIGA, fabric=fabrics[place // 2]) for place in range(4)]
        here = star(4, *links, servers=((0, 1, 2, 3),)).collectives
        ways = {one.name: one.seconds_per_byte for one in here.ways(SCATTER, ((0, 1, 2, 3),))}
        assert ways["ring LL"] == pytest.approx(moved / (0.5 * GIGA))


@given(
    fabric=st.sampled_from(sorted(FABRICS)),
    operation=st.sampled_from(Operation),
    size=st.floats(0.0, 1e10),
    more=st.floats(1.0, 100.0),
    servers=st.integers(1, 6),
)
@settings(deadline=None, max_examples=60)
def test_less_of_anything_is_never_faster(
    fabric: str, operation: Operation, size: float, more: float, servers: int
) -> None:
    """More bytes, fewer bytes/s, a longer latency, one server more: each takes as long, or longer."""
    links = tuple(Link(f"d{one}", "hub", GIGA, 1e-5, fabric=fabric) for one in range(14))
    homes = tuple(tuple(range(2 * one, 2 * one + 2)) for one in range(7))
    here = star(14, *links, servers=homes)
    devices = range(2 * servers)
    seconds = here.collectives.seconds(operation, devices, size)
    assert here.collectives.seconds(operation, devices, size * more) >= seconds
    assert here.collectives.seconds(operation, range(2 * servers + 2), size) >= seconds * (1 - 1e-12)
    narrow = replace(here, links=tuple(replace(one, bandwidth=GIGA / more) for one in links))
    assert narrow.collectives.seconds(operation, devices, size) >= seconds
    plain = replace(here, links=tuple(replace(one, fabric=None) for one in links))
    slow = replace(plain, links=tuple(replace(one, latency=1e-5 * more) for one in plain.links))
    assert slow.collectives.seconds(operation, devices, size) >= plain.collectives.seconds(operation, devices, size)


@pytest.mark.parametrize("fabric", sorted(FABRICS))
def test_ways_over_a_fabric(fabric: str, recorded: Recorded) -> None:
    """Microseconds, and nanoseconds per kilobyte, of every way to run a collective over links of 1 GB/s: among eight devices of a
    server whose switch adds up, among two of each of four servers, and one of each; and of exchanges. (All but one by weight.)"""
    links = [Link(f"d{one}", "hub", GIGA, 2e-6, in_switch=0.4, fabric=fabric) for one in range(8)]
    found: dict[str, dict[str, list[float]]] = {}
    for name, servers, devices in (
        ("server", (tuple(range(8)),), range(8)),
        ("pairs", tuple((one, one + 1) for one in range(0, 8, 2)), range(8)),
        ("apart", tuple((one, one + 1) for one in range(0, 8, 2)), range(0, 8, 2)),
        ("two", (tuple(range(5)), (5, 6, 7)), (0, 1, 5, 6)),
        ("five", (tuple(range(5)), (5, 6, 7)), range(5)),
    ):
        here, ways = star(8, *links, servers=servers).collectives, found.setdefault(name, {})
        for operation in Operation:
            for way in here.ways(operation, (tuple(devices),)):
                ways[f"{operation.name.lower()} {way.name}"] = [1e6 * way.latency, 1e12 * way.seconds_per_byte]
        ((latency, rate),) = here.alltoall_rates(devices)
        ways["exchange"] = [1e6 * latency, 1e12 * rate]
    recorded(**{"us, ns per kB": found if fabric == "nvlink-4" else weights(found)})


@pytest.mark.parametrize("name", ["dgx-1-v100", "dgx-a100:2", "dgx-b200:2", "pipedream-a", "sailor-mit-4"])
def test_collectives_of_shipped_clusters(name: str, recorded: Recorded) -> None:
    """Microseconds of a mebibyte and of a gibibyte by the quickest way, of every collective and of exchanges, among the first
    devices of a cluster; channels that sums keep busy, and for how large a part of their seconds. (All but one by weight.)"""
    here, found = load_cluster(name), dict[str, dict[str, float]]()
    for count in (2, 3, 5, 8, 12):
        devices = range(min(count, len(here.devices)))
        among = found.setdefault(f"{len(devices)} devices", {})
        for operation in Operation:
            for size in (2.0**20, 2.0**30):
                way = here.collectives.taken(operation, size, devices)
                assert way is not None
                among[f"{operation.name.lower()} of {size:.0f} bytes, {way.name}"] = 1e6 * way.seconds(size)
        among["exchange"] = 1e6 * reduce_seconds(here.collectives.alltoall_rates(devices), 2.0**20)
        channels, busy = here.collectives.busy(Operation.ALL_REDUCE, devices)
        among["busy channels"] = len(channels)
        among["busy seconds"] = sum(busy)
    recorded(us=found if name == "dgx-a100:2" else weights(found))
