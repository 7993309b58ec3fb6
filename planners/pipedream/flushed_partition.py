"""Flushed partition: PipeDream's partition by the memory of a flushed pipeline whose replicas split every micro-batch.

The cost is PipeDream's, the seconds of the slowest stage or transfer; the memory is that of one version of the weights and of the
micro-batches that a flushed schedule has in flight. That number depends on the stages behind a stage, which the dynamic program
from the input does not know; here it runs from the output, and its value is the fewest devices:

    fewest(i, k) = min over j of  devices(i..j as the k-th stage from the end) + fewest(j, k - 1)

where devices() is the least number of replicas with which the stage meets both a limit on its seconds and the memory. The least
limit for which fewest(start, k) is within the devices, for some k, is found by bisection.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import Integers
from planners.estimate.memory import in_flight_bytes
from planners.pipedream.dynamic_program import RING, StateTotals, held_copies, synchronization_seconds
from planners.pipedream.partitioner import LevelStage, slice_total, totals_of
from planners.pipedream.state_table import StateTable
from simulator import kernel

_SLACK = 1.0 - 1e-9
"""Factor that covers the rounding of a sum of seconds."""

PRECISION = 1e-3
"""Relative width of the interval at which the bisection of the slowest stage's seconds ends."""


class FlushedPipeline(NamedTuple):
    """The flushed pipeline that a partition is for.

    devices: of the cluster
    samples, microbatches: of one micro-batch; and how many there are before the flush
    in_flight: micro-batches that the k-th stage from the end has in flight at most, int64 [k - 1]
    memory_bytes: capacity of a device
    weight_copies: the weights, their gradients and the optimizer's state, in copies of the weights
    recompute: a stage keeps its input of each micro-batch in flight, and the stash of one
    bandwidth, collective_bandwidth: bytes per second of the slowest links, point to point and in an all-reduce
    """

    devices: int
    samples: int
    microbatches: int
    in_flight: Integers
    memory_bytes: float
    weight_copies: float
    recompute: bool
    bandwidth: float
    collective_bandwidth: float


def flushed_partition(table: StateTable, pipeline: FlushedPipeline) -> tuple[LevelStage, ...] | None:
    """The stages of the partition whose slowest stage is fastest; None if none fits into memory.

    table: the network's figures at one micro-batch
    The fastest is found to PRECISION; of each limit on its way the partition with the fewest stages is taken.
    """
    found = _within(table, pipeline, inf)
    if found is None:
        return None
    stages, seconds = found
    least = 0.0
    while seconds - least > PRECISION * seconds:
        middle = (least + seconds) / 2
        faster = _within(table, pipeline, middle)
        if faster is None:
            least = middle
        else:
            stages, seconds = faster[0], min(middle, faster[1])
    return stages


def _within(table: StateTable, pipeline: FlushedPipeline, limit: float) -> tuple[tuple[LevelStage, ...], float] | None:
    """Stages of which none is slower than `limit` seconds and all fit, and the seconds of the slowest; None if there are none."""
    fewest, following = _fewest_devices(totals_of(table, RING), pipeline, limit)
    counts = np.flatnonzero(fewest[:, 0] <= pipeline.devices)
    if len(counts) == 0:
        return None
    stages: list[LevelStage] = []
    start = 0
    for left in range(int(counts[0]), 0, -1):
        stop = int(following[left, start])
        stages.append(LevelStage(start, stop, int(fewest[left, start] - fewest[left - 1, stop])))
        start = stop
    seconds = [_seconds(table, pipeline, stage) for stage in stages]
    for _ in range(pipeline.devices - sum(stage.workers for stage in stages)):
        slowest = max(range(len(stages)), key=seconds.__getitem__)
        helped = replace(stages[slowest], workers=stages[slowest].workers + 1)
        if _seconds(table, pipeline, helped) >= seconds[slowest]:
            break  # its all-reduce would take longer: the device stays idle
        stages[slowest], seconds[slowest] = helped, _seconds(table, pipeline, helped)
    sending = [2.0 * table.output_bytes[stage.start - 1] / pipeline.bandwidth for stage in stages[1:]]
    return tuple(stages), float(max(seconds + sending))


def _seconds(table: StateTable, pipeline: FlushedPipeline, stage: LevelStage) -> float:
    """Seconds per micro-batch of a stage over its replicas."""
    compute, parameters = (
        slice_total(totals, stage.start, stage.stop) for totals in (table.seconds, table.parameter_bytes)
    )
    samples, microbatches, bandwidth = pipeline.samples, pipeline.microbatches, pipeline.collective_bandwidth
    return float(_microbatch_seconds(compute, parameters, samples, microbatches, bandwidth, stage.workers))


@kernel(error_model="numpy", borrows=True)
def _microbatch_seconds(
    compute: float, parameters: float, samples: int, microbatches: int, bandwidth: float, replicas: int
) -> float:
    """Seconds per micro-batch of one stage: its largest part's compute, and its share of the all-reduce before the flush."""
    largest = -(-samples // replicas)
    reduced = synchronization_seconds(RING, parameters, bandwidth, replicas)
    return float(compute * largest / samples + reduced / microbatches)


class _Slice(NamedTuple):
    """Figures of a slice of states as one stage.

    compute: seconds; parameters: bytes of weights; stash, entry: bytes per micro-batch; room: bytes left beside the weights
    """

    compute: float
    parameters: float
    stash: float
    entry: float
    room: float


@kernel(inner=True, error_model="numpy")
def _slice_of(network: StateTotals, pipeline: FlushedPipeline, start: int, last: int) -> _Slice:
    """The figures of states start..last as one stage."""
    entry, stash = 0.0, network.stash_bytes[last]
    parameters, compute = network.parameter_bytes[last], network.seconds[last]
    if start > 0:
        entry = network.output_bytes[start - 1]
        stash -= network.stash_bytes[start - 1]
        parameters -= network.parameter_bytes[start - 1]
        compute -= network.seconds[start - 1]
    held = parameters + held_copies(network.copy_bytes, start, last)
    return _Slice(compute, parameters, stash, entry, pipeline.memory_bytes - pipeline.weight_copies * held)


@kernel(inner=True, error_model="numpy", borrows=True)
def _replicas(
    pipeline: FlushedPipeline, piece: _Slice, flights: int, limit: float, quickest: int, least: int, most: int
) -> int:
    """The first number of replicas from `least` on with which a slice meets limit and memory; most + 1 if there is none.

    flights: micro-batches in flight; quickest: the first number whose compute alone meets the limit, or any lower bound on it
    """
    samples, microbatches, bandwidth = pipeline.samples, pipeline.microbatches, pipeline.collective_bandwidth
    kept = in_flight_bytes(pipeline.recompute, flights, piece.stash, piece.entry)
    if piece.room < 0 or kept / samples > piece.room:
        return most + 1
    for replicas in range(max(least, quickest), most + 1):
        if kept * -(-samples // replicas) / samples > piece.room:
            continue
        if _microbatch_seconds(piece.compute, piece.parameters, samples, microbatches, bandwidth, replicas) <= limit:
            return replicas
        if synchronization_seconds(RING, piece.parameters, bandwidth, replicas) / microbatches > limit:
            break  # of more replicas it takes longer
    return most + 1


@kernel(inner=True, error_model="numpy")
def _least_replicas(network: StateTotals, pipeline: FlushedPipeline, limit: float, flights: int) -> NDArray[np.int32]:
    """Fewest replicas of states start..last as a stage with `flights` micro-batches in flight, int32 [last, start]; devices + 1:
    there are too few.
    """
    predecessors, offsets = network.predecessors, network.offsets
    devices, samples, states = pipeline.devices, pipeline.samples, len(network.seconds)
    least = np.full((states, states), devices + 1, dtype=np.int32)
    for last in range(states):
        quickest = 1
        for position in range(offsets[last + 1] - 1, offsets[last] - 2, -1):
            start = predecessors[position] + 1 if position >= offsets[last] else 0
            piece = _slice_of(network, pipeline, start, last)
            if (
                offsets[last + 1] - offsets[last] == last
            ):  # every state before is inside: longer slices hold and take more
                part = -(-samples // devices) / samples
                kept = in_flight_bytes(pipeline.recompute, flights, piece.stash, 0.0) * part
                if kept > piece.room or piece.compute * part * _SLACK > limit:
                    break
            if piece.room < 0 or 2.0 * piece.entry / pipeline.bandwidth > limit:
                continue
            # Of a chain's slices, ever longer, it only rises.
            while quickest > 1 and piece.compute * -(-samples // (quickest - 1)) / samples <= limit:
                quickest -= 1
            while quickest <= devices and piece.compute * -(-samples // quickest) / samples > limit:
                quickest += 1
            least[last, start] = _replicas(pipeline, piece, flights, limit, quickest, 1, devices)
    return least


@kernel(error_model="numpy")
def _fewest_devices(network: StateTotals, pipeline: FlushedPipeline, limit: float) -> tuple[Integers, Integers]:
    """fewest [k, start]: fewest devices for the states from `start` on in k stages (devices + 1: too few); following: where the
    first of these stages ends.

    It ends with the fewest stages that the devices suffice for, and leaves out what they cannot suffice for, with the states
    before `start`, even if every stage had as few micro-batches in flight as any from the last power of two of stages on.
    """
    predecessors, offsets = network.predecessors, network.offsets
    devices, states, most = pipeline.devices, len(network.seconds), len(pipeline.in_flight)
    fewest = np.full((most + 1, states + 1), devices + 1)
    following = np.zeros((most + 1, states + 1), dtype=np.int64)
    fewest[0, states] = 0
    if network.seconds[-1] * _SLACK > limit * devices:
        return fewest, following
    before = np.zeros(states + 1, dtype=np.int64)  # fewest devices for the states before each one
    least = np.zeros((0, 0), dtype=np.int32)
    for k in range(1, most + 1):
        if k & (k - 1) == 0:
            least = _least_replicas(network, pipeline, limit, int(pipeline.in_flight[k - 1 :].min()))
            before[1:] = devices + 1
            for last in range(states):
                for position in range(offsets[last] - 1, offsets[last + 1]):
                    start = predecessors[position] + 1 if position >= offsets[last] else 0
                    before[last + 1] = min(before[last + 1], before[start] + least[last, start])
        if (fewest[k - 1] + before > devices).all():
            break
        for last in range(states):
            rest = fewest[k - 1, last + 1]
            if rest + before[last + 1] > devices:
                continue
            for position in range(offsets[last] - 1, offsets[last + 1]):
                start = predecessors[position] + 1 if position >= offsets[last] else 0
                below = min(fewest[k, start], devices - before[start] + 1) - rest
                if least[last, start] >= below:
                    continue
                one = _slice_of(network, pipeline, start, last)
                flights = pipeline.in_flight[k - 1]
                replicas = _replicas(pipeline, one, flights, limit, 1, least[last, start], below - 1)
                if replicas < below:
                    fewest[k, start] = replicas + rest
                    following[k, start] = last + 1
        if fewest[k, 0] <= devices:
            break
    return fewest, following
