"""Limits: what an iteration would save if one thing were free, and so what limits a plan.

What is free takes no time in a replay with everything else as it is (`simulator.what_if`). Memory is free in plans that do not
fit: this one without recomputation, and those that the search replayed. The bubble is free where even the device that waits least
for others would not wait; stages are even where no device waits longer than that one. The largest saving is the limit; where none
is a LEAST_SHARE of the iteration, computation is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hardware_profiles import GIB, counted, percent
from simulator import (
    TIME_PARTS,
    InfeasiblePlanError,
    Outcome,
    Plan,
    PlanCosts,
    Recompute,
    Score,
    TimeSplit,
    layer_bounds,
    ranges,
    recompute_words,
    seconds_without,
    simulate,
)

LEAST_SHARE = 0.05
"""Share of an iteration that a free cost must save at least to be called the limit."""

SCARCE = 0.1
"""Share of free memory, at most, on a device too small for a faster plan, for memory to be called the limit."""

IN_REACH = 2.0
"""Times the memory of a device that a faster plan may need there, at most, to be told of."""

FREE = {
    "tensor-parallel communication": "if collectives of tensor-parallel groups were free,",
    "context-parallel communication": "if key/value exchange were free,",
    "expert-parallel communication": "if token exchange with experts were free,",
    "transfers": "if transfers between stages were free,",
    "gradient sync": "if gradient and weight exchange between replicas were free,",
    "optimizer": "if weight updates were free,",
}
"""Costs that a replay can set to zero, and the clause that says so."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The seconds of an iteration if one cost were free.

    name: what; seconds: of an iteration then, at least; how: a clause that says what free means, or what it would need
    """

    name: str
    seconds: float
    how: str


def limits(outcome: Outcome, split: TimeSplit, replayed: Mapping[Plan, Score]) -> tuple[Limit, ...]:
    """The costs that would save time if they were free, the largest saving first.

    replayed: plans of the same problem, and their scores
    """
    whole = outcome.iteration_seconds
    there = [name for name in FREE if split.seconds[:, TIME_PARTS.index(name)].any()]
    found = [Limit(name, seconds, FREE[name]) for name, seconds in seconds_without(outcome, there).items()]
    found += _of_waits(outcome, split)
    found += [one for one in (_without_recomputation(outcome), _that_do_not_fit(outcome, replayed)) if one is not None]
    return tuple(sorted((one for one in found if whole - one.seconds > 1e-9 * whole), key=lambda one: one.seconds))


def limit_sentence(outcome: Outcome, split: TimeSplit, found: tuple[Limit, ...], utilisation: float | None) -> str:
    """One sentence that says what limits a plan.

    utilisation: of the peak over the whole iteration, None where it is not known
    """
    whole, first = outcome.iteration_seconds, next(iter(found), None)
    saved = 0.0 if first is None or not whole else 1.0 - first.seconds / whole
    if first is not None and saved >= LEAST_SHARE:
        the = "the " if first.name == "optimizer" else ""
        return f"limited by {the}{first.name}: {first.how} an iteration would take {first.seconds:.4g} s ({percent(-saved)})"
    share = float(split.mean[TIME_PARTS.index("computation")]) / whole if whole else 1.0
    others = "nothing else, were it free, would save"
    most = f" ({first.name}: {percent(saved)})" if first is not None else ""
    rate = f" at {percent(utilisation / share, '.0f')} of the peak" if utilisation and share else ""
    bounds = layer_bounds(outcome.problem, outcome.plan).words
    of = f" ({bounds})" if bounds else ""
    return f"limited by computation{of}, {percent(share, '.0f')} of the time{rate}: {others} {percent(LEAST_SHARE, '.0f')}{most}"


def _of_waits(outcome: Outcome, split: TimeSplit) -> list[Limit]:
    """The bubble of the device that waits least, and what the others wait longer, on average."""
    bubble, whole = split.seconds[:, TIME_PARTS.index("bubble")], outcome.iteration_seconds
    least = int(bubble.argmin())
    longer = float(np.average(bubble, weights=split.members)) - float(bubble[least])
    name = f"{outcome.problem.device_word} {split.devices[least]}"
    return [
        Limit("the bubble", whole - float(bubble[least]), f"if {name}, which waits least for others, did not wait,"),
        Limit("unequal stages", whole - longer, f"if no device waited longer for others than {name} does,"),
    ]


def _without_recomputation(outcome: Outcome) -> Limit | None:
    """The plan where nothing runs again; where that does not fit, beside what least memory more would buy."""
    problem, plan = outcome.problem, outcome.plan
    costs = PlanCosts(problem, plan)
    if not any(costs.recomputes(stage) for stage in range(len(plan.stages))):
        return None
    faster: dict[Recompute, Outcome] = {}
    for word in recompute_words(problem.workload):
        try:
            kept = simulate(
                problem, replace(plan, recompute=(word,) * len(plan.stages), recomputed_blocks=()), engine="compiled"
            )
        except InfeasiblePlanError:  # an order of its own, with ops that run forwards again
            return None
        if kept.iteration_seconds < outcome.iteration_seconds and not (word != "none" and kept.fits):
            faster[word] = kept
    if "none" not in faster:
        return None
    seconds = faster["none"].iteration_seconds
    if faster["none"].fits:
        return Limit("recomputation", seconds, "without recomputation, which fits,")
    word = min(faster, key=lambda one: _missing_gib(faster[one]))
    held = [one.device for one in faster["none"].memory if not one.fits]
    how = f"without recomputation, which needs {_missing_gib(faster['none']):.3g} GiB more on {_these(outcome, held)}"
    least = f" ({_missing_gib(faster[word]):.3g} GiB: {word}, {faster[word].iteration_seconds:.4g} s)"
    name, room = _short_of("recomputation of whole stages", outcome, held)
    return Limit(name, seconds, f"{how}{room}{least * (word != 'none')},")


def _short_of(other: str, outcome: Outcome, devices: list[int]) -> tuple[str, str]:
    """What limits a plan whose devices lack memory for a faster one: memory where little is free on the fullest of them, else
    `other`, with words that say how much is.
    """
    held = [one for one in outcome.memory if one.device in devices]
    free = min(held, key=lambda one: one.capacity_bytes - one.peak_bytes, default=outcome.fullest)
    room = free.capacity_bytes - free.peak_bytes
    if room <= SCARCE * free.capacity_bytes:
        return "memory", ""
    return other, f", of whose memory {room / GIB:.3g} GiB are free"


def _missing_gib(outcome: Outcome) -> float:
    """What the device that lacks most lacks."""
    return max(one.peak_bytes - one.capacity_bytes for one in outcome.memory) / GIB


def _that_do_not_fit(outcome: Outcome, replayed: Mapping[Plan, Score]) -> Limit | None:
    """The fastest plan that the search replayed and that a device of IN_REACH times the memory would hold, if it is faster."""
    faster = [
        (score.iteration_seconds, number, plan, score)
        for number, (plan, score) in enumerate(replayed.items())
        if score.iteration_seconds < outcome.iteration_seconds
        and not score.fits
        and score.peak_bytes <= IN_REACH * score.capacity_bytes
    ]
    if not faster:
        return None
    seconds, _, plan, score = min(faster, key=lambda one: one[:2])
    need = (score.peak_bytes - score.capacity_bytes) / GIB
    what = f"{plan.schedule}, {plan.notation}, {counted(len(plan.microbatches), 'micro-batch')}"
    name, room = _short_of("the memory of another plan", outcome, [score.device])
    short = _these(outcome, [score.device])
    return Limit(
        name, seconds, f"with {need:.3g} GiB more on {short}{room}{',' * bool(room)} and another plan ({what})"
    )


def _these(outcome: Outcome, devices: list[int]) -> str:
    word = outcome.problem.device_word
    return f"{word}{'s' * (len(devices) > 1)} {ranges(devices)}"


def limit_rows(outcome: Outcome, found: tuple[Limit, ...]) -> list[dict[str, Any]]:
    """What could be free, by name, with seconds of an iteration and the share that it saves."""
    whole = outcome.iteration_seconds
    return [
        {
            "free": one.name,
            "iteration_seconds": one.seconds,
            "saves": 1.0 - one.seconds / whole,
            "how": one.how.rstrip(","),
        }
        for one in found
    ]
