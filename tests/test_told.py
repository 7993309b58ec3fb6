"""What the face tells of its answers, whole: tables, remarks and figures of small ones, as a person and a program read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pipeplan as pp
from experiments.sweep.study import FIGURES
from experiments.sweep.swept import Swept
from simulator import Failing, Outcome, Plan, Problem, goodput
from tests.records import Recorded, lines, weights, without_measured
from tests.simulator.test_cost_figures import CASES, MIXTURE, case

SMALL = pp.Problem("alexnet", "pipedream-b:1", 32, devices=3)
SLOW: dict[str, Any] = {"noise": 0.2, "replays": 30, "seed": 3, "stragglers": {1: 1.5}}


def replayed(name: str, **disturbed: Any) -> Outcome:
    """One of the plans of the figures of costs."""
    found = pp.simulate(*CASES[name], **disturbed)
    assert isinstance(found, Outcome)
    return found


def greedy() -> tuple[Problem, Plan]:
    """A small plan of files that can be changed."""
    return SMALL, pp.plan(SMALL, "greedy").plan


def point(batch: int, status: str, why: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """A point of a sweep."""
    planned = status == "planned"
    figures = {"iteration_seconds": 0.1 * batch, "samples_per_second": 10.0, "peak_memory_bytes": 2.0**30 * batch}
    errors = {"error_low": 0.09 * batch, "error_high": 0.12 * batch, "plan_devices": 4, "capacity_bytes": 2.0**34}
    told = dict.fromkeys(FIGURES) | (figures | errors if planned else {})
    said = {
        "status": status,
        "feasible": planned,
        "reason": why,
        "decisions": {"zero": batch // 4},
        "layout": f"plan {batch}",
    }
    return {"batch": batch}, {**told, **said}


TOLD: dict[str, Callable[[], Any]] = {
    "a plan": lambda: pp.plan(SMALL, "greedy"),
    "a report of a plan": lambda: pp.report(pp.plan(SMALL, "pipedream", budget=200), price=2.0),
    "a report of a replay": lambda: pp.report(replayed("zero 3, two copies")),
    "a report of experts": lambda: pp.report(pp.simulate(*case(2, 4, 1, expert=2, workload=MIXTURE, precision="fp8"))),
    "an explanation": lambda: pp.explain(replayed("groups")),
    "an explanation of a window": lambda: pp.explain(replayed("mixed GPUs"), window=(0.0, 0.01), gains=False),
    "what is felt": lambda: pp.sensitivity(*greedy()),
    "what if": lambda: pp.what_if(*greedy(), {"batch": "*2", "accelerator.memory_gib": 12}, planner="greedy"),
    "what no longer fits": lambda: pp.what_if(*greedy(), {"accelerator.memory_gib": 1.47}, planner="greedy"),
    "what cannot be": lambda: pp.what_if(*greedy(), {"workload": "vgg16"}, anew=False),
    "a comparison": lambda: pp.compare(SMALL, ["greedy", "uniform", "rule-of-thumb"]),
    "noise and stragglers": lambda: replayed("V100", **SLOW),
    "a schedule on numbers": lambda: pp.simulate(
        "zb-h1", stages=3, microbatches=5, forward=1, backward=[2, 1, 3], weight=1, transfer=0.5, stash=1
    ),
    "a schedule on numbers, disturbed": lambda: pp.simulate(
        "1f1b", stages=2, microbatches=5, forward=1, backward=2, **SLOW
    ),
    "an order that was searched for": lambda: pp.simulate(
        "search", stages=3, microbatches=3, forward=1, backward=2, stash=1, memory=2, seconds=0.02
    ),
    "failures": lambda: goodput(
        Failing(8, 2e5, 60.0, 600.0, spares=1, slower=1.2), 10.0, runs=20, seed=1, iteration_seconds=2.0
    ),
    "a sweep": lambda: Swept.of(
        [
            point(1, "planned"),
            point(2, "planned"),
            point(4, "planned"),
            point(8, "refused", "no"),
            ({"batch": 16}, None),
        ]
    ),
}


IN_WORDS = (
    "a comparison",
    "what no longer fits",
    "a report of a replay",
    "an explanation of a window",
    "what is felt",
    "a report of experts",
    "an explanation",
    "noise and stragglers",
    "what cannot be",
    "a sweep",
)
"""Answers whose records are weights: another one of the kind is recorded whole, or the words say its figures."""


@pytest.mark.parametrize("name", TOLD)
def test_what_an_answer_tells(name: str, recorded: Recorded) -> None:
    """Its words by line, and its record."""
    found = TOLD[name]()
    words = lines(found.summary(), r"planned in (\S+) CPU s", r"(?m)\d %  +(\d+\.\d\d)$")
    record = without_measured(found.record(), "planning_seconds") if hasattr(found, "record") else {}
    recorded(words=words, record=weights(record) if name in IN_WORDS else record)
