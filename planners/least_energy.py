"""Least energy: plans judged by the joules of an iteration, or by joules times seconds, and under a cap of power.

What devices draw beside their idle power is that of their work, which no plan changes but by forwards that run again: of plans on
as many devices the fastest takes the fewest joules. So the fastest plan is searched on the first 1, 2, 4, ... of the devices and
on all of them, and the best of these is the answer: more devices are sooner done, fewer idle less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hardware_profiles import Stack, check_real, counted, optional_members, unchosen
from planners.registry import PlannerEntry
from planners.search.evaluator import InapplicablePlannerError, Progress
from planners.search.notes import Note
from planners.search.request import Request
from planners.search.result import Proof, Result
from planners.stack_choice import plan_over_stacks
from simulator import Energy, InfeasiblePlanError, Problem

Objective = Literal["time", "energy", "edp"]
"""What makes a plan the better one: seconds, joules, or joules times seconds (the energy-delay product)."""

OBJECTIVES: tuple[Objective, ...] = ("time", "energy", "edp")

OF = {"time": "the fewest seconds", "energy": "the fewest joules", "edp": "the least joules times seconds"}
"""Objectives in words."""


@dataclass(frozen=True, slots=True)
class DeviceChoice(Note):
    """The number of devices that an answer is on, among those that were searched.

    chosen_for: what it has least of, in words; devices: how many
    judged: of the fastest plan on each number of devices that has one: devices, iteration_seconds, joules, watts
    """

    chosen_for: str
    devices: int
    judged: tuple[Mapping[str, float], ...]


def plan_by(
    objective: Objective,
    planner: str | Callable[..., object] | PlannerEntry,
    problem: Problem,
    stacks: Sequence[Stack] = (),
    request: Request | None = None,
    *,
    power: float | None = None,
    seed: int = 0,
    budget: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """The plan that is best by an objective among the fastest on 1, 2, 4, ... and all of the devices; its problem is on these.

    power: W at most that the devices in use may draw in the mean
    The others as in `plan_over_stacks`. An interrupt ends the searches with the best so far, which is marked.
    Raises ValueError for another objective, a power that is none, and where the power of a device is not known;
    InfeasiblePlanError where no plan stays within the power; what the planner raises where it has no plan on any number of
    devices.
    """
    if objective not in OBJECTIVES:
        raise ValueError(unchosen("objective", objective, OBJECTIVES))
    if power is not None:
        check_real("power", power)
    unknown = [one.name for one in problem.cluster.devices if optional_members(one).power is None]
    if unknown:
        raise ValueError(
            f"objective and power: the power of {unknown[0]} is not known: give idle_w and full_w in [power] of its file"
        )
    found, refused, interrupted = list[Result](), list[Exception](), False
    for count in device_counts(len(problem.cluster.devices)):
        asked = replace(problem, cluster=problem.cluster.take(count))
        try:
            result = plan_over_stacks(planner, asked, stacks, request, seed=seed, budget=budget, progress=progress)
        except (InfeasiblePlanError, InapplicablePlannerError) as error:
            refused.append(error)
            continue
        found.append(result)
        if result.interrupted:
            interrupted = True
            break
    fitting = [one for one in found if one.outcome.fits]
    if not fitting:
        raise refused[-1] if refused else InfeasiblePlanError("no plan fits on any number of devices")
    within = [one for one in fitting if power is None or _energy(one).watts <= power]
    if not within:
        least = min(fitting, key=lambda one: _energy(one).watts)
        raise InfeasiblePlanError(
            f"power {power:g} W: the fastest plan on {counted(len(least.problem.cluster.devices), problem.device_word)} draws "
            f"{_energy(least).watts:.4g} W, and no other draws less"
        )
    best = min(within, key=lambda one: _judged(objective, one))
    beside = "" if power is None else f" within {power:g} W"
    return _told(best, f"{OF[objective]}{beside}", fitting, interrupted)


def device_counts(devices: int) -> list[int]:
    """Numbers of devices that are searched: powers of two below all of them, and all."""
    return sorted({min(devices, 1 << power) for power in range(devices.bit_length() + 1)}, reverse=True)


def _energy(result: Result) -> Energy:
    energy = result.outcome.energy
    assert energy is not None  # as the power of every device is known
    return energy


def _judged(objective: Objective, result: Result) -> float:
    energy = _energy(result)
    return {"time": energy.seconds, "energy": energy.joules, "edp": energy.joules * energy.seconds}[objective]


def _told(best: Result, chosen_for: str, found: Sequence[Result], interrupted: bool) -> Result:
    """The answer with what it was chosen among."""
    by_count = {len(one.problem.cluster.devices): _energy(one) for one in found}
    rows = tuple(
        {"devices": count, "iteration_seconds": one.seconds, "joules": one.joules, "watts": one.watts}
        for count, one in sorted(by_count.items())
    )
    devices, word = len(best.problem.cluster.devices), best.problem.device_word
    judged = ", ".join(f"{count} ({one.seconds:.4g} s, {one.joules:.4g} J)" for count, one in sorted(by_count.items()))
    words = f"on {counted(devices, word)}, which has {chosen_for} of the fastest plans on {judged}"
    note = DeviceChoice(words, chosen_for, devices, rows)
    proof = Proof(reason=f"the fastest plans on {len(rows)} numbers of devices were compared")
    return replace(best, notes=(*best.notes, note), proof=proof, interrupted=interrupted)
