"""Tests of pipelines for inference: the least interval by brute force, a replay, memory, and energy."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import simpy

import pipeplan as pp
from hardware_profiles import FieldProgrammableGateArray, GraphicsProcessor, Phase, Power, Precision, Work, demand
from planners import ForwardPipeline, InapplicablePlannerError, forward_pipeline
from simulator import InfeasiblePlanError, Layer, LayerCosts, Problem, Workload
from tests.experiments.commands import ended, refused
from tests.simulator.strategies import UnitDevice


def boards(workload: str = "alexnet", count: int = 3, batch: int = 1) -> Problem:
    """A network in int8 on a row of VCU118."""
    made = pp.Problem(workload, "fpga-vcu118-4", batch=batch, precision="int8")
    return replace(made, cluster=made.cluster.take(count))


def stage_seconds(problem: Problem, device: int, begin: int, end: int) -> float:
    """Seconds of a group in a stage, one copy of its weights on the chip."""
    board, works = problem.cluster.devices[device], LayerCosts(problem).works[begin:end]
    assert isinstance(board, FieldProgrammableGateArray)
    held = np.ones((1, len(works)), dtype=np.bool_)
    return float(board.divided(works, held, "int8", copies=1).seconds(problem.batch, "forward")[0])


def intervals(problem: Problem) -> Iterator[float]:
    """Seconds from group to group of all cuts over any number of the first boards."""
    layers, costs = len(problem.workload), LayerCosts(problem)
    for stages in range(1, len(problem.cluster.devices) + 1):
        for cuts in combinations(range(1, layers), stages - 1):
            ends = [0, *cuts, layers]
            computed = [stage_seconds(problem, device, *own) for device, own in enumerate(pairwise(ends))]
            sizes = [costs.cut_bytes[cut] * problem.batch for cut in cuts]
            sent = [problem.cluster.transfer_seconds(one, one + 1, size) for one, size in enumerate(sizes)]
            yield max(*computed, *sent, 0.0)


@pytest.mark.parametrize(("count", "batch"), [(1, 1), (2, 4), (3, 1)])
def test_no_cuts_have_a_shorter_interval(count: int, batch: int) -> None:
    """All partitions of AlexNet's 22 layers over up to three boards."""
    problem = boards(count=count, batch=batch)
    found = forward_pipeline(problem)
    assert found.interval_seconds == pytest.approx(min(intervals(problem)), rel=1e-5)
    assert found.samples_per_second == pytest.approx(batch / found.interval_seconds)
    assert [one.first for one in found.stages[1:]] == [one.last + 1 for one in found.stages[:-1]]
    assert (found.stages[0].first, found.stages[-1].last) == (0, len(problem.workload) - 1)


def test_slow_links_are_passed_where_little_crosses(tmp_path: Path) -> None:
    """At 0.013 Gb/s a transfer sets the pace, and no cuts have a shorter interval; at 0.0001 one board is left."""
    slow, still = (row_of_boards(tmp_path, gbps) for gbps in (0.013, 0.0001))
    found = forward_pipeline(slow)
    assert found.interval_seconds == pytest.approx(min(intervals(slow)), rel=1e-5)
    assert found.interval_seconds == found.stages[0].send_seconds
    assert found.remarks()[1] == "the pace is set by a transfer"
    assert len(forward_pipeline(still).stages) == 1


def row_of_boards(folder: Path, gbps: float) -> Problem:
    """AlexNet on two boards whose link is so fast."""
    text = 'name = "row"\n[[servers]]\ncount = 1\naccelerator = "vcu118"\ndevices = 2\n[servers.inside]\ntopology = "chain"\n'
    path = folder / f"{gbps}.toml"
    path.write_text(text + f"bandwidth_gbps = {gbps}\nlatency_us = 1\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a link that is unusually slow
        cluster = pp.load_cluster(path)
    return replace(boards(count=2), cluster=cluster)


def test_groups_leave_as_often_and_as_late_as_a_replay_says() -> None:
    """SimPy, a resource for every board and link: the third group after the first, and when the first is through."""
    found = forward_pipeline(boards("resnet50", 4))
    env, left = simpy.Environment(), list[float]()
    steps = [seconds for one in found.stages for seconds in (one.seconds, one.send_seconds)][:-1]
    places = [simpy.Resource(env) for _ in steps]

    def group() -> Iterator[simpy.Event]:
        for place, seconds in zip(places, steps, strict=True):
            with place.request() as free:
                yield free
                yield env.timeout(seconds)
        left.append(env.now)

    for _ in range(20):
        env.process(group())
    env.run()
    assert left[0] == pytest.approx(found.latency_seconds)
    assert left[-1] - left[-2] == pytest.approx(found.interval_seconds)


def with_boards(problem: Problem, **changes: object) -> Problem:
    """The problem on boards with other figures."""
    devices = []
    for one in problem.cluster.devices:
        assert isinstance(one, FieldProgrammableGateArray)
        devices.append(replace(one, **changes))  # type: ignore[arg-type]
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


def test_weights_are_divided_where_one_board_holds_not_all() -> None:
    """AlexNet's 61 MB on boards of 50 MB: at least two; on boards of 30 MB one layer does not fit."""
    wide = forward_pipeline(with_boards(boards(), ddr_bytes=50e6))
    assert len(wide.stages) > 1
    with pytest.raises(
        InfeasiblePlanError, match=r"^alexnet: weights and features of 1 samples do not fit .* of 3 FPGAs$"
    ):
        forward_pipeline(with_boards(boards(), ddr_bytes=30e6))


def test_int4_is_of_forward_passes_alone() -> None:
    """Half of the bytes of int8 between boards, at least twice the rate; no plan of training, by hand or searched."""
    wide, narrow = (replace(boards(count=2), precision=one) for one in ("int8", "int4"))
    whole, half = forward_pipeline(wide), forward_pipeline(narrow)
    assert half.stages[0].sent_bytes == LayerCosts(wide).cut_bytes[half.stages[0].last + 1] / 2
    assert half.interval_seconds <= whole.interval_seconds / 2 * (1.0 + 1e-5)
    with pytest.raises(InapplicablePlannerError, match=r"'int4' is of forward passes alone: plan --inference$"):
        pp.plan(narrow)
    plan = pp.plan(wide, "data-parallel").plan
    with pytest.raises(
        InfeasiblePlanError, match="plan 'data-parallel' trains, and precision 'int4' is of forward passes alone"
    ):
        pp.simulate(narrow, plan)
    with pytest.raises(ValueError, match="'int4': v100-sxm2 has no rate for it"):
        pp.Problem("alexnet", "pipedream-b", batch=1, precision="int4")


def test_energy_is_of_the_boards_in_use() -> None:
    """Idle for an interval each, and the network's FLOP at their peak; unknown without a power."""
    problem = with_boards(boards("resnet50", 4), power=Power(10.0, 50.0))
    found = forward_pipeline(problem)
    board = problem.cluster.devices[0]
    assert isinstance(board, FieldProgrammableGateArray)
    assert found.energy is not None
    busy = problem.workload.flop() / board.peak_flops["int8"]
    assert found.energy.joules == pytest.approx(len(found.stages) * 10.0 * found.interval_seconds + 40.0 * busy)
    assert forward_pipeline(boards()).energy is None


def test_a_gpu_s_stages_take_its_forward_seconds() -> None:
    """Two V100 halves of VGG-16: the seconds of their layers' forwards."""
    problem = replace(pp.Problem("vgg16", "pipedream-b", batch=32), cluster=pp.load_cluster("pipedream-b").take(2))
    found: ForwardPipeline = forward_pipeline(problem)
    costs = LayerCosts(problem)
    for one in found.stages:
        layers = np.arange(one.first, one.last + 1)
        assert one.seconds == pytest.approx(costs.stage_seconds(one.device, layers, 32, "forward"))


def test_energy_of_parts_that_are_known() -> None:
    """On two V100: all draw idle for an interval; arithmetic and the rest draw in the seconds of their stages, memory by the
    traffic of forwards, links at both ends of the transfer."""
    problem = replace(pp.Problem("vgg16", "pipedream-b", batch=32), cluster=pp.load_cluster("pipedream-b").take(2))
    device = problem.cluster.devices[0]
    assert isinstance(device, GraphicsProcessor)
    powered = replace(device, power=Power(50.0, 250.0, compute=100.0, memory=40.0, link=10.0))
    found = forward_pipeline(replace(problem, cluster=replace(problem.cluster, devices=(powered,) * 2)))
    assert len(found.stages) == 2
    moved = sum(demand(work, 32, "forward", 4).traffic for work in LayerCosts(problem).works)
    working = sum(one.seconds for one in found.stages)
    assert found.energy is not None
    assert found.energy.parts == {
        "idle": pytest.approx(2 * 50.0 * found.interval_seconds),
        "compute": pytest.approx(100.0 * working),
        "memory": pytest.approx(40.0 * moved / device.memory_bandwidth),
        "link": pytest.approx(2 * 10.0 * found.stages[0].send_seconds),
        "other": pytest.approx(50.0 * working),
    }
    assert repr(found) == f"ForwardPipeline({found.words})"


DRAWN = Power(10.0, 50.0)


@dataclass(frozen=True)
class _Streaming(UnitDevice):
    """A device of a nanosecond for each FLOP: a stage takes as long as its longest layer."""

    rate: float = 1e9
    streams: bool = True
    power: Power = DRAWN

    def stage_seconds(self, works: Sequence[Work], samples: float, phase: Phase, precision: Precision) -> float:
        """Of the longest layer."""
        return max(self.seconds(work, samples, phase, precision) for work in works)

    def multiply_seconds(self, work: Work, phase: Phase, precision: Precision) -> float:
        """Of a sample."""
        return self.seconds(work, 1.0, phase, precision)


def test_of_other_devices_that_stream_no_energy_is_known() -> None:
    """What they work is known of boards alone: their power tells nothing."""
    problem = pp.Problem("alexnet", "pipedream-b", batch=4)
    found = forward_pipeline(replace(problem, cluster=replace(problem.cluster.take(1), devices=(_Streaming(),))))
    assert found.interval_seconds == max(4e-9 * layer.flop for layer in problem.workload.layers)
    assert found.energy is None
    assert "joules" not in found.words


def test_measured_layers_take_what_was_measured() -> None:
    """On boards, too, whatever their rates: forward seconds of each stage's layers, at full load."""
    layers = tuple(Layer(f"layer{n}", "linear", 0.0, 10, 10.0, measured=((4.0, 1.0 + n, 2.0),)) for n in range(3))
    network = Workload("seen", layers, ((0, 1), (1, 2)), bytes_per_element=4)
    made = with_boards(boards(count=2), power=Power(10.0, 50.0))
    problem = Problem(network, made.cluster, 4)
    found = forward_pipeline(problem)
    assert [(one.first, one.last) for one in found.stages] == [(0, 1), (2, 2)]
    assert [one.seconds for one in found.stages] == [3.0, 3.0]
    assert found.energy is not None
    assert found.energy.joules == pytest.approx(2 * 3.0 * 50.0)


def test_the_command_tells_images_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    """A table, or a document; options of training are refused."""
    asked = ["plan", "--inference", "--workload", "resnet50", "--cluster", "fpga-vcu118-4", "--precision", "int8"]
    code, said, _ = ended(capsys, [*asked, "--batch", "1"])
    assert code == 0
    assert "images/s on 4 FPGAs, latency" in said
    assert "the pace is set by stage" in said
    document = json.loads(ended(capsys, [*asked, "--batch", "2", "--json"])[1])
    assert document["samples_per_second"] == pytest.approx(2 / document["interval_seconds"])
    assert "is of training" in refused(capsys, [*asked, "--batch", "1", "--planner", "joint"])
