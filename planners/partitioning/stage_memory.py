"""Stage memory: how far a stage may reach within its device's memory, by weights and activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator import LayerCosts

ROUNDING = 1e-12
"""Relative; more than two sums of the same seconds in another order can differ by."""


def furthest_ends(
    costs: LayerCosts, devices: Sequence[int], samples: int, in_flight: Sequence[int], spare: Sequence[float] = ()
) -> NDArray[np.int64]:
    """The last layer before which a stage that begins at a layer may end within its device's memory, int64 [stages, layers + 1].

    Counted are weights, gradients and optimizer states, what `in_flight` samples leave behind in each stage, and, where the stage
    recomputes, what a micro-batch of `samples` makes again. spare: as in `straight_costs`
    """
    problem, layers = costs.problem, len(costs.problem.workload)
    each = problem.state_bytes
    state = costs.parameters * each
    copies = _copied_weights(costs)
    inputs = costs.cut_bytes
    furthest = np.zeros((len(devices), layers + 1), dtype=np.int64)
    for stage, (device, count) in enumerate(zip(devices, in_flight, strict=True)):
        held = state + costs.stashed_bytes * (samples if problem.recompute else count)
        before = np.concatenate([[0.0], np.cumsum(held)])
        kept = inputs * count if problem.recompute else np.zeros(layers + 1)
        free = spare[stage] if len(spare) else 0.0
        room = problem.cluster.devices[device].memory_bytes * (1.0 + ROUNDING) - free - kept + before
        furthest[stage] = np.searchsorted(before, room, side="right") - 1
        for user, elements in copies:  # a stage that holds the user needs room for the copy, or ends before it
            room = room - np.where(user <= layers, elements * each, 0.0)
            shorter = np.maximum(np.searchsorted(before, room, side="right") - 1, user)
            furthest[stage] = np.where(furthest[stage] > user, shorter, furthest[stage])
    return furthest


def _copied_weights(costs: LayerCosts) -> list[tuple[NDArray[np.int64], float]]:
    """Of each tied weight, by a stage's first layer: the layer whose stage needs a copy (layers + 1: none), and its elements.

    That is the first user in the stage or behind it, where the owner stands before the stage.
    """
    layers = len(costs.problem.workload)
    starts = np.arange(layers + 1)
    found = []
    for tied in costs.tied_weights:
        users = np.array([*tied.layers, layers + 1])
        user = users[np.searchsorted(users, starts, side="left").clip(max=len(users) - 1)]
        found.append((np.where(starts > tied.layers[0], user, layers + 1), float(tied.parameters)))
    return found
