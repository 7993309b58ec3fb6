"""Tests of plans by energy: the numbers of devices that are searched, what is the best of them, and caps of power."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest

import pipeplan as pp
from hardware_profiles import FieldProgrammableGateArray, GraphicsProcessor, Power, load_stack
from planners import DeviceChoice, Evaluator, PlannerFailedError, PowerExceededError, make_plan
from planners.bapipe import explorer
from planners.least_energy import device_counts
from planners.search.candidates import straight_plan
from planners.search.plan_judge import PlanJudge
from planners.search.request import Request
from planners.testing import line, small_problems
from simulator import Plan, Problem, simulate
from tests.planners.conftest import with_memory


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


def powered(problem: Problem, powers: tuple[Power, ...]) -> Problem:
    """The problem on GPUs that draw so much, one after the other."""
    devices = []
    for one, power in zip(problem.cluster.devices, powers, strict=True):
        assert isinstance(one, GraphicsProcessor | FieldProgrammableGateArray)
        devices.append(replace(one, power=power))
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


# What two boards draw, idle and at work.
BOARDS = (Power(20.0, 80.0), Power(40.0, 160.0))


def straight_plans(asked: Problem, schedule: str = "1f1b") -> Iterator[Plan]:
    """Every straight pipeline of a schedule through devices in their order."""
    layers, devices = len(asked.workload), range(len(asked.cluster.devices))
    for count in range(1, len(devices) + 1):
        for row, cuts in product(combinations(devices, count), combinations(range(1, layers), count - 1)):
            for microbatches in range(1, asked.batch + 1):
                yield straight_plan("all", asked, schedule, cuts, row, microbatches)


@functools.cache
def on_three_devices() -> tuple[Problem, list[tuple[float, float]]]:
    """A problem, and the joules and seconds of every straight pipeline."""
    asked = pp.Problem("chain:4", line(speeds=(1.0,) * 3), batch=3)
    asked = powered(asked, (Power(90.0, 300.0), Power(90.0, 300.0), Power(40.0, 200.0)))
    found = [simulate(asked, one, engine="compiled").energy for one in straight_plans(asked)]
    return asked, [(energy.joules, energy.seconds) for energy in found if energy is not None]


@pytest.mark.parametrize(
    ("planner", "objective"),
    [pytest.param("joint", "edp", marks=pytest.mark.slow), ("bapipe", "energy"), ("bapipe", "edp")],
)
def test_no_straight_pipeline_is_better_by_its_objective(planner: str, objective: str) -> None:
    """By brute force over devices, cuts and micro-batches: three devices like each other, one of which draws less, last."""
    asked, energies = on_three_devices()
    judged = [joules * (seconds if objective == "edp" else 1.0) for joules, seconds in energies]
    answer = pp.plan(asked, planner, objective=objective, options={"seconds": 0.2 if planner == "joint" else 0.5})
    assert answer.outcome.energy is not None
    mine = answer.outcome.energy.joules * (answer.iteration_seconds if objective == "edp" else 1.0)
    assert mine <= min(judged) * (1.0 + 1e-9)
    note = answer.noted(DeviceChoice)
    assert note is not None
    assert note.devices == len(answer.plan.devices)
    assert not answer.proof


def test_joules_are_judged_over_the_least_that_a_device_draws() -> None:
    """Of one that draws 100 W idle and one that draws none, which counts as a thousandth of 500 W: 2 s at 30 W count as 120."""
    asked = powered(pp.Problem("chain:5", line(speeds=(1.0,) * 2), batch=3), (Power(100.0, 300.0), Power(0.0, 500.0)))
    judge = PlanJudge.of(asked, Request(objective="energy"))
    assert judge is not None
    assert judge.least == 0.5
    assert judge.at_least(30.0, 2.0) == 120.0


def test_no_pipeline_of_boards_needs_fewer_joules_or_is_faster_within_a_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """By brute force over two boards, one of which draws more; the fastest of all draws more than the cap. Few parts of layers
    are tried beside the whole ones."""
    monkeypatch.setattr(explorer, "GRID", 60)
    asked = powered(pp.Problem("chain:2", "fpga-vcu118-4", batch=2, devices=2), BOARDS)
    energies = [simulate(asked, one).energy for one in straight_plans(asked, "1f1b-as")]
    found = [one for one in energies if one is not None]
    answer = pp.plan(asked, "bapipe", objective="energy", schedule="1f1b-as").outcome.energy
    assert answer is not None
    assert answer.joules <= min(one.joules for one in found) * (1.0 + 1e-9)
    cap = min(found, key=lambda one: one.seconds).watts * 0.99
    answer = pp.plan(asked, "bapipe", power=cap, schedule="1f1b-as").outcome.energy
    assert answer is not None
    assert answer.watts <= cap
    assert answer.seconds <= min(one.seconds for one in found if one.watts <= cap) * (1.0 + 1e-9)


@pytest.mark.parametrize("planner", ["joint", "bapipe", "data-parallel"])
def test_what_an_objective_owes(planner: str) -> None:
    """No more joules than the answer for time, nor joules times seconds; under a cap never above it; restricted never better."""
    brief = {"seconds": 0.005}
    for name in ("batch-below-devices",) if planner == "joint" else ("batch-below-devices", "one-layer"):
        asked = small_problems()[name]
        asked = replace(asked, cluster=asked.cluster.take(2))
        asked = powered(asked, (Power(60.0, 300.0),) * len(asked.cluster.devices))
        answers = {
            objective: pp.plan(asked, planner, objective=objective, options=brief).outcome.energy
            for objective in ("time", "energy", "edp")
        }
        fastest, least, product = answers.values()
        assert fastest is not None
        assert least is not None
        assert product is not None
        assert least.joules <= fastest.joules * (1.0 + 1e-9)
        assert product.joules * product.seconds <= min(one.joules * one.seconds for one in (fastest, least)) * (
            1.0 + 1e-9
        )
        restricted = pp.plan(asked, planner, objective="energy", microbatches=1, options=brief).outcome.energy
        assert restricted is not None
        assert least.joules <= restricted.joules * (1.0 + 1e-6)
        cap = fastest.watts * 0.75
        try:
            within = pp.plan(asked, planner, power=cap, options=brief).outcome.energy
        except PowerExceededError as refused:
            assert refused.least > cap  # noqa: PT017
            continue
        assert within is not None
        assert within.watts <= cap


def test_of_stacks_the_best_by_the_objective_is_the_answer() -> None:
    """Two stacks under each of which the plan is searched: the one with fewer joules."""
    asked = powered(replace(small_problems()["transformer"], precision="fp32"), (Power(60.0, 300.0),) * 2)
    stacks = tuple(load_stack(name) for name in ("generic", "megatron-core"))
    found = {
        one.name: pp.plan(replace(asked, stack=one), "data-parallel", objective="energy").outcome.energy
        for one in stacks
    }
    answer = pp.plan(asked, "data-parallel", stacks=stacks, objective="energy")
    assert answer.outcome.energy is not None
    assert answer.outcome.energy.joules == min(one.joules for one in found.values() if one is not None)


def test_more_idle_power_is_better_spent_on_more_devices() -> None:
    """Devices that draw as much idle as at work cost their seconds alone, so that one has the fewest joules; so do those that
    draw nothing idle, whose joules are those of the work alone, but for the updates of replicas.
    """
    for idle in (0.0, 300.0):
        answer = pp.plan(problem(idle, 3), "data-parallel", objective="energy")
        assert len(answer.problem.cluster.devices) == 1


def test_less_power_than_an_idle_device_draws_is_refused_without_a_search() -> None:
    """The device that draws least decides; with as much as it draws plans are looked for."""

    def never(asked: pp.Problem, evaluate: Any, rng: Any) -> pp.Plan:
        raise AssertionError("searched")

    asked = powered(problem(devices=2), (Power(60.0, 300.0), Power(45.0, 300.0)))
    with pytest.raises(pp.InfeasiblePlanError, match=r"^power 44\.9 W: one device in use draws 45 W while it is idle$"):
        pp.plan(asked, never, power=44.9)
    with pytest.raises(PlannerFailedError, match="searched"):
        pp.plan(asked, never, power=45.0)


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
        pp.InfeasiblePlanError,
        match=r"^power 101 W: of the plans that were found the one that draws least draws \d+ W$",
    ):
        pp.plan(problem(), "data-parallel", power=101.0)


def test_unknown_power_is_refused() -> None:
    """In one line that names the device and the keys."""
    asked = pp.Problem("chain:4", "fpga-vcu118-4", batch=4)
    with pytest.raises(ValueError, match=r"the power of vcu118 is not known: give idle_w and full_w in \[power\]"):
        pp.plan(asked, "data-parallel", objective="energy")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"objective": "watts"}, "objective 'watts' is unknown; choices: time, energy, edp"),
        ({"power": float("nan")}, "power must be finite and at least 0.001, got nan"),
        ({"power": -1.0}, "power must be finite and at least 0.001, got -1"),
        ({"power": "100 W"}, "power of a Request must be a number or None, got '100 W'"),
        ({"power": 0.0}, "power must be finite and at least 0.001, got 0.0"),
        ({"power": 1e13}, "power must be at most 1e.12, got 1"),
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


def test_where_no_plan_fits_the_refusal_is_that_of_the_fewest_devices() -> None:
    """Of the planner, in its words; of one that answers with plans that do not fit, that none does."""
    tiny = with_memory(problem(devices=2), 2.0**16)
    with pytest.raises(pp.InfeasiblePlanError) as alone:
        make_plan("data-parallel", replace(tiny, cluster=tiny.cluster.take(1)))
    with pytest.raises(pp.InfeasiblePlanError) as raised:
        pp.plan(tiny, "data-parallel", objective="energy")
    assert str(raised.value) == str(alone.value)

    def whole(asked: Problem, evaluate: Any, rng: Any) -> Plan:
        return straight_plan("whole", asked, "1f1b", (), (0,), 1)

    with pytest.raises(pp.InfeasiblePlanError, match=r"^no plan fits on any number of devices$"):
        pp.plan(tiny, whole, objective="energy")


def test_a_plan_that_was_replayed_and_is_judged_better_is_the_answer() -> None:
    """Of a planner that takes the faster of two, where the slower one takes fewer joules: both are told as its own; where time
    decides, or both were not replayed, it keeps its own."""
    asked = problem(devices=2)
    fast, frugal = (straight_plan("own", asked, "1f1b", *shape, 12) for shape in (((6,), (0, 1)), ((), (0,))))
    outcomes = [simulate(asked, one) for one in (fast, frugal)]
    joules = [one.energy.joules for one in outcomes if one.energy is not None]
    assert outcomes[0].iteration_seconds < outcomes[1].iteration_seconds
    assert joules[0] > joules[1]
    for objective, tried, answer in (
        ("energy", (fast, frugal), frugal),
        ("energy", (fast,), fast),
        ("time", (fast, frugal), fast),
    ):

        def planner(asked: Problem, evaluate: Any, rng: Any, tried: tuple[Plan, ...] = tried) -> Plan:
            for one in tried:
                evaluate(replace(one, planner=""))
            return fast

        assert make_plan(planner, asked, Request(objective=objective)).plan == answer  # type: ignore[arg-type]


def test_the_least_power_is_that_of_plans_that_may_be_the_answer() -> None:
    """Neither of one that was not asked for, nor of one that does not fit."""
    asked = problem(devices=2)
    judge = PlanJudge.of(asked, Request(objective="energy"))
    plans = [straight_plan("mine", asked, "1f1b", (6,), (0, 1), count) for count in (1, 2)]
    drawn = [simulate(asked, one).energy.watts for one in plans]  # type: ignore[union-attr]
    evaluate = Evaluator(asked, judge=judge, admits=lambda plan: len(plan.microbatches) == 2)
    scores = [evaluate(one) for one in reversed(plans)]
    assert all(one.fits for one in scores)
    assert evaluate.least_watts == pytest.approx(drawn[1])
    assert drawn[0] < drawn[1]
    tight = with_memory(asked, 1e6)
    none = Evaluator(tight, judge=judge)
    assert not none(plans[0]).fits
    assert none.least_watts == math.inf
