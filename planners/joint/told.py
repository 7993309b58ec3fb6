"""Told: what a joint search says of its answer beside other plans that it replayed: simpler ones, and other decisions."""

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
"""Part of an answer's seconds by which a simpler plan may be slower to be told of: far below the error of any prediction."""

NEAREST = 5
"""Other decisions that are named, those that lose least."""

Replays = Mapping[Plan, Score]
"""Plans that fit, the answer among them, and their scores."""


@dataclass(frozen=True, slots=True)
class OwnOrder(Note):
    """What a searched order of ops gains over the fastest family of the same stages and micro-batches that was replayed."""

    family: str
    family_seconds: float


@dataclass(frozen=True, slots=True)
class SimplerPlan(Note):
    """The simplest plan that was replayed and is slower by no more than WITHIN, in a line, and its seconds."""

    simpler: str
    simpler_seconds: float


@dataclass(frozen=True, slots=True)
class NextBest(Note):
    """By decision what the fastest plan that was replayed and decides otherwise has instead, and by what part it is slower."""

    next_best: dict[str, str]
    next_best_loses: dict[str, float]


@dataclass(frozen=True, slots=True)
class Unordered(Note):
    """Beside an answer under a schedule that was asked for the fastest plan that needs none, in a line, and its seconds."""

    unordered: str
    unordered_seconds: float


def complexity(plan: Plan) -> int:
    """How much of a plan an engineer would rather do without: of two plans that are as fast the one with less is the answer.

    An order of its own counts most; then families by how many frameworks run them; then one each: recomputation, replicas and
    micro-batches that are not alike, weights that replicas divide (ZeRO 3), ZeRO among part of them, options of the schedule,
    layers that stages share.
    """
    schedule = (
        3 if plan.order else 0 if len(plan.stages) == 1 or plan.schedule in SIMPLE else 1 + (plan.schedule not in USUAL)
    )
    unlike = (plan.recompute, plan.recomputed_blocks, plan.replicas, plan.microbatches)
    beside = plan.zero == 3, bool(plan.shard), bool(plan.options), bool(plan.splits)
    return schedule + sum(len(set(one)) > 1 for one in unlike) + sum(beside)


def own_order(plan: Plan, replayed: Replays) -> OwnOrder | None:
    """The note of a plan that has an order of its own."""
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
    """The note of the simplest plan that is nearly as fast, the fastest of these; None where the answer is as simple."""
    seconds = replayed[plan].iteration_seconds
    near = [one for one, score in replayed.items() if score.iteration_seconds <= seconds * (1.0 + WITHIN)]
    simplest = min(near, key=lambda one: (complexity(one), replayed[one].key))
    if complexity(simplest) >= complexity(plan):
        return None
    words, other = plan_words(problem, simplest), replayed[simplest].iteration_seconds
    return SimplerPlan(f"simpler, and {_slower(other, seconds)}: {words}", words, other)


def passes_devices(plan: Plan) -> bool:
    """Whether a plan has several ranks, which pass data to each other as a schedule says."""
    return len({stage.devices for stage in plan.stages}) > 1


def unordered(problem: Problem, plan: Plan, evaluate: Evaluator) -> Note | None:
    """The note of an answer under a schedule that was asked for: of one rank that no other was found; else the fastest plan of
    one rank, if it is faster.
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
    """The note of what other decisions lose, least first: of those that lose anything, without layers of stages."""
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
    """By how much one plan is slower than another, in words."""
    part = seconds / best - 1.0
    return f"{percent(part, '.0f' if part >= 0.1 else '.2g')} slower" if part > 0 else "as fast"
