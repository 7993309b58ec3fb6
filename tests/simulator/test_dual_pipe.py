"""Rules of DualPipe and DualPipeV: closed forms with the seconds of a pair, peaks, and that both are one order."""

from __future__ import annotations

import pytest

from simulator import (
    Op,
    OpKind,
    build_schedule,
    check_schedule,
    from_torch_csv,
    to_text,
    to_torch_csv,
)
from tests.simulator.strategies import timeline_of


@pytest.mark.parametrize(
    ("engine", "name", "stages", "m", "seconds"),
    [
        ("simpy", "dualpipe", 8, 20, 66),
        ("recurrence", "dualpipe", 8, 64, 198),
        ("simpy", "dualpipev", 8, 10, 66),
        ("recurrence", "dualpipev", 16, 64, 398),
    ],
)
def test_figures_of_the_reference(engine: str, name: str, stages: int, m: int, seconds: float) -> None:
    """F = 1, F&B = 3, B = 2, W = 1."""
    schedule = build_schedule(name, stages, m)
    timeline = timeline_of(schedule, 1.0, 1.0, weight=1.0, overlapped=3.0, engine=engine)
    assert timeline.makespan_seconds == seconds
    assert timeline.peak_in_flight().tolist() == [stages + 1] * schedule.ranks


@pytest.mark.parametrize("p", [2, 6])
@pytest.mark.parametrize(("forward", "gradient", "weight"), [(1, 1, 1), (18, 18, 9)])
def test_closed_forms(p: int, forward: float, gradient: float, weight: float) -> None:
    """m(F+B) + (p/2-1)(F&B + B - 3W) for an even m of at least 2p, F = I >= W, F&B = F+B; DualPipeV of half of m alike."""
    backward = gradient + weight
    for m in (2 * p, 4 * p + 2):
        expected = m * (forward + backward) + (p / 2 - 1) * (forward + 2 * backward - 3 * weight)
        for schedule in (build_schedule("dualpipe", p, m), build_schedule("dualpipev", p, m // 2)):
            timeline = timeline_of(schedule, forward, gradient, weight=weight, overlapped=forward + backward)
            assert timeline.makespan_seconds == expected
            assert timeline.peak_in_flight().max() == p + 1


def test_both_directions_run_one_order() -> None:
    """Device d and its mirror image run the same stages alike, each with the micro-batches of the other direction."""
    schedule = build_schedule("dualpipe", 6, 14)
    for device in range(3):
        mirrored = [Op(op.stage, op.kind, (op.microbatch + 7) % 14) for op in schedule.ops(5 - device)]
        assert list(schedule.ops(device)) == mirrored


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize(("name", "stages"), [("dualpipe", 8), ("dualpipev", 8), ("dualpipev", 2)])
def test_fewer_micro_batches_than_the_order_is_made_for(name: str, stages: int, m: int) -> None:
    """Each forward once, each backward once, whole or split, in an order that runs; a pair has both of its ops."""
    schedule = build_schedule(name, stages, m)
    check_schedule(schedule)
    assert int((schedule.kind == OpKind.FORWARD).sum()) == stages * m
    timeline = timeline_of(schedule, 1.0, 1.0, weight=1.0, overlapped=2.5)
    assert timeline.peak_in_flight().max() <= 2 * m


def test_pairs_are_torchs_in_its_csv() -> None:
    """What is written for torch is read again with its pairs: the order of DualPipeV's device 1 of 2 and 4 micro-batches."""
    schedule = build_schedule("dualpipev", 4, 4)
    read = from_torch_csv(to_torch_csv(schedule), "dualpipev")
    assert to_text(read) == to_text(schedule)
    assert to_text(schedule).splitlines()[1] == (
        "1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0)OVERLAP_F_B (1F3;2B1)OVERLAP_F_B (2F3;1B1)OVERLAP_F_B 2B2 1B2 2I3 1I3 2W3 1W3"
    )


@pytest.mark.parametrize(
    ("name", "message"), [("dualpipe", "even number of stages, got 3"), ("dualpipev", "got 3 stages")]
)
def test_an_odd_number_of_stages_is_refused(name: str, message: str) -> None:
    """Two stages per device, or a device's mirror image."""
    with pytest.raises(ValueError, match=message):
        build_schedule(name, 3, 4)
