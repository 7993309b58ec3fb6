"""Memory points: what each family and each searched order takes, and holds, on the same stages cut for each placement.

A device has the same part of the model, and so the same work, in every placement: with two stages per device each takes and keeps
half. Memory is counted in micro-batches of a device's whole part. A bidirectional placement holds two parts a device, and runs
each for half of the micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any

from experiments.schedule_search.families import comparable_families, replay_family
from experiments.schedule_search.problems import PUBLISHED, uneven
from experiments.terminal.output import tracked
from planners import FoundSchedule, ScheduleProblem, search_schedule
from simulator import USUAL_CHUNKS, Placement, Schedule, chains_of, schedule_families

ROW = PUBLISHED[0]
"""Whose stage times, transfers and memory these are: 8 devices, 24 micro-batches."""

MICROSECOND = 1e-6
"""Seconds of the unit of those times."""

SPREAD = 0.3
"""How much uneven stages differ: each takes 0.7 to 1.3 times as long."""

SLICES = 2
"""Slices of a sequence: the fewest with which Seq1F1B is not 1F1B; they take as long as each other."""

PLACES: tuple[Placement, ...] = ("straight", "interleaved", "v", "bidirectional")
"""Placements, each with its usual stages per device: with two, waves are a V."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is searched: seeds of uneven stages, limits in micro-batches of a device's part, and seconds of each search."""

    seeds: Sequence[int]
    limits: Sequence[float]
    seconds: float


FULL = Effort(range(3), (1, 2, 3, 4, 5, 6, 8, 10, 12, 16), 0.5)
QUICK = Effort(range(1), (4, 8, 16), 0.02)


@dataclass(frozen=True, slots=True)
class FamilyPoint:
    """A family in the placement it lies in: what it runs, in how many slices of a sequence, in what memory, in which order."""

    name: str
    place: Placement
    slices: int
    problem: ScheduleProblem
    schedule: Schedule
    peak: float
    makespan: float


def measure(effort: Effort) -> dict[str, Any]:
    """The document of the study: settings, a row for each family and set of stages, a row for each search."""
    sets = [("even", 0), *(("uneven", seed) for seed in effort.seeds)]
    families: list[dict[str, Any]] = []
    searched: list[dict[str, Any]] = []
    for stages, seed in tracked("searching", sets, lambda one: f"{one[0]} stages, seed {one[1]}"):
        straight = uneven(ROW.problem(math.inf), SPREAD if stages == "uneven" else 0.0, seed)
        points = family_points(straight)
        found = {place: search_limits(straight, place, points, effort) for place in PLACES}
        about = {"stages": stages, "seed": seed}
        families += [{**about, **_family_row(point, found[point.place][point.peak])} for point in points]
        searched += [
            {**about, **_searched_row(place, limit, one)} for place in found for limit, one in found[place].items()
        ]
    return {
        "devices": ROW.devices,
        "microbatches": ROW.microbatches,
        "uneven_spread": SPREAD,
        "slices": SLICES,
        "limits_microbatches": [*effort.limits],
        "search_seconds": effort.seconds,
        "families_left_out": left_out(),
        "families": families,
        "searched": searched,
    }


def left_out() -> list[str]:
    """Families with a flush that need another machine: several lanes per device, or other ways to send."""
    return [name for name, one in schedule_families().items() if one.flush and name not in comparable_families()]


def placed(straight: ScheduleProblem, place: Placement) -> ScheduleProblem:
    """The same devices, their parts of the model cut into equal stages, in another placement; without a limit."""
    chunks = USUAL_CHUNKS[place]
    chains = chains_of(place, chunks * straight.devices, straight.devices)
    return replace(
        straight,
        chains=chains,
        transfer=max(straight.each("transfer")),
        limit=math.inf,
        **_divided(straight, chunks, chains[0]),
    )


def sliced(problem: ScheduleProblem, slices: int) -> ScheduleProblem:
    """The same work in slices of sequences, as micro-batches alike: what an order of slices must keep to, and less."""
    values = _divided(problem, slices, range(problem.stages))
    transfer = [one / slices for one in problem.each("transfer")]
    return replace(problem, microbatches=slices * problem.microbatches, transfer=transfer, **values)


def _divided(problem: ScheduleProblem, parts: int, stages: Sequence[int]) -> dict[str, Any]:
    """What those stages take and keep, divided by a number."""
    names = ("forward", "input_gradient", "weight_gradient", "freed_at_input_gradient", "freed_at_weight_gradient")
    return {name: [problem.each(name)[stage] / parts for stage in stages] for name in names}


def family_points(straight: ScheduleProblem) -> list[FamilyPoint]:
    """Every comparable family that runs on these devices, with two stages per device where it has several, and with SLICES."""
    points = []
    for name in comparable_families():
        family = schedule_families()[name]
        place: Placement = "v" if family.placement == "wave" else family.placement
        slices = SLICES if "slices" in family.options else 1
        problem = sliced(placed(straight, place), slices)
        replayed = replay_family(name, problem, slices)
        if replayed is not None:
            peak, makespan = max(replayed.peak_memory), replayed.timeline.makespan_seconds
            points.append(FamilyPoint(name, place, slices, problem, replayed.schedule, peak, makespan))
    return points


def search_limits(
    straight: ScheduleProblem, place: Placement, points: Sequence[FamilyPoint], effort: Effort
) -> dict[float, FoundSchedule]:
    """Limit -> the order found in a placement, at the given limits and at the peaks of its families.

    A search begins from these families and from the order of the limit before it.
    """
    problem = placed(straight, place)
    here = [point for point in points if point.place == place]
    unit = ROW.kept
    found: dict[float, FoundSchedule] = {}
    patterns = [point.schedule for point in here]
    for limit in sorted({limit * unit for limit in effort.limits} | {point.peak for point in here}):
        found[limit] = search_schedule(replace(problem, limit=limit), seconds=effort.seconds, patterns=patterns)
        patterns = [*patterns[: len(here)], found[limit].schedule]
    return found


def busiest(problem: ScheduleProblem) -> float:
    """Seconds of all ops of the busiest device: a lower bound at any memory."""
    a_microbatch = [
        sum(problem.each(name)[stage] for name in ("forward", "input_gradient", "weight_gradient"))
        for stage in range(problem.stages)
    ]
    load = [0.0] * problem.devices
    for chain, count in zip(problem.chains, problem.counts(), strict=True):
        for device, seconds in zip(chain, a_microbatch, strict=True):
            load[device] += count * seconds
    return max(load)


def _family_row(point: FamilyPoint, searched: FoundSchedule) -> dict[str, Any]:
    bound = search_schedule(replace(point.problem, limit=point.peak), seconds=0.0).bound
    return {
        "family": point.name,
        "placement": point.place,
        "slices": point.slices,
        **_figures(point.problem, point.peak, point.makespan, bound),
        "searched_seconds": searched.makespan * MICROSECOND,
        "faster": point.makespan / searched.makespan - 1.0,
    }


def _searched_row(place: str, limit: float, found: FoundSchedule) -> dict[str, Any]:
    return {
        "placement": place,
        "limit_microbatches": limit / ROW.kept,
        **_figures(found.problem, max(found.peaks), found.makespan, found.bound),
        "proven": found.proven,
    }


def _figures(problem: ScheduleProblem, peak: float, makespan: float, bound: float) -> dict[str, Any]:
    """What families and searched orders are compared by.

    above_busiest, bound_above_busiest: time that the busiest device of the placement is idle, as a part of its work, and of any
        order of the same ops at this memory at least; gap: over that bound
    """
    return {
        "peak_microbatches": peak / ROW.kept,
        "makespan_seconds": makespan * MICROSECOND,
        "busiest_device_seconds": busiest(problem) * MICROSECOND,
        "above_busiest": makespan / busiest(problem) - 1.0,
        "lower_bound_seconds": bound * MICROSECOND,
        "bound_above_busiest": bound / busiest(problem) - 1.0,
        "gap": makespan / bound - 1.0,
    }


def over_seeds(rows: Sequence[dict[str, Any]], *keys: str) -> Iterator[dict[str, Any]]:
    """One row for all seeds of the same keys: the mean of every figure, and least and most of `above_busiest`."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    for values, group in groupby(sorted(rows, key=key), key):
        same = list(group)
        above = [row["above_busiest"] for row in same]
        figures = {
            name: fmean(row[name] for row in same) for name, value in same[0].items() if isinstance(value, float)
        }
        yield {**figures, **dict(zip(keys, values, strict=True)), "least": min(above), "most": max(above)}
