"""Goodput question: what the face asks of a job on servers that fail; what answers is loaded when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardware_profiles import check_kind, check_real

if TYPE_CHECKING:
    from planners import Result
    from simulator import Goodput, Outcome


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
    checkpoint_seconds: for which a checkpoint stops training; or checkpoint_gb_per_s: 10^9 bytes a second, at which the plan's
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
