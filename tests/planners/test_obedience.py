"""Obedience: what is asked of a planner is what its plan has, or the planner refuses it in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest

from planners import PLANNERS, InapplicablePlannerError, Request, make_plan
from simulator import InfeasiblePlanError, Plan, Problem, Recompute, Zero, check_plan
from simulator.workloads.language_models import Gpt
from tests.planners.conftest import line

GPT = Gpt(3, 64, 2, vocabulary=512, sequence=32).workload()

ALIKE = Problem(GPT, line(memory_gib=16.0), 4)
UNLIKE = Problem(GPT, line(memory_gib=16.0, speeds=(1.0, 0.5)), 4)


def _words(problem: Problem, plan: Plan) -> set[str]:
    """What stages run again: of sizes of their own a stage does whose two differ."""
    words: set[str] = {*(plan.recompute or (problem.recompute,))}
    differ = problem.recompute == "none" and plan.forward_sizes != plan.backward_sizes
    return {*words, "whole"} if differ else words


ASKED: dict[str, tuple[tuple[Any, ...], Callable[[Problem, Plan], Any]]] = {
    "recompute": (
        get_args(Recompute),
        lambda problem, plan: next(iter(found)) if len(found := _words(problem, plan)) == 1 else found,
    ),
    "stages": ((1, 2), lambda problem, plan: len(plan.stages)),
    "microbatches": ((1, 4), lambda problem, plan: len(plan.microbatches)),
    "chunks": ((1, 2), lambda problem, plan: plan.chunks),
    "zero": (get_args(Zero), lambda problem, plan: plan.zero if max(plan.replicas) > 1 else None),
    "tensor": (
        (1, 2),
        lambda problem, plan: max((one for stage in plan.stages for one in stage.degrees), default=1) // plan.context,
    ),
    "context": ((1, 2), lambda problem, plan: plan.context),
    "expert": ((1,), lambda problem, plan: plan.expert),
}
"""Values that are asked for, and what a plan has of them; None where it has nothing of the kind."""


def _request(name: str, option: str, value: object) -> Request:
    """A request of that alone, with little work for an order of ops where it searches for one."""
    entry = PLANNERS[name]
    options = {"seconds": "0.005"} if "seconds" in entry.options else {}
    if hasattr(Request(), option):
        return Request(options=options, **{option: value})
    return Request(options={**options, option: str(value)})


def _plan(name: str, problem: Problem, request: Request) -> Plan | None:
    """The plan, or None where the planner refuses in one line."""
    try:
        return make_plan(name, problem, request).plan
    except (InapplicablePlannerError, InfeasiblePlanError) as refused:
        lines = str(refused).splitlines()
    assert len(lines) == 1
    return None


@pytest.mark.parametrize("option", ASKED)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in ("modern", "scheduler") else name for name in PLANNERS],
)
def test_an_option_is_obeyed_or_refused_in_one_line(name: str, option: str) -> None:
    """Of every value; of what runs again where the problem says nothing of it, and where it says the same."""
    values, has = ASKED[option]
    for value in values:
        problem = UNLIKE if name == "mixed" else ALIKE
        said = replace(problem, recompute=value) if option == "recompute" else problem
        for one in (problem, said) if said != problem else (problem,):
            plan = _plan(name, one, _request(name, option, value))
            if plan is not None:
                check_plan(one, plan)
                assert has(one, plan) in (value, None), value


@pytest.mark.parametrize("name", ["large", "mixed", "modern", "scheduler"])
def test_who_chooses_what_runs_again_takes_every_word(name: str) -> None:
    """Where the problem says none and where it says the word; who does not choose says whose word counts."""
    for word in get_args(Recompute):
        for problem in (ALIKE, UNLIKE):
            if PLANNERS[name].reason(problem, Request()) is None:
                assert PLANNERS[name].reason(problem, Request(recompute=word)) is None
    reason = PLANNERS["uniform"].reason(ALIKE, Request(recompute="blocks"))
    assert reason == (
        "its stages run again what the problem says (none), not 'blocks'; "
        "planners that choose it: large, mixed, modern, scheduler"
    )


def test_what_a_network_has_not_cannot_run_again(small_problems: dict[str, Problem]) -> None:
    """A chain has neither attention nor blocks; a word that is none is refused before any planner."""
    reason = PLANNERS["modern"].reason(small_problems["two-devices"], Request(recompute="blocks"))
    assert reason is not None
    assert "has no blocks" in reason
    with pytest.raises(ValueError, match="recompute 'often' is unknown; choices: none, attention, blocks, whole"):
        Request(recompute="often")  # type: ignore[arg-type]
