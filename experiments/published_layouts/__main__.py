"""Published layouts: what do large published runs take by the model, and what would the joint planner choose in their place?

Each run of `LAYOUTS` is replayed as it was laid out, under the stack that ran it, beside what was published of it; where a source
does not tell how many stages a device had, the fastest number is meant. The joint planner then plans the same problem. Runs whose
layout needs more memory than its devices have by the model are told: their frameworks hold less than the model knows of.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.published_layouts.published_runs import LAYOUTS, PublishedLayout
from experiments.studies.study_harness import Findings, Made, run_study
from experiments.terminal.output import say, tracked
from experiments.terminal.report_tables import ReportTable, figure, share
from experiments.truth.predictions import NotPredicted, training_problem
from hardware_profiles import GIB
from planners import InapplicablePlannerError, make_plan
from simulator import Evaluations, InfeasiblePlanError, Plan, Problem, Score, error_of, plan_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(options: argparse.Namespace) -> Findings:
    """Replay every layout; without --quick, plan each problem anew."""
    rows: list[dict[str, Any]] = []
    interrupted = False
    try:
        for one in tracked("replaying and planning", LAYOUTS, lambda layout: layout.name):
            rows.append(_row(one, planned=not options.quick))
    except KeyboardInterrupt:
        interrupted = True
    return Findings({"interrupted": interrupted, "layouts": rows}, print_document, _make)


def _row(layout: PublishedLayout, *, planned: bool) -> dict[str, Any]:
    """What was published, what the model says of it, and what the planner finds."""
    seconds, problem, plan, score = min(_replays(layout), key=lambda found: found[0])
    low, high = error_of(problem, plan, "seconds").of(seconds)
    row: dict[str, Any] = {
        "name": layout.name,
        "devices": layout.devices,
        "source": layout.source,
        "note": layout.note,
        "stack": problem.stack.name,
        "published_seconds": layout.iteration_seconds,
        "seconds": seconds,
        "error_low": low,
        "error_high": high,
        "off": seconds / layout.iteration_seconds - 1.0,
        "inside": low <= layout.iteration_seconds <= high,
        "peak_bytes": score.peak_bytes,
        "fits": score.fits,
        "layout": plan_words(problem, plan),
    }
    return row | (_own(problem, seconds) if planned else {})


def _replays(layout: PublishedLayout) -> Iterator[tuple[float, Problem, Plan, Score]]:
    """Seconds of the layout with each number of stages per device that it may have had; those that it cannot have left out."""
    for one in layout.runs():
        try:
            problem, plan = training_problem(one)
        except NotPredicted:
            continue
        if layout.schedule:
            plan = in_a_v(plan, layout.schedule)
        score = Evaluations(problem)(plan)
        if score is not None:
            yield score.iteration_seconds, problem, plan, score


def in_a_v(plan: Plan, schedule: str) -> Plan:
    """The plan of two stages per device with the second ones on the devices in the other direction, and a schedule of a V."""
    there = [stage.devices for stage in plan.stages[: len(plan.stages) // 2]]
    places = zip(plan.stages, [*there, *reversed(there)], strict=True)
    return replace(plan, schedule=schedule, stages=tuple(replace(stage, devices=devices) for stage, devices in places))


def _own(problem: Problem, seconds: float) -> dict[str, Any]:
    """The joint planner's answer to the same problem, and how many times as fast it is."""
    try:
        found = make_plan("joint", problem)
    except (InfeasiblePlanError, InapplicablePlannerError) as error:
        return {"own": str(error)}
    return {
        "own": plan_words(problem, found.plan),
        "own_seconds": found.iteration_seconds,
        "own_speedup": seconds / found.iteration_seconds,
        "own_planning_seconds": found.planning_seconds,
    }


TABLE = ReportTable(
    "Published runs, as laid out, by the model; and the joint planner's plan of the same problem: seconds per iteration",
    "layouts",
    {
        "run": "{name}",
        "stack": "{stack}",
        "published": figure("published_seconds", ".2f"),
        "model": figure("seconds", ".2f"),
        "expected": lambda row: f"{row['error_low']:.2f} to {row['error_high']:.2f}",
        "off": share("off", "+.1f"),
        "GiB": lambda row: f"{row['peak_bytes'] / GIB:.1f}" + ("" if row["fits"] else " (!)"),
        "joint": figure("own_seconds", ".2f"),
        "times as fast": figure("own_speedup", ".2f"),
        "planning, CPU s": figure("own_planning_seconds", ".0f"),
    },
)


def print_document(document: Mapping[str, Any]) -> None:
    """The table, and the plans in a line each."""
    TABLE.print(document)
    for row in document["layouts"]:
        note = f" ({row['note']})" if row["note"] else ""
        say(f"{row['name']}{note}: {row['layout']}")
        if "own" in row:
            say(f"  joint: {row['own']}")
    if any(not row["fits"] for row in document["layouts"]):
        say("(!) more than plans may fill of a device, by the model")


def _make(document: Mapping[str, Any]) -> Made:
    if document["layouts"]:
        yield "published_layouts", draw(document)


def draw(document: Mapping[str, Any]) -> Figure:
    """Seconds per iteration of each run: published, by the model with its error, and of the joint planner's plan."""
    from simulator.results.figures import BLUE, GREEN, INK, multiples, titled

    rows = document["layouts"][::-1]
    drawn, (axes,) = multiples(1, 1, 9.5, 1.6 + 0.5 * len(rows))
    for place, row in enumerate(rows):
        unit, first = row["published_seconds"], place == 0
        axes.plot([row["error_low"] / unit, row["error_high"] / unit], [place] * 2, color=BLUE, linewidth=5, alpha=0.25)
        own = [] if "own_seconds" not in row else [(row["own_seconds"], "D", GREEN, "the joint planner's plan")]
        for seconds, mark, color, label in ((row["seconds"], "o", BLUE, "by the model, with its error"), *own):
            axes.plot(seconds / unit, place, mark, color=color, label=label if first else None)
    axes.axvline(1.0, color=INK, linewidth=0.8, label="published")
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8)
    titled(axes, "Published runs, by the model", xlabel="seconds per iteration, as a share of what was published")
    axes.legend(frameon=False, fontsize=8, loc="best")
    return drawn


if __name__ == "__main__":
    sys.exit(run_study("published-layouts"))
