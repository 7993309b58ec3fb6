"""Replica traffic: seconds of collectives among the replicas of stages, under the passes of micro-batches and after the last of
them; in closed form, for many stages at once.

Gradients are reduced while the last backward runs, in buckets that are equally large but for the last (`PlanCosts.buckets` cuts
those of one plan layer by layer), or scattered unit by unit under every backward (ZeRO 2 and 3). Weights are gathered once behind
the update (ZeRO 1 and 2), or unit by unit in front of every pass (3). A unit is what is gathered or scattered at once.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from hardware_profiles import Floats, Integers, Operation
from simulator import BUCKET_BYTES, MOST_BUCKETS, Problem, Zero


class Moved(Protocol):
    """Function: seconds of a collective over weights, or their gradients, among all devices that hold the same weights."""

    def __call__(self, operation: Operation | Integers, elements: Floats, experts: Floats, size: float, /) -> Floats:
        """Seconds of the collective, float64 by stage.

        operation: of all stages, or of each; elements: of each stage; experts: how many of them are in routed experts; size:
        bytes per element
        """


class StageWeights(NamedTuple):
    """Weight elements of stages on a device: all, those in routed experts, and by unit as of `StageCosts.units`."""

    elements: Floats
    experts: Floats
    units: Floats


def bucket_counts(gradient_bytes: Floats, problem: Problem) -> Floats:
    """Numbers of gradient buckets of stages; 1 if the problem reduces gradients whole. gradient_bytes: of each stage"""
    if problem.gradient_reduction == "whole":
        return np.ones_like(gradient_bytes)
    return np.clip(gradient_bytes // BUCKET_BYTES, 1.0, MOST_BUCKETS)


def exposed_seconds(reduced: Floats, backward: Floats, buckets: Floats, last: Floats) -> Floats:
    """Seconds of reductions after the last backward: of the last bucket, or of more where the backward is too short to hide the
    others.

    reduced: seconds of all buckets of a stage; backward: of its last backward, which hides all but the last bucket; last: of that
    bucket
    """
    return np.maximum(last, reduced - backward * (1.0 - 1.0 / buckets))


def reduced_seconds(
    problem: Problem,
    moved: Moved,
    elements: Floats,
    experts: Floats,
    front: Floats,
    backward: Floats,
    operation: Operation | Integers,
) -> Floats:
    """Seconds after the last backward until gradients are reduced (ZeRO 0) or scattered (1), in buckets; by stage.

    elements, experts: of each stage; front: elements of the layers in front of the blocks, which the last bucket has
    backward: seconds of each stage's last backward
    """
    buckets = bucket_counts(elements * problem.accumulated_bytes, problem)
    reduced = buckets * moved(operation, elements / buckets, experts / buckets, problem.accumulated_bytes)
    last = reduced * np.clip(np.maximum(1.0 / buckets, front / np.maximum(elements, 1.0)), 0.0, 1.0)
    return exposed_seconds(reduced, backward, buckets, last)


def scattered_seconds(
    problem: Problem, moved: Moved, units: Floats, zero: Zero | Integers, tied: Floats | float = 0.0
) -> Floats:
    """Seconds after the last backward until the last unit's gradients are scattered (ZeRO 2 and 3) and the first unit's weights
    gathered for the next iteration (3).

    units: as of `StageCosts.units`; tied: elements that are reduced apart
    """
    first, experts = units[..., 1], units[..., 2]
    scattered = moved(Operation.REDUCE_SCATTER, np.maximum(first - tied, 0.0), experts, problem.accumulated_bytes)
    gathered = moved(Operation.ALL_GATHER, first, experts, problem.element_bytes)
    return np.asarray(scattered + gathered * np.equal(zero, 3))


def gathered_seconds(problem: Problem, moved: Moved, elements: Floats, experts: Floats) -> Floats:
    """Seconds of the all-gather of weights after their update (ZeRO 1 and 2), by stage."""
    return moved(Operation.ALL_GATHER, elements, experts, problem.element_bytes)


def unit_seconds(problem: Problem, moved: Moved, weights: StageWeights) -> tuple[Floats, Floats]:
    """Seconds of all all-gathers of weights, and of all reduce-scatters of gradients, of each stage, unit by unit."""
    count = np.maximum(weights.units[..., 0], 1.0)
    parts = weights.elements / count, weights.experts / count
    return (
        count * moved(Operation.ALL_GATHER, *parts, problem.element_bytes),
        count * moved(Operation.REDUCE_SCATTER, *parts, problem.accumulated_bytes),
    )


def beside_traffic(
    forward: Floats,
    backward: Floats,
    gathers: Floats,
    scatters: Floats,
    units: Floats,
    zero: Zero,
    exposed: float = 0.0,
) -> tuple[Floats, Floats]:
    """Seconds of a forward and of a backward under which weights are gathered (ZeRO 3) and gradients scattered (ZeRO 2 and 3).

    forward, backward: seconds of the passes alone; gathers, scatters: of all units; units: number of them; exposed: the share of
    traffic that the problem's stack never hides
    Gradients of a unit are scattered while the next one computes. Where replicas divide weights, too, the next unit is gathered
    behind that: under the first unit of a forward, which follows a backward, and not under the first one of a backward.
    """
    if zero < 3:
        return forward, np.maximum(backward + exposed * scatters, scatters)
    first, both = 1.0 / np.maximum(units, 1.0), gathers + scatters
    forward, backward = forward + exposed * gathers, backward + exposed * both
    return (
        first * np.maximum(forward, both) + (1.0 - first) * np.maximum(forward, gathers),
        first * np.maximum(backward, gathers) + (1.0 - first) * np.maximum(backward, both),
    )


def update_seconds(elements: Floats, least: Floats | float, own: Floats | float, element: Floats | float) -> Floats:
    """Seconds of the optimizer's update of so many elements; least, own, element: the line of `StageCosts.update_line`"""
    return np.where(elements > 0.0, np.maximum(own + elements * element, least), 0.0)
