"""Stage memory: how far a stage may reach within its device's memory, by weights and activations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator import LayerCosts, kept_bytes, kernel, largest_parts

ROUNDING = 1e-12
"""Relative; more than two sums of the same seconds in another order can differ by."""


def furthest_ends(
    costs: LayerCosts, devices: Sequence[int], samples: int, in_flight: Sequence[int], spare: Sequence[float] = ()
) -> NDArray[np.int64]:
    """The last layer before which a stage that begins at a layer may end within its device's memory, int64 [stages, layers + 1].

    Counted are weights, gradients and optimizer states, what `in_flight` samples leave behind in each stage, and, where the stage
    recomputes, what a micro-batch of `samples` makes again. spare: as in `straight_costs`
    """
    memory = tuple(costs.problem.cluster.devices[device].memory_bytes for device in devices)
    return _furthest_ends(costs, memory, samples, tuple(in_flight), tuple(spare) or (0.0,) * len(memory))


@lru_cache(maxsize=1)
def _furthest_ends(
    costs: LayerCosts,
    memory_bytes: tuple[float, ...],
    samples: int,
    in_flight: tuple[int, ...],
    spare: tuple[float, ...],
) -> NDArray[np.int64]:
    """`furthest_ends` by the memory of the devices; kept for the same stages on other devices."""
    problem, layers = costs.problem, len(costs.problem.workload)
    count = np.array(in_flight, dtype=np.float64)[:, None]
    state = costs.parameters * costs.member.state_bytes
    made = largest_parts(costs, problem.recompute) * samples if problem.recompute != "none" else np.zeros((0, 0))
    held = state + kept_bytes(costs, problem.recompute) * count
    before = np.concatenate([np.zeros_like(count), np.cumsum(held, axis=1)], axis=1)
    kept = costs.cut_bytes * count if problem.recompute == "whole" else 0.0
    memory, free = np.array([memory_bytes, spare])[:, :, None]
    room = memory * (1.0 + ROUNDING) - free - kept + before
    furthest = _last_within(before, room, made)
    # a stage that holds the user of a tied weight needs room for the copy, or ends before it
    for user, elements in _copied_weights(costs):
        room = room - np.where(user <= layers, elements * costs.member.state_bytes, 0.0)
        furthest = np.where(furthest > user, np.maximum(_last_within(before, room, made), user), furthest)
    return furthest


@kernel()
def _last_within(
    before: NDArray[np.float64], room: NDArray[np.float64], made: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The last layer before which a stage needs no more than its room, int64 [stages, layers + 1], by its first layer.

    before: bytes of the layers before each layer; room: what these may be at the stage's end; both float64 [stages, layers + 1]
    made: bytes that a stage of layers i to j - 1 makes again, float64 [layers + 1, layers + 1]; without rows for none
    """
    furthest = np.empty(room.shape, dtype=np.int64)
    for stage in range(len(room)):
        for begin in range(room.shape[1]):
            low, high = -1, before.shape[1]
            while high - low > 1:
                middle = (low + high) // 2
                again = made[begin, middle] if len(made) else 0.0
                if before[stage, middle] + again <= room[stage, begin]:
                    low = middle
                else:
                    high = middle
            furthest[stage, begin] = low
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
