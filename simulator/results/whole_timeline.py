"""Whole timeline: that of all replicas, from the one in which some stand for others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hardware_profiles import Integers
from simulator.costs.stand_ins import StandIns
from simulator.engines.timeline import Timeline, Transfers
from simulator.lowering.program import LaneKind
from simulator.plans.plan import Plan
from simulator.schedules.ops import OpKind


def whole_timeline(timeline: Timeline, plan: Plan, stand_ins: StandIns) -> Timeline:
    """The timeline of a plan that was replayed with stand-ins: lanes of the others do what theirs do, with their own samples."""
    sizes = np.bincount(timeline.lane, minlength=len(timeline.lane_kind))
    begins = np.cumsum(sizes) - sizes
    lanes, replicas = np.array(_lanes(timeline, sizes, stand_ins)).T
    lengths = sizes[lanes]
    ends = np.cumsum(lengths)
    lane = np.repeat(np.arange(len(lanes)), lengths)
    moved = (ends - lengths - begins[lanes])[lane]  # from the row of a stand-in to the one of its own
    rows = np.arange(len(lane)) - moved
    own = (timeline.lane_kind[lanes] != LaneKind.COLLECTIVE)[lane]
    replica = np.where(own, replicas[lane], timeline.replica[rows])
    leads = np.array([stage.leads for stage in plan.stages])
    stage, kind, microbatch = timeline.stage[rows], timeline.kind[rows], timeline.microbatch[rows]
    sizes_of = np.repeat(plan.microbatches, plan.slices)
    begin, count = np.cumsum(sizes_of) - sizes_of, len(stand_ins.of)
    first = begin[microbatch] + sizes_of[microbatch] * replica // count
    return replace(
        timeline,
        lane=lane.astype(np.int32),
        device=np.where(own, leads[stage, replica], timeline.device[rows]).astype(np.int32),
        stage=stage,
        kind=kind,
        microbatch=microbatch,
        replica=replica.astype(np.int32),
        first_sample=np.where(own & (kind != OpKind.UPDATE), first, timeline.first_sample[rows]),
        samples=timeline.samples[rows],
        start=timeline.start[rows],
        end=timeline.end[rows],
        lane_kind=timeline.lane_kind[lanes],
        transfers=_transfers(timeline, rows, replica),
        lane_sharing=None if timeline.lane_sharing is None else timeline.lane_sharing[lanes],
        together=None if timeline.together is None else (timeline.together[rows] + moved).astype(np.int32),
    )


def _lanes(timeline: Timeline, sizes: Integers, stand_ins: StandIns) -> list[tuple[int, int]]:
    """Of each lane of all replicas the one that stands for it, and its replica, 0 for collectives: a rank has one lane for each
    replica in a row, or one without ops.
    """
    place = {replica: number for number, replica in enumerate(stand_ins.replicas)}
    found, lane = list[tuple[int, int]](), 0
    while lane < len(sizes):
        if sizes[lane] and timeline.lane_kind[lane] != LaneKind.COLLECTIVE:
            found += [(lane + place[one], replica) for replica, one in enumerate(stand_ins.of)]
            lane += len(place)
        else:
            found.append((lane, 0))
            lane += 1
    return found


def _transfers(timeline: Timeline, rows: Integers, replica: Integers) -> Transfers:
    """The transfers of all replicas; rows, replica: of each row of the whole timeline, who stands for it, and its own."""
    moves, count = timeline.transfers, int(replica.max(initial=0)) + 1
    key = rows * count + replica
    order = np.argsort(key)
    producers = np.flatnonzero(np.isin(rows, moves.producer))
    by_producer = np.argsort(moves.producer, kind="stable")
    first, last = (np.searchsorted(moves.producer[by_producer], rows[producers], side) for side in ("left", "right"))
    counts = last - first
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = by_producer[np.repeat(first, counts) + within]
    producer = np.repeat(producers, counts)
    wanted = moves.consumer[chosen].astype(np.int64) * count + replica[producer]
    consumer = order[np.searchsorted(key[order], wanted)]
    times = moves.start[chosen], moves.end[chosen], moves.size_bytes[chosen]
    return Transfers(producer.astype(np.int32), consumer.astype(np.int32), *times)
