"""Collectives: all-reduces and exchanges, their seconds and channels."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import Cluster, Link, Operation, load_cluster, reduce_seconds
from hardware_profiles import rings as ring_search
from tests.hardware_profiles.clusters import GIGA, Stub, almost_stars, cards, line, racks, star, tree, two_servers

CLUSTERS = {name: load_cluster(name) for name in ("pipedream-a", "pipedream-b", "dgx-a100", "fpga-vcu118-4")}


def test_latency_of_a_collective_does_not_add_up_over_its_ring() -> None:
    """1 ms beside the bytes in a server of any size; between servers again whenever their number doubles."""
    links = [Link(f"d{device}", "hub", GIGA, 0.25, collective_latency=1e-3) for device in range(8)]
    lone = star(8, *links, servers=(tuple(range(8)),))
    for count in (2, 3, 8):
        assert lone.collectives.seconds(Operation.ALL_REDUCE, range(count), 0.0) == pytest.approx(1e-3)
        assert lone.collectives.seconds(Operation.ALL_REDUCE, range(count), 1e9) == pytest.approx(
            1e-3 + 2 * (count - 1) / count
        )
    apart = replace(lone, servers=tuple((device,) for device in range(8)))
    for count, doublings in ((2, 1.0), (4, 2.0), (8, 3.0)):
        assert apart.collectives.seconds(Operation.ALL_REDUCE, range(count), 0.0) == pytest.approx(doublings * 1e-3)


def test_scatters_and_gathers_have_figures_of_their_own() -> None:
    """Half of the bandwidth and 3 ms for one of each, a share of 0.8 and 1 ms for an all-reduce; an exchange is as a gather.
    Links that say nothing of gathers have those of an all-reduce."""
    figures = {"collective": 0.8, "collective_latency": 1e-3}
    links = [Link(f"d{device}", "hub", GIGA, **figures, gather=0.5, gather_latency=3e-3) for device in range(8)]
    lone = star(8, *links, servers=(tuple(range(8)),))
    assert lone.collectives.seconds(Operation.ALL_REDUCE, range(8), 1e9) == pytest.approx(1e-3 + 2 * 7 / 8 / 0.8)
    for operation in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER):
        assert lone.collectives.seconds(operation, range(8), 1e9) == pytest.approx(1.5e-3 + 7 / 8 / 0.5)
    assert lone.collectives.alltoall_rates(range(8))[0] == pytest.approx((1.5e-3, 7 / 8 / 0.5 / GIGA))
    silent = replace(lone, links=tuple(replace(link, gather=0.0, gather_latency=0.0) for link in links))
    assert silent.collectives.seconds(Operation.ALL_GATHER, range(8), 1e9) == pytest.approx(
        (1e-3 + 2 * 7 / 8 / 0.8) / 2
    )


def test_an_exchange_waits_longer_where_servers_double() -> None:
    """Over 2, 4 and 8 servers InfiniBand's 14 us and 5.5 us a doubling; in one NVLink's 25 us; half of the 2 ms that links
    say of a scatter and a gather for every doubling, and once in a server; else the latency of the way."""

    def latencies(*counts: int, **figures: Any) -> list[float]:
        links = [Link(f"d{device}", "hub", GIGA, 2e-6, **figures) for device in range(8)]
        servers = tuple((device,) for device in range(8)) if len(counts) > 1 else (tuple(range(8)),)
        here = star(8, *links, servers=servers).collectives
        return [here.alltoall_rates(range(count))[0][0] for count in counts]

    assert latencies(2, 4, 8, fabric="infiniband") == pytest.approx([19.5e-6, 25e-6, 30.5e-6])
    assert latencies(8, fabric="nvlink-4") == pytest.approx([25e-6])
    assert latencies(2, 4, 8, gather_latency=2e-3) == pytest.approx([1e-3, 2e-3, 3e-3])
    assert latencies(8, gather_latency=2e-3) == pytest.approx([1e-3])
    assert latencies(2, 8) == pytest.approx([4e-6, 4e-6])


def test_an_exchange_waits_for_its_slowest_link() -> None:
    """Half of the 6 ms that one link says; the base of one fabric, 25 us, and a step of another, 5.5 us, between two servers."""
    links = [Link(f"d{device}", "hub", GIGA, gather_latency=2e-3 + 4e-3 * (device == 2)) for device in range(4)]
    together = star(4, *links, servers=((0, 1, 2, 3),)).collectives
    assert together.alltoall_rates(range(4))[0][0] == pytest.approx(3e-3)
    fabrics = "nvlink-4", "nvlink-4", "infiniband", "infiniband"
    mixed = [Link(f"d{device}", "hub", GIGA, fabric=fabric) for device, fabric in enumerate(fabrics)]
    apart = star(4, *mixed, servers=((0, 1), (2, 3))).collectives
    assert apart.alltoall_rates(range(4))[0][0] == pytest.approx(25e-6 + 5.5e-6)
    slow = [Link(f"d{device}", "hub", GIGA, 1e-6 + 2e-6 * (device == 1)) for device in range(3)]
    assert star(3, *slow, servers=((0, 1, 2),)).collectives.alltoall_rates(range(3))[0][0] == pytest.approx(4e-6)


def test_rings_leave_servers_by_every_card() -> None:
    """4 cards of 1 GB/s carry a ring each: 16 devices all-reduce 4 GB at 4 GB/s; a flat ring alone knows one card."""
    sixteen = 2 * 15 / 16
    assert cards(4, 4, 6 * GIGA).collectives.seconds(Operation.ALL_REDUCE, range(16), 4e9) == pytest.approx(
        sixteen * 4 / 4
    )
    assert cards(4, 4, 6 * GIGA, "flat-ring").collectives.seconds(
        Operation.ALL_REDUCE, range(16), 4e9
    ) == pytest.approx(sixteen * 4)
    # Inside, 3 rings of 4 leave a device by the switch: at 2 GB/s they are what takes longest.
    assert cards(4, 4, 2 * GIGA).collectives.seconds(Operation.ALL_REDUCE, range(16), 4e9) == pytest.approx(
        sixteen * 4 / 4 / (2 / 3)
    )
    channels, busy = cards(4, 4, 6 * GIGA).collectives.busy(Operation.ALL_REDUCE, range(16))
    assert sorted(set(busy)) == pytest.approx([3 / 6, 1.0])
    assert len(channels) == 4 * 16


def test_devices_cabled_pair_by_pair_run_several_rings() -> None:
    """Of 8 devices 4 rings share no cable (steps 1, 3, 5, 7), of 4 two, of 3 two, of 2 one; cables of 1 GB/s."""
    links = [Link(f"d{one}", f"d{two}", GIGA) for one, two in combinations(range(8), 2)]
    mesh = Cluster("mesh", (Stub(),) * 8, tuple(f"d{one}" for one in range(8)), (), (tuple(range(8)),), tuple(links))
    for count, rings in ((8, 4), (4, 2), (3, 2), (2, 1)):
        assert mesh.collectives.seconds(Operation.ALL_REDUCE, range(count), 1e9) == pytest.approx(
            2 * (count - 1) / count / rings
        )
    hub = star(8, *(Link(f"d{one}", "hub", GIGA) for one in range(8)), servers=(tuple(range(8)),))
    assert hub.collectives.seconds(Operation.ALL_REDUCE, range(8), 1e9) == pytest.approx(2 * 7 / 8)


@pytest.mark.parametrize(
    ("cluster", "devices", "measured", "within"),
    [
        ("dgx-a100:1", 8, 229e9, 0.02),
        ("dgx-a100:2", 16, 192e9, 0.06),
        ("dgx-h100:1", 8, 476e9, 0.1),
        ("dgx-1-v100", 8, 135e9, 0.02),
        ("pipedream-b:1", 8, 135e9, 0.12),  # whose cube mesh is assumed full
    ],
)
def test_large_all_reduces_run_at_measured_rates(cluster: str, devices: int, measured: float, within: float) -> None:
    """Bus bandwidth of 1 GiB beside what NCCL reaches (nccl issues 212 and 812, nccl-tests issue 290, vTrain f8dda84)."""
    size = 2.0**30
    reached = (
        2
        * (devices - 1)
        / devices
        * size
        / load_cluster(cluster).collectives.seconds(Operation.ALL_REDUCE, range(devices), size)
    )
    assert reached == pytest.approx(measured, rel=within)


def test_a_cube_mesh_has_the_rings_that_its_links_close() -> None:
    """Of a DGX-1, counted by hand, in bytes: of 2 to 8 GPUs 1, 2, 4, none, 2, 4, 6 rings of one NVLink, 25 GB/s; no link twice.

    GPU 4 has links to GPU 0 alone of the first five: there a chain of double links carries the sum there and back.
    """
    cluster = load_cluster("dgx-1-v100")
    reached = 0.905 * 25e9
    for count, rings in ((2, 1), (3, 2), (4, 4), (6, 2), (7, 4), (8, 6)):
        rates = cluster.collectives.rates(Operation.ALL_REDUCE, range(count))
        assert min(rate for _, rate in rates) == pytest.approx(2 * (count - 1) / count / reached / rings), count
    assert min(rate for _, rate in cluster.collectives.rates(Operation.ALL_REDUCE, range(5))) == pytest.approx(
        2.0 / (2 * reached)
    )
    channels, busy = cluster.collectives.busy(Operation.ALL_REDUCE, range(8))
    assert len(channels) == len(cluster.channels)  # every NVLink of a GPU is in a ring
    assert busy == pytest.approx((0.905,) * len(channels))


def test_a_search_for_rings_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many hops with what it has: of 8 GPUs cabled twice pair by pair 7 cycles share no cable, each of 8 hops."""
    members = range(8)
    twice = {(one, other): 2 for one in members for other in members if one != other}
    found = [len(ring_search._disjoint_cycles(members, twice, 7))]
    for hops in (8, 16, 7):
        monkeypatch.setattr(ring_search, "MOST_HOPS", hops)
        found.append(len(ring_search._disjoint_cycles(members, twice, 7)))
    assert found == [7, 1, 2, 0]


def test_cables_that_close_no_ring_are_a_chain_at_best() -> None:
    """Two pairs without a cable between them have one ring through a switch; a half-duplex cable is no ring's own."""
    islands = (Link("d0", "d1", 4 * GIGA), Link("d2", "d3", 4 * GIGA), *(Link(f"d{i}", "hub", GIGA) for i in range(4)))
    assert star(4, *islands, servers=((0, 1, 2, 3),)).collectives.seconds(
        Operation.ALL_REDUCE, range(4), 1e9
    ) == pytest.approx(1.5)
    assert line(4, closed=True, latency=0.0).collectives.seconds(Operation.ALL_REDUCE, range(4), 1e9) == pytest.approx(
        1.5 / 2
    )
    assert line(4, closed=True, latency=0.0, duplex="half").collectives.seconds(
        Operation.ALL_REDUCE, range(4), 1e9
    ) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("gpu", "cluster", "mean_error", "small"), [("a100", "dgx-a100:1", 0.06, 0.12), ("v100", "dgx-1-v100", 0.03, 0.14)]
)
def test_all_reduces_of_a_server_are_as_measured(
    shared_data: Path, gpu: str, cluster: str, mean_error: float, small: float
) -> None:
    """The mean error of some 3,500 between 1 MiB and 1 GiB over 2 to 8 GPUs, of those below 8 MiB, the median over 8."""
    server = load_cluster(cluster)
    with (shared_data / "measured" / "vtrain_allreduce_nvlink.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu]
    errors: dict[bool, list[float]] = {}
    of_eight = []
    for row in rows:
        size = float(row["bytes"])
        seconds = server.collectives.seconds(Operation.ALL_REDUCE, range(int(row["gpus"])), size)
        error = abs(seconds / (1e-6 * float(row["out_of_place_us"])) - 1)
        errors.setdefault(size < 2**23, []).append(error)
        of_eight += [error] if row["gpus"] == "8" else []
    assert median(of_eight) < 0.01
    assert mean(errors[False] + errors[True]) < mean_error
    assert mean(errors[True]) < small


def test_ring_formula() -> None:
    """4 devices on a full-duplex switch: 2*3/4 * bytes / bandwidth + 2*3 steps of two 1 ms hops."""
    assert star(4).collectives.seconds(Operation.ALL_REDUCE, range(4), 1e9) == pytest.approx(1.5 + 6 * 2e-3)


def test_one_device_has_nothing_to_reduce() -> None:
    """The sum over one device is there already."""
    assert star(4).collectives.seconds(Operation.ALL_REDUCE, [2], 1e9) == 0.0
    assert star(4).collectives.busy(Operation.ALL_REDUCE, [2])[0] == ()
    assert star(4).collectives.seconds(Operation.ALL_REDUCE, [], 1e9) == 0.0


def test_collective_efficiency_is_its_own() -> None:
    """All-reduce feels the collective efficiency, a lone transfer does not."""
    slow = line(2, collective=0.5, latency=0.0)
    assert slow.collectives.seconds(Operation.ALL_REDUCE, [0, 1], 1e9) == pytest.approx(2.0)
    assert slow.transfer_seconds(0, 1, 1e9) == pytest.approx(1.0)


def test_ring_members_share_a_bus() -> None:
    """On a half-duplex bus all four edges of the ring share one medium."""
    links = [Link(f"d{i}", "hub", GIGA, duplex="half", shared="bus") for i in range(4)]
    assert star(4, *links).collectives.seconds(Operation.ALL_REDUCE, range(4), 1e9) == pytest.approx(4 * 1.5)


def test_closing_a_ring_on_a_line_uses_the_way_back() -> None:
    """On a full-duplex line each channel carries one edge; half-duplex carries two."""
    assert line(3, latency=0.0).collectives.seconds(Operation.ALL_REDUCE, range(3), 1e9) == pytest.approx(2 * 2 / 3)
    assert line(3, latency=0.0, duplex="half").collectives.seconds(
        Operation.ALL_REDUCE, range(3), 1e9
    ) == pytest.approx(2 * 2 * 2 / 3)


def test_one_card_a_server_is_used_once_by_the_flat_ring() -> None:
    """Server by server, a ring leaves each server once: hierarchical (0.1 + 1 s) beats flat (1.5 s) with one card."""
    cluster = two_servers("server")
    inside, between = 2 * 1 / 2 / 10, 2 * 1 / 2 / 1
    assert cluster.collectives.seconds(Operation.ALL_REDUCE, range(4), 1e9) == pytest.approx(
        inside + between + 2 * 2e-3
    )


def test_a_card_a_device_halves_the_time_between_servers() -> None:
    """With two cards the two rings between the servers no longer share: 0.1 + 0.5 s."""
    cluster = two_servers("device")
    assert cluster.collectives.seconds(Operation.ALL_REDUCE, range(4), 1e9) == pytest.approx(0.1 + 0.5 + 2 * 2e-3)


@pytest.mark.parametrize(("attach", "inside"), [("server", 1 / 11), ("device", 1 / 6)])
def test_a_hierarchical_all_reduce_keeps_each_channel_busy_for_its_part(attach: str, inside: float) -> None:
    """0.1 s inside the servers, 1 s (or 0.5 s) between them: switches are busy for the former, cards for the latter."""
    cluster = two_servers(attach)
    shares = zip(*cluster.collectives.busy(Operation.ALL_REDUCE, range(4)), strict=True)
    busy = {cluster.channels[index].name: share for index, share in shares}
    assert len(busy) == 8 + (4 if attach == "server" else 8)
    for name, share in busy.items():
        assert share == pytest.approx(inside if "switch" in name else 1.0 - inside)


def test_a_flat_ring_is_busy_by_its_uses() -> None:
    """There and back over two half-duplex links: the narrow one all the time, that of twice the bandwidth half of it."""
    links = [Link("d0", "hub", GIGA, duplex="half"), Link("d1", "hub", 2 * GIGA, duplex="half")]
    assert star(2, *links).collectives.busy(Operation.ALL_REDUCE, [0, 1])[1] == (1.0, 0.5)
    assert star(2, *links).collectives.busy(Operation.ALL_REDUCE, [0])[1] == ()


def test_all_reduces_at_once_share_a_card_and_have_cards_of_their_own() -> None:
    """Rings of 2 between servers, side by side: each 2·(1/2) bytes, at half the rate over one card; a ring alone as before."""
    shared, own = (two_servers(attach) for attach in ("server", "device"))
    assert reduce_seconds(shared.collectives.rates(Operation.ALL_REDUCE, (0, 2), (1, 3)), GIGA) == pytest.approx(
        2.0, abs=0.01
    )
    assert reduce_seconds(own.collectives.rates(Operation.ALL_REDUCE, (0, 2), (1, 3)), GIGA) == pytest.approx(
        1.0, abs=0.01
    )
    assert reduce_seconds(own.collectives.rates(Operation.ALL_REDUCE, (0, 2)), GIGA) == own.collectives.seconds(
        Operation.ALL_REDUCE, (0, 2), GIGA
    )
    inside = own.collectives.rates(Operation.ALL_REDUCE, (0, 1), (2, 3))
    assert inside == own.collectives.rates(Operation.ALL_REDUCE, (0, 1))


def test_unequal_parts_of_servers_take_the_flat_ring() -> None:
    """Two devices of one server and one of the other: 2*2/3 s over the cards, each used once a direction, by one step of two."""
    cluster = two_servers("server")
    assert cluster.collectives.seconds(Operation.ALL_REDUCE, [0, 1, 2], 1e9) == pytest.approx(2 * 2 / 3 + 2 * 2e-3)


def test_allreduce_within_a_server_does_not_touch_the_network() -> None:
    """Channels named after the network card stay free."""
    cluster = two_servers("server")
    names = [cluster.channels[c].name for c in cluster.collectives.busy(Operation.ALL_REDUCE, [0, 1])[0]]
    assert names
    assert not any("card" in name for name in names)
    assert any(
        "card" in cluster.channels[c].name for c in cluster.collectives.busy(Operation.ALL_REDUCE, [0, 1, 2, 3])[0]
    )


@settings(deadline=None, max_examples=25)
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
    seconds = cluster.collectives.seconds(Operation.ALL_REDUCE, devices, small)
    assert seconds == cluster.collectives.seconds(Operation.ALL_REDUCE, sorted(devices), small)
    assert cluster.collectives.seconds(Operation.ALL_REDUCE, devices, small + more) >= seconds >= 0.0


@given(cluster=st.one_of(almost_stars(), racks()), step=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_an_exchange_loads_what_its_messages_pass(cluster: Cluster, step: int) -> None:
    """Each channel carries as many messages as there are pairs of devices whose route it is on."""
    devices = range(0, len(cluster.devices), step)
    messages = Counter(index for pair in permutations(devices, 2) for index in cluster.route(*pair))
    assert cluster.collectives._exchange_uses(devices) == messages


@pytest.mark.parametrize("device", [-1, 2])
def test_an_all_reduce_checks_its_devices(device: int) -> None:
    """An id that does not exist is refused, not reduced over."""
    with pytest.raises(ValueError, match=f"ids run from 0 to 1: {device}"):
        star(2).collectives.seconds(Operation.ALL_REDUCE, [0, device], 1.0)


# ------------------------------------------------------------------------------------------------- several levels


def ways(cluster: Cluster, devices: Sequence[int]) -> list[tuple[float, float]]:
    """Latencies and seconds per byte of all ways to all-reduce, taken or not."""
    found = cluster.collectives.ways(Operation.ALL_REDUCE, (tuple(devices),))
    return [(one.latency, one.seconds_per_byte) for one in found]


@pytest.mark.parametrize("levels", [((2, 8), (2, 4), (2, 1)), ((4, 9), (2, 6), (3, 4), (2, 0.2)), ((3, 8), (5, 0.2))])
def test_an_all_reduce_goes_through_all_levels(levels: tuple[tuple[int, float], ...]) -> None:
    """Inside a component that hangs on B bytes/s, w parts of which each has all: 2(w-1)/w * bytes / B, whoever shares it."""
    cluster = tree(*levels)
    rates = ways(cluster, range(len(cluster.devices)))
    assert rates[-1] == (0.0, pytest.approx(sum(2 * (width - 1) / width / rate for width, rate in levels)))
    assert len(rates) == 1 + 2 ** (len(levels) - 1) - 1  # one ring; every choice of levels that are gone through
    assert rates[-1] < rates[0]


def test_levels_of_equal_rates_are_one_ring() -> None:
    """2(g-1)/g * bytes / B over 24 devices of 1 byte/s, where every uplink carries all below it: no level is a bottleneck."""
    cluster = tree((2, 1), (3, 2), (4, 6))
    assert [rate for _, rate in ways(cluster, range(24))] == pytest.approx([2 * 23 / 24] * 4)


def test_only_levels_that_divide_a_group_evenly_are_gone_through() -> None:
    """Two devices of each of three servers, two in one rack: servers are even, racks not; two of one rack's: no racks."""
    cluster = tree((2, 8), (2, 4), (2, 1))
    assert len(ways(cluster, range(6))) == len(ways(cluster, range(4))) == 2
    assert len(ways(cluster, (0, 2, 4, 6))) == 2  # one device a server: in the racks, then between
    assert len(ways(cluster, (0, 1, 2))) == 1


def test_narrow_uplinks_slow_what_passes_them() -> None:
    """Groups of 16 devices in 4 racks, all-reducing or exchanging; a group of one rack does not know its uplink."""

    def seconds(narrow: float, devices: range) -> list[float]:
        collectives = tree((2, 8), (2, 4), (4, 8 / narrow)).collectives
        rates = collectives.rates(Operation.ALL_REDUCE, devices), collectives.alltoall_rates(devices)
        return [reduce_seconds(one, 1.0) for one in rates]

    for devices in (range(16), range(0, 16, 2), range(0, 16, 4), range(2, 7), range(8)):
        found = [seconds(narrow, devices) for narrow in (1.0, 3.0, 16.0, 160.0)]
        for each in zip(*found, strict=True):
            assert list(each) == sorted(each)
            assert each[-1] > each[0]
    for devices in (range(4, 8), range(4, 8, 2)):
        assert seconds(1.0, devices) == seconds(160.0, devices)
        cluster = tree((2, 8), (2, 4), (4, 0.1))
        passed = cluster.collectives.busy(Operation.ALL_REDUCE, devices)[0]
        assert min(cluster.channels[index].bandwidth for index in passed) >= 4


def test_an_exchange_over_a_spine_shares_the_uplinks() -> None:
    """8 devices in 2 racks of 4, uplinks of 1 byte/s: 4 * 4 messages of an eighth of what each has, one after the other."""
    assert tree((2, 8), (2, 4), (2, 1)).collectives.alltoall_rates(range(8)) == ((0.0, 16 / 8),)


def test_racks_of_two_kinds_of_servers_are_alike() -> None:
    """Six racks of a quick and a slow server, cabled alike: each server is like that of its kind in the first rack."""
    racks = range(6)
    nodes = [f"{rack}.{server}.{seat}" for rack in racks for server in range(2) for seat in range(2)]
    links = [Link(node, node[:3], (1 + int(node[2])) * GIGA) for node in nodes]
    links += [Link(f"{rack}.{server}", f"{rack}", GIGA) for rack in racks for server in range(2)]
    links += [Link(f"{rack}", "top", GIGA) for rack in racks]
    switches = ("top", *(f"{rack}" for rack in racks), *(f"{rack}.{server}" for rack in racks for server in range(2)))
    servers = tuple((first, first + 1) for first in range(0, len(nodes), 2))
    cluster = Cluster("racks", (Stub(),) * len(nodes), tuple(nodes), switches, servers, tuple(links))
    looks = [cluster.collectives.likeness.look([server]) for server in servers]
    assert [looks.index(look) for look in looks] == [0, 1] * 6
