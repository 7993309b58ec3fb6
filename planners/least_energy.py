"""Least energy: plans judged by the joules of an iteration, or by joules times seconds, and under a cap on power.

Devices that a plan leaves out draw nothing: with more devices an iteration ends sooner, with fewer less is drawn while idle.
Where a planner uses all that it is given, or looks at few plans on fewer, the first 1, 2, 4, ... of the devices are searched,
too. Beside these stands the plan that is searched for its seconds alone, so that no answer is worse by its objective than that
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hardware_profiles import Stack, counted
from planners.registry import PlannerEntry
from planners.search.candidates import ROUNDING
from planners.search.evaluator import InapplicablePlannerError, Progress
from planners.search.notes import Note
from planners.search.plan_judge import PlanJudge, PowerExceededError
from planners.search.request import Request
from planners.search.result import Proof, Result
from planners.stack_choice import plan_over_stacks
from simulator import Energy, InfeasiblePlanError, Problem


@dataclass(frozen=True, slots=True)
class DeviceChoice(Note):
    """The number of devices that an answer is on, among those that were searched.

    chosen_for: what it has least of, in words; devices: how many it is on
    judged: of the best plan on each number of devices that has one, by name: devices, iteration_seconds, joules, watts
    """

    chosen_for: str
    devices: int
    judged: tuple[Mapping[str, float], ...]


def plan_by(
    planner: str | Callable[..., object] | PlannerEntry,
    problem: Problem,
    stacks: Sequence[Stack],
    request: Request | None,
    *,
    seed: int,
    budget: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """The best plan by the objective of a request, within its power; the answer's problem is on the devices that it was searched
    on.

    Arguments as of `plan_over_stacks`, which answers where seconds alone decide. An interrupt ends the searches with the best
    plan so far, which is marked.
    Raises ValueError where the power of a device is not known, PowerExceededError where no plan that was found stays within the
    power, InfeasiblePlanError where an idle device draws more, and what the planner raises where it has no plan on any number of
    devices.
    """
    asked = request or Request()
    judge = PlanJudge.of(problem, asked)
    if judge is None:
        return plan_over_stacks(planner, problem, stacks, asked, seed=seed, budget=budget, progress=progress)
    judge.check()
    found, refused, interrupted = list[Result](), list[Exception](), False
    counts = device_counts(len(problem.cluster.devices))
    searches = [(counts[0], replace(asked, objective="time", power=None)), *((count, asked) for count in counts)]
    for count, wanted in searches:
        on = replace(problem, cluster=problem.cluster.take(count))
        try:
            result = plan_over_stacks(planner, on, stacks, wanted, seed=seed, budget=budget, progress=progress)
        except (InfeasiblePlanError, InapplicablePlannerError) as error:
            refused.append(error)
            continue
        if result.outcome.fits:
            found.append(replace(result, judged=judge.judged(_energy(result))))
        if result.interrupted:
            interrupted = True
            break
    if any(judge.allows(_energy(one)) for one in found):
        best = _told(judge, found, interrupted)
        own = PlanJudge.of(best.problem, asked) or judge
        return replace(best, judged=own.judged(_energy(best)))
    drawn = [one.least for one in refused if isinstance(one, PowerExceededError)]
    drawn += [_energy(one).watts for one in found]
    if drawn:
        raise PowerExceededError(judge.power, min(drawn))
    raise refused[-1] if refused else InfeasiblePlanError("no plan fits on any number of devices")


def device_counts(devices: int) -> list[int]:
    """Numbers of devices to search on, falling: all, then the powers of two below."""
    return sorted({min(devices, 1 << power) for power in range(devices.bit_length() + 1)}, reverse=True)


def _energy(result: Result) -> Energy:
    """The energy of a result's plan, whose devices' power is known."""
    energy = result.outcome.energy
    assert energy is not None  # as the power of every device is known
    return energy


def _told(judge: PlanJudge, found: Sequence[Result], interrupted: bool) -> Result:
    """The best of the results, with a note of what it was chosen among; of equal plans the one whose problem has the fewest
    devices.
    """
    of_count = dict[int, Result]()
    for one in sorted(found, key=lambda one: len(one.problem.cluster.devices)):
        known = of_count.setdefault(len(one.plan.devices), one)
        if one.judged < known.judged * (1.0 - ROUNDING):
            of_count[len(one.plan.devices)] = one
    best = min(of_count.values(), key=lambda one: one.judged)
    energies = {count: _energy(one) for count, one in sorted(of_count.items())}
    rows = tuple(
        {"devices": count, "iteration_seconds": one.seconds, "joules": one.joules, "watts": one.watts}
        for count, one in energies.items()
    )
    chosen_for, devices = judge.words, len(best.plan.devices)
    judged = ", ".join(f"{count} ({one.seconds:.4g} s, {one.joules:.4g} J)" for count, one in energies.items())
    words = f"on {counted(devices, best.problem.device_word)}, which has {chosen_for} of the best plans on {judged}"
    note = DeviceChoice(words, chosen_for, devices, rows)
    proof = Proof(reason=f"the best plans on {len(rows)} numbers of devices were compared")
    return replace(best, notes=(*best.notes, note), proof=proof, interrupted=interrupted)
