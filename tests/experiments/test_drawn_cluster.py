"""Drawn clusters: what is folded, where nodes are, and `pipeplan check --draw`, with the loads of a plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import cos, hypot, pi, prod, sin
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from experiments.report.cluster_plots import LINK_COLORS, draw
from experiments.report.drawn_cluster import DrawnCluster, _grid_places, drawn_cluster
from hardware_profiles import load_cluster
from simulator import Plan, PlanFile, Problem, Stage, load_workload, simulate
from tests.drawings import drawing
from tests.experiments.commands import ended, refused
from tests.records import Recorded, plain, weights

INSIDE = "[servers.inside]\nbandwidth_gb_per_s = 50\n"
NETWORK = "[network]\nbandwidth_gbps = 200\n"


def drawn(folder: Path, count: int, devices: int, inside: str, network: str = "") -> DrawnCluster:
    """A cluster of servers, drawn."""
    text = f'name = "made"\n[[servers]]\ncount = {count}\ndevices = {devices}\naccelerator = "v100-sxm2"\n'
    path = folder / "made.toml"
    path.write_text(text + (INSIDE + inside if inside else "") + (NETWORK + network if network else ""))
    found = drawn_cluster(load_cluster(path))
    places = [node.place for node in found.nodes]
    assert min(hypot(x - u, y - v) for (x, y), (u, v) in combinations(places, 2)) > 0.5  # nothing hides another
    return found


CLUSTERS: list[tuple[int, int, str, str, dict[int, int]]] = [
    (2, 8, 'topology = "switch"\n', 'attach = "device"\n', {1: 19}),
    # Of 64 servers in racks of 4 one, with its two devices, their switch, the rack and the spine.
    (64, 2, 'topology = "switch"\n', 'attach = "device"\n[spine]\nservers = 4\n', {64: 3, 16: 1, 1: 1}),
    (2, 72, 'topology = "switch"\n', 'attach = "device"\n', {144: 1, 2: 1, 1: 1}),
    (1, 64, 'topology = "torus"\nsides = [4, 4, 4]\n', "", {1: 64}),
    (1, 512, 'topology = "torus"\nsides = [8, 8, 8]\n', "", {1: 64}),
    (16, 1, "", 'topology = "torus"\nsides = [4, 4]\n', {1: 16}),
    # A switch of one device alone, beside cables to others.
    (4, 1, 'topology = "switch"\n', 'topology = "ring"\n', {1: 8}),
    (9, 2, 'topology = "switch"\ncarries_network = true\n', 'topology = "torus"\nsides = [3, 3]\n', {1: 27}),
    (2, 8, 'topology = "tree"\nsides = [4, 2]\ncarries_network = true\n', "cards = 2\n", {1: 23}),
    (
        16,
        4,
        'topology = "switch"\n',
        'attach = "device"\n[spine]\nservers = 4\ntopology = "full"\n',
        {4: 16, 1: 20},
    ),
]


@pytest.mark.parametrize(("count", "devices", "inside", "network", "shown"), CLUSTERS)
def test_like_components_are_drawn_once(
    tmp_path: Path, count: int, devices: int, inside: str, network: str, shown: dict[int, int]
) -> None:
    """How many nodes stand for how many; links lead from drawn node to drawn node."""
    found = drawn(tmp_path, count, devices, inside, network)
    counts = [node.count for node in found.nodes]
    assert {one: counts.count(one) for one in counts} == shown
    names = {node.name for node in found.nodes}
    assert {end for link in found.links for end in (link.first, link.second)} == names


@pytest.mark.parametrize("sides", [(2, 3), (3, 2), (4,), (2, 3, 4)])
def test_nodes_of_a_grid_have_places_of_their_own(sides: tuple[int, ...]) -> None:
    """As many to the right as the last side, as many down as the one before, others behind them."""
    places = _grid_places(sides, (False,) * len(sides))
    step, columns = 1.9 if len(sides) > 2 else 1.0, sides[-1]
    assert len(set(places)) == prod(sides)
    assert [x for x, _ in places[:columns]] == pytest.approx([step * number for number in range(columns)])
    assert {y for _, y in places[: columns * (sides[-2] if len(sides) > 1 else 1)]} == {
        -step * row for row in range(sides[-2] if len(sides) > 1 else 1)
    }


@pytest.mark.parametrize(
    ("inside", "places"),
    [
        ('"torus"\nsides = [2, 3]', [(0, 0), (1, 0), (2, 0), (0, -1), (1, -1), (2, -1)]),
        ('"ring"', [(1.5 * sin(pi * place / 3), 1.5 * (cos(pi * place / 3) - 1)) for place in range(6)]),
    ],
)
def test_devices_of_a_server_lie_as_they_are_cabled(
    tmp_path: Path, inside: str, places: list[tuple[float, float]]
) -> None:
    """In rows and columns, or a circle, beside a network that they are attached to; from the first one on."""
    found = drawn(tmp_path, 2, 6, f"topology = {inside}\n", 'attach = "device"\n')
    (x, y), *_ = own = [node.place for node in found.nodes if node.name.startswith("server0.device")]
    assert [(u - x, v - y) for u, v in own] == [pytest.approx(place) for place in places]


def test_pictures_keep_their_looks(tmp_path: Path, recorded: Recorded) -> None:
    """Each cluster above, its servers in the places where they are drawn; of some the figure, whole with the loads of a plan."""
    places = {str(case[:4]): weights(plain(drawn(tmp_path, *case[:4]))) for case in CLUSTERS}
    figures = {name: weights(drawing(draw(load_cluster(name)))) for name in ("dgx-a100:64", "tpu-v5p", "gb200-nvl72")}
    path = tmp_path / "one.toml"
    path.write_text(f'name = "{"alone" * 20}"\n[[servers]]\ndevices = 1\naccelerator = "v100-sxm2"\n')
    figures["one device without a link, a long name"] = drawing(draw(load_cluster(path)))
    outcome = simulate(*PlanFile.read_plan(plan_file(tmp_path)[0]))
    recorded(places=places, figures=figures, loads=drawing(draw(outcome.problem.cluster, outcome.link_loads())))


def test_links_that_would_hide_behind_devices_are_bent(tmp_path: Path) -> None:
    """In a 4 x 4 torus the 8 that close its rows; in a ring, which is a circle, none."""
    assert sum(link.bent for link in drawn(tmp_path, 1, 16, 'topology = "torus"\nsides = [4, 4]\n').links) == 8
    assert not any(link.bent for link in drawn(tmp_path, 1, 8, 'topology = "ring"\n').links)


def plan_file(folder: Path) -> tuple[Path, float]:
    """Two stages of AlexNet on two servers of PipeDream's cluster A, and the bytes of their boundary for 8 samples."""
    problem = Problem(load_workload("alexnet"), load_cluster("pipedream-a:2"), 8)
    plan = Plan("hand", "gpipe", (Stage(tuple(range(10)), (0,)), Stage(tuple(range(10, 22)), (4,))), (4, 4))
    PlanFile(problem, plan).write(folder / "plan.json")
    return folder / "plan.json", 8 * problem.workload.layers[9].output_elements * problem.element_bytes


def test_a_plan_loads_the_links_between_its_stages(tmp_path: Path) -> None:
    """The boundary goes forth, its gradient comes back; each link is busy for its bytes at its own rate; others carry nothing."""
    path, size = plan_file(tmp_path)
    outcome = simulate(*PlanFile.read_plan(path))
    loads = outcome.link_loads()
    carrying = {frozenset((one["first"], one["second"])): one for one in loads.record()}
    assert set(carrying) == {frozenset(("server0.bus", "network")), frozenset(("server1.bus", "network"))} | {
        frozenset((f"server{server}.device{device}", f"server{server}.bus")) for server in (0, 1) for device in range(4)
    }  # a bus is one medium: all of its links carry what any does
    card = carrying[frozenset(("server0.bus", "network"))]
    assert (card["bytes_forth"], card["bytes_back"]) == pytest.approx((size, size))
    bandwidth = outcome.problem.cluster.channels[outcome.problem.cluster.route(0, 4)[1]].bandwidth
    assert card["busy"] == pytest.approx(size / bandwidth / outcome.iteration_seconds)
    assert [row[0] for row in loads.table().rows] == ["2", "8"]
    first, second = outcome.plan.stages
    inside = simulate(
        outcome.problem, replace(outcome.plan, stages=(first, replace(second, devices=(1,))))
    ).link_loads()
    scale = (
        draw(outcome.problem.cluster, inside).axes[-1].get_ylim()
    )  # of the other server, whose links carry nothing, too
    assert scale == pytest.approx((0.0, 100.0 * max(one["busy"] for one in inside.record())))


def test_all_that_devices_send_is_on_their_links() -> None:
    """On a switch, where every message leaves its sender by one link: boundaries and sums are the bytes of all links."""
    problem = Problem(load_workload("alexnet"), load_cluster("sailor-mit-2").take(4), 8)
    two = Plan("hand", "1f1b", (Stage(tuple(range(10)), (0, 1)), Stage(tuple(range(10, 22)), (2, 3))), (4, 4))
    outcome = simulate(problem, two)
    sent = sum(one["bytes_forth"] for one in outcome.link_loads().record())  # type: ignore[misc]
    assert sent == pytest.approx(8 * outcome.bytes_per_sample)


def test_check_draws_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name and count; with a plan, whose loads it tells; the same picture twice; what does not go together in one line."""
    path, _ = plan_file(tmp_path)
    picture = tmp_path / "cluster.svg"
    assert ended(capsys, ["check", "dgx-a100:32", "--draw", str(picture)])[:2] == (0, f"{picture}\n")
    first = picture.read_bytes()
    assert b"32" in first
    ended(capsys, ["check", "dgx-a100:32", "--draw", str(picture)])
    assert picture.read_bytes() == first
    code, told, _ = ended(capsys, ["check", "--plan", str(path), "--draw", str(tmp_path / "loads.png")])
    assert code == 0
    assert "10 of 10 links carry something" in told
    assert (tmp_path / "loads.png").read_bytes()[:4] == b"\x89PNG"
    code, told, _ = ended(capsys, ["check", "dgx-a100:1", "--plan", str(path), "--draw", str(tmp_path / "other.pdf")])
    assert (code, "2 of 16 links carry" in told) == (0, True)
    for words in (["check"], ["check", "a.toml", "--schema", "plan"], ["check", "--draw", "c.png"]):
        assert "check takes one of FILE, --plan FILE and --schema KIND" in refused(capsys, words)
    assert "must end in .png" in refused(capsys, ["check", "dgx-a100", "--draw", "c.gif"])


def test_shared_media_are_told() -> None:
    """Four buses, each of four links that share its rate, and as many cards of 10 Gb/s, each of one."""
    figure = draw(load_cluster("pipedream-a"))
    (legend,) = figure.legends
    lines = [patch for patch in figure.axes[0].patches if hasattr(patch, "get_connectionstyle")]
    assert {to_hex(line.get_edgecolor()) for line in lines} == {*LINK_COLORS[:2]}
    words = [text.get_text() for text in legend.get_texts()]
    assert "16 links of 12 GB/s, 10 µs, on 4 shared media" in words
    assert "4 links of 1.25 GB/s, 30 µs" in words


def test_legends_are_no_wider_than_their_figure(tmp_path: Path) -> None:
    """Three kinds of links and of devices under a narrow picture: fewer columns, none cut off."""
    text = 'name = "unlike"\n[network]\nbandwidth_gbps = 100\nlatency_us = 5\n'
    for kinds, look, rate in (["v100-sxm2"] * 4, "ring", 50), (["a100-40", "a100-80"], "switch", 300):
        text += f"[[servers]]\ncount = 1\naccelerators = {kinds}\n"
        text += f'[servers.inside]\ntopology = "{look}"\nbandwidth_gb_per_s = {rate}\nlatency_us = 1\n'
    (tmp_path / "unlike.toml").write_text(text, encoding="utf-8")
    figure = draw(load_cluster(tmp_path / "unlike.toml"))
    (legend,) = figure.legends
    assert legend.get_window_extent().width <= figure.bbox.width


def test_loads_are_widths(tmp_path: Path) -> None:
    """The busiest link is the widest, and links that carry nothing are told apart."""
    path, _ = plan_file(tmp_path)
    outcome = simulate(*PlanFile.read_plan(path))
    figure = draw(outcome.problem.cluster, outcome.link_loads())
    lines = [patch for patch in figure.axes[0].patches if hasattr(patch, "get_connectionstyle")]
    assert len(lines) == 10
    widths = sorted({round(line.get_linewidth(), 6) for line in lines})
    assert len(widths) == 2
