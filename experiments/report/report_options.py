"""Report options: what commands that print a plan take for its report."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from experiments.terminal.argument_types import Option, price, refuse
from experiments.terminal.output import UsageError, progress

if TYPE_CHECKING:
    from experiments.compare.efficiency import Price
    from experiments.report.plan_report import PlanReport
    from planners import Result
    from simulator import Outcome, Problem

REPORT: dict[str, Option] = {
    "--report": "print a breakdown of time and memory, MFU, tokens, cost, runner-ups, and what limits the plan",
    "--price PRICE": (
        "price per device and hour, or NAME=PRICE,… by accelerator, for --report (default: the cluster file's price)",
        price,
    ),
}
"""Arguments of a report."""


def read_price(arguments: argparse.Namespace, problem: Problem) -> Price | None:
    """The price that was given; UsageError for one without a report, and one that is none of the problem's devices."""
    from experiments.compare.efficiency import price_of_all

    if not arguments.report and getattr(arguments, "pareto", None) is None:
        refuse(arguments, ("price",), "goes with --report")
    try:
        price_of_all(problem, arguments.price)
    except ValueError as error:
        raise UsageError(f"--{error}") from None
    given: Price | None = arguments.price
    return given


def explained(answer: Result | Outcome, price: Price | None) -> PlanReport:
    """The report of an answer, which replays it several times."""
    from experiments.report.plan_report import plan_report

    with progress("replaying what would be free"):
        return plan_report(answer, price)
