"""Tests of `simulator.schedules.checks`: every fault is named by device, position and op, whatever door an order comes by."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.terminal.exits import MOST_CHARACTERS
from hardware_profiles import load_cluster
from simulator import (
    REPLICA_UPDATES,
    SCHEDULES,
    Evaluations,
    InfeasiblePlanError,
    OpKind,
    OpSeconds,
    Plan,
    PlanFile,
    PlanFileError,
    Problem,
    Schedule,
    ScheduleError,
    ScheduleFamily,
    build_schedule,
    check_schedule,
    equal_microbatches,
    from_text,
    given_costs,
    lower,
    replay_schedule,
    simulate,
    stages_from_cuts,
    to_text,
    unequal_schedule,
    workload_from_spec,
)
from simulator.schedules.checks import check_complete
from simulator.schedules.schedule import LANES
from simulator.schedules.unequal import UNEQUAL_SCHEDULES
from tests.simulator.order_oracle import runs, with_a_fault
from tests.simulator.strategies import Words, composition, from_lists, from_words, op_lists

GOOD = "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n"


def test_a_good_schedule_passes() -> None:
    """Each op once, all of a stage on one device, in an order that runs; full and split backwards may mix."""
    check_schedule(from_text(GOOD))
    check_schedule(from_text("0F0 0F1 0I0 0B1 0W0\n1F0 1B0 1F1 1I1 1W1\n"))
    check_schedule(replace(from_text(GOOD), credit=np.array([2, 1])))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0 0F1 0B0\n0F2 0B1", ""),
        ("0F0 0F1 0B1\n0F2 0B0", "device 0, position 2: op 0B1 runs where its forward did not (0F2 is on device 1)"),
        ("0F0 0B0\n0F1 0F2 0B1", "device 0, position 1: op 0B0 runs where its forward did not (0F1 is on device 1)"),
        ("0F1 0B0\n0F0 0F2 0B1", "device 0, position 1: op 0B0 runs where its forward did not (0F0 is on device 1)"),
    ],
)
def test_a_backward_of_several_forwards_runs_where_all_of_them_did(text: str, said: str) -> None:
    """Of forwards of one, one and two samples on two devices, the first backward covers two, the second one."""
    assert (
        refusal(lambda one: check_complete(one, [np.array([0, 1, 2, 4])], [np.array([0, 2, 4])]), from_text(text))
        == said
    )


FAULTS = {
    # what is missing, of a split backward too
    "0F0 0B0 0B1\n1F0 1B0 1F1 1B1": "device 0: op 0F1 is missing",
    "0F0 0F1 0B0 0B1\n1F0 1B0 1F1": "device 1: op 1B1 is missing (or 1I1 with 1W1)",
    "0F0 0B0\n1F0 1W0": "device 1: op 1I0 is missing",
    "0F0 0I0\n1F0 1B0": "device 0: op 0W0 is missing",
    # the second copy is the fault, the first is told
    "0F0 0F1 0B0 0B1 0F1\n1F0 1F1 1B0 1B1": (
        "device 0, position 4: op 0F1 is doubled, it stands at device 0, position 1 already"
    ),
    "0F0 0B0 1B0\n1F0 1B0": "device 1, position 1: op 1B0 is doubled, it stands at device 0, position 2 already",
    # a backward is whole or split, not both
    "0F0 0B0 0I0\n1F0 1B0": "device 0, position 2: op 0I0 repeats the full backward 0B0",
    "0F0 0B0 0W0\n1F0 1B0": "device 0, position 2: op 0W0 repeats the full backward 0B0",
    # what a forward stashed lies on one device
    "0F0 1B0 0B0\n1F0": "device 0, position 1: op 1B0 runs where its forward did not (1F0 is on device 1)",
    "0F0 0B0\n2F0 2B0": "stage 1 has no op on any device, but stages are numbered to 2",
    # as many forwards again, or copies to the host, as there are micro-batches, of one of them twice
    "0F0 0F1 0A0 0A0 0B0 0B1": "device 0, position 3: op 0A0 is doubled, it stands at device 0, position 2 already",
    "0F0 0F1 0B0 0B1\n0O0 0O0 0L0 0L0": (
        "device 0, position 1: op 0O0 is doubled, it stands at device 0, position 0 already"
    ),
    # updates and predictions stand on a device of their stage, an update once on each
    "0F0 0B0 1U0\n1F0 1B0": "device 0, position 2: op 1U0 stands where its stage does not (stage 1 is on device 1)",
    "0F0 0B0 0U0\n0F1 0B1 1P0\n1F0 1F1 1B0 1B1": (
        "device 1, position 2: op 1P0 stands where its stage does not (stage 1 is on device 2)"
    ),
    "0F0 0B0 0U0\n0F1 0U0 0B1 0U0": "device 1, position 3: op 0U0 is doubled, it stands at device 1, position 1 already",
    # where one stage updates, all do, on each of their devices
    "0F0 0B0 0U0\n1F0 1B0": "device 1: stage 1 has no update, where others have (op 0U0 on device 0)",
    "0F0 0B0 0U0\n0F1 0B1\n1F0 1F1 1B0 1B1 1U1": (
        "device 1: stage 0 has no update, where others have (op 0U0 on device 0)"
    ),
    "0P0 0F0 0P0 0B0 0B1": "device 0: op 0F1 is missing; micro-batch 1 stands nowhere but in 0B1 (device 0, position 4)",
    # what goes to the host comes back, and a stage runs all its forwards again or none
    "0F0 0B0\n0L0": "device 0: op 0O0 is missing: what is offloaded is loaded back",
    "0F0 0B0\n0O0": "device 0: op 0L0 is missing: what is offloaded is loaded back",
    "0F0 0F1 0B0 0A1 0B1": "device 0: stage 0 runs forwards again in ops of their own, all or none; op 0A0 is missing",
    "0F0 0F1 0A0 0B0 0B1": "device 0: stage 0 runs forwards again in ops of their own, all or none; op 0A1 is missing",
    # orders that wait for themselves, on one device and between two
    "0B0 0F0": "deadlock: device 0, position 0: op 0B0 waits for 0F0 (device 0, position 1)",
    "0F0 0W0 0I0": "deadlock: device 0, position 1: op 0W0 waits for 0I0 (device 0, position 2)",
    "0F0 0B1 0F1 0B0\n1F0 1F1 1B0 1B1": (
        "deadlock: device 0, position 1: op 0B1 waits for 0F1 (device 0, position 2); "
        "device 1, position 1: op 1F1 waits for 0F1 (device 0, position 2)"
    ),
    # torch 2.13's own list of 1F1B has, on its last rank, a micro-batch that no other rank has
    "0F0 0F1 0B0 0B1\n1F1 1B0 1F2 1B1": (
        "device 0: op 0F2 is missing; micro-batch 2 stands nowhere but in 1F2 (device 1, position 2)"
    ),
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_named_with_its_device_position_and_op(text: str) -> None:
    """One line."""
    with pytest.raises(ScheduleError) as caught:
        check_schedule(from_text(text))
    assert str(caught.value) == FAULTS[text]


def test_what_is_missing_of_a_schedule_with_a_credit_is_named() -> None:
    """As without: as many micro-batches go forward as back."""
    with pytest.raises(ScheduleError, match=r"^device 1: op 1B0 is missing \(or 1I0 with 1W0\)$"):
        check_schedule(replace(from_text("0F0 0B0\n1F0"), credit=np.array([1, 1])))


def test_a_long_deadlock_names_two_devices_and_counts_the_rest() -> None:
    """The message stays one line however many devices are stuck, short enough for large numbers and a long path before it."""
    lists = [list(ops) for ops in build_schedule("1f1b", 6, 6).lists()]
    lists[5].reverse()
    with pytest.raises(ScheduleError, match=r"device 0, position .*device 1, .*; 4 devices more$") as found:
        check_schedule(from_lists("stuck", lists))
    assert len(str(found.value)) < MOST_CHARACTERS * 2 // 3


# ---- every door, against an oracle -----------------------------------------------------------------------------------


EVERY = (*sorted(SCHEDULES), "random", "random with hosts")


@st.composite
def any_schedule(draw: st.DrawFn) -> Schedule:
    """A schedule of any family at all, small, or a random order that runs."""
    name = draw(st.sampled_from(EVERY))
    if name not in SCHEDULES:
        return from_words("own", draw(op_lists(offloads=name != "random")))
    family = SCHEDULES[name]
    devices, microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    own: dict[str, Any] = {}
    if "replicas" in family.options:
        own["replicas"] = tuple(draw(st.integers(1, 3)) for _ in range(devices))
        own["replica_updates"] = draw(st.sampled_from(REPLICA_UPDATES))
    if "slices" in family.options:
        own["slices"] = draw(st.integers(1, 3))
    if "microbatches_per_minibatch" in family.options:
        own["microbatches_per_minibatch"] = draw(st.integers(1, 4))
    if "lanes" in family.options:
        own["lanes"] = draw(st.sampled_from(LANES))
    if family.placement == "bidirectional":
        devices, microbatches = 2 * draw(st.integers(1, 2)), 2 * draw(st.integers(2, 4))
    chunks = family.chunks * (draw(st.integers(1, 2)) if "chunks" in family.options else 1)
    if "chunks" in family.options:
        own["chunks"] = chunks
    try:
        return build_schedule(name, devices * chunks, microbatches, **own)
    except ValueError:
        return build_schedule(name, devices * chunks, 2 * devices, **own)


def refusal(door: Callable[[Any], object], given: object) -> str:
    """The message of the error with which a door refuses an order; empty where it lets it through."""
    said = ""
    try:
        door(given)
    except (ScheduleError, InfeasiblePlanError, PlanFileError) as error:
        said = str(error)
    assert "\n" not in said
    return said


def replay_compiled(schedule: Schedule) -> object:
    """Replay it on numbers, compiled."""
    return replay_schedule(schedule, OpSeconds(1.0, 2.0), engine="compiled")


def replay_reference(schedule: Schedule) -> object:
    """Replay it on numbers, on the reference."""
    return replay_schedule(schedule, OpSeconds(1.0, 2.0))


@settings(max_examples=60, deadline=None)
@given(schedule=any_schedule(), faults=st.integers(0, 2), seed=st.integers(0, 2**32))
def test_schedules_are_refused_where_an_oracle_says_so(schedule: Schedule, faults: int, seed: int) -> None:
    """Families and random orders, whole or with a fault or two: the check and both replays refuse those that lack an op, have one
    too many or out of place, or deadlock, in the same words, and let all others through."""
    assert runs(schedule)
    rng = Random(seed)
    for _ in range(faults):
        schedule = with_a_fault(schedule, rng)
    said = refusal(check_schedule, schedule)
    assert (said == "") == runs(schedule), said
    assert refusal(replay_reference, schedule) == refusal(replay_compiled, schedule) == said
    assert not said or re.search(r"device \d+.*[0-9][FBIWUPAOL][0-9]|overlapped pair|stage \d+ has no op", said)


@st.composite
def unequal(draw: st.DrawFn) -> tuple[Schedule, list[list[int]], list[list[int]]]:
    """A schedule, and sizes of each stage forward and backward: those that it was made for, or as many others."""
    stages, total = draw(st.integers(1, 4)), draw(st.integers(2, 8))
    parts = st.integers(1, min(4, total))
    forward = [composition(draw, total, draw(parts)) for _ in range(stages)]
    backward = [composition(draw, total, draw(parts)) for _ in range(stages)] if draw(st.booleans()) else forward
    schedule = unequal_schedule(draw(st.sampled_from(UNEQUAL_SCHEDULES)), forward, backward)
    if draw(st.booleans()):
        forward, backward = ([composition(draw, total, len(one)) for one in sizes] for sizes in (forward, backward))
    return schedule, forward, backward


@settings(max_examples=30, deadline=None)
@given(made=unequal(), faults=st.integers(0, 2), seed=st.integers(0, 2**32))
def test_unequal_sizes_are_checked_by_samples(
    made: tuple[Schedule, list[list[int]], list[list[int]]], faults: int, seed: int
) -> None:
    """Micro-batches of each stage and pass: an order is refused where a sample is not covered once, or never comes."""
    schedule, forward, backward = made
    rng = Random(seed)
    for _ in range(faults):
        schedule = with_a_fault(schedule, rng)
    costs = given_costs(schedule.stages, OpSeconds(1.0, 2.0), per_sample=True)
    said = refusal(lambda one: lower(one, costs, forward_sizes=forward, backward_sizes=backward), schedule)
    assert (said == "") == runs(schedule, forward, backward), said


@pytest.mark.parametrize(
    ("forward", "backward", "text", "said"),
    [
        ([1, 1, 1], [3], "0F0 0F1 0B0", "device 0: op 0F2 is missing"),
        ([1, 1, 1], [3], "0F0 0F1 0F2 0A0", "device 0: op 0B0 is missing (or 0I0 with 0W0)"),
        ([3], [1, 1, 1], "0F0 0B0 0B1", "device 0: op 0B2 is missing (or 0I2 with 0W2)"),
        ([3], [1, 1, 1], "0F0 0B0 0I1 0W1 0I2", "device 0: op 0W2 is missing"),
    ],
)
def test_a_missing_op_of_the_pass_with_more_micro_batches_is_named(
    forward: list[int], backward: list[int], text: str, said: str
) -> None:
    """Beyond those of the other pass, either way."""
    with pytest.raises(ScheduleError) as caught:
        lower(from_text(text), given_costs(1, OpSeconds(1.0, 2.0)), forward_sizes=[forward], backward_sizes=[backward])
    assert str(caught.value) == said


def plan_of(schedule: Schedule, batch: int, layers: int, **own: Any) -> Plan:
    """A plan whose stages lie, and run again, as those of a schedule do."""
    stages = range(schedule.stages)
    again = [bool(((schedule.stage == stage) & (schedule.kind == OpKind.RECOMPUTE)).any()) for stage in stages]
    cuts = [layers * stage // schedule.stages for stage in stages[1:]]
    held = stages_from_cuts(cuts, layers, schedule.holders())
    recompute = tuple("whole" if one else "none" for one in again)
    sizes = equal_microbatches(batch, schedule.microbatches)
    return Plan("hand", "mine", held, sizes, recompute=recompute, **own)  # type: ignore[arg-type]


def answers(problem: Problem, plan: Plan) -> set[str]:
    """What a plan's doors say of it: a simulation, an evaluation, its file."""
    return {
        refusal(partial(simulate, problem), plan),
        refusal(Evaluations(problem), plan),
        refusal(lambda one: PlanFile.from_json(one, "FILE"), PlanFile(problem, plan).to_json())
        .removeprefix("FILE: $.plan: ")
        .removeprefix("FILE: $.plan.order: " if plan.order else "FILE: $.plan.schedule: "),
    }


@settings(max_examples=15, deadline=None)
@given(lists=op_lists(), faults=st.integers(0, 2), seed=st.integers(0, 2**32))
def test_plans_are_refused_where_an_oracle_says_so(lists: Words, faults: int, seed: int) -> None:
    """A plan's order, and a plug-in family's: simulated, evaluated, read from a file, all say the same of the same fault."""
    whole = from_words("mine", lists)
    problem = Problem(workload_from_spec("chain:8"), load_cluster("pipedream-b"), 16)
    rng, faulty = Random(seed), whole
    for _ in range(faults):
        faulty = with_a_fault(faulty, rng)
    plan = plan_of(whole, 16, 8)
    with patch.dict(SCHEDULES, {"mine": ScheduleFamily(lambda stages, microbatches: faulty, "")}):
        (said,) = answers(problem, plan)
    wrong = refusal(check_schedule, faulty)
    assert said == (f"schedule 'mine': {wrong}" if wrong else "") or elsewhere(faulty, whole, wrong, said)
    lines = to_text(faulty).splitlines()
    (said,) = answers(problem, replace(plan, order=tuple(lines)))
    unread = refusal(from_text, "\n".join(lines))
    if unread:
        assert said == unread
        return
    read = replace(from_text("\n".join(lines)), stages=whole.stages, microbatches=whole.microbatches)
    wrong = refusal(check_schedule, read)
    assert (wrong == "") == runs(read), wrong
    assert said == wrong or elsewhere(read, whole, wrong, said)


def elsewhere(schedule: Schedule, whole: Schedule, wrong: str, said: str) -> bool:
    """Whether a complete schedule has stages on other devices than another one, or runs others again, and that is said."""
    again = [set(one.stage[one.kind == OpKind.RECOMPUTE].tolist()) for one in (schedule, whole)]
    other = schedule.holders() != whole.holders() or again[0] != again[1]
    return other and (not wrong or wrong.startswith("deadlock")) and "plan 'hand'" in said


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (
            "kind",
            np.zeros(7, dtype=np.int8),
            (
                "the columns of schedule 'text' do not belong together: whole numbers of 8 ops in 2 lists, a "
                "device of each list, a credit of at least 1 of each stage"
            ),
        ),
        (
            "offsets",
            np.array([0, 4, 4, 9]),
            (
                "the columns of schedule 'text' do not belong together: whole numbers of 8 ops in 3 lists, a "
                "device of each list, a credit of at least 1 of each stage"
            ),
        ),
        (
            "device",
            np.zeros(3, dtype=np.int32),
            (
                "the columns of schedule 'text' do not belong together: whole numbers of 8 ops in 2 lists, a "
                "device of each list, a credit of at least 1 of each stage"
            ),
        ),
        (
            "credit",
            np.array([1, 0], dtype=np.int32),
            (
                "the columns of schedule 'text' do not belong together: whole numbers of 8 ops in 2 lists, a "
                "device of each list, a credit of at least 1 of each stage"
            ),
        ),
        (
            "kind",
            np.array([0, 0, 1, 6, 0, 1, 0, 1], dtype=np.int8),
            "device 0, position 3: op 0R1 is no op of a schedule",
        ),
        ("kind", np.array([0, 0, 1, 1, 0, 99, 0, 1], dtype=np.int8), "device 1, position 1: op 1 kind 99 0 is no op"),
        ("microbatch", np.array([0, 1, 0, -1, 0, 0, 1, 1], dtype=np.int32), "device 0, position 3: op 0B-1 is no op"),
        ("stage", np.array([0, 0, 0, 0, 1, 1, 2, 1], dtype=np.int32), "device 1, position 2: op 2F1 is no op"),
    ],
)
def test_columns_that_are_no_schedule_are_refused(column: str, value: Any, said: str) -> None:
    """What a plug-in has made by hand, wrongly: columns of other lengths, collectives, kinds and stages that there are not."""
    schedule = replace(from_text(GOOD), **{column: value})
    for check in (check_schedule, replay_reference):
        with pytest.raises(ScheduleError, match=said):
            check(schedule)
