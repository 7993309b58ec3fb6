"""Looped schedules: a device holds every `devices`-th stage (device d holds stages d, d + devices, …)."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Bounds
from simulator.schedules.flushed import alternated
from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Columns, Schedule, from_columns
from simulator.schedules.zero_bubble import with_weight_gradients

Count = Annotated[int, Bounds(ge=1)]


def _devices(name: str, stages: int, chunks: int) -> int:
    if chunks < 1:
        raise ValueError(f"chunks (stages per device) must be at least 1, got {chunks}")
    if stages % chunks:
        raise ValueError(
            f"{name} needs stages divisible by chunks (stages per device), got {stages} stages and {chunks} chunks"
        )
    return stages // chunks


def _virtual_order(groups: list[int], chunks: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Chunk and micro-batch of each forward of a device: each group of micro-batches passes chunk after chunk."""
    chunk = np.concatenate([np.repeat(np.arange(chunks, dtype=np.int32), group) for group in groups])
    begins = np.concatenate([[0], np.cumsum(groups)])
    within = [np.tile(np.arange(*ends, dtype=np.int32), chunks) for ends in pairwise(begins.tolist())]
    return chunk, np.concatenate(within)


@lru_cache(maxsize=1 << 14)
def least_group(microbatches: int, devices: int) -> int:
    """The fewest micro-batches of a group that leave at least one per device for the last one; of fewer than devices, these."""
    sizes = range(devices, max(microbatches, devices) + 1)
    return next(size for size in sizes if is_group(size, microbatches, devices) or size >= microbatches)


def is_group(size: int, microbatches: int, devices: int) -> bool:
    """Whether groups of so many micro-batches, the last one too, have at least one per device (Megatron-LM's rule)."""
    return devices <= size and not 0 < microbatches % size < devices


def _groups(microbatches: int, devices: int, group: int | None) -> list[int]:
    """Sizes of the groups: of `group` micro-batches each, the last of the rest."""
    size = least_group(microbatches, devices) if group is None else min(group, max(microbatches, devices))
    if not is_group(size, max(microbatches, devices), devices):
        raise ValueError(
            f"each group of micro-batches has at least one per device, {devices} here, got groups of {group} of "
            f"{microbatches} micro-batches; the least that may be: {least_group(microbatches, devices)}"
        )
    whole, rest = divmod(max(microbatches, devices), size)
    return [size] * whole + [rest] * (rest > 0)


def interleaved_one_forward_one_backward(
    stages: int, microbatches: int, chunks: Count = 2, microbatch_group_size: Count | None = None
) -> Schedule:
    """Megatron-LM's interleaved 1F1B (Narayanan et al. 2021, section 2.2).

    microbatch_group_size: micro-batches g that pass a chunk before the next chunk has its turn; p devices have at least p of them
        in each group, in the last one, too; by default as few as may be, as torch has it: more hide transfers, and cost memory
    Device d of p warms up with 2(p-1-d) + (chunks-1)·g forwards and then alternates. With less than p micro-batches the order is
    the one for p of them without the ops of those that are not there: leaving ops out of an order that runs cannot make it
    deadlock.
    """
    ranks = _interleaved("interleaved-1f1b", stages, microbatches, chunks, microbatch_group_size, hop=2)
    return from_columns("interleaved-1f1b", stages, microbatches, ranks)


def interleaved_zero_bubble(
    stages: int, microbatches: int, chunks: Count = 2, microbatch_group_size: Count | None = None
) -> Schedule:
    """Interleaved 1F1B whose device d runs a weight gradient d input gradients later (torch's ScheduleInterleavedZeroBubble).

    Device d of p warms up with p-1-d + (chunks-1)·g forwards; g as of interleaved 1F1B. One chunk is ZB-H1.
    """
    ranks = _interleaved("interleaved-zb", stages, microbatches, chunks, microbatch_group_size, hop=1)
    split = [with_weight_gradients(columns, device) for device, columns in enumerate(ranks)]
    return from_columns("interleaved-zb", stages, microbatches, split)


def _interleaved(
    name: str, stages: int, microbatches: int, chunks: int, group: int | None, *, hop: int
) -> list[Columns]:
    """Forwards and backwards of each device; `hop`: forwards of a warm-up more than that of the next device."""
    devices = _devices(name, stages, chunks)
    groups = _groups(microbatches, devices, group)
    chunk, microbatch = _virtual_order(groups, chunks)
    forward, backward = np.full((2, len(chunk)), [[OpKind.FORWARD], [OpKind.BACKWARD]], dtype=np.int8)
    first, last = chunk * devices, (chunks - 1 - chunk) * devices  # stages of device 0

    def columns(device: int) -> Columns:
        warm_up = hop * (devices - 1 - device) + (chunks - 1) * groups[0]
        held, kind = alternated(first, last, warm_up) + device, alternated(forward, backward, warm_up)
        number = alternated(microbatch, microbatch, warm_up)
        if sum(groups) == microbatches:
            return held, kind, number
        real = number < microbatches
        return held[real], kind[real], number[real]

    return [columns(device) for device in range(devices)]


def looped_breadth_first(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """All micro-batches through each chunk in turn, backwards in the exact reverse order (Lamy-Poirier 2023)."""
    devices = _devices("looped-bfs", stages, chunks)
    chunk = np.repeat(np.arange(chunks, dtype=np.int32), microbatches)
    microbatch = np.tile(np.arange(microbatches, dtype=np.int32), chunks)
    kind = np.repeat(np.array([OpKind.FORWARD, OpKind.BACKWARD], dtype=np.int8), len(chunk))

    def columns(device: int) -> Columns:
        held = np.concatenate([chunk, chunk[::-1]]) * devices + device
        return held, kind, np.concatenate([microbatch, microbatch[::-1]])

    return from_columns("looped-bfs", stages, microbatches, [columns(device) for device in range(devices)])
