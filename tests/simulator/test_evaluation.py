"""Evaluations: many plans of one problem have the seconds and the peaks of their replays, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import load_cluster
from simulator import (
    SCHEDULES,
    Communication,
    Evaluations,
    Gpt,
    InfeasiblePlanError,
    OpKind,
    Outcome,
    Plan,
    PlanCosts,
    Problem,
    Schedule,
    ScheduleFamily,
    Stage,
    build_schedule,
    equal_microbatches,
    plan_replay,
    schedule_families,
    simulate,
    stages_from_cuts,
)
from simulator import evaluation as module
from simulator.plan_replay import plan_structure, stream_length
from tests.chains import random_chain
from tests.simulator.strategies import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    bits,
    chain_cluster,
    plans,
    split_between_stages,
    star_cluster,
)


def assert_as_replayed(case: tuple[Problem, list[Plan]]) -> None:
    """One object has of several plans, and of the first again, what SimPy's replays have."""
    problem, several = case
    evaluate = Evaluations(problem)
    for plan in (*several, several[0]):
        assert_evaluated(evaluate, plan, simulate(problem, plan))


def assert_evaluated(evaluate: Evaluations, plan: Plan, outcome: Outcome) -> None:
    """Seconds, the fullest device, and the peak of every device are those of a replay."""
    fullest, found = outcome.fullest, evaluate(plan)
    assert found is not None
    assert (found.iteration_seconds, found.device) == (outcome.iteration_seconds, fullest.device)
    assert (found.peak_bytes, found.capacity_bytes) == (fullest.peak_bytes, fullest.capacity_bytes)
    assert evaluate.peak_bytes(plan) == {one.device: one.peak_bytes for one in outcome.memory}


@settings(max_examples=25)
@given(plans(2))
def test_plans_have_the_seconds_and_peaks_of_their_replays(case: tuple[Problem, list[Plan]]) -> None:
    """Of every synchronous family, on the reference engine."""
    assert_as_replayed(case)


@settings(max_examples=20)
@given(plans(2, (*SYNCHRONOUS, "pipedream", "2bw")), st.integers(0, 10**9))
def test_plans_that_split_layers_have_those_of_their_replays(case: tuple[Problem, list[Plan]], seed: int) -> None:
    """Neighbouring stages of any family that share layers, beside the plans of whole ones; both engines to the bit."""
    problem, several = case
    split = [split_between_stages(problem.workload, plan, Random(seed)) for plan in several]
    with patch.object(plan_replay, "MOST_STREAM", 200):
        assert_as_replayed((problem, [*several, *split]))
        for plan in split:
            reference, compiled = (simulate(problem, plan, engine=engine).timeline for engine in ("simpy", "compiled"))
            assert bits(reference.start, compiled.start)
            assert bits(reference.end, compiled.end)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_plan_of_every_family_replays_alike(name: str) -> None:
    """SimPy, the compiled engines and the evaluator to the bit, with links that are contended or not, and a weight that the first
    and the last layer share; pairs that overlap take three quarters of their seconds."""
    family, devices, own = SCHEDULES[name], [(2,), (0,), (1,)], {}
    if "replicas" in family.options:
        devices, own = [(2, 3), (0,), (1,)], {"replication": "round-robin"}
    held = family.device_of_stage(devices, 4 if family.placement == "wave" else family.chunks)
    if family.placement == "bidirectional":
        held, own = ((0, 3), (1, 2), (2, 1), (3, 0)), {"replication": "round-robin"}
    layers = 2 * len(held)
    plain = random_chain(layers, np.random.default_rng(1), flop=1.0, parameters=1000)
    first, *middle, last = plain.layers
    tied = replace(last, tied_to=first.name, tied_parameters=first.parameters)
    workload = replace(plain, layers=(first, *middle, tied))
    communication = family.communications[0] if family.communications else "overlapped"
    one = Plan("hand", name, stages_from_cuts(range(2, layers, 2), layers, held), (2,) * 6, **own)
    for contention in (True, False):
        cluster = star_cluster(4, bandwidth=1e5)
        problem = Problem(workload, cluster, 12, communication=communication, contention=contention, overlap=0.75)
        reference, compiled = (simulate(problem, one, engine=engine) for engine in ("simpy", "compiled"))
        assert bits(reference.timeline.start, compiled.timeline.start)
        assert bits(reference.timeline.end, compiled.timeline.end)
        assert [memory.peak_bytes for memory in reference.memory] == [memory.peak_bytes for memory in compiled.memory]
        assert_evaluated(Evaluations(problem), one, reference)


@pytest.mark.slow
@settings(max_examples=400)
@given(plans(4))
def test_many_plans_have_the_seconds_and_peaks_of_their_replays(case: tuple[Problem, list[Plan]]) -> None:
    """As above, 1,600 plans."""
    assert_as_replayed(case)


@pytest.mark.parametrize(
    ("communication", "recompute"), [("overlapped", False), ("send-blocking", True), ("both-blocking", False)]
)
def test_passes_of_a_flush_have_the_peaks_of_their_part_of_the_replay(
    communication: Communication, recompute: bool
) -> None:
    """Before the last stage's first backward, and from what is held then on; sizes of each stage and pass, on SimPy."""
    rng = np.random.default_rng(0)
    problem = replace(
        PROBLEM, cluster=chain_cluster(3, bandwidth=1e5), communication=communication, recompute=recompute
    )
    evaluate = Evaluations(problem)
    for _ in range(4):
        sizes = [
            tuple((one,) * (8 // one) + ((8 % one,) if 8 % one else ()) for one in rng.integers(1, 9, 3))
            for _ in range(2)
        ]
        stages = stages_from_cuts(sorted(rng.choice(5, 2, replace=False) + 1), 6, [(0,), (1,), (2,)])
        unequal = Plan("any", "gpipe", stages, sizes[0][0], forward_sizes=sizes[0], backward_sizes=sizes[1])
        outcome, found = simulate(problem, unequal), evaluate.pass_peak_bytes(unequal)
        timeline = outcome.timeline
        turns = timeline.start[(timeline.stage == 2) & (timeline.kind == OpKind.BACKWARD)].min()
        for device in outcome.memory:
            levels, step = device.bytes.sum(axis=1), int(np.searchsorted(device.times, turns))
            assert found is not None
            assert found[:, device.device].tolist() == [levels[:step].max(), levels[step - 1 :].max()]


def test_passes_that_may_overlap_have_no_peaks_of_their_own() -> None:
    """1F1B alternates; replicas of the last stage may turn before others do; an order may be anything."""
    pair = replace(plan(3, schedule="gpipe"), stages=(Stage((0, 1, 2), (0,)), Stage((3, 4, 5), (1, 2))))
    evaluate = Evaluations(replace(PROBLEM, cluster=chain_cluster(3)))
    for other in (plan(3), pair, plan(3, schedule="gpipe", order=("0F0", "1F0"))):
        with pytest.raises(ValueError, match="plan 'hand' is not gpipe without replicas: its passes may overlap"):
            evaluate.pass_peak_bytes(other)


def assert_streams_as_replayed(case: tuple[Problem, list[Plan]]) -> None:
    """As `assert_as_replayed`, of streams that stop growing at 200 micro-batches."""
    with patch.object(plan_replay, "MOST_STREAM", 200):
        assert_as_replayed(case)


@settings(max_examples=12)
@given(plans(2, ("pipedream", "1f1b-rr", "pipedream", "1f1b-rr", "2bw", "pipeoptim")))
def test_streams_have_the_seconds_and_peaks_of_their_replays(case: tuple[Problem, list[Plan]]) -> None:
    """Their steady state, and the copies of weights and gradients that they hold, counted in order or in time."""
    assert_streams_as_replayed(case)


def test_a_stream_grows_until_it_is_steady() -> None:
    """Replicas 2-3-2 on a star of slow links: 72 micro-batches show no period, 144 do, in the simulation as here."""
    workload = random_chain(3, np.random.default_rng(5), flop=1.0, parameters=1000)
    problem = Problem(workload, star_cluster(7, bandwidth=1e3), 12)
    stages = stages_from_cuts([1, 2], 3, [(0, 1), (2, 3, 4), (5, 6)])
    one = Plan("hand", "1f1b-rr", stages, (4, 4, 4), "round-robin")
    assert simulate(problem, one).stream == 2 * stream_length(one)
    assert_as_replayed((problem, [one]))


@pytest.mark.slow
@settings(max_examples=200)
@given(plans(3, ASYNCHRONOUS))
def test_many_streams_have_the_seconds_and_peaks_of_their_replays(case: tuple[Problem, list[Plan]]) -> None:
    """As above, 600 streams."""
    assert_streams_as_replayed(case)


CHAIN = random_chain(6, np.random.default_rng(0), flop=1.0, parameters=1000)
PROBLEM = Problem(CHAIN, chain_cluster(2, bandwidth=1e5), 8)


def plan(cut: int, count: int = 4, **changes: object) -> Plan:
    """Two stages, cut before a layer."""
    one = Plan("hand", "1f1b", stages_from_cuts([cut], 6, [(0,), (1,)]), equal_microbatches(8, count))
    return replace(one, **changes)  # type: ignore[arg-type]


def test_plans_of_one_structure_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other cuts have the same structure; another number of micro-batches, another device, another schedule have not."""
    lowered: list[Plan] = []

    def watched(costs: PlanCosts, *others: Any) -> object:
        lowered.append(costs.plan)
        return plan_structure(costs, *others)

    monkeypatch.setattr(module, "plan_structure", watched)
    evaluate = Evaluations(PROBLEM)
    moved = tuple(replace(stage, devices=(1 - number,)) for number, stage in enumerate(plan(3).stages))
    for one in (plan(1), plan(2), plan(5), plan(3, 2), plan(3, schedule="gpipe"), plan(3, stages=moved), plan(4)):
        evaluate(one)
    assert lowered == [plan(1), plan(3, 2), plan(3, schedule="gpipe"), plan(3, stages=moved)]


def test_structures_that_were_used_longest_ago_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tasks of all structures are more than MOST_TASKS: 18 tasks of four micro-batches, 34 of eight."""
    monkeypatch.setattr(module, "MOST_TASKS", 140)
    evaluate = Evaluations(PROBLEM)
    for one in (plan(1), plan(1, schedule="gpipe"), plan(1, 8), plan(1), plan(1, 8, schedule="gpipe")):
        assert evaluate(one) is not None
    assert [len(one) for one in evaluate._structures.values()] == [18, 34, 18, 34]
    monkeypatch.setattr(module, "MOST_TASKS", 80)
    evaluate(plan(1, 2))
    assert [len(one) for one in evaluate._structures.values()] == [18, 34, 10]


def test_what_is_not_covered_is_left_to_a_simulation() -> None:
    """Stages that are not contiguous, and layers that are not there; whatever is asked."""
    evaluate = Evaluations(PROBLEM)
    mixed = (Stage((0, 2, 3), (0,)), Stage((1, 4, 5), (1,)))
    assert evaluate(plan(3, stages=mixed)) is None
    for ask in (evaluate.peak_bytes, evaluate.pass_peak_bytes, evaluate.forward_seconds, evaluate.durations):
        assert ask(plan(3, stages=mixed, schedule="gpipe")) is None
    beyond = (Stage((0, 1, 2), (0,)), Stage((3, 4, 5, 6), (1,)))
    assert evaluate(plan(3, stages=beyond)) is None
    for first in ((), (-9, -8)):
        assert evaluate(plan(3, stages=(Stage(first, (0,)), Stage(tuple(range(6)), (1,))))) is None
    diamond = Problem(replace(CHAIN, edges=((0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5))), PROBLEM.cluster, 8)
    crossed = Plan("hand", "gpipe", tuple(Stage(one, (0,)) for one in ((0,), (2,), (1,), (3, 4, 5))), (8,))
    assert Evaluations(diamond)(crossed) is None


def test_streams_on_several_lanes_are_left_to_a_simulation() -> None:
    """A family that updates without a flush, and whose forwards and backwards share a device."""

    def shared(stages: int, microbatches: int) -> Schedule:
        return replace(build_schedule("pipedream", stages, microbatches), lanes="shared")

    for lanes, flush in ((True, False), (False, False)):
        with patch.dict(SCHEDULES, {"mine": ScheduleFamily(shared, "", flush=flush, lanes=lanes)}):
            asked = plan(3, schedule="mine")
            assert (Evaluations(PROBLEM)(asked) is None) == lanes
            assert simulate(PROBLEM, asked).iteration_seconds > 0.0


def test_replicas_of_unlike_groups_are_left_to_a_simulation() -> None:
    """Three devices: a group of two and one alone; alike groups are evaluated."""
    problem = Problem(Gpt(3, 64, 4, vocabulary=512, sequence=32).workload(), load_cluster("dgx-a100").take(4), 4)
    layers = tuple(range(len(problem.workload)))
    for devices, degrees in (((0, 1, 2), (2, 1)), ((0, 1, 2, 3), (2, 2))):
        asked = Plan("hand", "gpipe", (Stage(layers, devices, degrees),), (4,))
        assert (Evaluations(problem)(asked) is None) == (degrees == (2, 1))
        assert simulate(problem, asked).iteration_seconds > 0.0


def test_seconds_that_might_overflow_are_left_to_a_simulation() -> None:
    """Eighteen tasks of up to 6e298 s may be above 1e300; four micro-batches pass two stages of 9e298 s."""
    layers = tuple(replace(layer, flop=5e297) for layer in CHAIN.layers)
    huge = replace(PROBLEM, workload=replace(CHAIN, layers=layers))
    assert Evaluations(huge)(plan(3)) is None
    assert simulate(huge, plan(3)).iteration_seconds == pytest.approx((4 + 1) * 9e298)


def test_a_plan_that_cannot_run_raises_as_a_simulation_does() -> None:
    """A device that is not there; a micro-batch too few."""
    evaluate = Evaluations(PROBLEM)
    with pytest.raises(InfeasiblePlanError, match="uses devices"):
        evaluate(plan(3, stages=(Stage((0, 1, 2), (0,)), Stage((3, 4, 5), (7,)))))
    with pytest.raises(
        InfeasiblePlanError,
        match="micro-batches of plan 'hand' must be at least 1 sample and sum to 8, got 2 that sum to 4",
    ):
        evaluate(plan(3, microbatches=(2, 2)))


def test_each_cut_of_a_plan_is_checked_where_layers_matter() -> None:
    """Four heads over three devices; blocks that run again of a stage that has fewer, where one cut before had as many."""
    problem = Problem(Gpt(3, 64, 4, vocabulary=512, sequence=32).workload(), load_cluster("dgx-a100").take(6), 4)
    evaluate, layers = Evaluations(problem), len(problem.workload)
    groups = Stage(tuple(range(layers)), (0, 1, 2), (3,))
    with pytest.raises(
        InfeasiblePlanError,
        match=(
            r"stage 0 of plan 'hand' has groups of 3, which does not divide the 4 key-value heads of "
            r"layer 'block1.qkv'; choices: 1, 2, 4"
        ),
    ):
        evaluate(Plan("hand", "gpipe", (groups,), (4,)))
    starts = [problem.workload.layers.index(one) for one in problem.workload.layers if one.block]
    two, one = (starts[len(starts) * part // 3] for part in (2, 1))
    for cut, fits in ((two, True), (one, False)):
        stages = Stage(tuple(range(cut)), (0,)), Stage(tuple(range(cut, layers)), (1,))
        again = Plan("hand", "gpipe", stages, (4,), recompute=("blocks", "none"), recomputed_blocks=(2, 0))
        if fits:
            assert evaluate(again) is not None
        else:
            with pytest.raises(InfeasiblePlanError, match="blocks"):
                evaluate(again)


@settings(max_examples=10)
@given(plans(1))
def test_other_durations_are_replayed_beside_each_other(case: tuple[Problem, list[Plan]]) -> None:
    """Its own durations give its own seconds; slower ops, more (but where they queue, or share a device, in another order)."""
    problem, (one,) = case
    evaluate = Evaluations(problem)
    own, found = evaluate.durations(one), evaluate(one)
    assert own is not None
    assert found is not None
    rows = np.stack([own.seconds, *(own.seconds * factor for factor in np.linspace(0.5, 2.0, 10))])
    seconds = evaluate.makespans(one, rows)
    assert seconds[0] == found.iteration_seconds
    if not problem.contention and not (one.schedule in schedule_families() and schedule_families()[one.schedule].lanes):
        assert (np.diff(seconds[1:]) >= 0.0).all()
    alone = [float(evaluate.makespans(one, row[None])[0]) for row in rows]
    assert seconds.tolist() == alone


def test_durations_say_what_they_are() -> None:
    """Two stages of 3 layers each of 1 FLOP times a factor: forwards, twice as long backwards, updates."""
    evaluate = Evaluations(PROBLEM)
    found = evaluate.durations(plan(3))
    assert found is not None
    flop = np.array([layer.flop for layer in CHAIN.layers])
    expected = {OpKind.FORWARD: 1.0, OpKind.BACKWARD: 2.0}
    for (kind, stage, replica, _), samples, seconds in zip(found.what, found.samples, found.seconds, strict=True):
        if kind in expected:
            work = flop[:3] if stage == 0 else flop[3:]
            assert (replica, samples) == (0, 2)
            assert seconds == pytest.approx(expected[kind] * 2 * work.sum())
    assert sorted({what[:2] for what in found.what}) == [
        (kind, stage) for kind in (OpKind.FORWARD, OpKind.BACKWARD, OpKind.UPDATE) for stage in (0, 1)
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.zeros((2, 5)), r"seconds must have shape \(rows, 6\), got \(2, 5\)"),
        (np.zeros(6), r"seconds must have shape \(rows, 6\), got \(6,\)"),
        (np.full((1, 6), -1.0), "seconds must be finite and at least 0"),
        (np.full((1, 6), np.inf), "seconds must be finite and at least 0"),
    ],
)
def test_durations_of_another_form_are_refused(rows: np.ndarray, said: str) -> None:
    """Six durations: two stages, forward, backward, update."""
    with pytest.raises(ValueError, match=said):
        Evaluations(PROBLEM).makespans(plan(3), rows)


def test_an_asynchronous_plan_has_no_table_of_durations() -> None:
    """Its seconds are those of a steady state, which a simulation finds."""
    asynchronous = plan(3, schedule="pipedream")
    assert Evaluations(PROBLEM).durations(asynchronous) is None
    with pytest.raises(
        ValueError, match=r"^plan 'hand' is asynchronous or its stages are not contiguous: it has no table"
    ):
        Evaluations(PROBLEM).makespans(asynchronous, np.zeros((1, 6)))
