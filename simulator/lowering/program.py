"""Program: a schedule lowered to timed tasks on lanes, which the engines replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Channel, brief, counted
from simulator.costs.given import Route
from simulator.lowering.structure import Structure
from simulator.schedules.ops import LETTERS, OpKind

MOST_SECONDS = 1e300
"""Most seconds that all tasks and transfers of a program may take together."""


@dataclass(frozen=True, slots=True, eq=False)
class Deliveries:
    """Deliveries of tasks when they end: one per producer, transfer class and receiving lane. Without a transfer (class 0) one
    delivery serves all lanes at once.

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
    """Kind of a lane: what runs on it."""

    COMPUTE = 0
    COLLECTIVE = 1
    HOST = 2
    """The link of a device to its host."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Timed tasks, lane by lane in the order in which each lane runs them.

    A task starts when its lane is free and each of its dependencies has ended, plus the lag of that dependency's transfer.

    lane_offsets: int64 [lanes + 1]; the tasks of a lane are rows lane_offsets[l]:lane_offsets[l+1]
    lane_device, lane_kind: int32, int8 [lanes]
    lane_sharing: int32 [lanes]; lanes of one number >= 0 share their device's resources (processor sharing), -1 for a lane alone
    kind, stage, microbatch, replica: int8, int32, int32, int32 [tasks]
    first_sample, samples: int64 [tasks]; the range of samples that the task covers
    seconds: float64 [tasks]; duration alone on its lane
    dependency_offsets: int64 [tasks + 1]; the dependencies of a task are rows of `dependency` in that range
    dependency: int32 [dependencies]; the task that must have ended
    transfer: int32 [dependencies]; class of the transfer in between, 0 for none
    transfer_seconds, transfer_bytes: float64 [classes]; class 0 is nothing
    transfer_pair: int32 [classes] or None; number of the pair of devices between which each class moves; None: each between one
        of its own
    transfer_route: channels of each class; transfer_loads: how many times its bytes pass each of them, () is once
    transfer_copies: how many transfers a class stands for on each channel of its route, as `StandIns` says; () is one
    lane_route: channels that each task of a collective lane occupies
    lane_occupancy: share of a task's seconds for which it keeps each channel of `lane_route` busy; () is all of them
    channels: what the routes refer to
    least_seconds: float64 [tasks] or None; on lanes that share a device, what a task takes at least, because it sends while it
        computes; it then needs only the part seconds / least_seconds of the device
    sends: int32 [tasks] or None; transfer class that a send task carries over its route while the lane is busy, 0 for none
    together: int32 [tasks] or None; the task that each begins and ends with: for the second op of an overlapped pair, which takes
        no seconds of its own, the first; for every other the task itself
    transfer_slowdown: float64 [classes] or None; factor on the seconds of each channel of a route, contained in
        `transfer_seconds`; None is 1
    Raises ValueError where all seconds together are more than MOST_SECONDS, so that no sum of them can overflow.
    """

    lane_offsets: NDArray[np.int64]
    lane_device: NDArray[np.int32]
    lane_kind: NDArray[np.int8]
    lane_sharing: NDArray[np.int32]
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    replica: NDArray[np.int32]
    first_sample: NDArray[np.int64]
    samples: NDArray[np.int64]
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
    transfer_slowdown: NDArray[np.float64] | None = None
    together: NDArray[np.int32] | None = None
    transfer_loads: tuple[tuple[float, ...], ...] = ()
    transfer_pair: NDArray[np.int32] | None = None
    transfer_copies: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            total = self.seconds.sum() + self.transfer_seconds[self.transfer].sum()
            if self.least_seconds is not None:
                total += self.least_seconds.sum()
        if not total <= MOST_SECONDS:
            raise ValueError(
                f"the durations of {len(self)} tasks and their transfers must sum to at most {MOST_SECONDS:g} seconds, "
                f"got {total:g}"
            )

    def __len__(self) -> int:
        return len(self.seconds)

    def __repr__(self) -> str:
        return brief(self, f"{len(self)} tasks on {self.lanes} lanes, {len(self.dependency)} dependencies")

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
        return name_of(self, task)

    def hop_bandwidths(self, transfer: int) -> list[float]:
        """Bytes/s at which a transfer class passes each channel of its route."""
        route = self.transfer_route[transfer]
        loads = self.transfer_loads[transfer] if self.transfer_loads else ()
        pairs = zip(route, loads or (1.0,) * len(route), strict=True)
        return [self.channels[channel].bandwidth / load for channel, load in pairs]

    def lane_uses(self, lane: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Channels that each all-reduce of a lane keeps busy, and for which share of its seconds; none on other lanes."""
        if self.lane_kind[lane] != LaneKind.COLLECTIVE:
            return (), ()
        route = self.lane_route[lane]
        shares = (self.lane_occupancy[lane] if self.lane_occupancy else ()) or (1.0,) * len(route)
        used = [(channel, share) for channel, share in zip(route, shares, strict=True) if share > 0.0]
        return tuple(channel for channel, _ in used), tuple(share for _, share in used)

    def with_noise(self, spread: float, rng: np.random.Generator) -> Program:
        """Every duration times a log-normal factor of mean 1 and standard deviation `spread` of its logarithm.

        One factor for each task and for each delivery; a send and the receive behind it are one transfer and have the send's.
        """
        if not 0 <= spread < 2:
            raise ValueError(
                f"noise must be at least 0 and below 2 (standard deviation of the logarithm), got {spread}"
            )
        factor = rng.lognormal(-0.5 * spread * spread, spread, len(self))
        receives = np.flatnonzero(self.kind == OpKind.RECEIVE)
        factor[receives] = factor[self.dependency[self.dependency_offsets[receives]]]
        deliveries = self.deliveries()
        moving = np.flatnonzero(deliveries.transfer)
        sends = np.zeros(len(self), dtype=np.int32) if self.sends is None else self.sends
        sending = np.flatnonzero(sends)
        # From here on each delivery and each send has a transfer class of its own.
        before = np.concatenate([[0], deliveries.transfer[moving], sends[sending]])
        slower = rng.lognormal(-0.5 * spread * spread, spread, len(moving))
        slower = np.concatenate([[1.0], slower, factor[sending]])
        number = np.zeros(len(deliveries), dtype=np.int32)
        number[moving] = 1 + np.arange(len(moving))
        transfer = np.empty_like(self.transfer)
        transfer[deliveries.rows] = np.repeat(number, np.diff(deliveries.row_offsets))
        sends_now = np.zeros_like(sends)
        sends_now[sending] = 1 + len(moving) + np.arange(len(sending))
        slowdown = slower if self.transfer_slowdown is None else slower * self.transfer_slowdown[before]
        return replace(
            self,
            seconds=self.seconds * factor,
            least_seconds=None if self.least_seconds is None else self.least_seconds * factor,
            transfer=transfer,
            transfer_seconds=self.transfer_seconds[before] * slower,
            transfer_bytes=self.transfer_bytes[before],
            transfer_route=tuple(self.transfer_route[one] for one in before.tolist()),
            transfer_slowdown=slowdown,
            transfer_loads=tuple(self.transfer_loads[one] for one in before.tolist()) if self.transfer_loads else (),
            transfer_pair=None if self.transfer_pair is None else self.transfer_pair[before],
            sends=None if self.sends is None else sends_now,
        )


MOST_TOLD = 2
"""Devices that a line about a deadlock names: behind the path of a file it still is whole."""


def describe_deadlock(
    tasks: Program | Structure, lane_device: NDArray[np.integer], position: NDArray[np.int64], done: NDArray[np.bool_]
) -> str:
    """One line for the first lanes that are stuck: device, position, op, and what it waits for.

    lane_device: int [lanes]; position: int64 [lanes], the task that each lane came to; done: bool [tasks]
    """

    def place(task: int) -> str:
        lane = int(np.searchsorted(tasks.lane_offsets, task, side="right")) - 1
        return f"device {lane_device[lane]}, position {task - tasks.lane_offsets[lane]}"

    def needs(task: int) -> list[int]:
        needed: list[int] = tasks.dependency[
            tasks.dependency_offsets[task] : tasks.dependency_offsets[task + 1]
        ].tolist()
        return needed

    parts = []
    stuck = np.flatnonzero(position < tasks.lane_offsets[1:])
    for task in position[stuck[:MOST_TOLD]].tolist():
        need = next(need for need in needs(task) if not done[need])
        if tasks.together is not None and tasks.together[task + 1 : task + 2] == task and need in needs(task + 1):
            task += 1  # the second op of a pair, which needs it
        parts.append(f"{place(task)}: op {name_of(tasks, task)} waits for {name_of(tasks, need)} ({place(need)})")
    rest = len(stuck) - MOST_TOLD
    more = f"; {counted(rest, 'device')} more" if rest > 0 else ""
    return "deadlock: " + "; ".join(parts) + more


def name_of(tasks: Program | Structure, task: int) -> str:
    """The op of a task as text, as in `2F0`."""
    return f"{tasks.stage[task]}{LETTERS[tasks.kind[task]]}{tasks.microbatch[task]}"
