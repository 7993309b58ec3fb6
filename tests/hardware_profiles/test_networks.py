"""Networks: tori, meshes, trees, cards, fat trees and dragonflies in compact files, and what collectives take there."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import prod
from pathlib import Path

import pytest

from hardware_profiles import Cluster, Operation, ProfileError, load_cluster
from hardware_profiles.grids import Grid, find_grid
from hardware_profiles.wiring import cables

GIGA = 1e9


def cluster_of(
    folder: Path, count: int = 1, devices: int = 1, inside: str = "", network: str = "", above: str = "", link: int = 50
) -> Cluster:
    """Servers of devices on links of so many GB/s and 1 us, with cards of 25 GB/s and 5 us, as the texts say."""
    text = f'name = "made"\n[[servers]]\ncount = {count}\ndevices = {devices}\naccelerator = "v100-sxm2"\n'
    text += f"[servers.inside]\nbandwidth_gb_per_s = {link}\nlatency_us = 1\n{inside}\n" if inside else ""
    text += f"[network]\nbandwidth_gbps = 200\nlatency_us = 5\n{network}\n" if network else ""
    path = folder / "made.toml"
    path.write_text(text + above, encoding="utf-8")
    return load_cluster(path)


SWITCH = 'topology = "switch"'
TREE = 'topology = "tree"\nsides = [4, 2]\ncarries_network = true'


def bus_bandwidth(cluster: Cluster, devices: range, size: float = 1e9) -> float:
    """2 (n - 1) / n bytes over the seconds of their sum."""
    count = len(devices)
    return 2 * (count - 1) / count * size / cluster.collectives.seconds(Operation.ALL_REDUCE, devices, size)


# ------------------------------------------------------------------------------------------------ grids


@pytest.mark.parametrize(
    ("topology", "sides", "closed"),
    [
        ("torus", (4, 4, 4), (True, True, True)),
        ("torus", (2, 3), (False, True)),
        ("mesh", (3, 2, 4), (False, False, False)),
        ("torus", (5,), (True,)),
        ("mesh", (2,), (False,)),
    ],
)
def test_cables_of_a_grid_are_found_again(topology: str, sides: tuple[int, ...], closed: tuple[bool, ...]) -> None:
    """From the cables alone; a side of two has one cable, torus or not. With one cable more, or less, they are no grid."""
    count = len(Grid(sides, closed).rows()[0]) * sides[0]
    nodes = [f"d{place}" for place in range(count)]
    cabled: dict[str, set[str]] = {}
    for one, other in cables(topology, nodes, sides):
        cabled.setdefault(one, {one}).add(other)
        cabled.setdefault(other, {other}).add(one)
    assert find_grid(nodes, cabled) == Grid(sides, closed)
    if count > 4:
        assert find_grid(nodes, cabled | {"d1": cabled["d1"] - {"d0"}}) is None
        ends = {"d0": cabled["d0"] | {nodes[-2]}, nodes[-2]: cabled[nodes[-2]] | {"d0"}}
        assert find_grid(nodes, cabled | ends) is None
        assert find_grid(nodes[:-1], cabled) == (None if len(sides) > 1 else Grid((count - 1,), (False,)))


@pytest.mark.parametrize(("dimensions", "is_one"), [(6, True), (7, False)])
def test_a_grid_has_six_dimensions_at_most(dimensions: int, is_one: bool) -> None:
    """Tori of sides of three, whose nodes have two cables in each dimension."""
    sides = (3,) * dimensions
    nodes = [f"d{place}" for place in range(3**dimensions)]
    cabled: dict[str, set[str]] = {node: {node} for node in nodes}
    for one, other in cables("torus", nodes, sides):
        cabled[one].add(other)
        cabled[other].add(one)
    assert find_grid(nodes, cabled) == (Grid(sides, (True,) * dimensions) if is_one else None)


def test_ways_in_a_torus_are_the_shortest_and_load_all_cables_alike(tmp_path: Path) -> None:
    """4 x 4 x 4: 3 hops on average, 64 x 64 x 3 / 384 messages per channel between all pairs; as many as networkx finds."""
    torus = cluster_of(tmp_path, 1, 64, 'topology = "torus"\nsides = [4, 4, 4]')
    uses = Counter(index for pair in permutations(range(64), 2) for index in torus.route(*pair))
    assert set(uses.values()) == {32}
    for source, destination in ((0, 63), (5, 47), (21, 22)):
        searched = torus.topology._searched_path(*(torus.nodes[one] for one in (source, destination)))
        assert len(torus.route(source, destination)) == len(searched) - 1
    # Each device sends 63 of 64 equal parts over 6 cables, 3 hops each: bytes / 64 x 32 messages a cable.
    assert torus.collectives.alltoall_rates(range(64))[0][1] == pytest.approx(32 / 50e9 / 64)


def test_a_quicker_way_out_of_a_grid_is_taken(tmp_path: Path) -> None:
    """From end to end of a line of 8 a network of two hops is quicker; between neighbours their cable."""
    text = 'topology = "chain"'
    line = cluster_of(tmp_path, 2, 8, text, 'attach = "device"')
    assert (len(line.route(0, 1)), len(line.route(0, 7)), len(line.route(0, 15))) == (1, 2, 2)


@pytest.mark.parametrize(
    ("topology", "sides", "devices", "seconds", "name"),
    [
        # Both ways round a ring, 100 GB/s: 2 x 19 / 20 GB; 2 x 10 steps of 1 us.
        ("ring", None, range(20), 2 * 19 / 20 / 100 + 20e-6, "both ways"),
        # Each half along one side, then its 16th along the other: 2 x 15 / 16 / 200; 2 x (2 + 2) steps.
        ("torus", [4, 4], range(16), 2 * 15 / 16 / 200 + 8e-6, "torus"),
        ("torus", [4, 4, 4], range(64), 2 * 63 / 64 / 300 + 12e-6, "torus"),
        ("torus", [4, 4, 4], range(16), 2 * 15 / 16 / 200 + 8e-6, "torus"),  # a plane
        ("torus", [4, 4, 4], range(0, 64, 16), 2 * 3 / 4 / 100 + 4e-6, "both ways"),  # a row
        # Lines carry (k - 1) / k each way at 50 GB/s: 2 x 15 / 16 / 100; 2 x (3 + 3) steps.
        ("mesh", [4, 4], range(16), 2 * 15 / 16 / 100 + 12e-6, "torus"),
        # 2 x 16: halves take (1/2 or 15/16 at twice the rate), then 1/2 of a 16th or 15/16 of a half.
        ("torus", [2, 16], range(32), (max(1 / 2, 15 / 32) + max(1 / 32, 15 / 64)) / 50 + 32e-6, "torus"),
    ],
)
def test_sums_run_along_all_sides_at_once(
    tmp_path: Path, topology: str, sides: list[int] | None, devices: range, seconds: float, name: str
) -> None:
    """Of 1 GB over cables of 50 GB/s, by hand; channels are busy for what they carry."""
    inside = f'topology = "{topology}"' + (f"\nsides = {sides}" if sides else "")
    cluster = cluster_of(tmp_path, 1, prod(sides or [20]), inside)
    taken = cluster.collectives.taken(Operation.ALL_REDUCE, GIGA, devices)
    assert taken is not None
    assert taken.name == name
    assert taken.seconds(GIGA) == pytest.approx(seconds, rel=1e-12)
    if topology != "mesh":  # all channels together carry what all devices send: 2 (n - 1) / n of a tensor each
        carried = sum(taken.occupancy.values()) * taken.seconds_per_byte * 50e9
        assert carried == pytest.approx(2 * (len(devices) - 1), rel=1e-9)


def test_sums_at_once_share_the_cables_of_a_torus(tmp_path: Path) -> None:
    """Four planes of a 4 x 4 x 4 torus have cables of their own; rows of two devices are no grid of the whole."""
    torus = cluster_of(tmp_path, 1, 64, 'topology = "torus"\nsides = [4, 4, 4]')
    planes = [range(first, first + 16) for first in range(0, 64, 16)]
    assert torus.collectives.rates(Operation.ALL_REDUCE, *planes) == torus.collectives.rates(
        Operation.ALL_REDUCE, planes[0]
    )
    assert torus.collectives._grid(range(0, 64, 2)) is None  # every second device of each row


@pytest.mark.parametrize(
    ("sides", "link", "chip"), [([8, 8, 8], 45, 1.1e15 / 4096), ([16, 16], 50, 51.2e12 / 256)], ids=["v4", "v5e"]
)
def test_a_pod_sums_at_the_published_rate(tmp_path: Path, sides: list[int], link: int, chip: float) -> None:
    """All-reduce bandwidth per pod, of a chip, cloud.google.com/tpu/docs/v4 (1.1 PB/s) and v5e (51.2 TB/s): within 1 %."""
    count = prod(sides)
    inside = f'topology = "torus"\nsides = {sides}'
    pod = cluster_of(tmp_path, 1, count, inside, link=link)
    assert bus_bandwidth(pod, range(count), 1e12) == pytest.approx(chip, rel=0.01)


def test_a_row_of_a_pod_gathers_at_the_measured_rate() -> None:
    """95 % of 90 GB/s both ways round 16 chips of a v5e, from 10 MB on (jax-ml/scaling-book, sharding.md): within 10 %."""
    cube = load_cluster("tpu-v5p")
    row = range(0, 64, 16)
    seconds = cube.collectives.seconds(Operation.ALL_GATHER, row, 4e8)
    assert 3 / 4 * 4e8 / seconds / (2 * 90e9) == pytest.approx(0.95, rel=0.1)


@pytest.mark.parametrize("count", [2, 3, 8, 64])
@pytest.mark.parametrize("size", [2.0**10, 2.0**20, 2.0**30])
def test_a_ring_takes_as_long_as_in_a_public_analytical_simulator(tmp_path: Path, count: int, size: float) -> None:
    """astra-sim, analytical: 2 (n - 1) steps, each the link's latency and the n-th part of the bytes over its GB/s of 2^30."""
    path = tmp_path / "ring.toml"
    path.write_text(
        f'name = "ring"\nallreduce = "flat-ring"\n[[servers]]\ncount = {count}\naccelerator = "v100-sxm2"\n'
        f'[network]\ntopology = "ring"\nbandwidth_gb_per_s = {50 * 2**30 / 1e9!r}\nlatency_us = 0.5\n'
    )
    reached = load_cluster(path).collectives.seconds(Operation.ALL_REDUCE, range(count), size)
    assert reached == pytest.approx(2 * (count - 1) * (500e-9 + size / count / (50 * 2**30)), rel=1e-12)


# ------------------------------------------------------------------------------------- trees and cards


def test_devices_below_one_root_share_its_links(tmp_path: Path) -> None:
    """8 devices, 4 below each of two switches: across the root 4 links of 50 GB/s meet in one; a sum passes it once each way."""
    tree = cluster_of(tmp_path, 1, 8, 'topology = "tree"\nsides = [4, 2]')
    assert (len(tree.route(0, 3)), len(tree.route(0, 4))) == (2, 4)
    assert tree.flow([(0, 4), (1, 5), (2, 6), (3, 7)]).bandwidth == pytest.approx(12.5e9)
    assert tree.flow([(0, 1), (2, 3)]).bandwidth == pytest.approx(50e9)
    assert bus_bandwidth(tree, range(8), 1e12) == pytest.approx(50e9, rel=1e-3)


@pytest.mark.parametrize(
    ("inside", "network", "cards"),
    [
        (SWITCH, "cards = 1", 1),
        (SWITCH, "cards = 2", 2),
        (SWITCH, 'attach = "device"', 16 / 7),  # seven of eight rings pass on the link of each device, 50 GB/s
        (TREE, "cards = 1", 1),
        (TREE, "cards = 2", 2),
    ],
)
def test_rings_leave_a_server_by_all_its_cards(tmp_path: Path, inside: str, network: str, cards: float) -> None:
    """Cards of 25 GB/s each: what 2 servers of 8 devices sum at."""
    pair = cluster_of(tmp_path, 2, 8, inside, network)
    assert bus_bandwidth(pair, range(16), 1e12) == pytest.approx(cards * 25e9, rel=0.02)


def test_devices_share_the_card_beside_them(tmp_path: Path) -> None:
    """Of 8 devices with 4 cards the first two have one: together they send at 25 GB/s, the first and the third at 50."""
    pair = cluster_of(tmp_path, 2, 8, SWITCH, "cards = 4")
    assert pair.flow([(0, 8), (1, 9)]).bandwidth == pytest.approx(12.5e9)
    assert pair.flow([(0, 8), (2, 10)]).bandwidth == pytest.approx(25e9)


def test_a_message_leaves_by_the_card_on_its_switch(tmp_path: Path) -> None:
    """A card on each switch of a PCIe tree: device 4 of one server to device 1 of the other passes no root."""
    pair = cluster_of(tmp_path, 2, 8, TREE, "cards = 2")
    names = [pair.channels[index].name for index in pair.route(4, 9)]
    assert names == [
        "server0.device4-server0.switch0.1:forth",
        "server0.network1:forth",
        "server1.network0:back",
        "server1.device1-server1.switch0.0:back",
    ]


# --------------------------------------------------------------------------------- levels of switches


def test_a_fat_tree_has_three_levels_of_switches(tmp_path: Path) -> None:
    """Racks of 2 servers, spines of 4, a core: each level half as wide as what is below; sums at what is narrowest."""
    above = "[spine]\nservers = 2\noversubscription = 2\n[core]\nservers = 4\noversubscription = 2\n"
    tree = cluster_of(tmp_path, 8, 2, SWITCH, 'attach = "device"', above)
    assert tree.switches[-7:] == ("rack0", "rack1", "rack2", "rack3", "spine0", "spine1", "core")
    assert [len(tree.route(0, other)) for other in (1, 2, 4, 8)] == [2, 2, 4, 6]
    up = {link.first: link.bandwidth for link in tree.links if link.second in ("spine0", "core")}
    assert up == pytest.approx({"rack0": 50e9, "rack1": 50e9, "spine0": 50e9, "spine1": 50e9})
    assert tree.topology.depth == 3
    assert tree.flow([(device, device + 8) for device in range(8)]).bandwidth == pytest.approx(50e9 / 8)


def test_a_dragonfly_has_a_link_per_pair_of_groups(tmp_path: Path) -> None:
    """4 groups of 2 servers with 2 cards: 100 GB/s below each, over 3 links to the others; groups are racks to collectives."""
    fly = cluster_of(tmp_path, 8, 2, SWITCH, 'attach = "device"', '[spine]\nservers = 2\ntopology = "full"\n')
    between = [link.bandwidth for link in fly.links if {link.first, link.second} <= set(fly.switches)]
    assert between == pytest.approx([100e9 / 3] * 6)
    assert [len(fly.route(0, other)) for other in (2, 4, 15)] == [2, 3, 3]
    assert fly.topology.depth == 2
    assert fly.topology.in_components(range(16), 1) == [list(range(first, first + 4)) for first in (0, 4, 8, 12)]


def test_rails_may_be_of_cards_that_devices_share(tmp_path: Path) -> None:
    """Four servers of four devices with two cards: a leaf for the first cards of two servers, each of two devices, and so on."""
    rails = cluster_of(tmp_path, 4, 4, SWITCH, "cards = 2", '[spine]\nservers = 2\nleaf = "rail"\n')
    leaves = [f"rack{rack}.rail{card}" for rack in (0, 1) for card in (0, 1)]
    assert list(rails.switches[-5:]) == [*leaves, "spine"]
    ends = [{link.first, link.second} for link in rails.links]
    below = Counter(leaf for leaf in leaves for one in ends if leaf in one and "spine" not in one)
    assert below == dict.fromkeys(leaves, 4)


@pytest.mark.parametrize(
    ("count", "devices", "inside", "network", "reached"),
    [
        (16, 1, "", 'topology = "torus"\nsides = [4, 4]', 100e9),  # four cables of 25 GB/s from each board
        (4, 1, "", 'topology = "chain"', 25e9),  # a ring that comes back along the line
        (4, 1, "", 'topology = "full"', 50e9),  # two rings of unlike steps
        (4, 2, SWITCH + "\ncarries_network = true", 'topology = "ring"', 25e9),
        (16, 4, SWITCH, 'attach = "device"\ntopology = "torus"\nsides = [4, 4]', 56.7e9),
    ],
)
def test_servers_are_cabled_without_a_switch(
    tmp_path: Path, count: int, devices: int, inside: str, network: str, reached: float
) -> None:
    """Boards, servers by their switches, and a torus per device: bus bandwidth of sums over all."""
    cluster = cluster_of(tmp_path, count, devices, inside, network)
    assert not any("network" in switch for switch in cluster.switches)
    assert bus_bandwidth(cluster, range(count * devices), 1e12) == pytest.approx(reached, rel=0.01)


@pytest.mark.parametrize(
    ("inside", "network", "above", "words"),
    [
        ('topology = "torus"', "cards = 1", "", r"inside\.sides: topology torus needs them, as in sides = \[4, 4\]"),
        ('topology = "torus"\nsides = [3, 3]', "cards = 1", "", r"inside\.sides = \[3, 3\]: hold 9 devices, of which"),
        ('topology = "torus"\nsides = [8, 1]', "cards = 1", "", r"inside\.sides\[1\] = 1"),
        ('topology = "ring"\nsides = [8]', "cards = 1", "", "topology ring has none; they go with torus, mesh, tree"),
        ('topology = "hypercube"', "cards = 1", "",
         "must be one of chain, full, mesh, ring, shared-bus, switch, torus, tree"),
        ('topology = "mesh"\nsides = [2, 4]\ncarries_network = true', "cards = 1", "",
         r"\$.servers\[0\].inside.carries_network: goes with topology switch, shared-bus or tree: mesh"),
        (SWITCH, 'topology = "torus"\nsides = [2, 2]', "",
         r"network\.sides = \[2, 2\]: hold 4 servers, of which there are 8"),
        (SWITCH, 'topology = "ring"', "", "needs servers with equally many cards"),
        (SWITCH, 'fabric = "copper"', "", r"network\.fabric = 'copper': must be one of efa"),
        (SWITCH, "cards = 9", "", r"network\.cards = 9: a server of 8 devices has at most as many"),
        (SWITCH, 'attach = "device"\ncards = 2', "",
         r'\$.network.cards = 2: goes with attach = "server"; each device has a card of its own'),
        (TREE, "cards = 4", "",
         r"\$.network.cards = 4: stand on the switches that carry the network, of which a server has 2, 1"),
        (SWITCH, "cards = 1", "[core]\nservers = 4\n", r"\$\.core: joins the spines"),
        (SWITCH, "cards = 1", "[spine]\nservers = 2\n[core]\nservers = 3\n",
         r"\$.core.servers = 3: must be a multiple of \$.spine.servers = 2"),
        (SWITCH, "cards = 1", '[spine]\nservers = 2\ntopology = "full"\n[core]\nservers = 4\n',
         r"\$.core: joins spines; \$.spine.topology is full, not switch"),
        (SWITCH, "cards = 1", '[spine]\nservers = 2\ntopology = "torus"\nsides = [3]\n', r"sides = \[3\]: hold 3 switches"),
        (SWITCH, 'attach = "device"\ntopology = "ring"', "[spine]\nservers = 2\n",
         r'\$.spine: joins switches of a network with topology = "switch": ring'),
        ('topology = "switch"\nbandwidth_gbps = 0', "cards = 1", "",
         r"\$.servers\[0\].inside.bandwidth_gbps = 0: must be from 1e-06 to 1e\+07 \(10\^9 bits/s\); check the unit"),
    ],
)  # fmt: skip
def test_a_network_that_cannot_be_is_refused(tmp_path: Path, inside: str, network: str, above: str, words: str) -> None:
    """In one line, with the key, the value and the rule."""
    with pytest.raises(ProfileError, match=words) as caught:
        cluster_of(tmp_path, 8, 8, inside, network, above)
    assert "\n" not in str(caught.value)


def test_a_full_network_of_too_many_servers_is_not_built(tmp_path: Path) -> None:
    """Its links are counted first."""
    with pytest.raises(ProfileError, match=r"\$.network: a cluster has at most 65536 links, this one up to 80600"):
        cluster_of(tmp_path, 400, 1, "", 'topology = "full"')
