"""Tests of `planners.scheduler.steady`: rounds that repeat, and how long one takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planners.scheduler.annealing import draw
from planners.scheduler.instance import codes_of, instance_of
from planners.scheduler.order_replay import replay, trace_of
from planners.scheduler.schedule_problem import ScheduleProblem
from planners.scheduler.search import search_schedule
from planners.scheduler.steady import (
    Rounds,
    anneal_rounds,
    period_of,
    plain_rounds,
    rounds_again,
    rounds_of_order,
    stream_of,
    with_twins,
    without_delay,
    without_twins,
)
from simulator import chains_of
from tests.planners.scheduler.schedule_cases import replayed, schedule_problems


def makespan_of(problem: ScheduleProblem, seed: int) -> list[float]:
    """Seconds of a round, found by a short annealing, then of streams of 60, 120 and 180 of those rounds."""
    rounds = plain_rounds(instance_of(problem))
    random = np.array([seed], dtype=np.uint64)
    draw(random, 2)
    found = [anneal_rounds(instance_of(problem), rounds, 60, 1.0, 0.0, random)[0]]
    for count in (60, 120, 180):
        instance = instance_of(replace(problem, microbatches=count * len(problem.chains)))
        order = stream_of(instance, rounds)
        found.append(replay(instance, order, instance.offsets, False, 0.0, trace_of(instance), False))
    return found


@given(schedule_problems(most_devices=3, most_microbatches=3))
@settings(max_examples=10)
def test_streams_grow_by_the_period(problem: ScheduleProblem) -> None:
    """Each 60 rounds more take 60 periods more, and break no limit, whatever rounds annealing comes to."""
    assume(problem.microbatches >= len(problem.chains))
    period, short, long, longest = makespan_of(problem, 17)
    assert longest - long == pytest.approx(60 * period, rel=1e-9)
    assert long - short == pytest.approx(60 * period, rel=0.02)


@given(schedule_problems())
@settings(max_examples=25)
def test_orders_of_rounds_run_within_limits(problem: ScheduleProblem) -> None:
    """What is found for any number of micro-batches runs as it says; its period is at least the bound."""
    if problem.microbatches < len(problem.chains):
        with pytest.raises(ValueError, match="a micro-batch of each of 2 chains, got 1"):
            search_schedule(problem, objective="steady")
        return
    found = search_schedule(problem, seconds=0.001, objective="steady")
    assert replayed(problem, found.schedule).makespan_seconds == found.makespan
    assert found.bound <= found.cost


def test_steady_period_by_hand() -> None:
    """Two stages of 1 s ops: 3 s a micro-batch is all that a device does; with room for one micro-batch, its whole round, 4 s."""
    problem = ScheduleProblem(
        chains=chains_of("straight", 2, 2),
        microbatches=6,
        forward=1,
        input_gradient=1,
        weight_gradient=1,
        freed_at_input_gradient=1,
        freed_at_weight_gradient=1,
        limit=6,
    )
    roomy = search_schedule(problem, seconds=0.01, objective="steady")
    assert (roomy.cost, roomy.bound, roomy.proven) == (3.0, 3.0, True)
    tight = search_schedule(replace(problem, limit=2), seconds=0.01, objective="steady")
    assert tight.cost == 5.0  # F, both ops of the other stage, I, and W before the memory is free
    rounds = plain_rounds(instance_of(problem))
    assert period_of(instance_of(problem), rounds, 0.0) == 5.0


@given(schedule_problems(most_devices=3, most_microbatches=4))
@settings(max_examples=12)
def test_no_repeated_order_is_quicker(problem: ScheduleProblem) -> None:
    """The orders of least makespan found, of one to three micro-batches of each chain, take no less a micro-batch if repeated."""
    chains = len(problem.chains)
    assume(problem.microbatches >= chains)
    found = search_schedule(problem, seconds=0.1, objective="steady")
    for count in (1, 2, 3):
        short = replace(problem, microbatches=count * chains)
        order = search_schedule(short, seconds=0.01).schedule
        instance = instance_of(short)
        codes = codes_of(instance, order, short)
        assert codes is not None
        rounds = rounds_of_order(instance, codes, instance.offsets, count)
        period = period_of(with_twins(instance, count), rounds, 0.0)
        makespans = []
        for times in (60, 120):
            repeated = np.concatenate([np.tile(codes[one:other], times) for one, other in pairwise(instance.offsets)])
            longer = instance_of(replace(problem, microbatches=times * count * chains))
            makespans.append(replay(longer, repeated, longer.offsets, False, 0.0, trace_of(longer), False))
        assert makespans[1] - makespans[0] == pytest.approx(60 * period, rel=1e-6)
        assert found.cost <= period / (count * chains) * (1 + 1e-9)


@given(schedule_problems(most_devices=3, most_microbatches=4), st.integers(2, 4))
@settings(max_examples=20)
def test_twins_keep_the_pace(problem: ScheduleProblem, count: int) -> None:
    """Rounds run several times are rounds of twins: of the same stream, and of a period as many times as long."""
    assume(problem.microbatches >= len(problem.chains))
    instance = instance_of(problem)
    rounds = plain_rounds(instance)
    random = np.array([23], dtype=np.uint64)
    anneal_rounds(instance, rounds, 40, 1.0, 0.0, random)
    twins = with_twins(instance, count)
    again = rounds_again(instance, rounds, count)
    period = period_of(instance, rounds, 0.0)
    assert period_of(twins, again, 0.0) == pytest.approx(count * period, rel=1e-6)
    merged = without_twins(stream_of(twins, again), len(instance.device), count)
    assert merged.tobytes() == stream_of(instance, rounds).tobytes()


def test_rounds_of_several_are_quicker() -> None:
    """Rounds of one micro-batch take 17 s each after as much search; of several, less, near the 15 s of the busier device."""
    problem = ScheduleProblem(
        chains=chains_of("v", 4, 2),
        microbatches=3,
        forward=[2, 2, 2, 3],
        input_gradient=[1, 3, 3, 3],
        weight_gradient=[3, 2, 3, 3],
        transfer=2,
        freed_at_input_gradient=1,
        freed_at_weight_gradient=1,
        limit=[6, 8],
    )
    found = search_schedule(problem, seconds=0.3, objective="steady")
    assert found.bound == 15.0
    assert found.cost <= 16.0
    replayed(problem, found.schedule)


@given(schedule_problems(most_devices=3, most_microbatches=4), st.integers(1, 4))
@settings(max_examples=20)
def test_gradients_wait_no_longer_than_they_must(problem: ScheduleProblem, later: int) -> None:
    """Weight gradients some rounds late cost a stream those rounds at its end, at the same pace: they are taken back."""
    assume(problem.microbatches >= len(problem.chains))
    instance = instance_of(replace(problem, limit=np.inf, microbatches=24 * len(problem.chains), weight_gradient=2))
    rounds = plain_rounds(instance)
    late = Rounds(rounds.codes, rounds.offsets, rounds.delays.copy())
    late.delays[2 * len(instance.device) :] += later
    period = period_of(instance, late, 0.0)
    sooner = without_delay(instance, late, period)
    assert period_of(instance, sooner, 0.0) == pytest.approx(period, rel=1e-9)
    assert (sooner.delays <= late.delays).all()
    assert (sooner.delays <= rounds.delays + 1).all()
    ends = [
        replay(instance, stream_of(instance, one), instance.offsets, False, 0.0, trace_of(instance), False)
        for one in (sooner, late)
    ]
    assert ends[0] <= ends[1]


def test_weight_gradients_four_rounds_late() -> None:
    """Two stages that run one micro-batch at a time, 5 s a round: weight gradients need not be late, nor is the pace another."""
    instance = instance_of(
        ScheduleProblem(
            chains=chains_of("straight", 2, 2), microbatches=8, forward=1, input_gradient=1, weight_gradient=1
        )
    )
    plain = plain_rounds(instance)
    late = Rounds(plain.codes, plain.offsets, np.array([0, 0, 0, 0, 4, 4]))
    assert period_of(instance, late, 0.0) == 5.0
    assert without_delay(instance, late, 5.0).delays.tolist() == [0] * 6


def test_steady_orders_keep_up_with_the_shortest() -> None:
    """Two chains on four devices, 48 micro-batches at their best pace: within 1.5 % of the shortest order that a search finds."""
    problem = ScheduleProblem(
        chains=chains_of("bidirectional", 4, 4),
        microbatches=48,
        forward=[4, 6, 5, 9],
        input_gradient=[9, 5, 6, 9],
        weight_gradient=[7, 9, 9, 9],
        transfer=2,
        freed_at_input_gradient=[2, 1, 3, 3],
        limit=6,
    )
    steady = search_schedule(problem, seconds=0.03, objective="steady")
    assert steady.makespan <= 1.015 * search_schedule(problem, seconds=0.03).makespan
