"""Sensitivity: replays of a plan on other machines, and rooflines of layers whose bounds are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeplan as pp
from experiments.cli import main
from hardware_profiles import FieldProgrammableGateArray, GraphicsProcessor, SettingError, load_cluster
from simulator import Layer, Plan, Problem, Stage, Workload, change_settings, layer_bounds, sensitivity, simulate
from simulator.results.layer_bounds import OTHERWISE, LayerBounds
from simulator.sensitivity import FACTORS, STEP
from simulator.settings import numbers_of
from tests.experiments.commands import refused
from tests.simulator.strategies import UnitDevice, star_cluster

CHAIN = Plan("hand", "1f1b", (Stage((0, 1), (0,)), Stage((2, 3), (1,))), (2, 2, 2, 2))


def chain() -> Problem:
    """Four layers on two GPUs of a server."""
    return pp.Problem("chain:4", "pipedream-a", 8, devices=2)


def seconds(problem: Problem, path: str, factor: float) -> float:
    """Of the plan where a number is times a factor."""
    return simulate(change_settings(problem, [f"{path}=*{factor!r}"]).problem, CHAIN).iteration_seconds


def test_seconds_are_those_of_the_changed_machine() -> None:
    """At every factor, and the slope is that of the chord between a hundredth less and more."""
    problem = chain()
    paths = ["accelerator.memory_bandwidth_gb_per_s", "servers.inside.bandwidth_gb_per_s", "accelerator.memory_gib"]
    paths[1] = next(path for path in ("servers.inside.bandwidth_gbps", paths[1]) if _is_there(problem, path))
    found = sensitivity(problem, CHAIN, paths)
    whole = found.outcome.iteration_seconds
    assert {*found.unfelt, *(one.path for one in found.numbers)} == set(paths)
    assert "accelerator.memory_gib" in found.unfelt
    assert [one.swing() for one in found.numbers] == sorted((one.swing() for one in found.numbers), reverse=True)
    assert found.numbers
    for one in found.numbers:
        assert one.seconds == tuple(seconds(problem, one.path, factor) for factor in FACTORS)
        chord = seconds(problem, one.path, 1 + STEP) - seconds(problem, one.path, 1 - STEP)
        assert one.slope == pytest.approx(chord / whole / (2 * STEP))
        assert one.slope < 0.0  # faster links and memory take no longer


def _is_there(problem: Problem, path: str) -> bool:
    try:
        change_settings(problem, [f"{path}=*2"])
    except SettingError:
        return False
    return True


def test_what_a_file_does_not_allow_has_no_seconds() -> None:
    """A share of the peak is at most 1: twice 0.9 is none, and its slope is that of less."""
    found = sensitivity(
        pp.Problem("chain:4", "dgx-a100:1", 8, devices=2), CHAIN, ["servers.inside.point_to_point_efficiency"]
    )
    (one,) = found.numbers
    assert one.seconds[-1] is None
    assert one.seconds[0] is not None
    assert one.slope is not None
    assert "-" in found.tables()[0].rows[0]
    whole, bars = found.outcome.iteration_seconds, found.plot().axes[0].patches
    assert [bar.get_width() for bar in bars] == [pytest.approx(one.seconds[0] - whole), 0.0]  # type: ignore[attr-defined]


def test_of_two_members_each_has_its_own_number() -> None:
    """Two kinds of servers: what a path says of one is that one's."""
    paths = [f"servers{which}.inside.bandwidth_gb_per_s" for which in (".0", "[1]", "")]
    assert numbers_of(pp.Problem("chain:4", "sailor-mit-4", 8), None, paths) == dict(
        zip(paths, (1.5, 4.7, 1.5), strict=True)
    )


# --------------------------------------------------------------------------------------------------------- rooflines

LAYERS = (
    Layer("wide", "linear", flop=1e12, parameters=10, output_elements=1.0, stashed_elements=1.0, split="rows"),
    Layer("light", "activation", flop=1.0, output_elements=1e9, stashed_elements=1e9),
)
NETWORK = Workload("two", LAYERS, ((0, 1),))


def bounds(device: Any, plan: Plan | None = None, bandwidth: float = 1e12) -> LayerBounds:
    """Of a product of 10^12 FLOP, and of what moves 10^9 elements."""
    cluster = replace(star_cluster(2, bandwidth=bandwidth), devices=(device, device))
    return layer_bounds(Problem(NETWORK, cluster, 1), plan or Plan("hand", "gpipe", (Stage((0, 1), (0,)),), (1,)))


def gpu(**figures: float) -> GraphicsProcessor:
    """A GPU whose kernels start at once."""
    named = {"memory_bandwidth": 1e12, "call_overhead": 0.0, "step_overhead": 0.0} | figures
    return GraphicsProcessor("g", 1e13, peak_flops={"fp32": 1e12}, **named)  # type: ignore[arg-type]


def test_a_product_is_bound_by_flop_and_a_move_by_memory() -> None:
    """The one takes seconds of products and microseconds of memory, the other none and milliseconds."""
    found = bounds(gpu())
    assert {one.layer: one.bound for one in found.layers} == {"wide": "FLOP", "light": "bandwidth"}
    assert found.shares(0) == found.shares()
    assert sum(found.shares().values()) == pytest.approx(1.0)


def test_measured_seconds_on_a_board_are_those_of_each_layer() -> None:
    """Nothing streams: 1 s forward and 3 s backward, which nothing is known to bound, and 2 s and 4 s."""
    rows = ((1.0, 1.0, 3.0), (1.0, 2.0, 4.0))
    layers = tuple(replace(one, measured=(row,)) for one, row in zip(LAYERS, rows, strict=True))
    problem = Problem(replace(NETWORK, layers=layers, bytes_per_element=4), load_cluster("fpga-vcu118-4").take(1), 1)
    found = layer_bounds(problem, Plan("hand", "gpipe", (Stage((0, 1), (0,)),), (1,))).layers
    assert [one.seconds for one in found] == [4.0, 6.0]


def test_weights_of_a_board_s_stage_bind_where_they_do_not_fit() -> None:
    """Two layers of 1 MB each: a stage of both moves them from 2 MB/s of memory, beside 3 MB on chip; each alone stays there."""
    board = FieldProgrammableGateArray("b", 1000, 1e6, {"fp32": 1.0}, 1.0, 3e6, 1e9, 2e6, 1e9)
    layers = [Layer(f"layer{n}", "linear", flop=1e8, parameters=250_000, output_elements=10.0) for n in range(2)]
    cluster = replace(star_cluster(2), devices=(board, board))
    problem = Problem(Workload("two", tuple(layers), ((0, 1),)), cluster, 1)
    both = layer_bounds(problem, Plan("hand", "gpipe", (Stage((0, 1), (0,)),), (1,)))
    apart = layer_bounds(problem, Plan("hand", "gpipe", (Stage((0,), (0,)), Stage((1,), (1,))), (1,)))
    assert [one.bound for one in both.layers] == ["bandwidth"] * 2
    assert [one.bound for one in apart.layers] == ["FLOP"] * 2
    assert both.layers[0].seconds == pytest.approx(4e6 / 2e6)  # read twice; sums of gradients read and written
    assert apart.layers[0].seconds == pytest.approx(3 * 1e8 / 2e9)


def test_a_kernel_of_a_minute_is_bound_by_its_launch() -> None:
    """Whatever its work."""
    assert {one.bound for one in bounds(gpu(call_overhead=60.0)).layers} == {"launch"}


def test_of_another_accelerator_only_links_are_known() -> None:
    """What it computes by is its own affair: in one of hand-made seconds nothing binds that has a name, but a slow link."""
    pair = Plan("hand", "gpipe", (Stage((0, 1), (0, 1), (2,)),), (1,))
    alone, divided = bounds(UnitDevice()), bounds(UnitDevice(), pair, 1e-13)
    assert alone.shares() == {OTHERWISE: 1.0}
    assert alone.words == ""
    assert alone.layers[0].seconds == 3e12
    assert divided.layers[0].bound == "link"


def test_a_divided_product_is_bound_by_a_slow_link() -> None:
    """On two devices that exchange its output over a link of a byte a second; over a fast one by FLOP."""
    pair = Plan("hand", "gpipe", (Stage((0, 1), (0, 1), (2,)),), (1,))
    (slow, *_), (fast, *_) = bounds(gpu(), pair, 1e-3).layers, bounds(gpu(), pair, 1e15).layers
    assert (slow.layer, slow.bound, fast.bound) == ("wide", "link", "FLOP")


def test_layers_take_as_long_as_with_the_largest_micro_batch() -> None:
    """Four times as long as with one sample, nearly all in products; where two replicas split micro-batches, with a half."""

    def wide(devices: tuple[int, ...], *sizes: int) -> float:
        cluster = replace(star_cluster(2), devices=(gpu(), gpu()))
        plan = Plan("hand", "gpipe", (Stage((0, 1), devices),), sizes, replication="split")
        return layer_bounds(Problem(NETWORK, cluster, sum(sizes)), plan).layers[0].seconds

    assert wide((0,), 2, 4, 2) == wide((0, 1), 2, 8, 4) == pytest.approx(4 * wide((0,), 1), rel=1e-4)


def test_the_report_says_what_bounds_computation() -> None:
    """Where computation limits a plan, which of its roofs does."""
    problem = pp.Problem("gpt2", "dgx-a100:1", 8, devices=1)
    plan = Plan("hand", "gpipe", (Stage(tuple(range(len(problem.workload.layers))), (0,)),), (8,))
    assert "limited by computation (bound by " in pp.report(pp.simulate(problem, plan)).limit


# ----------------------------------------------------------------------------------------------------------- command


def test_the_command_prints_and_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One document; a tornado chart as the file that is named; and a line for a path that names no number."""
    path = tmp_path / "plan.json"
    pp.PlanFile(chain(), CHAIN).write(path)
    words = ("sensitivity", "--plan", str(path), "--over", "accelerator.memory_bandwidth_gb_per_s")
    assert main((*words, "--out", str(tmp_path / "tornado.png"), "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["path"] for one in told["numbers"]] == ["accelerator.memory_bandwidth_gb_per_s"]
    assert {one["layer"] for one in told["layers"]["layers"]} <= {layer.name for layer in chain().workload.layers}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["plan.json", "tornado.png"]
    assert "'network.bandwith' names no value" in refused(capsys, (*words[:3], "--over", "network.bandwith"))
    for over, said in [
        ("batch", "batch: is no number above 0"),
        (
            "servers..inside.latency_us",
            "'servers..inside.latency_us' is no path, as a.b or a[member].b; near it: cluster.s",
        ),
        ("servers.9.inside.latency_us", "cluster.servers has no '9'; there: 0"),
    ]:
        assert said in refused(capsys, (*words[:3], "--over", over))
