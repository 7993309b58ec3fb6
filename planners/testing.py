"""Contract of a planner: what every search and its plan must keep to, checked on small problems; tests of a plug-in call
`check_planner`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

from hardware_profiles import GIB, Cluster, GraphicsProcessor, Link, about
from planners.registry import PlannerEntry, make_plan, named_planner
from planners.search.evaluator import InapplicablePlannerError, Progress
from planners.search.obedience import disobeyed
from planners.search.request import Request
from planners.search.result import Result
from simulator import (
    Gpt,
    InfeasiblePlanError,
    Problem,
    Recompute,
    Zero,
    check_plan,
    lower_bound,
    schedule_families,
    simulate,
    workload_from_spec,
)

Asked = str | Callable[..., Any] | PlannerEntry
"""A planner: its name, or itself."""


def line(memory_gib: float = 16.0, speeds: tuple[float, ...] = (1.0, 1.0)) -> Cluster:
    """A cluster of GPUs behind one switch: 10 TFLOP/s times their speed, 10 GB/s links, `memory_gib` GiB each."""
    devices = tuple(
        GraphicsProcessor(f"gpu-{speed:g}", memory_gib * GIB, 500e9 * speed, {"fp32": 10e12 * speed})
        for speed in speeds
    )
    nodes = tuple(f"gpu{number}" for number in range(len(devices)))
    links = tuple(Link(node, "switch", 10e9, 5e-6) for node in nodes)
    return Cluster("line", devices, nodes, ("switch",), (tuple(range(len(devices))),), links)


def small_problems() -> dict[str, Problem]:
    """Problems, by name, on which every search of this package ends in less than a second."""
    transformer = Gpt(2, 64, 2, vocabulary=512, sequence=32).workload()
    chains = {layers: workload_from_spec(f"chain:{layers}") for layers in (1, 3, 4, 5)}
    return {
        "transformer": Problem(transformer, line(), 4),
        "transformer-on-unlike-devices": Problem(transformer, line(speeds=(1.0, 0.5)), 4),
        "fewer-layers-than-devices": Problem(chains[3], line(speeds=(1.0,) * 4), 4),
        "batch-below-devices": Problem(chains[5], line(speeds=(1.0,) * 4), 3),
        "one-device": Problem(chains[4], line(speeds=(1.0,)), 8),
        "one-layer": Problem(chains[1], line(), 8),
    }


def check_planner(asked: Asked, request: Request | None = None, *, every: int = 1) -> None:
    """Check a planner's answers on all of `small_problems`, and its search on the first that it applies to.

    request: options that every search is given, beside what the contract asks for, as one that shortens the search
    every: of the requests that the contract makes, only every so many-th is tried, where a search takes long
    Raises AssertionError, with a note of planner and problem, where the planner breaks the contract, and what its search raises.
    """
    searched = False
    for name, problem in small_problems().items():
        with about(f"planner {named_planner(asked)[0]!r}, problem {name!r}"):
            case = _Case(asked, problem, request or Request(), every)
            try:
                found = case.free
            except (InapplicablePlannerError, InfeasiblePlanError) as refused:
                _one_line(refused)
                continue
            check_result(problem, found)
            if not searched:
                _check_search(case)
            searched = True
    assert searched, "it applies to none of the small problems"


def check_result(problem: Problem, found: Result) -> None:
    """Assert what every answer must be: a plan of the problem that fits, with equal seconds on both engines, and the problem's
    bound.
    """
    plan = found.plan
    check_plan(problem, plan)
    assert found.outcome.fits, "its plan does not fit"
    assert found.evaluations >= 1, "it evaluated no plan: `evaluate(plan)` does, and knows the best one at an interrupt"
    assert not found.interrupted
    bound = lower_bound(problem).of(flush=found.outcome.schedule.flush).seconds
    assert found.bound == bound, "its bound is not the problem's"
    calm = replace(problem, contention=False)
    quick, reference = simulate(calm, plan, engine="recurrence"), simulate(calm, plan)
    assert quick.iteration_seconds == reference.iteration_seconds, "the engines disagree"
    assert 0 < bound <= quick.iteration_seconds, "its plan is faster than the bound"


@dataclass(frozen=True)
class _Case:
    """A planner on a problem that it applies to.

    request: options of every search; every: as of `check_planner`; heard: improvements of the free search
    """

    asked: Asked
    problem: Problem
    request: Request
    every: int = 1
    heard: list[Progress] = field(default_factory=list)

    @cached_property
    def name(self) -> str:
        return named_planner(self.asked)[0]

    @cached_property
    def entry(self) -> PlannerEntry:
        return named_planner(self.asked)[1]

    @cached_property
    def free(self) -> Result:
        """The result of a search without budget or interrupt."""
        return make_plan(self.asked, self.problem, self.request, progress=self.heard.append)


def _check_search(case: _Case) -> None:
    for rule in SEARCH_RULES:
        rule(case)


def _repeats_itself(case: _Case) -> None:
    """Assert that the same seed finds the same plan after as many evaluations, and that a budget of so many does not cut it
    short.
    """
    free = case.free
    try:
        again = make_plan(case.asked, case.problem, case.request, budget=free.evaluations)
    except InfeasiblePlanError:
        raise AssertionError("it needs more evaluations than it counted") from None
    assert not again.interrupted, "its own number of evaluations cuts it short"
    assert again.plan == free.plan, "two searches with one seed find two plans"
    assert (again.evaluations, again.bound, again.proof) == (free.evaluations, free.bound, free.proof)


def _says_what_does_not_fit(case: _Case) -> None:
    """Assert that on devices of 64 KiB the planner refuses in one line that names it."""
    devices = tuple(replace(one, memory_bytes=2.0**16) for one in case.problem.cluster.devices)  # type: ignore[type-var]
    tiny = replace(case.problem, cluster=replace(case.problem.cluster, devices=devices))
    try:
        make_plan(case.asked, tiny, case.request)
    except (InapplicablePlannerError, InfeasiblePlanError) as refused:
        _one_line(refused)
        said = f"planner {case.name!r}" in str(refused)
    else:
        raise AssertionError("it answers with a plan that does not fit")
    assert said, "the refusal does not name it"


def _keeps_to_budgets(case: _Case) -> None:
    """Assert that a smaller budget of evaluations is kept to, and that a search that it cuts short proves nothing."""
    free = case.free
    for budget in sorted({1, free.evaluations // 2, free.evaluations - 1} - {0, free.evaluations}):
        try:
            cut = make_plan(case.asked, case.problem, case.request, budget=budget)
        except InfeasiblePlanError:
            continue
        assert cut.evaluations <= budget, "it evaluates more plans than the budget"
        _as_asked(case.problem, case.request, cut)
        assert cut.outcome.fits, "cut short, it answers with a plan that does not fit"
        if cut.interrupted:
            assert not cut.proof.space, "what was cut short is proven"
        else:
            assert (cut.plan, cut.proof.space) == (free.plan, free.proof.space), "a budget changes a whole search"


def _ends_after_nominal_seconds(case: _Case) -> None:
    """Assert that a planner that does not pace itself ends after its first replay, with a plan that fits and no proof."""
    if "seconds" in case.entry.options:
        return
    try:
        cut = make_plan(case.asked, case.problem, case.request.fixing("seconds", 1e-9))
    except InfeasiblePlanError as refused:
        assert "1e-09 nominal seconds" in str(refused), "the refusal does not say what ended the search"
        return
    assert cut.outcome.fits, "cut short, it answers with a plan that does not fit"
    assert not cut.interrupted, "nominal seconds are no interrupt"
    assert len(cut.replayed) <= max(1, len(case.free.replayed) - 1) or cut.plan == case.free.plan, "it goes on"
    if cut.plan != case.free.plan:
        assert not cut.proof.space, "what was cut short is proven"
        assert "nominal seconds" in cut.proof.reason, "its reason does not say what ended it"


def _keeps_the_best_at_an_interrupt(case: _Case) -> None:
    """Assert that an interrupt at the second improvement, or the only one, gives a plan that fits, marked; before any plan it is
    raised.
    """
    known = {step.iteration_seconds for step in case.free.history}
    heard: list[Progress] = []

    def stop(step: Progress) -> None:
        heard.append(step)
        if len(heard) == min(2, len(case.heard)):
            raise KeyboardInterrupt

    try:
        found = make_plan(case.asked, case.problem, case.request, progress=stop)
    except KeyboardInterrupt:
        assert not known & {step.iteration_seconds for step in heard}, "an interrupt loses the best plan"
        return
    assert found.interrupted, "an interrupted answer is not marked"
    _as_asked(case.problem, case.request, found)
    assert found.outcome.fits, "interrupted, it answers with a plan that does not fit"
    assert not found.proof.space, "an interrupted search proves something"


ASKED: dict[str, tuple[Any, ...]] = {
    "recompute": get_args(Recompute),
    "stages": (1, 2),
    "microbatches": (1, 4),
    "chunks": (1, 2),
    "zero": get_args(Zero),
    "tensor": (1, 2),
    "context": (1, 2),
    "expert": (1,),
}
"""Values that the contract asks for, by option."""


def _obeys(case: _Case) -> None:
    """Assert that a plan is as asked for, or the request refused in one line, and that a restricted search is never better."""
    parts = [*case.entry.restrictions(case.problem, case.request)]
    asked = [case.request.fixing(name, value) for name, values in ASKED.items() for value in values]
    asked += [replace(case.request, schedule=name, microbatches=4) for name in _unlike_schedules()]
    for request in [*parts, *(one for one in asked if one not in parts)][:: case.every]:
        found = _found(case.asked, case.problem, request)
        if found is None:
            continue
        check_plan(case.problem, found.plan)
        _as_asked(case.problem, request, found)
        if request in parts:
            free, seconds = case.free.outcome.iteration_seconds, found.outcome.iteration_seconds
            assert free <= seconds * (1.0 + 1e-9), f"asked for a part of what it searches it answers better: {request}"


def _as_asked(problem: Problem, request: Request, found: Result) -> None:
    """Assert that an answer's plan, and all plans that were replayed for it, are as asked for."""
    for plan in (found.plan, *found.replayed):
        assert (unlike := disobeyed(problem, request, plan)) is None, unlike


def _unlike_schedules() -> tuple[str, ...]:
    """One schedule family of each form."""
    families = schedule_families()
    forms = {(one.flush, one.placement, one.chunks, one.lanes): name for name, one in families.items()}
    return tuple(forms.values())


def _found(asked: Asked, problem: Problem, request: Request | None) -> Result | None:
    """The answer; None where the planner refuses, in one line."""
    try:
        return make_plan(asked, problem, request)
    except (InapplicablePlannerError, InfeasiblePlanError) as refused:
        _one_line(refused)
        return None


def _one_line(refused: Exception) -> None:
    assert "\n" not in str(refused), f"more than one line: {refused}"


SEARCH_RULES = (
    _repeats_itself,
    _says_what_does_not_fit,
    _keeps_to_budgets,
    _ends_after_nominal_seconds,
    _keeps_the_best_at_an_interrupt,
    _obeys,
)
"""Rules that a search must keep to, in the order in which they are checked."""
