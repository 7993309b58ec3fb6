"""Tests of `simulator.results.steady_state`: rates read off streams of known rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator import (
    Plan,
    Problem,
    Stage,
    Timeline,
    build_program,
    plan_replay,
    simulate,
)
from simulator.engines import recurrence
from simulator.results.steady_state import steady_state
from tests.chains import chain
from tests.simulator.strategies import chain_cluster, star_cluster


def stream(gaps: list[float], behind: int = 0) -> Timeline:
    """One stage whose micro-batch i is complete at sum(gaps[: i + 1]); the last forward ends before the last `behind` of them."""
    count = len(gaps)
    done = np.cumsum(np.array(gaps))
    zeros = np.zeros(2 * count, dtype=np.int32)
    forward = np.minimum(np.arange(count), max(0, count - 1 - behind))
    one = simulate(Problem(chain([1.0]), chain_cluster(1), 1), Plan("hand", "gpipe", (Stage((0,), (0,)),), (1,)))
    return replace(
        one.timeline,
        lane=zeros,
        device=zeros,
        stage=zeros,
        replica=zeros,
        kind=np.repeat(np.array([0, 1], dtype=np.int8), count),
        microbatch=np.tile(np.arange(count, dtype=np.int32), 2),
        first_sample=zeros.astype(np.int64),
        samples=np.ones(2 * count, dtype=np.int64),
        start=np.concatenate([done[forward], done]),
        end=np.concatenate([done[forward], done]),
    )


def ones(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.ones(count, dtype=np.int64)


@pytest.mark.parametrize("pattern", [[2.0], [1.0, 3.0], [1.0, 1.0, 1.0, 5.0], [0.0] * 12 + [26.0]])
def test_the_period_is_found_and_its_mean_is_exact(pattern: list[float]) -> None:
    """Gaps of mean 2 that repeat: 2 s a micro-batch, wherever in the pattern the stream ends; 13 need not divide the turns."""
    for count in range(120, 120 + len(pattern)):
        found = steady_state(stream((pattern * count)[:count]), ones(count), turns=10)
        assert found.period == len(pattern)
        assert found.seconds_per_sample == pytest.approx(2.0, rel=1e-12)
        assert found.reached


def test_fill_and_drain_are_left_out() -> None:
    """A slow fill of a quarter and a quick drain behind the last forward change nothing."""
    gaps = [9.0] * 20 + [1.0, 3.0] * 40 + [0.1] * 20
    found = steady_state(stream(gaps, behind=20), ones(120), turns=2)
    assert (found.seconds_per_sample, found.period) == (2.0, 2)


def test_sizes_belong_to_the_period() -> None:
    """Equal gaps for micro-batches of 1 and 3 samples: the period is 2, a sample takes half a second."""
    found = steady_state(stream([1.0] * 100), np.tile(np.array([1, 3]), 50), turns=2)
    assert (found.seconds_per_sample, found.period) == (0.5, 2)


def test_few_equal_gaps_are_no_period() -> None:
    """Twenty equal gaps at the end of a pattern of 30 do not count: a stream with turns of 30 is watched for as many."""
    gaps = ([1.0] * 22 + [3.0] * 8) * 6
    assert steady_state(stream(gaps), ones(180), turns=30).period == 30
    assert steady_state(stream([*gaps, *[1.0] * 20]), ones(200), turns=30).seconds_per_sample == pytest.approx(46 / 30)


def test_a_stream_that_speeds_up_is_not_steady() -> None:
    """Gaps that shrink by a hundredth each time never repeat: the halves differ, the mean of all is told."""
    gaps = (0.99 ** np.arange(100)).tolist()
    found = steady_state(stream(gaps), ones(100), turns=1)
    done = np.cumsum(gaps)
    assert found.period == 0
    assert not found.reached
    assert found.seconds_per_sample == pytest.approx((done[99] - done[25]) / 74)
    assert found.drift == pytest.approx((1 - 0.99**37) / (1 + 0.99**37) * 2, rel=1e-9)


def test_a_short_stream_has_some_rate() -> None:
    """Two micro-batches: the gap between them, without an error."""
    assert steady_state(stream([3.0, 3.0]), ones(2), turns=1).seconds_per_sample == 3.0


def test_replicas_without_samples_tell_nothing() -> None:
    """Micro-batches of 4, 2 and 1 samples on five replicas leave the first with none: its forwards end at once, the stream does
    not. The last one has three samples of 3 FLOP at 2 FLOP/s: 4.5 s an iteration.
    """
    cluster = star_cluster(5, bandwidth=1e9)
    rates = (0.5, 2.0, 2.0, 1.0, 2.0)
    devices = tuple(replace(device, rate=rate) for device, rate in zip(cluster.devices, rates, strict=True))  # type: ignore[type-var]
    plan = Plan("hand", "pipedream", (Stage((0,), (0, 1, 2, 3, 4)),), (4, 2, 1))
    problem = Problem(chain([1.0]), replace(cluster, devices=devices), 7)
    assert simulate(problem, plan, engine="compiled").iteration_seconds == pytest.approx(4.5)


def test_no_seconds_in_the_middle_of_a_stream_that_takes_some_are_no_steady_state() -> None:
    """All micro-batches but the first and the last are complete at once."""
    assert not steady_state(stream([1.0, *[0.0] * 6, 1.0], behind=1), ones(8), turns=1).reached
    assert steady_state(stream([0.0] * 8), ones(8), turns=1).reached


def round_robin(replicas: tuple[int, ...], seconds: tuple[float, ...], **changes: Any) -> tuple[Problem, Plan]:
    """Stages of one layer without weights, replicas that take turns."""
    bounds = [sum(replicas[:i]) for i in range(len(replicas) + 1)]
    stages = tuple(Stage((i,), tuple(range(bounds[i], bounds[i + 1]))) for i in range(len(replicas)))
    problem = Problem(chain(list(seconds)), star_cluster(sum(replicas)), sum(replicas), **changes)
    return problem, Plan("hand", "1f1b-rr", stages, (1,) * sum(replicas), "round-robin")


@pytest.mark.parametrize(
    ("replicas", "seconds", "rule"),
    [((7, 9, 11), (6.0, 9.0, 10.0), "overlapped"), ((9, 5, 1, 1), (9.0, 5.0, 1.0, 1.0), "barrier")],
)
def test_replicas_whose_turns_meet_late(replicas: tuple[int, ...], seconds: tuple[float, ...], rule: str) -> None:
    """Seconds of an iteration are those of a stream six times as long, to 12 digits, and its mean rate within its ends."""
    problem, plan = round_robin(replicas, seconds, replica_updates=rule)
    outcome = simulate(problem, plan, engine="compiled")
    assert outcome.warning == ""
    assert outcome.steady is not None
    assert outcome.steady.period > 0
    count = 6 * outcome.stream
    timeline = recurrence.replay(build_program(problem, plan, stream=count)[2])
    longer = steady_state(timeline, ones(count), turns=1)
    assert outcome.iteration_seconds == pytest.approx(longer.seconds_per_sample * problem.batch, rel=1e-9)
    mean = (timeline.makespan_seconds - outcome.timeline.makespan_seconds) / (count - outcome.stream)
    assert outcome.iteration_seconds == pytest.approx(mean * problem.batch, rel=2e-3)


def test_a_stream_that_is_not_steady_yet_is_made_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two links of almost equal speed as bottlenecks: the stream doubles until its halves agree, and says so if it may not."""
    calls = []
    real = plan_replay.steady_state

    def unsteady(timeline: Timeline, samples: Any, turns: int) -> Any:
        calls.append(len(samples))
        found = real(timeline, samples, turns)
        return replace(found, drift=0.02) if len(samples) < least else found

    monkeypatch.setattr(plan_replay, "steady_state", unsteady)
    problem, plan = round_robin((1, 1), (1.0, 1.0))
    least = 200
    outcome = simulate(problem, plan)
    assert calls == [calls[0] * 2**i for i in range(len(calls))]
    assert outcome.stream == calls[-1] >= least > calls[-2]
    assert outcome.warning == ""
    least = 10**6
    outcome = simulate(problem, plan)
    assert outcome.stream <= plan_replay.MOST_STREAM < 2 * outcome.stream
    assert outcome.warning == (
        f"the stream of {outcome.stream} micro-batches shows no steady state: the rates of its halves differ by 2 %; "
        "its seconds are their mean"
    )


def test_a_noisy_stream_keeps_its_length() -> None:
    """Noise never repeats: the stream is as long as without it, and its seconds are near those."""
    problem, plan = round_robin((1, 1), (1.0, 1.0))
    calm = simulate(problem, plan)
    noisy = simulate(problem, plan, noise=0.05, rng=np.random.default_rng(1))
    assert noisy.stream == calm.stream
    assert noisy.iteration_seconds == pytest.approx(calm.iteration_seconds, rel=0.1)
