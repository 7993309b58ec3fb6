"""Permanent memory: bytes of weights, gradients and optimizer states that a device holds throughout a replay."""

from __future__ import annotations

import numpy as np

from hardware_profiles import Floats
from simulator.costs.plan_costs import PlanCosts
from simulator.engines.timeline import Timeline
from simulator.memory.device_memory import CATEGORIES
from simulator.memory.versions import COPY_RULES, version_table
from simulator.plans.plan import Plan, Problem, family_of
from simulator.schedules.ops import OpKind


def always_there(problem: Problem, elements: float, copies: int = 1, gradients: int = 1) -> Floats:
    """Whole bytes of weights, gradients and optimizer states on a device, float64 [len(CATEGORIES)].

    elements: weight elements; copies: of the weights; gradients: of how many rounds
    """
    weights, gradient = np.ceil(elements * problem.element_bytes), np.ceil(elements * problem.held_gradient_bytes)
    row = np.zeros(len(CATEGORIES))
    row[:4] = weights, weights * (copies - 1), gradient * gradients, np.ceil(elements * problem.optimizer_bytes)
    return row


def copy_bytes(costs: PlanCosts, place: tuple[int, int], copies: int, gradients: int) -> Floats:
    """`always_there` for the weights of a (stage, replica) on each of its devices, divided among replicas as its ZeRO stage says.

    Where it divides gradients, those of the unit in use and of the one that is scattered are buffers; where it divides weights,
    those of the unit in use and of the one that is gathered are, too.
    """
    plan = costs.plan
    row = always_there(costs.problem, costs.held_elements(*place), copies, gradients)
    replicas = costs.group(*place).replicas
    whole = always_there(costs.problem, costs.divided_elements(*place), copies, gradients) if replicas > 1 else row
    for category, least in (("weights", 3), ("gradients", 2), ("optimizer", 1)):
        if plan.zero >= least:
            number = CATEGORIES.index(category)
            row[number] = np.ceil(whole[number] / replicas)
    if replicas > 1 and (beside := costs.problem.master_beside(plan.zero)):
        row[CATEGORIES.index("optimizer")] += np.ceil(costs.divided_elements(*place) * beside / replicas)
    row[CATEGORIES.index("buffers")] = np.ceil(costs.unit_buffers(*place))
    return row


def copies_held(timeline: Timeline, plan: Plan, weight_versions: str) -> dict[tuple[int, int], tuple[int, int]]:
    """Copies of the weights and gradients that each (stage, replica) holds: one of each for a plan that flushes.

    Weight copies follow the rule of the plan's schedule family. With one lane per device the order of the ops decides them,
    whatever the times.
    """
    slots = [(number, replica) for number, stage in enumerate(plan.stages) for replica in range(len(stage.leads))]
    family = family_of(plan)
    if family is None or family.flush:
        return dict.fromkeys(slots, (1, 1))
    name = weight_versions if family.copies == "problem" else family.copies or "stashing"
    rule = COPY_RULES["pipedream" if name == "stashing" else name]
    table = version_table(timeline, 1 if name == "vertical-sync" else len(plan.microbatches))
    copies = rule(table).tolist()  # the replicas of a stage keep room for as many as the fullest of them
    gradients = dict.fromkeys(slots, 1) | (_gradient_copies(timeline) if plan.replication == "round-robin" else {})
    return {slot: (copies[slot[0]], gradients[slot]) for slot in slots}


def _gradient_copies(timeline: Timeline) -> dict[tuple[int, int], int]:
    """Gradients that each (stage, replica) holds at once where replicas take turns.

    It is the most mini-batches whose backward pass it has run and whose update it has not yet applied, at least one.
    """
    rows = np.flatnonzero(np.isin(timeline.kind, (OpKind.BACKWARD, OpKind.UPDATE)))
    name = np.stack([getattr(timeline, of)[rows].astype(np.int64) for of in ("stage", "replica", "kind", "microbatch")])
    _, first = np.unique(np.ravel_multi_index(tuple(name), tuple(name.max(axis=1) + 1)), return_index=True)
    first.sort()  # of a backward pass in parts, which buckets of gradients wait for, one op counts
    rows, of = rows[first], name[:2, first]
    rows = rows[order := np.lexsort(of[::-1])]
    starts = np.flatnonzero(np.diff(of[:, order], axis=1, prepend=-1).any(axis=0))
    pending = np.cumsum(np.where(timeline.kind[rows] == OpKind.BACKWARD, 1, -1))
    before = np.concatenate([[0], pending])[starts]
    most = np.maximum(1, np.maximum.reduceat(pending, starts) - before)
    slots = zip(*of[:, order[starts]].tolist(), strict=True)
    return dict(zip(slots, most.tolist(), strict=True))
