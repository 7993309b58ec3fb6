"""Chain program: the stages and links of an unequal pipeline as processes, lowered to a program.

A chain of processes passes every sample: computation 0, link 0, computation 1, …; the backward chain runs the other way. Each
process runs its own blocks of samples first in first out (UMPIPE, TPDS 36(2), 2025). A block starts when its lane is free and
the process before has delivered every sample that it covers. A stage has one lane for both directions, a link one for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.lowering.program import LaneKind, Program
from simulator.schedules.ops import LETTERS, OpKind
from simulator.schedules.unequal import Order


@dataclass(frozen=True, slots=True, eq=False)
class ChainProcess:
    """One process: its blocks in order, of any sizes (a ramp, too).

    sizes: int64 [blocks], samples, at least 1; seconds: float64 [blocks], at least 0
    """

    sizes: NDArray[np.int64]
    seconds: NDArray[np.float64]

    def __post_init__(self) -> None:
        sizes, seconds = np.asarray(self.sizes, dtype=np.int64), np.asarray(self.seconds, dtype=np.float64)
        if sizes.ndim != 1 or len(sizes) == 0 or sizes.min() < 1:
            raise ValueError(f"blocks of a process must be at least 1 sample each, got {sizes.tolist()}")
        if seconds.shape != sizes.shape or not (np.isfinite(seconds).all() and (seconds >= 0).all()):
            raise ValueError(f"a process needs {len(sizes)} finite durations of at least 0, got {seconds.tolist()}")
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "seconds", seconds)


def chain_process(samples: int, size: int, table: Sequence[float] | NDArray[np.float64]) -> ChainProcess:
    """A process of equal blocks (the last one may be smaller); `table[b]` seconds of a block of b samples."""
    sizes = np.full(-(-samples // size), size, dtype=np.int64)
    sizes[-1] = samples - (len(sizes) - 1) * size
    return ChainProcess(sizes, np.asarray(table, dtype=np.float64)[sizes])


def lower_chain(
    forward: Sequence[ChainProcess],
    backward: Sequence[ChainProcess] = (),
    orders: Sequence[Order] | None = None,
    devices: Sequence[int] | None = None,
) -> Program:
    """A program of K stages from 2K-1 processes a direction, each in chain order (backward: stage K-1 first).

    backward: none for the forward pass alone
    orders: of every stage's blocks, ("F", 3) is forward block 3; default all forwards, then all backwards (a flush)
    devices: of each stage; default numbered alike
    Lanes: the K stages, then forward links, then backward links. The ops of links are sends, numbered by their blocks.
    Raises ValueError for another number of processes, processes that cover different samples, and orders that lack or double
    blocks or change their sequence. An order that contradicts the data is a `DeadlockError` of the engines.
    """
    stages = (len(forward) + 1) // 2
    if len(forward) % 2 == 0 or len(backward) not in (0, len(forward)):
        raise ValueError(
            f"a chain has 2K-1 processes a direction, the backward one may be absent; got {len(forward)} and {len(backward)}"
        )
    if devices is not None and len(devices) != stages:
        raise ValueError(f"devices must be {stages}, one a stage, got {list(devices)}")
    processes = (*forward, *backward)
    ends = [np.cumsum(process.sizes) for process in processes]
    for number, one in enumerate(ends):
        if one[-1] != ends[0][-1]:
            raise ValueError(
                f"process {number} covers {one[-1]} samples, process 0 {ends[0][-1]}; all must cover the same"
            )
    lanes = _lanes(processes, stages, orders)
    owner = np.concatenate([process for process, _ in lanes])
    block = np.concatenate([index for _, index in lanes])
    offsets = np.concatenate([[0], np.cumsum([len(index) for _, index in lanes])]).astype(np.int64)
    task_of = [np.zeros(len(one), dtype=np.int64) for one in ends]
    for number, tasks in enumerate(task_of):
        rows = np.flatnonzero(owner == number)
        tasks[block[rows]] = rows
    producer = np.full(len(owner), -1, dtype=np.int64)
    for number in range(1, len(processes)):
        # The process before runs its blocks in order: the one that holds the last sample ends last.
        producer[task_of[number]] = task_of[number - 1][np.searchsorted(ends[number - 1], ends[number])]
    waits = producer >= 0
    place = np.concatenate([np.arange(len(forward)), np.arange(len(backward))])[owner]
    stage = np.where(owner < len(forward), place // 2, stages - 1 - place // 2)
    kind = np.where(owner < len(forward), OpKind.FORWARD, OpKind.BACKWARD)
    held = np.arange(stages) if devices is None else np.asarray(devices)
    samples, last, seconds = _columns(processes, ends, owner, block)
    return Program(
        lane_offsets=offsets,
        lane_device=held[stage[offsets[:-1]]].astype(np.int32),
        lane_kind=np.repeat(np.array([LaneKind.COMPUTE, LaneKind.LINK], dtype=np.int8), [stages, len(lanes) - stages]),
        lane_sharing=np.full(len(lanes), -1, dtype=np.int32),
        kind=np.where(place % 2, OpKind.SEND, kind).astype(np.int8),
        stage=stage.astype(np.int32),
        microbatch=block.astype(np.int32),
        replica=np.zeros(len(owner), dtype=np.int32),
        first_sample=last - samples,
        samples=samples,
        seconds=seconds,
        dependency_offsets=np.concatenate([[0], np.cumsum(waits)]).astype(np.int64),
        dependency=producer[waits].astype(np.int32),
        transfer=np.zeros(int(waits.sum()), dtype=np.int32),
        transfer_seconds=np.zeros(1),
        transfer_bytes=np.zeros(1),
        transfer_route=((),),
        lane_route=((),) * len(lanes),
    )


_Lane = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Process and block of every task of a lane."""


def _lanes(processes: Sequence[ChainProcess], stages: int, orders: Sequence[Order] | None) -> list[_Lane]:
    one_way = 2 * stages - 1
    both = len(processes) > one_way
    if orders is not None and len(orders) != stages:
        raise ValueError(f"orders must be {stages} lists, one a stage, got {len(orders)}")
    lanes: list[_Lane] = []
    for stage in range(stages):
        numbers = [2 * stage, *([2 * one_way - 1 - 2 * stage] if both else [])]
        counts = [len(processes[number].sizes) for number in numbers]
        if orders is None:
            index = np.concatenate([np.arange(count) for count in counts])
            lanes.append((np.repeat(numbers, counts), index))
        else:
            lanes.append(_ordered(stage, orders[stage], numbers, counts))
    links = [number for number in range(len(processes)) if number % one_way % 2]
    lanes += [(np.full(len(processes[n].sizes), n), np.arange(len(processes[n].sizes))) for n in links]
    return lanes


def _ordered(stage: int, order: Order, numbers: Sequence[int], counts: Sequence[int]) -> _Lane:
    letters = [LETTERS[OpKind.FORWARD], LETTERS[OpKind.BACKWARD]][: len(numbers)]
    for letter, count in zip(letters, counts, strict=True):
        if [index for kind, index in order if kind == letter] != list(range(count)):
            raise ValueError(f"the order of stage {stage} must hold its {count} {letter} blocks once each, in sequence")
    if len(order) != sum(counts):
        raise ValueError(f"the order of stage {stage} holds ops other than {' and '.join(letters)}")
    return np.array([numbers[letters.index(kind)] for kind, _ in order]), np.array([index for _, index in order])


def _columns(
    processes: Sequence[ChainProcess],
    ends: Sequence[NDArray[np.int64]],
    owner: NDArray[np.int64],
    block: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Samples, last sample and seconds of every task."""
    begins = np.concatenate([[0], np.cumsum([len(one) for one in ends])])[owner] + block
    sizes = np.concatenate([process.sizes for process in processes])[begins]
    seconds = np.concatenate([process.seconds for process in processes])[begins]
    return sizes, np.concatenate(list(ends))[begins], seconds
