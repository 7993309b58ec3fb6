"""Replica traffic: seconds for which the replicas of stages move what they share, beside the passes of micro-batches and after
the last of them; in closed form, for many stages at once.

Gradients are reduced while the last backward runs, in buckets that are equally large but for the last (`PlanCosts.buckets` cuts
those of one plan layer by layer), or scattered unit by unit under every backward (ZeRO 2 and 3). Weights are gathered once behind
the update (ZeRO 1 and 2), or unit by unit in front of every pass (3).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from hardware_profiles import Floats, Integers, Operation
from simulator import BUCKET_BYTES, MOST_BUCKETS, Problem, Zero


class Moved(Protocol):
    """Seconds of a collective over weights, or their gradients, among all devices that hold the same ones."""

    def __call__(self, operation: Operation | Integers, elements: Floats, experts: Floats, size: float, /) -> Floats:
        """operation: of all stages, or of each; elements: of each; experts: those of them in routed experts; size: bytes per
        element.
        """


class StageWeights(NamedTuple):
    """Weight elements of stages on a device: all, those in routed experts, and per unit as in `StageCosts.units`."""

    elements: Floats
    experts: Floats
    units: Floats


def bucket_counts(gradient_bytes: Floats, problem: Problem) -> Floats:
    """Gradient buckets of stages with so many bytes of gradients; one if the problem reduces gradients whole."""
    if problem.gradient_reduction == "whole":
        return np.ones_like(gradient_bytes)
    return np.clip(gradient_bytes // BUCKET_BYTES, 1.0, MOST_BUCKETS)


def exposed_seconds(reduced: Floats, backward: Floats, buckets: Floats, last: Floats) -> Floats:
    """Seconds of reductions after the last backward: of the last bucket, and of others that the backward is too short to hide.

    reduced: seconds of all buckets of a stage; backward: of its last backward, under all but the last bucket; last: seconds of
    the last bucket
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
    """Seconds after the last backward in which gradients are reduced in buckets (ZeRO 0), or scattered so (1).

    front: elements of the layers in front of the blocks, which are in the last bucket; backward: seconds of the last backward
    """
    buckets = bucket_counts(elements * problem.accumulated_bytes, problem)
    reduced = buckets * moved(operation, elements / buckets, experts / buckets, problem.accumulated_bytes)
    last = reduced * np.clip(np.maximum(1.0 / buckets, front / np.maximum(elements, 1.0)), 0.0, 1.0)
    return exposed_seconds(reduced, backward, buckets, last)


def scattered_seconds(
    problem: Problem, moved: Moved, units: Floats, zero: Zero | Integers, tied: Floats | float = 0.0
) -> Floats:
    """Seconds after the last backward in which gradients of the last unit are scattered (ZeRO 2 and 3), and weights of the first
    one gathered for the next iteration (3); tied: elements that are reduced apart.
    """
    first, experts = units[..., 1], units[..., 2]
    scattered = moved(Operation.REDUCE_SCATTER, np.maximum(first - tied, 0.0), experts, problem.accumulated_bytes)
    gathered = moved(Operation.ALL_GATHER, first, experts, problem.element_bytes)
    return np.asarray(scattered + gathered * np.equal(zero, 3))


def gathered_seconds(problem: Problem, moved: Moved, elements: Floats, experts: Floats) -> Floats:
    """Seconds of the all-gather of weights after their update (ZeRO 1 and 2)."""
    return moved(Operation.ALL_GATHER, elements, experts, problem.element_bytes)


def unit_seconds(problem: Problem, moved: Moved, weights: StageWeights) -> tuple[Floats, Floats]:
    """Seconds of the all-gathers of weights and the reduce-scatters of gradients of stages, unit by unit."""
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
    """Seconds of a forward and of a backward whose weights are gathered meanwhile, and gradients scattered (ZeRO 2 and 3).

    Gradients of a unit are scattered while the next one computes. Where replicas divide weights, too, the next unit is gathered
    behind that: under the first unit of a forward, which follows a backward, and not under the first one of a backward.
    units: how many a stage has; exposed: the share of this that the problem's stack never hides
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
    """Seconds in which the optimizer updates so many elements; the line as in `StageCosts.update_line`."""
    return np.where(elements > 0.0, np.maximum(own + elements * element, least), 0.0)
