"""Training orders: read from a timeline, joined and repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.training import training_order
from experiments.training.order import joined, repeated
from simulator.schedules.ops import OpKind

F, B, U = OpKind.FORWARD, OpKind.BACKWARD, OpKind.UPDATE


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stages=st.integers(1, 6),
    per_minibatch=st.integers(1, 4),
    update=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_stage_keeps_its_list(hand: Any, stages: int, per_minibatch: int, update: float, seed: int) -> None:
    """Whatever the durations, the order holds each stage's list, and every op after the ops that it needs."""
    lists = hand.staircase(stages, per_minibatch, 4)
    draw = np.random.default_rng(seed)
    timeline = hand.replayed(lists, lambda: float(draw.uniform(0.0, 2.0)), update)
    order = training_order(timeline, per_minibatch)
    ops = list(zip(order.stage.tolist(), order.kind.tolist(), order.microbatch.tolist(), strict=True))
    for k, expected in enumerate(lists):
        assert [(kind, i) for stage, kind, i in ops if stage == k] == [(int(kind), i) for kind, i in expected]
    place = {op: n for n, op in enumerate(ops)}
    for k, kind, i in ops:
        if kind == F and k > 0:
            assert place[k - 1, F, i] < place[k, F, i]
        if kind == B:
            assert place[(k, F, i) if k == stages - 1 else (k + 1, B, i)] < place[k, B, i]
    assert order.makespan == timeline.end.max()


def test_ops_without_duration_are_put_into_a_runnable_order(hand: Any) -> None:
    """When everything happens at time 0 the rows' order per stage and the dependencies decide."""
    timeline = hand.replayed(hand.staircase(4, 2, 3), lambda: 0.0)
    order = training_order(timeline, 2)
    assert order.kind.size == timeline.kind.size
    assert order.update_seconds.tolist() == [0.0, 0.0, 0.0]


def test_update_seconds_are_those_of_the_last_stage(hand: Any) -> None:
    """N=2, T=1, F=B=1: micro-batch 0 ends its backward at 3 on stage 1 and at 4 on stage 0; then every 2 seconds."""
    order = training_order(hand.replayed(hand.staircase(2, 1, 3)), 1)
    assert order.update_seconds.tolist() == [4.0, 6.0, 8.0]
    assert (order.stages, order.microbatches_per_minibatch, order.minibatches) == (2, 1, 3)


def test_repeated_is_the_longer_flushed_run(hand: Any) -> None:
    """One flushed iteration three times over is three iterations of the schedule with the same seconds."""
    once = training_order(hand.replayed(hand.flushed(3, 2, 1, fill_drain=True)), 2)
    thrice = repeated(once, 3)
    assert thrice.minibatches == 3
    assert thrice.microbatch.max() == 5
    assert thrice.update_seconds.tolist() == [once.makespan * r + once.update_seconds[0] for r in range(3)]
    assert sorted(thrice.microbatch[thrice.kind == U]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_joined_numbers_on(hand: Any) -> None:
    """A warm-up of 2 mini-batches and 3 in a staircase: 5 updates, 10 micro-batches, the second part later."""
    warm = training_order(hand.replayed(hand.flushed(3, 2, 2)), 2)
    rest = training_order(hand.replayed(hand.staircase(3, 2, 3)), 2)
    both = joined(warm, rest)
    assert both.minibatches == 5
    assert both.update_seconds.tolist() == [*warm.update_seconds, *(warm.makespan + rest.update_seconds)]
    forwards = both.microbatch[(both.kind == F) & (both.stage == 0)]
    assert forwards.tolist() == list(range(10))
    with pytest.raises(ValueError, match=r"\(3, 2\) and \(2, 2\)"):
        joined(warm, training_order(hand.replayed(hand.staircase(2, 2, 3)), 2))


def test_bad_orders_are_refused(hand: Any) -> None:
    """A missing update, half a mini-batch, a doubled op, a stage missing, an update too early, a deadlock: one line each."""
    good = hand.replayed(hand.staircase(2, 2, 2))

    def without(rows: Any) -> Any:
        return type(good)(*(getattr(good, name)[rows] for name in good.__dataclass_fields__))

    with pytest.raises(
        ValueError, match="stage 0 must update once after each of 2 mini-batches, in order, got updates none"
    ):
        training_order(without(~((good.kind == U) & (good.stage == 0))), 2)
    with pytest.raises(ValueError, match="whole mini-batches of 3 micro-batches, got 4"):
        training_order(good, 3)
    with pytest.raises(ValueError, match="stage 0 must have the forward of each of 4 micro-batches once, got 5"):
        training_order(without(np.append(np.arange(good.kind.size), 0)), 2)
    with pytest.raises(ValueError, match="at least one op"):
        training_order(without(np.zeros(0, int)), 2)
    with pytest.raises(ValueError, match="stage 1 must have the forward of each of 4 micro-batches once, got 0"):
        training_order(type(good)(good.stage, good.stage, good.kind, good.microbatch, good.start, good.end), 2)
    with pytest.raises(ValueError, match="stage 0 makes update 0 after the gradients of 0 micro-batches, not 1"):
        training_order(hand.columns([(0, F, 0, 0.0, 1.0), (0, U, 0, 1.0, 2.0), (0, B, 0, 2.0, 3.0)]), 1)
    with pytest.raises(ValueError, match="backward of micro-batch 0 before its forward"):
        training_order(hand.columns([(0, B, 0, 0.0, 1.0), (0, F, 0, 1.0, 2.0), (0, U, 0, 2.0, 3.0)]), 1)
    stuck = [(0, F, 0, 1.0, 2.0), (1, B, 0, 0.0, 1.0), (1, F, 0, 2.0, 3.0), (0, B, 0, 3.0, 4.0)]
    with pytest.raises(ValueError, match="stage 1 runs the backward"):
        training_order(hand.columns([*stuck, (0, U, 0, 5.0, 6.0), (1, U, 0, 5.0, 6.0)]), 1)
    stuck = [
        (0, F, 0, 0.0, 1.0), (0, B, 0, 1.0, 2.0), (0, F, 1, 2.0, 3.0), (0, B, 1, 3.0, 4.0), (0, U, 0, 4.0, 4.0),
        (1, F, 1, 0.0, 1.0), (1, B, 1, 1.0, 2.0), (1, F, 0, 2.0, 3.0), (1, B, 0, 3.0, 4.0), (1, U, 0, 4.0, 4.0),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="the order cannot run: stage 1 waits for F of micro-batch 1 on stage 0"):
        training_order(hand.columns(stuck), 2)
