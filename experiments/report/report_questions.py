"""Questions: what the face asks of a plan that is there, and of a job; what answers is loaded when it is asked."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from hardware_profiles import MOST_DEVICES, MOST_SEED, check_kind, check_known, check_real, check_whole

if TYPE_CHECKING:
    from experiments.compare.efficiency import Price
    from experiments.report.plan_report import PlanReport
    from experiments.report.what_ifs import WhatIf
    from planners import Result
    from simulator import Goodput, Outcome, Plan, Problem, Settings


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


def what_if(
    problem: Problem,
    plan: Plan,
    settings: Settings,
    *,
    planner: str | None = None,
    anew: bool = True,
    seed: int = 0,
    budget: int | None = None,
    **wanted: Any,
) -> WhatIf:
    """A plan under other values of its problem, machine or stack: replayed as it is, and planned anew.

    settings: values by path (`{"network.bandwidth_gbps": 200, "servers": "*2"}`), or `PATH=VALUE` texts; the paths are those of
        `hardware_profiles.addresses`, and begin with a key of `simulator.settings.ROOTS`, or leave it out
    planner: that plans anew; by default the plan's own, if it has a name here, else `joint`; anew: whether to
    seed, budget, wanted: of the search, as for `plan`
    Raises `hardware_profiles.SettingError` for a path that names no value, and a value that cannot be there.
    """
    from experiments.report.what_ifs import what_ifs
    from planners import Request, named_planner
    from simulator import Plan, Problem

    check_kind("problem", problem, Problem)
    check_kind("plan", plan, Plan)
    if planner is not None:
        named_planner(planner)
    check_whole("seed", seed, 0, MOST_SEED)
    if budget is not None:
        check_whole("budget", budget, 1)
    check_known("a request has no", wanted, (one.name for one in fields(Request)))
    return what_ifs(problem, plan, settings, planner=planner, anew=anew, seed=seed, budget=budget, wanted=wanted)


def goodput(
    job: Result | Outcome | int,
    *,
    mtbf_hours: float,
    restart_seconds: float,
    per: str = "server",
    devices: int | None = None,
    checkpoint_seconds: float | None = None,
    checkpoint_gb_per_s: float | None = None,
    checkpoint_every: float | None = None,
    spares: int | None = None,
    repair_hours: float | None = None,
    replan: str | None = None,
    slower: float | None = None,
    days: float = 30.0,
    runs: int = 100,
    seed: int = 0,
) -> Goodput:
    """What days of training on servers that fail are spent on, as a distribution, and the best interval between checkpoints.

    job: an answer of a search, a plan's replay, or a number of servers
    mtbf_hours: mean hours between failures of one server, or `per` "device" or "job"; devices: of a number of servers, with the
        former
    checkpoint_seconds: for which a checkpoint stops training; or checkpoint_gb_per_s: 10^9 bytes per second, at which the plan's
        weights and states of the optimizer are written; checkpoint_every: seconds of training between two, default the best
    restart_seconds: from a failure until training goes on
    spares: servers that stand by, by default there is always one; repair_hours: until one that failed is there again, default 24
    replan: planner of a plan for a server fewer, while no spare is there; or slower: by what factor it is slower; else the job
        waits
    days, runs, seed: of each run, how many, and of the failures
    Raises ValueError for what does not go together, and for numbers out of range.
    """
    from experiments.report.goodputs import FailingJob, goodput_of, refusal
    from planners import Result
    from simulator import Outcome

    check_kind("job", job, Result, Outcome, int)
    check_real("mtbf_hours", mtbf_hours)
    if isinstance(job, int):
        check_whole("servers", job, 1, MOST_DEVICES)
    if devices is not None:
        check_whole("devices", devices, 1, MOST_DEVICES)
    for name, value, least in (("repair_hours", repair_hours, 0.0), ("checkpoint_gb_per_s", checkpoint_gb_per_s, 1e-6)):
        if value is not None:
            check_real(name, value, least)
    check_whole("seed", seed, 0, MOST_SEED)
    outcome = job.outcome if isinstance(job, Result) else job if isinstance(job, Outcome) else None
    asked: dict[str, Any] = {
        "servers": None if outcome is not None else job,
        "devices": devices,
        "per": per,
        "checkpoint_seconds": checkpoint_seconds,
        "checkpoint_gb_per_s": checkpoint_gb_per_s,
        "spares": spares,
        "repair_hours": repair_hours,
        "replan": replan,
        "slower": slower,
    }
    words = {"plan": "a plan", "servers": "a number of servers"}
    if said := refusal({**asked, "plan": outcome}, lambda name: words.get(name, name)):
        raise ValueError(said)
    whole = FailingJob(mtbf_hours=mtbf_hours, restart_seconds=restart_seconds, outcome=outcome, **asked)
    return goodput_of(whole, days, seed=seed, runs=runs, every=checkpoint_every)[0]
