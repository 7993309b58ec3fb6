"""Contract: what every planner of the registry owes, on every small problem."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hardware_profiles import GraphicsProcessor
from planners import (
    PLANNERS,
    Progress,
    Request,
    Result,
    applicable_planners,
    make_plan,
    planner_entry,
)
from simulator import SCHEDULES, InfeasiblePlanError, Problem, check_plan, lower_bound
from simulator.simulation import simulate
from simulator.workloads.language_models import Gpt
from simulator.workloads.synthetic import uniform_chain
from tests.planners.conftest import PROBLEMS, REQUESTS, line, searched, shape, slower
from tests.records import Recorded

Find = Callable[[str, Problem], Result]


def among(*names: str) -> list[Any]:
    """The small problems, those that are not among the names only for a run of slow tests."""
    return [pytest.param(one, marks=() if one in names else pytest.mark.slow) for one in PROBLEMS]


def _with_memory(problem: Problem, memory_bytes: float) -> Problem:
    devices = tuple(
        replace(device, memory_bytes=memory_bytes)
        for device in problem.cluster.devices
        if isinstance(device, GraphicsProcessor)
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


@pytest.mark.parametrize("name", PLANNERS)
def test_plan_is_one_for_the_problem_and_fits(name: str, problem: Problem, plan_of: Find) -> None:
    """A plan passes the plan's own rules, and fits on the device whose memory it was searched under."""
    found = plan_of(name, problem)
    check_plan(problem, found.plan)
    assert found.plan.planner == name
    assert not found.interrupted
    assert found.evaluations >= 1
    assert found.outcome.fits


def test_answers(problem: Problem, recorded: Recorded) -> None:
    """Of each planner: its plan, its bound, what it took, and each improvement on the way; or why it does not apply."""
    values: dict[str, Any] = {}
    for name in PLANNERS:
        found = searched(name, problem)
        if isinstance(found, str):
            values[name] = found
            continue
        values[name] = {
            "plan": shape(found.plan),
            "bound": found.bound,
            "proof": str(found.proof),
            "evaluations": found.evaluations,
            "history": [[step.evaluations, step.iteration_seconds] for step in found.history],
            "details": dict(found.details),
        }
    recorded(**values)


@pytest.mark.parametrize("name", PLANNERS)
def test_both_engines_agree_and_none_beats_the_bound(name: str, problem: Problem, plan_of: Find) -> None:
    """Without contention the engine repeats the recurrence to the last bit, and the lower bound holds."""
    calm = replace(problem, contention=False)
    plan = plan_of(name, problem).plan
    quick, reference = simulate(calm, plan, engine="recurrence"), simulate(calm, plan)
    assert quick.iteration_seconds == reference.iteration_seconds
    assert reference.lower_bound is not None
    assert 0 < reference.lower_bound.seconds <= quick.iteration_seconds


def test_all_planners_have_one_bound(problem: Problem) -> None:
    """It is the problem's: the same number beside every plan that flushes, and beside every plan that does not."""
    found = [one for one in (searched(name, problem) for name in PLANNERS) if not isinstance(one, str)]
    bounds = {(one.outcome.schedule.flush, one.bound) for one in found}
    assert bounds <= {(flush, lower_bound(problem).of(flush=flush).seconds) for flush in (True, False)}


@pytest.mark.parametrize("problem", among("two-servers", "mixed-devices", "measured"), indirect=True)
@pytest.mark.parametrize("name", PLANNERS)
def test_same_seed_gives_the_same_plan_whatever_the_unit_of_time(name: str, problem: Problem, plan_of: Find) -> None:
    """Two searches with equal arguments give equal plans after equally many evaluations, to the bit.

    So they do where the second one's hardware takes 1,024 times as long for everything: no step of a search knows a second.
    """
    first = plan_of(name, problem)
    second = make_plan(name, slower(problem, 1024.0), REQUESTS[name], seed=0)
    assert first.plan == second.plan
    assert first.evaluations == second.evaluations
    assert [step.iteration_seconds * 1024.0 for step in first.history] == [
        step.iteration_seconds for step in second.history
    ]
    assert first.bound * 1024.0 == second.bound
    assert first.proof == second.proof


@pytest.mark.parametrize("problem", among("one-device", "two-devices", "two-servers"), indirect=True)
@pytest.mark.parametrize("name", PLANNERS)
def test_impossible_memory_is_reported_with_numbers(name: str, problem: Problem) -> None:
    """Devices of 1 MiB hold no stage of a million weights: one line that names the planner and the gibibytes."""
    tiny = _with_memory(problem, 2.0**20)
    if applicable_planners(tiny)[name] is not None:
        pytest.skip("does not apply")
    with pytest.raises(InfeasiblePlanError, match=rf"planner '{name}'.* GiB") as raised:
        # One count is enough where every partition is replayed.
        make_plan(name, tiny, Request(microbatches=1) if name == "brute-force" else None)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", PLANNERS)
def test_requests_are_kept_or_refused(name: str, schedule: str, small_problems: dict[str, Problem]) -> None:
    """A requested schedule and count are those of the plan, or the planner says why it does not apply."""
    problem, request = small_problems["two-devices"], Request(schedule=schedule, microbatches=4)
    if applicable_planners(problem)[name] is not None:
        problem = ended(name)
    reason = planner_entry(name).reason(problem, request)
    if reason is not None:
        assert schedule in reason
        with pytest.raises(ValueError, match="does not apply"):
            make_plan(name, problem, request)
        return
    plan = make_plan(name, problem, request).plan
    check_plan(problem, plan)
    if len(plan.stages) > 1 or name == "data-parallel":
        assert (plan.schedule, len(plan.microbatches)) == (schedule, 4)


def test_brute_force_is_never_slower_than_other_straight_pipelines(problem: Problem, plan_of: Find) -> None:
    """Uniform and greedy plans are among those that brute force tries, and replayed with the problem's own options."""
    best = simulate(problem, plan_of("brute-force", problem).plan)
    for name in ("uniform", "greedy"):
        assert best.iteration_seconds <= simulate(problem, plan_of(name, problem).plan).iteration_seconds


def test_brute_force_says_what_is_proven_and_refuses_large_problems(
    small_problems: dict[str, Problem], plan_of: Find
) -> None:
    """The claim names the schedules; a problem with too many plans is refused with their number."""
    found = plan_of("brute-force", small_problems["two-devices"])
    assert "straight pipelines" in found.proof.space
    assert "gpipe, 1f1b" in found.proof.space
    large = replace(small_problems["two-devices"], workload=uniform_chain(2_000))
    reason = planner_entry("brute-force").applicable(large, Request())
    assert reason is not None
    assert "plans to replay, the limit is 5,000" in reason


def test_unknown_names_and_impossible_counts_are_refused(small_problems: dict[str, Problem]) -> None:
    """Bad requests give one line each that states the rule, the value and the choices."""
    problem = small_problems["two-devices"]
    with pytest.raises(ValueError, match=r"planner 'magic' is unknown; choices: .*brute-force, data-parallel"):
        make_plan("magic", problem)
    with pytest.raises(ValueError, match="schedule 'magic' is unknown"):
        Request(schedule="magic")
    with pytest.raises(ValueError, match="at least 1 or None, got 0"):
        Request(microbatches=0)
    with pytest.raises(ValueError, match="9 micro-batches are more than the batch of 8 samples"):
        make_plan("uniform", problem, Request(microbatches=9))


def ended(name: str) -> Problem:
    """The small problem on which a planner's search is cut short: on two unlike devices, on two alike if it is for these, of a
    transformer if it is for one.
    """
    mixed = Problem(uniform_chain(3), line(speeds=(1.0, 0.5)), 4)
    alike = replace(mixed, cluster=line())
    choices = mixed, alike, replace(alike, workload=Gpt(3, 64, 2, vocabulary=512, sequence=32).workload())
    return next(problem for problem in choices if applicable_planners(problem)[name] is None)


@functools.cache
def unhindered(name: str) -> tuple[Result, int]:
    """The whole search that is cut short, and its improvements."""
    heard: list[Progress] = []
    return make_plan(name, ended(name), REQUESTS[name], progress=heard.append), len(heard)


@pytest.mark.parametrize("name", PLANNERS)
def test_budgets_bind_and_neither_erase_nor_invent_a_proof(name: str) -> None:
    """As many evaluations as the search needs change nothing; fewer are kept to, and what they cut short is not proven."""
    problem = ended(name)
    free, _ = unhindered(name)
    whole = free.plan, free.proof.space, free.evaluations
    for budget in sorted({1, free.evaluations // 2, free.evaluations - 1, free.evaluations} - {0}):
        try:
            cut = make_plan(name, problem, REQUESTS[name], budget=budget)
        except InfeasiblePlanError:  # it ended before any plan that fits
            assert budget < free.evaluations
            continue
        assert cut.evaluations <= budget
        assert simulate(problem, cut.plan).fits
        if cut.interrupted:
            assert budget < free.evaluations
            assert not cut.proof.space
        else:
            assert (cut.plan, cut.proof.space) == whole[:2]
    assert whole == (cut.plan, cut.proof.space, cut.evaluations)


@pytest.mark.parametrize("name", PLANNERS)
def test_an_interrupt_keeps_the_best_plan_and_proves_nothing(name: str) -> None:
    """Ctrl-C at the second improvement, or at the only one: the answer is a plan that fits, marked as interrupted."""
    problem, heard = ended(name), list[Progress]()
    most = min(2, unhindered(name)[1])

    def stop(step: Progress) -> None:
        heard.append(step)
        if len(heard) == most:
            raise KeyboardInterrupt

    try:
        found = make_plan(name, problem, REQUESTS[name], progress=stop)
    except KeyboardInterrupt:  # a search on a model of its own, before any plan was replayed
        assert "candidates" in planner_entry(name).options
        return
    assert found.interrupted
    assert not found.proof.space
    assert found.outcome.fits
