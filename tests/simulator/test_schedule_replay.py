"""Schedules replayed on numbers: what devices hold, against their limit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeplan as pp
from simulator import ENGINES, OpKind, OpMemory, OpSeconds, build_schedule, from_text, replay_schedule
from tests.simulator.strategies import Words, from_words, op_lists


def test_memory_is_taken_at_a_start_and_freed_at_an_end() -> None:
    """F 0-1, 1-2, I 2-4, W 4-7, I 7-9, W 9-12, each forward 2, of which W needs 0.5; at 4 and 9 what ends frees first."""
    schedule = from_text("0F0 0F1 0I0 0W0 0I1 0W1")
    replayed = replay_schedule(schedule, OpSeconds(1, 2, weight=3)).holding(OpMemory(2, stash_weight=0.5, memory=4))
    (device,) = replayed.memory
    level = dict(zip(device.times.tolist(), device.bytes.sum(axis=1).tolist(), strict=True))
    assert level == {0.0: 2.0, 1.0: 4.0, 4.0: 2.5, 7.0: 2.0, 9.0: 0.5, 12.0: 0.0}
    assert device.fits


@settings(max_examples=25)
@given(op_lists(offloads=False), st.data())
def test_the_order_of_a_device_alone_says_its_peak(lists: Words, data: st.DataObject) -> None:
    """Whatever the seconds, on every engine: the most that a count along the list of ops finds, overlapped or not."""
    stages = 1 + max(op.stage for words in lists for word in words for op in word)

    def draw(numbers: st.SearchStrategy[Any]) -> list[Any]:
        return [data.draw(numbers) for _ in range(stages)]

    stash = draw(st.integers(1, 5))
    weight = [data.draw(st.integers(0, one)) for one in stash]
    seconds = st.sampled_from((0.1, 0.3, 1.0, 2.0))
    costs = OpSeconds(draw(seconds), draw(seconds), weight=draw(seconds), transfer=data.draw(seconds))
    memory = OpMemory([one / 10 for one in stash], stash_weight=[one / 10 for one in weight])
    again = {op.stage for words in lists for word in words for op in word if op.kind is OpKind.RECOMPUTE}
    expected = []
    for words in lists:
        held, most = Counter[OpKind](), 0
        for op in (op for word in words for op in word):
            kind, whole, part = op.kind, stash[op.stage], weight[op.stage]
            taking = OpKind.RECOMPUTE if op.stage in again else OpKind.FORWARD
            freed = {OpKind.BACKWARD: whole, OpKind.INPUT_GRADIENT: whole - part, OpKind.WEIGHT_GRADIENT: part}
            change = whole if kind is taking else -freed.get(kind, 0)
            held[kind] += change
            most = max(most, held.total())
        expected.append(most / 10)
    schedule = from_words("any", lists)
    for engine in ENGINES:
        replayed = replay_schedule(schedule, costs, engine=engine)  # type: ignore[arg-type]
        assert replayed.holding(memory).peak_memory == expected


def test_a_limit_that_is_broken_names_device_moment_and_amount() -> None:
    """1F1B holds 4, 3, 2, 1 micro-batches; forwards of 5 s: the fourth of device 0 begins at 15 s."""
    timed = replay_schedule(build_schedule("1f1b", 4, 8), OpSeconds(5, 6, weight=4, transfer=1))
    replayed = timed.holding(OpMemory(0.1, memory=0.3))
    assert replayed.peak_memory == [0.4, 0.3, 0.2, 0.1]
    assert not replayed.fits
    assert replayed.remarks() == ("device 0 holds 0.4 at 15 s, 0.1 above its limit of 0.3",)
    assert timed.holding(OpMemory(0.1, memory=0.4)).fits
    assert timed.holding(OpMemory(0.1)).fits


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"stash": 2, "memory": [4, -1]}, "memory of device 1 must be a number of at least 0, got -1"),
        ({"stash": 2, "memory": [4, 4, 4]}, "memory needs one number or one for each of 2 devices, got 3 numbers"),
        ({"stash": 2, "memory": float("nan")}, "memory of device 0 must be a number of at least 0, got nan"),
        ({"stash": -1}, "stash of stage 0 must be a finite number of at least 0, got -1.0"),
        ({"stash": [1, 2, 3]}, "stash needs one number or one for each of 2 stages, got 3 numbers"),
        (
            {"stash": [2, 1], "stash_weight": 1.5},
            "stash-weight of stage 1 is a part of its stash and at most 1, got 1.5",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, Any], message: str) -> None:
    """One line that states the rule and the value."""
    with pytest.raises(ValueError, match=message):
        replay_schedule(build_schedule("gpipe", 2, 2), OpSeconds(1, 1)).holding(OpMemory(**numbers))


def test_a_family_may_be_asked_for_the_mode_that_it_has() -> None:
    """BaPipe's streaming schedule on numbers."""
    schedule = build_schedule("fbp-as", 2, 4)
    by_default, asked = (replay_schedule(schedule, OpSeconds(1, 2), communication=one) for one in (None, "streaming"))
    assert by_default.timeline.end.tolist() == asked.timeline.end.tolist()


def test_many_devices_are_told_in_short() -> None:
    """Of many values those that follow on themselves are counted, a row of others has its ends; JSON has them all."""
    told = dict(pp.simulate("1f1b", stages=20, microbatches=32, forward=1.0, backward=2.0).tables()[0].rows)
    assert told["micro-batches in flight, by device"] == "20 19 18 17 … 4 3 2 1"
    assert told["weight copies, by stage"] == "20 × 1"
    found = pp.simulate("gpipe", stages=20, microbatches=4, forward=1.0, backward=2.0)
    assert dict(found.tables()[0].rows)["micro-batches in flight, by device"] == "20 × 4"
    assert found.record()["peak_in_flight"] == [4] * 20
    few = dict(pp.simulate("1f1b", stages=16, microbatches=1, forward=1.0, backward=2.0).tables()[0].rows)
    assert few["weight copies, by stage"] == " ".join("1" * 16)
