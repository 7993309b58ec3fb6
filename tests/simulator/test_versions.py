"""Weight versions counted from a replayed timeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.training.prediction import PREDICTION_RULES
from simulator.costs.given import OpSeconds, given_costs
from simulator.engines import reference as engine
from simulator.memory.versions import COPY_RULES, version_table
from simulator.schedules.ops import OpKind
from simulator.schedules.text import from_text
from tests.simulator.strategies import lower_unchecked

F, B, U = OpKind.FORWARD, OpKind.BACKWARD, OpKind.UPDATE
SIZES = st.integers(1, 8)


def loose(function: Any) -> Any:
    """Hypothesis settings of this module: no deadline, session fixtures allowed."""
    return settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])(
        function
    )


@loose
@given(stages=SIZES, per_minibatch=SIZES, seed=st.integers(0, 2**32 - 1), update=st.sampled_from([0.0, 0.3]))
def test_versions_depend_on_the_order_only(
    hand: Any, stages: int, per_minibatch: int, seed: int, update: float
) -> None:
    """Whatever the durations, the same lists give the same versions and the same copies."""
    lists = hand.staircase(stages, per_minibatch, 5)
    even = version_table(hand.replayed(lists), per_minibatch)
    draw = np.random.default_rng(seed)
    uneven = version_table(hand.replayed(lists, lambda: float(draw.uniform(0.1, 3.0)), update), per_minibatch)
    for table in (even, uneven):
        assert np.all(table.difference() >= 0)
    key_even, key_uneven = (np.lexsort((t.microbatch, t.kind, t.stage)) for t in (even, uneven))
    assert np.array_equal(even.seen[key_even], uneven.seen[key_uneven])
    for rule in ("pipedream", "naive", "xpipe"):
        assert np.array_equal(COPY_RULES[rule](even), COPY_RULES[rule](uneven))


@loose
@given(stages=SIZES, per_minibatch=SIZES, seed=st.integers(0, 2**32 - 1))
def test_a_backward_knows_what_its_own_forward_had_seen(hand: Any, stages: int, per_minibatch: int, seed: int) -> None:
    """By stage and micro-batch, on two replicas that run the same; every other op knows what it sees itself."""
    draw = np.random.default_rng(seed)
    lists = hand.staircase(stages, per_minibatch, 4)
    first, second = (hand.replayed(lists, lambda: float(draw.uniform(0.1, 3.0)), 0.3) for _ in range(2))
    columns = {
        name: np.concatenate([getattr(one, name) for one in (first, second)])
        for name in type(first).__dataclass_fields__
    }
    columns["replica"] = np.repeat([0, 1], [first.stage.size, second.stage.size])
    table = version_table(type(first)(**columns), per_minibatch)
    places = list(zip(table.stage, table.replica, table.microbatch, strict=True))
    of_forward = {place: seen for place, kind, seen in zip(places, table.kind, table.seen, strict=True) if kind == F}
    expected = [
        of_forward[place] if kind == B else seen
        for place, kind, seen in zip(places, table.kind, table.seen, strict=True)
    ]
    assert table.forward_seen.tolist() == expected


@loose
@given(stages=SIZES, per_minibatch=SIZES, seed=st.integers(0, 2**32 - 1))
def test_row_order_does_not_matter(hand: Any, stages: int, per_minibatch: int, seed: int) -> None:
    """Shuffled rows of ops that take time give the same versions."""
    timeline = hand.replayed(hand.staircase(stages, per_minibatch, 4), update_seconds=0.5)
    shuffle = np.random.default_rng(seed).permutation(timeline.stage.size)
    mixed = type(timeline)(*(getattr(timeline, name)[shuffle] for name in timeline.__dataclass_fields__))
    assert np.array_equal(
        version_table(mixed, per_minibatch).seen, version_table(timeline, per_minibatch).seen[shuffle]
    )


def test_an_update_counts_when_it_ends(hand: Any) -> None:
    """A forward that starts during an update has not seen it; one that starts at its end has."""
    timeline = hand.columns(
        [(0, F, 0, 0.0, 1.0), (0, B, 0, 1.0, 2.0), (0, U, 0, 2.0, 4.0), (0, F, 1, 3.0, 4.0), (0, F, 2, 4.0, 5.0)]
    )
    assert version_table(timeline, 1).seen.tolist() == [0, 0, 1, 0, 1]


def test_replicas_count_their_own_updates(hand: Any) -> None:
    """An update of one replica is not seen by another replica of the stage."""
    one = hand.columns([(0, F, 0, 0.0, 1.0), (0, U, 0, 1.0, 2.0), (0, F, 1, 2.0, 3.0), (0, F, 2, 2.0, 3.0)])
    timeline = type(one)(one.stage, np.array([0, 0, 0, 1]), one.kind, one.microbatch, one.start, one.end)
    assert version_table(timeline, 1).seen.tolist() == [0, 1, 1, 0]


def test_round_robin_replicas_count_rounds(hand: Any) -> None:
    """Two replicas that take mini-batches in turn update once a round: mini-batches 2 and 3 belong to version 1."""
    rows = [
        (0, kind, i, 3.0 * (i // 2) + at, 3.0 * (i // 2) + at + 1)
        for i in range(4)
        for kind, at in ((F, 0), (B, 1), (U, 2))
    ]
    one = hand.columns(rows)
    timeline = type(one)(one.stage, one.microbatch % 2, one.kind, one.microbatch, one.start, one.end)
    table = version_table(timeline, 1)
    assert table.synchronous[table.kind == F].tolist() == [0, 0, 1, 1]
    assert not table.difference().any()
    both = [np.concatenate([getattr(one, name)] * 2) for name in ("stage", "kind", "microbatch", "start", "end")]
    halves = type(one)(both[0], np.repeat([0, 1], 12), *both[1:])  # each replica runs half of each micro-batch
    assert version_table(halves, 1).synchronous[:12:3].tolist() == [0, 1, 2, 3]


def test_split_backward(hand: Any) -> None:
    """I and W count as the backward does; other kinds of op use no weights."""
    timeline = hand.columns(
        [
            (0, F, 0, 0.0, 1.0),
            (0, OpKind.INPUT_GRADIENT, 0, 1.0, 2.0),
            (0, OpKind.WEIGHT_GRADIENT, 0, 2.0, 3.0),
            (0, OpKind.REDUCE, 0, 3.0, 4.0),
            (0, U, 0, 4.0, 4.0),
            (0, F, 1, 4.0, 5.0),
        ]
    )
    table = version_table(timeline, 1)
    assert table.seen.tolist() == [0, 0, 0, -1, 1, 1]
    assert table.forward_seen.tolist() == [0, 0, 0, -1, 1, 1]


def test_copy_rules_and_prediction_rules_have_the_same_names() -> None:
    """A method is listed in both dictionaries."""
    assert list(COPY_RULES) == list(PREDICTION_RULES)


def test_bad_timelines_are_refused(hand: Any) -> None:
    """T below 1, no ops, and a backward without its forward raise ValueError in one line."""
    timeline = hand.replayed(hand.staircase(2, 1, 2))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        version_table(timeline, 0)
    with pytest.raises(ValueError, match="got none"):
        version_table(type(timeline)(*([np.zeros(0, int)] * 6)), 1)
    with pytest.raises(ValueError, match="micro-batch 3 in row 0 has no forward"):
        version_table(hand.columns([(0, B, 3, 0.0, 1.0)]), 1)


def test_a_stage_without_backwards_misses_nothing_there() -> None:
    """Forwards alone, as in inference: no update is ever missing, and none is made up for what never runs."""
    program = lower_unchecked(from_text("0F0 0F1\n1F0 1F1\n"), given_costs(2, OpSeconds(1.0, 2.0)))
    table = version_table(engine.replay(program), 1)
    assert table.backward_difference().tolist() == [0, 0]
