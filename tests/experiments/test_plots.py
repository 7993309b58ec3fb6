"""Rules of the comparison figure: the numbers that are drawn."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.compare.comparison import RANKINGS
from experiments.compare.comparison_plots import common_limit, comparison_bars, comparison_figure, limit_in_view

GIB = 2**30


def row(planner: str, rate: float, *, batch: int = 100, bound: float | None = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "planner": planner,
        "schedule": "1f1b",
        "notation": "3-1",
        "samples_per_second": rate,
        "speedup_over_data_parallel": rate / 50.0,
        "peak_memory_bytes": 8.0 * GIB,
        "memory_error_low": 7.0 * GIB,
        "memory_error_high": 10.0 * GIB,
        "capacity_bytes": 16.0 * GIB,
        "lower_bound_seconds": bound,
        "iteration_seconds": batch / rate,
        "error_low": 0.8 * batch / rate,
        "error_high": 1.25 * batch / rate,
        "bubble_idle_over_makespan": 0.25,
        "asynchronous": False,
        "interrupted": False,
        "feasible": True,
        **more,
    }


def test_plans_that_fit_come_first_and_fast_ones_before_slow() -> None:
    """A plan that does not fit stands below all that do, however fast or frugal it is."""
    rows = [
        row("a", 50.0, joules_per_sample=2.0),
        row("b", 90.0, joules_per_sample=1.0, feasible=False),
        row("c", 80.0, joules_per_sample=3.0),
    ]
    for ranking, order in ((None, ["c", "a", "b"]), (RANKINGS["energy"], ["a", "c", "b"])):
        assert [plan.label.split("\n")[0] for plan in comparison_bars(rows, ranking)] == order


def test_numbers_of_a_bar() -> None:
    """A bar says plan, throughput, speedup and idle share; the upper limit is the batch over the lower bound; its whisker goes
    from the throughput of the longest seconds of 90 % of runs like it to that of the shortest.
    """
    (plan,) = comparison_bars([row("pipedream", 80.0)])
    assert plan.label == "pipedream\n3-1 · 1f1b"
    assert plan.note == "80.0/s · 1.60× · idle 25 %"
    assert plan.limit_samples_per_second == pytest.approx(100.0)
    assert (plan.peak_gib, plan.capacity_gib) == (8.0, 16.0)
    assert plan.rate_ends == pytest.approx((64.0, 100.0))
    assert plan.peak_ends == (7.0, 10.0)


def test_what_is_not_known_is_left_out() -> None:
    """No bound, no speedup and no bubble: the bar has none of them."""
    (plan,) = comparison_bars(
        [row("a", 80.0, bound=None, speedup_over_data_parallel=None, bubble_idle_over_makespan=float("nan"))]
    )
    assert plan.note == "80.0/s"
    assert plan.limit_samples_per_second is None
    assert not limit_in_view([plan])
    assert common_limit([plan]) is None


def test_limit_is_drawn_only_where_it_does_not_flatten() -> None:
    """A limit of at most three times the fastest plan is in view; one line stands for all if all share it."""
    near, far = comparison_bars([row("a", 50.0)]), comparison_bars([row("a", 20.0)])
    assert limit_in_view(near)
    assert not limit_in_view(far)
    for fastest, in_view in ((100 / 3 + 0.1, True), (100 / 3 - 0.1, False)):
        assert limit_in_view(comparison_bars([row("a", 1.0), row("b", fastest)])) == in_view
    assert common_limit(comparison_bars([row("a", 50.0), row("b", 80.0)])) == pytest.approx(100.0)
    assert common_limit(comparison_bars([row("a", 50.0), row("b", 80.0, bound=2.0)])) is None
    for rows, said in (
        ([row("a", 20.0), row("b", 10.0, bound=2.0)], "upper limit 100/s, beyond the axis"),
        ([row("a", 50.0), row("b", 80.0)], "upper limit (lower bound on time): 100/s"),
        ([row("a", 50.0), row("b", 80.0, bound=2.0)], "upper limit"),
    ):
        (legend,) = comparison_figure(rows).legends
        assert [text.get_text() for text in legend.get_texts() if "limit" in text.get_text()] == [said]


def test_infeasible_bars_are_hatched() -> None:
    """A plan that does not fit is hatched in both panels, and says so in words."""
    figure = comparison_figure([row("a", 50.0), row("b", 90.0, feasible=False, peak_memory_bytes=20.0 * GIB)])
    assert [[bar.get_hatch() for bar in ax.patches] for ax in figure.axes] == [[None, "///"]] * 2
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert texts == ["8.00", "20.0\ndoes not fit"]


def test_a_figure_without_plans_is_refused() -> None:
    """No row is a ValueError."""
    with pytest.raises(ValueError, match="at least one row"):
        comparison_figure([])
