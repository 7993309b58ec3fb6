"""Unequal schedules, and plans whose stages have micro-batches of their own."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles import load_cluster
from simulator import (
    InfeasiblePlanError,
    OpKind,
    OpSeconds,
    Plan,
    Problem,
    build_schedule,
    from_text,
    given_costs,
    lower,
    simulate,
    stages_from_cuts,
    to_text,
    unequal_schedule,
)
from simulator.engines import reference as simpy_engine
from simulator.schedules.unequal import bounds_of, credited_orders, safe_credits
from simulator.workloads.synthetic import uniform_chain


@st.composite
def unequal_sizes(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Forward and backward sizes of 1-4 stages over 1-16 samples; sizes differ within a stage, too."""
    stages, samples = draw(st.integers(1, 4)), draw(st.integers(1, 16))

    def sizes() -> list[int]:
        cuts = sorted(draw(st.sets(st.integers(1, samples), max_size=6)) | {samples})
        return np.diff([0, *cuts]).tolist()

    return [sizes() for _ in range(stages)], [sizes() for _ in range(stages)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "count"), [(1, 3), (3, 2), (4, 4), (4, 9)])
def test_equal_sizes_give_the_plain_schedule(name: str, stages: int, count: int) -> None:
    """With one size everywhere the orders are those of the family itself."""
    sizes = [[2] * count] * stages
    assert to_text(unequal_schedule(name, sizes, sizes)) == to_text(build_schedule(name, stages, count))


def test_the_drawing_of_the_module() -> None:
    """f = (2, 1), g = (1, 2), credits (4, 2): the second stage runs 0F 1F 0B 2F 3F 1B."""
    forward, backward = bounds_of([[2, 2], [1, 1, 1, 1]]), bounds_of([[1, 1, 1, 1], [2, 2]])
    first, second = credited_orders(forward, backward, [4, 2])
    assert first == [("F", 0), ("F", 1), ("B", 0), ("B", 1), ("B", 2), ("B", 3)]
    assert second == [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("F", 3), ("B", 1)]
    assert (
        unequal_schedule("gpipe", [[2, 2], [1, 1, 1, 1]], [[1, 3], [4]]).microbatches == 4
    )  # the most of any stage and pass


@settings(max_examples=30, deadline=None)
@given(unequal_sizes(), st.integers(0, 2))
def test_credits_neither_deadlock_nor_are_exceeded(sizes: tuple[list[list[int]], list[list[int]]], ahead: int) -> None:
    """Under safe credits every order runs on the engine, and no stage holds more samples than its credit."""
    forward, backward = sizes
    bounds = bounds_of(forward), bounds_of(backward)
    credits = safe_credits(*bounds, ahead)
    assert all(one >= least for one, least in zip(credits, safe_credits(*bounds, 0), strict=True))
    orders = credited_orders(*bounds, credits)
    for order, ahead_of, back, credit in zip(orders, *bounds, credits, strict=True):
        held = 0
        for letter, number in order:
            one, sign = (ahead_of, 1) if letter == "F" else (back, -1)
            held += sign * int(one[number + 1] - one[number])
            assert 0 <= held <= credit
    lines = (" ".join(f"{stage}{letter}{number}" for letter, number in one) for stage, one in enumerate(orders))
    schedule = from_text("\n".join(lines), "credited")
    costs = given_costs(len(forward), OpSeconds(1.0, 2.0, transfer=0.5), per_sample=True)
    program = lower(schedule, costs, forward_sizes=forward, backward_sizes=backward)
    timeline = simpy_engine.replay(program)
    assert timeline.ops == sum(map(len, forward)) + sum(map(len, backward))


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_credits_of_equal_sizes(ahead: int) -> None:
    """Micro-batches of 2 samples: the last stage has one, each before it `ahead` more than the next, at most the 12 samples."""
    bounds = bounds_of([[2] * 6] * 4)
    assert safe_credits(bounds, bounds, ahead) == [min(12, 2 + 2 * ahead * (3 - k)) for k in range(4)]
    assert safe_credits(bounds, bounds, 0) == [2, 2, 2, 2]


def test_credits_of_unequal_sizes() -> None:
    """f = (3, 1), g = (1, 3) of 6 samples. Stage 1 forwards 3 for its first gradient. Stage 0 gives it 3 in one forward, and its
    gradient of 1 comes with those 3: credit 3; one micro-batch ahead is 3 samples more, the larger of both passes."""
    forward, backward = bounds_of([[3, 3], [1] * 6]), bounds_of([[1] * 6, [3, 3]])
    assert safe_credits(forward, backward, 0) == [3, 3]
    assert safe_credits(forward, backward) == [6, 3]


def test_bad_sizes_are_refused() -> None:
    """One line each: another family, empty sizes, stages of different mini-batches."""
    with pytest.raises(ValueError, match=r"schedule 'eager-1f1b' has no form .* choices: gpipe, 1f1b"):
        unequal_schedule("eager-1f1b", [[1]], [[1]])
    with pytest.raises(ValueError, match="sizes of stage 1 sum to 3 samples, those of stage 0 to 4"):
        unequal_schedule("gpipe", [[4], [3]], [[4], [4]])
    for sizes in ([], [1, 0]):
        with pytest.raises(
            ValueError, match=rf"^sizes of stage 0 must be at least 1 sample each, got {re.escape(str(sizes))}$"
        ):
            unequal_schedule("gpipe", [sizes], [[1]])


@pytest.fixture
def problem() -> Problem:
    """Four layers on two GPUs, 8 samples."""
    return Problem(uniform_chain(4), load_cluster("pipedream-a").take(2), 8)


def plan(schedule: str, forward: tuple[int, ...], backward: tuple[int, ...]) -> Plan:
    """Two stages of two layers; each stage's sizes are repeated up to 8 samples."""
    sizes = [tuple((size,) * (8 // size) for size in one) for one in (forward, backward)]
    stages = stages_from_cuts([2], 4, [(0,), (1,)])
    return Plan("test", schedule, stages, sizes[0][0], forward_sizes=sizes[0], backward_sizes=sizes[1])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_plan_of_unequal_sizes_replays(problem: Problem, schedule: str) -> None:
    """Stage 0 runs 4 + 4 ops, stage 1 2 + 2; both engines agree, and the transfers contend where the problem says so."""
    unequal = plan(schedule, (2, 4), (2, 4))
    calm = replace(problem, contention=False)
    quick, reference = simulate(calm, unequal, engine="recurrence"), simulate(calm, unequal)
    assert quick.timeline.end.tobytes() == reference.timeline.end.tobytes()
    counts = [[int(((quick.timeline.stage == s) & (quick.timeline.kind == k)).sum()) for k in (0, 1)] for s in (0, 1)]
    assert counts == [[4, 4], [2, 2]]
    assert simulate(problem, unequal).iteration_seconds >= reference.iteration_seconds * (1 - 1e-12)
    assert quick.fits


def test_sizes_of_equal_stages_change_nothing(problem: Problem) -> None:
    """Sizes given for every stage, all the same, give the iteration of the plain plan."""
    unequal = plan("gpipe", (2, 2), (2, 2))
    plain = replace(unequal, forward_sizes=(), backward_sizes=())
    assert simulate(problem, unequal).iteration_seconds == simulate(problem, plain).iteration_seconds


def test_a_stage_recomputes_where_its_sizes_differ(problem: Problem) -> None:
    """Backward blocks of another size run forward again first: stage 0 does, stage 1 does not; its memory shrinks."""
    differing, same = plan("gpipe", (2, 4), (4, 4)), plan("gpipe", (4, 4), (4, 4))
    seconds = {}
    for name, one in (("differing", differing), ("same", same)):
        timeline = simulate(problem, one).timeline
        for stage in (0, 1):
            rows = (timeline.stage == stage) & (timeline.kind == OpKind.BACKWARD)
            seconds[name, stage] = float((timeline.end - timeline.start)[rows][0])
    again = simulate(replace(problem, recompute=True), same).timeline
    rows = (again.stage == 0) & (again.kind == OpKind.BACKWARD)
    assert seconds["differing", 0] == pytest.approx(float((again.end - again.start)[rows][0]), rel=1e-12)
    assert seconds["differing", 0] > seconds["same", 0]
    assert seconds["differing", 1] == pytest.approx(seconds["same", 1], rel=1e-12)
    held = {one.device: one.peak_parts["activations"] for one in simulate(problem, differing).memory}
    stored = {one.device: one.peak_parts["activations"] for one in simulate(problem, same).memory}
    assert held[0] < stored[0]
    assert held[1] == stored[1]


def test_sizes_of_a_plan_are_checked(problem: Problem) -> None:
    """A list too few, sizes of another mini-batch, and backward sizes alone are refused."""
    good = plan("gpipe", (2, 4), (2, 4))
    for bad in (
        replace(good, forward_sizes=good.forward_sizes[:1]),
        replace(good, backward_sizes=((8,), (4,))),
        replace(good, forward_sizes=()),
        replace(good, forward_sizes=((0, 8), good.forward_sizes[1])),
    ):
        with pytest.raises(InfeasiblePlanError, match="sizes of"):
            simulate(problem, bad)
