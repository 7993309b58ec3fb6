"""Tests of plans by energy: the numbers of devices that are searched, what is the best of them, and caps of power."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import pipeplan as pp
from hardware_profiles import GraphicsProcessor, Power
from planners import DeviceChoice, make_plan
from planners.least_energy import device_counts
from simulator import Plan, Problem


def problem(idle: float = 100.0, devices: int = 6) -> Problem:
    """A chain on so many GPUs on a slow network, which draw `idle` to 300 W."""
    made = pp.Problem("chain:12", "dapple-c", batch=48)
    cluster = made.cluster.take(devices)
    changed = []
    for one in cluster.devices:
        assert isinstance(one, GraphicsProcessor)
        changed.append(replace(one, power=Power(idle, 300.0)))
    return replace(made, cluster=replace(cluster, devices=tuple(changed)))


def test_powers_of_two_and_all_devices_are_searched() -> None:
    """All first, whose plan an interrupt keeps."""
    assert device_counts(1) == [1]
    assert device_counts(6) == [6, 4, 2, 1]
    assert device_counts(8) == [8, 4, 2, 1]


@pytest.mark.parametrize(
    ("objective", "judged"),
    [
        ("time", lambda seconds, joules: seconds),
        ("energy", lambda seconds, joules: joules),
        ("edp", lambda seconds, joules: seconds * joules),
    ],
)
def test_the_best_of_the_fastest_plans_is_the_answer(objective: str, judged: Callable[[float, float], float]) -> None:
    """By brute force over numbers of devices; what was compared stands in a note."""
    asked = problem()
    found = {}
    for count in (1, 2, 4, 6):
        result = make_plan("data-parallel", replace(asked, cluster=asked.cluster.take(count)))
        assert result.outcome.energy is not None
        found[count] = judged(result.iteration_seconds, result.outcome.energy.joules)
    options: dict[str, Any] = {"objective": objective, "power": 1e6}
    answer = pp.plan(asked, "data-parallel", **options)
    best = min(found, key=lambda count: found[count])
    assert len(answer.problem.cluster.devices) == best
    note = answer.noted(DeviceChoice)
    assert note is not None
    assert [row["devices"] for row in note.judged] == [1, 2, 4, 6]
    assert not answer.proof


def test_more_idle_power_is_better_spent_on_more_devices() -> None:
    """Devices that draw as much idle as at work cost their seconds alone, so that one has the fewest joules; so do those that
    draw nothing idle, whose joules are those of the work alone, but for the updates of replicas.
    """
    for idle in (0.0, 300.0):
        answer = pp.plan(problem(idle), "data-parallel", objective="energy")
        assert len(answer.problem.cluster.devices) == 1


def test_power_bounds_the_devices() -> None:
    """Of plans within the cap the fastest; the least that any draws is told where none is within it."""
    answer = pp.plan(problem(), "data-parallel", power=700.0)
    assert answer.outcome.energy is not None
    assert answer.outcome.energy.watts <= 700.0
    note = answer.noted(DeviceChoice)
    assert note is not None
    within = [row for row in note.judged if row["watts"] <= 700.0]
    assert answer.iteration_seconds == min(row["iteration_seconds"] for row in within)
    assert any(row["iteration_seconds"] < answer.iteration_seconds for row in note.judged)
    with pytest.raises(
        pp.InfeasiblePlanError, match=r"^power 99 W: the fastest plan on 1 GPU draws \d+ W, and no other draws less$"
    ):
        pp.plan(problem(), "data-parallel", power=99.0)


def test_unknown_power_is_refused() -> None:
    """In one line that names the device and the keys."""
    asked = pp.Problem("chain:4", "fpga-vcu118-4", batch=4)
    with pytest.raises(ValueError, match=r"the power of vcu118 is not known: give idle_w and full_w in \[power\]"):
        pp.plan(asked, "data-parallel", objective="energy")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"objective": "watts"}, "objective 'watts' is unknown; choices: time, energy, edp"),
        ({"power": float("nan")}, "power must be finite and not negative, got nan"),
        ({"power": -1.0}, "power must be finite and not negative, got -1"),
        ({"power": "100 W"}, "power must be finite and not negative, got '100 W'"),
    ],
)
def test_what_is_no_objective_and_no_power_is_refused(asked: dict[str, Any], words: str) -> None:
    """In one line, from Python."""
    with pytest.raises(ValueError, match=f"^{words}"):
        pp.plan(problem(), "data-parallel", **asked)


def test_an_interrupt_keeps_what_is_found() -> None:
    """A planner that is stopped on all devices: its plan is the answer, and marked."""

    def stopped(asked: Problem, evaluate: Any, rng: Any) -> Plan:
        plan = make_plan("data-parallel", asked).plan
        evaluate(plan)
        raise KeyboardInterrupt

    answer = pp.plan(problem(), stopped, objective="edp")
    assert answer.interrupted
    assert len(answer.problem.cluster.devices) == 6
