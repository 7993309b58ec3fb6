"""Weight versions counted from a replayed timeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.training.prediction import PREDICTION_RULES
from simulator.costs.given import OpSeconds, given_costs
from simulator.engines import recurrence
from simulator.engines import reference as engine
from simulator.lowering.lower import lower
from simulator.memory.versions import COPY_RULES, version_table
from simulator.schedules import build_schedule
from simulator.schedules.ops import OpKind
from simulator.schedules.text import from_text
from tests.simulator.strategies import lower_unchecked

F, B, U = OpKind.FORWARD, OpKind.BACKWARD, OpKind.UPDATE
SIZES = st.integers(1, 8)


def loose(function: Any) -> Any:
    """Hypothesis settings of this module: no deadline, session fixtures allowed."""
    return settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])(
        function
    )


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("per_minibatch", range(1, 9))
def test_xpipe_versions(hand: Any, stages: int, per_minibatch: int) -> None:
    """XPipe: floor(max(0, i-N+k)/T) updates before F_i and m-1 before B_i (i, m from 1), one update a mini-batch."""
    table = version_table(hand.replayed(hand.staircase(stages, per_minibatch, 12)), per_minibatch)
    i, k = table.microbatch + 1, table.stage
    forward, backward, update = table.kind == F, table.kind == B, table.kind == U
    assert np.array_equal(table.seen[forward], (np.maximum(0, i - stages + k) // per_minibatch)[forward])
    assert np.array_equal(table.seen[backward], ((i - 1) // per_minibatch)[backward])
    assert np.array_equal(table.seen[update], i[update])
    assert np.count_nonzero(update) == 12 * stages
    expected = [-(-(stages - 1 - k) // per_minibatch) for k in range(stages)]
    assert table.forward_difference().tolist() == expected
    assert table.backward_difference().tolist() == [0] * stages
    assert COPY_RULES["xpipe"](table).tolist() == [3] * stages


@pytest.mark.parametrize("stages", range(1, 9))
def test_straight_pipedream_keeps_n_minus_s_versions(hand: Any, stages: int) -> None:
    """A straight pipeline of n stages stashes n-s versions at stage s; vertical sync n everywhere."""
    table = version_table(hand.replayed(hand.staircase(stages, 1, 3 * stages)), 1)
    assert COPY_RULES["pipedream"](table).tolist() == [stages - s for s in range(stages)]
    assert COPY_RULES["vertical-sync"](table).tolist() == [stages] * stages
    assert COPY_RULES["naive"](table).tolist() == [1] * stages
    assert COPY_RULES["spectrain-v2"](table).tolist() == [stages - s + 1 for s in range(stages - 1)] + [1]


@pytest.mark.parametrize("stages", range(1, 9))
def test_2bw_keeps_two_versions(hand: Any, stages: int) -> None:
    """2BW holds two versions for every T >= N > 1, and one stage alone needs just its own."""
    for per_minibatch in range(stages, 9):
        table = version_table(hand.replayed(hand.staircase(stages, per_minibatch, 6)), per_minibatch)
        assert COPY_RULES["2bw"](table).tolist() == [1 if stages == 1 else 2] * stages


@pytest.mark.parametrize("fill_drain", [True, False])
@pytest.mark.parametrize("stages", range(1, 9))
def test_synchronous_schedules_have_no_difference(hand: Any, stages: int, fill_drain: bool) -> None:
    """GPipe and 1F1B with flush use the synchronous version at every forward and backward, T in 1..8."""
    for per_minibatch in range(1, 9):
        lists = hand.flushed(stages, per_minibatch, 3, fill_drain)
        table = version_table(hand.replayed(lists, update_seconds=0.25), per_minibatch)
        assert not table.difference().any()
        assert COPY_RULES["pipedream"](table).tolist() == [1] * stages


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
def test_row_order_does_not_matter(hand: Any, stages: int, per_minibatch: int, seed: int) -> None:
    """Shuffled rows of ops that take time give the same versions."""
    timeline = hand.replayed(hand.staircase(stages, per_minibatch, 4), update_seconds=0.5)
    shuffle = np.random.default_rng(seed).permutation(timeline.stage.size)
    mixed = type(timeline)(*(getattr(timeline, name)[shuffle] for name in timeline.__dataclass_fields__))
    assert np.array_equal(
        version_table(mixed, per_minibatch).seen, version_table(timeline, per_minibatch).seen[shuffle]
    )


@pytest.mark.parametrize("replay", [engine.replay, recurrence.replay])
@pytest.mark.parametrize("transfer", [0.0, 0.3])
def test_versions_of_the_engines_own_timelines(replay: Any, transfer: float) -> None:
    """PipeDream's schedule on either engine keeps n-s versions and forwards n-1-s late; GPipe and 1F1B are never late."""
    costs = given_costs(4, OpSeconds([1.0, 1.5, 1.0, 0.5], 2.0, update=0.25, transfer=transfer))
    straight = version_table(replay(lower(build_schedule("pipedream", 4, 12), costs)), 1)
    assert COPY_RULES["pipedream"](straight).tolist() == [4, 3, 2, 1]
    assert straight.forward_difference().tolist() == [3, 2, 1, 0]
    assert straight.backward_difference().tolist() == [0, 0, 0, 0]
    for name in ("gpipe", "1f1b"):
        table = version_table(replay(lower(build_schedule(name, 4, 8), costs, updates=True)), 8)
        assert not table.difference().any()
        assert np.count_nonzero(table.kind == U) == 4


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
