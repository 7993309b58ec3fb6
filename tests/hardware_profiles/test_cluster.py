"""Cluster: routes, transfers, all-reduce, levels."""

from __future__ import annotations

import csv
import pickle
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, permutations
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import Cluster, Link, Phase, Precision, Work, cluster_names, load_cluster, reduce_seconds

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


# ------------------------------------------------------------------------------------------------- transfers


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


@given(cluster=st.one_of(almost_stars(), racks()))
@settings(max_examples=60, deadline=None)
def test_a_path_over_switches_is_the_one_that_a_search_finds(cluster: Cluster) -> None:
    """Wherever no search is needed for a route, it would have found the same one; ties are left to it."""
    for ends in permutations(cluster.nodes, 2):
        assert cluster._path_over_switches(*ends) in (None, tuple(cluster._searched_path(*ends)))


@given(cluster=st.one_of(almost_stars(), racks()), step=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_an_exchange_loads_what_its_messages_pass(cluster: Cluster, step: int) -> None:
    """Each channel carries as many messages as there are pairs of devices whose route it is on."""
    devices = range(0, len(cluster.devices), step)
    messages = Counter(index for pair in permutations(devices, 2) for index in cluster.route(*pair))
    assert cluster._exchange_uses(devices) == messages


def test_clusters_of_switches_are_routed_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers on switches with a card a device or a server, and less of them; a tie asks for a search, and so does a ring."""
    monkeypatch.setattr(
        Cluster, "_searched_path", lambda cluster, *ends: pytest.fail(f"{cluster.name} searches {ends}")
    )
    for cluster in (load_cluster("dgx-a100:3").take(17), two_servers("server"), star(3)):
        assert len(cluster.route(0, len(cluster.devices) - 1)) == len(cluster.route(0, 1)) == 2
    cabled = load_cluster("pipedream-b")
    assert (len(cabled.route(0, 1)), len(cabled.route(0, 15))) == (1, 2)
    links = tuple(Link(f"d{device}", switch, GIGA) for device in (0, 1) for switch in ("hub", "other"))
    tied = replace(star(2), switches=("hub", "other"), links=links)
    for cluster in (tied, line(4, closed=True)):
        with pytest.raises(pytest.fail.Exception, match="searches"):
            cluster.route(0, 1)


# ------------------------------------------------------------------------------------------------- all-reduce


def test_precisions_are_those_that_all_devices_have() -> None:
    """A V100 has no bf16, an A100 has; a device that does not say has whatever the others have."""
    v100, a100 = (load_cluster(name).devices[0] for name in ("pipedream-b", "dgx-a100"))
    assert replace(star(3), devices=(a100, v100, Stub())).precisions == ("fp32", "fp16")
    assert replace(star(2), devices=(a100, Stub())).precisions == ("fp32", "tf32", "fp16", "bf16", "int8")
    assert "fp8" in star(2).precisions


def test_latency_of_a_collective_does_not_add_up_over_its_ring() -> None:
    """1 ms beside the bytes in a server of any size; between servers again whenever their number doubles."""
    links = [Link(f"d{device}", "hub", GIGA, 0.25, collective_latency=1e-3) for device in range(8)]
    lone = star(8, *links, servers=(tuple(range(8)),))
    for count in (2, 3, 8):
        assert lone.allreduce_seconds(range(count), 0.0) == pytest.approx(1e-3)
        assert lone.allreduce_seconds(range(count), 1e9) == pytest.approx(1e-3 + 2 * (count - 1) / count)
    apart = replace(lone, servers=tuple((device,) for device in range(8)))
    for count, doublings in ((2, 1.0), (4, 2.0), (8, 3.0)):
        assert apart.allreduce_seconds(range(count), 0.0) == pytest.approx(doublings * 1e-3)


def cards(servers: int, devices: int, inside: float, allreduce: str = "fastest") -> Cluster:
    """Servers on a switch of so many bytes/s a device, whose devices have a card of 1 GB/s each."""
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


def test_rings_leave_servers_by_every_card() -> None:
    """4 cards of 1 GB/s carry a ring each: 16 devices all-reduce 4 GB at 4 GB/s; a flat ring alone knows one card."""
    sixteen = 2 * 15 / 16
    assert cards(4, 4, 6 * GIGA).allreduce_seconds(range(16), 4e9) == pytest.approx(sixteen * 4 / 4)
    assert cards(4, 4, 6 * GIGA, "flat-ring").allreduce_seconds(range(16), 4e9) == pytest.approx(sixteen * 4)
    # Inside, 3 rings of 4 leave a device by the switch: at 2 GB/s they are what takes longest.
    assert cards(4, 4, 2 * GIGA).allreduce_seconds(range(16), 4e9) == pytest.approx(sixteen * 4 / 4 / (2 / 3))
    channels, busy = cards(4, 4, 6 * GIGA).allreduce_channels(range(16))
    assert sorted(set(busy)) == pytest.approx([3 / 6, 1.0])
    assert len(channels) == 4 * 16


def test_devices_cabled_pair_by_pair_run_several_rings() -> None:
    """Of 8 devices 4 rings share no cable (steps 1, 3, 5, 7), of 4 two, of 3 two, of 2 one; cables of 1 GB/s."""
    links = [Link(f"d{one}", f"d{two}", GIGA) for one, two in combinations(range(8), 2)]
    mesh = Cluster("mesh", (Stub(),) * 8, tuple(f"d{one}" for one in range(8)), (), (tuple(range(8)),), tuple(links))
    for count, rings in ((8, 4), (4, 2), (3, 2), (2, 1)):
        assert mesh.allreduce_seconds(range(count), 1e9) == pytest.approx(2 * (count - 1) / count / rings)
    hub = star(8, *(Link(f"d{one}", "hub", GIGA) for one in range(8)), servers=(tuple(range(8)),))
    assert hub.allreduce_seconds(range(8), 1e9) == pytest.approx(2 * 7 / 8)


@pytest.mark.parametrize(
    ("cluster", "devices", "measured"),
    [("dgx-a100:1", 8, 229e9), ("dgx-a100:2", 16, 192e9), ("dgx-h100:1", 8, 370e9), ("pipedream-b:1", 8, 135e9)],
)
def test_large_all_reduces_run_at_measured_rates(cluster: str, devices: int, measured: float) -> None:
    """Bus bandwidth of 1 GiB within 12 % of what NCCL reaches (nccl issues 212 and 812, nccl-tests issue 290, vTrain f8dda84)."""
    size = 2.0**30
    reached = 2 * (devices - 1) / devices * size / load_cluster(cluster).allreduce_seconds(range(devices), size)
    assert reached == pytest.approx(measured, rel=0.12)


def test_a_cube_mesh_has_the_rings_that_its_links_close() -> None:
    """Of a DGX-1, counted by hand, in bytes: of 2 to 8 GPUs 1, 2, 4, none, 2, 4, 6 rings of one NVLink, 25 GB/s; no link twice.

    GPU 4 has links to GPU 0 alone of the first five: there a chain of double links carries the sum there and back.
    """
    cluster = load_cluster("dgx-1-v100")
    reached = 0.905 * 25e9
    for count, rings in ((2, 1), (3, 2), (4, 4), (6, 2), (7, 4), (8, 6)):
        rates = cluster.allreduce_rates(range(count))
        assert min(rate for _, rate in rates) == pytest.approx(2 * (count - 1) / count / reached / rings), count
    assert min(rate for _, rate in cluster.allreduce_rates(range(5))) == pytest.approx(2.0 / (2 * reached))
    channels, busy = cluster.allreduce_channels(range(8))
    assert len(channels) == len(cluster.channels)  # every NVLink of a GPU is in a ring
    assert busy == pytest.approx((0.905,) * len(channels))


def test_cables_that_close_no_ring_are_a_chain_at_best() -> None:
    """Two pairs without a cable between them have one ring through a switch; a half-duplex cable is no ring's own."""
    islands = (Link("d0", "d1", 4 * GIGA), Link("d2", "d3", 4 * GIGA), *(Link(f"d{i}", "hub", GIGA) for i in range(4)))
    assert star(4, *islands, servers=((0, 1, 2, 3),)).allreduce_seconds(range(4), 1e9) == pytest.approx(1.5)
    assert line(4, closed=True, latency=0.0).allreduce_seconds(range(4), 1e9) == pytest.approx(1.5 / 2)
    assert line(4, closed=True, latency=0.0, duplex="half").allreduce_seconds(range(4), 1e9) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("gpu", "cluster", "mean_error", "small"), [("a100", "dgx-a100:1", 0.06, 0.12), ("v100", "dgx-1-v100", 0.03, 0.14)]
)
def test_all_reduces_of_a_server_are_as_measured(
    shared_data: Path, gpu: str, cluster: str, mean_error: float, small: float
) -> None:
    """The mean error of some 3,500 between 1 MiB and 1 GiB over 2 to 8 GPUs, and of those below 8 MiB."""
    server = load_cluster(cluster)
    with (shared_data / "measured" / "vtrain_allreduce_nvlink.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu]
    errors: dict[bool, list[float]] = {}
    for row in rows:
        size = float(row["bytes"])
        seconds = server.allreduce_seconds(range(int(row["gpus"])), size)
        errors.setdefault(size < 2**23, []).append(abs(seconds / (1e-6 * float(row["out_of_place_us"])) - 1))
    assert mean(errors[False] + errors[True]) < mean_error
    assert mean(errors[True]) < small


def test_ring_formula() -> None:
    """4 devices on a full-duplex switch: 2*3/4 * bytes / bandwidth + 2*3 steps of two 1 ms hops."""
    assert star(4).allreduce_seconds(range(4), 1e9) == pytest.approx(1.5 + 6 * 2e-3)


def test_one_device_has_nothing_to_reduce() -> None:
    """The sum over one device is there already."""
    assert star(4).allreduce_seconds([2], 1e9) == 0.0
    assert star(4).allreduce_channels([2])[0] == ()
    assert star(4).allreduce_seconds([], 1e9) == 0.0


def test_collective_efficiency_is_its_own() -> None:
    """All-reduce feels the collective efficiency, a lone transfer does not."""
    slow = line(2, collective=0.5, latency=0.0)
    assert slow.allreduce_seconds([0, 1], 1e9) == pytest.approx(2.0)
    assert slow.transfer_seconds(0, 1, 1e9) == pytest.approx(1.0)


def test_ring_members_share_a_bus() -> None:
    """On a half-duplex bus all four edges of the ring share one medium."""
    links = [Link(f"d{i}", "hub", GIGA, duplex="half", shared="bus") for i in range(4)]
    assert star(4, *links).allreduce_seconds(range(4), 1e9) == pytest.approx(4 * 1.5)


def test_closing_a_ring_on_a_line_uses_the_way_back() -> None:
    """On a full-duplex line each channel carries one edge; half-duplex carries two."""
    assert line(3, latency=0.0).allreduce_seconds(range(3), 1e9) == pytest.approx(2 * 2 / 3)
    assert line(3, latency=0.0, duplex="half").allreduce_seconds(range(3), 1e9) == pytest.approx(2 * 2 * 2 / 3)


def test_one_card_a_server_is_used_once_by_the_flat_ring() -> None:
    """Server by server, a ring leaves each server once: hierarchical (0.1 + 1 s) beats flat (1.5 s) with one card."""
    cluster = two_servers("server")
    inside, between = 2 * 1 / 2 / 10, 2 * 1 / 2 / 1
    assert cluster.allreduce_seconds(range(4), 1e9) == pytest.approx(inside + between + 2 * 2e-3)


def test_a_card_a_device_halves_the_time_between_servers() -> None:
    """With two cards the two rings between the servers no longer share: 0.1 + 0.5 s."""
    cluster = two_servers("device")
    assert cluster.allreduce_seconds(range(4), 1e9) == pytest.approx(0.1 + 0.5 + 2 * 2e-3)


@pytest.mark.parametrize(("attach", "inside"), [("server", 1 / 11), ("device", 1 / 6)])
def test_a_hierarchical_all_reduce_keeps_each_channel_busy_for_its_part(attach: str, inside: float) -> None:
    """0.1 s inside the servers, 1 s (or 0.5 s) between them: switches are busy for the former, cards for the latter."""
    cluster = two_servers(attach)
    shares = zip(*cluster.allreduce_channels(range(4)), strict=True)
    busy = {cluster.channels[index].name: share for index, share in shares}
    assert len(busy) == 8 + (4 if attach == "server" else 8)
    for name, share in busy.items():
        assert share == pytest.approx(inside if "switch" in name else 1.0 - inside)


def test_a_flat_ring_is_busy_by_its_uses() -> None:
    """There and back over two half-duplex links: the narrow one all the time, that of twice the bandwidth half of it."""
    links = [Link("d0", "hub", GIGA, duplex="half"), Link("d1", "hub", 2 * GIGA, duplex="half")]
    assert star(2, *links).allreduce_channels([0, 1])[1] == (1.0, 0.5)
    assert star(2, *links).allreduce_channels([0])[1] == ()


def test_transfers_at_once_share_a_card_and_have_cards_of_their_own() -> None:
    """Two from server to server: both over one card at half the rate, or each over its own; none between a device and itself."""
    shared, own = (two_servers(attach).flow([(0, 2), (1, 3)]) for attach in ("server", "device"))
    assert (shared.bandwidth, shared.loads) == (GIGA / 2, (2, 2))
    assert (own.bandwidth, own.loads) == (GIGA, (1, 1))
    assert own.latency == shared.latency == 2e-3
    alone = two_servers("server").flow([(1, 1), (0, 2)])
    assert (alone.latency, alone.bandwidth) == two_servers("server").point_to_point(0, 2)
    assert (alone.route, alone.loads) == (two_servers("server").route(0, 2), (1, 1))
    assert two_servers("server").flow([(1, 1)]).bandwidth == float("inf")


def test_all_reduces_at_once_share_a_card_and_have_cards_of_their_own() -> None:
    """Rings of 2 between servers, side by side: each 2·(1/2) bytes, at half the rate over one card; a ring alone as before."""
    shared, own = (two_servers(attach) for attach in ("server", "device"))
    assert reduce_seconds(shared.allreduce_rates((0, 2), (1, 3)), GIGA) == pytest.approx(2.0, abs=0.01)
    assert reduce_seconds(own.allreduce_rates((0, 2), (1, 3)), GIGA) == pytest.approx(1.0, abs=0.01)
    assert reduce_seconds(own.allreduce_rates((0, 2)), GIGA) == own.allreduce_seconds((0, 2), GIGA)
    inside = own.allreduce_rates((0, 1), (2, 3))
    assert inside == own.allreduce_rates((0, 1))


def test_unequal_parts_of_servers_take_the_flat_ring() -> None:
    """Two devices of one server and one of the other: 2*2/3 s over the cards, with each card used once a direction."""
    cluster = two_servers("server")
    assert cluster.allreduce_seconds([0, 1, 2], 1e9) == pytest.approx(2 * 2 / 3 + 4 * 2e-3)


def test_allreduce_within_a_server_does_not_touch_the_network() -> None:
    """Channels named after the network card stay free."""
    cluster = two_servers("server")
    names = [cluster.channels[c].name for c in cluster.allreduce_channels([0, 1])[0]]
    assert names
    assert not any("card" in name for name in names)
    assert any("card" in cluster.channels[c].name for c in cluster.allreduce_channels([0, 1, 2, 3])[0])


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(["pipedream-a", "pipedream-b", "dgx-a100", "fpga-vcu118-4"]),
    data=st.data(),
    small=st.floats(0.0, 1e9),
    more=st.floats(0.0, 1e9),
)
def test_allreduce_grows_with_bytes_and_ignores_order(
    name: str, data: st.DataObject, small: float, more: float
) -> None:
    """The time depends on the set of devices, not their order, and never falls as bytes grow."""
    cluster = CLUSTERS[name]
    ids = st.lists(st.integers(0, len(cluster.devices) - 1), min_size=2, unique=True)
    devices = data.draw(ids)
    seconds = cluster.allreduce_seconds(devices, small)
    assert seconds == cluster.allreduce_seconds(sorted(devices), small)
    assert cluster.allreduce_seconds(devices, small + more) >= seconds >= 0.0


CLUSTERS = {name: load_cluster(name) for name in ("pipedream-a", "pipedream-b", "dgx-a100", "fpga-vcu118-4")}

# ------------------------------------------------------------------------------------------------- shape


def test_levels_of_a_tree() -> None:
    """Two of two: 10 GB/s inside, 1 GB/s between; the ring between servers has the card to itself."""
    levels = two_servers("server").levels()
    assert [(lv.width, lv.bandwidth, lv.collective_bandwidth) for lv in levels] == [
        (2, 10 * GIGA, 10 * GIGA),
        (2, GIGA, GIGA),
    ]


def test_levels_leave_out_width_one() -> None:
    """One device a server leaves the network only; one device leaves none."""
    assert [level.width for level in star(4).levels()] == [4]
    assert star(4).take(1).levels() == ()


def test_levels_refuse_unequal_servers() -> None:
    """Servers of different sizes, different devices or different links have no levels."""
    with pytest.raises(ValueError, match="servers of equal size"):
        star(3, servers=((0, 1), (2,))).levels()
    with pytest.raises(ValueError, match="one kind of accelerator"):
        replace(star(2), devices=(Stub(), Stub("other"))).levels()
    links = [Link("d0", "hub", GIGA), Link("d1", "hub", GIGA), Link("d2", "hub", GIGA / 2)]
    with pytest.raises(ValueError, match="equal links"):
        star(3, *links).levels()


def test_take_keeps_the_first_devices_and_their_links() -> None:
    """Three of four: server 1 keeps one device, the rest routes as before."""
    cluster = two_servers("server")
    part = cluster.take(3)
    assert part.nodes == ("d0", "d1", "d2")
    assert part.servers == ((0, 1), (2,))
    assert part.transfer_seconds(0, 2, 1e9) == cluster.transfer_seconds(0, 2, 1e9)
    assert len(part.channels) < len(cluster.channels)
    assert cluster.take(4) is cluster


def test_take_keeps_devices_that_pass_messages_on() -> None:
    """Two neighbours of a ring of four still have the long way round, a line loses its end."""
    assert len(line(4, closed=True).take(2).links) == 4
    assert len(line(4).take(2).links) == 1


@pytest.mark.parametrize("count", [0, 5])
def test_take_refuses_other_counts(count: int) -> None:
    """From 1 to as many as there are."""
    with pytest.raises(ValueError, match=f"from 1 to 4 devices: {count}"):
        star(4).take(count)


# ------------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ([Link("d0", "hub", 1.0), Link("d1", "nowhere", 1.0)], "ends at 'nowhere'.* choose from d0, d1, hub"),
        ([Link("d0", "hub", 1.0)], r"device 1 \(d1\) is not connected to device 0"),
        ([Link("d0", "hub", 1.0), Link("hub", "d0", 1.0), Link("d1", "hub", 1.0)], "linked twice"),
        ([Link("d0", "hub", 1.0, shared="x"), Link("d1", "hub", 2.0, shared="x")], "one medium.*another bandwidth"),
    ],
)
def test_refuses_bad_graphs(links: list[Link], words: str) -> None:
    """Dangling links, unconnected devices, doubled links and contradicting media are named."""
    with pytest.raises(ValueError, match=words):
        star(2, *links)


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


def test_refuses_bad_devices() -> None:
    """Unknown ids, doubled members, doubled names and homeless devices are errors."""
    with pytest.raises(ValueError, match="ids run from 0 to 1: 2"):
        star(2).route(0, 2)
    with pytest.raises(ValueError, match="each device once"):
        star(2).allreduce_seconds([1, 1], 1.0)
    with pytest.raises(ValueError, match="'d0' is repeated"):
        replace(star(2), nodes=("d0", "d0"))
    with pytest.raises(ValueError, match="exactly one server"):
        replace(star(2), servers=((0,),))
    with pytest.raises(ValueError, match="size_bytes is at least 0: -1"):
        star(2).transfer_seconds(0, 1, -1)


def test_is_a_value() -> None:
    """A cluster survives pickle as an equal value with an equal hash."""
    cluster = load_cluster("pipedream-b")
    copy = pickle.loads(pickle.dumps(cluster))
    assert copy == cluster
    assert hash(copy) == hash(cluster)


# ------------------------------------------------------------------------------------------------- shipped


@pytest.mark.parametrize("name", cluster_names())
def test_contract_of_every_shipped_cluster(name: str) -> None:
    """Every cluster routes first to last and back, reduces over all devices, and can be cut down to two."""
    cluster = load_cluster(name)
    last = len(cluster.devices) - 1
    assert cluster.name == name
    assert 0.0 < cluster.transfer_seconds(0, last, 1e6) < cluster.transfer_seconds(0, last, 2e6)
    assert cluster.transfer_seconds(last, 0, 1e6) == pytest.approx(cluster.transfer_seconds(0, last, 1e6))
    assert cluster.allreduce_seconds(range(last + 1), 1e6) > 0.0
    assert all(0 <= c < len(cluster.channels) for c in cluster.allreduce_channels(range(last + 1))[0])
    assert len(cluster.take(2).devices) == 2
    assert sorted(d for server in cluster.servers for d in server) == list(range(last + 1))


@pytest.mark.parametrize(
    ("name", "servers", "gpus", "between"),
    [
        ("pipedream-a", 4, 4, 1.25e9),
        ("pipedream-b", 2, 8, 3.125e9),
        ("pipedream-c", 4, 1, 5e9),
        ("pipedream-arxiv-a", 16, 1, 3.125e9),
        ("pipedream-arxiv-b", 8, 1, 1.25e9),
    ],
)
def test_pipedream_clusters_are_those_of_the_papers(name: str, servers: int, gpus: int, between: float) -> None:
    """Servers, GPUs a server and line rate between servers, as in the table of the reference."""
    cluster = load_cluster(name)
    assert [len(server) for server in cluster.servers] == [gpus] * servers
    assert cluster.levels()[-1].bandwidth == pytest.approx(between)


def test_cluster_a_all_reduces_at_half_of_line_rate() -> None:
    """The measured speedups need 0.56-0.68 GB/s on A and 1.0-1.45 GB/s on B."""
    assert 0.56e9 <= load_cluster("pipedream-a").levels()[-1].collective_bandwidth <= 0.68e9
    assert 1.0e9 <= load_cluster("pipedream-b").levels()[-1].collective_bandwidth <= 1.45e9


@pytest.mark.parametrize("device", [-1, 2])
def test_an_all_reduce_checks_its_devices(device: int) -> None:
    """An id that does not exist is refused, not reduced over."""
    with pytest.raises(ValueError, match=f"ids run from 0 to 1: {device}"):
        star(2).allreduce_seconds([0, device], 1.0)


def test_levels_need_servers_with_equal_links() -> None:
    """Each server's links are alike, the two servers' are not."""
    links = [Link(f"d{i}", f"s{i // 2}", GIGA * (1 + i // 2)) for i in range(4)]
    links += [Link("s0", "net", GIGA), Link("s1", "net", GIGA)]
    nodes = ("d0", "d1", "d2", "d3")
    cluster = Cluster("uneven", (Stub(),) * 4, nodes, ("s0", "s1", "net"), ((0, 1), (2, 3)), tuple(links))
    with pytest.raises(ValueError, match="levels need servers with equal links inside"):
        cluster.levels()
