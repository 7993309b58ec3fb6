"""Rules of a schedule that is searched for numbers: what it says, which placements there are, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_profiles import percent
from planners import search_on_numbers
from simulator import OpMemory, OpSeconds, check_schedule, replay_schedule

SECONDS = OpSeconds(5, 6, weight=4, transfer=1)


def test_what_is_found_is_proven_within_its_memory() -> None:
    """Four devices, eight micro-batches, two units each, eight a device: warm-up of 3 x (5 + 1), then 8 x 15, then the drain.

    153 s is what the last device's load and the way back of its last gradient take: (4 - 1)(5 + 6 - 4 + 4 x 1) + 8 x 15.
    """
    found = search_on_numbers(4, 8, SECONDS, OpMemory(2, stash_weight=1, memory=8), seconds=0.2)
    record = found.record()
    assert (record["makespan_seconds"], record["lower_bound_seconds"], record["gap"], record["proven"]) == (
        153,
        153,
        0,
        True,
    )
    assert record["peak_memory"] == [8, 7, 6, 5]
    assert record["fits"]
    assert "proven optimal" in found.summary()
    again = replay_schedule(found.schedule, SECONDS, engine="compiled")
    assert again.timeline.makespan_seconds == 153


@pytest.mark.parametrize(
    ("placement", "stages", "chunks", "devices"),
    [
        ("straight", 3, None, ((0,), (1,), (2,))),
        ("interleaved", 4, None, ((0,), (1,), (0,), (1,))),
        ("interleaved", 6, 3, ((0,), (1,), (0,), (1,), (0,), (1,))),
        ("v", 4, None, ((0,), (1,), (1,), (0,))),
        ("wave", 8, None, ((0,), (1,), (1,), (0,)) * 2),
        ("bidirectional", 2, None, ((0, 1), (1, 0))),
    ],
)
def test_stages_go_round_the_devices(
    placement: str, stages: int, chunks: int | None, devices: tuple[tuple[int, ...], ...]
) -> None:
    """Every placement puts its stages where its name says, `stages` counting those of all chunks."""
    asked: dict[str, Any] = {"placement": placement, "chunks": chunks}
    found = search_on_numbers(stages, 4, SECONDS, seconds=0.01, **asked)
    check_schedule(found.schedule)
    assert found.schedule.holders() == devices


def test_transfers_have_a_time_for_each_boundary() -> None:
    """One micro-batch goes down and up through everything: 3 x (5 + 6), transfers 2 x (1 + 10), the first weight gradient 4."""
    found = search_on_numbers(3, 1, OpSeconds(5, 6, weight=4, transfer=[1, 10]), seconds=0.01)
    assert found.timeline.makespan_seconds == 3 * 11 + 2 * 11 + 4


@pytest.mark.parametrize(
    ("stages", "asked", "said"),
    [
        (3, {"placement": "v"}, "placement 'v' has two stages per device, got 3 stages on 1 devices"),
        (4, {"placement": "z"}, "placement 'z' is unknown; choices: straight, interleaved, v, wave, bidirectional"),
        (
            4,
            {"placement": "straight", "chunks": 2},
            "'straight' has as many stages as devices, got 4 stages on 2 devices",
        ),
        (
            4,
            {"objective": "speed"},
            "objective 'speed' is unknown (did you mean steady?); choices: makespan, longest-stage, steady",
        ),
        (4, {"memory": OpMemory(2, memory=1)}, "the least limit that would do is 2"),
        (
            4,
            {"memory": OpMemory(2, memory=[4, 4])},
            "limit needs one number or one for each of 4 devices, got 2 numbers",
        ),
        (6, {"placement": "interleaved", "chunks": 4}, "divisible by chunks (stages per device), got 6 and 4"),
        (4, {"placement": "interleaved", "chunks": 0}, "divisible by chunks (stages per device), got 4 and 0"),
        (6, {"placement": "interleaved", "chunks": 7}, "divisible by chunks (stages per device), got 6 and 7"),
        (10**9, {}, "a placement has at most 1,048,576 stages"),
        (4, {"engine": "abacus"}, "engine 'abacus' is unknown"),
        (4, {"seconds": -1.0}, "seconds must be finite and not negative, got -1.0"),
        (
            4,
            {"objective": "steady", "placement": "bidirectional", "microbatches": 1},
            "objective 'steady' needs a micro-batch of each of 2 chains, got 1",
        ),
    ],
)
def test_what_cannot_be_is_refused(stages: int, asked: dict[str, Any], said: str) -> None:
    """One line that names the number, the rule and the choices."""
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        search_on_numbers(stages, ops=SECONDS, **{"microbatches": 4} | asked)
    assert said in str(error.value)


@pytest.mark.parametrize("ops", [{"update": 1}, {"predict": [0, 1]}, {"overlapped": 3}, {"slice_seconds": [1, 2]}])
def test_ops_that_are_not_searched_are_refused(ops: dict[str, Any]) -> None:
    """A replay of what was found would count them, the search does not."""
    with pytest.raises(
        ValueError, match=f"^{next(iter(ops)).replace('_', '-')} is not of a schedule that is searched for"
    ):
        search_on_numbers(2, 4, OpSeconds(5, 6, **ops))


@pytest.mark.parametrize(
    "seconds", [(0, 0, 0, 0), (0, 0, 0, 3), (1, 1, 0, 1e280), (1e280, 1, 1, 0), (5e-324, 5e-324, 0, 0)]
)
def test_numbers_of_any_size(seconds: tuple[float, ...]) -> None:
    """No warning, no order that is faster than its bound, and what holds one micro-batch of 1e-300 holds what is found."""
    forward, backward, weight, transfer = seconds
    ops = OpSeconds(forward, backward, weight=weight, transfer=transfer)
    for kept in (0, 1e-300, 1 / 3, 1e290):
        found = search_on_numbers(4, 4, ops, OpMemory(kept, memory=2 * kept), placement="v", seconds=0.001)
        assert found.fits
        assert found.found.bound <= found.found.cost == found.timeline.makespan_seconds


def test_an_interrupt_leaves_the_best_so_far() -> None:
    """What has been found by then is the answer, marked; nothing is proven of it."""

    def stop(evaluations: int, cost: float) -> None:
        raise KeyboardInterrupt

    found = search_on_numbers(4, 8, SECONDS, OpMemory(2, memory=8), progress=stop)
    check_schedule(found.schedule)
    assert found.record()["interrupted"]
    assert found.record()["evaluations"] == 1
    assert "interrupted, this is the best so far" in found.summary()


def test_what_is_not_proven_is_told_by_its_gap() -> None:
    """Three devices whose memory holds one micro-batch each: the bound is 2 x 15 s of a device's work, or the way through all."""
    found = search_on_numbers(3, 3, SECONDS, OpMemory(1, memory=[3, 1, 1]), seconds=0.0)
    assert not found.found.proven
    gap = found.timeline.makespan_seconds / found.found.bound - 1.0
    assert f"at most {percent(gap, '.3g')} above the best makespan" in found.summary()
    assert "interrupted" not in found.summary()


def test_what_is_looked_for_is_told_beside_the_makespan() -> None:
    """The seconds of a micro-batch where the order repeats: of 5 + 6 + 4 s a device; of the makespan alone no row more."""
    for objective, rows in (("steady", [("steady period of a micro-batch, s", "15")]), ("makespan", [])):
        found = search_on_numbers(2, 8, SECONDS, objective=objective, seconds=0.02)
        assert [row for row in found.tables()[0].rows if "period" in row[0]] == rows
