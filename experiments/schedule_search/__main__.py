"""Schedule search: how near its optimum the searching scheduler comes, how fast, and how far ahead of the known families.

Without a file: published stage times at one and two times the memory of 1F1B (arXiv 2401.10241), long streams on even and
uneven stages under five limits, and V-shaped placements at the memory of ZB-V, V-Half and V-Min (arXiv 2405.15362), each beside
the lower bound under the same limit and beside the fastest known family that fits; and planner `modern` on eight A100s beside
1F1B on equal stages and interleaving with searched cuts, which recompute what they must to fit. With a file: small problems with
a best makespan that is known, as an exact solver proved it; exit code 1 if one is missed. Seconds are CPU seconds of one core,
compilation left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from experiments.schedule_search.families import fastest_family
from experiments.schedule_search.joint import BASELINES, joint_questions, joint_rows
from experiments.schedule_search.optima import check_optimum, read_optima, timed_search
from experiments.schedule_search.problems import SearchQuestion, questions
from experiments.studies.study_harness import Findings, run_study
from experiments.terminal.output import UsageError, tracked
from experiments.terminal.report_tables import ReportTable, Row, either, figure
from hardware_profiles import percent
from planners import ScheduleProblem
from simulator import chains_of

SECONDS = 1.0
"""Seconds of search for a case of a file."""


def run(arguments: argparse.Namespace) -> Findings:
    """Search every case of a file, or every problem of the study."""
    return _of_study(arguments) if arguments.cases is None else _of_file(arguments)


def _compile() -> None:
    """Search what no order of a tight memory ends early, so that all of the search is compiled before it is timed."""
    for name, stages in (("straight", 3), ("v", 4), ("bidirectional", 2)):
        chains = chains_of(name, stages, stages if name != "v" else 2)
        free = ScheduleProblem(
            chains=chains, microbatches=6, forward=3, input_gradient=4, weight_gradient=2, transfer=1
        )
        timed_search(replace(free, limit=free.least_limits()), 0.02)


def _of_file(arguments: argparse.Namespace) -> Findings:
    cases = read_optima(arguments.cases)
    _compile()
    seconds = SECONDS if arguments.seconds is None else arguments.seconds
    rows = [
        check_optimum(case, problem, seconds) for case, problem in tracked("searching", cases, lambda one: one[0].name)
    ]
    matched = sum(row["verdict"] == "matched" for row in rows)
    document = {
        "matched": matched,
        "failed": len(rows) - matched,
        "worst_gap": max(row["gap"] for row in rows),
        "worst_gap_over_bound": max(row["gap_over_bound"] for row in rows),
        "worst_cpu_seconds": max(row["cpu_seconds"] for row in rows),
        "rows": rows,
    }

    def show(found: Mapping[str, Any]) -> None:
        CASES.print(found)
        print(
            f"{found['matched']} matched, {found['failed']} failed; worst gap {percent(found['worst_gap'], '.2f')} over the best "
            f"makespans, {percent(found['worst_gap_over_bound'], '.2f')} over the bounds; at most "
            f"{found['worst_cpu_seconds']:.3g} CPU s"
        )

    return Findings(document, show, failed=matched < len(rows))


def _of_study(arguments: argparse.Namespace) -> Findings:
    if arguments.seconds is not None:
        raise UsageError("--seconds goes with --cases: the study's own problems say how long each is searched")
    _compile()
    asked = [*questions(arguments.quick)]
    rows = [_row(question) for question in tracked("searching", asked, lambda one: f"{one.group}: {one.name}")]
    networks = [] if arguments.quick else [*joint_questions()]
    joint = [row for one in tracked("planning", networks, lambda one: one.workload.name) for row in joint_rows(one)]

    def show(found: Mapping[str, Any]) -> None:
        PROBLEMS.print(found)
        if found["joint"]:
            JOINT.print(found)

    return Findings({"rows": rows, "joint": joint}, show)


def _row(question: SearchQuestion) -> dict[str, Any]:
    found, spent = timed_search(question.problem, question.seconds)
    family, seconds = fastest_family(question.problem)
    return {
        "group": question.group,
        "name": question.name,
        "limit_microbatches": question.limit,
        "search_seconds": question.seconds,
        "cpu_seconds": spent,
        "makespan_seconds": found.makespan,
        "lower_bound_seconds": found.bound,
        "gap": found.gap,
        "proven": found.proven,
        "family": family,
        "family_seconds": seconds,
        "family_ratio": None if seconds is None else seconds / found.makespan,
    }


def _beside(name: str) -> Callable[[Row], str]:
    """Writes a baseline's seconds, how many times those of the plan they are, and what it does to fit."""

    def write(row: Row) -> str:
        one = next(baseline for baseline in row["baselines"] if baseline["name"] == name)
        needs = "" if one["fits"] else f", needs {one['peak_bytes'] / 1e9:.4g} GB"
        again = "" if one["recompute"] == "none" else f", recomputes {one['recompute']}"
        return f"{one['iteration_seconds']:.4g}: {one['ratio']:.3f} x{again}{needs}"

    return write


CASES = ReportTable(
    "Cases with a best makespan that is known",
    "rows",
    {
        "case": "{name}",
        "best": figure("best_makespan", ".6g"),
        "found": figure("makespan_seconds", ".6g"),
        "gap, %": figure("gap", ".2f", 100),
        "bound": figure("lower_bound_seconds", ".6g"),
        "proven": either("proven"),
        "CPU s": figure("cpu_seconds", ".3f"),
        "verdict": "{verdict}",
    },
)

PROBLEMS = ReportTable(
    "Search under limits of memory",
    "rows",
    {
        "stages": "{name}",
        "limit": figure("limit_microbatches", "g"),
        "search, s": figure("search_seconds", "g"),
        "CPU s": figure("cpu_seconds", ".3f"),
        "gap, %": figure("gap", ".3f", 100),
        "proven": either("proven"),
        "fastest family": lambda row: row["family"] or "none fits",
        "it takes": figure("family_ratio", ".3f", unit=" x"),
    },
)

JOINT = ReportTable(
    "Planner modern on eight A100s, 64 samples, fp16, Adam",
    "joint",
    {
        "network": "{network}",
        "GB": figure("memory_bytes", "g", 1e-9),
        "seed": "{seed}",
        "CPU s": figure("cpu_seconds", ".1f"),
        "iteration, s": figure("iteration_seconds", ".4g"),
        "bound of its order": figure("order_lower_bound_seconds", ".4g"),
        **{name: _beside(name) for name in BASELINES},
    },
)


if __name__ == "__main__":
    sys.exit(run_study("schedule-search"))
