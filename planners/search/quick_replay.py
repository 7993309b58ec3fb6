"""Quick replay: a lower bound on the seconds of a flushed plan from its ops in their order, at tens of nanoseconds per op.

It runs the order that a replay runs, with the seconds that a replay takes (`PlanCosts`), for the replica of each stage
that has most samples. What it leaves out only delays: transfers of other stages and of collectives on the same channels, sends
that block, gathers of weights, reductions of tied weights, what the two ops of an overlapped pair wait for each other. So a
search need not replay a plan whose quick replay is no faster than the best replay so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware_profiles import OptionValue, Phase
from simulator import (
    SLACK,
    Kept,
    LayerCosts,
    OpKind,
    Plan,
    PlanCosts,
    Problem,
    Recompute,
    Schedule,
    ScheduleFamily,
    StageCollectives,
    build_schedule,
    kernel,
    schedule_families,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_FORWARD, _WEIGHT = int(OpKind.FORWARD), int(OpKind.WEIGHT_GRADIENT)
KINDS = OpKind.FORWARD, OpKind.BACKWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT
"""Kinds of ops that quick replays know, in the order of the rows of their tables."""
BACK = OpKind.BACKWARD, OpKind.INPUT_GRADIENT
"""Kinds of ops that compute input gradients, and run forward again what the stage recomputes."""
PHASES: dict[OpKind, Phase] = {
    OpKind.FORWARD: "forward",
    OpKind.BACKWARD: "backward",
    OpKind.INPUT_GRADIENT: "input_gradient",
    OpKind.WEIGHT_GRADIENT: "weight_gradient",
}
"""The pass of each kind of op, as cost tables name it."""
WHOLE_BACKWARDS = ("gpipe", "1f1b", "eager-1f1b", "1f1b-so", "1f1b-sno")
"""Schedules of forwards and full backwards whose last op on each device is a backward that the devices before it wait for."""

ROWS = np.full(1 + max(map(int, KINDS)), -1)
"""Row of each kind of op among KINDS, by its number; -1 for others."""
ROWS[list(map(int, KINDS))] = range(len(KINDS))
"""Row of each kind of op among KINDS, -1 for others."""

KEPT, MOST_KEPT = 64, 2**20
"""KEPT: orders of schedules that are kept for later plans; MOST_KEPT: ops, at most, of orders that one `QuickReplays` keeps."""


def fullest_replica(plan: Plan, stage: int) -> int:
    """The replica of a stage that has most samples, those of the fullest replicas before and behind it: the first; or the last,
    where replicas of any stage divide a micro-batch unevenly.
    """
    counts = plan.replicas
    uneven = any(size % count for size in set(plan.microbatches) for count in set(counts))
    return counts[stage] - 1 if uneven else 0


class Seconds(NamedTuple):
    """Seconds of ops and transfers by size of the micro-batch (or by size and slice of it); S stages, K sizes.

    ops: float64 [kinds, S, K]
    occupied: float64 [2, S - 1, K]; for which a transfer down, or up, keeps the next one from its busiest channel
    delayed: float64 [2, S - 1, K]; from the begin of a transfer to its arrival
    overlap: seconds of the two ops of an overlapped pair together, as a share of those one after the other
    """

    ops: Floats
    occupied: Floats
    delayed: Floats
    overlap: float


class OrderColumns(NamedTuple):
    """The ops of an order as columns, device by device.

    offsets: int64 [devices + 1], first op of each device; stage, kind, microbatch: of each op
    size_of: int64 [micro-batches], the row of each one's size in `Seconds`; paired: whether each op is one of an overlapped pair
    """

    offsets: Integers
    stage: NDArray[np.int32]
    kind: NDArray[np.int8]
    microbatch: NDArray[np.int32]
    size_of: Integers
    paired: NDArray[np.bool_]


def columns_of(order: Schedule, samples: Integers) -> OrderColumns:
    """The columns of an order of ops; samples: of each micro-batch. Rows of sizes rise, and each size has a row per slice."""
    sizes = np.unique(samples, return_inverse=True)[1].astype(np.int64)
    size_of = (sizes[:, None] * order.slices + np.arange(order.slices)).ravel()
    first = order.overlapped
    paired = np.zeros(len(order), dtype=np.bool_) if first is None else first | np.roll(first, 1)
    return OrderColumns(order.offsets, order.stage, order.kind, order.microbatch, size_of, paired)


def order_of_plan(plan: Plan) -> Schedule:
    """The ops of a plan whose schedule is a family's."""
    return order_of(plan.schedule, len(plan.stages), len(plan.microbatches), plan.chunks, plan.options)


@lru_cache(maxsize=KEPT)
def order_of(
    name: str, stages: int, microbatches: int, chunks: int, options: tuple[tuple[str, OptionValue], ...]
) -> Schedule:
    """The ops of a family's schedule.

    chunks: stages per device; options: further ones of the family
    """
    own = schedule_families()[name].of_chunks(chunks) | dict(options)
    return build_schedule(name, stages, microbatches, **own)


def seconds_before(layers: LayerCosts, device: int, samples: int, phase: Phase, again: Recompute) -> Floats:
    """Seconds of a pass of all layers before each cut, and of what the policy `again` runs forward again in it, float64 [layers +
    1].
    """
    seconds = layers.seconds(device, samples, phase)
    if again != "none":
        seconds = seconds + layers.seconds(device, samples, "forward") * layers.runs_again(again)
    return np.concatenate([[0.0], np.cumsum(seconds)])


class QuickReplays:
    """Quick replays of the plans of one problem; a call gives the seconds of a plan's."""

    def __init__(self, problem: Problem, layers: LayerCosts) -> None:
        self.problem, self.layers = problem, layers
        self._before: dict[tuple[LayerCosts, int, int, Phase, Recompute], Floats] = {}
        self._orders: Kept[Hashable, Schedule] = Kept()

    def fill_and_work(self, plan: Plan) -> float:
        """Lower bound on a plan's seconds that needs no order of ops: the longest that passes keep a device busy, behind the
        forwards (and, where full backwards end all, before the backwards) of other devices that it waits for.

        0, as of a call, for plans that quick replays do not cover; also where replicas take whole micro-batches, and for slices.
        """
        if _family_of(plan) is None or plan.replication != "split" or plan.slices > 1:
            return 0.0
        costs, sizes = PlanCosts(self.problem, plan, self.layers), np.array(plan.microbatches)
        sizes, times = np.unique(sizes, return_counts=True)
        whole = plan.schedule in WHOLE_BACKWARDS
        work, waits, before = dict[int, float](), dict[int, float](), 0.0
        for stage, held in enumerate(plan.stages):
            samples = -(-sizes // len(held.replicas))
            forward, back, *parts = (
                self._op_seconds(costs, kind, (stage, fullest_replica(plan, stage)), samples)
                for kind in (KINDS[:2] if whole else KINDS)
            )
            back = np.minimum(back, sum(parts)) if parts else back
            waits.setdefault(held.devices[0], before)
            work[held.devices[0]] = work.get(held.devices[0], 0.0) + float(np.dot(times, forward + back))
            before += float(min(forward)) + (float(min(back)) if whole else 0.0)
        overlapped = 1.0 if whole else min(1.0, self.problem.overlap)
        return max(waits[one] + overlapped * work[one] for one in work) * (1.0 - SLACK)

    def __call__(self, plan: Plan) -> float:
        """Lower bound on the seconds of an iteration; 0 for a plan with ops or devices that quick replays do not cover."""
        if _family_of(plan) is None:
            return 0.0
        order = self.order(plan.schedule, len(plan.stages), len(plan.microbatches), plan.chunks, plan.options)
        costs = PlanCosts(self.problem, plan, self.layers)
        samples = np.array(plan.microbatches)
        seconds = self._seconds(costs, order, np.unique(samples))
        done = _run(columns_of(order, samples), seconds, ROWS)
        held = [costs.collectives(stage) for stage in range(len(plan.stages))]
        ended = max(
            _end(costs, stage, one, *ends) for stage, (one, ends) in enumerate(zip(held, done.tolist(), strict=True))
        )
        busiest = self._busiest_channel(costs, held) if self.problem.contention else 0.0
        return float(max(ended, busiest)) * (1.0 - SLACK)

    def order(self, *key: Any) -> Schedule:
        """The ops of a schedule, arguments as of `order_of`; orders of the last plans, of MOST_KEPT ops at most, are kept."""
        order = self._orders.used(key)
        if order is None:
            self._orders.keep(key, order := order_of(*key), MOST_KEPT)
        return order

    def _busiest_channel(self, costs: PlanCosts, held: Sequence[StageCollectives]) -> float:
        """Seconds for which transfers and reductions keep the busiest channel busy. held: collectives of each stage

        Long routes are told apart by identity.
        """
        plan, batch, channels = costs.plan, self.problem.batch, self.problem.cluster.channels
        busy = np.zeros(len(channels))
        sent = plan.replication == "split" and self.problem.sends_behind
        for stage, (near, far) in enumerate(pairwise(plan.stages) if sent else ()):
            if len(near.devices) == len(far.devices) and not near.degrees:
                size = costs.boundary_bytes[stage] * batch / len(near.devices)
                for channel, uses in self.uses(near.devices, far.devices).items():
                    busy[channel] += uses * size / channels[channel].bandwidth
        reduced: dict[tuple[int, int], tuple[tuple[int, ...], tuple[float, ...], float]] = {}
        for one in held:
            if one.buckets:
                route, shares = one.busy
                known = reduced.get((id(route), id(shares)), (route, shares, 0.0))[2]
                reduced[id(route), id(shares)] = route, shares, known + sum(bucket.seconds for bucket in one.buckets)
        for route, shares, seconds in reduced.values():
            busy[np.array(route, dtype=np.int64)] += seconds * np.array(shares)
        return float(busy.max(initial=0.0))

    def uses(self, near: tuple[int, ...], far: tuple[int, ...]) -> Counter[int]:
        """How often the transfers of a micro-batch between two stages, there and back, pass each channel; near, far: devices, one
        to one
        """
        route = self.problem.cluster.route
        pairs = [*zip(near, far, strict=True), *zip(far, near, strict=True)]
        return Counter(channel for pair in pairs for channel in route(*pair))

    def _seconds(self, costs: PlanCosts, order: Schedule, sizes: Integers) -> Seconds:
        """The tables of a plan; where replicas take whole micro-batches, those of the fastest replica. sizes: samples of
        micro-batches, rising
        """
        plan, slices, turns = costs.plan, costs.plan.slices, costs.plan.replication != "split"
        parts = [sizes if turns else -(-sizes // count) for count in plan.replicas]
        there = set(np.unique(order.kind).tolist())
        ops = np.zeros((len(KINDS), len(parts), len(sizes), slices))
        for number, own in enumerate([costs.of_slice(one) for one in range(slices)] if slices > 1 else [costs]):
            for row, kind in enumerate(KINDS):
                for stage, part in enumerate(parts if int(kind) in there else ()):
                    some = range(plan.replicas[stage]) if turns else [fullest_replica(plan, stage)]
                    places = [(stage, replica) for replica in some]
                    ops[row, stage, :, number] = np.min(
                        [self._op_seconds(own, kind, at, part) for at in places], axis=0
                    )
        occupied, delayed = np.zeros((2, 2, len(parts) - 1, len(sizes)))
        for stage, (near, far) in enumerate(pairwise(plan.replicas) if self.problem.sends_behind else ()):
            sent, among = costs.boundary_bytes[stage] / slices, 1 if turns else max(near, far)
            size = sent * (parts[stage] if near == far else sizes / among)
            for way, ends in enumerate(((stage, stage + 1), (stage + 1, stage))):
                latency, bandwidth, busy = self._fastest_link(costs, *ends) if turns else self.link(costs, *ends)
                occupied[way, stage] = sent * (sizes // among) * busy
                delayed[way, stage] = latency + size / bandwidth
        flat = ops.reshape(*ops.shape[:2], -1)
        occupied, delayed = (np.repeat(one, slices, axis=2) for one in (occupied, delayed))
        return Seconds(flat, occupied, delayed, self.problem.overlap)

    def _op_seconds(self, costs: PlanCosts, kind: OpKind, place: tuple[int, int], samples: Integers) -> Floats:
        """Seconds of an op of a (stage, replica) by its samples, float64 [samples].

        Where the device alone decides them they are the difference of two running sums over layers.
        """
        stage, replica = place
        held, again = costs.plan.stages[stage], costs.recomputation(stage) if kind in BACK else "none"
        device, group, (begin, end) = costs.device(*place), costs.group(*place), (held.layers[0], held.layers[-1] + 1)
        waits = any(group.gathers) or len(group.kinds) > 1 or costs.exposed(stage) or costs.recomputed_blocks(stage)
        if waits or costs.layers.streams(device) or end - begin != len(held.layers):
            seconds = costs.seconds(kind, stage, replica, samples)
            return seconds if again == "none" else seconds + costs.seconds(OpKind.RECOMPUTE, stage, replica, samples)
        found, layers = [], costs.member_costs(stage, replica)
        for size in samples.tolist():
            key = layers, layers.kind_of_device(device), size, PHASES[kind], again
            if key not in self._before:
                self._before[key] = seconds_before(layers, device, size, PHASES[kind], again)
            before = self._before[key]
            found.append(before[end] - before[begin] + layers.pass_seconds(device, PHASES[kind]))
        return np.array(found)

    def link(self, costs: PlanCosts, source: int, target: int) -> tuple[float, float, float]:
        """Latency in seconds and bytes per second of a transfer between two stages, and seconds per byte for which all transfers
        of a micro-batch keep their busiest channel busy.
        """
        near, far = ((stage, fullest_replica(costs.plan, stage)) for stage in (source, target))
        flow, share = costs.flow(near, far)
        ends = costs.plan.stages[source].devices, costs.plan.stages[target].devices
        if not self.problem.contention or len(ends[0]) != len(ends[1]) or share != 1.0:
            return flow.latency, flow.bandwidth / share, 0.0
        uses = Counter(channel for pair in zip(*ends, strict=True) for channel in self.problem.cluster.route(*pair))
        channels = self.problem.cluster.channels
        return (
            flow.latency,
            flow.bandwidth,
            max((uses[one] / channels[one].bandwidth for one in flow.route), default=0.0),
        )

    def _fastest_link(self, costs: PlanCosts, source: int, target: int) -> tuple[float, float, float]:
        """Least latency and most bytes per second between any replicas of two stages, as if no other transfer met it; 0 seconds
        busy.
        """
        places = [[(stage, replica) for replica in range(costs.plan.replicas[stage])] for stage in (source, target)]
        flows = [costs.flow(*pair) for pair in product(*places)]
        return min(flow.latency for flow, _ in flows), max(flow.bandwidth / share for flow, share in flows), 0.0


def _family_of(plan: Plan) -> ScheduleFamily | None:
    """The family of a plan that quick replays cover; None for others.

    They cover flushed families with one op at a time on a device, or an overlapped pair, that send results behind the op;
    replicas that split micro-batches, but of two directions ones that take whole micro-batches.
    """
    family = schedule_families().get(plan.schedule)
    if family is None or not family.flush or family.lanes or "streaming" in family.communications:
        return None  # where results stream a transfer begins with its op
    taken = "round-robin" if family.placement == "bidirectional" else "split"
    return None if plan.order or plan.forward_sizes or plan.replication != taken else family


def _end(costs: PlanCosts, stage: int, held: StageCollectives, began: float, ended: float, free: float) -> float:
    """Seconds from the start at which the fullest replica of a stage has reduced its gradients and updated.

    held: collectives of its replicas; began, ended: of its last backward; free: end of the last op of its device
    """
    ready, reduced = began, 0.0
    for bucket in held.buckets:
        ready += bucket.share * (ended - began)
        reduced = max(reduced, ready) + bucket.seconds
    if held.units:
        reduced = ended + held.units[0].scatter
    update = float(
        costs.seconds(OpKind.UPDATE, stage, fullest_replica(costs.plan, stage), np.zeros(1, dtype=np.int64))[0]
    )
    return max(free, reduced) + update + (held.update_gather.seconds if held.update_gather else 0.0)


class CutSeconds(NamedTuple):
    """Seconds of pipelines of equal replicas under any cuts, for `replay_cuts`; S stages, K sizes of micro-batches, D kinds of
    device.

    before: float64 [kinds, D, K, layers + 1]; seconds of an op of all layers before each cut; beside: float64 [kinds, D], per op
    kind: int64 [S]; kind of each stage's device
    crossing: float64 [K, layers + 1]; bytes of a micro-batch that a replica sends at each cut
    latency, byte_seconds: float64 [2, S - 1]; of each link, down and up; busy_seconds: per byte that keep the next transfer from
    it
    overlap: as of `Seconds`
    reductions: float64 [S, layers + 1]; seconds in which each stage's replicas reduce the gradients of the layers before each cut
    bucket: float64 [S]; seconds of a bucket of these, inf where gradients are reduced at once
    loads: float64 [channels, 2, S]; seconds that a channel is busy, per second of reductions of a stage, and per byte that
    crosses behind it
    updates: float64 [D, layers + 1]; lower bound on seconds of the update of the layers before each cut
    furthest: int64 [S, layers + 1]; the last cut at which a stage that begins at a layer may end
    """

    before: Floats
    beside: Floats
    kind: Integers
    crossing: Floats
    latency: Floats
    byte_seconds: Floats
    busy_seconds: Floats
    overlap: float
    reductions: Floats
    bucket: Floats
    loads: Floats
    updates: Floats
    furthest: Integers


@kernel()
def replay_cuts(order: OrderColumns, costs: CutSeconds, row_of: Integers, cuts: Integers) -> Floats:
    """Seconds of quick replays of many partitions, float64 [partitions]; inf where a stage has no layer or ends too late.

    Gradients are reduced behind the last backward of their stage.
    cuts: int64 [partitions, stages - 1]; row_of: as of `_run`
    """
    kinds, _, sizes, places = costs.before.shape
    stages, found = len(costs.kind), np.full(len(cuts), np.inf)
    reducing, ready = np.zeros((2, stages))
    ops, occupied, delayed = (
        np.zeros((kinds, stages, sizes)),
        np.zeros((2, max(stages - 1, 0), sizes)),
        np.zeros((2, max(stages - 1, 0), sizes)),
    )
    for number in range(len(cuts)):
        begin, possible = 0, True
        for s in range(stages):
            end = cuts[number, s] if s < stages - 1 else places - 1
            if not begin < end <= costs.furthest[s, begin]:
                possible = False
                break
            for size in range(sizes):
                for row in range(kinds):
                    sums = costs.before[row, costs.kind[s], size]
                    ops[row, s, size] = sums[end] - sums[begin] + costs.beside[row, costs.kind[s]]
                for way in range(2 if s < stages - 1 else 0):
                    occupied[way, s, size] = costs.crossing[size, end] * costs.busy_seconds[way, s]
                    delayed[way, s, size] = (
                        costs.latency[way, s] + costs.crossing[size, end] * costs.byte_seconds[way, s]
                    )
            begin = end
        if not possible:
            continue
        done = _run(order, Seconds(ops, occupied, delayed, costs.overlap), row_of)
        begin, latest = 0, 0.0
        for s in range(stages):
            end = cuts[number, s] if s < stages - 1 else places - 1
            reducing[s] = costs.reductions[s, end] - costs.reductions[s, begin]
            update = costs.updates[costs.kind[s], end] - costs.updates[costs.kind[s], begin]
            ready[s] = done[s, 1]
            if reducing[s] > costs.bucket[s]:  # the first bucket is there before the last
                part = costs.bucket[s] / reducing[s]
                first = done[s, 0] + part * (done[s, 1] - done[s, 0])
                ready[s] = max(first, done[s, 1] + costs.bucket[s] - reducing[s])
            latest, begin = max(latest, max(done[s, 2], ready[s] + reducing[s]) + update), end
        if len(costs.loads):
            latest = max(latest, _channels_end(costs.loads, ready, reducing, costs.crossing[0], cuts[number]))
        found[number] = latest
    return found


@kernel(inner=True)
def _channels_end(loads: Floats, ready: Floats, reducing: Floats, crossing: Floats, cuts: Integers) -> float:
    """Seconds from the start at which the last channel has reduced the gradients of all stages, one after another once they are
    ready, and has moved all bytes.

    ready: of each stage; reducing: seconds of its reduction
    """
    last, latest = np.argsort(-ready), 0.0
    for channel in range(len(loads)):
        behind, busy = 0.0, 0.0
        for s in last:
            behind += loads[channel, 0, s] * reducing[s]
            latest = max(latest, ready[s] + behind)
        for s in range(len(cuts)):
            busy += loads[channel, 1, s] * crossing[cuts[s]]
        latest = max(latest, behind + busy)
    return latest


@kernel()
def _run(order: OrderColumns, seconds: Seconds, row_of: Integers) -> Floats:
    """For each stage begin and end of its last backward or input gradient, and end of its devices' last op, float64 [stages, 3],
    in seconds.

    Ops of an overlapped pair run one after the other here, each in its share of the pair's seconds.
    row_of: of each kind of op, its row in `seconds.ops`
    """
    offsets, stage, kind, microbatch, size_of, paired = order
    stages, ranks = seconds.ops.shape[1], len(offsets) - 1
    arrived = np.full((2, stages, len(size_of)), np.inf)
    arrived[0, 0], at, free = 0.0, offsets[:-1].copy(), np.zeros(ranks)
    link, done = np.zeros((2, ranks, stages)), np.zeros((stages, 3))
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            while at[rank] < offsets[rank + 1]:
                op = at[rank]
                here, number, row = stage[op], microbatch[op], row_of[kind[op]]
                size, back, begin = size_of[number], row > 0, free[rank]
                if kind[op] != _WEIGHT:
                    ready = arrived[1 if back else 0, here, number]
                    if ready == np.inf:
                        break
                    begin = max(begin, ready)
                end = begin + seconds.ops[row, here, size] * (seconds.overlap if paired[op] else 1.0)
                free[rank], at[rank], moved = end, op + 1, True
                if back and end >= done[here, 1]:
                    done[here, 0], done[here, 1] = begin, end
                if kind[op] == _WEIGHT:
                    continue
                if kind[op] == _FORWARD and here == stages - 1:
                    arrived[1, here, number] = end
                elif kind[op] == _FORWARD:
                    sent = max(end, link[0, rank, here])
                    link[0, rank, here] = sent + seconds.occupied[0, here, size]
                    arrived[0, here + 1, number] = sent + seconds.delayed[0, here, size]
                elif here > 0:
                    sent = max(end, link[1, rank, here])
                    link[1, rank, here] = sent + seconds.occupied[1, here - 1, size]
                    arrived[1, here - 1, number] = sent + seconds.delayed[1, here - 1, size]
    for rank in range(ranks):
        for op in range(offsets[rank], offsets[rank + 1]):
            done[stage[op], 2] = max(done[stage[op], 2], free[rank])
    return done
