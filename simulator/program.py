"""Program: a schedule lowered to timed tasks on lanes, which both engines replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Channel
from simulator.ops import LETTERS

Route = tuple[int, ...]
"""Channels that a transfer passes, in order; empty for a link of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Deliveries:
    """What tasks send when they end: one delivery for each producer, transfer class and receiving lane; what waits for a task
    without a transfer (class 0) is told at once, whatever its lane.

    offsets: int64 [tasks + 1]; the deliveries of a task, in the order of the first dependency that each serves
    transfer: int32 [deliveries]; class
    row_offsets: int64 [deliveries + 1]; rows: int64 [dependencies]; the dependencies that a delivery serves
    """

    offsets: NDArray[np.int64]
    transfer: NDArray[np.int32]
    row_offsets: NDArray[np.int64]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.transfer)


class LaneKind(IntEnum):
    """What runs on a lane."""

    COMPUTE = 0
    COLLECTIVE = 1
    LINK = 2


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Timed tasks, lane by lane in the order in which each lane runs them.

    A task starts when its lane is free and each of its dependencies has ended, plus the lag of that dependency's transfer.

    lane_offsets: int64 [lanes + 1]; the tasks of a lane are rows lane_offsets[l]:lane_offsets[l+1]
    lane_device, lane_kind: int32, int8 [lanes]
    lane_sharing: int32 [lanes]; lanes of one number >= 0 share their device's resources (processor sharing), -1 for a lane alone
    kind, stage, microbatch, replica: int8, int32, int32, int32 [tasks]
    first_sample, samples: int32 [tasks]; the range of samples that the task covers
    seconds: float64 [tasks]; duration alone on its lane
    dependency_offsets: int64 [tasks + 1]; the dependencies of a task are rows of `dependency` in that range
    dependency: int32 [dependencies]; the task that must have ended
    transfer: int32 [dependencies]; class of the transfer in between, 0 for none
    transfer_seconds, transfer_bytes: float64 [classes]; class 0 is nothing
    transfer_route: channels of each class
    lane_route: channels that each task of a collective lane occupies
    lane_occupancy: share of a task's seconds for which it keeps each channel of `lane_route` busy; () is all of them
    channels: what the routes refer to
    least_seconds: float64 [tasks] or None; on lanes that share a device, what a task takes at least, because it sends while it
        computes; it then needs only the part seconds / least_seconds of the device
    sends: int32 [tasks] or None; transfer class that a send task carries over its route while the lane is busy, 0 for none
    """

    lane_offsets: NDArray[np.int64]
    lane_device: NDArray[np.int32]
    lane_kind: NDArray[np.int8]
    lane_sharing: NDArray[np.int32]
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    replica: NDArray[np.int32]
    first_sample: NDArray[np.int32]
    samples: NDArray[np.int32]
    seconds: NDArray[np.float64]
    dependency_offsets: NDArray[np.int64]
    dependency: NDArray[np.int32]
    transfer: NDArray[np.int32]
    transfer_seconds: NDArray[np.float64]
    transfer_bytes: NDArray[np.float64]
    transfer_route: tuple[Route, ...]
    lane_route: tuple[Route, ...]
    channels: tuple[Channel, ...] = ()
    lane_occupancy: tuple[tuple[float, ...], ...] = ()
    least_seconds: NDArray[np.float64] | None = None
    sends: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return len(self.lane_offsets) - 1

    def lane_of_task(self) -> NDArray[np.int32]:
        """int32 [tasks]: the lane of each task."""
        return np.repeat(np.arange(self.lanes, dtype=np.int32), np.diff(self.lane_offsets))

    def consumers(self) -> NDArray[np.int32]:
        """int32 [dependencies]: the task that each dependency belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.dependency_offsets))

    def deliveries(self) -> Deliveries:
        """The dependencies by what carries them."""
        producer, transfer = self.dependency.astype(np.int64), self.transfer
        receiver = np.where(transfer > 0, self.lane_of_task()[self.consumers()] + 1, 0)
        key = (producer * len(self.transfer_seconds) + transfer) * (self.lanes + 1) + receiver
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        order = np.lexsort((first, producer[first]))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        group = place[group]
        return Deliveries(
            offsets=np.searchsorted(producer[first][order], np.arange(len(self) + 1)),
            transfer=transfer[first][order],
            row_offsets=np.concatenate([[0], np.cumsum(np.bincount(group, minlength=len(order)))]).astype(np.int64),
            rows=np.argsort(group, kind="stable"),
        )

    def name_of(self, task: int) -> str:
        """The op of a task as text, as in `2F0`."""
        return f"{self.stage[task]}{LETTERS[self.kind[task]]}{self.microbatch[task]}"

    def with_seconds(self, seconds: NDArray[np.float64]) -> Program:
        """The same program with other durations, float64 [tasks], at least 0."""
        if seconds.shape != self.seconds.shape:
            raise ValueError(f"durations must have shape {self.seconds.shape}, got {seconds.shape}")
        if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
            raise ValueError("durations must be finite and at least 0")
        return replace(self, seconds=np.ascontiguousarray(seconds, dtype=np.float64))

    def with_noise(self, spread: float, rng: np.random.Generator) -> Program:
        """Every duration times a log-normal factor of mean 1 and standard deviation `spread` of its logarithm."""
        if not 0 <= spread < 2:
            raise ValueError(
                f"noise must be at least 0 and below 2 (standard deviation of the logarithm), got {spread}"
            )
        factor = rng.lognormal(-0.5 * spread * spread, spread, len(self))
        return self.with_seconds(self.seconds * factor)


class DeadlockError(ValueError):
    """A program whose lanes wait for each other; names the lanes, positions and ops."""


def describe_deadlock(program: Program, position: NDArray[np.int64], done: NDArray[np.bool_]) -> str:
    """One line for the first lanes that are stuck: device, position, op, and what it waits for."""
    lane_of_task = program.lane_of_task()
    parts = []
    stuck = np.flatnonzero(position < program.lane_offsets[1:])
    for lane in stuck[:3]:
        task = int(position[lane])
        needs = program.dependency[program.dependency_offsets[task] : program.dependency_offsets[task + 1]]
        need = int(next(need for need in needs if not done[need]))
        parts.append(
            f"device {program.lane_device[lane]}, position {task - program.lane_offsets[lane]}: op {program.name_of(task)} waits "
            f"for {program.name_of(need)} (device {program.lane_device[lane_of_task[need]]}, "
            f"position {need - program.lane_offsets[lane_of_task[need]]})"
        )
    more = f"; and {len(stuck) - 3} devices more" if len(stuck) > 3 else ""
    return "deadlock: " + "; ".join(parts) + more
