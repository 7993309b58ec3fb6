"""Notes of a joint search on its answer beside other plans that it replayed: simpler ones, and those that decide otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hardware_profiles import percent
from planners.search.evaluator import Evaluator
from planners.search.notes import Note
from planners.search.runner_ups import otherwise
from planners.search.told_apart import FINE
from simulator import Plan, Problem, Score, flushes, plan_words

SIMPLE = "1f1b", "gpipe"
"""Families that every framework runs."""

USUAL = (*SIMPLE, "interleaved-1f1b")
"""Families that common frameworks run."""

WITHIN = 0.01
"""Share of an answer's seconds by which a simpler plan may be slower and still be noted: far below the error of any
prediction.
"""

NEAREST = 5
"""Decisions, those that lose least if made otherwise, which the text of a note names."""

Replays = Mapping[Plan, Score]
"""Plans that fit, the answer among them, with their scores."""


@dataclass(frozen=True, slots=True)
class OwnOrder(Note):
    """What an order of ops that was searched gains over the fastest replayed schedule family of the same stages and
    micro-batches.

    family: that schedule family; family_seconds: of its iteration
    """

    family: str
    family_seconds: float


@dataclass(frozen=True, slots=True)
class SimplerPlan(Note):
    """The simplest replayed plan that is slower by no more than WITHIN.

    simpler: the plan in a line; simpler_seconds: of its iteration
    """

    simpler: str
    simpler_seconds: float


@dataclass(frozen=True, slots=True)
class NextBest(Note):
    """What the answer loses with each decision made otherwise, by the fastest replayed plan that does.

    next_best: by decision, what that plan has; next_best_loses: by decision, the share by which it is slower
    """

    next_best: dict[str, str]
    next_best_loses: dict[str, float]


@dataclass(frozen=True, slots=True)
class Unordered(Note):
    """The fastest plan without a pipeline, beside an answer under a schedule that was asked for.

    unordered: the plan in a line; unordered_seconds: of its iteration
    """

    unordered: str
    unordered_seconds: float


def complexity(plan: Plan) -> int:
    """Number of things in a plan that an engineer would rather do without: of equally fast plans the one with fewest is the
    answer.

    An order of its own counts 3, a family that common frameworks do not run 2, one that not every framework runs 1. One each
    count: recomputation, replicas and micro-batches that are not alike, weights that replicas divide (ZeRO 3), ZeRO over part of
    the replicas, options of the schedule, layers that stages share.
    """
    schedule = (
        3 if plan.order else 0 if len(plan.stages) == 1 or plan.schedule in SIMPLE else 1 + (plan.schedule not in USUAL)
    )
    unlike = (plan.recompute, plan.recomputed_blocks, plan.replicas, plan.microbatches)
    beside = plan.zero == 3, bool(plan.shard), bool(plan.options), bool(plan.splits)
    return schedule + sum(len(set(one)) > 1 for one in unlike) + sum(beside)


def own_order(plan: Plan, replayed: Replays) -> OwnOrder | None:
    """The note on an answer with an order of ops of its own; None for others, or where no family ran the same stages."""
    if not plan.order:
        return None
    alike = [
        one
        for one, score in replayed.items()
        if not one.order and (one.stages, one.splits, one.microbatches) == (plan.stages, plan.splits, plan.microbatches)
    ]
    if not alike:  # its layers were split for the order
        return None
    family = min(alike, key=lambda one: replayed[one].key)
    seconds = replayed[family].iteration_seconds
    slower = _slower(seconds, replayed[plan].iteration_seconds)
    text = f"its order of ops is searched; with {family.schedule} the same stages take {seconds:.4g} s: {slower}"
    return OwnOrder(text, family.schedule, seconds)


def simpler_plan(problem: Problem, plan: Plan, replayed: Replays) -> SimplerPlan | None:
    """The note on the simplest plan that is nearly as fast, the fastest of equally simple ones; None where the answer is as
    simple.
    """
    seconds = replayed[plan].iteration_seconds
    near = [one for one, score in replayed.items() if score.iteration_seconds <= seconds * (1.0 + WITHIN)]
    simplest = min(near, key=lambda one: (complexity(one), replayed[one].key))
    if complexity(simplest) >= complexity(plan):
        return None
    words, other = plan_words(problem, simplest), replayed[simplest].iteration_seconds
    return SimplerPlan(f"simpler, and {_slower(other, seconds)}: {words}", words, other)


def passes_devices(plan: Plan) -> bool:
    """Whether a plan has several ranks, so that a schedule orders how data pass between them."""
    return len({stage.devices for stage in plan.stages}) > 1


def unordered(problem: Problem, plan: Plan, evaluate: Evaluator) -> Note | None:
    """The note on an answer under a schedule that was asked for: that no pipeline fits, if the answer is of one rank, else the
    fastest plan of one rank, if that is faster; None otherwise.
    """
    word = problem.device_word
    if not passes_devices(plan):
        return Note(f"no pipeline through several {word}s was found that fits: each holds the whole network")
    seconds = evaluate.outcomes[plan].iteration_seconds
    alone = {
        one: score.iteration_seconds
        for one, score in evaluate.outcomes.items()
        if score.fits
        and score.iteration_seconds < seconds
        and flushes(one)
        and evaluate.obeys(one)
        and not passes_devices(one)
    }
    if not alone:
        return None
    fastest = min(alone, key=lambda one: alone[one])
    words, faster = plan_words(problem, fastest), percent(1.0 - alone[fastest] / seconds, ".2g")
    return Unordered(f"without a pipeline, of what was replayed, {faster} less time: {words}", words, alone[fastest])


def next_best(problem: Problem, plan: Plan, replayed: Replays) -> NextBest | None:
    """The note on what the answer loses with each decision made otherwise, least first; None where it loses nothing by any.

    Layers of stages are left out, as are plans that are no slower.
    """
    seconds = replayed[plan].iteration_seconds
    found = [
        one
        for one in otherwise(problem, plan, replayed).values()
        if one.decision not in FINE and one.seconds > seconds > 0
    ]
    if not found:
        return None
    found.sort(key=lambda one: one.seconds)
    told = "; ".join(f"{one.decision} {one.other} {_slower(one.seconds, seconds)}" for one in found[:NEAREST])
    most = found[-1]
    text = f"next best, of what was replayed: {told}; most depends on {most.decision} ({most.chosen})"
    return NextBest(
        text,
        {one.decision: one.other for one in found},
        {one.decision: one.seconds / seconds - 1.0 for one in found},
    )


def _slower(seconds: float, best: float) -> str:
    """By what share a plan is slower than the best, in words."""
    part = seconds / best - 1.0
    return f"{percent(part, '.0f' if part >= 0.1 else '.2g')} slower" if part > 0 else "as fast"
