"""Tests of energy: idle power all the time, what full load adds while a device works, and what is not known."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hardware_profiles import (
    FieldProgrammableGateArray,
    GraphicsProcessor,
    Phase,
    Power,
    Work,
    demand,
    load_accelerator,
    load_cluster,
)
from hardware_profiles.accelerator import PluginError, check_members
from planners import Request, make_plan
from simulator import (
    Outcome,
    Plan,
    PlanCosts,
    Problem,
    Recompute,
    Stage,
    joules_by_part,
    load_workload,
    moving_seconds,
    simulate,
)
from simulator.plan_energy import told_power
from tests.simulator.strategies import UnitDevice


@dataclass(frozen=True)
class Powered(UnitDevice):
    """An accelerator of another package, whose power is known."""

    power: Power | None = None


def outcome(cluster: str, power: Power | None, *, count: int = 2, recompute: Recompute = "none") -> Outcome:
    """ResNet-50 in two stages, or two replicas where there are four devices each, on devices of that power."""
    machine = load_cluster(cluster).take(2 * count)
    devices = []
    for device in machine.devices:
        assert isinstance(device, GraphicsProcessor | FieldProgrammableGateArray)
        devices.append(replace(device, power=power))
    problem = Problem(load_workload("resnet50"), replace(machine, devices=tuple(devices)), 8 * count)
    layers = len(problem.workload)
    stages = tuple(
        Stage(tuple(range(*own)), tuple(range(place * count, place * count + count)))
        for place, own in enumerate([(0, 100), (100, layers)])
    )
    plan = Plan("by hand", "1f1b", stages, (2 * count,) * 4, recompute=(recompute,) * 2)
    return simulate(problem, plan)


def test_a_gpu_draws_full_power_while_it_computes() -> None:
    """Idle power over all of the iteration, and 200 W more for its computing and updates, of all four GPUs."""
    found = outcome("pipedream-b", Power(50.0, 250.0))
    split, energy = found.time_split(), found.energy
    assert energy is not None
    working = split.seconds[:, [0, 1, 7]].sum()
    assert energy.parts["idle"] == pytest.approx(4 * 50.0 * found.iteration_seconds)
    assert energy.parts == {"idle": energy.parts["idle"], "other": pytest.approx(200.0 * working)}
    assert energy.joules == pytest.approx(energy.parts["idle"] + 200.0 * working)
    assert energy.joules_per_sample == pytest.approx(energy.joules / 16)
    assert energy.watts == pytest.approx(energy.joules / found.iteration_seconds)
    assert 4 * 50.0 < energy.watts < 4 * 250.0


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "hanayo", "fbp-as", "1f1b-sno", "2bw", "pipemare"])
def test_work_is_what_the_time_split_tells(schedule: str) -> None:
    """Seconds of computing, forwards that run again and updates, of a timeline that the energy does not read."""
    power, machine = Power(50.0, 250.0), load_cluster("pipedream-b").take(4)
    cluster = replace(machine, devices=tuple(replace(one, power=power) for one in machine.devices))  # type: ignore[type-var]
    problem = Problem(load_workload("bert-base"), cluster, 16)
    found = make_plan("uniform", problem, Request(schedule=schedule, microbatches=8)).outcome
    working = found.time_split().seconds[:, [0, 1, 7]].sum()
    assert found.energy is not None
    assert found.energy.joules == pytest.approx(4 * 50.0 * found.iteration_seconds + 200.0 * working, rel=1e-12)


def test_a_board_draws_by_its_multiply_adds() -> None:
    """Three passes of the network's FLOP at the boards' peak, however long they take; forwards that run again once more."""
    cases: tuple[tuple[Recompute, float], ...] = ("none", 3.0), ("whole", 4.0)
    for recompute, passes in cases:
        found = outcome("fpga-vcu118-4", Power(20.0, 80.0), recompute=recompute)
        board, energy = found.problem.cluster.devices[0], found.energy
        assert isinstance(board, FieldProgrammableGateArray)
        assert energy is not None
        busy = passes * 16 * found.problem.workload.flop() / board.peak_flops["fp32"]
        assert energy.joules == pytest.approx(4 * 20.0 * found.iteration_seconds + 60.0 * busy)


def test_parts_draw_while_they_are_busy() -> None:
    """Two stages, each on a GPU: arithmetic at work, memory by the traffic of its layers, links at both ends of each of eight
    transfers; what has no name goes with the work.
    """
    power = Power(50.0, 250.0, compute=100.0, memory=40.0, link=10.0)
    found = outcome("pipedream-b", power, count=1)
    assert found.energy is not None
    costs, plan, devices = PlanCosts(found.problem, found.plan), found.plan, found.problem.cluster.devices
    working = found.time_split().seconds[:, [0, 1, 7]].sum()
    phases: tuple[Phase, ...] = "forward", "input_gradient", "weight_gradient"
    moved = sum(demand(work, 2, phase, 4).traffic for work in costs.layers.works for phase in phases) * len(
        plan.microbatches
    )
    assert isinstance(devices[0], GraphicsProcessor)
    moving = moved / devices[0].memory_bandwidth
    carried = sum(costs.transfer(*ends, 2).seconds for ends in (((0, 0), (1, 0)), ((1, 0), (0, 0)))) * len(
        plan.microbatches
    )
    assert found.energy.parts == {
        "idle": pytest.approx(2 * 50.0 * found.iteration_seconds),
        "compute": pytest.approx(100.0 * working),
        "memory": pytest.approx(40.0 * moving),
        "link": pytest.approx(2 * 10.0 * carried),
        "other": pytest.approx(50.0 * working),
    }
    assert found.energy.joules == pytest.approx(sum(found.energy.parts.values()))
    assert re.search(r"W \(idle \d+ %, compute \d+ %, memory \d+ %, link \d+ %, other \d+ %\)$", found.energy.words)


def test_memory_of_replicas_that_take_turns_moves_what_one_device_would() -> None:
    """Each has half of the micro-batches, whole: their weights are read as often in all."""
    power, machine = Power(50.0, 250.0, memory=40.0), load_cluster("pipedream-b").take(2)
    cluster = replace(machine, devices=tuple(replace(one, power=power) for one in machine.devices))  # type: ignore[type-var]
    problem = Problem(load_workload("alexnet"), cluster, 12)
    layers = tuple(range(len(problem.workload)))
    turns = Plan("hand", "1f1b-rr", (Stage(layers, (0, 1)),), (2, 4, 2, 4), "round-robin")
    alone = Plan("hand", "gpipe", (Stage(layers, (0,)),), (2, 4, 2, 4))
    parts = [found.parts["memory"] for plan in (turns, alone) if (found := simulate(problem, plan).energy) is not None]
    assert parts == [pytest.approx(parts[1])] * 2


def test_the_power_of_a_memory_whose_traffic_is_not_known_has_no_name() -> None:
    """It is among the others; that of a GPU's has one."""
    power = Power(50.0, 250.0, memory=40.0)
    gpu = replace(load_accelerator("v100-sxm2"), power=power)  # type: ignore[type-var]
    assert told_power(gpu) == power
    assert told_power(Powered(power=power)) == Power(50.0, 250.0)
    assert told_power(UnitDevice()) is None


@pytest.mark.parametrize(
    ("power", "said"),
    [
        (7.0, "power must be None or a Power, whose full is at least its idle, got 7.0"),
        (Power(10.0, 30.0, compute=-1.0), "parts of a Power must be amounts within what full load adds to idle, got P"),
        (Power(10.0, 30.0, compute=15.0, memory=6.0), "parts of a Power must be amounts within what full load adds"),
    ],
)
def test_the_power_of_another_package_s_accelerator_is_one_that_can_be(power: Any, said: str) -> None:
    """Parts may draw all that full load adds, and no more."""
    for good in (None, Power(10.0, 30.0, compute=15.0, memory=5.0)):
        check_members(Powered(power=good))
    with pytest.raises(PluginError, match=f"^accelerator 'unit', a plug-in: {said}"):
        check_members(Powered(power=power))


def test_a_part_that_is_not_known_of_every_device_has_no_name() -> None:
    """Its joules are among the others."""
    one, two = Power(1.0, 10.0, memory=4.0).joules(2.0, 1.0, 0.5), Power(1.0, 10.0).joules(2.0, 1.0)
    assert one == {"idle": 2.0, "memory": 2.0, "other": 5.0}
    assert joules_by_part([one, two]) == {"idle": 4.0, "other": 2.0 + 5.0 + 9.0}
    assert joules_by_part([one, one]) == {"idle": 4.0, "memory": 4.0, "other": 10.0}


def test_a_board_s_memory_moves_what_does_not_stay_on_the_chip() -> None:
    """Of a stage whose weights stay, and streams: nothing; of one whose weights do not fit, these once a sample and pass."""
    board = load_accelerator("vcu118")
    assert isinstance(board, FieldProgrammableGateArray)
    layers = [Work("convolution", 2e8, 1e3, 1e5, 1e4), Work("convolution", 2e8, 1e5, 1e3, 1e4)]
    assert moving_seconds(board, layers, [0, 1], "forward", 1.0, "fp16") == 0.0
    large = [replace(one, parameters=1e8) for one in layers]
    assert moving_seconds(board, large, [0, 1], "forward", 1.0, "fp16") == pytest.approx(4e8 / board.ddr_bandwidth)
    assert moving_seconds(board, large, [1], "forward", 1.0, "fp16") == pytest.approx(2e8 / board.ddr_bandwidth)


def test_energy_is_known_where_the_power_of_every_device_in_use_is() -> None:
    """Devices that a plan leaves out draw nothing, and need no figures."""
    assert outcome("pipedream-b", None).energy is None
    found = outcome("pipedream-b", Power(50.0, 250.0), count=1)
    wider = load_cluster("pipedream-b").take(4)
    devices = (*found.problem.cluster.devices, *(replace(one, power=None) for one in wider.devices[2:]))  # type: ignore[type-var]
    problem = replace(found.problem, cluster=replace(wider, devices=devices))
    again = simulate(problem, found.plan)
    assert again.energy is not None
    assert found.energy is not None
    assert again.energy.joules == pytest.approx(found.energy.joules)
