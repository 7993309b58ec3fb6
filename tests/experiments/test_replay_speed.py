"""Rules of the replay-speed experiment: what it times gives the same answer, and its rows are complete."""

from __future__ import annotations

import pytest

from experiments.plots import growth_figure
from experiments.replay_speed import build, measure, one_size, plain_lists, plain_replay
from simulator import engine


@pytest.mark.parametrize(
    ("devices", "microbatches", "makespan"), [(4, 8, 33.0 + 0.6 * 2 * (3 * 2 + 2) / 6), (1, 3, 9.0)]
)
def test_the_plain_replay_agrees(devices: int, microbatches: int, makespan: float) -> None:
    """The plain-Python replay is the same replay: (m+p-1)(F+B) + 2c[(p-1)m/p + (p-2)], c = 0.1."""
    program = build(devices, microbatches, 0.1)
    assert plain_replay(*plain_lists(program)) == engine.replay(program).makespan_seconds == pytest.approx(makespan)


def test_a_row_has_every_rate() -> None:
    """Rates are positive and ratios are over the plain replay."""
    row = measure(2, 4, replayed_ops=320)
    rates = [value for key, value in row.items() if key.startswith("ops_per_second_")]
    assert len(rates) == 9
    assert min(rates) > 0
    assert row["ratios_over_plain_python"]["recurrence_prepared"] == pytest.approx(
        row["ops_per_second_recurrence_prepared"] / row["ops_per_second_plain_python"]
    )


def test_growth_rows_can_be_drawn() -> None:
    """A size measured gives what the figure needs."""
    figure = growth_figure([one_size(2, 4), one_size(4, 8)])
    assert len(figure.axes) == 2
