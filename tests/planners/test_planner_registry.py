"""The registry of planners: who refuses what, in which words, and what becomes of objects that are no planners."""

from __future__ import annotations

from dataclasses import make_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from hardware_profiles import Runs, Stack, load_cluster, load_stack
from planners import (
    CutsLeftOut,
    Evaluator,
    InapplicablePlannerError,
    Note,
    Planner,
    PlannerFailedError,
    Request,
    Result,
    make_plan,
    planner_entries,
    planner_entry,
    registry,
)
from planners.registry import PLANNERS, PlannerEntry, as_entry, named_planner
from planners.testing import line, small_problems
from simulator import InfeasiblePlanError, Plan, Problem, Workload, stages_from_cuts
from simulator.workloads.synthetic import uniform_chain
from tests.planners.reasons import applicable_planners

UNEQUAL = {"exact-unequal", "tidgap", "dgap", "greedy-dp", "local-greedy", "best-equal", "unequal-nested"}
ORDERS = {"modern", "scheduler"}
PIPEDREAM = {"pipedream", "pipedream-flush"}
STRAIGHT = {"uniform", "greedy", "brute-force", "largest-load"}
EQUAL = {"data-parallel", "pipeline-data", "bapipe", "large", "mixed", *STRAIGHT, *PIPEDREAM, *ORDERS}
"""Planners of which these tests know what they refuse; the contract says what any other owes."""


def blocks(count: int) -> Workload:
    """A chain of like layers, each a block of its own."""
    chain = uniform_chain(count)
    return replace(chain, layers=tuple(replace(layer, block=1 + number) for number, layer in enumerate(chain.layers)))


@pytest.fixture
def problem() -> Problem:
    """Four layers, two devices, eight samples: every planner takes it."""
    return Problem(blocks(4), load_cluster("pipedream-a").take(2), 8)


def refusals(problem: Problem, **asked: Any) -> dict[str, str]:
    """The planners that refuse, and why."""
    found = applicable_planners(problem, Request(**asked))
    return {name: reason for name, reason in found.items() if reason is not None}


def test_a_small_problem_is_for_every_planner(problem: Problem) -> None:
    """Nothing asked for, nothing refused; as many micro-batches as samples are possible, one more is not."""
    assert refusals(problem) == {}
    assert set(refusals(problem, microbatches=8)) == {*UNEQUAL, "umpipe"}
    too_many = refusals(problem, microbatches=9)
    assert set(too_many) == set(PLANNERS)
    assert {too_many[name] for name in EQUAL} == {"9 micro-batches are more than the batch of 8 samples"}


@pytest.mark.parametrize(
    ("option", "words", "takes"),
    [
        (
            {"stages": 2},
            "stages",
            {"uniform", "greedy", "pipeline-data", "bapipe", "brute-force", "large", *UNEQUAL, *ORDERS},
        ),
        ({"chunks": 1}, "chunks", {"uniform", "greedy", "pipeline-data", "brute-force", "large", *ORDERS}),
        ({"options": {"candidates": "all"}}, "candidates", UNEQUAL),
    ],
)
def test_options_are_refused_by_who_does_not_take_them(
    problem: Problem, option: dict[str, Any], words: str, takes: set[str]
) -> None:
    """In words of the option; who takes it has no objection."""
    found = refusals(problem, **option)
    assert set(found) & (EQUAL | UNEQUAL) == (EQUAL | UNEQUAL) - takes
    others = ", ".join(name for name in PLANNERS if name not in found)
    assert set(found.values()) == {f"it has no option {words!r}; planners that have it: {others}"}


@pytest.mark.parametrize(
    ("schedule", "takes"),
    [
        ("gpipe", EQUAL - {"pipedream", "large", "mixed"} - ORDERS | UNEQUAL),
        ("1f1b", EQUAL - {"pipedream"} - ORDERS),
        ("1f1b-rr", {"pipedream", "uniform", "greedy", "brute-force", "largest-load"}),
        ("interleaved-1f1b", {"data-parallel", "uniform", "greedy", "pipeline-data", "brute-force", "large"}),
        ("1f1b-as", EQUAL - {"pipedream", "bapipe", "large", "mixed"} - ORDERS),
    ],
)
def test_schedules_are_refused_by_who_cannot_run_them(problem: Problem, schedule: str, takes: set[str]) -> None:
    """PipeDream streams, its flushed kin and BaPipe flush one stage per device, data parallelism and the grid flush.

    Who searches for an order takes none.
    """
    found = refusals(problem, schedule=schedule)
    assert (EQUAL | UNEQUAL) - set(found) == takes
    assert all(repr(schedule) in reason for reason in found.values())


def test_only_who_streams_answers_with_stale_weights(problem: Problem) -> None:
    """PipeDream and XPipe, and a function, of which nothing is known; asked for a schedule, any that has it, and no other."""
    stages = stages_from_cuts((2,), 4, [(0,), (1,)])
    streamed = Plan("hand", "pipedream", stages, (8,) * 8)
    flushed = Plan("hand", "1f1b", stages, (2,) * 4)
    entries = {**PLANNERS, "function": as_entry(lambda problem, evaluate, rng: flushed)}

    def admit(plan: Plan, **asked: Any) -> set[str]:
        return {name for name, one in entries.items() if one.admits(problem, Request(**asked), plan)}

    assert admit(streamed) == {"pipedream", "xpipe", "function"}
    assert admit(flushed) == admit(flushed, schedule="1f1b") == set(entries)
    assert admit(streamed, schedule="pipedream") == set(entries)
    assert admit(streamed, schedule="1f1b") == admit(flushed, schedule="pipedream") == set()


def test_servers_may_have_fewer_devices(problem: Problem) -> None:
    """On one of two servers with fewer devices all plan, but for the planner that needs links that are alike."""
    uneven = replace(problem, cluster=load_cluster("pipedream-a").take(6))
    assert set(refusals(uneven)) == {"largest-load"}
    assert set(refusals(uneven, microbatches=2)) == {"largest-load", "umpipe", *UNEQUAL}


STREAMING = "layers of a stage stream on a board: it is no sum of blocks"
DIFFER = "a stage whose forward and backward sizes differ runs forward again: recompute cannot be 'none' for all stages"
THREES = (
    "tensor-parallel groups of gpt-2 on line cannot have 3 GPUs: heads share them evenly, inside one server unless "
    "tensor_groups says otherwise; choices: 1, 2"
)
ONE_SCHEDULE = Stack(name="one", runs=Runs(schedules=("1f1b",)))
DIVIDES = Stack(name="divides", runs=Runs(zero=(2, 3)))
MANY = "its GPUs of several kinds have more than 20,000 choices"


@pytest.mark.parametrize(
    ("names", "changes", "asked", "reason"),
    [
        ("large mixed", {"cluster": load_cluster("fpga-vcu118-4")}, {}, STREAMING),
        ("mixed", {"cluster": line(speeds=(1.0, 0.5))}, {"tensor": 2}, "no server has 2 GPUs of one kind for a group"),
        (
            "joint rule-of-thumb large mixed",
            {"stack": load_stack("megatron-core")},
            {"zero": 3},
            "ZeRO stage of stack 'megatron-core' '3' is unknown; choices: 0, 1",
        ),
        ("joint rule-of-thumb large mixed", {}, {"tensor": 3}, THREES),
        ("exact-unequal umpipe", {}, {"recompute": "none"}, DIFFER),
        (
            "exact-unequal umpipe best-equal",
            {"recompute": "blocks"},
            {},
            "stages run forward again as a whole or not at all, not 'blocks'",
        ),
        ("uniform greedy", {}, {"slices": 2}, "slices of sequences are of a schedule that has them, not None"),
        ("uniform large", {"stack": ONE_SCHEDULE}, {"schedule": "1f1b"}, None),
        ("uniform large", {"stack": ONE_SCHEDULE}, {"schedule": "gpipe"}, "stack 'one' runs 1f1b, not 'gpipe'"),
        ("uniform", {"stack": DIVIDES}, {}, "its replicas divide nothing, and stack 'divides' runs ZeRO 2, 3 alone"),
        ("uniform", {"stack": DIVIDES, "cluster": line(speeds=(1.0,))}, {}, None),
        *(
            (
                "joint rule-of-thumb large mixed modern scheduler umpipe uniform greedy pipedream",
                {"stack": load_stack("megatron-core"), "recompute": again},
                asked,
                "stack 'megatron-core' runs recompute none, attention, blocks, not 'whole'",
            )
            for again, asked in (("whole", {}), ("whole", {"recompute": "whole"}))
        ),
        (
            "joint large modern",
            {"stack": load_stack("megatron-core")},
            {"recompute": "whole"},
            "stack 'megatron-core' runs recompute none, attention, blocks, not 'whole'",
        ),
        ("joint large modern", {"stack": Stack(name="again", runs=Runs(recompute=("blocks",)))}, {}, None),
        (
            "uniform",
            {"workload": uniform_chain(3)},
            {"recompute": "attention"},
            "its stages run again what the problem says (none), not 'attention'; planners that choose it: none",
        ),
        ("largest-load", {"cluster": line(speeds=(*[1.0] * 99, *[2.0] * 199))}, {}, None),
        ("largest-load", {"cluster": line(speeds=(*[1.0] * 99, *[2.0] * 200))}, {}, MANY),
        ("largest-load", {"cluster": line(speeds=tuple(range(1, 16)))}, {}, MANY),
    ],
)
def test_a_refusal_says_why(names: str, changes: dict[str, Any], asked: dict[str, Any], reason: str | None) -> None:
    """Of a transformer on two devices: boards, groups that no server has, what a stack does not run, recomputation that is none
    of its, and more choices of devices than 100 · 200.
    """
    options = dict(asked)
    fields = {name: options.pop(name) for name in asked if name in ("recompute", "schedule", "slices")}
    small = replace(small_problems()["transformer"], **changes)
    for name in names.split():
        assert planner_entry(name).reason(small, Request(**fields, options=options)) == reason


def test_networks_that_no_table_holds_are_refused_before_any_is_made(problem: Problem) -> None:
    """By every planner, with both numbers of layers; a thousand blocks of ten layers are taken."""
    long = replace(problem, workload=uniform_chain(10_241))
    said = "networks of at most 10,240 layers are planned, and 'chain-10241' has 10,241"
    assert set(refusals(long)) == set(planner_entries())
    assert set(refusals(long).values()) == {said}
    assert "uniform" not in refusals(replace(problem, workload=uniform_chain(10_240)))


def test_brute_force_refuses_what_is_too_large(problem: Problem) -> None:
    """Sixty layers on four devices have too many partitions for it alone; it is asked for what is small by its name."""
    assert not planner_entry("brute-force").is_default(problem)
    assert set(refusals(Problem(blocks(60), load_cluster("pipedream-a").take(4), 64))) == {"brute-force"}
    assert "60 stages are more than" in str(
        planner_entry("brute-force").reason(
            Problem(uniform_chain(59), load_cluster("pipedream-a"), 64), Request(stages=60)
        )
    )


def whole(problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
    """All layers on every device."""
    return make_plan("data-parallel", problem).plan


class Whole:
    """A class of planners, made of a request."""

    def __init__(self, request: Request) -> None:
        self.request = request

    __call__ = staticmethod(whole)


def test_what_may_be_a_planner(problem: Problem) -> None:
    """An entry stays; a function is every request's planner, a class is made of it; what cannot be called is refused."""
    entry = PLANNERS["uniform"]
    assert as_entry(entry) is entry
    request = Request(microbatches=9)
    function, kind = as_entry(whole), as_entry(Whole)
    assert function.build(request) is whole
    made: Any = kind.build(request)
    assert isinstance(made, Whole)
    assert made.request is request
    assert function.summary == "All layers on every device."
    for one in (function, kind):
        assert "9 micro-batches are more" in str(one.reason(problem, request))
        assert "no option 'stages'" in str(one.reason(problem, Request(stages=2)))
        assert (one.by_default, one.options) == (True, {})
    assert kind.reason(problem, Request(microbatches=8)) is None
    assert "a function, which hears no microbatches" in str(function.reason(problem, Request(microbatches=8)))
    with pytest.raises(
        TypeError, match=r"must be a function \(problem, evaluate, rng\) -> Plan, or a PlannerEntry, not int"
    ):
        as_entry(3)


def test_options_of_the_schedule_are_not_the_planners() -> None:
    """Of those that a request has, a planner is called with its own, as what it takes."""

    def deep(problem: Problem, evaluate: Evaluator, rng: np.random.Generator, depth: int = 1) -> Plan:
        raise NotImplementedError

    request = Request(schedule="interleaved-1f1b", options={"depth": "3", "microbatch_group_size": "2"})
    made: Any = as_entry(deep).build(request)
    assert (made.func, made.keywords) == (deep, {"depth": 3})
    assert as_entry(deep).build(Request()) is deep


def test_planners_that_are_objects_have_names() -> None:
    """Of the function or class, wherever it is wrapped; of an object that has none its class's."""
    entry = PLANNERS["uniform"]
    assert named_planner("uniform") == ("uniform", entry)
    assert named_planner(whole)[0] == named_planner(partial(whole))[0] == "whole"
    assert named_planner(Whole)[0] == "Whole"
    assert named_planner(Whole(Request()))[0] == "Whole"
    assert named_planner(PlannerEntry(whole, "", lambda problem, request: None))[0] == "whole"
    with pytest.raises(ValueError, match=r"^a planner is a name, or a function"):
        named_planner(3)  # type: ignore[arg-type]


def test_errors_of_a_planner_are_one_line_that_names_it(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of its program is PlannerFailedError; what it says of the input, or that it does not apply, stays as it is."""

    def raising(error: Exception) -> Planner:
        def planner(problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
            raise error

        return planner

    def made(error: Exception) -> None:
        entry = PlannerEntry(lambda request: raising(error), "", lambda problem, request: None)
        monkeypatch.setitem(registry.PLANNERS, "broken", entry)
        make_plan("broken", problem)

    with pytest.raises(PlannerFailedError, match=r"^planner 'broken' failed: RuntimeError: a b$"):
        made(RuntimeError("a\n b"))
    with pytest.raises(ValueError, match=r"^layers must be at least 1$") as raised:
        made(ValueError("layers must be at least 1"))
    assert type(raised.value) is ValueError
    for words, told in (("too large", "planner 'planner': too large"), ("'planner' is full", "'planner' is full")):
        with pytest.raises(InfeasiblePlanError, match=f"^{told}$"):
            make_plan(raising(InfeasiblePlanError(words)), problem)
    with pytest.raises(InapplicablePlannerError, match="planner 'pipedream' does not apply: it has no option 'stages'"):
        make_plan("pipedream", problem, Request(stages=2))
    with pytest.raises(ValueError, match="planner 'fastest' is unknown; choices: bapipe, best-equal, "):
        make_plan("fastest", problem)


def test_details_of_a_planner_are_its_own(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their names, no sentence is made of them; what it notes for people is told once."""
    own = ("makespan_seconds", "order_seconds", "closed_form_bound", "cuts_left_out", "sizes_gap", "order_proven")
    kind = make_dataclass("Own", own, bases=(Note,), frozen=True)

    def telling(problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        for _ in range(2):
            evaluate.note(kind("half of it", *[0.5] * len(own)))
        evaluate.note(Note("all of it"))
        return whole(problem, evaluate, rng)

    monkeypatch.setitem(registry.PLANNERS, "telling", as_entry(telling))
    found = make_plan("telling", problem)
    assert dict(found.details) == dict.fromkeys(own, 0.5)
    assert found.remarks().count("half of it") == 1
    assert found.remarks()[-2:] == ("half of it", "all of it")
    assert len(found.remarks()) == len(whole_result(problem).remarks()) + 2
    assert found.noted(kind) == kind("half of it", *[0.5] * len(own))
    assert found.noted(CutsLeftOut) is None


def test_a_note_is_a_note(problem: Problem) -> None:
    """A bare sentence has no kind."""
    with pytest.raises(TypeError, match=r"a planner notes a Note, as in Note\('a sentence'\), not 'half of it'"):
        Evaluator(problem).note("half of it")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "right"),
    [
        *[(one, True) for one in (None, True, 2, 0.5, "a", np.float64(0.5), np.arange(3), [], (1, "a"), {1}, range(2))],
        *[([[1], {"a": [None, (2.5, frozenset({3}))]}], True), ({"a": {"b": []}}, True)],
        *[(one, False) for one in (object(), b"a", 1j, np.array([1j]), np.array([None]), {1: 2}, iter([1]))],
        *[([1, object()], False), ([object(), 1], False), ([[1], [1j]], False), ({"a": [1, {"b": 1j}]}, False)],
    ],
)
def test_details_are_what_json_has_a_form_for(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, value: object, right: bool
) -> None:
    """At every depth of lists and tables: what has none is an error of the planner that names the detail."""

    def telling(problem: Problem, evaluate: Evaluator, rng: np.random.Generator) -> Plan:
        evaluate.note(make_dataclass("Mine", ("mine",), bases=(Note,), frozen=True)("", value))
        return whole(problem, evaluate, rng)

    monkeypatch.setitem(registry.PLANNERS, "telling", as_entry(telling))
    if right:
        assert make_plan("telling", problem).details["mine"] is value
    else:
        with pytest.raises(PlannerFailedError, match=r"Mine: mine must be a number, a text, or a list or a table"):
            make_plan("telling", problem)


def whole_result(problem: Problem) -> Result:
    return make_plan("data-parallel", problem)


def test_seconds_of_planning_and_of_an_iteration_have_their_own_names(problem: Problem) -> None:
    """As in the record, which files and --json have."""
    found = whole_result(problem)
    assert (found.iteration_seconds, found.planning_seconds) == tuple(
        found.record()[name] for name in ("iteration_seconds", "planning_seconds")
    )
    assert found.iteration_seconds == found.outcome.iteration_seconds
    assert found.memory == found.outcome.memory
    assert not hasattr(found, "seconds")


def test_options_of_an_entry_are_declared_and_given_where_they_are_needed(problem: Problem) -> None:
    """Words alone say no type; what has no default is asked for before anything is planned."""
    with pytest.raises(ValueError, match="option 'depth' of a planner must be a DeclaredOption, got 'how deep'"):
        PlannerEntry(lambda request: whole, "", lambda problem, request: None, {"depth": "how deep"})  # type: ignore[dict-item]

    def deep(problem: Problem, evaluate: Evaluator, rng: np.random.Generator, depth: int) -> Plan:
        return whole(problem, evaluate, rng)

    entry = as_entry(deep)
    assert entry.reason(problem, Request()) == "it needs option depth: a whole number"
    assert entry.reason(problem, Request(options={"depth": 2})) is None
    assert make_plan(entry, problem, Request(options={"depth": "2"})).outcome.fits
