"""Training order: what a timeline says about numerics: which op comes next, and when each update was done."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.results.versions import Integers, TimelineColumns, event_order, replicas_in_turn
from simulator.schedules.ops import COMPUTE_KINDS, OpKind


@dataclass(frozen=True, slots=True, eq=False)
class TrainingOrder:
    """Ops of a whole training run in one sequence that respects every stage's order and every dependency.

    stages N, microbatches_per_minibatch T, minibatches M
    stage, replica, kind, microbatch: one entry an op (F, B, I, W, and U with its mini-batch), all of equal length
    update_seconds: (M,) when the last stage to do so had finished the update with mini-batch m
    makespan: seconds at which the last op ended
    replicas: per stage, those that take mini-batches in turn and update together for as many of them, a round; 1 where
        replicas split every micro-batch, which is the numerics of one
    """

    stages: int
    microbatches_per_minibatch: int
    minibatches: int
    stage: Integers
    replica: Integers
    kind: Integers
    microbatch: Integers
    update_seconds: NDArray[np.float64]
    makespan: float
    replicas: tuple[int, ...]


def training_order(timeline: TimelineColumns, microbatches_per_minibatch: int) -> TrainingOrder:
    """Read the order of a replayed timeline: per stage by time (see `event_order`), then sequenced across stages.

    Works for any timeline in which every micro-batch passes every stage forward and backward and every stage updates
    once a mini-batch; where replicas take mini-batches in turn, the one that ran it does, after all of its round.
    ValueError: a missing or doubled op, updates out of order, or an order that cannot run.
    """
    if microbatches_per_minibatch < 1:
        raise ValueError(f"micro-batches a mini-batch must be at least 1, got {microbatches_per_minibatch}")
    if np.asarray(timeline.stage).size == 0:
        raise ValueError("training needs a timeline with at least one op, got none")
    takers = replicas_in_turn(timeline)
    rows = event_order(timeline)
    kinds = np.asarray(timeline.kind).astype(np.int64)
    rows = rows[np.isin(kinds[rows], (*COMPUTE_KINDS, OpKind.UPDATE))]
    stage, replica = (np.asarray(column).astype(np.int64) for column in (timeline.stage, timeline.replica))
    rows = rows[(replica[rows] == 0) | (takers[stage[rows]] > 1)]  # of replicas that split micro-batches one is enough
    rows = rows[_last_parts(timeline)[rows]]
    stage, replica = stage[rows], replica[rows]
    kind, microbatch = kinds[rows], np.asarray(timeline.microbatch).astype(np.int64)[rows]
    end = np.asarray(timeline.end, np.float64)

    stages = int(stage.max()) + 1
    total = int(microbatch[kind == OpKind.FORWARD].max(initial=-1)) + 1
    minibatches, ragged = divmod(total, microbatches_per_minibatch)
    if ragged or total == 0:
        raise ValueError(
            f"training needs whole mini-batches of {microbatches_per_minibatch} micro-batches, got {total} micro-batches"
        )
    if microbatches_per_minibatch > 1 and takers.max() > 1:
        raise ValueError(f"replicas in turn take whole mini-batches, got T={microbatches_per_minibatch}")
    _check_complete(takers, total, minibatches, stage, kind, microbatch)
    update = kind == OpKind.UPDATE
    seconds = np.zeros(minibatches)
    np.maximum.at(seconds, microbatch[update], end[rows[update]])
    sequence = _runnable(takers, microbatches_per_minibatch, stage, replica, kind, microbatch)
    return TrainingOrder(
        stages,
        microbatches_per_minibatch,
        minibatches,
        stage[sequence],
        replica[sequence],
        kind[sequence],
        microbatch[sequence],
        seconds,
        float(end.max()),
        tuple(takers.tolist()),
    )


def _last_parts(timeline: TimelineColumns) -> NDArray[np.bool_]:
    """Which rows end an op: the parts of a backward that the buckets of an all-reduce split stand in a row."""
    columns = (timeline.stage, timeline.replica, timeline.kind, timeline.microbatch)
    same = np.all([np.diff(np.asarray(column)) == 0 for column in columns], axis=0)
    reduced = np.asarray(timeline.kind) == OpKind.REDUCE
    parts = np.isin(np.asarray(timeline.stage), np.asarray(timeline.stage)[reduced])
    return ~(np.append(same, False) & parts)


def _check_complete(
    takers: Integers, total: int, minibatches: int, stage: Integers, kind: Integers, microbatch: Integers
) -> None:
    """Every stage: each micro-batch once forward and once backward (whole or split), each update once, in order.

    Replicas in turn update in the order of their rounds.
    """
    for k, count in enumerate(takers.tolist()):
        mine = stage == k
        whole = microbatch[mine & (kind == OpKind.BACKWARD)]
        split = [microbatch[mine & (kind == half)] for half in (OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT)]
        wanted = np.arange(total)
        for what, found in (
            ("forward", microbatch[mine & (kind == OpKind.FORWARD)]),
            ("input gradient", np.concatenate([whole, split[0]])),
            ("weight gradient", np.concatenate([whole, split[1]])),
        ):
            if not np.array_equal(np.sort(found), wanted):
                raise ValueError(
                    f"stage {k} must have the {what} of each of {total} micro-batches once, got {found.size} of them"
                )
        updates = microbatch[mine & (kind == OpKind.UPDATE)]
        if not np.array_equal(np.sort(updates) if count > 1 else updates, np.arange(minibatches)):
            raise ValueError(
                f"stage {k} must update once after each of {minibatches} mini-batches, in order, got updates "
                f"{', '.join(map(str, updates[:8].tolist())) or 'none'}"
            )


def _runnable(
    takers: Integers, per_minibatch: int, stage: Integers, replica: Integers, kind: Integers, microbatch: Integers
) -> NDArray[np.int64]:
    """Topological order of the ops, each as early in the given (time) order as its dependencies allow.

    Dependencies: the op before on the same replica; the forward of the stage before; the input gradient of the stage
    behind (the own forward on the last stage); for an update of replicas in turn the gradients of its round. Equal times
    of ops without duration may need the reordering.
    """
    stages, total = len(takers), int(microbatch.max()) + 1
    lanes = [(k, r) for k in range(stages) for r in range(int(takers[k]))]
    lists = [np.flatnonzero((stage == k) & (replica == r)).tolist() for k, r in lanes]
    position = [0] * len(lanes)
    forward_done: set[tuple[int, int]] = set()
    backward_done: set[tuple[int, int]] = set()
    weights_done = [0] * stages
    round_left = [[min(n, total - first) for first in range(0, total, n)] for n in takers.tolist()]
    kinds, microbatches = kind.tolist(), microbatch.tolist()
    waiting: dict[tuple[str, int, int], list[int]] = {}
    ready: list[tuple[int, int]] = []

    def offer(lane: int) -> None:
        """Queue a lane's next op, or note the op that it waits for."""
        if position[lane] == len(lists[lane]):
            return
        k = lanes[lane][0]
        row = lists[lane][position[lane]]
        i = microbatches[row]
        if kinds[row] == OpKind.FORWARD and k > 0 and (k - 1, i) not in forward_done:
            waiting.setdefault(("F", k - 1, i), []).append(lane)
        elif kinds[row] == OpKind.UPDATE and takers[k] > 1:
            if round_left[k][i // int(takers[k])]:
                waiting.setdefault(("U", k, i // int(takers[k])), []).append(lane)
            else:
                heapq.heappush(ready, (row, lane))
        elif (
            kinds[row] in (OpKind.BACKWARD, OpKind.INPUT_GRADIENT)
            and k < stages - 1
            and (k + 1, i) not in backward_done
        ):
            waiting.setdefault(("B", k + 1, i), []).append(lane)
        elif kinds[row] in (OpKind.BACKWARD, OpKind.INPUT_GRADIENT) and (k, i) not in forward_done:
            raise ValueError(f"stage {k} runs the backward of micro-batch {i} before its forward")
        elif kinds[row] == OpKind.WEIGHT_GRADIENT and (k, i) not in backward_done:
            raise ValueError(f"stage {k} runs the weight gradient of micro-batch {i} before its input gradient")
        elif kinds[row] == OpKind.UPDATE and weights_done[k] != (i + 1) * per_minibatch:
            raise ValueError(
                f"stage {k} makes update {i} after the gradients of {weights_done[k]} micro-batches, not "
                f"{(i + 1) * per_minibatch}"
            )
        else:
            heapq.heappush(ready, (row, lane))

    for lane in range(len(lanes)):
        offer(lane)
    sequence: list[int] = []
    while ready:
        row, lane = heapq.heappop(ready)
        k, i = lanes[lane][0], microbatches[row]
        sequence.append(row)
        position[lane] += 1
        woken: list[int] = []
        if kinds[row] == OpKind.FORWARD:
            forward_done.add((k, i))
            woken += waiting.pop(("F", k, i), [])
        elif kinds[row] in (OpKind.BACKWARD, OpKind.INPUT_GRADIENT):
            backward_done.add((k, i))
            woken += waiting.pop(("B", k, i), [])
        if kinds[row] in (OpKind.BACKWARD, OpKind.WEIGHT_GRADIENT):
            weights_done[k] += 1
            number = i // (per_minibatch * int(takers[k]))
            round_left[k][number] -= 1
            woken += waiting.pop(("U", k, number), []) if not round_left[k][number] else []
        for one in (lane, *woken):
            offer(one)
    if len(sequence) < len(kinds):
        (what, k, i), blocked = min(waiting.items(), key=lambda item: item[1])
        raise ValueError(
            f"the order cannot run: stage {lanes[blocked[0]][0]} waits for {what} of micro-batch {i} on stage {k}"
        )
    return np.array(sequence, np.int64)


def joined(first: TrainingOrder, second: TrainingOrder) -> TrainingOrder:
    """`second` begun when `first` has drained, mini-batches numbered on: a synchronous warm-up, then a pipeline.

    ValueError: a different number of stages or of micro-batches a mini-batch.
    """
    one = (first.stages, first.microbatches_per_minibatch)
    other = (second.stages, second.microbatches_per_minibatch)
    _check_unreplicated(first, second)
    if one != other:
        raise ValueError(f"joined orders must have the same stages and micro-batches, got {one} and {other}")
    later = np.where(
        second.kind == OpKind.UPDATE, first.minibatches, first.minibatches * first.microbatches_per_minibatch
    )
    return TrainingOrder(
        first.stages,
        first.microbatches_per_minibatch,
        first.minibatches + second.minibatches,
        np.concatenate([first.stage, second.stage]),
        np.concatenate([first.replica, second.replica]),
        np.concatenate([first.kind, second.kind]),
        np.concatenate([first.microbatch, second.microbatch + later]),
        np.concatenate([first.update_seconds, first.makespan + second.update_seconds]),
        first.makespan + second.makespan,
        first.replicas,
    )


def _check_unreplicated(*orders: TrainingOrder) -> None:
    for order in orders:
        if max(order.replicas) > 1:
            raise ValueError(f"an order whose replicas take turns cannot be continued, got replicas {order.replicas}")


def repeated(order: TrainingOrder, times: int) -> TrainingOrder:
    """`order` run `times` over, each begun when the one before has drained: a synchronous run from one iteration.

    ValueError: times < 1.
    """
    if times < 1:
        raise ValueError(f"an order is repeated at least once, got {times}")
    _check_unreplicated(order)
    run = np.repeat(np.arange(times), order.kind.size)
    kind = np.tile(order.kind, times)
    stride = np.where(kind == OpKind.UPDATE, order.minibatches, order.minibatches * order.microbatches_per_minibatch)
    starts = np.repeat(np.arange(times) * order.makespan, order.minibatches)
    return TrainingOrder(
        order.stages,
        order.microbatches_per_minibatch,
        order.minibatches * times,
        np.tile(order.stage, times),
        np.tile(order.replica, times),
        kind,
        np.tile(order.microbatch, times) + run * stride,
        np.tile(order.update_seconds, times) + starts,
        order.makespan * times,
        order.replicas,
    )
