"""Tests of `planners.stack_choice`: the fastest of several stacks, stacks that run nothing of a planner, those of a problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware_profiles import GENERIC, Constant, Runs, Stack, load_cluster, load_stack
from planners import (
    Evaluator,
    InapplicablePlannerError,
    NotFasterError,
    Request,
    RunnerUp,
    StackChoice,
    make_plan,
    plan_over_stacks,
    stacks_that_run,
)
from simulator import (
    InfeasiblePlanError,
    Plan,
    PlanNotRunError,
    Problem,
    Score,
    Stage,
    load_workload,
    lower_bound,
    simulate,
)
from simulator.workloads.language_models import Llama

TWICE = Stack(name="twice", products=Constant(2.0), attention=Constant(2.0))
THRICE = Stack(name="thrice", products=Constant(3.0), attention=Constant(3.0))
ONE_F_ONE_B = Stack(name="one-f-one-b", products=Constant(1.5), runs=Runs(schedules=("1f1b",)))


def problem(devices: int = 2, batch: int = 8) -> Problem:
    """Four blocks on some of a server's A100."""
    workload = Llama(4, 2048, 16, 1024, 4096, intermediate=5632, key_value_heads=16).workload()
    return Problem(workload, load_cluster("dgx-a100:1").take(devices), batch, precision="bf16", optimizer="adam")


def test_the_answer_is_the_fastest_of_all_stacks() -> None:
    """It is the one that a search under that stack alone finds, in whatever order they are named; the others are told."""
    alone = {one.name: make_plan("greedy", replace(problem(), stack=one)) for one in (TWICE, THRICE, ONE_F_ONE_B)}
    least = min(alone, key=lambda name: alone[name].iteration_seconds)
    assert least == "one-f-one-b"
    for order in ((TWICE, THRICE, ONE_F_ONE_B), (ONE_F_ONE_B, TWICE, THRICE)):
        found = plan_over_stacks("greedy", problem(), order)
        assert found.problem.stack.name == least
        assert found.plan == alone[least].plan
        assert found.iteration_seconds == alone[least].iteration_seconds
        choice = found.noted(StackChoice)
        assert choice is not None
        assert choice.stack == least
        assert set(choice.stack_seconds) == set(alone)
        for name, seconds in choice.stack_seconds.items():
            assert seconds in (None, alone[name].iteration_seconds)


def test_a_stack_that_cannot_be_faster_is_not_searched() -> None:
    """Where its lower bound is above the best plan: what it takes at least is told in place of its seconds."""
    ten_times = Stack(name="ten-times", products=Constant(50.0))
    found = plan_over_stacks("data-parallel", problem(), (ten_times, ONE_F_ONE_B))
    choice = found.noted(StackChoice)
    assert choice is not None
    assert choice.stack_seconds["ten-times"] is None
    assert "ten-times at least" in choice.text
    bound = lower_bound(replace(problem(), stack=ten_times)).of(flush=False).seconds
    assert f"ten-times at least {bound:.4g} s" in choice.text
    assert bound >= found.iteration_seconds


def test_what_counts_is_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first stack may be the slower one: a third is not searched that only it leaves room."""
    seconds = {one.name: make_plan("data-parallel", replace(problem(), stack=one)) for one in (THRICE, ONE_F_ONE_B)}
    between = sum(one.iteration_seconds for one in seconds.values()) / 2
    bounds = {"thrice": 0.0, "one-f-one-b": 1e-9, "twice": between}
    monkeypatch.setattr("planners.stack_choice._least_seconds", lambda asked: bounds[asked.stack.name])
    choice = plan_over_stacks("data-parallel", problem(), (TWICE, ONE_F_ONE_B, THRICE)).noted(StackChoice)
    assert choice is not None
    own = {name: result.iteration_seconds for name, result in seconds.items()}
    assert choice.stack_seconds == {**own, "twice": None}


def test_the_next_stack_is_the_runner_up() -> None:
    """With what it loses, and its plan; the fastest of the others, which is not the first that was searched."""
    farther, close = (replace(TWICE, name=f"{of:g}", products=Constant(of)) for of in (2.02, 2.01))
    found = plan_over_stacks("data-parallel", problem(), (farther, close, TWICE))
    other = make_plan("data-parallel", replace(problem(), stack=close))
    expected = ("stack", "twice", "2.01", other.iteration_seconds)
    assert [(one.decision, one.chosen, one.other, one.seconds) for one in found.told if isinstance(one, RunnerUp)] == [
        expected
    ]


def test_what_is_not_faster_is_not_replayed_again() -> None:
    """A search says what it found, and what that takes; one that beats the seconds by a hair is the answer."""
    found = make_plan("data-parallel", problem())
    with pytest.raises(NotFasterError) as slower:
        make_plan("data-parallel", problem(), beat=found.iteration_seconds)
    assert slower.value.plan.stages == found.plan.stages
    assert slower.value.score == found.outcome.score
    assert slower.value.evaluations == found.evaluations
    again = make_plan("data-parallel", problem(), beat=found.iteration_seconds * (1 + 1e-9))
    assert again.iteration_seconds == found.iteration_seconds


def test_a_file_of_a_stack_that_cannot_be_read_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line of stderr; the other stacks stay."""
    known = stacks_that_run(problem())
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "broken.toml").write_text("titel = 1\n")
    monkeypatch.setenv("PIPEPLAN_PROFILES", str(tmp_path))
    assert stacks_that_run(problem()) == known != ()
    told = capsys.readouterr().err
    assert told.startswith("pipeplan: passing over stack 'broken': ")
    assert told.endswith(f'{Path("stacks", "broken.toml")}: $.kind: a stack\'s file says kind = "stack"\n')
    assert told.count("\n") == 1


def test_plans_that_a_stack_does_not_run_are_passed_over() -> None:
    """A search over GPipe and 1F1B finds the best 1F1B where the stack has that alone, and the same as when asked for it."""
    found = make_plan("uniform", replace(problem(4), stack=ONE_F_ONE_B))
    asked = plan_over_stacks("uniform", problem(4), (ONE_F_ONE_B,))
    assert found.plan.schedule == "1f1b"
    assert asked.iteration_seconds == found.iteration_seconds


def only(schedule: str) -> Any:
    """A planner whose one plan is of that schedule, on two devices."""

    def planner(asked: Problem, evaluate: Any, rng: Any) -> Plan:
        layers = len(asked.workload)
        stages = (Stage(tuple(range(layers // 2)), (0,)), Stage(tuple(range(layers // 2, layers)), (1,)))
        plan = Plan(planner="", schedule=schedule, stages=stages, microbatches=(2,) * 4)
        evaluate(plan)
        return plan

    return planner


def test_a_planner_whose_plans_none_runs_is_answered_for_the_own_stack() -> None:
    """And says so; where the own stack is among those that are asked for, its refusal is the answer."""
    found = plan_over_stacks(only("gpipe"), problem(), (ONE_F_ONE_B,))
    assert found.problem.stack == GENERIC
    choice = found.noted(StackChoice)
    assert choice is not None
    assert choice.text == "stack generic, no framework in particular: no plan of this planner runs under one-f-one-b"
    own = plan_over_stacks(only("gpipe"), replace(problem(), stack=TWICE), (ONE_F_ONE_B,)).noted(StackChoice)
    assert own is not None
    assert own.text == "stack twice: no plan of this planner runs under one-f-one-b"
    with pytest.raises(PlanNotRunError, match=r"'one-f-one-b' does not run plan .* it has no schedule gpipe"):
        plan_over_stacks(only("gpipe"), replace(problem(), stack=ONE_F_ONE_B), (ONE_F_ONE_B,))
    zero_three = Stack(name="zero-three", runs=Runs(zero=(3,)))
    with pytest.raises(InapplicablePlannerError, match="runs ZeRO 3 alone"):
        plan_over_stacks("uniform", replace(problem(), stack=zero_three), (zero_three,))


def test_a_stack_without_asynchronous_schedules_refuses_pipedream() -> None:
    """A network too large for one device; the search for less memory ends with the refusal, for which no memory is enough."""
    workload = Llama(8, 8192, 16, 256, 4096, intermediate=32768, key_value_heads=16).workload()
    with pytest.raises(PlanNotRunError, match="does not run plan 'pipedream': it has no schedule 1f1b-rr"):
        make_plan("pipedream", replace(problem(8), workload=workload, stack=ONE_F_ONE_B))


def test_no_plan_is_worse_than_one_that_its_stack_does_not_run() -> None:
    """It fits no memory, and one that needs a million times what there is comes before it."""
    asked = replace(problem(), stack=ONE_F_ONE_B)
    evaluate = Evaluator(asked)
    plan = only("gpipe")(asked, evaluate, None)
    refused = evaluate(plan)
    assert not refused.fits
    assert refused.capacity_bytes == asked.room_bytes(0)
    assert refused.key > Score(1e9, 1e6 * refused.capacity_bytes, refused.capacity_bytes, 0).key
    assert isinstance(evaluate.refusal, PlanNotRunError)
    assert evaluate(replace(plan, schedule="1f1b")).fits
    assert evaluate.refusal is None


def test_what_fits_under_no_stack_is_refused() -> None:
    """Not answered for another stack, which holds less."""
    greedy = Stack(name="greedy-memory", reserved=Constant(4.0))
    workload = load_workload("llama2-7b")
    large = Problem(workload, load_cluster("dgx-a100:1").take(2), 2, precision="bf16", optimizer="adam")
    with pytest.raises(InfeasiblePlanError, match="GiB"):
        plan_over_stacks("data-parallel", large, (greedy, TWICE))


def test_an_interrupt_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked; before there is one the interrupt goes on."""
    calls: Iterator[str] = iter(["answer", "interrupt", "interrupt"])

    def interrupted(*asked: Any, **named: Any) -> Any:
        if next(calls) == "interrupt":
            raise KeyboardInterrupt
        return make_plan(*asked, **named)

    monkeypatch.setattr("planners.stack_choice.make_plan", interrupted)
    close = replace(TWICE, name="close", products=Constant(2.01), attention=Constant(1.99))
    found = plan_over_stacks("data-parallel", problem(), (TWICE, close))
    assert found.interrupted
    assert not found.proof
    assert found.problem.stack == TWICE
    with pytest.raises(KeyboardInterrupt):
        plan_over_stacks("data-parallel", problem(), (TWICE, close))


@pytest.mark.parametrize(
    ("changed", "searched"),
    [
        ({}, 1),
        ({"attention": Constant(2.0, generations=(("ampere", Constant(1.99)),))}, 2),
        ({"runs": Runs(zero=(0, 1))}, 2),
        ({"gradient_bytes": 2}, 2),
        ({"gathered": "products"}, 2),
        ({"workspace": Constant(2e10), "reserved": Constant(4.0)}, 1),
    ],
)
def test_a_stack_that_is_nowhere_quicker_is_not_searched(
    changed: dict[str, Any], searched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's plan is replayed under it, or its bound told where that does not fit; it may be better elsewhere."""
    calls: list[str] = []

    def counted(planner: Any, asked: Problem, *others: Any, **named: Any) -> Any:
        calls.append(asked.stack.name)
        return make_plan(planner, asked, *others, **named)

    monkeypatch.setattr("planners.stack_choice.make_plan", counted)
    slower = replace(TWICE, **{"name": "slower", "products": Constant(2.01), **changed})
    found = plan_over_stacks("data-parallel", problem(), (slower, TWICE))
    choice = found.noted(StackChoice)
    assert (len(calls), found.problem.stack) == (searched, TWICE)
    assert choice is not None
    if searched == 1:
        under = simulate(replace(problem(), stack=slower), found.plan)
        if "workspace" in changed:
            assert not under.fits
            assert (choice.stack_seconds["slower"], "slower at least " in choice.text) == (None, True)
            return
        assert choice.stack_seconds["slower"] == pytest.approx(under.iteration_seconds, rel=1e-12)


def test_joules_are_searched_under_every_stack() -> None:
    """The slower one may draw less power."""
    slower = replace(TWICE, name="slower", products=Constant(2.01))
    alone = make_plan("data-parallel", replace(problem(), stack=slower), Request(objective="energy"))
    choice = plan_over_stacks("data-parallel", problem(), (slower, TWICE), Request(objective="energy")).noted(
        StackChoice
    )
    assert choice is not None
    assert choice.stack_seconds["slower"] == alone.iteration_seconds


@pytest.mark.parametrize(("budget", "searches"), [(None, 1), (100, 2)])
def test_only_an_interrupt_ends_the_searches_of_other_stacks(
    budget: int | None, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a budget, which is each search's own; the answer is marked by either."""
    calls: list[Problem] = []

    def stopped(planner: Any, asked: Problem, *others: Any, **named: Any) -> Any:
        calls.append(asked)
        return replace(make_plan(planner, asked, *others, **named), interrupted=True)

    monkeypatch.setattr("planners.stack_choice.make_plan", stopped)
    close = replace(TWICE, name="close", products=Constant(2.01), attention=Constant(1.99))
    assert plan_over_stacks("data-parallel", problem(), (TWICE, close), budget=budget).interrupted
    assert len(calls) == searches


def test_stacks_that_run_a_problem() -> None:
    """Frameworks of GPUs for a transformer, none for an image network or measured layers; none without what the problem needs."""
    names = {one.name for one in stacks_that_run(problem())}
    assert {"megatron-core", "fsdp1-eager", "fsdp2-compiled"} <= names
    assert names.isdisjoint({"generic", "maxtext", "megatron-deepspeed"})
    unfused = load_workload("gpt2-xl", attention="unfused")
    old = Problem(unfused, problem().cluster, 8, precision="bf16", optimizer="adam")
    assert "megatron-deepspeed" in {one.name for one in stacks_that_run(old)}
    assert stacks_that_run(Problem(load_workload("vgg16"), problem().cluster, 8)) == ()
    divided = replace(problem(), sequence_parallel=True)
    assert names == {one.name for one in stacks_that_run(divided)}
    assert divided.under(load_stack("megatron-core")).sequence_parallel
    assert not divided.under(load_stack("fsdp1-eager")).sequence_parallel
    with pytest.raises(ValueError, match=r"has no fused attention: .* needs --attention unfused"):
        replace(problem(), stack=load_stack("megatron-deepspeed"))


def test_others_are_named_where_a_planner_does_not_apply() -> None:
    """Those that take the same question, the first of them by name; none where the reason has named them, or where none does."""
    mixed = Problem(load_workload("vgg16"), load_cluster("fpga-mixed-4"), 16)
    with pytest.raises(InapplicablePlannerError, match=r"; planners that take it: joint, .* and \d+ more$"):
        plan_over_stacks("large", mixed, ())
    with pytest.raises(InapplicablePlannerError) as refused:
        plan_over_stacks("pipedream", problem(), (), Request(options={"tensor": (2,)}))
    assert str(refused.value).count("planners that") == 1
    with pytest.raises(InapplicablePlannerError) as refused:
        plan_over_stacks("greedy", problem(), (), Request(microbatches=9))
    assert "planners that" not in str(refused.value)
