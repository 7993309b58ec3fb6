"""Pareto: plans on ever fewer devices and in ever less memory, none of which another beats in time, memory, energy and devices.

For each number of devices a planner searches with all of their memory, then with a SHRINK of what its plan has filled, and so on
until nothing fits: the fastest plans that it knows for these limits. Where the power of all devices is known it searches for the
fewest joules, too; a plan that leaves some of them idle stands, if at all, with fewer devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from experiments.compare.efficiency import Price, efficiency, price_of_all
from experiments.terminal.report_tables import Cell, ReportTable, figure
from hardware_profiles import GENERIC, GIB, Accelerator, GraphicsProcessor, Stack, counted, optional_members, percent
from planners import InapplicablePlannerError, Request, Result, plan_over_stacks
from simulator import Explained, InfeasiblePlanError, Problem, TextTable, recompute_phrases

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHRINK = 0.8
"""Of the peak of a plan, what devices of the next search may fill."""

MOST_SEARCHES = 6
"""Searches for one number of devices at most."""


@dataclass(frozen=True, slots=True)
class UnbeatenPlan:
    """One plan.

    devices: how many there are for it; seconds: of an iteration; peak_bytes: of its fullest device
    error_low, error_high, memory_error_low, memory_error_high: of both, the ends of 90 % of runs like it
    schedule, notation (stages alike are counted), microbatches, zero, recomputation (of any stage): of the plan
    device_hours, cost: of 10^12 tokens, or 10^9 samples; cost None where prices are not known
    joules_per_sample: None where the power of a device is not known
    stack: name of what runs it
    """

    devices: int
    seconds: float
    error_low: float
    error_high: float
    peak_bytes: float
    memory_error_low: float
    memory_error_high: float
    schedule: str
    notation: str
    microbatches: int
    zero: int
    recomputation: str
    device_hours: float
    cost: float | None
    joules_per_sample: float | None
    stack: str

    def beats(self, other: UnbeatenPlan) -> bool:
        """Whether it is no worse in time, memory, devices and, where it is known, energy, and better in one of them."""
        mine, theirs = (
            (one.seconds, one.peak_bytes, one.devices, one.joules_per_sample or 0.0) for one in (self, other)
        )
        return mine != theirs and all(one <= two for one, two in zip(mine, theirs, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Pareto(Explained):
    """Plans that no other beats, by devices, then by seconds.

    refusals: why there is no plan, by number of devices; searches: how many there were; interrupted: they ended early
    """

    problem: Problem
    planner: str
    points: tuple[UnbeatenPlan, ...]
    refusals: dict[int, str]
    searches: int
    interrupted: bool = False

    @property
    def title(self) -> str:
        """Problem and planner, as a heading names them."""
        problem = self.problem
        samples = f"{problem.batch} {problem.workload.sample}s"
        early = " (INTERRUPTED: not complete)" if self.interrupted else ""
        return f"{problem.workload.name} on {problem.cluster.name}, {samples}: plans of {self.planner} that none beats{early}"

    def tables(self) -> tuple[TextTable, ...]:
        """A row per plan."""
        priced = any(one.cost is not None for one in self.points)
        powered = any(one.joules_per_sample is not None for one in self.points)
        word = self.problem.device_word
        unit = "10^12 tokens" if self.problem.workload.tokens else f"10^9 {self.problem.workload.sample}s"
        columns: dict[str, Cell] = {
            f"{word}s": "{devices}",
            "seconds": "{seconds:.4g}",
            "error": "{error_low:.3g} to {error_high:.3g}",
            "peak,\nGiB": figure("peak_bytes", ".2f", 1 / GIB),
            "plan": "{notation}",
            "micro-\nbatches": "{microbatches}",
            "ZeRO": "{zero}",
            "recom-\nputation": "{recomputation}",
            f"{word}-hours of\n{unit}": "{device_hours:,.0f}",
            **({self.problem.cluster.currency or "USD": figure("cost", ",.0f")} if priced else {}),
            **({"J per\nsample": figure("joules_per_sample", ".3g")} if powered else {}),
            "schedule": "{schedule}",
            **({"stack": "{stack}"} if any(one.stack != GENERIC.name for one in self.points) else {}),
        }
        return (ReportTable("{title}", "plans", columns).text({"title": self.title, **self.record()}),)

    def remarks(self) -> tuple[str, ...]:
        """What has no plan."""
        word = self.problem.device_word
        why = (f"{counted(count, word)}: {reason}" for count, reason in self.refusals.items())
        return (
            *["interrupted: plans that beat these were not looked for, and not all numbers of devices"]
            * self.interrupted,
            *why,
            f"{self.searches} searches, each in {percent(SHRINK, '.0f')} of the memory that the plan before it filled"
            f"{', or for the fewest joules' if self.power_is_known else ''}",
        )

    def record(self) -> dict[str, Any]:
        """The plans, and why there is none."""
        return {
            "planner": self.planner,
            "interrupted": self.interrupted,
            "searches": self.searches,
            "plans": [asdict(one) for one in self.points],
            "refusals": {str(count): reason for count, reason in self.refusals.items()},
        }

    @property
    def power_is_known(self) -> bool:
        """Whether every plan has joules."""
        return bool(self.points) and all(one.joules_per_sample is not None for one in self.points)

    @property
    def unbeaten_in_energy(self) -> tuple[UnbeatenPlan, ...]:
        """The plans that none beats in seconds and joules alone, however many devices and bytes they take; by rising seconds."""
        found = list[UnbeatenPlan]()
        for one in sorted(self.points, key=lambda one: (one.seconds, one.joules_per_sample or 0.0)):
            if not found or (one.joules_per_sample or 0.0) < (found[-1].joules_per_sample or 0.0):
                found.append(one)
        return tuple(found)

    def plot(self) -> Figure:
        """Seconds against memory, a line for each number of devices; and, where it is known, against energy."""
        from experiments.report.pareto_plots import draw

        return draw(self)


def pareto(
    problem: Problem,
    planner: str,
    devices: Sequence[int],
    request: Request,
    *,
    seed: int = 0,
    price: Price | None = None,
    stacks: Sequence[Stack] = (),
    progress: Callable[[int, str], None] = lambda done, text: None,
) -> Pareto:
    """Search on the first of a problem's devices, as many as each number says; for the fewest joules, too, where power is known.

    stacks: to search under, as in `plan_over_stacks`
    progress: called with searches done, and words for the one at work
    An interrupt ends the searches with what is found so far.
    ValueError for numbers of devices that there are not; raises what a planner raises, but that no plan fits and that it does not
    apply, which are refusals.
    """
    most = len(problem.cluster.devices)
    if wrong := [count for count in devices if not 1 <= count <= most]:
        raise ValueError(f"devices {wrong[0]}: cluster {problem.cluster.name} has {most} devices")
    price_of_all(problem, price)
    found: list[UnbeatenPlan] = []
    refusals: dict[int, str] = {}
    searches = 0
    try:
        for count in sorted(set(devices)):
            asked: Problem | None = replace(problem, cluster=problem.cluster.take(count))
            for number in range(MOST_SEARCHES):
                running = [] if asked is None else list(_that_run(asked, stacks))
                if asked is None or (stacks and not running):
                    break
                progress(searches, f"{count} devices, memory {number + 1}")
                searches += 1
                try:
                    result = plan_over_stacks(planner, asked, running, request, seed=seed)
                except (InfeasiblePlanError, InapplicablePlannerError) as error:
                    if not number:
                        refusals[count] = str(error)
                    break
                if not result.outcome.fits:
                    break
                found.append(_point(result, price))
                if result.interrupted:
                    raise KeyboardInterrupt
                asked = in_less_memory(asked, SHRINK * result.outcome.fullest.peak_bytes)
            on = replace(problem, cluster=problem.cluster.take(count))
            if count in refusals or any(optional_members(one).power is None for one in on.cluster.devices):
                continue
            progress(searches, f"{count} devices, joules")
            searches += 1
            result = plan_over_stacks(planner, on, stacks, replace(request, objective="energy"), seed=seed)
            if result.outcome.fits and len(result.plan.devices) == count:
                found.append(_point(result, price))
            if result.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        return Pareto(problem, planner, _unbeaten(found), refusals, searches, interrupted=True)
    return Pareto(problem, planner, _unbeaten(found), refusals, searches)


def _unbeaten(points: Sequence[UnbeatenPlan]) -> tuple[UnbeatenPlan, ...]:
    """By devices, then by seconds; one of those that are equal in all that counts."""
    kept = [one for one in points if not any(other.beats(one) for other in points)]
    distinct = {(one.devices, one.seconds, one.peak_bytes, one.joules_per_sample or 0.0): one for one in reversed(kept)}
    return tuple(distinct[key] for key in sorted(distinct))


def _point(result: Result, price: Price | None) -> UnbeatenPlan:
    outcome, plan = result.outcome, result.plan
    names = {device.name for device in result.problem.cluster.devices}
    own = {name: one for name, one in price.items() if name in names} if isinstance(price, Mapping) else price
    worth, peak = efficiency(outcome, own), outcome.fullest.peak_bytes
    low, high = outcome.memory_error.of(peak)
    return UnbeatenPlan(
        devices=len(result.problem.cluster.devices),
        seconds=outcome.iteration_seconds,
        error_low=outcome.error_low,
        error_high=outcome.error_high,
        peak_bytes=peak,
        memory_error_low=low,
        memory_error_high=high,
        schedule=plan.schedule,
        notation=_counted(plan.notation),
        microbatches=len(plan.microbatches),
        zero=plan.zero,
        recomputation=", ".join(dict.fromkeys(recompute_phrases(result.problem, plan))),
        device_hours=worth.device_hours,
        cost=worth.cost,
        joules_per_sample=None if worth.energy is None else worth.energy.joules_per_sample,
        stack=result.problem.stack.name,
    )


def _counted(notation: str) -> str:
    """`4x2t4` for more than two stages that are alike."""
    words = notation.split("-")
    return f"{len(words)}x{words[0]}" if len(words) > 2 and len(set(words)) == 1 else notation


def _that_run(problem: Problem, stacks: Iterable[Stack]) -> Iterator[Stack]:
    """The stacks that leave some of the devices' memory."""
    for stack in stacks:
        with suppress(ValueError):
            yield problem.under(stack).stack


def in_less_memory(problem: Problem, capacity_bytes: float) -> Problem | None:
    """The problem on devices of which plans may fill so much at most; None where a device's memory is no number of its own, and
    where the stack takes all of it.
    """
    devices: list[Accelerator] = []
    for device in problem.cluster.devices:
        if not isinstance(device, GraphicsProcessor):
            return None
        devices.append(replace(device, memory_bytes=min(device.memory_bytes, capacity_bytes)))
    with suppress(ValueError):
        return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))
    return None
