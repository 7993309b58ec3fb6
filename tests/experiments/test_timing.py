"""Timing: the least of several calls, by either clock, however short a call is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from experiments.benchmarks import timing
from experiments.benchmarks.timing import least_seconds, rate


@pytest.mark.parametrize(
    ("spent", "calls", "seconds", "made"),
    [([4.0, 2.0, 3.0, 1.0], 3, 0.3, 3), ([0.125] * 9, 3, 0.3, 3), ([0.0625] * 9, 3, 0.3, 5), ([0.5], 1, 0.0, 1)],
)
def test_the_quickest_call_counts(
    spent: list[float], calls: int, seconds: float, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many calls as asked for, more until they have taken the seconds; the least of one, with what the last one makes."""
    now, done = [0.0], iter(range(len(spent)))

    def call() -> int:
        number = next(done)
        now[0] += spent[number]
        return number

    clock = SimpleNamespace(process_time=lambda: now[0], perf_counter=lambda: 2.0 * now[0])
    monkeypatch.setattr(timing, "time", clock)
    assert least_seconds(call, calls=calls, seconds=seconds) == (made - 1, min(spent[:made]))
    done = iter(range(len(spent)))
    assert least_seconds(call, wall=True) == (0, 2.0 * spent[0])


def test_a_call_takes_at_least_what_the_clock_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that no clock sees: a tenth of a microsecond."""
    monkeypatch.setattr(timing, "time", SimpleNamespace(process_time=lambda: 1.0))
    assert least_seconds(lambda: "made") == ("made", 1e-7)


def test_a_rate_is_that_of_the_best_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten evaluations in 2, 1 and 4 seconds of CPU: ten a second; the first call only compiles."""
    now, spans = [0.0], iter((30.0, 2.0, 1.0, 4.0))

    def ten() -> int:
        now[0] += next(spans)
        return 10

    monkeypatch.setattr(timing, "time", SimpleNamespace(process_time=lambda: now[0]))
    assert rate(ten, 6.5) == 10.0
    assert not list(spans)
