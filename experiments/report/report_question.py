"""Report question: what the face asks of a plan that is there; what answers is loaded when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardware_profiles import check_kind

if TYPE_CHECKING:
    from experiments.compare.efficiency import Price
    from experiments.report.plan_report import PlanReport
    from planners import Result
    from simulator import Outcome


def report(answer: Result | Outcome, price: Price | None = None) -> PlanReport:
    """Where the seconds and bytes of a plan go, MFU, tokens and cost, runner-ups, and what limits it.

    answer: of a search, or of a plan's replay (without noise, contended as the problem says), whose runner-ups change one thing
    price: per device and hour, or by the names of accelerators, in place of the cluster's and in its currency; ValueError for a
        negative one, and unless it names every accelerator
    """
    from experiments.report.plan_report import plan_report
    from planners import Result
    from simulator import Outcome

    check_kind("answer", answer, Result, Outcome)

    return plan_report(answer, price)
