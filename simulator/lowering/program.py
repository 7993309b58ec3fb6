"""Program: a schedule lowered to timed tasks on lanes, which the engines replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Channel, Flags, Floats, Integers, brief, counted
from simulator.costs.given import Route
from simulator.lowering.structure import Structure
from simulator.options.disturbance_limits import check_noise
from simulator.schedules.ops import LETTERS, OpKind, among

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

    offsets: Integers
    transfer: NDArray[np.int32]
    row_offsets: Integers
    rows: Integers

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
    transfer_pair: int32 [classes]; number of the pair of devices between which each class moves
    transfer_route: channels of each class; transfer_loads: how many times its bytes pass each of them, () is once
    transfer_copies: how many transfers a class stands for on each channel of its route, as `StandIns` says; () is one
    lane_route: channels that each task of a collective lane occupies; () for every other lane
    lane_occupancy: share of a task's seconds for which it keeps each channel of `lane_route` busy; () is all of them
    channels: what the routes refer to
    least_seconds: float64 [tasks] or None; on lanes that share a device, what a task takes at least, because it sends while it
        computes; it then needs only the part seconds / least_seconds of the device
    sends: int32 [tasks] or None; transfer class that a send task carries over its route while the lane is busy, 0 for none
    together: int32 [tasks] or None; the task that each begins and ends with: for the second op of an overlapped pair, which takes
        no seconds of its own, the first; for every other the task itself
    overlap_slowdown: float64 [lanes] or None; how much longer a lane computes, as a part of its seconds, while a transfer from or
        to it, or a collective of its device, is under way: from when it is asked for until its last byte is there
    taking_part: lanes of the devices that run the collectives of each collective lane; () where no lane is slowed
    transfer_slowdown: float64 [classes] or None; factor on the seconds of each channel of a route, contained in
        `transfer_seconds`; None is 1
    Raises ValueError where all seconds together are more than MOST_SECONDS, so that no sum of them can overflow.
    """

    lane_offsets: Integers
    lane_device: NDArray[np.int32]
    lane_kind: NDArray[np.int8]
    lane_sharing: NDArray[np.int32]
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    replica: NDArray[np.int32]
    first_sample: Integers
    samples: Integers
    seconds: Floats
    dependency_offsets: Integers
    dependency: NDArray[np.int32]
    transfer: NDArray[np.int32]
    transfer_seconds: Floats
    transfer_bytes: Floats
    transfer_route: tuple[Route, ...]
    transfer_pair: NDArray[np.int32]
    transfer_loads: tuple[tuple[float, ...], ...]
    lane_route: tuple[Route, ...]
    lane_occupancy: tuple[tuple[float, ...], ...]
    channels: tuple[Channel, ...]
    least_seconds: Floats | None = None
    sends: NDArray[np.int32] | None = None
    transfer_slowdown: Floats | None = None
    together: NDArray[np.int32] | None = None
    transfer_copies: tuple[tuple[int, ...], ...] = ()
    overlap_slowdown: Floats | None = None
    taking_part: tuple[tuple[int, ...], ...] = ()

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

    def lane_groups(self) -> NDArray[np.int32]:
        """int32 [lanes]: `lane_sharing`, and a number of its own for each lane that is alone and that communication slows."""
        groups = self.lane_sharing.copy()
        if self.overlap_slowdown is not None:
            alone = np.flatnonzero((groups < 0) & (self.overlap_slowdown > 0.0))
            groups[alone] = groups.max(initial=-1) + 1 + np.arange(len(alone), dtype=np.int32)
        return groups

    def alone(self) -> Program:
        """The program without slowdowns of lanes that communicate: no replay of it takes longer than one with them."""
        return self if self.overlap_slowdown is None else replace(self, overlap_slowdown=None, taking_part=())

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
        pairs = zip(route, self.transfer_loads[transfer] or (1.0,) * len(route), strict=True)
        return [self.channels[channel].bandwidth / load for channel, load in pairs]

    def lane_uses(self, lane: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Channels that each all-reduce of a lane keeps busy, and for which share of its seconds; none on other lanes."""
        route = self.lane_route[lane]
        shares = self.lane_occupancy[lane] or (1.0,) * len(route)
        used = [(channel, share) for channel, share in zip(route, shares, strict=True) if share > 0.0]
        return tuple(channel for channel, _ in used), tuple(share for _, share in used)

    def computing(self) -> Flags:
        """bool [tasks]: tasks of lanes that compute, but for those that send and receive."""
        moving = among(self.kind, (OpKind.SEND, OpKind.RECEIVE))
        return np.asarray((self.lane_kind == LaneKind.COMPUTE)[self.lane_of_task()] & ~moving)


@dataclass(frozen=True, slots=True, eq=False)
class NoisyProgram:
    """A program of which every task, every delivery and every send may take times a factor of its own.

    base: the program, with a transfer class for each delivery and send
    of_task: int64 [tasks]; of_class: int64 [classes of `base`]; the number of the factor of each
    drawn: how many factors are drawn; behind them stands a 1, the factor of class 0, which is nothing
    """

    base: Program
    of_task: Integers
    of_class: Integers
    drawn: int

    def factors(self, spread: float, rng: np.random.Generator, rows: int) -> Floats:
        """Factors of so many replays, float64 [rows, drawn + 1]: log-normal, of mean 1, `spread` that of their logarithm.

        Row by row in the order of the generator's numbers, however many are drawn at once.
        """
        check_noise(spread)
        factors = np.ones((rows, self.drawn + 1))
        factors[:, :-1] = rng.lognormal(-0.5 * spread * spread, spread, (rows, self.drawn))
        return factors

    def program(self, factors: Floats) -> Program:
        """The program with one row of factors."""
        base, of_task, slower = self.base, factors[self.of_task], factors[self.of_class]
        return replace(
            base,
            seconds=base.seconds * of_task,
            least_seconds=None if base.least_seconds is None else base.least_seconds * of_task,
            transfer_seconds=base.transfer_seconds * slower,
            transfer_slowdown=slower if base.transfer_slowdown is None else slower * base.transfer_slowdown,
        )


def noisy_program(program: Program) -> NoisyProgram:
    """The program with a factor for each task, then one for each delivery that moves; a send and the receive behind it are one
    transfer and have the send's."""
    of_task = np.arange(len(program))
    receives = np.flatnonzero(program.kind == OpKind.RECEIVE)
    of_task[receives] = program.dependency[program.dependency_offsets[receives]]
    deliveries = program.deliveries()
    moving = np.flatnonzero(deliveries.transfer)
    sends = np.zeros(len(program), dtype=np.int32) if program.sends is None else program.sends
    sending = np.flatnonzero(sends)
    drawn = len(program) + len(moving)
    before = np.concatenate([[0], deliveries.transfer[moving], sends[sending]])
    number = np.zeros(len(deliveries), dtype=np.int32)
    number[moving] = 1 + np.arange(len(moving))
    transfer = np.empty_like(program.transfer)
    transfer[deliveries.rows] = np.repeat(number, np.diff(deliveries.row_offsets))
    sends_now = np.zeros_like(sends)
    sends_now[sending] = 1 + len(moving) + np.arange(len(sending))
    slowdown = program.transfer_slowdown
    base = replace(
        program,
        transfer=transfer,
        transfer_seconds=program.transfer_seconds[before],
        transfer_bytes=program.transfer_bytes[before],
        transfer_route=tuple(program.transfer_route[one] for one in before.tolist()),
        transfer_slowdown=None if slowdown is None else slowdown[before],
        transfer_loads=tuple(program.transfer_loads[one] for one in before.tolist()),
        transfer_pair=program.transfer_pair[before],
        sends=None if program.sends is None else sends_now,
    )
    of_class = np.concatenate([[drawn], np.arange(len(program), drawn), of_task[sending]])
    return NoisyProgram(base, of_task, of_class, drawn)


MOST_TOLD = 2
"""Devices that a line about a deadlock names: behind the path of a file it still is whole."""


def describe_deadlock(
    tasks: Program | Structure, lane_device: NDArray[np.integer], position: Integers, done: Flags
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
