"""Goodputs: days of a job on servers that fail, of a plan or of a number of servers; what goes together of what is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import simulator
from hardware_profiles import unchosen

if TYPE_CHECKING:
    from planners import Result
    from simulator import Goodput, Outcome

HOUR = 3600.0

PER = ("server", "device", "job")
"""What a mean time between failures may be of."""

REPAIR_HOURS = 24.0
"""Until a server that failed is there again, where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingJob:
    """What is asked of a job; of two that stand for each other, as `refusal` says, one is None.

    outcome: of the plan that runs; servers, devices: in its place, the devices with `per` device
    mtbf_hours: mean hours between failures of one server, or of what `per` says
    checkpoint_seconds: for which a checkpoint stops training; checkpoint_gb_per_s: 10^9 bytes per second at which it is written
    restart_seconds: from a failure until training goes on
    spares: servers that stand by; None: there is always one; repair_hours: until one that failed is there again
    replan: planner of the plan with a server fewer while no spare is there; slower: in its place, by what factor it is slower
    """

    mtbf_hours: float
    restart_seconds: float
    outcome: Outcome | None = None
    servers: int | None = None
    devices: int | None = None
    per: str = "server"
    checkpoint_seconds: float | None = None
    checkpoint_gb_per_s: float | None = None
    spares: int | None = None
    repair_hours: float | None = None
    replan: str | None = None
    slower: float | None = None


def refusal(asked: Mapping[str, Any], word: Callable[[str], str]) -> str | None:
    """What does not go together of what is asked, by the names of FailingJob, with `plan` for its outcome; None: all does.

    word: what a message calls a name
    """
    given = {name for name, value in asked.items() if value is not None}

    def first(*names: str) -> str:
        return next((word(name) for name in names if name in given), "")

    if asked["per"] not in PER:
        return unchosen(word("per"), asked["per"], PER)
    for one, other in (("plan", "servers"), ("checkpoint_seconds", "checkpoint_gb_per_s")):
        if (one in given) == (other in given):
            return f"goodput needs {word(one)}, or {word(other)} in its place"
    if "plan" in given and "devices" in given:
        return f"{word('devices')} goes with {word('servers')}; a plan says its own"
    if "plan" not in given and (of_plan := first("replan", "checkpoint_gb_per_s")):
        return f"{of_plan} goes with {word('plan')}"
    if "plan" not in given and (asked["per"] == "device") != ("devices" in given):
        return f"{word('devices')} goes with {word('per')} device, and with {word('servers')}"
    if {"servers", "devices"} <= given and asked["devices"] < asked["servers"]:
        return f"{word('devices')} {asked['devices']}: each of {asked['servers']} servers has one at least"
    if {"replan", "slower"} <= given:
        return f"{word('slower')} stands in place of {word('replan')}"
    if "spares" not in given and (of_spares := first("replan", "slower", "repair_hours")):
        return f"{of_spares} goes with {word('spares')}: else there is always one"
    return None


def goodput_of(job: FailingJob, days: float, *, seed: int, **runs: Any) -> tuple[Goodput, Result | None]:
    """Days of a job, of whose questions `refusal` has none to refuse; and its plan with a server fewer, where one is asked for.

    runs: as `simulator.goodput` takes them
    Raises what the planner does, and ValueError for numbers out of range.
    """
    outcome = job.outcome
    servers, devices = (job.servers or 0, job.devices) if outcome is None else _sizes(outcome)
    mean = job.mtbf_hours * HOUR * {"server": 1.0, "job": servers, "device": servers / (devices or 1)}[job.per]
    fewer = None if job.replan is None or outcome is None else _with_a_server_fewer(outcome, job.replan, seed)
    slower = job.slower
    if fewer is not None and outcome is not None:
        slower = max(1.0, fewer.iteration_seconds / outcome.iteration_seconds)
    failing = simulator.Failing(
        servers,
        mean,
        _checkpoint_seconds(job),
        job.restart_seconds,
        job.spares,
        (REPAIR_HOURS if job.repair_hours is None else job.repair_hours) * HOUR,
        slower,
    )
    seconds = 0.0 if outcome is None else outcome.iteration_seconds
    return simulator.goodput(failing, days, seed=seed, iteration_seconds=seconds, **runs), fewer


def _sizes(outcome: Outcome) -> tuple[int, int]:
    """Servers that the plan is on, and devices of it."""
    cluster, devices = outcome.problem.cluster, outcome.plan.devices
    return len({cluster.server_of(one) for one in devices}), len(devices)


def _checkpoint_seconds(job: FailingJob) -> float:
    """As asked, or those in which weights and states of the optimizer, each once, are written."""
    if job.checkpoint_seconds is not None:
        return job.checkpoint_seconds
    assert job.outcome is not None, "as `refusal` says"
    assert job.checkpoint_gb_per_s is not None, "as `refusal` says"
    problem = job.outcome.problem
    elements = simulator.LayerCosts(problem).weight_elements(range(len(problem.workload)))
    return float(elements * (problem.element_bytes + problem.optimizer_bytes)) / (1e9 * job.checkpoint_gb_per_s)


def _with_a_server_fewer(outcome: Outcome, planner: str, seed: int) -> Result:
    """The plan on the first servers of the cluster, one fewer than the plan uses, with the same batch."""
    import planners

    problem, left = outcome.problem, _sizes(outcome)[0] - 1
    if not left:
        raise ValueError("the plan is on one server, and on none fewer is one")
    smaller = replace(problem, cluster=problem.cluster.take(sum(map(len, problem.cluster.servers[:left]))))
    return planners.plan_over_stacks(planner, smaller, (), planners.Request(), seed=seed)
