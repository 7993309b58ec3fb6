"""Timeline: what happened when, as columns, and the measures read off it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Flags, Floats, Integers, brief
from simulator.lowering.program import LaneKind, Program
from simulator.schedules.ops import OpKind, computes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Bubble:
    """Idle time under its three names; all are fractions.

    idle_over_makespan: idle device-seconds / (devices · makespan)
    over_ideal: (makespan - ideal) / ideal, ideal = compute seconds of the busiest device
    longest_stage: 1 - ideal / max over devices of (last end - first start) (the zero-bubble papers' measure)
    """

    idle_over_makespan: float
    over_ideal: float
    longest_stage: float


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Start and end of every task of a program, one row per task, lane by lane in the lanes' order.

    lane, device, stage, microbatch, replica: int32 [tasks]; kind: int8 [tasks] (OpKind)
    first_sample, samples: int64 [tasks]
    start, end: float64 [tasks], seconds
    lane_kind: int8 [lanes] (LaneKind)
    transfers: what moved between devices, where the engine recorded it
    lane_sharing: int32 [lanes], as in `Program`; None where no lanes share a device
    together: int32 [tasks], as in `Program`; None where no ops overlap
    """

    lane: NDArray[np.int32]
    device: NDArray[np.int32]
    stage: NDArray[np.int32]
    kind: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    replica: NDArray[np.int32]
    first_sample: Integers
    samples: Integers
    start: Floats
    end: Floats
    lane_kind: NDArray[np.int8]
    transfers: Transfers
    lane_sharing: NDArray[np.int32] | None = None
    together: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        return brief(self, f"{len(self)} tasks on {len(self.lane_kind)} lanes, makespan {self.makespan_seconds:.6g} s")

    @property
    def makespan_seconds(self) -> float:
        """End of the last task."""
        return float(self.end.max()) if len(self.end) else 0.0

    def compute(self) -> Flags:
        """bool [tasks]: rows that are F, B, I, W, or the forward again."""
        return computes(self.kind)

    def second_of_pair(self) -> Flags:
        """bool [tasks]: rows that are the second op of an overlapped pair; their start and end are the first one's."""
        return np.zeros(len(self), dtype=np.bool_) if self.together is None else self.together != np.arange(len(self))

    @property
    def ops(self) -> int:
        """Number of compute ops."""
        return int(np.count_nonzero(self.compute()))

    def devices(self) -> NDArray[np.int32]:
        """Ids of the devices that compute, rising."""
        return np.unique(self.device[self.compute()])

    def busy_seconds(self) -> Floats:
        """Compute seconds of each device of `devices()`.

        Where lanes share a device, the seconds in which any of them computes; where they divide it in fixed shares, the mean of
        its lanes (forward and backward take equally long on their shares, which sum to the device). A pair counts once.
        """
        rows = self.compute() & ~self.second_of_pair()
        devices, index = np.unique(self.device[rows], return_inverse=True)
        busy = np.bincount(index, weights=(self.end - self.start)[rows], minlength=len(devices))
        if self.lane_sharing is not None:
            for position, device in enumerate(devices):
                here = np.flatnonzero(rows & (self.device == device))
                lanes = np.unique(self.lane[here])
                if (self.lane_sharing[lanes] >= 0).any():
                    busy[position] = _covered_seconds(self.start[here], self.end[here])
                else:
                    busy[position] /= len(lanes)
        return busy.astype(np.float64)

    def bubble(self) -> Bubble:
        """The three bubble measures (updates, transfers and all-reduces count as idle)."""
        rows = self.compute()
        devices, index = np.unique(self.device[rows], return_inverse=True)
        makespan = self.makespan_seconds
        busy = self.busy_seconds()
        ideal = float(busy.max(initial=0.0))
        if ideal == 0.0:
            return Bubble(0.0, 0.0, 0.0)
        first = np.full(len(devices), np.inf)
        last = np.full(len(devices), -np.inf)
        np.minimum.at(first, index, self.start[rows])
        np.maximum.at(last, index, self.end[rows])
        return Bubble(
            idle_over_makespan=float(1.0 - busy.sum() / (len(devices) * makespan)),
            over_ideal=(makespan - ideal) / ideal,
            longest_stage=float(1.0 - ideal / (last - first).max()),
        )

    def peak_in_flight(self, *, unit: str = "microbatches") -> Integers:
        """Most micro-batches (or samples, `unit="samples"`) that each device of `devices()` held at once.

        One is held from the start of its forward to the end of its backward (of its weight gradient where backward is split).
        """
        if unit not in ("microbatches", "samples"):
            raise ValueError(f"unit {unit!r} is unknown; choices: microbatches, samples")
        change = np.zeros(len(self), dtype=np.int64)
        begins = self.kind == OpKind.FORWARD
        ends = (self.kind == OpKind.BACKWARD) | (self.kind == OpKind.WEIGHT_GRADIENT)
        # Parts of an op that collectives cut take their micro-batch with the first, and free it with the last.
        same = (self.lane[1:] == self.lane[:-1]) & (self.kind[1:] == self.kind[:-1])
        same &= (self.stage[1:] == self.stage[:-1]) & (self.microbatch[1:] == self.microbatch[:-1])
        begins[1:] &= ~same
        ends[:-1] &= ~same
        weight = self.samples if unit == "samples" else np.ones(len(self), dtype=np.int64)
        change[begins], change[ends] = weight[begins], -weight[ends]
        peaks = []
        for device in self.devices():
            rows = np.flatnonzero((self.device == device) & (change != 0))
            order = np.lexsort((change[rows], np.where(change[rows] > 0, self.start[rows], self.end[rows])))
            in_lane_order = len(np.unique(self.lane[rows])) == 1
            steps = change[rows] if in_lane_order else change[rows][order]
            peaks.append(int(np.cumsum(steps).max()))
        return np.array(peaks, dtype=np.int64)

    @property
    def frame(self) -> pd.DataFrame:
        """The columns as a pandas DataFrame, one row per task."""
        import pandas as pd

        names = (
            "lane",
            "device",
            "stage",
            "kind",
            "microbatch",
            "replica",
            "first_sample",
            "samples",
            "start",
            "end",
        )
        return pd.DataFrame({name: getattr(self, name) for name in names})


def _covered_seconds(start: Floats, end: Floats) -> float:
    """Seconds that at least one of the intervals covers."""
    order = np.argsort(start, kind="stable")
    reached = np.maximum.accumulate(end[order])
    before = np.concatenate([start[order][:1], reached[:-1]])
    return float(np.maximum(reached - np.maximum(before, start[order]), 0.0).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Transfers between devices, one row each; empty columns where none moved.

    producer, consumer: int32, tasks of the timeline (the first consumer where several wait for one transfer)
    start, end: float64 seconds: when the producer had ended, and when the last byte arrived
    size_bytes: float64
    """

    producer: NDArray[np.int32]
    consumer: NDArray[np.int32]
    start: Floats
    end: Floats
    size_bytes: Floats

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        return brief(self, f"{len(self)}, {self.size_bytes.sum() / 1e6:.4g} MB")


def timeline_of(
    program: Program,
    start: Floats,
    end: Floats,
    arrival: Floats | None = None,
) -> Timeline:
    """Join a program with the times an engine found.

    arrival: float64 [dependencies], when each dependency's data had arrived; default end of the producer plus the class's seconds
    """
    lane = program.lane_of_task()
    transfers = _transfers(program, lane, start, end, arrival)
    if program.together is not None:
        start = start[program.together]
    return Timeline(
        lane=lane,
        device=program.lane_device[lane],
        stage=program.stage,
        kind=program.kind,
        microbatch=program.microbatch,
        replica=program.replica,
        first_sample=program.first_sample,
        samples=program.samples,
        start=start,
        end=end,
        lane_kind=program.lane_kind,
        transfers=transfers,
        lane_sharing=program.lane_sharing if _several_lanes(program) else None,
        together=program.together,
    )


def _several_lanes(program: Program) -> bool:
    """Whether some device has more than one compute lane."""
    devices = program.lane_device[program.lane_kind == LaneKind.COMPUTE]
    return len(np.unique(devices)) < len(devices)


def _transfers(
    program: Program,
    lane: NDArray[np.int32],
    start: Floats,
    end: Floats,
    arrival: Floats | None,
) -> Transfers:
    moves = moves_of(program)
    size = program.transfer_bytes[moves.transfer]
    if program.sends is not None:
        return Transfers(moves.producer, moves.consumer, start[moves.row], end[moves.row], size)
    made = end[moves.producer]
    reached = made + program.transfer_seconds[moves.transfer] if arrival is None else arrival[moves.row]
    return Transfers(moves.producer, moves.consumer, made, reached, size)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """The transfers of a program, one row each, as in `Transfers`; transfer: int32, their classes.

    row: int64; the dependency that each serves, or where transfers occupy lanes (`Program.sends`) the task that sends
    """

    producer: NDArray[np.int32]
    consumer: NDArray[np.int32]
    transfer: NDArray[np.int32]
    row: Integers


def _borrowed(program: Program, consumers: NDArray[np.int32]) -> Flags:
    """bool [dependencies]: those that the first op of an overlapped pair has on behalf of the second."""
    if program.together is None:
        return np.zeros(len(consumers), dtype=np.bool_)
    key = program.dependency.astype(np.int64) * len(program)
    second = np.flatnonzero(program.together[consumers] != consumers)
    return np.isin(key + consumers, key[second] + program.together[consumers[second]])


def moves_of(program: Program) -> Moves:
    """The moves of a program: one per producer and receiving lane; if transfers are tasks, one per send and receive."""
    consumers = program.consumers()
    if program.sends is None:
        moving = np.flatnonzero((program.transfer > 0) & ~_borrowed(program, consumers))
        key = program.dependency[moving].astype(np.int64) * program.lanes + program.lane_of_task()[consumers[moving]]
        _, first = np.unique(key, return_index=True)
        rows = moving[first]
        return Moves(program.dependency[rows], consumers[rows], program.transfer[rows], rows)
    sending = np.flatnonzero(program.sends)
    producer = sending.copy()
    while (again := program.kind[producer] == OpKind.SEND).any():
        producer[again] -= 1
    order = np.argsort(program.dependency, kind="stable")
    consumer = consumers[order[np.searchsorted(program.dependency[order], sending)]].astype(np.int64)
    while (again := program.kind[consumer] == OpKind.RECEIVE).any():
        consumer[again] += 1
    return Moves(producer.astype(np.int32), consumer.astype(np.int32), program.sends[sending], sending)
