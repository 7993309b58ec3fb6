"""Cluster: flows, levels, parts of it, the shipped ones."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from hardware_profiles import Cluster, Link, Operation, cluster_names, load_cluster
from tests.hardware_profiles.clusters import GIGA, Stub, line, star, tree, two_servers


def test_precisions_are_those_that_all_devices_have() -> None:
    """A V100 has no bf16, an A100 has; a device that does not say has whatever the others have."""
    v100, a100 = (load_cluster(name).devices[0] for name in ("pipedream-b", "dgx-a100"))
    assert replace(star(3), devices=(a100, v100, Stub())).precisions == ("fp32", "fp16")
    assert replace(star(2), devices=(a100, Stub())).precisions == ("fp32", "tf32", "fp16", "bf16", "int8")
    assert "fp8" in star(2).precisions


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


def test_levels_of_a_tree() -> None:
    """Two of two: 10 GB/s inside, 1 GB/s between; the ring between servers has the card to itself."""
    levels = two_servers("server").levels()
    assert [(lv.width, lv.bandwidth, lv.collective_bandwidth) for lv in levels] == [
        (2, 10 * GIGA, 10 * GIGA),
        (2, GIGA, GIGA),
    ]


def test_levels_of_racks() -> None:
    """Devices, servers, racks, as many as hang on a switch; unlike racks are no level."""
    cluster = tree((2, 8), (3, 4), (2, 1))
    levels = [(level.width, level.bandwidth, level.collective_bandwidth) for level in cluster.levels()]
    assert levels == [(2, 8, 8), (3, 4, 4), (2, 1, 1)]
    assert cluster.components() == (((0, 1), (2, 3), (4, 5)), ((6, 7), (8, 9), (10, 11)))
    assert [level.width for level in tree((2, 8), (3, 4), (2, 4)).take(10).levels()] == [2, 5]
    assert tree((2, 8), (3, 4), (2, 4)).take(10).components() == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
    assert tree((1, 8), (3, 4), (2, 1)).components() == ((0, 1, 2), (3, 4, 5))
    assert tree((2, 1)).components() == (0, 1)


def test_levels_leave_out_width_one() -> None:
    """One device a server leaves the network only; one device leaves none."""
    assert [level.width for level in star(4).levels()] == [4]
    assert star(4).take(1).levels() == ()


def test_levels_refuse_unequal_servers() -> None:
    """Servers of different sizes, different devices or different links have no levels."""
    with pytest.raises(ValueError, match=r"star: levels need servers of equal size; these hold \[1, 2\] devices"):
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


def test_refuses_bad_devices() -> None:
    """Unknown ids, doubled members, doubled names and homeless devices are errors."""
    with pytest.raises(ValueError, match="star: device ids run from 0 to 1: 2"):
        star(2).route(0, 2)
    with pytest.raises(ValueError, match=r"star: an all-reduce names each device once: \(1, 1\)"):
        star(2).collectives.seconds(Operation.ALL_REDUCE, [1, 1], 1.0)
    with pytest.raises(ValueError, match="star: devices and switches have names of their own; 'd0' is repeated"):
        replace(star(2), nodes=("d0", "d0"))
    with pytest.raises(ValueError, match=r"star: every device belongs to exactly one server: \(\(0,\),\)"):
        replace(star(2), servers=((0,),))
    with pytest.raises(ValueError, match="size_bytes is at least 0: -1"):
        star(2).transfer_seconds(0, 1, -1)


def test_is_a_value() -> None:
    """A cluster survives pickle as an equal value with an equal hash."""
    cluster = load_cluster("pipedream-b")
    copy = pickle.loads(pickle.dumps(cluster))
    assert copy == cluster
    assert hash(copy) == hash(cluster)


@pytest.mark.parametrize("name", cluster_names())
def test_contract_of_every_shipped_cluster(name: str) -> None:
    """Every cluster routes first to last and back, reduces over all devices, and can be cut down to two."""
    cluster = load_cluster(name)
    last = len(cluster.devices) - 1
    assert cluster.name == name
    assert 0.0 < cluster.transfer_seconds(0, last, 1e6) < cluster.transfer_seconds(0, last, 2e6)
    assert cluster.transfer_seconds(last, 0, 1e6) == pytest.approx(cluster.transfer_seconds(0, last, 1e6))
    assert cluster.collectives.seconds(Operation.ALL_REDUCE, range(last + 1), 1e6) > 0.0
    assert all(
        0 <= c < len(cluster.channels) for c in cluster.collectives.busy(Operation.ALL_REDUCE, range(last + 1))[0]
    )
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


def test_levels_need_servers_with_equal_links() -> None:
    """Each server's links are alike, the two servers' are not."""
    links = [Link(f"d{i}", f"s{i // 2}", GIGA * (1 + i // 2)) for i in range(4)]
    links += [Link("s0", "net", GIGA), Link("s1", "net", GIGA)]
    nodes = ("d0", "d1", "d2", "d3")
    cluster = Cluster("uneven", (Stub(),) * 4, nodes, ("s0", "s1", "net"), ((0, 1), (2, 3)), tuple(links))
    with pytest.raises(ValueError, match="uneven: levels need servers with equal links inside, and racks"):
        cluster.levels()


def test_links_may_share_in_a_way_of_their_own() -> None:
    """Of two links, one that says how: the other's channels share as the cluster says."""
    for own, said in (("fifo", "fair"), ("fair", "fifo")):
        links = Link("a", "b", 1.0, sharing=own), Link("b", "c", 1.0)  # type: ignore[arg-type]
        cluster = Cluster("row", (Stub(),) * 3, ("a", "b", "c"), (), ((0,), (1,), (2,)), links, sharing=said)  # type: ignore[arg-type]
        assert [one.sharing for one in cluster.channels] == [own, own, said, said]
