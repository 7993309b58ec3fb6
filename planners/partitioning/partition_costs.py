"""Partition costs: seconds per micro-batch of every possible stage and cut of a pipeline of contiguous layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise

import numpy as np

from hardware_profiles import Cluster, Floats, Integers, Phase
from planners.estimate.memory import furthest_ends, stage_begins
from planners.estimate.pipeline_seconds import pipelined
from simulator import LayerCosts, SecondsOfStages

MOST_PLACES = 64
"""Places, at most, to cut a network on boards that stream, where seconds are computed for each range of layers by itself."""


KEPT = 8
"""Tables of stages that are kept, each of a size of micro-batches; one of 1,000 layers takes 8 MB."""

KEPT_RANGES = 1024
"""Columns of seconds of ranges of layers on a board that are kept, at most 16 kB each."""


@dataclass(frozen=True, slots=True, eq=False)
class PartitionCosts:
    """Seconds per micro-batch of every possible stage and cut of a pipeline of contiguous layers.

    stage_seconds: float64 [passes, kinds, layers + 1, layers + 1]; [p, k, i, j] are the seconds that layers i to j - 1 keep a
        stage of kind k busy in pass p (one pass: forwards and backwards alternate, as in 1F1B; two: all forwards run before
        all backwards, as in GPipe); inf for a stage that must not be
    kind: the kind of each stage (its accelerator, its number of replicas, ...)
    link_seconds: float64 [passes, stages - 1, layers + 1]; the seconds that a cut before layer j keeps the link behind stage s
        busy; inf where there must be no cut
    latency_seconds: float64 [stages - 1, layers + 1]; what a micro-batch waits at that cut beyond that, in all passes together
    furthest: int64 [stages, layers + 1]; the last layer before which a stage that begins at a layer may end within its memory,
        or None where memory is no limit
    """

    stage_seconds: Floats
    kind: tuple[int, ...]
    link_seconds: Floats
    latency_seconds: Floats
    furthest: Integers | None = None

    def __post_init__(self) -> None:
        passes, kinds, layers = self.stage_seconds.shape[:3]
        stages = len(self.kind)
        shapes = {
            "stage_seconds": (self.stage_seconds.shape, (passes, kinds, layers, layers)),
            "link_seconds": (self.link_seconds.shape, (passes, stages - 1, layers)),
            "latency_seconds": (self.latency_seconds.shape, (stages - 1, layers)),
        }
        if self.furthest is not None:
            shapes["furthest"] = self.furthest.shape, (stages, layers)
        for name, (shape, wanted) in shapes.items():
            if shape != wanted:
                raise ValueError(f"{name} must have shape {wanted}, got {shape}")
        if not set(self.kind) <= set(range(kinds)):
            raise ValueError(f"kinds of stages must be from 0 to {kinds - 1}, got {self.kind}")

    @property
    def layers(self) -> int:
        """Number of layers of the network."""
        return int(self.stage_seconds.shape[-1]) - 1

    def seconds(self, cuts: Sequence[int], microbatches: int) -> float:
        """The makespan of one partition in seconds, by the closed form of `makespans`; inf where a stage or a cut must not be."""
        return float(makespans(self, np.array([cuts], dtype=np.int64).reshape(1, -1), microbatches)[0])


def uniform_cuts(layers: int, stages: int) -> list[int]:
    """Layers before each of the stages - 1 boundaries, stages as equal as whole layers permit, the first ones larger."""
    size, more = divmod(layers, stages)
    return [size * stage + min(stage, more) for stage in range(1, stages)]


def every_cuts(layers: int, stages: int) -> Integers:
    """All partitions into `stages` stages, in the order of their cuts, int64 [partitions, stages - 1]."""
    chosen = list(combinations(range(1, layers), stages - 1))
    return np.array(chosen, dtype=np.int64).reshape(len(chosen), stages - 1)


def makespans(costs: PartitionCosts, cuts: Integers, microbatches: int, last: PartitionCosts | None = None) -> Floats:
    """The makespans of many partitions on idle links, in seconds, float64 [partitions]; inf where a stage or a cut must not be.

    cuts: int64 [partitions, stages - 1]; last: costs of one more micro-batch behind the others, no longer than these
    Exact where forwards run before backwards. The n-th equal micro-batch leaves process p (a stage or link) at (sum of the
    processes up to p) + (n - 1) * (slowest of them), and one behind it at max(that, its own end before p) + its seconds.
    """
    count, stages = len(cuts), len(costs.kind)
    bounds = np.hstack([np.zeros((count, 1), dtype=np.int64), cuts, np.full((count, 1), costs.layers)])
    total = np.zeros(count)
    for number in range(len(costs.stage_seconds)):
        busy = _busy(costs, number, bounds)
        passed, slowest = np.cumsum(busy, axis=0), np.maximum.accumulate(busy)
        with np.errstate(invalid="ignore"):  # 0 times inf: what must not be, once
            full = pipelined(passed, slowest, microbatches)
        if last is None:
            total += full[-1]
            continue
        end = np.zeros(count)
        for before, more in zip(full, _busy(last, number, bounds), strict=True):
            end = np.maximum(end, before) + more
        total += end
    delays = costs.latency_seconds[np.arange(stages - 1)[:, None], bounds.T[1:-1]]
    total = np.cumsum(np.vstack([total, delays]), axis=0)[-1]
    if costs.furthest is not None:
        total[(bounds.T[1:] > costs.furthest[np.arange(stages)[:, None], bounds.T[:-1]]).any(axis=0)] = math.inf
    return np.where(np.isnan(total), math.inf, total)


def _busy(costs: PartitionCosts, number: int, bounds: Integers) -> Floats:
    """Seconds of the stages and of the links between them in one pass, in its order, float64 [processes, partitions]."""
    stages, ends = len(costs.kind), bounds.T
    busy = np.empty((2 * stages - 1, len(bounds)))
    busy[::2] = costs.stage_seconds[number, np.array(costs.kind)[:, None], ends[:-1], ends[1:]]
    busy[1::2] = costs.link_seconds[number, np.arange(stages - 1)[:, None], ends[1:-1]]
    return busy if number == 0 else busy[::-1]


def straight_costs(
    costs: LayerCosts,
    devices: Sequence[int],
    samples: int,
    *,
    alternating: bool = False,
    in_flight: Sequence[int] | None = None,
    spare: Sequence[float] = (),
) -> PartitionCosts:
    """The costs of every partition of a pipeline with one device per stage and micro-batches of `samples` samples.

    devices: of each stage; alternating: forwards and backwards take turns (1F1B), else they are passes of their own (GPipe)
    in_flight: samples whose activations each stage holds at once; None leaves memory out. Buffers of transfers are not counted,
    so that a partition which is left out cannot fit, and one which is not may still not.
    spare: bytes that each stage is to leave free of its device's memory; () for none
    Where links contend a transfer keeps its link busy for its bytes, and its latency delays; else it only delays. Where the stack
    does not run stages that begin inside blocks, no stage may end inside one.
    """
    kinds = [costs.kind_of_device(device) for device in devices]
    distinct = sorted(set(kinds))
    alike = tuple(map(costs.first_of_kind, distinct))
    furthest = None if in_flight is None else furthest_ends(costs, devices, samples, in_flight, spare)
    if len(places := stage_begins(costs.problem)) <= (layers := len(costs.problem.workload)):
        inside = np.isin(np.arange(layers + 1), places, invert=True)
        furthest = np.where(inside, 0, layers if furthest is None else furthest) * np.ones((len(devices), 1), dtype=int)
    busy, latency = _boundaries(costs, devices, samples, alternating)
    return PartitionCosts(
        stage_seconds=_stage_seconds(costs, alike, samples, alternating),
        kind=tuple(map(distinct.index, kinds)),
        link_seconds=busy,
        latency_seconds=latency,
        furthest=furthest,
    )


@lru_cache(maxsize=KEPT)
def _stage_seconds(costs: LayerCosts, devices: tuple[int, ...], samples: int, alternating: bool) -> Floats:
    """`stage_seconds` of `PartitionCosts` for a device of each kind; kept for later partitions with equal micro-batches."""
    layers = len(costs.problem.workload)
    some = np.triu(np.ones((layers + 1, layers + 1)), 1)

    def tables(phase: Phase, again: bool = False) -> Floats:
        return np.array([_ranges(costs, device, samples, phase, again) for device in devices])

    def passes(phase: Phase) -> Floats:
        beside = np.array([costs.pass_seconds(device, phase) for device in devices])
        return tables(phase) + beside[:, None, None] * some

    forward, backward, again = passes("forward"), passes("backward"), tables("forward", again=True)
    backward = backward + again
    return (forward + backward)[None] if alternating else np.array([forward, backward])


def _ranges(costs: LayerCosts, device: int, samples: int, phase: Phase, again: bool) -> Floats:
    """Seconds of one pass of layers i to j - 1 as one stage, float64 [layers + 1, layers + 1].

    again: only of the layers that a backward runs again
    On a board whose layers stream each range has seconds of its own: of deep networks only ranges between MOST_PLACES places that
    divide the FLOP evenly, others are inf.
    """
    layers = len(costs.problem.workload)
    if not costs.streams(device):
        chosen = costs.runs_again(costs.problem.recompute) if again else np.ones(layers)
        before = np.concatenate([[0.0], np.cumsum(costs.seconds(device, samples, phase) * chosen)])
        return np.asarray(np.maximum(before[None, :] - before[:, None], 0.0), dtype=np.float64)
    table = np.full((layers + 1, layers + 1), np.inf)
    np.fill_diagonal(table, 0.0)
    places = np.array(_places(costs))
    begin, end = np.triu_indices(len(places), 1)
    kind = costs.first_of_kind(costs.kind_of_device(device))
    table[places[begin], places[end]] = _streamed_ranges(costs, kind, samples, phase, again)
    return table


@lru_cache(maxsize=KEPT_RANGES)
def _streamed_ranges(costs: LayerCosts, device: int, samples: int, phase: Phase, again: bool) -> Floats:
    """Seconds of a board for the layers between each two of `_places`, by the first of the two."""
    return _streamed_stages(costs, device, again)(samples, phase)


@lru_cache(maxsize=KEPT)
def _streamed_stages(costs: LayerCosts, device: int, again: bool) -> SecondsOfStages:
    """The function (samples, phase) -> `_streamed_ranges` of a board."""
    layers, places = np.arange(len(costs.problem.workload)), np.array(_places(costs))
    begin, end = (places[one][:, None] for one in np.triu_indices(len(places), 1))
    held = (begin <= layers) & (layers < end)
    if again:
        held &= costs.runs_again(costs.problem.recompute) > 0.0
    return costs.seconds_of_stages(device, held)


def _places(costs: LayerCosts) -> list[int]:
    """Layers before each place where a network on boards may be cut, rising, with both ends: all, or MOST_PLACES that divide the
    FLOP evenly.
    """
    work = np.cumsum([0.0, *(layer.flop for layer in costs.problem.workload.layers)])
    if len(work) <= MOST_PLACES:
        return list(range(len(work)))
    inside = np.searchsorted(work, np.linspace(0.0, work[-1], MOST_PLACES)[1:-1])
    return sorted({0, *inside.tolist(), len(work) - 1})


def _boundaries(costs: LayerCosts, devices: Sequence[int], samples: int, alternating: bool) -> tuple[Floats, Floats]:
    """Seconds that a micro-batch keeps each link busy in each pass, by cut, float64 [passes, stages - 1, layers + 1], and seconds
    that it waits beyond that.
    """
    cluster, sizes = costs.problem.cluster, costs.cut_bytes * samples
    known = {pair: both_ways(cluster, *pair) for pair in set(pairwise(devices))}
    alike = list(dict.fromkeys(known.values()))  # links of few kinds
    links = np.array(alike).reshape(-1, 4, 1)
    link = np.array([alike.index(known[pair]) for pair in pairwise(devices)], dtype=np.int64)
    busy = np.stack([sizes / links[:, 0], sizes / links[:, 1]])
    latency, one_way = links[:, 2] + np.zeros(len(sizes)), links[:, 3] > 0.0
    if costs.problem.communication == "free":
        busy, latency = np.zeros_like(busy[:1] if alternating else busy), np.zeros_like(latency)
    elif not costs.problem.contention:
        busy, latency = np.zeros_like(busy[:1] if alternating else busy), latency + busy.sum(axis=0)
    elif alternating:
        both = np.where(one_way, busy.sum(axis=0), busy.max(axis=0))
        busy, latency = both[None], latency + busy.sum(axis=0) - both
    return busy[:, link], latency[link]


def both_ways(cluster: Cluster, near: int, far: int) -> tuple[float, float, float, bool]:
    """Bytes per second there and back between two devices, latencies of both ways together in seconds, and whether the ways share
    a channel.
    """
    (wait, there), (more, back) = cluster.point_to_point(near, far), cluster.point_to_point(far, near)
    return there, back, wait + more, bool({*cluster.route(near, far)} & {*cluster.route(far, near)})
