"""Rules of the study of network rules: figures by hand, plans that can run, links that a rule frees, its document and figure."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from experiments.network_rules import __main__ as study
from experiments.network_rules.__main__ import TABLE
from experiments.network_rules.rule_plots import draw
from experiments.network_rules.rules import (
    RULES,
    RuleEffort,
    compared,
    drawn_plans,
    measure,
    problem_of,
    seconds_of,
    under,
)
from simulator import check_plan


def test_agreement_and_loss_by_hand() -> None:
    """Of three plans two change places: (3 - 2 x 1) / 3 of the pairs agree; the first choice takes 3 s where 2 are possible."""
    assert compared([1.0, 2.0, 4.0], [3.0, 2.0, 8.0]) == pytest.approx({"kendall": 1 / 3, "longer": 1.0, "regret": 0.5})
    assert compared([1.0, 2.0], [2.0, 2.0])["kendall"] is None


def test_plans_are_right_and_drawn_again() -> None:
    """Every plan obeys the rules of plans; the same seed draws the same."""
    problem = problem_of("alexnet", "pipedream-a", 8, 64)
    plans = drawn_plans(problem, 20, np.random.default_rng(3))
    assert len(set(plans)) == 20
    for plan in plans:
        check_plan(problem, plan)
        assert sorted(plan.devices) == list(range(8))
        assert all(list(stage.devices) == sorted(stage.devices) for stage in plan.stages)
    assert {len(plan.stages) for plan in plans} == {1, 2, 4, 8}
    assert drawn_plans(problem, 20, np.random.default_rng(3)) == plans


def test_free_links_are_never_slower() -> None:
    """Without queues no plan takes longer; on one device rules do not matter."""
    problem = problem_of("vgg16", "pipedream-a", 4, 32)
    seconds = seconds_of(problem, drawn_plans(problem, 8, np.random.default_rng(0)))
    for rule in RULES:
        assert all(free <= one * (1 + 1e-9) for free, one in zip(seconds["free"], seconds[rule], strict=True))
    assert under(problem, "free").contention is False
    assert under(problem, "fifo").sharing == "fifo"
    alone = problem_of("alexnet", "pipedream-a", 1, 8)
    (same,) = {tuple(one) for one in seconds_of(alone, drawn_plans(alone, 2, np.random.default_rng(0))).values()}
    assert len(same) == 2


def test_how_much_is_measured_and_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --quick little of it."""
    asked: list[RuleEffort] = []
    monkeypatch.setattr(study, "measure", lambda effort: asked.append(effort) or {"rows": [], "plans": 0})
    for quick in (True, False):
        study.run(argparse.Namespace(quick=quick))
    assert asked == [study.QUICK, study.FULL]
    ((name, figure),) = study.drawn(measure(RuleEffort(1, 4)))
    assert (name, len(figure.axes)) == ("network_rules", 2)


def test_the_document_has_a_row_per_pair_of_rules() -> None:
    """Six of each question; the table has a line and the figure a place for it."""
    document = measure(RuleEffort(1, 4))
    assert [row["question"] for row in document["rows"]] == ["gnmt8, pipedream-a × 16"] * 6
    assert all(row["regret"] >= 0.0 for row in document["rows"])
    assert len(TABLE.text(document).rows) == 1
    left, right = draw(document).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["gnmt8, pipedream-a × 16"]
    assert [len(axes.lines) for axes in (left, right)] == [3, 4]
    for axes, begin in ((left, 1.0), (right, 0.0)):  # from what a rule that changes nothing would come to
        bars = [line for line in axes.collections if isinstance(line, LineCollection)]
        assert {float(ends[0, 0]) for bar in bars for ends in bar.get_segments()} == {begin}
