"""Tests of energy: idle power all the time, what full load adds while a device works, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware_profiles import FieldProgrammableGateArray, GraphicsProcessor, Power, load_cluster
from planners import Request, make_plan
from simulator import Outcome, Plan, Problem, Recompute, Stage, load_workload, simulate


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
    assert energy.idle_joules == pytest.approx(4 * 50.0 * found.iteration_seconds)
    assert energy.joules == pytest.approx(energy.idle_joules + 200.0 * working)
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
