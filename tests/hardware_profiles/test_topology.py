"""Topology: links, channels, routes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import Cluster, Link, load_cluster
from hardware_profiles.topology import Topology
from tests.hardware_profiles.clusters import GIGA, almost_stars, line, racks, star, two_servers


def test_transfer_is_latencies_plus_bytes_over_the_narrowest_channel() -> None:
    """Two hops of 1 ms and 1 GB/s: 2 ms + 1 s for 1 GB; a hop of half the bandwidth makes it 2 s."""
    assert star(2).transfer_seconds(0, 1, 1e9) == pytest.approx(1.002)
    uneven = star(2, Link("d0", "hub", GIGA, 1e-3), Link("d1", "hub", GIGA / 2, 1e-3))
    assert uneven.transfer_seconds(0, 1, 1e9) == pytest.approx(2.002)
    assert uneven.point_to_point(0, 1) == (pytest.approx(2e-3), pytest.approx(GIGA / 2))


def test_same_device_costs_nothing() -> None:
    """A device hands a tensor to itself in no time over no channel."""
    assert star(2).transfer_seconds(1, 1, 1e9) == 0.0
    assert star(2).route(1, 1) == ()


def test_full_duplex_has_a_channel_each_way_and_half_duplex_one() -> None:
    """There and back share nothing on a full-duplex line and everything on a half-duplex one."""
    full, half = line(2), line(2, duplex="half")
    assert set(full.route(0, 1)).isdisjoint(full.route(1, 0))
    assert len(full.channels) == 2
    assert half.route(0, 1) == half.route(1, 0)
    assert len(half.channels) == 1


def test_point_to_point_efficiency_is_in_the_channel() -> None:
    """A channel's bandwidth is what a lone transfer reaches."""
    assert line(2, point_to_point=0.8).channels[0].bandwidth == pytest.approx(0.8 * GIGA)


def test_a_shared_medium_is_one_channel() -> None:
    """A half-duplex bus of three devices: one channel, counted once on a route over it."""
    links = [Link(f"d{i}", "hub", GIGA, 1e-3, duplex="half", shared="bus") for i in range(3)]
    bus = star(3, *links)
    assert len(bus.channels) == 1
    assert bus.route(0, 2) == (0,)
    assert bus.transfer_seconds(0, 2, 1e9) == pytest.approx(1.001)


def test_route_takes_the_quicker_way() -> None:
    """Around a ring of five, 0 reaches 4 over one hop and 2 over two."""
    ring = line(5, closed=True)
    assert len(ring.route(0, 4)) == 1
    assert [ring.channels[c].name for c in ring.route(0, 2)] == ["d0-d1:forth", "d1-d2:forth"]


def test_routes_repeat() -> None:
    """A second cluster of the same parts gives the same routes: ties are broken by the order of links."""
    ring, again = line(4, closed=True), line(4, closed=True)
    pairs = [(a, b) for a in range(4) for b in range(4)]
    assert [ring.route(*pair) for pair in pairs] == [again.route(*pair) for pair in reversed(pairs)][::-1]


@given(cluster=st.one_of(almost_stars(), racks()))
@settings(max_examples=60, deadline=None)
def test_a_path_over_switches_is_the_one_that_a_search_finds(cluster: Cluster) -> None:
    """Wherever no search is needed for a route, it would have found the same one; ties are left to it."""
    for ends in permutations(cluster.nodes, 2):
        assert cluster.topology._path_over_switches(*ends) in (None, tuple(cluster.topology._searched_path(*ends)))


def test_clusters_of_switches_are_routed_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers on switches with a card a device or a server, and less of them; and rings; a tie asks for a search."""
    monkeypatch.setattr(
        Topology, "_searched_path", lambda topology, *ends: pytest.fail(f"{topology.name} searches {ends}")
    )
    for cluster in (load_cluster("dgx-a100:3").take(17), two_servers("server"), star(3)):
        assert len(cluster.route(0, len(cluster.devices) - 1)) == len(cluster.route(0, 1)) == 2
    cabled = load_cluster("pipedream-b")
    assert (len(cabled.route(0, 1)), len(cabled.route(0, 15))) == (1, 2)
    links = tuple(Link(f"d{device}", switch, GIGA) for device in (0, 1) for switch in ("hub", "other"))
    tied = replace(star(2), switches=("hub", "other"), links=links)
    assert len(line(4, closed=True).route(0, 2)) == 2
    with pytest.raises(pytest.fail.Exception, match="searches"):
        tied.route(0, 1)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        (
            [Link("d0", "hub", 1.0), Link("d1", "nowhere", 1.0)],
            "star: link d1 - nowhere ends at 'nowhere', which is no device or switch; choose from d0, d1, hub",
        ),
        ([Link("d0", "hub", 1.0)], r"star: device 1 \(d1\) is not connected to device 0 \(d0\); add a link"),
        (
            [Link("d0", "hub", 1.0), Link("hub", "d0", 1.0), Link("d1", "hub", 1.0)],
            "star: hub and d0 are linked twice; give one faster link",
        ),
        (
            [Link("d0", "hub", 1.0, shared="x"), Link("d1", "hub", 2.0, shared="x")],
            "links that share 'x' are one medium, but d1 - hub has another bandwidth: 2.0 against 1.0",
        ),
    ],
)
def test_refuses_bad_graphs(links: list[Link], words: str) -> None:
    """Dangling links, unconnected devices, doubled links and contradicting media are named."""
    with pytest.raises(ValueError, match=words):
        star(2, *links)


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        (11, "d0, d1, d10, d2, d3, d4, d5, d6, d7, d8, d9, hub"),
        (12, "d0, d1, d10, d11, d2, d3, d4, d5, d6, d7, d8, d9, ..."),
    ],
)
def test_twelve_ends_of_a_link_are_named(devices: int, named: str) -> None:
    """In their order; of more, that there are others."""
    with pytest.raises(ValueError, match=f"choose from {re.escape(named)}$"):
        star(devices, Link("d0", "nowhere", 1.0))


@pytest.mark.parametrize(
    "change",
    [
        {"bandwidth": 0.0},
        {"bandwidth": -1.0},
        {"latency": -1e-6},
        {"duplex": "simplex"},
        {"collective": 0.0},
        {"second": "a"},
    ],
)
def test_refuses_bad_links(change: dict[str, object]) -> None:
    """Bandwidth above 0, latency at least 0, a known duplex, shares within 1, two different ends."""
    with pytest.raises(ValueError, match="link a - "):
        replace(Link("a", "b", 1.0), **change)
