"""Looped schedules: a device holds every `devices`-th stage (device d holds stages d, d + devices, …)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.flushed import alternated
from simulator.schedules.ops import OpKind
from simulator.schedules.schedule import Columns, Schedule, from_columns


def _devices(name: str, stages: int, chunks: int) -> int:
    if chunks < 1:
        raise ValueError(f"chunks (stages a device) must be at least 1, got {chunks}")
    if stages % chunks:
        raise ValueError(
            f"{name} needs stages divisible by chunks (stages a device), got {stages} stages and {chunks} chunks"
        )
    return stages // chunks


def _virtual_order(devices: int, microbatches: int, chunks: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Chunk and micro-batch of each forward of a device: groups of `devices` micro-batches pass chunk after chunk."""
    groups = microbatches // devices
    chunk = np.tile(np.repeat(np.arange(chunks, dtype=np.int32), devices), groups)
    within = np.tile(np.arange(devices, dtype=np.int32), groups * chunks)
    return chunk, within + np.repeat(np.arange(groups, dtype=np.int32) * devices, devices * chunks)


def interleaved_one_forward_one_backward(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Megatron-LM's interleaved 1F1B (Narayanan et al. 2021, section 2.2).

    Device d of p warms up with 2(p-1-d) + (chunks-1)·p forwards and then alternates. Where p does not divide the micro-batches,
    the order is the one for the next multiple of p without the ops of the micro-batches that are not there: leaving ops out of
    an order that runs cannot make it deadlock.
    """
    devices = _devices("interleaved-1f1b", stages, chunks)
    padded = -(-microbatches // devices) * devices
    chunk, microbatch = _virtual_order(devices, padded, chunks)

    forward, backward = np.full((2, padded * chunks), [[OpKind.FORWARD], [OpKind.BACKWARD]], dtype=np.int8)
    first, last = chunk * devices, (chunks - 1 - chunk) * devices  # stages of device 0

    def columns(device: int) -> Columns:
        warm_up = 2 * (devices - 1 - device) + (chunks - 1) * devices
        held, kind = alternated(first, last, warm_up) + device, alternated(forward, backward, warm_up)
        number = alternated(microbatch, microbatch, warm_up)
        if padded == microbatches:
            return held, kind, number
        real = number < microbatches
        return held[real], kind[real], number[real]

    return from_columns("interleaved-1f1b", stages, microbatches, [columns(device) for device in range(devices)])


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
